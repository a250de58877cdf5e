//! The records in the state file.

use braid_api::{ExportTls, Findings, ReplicaLocation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use uuid::Uuid;

/// The saved form of an imported array of Linux md.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedImport {
    /// Its identity.
    pub array: Uuid,
    /// Its name in this daemon.
    pub name: String,
    /// The disks of its members.
    pub disks: Vec<String>,
    /// Stale members are read if the array accepts them, and parity that may be wrong is used.
    pub force: bool,
    /// The layout of a raid0 whose superblock does not record it.
    #[serde(default)]
    pub layout: Option<String>,
}

/// The saved form of a replica or witness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedReplica {
    /// The identity of the replicated volume.
    pub volume: Uuid,
    /// Its name.
    pub name: String,
    /// Its number among the voters.
    pub voter: u8,
    /// The number of voters, by the membership.
    pub voters: u8,
    /// The pool; `None`: a witness.
    pub pool: Option<Uuid>,
    /// The pool's last known name; empty for a witness.
    pub pool_name: String,
    /// The volume that holds the data.
    pub data: Option<Uuid>,
    /// The volume that holds the replica metadata.
    pub metadata: Option<Uuid>,
    /// Size of the data, in bytes.
    pub size_bytes: u64,
    /// Size of the metadata in front of the data, in bytes.
    pub head_bytes: u64,
    /// Size of the metadata behind the data, in bytes.
    pub tail_bytes: u64,
    /// The nodes of all voters of the volume.
    #[serde(default)]
    pub locations: Vec<ReplicaLocation>,
    /// The version of the membership that added this voter; 0: it was created with the volume.
    #[serde(default)]
    pub since: u64,
    /// The version of the membership that `voters` and `locations` describe: never older than that of the register's
    /// vote.
    #[serde(default)]
    pub version: u64,
    /// Size of the volume, in bytes; a witness stores none of it.
    #[serde(default)]
    pub volume_bytes: u64,
    /// The logical block of the volume, in bytes.
    #[serde(default = "braid_api::block_bytes_usual", skip_serializing_if = "braid_api::is_block_usual")]
    pub block_bytes: u32,
    /// Part of the replica's boot id: a new random number each time that the replica has lost unflushed data without a
    /// restart of the machine, or is found to be an older copy; nil: never.
    pub losses: Uuid,
    /// The pool has an older copy of the replica: its data is not trusted until the replica was rebuilt and is in sync.
    #[serde(default)]
    pub older: bool,
    /// The replica is complete: its register is durable. Otherwise the next start removes it.
    pub formed: bool,
}

/// The session of a pool, as its labels record it: each opening of the pool writes a new random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedSession {
    /// The last known session of the labels.
    pub session: u64,
    /// The session that the labels may have instead: it was about to be written.
    #[serde(default)]
    pub next: Option<u64>,
    /// The pool was closed cleanly, and the labels of that session record it, too.
    #[serde(default)]
    pub closed: bool,
}

impl SavedSession {
    /// Returns whether labels with this session and clean flag may be on the disks that the pool had last.
    pub fn fits(&self, session: u64, clean: bool) -> bool {
        self.next == Some(session) || session == self.session && (clean || !self.closed)
    }
}

/// A journal disk that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedLoss {
    /// The array's identity.
    pub array: Uuid,
    /// The disk's name.
    pub disk: String,
}

/// The saved form of a check or repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedCheck {
    /// The array's identity.
    pub array: Uuid,
    /// Whether differences are corrected.
    pub repair: bool,
    /// Whether a repair takes the data as correct, whatever their parity says.
    #[serde(default)]
    pub from_data: bool,
    /// Everything before this byte of the array was checked.
    pub position_bytes: u64,
    /// Whether a command paused it.
    pub paused: bool,
    /// Maximum bytes per second that it reads on one member; 0: it yields to clients automatically.
    pub limit_bytes_per_s: u64,
    /// The findings so far.
    pub findings: Findings,
}

/// The saved form of damage that a check, a repair or a resync of an array has found, and of doubt about its parity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedDamage {
    /// The array's identity.
    pub array: Uuid,
    /// Whether a repair or a resync found it, and not a check.
    pub repair: bool,
    /// The findings.
    pub findings: Findings,
    /// Of an array with parity: the parity was not verified completely since a forced start of the array, and may be
    /// older than the last writes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parity_in_doubt: bool,
}

/// The saved form of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedExport {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: Uuid,
    /// The identity of the array, volume or snapshot.
    pub array: Uuid,
    /// The last known name of the array, volume or snapshot.
    pub array_name: String,
    /// The exported object is a replicated volume, which another node may serve.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replicated: bool,
    /// The pool of an exported volume or snapshot.
    #[serde(default)]
    pub pool: Option<Uuid>,
    /// The address that it listens on.
    pub nbd: String,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Whether it may listen where other hosts reach it without TLS.
    #[serde(default)]
    pub insecure: bool,
    /// Whether it uses TLS. An export that was saved before TLS existed stays unencrypted.
    #[serde(default)]
    pub tls: ExportTls,
    /// Networks that clients may come from.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Maximum connections at a time.
    #[serde(default)]
    pub connections_max: Option<u32>,
    /// Maximum requests per second.
    #[serde(default)]
    pub iops_max: Option<u64>,
    /// Maximum bytes per second.
    #[serde(default)]
    pub bandwidth_bytes_max: Option<u64>,
}

/// The saved form of a member disk of an array.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedDisk {
    /// Its name.
    pub disk: String,
    /// The array that it was a member of.
    pub array: Uuid,
    /// That array's name.
    pub array_name: String,
    /// Its slot in the array.
    pub slot: u16,
}

/// The saved form of a member disk of a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPoolDisk {
    /// Its name.
    pub disk: String,
    /// The pool that it was a member of.
    pub pool: Uuid,
    /// That pool's name.
    pub pool_name: String,
    /// Its member number.
    pub member: u8,
}

/// The saved form of an array that is a member of a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPoolArray {
    /// Its identity.
    pub array: Uuid,
    /// Its name.
    pub array_name: String,
    /// The pool.
    pub pool: Uuid,
    /// That pool's name.
    pub pool_name: String,
    /// Its member number.
    pub member: u8,
}

/// Volumes that were assigned to a pool member which is being removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedUnassigned {
    /// The pool.
    pub pool: Uuid,
    /// The member's number.
    pub member: u8,
    /// The volumes.
    pub volumes: BTreeSet<Uuid>,
}
