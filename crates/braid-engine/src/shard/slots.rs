//! The slab of slots, and the lists of slots that wait.

use crate::claims::Claim;
use crate::io::{Buf, Cookie, Flags, IoError, LeafId, META_BLOCKS, Op};
use crate::limits::{GATHERS_MAX, JOURNAL_IOS_MAX, SYNCS_MAX};
use crate::mirror::MemberSet;
use crate::plan::carries_data;

/// No slot: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// The pool of a slot that does not belong to a volume.
pub(crate) const NO_POOL: u16 = u16::MAX;

/// The counting period of a request to a volume that is not counted, because it waits for something that may wait for
/// the end of all counted requests.
pub(crate) const UNCOUNTED: u8 = 2;

const LEAF_BITS: u32 = 20;
const SLOT_BITS: u32 = 12;
const GENERATION_MASK: u32 = (1 << 24) - 1;

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    /// In the free list.
    Free,
    /// Leaf I/Os are in flight, or the slot is being advanced right now.
    Active,
    /// The slot is in a wait list, for something other than a leaf I/O.
    Waiting,
    /// The request is answered, but the kernel still has some of its I/Os.
    Late,
}

/// The stage of a slot with regard to partial requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Partial {
    /// The slot's request is of whole blocks.
    #[default]
    No,
    /// The slot has no I/O in flight: the next step begins.
    Between,
    /// A step is in flight: the slot's range and operation are the step's.
    Step,
    /// The request is answered, and the kernel may still have its memory.
    Ended,
}

/// A request in flight, however deep the stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub tag: u64,
    pub start: u64,
    pub end: u64,
    /// The first byte not yet planned; for a flush, the index of the first leaf not yet flushed.
    pub cursor: u64,
    pub buf: Buf,
    /// The part that is held in the range table; nothing is held if both ends are equal.
    pub held: (u64, u64),
    /// The claim of a request that changes the device, to its whole range.
    pub claim: Claim,
    pub wait_key: u64,
    pub error: Option<IoError>,
    pub device: u32,
    pub version: u32,
    pub generation: u32,
    /// Leaf I/Os in flight.
    pub out: u32,
    /// Leaf I/Os that exceeded their time limit and that the kernel still has.
    pub late: u32,
    pub next: u32,
    pub op: Op,
    pub flags: Flags,
    pub state: SlotState,
    /// All data is written; what remains is to flush, for FUA of an operation that has none on the leaf.
    pub flushing: bool,
    /// The request is a single leaf I/O.
    pub single: bool,
    /// Its reads are counted in the loads of their disks.
    pub balanced: bool,
    /// A read failed: the step is planned again without that member.
    pub again: bool,
    /// Other writes that continue where this one ends wait until it has ended.
    pub followed: bool,
    /// Its range is in the list of late ranges, which others must not write to.
    pub barred: bool,
    /// A read of a replicated device that has all its data.
    pub has_read: bool,
    /// Blocks of the granule at `step` that the read waits for: each must have been free once since release number
    /// `begun_ns`.
    pub awaits: u16,
    /// Part of it was logged in a journal of which there is one copy. That is not durable enough: with FUA a flush
    /// follows.
    pub alone: bool,
    /// The first byte of the step in flight.
    pub step: u64,
    /// When the step began.
    pub begun_ns: u64,
    /// Members that it does not read from any more.
    pub avoid: MemberSet,
    /// Those of `avoid` that were only slow: see [`Slot::slow`].
    slow: u16,
    /// It has its claim, or is queued for it, and waits for its frontend: see [`super::entering`].
    pub is_entered: bool,
    /// How often a read of it was abandoned because a member was slow.
    pub tries: u8,
    /// Members that failed a change: the request continues when they are dropped.
    pub failed: MemberSet,
    /// Why members failed.
    pub cause: Option<IoError>,
    /// The part of a job that this slot carries out, or [`NONE`].
    pub sync: u32,
    /// The stripe work of a request to an array with parity, or [`NONE`].
    pub work: u32,
    /// The gather that carries it out, or whether one is worth looking for: see [`super::gather::of`].
    pub gather: u32,
    /// Of a part of a request to a volume: that request's slot. Of an I/O of a pool: the pool.
    pub parent: u32,
    /// Of a request to a volume: its pool, and the counting period of the pool that it belongs to, or [`UNCOUNTED`].
    pub pool: u16,
    pub period: u8,
    /// Of a request to a volume that is a single leaf I/O on one member: that member and its layout version; `step` is
    /// the offset there.
    pub below: (u32, u32),
    /// The write that it waits behind, as slot and generation; and how many writes it has waited behind.
    pub behind: (u32, u32),
    pub changes: u8,
    /// Whether the slot carries out a partial request (not of whole blocks), and its stage.
    pub partial: Partial,
}

