//! Parts of requests to volumes, and pools' own I/Os: slots on the members, whose ends are not reported to frontends.
//!
//! A shard has a limited number of parts. A disk that hangs keeps the parts of its pool, and must not keep those of
//! other pools:
//!
//! - The first part that a pool holds is its own: there is one for each pool, besides those that all pools share.
//! - A pool takes a further part, a shared one, while it holds fewer than [`PARTS_PER_FREE`] times as many parts as
//!   shared ones are free. A single pool takes eight ninths of them; a second pool finds the rest.
//!
//! Invariants:
//!
//! - A pool that holds no part may take one, whatever other pools hold: at most all shared parts are in use, and one
//!   more for each pool that holds any.
//! - A request proceeds with one part at a time if its pool may take no more. It holds none while it waits for one.
//! - A part waits for what its member waits for (ranges, regions, a journal, a disk), never for another part to be
//!   released.
//! - Between two calls of the shard no request waits for a part while its pool may take one. Only a released part lets
//!   a pool take one that could take none before. In the same call, and before requests continue whose parts have
//!   ended, the shard wakes waiting requests of each pool, first come first, one after the other, as long as the pool
//!   may take a part. No wake-up is lost: a request that is woken and takes no part leaves it to the next request.
//!
//! So no request waits for ever for a part of a pool whose members complete their I/O. While a request waits, its pool
//! holds parts. These end, and the request that has waited longest continues as soon as the pool may take a part: at
//! the latest when the pool holds none. A new request to the pool finds no part while others wait, and waits behind
//! them.

use super::super::Shard;
use super::super::pool_state::{Copying, OwnIo, Pools};
use super::super::scratch::PageRun;
use super::super::slots::{self, SlotState};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LEAF_BYTES_MAX, LeafIo, LeafSink, Op};
use crate::limits::{PARTS_MAX, PARTS_PER_FREE};
use crate::volume::PoolKey;

/// Returns the wait key of requests that need a part of this pool.
fn part_key(key: PoolKey) -> u64 {
    3 << 62 | 1 << 44 | key.index() as u64
}

impl Pools {
    /// Returns whether this pool may take a part.
    #[inline]
    fn may_take_part(&self, key: PoolKey) -> bool {
        let held = self.sides[key.index()].parts;
        held == 0 || held < PARTS_PER_FREE * self.shared_parts_free
    }

    /// Takes a part for this pool, if it may.
    #[inline]
    fn take_part(&mut self, key: PoolKey) -> Option<u32> {
        if !self.may_take_part(key) {
            return None;
        }
        let side = &mut self.sides[key.index()];
        self.shared_parts_free -= u32::from(side.parts > 0);
        side.parts += 1;
        let number = self.parts_free.pop().expect("a part is free for each pool that may take one");
        self.part_pools[number as usize] = key;
        Some(number)
    }

    /// Releases a part. The caller processes the requests that wait for it.
    #[inline]
    fn give_part(&mut self, number: u32) {
        let side = &mut self.sides[self.part_pools[number as usize].index()];
        side.parts -= 1;
        self.shared_parts_free += u32::from(side.parts > 0);
        self.parts_free.push(number);
        self.has_returned_parts |= !self.wanting.is_empty();
    }
}

impl Shard {
    /// Lets a request wait for a part, behind the waiting requests of its pool. Its pool may take none, and it has no
    /// I/O in flight.
    #[cold]
    pub(super) fn wait_for_part(&mut self, index: u32) {
        let key = PoolKey(self.slots[index].pool);
        debug_assert!(!self.pools.may_take_part(key), "a request that could go on would wait");
        if !std::mem::replace(&mut self.pools.sides[key.index()].wants_parts, true) {
            self.pools.wanting.push_back(key);
        }
        self.waiting.park(&mut self.slots, index, part_key(key));
    }

    /// Wakes requests that wait for released parts, as many as their pools may take.
    #[inline]
    pub(in super::super) fn hand_out_parts(&mut self, sink: &mut impl LeafSink) {
        if self.pools.has_returned_parts {
            self.wake_for_parts(sink);
        }
    }

    #[cold]
    fn wake_for_parts(&mut self, sink: &mut impl LeafSink) {
        self.pools.has_returned_parts = false;
        for _ in 0..self.pools.wanting.len() {
            let Some(key) = self.pools.wanting.pop_front() else { return };
            // It stays in the list meanwhile: parts that end at once are considered again.
            self.pools.wanting.push_back(key);
            while self.pools.may_take_part(key) {
                let Some(index) = self.waiting.wake_one(&mut self.slots, part_key(key)) else {
                    self.pools.sides[key.index()].wants_parts = false;
                    self.pools.wanting.retain(|of| *of != key);
                    break;
                };
                self.move_to_current(index);
                self.advance(index, sink);
            }
        }
        // Another pool comes first the next time.
        if let Some(first) = self.pools.wanting.pop_front() {
            self.pools.wanting.push_back(first);
        }
    }

