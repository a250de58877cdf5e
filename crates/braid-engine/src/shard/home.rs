//! The home shard's side of regions: which of them become readable and writable, and the writes of bits for that.
//!
//! A region's first write needs four things, in this order, each durable on every member that serves: the bit *preparing*;
//! zeros all over the region; a flush; the bits *written* and *dirty*. A clean region needs its dirty bit only. All regions of
//! a block that are asked for meanwhile go together with the next round. At most one round of a block is under way; each
//! can be begun anew at any point, and is, when a layout with other members is published.

use std::collections::VecDeque;
use std::sync::Arc;

use super::slots::{self, State};
use super::waiting::region_key;
use super::{Shard, ShardMessage};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, LeafError, LeafIo, LeafSink, META_BLOCKS, Op, ShardId};
use crate::layout::DeviceLayout;
use crate::limits::STEP_IOS_MAX;
use crate::mirror::{Mirrored, Role};
use crate::planted::{Planted, planted};
use crate::regions::{Bits, RegionMap, place_in_block};
use braid_format::bitmap::{REGIONS_PER_BLOCK, WORDS_PER_BLOCK};

/// What the control plane asks of the home of an array's regions.
#[derive(Clone, Debug)]
pub enum RegionCall {
    /// These regions are equal on all members, durably: whoever waits for them goes on.
    Settle(Vec<u32>),
    /// From now on nobody begins a write to these without asking. A request under way may still write: until the
    /// layout of now has been replaced and has drained.
    Close(Vec<u32>),
    /// Of these, those that nobody has asked for since they were closed become clean: everything written there is durable
    /// on all members. Passed over where a member is not in sync.
    Clear(Vec<u32>),
    /// Writes all bits to all members that serve: a member has come.
    Rewrite,
    /// At levels with parity: everything that is in the journal now is put in place, made durable there, and is needed in the
    /// journal no more.
    Retire,
    /// At levels with parity, while the device is frozen on all shards as members are about to be left out: marks of rows that are in
    /// place are retired. `wait`: all marks, once nothing of a marked row is under way; [`crate::Marks::failed`] names the disks that failed
    /// such a row.
    RetireMarks {
        /// Wait for that.
        wait: bool,
    },
    /// At levels with parity, while the ring is about to move ([`crate::RingPlace::Moving`]): everything that was logged and told so is
    /// put in place and made durable there. What was not is logged anew where the ring is then.
    Quiesce,
}

/// Where a round stands: what is out, and what comes when it is back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nothing is out.
    Begin,
    /// The block with the marks.
    Mark,
    /// Zeros.
    Zero,
    /// A flush of all members.
    Flush,
    /// The block with the regions as written.
    Written,
    /// A layout is awaited.
    Held,
}

/// One block of bits that somebody wants something of.
struct Round {
    device: DeviceId,
    /// `None` in a round that nobody uses.
    map: Option<Arc<RegionMap>>,
    block: u32,
    stage: Stage,
    /// Regions that are to become writable, by the next round.
    asked: Box<Bits>,
    /// By this one.
    doing: Box<Bits>,
    /// Of these, the ones never written before.
    fresh: Box<Bits>,
    /// Regions that are to become clean, by the next round and by this one.
    clear_asked: Box<Bits>,
    clear: Box<Bits>,
    /// The block is to be written even if nothing changes.
    rewrite: bool,
    /// Calls that wait for the next round, and for this one.
    calls_asked: Vec<u64>,
    calls: Vec<u64>,
    /// Next byte of the array to be zeroed, and the word and bit that it belongs to.
    zero_at: u64,
    /// A layout with other members has been published since the round began.
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
            asked: empty(),
            doing: empty(),
            fresh: empty(),
            clear_asked: empty(),
            clear: empty(),
            rewrite: false,
            calls_asked: Vec::with_capacity(CALLS_MAX),
            calls: Vec::with_capacity(CALLS_MAX),
            zero_at: 0,
            again: false,
        }
    }

    fn map(&self) -> &Arc<RegionMap> {
        self.map.as_ref().expect("a round that is under way has a map")
    }

    /// Whether something was asked for that the round under way does not do.
    fn has_more(&self) -> bool {
        self.rewrite || !self.calls_asked.is_empty() || !is_empty(&self.asked)
    }

    /// The next bytes of the array, `[start, end)` within one region, that are to be zeroed.
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

/// Something to do for a block, when there is room for another round.
enum Wish {
    Open(u32),
    Clear(u32, u64),
    Rewrite(u64),
}

/// The device of a round that serves nobody any more.
const NOBODY: DeviceId = DeviceId(u32::MAX);

/// Calls of the control plane under way at a time, as far as memory is kept for them.
const CALLS_MAX: usize = 16;

