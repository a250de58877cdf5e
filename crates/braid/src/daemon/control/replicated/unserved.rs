//! Volumes that this node has a voter of and that no node serves: looked for, and said in the status with the command that serves one here.
//!
//! A voter that hears of its controller is enough to know that all is well. Where one here hears of none for longer than a lease lasts, all
//! nodes are asked. A volume that a node has ended in order, by command, is left alone as long as that node answers.

use super::super::Control;
use super::super::replicas::Hears;
use super::super::tables::Tables;
use super::cluster::{Decision, Gathered, NodeSays, QUIET_MS};
use braid_advice::{self as advice, Case, Names, VolumeCase};
use braid_api::{Attention, Service};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(2);

/// What was found of a volume that no node serves, or perhaps none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unserved {
    case: VolumeCase,
    message: String,
}

/// What this node has found of volumes that others serve.
#[derive(Default)]
pub(super) struct Found {
    unserved: BTreeMap<Uuid, Unserved>,
    /// The node that served a volume last, with the controller under which it was heard of here.
    servers: BTreeMap<Uuid, (String, String)>,
}

/// A voter of this node, and what it knows of its controller.
struct Heard {
    volume: Uuid,
    name: String,
    controller: String,
    /// The controller has stopped in order.
    released: bool,
    /// The voter hears of none.
    quiet: bool,
}

impl Control {
    /// Looks for volumes that no node serves, for as long as the daemon goes on.
    pub async fn look_for_unserved(self: Arc<Self>) {
        while self.is_open().is_ok() {
            self.look_for_unserved_once().await;
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn look_for_unserved_once(&self) {
        let heard = self.heard_here();
        self.found().unserved.retain(|volume, _| heard.iter().any(|heard| heard.volume == *volume && heard.quiet));
        let is_known = |heard: &Heard| {
            let found = self.found();
            found.servers.get(&heard.volume).is_some_and(|(controller, _)| *controller == heard.controller)
        };
        if heard.iter().all(|heard| !heard.quiet && is_known(heard)) {
            return;
        }
        let says = self.ask_all_nodes().await;
        for heard in heard {
            self.note_found(&heard, &says);
        }
    }

    fn note_found(&self, heard: &Heard, says: &[NodeSays]) {
        let Some(gathered) = Gathered::of(&heard.volume.to_string(), says) else { return };
        let mut found = self.found();
        if let Some((node, _)) = gathered.server {
            if !heard.quiet {
                found.servers.insert(heard.volume, (heard.controller.clone(), node.to_owned()));
            }
            found.unserved.remove(&heard.volume);
            return;
        }
        if !heard.quiet {
            return;
        }
        let server = found.servers.get(&heard.volume).filter(|(controller, _)| *controller == heard.controller);
        let said = self.unserved_of(heard, &gathered.decide(), server.map(|(_, node)| node.as_str()), says);
        let before = match said.clone() {
            Some(said) => found.unserved.insert(heard.volume, said),
            None => found.unserved.remove(&heard.volume),
        };
        drop(found);
        if let (None, Some(said)) = (before, said) {
            let message = format!("volume {}: {}", heard.name, said.message);
            self.events().warning("volume_unserved", message, &[("volume", &heard.name)]);
        }
    }

    /// What is to be said of a volume of which a voter here hears nothing.
    fn unserved_of(
        &self,
        heard: &Heard,
        decision: &Decision,
        server: Option<&str>,
        says: &[NodeSays],
    ) -> Option<Unserved> {
        let case = decision.case?;
        let answers = |node: &str| says.iter().any(|says| says.node == node && says.said.is_ok());
        let all_answer = says.iter().all(|says| says.said.is_ok());
        // Somebody has wanted that.
        if heard.released && server.map_or(all_answer, answers) {
            return None;
        }
        let reason = decision.reason.clone().unwrap_or_default();
        let served = match server {
            Some(node) if !answers(node) => format!("node {node}, which served it, does not answer"),
            Some(node) => format!("node {node} served it last"),
            None => "which node served it last is not known here".to_owned(),
        };
        let message = match decision.service {
            Service::Nobody => format!("no node serves it: {served} ({reason})"),
            _ => format!("whether a node serves it is not known: {served} ({reason})"),
        };
        Some(Unserved { case, message })
    }

    /// The voters of this node whose volumes it neither serves nor opens.
    fn heard_here(&self) -> Vec<Heard> {
        let here: Vec<Uuid> = self.replicated.all().keys().copied().collect();
        let tables = self.read();
        let voters = tables.replicas.values().filter_map(|entry| {
            let Hears { register, ago } = entry.hears().filter(|_| !here.contains(&entry.saved.volume))?;
            Some(Heard {
                volume: entry.saved.volume,
                name: entry.saved.name.clone(),
                controller: register.controller.to_string(),
                released: register.released,
                quiet: is_quiet(ago),
            })
        });
        voters.collect()
    }

    /// What needs attention of volumes that no node serves, as far as that is known.
    pub(super) fn attention_of_unserved(&self, tables: &Tables) -> Vec<Attention> {
        let found = self.found();
        let said = found.unserved.iter().filter_map(|(volume, Unserved { case, message })| {
            let entry = tables.replicas.get(volume)?;
            // It is heard of again, or this node has begun to open it, since the last look.
            let is_heard = entry.hears().is_none_or(|hears| !is_quiet(hears.ago));
            if is_heard || self.replicated.all().contains_key(volume) {
                return None;
            }
            let name = &entry.saved.name;
            let advice = advice::of(Case::ReplicatedVolume(*case), Names::of(name));
            Some(advice.attention(format!("volume {name}"), message.clone()))
        });
        said.collect()
    }

    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.replicated.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a voter that heard of its controller so long ago keeps no lease for it.
fn is_quiet(ago: Option<Duration>) -> bool {
    ago.is_none_or(|ago| ago.as_millis() >= u128::from(QUIET_MS))
}
