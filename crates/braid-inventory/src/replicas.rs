//! Replicas and witnesses that this node stores: what is known of each, and how it is found in the tables.

use crate::admission::ReplicaAdmission;
use crate::controller_contact::ControllerContact;
use crate::disks::OpenDisk;
use crate::state::SavedReplica;
use braid_api::ReplicaState;
use braid_engine::replica::{Register, VoterId};
use braid_engine::{DeviceId, Node};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// The device of a replica that votes.
pub struct ReplicaDevice {
    /// The device that its data is on, with the replica metadata before and behind it.
    pub device: DeviceId,
    /// The volumes that it consists of, as disks: the data, and the replica metadata.
    pub disks: [Arc<OpenDisk>; 2],
    /// What the local sessions of this replica share.
    pub session_base: LocalSessionBase,
}

/// A replica or witness that votes.
pub struct VotingReplica {
    /// Admission of its controllers.
    pub admission: Arc<ReplicaAdmission>,
    /// The task that writes the register.
    pub writer: JoinHandle<()>,
    /// Its device; `None` for a witness.
    pub replica_device: Option<ReplicaDevice>,
    /// When the voter last replied to its controller.
    pub contact: Arc<ControllerContact>,
}

impl VotingReplica {
    /// Creates a voter whose register is durable. `writer`: the task that writes the register. `replica_device`: `None`
    /// for a witness.
    pub fn new(
        admission: Arc<ReplicaAdmission>,
        writer: JoinHandle<()>,
        replica_device: Option<ReplicaDevice>,
    ) -> VotingReplica {
        let contact = Arc::new(ControllerContact::at_start(&admission.register()));
        VotingReplica { admission, writer, replica_device, contact }
    }
}

/// Whether a replica or witness votes.
pub enum ReplicaCondition {
    /// It votes.
    Voting(VotingReplica),
    /// It does not vote, and why.
    NotVoting(ReplicaState, String),
}

/// A replica or witness known to this node.
pub struct ReplicaEntry {
    /// Its part of the state file.
    pub saved: SavedReplica,
    /// Whether it votes.
    pub condition: ReplicaCondition,
}

impl ReplicaEntry {
    /// Returns the entry for a replica from the state file. It does not vote until it is opened.
    pub fn of_saved(saved: &SavedReplica) -> ReplicaEntry {
        let why = if saved.data.is_some() { "its pool does not serve" } else { "it was not opened yet" };
        ReplicaEntry {
            saved: saved.clone(),
            condition: ReplicaCondition::NotVoting(ReplicaState::Waiting, why.to_owned()),
        }
    }

    /// Returns the data of a replica that votes; `None` if it does not vote.
    pub fn ready(&self) -> Option<&VotingReplica> {
        match &self.condition {
            ReplicaCondition::Voting(ready) => Some(ready),
            ReplicaCondition::NotVoting(..) => None,
        }
    }

    /// Returns why the replica does not vote, or answers no request; `None` if it votes.
    pub fn fault(&self) -> Option<(ReplicaState, String)> {
        match &self.condition {
            ReplicaCondition::Voting(ready) => ready.admission.fault().map(|fault| fault.state_and_reason()),
            ReplicaCondition::NotVoting(state, why) => Some((*state, why.clone())),
        }
    }

    /// Returns whether a volume of its pool is its data or its replica metadata.
    pub fn has(&self, volume: Uuid) -> bool {
        self.saved.data == Some(volume) || self.saved.metadata == Some(volume)
    }

    /// Returns what it knows of its controller; `None` if it does not vote, or has never had a controller.
    pub fn known_controller(&self) -> Option<KnownController> {
        let ready = self.ready().filter(|_| self.fault().is_none())?;
        let register = ready.admission.register();
        let is_used = register.epoch > 0 && !is_excluded(self, &register);
        is_used.then(|| KnownController { register, silent_for: ready.contact.silent_for() })
    }
}

/// What a voter of this node knows of its controller.
pub struct KnownController {
    /// The voter's register.
    pub register: Register,
    /// Time since the voter last replied to its controller; `None`: it has no controller, or the controller has
    /// released it.
    pub silent_for: Option<Duration>,
}

/// What the local sessions of a replica share.
pub struct LocalSessionBase {
    /// The replica's volumes, concatenated.
    pub node: Arc<Node>,
    /// Each session holds a read lock for as long as it may have a request in flight.
    pub sessions: Arc<RwLock<()>>,
}

/// Returns whether a replica or witness has lost its vote, by the membership in its register.
pub fn is_excluded(entry: &ReplicaEntry, register: &Register) -> bool {
    let membership = &register.vote.config;
    register.vote.epoch > 0
        && membership.version > entry.saved.since
        && !membership.all().has(VoterId(entry.saved.voter))
}
