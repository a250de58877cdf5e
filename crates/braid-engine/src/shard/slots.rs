//! The slab of slots, and the lists of those that wait.

use super::partial::Partial;
use crate::claims::Claim;
use crate::io::{Buf, Cookie, Flags, IoError, LeafId, META_BLOCKS, Op};
use crate::limits::{GATHERS_MAX, JOURNAL_IOS_MAX, SYNCS_MAX};
use crate::mirror::Roles;
use crate::plan::carries_data;

/// No slot: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// Of a slot that has nothing to do with volumes.
pub(crate) const NO_POOL: u16 = u16::MAX;

/// The time of a request to a volume that is not counted, as it waits for what may wait for those who are.
pub(crate) const AWAY: u8 = 2;

const LEAF_BITS: u32 = 20;
const SLOT_BITS: u32 = 12;
const GENERATION_MASK: u32 = (1 << 24) - 1;

/// Where a slot is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// In the free list.
    Free,
    /// Leaf I/Os are out, or it is being advanced right now.
    Active,
    /// In a list of those that wait for something that is not a leaf I/O.
    Waiting,
    /// Answered, but the kernel still has some of its I/Os.
    Late,
}

/// One request in flight, however deep the stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub tag: u64,
    pub start: u64,
    pub end: u64,
    /// First byte not yet planned; for a flush, the first leaf not yet asked.
    pub cursor: u64,
    pub buf: Buf,
    /// The part that is held in the range table; empty when equal.
    pub held: (u64, u64),
    /// The claim to its whole range, of a request that changes the device.
    pub claim: Claim,
    pub wait_key: u64,
    pub error: Option<IoError>,
    pub device: u32,
    pub version: u32,
    pub generation: u32,
    /// Leaf I/Os submitted and not answered.
    pub out: u32,
    /// Leaf I/Os answered by their time limit, which the kernel still has.
    pub late: u32,
    pub next: u32,
    pub op: Op,
    pub flags: Flags,
    pub state: State,
    /// All data is written; what is left is to flush, for FUA on what has none of its own.
    pub flushing: bool,
    /// One leaf I/O is all there is to it.
    pub single: bool,
    /// Its reads are counted in the loads of their disks.
    pub balanced: bool,
    /// A read failed, and the step is to be planned again without that member.
    pub again: bool,
    /// Others stay until it has ended, as they go on where it ends.
    pub followed: bool,
    /// Its late range is in the list of those that others must not write to.
    pub barred: bool,
    /// A read of a replicated device that has all its data.
    pub has_read: bool,
    /// Blocks of the granule at `step` that it waits for to have been free once, since the give of number `begun_ns`.
    pub awaits: u16,
    /// It stood in a journal of which there is one copy: that is not durable enough.
    pub alone: bool,
    /// Where the step that is out began.
    pub step: u64,
    /// When that was.
    pub begun_ns: u64,
    /// Members that it does not read from any more.
    pub avoid: Roles,
    /// Those of them that were only slow: see [`Slot::slow`].
    slow: u16,
    /// It waits for its frontend's word when it has its claim: see [`super::entering`].
    pub is_entered: bool,
    /// How often it was given up as slow.
    pub tries: u8,
    /// Members that failed what changes them: it goes on when they are left out.
    pub failed: Roles,
    /// Why members failed.
    pub cause: Option<IoError>,
    /// The job's part that this is, or [`NONE`].
    pub sync: u32,
    /// What it needs besides while it works on rows of an array with parity, or [`NONE`].
    pub work: u32,
    /// The gather that it is carried out by, or whether one is worth looking for: see [`super::gather::of`].
    pub gather: u32,
    /// A part of a request to a volume: that request's slot. An I/O of a pool: the pool.
    pub parent: u32,
    /// A request to a volume: its pool, and in which of the pool's two times it began, or [`AWAY`].
    pub pool: u16,
    pub time: u8,
    /// The member, and its layout, on which one leaf I/O is all there is to a request to a volume; `step` is the byte there.
    pub below: (u32, u32),
    /// Behind which write it stays, slot and generation, and behind how many it has.
    pub behind: (u32, u32),
    pub changes: u8,
    /// Whether it carries out a request that is not of whole blocks, and where it is with that.
    pub partial: Partial,
}

