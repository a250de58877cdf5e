//! Where nodes stand: words in chunks that never move and are never given back, so that a reader may look at any time.
//!
//! What a reader sees may be torn, or belong to somebody else by now; it looks at its word again afterwards and begins anew
//! if that has changed. Until then it must only not be led astray: whatever the words say, nobody reads beyond a node.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::EXTENT_BLOCKS;
use super::directory::Directory;
use super::word::{NEXT_SLOT, NodeId, TABLE, place_of};
use super::{Found, ones_from, zeros_from};

/// Words of a chunk: 16 KiB.
pub(super) const CHUNK_WORDS: usize = 2048;
/// Units of two words in a chunk, as a shift.
pub(super) const CHUNK_UNITS_SHIFT: u32 = 10;

/// On lines of the processor's cache, as nodes of up to eight words then lie on one.
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
    pub(super) fn words(&self, place: u64, class: u32) -> &[AtomicU64] {
        let chunk = self.0.get(place >> CHUNK_UNITS_SHIFT).expect("a word names a node only after its chunk was added");
        let at = (place as usize & ((1 << CHUNK_UNITS_SHIFT) - 1)) * 2;
        &chunk.0[at..at + (2 << class)]
    }

    /// Where a look for block `at` of a node's logical extent begins.
    #[inline]
    pub(super) fn first_look(&self, node: NodeId, at: u32) -> *const u8 {
        let words = self.words(node.place, node.class);
        let first = if node.class == TABLE { at as usize } else { 0 };
        std::ptr::from_ref(&words[first]).cast()
    }

    /// Room for further nodes. For the writer.
    pub(super) fn add_chunk(&self, index: u64) {
        self.0.get_or_add(index, || Box::new(Chunk([const { AtomicU64::new(0) }; CHUNK_WORDS])));
    }

    /// Bytes of the directory; the chunks are counted by who adds them.
    pub(super) fn directory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }

    /// The run that begins at block `at` of a node's logical extent, at most `room` blocks of it.
    #[inline]
    pub(super) fn find(&self, node: NodeId, at: u32, room: u32) -> Found {
        let words = self.words(node.place, node.class);
        if node.class == TABLE { find_in_table(words, at, room) } else { find_in_list(words, at, room) }
    }
}

#[inline]
pub(super) fn load(words: &[AtomicU64], at: usize) -> u64 {
    // Whether it was one node's is found out afterwards, by the word.
    words.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// How many blocks of a run there are whose entries count up from `first`, the first being known.
#[inline]
fn run(first: u64, most: u32, entry: impl Fn(u32) -> u64) -> u32 {
    // A torn read may begin with anything, so this must not overflow.
    (1..most).take_while(|&k| entry(k) == first.wrapping_add(NEXT_SLOT * u64::from(k))).count() as u32 + 1
}

/// A list: a word that says which blocks are packed, a word for each of these, two for each piece.
#[inline]
fn find_in_list(words: &[AtomicU64], at: u32, room: u32) -> Found {
    let packed = load(words, 0);
    if packed >> at & 1 != 0 {
        let rank = 1 + (packed & ((1 << at) - 1)).count_ones() as usize;
        let first = load(words, rank);
        let (extent, position) = place_of(first);
        let most = room.min(ones_from(packed, at));
        return Found::At { extent, position, blocks: run(first, most, |k| load(words, rank + k as usize)) };
    }
    let mut seen = packed;
    for (extent, mask) in pieces(words, packed) {
        if mask >> at & 1 != 0 {
            let (extent, _) = place_of(extent);
            return Found::At { extent, position: at, blocks: room.min(ones_from(mask, at)) };
        }
        seen |= mask;
    }
    Found::Nothing { blocks: room.min(zeros_from(seen, at)) }
}

/// The pieces of a list in which these blocks are packed. One without blocks ends them.
#[inline]
pub(super) fn pieces(words: &[AtomicU64], packed: u64) -> impl Iterator<Item = (u64, u64)> {
    let first = 1 + packed.count_ones() as usize;
    (first..).step_by(2).map(|at| (load(words, at), load(words, at + 1))).take_while(|&(_, mask)| mask != 0)
}

/// A table: a word for each block.
#[inline]
fn find_in_table(words: &[AtomicU64], at: u32, room: u32) -> Found {
    let entry = |k: u32| load(words, (at + k) as usize);
    debug_assert!(at + room <= EXTENT_BLOCKS);
    match entry(0) {
        0 => Found::Nothing { blocks: (1..room).take_while(|&k| entry(k) == 0).count() as u32 + 1 },
        first => {
            let (extent, position) = place_of(first);
            Found::At { extent, position, blocks: run(first, room, entry) }
        }
    }
}
