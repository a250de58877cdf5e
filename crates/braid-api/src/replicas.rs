//! Replicas and witnesses of replicated volumes: what a node stores of them, and the requests of a controller.
//!
//! `docs/guide/replication.md` explains the terms.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The prefix of the name of every replica's export.
pub const REPLICA_EXPORT: &str = "replica:";

/// Returns the name of the export of this volume's replica, without the parameters that a controller appends after `?`.
pub fn replica_export(volume: &str) -> String {
    format!("{REPLICA_EXPORT}{volume}")
}

/// The prefix of the name of every export of a replica's snapshot that is offered to its controller.
pub const SNAPSHOT_EXPORT: &str = "snapshot:";

/// Returns the name of the export of a snapshot of this volume's replica, without the parameters that its controller appends after
/// `?`.
pub fn snapshot_export(volume: &str, snapshot: &str) -> String {
    format!("{SNAPSHOT_EXPORT}{volume}:{snapshot}")
}

/// `POST /v1/replicas`: create a replica of a volume, or a witness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateReplica {
    /// The replicated volume's identity: the same on all nodes.
    pub volume: String,
    /// The volume's name; for a replica also the name of the local volume with its data.
    pub name: String,
    /// Number of this voter, from 0.
    pub voter: u8,
    /// The membership, including this voter. A version above 0: this voter was added later, and its register does not cover the time
    /// before.
    pub membership: ReplicaMembership,
    /// The voters in sync, as a bit mask: bit N is voter N. Witnesses are never set.
    pub in_sync: u16,
    /// The first lineage id of the replicas.
    #[serde(default)]
    pub lineage: u64,
    /// The pool for the data; absent: a witness.
    #[serde(default)]
    pub pool: Option<String>,
    /// Bytes of this replica's data, a multiple of 4096; 0 for a witness.
    #[serde(default)]
    pub size_bytes: u64,
    /// Bytes of the controller's metadata before the data, a multiple of 1 MiB; 0 for a witness.
    #[serde(default)]
    pub head_bytes: u64,
    /// Bytes of the controller's metadata after the data, a multiple of 4096.
    #[serde(default)]
    pub tail_bytes: u64,
    /// The locations of all voters of the volume, stored as sent, so that any node can open the volume.
    #[serde(default)]
    pub locations: Vec<ReplicaLocation>,
    /// Bytes of the volume, for a witness as well, stored as sent.
    #[serde(default)]
    pub volume_bytes: u64,
    /// The logical block of the volume, in bytes, for a witness as well.
    #[serde(default = "crate::pool::block_bytes_usual", skip_serializing_if = "crate::pool::is_block_usual")]
    pub block_bytes: u32,
    /// A controller's snapshot in that pool, of which the data become a clone; absent: the data are empty.
    #[serde(default)]
    pub snapshot: Option<String>,
}

/// The location of a replica or witness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaLocation {
    /// Its number.
    pub voter: u8,
    /// Its node.
    pub node: String,
    /// The pool there; absent: a witness.
    #[serde(default)]
    pub pool: Option<String>,
    /// The version of the membership that added it; 0: it was created with the volume.
    #[serde(default)]
    pub since: u64,
    /// Whether it was excluded by a forced opening of the volume: its data and its votes are not trusted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub excluded: bool,
}

/// The membership of a replicated volume. Sets of voters are bit masks: bit N is voter N.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaMembership {
    /// Its version: the epoch in which it was made × 65536, plus a number; 0: it was made with the volume.
    #[serde(default)]
    pub version: u64,
    /// The voters.
    pub voters: u16,
    /// The previous voters, in a joint configuration; else none.
    #[serde(default)]
    pub previous_voters: u16,
    /// The replicas among all of these.
    pub replicas: u16,
    /// The number of replicas, less one, that together have all data: 0 with copies.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extra_replicas: u8,
}

fn is_zero(number: &u8) -> bool {
    *number == 0
}

/// The state of a replica or witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplicaState {
    /// It votes; a replica can also be used.
    Ready,
    /// Its pool does not serve.
    Waiting,
    /// Its register is lost: it must not vote.
    Lost,
    /// Its register or its device cannot be used; `reason` says why.
    Failed,
}

impl ReplicaState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            ReplicaState::Ready => "ready",
            ReplicaState::Waiting => "waiting",
            ReplicaState::Lost => "lost",
            ReplicaState::Failed => "failed",
        }
    }
}

