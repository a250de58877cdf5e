//! The replicated volumes of this node, as the manager keeps them in memory.

use crate::attached::AttachedVolume;
use braid_advice::VolumeCase;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// The volumes that this node serves or is about to serve, and what it has found out about others.
#[derive(Default)]
pub(crate) struct ReplicatedVolumes {
    served: Mutex<BTreeMap<Uuid, Arc<AttachedVolume>>>,
    /// Serialises attachments, detachments and deletions.
    pub(crate) change_lock: tokio::sync::Mutex<()>,
    /// By volume that this node does not serve: the numbers of the voters of which their nodes have nothing.
    pub(crate) missing_voters: Mutex<BTreeMap<Uuid, Vec<u8>>>,
    /// What was found about volumes that other nodes serve, or none.
    pub(crate) found: Mutex<FoundVolumes>,
}

impl ReplicatedVolumes {
    /// Returns the volumes that this node serves or is about to serve.
    pub(crate) fn all(&self) -> MutexGuard<'_, BTreeMap<Uuid, Arc<AttachedVolume>>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A volume that no node serves, or perhaps none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unserved {
    pub(crate) case: VolumeCase,
    pub(crate) message: String,
}

/// What this node has found out about volumes of other nodes.
#[derive(Default)]
pub(crate) struct FoundVolumes {
    pub(crate) unserved: BTreeMap<Uuid, Unserved>,
    /// By volume: the controller that the voter on this node had then, and the node that last served the volume.
    pub(crate) servers: BTreeMap<Uuid, (String, String)>,
}
