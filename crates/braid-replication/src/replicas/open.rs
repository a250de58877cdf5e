//! Opens replicas and witnesses: when their pool starts to serve, at the start of the daemon, and when they are
//! created.

use crate::ReplicationManager;
use crate::replicas::register_of;
use braid_api::{ErrorDetail, Kind, ReplicaState, replica_export};
use braid_engine::replica::{Register, boot_of_older_copy, boot_of_original};
use braid_engine::{DeviceLayout, Node};
use braid_export::ExportInfo;
use braid_geometry::{BLOCK_BYTES, Geometry, Level, Spec};
use braid_inventory::admission::{RegisterEvent, RegisterFault, ReplicaAdmission};
use braid_inventory::register::{RegisterContent, RegisterLocation, RegisterStore};
use braid_inventory::state::SavedReplica;
use braid_inventory::{LocalSessionBase, ReplicaCondition, ReplicaDevice, VotingReplica};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Identifies this boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the identity of this boot of the machine.
///
/// # Errors
/// The kernel does not provide it.
fn machine_boot() -> Result<Uuid, ErrorDetail> {
    // A test cannot reboot its machine.
    #[cfg(debug_assertions)]
    if let Ok(text) = std::env::var("BRAID_BOOT_ID") {
        return Uuid::try_parse(&text).map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()));
    }
    let unknown = |why: String| ErrorDetail::new(Kind::Unsupported, format!("{BOOT_ID}: {why}"));
    let text = std::fs::read_to_string(BOOT_ID).map_err(|error| unknown(error.to_string()))?;
    Uuid::try_parse(text.trim()).map_err(|error| unknown(error.to_string()))
}

/// Returns the boot under which a replica is used. It changes when the replica has lost data that was not flushed, or
/// when its data is an older copy of itself. A replica that has been resynced since keeps the boot under which that was
/// done.
fn boot_of(saved: &SavedReplica, register: &Register) -> Result<Uuid, ErrorDetail> {
    let number = Uuid::from_u128(machine_boot()?.as_u128() ^ saved.losses.as_u128());
    let older = boot_of_older_copy(number);
    Ok(if saved.older || register.boot == older { older } else { boot_of_original(number) })
}

impl ReplicationManager {
    /// Returns the path of a witness's register, and of the copy of a replica's register.
    pub(crate) fn register_file(&self, volume: Uuid) -> PathBuf {
        self.inventory.state().path().join("registers").join(volume.to_string())
    }

    /// Opens the known witnesses.
    pub async fn open_witnesses(self: &Arc<Self>) {
        let known: Vec<SavedReplica> = {
            let tables = self.inventory.read();
            let witnesses =
                tables.replicas.values().filter(|entry| entry.saved.data.is_none() && entry.ready().is_none());
            witnesses.map(|entry| entry.saved.clone()).collect()
        };
        for saved in known {
            self.open_known(saved).await;
        }
    }

    /// Opens the replicas of a pool that serves.
    pub async fn open_replicas_of(self: &Arc<Self>, pool: Uuid) {
        let known: Vec<SavedReplica> = {
            let tables = self.inventory.read();
            let of = tables.replicas.values().filter(|entry| entry.saved.pool == Some(pool) && entry.ready().is_none());
            of.map(|entry| entry.saved.clone()).collect()
        };
        self.clear_forgotten(pool).await;
        for saved in known {
            self.open_known(saved).await;
        }
    }

    /// Records that a replica was voted in sync under the boot in which it was an older copy: it now has all writes
    /// that it has acknowledged since.
    fn record_in_sync(&self, volume: Uuid) {
        let was_older = {
            let mut tables = self.inventory.write();
            let entry = tables.replicas.get_mut(&volume);
            entry.is_some_and(|entry| std::mem::take(&mut entry.saved.older))
        };
        if was_older {
            self.inventory.save_or_warn();
        }
    }

    /// Opens a known replica. One that was created or deleted only in part is removed.
    async fn open_known(self: &Arc<Self>, saved: SavedReplica) {
        if !saved.formed {
            if let Err(error) = self.remove_incomplete_replica(&saved).await {
                let why = format!("it is to be deleted: {}", error.message);
                self.set_condition(&saved, ReplicaCondition::NotVoting(ReplicaState::Failed, why));
            }
            return;
        }
        let condition = match self.open_replica(&saved, None).await {
            Ok(condition) => condition,
            Err(error) => ReplicaCondition::NotVoting(ReplicaState::Failed, error.message),
        };
        if let ReplicaCondition::NotVoting(state, why) = &condition {
            let message = format!("replica {} does not vote ({}): {why}", saved.name, state.word());
            self.inventory.events().error("replica_failed", message, &[("replica", &saved.name)]);
        }
        self.set_condition(&saved, condition);
    }

