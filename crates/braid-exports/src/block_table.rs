//! The table of the block devices that this daemon serves, and of device recoveries that failed half-way.

use braid_ublk::{Control as Driver, Device, Opening};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// The block devices that this daemon serves.
#[derive(Default)]
pub struct Blocks {
    all: Mutex<BTreeMap<Uuid, Arc<Block>>>,
    /// Recoveries that failed half-way, by export. The kernel queues the I/O of such a device until the next attempt,
    /// which continues from this state.
    interrupted: Mutex<BTreeMap<Uuid, Opening>>,
    /// The features of the ublk driver; `None` until it was first opened.
    features: Mutex<Option<Vec<String>>>,
}

/// The block device of one export.
pub(crate) struct Block {
    /// The device.
    pub(crate) device: Device,
    /// Its stable path.
    pub(crate) link: PathBuf,
}

impl Blocks {
    /// Locks the table of devices, by export.
    pub(crate) fn all(&self) -> MutexGuard<'_, BTreeMap<Uuid, Arc<Block>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the table of interrupted recoveries, by export.
    pub(crate) fn interrupted(&self) -> MutexGuard<'_, BTreeMap<Uuid, Opening>> {
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the features of the ublk driver; `None` if it was not queried yet or is not loaded.
    pub fn features(&self) -> Option<Vec<String>> {
        self.features.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the paths of the served devices.
    pub(crate) fn devices(&self) -> Vec<PathBuf> {
        self.all().values().map(|block| block.device.path()).collect()
    }

    /// Records the features of the driver.
    pub(crate) fn note_features(&self, driver: &Driver) {
        let words = driver.features().words().into_iter().map(str::to_owned).collect();
        *self.features.lock().unwrap_or_else(PoisonError::into_inner) = Some(words);
    }

    /// Returns the device of an export; none if this daemon serves none for it.
    pub(crate) fn of(&self, export: Uuid) -> Option<Arc<Block>> {
        self.all().get(&export).cloned()
    }
}
