//! Folding: what a deleted owner has goes to its only child, or is freed where it has none. No data move; records change their owner.
//!
//! What the child states itself is dropped in the same image. Records of zeros go last: until then they must not hide, in the child's name,
//! what the owner itself states above them. When nothing is left the child takes the owner's place below the owner's parent.

use braid_format::pool::{Change, Record, RecordKind};

use super::build::{Said, Scan};
use super::home::Pool;
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::state::RecordId;
use super::stated::Stated;
use super::units::ExtentId;
use crate::planted::{Planted, planted};

/// Of what is stated it does not matter where it stands.
const NOWHERE: ExtentId = ExtentId { member: 0, index: 0 };

/// So many loads of memory take about as long as to fold a record.
const LOADS_EACH: u32 = 16;

/// A fold that is under way.
pub(super) struct Fold {
    owner: OwnerId,
    child: Option<OwnerId>,
    /// What the child states, by logical extent: what it did when the fold began, and what it has said since.
    stated: Stated,
    /// As long as that is being gathered.
    gather: Option<Scan>,
    /// The next record to look at.
    next: RecordId,
    zeros: bool,
}

impl Fold {
    /// Whether it is not known yet what the child states.
    pub fn is_gathering(&self) -> bool {
        self.gather.is_some()
    }

    /// Whose records change hands.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Who gets them.
    pub fn child(&self) -> Option<OwnerId> {
        self.child
    }
}

/// What a step of folding came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Folded {
    /// There is nothing to do, or nothing yet: a deletion has to be committed first.
    Nothing,
    /// Something was done, and there may be more.
    Some,
    /// The tail is full: go on when something is committed.
    TailFull,
    /// A map is being built of what it would change: go on when it is.
    Later,
}

impl Pool {
    /// Does some of what deletions have left to do: looks at up to `records` records.
    pub fn fold_step(&mut self, records: u32) -> Folded {
        if self.fold.is_none() {
            match self.begin_fold() {
                Folded::Some => {}
                other => return other,
            }
        }
        let fold = self.fold.as_ref().expect("a fold is under way");
        if self.is_looked_at(fold.owner) || fold.child.is_some_and(|child| self.is_looked_at(child)) {
            return Folded::Later;
        }
        for _ in 0..self.gather(records) {
            // A record may be freed, or freed with a record of zeros in its place.
            if !self.tail.has_room(16) {
                return Folded::TailFull;
            }
            if !self.fold_one() {
                return Folded::Some;
            }
        }
        Folded::Some
    }

    /// Begins with one that can be folded, if there is one.
    fn begin_fold(&mut self) -> Folded {
        let committed = self.commits.committed;
        self.deleted.retain(|(sequence, _)| *sequence > committed);
        let owners = &self.state.owners;
        self.ended.retain(|id| owners.is_newest(*id));
        let waits = |id: OwnerId| self.deleted.iter().any(|(_, deleted)| *deleted == id);
        // Data that are on their way to an owner's places would be bound behind the fold's back. Copies go into extents that it has, which
        // would be given to others under them.
        let copies = |id: OwnerId| self.moves.copies_for(id) && !planted(Planted::FoldUnderCopies);
        let promised = |id: OwnerId| self.awaits_data(id) || copies(id);
        // What an absent member has of either nobody sees: it would be lost, or stated twice.
        let state = &self.state;
        let lacks = |id: OwnerId| {
            let child = state.owners.children(id).first().copied();
            (state.may_lack(id) || child.is_some_and(|child| state.may_lack(child)))
                && !planted(Planted::FoldWhileAbsent)
        };
        let ends = |id: &OwnerId| !waits(*id) && !self.ended.contains(id) && !promised(*id) && !lacks(*id);
        let Some(owner) = self.state.owners.to_fold().find(ends) else { return Folded::Nothing };
        let child = self.state.owners.children(owner).first().copied();
        let mut stated = Stated::new(0);
        if let Some(child) = child {
            if !self.will_have_blocks_of(child, owner) {
                return Folded::TailFull;
            }
            let size = self.state.owners.get(child).map_or(0, |owner| owner.size_bytes);
            let own_size = self.state.owners.get(owner).map_or(0, |owner| owner.size_bytes);
            stated = Stated::new(super::admin::extents_for(size.max(own_size)));
            self.moves.takes_over(child);
        }
        self.fold_meets_flatten(owner);
        let gather = child.map(Scan::new);
        self.fold = Some(Fold { owner, child, stated, gather, next: RecordId { member: 0, index: 0 }, zeros: false });
        Folded::Some
    }