    /// Records the condition of a replica, unless it was deleted in the meantime.
    pub(crate) fn set_condition(&self, saved: &SavedReplica, condition: ReplicaCondition) {
        let mut tables = self.inventory.write();
        if let Some(entry) = tables.replicas.get_mut(&saved.volume) {
            entry.condition = condition;
        }
    }

    /// Opens a replica or witness. `initial` is the register of one that is being created.
    ///
    /// # Errors
    /// Its volumes or its register cannot be used. Nothing stays open then.
    pub(crate) async fn open_replica(
        self: &Arc<Self>,
        saved: &SavedReplica,
        initial: Option<Register>,
    ) -> Result<ReplicaCondition, ErrorDetail> {
        let (Some(pool), Some(data), Some(metadata)) = (saved.pool, saved.data, saved.metadata) else {
            let location = RegisterLocation::File(self.register_file(saved.volume));
            return Ok(match self.open_voter(saved, location, None, initial).await? {
                Ok((admission, writer)) => ReplicaCondition::Voting(VotingReplica::new(admission, writer, None)),
                Err(lost) => lost,
            });
        };
        let disks = self.pools.open_replica_volumes(pool, [data, metadata]).await?;
        let opened = self.open_on_disks(saved, pool, &disks, initial).await;
        match opened {
            Ok(Ok(ready)) => Ok(ReplicaCondition::Voting(ready)),
            Ok(Err(lost)) => {
                self.arrays.close_disks(disks.into()).await;
                Ok(lost)
            }
            Err(error) => {
                self.arrays.close_disks(disks.into()).await;
                Err(error)
            }
        }
    }

    async fn open_on_disks(
        self: &Arc<Self>,
        saved: &SavedReplica,
        pool: Uuid,
        disks: &[Arc<braid_inventory::OpenDisk>; 2],
        initial: Option<Register>,
    ) -> Result<Result<VotingReplica, ReplicaCondition>, ErrorDetail> {
        let [data, metadata] = disks;
        let edges = saved.head_bytes + saved.tail_bytes;
        let sizes = (data.disk.size_bytes(), metadata.disk.size_bytes());
        if sizes != (saved.size_bytes, edges + braid_inventory::register::SLOTS_BYTES) {
            let message = format!("replica {}: the sizes of its volumes have changed since it was created", saved.name);
            return Err(ErrorDetail::new(Kind::Damaged, message).with("replica", &saved.name));
        }
        let below = metadata.disk.device().ok_or_else(|| ErrorDetail::new(Kind::Internal, "a volume is a device"))?;
        let location = RegisterLocation::Device(self.ring.devices(), below, edges);
        let copy_file = Some(self.register_file(saved.volume));
        let (admission, writer) = match self.open_voter(saved, location, copy_file, initial).await? {
            Ok(voter) => voter,
            Err(lost) => return Ok(Err(lost)),
        };
        let replica_device = self.open_device(saved, pool, disks, &admission).await?;
        Ok(Ok(VotingReplica::new(admission, writer, Some(replica_device))))
    }

