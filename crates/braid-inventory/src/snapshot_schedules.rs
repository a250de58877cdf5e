//! Volumes with a snapshot schedule, and their scheduled snapshots.

use braid_api::names::policy_time;
use braid_format::pool::SnapshotSchedule;
use uuid::Uuid;

/// A volume with a snapshot schedule, as recorded last.
pub struct ScheduledVolume {
    /// Its identity.
    pub volume: Uuid,
    /// Its own name, without the pool's.
    pub name: String,
    /// The schedule.
    pub policy: SnapshotSchedule,
    /// Its scheduled snapshots, in the order in which they were taken.
    pub taken: Vec<ScheduledSnapshot>,
}

/// A scheduled snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledSnapshot {
    /// Its identity.
    pub uuid: Uuid,
    /// When it was taken, in seconds of Unix time, by the wall clock of that time.
    pub at_unix_s: u64,
}

impl ScheduledSnapshot {
    /// Returns the scheduled snapshot of this name; `None`: the name is not that of a scheduled one.
    pub fn of(uuid: Uuid, name: &str) -> Option<ScheduledSnapshot> {
        Some(ScheduledSnapshot { uuid, at_unix_s: policy_time(name)? })
    }
}
