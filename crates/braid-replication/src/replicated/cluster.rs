//! The replicated volumes of the whole cluster, by the replies of its nodes: which node serves each, and the state of
//! its replicas.
//!
//! Any node can report that, even one that has never served the volume and has no replica of it: each node is asked for
//! what it serves and for its replicas. What only a node without a reply would know is reported as unknown.
//!
//! No node serves a volume if so many voters have no live controller that the others are too few for a lease
//! ([`Quorums`]). That is known without the node that served it.

use crate::ReplicationManager;
use crate::replicated::create::volume_of_replica;
use braid_advice::{self as advice, Case, ObjectNames, VolumeCase};
use braid_api::{
    ClusterNode, ClusterVolume, ClusterVolumeList, ClusterVoter, ClusterVoterState, Replica, ReplicaList,
    ReplicaRegister, ReplicaState, ReplicatedList, ReplicatedState, ReplicatedVolume, Service, VoterState,
};
use braid_engine::replica::{OPEN_WAIT_NS, Quorums, VoterConfig, VoterId, Voters};
use braid_inventory::{SavedReplicated, membership_of};
use futures_util::future::join_all;
use hyper::Method;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum time to wait for a node.
const REPLY_MAX: Duration = Duration::from_secs(2);

/// A voter that has replied to no controller for this long contributes to no lease, in milliseconds.
pub(crate) const CONTROLLER_SILENT_MS: u64 = OPEN_WAIT_NS / 1_000_000;

/// What a node reports about replicated volumes.
#[derive(Clone, Debug)]
pub(crate) struct NodeReport {
    /// The volumes that it serves or knows.
    pub(crate) volumes: Vec<ReplicatedVolume>,
    /// Its replicas.
    pub(crate) replicas: Vec<Replica>,
    /// It may have more: it has just started.
    pub(crate) is_starting: bool,
}

/// A node, and its report or why there is none.
#[derive(Clone, Debug)]
pub(crate) struct NodeReply {
    pub(crate) node: String,
    pub(crate) report: Result<NodeReport, String>,
}

impl ReplicationManager {
    /// Returns the replicated volumes of the whole cluster. The wait for a node ends after 2 s.
    pub async fn cluster_volumes(&self) -> ClusterVolumeList {
        let replies = self.query_all_nodes().await;
        let volumes = volumes_of(&replies);
        let nodes = replies.iter().map(|NodeReply { node, report }| ClusterNode {
            node: node.clone(),
            reachable: report.is_ok(),
            reason: report.as_ref().err().cloned(),
        });
        let incomplete = replies.iter().filter_map(|NodeReply { node, report }| match report {
            Err(why) => Some(format!("node {node} does not answer ({why}): what only it knows is not here")),
            Ok(report) if report.is_starting => Some(format!("node {node} is still looking for its disks")),
            Ok(_) => None,
        });
        ClusterVolumeList { volumes, incomplete: incomplete.collect(), nodes: nodes.collect() }
    }

    /// Asks all nodes of the table concurrently; sorted by name.
    pub(crate) async fn query_all_nodes(&self) -> Vec<NodeReply> {
        let own = self.nodes.own_name();
        let mut names: Vec<String> = self.nodes.members().into_iter().map(|member| member.name).collect();
        names.sort();
        let asked = names.into_iter().map(|node| async {
            let report = match own.as_ref() == Some(&node) {
                true => Ok(report_of(self.replicated_volumes(), self.replicas())),
                false => self.query_node(&node).await,
            };
            NodeReply { node, report }
        });
        join_all(asked).await
    }

    async fn query_node(&self, node: &str) -> Result<NodeReport, String> {
        let (volumes, replicas) = futures_util::future::join(
            self.fetch::<ReplicatedList>(node, "/v1/replicated"),
            self.fetch::<ReplicaList>(node, "/v1/replicas"),
        )
        .await;
        Ok(report_of(volumes?, replicas?))
    }

