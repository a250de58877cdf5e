//! What a walk through the records finds, and what it misses because it moves meanwhile: see [`super::walk`].

use super::owners::OwnerId;

/// What one record defines of one logical extent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ExtentDefinition {
    /// The logical extent.
    pub logical: u32,
    /// The owner.
    pub owner: OwnerId,
    /// Blocks with data.
    pub present: u64,
    /// Blocks that read as zeros.
    pub zero: u64,
}

/// What a record without an extent defines: blocks of consecutive logical extents that read as zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ZeroRange {
    /// The owner.
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

/// Collects definitions that owners remove from a record: a record that a walk has passed already may have them now.
#[derive(Debug)]
pub struct Watch {
    pub(super) owners: Vec<OwnerId>,
    pub(super) lost: Vec<ExtentDefinition>,
    pub(super) lost_ranges: Vec<ZeroRange>,
}
