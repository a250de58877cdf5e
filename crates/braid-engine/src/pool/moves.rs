//! Moves: blocks go to other places while their volumes are used.
//!
//! The extents that are to be left are *held*: nobody writes there any more without asking the home, and who asks waits. When everybody
//! who may have begun before has ended, the blocks are copied; then one group of entries says where they are now and that the
//! old places are free, the maps are told, and who waited goes on. Until that group counts nothing has moved.
//!
//! What is to be moved is not remembered anywhere: it is what stands where it should not ([`Pool::move_step`]), so that a start goes on
//! by itself where the last session has ended.

use std::collections::{BTreeMap, BTreeSet};

use braid_format::pool::{Change, Owner, Placing, Record, RecordKind};

use super::admin::AdminError;
use super::commit::{For, PoolIo, PoolOp};
use super::flatten::Flatten;
use super::fold::Fold;
use super::home::Pool;
use super::jobs::Waiting;
use super::map::{MapWriter, MovedBlock};
use super::one_move::{Move, Part, Stage};
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::state::RecordId;
use super::units::{BLOCK_BYTES, EXTENT_BLOCKS, ExtentId};
use crate::planted::{Planted, planted};

/// Moves that are under way at a time: so many extents are held.
const MOVES_MAX: usize = 16;
/// Copies that are out at a time.
const COPIES_MAX: u32 = 16;
/// Blocks that one copy takes at most.
const COPY_BLOCKS_MAX: usize = 16;

/// What a step of moving came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moving {
    /// Everything has been looked at, and all stands where it should.
    Done,
    /// Something was done, or is under way.
    Some,
    /// There is something to move, and no space where it may go.
    Full,
    /// There is something that could not be copied; nothing else is to be done.
    Unreadable,
    /// What else there is to move is held back ([`Pool::hold_moves`]).
    Waits,
}

/// All moves of a pool.
#[derive(Default)]
pub(super) struct Moves {
    list: [Option<Move>; MOVES_MAX],
    out: u32,
    /// Whatever could not be copied.
    failed: BTreeSet<ExtentId>,
    pub waiting: Waiting,
    /// Requests hang that a barrier waits for.
    hang: bool,
    scan: Option<Scan>,
    /// Blocks that have moved.
    moved: u64,
    /// Extents into which what was scattered was put together: whole, and packed ones.
    pub gathered: u64,
    pub merged: u64,
}

/// A look at all records.
struct Scan {
    next: RecordId,
    /// Whether nothing was found that should not stand where it does.
    clean: bool,
    full: bool,
    unreadable: bool,
    waits: bool,
    /// Owners that may have blocks where they should not, and where some have been seen.
    also: BTreeMap<OwnerId, u128>,
}

impl Moves {
    /// Extents to which something is moved.
    pub fn is_target(&self, extent: ExtentId) -> bool {
        self.list.iter().flatten().any(|one| one.target == extent)
    }

    /// Whether something is being copied for this owner.
    pub fn copies_for(&self, owner: OwnerId) -> bool {
        self.list.iter().flatten().any(|one| one.taker == Some(owner))
    }

    /// Owners and their logical extents for which copies go to extents of their own.
    pub fn copied_to(&self) -> impl Iterator<Item = (OwnerId, u32)> + '_ {
        self.list.iter().flatten().filter_map(Move::opens)
    }

    /// Whether what stands in this extent is on its way to another.
    pub fn moves_away(&self, extent: ExtentId) -> bool {
        self.list.iter().flatten().any(|one| one.taker.is_none() && one.has_source(extent))
    }

    /// Whether it could not be copied.
    pub fn has_failed(&self, extent: ExtentId) -> bool {
        self.failed.contains(&extent)
    }

    /// Whether another one can begin.
    pub fn has_place(&self) -> bool {
        !self.hang && self.list.iter().any(Option::is_none)
    }

    /// Whether none is under way.
    pub fn is_idle(&self) -> bool {
        self.list.iter().all(Option::is_none)
    }

    /// A barrier begins: true where it would help a move.
    pub fn begin_drain(&mut self) -> bool {
        let mut any = false;
        for one in self.list.iter_mut().flatten().filter(|one| one.stage == Stage::Held) {
            one.stage = if planted(Planted::MoveNotDrained) { Stage::Copying(0) } else { Stage::Draining };
            any = true;
        }
        any
    }

    /// The barrier has ended.
    pub fn drained(&mut self) {
        for one in self.list.iter_mut().flatten().filter(|one| one.stage == Stage::Draining) {
            one.stage = Stage::Copying(0);
        }
    }

    /// Something is to stand elsewhere from now on: what was seen says nothing.
    pub fn begin_anew(&mut self) {
        self.scan = None;
    }

    /// This owner may get blocks anywhere from now on: what a scan has seen of it says nothing.
    pub fn takes_over(&mut self, owner: OwnerId) {
        if let Some(scan) = &mut self.scan {
            scan.also.remove(&owner);
        }
    }
}

