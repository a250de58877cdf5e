//! Operations on pools.

use crate::Daemon;
use braid_api::{AddMembers, CheckPool, CreatePool, Pool, PoolChecked, PoolList, RemoveMember, StartPool};
use braid_server::{BoxFuture, PoolService, Reply};
use std::sync::Arc;

impl PoolService for Daemon {
    fn pools(self: Arc<Self>) -> BoxFuture<PoolList> {
        Box::pin(async move { self.pools.pools().await })
    }

    fn create_pool(self: Arc<Self>, request: CreatePool) -> Reply<Pool> {
        Box::pin(async move { self.pools.create_pool(request).await })
    }

    fn pool(self: Arc<Self>, name: String) -> Reply<Pool> {
        Box::pin(async move { self.pools.pool_counted(&name).await })
    }

    fn delete_pool(self: Arc<Self>, pool: String, force: bool) -> Reply<Pool> {
        Box::pin(async move { self.pools.delete_pool(&pool, force).await })
    }

    fn rename_pool(self: Arc<Self>, pool: String, new_name: String) -> Reply<Pool> {
        Box::pin(async move { self.pools.rename_pool(&pool, &new_name).await })
    }

    fn start_pool(self: Arc<Self>, pool: String, request: StartPool) -> Reply<Pool> {
        Box::pin(async move { self.pools.start_pool(&pool, request).await })
    }

    fn add_pool_members(self: Arc<Self>, pool: String, request: AddMembers) -> Reply<Pool> {
        Box::pin(async move { self.pools.add_pool_members(&pool, request).await })
    }

    fn check_pool(self: Arc<Self>, pool: String, request: CheckPool) -> Reply<PoolChecked> {
        Box::pin(async move { self.pools.check_pool(&pool, request).await })
    }

    fn remove_pool_member(self: Arc<Self>, pool: String, request: RemoveMember) -> Reply<Pool> {
        Box::pin(async move { self.pools.remove_pool_member(&pool, request).await })
    }
}