    /// Goes on gathering what the child states, in so many steps. Returns how many are left.
    fn gather(&mut self, steps: u32) -> u32 {
        let fold = self.fold.as_mut().expect("a fold is under way");
        let Some(gather) = &mut fold.gather else { return steps };
        let stated = &mut fold.stated;
        let mut loads = steps.saturating_mul(LOADS_EACH);
        if !gather.step(&self.state, &mut loads, |said| stated.add(&said)) {
            return 0;
        }
        fold.gather = None;
        loads / LOADS_EACH
    }

    /// A record changes: what it states for the child of the fold may move from one that is still to be looked at to one that was.
    pub(super) fn note_for_fold(&mut self, change: &Change) {
        let Some(fold) = self.fold.as_mut().filter(|fold| fold.gather.is_some()) else { return };
        let (said, owner) = match change {
            Change::Record { record } if record.kind == RecordKind::Whole => {
                (Said::Whole(NOWHERE, record.logical, record.present, record.zero), record.owner)
            }
            Change::Record { record } if record.kind == RecordKind::Zeros => {
                (Said::Zeros(record.logical, record.present, record.zero), record.owner)
            }
            Change::Slot { slot, block, record } => (Said::Slot(NOWHERE, *slot, *block), record.owner),
            _ => return,
        };
        if fold.child == Some(owner) {
            fold.stated.add(&said);
        }
    }

    /// Says of the child that it may have blocks where this owner may. False: the tail has no room to say so.
    fn will_have_blocks_of(&mut self, child: OwnerId, owner: OwnerId) -> bool {
        let owners = &self.state.owners;
        let slot = owners.slot_of(child).expect("a child is there");
        let mut image = owners.in_slot(slot).expect("listed by its slot").clone();
        let of = owners.get(owner).map_or(0, |owner| owner.may_be_on());
        if of & !image.may_be_on() == 0 {
            return true;
        }
        if !self.tail.has_room(8) {
            return false;
        }
        image.also_on |= of & !image.on;
        self.change(&[(0, slot, Change::Owner { owner: Some(image) })]);
        true
    }

    /// Works on the next record. False: there is none, and the fold has ended, or has to wait.
    fn fold_one(&mut self) -> bool {
        let fold = self.fold.as_mut().expect("a fold is under way");
        let (owner, id) = (fold.owner, fold.next);
        if fold.zeros || planted(Planted::FoldZerosFirst) && self.state.zeros_of(owner).next().is_some() {
            return self.fold_zeros();
        }
        if usize::from(id.member) == self.rooms.len() {
            fold.zeros = true;
            return true;
        }
        if id.index == self.state.records.extents(id.member) {
            fold.next = RecordId { member: id.member + 1, index: 0 };
            return true;
        }
        fold.next.index += 1;
        let extent = ExtentId { member: id.member, index: id.index };
        if self.state.records.owner(extent) & !OWNER_HELD != owner {
            return true;
        }
        self.fold_extent(extent);
        true
    }

