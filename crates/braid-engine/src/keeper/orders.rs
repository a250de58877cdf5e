//! What an administrator may ask of the keeper of an array.

use super::CheckFrom;
use crate::LeafId;
use crate::lifecycle::{Filling, LifecycleError, Newcomer, Replacement};
use braid_format::{MemberId, Name};
use std::ops::Range;

/// One thing to do. Answered by [`super::KeeperIo::ordered`].
#[derive(Clone, Debug)]
pub enum Order {
    /// Leaves these members out, as if they had failed; or the disk of the journal, named alone.
    Fail(Vec<u16>),
    /// Lets a disk take a role that is out or nobody's.
    Fill {
        /// The role.
        role: u16,
        /// The disk.
        newcomer: Newcomer,
        /// How it is brought up to date.
        from: Filling,
    },
    /// Lets a disk become the successor of a member in sync. It has the role when it holds everything; until then the old
    /// member serves.
    Replace {
        /// The member's role.
        role: u16,
        /// By whom.
        by: Replacement,
    },
    /// A disk has appeared: where it is a member that is out, it returns.
    Return {
        /// The disk.
        leaf: LeafId,
        /// It has everything that it had answered to this keeper, flushed or not: no power was lost.
        kept: bool,
    },
    /// A member of a replicated array that is being filled may hold most of what it gets: it is read first, and written what differs. So
    /// it is by itself with whoever was in sync once.
    Compare(u16),
    /// Somebody is about to find out in what a member of a replicated mirror that is being filled differs from one in sync. Answered
    /// when every write goes to both; refused before, to be asked again.
    Liken {
        /// The one that is being filled.
        role: u16,
        /// The disk of the one in sync.
        with: LeafId,
    },
    /// In no more than these bytes of the array they can have differed when [`Order::Liken`] was answered: nothing else is copied.
    Differs {
        /// The one that is being filled.
        role: u16,
        /// The disk of the one in sync, all the time.
        with: LeafId,
        /// The bytes, in any order.
        ranges: Vec<Range<u64>>,
    },
    /// Takes a member that is out off the table.
    Remove(u16),
    /// Makes a disk a spare; it takes over at once where a member is out.
    AddSpare {
        /// The disk.
        leaf: LeafId,
        /// The identity that it gets: random.
        id: MemberId,
        /// Overwrite what is on it.
        force: bool,
    },
    /// Takes a spare off the table.
    RemoveSpare(u16),
    /// Puts the journal of an array with parity on a disk of its own.
    JournalOn {
        /// The disk.
        leaf: LeafId,
        /// The identity that it gets: random.
        id: MemberId,
        /// Overwrite what is on it.
        force: bool,
    },
    /// Puts the journal back on the members, and takes the label off its disk.
    JournalToMembers,
    /// Takes up what members have gained whose disks became larger, and further disks.
    Grow {
        /// Disks that become members, each with the identity that it gets: random.
        newcomers: Vec<(LeafId, MemberId)>,
        /// Also where what is new has fewer copies than the rest.
        force: bool,
    },
    /// Gives a mirror one role more, behind those that it has: nobody's, until a disk takes it ([`Order::Fill`]) or a spare does.
    Widen,
    /// Gives a mirror one role more, which a disk takes and is filled for: one copy more of everything.
    AddCopy {
        /// The disk.
        leaf: LeafId,
        /// The identity that it gets: random.
        id: MemberId,
        /// Overwrite what is on it.
        force: bool,
    },
    /// Takes a role of a mirror away that is nobody's. Those behind it have the numbers before theirs from then on.
    Narrow(u16),
    /// Gives the array another name.
    Rename(Name),
    /// Compares all copies of everything that was ever written. What it finds is in the job's notes.
    Check {
        /// Makes equal what differs: as most copies have it, else as the first member in sync has it.
        repair: bool,
    },
    /// With parity: a repair that believes the data, and computes all parities that do not agree with them: where parities may be
    /// of before the last writes, as after a start without the journal.
    RepairFromData,
    /// Goes on with a check or repair of before a restart.
    ResumeCheck(CheckFrom),
    /// A job waits, by its number. What a resync makes equal because somebody waits for it is made equal all the same.
    Pause(u64),
    /// A job that waits goes on.
    Resume(u64),
    /// A job is given up. The member that a rebuild was filling is left out again; a resync cannot be given up.
    Cancel(u64),
    /// A job has another limit.
    Limit {
        /// The job's number.
        job: u64,
        /// Bytes a second at most; 0: as the default policy has it.
        rate_bytes_per_s: u64,
    },
    /// Lets all requests wait, and nothing be done by jobs: when this is answered nothing is under way on any member, and what is on them
    /// stays as it is until [`Order::LetGo`], or until so long after it was given. Requests hear nothing of it. Of mirrors only, and refused while
    /// something of what a crash has left unequal still is.
    Hold {
        /// Longest that requests may wait, in nanoseconds.
        limit_ns: u64,
    },
    /// Ends that. Answered with [`LifecycleError::NotHeld`] where it had ended before.
    LetGo,
    /// Ends the keeper: the device is stopped, labels are as they are.
    Stop,
}

/// What came of an order.
pub type Ordered = Result<(), LifecycleError>;
