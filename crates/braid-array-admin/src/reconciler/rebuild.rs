//! Rebuilds members: each region is copied at once to all members that lack it.

use braid_engine::{LeafId, MemberSet, RegionCall, RegionMap};
use braid_format::{JobState, MemberState};

use super::copy::Goal;
use super::dirty_log::Delta;
use super::external_delta::DeltaBase;
use super::{Act, JobStage, Reconciler, ReconcilerIo};
use crate::lifecycle::LifecycleError;

/// Maximum number of regions copied between two checkpoints of a rebuild.
const CHECKPOINT_EVERY_MAX: u32 = 256;
/// A small array is checkpointed this many times.
const CHECKPOINTS: u32 = 8;

/// What is left to copy to a rebuilding member.
pub(super) struct Rebuild {
    /// Everything ever written from this byte on is copied (full rebuild); `None`: only dirty regions (delta resync).
    full_from: Option<u64>,
    /// The regions left, one bit each; `None` until the member takes every write.
    left: Option<Vec<u64>>,
    /// How many regions are left, and how many there were when the member began to take every write.
    left_count: u64,
    total: u64,
    /// What the member lacks of these regions, if that is known; `None`: all of each. Then the bytes of this delta that
    /// are left, and its bytes in all.
    delta: Option<Delta>,
    left_bytes: u64,
    delta_bytes: u64,
    since_checkpoint: u32,
    /// The member's content is read and compared before it is written.
    compares: bool,
    /// A delta from another member is being determined outside of the engine.
    pub(super) delta_base: Option<DeltaBase>,
}