    /// Makes the device of a replica on its two disks, and its export.
    ///
    /// # Errors
    /// The maximum number of devices is reached. Nothing stays open then.
    pub(crate) async fn open_device(
        self: &Arc<Self>,
        saved: &SavedReplica,
        pool: Uuid,
        disks: &[Arc<braid_inventory::OpenDisk>; 2],
        admission: &Arc<ReplicaAdmission>,
    ) -> Result<ReplicaDevice, ErrorDetail> {
        let [data, metadata] = disks;
        let geometry = Geometry::plan(
            Spec { chunk_bytes: BLOCK_BYTES, ..Spec::new(Level::Concat) },
            &[saved.head_bytes, saved.size_bytes, saved.tail_bytes],
        );
        let geometry = geometry.map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))?;
        let span = |leaf, start, len| Node::Leaf { leaf, start, len };
        let members = vec![
            span(metadata.leaf, 0, saved.head_bytes),
            span(data.leaf, 0, saved.size_bytes),
            span(metadata.leaf, saved.head_bytes, saved.tail_bytes),
        ];
        let tier = self.pools.stack_level_on_pool(pool)?;
        let (device, version) = {
            let mut tables = self.inventory.write();
            (tables.allocate_device(tier)?, tables.next_layout_version())
        };
        let node = Node::Striped { geometry, members };
        let layout = Arc::new(DeviceLayout::new(version, BLOCK_BYTES as u32, &node));
        let size_bytes = layout.size_bytes();
        let replica_device = ReplicaDevice {
            device,
            disks: disks.clone(),
            session_base: LocalSessionBase { node: Arc::new(node), sessions: Arc::default() },
        };
        if let Err(error) = self.ring.publish_and_drain(device, Some(layout)).await {
            self.inventory.write().release_device(device);
            return Err(braid_advice::errors::ring_error(&error, &saved.name));
        }
        let info = ExportInfo {
            block_bytes_min: BLOCK_BYTES as u32,
            description: format!("replica {} of {}", saved.name, saved.volume),
            allocation: Some(Arc::new(self.ring.known_zeros(device))),
            tls: braid_export::ExportTls::Optional,
            uuid: Some(*saved.volume.as_bytes()),
            admission: Some(Arc::clone(admission) as Arc<dyn braid_export::admission::Admission>),
            limits: braid_export::ExportLimits {
                connections_max: u32::from(braid_engine::replica::SESSION_CONNECTIONS_MAX),
                ..Default::default()
            },
            ..ExportInfo::new(replica_export(&saved.volume.to_string()), device, size_bytes)
        };
        if let Err(error) = self.replica_exports.add(info) {
            // No connection was admitted yet.
            let _ = self.ring.publish_and_drain(device, None).await;
            self.inventory.write().release_device(device);
            return Err(ErrorDetail::new(Kind::Internal, error.to_string()).with("replica", &saved.name));
        }
        Ok(replica_device)
    }

    /// Opens the register of a voter and its admission; or returns why the voter must not vote.
    async fn open_voter(
        &self,
        saved: &SavedReplica,
        location: RegisterLocation,
        copy_file: Option<PathBuf>,
        initial: Option<Register>,
    ) -> Result<Result<(Arc<ReplicaAdmission>, JoinHandle<()>), ReplicaCondition>, ErrorDetail> {
        let of = register_of(saved);
        let failed = |why: String| {
            let message = format!("the register of replica {} cannot be used: {why}", saved.name);
            ErrorDetail::new(Kind::DiskError, message).with("replica", &saved.name)
        };
        let (register, store) = match initial {
            Some(register) => {
                let register = Register { boot: boot_of(saved, &register)?, ..register };
                (register, RegisterStore::create(of, location, copy_file, &register).await.map_err(failed)?)
            }
            None => match RegisterStore::load(of, location, copy_file).await.map_err(failed)? {
                (RegisterContent::Register(register), store) => (register, store),
                (RegisterContent::Lost(why), _) => {
                    return Ok(Err(ReplicaCondition::NotVoting(ReplicaState::Lost, why)));
                }
            },
        };
        let boot = boot_of(saved, &register)?;
        let (manager, name, volume) = (Weak::clone(&self.weak_self), saved.name.clone(), saved.volume);
        let listener = Box::new(move |of: RegisterEvent<'_>| {
            let Some(manager) = manager.upgrade() else { return };
            match of {
                RegisterEvent::InSync => manager.record_in_sync(volume),
                RegisterEvent::Failed(fault) => manager.report_register(&name, Some(fault)),
                RegisterEvent::Recovered => manager.report_register(&name, None),
            }
        });
        Ok(Ok(ReplicaAdmission::open(register, boot, store, self.ring.clone(), listener)))
    }
}

impl ReplicationManager {
    /// Reports that a voter replies to no controller because its register cannot be written, or that it votes again.
    fn report_register(&self, name: &str, fault: Option<&RegisterFault>) {
        let about = [("replica", name)];
        match fault {
            None => {
                let message = format!("the register of replica {name} is written again: it votes");
                self.inventory.events().info("replica_votes", message, &about);
            }
            Some(fault) => {
                let (state, why) = fault.state_and_reason();
                let message = format!("replica {name} does not vote ({}): {why}", state.word());
                self.inventory.events().error("replica_failed", message, &about);
            }
        }
    }
}
