//! The log ring of a member, as commits write it.

use braid_format::pool::BATCH_BYTES_MAX;

use super::units::BLOCK_BYTES;

/// Blocks of the longest batch.
pub(super) const BATCH_BLOCKS_MAX: u64 = BATCH_BYTES_MAX as u64 / BLOCK_BYTES;

/// The log ring of one member. A position counts blocks since the ring's first use, and does not wrap: position `p` is
/// block `p % blocks` of the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogRing {
    /// First byte on the member.
    pub offset: u64,
    pub blocks: u64,
    /// The position of the next batch, and its sequence.
    pub head: u64,
    pub sequence: u64,
    /// The position and sequence number of the first batch after the last valid commit.
    pub committed: (u64, u64),
    /// The first block that recovery may need.
    pub start: u64,
}

impl LogRing {
    /// Returns where the next batch is written: no batch begins so near the end that the longest one would not fit.
    pub fn next_position(position: u64, blocks: u64) -> u64 {
        let at = position % blocks;
        if at + BATCH_BLOCKS_MAX > blocks { position + blocks - at } else { position }
    }

    pub fn has_room(&self, needed: u64) -> bool {
        self.head - self.start + needed + BATCH_BLOCKS_MAX <= self.blocks
    }
}
