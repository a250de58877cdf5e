//! Moves: blocks go to other extents while their volumes are in use.
//!
//! The source extents are *held*: no shard writes there any longer without a request to the home shard, and such
//! requests wait. When all requests that may have begun before have ended, the blocks are copied. Then one group of
//! entries says where they are now and that the old extents are free, the maps are updated, and waiting requests go on.
//! Until that group is in the log nothing has moved.
//!
//! No record says which blocks are to be moved: they are those on a member where they should not be
//! ([`Pool::move_step`]). So an open continues the moves that the last session did not make.

use std::collections::{BTreeMap, BTreeSet};

use braid_format::pool::{AllocationPolicy, Change, Owner, Record, RecordKind};

use super::Pool;
use super::admin::AdminError;
use super::flatten::Flatten;
use super::jobs::PausedMoves;
use super::map::{MapWriter, MovedBlock};
use super::merge::Merge;
use super::one_move::{Move, Part, Stage};
use super::owners::OwnerId;
use super::pool_io::{IoPurpose, PoolIo, PoolOp};
use super::records::OWNER_HELD;
use super::units::{BLOCK_BYTES, EXTENT_BLOCKS, ExtentId, RecordId};

/// Maximum moves at a time: each holds extents.
const MOVES_MAX: usize = 16;
/// Maximum copies in flight.
const COPIES_MAX: u32 = 16;
/// Maximum blocks of one copy.
const COPY_BLOCKS_MAX: usize = 16;

/// The outcome of a step of moving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveStep {
    /// All records were scanned, and all blocks are where they should be.
    Done,
    /// Something was done, or is under way.
    Some,
    /// Blocks have to move, and there is no space for them.
    Full,
    /// Some blocks could not be copied; there is nothing else to do.
    Unreadable,
    /// The remaining moves are paused ([`Pool::pause_moves`]).
    Paused,
}

/// All moves of a pool.
#[derive(Default)]
pub(super) struct Moves {
    list: [Option<Move>; MOVES_MAX],
    in_flight: u32,
    /// Extents that could not be copied.
    failed: BTreeSet<ExtentId>,
    pub paused: PausedMoves,
    /// Requests hang that a barrier waits for.
    hang: bool,
    scan: Option<Scan>,
    /// Blocks that have moved.
    moved: u64,
    /// How many whole extents compaction has filled since the pool was opened; `repacked`: how many packed ones.
    pub gathered: u64,
    pub repacked: u64,
}

/// A scan of all records.
struct Scan {
    next: RecordId,
    /// Whether every block so far was found where it should be.
    clean: bool,
    /// Whether blocks have to move for which there is no space.
    full: bool,
    /// Whether blocks have to move that cannot be copied.
    unreadable: bool,
    /// Whether blocks have to move whose moves are paused.
    waits: bool,
    /// Owners that may have blocks on members that they no longer use (`also_on`), and the members on which the scan
    /// has found blocks of theirs.
    also: BTreeMap<OwnerId, u128>,
}

impl Moves {
    /// Returns whether something is moved to this extent.
    pub fn is_target(&self, extent: ExtentId) -> bool {
        self.list.iter().flatten().any(|one| one.target == extent)
    }

    /// Returns whether something is being copied for this owner.
    pub fn copies_for(&self, owner: OwnerId) -> bool {
        self.list.iter().flatten().any(|one| one.recipient == Some(owner))
    }

