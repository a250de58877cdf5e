//! How much of each logical extent of an owner is scattered: a byte each, in pieces, so that a volume of which little is takes little.
//!
//! What stands where is found by a further look, for as many logical extents at a time as memory is to be spent on: [`Scattered::choose`].

/// Logical extents of a piece: 1 GiB of a volume.
const PIECE: usize = 4096;
/// Not all of it stands in one whole extent.
const APART: u8 = 0x80;

/// The logical extents of one owner.
#[derive(Default)]
pub(super) struct Scattered {
    pieces: Vec<Option<Box<[u8; PIECE]>>>,
    /// Those that are looked for now: from the first up to the second.
    chosen: (u64, u64),
    /// Blocks that they have.
    blocks: u64,
}

/// What [`Scattered::choose`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// Ask again.
    More,
    /// There are some to be looked for.
    Some,
    /// There are none any more.
    None,
}

impl Scattered {
    /// So many blocks of a logical extent stand in a packed extent, or in a whole one that is not full.
    pub fn note(&mut self, logical: u32, blocks: u32, packed: bool) {
        let (piece, at) = (logical as usize / PIECE, logical as usize % PIECE);
        if self.pieces.len() <= piece {
            self.pieces.resize_with(piece + 1, || None);
        }
        let count = &mut self.pieces[piece].get_or_insert_with(|| Box::new([0; PIECE]))[at];
        let apart = packed || *count != 0;
        *count = ((*count & !APART) + blocks.min(63) as u8).min(!APART) | if apart { APART } else { 0 };
    }

    /// Goes on to choose what is looked for next: logical extents of which `least` blocks or more are scattered, and not in one whole extent
    /// alone; so many that they have `most` blocks, or a few more.
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

    /// How many blocks a logical extent has that is one of those that are looked for.
    pub fn is_chosen(&self, logical: u32, least: usize) -> Option<usize> {
        let (piece, at) = (logical as usize / PIECE, logical as usize % PIECE);
        if !(self.chosen.0..self.chosen.1).contains(&u64::from(logical)) {
            return None;
        }
        dense(self.pieces.get(piece)?.as_ref()?[at], least)
    }

    /// Those that were chosen have been seen to.
    pub fn end_chosen(&mut self) {
        let whole = self.chosen.0 as usize / PIECE..(self.chosen.1 as usize / PIECE).min(self.pieces.len());
        self.pieces[whole].fill_with(|| None);
        (self.chosen.0, self.blocks) = (self.chosen.1, 0);
    }
}

fn dense(count: u8, least: usize) -> Option<usize> {
    let blocks = usize::from(count & !APART);
    (count & APART != 0 && blocks >= least).then_some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_logical_extent_with_enough_is_chosen_once_and_few_at_a_time() {
        let mut scattered = Scattered::default();
        let far = 5 * PIECE as u32 + 7;
        // Packed in two places, in one whole extent alone, in both, in two whole ones, too few, and up to the end of a piece.
        for (logical, blocks, packed) in [(3, 20, true), (3, 20, true), (4, 63, false), (9, 20, false), (9, 12, true)] {
            scattered.note(logical, blocks, packed);
        }
        for (logical, blocks, packed) in [(far, 40, false), (far, 2, false), (far + 1, 31, true), (4095, 63, true)] {
            scattered.note(logical, blocks, packed);
        }
        let mut seen = Vec::new();
        loop {
            match scattered.choose(32, 50) {
                Choice::More => {}
                Choice::Some => {
                    let all = [0, 3, 4, 9, 10, 4095, 4096, far, far + 1];
                    let of = |logical| Some((logical, scattered.is_chosen(logical, 32)?));
                    seen.push(all.into_iter().filter_map(of).collect::<Vec<_>>());
                    scattered.end_chosen();
                }
                Choice::None => break,
            }
        }
        assert_eq!(seen, [vec![(3, 40), (9, 32)], vec![(4095, 63)], vec![(far, 42)]]);
        assert!(scattered.pieces.iter().all(Option::is_none), "nothing of it is kept");
    }

    #[test]
    fn a_count_never_runs_over() {
        let mut scattered = Scattered::default();
        (0..9).for_each(|_| scattered.note(u32::MAX, 64, true));
        while scattered.choose(32, 1) == Choice::More {}
        assert_eq!(scattered.is_chosen(u32::MAX, 32), Some(127));
    }
}
