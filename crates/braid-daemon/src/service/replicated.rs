//! Operations on replicated volumes.

use crate::Daemon;
use braid_api::{
    AddVoter, ClusterVolumeList, CreateReplicated, ErrorDetail, ForcedOpening, ReplicatedList, ReplicatedVolume,
};
use braid_server::{BoxFuture, ReplicationService, Reply};
use std::sync::Arc;

impl ReplicationService for Daemon {
    fn replicated_volumes(&self) -> ReplicatedList {
        self.replication.replicated_volumes()
    }

    fn create_replicated(self: Arc<Self>, request: CreateReplicated) -> Reply<ReplicatedVolume> {
        Box::pin(async move { self.replication.create_replicated(request).await })
    }

    fn replicated_volume(&self, name: &str) -> Result<ReplicatedVolume, ErrorDetail> {
        self.replication.replicated_volume(name)
    }

    fn delete_replicated(self: Arc<Self>, volume: String, force: bool) -> Reply<ReplicatedVolume> {
        Box::pin(async move { self.replication.delete_replicated(&volume, force).await })
    }

    fn attach_replicated(self: Arc<Self>, volume: String) -> Reply<ReplicatedVolume> {
        Box::pin(async move { self.replication.attach_replicated(&volume).await })
    }

    fn force_attach(self: Arc<Self>, volume: String, without: Vec<String>) -> Reply<ReplicatedVolume> {
        Box::pin(async move { self.replication.force_attach(&volume, &without).await })
    }

    fn forced_opening(self: Arc<Self>, volume: String) -> Reply<ForcedOpening> {
        Box::pin(async move { self.replication.forced_opening(&volume).await })
    }

    fn detach_replicated(self: Arc<Self>, volume: String, force: bool) -> Reply<ReplicatedVolume> {
        Box::pin(async move { self.replication.detach_replicated(&volume, force).await })
    }

    fn rollback_replicated(self: Arc<Self>, volume: String, snapshot: String) -> Reply<ReplicatedVolume> {
        Box::pin(async move { self.replication.roll_back_replicated(&volume, &snapshot).await })
    }

    fn add_voter(self: Arc<Self>, volume: String, request: AddVoter) -> Reply<ReplicatedVolume> {
        Box::pin(async move { self.replication.add_voter(&volume, &request).await })
    }

    fn remove_voter(self: Arc<Self>, volume: String, node: String) -> Reply<ReplicatedVolume> {
        Box::pin(async move { self.replication.remove_voter(&volume, &node).await })
    }

    fn rebuild_voter(self: Arc<Self>, volume: String, node: String, pool: Option<String>) -> Reply<ReplicatedVolume> {
        Box::pin(async move { self.replication.rebuild_voter(&volume, &node, pool.as_deref()).await })
    }

    fn cluster_volumes(self: Arc<Self>) -> BoxFuture<ClusterVolumeList> {
        Box::pin(async move { self.replication.cluster_volumes().await })
    }
}
