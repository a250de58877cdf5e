//! Random numbers from one seed: xoshiro256** (Blackman and Vigna), its state filled by splitmix64.
//!
//! It produces integers only, so that a seed means the same on every platform.

/// The only source of randomness in a run.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of splitmix64: a bijective mix of 64 bits. It also fills simulated sectors.
#[inline]
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// Creates a generator whose sequence follows from `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut state = [0; 4];
        let mut x = seed;
        for word in &mut state {
            *word = mix(x);
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
        Rng { state }
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Returns a number from 0 up to but not including `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "no number lies below 0");
        // The bias of multiply-and-shift is below n / 2^64, which does not matter here.
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range");
        low + self.below(high - low + 1)
    }

    /// Returns an index into a sequence of `len` elements, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns true with a probability of `per_million` in a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Returns true with a probability of one half.
    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// Returns one element of a slice that is not empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }

    /// Shuffles a slice.
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for i in (1..slice.len()).rev() {
            slice.swap(i, self.index(i + 1));
        }
    }

    /// Returns the index of one of `weights`, with a probability in proportion to its weight. The sum must not be 0.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        let mut at = self.below(sum);
        for (i, w) in weights.iter().enumerate() {
            if at < u64::from(*w) {
                return i;
            }
            at -= u64::from(*w);
        }
        unreachable!("the number drawn lies below the sum of the weights")
    }

    /// Draws a probability: 0 in one of four cases, otherwise spread over the decades up to `most` per million.
    pub fn probability(&mut self, most: u32) -> u32 {
        match self.below(4) {
            0 => 0,
            1 => self.between(1, u64::from(most)) as u32,
            2 => (self.between(1, u64::from(most)) / 10) as u32,
            _ => (self.between(1, u64::from(most)) / 100) as u32,
        }
    }

    /// Returns a separate generator, so that the draws of one part do not shift those of another.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_forever() {
        // Recorded from this implementation: a change would make every recorded seed meaningless.
        let mut rng = Rng::new(1);
        let first: Vec<u64> = (0..3).map(|_| rng.bits()).collect();
        assert_eq!(first, [12_966_619_160_104_079_557, 9_600_361_134_598_540_522, 10_590_380_919_521_690_900]);
    }

    #[test]
    fn mix_matches_the_published_values() {
        // The first outputs of splitmix64 for seed 1234567.
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(mix(1_234_567u64.wrapping_add(0x9e37_79b9_7f4a_7c15)), 3_203_168_211_198_807_973);
    }

    #[test]
    fn draws_stay_in_range_and_reach_all_of_it() {
        let mut rng = Rng::new(7);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            let n = rng.between(5, 14);
            seen[(n - 5) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
        assert!((0..1000).all(|_| !rng.chance(0) && rng.chance(1_000_000)));
        assert!((0..1000).all(|_| rng.weighted(&[0, 3, 0]) == 1));
    }

    #[test]
    fn shuffling_loses_nothing() {
        let mut rng = Rng::new(9);
        let mut v: Vec<u32> = (0..50).collect();
        rng.shuffle(&mut v);
        assert_ne!(v, (0..50).collect::<Vec<_>>());
        v.sort_unstable();
        assert_eq!(v, (0..50).collect::<Vec<_>>());
    }
}
