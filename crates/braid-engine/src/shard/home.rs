//! The home shard's part in the life of regions: it makes them readable and writable, and writes the bitmap for that.
//!
//! The first write to a region requires four steps, in this order, each durable on every member that serves: the bit
//! *preparing*; zeros all over the region; a flush; the bits *written* and *dirty*. A clean region requires its dirty
//! bit only. All requests for regions of one bitmap block that arrive meanwhile share the next round. At most one round
//! of a block is in progress. A round can be restarted at any point, and is restarted when a layout with other members
//! is published.

use std::collections::VecDeque;
use std::sync::Arc;

use super::slots::{self, SlotState};
use super::waiting::region_key;
use super::{Shard, ShardMessage};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, LeafError, LeafIo, LeafSink, META_BLOCKS, Op, ShardId};
use crate::layout::DeviceLayout;
use crate::limits::STEP_IOS_MAX;
use crate::mirror::{MemberRole, Mirrored};
use crate::regions::{Bits, RegionMap, place_in_block};
use braid_format::bitmap::{REGIONS_PER_BLOCK, WORDS_PER_BLOCK};

/// A call of the control plane to the home shard of an array's regions.
#[derive(Clone, Debug)]
pub enum RegionCall {
    /// These regions are equal on all members, durably: requests that wait for them continue.
    MarkEqual(Vec<u32>),
    /// From now on no request begins a write to these regions without asking the home shard. A request in flight may
    /// still write, until the current layout has been replaced and has drained.
    Close(Vec<u32>),
    /// Clears the dirty bits of these regions, except of those that a request has asked for since they were closed. The
    /// caller has made everything that was written there durable on all members. Nothing is cleared while a member is
    /// not in sync, vacant slots aside.
    Clear(Vec<u32>),
    /// Writes all bits to all members that serve, because a member was added.
    Rewrite,
    /// At levels with parity: writes everything that is in the journal now in place, makes it durable there, and
    /// retires it from the journal.
    Retire,
    /// At levels with parity, while the device is frozen on all shards because members are about to be dropped: retires
    /// marks of the journal, so that recovery ignores them. Without `wait`, these are the marks of stripes that are
    /// known to be in place. With `wait`, they are all marks, once no write to a marked stripe is in flight; then
    /// [`crate::Marks::failed`] names the disks that failed such a write.
    RetireMarks {
        /// Wait until no such write is in flight.
        wait: bool,
    },
    /// At levels with parity, while the ring is about to move ([`crate::RingState::Moving`]): writes everything in
    /// place that was logged and acknowledged, and makes it durable there. The rest is logged again at the ring's new
    /// location.
    PrepareRingMove,
}

/// The stage of a round: which I/O is in flight. The next stage begins when all of it has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No I/O is in flight.
    Begin,
    /// The block with the marks (the bits *preparing* and *dirty*).
    Mark,
    /// Zeros.
    Zero,
    /// A flush of all members.
    Flush,
    /// The block with the regions as written.
    Written,
    /// The round waits for a layout.
    Held,
}

/// The state of one bitmap block: what was requested of it, and the round in progress.
struct Round {
    device: DeviceId,
    /// `None` in a spare round.
    map: Option<Arc<RegionMap>>,
    block: u32,
    stage: Stage,
    /// Regions that the next round makes writable.
    requested: Box<Bits>,
    /// Regions that this round makes writable.
    in_progress: Box<Bits>,
    /// Those of `in_progress` that were never written.
    fresh: Box<Bits>,
    /// Regions that the next round, and this one, make clean.
    clear_requested: Box<Bits>,
    clear: Box<Bits>,
    /// The block is written even if nothing changes.
    rewrite: bool,
    /// Calls that wait for the next round, and for this one.
    calls_requested: Vec<u64>,
    calls: Vec<u64>,
    /// The next byte of the array to be zeroed.
    zero_at: u64,
    /// A layout has been published since the round began: the round is restarted.
    again: bool,
}