impl Pool {
    /// Nothing new goes to this member, and what stands there is to be moved away; or it is used again.
    pub fn close_member(&mut self, member: u8, closed: bool) {
        self.rooms[usize::from(member)].closed = closed;
        self.state.close_member(member, closed);
        // Whoever fills an extent there begins another one.
        let open: Vec<OwnerId> =
            self.open_packed.iter().filter(|(_, open)| open.extent.member == member).map(|(owner, _)| *owner).collect();
        open.into_iter().for_each(|owner| self.close_packed(owner));
        self.moves.begin_anew();
        // A checkpoint that was made for it says nothing of what comes there from now on.
        if self.commits.leaving.is_some_and(|(leaving, _)| leaving == member) {
            self.commits.leaving = None;
        }
    }

    /// Whether nothing stands on a member, nothing is on its way there, and all of that is committed.
    pub fn is_member_empty(&self, member: u8) -> bool {
        let (room, extents) = (&self.rooms[usize::from(member)], self.state.records.extents(member));
        room.free.count() == extents && self.state.free_zero_slots_of(member) == self.state.zero_slots(member)
    }

    /// The member that has most free extents of those that take new ones.
    pub fn member_with_most_space(&self) -> Option<u8> {
        let open = (0u8..).zip(&self.rooms).filter(|(_, room)| !room.closed && room.free.count() > 0);
        open.max_by_key(|(member, room)| (room.free.count(), u8::MAX - member)).map(|(member, _)| member)
    }