/// The replica or witness of a replicated volume on one node.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// The replicated volume's identity.
    pub volume: String,
    /// The volume's name.
    pub name: String,
    /// Number of this voter, from 0.
    pub voter: u8,
    /// Number of voters of the volume, by its newest membership.
    pub voters: u8,
    /// Whether it is a witness, which votes and keeps no data.
    pub witness: bool,
    /// Its state.
    pub state: ReplicaState,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The pool of its data; absent for a witness.
    pub pool: Option<String>,
    /// The local volume with its data, as in `tank/db`; absent for a witness.
    pub data: Option<String>,
    /// Bytes of its data.
    pub size_bytes: u64,
    /// Bytes of the controller's metadata before the data in its export.
    pub head_bytes: u64,
    /// Bytes of the controller's metadata after the data.
    pub tail_bytes: u64,
    /// The locations of all voters of the volume, by its newest membership.
    #[serde(default)]
    pub locations: Vec<ReplicaLocation>,
    /// The version of that membership.
    #[serde(default)]
    pub version: u64,
    /// Bytes of the volume, for a witness as well.
    #[serde(default)]
    pub volume_bytes: u64,
    /// The logical block of the volume, in bytes, for a witness as well.
    #[serde(default = "crate::pool::block_bytes_usual")]
    pub block_bytes: u32,
    /// The boot id of this replica: it changes when the node reboots, or has lost data that were not flushed.
    pub boot: String,
    /// The name of its export, without parameters; absent for a witness.
    pub export: Option<String>,
    /// Open connections to it.
    pub connections: u32,
    /// Its register; absent if it does not vote.
    pub register: Option<ReplicaRegister>,
    /// Milliseconds since its last reply to its controller, or since it began to vote; absent: it has no controller, or was released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_reply_ms: Option<u64>,
}

/// Every replica and witness of a node.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplicaList {
    /// The replicas and witnesses, by name.
    pub replicas: Vec<Replica>,
    /// Why objects may be missing from the list, one sentence each; empty where the list is complete.
    #[serde(default)]
    pub incomplete: Vec<String>,
}

/// The durable register of a voter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaRegister {
    /// The epoch whose controller alone gets replies; 0: there was no controller yet.
    pub epoch: u64,
    /// That controller's identity; absent: there was no controller yet.
    pub controller: Option<String>,
    /// Whether that controller has stopped cleanly and released the voter.
    pub released: bool,
    /// The highest vote.
    pub vote: ReplicaVote,
    /// The boot id under which the replica was trusted when that vote was recorded; absent: it was not trusted.
    pub boot: Option<String>,
    /// The version of the membership that added this voter; 0: it was created with the volume.
    #[serde(default)]
    pub since: u64,
}

/// A controller's record of the replicas in sync and of the membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaVote {
    /// The epoch in which it was cast; 0: it was made with the volume.
    pub epoch: u64,
    /// Its number in that epoch, from 1.
    pub sequence: u64,
    /// The lineage id of the replicas in sync.
    pub lineage: u64,
    /// The voters in sync, as a bit mask: bit N is voter N.
    pub in_sync: u16,
    /// The membership.
    pub membership: ReplicaMembership,
}

/// `POST /v1/replicas/{replica}/request`: a controller's request to a voter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum ReplicaRequest {
    /// Raises the epoch and fences older controllers. The reply is sent when no I/O of older epochs is in flight and the epoch is
    /// durable.
    Raise {
        /// The new epoch, higher than any before.
        epoch: u64,
        /// The sending controller.
        controller: String,
    },
    /// Records a vote.
    Cast {
        /// The epoch of the sending controller.
        epoch: u64,
        /// The sending controller.
        controller: String,
        /// The vote, of the same epoch.
        vote: ReplicaVote,
        /// The boot id under which the voter's replica is trusted; absent: it has no replica, or that is not trusted.
        #[serde(default)]
        boot: Option<String>,
        /// The locations of the voters of the vote's membership, unless that is the volume's first one. Durable before the vote is.
        #[serde(default)]
        locations: Vec<ReplicaLocation>,
    },
    /// Heartbeat: confirms that the epoch is current, which renews the controller's lease.
    Heartbeat {
        /// The epoch of the sending controller.
        epoch: u64,
        /// The sending controller.
        controller: String,
    },
    /// Records that the controller has stopped, and sends no replies to clients any longer.
    Release {
        /// The epoch of the sending controller.
        epoch: u64,
        /// The sending controller.
        controller: String,
    },
}

/// The reply of a voter. Where another controller holds the voter, the error is `fenced`, with that controller's `epoch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "reply", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplicaReply {
    /// The epoch is durable, and no I/O of older epochs is in flight.
    Raised {
        /// The register before.
        before: ReplicaRegister,
        /// The replica's current boot id.
        boot: String,
        /// The locations of the volume's voters, by the newest membership that this voter knows.
        #[serde(default)]
        locations: Vec<ReplicaLocation>,
        /// The version of that membership.
        #[serde(default)]
        version: u64,
    },
    /// The vote is durable, or a later one of the same controller is.
    Cast,
    /// The epoch is current.
    Alive,
    /// The release is durable.
    Released,
}