impl Round {
    fn new() -> Round {
        let empty = || Box::new([0; WORDS_PER_BLOCK]);
        Round {
            device: DeviceId(0),
            map: None,
            block: 0,
            stage: Stage::Begin,
            requested: empty(),
            in_progress: empty(),
            fresh: empty(),
            clear_requested: empty(),
            clear: empty(),
            rewrite: false,
            calls_requested: Vec::with_capacity(CALLS_MAX),
            calls: Vec::with_capacity(CALLS_MAX),
            zero_at: 0,
            again: false,
        }
    }

    fn map(&self) -> &Arc<RegionMap> {
        self.map.as_ref().expect("a round in progress has a map")
    }

    /// Returns whether something was requested that the round in progress does not do.
    fn has_more(&self) -> bool {
        self.rewrite || !self.calls_requested.is_empty() || !is_empty(&self.requested)
    }

    /// Returns the next bytes of the array, `[start, end)` within one region, that are to be zeroed.
    fn next_to_zero(&self) -> Option<(u64, u64)> {
        let map = self.map();
        let first = self.block * REGIONS_PER_BLOCK;
        let mut region = map.region_of(self.zero_at);
        while region < map.regions() && region - first < REGIONS_PER_BLOCK {
            let (word, bit) = place_in_block(region);
            if self.fresh[word] & bit != 0 {
                let (start, end) = map.range(region);
                if self.zero_at < end {
                    return Some((start.max(self.zero_at), end));
                }
                region += 1;
            } else if self.fresh[word] & (u64::MAX << (region % 64)) == 0 {
                region = (region / 64 + 1) * 64;
            } else {
                region += 1;
            }
        }
        None
    }
}

/// A call of the control plane whose blocks are being written.
struct Call {
    id: u64,
    device: DeviceId,
    /// Blocks that have not been written yet.
    left: u32,
}

/// A request for a block. It is queued until a round is available.
enum RoundRequest {
    /// Make this region writable, and so readable.
    Open(u32),
    /// Clear the dirty bit of this region, for this call.
    Clear(u32, u64),
    /// Write the block even if nothing changes, for this call.
    Rewrite(u64),
}

/// The device of a round that serves no device any more.
const NO_DEVICE: DeviceId = DeviceId(u32::MAX);

/// Calls of the control plane in progress at a time for which memory is reserved.
const CALLS_MAX: usize = 16;

/// All bitmap blocks in use of which this shard is the home.
pub(crate) struct RegionHome {
    rounds: Vec<Option<Round>>,
    spare: Vec<Round>,
    ios: Vec<LeafIo>,
    backlog: VecDeque<(DeviceId, u32, RoundRequest)>,
    calls: Vec<Call>,
    called: VecDeque<u64>,
}

impl RegionHome {
    pub fn new() -> RegionHome {
        RegionHome {
            rounds: (0..META_BLOCKS).map(|_| None).collect(),
            spare: std::iter::repeat_with(Round::new).take(META_BLOCKS as usize).collect(),
            ios: Vec::with_capacity(STEP_IOS_MAX),
            backlog: VecDeque::with_capacity(1024),
            calls: Vec::with_capacity(CALLS_MAX),
            called: VecDeque::with_capacity(64),
        }
    }

    fn of(&mut self, device: DeviceId, block: u32) -> Option<usize> {
        let same = |r: &Option<Round>| r.as_ref().is_some_and(|r| r.device == device && r.block == block);
        self.rounds.iter().position(same)
    }

    fn at(&mut self, at: u32) -> &mut Round {
        self.rounds[at as usize].as_mut().expect("a round in progress")
    }
}

fn is_empty(bits: &Bits) -> bool {
    bits.iter().all(|word| *word == 0)
}

