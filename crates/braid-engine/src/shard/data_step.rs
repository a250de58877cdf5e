//! One step of a request with a range: acquires the range, plans as much as one step allows, and submits it; or puts
//! the request into the list of what it must wait for.

use super::ranges::{hold, release};
use super::waiting::{range_key, region_key};
use super::{Shard, ShardMessage, slots};
use crate::MemberSet;
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LeafSink, Op};
use crate::layout::DeviceLayout;
use crate::limits::STEP_ORDERED_BYTES_MAX;
use crate::overlap::RangeTable;
use crate::plan::{PlanSpan, PlanStep, Precondition, carries_data};
use braid_format::bitmap::REGIONS_PER_BLOCK;

/// Returns the end of the part, from the cursor on, that a long request which zeroes a range of a redundant array may
/// skip, because it was never written. The part is skipped without acquiring it piece by piece in the range table. It
/// ends where another request holds a range. Holders are looked up first, and regions then: a write whose range is not
/// held yet comes after this request.
fn past_unwritten(ranges: &RangeTable, slot: &slots::Slot, layout: &DeviceLayout) -> Option<u64> {
    let mirror = layout.mirror().filter(|mirror| !mirror.failed)?;
    let is_long = slot.end.saturating_sub(slot.cursor) > STEP_ORDERED_BYTES_MAX;
    if !is_long || slot.cursor < slot.held.1 || slot.flags.has(Flags::FAST_ZERO) {
        return None;
    }
    let end = ranges.first_held(DeviceId(slot.device), slot.cursor, slot.end);
    let written = mirror.regions.written.next(mirror.regions.region_of(slot.cursor));
    let to = written.map_or(end, |region| end.min(mirror.regions.range(region).0));
    (to > slot.cursor).then_some(to)
}

impl Shard {
    /// Returns whether a step would be planned with a layout that is no longer current. A member that was dropped since
    /// then has missed later writes: its content must not serve to compute lost data.
    #[inline]
    fn is_behind(&self, index: u32) -> bool {
        let slot = &self.slots[index];
        let device = self.devices.at(slot.device);
        slot.version != device.version && device.current.as_ref().is_some_and(|current| current.ordered)
    }

