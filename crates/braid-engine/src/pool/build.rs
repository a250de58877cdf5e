//! Building the map of a volume or snapshot in slices: it looks at all records, and the pool's home has others to serve meanwhile.
//!
//! What shows through an owner is what it states, then what its parent does, and so on: its ancestors are gone through one after the other,
//! the nearest first. None of them changes while that goes on: nobody writes under one that is not served, and those before it are snapshots
//! that were acknowledged, so that nothing is on its way to places of theirs. Folds that would relabel what they have wait. Whatever changes such a record
//! nevertheless makes the building begin anew, and after a few times be done at once.

use braid_format::pool::{Change, Owner, OwnerKind, RecordKind};

use super::admin::{AdminError, extents_for};
use super::home::{Pool, VolumeId, mask};
use super::map::MapWriter;
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::state::{RecordId, State};
use super::stated::Stated;
use super::units::{BLOCK_BYTES, EXTENT_BLOCKS, ExtentId};
use crate::planted::{Planted, planted};

/// So often the building of a map begins anew before it is done at once.
const ANEW_MAX: u32 = 3;

/// What an owner states.
pub(super) enum Said {
    /// Blocks at their own positions in an extent; those that read as zeros after those that stand there.
    Whole(ExtentId, u32, u64, u64),
    /// A block in a slot of a packed extent.
    Slot(ExtentId, u8, u64),
    /// So many logical extents from one on, and which blocks of each read as zeros.
    Zeros(u32, u64, u64),
}

/// A way through all that one owner states: its records, and last what it says of zeros.
pub(super) struct Scan {
    owner: OwnerId,
    next: RecordId,
    /// From which logical extent on; none where all was told.
    zeros: Option<u32>,
}

impl Scan {
    pub fn new(owner: OwnerId) -> Scan {
        Scan { owner, next: RecordId { member: 0, index: 0 }, zeros: Some(0) }
    }

    /// Goes on, for about so many loads of memory. True: that was all.
    pub fn step(&mut self, state: &State, budget: &mut u32, mut tell: impl FnMut(Said)) -> bool {
        self.records(state, budget, &mut tell) && self.zeros(state, budget, tell)
    }

