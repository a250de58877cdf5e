//! The rate of jobs while the array is in use: leaves users their share of the disks.
//!
//! The rate grows until it is no longer reached, or until turns take notably longer than the fastest one: a queue that
//! users wait in as well. Then half of the reached rate is kept for a while, and longer each time the same rate is
//! found again. If there is a queue at any rate, users saturate the disks: the job then takes a fixed share, or a
//! rebuild would never end.
//!
//! A *turn* is what a job copies between two pauses: a few pieces at a time. A decision needs *most* turns of a window
//! to agree, and the overrun of pauses is subtracted from the time that turns take: a busy machine is not a disk queue.

use braid_engine::LEAF_BYTES_MAX;

/// Bytes of a piece on fast disks.
pub(super) const SLOW_BYTES: u64 = 64 << 10;
/// Best turn time in nanoseconds from which a disk is taken for a rotating one, and the factor by which its pieces are
/// larger.
const LONGER: [(u64, u64); 2] = [(16_000_000, 16), (8_000_000, 4)];
/// A window of turns is evaluated after this time, if it has at least [`TURNS_MIN`] turns.
const WINDOW_NS: u64 = 50_000_000;
/// Minimum number of turns in a window.
const TURNS_MIN: u32 = 4;
/// A window of this many turns is evaluated early.
const TURNS_MAX: u32 = 16;
/// The initial rate, in bytes a second.
const RATE_START: u64 = 8 << 20;
/// The rate never falls below this, in bytes a second.
const RATE_MIN: u64 = 1 << 20;
/// Nor below this fraction of the highest rate reached: noise must not stall a rebuild.
const TOP_PART: u64 = 4;
/// How long a found rate is kept before a higher one is tried, which is what users notice most.
const HOLD_NS: u64 = 5_000_000_000;
/// Maximum of that time when the same rate is found again and again.
const HOLD_MAX_NS: u64 = 40_000_000_000;
/// Consecutive windows with a queue after which users are taken to saturate the disks.
const CROWDED: u32 = 4;
/// The part of the allowed excess over the best turn time that does not depend on the disk.
const SLACK_NS: u64 = 200_000;
/// A longer overrun of a pause is cut to this.
const OVERSLEPT_MAX_NS: u64 = 20_000_000;
/// Weight of the latest pause in the average, as a shift.
const FOLLOW_SHIFT: u32 = 3;

/// A finished turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turned {
    /// The time of its slowest piece.
    pub took_ns: u64,
    /// Bytes of all its pieces.
    pub bytes: u64,
    /// At the target rate, the next turn should have begun by now.
    pub late: bool,
}

/// Turns that are evaluated together.
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    begun_ns: u64,
    bytes: u64,
    turns: u32,
    /// Turns that took notably longer than the best.
    slow: u32,
    late: u32,
}

/// Finds a rate that leaves users their share of the disks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Governor {
    /// Bytes a second.
    rate: u64,
    /// The shortest turn so far, in nanoseconds; 0: unknown.
    best_ns: u64,
    window: Window,
    /// The rate found last, and for how long it is kept.
    found: u64,
    hold_ns: u64,
    hold_until_ns: u64,
    /// Consecutive windows with a queue.
    crowded: u32,
    /// The factor by which pieces are larger than [`SLOW_BYTES`], as in [`LONGER`].
    longer: u64,
    /// The highest rate reached.
    top: u64,
    /// The average overrun of a pause.
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

    /// Returns a governor for a new period of use that begins now; what is known of the disks is kept.
    pub fn afresh(&self, now_ns: u64) -> Governor {
        let window = Window { begun_ns: now_ns, ..Window::default() };
        let known = Governor { longer: self.longer, best_ns: self.best_ns, top: self.top, ..Governor::new() };
        Governor { window, rate: RATE_START.max(self.top / TOP_PART), overslept_ns: self.overslept_ns, ..known }
    }

    /// Returns the rate in bytes a second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Returns the bytes of a piece.
    pub fn bytes(&self) -> u64 {
        (SLOW_BYTES * self.longer).min(LEAF_BYTES_MAX)
    }

    /// Records by how much a pause was too long.
    pub fn overslept(&mut self, ns: u64) {
        let ns = ns.min(OVERSLEPT_MAX_NS);
        self.overslept_ns = self.overslept_ns - (self.overslept_ns >> FOLLOW_SHIFT) + (ns >> FOLLOW_SHIFT);
    }

    /// Records a finished turn. Returns the maximum pause after it.
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
            self.evaluate(now_ns);
        }
        if self.crowded >= CROWDED { took_ns / 2 } else { u64::MAX }
    }

    fn evaluate(&mut self, now_ns: u64) {
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
            // Users saturate the disks. The job only lengthens the queue, and this window adds no information.
        } else if queue || behind {
            self.crowded = if tries_again || !queue { 1 } else { self.crowded + 1 };
            // The measured rate may be above or below the target.
            let found = reached.min(self.rate);
            let same = tries_again && found.abs_diff(self.found) <= self.found / 4;
            self.hold_ns = if same { (self.hold_ns * 2).min(HOLD_MAX_NS) } else { HOLD_NS };
            self.found = found;
            self.rate = (found / 2).max(self.top / TOP_PART).max(RATE_MIN);
            self.hold_until_ns = now_ns + self.hold_ns;
            // Disks change: the best time ever may not come again.
            self.best_ns += self.best_ns / 64;
        } else {
            self.crowded = 0;
            // If a limit holds the job back, a higher rate would show nothing.
            if tries_again && reached >= self.rate / 4 * 3 {
                let step = if self.found == 0 { self.rate } else { self.rate / 8 };
                self.rate = self.rate.saturating_add(step);
            }
        }
    }
}
