//! A request to a volume, step by step.

use super::super::partial::Partial;
use super::super::ranges::hold;
use super::super::slots::{AWAY, State};
use super::super::waiting::range_key;
use super::super::{Shard, ShardMessage};
use super::{PoolAsk, PoolTold, RUNS_MAX, Reservations};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LeafSink, Op, REQUEST_BYTES_MAX};
use crate::limits::STEP_ORDERED_BYTES_MAX;
use crate::plan::carries_data;
use crate::planted::{Planted, planted};
use crate::pool::{BLOCK_BYTES, BlockAllocation, BlockLocation, ExtentId};
use crate::volume::VolumeNode;

/// Parts that one step of a read or of writing over what is there begins at most.
const STEP_PARTS_MAX: u32 = 32;

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Stage {
    #[default]
    Start,
    /// Places are asked for.
    Placing,
    /// Parts are out: reads, or writes over what is the owner's own.
    Parts,
    /// Parts are out that go to new places.
    New,
    /// It is told that the data are there.
    Binding,
    /// Blocks are being taken away.
    Discarding,
    /// All of it is to be durable.
    Committing,
    /// It waits for a lease.
    Kept,
}

/// What a request to a volume needs besides its slot.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct VolumeWork {
    stage: Stage,
    pub(super) told: Option<PoolTold>,
    new: Reservations,
    /// A commit is needed before it is answered.
    commit: bool,
    /// Zeros that cannot be said are written.
    writes_zeros: bool,
}