/// Zeroes, on all their members, the adjacent stripes of the geometry that begin in `[start, end)` of the array.
/// Returns the array offset up to which that reaches.
fn zero_stripes(mirror: &Mirrored, start: u64, end: u64, index: u32, generation: u32, ios: &mut Vec<LeafIo>) -> u64 {
    let geometry = &mirror.geometry;
    let mut first = geometry.stripe_of(start).expect("inside the array");
    if first.array_start < start {
        // That stripe belongs to an earlier region.
        match geometry.stripe(first.number + 1).filter(|next| next.array_start < end) {
            Some(next) => first = next,
            None => return end,
        }
    }
    let data = first.data_chunks() as u64 * first.chunk_bytes;
    let zone_end = geometry.zones()[usize::from(first.zone)].array_end();
    let stripes = (end.min(zone_end) - first.array_start).div_ceil(data);
    let holders = first.members.iter().flat_map(|member| {
        let successors = mirror.successors.iter().filter(|s| s.role == *member);
        std::iter::once(*member).chain(successors.map(|s| s.member))
    });
    for member in holders.map(|member| &mirror.members[usize::from(member)]) {
        if member.role != MemberRole::Failed {
            let (at, len) = (member.start + first.member_offset, stripes * first.chunk_bytes);
            let cookie = slots::cookie(index, generation, member.leaf);
            ios.push(LeafIo::simple(member.leaf, Op::WriteZeroes, Flags::NONE, at, len, Buf::NONE, cookie));
        }
    }
    first.array_start + stripes * data
}

impl Shard {
    /// Starts a call to this shard as the home of an array's regions. [`Shard::pop_call_done`] returns `id` when it is
    /// done. Calls for a device that is stopped, or is no redundant array, are done at once.
    pub fn begin_call(&mut self, id: u64, device: DeviceId, call: RegionCall, sink: &mut impl LeafSink) {
        let Some(map) = self.map_of(device) else {
            self.home.called.push_back(id);
            return;
        };
        match call {
            RegionCall::MarkEqual(regions) => {
                let mut last = None;
                for region in regions {
                    map.mark_equal(region);
                    let block = region / REGIONS_PER_BLOCK;
                    if last.replace(block) != Some(block) {
                        self.notify_changed(device, block, None);
                    }
                }
                self.home.called.push_back(id);
            }
            RegionCall::Close(regions) => {
                regions.into_iter().for_each(|region| map.close(region));
                self.home.called.push_back(id);
            }
            RegionCall::Clear(regions) => {
                let mut blocks: Vec<u32> = regions.iter().map(|region| region / REGIONS_PER_BLOCK).collect();
                blocks.dedup();
                self.add_call(id, device, blocks.len() as u32);
                for region in regions {
                    self.request_round(device, region / REGIONS_PER_BLOCK, RoundRequest::Clear(region, id), true, sink);
                }
                for at in 0..META_BLOCKS {
                    let waits = |r: &Round| r.device == device && r.stage == Stage::Begin;
                    if self.home.rounds[at as usize].as_ref().is_some_and(waits) && !self.is_lent(at) {
                        self.begin_round(at, sink);
                    }
                }
            }
            RegionCall::Retire => self.journal_retire(id, device, sink),
            RegionCall::RetireMarks { wait } => self.journal_retire_marks(id, device, wait),
            RegionCall::PrepareRingMove => self.journal_quiesce(id, device, sink),
            RegionCall::Rewrite => {
                self.add_call(id, device, map.blocks());
                for block in 0..map.blocks() {
                    self.request_round(device, block, RoundRequest::Rewrite(id), false, sink);
                }
            }
        }
        self.process_woken(sink);
    }

    /// Reports that a call is done.
    pub(super) fn report_called(&mut self, id: u64) {
        self.home.called.push_back(id);
    }

    /// Returns the next call that is done.
    pub fn pop_call_done(&mut self) -> Option<u64> {
        self.home.called.pop_front()
    }

    fn add_call(&mut self, id: u64, device: DeviceId, blocks: u32) {
        if blocks == 0 {
            self.home.called.push_back(id);
        } else {
            self.home.calls.push(Call { id, device, left: blocks });
        }
    }

