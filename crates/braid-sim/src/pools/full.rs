//! File systems below members that are full for a while: what the pool writes there of its own finds no space, or some of it. It comes and
//! goes by a stream of chance of its own, so that other runs stay what they are.

use braid_engine::pool::{CommitFailed, PoolIo, PoolOp};
use braid_engine::{ErrorKind, Uuid};

use super::nature::{Focus, Moment};
use super::world::{BLOCK, Life, World};
use crate::rng::{Rng, mix};

/// Starts in a row that find no space.
const STARTS_MAX: u64 = 2;

/// See the module's page.
#[derive(Clone)]
pub(super) struct Full {
    rng: Rng,
    /// It begins, at each step, per million; 0: never.
    begins: u32,
    /// A write finds no space, per million: some go where there is something already.
    each: u32,
    /// The members, by their bits, and until when.
    members: u128,
    until: u64,
    /// Of the next start: the member, and writes to it that find space before.
    pub(super) start: Option<(u32, u64)>,
    starts: u64,
}

impl Full {
    pub fn new(seed: u64, focus: Option<Focus>) -> Full {
        let mut rng = Rng::new(mix(seed ^ 0x6675_6c6c));
        let begins = match focus {
            None if mix(seed ^ 0x6675_6c6c).is_multiple_of(8) => *rng.pick(&[3_000, 10_000, 30_000]),
            Some(Focus::Full) => *rng.pick(&[10_000, 30_000]),
            _ => 0,
        };
        let each = *rng.pick(&[300_000, 700_000, 1_000_000]);
        Full { rng, begins, each, members: 0, until: 0, start: None, starts: 0 }
    }

    /// Whether there is such a thing in this run.
    pub fn is_on(&self) -> bool {
        self.begins > 0
    }
}

impl World {
    /// File systems fill, and have room again; and now and then it is tried whether that is so.
    pub(super) fn fill_and_empty(&mut self) {
        if !self.full.is_on() {
            return;
        }
        if self.full.members != 0 && self.now >= self.full.until {
            self.has_room_again();
        } else if self.full.members == 0 && self.full.rng.chance(self.full.begins) {
            let here = self.here();
            let one = *self.full.rng.pick(&here);
            let others = here.into_iter().filter(|_| self.full.rng.chance(300_000));
            self.full.members = others.fold(1 << one, |all, number| all | 1 << number);
            self.full.until = self.now + self.full.rng.between(10, 500);
            let members = self.full.members;
            self.note(|| format!("members {members:b} have no space"), members as u64);
            self.counters.add("space", "gone below", 1);
        }
        if self.full.rng.chance(40_000) {
            self.try_again();
        }
    }

    pub(super) fn has_room_again(&mut self) {
        if self.full.members != 0 {
            self.full.members = 0;
            self.note(|| "there is space again below all members".to_owned(), 0);
        }
    }

    pub(super) fn try_again(&mut self) {
        if self.pool().members_without_space() != 0 {
            self.note(|| "what found no space is tried again".to_owned(), 0);
            self.pool().retry_writes();
            self.counters.add("space", "tried again", 1);
        }
    }

    /// Whether one of the pool's own I/Os finds no space.
    pub(super) fn finds_no_space(&mut self, io: &PoolIo) -> bool {
        matches!(io.op, PoolOp::Write { .. })
            && self.full.members >> io.member & 1 == 1
            && self.full.rng.chance(self.full.each)
    }

    /// It has found none: some of it may have arrived.
    pub(super) fn found_no_space(&mut self, io: &PoolIo, data: &[u8]) {
        self.disks[usize::from(io.member)].write_torn(io.offset, data, &mut self.full.rng);
        let places = self.device(io.member).layout;
        let what = match io.offset {
            at if at >= places.owners => "none for tables",
            at if at >= places.starts + 2 * BLOCK => "none for a batch",
            _ => "none for a start",
        };
        self.counters.add("space", what, 1);
    }

    /// The pool has been told so: that is no failure, and a good moment for a crash.
    pub(super) fn was_told_of_no_space(&mut self) {
        if self.has_failed() && self.ill.is_none() {
            self.wrong = Some("the pool fails because a write found no space".to_owned());
        }
        self.happens(Moment::Starved);
    }

    /// At what crashes aim in a life, where that is drawn here.
    pub(super) fn aim_at_full(&mut self) -> Option<Moment> {
        (self.full.is_on() && self.full.rng.coin()).then_some(Moment::Starved)
    }

    /// Whether a call has ended that waits for this commit. One that is told that there is no space waits on, or what it is about stays in
    /// the air until the next start, if no request can be made to that meanwhile.
    pub(super) fn call_has_ended(&mut self, commit: u64, what: &[Uuid]) -> bool {
        let in_the_air = |uuid: &Uuid| matches!(self.known[uuid].life, Life::Coming(_) | Life::Going);
        let gives_up = what.iter().all(in_the_air);
        match self.pool().is_committed(commit) {
            Err(CommitFailed::NoSpace) => gives_up && self.full.rng.chance(100_000),
            result => result != Ok(false),
        }
    }

    /// A crash comes: whether the pool waits for space then is counted.
    pub(super) fn count_crash_of_starved(&mut self, power: bool) {
        if self.pool.as_ref().is_some_and(|pool| pool.is_starving()) {
            self.counters.add("space", if power { "power cuts without any" } else { "kills without any" }, 1);
        }
    }

    /// A start begins: it may find no space on a member.
    pub(super) fn draw_space_of_start(&mut self) {
        self.full.start = None;
        if !self.full.is_on() || self.full.starts >= STARTS_MAX {
            return;
        }
        let is_full = self.full.members != 0;
        if self.full.rng.chance(if is_full { 700_000 } else { 50_000 }) {
            let here = self.here();
            self.full.start = Some((u32::from(*self.full.rng.pick(&here)), self.full.rng.below(12)));
        }
    }

    /// Whether a start has ended so. It is made again, by the same process or by another one.
    pub(super) fn start_found_no_space(&mut self, error: &str) -> bool {
        let met = error.contains(&format!("{:?}", ErrorKind::NoSpace));
        if met {
            self.full.starts += 1;
            self.counters.add("space", "starts without any", 1);
        }
        met
    }

    /// Whether a crash follows.
    pub(super) fn crashes_without_space(&mut self) -> bool {
        self.full.rng.coin()
    }

    /// The pool is open.
    pub(super) fn start_found_space(&mut self) {
        self.full.starts = 0;
        self.has_room_again();
    }
}
