//! Requests that begin or end within a block.

use crate::content::BLOCK_SECTORS;
use crate::rng::Rng;

/// How many sectors of the first block a request leaves out at its beginning, and of the last one at its end; less than all of one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Edges {
    /// Left out at the beginning.
    pub skip: u64,
    /// Left out at the end.
    pub cut: u64,
}

impl Edges {
    /// For a request of so many blocks.
    pub fn draw(rng: &mut Rng, blocks: u64) -> Edges {
        let all = BLOCK_SECTORS as u64;
        match rng.below(4) {
            0 => Edges::default(),
            _ if blocks == 1 => {
                let skip = rng.below(all);
                Edges { skip, cut: rng.below(all - skip) }
            }
            1 => Edges { skip: rng.below(all), cut: 0 },
            2 => Edges { skip: 0, cut: rng.below(all) },
            _ => Edges { skip: rng.below(all), cut: rng.below(all) },
        }
    }

    /// Which sectors of block `k` a request of `blocks` blocks from `first` on is about: a bit each.
    pub fn sectors_of(&self, k: u64, (first, blocks): (u64, u64)) -> u8 {
        let skip = if k == first { self.skip } else { 0 };
        let cut = if k + 1 == first + blocks { self.cut } else { 0 };
        u8::MAX << skip & u8::MAX >> cut
    }

    /// Whether the request is of whole blocks.
    pub fn is_whole(&self) -> bool {
        *self == Edges::default()
    }
}
