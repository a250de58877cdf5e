//! Building the map of a volume or snapshot in slices: a build scans all records, and the pool's home shard has other
//! work meanwhile.
//!
//! An owner *defines* a block if one of its records gives the block's content: data, or zeros. What shows through an
//! owner is what it defines, then what its parent defines, and so on: the chain is scanned nearest first.
//! Nothing in the chain changes during a build: an owner that is not served is not written, and its ancestors are
//! acknowledged snapshots, to which no data are in flight. Merges that would relabel their records wait. Any other
//! change of such a record restarts the build; after [`RESTARTS_MAX`] restarts it runs to its end in one step.

use braid_format::pool::{Change, Owner, OwnerKind, RecordKind};

use super::Pool;
use super::admin::{AdminError, extents_for};
use super::defined_blocks::{DefinedBlocks, Definition};
use super::map::MapWriter;
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::shared::VolumeId;
use super::state::PoolTables;
use super::units::{BLOCK_BYTES, EXTENT_BLOCKS, ExtentId, RecordId, mask};

/// Restarts after which a build runs to its end in one step.
const RESTARTS_MAX: u32 = 3;

/// A scan of everything that one owner defines: its extents, then its zero ranges.
pub(super) struct OwnerScan {
    owner: OwnerId,
    next: RecordId,
    /// The logical extent from which on zero ranges are still to be visited; `None` at the end.
    zeros: Option<u32>,
}

impl OwnerScan {
    pub fn new(owner: OwnerId) -> OwnerScan {
        OwnerScan { owner, next: RecordId { member: 0, index: 0 }, zeros: Some(0) }
    }

    /// Continues the scan for about `budget` loads of memory. Returns true at its end.
    pub fn step(&mut self, state: &PoolTables, budget: &mut u32, mut visit: impl FnMut(Definition)) -> bool {
        self.records(state, budget, &mut visit) && self.zeros(state, budget, visit)
    }

    /// Continues with the extents.
    fn records(&mut self, state: &PoolTables, budget: &mut u32, mut visit: impl FnMut(Definition)) -> bool {
        let members = state.members().count();
        while usize::from(self.next.member) < members {
            let RecordId { member, index } = self.next;
            let extents = state.records.extents(member);
            let last = extents.min(index.saturating_add(*budget));
            for index in index..last {
                let extent = ExtentId { member, index };
                if state.records.owner(extent) & !OWNER_HELD == self.owner {
                    *budget = budget.saturating_sub(visit_record(state, extent, &mut visit));
                }
            }
            *budget = budget.saturating_sub(last - index);
            self.next = RecordId { member, index: last };
            if last < extents {
                return false;
            }
            self.next = RecordId { member: member + 1, index: 0 };
        }
        true
    }

    /// Continues with the zero ranges, last: definitions in extents take precedence.
    fn zeros(&mut self, state: &PoolTables, budget: &mut u32, mut visit: impl FnMut(Definition)) -> bool {
        let Some(from) = self.zeros else { return true };
        for ((owner, logical), record) in state.zeros_from((self.owner, from)) {
            if owner != self.owner {
                break;
            }
            // Ranges that begin with the same logical extent are visited together.
            if *budget == 0 && logical != from {
                self.zeros = Some(logical);
                return false;
            }
            *budget = budget.saturating_sub(1 + u32::try_from(record.present / 16).unwrap_or(u32::MAX));
            visit(Definition::Zeros(logical, record.present, record.zero));
        }
        self.zeros = None;
        true
    }
}

/// Visits what one extent defines. Returns the cost in loads of memory.
fn visit_record(state: &PoolTables, extent: ExtentId, visit: &mut impl FnMut(Definition)) -> u32 {
    let record = state.record(extent.into());
    if record.kind != RecordKind::Packed {
        visit(Definition::Whole(extent, record.logical, record.present, record.zero));
        return 4;
    }
    let addresses = state.addresses(extent.into()).expect("a packed extent has addresses");
    for slot in (0..EXTENT_BLOCKS as u8).filter(|slot| record.present >> slot & 1 == 1) {
        visit(Definition::Slot(extent, slot, addresses.0[usize::from(slot)]));
    }
    EXTENT_BLOCKS
}

/// A map under construction.
pub(super) struct Build {
    /// The owner and its ancestors, nearest first, and the index of the one being scanned.
    chain: Vec<OwnerId>,
    at: usize,
    scan: OwnerScan,
    /// Blocks that a nearer owner, or an earlier record, defines. No two records of an owner have data for the same
    /// block.
    defined: DefinedBlocks,
    /// Zeros in extents of the owner being scanned, added when all of its extents were visited: data in another extent
    /// are newer. (A merge may leave an extent that defines nothing but zeros, and a write to these blocks does not
    /// find it.)
    zeros: Vec<(u32, u64)>,
    writer: MapWriter,
    /// As of the start of the build: the owner's size in bytes.
    size_bytes: u64,
    /// As of the start of the build: whether a missing member may have records of the chain.
    incomplete: bool,
    /// Some blocks are in doubt: it is unknown which owner defines them.
    in_doubt: bool,
    restarts: u32,
    invalidated: bool,
    /// Not to be served: the map is needed to find what shows through an owner.
    unserved: bool,
}