impl Slot {
    /// Makes the slot ready for a request that begins now.
    #[inline]
    pub fn prepare(&mut self, op: Op, flags: Flags, start: u64, len: u64, buf: Buf, tag: u64) {
        self.tag = tag;
        self.start = start;
        self.end = start + len;
        self.cursor = if op == Op::Flush { 0 } else { start };
        self.step = start;
        self.buf = buf;
        self.held = (0, 0);
        self.claim = Claim::No;
        self.error = None;
        self.cause = None;
        self.late = 0;
        self.out = 0;
        self.op = op;
        self.flags = flags;
        self.flushing = op == Op::Flush;
        self.single = false;
        self.balanced = false;
        self.again = false;
        self.followed = false;
        self.barred = false;
        self.alone = false;
        self.has_read = false;
        self.avoid = Roles::NONE;
        self.slow = 0;
        self.tries = 0;
        self.is_entered = false;
        self.failed = Roles::NONE;
        self.sync = NONE;
        self.work = NONE;
        self.gather = NONE;
        self.parent = NONE;
        self.pool = NO_POOL;
        self.below.0 = NONE;
        self.changes = 0;
        self.partial = Partial::No;
    }

    /// Members that were too slow to be read from, of the first [`crate::mirror::SLOW_MAX`].
    pub fn slow(&self) -> Roles {
        Roles(u128::from(self.slow))
    }

    pub fn set_slow(&mut self, slow: Roles) {
        self.slow = slow.0 as u16;
    }

    /// Whether late I/O of the slot may still use the buffer of its request. A read that has succeeded has its data from
    /// elsewhere, and what is not of whole blocks has memory of the shard.
    pub fn keeps_memory(&self) -> bool {
        self.partial == Partial::No && (self.op != Op::Read || self.error.is_some())
    }

    /// Bytes of memory that the request's data take.
    pub fn memory_bytes(&self) -> u64 {
        if carries_data(self.op) { self.end - self.start } else { 0 }
    }

    const EMPTY: Slot = Slot {
        tag: 0,
        start: 0,
        end: 0,
        cursor: 0,
        buf: Buf::NONE,
        held: (0, 0),
        claim: Claim::No,
        wait_key: 0,
        error: None,
        device: 0,
        version: 0,
        generation: 0,
        out: 0,
        late: 0,
        next: NONE,
        op: Op::Read,
        flags: Flags::NONE,
        state: State::Free,
        flushing: false,
        single: false,
        balanced: false,
        again: false,
        followed: false,
        barred: false,
        alone: false,
        has_read: false,
        awaits: 0,
        step: 0,
        begun_ns: 0,
        avoid: Roles::NONE,
        slow: 0,
        tries: 0,
        is_entered: false,
        failed: Roles::NONE,
        cause: None,
        sync: NONE,
        work: NONE,
        gather: NONE,
        parent: NONE,
        pool: NO_POOL,
        time: 0,
        below: (NONE, 0),
        behind: (NONE, 0),
        changes: 0,
        partial: Partial::No,
    };
}

// Four lines of memory: whatever is added here, each request pays for it.
const _: () = assert!(std::mem::size_of::<Slot>() <= 256);

/// All slots of a shard: those for requests first, then one for each metadata block, then those for parts of jobs, for
/// journals, and for gathers, which must never wait for requests that wait for them.
pub(crate) struct Slab {
    slots: Box<[Slot]>,
    free: u32,
    requests: u32,
}

impl Slab {
    pub fn new(requests: u32, reserved: u32) -> Slab {
        assert!(requests + reserved <= 1 << SLOT_BITS, "more slots than a cookie can name");
        let mut slots = vec![Slot::EMPTY; (requests + reserved) as usize].into_boxed_slice();
        for (index, slot) in slots.iter_mut().enumerate().take(requests as usize) {
            slot.next = if index as u32 + 1 < requests { index as u32 + 1 } else { NONE };
        }
        Slab { slots, free: if requests > 0 { 0 } else { NONE }, requests }
    }

