//! The layouts that are published.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use braid_engine::{DeviceId, DeviceLayout};

/// The last published layout of every device. A layout is entered here before any shard receives it, so no shard has a
/// later one.
#[derive(Default)]
pub(crate) struct Layouts(Mutex<BTreeMap<u32, Arc<DeviceLayout>>>);

impl Layouts {
    fn with<R>(&self, work: impl FnOnce(&mut BTreeMap<u32, Arc<DeviceLayout>>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn of(&self, device: DeviceId) -> Option<Arc<DeviceLayout>> {
        self.with(|layouts| layouts.get(&device.0).cloned())
    }

    pub(crate) fn set(&self, device: DeviceId, layout: Option<&Arc<DeviceLayout>>) {
        // The previous layout is dropped outside the lock.
        let _before = self.with(|layouts| match layout {
            Some(layout) => layouts.insert(device.0, Arc::clone(layout)),
            None => layouts.remove(&device.0),
        });
    }

    pub(crate) fn clear(&self) {
        self.with(BTreeMap::clear);
    }
}
