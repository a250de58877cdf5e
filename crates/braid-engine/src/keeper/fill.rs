//! Bringing members up to date that are being filled: each region is copied to all of them at once that lack it.

use braid_format::{JobState, MemberState};

use super::absences::Lacked;
use super::copy::Goal;
use super::liken::Likeness;
use super::{Act, JobStage, Keeper, KeeperIo};
use crate::io::LeafId;
use crate::lifecycle::LifecycleError;
use crate::mirror::Roles;
use crate::planted::{Planted, planted};
use crate::regions::RegionMap;
use crate::shard::RegionCall;

/// Regions that are copied between two notes of how far a member has come, at most.
const CHECKPOINT_EVERY_MAX: u32 = 256;
/// Of a small array such a part of it.
const CHECKPOINTS: u32 = 8;

/// What is left to copy for a member that is being filled.
pub(super) struct Fill {
    /// It gets everything that was ever written from this byte on; `None`: only what is dirty.
    full_from: Option<u64>,
    /// The regions that are left, a bit each; `None` until it takes every write.
    left: Option<Vec<u64>>,
    /// How many are left, and how many there were.
    left_count: u64,
    total: u64,
    /// What it lacks of them, and how much of that is left, where not all of each.
    lacked: Option<Lacked>,
    left_bytes: u64,
    lacked_bytes: u64,
    since_checkpoint: u32,
    /// What it has is compared with what it gets.
    alike: bool,
    /// Somebody looks for what it lacks of what another member has.
    pub(super) likeness: Option<Likeness>,
}

impl Fill {
    /// How many bytes are done, and of how many.
    pub fn progress(&self, map: &RegionMap) -> (u64, u64) {
        if self.lacked.is_some() {
            return (self.lacked_bytes - self.left_bytes, self.lacked_bytes);
        }
        let (done, total) = self.regions(map);
        (done << map.shift(), total << map.shift())
    }

    fn regions(&self, map: &RegionMap) -> (u64, u64) {
        match (&self.left, self.full_from) {
            (Some(_), _) => (self.total - self.left_count, self.total),
            (None, Some(byte)) => (u64::from(map.region_of(byte)).min(map.written.count()), map.written.count()),
            (None, None) => (0, map.dirty.count()),
        }
    }

    /// Whether every write goes to it.
    pub(super) fn takes_writes(&self) -> bool {
        self.left.is_some()
    }

    /// Whether it is known what it lacks of each region.
    pub(super) fn lacks_known(&self) -> bool {
        self.lacked.is_some()
    }

    /// It lacks this, and nothing else of the regions that are left.
    pub(super) fn lacks_only(&mut self, lacked: Lacked, map: &RegionMap) {
        let Some(left) = &mut self.left else { return };
        self.left_bytes = narrow(left, &lacked, map);
        self.lacked_bytes = self.left_bytes;
        self.left_count = left.iter().map(|word| u64::from(word.count_ones())).sum();
        self.lacked = Some(lacked);
    }

    fn has(&self, region: u32) -> bool {
        self.left.as_ref().is_some_and(|left| left[region as usize / 64] & (1 << (region % 64)) != 0)
    }

    fn first(&self) -> Option<u32> {
        let (word, bits) = self.left.as_ref()?.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        Some(word as u32 * 64 + bits.trailing_zeros())
    }
}

impl Keeper {
    /// A step for the members that are being filled. `None`: nobody is, or nothing can be copied now.
    pub(super) async fn fill<I: KeeperIo>(&mut self, io: &I) -> Option<Act> {
        if self.fills.values().any(|fill| fill.left.is_none()) {
            // From when this returns every request in flight writes to the newcomers as well.
            let layout = self.layout(io);
            if planted(Planted::FilledBeforeDrained) {
                io.post(self.options.device, Some(layout));
            } else {
                io.publish(self.options.device, Some(layout)).await;
            }
            if !planted(Planted::FilledWithoutBits) {
                io.call(self.options.device, self.options.home, RegionCall::Rewrite).await;
            }
            self.retire_journal(io).await;
            self.note_left();
            return Some(Act::Nothing);
        }
        let every = self.checkpoint_every();
        if let Some((&role, fill)) = self.fills.iter_mut().find(|(_, fill)| fill.since_checkpoint >= every) {
            fill.since_checkpoint = 0;
            if fill.full_from.is_some() {
                return Some(Act::Checkpoint(role, self.filled_to(role)));
            }
        }
        if let Some(role) = self.running().find(|role| self.fills[role].left_count == 0) {
            return Some(Act::Promote(role));
        }
        if self.look_at_stuck(io).await {
            return Some(Act::Nothing);
        }
        self.next_lacking(None)?;
        self.copy(io, &mut Goal::Lacking).await;
        Some(Act::Nothing)
    }

