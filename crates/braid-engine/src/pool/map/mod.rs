//! The map of one volume: where each of its blocks is, through the whole chain of its snapshots.
//!
//! One word for each logical extent:
//!
//! ```text
//! unmapped   no data: it reads as zeros
//! whole      one extent holds all 64 blocks, each at its own position
//! single     one extent has all that is visible: its record's `present` word
//! node       a list of pieces (an extent, and which blocks are visible there) and of packed blocks (an extent and a
//!            slot), or a table with an entry for each block where that is no larger
//! ```
//!
//! *Single* is what a thin volume is made of while it fills: a block that is added to the record is visible by that
//! alone, and the map takes no memory beyond the word. It is allowed only while nothing that the record may ever hold
//! is hidden from this volume; see [`MapWriter::set_blocks`].
//!
//! Where it is unknown what is visible, [`ExtentId::IN_DOUBT`] is given as the extent.
//!
//! One writer, any number of readers, no lock. A node is never changed: another one is written, the word is set, and
//! the old one is freed. A reader loads the word, reads the node that it names, loads the word again, and retries if it
//! has changed; the generation in a node's word tells a node from its successor at the same offset. What a reader finds
//! was true at one moment during its lookup. That is enough because of rules outside: writes to one block are in one
//! order, and an extent is reused only after every slot that may have seen it has ended (ordering rule 4 of pools).
//!
//! Memory: 8 bytes an extent, allocated for 512 MiB of the volume at a time, when the first extent there is mapped; 16
//! to 32 bytes for each 512 MiB, mapped or not; and nodes: 16 to 256 bytes for a list, 512 for a table. At worst, if
//! all extents have tables, less than 540 bytes an extent with everything. Memory is kept until the map is dropped, and
//! reused.

mod directory;
mod nodes;
mod space;
#[cfg(test)]
mod tests;
mod visible;
mod word;
mod writer;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use self::directory::Directory;
use self::nodes::Nodes;
use self::word::Word;
use super::records::Records;
use super::units::{EXTENT_BLOCKS, ExtentId};

pub use self::visible::{PackedBlock, Piece, Visible};
pub use self::writer::{MapWriter, MovedBlock};

/// Words of a part of the map, which is allocated when the first of them is needed: 512 MiB of the volume. Smaller
/// parts would make the directory of a large map too large for the CPU caches.
const PART_WORDS: usize = 2048;

/// Maximum words and missing parts that one call of [`VolumeMap::unmapped`] looks at: about 100 µs. For missing parts
/// these are 32 TiB.
const UNMAPPED_STEPS_MAX: usize = 1 << 16;

type Part = [AtomicU64; PART_WORDS];

/// Where a run of blocks is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockLocation {
    /// Nowhere: they read as zeros.
    Nothing {
        /// How many.
        blocks: u32,
    },
    /// In one extent, one after the other.
    At {
        /// The extent, or [`ExtentId::IN_DOUBT`]: then it is an error to read them.
        extent: ExtentId,
        /// Where the first one is in the extent, in blocks.
        position: u32,
        /// How many.
        blocks: u32,
    },
}

/// The map of one volume or snapshot, as all shards read it. [`MapWriter`] changes it.
#[derive(Debug)]
pub struct VolumeMap {
    words: Directory<Box<Part>>,
    nodes: Nodes,
    extents: AtomicU32,
    /// Bytes of parts, of chunks, and of what the writer knows of chunks.
    bytes: AtomicU64,
}

/// Returns how many bits are set from `at` on, without a gap.
#[inline(always)]
fn ones_from(mask: u64, at: u32) -> u32 {
    (mask >> at).trailing_ones()
}

/// Returns how many bits are clear from `at` on, without a gap; 64 if no further one is set.
#[inline(always)]
fn zeros_from(mask: u64, at: u32) -> u32 {
    (mask >> at).trailing_zeros()
}

impl VolumeMap {
    /// How many logical extents there are.
    pub fn extents(&self) -> u32 {
        self.extents.load(Ordering::Acquire)
    }

    /// Returns the longest run from `block` on that is contiguous in one extent, of at most `blocks_max` blocks and not
    /// beyond the end of the logical extent: the next run may go on in the same extent. Beyond the end of the volume
    /// there is nothing.
    #[inline(always)]
    pub fn find(&self, records: &Records, block: u64, blocks_max: u32) -> BlockLocation {
        debug_assert!(blocks_max > 0, "a run of no blocks");
        let at = block as u32 % EXTENT_BLOCKS;
        let room = blocks_max.min(EXTENT_BLOCKS - at);
        let Some(cell) = self.cell(block / u64::from(EXTENT_BLOCKS)) else {
            return BlockLocation::Nothing { blocks: room };
        };
        let word = cell.load(Ordering::Acquire);
        match Word::from_bits(word) {
            Word::Unmapped => BlockLocation::Nothing { blocks: room },
            Word::Whole(extent) => BlockLocation::At { extent, position: at, blocks: room },
            Word::Single(extent) => {
                // The record is loaded with acquire. If the load returns a value that was stored after the word had
                // changed, the load of the word below returns the changed word, and the lookup is repeated.
                let found = find_in_mask(extent, records.present(extent), at, room);
                if cell.load(Ordering::Relaxed) == word { found } else { self.find_stable(records, cell, at, room) }
            }
            Word::Node(_) => self.find_stable(records, cell, at, room),
        }
    }

    #[inline(never)]
    fn find_stable(&self, records: &Records, cell: &AtomicU64, at: u32, room: u32) -> BlockLocation {
        self.stable(cell, |word| match word {
            Word::Unmapped => BlockLocation::Nothing { blocks: room },
            Word::Whole(extent) => BlockLocation::At { extent, position: at, blocks: room },
            Word::Single(extent) => find_in_mask(extent, records.present(extent), at, room),
            Word::Node(node) => self.nodes.find(node, at, room),
        })
    }