    /// Begins a part of a request on a member. Returns false if its pool may take none: the request continues when
    /// parts of it have ended, or waits ([`Shard::wait_for_part`]).
    pub(super) fn begin_part(
        &mut self,
        parent: u32,
        (device, offset): (DeviceId, u64),
        (op, flags): (Op, Flags),
        len: u64,
        buf: Buf,
        sink: &mut impl LeafSink,
    ) -> bool {
        let Some(number) = self.pools.take_part(PoolKey(self.slots[parent].pool)) else { return false };
        self.slots[parent].out += 1;
        let index = self.slots.take_part(number);
        self.begin_on_member(index, parent, device, (op, flags), (offset, len), buf, sink);
        true
    }

    /// Begins a pool's own I/O. The caller has checked that an entry is free.
    pub(super) fn begin_own_io(
        &mut self,
        key: PoolKey,
        device: DeviceId,
        place: (u64, u64),
        (op, buf): (Op, Buf),
        own: OwnIo,
        sink: &mut impl LeafSink,
    ) {
        let number = self.pools.ios_free.pop().expect("seen to be free");
        self.pools.ios[(number - PARTS_MAX) as usize] = OwnIo { key: key.0, ..own };
        self.pools.sides[key.index()].ios += 1;
        let index = self.slots.take_part(number);
        self.begin_on_member(index, u32::from(key.0), device, (op, Flags::NONE), place, buf, sink);
    }

    /// Returns the memory of a pool's own I/O that has memory.
    pub(super) fn own_memory(&self, run: Option<PageRun>) -> Buf {
        let run = run.expect("it has memory");
        self.pools.memory.as_ref().expect("it gave the run").page(run.first)
    }

    /// Writes what a copy has read, from the same memory. If the pool was withdrawn meanwhile, nothing is written: the
    /// target may have another owner.
    pub(super) fn write_copy(&mut self, key: PoolKey, number: u32, sink: &mut impl LeafSink) {
        let own = &mut self.pools.ios[(number - PARTS_MAX) as usize];
        if self.pools.sides[key.index()].home.is_none() {
            own.copy = Copying::Nothing;
            return self.part_is_free(number);
        }
        let Copying::Reads { to, offset, len } = std::mem::replace(&mut own.copy, Copying::Writes) else { return };
        let memory = own.memory;
        let buf = self.own_memory(memory);
        let index = self.slots.take_part(number);
        self.begin_on_member(index, u32::from(key.0), to, (Op::Write, Flags::NONE), (offset, len), buf, sink);
    }

    #[allow(clippy::too_many_arguments)]
    fn begin_on_member(
        &mut self,
        index: u32,
        parent: u32,
        id: DeviceId,
        (op, flags): (Op, Flags),
        (offset, len): (u64, u64),
        buf: Buf,
        sink: &mut impl LeafSink,
    ) {
        let device = self.devices.at_mut(id.0);
        device.users += 1;
        self.in_flight += 1;
        let slot = &mut self.slots[index];
        slot.prepare(op, flags, offset, len, buf, 0);
        (slot.device, slot.version, slot.parent) = (id.0, device.version, parent);
        let Some(layout) = device.current.as_deref() else {
            slot.error = Some(IoError::of(ErrorKind::NoDevice));
            return self.finish(index);
        };
        if offset + len > layout.size_bytes() {
            slot.error = Some(IoError::of(ErrorKind::Invalid));
            return self.finish(index);
        }
        if layout.mirror().is_some_and(|mirror| mirror.failed) {
            slot.error = Some(IoError::of(ErrorKind::Failed));
        } else if device.late_full
            || !matches!(op, Op::Read | Op::Flush) && self.shared.late.covers(id, offset, offset + len)
        {
            slot.error = Some(IoError::of(ErrorKind::TimedOut));
        } else if !layout.ordered
            && matches!(op, Op::Read | Op::Write)
            && len <= LEAF_BYTES_MAX
            && let Some((leaf, offset)) = layout.single_place(offset, len)
        {
            slot.cursor = slot.end;
            slot.out = 1;
            slot.single = true;
            let cookie = slots::cookie(index, slot.generation, leaf);
            return sink.submit(&LeafIo::simple(leaf, op, flags, offset, len, buf, cookie));
        }
        self.advance(index, sink);
    }

