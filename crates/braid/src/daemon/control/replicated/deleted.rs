//! Volumes that another node has deleted: whoever knows of one, and does not serve it, asks the nodes of its voters now and then.
//!
//! A node that was away while a volume was deleted, or that served it long ago, would name it for good otherwise. Nothing of anybody's data is
//! removed here: only where no node at all has anything of it is it forgotten. Its voters may have moved since this node has heard of them.

use super::super::Control;
use super::saved::SavedReplicated;
use braid_api::ReplicaList;
use braid_engine::replica::Quorums;
use hyper::Method;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(20);

/// What the nodes that answer have, by the identity of its volume; none of those that do not.
type Had = BTreeMap<String, Option<Vec<String>>>;

impl Control {
    /// Looks after volumes that were deleted, for as long as the daemon goes on.
    pub async fn forget_deleted(self: Arc<Self>) {
        while self.is_open().is_ok() {
            let idle = self.not_served();
            let had = self.had_by_nodes(&idle).await;
            for volume in idle {
                let gone = gone_of(&volume, &had);
                if !gone.is_empty() && is_somewhere(&volume, &had) {
                    // Perhaps others vote by now: then they are looked at next time.
                    self.ask_for_places(volume.uuid).await;
                }
                if gone.len() == volume.seated().count() && !is_somewhere(&volume, &had) {
                    self.forget_one(&volume).await;
                } else {
                    self.note_gone(volume.uuid, gone);
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Known here, and not served by this node now.
    fn not_served(&self) -> Vec<SavedReplicated> {
        let tables = self.read();
        let is_idle = |volume: &&SavedReplicated| {
            let serves = tables.arrays.get(&volume.uuid).is_some_and(|entry| entry.active().is_some());
            !serves && !volume.making && !tables.claimed_names.contains(&volume.name)
        };
        tables.replicated.values().filter(is_idle).cloned().collect()
    }

    async fn had_by_nodes(&self, volumes: &[SavedReplicated]) -> Had {
        let mut had = Had::new();
        if volumes.is_empty() {
            return had;
        }
        let of_voters = volumes.iter().flat_map(|volume| volume.seated()).map(|(_, voter)| voter.node.clone());
        for node in self.nodes().members().into_iter().map(|member| member.name).chain(of_voters) {
            if had.contains_key(&node) {
                continue;
            }
            let answer = self.nodes().call(&node, Method::GET, "/v1/replicas", None).await.ok();
            let list = answer.and_then(|answer| serde_json::from_value::<ReplicaList>(answer).ok());
            let volumes = list.map(|list| list.replicas.into_iter().map(|replica| replica.volume).collect());
            had.insert(node, volumes);
        }
        had
    }

    /// Forgets a volume of which nobody has anything: asked once more, while nobody here attaches or makes anything.
    async fn forget_one(self: &Arc<Self>, volume: &SavedReplicated) {
        let _one_at_a_time = self.replicated.changing.lock().await;
        let still = self.not_served().into_iter().find(|now| now.uuid == volume.uuid && now.voters == volume.voters);
        let Some(volume) = still else { return };
        let had = self.had_by_nodes(std::slice::from_ref(&volume)).await;
        if gone_of(&volume, &had).len() < volume.seated().count() || is_somewhere(&volume, &had) {
            return;
        }
        self.end_replicated(volume.uuid).await;
        self.remove_exports_of(volume.uuid).await;
        self.forget_carried(volume.uuid, None).await;
        self.write().replicated.remove(&volume.uuid);
        self.note_gone(volume.uuid, Vec::new());
        self.save_or_warn();
        let name = &volume.name;
        let message = format!("volume {name} was deleted by another node: none of its nodes has anything of it");
        self.events().info("volume_forgotten", message, &[("volume", name)]);
    }

    fn note_gone(&self, volume: Uuid, gone: Vec<u8>) {
        let mut all = self.replicated.gone.lock().unwrap_or_else(PoisonError::into_inner);
        match gone.is_empty() {
            true => drop(all.remove(&volume)),
            false => drop(all.insert(volume, gone)),
        }
    }

    /// What is to be said of a volume of which voters are gone, and whether too few of them are left to open it.
    pub(super) fn told_of_gone(&self, volume: &SavedReplicated) -> Option<(bool, String)> {
        let all = self.replicated.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = all.get(&volume.uuid)?;
        let names: Vec<String> = gone.iter().map(|number| volume.voter_name(*number)).collect();
        let (names, voters) = (names.join(", "), volume.seated().count());
        let left = voters.saturating_sub(gone.len());
        Some(match left < Quorums::of(voters).open {
            true => (
                true,
                format!("{names} have nothing of it any more: it was deleted, and what is left of it cannot be opened"),
            ),
            false => (false, format!("{names} have nothing of it any more: what was there was deleted")),
        })
    }
}

/// Which of its voters are not there any more, by the word of their nodes.
fn gone_of(volume: &SavedReplicated, had: &Had) -> Vec<u8> {
    let uuid = volume.uuid.to_string();
    let is_gone = |node: &String| matches!(had.get(node), Some(Some(volumes)) if !volumes.contains(&uuid));
    volume.seated().filter(|(_, voter)| is_gone(&voter.node)).map(|(number, _)| number).collect()
}

/// Whether any node has something of it, or does not say.
fn is_somewhere(volume: &SavedReplicated, had: &Had) -> bool {
    let uuid = volume.uuid.to_string();
    had.values().any(|volumes| volumes.as_ref().is_none_or(|volumes| volumes.contains(&uuid)))
}
