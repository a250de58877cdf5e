//! Flattening: makes an owner independent of its parent. Blocks that it sees of its ancestors, and does not define
//! itself, are copied into extents of its own, in the order of the volume. When nothing is left to copy, it has no
//! parent any longer.
//!
//! The copies are moves ([`super::moves`]) whose sources stay with their owners. Which copied blocks are used is
//! decided when a copy has ended: a block that was written or discarded meanwhile is not taken from the ancestor. So
//! the owner may belong to a volume in use. The image of the owner records that it is to be flattened, and the next
//! open goes on with it. Copied blocks are ordinary blocks of the owner, so they are valid even if its parent is never
//! cut off.
//!
//! A merge gives an owner the blocks of a deleted ancestor without a copy. If one begins among the ancestors,
//! flattening waits for its end and looks again.

use std::collections::BTreeMap;

use braid_format::pool::{Change, Owner, OwnerKind, Record, RecordKind};

use super::Pool;
use super::admin::{AdminError, extents_for};
use super::build::OwnerScan;
use super::defined_blocks::{DefinedBlocks, Definition};
use super::map::{MapWriter, Visible};
use super::one_move::{Move, Part};
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::units::{EXTENT_BLOCKS, ExtentId, RecordId};

/// Minimum missing blocks of a logical extent for which a whole extent is allocated, as for a write of that many new
/// blocks.
const DENSE_MIN: u32 = 32;
/// Loads of memory that take about as long as looking at a record.
const LOADS_EACH: u32 = 16;

/// The outcome of a step of flattening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlattenStep {
    /// No owner is to be flattened, or the pool has failed.
    Nothing,
    /// Something was done, or is under way.
    Some,
    /// Flattening waits: for a merge, the building of a map, a copy, space for a commit, or the end of a pause.
    Later,
    /// This owner has no parent any longer.
    Done(OwnerId),
    /// Flattening of this owner has ended, as there is no space. What was copied stays.
    Full(OwnerId),
    /// The same, as something could not be read, or is in doubt.
    Unreadable(OwnerId),
}

enum Stage {
    /// What the owner defines is gathered.
    Gather(OwnerScan),
    /// The map of what shows through its parent is built.
    Build,
    Copy,
    /// The owner has no parent any longer. Its zeros hide nothing, and are removed from this record on.
    Clear(RecordId),
}

/// Why flattening ends early.
#[derive(Clone, Copy)]
enum Stop {
    Full,
    Unreadable,
}

/// The flattening of an owner.
pub(super) struct Flatten {
    owner: OwnerId,
    stage: Stage,
    /// What the owner defines, by logical extent of its parent. While the owner has a parent, no block is ever removed.
    defined: DefinedBlocks,
    /// Its own whole extents that do not define all of their blocks.
    wholes: BTreeMap<u32, ExtentId>,
    /// The map of what shows through its parent.
    below: Option<MapWriter>,
    /// The next logical extent.
    at: u32,
    /// Whether the current pass, which began at logical extent 0, has found nothing to copy.
    clean: bool,
    /// Blocks to be copied of logical extents with few of them: they are copied to packed extents.
    sparse: Vec<u64>,
    stop: Option<Stop>,
}

impl Flatten {
    /// Returns which blocks of a logical extent it defines; all of them if its parent has no such logical extent.
    fn defined(&self, logical: u32) -> u64 {
        self.defined.get(logical).unwrap_or(u64::MAX)
    }

    /// Returns whether it defines a block.
    pub fn defines(&self, block: u64) -> bool {
        let each = u64::from(EXTENT_BLOCKS);
        self.defined((block / each) as u32) >> (block % each) & 1 == 1
    }

    fn add(&mut self, definition: &Definition) {
        if let Definition::Whole(extent, logical, present, zero) = definition {
            if present | zero == u64::MAX {
                self.wholes.remove(logical);
            } else {
                self.wholes.insert(*logical, *extent);
            }
        }
        self.defined.add(definition);
    }

