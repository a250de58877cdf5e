//! The map of one volume: where each of its blocks is, through the whole chain of its snapshots.
//!
//! One word for each logical extent:
//!
//! ```text
//! unmapped   nothing is there: it reads as zeros
//! whole      one extent holds all 64 blocks, each at its own position
//! single     one extent says it all: its record's `present` word is what is visible
//! node       a list of pieces (an extent, and which blocks are visible there) and of packed blocks (an extent and a
//!            slot), or a table with an entry for each block where that is no larger
//! ```
//!
//! *Single* is what a thin volume is made of while it fills: a block that is added to the record is visible by that alone,
//! and the map takes no memory beyond the word. It is allowed only while nothing that the record may ever come to say is
//! hidden from this volume; see [`MapWriter::set_blocks`].
//!
//! Where nobody knows what is visible, [`ExtentId::IN_DOUBT`] stands as an extent.
//!
//! One writer, any number of readers, no lock. A node is never changed: another one is written, the word is set, and the old
//! one is free. A reader loads the word, reads what it names, loads the word again, and begins anew if it has changed; the
//! generation in a node's word tells a node from its successor in the same place. What a reader is told was true at one
//! moment during its look. What makes that enough is outside: writes to one block are in one order, and an extent is used
//! again only after every slot that may have seen it has ended (ordering rule 4 of pools).
//!
//! Memory: 8 bytes an extent, taken for 512 MiB of the volume at a time, when the first extent there is mapped; 16 to 32 bytes
//! for each 512 MiB, mapped or not; and nodes: 16 to 256 bytes for a list, 512 for a table. At worst, all extents having tables,
//! less than 540 bytes an extent with everything. What was taken once is kept until the map is dropped, and used again.

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

/// Words of a part of the map that is made when the first of them is needed: 512 MiB of the volume. Smaller parts would
/// make the directory of a large map too large for the processor's caches.
const PART_WORDS: usize = 2048;

/// Words and parts that one question for what is not mapped looks at: 100 µs or so. Of parts that do not exist these are 32 TiB.
const UNMAPPED_LOOKS_MAX: usize = 1 << 16;

type Part = [AtomicU64; PART_WORDS];

/// Where a run of blocks is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
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

/// How many bits are set from `at` on, without a gap.
#[inline(always)]
fn ones_from(mask: u64, at: u32) -> u32 {
    (mask >> at).trailing_ones()
}

/// How many are not set from `at` on; more than there are if none is.
#[inline(always)]
fn zeros_from(mask: u64, at: u32) -> u32 {
    (mask >> at).trailing_zeros()
}

impl VolumeMap {
    /// How many logical extents there are.
    pub fn extents(&self) -> u32 {
        self.extents.load(Ordering::Acquire)
    }

    /// The longest run from `block` on that is in one place, of at most `blocks_max` blocks and not beyond the end of the
    /// logical extent: further ones may go on in the same place. Beyond the end of the volume there is nothing.
    #[inline(always)]
    pub fn find(&self, records: &Records, block: u64, blocks_max: u32) -> Found {
        debug_assert!(blocks_max > 0, "a run of no blocks");
        let at = block as u32 % EXTENT_BLOCKS;
        let room = blocks_max.min(EXTENT_BLOCKS - at);
        let Some(cell) = self.cell(block / u64::from(EXTENT_BLOCKS)) else {
            return Found::Nothing { blocks: room };
        };
        let word = cell.load(Ordering::Acquire);
        match Word::from_bits(word) {
            Word::Unmapped => Found::Nothing { blocks: room },
            Word::Whole(extent) => Found::At { extent, position: at, blocks: room },
            Word::Single(extent) => {
                // With acquire: if it says what the record became after the word had changed, the word is seen changed.
                let found = find_in_mask(extent, records.present(extent), at, room);
                if cell.load(Ordering::Relaxed) == word { found } else { self.find_anew(records, cell, at, room) }
            }
            Word::Node(_) => self.find_anew(records, cell, at, room),
        }
    }

