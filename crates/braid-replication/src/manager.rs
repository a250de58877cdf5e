//! The manager of replication: what it consists of.

use crate::offered::OfferedSnapshot;
use crate::volumes::ReplicatedVolumes;
use braid_arrays::ArrayManager;
use braid_cluster::Nodes;
use braid_export::ExportTable;
use braid_exports::ExportManager;
use braid_inventory::Inventory;
use braid_pools::PoolManager;
use braid_ring::{RingHandle, RingMeta};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use uuid::Uuid;

/// The replicas of this node, and the replicated volumes that it serves: see the crate's documentation.
pub struct ReplicationManager {
    /// A reference to itself, for tasks that outlive a call.
    pub(crate) weak_self: Weak<ReplicationManager>,
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) ring: RingHandle,
    pub(crate) meta: RingMeta,
    pub(crate) exports: Arc<ExportManager>,
    pub(crate) arrays: Arc<ArrayManager>,
    pub(crate) pools: Arc<PoolManager>,
    /// The nodes of the cluster, this one included.
    pub(crate) nodes: Arc<Nodes>,
    /// The exports through which controllers of replicated volumes reach the replicas of this node.
    pub(crate) replica_exports: Arc<ExportTable>,
    /// Snapshots of replicas' data that are offered there, by their identities.
    pub(crate) offered_snapshots: Mutex<BTreeMap<Uuid, OfferedSnapshot>>,
    /// The task that accepts the controllers' connections.
    pub(crate) replica_accept_task: Mutex<Option<tokio::task::AbortHandle>>,
    /// Replicated volumes that this node serves.
    pub(crate) replicated: ReplicatedVolumes,
}

impl ReplicationManager {
    /// Creates the manager.
    pub fn new(
        inventory: &Arc<Inventory>,
        ring: RingHandle,
        exports: &Arc<ExportManager>,
        arrays: &Arc<ArrayManager>,
        pools: &Arc<PoolManager>,
        nodes: &Arc<Nodes>,
    ) -> Arc<ReplicationManager> {
        Arc::new_cyclic(|me| ReplicationManager {
            weak_self: Weak::clone(me),
            inventory: Arc::clone(inventory),
            meta: ring.meta(),
            ring,
            exports: Arc::clone(exports),
            arrays: Arc::clone(arrays),
            pools: Arc::clone(pools),
            nodes: Arc::clone(nodes),
            replica_exports: Arc::default(),
            offered_snapshots: Mutex::default(),
            replica_accept_task: Mutex::default(),
            replicated: ReplicatedVolumes::default(),
        })
    }
}
