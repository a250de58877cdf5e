//! A walk through what owners define, gathered from all records in steps: a pool may have millions of them, and its
//! home shard has other work.
//!
//! A walk sees each record once, as it is at that moment. What moves from one record to another meanwhile may be seen
//! twice, or not at all.

use std::collections::BTreeMap;
use std::ops::Range;

use braid_format::pool::{Record, RecordKind};

use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::state::PoolTables;
use super::units::{EXTENT_BLOCKS, ExtentId, RecordId};
use super::walked::{ExtentDefinition, Watch, ZeroRange};

/// A walk through all records of a pool.
#[derive(Debug)]
pub struct Walk {
    /// The logical extents that are wanted.
    pub window: Range<u64>,
    /// The definitions found, unsorted; a packed extent gives several for one logical extent.
    pub definitions: Vec<ExtentDefinition>,
    /// The zero ranges found, in order; not only those in the window.
    pub ranges: Vec<ZeroRange>,
    /// For each owner, its extents and the blocks in them; not only those in the window.
    pub owned: BTreeMap<OwnerId, (u64, u64)>,
    /// The wanted owners, sorted; all owners if empty.
    only: Vec<OwnerId>,
    member: u8,
    index: u32,
    zeros: Option<(OwnerId, u32)>,
}

impl Walk {
    /// Returns a walk for all owners, or for those in `only`.
    pub fn new(window: Range<u64>, mut only: Vec<OwnerId>) -> Walk {
        only.sort_unstable();
        let (statements, ranges, held) = (Vec::new(), Vec::new(), BTreeMap::new());
        Walk { window, definitions: statements, ranges, owned: held, only, member: 0, index: 0, zeros: Some((0, 0)) }
    }

    fn wants(&self, owner: OwnerId) -> bool {
        self.only.is_empty() || self.only.binary_search(&owner).is_ok()
    }

    /// Continues the walk for about `budget` loads of memory. Returns true at its end.
    pub fn step(&mut self, state: &PoolTables, mut budget: u32) -> bool {
        let members = state.members().count();
        while usize::from(self.member) < members {
            let extents = state.records.extents(self.member);
            while self.index < extents {
                if budget == 0 {
                    return false;
                }
                let extent = ExtentId { member: self.member, index: self.index };
                self.index += 1;
                budget = budget.saturating_sub(1 + self.visit_extent(state, extent));
            }
            (self.member, self.index) = (self.member + 1, 0);
        }
        while let Some(from) = self.zeros.take() {
            let mut next = None;
            for ((owner, logical), record) in state.zeros_from(from) {
                if budget == 0 && (owner, logical) != from {
                    next = Some((owner, logical));
                    break;
                }
                budget = budget.saturating_sub(1);
                if self.wants(owner) {
                    self.ranges.push(ZeroRange { owner, first: logical, count: record.present, zero: record.zero });
                }
            }
            if next.is_some() {
                self.zeros = next;
                return false;
            }
        }
        true
    }

    /// Adds what one extent defines. Returns the cost in loads of memory.
    fn visit_extent(&mut self, state: &PoolTables, extent: ExtentId) -> u32 {
        let owner = state.records.owner(extent) & !OWNER_HELD;
        if owner == 0 || !self.wants(owner) {
            return 0;
        }
        let record = state.record(extent.into());
        if record.kind == RecordKind::Free {
            return 0;
        }
        let held = self.owned.entry(owner).or_default();
        *held = (held.0 + 1, held.1 + u64::from(record.present.count_ones()));
        if record.kind != RecordKind::Packed {
            if self.window.contains(&record.logical.into()) {
                let (present, zero) = (record.present, record.zero);
                self.definitions.push(ExtentDefinition { logical: record.logical, owner, present, zero });
            }
            return 4;
        }
        let addresses = state.addresses(extent.into()).expect("a packed extent has addresses");
        for slot in (0..EXTENT_BLOCKS as usize).filter(|slot| record.present >> slot & 1 == 1) {
            let (logical, bit) = (addresses.0[slot] / u64::from(EXTENT_BLOCKS), addresses.0[slot] % 64);
            if self.window.contains(&logical) {
                self.definitions.push(ExtentDefinition { logical: logical as u32, owner, present: 1 << bit, zero: 0 });
            }
        }
        EXTENT_BLOCKS
    }

