//! What to do about an object, by its kind and its state: the one place from which the status, lists and refusals take their remedies.
//!
//! Promises: an object gets commands of its own kind alone. A volume of several nodes is no array to its user, although an array stands
//! above its replicas; a replica that returns by itself gets no command that adds it. Each command is one that the command line has. A test
//! walks every pair of kind and state.
//!
//! A remedy names a command from the word `braid` on to the next `;`, `,`, `:`, `(`, `` ` `` or the end.

use braid_api::Attention;

macro_rules! states {
    ($($(#[$of:meta])* $kind:ident { $($(#[$doc:meta])* $state:ident,)+ })+) => {
        $(
            $(#[$of])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $kind { $($(#[$doc])* $state,)+ }

            impl $kind {
                /// Every state.
                pub const ALL: &[$kind] = &[$($kind::$state,)+];
            }
        )+
    };
}

states! {
    /// An array of disks that does not serve.
    ArrayCase {
        /// It can be started.
        Ready,
        /// None of its disks was found.
        DisksMissing,
        /// It lacks a member that it needs.
        MemberMissing,
        /// It lacks the disk of its journal.
        JournalMissing,
        /// A missing member might have gone on without those that are here.
        Waiting,
        /// Its creation was cut off.
        CreateInterrupted,
        /// Its deletion was cut off.
        DeleteInterrupted,
        /// Its deletion did not succeed.
        DeleteFailed,
        /// Another array has its name; the name given here is its UUID.
        SameName,
        /// A disk and a copy of it are both here.
        Copied,
        /// A disk of another time, or of another size, is in a member's place.
        WrongDisk,
        /// Its labels contradict each other.
        Refused,
        /// There is no array of this name.
        Unknown,
    }

    /// An array with redundancy that serves, or has served.
    Redundant {
        /// More members are lost than it tolerates.
        Lost,
        /// It lacks a member.
        Degraded,
        /// A member is being filled.
        Rebuilding,
        /// A member is being filled, and no other one has all that it needs.
        RebuildLacks,
        /// Stripes of a crash and a loss together hold nothing that is known.
        Unreadable,
        /// The disk of the journal was lost.
        JournalLost,
        /// Copies differ.
        DamagedCopies,
        /// One parity does not fit.
        DamagedParity,
        /// Two parities do not fit.
        DamagedParities,
        /// Damage is left that a repair could not mend.
        DamagedStill,
    }

    /// A volume of several nodes, as one of its nodes sees it.
    VolumeCase {
        /// This node does not serve it, and nothing else is known.
        NotServedHere,
        /// No node serves it, and the node that did does not answer.
        Unserved,
        /// Nodes that do not answer may serve it, and it takes their votes to serve it here.
        UnservedMaybe,
        /// This node opens it, and too few voters answer.
        WaitsForVoters,
        /// This node opens it, and no replica that holds everything is here.
        WaitsForData,
        /// This node was to serve it, and does not, as too few nodes answer or none has everything.
        NotAttached,
        /// This node opens it, and something else has failed; it is tried again.
        Opening,
        /// Nodes have deleted what they had of it.
        Deleted,
        /// It is served, and something else than what is served is asked for.
        Served,
    }

    /// A replica of a volume that this node serves, on whichever node.
    ReplicaOfServed {
        /// Its node does not answer.
        NodeAway,
        /// Its node answers; it is out, and is tried again.
        Returning,
        /// It is being filled.
        Filling,
        /// The job that fills it waits, by command.
        FillingPaused,
        /// It works, and some of its I/O fails or hangs.
        Failing,
        /// It was removed, and nothing has taken its place.
        Removed,
        /// It was left out when the volume was opened by force.
        LeftOut,
    }

    /// A replica or witness on this node.
    ReplicaCase {
        /// Its pool does not serve.
        Waiting,
        /// What it has promised is not known any more.
        Lost,
        /// Its register or its device failed, and is tried again.
        FailedForNow,
        /// Its register or its device failed, and is not tried again before the next start.
        Failed,
        /// Its volume was opened by force without it.
        LeftOut,
    }

    /// A pool.
    PoolCase {
        /// It does not serve.
        Idle,
        /// A member has failed a write or a flush.
        WriteFailed,
        /// Its log in memory was lost before it was opened.
        LogMissed,
        /// Its log in memory was removed while it serves.
        LogRemoved,
        /// Records of its tables are damaged.
        Damaged,
        /// It fills up.
        Fills,
        /// Snapshots of a schedule cannot be taken.
        ScheduleFails,
        /// There is no pool of this name.
        Unknown,
    }

    /// A member of a pool that serves.
    PoolMemberCase {
        /// Its disk became shorter.
        Short,
        /// The pool's own writes find no space below; the name given here is its file, if it is one.
        Full,
        /// It is absent.
        Absent,
        /// It was absent, and is here again.
        Back,
        /// It was given up.
        GivenUp,
    }

    /// A volume of a pool on this node.
    PoolVolumeCase {
        /// It was deleted meanwhile.
        Deleted,
        /// It is exported.
        Exported,
        /// It has snapshots.
        HasSnapshots,
    }

    /// An export that does not listen.
    ExportCase {
        /// Its address cannot be had, or its device refused.
        Failed,
        /// Its array was not found.
        ArrayUnknown,
        /// Its pool was not found.
        PoolUnknown,
        /// Another node serves its volume, or none.
        Standby,
    }

    /// A disk of an array that serves.
    DiskCase {
        /// It became shorter; the array has redundancy.
        ShortRedundant,
        /// It became shorter; the array has none.
        Short,
        /// Its file was deleted.
        Deleted,
        /// Its file found no space on its file system; the array has redundancy.
        FullRedundant,
        /// Its file found no space on its file system; the array has none.
        Full,
        /// Its I/O fails or hangs.
        Failing,
    }

    /// A job.
    JobCase {
        /// There is none of this name.
        Unknown,
        /// It goes on, and keeps another one from beginning.
        Going,
    }

    /// A node of the cluster.
    NodeCase {
        /// It does not answer.
        Away,
        /// Its clock and this one's differ.
        ClockDiffers,
        /// This node was removed from its cluster.
        RemovedHere,
        /// Something of this node is tried again; its error has a remedy.
        TriedAgain,
    }
}

/// A kind of object, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// An array that does not serve.
    Array(ArrayCase),
    /// An array with redundancy.
    Redundant(Redundant),
    /// An array of Linux md that is only read.
    ImportedArray,
    /// The array above the replicas of a volume of several nodes.
    ServedVolume(Redundant),
    /// A volume of several nodes.
    ReplicatedVolume(VolumeCase),
    /// A replica of a volume that this node serves.
    ReplicaOfServed(ReplicaOfServed),
    /// A replica or witness of this node.
    Replica(ReplicaCase),
    /// A pool on disks and arrays.
    Pool(PoolCase),
    /// A pool on a volume of several nodes.
    CarriedPool(PoolCase),
    /// A member of a pool.
    PoolMember(PoolMemberCase),
    /// A volume of a pool.
    PoolVolume(PoolVolumeCase),
    /// An export.
    Export(ExportCase),
    /// A disk of an array.
    Disk(DiskCase),
    /// A job.
    Job(JobCase),
    /// A node.
    Node(NodeCase),
}

/// What the object is called.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names<'a> {
    /// Its own name; of a member, a replica or a disk that of the array, pool or volume.
    pub name: &'a str,
    /// The member's number, the replica's node, the volume that a pool stands on or an export is of, the job that goes on or waits.
    pub part: &'a str,
}

impl<'a> Names<'a> {
    /// Of an object that needs no other name.
    pub fn of(name: &'a str) -> Names<'a> {
        Names { name, part: "" }
    }

    /// Of one with another name.
    pub fn with(name: &'a str, part: &'a str) -> Names<'a> {
        Names { name, part }
    }
}

/// What an object's state means for its users, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// What it means.
    pub meaning: String,
    /// What to do.
    pub remedy: String,
    /// The commands for that.
    pub commands: Vec<String>,
}

