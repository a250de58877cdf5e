//! The volumes of several nodes of the whole cluster, as its nodes answer: which node serves each, and how its replicas stand.
//!
//! Any node can say that, also one that has never served the volume and keeps nothing of it: each node is asked for what it serves and for what
//! it keeps. What only a node would know that does not answer is unknown, and said so.
//!
//! No node serves a volume where so many voters hear of no controller that the others are too few for a lease ([`Quorums`]). That is known
//! without the node that served it.

use super::super::Control;
use super::super::replicas::seating_of;
use super::create::described;
use super::saved::SavedReplicated;
use braid_advice::{self as advice, Case, Names, VolumeCase};
use braid_api::{
    ClusterNode, ClusterVolume, ClusterVolumeList, ClusterVoter, Replica, ReplicaList, ReplicaRegister, ReplicaState,
    ReplicatedList, ReplicatedState, ReplicatedVolume, Service, Standing, VoterState,
};
use braid_engine::replica::{OPEN_WAIT_NS, Quorums, Seating, VoterId, Voters};
use futures_util::future::join_all;
use hyper::Method;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longest that a node is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// A voter that has answered no controller for so long keeps none's lease.
pub(super) const QUIET_MS: u64 = OPEN_WAIT_NS / 1_000_000;

/// What a node says of volumes of several nodes.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    /// Those that it serves, or knows.
    pub volumes: Vec<ReplicatedVolume>,
    /// What it keeps.
    pub replicas: Vec<Replica>,
    /// It may keep more: it has just started.
    pub may_keep_more: bool,
}

/// A node, and what it says, or why it does not.
#[derive(Clone, Debug)]
pub(super) struct NodeSays {
    pub node: String,
    pub said: Result<Answered, String>,
}

impl Control {
    /// The volumes of several nodes of the whole cluster. Nodes that do not answer are given up after 2 s.
    pub async fn cluster_volumes(&self) -> ClusterVolumeList {
        let says = self.ask_all_nodes().await;
        let volumes = volumes_of(&says);
        let nodes = says.iter().map(|NodeSays { node, said }| ClusterNode {
            node: node.clone(),
            answers: said.is_ok(),
            reason: said.as_ref().err().cloned(),
        });
        let incomplete = says.iter().filter_map(|NodeSays { node, said }| match said {
            Err(why) => Some(format!("node {node} does not answer ({why}): what only it knows is not here")),
            Ok(answered) if answered.may_keep_more => Some(format!("node {node} is still looking for its disks")),
            Ok(_) => None,
        });
        ClusterVolumeList { volumes, incomplete: incomplete.collect(), nodes: nodes.collect() }
    }

    /// Asks each node of the table, all at once, by name.
    pub(super) async fn ask_all_nodes(&self) -> Vec<NodeSays> {
        let own = self.nodes().own();
        let mut names: Vec<String> = self.nodes().members().into_iter().map(|member| member.name).collect();
        names.sort();
        let asked = names.into_iter().map(|node| async {
            let said = match own.as_ref() == Some(&node) {
                true => Ok(answered(self.replicated_volumes(), self.replicas())),
                false => self.ask_node(&node).await,
            };
            NodeSays { node, said }
        });
        join_all(asked).await
    }

    async fn ask_node(&self, node: &str) -> Result<Answered, String> {
        let (volumes, replicas) = futures_util::future::join(
            self.listed::<ReplicatedList>(node, "/v1/replicated"),
            self.listed::<ReplicaList>(node, "/v1/replicas"),
        )
        .await;
        Ok(answered(volumes?, replicas?))
    }

    async fn listed<T: DeserializeOwned>(&self, node: &str, path: &str) -> Result<T, String> {
        let answer = self.nodes().call_within(ANSWER_MAX, node, Method::GET, path, None).await;
        let answer = answer.map_err(|error| error.message)?;
        serde_json::from_value(answer).map_err(|error| format!("its answer is not understood: {error}"))
    }
}

fn answered(volumes: ReplicatedList, replicas: ReplicaList) -> Answered {
    Answered { volumes: volumes.volumes, may_keep_more: !replicas.incomplete.is_empty(), replicas: replicas.replicas }
}