    /// Places an owner, of any kind, otherwise. What it has elsewhere is to be moved ([`Pool::move_step`]).
    ///
    /// # Errors
    /// `NoSuch`; `TailFull`; `InDoubt`: it would be on a member that is absent.
    pub fn place_owner(&mut self, id: OwnerId, place: Placing, on: u128) -> Result<(), AdminError> {
        let slot = self.state.owners.slot_of(id).ok_or(AdminError::NoSuch)?;
        let old = self.state.owners.in_slot(slot).expect("listed by its slot").clone();
        if (old.place, old.on) == (place, on) {
            return Ok(());
        }
        if self.state.damage.has_owner(id) {
            return Err(AdminError::Damaged);
        }
        // One more for the packed extent that is closed.
        if !self.has_room_for_order(6) {
            return Err(AdminError::TailFull);
        }
        // What it has stays where it is until it has been moved.
        let also_on = if place == Placing::Spread { 0 } else { old.may_be_on() & !on };
        let image = Owner { place, on, also_on, ..old.clone() };
        if !image.is_sound() {
            return Err(AdminError::NoNumber);
        }
        if image.may_be_on() & !old.may_be_on() & self.state.absent != 0 {
            return Err(AdminError::InDoubt);
        }
        let kept = self.reserves_altered(&old, &image)?;
        self.close_packed(id);
        self.moves.begin_anew();
        self.change(&[(0, slot, Change::Owner { owner: Some(image) })]);
        self.keep(kept);
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

    /// What could not be copied is tried again.
    pub fn retry_moves(&mut self) {
        self.moves.failed.clear();
    }

    /// Looks at up to `records` records, and begins to move what stands where it should not: on a member that is closed, or on one that its
    /// owner is not to use. The copying goes on by itself, by [`Pool::next_io`] and barriers.
    pub fn move_step(&mut self, records: u32) -> Moving {
        if self.commits.is_failed() || self.is_starving() {
            return Moving::Some;
        }
        for _ in 0..records {
            if !self.moves.has_place() {
                break;
            }
            if self.moves.scan.is_none() {
                self.begin_scan();
            }
            if !self.look_at_next() {
                return self.end_scan();
            }
        }
        Moving::Some
    }

    fn begin_scan(&mut self) {
        let elsewhere = self.state.owners.iter().filter(|owner| owner.also_on != 0);
        // Of one whose data are out, or move, or that takes over what another one has, nothing is certain.
        let takes_over = |id: OwnerId| self.fold.as_ref().is_some_and(|fold| fold.child() == Some(id));
        let sources = || self.moves.list.iter().flatten().flat_map(|one| &one.sources);
        let moves = |id: OwnerId| sources().any(|(source, _)| self.state.records.owner(*source) & !OWNER_HELD == id);
        let settled =
            elsewhere.filter(|owner| !self.awaits_data(owner.id) && !takes_over(owner.id) && !moves(owner.id));
        let settled = settled.filter(|owner| !self.moves.copies_for(owner.id));
        let also = settled.map(|owner| (owner.id, 0)).collect();
        let next = RecordId { member: 0, index: 0 };
        self.moves.scan = Some(Scan { next, clean: true, full: false, unreadable: false, waits: false, also });
    }

    /// False: there is no further record.
    fn look_at_next(&mut self) -> bool {
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
        if (misplaced || awaited) && self.moves.waiting.waits(owner, id.member, closed) {
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
            // A place that is promised there is used yet, whoever was to have it.
            if misplaced || awaited {
                self.move_extent(extent);
            }
        }
        self.moves.scan.as_mut().expect("as before").next.index += 1;
        true
    }

    /// Whether what this owner has on a member should stand elsewhere.
    fn is_misplaced(&self, owner: OwnerId, member: u8) -> bool {
        let uses = || self.state.owners.get(owner).is_none_or(|owner| owner.uses() >> member & 1 == 1);
        owner != 0 && (self.rooms[usize::from(member)].closed || !uses())
    }

    fn end_scan(&mut self) -> Moving {
        let scan = self.moves.scan.take().expect("a scan is under way");
        for (id, seen) in &scan.also {
            self.forget_members(*id, *seen);
        }
        // Another look is needed where somebody could not be judged; of these members nobody can be.
        let unseen = self.state.absent | self.state.damage.members();
        let judged = self.state.owners.iter().all(|owner| owner.also_on & !unseen == 0);
        match () {
            () if !self.moves.is_idle() => Moving::Some,
            () if scan.clean && judged => Moving::Done,
            () if scan.full => Moving::Full,
            () if scan.unreadable => Moving::Unreadable,
            () if scan.waits => Moving::Waits,
            () => Moving::Some,
        }
    }

    /// An owner has nothing on other members than these any more, apart from those that it uses.
    fn forget_members(&mut self, id: OwnerId, seen: u128) {
        let Some(slot) = self.state.owners.slot_of(id) else { return };
        let mut image = self.state.owners.in_slot(slot).expect("listed by its slot").clone();
        // Of a member that is absent nothing can be seen, and not all of one whose tables are damaged.
        let seen = seen | self.state.absent | self.state.damage.members();
        if image.also_on & !seen != 0 && self.tail.has_room(8) {
            image.also_on &= seen;
            self.change(&[(0, slot, Change::Owner { owner: Some(image) })]);
        }
    }

    /// A record of zeros goes to another member. False: it has to be tried again.
    fn move_zeros(&mut self, id: RecordId) -> bool {
        let scan = self.moves.scan.as_mut().expect("a scan is under way");
        scan.clean = false;
        if !self.tail.has_room(2) {
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
            // Of whom its blocks are nobody knows: it stays until that is decided.
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
            if !planted(Planted::MoveNotHeld) {
                self.state.records.set_owner(*source, owner | OWNER_HELD);
            }
        }
        let free = self.moves.list.iter_mut().find(|place| place.is_none());
        *free.expect("seen that there is a place") = Some(one);
    }

    /// The next copy that a move wants done.
    pub(super) fn copy_io(&mut self) -> Option<PoolIo> {
        if self.moves.out >= COPIES_MAX || self.commits.is_failed() {
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
            one.out += 1;
            let target = one.target;
            self.moves.out += 1;
            let from_offset = self.extent_offset(first.from) + u64::from(first.slot) * BLOCK_BYTES;
            let offset = self.extent_offset(target) + u64::from(first.to_slot) * BLOCK_BYTES;
            let token = self.commits.take_io(For::Copy { number: number as u8 }, None).expect("seen to be free");
            let op = PoolOp::Copy { from_member: first.from.member, from_offset };
            return Some(PoolIo { token, member: target.member, op, offset, len: run as u64 * BLOCK_BYTES });
        }
        None
    }

    /// A copy has ended.
    pub(super) fn copied(&mut self, number: u8, succeeded: bool) {
        self.moves.out -= 1;
        let one = self.moves.list[usize::from(number)].as_mut().expect("a move whose copies are out");
        one.out -= 1;
        one.failed |= !succeeded;
    }

    /// Something hangs that every barrier waits for, or does not any more. Who waits for a move would wait as long as it hangs: all are given
    /// up, and none begins.
    pub fn note_hanging(&mut self, hang: bool) {
        self.moves.hang = hang && !planted(Planted::MoveHeldByHanging);
    }

    /// Gives moves up, whatever hangs. What is copied for somebody who is flattened is not copied twice: it stays, and so does who waits for that.
    fn give_moves_up(&mut self) {
        for number in 0..MOVES_MAX {
            let is_copied = |one: &Move| one.out == 0 && one.stage == Stage::Copying(one.parts.len());
            let gives_up = |one: &mut Move| one.taker.is_none() && !one.sources.is_empty() && !is_copied(one);
            let Some(mut one) = self.moves.list[number].take_if(gives_up) else { continue };
            if one.out == 0 {
                self.drop_move(&one);
            } else {
                // Its target is nobody else's until what is on its way there has come.
                self.let_go(&one);
                one.sources.clear();
                one.failed = true;
                self.moves.list[number] = Some(one);
            }
        }
    }

    /// Ends those moves whose blocks have been copied.
    pub(super) fn end_moves(&mut self) {
        if self.moves.hang {
            self.give_moves_up();
        }
        for number in 0..MOVES_MAX {
            let ended = |one: &Move| match one.stage {
                Stage::Copying(at) => one.out == 0 && (one.failed || at == one.parts.len()),
                _ => false,
            };
            // Where nothing is committed any more nothing moves, and nobody is kept waiting.
            let failed = self.commits.is_failed();
            let ends = |one: &Move| if failed { one.out == 0 } else { ended(one) };
            if let Some(one) = self.moves.list[number].take_if(|one| ends(one)) {
                if failed {
                    self.drop_move(&one);
                } else {
                    self.moves.list[number] = self.end_move(one);
                }
            }
        }
    }

    /// Everything has been copied: that is what counts from now on. Gives the move back where the tail has no room to say so.
    fn end_move(&mut self, one: Move) -> Option<Move> {
        if one.taker.is_some() {
            return self.end_copy(one);
        }
        if one.failed {
            self.note_unreadable(&one);
            self.drop_move(&one);
            return None;
        }
        // What a fold has not come to by its number would never be folded under another one.
        let folds = |pool: &Pool, source: ExtentId| {
            let owner = pool.state.records.owner(source) & !OWNER_HELD;
            pool.fold.as_ref().is_some_and(|fold| owner != 0 && fold.owner() == owner)
        };
        let has_to_wait = |(source, _): &(ExtentId, u16)| {
            let owner = self.state.records.owner(*source) & !OWNER_HELD;
            self.is_looked_at(owner) || folds(self, *source) && self.fold.as_ref().is_some_and(Fold::is_gathering)
        };
        if one.sources.iter().any(has_to_wait) {
            return Some(one);
        }
        for (source, _) in &one.sources {
            if folds(self, *source) && !planted(Planted::MoveOvertakesFold) {
                if !self.tail.has_room(16) {
                    return self.end_later(one);
                }
                self.fold_extent(*source);
            }
        }
        let Some((owner, changes, own, freed)) = self.move_changes(&one) else {
            self.drop_move(&one);
            return None;
        };
        if !self.tail.has_room(changes.len() as u64) {
            return self.end_later(one);
        }
        let before = self.tail.published();
        let sequence = self.tail.append(&changes);
        self.take_in(&changes[..own], before);
        self.shared.published.store(sequence, std::sync::atomic::Ordering::Release);
        self.tell_maps(&one, |_| true);
        // Only now that no map follows them any more.
        self.take_in(&changes[own..], before + own as u64);
        self.moves.moved += self.state.record(one.target.into()).present.count_ones() as u64;
        debug_assert_eq!(self.state.records.owner(one.target), owner);
        if one.sources.len() > 1 {
            *if one.packed { &mut self.moves.merged } else { &mut self.moves.gathered } += 1;
        }
        self.end_scan_for(owner, one.target);
        self.let_go(&one);
        for extent in freed {
            self.rooms[usize::from(extent.member)].freed.add(sequence, extent);
        }
        None
    }

    /// Something of this owner has come here. The member may have been closed since, and the scan have passed.
    pub(super) fn end_scan_for(&mut self, owner: OwnerId, target: ExtentId) {
        if self.is_misplaced(owner, target.member)
            && let Some(scan) = &mut self.moves.scan
        {
            scan.clean = false;
        }
    }

    pub(super) fn note_unreadable(&mut self, one: &Move) {
        self.moves.failed.extend(one.sources.iter().map(|(source, _)| *source));
    }

    /// Who has the blocks of a move now; what has to be said, first of the target (so many changes), then of the sources; and which of these
    /// are free by that. `None`: nothing is left that could be moved.
    #[expect(clippy::type_complexity, reason = "it is taken apart where it is made")]
    fn move_changes(&self, one: &Move) -> Option<(OwnerId, Vec<(u8, u32, Change)>, usize, Vec<ExtentId>)> {
        let now = |(source, life): &(ExtentId, u16)| {
            let record = self.state.record((*source).into());
            (record.life == *life && record.kind != RecordKind::Free).then_some((*source, record))
        };
        let mut left: Vec<(ExtentId, Record)> = one.sources.iter().filter_map(now).collect();
        let owner = left.first()?.1.owner;
        debug_assert!(left.iter().all(|(_, record)| record.owner == owner), "a fold is over all of them or none");
        let life = self.state.record(one.target.into()).life.wrapping_add(1);
        let (kind, logical) =
            if one.packed { (RecordKind::Packed, u32::MAX) } else { (RecordKind::Whole, one.logical) };
        let mut record = Record { kind, life, owner, logical, present: 0, zero: 0 };
        let (member, index) = (one.target.member, one.target.index);
        let mut changes = Vec::new();
        for part in &one.parts {
            // It may have been taken away, or be hidden, since.
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
            record.zero &= if planted(Planted::MoveLosesZeros) { 0 } else { !record.present };
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

    /// Who finds a block that has moved finds it where it is now: those owners whose blocks have moved.
    pub(super) fn tell_maps(&mut self, one: &Move, mut shows: impl FnMut(OwnerId) -> bool) {
        let record = self.state.record(one.target.into());
        let mut moved: Vec<(u32, MovedBlock)> = Vec::with_capacity(one.parts.len());
        for part in one.parts.iter().filter(|part| record.present >> part.to_slot & 1 == 1) {
            let (logical, block) = ((part.block / u64::from(EXTENT_BLOCKS)) as u32, (part.block % 64) as u8);
            moved.push((logical, MovedBlock { block, from: (part.from, part.slot), to_slot: part.to_slot }));
        }
        moved.sort_unstable_by_key(|(logical, moved)| (*logical, moved.block));
        // Whoever has a copy may hide some of it; the word of a map that follows a record would show it.
        let follow = one.taker.is_none();
        let records = &self.state.records;
        let tell = |writer: &mut MapWriter| {
            for blocks in moved.chunk_by(|a, b| a.0 == b.0) {
                let each = blocks.iter().map(|(_, moved)| *moved);
                writer.relocate(records, blocks[0].0, each, (one.target, one.packed), follow);
            }
        };
        let told = self.volumes.values_mut().filter(|volume| shows(volume.owner)).map(|volume| &mut volume.writer);
        let all = if planted(Planted::MoveForgetsMaps) && one.taker.is_none() { 1 } else { usize::MAX };
        // What is copied leaves what shows through the parent as it was.
        let below = self.flatten.as_mut().and_then(Flatten::below).filter(|_| one.taker.is_none());
        told.take(all).chain(below).for_each(tell);
    }

    /// It comes to nothing: everything stays where it is.
    pub(super) fn drop_move(&mut self, one: &Move) {
        self.let_go(one);
        if one.own_life.is_none() {
            self.rooms[usize::from(one.target.member)].freed.add(0, one.target);
        }
    }

    pub(super) fn let_go(&mut self, one: &Move) {
        if let Some((owner, logical)) = one.opens() {
            self.state.reserves.left(owner, logical);
        }
        for (source, life) in &one.sources {
            // Several copies may be made of what stands in one extent.
            let more = self.moves.list.iter().flatten().any(|other| other.has_source(*source));
            if self.state.records.life(*source) == *life && !more {
                let owner = self.state.records.owner(*source);
                self.state.records.set_owner(*source, owner & !OWNER_HELD);
            }
        }
        if one.own_life.is_some() && !planted(Planted::FlattenNotHeld) {
            self.release_place(one.target);
        }
        self.progress += 1;
    }
}