impl Build {
    fn new(state: &PoolTables, owner: OwnerId) -> Build {
        let size_bytes = state.owners.get(owner).map_or(0, |owner| owner.size_bytes);
        let extents = extents_for(size_bytes);
        Build {
            chain: state.owners.chain(owner),
            at: 0,
            scan: OwnerScan::new(owner),
            defined: DefinedBlocks::new(extents),
            zeros: Vec::new(),
            writer: MapWriter::new(extents),
            size_bytes,
            incomplete: incomplete(state, owner),
            in_doubt: false,
            restarts: 0,
            invalidated: false,
            unserved: false,
        }
    }

    fn step(&mut self, state: &PoolTables, budget: &mut u32) -> bool {
        let Build { chain, at, scan, defined, zeros, writer, size_bytes, in_doubt, .. } = self;
        while let Some(owner) = chain.get(*at) {
            if scan.owner != *owner {
                *scan = OwnerScan::new(*owner);
            }
            let nearest = *at == 0;
            let mut show = |definition| {
                match definition {
                    Definition::Whole(extent, logical, present, _) => {
                        let seen = defined.get(logical).map_or(0, |defined| present & !defined);
                        if seen != 0 {
                            writer.set_blocks(&state.records, logical, seen, extent, nearest && seen == present);
                        }
                    }
                    Definition::Slot(extent, slot, block) => {
                        if defined.has(block) == Some(false) {
                            writer.set_packed(&state.records, block, extent, slot);
                        }
                    }
                    Definition::Zeros(..) => {}
                }
                match definition {
                    Definition::Whole(extent, logical, present, zero) => {
                        if zero != 0 {
                            zeros.push((logical, zero));
                        }
                        defined.add(&Definition::Whole(extent, logical, present, 0));
                    }
                    definition => defined.add(&definition),
                }
            };
            if !scan.records(state, budget, &mut show) {
                return false;
            }
            if state.may_miss_records(*owner) {
                // Data on present members are certain. Every other block may be defined on a missing member, so it is
                // in doubt and never looked up in an ancestor. Zeros in an extent are not certain either: data
                // elsewhere would take precedence.
                zeros.clear();
                *in_doubt = mark_rest_in_doubt(state, writer, defined, size_bytes.div_ceil(BLOCK_BYTES));
                *at = chain.len();
                return true;
            }
            for (logical, zero) in zeros.drain(..) {
                defined.add_blocks(logical, zero);
            }
            let done = scan.zeros(state, budget, |definition| defined.add(&definition));
            if !done {
                return false;
            }
            *at += 1;
        }
        true
    }
}

/// Returns whether a missing member may have records of the owner or an ancestor.
fn incomplete(state: &PoolTables, id: OwnerId) -> bool {
    state.may_miss_records(id) || state.chain_may_miss_records(id)
}

/// Marks the undefined ones of the first `blocks` blocks as in doubt. Returns whether there are any.
fn mark_rest_in_doubt(state: &PoolTables, writer: &mut MapWriter, defined: &DefinedBlocks, blocks: u64) -> bool {
    let mut any = false;
    for (logical, defined) in (0..).map_while(|logical| defined.get(logical).map(|defined| (logical, defined))) {
        let existing = blocks.saturating_sub(u64::from(logical) * u64::from(EXTENT_BLOCKS));
        let rest = !defined & mask(0, existing.min(u64::from(EXTENT_BLOCKS)) as u32);
        if rest != 0 {
            writer.set_blocks(&state.records, logical, rest, ExtentId::IN_DOUBT, false);
            any = true;
        }
    }
    any
}

impl Pool {
    /// Builds the map of a volume or snapshot at once, and serves it. Scans all records.
    ///
    /// # Errors
    /// `NoSuch`, `InUse`; `LogFull`: data are in flight to it. Call again after a commit.
    pub fn serve(&mut self, id: OwnerId) -> Result<VolumeId, AdminError> {
        loop {
            if let Some(id) = self.serve_step(id, u32::MAX)? {
                return Ok(id);
            }
        }
    }

    /// Continues building the map of a volume or snapshot for about `budget` loads of memory, and serves it when it is
    /// complete. `None`: call again after other work had its turn.
    ///
    /// # Errors
    /// As [`Pool::serve`].
    pub fn serve_step(&mut self, id: OwnerId, mut budget: u32) -> Result<Option<VolumeId>, AdminError> {
        let owner = self.check_servable(id)?;
        let Some(build) = self.build_step(&owner, false, &mut budget) else { return Ok(None) };
        let mut writer = build.writer;
        // The volume may have grown meanwhile; no owner has blocks there.
        let extents = extents_for(owner.size_bytes);
        if extents > build.defined.extents() {
            writer.resize(extents);
        }
        // An owner whose records are not all known defines nothing new: an unknown record might define the same block.
        let frozen = build.in_doubt || self.state.may_miss_records(id) || owner.kind == OwnerKind::Snapshot;
        Ok(Some(self.add_volume(id, writer, frozen)))
    }

