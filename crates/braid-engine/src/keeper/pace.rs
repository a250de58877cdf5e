//! How fast jobs go: as fast as they can while nobody uses the array, and so that its users hardly notice while somebody does.
//!
//! While the array is used, pieces are small, and a rate is kept that follows what the disks have left: it grows until it is
//! not reached any more, or pieces take notably longer than at best, which is a queue that users wait in as well; then half
//! of what was reached is kept for a while. Where there is a queue at any rate, users themselves fill the disks: then a part of the disks is taken nevertheless,
//! or a rebuild would never end.

use super::KeeperIo;
use crate::io::{DeviceId, LEAF_BYTES_MAX};

/// Pieces at a time while nobody uses the array: reads from one disk while others write.
const FULL_PIECES: usize = 8;
/// And while somebody does.
const SLOW_PIECES: usize = 2;
/// Bytes of a piece then, where the disks are fast.
const SLOW_BYTES: u64 = 64 << 10;
/// Pieces that take so long at best are of a disk that has to move: there a piece is so many times as long.
const LONGER: [(u64, u64); 2] = [(16_000_000, 16), (8_000_000, 4)];
/// Between two looks at whether somebody uses the array.
const SAMPLE_NS: u64 = 20_000_000;
/// After its last request an array counts as used for so long.
const USED_NS: u64 = 500_000_000;
/// The rate is judged once in so long.
const WINDOW_NS: u64 = 50_000_000;
/// The rate while the array is used, before anything is known: bytes a second.
const RATE_START: u64 = 8 << 20;
/// The rate never falls below.
const RATE_MIN: u64 = 1 << 20;
/// Nor below this part of the largest that was reached: noise must not end a rebuild.
const TOP_PART: u64 = 4;
/// A rate that was found is kept for so long, before a larger one is tried.
const HOLD_NS: u64 = 5_000_000_000;
/// Windows in a row with a queue, after which users fill the disks themselves.
const CROWDED: u32 = 4;
/// Of a time that a piece may take longer than the best without there being a queue, what does not depend on the disk.
const SLACK_NS: u64 = 200_000;
/// Nobody sleeps longer at a time.
const NAP_NS: u64 = 20_000_000;
/// With a limit, pieces of so much time are copied between two pauses.
const LIMIT_TURNS_PER_S: u64 = 8;

/// What may be done before the pace is asked again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turn {
    /// Pieces under way at a time.
    pub pieces: usize,
    /// Bytes of a piece at most.
    pub bytes: u64,
    /// All that is under way is to end first.
    pub slow: bool,
}

/// The pace of one array's jobs.
pub(super) struct Pace {
    requests: Option<u64>,
    sampled_ns: u64,
    used_until_ns: u64,
    /// The next piece may begin.
    due_ns: u64,
    governor: Governor,
}

impl Pace {
    pub fn new() -> Pace {
        Pace { requests: None, sampled_ns: 0, used_until_ns: 0, due_ns: 0, governor: Governor::new() }
    }