    /// The map of what shows through the parent.
    pub fn below(&mut self) -> Option<&mut MapWriter> {
        self.below.as_mut()
    }

    /// Returns whether blocks are being copied for this owner.
    pub fn wants(&self, owner: OwnerId) -> bool {
        self.owner == owner && self.below.is_some()
    }

    /// Notes that something could not be copied.
    pub fn stop_unreadable(&mut self) {
        self.stop.get_or_insert(Stop::Unreadable);
    }

    /// Builds the map of what shows through the parent again.
    fn look_again(&mut self) {
        self.below = None;
        if matches!(self.stage, Stage::Copy) {
            self.stage = Stage::Build;
        }
    }
}

impl Pool {
    /// Returns the owners that have to be flattened so that a volume and its snapshots become independent: those of the
    /// volume whose parent belongs to another one. Empty: it is independent.
    ///
    /// # Errors
    /// `NoSuch`, `IsSnapshot`.
    pub fn to_flatten(&self, volume: OwnerId) -> Result<Vec<OwnerId>, AdminError> {
        let (_, owner) = self.slot_of(volume)?;
        if owner.kind == OwnerKind::Volume { Ok(self.tops_of(&owner)) } else { Err(AdminError::IsSnapshot) }
    }

    /// Makes a volume, with its snapshots, independent of the snapshot that it began as, by [`Pool::flatten_step`].
    /// Returns the owners to be flattened: those of [`Pool::to_flatten`].
    ///
    /// # Errors
    /// See [`AdminError`]; `NoSpace`: less space is free than would have to be reserved for thick volumes.
    pub fn flatten(&mut self, volume: OwnerId) -> Result<Vec<OwnerId>, AdminError> {
        let tops = self.to_flatten(volume)?;
        if let Some(top) = tops.iter().find(|top| self.state.chain_may_miss_records(**top)) {
            return Err(self.why_in_doubt(*top));
        }
        if tops.len() as u64 * 5 > self.log.capacity() / 2 {
            return Err(AdminError::TooManyAtOnce);
        }
        if !self.has_room_for_request(tops.len() as u64 * 5 + 1) {
            return Err(AdminError::LogFull);
        }
        self.reserves_without_parent(&tops)?;
        self.mark_flattens(&tops, true);
        // Extents that could not be read may be readable now.
        self.retry_moves();
        Ok(tops)
    }

    /// Cancels the flattening of a volume. What was copied stays. False: the log has no room for that.
    pub fn cancel_flatten(&mut self, volume: OwnerId) -> bool {
        let flattened = self.flattened_for(volume);
        let room = self.has_room_for_request(flattened.len() as u64 * 5 + 1);
        if room {
            self.mark_flattens(&flattened, false);
        }
        room
    }

    /// Returns the owners that are being flattened, or are to be, so that this volume becomes independent.
    pub fn flattened_for(&self, volume: OwnerId) -> Vec<OwnerId> {
        let Some(owner) = self.state.owners.get(volume) else { return Vec::new() };
        let of = |other: &&Owner| other.flattening && is_of(other, owner);
        self.state.owners.iter().filter(of).map(|other| other.id).collect()
    }

    /// Returns how many blocks were copied since the pool was opened.
    pub fn blocks_copied(&self) -> u64 {
        self.copied
    }

    /// Returns the owner that is being flattened, and how far it is: logical extents that were looked at, and all of
    /// them.
    pub fn flattening(&self) -> Option<(OwnerId, u32, u32)> {
        let job = self.flatten.as_ref()?;
        let all = job.defined.extents();
        let at = match job.stage {
            Stage::Gather(_) | Stage::Build => 0,
            // Little is left to do after the first pass.
            Stage::Copy => job.at.min(all),
            Stage::Clear(_) => all,
        };
        Some((job.owner, at, all))
    }

