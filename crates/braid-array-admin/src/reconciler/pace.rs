//! How fast jobs run: at full speed while the array is idle; while it is in use in small pieces, at a rate found by the
//! [`Governor`] that users hardly notice.

use braid_engine::{DeviceId, LEAF_BYTES_MAX};

use super::ReconcilerIo;
use super::governor::{Governor, Turned};

/// Pieces in flight while the array is idle: one disk reads while others write.
const FULL_PIECES: usize = 8;
/// Pieces in flight while the array is in use.
const SLOW_PIECES: usize = 2;
/// Interval between two checks of whether the array is in use.
const SAMPLE_NS: u64 = 20_000_000;
/// How long the array counts as in use after its last request.
const USED_NS: u64 = 500_000_000;
/// Maximum delay that a late wake-up makes up for.
const CATCH_UP_NS: u64 = 10_000_000;
/// Maximum length of one sleep.
const NAP_NS: u64 = 20_000_000;
/// With a limit, turns a second.
const LIMIT_TURNS_PER_S: u64 = 8;

/// What may be copied before [`Pace::turn`] is called again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turn {
    /// Pieces in flight at a time.
    pub pieces: usize,
    /// Maximum bytes of a piece.
    pub bytes: u64,
    /// All pieces in flight have to finish before the next turn.
    pub slow: bool,
}

/// The pace of one array's jobs.
pub(super) struct Pace {
    requests: Option<u64>,
    sampled_ns: u64,
    used_until_ns: u64,
    /// When the next piece may begin.
    due_ns: u64,
    governor: Governor,
}

impl Pace {
    pub fn new() -> Pace {
        Pace { requests: None, sampled_ns: 0, used_until_ns: 0, due_ns: 0, governor: Governor::new() }
    }

    /// Waits until more may be copied. `limit`: bytes a second, or 0. `None`: `hurry` reports more urgent work.
    pub async fn turn<I: ReconcilerIo>(
        &mut self,
        io: &I,
        device: DeviceId,
        limit: u64,
        hurry: impl Fn() -> bool,
    ) -> Option<Turn> {
        loop {
            if hurry() {
                return None;
            }
            let now = io.now_ns();
            if self.requests.is_none() || now >= self.sampled_ns + SAMPLE_NS {
                let requests = io.requests(device).await;
                self.sample(io.now_ns(), requests);
            }
            let used = now < self.used_until_ns;
            if !used && limit == 0 {
                self.due_ns = now;
                return Some(Turn { pieces: FULL_PIECES, bytes: LEAF_BYTES_MAX, slow: false });
            }
            if now >= self.due_ns {
                return Some(self.slow(used, limit));
            }
            let nap_ns = (self.due_ns - now).min(NAP_NS);
            io.sleep(nap_ns).await;
            self.governor.overslept(io.now_ns().saturating_sub(now + nap_ns));
        }
    }

    /// Records the number of requests completed so far.
    fn sample(&mut self, now_ns: u64, requests: u64) {
        let moved = self.requests.replace(requests).is_some_and(|before| before != requests);
        self.sampled_ns = now_ns;
        if moved {
            if now_ns >= self.used_until_ns {
                self.governor = self.governor.afresh(now_ns);
            }
            self.used_until_ns = now_ns + USED_NS;
        }
    }

    fn slow(&self, used: bool, limit: u64) -> Turn {
        let (pieces, most) = match used {
            true => (SLOW_PIECES, self.governor.bytes()),
            false => (FULL_PIECES, LEAF_BYTES_MAX),
        };
        let within = match limit {
            0 => most,
            _ => (limit / LIMIT_TURNS_PER_S / pieces as u64).clamp(4096, most),
        };
        Turn { pieces, bytes: within & !4095, slow: true }
    }

    /// Records the end of a slow turn: its bytes, its begin, and the time of its slowest piece.
    pub fn ended(&mut self, now_ns: u64, begun_ns: u64, took_ns: u64, bytes: u64, limit: u64) {
        // A late wake-up is made up for.
        let from_ns = self.due_ns.clamp(begun_ns.saturating_sub(CATCH_UP_NS), begun_ns);
        self.due_ns = now_ns;
        if now_ns < self.used_until_ns {
            let by_rate = from_ns.saturating_add(time_of(bytes, self.governor.rate()));
            let pause_max = self.governor.ended(now_ns, Turned { took_ns, bytes, late: by_rate <= now_ns });
            self.due_ns = by_rate.min(now_ns.saturating_add(pause_max));
        }
        if limit > 0 {
            self.due_ns = self.due_ns.max(begun_ns.saturating_add(time_of(bytes, limit)));
        }
    }
}

