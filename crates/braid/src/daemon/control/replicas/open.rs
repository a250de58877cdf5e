//! Replicas that begin to be of use: with their pool, at the start of the daemon, or when they are made.

use super::door::{Door, Told, Trouble};
use super::here::Ground;
use super::register::{Found, Keeper, Place};
use super::{Condition, Ready, ReplicaEntry, Standing, register_of};
use crate::daemon::control::Control;
use crate::daemon::state::SavedReplica;
use braid_api::{ErrorDetail, Kind, ReplicaState, replica_export};
use braid_engine::replica::{Register, boot_of_older_copy, boot_of_original};
use braid_engine::{DeviceLayout, Node};
use braid_geometry::{BLOCK_BYTES, Geometry, Level, Spec};
use braid_nbd::ExportInfo;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Names this boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Which boot of the machine this is.
///
/// # Errors
/// The kernel does not say.
fn machine_boot() -> Result<Uuid, ErrorDetail> {
    // A test cannot restart its machine.
    #[cfg(debug_assertions)]
    if let Ok(text) = std::env::var("BRAID_BOOT_ID") {
        return Uuid::try_parse(&text).map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()));
    }
    let unknown = |why: String| ErrorDetail::new(Kind::Unsupported, format!("{BOOT_ID}: {why}"));
    let text = std::fs::read_to_string(BOOT_ID).map_err(|error| unknown(error.to_string()))?;
    Uuid::try_parse(text.trim()).map_err(|error| unknown(error.to_string()))
}

/// The boot as far as one replica is concerned: another one from the moment on in which it has lost what was not flushed, or what it has is
/// an older copy of itself. One that was filled since keeps the boot under which it was.
fn boot_of(saved: &SavedReplica, register: &Register) -> Result<Uuid, ErrorDetail> {
    let number = Uuid::from_u128(machine_boot()?.as_u128() ^ saved.losses.as_u128());
    let older = boot_of_older_copy(number);
    Ok(if saved.older || register.boot == older { older } else { boot_of_original(number) })
}

impl Control {
    /// Where the register of a witness is, and what a replica's register was last.
    pub(super) fn register_file(&self, volume: Uuid) -> PathBuf {
        self.state.path().join("registers").join(volume.to_string())
    }

    /// Begins with the witnesses that are known.
    pub(in super::super) async fn open_witnesses(self: &Arc<Self>) {
        let known: Vec<SavedReplica> = {
            let tables = self.read();
            let witnesses =
                tables.replicas.values().filter(|entry| entry.saved.data.is_none() && entry.ready().is_none());
            witnesses.map(|entry| entry.saved.clone()).collect()
        };
        for saved in known {
            self.open_known(saved).await;
        }
    }

    /// Begins with the replicas of a pool that serves.
    pub(in super::super) async fn open_replicas_of(self: &Arc<Self>, pool: Uuid) {
        let known: Vec<SavedReplica> = {
            let tables = self.read();
            let of = tables.replicas.values().filter(|entry| entry.saved.pool == Some(pool) && entry.ready().is_none());
            of.map(|entry| entry.saved.clone()).collect()
        };
        self.clear_forgotten(pool).await;
        for saved in known {
            self.open_known(saved).await;
        }
    }

    /// A replica was voted to be in sync under the boot in which it was an older copy: it has what it has answered since.
    fn note_believed(&self, volume: Uuid) {
        let was_older = {
            let mut tables = self.write();
            let entry = tables.replicas.get_mut(&volume);
            entry.is_some_and(|entry| std::mem::take(&mut entry.saved.older))
        };
        if was_older {
            self.save_or_warn();
        }
    }

    /// Begins with one that is known. What was only half made, or half deleted, is removed.
    async fn open_known(self: &Arc<Self>, saved: SavedReplica) {
        if !saved.formed {
            if let Err(error) = self.remove_half(&saved).await {
                let why = format!("it is to be deleted: {}", error.message);
                self.note_condition(&saved, Condition::Not(ReplicaState::Failed, why));
            }
            return;
        }
        let condition = match self.open_replica(&saved, None).await {
            Ok(condition) => condition,
            Err(error) => Condition::Not(ReplicaState::Failed, error.message),
        };
        if let Condition::Not(state, why) = &condition {
            let message = format!("replica {} does not vote ({}): {why}", saved.name, state.word());
            self.events().error("replica_failed", message, &[("replica", &saved.name)]);
        }
        self.note_condition(&saved, condition);
    }