    /// Returns the oldest owners of a volume and its snapshots that have a parent.
    fn tops_of(&self, volume: &Owner) -> Vec<OwnerId> {
        let owners = &self.state.owners;
        let named = owners.iter().filter(|other| !other.name.is_empty() && is_of(other, volume));
        let top = |owner: &Owner| {
            let chain = owners.chain(owner.id);
            let own = chain.iter().take_while(|id| owners.get(**id).is_some_and(|other| is_of(other, volume)));
            own.last().copied().filter(|id| owners.get(*id).is_some_and(|top| top.parent != 0))
        };
        let mut tops: Vec<OwnerId> = named.filter_map(top).collect();
        tops.sort_unstable();
        tops.dedup();
        tops
    }

    fn mark_flattens(&mut self, owners: &[OwnerId], flattens: bool) {
        let mut changes = Vec::with_capacity(owners.len());
        for id in owners {
            let Ok((slot, owner)) = self.slot_of(*id) else { continue };
            changes.push((0, slot, Change::Owner { owner: Some(Owner { flattening: flattens, ..owner }) }));
        }
        if !changes.is_empty() {
            self.change(&changes);
        }
    }

    /// Continues flattening: looks at up to `records` records, or logical extents. The copying goes on by itself, by
    /// [`Pool::next_io`] and barriers.
    pub fn flatten_step(&mut self, records: u32) -> FlattenStep {
        if self.commits.is_failed() {
            self.flatten = None;
            return FlattenStep::Nothing;
        }
        if self.is_starving() {
            return FlattenStep::Later;
        }
        let mut job = match self.flatten.take() {
            Some(job) => job,
            None => match self.begin_flatten() {
                Ok(job) => job,
                Err(none) => return none,
            },
        };
        let step = self.continue_flatten(&mut job, records);
        if matches!(step, FlattenStep::Some | FlattenStep::Later) {
            self.flatten = Some(job);
        }
        step
    }

    /// Returns whether an owner is about to be merged into its child: it is not flattened; the child is, after that.
    fn will_merge(&self, owner: &Owner) -> bool {
        let nameless = matches!(owner.kind, OwnerKind::Nameless | OwnerKind::Deleting);
        nameless && self.state.owners.children(owner.id).len() <= 1
    }

    fn begin_flatten(&self) -> Result<Flatten, FlattenStep> {
        let mut any = false;
        for owner in self.state.owners.iter().filter(|owner| owner.flattening) {
            any = true;
            let parent = self.state.owners.get(owner.parent);
            let held = self.flattening_held.contains(&owner.id);
            if held || self.will_merge(owner) || self.moves.copies_for(owner.id) {
                continue;
            }
            let extents = parent.map_or(0, |parent| extents_for(parent.size_bytes));
            return Ok(Flatten {
                owner: owner.id,
                stage: Stage::Gather(OwnerScan::new(owner.id)),
                defined: DefinedBlocks::new(extents),
                wholes: BTreeMap::new(),
                below: None,
                at: 0,
                clean: true,
                sparse: Vec::new(),
                stop: None,
            });
        }
        Err(if any { FlattenStep::Later } else { FlattenStep::Nothing })
    }

