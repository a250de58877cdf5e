//! Open disks, as arrays and pools have them.

use braid_api::DiskState;
use braid_engine::LeafId;
use braid_host::host::{FileSystemEntry, Identity};
use braid_ring::Disk;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;
use uuid::Uuid;

/// A disk that is open and registered with the shards.
pub struct OpenDisk {
    /// Its name, as on the command line.
    pub name: String,
    /// The disk itself; its lock is held until this is dropped.
    pub disk: Arc<Disk>,
    /// Identifies it, whatever its path; `None` for memory disks.
    pub identity: Option<Identity>,
    /// The directory entry that its path led to when it was opened.
    pub entry: Option<FileSystemEntry>,
    /// The identity of the volume that this disk is; `None`: it is no volume of a pool.
    pub volume: Option<Uuid>,
    /// Its index in the table of leaves.
    pub leaf: LeafId,
    /// Its health, as the monitor saw it last.
    pub watch: Mutex<DiskWatch>,
    /// If this disk is a replica on this node: the guard of the session with that replica, which ends when the disk is
    /// dropped. Never read.
    pub local_replica: Option<LocalSessionGuard>,
}

/// What the monitor remembers of a disk.
#[derive(Clone, Debug)]
pub struct DiskWatch {
    /// Its state.
    pub state: DiskState,
    /// The latest fault, in one sentence; `None`: there was none.
    pub fault: Option<String>,
    /// Number of errors at the last look.
    pub errors_seen: u64,
    /// Number of I/Os completed at the last look.
    pub done_seen: u64,
    /// Consecutive looks at which no I/O was completed although some are in flight.
    pub looks_without_progress: u32,
    /// Number of writes and of requests to write zeros at the last look.
    pub written_seen: u64,
    /// All of its errors come from a full file system below.
    pub is_full: bool,
}

impl Default for DiskWatch {
    fn default() -> DiskWatch {
        DiskWatch {
            state: DiskState::Ok,
            fault: None,
            errors_seen: 0,
            done_seen: 0,
            looks_without_progress: 0,
            written_seen: 0,
            is_full: false,
        }
    }
}

/// Ends the session of this node with its own replica when it is dropped.
pub struct LocalSessionGuard {
    /// Closed when this is dropped, which the receiver sees.
    _ends: oneshot::Sender<()>,
}

impl LocalSessionGuard {
    /// Creates the guard of a session that ends when the receiver of this channel is closed.
    pub fn new(ends: oneshot::Sender<()>) -> LocalSessionGuard {
        LocalSessionGuard { _ends: ends }
    }
}

/// Returns the state of a disk at the last look, with its fault.
pub fn disk_state(disk: &OpenDisk) -> (DiskState, Option<String>) {
    let watch = disk.watch.lock().unwrap_or_else(PoisonError::into_inner);
    (watch.state, watch.fault.clone())
}