    fn map_of(&self, device: DeviceId) -> Option<Arc<RegionMap>> {
        let layout = self.devices.get(device)?.current.as_ref()?;
        layout.mirror().map(|mirror| Arc::clone(&mirror.regions))
    }

    /// Processes a request for a region that a slot waits for.
    pub(super) fn need(&mut self, device: DeviceId, region: u32, sink: &mut impl LeafSink) {
        let block = region / REGIONS_PER_BLOCK;
        let Some(map) = self.map_of(device) else {
            return self.notify_changed(device, block, Some(LeafError::of(ErrorKind::NoDevice)));
        };
        if region >= map.regions() {
            // The requesting shard has the layout of a larger array already. This shard is frozen until it receives
            // that layout, too.
            return self.request_round(device, block, RoundRequest::Open(region), false, sink);
        }
        if map.unequal.has(region) {
            // The control plane resyncs it, before other regions, and reports that.
            return map.want(region);
        }
        if map.writable.has(region) {
            return self.notify_changed(device, block, None);
        }
        self.request_round(device, block, RoundRequest::Open(region), false, sink);
    }

    /// Records what is requested of a block, and begins a round of it, unless one is in progress or `wait` says that
    /// more requests follow.
    fn request_round(
        &mut self,
        device: DeviceId,
        block: u32,
        request: RoundRequest,
        wait: bool,
        sink: &mut impl LeafSink,
    ) {
        let at = match self.home.of(device, block) {
            Some(at) => at,
            None => {
                let Some(free) = self.home.rounds.iter().position(Option::is_none) else {
                    self.home.backlog.push_back((device, block, request));
                    return;
                };
                let Some(map) = self.map_of(device) else { return };
                let mut round = self.home.spare.pop().expect("one spare for each free place");
                (round.device, round.block, round.map) = (device, block, Some(map));
                (round.stage, round.again) = (Stage::Begin, false);
                self.home.rounds[free] = Some(round);
                let index = self.slots.take_reserved(free as u32);
                self.slots[index].prepare(Op::Write, Flags::NONE, 0, 0, Buf::NONE, 0);
                free
            }
        };
        let round = self.home.at(at as u32);
        match request {
            RoundRequest::Open(region) => {
                let (word, bit) = place_in_block(region);
                // What the round in progress does already is reported at its end.
                round.requested[word] |= bit & !round.in_progress[word];
            }
            RoundRequest::Clear(region, call) => {
                let (word, bit) = place_in_block(region);
                round.clear_requested[word] |= bit;
                if !round.calls_requested.contains(&call) {
                    round.calls_requested.push(call);
                }
            }
            RoundRequest::Rewrite(call) => {
                round.rewrite = true;
                round.calls_requested.push(call);
            }
        }
        if !wait && round.stage == Stage::Begin && !self.is_lent(at as u32) {
            self.begin_round(at as u32, sink);
        }
    }

    /// Returns whether the kernel still has the memory of the round's block, for a write that exceeded its time limit.
    fn is_lent(&self, at: u32) -> bool {
        self.slots[self.slots.reserved(at)].state == SlotState::Late
    }

    /// Returns the layout of a round's device; `None` if the device is gone or has failed.
    fn use_current(&mut self, device: DeviceId) -> Option<Arc<DeviceLayout>> {
        let of = self.devices.get_mut(device)?;
        let layout = of.current.as_ref().filter(|layout| layout.mirror().is_some_and(|m| !m.failed))?;
        Some(Arc::clone(layout))
    }