    /// Notes how a replica does; one that was deleted meanwhile is closed.
    pub(super) fn note_condition(&self, saved: &SavedReplica, condition: Condition) {
        let mut tables = self.write();
        if let Some(entry) = tables.replicas.get_mut(&saved.volume) {
            entry.condition = condition;
        }
    }

    /// Opens a replica or witness. `begins`: with this register, as it is just being made.
    ///
    /// # Errors
    /// Its volumes or its register cannot be used. Nothing is left open then.
    pub(super) async fn open_replica(
        self: &Arc<Self>,
        saved: &SavedReplica,
        begins: Option<Register>,
    ) -> Result<Condition, ErrorDetail> {
        let (Some(pool), Some(data), Some(companion)) = (saved.pool, saved.data, saved.companion) else {
            let place = Place::File(self.register_file(saved.volume));
            return Ok(match self.voter(saved, place, None, begins).await? {
                Ok((door, keeps)) => Condition::Ready(Ready::new(door, keeps, None)),
                Err(lost) => lost,
            });
        };
        let disks = self.open_replica_volumes(pool, [data, companion]).await?;
        let opened = self.open_on(saved, pool, &disks, begins).await;
        match opened {
            Ok(Ok(ready)) => Ok(Condition::Ready(ready)),
            Ok(Err(lost)) => {
                self.close_disks(disks.into()).await;
                Ok(lost)
            }
            Err(error) => {
                self.close_disks(disks.into()).await;
                Err(error)
            }
        }
    }

    async fn open_on(
        self: &Arc<Self>,
        saved: &SavedReplica,
        pool: Uuid,
        disks: &[Arc<crate::daemon::control::tables::OpenDisk>; 2],
        begins: Option<Register>,
    ) -> Result<Result<Ready, Condition>, ErrorDetail> {
        let [data, companion] = disks;
        let edges = saved.head_bytes + saved.tail_bytes;
        let sizes = (data.disk.size_bytes(), companion.disk.size_bytes());
        if sizes != (saved.size_bytes, edges + super::register::PLACES_BYTES) {
            let message = format!("replica {}: its volumes have other sizes than it was made with", saved.name);
            return Err(ErrorDetail::new(Kind::Damaged, message).with("replica", &saved.name));
        }
        let below = companion.disk.device().ok_or_else(|| ErrorDetail::new(Kind::Internal, "a volume is a device"))?;
        let place = Place::Device(self.ring.devices(), below, edges);
        let beside = Some(self.register_file(saved.volume));
        let (door, keeps) = match self.voter(saved, place, beside, begins).await? {
            Ok(voter) => voter,
            Err(lost) => return Ok(Err(lost)),
        };
        let standing = self.stand(saved, pool, disks, &door).await?;
        Ok(Ok(Ready::new(door, keeps, Some(standing))))
    }

