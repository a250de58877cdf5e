//! Advice on an object, by its kind and its state: the single source of the remedies in the status, in lists and in refusals.
//!
//! Guarantees: the advice on an object contains only commands for its own kind. A replicated volume is not an array to its user, although
//! an array combines its replicas. A replica that returns automatically gets no command that adds one. Every command exists in the command
//! line. A test checks every pair of kind and state.
//!
//! A command in a remedy extends from the word `braid` to the next `;`, `,`, `:`, `(`, `` ` `` or the end.

use braid_api::{Attention, AttentionCode};

macro_rules! states {
    ($($(#[$of:meta])* $kind:ident { $($(#[$doc:meta])* $state:ident,)+ })+) => {
        $(
            $(#[$of])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $kind { $($(#[$doc])* $state,)+ }

            impl $kind {
                /// All states.
                pub const ALL: &[$kind] = &[$($kind::$state,)+];
            }
        )+
    };
}

states! {
    /// The state of an array of disks that does not serve.
    ArrayCase {
        /// The array can be started.
        Ready,
        /// None of the array's disks was found.
        DisksMissing,
        /// A member that the array needs is missing.
        MemberMissing,
        /// The journal disk is missing.
        JournalMissing,
        /// A missing member may have continued to serve without the present ones.
        Waiting,
        /// The creation was interrupted.
        CreateInterrupted,
        /// The deletion was interrupted.
        DeleteInterrupted,
        /// The deletion failed.
        DeleteFailed,
        /// Another array has the same name. The name in [`ObjectNames`] is the array's UUID.
        SameName,
        /// Both a disk and a copy of it are present.
        DuplicateDisk,
        /// A member's disk has an old state or the wrong size.
        WrongDisk,
        /// The labels contradict each other.
        Refused,
        /// The array has failed, and is a member of a pool that serves. The `secondary` in [`ObjectNames`] is the pool.
        FailedUnderPool,
        /// No array has this name.
        Unknown,
    }

    /// The state of a redundant array that serves or has served.
    Redundant {
        /// More members have failed than the array tolerates.
        TooManyFailures,
        /// A member is missing.
        Degraded,
        /// A member is being rebuilt.
        Rebuilding,
        /// A member is being rebuilt, and a part of its content cannot be read from the other members.
        RebuildIncomplete,
        /// The content of some stripes is lost, because a crash and the failure of a member coincided.
        Unreadable,
        /// The journal disk has failed.
        JournalLost,
        /// Copies differ.
        DamagedCopies,
        /// P does not agree with the data, at a level with one parity.
        DamagedParity,
        /// The parity does not agree with the data, at a level with two parities.
        DamagedParities,
        /// Damage remains that a repair could not fix.
        DamageRemains,
    }

    /// The state of a replicated volume, as seen by one of its nodes.
    VolumeCase {
        /// This node does not serve the volume, and nothing else is known.
        NotServedHere,
        /// No node serves the volume, and the node that did is unreachable.
        Unserved,
        /// Unreachable nodes may serve the volume, and serving it on this node needs their votes.
        UnservedMaybe,
        /// This node opens the volume, and too few voters are reachable.
        WaitsForVoters,
        /// This node opens the volume, and no reachable replica is complete.
        WaitsForData,
        /// This node was requested to serve the volume and does not, because too few nodes are reachable or no reachable replica is complete.
        NotAttached,
        /// This node opens the volume, and another step has failed. The node retries.
        Opening,
        /// Some nodes have deleted their replicas of the volume.
        Deleted,
        /// The volume is served, and the request needs it not to be served.
        Served,
    }

    /// The state of a replica of a volume that this node serves. The replica may be on any node.
    ReplicaOfServed {
        /// The replica's node is unreachable.
        NodeUnreachable,
        /// The node is reachable, the replica has been dropped, and the controller retries to take it back.
        Returning,
        /// The replica is being rebuilt.
        Rebuilding,
        /// The rebuild job is paused by a command.
        RebuildPaused,
        /// The replica is in use, and some of its I/O fails or hangs.
        Failing,
        /// The replica was removed and not replaced.
        Removed,
        /// The replica was excluded by a forced attach of the volume.
        LeftOut,
    }

    /// The state of a replica or witness on this node.
    ReplicaCase {
        /// The replica's pool does not serve.
        Waiting,
        /// The replica's persistent state (its register) is lost, and with it the votes that it has granted: it must
        /// not vote again.
        Lost,
        /// The replica's register or device has failed, and is retried.
        Retrying,
        /// The replica's register or device has failed, and is not retried before the next start of the daemon.
        Failed,
        /// The replica was excluded by a forced attach of its volume.
        Excluded,
    }

    /// The state of a pool.
    PoolCase {
        /// The pool does not serve.
        Idle,
        /// A member has failed a write or a flush.
        WriteFailed,
        /// The pool's in-memory log was lost before the pool was opened.
        LogLost,
        /// The pool's in-memory log was removed while the pool serves.
        LogRemoved,
        /// Some entries of the pool's tables are damaged.
        Damaged,
        /// The pool is nearly full.
        NearlyFull,
        /// Scheduled snapshots fail.
        ScheduleFails,
        /// No pool has this name.
        Unknown,
    }

    /// The state of a member of a pool that serves.
    PoolMemberCase {
        /// The member's disk has shrunk.
        Truncated,
        /// The pool's writes to the member fail because the file system or thin device under it is full. The
        /// `secondary` in [`ObjectNames`] is the path of the member's file, or empty if the member is no file.
        Full,
        /// The member is missing.
        Missing,
        /// The member was missing and is present again.
        Returned,
        /// The member was given up by the user.
        GivenUp,
    }

    /// The state of a pool volume on this node that prevents a request.
    PoolVolumeCase {
        /// The volume was deleted concurrently.
        Deleted,
        /// The volume is exported.
        Exported,
        /// The volume has snapshots.
        HasSnapshots,
    }

    /// The state of an export that does not listen.
    ExportCase {
        /// The export cannot bind its address, or its device rejected the export.
        Failed,
        /// The export's array was not found.
        ArrayUnknown,
        /// The export's pool was not found.
        PoolUnknown,
        /// Another node or no node serves the export's volume.
        Standby,
    }

    /// The state of a disk of an array that serves.
    DiskCase {
        /// The disk has shrunk, and the array is redundant.
        TruncatedRedundant,
        /// The disk has shrunk, and the array is not redundant.
        Truncated,
        /// The disk's file was deleted.
        Deleted,
        /// The file system of the disk's file is full, and the array is redundant.
        FullRedundant,
        /// The file system of the disk's file is full, and the array is not redundant.
        Full,
        /// The disk's I/O fails or hangs.
        Failing,
    }

    /// The state of a job.
    JobCase {
        /// No job has this name.
        Unknown,
        /// The job is in progress, and prevents another job from starting.
        Running,
    }

    /// The state of a node of the cluster.
    NodeCase {
        /// The node is unreachable.
        Unreachable,
        /// The node's clock differs from this node's clock.
        ClockDiffers,
        /// This node was removed from the cluster.
        RemovedHere,
        /// This node retries an operation that has failed. The caller adds the remedy of the operation's error.
        Retrying,
    }
}

/// The kind of an object, with its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// An array that does not serve.
    Array(ArrayCase),
    /// A redundant array.
    Redundant(Redundant),
    /// An imported array of Linux md, which is read-only.
    ImportedArray,
    /// The array that combines the replicas of a replicated volume.
    ServedVolume(Redundant),
    /// A replicated volume.
    ReplicatedVolume(VolumeCase),
    /// A replica of a volume that this node serves.
    ServedReplica(ReplicaOfServed),
    /// A replica or witness of this node.
    Replica(ReplicaCase),
    /// A pool on disks and arrays.
    Pool(PoolCase),
    /// A pool on a replicated volume.
    PoolOnReplicatedVolume(PoolCase),
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

/// The names of an object.
#[derive(Clone, Copy, Debug, Default)]
pub struct ObjectNames<'a> {
    /// The name of the object. For a member, a replica or a disk, the name of the array, pool or volume.
    pub name: &'a str,
    /// A second name, where the case needs one; else empty. The number of a pool's member; the node of a replica; the
    /// volume below a pool, or of an export; the pool on an array; the job that is in progress or paused.
    pub secondary: &'a str,
}

impl<'a> ObjectNames<'a> {
    /// Returns the names of an object without a second name.
    pub fn of(name: &'a str) -> ObjectNames<'a> {
        ObjectNames { name, secondary: "" }
    }

    /// Returns the names of an object with a second name.
    pub fn with(name: &'a str, part: &'a str) -> ObjectNames<'a> {
        ObjectNames { name, secondary: part }
    }
}

/// The consequences of an object's state for its users, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The code of the situation: `braid explain CODE` prints its runbook.
    pub code: AttentionCode,
    /// The consequences.
    pub impact: String,
    /// The remedy.
    pub remedy: String,
    /// The commands of the remedy.
    pub commands: Vec<String>,
}

impl Advice {
    /// Converts the advice to an attention item.
    pub fn attention(self, subject: String, message: String) -> Attention {
        let Advice { code, impact, remedy, commands } = self;
        Attention { code, subject, message, impact, remedy, commands }
    }
}

fn advice(impact: &str, remedy: impl Into<String>, commands: &[String]) -> Advice {
    let code = AttentionCode::Unknown;
    Advice { code, impact: impact.to_owned(), remedy: remedy.into(), commands: commands.to_vec() }
}

/// Returns only the remedy for an object.
pub fn remedy(case: Case, names: ObjectNames<'_>) -> String {
    of(case, names).remedy
}

/// Returns the advice on an object.
pub fn of(case: Case, names: ObjectNames<'_>) -> Advice {
    let advice = match case {
        Case::Array(case) => of_array(case, names.name, names.secondary),
        Case::Redundant(case) => of_redundant(case, names.name),
        Case::ImportedArray => advice(
            "It is an array of Linux md that is only read: nothing is repaired here.",
            "copy what it holds to another place",
            &[format!("braid array show {}", names.name)],
        ),
        Case::ServedVolume(case) => of_served_volume(case, names.name),
        Case::ReplicatedVolume(case) => of_volume(case, names.name),
        Case::ServedReplica(case) => of_replica_of_served(case, names.name, names.secondary),
        Case::Replica(case) => of_replica(case, names.name),
        Case::Pool(case) => of_pool(case, names.name),
        Case::PoolOnReplicatedVolume(case) => of_carried_pool(case, names.name, names.secondary),
        Case::PoolMember(case) => of_pool_member(case, names.name, names.secondary),
        Case::PoolVolume(case) => of_pool_volume(case, names.name),
        Case::Export(case) => of_export(case, names.name, names.secondary),
        Case::Disk(case) => of_disk(case, names.name),
        Case::Job(case) => of_job(case, names.secondary),
        Case::Node(case) => of_node(case, names.name),
    };
    Advice { code: code(case), ..advice }
}

/// Returns the code of a case; [`AttentionCode::Unknown`] for a case that only refusals and lists name.
pub fn code(case: Case) -> AttentionCode {
    match case {
        Case::Array(case) => match case {
            ArrayCase::DisksMissing | ArrayCase::MemberMissing | ArrayCase::JournalMissing | ArrayCase::Waiting => {
                AttentionCode::ArrayIncomplete
            }
            ArrayCase::FailedUnderPool => AttentionCode::ArrayFailed,
            ArrayCase::Unknown => AttentionCode::Unknown,
            _ => AttentionCode::ArrayInactive,
        },
        Case::Redundant(case) => match case {
            Redundant::TooManyFailures => AttentionCode::ArrayFailed,
            Redundant::Degraded => AttentionCode::ArrayDegraded,
            Redundant::Rebuilding => AttentionCode::ArrayRebuilding,
            Redundant::RebuildIncomplete => AttentionCode::ArrayRebuildUnreadable,
            Redundant::Unreadable => AttentionCode::ArrayUnreadable,
            Redundant::JournalLost => AttentionCode::ArrayJournalLost,
            Redundant::DamagedCopies
            | Redundant::DamagedParity
            | Redundant::DamagedParities
            | Redundant::DamageRemains => AttentionCode::ArrayDamaged,
        },
        Case::ImportedArray => AttentionCode::ArrayImported,
        Case::ServedVolume(case) => match case {
            Redundant::TooManyFailures => AttentionCode::VolumeFailed,
            // Missing replicas and rebuilds are reported for each replica.
            Redundant::Degraded => AttentionCode::ReplicaUnreachable,
            Redundant::Rebuilding => AttentionCode::ReplicaRebuilding,
            Redundant::RebuildIncomplete => AttentionCode::VolumeRebuildUnreadable,
            Redundant::Unreadable => AttentionCode::VolumeUnreadable,
            Redundant::JournalLost => AttentionCode::VolumeJournalLost,
            Redundant::DamagedCopies
            | Redundant::DamagedParity
            | Redundant::DamagedParities
            | Redundant::DamageRemains => AttentionCode::VolumeDamaged,
        },
        Case::ReplicatedVolume(case) => match case {
            VolumeCase::Unserved => AttentionCode::VolumeUnserved,
            VolumeCase::UnservedMaybe => AttentionCode::VolumeServiceUnknown,
            VolumeCase::WaitsForVoters => AttentionCode::VolumeWaitsForQuorum,
            VolumeCase::WaitsForData => AttentionCode::VolumeWaitsForData,
            VolumeCase::Opening => AttentionCode::VolumeOpening,
            VolumeCase::Deleted => AttentionCode::VolumeDeletedElsewhere,
            VolumeCase::NotServedHere | VolumeCase::NotAttached | VolumeCase::Served => AttentionCode::Unknown,
        },
        Case::ServedReplica(case) => match case {
            ReplicaOfServed::NodeUnreachable => AttentionCode::ReplicaUnreachable,
            ReplicaOfServed::Returning => AttentionCode::ReplicaReturning,
            ReplicaOfServed::Rebuilding => AttentionCode::ReplicaRebuilding,
            ReplicaOfServed::RebuildPaused => AttentionCode::ReplicaRebuildPaused,
            ReplicaOfServed::Failing => AttentionCode::ReplicaFailing,
            ReplicaOfServed::Removed => AttentionCode::ReplicaRemoved,
            ReplicaOfServed::LeftOut => AttentionCode::ReplicaLeftOut,
        },
        Case::Replica(case) => match case {
            ReplicaCase::Lost => AttentionCode::ReplicaLost,
            ReplicaCase::Retrying | ReplicaCase::Failed => AttentionCode::ReplicaFailed,
            ReplicaCase::Excluded => AttentionCode::ReplicaLeftOut,
            ReplicaCase::Waiting => AttentionCode::Unknown,
        },
        Case::Pool(case) | Case::PoolOnReplicatedVolume(case) => match case {
            PoolCase::Idle => AttentionCode::PoolInactive,
            PoolCase::WriteFailed => AttentionCode::PoolWriteFailed,
            PoolCase::LogLost => AttentionCode::PoolLogMissing,
            PoolCase::LogRemoved => AttentionCode::PoolLogRemoved,
            PoolCase::Damaged => AttentionCode::PoolDamaged,
            PoolCase::NearlyFull => AttentionCode::PoolNearlyFull,
            PoolCase::ScheduleFails => AttentionCode::SnapshotPolicyFailed,
            PoolCase::Unknown => AttentionCode::Unknown,
        },
        Case::PoolMember(case) => match case {
            PoolMemberCase::Truncated => AttentionCode::PoolMemberShort,
            PoolMemberCase::Full => AttentionCode::PoolLacksSpace,
            PoolMemberCase::Missing => AttentionCode::PoolMemberMissing,
            PoolMemberCase::Returned => AttentionCode::PoolMemberReturned,
            PoolMemberCase::GivenUp => AttentionCode::PoolMemberGivenUp,
        },
        Case::PoolVolume(_) | Case::Job(_) => AttentionCode::Unknown,
        Case::Export(case) => match case {
            ExportCase::Failed => AttentionCode::ExportFailed,
            ExportCase::ArrayUnknown | ExportCase::PoolUnknown => AttentionCode::ExportSourceMissing,
            ExportCase::Standby => AttentionCode::Unknown,
        },
        Case::Disk(case) => match case {
            DiskCase::TruncatedRedundant | DiskCase::Truncated => AttentionCode::DiskShort,
            DiskCase::Deleted => AttentionCode::DiskDeleted,
            DiskCase::FullRedundant | DiskCase::Full => AttentionCode::DiskLacksSpace,
            DiskCase::Failing => AttentionCode::DiskErrors,
        },
        Case::Node(case) => match case {
            NodeCase::Unreachable => AttentionCode::NodeUnreachable,
            NodeCase::ClockDiffers => AttentionCode::NodeClockDiffers,
            NodeCase::RemovedHere => AttentionCode::NodeRemoved,
            // The caller knows which operation is retried, and sets the code.
            NodeCase::Retrying => AttentionCode::Unknown,
        },
    }
}

const SERVES_NOTHING: &str = "It serves nothing. Nothing was changed on its disks.";
const SERVES_NORMALLY: &str = "It serves as usual. It may not tolerate another failure.";

fn of_array(case: ArrayCase, name: &str, pool: &str) -> Advice {
    let (show, assemble) = (format!("braid array show {name}"), format!("braid array assemble {name}"));
    let with_disk = format!("{assemble} --disk DISK");
    let waiting = "It serves nothing. The content of the present disks is not changed.";
    match case {
        ArrayCase::Ready | ArrayCase::DeleteInterrupted => advice(SERVES_NOTHING, assemble.clone(), &[show, assemble]),
        ArrayCase::DisksMissing => {
            advice(waiting, format!("attach its disks, or name them: {with_disk}"), &[show, with_disk])
        }
        ArrayCase::MemberMissing => advice(
            waiting,
            format!(
                "attach the missing disk, or name it: {with_disk}; if it is lost permanently, so is the content: braid array delete {name} --force"
            ),
            &[show, with_disk],
        ),
        ArrayCase::JournalMissing => advice(
            waiting,
            format!(
                "attach the missing disk, or name it: {with_disk}; if the journal disk is lost permanently: {assemble} --force \
                 (without the other missing disk as well, some of what was being written may be wrong)"
            ),
            &[show, with_disk],
        ),
        ArrayCase::Waiting => advice(
            waiting,
            format!(
                "attach the missing disk, or start without it: {assemble} --degraded (writes that reached only the missing disk are lost)"
            ),
            &[show, with_disk],
        ),
        ArrayCase::CreateInterrupted => advice(
            SERVES_NOTHING,
            format!("braid array delete {name}, then create it again"),
            &[show, format!("braid array delete {name}")],
        ),
        ArrayCase::DeleteFailed => advice(
            "It serves nothing. Some of its disks may still have its label.",
            format!("braid array delete {name}"),
            &[show, format!("braid array delete {name}")],
        ),
        ArrayCase::SameName => {
            advice(SERVES_NOTHING, format!("start it by its UUID, then rename it: {assemble}"), &[show, assemble])
        }
        ArrayCase::DuplicateDisk => advice(
            SERVES_NOTHING,
            "remove the copy, or wipe its label (braid disk wipe DISK)",
            &[show, "braid disk wipe DISK".to_owned()],
        ),
        ArrayCase::WrongDisk => {
            advice(SERVES_NOTHING, format!("attach the correct disk, or name it: {with_disk}"), &[show, with_disk])
        }
        ArrayCase::Refused => advice(
            SERVES_NOTHING,
            "examine its disks with `braid disk examine DISK`",
            &[show, "braid disk examine DISK".to_owned()],
        ),
        ArrayCase::FailedUnderPool => advice(
            "The pool on it and its clients get errors. Flushed data is on its disks, which are not changed.",
            format!("reattach its disks, then restart the daemon, which starts the array and then reopens pool {pool}"),
            &[show, format!("braid pool show {pool}")],
        ),
        ArrayCase::Unknown => advice(
            "No object of this name is known on this node.",
            "`braid array list` lists the known arrays; `braid array assemble --disk DISK` scans further disks",
            &["braid array list".to_owned(), "braid array assemble --disk DISK".to_owned()],
        ),
    }
}

fn of_redundant(case: Redundant, name: &str) -> Advice {
    let show = format!("braid array show {name}");
    let repair = format!("braid array repair {name}");
    match case {
        Redundant::TooManyFailures => advice(
            "Its clients get errors. Flushed data is on its disks, which are not changed.",
            "reattach its disks, then start it again",
            &[show, format!("braid array assemble {name}")],
        ),
        Redundant::Degraded => advice(
            SERVES_NORMALLY,
            "reattach the disk if it is healthy, or add another disk",
            &[show, format!("braid array add {name} DISK")],
        ),
        Redundant::Rebuilding => advice(
            "It serves as usual. Until then it may not tolerate another failure.",
            "wait until it is done",
            &[show],
        ),
        Redundant::RebuildIncomplete => advice(
            "It serves as usual. A member cannot be rebuilt completely, because a part of its content cannot be read from the others: it may not tolerate another failure.",
            "rewrite these ranges, for example by restoring the file there: the rebuild continues automatically within seconds",
            &[show, "braid job list".to_owned()],
        ),
        Redundant::Unreadable => advice(UNREADABLE_STRIPES, WRITE_AGAIN, &[show]),
        Redundant::JournalLost => advice(
            "It serves as usual, and no written data is lost: small writes are as slow as without the journal disk.",
            "move the journal to another disk, or keep it on the members",
            &[format!("braid array journal {name} DISK"), format!("braid array journal {name} --members")],
        ),
        Redundant::DamagedCopies => advice(
            COPIES_DIFFER,
            "make the copies equal: to the majority, else to the first member; then check the disks",
            &[repair, show],
        ),
        Redundant::DamagedParity => advice(
            PARITY_DIFFERS,
            "one parity cannot identify the wrong member: compare these ranges with a backup, then make the \
             parity agree with the data; then check the disks",
            &[repair, show],
        ),
        Redundant::DamagedParities => advice(
            PARITY_DIFFERS,
            "recompute the damaged blocks, which two parities identify, from the other members; after a forced start without the \
             journal keep the data instead, which may be newer than both parities (--from-data); then check the disks",
            &[repair.clone(), format!("{repair} --from-data"), show],
        ),
        Redundant::DamageRemains => advice(
            "It serves as usual. What a client reads there may be wrong.",
            "unreadable blocks are lost unless a backup has them: rewrite these ranges, then check again",
            &["braid job list".to_owned(), format!("braid array check {name}")],
        ),
    }
}

const UNREADABLE_STRIPES: &str = "These stripes were being written when the daemon or the machine crashed, and a member with a part of them has failed: \
                          their content is lost. All other data is served as usual.";
const WRITE_AGAIN: &str =
    "rewrite these ranges, in any order and in writes of at least 4096 bytes: restore them from a backup, or zero them";
const COPIES_DIFFER: &str = "It serves as usual. A client may read any copy of such a block.";
const PARITY_DIFFERS: &str =
    "It serves as usual. Clients read such a block as its member has it, and a rebuild would compute others from it.";

fn of_served_volume(case: Redundant, name: &str) -> Advice {
    let show = format!("braid volume show {name}");
    let rebuild = format!("braid replica rebuild {name} NODE");
    match case {
        Redundant::TooManyFailures => advice(
            "Its clients are disconnected, and wait: no request fails.",
            "bring the nodes of its replicas back: it is reopened automatically as soon as enough of them are reachable",
            &[show, "braid node list".to_owned()],
        ),
        Redundant::Degraded => advice(
            SERVES_NORMALLY,
            "bring the nodes of its replicas back: a replica returns automatically when its node is reachable",
            &[show, "braid node list".to_owned()],
        ),
        Redundant::Rebuilding => advice(
            "It serves as usual. Until then it may not tolerate another failure.",
            "wait until it is done",
            &[show],
        ),
        Redundant::RebuildIncomplete => advice(
            "It serves as usual. A replica cannot be rebuilt completely, because a part of its content cannot be read from the others: it may not tolerate another failure.",
            "rewrite these ranges, for example by restoring the file there: the rebuild continues automatically within seconds",
            &[show],
        ),
        Redundant::Unreadable => advice(UNREADABLE_STRIPES, WRITE_AGAIN, &[show]),
        // The journal of a replicated volume is on its replicas. It cannot have a separate disk.
        Redundant::JournalLost => advice(
            "It serves as usual, and no written data is lost.",
            "no action is needed: the journal is on the replicas",
            &[show],
        ),
        Redundant::DamagedCopies => advice(
            COPIES_DIFFER,
            format!("identify the damaged replica (read a snapshot on each node), then rebuild it: {rebuild}"),
            &[show, rebuild],
        ),
        Redundant::DamagedParity | Redundant::DamagedParities => advice(
            PARITY_DIFFERS,
            format!("compare these ranges with a backup, then rebuild the damaged replica: {rebuild}"),
            &[show, rebuild],
        ),
        Redundant::DamageRemains => advice(
            "It serves as usual. What a client reads there may be wrong.",
            "unreadable blocks are lost unless a backup has them: rewrite these ranges",
            &[show],
        ),
    }
}

fn of_volume(case: VolumeCase, name: &str) -> Advice {
    let show = format!("braid volume show {name}");
    let attach = format!("braid volume attach {name}");
    let list_all = "braid volume list --all".to_owned();
    let clients_wait = "Its clients wait until a node serves it.";
    match case {
        VolumeCase::NotServedHere => advice(
            "This node does not serve it.",
            format!("use it on the node that serves it ({list_all}); or serve it here: {attach}"),
            &[list_all, attach],
        ),
        VolumeCase::Unserved => advice(
            clients_wait,
            format!(
                "bring that node back: the volume continues automatically; or serve it here: {attach}; if the other node is alive but unreachable, \
                 it is fenced, and no acknowledged write is lost"
            ),
            &[attach, list_all],
        ),
        VolumeCase::UnservedMaybe => advice(
            "This node cannot determine whether the volume is served. If the unreachable nodes are down, its clients wait.",
            format!(
                "bring those nodes back; too few voters remain for a quorum here; if the others are lost permanently: {attach} --force; \
                 first make sure that their nodes are down: if one of them still serves the volume, the result is a split brain"
            ),
            &[show, "braid node list".to_owned(), format!("{attach} --force")],
        ),
        VolumeCase::WaitsForVoters => advice(
            clients_wait,
            format!(
                "bring the unreachable nodes back: the volume continues automatically; if they are lost permanently: {attach} --force; first make sure that they are down"
            ),
            &[show, "braid node list".to_owned(), format!("{attach} --force")],
        ),
        VolumeCase::WaitsForData => advice(
            clients_wait,
            format!(
                "bring a complete replica back: the volume continues automatically; if all are lost permanently, serve the best remaining one: {attach} --force"
            ),
            &[show, "braid node list".to_owned(), format!("{attach} --force")],
        ),
        VolumeCase::NotAttached => advice(
            "This node does not serve it.",
            format!(
                "bring the nodes of its replicas back (braid node list), then try again: {attach}; if they are lost permanently: {attach} --force"
            ),
            &["braid node list".to_owned(), attach.clone(), format!("{attach} --force")],
        ),
        VolumeCase::Opening => advice(clients_wait, "no action is needed: it is retried automatically", &[show]),
        VolumeCase::Deleted => advice(
            clients_wait,
            format!("remove the remaining replicas: braid volume delete {name}"),
            &[show, format!("braid volume delete {name}")],
        ),
        VolumeCase::Served => advice(
            "It serves as usual.",
            format!("its replicas: {show}; to stop serving it here: braid volume detach {name}"),
            &[show, format!("braid volume detach {name}")],
        ),
    }
}

/// `node` is the node of the replica, or the rebuild job if that is paused.
fn of_replica_of_served(case: ReplicaOfServed, name: &str, node: &str) -> Advice {
    let show = format!("braid volume show {name}");
    let rebuild = format!("braid replica rebuild {name} {node}");
    match case {
        ReplicaOfServed::NodeUnreachable => advice(
            SERVES_NORMALLY,
            format!(
                "do not add a replica: this one returns automatically when node {node} is reachable; if that node is lost permanently: braid replica remove {name} {node}"
            ),
            &[show, format!("braid node show {node}")],
        ),
        ReplicaOfServed::Returning => advice(
            SERVES_NORMALLY,
            format!(
                "do not add a replica: this one is retried within a minute and returns automatically; if it stays dropped, or its disk is lost, rebuild it: {rebuild}"
            ),
            &[show, format!("braid node show {node}")],
        ),
        ReplicaOfServed::Rebuilding => advice(
            "It serves as usual. Until then it may not tolerate another failure.",
            "wait until it is done",
            &[show],
        ),
        ReplicaOfServed::RebuildPaused => advice(
            "It serves as usual. Until the replica is rebuilt the volume may not tolerate another failure.",
            format!("resume it: braid job resume {node}"),
            &[show, format!("braid job resume {node}")],
        ),
        ReplicaOfServed::Failing => advice(
            "Reads go to another replica. Writes wait for it up to 5 s; then the volume continues without it, and the replica returns automatically.",
            format!("check the pool of node {node}, and the network to it"),
            &[show, format!("braid node show {node}")],
        ),
        ReplicaOfServed::Removed => advice(
            SERVES_NORMALLY,
            format!("add another replica: braid replica add {name} NODE/POOL"),
            &[show, format!("braid replica add {name} NODE/POOL")],
        ),
        ReplicaOfServed::LeftOut => advice(
            SERVES_NORMALLY,
            format!(
                "its data is not trusted; rebuild it, which discards its data: {rebuild}; or remove it: braid replica remove {name} {node}"
            ),
            &[show, rebuild],
        ),
    }
}

fn of_replica(case: ReplicaCase, name: &str) -> Advice {
    let show = format!("braid replica show {name}");
    let volume_continues = "The volume is served as long as enough of its other voters are reachable.";
    match case {
        ReplicaCase::Waiting => advice(
            volume_continues,
            "check its pool: the replica votes again automatically when the pool serves",
            &[show, "braid pool list".to_owned()],
        ),
        ReplicaCase::Lost => advice(
            volume_continues,
            "add another replica on the node that serves the volume, then delete this one: its granted votes are lost",
            &[show],
        ),
        // The retry succeeds as soon as the disk can be written.
        ReplicaCase::Retrying => {
            advice(volume_continues, "check its pool and the kernel log (dmesg); it is retried automatically", &[show])
        }
        ReplicaCase::Failed => {
            advice(volume_continues, "check its pool and the kernel log (dmesg), then restart the daemon", &[show])
        }
        ReplicaCase::Excluded => advice(
            "Its data is as of its exclusion, or of the end of its last controller, and is not trusted. It uses space, and has no other effect.",
            format!(
                "to read its data here, take a snapshot of it and clone the snapshot; then, on the node that serves the volume: \
                 braid replica rebuild {name} NODE; that rebuilds it"
            ),
            &[show, format!("braid replica delete {name} --force")],
        ),
    }
}

const RESTART_REMEDY: &str = "check its members, then restart the daemon, which reopens the pool";
const SERVES_PARTIALLY: &str = "Its volumes are served as far as possible.";
const POOL_IDLE: &str = "It serves nothing, and its exports wait. The content of the present members is not changed.";
const FREE_SPACE_REMEDY: &str = "delete unneeded snapshots or volumes, discard unused blocks (fstrim), or add a member";
const SPACE_MEANING: &str =
    "When no space is free, writes to new blocks of its volumes fail (ENOSPC); everything else continues.";
const DAMAGED_MEANING: &str = "Nothing was changed: entries that a disk or a cable only misread are valid again at the next start. Volumes on other members are still served.";
const SCHEDULE_MEANING: &str = "Existing snapshots are kept. The schedule is retried at increasing intervals.";
const SCHEDULE_REMEDY: &str = "the event snapshot_policy_failed says why";

fn of_pool(case: PoolCase, name: &str) -> Advice {
    let show = format!("braid pool show {name}");
    match case {
        PoolCase::Idle => advice(
            POOL_IDLE,
            "attach its members, or name them: braid array assemble --disk DISK",
            &[show, "braid array assemble --disk DISK".to_owned()],
        ),
        PoolCase::WriteFailed | PoolCase::LogLost | PoolCase::LogRemoved => {
            advice(SERVES_PARTIALLY, RESTART_REMEDY, &[show])
        }
        PoolCase::Damaged => advice(
            DAMAGED_MEANING,
            "check its members, the kernel log (dmesg) and the damaged entries; copy off all readable data",
            &[show, format!("braid pool check {name}")],
        ),
        PoolCase::NearlyFull => advice(
            SPACE_MEANING,
            FREE_SPACE_REMEDY,
            &[show, format!("braid snapshot list {name}"), format!("braid pool add {name} DISK-or-ARRAY")],
        ),
        PoolCase::ScheduleFails => advice(SCHEDULE_MEANING, SCHEDULE_REMEDY, &[show, "braid events".to_owned()]),
        PoolCase::Unknown => advice(
            "No object of this name is known on this node.",
            "`braid pool list` lists the known pools; `braid array assemble --disk DISK` scans further disks",
            &["braid pool list".to_owned(), "braid array assemble --disk DISK".to_owned()],
        ),
    }
}

/// Returns the advice on a pool on a replicated volume, which has no other members and no disks of this node that could be attached or
/// added.
fn of_carried_pool(case: PoolCase, name: &str, volume: &str) -> Advice {
    let show = format!("braid pool show {name}");
    let attach = format!("braid volume attach {volume}");
    let reopen = format!("reopen it by serving the volume again: braid volume detach {volume} --force, then {attach}");
    let commands = [show.clone(), format!("braid volume detach {volume} --force"), attach.clone()];
    match case {
        PoolCase::Idle | PoolCase::Unknown => advice(
            "It serves nothing here, and its exports on this node wait. It moves with its volume from node to node.",
            format!(
                "use it on the node that serves the volume (braid volume list --all); or serve both here: {attach}"
            ),
            &[show, "braid volume list --all".to_owned(), attach],
        ),
        PoolCase::WriteFailed | PoolCase::LogLost | PoolCase::LogRemoved => advice(SERVES_PARTIALLY, reopen, &commands),
        PoolCase::Damaged => advice(
            DAMAGED_MEANING,
            format!(
                "check the replicas of its volume (braid volume show {volume}), and the damaged entries; copy off all readable data"
            ),
            &[show, format!("braid pool check {name}"), format!("braid volume show {volume}")],
        ),
        PoolCase::NearlyFull => advice(
            SPACE_MEANING,
            "delete unneeded snapshots or volumes, or discard unused blocks (fstrim): a pool on a replicated volume cannot grow",
            &[show, format!("braid snapshot list {name}")],
        ),
        PoolCase::ScheduleFails => advice(SCHEDULE_MEANING, SCHEDULE_REMEDY, &[show, "braid events".to_owned()]),
    }
}

fn of_pool_member(case: PoolMemberCase, pool: &str, number: &str) -> Advice {
    let show = format!("braid pool show {pool}");
    let other_volumes =
        "Volumes without data on it work fully; `braid volume list` shows which volumes may have lost data.";
    match case {
        PoolMemberCase::Truncated => advice(
            "Reads and writes of its data fail. Volumes without data on it work.",
            "stop the process that truncates it, stop the daemon, replace the disk by a complete copy, and start the daemon again",
            &[show],
        ),
        PoolMemberCase::Full => {
            let look = format!("df -h {number}").trim_end().to_owned();
            advice(
                "Nothing has failed, and nothing is lost. Reads continue, and so do writes to allocated blocks; unflushed data is kept in memory.",
                format!("free space there ({look}); the pool continues automatically"),
                &[show, look],
            )
        }
        PoolMemberCase::Missing => advice(
            other_volumes,
            format!(
                "attach it: it is then reported, and `braid pool start {pool}` takes it back if its content matches; if it is lost permanently, give it up"
            ),
            &[show, format!("braid pool remove {pool} {number} --force")],
        ),
        PoolMemberCase::Returned => advice(
            other_volumes,
            "take it back, which succeeds if its content matches; meanwhile no client may be connected to its volumes, and exports pause briefly",
            &[show, format!("braid pool start {pool}")],
        ),
        PoolMemberCase::GivenUp => advice(
            other_volumes,
            "copy off all readable data; then accept the loss of the rest: it reads as the data of an older snapshot, or as zeros, and those volumes become writable again",
            &[show, format!("braid pool check {pool} --give-up")],
        ),
    }
}

fn of_pool_volume(case: PoolVolumeCase, name: &str) -> Advice {
    match case {
        PoolVolumeCase::Deleted => advice(
            "The object no longer exists.",
            "it was deleted concurrently: `braid volume list`, `braid snapshot list`",
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
    let no_connections = "Its clients cannot connect.";
    match case {
        ExportCase::Failed => advice(no_connections, format!("the reason: {show}"), &[show]),
        ExportCase::ArrayUnknown => advice(
            no_connections,
            "attach its disks, or name them; or remove the export",
            &["braid array assemble --disk DISK".to_owned(), remove],
        ),
        ExportCase::PoolUnknown => advice(
            no_connections,
            "attach the members of the pool, or name them; or remove the export",
            &["braid array assemble --disk DISK".to_owned(), remove],
        ),
        ExportCase::Standby => advice(
            "Its clients connect to the node that serves the volume.",
            format!("no action is needed; to have the volume served here: braid volume attach {volume}"),
            &["braid volume list --all".to_owned(), format!("braid volume attach {volume}")],
        ),
    }
}

fn of_disk(case: DiskCase, array: &str) -> Advice {
    const SPACE_REMEDY: &str =
        "free space on the file system of its file; the disk is healthy again after the first successful write";
    let show = format!("braid array show {array}");
    match case {
        DiskCase::TruncatedRedundant => advice(
            "What it could not read came from another member.",
            "stop the process that truncates it; then replace it by another disk, which is rebuilt from the other members",
            &[show],
        ),
        DiskCase::Truncated => advice(
            "Reads and writes that need it get errors.",
            "stop the process that truncates it, stop the array, replace the disk by a complete copy, and start the array again. \
             Without a copy, extend it to its original size (truncate -s SIZE), which restores the part that was not truncated; the rest reads as zeros",
            &[show, format!("braid array stop {array} --force"), format!("braid array assemble {array}")],
        ),
        DiskCase::Deleted => advice(
            "It works, and is lost when the daemon closes it.",
            "copy off what is on it, or replace it by another disk, before the daemon stops",
            &[show],
        ),
        DiskCase::FullRedundant => advice(
            "Nothing on it is damaged. Data that it could not write is on the other members; it may have been dropped for this.",
            SPACE_REMEDY,
            &[show, "df -h".to_owned()],
        ),
        DiskCase::Full => advice(
            "Nothing on it is damaged. Writes of this array that need new space get errors.",
            SPACE_REMEDY,
            &[show, "df -h".to_owned()],
        ),
        DiskCase::Failing => advice(
            "Reads and writes that need it may get errors.",
            "check the disk and the kernel log; copy off all readable data",
            &[show, "dmesg --level err,warn | tail".to_owned()],
        ),
    }
}

fn of_job(case: JobCase, job: &str) -> Advice {
    match case {
        JobCase::Unknown => advice(
            "No job of this name is running.",
            "`braid job list` lists the running jobs; a job is named ARRAY:NUMBER or POOL:NUMBER",
            &["braid job list".to_owned()],
        ),
        JobCase::Running => advice(
            "It continues automatically.",
            format!("wait for it (braid job watch {job}), or cancel it (braid job cancel {job})"),
            &[format!("braid job watch {job}"), format!("braid job cancel {job}")],
        ),
    }
}

fn of_node(case: NodeCase, node: &str) -> Advice {
    let list = "braid node list".to_owned();
    match case {
        NodeCase::Unreachable => advice(
            "Volumes with a replica on it are served from the replicas on other nodes.",
            format!(
                "bring it back: its replicas return automatically when it is reachable; if it is lost permanently: braid node remove {node} --force"
            ),
            &[list],
        ),
        NodeCase::ClockDiffers => advice(
            "Certificates and invitations are valid at other times than they state; nodes whose clocks differ by a day reject each other.",
            "set the clocks, best with a service of the system that keeps them (chrony, systemd-timesyncd)",
            &[list],
        ),
        NodeCase::RemovedHere => advice(
            "It no longer takes part in the cluster.",
            "let it join again with an invitation (`braid node invite` on another node), or make another cluster",
            &[list],
        ),
        NodeCase::Retrying => {
            advice("Objects on its own disks are still served.", "it is retried automatically", &[list])
        }
    }
}
