//! Rate limits of `throttled(…)` and of other users: the generic cell rate algorithm, one atomic word per limit.
//!
//! The word holds the time at which the next I/O may start (the theoretical arrival time). An I/O takes that time as
//! its start, advances the word by its cost, and waits until its start. Unused time is kept for at most [`BURST_NS`].
//! All shards share the words, so the limit applies to the disk.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use braid_engine::Op;

use crate::spec::ThrottleLimits;

/// Maximum unused time that can be used later, in nanoseconds (10 ms).
pub const BURST_NS: u64 = 10_000_000;

/// Times are in 64ths of a nanosecond, so that the rounding error stays below 1 % at 600 million I/Os per second.
const TICKS: u64 = 64;

/// Rates; `None`: unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rates {
    /// I/Os per second, not 0.
    pub iops: Option<u64>,
    /// Bytes per second, reads and writes together, not 0.
    pub bandwidth_bytes: Option<u64>,
}

/// One limit: time per unit.
#[derive(Debug, Default)]
struct Limit {
    next_ticks: AtomicU64,
    /// Units per second. 0: unlimited.
    rate: AtomicU64,
}

impl Limit {
    /// Reserves the time for `units`, and returns its start in nanoseconds.
    fn reserve(&self, now_ns: u64, units: u64) -> u64 {
        let rate = self.rate.load(Relaxed);
        if rate == 0 {
            return now_ns;
        }
        let ticks = u128::from(units) * u128::from(1_000_000_000 * TICKS) / u128::from(rate);
        let cost_ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        let earliest = now_ns.saturating_sub(BURST_NS).saturating_mul(TICKS);
        let mut next = self.next_ticks.load(Relaxed);
        loop {
            let start = next.max(earliest);
            match self.next_ticks.compare_exchange_weak(next, start.saturating_add(cost_ticks), Relaxed, Relaxed) {
                Ok(_) => return start / TICKS,
                Err(seen) => next = seen,
            }
        }
    }

    /// Changes the rate. Reservations at the previous rate are discarded.
    fn set(&self, rate: Option<u64>) {
        let rate = rate.unwrap_or(0);
        if self.rate.swap(rate, Relaxed) != rate {
            self.next_ticks.store(0, Relaxed);
        }
    }
}

/// Rate limits that many threads share. Aligned so that [`Throttle::is_limited`] reads no cache line that the
/// admissions of other threads write.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Throttle {
    limited: AtomicBool,
    latency_ns: u64,
    words: Words,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Words {
    iops: Limit,
    bandwidth: Limit,
}

impl Throttle {
    pub(crate) fn new(limits: &ThrottleLimits) -> Throttle {
        let rates = Rates { iops: limits.iops, bandwidth_bytes: limits.bandwidth_bytes };
        Throttle { latency_ns: limits.latency_ns, ..Throttle::with_rates(&rates) }
    }

    /// Creates a throttle with these rates and no latency.
    pub fn with_rates(rates: &Rates) -> Throttle {
        let throttle = Throttle::default();
        throttle.set(rates);
        throttle
    }

    /// Changes the rates for I/Os from now on.
    pub fn set(&self, rates: &Rates) {
        self.words.iops.set(rates.iops);
        self.words.bandwidth.set(rates.bandwidth_bytes);
        self.limited.store(*rates != Rates::default(), Relaxed);
    }

    /// Returns whether any rate is limited.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.limited.load(Relaxed)
    }

    /// Reserves the time of an I/O that is submitted at `now_ns`. Returns when it may start, and the earliest time at
    /// which it may complete, in nanoseconds of the same clock. Operations without data cost one I/O and no bandwidth.
    /// The caller waits; the reservation cannot be returned.
    pub fn admit(&self, now_ns: u64, op: Op, len: u64) -> (u64, u64) {
        let mut start = now_ns.max(self.words.iops.reserve(now_ns, 1));
        if matches!(op, Op::Read | Op::Write) {
            start = start.max(self.words.bandwidth.reserve(now_ns, len));
        }
        (start, start.saturating_add(self.latency_ns))
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;

    fn throttle(iops: Option<u64>, bandwidth_bytes: Option<u64>) -> Throttle {
        Throttle::new(&ThrottleLimits { iops, bandwidth_bytes, latency_ns: 600_000 })
    }

    /// Runs a closed loop of `depth` I/Os over ten virtual seconds. Returns the I/Os completed per second.
    fn closed_loop(throttle: &Throttle, depth: usize, len: u64) -> f64 {
        let begin = 1_000_000_000_000;
        let mut due: BinaryHeap<Reverse<u64>> = (0..depth).map(|_| Reverse(begin)).collect();
        let mut ended = 0;
        while let Some(Reverse(earliest)) = due.pop()
            && earliest < begin + 10_000_000_000
        {
            ended += usize::from(earliest > begin);
            due.push(Reverse(throttle.admit(earliest, Op::Read, len).1));
        }
        ended as f64 / 10.0
    }

    #[test]
    fn rates_hold_in_virtual_time() {
        for (iops, depth) in [(3000, 8), (100_000, 128), (7, 4), (99_991, 4096)] {
            let rate = closed_loop(&throttle(Some(iops), None), depth, 4096);
            // Allows for the initial burst, and for the granularity of one I/O.
            let slack = iops as f64 * 0.0015 + 2.0;
            assert!((rate - iops as f64).abs() < slack, "{iops} a second gave {rate}");
        }
        let rate = closed_loop(&throttle(None, Some(125 << 20)), 64, 1 << 20);
        assert!((rate - 125.0).abs() < 1.5, "125M/s gave {rate} MiB/s");
        let both = closed_loop(&throttle(Some(50), Some(125 << 20)), 64, 1 << 20);
        assert!((both - 50.0).abs() < 1.5, "the tighter limit holds: {both}");
    }

    #[test]
    fn the_burst_is_limited_to_ten_milliseconds() {
        let throttle = throttle(Some(1000), None);
        throttle.admit(1_000_000_000, Op::Read, 512);
        let now = 9_000_000_000;
        let at_once = (0..100).filter(|_| throttle.admit(now, Op::Read, 512).0 <= now).count();
        assert_eq!(at_once, 11, "10 ms at 1,000 a second, and the one that is due");
    }

    #[test]
    fn latency_alone_depends_on_depth() {
        let throttle = throttle(None, None);
        assert_eq!(throttle.admit(5, Op::Flush, 0), (5, 600_005));
        assert!((closed_loop(&throttle, 3, 4096) - 5000.0).abs() < 2.0);
    }

    #[test]
    fn a_new_rate_applies_at_once() {
        let throttle = Throttle::with_rates(&Rates { iops: None, bandwidth_bytes: Some(1000) });
        let now = 1_000_000_000_000;
        throttle.admit(now, Op::Write, 1_000_000);
        assert!(throttle.admit(now, Op::Write, 1).0 > now + 900_000_000_000, "a thousand seconds, at the old rate");
        throttle.set(&Rates { iops: Some(100), bandwidth_bytes: Some(1 << 30) });
        assert_eq!(throttle.admit(now, Op::Write, 1).0, now);
        assert!(throttle.is_limited());
        throttle.set(&Rates::default());
        assert!(!throttle.is_limited());
    }
}