    fn continue_flatten(&mut self, job: &mut Flatten, records: u32) -> FlattenStep {
        let id = job.owner;
        let idle = !self.moves.copies_for(id);
        let goes_on =
            |owner: &&Owner| owner.flattening && !self.will_merge(owner) && !self.flattening_held.contains(&id);
        let owner = self.state.owners.get(id).filter(goes_on).cloned();
        let Some(owner) = owner else {
            // Cancelled, paused, or deleted: the next owner follows when nothing is in flight.
            self.drop_unserved_builds();
            if !idle {
                return FlattenStep::Some;
            }
            return match self.begin_flatten() {
                Ok(next) => {
                    *job = next;
                    FlattenStep::Some
                }
                Err(none) => none,
            };
        };
        if self.merge.as_ref().is_some_and(|merge| self.state.owners.chain(id).contains(&merge.owner())) {
            return FlattenStep::Later;
        }
        if owner.parent != 0 && self.state.chain_may_miss_records(id) {
            job.stop = Some(Stop::Unreadable);
        }
        if let Some(stop) = job.stop {
            if !idle {
                return FlattenStep::Some;
            }
            if !self.log.has_room(6) {
                self.commit_soon();
                return FlattenStep::Some;
            }
            self.drop_unserved_builds();
            self.mark_flattens(&[id], false);
            return match stop {
                Stop::Full => FlattenStep::Full(id),
                Stop::Unreadable => FlattenStep::Unreadable(id),
            };
        }
        let mut loads = records.saturating_mul(LOADS_EACH);
        match &mut job.stage {
            Stage::Gather(_) => self.gather_own(job, &mut loads),
            Stage::Build if owner.parent == 0 => job.stage = Stage::Clear(RecordId { member: 0, index: 0 }),
            Stage::Build => {
                if self.state.owners.chain(owner.parent).into_iter().any(|ancestor| self.awaits_data(ancestor)) {
                    return FlattenStep::Later;
                }
                if let Some(below) = self.build_unserved(owner.parent, &mut loads) {
                    (job.below, job.stage) = (Some(below), Stage::Copy);
                    (job.at, job.clean) = (0, true);
                    job.sparse.clear();
                }
            }
            Stage::Copy => return self.copy_some(job, &owner, records),
            Stage::Clear(_) => return self.clear_some(job, records),
        }
        FlattenStep::Some
    }

    fn gather_own(&mut self, job: &mut Flatten, loads: &mut u32) {
        let next = Stage::Build;
        let Stage::Gather(mut scan) = std::mem::replace(&mut job.stage, next) else { return };
        let done = scan.step(&self.state, loads, |definition| job.add(&definition));
        if !done {
            job.stage = Stage::Gather(scan);
        }
    }

    /// Notes that a record is about to change: blocks that the owner defines from now on are not copied.
    pub(super) fn note_for_flatten(&mut self, id: RecordId, change: &Change) {
        let Some(job) = &mut self.flatten else { return };
        let (Change::Record { record } | Change::Slot { record, .. }) = change else { return };
        let old = self.state.record(id);
        let extent = ExtentId { member: id.member, index: id.index };
        if old.owner == job.owner && old.kind == RecordKind::Whole && job.wholes.get(&old.logical) == Some(&extent) {
            job.wholes.remove(&old.logical);
        }
        if record.owner != job.owner {
            return;
        }
        let definition = match (change, record.kind) {
            (Change::Slot { slot, block, .. }, _) => Definition::Slot(extent, *slot, *block),
            (_, RecordKind::Whole) => Definition::Whole(extent, record.logical, record.present, record.zero),
            (_, RecordKind::Zeros) => Definition::Zeros(record.logical, record.present, record.zero),
            _ => return,
        };
        job.add(&definition);
    }

    /// Notes that a merge of the owner `merged` begins. If that is an ancestor of the owner being flattened, records
    /// change their owner, and the map of what shows through the parent is built again. If it is that owner itself, its
    /// flattening ends, and its child is flattened later.
    pub(super) fn interrupt_flatten(&mut self, merged: OwnerId) {
        let Some(job) = &mut self.flatten else { return };
        if job.owner == merged {
            self.flatten = None;
        } else if self.state.owners.chain(job.owner).contains(&merged) {
            job.look_again();
        } else {
            return;
        }
        self.drop_unserved_builds();
    }

    /// Begins copies, in the order of the volume; at the end, cuts off the parent.
    fn copy_some(&mut self, job: &mut Flatten, owner: &Owner, records: u32) -> FlattenStep {
        let extents = job.below.as_ref().expect("built before").map().extents();
        for _ in 0..records {
            if !self.moves.can_begin() {
                return FlattenStep::Some;
            }
            if job.sparse.len() >= EXTENT_BLOCKS as usize || job.at == extents && !job.sparse.is_empty() {
                if !self.copy_sparse(job) {
                    return FlattenStep::Some;
                }
                continue;
            }
            if job.at < extents {
                // Where nothing shows through the parent there is nothing to copy.
                let map = job.below.as_ref().expect("built before").map();
                job.at = map.next_mapped(job.at).unwrap_or(extents);
                if job.at < extents {
                    if !self.copy_extent(job) {
                        return FlattenStep::Some;
                    }
                    job.at += 1;
                }
                continue;
            }
            if self.moves.copies_for(job.owner) {
                return FlattenStep::Some;
            }
            // Once more from the first on: a copy may have been cancelled.
            if !job.clean {
                (job.at, job.clean) = (0, true);
                continue;
            }
            return self.cut(job, owner);
        }
        FlattenStep::Some
    }

