//! The journal of an array with parity, as it stands on its members.
//!
//! Each member's journal area begins with two places for the *head*; the *ring* takes the rest. The head says which run the
//! ring's batches are of, and which rows a crash and a loss together have made unreadable. A *batch* is a header of one block,
//! which lists *entries*, and their payload behind it. It stands at the same place of the ring on several members.
//!
//! A *row* is a stripe cut into equal heights of [`row_bytes`]; a *line* is one block of that height, over all cells.
//!
//! A batch counts when every byte of it is right: header and payload each have a checksum, and the header names the array, the
//! run, its sequence number and its place. What a reader makes of all that it finds is [`Findings`].

mod batch;
mod head;
mod judge;

pub use batch::{BatchHeader, Entries, Entry, EntryKind, batch_check, decode_batch, encode_batch, payload_crc};
pub use head::{Head, LostRow, RingOn, decode_head, encode_head, head_slot};
pub use judge::{Conflict, Copies, Findings};

use crate::BLOCK_BYTES;

/// Blocks of 4096 bytes that each of the two places for the head has.
pub const HEAD_BLOCKS: u32 = 8;
/// Bytes of each of the two places for the head.
pub const HEAD_BYTES: usize = HEAD_BLOCKS as usize * BLOCK_BYTES as usize;
/// Where the ring begins in the journal area, in bytes.
pub const RING_START_BYTES: u64 = 2 * HEAD_BYTES as u64;
/// Largest ring on a disk of its own, in blocks of 4096 bytes (64 MiB): a start reads all of it.
pub const DISK_RING_BLOCKS_MAX: u64 = 16 << 10;
/// Most entries of one batch.
pub const ENTRIES_MAX: usize = 168;
/// Most blocks of one batch, its header included (4 MiB).
pub const BATCH_BLOCKS_MAX: u32 = 1024;
/// Most unreadable rows that a head can list.
pub const LOST_ROWS_MAX: usize = 2000;
/// Most cells of one row that the list can name.
pub const LOST_CELLS_MAX: usize = 6;
/// Largest height of a row, in bytes.
pub const ROW_BYTES_MAX: u32 = 64 << 10;
/// Most lines of a row.
pub const ROW_BLOCKS_MAX: u32 = ROW_BYTES_MAX / BLOCK_BYTES as u32;

/// The height of a row, in bytes: the largest multiple of 4096 that divides the chunk and is at most 64 KiB; 4096 for a chunk
/// that is none of Braid's.
pub const fn row_bytes(chunk_bytes: u32) -> u32 {
    let mut blocks = ROW_BLOCKS_MAX;
    while blocks > 1 {
        let bytes = blocks * BLOCK_BYTES as u32;
        if chunk_bytes != 0 && chunk_bytes.is_multiple_of(bytes) {
            return bytes;
        }
        blocks -= 1;
    }
    BLOCK_BYTES as u32
}

/// How many blocks the ring has in a journal area of this size; 0: there is no room for one.
pub const fn ring_blocks(journal_bytes: u64) -> u64 {
    journal_bytes.saturating_sub(RING_START_BYTES) / BLOCK_BYTES
}

/// The smallest ring that an array of so many members can work with, in blocks: it holds one line of a row, with its header.
pub const fn ring_blocks_min(members: u64) -> u64 {
    members + 1
}

/// Where a batch of so many blocks stands that comes after one which ended before block `next` of the ring.
pub const fn position_for(next: u64, blocks: u32, ring_blocks: u64) -> u64 {
    if next + blocks as u64 > ring_blocks { 0 } else { next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_divide_every_chunk() {
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
            assert_eq!(row_bytes(chunk), row, "{chunk}");
        }
        for blocks in 1..=1024u32 {
            let row = row_bytes(blocks * 4096);
            assert!(row <= ROW_BYTES_MAX && (blocks * 4096).is_multiple_of(row), "{blocks}");
            let larger = (row / 4096 + 1..=16).any(|height| blocks.is_multiple_of(height));
            assert!(!larger, "{blocks}: {row}");
        }
    }

    #[test]
    fn a_batch_does_not_pass_the_end() {
        assert_eq!((position_for(5, 5, 10), position_for(6, 5, 10), position_for(10, 1, 10)), (5, 0, 0));
        assert_eq!((ring_blocks(0), ring_blocks(65536 + 4095), ring_blocks(768 << 10)), (0, 0, 176));
        assert!(ring_blocks(768 << 10) >= ring_blocks_min(128), "every default place has room");
    }
}
