//! I/Os that are drawn before they begin, so that the engine can be told of them.

use braid_engine::Soon;

use super::pattern::Pattern;

/// So many at a time: as many as a server looks ahead at in what it has received.
pub const AHEAD: usize = braid_nbd::server::FORESEEN_MAX;

/// I/Os of which the engine was told, in their order.
#[derive(Default)]
pub struct Ahead {
    /// The block of each, and whether it is read.
    drawn: [(u64, bool); AHEAD],
    next: usize,
    end: usize,
}

impl Ahead {
    /// Draws so many, and tells of them; none, as long as some are left of before.
    #[inline(never)]
    pub fn draw(&mut self, pattern: &mut Pattern, count: usize, tell: impl FnOnce(&[Soon])) {
        if self.next < self.end {
            return;
        }
        let mut soon = [Soon::default(); AHEAD];
        for (place, soon) in self.drawn.iter_mut().zip(&mut soon).take(count) {
            let (block, read) = pattern.next();
            *place = (block, read);
            *soon = Soon { offset: pattern.offset(block), write: !read };
        }
        (self.next, self.end) = (0, count);
        tell(&soon[..count]);
    }

    /// The one whose turn it is.
    #[inline(always)]
    pub fn take(&mut self) -> Option<(u64, bool)> {
        if self.next == self.end {
            return None;
        }
        self.next += 1;
        Some(self.drawn[self.next - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::super::pattern::{Order, Visit};
    use super::*;

    #[test]
    fn what_is_told_is_what_comes_and_in_the_order_of_the_pattern() {
        let visit = Visit { order: Order::Random, theta: 1.0, reads_percent: 50 };
        let mut pattern = Pattern::new(3, &visit, 8192, 1000 * 4096, 4096);
        let mut alone = pattern.clone();
        let mut ahead = Ahead::default();
        assert_eq!(ahead.take(), None, "nothing was drawn");
        for count in [3, AHEAD, 0, 1] {
            let mut told = Vec::new();
            ahead.draw(&mut pattern, count, |soon| told.extend_from_slice(soon));
            assert_eq!(told.len(), count);
            for (k, soon) in told.iter().enumerate() {
                ahead.draw(&mut pattern, 7, |_| assert_eq!(k, usize::MAX, "some are left"));
                let (block, read) = ahead.take().expect("it was told of");
                assert_eq!((block, read), alone.next());
                assert_eq!(*soon, Soon { offset: 8192 + block * 4096, write: !read });
            }
            assert_eq!(ahead.take(), None);
        }
    }
}
