//! The one that changes a map.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::super::records::Records;
use super::super::units::{EXTENT_BLOCKS, ExtentId};
use super::directory::Directory;
use super::nodes::Nodes;
use super::space::Space;
use super::visible::{PackedBlock, Piece, Visible, copy_table};
use super::word::{NodeId, TABLE, Word};
use super::{PART_WORDS, VolumeMap};

const ALL: u64 = u64::MAX;

/// The blocks that the extent's record says are present. What is in doubt could be any, and a map never follows it.
fn stated(records: &Records, extent: ExtentId) -> u64 {
    if extent == ExtentId::IN_DOUBT { ALL } else { records.present(extent) }
}

/// One block that has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovedBlock {
    /// Which of its logical extent, 0 to 63.
    pub block: u8,
    /// The extent in which it was, and its slot or position there.
    pub from: (ExtentId, u8),
    /// The slot or position in which it is.
    pub to_slot: u8,
}

/// Changes a [`VolumeMap`]: held by the pool's home shard, once for each map.
///
/// Order of steps: the data is written, then the record says so ([`Records::set_present`]), then the map is told. Bits are
/// taken from a record, other than for a discard, and extents freed, only after no map shows them any more.
#[derive(Debug)]
pub struct MapWriter {
    map: Arc<VolumeMap>,
    pub(super) space: Space,
    generation: u32,
    /// What is being changed, taken apart.
    work: Box<Visible>,
}

impl MapWriter {
    /// An empty map of so many logical extents.
    pub fn new(extents: u32) -> MapWriter {
        let map = VolumeMap {
            words: Directory::new(u64::from(extents).div_ceil(PART_WORDS as u64)),
            nodes: Nodes::new(),
            extents: AtomicU32::new(extents),
            bytes: AtomicU64::new(size_of::<Visible>() as u64),
        };
        MapWriter { map: Arc::new(map), space: Space::new(), generation: 0, work: Box::default() }
    }

    /// What the shards read.
    pub fn map(&self) -> &Arc<VolumeMap> {
        &self.map
    }

    /// These blocks are visible in this extent now, at their own positions, and nowhere else. Its record says already that
    /// they are present.
    ///
    /// `follow`: whatever the record will say is present, for as long as the map is not told otherwise, is visible in this
    /// volume. It is so for an extent that belongs to the volume's own newest owner: nothing lies above that. It is not where a newer
    /// owner has anything to say of this logical extent, zeros included. Once the word follows the record, this changes nothing and
    /// costs next to nothing; call it nevertheless, as only the map knows.
    #[inline]
    pub fn set_blocks(&mut self, records: &Records, logical: u32, mask: u64, extent: ExtentId, follow: bool) {
        debug_assert!(mask & !stated(records, extent) == 0, "the record comes first");
        match self.word(logical) {
            Word::Whole(whole) if whole == extent => {}
            // Only what it follows can have hidden something from it, and that would have been told.
            Word::Single(single) if single == extent => {
                if records.present(extent) == ALL {
                    self.set(logical, Word::Whole(extent));
                }
            }
            word => {
                self.take_apart(records, word);
                self.work.remove(mask);
                self.work.add(extent, mask);
                self.put(records, logical, word, follow);
            }
        }
    }

    /// This block is visible in this slot of a packed extent now, and nowhere else.
    pub fn set_packed(&mut self, records: &Records, block: u64, extent: ExtentId, slot: u8) {
        debug_assert!(u32::from(slot) < EXTENT_BLOCKS, "slot {slot}");
        let (logical, at) = ((block / u64::from(EXTENT_BLOCKS)) as u32, block as u32 % EXTENT_BLOCKS);
        let word = self.word(logical);
        if let Word::Node(node) = word
            && node.class == TABLE
        {
            // What a volume with many snapshots mostly does. It may leave a table of what would fit in a list by now: a
            // little memory, until the next change of another kind.
            let place = self.take(TABLE);
            let words = |place| self.map.nodes.words(place, TABLE);
            copy_table(words(node.place), words(place), at, extent, slot);
            let copied = Word::Node(self.name(place, TABLE));
            self.set(logical, copied);
            return self.give(word);
        }
        self.take_apart(records, word);
        self.work.remove(1 << at);
        self.work.add_packed(at, extent, slot);
        self.put(records, logical, word, false);
    }

    /// These blocks read as zeros now.
    ///
    /// Where one extent is all that is visible and its record has lost them by now, the word follows (or goes on following) the
    /// record: that is how the newest owner discards what is its own. Where somebody else says that they are zeros, the record has
    /// them still, and the map must not follow it any more.
    pub fn clear_blocks(&mut self, records: &Records, logical: u32, mask: u64) {
        let word = self.word(logical);
        // Whether the record has lost them is seen when it is compared with what is left.
        let follow = match word {
            Word::Unmapped => return,
            Word::Whole(_) | Word::Single(_) => true,
            Word::Node(_) => false,
        };
        self.take_apart(records, word);
        self.work.remove(mask);
        self.put(records, logical, word, follow);
    }

    /// Exactly this is visible in the logical extent: while a map is built, and when a job has moved or relabelled what is there.
    /// No block may be in two of them. `follow` as with [`MapWriter::set_blocks`], if it is one piece and nothing else.
    #[inline]
    pub fn replace(&mut self, records: &Records, logical: u32, pieces: &[Piece], packed: &[PackedBlock], follow: bool) {
        let word = self.word(logical);
        self.work.clear();
        for piece in pieces {
            debug_assert_eq!(self.work.mask() & piece.mask, 0, "a block in two places");
            self.work.add(piece.extent, piece.mask);
        }
        for block in packed {
            debug_assert_eq!(self.work.mask() >> block.block & 1, 0, "a block in two places");
            self.work.add_packed(u32::from(block.block), block.extent, block.slot);
        }
        self.put(records, logical, word, follow);
    }

