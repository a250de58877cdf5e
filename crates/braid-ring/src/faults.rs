//! Evaluates the rules of `faulty(…)`.
//!
//! The rules are shared and may be changed while the disk is in use. Each shard draws its own random numbers from the
//! rules' seed and its shard number, so that the behaviour of a single shard is reproducible.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use braid_engine::{Op, ShardId};

use crate::spec::{FaultKind, FaultRule, FaultRules};
use crate::wake::Wake;

const SECTOR_BYTES: u64 = 512;

/// The rules in force, and the counters that all shards share.
pub(crate) struct RuleSet {
    rules: Vec<Rule>,
    seed: u64,
    ios: AtomicU64,
}

impl RuleSet {
    fn new(rules: &FaultRules) -> RuleSet {
        RuleSet {
            rules: rules.rules.iter().map(|rule| Rule::new(*rule)).collect(),
            seed: rules.seed,
            ios: AtomicU64::new(0),
        }
    }
}

/// One rule and its state.
struct Rule {
    rule: FaultRule,
    used: AtomicU64,
    /// For a `bad` range: a bit for each sector that has been written.
    written: Box<[AtomicU64]>,
}

impl Rule {
    fn new(rule: FaultRule) -> Rule {
        let sectors = match rule.kind {
            FaultKind::Bad => rule.to.div_ceil(SECTOR_BYTES) - rule.from / SECTOR_BYTES,
            _ => 0,
        };
        let written = (0..sectors.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Rule { rule, used: AtomicU64::new(0), written }
    }

    /// Returns the word and the bit of each sector of the range that these bytes touch.
    fn sectors(&self, offset: u64, end: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let base = self.rule.from / SECTOR_BYTES;
        let first = (offset / SECTOR_BYTES).max(base);
        let last = end.min(self.rule.to).div_ceil(SECTOR_BYTES);
        (first..last).map(move |sector| (&self.written[((sector - base) / 64) as usize], 1 << ((sector - base) % 64)))
    }

    /// Returns whether any sector in question has not been written.
    fn is_bad(&self, offset: u64, end: u64) -> bool {
        self.sectors(offset, end).any(|(word, bit)| word.load(Ordering::Relaxed) & bit == 0)
    }

    /// Records a write of whole sectors.
    fn heal(&self, offset: u64, end: u64) {
        let (offset, end) = (offset.next_multiple_of(SECTOR_BYTES), end / SECTOR_BYTES * SECTOR_BYTES);
        for (word, bit) in self.sectors(offset, end) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// The effect of fault rules on one I/O.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct FaultOutcome {
    pub(crate) gone: bool,
    pub(crate) error: bool,
    pub(crate) hang: bool,
    pub(crate) delay_ns: u64,
    /// Write only this many bytes, a multiple of 512 below the I/O's length.
    pub(crate) torn_to: Option<u64>,
    /// Flip this bit, counted from the start of the data read.
    pub(crate) corrupt_bit: Option<u64>,
}

impl FaultOutcome {
    /// Combines the outcomes of two rule sets.
    pub(crate) fn and(self, other: FaultOutcome) -> FaultOutcome {
        FaultOutcome {
            gone: self.gone || other.gone,
            error: self.error || other.error,
            hang: self.hang || other.hang,
            delay_ns: self.delay_ns.saturating_add(other.delay_ns),
            torn_to: self.torn_to.into_iter().chain(other.torn_to).min(),
            corrupt_bit: self.corrupt_bit.or(other.corrupt_bit),
        }
    }
}

/// One `faulty(…)`, whose rules can be replaced.
pub(crate) struct Faults {
    version: AtomicU64,
    current: Mutex<Arc<RuleSet>>,
    /// Shards to wake when the rules change: they may hold hung I/Os.
    wakes: Mutex<Vec<Arc<Wake>>>,
}

impl Faults {
    pub(crate) fn new(rules: &FaultRules) -> Faults {
        Faults {
            version: AtomicU64::new(1),
            current: Mutex::new(Arc::new(RuleSet::new(rules))),
            wakes: Mutex::new(Vec::new()),
        }
    }

    /// Replaces the rules. All counters restart at 0, and the shards start the I/Os that the previous rules hold.
    pub(crate) fn set(&self, rules: &FaultRules) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(RuleSet::new(rules));
        self.version.fetch_add(1, Ordering::Release);
        for wake in self.wakes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            wake.wake();
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn attach(&self, wake: &Arc<Wake>) {
        let mut wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        wakes.retain(|w| Arc::strong_count(w) > 1);
        wakes.push(Arc::clone(wake));
    }

    fn rules(&self) -> Arc<RuleSet> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The view of one shard on a [`Faults`].
pub(crate) struct FaultView {
    faults: Arc<Faults>,
    version: u64,
    rules: Arc<RuleSet>,
    random: u64,
    shard: ShardId,
}

impl FaultView {
    pub(crate) fn new(faults: &Arc<Faults>, shard: ShardId) -> FaultView {
        let (version, rules) = (faults.version(), faults.rules());
        let mut view = FaultView { faults: Arc::clone(faults), version, rules, random: 0, shard };
        view.reseed();
        view
    }

    /// Version of the rules that it evaluates.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    fn reseed(&mut self) {
        self.random = self.rules.seed ^ u64::from(self.shard.0) << 48;
    }

    /// Adopts replaced rules. Returns whether there were any.
    pub(crate) fn refresh(&mut self) -> bool {
        let version = self.faults.version();
        if version == self.version {
            return false;
        }
        (self.version, self.rules) = (version, self.faults.rules());
        self.reseed();
        true
    }

    /// Returns the next number of a splitmix64 sequence.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Evaluates every rule for one I/O.
    pub(crate) fn evaluate(&mut self, op: Op, offset: u64, len: u64) -> FaultOutcome {
        self.refresh();
        let rules = Arc::clone(&self.rules);
        let nth = rules.ios.fetch_add(1, Ordering::Relaxed);
        let mut outcome = FaultOutcome::default();
        for entry in &rules.rules {
            let Rule { rule, used, .. } = entry;
            let ops = match rule.kind {
                FaultKind::Error(ops) | FaultKind::Delay(ops, _) | FaultKind::Hang(ops) => ops.has(op),
                FaultKind::Torn => op == Op::Write,
                FaultKind::Corrupt => op == Op::Read,
                FaultKind::Bad => matches!(op, Op::Read | Op::Write | Op::WriteZeroes),
                FaultKind::GoneAfter(n) => nth >= n,
            };
            let end = offset.saturating_add(len.max(1));
            let touches = op == Op::Flush || (offset < rule.to && rule.from < end);
            if rule.kind == FaultKind::Bad && ops && touches {
                if op != Op::Read {
                    entry.heal(offset, end);
                    continue;
                } else if !entry.is_bad(offset, end) {
                    continue;
                }
            }
            if !ops || !touches || !self.chance(rule.probability) {
                continue;
            }
            if let Some(times) = rule.times
                && used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |u| (u < times).then_some(u + 1)).is_err()
            {
                continue;
            }
            match rule.kind {
                FaultKind::Error(_) | FaultKind::Bad => outcome.error = true,
                FaultKind::Delay(_, ns) => outcome.delay_ns = outcome.delay_ns.saturating_add(ns),
                FaultKind::Hang(_) => outcome.hang = true,
                FaultKind::GoneAfter(_) => outcome.gone = true,
                FaultKind::Torn => outcome.torn_to = Some(self.draw() % len.div_ceil(512).max(1) * 512),
                // An empty read has no bit to flip.
                FaultKind::Corrupt if len == 0 => {}
                FaultKind::Corrupt => {
                    let (from, to) = (rule.from.max(offset), rule.to.min(end));
                    outcome.corrupt_bit = Some((from - offset) * 8 + self.draw() % ((to - from) * 8));
                }
            }
        }
        outcome
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability >= 1.0 || ((self.draw() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(rules: &[&str]) -> FaultView {
        FaultView::new(&Arc::new(Faults::new(&FaultRules::parse(rules).unwrap())), ShardId(0))
    }

    #[test]
    fn rules_hit_their_operations_ranges_and_counts() {
        let mut v = view(&["read-error@4K-8K", "write-hang*2", "flush-delay=1ms", "delay=1us"]);
        assert!(v.evaluate(Op::Read, 0, 4096) == FaultOutcome { delay_ns: 1000, ..FaultOutcome::default() });
        assert!(v.evaluate(Op::Read, 0, 4097).error);
        assert!(v.evaluate(Op::Read, 8191, 1).error);
        assert!(!v.evaluate(Op::Read, 8192, 4096).error);
        let hangs: Vec<bool> = (0..4).map(|_| v.evaluate(Op::Write, 4096, 4096).hang).collect();
        assert_eq!(hangs, [true, true, false, false]);
        assert!(!v.evaluate(Op::Write, 4096, 4096).error);
        assert_eq!(v.evaluate(Op::Flush, 0, 0).delay_ns, 1_001_000);
    }

    #[test]
    fn gone_after_counts_every_io_and_is_permanent() {
        let mut v = view(&["gone-after=3"]);
        let gone: Vec<bool> = (0..5).map(|_| v.evaluate(Op::Read, 0, 512).gone).collect();
        assert_eq!(gone, [false, false, false, true, true]);
    }

    #[test]
    fn probabilities_hold_and_repeat_by_seed() {
        let run = |seed: &str| -> Vec<bool> {
            let mut v = view(&["error=0.1", seed]);
            (0..20_000).map(|_| v.evaluate(Op::Read, 0, 512).error).collect()
        };
        let (a, b, c) = (run("seed=1"), run("seed=1"), run("seed=2"));
        assert_eq!(a, b);
        assert_ne!(a, c);
        let hits = a.iter().filter(|h| **h).count();
        assert!((1800..2200).contains(&hits), "{hits} of 20,000 at 0.1");
    }

    #[test]
    fn tears_and_flips_stay_inside_the_io() {
        let mut v = view(&["torn", "corrupt@1000-1010"]);
        for _ in 0..1000 {
            let torn = v.evaluate(Op::Write, 0, 4096).torn_to.unwrap();
            assert!(torn < 4096 && torn.is_multiple_of(512));
            let bit = v.evaluate(Op::Read, 512, 4096).corrupt_bit.unwrap();
            assert!((488 * 8..498 * 8).contains(&bit), "{bit}");
        }
    }

    #[test]
    fn a_bad_sector_is_readable_once_written() {
        let mut v = view(&["bad@4K-12K"]);
        assert!(!v.evaluate(Op::Read, 0, 4096).error && !v.evaluate(Op::Read, 12288, 4096).error);
        assert!(v.evaluate(Op::Read, 0, 65536).error && v.evaluate(Op::Read, 8192, 512).error);
        // A write of one sector makes that sector readable.
        assert!(!v.evaluate(Op::Write, 8192, 512).error);
        assert!(!v.evaluate(Op::Read, 8192, 512).error && v.evaluate(Op::Read, 8192, 1024).error);
        assert!(!v.evaluate(Op::WriteZeroes, 0, 1 << 20).error);
        assert!(!v.evaluate(Op::Read, 0, 65536).error);
        assert!(FaultRules::parse(&["bad"]).is_err() && FaultRules::parse(&["bad@0-1G"]).is_err());
        assert_eq!(FaultRules::parse(&["bad@1M-1028K"]).expect("it is right").to_string(), "bad@1M-1028K");
    }

    #[test]
    fn an_empty_read_does_not_panic() {
        let mut v = view(&["corrupt", "error@4K-8K"]);
        assert_eq!(v.evaluate(Op::Read, 10, 0), FaultOutcome::default());
        assert!(v.evaluate(Op::Read, 4096, 0).error, "its position is in the range");
    }

    #[test]
    fn new_rules_apply_from_the_next_io() {
        let faults = Arc::new(Faults::new(&FaultRules::default()));
        let mut v = FaultView::new(&faults, ShardId(1));
        assert_eq!(v.evaluate(Op::Write, 0, 512), FaultOutcome::default());
        faults.set(&FaultRules::parse(&["write-error"]).unwrap());
        assert!(v.evaluate(Op::Write, 0, 512).error);
    }
}
