//! Leaf I/Os that take time: a slab of entries, and the lists that run through it.

use braid_engine::{Buf, Cookie, Flags, LeafId, LeafIo, LeafResult, Op, ShardId};

pub(super) const NONE: u32 = u32::MAX;

/// The state of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    /// Waits until the driver has room.
    Ready,
    /// Waits for the time at which a throttle or a `delay` rule lets it begin.
    Delayed,
    /// A system call of it is in flight.
    Issued,
    /// Waits for a moment because the kernel had no resources for it.
    Retry,
    /// Its work is done. It waits for [`Entry::not_before_ns`] to complete.
    Holding,
    /// Held by a `hang` rule.
    Hung,
    /// Has requests to a device of the stack level below.
    Below,
    /// Waits for a carrier, or parts of it are in flight to a remote disk.
    Remote,
}

/// How a range is zeroed or discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    /// The operation neither zeroes nor discards.
    Plain,
    /// FALLOC_FL_PUNCH_HOLE.
    Punch,
    /// FALLOC_FL_ZERO_RANGE.
    ZeroRange,
    /// Writing zeros.
    WriteZeros,
}

/// One leaf I/O.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) io: LeafIo,
    /// When it was submitted, for the latency.
    pub(super) start_ns: u64,
    /// When its time limit started.
    pub(super) clock_ns: u64,
    /// It must not complete before this time.
    pub(super) not_before_ns: u64,
    /// Bytes done; on a remote disk, bytes of which parts were taken.
    pub(super) done: u64,
    /// Bytes of the system call in flight; on a device below, the number of requests submitted.
    pub(super) step: u64,
    /// Requests to the level below, or parts in flight to a remote disk, that have not ended.
    pub(super) outstanding: u32,
    /// Requests to the level below that have ended while the kernel still uses their memory.
    pub(super) busy: u32,
    /// The result, kept until the entry may complete.
    pub(super) result: LeafResult,
    /// A bit to flip in the data read before it completes. `u64::MAX`: none.
    pub(super) corrupt_bit: u64,
    /// Version of the rules by which it hangs.
    pub(super) rules: u64,
    /// Its block of iovecs, or [`NONE`].
    pub(super) iovecs: u32,
    /// Neighbours in the list of entries with a running time limit, oldest first.
    previous: u32,
    next: u32,
    /// Next in the free list, the ready list, or the queue of a carrier.
    pub(super) link: u32,
    pub(super) state: State,
    pub(super) method: Method,
    /// It has exceeded its time limit and the engine was notified. The kernel still has it.
    pub(super) late: bool,
    /// Whether it is in the list of entries with a running time limit.
    clocked: bool,
    /// Set if another shard forwarded this I/O because the disk's connection is on this shard: that shard, and its
    /// entry there.
    pub(super) forwarded_from: Option<(ShardId, u32)>,
}

const EMPTY: Entry = Entry {
    io: LeafIo {
        leaf: LeafId(0),
        op: Op::Read,
        flags: Flags::NONE,
        offset: 0,
        len: 0,
        buf: Buf::NONE,
        first_len: 0,
        piece_len: 0,
        first_gap: 0,
        stride: 0,
        cookie: Cookie(0),
    },
    start_ns: 0,
    clock_ns: 0,
    not_before_ns: 0,
    done: 0,
    step: 0,
    outstanding: 0,
    busy: 0,
    result: Ok(()),
    corrupt_bit: u64::MAX,
    rules: 0,
    iovecs: NONE,
    previous: NONE,
    next: NONE,
    link: NONE,
    state: State::Free,
    method: Method::Plain,
    late: false,
    clocked: false,
    forwarded_from: None,
};

/// All entries. Address space for the maximum is reserved at start; pages are allocated on first use.
pub(super) struct Entries {
    all: Vec<Entry>,
    free: u32,
    used: u32,
    /// Ends of the list of entries with a running time limit.
    oldest: u32,
    newest: u32,
    /// Ends of the list of entries that wait for the driver, first come, first served.
    ready_head: u32,
    ready_tail: u32,
    /// Entries of I/Os that other shards forwarded, and for how many of them memory is reserved.
    forwarded: usize,
    forwarded_max: usize,
}

/// Memory for forwarded I/Os is reserved in steps of this many entries.
const FORWARDED_STEP: usize = 1024;

impl Entries {
    pub(super) fn new(max: usize) -> Entries {
        Entries {
            all: Vec::with_capacity(max),
            free: NONE,
            used: 0,
            oldest: NONE,
            newest: NONE,
            ready_head: NONE,
            ready_tail: NONE,
            forwarded: 0,
            forwarded_max: 0,
        }
    }