impl Advice {
    /// The same as something that needs attention.
    pub fn attention(self, subject: String, message: String) -> Attention {
        Attention { subject, message, meaning: self.meaning, remedy: self.remedy, commands: self.commands }
    }
}

fn advice(meaning: &str, remedy: impl Into<String>, commands: &[String]) -> Advice {
    Advice { meaning: meaning.to_owned(), remedy: remedy.into(), commands: commands.to_vec() }
}

/// The remedy alone.
pub fn remedy(case: Case, names: Names<'_>) -> String {
    of(case, names).remedy
}

/// What to do about an object.
pub fn of(case: Case, names: Names<'_>) -> Advice {
    match case {
        Case::Array(case) => of_array(case, names.name),
        Case::Redundant(case) => of_redundant(case, names.name),
        Case::ImportedArray => advice(
            "It is an array of Linux md that is only read: nothing is repaired here.",
            "copy what it holds to another place",
            &[format!("braid array show {}", names.name)],
        ),
        Case::ServedVolume(case) => of_served_volume(case, names.name),
        Case::ReplicatedVolume(case) => of_volume(case, names.name),
        Case::ReplicaOfServed(case) => of_replica_of_served(case, names.name, names.part),
        Case::Replica(case) => of_replica(case, names.name),
        Case::Pool(case) => of_pool(case, names.name),
        Case::CarriedPool(case) => of_carried_pool(case, names.name, names.part),
        Case::PoolMember(case) => of_pool_member(case, names.name, names.part),
        Case::PoolVolume(case) => of_pool_volume(case, names.name),
        Case::Export(case) => of_export(case, names.name, names.part),
        Case::Disk(case) => of_disk(case, names.name),
        Case::Job(case) => of_job(case, names.part),
        Case::Node(case) => of_node(case, names.name),
    }
}

