//! Requests that begin or end within a block.

use crate::content::BLOCK_SECTORS;
use crate::rng::Rng;

/// How many sectors of its first block a request skips at the beginning, and of its last block at the end. At least
/// one sector remains.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Edges {
    /// Sectors skipped at the beginning.
    pub skip: u64,
    /// Sectors skipped at the end.
    pub cut: u64,
}

impl Edges {
    /// Draws the edges of a request of `blocks` blocks.
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

    /// Returns which sectors of block `k` a request of `blocks` blocks from `first` on covers, one bit per sector.
    pub fn sectors_of(&self, k: u64, (first, blocks): (u64, u64)) -> u8 {
        let skip = if k == first { self.skip } else { 0 };
        let cut = if k + 1 == first + blocks { self.cut } else { 0 };
        u8::MAX << skip & u8::MAX >> cut
    }

    /// Returns whether the request covers whole blocks.
    pub fn is_whole(&self) -> bool {
        *self == Edges::default()
    }
}
