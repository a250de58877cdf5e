//! File systems below members that are full for a while: some or all of the pool's own writes fail for want of space. A
//! random stream of its own decides, so that the other runs stay unchanged.

use braid_engine::pool::{CommitFailed, PoolIo, PoolOp};
use braid_engine::{ErrorKind, Uuid};

use super::parameters::Moment;
use super::world::{BLOCK, Lifecycle, World};

/// Maximum number of consecutive starts that find no space.
const STARTS_MAX: u64 = 2;

impl World {
    /// Fills file systems, gives them space again, and has the pool retry its writes now and then.
    pub(super) fn step_full_file_systems(&mut self) {
        if !self.full.is_on() {
            return;
        }
        if self.full.members != 0 && self.now >= self.full.until {
            self.restore_space();
        } else if self.full.members == 0 && self.full.rng.chance(self.full.fill_chance) {
            let present = self.present_members();
            let one = *self.full.rng.pick(&present);
            let others = present.into_iter().filter(|_| self.full.rng.chance(300_000));
            self.full.members = others.fold(1 << one, |all, number| all | 1 << number);
            self.full.until = self.now + self.full.rng.between(10, 500);
            let members = self.full.members;
            self.note(|| format!("members {members:b} have no space"), members as u64);
            self.counters.add("space", "gone below", 1);
        }
        if self.full.rng.chance(40_000) {
            self.retry_writes();
        }
    }

    pub(super) fn restore_space(&mut self) {
        if self.full.members != 0 {
            self.full.members = 0;
            self.note(|| "there is space again below all members".to_owned(), 0);
        }
    }

    pub(super) fn retry_writes(&mut self) {
        if self.pool().members_without_space() != 0 {
            self.note(|| "what found no space is tried again".to_owned(), 0);
            self.pool().retry_writes();
            self.counters.add("space", "tried again", 1);
        }
    }

    /// Decides whether one of the pool's own I/Os finds no space.
    pub(super) fn finds_no_space(&mut self, io: &PoolIo) -> bool {
        matches!(io.op, PoolOp::Write { .. })
            && self.full.members >> io.member & 1 == 1
            && self.full.rng.chance(self.full.write_fail_chance)
    }

    /// Carries out a write that found no space: some of it may have arrived.
    pub(super) fn write_without_space(&mut self, io: &PoolIo, data: &[u8]) {
        self.disks[usize::from(io.member)].write_torn(io.offset, data, &mut self.full.rng);
        let layout = self.device(io.member).layout;
        let what = match io.offset {
            at if at >= layout.owners => "none for tables",
            at if at >= layout.starts + 2 * BLOCK => "none for a batch",
            _ => "none for a start",
        };
        self.counters.add("space", what, 1);
    }

    /// Checks that the pool survives a write that found no space. It is a good moment for a crash.
    pub(super) fn check_no_space_error(&mut self) {
        if self.has_failed() && self.failing.is_none() {
            self.violation = Some("the pool fails because a write found no space".to_owned());
        }
        self.note_moment(Moment::Starved);
    }

    /// Returns the moment at which this life's crash aims, if this stream draws one.
    pub(super) fn aim_at_full(&mut self) -> Option<Moment> {
        (self.full.is_on() && self.full.rng.coin()).then_some(Moment::Starved)
    }

    /// Returns whether a call that waits for this commit has ended. A call that learns that there is no space keeps
    /// waiting. If no request can reach its object meanwhile, it may give up instead: the outcome is open until the
    /// next start.
    pub(super) fn call_has_ended(&mut self, commit: u64, uuids: &[Uuid]) -> bool {
        let is_open = |uuid: &Uuid| matches!(self.models[uuid].lifecycle, Lifecycle::Creating(_) | Lifecycle::Deleting);
        let may_give_up = uuids.iter().all(is_open);
        match self.pool().is_committed(commit) {
            Err(CommitFailed::NoSpace) => may_give_up && self.full.rng.chance(100_000),
            result => result != Ok(false),
        }
    }

    /// Counts whether the pool waits for space when a crash comes.
    pub(super) fn count_crash_without_space(&mut self, power: bool) {
        if self.pool.as_ref().is_some_and(|pool| pool.is_starving()) {
            self.counters.add("space", if power { "power cuts without any" } else { "kills without any" }, 1);
        }
    }

    /// Draws whether the coming start finds no space on a member.
    pub(super) fn draw_space_of_start(&mut self) {
        self.full.start_fault = None;
        if !self.full.is_on() || self.full.failed_starts >= STARTS_MAX {
            return;
        }
        let is_full = self.full.members != 0;
        if self.full.rng.chance(if is_full { 700_000 } else { 50_000 }) {
            let present = self.present_members();
            self.full.start_fault = Some((u32::from(*self.full.rng.pick(&present)), self.full.rng.below(12)));
        }
    }

    /// Returns whether a start has failed for want of space. It is repeated, by the same process or by another one.
    pub(super) fn start_found_no_space(&mut self, error: &str) -> bool {
        let met = error.contains(&format!("{:?}", ErrorKind::NoSpace));
        if met {
            self.full.failed_starts += 1;
            self.counters.add("space", "starts without any", 1);
        }
        met
    }

    /// Draws whether a crash follows.
    pub(super) fn crashes_without_space(&mut self) -> bool {
        self.full.rng.coin()
    }

    /// Notes that the pool is open.
    pub(super) fn start_found_space(&mut self) {
        self.full.failed_starts = 0;
        self.restore_space();
    }
}
