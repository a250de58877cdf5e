//! Runs random histories of random stripes: blocks are written, updated, lost, recovered, damaged and checked, with randomly
//! chosen implementations, and compared with the definition.
//!
//! `BRAID_PARITY_SEED=N` runs the history of that seed, `BRAID_PARITY_HISTORIES=N` runs N histories.

use crate::common::{Numbers, naive_pq, slices};
use braid_parity::{BlockRole, Parity, StripeDamage};

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

struct History {
    seed: u64,
    numbers: Numbers,
    data: Vec<Vec<u8>>,
    p: Vec<u8>,
    q: Vec<u8>,
}

impl History {
    fn new(seed: u64) -> History {
        let mut numbers = Numbers(seed);
        let width = 1 + if numbers.below(4) == 0 { numbers.below(255) } else { numbers.below(10) };
        let longest = [40, 200, 5000][numbers.below(3)];
        let len = 1 + numbers.below(longest);
        let data = numbers.blocks(width, len);
        let (p, q) = naive_pq(&data, len);
        History { seed, numbers, data, p, q }
    }

    fn random_implementation(&mut self) -> Parity {
        let all: Vec<Parity> = Parity::available().collect();
        all[self.numbers.below(all.len())]
    }

    /// Changes a part of some blocks, and updates P and Q.
    fn update(&mut self) {
        let len = self.p.len();
        for _ in 0..1 + self.numbers.below(3) {
            let parity = self.random_implementation();
            let i = self.numbers.below(self.data.len());
            let from = self.numbers.below(len);
            let to = from + 1 + self.numbers.below(len - from);
            let new = self.numbers.bytes(to - from);
            parity.update(&mut self.p[from..to], &mut self.q[from..to], i, &self.data[i][from..to], &new);
            self.data[i][from..to].copy_from_slice(&new);
        }
    }

    fn block(&mut self, role: BlockRole) -> &mut Vec<u8> {
        match role {
            BlockRole::Data(i) => &mut self.data[i],
            BlockRole::P => &mut self.p,
            BlockRole::Q => &mut self.q,
        }
    }

    fn random_role(&mut self) -> BlockRole {
        let width = self.data.len();
        match self.numbers.below(width + 2) {
            0 => BlockRole::P,
            1 => BlockRole::Q,
            i => BlockRole::Data(i - 2),
        }
    }

    /// Loses up to two blocks, and recovers them.
    fn lose(&mut self) {
        let (a, b) = (self.random_role(), self.random_role());
        let mut lost = vec![a, b];
        lost.dedup();
        let len = self.p.len();
        let original: Vec<Vec<u8>> = lost.iter().map(|role| std::mem::take(self.block(*role))).collect();
        let mut outputs = vec![vec![0x55; len]; lost.len()];
        let mut out: Vec<(BlockRole, &mut [u8])> =
            lost.iter().copied().zip(outputs.iter_mut().map(Vec::as_mut_slice)).collect();
        self.random_implementation().recover(&slices(&self.data), &self.p, &self.q, &mut out).expect("two may be lost");
        assert!(outputs == original, "seed {}: {lost:?}", self.seed);
        for (role, block) in lost.into_iter().zip(original) {
            *self.block(role) = block;
        }
    }

    /// Damages one block at some bytes, checks that it is found, and recovers it.
    fn damage(&mut self) {
        let (role, len) = (self.random_role(), self.p.len());
        for _ in 0..1 + self.numbers.below(5) {
            let (at, change) = (self.numbers.below(len), 1 << self.numbers.below(8));
            self.block(role)[at] ^= change;
        }
        let found = self.random_implementation().check(&self.p, &self.q, &slices(&self.data));
        // Two changes of the same bit cancel out.
        let (p, q) = naive_pq(&self.data, len);
        let expected = match role {
            _ if p == self.p && q == self.q => StripeDamage::None,
            BlockRole::Data(i) => StripeDamage::Data(i),
            BlockRole::P => StripeDamage::P,
            BlockRole::Q => StripeDamage::Q,
        };
        assert_eq!(found, expected, "seed {}", self.seed);
        self.block(role).clear();
        let mut output = vec![0; len];
        let parity = self.random_implementation();
        let done = parity.recover(&slices(&self.data), &self.p, &self.q, &mut [(role, &mut output)]);
        done.expect("one may be lost");
        *self.block(role) = output;
    }

    fn run(mut self) {
        for _ in 0..6 {
            match self.numbers.below(3) {
                0 => self.update(),
                1 => self.lose(),
                _ => self.damage(),
            }
            let (p, q) = naive_pq(&self.data, self.p.len());
            assert!(self.p == p && self.q == q, "seed {}", self.seed);
            let parity = self.random_implementation();
            assert_eq!(parity.check(&self.p, &self.q, &slices(&self.data)), StripeDamage::None, "seed {}", self.seed);
        }
    }
}

#[test]
fn random_histories() {
    let seeds = match (setting("BRAID_PARITY_SEED"), setting("BRAID_PARITY_HISTORIES")) {
        (Some(seed), _) => seed..seed + 1,
        (None, histories) => 0..histories.unwrap_or(500),
    };
    for seed in seeds {
        History::new(seed).run();
    }
}
