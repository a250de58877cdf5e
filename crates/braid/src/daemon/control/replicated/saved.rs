//! What a node remembers of volumes that are kept on several nodes.

use super::super::replicas::{seating_of, show_seating};
use braid_api::{ErrorDetail, Kind, ReplicaPlace, ReplicaSeating};
use braid_engine::replica::{Seating, VoterId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
    /// Its logical block in bytes: 4096, or 512.
    #[serde(default = "braid_api::block_bytes_usual", skip_serializing_if = "braid_api::is_block_usual")]
    pub block_bytes: u32,
    /// Where its voters are, by number: those who vote, and perhaps others who did, or were about to.
    pub voters: BTreeMap<u8, SavedVoter>,
    /// Who votes, as far as this node knows.
    pub seating: ReplicaSeating,
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
    /// What is to be removed on nodes that vote no more, or have come to no vote.
    #[serde(default)]
    pub left: Vec<SavedLeft>,
}

/// A voter that is none, on a node that could not be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedLeft {
    /// The node.
    pub node: String,
    /// With which list of places it had come: another one there is not meant.
    pub since: u64,
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
    /// With which list of places it came; 0: with the volume.
    #[serde(default)]
    pub since: u64,
    /// It was left out when the volume was opened by force, and is to be told so; it counts only where it does not vote.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside: bool,
}

impl SavedReplicated {
    /// After which epoch it is opened, only if nobody else has opened it since; none: whoever has it.
    pub fn after(&self) -> Option<u64> {
        Some(self.epoch).filter(|epoch| *epoch > 0)
    }

    /// These voters of a new volume, replicas first, with their numbers.
    pub fn numbered(voters: Vec<SavedVoter>) -> (BTreeMap<u8, SavedVoter>, ReplicaSeating) {
        let replicas = voters.iter().filter(|voter| voter.pool.is_some()).count();
        let seating = show_seating(&Seating::of(voters.len(), replicas));
        let new = voters.into_iter().map(|voter| SavedVoter { since: 0, outside: false, ..voter });
        ((0..).zip(new).collect(), seating)
    }

    /// How many replicas it takes to have everything: with one, each has.
    pub fn least(&self) -> usize {
        self.seating().least()
    }

    /// Whether each replica has everything: all else keeps parity.
    pub fn is_of_copies(&self) -> bool {
        self.seating.further == 0
    }

    /// Bytes of the data of each replica.
    pub fn replica_bytes(&self) -> u64 {
        self.size_bytes / self.least() as u64
    }

    /// Who votes.
    pub fn seating(&self) -> Seating {
        seating_of(&self.seating)
    }

    /// Those who vote, or are about to vote no more, by number.
    pub fn seated(&self) -> impl Iterator<Item = (u8, &SavedVoter)> {
        let all = self.seating().all();
        self.voters.iter().map(|(number, voter)| (*number, voter)).filter(move |(number, _)| all.has(VoterId(*number)))
    }

    /// Those that were left out when the volume was opened by force, by number: their nodes may still have what they had.
    pub fn outside(&self) -> impl Iterator<Item = (u8, &SavedVoter)> {
        let all = self.seating().all();
        let is_out = move |(number, voter): &(u8, &SavedVoter)| voter.outside && !all.has(VoterId(*number));
        self.voters.iter().map(|(number, voter)| (*number, voter)).filter(is_out)
    }

    /// Which of them have data: these numbers are their roles in the mirror.
    pub fn replicas(&self) -> Vec<u16> {
        self.seated().filter(|(_, voter)| voter.pool.is_some()).map(|(number, _)| u16::from(number)).collect()
    }

    /// Where its voters are, as every node keeps it that has one.
    pub fn places(&self) -> Vec<ReplicaPlace> {
        let place = |(number, voter): (&u8, &SavedVoter)| ReplicaPlace {
            voter: *number,
            node: voter.node.clone(),
            pool: voter.pool.clone(),
            since: voter.since,
            outside: voter.outside,
        };
        self.voters.iter().map(place).collect()
    }

    /// On which node a replica is.
    ///
    /// # Errors
    /// It is none of the volume's any more.
    pub fn node_of(&self, role: u16) -> Result<&str, ErrorDetail> {
        let voter = u8::try_from(role).ok().and_then(|number| self.voters.get(&number));
        voter.map(|voter| voter.node.as_str()).ok_or_else(|| {
            ErrorDetail::new(Kind::NotFound, format!("volume {} has no replica {role} any more", self.name))
        })
    }

    /// How its user writes a voter.
    pub fn voter_name(&self, number: u8) -> String {
        match self.voters.get(&number) {
            Some(SavedVoter { node, pool: Some(pool), .. }) => format!("{node}/{pool}"),
            Some(SavedVoter { node, pool: None, .. }) => node.clone(),
            None => format!("voter {number}"),
        }
    }
}

impl SavedVoter {
    /// One that votes since the volume was made.
    pub fn of(node: String, pool: Option<String>) -> SavedVoter {
        SavedVoter { node, pool, since: 0, outside: false }
    }

    /// Where they are, by number.
    pub fn of_places(places: &[ReplicaPlace]) -> BTreeMap<u8, SavedVoter> {
        let voter = |place: &ReplicaPlace| SavedVoter {
            node: place.node.clone(),
            pool: place.pool.clone(),
            since: place.since,
            outside: place.outside,
        };
        places.iter().map(|place| (place.voter, voter(place))).collect()
    }
}
