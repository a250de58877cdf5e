//! The managers of the daemon: created in order from the lowest to the highest, and wired where a lower one needs a
//! higher one.

use crate::upgrade::{PreviousDaemon, Upgrades};
use braid_api::{ErrorDetail, Job, ReplicatedList, SetJob, Snapshot, SnapshotConsistency, SnapshotList};
use braid_arrays::{ArrayManager, ArrayUsers, ScanResults, Votes};
use braid_cluster::Nodes;
use braid_engine::DeviceId;
use braid_exports::{BoxFuture, Encryption, ExportManager, ExportSource, ListeningGuard, VolumeProvider};
use braid_format::pool::OwnerKind;
use braid_inventory::state::StateFolder;
use braid_inventory::{ActiveArray, Inventory, SavedReplicated};
use braid_nbd::EventQueue;
use braid_pools::{PoolManager, ReplicationProvider};
use braid_replication::ReplicationManager;
use braid_ring::kept::InheritedFds;
use braid_ring::{Disk, DiskSpec, RingHandle};
use braid_server::RefusedClients;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use uuid::Uuid;

/// The control plane of one daemon: its managers, from the lowest to the highest. A manager calls those below it; what it
/// needs of those above it is a trait that `Above` implements.
pub struct Daemon {
    /// What the daemon knows: tables, events, and the state file.
    pub inventory: Arc<Inventory>,
    /// The handle of the shards.
    pub ring: RingHandle,
    /// The manager of exports.
    pub exports: Arc<ExportManager>,
    /// The manager of arrays and disks.
    pub arrays: Arc<ArrayManager>,
    /// The manager of pools, volumes and snapshots.
    pub pools: Arc<PoolManager>,
    /// The manager of replicas and replicated volumes.
    pub replication: Arc<ReplicationManager>,
    /// The nodes of the cluster, this one included.
    pub nodes: Arc<Nodes>,
    /// The upgrade of the daemon to another build.
    pub upgrades: Upgrades,
    /// The API's socket.
    pub(crate) socket: PathBuf,
    /// The network address of the API, and its counter of refused clients.
    pub(crate) network: OnceLock<(SocketAddr, Arc<RefusedClients>)>,
    /// When the certificate of the API on the network expires, in seconds of Unix time; 0 if unknown.
    certificate_expiry_unix_s: AtomicI64,
    /// When the certificate of the exports expires, in seconds of Unix time; 0 if unknown.
    nbd_certificate_expiry_unix_s: AtomicI64,
}

/// What a daemon is created with.
pub struct DaemonParts {
    /// The handle of the shards.
    pub ring: RingHandle,
    /// The state folder.
    pub state: StateFolder,
    /// The API's socket.
    pub socket: PathBuf,
    /// The folder for files that outlive the process but no reboot.
    pub shared_memory: PathBuf,
    /// Events of clients, from the shards.
    pub clients: Arc<EventQueue>,
    /// When the daemon started.
    pub started: Instant,
    /// The TLS settings of exports.
    pub encryption: Encryption,
    /// Descriptors that the previous daemon has left.
    pub inherited: InheritedFds,
    /// The previous daemon, if this one follows it by an upgrade.
    pub previous: Option<PreviousDaemon>,
}

impl Daemon {
    /// Creates a control plane, before any disk is scanned.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn new(parts: DaemonParts) -> Result<Arc<Daemon>, ErrorDetail> {
        let DaemonParts { ring, state, socket, shared_memory, clients, started, encryption, inherited, previous } =
            parts;
        let inventory = Arc::new(Inventory::open(state, started)?);
        let nodes = Nodes::open(inventory.state().path())?;
        let (files, sockets) = braid_exports::split_inherited(inherited);
        let upgrades = Upgrades::new(previous, sockets, Arc::clone(inventory.closed()));
        let sockets = Arc::clone(upgrades.sockets());
        let exports = ExportManager::new(Arc::clone(&inventory), ring.clone(), sockets, files, clients, encryption);
        let arrays = ArrayManager::new(Arc::clone(&inventory), ring.clone(), Arc::clone(&exports));
        let pools = PoolManager::new(&inventory, ring.clone(), &exports, &arrays, shared_memory);
        let replication = ReplicationManager::new(&inventory, ring.clone(), &exports, &arrays, &pools, &nodes);
        let above = Arc::new(Above { pools: Arc::clone(&pools), replication: Arc::clone(&replication) });
        exports.set_provider(Arc::clone(&above) as _);
        arrays.set_users(Arc::clone(&above) as _);
        pools.set_provider(above);
        Ok(Arc::new(Daemon {
            inventory,
            ring,
            exports,
            arrays,
            pools,
            replication,
            nodes,
            upgrades,
            socket,
            network: OnceLock::new(),
            certificate_expiry_unix_s: AtomicI64::new(0),
            nbd_certificate_expiry_unix_s: AtomicI64::new(0),
        }))
    }

    /// Records the network address of the API.
    pub fn on_network(&self, address: SocketAddr, refusals: Arc<RefusedClients>) {
        // Set once, at the start.
        let _ = self.network.set((address, refusals));
    }

    /// Returns how many network clients the API has refused; none if it is not on the network.
    pub fn network_refusals(&self) -> Option<u64> {
        self.network.get().map(|(_, refusals)| refusals.count())
    }

    /// Returns when the certificate of the API on the network expires, in seconds of Unix time.
    pub fn certificate_expiry_unix_s(&self) -> Option<i64> {
        Some(self.certificate_expiry_unix_s.load(Ordering::Relaxed)).filter(|expiry| *expiry != 0)
    }

    /// Sets when the certificate of the API expires; 0 if unknown.
    pub fn set_certificate_expiry(&self, unix_s: i64) {
        self.certificate_expiry_unix_s.store(unix_s, Ordering::Relaxed);
    }

    /// Returns when the certificate of the exports expires, in seconds of Unix time.
    pub fn nbd_certificate_expiry_unix_s(&self) -> Option<i64> {
        Some(self.nbd_certificate_expiry_unix_s.load(Ordering::Relaxed)).filter(|expiry| *expiry != 0)
    }

    /// Sets when the certificate of the exports expires; 0 if unknown.
    pub fn set_nbd_certificate_expiry(&self, unix_s: i64) {
        self.nbd_certificate_expiry_unix_s.store(unix_s, Ordering::Relaxed);
    }
}

