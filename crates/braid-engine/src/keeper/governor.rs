//! The rate of jobs while an array is used: it leaves users their part of the disks.
//!
//! It grows until it is not reached any more, or turns take notably longer than at best, which is a queue that users wait in
//! as well; then half of what was reached is kept for a while, for longer each time that the same is found. Where there is a
//! queue at any rate, users themselves fill the disks: then a part of the disks is taken nevertheless, or a rebuild would
//! never end.
//!
//! What counts is what *most* of some turns say, and what pauses take longer than they should is allowed for: a machine that
//! is busy with something else is no queue.

use crate::io::LEAF_BYTES_MAX;

/// Bytes of a piece where the disks are fast.
pub(super) const SLOW_BYTES: u64 = 64 << 10;
/// Pieces that take so long at best are of a disk that has to move: there a piece is so many times as long.
const LONGER: [(u64, u64); 2] = [(16_000_000, 16), (8_000_000, 4)];
/// The rate is judged once in so long, where that is enough turns,
const WINDOW_NS: u64 = 50_000_000;
/// which is so many,
const TURNS_MIN: u32 = 4;
/// and sooner, after so many.
const TURNS_MAX: u32 = 16;
/// The rate before anything is known: bytes a second.
const RATE_START: u64 = 8 << 20;
/// The rate never falls below.
const RATE_MIN: u64 = 1 << 20;
/// Nor below this part of the largest that was reached: noise must not end a rebuild.
const TOP_PART: u64 = 4;
/// A rate that was found is kept for so long, before a larger one is tried: of all, that is what users notice most.
const HOLD_NS: u64 = 5_000_000_000;
/// And at most so long, when the same is found again and again.
const HOLD_MAX_NS: u64 = 40_000_000_000;
/// Windows in a row with a queue, after which users fill the disks themselves.
const CROWDED: u32 = 4;
/// Of a time that a turn may take longer than the best without there being a queue, what does not depend on the disk.
const SLACK_NS: u64 = 200_000;
/// A pause that was longer by more than this says nothing about those to come.
const OVERSLEPT_MAX_NS: u64 = 20_000_000;
/// Of the latest pause so much is taken over, as a shift.
const FOLLOW_SHIFT: u32 = 3;

/// A turn that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turned {
    /// The longest of its pieces.
    pub took_ns: u64,
    /// Bytes of all its pieces.
    pub bytes: u64,
    /// At the rate that was to be kept, the next one should have begun by now.
    pub late: bool,
}

/// Turns that are judged together.
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    begun_ns: u64,
    bytes: u64,
    turns: u32,
    /// Turns that took notably longer than the best.
    slow: u32,
    late: u32,
}

/// Finds a rate that leaves users their part of the disks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Governor {
    /// Bytes a second.
    rate: u64,
    /// The least time that a turn took, in nanoseconds; 0: none is known.
    best_ns: u64,
    window: Window,
    /// What was found last, and for how long it is kept.
    found: u64,
    hold_ns: u64,
    hold_until_ns: u64,
    crowded: u32,
    longer: u64,
    /// The largest rate that was reached.
    top: u64,
    /// By how much pauses are longer than they should be.
    overslept_ns: u64,
}

impl Governor {
    pub fn new() -> Governor {
        Governor {
            rate: RATE_START,
            best_ns: 0,
            window: Window::default(),
            found: 0,
            hold_ns: HOLD_NS,
            hold_until_ns: 0,
            crowded: 0,
            longer: 1,
            top: 0,
            overslept_ns: 0,
        }
    }

    /// The same, for another time of use, which begins now: what is known of the disks stays known.
    pub fn afresh(&self, now_ns: u64) -> Governor {
        let window = Window { begun_ns: now_ns, ..Window::default() };
        let known = Governor { longer: self.longer, best_ns: self.best_ns, top: self.top, ..Governor::new() };
        Governor { window, rate: RATE_START.max(self.top / TOP_PART), overslept_ns: self.overslept_ns, ..known }
    }

    /// Bytes a second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Bytes of a piece.
    pub fn bytes(&self) -> u64 {
        (SLOW_BYTES * self.longer).min(LEAF_BYTES_MAX)
    }

    /// A pause was so much longer than it should be.
    pub fn overslept(&mut self, ns: u64) {
        let ns = ns.min(OVERSLEPT_MAX_NS);
        self.overslept_ns = self.overslept_ns - (self.overslept_ns >> FOLLOW_SHIFT) + (ns >> FOLLOW_SHIFT);
    }

    /// A turn has ended. Returns how long the pause after it may be at most.
    pub fn ended(&mut self, now_ns: u64, turned: Turned) -> u64 {
        let took_ns = turned.took_ns.max(1);
        self.best_ns = if self.best_ns == 0 { took_ns } else { self.best_ns.min(took_ns) };
        // A turn waits for the machine at least twice as often as a pause does.
        let slow = took_ns > self.best_ns + self.best_ns / 2 + SLACK_NS + 2 * self.overslept_ns;
        let window = &mut self.window;
        window.bytes += turned.bytes;
        window.turns += 1;
        window.slow += u32::from(slow);
        window.late += u32::from(turned.late);
        let long = now_ns >= window.begun_ns + WINDOW_NS && window.turns >= TURNS_MIN;
        if long || window.turns >= TURNS_MAX {
            self.judge(now_ns);
        }
        if self.crowded >= CROWDED { took_ns / 2 } else { u64::MAX }
    }

    fn judge(&mut self, now_ns: u64) {
        let Window { begun_ns, bytes, turns, slow, late } = self.window;
        self.window = Window { begun_ns: now_ns, ..Window::default() };
        if self.longer == 1
            && let Some((_, longer)) = LONGER.iter().find(|(ns, _)| self.best_ns >= *ns)
        {
            (self.longer, self.best_ns) = (*longer, 0);
            return;
        }
        let reached = u128::from(bytes) * 1_000_000_000 / u128::from((now_ns - begun_ns).max(1));
        let reached = u64::try_from(reached).unwrap_or(u64::MAX);
        self.top = self.top.max(reached.min(self.rate));
        let (queue, behind) = (slow * 2 > turns, late * 4 >= turns * 3);
        let tries_again = now_ns >= self.hold_until_ns;
        if queue && self.crowded >= CROWDED && !tries_again {
            // Users fill the disks. What is done besides makes the queue longer, and says nothing.
        } else if queue || behind {
            self.crowded = if tries_again || !queue { 1 } else { self.crowded + 1 };
            // What was reached may be more than what was asked for, or less.
            let found = reached.min(self.rate);
            let same = tries_again && found.abs_diff(self.found) <= self.found / 4;
            self.hold_ns = if same { (self.hold_ns * 2).min(HOLD_MAX_NS) } else { HOLD_NS };
            self.found = found;
            self.rate = (found / 2).max(self.top / TOP_PART).max(RATE_MIN);
            self.hold_until_ns = now_ns + self.hold_ns;
            // Disks change: what was the best once may never come again.
            self.best_ns += self.best_ns / 64;
        } else {
            self.crowded = 0;
            // Where a limit holds the job back, more says nothing.
            if tries_again && reached >= self.rate / 4 * 3 {
                let step = if self.found == 0 { self.rate } else { self.rate / 8 };
                self.rate = self.rate.saturating_add(step);
            }
        }
    }
}
