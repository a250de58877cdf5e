//! Members of a replicated array that are out and may come back: what they miss meanwhile, so that they get that and no more.
//!
//! Who was in sync when it was left out lacks what was written since ([`Missed`]), and what was under way, which is noted there,
//! too. Whole regions it lacks where that does not say all:
//!
//! - what was not equal on all members when it was left out;
//! - what was first written since, as all of such a region is zeroed;
//! - what was dirty when it was left out, if it may have lost what it had not flushed: it has failed something, or whoever brings
//!   it back says so.
//!
//! All of that is kept until it holds everything: a fill that is broken off leaves something undone.

use std::sync::Arc;

use braid_format::{MemberId, MemberState};

use super::Keeper;
use crate::io::ErrorKind;
use crate::mirror::Role;
use crate::missed::{Blocks, Missed};
use crate::planted::{Planted, planted};
use crate::regions::{Plane, RegionMap};

/// One member that is out, or that is being filled after it was.
pub(super) struct Absence {
    id: MemberId,
    missed: Arc<Missed>,
    /// The regions that had been written when it was in sync last.
    written: Vec<u64>,
    /// Those that it lacks whole, whatever is noted of them.
    whole: Vec<u64>,
    /// Those that were dirty when it was left out last.
    dirty: Vec<u64>,
    /// It is back, and has kept all that it had answered.
    pub kept: bool,
    /// Looked up too early.
    early: Option<Blocks>,
}

/// What a member lacks that takes every write from now on.
pub(super) struct Lacked {
    blocks: Blocks,
    whole: Vec<u64>,
}

impl Lacked {
    /// These blocks, and these regions whole, a bit each.
    pub fn new(blocks: Blocks, whole: Vec<u64>) -> Lacked {
        Lacked { blocks, whole }
    }

    /// The first run of what it lacks within `[start, end)`, part of a region; both are `end` where there is nothing.
    pub fn run(&self, map: &RegionMap, start: u64, end: u64) -> (u64, u64) {
        if has(&self.whole, map.region_of(start)) { (start, end) } else { self.blocks.run(start, end) }
    }

    /// Whether it lacks all of a region.
    pub fn is_whole(&self, region: u32) -> bool {
        has(&self.whole, region)
    }

    /// Bytes that it lacks of a region.
    pub fn bytes(&self, map: &RegionMap, region: u32) -> u64 {
        let (start, end) = map.range(region);
        if has(&self.whole, region) { end - start } else { self.blocks.bytes(start, end) }
    }
}

fn has(words: &[u64], region: u32) -> bool {
    words.get(region as usize / 64).is_some_and(|word| word & (1 << (region % 64)) != 0)
}

fn words_of(plane: &Plane, map: &RegionMap) -> Vec<u64> {
    (0..(map.regions() as usize).div_ceil(64)).map(|word| plane.word(word)).collect()
}

fn add(words: &mut [u64], others: &[u64]) {
    words.iter_mut().zip(others).for_each(|(word, other)| *word |= other);
}

impl Keeper {
    /// Whether it is noted what members miss: with parity, whose rows are written as a whole, dirty regions say it.
    fn notes_absences(&self) -> bool {
        self.options.lease.is_some() && !self.has_parity()
    }

    /// Whether members were left out since a layout was published last, in an array in which it is noted what they miss.
    pub(super) fn has_lost_some(&self) -> bool {
        let served = |role: u16| self.published.get(usize::from(role)).is_some_and(|(_, role)| *role != Role::Out);
        let lost = |role: u16| self.array.state(role) == MemberState::Out && served(role);
        self.notes_absences() && (0..self.array.roles()).any(lost)
    }

    /// Notes from now on what those miss who are out, and were not when a layout was published last.
    pub(super) fn note_absences(&mut self) {
        self.forget_likeness();
        if !self.notes_absences() {
            return;
        }
        let label = self.array.label();
        let id = |role: u16| label.members.get(usize::from(role)).and_then(|member| member.id);
        // Who is no member any more, or holds everything, gets nothing.
        self.absences.retain(|role, of| id(*role) == Some(of.id) && self.array.state(*role) != MemberState::InSync);
        let map = &self.regions;
        for role in (0..self.array.roles()).filter(|role| self.array.state(*role) == MemberState::Out) {
            let was = self.published.get(usize::from(role)).map_or(Role::Out, |(_, role)| *role);
            let unreached = self.unreached.contains(&role);
            let (dirty, unsettled) = (words_of(&map.dirty, map), words_of(&map.unsettled, map));
            match (self.absences.get_mut(&role), was, id(role)) {
                (Some(absence), Role::Filling | Role::InSync, _) => {
                    // What the fill that is broken off was to copy whole is not all copied.
                    if !absence.kept {
                        let before = std::mem::take(&mut absence.dirty);
                        add(&mut absence.whole, &before);
                    }
                    add(&mut absence.whole, &unsettled);
                    if !unreached {
                        add(&mut absence.whole, &dirty);
                    }
                    (absence.dirty, absence.kept) = (dirty, false);
                    if planted(Planted::MissedForgottenEarly) {
                        absence.missed = Arc::new(Missed::new(self.array.geometry().size_bytes()));
                    }
                }
                (None, Role::InSync, Some(id)) => {
                    let missed = Arc::new(Missed::new(self.array.geometry().size_bytes()));
                    let written = words_of(&map.written, map);
                    let mut whole = unsettled;
                    if !unreached && !planted(Planted::LossesForgotten) {
                        add(&mut whole, &dirty);
                    }
                    let absence = Absence { id, missed, written, whole, dirty, kept: false, early: None };
                    self.absences.insert(role, absence);
                }
                _ => {}
            }
        }
        self.unreached.clear();
    }

    /// A member is about to be left out for this. Who does not answer may have kept all that it has answered.
    pub(super) fn note_failure(&mut self, role: u16, kind: ErrorKind) {
        if matches!(kind, ErrorKind::Gone | ErrorKind::TimedOut) {
            self.unreached.insert(role);
        }
    }

    /// A member is back; whether it has kept all that it had answered.
    pub(super) fn note_return(&mut self, role: u16, kept: bool) {
        if let Some(absence) = self.absences.get_mut(&role) {
            absence.kept = kept || planted(Planted::LossesForgotten);
            absence.early = planted(Planted::MissedLookedUpEarly).then(|| absence.missed.blocks());
        }
    }

    /// What a member lacks that takes every write from now on, where that is known; it is not filled in full.
    pub(super) fn lacked_by(&self, role: u16) -> Option<Lacked> {
        let (absence, map) = (self.absences.get(&role)?, &self.regions);
        let mut whole = absence.whole.clone();
        if !absence.kept {
            add(&mut whole, &absence.dirty);
        }
        if !planted(Planted::FreshForgotten) {
            let fresh = |(word, before): (usize, &u64)| map.written.word(word) & !before;
            add(&mut whole, &absence.written.iter().enumerate().map(fresh).collect::<Vec<_>>());
        }
        Some(Lacked { blocks: absence.early.clone().unwrap_or_else(|| absence.missed.blocks()), whole })
    }

    /// Nothing is known of it any more.
    pub(super) fn forget_absences(&mut self) {
        self.absences.clear();
    }

    /// Where what members miss is noted.
    pub(super) fn missed(&self) -> impl Iterator<Item = Arc<Missed>> {
        self.absences.values().map(|absence| Arc::clone(&absence.missed))
    }
}
