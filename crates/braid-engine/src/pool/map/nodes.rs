//! The memory of nodes: words in chunks that never move and are never freed, so that a reader may look at any time.
//!
//! What a reader sees may be torn, or belong to another node by now; it looks at its word again afterwards, and retries
//! if that has changed. Until then it must only stay in bounds: whatever the words say, no reader reads beyond a node.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::EXTENT_BLOCKS;
use super::directory::Directory;
use super::word::{NEXT_SLOT, NodeId, TABLE, location_of};
use super::{BlockLocation, ones_from, zeros_from};

/// Words of a chunk: 16 KiB.
pub(super) const CHUNK_WORDS: usize = 2048;
/// Units of two words in a chunk, as a shift.
pub(super) const CHUNK_UNITS_SHIFT: u32 = 10;

/// Aligned to cache lines, so that a node of up to eight words is on one line.
#[derive(Debug)]
#[repr(align(64))]
struct Chunk([AtomicU64; CHUNK_WORDS]);

#[derive(Debug)]
pub(super) struct Nodes(Directory<Box<Chunk>>);

impl Nodes {
    pub(super) fn new() -> Nodes {
        Nodes(Directory::new(0))
    }

    /// The words of a node.
    #[inline]
    pub(super) fn words(&self, offset: u64, class: u32) -> &[AtomicU64] {
        let chunk =
            self.0.get(offset >> CHUNK_UNITS_SHIFT).expect("a word names a node only after its chunk was added");
        let at = (offset as usize & ((1 << CHUNK_UNITS_SHIFT) - 1)) * 2;
        &chunk.0[at..at + (2 << class)]
    }

    /// Returns the address at which a lookup of block `at` of a node's logical extent begins.
    #[inline]
    pub(super) fn lookup_address(&self, node: NodeId, at: u32) -> *const u8 {
        let words = self.words(node.offset, node.class);
        let first = if node.class == TABLE { at as usize } else { 0 };
        std::ptr::from_ref(&words[first]).cast()
    }

    /// Adds room for further nodes. For the writer.
    pub(super) fn add_chunk(&self, index: u64) {
        self.0.get_or_add(index, || Box::new(Chunk([const { AtomicU64::new(0) }; CHUNK_WORDS])));
    }

    /// Bytes of the directory; the writer counts the chunks.
    pub(super) fn directory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }

    /// Returns the run that begins at block `at` of a node's logical extent, at most `room` blocks of it.
    #[inline]
    pub(super) fn find(&self, node: NodeId, at: u32, room: u32) -> BlockLocation {
        let words = self.words(node.offset, node.class);
        if node.class == TABLE { find_in_table(words, at, room) } else { find_in_list(words, at, room) }
    }
}

#[inline]
pub(super) fn load(words: &[AtomicU64], at: usize) -> u64 {
    // The words may be of several nodes: the reader loads its own word again afterwards, and retries if it has changed.
    words.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// Returns the length of a run whose entries count up from `first`, which is one of them.
#[inline]
fn run(first: u64, most: u32, entry: impl Fn(u32) -> u64) -> u32 {
    // A torn read may begin with anything, so this must not overflow.
    (1..most).take_while(|&k| entry(k) == first.wrapping_add(NEXT_SLOT * u64::from(k))).count() as u32 + 1
}

/// Finds a run in a list: a word that says which blocks are packed, a word for each of these, two for each piece.
#[inline]
fn find_in_list(words: &[AtomicU64], at: u32, room: u32) -> BlockLocation {
    let packed = load(words, 0);
    if packed >> at & 1 != 0 {
        let rank = 1 + (packed & ((1 << at) - 1)).count_ones() as usize;
        let first = load(words, rank);
        let (extent, position) = location_of(first);
        let most = room.min(ones_from(packed, at));
        return BlockLocation::At { extent, position, blocks: run(first, most, |k| load(words, rank + k as usize)) };
    }
    let mut seen = packed;
    for (extent, mask) in pieces(words, packed) {
        if mask >> at & 1 != 0 {
            let (extent, _) = location_of(extent);
            return BlockLocation::At { extent, position: at, blocks: room.min(ones_from(mask, at)) };
        }
        seen |= mask;
    }
    BlockLocation::Nothing { blocks: room.min(zeros_from(seen, at)) }
}

/// Returns the pieces of a list in which these blocks are packed. One without blocks ends them.
#[inline]
pub(super) fn pieces(words: &[AtomicU64], packed: u64) -> impl Iterator<Item = (u64, u64)> {
    let first = 1 + packed.count_ones() as usize;
    (first..).step_by(2).map(|at| (load(words, at), load(words, at + 1))).take_while(|&(_, mask)| mask != 0)
}

/// Finds a run in a table: a word for each block.
#[inline]
fn find_in_table(words: &[AtomicU64], at: u32, room: u32) -> BlockLocation {
    let entry = |k: u32| load(words, (at + k) as usize);
    debug_assert!(at + room <= EXTENT_BLOCKS);
    match entry(0) {
        0 => BlockLocation::Nothing { blocks: (1..room).take_while(|&k| entry(k) == 0).count() as u32 + 1 },
        first => {
            let (extent, position) = location_of(first);
            BlockLocation::At { extent, position, blocks: run(first, room, entry) }
        }
    }
}
