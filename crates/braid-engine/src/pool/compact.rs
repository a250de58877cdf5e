//! Compaction: consolidates the fragmented blocks of an owner.
//!
//! If many blocks of one logical extent are in packed extents, they go to a whole extent of their own, so that they are
//! read in one piece. Blocks left in packed extents that have lost most of their slots, and in whole ones with few
//! blocks, go to fewer packed ones. Both are moves like others ([`super::moves`]); nothing is recorded about them.
//!
//! A first scan of all records counts how many blocks of each logical extent are fragmented, in one byte for each. Each
//! further scan notes the locations of blocks of logical extents with many of them, for as many logical extents as the
//! memory limit allows, and begins their moves; until all have been consolidated.

use std::collections::{BTreeMap, VecDeque};

use braid_format::pool::RecordKind;

use super::Pool;
use super::fragmentation::{Choice, Fragmentation};
use super::moves::MoveStep;
use super::one_move::{Move, Part};
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::units::{EXTENT_BLOCKS, ExtentId, RecordId};

/// Minimum fragmented blocks of a logical extent for which a whole extent is allocated, as for a write of that many new
/// blocks.
const DENSE_MIN: usize = 32;
/// A packed extent with at most this many slots in use is sparse.
const SPARSE_PACKED_MAX: u32 = 48;
/// A whole extent with at most this many blocks is sparse.
const SPARSE_WHOLE_MAX: u32 = 16;

/// Blocks whose locations are noted at a time: 24 bytes each.
const NOTED_BLOCKS: u64 = 1 << 20;
/// Blocks that are looked at in the time that a record without fragmented blocks takes.
const BLOCKS_A_RECORD: u32 = 4;

/// The compaction under way.
pub(super) struct Compaction {
    /// Owners that are still to come, the last one first.
    owners: Vec<OwnerId>,
    walk: Option<RecordWalk>,
    noted_blocks: u64,
}

/// The compaction of one owner.
struct RecordWalk {
    owner: OwnerId,
    stage: Stage,
    /// The record that is looked at next.
    next: RecordId,
    fragmentation: Fragmentation,
    /// Locations of the blocks that are being consolidated, by logical extent.
    found: BTreeMap<u32, Vec<Part>>,
    /// Sparse extents, indexed by how many blocks each had when it was counted.
    sparse: Vec<VecDeque<ExtentId>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Counts how much of each logical extent is fragmented.
    Counting,
    /// Chooses the next logical extents.
    Choosing,
    /// Finds where their blocks are.
    Finding,
    Gathering,
    Repacking,
}

impl RecordWalk {
    fn new(owner: OwnerId) -> RecordWalk {
        RecordWalk {
            owner,
            stage: Stage::Counting,
            next: RecordId { member: 0, index: 0 },
            fragmentation: Fragmentation::default(),
            found: BTreeMap::new(),
            sparse: vec![VecDeque::new(); SPARSE_PACKED_MAX as usize + 1],
        }
    }
}

impl Compaction {
    /// Returns whether this owner is still to come.
    pub fn is_to_come(&self, owner: OwnerId) -> bool {
        self.owners.contains(&owner)
    }

    /// Returns the owner under way, and the next record that the first scan visits; `None` once that scan has ended.
    pub fn walking(&self) -> Option<(OwnerId, Option<RecordId>)> {
        self.walk.as_ref().map(|walk| (walk.owner, (walk.stage == Stage::Counting).then_some(walk.next)))
    }

    /// Begins nothing more for these owners.
    pub fn forget(&mut self, owners: &[OwnerId]) {
        self.owners.retain(|owner| !owners.contains(owner));
        if self.walk.as_ref().is_some_and(|walk| owners.contains(&walk.owner)) {
            self.walk = None;
        }
    }
}

impl Pool {
    /// Requests compaction of these owners, by [`Pool::compact_step`], after those that are under way already.
    pub fn compact(&mut self, owners: Vec<OwnerId>) {
        self.compact_with_limit(owners, NOTED_BLOCKS);
    }

    /// Does the same, but notes the locations of only about `noted_blocks` blocks at a time. If a compaction is under
    /// way, the limit of its first request applies.
    pub fn compact_with_limit(&mut self, owners: Vec<OwnerId>, noted_blocks: u64) {
        let new = || Compaction { owners: Vec::new(), walk: None, noted_blocks };
        let compaction = self.compaction.get_or_insert_with(new);
        let new = owners.into_iter().filter(|owner| !compaction.owners.contains(owner)).collect::<Vec<_>>();
        compaction.owners.splice(..0, new);
    }

