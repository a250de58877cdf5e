//! Replicas of volumes that are kept on several nodes, and witnesses: what a node keeps of them, and what a controller asks of it.
//!
//! `docs/replication.md` says what the words mean.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Begins the name of every replica's export.
pub const REPLICA_EXPORT: &str = "replica:";

/// The name of the export of a replica of this volume, without the terms that a connecting controller adds behind a `?`.
pub fn replica_export(volume: &str) -> String {
    format!("{REPLICA_EXPORT}{volume}")
}

/// Begins the name of every export of a snapshot of a replica's data that is offered to its controller.
pub const SNAPSHOT_EXPORT: &str = "snapshot:";

/// The name of the export of a snapshot of the replica of this volume, without the terms that its controller adds behind a `?`.
pub fn snapshot_export(volume: &str, snapshot: &str) -> String {
    format!("{SNAPSHOT_EXPORT}{volume}:{snapshot}")
}

/// To keep a replica of a volume, or to be a witness of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateReplica {
    /// The replicated volume's identity: the same on all nodes.
    pub volume: String,
    /// Its name; of a replica also that of the volume here that has its data.
    pub name: String,
    /// Which of its voters this is, from 0.
    pub voter: u8,
    /// Who votes, this one included. With a version this one has come later than the volume, and says nothing of the time before.
    pub seating: ReplicaSeating,
    /// Which of them hold everything: one bit for each, the first one's the lowest. None of them is a witness.
    pub in_sync: u16,
    /// The line of replicas that begins.
    #[serde(default)]
    pub lineage: u64,
    /// The pool for the data; none: a witness.
    #[serde(default)]
    pub pool: Option<String>,
    /// Bytes of the volume, a multiple of 4096; 0 of a witness.
    #[serde(default)]
    pub size_bytes: u64,
    /// Bytes in front of the volume's that its controller keeps for itself, a multiple of 1 MiB; 0 of a witness.
    #[serde(default)]
    pub head_bytes: u64,
    /// The same behind them, a multiple of 4096.
    #[serde(default)]
    pub tail_bytes: u64,
    /// Where all of the volume's voters are: kept as it is, so that any node can open the volume.
    #[serde(default)]
    pub places: Vec<ReplicaPlace>,
    /// Bytes of the volume, a witness's, too: kept as they are.
    #[serde(default)]
    pub volume_bytes: u64,
    /// The logical block of the volume, in bytes, a witness's, too.
    #[serde(default = "crate::pool::block_bytes_usual", skip_serializing_if = "crate::pool::is_block_usual")]
    pub block_bytes: u32,
    /// A controller's snapshot in that pool, as which the data begin; none: they are empty.
    #[serde(default)]
    pub snapshot: Option<String>,
}

/// Where a replica or witness is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaPlace {
    /// Its number.
    pub voter: u8,
    /// Its node.
    pub node: String,
    /// The pool there; none: a witness.
    #[serde(default)]
    pub pool: Option<String>,
    /// With which list of places it came; 0: with the volume.
    #[serde(default)]
    pub since: u64,
    /// It was left out when the volume was opened by force: what is there is not believed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside: bool,
}

/// Who votes: one bit for each voter, the first one's the lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaSeating {
    /// Which list of places it goes by: the epoch in which it was made × 65536, and a number; 0: that of the volume's making.
    #[serde(default)]
    pub version: u64,
    /// Those that vote.
    pub voters: u16,
    /// Those that did, while that changes; else none.
    #[serde(default)]
    pub before: u16,
    /// Which of all these have data.
    pub replicas: u16,
    /// How many of them it takes to have everything, besides one: 0 of copies.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub further: u8,
}

fn is_zero(number: &u8) -> bool {
    *number == 0
}

/// How a replica or witness does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplicaState {
    /// It votes, and a replica can be used.
    Ready,
    /// Its pool does not serve.
    Waiting,
    /// What it has promised is not known any more: it must not vote.
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

