//! Ends a life of the process: applies its end to the disks, the labels and the expectations about arrays.

use braid_format::{DiskLayout, Label};

use crate::disk::Survival;
use crate::labelled::{Expectation, Labelled};
use crate::oracle::Violation;
use crate::rng::Rng;
use crate::run_state::RunState;
use crate::sim::{LifeEnd, Sim};
use crate::workload::Workload;
use crate::world::{Crash, World};

impl Sim {
    /// Applies the end of a process to the disks and to the expectations about arrays.
    pub(crate) fn end_life(&mut self, end: &LifeEnd) {
        let mut state = self.state.borrow_mut();
        let broken = |disk: &usize| self.world.disks[*disk].gone || self.world.disks[*disk].flush_failed;
        let plain = state.arrays.iter().filter(|a| a.disks().iter().any(broken)).filter_map(|a| a.number);
        let labelled = state.labelled.iter().filter(|l| l.disks.iter().any(broken)).filter_map(|l| l.number);
        let mirrors = state.mirrors.iter().filter(|m| crate::mirrors::is_weak(&self.world, m)).filter_map(|m| m.number);
        let weak: Vec<u64> = plain.chain(labelled).chain(mirrors).collect();
        match end {
            LifeEnd::Clean => {
                self.world.note(format_args!("clean end"));
                self.world.counters.add("ends", "clean");
                self.world.leave();
                // The machine may be shut down after a clean stop: data that was not flushed is lost.
                if !state.mirrors.is_empty() && self.rng.below(4) == 0 {
                    self.world.counters.add("ends", "clean, then power off");
                    self.world.crash(Crash::Power);
                    state.oracle.crashed(Crash::Power, &weak);
                } else {
                    state.oracle.crashed(Crash::Kill, &weak);
                }
            }
            LifeEnd::Crash(how) => {
                let kind = if *how == Crash::Power { "power" } else { "kill" };
                self.world.counters.add("crashes", &format!("{kind} while {}", state.phase));
                if let Some(moment) = self.aimed {
                    self.world.counters.add("crashes aimed at", moment);
                }
                let under_way = if *how == Crash::Power { labels_under_way(&self.world, &state) } else { Vec::new() };
                let moved = copies_that_moved(&self.world, &state);
                self.world.crash(*how);
                state.oracle.crashed(*how, &weak);
                rot_beside_moved(&mut self.world, &mut state, moved, &mut self.rng);
                corrupt_labels(&mut self.world, &mut state, under_way, &mut self.rng);
            }
            LifeEnd::Wrong(_) => {}
        }
        state.workload = Workload::new(self.rng.fork());
        state.pull.clear();
        state.fill_up.clear();
        state.lossy.clear();
        state.half = None;
        state.compare.clear();
        (state.disk_pair, state.differing_ranges) = (None, None);
        state.journal_refusals.clear();
        state.enlarge.clear();
        state.spreading.clear();
        state.spawned.clear();
        state.jobs.clear();
        state.lost.clear();
        let RunState { rot, oracle, .. } = &mut *state;
        rot.undo(&mut self.world, oracle);
        state.reopening.clear();
        for labelled in &mut state.labelled {
            labelled.tainted = false;
        }
        if matches!(end, LifeEnd::Clean) {
            rot_labels(&mut self.world, &state, &mut self.rng);
        }
        // The file systems below the disks have space again.
        self.world.disks.iter_mut().for_each(|disk| disk.full = false);
        // Some of the pulled disks are back, with the content that they had.
        for disk in &mut self.world.disks {
            disk.gone &= self.rng.coin();
        }
        let promoted = std::mem::take(&mut state.promoted);
        state.seen.clear();
        state.moments.clear();
        state.disk_faults.clear();
        state.at_freeze.clear();
        state.unreadable.clear();
        let RunState { mirrors, oracle, .. } = &mut *state;
        for mirror in mirrors {
            mirror.serves_as = None;
            mirror.copy_or_restore(&mut self.world, &mut self.rng);
            // Disk faults of a scenario last for one life.
            if let Some(after) = mirror.script.pop_front() {
                let slot = mirror.disks.iter().position(|disk| *disk == mirror.victims[0]);
                let promoted = slot.is_some_and(|slot| promoted.contains(&(slot as u16)));
                for disk in mirror.disks.iter().chain(&mirror.others).chain(&mirror.journal.disks) {
                    let disk = &mut self.world.disks[*disk];
                    (disk.profile, disk.gone) = (disk.profile.repaired(), false);
                }
                for what in after {
                    mirror.apply_between_lives(what, promoted, &mut self.world, oracle, &mut self.rng);
                }
            }
            mirror.missing.iter().for_each(|disk| self.world.disks[*disk].gone = true);
        }
        // Other disks are missing when the next process starts. Their cached writes reach the medium first.
        for mirror in &state.mirrors {
            for disk in mirror.victims.iter().filter(|_| mirror.exists) {
                if self.rng.chance(mirror.unplug) {
                    let disk = &mut self.world.disks[*disk];
                    disk.cut_power(Survival::All, &mut self.rng);
                    disk.gone = true;
                }
            }
        }
        let RunState { labelled, old_copies, .. } = &mut *state;
        labelled.iter_mut().for_each(|array| array.copy_or_restore(&mut self.world, old_copies));
        drop(state);
        self.change_journals();
    }

    /// Puts the disks back whose places old copies have taken.
    pub(crate) fn put_back(&mut self) {
        let RunState { labelled, old_copies, .. } = &mut *self.state.borrow_mut();
        labelled.iter_mut().for_each(|array| array.put_back(&mut self.world, old_copies));
    }