/// `POST /v1/replicas/{replica}/snapshots`: a controller's change of the snapshots of a replica. Like a connection of that controller,
/// it begins only while the controller's epoch is current, and a raise waits for its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeReplica {
    /// The epoch of the sending controller.
    pub epoch: u64,
    /// The sending controller.
    pub controller: String,
    /// The session of its connections: the last one that was admitted; 0 before the first.
    pub session: u64,
    /// The change.
    pub change: ReplicaChange,
}

/// A change of the snapshots of a replica. The controller chooses the identity of a snapshot: a UUID of version 8, which no snapshot
/// of a user has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "operation", rename_all = "snake_case", deny_unknown_fields)]
pub enum ReplicaChange {
    /// Takes a snapshot of the current data. It is *pending*: invisible to users of the node.
    Take {
        /// Its identity.
        snapshot: String,
        /// The name that it gets later; refused if another snapshot of the data has it.
        name: String,
    },
    /// Names a snapshot, or renames one; a named snapshot is no longer pending.
    Name {
        /// The snapshot.
        snapshot: String,
        /// Its new name.
        name: String,
    },
    /// Records that the file system of the volume was frozen while a snapshot was taken.
    Frozen {
        /// The snapshot.
        snapshot: String,
    },
    /// Makes a snapshot pending again before its deletion. Refused if it is exported.
    Hide {
        /// The snapshot.
        snapshot: String,
    },
    /// Deletes a pending snapshot.
    Remove {
        /// The snapshot; no error if it does not exist.
        snapshot: String,
    },
    /// Exports a snapshot read-only to this controller, at the address of the replica:
    /// `snapshot:VOLUME:SNAPSHOT?epoch=E&controller=UUID`. The export ends when it is withdrawn, when another controller raises the
    /// epoch, or when no client has been connected for 30 s.
    Offer {
        /// The snapshot.
        snapshot: String,
    },
    /// Ends the export of a snapshot; no error if there is none.
    Withdraw {
        /// The snapshot.
        snapshot: String,
    },
    /// Rolls the data back to a snapshot. Only before the first session, when no controller is connected. Refused if the data are
    /// exported.
    Rollback {
        /// The snapshot.
        snapshot: String,
    },
}

/// A snapshot of a replica's data that a controller has taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaSnapshot {
    /// Its identity: the same on all nodes.
    pub uuid: String,
    /// Its name; absent: it is pending.
    pub name: Option<String>,
    /// Bytes of the data when it was taken.
    pub size_bytes: u64,
    /// Bytes allocated for it alone, in whole extents.
    pub allocated_bytes: u64,
    /// When it was taken, by this node's clock, in seconds of Unix time.
    pub created_unix_s: u64,
    /// Whether the file system of the volume was frozen while it was taken.
    #[serde(default)]
    pub frozen: bool,
}

/// The snapshots of a replica's data that controllers have taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaSnapshotList {
    /// The snapshots, pending ones included, in the order in which they were taken.
    pub snapshots: Vec<ReplicaSnapshot>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_keep_their_json() {
        let check = |text: &str, request: ReplicaRequest| {
            assert_eq!(serde_json::from_str::<ReplicaRequest>(text).expect(text), request);
            assert_eq!(serde_json::to_string(&request).expect("a request has JSON"), text);
        };
        let controller = || "c".to_owned();
        check(
            r#"{"request":"raise","epoch":3,"controller":"c"}"#,
            ReplicaRequest::Raise { epoch: 3, controller: controller() },
        );
        let membership =
            ReplicaMembership { version: 0, voters: 7, previous_voters: 0, replicas: 5, extra_replicas: 0 };
        let vote = ReplicaVote { epoch: 3, sequence: 1, lineage: u64::MAX, in_sync: 5, membership };
        check(
            r#"{"request":"cast","epoch":3,"controller":"c","vote":{"epoch":3,"sequence":1,"lineage":18446744073709551615,"in_sync":5,"membership":{"version":0,"voters":7,"previous_voters":0,"replicas":5}},"boot":null,"locations":[]}"#,
            ReplicaRequest::Cast { epoch: 3, controller: controller(), vote, boot: None, locations: Vec::new() },
        );
        check(
            r#"{"request":"heartbeat","epoch":3,"controller":"c"}"#,
            ReplicaRequest::Heartbeat { epoch: 3, controller: controller() },
        );
        assert!(
            serde_json::from_str::<ReplicaRequest>(r#"{"request":"heartbeat","epoch":3,"controller":"c","more":1}"#)
                .is_err()
        );
        assert_eq!(serde_json::to_string(&ReplicaReply::Cast).expect("a reply has JSON"), r#"{"reply":"cast"}"#);
    }
}