fn time_of(bytes: u64, rate_bytes_per_s: u64) -> u64 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate_bytes_per_s.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::governor::SLOW_BYTES;
    use super::*;

    /// A disk that serves one request after the other.
    #[derive(Clone, Copy)]
    struct Disk {
        bytes_per_s: u64,
        /// Minimum disk time of an I/O.
        each_ns: u64,
        /// Further latency until the I/O completes.
        latency_ns: u64,
        /// Unused time that the disk can make up for.
        burst_ns: u64,
        free_ns: u64,
    }

    impl Disk {
        fn of(bytes_per_s: u64) -> Disk {
            Disk { bytes_per_s, each_ns: 0, latency_ns: 0, burst_ns: 0, free_ns: 0 }
        }

        fn serve(&mut self, now_ns: u64, bytes: u64) -> u64 {
            let from = self.free_ns.max(now_ns.saturating_sub(self.burst_ns));
            let cost = time_of(bytes, self.bytes_per_s).max(self.each_ns);
            self.free_ns = from + cost;
            match self.burst_ns {
                0 => self.free_ns + self.latency_ns,
                _ => from.max(now_ns) + self.latency_ns,
            }
        }
    }

    /// A random generator.
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (self.0 >> 33) % end
        }
    }

    /// When the machine is busy with other work: the maximum length of a span, and the share of all time in percent.
    struct Elsewhere {
        spans: Vec<(u64, u64)>,
    }

    impl Elsewhere {
        fn new(end_ns: u64, most_ns: u64, percent: u64) -> Elsewhere {
            let (mut chance, mut spans, mut at) = (Chance(5), Vec::new(), 0);
            while percent > 0 && at < end_ns {
                let span = 1 + chance.below(most_ns);
                at += chance.below(2 * span * (100 - percent) / percent);
                spans.push((at, at + span));
                at += span;
            }
            Elsewhere { spans }
        }

        /// Returns when something that happened at `ns` is noticed.
        fn noticed(&self, ns: u64) -> u64 {
            let at = self.spans.partition_point(|(_, end)| *end <= ns);
            self.spans.get(at).filter(|(begin, _)| *begin <= ns).map_or(ns, |(_, end)| *end)
        }
    }

    /// What users and a rebuild get of two disks.
    #[derive(Debug)]
    struct Got {
        /// The rebuild's share of the bandwidth.
        part: f64,
        p99_ns: u64,
    }

    const SECONDS: u64 = 30;

    /// Users who read 4 KiB at random, `users_per_s` times a second, beside a rebuild from one disk to another.
    fn beside(disk: Disk, users_per_s: u64, elsewhere: &Elsewhere, rebuild: bool) -> Got {
        let (mut source, mut target) = (disk, disk);
        let mut pace = Pace::new();
        let (mut chance, mut waits, mut copied) = (Chance(7), Vec::new(), 0);
        let (mut user_ns, mut users, mut turn_ns) = (0, 0u64, 0);
        while user_ns < SECONDS * 1_000_000_000 {
            while rebuild && turn_ns <= user_ns {
                if turn_ns >= pace.sampled_ns + SAMPLE_NS {
                    pace.sample(turn_ns, users);
                }
                let turn = pace.slow(true, 0);
                let mut ended = 0;
                for _ in 0..turn.pieces {
                    let read = elsewhere.noticed(source.serve(turn_ns, turn.bytes));
                    ended = ended.max(elsewhere.noticed(target.serve(read, turn.bytes)));
                }
                let bytes = turn.bytes * turn.pieces as u64;
                copied += bytes;
                pace.ended(ended, turn_ns, ended - turn_ns, bytes, 0);
                turn_ns = match pace.due_ns > ended {
                    true => elsewhere.noticed(pace.due_ns),
                    false => ended,
                };
                pace.governor.overslept(turn_ns.saturating_sub(pace.due_ns.max(ended)));
            }
            waits.push(elsewhere.noticed(source.serve(user_ns, 4096)) - user_ns);
            users += 1;
            user_ns += chance.below(2_000_000_000 / users_per_s);
        }
        waits.sort_unstable();
        let part = copied as f64 / SECONDS as f64 / disk.bytes_per_s as f64;
        Got { part, p99_ns: waits[waits.len() * 99 / 100] }
    }

    #[test]
    fn half_loaded_disks_are_shared() {
        for mib_per_s in [50, 200, 1024] {
            let disk = Disk::of(mib_per_s << 20);
            let quiet = Elsewhere::new(0, 1, 0);
            let users = disk.bytes_per_s / 4096 / 2;
            let (with, without) = (beside(disk, users, &quiet, true), beside(disk, users, &quiet, false));
            println!("{mib_per_s} MiB/s: {with:?}, {without:?}");
            assert!((0.2..0.5).contains(&with.part), "{mib_per_s}: {with:?}");
            let piece = time_of(2 * SLOW_BYTES, disk.bytes_per_s);
            assert!(with.p99_ns < without.p99_ns + 2 * piece, "{mib_per_s}: {with:?}, not {without:?}");
        }
    }

    /// A throttled disk: 3,000 I/Os a second, 125 MiB/s, 600 µs, 10 ms of burst.
    const THROTTLED: Disk =
        Disk { bytes_per_s: 125 << 20, each_ns: 333_333, latency_ns: 600_000, burst_ns: 10_000_000, free_ns: 0 };

    #[test]
    fn users_of_a_throttled_disk_hardly_notice() {
        // Users of two thirds of the disk notice when a higher rate is tried.
        for (users, longer_percent) in [(600, 50), (1500, 50), (2000, 200)] {
            let quiet = Elsewhere::new(0, 1, 0);
            let (with, without) = (beside(THROTTLED, users, &quiet, true), beside(THROTTLED, users, &quiet, false));
            println!("{users} a second: {with:?}, {without:?}");
            assert!((0.15..0.5).contains(&with.part), "{users}: {with:?}");
            let most_ns = without.p99_ns * (100 + longer_percent) / 100;
            assert!(with.p99_ns <= most_ns, "{users}: {with:?}, not {without:?}");
        }
    }

    #[test]
    fn other_work_on_the_machine_does_not_end_a_rebuild() {
        for (most_ns, percent) in [(4_000_000, 10), (4_000_000, 50), (30_000_000, 30)] {
            let elsewhere = Elsewhere::new((SECONDS + 1) * 1_000_000_000, most_ns, percent);
            let (with, without) =
                (beside(THROTTLED, 1500, &elsewhere, true), beside(THROTTLED, 1500, &elsewhere, false));
            println!("{percent} % elsewhere, {most_ns} ns at a time: {with:?}, {without:?}");
            assert!((0.15..0.5).contains(&with.part), "{percent}: {with:?}");
            assert!(with.p99_ns * 2 <= without.p99_ns * 3, "{percent}: {with:?}, not {without:?}");
        }
    }

    #[test]
    fn users_who_fill_the_disks_do_not_end_a_rebuild() {
        let bytes_per_s = 100 << 20;
        let disk = Disk::of(bytes_per_s);
        let (mut source, mut target, mut pace) = (disk, disk, Pace::new());
        // 32 users who send the next request as soon as one completes, beside a rebuild.
        let mut requests: Vec<(u64, bool)> = (0..32).map(|k| (k, true)).chain([(0, false)]).collect();
        let (mut users, mut copied, end) = (0, 0, 20_000_000_000);
        loop {
            let next = requests.iter_mut().min_by_key(|request| request.0).expect("a pending request");
            let (now, user) = *next;
            if now >= end {
                break;
            }
            if user {
                (next.0, users) = (source.serve(now, 4096), users + 1);
                continue;
            }
            if now >= pace.sampled_ns + SAMPLE_NS {
                pace.sample(now, users);
            }
            let turn = pace.slow(true, 0);
            let bytes = turn.bytes * turn.pieces as u64;
            let read = source.serve(now, bytes);
            let took = target.serve(read, turn.bytes) - now;
            copied += bytes;
            pace.ended(now + took, now, took, bytes, 0);
            next.0 = pace.due_ns.max(now + took);
        }
        let part = copied as f64 / 20.0 / bytes_per_s as f64;
        println!("{part:.3} of the bandwidth beside users who take what they get");
        assert!((0.2..0.6).contains(&part), "{part}");
    }

    #[test]
    fn a_limit_is_kept_and_makes_pieces_smaller() {
        let mut pace = Pace::new();
        let (mut now, mut bytes) = (0, 0);
        while now < 10_000_000_000 {
            let turn = pace.slow(false, 1 << 20);
            assert_eq!((turn.pieces, turn.bytes), (FULL_PIECES, 16384));
            bytes += turn.bytes * turn.pieces as u64;
            pace.ended(now + 1000, now, 1000, turn.bytes * turn.pieces as u64, 1 << 20);
            now = pace.due_ns;
        }
        assert_eq!(bytes, 10 << 20);
    }
}
