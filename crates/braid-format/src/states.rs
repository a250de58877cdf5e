//! The states of arrays, pools, their members and jobs that labels record. `words` has their codes and words.

/// Lifecycle state of an array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArrayState {
    /// Being created: not yet on every member, never served.
    Forming,
    /// In use.
    Active,
    /// Being deleted: labels are being wiped.
    Deleting,
}

/// State of a member of an array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemberState {
    /// The slot has no member.
    Empty,
    /// Holds all data that it should.
    InSync,
    /// Being rebuilt or resynced; receives every write.
    Rebuilding,
    /// Failed, removed or stale.
    Failed,
    /// Waits to take over a slot.
    Spare,
    /// A dedicated journal disk of an array with parity: holds the journal's ring and no data.
    Journal,
}

/// When an array may start degraded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StartPolicy {
    /// The present members hold all data, and the missing ones cannot have served the array without them: together they
    /// do not hold all data.
    ByLevel,
    /// The present members hold all data. The missing ones may have served the array without them; their writes are
    /// then lost.
    Auto,
}

/// The kind of a job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JobKind {
    /// Rebuilds a member.
    Rebuild,
    /// Resyncs dirty regions after a crash.
    Resync,
    /// Reads all copies and compares them (scrub).
    Check,
    /// As [`JobKind::Check`], and repairs what differs.
    Repair,
    /// Copies a member to its replacement while the member still serves.
    Replace,
    /// Moves data off a member.
    Evacuate,
    /// Adds new space to the array.
    Grow,
}

/// Whether a job runs or is paused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JobState {
    /// Continues by itself after a start.
    Running,
    /// Waits to be resumed by a command.
    Paused,
}

/// Lifecycle state of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolState {
    /// Being created: not yet on every member, never served.
    Forming,
    /// In use.
    Active,
    /// Being deleted: labels are being wiped.
    Deleting,
}

/// State of a member of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolMemberState {
    /// Holds data, and new extents are allocated on it.
    InUse,
    /// Its data are being moved to other members.
    Removing,
    /// Missing: the pool runs without it.
    Missing,
    /// Being added: it is not a member until another member's label lists it. Only its own label has this state.
    Joining,
    /// Missing, and given up by a command: it is never taken back. Blocks that volumes may have had on it read as
    /// errors until the user accepts their loss.
    Abandoned,
}