    /// Changes the journal disks between two lives: some are lost, some are replaced by old copies.
    fn change_journals(&mut self) {
        let state = &mut *self.state.borrow_mut();
        let Some(chance) = &mut state.journals else { return };
        for mirror in &mut state.mirrors {
            let whole = mirror.has_all(&mirror.disks.iter().copied().collect(), &self.world);
            mirror.journal.between_lives(whole, &mut self.world, chance);
        }
    }

    /// Returns a violation if a disk with labels was changed in a place that belongs neither to a label nor to data.
    pub(crate) fn find_stray_write(&self) -> Option<Violation> {
        let state = self.state.borrow();
        let small = state.mirrors.iter().filter_map(|mirror| mirror.journal.small);
        let is_touched = |disk: &usize| self.world.disks[*disk].first_stray(|_| false).is_some();
        if let Some(disk) = small.into_iter().find(is_touched) {
            return Some(Violation(format!("disk {disk} was written to, and it is too small for a journal")));
        }
        state.label_disks.iter().find_map(|number| {
            let disk = &self.world.disks[*number];
            let places = DiskLayout::for_device(disk.size_bytes()).expect("a disk that has room for labels");
            let data = places.data.start..places.data.start + places.data.bytes;
            let owned = |at: u64| at == places.label_start || at == places.copy_start || data.contains(&at);
            let why = |at| format!("disk {number} was changed at {at}, where neither labels nor data are");
            disk.first_stray(owned).map(|at| Violation(why(at)))
        })
    }
}

/// Returns the label copies of existing arrays that are being written, or were written and are not durable: index of
/// the array, disk and offset.
fn labels_under_way(world: &World, state: &RunState) -> Vec<(usize, usize, u64)> {
    let mut found = Vec::new();
    for (index, array) in state.labelled.iter().enumerate().filter(|(_, l)| l.expected == Expectation::Exists) {
        for disk in array.disks.iter().filter(|disk| !state.enlarged.contains(disk)) {
            let copies = [0, world.disks[*disk].size_bytes() - 4096];
            found.extend(copies.into_iter().filter(|at| world.is_under_way(*disk, *at)).map(|at| (index, *disk, at)));
        }
    }
    found
}

/// Corrupts labels that are being written when the power fails: a block may then hold neither the old nor the new
/// content.
///
/// Two versions of a label may differ in the first sector only, and a disk writes a sector atomically. Without this
/// fault, an engine that writes both copies of a label at once would pass.
fn corrupt_labels(world: &mut World, state: &mut RunState, under_way: Vec<(usize, usize, u64)>, rng: &mut Rng) {
    for (array, disk, offset) in under_way {
        state.labelled[array].sound = false;
        if rng.coin() {
            world.disks[disk].rot(offset, 4096, rng);
            world.counters.add("fault", "label spoiled");
        }
    }
}

/// Returns the enlarged disks of growing arrays, as index of the array and disk, on which no write of the label copy at
/// the new end is in flight or not durable. The start before the growth has made both label copies of these arrays
/// valid.
fn copies_that_moved(world: &World, state: &RunState) -> Vec<(usize, usize)> {
    let growing = |l: &&Labelled| l.growing.is_some() && l.expected == Expectation::Exists && !l.tainted;
    let calm = state.phase == "growing" && !world.had_faults();
    let arrays = state.labelled.iter().enumerate().filter(|(_, l)| calm && growing(l));
    let disks = arrays.flat_map(|(index, array)| array.disks.iter().map(move |disk| (index, *disk)));
    let moved = |(_, disk): &(usize, usize)| {
        let copy = world.disks[*disk].size_bytes() - 4096;
        state.enlarged.contains(disk) && !world.disks[*disk].gone && !world.is_under_way(*disk, copy)
    };
    disks.filter(moved).collect()
}

/// Rots the label at the beginning of each of these disks, if it says that its copy is at the new end of the disk. That
/// copy must then suffice.
fn rot_beside_moved(world: &mut World, state: &mut RunState, moved: Vec<(usize, usize)>, rng: &mut Rng) {
    for (array, disk) in moved {
        let Some(growth) = &mut state.growth else { return };
        let of = &mut world.disks[disk];
        let mut bytes = vec![0; 4096];
        let label = of.read(0, &mut bytes).then(|| Label::decode(&bytes).ok()).flatten();
        let says = |label: Label| {
            label.array.uuid == state.labelled[array].uuid && label.member.layout.copy_start == of.size_bytes() - 4096
        };
        if label.is_some_and(says) && growth.below(8) > 0 {
            of.rot(0, 4096, rng);
            world.counters.add("fault", "label rot of a grown disk");
            world.note(format_args!("the first copy of the label of disk {disk} rots"));
            state.labelled[array].sound = false;
        }
    }
}

/// Rots one label copy of some disks between two lives: the other copy must suffice.
fn rot_labels(world: &mut World, state: &RunState, rng: &mut Rng) {
    for array in state.labelled.iter().filter(|l| l.expected == Expectation::Exists && l.sound) {
        for disk in array.disks.iter().filter(|disk| !state.enlarged.contains(disk)) {
            if rng.below(8) == 0 {
                let disk = &mut world.disks[*disk];
                let offset = if rng.coin() { 0 } else { disk.size_bytes() - 4096 };
                disk.rot(offset, 4096, rng);
                world.counters.add("fault", "label rot");
            }
        }
    }
}
