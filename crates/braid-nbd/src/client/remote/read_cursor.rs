//! The progress of a read on the server. For a read that may consist mostly of holes, the cursor first queries the
//! extents. Holes are filled locally, and the data between them is read one range at a time. The extents are valid for
//! this read only: no write happens in the range meanwhile, since the copying task holds it exclusively.

use braid_engine::{Flags, Op};
use braid_ring::RemotePart;

/// Minimum length of a read that queries extents, in bytes. Below it, a query takes as long as the read.
const QUERY_BYTES_MIN: u64 = 64 << 10;
/// Holes shorter than this are read together with the data around them, in bytes.
const GAP_BYTES: u32 = 64 << 10;

/// The current range of a part of a leaf I/O, relative to the part's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadCursor {
    /// The range is queried for holes instead of being read.
    pub(super) is_query: bool,
    /// The current range.
    pub(super) from: u32,
    pub(super) to: u32,
    /// Where the next range begins, after the current one was read; the end of the part if there is none.
    next: u32,
    /// End of the extents that the server has reported so far.
    described_to: u32,
    /// The first data range among these extents; holes shorter than [`GAP_BYTES`] within it are read, too.
    data: Option<(u32, u32)>,
    /// The reported extents have more data after `data`, behind a longer hole.
    more_data: bool,
    /// The first error from the server.
    pub(super) error: u32,
}

impl ReadCursor {
    /// Returns a cursor at the first range of a part.
    pub(super) fn of(part: &RemotePart) -> ReadCursor {
        let is_query = part.op == Op::Read && part.flags.has(Flags::SPARSE) && part.len >= QUERY_BYTES_MIN;
        let to = part.len as u32;
        ReadCursor { is_query, to, next: to, ..ReadCursor::default() }
    }

    /// Prepares for sending the request, possibly again.
    pub(super) fn begin(&mut self) {
        (self.described_to, self.data, self.more_data, self.error) = (self.from, None, false, 0);
    }

    /// Reads the whole rest, since the holes are unknown.
    pub(super) fn read_all(&mut self) {
        debug_assert!(self.is_query, "the holes were queried");
        (self.is_query, self.next) = (false, self.to);
    }

    /// Adds an extent from the server.
    pub(super) fn extent(&mut self, len: u32, is_zero: bool) {
        let (start, end) = (self.described_to, self.described_to.saturating_add(len).min(self.to));
        self.described_to = end;
        if is_zero || start == end {
            return;
        }
        match &mut self.data {
            None => self.data = Some((start, end)),
            Some((_, last)) if !self.more_data && start - *last < GAP_BYTES => *last = end,
            Some(_) => self.more_data = true,
        }
    }

    /// Ends a query and moves to the data found. Returns the ranges that are zeros.
    pub(super) fn finish_query(&mut self) -> [(u32, u32); 2] {
        debug_assert!(self.is_query, "a query was sent");
        let before = self.from;
        if self.described_to == before {
            // The reply has no extents: the holes are unknown.
            self.read_all();
            return [(0, 0); 2];
        }
        let Some((first, last)) = self.data else {
            (self.from, self.next) = (self.described_to, self.described_to);
            return [(before, self.described_to), (0, 0)];
        };
        (self.is_query, self.from, self.to) = (false, first, last);
        self.next = if self.more_data { last } else { self.described_to };
        [(before, first), (last, self.next)]
    }

    /// Moves to the next range. Returns false if the part is complete.
    pub(super) fn advance(&mut self, len: u32) -> bool {
        (self.is_query, self.from, self.to) = (true, self.next, len);
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

    /// Checks the data and zero ranges of a part of `len` KiB, on a server that reports `at_a_time` extents per query.
    /// Extents: length in KiB, whether zeros.
    fn check(len: u32, extents: &[(u32, bool)], at_a_time: usize, read: &[(u32, u32)], questions: u32) {
        let mut cursor = ReadCursor::of(&part(Op::Read, Flags::SPARSE, u64::from(len * K)));
        let (mut reads, mut zeros, mut queries) = (Vec::new(), Vec::new(), 0);
        loop {
            cursor.begin();
            if cursor.is_query {
                queries += 1;
                let (mut at, mut described) = (0, 0);
                for (kib, is_zero) in extents {
                    let end = at + kib * K;
                    if end > cursor.from && described < at_a_time {
                        cursor.extent(end - at.max(cursor.from), *is_zero);
                        described += 1;
                    }
                    at = end;
                }
                zeros.extend(cursor.finish_query().into_iter().filter(|(from, to)| from < to));
                if !cursor.is_query {
                    continue;
                }
            } else {
                reads.push((cursor.from / K, cursor.to / K));
            }
            if !cursor.advance(len * K) {
                break;
            }
        }
        assert_eq!((&reads[..], queries), (read, questions));
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
        // A short hole is read. A long one is not, and what follows it is queried.
        check(1024, &[(100, false), (60, true), (864, false)], 9, &[(0, 1024)], 1);
        check(1024, &[(100, false), (64, true), (100, false), (760, true)], 9, &[(0, 100), (164, 264)], 2);
        // A server that reports one extent at a time is queried for each.
        check(1024, &[(100, true), (24, false), (900, true)], 1, &[(100, 124)], 3);
    }

    #[test]
    fn only_long_sparse_reads_are_queried() {
        for (part, is_query) in [
            (part(Op::Read, Flags::SPARSE, 64 << 10), true),
            (part(Op::Read, Flags::SPARSE, 60 << 10), false),
            (part(Op::Read, Flags::NONE, 1 << 20), false),
            (part(Op::WriteZeroes, Flags::SPARSE, 1 << 20), false),
        ] {
            assert_eq!(ReadCursor::of(&part).is_query, is_query, "{part:?}");
        }
    }

    #[test]
    fn an_empty_reply_reads_everything() {
        let mut cursor = ReadCursor::of(&part(Op::Read, Flags::SPARSE, 1 << 20));
        cursor.begin();
        assert_eq!(cursor.finish_query(), [(0, 0); 2]);
        assert_eq!((cursor.is_query, cursor.from, cursor.to), (false, 0, 1 << 20));
        assert!(!cursor.advance(1 << 20));
    }
}