    /// Plans and submits one step, or puts the slot into the list of what it must wait for.
    #[inline]
    pub(super) fn data_step(&mut self, index: u32, sink: &mut impl LeafSink) {
        loop {
            if self.is_behind(index) {
                self.move_to_current(index);
                self.clear_failures(index);
                return self.advance(index, sink);
            }
            let slot = &mut self.slots[index];
            let layout = self.devices.at(slot.device).layout(slot.version);
            if slot.op != Op::Read && layout.parity().is_some() {
                return self.parity_step(index, sink);
            }
            if matches!(slot.op, Op::Discard | Op::WriteZeroes)
                && let Some(to) = past_unwritten(&self.shared.ranges, slot, layout)
            {
                slot.cursor = to;
                if to >= slot.end {
                    return self.advance(index, sink);
                }
            }
            let mut end = slot.end;
            if layout.ordered && slot.op != Op::Read {
                if slot.cursor >= slot.held.1
                    && let Err(bucket) = hold(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot)
                {
                    return self.waiting.park(&mut self.slots, index, range_key(bucket));
                }
                end = slot.held.1;
            }
            let (mut op, mut flags) = (slot.op, slot.flags);
            if op != Op::Write {
                // FUA of an operation without data is a separate flush; a read has none.
                flags = Flags(flags.0 & !Flags::FUA.0);
            }
            if op == Op::Read {
                // Slow members count as readers: the member that is read now may be slower still, and then they are
                // read again.
                let has_failed = slot.avoid.without(slot.slow());
                let others = layout.lease.is_some()
                    && slot.tries < Flags::TRIES_MAX
                    && layout.mirror().is_some_and(|mirror| mirror.has_readers(has_failed));
                flags = if others { Flags::alternative_try(slot.tries) } else { Flags::NONE };
            }
            if layout.ordered {
                if flags.has(Flags::FAST_ZERO) {
                    // Members that support it and members that do not would differ.
                    slot.error = Some(IoError::of(ErrorKind::Unsupported));
                    return self.finish(index);
                }
                if op == Op::Discard {
                    // Each disk decides for itself what a discarded range reads as: the members would differ.
                    (op, flags) = (Op::WriteZeroes, Flags::NONE);
                }
            }
            let buf = if carries_data(op) { slot.buf.add(slot.cursor - slot.start) } else { Buf::NONE };
            let span = PlanSpan { op, flags, start: slot.cursor, end, buf, avoid: slot.avoid };
            match self.plan.step(layout, &span, &mut self.loads) {
                PlanStep::Planned(to) => {
                    if op != Op::Read && !layout.missed.is_empty() {
                        layout.missed.iter().for_each(|missed| missed.record(slot.cursor, to));
                    }
                    slot.step = slot.cursor;
                    slot.cursor = to;
                    slot.balanced = layout.ordered && op == Op::Read;
                    if slot.balanced {
                        slot.begun_ns = sink.now_ns();
                    }
                    let ios = self.plan.ios_mut();
                    slot.out = ios.len() as u32;
                    let generation = slot.generation;
                    for io in ios {
                        io.cookie = slots::cookie(index, generation, io.leaf);
                        if slot.balanced {
                            self.loads.begin(io.leaf, io.offset + io.len);
                        }
                        sink.submit(io);
                    }
                    return;
                }
                PlanStep::Zeros(to) => {
                    if op == Op::Read {
                        sink.zero(buf, to - slot.cursor);
                    }
                    slot.cursor = to;
                    if to >= slot.end {
                        // Nothing remains but, with FUA, a flush.
                        return self.advance(index, sink);
                    }
                }
                PlanStep::Lost if !slot.slow().is_empty() => {
                    // Only members that were slow remain: they are read again, with more time.
                    slot.avoid = slot.avoid.without(slot.slow());
                    slot.set_slow(MemberSet::NONE);
                }
                PlanStep::Lost => {
                    slot.error = Some(slot.cause.unwrap_or(IoError::of(ErrorKind::Failed)));
                    return self.finish(index);
                }
                PlanStep::Recover => return self.recover_step(index, sink),
                PlanStep::Unreadable => {
                    slot.error = Some(IoError { offset: slot.cursor, ..IoError::of(ErrorKind::Unreadable) });
                    return self.finish(index);
                }
                PlanStep::Needs(Precondition::Region(region)) => {
                    let device = DeviceId(slot.device);
                    let home = layout.mirror().expect("only a redundant array has regions").regions.home();
                    if slot.held.0 < slot.held.1 {
                        // The home shard needs the range to prepare the region.
                        release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
                    }
                    if self.devices.at(device.0).version != self.slots[index].version {
                        // The current layout may need nothing; and if it has failed, the home shard does not reply.
                        self.move_to_current(index);
                        self.clear_failures(index);
                        return self.advance(index, sink);
                    }
                    self.waiting.park(&mut self.slots, index, region_key(device, region / REGIONS_PER_BLOCK));
                    if home == self.id {
                        self.need(device, region, sink);
                    } else {
                        self.outbox.push_back((home, ShardMessage::NeedRegion { device, region }));
                    }
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_geometry::{Geometry, Level, Spec};

    use super::*;
    use crate::Uuid;
    use crate::io::{LeafId, ShardId};
    use crate::layout::Node;
    use crate::mirror::{MemberRole, MirrorMember, MirrorNode};
    use crate::regions::RegionMap;

    const SIZE: u64 = 16 << 40;
    const REGION: u32 = 16 << 20;

    /// Returns a mirror of 16 TiB of which these regions were written.
    fn mirror(written: &[u64]) -> DeviceLayout {
        let none: &[u64] = &[];
        let regions = RegionMap::new(ShardId(0), Uuid::from_u128(9), SIZE, REGION, (written, none), true);
        let member = |leaf: u32| MirrorMember {
            leaf: LeafId(leaf),
            start: 0,
            len: SIZE,
            bitmap_start: SIZE,
            role: MemberRole::InSync,
            write_mostly: false,
        };
        let node = MirrorNode {
            geometry: Geometry::plan(Spec::new(Level::Raid1), &[SIZE; 2]).expect("a plan"),
            members: vec![member(0), member(1)],
            successors: Vec::new(),
            regions: Arc::new(regions),
            parity: None,
            failed: false,
        };
        DeviceLayout::new(1, 512, &Node::Mirrored(Box::new(node)))
    }

    /// A single lookup skips 16 TiB that were never written. A written region ends it, and so does a request that holds
    /// part of the range.
    #[test]
    fn an_unwritten_range_is_skipped_at_once() {
        let table = RangeTable::new(12);
        let mut slab = slots::Slab::new(1, 0);
        let index = slab.take().expect("one is free");
        let mut asks = |start: u64, end: u64| {
            slab[index].prepare(Op::Discard, Flags::NONE, start, end - start, Buf::NONE, 1);
            slab[index]
        };
        let empty = mirror(&[]);
        let size = empty.mirror().expect("it is one").geometry.size_bytes();
        let all = asks(0, size);
        assert_eq!(past_unwritten(&table, &all, &empty), Some(size));
        // One region in the middle.
        let at = 64 * 4999 * u64::from(REGION);
        let mut bits = vec![0; 5000];
        bits[4999] = 1;
        let written = mirror(&bits);
        assert_eq!(past_unwritten(&table, &all, &written), Some(at));
        assert_eq!(past_unwritten(&table, &asks(at, size), &written), None);
        assert_eq!(past_unwritten(&table, &asks(at + u64::from(REGION), size), &written), Some(size));
        // A short range is held instead.
        assert_eq!(past_unwritten(&table, &asks(0, STEP_ORDERED_BYTES_MAX), &empty), None);
        table.acquire(DeviceId(0), 1 << 40, (1 << 40) + 4096, &mut |_| panic!("no request waits")).expect("it is free");
        assert_eq!(past_unwritten(&table, &all, &empty), Some(1 << 40));
    }
}
