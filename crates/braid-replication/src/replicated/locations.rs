//! Locations of the voters of a volume, as far as this node knows: those of the newest membership.
//!
//! A membership that was never voted for names every voter of the one before, too ([`braid_engine::replica::VoterConfig`]):
//! an opening with it asks more voters than necessary, and learns the valid membership from them.

use crate::ReplicationManager;
use crate::voters::VolumeVoters;
use crate::voters::probe::RegistersRead;
use crate::voters::transport::{NodeTransport, VoterDirectory};
use braid_api::{Replica, ReplicaLocation, ReplicaMembership, ReplicaRegister};
use braid_engine::DeviceId;
use braid_engine::replica::{self, VoterConfig, VoterId};
use braid_inventory::{SavedReplicated, SavedVoter, membership_of, show_membership};
use futures_util::future::join_all;
use hyper::Method;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// While a volume is being opened: interval between two requests to all nodes for its voters.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

impl ReplicationManager {
    /// Returns the transport to the voters of a volume.
    pub(crate) fn transport_to(&self, volume: Uuid) -> NodeTransport {
        NodeTransport::new(self.weak_self.clone(), &self.nodes, &self.ring, volume)
    }

    /// Asks all nodes for the locations of a volume's voters. Returns the replica of each node, by the node's name.
    pub(crate) async fn query_locations(&self, uuid: Uuid) -> Vec<(String, Replica)> {
        let path = format!("/v1/replicas/{uuid}");
        let members = self.nodes.members();
        let calls = members.iter().map(|member| self.nodes.call(&member.name, Method::GET, &path, None));
        let replies = join_all(calls).await.into_iter().zip(&members);
        let replicas = replies.filter_map(|(reply, member)| {
            Some((member.name.clone(), serde_json::from_value::<Replica>(reply.ok()?).ok()?))
        });
        let replies: Vec<(String, Replica)> = replicas.collect();
        for (_, replica) in &replies {
            let vote = replica.register.as_ref().map(|register| &register.vote.membership);
            self.learn_locations(uuid, replica.version, &replica.locations, vote);
            self.learn_block(uuid, replica.block_bytes);
        }
        replies
    }

    /// Takes over the block size of a volume from a replica. A node of a version that knew only the usual block size
    /// may have saved this volume with that one.
    fn learn_block(&self, uuid: Uuid, block_bytes: u32) {
        if let Some(volume) = self.inventory.write().replicated.get_mut(&uuid) {
            volume.block_bytes = volume.block_bytes.min(block_bytes);
        }
    }

    /// Saves the membership of the newest vote that any node has: the one saved here may belong to a change that never
    /// began, or has ended. Returns what was read of the voters' registers.
    pub(crate) async fn adopt_newest_vote(&self, uuid: Uuid) -> RegistersRead {
        let replies = self.query_locations(uuid).await;
        let registers =
            || replies.iter().filter_map(|(node, replica)| Some((node, replica, replica.register.as_ref()?)));
        let votes = registers().map(|(_, _, register)| &register.vote).filter(|vote| vote.epoch > 0);
        let newest = votes.max_by_key(|vote| (vote.epoch, vote.sequence));
        let voted =
            newest.map(|vote| membership_of(&vote.membership)).filter(|membership| !membership.voters.is_empty());
        if let Some(membership) = voted {
            self.save_membership(uuid, &membership);
        }
        let Some(volume) = self.inventory.read().replicated.get(&uuid).cloned() else {
            return RegistersRead::default();
        };
        let membership = voted.unwrap_or_else(|| volume.membership());
        // A register counts only if it belongs to the voter of the membership: a node may have one of a removed voter,
        // or of one that was created for a later membership.
        let is_voting = |node: &str, replica: &Replica, since: u64| {
            let voter = volume.voters.get(&replica.voter);
            voter.is_some_and(|voter| voter.node == node && voter.since == since)
        };
        let read = |wanted: fn(&ReplicaRegister, u64) -> bool| -> replica::Voters {
            let voting = registers().filter(|(node, replica, register)| is_voting(node, replica, register.since));
            let wanted = voting.filter(|(_, _, register)| wanted(register, membership.version));
            wanted.map(|(_, replica, _)| VoterId(replica.voter)).collect()
        };
        RegistersRead {
            membership,
            newest: newest.map_or(0, |vote| vote.epoch),
            voters: read(|register, version| register.since <= version),
            before: read(|register, version| register.since < version),
            new: read(|register, version| register.epoch == 0 && (1..=version).contains(&register.since)),
        }
    }

