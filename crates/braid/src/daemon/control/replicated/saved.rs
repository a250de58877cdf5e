//! What a node remembers of volumes that are kept on several nodes.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A volume that is kept on several nodes, as a node remembers it that serves it, is about to, or was the last to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedReplicated {
    /// Its identity, and that of the array above its replicas.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its replicas, then its witnesses, in the order of their numbers.
    pub voters: Vec<SavedVoter>,
    /// This node is to serve it.
    pub attached: bool,
    /// Under which name this node asks the voters: random, another one with each attachment.
    pub controller: Uuid,
    /// The epoch in which this node has opened it last, since it was attached; 0: in none.
    #[serde(default)]
    pub epoch: u64,
    /// It is being made: what there is of it is to be removed should this be found at a start.
    #[serde(default)]
    pub making: bool,
    /// The snapshot of another volume as which it began.
    #[serde(default)]
    pub from: Option<Uuid>,
}

/// A replica or a witness, as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedVoter {
    /// Its node.
    pub node: String,
    /// The pool of its data; none: it is a witness.
    #[serde(default)]
    pub pool: Option<String>,
}

impl SavedReplicated {
    /// After which epoch it is opened, only if nobody else has opened it since; none: whoever has it.
    pub fn after(&self) -> Option<u64> {
        Some(self.epoch).filter(|epoch| *epoch > 0)
    }

    /// How many of its voters are replicas: the first ones.
    pub fn replicas(&self) -> usize {
        self.voters.iter().filter(|voter| voter.pool.is_some()).count()
    }

    /// How its user writes a voter.
    pub fn voter_name(&self, number: usize) -> String {
        match self.voters.get(number) {
            Some(SavedVoter { node, pool: Some(pool) }) => format!("{node}/{pool}"),
            Some(SavedVoter { node, pool: None }) => node.clone(),
            None => format!("voter {number}"),
        }
    }
}
