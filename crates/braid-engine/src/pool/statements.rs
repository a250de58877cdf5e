//! What owners say of blocks, gathered from all records: step by step, as a pool may have millions of them, and its home has others to
//! serve.
//!
//! A walk sees each record once, as it is in that moment. What moves from one record to another meanwhile may be seen twice, or not.

use std::collections::BTreeMap;
use std::ops::Range;

use braid_format::pool::{Record, RecordKind};

use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::state::{RecordId, State};
use super::units::{EXTENT_BLOCKS, ExtentId};

/// What one record says of one logical extent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Statement {
    /// The logical extent.
    pub logical: u32,
    /// Who says it.
    pub owner: OwnerId,
    /// Which blocks stand there.
    pub present: u64,
    /// Which read as zeros.
    pub zero: u64,
}

/// What a record without an extent says: that these blocks of some logical extents read as zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ZeroRange {
    /// Who says it.
    pub owner: OwnerId,
    /// The first logical extent.
    pub first: u32,
    /// How many.
    pub count: u64,
    /// Which blocks of each.
    pub zero: u64,
}

impl ZeroRange {
    /// Which blocks of a logical extent it covers.
    pub fn at(&self, logical: u32) -> u64 {
        let inside = logical >= self.first && u64::from(logical - self.first) < self.count;
        if inside { self.zero } else { 0 }
    }
}

/// A way through all records of a pool.
#[derive(Debug)]
pub struct Walk {
    /// Which logical extents are wanted.
    pub window: Range<u64>,
    /// What was found, in no order; a packed extent says several things of the same.
    pub statements: Vec<Statement>,
    /// What reads as zeros without an extent, in order; not only in the window.
    pub ranges: Vec<ZeroRange>,
    /// How many extents each owner has, and how many blocks stand in these: not only in the window.
    pub held: BTreeMap<OwnerId, (u64, u64)>,
    /// Only these owners, in order; all where there are none.
    only: Vec<OwnerId>,
    member: u8,
    index: u32,
    zeros: Option<(OwnerId, u32)>,
}

impl Walk {
    /// Of all owners, or of some.
    pub fn new(window: Range<u64>, mut only: Vec<OwnerId>) -> Walk {
        only.sort_unstable();
        let (statements, ranges, held) = (Vec::new(), Vec::new(), BTreeMap::new());
        Walk { window, statements, ranges, held, only, member: 0, index: 0, zeros: Some((0, 0)) }
    }

    fn wants(&self, owner: OwnerId) -> bool {
        self.only.is_empty() || self.only.binary_search(&owner).is_ok()
    }

    /// Goes on, for about so many loads of memory. True: that was all.
    pub fn step(&mut self, state: &State, mut budget: u32) -> bool {
        let members = state.members().count();
        while usize::from(self.member) < members {
            let extents = state.records.extents(self.member);
            while self.index < extents {
                if budget == 0 {
                    return false;
                }
                let extent = ExtentId { member: self.member, index: self.index };
                self.index += 1;
                budget = budget.saturating_sub(1 + self.look(state, extent));
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

    /// Notes what one extent says. Returns how much there was to look at.
    fn look(&mut self, state: &State, extent: ExtentId) -> u32 {
        let owner = state.records.owner(extent) & !OWNER_HELD;
        if owner == 0 || !self.wants(owner) {
            return 0;
        }
        let record = state.record(extent.into());
        if record.kind == RecordKind::Free {
            return 0;
        }
        let held = self.held.entry(owner).or_default();
        *held = (held.0 + 1, held.1 + u64::from(record.present.count_ones()));
        if record.kind != RecordKind::Packed {
            if self.window.contains(&record.logical.into()) {
                let (present, zero) = (record.present, record.zero);
                self.statements.push(Statement { logical: record.logical, owner, present, zero });
            }
            return 4;
        }
        let addresses = state.addresses(extent.into()).expect("a packed extent has addresses");
        for slot in (0..EXTENT_BLOCKS as usize).filter(|slot| record.present >> slot & 1 == 1) {
            let (logical, bit) = (addresses.0[slot] / u64::from(EXTENT_BLOCKS), addresses.0[slot] % 64);
            if self.window.contains(&logical) {
                self.statements.push(Statement { logical: logical as u32, owner, present: 1 << bit, zero: 0 });
            }
        }
        EXTENT_BLOCKS
    }

    /// How many blocks an owner says twice that it has, of what was found. Of blocks that move meanwhile that may seem so.
    pub fn said_twice(&mut self) -> u64 {
        self.statements.sort_unstable();
        let mut twice = 0;
        for of_one in self.statements.chunk_by(|a, b| (a.logical, a.owner) == (b.logical, b.owner)) {
            let mut present = 0u64;
            for said in of_one {
                twice += u64::from((present & said.present).count_ones());
                present |= said.present;
            }
        }
        twice
    }

    /// Puts what was found in order, one statement for each owner and logical extent.
    pub fn sort(&mut self) {
        self.statements.sort_unstable();
        self.statements.dedup_by(|next, one| {
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

/// Zero ranges of one owner, as the logical extents go by.
#[derive(Clone, Default)]
pub(super) struct Ranges<'a> {
    /// Those that begin later, in order.
    pub ahead: &'a [ZeroRange],
    /// Those that go on.
    pub here: Vec<ZeroRange>,
}

impl Ranges<'_> {
    /// Which blocks of a logical extent they cover; each later than the one before.
    pub fn at(&mut self, logical: u32) -> u64 {
        while let Some((first, rest)) = self.ahead.split_first().filter(|(first, _)| first.first <= logical) {
            self.here.push(*first);
            self.ahead = rest;
        }
        self.here.retain(|range| u64::from(range.first) + range.count > u64::from(logical));
        self.here.iter().fold(0, |all, range| all | range.at(logical))
    }
}

/// Sees what owners cease to say in one record, as it may say it in another that a walk has passed already.
#[derive(Debug)]
pub struct Watch {
    owners: Vec<OwnerId>,
    lost: Vec<Statement>,
    lost_ranges: Vec<ZeroRange>,
}

/// What a watch remembers at most.
const LOST_MAX: usize = 1 << 20;

impl Watch {
    /// Over these owners.
    pub fn new(mut owners: Vec<OwnerId>) -> Watch {
        owners.sort_unstable();
        Watch { owners, lost: Vec::new(), lost_ranges: Vec::new() }
    }

    /// A record is about to be changed.
    pub(super) fn note(&mut self, state: &State, id: RecordId, new: &Record) {
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
            RecordKind::Whole => self.lost.push(Statement { logical, owner, present, zero }),
            RecordKind::Packed => {
                let addresses = state.addresses(id).expect("a packed extent has addresses");
                for slot in (0..EXTENT_BLOCKS as usize).filter(|slot| present >> slot & 1 == 1) {
                    let (logical, bit) = (addresses.0[slot] / u64::from(EXTENT_BLOCKS), addresses.0[slot] % 64);
                    self.lost.push(Statement { logical: logical as u32, owner, present: 1 << bit, zero: 0 });
                }
            }
        }
    }

    /// Adds what it saw to what a walk found. False: it was more than can be kept, and the walk is worth nothing.
    pub fn add_to(self, walk: &mut Walk) -> bool {
        let window = walk.window.clone();
        walk.statements.extend(self.lost.iter().filter(|said| window.contains(&said.logical.into())));
        walk.ranges.extend(&self.lost_ranges);
        self.lost.len() <= LOST_MAX
    }
}