    async fn fetch<T: DeserializeOwned>(&self, node: &str, path: &str) -> Result<T, String> {
        let reply = self.nodes.call_within(REPLY_MAX, node, Method::GET, path, None).await;
        let reply = reply.map_err(|error| error.message)?;
        serde_json::from_value(reply).map_err(|error| format!("its answer is not understood: {error}"))
    }
}

fn report_of(volumes: ReplicatedList, replicas: ReplicaList) -> NodeReport {
    NodeReport { volumes: volumes.volumes, is_starting: !replicas.incomplete.is_empty(), replicas: replicas.replicas }
}

/// Returns every volume that a node knows or has a replica of, sorted by name.
fn volumes_of(replies: &[NodeReply]) -> Vec<ClusterVolume> {
    let reports = replies.iter().filter_map(|reply| reply.report.as_ref().ok());
    let uuids: BTreeSet<String> = reports
        .flat_map(|report| {
            let known = report.volumes.iter().map(|volume| volume.uuid.clone());
            known.chain(report.replicas.iter().map(|replica| replica.volume.clone()))
        })
        .collect();
    let mut volumes: Vec<ClusterVolume> =
        uuids.iter().filter_map(|uuid| VolumeReports::of(uuid, replies)?.show()).collect();
    volumes.sort_by(|a, b| (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid)));
    volumes
}

/// All reports about one volume.
pub(crate) struct VolumeReports<'a> {
    replies: &'a [NodeReply],
    /// The node that serves it, and its report.
    pub(crate) server: Option<(&'a str, &'a ReplicatedVolume)>,
    /// A node that reports serving it while voters reply to a later controller.
    cut_off: Option<&'a str>,
    /// A node that is opening it.
    opens: Option<&'a str>,
    /// The report of a node that knows it.
    known: Option<&'a ReplicatedVolume>,
    /// The replicas, by node.
    replicas_by_node: BTreeMap<&'a str, &'a Replica>,
    /// The locations of its voters, by the newest membership and vote that any of them has.
    locations: Option<SavedReplicated>,
}

/// Whether a node serves a volume, and why that is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceDecision {
    pub(crate) service: Service,
    pub(crate) served_by: Option<String>,
    pub(crate) reason: Option<String>,
    /// Selects the advice; `None`: no action is needed.
    pub(crate) case: Option<VolumeCase>,
}

impl<'a> VolumeReports<'a> {
    /// Returns `None` if no node reports anything about it.
    pub(crate) fn of(uuid: &str, replies: &'a [NodeReply]) -> Option<VolumeReports<'a>> {
        let reports = || replies.iter().filter_map(|reply| Some((reply.node.as_str(), reply.report.as_ref().ok()?)));
        let volumes: Vec<(&str, &ReplicatedVolume)> = reports()
            .flat_map(|(node, report)| report.volumes.iter().map(move |volume| (node, volume)))
            .filter(|(_, volume)| volume.uuid == uuid)
            .collect();
        let replicas_by_node: BTreeMap<&str, &Replica> = reports()
            .filter_map(|(node, report)| Some((node, report.replicas.iter().find(|replica| replica.volume == uuid)?)))
            .collect();
        if volumes.is_empty() && replicas_by_node.is_empty() {
            return None;
        }
        let is = |state: ReplicatedState| move |(_, volume): &&(&str, &ReplicatedVolume)| volume.state == state;
        // A fenced node may not know that yet: voters reply to the higher epoch.
        let serving = volumes.iter().filter(is(ReplicatedState::Serving)).max_by_key(|(_, volume)| volume.epoch);
        let newest_epoch = replicas_by_node
            .values()
            .filter_map(|replica| replica.register.as_ref())
            .map(|register| register.epoch)
            .max();
        let server = serving.filter(|(_, volume)| newest_epoch.is_none_or(|epoch| volume.epoch >= epoch));
        let cut_off = serving.filter(|_| server.is_none()).map(|(node, _)| *node);
        let opens = volumes.iter().find(is(ReplicatedState::Opening)).map(|(node, _)| *node);
        let locations = replicas_by_node
            .values()
            .max_by_key(|replica| replica.version)
            .and_then(|newest| volume_of_replica(newest).ok());
        let mut reports = VolumeReports {
            replies,
            server: server.copied(),
            cut_off,
            opens,
            known: volumes.first().map(|(_, volume)| *volume),
            replicas_by_node,
            locations,
        };
        reports.adopt_newest_vote();
        Some(reports)
    }

    /// Takes the membership of the newest vote, if the locations of all its voters are known.
    fn adopt_newest_vote(&mut self) {
        let newest = self.registers().max_by_key(|register| (register.vote.epoch, register.vote.sequence));
        let membership = newest.map(|register| register.vote.membership).filter(|membership| membership.voters != 0);
        if let (Some(membership), Some(locations)) = (membership, &mut self.locations)
            && membership_of(&membership).all().iter().all(|voter| locations.voters.contains_key(&voter.0))
        {
            locations.membership = membership;
        }
    }

    fn registers(&self) -> impl Iterator<Item = &'a ReplicaRegister> {
        self.replicas_by_node.values().filter_map(|replica| replica.register.as_ref())
    }