    /// Blocks of a logical extent have moved to `target`, whose record says already that they are there; to slots where it is packed (`true`), else
    /// to their own positions. Those that this map shows where they were are shown where they are now. The records of where they were
    /// say so still.
    pub fn relocate(
        &mut self,
        records: &Records,
        logical: u32,
        moved: impl Iterator<Item = MovedBlock>,
        (target, packed): (ExtentId, bool),
        follow: bool,
    ) {
        if logical >= self.map.extents() {
            return;
        }
        let word = self.word(logical);
        if word == Word::Unmapped {
            return;
        }
        self.take_apart(records, word);
        let mut any = false;
        for MovedBlock { block, from, to_slot } in moved {
            let block = u32::from(block);
            if self.work.stands(block) != Some(from) {
                continue;
            }
            any = true;
            self.work.remove(1 << block);
            if packed {
                self.work.add_packed(block, target, to_slot);
            } else {
                debug_assert_eq!(u32::from(to_slot), block, "each at its own position");
                self.work.add(target, 1 << block);
            }
        }
        if any {
            // Where it followed the record before, it may follow the new one: nothing of it is hidden here.
            let follow = follow && matches!(word, Word::Single(_));
            self.put(records, logical, word, follow);
        }
    }

    /// The logical extent is as it is in another map of the same pool: for the map of a snapshot or a clone. Both may follow
    /// the same record.
    pub fn copy(&mut self, records: &Records, logical: u32, from: &VolumeMap) {
        let old = self.word(logical);
        let word = from.cell(u64::from(logical)).map_or(0, |cell| cell.load(Ordering::Acquire));
        match Word::from_bits(word) {
            // A node of that map is none of this one.
            Word::Node(_) => {
                from.visible(records, logical, &mut self.work);
                self.put(records, logical, old, false);
            }
            word => {
                self.set(logical, word);
                self.give(old);
            }
        }
    }

    /// Another size. What lies beyond a smaller one is forgotten; its words keep their memory, as readers may be there, and serve again
    /// when the volume grows. Shrinking takes time for each extent that is mapped there: who cannot spend it all at once clears them before.
    pub fn resize(&mut self, extents: u32) {
        let mut from = extents;
        while let Some(logical) = self.map.next_mapped(from) {
            let word = self.word(logical);
            self.set(logical, Word::Unmapped);
            self.give(word);
            from = logical + 1;
        }
        self.map.extents.store(extents, Ordering::Release);
    }

    fn word(&self, logical: u32) -> Word {
        assert!(logical < self.map.extents.load(Ordering::Relaxed), "logical extent {logical} of a smaller volume");
        let cell = self.map.cell(u64::from(logical));
        cell.map_or(Word::Unmapped, |cell| Word::from_bits(cell.load(Ordering::Relaxed)))
    }

    fn set(&mut self, logical: u32, word: Word) {
        let (index, at) = (u64::from(logical) / PART_WORDS as u64, logical as usize % PART_WORDS);
        if word == Word::Unmapped && self.map.words.get(index).is_none() {
            return;
        }
        let part = self.map.words.get_or_add(index, || {
            self.map.bytes.fetch_add(PART_WORDS as u64 * 8, Ordering::Relaxed);
            Box::new([const { AtomicU64::new(0) }; PART_WORDS])
        });
        // Release: who sees the word sees the node, and whatever the home has done before.
        part[at].store(word.bits(), Ordering::Release);
    }

    fn take_apart(&mut self, records: &Records, word: Word) {
        match word {
            Word::Unmapped => self.work.clear(),
            Word::Whole(extent) => self.work.set_one(extent, ALL),
            Word::Single(extent) => self.work.set_one(extent, records.present(extent)),
            Word::Node(node) => self.work.read(self.map.nodes.words(node.place, node.class), node.class),
        }
    }

    /// Makes what was taken apart visible, in the smallest form, instead of `old`.
    fn put(&mut self, records: &Records, logical: u32, old: Word, follow: bool) {
        let word = match self.work.only_piece() {
            Some(piece) if piece.mask == ALL => Word::Whole(piece.extent),
            Some(piece) if follow && piece.mask == stated(records, piece.extent) => Word::Single(piece.extent),
            None if self.work.mask() == 0 => Word::Unmapped,
            _ => Word::Node(self.write_node()),
        };
        self.set(logical, word);
        self.give(old);
    }

    fn write_node(&mut self) -> NodeId {
        let class = self.work.class();
        let place = self.take(class);
        self.work.write(self.map.nodes.words(place, class), class);
        self.name(place, class)
    }

    fn name(&mut self, place: u64, class: u32) -> NodeId {
        self.generation = self.generation.wrapping_add(1);
        NodeId { place, class, generation: self.generation }
    }

    fn take(&mut self, class: u32) -> u64 {
        let before = self.space.memory_bytes();
        let place = self.space.take(&self.map.nodes, class);
        self.map.bytes.fetch_add(self.space.memory_bytes() - before, Ordering::Relaxed);
        place
    }

    fn give(&mut self, word: Word) {
        if let Word::Node(node) = word {
            self.space.give(&self.map.nodes, node.place, node.class);
        }
    }
}