    /// Begins a round, or ends it if there is nothing to do.
    fn begin_round(&mut self, at: u32, sink: &mut impl LeafSink) {
        let device = self.home.at(at).device;
        let Some(layout) = self.use_current(device) else { return self.give_up(at, sink) };
        if self.devices.at(device.0).frozen {
            self.home.at(at).stage = Stage::Held;
            return;
        }
        let whole = layout.is_in_sync();
        let round = self.home.at(at);
        round.again = false;
        round.calls.append(&mut round.calls_requested);
        let map = Arc::clone(round.map());
        let base = map.bits(round.block);
        let first = round.block as usize * WORDS_PER_BLOCK;
        let mut image = base.clone();
        let mut changes = std::mem::take(&mut round.rewrite);
        for word in 0..WORDS_PER_BLOCK {
            round.in_progress[word] |= std::mem::take(&mut round.requested[word]);
            round.fresh[word] = round.in_progress[word] & !base.written[word];
            // A region stays dirty if it was requested again, is writable, unsettled, or not known to be durable on all
            // members.
            let kept = round.in_progress[word] | map.writable.word(first + word) | map.unequal.word(first + word);
            round.clear[word] |= std::mem::take(&mut round.clear_requested[word]);
            round.clear[word] &= if whole { !kept } else { 0 };
            image.dirty[word] = (base.dirty[word] | round.in_progress[word]) & !round.clear[word];
            changes |= image.dirty[word] != base.dirty[word];
        }
        if !changes && is_empty(&round.in_progress) {
            return self.end_round(at, sink);
        }
        round.stage = Stage::Mark;
        if !changes {
            return self.marked(at, sink);
        }
        self.write_block(at, &layout, &image, sink);
    }

    fn write_block(
        &mut self,
        at: u32,
        layout: &DeviceLayout,
        image: &braid_format::bitmap::BitmapBlock,
        sink: &mut impl LeafSink,
    ) {
        let round = self.home.at(at);
        let (map, block, device) = (Arc::clone(round.map()), round.block, round.device);
        let (buf, bytes) = sink.meta_block(at);
        map.encode(block, image, bytes);
        let offset = u64::from(block) * 4096;
        let mirror = layout.mirror().expect("a round is of a redundant array");
        let index = self.slots.reserved(at);
        self.claim(index, device, layout.version(), mirror.bitmaps.len() as u32);
        let generation = self.slots[index].generation;
        for (leaf, start) in &mirror.bitmaps {
            let cookie = slots::cookie(index, generation, *leaf);
            sink.submit(&LeafIo::simple(*leaf, Op::Write, Flags::FUA, start + offset, 4096, buf, cookie));
        }
    }

    /// Makes the reserved slot a user of the layout, with `out` I/Os about to be submitted.
    fn claim(&mut self, index: u32, device: DeviceId, version: u32, out: u32) {
        self.devices.at_mut(device.0).users += 1;
        let slot = &mut self.slots[index];
        (slot.device, slot.version, slot.out) = (device.0, version, out);
        slot.op = Op::Write;
        slot.error = None;
    }

    /// Continues a round when all of its I/O has completed.
    pub(super) fn home_answered(&mut self, at: u32, index: u32, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        let failed = !std::mem::take(&mut slot.failed).is_empty();
        let error = slot.error.take();
        let (device, version) = (slot.device, slot.version);
        self.devices.leave(device, version);
        let frozen = self.devices.at(device).frozen;
        let round = self.home.at(at);
        if let Some(error) = error {
            // A member does not support this operation: no member is dropped for that.
            let (device, block) = (round.device, round.block);
            round.in_progress.fill(0);
            self.notify_changed(device, block, Some(LeafError { kind: error.kind, errno: error.errno }));
            return self.end_round(at, sink);
        }
        if failed || frozen || round.again {
            round.stage = Stage::Held;
            // The block may be written on some members and not on others: it is written again in any case.
            round.rewrite = true;
            if !frozen {
                self.begin_round(at, sink);
            }
            return;
        }
        match round.stage {
            Stage::Mark => self.marked(at, sink),
            Stage::Zero => self.zero_more(at, sink),
            Stage::Flush => self.flushed(at, sink),
            Stage::Written => self.written(at, sink),
            Stage::Begin | Stage::Held => unreachable!("no I/O is in flight"),
        }
    }