    /// Returns the nodes without a reply.
    fn silent(&self) -> Vec<&'a str> {
        self.replies.iter().filter(|reply| reply.report.is_err()).map(|reply| reply.node.as_str()).collect()
    }

    /// Returns a node that may have more replicas than it reports.
    fn starting(&self) -> Option<&'a str> {
        let starts = |reply: &&NodeReply| reply.report.as_ref().is_ok_and(|report| report.is_starting);
        self.replies.iter().find(starts).map(|reply| reply.node.as_str())
    }

    /// Returns the voters whose registers were read, and those of them that have no live controller.
    fn read_and_silent(&self) -> (Voters, Voters) {
        let Some(locations) = &self.locations else { return Default::default() };
        let (mut read, mut silent_voters) = (Voters::NONE, Voters::NONE);
        for (number, voter) in locations.voting() {
            let Some(replica) = self.replicas_by_node.get(voter.node.as_str()) else { continue };
            if replica.voter != number || replica.register.is_none() {
                continue;
            }
            read.insert(VoterId(number));
            // A controller that has released the volume does not count, however recent its last request.
            let released = replica.register.as_ref().is_some_and(|register| register.released);
            if released || replica.since_reply_ms.is_none_or(|ago| ago >= CONTROLLER_SILENT_MS) {
                silent_voters.insert(VoterId(number));
            }
        }
        (read, silent_voters)
    }

    /// Decides whether a node serves the volume.
    pub(crate) fn decide(&self) -> ServiceDecision {
        let unknown = |reason: String, case| ServiceDecision {
            service: Service::Unknown,
            served_by: None,
            reason: Some(reason),
            case,
        };
        let unserved = |reason: String| ServiceDecision {
            service: Service::Unserved,
            served_by: None,
            reason: Some(reason),
            case: Some(VolumeCase::Unserved),
        };
        if let Some((node, volume)) = self.server {
            // A volume that waits for its voters completes no request.
            let reason = volume.attention.first().cloned();
            return ServiceDecision { service: Service::Served, served_by: Some(node.to_owned()), reason, case: None };
        }
        if let Some(node) = self.opens {
            return unknown(format!("node {node} is opening it"), None);
        }
        if let Some(node) = self.cut_off {
            return unknown(format!("node {node} reports serving it, but voters reply to a later controller"), None);
        }
        let silent = self.silent();
        let (read, silent_voters) = self.read_and_silent();
        let membership = self.locations.as_ref().map(SavedReplicated::membership).unwrap_or_default();
        let of_voters = |count: usize| if count == 1 { "1 voter".to_owned() } else { format!("{count} voters") };
        let heard = read.without(silent_voters);
        if silent.is_empty() {
            // A node that is not in this node's table yet, or has just begun or ended to serve the volume, is known
            // only by its voters.
            if !heard.is_empty() {
                let (some, all) = (of_voters(heard.count()), membership.all().count());
                return unknown(format!("{some} of {all} replied to a controller in the last 5.5 s"), None);
            }
            if let Some(node) = self.starting() {
                return unknown(format!("node {node} is still looking for its disks"), None);
            }
            return unserved("every node of the cluster says that it does not serve it".to_owned());
        }
        let silent = match silent.as_slice() {
            [node] => format!("node {node} does not answer"),
            nodes => format!("nodes {} do not answer", nodes.join(", ")),
        };
        if is_open_quorum(&membership, silent_voters) {
            return unserved(format!(
                "{silent}, and {} of {} have no live controller, so that no node can serve it",
                of_voters(silent_voters.count()),
                membership.all().count()
            ));
        }
        if !heard.is_empty() {
            return unknown(
                format!(
                    "{silent}, and {} of {} replied to a controller in the last 5.5 s",
                    of_voters(heard.count()),
                    membership.all().count()
                ),
                None,
            );
        }
        unknown(format!("{silent}: the volume may be served there"), Some(VolumeCase::UnservedMaybe))
    }

    fn show(&self) -> Option<ClusterVolume> {
        let ServiceDecision { service, served_by, reason, case } = self.decide();
        let (uuid, name, size_bytes) = match (self.server.map(|(_, volume)| volume), &self.locations, self.known) {
            (Some(volume), ..) => (volume.uuid.clone(), volume.name.clone(), volume.size_bytes),
            (None, Some(locations), _) => (locations.uuid.to_string(), locations.name.clone(), locations.size_bytes),
            (None, None, Some(volume)) => (volume.uuid.clone(), volume.name.clone(), volume.size_bytes),
            (None, None, None) => {
                let replica = self.replicas_by_node.values().next()?;
                (replica.volume.clone(), replica.name.clone(), replica.volume_bytes)
            }
        };
        let advice = case.map(|case| advice::of(Case::ReplicatedVolume(case), ObjectNames::of(&name)));
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
                let (state, reason) = self.state_by_server(voter);
                ClusterVoter { voter: voter.voter, node: voter.node.clone(), pool: voter.pool.clone(), state, reason }
            };
            return volume.voters.iter().map(voter).collect();
        }
        if let Some(locations) = &self.locations {
            let in_sync = self.in_sync();
            let voter = |(number, voter): (u8, &braid_inventory::SavedVoter)| {
                let (state, reason) = self.state_by_votes(number, &voter.node, voter.pool.is_some(), in_sync);
                ClusterVoter { voter: number, node: voter.node.clone(), pool: voter.pool.clone(), state, reason }
            };
            return locations.voting().map(voter).collect();
        }
        let voter = |voter: &braid_api::Voter| {
            let (state, reason) = self.state_by_votes(voter.voter, &voter.node, voter.pool.is_some(), None);
            ClusterVoter { voter: voter.voter, node: voter.node.clone(), pool: voter.pool.clone(), state, reason }
        };
        self.known.iter().flat_map(|volume| &volume.voters).map(voter).collect()
    }

    /// Returns the state of a voter by the report of the node that serves the volume.
    fn state_by_server(&self, voter: &braid_api::Voter) -> (ClusterVoterState, Option<String>) {
        let replica = self.replica_at(voter.voter, &voter.node);
        match (voter.state, replica) {
            // A replica whose node does not answer stays in sync until it misses a write.
            (VoterState::InSync, replica) => (ClusterVoterState::InSync, replica.err().map(UnusableReplica::why)),
            (VoterState::Rebuilding, _) => (ClusterVoterState::OutOfSync, Some("it is being rebuilt".to_owned())),
            (VoterState::Failed, Ok(_)) => {
                (ClusterVoterState::OutOfSync, Some("it has failed, and returns automatically".to_owned()))
            }
            (VoterState::Failed, Err(UnusableReplica::Missing(why) | UnusableReplica::Unreported(why))) => {
                (ClusterVoterState::Unavailable, Some(why))
            }
            (VoterState::Witness, _) if voter.reachable => (ClusterVoterState::Witness, None),
            (VoterState::Witness, replica) => {
                let why = replica.err().map(UnusableReplica::why).or_else(|| voter.reason.clone());
                (
                    ClusterVoterState::Unavailable,
                    why.or_else(|| Some("it does not answer the node that serves the volume".to_owned())),
                )
            }
            _ => (ClusterVoterState::Unknown, None),
        }
    }

    /// Returns the state of a voter while no node is known to serve the volume: by its node, and by the newest vote.
    fn state_by_votes(
        &self,
        number: u8,
        node: &str,
        has_data: bool,
        in_sync: Option<Voters>,
    ) -> (ClusterVoterState, Option<String>) {
        match (self.replica_at(number, node), in_sync) {
            (Err(UnusableReplica::Unreported(why)), _) => (ClusterVoterState::Unknown, Some(why)),
            (Err(UnusableReplica::Missing(why)), _) => (ClusterVoterState::Unavailable, Some(why)),
            (Ok(_), _) if !has_data => (ClusterVoterState::Witness, None),
            (Ok(_), Some(in_sync)) if in_sync.has(VoterId(number)) => (ClusterVoterState::InSync, None),
            (Ok(_), Some(_)) => (ClusterVoterState::OutOfSync, Some("it is not in sync by the newest vote".to_owned())),
            (Ok(_), None) => (ClusterVoterState::Unknown, Some("too few voters answer to tell".to_owned())),
        }
    }

    /// Returns a voter's replica on its node, if it can be used.
    fn replica_at(&self, number: u8, node: &str) -> Result<&'a Replica, UnusableReplica> {
        let Some(reply) = self.replies.iter().find(|reply| reply.node == node) else {
            return Err(UnusableReplica::Unreported(format!("node {node} is not in the table of this node")));
        };
        let report = reply.report.as_ref();
        let report = report.map_err(|_| UnusableReplica::Unreported(format!("node {node} does not answer")))?;
        let found = self.replicas_by_node.get(node).filter(|replica| replica.voter == number);
        match found {
            Some(replica) if replica.state == ReplicaState::Ready => Ok(replica),
            Some(replica) => {
                let why = replica.reason.clone().map(|why| format!(": {why}")).unwrap_or_default();
                Err(UnusableReplica::Missing(format!("it is {} on its node{why}", replica.state.word())))
            }
            None if report.is_starting => {
                Err(UnusableReplica::Unreported(format!("node {node} is still looking for its disks")))
            }
            None => Err(UnusableReplica::Missing(format!("node {node} has nothing of it"))),
        }
    }

    /// Returns the replicas in sync by the newest vote; `None` if too few registers were read to know that vote.
    fn in_sync(&self) -> Option<Voters> {
        let membership = self.locations.as_ref()?.membership();
        let (read, _) = self.read_and_silent();
        let newest = self.registers().max_by_key(|register| (register.vote.epoch, register.vote.sequence))?;
        is_open_quorum(&membership, read).then(|| Voters::from_bits(newest.vote.in_sync))
    }
}