    /// Begins to copy the blocks of the next logical extent that show through the parent and that the owner does not
    /// define. If they are few, they are collected for a packed extent. False: it has to wait.
    fn copy_extent(&mut self, job: &mut Flatten) -> bool {
        let logical = job.at;
        job.below.as_ref().expect("built before").map().visible(&self.state.records, logical, &mut self.view);
        let needed = self.view.mask() & !job.defined(logical);
        if needed == 0 {
            return true;
        }
        job.clean = false;
        let first = u64::from(logical) * u64::from(EXTENT_BLOCKS);
        let blocks = (0..u64::from(EXTENT_BLOCKS)).filter(|bit| needed >> bit & 1 == 1).map(|bit| first + bit);
        let own = job.wholes.get(&logical).copied();
        let count = needed.count_ones();
        if own.is_none() && count < DENSE_MIN && !self.is_seen_by_thick(job.owner) {
            job.sparse.extend(blocks);
            return true;
        }
        let parts: Vec<Part> = blocks.map(|block| source_part(&self.view, block, (block % 64) as u8)).collect();
        self.begin_copy(job, parts, Some(logical), own)
    }

    /// Begins to copy blocks of several logical extents to one extent. False: it has to wait.
    fn copy_sparse(&mut self, job: &mut Flatten) -> bool {
        let count = job.sparse.len().min(EXTENT_BLOCKS as usize);
        let mut parts = Vec::with_capacity(count);
        let below = job.below.as_ref().expect("built before").map();
        for block in job.sparse[..count].iter().copied().filter(|block| !job.defines(*block)) {
            below.visible(&self.state.records, (block / u64::from(EXTENT_BLOCKS)) as u32, &mut self.view);
            parts.push(source_part(&self.view, block, parts.len() as u8));
        }
        let begun = parts.is_empty() || self.begin_copy(job, parts, None, None);
        if begun {
            job.sparse.drain(..count);
        }
        begun
    }

    /// Begins a copy, into a new extent or into the whole extent `own` of the owner. False: it has to wait, or
    /// `job.stop` is set and flattening ends.
    fn begin_copy(
        &mut self,
        job: &mut Flatten,
        mut parts: Vec<Part>,
        logical: Option<u32>,
        own: Option<ExtentId>,
    ) -> bool {
        parts.sort_unstable_by_key(|part| (part.from, part.slot));
        let mut sources: Vec<ExtentId> = parts.iter().map(|part| part.from).collect();
        sources.dedup();
        for source in &sources {
            let doubtful = *source == ExtentId::IN_DOUBT || self.state.damage.has_slots((*source).into());
            if doubtful || self.moves.has_failed(*source) {
                job.stop = Some(Stop::Unreadable);
                return false;
            }
            // Moves end soon.
            if self.moves.is_source(*source) || self.is_pending(*source) {
                return false;
            }
        }
        if logical.is_some_and(|logical| self.is_opening(job.owner, logical)) {
            return false;
        }
        let life = |extent: ExtentId| self.state.records.life(extent);
        let sources = sources.into_iter().map(|source| (source, life(source))).collect();
        if let Some(own) = own {
            let held = self.state.records.owner(own) & OWNER_HELD != 0;
            if held || self.is_pending(own) {
                return false;
            }
            let own_life = Some(life(own));
            self.hold_extent(own);
            self.begin_move(Move::copy(own, logical, sources, parts, job.owner, own_life));
            return true;
        }
        // Space that is reserved for a thick volume which sees this owner's blocks is reserved for this copy.
        let Some(target) = self.take_extent(job.owner, logical) else {
            // Space that is being freed is free soon.
            let uses = self.state.owners.get(job.owner).map_or(0, Owner::allocation_members);
            if self.is_freeing_on(uses) {
                self.commit_soon();
            } else {
                job.stop = Some(Stop::Full);
            }
            return false;
        };
        if let Some(logical) = logical {
            // The reservation is used up from now on, not only when the copy is done.
            self.state.reserves.add_whole(job.owner, logical);
        }
        self.begin_move(Move::copy(target, logical, sources, parts, job.owner, None));
        true
    }

