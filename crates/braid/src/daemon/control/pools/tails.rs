//! The tail of a pool in shared memory: that of the session before is taken over, and a new one made.

use super::super::Control;
use braid_advice::errors::of_ring;
use braid_api::ErrorDetail;
use braid_engine::pool::LogMemory;
use braid_ring::{SharedLog, SharedLogFolder};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// Files of shared memory are made of whole pages.
const PAGE_BYTES: u64 = 4096;

/// The tails of one pool while it is being opened.
pub struct Tails {
    folder: SharedLogFolder,
    pool: Uuid,
    /// Those that earlier sessions of this boot left, by session.
    old: Mutex<BTreeMap<u64, Arc<SharedLog>>>,
    new: Mutex<Option<Arc<SharedLog>>>,
    /// A session was asked for that has left nothing.
    missed: AtomicBool,
}

impl Control {
    /// Takes hold of what earlier sessions of a pool left in shared memory.
    ///
    /// # Errors
    /// Another process serves the pool; the folder cannot be used. What is there is then not touched.
    pub(super) fn tails(&self, pool: Uuid) -> Result<Tails, ErrorDetail> {
        let folder = SharedLogFolder::open(&self.shared_memory).map_err(|error| of_ring(&error, ""))?;
        let mut old = BTreeMap::new();
        for name in folder.list(pool).map_err(|error| of_ring(&error, ""))? {
            if name != folder.name(pool, name.session) {
                continue;
            }
            if let Some(tail) = folder.attach(pool, name.session).map_err(|error| of_ring(&error, ""))? {
                old.insert(name.session, Arc::new(tail));
            }
        }
        Ok(Tails { folder, pool, old: Mutex::new(old), new: Mutex::new(None), missed: AtomicBool::new(false) })
    }
}

impl Tails {
    /// What this session left.
    pub fn old(&self, session: u64) -> Option<Arc<dyn LogMemory>> {
        let old = self.old.lock().unwrap_or_else(PoisonError::into_inner);
        let found = old.get(&session).map(|tail| Arc::clone(tail) as Arc<dyn LogMemory>);
        self.missed.store(found.is_none(), Ordering::Relaxed);
        found
    }

    /// Whether the session that was asked for last has left nothing here.
    pub fn missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }

    /// Which boot of the machine this is.
    pub fn boot(&self) -> Uuid {
        self.folder.name(self.pool, 0).boot
    }

    /// Memory for this session, of about so many bytes.
    ///
    /// # Errors
    /// There is none.
    pub fn begin(&self, session: u64, bytes: u64) -> Result<Arc<dyn LogMemory>, String> {
        // A start that was cut off may have made one that was never used.
        self.old.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
        let name = self.folder.name(self.pool, session);
        self.folder.remove(&name).map_err(|error| error.to_string())?;
        // Never more than asked for: what it holds has to fit into the rings.
        let bytes = (bytes / PAGE_BYTES * PAGE_BYTES) as usize;
        let tail = Arc::new(self.folder.create(self.pool, session, bytes).map_err(|error| error.to_string())?);
        *self.new.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&tail));
        Ok(tail)
    }

    /// Nothing depends on the old ones any more: they go. Returns the new one.
    pub fn keep_new(self) -> Option<Arc<SharedLog>> {
        let new = self.new.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.old.lock().unwrap_or_else(PoisonError::into_inner).clear();
        for name in self.folder.list(self.pool).unwrap_or_default() {
            if new.as_ref().is_none_or(|tail| *tail.name() != name)
                && let Err(error) = self.folder.remove(&name)
            {
                tracing::warn!("an old tail stays in shared memory: {error}");
            }
        }
        new
    }

    /// All of a pool's tails go: it is deleted, or closed in order.
    pub fn remove_all(self) {
        self.new.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.keep_new();
    }
}
