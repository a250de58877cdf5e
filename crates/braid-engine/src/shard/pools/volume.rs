//! Requests to volumes, step by step.

use super::super::pool_state::{PoolReply, PoolRequest, RUNS_MAX, Reservations, Stage, VolumeWork};
use super::super::ranges::hold;
use super::super::slots::{Partial, SlotState, UNCOUNTED};
use super::super::waiting::range_key;
use super::super::{Shard, ShardMessage};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LeafSink, Op, REQUEST_BYTES_MAX};
use crate::limits::STEP_ORDERED_BYTES_MAX;
use crate::plan::carries_data;
use crate::pool::{BLOCK_BYTES, BlockAllocation, BlockLocation, ExtentId};
use crate::volume::VolumeNode;

/// Maximum number of parts that one step of a read or an overwrite begins.
const STEP_PARTS_MAX: u32 = 32;

impl Shard {
    /// Begins a request to a volume that is not completed inline.
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

    /// Advances a request with no I/O in flight as far as possible.
    pub(in super::super) fn volume_advance(&mut self, index: u32, sink: &mut impl LeafSink) {
        if self.slots[index].period == UNCOUNTED {
            // From here on it counts as a new request: also to a snapshot that was taken meanwhile.
            self.count_again(index);
        }
        loop {
            let work = &mut self.pools.works[index as usize];
            let slot = &mut self.slots[index];
            match work.stage {
                Stage::New => {
                    let new = work.new;
                    if slot.error.is_some() {
                        work.reply = None;
                        self.request_home(index, PoolRequest::Release(new), None, sink);
                        return self.finish(index);
                    }
                    if work.reply.is_some() {
                        if self.write_placed(index, sink) {
                            continue;
                        }
                        return;
                    }
                    if new.iter().all(Option::is_none) {
                        work.stage = Stage::Start;
                        continue;
                    }
                    return self.request_home(index, PoolRequest::Map(new), Some(Stage::Binding), sink);
                }
                _ if slot.error.is_some() => {
                    // Allocations that were made while it waited are not needed.
                    if let Some(PoolReply::Allocated(runs)) = work.reply.take() {
                        self.request_home(index, PoolRequest::Release(reserved(runs)), None, sink);
                    }
                    return self.finish(index);
                }
                Stage::Placing => {
                    if !self.placed(index) {
                        return;
                    }
                }
                Stage::Discarding if matches!(work.reply, Some(PoolReply::Retry)) => {
                    (work.reply, work.stage) = (None, Stage::Start);
                    return self.wait_for_retry(index);
                }
                Stage::Discarding => {
                    let requested = slot.end - slot.cursor;
                    match work.reply.take() {
                        Some(PoolReply::Zeroed(blocks)) => slot.cursor += (blocks * BLOCK_BYTES).min(requested),
                        // A hint may be skipped; requested zeros are written.
                        Some(PoolReply::NotZeroed(blocks)) if slot.op == Op::Discard => {
                            slot.cursor += (blocks * BLOCK_BYTES).min(requested);
                        }
                        Some(PoolReply::NotZeroed(_)) => work.writes_zeros = true,
                        reply => slot.error = Some(failure(reply)),
                    }
                    work.stage = Stage::Start;
                    work.commit = true;
                }
                Stage::Binding => {
                    if let Some(PoolReply::Failed(kind)) = work.reply.take() {
                        slot.error = Some(IoError::of(kind));
                    }
                    (work.stage, work.commit) = (Stage::Start, true);
                }
                Stage::Committing => {
                    if let Some(PoolReply::Failed(kind)) = work.reply.take() {
                        slot.error = Some(IoError::of(kind));
                    }
                    return self.end_volume(index, sink);
                }
                Stage::Kept => return self.end_volume(index, sink),
                Stage::Parts => work.stage = Stage::Start,
                Stage::Start if slot.op == Op::Flush => {
                    return self.request_home(index, PoolRequest::Commit, Some(Stage::Committing), sink);
                }
                Stage::Start if slot.cursor >= slot.end => {
                    let (commits, fua) = (work.commit, slot.flags.has(Flags::FUA));
                    if commits && (fua || self.is_leased(index)) {
                        return self.request_home(index, PoolRequest::Commit, Some(Stage::Committing), sink);
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

    /// Answers the request, unless it has to wait for a lease.
    fn end_volume(&mut self, index: u32, sink: &mut impl LeafSink) {
        let is_step = self.slots[index].partial == Partial::Step;
        if self.slots[index].error.is_none() && !is_step && self.awaits_lease(index, sink) {
            self.pools.works[index as usize].stage = Stage::Kept;
            return;
        }
        self.finish(index);
    }

    /// Returns whether the volume's pool is on a replicated device: nothing is answered that is not committed.
    fn is_leased(&self, index: u32) -> bool {
        let slot = &self.slots[index];
        self.devices.at(slot.device).layout(slot.version).lease.is_some()
    }

    /// Begins one step. Returns true if the request continues at once.
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
            if self.slots[index].state == SlotState::Waiting {
                return false;
            }
            if self.slots[index].error.is_some() {
                return true;
            }
            if slot.op == Op::Read {
                debug_assert!(self.slots[index].cursor > slot.cursor, "a read needs nothing from the home");
                return true;
            }
        }
        if takes_away && self.passes_over_nothing(index) {
            return true;
        }
        // Allocations and unmaps of one range are ordered.
        if slot.held.0 == slot.held.1 {
            let slot = &mut self.slots[index];
            if let Err(bucket) = hold(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot) {
                self.waiting.park(&mut self.slots, index, range_key(bucket));
                return false;
            }
            // The previous holder may have mapped what was missing.
            return true;
        }
        let end = slot.held.1;
        if slot.cursor >= end {
            let slot = &mut self.slots[index];
            super::super::ranges::release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
            return true;
        }
        let (block, blocks) = (slot.cursor / BLOCK_BYTES, (end - slot.cursor) / BLOCK_BYTES);
        let volume = self.volume_of(index).id;
        let (ask, stage) = match takes_away {
            true => (PoolRequest::Discard { volume, block, blocks }, Stage::Discarding),
            false => (PoolRequest::Allocate { volume, block, blocks }, Stage::Placing),
        };
        self.request_home(index, ask, Some(stage), sink);
        false
    }

    /// Skips unmapped blocks, if blocks are to be unmapped. Returns true if the cursor has moved.
    ///
    /// A long request does not acquire its range piece by piece for that. It first looks up which parts of the range
    /// are held, and skips nothing from the first of these on; then it looks up the map. So it waits for a write that
    /// was given an allocation before, and a write that is given one later comes after this request.
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
        // As for a read of zeros: the unmap of the previous content may not be durable.
        let uncommitted = (self.is_leased(index) || slot.flags.has(Flags::FUA)) && volume.pool.is_hot();
        self.pools.works[index as usize].commit |= uncommitted;
        self.slots[index].cursor += nothing * BLOCK_BYTES;
        nothing > 0
    }

    fn volume_of(&self, index: u32) -> &VolumeNode {
        let slot = &self.slots[index];
        self.devices.at(slot.device).layout(slot.version).volume().expect("a request to a volume")
    }

    /// Begins parts for blocks that are mapped: those that a read finds, or that a write may overwrite. Returns their
    /// number, and moves the cursor.
    fn parts_step(&mut self, index: u32, sink: &mut impl LeafSink) -> u32 {
        let mut begun = 0;
        let leased = self.is_leased(index);
        // Counted like a part meanwhile: parts that end at once do not continue the request, this call does.
        self.slots[index].out += 1;
        while begun < STEP_PARTS_MAX {
            let slot = self.slots[index];
            if slot.cursor >= slot.end {
                break;
            }
            let volume = self.volume_of(index);
            // Zeros have no other limit, and a step takes bounded time.
            let left = (slot.end - slot.cursor).min(REQUEST_BYTES_MAX) / BLOCK_BYTES;
            let records = &volume.pool.records;
            // Before the location is looked up: a write that begins now is made under this owner or a later one.
            let owner = volume.volume.owner(&volume.pool);
            let usable = |extent: ExtentId| slot.op == Op::Read || records.owner(extent) == owner;
            let buf = if carries_data(slot.op) { slot.buf.add(slot.cursor - slot.start) } else { Buf::NONE };
            let found = volume.find(slot.cursor / BLOCK_BYTES, left);
            // The record that says where a block is, or that it is zeros, may not be durable. This is checked after the
            // block was found, because the record is in the in-memory log before.
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
                    let block = slot.cursor / BLOCK_BYTES;
                    (place, volume.run(block, left, place, u64::from(blocks), usable) * BLOCK_BYTES)
                }
                _ => break,
            };
            let mut flags = Flags(slot.flags.0 & !Flags::FAST_ZERO.0);
            if slot.op == Op::Read {
                flags = Flags::NONE;
            } else if uncommitted {
                // A commit makes both durable.
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

    /// Processes the home's reply to a request for an allocation. Returns true if the home has made one: the data is
    /// written there.
    fn placed(&mut self, index: u32) -> bool {
        let work = &mut self.pools.works[index as usize];
        match work.reply {
            Some(PoolReply::Allocated(runs)) => {
                (work.new, work.stage) = (reserved(runs), Stage::New);
                true
            }
            Some(PoolReply::Retry) => {
                (work.reply, work.stage) = (None, Stage::Start);
                self.wait_for_retry(index);
                false
            }
            reply => {
                work.reply = None;
                self.slots[index].error = Some(failure(reply));
                self.finish(index);
                false
            }
        }
    }

    /// Begins parts to the allocations that the home has made, as many as the pool may take; the others follow when
    /// these have ended. Returns true if the request continues at once.
    fn write_placed(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let Some(PoolReply::Allocated(mut runs)) = self.pools.works[index as usize].reply.take() else { return true };
        let mut begun = false;
        // Counted like a part meanwhile: parts that end at once do not continue the request, this call does.
        self.slots[index].out += 1;
        let mut at = 0;
        while at < RUNS_MAX {
            let Some((place, mut len)) = self.place_of(index, runs[at]) else {
                at += 1;
                continue;
            };
            // Allocations that are contiguous on one member are one part.
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
        self.pools.works[index as usize].reply = waits.then_some(PoolReply::Allocated(runs));
        self.slots[index].out -= 1;
        if waits && !begun {
            self.wait_for_part(index);
            return false;
        }
        self.slots[index].out == 0
    }

    /// Returns the location of an allocation that the home has made, and its bytes.
    fn place_of(&self, index: u32, run: Option<BlockAllocation>) -> Option<((DeviceId, u64), u64)> {
        let (extent, position, blocks) = match run? {
            BlockAllocation::New(new) => (new.extent, new.position, new.blocks),
            BlockAllocation::Own { extent, position, blocks } => (extent, position, blocks),
            BlockAllocation::Full | BlockAllocation::LogFull | BlockAllocation::Held => unreachable!("no place"),
        };
        Some((self.volume_of(index).place(extent, position), u64::from(blocks) * BLOCK_BYTES))
    }

    /// Begins a part to allocations that the home has made. Returns false if the pool may take no part.
    fn begin_placed(&mut self, index: u32, place: (DeviceId, u64), len: u64, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let buf = if carries_data(slot.op) { slot.buf.add(slot.cursor - slot.start) } else { Buf::NONE };
        // The commit after it makes the data durable, too.
        let flags = Flags(slot.flags.0 & !Flags::FUA.0 & !Flags::FAST_ZERO.0);
        if !self.begin_part(index, place, (slot.op, flags), len, buf, sink) {
            return false;
        }
        self.slots[index].cursor += len;
        self.pools.works[index as usize].commit = true;
        true
    }

    /// Sends a request to the pool's home. With a stage the volume's request waits for the reply.
    fn request_home(&mut self, index: u32, ask: PoolRequest, stage: Option<Stage>, sink: &mut impl LeafSink) {
        let volume = self.volume_of(index);
        let (key, home) = (volume.key, volume.home);
        let slot = &mut self.slots[index];
        if let Some(stage) = stage {
            slot.out += 1;
            self.pools.works[index as usize].stage = stage;
        }
        let requester = (self.id, index, slot.generation);
        if home == self.id {
            self.pool_requested(key, requester, ask, sink);
        } else {
            let (from, slot, generation) = requester;
            self.outbox.push_back((home, ShardMessage::PoolRequest { key, from, slot, generation, ask }));
        }
    }

    /// Returns whether the device is a volume.
    #[inline]
    pub(in super::super) fn is_to_volume(&self, device: DeviceId) -> bool {
        self.devices.at(device.0).current.as_deref().is_some_and(|layout| layout.volume().is_some())
    }
}

/// Returns the reservations among these allocations.
fn reserved(runs: [Option<BlockAllocation>; RUNS_MAX]) -> Reservations {
    runs.map(|run| match run {
        Some(BlockAllocation::New(new)) => Some(new),
        _ => None,
    })
}

fn failure(reply: Option<PoolReply>) -> IoError {
    match reply {
        Some(PoolReply::Failed(kind)) => IoError::of(kind),
        _ => IoError::of(ErrorKind::Io),
    }
}
