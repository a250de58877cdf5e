//! Which block next: sequential, or drawn by a generator that costs a nanosecond.

/// A small, fast generator (wyrand: a counter, one wide multiplication). Not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that repeats itself for the same seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let wide = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        (wide >> 64) as u64 ^ wide as u64
    }

    /// A number below `bound`, by multiplication instead of division; the bias is below bound / 2^64.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// In which order blocks are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Each block drawn evenly from the span.
    Random,
    /// One after the other, from the start again at the end.
    Sequential,
}

/// What is done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mix {
    /// Only reads.
    Read,
    /// Only writes.
    Write,
    /// Reads and writes, see `--reads`.
    Mixed,
}

/// The blocks of one shard, endlessly.
#[derive(Clone, Debug)]
pub struct Pattern {
    random: Random,
    order: Order,
    /// Share of reads in 2^32.
    reads: u64,
    first_byte: u64,
    block_bytes: u64,
    blocks: u64,
    next: u64,
}

impl Pattern {
    /// Blocks of `block_bytes` in the `span_bytes` from `first_byte`; `reads_percent` of them reads.
    pub fn new(
        seed: u64,
        order: Order,
        reads_percent: u8,
        first_byte: u64,
        span_bytes: u64,
        block_bytes: u64,
    ) -> Pattern {
        Pattern {
            random: Random::new(seed),
            order,
            reads: (u64::from(reads_percent) << 32) / 100,
            first_byte,
            block_bytes,
            blocks: span_bytes / block_bytes,
            next: 0,
        }
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The byte at which block `index` begins.
    #[inline]
    pub fn offset(&self, index: u64) -> u64 {
        self.first_byte + index * self.block_bytes
    }

    /// The next block, and whether it is to be read.
    #[inline]
    pub fn next(&mut self) -> (u64, bool) {
        let index = match self.order {
            Order::Random => self.random.below(self.blocks),
            Order::Sequential => {
                let index = self.next;
                self.next = if index + 1 == self.blocks { 0 } else { index + 1 };
                index
            }
        };
        let read = match self.reads {
            0 => false,
            all if all == 1 << 32 => true,
            some => self.random.next() >> 32 < some,
        };
        (index, read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_goes_around() {
        let mut pattern = Pattern::new(1, Order::Sequential, 100, 8192, 3 * 4096 + 100, 4096);
        let drawn: Vec<_> = (0..4).map(|_| pattern.next()).collect();
        let offsets: Vec<_> = drawn.into_iter().map(|(i, read)| (pattern.offset(i), read)).collect();
        assert_eq!(offsets, [(8192, true), (12288, true), (16384, true), (8192, true)]);
    }

    #[test]
    fn random_reaches_every_block_and_keeps_the_mix() {
        let mut pattern = Pattern::new(7, Order::Random, 70, 0, 64 * 4096, 4096);
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
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}
