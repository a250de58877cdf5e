//! The replica on the node that serves its volume: its device is used without a connection.
//!
//! It has the same admission as a connection, with the same terms, and counts as one: a later epoch or session cuts it
//! off, and is admitted once nothing of it is in flight. For that it has a device of its own above the replica's
//! volumes. Removing that device waits for the last request on it, including one that ran into its time limit.

use crate::ReplicationManager;
use braid_advice::errors::ring_error;
use braid_api::{ErrorDetail, Kind};
use braid_engine::{DeviceId, DeviceLayout};
use braid_export::admission::{AdmissionDenied, AdmissionPass, AdmissionState};
use braid_geometry::BLOCK_BYTES;
use braid_inventory::admission::ReplicaAdmission;
use braid_inventory::{LocalSessionBase, LocalSessionGuard, OpenDisk, ReplicaCondition};
use braid_nbd::client::remote::Fenced;
use braid_ring::{Disk, DiskSpec, stack_level_of};
use braid_tasks as tasks;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedRwLockReadGuard, oneshot};
use uuid::Uuid;

/// Maximum time to wait for older connections.
const ADMIT_MAX: Duration = Duration::from_secs(10);

/// What a local session holds until nothing of it is in flight.
struct LocalSession {
    device: DeviceId,
    admission: Arc<ReplicaAdmission>,
    pass: Arc<AdmissionPass>,
    guard: OwnedRwLockReadGuard<()>,
}

impl ReplicationManager {
    /// Opens the replica of a volume on this node as a disk, if an array that serves already can use it. `None`: the
    /// replica must be reached over a connection.
    ///
    /// # Errors
    /// The replica is missing, cannot be used now, or replies to another controller.
    pub(crate) async fn open_replica_locally(
        self: &Arc<Self>,
        volume: Uuid,
        name: &str,
        terms: &Fenced,
    ) -> Result<Option<Arc<OpenDisk>>, ErrorDetail> {
        let (admission, node, below, sessions) = {
            let tables = self.inventory.read();
            let Some(entry) = tables.replicas.get(&volume) else { return Ok(None) };
            let ReplicaCondition::Voting(ready) = &entry.condition else { return Ok(None) };
            let Some(replica_device) = &ready.replica_device else { return Ok(None) };
            let serves = tables.arrays.get(&volume).and_then(|entry| entry.active());
            if serves.is_some_and(|active| stack_level_of(active.device) <= stack_level_of(replica_device.device)) {
                return Ok(None);
            }
            let LocalSessionBase { node, sessions } = &replica_device.session_base;
            (Arc::clone(&ready.admission), Arc::clone(node), replica_device.device, Arc::clone(sessions))
        };
        let above = stack_level_of(below) + 1;
        if self.ring.ensure_stack_level(above).is_err() {
            return Ok(None);
        }
        let guard = sessions.read_owned().await;
        let Fenced { epoch, controller, boot, session } = terms;
        let text =
            format!("epoch={epoch}&controller={controller}&boot={boot}&session={session}&connection=0&attempt=1");
        let pass = admit_session(&admission, &text, name).await?;
        let (device, version) = {
            let mut tables = self.inventory.write();
            tables.stack_levels_min.insert(volume, above);
            (tables.allocate_device(stack_level_of(below))?, tables.next_layout_version())
        };
        let layout = Arc::new(DeviceLayout::new(version, BLOCK_BYTES as u32, &node));
        let size_bytes = layout.size_bytes();
        if let Err(error) = self.ring.publish_and_drain(device, Some(layout)).await {
            self.inventory.write().release_device(device);
            return Err(ring_error(&error, name));
        }
        let (ends, closed) = oneshot::channel();
        tasks::spawn(Arc::clone(self).watch_session(LocalSession { device, admission, pass, guard }, closed));
        let disk = Arc::new(Disk::from_device(&DiskSpec::Volume { name: name.to_owned() }, device, size_bytes));
        let leaf = self.ring.add_leaf(Arc::clone(&disk)).map_err(|error| ring_error(&error, name))?;
        Ok(Some(Arc::new(OpenDisk {
            name: name.to_owned(),
            disk,
            identity: None,
            entry: None,
            volume: None,
            leaf,
            watch: Default::default(),
            local_replica: Some(LocalSessionGuard::new(ends)),
        })))
    }

    /// Removes the device when the session is cut off or closed.
    async fn watch_session(self: Arc<Self>, session: LocalSession, mut closed: oneshot::Receiver<()>) {
        let LocalSession { device, admission, pass, guard } = session;
        let is_closed = tokio::select! {
            () = wait_until(&admission, || pass.state() == AdmissionState::Cut) => false,
            _ = &mut closed => true,
        };
        // An error means that the shards have ended: then nothing is in flight either.
        let _ = self.ring.publish_and_drain(device, None).await;
        drop((pass, guard));
        // The device's number stays reserved as long as the disk exists.
        if !is_closed {
            let _ = closed.await;
        }
        self.inventory.write().release_device(device);
    }
}

/// Requests a pass, and waits until it is admitted.
async fn admit_session(
    admission: &Arc<ReplicaAdmission>,
    terms: &str,
    name: &str,
) -> Result<Arc<AdmissionPass>, ErrorDetail> {
    let refused = |kind: Kind, why: String| {
        ErrorDetail::new(kind, format!("replica {name} cannot be used: {why}")).with("replica", name)
    };
    let pass = admission.admit(terms, true).map_err(|denied| match denied {
        AdmissionDenied::Permanently(why) => refused(Kind::Fenced, why),
        AdmissionDenied::Temporarily(why) => refused(Kind::Inactive, why),
    })?;
    let decided = wait_until(admission, || pass.state() != AdmissionState::Waits);
    if tokio::time::timeout(ADMIT_MAX, decided).await.is_err() {
        return Err(refused(Kind::TimedOut, "what older connections asked for has not ended".to_owned()));
    }
    match pass.state() {
        AdmissionState::Admitted => Ok(pass),
        _ => Err(refused(Kind::Fenced, "another controller or session has come".to_owned())),
    }
}

/// Waits until `is_so`, which changes only with the admission.
async fn wait_until(admission: &ReplicaAdmission, is_so: impl Fn() -> bool) {
    let mut changes = admission.changes();
    while !is_so() {
        if changes.changed().await.is_err() {
            return;
        }
    }
}