    /// Ends a part or a pool's own I/O.
    pub(in super::super) fn part_finished(&mut self, index: u32, number: u32) {
        let slot = &self.slots[index];
        let (parent, op, error, late) = (slot.parent, slot.op, slot.error, slot.late > 0);
        // I/O that the kernel still has may yet change blocks that others see.
        let bars = late && self.devices.at(slot.device).layout(slot.version).mirror().is_none();
        if number >= PARTS_MAX {
            let own = self.pools.ios[(number - PARTS_MAX) as usize];
            if matches!(own.copy, Copying::Reads { .. }) && error.is_none() && !late {
                self.pools.copies.push_back((PoolKey(parent as u16), number));
                return self.release_slot(index);
            }
            if let (true, Some(run), Some(memory)) = (late, own.memory, self.pools.memory.as_mut()) {
                memory.lend(run);
            }
            let io = &mut self.pools.ios[(number - PARTS_MAX) as usize];
            io.late = late;
            // A late discard could discard what another volume has written there by then, and a late copy could
            // overwrite it.
            io.unreported = bars && (op == Op::Discard || own.copy == Copying::Writes);
            io.copy = Copying::Nothing;
            // A late read of a copy may have succeeded nevertheless, from other members (stripes with two parities).
            // But its slot is not free, so the data is not written: the copy has failed.
            let unwritten = matches!(own.copy, Copying::Reads { .. });
            let failed = error.map(|error| error.kind).or(unwritten.then_some(ErrorKind::TimedOut));
            if io.unreported {
                self.pool_is_late(PoolKey(parent as u16), true);
            } else {
                self.own_io_ended(PoolKey(parent as u16), own.token, failed.map_or(Ok(()), Err));
            }
        } else {
            let parent_slot = &mut self.slots[parent];
            if let Some(error) = error {
                parent_slot.error.get_or_insert(IoError { offset: parent_slot.start, ..error });
            }
            parent_slot.late += u32::from(late);
            parent_slot.barred |= bars;
            parent_slot.out -= 1;
            if parent_slot.out == 0 {
                self.pools.resumed.push_back(parent);
            }
            if late {
                self.partial_step_is_late(parent);
            }
        }
        if late { self.become_late(index) } else { self.release_slot(index) }
    }

    /// Frees the entry of a part or I/O that has no I/O left in the kernel.
    pub(in super::super) fn part_is_free(&mut self, number: u32) {
        if number >= PARTS_MAX {
            // It keeps its entry until what it has read is written.
            if matches!(self.pools.ios[(number - PARTS_MAX) as usize].copy, Copying::Reads { .. }) {
                return;
            }
            let own = std::mem::take(&mut self.pools.ios[(number - PARTS_MAX) as usize]);
            if let (Some(run), Some(memory)) = (own.memory, self.pools.memory.as_mut()) {
                if own.late { memory.regain(run) } else { memory.give(run) }
            }
            self.pools.ios_free.push(number);
            let key = PoolKey(own.key);
            self.pools.sides[key.index()].ios -= 1;
            self.may_have_ended(key);
            let Pools { driven, short, .. } = &mut self.pools;
            driven.append(short);
            return;
        }
        self.pools.give_part(number);
    }

    /// Processes a late part that the kernel has returned: its request may have waited for it alone.
    pub(in super::super) fn part_returned(&mut self, index: u32, number: u32) {
        let parent = self.slots[index].parent;
        if number >= PARTS_MAX {
            let own = self.pools.ios[(number - PARTS_MAX) as usize];
            self.release_slot(index);
            if own.unreported {
                self.pool_is_late(PoolKey(parent as u16), false);
                self.own_io_ended(PoolKey(parent as u16), own.token, Err(ErrorKind::TimedOut));
            }
            return;
        }
        self.release_slot(index);
        let slot = &mut self.slots[parent];
        slot.late -= 1;
        if slot.late == 0 && slot.state == SlotState::Late {
            if slot.keeps_memory() {
                self.released.push_back(slot.tag);
            }
            self.release_slot(parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{POOLS_MAX, SHARED_PARTS_MAX};

    fn take_all(pools: &mut Pools, key: PoolKey) -> Vec<u32> {
        std::iter::from_fn(|| pools.take_part(key)).collect()
    }

    #[test]
    fn a_single_pool_takes_nearly_all_parts_and_each_other_one_finds_some() {
        let mut pools = Pools::new(1);
        let mut taken = take_all(&mut pools, PoolKey(0));
        assert_eq!(taken.len(), 257);
        let second = take_all(&mut pools, PoolKey(1));
        assert_eq!(second.len(), 30);
        taken.extend(second);
        for key in (2..POOLS_MAX as u16).map(PoolKey) {
            let some = take_all(&mut pools, key);
            assert!(!some.is_empty(), "pool {} finds none", key.0);
            taken.extend(some);
        }
        let count = taken.len();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), count, "a part was taken twice");
        assert!((0..POOLS_MAX as u16).all(|key| !pools.may_take_part(PoolKey(key))));
        // In another order than they were taken in.
        for k in 0..count {
            pools.give_part(taken[(k * 7) % count]);
        }
        assert_eq!((pools.parts_free.len(), pools.shared_parts_free), (PARTS_MAX as usize, SHARED_PARTS_MAX));
        assert!(pools.sides.iter().all(|side| side.parts == 0));
    }
}
