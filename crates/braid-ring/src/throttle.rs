//! Rate limits of `throttled(…)`: the generic cell rate algorithm, one atomic word a limit.
//!
//! The word holds the time at which the next I/O may start (the theoretical arrival time). An I/O takes
//! that moment for itself and moves the word on by what it costs; it waits until its moment has come.
//! Unused time is kept for at most [`BURST_NS`]. All shards share the words, so the limit is the disk's.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use braid_engine::Op;

use crate::spec::ThrottleLimits;

/// How much unused time may be caught up with, in nanoseconds (10 ms).
pub const BURST_NS: u64 = 10_000_000;

/// Times are counted in 64ths of a nanosecond, so that rounding stays under 1 % at 600 million a second.
const TICKS: u64 = 64;

/// One limit: so much time for each unit.
struct Limit {
    next_ticks: AtomicU64,
}

impl Limit {
    /// Reserves `cost_ticks` of time and returns when it begins, in nanoseconds.
    fn reserve(&self, now_ns: u64, cost_ticks: u64) -> u64 {
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
}

/// The limits of one `throttled(…)`.
pub(crate) struct Throttle {
    iops: Option<(Limit, u64)>,
    bandwidth: Option<(Limit, u64)>,
    latency_ns: u64,
}

impl Throttle {
    pub(crate) fn new(limits: &ThrottleLimits) -> Throttle {
        let limit = || Limit { next_ticks: AtomicU64::new(0) };
        Throttle {
            iops: limits.iops.map(|n| (limit(), 1_000_000_000 * TICKS / n)),
            bandwidth: limits.bandwidth_bytes.map(|n| (limit(), n)),
            latency_ns: limits.latency_ns,
        }
    }

    /// When an I/O that is asked for now may start, and the earliest moment at which it may be answered.
    /// Operations without data cost one I/O and no bandwidth.
    pub(crate) fn admit(&self, now_ns: u64, op: Op, len: u64) -> (u64, u64) {
        let mut start = now_ns;
        if let Some((limit, ticks)) = &self.iops {
            start = start.max(limit.reserve(now_ns, *ticks));
        }
        if let Some((limit, bytes_per_second)) = &self.bandwidth
            && matches!(op, Op::Read | Op::Write)
        {
            let ticks = u128::from(len) * u128::from(1_000_000_000 * TICKS) / u128::from(*bytes_per_second);
            start = start.max(limit.reserve(now_ns, u64::try_from(ticks).unwrap_or(u64::MAX)));
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

    /// A closed loop of `depth` I/Os over ten virtual seconds; returns the I/Os a second that ended.
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
    fn rates_are_kept_in_virtual_time() {
        for (iops, depth) in [(3000, 8), (100_000, 128), (7, 4), (99_991, 4096)] {
            let rate = closed_loop(&throttle(Some(iops), None), depth, 4096);
            // Twice the burst: what it starts with, and one I/O's grain.
            let slack = iops as f64 * 0.0015 + 2.0;
            assert!((rate - iops as f64).abs() < slack, "{iops} a second gave {rate}");
        }
        let rate = closed_loop(&throttle(None, Some(125 << 20)), 64, 1 << 20);
        assert!((rate - 125.0).abs() < 1.5, "125M/s gave {rate} MiB/s");
        let both = closed_loop(&throttle(Some(50), Some(125 << 20)), 64, 1 << 20);
        assert!((both - 50.0).abs() < 1.5, "the tighter limit holds: {both}");
    }

    #[test]
    fn idle_time_is_kept_for_ten_milliseconds_only() {
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
}