    /// Waits until more may be copied. `limit`: bytes a second, or 0. `None`: `hurry` says that there is something else to do.
    pub async fn turn<I: KeeperIo>(
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
            io.sleep((self.due_ns - now).min(NAP_NS)).await;
        }
    }

    /// So many requests have been answered by now.
    fn sample(&mut self, now_ns: u64, requests: u64) {
        let moved = self.requests.replace(requests).is_some_and(|before| before != requests);
        self.sampled_ns = now_ns;
        if moved {
            if now_ns >= self.used_until_ns {
                self.governor = Governor { begun_ns: now_ns, ..self.governor.afresh() };
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

    /// The pieces of a slow turn have ended: so many bytes, begun at `begun_ns`; the longest took so long.
    pub fn ended(&mut self, now_ns: u64, begun_ns: u64, took_ns: u64, bytes: u64, limit: u64) {
        // Who wakes up late catches up.
        let from_ns = self.due_ns.clamp(begun_ns.saturating_sub(WINDOW_NS), begun_ns);
        self.due_ns = now_ns;
        if now_ns < self.used_until_ns {
            let pause_max = self.governor.ended(now_ns, took_ns, bytes);
            let by_rate = from_ns.saturating_add(time_of(bytes, self.governor.rate));
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

/// Finds a rate that leaves users their part of the disks.
#[derive(Clone, Copy, Debug)]
struct Governor {
    /// Bytes a second.
    rate: u64,
    /// The least time that a turn took, in nanoseconds; 0: none is known.
    best_ns: u64,
    begun_ns: u64,
    bytes: u64,
    turns: u64,
    took_ns: u64,
    hold_until_ns: u64,
    crowded: u32,
    longer: u64,
    /// The largest rate that was reached.
    top: u64,
}

impl Governor {
    fn new() -> Governor {
        Governor {
            rate: RATE_START,
            best_ns: 0,
            begun_ns: 0,
            bytes: 0,
            turns: 0,
            took_ns: 0,
            hold_until_ns: 0,
            crowded: 0,
            longer: 1,
            top: 0,
        }
    }

    /// The same, for another time of use: what is known of the disks stays known.
    fn afresh(&self) -> Governor {
        Governor { longer: self.longer, best_ns: self.best_ns, top: self.top, ..Governor::new() }
    }

    /// Bytes of a piece.
    fn bytes(&self) -> u64 {
        (SLOW_BYTES * self.longer).min(LEAF_BYTES_MAX)
    }

    /// A turn has ended. Returns how long the pause after it may be at most.
    fn ended(&mut self, now_ns: u64, took_ns: u64, bytes: u64) -> u64 {
        self.best_ns = if self.best_ns == 0 { took_ns.max(1) } else { self.best_ns.min(took_ns.max(1)) };
        (self.bytes, self.turns, self.took_ns) = (self.bytes + bytes, self.turns + 1, self.took_ns + took_ns);
        if now_ns >= self.begun_ns + WINDOW_NS {
            self.judge(now_ns);
        }
        if self.crowded >= CROWDED { took_ns / 2 } else { u64::MAX }
    }

    fn judge(&mut self, now_ns: u64) {
        let (mean_ns, window_ns) = (self.took_ns / self.turns.max(1), (now_ns - self.begun_ns).max(1));
        let reached = u128::from(self.bytes) * 1_000_000_000 / u128::from(window_ns);
        let reached = u64::try_from(reached).unwrap_or(u64::MAX);
        if self.longer == 1 {
            let slow = LONGER.iter().find(|(ns, _)| self.best_ns >= *ns);
            if let Some((_, longer)) = slow {
                (self.longer, self.best_ns) = (*longer, 0);
            }
        }
        let queue = self.best_ns > 0 && mean_ns > self.best_ns + self.best_ns / 2 + SLACK_NS;
        self.top = self.top.max(reached);
        let tries_again = now_ns >= self.hold_until_ns;
        if queue && self.crowded >= CROWDED && !tries_again {
            // Users fill the disks. What is done besides makes the queue longer, and says nothing.
        } else if queue || reached < self.rate / 4 * 3 {
            self.crowded = if tries_again || !queue { 1 } else { self.crowded + 1 };
            // What was reached may be more than what was asked for, or less.
            self.rate = (reached.min(self.rate) / 2).max(self.top / TOP_PART).max(RATE_MIN);
            self.hold_until_ns = now_ns + HOLD_NS;
            // Disks change: what was the best once may never come again.
            self.best_ns += self.best_ns / 64;
        } else {
            self.crowded = 0;
            if tries_again {
                let step = if self.hold_until_ns == 0 { self.rate } else { self.rate / 8 };
                self.rate = self.rate.saturating_add(step);
            }
        }
        (self.begun_ns, self.bytes, self.turns, self.took_ns) = (now_ns, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that serves one thing after the other, at so many bytes a second.
    struct Disk {
        bytes_per_s: u64,
        free_ns: u64,
    }

    impl Disk {
        fn serve(&mut self, now_ns: u64, bytes: u64) -> u64 {
            self.free_ns = self.free_ns.max(now_ns) + time_of(bytes, self.bytes_per_s);
            self.free_ns
        }
    }

    /// Users who read 4 KiB at random, so many a second, beside a rebuild from one disk to another; 20 s of it. Returns the
    /// rebuild's part of the bandwidth, and the 99th percentile of what users wait, in nanoseconds.
    fn beside(bytes_per_s: u64, load_percent: u64, rebuild: bool) -> (f64, u64) {
        let disk = || Disk { bytes_per_s, free_ns: 0 };
        let (mut source, mut target) = (disk(), disk());
        let per_user = time_of(4096, bytes_per_s * load_percent / 100);
        let mut pace = Pace::new();
        let (mut seed, mut waits, mut copied) = (7u64, Vec::new(), 0);
        let (mut user_ns, mut users, mut turn_ns) = (0, 0u64, 0);
        let end = 20_000_000_000;
        while user_ns < end {
            while rebuild && turn_ns <= user_ns {
                if turn_ns >= pace.sampled_ns + SAMPLE_NS {
                    pace.sample(turn_ns, users);
                }
                let turn = pace.slow(true, 0);
                let mut took = 0;
                for _ in 0..turn.pieces {
                    let read = source.serve(turn_ns, turn.bytes);
                    took = took.max(target.serve(read, turn.bytes) - turn_ns);
                }
                let bytes = turn.bytes * turn.pieces as u64;
                copied += bytes;
                pace.ended(turn_ns + took, turn_ns, took, bytes, 0);
                turn_ns = pace.due_ns.max(turn_ns + took);
            }
            waits.push(source.serve(user_ns, 4096) - user_ns);
            users += 1;
            // At times that nobody can foretell.
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            user_ns += per_user * ((seed >> 33) % 2000) / 1000;
        }
        waits.sort_unstable();
        (copied as f64 / 20.0 / bytes_per_s as f64, waits[waits.len() * 99 / 100])
    }

    #[test]
    fn half_loaded_disks_are_shared() {
        for bytes_per_s in [50 << 20, 200 << 20, 1 << 30] {
            let (part, with) = beside(bytes_per_s, 50, true);
            let (_, without) = beside(bytes_per_s, 50, false);
            println!("{} MiB/s: {part:.3} of the bandwidth, {without} ns without, {with} ns with", bytes_per_s >> 20);
            assert!((0.2..0.5).contains(&part), "{bytes_per_s}: {part}");
            assert!(with < without + 2 * time_of(2 * SLOW_BYTES, bytes_per_s), "{bytes_per_s}: {with}, not {without}");
        }
    }

    #[test]
    fn users_who_fill_the_disks_do_not_end_a_rebuild() {
        let bytes_per_s = 100 << 20;
        let disk = || Disk { bytes_per_s, free_ns: 0 };
        let (mut source, mut target, mut pace) = (disk(), disk(), Pace::new());
        // 32 users who ask again as soon as they are answered; the rebuild is one of two who ask besides.
        let mut asks: Vec<(u64, bool)> = (0..32).map(|k| (k, true)).chain([(0, false)]).collect();
        let (mut users, mut copied, end) = (0, 0, 20_000_000_000);
        loop {
            let next = asks.iter_mut().min_by_key(|ask| ask.0).expect("somebody asks");
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