    /// Asks all nodes repeatedly while a volume is being opened.
    pub(crate) async fn look_for_voters(&self, uuid: Uuid, voters: &Arc<VolumeVoters>) {
        loop {
            self.query_locations(uuid).await;
            if let Some(volume) = self.inventory.read().replicated.get(&uuid) {
                voters.contact(volume.membership().all());
            }
            tokio::time::sleep(LOOKUP_INTERVAL).await;
        }
    }

    /// Saves the membership of a vote. `None`: there is no such volume.
    pub(crate) fn save_membership(&self, uuid: Uuid, membership: &VoterConfig) -> Option<SavedReplicated> {
        let mut tables = self.inventory.write();
        let volume = tables.replicated.get_mut(&uuid)?;
        let known = membership.all().iter().all(|voter| volume.voters.contains_key(&voter.0));
        if known && membership_of(&volume.membership) != *membership && !membership.voters.is_empty() {
            volume.membership = show_membership(membership);
        }
        Some(volume.clone())
    }
}

impl VoterDirectory for ReplicationManager {
    fn known_volume(&self, volume: Uuid) -> Option<SavedReplicated> {
        self.inventory.read().replicated.get(&volume).cloned()
    }

    fn served_device(&self, volume: Uuid) -> Option<DeviceId> {
        self.inventory.read().arrays.get(&volume).and_then(|entry| Some(entry.active()?.device))
    }

    /// An opening in progress learns at once, under the lock of the tables, which voters are elsewhere than assumed:
    /// before any task of it looks up a new location.
    fn learn_locations(
        &self,
        uuid: Uuid,
        version: u64,
        locations: &[ReplicaLocation],
        vote: Option<&ReplicaMembership>,
    ) {
        let mut tables = self.inventory.write();
        let Some(volume) = tables.replicated.get_mut(&uuid) else { return };
        if version <= volume.membership.version || locations.is_empty() {
            return;
        }
        let voters = SavedVoter::from_locations(locations);
        let relocated = relocated_voters(&volume.voters, &voters);
        let bit = |(number, voter): (&u8, &SavedVoter), of_data: bool| {
            if voter.pool.is_some() || !of_data { 1u16.checked_shl(u32::from(*number)).unwrap_or(0) } else { 0 }
        };
        let voted = vote.filter(|vote| {
            vote.version == version && membership_of(vote).all().iter().all(|voter| voters.contains_key(&voter.0))
        });
        // A membership that was never voted for: every voter that it names is asked.
        volume.membership = voted.copied().unwrap_or_else(|| ReplicaMembership {
            version,
            voters: voters.iter().fold(0, |bits, voter| bits | bit(voter, false)),
            previous_voters: 0,
            replicas: voters.iter().fold(0, |bits, voter| bits | bit(voter, true)),
            extra_replicas: volume.membership.extra_replicas,
        });
        volume.voters = voters;
        if let Some(group) = self.voters_of(uuid) {
            group.relocated(relocated);
        }
    }
}

/// Returns the voters of the new list that are not the ones that had their numbers in the old list: on another node,
/// created anew on the same one, or not in the old list at all, perhaps because they were removed and added since.
/// Earlier replies under the number came from another voter.
fn relocated_voters(before: &BTreeMap<u8, SavedVoter>, now: &BTreeMap<u8, SavedVoter>) -> replica::Voters {
    let is_the_same = |number: &u8, voter: &SavedVoter| {
        before.get(number).is_some_and(|before| (&before.node, before.since) == (&voter.node, voter.since))
    };
    now.iter().filter(|(number, voter)| !is_the_same(number, voter)).map(|(number, _)| VoterId(*number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voter_created_anew_on_the_same_node_is_another_voter() {
        let voter = |node: &str, since| SavedVoter { since, ..SavedVoter::of(node.to_owned(), None) };
        let list = |voters: &[(u8, &str, u64)]| -> BTreeMap<u8, SavedVoter> {
            voters.iter().map(|(number, node, since)| (*number, voter(node, *since))).collect()
        };
        let of = |numbers: &[u8]| -> replica::Voters { numbers.iter().copied().map(VoterId).collect() };
        let three = list(&[(0, "a", 0), (1, "b", 0), (2, "c", 0)]);
        assert_eq!(relocated_voters(&three, &three), of(&[]));
        assert_eq!(relocated_voters(&three, &list(&[(0, "a", 0), (1, "b", 0), (2, "d", 5)])), of(&[2]));
        assert_eq!(relocated_voters(&three, &list(&[(0, "a", 0), (1, "b", 0), (2, "c", 5)])), of(&[2]));
        // A removed voter is no other one; one that is added after that is.
        let two = list(&[(0, "a", 0), (1, "b", 0)]);
        assert_eq!(relocated_voters(&three, &two), of(&[]));
        assert_eq!(relocated_voters(&two, &list(&[(0, "a", 0), (1, "b", 0), (2, "c", 5)])), of(&[2]));
    }
}