const SERVES_NOTHING: &str = "It serves nothing. Nothing was changed on its disks.";
const SERVES_AS_USUAL: &str = "It serves as usual. Another failure may be one too many.";

fn of_array(case: ArrayCase, name: &str) -> Advice {
    let (show, assemble) = (format!("braid array show {name}"), format!("braid array assemble {name}"));
    let with_disk = format!("{assemble} --disk DISK");
    let waiting = "It serves nothing. What is on the disks that are there is left alone.";
    match case {
        ArrayCase::Ready | ArrayCase::DeleteInterrupted => advice(SERVES_NOTHING, assemble.clone(), &[show, assemble]),
        ArrayCase::DisksMissing => {
            advice(waiting, format!("attach its disks, or name them: {with_disk}"), &[show, with_disk])
        }
        ArrayCase::MemberMissing => advice(
            waiting,
            format!(
                "attach the missing disk, or name it: {with_disk}; if it is gone for good, so is the content: braid array delete {name} --force"
            ),
            &[show, with_disk],
        ),
        ArrayCase::JournalMissing => advice(
            waiting,
            format!(
                "attach the missing disk, or name it: {with_disk}; if the disk of the journal is gone for good: {assemble} --force \
                 (without the other missing disk as well, some of what was being written may be wrong)"
            ),
            &[show, with_disk],
        ),
        ArrayCase::Waiting => advice(
            waiting,
            format!(
                "attach the missing disk, or start without it: {assemble} --degraded (what was written to it alone meanwhile is lost)"
            ),
            &[show, with_disk],
        ),
        ArrayCase::CreateInterrupted => advice(
            SERVES_NOTHING,
            format!("braid array delete {name}, then create it again"),
            &[show, format!("braid array delete {name}")],
        ),
        ArrayCase::DeleteFailed => advice(
            "It serves nothing. Some of its disks may bear its label still.",
            format!("braid array delete {name}"),
            &[show, format!("braid array delete {name}")],
        ),
        ArrayCase::SameName => {
            advice(SERVES_NOTHING, format!("start it by its UUID, then rename it: {assemble}"), &[show, assemble])
        }
        ArrayCase::Copied => advice(
            SERVES_NOTHING,
            "take the copy away, or wipe its label (braid disk wipe DISK)",
            &[show, "braid disk wipe DISK".to_owned()],
        ),
        ArrayCase::WrongDisk => {
            advice(SERVES_NOTHING, format!("attach the right disk, or name it: {with_disk}"), &[show, with_disk])
        }
        ArrayCase::Refused => advice(
            SERVES_NOTHING,
            "look at its disks with `braid disk examine DISK`",
            &[show, "braid disk examine DISK".to_owned()],
        ),
        ArrayCase::Unknown => advice(
            "Nothing of this name is known here.",
            "`braid array list` shows those there are; `braid array assemble --disk DISK` looks at further disks",
            &["braid array list".to_owned(), "braid array assemble --disk DISK".to_owned()],
        ),
    }
}

