//! Pools that are being changed while members of arrays are searched for on their volumes: the search is repeated when
//! the pool is free.
//!
//! The search does not wait for a long change of one pool, as all other arrays wait for the search. An array whose
//! member is such a volume is not started meanwhile: without the volume the array would be degraded, and the volume
//! would miss writes.

use crate::PoolManager;
use crate::manager::WORK_MAX;
use braid_api::{ErrorDetail, Kind};
use braid_inventory::PoolHandle;
use braid_ring::DiskSpec;
use braid_tasks as tasks;
use std::sync::Arc;

impl PoolManager {
    /// Waits briefly until the pool of a volume can be queried for it.
    ///
    /// # Errors
    /// The pool is still being changed. When that has ended, members are searched for again.
    pub async fn await_pool_of(self: &Arc<Self>, spec: &DiskSpec) -> Result<(), ErrorDetail> {
        let pool = spec.volume().and_then(|volume| volume.split_once('/')).map(|(pool, _)| self.serving_pool(pool));
        // A missing pool is reported when the volume is opened.
        let Some(Ok(pool)) = pool else { return Ok(()) };
        if tokio::time::timeout(WORK_MAX, pool.work.lock()).await.is_ok() {
            return Ok(());
        }
        let message = format!("pool {} is being changed; it is looked at again when that is done", pool.name);
        let error = ErrorDetail::new(Kind::InUse, message).with("pool", &pool.name).remedy("nothing; or wait for that");
        self.look_when_free(pool);
        Err(error)
    }

    fn look_when_free(self: &Arc<Self>, pool: PoolHandle) {
        if !self.arrays.awaited().insert(pool.uuid) {
            return;
        }
        let manager = Arc::clone(self);
        tasks::spawn(async move {
            drop(pool.work.lock().await);
            manager.arrays.awaited().remove(&pool.uuid);
            manager.arrays.rescan().await;
        });
    }
}
