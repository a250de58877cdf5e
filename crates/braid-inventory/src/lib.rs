//! The inventory: what the daemon knows of arrays, pools, exports and replicas.
//!
//! What it is: [`Inventory`] has the [`Tables`], plain data behind one lock, with their saved form in the state folder,
//! the events, the faults of the daemon itself, and the claims by which changes of one object exclude each other. The
//! managers of arrays, pools, exports and replication share it; each of them keeps for itself what only it needs.
//! What it guarantees: names, numbers and uses of objects are checked and changed under one lock, so that a check holds
//! when the change is made, and so that the state file is one moment of all objects. The lock is held briefly, and
//! never across an await.
//! What it never does: call a manager, or read or write a disk of a user. The one exception is the register of a voter,
//! in the last blocks of the replica metadata ([`register`]).

#![forbid(unsafe_code)]

pub mod admission;
mod arrays;
mod clock;
mod controller_contact;
mod disks;
pub mod events;
mod export_lookup;
mod exports;
mod frontends;
mod imported;
mod inventory;
pub mod job_table;
mod pool_jobs;
mod pool_labels;
mod pool_lookup;
mod pool_maintenance;
mod pool_vitals;
mod pools;
mod random;
mod reconciler;
mod reconciler_jobs;
pub mod register;
mod replica_lookup;
mod replicas;
mod replicated;
mod replicated_lookup;
mod snapshot_schedules;
mod sockets;
mod stacking;
mod starting;
pub mod state;
mod tables;
pub mod terms;
mod unreadable;
mod wording;

pub use arrays::{
    ActiveArray, ArrayCondition, ArrayEntry, ArrayHandle, ArraySlot, IdleArray, IdleMember, MissingMember, check_of,
    damage_of, needs_operator,
};
pub use clock::unix_ms;
pub use controller_contact::ControllerContact;
pub use disks::{DiskWatch, LocalSessionGuard, OpenDisk, disk_state};
pub use exports::{ExportCondition, ExportEntry, Listener};
pub use frontends::{FUSE_FRONTEND, NBD_FRONTEND, UBLK_FRONTEND};
pub use imported::Imported;
pub use inventory::{Claim, Inventory};
pub use pool_jobs::{PoolJobs, PoolWork};
pub use pool_labels::{FoundPoolDisk, combine_copies};
pub use pool_maintenance::{Maintenance, MergeHold, WorkItem};
pub use pool_vitals::{Fill, SpaceShortage, Vitals};
pub use pools::{
    Counted, DELETED, IdlePool, KnownSnapshot, MemberBacking, MemberPart, PoolCondition, PoolEntry, PoolHandle,
    REOPENED, ServedPool, ServedVolume, WITH_POOL, missing_of, while_reopening,
};
pub use random::{random, random_uuid};
pub use reconciler::{PendingOrder, ReconcilerHandle};
pub use replicas::{
    KnownController, LocalSessionBase, ReplicaCondition, ReplicaDevice, ReplicaEntry, VotingReplica, is_excluded,
};
pub use replicated::{SavedLeftover, SavedReplicated, SavedVoter, membership_of, show_membership};
pub use replicated_lookup::{is_replicated_name, not_served_here, volume_exists};
pub use snapshot_schedules::{ScheduledSnapshot, ScheduledVolume};
pub use sockets::{ListeningSocket, ListeningSockets};
pub use stacking::{called, refuse_higher_stack_level};
pub use tables::{Tables, Tallies};
pub use unreadable::Unreadable;
pub use wording::counted;