impl Slot {
    /// Prepares the slot for a request that begins now.
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
        self.avoid = MemberSet::NONE;
        self.slow = 0;
        self.tries = 0;
        self.is_entered = false;
        self.failed = MemberSet::NONE;
        self.sync = NONE;
        self.work = NONE;
        self.gather = NONE;
        self.parent = NONE;
        self.pool = NO_POOL;
        self.below.0 = NONE;
        self.changes = 0;
        self.partial = Partial::No;
    }

    /// Returns the members that were too slow to be read from, among the first [`crate::mirror::SLOW_MAX`].
    pub fn slow(&self) -> MemberSet {
        MemberSet(u128::from(self.slow))
    }

    pub fn set_slow(&mut self, slow: MemberSet) {
        self.slow = slow.0 as u16;
    }

    /// Returns whether late I/O of the slot may still use the buffer of its request. A read that has succeeded has its
    /// data from another member, and a partial request uses memory of the shard.
    pub fn keeps_memory(&self) -> bool {
        self.partial == Partial::No && (self.op != Op::Read || self.error.is_some())
    }

    /// Returns the bytes of memory that the request's data occupies.
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
        state: SlotState::Free,
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
        avoid: MemberSet::NONE,
        slow: 0,
        tries: 0,
        is_entered: false,
        failed: MemberSet::NONE,
        cause: None,
        sync: NONE,
        work: NONE,
        gather: NONE,
        parent: NONE,
        pool: NO_POOL,
        period: 0,
        below: (NONE, 0),
        behind: (NONE, 0),
        changes: 0,
        partial: Partial::No,
    };
}

// Four cache lines: every field added here costs each request.
const _: () = assert!(std::mem::size_of::<Slot>() <= 256);

