//! What a request to a volume will look at is brought into the processor's caches before it begins.
//!
//! The map of a large volume is larger than the caches, and requests come from anywhere in it. Who has a queue of requests knows
//! them before they begin. Told of one, a shard lets the word of its logical extent be fetched; some requests later, when that is there, what
//! the word names, if that is looked at, too: a node, a record, for writes the owner. It is a hint: nothing depends on it, and what a shard was
//! told of need not come.

use super::super::Shard;
use crate::io::{DeviceId, LeafSink, Op};
use crate::pool::BLOCK_BYTES;

/// Requests between the one whose word is fetched and the one whose second look is.
const LATER: usize = 8;
/// Where so many words in a row have said it all, only one request in [`LATER`] is looked at a second time.
const IN_A_ROW: u8 = 64;

/// Requests whose words are being fetched.
#[derive(Default)]
pub(super) struct Foresight {
    told: [Option<(DeviceId, Op, u64)>; LATER],
    next: usize,
    /// Second looks that may still be of no use until most are left out.
    useful: u8,
    calls: u8,
}

impl Shard {
    /// Whether it is of use to tell what this device is going to be asked.
    pub fn heeds(&self, device: DeviceId) -> bool {
        let device = self.devices.get(device);
        device.and_then(|device| device.current.as_deref()).is_some_and(|layout| layout.volume().is_some())
    }

    /// A read or write at this place is to come. Best told 16 requests before it.
    #[inline]
    pub fn foresee(&mut self, device: DeviceId, op: Op, offset: u64, sink: &impl LeafSink) {
        let Some(volume) = self.devices.get(device).and_then(|of| of.current.as_deref()).and_then(|of| of.volume())
        else {
            return;
        };
        let block = offset / BLOCK_BYTES;
        if let Some(word) = volume.volume.map.word_at(block) {
            sink.fetch(word);
        }
        let foresight = &mut self.pools.foresight;
        foresight.calls = foresight.calls.wrapping_add(1);
        if foresight.useful > 0 || usize::from(foresight.calls).is_multiple_of(LATER) {
            self.foresee_second(device, op, block, sink);
        }
    }

    #[inline(never)]
    fn foresee_second(&mut self, device: DeviceId, op: Op, block: u64, sink: &impl LeafSink) {
        let Foresight { told, next, useful, .. } = &mut self.pools.foresight;
        *next = (*next + 1) % LATER;
        let Some((device, op, block)) = told[*next].replace((device, op, block)) else { return };
        // It may be gone by now, or another one.
        let of = self.devices.get(device).and_then(|of| of.current.as_deref());
        let Some(volume) = of.and_then(|of| of.volume()) else { return };
        match volume.volume.map.second_look(&volume.pool.records, block, op == Op::Write) {
            Some(address) => {
                *useful = IN_A_ROW;
                sink.fetch(address);
            }
            None => *useful = useful.saturating_sub(1),
        }
    }
}