/// What a node keeps of a volume that is kept on several nodes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// The replicated volume's identity.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// Which of its voters this is, from 0.
    pub voter: u8,
    /// How many there are, as it was told last.
    pub voters: u8,
    /// It votes, and keeps no data.
    pub witness: bool,
    /// How it does.
    pub state: ReplicaState,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The pool of its data; none of a witness.
    pub pool: Option<String>,
    /// The volume here that has the data, as in `tank/db`; none of a witness.
    pub data: Option<String>,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// Bytes in front of the volume's in its export.
    pub head_bytes: u64,
    /// Bytes behind them.
    pub tail_bytes: u64,
    /// Where all of the volume's voters are, as it was told last.
    #[serde(default)]
    pub places: Vec<ReplicaPlace>,
    /// Which list of them that is.
    #[serde(default)]
    pub version: u64,
    /// Bytes of the volume, a witness's, too.
    #[serde(default)]
    pub volume_bytes: u64,
    /// The logical block of the volume, in bytes, a witness's, too.
    #[serde(default = "crate::pool::block_bytes_usual")]
    pub block_bytes: u32,
    /// The boot of the node, as far as this replica is concerned: another one where the node has restarted since, or has lost what was not flushed.
    pub boot: String,
    /// The name of its export, without terms; none of a witness.
    pub export: Option<String>,
    /// Connections to it.
    pub connections: u32,
    /// What it remembers; none where that cannot be said.
    pub register: Option<ReplicaRegister>,
    /// Milliseconds since it has answered its controller last, or since it began to vote; none: it has no controller, or that one has let go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms: Option<u64>,
}

/// Every replica and witness of a node.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReplicaList {
    /// By name.
    pub replicas: Vec<Replica>,
    /// Why objects may be missing from the list, one sentence each; empty where the list is complete.
    #[serde(default)]
    pub incomplete: Vec<String>,
}

/// What a voter remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaRegister {
    /// Only this epoch's controller is answered; 0: none has come yet.
    pub epoch: u64,
    /// That controller's identity; none: none has come yet.
    pub controller: Option<String>,
    /// It has stopped in order.
    pub released: bool,
    /// The highest vote.
    pub vote: ReplicaVote,
    /// Under which boot of this node the replica was believed when the vote came; none: it was not.
    pub boot: Option<String>,
    /// With which list of places this voter came; 0: with the volume.
    #[serde(default)]
    pub since: u64,
}

/// Who holds everything, by the word of a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaVote {
    /// The epoch in which it was cast; 0: the volume was made so.
    pub epoch: u64,
    /// Its number in that epoch, from 1.
    pub sequence: u64,
    /// The line of replicas that goes on.
    pub lineage: u64,
    /// Which voters hold everything, one bit for each, the first one's the lowest.
    pub in_sync: u16,
    /// Who votes.
    pub seating: ReplicaSeating,
}

/// What a controller asks of a voter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum AskReplica {
    /// To be answered alone from now on. Answered when nothing of older epochs is under way any more, and this is durable.
    Raise {
        /// Higher than any before.
        epoch: u64,
        /// Who asks.
        controller: String,
    },
    /// To remember who is in sync.
    Cast {
        /// The asking controller's.
        epoch: u64,
        /// Who asks.
        controller: String,
        /// What is to be remembered; of the same epoch.
        vote: ReplicaVote,
        /// Under which boot of the voter's node its replica is believed; none: it has none, or is not believed.
        #[serde(default)]
        boot: Option<String>,
        /// Where the voters are of the vote's list, unless that is the volume's first one. Durable before the vote is.
        #[serde(default)]
        places: Vec<ReplicaPlace>,
    },
    /// Whether this epoch still is the one.
    Beat {
        /// The asking controller's.
        epoch: u64,
        /// Who asks.
        controller: String,
    },
    /// To remember that the controller has stopped, and answers nothing any more.
    Release {
        /// The asking controller's.
        epoch: u64,
        /// Who asks.
        controller: String,
    },
}

/// What a voter answers. Where another controller is answered it is the error `fenced`, with that one's `epoch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "answer", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplicaAnswer {
    /// The epoch is durable, and nothing of older ones is under way.
    Raised {
        /// What was remembered before.
        before: ReplicaRegister,
        /// The boot of the node now.
        boot: String,
        /// Where the volume's voters are, as far as this one was told.
        #[serde(default)]
        places: Vec<ReplicaPlace>,
        /// Which list that is.
        #[serde(default)]
        version: u64,
    },
    /// The vote is durable, or a later one of the same controller is.
    Cast,
    /// This epoch still is the one.
    Alive,
    /// It is remembered that the controller has stopped.
    Released,
}

