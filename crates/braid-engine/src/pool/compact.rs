//! Compaction: what an owner has scattered is put together.
//!
//! Many blocks of one logical extent that stand in packed extents go to a whole one of their own, so that they are read in one piece; what
//! is left in packed extents that have lost most of their slots, and in whole ones with few blocks, goes to fewer packed ones. Both are moves
//! like others ([`super::moves`]); nothing is remembered of them.

use braid_format::pool::RecordKind;

use super::home::Pool;
use super::moves::Moving;
use super::one_move::{Move, Part};
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::state::RecordId;
use super::units::{EXTENT_BLOCKS, ExtentId};

/// From so many blocks on a logical extent is worth an extent of its own, as when they are written together.
const DENSE_MIN: usize = 32;
/// A packed extent with so many slots in use, or less, is sparse.
const SPARSE_PACKED_MAX: u32 = 48;
/// The same of whole ones.
const SPARSE_WHOLE_MAX: u32 = 16;

/// What is to be put together.
pub(super) struct Compaction {
    /// Of these owners, the last first.
    owners: Vec<OwnerId>,
    walk: Option<Walk>,
}

/// One owner is looked at.
struct Walk {
    owner: OwnerId,
    next: RecordId,
    /// What stands in packed extents, and in whole ones that are not full: by block, when all have been seen.
    blocks: Vec<Part>,
    /// Sparse extents, and how many blocks they have.
    sparse: Vec<(u32, ExtentId)>,
    /// Where among the blocks it is; then among the sparse ones.
    at: Option<usize>,
}

impl Compaction {
    /// Whether this owner's turn is to come.
    pub fn is_to_come(&self, owner: OwnerId) -> bool {
        self.owners.contains(&owner)
    }

    /// Whose turn it is, and which record is looked at next.
    pub fn walking(&self) -> Option<(OwnerId, RecordId)> {
        self.walk.as_ref().map(|walk| (walk.owner, walk.next))
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
        let compaction = self.compaction.get_or_insert_with(|| Compaction { owners: Vec::new(), walk: None });
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
        let result = self.compact_on(&mut compaction, records);
        if result == Moving::Some {
            self.compaction = Some(compaction);
        }
        result
    }

    fn compact_on(&mut self, compaction: &mut Compaction, records: u32) -> Moving {
        for _ in 0..records {
            if !self.moves.has_place() {
                return Moving::Some;
            }
            let Some(walk) = &mut compaction.walk else {
                // What was begun last ends first.
                let Some(owner) = compaction.owners.pop() else {
                    return if self.moves.is_idle() { Moving::Done } else { Moving::Some };
                };
                let next = RecordId { member: 0, index: 0 };
                let walk = Walk { owner, next, blocks: Vec::new(), sparse: Vec::new(), at: None };
                compaction.walk = Some(walk);
                continue;
            };
            let begun = match walk.at {
                None => {
                    self.look_for_scattered(walk);
                    Ok(())
                }
                Some(at) if at < walk.blocks.len() => self.gather_dense(walk, at),
                Some(_) if !walk.sparse.is_empty() => self.merge_sparse(walk),
                Some(_) => {
                    compaction.walk = None;
                    Ok(())
                }
            };
            if let Err(full) = begun {
                return full;
            }
        }
        Moving::Some
    }

    /// Notes what the next record has.
    fn look_for_scattered(&self, walk: &mut Walk) {
        let id = walk.next;
        if usize::from(id.member) == self.rooms.len() {
            walk.blocks.sort_unstable_by_key(|part| (part.block, part.from, part.slot));
            walk.sparse.sort_unstable_by(|a, b| b.cmp(a));
            walk.at = Some(0);
            return;
        }
        if id.index >= self.state.records.extents(id.member) {
            walk.next = RecordId { member: id.member + 1, index: 0 };
            return;
        }
        walk.next.index += 1;
        let extent = ExtentId { member: id.member, index: id.index };
        if self.state.records.owner(extent) != walk.owner || !self.can_be_left(extent) {
            return;
        }
        let record = self.state.record(id);
        let count = record.present.count_ones();
        let packed = record.kind == RecordKind::Packed;
        if count == 0 || !packed && count == EXTENT_BLOCKS {
            return;
        }
        let most = if packed { SPARSE_PACKED_MAX } else { SPARSE_WHOLE_MAX };
        if count <= most && record.zero == 0 {
            walk.sparse.push((count, extent));
        }
        walk.blocks.extend(self.parts_of(extent));
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
    fn gather_dense(&mut self, walk: &mut Walk, at: usize) -> Result<(), Moving> {
        let logical = walk.blocks[at].block / u64::from(EXTENT_BLOCKS);
        let of_it = |part: &&Part| part.block / u64::from(EXTENT_BLOCKS) == logical;
        let all: Vec<Part> = walk.blocks[at..].iter().take_while(of_it).copied().collect();
        let owner = walk.owner;
        // Small writes that came in turn stand in the same extents: what is being moved out of these ends first.
        let ends_soon = |part: &Part| {
            let held = self.state.records.owner(part.from) & OWNER_HELD != 0;
            held && self.stands(owner, part) && !self.state.damage.has_slots(part.from.into())
        };
        if all.len() >= DENSE_MIN && !self.moves.is_idle() && all.iter().any(ends_soon) {
            return Err(Moving::Some);
        }
        walk.at = Some(at + all.len());
        let all_there = all.iter().all(|part| self.stands(owner, part) && self.can_be_left(part.from));
        let one = all.iter().all(|part| part.from == all[0].from);
        let whole = self.state.record(all[0].from.into()).kind == RecordKind::Whole;
        if all.len() < DENSE_MIN || !all_there || one && whole || self.states_otherwise(owner, logical as u32, &all) {
            return Ok(());
        }
        let parts = all.into_iter().map(|part| Part { to_slot: (part.block % 64) as u8, ..part }).collect();
        self.put_together(owner, parts, Some(logical as u32))
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
        while let Some((_, extent)) = walk.sparse.last().copied() {
            let record = self.state.record(extent.into());
            let of_owner = record.owner == walk.owner && record.zero == 0 && self.can_be_left(extent);
            let more = if of_owner { self.parts_of(extent) } else { Vec::new() };
            if parts.len() + more.len() > EXTENT_BLOCKS as usize {
                break;
            }
            walk.sparse.pop();
            if !more.is_empty() {
                sources += 1;
                parts.extend(more);
            }
        }
        if sources < 2 {
            // Those that are left are fuller: no two of them fit into one.
            walk.sparse.clear();
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