    /// Prefetches the word at which a lookup of this block begins.
    #[inline(always)]
    pub fn fetch_word(&self, block: u64, fetch: impl Fn(*const u8)) {
        if let Some(cell) = self.cell(block / u64::from(EXTENT_BLOCKS)) {
            fetch(std::ptr::from_ref(cell).cast());
        }
    }

    /// Prefetches what a lookup reads after the word, if it reads more. A write always does, as it also reads the
    /// owner. True: a write has still more to prefetch, by [`VolumeMap::fetch_owner`].
    #[inline(always)]
    pub fn fetch_second(&self, records: &Records, block: u64, write: bool, fetch: impl Fn(*const u8)) -> bool {
        let Some(cell) = self.cell(block / u64::from(EXTENT_BLOCKS)) else { return false };
        match Word::from_bits(cell.load(Ordering::Acquire)) {
            Word::Node(node) => {
                fetch(self.nodes.lookup_address(node, block as u32 % EXTENT_BLOCKS));
                return write;
            }
            Word::Single(extent) => {
                records.present_at(extent).map(&fetch);
                if write {
                    records.owner_at(extent).map(&fetch);
                }
            }
            Word::Whole(extent) if write => {
                records.owner_at(extent).map(&fetch);
            }
            Word::Whole(_) | Word::Unmapped => {}
        }
        false
    }

    /// Prefetches the owner of the extent that a node names for this block.
    #[inline]
    pub fn fetch_owner(&self, records: &Records, block: u64, fetch: impl Fn(*const u8)) {
        let Some(cell) = self.cell(block / u64::from(EXTENT_BLOCKS)) else { return };
        // Read torn, a node may name any extent: one that does not exist does no harm here.
        if let Word::Node(node) = Word::from_bits(cell.load(Ordering::Acquire))
            && let BlockLocation::At { extent, .. } = self.nodes.find(node, block as u32 % EXTENT_BLOCKS, 1)
        {
            records.owner_at(extent).map(&fetch);
        }
    }

    /// Reads all that is visible in a logical extent, for callers that look at more than a run.
    pub fn visible(&self, records: &Records, logical: u32, visible: &mut Visible) {
        let Some(cell) = self.cell(u64::from(logical)) else {
            return visible.clear();
        };
        self.stable(cell, |word| match word {
            Word::Unmapped => visible.clear(),
            Word::Whole(extent) => visible.set_one(extent, u64::MAX),
            Word::Single(extent) => visible.set_one(extent, records.present(extent)),
            Word::Node(node) => visible.read(self.nodes.words(node.offset, node.class), node.class),
        });
    }

    /// Returns the first logical extent from `logical` on that is mapped.
    pub fn next_mapped(&self, logical: u32) -> Option<u32> {
        let mut at = u64::from(logical);
        while at < u64::from(self.extents()) {
            let (index, first) = (at / PART_WORDS as u64, at as usize % PART_WORDS);
            if let Some(part) = self.words.get(index)
                && let Some(k) = part[first..].iter().position(|cell| cell.load(Ordering::Acquire) != 0)
            {
                // A part may reach beyond the end, where nothing is mapped.
                return Some(at as u32 + k as u32);
            }
            at = (index + 1) * PART_WORDS as u64;
        }
        None
    }

    /// Returns how many logical extents from `logical` on, below `end`, are not mapped. Parts of the map that do not
    /// exist are skipped as a whole. It looks at a bounded number of words, and may return fewer than there are: call
    /// again from there.
    pub fn unmapped(&self, logical: u64, end: u64) -> u64 {
        let mut at = logical;
        let mut steps = 0;
        while at < end && steps < UNMAPPED_STEPS_MAX {
            let (index, first) = (at / PART_WORDS as u64, at as usize % PART_WORDS);
            let mapped = |cell: &AtomicU64| cell.load(Ordering::Acquire) != 0;
            steps += match self.words.get(index) {
                None => 1,
                Some(part) => {
                    if let Some(k) = part[first..].iter().position(mapped) {
                        at += k as u64;
                        break;
                    }
                    PART_WORDS
                }
            };
            at = (index + 1) * PART_WORDS as u64;
        }
        at.min(end).saturating_sub(logical)
    }

    /// Bytes of memory that the map takes, with what its writer keeps.
    pub fn memory_bytes(&self) -> u64 {
        let fixed = (size_of::<VolumeMap>() + size_of::<MapWriter>()) as u64;
        fixed + self.words.memory_bytes() + self.nodes.directory_bytes() + self.bytes.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn cell(&self, logical: u64) -> Option<&AtomicU64> {
        Some(&self.words.get(logical / PART_WORDS as u64)?[logical as usize % PART_WORDS])
    }

    /// Repeats a lookup until the word was the same before and after it.
    fn stable<T>(&self, cell: &AtomicU64, mut look: impl FnMut(Word) -> T) -> T {
        loop {
            let word = cell.load(Ordering::Acquire);
            let seen = look(Word::from_bits(word));
            // Pairs with the release in `Space::give`: a reader that has seen anything newer than the node sees the
            // changed word.
            fence(Ordering::Acquire);
            if cell.load(Ordering::Relaxed) == word {
                return seen;
            }
            std::hint::spin_loop();
        }
    }
}

#[inline(always)]
fn find_in_mask(extent: ExtentId, mask: u64, at: u32, room: u32) -> BlockLocation {
    match ones_from(mask, at) {
        0 => BlockLocation::Nothing { blocks: room.min(zeros_from(mask, at)) },
        ones => BlockLocation::At { extent, position: at, blocks: room.min(ones) },
    }
}