    /// The same of what stands in extents.
    fn records(&mut self, state: &State, budget: &mut u32, mut tell: impl FnMut(Said)) -> bool {
        let members = state.members().count();
        while usize::from(self.next.member) < members {
            let RecordId { member, index } = self.next;
            let extents = state.records.extents(member);
            let last = extents.min(index.saturating_add(*budget));
            for index in index..last {
                let extent = ExtentId { member, index };
                if state.records.owner(extent) & !OWNER_HELD == self.owner {
                    *budget = budget.saturating_sub(tell_record(state, extent, &mut tell));
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

    /// The same of zeros without an extent: what is in one counts before them.
    fn zeros(&mut self, state: &State, budget: &mut u32, mut tell: impl FnMut(Said)) -> bool {
        let Some(from) = self.zeros else { return true };
        for ((owner, logical), record) in state.zeros_from((self.owner, from)) {
            if owner != self.owner {
                break;
            }
            // All that begin with one extent are told together.
            if *budget == 0 && logical != from {
                self.zeros = Some(logical);
                return false;
            }
            *budget = budget.saturating_sub(1 + u32::try_from(record.present / 16).unwrap_or(u32::MAX));
            tell(Said::Zeros(logical, record.present, record.zero));
        }
        self.zeros = None;
        true
    }
}

/// Tells what one extent says. Returns how much there was to look at.
fn tell_record(state: &State, extent: ExtentId, tell: &mut impl FnMut(Said)) -> u32 {
    let record = state.record(extent.into());
    if record.kind != RecordKind::Packed {
        tell(Said::Whole(extent, record.logical, record.present, record.zero));
        return 4;
    }
    let addresses = state.addresses(extent.into()).expect("a packed extent has addresses");
    for slot in (0..EXTENT_BLOCKS as u8).filter(|slot| record.present >> slot & 1 == 1) {
        tell(Said::Slot(extent, slot, addresses.0[usize::from(slot)]));
    }
    EXTENT_BLOCKS
}

/// A map that is being built.
pub(super) struct Build {
    /// The owner and its ancestors, the nearest first; and at which of them it is.
    chain: Vec<OwnerId>,
    at: usize,
    scan: Scan,
    /// Which blocks somebody nearer, or a record before, has spoken of, by logical extent. No two of an owner say that they have the same one.
    stated: Stated,
    /// What extents of the owner that is looked at say is zero, to be added when all have been seen: where another one has the block,
    /// that is the newer word. (A fold may leave an extent that says nothing but zeros, which nobody finds who writes these.)
    zeros: Vec<(u32, u64)>,
    writer: MapWriter,
    /// Bytes of it, and whether a member is absent on which one of the chain may state something, when it began.
    size_bytes: u64,
    lacks: bool,
    /// Of some blocks nobody knows who states them.
    in_doubt: bool,
    anew: u32,
    spoiled: bool,
    /// Not to be served: somebody wants to know what shows through an owner.
    aside: bool,
}

impl Build {
    fn new(state: &State, owner: OwnerId) -> Build {
        let size_bytes = state.owners.get(owner).map_or(0, |owner| owner.size_bytes);
        let extents = extents_for(size_bytes);
        Build {
            chain: state.owners.chain(owner),
            at: 0,
            scan: Scan::new(owner),
            stated: Stated::new(extents),
            zeros: Vec::new(),
            writer: MapWriter::new(extents),
            size_bytes,
            lacks: lacks(state, owner),
            in_doubt: false,
            anew: 0,
            spoiled: false,
            aside: false,
        }
    }

    fn step(&mut self, state: &State, budget: &mut u32) -> bool {
        let Build { chain, at, scan, stated, zeros, writer, size_bytes, in_doubt, .. } = self;
        while let Some(owner) = chain.get(*at) {
            if scan.owner != *owner {
                *scan = Scan::new(*owner);
            }
            let nearest = *at == 0;
            let mut show = |said| {
                match said {
                    Said::Whole(extent, logical, present, _) => {
                        let seen = stated.get(logical).map_or(0, |stated| present & !stated);
                        if seen != 0 {
                            writer.set_blocks(&state.records, logical, seen, extent, nearest && seen == present);
                        }
                    }
                    Said::Slot(extent, slot, block) => {
                        if stated.has(block) == Some(false) {
                            writer.set_packed(&state.records, block, extent, slot);
                        }
                    }
                    Said::Zeros(..) => {}
                }
                match said {
                    Said::Whole(extent, logical, present, zero) => {
                        if zero != 0 {
                            zeros.push((logical, zero));
                        }
                        stated.add(&Said::Whole(extent, logical, present, 0));
                    }
                    said => stated.add(&said),
                }
            };
            if !scan.records(state, budget, &mut show) {
                return false;
            }
            if state.may_lack(*owner) && !planted(Planted::LookupFallsThrough) {
                // What it has on a member that is here is certain. Of all else nobody knows whether it has it where nobody can look, and it
                // is never looked up further down; nor is what an extent says is zero certain, as what it has beats that.
                zeros.clear();
                *in_doubt = rest_in_doubt(state, writer, stated, size_bytes.div_ceil(BLOCK_BYTES));
                *at = chain.len();
                return true;
            }
            for (logical, zero) in zeros.drain(..) {
                stated.add_blocks(logical, zero);
            }
            let told = scan.zeros(state, budget, |said| match said {
                Said::Zeros(..) if planted(Planted::ZerosForgottenByClones) => {}
                said => stated.add(&said),
            });
            if !told {
                return false;
            }
            *at += 1;
        }
        true
    }
}

/// Whether a member is absent on which the owner, or one before it, may state something.
fn lacks(state: &State, id: OwnerId) -> bool {
    state.may_lack(id) || state.chain_may_lack(id)
}

/// What nobody has spoken of, of so many blocks, is in doubt. False: there is no such block.
fn rest_in_doubt(state: &State, writer: &mut MapWriter, stated: &Stated, blocks: u64) -> bool {
    let mut any = false;
    for (logical, stated) in (0..).map_while(|logical| stated.get(logical).map(|stated| (logical, stated))) {
        let there = blocks.saturating_sub(u64::from(logical) * u64::from(EXTENT_BLOCKS));
        let rest = !stated & mask(0, there.min(u64::from(EXTENT_BLOCKS)) as u32);
        if rest != 0 {
            writer.set_blocks(&state.records, logical, rest, ExtentId::IN_DOUBT, false);
            any = true;
        }
    }
    any
}

impl Pool {
    /// Builds the map of a volume or snapshot, and serves it. Looks at all records.
    ///
    /// # Errors
    /// `NoSuch`, `InUse`; `TailFull`: something is on its way to it, to be asked again when something was committed.
    pub fn serve(&mut self, id: OwnerId) -> Result<VolumeId, AdminError> {
        loop {
            if let Some(id) = self.serve_step(id, u32::MAX)? {
                return Ok(id);
            }
        }
    }

    /// Goes on building the map of a volume or snapshot, for about so many loads of memory, and serves it when it is built. `None`: to be
    /// called again, when others had their turn.
    ///
    /// # Errors
    /// As [`Pool::serve`].
    pub fn serve_step(&mut self, id: OwnerId, mut budget: u32) -> Result<Option<VolumeId>, AdminError> {
        let owner = self.to_serve(id)?;
        let Some(build) = self.build_step(&owner, false, &mut budget) else { return Ok(None) };
        let mut writer = build.writer;
        // It may have grown meanwhile; nobody has anything there.
        let extents = extents_for(owner.size_bytes);
        if extents > build.stated.extents() {
            writer.resize(extents);
        }
        // What its owner states is not all known: what it stated newly might be stated twice.
        let frozen = build.in_doubt || self.state.may_lack(id) || owner.kind == OwnerKind::Snapshot;
        Ok(Some(self.add_volume(id, writer, frozen)))
    }

    /// Goes on building the map of what shows through an owner that nobody writes, for about so many loads of memory, and gives it away when
    /// it is built. Whoever has it hears of what moves.
    pub(super) fn build_aside(&mut self, id: OwnerId, budget: &mut u32) -> Option<MapWriter> {
        let owner = self.state.owners.get(id)?.clone();
        self.build_step(&owner, true, budget).map(|build| build.writer)
    }

    /// Nobody wants such maps any more.
    pub(super) fn drop_builds_aside(&mut self) {
        self.builds.retain(|build| !build.aside);
    }

    fn build_step(&mut self, owner: &Owner, aside: bool, budget: &mut u32) -> Option<Build> {
        let id = owner.id;
        let at = self.builds.iter().position(|build| build.chain[0] == id && build.aside == aside);
        let mut build = match at {
            Some(at) => self.builds.swap_remove(at),
            None => Build { aside, ..Build::new(&self.state, id) },
        };
        if build.spoiled || build.lacks != lacks(&self.state, id) || build.lacks && build.size_bytes != owner.size_bytes
        {
            build = Build { anew: build.anew + 1, aside, ..Build::new(&self.state, id) };
        }
        if build.anew > ANEW_MAX {
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

    /// Whether it may be served now.
    fn to_serve(&self, id: OwnerId) -> Result<Owner, AdminError> {
        let owner = self.state.owners.get(id).ok_or(AdminError::NoSuch)?;
        if !matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot) {
            return Err(AdminError::NoSuch);
        }
        if self.served(id).is_some() {
            return Err(AdminError::InUse);
        }
        // A snapshot that was not acknowledged: what had begun before it is not in its records yet.
        if self.awaits_data(id) {
            return Err(AdminError::TailFull);
        }
        Ok(owner.clone())
    }

    /// Whether the map of this owner is being built.
    pub(super) fn is_building(&self, id: OwnerId) -> bool {
        self.builds.iter().any(|build| build.chain[0] == id && !build.aside)
    }

    /// Whether a map is being built of what this owner has, too: then nothing of that is to be moved or relabelled, if it can wait.
    pub fn is_looked_at(&self, id: OwnerId) -> bool {
        self.builds.iter().any(|build| build.chain.contains(&id)) && !planted(Planted::RelabelledWhileBuilt)
    }

    /// A record is about to be changed: maps that are being built may have seen what it was.
    #[cold]
    pub(super) fn note_for_builds(&mut self, id: RecordId, change: &Change) {
        if planted(Planted::RelabelledWhileBuilt) {
            return;
        }
        let new = match change {
            Change::Record { record } | Change::Slot { record, .. } => record,
            Change::Owner { .. } | Change::Padding => return,
        };
        let old = self.state.record(id);
        // What holds nothing is in no map.
        let says = |record: &braid_format::pool::Record| record.present | record.zero != 0;
        for build in &mut self.builds {
            build.spoiled |= says(&old) && build.chain.contains(&old.owner);
            build.spoiled |= says(new) && build.chain.contains(&new.owner);
        }
    }

    /// What shows through an owner, built at once.
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
    use crate::pool::map::Found;

    #[test]
    fn what_an_owner_has_beats_what_another_extent_of_it_says_is_zero() {
        let mut state = State::new(16);
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
            assert_eq!(found, Found::At { extent, position: 2, blocks: 1 });
        }
    }
}
