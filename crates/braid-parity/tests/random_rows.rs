//! Random rows through random histories: written, updated, lost, recovered, damaged and checked, by all implementations at
//! once, against the definition.
//!
//! `BRAID_PARITY_SEED=N` runs one history, `BRAID_PARITY_HISTORIES=N` so many.

mod common;

use braid_parity::{Damage, Parity, Role};
use common::{Numbers, naive_pq, slices};

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

    fn any(&mut self) -> Parity {
        let all: Vec<Parity> = Parity::available().collect();
        all[self.numbers.below(all.len())]
    }

    /// A part of some blocks changes, and P and Q with it.
    fn update(&mut self) {
        let len = self.p.len();
        for _ in 0..1 + self.numbers.below(3) {
            let parity = self.any();
            let i = self.numbers.below(self.data.len());
            let from = self.numbers.below(len);
            let to = from + 1 + self.numbers.below(len - from);
            let new = self.numbers.bytes(to - from);
            parity.update(&mut self.p[from..to], &mut self.q[from..to], i, &self.data[i][from..to], &new);
            self.data[i][from..to].copy_from_slice(&new);
        }
    }

    fn block(&mut self, role: Role) -> &mut Vec<u8> {
        match role {
            Role::Data(i) => &mut self.data[i],
            Role::P => &mut self.p,
            Role::Q => &mut self.q,
        }
    }

    fn role(&mut self) -> Role {
        let width = self.data.len();
        match self.numbers.below(width + 2) {
            0 => Role::P,
            1 => Role::Q,
            i => Role::Data(i - 2),
        }
    }

    /// Up to two blocks are gone and come back.
    fn lose(&mut self) {
        let (a, b) = (self.role(), self.role());
        let mut lost = vec![a, b];
        lost.dedup();
        let len = self.p.len();
        let gone: Vec<Vec<u8>> = lost.iter().map(|role| std::mem::take(self.block(*role))).collect();
        let mut places = vec![vec![0x55; len]; lost.len()];
        let mut out: Vec<(Role, &mut [u8])> =
            lost.iter().copied().zip(places.iter_mut().map(Vec::as_mut_slice)).collect();
        self.any().recover(&slices(&self.data), &self.p, &self.q, &mut out).expect("two may be lost");
        assert!(places == gone, "seed {}: {lost:?}", self.seed);
        for (role, block) in lost.into_iter().zip(gone) {
            *self.block(role) = block;
        }
    }

    /// One block is wrong at some bytes, is named, recovered, and right.
    fn damage(&mut self) {
        let (role, len) = (self.role(), self.p.len());
        for _ in 0..1 + self.numbers.below(5) {
            let (at, change) = (self.numbers.below(len), 1 << self.numbers.below(8));
            self.block(role)[at] ^= change;
        }
        let found = self.any().check(&self.p, &self.q, &slices(&self.data));
        // Two changes of the same bit undo each other.
        let (p, q) = naive_pq(&self.data, len);
        let expected = match role {
            _ if p == self.p && q == self.q => Damage::None,
            Role::Data(i) => Damage::Data(i),
            Role::P => Damage::P,
            Role::Q => Damage::Q,
        };
        assert_eq!(found, expected, "seed {}", self.seed);
        self.block(role).clear();
        let mut place = vec![0; len];
        let parity = self.any();
        let done = parity.recover(&slices(&self.data), &self.p, &self.q, &mut [(role, &mut place)]);
        done.expect("one may be lost");
        *self.block(role) = place;
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
            let parity = self.any();
            assert_eq!(parity.check(&self.p, &self.q, &slices(&self.data)), Damage::None, "seed {}", self.seed);
        }
    }
}

#[test]
fn histories() {
    let seeds = match (setting("BRAID_PARITY_SEED"), setting("BRAID_PARITY_HISTORIES")) {
        (Some(seed), _) => seed..seed + 1,
        (None, histories) => 0..histories.unwrap_or(500),
    };
    for seed in seeds {
        History::new(seed).run();
    }
}