    #[inline(never)]
    fn find_anew(&self, records: &Records, cell: &AtomicU64, at: u32, room: u32) -> Found {
        self.stable(cell, |word| match word {
            Word::Unmapped => Found::Nothing { blocks: room },
            Word::Whole(extent) => Found::At { extent, position: at, blocks: room },
            Word::Single(extent) => find_in_mask(extent, records.present(extent), at, room),
            Word::Node(node) => self.nodes.find(node, at, room),
        })
    }

    /// Has the word fetched at which a look for this block begins.
    #[inline(always)]
    pub fn fetch_word(&self, block: u64, fetch: impl Fn(*const u8)) {
        if let Some(cell) = self.cell(block / u64::from(EXTENT_BLOCKS)) {
            fetch(std::ptr::from_ref(cell).cast());
        }
    }

    /// Has fetched where the look goes on, if the word does not say it all; for a write, which looks at the owner, it never does. True: for a
    /// write there is more to be fetched, by [`VolumeMap::fetch_owner`].
    #[inline(always)]
    pub fn fetch_second(&self, records: &Records, block: u64, write: bool, fetch: impl Fn(*const u8)) -> bool {
        let Some(cell) = self.cell(block / u64::from(EXTENT_BLOCKS)) else { return false };
        match Word::from_bits(cell.load(Ordering::Acquire)) {
            Word::Node(node) => {
                fetch(self.nodes.first_look(node, block as u32 % EXTENT_BLOCKS));
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

    /// Has the owner fetched of the extent that a node names for this block.
    #[inline]
    pub fn fetch_owner(&self, records: &Records, block: u64, fetch: impl Fn(*const u8)) {
        let Some(cell) = self.cell(block / u64::from(EXTENT_BLOCKS)) else { return };
        // Read torn, a node may name any extent: that there is none is no harm here.
        if let Word::Node(node) = Word::from_bits(cell.load(Ordering::Acquire))
            && let Found::At { extent, .. } = self.nodes.find(node, block as u32 % EXTENT_BLOCKS, 1)
        {
            records.owner_at(extent).map(&fetch);
        }
    }

    /// All that is visible in a logical extent, for those who look at more than a run.
    pub fn visible(&self, records: &Records, logical: u32, visible: &mut Visible) {
        let Some(cell) = self.cell(u64::from(logical)) else {
            return visible.clear();
        };
        self.stable(cell, |word| match word {
            Word::Unmapped => visible.clear(),
            Word::Whole(extent) => visible.set_one(extent, u64::MAX),
            Word::Single(extent) => visible.set_one(extent, records.present(extent)),
            Word::Node(node) => visible.read(self.nodes.words(node.place, node.class), node.class),
        });
    }

    /// The first logical extent from `logical` on that is mapped.
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

    /// How many logical extents from `logical` on, below `end`, are not mapped. Parts of the map that do not exist are passed over as a whole. It
    /// looks at a bounded number of words, and may say fewer than there are: ask again where those end.
    pub fn unmapped(&self, logical: u64, end: u64) -> u64 {
        let mut at = logical;
        let mut looks = 0;
        while at < end && looks < UNMAPPED_LOOKS_MAX {
            let (index, first) = (at / PART_WORDS as u64, at as usize % PART_WORDS);
            let mapped = |cell: &AtomicU64| cell.load(Ordering::Acquire) != 0;
            looks += match self.words.get(index) {
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

    /// Looks until the word was the same before and after.
    fn stable<T>(&self, cell: &AtomicU64, mut look: impl FnMut(Word) -> T) -> T {
        loop {
            let word = cell.load(Ordering::Acquire);
            let seen = look(Word::from_bits(word));
            // Pairs with the release in `Space::give`: who has seen anything newer than the node sees the word changed.
            fence(Ordering::Acquire);
            if cell.load(Ordering::Relaxed) == word {
                return seen;
            }
            std::hint::spin_loop();
        }
    }
}

#[inline(always)]
fn find_in_mask(extent: ExtentId, mask: u64, at: u32, room: u32) -> Found {
    match ones_from(mask, at) {
        0 => Found::Nothing { blocks: room.min(zeros_from(mask, at)) },
        ones => Found::At { extent, position: at, blocks: room.min(ones) },
    }
}
