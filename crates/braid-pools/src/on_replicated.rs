//! Pools on a replicated volume: each is served by the node that serves the volume, and moves with it.
//!
//! The volume is the pool's only member. The node that begins to serve the volume reads its label, and opens the pool
//! that the label names; before the volume stops, the pool is closed. If another node takes the volume over, this node
//! can write nothing to it any more. Then the array stops first: every I/O that the pool waits for ends with an error,
//! and the pool stops after that. No acknowledged write is lost: on such a pool, every write is committed before it is
//! acknowledged ([`braid_engine::DeviceLayout::leased`]).

use crate::close::CloseReason;
use crate::find::FoundMember;
use crate::{PoolManager, labels};
use braid_api::{ErrorDetail, Kind, StartPool};
use braid_engine::{DeviceId, DeviceLease};
use braid_inventory::{ArrayEntry, MemberBacking, PoolCondition, ServedPool};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Interval between two checks whether another change of the array has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum time that an export waits for the search for a pool's label.
const LABEL_MAX: Duration = Duration::from_secs(5);

impl PoolManager {
    /// Returns the lease under which the volumes of a pool on a replicated volume reply, and the device of that volume.
    pub(crate) fn lease_of(&self, pool: Uuid) -> Option<(Arc<DeviceLease>, DeviceId)> {
        let (array, device) = {
            let tables = self.inventory.read();
            let array = tables.replicated_volume_of(pool)?;
            let ServedPool { parts, .. } = tables.pools.get(&pool)?.served()?;
            (array, parts.iter().find(|part| part.array() == Some(array))?.device)
        };
        Some((Arc::clone(self.arrays.votes_of(array)?.lease()), device))
    }

    /// Opens the pool on a replicated volume that has just begun to be served, if the volume has a pool's label.
    pub async fn open_pool_on_replicated(self: &Arc<Self>, volume: Uuid) {
        let Some(device) = self.inventory.read().arrays.get(&volume).and_then(|entry| Some(entry.active()?.device))
        else {
            return;
        };
        let name = self.job_name(&MemberBacking::Array(volume));
        match labels::read(&self.ring.devices(), device).await {
            Ok(Some(Ok(label))) => {
                // The volume may have become a member of another pool, on another node.
                self.forget_pools_on_replicated(volume, Some(label.uuid)).await;
                let present = FoundMember { backing: MemberBacking::Array(volume), device: Some(device), label };
                self.evaluate_pool(present.label.uuid, vec![present], &BTreeMap::new(), &StartPool::default()).await;
            }
            Ok(Some(Err(why))) => {
                let message = format!("{name} bears the label of a pool that cannot be used: {why}");
                self.inventory.events().error("pool_label_damaged", message, &[]);
            }
            Ok(None) => self.forget_pools_on_replicated(volume, None).await,
            Err(error) => tracing::warn!("{name}: reading the label of a pool failed: {error}"),
        }
    }

