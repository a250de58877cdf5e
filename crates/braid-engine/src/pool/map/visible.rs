//! What is visible in one logical extent, decomposed: the form in which it is changed and returned.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::EXTENT_BLOCKS;
use super::super::units::ExtentId;
use super::nodes::{load, pieces};
use super::word::{TABLE, is_own, location_of, own_bits, packed_bits};

/// Blocks in one extent, each at its own position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The extent.
    pub extent: ExtentId,
    /// Which blocks are visible there.
    pub mask: u64,
}

/// A block in a slot of a packed extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackedBlock {
    /// Which block of the logical extent it is, 0 to 63.
    pub block: u8,
    /// The slot, 0 to 63.
    pub slot: u8,
    /// The packed extent.
    pub extent: ExtentId,
}

/// All that is visible in one logical extent. What is in no piece and not packed reads as zeros.
#[derive(Clone, Debug)]
pub struct Visible {
    pieces: [Piece; EXTENT_BLOCKS as usize],
    pieces_len: usize,
    packed_mask: u64,
    /// By block; what the mask does not have is not valid.
    packed: [u64; EXTENT_BLOCKS as usize],
}

impl Default for Visible {
    fn default() -> Visible {
        Visible::new()
    }
}

impl Visible {
    /// Returns one in which nothing is visible.
    pub const fn new() -> Visible {
        let nothing = Piece { extent: ExtentId::from_bits(0), mask: 0 };
        Visible { pieces: [nothing; EXTENT_BLOCKS as usize], pieces_len: 0, packed_mask: 0, packed: [0; 64] }
    }

    /// Returns the extents with blocks at their own positions; no block is in two.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.pieces_len]
    }

    /// Returns the packed blocks, in rising order.
    pub fn packed(&self) -> impl Iterator<Item = PackedBlock> {
        bits_of(self.packed_mask).map(|block| {
            let (extent, slot) = location_of(self.packed[block as usize]);
            PackedBlock { block: block as u8, slot: slot as u8, extent }
        })
    }

    /// Returns all visible blocks.
    pub fn mask(&self) -> u64 {
        self.pieces().iter().fold(self.packed_mask, |mask, piece| mask | piece.mask)
    }

    /// Returns where a block is: the extent, and its position or slot there.
    pub(super) fn location(&self, block: u32) -> Option<(ExtentId, u8)> {
        if self.packed_mask >> block & 1 == 1 {
            let (extent, slot) = location_of(self.packed[block as usize]);
            return Some((extent, slot as u8));
        }
        let piece = self.pieces().iter().find(|piece| piece.mask >> block & 1 == 1)?;
        Some((piece.extent, block as u8))
    }

    /// Makes only this piece visible, as far as it has blocks.
    pub(super) fn set_one(&mut self, extent: ExtentId, mask: u64) {
        (self.pieces_len, self.packed_mask) = (0, 0);
        self.add(extent, mask);
    }

    pub(super) fn clear(&mut self) {
        (self.pieces_len, self.packed_mask) = (0, 0);
    }

    /// Makes these blocks visible nowhere.
    pub(super) fn remove(&mut self, mask: u64) {
        self.packed_mask &= !mask;
        let mut kept = 0;
        for k in 0..self.pieces_len {
            let piece = self.pieces[k];
            if piece.mask & !mask != 0 {
                self.pieces[kept] = Piece { mask: piece.mask & !mask, ..piece };
                kept += 1;
            }
        }
        self.pieces_len = kept;
    }

    /// Makes these blocks, which were visible nowhere, visible in this extent.
    pub(super) fn add(&mut self, extent: ExtentId, mask: u64) {
        if mask == 0 {
            return;
        }
        match self.pieces[..self.pieces_len].iter_mut().find(|piece| piece.extent == extent) {
            Some(piece) => piece.mask |= mask,
            None => {
                self.pieces[self.pieces_len] = Piece { extent, mask };
                self.pieces_len += 1;
            }
        }
    }

    /// Makes a block that was visible nowhere visible in this slot.
    pub(super) fn add_packed(&mut self, block: u32, extent: ExtentId, slot: u8) {
        self.packed_mask |= 1 << block;
        self.packed[block as usize] = packed_bits(extent, slot);
    }

    /// Returns the only piece, if there is nothing else.
    pub(super) fn only_piece(&self) -> Option<Piece> {
        match self.pieces() {
            [piece] if self.packed_mask == 0 => Some(*piece),
            _ => None,
        }
    }

    /// Returns the smallest class of node that it fits in.
    pub(super) fn class(&self) -> u32 {
        let words = 1 + self.packed_mask.count_ones() + 2 * self.pieces_len as u32;
        // A list of more than 32 words would take as much memory as a table, and a table is the faster one.
        words.next_power_of_two().trailing_zeros().saturating_sub(1).min(TABLE)
    }

    /// Writes it as a node of [`Visible::class`].
    pub(super) fn write(&self, words: &[AtomicU64], class: u32) {
        let store = |at: usize, value: u64| words[at].store(value, Ordering::Relaxed);
        if class == TABLE {
            for block in 0..EXTENT_BLOCKS as usize {
                store(block, if self.packed_mask >> block & 1 != 0 { self.packed[block] } else { 0 });
            }
            for piece in self.pieces() {
                bits_of(piece.mask).for_each(|block| store(block as usize, own_bits(piece.extent, block)));
            }
            return;
        }
        store(0, self.packed_mask);
        let mut at = 1;
        for block in bits_of(self.packed_mask) {
            store(at, self.packed[block as usize]);
            at += 1;
        }
        for piece in self.pieces() {
            store(at, piece.extent.bits());
            store(at + 1, piece.mask);
            at += 2;
        }
        // A piece without blocks ends the pieces; older content must not look like one.
        (at..words.len()).for_each(|at| store(at, 0));
    }

    /// Reads a node. The result may be anything until the reader has looked at its word again.
    pub(super) fn read(&mut self, words: &[AtomicU64], class: u32) {
        self.clear();
        if class == TABLE {
            for block in 0..EXTENT_BLOCKS {
                match load(words, block as usize) {
                    0 => {}
                    own if is_own(own) => self.add(location_of(own).0, 1 << block),
                    packed => {
                        self.packed_mask |= 1 << block;
                        self.packed[block as usize] = packed;
                    }
                }
            }
            return;
        }
        self.packed_mask = load(words, 0);
        for (rank, block) in bits_of(self.packed_mask).enumerate() {
            self.packed[block as usize] = load(words, 1 + rank);
        }
        pieces(words, self.packed_mask).for_each(|(extent, mask)| self.add(ExtentId::from_bits(extent), mask));
    }
}

/// Copies a table, but for one packed block.
pub(super) fn copy_table(from: &[AtomicU64], to: &[AtomicU64], block: u32, extent: ExtentId, slot: u8) {
    for (from, to) in from.iter().zip(to) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    to[block as usize].store(packed_bits(extent, slot), Ordering::Relaxed);
}

/// The bits that are set, in rising order.
fn bits_of(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        (bit < u64::BITS).then(|| {
            mask &= mask - 1;
            bit
        })
    })
}