    /// Returns whether this owner is being compacted, or is to be.
    pub fn is_compacting_owner(&self, id: OwnerId) -> bool {
        let of = |compaction: &Compaction| {
            compaction.walk.as_ref().is_some_and(|walk| walk.owner == id) || compaction.owners.contains(&id)
        };
        self.compaction.as_ref().is_some_and(of)
    }

    /// Returns whether a compaction is under way.
    pub fn is_compacting(&self) -> bool {
        self.compaction.is_some()
    }

    /// Returns into how many whole extents, and into how many packed ones, blocks were consolidated since the pool was
    /// opened.
    pub fn extents_consolidated(&self) -> (u64, u64) {
        (self.moves.gathered, self.moves.repacked)
    }

    /// Continues the compaction: looks at up to `records` records, or begins moves.
    pub fn compact_step(&mut self, records: u32) -> MoveStep {
        let Some(mut compaction) = self.compaction.take() else { return MoveStep::Done };
        if self.commits.is_failed() {
            return MoveStep::Done;
        }
        if self.is_starving() {
            self.compaction = Some(compaction);
            return MoveStep::Some;
        }
        let result = self.continue_compaction(&mut compaction, records);
        if result == MoveStep::Some {
            self.compaction = Some(compaction);
        }
        result
    }

    fn continue_compaction(&mut self, compaction: &mut Compaction, records: u32) -> MoveStep {
        let mut left = records;
        while left > 0 {
            if !self.moves.can_begin() {
                return MoveStep::Some;
            }
            let Some(walk) = &mut compaction.walk else {
                // The last moves have to end first.
                let Some(owner) = compaction.owners.pop() else {
                    return if self.moves.is_idle() { MoveStep::Done } else { MoveStep::Some };
                };
                compaction.walk = Some(RecordWalk::new(owner));
                continue;
            };
            let blocks = match walk.stage {
                Stage::Counting => Ok(self.count_fragmented(walk)),
                Stage::Choosing => {
                    (walk.stage, walk.next) = match walk.fragmentation.choose(DENSE_MIN, compaction.noted_blocks) {
                        Choice::More => (Stage::Choosing, walk.next),
                        Choice::Some => (Stage::Finding, RecordId { member: 0, index: 0 }),
                        Choice::None => (Stage::Repacking, walk.next),
                    };
                    Ok(EXTENT_BLOCKS)
                }
                Stage::Finding => self.find_fragmented(walk),
                Stage::Gathering if walk.found.is_empty() => {
                    walk.fragmentation.end_chosen();
                    walk.stage = Stage::Choosing;
                    Ok(0)
                }
                Stage::Gathering => self.gather_dense(walk).map(|()| EXTENT_BLOCKS),
                Stage::Repacking if walk.sparse.iter().any(|extents| !extents.is_empty()) => {
                    self.repack_sparse(walk).map(|()| EXTENT_BLOCKS)
                }
                Stage::Repacking => {
                    compaction.walk = None;
                    Ok(0)
                }
            };
            match blocks {
                Ok(blocks) => left = left.saturating_sub(1 + blocks / BLOCKS_A_RECORD),
                Err(full) => return full,
            }
        }
        MoveStep::Some
    }

    /// Advances the walk, and returns the extent that it was at. `None`: the walk has gone on to the next member, or,
    /// after the last one, to the stage `then`.
    fn next_extent(&self, walk: &mut RecordWalk, then: Stage) -> Option<ExtentId> {
        let id = walk.next;
        if usize::from(id.member) == self.rooms.len() {
            walk.stage = then;
            return None;
        }
        if id.index >= self.state.records.extents(id.member) {
            walk.next = RecordId { member: id.member + 1, index: 0 };
            return None;
        }
        walk.next.index += 1;
        Some(ExtentId { member: id.member, index: id.index })
    }

    /// Returns how many fragmented blocks of the owner an extent has, and whether it is packed.
    fn fragmented_in(&self, owner: OwnerId, extent: ExtentId) -> Option<(u32, bool)> {
        if self.state.records.owner(extent) != owner || !self.is_movable(extent) {
            return None;
        }
        let record = self.state.record(extent.into());
        let (count, packed) = (record.present.count_ones(), record.kind == RecordKind::Packed);
        (count != 0 && (packed || count != EXTENT_BLOCKS)).then_some((count, packed))
    }

