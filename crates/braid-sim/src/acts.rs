//! The lives of a scenario: what the administrator does in each, how it ends, and what happens to disks afterwards.

use crate::workload::ClientLoad;
use crate::world::{Crash, World};

/// One action of the administrator.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Clients work, on any blocks or on this area of first block and count; the next step waits for them or not.
    Work(ClientLoad, Option<(u64, u64)>, Wait),
    /// Waits for this many nanoseconds.
    Rest(u64),
    /// Waits until no bit is dirty, or until none will be cleared any more.
    AwaitClean,
    /// Waits until the victim is in sync again, or until it will not be any more.
    AwaitWhole,
    /// Waits until the next moment of this kind, or for a while.
    Await(&'static str),
    /// Fails the victim.
    Fail,
    /// Pulls the victim.
    Pull,
    /// Fills the file system of the members until the life ends.
    FillUp,
    /// Pulls one member more than an array with parity tolerates, together or one after the other.
    PullMany,
    /// Returns the victim, if the array accepts it.
    Return,
    /// Returns the victim; if that is refused, a new disk takes its place.
    Back,
    /// Puts a new disk in the place of the victim.
    Renew,
    /// From now on this many of a million I/Os of the victim hang.
    Hang(u32),
    /// From now on this many of a million writes of the victim fail.
    WriteErrors(u32),
    /// Replaces the victim, or the healthy member, by a disk that is not a member.
    Replace(ReplaceTarget),
    /// Waits until the successor has taken over, or until it will not any more.
    AwaitReplaced,
    /// From the next freeze on, flushes of the successor fail: it is about to take over.
    FaultSuccessor,
    /// Flushes of the successor succeed again.
    HealSuccessor,
    /// Enlarges disks and grows the array.
    Grow,
    /// Grows the array by further disks.
    GrowByDisks,
    /// Makes this many blocks unreadable on every in-sync member.
    Unreadable(u64),
    /// Writes the unreadable blocks.
    Overwrite,
    /// Writes parts of the unreadable stripes.
    WriteParts,
    /// Writes everything, stripe by stripe, and flushes.
    WriteAll,
    /// Reads everything.
    ReadAll,
    /// Starts this many reads of everything, which go on during the next steps.
    ReadBeside(u32),
    /// Checks and repairs copies.
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
    /// All others are lost, if the victim was promoted in the last life.
    LoseOthers,
    /// All but a random member are lost, if all are in sync.
    LoseAllButOne,
    /// All but the victim are lost, if all are in sync.
    LoseOthersOfAll,
    /// All others are lost, if the successor's label calls it in sync.
    LoseOthersOfSuccessor,
    /// The victim is served separately from the others when the next life begins.
    SplitBrain,
    /// A disk is copied.
    Copy,
    /// The copy takes the place of the disk.
    Restore,
    /// This many blocks become unreadable on every member.
    Unreadable(u64),
    /// Of an array with parity, at most as many members are lost as it tolerates; those lost before are back.
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
