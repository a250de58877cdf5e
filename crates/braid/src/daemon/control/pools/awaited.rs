//! Pools that are being changed while members of arrays are looked for on their volumes: it is looked again when they are free.
//!
//! Whoever looks does not wait for a long change of one pool, as other arrays wait for him. An array that lacks such a volume is not
//! begun without it: it could go on apart for nothing.

use super::super::Control;
use super::super::tables::{OpenDisk, Tables};
use super::{Reach, WORK_MAX};
use braid_api::{ErrorDetail, Kind};
use braid_ring::DiskSpec;
use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, PoisonError};
use uuid::Uuid;

impl Control {
    /// Waits a short while until the pool of a volume can be asked for it.
    ///
    /// # Errors
    /// It is being changed still. When that has ended it is looked for members again.
    pub(in super::super) async fn await_pool_of(self: &Arc<Self>, spec: &DiskSpec) -> Result<(), ErrorDetail> {
        let pool = spec.volume().and_then(|volume| volume.split_once('/')).map(|(pool, _)| self.reach(pool));
        // One that is not there is told of by whoever opens the volume.
        let Some(Ok(pool)) = pool else { return Ok(()) };
        if tokio::time::timeout(WORK_MAX, pool.work.lock()).await.is_ok() {
            return Ok(());
        }
        let message = format!("pool {} is being changed; it is looked at again when that is done", pool.name);
        let error = ErrorDetail::new(Kind::InUse, message).with("pool", &pool.name).remedy("nothing; or wait for that");
        self.look_when_free(pool);
        Err(error)
    }

    fn look_when_free(self: &Arc<Self>, pool: Reach) {
        if !self.awaited().insert(pool.uuid) {
            return;
        }
        let control = Arc::clone(self);
        tokio::spawn(async move {
            drop(pool.work.lock().await);
            control.awaited().remove(&pool.uuid);
            control.look_for_members_again().await;
        });
    }

    /// Pools that are waited for.
    pub(in super::super) fn awaited(&self) -> MutexGuard<'_, BTreeSet<Uuid>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    /// Whether a member of this array was a volume of one of these pools, and is none of these disks.
    pub fn lacks_volumes_of(&self, array: Uuid, disks: &[&OpenDisk], pools: &BTreeSet<Uuid>) -> bool {
        let of = self.disks.values().filter(|saved| saved.array == array);
        let mut known = of.filter_map(|saved| DiskSpec::parse(&saved.disk).ok());
        known.any(|spec| {
            let Some(volume) = spec.volume() else { return false };
            let pool = volume.split_once('/').and_then(|(pool, _)| self.pool(pool).ok());
            let here = disks.iter().any(|disk| disk.disk.spec().volume() == Some(volume));
            !here && pool.is_some_and(|pool| pools.contains(&pool.uuid))
        })
    }
}
