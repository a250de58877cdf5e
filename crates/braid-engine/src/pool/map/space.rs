//! Which words of the chunks are free: buddies, so that small nodes which have given way to large ones leave room for these.
//!
//! A free span is a power of two of words and lies at a multiple of its size; when its neighbour of the same size, with which it
//! would make the next larger one, is free too, they become one. So a node of 64 words finds no room only where every 64 words
//! have a node in them, and the chunks never take more than 64 words for each node that there was at a time.
//!
//! The free spans of a size are a list through their own words.

use std::sync::atomic::{Ordering, fence};

use super::nodes::{CHUNK_UNITS_SHIFT, CHUNK_WORDS, Nodes, load};
use super::word::{CLASSES, PLACE_BITS, TABLE};

const NONE: u64 = u64::MAX >> CLASS_BITS;
const CLASS_BITS: u32 = 3;
const CHUNK_UNITS: u64 = 1 << CHUNK_UNITS_SHIFT;

/// The writer's knowledge of the nodes' space. Places are counted in units of two words, as in a node's name.
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

    /// Bytes of the chunks, and of what is known of them.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.begins.len() * CHUNK_WORDS * 8 + self.begins.capacity() * CHUNK_UNITS as usize / 8) as u64
    }

    /// Takes a span.
    ///
    /// # Panics
    /// When there are 512 GiB of nodes.
    pub(super) fn take(&mut self, nodes: &Nodes, class: u32) -> u64 {
        let free = (class..CLASSES).find(|&class| self.heads[class as usize] != NONE);
        let free = free.unwrap_or_else(|| {
            self.add_chunk(nodes);
            TABLE
        });
        let place = self.heads[free as usize];
        self.unlink(nodes, place, free);
        for half in (class..free).rev() {
            self.link(nodes, place + (1 << half), half);
        }
        place
    }

    /// Gives a span back. No word names it any more.
    pub(super) fn give(&mut self, nodes: &Nodes, mut place: u64, mut class: u32) {
        // Whoever reads in the node anything that is written from now on sees its word changed when it looks again.
        fence(Ordering::Release);
        while class < TABLE {
            let neighbour = place ^ (1 << class);
            if !self.is_free(nodes, neighbour, class) {
                break;
            }
            self.unlink(nodes, neighbour, class);
            place &= !(1 << class);
            class += 1;
        }
        self.link(nodes, place, class);
    }

    /// Whether nobody has a span.
    #[cfg(test)]
    pub(super) fn is_all_free(&self) -> bool {
        let spans: u32 = self.begins.iter().flatten().map(|bits| bits.count_ones()).sum();
        let parts = &self.heads[..TABLE as usize];
        parts.iter().all(|&head| head == NONE) && spans as usize == self.begins.len() * CHUNK_WORDS / 64
    }

    fn add_chunk(&mut self, nodes: &Nodes) {
        let index = self.begins.len() as u64;
        assert!(index < 1 << (PLACE_BITS - CHUNK_UNITS_SHIFT), "too many nodes in a map");
        nodes.add_chunk(index);
        self.begins.push([0; CHUNK_UNITS as usize / 64]);
        for span in (0..CHUNK_UNITS >> TABLE).rev() {
            self.link(nodes, index * CHUNK_UNITS + (span << TABLE), TABLE);
        }
    }

    fn begin(&mut self, place: u64) -> (&mut u64, u64) {
        let within = place % CHUNK_UNITS;
        (&mut self.begins[(place / CHUNK_UNITS) as usize][(within / 64) as usize], 1 << (within % 64))
    }

    fn is_free(&mut self, nodes: &Nodes, place: u64, class: u32) -> bool {
        let (word, bit) = self.begin(place);
        *word & bit != 0 && load(nodes.words(place, 0), 1) & ((1 << CLASS_BITS) - 1) == u64::from(class)
    }

    /// Puts a free span at the head of its list: in its first word the next one, in its second the one before it and its class.
    fn link(&mut self, nodes: &Nodes, place: u64, class: u32) {
        let (word, bit) = self.begin(place);
        *word |= bit;
        let next = std::mem::replace(&mut self.heads[class as usize], place);
        self.store(nodes, place, 0, next);
        self.store(nodes, place, 1, NONE << CLASS_BITS | u64::from(class));
        if next != NONE {
            self.store(nodes, next, 1, place << CLASS_BITS | u64::from(class));
        }
    }

    fn unlink(&mut self, nodes: &Nodes, place: u64, class: u32) {
        let (word, bit) = self.begin(place);
        *word &= !bit;
        let words = nodes.words(place, 0);
        let (next, before) = (load(words, 0), load(words, 1));
        if next != NONE {
            self.store(nodes, next, 1, before);
        }
        match before >> CLASS_BITS {
            NONE => self.heads[class as usize] = next,
            before => self.store(nodes, before, 0, next),
        }
    }

    fn store(&self, nodes: &Nodes, place: u64, at: usize, value: u64) {
        nodes.words(place, 0)[at].store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_do_not_overlap_and_come_together_again() {
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
                    let place = space.take(&nodes, class);
                    assert_eq!(place % (1 << class), 0);
                    let end = place + (1 << class);
                    for &(other, of_class) in &taken {
                        assert!(end <= other || other + (1u64 << of_class) <= place, "spans overlap");
                    }
                    // What lies in a node is its own.
                    for word in nodes.words(place, class) {
                        word.store(u64::MAX, Ordering::Relaxed);
                    }
                    taken.push((place, class));
                } else {
                    let (place, class) = taken.swap_remove(random(taken.len() as u64) as usize);
                    space.give(&nodes, place, class);
                }
                most = most.max(taken.len());
            }
            for (place, class) in taken.drain(..) {
                space.give(&nodes, place, class);
            }
            assert!(space.is_all_free(), "round {round}: parts are left");
        }
    }

    #[test]
    fn never_more_than_64_words_for_each_node() {
        // Each node in turn becomes larger: what the small ones leave must serve the large ones.
        let (nodes, mut space) = (Nodes::new(), Space::new());
        let count = 8 * 40;
        let mut places: Vec<u64> = (0..count).map(|_| space.take(&nodes, 0)).collect();
        for class in 1..CLASSES {
            for place in &mut places {
                let larger = space.take(&nodes, class);
                space.give(&nodes, *place, class - 1);
                *place = larger;
            }
        }
        assert!(space.begins.len() <= count / 8 + 1, "{} chunks", space.begins.len());
    }
}
