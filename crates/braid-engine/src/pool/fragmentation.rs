//! How much of each logical extent of an owner is fragmented: a byte each, in pieces, so that a volume with little
//! fragmentation takes little memory.
//!
//! The locations are found by another scan, for as many logical extents at a time as memory is to be spent on:
//! [`Fragmentation::choose`].

/// Logical extents of a piece: 1 GiB of a volume.
const PIECE: usize = 4096;
/// Flag of a count, set if not all of the counted blocks are in one whole extent.
const FRAGMENTED: u8 = 0x80;

/// The fragmentation of one owner.
#[derive(Default)]
pub(super) struct Fragmentation {
    pieces: Vec<Option<Box<[u8; PIECE]>>>,
    /// The range of logical extents that was searched for the current choice: the first, and the one after the last.
    chosen: (u64, u64),
    /// Fragmented blocks of the logical extents that were chosen in this range.
    blocks: u64,
}

/// The outcome of [`Fragmentation::choose`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// Call again.
    More,
    /// Some were chosen.
    Some,
    /// None are left.
    None,
}

impl Fragmentation {
    /// Adds blocks of a logical extent that are in a packed extent (`packed`), or in a whole one that is not full. The
    /// count ends at 127.
    pub fn note(&mut self, logical: u32, blocks: u32, packed: bool) {
        let (piece, at) = (logical as usize / PIECE, logical as usize % PIECE);
        if self.pieces.len() <= piece {
            self.pieces.resize_with(piece + 1, || None);
        }
        let count = &mut self.pieces[piece].get_or_insert_with(|| Box::new([0; PIECE]))[at];
        let fragmented = packed || *count != 0;
        *count =
            ((*count & !FRAGMENTED) + blocks.min(63) as u8).min(!FRAGMENTED) | if fragmented { FRAGMENTED } else { 0 };
    }

    /// Continues choosing the next logical extents, in ascending order: those with at least `least` fragmented blocks
    /// that are not all in one whole extent. The choice is complete when they have `most` blocks together, or a few
    /// more.
    pub fn choose(&mut self, least: usize, most: u64) -> Choice {
        let piece = self.chosen.1 as usize / PIECE;
        if piece >= self.pieces.len() {
            return if self.blocks > 0 { Choice::Some } else { Choice::None };
        }
        let end = (piece as u64 + 1) * PIECE as u64;
        if let Some(counts) = &self.pieces[piece] {
            for count in &counts[self.chosen.1 as usize % PIECE..] {
                if self.blocks >= most {
                    return Choice::Some;
                }
                self.chosen.1 += 1;
                self.blocks += dense(*count, least).unwrap_or(0) as u64;
            }
        }
        self.chosen.1 = end;
        Choice::More
    }

    /// Returns how many blocks a logical extent has, if it is chosen.
    pub fn is_chosen(&self, logical: u32, least: usize) -> Option<usize> {
        let (piece, at) = (logical as usize / PIECE, logical as usize % PIECE);
        if !(self.chosen.0..self.chosen.1).contains(&u64::from(logical)) {
            return None;
        }
        dense(self.pieces.get(piece)?.as_ref()?[at], least)
    }

    /// Notes that the chosen logical extents are done.
    pub fn end_chosen(&mut self) {
        let whole = self.chosen.0 as usize / PIECE..(self.chosen.1 as usize / PIECE).min(self.pieces.len());
        self.pieces[whole].fill_with(|| None);
        (self.chosen.0, self.blocks) = (self.chosen.1, 0);
    }
}

fn dense(count: u8, least: usize) -> Option<usize> {
    let blocks = usize::from(count & !FRAGMENTED);
    (count & FRAGMENTED != 0 && blocks >= least).then_some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_logical_extent_with_enough_is_chosen_once_and_few_at_a_time() {
        let mut fragmentation = Fragmentation::default();
        let far = 5 * PIECE as u32 + 7;
        // In two packed extents, in one whole extent alone, in both, in two whole ones, too few, and at the end of a
        // piece.
        for (logical, blocks, packed) in [(3, 20, true), (3, 20, true), (4, 63, false), (9, 20, false), (9, 12, true)] {
            fragmentation.note(logical, blocks, packed);
        }
        for (logical, blocks, packed) in [(far, 40, false), (far, 2, false), (far + 1, 31, true), (4095, 63, true)] {
            fragmentation.note(logical, blocks, packed);
        }
        let mut seen = Vec::new();
        loop {
            match fragmentation.choose(32, 50) {
                Choice::More => {}
                Choice::Some => {
                    let all = [0, 3, 4, 9, 10, 4095, 4096, far, far + 1];
                    let of = |logical| Some((logical, fragmentation.is_chosen(logical, 32)?));
                    seen.push(all.into_iter().filter_map(of).collect::<Vec<_>>());
                    fragmentation.end_chosen();
                }
                Choice::None => break,
            }
        }
        assert_eq!(seen, [vec![(3, 40), (9, 32)], vec![(4095, 63)], vec![(far, 42)]]);
        assert!(fragmentation.pieces.iter().all(Option::is_none), "nothing of it is kept");
    }

    #[test]
    fn a_count_never_overflows() {
        let mut fragmentation = Fragmentation::default();
        (0..9).for_each(|_| fragmentation.note(u32::MAX, 64, true));
        while fragmentation.choose(32, 1) == Choice::More {}
        assert_eq!(fragmentation.is_chosen(u32::MAX, 32), Some(127));
    }
}