    /// Whether a slot is free.
    #[inline]
    pub fn has_free(&self) -> bool {
        self.free != NONE
    }

    /// A free slot, active and with a new generation, or none.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        let index = self.free;
        if index == NONE {
            return None;
        }
        let slot = &mut self.slots[index as usize];
        self.free = slot.next;
        slot.state = State::Active;
        Some(index)
    }

    /// The slot reserved for metadata block `block`, made active.
    pub fn take_reserved(&mut self, block: u32) -> u32 {
        let index = self.requests + block;
        let slot = &mut self.slots[index as usize];
        debug_assert_eq!(slot.state, State::Free);
        slot.state = State::Active;
        index
    }

    /// The slot reserved for metadata block `block`.
    pub fn reserved(&self, block: u32) -> u32 {
        self.requests + block
    }

    /// Which metadata block a reserved slot belongs to.
    #[inline]
    pub fn reserved_block(&self, index: u32) -> Option<u32> {
        index.checked_sub(self.requests).filter(|block| *block < META_BLOCKS)
    }

    /// The slot of a journal's I/O `io`, made active whatever it is.
    pub fn take_journal(&mut self, io: u32) -> u32 {
        let index = self.journal(io);
        self.slots[index as usize].state = State::Active;
        index
    }

    /// The slot of a journal's I/O `io`.
    pub fn journal(&self, io: u32) -> u32 {
        self.requests + META_BLOCKS + SYNCS_MAX + io
    }

    /// Which of the journals' I/Os a slot belongs to.
    #[inline]
    pub fn journal_io(&self, index: u32) -> Option<u32> {
        index.checked_sub(self.requests + META_BLOCKS + SYNCS_MAX).filter(|io| *io < JOURNAL_IOS_MAX)
    }

    /// The slot of gather `number`, made active.
    pub fn take_gather(&mut self, number: u32) -> u32 {
        self.take_reserved(META_BLOCKS + SYNCS_MAX + JOURNAL_IOS_MAX + number)
    }

    /// Which gather a slot carries out.
    #[inline]
    pub fn gather(&self, index: u32) -> Option<u32> {
        index
            .checked_sub(self.requests + META_BLOCKS + SYNCS_MAX + JOURNAL_IOS_MAX)
            .filter(|number| *number < GATHERS_MAX)
    }

    /// The first slot for parts of requests to volumes; those for the pools' own I/Os follow.
    fn parts(&self) -> u32 {
        self.requests + META_BLOCKS + SYNCS_MAX + JOURNAL_IOS_MAX + GATHERS_MAX
    }

    /// The slot of part `number`, made active.
    pub fn take_part(&mut self, number: u32) -> u32 {
        let index = self.parts() + number;
        debug_assert_eq!(self.slots[index as usize].state, State::Free);
        self.slots[index as usize].state = State::Active;
        index
    }

    /// Which part of a request to a volume a slot carries out, or, from [`crate::limits::PARTS_MAX`] on, which I/O of a pool.
    #[inline]
    pub fn part(&self, index: u32) -> Option<u32> {
        index.checked_sub(self.parts())
    }

    #[inline]
    pub fn give(&mut self, index: u32) {
        let free = self.free;
        let reserved = index >= self.requests;
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.state != State::Free && slot.out == 0 && slot.late == 0);
        slot.state = State::Free;
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        if !reserved {
            slot.next = free;
            self.free = index;
        }
    }

    /// The slot and leaf that a cookie names; none when the slot has since served another request.
    #[inline]
    pub fn find(&self, cookie: Cookie) -> Option<(u32, LeafId)> {
        let index = (cookie.0 >> LEAF_BITS) as u32 & ((1 << SLOT_BITS) - 1);
        let generation = (cookie.0 >> (LEAF_BITS + SLOT_BITS)) as u32 & GENERATION_MASK;
        let slot = self.slots.get(index as usize)?;
        (slot.generation == generation && slot.state != State::Free)
            .then_some((index, LeafId(cookie.0 as u32 & ((1 << LEAF_BITS) - 1))))
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Slots that are in use.
    pub fn in_use(&self) -> u32 {
        self.slots.iter().filter(|s| s.state != State::Free).count() as u32
    }
}

