//! Where the voters of a volume are, as far as this node has heard: the newest list counts.
//!
//! A list that was never voted for names everybody of the one before, too ([`braid_engine::replica::Seating`]): whoever goes by it asks
//! more voters than it has to, and is told by them who votes.

use super::super::Control;
use super::super::replicas::{seating_of, show_seating};
use super::Voters;
use super::probe::Read;
use super::saved::{SavedReplicated, SavedVoter};
use braid_api::{Replica, ReplicaPlace, ReplicaRegister, ReplicaSeating};
use braid_engine::replica::{self, Seating, VoterId};
use futures_util::future::join_all;
use hyper::Method;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// While a volume is being opened: between two questions to all nodes where its voters are.
const LOOKING: Duration = Duration::from_secs(5);

impl Control {
    /// Somebody says where the voters are, by which list, and by which he has voted. Whoever is opening the volume hears at once of those who
    /// are somewhere else than was thought: nobody is asked anywhere between.
    pub(super) fn learn_places(
        &self,
        uuid: Uuid,
        version: u64,
        places: &[ReplicaPlace],
        vote: Option<&ReplicaSeating>,
    ) {
        let mut tables = self.write();
        let Some(volume) = tables.replicated.get_mut(&uuid) else { return };
        if version <= volume.seating.version || places.is_empty() {
            return;
        }
        let voters = SavedVoter::of_places(places);
        let moved = others_than(&volume.voters, &voters);
        let bit = |(number, voter): (&u8, &SavedVoter), of_data: bool| {
            if voter.pool.is_some() || !of_data { 1u16.checked_shl(u32::from(*number)).unwrap_or(0) } else { 0 }
        };
        let voted = vote.filter(|vote| {
            vote.version == version && seating_of(vote).all().iter().all(|voter| voters.contains_key(&voter.0))
        });
        // A list that nobody has voted for yet: whoever it names is asked.
        volume.seating = voted.copied().unwrap_or_else(|| ReplicaSeating {
            version,
            voters: voters.iter().fold(0, |bits, voter| bits | bit(voter, false)),
            before: 0,
            replicas: voters.iter().fold(0, |bits, voter| bits | bit(voter, true)),
            further: volume.seating.further,
        });
        volume.voters = voters;
        if let Some(council) = self.voters_of(uuid) {
            council.moved(moved);
        }
    }

    /// Asks all nodes where the voters of a volume are. Gives what each has of it, by its name.
    pub(super) async fn ask_for_places(&self, uuid: Uuid) -> Vec<(String, Replica)> {
        let path = format!("/v1/replicas/{uuid}");
        let members = self.nodes().members();
        let answers = members.iter().map(|member| self.nodes().call(&member.name, Method::GET, &path, None));
        let answers = join_all(answers).await.into_iter().zip(&members);
        let replicas = answers.filter_map(|(answer, member)| {
            Some((member.name.clone(), serde_json::from_value::<Replica>(answer.ok()?).ok()?))
        });
        let said: Vec<(String, Replica)> = replicas.collect();
        for (_, replica) in &said {
            let vote = replica.register.as_ref().map(|register| &register.vote.seating);
            self.learn_places(uuid, replica.version, &replica.places, vote);
            self.learn_block(uuid, replica.block_bytes);
        }
        said
    }

    /// Takes over the block of a volume from what a replica says. A node of a version that knew no blocks but the usual ones may have
    /// remembered this volume with one.
    fn learn_block(&self, uuid: Uuid, block_bytes: u32) {
        if let Some(volume) = self.write().replicated.get_mut(&uuid) {
            volume.block_bytes = volume.block_bytes.min(block_bytes);
        }
    }

