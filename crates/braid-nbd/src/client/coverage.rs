//! Tracks which parts of a READ were received. The chunks of a reply may arrive in any order, but must not overlap.

/// Maximum number of separate received parts of a reply at any time. A reply in order is one part, however many chunks
/// it has.
pub const PARTS_MAX: usize = 16;

/// The received parts of one READ, relative to its start: separate and in ascending order. Allocates nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coverage {
    used: usize,
    /// Pairs of start and end.
    parts: [(u32, u32); PARTS_MAX],
}

impl Coverage {
    /// Removes all parts.
    #[inline]
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns whether all bytes from 0 to `len` were received.
    #[inline]
    pub fn is_complete(&self, len: u32) -> bool {
        len == 0 || (self.used == 1 && self.parts[0] == (0, len))
    }

    /// Adds a part.
    ///
    /// # Errors
    /// Some of it was received before, or there are too many gaps.
    #[inline]
    pub fn add(&mut self, from: u32, to: u32) -> Result<(), &'static str> {
        let parts = &mut self.parts[..self.used];
        let at = parts.iter().position(|part| from < part.1).unwrap_or(parts.len());
        if parts.get(at).is_some_and(|next| next.0 < to) {
            return Err("the same part of a read twice");
        }
        let joins_before = at > 0 && parts[at - 1].1 == from;
        let joins_after = parts.get(at).is_some_and(|next| next.0 == to);
        match (joins_before, joins_after) {
            (true, true) => {
                parts[at - 1].1 = parts[at].1;
                parts.copy_within(at + 1.., at);
                self.used -= 1;
            }
            (true, false) => parts[at - 1].1 = to,
            (false, true) => parts[at].0 = from,
            (false, false) if self.used == PARTS_MAX => return Err("a read in too many parts out of order"),
            (false, false) => {
                self.parts.copy_within(at..self.used, at + 1);
                self.parts[at] = (from, to);
                self.used += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds parts. Checks the result of the last one, and whether 0 to 100 is complete.
    fn check(parts: &[(u32, u32)], ok: bool, whole: bool) {
        let mut coverage = Coverage::default();
        let (last, before) = parts.split_last().expect("some parts");
        for &(from, to) in before {
            coverage.add(from, to).expect("a part that fits");
        }
        assert_eq!((coverage.add(last.0, last.1).is_ok(), coverage.is_complete(100)), (ok, whole), "{parts:?}");
    }

    #[test]
    fn parts_in_any_order() {
        check(&[(0, 100)], true, true);
        check(&[(0, 99)], true, false);
        check(&[(0, 40), (40, 70), (70, 100)], true, true);
        check(&[(70, 100), (40, 70), (0, 40)], true, true);
        check(&[(70, 100), (0, 40), (40, 70)], true, true);
        check(&[(80, 100), (0, 20), (40, 60), (60, 80), (20, 40)], true, true);
        check(&[(0, 20), (40, 60), (80, 100), (20, 40)], true, false);
    }

    #[test]
    fn a_byte_received_twice_is_refused() {
        check(&[(0, 50), (0, 50)], false, false);
        check(&[(0, 50), (49, 100)], false, false);
        check(&[(50, 100), (0, 51)], false, false);
        check(&[(20, 80), (40, 60)], false, false);
        check(&[(40, 60), (20, 80)], false, false);
        check(&[(0, 20), (80, 100), (10, 90)], false, false);
        check(&[(0, 100), (99, 100)], false, true);
    }

    #[test]
    fn gaps_are_limited() {
        let mut coverage = Coverage::default();
        for k in 0..PARTS_MAX as u32 {
            coverage.add(2 * k, 2 * k + 1).expect("room");
        }
        assert!(coverage.add(98, 99).is_err());
        for k in (0..PARTS_MAX as u32).rev() {
            coverage.add(2 * k + 1, 2 * k + 2).expect("gaps can always be filled");
        }
        assert!(coverage.is_complete(2 * PARTS_MAX as u32));
    }
}