impl Shard {
    /// Begins a request to a volume that takes time.
    pub(in super::super) fn begin_volume(&mut self, index: u32) {
        self.pools.works[index as usize] = VolumeWork::default();
        let slot = &self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version);
        let volume = layout.volume().expect("a request to a volume");
        let (key, read_only) = (volume.key, volume.read_only);
        self.enter_volume(index, key);
        let slot = &mut self.slots[index];
        if read_only && !matches!(slot.op, Op::Read | Op::Flush) {
            slot.error = Some(IoError::of(ErrorKind::ReadOnly));
        }
    }

    /// Takes a request with nothing out as far as it goes.
    pub(in super::super) fn volume_go(&mut self, index: u32, sink: &mut impl LeafSink) {
        if self.slots[index].time == AWAY {
            // From here on as one that has just come: also to a snapshot that was taken meanwhile.
            self.come_back(index);
        }
        loop {
            let work = &mut self.pools.works[index as usize];
            let slot = &mut self.slots[index];
            match work.stage {
                Stage::New => {
                    let new = work.new;
                    if slot.error.is_some() {
                        work.told = None;
                        self.ask_home(index, PoolAsk::Unplace(new), None, sink);
                        return self.finish(index);
                    }
                    if work.told.is_some() {
                        if self.write_placed(index, sink) {
                            continue;
                        }
                        return;
                    }
                    if new.iter().all(Option::is_none) {
                        work.stage = Stage::Start;
                        continue;
                    }
                    if planted(Planted::BindUnwaited) && slot.cursor >= slot.end && !slot.flags.has(Flags::FUA) {
                        self.ask_home(index, PoolAsk::Bind(new), None, sink);
                        return self.finish(index);
                    }
                    return self.ask_home(index, PoolAsk::Bind(new), Some(Stage::Binding), sink);
                }
                _ if slot.error.is_some() => {
                    // Places that were given while it waited are not needed.
                    if let Some(PoolTold::Placed(runs)) = work.told.take() {
                        self.ask_home(index, PoolAsk::Unplace(reserved(runs)), None, sink);
                    }
                    return self.finish(index);
                }
                Stage::Placing => {
                    if !self.placed(index) {
                        return;
                    }
                }
                Stage::Discarding if matches!(work.told, Some(PoolTold::NotYet)) => {
                    (work.told, work.stage) = (None, Stage::Start);
                    return self.go_away(index);
                }
                Stage::Discarding => {
                    let asked = slot.end - slot.cursor;
                    match work.told.take() {
                        Some(PoolTold::Zeroed(blocks)) => slot.cursor += (blocks * BLOCK_BYTES).min(asked),
                        // A hint may be passed over; zeros that were asked for are written.
                        Some(PoolTold::NotZeroed(blocks)) if slot.op == Op::Discard => {
                            slot.cursor += (blocks * BLOCK_BYTES).min(asked);
                        }
                        Some(PoolTold::NotZeroed(_)) => work.writes_zeros = true,
                        told => slot.error = Some(failure(told)),
                    }
                    work.stage = Stage::Start;
                    work.commit = !planted(Planted::ZeroesUncommitted);
                }
                Stage::Binding => {
                    if let Some(PoolTold::Failed(kind)) = work.told.take() {
                        slot.error = Some(IoError::of(kind));
                    }
                    (work.stage, work.commit) = (Stage::Start, true);
                }
                Stage::Committing => {
                    if let Some(PoolTold::Failed(kind)) = work.told.take() {
                        slot.error = Some(IoError::of(kind));
                    }
                    return self.end_volume(index, sink);
                }
                Stage::Kept => return self.end_volume(index, sink),
                Stage::Parts => work.stage = Stage::Start,
                Stage::Start if slot.op == Op::Flush && planted(Planted::VolumeFlushSkipped) => {
                    return self.finish(index);
                }
                Stage::Start if slot.op == Op::Flush => {
                    return self.ask_home(index, PoolAsk::Commit, Some(Stage::Committing), sink);
                }
                Stage::Start if slot.cursor >= slot.end => {
                    let (commits, fua) = (work.commit, slot.flags.has(Flags::FUA));
                    if commits && (fua || self.is_leased(index)) {
                        return self.ask_home(index, PoolAsk::Commit, Some(Stage::Committing), sink);
                    }
                    return self.end_volume(index, sink);
                }
                Stage::Start => {
                    if self.volume_step(index, sink) {
                        continue;
                    }
                    return;
                }
            }
        }
    }

    /// Answers it, unless it has to wait for a lease.
    fn end_volume(&mut self, index: u32, sink: &mut impl LeafSink) {
        let is_step = self.slots[index].partial == Partial::Step;
        if self.slots[index].error.is_none() && !is_step && self.awaits_lease(index, sink) {
            self.pools.works[index as usize].stage = Stage::Kept;
            return;
        }
        self.finish(index);
    }

    /// Whether the volume is of a pool on a device that is replicated: nothing is answered that is not committed.
    fn is_leased(&self, index: u32) -> bool {
        let slot = &self.slots[index];
        self.devices.at(slot.device).layout(slot.version).lease.is_some()
    }

    /// One step. True: it may go on at once.
    fn volume_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let work = &self.pools.works[index as usize];
        let takes_away = match slot.op {
            Op::Discard => true,
            Op::WriteZeroes => !slot.flags.has(Flags::NO_UNMAP) && !work.writes_zeros,
            _ => false,
        };
        if slot.op == Op::WriteZeroes && slot.flags.has(Flags::FAST_ZERO) && !takes_away {
            self.slots[index].error = Some(IoError::of(ErrorKind::Unsupported));
            return true;
        }
        self.shorten_claim(index);
        if !takes_away {
            let begun = self.parts_step(index, sink);
            if begun > 0 {
                self.pools.works[index as usize].stage = Stage::Parts;
                return self.slots[index].out == 0;
            }
            if self.slots[index].state == State::Waiting {
                return false;
            }
            if self.slots[index].error.is_some() {
                return true;
            }
            if slot.op == Op::Read {
                debug_assert!(self.slots[index].cursor > slot.cursor, "a read needs nobody to go on");
                return true;
            }
        }
        if takes_away && self.passes_over_nothing(index) {
            return true;
        }
        // New places are given, and blocks taken away, in one order.
        let unlocked = planted(Planted::VolumeUnlocked);
        if slot.held.0 == slot.held.1 && !unlocked {
            let slot = &mut self.slots[index];
            if let Err(bucket) = hold(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot) {
                self.waiting.park(&mut self.slots, index, range_key(bucket));
                return false;
            }
            // Whoever had it may have bound what was missing.
            return true;
        }
        let end = if unlocked { slot.end } else { slot.held.1 };
        if slot.cursor >= end {
            let slot = &mut self.slots[index];
            super::super::ranges::release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
            return true;
        }
        let (block, blocks) = (slot.cursor / BLOCK_BYTES, (end - slot.cursor) / BLOCK_BYTES);
        let volume = self.volume_of(index).id;
        let (ask, stage) = match takes_away {
            true => (PoolAsk::Discard { volume, block, blocks }, Stage::Discarding),
            false => (PoolAsk::Place { volume, block, blocks }, Stage::Placing),
        };
        self.ask_home(index, ask, Some(stage), sink);
        false
    }

    /// Passes over what is not mapped, where blocks are to be taken away. True: it has come further.
    ///
    /// Long ranges are not held piece by piece for that. Instead whoever holds some of them is looked for before the map is: a write
    /// that was given a place before this is waited for, and one that is given a place after this comes after it.
    fn passes_over_nothing(&mut self, index: u32) -> bool {
        let slot = self.slots[index];
        let end = if slot.held.0 < slot.held.1 {
            slot.held.1
        } else if slot.end.saturating_sub(slot.cursor) > STEP_ORDERED_BYTES_MAX {
            self.shared.volume_ranges.first_held(DeviceId(slot.device), slot.cursor, slot.end)
        } else {
            return false;
        };
        if slot.cursor >= end {
            return false;
        }
        let volume = self.volume_of(index);
        let nothing = volume.unmapped(slot.cursor / BLOCK_BYTES, end / BLOCK_BYTES);
        // As where zeros are read: what took away what was there may not be durable.
        let uncommitted = (self.is_leased(index) || slot.flags.has(Flags::FUA)) && volume.pool.is_hot();
        self.pools.works[index as usize].commit |= uncommitted;
        self.slots[index].cursor += nothing * BLOCK_BYTES;
        nothing > 0
    }

    fn volume_of(&self, index: u32) -> &VolumeNode {
        let slot = &self.slots[index];
        self.devices.at(slot.device).layout(slot.version).volume().expect("a request to a volume")
    }

    /// Begins parts for what is there already: what a read finds, what a write may write over. Returns how many, and moves the cursor.
    fn parts_step(&mut self, index: u32, sink: &mut impl LeafSink) -> u32 {
        let mut begun = 0;
        let leased = self.is_leased(index);
        // Some end at once: the request goes on from here, not from there.
        self.slots[index].out += 1;
        while begun < STEP_PARTS_MAX {
            let slot = self.slots[index];
            if slot.cursor >= slot.end {
                break;
            }
            let volume = self.volume_of(index);
            // Zeros have no other bound, and a step is to take bounded time.
            let left = (slot.end - slot.cursor).min(REQUEST_BYTES_MAX) / BLOCK_BYTES;
            let records = &volume.pool.records;
            // Before the place is looked at: who begins now writes under this owner or a later one.
            let owner = volume.volume.owner(&volume.pool);
            let usable = |extent: ExtentId| {
                slot.op == Op::Read || records.owner(extent) == owner || planted(Planted::OwnerUnchecked)
            };
            let buf = if carries_data(slot.op) { slot.buf.add(slot.cursor - slot.start) } else { Buf::NONE };
            let found = volume.find(slot.cursor / BLOCK_BYTES, left);
            // What says where a block is, or that it is zeros, may not be durable. Looked at after the block was found, as what says so is in the
            // tail before.
            let uncommitted = (leased || slot.op != Op::Read && slot.flags.has(Flags::FUA)) && volume.pool.is_hot();
            let (place, len) = match found {
                BlockLocation::Nothing { blocks } if slot.op == Op::Read => {
                    let len = u64::from(blocks) * BLOCK_BYTES;
                    sink.zero(buf, len);
                    self.slots[index].cursor += len;
                    self.pools.works[index as usize].commit |= uncommitted;
                    continue;
                }
                BlockLocation::At { extent: ExtentId::IN_DOUBT, .. } => {
                    let offset = slot.cursor;
                    self.slots[index].error = Some(IoError { offset, ..IoError::of(ErrorKind::Unreadable) });
                    break;
                }
                BlockLocation::At { extent, position, blocks } if usable(extent) => {
                    let place = volume.place(extent, position);
                    let goes_on = |extent| usable(extent) || planted(Planted::RunUnchecked);
                    let block = slot.cursor / BLOCK_BYTES;
                    (place, volume.run(block, left, place, u64::from(blocks), goes_on) * BLOCK_BYTES)
                }
                _ => break,
            };
            let mut flags = Flags(slot.flags.0 & !Flags::FAST_ZERO.0);
            if slot.op == Op::Read {
                flags = Flags::NONE;
            } else if uncommitted {
                // A commit makes both so.
                flags = Flags(flags.0 & !Flags::FUA.0);
            }
            self.pools.works[index as usize].commit |= uncommitted;
            if !self.begin_part(index, place, (slot.op, flags), len, buf, sink) {
                if begun == 0 {
                    self.wait_for_part(index);
                }
                break;
            }
            self.slots[index].cursor += len;
            begun += 1;
        }
        self.slots[index].out -= 1;
        begun
    }

    /// The home has answered where new blocks go. True: it has given places, and the data go there.
    fn placed(&mut self, index: u32) -> bool {
        let work = &mut self.pools.works[index as usize];
        match work.told {
            Some(PoolTold::Placed(runs)) => {
                (work.new, work.stage) = (reserved(runs), Stage::New);
                true
            }
            Some(PoolTold::NotYet) => {
                (work.told, work.stage) = (None, Stage::Start);
                self.go_away(index);
                false
            }
            told => {
                work.told = None;
                self.slots[index].error = Some(failure(told));
                self.finish(index);
                false
            }
        }
    }

    /// Begins parts to the places that the home has given, as many as there are: further ones when these have ended. True: the request goes on
    /// at once.
    fn write_placed(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let Some(PoolTold::Placed(mut runs)) = self.pools.works[index as usize].told.take() else { return true };
        let mut begun = false;
        // Some end at once: the request goes on from here, not from there.
        self.slots[index].out += 1;
        let mut at = 0;
        while at < RUNS_MAX {
            let Some((place, mut len)) = self.place_of(index, runs[at]) else {
                at += 1;
                continue;
            };
            // What goes one after the other to one member is one part.
            let mut next = at + 1;
            while next < RUNS_MAX
                && let Some((behind, more)) = self.place_of(index, runs[next])
                && behind == (place.0, place.1 + len)
            {
                len += more;
                next += 1;
            }
            if !self.begin_placed(index, place, len, sink) {
                break;
            }
            begun = true;
            runs[at..next].fill(None);
            at = next;
        }
        let waits = at < RUNS_MAX;
        self.pools.works[index as usize].told = waits.then_some(PoolTold::Placed(runs));
        self.slots[index].out -= 1;
        if waits && !begun {
            self.wait_for_part(index);
            return false;
        }
        if self.slots[index].out > 0 && planted(Planted::NewUncounted) {
            self.leave_time(index);
        }
        self.slots[index].out == 0
    }

    /// Where a place is that the home has given, and its bytes.
    fn place_of(&self, index: u32, run: Option<BlockAllocation>) -> Option<((DeviceId, u64), u64)> {
        let (extent, position, blocks) = match run? {
            BlockAllocation::New(new) => (new.extent, new.position, new.blocks),
            BlockAllocation::Own { extent, position, blocks } => (extent, position, blocks),
            BlockAllocation::Full | BlockAllocation::LogFull | BlockAllocation::Held => unreachable!("no place"),
        };
        Some((self.volume_of(index).place(extent, position), u64::from(blocks) * BLOCK_BYTES))
    }

    /// Begins a part that goes to places that the home has given. False: the pool may take none.
    fn begin_placed(&mut self, index: u32, place: (DeviceId, u64), len: u64, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let buf = if carries_data(slot.op) { slot.buf.add(slot.cursor - slot.start) } else { Buf::NONE };
        // The commit after it covers the data, too.
        let flags = Flags(slot.flags.0 & !Flags::FUA.0 & !Flags::FAST_ZERO.0);
        if !self.begin_part(index, place, (slot.op, flags), len, buf, sink) {
            return false;
        }
        self.slots[index].cursor += len;
        self.pools.works[index as usize].commit = true;
        true
    }

    /// Asks something of the pool's home. With a stage the request waits for the answer.
    fn ask_home(&mut self, index: u32, ask: PoolAsk, stage: Option<Stage>, sink: &mut impl LeafSink) {
        let volume = self.volume_of(index);
        let (key, home) = (volume.key, volume.home);
        let slot = &mut self.slots[index];
        if let Some(stage) = stage {
            slot.out += 1;
            self.pools.works[index as usize].stage = stage;
        }
        let who = (self.id, index, slot.generation);
        if home == self.id {
            self.pool_asked(key, who, ask, sink);
        } else {
            let (from, slot, generation) = who;
            self.outbox.push_back((home, ShardMessage::PoolAsk { key, from, slot, generation, ask }));
        }
    }

    /// Whether a slot's request is to a volume.
    #[inline]
    pub(in super::super) fn is_to_volume(&self, device: DeviceId) -> bool {
        self.devices.at(device.0).current.as_deref().is_some_and(|layout| layout.volume().is_some())
    }
}

/// What of these places the home has reserved.
fn reserved(runs: [Option<BlockAllocation>; RUNS_MAX]) -> Reservations {
    runs.map(|run| match run {
        Some(BlockAllocation::New(new)) => Some(new),
        _ => None,
    })
}

fn failure(told: Option<PoolTold>) -> IoError {
    match told {
        Some(PoolTold::Failed(kind)) => IoError::of(kind),
        _ => IoError::of(ErrorKind::Io),
    }
}