fn of_redundant(case: Redundant, name: &str) -> Advice {
    let show = format!("braid array show {name}");
    let repair = format!("braid array repair {name}");
    match case {
        Redundant::Lost => advice(
            "Its clients get errors. What was flushed before is on its disks, which are left alone.",
            "attach its disks again, then start it anew",
            &[show, format!("braid array assemble {name}")],
        ),
        Redundant::Degraded => advice(
            SERVES_AS_USUAL,
            "attach the disk again if it is well, or add another one",
            &[show, format!("braid array add {name} DISK")],
        ),
        Redundant::Rebuilding => advice(
            "It serves as usual. Until this is done another failure may be one too many.",
            "wait until it is done",
            &[show],
        ),
        Redundant::RebuildLacks => advice(
            "It serves as usual. A member cannot be completed, as no other has all that it needs: another failure may be one too many.",
            "write those places again, for example by restoring the file that is there: it goes on by itself within seconds",
            &[show, "braid job list".to_owned()],
        ),
        Redundant::Unreadable => advice(UNREADABLE, WRITE_AGAIN, &[show]),
        Redundant::JournalLost => advice(
            "It serves as usual, and nothing that was written is lost: small writes are as slow as without that disk.",
            "put the journal on another disk, or say that it is to stay on the members",
            &[format!("braid array journal {name} DISK"), format!("braid array journal {name} --members")],
        ),
        Redundant::DamagedCopies => advice(
            COPIES_DIFFER,
            "make the copies equal: as most have it, else as the first member has it; then look at the disks",
            &[repair, show],
        ),
        Redundant::DamagedParity => advice(
            PARITY_DIFFERS,
            "one parity cannot tell which member is wrong: compare what is at those places with a backup, then make the \
             parity agree with it; then look at the disks",
            &[repair, show],
        ),
        Redundant::DamagedParities => advice(
            PARITY_DIFFERS,
            "compute what is wrong from the other members, as two parities tell which; after a start by force without the \
             journal believe the data instead, as they may be newer than both parities (--from-data); then look at the disks",
            &[repair.clone(), format!("{repair} --from-data"), show],
        ),
        Redundant::DamagedStill => advice(
            "It serves as usual. What a client reads there may be wrong.",
            "what cannot be read is lost unless a backup has it: write those places again, then check once more",
            &["braid job list".to_owned(), format!("braid array check {name}")],
        ),
    }
}

const UNREADABLE: &str = "These rows were being written when the daemon or the machine died, and a member that had some of it is lost: \
                          what they held cannot be known, and nothing is invented. All else serves as usual.";
const WRITE_AGAIN: &str = "write these ranges again, in any order and in pieces of 4096 bytes or more: restore what was there from a backup, or zero them";
const COPIES_DIFFER: &str = "It serves as usual. Which copy of such a block a client reads is a matter of chance.";
const PARITY_DIFFERS: &str =
    "It serves as usual. Clients read such a block as its member has it, and a rebuild would compute others from it.";

fn of_served_volume(case: Redundant, name: &str) -> Advice {
    let show = format!("braid volume show {name}");
    let rebuild = format!("braid replica rebuild {name} NODE");
    match case {
        Redundant::Lost => advice(
            "Its clients are cut off, and wait: no request is answered with an error.",
            "bring the nodes of its replicas back: it is opened anew by itself as soon as enough of them answer",
            &[show, "braid node list".to_owned()],
        ),
        Redundant::Degraded => advice(
            SERVES_AS_USUAL,
            "bring the nodes of its replicas back: a replica returns by itself when its node answers",
            &[show, "braid node list".to_owned()],
        ),
        Redundant::Rebuilding => advice(
            "It serves as usual. Until this is done another failure may be one too many.",
            "wait until it is done",
            &[show],
        ),
        Redundant::RebuildLacks => advice(
            "It serves as usual. A replica cannot be completed, as no other has all that it needs: another failure may be one too many.",
            "write those places again, for example by restoring the file that is there: it goes on by itself within seconds",
            &[show],
        ),
        Redundant::Unreadable => advice(UNREADABLE, WRITE_AGAIN, &[show]),
        // The journal of such a volume is on its replicas; a disk of its own cannot be named.
        Redundant::JournalLost => advice(
            "It serves as usual, and nothing that was written is lost.",
            "nothing is to be done: the journal is on the replicas",
            &[show],
        ),
        Redundant::DamagedCopies => advice(
            COPIES_DIFFER,
            format!(
                "find out which replica is wrong (a snapshot is read on each node), then make that one anew: {rebuild}"
            ),
            &[show, rebuild],
        ),
        Redundant::DamagedParity | Redundant::DamagedParities => advice(
            PARITY_DIFFERS,
            format!(
                "compare what is at those places with a backup, then make the replica that is wrong anew: {rebuild}"
            ),
            &[show, rebuild],
        ),
        Redundant::DamagedStill => advice(
            "It serves as usual. What a client reads there may be wrong.",
            "what cannot be read is lost unless a backup has it: write those places again",
            &[show],
        ),
    }
}

