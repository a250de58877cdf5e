//! Operations on snapshots.

use crate::Daemon;
use braid_api::{ChangeSnapshot, CloneSnapshot, CreateSnapshots, Snapshot, SnapshotDiff, SnapshotList, Volume};
use braid_server::{Reply, SnapshotService};
use std::sync::Arc;

impl SnapshotService for Daemon {
    fn snapshots(self: Arc<Self>, of: Option<String>) -> Reply<SnapshotList> {
        Box::pin(async move { self.pools.snapshots(of.as_deref()).await })
    }

    fn create_snapshots(self: Arc<Self>, request: CreateSnapshots) -> Reply<SnapshotList> {
        Box::pin(async move { self.pools.create_snapshots(request).await })
    }

    fn snapshot(self: Arc<Self>, name: String) -> Reply<Snapshot> {
        Box::pin(async move { self.pools.snapshot(&name).await })
    }

    fn change_snapshot(self: Arc<Self>, snapshot: String, request: ChangeSnapshot) -> Reply<Snapshot> {
        Box::pin(async move { self.pools.change_snapshot(&snapshot, request).await })
    }

    fn delete_snapshot(self: Arc<Self>, snapshot: String, force: bool) -> Reply<Snapshot> {
        Box::pin(async move { self.pools.delete_snapshot(&snapshot, force).await })
    }

    fn diff(self: Arc<Self>, from: String, to: Option<String>, offset_bytes: u64) -> Reply<SnapshotDiff> {
        Box::pin(async move { self.pools.diff(&from, to.as_deref(), offset_bytes).await })
    }

    fn rename_snapshot(self: Arc<Self>, snapshot: String, new_name: String) -> Reply<Snapshot> {
        Box::pin(async move { self.pools.rename_snapshot(&snapshot, &new_name).await })
    }

    fn clone_snapshot(self: Arc<Self>, snapshot: String, request: CloneSnapshot) -> Reply<Volume> {
        Box::pin(async move { self.pools.clone_snapshot(&snapshot, request).await })
    }
}
