//! Heads of the journal while an array serves: they keep the list of unreadable stripes on the disks current, without
//! those that were rewritten.
//!
//! An entry that has rewritten a stripe stays in the journal until the stripe has left that list: after a flush, which
//! makes the write in place durable, the head is written on all members, including those being rebuilt; only then may
//! the tail pass the entry. A head contains the list as it is when its flush begins: later changes may still be in a
//! disk's cache.

use braid_format::journal::{HEAD_BYTES, JournalHead, RingLocation, encode_head};

use crate::io::{DeviceId, LeafSink};
use crate::parity::Parity;
use crate::shard::Shard;
use crate::shard::journal_state::{BLOCK, Journal};
use crate::shard::scratch::PageRun;

impl Shard {
    /// Builds the head that follows a flush that is about to begin, if stripes have left the list. `Err`: there is no
    /// memory for it now.
    pub(super) fn prepare_head(
        &mut self,
        device: DeviceId,
        parity: &Parity,
        sink: &mut impl LeafSink,
    ) -> Result<Option<PageRun>, ()> {
        let Some(Journal { node, heads, .. }) = self.journals.of(device) else { return Err(()) };
        let changes = node.lost_stripes.changes();
        if changes == heads.written {
            return Ok(None);
        }
        let scratch = self.journal_scratch.as_mut().expect("an array with parity has scratch memory");
        let memory = scratch.take((HEAD_BYTES as u64 / BLOCK) as u32).ok_or(())?;
        heads.coming = changes;
        heads.list.clear();
        node.lost_stripes.list(&mut heads.list);
        let head = JournalHead {
            generation: heads.generation + 1,
            run: node.run,
            ring_blocks: node.ring_blocks,
            stripe_bytes: parity.row_bytes as u32,
            ring_on: node.ring_disk().map_or(RingLocation::Members, |disk| RingLocation::Disk {
                id: disk.id,
                member_blocks: disk.member_blocks,
            }),
        };
        let out = scratch.page(memory.first);
        sink.compute(&[], &[out], HEAD_BYTES as u64, &mut |_, bytes| {
            let bytes: &mut [u8; HEAD_BYTES] = (&mut *bytes[0]).try_into().expect("a head");
            encode_head(&node.array, &head, &heads.list, bytes);
        });
        Ok(Some(memory))
    }
}
