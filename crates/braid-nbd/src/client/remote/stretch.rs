//! Which part of a read the server is asked for. Of a read that may be holes for the most part it is first asked where these are; they
//! are filled here, and what lies between them is read, one stretch after the other. What was told holds for this read alone: nobody
//! writes there meanwhile, as whoever copies has the range to himself.

use braid_engine::{Flags, Op};
use braid_ring::RemotePart;

/// Shorter ones are read as they are: a question takes as long.
const ASKED_BYTES_MIN: u64 = 64 << 10;
/// Holes that are shorter are read with what is around them.
const GAP_BYTES: u32 = 64 << 10;

/// Bytes of a part of a leaf I/O, from its own start on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    /// It is asked what of this range is a hole, not for the data.
    pub(super) asks: bool,
    /// What is asked for.
    pub(super) from: u32,
    pub(super) to: u32,
    /// Where it goes on with what comes next; the end of the part, if nothing does.
    next: u32,
    /// How far it was told, and the first data that were told of.
    seen: u32,
    data: Option<(u32, u32)>,
    /// Others follow, behind a hole.
    more: bool,
    /// The first error that the server told.
    pub(super) error: u32,
}

impl Stretch {
    /// What is asked for first.
    pub(super) fn of(part: &RemotePart) -> Stretch {
        let asks = part.op == Op::Read && part.flags.has(Flags::SPARSE) && part.len >= ASKED_BYTES_MIN;
        let to = part.len as u32;
        Stretch { asks, to, next: to, ..Stretch::default() }
    }

    /// It is asked for, perhaps not for the first time.
    pub(super) fn begin(&mut self) {
        (self.seen, self.data, self.more, self.error) = (self.from, None, false, 0);
    }

    /// Nobody can tell where the holes are: all that is left is read.
    pub(super) fn read_all(&mut self) {
        debug_assert!(self.asks, "it was asked where they are");
        (self.asks, self.next) = (false, self.to);
    }

    /// The server tells of an extent more.
    pub(super) fn extent(&mut self, len: u32, is_zero: bool) {
        let (start, end) = (self.seen, self.seen.saturating_add(len).min(self.to));
        self.seen = end;
        if is_zero || start == end {
            return;
        }
        match &mut self.data {
            None => self.data = Some((start, end)),
            Some((_, last)) if !self.more && start - *last < GAP_BYTES => *last = end,
            Some(_) => self.more = true,
        }
    }

    /// It has told all that it wants to. Gives what are zeros.
    pub(super) fn told(&mut self) -> [(u32, u32); 2] {
        debug_assert!(self.asks, "it was asked");
        let before = self.from;
        if self.seen == before {
            // Nothing is no answer.
            self.read_all();
            return [(0, 0); 2];
        }
        let Some((first, last)) = self.data else {
            (self.from, self.next) = (self.seen, self.seen);
            return [(before, self.seen), (0, 0)];
        };
        (self.asks, self.from, self.to) = (false, first, last);
        self.next = if self.more { last } else { self.seen };
        [(before, first), (last, self.next)]
    }

    /// What was asked for has come: goes on with what follows it. False: that was all of the part.
    pub(super) fn go_on(&mut self, len: u32) -> bool {
        (self.asks, self.from, self.to) = (true, self.next, len);
        self.from < len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u32 = 1 << 10;

    fn part(op: Op, flags: Flags, len: u64) -> RemotePart {
        RemotePart { io: 0, op, flags, offset: 1 << 20, len, at: 0, start_ns: 0 }
    }

    /// What is read and what is zeros of a part of so many KiB on a server that tells so many extents at a time: (KiB, whether zeros).
    fn check(len: u32, extents: &[(u32, bool)], at_a_time: usize, read: &[(u32, u32)], questions: u32) {
        let mut stretch = Stretch::of(&part(Op::Read, Flags::SPARSE, u64::from(len * K)));
        let (mut reads, mut zeros, mut asked) = (Vec::new(), Vec::new(), 0);
        loop {
            stretch.begin();
            if stretch.asks {
                asked += 1;
                let (mut at, mut told) = (0, 0);
                for (kib, is_zero) in extents {
                    let end = at + kib * K;
                    if end > stretch.from && told < at_a_time {
                        stretch.extent(end - at.max(stretch.from), *is_zero);
                        told += 1;
                    }
                    at = end;
                }
                zeros.extend(stretch.told().into_iter().filter(|(from, to)| from < to));
                if !stretch.asks {
                    continue;
                }
            } else {
                reads.push((stretch.from / K, stretch.to / K));
            }
            if !stretch.go_on(len * K) {
                break;
            }
        }
        assert_eq!((&reads[..], asked), (read, questions));
        let mut all: Vec<_> = zeros.iter().map(|(from, to)| (from / K, to / K)).chain(reads).collect();
        all.sort_unstable();
        let mut at = 0;
        for (from, to) in all {
            assert_eq!(from, at, "each byte once");
            at = to;
        }
        assert_eq!(at, len);
    }

    #[test]
    fn holes_are_not_read() {
        check(1024, &[(1024, true)], 9, &[], 1);
        check(1024, &[(4096, true)], 9, &[], 1);
        check(1024, &[(1024, false)], 9, &[(0, 1024)], 1);
        check(1024, &[(100, true), (24, false), (900, true)], 9, &[(100, 124)], 1);
        // A short hole is read, a long one is not, and is asked behind.
        check(1024, &[(100, false), (60, true), (864, false)], 9, &[(0, 1024)], 1);
        check(1024, &[(100, false), (64, true), (100, false), (760, true)], 9, &[(0, 100), (164, 264)], 2);
        // Who tells one extent at a time is asked for each.
        check(1024, &[(100, true), (24, false), (900, true)], 1, &[(100, 124)], 3);
    }

    #[test]
    fn what_is_short_or_no_copy_is_not_asked_for() {
        for (part, asks) in [
            (part(Op::Read, Flags::SPARSE, 64 << 10), true),
            (part(Op::Read, Flags::SPARSE, 60 << 10), false),
            (part(Op::Read, Flags::NONE, 1 << 20), false),
            (part(Op::WriteZeroes, Flags::SPARSE, 1 << 20), false),
        ] {
            assert_eq!(Stretch::of(&part).asks, asks, "{part:?}");
        }
    }

    #[test]
    fn who_tells_nothing_is_read_from() {
        let mut stretch = Stretch::of(&part(Op::Read, Flags::SPARSE, 1 << 20));
        stretch.begin();
        assert_eq!(stretch.told(), [(0, 0); 2]);
        assert_eq!((stretch.asks, stretch.from, stretch.to), (false, 0, 1 << 20));
        assert!(!stretch.go_on(1 << 20));
    }
}