    /// Continues a round whose marks are durable on every member.
    fn marked(&mut self, at: u32, sink: &mut impl LeafSink) {
        let round = self.home.at(at);
        let none = [0; WORDS_PER_BLOCK];
        let map = Arc::clone(round.map());
        map.cleared(round.block, &round.clear);
        round.clear.fill(0);
        map.marked(round.block, &round.in_progress, &none);
        let first = u64::from(round.block) * u64::from(REGIONS_PER_BLOCK);
        let (device, block, fresh) = (round.device, round.block, !is_empty(&round.fresh));
        if !fresh {
            round.in_progress.fill(0);
            self.notify_changed(device, block, None);
            return self.end_round(at, sink);
        }
        round.zero_at = map.range(first as u32).0;
        self.zero_more(at, sink);
    }

    /// Zeroes the next of the regions that were never written, as much as one step allows.
    fn zero_more(&mut self, at: u32, sink: &mut impl LeafSink) {
        let device = self.home.at(at).device;
        let Some(layout) = self.use_current(device) else { return self.give_up(at, sink) };
        let mirror = layout.mirror().expect("a round is of a redundant array");
        let index = self.slots.reserved(at);
        let generation = self.slots[index].generation;
        let mut ios = std::mem::take(&mut self.home.ios);
        ios.clear();
        let round = self.home.at(at);
        while ios.len() + mirror.members.len() <= STEP_IOS_MAX {
            let Some((start, end)) = round.next_to_zero() else { break };
            if mirror.parity.is_some() {
                round.zero_at = zero_stripes(mirror, start, end, index, generation, &mut ios);
                continue;
            }
            let mut len = end - start;
            mirror.copies(start, &mut |piece| len = len.min(piece.len));
            mirror.copies(start, &mut |piece| {
                let member = &mirror.members[usize::from(piece.member)];
                if member.role == MemberRole::Failed {
                    return;
                }
                let offset = member.start + piece.member_offset;
                // Neighbours in the array are often neighbours on the member as well.
                if let Some(io) = ios.iter_mut().rev().find(|io| io.leaf == member.leaf)
                    && io.offset + io.len == offset
                {
                    io.len += len;
                    return;
                }
                let cookie = slots::cookie(index, generation, member.leaf);
                ios.push(LeafIo::simple(member.leaf, Op::WriteZeroes, Flags::NONE, offset, len, Buf::NONE, cookie));
            });
            round.zero_at = start + len;
        }
        if ios.is_empty() {
            round.stage = Stage::Flush;
            let leaves = layout.leaves();
            self.claim(index, device, layout.version(), leaves.len() as u32);
            for leaf in leaves {
                let cookie = slots::cookie(index, generation, *leaf);
                sink.submit(&LeafIo::simple(*leaf, Op::Flush, Flags::NONE, 0, 0, Buf::NONE, cookie));
            }
        } else {
            round.stage = Stage::Zero;
            self.claim(index, device, layout.version(), ios.len() as u32);
            ios.iter().for_each(|io| sink.submit(io));
        }
        self.home.ios = ios;
    }

    /// Continues a round whose zeros are durable: the regions become written when the bitmap block says so.
    fn flushed(&mut self, at: u32, sink: &mut impl LeafSink) {
        let device = self.home.at(at).device;
        let Some(layout) = self.use_current(device) else { return self.give_up(at, sink) };
        let round = self.home.at(at);
        round.stage = Stage::Written;
        let mut image = round.map().bits(round.block);
        for word in 0..WORDS_PER_BLOCK {
            image.dirty[word] |= round.in_progress[word];
            image.written[word] |= round.fresh[word];
        }
        self.write_block(at, &layout, &image, sink);
    }

    fn written(&mut self, at: u32, sink: &mut impl LeafSink) {
        let round = self.home.at(at);
        round.map().marked(round.block, &round.in_progress, &round.fresh);
        round.in_progress.fill(0);
        round.fresh.fill(0);
        let (device, block) = (round.device, round.block);
        self.notify_changed(device, block, None);
        self.end_round(at, sink);
    }

