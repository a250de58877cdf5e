//! The orders that an administrator can give to an array's reconciler.

use std::ops::Range;

use braid_engine::LeafId;
use braid_format::{MemberId, Name};

use super::CheckFrom;
use crate::lifecycle::{LifecycleError, RebuildKind, RebuildTarget, Replacement};

/// An order. Answered by [`super::ReconcilerIo::report_result`].
#[derive(Clone, Debug)]
pub enum Order {
    /// Drops these members as if they had failed; or the disk of the journal, if it is named alone.
    Fail(Vec<u16>),
    /// Lets a disk take a slot that is failed or vacant.
    Rebuild {
        /// The slot.
        slot: u16,
        /// The disk.
        target: RebuildTarget,
        /// How it is rebuilt.
        kind: RebuildKind,
    },
    /// Lets a disk become the successor of a member in sync. It takes the slot once it holds everything; until then the
    /// old member serves.
    Replace {
        /// The member's slot.
        slot: u16,
        /// The successor.
        successor: Replacement,
    },
    /// A disk has appeared: if it is a failed member, it returns.
    Return {
        /// The disk.
        leaf: LeafId,
        /// It has kept every write acknowledged to this reconciler, flushed or not: there was no loss of power.
        kept_writes: bool,
    },
    /// A rebuilding member of a replicated array may already hold most of the content: it is read first, and only
    /// differences are written. This is the default for a member that was in sync before.
    CompareBeforeCopy(u16),
    /// The caller is about to determine how a rebuilding member of a replicated mirror differs from one in sync.
    /// Answered when every write goes to both; refused before that, to be retried.
    BeginDelta {
        /// The rebuilding member.
        slot: u16,
        /// The disk of the member in sync.
        base: LeafId,
    },
    /// The two members differed in at most these bytes of the array when [`Order::BeginDelta`] was answered: only these are
    /// copied.
    ApplyDelta {
        /// The rebuilding member.
        slot: u16,
        /// The disk of the member that has been in sync all the time.
        base: LeafId,
        /// The byte ranges, in any order.
        ranges: Vec<Range<u64>>,
    },
    /// Removes a failed member: its slot becomes vacant.
    Remove(u16),
    /// Makes a disk a spare; it takes over at once if a member has failed.
    AddSpare {
        /// The disk.
        leaf: LeafId,
        /// Its new identity: random.
        id: MemberId,
        /// Overwrite what is on it.
        force: bool,
    },
    /// Removes a spare.
    RemoveSpare(u16),
    /// Puts the journal of an array with parity on a disk of its own.
    JournalOn {
        /// The disk.
        leaf: LeafId,
        /// Its new identity: random.
        id: MemberId,
        /// Overwrite what is on it.
        force: bool,
    },
    /// Puts the journal back on the members, and erases its disk's label.
    JournalToMembers,
    /// Adds the space of members whose disks became larger, and further disks.
    Grow {
        /// Disks that become members, each with its new identity: random.
        newcomers: Vec<(LeafId, MemberId)>,
        /// Also if the new space has fewer copies than the rest.
        force: bool,
    },
    /// Adds a vacant slot to a mirror, behind the existing ones; a disk ([`Order::Rebuild`]) or a spare may take it.
    Widen,
    /// Adds a slot to a mirror and rebuilds a disk into it: one more copy of everything.
    AddCopy {
        /// The disk.
        leaf: LeafId,
        /// Its new identity: random.
        id: MemberId,
        /// Overwrite what is on it.
        force: bool,
    },
    /// Removes a vacant slot of a mirror. The slots behind it are renumbered, each one lower.
    Narrow(u16),
    /// Gives the array another name.
    Rename(Name),
    /// Compares all copies of everything that was ever written. The findings are in the job's reports.
    Check {
        /// Repairs differences: by the majority of the copies, else by the first member in sync.
        repair: bool,
    },
    /// With parity: a repair that trusts the data and recomputes all parity that does not agree, for parity that may be
    /// older than the last writes, as after a start without the journal.
    RepairFromData,
    /// Resumes a check or repair from before a restart.
    ResumeCheck(CheckFrom),
    /// Pauses a job, by its number. A paused resync still settles the regions that requests wait for.
    Pause(u64),
    /// Resumes a paused job.
    Resume(u64),
    /// Cancels a job. The member of a cancelled rebuild is dropped; a resync cannot be cancelled.
    Cancel(u64),
    /// Changes a job's limit.
    Limit {
        /// The job's number.
        job: u64,
        /// Maximum bytes a second; 0: the default policy.
        rate_bytes_per_s: u64,
    },
    /// Holds all requests and jobs: when this is answered, no I/O is in flight on any member, and the members' content
    /// does not change until [`Order::Release`] or the time limit. Held requests wait and do not fail. Only for mirrors,
    /// and refused while regions are unsettled.
    Hold {
        /// Longest that requests may wait, in nanoseconds.
        limit_ns: u64,
    },
    /// Releases held requests. Answered with [`LifecycleError::NotHeld`] if they were released before.
    Release,
    /// Ends the reconciler: the device is stopped, and the labels stay as they are.
    Stop,
}

/// The result of an order.
pub type OrderResult = Result<(), LifecycleError>;
