//! The times at which I/Os are due, at a given rate (an open-loop load).
//!
//! The schedule does not wait for completions. An I/O that cannot begin when it is due, because all slots are in flight, begins later, and its
//! latency counts from when it was due. Otherwise a stalled disk would get fewer I/Os during the stall, which would hardly show in the
//! latencies ("coordinated omission").

/// Times have fractions of a nanosecond: a day at this precision fits 64 bits.
const FRACTION_BITS: u32 = 16;

/// Due times at equal intervals.
#[derive(Clone, Debug)]
pub struct Schedule {
    begin_ns: u64,
    step: u64,
    /// The due time of the next I/O, relative to `begin_ns`.
    next: u64,
}

impl Schedule {
    /// Returns the schedule of job `job` of `jobs` that share `rate_iops`. The due times of the jobs are evenly interleaved.
    pub fn new(begin_ns: u64, rate_iops: u64, job: u64, jobs: u64) -> Schedule {
        let of = |count: u64| ((u128::from(count) * 1_000_000_000) << FRACTION_BITS) / u128::from(rate_iops.max(1));
        let (step, next) = (of(jobs.max(1)), of(job));
        let whole = |n| u64::try_from(n).unwrap_or(u64::MAX >> 1);
        Schedule { begin_ns, step: whole(step).max(1), next: whole(next) }
    }

    /// Returns when the next I/O is due, in nanoseconds.
    #[inline]
    pub fn due_ns(&self) -> u64 {
        self.begin_ns.saturating_add(self.next >> FRACTION_BITS)
    }

    /// Goes on to the next I/O.
    #[inline]
    pub fn advance(&mut self) {
        self.next = self.next.saturating_add(self.step);
    }

    /// Returns the number of I/Os that were due before `now_ns` and have not begun.
    pub fn behind(&self, now_ns: u64) -> u64 {
        let until = u128::from(now_ns.saturating_sub(self.begin_ns)) << FRACTION_BITS;
        let late = until.saturating_sub(u128::from(self.next));
        late.div_ceil(u128::from(self.step)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the I/Os of all jobs that begin in `ns` of virtual time.
    fn begun_in(ns: u64, rate: u64, jobs: u64) -> u64 {
        (0..jobs)
            .map(|job| {
                let mut schedule = Schedule::new(5_000, rate, job, jobs);
                let mut begun = 0;
                while schedule.due_ns() < 5_000 + ns {
                    schedule.advance();
                    begun += 1;
                }
                assert_eq!(schedule.behind(5_000 + ns), 0);
                begun
            })
            .sum()
    }

    #[test]
    fn the_rate_is_kept_and_not_exceeded_by_one() {
        for (rate, jobs) in [(1, 1), (1000, 1), (1000, 3), (3333, 7), (1_000_000, 4), (7, 64)] {
            for seconds in [1, 10] {
                let begun = begun_in(seconds * 1_000_000_000, rate, jobs);
                assert!(begun.abs_diff(rate * seconds) <= 1, "{rate} over {jobs} jobs: {begun} in {seconds} s");
            }
        }
    }

    #[test]
    fn ios_that_could_not_begin_are_counted() {
        let mut schedule = Schedule::new(0, 1000, 0, 1);
        assert_eq!((schedule.behind(0), schedule.behind(1), schedule.behind(10_000_000)), (0, 1, 10));
        schedule.advance();
        assert_eq!((schedule.due_ns(), schedule.behind(10_000_000)), (1_000_000, 9));
    }
}