/// All slots of a shard: those of requests first, then one for each bitmap block, then those of parts of jobs, of
/// journals, of gathers, of parts of requests to volumes and of pools. These are reserved, because requests wait for
/// them and they must never wait for requests.
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

    /// Returns whether a slot is free.
    #[inline]
    pub fn has_free(&self) -> bool {
        self.free != NONE
    }

    /// Allocates a free slot and makes it active.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        let index = self.free;
        if index == NONE {
            return None;
        }
        let slot = &mut self.slots[index as usize];
        self.free = slot.next;
        slot.state = SlotState::Active;
        Some(index)
    }

    /// Allocates the slot reserved for bitmap block `block`.
    pub fn take_reserved(&mut self, block: u32) -> u32 {
        let index = self.requests + block;
        let slot = &mut self.slots[index as usize];
        debug_assert_eq!(slot.state, SlotState::Free);
        slot.state = SlotState::Active;
        index
    }

    /// Returns the slot reserved for bitmap block `block`.
    pub fn reserved(&self, block: u32) -> u32 {
        self.requests + block
    }

    /// Returns the bitmap block that a reserved slot belongs to.
    #[inline]
    pub fn reserved_block(&self, index: u32) -> Option<u32> {
        index.checked_sub(self.requests).filter(|block| *block < META_BLOCKS)
    }

    /// Allocates the slot of a journal's I/O `io`, whatever its state.
    pub fn take_journal(&mut self, io: u32) -> u32 {
        let index = self.journal(io);
        self.slots[index as usize].state = SlotState::Active;
        index
    }

    /// Returns the slot of a journal's I/O `io`.
    pub fn journal(&self, io: u32) -> u32 {
        self.requests + META_BLOCKS + SYNCS_MAX + io
    }

    /// Returns the journal I/O that a slot belongs to.
    #[inline]
    pub fn journal_io(&self, index: u32) -> Option<u32> {
        index.checked_sub(self.requests + META_BLOCKS + SYNCS_MAX).filter(|io| *io < JOURNAL_IOS_MAX)
    }

    /// Allocates the slot of gather `number`.
    pub fn take_gather(&mut self, number: u32) -> u32 {
        self.take_reserved(META_BLOCKS + SYNCS_MAX + JOURNAL_IOS_MAX + number)
    }

    /// Returns the gather that a slot carries out.
    #[inline]
    pub fn gather(&self, index: u32) -> Option<u32> {
        index
            .checked_sub(self.requests + META_BLOCKS + SYNCS_MAX + JOURNAL_IOS_MAX)
            .filter(|number| *number < GATHERS_MAX)
    }

    /// Returns the first slot for parts of requests to volumes. Those for the pools' own I/Os follow.
    fn parts(&self) -> u32 {
        self.requests + META_BLOCKS + SYNCS_MAX + JOURNAL_IOS_MAX + GATHERS_MAX
    }

    /// Allocates the slot of part `number`.
    pub fn take_part(&mut self, number: u32) -> u32 {
        let index = self.parts() + number;
        debug_assert_eq!(self.slots[index as usize].state, SlotState::Free);
        self.slots[index as usize].state = SlotState::Active;
        index
    }

    /// Returns the part of a request to a volume that a slot carries out; from [`crate::limits::PARTS_MAX`] on, the I/O
    /// of a pool.
    #[inline]
    pub fn part(&self, index: u32) -> Option<u32> {
        index.checked_sub(self.parts())
    }

    #[inline]
    pub fn give(&mut self, index: u32) {
        let free = self.free;
        let reserved = index >= self.requests;
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.state != SlotState::Free && slot.out == 0 && slot.late == 0);
        slot.state = SlotState::Free;
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        if !reserved {
            slot.next = free;
            self.free = index;
        }
    }

    /// Returns the slot and the leaf that a cookie names; `None` if the slot has since been reused.
    #[inline]
    pub fn find(&self, cookie: Cookie) -> Option<(u32, LeafId)> {
        let index = (cookie.0 >> LEAF_BITS) as u32 & ((1 << SLOT_BITS) - 1);
        let generation = (cookie.0 >> (LEAF_BITS + SLOT_BITS)) as u32 & GENERATION_MASK;
        let slot = self.slots.get(index as usize)?;
        (slot.generation == generation && slot.state != SlotState::Free)
            .then_some((index, LeafId(cookie.0 as u32 & ((1 << LEAF_BITS) - 1))))
    }

    /// Returns the number of slots.
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the number of slots in use.
    pub fn in_use(&self) -> u32 {
        self.slots.iter().filter(|s| s.state != SlotState::Free).count() as u32
    }
}

/// Returns the cookie of a leaf I/O of this slot.
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

/// Lists of waiting slots, by what they wait for. Each list is first in, first out.
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
        slot.state = SlotState::Waiting;
        slot.wait_key = key;
        slot.next = NONE;
        let (head, tail) = &mut self.heads[WaitLists::list(key)];
        match *tail {
            NONE => *head = index,
            last => slab[last].next = index,
        }
        *tail = index;
    }

    /// Returns the last slot that waits for `key` now, or [`NONE`].
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

    /// Removes this slot from its list.
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
        slab[index].state = SlotState::Active;
    }

    /// Removes the first slot that waits for `key` from its list and returns it.
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
                slab[index].state = SlotState::Active;
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