    fn checkpoint_every(&self) -> u32 {
        (self.regions.regions() / CHECKPOINTS).clamp(1, CHECKPOINT_EVERY_MAX)
    }

    /// Everything before this byte of the array a member has.
    fn filled_to(&self, role: u16) -> u64 {
        let ahead = if planted(Planted::CheckpointAhead) { u64::from(self.array.label().region_bytes) * 4 } else { 0 };
        let first = self.fills.get(&role).and_then(Fill::first);
        first.map_or(self.array.geometry().size_bytes(), |region| self.regions.range(region).0 + ahead)
    }

    /// Those who are being filled and need not wait.
    fn running(&self) -> impl Iterator<Item = u16> {
        self.fills.keys().copied().filter(|role| self.jobs.runs(self.fill_kind(*role), Some(*role)))
    }

    /// The least limit of those that there are.
    pub(super) fn fill_limit(&self) -> u64 {
        let limits = self.running().map(|role| self.jobs.limit(self.fill_kind(role), Some(role)));
        limits.filter(|limit| *limit > 0).min().unwrap_or(0)
    }

    /// The first region after `last` that somebody lacks, and who does. What is unequal is copied to all by and by.
    pub(super) fn next_lacking(&self, last: Option<u32>) -> Option<(u32, Roles)> {
        let from = last.map_or(0, |region| region + 1);
        let running: Vec<(u16, &Fill)> = self.running().map(|role| (role, &self.fills[&role])).collect();
        for word in from as usize / 64..self.words() {
            let some = running.iter().filter_map(|(_, fill)| fill.left.as_ref()).fold(0, |all, left| all | left[word]);
            let mut some = some & !self.regions.unsettled.word(word);
            if word == from as usize / 64 {
                some &= u64::MAX << (from % 64);
            }
            for region in self.stuck.within(word as u32 * 64, word as u32 * 64 + 64) {
                some &= !(1 << (region % 64));
            }
            if some != 0 {
                let region = word as u32 * 64 + some.trailing_zeros();
                let lacks = running.iter().filter(|(_, fill)| fill.has(region));
                return Some((region, lacks.fold(Roles::NONE, |to, (role, _)| to.with(usize::from(*role)))));
            }
        }
        None
    }

    /// The first run of what somebody of these lacks in `[start, end)`, part of a region; both are `end` where there is nothing.
    pub(super) fn lacked_run(&self, to: Roles, start: u64, end: u64) -> (u64, u64) {
        let fills = self.fills.iter().filter(|(role, _)| to.has(usize::from(**role)));
        let runs = fills.map(|(_, fill)| match &fill.lacked {
            Some(lacked) => lacked.run(&self.regions, start, end),
            None => (start, end),
        });
        // Of several that begin elsewhere the first: what the others lack comes next.
        runs.min_by_key(|(first, last)| (*first, std::cmp::Reverse(*last))).unwrap_or((start, end))
    }

    /// What is copied to a member is compared with what it has, from now on.
    pub(super) fn compare_fill(&mut self, role: u16) -> Result<(), LifecycleError> {
        let wrong = || LifecycleError::Role { role, reason: "it is not being filled".to_owned() };
        self.fills.get_mut(&role).ok_or_else(wrong)?.alike = true;
        Ok(())
    }

    /// The one of these that may hold most of what is at this place, and its disk, where it alone gets it.
    pub(super) fn alike(&self, to: Roles, at: u64) -> Option<(u16, LeafId)> {
        let role = u16::try_from(to.0.trailing_zeros()).ok().filter(|_| to.0.count_ones() == 1)?;
        let fill = self.fills.get(&role).filter(|fill| fill.alike && self.options.lease.is_some())?;
        // What it missed it does not have.
        let region = self.regions.region_of(at);
        let is_whole = fill.lacked.as_ref().is_none_or(|lacked| lacked.is_whole(region));
        Some((role, self.array.leaf(role)?)).filter(|_| is_whole)
    }

