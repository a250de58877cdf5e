//! Compaction: what an owner has scattered is put together.
//!
//! Many blocks of one logical extent that stand in packed extents go to a whole one of their own, so that they are read in one piece; what
//! is left in packed extents that have lost most of their slots, and in whole ones with few blocks, goes to fewer packed ones. Both are moves
//! like others ([`super::moves`]); nothing is remembered of them.
//!
//! All records are looked at once to see how much of each logical extent is scattered, which takes a byte each; then once more for as many
//! of those that are worth it as memory is to be spent on, and again, until all have been put together.

use std::collections::{BTreeMap, VecDeque};

use braid_format::pool::RecordKind;

use super::home::Pool;
use super::moves::Moving;
use super::one_move::{Move, Part};
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::scattered::{Choice, Scattered};
use super::state::RecordId;
use super::units::{EXTENT_BLOCKS, ExtentId};

/// From so many blocks on a logical extent is worth an extent of its own, as when they are written together.
const DENSE_MIN: usize = 32;
/// A packed extent with so many slots in use, or less, is sparse.
const SPARSE_PACKED_MAX: u32 = 48;
/// The same of whole ones.
const SPARSE_WHOLE_MAX: u32 = 16;

/// Blocks of which it is noted at a time where they stand: 24 bytes each.
const NOTED_BLOCKS: u64 = 1 << 20;
/// Blocks that are looked at in the time that a record takes of which nothing is scattered.
const BLOCKS_A_RECORD: u32 = 4;

/// What is to be put together.
pub(super) struct Compaction {
    /// Of these owners, the last first.
    owners: Vec<OwnerId>,
    walk: Option<Walk>,
    noted_blocks: u64,
}

/// One owner is looked at.
struct Walk {
    owner: OwnerId,
    stage: Stage,
    /// The record that is looked at next.
    next: RecordId,
    scattered: Scattered,
    /// Where those stand that are put together now, by logical extent.
    found: BTreeMap<u32, Vec<Part>>,
    /// Sparse extents, by how many blocks they had.
    sparse: Vec<VecDeque<ExtentId>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// How much of each logical extent is scattered.
    Counting,
    /// Which ones come next.
    Choosing,
    /// Where these are.
    Finding,
    Gathering,
    Merging,
}

impl Walk {
    fn new(owner: OwnerId) -> Walk {
        Walk {
            owner,
            stage: Stage::Counting,
            next: RecordId { member: 0, index: 0 },
            scattered: Scattered::default(),
            found: BTreeMap::new(),
            sparse: vec![VecDeque::new(); SPARSE_PACKED_MAX as usize + 1],
        }
    }
}

impl Compaction {
    /// Whether this owner's turn is to come.
    pub fn is_to_come(&self, owner: OwnerId) -> bool {
        self.owners.contains(&owner)
    }

    /// Whose turn it is, and which record is looked at next; none when all have been seen.
    pub fn walking(&self) -> Option<(OwnerId, Option<RecordId>)> {
        self.walk.as_ref().map(|walk| (walk.owner, (walk.stage == Stage::Counting).then_some(walk.next)))
    }

    /// Nothing more is begun for these.
    pub fn forget(&mut self, owners: &[OwnerId]) {
        self.owners.retain(|owner| !owners.contains(owner));
        if self.walk.as_ref().is_some_and(|walk| owners.contains(&walk.owner)) {
            self.walk = None;
        }
    }
}

impl Pool {
    /// What these owners have scattered is to be put together by [`Pool::compact_step`], after what is being put together already.
    pub fn compact(&mut self, owners: Vec<OwnerId>) {
        self.compact_noting(owners, NOTED_BLOCKS);
    }

    /// The same, with where about so many blocks stand kept in mind at a time. Whoever asked first decides that.
    pub fn compact_noting(&mut self, owners: Vec<OwnerId>, noted_blocks: u64) {
        let new = || Compaction { owners: Vec::new(), walk: None, noted_blocks };
        let compaction = self.compaction.get_or_insert_with(new);
        let new = owners.into_iter().filter(|owner| !compaction.owners.contains(owner)).collect::<Vec<_>>();
        compaction.owners.splice(..0, new);
    }

    /// Whether what this owner has scattered is being put together, or is to be.
    pub fn compacts_owner(&self, id: OwnerId) -> bool {
        let of = |compaction: &Compaction| {
            compaction.walk.as_ref().is_some_and(|walk| walk.owner == id) || compaction.owners.contains(&id)
        };
        self.compaction.as_ref().is_some_and(of)
    }

    /// Whether that is under way.
    pub fn compacts(&self) -> bool {
        self.compaction.is_some()
    }

    /// Into how many whole extents, and into how many packed ones, something was put together since the pool was opened.
    pub fn put_together_so_far(&self) -> (u64, u64) {
        (self.moves.gathered, self.moves.merged)
    }