    /// Returns how many blocks were found with data in two records of one owner. Blocks that move meanwhile may be
    /// counted, too.
    pub fn defined_twice(&mut self) -> u64 {
        self.definitions.sort_unstable();
        let mut twice = 0;
        for of_one in self.definitions.chunk_by(|a, b| (a.logical, a.owner) == (b.logical, b.owner)) {
            let mut present = 0u64;
            for definition in of_one {
                twice += u64::from((present & definition.present).count_ones());
                present |= definition.present;
            }
        }
        twice
    }

    /// Sorts what was found, and joins it to one definition for each owner and logical extent.
    pub fn sort(&mut self) {
        self.definitions.sort_unstable();
        self.definitions.dedup_by(|next, one| {
            let same = (next.logical, next.owner) == (one.logical, one.owner);
            if same {
                one.present |= next.present;
                one.zero |= next.zero;
            }
            same
        });
        self.ranges.sort_unstable();
    }
}

/// Zero ranges of one owner, for a pass over rising logical extents.
#[derive(Clone, Default)]
pub(super) struct Ranges<'a> {
    /// Ranges that begin later, in order.
    pub upcoming: &'a [ZeroRange],
    /// Ranges that have begun and not ended.
    pub active: Vec<ZeroRange>,
}

impl Ranges<'_> {
    /// Returns the blocks of a logical extent that the ranges cover. Each call is for a later logical extent than the
    /// one before.
    pub fn at(&mut self, logical: u32) -> u64 {
        while let Some((first, rest)) = self.upcoming.split_first().filter(|(first, _)| first.first <= logical) {
            self.active.push(*first);
            self.upcoming = rest;
        }
        self.active.retain(|range| u64::from(range.first) + range.count > u64::from(logical));
        self.active.iter().fold(0, |all, range| all | range.at(logical))
    }
}

/// Maximum definitions that a watch collects.
const LOST_MAX: usize = 1 << 20;

impl Watch {
    /// Returns a watch over these owners.
    pub fn new(mut owners: Vec<OwnerId>) -> Watch {
        owners.sort_unstable();
        Watch { owners, lost: Vec::new(), lost_ranges: Vec::new() }
    }

    /// Notes that a record is about to change.
    pub(super) fn note(&mut self, state: &PoolTables, id: RecordId, new: &Record) {
        let old = state.record(id);
        let same = (old.owner, old.kind, old.logical) == (new.owner, new.kind, new.logical);
        let kept = same && (old.present | old.zero) & !(new.present | new.zero) == 0;
        if kept || self.owners.binary_search(&old.owner).is_err() || self.lost.len() > LOST_MAX {
            return;
        }
        let Record { owner, logical, present, zero, .. } = old;
        match old.kind {
            RecordKind::Free => {}
            RecordKind::Zeros => self.lost_ranges.push(ZeroRange { owner, first: logical, count: present, zero }),
            RecordKind::Whole => self.lost.push(ExtentDefinition { logical, owner, present, zero }),
            RecordKind::Packed => {
                let addresses = state.addresses(id).expect("a packed extent has addresses");
                for slot in (0..EXTENT_BLOCKS as usize).filter(|slot| present >> slot & 1 == 1) {
                    let (logical, bit) = (addresses.0[slot] / u64::from(EXTENT_BLOCKS), addresses.0[slot] % 64);
                    self.lost.push(ExtentDefinition { logical: logical as u32, owner, present: 1 << bit, zero: 0 });
                }
            }
        }
    }

    /// Adds what was collected to what a walk found. False: it was more than a watch can collect, and the walk is
    /// invalid.
    pub fn add_to(self, walk: &mut Walk) -> bool {
        let window = walk.window.clone();
        walk.definitions.extend(self.lost.iter().filter(|definition| window.contains(&definition.logical.into())));
        walk.ranges.extend(&self.lost_ranges);
        self.lost.len() <= LOST_MAX
    }
}
