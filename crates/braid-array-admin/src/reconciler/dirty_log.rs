//! The dirty log of failed members of a replicated array that may return: what a delta resync has to copy to them.
//!
//! A member that was in sync when it was dropped lacks every write since then, and the writes that were in flight at
//! the drop; both are recorded in [`MissedWrites`]. It lacks a region as a whole in these cases:
//!
//! - the region was unequal (unsettled) when the member was dropped;
//! - the region was first written after the drop, because the whole of a new region is zeroed;
//! - the region was dirty at the drop and the member may have lost unflushed writes: it failed an I/O, or the order
//!   that returns it says so.
//!
//! The log is kept until the member is in sync again: an interrupted rebuild leaves part of it uncopied.

use std::sync::Arc;

use braid_engine::{BlockSet, ErrorKind, MemberRole, MissedWrites, RegionMap, regions::RegionBits};
use braid_format::{MemberId, MemberState};

use super::Reconciler;

/// What a delta resync has to copy to one member that failed, or that is being rebuilt after it failed.
pub(super) struct DirtyLog {
    id: MemberId,
    missed: Arc<MissedWrites>,
    /// The regions that had been written when the member was last in sync.
    written: Vec<u64>,
    /// The regions that it lacks as a whole, whatever `missed` says of them.
    whole: Vec<u64>,
    /// The regions that were dirty when it was last dropped.
    dirty: Vec<u64>,
    /// The member has returned and has kept every write that it acknowledged: then it does not lack `dirty` regions as
    /// a whole.
    pub kept: bool,
}

/// What a rebuilding member still lacks once it takes every new write.
pub(super) struct Delta {
    blocks: BlockSet,
    whole: Vec<u64>,
}

impl Delta {
    /// Creates a delta of these blocks and of these whole regions, one bit each.
    pub fn new(blocks: BlockSet, whole: Vec<u64>) -> Delta {
        Delta { blocks, whole }
    }

    /// Returns the first missing run within `[start, end)`, which lies in one region; `(end, end)` if nothing is
    /// missing.
    pub fn run(&self, map: &RegionMap, start: u64, end: u64) -> (u64, u64) {
        if has(&self.whole, map.region_of(start)) { (start, end) } else { self.blocks.run(start, end) }
    }

    /// Whether all of a region is missing.
    pub fn is_whole(&self, region: u32) -> bool {
        has(&self.whole, region)
    }

    /// Returns how many bytes of a region are missing.
    pub fn bytes(&self, map: &RegionMap, region: u32) -> u64 {
        let (start, end) = map.range(region);
        if has(&self.whole, region) { end - start } else { self.blocks.bytes(start, end) }
    }
}

fn has(words: &[u64], region: u32) -> bool {
    words.get(region as usize / 64).is_some_and(|word| word & (1 << (region % 64)) != 0)
}

fn words_of(plane: &RegionBits, map: &RegionMap) -> Vec<u64> {
    (0..(map.regions() as usize).div_ceil(64)).map(|word| plane.word(word)).collect()
}

fn add(words: &mut [u64], others: &[u64]) {
    words.iter_mut().zip(others).for_each(|(word, other)| *word |= other);
}

impl Reconciler {
    /// Whether dirty logs are kept. Arrays with parity keep none: they write whole stripes, and their dirty regions
    /// suffice.
    fn keeps_dirty_logs(&self) -> bool {
        self.options.lease.is_some() && !self.has_parity()
    }

    /// Whether a member was dropped since the last published layout, in an array that keeps dirty logs.
    pub(super) fn has_new_failures(&self) -> bool {
        let served =
            |role: u16| self.published.get(usize::from(role)).is_some_and(|(_, role)| *role != MemberRole::Failed);
        let lost = |role: u16| self.array.state(role) == MemberState::Failed && served(role);
        self.keeps_dirty_logs() && (0..self.array.slots()).any(lost)
    }

    /// Starts a dirty log for each member that failed since the last published layout.
    pub(super) fn update_dirty_logs(&mut self) {
        self.forget_delta_bases();
        if !self.keeps_dirty_logs() {
            return;
        }
        let label = self.array.label();
        let id = |role: u16| label.members.get(usize::from(role)).and_then(|member| member.id);
        // A member that was removed or is in sync needs no log.
        self.dirty_logs.retain(|role, of| id(*role) == Some(of.id) && self.array.state(*role) != MemberState::InSync);
        let map = &self.regions;
        for role in (0..self.array.slots()).filter(|role| self.array.state(*role) == MemberState::Failed) {
            let was = self.published.get(usize::from(role)).map_or(MemberRole::Failed, |(_, role)| *role);
            let unreached = self.unreached.contains(&role);
            let (dirty, unsettled) = (words_of(&map.dirty, map), words_of(&map.unequal, map));
            match (self.dirty_logs.get_mut(&role), was, id(role)) {
                (Some(log), MemberRole::Rebuilding | MemberRole::InSync, _) => {
                    // The interrupted rebuild has not copied all whole regions.
                    if !log.kept {
                        let before = std::mem::take(&mut log.dirty);
                        add(&mut log.whole, &before);
                    }
                    add(&mut log.whole, &unsettled);
                    if !unreached {
                        add(&mut log.whole, &dirty);
                    }
                    (log.dirty, log.kept) = (dirty, false);
                }
                (None, MemberRole::InSync, Some(id)) => {
                    let missed = Arc::new(MissedWrites::new(self.array.geometry().size_bytes()));
                    let written = words_of(&map.written, map);
                    let mut whole = unsettled;
                    if !unreached {
                        add(&mut whole, &dirty);
                    }
                    let log = DirtyLog { id, missed, written, whole, dirty, kept: false };
                    self.dirty_logs.insert(role, log);
                }
                _ => {}
            }
        }
        self.unreached.clear();
    }

    /// Records why a member is about to be dropped. A member that only stopped responding may have kept all that it
    /// acknowledged.
    pub(super) fn note_failure(&mut self, role: u16, kind: ErrorKind) {
        if matches!(kind, ErrorKind::Gone | ErrorKind::TimedOut) {
            self.unreached.insert(role);
        }
    }

    /// Records that a member returned, and whether it kept every write that it acknowledged.
    pub(super) fn note_return(&mut self, role: u16, kept: bool) {
        if let Some(log) = self.dirty_logs.get_mut(&role) {
            log.kept = kept;
        }
    }

    /// Returns what a rebuilding member that takes every new write still lacks; `None` if unknown. Not for a full
    /// rebuild.
    pub(super) fn delta_of(&self, role: u16) -> Option<Delta> {
        let (log, map) = (self.dirty_logs.get(&role)?, &self.regions);
        let mut whole = log.whole.clone();
        if !log.kept {
            add(&mut whole, &log.dirty);
        }
        let fresh = |(word, before): (usize, &u64)| map.written.word(word) & !before;
        add(&mut whole, &log.written.iter().enumerate().map(fresh).collect::<Vec<_>>());
        Some(Delta { blocks: log.missed.blocks(), whole })
    }

    /// Discards all dirty logs.
    pub(super) fn forget_dirty_logs(&mut self) {
        self.dirty_logs.clear();
    }

    /// Returns the [`MissedWrites`] records that a layout has to keep up to date.
    pub(super) fn missed(&self) -> impl Iterator<Item = Arc<MissedWrites>> {
        self.dirty_logs.values().map(|log| Arc::clone(&log.missed))
    }
}
