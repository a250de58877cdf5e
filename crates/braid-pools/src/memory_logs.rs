//! The in-memory logs of a pool in shared memory: that of the session before is taken over, and a new one is created.

use crate::PoolManager;
use braid_advice::errors::ring_error;
use braid_api::ErrorDetail;
use braid_engine::pool::LogMemory;
use braid_ring::{SharedLog, SharedLogFolder};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// Files in shared memory consist of whole pages.
const PAGE_BYTES: u64 = 4096;

/// The in-memory logs of a pool that is being opened.
pub(crate) struct MemoryLogs {
    folder: SharedLogFolder,
    pool: Uuid,
    /// Those that earlier sessions of this boot left, by session.
    old: Mutex<BTreeMap<u64, Arc<SharedLog>>>,
    new: Mutex<Option<Arc<SharedLog>>>,
    /// The last session that was queried has left no log.
    missed: AtomicBool,
}

impl PoolManager {
    /// Attaches what earlier sessions of a pool left in shared memory.
    ///
    /// # Errors
    /// Another process serves the pool; the folder cannot be used. What is there is then not touched.
    pub(crate) fn memory_logs(&self, pool: Uuid) -> Result<MemoryLogs, ErrorDetail> {
        let folder = SharedLogFolder::open(&self.shared_memory).map_err(|error| ring_error(&error, ""))?;
        let mut old = BTreeMap::new();
        for name in folder.list(pool).map_err(|error| ring_error(&error, ""))? {
            if name != folder.name(pool, name.session) {
                continue;
            }
            if let Some(memory_log) = folder.attach(pool, name.session).map_err(|error| ring_error(&error, ""))? {
                old.insert(name.session, Arc::new(memory_log));
            }
        }
        Ok(MemoryLogs { folder, pool, old: Mutex::new(old), new: Mutex::new(None), missed: AtomicBool::new(false) })
    }
}

impl MemoryLogs {
    /// Returns the log that a session left.
    pub(crate) fn old(&self, session: u64) -> Option<Arc<dyn LogMemory>> {
        let old = self.old.lock().unwrap_or_else(PoisonError::into_inner);
        let found = old.get(&session).map(|memory_log| Arc::clone(memory_log) as Arc<dyn LogMemory>);
        self.missed.store(found.is_none(), Ordering::Relaxed);
        found
    }

    /// Returns true if the last session that was queried has left no log.
    pub(crate) fn missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }

    /// Returns the identity of this boot of the machine.
    pub(crate) fn boot(&self) -> Uuid {
        self.folder.name(self.pool, 0).boot
    }

    /// Creates the log of this session, of at most `bytes` bytes.
    ///
    /// # Errors
    /// It cannot be created.
    pub(crate) fn begin(&self, session: u64, bytes: u64) -> Result<Arc<dyn LogMemory>, String> {
        // An interrupted start may have created one that was never used.
        self.old.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
        let name = self.folder.name(self.pool, session);
        self.folder.remove(&name).map_err(|error| error.to_string())?;
        // Rounded down, as the rings must have room for all that the log holds.
        let bytes = (bytes / PAGE_BYTES * PAGE_BYTES) as usize;
        let memory_log = Arc::new(self.folder.create(self.pool, session, bytes).map_err(|error| error.to_string())?);
        *self.new.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&memory_log));
        Ok(memory_log)
    }

    /// Removes the old logs, which nothing depends on any more. Returns the new one.
    pub(crate) fn keep_new(self) -> Option<Arc<SharedLog>> {
        let new = self.new.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.old.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for name in self.folder.list(self.pool).unwrap_or_default() {
            if new.as_ref().is_none_or(|memory_log| *memory_log.name() != name)
                && let Err(error) = self.folder.remove(&name)
            {
                tracing::warn!("an old in-memory log stays in shared memory: {error}");
            }
        }
        new
    }

    /// Removes all logs of a pool that is deleted or was closed cleanly.
    pub(crate) fn remove_all(self) {
        self.new.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.keep_new();
    }
}