/// Why a voter's replica on its node cannot be used.
enum UnusableReplica {
    /// The node has no replica, or it does not work.
    Missing(String),
    /// The node does not report.
    Unreported(String),
}

impl UnusableReplica {
    fn why(self) -> String {
        match self {
            UnusableReplica::Missing(why) | UnusableReplica::Unreported(why) => why,
        }
    }
}

/// Returns whether these voters are enough to open the volume, in each set of a joint configuration: the others are
/// then too few for a lease, and at least one of these knows every settled vote.
fn is_open_quorum(membership: &VoterConfig, these: Voters) -> bool {
    let mut sets = membership.sets().peekable();
    sets.peek().is_some() && sets.all(|set| these.and(set).count() >= Quorums::of(set.count()).open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const VOLUME: &str = "11111111-2222-4333-8444-555555555555";
    const NODES: [&str; 3] = ["a", "b", "c"];

    /// Returns a replica on one of three nodes, whose vote has the replicas `in_sync` in sync.
    fn replica(voter: u8, since_reply_ms: Option<u64>, in_sync: u16) -> Replica {
        let locations: Vec<_> =
            NODES.iter().zip(0u8..).map(|(node, at)| json!({"voter": at, "node": node, "pool": "tank"})).collect();
        let membership = json!({"voters": 7, "replicas": 7});
        let vote = json!({"epoch": 3, "sequence": 1, "lineage": 1, "in_sync": in_sync, "membership": membership});
        let register = json!({"epoch": 3, "controller": VOLUME, "released": false, "vote": vote, "boot": null});
        serde_json::from_value(json!({
            "volume": VOLUME, "name": "db", "voter": voter, "voters": 3, "witness": false, "state": "ready", "pool": "tank",
            "data": "tank/db", "size_bytes": 4096, "head_bytes": 0, "tail_bytes": 0, "locations": locations, "volume_bytes": 4096,
            "boot": "", "export": null, "connections": 0, "register": register, "since_reply_ms": since_reply_ms,
        }))
        .expect("it is one")
    }

    fn volume(state: &str, epoch: u64) -> ReplicatedVolume {
        let voters: Vec<_> = NODES
            .iter()
            .zip(["in_sync", "rebuilding", "failed"].iter().zip(0u8..))
            .map(|(node, (state, at))| json!({"voter": at, "node": node, "pool": "tank", "state": state, "reachable": true, "reason": null}))
            .collect();
        serde_json::from_value(json!({
            "uuid": VOLUME, "name": "db", "size_bytes": 4096, "level": "raid1", "state": state, "epoch": epoch,
            "voters": voters, "exports": [], "attention": [],
        }))
        .expect("it is one")
    }

    fn node_reply(node: usize, volumes: Vec<ReplicatedVolume>, replicas: Vec<Replica>) -> NodeReply {
        let report = Ok(NodeReport { volumes, replicas, is_starting: false });
        NodeReply { node: NODES[node].to_owned(), report }
    }

    fn with_replica(node: u8, since_reply_ms: Option<u64>) -> NodeReply {
        node_reply(usize::from(node), Vec::new(), vec![replica(node, since_reply_ms, 0b111)])
    }

    fn silent(node: usize) -> NodeReply {
        NodeReply { node: NODES[node].to_owned(), report: Err("no answer".to_owned()) }
    }

    fn decided(all: &[NodeReply]) -> (Service, Option<VolumeCase>) {
        let decision = VolumeReports::of(VOLUME, all).expect("it is known").decide();
        (decision.service, decision.case)
    }

    fn states(all: &[NodeReply]) -> Vec<ClusterVoterState> {
        volumes_of(all)[0].voters.iter().map(|voter| voter.state).collect()
    }

    #[test]
    fn the_decision_uses_known_facts_only() {
        let expired = || Some(CONTROLLER_SILENT_MS);
        let unserved = (Service::Unserved, Some(VolumeCase::Unserved));
        // Two of three have no controller: the third one cannot serve alone.
        assert_eq!(decided(&[silent(0), with_replica(1, expired()), with_replica(2, None)]), unserved);
        // One voter with a controller is enough for doubt.
        assert_eq!(
            decided(&[silent(0), with_replica(1, Some(CONTROLLER_SILENT_MS - 1)), with_replica(2, None)]),
            (Service::Unknown, None)
        );
        // One of three says nothing about the two others.
        assert_eq!(
            decided(&[silent(0), silent(1), with_replica(2, expired())]),
            (Service::Unknown, Some(VolumeCase::UnservedMaybe))
        );
        // Every node denies it: a controller that voters know may be about to serve the volume, or have just ended.
        assert_eq!(
            decided(&[with_replica(0, Some(1)), with_replica(1, Some(1)), with_replica(2, Some(1))]),
            (Service::Unknown, None)
        );
        assert_eq!(decided(&[with_replica(0, expired()), with_replica(1, expired()), with_replica(2, None)]), unserved);
        // The node that opens it is known, whatever else is not.
        let opening = node_reply(1, vec![volume("opening", 4)], vec![replica(1, None, 7)]);
        assert_eq!(decided(&[silent(0), opening, with_replica(2, None)]), (Service::Unknown, None));
    }

    /// During a membership change, both sets must have no controller.
    #[test]
    fn both_sets_of_a_joint_configuration_count() {
        let of = |voters: &[u8]| {
            let mut set = Voters::NONE;
            voters.iter().for_each(|voter| set.insert(VoterId(*voter)));
            set
        };
        let joint = VoterConfig { voters: of(&[0, 1]), previous_voters: of(&[0, 1, 2]), ..VoterConfig::default() };
        // Two of the three old voters, and one of the two new ones: the other new one may serve alone.
        assert!(!is_open_quorum(&joint, of(&[1, 2])));
        assert!(is_open_quorum(&joint, of(&[0, 1])));
        assert!(!is_open_quorum(&VoterConfig::default(), of(&[0, 1, 2])));
    }

    /// A node that was cut off from the voters still reports serving the volume.
    #[test]
    fn a_server_that_voters_have_fenced_does_not_count() {
        let all = [node_reply(0, vec![volume("serving", 2)], vec![]), with_replica(1, None), silent(2)];
        assert_eq!(decided(&all), (Service::Unknown, None), "a voter has a register of epoch 3");
    }

    #[test]
    fn of_two_servers_the_one_with_the_higher_epoch_serves() {
        let all = [
            node_reply(0, vec![volume("serving", 4)], vec![]),
            node_reply(1, vec![volume("serving", 3)], vec![]),
            silent(2),
        ];
        assert_eq!(volumes_of(&all)[0].served_by.as_deref(), Some("a"));
        assert_eq!(
            states(&all),
            [ClusterVoterState::InSync, ClusterVoterState::OutOfSync, ClusterVoterState::Unavailable],
            "failed, and silent"
        );
        // Its node replies, and has the replica: it is about to rejoin.
        let all = [node_reply(0, vec![volume("serving", 4)], vec![]), silent(1), with_replica(2, Some(1))];
        assert_eq!(
            states(&all),
            [ClusterVoterState::InSync, ClusterVoterState::OutOfSync, ClusterVoterState::OutOfSync]
        );
    }

    #[test]
    fn without_a_server_states_follow_the_newest_known_vote() {
        use ClusterVoterState::{InSync, OutOfSync, Unavailable, Unknown};
        assert_eq!(states(&[silent(0), with_replica(1, None), with_replica(2, None)]), [Unknown, InSync, InSync]);
        assert_eq!(
            states(&[silent(0), silent(1), with_replica(2, None)]),
            [Unknown, Unknown, Unknown],
            "a later vote may exist"
        );
        // An older vote does not count beside a newer one.
        let newer = |register: &mut Replica| {
            if let Some(register) = &mut register.register {
                register.vote.sequence = 2;
                register.vote.in_sync = 0b101;
            }
        };
        let mut second = replica(2, None, 0);
        newer(&mut second);
        assert_eq!(
            states(&[silent(0), with_replica(1, None), node_reply(2, vec![], vec![second])]),
            [Unknown, OutOfSync, InSync]
        );
        // A replica that its node does not have is missing, unless the node may still find it; and so is one that it
        // cannot use.
        let mut waits = replica(1, None, 7);
        waits.state = ReplicaState::Waiting;
        let mut starts = node_reply(0, vec![], vec![]);
        assert_eq!(
            states(&[starts.clone(), node_reply(1, vec![], vec![waits.clone()]), with_replica(2, None)])[..2],
            [Unavailable, Unavailable]
        );
        if let Ok(report) = &mut starts.report {
            report.is_starting = true;
        }
        assert_eq!(states(&[starts, with_replica(1, None), with_replica(2, None)])[0], Unknown);
    }

    #[test]
    fn a_node_that_only_knows_the_volume_is_enough_to_list_it() {
        let all = [node_reply(0, vec![volume("detached", 0)], vec![]), silent(1), silent(2)];
        let listed = &volumes_of(&all)[0];
        assert_eq!((listed.name.as_str(), listed.service, listed.voters.len()), ("db", Service::Unknown, 3));
        assert_eq!(
            states(&all),
            [ClusterVoterState::Unavailable, ClusterVoterState::Unknown, ClusterVoterState::Unknown]
        );
    }
}
