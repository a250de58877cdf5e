//! The free words of the chunks: a buddy allocator, so that small nodes which were replaced by large ones leave room
//! for these.
//!
//! A free span is a power of two of words, and lies at a multiple of its size. When its buddy, the neighbour with which
//! it makes up the next larger span, is free too, they are joined. So a node of 64 words finds no room only if every 64
//! words have a node in them, and the chunks never take more than 64 words for each node that there was at a time.
//!
//! The free spans of a size are a list through their own words.

use std::sync::atomic::{Ordering, fence};

use super::nodes::{CHUNK_UNITS_SHIFT, CHUNK_WORDS, Nodes, load};
use super::word::{CLASSES, OFFSET_BITS, TABLE};

const NONE: u64 = u64::MAX >> CLASS_BITS;
const CLASS_BITS: u32 = 3;
const CHUNK_UNITS: u64 = 1 << CHUNK_UNITS_SHIFT;

/// The writer's allocator of node memory. Offsets are in units of two words, as in a `NodeId`.
#[derive(Debug)]
pub(super) struct Space {
    heads: [u64; CLASSES as usize],
    /// A bit for each unit: a free span begins here.
    begins: Vec<[u64; CHUNK_UNITS as usize / 64]>,
}

impl Space {
    pub(super) fn new() -> Space {
        Space { heads: [NONE; CLASSES as usize], begins: Vec::new() }
    }

    /// Bytes of the chunks, and of the free bits.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.begins.len() * CHUNK_WORDS * 8 + self.begins.capacity() * CHUNK_UNITS as usize / 8) as u64
    }

    /// Allocates a span.
    ///
    /// # Panics
    /// If there are 512 GiB of nodes.
    pub(super) fn take(&mut self, nodes: &Nodes, class: u32) -> u64 {
        let free = (class..CLASSES).find(|&class| self.heads[class as usize] != NONE);
        let free = free.unwrap_or_else(|| {
            self.add_chunk(nodes);
            TABLE
        });
        let offset = self.heads[free as usize];
        self.unlink(nodes, offset, free);
        for half in (class..free).rev() {
            self.link(nodes, offset + (1 << half), half);
        }
        offset
    }

    /// Frees a span that no word names any longer.
    pub(super) fn give(&mut self, nodes: &Nodes, mut offset: u64, mut class: u32) {
        // A reader that reads anything written to the node from now on sees its word changed when it looks again.
        fence(Ordering::Release);
        while class < TABLE {
            let neighbour = offset ^ (1 << class);
            if !self.is_free(nodes, neighbour, class) {
                break;
            }
            self.unlink(nodes, neighbour, class);
            offset &= !(1 << class);
            class += 1;
        }
        self.link(nodes, offset, class);
    }

    /// Whether all spans are free.
    #[cfg(test)]
    pub(super) fn is_all_free(&self) -> bool {
        let spans: u32 = self.begins.iter().flatten().map(|bits| bits.count_ones()).sum();
        let parts = &self.heads[..TABLE as usize];
        parts.iter().all(|&head| head == NONE) && spans as usize == self.begins.len() * CHUNK_WORDS / 64
    }

    fn add_chunk(&mut self, nodes: &Nodes) {
        let index = self.begins.len() as u64;
        assert!(index < 1 << (OFFSET_BITS - CHUNK_UNITS_SHIFT), "too many nodes in a map");
        nodes.add_chunk(index);
        self.begins.push([0; CHUNK_UNITS as usize / 64]);
        for span in (0..CHUNK_UNITS >> TABLE).rev() {
            self.link(nodes, index * CHUNK_UNITS + (span << TABLE), TABLE);
        }
    }

    fn begin(&mut self, offset: u64) -> (&mut u64, u64) {
        let within = offset % CHUNK_UNITS;
        (&mut self.begins[(offset / CHUNK_UNITS) as usize][(within / 64) as usize], 1 << (within % 64))
    }

    fn is_free(&mut self, nodes: &Nodes, offset: u64, class: u32) -> bool {
        let (word, bit) = self.begin(offset);
        *word & bit != 0 && load(nodes.words(offset, 0), 1) & ((1 << CLASS_BITS) - 1) == u64::from(class)
    }

    /// Puts a free span at the head of its list: its first word has the next one, its second the one before it and its
    /// class.
    fn link(&mut self, nodes: &Nodes, offset: u64, class: u32) {
        let (word, bit) = self.begin(offset);
        *word |= bit;
        let next = std::mem::replace(&mut self.heads[class as usize], offset);
        self.store(nodes, offset, 0, next);
        self.store(nodes, offset, 1, NONE << CLASS_BITS | u64::from(class));
        if next != NONE {
            self.store(nodes, next, 1, offset << CLASS_BITS | u64::from(class));
        }
    }

    fn unlink(&mut self, nodes: &Nodes, offset: u64, class: u32) {
        let (word, bit) = self.begin(offset);
        *word &= !bit;
        let words = nodes.words(offset, 0);
        let (next, before) = (load(words, 0), load(words, 1));
        if next != NONE {
            self.store(nodes, next, 1, before);
        }
        match before >> CLASS_BITS {
            NONE => self.heads[class as usize] = next,
            before => self.store(nodes, before, 0, next),
        }
    }

    fn store(&self, nodes: &Nodes, offset: u64, at: usize, value: u64) {
        nodes.words(offset, 0)[at].store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_do_not_overlap_and_are_joined_again() {
        let (nodes, mut space) = (Nodes::new(), Space::new());
        let mut x = 7u64;
        let mut random = |below: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((u128::from(x) * u128::from(below)) >> 64) as u64
        };
        for round in 0..20 {
            let (mut taken, mut most) = (Vec::new(), 0);
            for step in 0..2000 {
                // It fills up in the first half of a round, and empties in the second.
                if taken.is_empty() || random(100) < if step < 1000 { 70 } else { 30 } {
                    let class = random(u64::from(CLASSES)) as u32;
                    let offset = space.take(&nodes, class);
                    assert_eq!(offset % (1 << class), 0);
                    let end = offset + (1 << class);
                    for &(other, of_class) in &taken {
                        assert!(end <= other || other + (1u64 << of_class) <= offset, "spans overlap");
                    }
                    // The content of a node is arbitrary.
                    for word in nodes.words(offset, class) {
                        word.store(u64::MAX, Ordering::Relaxed);
                    }
                    taken.push((offset, class));
                } else {
                    let (offset, class) = taken.swap_remove(random(taken.len() as u64) as usize);
                    space.give(&nodes, offset, class);
                }
                most = most.max(taken.len());
            }
            for (offset, class) in taken.drain(..) {
                space.give(&nodes, offset, class);
            }
            assert!(space.is_all_free(), "round {round}: parts are left");
        }
    }

    #[test]
    fn never_more_than_64_words_for_each_node() {
        // Each node in turn becomes larger: what the small ones leave must serve the large ones.
        let (nodes, mut space) = (Nodes::new(), Space::new());
        let count = 8 * 40;
        let mut offsets: Vec<u64> = (0..count).map(|_| space.take(&nodes, 0)).collect();
        for class in 1..CLASSES {
            for offset in &mut offsets {
                let larger = space.take(&nodes, class);
                space.give(&nodes, *offset, class - 1);
                *offset = larger;
            }
        }
        assert!(space.begins.len() <= count / 8 + 1, "{} chunks", space.begins.len());
    }
}
