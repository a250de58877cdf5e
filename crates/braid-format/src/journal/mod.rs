//! The on-disk journal of an array with parity.
//!
//! Each member's journal area begins with two slots for the *head*; the *ring* takes the rest. The head names the run
//! of the ring's batches, and lists the stripes that a crash together with the loss of a member made unreadable. A
//! *batch* is a header of one block, which lists *entries*, followed by their payload. Several members hold the same
//! batch at the same position of the ring.
//!
//! In the journal, a *stripe* is [`stripe_bytes`] high: one chunk of each member is divided into stripes of equal height.
//! A *cell* is one member's part of a stripe; a *line* is one block of its height, over all cells.
//!
//! A batch is valid when every byte of it is right: header and payload each have a checksum, and the header names the
//! array, the run, the sequence number and the position. [`RecoveredBatches`] determines which valid batches recovery accepts.

mod batch;
mod findings;
mod head;

pub use batch::{
    Entries, EntryKind, JournalBatchHeader, JournalEntry, batch_crc, decode_batch, encode_batch, payload_crc,
};
pub use findings::{BatchConflict, BatchCopies, RecoveredBatches};
pub use head::{JournalHead, LostStripe, RingLocation, decode_head, encode_head, head_slot};

use crate::BLOCK_BYTES;

/// Size of each of the two head slots, in blocks of 4096 bytes.
pub const HEAD_BLOCKS: u32 = 8;
/// Size of each of the two head slots, in bytes.
pub const HEAD_BYTES: usize = HEAD_BLOCKS as usize * BLOCK_BYTES as usize;
/// Where the ring begins in the journal area, in bytes.
pub const RING_OFFSET_BYTES: u64 = 2 * HEAD_BYTES as u64;
/// Maximum size of the ring on a dedicated disk, in blocks of 4096 bytes (64 MiB): a start reads all of it.
pub const DISK_RING_BLOCKS_MAX: u64 = 16 << 10;
/// Maximum number of entries in a batch.
pub const ENTRIES_MAX: usize = 168;
/// Maximum size of a batch, in blocks, its header included (4 MiB).
pub const BATCH_BLOCKS_MAX: u32 = 1024;
/// Maximum number of lost stripes that a head can list.
pub const LOST_STRIPES_MAX: usize = 2000;
/// Maximum number of cells in one entry of that list.
pub const LOST_CELLS_MAX: usize = 6;
/// Maximum height of a stripe, in bytes.
pub const STRIPE_BYTES_MAX: u32 = 64 << 10;
/// Maximum number of lines in a stripe.
pub const STRIPE_LINES_MAX: u32 = STRIPE_BYTES_MAX / BLOCK_BYTES as u32;

/// Returns the height of a stripe of the journal, in bytes: the largest multiple of 4096 that divides the chunk and is
/// at most 64 KiB; 4096 for an invalid chunk size (0, or not a multiple of 4096).
pub const fn stripe_bytes(chunk_bytes: u32) -> u32 {
    let mut blocks = STRIPE_LINES_MAX;
    while blocks > 1 {
        let bytes = blocks * BLOCK_BYTES as u32;
        if chunk_bytes != 0 && chunk_bytes.is_multiple_of(bytes) {
            return bytes;
        }
        blocks -= 1;
    }
    BLOCK_BYTES as u32
}

/// Returns the size of the ring in a journal area of this size, in blocks; 0: there is no room for one.
pub const fn ring_blocks(journal_bytes: u64) -> u64 {
    journal_bytes.saturating_sub(RING_OFFSET_BYTES) / BLOCK_BYTES
}

/// Returns the size of the smallest ring that an array of this many members can work with, in blocks: a batch with one
/// line of a stripe, which has a header and one block for each member.
pub const fn ring_blocks_min(members: u64) -> u64 {
    members + 1
}

/// Returns the position in the ring, in blocks, of a batch of `blocks` blocks whose predecessor ends before block
/// `next`: `next`, or 0 if the batch would extend beyond the end of the ring. A batch never wraps around.
pub const fn position_for(next: u64, blocks: u32, ring_blocks: u64) -> u64 {
    if next + blocks as u64 > ring_blocks { 0 } else { next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripe_heights_divide_every_chunk() {
        for (chunk, row) in [
            (4096, 4096),
            (8192, 8192),
            (64 << 10, 64 << 10),
            (1 << 20, 64 << 10),
            (17 * 4096, 4096),
            (20 * 4096, 10 * 4096),
            (68 << 10, 4096),
            (48 << 10, 48 << 10),
            (192 << 10, 64 << 10),
            (0, 4096),
            (4095, 4096),
        ] {
            assert_eq!(stripe_bytes(chunk), row, "{chunk}");
        }
        for blocks in 1..=1024u32 {
            let row = stripe_bytes(blocks * 4096);
            assert!(row <= STRIPE_BYTES_MAX && (blocks * 4096).is_multiple_of(row), "{blocks}");
            let larger = (row / 4096 + 1..=16).any(|height| blocks.is_multiple_of(height));
            assert!(!larger, "{blocks}: {row}");
        }
    }

    #[test]
    fn a_batch_does_not_cross_the_end_of_the_ring() {
        assert_eq!((position_for(5, 5, 10), position_for(6, 5, 10), position_for(10, 1, 10)), (5, 0, 0));
        assert_eq!((ring_blocks(0), ring_blocks(65536 + 4095), ring_blocks(768 << 10)), (0, 0, 176));
        assert!(ring_blocks(768 << 10) >= ring_blocks_min(128), "every default layout has room");
    }
}
