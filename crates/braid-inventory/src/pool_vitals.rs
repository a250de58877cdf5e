//! Vitals of pools: how full a pool is, as its home reported last.

use braid_engine::pool::{EXTENT_BYTES, MemberSpace, Pool};
use braid_geometry::units::format_size;

/// Levels of how full a pool is; each is reported once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Fill {
    /// There is space.
    #[default]
    Normal,
    /// 80 % are allocated or reserved.
    High,
    /// 95 % are allocated or reserved.
    Critical,
}

impl Fill {
    /// Returns the level that follows this one, for a pool with `size` extents, `free` of which are free. A level ends
    /// two percentage points below the threshold at which it begins.
    pub fn next(self, size: u64, free: u64) -> Fill {
        let used = u128::from(size.saturating_sub(free)) * 100;
        let over = |percent: u32| size > 0 && used >= u128::from(size) * u128::from(percent);
        let at = |level: Fill, percent: u32| over(percent) || self >= level && over(percent - 2);
        match () {
            () if at(Fill::Critical, 95) => Fill::Critical,
            () if at(Fill::High, 80) => Fill::High,
            () => Fill::Normal,
        }
    }
}

/// How full a pool is. The maintenance task reads it about once a second.
#[derive(Clone, Debug, Default)]
pub struct Vitals {
    /// The space of each member, in extents.
    pub members: Vec<MemberSpace>,
    /// Number of extents that are free, and reserved for thick volumes.
    pub kept: u64,
    /// Number of records without an extent that are in use.
    pub zero_records: u64,
    /// Maximum number of records without an extent.
    pub zero_records_max: u64,
    /// Number of owners (volumes and snapshots) in use.
    pub owners: u64,
    /// Maximum number of owners.
    pub owners_max: u64,
    /// The level that was reported last. [`Vitals::of`] leaves it at its default: it depends on the one before.
    pub fill: Fill,
    /// Where the pool's own writes find no space below.
    pub shortage: SpaceShortage,
}

impl Vitals {
    /// Reads the vitals; has to run at the pool's home.
    pub fn of(pool: &Pool) -> Vitals {
        let (members, state) = (pool.space(), pool.state());
        let zero_records_max = members.iter().map(|space| u64::from(state.zero_slots(space.member))).sum();
        let owners_max = u64::from(state.owners.slots());
        Vitals {
            members,
            kept: pool.reserved_extents(),
            zero_records: zero_records_max - state.free_zero_slots() as u64,
            zero_records_max,
            owners: owners_max - u64::from(state.owners.free_slots()),
            owners_max,
            fill: Fill::Normal,
            shortage: SpaceShortage::of(pool),
        }
    }

    /// Returns the number of extents of the members that accept new blocks, and how many of these are free and not
    /// reserved.
    pub fn open(&self) -> (u64, u64) {
        let open = self.members.iter().filter(|space| !space.closed);
        let sum = |(all, free), space: &MemberSpace| (all + u64::from(space.extents), free + u64::from(space.free));
        let (all, free) = open.fold((0, 0), sum);
        (all, free.saturating_sub(self.kept))
    }

    /// Describes how full the pool is in a sentence; `None`: it needs no attention.
    pub fn fill_warning(&self) -> Option<String> {
        let (all, free) = self.open();
        let percent = (all - free) * 100 / all.max(1);
        (self.fill > Fill::Normal)
            .then(|| format!("it is {percent} % full, {} are free", format_size(free * EXTENT_BYTES)))
    }
}

/// Where a pool's own writes find no space below its members.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceShortage {
    /// The members on which they find none, as a bit mask: bit N is member N.
    pub members: u128,
    /// A commit waits for space.
    pub commits: bool,
    /// The pool has failed: it writes nothing any more.
    pub failed: bool,
}

impl SpaceShortage {
    /// Reads the state; has to run on the shard that is the pool's home.
    pub fn of(pool: &Pool) -> SpaceShortage {
        SpaceShortage { members: pool.members_without_space(), commits: pool.is_starving(), failed: pool.has_failed() }
    }

    /// Returns whether the pool's own writes find no space on a member.
    pub fn is_any(self) -> bool {
        self.members != 0
    }
}