/// All blocks of bits that this shard is home to and has to do with right now.
pub(crate) struct Home {
    rounds: Vec<Option<Round>>,
    spare: Vec<Round>,
    ios: Vec<LeafIo>,
    backlog: VecDeque<(DeviceId, u32, Wish)>,
    calls: Vec<Call>,
    called: VecDeque<u64>,
}

impl Home {
    pub fn new() -> Home {
        Home {
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
        self.rounds[at as usize].as_mut().expect("a round that is under way")
    }
}

fn is_empty(bits: &Bits) -> bool {
    bits.iter().all(|word| *word == 0)
}

/// Zeroes, on all their members, stripes that begin in `[start, end)` of the array, neighbours at a time. Up to which byte of the
/// array that reaches.
fn zero_stripes(mirror: &Mirrored, start: u64, end: u64, index: u32, generation: u32, ios: &mut Vec<LeafIo>) -> u64 {
    let geometry = &mirror.geometry;
    let mut first = geometry.stripe_of(start).expect("inside the array");
    if first.array_start < start {
        // That one belongs to a region before.
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
        if member.role != Role::Out && !planted(Planted::NotZeroed) {
            let (at, len) = (member.start + first.member_offset, stripes * first.chunk_bytes);
            let cookie = slots::cookie(index, generation, member.leaf);
            ios.push(LeafIo::simple(member.leaf, Op::WriteZeroes, Flags::NONE, at, len, Buf::NONE, cookie));
        }
    }
    first.array_start + stripes * data
}

impl Shard {
    /// Asks something of this shard as the home of an array's regions. [`Shard::pop_called`] gives `id` when it is done.
    /// Calls of a device that is stopped, or no redundant array, are done at once.
    pub fn call(&mut self, id: u64, device: DeviceId, call: RegionCall, sink: &mut impl LeafSink) {
        let Some(map) = self.map_of(device) else {
            self.home.called.push_back(id);
            return;
        };
        match call {
            RegionCall::Settle(regions) => {
                let mut last = None;
                for region in regions {
                    map.settle(region);
                    let block = region / REGIONS_PER_BLOCK;
                    if last.replace(block) != Some(block) {
                        self.tell_changed(device, block, None);
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
                self.begin_call(id, device, blocks.len() as u32);
                for region in regions {
                    self.wish(device, region / REGIONS_PER_BLOCK, Wish::Clear(region, id), true, sink);
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
            RegionCall::Quiesce => self.journal_quiesce(id, device, sink),
            RegionCall::Rewrite => {
                self.begin_call(id, device, map.blocks());
                for block in 0..map.blocks() {
                    self.wish(device, block, Wish::Rewrite(id), false, sink);
                }
            }
        }
        self.work_off(sink);
    }

    /// A call is done.
    pub(super) fn tell_called(&mut self, id: u64) {
        self.home.called.push_back(id);
    }

    /// The next call that is done.
    pub fn pop_called(&mut self) -> Option<u64> {
        self.home.called.pop_front()
    }

    fn begin_call(&mut self, id: u64, device: DeviceId, blocks: u32) {
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

    /// Somebody waits for a region.
    pub(super) fn need(&mut self, device: DeviceId, region: u32, sink: &mut impl LeafSink) {
        let block = region / REGIONS_PER_BLOCK;
        let Some(map) = self.map_of(device) else {
            return self.tell_changed(device, block, Some(LeafError::of(ErrorKind::NoDevice)));
        };
        if region >= map.regions() {
            // The asker has the layout of a larger array already. This shard is frozen until it has that, too.
            return self.wish(device, block, Wish::Open(region), false, sink);
        }
        if map.unsettled.has(region) {
            // The control plane makes it equal, this one first, and says so.
            return map.want(region);
        }
        if map.writable.has(region) {
            return self.tell_changed(device, block, None);
        }
        self.wish(device, block, Wish::Open(region), false, sink);
    }

    /// The planted bug "bit after data": asks for the bit of every region of a request, and goes on at once.
    #[cfg(feature = "planted")]
    pub(super) fn need_without_waiting(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        if !planted(Planted::BitAfterData) || !super::mutates(slot.op) {
            return;
        }
        let device = DeviceId(slot.device);
        let Some(map) = self.map_of(device) else { return };
        for region in map.region_of(slot.start)..=map.region_of(slot.end - 1) {
            if !map.readable.has(region) || map.writable.has(region) {
            } else if map.home() == self.id {
                self.need(device, region, sink);
            } else {
                self.outbox.push_back((map.home(), ShardMessage::Need { device, region }));
            }
        }
    }

    /// Notes what is wanted of a block, and begins a round of it unless one is under way, or `wait` says that more is to come.
    fn wish(&mut self, device: DeviceId, block: u32, wish: Wish, wait: bool, sink: &mut impl LeafSink) {
        let at = match self.home.of(device, block) {
            Some(at) => at,
            None => {
                let Some(free) = self.home.rounds.iter().position(Option::is_none) else {
                    self.home.backlog.push_back((device, block, wish));
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
        match wish {
            Wish::Open(region) => {
                let (word, bit) = place_in_block(region);
                // What a round does already it tells at its end.
                round.asked[word] |= bit & !round.doing[word];
            }
            Wish::Clear(region, call) => {
                let (word, bit) = place_in_block(region);
                round.clear_asked[word] |= bit;
                if !round.calls_asked.contains(&call) {
                    round.calls_asked.push(call);
                }
            }
            Wish::Rewrite(call) => {
                round.rewrite = true;
                round.calls_asked.push(call);
            }
        }
        if !wait && round.stage == Stage::Begin && !self.is_lent(at as u32) {
            self.begin_round(at as u32, sink);
        }
    }

    /// Whether the kernel has the memory of the round's block, for a write that was answered by its time limit.
    fn is_lent(&self, at: u32) -> bool {
        self.slots[self.slots.reserved(at)].state == State::Late
    }

    /// The layout of a round's device; none where the device is gone or has failed.
    fn use_current(&mut self, device: DeviceId) -> Option<Arc<DeviceLayout>> {
        let of = self.devices.get_mut(device)?;
        let layout = of.current.as_ref().filter(|layout| layout.mirror().is_some_and(|m| !m.failed))?;
        Some(Arc::clone(layout))
    }

    /// Begins a round, or ends it where there is nothing to do.
    fn begin_round(&mut self, at: u32, sink: &mut impl LeafSink) {
        let device = self.home.at(at).device;
        let Some(layout) = self.use_current(device) else { return self.give_up(at, sink) };
        if self.devices.at(device.0).frozen {
            self.home.at(at).stage = Stage::Held;
            return;
        }
        let whole = layout.lacks_nobody();
        let round = self.home.at(at);
        round.again = false;
        round.calls.append(&mut round.calls_asked);
        let map = Arc::clone(round.map());
        let base = map.bits(round.block);
        let first = round.block as usize * WORDS_PER_BLOCK;
        let mut image = base.clone();
        let mut changes = std::mem::take(&mut round.rewrite);
        for word in 0..WORDS_PER_BLOCK {
            round.doing[word] |= std::mem::take(&mut round.asked[word]);
            round.fresh[word] = round.doing[word] & !base.written[word];
            // What was asked for again stays dirty, as what is written, unsettled or not known to be durable everywhere.
            let kept = round.doing[word] | map.writable.word(first + word) | map.unsettled.word(first + word);
            round.clear[word] |= std::mem::take(&mut round.clear_asked[word]);
            round.clear[word] &= if whole || planted(Planted::ClearedWhileDegraded) { !kept } else { 0 };
            image.dirty[word] = (base.dirty[word] | round.doing[word]) & !round.clear[word];
            changes |= image.dirty[word] != base.dirty[word];
        }
        if !changes && is_empty(&round.doing) {
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
        let flags = if planted(Planted::BitNotDurable) { Flags::NONE } else { Flags::FUA };
        let bitmaps = match mirror.bitmaps.split_last() {
            Some((_, others)) if planted(Planted::BitOnOneMember) && !others.is_empty() => {
                self.slots[index].out -= 1;
                others
            }
            _ => &mirror.bitmaps[..],
        };
        for (leaf, start) in bitmaps {
            let cookie = slots::cookie(index, generation, *leaf);
            sink.submit(&LeafIo::simple(*leaf, Op::Write, flags, start + offset, 4096, buf, cookie));
        }
    }

    /// Makes the reserved slot a user of the layout, with so many I/Os about to be out.
    fn claim(&mut self, index: u32, device: DeviceId, version: u32, out: u32) {
        self.devices.at_mut(device.0).users += 1;
        let slot = &mut self.slots[index];
        (slot.device, slot.version, slot.out) = (device.0, version, out);
        slot.op = Op::Write;
        slot.error = None;
    }

    /// Everything that was out for a round has been answered.
    pub(super) fn home_answered(&mut self, at: u32, index: u32, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        let failed = !std::mem::take(&mut slot.failed).is_empty();
        let error = slot.error.take();
        let (device, version) = (slot.device, slot.version);
        self.devices.leave(device, version);
        let frozen = self.devices.at(device).frozen;
        let round = self.home.at(at);
        if let Some(error) = error {
            // A member cannot do this at all: nobody is left out for that.
            let (device, block) = (round.device, round.block);
            round.doing.fill(0);
            self.tell_changed(device, block, Some(LeafError { kind: error.kind, errno: error.errno }));
            return self.end_round(at, sink);
        }
        if failed || frozen || round.again {
            round.stage = Stage::Held;
            // What was out may stand on some members and not on others: the block is written again whatever comes.
            round.rewrite |= !planted(Planted::BlockHalfWritten);
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
            Stage::Begin | Stage::Held => unreachable!("nothing is out"),
        }
    }

    /// The marks are durable on every member.
    fn marked(&mut self, at: u32, sink: &mut impl LeafSink) {
        let round = self.home.at(at);
        let none = [0; WORDS_PER_BLOCK];
        let map = Arc::clone(round.map());
        map.cleared(round.block, &round.clear);
        round.clear.fill(0);
        map.marked(round.block, &round.doing, &none);
        let first = u64::from(round.block) * u64::from(REGIONS_PER_BLOCK);
        let (device, block, fresh) = (round.device, round.block, !is_empty(&round.fresh));
        if !fresh {
            round.doing.fill(0);
            self.tell_changed(device, block, None);
            return self.end_round(at, sink);
        }
        round.zero_at = map.range(first as u32).0;
        self.zero_more(at, sink);
    }

    /// Zeroes the next of the regions that were never written, as much as one step holds.
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
                if member.role == Role::Out || planted(Planted::NotZeroed) {
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

    /// The zeros are durable: the regions count as written once that is noted.
    fn flushed(&mut self, at: u32, sink: &mut impl LeafSink) {
        let device = self.home.at(at).device;
        let Some(layout) = self.use_current(device) else { return self.give_up(at, sink) };
        let round = self.home.at(at);
        round.stage = Stage::Written;
        let mut image = round.map().bits(round.block);
        for word in 0..WORDS_PER_BLOCK {
            image.dirty[word] |= round.doing[word];
            image.written[word] |= round.fresh[word];
        }
        self.write_block(at, &layout, &image, sink);
    }

    fn written(&mut self, at: u32, sink: &mut impl LeafSink) {
        let round = self.home.at(at);
        round.map().marked(round.block, &round.doing, &round.fresh);
        round.doing.fill(0);
        round.fresh.fill(0);
        let (device, block) = (round.device, round.block);
        self.tell_changed(device, block, None);
        self.end_round(at, sink);
    }

    /// A round has ended. Another begins where more has been asked for.
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
            // The kernel has the memory of the block still, for a member that is left out: what else is wanted of the block has
            // another place, so that it need not wait for a disk that hangs.
            self.slots[index].state = State::Late;
            self.home.at(at).device = NOBODY;
            return;
        }
        self.home_free(at, index, sink);
    }

    /// Nothing can be done for a round any more.
    fn give_up(&mut self, at: u32, sink: &mut impl LeafSink) {
        let round = self.home.at(at);
        round.doing.fill(0);
        round.asked.fill(0);
        round.clear_asked.fill(0);
        round.rewrite = false;
        round.calls.append(&mut round.calls_asked);
        let (device, block) = (round.device, round.block);
        // Its number may soon be another array's, while the kernel still has the memory of this round.
        round.device = NOBODY;
        self.tell_changed(device, block, Some(LeafError::of(ErrorKind::NoDevice)));
        self.end_round(at, sink);
    }

    /// The place of a round is free for another.
    pub(super) fn home_free(&mut self, at: u32, index: u32, sink: &mut impl LeafSink) {
        self.slots[index].state = State::Active;
        if self.home.at(at).has_more() {
            return self.begin_round(at, sink);
        }
        let mut round = self.home.rounds[at as usize].take().expect("a round that is under way");
        round.map = None;
        self.home.spare.push(round);
        self.slots.give(index);
        while self.home.rounds.iter().any(Option::is_none) {
            let Some((device, block, wish)) = self.home.backlog.pop_front() else { return };
            self.wish(device, block, wish, false, sink);
        }
    }

    /// A layout was published: rounds of the device begin anew with it.
    pub(super) fn home_published(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        let map = self.map_of(device);
        for at in 0..META_BLOCKS {
            let Some(round) = self.home.rounds[at as usize].as_mut().filter(|r| r.device == device) else { continue };
            round.again = true;
            if let Some(map) = &map {
                // It may be a longer one.
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

    /// One block less is left of a call.
    fn count_call(&mut self, id: u64) {
        let home = &mut self.home;
        let Some(at) = home.calls.iter().position(|call| call.id == id) else { return };
        home.calls[at].left -= 1;
        if home.calls[at].left == 0 {
            home.called.push_back(home.calls.remove(at).id);
        }
    }

    pub(super) fn tell_changed(&mut self, device: DeviceId, block: u32, error: Option<LeafError>) {
        self.woken.push_back((region_key(device, block), error));
        for shard in (0..self.shared.shards).map(ShardId).filter(|s| *s != self.id) {
            self.outbox.push_back((shard, ShardMessage::Changed { device, block, error }));
        }
    }
}