/// The name of a leaf I/O of this slot.
#[inline]
pub(crate) fn cookie(index: u32, generation: u32, leaf: LeafId) -> Cookie {
    Cookie(u64::from(leaf.0) | u64::from(index) << LEAF_BITS | u64::from(generation) << (LEAF_BITS + SLOT_BITS))
}

impl std::ops::Index<u32> for Slab {
    type Output = Slot;
    #[inline]
    fn index(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Slab {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }
}

/// Lists of waiting slots, by what they wait for. First come, first woken.
pub(crate) struct WaitLists {
    heads: Box<[(u32, u32)]>,
}

impl WaitLists {
    pub fn new() -> WaitLists {
        WaitLists { heads: vec![(NONE, NONE); 256].into() }
    }

    fn list(key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
    }

    pub fn park(&mut self, slab: &mut Slab, index: u32, key: u64) {
        let slot = &mut slab[index];
        slot.state = State::Waiting;
        slot.wait_key = key;
        slot.next = NONE;
        let (head, tail) = &mut self.heads[WaitLists::list(key)];
        match *tail {
            NONE => *head = index,
            last => slab[last].next = index,
        }
        *tail = index;
    }

    /// The last slot that waits for `key` right now, or [`NONE`].
    pub fn last(&self, key: u64, slab: &Slab) -> u32 {
        let (mut index, mut last) = (self.heads[WaitLists::list(key)].0, NONE);
        while index != NONE {
            if slab[index].wait_key == key {
                last = index;
            }
            index = slab[index].next;
        }
        last
    }

    /// Takes this slot off its list.
    pub fn unpark(&mut self, slab: &mut Slab, index: u32) {
        let (head, tail) = &mut self.heads[WaitLists::list(slab[index].wait_key)];
        let (mut before, mut at) = (NONE, *head);
        while at != index {
            debug_assert_ne!(at, NONE, "a slot that waits is on its list");
            (before, at) = (at, slab[at].next);
        }
        let next = slab[index].next;
        match before {
            NONE => *head = next,
            _ => slab[before].next = next,
        }
        if next == NONE {
            *tail = before;
        }
        slab[index].state = State::Active;
    }

    /// Takes the first slot that waits for `key` off its list.
    pub fn wake_one(&mut self, slab: &mut Slab, key: u64) -> Option<u32> {
        let (head, tail) = &mut self.heads[WaitLists::list(key)];
        let (mut before, mut index) = (NONE, *head);
        while index != NONE {
            let next = slab[index].next;
            if slab[index].wait_key == key {
                match before {
                    NONE => *head = next,
                    _ => slab[before].next = next,
                }
                if next == NONE {
                    *tail = before;
                }
                slab[index].state = State::Active;
                return Some(index);
            }
            (before, index) = (index, next);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_cookie_is_recognised() {
        let mut slab = Slab::new(2, 0);
        let index = slab.take().unwrap();
        let cookie = cookie(index, slab[index].generation, LeafId(7));
        assert_eq!(slab.find(cookie), Some((index, LeafId(7))));
        slab.give(index);
        assert_eq!(slab.find(cookie), None);
        assert_eq!(slab.take(), Some(index));
        assert_eq!(slab.find(cookie), None, "the slot serves another request now");
    }

    #[test]
    fn waiting_slots_wake_in_order() {
        let mut slab = Slab::new(8, 0);
        let mut lists = WaitLists::new();
        let all: Vec<u32> = (0..6).map(|_| slab.take().unwrap()).collect();
        for (k, index) in all.iter().enumerate() {
            lists.park(&mut slab, *index, (k % 2) as u64);
        }
        let odd: Vec<u32> = std::iter::from_fn(|| lists.wake_one(&mut slab, 1)).collect();
        assert_eq!(odd, [all[1], all[3], all[5]]);
        let even: Vec<u32> = std::iter::from_fn(|| lists.wake_one(&mut slab, 0)).collect();
        assert_eq!(even, [all[0], all[2], all[4]]);
    }
}
