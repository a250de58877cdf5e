//! Leaf I/Os that take time: a slab of entries, and the lists that run through it.

use braid_engine::{Buf, Cookie, Flags, LeafId, LeafIo, LeafResult, Op, ShardId};

pub(super) const NONE: u32 = u32::MAX;

/// Where an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    /// Waits until the driver has room.
    Ready,
    /// Waits for its time to begin.
    Delayed,
    /// In the kernel.
    Issued,
    /// Waits a little, because the kernel had no room for it.
    Again,
    /// Done; waits for the time at which it may be answered.
    Holding,
    /// Held by a `hang` rule.
    Hung,
    /// Requests to a device of the tier below.
    Below,
    /// Waits for a carrier, or parts of it are under way to a remote disk.
    Remote,
}

/// How a range is being zeroed or discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    /// Not a matter of this operation.
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
    /// When it was asked for, for the latency.
    pub(super) start_ns: u64,
    /// When its time limit began to run.
    pub(super) clock_ns: u64,
    /// Not to be answered before.
    pub(super) not_before_ns: u64,
    /// Bytes that are done; of a remote disk's, bytes that were taken.
    pub(super) done: u64,
    /// Bytes in the job that the kernel has; of requests to the tier below, how many were submitted.
    pub(super) step: u64,
    /// Requests to the tier below, or parts on their way to a remote disk, that have not ended.
    pub(super) out: u32,
    /// Requests to it that have, and whose memory the kernel has still.
    pub(super) busy: u32,
    /// What to answer when it is no longer held.
    pub(super) result: LeafResult,
    /// A bit of the data read, to be flipped before it is answered; `u64::MAX`: none.
    pub(super) corrupt_bit: u64,
    /// Version of the rules by which it hangs.
    pub(super) rules: u64,
    /// Which block of iovecs it uses, or [`NONE`].
    pub(super) iovecs: u32,
    /// Neighbours in the list of those whose time limit runs, oldest first.
    previous: u32,
    next: u32,
    /// Next in the free list, in the list of the ready, or of those that wait for a carrier.
    pub(super) link: u32,
    pub(super) state: State,
    pub(super) method: Method,
    /// Answered by its time limit; the kernel still has it.
    pub(super) late: bool,
    /// In the list of those whose time limit runs.
    clocked: bool,
    /// Of an I/O of another shard, whose disk has its connection here: which shard, and its entry there.
    pub(super) guest_of: Option<(ShardId, u32)>,
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
    out: 0,
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
    guest_of: None,
};

/// All entries. Memory for the most that there can be is reserved at start and touched as needed.
pub(super) struct Entries {
    all: Vec<Entry>,
    free: u32,
    used: u32,
    /// Those whose time limit runs: oldest and newest.
    oldest: u32,
    newest: u32,
    /// Those that wait for the driver, first come first served.
    ready_head: u32,
    ready_tail: u32,
    /// Those of other shards, and for how many of them there is room.
    guests: usize,
    guests_max: usize,
}

/// Room for so many I/Os of other shards is taken at a time.
const GUESTS_STEP: usize = 1024;

impl Entries {
    pub(super) fn new(most: usize) -> Entries {
        Entries {
            all: Vec::with_capacity(most),
            free: NONE,
            used: 0,
            oldest: NONE,
            newest: NONE,
            ready_head: NONE,
            ready_tail: NONE,
            guests: 0,
            guests_max: 0,
        }
    }

    /// Memory for so many more.
    pub(super) fn reserve(&mut self, more: usize) {
        self.all.reserve(self.all.capacity() + more - self.all.len());
    }

    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// An entry for `io`.
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

    /// An entry for an I/O of another shard, of which no limit of this one's engine knows.
    pub(super) fn take_guest(&mut self, io: &LeafIo, now_ns: u64, of: (ShardId, u32)) -> u32 {
        if self.guests == self.guests_max {
            self.reserve(GUESTS_STEP);
            self.guests_max += GUESTS_STEP;
        }
        self.guests += 1;
        let index = self.take(io, now_ns);
        self[index].guest_of = Some(of);
        index
    }

    pub(super) fn give(&mut self, index: u32) {
        self.stop_clock(index);
        let free = self.free;
        self.guests -= usize::from(self[index].guest_of.is_some());
        let entry = &mut self[index];
        debug_assert_ne!(entry.state, State::Free);
        entry.state = State::Free;
        entry.link = free;
        self.free = index;
        self.used -= 1;
    }

    /// Lets the time limit run from now on. Calls come in the order of time.
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

    /// The entry whose time limit has run longest, and since when.
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

    /// The first hung entry of a leaf from `from` on.
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
    fn ios_of_other_shards_take_no_room_from_ones_own() {
        let mut entries = Entries::new(2);
        let guests = GUESTS_STEP as u32 + 10;
        let taken: Vec<u32> = (0..guests).map(|k| entries.take_guest(&EMPTY.io, 1, (ShardId(3), k))).collect();
        for _ in 0..2 {
            entries.take(&EMPTY.io, 1);
        }
        assert_eq!((entries.used(), entries.guests), (guests + 2, guests as usize));
        for (k, index) in taken.into_iter().enumerate() {
            assert_eq!(entries[index].guest_of, Some((ShardId(3), k as u32)));
            entries.give(index);
        }
        assert_eq!((entries.used(), entries.guests), (2, 0));
        let own = entries.take(&EMPTY.io, 1);
        assert_eq!(entries[own].guest_of, None, "nobody else's");
    }
}
