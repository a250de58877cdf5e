//! Heads of the journal while an array serves: the list of unreadable rows on the disks, without those that were written again.
//!
//! What has written a row again stands in the journal until the row has left that list: after a flush, with which all of it is
//! durable in its place, the head is written on all members, those that are being filled as well; only then may the tail pass.
//! The list of a head is that of the moment in which its flush begins: what leaves later may be in a cache.

use braid_format::journal::{
    HEAD_BYTES, JournalHead, LostStripe, RING_OFFSET_BYTES, RingLocation, encode_head, head_slot,
};

use super::{BLOCK, Journal};
use crate::io::{DeviceId, LeafSink};
use crate::parity::{Parity, ParityNode};
use crate::shard::Shard;
use crate::shard::scratch::Run;

/// What the head of a journal says, and what it is to say next.
pub(super) struct Heads {
    /// Of the head that is on all members.
    generation: u64,
    /// The changes of the list that are in it, and those that are in the one under way.
    written: u64,
    coming: u64,
    /// Cells in the one on the members: as many entries the list may come to have.
    pub cells: usize,
    list: Vec<LostStripe>,
}

impl Heads {
    pub fn new(node: &ParityNode) -> Heads {
        let cells = node.lost.capacity();
        Heads { generation: node.generation, written: 0, coming: 0, cells, list: Vec::with_capacity(cells) }
    }

    /// The one under way is on all members.
    pub fn done(&mut self) {
        let cells = self.list.iter().map(|row| row.cells().len()).sum();
        (self.generation, self.written, self.cells) = (self.generation + 1, self.coming, cells);
    }

    /// Where the one under way stands, from the first byte of the ring back.
    pub fn before_ring(&self) -> u64 {
        RING_OFFSET_BYTES - head_slot(self.generation + 1) * HEAD_BYTES as u64
    }
}

impl Shard {
    /// A flush is about to begin: puts the head together that follows it, if rows have left the list. `Err`: there is no memory
    /// for it now.
    pub(super) fn prepare_head(
        &mut self,
        device: DeviceId,
        parity: &Parity,
        sink: &mut impl LeafSink,
    ) -> Result<Option<Run>, ()> {
        let Some(Journal { node, heads, .. }) = self.journals.of(device) else { return Err(()) };
        let changes = node.lost.changes();
        if changes == heads.written {
            return Ok(None);
        }
        let scratch = self.journal_scratch.as_mut().expect("an array with parity has scratch memory");
        let memory = scratch.take((HEAD_BYTES as u64 / BLOCK) as u32).ok_or(())?;
        heads.coming = changes;
        heads.list.clear();
        node.lost.list(&mut heads.list);
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