    /// Ends a round. Another one begins if more was requested.
    fn end_round(&mut self, at: u32, sink: &mut impl LeafSink) {
        let round = self.home.at(at);
        round.stage = Stage::Begin;
        round.fresh.fill(0);
        round.clear.fill(0);
        let mut ended = std::mem::take(&mut round.calls);
        ended.drain(..).for_each(|call| self.count_call(call));
        let round = self.home.at(at);
        round.calls = ended;
        if round.has_more() {
            return self.begin_round(at, sink);
        }
        let index = self.slots.reserved(at);
        if self.slots[index].late > 0 {
            // The kernel still has the memory of the block, for a member that was dropped. Further requests for the
            // block get another round, so that they need not wait for a disk that hangs.
            self.slots[index].state = SlotState::Late;
            self.home.at(at).device = NO_DEVICE;
            return;
        }
        self.home_free(at, index, sink);
    }

    /// Ends a round that cannot be carried out any more.
    fn give_up(&mut self, at: u32, sink: &mut impl LeafSink) {
        let round = self.home.at(at);
        round.in_progress.fill(0);
        round.requested.fill(0);
        round.clear_requested.fill(0);
        round.rewrite = false;
        round.calls.append(&mut round.calls_requested);
        let (device, block) = (round.device, round.block);
        // The device's number may soon be reused by another array, while the kernel still has the memory of this round.
        round.device = NO_DEVICE;
        self.notify_changed(device, block, Some(LeafError::of(ErrorKind::NoDevice)));
        self.end_round(at, sink);
    }

    /// Frees a round for another block.
    pub(super) fn home_free(&mut self, at: u32, index: u32, sink: &mut impl LeafSink) {
        self.slots[index].state = SlotState::Active;
        if self.home.at(at).has_more() {
            return self.begin_round(at, sink);
        }
        let mut round = self.home.rounds[at as usize].take().expect("a round in progress");
        round.map = None;
        self.home.spare.push(round);
        self.slots.give(index);
        while self.home.rounds.iter().any(Option::is_none) {
            let Some((device, block, request)) = self.home.backlog.pop_front() else { return };
            self.request_round(device, block, request, false, sink);
        }
    }

    /// Restarts the rounds of a device whose layout was published.
    pub(super) fn home_published(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        let map = self.map_of(device);
        for at in 0..META_BLOCKS {
            let Some(round) = self.home.rounds[at as usize].as_mut().filter(|r| r.device == device) else { continue };
            round.again = true;
            if let Some(map) = &map {
                // The new map may be longer.
                round.map = Some(Arc::clone(map));
            }
            if round.stage == Stage::Held {
                self.begin_round(at, sink);
            }
        }
        if map.is_none() {
            let (gone, kept): (Vec<Call>, Vec<Call>) =
                std::mem::take(&mut self.home.calls).into_iter().partition(|call| call.device == device);
            self.home.calls = kept;
            self.home.called.extend(gone.into_iter().map(|call| call.id));
            self.home.backlog.retain(|(of, ..)| *of != device);
        }
    }

    /// Notes that a block of a call has been written.
    fn count_call(&mut self, id: u64) {
        let home = &mut self.home;
        let Some(at) = home.calls.iter().position(|call| call.id == id) else { return };
        home.calls[at].left -= 1;
        if home.calls[at].left == 0 {
            home.called.push_back(home.calls.remove(at).id);
        }
    }

    pub(super) fn notify_changed(&mut self, device: DeviceId, block: u32, error: Option<LeafError>) {
        self.woken.push_back((region_key(device, block), error));
        for shard in (0..self.shared.shards).map(ShardId).filter(|s| *s != self.id) {
            self.outbox.push_back((shard, ShardMessage::RegionsChanged { device, block, error }));
        }
    }
}