    /// The device of a replica on its two disks, and its export.
    ///
    /// # Errors
    /// There is no room for another device. Nothing is left then.
    pub(super) async fn stand(
        self: &Arc<Self>,
        saved: &SavedReplica,
        pool: Uuid,
        disks: &[Arc<crate::daemon::control::tables::OpenDisk>; 2],
        door: &Arc<Door>,
    ) -> Result<Standing, ErrorDetail> {
        let [data, companion] = disks;
        let geometry = Geometry::plan(
            Spec { chunk_bytes: BLOCK_BYTES, ..Spec::new(Level::Concat) },
            &[saved.head_bytes, saved.size_bytes, saved.tail_bytes],
        );
        let geometry = geometry.map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        let span = |leaf, start, len| Node::Leaf { leaf, start, len };
        let members = vec![
            span(companion.leaf, 0, saved.head_bytes),
            span(data.leaf, 0, saved.size_bytes),
            span(companion.leaf, saved.head_bytes, saved.tail_bytes),
        ];
        let tier = self.tier_on_pool(pool)?;
        let (device, version) = {
            let mut tables = self.write();
            (tables.take_device(tier)?, tables.next_version())
        };
        let node = Node::Striped { geometry, members };
        let layout = Arc::new(DeviceLayout::new(version, BLOCK_BYTES as u32, &node));
        let size_bytes = layout.size_bytes();
        let standing = Standing {
            device,
            disks: disks.clone(),
            ground: Ground { node: Arc::new(node), sessions: Arc::default() },
        };
        if let Err(error) = self.ring.publish_and_drain(device, Some(layout)).await {
            self.write().give_device(device);
            return Err(braid_advice::errors::of_ring(&error, &saved.name));
        }
        let info = ExportInfo {
            block_bytes_min: BLOCK_BYTES as u32,
            description: format!("replica {} of {}", saved.name, saved.volume),
            allocation: Some(Arc::new(self.ring.known_zeros(device))),
            tls: braid_nbd::ExportTls::Optional,
            uuid: Some(*saved.volume.as_bytes()),
            gate: Some(Arc::clone(door) as Arc<dyn braid_nbd::gate::Gate>),
            limits: braid_nbd::ExportLimits {
                connections_max: u32::from(braid_engine::replica::LANES_MAX),
                ..Default::default()
            },
            ..ExportInfo::new(replica_export(&saved.volume.to_string()), device, size_bytes)
        };
        if let Err(error) = self.replica_exports.add(info) {
            // Nobody was let in.
            let _ = self.ring.publish_and_drain(device, None).await;
            self.write().give_device(device);
            return Err(ErrorDetail::new(Kind::Internal, error.to_string()).with("replica", &saved.name));
        }
        Ok(standing)
    }

    /// The door of a voter with its register; or why it must not vote.
    async fn voter(
        &self,
        saved: &SavedReplica,
        place: Place,
        beside: Option<PathBuf>,
        begins: Option<Register>,
    ) -> Result<Result<(Arc<Door>, JoinHandle<()>), Condition>, ErrorDetail> {
        let of = register_of(saved);
        let failed = |why: String| {
            let message = format!("the register of replica {} cannot be used: {why}", saved.name);
            ErrorDetail::new(Kind::DiskError, message).with("replica", &saved.name)
        };
        let (register, keeper) = match begins {
            Some(register) => {
                let register = Register { boot: boot_of(saved, &register)?, ..register };
                (register, Keeper::begin(of, place, beside, &register).await.map_err(failed)?)
            }
            None => match Keeper::find(of, place, beside).await.map_err(failed)? {
                (Found::Register(register), keeper) => (register, keeper),
                (Found::Lost(why), _) => return Ok(Err(Condition::Not(ReplicaState::Lost, why))),
            },
        };
        let boot = boot_of(saved, &register)?;
        let (control, name, volume) = (Weak::clone(&self.me), saved.name.clone(), saved.volume);
        let told = Box::new(move |of: Told<'_>| {
            let Some(control) = control.upgrade() else { return };
            match of {
                Told::Believed => control.note_believed(volume),
                Told::Trouble(trouble) => control.tell_of_register(&name, Some(trouble)),
                Told::Votes => control.tell_of_register(&name, None),
            }
        });
        Ok(Ok(Door::open(register, boot, keeper, self.ring.clone(), told)))
    }
}

impl Control {
    /// Says that a voter answers nobody as its register cannot be written, or that it does again.
    fn tell_of_register(&self, name: &str, trouble: Option<&Trouble>) {
        let about = [("replica", name)];
        match trouble {
            None => {
                let message = format!("the register of replica {name} is written again: it votes");
                self.events().info("replica_votes", message, &about);
            }
            Some(trouble) => {
                let (state, why) = trouble.shown();
                let message = format!("replica {name} does not vote ({}): {why}", state.word());
                self.events().error("replica_failed", message, &about);
            }
        }
    }
}

impl Trouble {
    /// As what a voter is shown that has it, and why.
    pub fn shown(&self) -> (ReplicaState, String) {
        match self {
            Trouble::Lost(why) => (ReplicaState::Lost, why.clone()),
            Trouble::Unwritten(why) => {
                (ReplicaState::Failed, format!("its register cannot be written, which is tried again: {why}"))
            }
        }
    }
}

impl ReplicaEntry {
    /// What of it stands in the pool with this identity.
    pub fn has(&self, volume: Uuid) -> bool {
        self.saved.data == Some(volume) || self.saved.companion == Some(volume)
    }
}