    /// Notes who votes by the highest vote that any node has: what this one had noted may be a change that never began, or has ended. Gives
    /// what was read of the voters' registers.
    pub(super) async fn go_by_votes(&self, uuid: Uuid) -> Read {
        let said = self.ask_for_places(uuid).await;
        let registers = || said.iter().filter_map(|(node, replica)| Some((node, replica, replica.register.as_ref()?)));
        let votes = registers().map(|(_, _, register)| &register.vote).filter(|vote| vote.epoch > 0);
        let newest = votes.max_by_key(|vote| (vote.epoch, vote.sequence));
        let voted = newest.map(|vote| seating_of(&vote.seating)).filter(|seating| !seating.voters.is_empty());
        if let Some(seating) = voted {
            self.note_seating(uuid, &seating);
        }
        let Some(volume) = self.read().replicated.get(&uuid).cloned() else { return Read::default() };
        let seating = voted.unwrap_or_else(|| volume.seating());
        // What is left of a voter, or was made for one, says nothing for the one that votes.
        let is_seated = |node: &str, replica: &Replica, since: u64| {
            let voter = volume.voters.get(&replica.voter);
            voter.is_some_and(|voter| voter.node == node && voter.since == since)
        };
        let read = |wanted: fn(&ReplicaRegister, u64) -> bool| -> replica::Voters {
            let seated = registers().filter(|(node, replica, register)| is_seated(node, replica, register.since));
            let wanted = seated.filter(|(_, _, register)| wanted(register, seating.version));
            wanted.map(|(_, replica, _)| VoterId(replica.voter)).collect()
        };
        Read {
            seating,
            newest: newest.map_or(0, |vote| vote.epoch),
            voters: read(|register, version| register.since <= version),
            before: read(|register, version| register.since < version),
            new: read(|register, version| register.epoch == 0 && (1..=version).contains(&register.since)),
        }
    }

    /// As long as a volume is being opened: asks now and then.
    pub(super) async fn look_for_voters(&self, uuid: Uuid, voters: &Arc<Voters>) {
        loop {
            self.ask_for_places(uuid).await;
            if let Some(volume) = self.read().replicated.get(&uuid) {
                voters.seat(volume.seating().all());
            }
            tokio::time::sleep(LOOKING).await;
        }
    }

    /// Notes who votes, as a vote says it. None: there is no such volume.
    pub(super) fn note_seating(&self, uuid: Uuid, seating: &Seating) -> Option<SavedReplicated> {
        let mut tables = self.write();
        let volume = tables.replicated.get_mut(&uuid)?;
        let known = seating.all().iter().all(|voter| volume.voters.contains_key(&voter.0));
        if known && seating_of(&volume.seating) != *seating && !seating.voters.is_empty() {
            volume.seating = show_seating(seating);
        }
        Some(volume.clone())
    }
}

/// Who of a list is somebody else than who had that number in the one before: on another node, or made anew on the same one, or not in that
/// list at all, perhaps as a list between was without it. What was answered under the number before was somebody else's word.
fn others_than(before: &BTreeMap<u8, SavedVoter>, now: &BTreeMap<u8, SavedVoter>) -> replica::Voters {
    let is_the_same = |number: &u8, voter: &SavedVoter| {
        before.get(number).is_some_and(|before| (&before.node, before.since) == (&voter.node, voter.since))
    };
    now.iter().filter(|(number, voter)| !is_the_same(number, voter)).map(|(number, _)| VoterId(*number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_made_anew_on_the_same_node_is_somebody_else() {
        let voter = |node: &str, since| SavedVoter { since, ..SavedVoter::of(node.to_owned(), None) };
        let list = |voters: &[(u8, &str, u64)]| -> BTreeMap<u8, SavedVoter> {
            voters.iter().map(|(number, node, since)| (*number, voter(node, *since))).collect()
        };
        let of = |numbers: &[u8]| -> replica::Voters { numbers.iter().copied().map(VoterId).collect() };
        let three = list(&[(0, "a", 0), (1, "b", 0), (2, "c", 0)]);
        assert_eq!(others_than(&three, &three), of(&[]));
        assert_eq!(others_than(&three, &list(&[(0, "a", 0), (1, "b", 0), (2, "d", 5)])), of(&[2]));
        assert_eq!(others_than(&three, &list(&[(0, "a", 0), (1, "b", 0), (2, "c", 5)])), of(&[2]));
        // Who is gone is nobody else; who comes after that is.
        let two = list(&[(0, "a", 0), (1, "b", 0)]);
        assert_eq!(others_than(&three, &two), of(&[]));
        assert_eq!(others_than(&two, &list(&[(0, "a", 0), (1, "b", 0), (2, "c", 5)])), of(&[2]));
    }
}