/// Every volume that a node knows or keeps something of, by name.
fn volumes_of(says: &[NodeSays]) -> Vec<ClusterVolume> {
    let answers = says.iter().filter_map(|says| says.said.as_ref().ok());
    let uuids: BTreeSet<String> = answers
        .flat_map(|answered| {
            let known = answered.volumes.iter().map(|volume| volume.uuid.clone());
            known.chain(answered.replicas.iter().map(|replica| replica.volume.clone()))
        })
        .collect();
    let mut volumes: Vec<ClusterVolume> = uuids.iter().filter_map(|uuid| Gathered::of(uuid, says)?.show()).collect();
    volumes.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
    volumes
}

/// All that the nodes say of one volume.
pub(super) struct Gathered<'a> {
    says: &'a [NodeSays],
    /// The node that serves it, and what that says of it.
    pub server: Option<(&'a str, &'a ReplicatedVolume)>,
    /// A node that says it serves it, where voters answer a later controller.
    cut_off: Option<&'a str>,
    /// A node that opens it.
    opens: Option<&'a str>,
    /// As a node knows it that does not serve it.
    known: Option<&'a ReplicatedVolume>,
    /// What nodes keep of it.
    kept: BTreeMap<&'a str, &'a Replica>,
    /// Where its voters are, by the newest list and vote that any of them has.
    places: Option<SavedReplicated>,
}

/// Whether a node serves a volume, and why that is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub service: Service,
    pub served_by: Option<String>,
    pub reason: Option<String>,
    /// By what advice is given; none: nothing is to be done.
    pub case: Option<VolumeCase>,
}

impl<'a> Gathered<'a> {
    /// None: no node says anything of it.
    pub fn of(uuid: &str, says: &'a [NodeSays]) -> Option<Gathered<'a>> {
        let answers = || says.iter().filter_map(|says| Some((says.node.as_str(), says.said.as_ref().ok()?)));
        let volumes: Vec<(&str, &ReplicatedVolume)> = answers()
            .flat_map(|(node, answered)| answered.volumes.iter().map(move |volume| (node, volume)))
            .filter(|(_, volume)| volume.uuid == uuid)
            .collect();
        let kept: BTreeMap<&str, &Replica> = answers()
            .filter_map(|(node, answered)| {
                Some((node, answered.replicas.iter().find(|replica| replica.volume == uuid)?))
            })
            .collect();
        if volumes.is_empty() && kept.is_empty() {
            return None;
        }
        let is = |state: ReplicatedState| move |(_, volume): &&(&str, &ReplicatedVolume)| volume.state == state;
        // One that was cut off may not know yet: the higher epoch is the one that voters answer.
        let serving = volumes.iter().filter(is(ReplicatedState::Serving)).max_by_key(|(_, volume)| volume.epoch);
        let answered =
            kept.values().filter_map(|replica| replica.register.as_ref()).map(|register| register.epoch).max();
        let server = serving.filter(|(_, volume)| answered.is_none_or(|epoch| volume.epoch >= epoch));
        let cut_off = serving.filter(|_| server.is_none()).map(|(node, _)| *node);
        let opens = volumes.iter().find(is(ReplicatedState::Opening)).map(|(node, _)| *node);
        let places = kept.values().max_by_key(|replica| replica.version).and_then(|newest| described(newest).ok());
        let mut gathered = Gathered {
            says,
            server: server.copied(),
            cut_off,
            opens,
            known: volumes.first().map(|(_, volume)| *volume),
            kept,
            places,
        };
        gathered.go_by_newest_vote();
        Some(gathered)
    }

    /// The newest vote says who votes, where the list has all of them.
    fn go_by_newest_vote(&mut self) {
        let newest = self.registers().max_by_key(|register| (register.vote.epoch, register.vote.sequence));
        let seating = newest.map(|register| register.vote.seating).filter(|seating| seating.voters != 0);
        if let (Some(seating), Some(places)) = (seating, &mut self.places)
            && seating_of(&seating).all().iter().all(|voter| places.voters.contains_key(&voter.0))
        {
            places.seating = seating;
        }
    }

    fn registers(&self) -> impl Iterator<Item = &'a ReplicaRegister> {
        self.kept.values().filter_map(|replica| replica.register.as_ref())
    }

