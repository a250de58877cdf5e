//! Merging: the blocks of a deleted owner go to its only child, or are freed if it has none. No data move; records
//! change their owner.
//!
//! The image that gives a record to the child drops the blocks that the child defines itself. Zero ranges go last: in
//! the child's name they would hide data of the owner's extents that are still to be merged. When nothing is left, the
//! child's parent becomes the owner's parent.

use braid_format::pool::{Change, Record, RecordKind};

use super::Pool;
use super::build::OwnerScan;
use super::defined_blocks::{DefinedBlocks, Definition};
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::units::{ExtentId, RecordId};

/// The location of a definition does not matter here.
const NOWHERE: ExtentId = ExtentId { member: 0, index: 0 };

/// Loads of memory that take about as long as merging a record.
const LOADS_EACH: u32 = 16;

/// A merge under way.
pub(super) struct Merge {
    owner: OwnerId,
    child: Option<OwnerId>,
    /// What the child defines, by logical extent: when the merge began, and since then.
    defined: DefinedBlocks,
    /// The scan that gathers that, until it has ended.
    gather: Option<OwnerScan>,
    /// The next record to look at.
    next: RecordId,
    /// Whether all extents are merged, and only zero ranges are left.
    zeros: bool,
}

impl Merge {
    /// Returns whether it is still unknown what the child defines.
    pub fn is_gathering(&self) -> bool {
        self.gather.is_some()
    }

    /// Returns the owner whose records are merged.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Returns the child that gets them.
    pub fn child(&self) -> Option<OwnerId> {
        self.child
    }
}

/// The outcome of a step of merging.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MergeStep {
    /// There is nothing to merge, or not yet: a deletion has to be committed first.
    Nothing,
    /// Something was done, and there may be more.
    Some,
    /// The log is full: go on after a commit.
    LogFull,
    /// A map is being built of what it would change: go on when that has ended.
    Later,
}

impl Pool {
    /// Continues merging deleted owners: looks at up to `records` records.
    pub fn merge_step(&mut self, records: u32) -> MergeStep {
        if self.merge.is_none() {
            match self.begin_merge() {
                MergeStep::Some => {}
                other => return other,
            }
        }
        let merge = self.merge.as_ref().expect("a merge is under way");
        if self.is_being_mapped(merge.owner) || merge.child.is_some_and(|child| self.is_being_mapped(child)) {
            return MergeStep::Later;
        }
        for _ in 0..self.gather(records) {
            // A record may be freed, or freed with a record of zeros in its place.
            if !self.log.has_room(16) {
                return MergeStep::LogFull;
            }
            if !self.merge_next() {
                return MergeStep::Some;
            }
        }
        MergeStep::Some
    }

    /// Begins with an owner that can be merged, if there is one.
    fn begin_merge(&mut self) -> MergeStep {
        let committed = self.commits.committed;
        self.deleted.retain(|(sequence, _)| *sequence > committed);
        let owners = &self.state.owners;
        self.ended.retain(|id| owners.is_newest(*id));
        let waits = |id: OwnerId| self.deleted.iter().any(|(_, deleted)| *deleted == id);
        // Data in flight to an owner's extents would be mapped without the merge noticing. Copies go into extents that
        // the owner has, which would be given to the child meanwhile.
        let has_pending = |id: OwnerId| self.awaits_data(id) || self.moves.copies_for(id);
        // Records of either on a missing member cannot be seen: blocks would be lost, or defined twice.
        let state = &self.state;
        let incomplete = |id: OwnerId| {
            let child = state.owners.children(id).first().copied();
            state.may_miss_records(id) || child.is_some_and(|child| state.may_miss_records(child))
        };
        let ends = |id: &OwnerId| !waits(*id) && !self.ended.contains(id) && !has_pending(*id) && !incomplete(*id);
        let Some(owner) = self.state.owners.mergeable().find(ends) else { return MergeStep::Nothing };
        let child = self.state.owners.children(owner).first().copied();
        let mut defined = DefinedBlocks::new(0);
        if let Some(child) = child {
            if !self.extend_child_placement(child, owner) {
                return MergeStep::LogFull;
            }
            let size = self.state.owners.get(child).map_or(0, |owner| owner.size_bytes);
            let own_size = self.state.owners.get(owner).map_or(0, |owner| owner.size_bytes);
            defined = DefinedBlocks::new(super::admin::extents_for(size.max(own_size)));
            self.moves.forget_seen(child);
        }
        self.interrupt_flatten(owner);
        let gather = child.map(OwnerScan::new);
        self.merge =
            Some(Merge { owner, child, defined, gather, next: RecordId { member: 0, index: 0 }, zeros: false });
        MergeStep::Some
    }

    /// Continues gathering what the child defines, for up to `steps` steps. Returns how many are left.
    fn gather(&mut self, steps: u32) -> u32 {
        let merge = self.merge.as_mut().expect("a merge is under way");
        let Some(gather) = &mut merge.gather else { return steps };
        let defined = &mut merge.defined;
        let mut loads = steps.saturating_mul(LOADS_EACH);
        if !gather.step(&self.state, &mut loads, |definition| defined.add(&definition)) {
            return 0;
        }
        merge.gather = None;
        loads / LOADS_EACH
    }

