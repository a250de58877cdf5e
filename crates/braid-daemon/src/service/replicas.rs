//! Operations on replicas and witnesses of this node.

use crate::Daemon;
use braid_api::{
    ChangeReplica, CreateReplica, ErrorDetail, Replica, ReplicaList, ReplicaReply, ReplicaRequest, ReplicaSnapshotList,
};
use braid_replication::REQUEST_MAX;
use braid_server::{ReplicaService, Reply};
use std::sync::Arc;
use std::time::Duration;

impl ReplicaService for Daemon {
    fn replicas(&self) -> ReplicaList {
        self.replication.replicas()
    }

    fn create_replica(self: Arc<Self>, request: CreateReplica) -> Reply<Replica> {
        Box::pin(async move { self.replication.create_replica(request).await })
    }

    fn replica(&self, name: &str) -> Result<Replica, ErrorDetail> {
        self.replication.replica(name)
    }

    fn delete_replica(self: Arc<Self>, volume: String, force: bool, since: Option<u64>) -> Reply<Replica> {
        Box::pin(async move { self.replication.delete_replica(&volume, force, since).await })
    }

    fn request_voter(
        self: Arc<Self>,
        volume: String,
        request: ReplicaRequest,
        wait: Option<Duration>,
    ) -> Reply<ReplicaReply> {
        Box::pin(async move { self.replication.request_voter(&volume, request, wait.unwrap_or(REQUEST_MAX)).await })
    }

    fn replica_snapshots(self: Arc<Self>, volume: String) -> Reply<ReplicaSnapshotList> {
        Box::pin(async move { self.replication.replica_snapshots(&volume).await })
    }

    fn change_replica(self: Arc<Self>, volume: String, request: ChangeReplica) -> Reply<Replica> {
        Box::pin(async move { self.replication.change_replica(&volume, request).await })
    }
}