    /// The nodes that do not answer.
    fn silent(&self) -> Vec<&'a str> {
        self.says.iter().filter(|says| says.said.is_err()).map(|says| says.node.as_str()).collect()
    }

    /// A node that may have more than it says.
    fn starting(&self) -> Option<&'a str> {
        let starts = |says: &&NodeSays| says.said.as_ref().is_ok_and(|answered| answered.may_keep_more);
        self.says.iter().find(starts).map(|says| says.node.as_str())
    }

    /// The voters whose registers were read, and those of them that hear of no controller.
    fn read_and_quiet(&self) -> (Voters, Voters) {
        let Some(places) = &self.places else { return Default::default() };
        let (mut read, mut quiet) = (Voters::NONE, Voters::NONE);
        for (number, voter) in places.seated() {
            let Some(replica) = self.kept.get(voter.node.as_str()) else { continue };
            if replica.voter != number || replica.register.is_none() {
                continue;
            }
            read.insert(VoterId(number));
            // A controller that has let go is none any more, however lately it was heard.
            let released = replica.register.as_ref().is_some_and(|register| register.released);
            if released || replica.heard_ms.is_none_or(|ago| ago >= QUIET_MS) {
                quiet.insert(VoterId(number));
            }
        }
        (read, quiet)
    }

    /// Whether a node serves it.
    pub fn decide(&self) -> Decision {
        let unknown =
            |reason: String, case| Decision { service: Service::Unknown, served_by: None, reason: Some(reason), case };
        let nobody = |reason: String| Decision {
            service: Service::Nobody,
            served_by: None,
            reason: Some(reason),
            case: Some(VolumeCase::Unserved),
        };
        if let Some((node, volume)) = self.server {
            // Of one that waits for its voters nothing is answered.
            let reason = volume.attention.first().cloned();
            return Decision { service: Service::Served, served_by: Some(node.to_owned()), reason, case: None };
        }
        if let Some(node) = self.opens {
            return unknown(format!("node {node} is opening it"), None);
        }
        if let Some(node) = self.cut_off {
            return unknown(format!("node {node} says that it serves it, and voters answer a later controller"), None);
        }
        let silent = self.silent();
        let (read, quiet) = self.read_and_quiet();
        let seating = self.places.as_ref().map(SavedReplicated::seating).unwrap_or_default();
        let of_voters = |count: usize| if count == 1 { "1 voter".to_owned() } else { format!("{count} voters") };
        let heard = read.without(quiet);
        if silent.is_empty() {
            // A node that is not in this one's table yet, or has just begun or ended to serve it, is known by its voters alone.
            if !heard.is_empty() {
                let (some, all) = (of_voters(heard.count()), seating.all().count());
                return unknown(format!("{some} of {all} heard of a controller in the last 5.5 s"), None);
            }
            if let Some(node) = self.starting() {
                return unknown(format!("node {node} is still looking for its disks"), None);
            }
            return nobody("every node of the cluster says that it does not serve it".to_owned());
        }
        let silent = match silent.as_slice() {
            [node] => format!("node {node} does not answer"),
            nodes => format!("nodes {} do not answer", nodes.join(", ")),
        };
        if enough(&seating, quiet) {
            return nobody(format!(
                "{silent}, and {} of {} hear of no controller, so that no node can answer for it",
                of_voters(quiet.count()),
                seating.all().count()
            ));
        }
        if !heard.is_empty() {
            return unknown(
                format!(
                    "{silent}, and {} of {} heard of a controller in the last 5.5 s",
                    of_voters(heard.count()),
                    seating.all().count()
                ),
                None,
            );
        }
        unknown(format!("{silent}: the volume may be served there"), Some(VolumeCase::UnservedMaybe))
    }

    fn show(&self) -> Option<ClusterVolume> {
        let Decision { service, served_by, reason, case } = self.decide();
        let (uuid, name, size_bytes) = match (self.server.map(|(_, volume)| volume), &self.places, self.known) {
            (Some(volume), ..) => (volume.uuid.clone(), volume.name.clone(), volume.size_bytes),
            (None, Some(places), _) => (places.uuid.to_string(), places.name.clone(), places.size_bytes),
            (None, None, Some(volume)) => (volume.uuid.clone(), volume.name.clone(), volume.size_bytes),
            (None, None, None) => {
                let replica = self.kept.values().next()?;
                (replica.volume.clone(), replica.name.clone(), replica.volume_bytes)
            }
        };
        let advice = case.map(|case| advice::of(Case::ReplicatedVolume(case), Names::of(&name)));
        let (remedy, commands) = advice.map_or((None, Vec::new()), |advice| (Some(advice.remedy), advice.commands));
        Some(ClusterVolume {
            uuid,
            name,
            size_bytes,
            service,
            served_by,
            reason,
            remedy,
            commands,
            voters: self.voters(),
        })
    }

    fn voters(&self) -> Vec<ClusterVoter> {
        if let Some((_, volume)) = self.server {
            let voter = |voter: &braid_api::Voter| {
                let (state, reason) = self.by_server(voter);
                ClusterVoter { voter: voter.voter, node: voter.node.clone(), pool: voter.pool.clone(), state, reason }
            };
            return volume.voters.iter().map(voter).collect();
        }
        if let Some(places) = &self.places {
            let in_sync = self.in_sync();
            let voter = |(number, voter): (u8, &super::saved::SavedVoter)| {
                let (state, reason) = self.by_votes(number, &voter.node, voter.pool.is_some(), in_sync);
                ClusterVoter { voter: number, node: voter.node.clone(), pool: voter.pool.clone(), state, reason }
            };
            return places.seated().map(voter).collect();
        }
        let voter = |voter: &braid_api::Voter| {
            let (state, reason) = self.by_votes(voter.voter, &voter.node, voter.pool.is_some(), None);
            ClusterVoter { voter: voter.voter, node: voter.node.clone(), pool: voter.pool.clone(), state, reason }
        };
        self.known.iter().flat_map(|volume| &volume.voters).map(voter).collect()
    }

    /// How a voter stands by the word of the node that serves the volume.
    fn by_server(&self, voter: &braid_api::Voter) -> (Standing, Option<String>) {
        let at_node = self.at_node(voter.voter, &voter.node);
        match (voter.state, at_node) {
            // It holds everything until it misses a write.
            (VoterState::InSync, at_node) => (Standing::InSync, at_node.err().map(NotUsable::why)),
            (VoterState::Filling, _) => (Standing::Behind, Some("it is being filled".to_owned())),
            (VoterState::Out, Ok(_)) => (Standing::Behind, Some("it is out, and returns by itself".to_owned())),
            (VoterState::Out, Err(NotUsable::Absent(why) | NotUsable::Silent(why))) => (Standing::Absent, Some(why)),
            (VoterState::Witness, _) if voter.answers => (Standing::Witness, None),
            (VoterState::Witness, at_node) => {
                let why = at_node.err().map(NotUsable::why).or_else(|| voter.reason.clone());
                (
                    Standing::Absent,
                    why.or_else(|| Some("it does not answer the node that serves the volume".to_owned())),
                )
            }
            _ => (Standing::Unknown, None),
        }
    }

    /// How a voter stands while no node is known to serve the volume: by its node, and the newest vote.
    fn by_votes(&self, number: u8, node: &str, has_data: bool, in_sync: Option<Voters>) -> (Standing, Option<String>) {
        match (self.at_node(number, node), in_sync) {
            (Err(NotUsable::Silent(why)), _) => (Standing::Unknown, Some(why)),
            (Err(NotUsable::Absent(why)), _) => (Standing::Absent, Some(why)),
            (Ok(_), _) if !has_data => (Standing::Witness, None),
            (Ok(_), Some(in_sync)) if in_sync.has(VoterId(number)) => (Standing::InSync, None),
            (Ok(_), Some(_)) => (Standing::Behind, Some("it is out by the newest vote".to_owned())),
            (Ok(_), None) => (Standing::Unknown, Some("too few voters answer to tell".to_owned())),
        }
    }

    /// What a node has of a voter, if that can be used.
    fn at_node(&self, number: u8, node: &str) -> Result<&'a Replica, NotUsable> {
        let Some(says) = self.says.iter().find(|says| says.node == node) else {
            return Err(NotUsable::Silent(format!("node {node} is not in the table of this node")));
        };
        let answered = says.said.as_ref();
        let answered = answered.map_err(|_| NotUsable::Silent(format!("node {node} does not answer")))?;
        let found = self.kept.get(node).filter(|replica| replica.voter == number);
        match found {
            Some(replica) if replica.state == ReplicaState::Ready => Ok(replica),
            Some(replica) => {
                let why = replica.reason.clone().map(|why| format!(": {why}")).unwrap_or_default();
                Err(NotUsable::Absent(format!("it is {} on its node{why}", replica.state.word())))
            }
            None if answered.may_keep_more => {
                Err(NotUsable::Silent(format!("node {node} is still looking for its disks")))
            }
            None => Err(NotUsable::Absent(format!("node {node} has nothing of it"))),
        }
    }

    /// The replicas that hold everything by the newest vote; none where too few voters were read to know that one.
    fn in_sync(&self) -> Option<Voters> {
        let seating = self.places.as_ref()?.seating();
        let (read, _) = self.read_and_quiet();
        let newest = self.registers().max_by_key(|register| (register.vote.epoch, register.vote.sequence))?;
        enough(&seating, read).then(|| Voters::from_bits(newest.vote.in_sync))
    }
}