    /// Continues building the map of what shows through an owner that is not written, for about `budget` loads of
    /// memory, and returns it when it is complete. The caller has to apply later moves to the map itself.
    pub(super) fn build_unserved(&mut self, id: OwnerId, budget: &mut u32) -> Option<MapWriter> {
        let owner = self.state.owners.get(id)?.clone();
        self.build_step(&owner, true, budget).map(|build| build.writer)
    }

    /// Discards all builds that [`Pool::build_unserved`] has begun.
    pub(super) fn drop_unserved_builds(&mut self) {
        self.builds.retain(|build| !build.unserved);
    }

    fn build_step(&mut self, owner: &Owner, unserved: bool, budget: &mut u32) -> Option<Build> {
        let id = owner.id;
        let at = self.builds.iter().position(|build| build.chain[0] == id && build.unserved == unserved);
        let mut build = match at {
            Some(at) => self.builds.swap_remove(at),
            None => Build { unserved, ..Build::new(&self.state, id) },
        };
        if build.invalidated
            || build.incomplete != incomplete(&self.state, id)
            || build.incomplete && build.size_bytes != owner.size_bytes
        {
            build = Build { restarts: build.restarts + 1, unserved, ..Build::new(&self.state, id) };
        }
        if build.restarts > RESTARTS_MAX {
            *budget = u32::MAX;
        }
        while !build.step(&self.state, budget) {
            if *budget == 0 {
                self.builds.push(build);
                return None;
            }
        }
        Some(build)
    }

    /// Returns the owner if it may be served now.
    fn check_servable(&self, id: OwnerId) -> Result<Owner, AdminError> {
        let owner = self.state.owners.get(id).ok_or(AdminError::NoSuch)?;
        if !matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot) {
            return Err(AdminError::NoSuch);
        }
        if self.served(id).is_some() {
            return Err(AdminError::InUse);
        }
        // An unacknowledged snapshot: writes that began before it are not in its records yet.
        if self.awaits_data(id) {
            return Err(AdminError::LogFull);
        }
        Ok(owner.clone())
    }

    /// Whether the map of this owner is being built.
    pub(super) fn is_building(&self, id: OwnerId) -> bool {
        self.builds.iter().any(|build| build.chain[0] == id && !build.unserved)
    }

    /// Returns whether a map that covers this owner's records is being built: these are not to be moved or relabelled
    /// then, if that can wait.
    pub fn is_being_mapped(&self, id: OwnerId) -> bool {
        self.builds.iter().any(|build| build.chain.contains(&id))
    }

    /// Notes that a record is about to change: builds may have read the old one.
    #[cold]
    pub(super) fn note_for_builds(&mut self, id: RecordId, change: &Change) {
        let new = match change {
            Change::Record { record } | Change::Slot { record, .. } => record,
            Change::Owner { .. } | Change::Padding => return,
        };
        let old = self.state.record(id);
        // A record without blocks is in no map.
        let has_blocks = |record: &braid_format::pool::Record| record.present | record.zero != 0;
        for build in &mut self.builds {
            build.invalidated |= has_blocks(&old) && build.chain.contains(&old.owner);
            build.invalidated |= has_blocks(new) && build.chain.contains(&new.owner);
        }
    }

    /// Builds the map of what shows through an owner, at once.
    pub(super) fn build(&self, id: OwnerId) -> MapWriter {
        let mut build = Build::new(&self.state, id);
        while !build.step(&self.state, &mut u32::MAX.clone()) {}
        build.writer
    }
}

#[cfg(test)]
mod tests {
    use braid_format::Uuid;
    use braid_format::pool::{OwnerName, Record};

    use super::*;
    use crate::pool::map::BlockLocation;

    #[test]
    fn data_of_an_owner_take_precedence_over_zeros_in_another_extent_of_it() {
        let mut state = PoolTables::new(16);
        state.add_member(0, 4, 4);
        let owner = Owner::volume(Uuid::from_u128(1), OwnerName::new("db").unwrap(), 1 << 20);
        state.set_owner(0, Some(owner), 0);
        let whole = |present, zero| Record { kind: RecordKind::Whole, life: 1, owner: 1, logical: 2, present, zero };
        for (first, second) in [((0, 0b110), (0b100, 0)), ((0b100, 0), (0, 0b110))] {
            for (index, (present, zero)) in (0..).zip([first, second]) {
                state.set(RecordId { member: 0, index }, &whole(present, zero), 0);
            }
            let mut build = Build::new(&state, 1);
            // In steps of one record, too.
            while !build.step(&state, &mut 1) {}
            let at = if first.0 == 0 { 1 } else { 0 };
            let extent = ExtentId { member: 0, index: at };
            let found = build.writer.map().find(&state.records, 2 * 64 + 2, 1);
            assert_eq!(found, BlockLocation::At { extent, position: 2, blocks: 1 });
        }
    }
}
