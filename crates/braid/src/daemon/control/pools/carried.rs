//! Pools that stand on a volume of several nodes: they are served where that is, and go with it from node to node.
//!
//! The volume is the only member. Whoever begins to serve it looks whether it bears a pool's label, and opens that pool then; before it
//! ends the pool is closed. Where the volume is lost to another node nothing can be written any more: then the array goes first, so that whatever
//! the pool waits for ends, and the pool after it. Nothing is lost by that: what is acknowledged on such a pool is committed
//! ([`braid_engine::DeviceLayout::leased`]).

use super::super::Control;
use super::super::tables::{ArrayEntry, Tables};
use super::close::End;
use super::find::Here;
use super::{Base, Condition, Idle, Part, Served, labels};
use braid_advice::{self as advice, Case, Names, PoolCase};
use braid_api::{ErrorDetail, Kind, PoolState, StartPool};
use braid_engine::{DeviceId, DeviceLease};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Between two looks whether somebody is done with the array.
const EVERY: Duration = Duration::from_millis(10);
/// Longest that an export waits for the label of a pool to be looked for.
const LABEL_MAX: Duration = Duration::from_secs(5);

impl Tables {
    /// The volume of several nodes that a pool stands on, which serves.
    pub(super) fn carrier_of(&self, pool: Uuid) -> Option<Uuid> {
        self.carrier(self.pools.get(&pool)?.served()?.parts.iter())
    }

    /// The same of members.
    pub(super) fn carrier<'a>(&self, mut parts: impl Iterator<Item = &'a Part>) -> Option<Uuid> {
        parts.find_map(Part::array).filter(|array| self.replicated.contains_key(array))
    }

    /// The pool that stands, or was seen last, on a volume of several nodes: its identity and name.
    pub fn pool_carried(&self, volume: Uuid) -> Option<(Uuid, String)> {
        let seen = || self.pool_arrays.iter().find(|saved| saved.array == volume);
        let pool = self.pool_on(volume).map(|(entry, _)| (entry.uuid, entry.name.clone()));
        pool.or_else(|| seen().map(|saved| (saved.pool, saved.pool_name.clone())))
    }

    /// The name of the volume of several nodes that a pool stands on, or stood on when it was seen last.
    pub(super) fn carrier_name(&self, pool: Uuid) -> Option<String> {
        let seen = || self.pool_arrays.iter().find(|saved| saved.pool == pool).map(|saved| saved.array);
        let volume = self.carrier_of(pool).or_else(seen)?;
        Some(self.replicated.get(&volume)?.name.clone())
    }

    /// Refuses what cannot be done with a pool that goes from node to node.
    pub(super) fn refuse_carried(&self, pool: Uuid, why: &str, remedy: &str) -> Result<(), ErrorDetail> {
        let Some(volume) = self.carrier_of(pool).and_then(|volume| self.replicated.get(&volume)) else { return Ok(()) };
        let name = self.pools.get(&pool).map(|entry| entry.name.clone()).unwrap_or_default();
        let message = format!("pool {name} stands on {}, a volume of several nodes: {why}", volume.name);
        Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("pool", &name)
            .with("volume", &volume.name)
            .remedy(remedy))
    }
}

impl Control {
    /// Under whose lease the volumes of a pool answer, where it stands on a volume of several nodes; and that device.
    pub(super) fn lease_of(&self, pool: Uuid) -> Option<(Arc<DeviceLease>, DeviceId)> {
        let (array, device) = {
            let tables = self.read();
            let array = tables.carrier_of(pool)?;
            let Served { parts, .. } = tables.pools.get(&pool)?.served()?;
            (array, parts.iter().find(|part| part.array() == Some(array))?.device)
        };
        Some((Arc::clone(self.voters_of(array)?.lease()), device))
    }

    /// Opens the pool of which a volume of several nodes bears the label that has just begun to be served, if it bears one.
    pub(in super::super) async fn open_carried(self: &Arc<Self>, volume: Uuid) {
        let Some(device) = self.read().arrays.get(&volume).and_then(|entry| Some(entry.active()?.device)) else {
            return;
        };
        let name = self.name_of(&Base::Array(volume));
        match labels::read(&self.ring.devices(), device).await {
            Ok(Some(Ok(label))) => {
                // It may have gone to another pool, elsewhere.
                self.forget_carried(volume, Some(label.uuid)).await;
                let here = Here { base: Base::Array(volume), device: Some(device), label };
                self.judge_pool(here.label.uuid, vec![here], &BTreeMap::new(), &StartPool::default()).await;
            }
            Ok(Some(Err(why))) => {
                let message = format!("{name} bears the label of a pool that cannot be used: {why}");
                self.events().error("pool_label_damaged", message, &[]);
            }
            Ok(None) => self.forget_carried(volume, None).await,
            Err(error) => tracing::warn!("{name}: looking for the label of a pool failed: {error}"),
        }
    }