    /// Counts the fragmented blocks of the next record. Returns how many blocks were looked at.
    fn count_fragmented(&self, walk: &mut RecordWalk) -> u32 {
        let Some(extent) = self.next_extent(walk, Stage::Choosing) else { return 0 };
        let Some((count, packed)) = self.fragmented_in(walk.owner, extent) else { return 0 };
        let record = self.state.record(extent.into());
        let most = if packed { SPARSE_PACKED_MAX } else { SPARSE_WHOLE_MAX };
        if count <= most && record.zero == 0 {
            walk.sparse[count as usize].push_back(extent);
        }
        if !packed {
            walk.fragmentation.note(record.logical, count, false);
            return 0;
        }
        for part in self.parts_of(extent) {
            if let Some(logical) = logical_of(&part) {
                walk.fragmentation.note(logical, 1, true);
            }
        }
        EXTENT_BLOCKS
    }

    /// Notes where the next record's blocks are, as far as they are being consolidated. Returns how many blocks were
    /// looked at.
    fn find_fragmented(&self, walk: &mut RecordWalk) -> Result<u32, MoveStep> {
        let before = walk.next;
        let Some(extent) = self.next_extent(walk, Stage::Gathering) else { return Ok(0) };
        // Small random writes put blocks of many logical extents into one packed extent. While such an extent is the
        // source of a move, its blocks have no location to note yet: the walk waits for the end of the move.
        if self.state.records.owner(extent) == walk.owner | OWNER_HELD && self.moves.is_source(extent) {
            walk.next = before;
            return Err(MoveStep::Some);
        }
        let Some((_, packed)) = self.fragmented_in(walk.owner, extent) else { return Ok(0) };
        if !packed && walk.fragmentation.is_chosen(self.state.record(extent.into()).logical, DENSE_MIN).is_none() {
            return Ok(0);
        }
        let mut noted = 0;
        for part in self.parts_of(extent) {
            let of_it = logical_of(&part).and_then(|at| Some((at, walk.fragmentation.is_chosen(at, DENSE_MIN)?)));
            if let Some((logical, blocks)) = of_it {
                walk.found.entry(logical).or_insert_with(|| Vec::with_capacity(blocks)).push(part);
                noted += 1;
            }
        }
        // Noting a block takes about as long as a record without fragmented blocks.
        Ok(EXTENT_BLOCKS + noted * BLOCKS_A_RECORD)
    }

    /// Returns whether the blocks of an extent can be moved: it is not open, and neither held nor pending.
    fn is_movable(&self, extent: ExtentId) -> bool {
        let held = self.state.records.owner(extent) & OWNER_HELD != 0;
        !held && !self.is_pending(extent) && !self.is_open(extent)
    }

    /// Returns the blocks in an extent.
    fn parts_of(&self, extent: ExtentId) -> Vec<Part> {
        let record = self.state.record(extent.into());
        let addresses = self.state.addresses(extent.into()).filter(|_| record.kind == RecordKind::Packed);
        let block = |slot: u8| match addresses {
            Some(addresses) => addresses.0[usize::from(slot)],
            None => u64::from(record.logical) * u64::from(EXTENT_BLOCKS) + u64::from(slot),
        };
        let slots = (0..EXTENT_BLOCKS as u8).filter(|slot| record.present >> slot & 1 == 1);
        slots.map(|slot| Part { from: extent, slot, to_slot: slot, block: block(slot) }).collect()
    }

    /// Returns whether a block is where it was seen.
    fn is_unmoved(&self, owner: OwnerId, part: &Part) -> bool {
        let (id, record) = (RecordId::from(part.from), self.state.record(part.from.into()));
        let present = record.owner == owner && record.present >> part.slot & 1 == 1;
        present
            && match record.kind {
                RecordKind::Packed => {
                    self.state.addresses(id).is_some_and(|of| of.0[usize::from(part.slot)] == part.block)
                }
                _ => u64::from(record.logical) * u64::from(EXTENT_BLOCKS) + u64::from(part.slot) == part.block,
            }
    }