    /// Cuts off the parent: nothing of the ancestors shows through the owner any longer.
    fn cut(&mut self, job: &mut Flatten, owner: &Owner) -> FlattenStep {
        if self.is_being_mapped(job.owner) {
            return FlattenStep::Later;
        }
        if !self.log.has_room(6) {
            self.commit_soon();
            return FlattenStep::Some;
        }
        let Ok(reserves) = self.reserves_without_parent(&[job.owner]) else {
            job.stop = Some(Stop::Full);
            return FlattenStep::Some;
        };
        let slot = self.state.owners.slot_of(job.owner).expect("it exists");
        let image = Owner { parent: 0, ..owner.clone() };
        self.change(&[(0, slot, Change::Owner { owner: Some(image) })]);
        self.set_reserves(reserves);
        job.below = None;
        job.stage = Stage::Clear(RecordId { member: 0, index: 0 });
        FlattenStep::Some
    }

    /// Removes the owner's zeros: there is nothing that they would hide. At the end the owner is no longer marked to be
    /// flattened.
    fn clear_some(&mut self, job: &mut Flatten, records: u32) -> FlattenStep {
        let owner = job.owner;
        let Stage::Clear(next) = &mut job.stage else { return FlattenStep::Some };
        if self.is_being_mapped(owner) {
            return FlattenStep::Later;
        }
        for _ in 0..records {
            if !self.log.has_room(8) {
                self.commit_soon();
                return FlattenStep::Some;
            }
            let zeros = self.state.zeros_of(owner).next();
            if let Some((id, _)) = zeros {
                let free = Change::Record { record: Record::free(0) };
                self.change(&[(id.member, id.index, free)]);
                continue;
            }
            if usize::from(next.member) == self.rooms.len() {
                self.mark_flattens(&[owner], false);
                return FlattenStep::Done(owner);
            }
            if next.index >= self.state.records.extents(next.member) {
                *next = RecordId { member: next.member + 1, index: 0 };
                continue;
            }
            let extent = ExtentId { member: next.member, index: next.index };
            let holder = self.state.records.owner(extent);
            if holder & !OWNER_HELD == owner {
                let record = self.state.record(*next);
                if record.zero != 0 && holder & OWNER_HELD != 0 {
                    return FlattenStep::Some;
                }
                if record.zero != 0 {
                    let record = Record { zero: 0, ..record };
                    self.change(&[(extent.member, extent.index, Change::Record { record })]);
                    self.free_if_empty(extent);
                }
            }
            next.index += 1;
        }
        FlattenStep::Some
    }
}

/// Returns whether an owner belongs to a volume: as the volume itself, as one of its snapshots, deleted or not, or as
/// its owner before a rollback.
fn is_of(owner: &Owner, volume: &Owner) -> bool {
    owner.volume == volume.uuid || owner.volume.is_nil() && owner.uuid == volume.uuid
}

/// Returns the part that copies a visible block from where it is.
fn source_part(view: &Visible, block: u64, to_slot: u8) -> Part {
    let at = (block % u64::from(EXTENT_BLOCKS)) as u8;
    let packed = view.packed().find(|packed| packed.block == at);
    let piece = || view.pieces().iter().find(|piece| piece.mask >> at & 1 == 1);
    let (from, slot) = match packed {
        Some(packed) => (packed.extent, packed.slot),
        None => (piece().expect("a visible block is in an extent").extent, at),
    };
    Part { from, slot, to_slot, block }
}