/// Why what a node has of a voter cannot be used.
enum NotUsable {
    /// It has nothing, or that does not work.
    Absent(String),
    /// The node does not say.
    Silent(String),
}

impl NotUsable {
    fn why(self) -> String {
        match self {
            NotUsable::Absent(why) | NotUsable::Silent(why) => why,
        }
    }
}

/// Whether these are as many as it takes to open the volume, of each set of a joint vote: the others are too few for a lease, and no vote has
/// counted that none of these knows.
fn enough(seating: &Seating, these: Voters) -> bool {
    let mut sets = seating.sets().peekable();
    sets.peek().is_some() && sets.all(|set| these.and(set).count() >= Quorums::of(set.count()).open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const VOLUME: &str = "11111111-2222-4333-8444-555555555555";
    const NODES: [&str; 3] = ["a", "b", "c"];

    /// A replica on one of three nodes, by the vote that those with these bits hold everything.
    fn replica(voter: u8, heard_ms: Option<u64>, in_sync: u16) -> Replica {
        let places: Vec<_> =
            NODES.iter().zip(0u8..).map(|(node, at)| json!({"voter": at, "node": node, "pool": "tank"})).collect();
        let seating = json!({"voters": 7, "replicas": 7});
        let vote = json!({"epoch": 3, "sequence": 1, "lineage": 1, "in_sync": in_sync, "seating": seating});
        let register = json!({"epoch": 3, "controller": VOLUME, "released": false, "vote": vote, "boot": null});
        serde_json::from_value(json!({
            "volume": VOLUME, "name": "db", "voter": voter, "voters": 3, "witness": false, "state": "ready", "pool": "tank",
            "data": "tank/db", "size_bytes": 4096, "head_bytes": 0, "tail_bytes": 0, "places": places, "volume_bytes": 4096,
            "boot": "", "export": null, "connections": 0, "register": register, "heard_ms": heard_ms,
        }))
        .expect("it is one")
    }

    fn volume(state: &str, epoch: u64) -> ReplicatedVolume {
        let voters: Vec<_> = NODES
            .iter()
            .zip(["in_sync", "filling", "out"].iter().zip(0u8..))
            .map(|(node, (state, at))| json!({"voter": at, "node": node, "pool": "tank", "state": state, "answers": true, "reason": null}))
            .collect();
        serde_json::from_value(json!({
            "uuid": VOLUME, "name": "db", "size_bytes": 4096, "level": "raid1", "state": state, "epoch": epoch,
            "voters": voters, "exports": [], "attention": [],
        }))
        .expect("it is one")
    }

    fn says(node: usize, volumes: Vec<ReplicatedVolume>, replicas: Vec<Replica>) -> NodeSays {
        let said = Ok(Answered { volumes, replicas, may_keep_more: false });
        NodeSays { node: NODES[node].to_owned(), said }
    }

    fn keeps(node: u8, heard_ms: Option<u64>) -> NodeSays {
        says(usize::from(node), Vec::new(), vec![replica(node, heard_ms, 0b111)])
    }

    fn silent(node: usize) -> NodeSays {
        NodeSays { node: NODES[node].to_owned(), said: Err("no answer".to_owned()) }
    }

    fn decided(all: &[NodeSays]) -> (Service, Option<VolumeCase>) {
        let decision = Gathered::of(VOLUME, all).expect("it is known").decide();
        (decision.service, decision.case)
    }

    fn states(all: &[NodeSays]) -> Vec<Standing> {
        volumes_of(all)[0].voters.iter().map(|voter| voter.state).collect()
    }

    #[test]
    fn whether_a_node_serves_it_goes_by_what_is_known_alone() {
        let quiet = || Some(QUIET_MS);
        let nobody = (Service::Nobody, Some(VolumeCase::Unserved));
        // Two of three hear of nobody: the third one cannot go on alone.
        assert_eq!(decided(&[silent(0), keeps(1, quiet()), keeps(2, None)]), nobody);
        // One that hears of a controller is enough to doubt.
        assert_eq!(decided(&[silent(0), keeps(1, Some(QUIET_MS - 1)), keeps(2, None)]), (Service::Unknown, None));
        // One of three says nothing about the two others.
        assert_eq!(
            decided(&[silent(0), silent(1), keeps(2, quiet())]),
            (Service::Unknown, Some(VolumeCase::UnservedMaybe))
        );
        // Every node says that it does not: of what voters hear somebody may be on the way to serve it, or just have ended.
        assert_eq!(decided(&[keeps(0, Some(1)), keeps(1, Some(1)), keeps(2, Some(1))]), (Service::Unknown, None));
        assert_eq!(decided(&[keeps(0, quiet()), keeps(1, quiet()), keeps(2, None)]), nobody);
        // Which node opens it is known, whatever else is not.
        let opening = says(1, vec![volume("opening", 4)], vec![replica(1, None, 7)]);
        assert_eq!(decided(&[silent(0), opening, keeps(2, None)]), (Service::Unknown, None));
    }

    /// While the voters change, each of both sets has to be without a controller.
    #[test]
    fn of_a_joint_vote_both_sets_count() {
        let of = |voters: &[u8]| {
            let mut set = Voters::NONE;
            voters.iter().for_each(|voter| set.insert(VoterId(*voter)));
            set
        };
        let joint = Seating { voters: of(&[0, 1]), before: of(&[0, 1, 2]), ..Seating::default() };
        // Two of the three before, and one of the two from now on: the other one may go on alone.
        assert!(!enough(&joint, of(&[1, 2])));
        assert!(enough(&joint, of(&[0, 1])));
        assert!(!enough(&Seating::default(), of(&[0, 1, 2])));
    }

    /// A node that was cut off from the voters still says that it serves the volume.
    #[test]
    fn one_that_voters_do_not_answer_any_more_is_not_believed() {
        let all = [says(0, vec![volume("serving", 2)], vec![]), keeps(1, None), silent(2)];
        assert_eq!(decided(&all), (Service::Unknown, None), "a voter has a register of epoch 3");
    }

    #[test]
    fn of_two_that_say_so_the_later_one_serves_it() {
        let all = [says(0, vec![volume("serving", 4)], vec![]), says(1, vec![volume("serving", 3)], vec![]), silent(2)];
        assert_eq!(volumes_of(&all)[0].served_by.as_deref(), Some("a"));
        assert_eq!(states(&all), [Standing::InSync, Standing::Behind, Standing::Absent], "out, and silent");
        // Its node answers, and has it: it is on its way back.
        let all = [says(0, vec![volume("serving", 4)], vec![]), silent(1), keeps(2, Some(1))];
        assert_eq!(states(&all), [Standing::InSync, Standing::Behind, Standing::Behind]);
    }

    #[test]
    fn how_replicas_stand_without_a_server_goes_by_the_newest_vote_that_must_be_known() {
        use Standing::{Absent, Behind, InSync, Unknown};
        assert_eq!(states(&[silent(0), keeps(1, None), keeps(2, None)]), [Unknown, InSync, InSync]);
        assert_eq!(
            states(&[silent(0), silent(1), keeps(2, None)]),
            [Unknown, Unknown, Unknown],
            "a later vote may be there"
        );
        // An older vote says nothing beside a newer one.
        let newer = |register: &mut Replica| {
            if let Some(register) = &mut register.register {
                register.vote.sequence = 2;
                register.vote.in_sync = 0b101;
            }
        };
        let mut second = replica(2, None, 0);
        newer(&mut second);
        assert_eq!(states(&[silent(0), keeps(1, None), says(2, vec![], vec![second])]), [Unknown, Behind, InSync]);
        // What a node has nothing of is absent, unless it may have it still; and so is what it cannot use.
        let mut waits = replica(1, None, 7);
        waits.state = ReplicaState::Waiting;
        let mut starts = says(0, vec![], vec![]);
        assert_eq!(
            states(&[starts.clone(), says(1, vec![], vec![waits.clone()]), keeps(2, None)])[..2],
            [Absent, Absent]
        );
        if let Ok(answered) = &mut starts.said {
            answered.may_keep_more = true;
        }
        assert_eq!(states(&[starts, keeps(1, None), keeps(2, None)])[0], Unknown);
    }

    #[test]
    fn a_node_that_does_not_serve_it_is_enough_to_name_it() {
        let all = [says(0, vec![volume("detached", 0)], vec![]), silent(1), silent(2)];
        let listed = &volumes_of(&all)[0];
        assert_eq!((listed.name.as_str(), listed.service, listed.voters.len()), ("db", Service::Unknown, 3));
        assert_eq!(states(&all), [Standing::Absent, Standing::Unknown, Standing::Unknown]);
    }
}