    /// Consolidates the next logical extent with many fragmented blocks.
    fn gather_dense(&mut self, walk: &mut RecordWalk) -> Result<(), MoveStep> {
        let (owner, Some(entry)) = (walk.owner, walk.found.first_entry()) else { return Ok(()) };
        let (logical, all) = (*entry.key(), entry.get());
        // As in `find_fragmented`.
        let ends_soon = |part: &Part| {
            let held = self.state.records.owner(part.from) & OWNER_HELD != 0;
            held && self.is_unmoved(owner, part) && !self.state.damage.has_slots(part.from.into())
        };
        if all.len() >= DENSE_MIN && !self.moves.is_idle() && all.iter().any(ends_soon) {
            return Err(MoveStep::Some);
        }
        let all = entry.remove();
        let all_unmoved = all.iter().all(|part| self.is_unmoved(owner, part) && self.is_movable(part.from));
        let one = all.iter().all(|part| part.from == all[0].from);
        let whole = self.state.record(all[0].from.into()).kind == RecordKind::Whole;
        if all.len() < DENSE_MIN || !all_unmoved || one && whole || self.defines_others(owner, logical, &all) {
            return Ok(());
        }
        let parts = all.into_iter().map(|part| Part { to_slot: (part.block % 64) as u8, ..part }).collect();
        self.consolidate(owner, parts, Some(logical))
    }

    /// Returns whether a whole extent among the sources has blocks besides these: then the logical extent is not
    /// consolidated.
    fn defines_others(&self, owner: OwnerId, logical: u32, parts: &[Part]) -> bool {
        let known = |extent: ExtentId| parts.iter().filter(|part| part.from == extent).count() as u32;
        let mut sources: Vec<ExtentId> = parts.iter().map(|part| part.from).collect();
        sources.sort_unstable();
        sources.dedup();
        sources.into_iter().any(|extent| {
            let record = self.state.record(extent.into());
            debug_assert_eq!(record.owner, owner);
            record.kind == RecordKind::Whole
                && (record.logical != logical || known(extent) != record.present.count_ones())
        })
    }

    /// Begins to move the blocks of some sparse extents to one packed extent.
    fn repack_sparse(&mut self, walk: &mut RecordWalk) -> Result<(), MoveStep> {
        let mut parts: Vec<Part> = Vec::new();
        let mut sources = 0;
        // The emptiest first.
        while let Some(extents) = walk.sparse.iter_mut().find(|extents| !extents.is_empty())
            && let Some(extent) = extents.front().copied()
        {
            let record = self.state.record(extent.into());
            let of_owner = record.owner == walk.owner && record.zero == 0 && self.is_movable(extent);
            // An extent that has got more blocks since is no longer sparse: it is skipped.
            let sparse = record.present.count_ones() <= SPARSE_PACKED_MAX;
            let more = if of_owner && sparse { self.parts_of(extent) } else { Vec::new() };
            if parts.len() + more.len() > EXTENT_BLOCKS as usize {
                break;
            }
            extents.pop_front();
            if !more.is_empty() {
                sources += 1;
                parts.extend(more);
            }
        }
        if sources < 2 {
            // The remaining ones are fuller: no two of them fit into one.
            walk.sparse.iter_mut().for_each(VecDeque::clear);
            return Ok(());
        }
        // Blocks that follow each other in the volume do so in the extent.
        parts.sort_unstable_by_key(|part| part.block);
        for (slot, part) in (0..).zip(&mut parts) {
            part.to_slot = slot;
        }
        self.consolidate(walk.owner, parts, None)
    }

    fn consolidate(&mut self, owner: OwnerId, mut parts: Vec<Part>, logical: Option<u32>) -> Result<(), MoveStep> {
        let Some(target) = self.take_extent(owner, None) else { return Err(MoveStep::Full) };
        parts.sort_unstable_by_key(|part| (part.from, part.slot));
        let life = |extent: ExtentId| self.state.records.life(extent);
        let mut sources: Vec<(ExtentId, u16)> = parts.iter().map(|part| (part.from, life(part.from))).collect();
        sources.dedup();
        self.begin_move(Move::new(target, logical, sources, parts));
        Ok(())
    }
}

/// Returns the logical extent of a block.
fn logical_of(part: &Part) -> Option<u32> {
    u32::try_from(part.block / u64::from(EXTENT_BLOCKS)).ok()
}
