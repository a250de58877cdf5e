//! I/Os that are drawn before they are submitted, so that the engine can prefetch for them.

use braid_engine::UpcomingRequest;

use super::pattern::Pattern;

/// Most I/Os drawn ahead: as many as the NBD server looks ahead at in received bytes.
pub const AHEAD: usize = braid_nbd::server::PREFETCH_REQUESTS_MAX;

/// I/Os that were announced to the engine, in their order.
#[derive(Default)]
pub struct Ahead {
    /// The block of each I/O, and whether it is a read.
    drawn: [(u64, bool); AHEAD],
    next: usize,
    end: usize,
}

impl Ahead {
    /// Draws `count` I/Os and announces them. Does nothing while I/Os that were drawn earlier remain.
    #[inline(never)]
    pub fn draw(&mut self, pattern: &mut Pattern, count: usize, announce: impl FnOnce(&[UpcomingRequest])) {
        if self.next < self.end {
            return;
        }
        let mut soon = [UpcomingRequest::default(); AHEAD];
        for (drawn, soon) in self.drawn.iter_mut().zip(&mut soon).take(count) {
            let (block, read) = pattern.next();
            *drawn = (block, read);
            *soon = UpcomingRequest { offset: pattern.offset(block), write: !read };
        }
        (self.next, self.end) = (0, count);
        announce(&soon[..count]);
    }

    /// Takes the next I/O that was drawn ahead: its block, and whether it is a read.
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
    fn announced_ios_follow_in_the_order_of_the_pattern() {
        let visit = Visit { order: Order::Random, theta: 1.0, reads_percent: 50 };
        let mut pattern = Pattern::new(3, &visit, 8192, 1000 * 4096, 4096);
        let mut alone = pattern.clone();
        let mut ahead = Ahead::default();
        assert_eq!(ahead.take(), None, "nothing was drawn");
        for count in [3, AHEAD, 0, 1] {
            let mut announced = Vec::new();
            ahead.draw(&mut pattern, count, |soon| announced.extend_from_slice(soon));
            assert_eq!(announced.len(), count);
            for (k, soon) in announced.iter().enumerate() {
                ahead.draw(&mut pattern, 7, |_| assert_eq!(k, usize::MAX, "some are left"));
                let (block, read) = ahead.take().expect("it was announced");
                assert_eq!((block, read), alone.next());
                assert_eq!(*soon, UpcomingRequest { offset: 8192 + block * 4096, write: !read });
            }
            assert_eq!(ahead.take(), None);
        }
    }
}
