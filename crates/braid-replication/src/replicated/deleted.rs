//! Volumes that another node has deleted: a node that knows such a volume, and does not serve it, periodically asks the
//! nodes of its voters.
//!
//! Otherwise a node that was unreachable while a volume was deleted, or that served it long ago, would list it for
//! ever. No data is removed here: the volume is forgotten only if no node at all has anything of it. Its voters may
//! have moved since this node last learned their locations.

use crate::ReplicationManager;
use braid_api::ReplicaList;
use braid_engine::replica::Quorums;
use braid_inventory::SavedReplicated;
use hyper::Method;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);

/// By node: the volumes of its replicas; `None` for a node without a reply.
type ReplicasOfNodes = BTreeMap<String, Option<Vec<String>>>;

impl ReplicationManager {
    /// Checks for deleted volumes, for as long as the daemon runs.
    pub async fn watch_deleted(self: Arc<Self>) {
        while self.inventory.refuse_while_stopping_or_upgrading().is_ok() {
            let idle = self.unserved_volumes();
            let by_node = self.query_replicas(&idle).await;
            for volume in idle {
                let missing = missing_of(&volume, &by_node);
                if !missing.is_empty() && exists_somewhere(&volume, &by_node) {
                    // Perhaps the membership has changed: the new voters are checked next time.
                    self.query_locations(volume.uuid).await;
                }
                if missing.len() == volume.voting().count() && !exists_somewhere(&volume, &by_node) {
                    self.forget_one(&volume).await;
                } else {
                    self.set_missing(volume.uuid, missing);
                }
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Returns the volumes that this node knows and does not serve now.
    fn unserved_volumes(&self) -> Vec<SavedReplicated> {
        let tables = self.inventory.read();
        let is_idle = |volume: &&SavedReplicated| {
            let serves = tables.arrays.get(&volume.uuid).is_some_and(|entry| entry.active().is_some());
            !serves && !volume.creating && !tables.claimed_names.contains(&volume.name)
        };
        tables.replicated.values().filter(is_idle).cloned().collect()
    }

    async fn query_replicas(&self, volumes: &[SavedReplicated]) -> ReplicasOfNodes {
        let mut by_node = ReplicasOfNodes::new();
        if volumes.is_empty() {
            return by_node;
        }
        let of_voters = volumes.iter().flat_map(|volume| volume.voting()).map(|(_, voter)| voter.node.clone());
        for node in self.nodes.members().into_iter().map(|member| member.name).chain(of_voters) {
            if by_node.contains_key(&node) {
                continue;
            }
            let reply = self.nodes.call(&node, Method::GET, "/v1/replicas", None).await.ok();
            let list = reply.and_then(|reply| serde_json::from_value::<ReplicaList>(reply).ok());
            let volumes = list.map(|list| list.replicas.into_iter().map(|replica| replica.volume).collect());
            by_node.insert(node, volumes);
        }
        by_node
    }

    /// Forgets a volume of which no node has anything. The nodes are asked once more under the lock, so that no volume
    /// is attached or created here in the meantime.
    async fn forget_one(self: &Arc<Self>, volume: &SavedReplicated) {
        let _one_at_a_time = self.replicated.change_lock.lock().await;
        let still =
            self.unserved_volumes().into_iter().find(|now| now.uuid == volume.uuid && now.voters == volume.voters);
        let Some(volume) = still else { return };
        let by_node = self.query_replicas(std::slice::from_ref(&volume)).await;
        if missing_of(&volume, &by_node).len() < volume.voting().count() || exists_somewhere(&volume, &by_node) {
            return;
        }
        self.end_replicated(volume.uuid).await;
        self.exports.remove_exports_of(volume.uuid).await;
        self.pools.forget_pools_on_replicated(volume.uuid, None).await;
        self.inventory.write().replicated.remove(&volume.uuid);
        self.set_missing(volume.uuid, Vec::new());
        self.inventory.save_or_warn();
        let name = &volume.name;
        let message = format!("volume {name} was deleted by another node: none of its nodes has anything of it");
        self.inventory.events().info("volume_forgotten", message, &[("volume", name)]);
    }

    fn set_missing(&self, volume: Uuid, missing: Vec<u8>) {
        let mut all = self.replicated.missing_voters.lock().unwrap_or_else(PoisonError::into_inner);
        match missing.is_empty() {
            true => drop(all.remove(&volume)),
            false => drop(all.insert(volume, missing)),
        }
    }

    /// Returns what to report about a volume with missing voters, and whether too few are left to open it.
    pub(crate) fn missing_report(&self, volume: &SavedReplicated) -> Option<(bool, String)> {
        let all = self.replicated.missing_voters.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = all.get(&volume.uuid)?;
        let names: Vec<String> = missing.iter().map(|number| volume.voter_name(*number)).collect();
        let (names, voters) = (names.join(", "), volume.voting().count());
        let left = voters.saturating_sub(missing.len());
        Some(match left < Quorums::of(voters).open {
            true => {
                (true, format!("{names} have no data of it any more: it was deleted, and the rest cannot be opened"))
            }
            false => (false, format!("{names} have no data of it any more: it was deleted there")),
        })
    }
}

/// Returns the voters that their nodes do not have any more.
fn missing_of(volume: &SavedReplicated, by_node: &ReplicasOfNodes) -> Vec<u8> {
    let uuid = volume.uuid.to_string();
    let is_missing = |node: &String| matches!(by_node.get(node), Some(Some(volumes)) if !volumes.contains(&uuid));
    volume.voting().filter(|(_, voter)| is_missing(&voter.node)).map(|(number, _)| number).collect()
}

/// Returns whether any node has something of the volume, or did not reply.
fn exists_somewhere(volume: &SavedReplicated, by_node: &ReplicasOfNodes) -> bool {
    let uuid = volume.uuid.to_string();
    by_node.values().any(|volumes| volumes.as_ref().is_none_or(|volumes| volumes.contains(&uuid)))
}