fn of_volume(case: VolumeCase, name: &str) -> Advice {
    let show = format!("braid volume show {name}");
    let attach = format!("braid volume attach {name}");
    let all = "braid volume list --all".to_owned();
    let stopped = "Its clients wait: nothing is answered until a node serves it.";
    match case {
        VolumeCase::NotServedHere => advice(
            "This node answers nothing of it.",
            format!("use it on the node that serves it ({all}); or have it served here: {attach}"),
            &[all, attach],
        ),
        VolumeCase::Unserved => advice(
            stopped,
            format!(
                "bring that node back: it goes on by itself; or serve it here: {attach}; if the other node is still alive, and only cannot be reached, \
                 it is cut off, and nothing that was acknowledged is lost"
            ),
            &[attach, all],
        ),
        VolumeCase::UnservedMaybe => advice(
            "Whether its clients are answered cannot be known from here. If the nodes that do not answer are down, they wait.",
            format!(
                "bring those nodes back; too few voters are left to open it here by votes; if the others are lost for ever: {attach} --force; \
                 make sure before that their nodes are down: if one of them still serves it there are two of one volume afterwards"
            ),
            &[show, "braid node list".to_owned(), format!("{attach} --force")],
        ),
        VolumeCase::WaitsForVoters => advice(
            stopped,
            format!(
                "bring the nodes back that do not answer: it goes on by itself; if they are lost for ever: {attach} --force; make sure before that they are down"
            ),
            &[show, "braid node list".to_owned(), format!("{attach} --force")],
        ),
        VolumeCase::WaitsForData => advice(
            stopped,
            format!(
                "bring one of the replicas back that hold everything: it goes on by itself; if all are lost for ever, serve the best that is left: {attach} --force"
            ),
            &[show, "braid node list".to_owned(), format!("{attach} --force")],
        ),
        VolumeCase::NotAttached => advice(
            "This node does not serve it.",
            format!(
                "bring the nodes of its replicas back (braid node list), then try again: {attach}; if they are lost for ever: {attach} --force"
            ),
            &["braid node list".to_owned(), attach.clone(), format!("{attach} --force")],
        ),
        VolumeCase::Opening => advice(stopped, "nothing is to be done: it is tried again by itself", &[show]),
        VolumeCase::Deleted => advice(
            stopped,
            format!("remove what is left of it: braid volume delete {name}"),
            &[show, format!("braid volume delete {name}")],
        ),
        VolumeCase::Served => advice(
            "It serves as usual.",
            format!("its replicas: {show}; to end serving it here: braid volume detach {name}"),
            &[show, format!("braid volume detach {name}")],
        ),
    }
}

