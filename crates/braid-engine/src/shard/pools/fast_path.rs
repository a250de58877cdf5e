//! The fast path of a small read or write of a volume that is at one location of a member without redundancy: it takes
//! one slot, or none.
//!
//! The pool only has to count it ([`Shard::enter_volume`]): a read finds its blocks, and a write whose blocks are
//! mapped to extents of the volume's current owner overwrites them. The request's own slot goes to the leaf; for the
//! member it counts like a part.

use super::super::slots::UNCOUNTED;
use super::super::{Shard, slots};
use crate::io::{
    Completion, DeviceId, ErrorKind, Flags, IoError, LEAF_BYTES_MAX, LeafId, LeafIo, LeafSink, Op, Request,
};
use crate::layout::DeviceLayout;
use crate::pool::{BLOCK_BYTES, BlockLocation, EXTENT_BLOCKS, ExtentId};
use crate::volume::PoolKey;

/// The single location of a small request to a volume.
struct SingleLocation {
    key: PoolKey,
    /// The pool's member, and the offset there, in bytes.
    member: (DeviceId, u64),
    /// The leaf, and the offset there, in bytes.
    leaf: (LeafId, u64),
    /// The request need not be durable.
    plain: bool,
}

impl Shard {
    /// Carries out a small read or write of a volume of which one leaf holds everything, and which can begin without
    /// further conditions: inline if the leaf completes it inline, else with one slot. `None`: the request is no such
    /// request.
    #[inline]
    pub(in super::super) fn volume_fast_path(
        &mut self,
        request: &Request,
        sink: &mut impl LeafSink,
    ) -> Option<Result<(), IoError>> {
        let Request { device, op, flags, offset, len, buf, tag } = *request;
        let one = self.single_location(device, (op, flags), offset, len)?;
        let (leaf, place) = one.leaf;
        // Another shard may claim the range after the check, and read it before this write is done. That harms a
        // partial request, which writes back what it has read.
        let is_ordered = || {
            let in_sectors = self.devices.at(device.0).current.as_deref().is_some_and(|layout| layout.takes_sectors());
            (!in_sectors || self.shared.shards == 1) && self.is_unclaimed(device, offset, offset + len)
        };
        if one.plain
            && (op == Op::Read || is_ordered())
            && self.done.len() < self.done_max
            && let Some(Ok(())) = sink.complete_inline(leaf, op, place, len, buf)
        {
            self.devices.at_mut(device.0).counters.count(op, len, false);
            self.done.push(Completion { tag, result: Ok(()), buffer_busy: false });
            return Some(Ok(()));
        }
        self.volume_slot(request, one.key, one.member, one.leaf, sink)
    }

    /// Returns the location of a small read or write of a volume, if one leaf holds all its blocks, and nothing has to
    /// be durable before. For a write this is called while the write is counted ([`Shard::enter_volume`]), or within
    /// the call that counts it: no barrier ends in between.
    #[inline(always)]
    fn single_location(
        &self,
        device: DeviceId,
        (op, flags): (Op, Flags),
        offset: u64,
        len: u64,
    ) -> Option<SingleLocation> {
        let volume = self.devices.at(device.0).current.as_deref()?.volume()?;
        let blocks = (len / BLOCK_BYTES) as u32;
        let records = &volume.pool.records;
        // Before the location is looked up: a write that begins now is made under this owner or a later one.
        let owner = if op == Op::Write { volume.volume.owner(&volume.pool) } else { 0 };
        let BlockLocation::At { extent, position, blocks: there } =
            volume.volume.map.find(records, offset / BLOCK_BYTES, blocks.min(EXTENT_BLOCKS))
        else {
            return None;
        };
        if there < blocks || extent == ExtentId::IN_DOUBT {
            return None;
        }
        if op == Op::Write && (volume.read_only || records.owner(extent) != owner) {
            return None;
        }
        // The mapping of a block may not be durable: then a single leaf I/O is not enough.
        let plain = op == Op::Read || flags == Flags::NONE;
        if !plain && flags.has(Flags::FUA) && volume.pool.is_hot() {
            return None;
        }
        let (member, at) = volume.place(extent, position);
        let layout = self.devices.at(member.0).current.as_deref()?;
        if layout.ordered {
            return None;
        }
        let leaf = layout.single_place(at, len)?;
        Some(SingleLocation { key: volume.key, member: (member, at), leaf, plain })
    }