    /// Looks at up to `records` records, or begins to put together what was found.
    pub fn compact_step(&mut self, records: u32) -> Moving {
        let Some(mut compaction) = self.compaction.take() else { return Moving::Done };
        if self.commits.is_failed() {
            return Moving::Done;
        }
        if self.is_starving() {
            self.compaction = Some(compaction);
            return Moving::Some;
        }
        let result = self.compact_on(&mut compaction, records);
        if result == Moving::Some {
            self.compaction = Some(compaction);
        }
        result
    }

    fn compact_on(&mut self, compaction: &mut Compaction, records: u32) -> Moving {
        let mut left = records;
        while left > 0 {
            if !self.moves.has_place() {
                return Moving::Some;
            }
            let Some(walk) = &mut compaction.walk else {
                // What was begun last ends first.
                let Some(owner) = compaction.owners.pop() else {
                    return if self.moves.is_idle() { Moving::Done } else { Moving::Some };
                };
                compaction.walk = Some(Walk::new(owner));
                continue;
            };
            let blocks = match walk.stage {
                Stage::Counting => Ok(self.count_scattered(walk)),
                Stage::Choosing => {
                    (walk.stage, walk.next) = match walk.scattered.choose(DENSE_MIN, compaction.noted_blocks) {
                        Choice::More => (Stage::Choosing, walk.next),
                        Choice::Some => (Stage::Finding, RecordId { member: 0, index: 0 }),
                        Choice::None => (Stage::Merging, walk.next),
                    };
                    Ok(EXTENT_BLOCKS)
                }
                Stage::Finding => self.find_scattered(walk),
                Stage::Gathering if walk.found.is_empty() => {
                    walk.scattered.end_chosen();
                    walk.stage = Stage::Choosing;
                    Ok(0)
                }
                Stage::Gathering => self.gather_dense(walk).map(|()| EXTENT_BLOCKS),
                Stage::Merging if walk.sparse.iter().any(|extents| !extents.is_empty()) => {
                    self.merge_sparse(walk).map(|()| EXTENT_BLOCKS)
                }
                Stage::Merging => {
                    compaction.walk = None;
                    Ok(0)
                }
            };
            match blocks {
                Ok(blocks) => left = left.saturating_sub(1 + blocks / BLOCKS_A_RECORD),
                Err(full) => return full,
            }
        }
        Moving::Some
    }

