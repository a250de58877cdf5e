//! Volumes that this node has a voter of and that no node serves: detected, and reported in the status with the command
//! that serves one here.
//!
//! A voter with a live controller is enough to know that the volume is served. If a voter on this node has had no
//! request of its controller for longer than a lease, all nodes are asked. A volume that the user has detached from a
//! node is not reported as long as that node replies.

use crate::ReplicationManager;
use crate::replicated::cluster::{CONTROLLER_SILENT_MS, NodeReply, ServiceDecision, VolumeReports};
use crate::volumes::{FoundVolumes, Unserved};
use braid_advice::{self as advice, Case, ObjectNames};
use braid_api::{Attention, Service};
use braid_inventory::{KnownController, Tables};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A voter of this node, and what it knows of its controller.
struct LocalVoter {
    volume: Uuid,
    name: String,
    controller: String,
    /// The controller has released the volume.
    released: bool,
    /// The voter has no live controller.
    is_silent: bool,
}

impl ReplicationManager {
    /// Checks for volumes that no node serves, for as long as the daemon runs.
    pub async fn watch_unserved(self: Arc<Self>) {
        while self.inventory.refuse_while_stopping_or_upgrading().is_ok() {
            self.look_for_unserved_once().await;
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    async fn look_for_unserved_once(&self) {
        let voters = self.local_voters();
        self.found().unserved.retain(|volume, _| voters.iter().any(|voter| voter.volume == *volume && voter.is_silent));
        let is_known = |voter: &LocalVoter| {
            let found = self.found();
            found.servers.get(&voter.volume).is_some_and(|(controller, _)| *controller == voter.controller)
        };
        if voters.iter().all(|voter| !voter.is_silent && is_known(voter)) {
            return;
        }
        let replies = self.query_all_nodes().await;
        for voter in voters {
            self.update_found(&voter, &replies);
        }
    }

    fn update_found(&self, voter: &LocalVoter, replies: &[NodeReply]) {
        let Some(reports) = VolumeReports::of(&voter.volume.to_string(), replies) else { return };
        let mut found = self.found();
        if let Some((node, _)) = reports.server {
            if !voter.is_silent {
                found.servers.insert(voter.volume, (voter.controller.clone(), node.to_owned()));
            }
            found.unserved.remove(&voter.volume);
            return;
        }
        if !voter.is_silent {
            return;
        }
        let server = found.servers.get(&voter.volume).filter(|(controller, _)| *controller == voter.controller);
        let finding = self.unserved_of(voter, &reports.decide(), server.map(|(_, node)| node.as_str()), replies);
        let before = match finding.clone() {
            Some(finding) => found.unserved.insert(voter.volume, finding),
            None => found.unserved.remove(&voter.volume),
        };
        drop(found);
        if let (None, Some(finding)) = (before, finding) {
            let message = format!("volume {}: {}", voter.name, finding.message);
            self.inventory.events().warning("volume_unserved", message, &[("volume", &voter.name)]);
        }
    }

    /// Returns what to report about a volume whose voter here has no live controller.
    fn unserved_of(
        &self,
        voter: &LocalVoter,
        decision: &ServiceDecision,
        server: Option<&str>,
        replies: &[NodeReply],
    ) -> Option<Unserved> {
        let case = decision.case?;
        let answers = |node: &str| replies.iter().any(|reply| reply.node == node && reply.report.is_ok());
        let all_answer = replies.iter().all(|reply| reply.report.is_ok());
        // The user has detached it.
        if voter.released && server.map_or(all_answer, answers) {
            return None;
        }
        let reason = decision.reason.clone().unwrap_or_default();
        let served = match server {
            Some(node) if !answers(node) => format!("node {node}, which served it, does not answer"),
            Some(node) => format!("node {node} served it last"),
            None => "which node served it last is not known here".to_owned(),
        };
        let message = match decision.service {
            Service::Unserved => format!("no node serves it: {served} ({reason})"),
            _ => format!("it is unknown whether a node serves it: {served} ({reason})"),
        };
        Some(Unserved { case, message })
    }

    /// Returns the voters of this node whose volumes it neither serves nor opens.
    fn local_voters(&self) -> Vec<LocalVoter> {
        let here: Vec<Uuid> = self.replicated.all().keys().copied().collect();
        let tables = self.inventory.read();
        let voters = tables.replicas.values().filter_map(|entry| {
            let KnownController { register, silent_for } =
                entry.known_controller().filter(|_| !here.contains(&entry.saved.volume))?;
            Some(LocalVoter {
                volume: entry.saved.volume,
                name: entry.saved.name.clone(),
                controller: register.controller.to_string(),
                released: register.released,
                is_silent: is_controller_silent(silent_for),
            })
        });
        voters.collect()
    }

    /// Returns what needs attention about volumes that no node serves, as far as that is known.
    pub(crate) fn attention_of_unserved(&self, tables: &Tables) -> Vec<Attention> {
        let found = self.found();
        let findings = found.unserved.iter().filter_map(|(volume, Unserved { case, message })| {
            let entry = tables.replicas.get(volume)?;
            // Its controller is alive again, or this node has begun to open it, since the last check.
            let is_alive = entry.known_controller().is_none_or(|known| !is_controller_silent(known.silent_for));
            if is_alive || self.replicated.all().contains_key(volume) {
                return None;
            }
            let name = &entry.saved.name;
            let advice = advice::of(Case::ReplicatedVolume(*case), ObjectNames::of(name));
            Some(advice.attention(format!("volume {name}"), message.clone()))
        });
        findings.collect()
    }

    fn found(&self) -> std::sync::MutexGuard<'_, FoundVolumes> {
        self.replicated.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a voter that last replied to its controller this long ago contributes to no lease.
fn is_controller_silent(silent_for: Option<Duration>) -> bool {
    silent_for.is_none_or(|silent_for| silent_for.as_millis() >= u128::from(CONTROLLER_SILENT_MS))
}