    /// Returns owner and logical extent of copies to newly allocated whole extents.
    pub fn copy_targets(&self) -> impl Iterator<Item = (OwnerId, u32)> + '_ {
        self.list.iter().flatten().filter_map(Move::opened_extent)
    }

    /// Returns whether the blocks of this extent are being moved to another one.
    pub fn is_source(&self, extent: ExtentId) -> bool {
        self.list.iter().flatten().any(|one| one.recipient.is_none() && one.has_source(extent))
    }

    /// Returns whether this extent could not be copied.
    pub fn has_failed(&self, extent: ExtentId) -> bool {
        self.failed.contains(&extent)
    }

    /// Returns whether another move can begin.
    pub fn can_begin(&self) -> bool {
        !self.hang && self.list.iter().any(Option::is_none)
    }

    /// Returns whether no move is under way.
    pub fn is_idle(&self) -> bool {
        self.list.iter().all(Option::is_none)
    }

    /// Notes that a barrier begins. Returns whether a move needs it.
    pub fn begin_drain(&mut self) -> bool {
        let mut any = false;
        for one in self.list.iter_mut().flatten().filter(|one| one.stage == Stage::Held) {
            one.stage = Stage::Draining;
            any = true;
        }
        any
    }

    /// Notes that the barrier has ended.
    pub fn drained(&mut self) {
        for one in self.list.iter_mut().flatten().filter(|one| one.stage == Stage::Draining) {
            one.stage = Stage::Copying(0);
        }
    }

    /// Restarts the scan: some blocks should be elsewhere from now on, and what it has seen is void.
    pub fn restart_scan(&mut self) {
        self.scan = None;
    }

    /// Forgets what the scan has seen of this owner, which may get blocks anywhere from now on.
    pub fn forget_seen(&mut self, owner: OwnerId) {
        if let Some(scan) = &mut self.scan {
            scan.also.remove(&owner);
        }
    }
}

impl Pool {
    /// Closes a member: it takes no new allocations, and its blocks are to be moved away. Or opens it again.
    pub fn close_member(&mut self, member: u8, closed: bool) {
        self.rooms[usize::from(member)].closed = closed;
        self.state.close_member(member, closed);
        // Owners with an open packed extent there begin another one.
        let open: Vec<OwnerId> =
            self.open_packed.iter().filter(|(_, open)| open.extent.member == member).map(|(owner, _)| *owner).collect();
        open.into_iter().for_each(|owner| self.close_packed(owner));
        self.moves.restart_scan();
        // A checkpoint that was made for its removal does not cover what comes there from now on.
        if self.commits.leaving.is_some_and(|(leaving, _)| leaving == member) {
            self.commits.leaving = None;
        }
    }

    /// Returns whether all extents and zero ranges of a member are free. A freed extent counts only once its freeing is
    /// committed and the extent discarded; a freed zero range counts at once, committed or not.
    pub fn is_member_empty(&self, member: u8) -> bool {
        let (room, extents) = (&self.rooms[usize::from(member)], self.state.records.extents(member));
        room.free.count() == extents && self.state.free_zero_slots_of(member) == self.state.zero_slots(member)
    }

    /// Returns the member with the most free extents, of those that take new allocations.
    pub fn member_with_most_space(&self) -> Option<u8> {
        let open = (0u8..).zip(&self.rooms).filter(|(_, room)| !room.closed && room.free.count() > 0);
        open.max_by_key(|(member, room)| (room.free.count(), u8::MAX - member)).map(|(member, _)| member)
    }

    /// Changes the placement of an owner of any kind. Blocks that it has elsewhere are moved by [`Pool::move_step`].
    ///
    /// # Errors
    /// `NoSuch`; `LogFull`; `InDoubt`: it would be on a missing member.
    pub fn set_placement(&mut self, id: OwnerId, place: AllocationPolicy, on: u128) -> Result<(), AdminError> {
        let slot = self.state.owners.slot_of(id).ok_or(AdminError::NoSuch)?;
        let old = self.state.owners.in_slot(slot).expect("listed by its slot").clone();
        if (old.allocation, old.on) == (place, on) {
            return Ok(());
        }
        if self.state.damage.is_in_doubt(id) {
            return Err(AdminError::Damaged);
        }
        // One more for the packed extent that is closed.
        if !self.has_room_for_request(6) {
            return Err(AdminError::LogFull);
        }
        // Its blocks stay where they are until they have been moved.
        let also_on = if place == AllocationPolicy::Spread { 0 } else { old.block_members() & !on };
        let image = Owner { allocation: place, on, also_on, ..old.clone() };
        if !image.is_sound() {
            return Err(AdminError::NoNumber);
        }
        if image.block_members() & !old.block_members() & self.state.missing != 0 {
            return Err(AdminError::InDoubt);
        }
        let reserves = self.reserves_altered(&old, &image)?;
        self.close_packed(id);
        self.moves.restart_scan();
        self.change(&[(0, slot, Change::Owner { owner: Some(image) })]);
        self.set_reserves(reserves);
        Ok(())
    }