    pub(super) fn fold_extent(&mut self, extent: ExtentId) {
        let fold = self.fold.as_ref().expect("a fold is under way");
        let id = RecordId::from(extent);
        let mut record = self.state.record(id);
        let Some(child) = fold.child else {
            let changes = [(id.member, id.index, Change::Record { record: Record::free(record.life) })];
            let sequence = self.change(&changes);
            self.rooms[usize::from(id.member)].freed.add(sequence, extent);
            return;
        };
        let mut changes = Vec::with_capacity(2);
        let stated = |fold: &Fold, logical: u32| match planted(Planted::FoldForgetsChild) {
            true => 0,
            false => fold.stated.get(logical).unwrap_or(0),
        };
        match record.kind {
            RecordKind::Packed => {
                let addresses = self.state.addresses(id).expect("a packed extent has addresses");
                let present = record.present;
                for slot in (0..64).filter(|slot| present >> slot & 1 == 1) {
                    let block = addresses.0[slot as usize];
                    if stated(fold, (block / 64) as u32) >> (block % 64) & 1 == 1 {
                        record.present &= !(1u64 << slot);
                    }
                }
            }
            _ => {
                let mut hidden = stated(fold, record.logical);
                if planted(Planted::FoldLosesOlder) && hidden & record.present != 0 {
                    hidden = u64::MAX;
                }
                record.present &= !hidden;
                record.zero &= !hidden;
            }
        }
        record.owner = child;
        let below = self.state.owners.get(fold.owner).is_some_and(|owner| owner.parent != 0);
        if !below {
            // Nothing is left that zeros would hide.
            record.zero = 0;
        }
        let mut freed = false;
        if record.present == 0 {
            let zero = record.zero;
            let slot = if zero == 0 { None } else { self.state.free_zero_slot(child) };
            if zero == 0 || slot.is_some() {
                if let Some(slot) = slot {
                    let life = self.state.record(slot).life;
                    let zeros = Record {
                        kind: RecordKind::Zeros,
                        life,
                        owner: child,
                        logical: record.logical,
                        present: 1,
                        zero,
                    };
                    changes.push((slot.member, slot.index, Change::Record { record: zeros }));
                }
                record = Record::free(record.life);
                freed = true;
            }
        }
        changes.push((id.member, id.index, Change::Record { record }));
        let sequence = self.change(&changes);
        if freed {
            self.rooms[usize::from(id.member)].freed.add(sequence, extent);
        }
    }

    /// An owner states these blocks from now on: where it is the child of a fold, that has to know. Also of one that is frozen by now, and
    /// whose last writes were still on their way.
    pub(super) fn note_stated(&mut self, owner: OwnerId, logical: u32, bits: u64) {
        if let Some(fold) = self.fold.as_mut().filter(|fold| fold.child == Some(owner)) {
            fold.stated.add_blocks(logical, bits);
        }
    }

    /// The same of all blocks of so many logical extents.
    pub(super) fn note_stated_extents(&mut self, owner: OwnerId, logical: u32, count: u32) {
        if let Some(fold) = self.fold.as_mut().filter(|fold| fold.child == Some(owner)) {
            fold.stated.add(&Said::Zeros(logical, u64::from(count), u64::MAX));
        }
    }

    /// The records of zeros, and the end.
    fn fold_zeros(&mut self) -> bool {
        let fold = self.fold.as_ref().expect("a fold is under way");
        let (owner, child) = (fold.owner, fold.child);
        let below = self.state.owners.get(owner).is_some_and(|owner| owner.parent != 0);
        let first = self.state.zeros_of(owner).next();
        if let Some((id, mut record)) = first {
            match child.filter(|_| below) {
                Some(child) => record.owner = child,
                None => record = Record::free(record.life),
            }
            self.change(&[(id.member, id.index, Change::Record { record })]);
            return true;
        }
        self.end_fold(owner, child)
    }

    fn end_fold(&mut self, owner: OwnerId, child: Option<OwnerId>) -> bool {
        let (slot, gone) = {
            let slot = self.state.owners.slot_of(owner).expect("it is there until now");
            (slot, self.state.owners.in_slot(slot).expect("listed by its slot").clone())
        };
        let mut changes = Vec::with_capacity(2);
        if let Some(child) = child {
            let slot = self.state.owners.slot_of(child).expect("a child is there");
            let mut child = self.state.owners.in_slot(slot).expect("listed by its slot").clone();
            child.parent = gone.parent;
            // What was to be copied for it is to be copied for who has its blocks now.
            child.flattens |= gone.flattens && gone.parent != 0;
            changes.push((0, slot, Change::Owner { owner: Some(child) }));
        }
        if self.state.owners.is_newest(owner) {
            // Numbers are never given out again, so that the last one stays until there is a later one.
            let mut stays = gone;
            (stays.parent, stays.flattens) = (0, false);
            self.ended.push(owner);
            changes.push((0, slot, Change::Owner { owner: Some(stays) }));
        } else {
            changes.push((0, slot, Change::Owner { owner: None }));
        }
        self.change(&changes);
        self.fold = None;
        false
    }
}