    /// A region has been copied to these. True: it is time to note how far one of them has come.
    pub(super) fn filled<I: KeeperIo>(&mut self, io: &I, region: u32, to: Roles) -> bool {
        let (mut due, every) = (false, self.checkpoint_every());
        let roles: Vec<u16> = self.fills.keys().copied().filter(|role| to.has(usize::from(*role))).collect();
        for role in roles {
            if let Some(fill) = self.fills.get_mut(&role).filter(|fill| fill.has(region))
                && let Some(left) = &mut fill.left
            {
                left[region as usize / 64] &= !(1 << (region % 64));
                fill.left_count -= 1;
                let bytes = fill.lacked.as_ref().map_or(0, |lacked| lacked.bytes(&self.regions, region));
                fill.left_bytes = fill.left_bytes.saturating_sub(bytes);
                fill.since_checkpoint += 1;
                due |= fill.since_checkpoint >= every;
            }
            self.tell_job(io, self.fill_kind(role), Some(role), false);
        }
        due
    }

    /// Notes what those lack who take every write from now on.
    fn note_left(&mut self) {
        let new: Vec<u16> = self.fills.iter().filter(|(_, fill)| fill.left.is_none()).map(|(role, _)| *role).collect();
        for role in new {
            let mut left = self.left_for(role);
            let in_full = self.fills.get(&role).is_some_and(|fill| fill.full_from.is_some());
            let lacked = if in_full { None } else { self.lacked_by(role) };
            let lacked_bytes = lacked.as_ref().map_or(0, |lacked| narrow(&mut left, lacked, &self.regions));
            let written = self.regions.written.count();
            if let Some(fill) = self.fills.get_mut(&role) {
                fill.left_count = left.iter().map(|word| u64::from(word.count_ones())).sum();
                fill.total = if fill.full_from.is_some() { written.max(fill.left_count) } else { fill.left_count };
                (fill.lacked, fill.left_bytes, fill.lacked_bytes) = (lacked, lacked_bytes, lacked_bytes);
                fill.left = Some(left);
            }
        }
    }

    fn words(&self) -> usize {
        (self.regions.regions() as usize).div_ceil(64)
    }

    /// Which regions a member lacks that takes every write from now on.
    fn left_for(&self, role: u16) -> Vec<u64> {
        let map = &self.regions;
        let from = self.fills.get(&role).and_then(|fill| fill.full_from);
        let first = from.map(|byte| map.region_of(byte));
        let word = |at: usize| {
            let dirty = map.dirty.word(at) & map.written.word(at);
            let full = match first {
                None => 0,
                Some(first) if first as usize / 64 > at => 0,
                Some(first) if first as usize / 64 == at => map.written.word(at) & (u64::MAX << (first % 64)),
                Some(_) => map.written.word(at),
            };
            if planted(Planted::CatchUpForgets) { full } else { dirty | full }
        };
        (0..self.words()).map(word).collect()
    }

    /// Remembers what is left to copy for each member that is being filled.
    pub(super) fn notice_filling<I: KeeperIo>(&mut self, io: &I) {
        let new = |keeper: &Keeper, role: u16| {
            keeper.array.state(role) == MemberState::Filling && !keeper.fills.contains_key(&role)
        };
        let roles: Vec<u16> = self.array.members().map(|m| m.role).filter(|role| new(self, *role)).collect();
        for role in roles {
            let job = self.array.rebuild(role).copied();
            let full_from = job.map(|job| job.position_bytes);
            let fill = Fill {
                full_from,
                left: None,
                left_count: 0,
                total: 0,
                lacked: None,
                left_bytes: 0,
                lacked_bytes: 0,
                since_checkpoint: 0,
                alike: full_from.is_none(),
                likeness: None,
            };
            self.fills.insert(role, fill);
            self.repairs.remove(&role);
            let paused = job.is_some_and(|job| job.state == JobState::Paused);
            let stage = if paused { JobStage::Paused } else { JobStage::Running };
            let limit = job.map_or(0, |job| job.rate_bytes_per_s);
            self.begin_job(io, self.fill_kind(role), Some(role), stage, limit);
        }
    }
}

/// Leaves those of the regions of which something is lacked; returns how many bytes that is.
fn narrow(left: &mut [u64], lacked: &Lacked, map: &RegionMap) -> u64 {
    let mut all = 0;
    for (at, word) in left.iter_mut().enumerate() {
        for bit in (0..64).filter(|bit| *word & (1 << bit) != 0).collect::<Vec<u32>>() {
            let bytes = lacked.bytes(map, at as u32 * 64 + bit);
            all += bytes;
            if bytes == 0 {
                *word &= !(1 << bit);
            }
        }
    }
    all
}
