//! What is known of members that are being added, are missing or lost, or have no space below.

use braid_engine::pool::PoolDevice;

use super::disk::Disk;
use super::parameters::Focus;
use crate::rng::{Rng, mix};

/// A member that is being added to the pool.
pub(super) struct AddingMember {
    pub device: PoolDevice,
    pub step: AddStep,
}

pub(super) enum AddStep {
    /// The member's first checkpoint is durable.
    Created,
    /// The pool writes to the member; this checkpoint must complete.
    Added(u64),
    /// The labels name the member.
    Labelled,
}

/// A member that is missing.
#[derive(Clone)]
pub(super) struct MissingMember {
    /// An older copy of the member's disk, as which the member returns; `None`: it returns as it was lost.
    pub old: Option<Disk>,
    /// A start has refused the member: it never returns.
    pub refused: bool,
    /// The pool has started without the member.
    pub started_without: bool,
}

/// A copy of a member's disk.
#[derive(Clone)]
pub(super) struct DiskCopy {
    pub number: u8,
    pub disk: Disk,
    pub life: u32,
}

/// A member whose loss was accepted.
#[derive(Clone)]
pub(super) struct LostMember {
    pub device: PoolDevice,
    /// The life in which its loss was accepted.
    pub life: u32,
}

/// Full file systems below members: see [`super::full`].
#[derive(Clone)]
pub(super) struct FullFileSystems {
    pub rng: Rng,
    /// Chance per million, at each step, that file systems become full; 0: never.
    pub fill_chance: u32,
    /// Chance per million that a write fails while its file system is full: writes to space that is allocated already
    /// succeed.
    pub write_fail_chance: u32,
    /// The members whose file system is full, as a bit mask.
    pub members: u128,
    pub until: u64,
    /// For the next start: the member that has no space, and the number of writes to it that succeed before.
    pub start_fault: Option<(u32, u64)>,
    pub failed_starts: u64,
}

impl FullFileSystems {
    pub fn new(seed: u64, focus: Option<Focus>) -> FullFileSystems {
        let mut rng = Rng::new(mix(seed ^ 0x6675_6c6c));
        let fill_chance = match focus {
            None if mix(seed ^ 0x6675_6c6c).is_multiple_of(8) => *rng.pick(&[3_000, 10_000, 30_000]),
            Some(Focus::Full) => *rng.pick(&[10_000, 30_000]),
            _ => 0,
        };
        let write_fail_chance = *rng.pick(&[300_000, 700_000, 1_000_000]);
        FullFileSystems {
            rng,
            fill_chance,
            write_fail_chance,
            members: 0,
            until: 0,
            start_fault: None,
            failed_starts: 0,
        }
    }

    /// Returns whether file systems fill up in this run.
    pub fn is_on(&self) -> bool {
        self.fill_chance > 0
    }
}
