//! What requests to a volume will look at is brought into the processor's caches before they begin.
//!
//! The map of a large volume is larger than the caches, and requests come from anywhere in it: each would wait for the word of its logical
//! extent, then for what the word names (a node, a record), and a write for the extent's owner. Who holds several requests before the first
//! of them begins tells them here, and the shard lets all their words be fetched, then all that the words name: the waits lie beside each
//! other. It is a hint: nothing depends on it, nothing is kept, and what was told need not come.

use super::super::Shard;
use crate::io::{DeviceId, LeafSink};
use crate::pool::BLOCK_BYTES;
use crate::volume::VolumeNode;

/// A map that takes no more memory than this is in the caches anyway, once it is used as much as would make it worth the while.
const CACHED_BYTES: u64 = 256 << 10;

/// A read or write that is to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Soon {
    /// Its first byte on the device.
    pub offset: u64,
    /// It is a write.
    pub write: bool,
}

impl Shard {
    /// Whether it is of use to tell what this device is going to be asked.
    pub fn heeds(&self, device: DeviceId) -> bool {
        self.volume_at(device).is_some_and(|volume| volume.volume.map.memory_bytes() > CACHED_BYTES)
    }

    /// These are what the device is going to be asked next.
    pub fn foresee(&self, device: DeviceId, soon: &[Soon], sink: &impl LeafSink) {
        let Some(volume) = self.volume_at(device) else { return };
        let (map, records) = (&volume.volume.map, &volume.pool.records);
        let fetch = |address: *const u8| sink.fetch(address);
        for next in soon {
            map.fetch_word(next.offset / BLOCK_BYTES, fetch);
        }
        let mut further = 0;
        for next in soon {
            further += u32::from(map.fetch_second(records, next.offset / BLOCK_BYTES, next.write, fetch));
        }
        if further == 0 {
            return;
        }
        for next in soon.iter().filter(|next| next.write) {
            map.fetch_owner(records, next.offset / BLOCK_BYTES, fetch);
        }
    }

    fn volume_at(&self, device: DeviceId) -> Option<&VolumeNode> {
        self.devices.get(device)?.current.as_deref()?.volume()
    }
}
