//! The manager of pools: its parts, calls of a pool at its home, and claims.
//!
//! Each pool has a maintenance task, which merges what was deleted and commits what has been uncommitted for too long.

use crate::ReplicationProvider;
use braid_api::{ErrorDetail, Kind, PoolState};
use braid_arrays::ArrayManager;
use braid_engine::PoolNext;
use braid_engine::pool::Pool;
use braid_exports::ExportManager;
use braid_inventory::{Claim, Inventory, PoolCondition, PoolHandle};
use braid_ring::{PoolCallError, RingHandle, RingMeta};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Maximum time that commands which change exports wait for a change of a pool.
pub(crate) const WORK_MAX: Duration = Duration::from_secs(2);

/// Maximum time that a command waits for another change of its pool to end: for example the end of a removal, which
/// goes on after its command has returned.
const CLAIM_MAX: Duration = Duration::from_secs(10);

/// The pools of this daemon: see the crate's documentation.
pub struct PoolManager {
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) ring: RingHandle,
    pub(crate) meta: RingMeta,
    pub(crate) exports: Arc<ExportManager>,
    pub(crate) arrays: Arc<ArrayManager>,
    /// Replication, which is above this manager.
    provider: OnceLock<Arc<dyn ReplicationProvider>>,
    /// The folder for files that outlive the process but no reboot.
    pub(crate) shared_memory: PathBuf,
}

impl PoolManager {
    /// Creates the manager. `shared_memory`: the folder for files that outlive the process but no reboot.
    pub fn new(
        inventory: &Arc<Inventory>,
        ring: RingHandle,
        exports: &Arc<ExportManager>,
        arrays: &Arc<ArrayManager>,
        shared_memory: PathBuf,
    ) -> Arc<PoolManager> {
        Arc::new(PoolManager {
            inventory: Arc::clone(inventory),
            meta: ring.meta(),
            ring,
            exports: Arc::clone(exports),
            arrays: Arc::clone(arrays),
            provider: OnceLock::new(),
            shared_memory,
        })
    }

    /// Sets the provider of replication: once, before any pool is opened.
    pub fn set_provider(&self, provider: Arc<dyn ReplicationProvider>) {
        // The first one stays.
        let _ = self.provider.set(provider);
    }

    /// Returns the provider of replication.
    pub(crate) fn provider(&self) -> &Arc<dyn ReplicationProvider> {
        self.provider.get().expect("the daemon sets the provider before any pool is opened")
    }

    /// Returns a pool that serves, by name or UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Incomplete`] or [`Kind::Inactive`] if it does not serve.
    pub fn serving_pool(&self, name: &str) -> Result<PoolHandle, ErrorDetail> {
        let tables = self.inventory.read();
        let entry = tables.pool(name)?;
        let name = &entry.name;
        match &entry.condition {
            PoolCondition::Serves(served) => Ok(PoolHandle {
                uuid: entry.uuid,
                name: name.clone(),
                key: served.key,
                home: served.home,
                shared: Arc::clone(&served.shared),
                locations: Arc::clone(&served.locations),
                work: Arc::clone(&served.work),
                counted: Arc::clone(&served.counted),
            }),
            PoolCondition::Idle(idle) => {
                let kind = if idle.state == PoolState::Incomplete { Kind::Incomplete } else { Kind::Inactive };
                let why = idle.attention.first().map(|why| format!(": {why}")).unwrap_or_default();
                Err(ErrorDetail::new(kind, format!("pool {name} is {}{why}", idle.state.word()))
                    .with("pool", name)
                    .remedy(idle.remedy.clone()))
            }
        }
    }

    /// Returns every pool that serves.
    pub(crate) fn reach_all(&self) -> Vec<PoolHandle> {
        let names: Vec<String> = {
            let tables = self.inventory.read();
            tables.pools.values().filter(|entry| entry.served().is_some()).map(|entry| entry.uuid.to_string()).collect()
        };
        names.iter().filter_map(|name| self.serving_pool(name).ok()).collect()
    }

    /// Calls a pool at its home.
    ///
    /// # Errors
    /// The pool is not served any more, or nothing can be made durable.
    pub(crate) async fn call<R: Send + 'static>(
        &self,
        pool: &PoolHandle,
        mut call: impl FnMut(&mut Pool) -> (PoolNext, R) + Send + 'static,
    ) -> Result<R, ErrorDetail> {
        let shared = Arc::clone(&pool.shared);
        // Another pool may be served under the key by now, or the same pool reopened, which has renumbered its volumes.
        let call = move |served: &mut Pool| {
            if !Arc::ptr_eq(served.shared(), &shared) {
                return (PoolNext::Done, None);
            }
            let (next, reply) = call(served);
            (next, Some(reply))
        };
        match self.ring.pool_call(pool.key, pool.home, call).await {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) | Err(PoolCallError::NotServed) => {
                let message = format!("pool {} is not served any more", pool.name);
                Err(ErrorDetail::new(Kind::Inactive, message)
                    .with("pool", &pool.name)
                    .remedy(format!("braid pool show {}", pool.name)))
            }
            Err(PoolCallError::NotCommitted) => Err(self.why_not_committed(pool).await),
        }
    }

    /// Locks a pool, with a time limit, for a caller that has the lock of listening addresses. Every change of an
    /// export waits for that lock: so its holder must not wait for a long change of one pool.
    ///
    /// # Errors
    /// [`Kind::InUse`].
    pub(crate) async fn work_soon(&self, pool: &PoolHandle) -> Result<tokio::sync::OwnedMutexGuard<()>, ErrorDetail> {
        let lock = Arc::clone(&pool.work).lock_owned();
        tokio::time::timeout(WORK_MAX, lock).await.map_err(|_| {
            ErrorDetail::new(Kind::InUse, format!("pool {} is being changed", pool.name))
                .with("pool", &pool.name)
                .remedy("try again when that is done")
        })
    }

    /// Marks a pool as being changed until the claim is dropped; waits up to [`CLAIM_MAX`] for a change that is under
    /// way.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::InUse`] if another change takes longer.
    pub(crate) async fn claim_pool(&self, name: &str, doing: &'static str) -> Result<Claim<'_>, ErrorDetail> {
        let deadline = tokio::time::Instant::now() + CLAIM_MAX;
        loop {
            // Registered before the check, so that an end between the two is not missed.
            let mut unclaimed = std::pin::pin!(self.inventory.unclaimed());
            unclaimed.as_mut().enable();
            self.inventory.refuse_while_stopping_or_upgrading()?;
            let (uuid, name, other) = {
                let tables = self.inventory.read();
                let entry = tables.pool(name)?;
                (entry.uuid, entry.name.clone(), tables.busy.get(&entry.uuid).copied())
            };
            if let Some(claim) = self.inventory.claim_uuid(uuid, doing) {
                return Ok(claim);
            }
            if tokio::time::timeout_at(deadline, unclaimed).await.is_err() {
                let other = other.unwrap_or("changed");
                return Err(ErrorDetail::new(Kind::InUse, format!("pool {name} is being {other}"))
                    .with("pool", name)
                    .remedy("wait until that is done, and try again"));
            }
        }
    }
}