    /// Refuses to offer a volume of several nodes that bears the label of a pool: an export of it may have been prepared on this node, or
    /// wait here since it served the volume last, and its clients would write over a pool that was made on another node meanwhile.
    ///
    /// # Errors
    /// [`Kind::InUse`], or the volume does not answer.
    pub(in super::super) async fn refuse_under_label(&self, volume: Uuid, device: DeviceId) -> Result<(), ErrorDetail> {
        let Some(name) = self.read().replicated.get(&volume).map(|volume| volume.name.clone()) else { return Ok(()) };
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
            Ok(Err(error)) => Err(refused(Kind::DiskError, format!("looking for the label of a pool failed: {error}"))
                .remedy("nothing is to be done: it is tried again")),
            Err(_) => Err(refused(Kind::TimedOut, "it does not answer".to_owned())
                .remedy(format!("nothing is to be done: it is tried again; braid volume show {name}"))),
        }
    }

    /// Forgets pools that were seen on a volume of several nodes, but for this one.
    pub(in super::super) async fn forget_carried(&self, volume: Uuid, but: Option<Uuid>) {
        let gone: Vec<Uuid> = {
            let tables = self.read();
            let seen = tables.pool_arrays.iter().filter(|saved| saved.array == volume);
            seen.map(|saved| saved.pool).filter(|pool| Some(*pool) != but).collect()
        };
        for pool in gone {
            self.forget_pool(pool);
            self.remove_exports_of_pool_above(pool).await;
            let mut tables = self.write();
            if tables.pools.get(&pool).is_some_and(|entry| entry.served().is_none()) {
                tables.pools.remove(&pool);
            }
            drop(tables);
            self.save_or_warn();
        }
    }

    async fn remove_exports_of_pool_above(&self, pool: Uuid) {
        let listening = self.listening.lock().await;
        self.remove_exports_of_pool(&listening, pool);
    }

    /// Cuts off the clients of the volumes of the pool on a volume of several nodes.
    pub(in super::super) async fn silence_carried(&self, volume: Uuid) {
        for exported in self.exported_above(volume) {
            self.silence_exports(exported).await;
        }
    }

    /// Volumes and snapshots that are exported of the pool on a volume of several nodes.
    fn exported_above(&self, volume: Uuid) -> Vec<Uuid> {
        let tables = self.read();
        let Some((pool, _)) = tables.served_on(volume) else { return Vec::new() };
        let of = tables.exports.values().filter(|export| export.saved.pool == Some(pool.uuid));
        of.map(|export| export.saved.array).collect()
    }

    /// Refuses what would cut off clients of volumes of the pool on a volume of several nodes.
    ///
    /// # Errors
    /// [`Kind::InUse`].
    pub(in super::super) fn refuse_exported_carried(&self, volume: Uuid, name: &str) -> Result<(), ErrorDetail> {
        if self.exported_above(volume).is_empty() {
            return Ok(());
        }
        let pool = self.read().pool_carried(volume).map(|(_, pool)| pool).unwrap_or_default();
        Err(ErrorDetail::new(Kind::InUse, format!("volumes of pool {pool}, which stands on {name}, are exported"))
            .with("volume", name)
            .with("pool", &pool)
            .remedy("braid export list shows them; add --force (their clients are cut off, and they wait)"))
    }

    /// Closes the pool on a volume of several nodes, once nobody opens or makes one there any more. In order, where the array still takes
    /// writes; else the next to open it needs nothing of what could not be written.
    pub(in super::super) async fn close_carried(self: &Arc<Self>, volume: Uuid) {
        while self.read().busy.contains_key(&volume) {
            tokio::time::sleep(EVERY).await;
        }
        let Some(pool) = self.read().served_on(volume).map(|(entry, _)| entry.uuid) else { return };
        match self.close_pool(pool, End::Anew).await {
            Ok(closed) => {
                if let Err(error) = closed.written {
                    tracing::info!("{}", error.message);
                }
                self.drop_parts(closed.parts).await;
            }
            Err(error) => tracing::warn!("{}", error.message),
        }
        // Which tail there is here says nothing: what was acknowledged is committed.
        let mut tables = self.write();
        tables.pool_boots.remove(&pool);
        let idle = tables.waits_for(volume);
        if let Some(entry) = tables.pools.get_mut(&pool).filter(|entry| entry.served().is_none()) {
            entry.condition = Condition::Idle(idle);
        }
    }
}

impl Tables {
    /// How a pool is listed whose volume of several nodes is not served by this node.
    pub(super) fn waits_for(&self, volume: Uuid) -> Idle {
        let name = self.replicated.get(&volume).map(|volume| volume.name.clone()).unwrap_or_default();
        Idle {
            state: PoolState::Incomplete,
            attention: vec![format!(
                "it stands on {name}, a volume of several nodes that this node does not serve now"
            )],
            remedy: advice::remedy(Case::CarriedPool(PoolCase::Idle), Names::with("", &name)),
            present: BTreeMap::new(),
            arrays: BTreeMap::new(),
            lacks_space: false,
        }
    }
}

impl Control {
    /// Refuses an array of several nodes as one of several members of a pool, and further members beside one: other nodes would not have
    /// them.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`].
    pub(super) fn refuse_beside_carrier(&self, arrays: &[Uuid], members: usize) -> Result<(), ErrorDetail> {
        let tables = self.read();
        let Some(volume) = arrays.iter().find_map(|array| tables.replicated.get(array)).filter(|_| members > 1) else {
            return Ok(());
        };
        let message = format!(
            "{} is a volume of several nodes: a pool on it goes from node to node, and has no other members",
            volume.name
        );
        Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("volume", &volume.name)
            .remedy("make a pool of it alone, and one of the others"))
    }

    /// Whether an array is one above replicas, and serves.
    pub(super) fn is_carrier(&self, array: &str) -> bool {
        let tables = self.read();
        tables.array(array).is_ok_and(|entry: &ArrayEntry| {
            tables.replicated.get(&entry.uuid).is_some_and(|volume| !volume.making) && entry.active().is_some()
        })
    }
}
