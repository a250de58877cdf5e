//! The lives of a scenario: what the administrator does in each, how it ends, and what happens to disks afterwards.
//!
//! A scenario acts on one redundant array. Its *victim* is the first disk in `Mirror::victims`: the member that the
//! scenario fails, pulls, returns or replaces. Its *successor* is the disk that replaces a member. Times are virtual.

use crate::workload::ClientLoad;
use crate::world::{Crash, World};

/// One action of the administrator.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Clients send requests, to all blocks or to this area (first block and number of blocks). The last field says
    /// whether the next step waits until they have ended.
    Work(ClientLoad, Option<(u64, u64)>, Wait),
    /// Waits for this many nanoseconds. `u64::MAX`: reports the moment `nothing more to do`, at which the crash of the
    /// life may aim, and waits 2 ms.
    Rest(u64),
    /// Waits until the write-intent bitmap has no dirty region, at most 100 ms.
    AwaitClean,
    /// Waits until the victim has been promoted to in sync, at most 300 ms.
    AwaitWhole,
    /// Waits until the moment of this name comes once more, at most 50 ms (40 s for `dropped`).
    Await(&'static str),
    /// The administrator fails the victim.
    Fail,
    /// Pulls the victim's disk without an order to the array.
    Pull,
    /// Fills the file system that holds all members until the life ends. Any number of members may fail.
    FillUp,
    /// Pulls one member more than an array with parity tolerates, all at once or with pauses.
    PullMany,
    /// Returns the victim as the member that it was. The array may refuse.
    Return,
    /// As [`Step::Return`]; after a refusal, as [`Step::Renew`].
    Back,
    /// Wipes the victim's disk and rebuilds the victim on it as a new member.
    Renew,
    /// From now on this many of a million I/Os of the victim hang.
    Hang(u32),
    /// From now on this many of a million writes of the victim fail.
    WriteErrors(u32),
    /// Replaces the victim, or the healthy member, by a disk that is not a member.
    Replace(ReplaceTarget),
    /// Waits until the successor has replaced the member, at most 300 ms.
    AwaitReplaced,
    /// From the next freeze of the device on, all flushes of the successor fail. The device is frozen when the
    /// successor is about to take over.
    FaultSuccessor,
    /// Flushes of the successor succeed again.
    HealSuccessor,
    /// Enlarges disks and grows the array.
    Grow,
    /// Grows the array by further disks.
    GrowByDisks,
    /// Makes this many blocks unreadable on every in-sync member.
    Unreadable(u64),
    /// Writes all blocks that are unreadable, and waits for the writes.
    Overwrite,
    /// Writes one block of each unreadable range, which leaves the other blocks of the stripe unreadable.
    WriteParts,
    /// Writes everything, stripe by stripe, and flushes.
    WriteAll,
    /// Reads everything.
    ReadAll,
    /// Starts this many clients that each read everything during the next steps.
    ReadBeside(u32),
    /// Rots some copies, and checks and repairs the array.
    Check,
    /// Moves the journal to a disk that does not hold it, if there is one and the array accepts it.
    JournalOn,
    /// Moves the journal back to the members.
    JournalToMembers,
    /// Pulls the disk that holds the journal.
    PullJournal,
    /// Injects this fault into the disk that holds the journal.
    FaultJournal(DiskFault),
}

/// The member that is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplaceTarget {
    /// The victim.
    Victim,
    /// The healthy member.
    Healthy,
}

/// Whether the next step waits for this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// It waits.
    Ended,
    /// It does not wait.
    No,
}

/// What happens to disks between two lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BetweenLives {
    /// All disks but the victim are lost, if the victim was promoted in the last life and not dropped since.
    LoseOthers,
    /// All disks but one random member are lost, if the labels of all members call all of them in sync.
    LoseAllButOne,
    /// All disks but the victim are lost, if the labels of all members call all of them in sync.
    LoseOthersOfAll,
    /// All disks but the successor are lost, if the successor's label calls it in sync.
    LoseOthersOfSuccessor,
    /// At the next start the victims are first served without the healthy member, as if in another machine.
    SplitBrain,
    /// The content of a victim's disk is copied; if there is a copy already, as [`BetweenLives::Restore`].
    Copy,
    /// The copy replaces the content of its disk; if there is no copy, as [`BetweenLives::Copy`].
    Restore,
    /// This many blocks become unreadable on every member.
    Unreadable(u64),
    /// Of an array with parity, a random number of members is lost, at most as many as it tolerates.
    LoseSome,
    /// One member more is lost than the array tolerates.
    LoseMany,
    /// The disk that holds the journal is lost.
    LoseJournal,
    /// The disk that holds the journal is copied.
    CopyJournal,
    /// The copy takes the place of the journal disk.
    RestoreJournal,
    /// All lost disks are back.
    FindAll,
}

/// One life of a scenario.
#[derive(Clone, Debug)]
pub struct Act {
    /// The actions.
    pub steps: Vec<Step>,
    /// How the life ends.
    pub doom: PlannedEnd,
    /// What happens afterwards.
    pub after: Vec<BetweenLives>,
}

/// A fault that a scenario injects into a disk.
#[derive(Clone, Copy, Debug)]
pub enum DiskFault {
    /// This many of a million I/Os hang.
    Hang(u32),
    /// This many of a million writes fail.
    WriteErrors(u32),
    /// This many of a million flushes fail.
    FlushErrors(u32),
    /// The disk gets its factory content.
    Wipe,
}

impl DiskFault {
    /// Injects the fault from now on.
    pub fn apply(self, world: &mut World, disk: usize) {
        let of = &mut world.disks[disk];
        match self {
            DiskFault::Hang(chance) => of.profile.hang = chance,
            DiskFault::WriteErrors(chance) => of.profile.write_error = chance,
            DiskFault::FlushErrors(chance) => of.profile.flush_error = chance,
            DiskFault::Wipe => of.wipe(),
        }
        world.note(format_args!("disk {disk}: {self:?}"));
    }
}

/// How a life is to end, decided when it starts.
#[derive(Clone, Copy, Debug)]
pub enum PlannedEnd {
    /// Cleanly.
    Clean,
    /// By a crash this many nanoseconds after its start, unless it has ended before.
    After(u64, Crash),
    /// By a crash this many durable steps after its start, unless it has ended before.
    AtStep(u64, Crash),
    /// By a crash this many nanoseconds after this phase or moment came for the n-th time, unless the life has ended
    /// before. The fields are the name, n and the nanoseconds.
    Within(&'static str, u64, u64, Crash),
}
