//! Replicated volumes in the state file: their voters and membership, as far as this node knows.

use braid_api::{ErrorDetail, Kind, ReplicaLocation, ReplicaMembership};
use braid_engine::replica::{VoterConfig, VoterId, Voters};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A replicated volume in the state file of a node that serves it, is about to, or was the last to serve it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedReplicated {
    /// Identity of the volume, and of the array on its replicas.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its logical block in bytes: 4096 or 512.
    #[serde(default = "braid_api::block_bytes_usual", skip_serializing_if = "braid_api::is_block_usual")]
    pub block_bytes: u32,
    /// Its voters, by number: those that vote, and perhaps others that did, or were about to.
    pub voters: BTreeMap<u8, SavedVoter>,
    /// The membership, as far as this node knows.
    pub membership: ReplicaMembership,
    /// This node is to serve it.
    pub attached: bool,
    /// Identity under which this node sends requests to the voters: random, a new one for each attachment.
    pub controller: Uuid,
    /// The epoch in which this node last opened the volume since it was attached; 0: in none.
    #[serde(default)]
    pub epoch: u64,
    /// The volume is being created: a start that finds it in this state removes what exists of it.
    #[serde(default)]
    pub creating: bool,
    /// The snapshot of another volume from which it was created.
    #[serde(default)]
    pub from: Option<Uuid>,
    /// What is to be removed on nodes of voters that were removed or never got a vote.
    #[serde(default)]
    pub left: Vec<SavedLeftover>,
}

/// A removed voter whose node could not be notified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedLeftover {
    /// Its node.
    pub node: String,
    /// Version of the membership that added the voter. It tells this voter from a later one on the same node, which
    /// stays.
    pub since: u64,
}

/// A replica or a witness, as saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedVoter {
    /// Its node.
    pub node: String,
    /// The pool of its data; `None`: it is a witness.
    #[serde(default)]
    pub pool: Option<String>,
    /// Version of the membership with which it came; 0: with the volume.
    #[serde(default)]
    pub since: u64,
    /// It was excluded when the volume was attached by force, and is to be notified of that. Meaningful only while it
    /// does not vote.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub excluded: bool,
}

impl SavedReplicated {
    /// Returns the epoch after which the volume is opened only if no other node has opened it since; `None`: it is
    /// opened in any case.
    pub fn after(&self) -> Option<u64> {
        Some(self.epoch).filter(|epoch| *epoch > 0)
    }

    /// Numbers the voters of a new volume, replicas first.
    pub fn numbered(voters: Vec<SavedVoter>) -> (BTreeMap<u8, SavedVoter>, ReplicaMembership) {
        let replicas = voters.iter().filter(|voter| voter.pool.is_some()).count();
        let membership = show_membership(&VoterConfig::of(voters.len(), replicas));
        let new = voters.into_iter().map(|voter| SavedVoter { since: 0, excluded: false, ..voter });
        ((0..).zip(new).collect(), membership)
    }

    /// Returns the minimum number of replicas that together have all data: 1 if each replica is a full copy.
    pub fn replicas_min(&self) -> usize {
        self.membership().replicas_needed()
    }

    /// Returns whether each replica is a full copy; otherwise the volume has parity.
    pub fn is_mirrored(&self) -> bool {
        self.membership.extra_replicas == 0
    }

    /// Returns the size of the data of each replica, in bytes.
    pub fn replica_bytes(&self) -> u64 {
        self.size_bytes / self.replicas_min() as u64
    }

    /// Returns the membership.
    pub fn membership(&self) -> VoterConfig {
        membership_of(&self.membership)
    }

    /// Returns the voters, those about to lose their vote included, by number.
    pub fn voting(&self) -> impl Iterator<Item = (u8, &SavedVoter)> {
        let all = self.membership().all();
        self.voters.iter().map(|(number, voter)| (*number, voter)).filter(move |(number, _)| all.has(VoterId(*number)))
    }

    /// Returns the voters that were excluded when the volume was attached by force, by number: their nodes may still
    /// have what they had.
    pub fn excluded(&self) -> impl Iterator<Item = (u8, &SavedVoter)> {
        let all = self.membership().all();
        let is_out = move |(number, voter): &(u8, &SavedVoter)| voter.excluded && !all.has(VoterId(*number));
        self.voters.iter().map(|(number, voter)| (*number, voter)).filter(is_out)
    }

    /// Returns the voters that have data: their numbers are their slots in the mirror.
    pub fn replicas(&self) -> Vec<u16> {
        self.voting().filter(|(_, voter)| voter.pool.is_some()).map(|(number, _)| u16::from(number)).collect()
    }

    /// Returns the locations of the voters, as every node with a voter stores them.
    pub fn locations(&self) -> Vec<ReplicaLocation> {
        let location = |(number, voter): (&u8, &SavedVoter)| ReplicaLocation {
            voter: *number,
            node: voter.node.clone(),
            pool: voter.pool.clone(),
            since: voter.since,
            excluded: voter.excluded,
        };
        self.voters.iter().map(location).collect()
    }

    /// Returns the node of a replica.
    ///
    /// # Errors
    /// The volume does not have this replica any more.
    pub fn node_of(&self, slot: u16) -> Result<&str, ErrorDetail> {
        let voter = u8::try_from(slot).ok().and_then(|number| self.voters.get(&number));
        voter.map(|voter| voter.node.as_str()).ok_or_else(|| {
            ErrorDetail::new(Kind::NotFound, format!("volume {} has no replica {slot} any more", self.name))
        })
    }

    /// Returns the name of a voter, as users write it.
    pub fn voter_name(&self, number: u8) -> String {
        match self.voters.get(&number) {
            Some(SavedVoter { node, pool: Some(pool), .. }) => format!("{node}/{pool}"),
            Some(SavedVoter { node, pool: None, .. }) => node.clone(),
            None => format!("voter {number}"),
        }
    }
}

impl SavedVoter {
    /// Returns a voter that votes since the volume was created.
    pub fn of(node: String, pool: Option<String>) -> SavedVoter {
        SavedVoter { node, pool, since: 0, excluded: false }
    }

    /// Converts the locations of voters, by number.
    pub fn from_locations(locations: &[ReplicaLocation]) -> BTreeMap<u8, SavedVoter> {
        let voter = |location: &ReplicaLocation| SavedVoter {
            node: location.node.clone(),
            pool: location.pool.clone(),
            since: location.since,
            excluded: location.excluded,
        };
        locations.iter().map(|location| (location.voter, voter(location))).collect()
    }
}

/// Converts a membership from the API's type to the engine's.
pub fn membership_of(membership: &ReplicaMembership) -> VoterConfig {
    let ReplicaMembership { version, voters, previous_voters, replicas, extra_replicas } = *membership;
    let [voters, previous_voters, replicas] = [voters, previous_voters, replicas].map(Voters::from_bits);
    VoterConfig { version, voters, previous_voters, replicas, extra_replicas }
}

/// Converts a membership from the engine's type to the API's.
pub fn show_membership(membership: &VoterConfig) -> ReplicaMembership {
    let VoterConfig { version, voters, previous_voters, replicas, extra_replicas } = *membership;
    ReplicaMembership {
        version,
        voters: voters.bits(),
        previous_voters: previous_voters.bits(),
        replicas: replicas.bits(),
        extra_replicas,
    }
}
