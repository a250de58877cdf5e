//! The order in which blocks are visited: sequential, uniformly random by a generator that costs a nanosecond, or by Zipf's law.

use std::sync::Arc;

use super::zipf::{Scatter, Zipf};

/// A small, fast generator (wyrand: a counter, one wide multiplication). Not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let wide = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        (wide >> 64) as u64 ^ wide as u64
    }

    /// Returns a number below `bound`, by multiplication instead of division. The bias is below bound / 2^64.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// The order in which blocks are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Uniformly random blocks of the used part.
    Random,
    /// One after the other, and from the start again.
    Sequential,
    /// Few blocks often, many seldom, by Zipf's law (see --theta); the frequent ones lie scattered.
    Zipf,
}

impl Order {
    /// Returns the word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Order::Random => "random",
            Order::Sequential => "sequential",
            Order::Zipf => "zipf",
        }
    }
}

/// The operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mix {
    /// Only reads.
    Read,
    /// Only writes.
    Write,
    /// Reads and writes, see `--reads`.
    Mixed,
}

impl Mix {
    /// Returns the word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Mix::Read => "read",
            Mix::Write => "write",
            Mix::Mixed => "mixed",
        }
    }
}

/// The order of blocks, and the share of reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Visit {
    /// The order.
    pub order: Order,
    /// The exponent of [`Order::Zipf`]. Other orders ignore it.
    pub theta: f64,
    /// Share of reads, in percent.
    pub reads_percent: u8,
}

/// An endless sequence of blocks for one job.
#[derive(Clone, Debug)]
pub struct Pattern {
    random: Random,
    draw: Draw,
    /// Share of reads, in units of 2^-32.
    reads: u64,
    first_byte: u64,
    block_bytes: u64,
    blocks: u64,
}

#[derive(Clone, Debug)]
enum Draw {
    Uniform,
    /// The next block.
    Sequential(u64),
    Zipf(Box<(Zipf, Scatter)>),
    /// Uniformly from these blocks.
    From(Arc<[u32]>),
}

impl Pattern {
    /// Returns a sequence of blocks of `block_bytes` in the `span_bytes` from `first_byte` on.
    pub fn new(seed: u64, visit: &Visit, first_byte: u64, span_bytes: u64, block_bytes: u64) -> Pattern {
        let blocks = span_bytes / block_bytes;
        Pattern {
            random: Random::new(seed),
            draw: match visit.order {
                Order::Random => Draw::Uniform,
                Order::Sequential => Draw::Sequential(0),
                // The frequent blocks are the same for every job, as for the users of one disk.
                Order::Zipf => {
                    let scatter = Scatter::new(blocks, Random::new(1).below(blocks));
                    Draw::Zipf(Box::new((Zipf::new(blocks, visit.theta), scatter)))
                }
            },
            reads: (u64::from(visit.reads_percent) << 32) / 100,
            first_byte,
            block_bytes,
            blocks,
        }
    }

    /// Draws uniformly from these blocks from now on, given their numbers.
    ///
    /// # Panics
    /// The list is empty.
    pub fn draw_from(&mut self, blocks: Arc<[u32]>) {
        assert!(!blocks.is_empty(), "blocks to draw from");
        self.draw = Draw::From(blocks);
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the byte offset of block `index`.
    #[inline]
    pub fn offset(&self, index: u64) -> u64 {
        self.first_byte + index * self.block_bytes
    }

    /// Returns the next block, and whether it is to be read.
    // Always inlined: the call was a tenth of the cost of an I/O on a null disk.
    #[inline(always)]
    pub fn next(&mut self) -> (u64, bool) {
        let index = match &mut self.draw {
            Draw::Uniform => self.random.below(self.blocks),
            Draw::Sequential(next) => {
                let index = *next;
                *next = if index + 1 == self.blocks { 0 } else { index + 1 };
                index
            }
            Draw::Zipf(both) => Pattern::by_law(both, &mut self.random),
            Draw::From(blocks) => u64::from(blocks[self.random.below(blocks.len() as u64) as usize]),
        };
        let read = match self.reads {
            0 => false,
            all if all == 1 << 32 => true,
            some => self.random.next_u64() >> 32 < some,
        };
        (index, read)
    }

    #[inline(never)]
    fn by_law(both: &(Zipf, Scatter), random: &mut Random) -> u64 {
        both.1.position(both.0.next(|| random.next_u64()) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(order: Order, reads_percent: u8) -> Visit {
        Visit { order, theta: 0.99, reads_percent }
    }

    #[test]
    fn zipf_visits_few_blocks_often_and_they_are_not_neighbours() {
        let mut pattern = Pattern::new(1, &visit(Order::Zipf, 100), 0, 1000 * 4096, 4096);
        let mut seen = [0u32; 1000];
        for _ in 0..200_000 {
            seen[pattern.next().0 as usize] += 1;
        }
        let mut ranked: Vec<usize> = (0..1000).collect();
        ranked.sort_by_key(|&block| std::cmp::Reverse(seen[block]));
        let hot: u32 = ranked[..100].iter().map(|&block| seen[block]).sum();
        // The law gives the first tenth of 1,000 ranks at theta 0.99 a share of 69 percent.
        assert!((130_000..146_000).contains(&hot), "{hot}");
        assert!(ranked[0].abs_diff(ranked[1]) > 100, "{:?}", &ranked[..4]);
    }

    #[test]
    fn sequential_wraps_around() {
        let mut pattern = Pattern::new(1, &visit(Order::Sequential, 100), 8192, 3 * 4096 + 100, 4096);
        let drawn: Vec<_> = (0..4).map(|_| pattern.next()).collect();
        let offsets: Vec<_> = drawn.into_iter().map(|(i, read)| (pattern.offset(i), read)).collect();
        assert_eq!(offsets, [(8192, true), (12288, true), (16384, true), (8192, true)]);
    }

    #[test]
    fn only_the_blocks_of_a_list_are_drawn_and_all_of_them() {
        let mut pattern = Pattern::new(3, &visit(Order::Random, 100), 0, 1000 * 4096, 4096);
        pattern.draw_from([7, 900, 33].into());
        let drawn: std::collections::BTreeSet<u64> = (0..100).map(|_| pattern.next().0).collect();
        assert_eq!(drawn, [7, 33, 900].into());
    }

    #[test]
    fn random_reaches_every_block_and_keeps_the_mix() {
        let mut pattern = Pattern::new(7, &visit(Order::Random, 70), 0, 64 * 4096, 4096);
        let mut seen = [0u32; 64];
        let mut reads = 0;
        for _ in 0..64_000 {
            let (index, read) = pattern.next();
            seen[index as usize] += 1;
            reads += u32::from(read);
        }
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert!((44_000..45_600).contains(&reads), "{reads}");
    }

    #[test]
    fn the_same_seed_gives_the_same_blocks() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.next_u64(), random.next_u64(), random.next_u64()]
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}
