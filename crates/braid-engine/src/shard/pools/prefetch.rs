//! Prefetches what requests to a volume will look up into the processor's caches.
//!
//! The map of a large volume is larger than the caches, and requests are spread over it: each would wait for the word
//! of its logical extent, then for what the word names (a node, a record), and a write for the extent's owner. A driver
//! that holds several requests before the first of them begins announces them here. The shard prefetches all their
//! words, then everything that the words name: the waits overlap. It is a hint: nothing depends on it, no state is
//! kept, and announced requests need not arrive.

use super::super::Shard;
use crate::io::{DeviceId, LeafSink};
use crate::pool::BLOCK_BYTES;
use crate::volume::VolumeNode;

/// A map of at most this size is in the caches anyway, if it is used so much that prefetching would matter.
const CACHED_BYTES: u64 = 256 << 10;

/// A read or write that is about to be submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UpcomingRequest {
    /// Its first byte on the device.
    pub offset: u64,
    /// It is a write.
    pub write: bool,
}

impl Shard {
    /// Returns whether it is useful to announce requests to this device.
    pub fn uses_prefetch(&self, device: DeviceId) -> bool {
        self.volume_at(device).is_some_and(|volume| volume.volume.map.memory_bytes() > CACHED_BYTES)
    }

    /// Prefetches the lookups of the requests that are about to be submitted to this device.
    pub fn prefetch(&self, device: DeviceId, soon: &[UpcomingRequest], sink: &impl LeafSink) {
        let Some(volume) = self.volume_at(device) else { return };
        let (map, records) = (&volume.volume.map, &volume.pool.records);
        let fetch = |address: *const u8| sink.prefetch(address);
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
