//! Replicated volumes, on the side of the node that serves them: their controller.
//!
//! Such a volume is a mirror whose members are replicas: exports of other nodes (`reach`). Each of these nodes also has
//! a voter, and the votes say which replicas are in sync (`voters` of the crate). The mirror itself is an array like
//! any other, except that it has each change of its replicas in sync voted for. `attach` attaches a volume, `forced`
//! with too few of its voters, and `excluded` follows up the voters that were excluded then. `serve` opens the volume,
//! and `reconcile` runs while it is served; `rejoin` and `copy` bring replicas back. `create` makes the volume,
//! `incomplete` removes one whose creation was interrupted, `deleted` forgets one that another node has deleted, `view`
//! shows it. `membership` adds and removes voters, and `locations` keeps track of their nodes. `findings` says what is
//! wrong with it and what to do, `cluster` asks all nodes which of them serves each volume, and `unserved` reports
//! those that no node serves.
//!
//! `snapshots` takes the volume's snapshots on all replicas (`replica_requests`), and `settle` decides about those that
//! some replicas have; `rollback` rolls the volume back to one, and `clone` makes another volume of one.

mod array;
mod attach;
mod clone;
mod cluster;
mod copy;
mod create;
mod deleted;
mod excluded;
mod findings;
mod forced;
mod incomplete;
mod locations;
mod membership;
mod outcome;
mod reach;
mod reconcile;
mod rejoin;
mod replica_requests;
mod rollback;
mod serve;
mod settle;
mod snapshots;
mod sources;
mod unserved;
mod view;

use crate::ReplicationManager;
use crate::attached::ServedVolume;
use crate::voters::VolumeVoters;
use braid_api::{ErrorDetail, Kind};
use braid_arrays::Votes;
use std::sync::Arc;
use uuid::Uuid;

impl ReplicationManager {
    /// Returns the votes of an array whose members are replicas, as long as it is served or about to be.
    pub fn votes_of(&self, array: Uuid) -> Option<Arc<dyn Votes>> {
        self.voters_of(array).map(|voters| voters as _)
    }

    /// Returns the voters of such an array.
    pub(crate) fn voters_of(&self, array: Uuid) -> Option<Arc<VolumeVoters>> {
        self.replicated.all().get(&array)?.voters()
    }

    /// Returns the member of an array that is a replica on this node.
    pub fn local_replica(&self, array: Uuid) -> Option<u16> {
        let own = self.nodes.own_name()?;
        let tables = self.inventory.read();
        let volume = tables.replicated.get(&array)?;
        let (local, _) = volume.voting().find(|(_, voter)| voter.node == own && voter.pool.is_some())?;
        Some(u16::from(local))
    }

    /// Returns a volume for an operation that only its serving node can do.
    pub(crate) fn serving(&self, name: &str) -> Result<ServedVolume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let volume = self.inventory.find_replicated(name)?;
        let attached = self.replicated.all().get(&volume.uuid).cloned();
        let serves = self.inventory.read().arrays.get(&volume.uuid).is_some_and(|entry| entry.active().is_some());
        let voters = attached.as_ref().and_then(|attached| attached.voters());
        match (attached, voters) {
            (Some(attached), Some(voters)) if serves => Ok(ServedVolume { volume, attached, voters }),
            _ => Err(ErrorDetail::new(Kind::Inactive, format!("volume {name} is not served by this node"))
                .with("volume", name)
                .remedy(format!("do it on the node that serves it, or braid volume attach {name} here first"))),
        }
    }
}
