//! Parts of requests to volumes, and pools' own I/Os: slots on the members, which end where others' do, and are not told to frontends.

use super::super::Shard;
use super::super::scratch::Run;
use super::super::slots::{self, State};
use super::{Copying, OwnIo, Pools};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LEAF_BYTES_MAX, LeafIo, LeafSink, Op};
use crate::limits::PARTS_MAX;
use crate::planted::{Planted, planted};
use crate::volume::PoolKey;

/// Who waits for a part to be free.
pub(super) fn part_key() -> u64 {
    3 << 62 | 1 << 44
}

impl Shard {
    /// Begins a part of a request on a member. False: there is none free; the request is to wait for [`part_key`].
    pub(super) fn begin_part(
        &mut self,
        parent: u32,
        (device, offset): (DeviceId, u64),
        (op, flags): (Op, Flags),
        len: u64,
        buf: Buf,
        sink: &mut impl LeafSink,
    ) -> bool {
        let Some(number) = self.pools.parts_free.pop() else { return false };
        self.slots[parent].out += 1;
        let index = self.slots.take_part(number);
        self.begin_on_member(index, parent, device, (op, flags), (offset, len), buf, sink);
        true
    }

    /// Begins an I/O of a pool's own. The caller has seen that a place is free.
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

    /// Where an I/O of a pool's own that has memory has it.
    pub(super) fn own_memory(&self, run: Option<Run>) -> Buf {
        let run = run.expect("it has memory");
        self.pools.memory.as_ref().expect("it gave the run").page(run.first)
    }

    /// A copy has read what it is to write: it does so, in the same place. Where the pool has left meanwhile nobody knows whose the target is.
    pub(super) fn write_copy(&mut self, key: PoolKey, number: u32, sink: &mut impl LeafSink) {
        let own = &mut self.pools.ios[(number - PARTS_MAX) as usize];
        if self.pools.sides[key.index()].home.is_none() && !planted(Planted::CopyOutlivesPool) {
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

    /// A part or an I/O of a pool has ended.
    pub(in super::super) fn part_finished(&mut self, index: u32, number: u32) {
        let slot = &self.slots[index];
        let (parent, op, error, late) = (slot.parent, slot.op, slot.error, slot.late > 0);
        // What the kernel still has may yet be done where others would see it.
        let bars = late && self.devices.at(slot.device).layout(slot.version).mirror().is_none();
        if number >= PARTS_MAX {
            let own = self.pools.ios[(number - PARTS_MAX) as usize];
            if matches!(own.copy, Copying::Reads { .. }) && error.is_none() && !late {
                self.pools.copies.push_back((PoolKey(parent as u16), number));
                return self.let_go(index);
            }
            if let (true, Some(run), Some(memory)) = (late, own.memory, self.pools.memory.as_mut()) {
                memory.lend(run);
            }
            let io = &mut self.pools.ios[(number - PARTS_MAX) as usize];
            io.late = late;
            // A discard that is still to come would take what somebody else has there then, and a copy would lie over it.
            io.untold = bars && (op == Op::Discard || own.copy == Copying::Writes);
            io.copy = Copying::Nothing;
            // What was to be copied may have been read all the same, from others (rows with two parities): it is not written, as the
            // slot is not free, and so nothing has been copied.
            let unwritten = matches!(own.copy, Copying::Reads { .. }) && !planted(Planted::LateCopyCounts);
            let failed = error.map(|error| error.kind).or(unwritten.then_some(ErrorKind::TimedOut));
            if io.untold {
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
        if late { self.become_late(index) } else { self.let_go(index) }
    }

    /// Nobody has anything of a part any more.
    pub(in super::super) fn part_is_free(&mut self, number: u32) {
        if number >= PARTS_MAX {
            // It keeps its place until what it has read is written.
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
        self.pools.parts_free.push(number);
        if std::mem::take(&mut self.pools.parts_wanted) {
            self.woken.push_back((part_key(), None));
        }
    }

    /// The kernel has given back a part that was late: its request may have waited for that alone.
    pub(in super::super) fn part_returned(&mut self, index: u32, number: u32) {
        let parent = self.slots[index].parent;
        if number >= PARTS_MAX {
            let own = self.pools.ios[(number - PARTS_MAX) as usize];
            self.let_go(index);
            if own.untold {
                self.pool_is_late(PoolKey(parent as u16), false);
                self.own_io_ended(PoolKey(parent as u16), own.token, Err(ErrorKind::TimedOut));
            }
            return;
        }
        self.let_go(index);
        let slot = &mut self.slots[parent];
        slot.late -= 1;
        if slot.late == 0 && slot.state == State::Late {
            if slot.keeps_memory() {
                self.released.push_back(slot.tag);
            }
            self.let_go(parent);
        }
    }
}