/// The upper managers, as the lower ones see them. The references form a cycle, which lives as long as the process.
struct Above {
    pools: Arc<PoolManager>,
    replication: Arc<ReplicationManager>,
}

impl VolumeProvider for Above {
    fn find_owner<'a>(
        &'a self,
        text: &'a str,
        kind: OwnerKind,
    ) -> BoxFuture<'a, Result<(Uuid, Uuid, String), ErrorDetail>> {
        Box::pin(self.pools.find_owner(text, kind))
    }

    fn serve_volume(&self, pool: Uuid, volume: Uuid) -> BoxFuture<'_, Result<Option<ExportSource>, ErrorDetail>> {
        Box::pin(self.pools.serve_volume(pool, volume))
    }

    fn release_volume<'a>(&'a self, listening: &'a ListeningGuard<'a>, pool: Uuid, volume: Uuid) -> BoxFuture<'a, ()> {
        Box::pin(self.pools.release_volume(listening, pool, volume))
    }

    fn refuse_export_under_label(&self, volume: Uuid, device: DeviceId) -> BoxFuture<'_, Result<(), ErrorDetail>> {
        Box::pin(self.pools.refuse_export_under_label(volume, device))
    }

    fn find_replicated_in_cluster<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Option<(Uuid, String)>> {
        Box::pin(async move {
            let volume = self.replication.find_in_cluster(text).await.ok()?;
            (!volume.creating).then_some((volume.uuid, volume.name))
        })
    }
}

impl ArrayUsers for Above {
    fn await_pool_of<'a>(&'a self, spec: &'a DiskSpec) -> BoxFuture<'a, Result<(), ErrorDetail>> {
        Box::pin(self.pools.await_pool_of(spec))
    }

    fn evaluate_pools<'a>(&'a self, found: &'a mut ScanResults) -> BoxFuture<'a, ()> {
        Box::pin(self.pools.evaluate_pools(found))
    }

    fn open_volume<'a>(&'a self, spec: &'a DiskSpec) -> BoxFuture<'a, Result<(Disk, Uuid), ErrorDetail>> {
        Box::pin(self.pools.open_volume(spec))
    }

    fn close_volume(&self, volume: Uuid) -> BoxFuture<'_, ()> {
        Box::pin(self.pools.close_volume(volume))
    }

    fn pool_jobs(&self) -> Vec<Job> {
        self.pools.pool_jobs()
    }

    fn pool_job(&self, name: &str) -> Option<Job> {
        self.pools.pool_job(name)
    }

    fn set_pool_job<'a>(&'a self, name: &'a str, request: &'a SetJob) -> BoxFuture<'a, Option<Job>> {
        Box::pin(self.pools.set_pool_job(name, request))
    }

    fn cancel_pool_job<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Result<Job, ErrorDetail>>> {
        Box::pin(self.pools.cancel_pool_job(name))
    }

    fn open_witnesses(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.replication.open_witnesses())
    }

    fn votes_of(&self, array: Uuid) -> Option<Arc<dyn Votes>> {
        self.replication.votes_of(array)
    }

    fn local_replica(&self, array: Uuid) -> Option<u16> {
        self.replication.local_replica(array)
    }

    fn replica_reports(&self, volume: &SavedReplicated, active: &ActiveArray) -> Vec<String> {
        self.replication.replica_reports(volume, active)
    }
}

impl ReplicationProvider for Above {
    fn create_replicated_snapshots<'a>(
        &'a self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<SnapshotList, ErrorDetail>> {
        Box::pin(self.replication.create_replicated_snapshots(names))
    }

    fn replicated_snapshots<'a>(&'a self, volume: &'a str) -> BoxFuture<'a, Result<SnapshotList, ErrorDetail>> {
        Box::pin(self.replication.replicated_snapshots(volume))
    }

    fn replicated_snapshot<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<Snapshot, ErrorDetail>> {
        Box::pin(self.replication.replicated_snapshot(text))
    }

    fn rename_replicated_snapshot<'a>(
        &'a self,
        text: &'a str,
        new: &'a str,
    ) -> BoxFuture<'a, Result<Snapshot, ErrorDetail>> {
        Box::pin(self.replication.rename_replicated_snapshot(text, new))
    }

    fn change_replicated_snapshot<'a>(
        &'a self,
        text: &'a str,
        consistency: SnapshotConsistency,
    ) -> BoxFuture<'a, Result<Snapshot, ErrorDetail>> {
        Box::pin(self.replication.change_replicated_snapshot(text, consistency))
    }

    fn delete_replicated_snapshot<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<Snapshot, ErrorDetail>> {
        Box::pin(self.replication.delete_replicated_snapshot(text))
    }

    fn open_replicas_of(&self, pool: Uuid) -> BoxFuture<'_, ()> {
        Box::pin(self.replication.open_replicas_of(pool))
    }

    fn replicated_volumes(&self) -> ReplicatedList {
        self.replication.replicated_volumes()
    }
}
