//! The state of a journal's heads: see [`super::super::journal`].

use braid_format::journal::{HEAD_BYTES, LostStripe, RING_OFFSET_BYTES, head_slot};

use crate::parity::ParityNode;

/// The state of a journal's head: what is on the members, and what is written next.
pub(in crate::shard) struct Heads {
    /// The generation of the head that is on all members.
    pub(in crate::shard) generation: u64,
    /// The number of changes of the list that the head on the members includes, and that the head in flight includes.
    pub(in crate::shard) written: u64,
    pub(in crate::shard) coming: u64,
    /// Number of lost cells in the head on the members: the list may have as many entries.
    pub cells: usize,
    pub(in crate::shard) list: Vec<LostStripe>,
}

impl Heads {
    pub fn new(node: &ParityNode) -> Heads {
        let cells = node.lost_stripes.capacity();
        Heads { generation: node.generation, written: 0, coming: 0, cells, list: Vec::with_capacity(cells) }
    }

    /// Notes that the head in flight is on all members.
    pub fn done(&mut self) {
        let cells = self.list.iter().map(|row| row.cells().len()).sum();
        (self.generation, self.written, self.cells) = (self.generation + 1, self.coming, cells);
    }

    /// Returns the distance of the head in flight from the first byte of the ring, backwards, in bytes.
    pub fn before_ring(&self) -> u64 {
        RING_OFFSET_BYTES - head_slot(self.generation + 1) * HEAD_BYTES as u64
    }
}