/// What a controller wants done with the snapshots of a replica's data. Like a connection of it this is only begun as long as its epoch is
/// the one that is answered, and a raise waits for its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeReplica {
    /// The asking controller's.
    pub epoch: u64,
    /// Who asks.
    pub controller: String,
    /// The session of its connections: the last one that was let in; 0 before the first.
    pub session: u64,
    /// What is to be done.
    pub change: ReplicaChange,
}

/// One of these things. A snapshot goes by the identity that the controller chose for it: a UUID of version 8, which no other one has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum ReplicaChange {
    /// To take a snapshot of the data as they are now. It is *pending*: no user of the node sees it.
    Take {
        /// The identity that it gets.
        snapshot: String,
        /// The name that it is to have: refused where another one of the data has it.
        name: String,
    },
    /// To give one this name, pending or not.
    Name {
        /// The snapshot.
        snapshot: String,
        /// Its name from now on.
        name: String,
    },
    /// To note that the file system of the volume was frozen while one was taken.
    Frozen {
        /// The snapshot.
        snapshot: String,
    },
    /// To make one pending again, which is to be deleted. Refused where it is exported.
    Hide {
        /// The snapshot.
        snapshot: String,
    },
    /// To delete a pending one.
    Remove {
        /// The snapshot; nothing is done where it is not there.
        snapshot: String,
    },
    /// To offer one to this controller as an export, read-only, where the replica is offered: `snapshot:VOLUME:SNAPSHOT?epoch=E&controller=UUID`.
    /// Until it is withdrawn, another controller is answered, or no client has been connected for 30 s.
    Offer {
        /// The snapshot.
        snapshot: String,
    },
    /// To offer one no more; nothing is done where it is not offered.
    Withdraw {
        /// The snapshot.
        snapshot: String,
    },
    /// To make the data be as one is. Before the first session only: no controller is connected then. Refused where the data are exported.
    Rollback {
        /// The snapshot.
        snapshot: String,
    },
}

/// A snapshot of a replica's data that a controller had taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaSnapshot {
    /// Its identity: the same on all nodes.
    pub uuid: String,
    /// Its name; none: it is pending.
    pub name: Option<String>,
    /// Bytes of the volume at that time.
    pub size_bytes: u64,
    /// What it alone keeps from being free, in whole extents.
    pub allocated_bytes: u64,
    /// When it was taken, by this node's clock, in seconds of Unix time.
    pub created_unix_s: u64,
    /// Whether the file system of the volume was frozen while it was taken.
    #[serde(default)]
    pub frozen: bool,
}

/// All of them, in the order in which they were taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaSnapshotList {
    /// Pending ones, too.
    pub snapshots: Vec<ReplicaSnapshot>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_have_one_shape() {
        let check = |text: &str, ask: AskReplica| {
            assert_eq!(serde_json::from_str::<AskReplica>(text).expect(text), ask);
            assert_eq!(serde_json::to_string(&ask).expect("it has one"), text);
        };
        let controller = || "c".to_owned();
        check(
            r#"{"ask":"raise","epoch":3,"controller":"c"}"#,
            AskReplica::Raise { epoch: 3, controller: controller() },
        );
        let seating = ReplicaSeating { version: 0, voters: 7, before: 0, replicas: 5, further: 0 };
        let vote = ReplicaVote { epoch: 3, sequence: 1, lineage: u64::MAX, in_sync: 5, seating };
        check(
            r#"{"ask":"cast","epoch":3,"controller":"c","vote":{"epoch":3,"sequence":1,"lineage":18446744073709551615,"in_sync":5,"seating":{"version":0,"voters":7,"before":0,"replicas":5}},"boot":null,"places":[]}"#,
            AskReplica::Cast { epoch: 3, controller: controller(), vote, boot: None, places: Vec::new() },
        );
        check(r#"{"ask":"beat","epoch":3,"controller":"c"}"#, AskReplica::Beat { epoch: 3, controller: controller() });
        assert!(serde_json::from_str::<AskReplica>(r#"{"ask":"beat","epoch":3,"controller":"c","more":1}"#).is_err());
        assert_eq!(serde_json::to_string(&ReplicaAnswer::Cast).expect("it has one"), r#"{"answer":"cast"}"#);
    }
}