    /// Notes that a record changes while the child's definitions are gathered: a definition may move from a record that
    /// the scan has not reached to one that it has passed.
    pub(super) fn note_for_merge(&mut self, change: &Change) {
        let Some(merge) = self.merge.as_mut().filter(|merge| merge.gather.is_some()) else { return };
        let (definition, owner) = match change {
            Change::Record { record } if record.kind == RecordKind::Whole => {
                (Definition::Whole(NOWHERE, record.logical, record.present, record.zero), record.owner)
            }
            Change::Record { record } if record.kind == RecordKind::Zeros => {
                (Definition::Zeros(record.logical, record.present, record.zero), record.owner)
            }
            Change::Slot { slot, block, record } => (Definition::Slot(NOWHERE, *slot, *block), record.owner),
            _ => return,
        };
        if merge.child == Some(owner) {
            merge.defined.add(&definition);
        }
    }

    /// Records that the child may have blocks where the owner may. False: the log has no room for that.
    fn extend_child_placement(&mut self, child: OwnerId, owner: OwnerId) -> bool {
        let owners = &self.state.owners;
        let slot = owners.slot_of(child).expect("a child exists");
        let mut image = owners.in_slot(slot).expect("listed by its slot").clone();
        let of = owners.get(owner).map_or(0, |owner| owner.block_members());
        if of & !image.block_members() == 0 {
            return true;
        }
        if !self.log.has_room(8) {
            return false;
        }
        image.also_on |= of & !image.on;
        self.change(&[(0, slot, Change::Owner { owner: Some(image) })]);
        true
    }

    /// Merges the next record. False: the merge has ended.
    fn merge_next(&mut self) -> bool {
        let merge = self.merge.as_mut().expect("a merge is under way");
        let (owner, id) = (merge.owner, merge.next);
        if merge.zeros {
            return self.merge_zeros();
        }
        if usize::from(id.member) == self.rooms.len() {
            merge.zeros = true;
            return true;
        }
        if id.index == self.state.records.extents(id.member) {
            merge.next = RecordId { member: id.member + 1, index: 0 };
            return true;
        }
        merge.next.index += 1;
        let extent = ExtentId { member: id.member, index: id.index };
        if self.state.records.owner(extent) & !OWNER_HELD != owner {
            return true;
        }
        self.merge_extent(extent);
        true
    }

    pub(super) fn merge_extent(&mut self, extent: ExtentId) {
        let merge = self.merge.as_ref().expect("a merge is under way");
        let id = RecordId::from(extent);
        let mut record = self.state.record(id);
        let Some(child) = merge.child else {
            let changes = [(id.member, id.index, Change::Record { record: Record::free(record.life) })];
            let sequence = self.change(&changes);
            self.rooms[usize::from(id.member)].freed.add(sequence, extent);
            return;
        };
        let mut changes = Vec::with_capacity(2);
        let defined = |merge: &Merge, logical: u32| merge.defined.get(logical).unwrap_or(0);
        match record.kind {
            RecordKind::Packed => {
                let addresses = self.state.addresses(id).expect("a packed extent has addresses");
                let present = record.present;
                for slot in (0..64).filter(|slot| present >> slot & 1 == 1) {
                    let block = addresses.0[slot as usize];
                    if defined(merge, (block / 64) as u32) >> (block % 64) & 1 == 1 {
                        record.present &= !(1u64 << slot);
                    }
                }
            }
            _ => {
                let hidden = defined(merge, record.logical);
                record.present &= !hidden;
                record.zero &= !hidden;
            }
        }
        record.owner = child;
        let below = self.state.owners.get(merge.owner).is_some_and(|owner| owner.parent != 0);
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

    /// Notes that an owner defines these blocks from now on, for a merge whose child it is. The owner may have become a
    /// snapshot while its last writes were in flight.
    pub(super) fn note_defined(&mut self, owner: OwnerId, logical: u32, bits: u64) {
        if let Some(merge) = self.merge.as_mut().filter(|merge| merge.child == Some(owner)) {
            merge.defined.add_blocks(logical, bits);
        }
    }

    /// Notes the same of all blocks of `count` logical extents.
    pub(super) fn note_defined_extents(&mut self, owner: OwnerId, logical: u32, count: u32) {
        if let Some(merge) = self.merge.as_mut().filter(|merge| merge.child == Some(owner)) {
            merge.defined.add(&Definition::Zeros(logical, u64::from(count), u64::MAX));
        }
    }

    /// Merges the next zero range, or ends the merge if none is left. False: the merge has ended.
    fn merge_zeros(&mut self) -> bool {
        let merge = self.merge.as_ref().expect("a merge is under way");
        let (owner, child) = (merge.owner, merge.child);
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
        self.end_merge(owner, child)
    }

    fn end_merge(&mut self, owner: OwnerId, child: Option<OwnerId>) -> bool {
        let (slot, gone) = {
            let slot = self.state.owners.slot_of(owner).expect("it exists until now");
            (slot, self.state.owners.in_slot(slot).expect("listed by its slot").clone())
        };
        let mut changes = Vec::with_capacity(2);
        if let Some(child) = child {
            let slot = self.state.owners.slot_of(child).expect("a child exists");
            let mut child = self.state.owners.in_slot(slot).expect("listed by its slot").clone();
            child.parent = gone.parent;
            // What was to be copied for the owner is to be copied for the child, which has its blocks now.
            child.flattening |= gone.flattening && gone.parent != 0;
            changes.push((0, slot, Change::Owner { owner: Some(child) }));
        }
        if self.state.owners.is_newest(owner) {
            // Numbers are never reused, so the highest one stays until there is a higher one.
            let mut stays = gone;
            (stays.parent, stays.flattening) = (0, false);
            self.ended.push(owner);
            changes.push((0, slot, Change::Owner { owner: Some(stays) }));
        } else {
            changes.push((0, slot, Change::Owner { owner: None }));
        }
        self.change(&changes);
        self.merge = None;
        false
    }
}
