//! The writer of a map.

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

/// Returns the blocks that the extent's record has. [`ExtentId::IN_DOUBT`] has no record, and no map follows it: any of
/// its blocks may be shown.
fn recorded(records: &Records, extent: ExtentId) -> u64 {
    if extent == ExtentId::IN_DOUBT { ALL } else { records.present(extent) }
}

/// One block that has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovedBlock {
    /// Its index in the logical extent, 0 to 63.
    pub block: u8,
    /// The extent that it was in, and its slot or position there.
    pub from: (ExtentId, u8),
    /// Its slot or position in the new extent.
    pub to_slot: u8,
}

/// Changes a [`VolumeMap`]: held by the pool's home shard, once for each map.
///
/// Order of steps: the data are written, then the record says so ([`Records::set_present`]), then the map is updated.
/// Bits are removed from a record, other than for a discard, and extents freed, only after no map shows them any
/// longer.
#[derive(Debug)]
pub struct MapWriter {
    map: Arc<VolumeMap>,
    pub(super) space: Space,
    generation: u32,
    /// The logical extent that is being changed, decomposed.
    work: Box<Visible>,
}

impl MapWriter {
    /// Returns an empty map of `extents` logical extents.
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

    /// Makes these blocks visible in this extent, at their own positions, and nowhere else. Its record says already
    /// that they are present.
    ///
    /// `follow`: blocks that the record gets from now on are visible in this volume, too, until the map is changed
    /// otherwise. That is right for an extent of the volume's newest owner, of which nothing is hidden. It is wrong if
    /// a newer owner defines anything of this logical extent, zeros included. Make this call even if the word may
    /// follow the record already: only the map knows, and then the call costs next to nothing.
    #[inline]
    pub fn set_blocks(&mut self, records: &Records, logical: u32, mask: u64, extent: ExtentId, follow: bool) {
        debug_assert!(mask & !recorded(records, extent) == 0, "the record comes first");
        match self.word(logical) {
            Word::Whole(whole) if whole == extent => {}
            // The word follows this record: if anything hid blocks of it, the map would have been changed.
            Word::Single(single) if single == extent => {
                if records.present(extent) == ALL {
                    self.set(logical, Word::Whole(extent));
                }
            }
            word => {
                self.decompose(records, word);
                self.work.remove(mask);
                self.work.add(extent, mask);
                self.put(records, logical, word, follow);
            }
        }
    }

    /// Makes this block visible in this slot of a packed extent, and nowhere else.
    pub fn set_packed(&mut self, records: &Records, block: u64, extent: ExtentId, slot: u8) {
        debug_assert!(u32::from(slot) < EXTENT_BLOCKS, "slot {slot}");
        let (logical, at) = ((block / u64::from(EXTENT_BLOCKS)) as u32, block as u32 % EXTENT_BLOCKS);
        let word = self.word(logical);
        if let Word::Node(node) = word
            && node.class == TABLE
        {
            // The usual case of a volume with many snapshots. It may leave a table of what would fit in a list by now:
            // a little memory, until the next change of another kind.
            let offset = self.take(TABLE);
            let words = |offset| self.map.nodes.words(offset, TABLE);
            copy_table(words(node.offset), words(offset), at, extent, slot);
            let copied = Word::Node(self.name(offset, TABLE));
            self.set(logical, copied);
            return self.give(word);
        }
        self.decompose(records, word);
        self.work.remove(1 << at);
        self.work.add_packed(at, extent, slot);
        self.put(records, logical, word, false);
    }

    /// Makes these blocks read as zeros.
    ///
    /// If one extent has all that is visible, and its record has lost the blocks by now, the word follows (or goes on
    /// following) the record: that is how the newest owner discards its own blocks. If another owner defines the zeros,
    /// the record has the blocks still, and the map must not follow it any longer.
    pub fn clear_blocks(&mut self, records: &Records, logical: u32, mask: u64) {
        let word = self.word(logical);
        // Whether the record has lost them is found when it is compared with what is left.
        let follow = match word {
            Word::Unmapped => return,
            Word::Whole(_) | Word::Single(_) => true,
            Word::Node(_) => false,
        };
        self.decompose(records, word);
        self.work.remove(mask);
        self.put(records, logical, word, follow);
    }

    /// Makes exactly this visible in the logical extent: while a map is built, and when a job has moved or relabelled
    /// blocks. No block may be in two of them. `follow` as with [`MapWriter::set_blocks`], if it is one piece and
    /// nothing else.
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

    /// Notes that blocks of a logical extent have moved to `target`, whose record has them already: to slots if it is
    /// packed (`true`), else to their own positions. Blocks that this map shows at the old location are shown at the
    /// new one. The records of the old locations have them still.
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
        self.decompose(records, word);
        let mut any = false;
        for MovedBlock { block, from, to_slot } in moved {
            let block = u32::from(block);
            if self.work.location(block) != Some(from) {
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
            // If the word followed the old record, it may follow the new one: nothing of it is hidden here.
            let follow = follow && matches!(word, Word::Single(_));
            self.put(records, logical, word, follow);
        }
    }

    /// Makes the logical extent as it is in another map of the same pool: for the map of a snapshot or a clone. Both
    /// may follow the same record.
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

    /// Changes the size, in logical extents. What lies beyond a smaller size is dropped. The words there keep their
    /// memory, because readers may be there, and are used again when the volume grows. Shrinking takes time for each
    /// extent that is mapped beyond the new end: a caller that cannot spend it all at once clears these extents before.
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
        // Release: a reader that sees the word sees the node, and whatever the home shard has done before.
        part[at].store(word.bits(), Ordering::Release);
    }

    fn decompose(&mut self, records: &Records, word: Word) {
        match word {
            Word::Unmapped => self.work.clear(),
            Word::Whole(extent) => self.work.set_one(extent, ALL),
            Word::Single(extent) => self.work.set_one(extent, records.present(extent)),
            Word::Node(node) => self.work.read(self.map.nodes.words(node.offset, node.class), node.class),
        }
    }

    /// Makes the decomposed logical extent visible, in the smallest form, instead of `old`.
    fn put(&mut self, records: &Records, logical: u32, old: Word, follow: bool) {
        let word = match self.work.only_piece() {
            Some(piece) if piece.mask == ALL => Word::Whole(piece.extent),
            Some(piece) if follow && piece.mask == recorded(records, piece.extent) => Word::Single(piece.extent),
            None if self.work.mask() == 0 => Word::Unmapped,
            _ => Word::Node(self.write_node()),
        };
        self.set(logical, word);
        self.give(old);
    }

    fn write_node(&mut self) -> NodeId {
        let class = self.work.class();
        let offset = self.take(class);
        self.work.write(self.map.nodes.words(offset, class), class);
        self.name(offset, class)
    }

    fn name(&mut self, offset: u64, class: u32) -> NodeId {
        self.generation = self.generation.wrapping_add(1);
        NodeId { offset, class, generation: self.generation }
    }

    fn take(&mut self, class: u32) -> u64 {
        let before = self.space.memory_bytes();
        let offset = self.space.take(&self.map.nodes, class);
        self.map.bytes.fetch_add(self.space.memory_bytes() - before, Ordering::Relaxed);
        offset
    }

    fn give(&mut self, word: Word) {
        if let Word::Node(node) = word {
            self.space.give(&self.map.nodes, node.offset, node.class);
        }
    }
}
