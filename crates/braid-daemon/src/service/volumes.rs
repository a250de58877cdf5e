//! Operations on volumes.

use crate::Daemon;
use braid_api::{
    CreateVolume, FlattenVolume, MoveVolume, ResizeVolume, RollbackVolume, SetVolume, SnapshotPolicy, Volume,
    VolumeList,
};
use braid_server::{Reply, VolumeService};
use std::sync::Arc;

impl VolumeService for Daemon {
    fn volumes(self: Arc<Self>, pool: Option<String>) -> Reply<VolumeList> {
        Box::pin(async move { self.pools.volumes(pool.as_deref()).await })
    }

    fn create_volume(self: Arc<Self>, request: CreateVolume) -> Reply<Volume> {
        Box::pin(async move { self.pools.create_volume(request).await })
    }

    fn volume(self: Arc<Self>, name: String) -> Reply<Volume> {
        Box::pin(async move { self.pools.volume(&name).await })
    }

    fn set_volume(self: Arc<Self>, volume: String, request: SetVolume) -> Reply<Volume> {
        Box::pin(async move { self.pools.set_volume(&volume, request).await })
    }

    fn delete_volume(self: Arc<Self>, volume: String, force: bool) -> Reply<Volume> {
        Box::pin(async move { self.pools.delete_volume(&volume, force).await })
    }

    fn set_policy(self: Arc<Self>, volume: String, policy: SnapshotPolicy) -> Reply<Volume> {
        Box::pin(async move { self.pools.set_policy(&volume, Some(policy)).await })
    }

    fn end_policy(self: Arc<Self>, volume: String) -> Reply<Volume> {
        Box::pin(async move { self.pools.set_policy(&volume, None).await })
    }

    fn rename_volume(self: Arc<Self>, volume: String, new_name: String) -> Reply<Volume> {
        Box::pin(async move { self.pools.rename_volume(&volume, &new_name).await })
    }

    fn resize_volume(self: Arc<Self>, volume: String, request: ResizeVolume) -> Reply<Volume> {
        Box::pin(async move { self.pools.resize_volume(&volume, request).await })
    }

    fn move_volume(self: Arc<Self>, volume: String, request: MoveVolume) -> Reply<Volume> {
        Box::pin(async move { self.pools.move_volume(&volume, request).await })
    }

    fn compact_volume(self: Arc<Self>, volume: String) -> Reply<Volume> {
        Box::pin(async move { self.pools.compact_volume(&volume).await })
    }

    fn flatten_volume(self: Arc<Self>, volume: String, request: FlattenVolume) -> Reply<Volume> {
        Box::pin(async move { self.pools.flatten_volume(&volume, request).await })
    }

    fn rollback_volume(self: Arc<Self>, volume: String, request: RollbackVolume) -> Reply<Volume> {
        Box::pin(async move { self.pools.rollback_volume(&volume, request).await })
    }
}
