//! The replica of the very node that serves its volume: its device is used without a connection.
//!
//! It goes through the same door as a connection, on the same terms, and counts there as one: a later epoch or session cuts it off, and is let in once
//! nothing of it is under way. For that it has a device of its own above the replica's volumes: that device is taken away, which
//! ends when the last request on it has, also one that ran into its time limit.

use super::Condition;
use super::door::Door;
use crate::daemon::control::Control;
use crate::daemon::control::tables::OpenDisk;
use braid_advice::errors::of_ring;
use braid_api::{ErrorDetail, Kind};
use braid_engine::{DeviceId, DeviceLayout, Node};
use braid_geometry::BLOCK_BYTES;
use braid_nbd::client::remote::Fenced;
use braid_nbd::gate::{Denied, Pass, Standing};
use braid_ring::{Disk, DiskSpec, stack_level_of};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedRwLockReadGuard, RwLock, oneshot};
use uuid::Uuid;

/// Longest that older connections are waited for.
const LET_IN_MAX: Duration = Duration::from_secs(10);

/// What such sessions stand on.
pub struct Ground {
    /// The replica's volumes, one behind the other.
    pub node: Arc<Node>,
    /// Held by each session as long as it may have something under way.
    pub sessions: Arc<RwLock<()>>,
}

/// Ends a session when it is dropped.
pub struct Here {
    _ends: oneshot::Sender<()>,
}

/// What a session has until nothing of it is under way.
struct Session {
    device: DeviceId,
    door: Arc<Door>,
    pass: Arc<Pass>,
    stays: OwnedRwLockReadGuard<()>,
}

impl Control {
    /// Opens the replica of a volume that is on this node as a disk, if that can be done for an array that serves already. None: it
    /// has to be reached as if it were elsewhere.
    ///
    /// # Errors
    /// It is not there, cannot be used now, or answers another controller.
    pub(in super::super) async fn open_replica_here(
        self: &Arc<Self>,
        volume: Uuid,
        name: &str,
        terms: &Fenced,
    ) -> Result<Option<Arc<OpenDisk>>, ErrorDetail> {
        let (door, node, below, sessions) = {
            let tables = self.read();
            let Some(entry) = tables.replicas.get(&volume) else { return Ok(None) };
            let Condition::Ready(ready) = &entry.condition else { return Ok(None) };
            let Some(standing) = &ready.standing else { return Ok(None) };
            let serves = tables.arrays.get(&volume).and_then(|entry| entry.active());
            if serves.is_some_and(|active| stack_level_of(active.device) <= stack_level_of(standing.device)) {
                return Ok(None);
            }
            let Ground { node, sessions } = &standing.ground;
            (Arc::clone(&ready.door), Arc::clone(node), standing.device, Arc::clone(sessions))
        };
        let above = stack_level_of(below) + 1;
        if self.ring.ensure_stack_level(above).is_err() {
            return Ok(None);
        }
        let stays = sessions.read_owned().await;
        let Fenced { epoch, controller, boot, session } = terms;
        let text = format!("epoch={epoch}&controller={controller}&boot={boot}&session={session}&lane=0&attempt=1");
        let pass = let_in(&door, &text, name).await?;
        let (device, version) = {
            let mut tables = self.write();
            tables.least_tiers.insert(volume, above);
            (tables.take_device(stack_level_of(below))?, tables.next_version())
        };
        let layout = Arc::new(DeviceLayout::new(version, BLOCK_BYTES as u32, &node));
        let size_bytes = layout.size_bytes();
        if let Err(error) = self.ring.publish_and_drain(device, Some(layout)).await {
            self.write().give_device(device);
            return Err(of_ring(&error, name));
        }
        let (ends, closed) = oneshot::channel();
        tokio::spawn(Arc::clone(self).watch_session(Session { device, door, pass, stays }, closed));
        let disk = Arc::new(Disk::from_device(&DiskSpec::Volume { name: name.to_owned() }, device, size_bytes));
        let leaf = self.ring.add_leaf(Arc::clone(&disk)).map_err(|error| of_ring(&error, name))?;
        Ok(Some(Arc::new(OpenDisk {
            name: name.to_owned(),
            disk,
            identity: None,
            entry: None,
            volume: None,
            leaf,
            watch: Default::default(),
            here: Some(Here { _ends: ends }),
        })))
    }

    /// Takes the device away when the session is cut off or closed.
    async fn watch_session(self: Arc<Self>, session: Session, mut closed: oneshot::Receiver<()>) {
        let Session { device, door, pass, stays } = session;
        let is_closed = tokio::select! {
            () = until(&door, || pass.standing() == Standing::Cut) => false,
            _ = &mut closed => true,
        };
        // An error says that the shards have ended: then nothing is under way either.
        let _ = self.ring.publish_and_drain(device, None).await;
        drop((pass, stays));
        // Its number is nobody else's as long as the disk is there.
        if !is_closed {
            let _ = closed.await;
        }
        self.write().give_device(device);
    }
}

/// Asks for a pass, and waits until it is let in.
async fn let_in(door: &Arc<Door>, terms: &str, name: &str) -> Result<Arc<Pass>, ErrorDetail> {
    let refused = |kind: Kind, why: String| {
        ErrorDetail::new(kind, format!("replica {name} cannot be used: {why}")).with("replica", name)
    };
    let pass = door.come(terms, true).map_err(|denied| match denied {
        Denied::Never(why) => refused(Kind::Fenced, why),
        Denied::Now(why) => refused(Kind::Inactive, why),
    })?;
    let decided = until(door, || pass.standing() != Standing::Waits);
    if tokio::time::timeout(LET_IN_MAX, decided).await.is_err() {
        return Err(refused(Kind::TimedOut, "what older connections asked for has not ended".to_owned()));
    }
    match pass.standing() {
        Standing::Admitted => Ok(pass),
        _ => Err(refused(Kind::Fenced, "another controller or session has come".to_owned())),
    }
}

/// Waits until something is so, which changes only with the door.
async fn until(door: &Door, is_so: impl Fn() -> bool) {
    let mut changes = door.changes();
    while !is_so() {
        if changes.changed().await.is_err() {
            return;
        }
    }
}