    /// Reserves memory for this many more entries.
    pub(super) fn reserve(&mut self, more: usize) {
        self.all.reserve(self.all.capacity() + more - self.all.len());
    }

    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Allocates an entry for `io`.
    pub(super) fn take(&mut self, io: &LeafIo, now_ns: u64) -> u32 {
        self.used += 1;
        let index = match self.free {
            NONE => {
                debug_assert!(self.all.len() < self.all.capacity(), "more leaf I/Os than the engine's limits allow");
                self.all.push(EMPTY);
                self.all.len() as u32 - 1
            }
            index => {
                self.free = self.all[index as usize].link;
                index
            }
        };
        self.all[index as usize] = Entry { io: *io, start_ns: now_ns, state: State::Ready, ..EMPTY };
        index
    }

    /// Allocates an entry for an I/O that another shard forwarded. The limits of this shard's engine do not cover it.
    pub(super) fn take_forwarded(&mut self, io: &LeafIo, now_ns: u64, of: (ShardId, u32)) -> u32 {
        if self.forwarded == self.forwarded_max {
            self.reserve(FORWARDED_STEP);
            self.forwarded_max += FORWARDED_STEP;
        }
        self.forwarded += 1;
        let index = self.take(io, now_ns);
        self[index].forwarded_from = Some(of);
        index
    }

    pub(super) fn give(&mut self, index: u32) {
        self.stop_clock(index);
        let free = self.free;
        self.forwarded -= usize::from(self[index].forwarded_from.is_some());
        let entry = &mut self[index];
        debug_assert_ne!(entry.state, State::Free);
        entry.state = State::Free;
        entry.link = free;
        self.free = index;
        self.used -= 1;
    }

    /// Starts the time limit of an entry. Calls must be in the order of time.
    pub(super) fn start_clock(&mut self, index: u32, now_ns: u64) {
        debug_assert!(!self[index].clocked);
        let newest = self.newest;
        let entry = &mut self[index];
        entry.clock_ns = now_ns;
        entry.clocked = true;
        entry.previous = newest;
        entry.next = NONE;
        match newest {
            NONE => self.oldest = index,
            newest => self[newest].next = index,
        }
        self.newest = index;
    }

    pub(super) fn stop_clock(&mut self, index: u32) {
        if !std::mem::take(&mut self[index].clocked) {
            return;
        }
        let (previous, next) = (self[index].previous, self[index].next);
        match previous {
            NONE => self.oldest = next,
            previous => self[previous].next = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self[next].previous = previous,
        }
    }

    /// Returns the entry whose time limit has run longest, and when it started.
    pub(super) fn oldest(&self) -> Option<(u32, u64)> {
        (self.oldest != NONE).then(|| (self.oldest, self[self.oldest].clock_ns))
    }

    pub(super) fn push_ready(&mut self, index: u32) {
        self[index].state = State::Ready;
        self[index].link = NONE;
        match self.ready_tail {
            NONE => self.ready_head = index,
            tail => self[tail].link = index,
        }
        self.ready_tail = index;
    }

    pub(super) fn pop_ready(&mut self) -> Option<u32> {
        let index = self.ready_head;
        if index == NONE {
            return None;
        }
        self.ready_head = self[index].link;
        if self.ready_head == NONE {
            self.ready_tail = NONE;
        }
        Some(index)
    }

    /// Returns the first hung entry of a leaf at or after index `from`.
    pub(super) fn next_hung(&self, leaf: LeafId, from: u32) -> Option<u32> {
        let found = self.all.iter().skip(from as usize).position(|e| e.state == State::Hung && e.io.leaf == leaf)?;
        Some(from + found as u32)
    }
}

impl std::ops::Index<u32> for Entries {
    type Output = Entry;
    #[inline]
    fn index(&self, index: u32) -> &Entry {
        &self.all[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Entries {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Entry {
        &mut self.all[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_ios_take_no_room_from_own_ios() {
        let mut entries = Entries::new(2);
        let forwarded = FORWARDED_STEP as u32 + 10;
        let taken: Vec<u32> = (0..forwarded).map(|k| entries.take_forwarded(&EMPTY.io, 1, (ShardId(3), k))).collect();
        for _ in 0..2 {
            entries.take(&EMPTY.io, 1);
        }
        assert_eq!((entries.used(), entries.forwarded), (forwarded + 2, forwarded as usize));
        for (k, index) in taken.into_iter().enumerate() {
            assert_eq!(entries[index].forwarded_from, Some((ShardId(3), k as u32)));
            entries.give(index);
        }
        assert_eq!((entries.used(), entries.forwarded), (2, 0));
        let own = entries.take(&EMPTY.io, 1);
        assert_eq!(entries[own].forwarded_from, None, "not a forwarded one");
    }
}