    /// Blocks that were moved since the pool was opened.
    pub fn blocks_moved(&self) -> u64 {
        self.moves.moved
    }

    /// Extents that could not be copied since it was opened, or since [`Pool::retry_moves`].
    pub fn unreadable_extents(&self) -> impl Iterator<Item = ExtentId> + '_ {
        self.moves.failed.iter().copied()
    }

    /// Retries extents that could not be copied.
    pub fn retry_moves(&mut self) {
        self.moves.failed.clear();
    }

    /// Scans up to `records` records, and begins to move blocks that are where they should not be: on a closed member,
    /// or on one that their owner is not to use. The copying goes on by itself, by [`Pool::next_io`] and barriers.
    pub fn move_step(&mut self, records: u32) -> MoveStep {
        if self.commits.is_failed() || self.is_starving() {
            return MoveStep::Some;
        }
        for _ in 0..records {
            if !self.moves.can_begin() {
                break;
            }
            if self.moves.scan.is_none() {
                self.begin_scan();
            }
            if !self.scan_next() {
                return self.end_scan();
            }
        }
        MoveStep::Some
    }

    fn begin_scan(&mut self) {
        let elsewhere = self.state.owners.iter().filter(|owner| owner.also_on != 0);
        // The scan can miss blocks of an owner with data in flight, with blocks that move, or into which another owner
        // is merged.
        let receives_merge = |id: OwnerId| self.merge.as_ref().is_some_and(|merge| merge.child() == Some(id));
        let sources = || self.moves.list.iter().flatten().flat_map(|one| &one.sources);
        let moves = |id: OwnerId| sources().any(|(source, _)| self.state.records.owner(*source) & !OWNER_HELD == id);
        let settled =
            elsewhere.filter(|owner| !self.awaits_data(owner.id) && !receives_merge(owner.id) && !moves(owner.id));
        let settled = settled.filter(|owner| !self.moves.copies_for(owner.id));
        let also = settled.map(|owner| (owner.id, 0)).collect();
        let next = RecordId { member: 0, index: 0 };
        self.moves.scan = Some(Scan { next, clean: true, full: false, unreadable: false, waits: false, also });
    }

    /// Looks at the next record. False: there is none.
    fn scan_next(&mut self) -> bool {
        let scan = self.moves.scan.as_mut().expect("a scan is under way");
        let id = scan.next;
        if usize::from(id.member) == self.rooms.len() {
            return false;
        }
        let extents = self.state.records.extents(id.member);
        if id.index == extents + self.state.zero_slots(id.member) {
            scan.next = RecordId { member: id.member + 1, index: 0 };
            return true;
        }
        let closed = self.rooms[usize::from(id.member)].closed;
        let extent = ExtentId { member: id.member, index: id.index };
        let is_extent = id.index < extents;
        let owner =
            if is_extent { self.state.records.owner(extent) & !OWNER_HELD } else { self.state.record(id).owner };
        if let Some(seen) = scan.also.get_mut(&owner) {
            *seen |= 1 << id.member;
        }
        let misplaced = self.is_misplaced(owner, id.member);
        let awaited = is_extent && closed && self.is_pending(extent);
        if (misplaced || awaited) && self.moves.paused.is_paused(owner, id.member, closed) {
            let scan = self.moves.scan.as_mut().expect("as before");
            (scan.clean, scan.waits) = (false, true);
            scan.next.index += 1;
            return true;
        }
        if !is_extent {
            if misplaced && !self.move_zeros(id) {
                return true;
            }
        } else {
            // A pending allocation there may still be written, whatever its owner.
            if misplaced || awaited {
                self.move_extent(extent);
            }
        }
        self.moves.scan.as_mut().expect("as before").next.index += 1;
        true
    }

    /// Returns whether this owner's blocks on a member should be elsewhere.
    fn is_misplaced(&self, owner: OwnerId, member: u8) -> bool {
        let uses = || self.state.owners.get(owner).is_none_or(|owner| owner.allocation_members() >> member & 1 == 1);
        owner != 0 && (self.rooms[usize::from(member)].closed || !uses())
    }

    fn end_scan(&mut self) -> MoveStep {
        let scan = self.moves.scan.take().expect("a scan is under way");
        for (id, seen) in &scan.also {
            self.forget_members(*id, *seen);
        }
        // Another scan is needed if an owner could not be checked. On missing and damaged members no owner can be.
        let unseen = self.state.missing | self.state.damage.members();
        let checked = self.state.owners.iter().all(|owner| owner.also_on & !unseen == 0);
        match () {
            () if !self.moves.is_idle() => MoveStep::Some,
            () if scan.clean && checked => MoveStep::Done,
            () if scan.full => MoveStep::Full,
            () if scan.unreadable => MoveStep::Unreadable,
            () if scan.waits => MoveStep::Paused,
            () => MoveStep::Some,
        }
    }

    /// Records that, besides the members that it may use, an owner has blocks at most on the members `seen`.
    fn forget_members(&mut self, id: OwnerId, seen: u128) {
        let Some(slot) = self.state.owners.slot_of(id) else { return };
        let mut image = self.state.owners.in_slot(slot).expect("listed by its slot").clone();
        // A missing member cannot be checked, and one with damaged tables not wholly.
        let seen = seen | self.state.missing | self.state.damage.members();
        if image.also_on & !seen != 0 && self.log.has_room(8) {
            image.also_on &= seen;
            self.change(&[(0, slot, Change::Owner { owner: Some(image) })]);
        }
    }

    /// Moves a record of zeros to another member. False: it has to be retried.
    fn move_zeros(&mut self, id: RecordId) -> bool {
        let scan = self.moves.scan.as_mut().expect("a scan is under way");
        scan.clean = false;
        if !self.log.has_room(2) {
            self.commit_soon();
            return false;
        }
        let owner = self.state.record(id).owner;
        let Some(to) = self.state.free_zero_slot(owner) else {
            scan.full = true;
            return true;
        };
        let record = Record { life: self.state.record(to).life, ..self.state.record(id) };
        let free = Record::free(0);
        self.change(&[
            (to.member, to.index, Change::Record { record }),
            (id.member, id.index, Change::Record { record: free }),
        ]);
        true
    }

    /// Begins to move all of an extent.
    fn move_extent(&mut self, extent: ExtentId) {
        let scan = self.moves.scan.as_mut().expect("a scan is under way");
        scan.clean = false;
        let record = self.state.record(extent.into());
        let held = self.state.records.owner(extent) & OWNER_HELD != 0;
        if self.state.damage.has_slots(extent.into()) {
            // Which blocks some of its slots hold is unknown: it stays until the damage is accepted.
            self.moves.scan.as_mut().expect("as before").unreadable = true;
            return;
        }
        if held || self.is_pending(extent) || record.kind == RecordKind::Free {
            return;
        }
        if self.moves.failed.contains(&extent) {
            self.moves.scan.as_mut().expect("as before").unreadable = true;
            return;
        }
        if self.open_packed.get(&record.owner).is_some_and(|open| open.extent == extent) {
            return self.close_packed(record.owner);
        }
        if record.present | record.zero == 0 {
            return self.free_if_empty(extent);
        }
        let Some(target) = self.take_extent(record.owner, None) else {
            self.moves.scan.as_mut().expect("as before").full = true;
            return;
        };
        let packed = record.kind == RecordKind::Packed;
        let addresses = self.state.addresses(extent.into());
        let block = |slot: u8| match addresses {
            Some(addresses) if packed => addresses.0[usize::from(slot)],
            _ => u64::from(record.logical) * u64::from(EXTENT_BLOCKS) + u64::from(slot),
        };
        let slots = (0..EXTENT_BLOCKS as u8).filter(|slot| record.present >> slot & 1 == 1);
        let parts = slots.map(|slot| Part { from: extent, slot, to_slot: slot, block: block(slot) }).collect();
        let sources = vec![(extent, record.life)];
        let logical = (!packed).then_some(record.logical);
        self.begin_move(Move::new(target, logical, sources, parts));
    }

    pub(super) fn begin_move(&mut self, one: Move) {
        for (source, _) in &one.sources {
            let owner = self.state.records.owner(*source);
            self.state.records.set_owner(*source, owner | OWNER_HELD);
        }
        let free = self.moves.list.iter_mut().find(|entry| entry.is_none());
        *free.expect("checked that a move can begin") = Some(one);
    }

    /// Returns the next copy that a move needs.
    pub(super) fn copy_io(&mut self) -> Option<PoolIo> {
        if self.moves.in_flight >= COPIES_MAX || self.commits.is_failed() {
            return None;
        }
        for number in 0..MOVES_MAX {
            let Some(one) = &mut self.moves.list[number] else { continue };
            let Stage::Copying(at) = one.stage else { continue };
            if at == one.parts.len() || one.failed {
                continue;
            }
            let first = one.parts[at];
            let follows = |(k, part): (u8, &Part)| {
                part.from == first.from && part.slot == first.slot + k && part.to_slot == first.to_slot + k
            };
            let run = (0..).zip(&one.parts[at..]).take(COPY_BLOCKS_MAX).take_while(|pair| follows(*pair)).count();
            one.stage = Stage::Copying(at + run);
            one.in_flight += 1;
            let target = one.target;
            self.moves.in_flight += 1;
            let from_offset = self.extent_offset(first.from) + u64::from(first.slot) * BLOCK_BYTES;
            let offset = self.extent_offset(target) + u64::from(first.to_slot) * BLOCK_BYTES;
            let token = self.commits.take_io(IoPurpose::Copy { number: number as u8 }, None).expect("seen to be free");
            let op = PoolOp::Copy { from_member: first.from.member, from_offset };
            return Some(PoolIo { token, member: target.member, op, offset, len: run as u64 * BLOCK_BYTES });
        }
        None
    }

    /// A copy has ended.
    pub(super) fn copied(&mut self, number: u8, succeeded: bool) {
        self.moves.in_flight -= 1;
        let one = self.moves.list[usize::from(number)].as_mut().expect("a move with copies in flight");
        one.in_flight -= 1;
        one.failed |= !succeeded;
    }

    /// Notes whether a request hangs for which every barrier waits. A request that waits for a move would hang, too: so
    /// all moves are given up, and none begins.
    pub fn note_hanging_request(&mut self, hang: bool) {
        self.moves.hang = hang;
    }

    /// Gives up moves because a request hangs. Copies for flattening are kept, so as not to be made twice; a request
    /// that waits for one waits on.
    fn give_moves_up(&mut self) {
        for number in 0..MOVES_MAX {
            let is_copied = |one: &Move| one.in_flight == 0 && one.stage == Stage::Copying(one.parts.len());
            let gives_up = |one: &mut Move| one.recipient.is_none() && !one.sources.is_empty() && !is_copied(one);
            let Some(mut one) = self.moves.list[number].take_if(gives_up) else { continue };
            if one.in_flight == 0 {
                self.cancel_move(&one);
            } else {
                // Its target cannot be reused until the copies in flight have ended.
                self.release_move(&one);
                one.sources.clear();
                one.failed = true;
                self.moves.list[number] = Some(one);
            }
        }
    }

    /// Ends moves whose blocks have been copied.
    pub(super) fn end_moves(&mut self) {
        if self.moves.hang {
            self.give_moves_up();
        }
        for number in 0..MOVES_MAX {
            let ended = |one: &Move| match one.stage {
                Stage::Copying(at) => one.in_flight == 0 && (one.failed || at == one.parts.len()),
                _ => false,
            };
            // If nothing is committed any longer, nothing moves, and no request is kept waiting.
            let failed = self.commits.is_failed();
            let ends = |one: &Move| if failed { one.in_flight == 0 } else { ended(one) };
            if let Some(one) = self.moves.list[number].take_if(|one| ends(one)) {
                if failed {
                    self.cancel_move(&one);
                } else {
                    self.moves.list[number] = self.end_move(one);
                }
            }
        }
    }

    /// Ends a move, all of which was copied: the blocks are at their new locations from now on. Returns it if it has to
    /// wait.
    fn end_move(&mut self, one: Move) -> Option<Move> {
        if one.recipient.is_some() {
            return self.end_copy(one);
        }
        if one.failed {
            self.note_unreadable(&one);
            self.cancel_move(&one);
            return None;
        }
        // A merge scans extents by index. If blocks moved from an extent that it has not reached to one that it has
        // passed, it would miss them.
        let merging = |pool: &Pool, source: ExtentId| {
            let owner = pool.state.records.owner(source) & !OWNER_HELD;
            pool.merge.as_ref().is_some_and(|merge| owner != 0 && merge.owner() == owner)
        };
        let has_to_wait = |(source, _): &(ExtentId, u16)| {
            let owner = self.state.records.owner(*source) & !OWNER_HELD;
            self.is_being_mapped(owner)
                || merging(self, *source) && self.merge.as_ref().is_some_and(Merge::is_gathering)
        };
        if one.sources.iter().any(has_to_wait) {
            return Some(one);
        }
        for (source, _) in &one.sources {
            if merging(self, *source) {
                if !self.log.has_room(16) {
                    return self.defer_end(one);
                }
                self.merge_extent(*source);
            }
        }
        let Some((owner, changes, own, freed)) = self.move_changes(&one) else {
            self.cancel_move(&one);
            return None;
        };
        if !self.log.has_room(changes.len() as u64) {
            return self.defer_end(one);
        }
        let before = self.log.published();
        let sequence = self.log.append(&changes);
        self.apply_changes(&changes[..own], before);
        self.shared.published.store(sequence, std::sync::atomic::Ordering::Release);
        self.update_maps(&one, |_| true);
        // Only now that no map follows these records any longer.
        self.apply_changes(&changes[own..], before + own as u64);
        self.moves.moved += self.state.record(one.target.into()).present.count_ones() as u64;
        debug_assert_eq!(self.state.records.owner(one.target), owner);
        if one.sources.len() > 1 {
            *if one.packed { &mut self.moves.repacked } else { &mut self.moves.gathered } += 1;
        }
        self.note_arrival(owner, one.target);
        self.release_move(&one);
        for extent in freed {
            self.rooms[usize::from(extent.member)].freed.add(sequence, extent);
        }
        None
    }

    /// Notes that blocks of this owner arrived in this extent. The member may have been closed since the move began,
    /// and the scan may have passed the extent: then the scan is not clean.
    pub(super) fn note_arrival(&mut self, owner: OwnerId, target: ExtentId) {
        if self.is_misplaced(owner, target.member)
            && let Some(scan) = &mut self.moves.scan
        {
            scan.clean = false;
        }
    }

    pub(super) fn note_unreadable(&mut self, one: &Move) {
        self.moves.failed.extend(one.sources.iter().map(|(source, _)| *source));
    }

    /// Returns the owner of the blocks of a move; the changes, first those of the target (how many is the third value),
    /// then those of the sources; and the sources that become free. `None`: nothing is left to move.
    #[expect(clippy::type_complexity, reason = "it is taken apart where it is made")]
    fn move_changes(&self, one: &Move) -> Option<(OwnerId, Vec<(u8, u32, Change)>, usize, Vec<ExtentId>)> {
        let now = |(source, life): &(ExtentId, u16)| {
            let record = self.state.record((*source).into());
            (record.life == *life && record.kind != RecordKind::Free).then_some((*source, record))
        };
        let mut left: Vec<(ExtentId, Record)> = one.sources.iter().filter_map(now).collect();
        let owner = left.first()?.1.owner;
        debug_assert!(left.iter().all(|(_, record)| record.owner == owner), "a merge covers all of them or none");
        let life = self.state.record(one.target.into()).life.wrapping_add(1);
        let (kind, logical) =
            if one.packed { (RecordKind::Packed, u32::MAX) } else { (RecordKind::Whole, one.logical) };
        let mut record = Record { kind, life, owner, logical, present: 0, zero: 0 };
        let (member, index) = (one.target.member, one.target.index);
        let mut changes = Vec::new();
        for part in &one.parts {
            // Since the move began, the block may have been discarded, or dropped by a merge.
            let Some((_, source)) = left.iter_mut().find(|(extent, _)| *extent == part.from) else { continue };
            if source.present >> part.slot & 1 == 0 {
                continue;
            }
            source.present &= !(1 << part.slot);
            record.present |= 1 << part.to_slot;
            if one.packed {
                changes.push((member, index, Change::Slot { slot: part.to_slot, block: part.block, record }));
            }
        }
        if !one.packed {
            for (_, source) in left.iter_mut().filter(|(_, source)| source.kind == RecordKind::Whole) {
                record.zero |= std::mem::take(&mut source.zero);
            }
            record.zero &= !record.present;
            changes.push((member, index, Change::Record { record }));
        }
        if record.present | record.zero == 0 {
            return None;
        }
        let own = changes.len();
        let mut freed = Vec::new();
        for (extent, mut record) in left {
            if record.present | record.zero == 0 {
                record = Record::free(record.life);
                freed.push(extent);
            }
            changes.push((extent.member, extent.index, Change::Record { record }));
        }
        Some((owner, changes, own, freed))
    }

    /// Updates the maps of volumes whose owners `shows` accepts: they show moved blocks at their new locations.
    pub(super) fn update_maps(&mut self, one: &Move, mut shows: impl FnMut(OwnerId) -> bool) {
        let record = self.state.record(one.target.into());
        let mut moved: Vec<(u32, MovedBlock)> = Vec::with_capacity(one.parts.len());
        for part in one.parts.iter().filter(|part| record.present >> part.to_slot & 1 == 1) {
            let (logical, block) = ((part.block / u64::from(EXTENT_BLOCKS)) as u32, (part.block % 64) as u8);
            moved.push((logical, MovedBlock { block, from: (part.from, part.slot), to_slot: part.to_slot }));
        }
        moved.sort_unstable_by_key(|(logical, moved)| (*logical, moved.block));
        // The owner of a copy may hide some of it; a word that follows the record would show it.
        let follow = one.recipient.is_none();
        let records = &self.state.records;
        let update = |writer: &mut MapWriter| {
            for blocks in moved.chunk_by(|a, b| a.0 == b.0) {
                let each = blocks.iter().map(|(_, moved)| *moved);
                writer.relocate(records, blocks[0].0, each, (one.target, one.packed), follow);
            }
        };
        let served = self.volumes.values_mut().filter(|volume| shows(volume.owner)).map(|volume| &mut volume.writer);
        // A copy leaves what shows through the parent as it was.
        let below = self.flatten.as_mut().and_then(Flatten::below).filter(|_| one.recipient.is_none());
        served.chain(below).for_each(update);
    }

    /// Cancels a move: everything stays where it is.
    pub(super) fn cancel_move(&mut self, one: &Move) {
        self.release_move(one);
        if one.own_life.is_none() {
            self.rooms[usize::from(one.target.member)].freed.add(0, one.target);
        }
    }

    pub(super) fn release_move(&mut self, one: &Move) {
        if let Some((owner, logical)) = one.opened_extent() {
            self.state.reserves.remove_whole(owner, logical);
        }
        for (source, life) in &one.sources {
            // Several copies may have the same source.
            let more = self.moves.list.iter().flatten().any(|other| other.has_source(*source));
            if self.state.records.life(*source) == *life && !more {
                let owner = self.state.records.owner(*source);
                self.state.records.set_owner(*source, owner & !OWNER_HELD);
            }
        }
        if one.own_life.is_some() {
            self.release_extent(one.target);
        }
        self.progress += 1;
    }
}