/// `node`: that of the replica, or the job that fills it where that waits.
fn of_replica_of_served(case: ReplicaOfServed, name: &str, node: &str) -> Advice {
    let show = format!("braid volume show {name}");
    let rebuild = format!("braid replica rebuild {name} {node}");
    match case {
        ReplicaOfServed::NodeAway => advice(
            SERVES_AS_USUAL,
            format!(
                "nothing is to be added: the replica returns by itself when node {node} answers; if that node is gone for ever: braid replica remove {name} {node}"
            ),
            &[show, format!("braid node show {node}")],
        ),
        ReplicaOfServed::Returning => advice(
            SERVES_AS_USUAL,
            format!(
                "nothing is to be added: the replica returns by itself, and is tried again within a minute; if it stays out, or its disk is lost, make it anew: {rebuild}"
            ),
            &[show, format!("braid node show {node}")],
        ),
        ReplicaOfServed::Filling => advice(
            "It serves as usual. Until this is done another failure may be one too many.",
            "wait until it is done",
            &[show],
        ),
        ReplicaOfServed::FillingPaused => advice(
            "It serves as usual. Until the replica is filled another failure may be one too many.",
            format!("let it go on: braid job resume {node}"),
            &[show, format!("braid job resume {node}")],
        ),
        ReplicaOfServed::Failing => advice(
            "Reads go to another replica. Writes wait for it up to 5 s; then the volume goes on without it, and it returns by itself.",
            format!("look at the pool of node {node}, and at the network between"),
            &[show, format!("braid node show {node}")],
        ),
        ReplicaOfServed::Removed => advice(
            SERVES_AS_USUAL,
            format!("give it another one: braid replica add {name} NODE/POOL"),
            &[show, format!("braid replica add {name} NODE/POOL")],
        ),
        ReplicaOfServed::LeftOut => advice(
            SERVES_AS_USUAL,
            format!(
                "what it has is not believed; take it in anew, which loses that: {rebuild}; or forget it: braid replica remove {name} {node}"
            ),
            &[show, rebuild],
        ),
    }
}

fn of_replica(case: ReplicaCase, name: &str) -> Advice {
    let show = format!("braid replica show {name}");
    let goes_on = "The volume goes on as long as enough of its other voters are there.";
    match case {
        ReplicaCase::Waiting => advice(
            goes_on,
            "look at its pool: it votes again by itself when that serves",
            &[show, "braid pool list".to_owned()],
        ),
        ReplicaCase::Lost => advice(
            goes_on,
            "make another one in its place where the volume is served, then delete this one: what it has promised nobody knows",
            &[show],
        ),
        // What is tried again needs no more than a disk that writes.
        ReplicaCase::FailedForNow => {
            advice(goes_on, "look at its pool and at the kernel's log (dmesg); it is tried again by itself", &[show])
        }
        ReplicaCase::Failed => {
            advice(goes_on, "look at its pool and at the kernel's log (dmesg), then restart the daemon", &[show])
        }
        ReplicaCase::LeftOut => advice(
            "What it has is as it was when it was left out, or when its last controller ended, and is not believed. It takes space, and is in nobody's way.",
            format!(
                "what of it is needed can be read here: a snapshot of its data, and a clone of that; then where the volume is served: \
                 braid replica rebuild {name} NODE; that takes it in anew"
            ),
            &[show, format!("braid replica delete {name} --force")],
        ),
    }
}

const RESTART: &str = "look at its members, then restart the daemon, which opens the pool anew";
const AS_FAR_AS_THAT_GOES: &str = "Its volumes are served as far as that goes.";
const POOL_IDLE: &str = "It serves nothing, and its exports wait. What is on the members that are there is left alone.";
const FREE_SPACE: &str =
    "delete snapshots or volumes that nobody needs, discard what is not used (fstrim), or add a member";
const SPACE_MEANS: &str =
    "When nothing is free, writes to new blocks of its volumes get errors (ENOSPC); all else goes on.";
const DAMAGED_MEANS: &str = "Nothing of it was changed: what a disk or a cable only misread is there again at the next start. Volumes on other members go on.";
const SCHEDULE_MEANS: &str = "The snapshots that there are stay. It is tried again, less and less often.";
const SCHEDULE_REMEDY: &str = "the event snapshot_policy_failed says why";

fn of_pool(case: PoolCase, name: &str) -> Advice {
    let show = format!("braid pool show {name}");
    match case {
        PoolCase::Idle => advice(
            POOL_IDLE,
            "attach its members, or name them: braid array assemble --disk DISK",
            &[show, "braid array assemble --disk DISK".to_owned()],
        ),
        PoolCase::WriteFailed | PoolCase::LogMissed | PoolCase::LogRemoved => {
            advice(AS_FAR_AS_THAT_GOES, RESTART, &[show])
        }
        PoolCase::Damaged => advice(
            DAMAGED_MEANS,
            "look at its members and at the kernel's log (dmesg), and at what is damaged; copy off what can be read",
            &[show, format!("braid pool check {name}")],
        ),
        PoolCase::Fills => advice(
            SPACE_MEANS,
            FREE_SPACE,
            &[show, format!("braid snapshot list {name}"), format!("braid pool add {name} DISK-or-ARRAY")],
        ),
        PoolCase::ScheduleFails => advice(SCHEDULE_MEANS, SCHEDULE_REMEDY, &[show, "braid events".to_owned()]),
        PoolCase::Unknown => advice(
            "Nothing of this name is known here.",
            "`braid pool list` shows those there are; `braid array assemble --disk DISK` looks at further disks",
            &["braid pool list".to_owned(), "braid array assemble --disk DISK".to_owned()],
        ),
    }
}