    /// Begins a small write of a volume that has entered, has its claim and is counted, if its blocks are at one
    /// location: as [`Shard::volume_fast_path`] would have, with its own slot. Returns whether it did.
    pub(in super::super) fn begin_volume_fast_path(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let (device, len) = (DeviceId(slot.device), slot.end - slot.start);
        // A write that is not counted now has waited for its claim, and is carried out in parts.
        let is_small = len.wrapping_sub(1) < LEAF_BYTES_MAX;
        if !is_small || slot.period == UNCOUNTED || self.devices.at(slot.device).version != slot.version {
            return false;
        }
        let Some(one) = self.single_location(device, (slot.op, slot.flags), slot.start, len) else { return false };
        let (leaf, place) = one.leaf;
        if one.plain
            && let Some(Ok(())) = sink.complete_inline(leaf, slot.op, place, len, slot.buf)
        {
            self.slots[index].cursor = slot.end;
            self.finish(index);
            return true;
        }
        let (member, at) = one.member;
        let below = self.devices.at_mut(member.0);
        let size = below.current.as_deref().map_or(0, DeviceLayout::size_bytes);
        if below.late_full || at + len > size || self.shared.late.covers(member, at, at + len) {
            return false;
        }
        below.users += 1;
        let version_below = below.version;
        let slot = &mut self.slots[index];
        (slot.below, slot.step) = ((member.0, version_below), at);
        self.begin_single(index, one.leaf, sink);
        true
    }

    #[inline(never)]
    fn volume_slot(
        &mut self,
        request: &Request,
        key: PoolKey,
        (member, at): (DeviceId, u64),
        (leaf, place): (LeafId, u64),
        sink: &mut impl LeafSink,
    ) -> Option<Result<(), IoError>> {
        let Request { device, op, flags, offset, len, buf, tag } = *request;
        let below = self.devices.at_mut(member.0);
        let size = below.current.as_deref()?.size_bytes();
        if below.late_full || at + len > size {
            return None;
        }
        if !self.slots.has_free() {
            return Some(Err(IoError::of(ErrorKind::Busy)));
        }
        let claim = self.claim_single_location(device, op, offset, offset + len)?;
        if op == Op::Write && self.shared.late.covers(member, at, at + len) {
            self.give_back_claim(claim, device, offset, offset + len);
            return None;
        }
        let index = self.slots.take().expect("one is free");
        let below = self.devices.at_mut(member.0);
        below.users += 1;
        let version_below = below.version;
        let of = self.devices.at_mut(device.0);
        of.users += 1;
        self.in_flight += 1;
        let slot = &mut self.slots[index];
        slot.prepare(op, flags, offset, len, buf, tag);
        (slot.device, slot.version) = (device.0, of.version);
        (slot.below, slot.step) = ((member.0, version_below), at);
        (slot.cursor, slot.out, slot.single) = (slot.end, 1, true);
        slot.claim = claim;
        let cookie = slots::cookie(index, slot.generation, leaf);
        self.enter_volume(index, key);
        let flags = if op == Op::Read { Flags::NONE } else { flags };
        sink.submit(&LeafIo::simple(leaf, op, flags, place, len, buf, cookie));
        Some(Ok(()))
    }

    /// Stops using the member: the kernel has no I/O of the request there any more.
    #[inline]
    pub(in super::super) fn leave_below(&mut self, index: u32) {
        let (member, version) = self.slots[index].below;
        self.slots[index].below.0 = slots::NONE;
        self.devices.leave(member, version);
    }
}
