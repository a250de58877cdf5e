//! The manager of arrays: its state. Its methods are in the files of their subjects.

use crate::server_probes::ServerProbes;
use crate::{ArrayUsers, VotedMeta, Votes};
use braid_engine::LeafId;
use braid_exports::ExportManager;
use braid_inventory::Inventory;
use braid_ring::{RingHandle, RingMeta};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use uuid::Uuid;

/// Arrays of this daemon, and its disks: see the crate's documentation.
pub struct ArrayManager {
    /// A reference to itself, for tasks that outlive a call.
    pub(crate) weak_self: Weak<ArrayManager>,
    /// The tables, the claims, the state file and the events of the daemon.
    pub(crate) inventory: Arc<Inventory>,
    /// The shards.
    pub(crate) ring: RingHandle,
    /// Access to the labels of disks.
    pub(crate) meta: RingMeta,
    /// The manager of exports, which is below this one.
    pub(crate) exports: Arc<ExportManager>,
    /// Set by the daemon before any array is started.
    users: OnceLock<Arc<dyn ArrayUsers>>,
    /// Serializes scans for members: of two at a time, each would find disks locked by the other. Lock order: this lock
    /// before the tables.
    pub scan_lock: tokio::sync::Mutex<()>,
    /// Pools that are being changed, after which their volumes are scanned for members again.
    pub(crate) pools_to_rescan: Mutex<BTreeSet<Uuid>>,
    /// Disks that are being closed, and may have I/O in flight: their names, by leaf.
    pub closing_disks: Arc<Mutex<BTreeMap<LeafId, String>>>,
    /// Those of `closing_disks` that hang while they are still served as devices of their own, as members of pools.
    /// [`ArrayManager::close_disks`] skips them: the task that waits for their last I/O closes them.
    pub hanging_disks: Arc<Mutex<BTreeSet<LeafId>>>,
    /// Servers of remote disks that are missing, and when they are probed again.
    pub(crate) server_probes: Mutex<ServerProbes>,
}

impl ArrayManager {
    /// Creates the manager. Until [`ArrayManager::set_users`] was called, no array may be started.
    pub fn new(inventory: Arc<Inventory>, ring: RingHandle, exports: Arc<ExportManager>) -> Arc<ArrayManager> {
        Arc::new_cyclic(|me| ArrayManager {
            weak_self: Weak::clone(me),
            inventory,
            meta: ring.meta(),
            ring,
            exports,
            users: OnceLock::new(),
            scan_lock: tokio::sync::Mutex::new(()),
            pools_to_rescan: Mutex::default(),
            closing_disks: Arc::default(),
            hanging_disks: Arc::default(),
            server_probes: Mutex::default(),
        })
    }

    /// Sets the users of arrays; once, before any array is started. Later calls have no effect.
    pub fn set_users(&self, users: Arc<dyn ArrayUsers>) {
        // Set once: other users are ignored.
        let _ = self.users.set(users);
    }

    /// Returns the users of arrays.
    pub(crate) fn users(&self) -> &Arc<dyn ArrayUsers> {
        self.users.get().expect("the daemon sets the users of arrays before any array is started")
    }

    /// Returns the votes of an array whose members are replicas, as long as it is served or about to be; see
    /// [`ArrayUsers::votes_of`].
    pub fn votes_of(&self, array: Uuid) -> Option<Arc<dyn Votes>> {
        self.users().votes_of(array)
    }

    /// Returns access to the labels of an array, with its votes if it has some.
    pub(crate) fn meta_of(&self, array: Uuid) -> VotedMeta {
        VotedMeta { meta: self.meta.clone(), votes: self.votes_of(array) }
    }

    /// Locks the pools that are being changed, and after whose change their volumes are scanned for members again.
    pub fn awaited(&self) -> MutexGuard<'_, BTreeSet<Uuid>> {
        self.pools_to_rescan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