/// The pool has no other members, and no disks of this node that could be attached or added.
fn of_carried_pool(case: PoolCase, name: &str, volume: &str) -> Advice {
    let show = format!("braid pool show {name}");
    let attach = format!("braid volume attach {volume}");
    let anew = format!("open it anew by serving the volume again: braid volume detach {volume} --force, then {attach}");
    let both = [show.clone(), format!("braid volume detach {volume} --force"), attach.clone()];
    match case {
        PoolCase::Idle | PoolCase::Unknown => advice(
            "It serves nothing here, and its exports on this node wait. It goes with its volume from node to node.",
            format!(
                "use it on the node that serves the volume (braid volume list --all); or have both served here: {attach}"
            ),
            &[show, "braid volume list --all".to_owned(), attach],
        ),
        PoolCase::WriteFailed | PoolCase::LogMissed | PoolCase::LogRemoved => advice(AS_FAR_AS_THAT_GOES, anew, &both),
        PoolCase::Damaged => advice(
            DAMAGED_MEANS,
            format!(
                "look at the replicas of its volume (braid volume show {volume}), and at what is damaged; copy off what can be read"
            ),
            &[show, format!("braid pool check {name}"), format!("braid volume show {volume}")],
        ),
        PoolCase::Fills => advice(
            SPACE_MEANS,
            "delete snapshots or volumes that nobody needs, or discard what is not used (fstrim): such a pool does not grow",
            &[show, format!("braid snapshot list {name}")],
        ),
        PoolCase::ScheduleFails => advice(SCHEDULE_MEANS, SCHEDULE_REMEDY, &[show, "braid events".to_owned()]),
    }
}

fn of_pool_member(case: PoolMemberCase, pool: &str, number: &str) -> Advice {
    let show = format!("braid pool show {pool}");
    let elsewhere =
        "Volumes that have nothing there work fully; `braid volume list` says of which something is in doubt.";
    match case {
        PoolMemberCase::Short => advice(
            "Reads and writes of what is there get errors. Volumes that have nothing there work.",
            "stop whatever cuts it, stop the daemon, put a whole copy of the disk in its place, and start the daemon again",
            &[show],
        ),
        PoolMemberCase::Full => {
            let look = format!("df -h {number}").trim_end().to_owned();
            advice(
                "Nothing has failed, and nothing is lost. Reads go on, and writes to what has a place already; what was not flushed is kept in memory.",
                format!("make room there ({look}); it goes on by itself"),
                &[show, look],
            )
        }
        PoolMemberCase::Absent => advice(
            elsewhere,
            format!(
                "attach it: it is named then, and `braid pool start {pool}` takes it back if what is on it fits; if it is lost for good, give it up"
            ),
            &[show, format!("braid pool remove {pool} {number} --force")],
        ),
        PoolMemberCase::Back => advice(
            elsewhere,
            "take it back, which is done if what is on it fits; no client may be connected to its volumes meanwhile, and exports are silent for a moment",
            &[show, format!("braid pool start {pool}")],
        ),
        PoolMemberCase::GivenUp => advice(
            elsewhere,
            "copy off what can be read; then accept that the rest is lost: it reads as what an older snapshot has, or as zeros, and those volumes can be written again",
            &[show, format!("braid pool check {pool} --give-up")],
        ),
    }
}

fn of_pool_volume(case: PoolVolumeCase, name: &str) -> Advice {
    match case {
        PoolVolumeCase::Deleted => advice(
            "Nothing of this name is there any more.",
            "it was deleted meanwhile: `braid volume list`, `braid snapshot list`",
            &["braid volume list".to_owned(), "braid snapshot list".to_owned()],
        ),
        PoolVolumeCase::Exported => advice(
            "Its clients use it.",
            "remove its exports first (braid export list)",
            &["braid export list".to_owned()],
        ),
        PoolVolumeCase::HasSnapshots => advice(
            "They would be lost with it.",
            format!("delete them first (braid snapshot list {name}); --force does not override this"),
            &[format!("braid snapshot list {name}")],
        ),
    }
}