impl Rebuild {
    /// Returns the bytes done, and the bytes to do in all.
    pub fn progress(&self, map: &RegionMap) -> (u64, u64) {
        if self.delta.is_some() {
            return (self.delta_bytes - self.left_bytes, self.delta_bytes);
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

    /// Whether every write goes to the member.
    pub(super) fn takes_writes(&self) -> bool {
        self.left.is_some()
    }

    /// Whether it is known which blocks of each region the member lacks.
    pub(super) fn is_delta_known(&self) -> bool {
        self.delta.is_some()
    }

    /// Reduces what is left to copy to this delta.
    pub(super) fn set_delta(&mut self, delta: Delta, map: &RegionMap) {
        let Some(left) = &mut self.left else { return };
        self.left_bytes = narrow(left, &delta, map);
        self.delta_bytes = self.left_bytes;
        self.left_count = left.iter().map(|word| u64::from(word.count_ones())).sum();
        self.delta = Some(delta);
    }

    fn has(&self, region: u32) -> bool {
        self.left.as_ref().is_some_and(|left| left[region as usize / 64] & (1 << (region % 64)) != 0)
    }

    fn first(&self) -> Option<u32> {
        let (word, bits) = self.left.as_ref()?.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        Some(word as u32 * 64 + bits.trailing_zeros())
    }
}

impl Reconciler {
    /// Makes a rebuild step. `None`: no member is being rebuilt, or nothing can be copied now.
    pub(super) async fn rebuild<I: ReconcilerIo>(&mut self, io: &I) -> Option<Act> {
        if self.rebuilds.values().any(|rebuild| rebuild.left.is_none()) {
            // When this returns, every request in flight writes to the new members too.
            let layout = self.layout(io);
            io.publish(self.options.device, Some(layout)).await;
            io.call(self.options.device, self.options.home, RegionCall::Rewrite).await;
            self.retire_journal(io).await;
            self.note_left();
            return Some(Act::Nothing);
        }
        let every = self.checkpoint_every();
        if let Some((&role, rebuild)) = self.rebuilds.iter_mut().find(|(_, rebuild)| rebuild.since_checkpoint >= every)
        {
            rebuild.since_checkpoint = 0;
            if rebuild.full_from.is_some() {
                return Some(Act::Checkpoint(role, self.rebuilt_to(role)));
            }
        }
        if let Some(role) = self.running().find(|role| self.rebuilds[role].left_count == 0) {
            return Some(Act::Promote(role));
        }
        if self.retry_stuck(io).await {
            return Some(Act::Nothing);
        }
        self.next_lacking(None)?;
        self.copy(io, &mut Goal::Rebuild).await;
        Some(Act::Nothing)
    }

    fn checkpoint_every(&self) -> u32 {
        (self.regions.regions() / CHECKPOINTS).clamp(1, CHECKPOINT_EVERY_MAX)
    }

    /// Returns the array offset before which a member holds everything.
    fn rebuilt_to(&self, role: u16) -> u64 {
        let first = self.rebuilds.get(&role).and_then(Rebuild::first);
        first.map_or(self.array.geometry().size_bytes(), |region| self.regions.range(region).0)
    }

    /// Returns the members whose rebuild is not paused.
    fn running(&self) -> impl Iterator<Item = u16> {
        self.rebuilds.keys().copied().filter(|role| self.jobs.runs(self.rebuild_kind(*role), Some(*role)))
    }

    /// Returns the smallest limit of the running rebuilds, in bytes a second; 0: none.
    pub(super) fn rebuild_limit(&self) -> u64 {
        let limits = self.running().map(|role| self.jobs.limit(self.rebuild_kind(role), Some(role)));
        limits.filter(|limit| *limit > 0).min().unwrap_or(0)
    }

    /// Returns the first region after `last` that a member lacks, and those members. Unsettled regions are left to the
    /// resync.
    pub(super) fn next_lacking(&self, last: Option<u32>) -> Option<(u32, MemberSet)> {
        let from = last.map_or(0, |region| region + 1);
        let running: Vec<(u16, &Rebuild)> = self.running().map(|role| (role, &self.rebuilds[&role])).collect();
        for word in from as usize / 64..self.words() {
            let some =
                running.iter().filter_map(|(_, rebuild)| rebuild.left.as_ref()).fold(0, |all, left| all | left[word]);
            let mut some = some & !self.regions.unequal.word(word);
            if word == from as usize / 64 {
                some &= u64::MAX << (from % 64);
            }
            for region in self.stuck.within(word as u32 * 64, word as u32 * 64 + 64) {
                some &= !(1 << (region % 64));
            }
            if some != 0 {
                let region = word as u32 * 64 + some.trailing_zeros();
                let lacks = running.iter().filter(|(_, rebuild)| rebuild.has(region));
                return Some((region, lacks.fold(MemberSet::NONE, |to, (role, _)| to.with(usize::from(*role)))));
            }
        }
        None
    }

    /// Returns the first run within `[start, end)`, in one region, that one of these members lacks; `(end, end)` if
    /// there is none.
    pub(super) fn delta_run(&self, to: MemberSet, start: u64, end: u64) -> (u64, u64) {
        let rebuilds = self.rebuilds.iter().filter(|(role, _)| to.has(usize::from(**role)));
        let runs = rebuilds.map(|(_, rebuild)| match &rebuild.delta {
            Some(delta) => delta.run(&self.regions, start, end),
            None => (start, end),
        });
        // The run that begins first; if several do, the longest. The caller asks for later runs next.
        runs.min_by_key(|(first, last)| (*first, std::cmp::Reverse(*last))).unwrap_or((start, end))
    }

    /// From now on the member's content is compared before it is overwritten.
    pub(super) fn compare_rebuild(&mut self, role: u16) -> Result<(), LifecycleError> {
        let wrong = || LifecycleError::Slot { slot: role, reason: "it is not being rebuilt".to_owned() };
        self.rebuilds.get_mut(&role).ok_or_else(wrong)?.compares = true;
        Ok(())
    }

    /// Returns the member and its disk if it is the only target and may already hold most of the content at this
    /// offset.
    pub(super) fn compare_target(&self, to: MemberSet, at: u64) -> Option<(u16, LeafId)> {
        let role = u16::try_from(to.0.trailing_zeros()).ok().filter(|_| to.0.count_ones() == 1)?;
        let rebuild = self.rebuilds.get(&role).filter(|rebuild| rebuild.compares && self.options.lease.is_some())?;
        // It does not hold the content of a region that it lacks as a whole.
        let region = self.regions.region_of(at);
        let is_whole = rebuild.delta.as_ref().is_none_or(|delta| delta.is_whole(region));
        Some((role, self.array.leaf(role)?)).filter(|_| is_whole)
    }

    /// Records that a region was copied to these members. Returns true if a checkpoint is due.
    pub(super) fn region_rebuilt<I: ReconcilerIo>(&mut self, io: &I, region: u32, to: MemberSet) -> bool {
        let (mut due, every) = (false, self.checkpoint_every());
        let roles: Vec<u16> = self.rebuilds.keys().copied().filter(|role| to.has(usize::from(*role))).collect();
        for role in roles {
            if let Some(rebuild) = self.rebuilds.get_mut(&role).filter(|rebuild| rebuild.has(region))
                && let Some(left) = &mut rebuild.left
            {
                left[region as usize / 64] &= !(1 << (region % 64));
                rebuild.left_count -= 1;
                let bytes = rebuild.delta.as_ref().map_or(0, |delta| delta.bytes(&self.regions, region));
                rebuild.left_bytes = rebuild.left_bytes.saturating_sub(bytes);
                rebuild.since_checkpoint += 1;
                due |= rebuild.since_checkpoint >= every;
            }
            self.report_job(io, self.rebuild_kind(role), Some(role), false);
        }
        due
    }

    /// Determines what is left for members that have just begun to take every write.
    fn note_left(&mut self) {
        let new: Vec<u16> =
            self.rebuilds.iter().filter(|(_, rebuild)| rebuild.left.is_none()).map(|(role, _)| *role).collect();
        for role in new {
            let mut left = self.left_for(role);
            let in_full = self.rebuilds.get(&role).is_some_and(|rebuild| rebuild.full_from.is_some());
            let delta = if in_full { None } else { self.delta_of(role) };
            let delta_bytes = delta.as_ref().map_or(0, |delta| narrow(&mut left, delta, &self.regions));
            let written = self.regions.written.count();
            if let Some(rebuild) = self.rebuilds.get_mut(&role) {
                rebuild.left_count = left.iter().map(|word| u64::from(word.count_ones())).sum();
                rebuild.total =
                    if rebuild.full_from.is_some() { written.max(rebuild.left_count) } else { rebuild.left_count };
                (rebuild.delta, rebuild.left_bytes, rebuild.delta_bytes) = (delta, delta_bytes, delta_bytes);
                rebuild.left = Some(left);
            }
        }
    }

    fn words(&self) -> usize {
        (self.regions.regions() as usize).div_ceil(64)
    }

    /// Returns the regions that a member that takes every new write still lacks.
    fn left_for(&self, role: u16) -> Vec<u64> {
        let map = &self.regions;
        let from = self.rebuilds.get(&role).and_then(|rebuild| rebuild.full_from);
        let first = from.map(|byte| map.region_of(byte));
        let word = |at: usize| {
            let dirty = map.dirty.word(at) & map.written.word(at);
            let full = match first {
                None => 0,
                Some(first) if first as usize / 64 > at => 0,
                Some(first) if first as usize / 64 == at => map.written.word(at) & (u64::MAX << (first % 64)),
                Some(_) => map.written.word(at),
            };
            dirty | full
        };
        (0..self.words()).map(word).collect()
    }

    /// Starts tracking each member that has begun to be rebuilt.
    pub(super) fn track_rebuilds<I: ReconcilerIo>(&mut self, io: &I) {
        let new = |reconciler: &Reconciler, role: u16| {
            reconciler.array.state(role) == MemberState::Rebuilding && !reconciler.rebuilds.contains_key(&role)
        };
        let roles: Vec<u16> = self.array.members().map(|m| m.number).filter(|role| new(self, *role)).collect();
        for role in roles {
            let job = self.array.rebuild(role).copied();
            let full_from = job.map(|job| job.position_bytes);
            let rebuild = Rebuild {
                full_from,
                left: None,
                left_count: 0,
                total: 0,
                delta: None,
                left_bytes: 0,
                delta_bytes: 0,
                since_checkpoint: 0,
                compares: full_from.is_none(),
                delta_base: None,
            };
            self.rebuilds.insert(role, rebuild);
            self.repairs.remove(&role);
            let paused = job.is_some_and(|job| job.state == JobState::Paused);
            let stage = if paused { JobStage::Paused } else { JobStage::Running };
            let limit = job.map_or(0, |job| job.rate_bytes_per_s);
            self.begin_job(io, self.rebuild_kind(role), Some(role), stage, limit);
        }
    }
}

/// Keeps only the regions that are part of the delta; returns the bytes of the delta in them.
fn narrow(left: &mut [u64], delta: &Delta, map: &RegionMap) -> u64 {
    let mut all = 0;
    for (at, word) in left.iter_mut().enumerate() {
        for bit in (0..64).filter(|bit| *word & (1 << bit) != 0).collect::<Vec<u32>>() {
            let bytes = delta.bytes(map, at as u32 * 64 + bit);
            all += bytes;
            if bytes == 0 {
                *word &= !(1 << bit);
            }
        }
    }
    all
}