    /// The next extent that is looked at; none when there is no other one, or it is seen at the next call.
    fn next_extent(&self, walk: &mut Walk, then: Stage) -> Option<ExtentId> {
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

    /// How many blocks of the owner an extent has that are scattered, and whether it is packed.
    fn scattered_in(&self, owner: OwnerId, extent: ExtentId) -> Option<(u32, bool)> {
        if self.state.records.owner(extent) != owner || !self.can_be_left(extent) {
            return None;
        }
        let record = self.state.record(extent.into());
        let (count, packed) = (record.present.count_ones(), record.kind == RecordKind::Packed);
        (count != 0 && (packed || count != EXTENT_BLOCKS)).then_some((count, packed))
    }

    /// Counts what the next record has. Returns how many blocks were looked at.
    fn count_scattered(&self, walk: &mut Walk) -> u32 {
        let Some(extent) = self.next_extent(walk, Stage::Choosing) else { return 0 };
        let Some((count, packed)) = self.scattered_in(walk.owner, extent) else { return 0 };
        let record = self.state.record(extent.into());
        let most = if packed { SPARSE_PACKED_MAX } else { SPARSE_WHOLE_MAX };
        if count <= most && record.zero == 0 {
            walk.sparse[count as usize].push_back(extent);
        }
        if !packed {
            walk.scattered.note(record.logical, count, false);
            return 0;
        }
        for part in self.parts_of(extent) {
            if let Some(logical) = logical_of(&part) {
                walk.scattered.note(logical, 1, true);
            }
        }
        EXTENT_BLOCKS
    }

    /// Notes where the blocks stand that the next record has of what is put together now.
    fn find_scattered(&self, walk: &mut Walk) -> Result<u32, Moving> {
        let before = walk.next;
        let Some(extent) = self.next_extent(walk, Stage::Gathering) else { return Ok(0) };
        // Small writes that came in turn stand in the same extents: what is being moved out of these ends first.
        if self.state.records.owner(extent) == walk.owner | OWNER_HELD && self.moves.moves_away(extent) {
            walk.next = before;
            return Err(Moving::Some);
        }
        let Some((_, packed)) = self.scattered_in(walk.owner, extent) else { return Ok(0) };
        if !packed && walk.scattered.is_chosen(self.state.record(extent.into()).logical, DENSE_MIN).is_none() {
            return Ok(0);
        }
        let mut noted = 0;
        for part in self.parts_of(extent) {
            let of_it = logical_of(&part).and_then(|at| Some((at, walk.scattered.is_chosen(at, DENSE_MIN)?)));
            if let Some((logical, blocks)) = of_it {
                walk.found.entry(logical).or_insert_with(|| Vec::with_capacity(blocks)).push(part);
                noted += 1;
            }
        }
        // To note one takes longer.
        Ok(EXTENT_BLOCKS + noted * BLOCKS_A_RECORD)
    }

    /// Whether nobody fills it, and no other job has it.
    fn can_be_left(&self, extent: ExtentId) -> bool {
        let held = self.state.records.owner(extent) & OWNER_HELD != 0;
        !held && !self.is_pending(extent) && !self.is_open(extent)
    }

    /// The blocks that stand in an extent.
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

    /// Whether a block is where it was seen.
    fn stands(&self, owner: OwnerId, part: &Part) -> bool {
        let (id, record) = (RecordId::from(part.from), self.state.record(part.from.into()));
        let there = record.owner == owner && record.present >> part.slot & 1 == 1;
        there
            && match record.kind {
                RecordKind::Packed => {
                    self.state.addresses(id).is_some_and(|of| of.0[usize::from(part.slot)] == part.block)
                }
                _ => u64::from(record.logical) * u64::from(EXTENT_BLOCKS) + u64::from(part.slot) == part.block,
            }
    }

    /// The next logical extent of which many blocks are scattered.
    fn gather_dense(&mut self, walk: &mut Walk) -> Result<(), Moving> {
        let (owner, Some(entry)) = (walk.owner, walk.found.first_entry()) else { return Ok(()) };
        let (logical, all) = (*entry.key(), entry.get());
        // As above.
        let ends_soon = |part: &Part| {
            let held = self.state.records.owner(part.from) & OWNER_HELD != 0;
            held && self.stands(owner, part) && !self.state.damage.has_slots(part.from.into())
        };
        if all.len() >= DENSE_MIN && !self.moves.is_idle() && all.iter().any(ends_soon) {
            return Err(Moving::Some);
        }
        let all = entry.remove();
        let all_there = all.iter().all(|part| self.stands(owner, part) && self.can_be_left(part.from));
        let one = all.iter().all(|part| part.from == all[0].from);
        let whole = self.state.record(all[0].from.into()).kind == RecordKind::Whole;
        if all.len() < DENSE_MIN || !all_there || one && whole || self.states_otherwise(owner, logical, &all) {
            return Ok(());
        }
        let parts = all.into_iter().map(|part| Part { to_slot: (part.block % 64) as u8, ..part }).collect();
        self.put_together(owner, parts, Some(logical))
    }

    /// Whether a whole extent says anything of this logical extent besides these blocks: it stays where it is then.
    fn states_otherwise(&self, owner: OwnerId, logical: u32, parts: &[Part]) -> bool {
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

    /// Some sparse extents become one.
    fn merge_sparse(&mut self, walk: &mut Walk) -> Result<(), Moving> {
        let mut parts: Vec<Part> = Vec::new();
        let mut sources = 0;
        // The emptiest first.
        while let Some(extents) = walk.sparse.iter_mut().find(|extents| !extents.is_empty())
            && let Some(extent) = extents.front().copied()
        {
            let record = self.state.record(extent.into());
            let of_owner = record.owner == walk.owner && record.zero == 0 && self.can_be_left(extent);
            // It may have got more since: then it is not sparse any more, and no reason to end here.
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
            // Those that are left are fuller: no two of them fit into one.
            walk.sparse.iter_mut().for_each(VecDeque::clear);
            return Ok(());
        }
        // What follows in the volume follows in the extent.
        parts.sort_unstable_by_key(|part| part.block);
        for (slot, part) in (0..).zip(&mut parts) {
            part.to_slot = slot;
        }
        self.put_together(walk.owner, parts, None)
    }

    fn put_together(&mut self, owner: OwnerId, mut parts: Vec<Part>, logical: Option<u32>) -> Result<(), Moving> {
        let Some(target) = self.take_extent(owner, None) else { return Err(Moving::Full) };
        parts.sort_unstable_by_key(|part| (part.from, part.slot));
        let life = |extent: ExtentId| self.state.records.life(extent);
        let mut sources: Vec<(ExtentId, u16)> = parts.iter().map(|part| (part.from, life(part.from))).collect();
        sources.dedup();
        self.begin_move(Move::new(target, logical, sources, parts));
        Ok(())
    }
}

/// Of which logical extent a block is.
fn logical_of(part: &Part) -> Option<u32> {
    u32::try_from(part.block / u64::from(EXTENT_BLOCKS)).ok()
}