fn of_export(case: ExportCase, name: &str, volume: &str) -> Advice {
    let show = format!("braid export show {name}");
    let remove = format!("braid export remove {name}");
    let cannot = "Its clients cannot connect.";
    match case {
        ExportCase::Failed => advice(cannot, format!("the reason: {show}"), &[show]),
        ExportCase::ArrayUnknown => advice(
            cannot,
            "attach its disks, or name them; or remove the export",
            &["braid array assemble --disk DISK".to_owned(), remove],
        ),
        ExportCase::PoolUnknown => advice(
            cannot,
            "attach the members of the pool, or name them; or remove the export",
            &["braid array assemble --disk DISK".to_owned(), remove],
        ),
        ExportCase::Standby => advice(
            "Its clients connect to the node that serves the volume.",
            format!("nothing is to be done; to have the volume served here: braid volume attach {volume}"),
            &["braid volume list --all".to_owned(), format!("braid volume attach {volume}")],
        ),
    }
}

fn of_disk(case: DiskCase, array: &str) -> Advice {
    const ROOM: &str = "make room on the file system that its file is on; the disk is well again with the first write that finds space";
    let show = format!("braid array show {array}");
    match case {
        DiskCase::ShortRedundant => advice(
            "What it could not read came from another member.",
            "stop whatever cuts it; then replace it by another disk, which is filled from the other members",
            &[show],
        ),
        DiskCase::Short => advice(
            "Reads and writes that need it get errors.",
            "stop whatever cuts it, stop the array, put a whole copy of the disk in its place, and start the array again. \
             Without a copy, making it as long as it was (truncate -s SIZE) gives back what was not cut off; the rest reads as zeros",
            &[show, format!("braid array stop {array} --force"), format!("braid array assemble {array}")],
        ),
        DiskCase::Deleted => advice(
            "It works, and is lost when the daemon closes it.",
            "copy off what is on it, or replace it by another disk, before the daemon stops",
            &[show],
        ),
        DiskCase::FullRedundant => advice(
            "Nothing on it is damaged. What it could not write is on the other members; it may have been left out for that.",
            ROOM,
            &[show, "df -h".to_owned()],
        ),
        DiskCase::Full => advice(
            "Nothing on it is damaged. Writes of this array that need new space get errors.",
            ROOM,
            &[show, "df -h".to_owned()],
        ),
        DiskCase::Failing => advice(
            "Reads and writes that need it may get errors.",
            "look at the disk and at the kernel's log; copy off what can still be read",
            &[show, "dmesg --level err,warn | tail".to_owned()],
        ),
    }
}

fn of_job(case: JobCase, job: &str) -> Advice {
    match case {
        JobCase::Unknown => advice(
            "Nothing of this name goes on.",
            "`braid job list` shows those that go on; a job is named ARRAY:NUMBER or POOL:NUMBER",
            &["braid job list".to_owned()],
        ),
        JobCase::Going => advice(
            "It goes on by itself.",
            format!("wait for it (braid job watch {job}), or give it up (braid job cancel {job})"),
            &[format!("braid job watch {job}"), format!("braid job cancel {job}")],
        ),
    }
}

fn of_node(case: NodeCase, node: &str) -> Advice {
    let list = "braid node list".to_owned();
    match case {
        NodeCase::Away => advice(
            "What is kept on it as well goes on with the other nodes that have it.",
            format!(
                "bring it back: its replicas return by themselves when it answers; if it is gone for good: braid node remove {node} --force"
            ),
            &[list],
        ),
        NodeCase::ClockDiffers => advice(
            "Certificates and invitations hold for other times than they say; a day apart, nodes refuse each other.",
            "set the clocks, best with a service of the system that keeps them (chrony, systemd-timesyncd)",
            &[list],
        ),
        NodeCase::RemovedHere => advice(
            "It takes part in nothing there any more.",
            "let it join again with an invitation (`braid node invite` on another node), or make another cluster",
            &[list],
        ),
        NodeCase::TriedAgain => advice("What is on its own disks goes on.", "it is tried again by itself", &[list]),
    }
}