    /// Refuses to export a replicated volume that has the label of a pool. An export of the volume may have been
    /// prepared on this node, or may wait here since this node served the volume last; its clients would overwrite a
    /// pool that was created on another node meanwhile.
    ///
    /// # Errors
    /// [`Kind::InUse`], or the volume does not respond.
    pub async fn refuse_export_under_label(&self, volume: Uuid, device: DeviceId) -> Result<(), ErrorDetail> {
        let Some(name) = self.inventory.read().replicated.get(&volume).map(|volume| volume.name.clone()) else {
            return Ok(());
        };
        let devices = self.ring.devices();
        let refused = |kind: Kind, why: String| {
            ErrorDetail::new(kind, format!("volume {name} is not exported: {why}")).with("volume", &name)
        };
        match tokio::time::timeout(LABEL_MAX, labels::read(&devices, device)).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(label))) => {
                let pool = label.map_or_else(|_| "a pool".to_owned(), |label| format!("pool {}", label.name));
                let why = format!("it bears the label of {pool}, which its clients would write over");
                Err(refused(Kind::InUse, why)
                    .remedy("remove this export, and export a volume of the pool (braid export add POOL/VOLUME)"))
            }
            Ok(Err(error)) => Err(refused(Kind::DiskError, format!("reading the label of a pool failed: {error}"))
                .remedy("no action is needed: it is tried again")),
            Err(_) => Err(refused(Kind::TimedOut, "it does not answer".to_owned())
                .remedy(format!("no action is needed: it is tried again; braid volume show {name}"))),
        }
    }

    /// Forgets the pools that were seen on a replicated volume, except `but`.
    pub async fn forget_pools_on_replicated(&self, volume: Uuid, but: Option<Uuid>) {
        let gone: Vec<Uuid> = {
            let tables = self.inventory.read();
            let seen = tables.pool_arrays.iter().filter(|saved| saved.array == volume);
            seen.map(|saved| saved.pool).filter(|pool| Some(*pool) != but).collect()
        };
        for pool in gone {
            self.forget_pool(pool);
            self.remove_exports_of_pool_above(pool).await;
            let mut tables = self.inventory.write();
            if tables.pools.get(&pool).is_some_and(|entry| entry.served().is_none()) {
                tables.pools.remove(&pool);
            }
            drop(tables);
            self.inventory.save_or_warn();
        }
    }

    async fn remove_exports_of_pool_above(&self, pool: Uuid) {
        let listening = self.exports.listening_lock.lock().await;
        self.remove_exports_of_pool(&listening, pool);
    }

    /// Disconnects the clients of all volumes of the pool on a replicated volume.
    pub async fn silence_pool_on_replicated(&self, volume: Uuid) {
        for exported in self.exported_above(volume) {
            self.exports.stop_exports_of(exported).await;
        }
    }

    /// Returns the exported volumes and snapshots of the pool on a replicated volume.
    fn exported_above(&self, volume: Uuid) -> Vec<Uuid> {
        let tables = self.inventory.read();
        let Some((pool, _)) = tables.serving_pool_on(volume) else { return Vec::new() };
        let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool.uuid));
        of.map(|export| export.saved.array).collect()
    }

    /// Refuses an operation that would disconnect clients of volumes of the pool on a replicated volume.
    ///
    /// # Errors
    /// [`Kind::InUse`].
    pub fn refuse_exported_on_replicated(&self, volume: Uuid, name: &str) -> Result<(), ErrorDetail> {
        if self.exported_above(volume).is_empty() {
            return Ok(());
        }
        let pool = self.inventory.read().pool_on_replicated(volume).map(|(_, pool)| pool).unwrap_or_default();
        Err(ErrorDetail::new(Kind::InUse, format!("volumes of pool {pool}, which stands on {name}, are exported"))
            .with("volume", name)
            .with("pool", &pool)
            .remedy("braid export list shows them; add --force (their clients are cut off, and they wait)"))
    }

    /// Closes the pool on a replicated volume, once no other command opens or creates one there. The pool is closed
    /// cleanly if the array still accepts writes. If not, no write is lost that was acknowledged to a client.
    pub async fn close_pool_on_replicated(self: &Arc<Self>, volume: Uuid) {
        while self.inventory.read().busy.contains_key(&volume) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let Some(pool) = self.inventory.read().serving_pool_on(volume).map(|(entry, _)| entry.uuid) else { return };
        match self.close_pool(pool, CloseReason::Reopened).await {
            Ok(closed) => {
                if let Err(error) = closed.written {
                    tracing::info!("{}", error.message);
                }
                self.drop_parts(closed.parts).await;
            }
            Err(error) => tracing::warn!("{}", error.message),
        }
        // No start needs the in-memory log of this node, as all acknowledged writes are committed. Without the record
        // of the boot, the next start does not report the log as lost.
        let mut tables = self.inventory.write();
        tables.pool_boots.remove(&pool);
        let idle = tables.waits_for(volume);
        if let Some(entry) = tables.pools.get_mut(&pool).filter(|entry| entry.served().is_none()) {
            entry.condition = PoolCondition::Idle(idle);
        }
    }
}

impl PoolManager {
    /// Refuses a replicated volume as one of several members of a pool, and further members beside one: other nodes
    /// would not have those members.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`].
    pub(crate) fn refuse_beside_replicated(&self, arrays: &[Uuid], members: usize) -> Result<(), ErrorDetail> {
        let tables = self.inventory.read();
        let Some(volume) = arrays.iter().find_map(|array| tables.replicated.get(array)).filter(|_| members > 1) else {
            return Ok(());
        };
        let message = format!(
            "{} is a replicated volume: a pool on it moves between nodes, and has no other members",
            volume.name
        );
        Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("volume", &volume.name)
            .remedy("make a pool of it alone, and one of the others"))
    }

    /// Returns true if an array is the array above a replicated volume's replicas, and serves.
    pub(crate) fn is_active_replicated(&self, array: &str) -> bool {
        let tables = self.inventory.read();
        tables.array(array).is_ok_and(|entry: &ArrayEntry| {
            tables.replicated.get(&entry.uuid).is_some_and(|volume| !volume.creating) && entry.active().is_some()
        })
    }
}
