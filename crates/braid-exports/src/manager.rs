//! The manager of exports: its state. Its methods are in the files of their subjects.

use crate::block_table::Blocks;
use crate::client_errors::ClientErrors;
use crate::file_table::Files;
use crate::{Encryption, VolumeProvider};
use braid_inventory::{Inventory, ListeningSockets};
use braid_nbd::EventQueue;
use braid_ring::RingHandle;
use braid_ring::kept::InheritedFds;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Exports of this daemon: see the crate's documentation.
pub struct ExportManager {
    /// A reference to itself, for tasks that outlive a call.
    pub(crate) weak_self: Weak<ExportManager>,
    /// The tables, the state file and the events of the daemon.
    pub(crate) inventory: Arc<Inventory>,
    /// The shards.
    pub(crate) ring: RingHandle,
    /// Set by the daemon before anything is exported.
    provider: OnceLock<Arc<dyn VolumeProvider>>,
    /// Listening sockets that outlive an upgrade.
    pub sockets: Arc<ListeningSockets>,
    /// Exports that are files.
    pub(crate) files: Files,
    /// Block devices of exports, by the export's identity.
    pub blocks: Blocks,
    /// Serializes changes of listening addresses and exports. It is taken before the lock of the tables.
    pub listening_lock: tokio::sync::Mutex<()>,
    /// Events of clients, from the shards.
    pub clients: Arc<EventQueue>,
    /// Which disconnections of clients were reported.
    pub(crate) client_errors: Mutex<ClientErrors>,
    /// The TLS settings of exports.
    pub(crate) encryption: Encryption,
}

impl ExportManager {
    /// Creates the manager. `sockets`: listening sockets that outlive an upgrade; `inherited`: the channels of files
    /// that the previous daemon has left; `clients`: the queue into which the shards put events of clients.
    ///
    /// Until [`ExportManager::set_provider`] was called, nothing may be exported.
    pub fn new(
        inventory: Arc<Inventory>,
        ring: RingHandle,
        sockets: Arc<ListeningSockets>,
        inherited: InheritedFds,
        clients: Arc<EventQueue>,
        encryption: Encryption,
    ) -> Arc<ExportManager> {
        Arc::new_cyclic(|me| ExportManager {
            weak_self: Weak::clone(me),
            inventory,
            ring,
            provider: OnceLock::new(),
            sockets,
            files: Files::new(inherited),
            blocks: Blocks::default(),
            listening_lock: tokio::sync::Mutex::new(()),
            clients,
            client_errors: Mutex::default(),
            encryption,
        })
    }

    /// Sets the provider of volumes; once, before anything is exported. Later calls have no effect.
    pub fn set_provider(&self, provider: Arc<dyn VolumeProvider>) {
        // Set once: a second provider is ignored.
        let _ = self.provider.set(provider);
    }

    /// Returns the provider of volumes.
    pub(crate) fn provider(&self) -> &Arc<dyn VolumeProvider> {
        self.provider.get().expect("the daemon sets the provider before anything is exported")
    }
}
