//! What the end of a process does: to disks, to labels, and to what may be expected of them.

use braid_format::{DiskLayout, Label};

use crate::disk::Survival;
use crate::labelled::{Labelled, Promise};
use crate::oracle::Violation;
use crate::rng::Rng;
use crate::sim::{End, Sim};
use crate::stage::Stage;
use crate::workload::Workload;
use crate::world::{Crash, World};

impl Sim {
    /// What the end of a process does to disks and to what may be expected of them.
    pub(crate) fn bury(&mut self, end: &End) {
        let mut stage = self.stage.borrow_mut();
        let broken = |disk: &usize| self.world.disks[*disk].gone || self.world.disks[*disk].flush_failed;
        let trials = stage.arrays.iter().filter(|a| a.disks().iter().any(broken)).filter_map(|a| a.number);
        let labelled = stage.labelled.iter().filter(|l| l.disks.iter().any(broken)).filter_map(|l| l.number);
        let mirrors = stage.mirrors.iter().filter(|m| crate::copies::is_weak(&self.world, m)).filter_map(|m| m.number);
        let weak: Vec<u64> = trials.chain(labelled).chain(mirrors).collect();
        match end {
            End::Clean => {
                self.world.note(format_args!("clean end"));
                self.world.counters.add("ends", "clean");
                self.world.leave();
                // The machine is shut down, perhaps: what was not flushed is gone.
                if !stage.mirrors.is_empty() && self.rng.below(4) == 0 {
                    self.world.counters.add("ends", "clean, then power off");
                    self.world.crash(Crash::Power);
                    stage.oracle.crashed(Crash::Power, &weak);
                } else {
                    stage.oracle.crashed(Crash::Kill, &weak);
                }
            }
            End::Crash(how) => {
                let kind = if *how == Crash::Power { "power" } else { "kill" };
                self.world.counters.add("crashes", &format!("{kind} while {}", stage.phase));
                if let Some(moment) = self.aimed {
                    self.world.counters.add("crashes aimed at", moment);
                }
                let under_way = if *how == Crash::Power { labels_under_way(&self.world, &stage) } else { Vec::new() };
                let moved = copies_that_moved(&self.world, &stage);
                self.world.crash(*how);
                stage.oracle.crashed(*how, &weak);
                rot_beside_moved(&mut self.world, &mut stage, moved, &mut self.rng);
                spoil_labels(&mut self.world, &mut stage, under_way, &mut self.rng);
            }
            End::Wrong(_) => {}
        }
        stage.workload = Workload::new(self.rng.fork());
        stage.pull.clear();
        stage.fill_up.clear();
        stage.lossy.clear();
        stage.half = None;
        stage.compare.clear();
        (stage.alike, stage.unlike) = (None, None);
        stage.refused.clear();
        stage.enlarge.clear();
        stage.spreading.clear();
        stage.spawned.clear();
        stage.jobs.clear();
        stage.lost.clear();
        let Stage { rot, oracle, .. } = &mut *stage;
        rot.undo(&mut self.world, oracle);
        stage.reopening.clear();
        for labelled in &mut stage.labelled {
            labelled.tainted = false;
        }
        if matches!(end, End::Clean) {
            rot_labels(&mut self.world, &stage, &mut self.rng);
        }
        // There is room again.
        self.world.disks.iter_mut().for_each(|disk| disk.full = false);
        // Some of the disks that were pulled are back, as they were left.
        for disk in &mut self.world.disks {
            disk.gone &= self.rng.coin();
        }
        let promoted = std::mem::take(&mut stage.promoted);
        stage.seen.clear();
        stage.moments.clear();
        stage.spoil.clear();
        stage.at_freeze.clear();
        stage.unreadable.clear();
        let Stage { mirrors, oracle, .. } = &mut *stage;
        for mirror in mirrors {
            mirror.serves_as = None;
            mirror.copy_or_restore(&mut self.world, &mut self.rng);
            // What a drill spoils is well again: it has had its time.
            if let Some(after) = mirror.script.pop_front() {
                let role = mirror.disks.iter().position(|disk| *disk == mirror.victims[0]);
                let promoted = role.is_some_and(|role| promoted.contains(&(role as u16)));
                for disk in mirror.disks.iter().chain(&mirror.others).chain(&mirror.journal.disks) {
                    let disk = &mut self.world.disks[*disk];
                    (disk.profile, disk.gone) = (disk.profile.repaired(), false);
                }
                for what in after {
                    mirror.between(what, promoted, &mut self.world, oracle, &mut self.rng);
                }
            }
            mirror.missing.iter().for_each(|disk| self.world.disks[*disk].gone = true);
        }
        // Others are not there when the next process starts; what they had cached is on the medium.
        for mirror in &stage.mirrors {
            for disk in mirror.victims.iter().filter(|_| mirror.exists) {
                if self.rng.chance(mirror.unplug) {
                    let disk = &mut self.world.disks[*disk];
                    disk.cut_power(Survival::All, &mut self.rng);
                    disk.gone = true;
                }
            }
        }
        let Stage { labelled, old_copies, .. } = &mut *stage;
        labelled.iter_mut().for_each(|array| array.copy_or_restore(&mut self.world, old_copies));
        drop(stage);
        self.change_journals();
    }

    /// Disks in whose places old copies stand are in them again.
    pub(crate) fn put_back(&mut self) {
        let Stage { labelled, old_copies, .. } = &mut *self.stage.borrow_mut();
        labelled.iter_mut().for_each(|array| array.put_back(&mut self.world, old_copies));
    }

    /// Of disks for journals: those that are lost, and old copies.
    fn change_journals(&mut self) {
        let stage = &mut *self.stage.borrow_mut();
        let Some(chance) = &mut stage.journals else { return };
        for mirror in &mut stage.mirrors {
            let whole = mirror.has_all(&mirror.disks.iter().copied().collect(), &self.world);
            mirror.journal.between_lives(whole, &mut self.world, chance);
        }
    }

    /// On disks with labels, what belongs neither to a label nor to data is nobody's to write: it is as it was.
    pub(crate) fn find_strays(&self) -> Option<Violation> {
        let stage = self.stage.borrow();
        let small = stage.mirrors.iter().filter_map(|mirror| mirror.journal.small);
        let is_touched = |disk: &usize| self.world.disks[*disk].first_stray(|_| false).is_some();
        if let Some(disk) = small.into_iter().find(is_touched) {
            return Some(Violation(format!("disk {disk} was written to, and it is too small for a journal")));
        }
        stage.label_disks.iter().find_map(|number| {
            let disk = &self.world.disks[*number];
            let places = DiskLayout::for_device(disk.size_bytes()).expect("a disk that has room for labels");
            let data = places.data.start..places.data.start + places.data.bytes;
            let owned = |at: u64| at == places.label_start || at == places.copy_start || data.contains(&at);
            let why = |at| format!("disk {number} was changed at {at}, where neither labels nor data are");
            disk.first_stray(owned).map(|at| Violation(why(at)))
        })
    }
}

/// Copies of labels, by array, disk and offset, that are being written, or were and are not durable, of arrays that exist.
fn labels_under_way(world: &World, stage: &Stage) -> Vec<(usize, usize, u64)> {
    let mut found = Vec::new();
    for (index, array) in stage.labelled.iter().enumerate().filter(|(_, l)| l.promise == Promise::Alive) {
        for disk in array.disks.iter().filter(|disk| !stage.enlarged.contains(disk)) {
            let copies = [0, world.disks[*disk].size_bytes() - 4096];
            found.extend(copies.into_iter().filter(|at| world.is_under_way(*disk, *at)).map(|at| (index, *disk, at)));
        }
    }
    found
}

/// What is being written when the power fails may be neither the old nor the new afterwards. A label may change in its
/// first sector alone, which no disk tears: without this it would not matter that only one copy is written at a time.
fn spoil_labels(world: &mut World, stage: &mut Stage, under_way: Vec<(usize, usize, u64)>, rng: &mut Rng) {
    for (array, disk, offset) in under_way {
        stage.labelled[array].sound = false;
        if rng.coin() {
            world.disks[disk].rot(offset, 4096, rng);
            world.counters.add("fault", "label spoiled");
        }
    }
}

/// Of arrays that are growing, so that a start has made both copies of every label whole, those disks that have become larger and
/// at whose new end nothing is under way.
fn copies_that_moved(world: &World, stage: &Stage) -> Vec<(usize, usize)> {
    let growing = |l: &&Labelled| l.growing.is_some() && l.promise == Promise::Alive && !l.tainted;
    let calm = stage.phase == "growing" && !world.had_faults();
    let arrays = stage.labelled.iter().enumerate().filter(|(_, l)| calm && growing(l));
    let disks = arrays.flat_map(|(index, array)| array.disks.iter().map(move |disk| (index, *disk)));
    let moved = |(_, disk): &(usize, usize)| {
        let copy = world.disks[*disk].size_bytes() - 4096;
        stage.enlarged.contains(disk) && !world.disks[*disk].gone && !world.is_under_way(*disk, copy)
    };
    disks.filter(moved).collect()
}

/// Where the first copy of a label says that the other one stands at the new end of the disk, it may rot away.
fn rot_beside_moved(world: &mut World, stage: &mut Stage, moved: Vec<(usize, usize)>, rng: &mut Rng) {
    for (array, disk) in moved {
        let Some(growth) = &mut stage.growth else { return };
        let of = &mut world.disks[disk];
        let mut bytes = vec![0; 4096];
        let label = of.read(0, &mut bytes).then(|| Label::decode(&bytes).ok()).flatten();
        let says = |label: Label| {
            label.array.uuid == stage.labelled[array].uuid && label.member.layout.copy_start == of.size_bytes() - 4096
        };
        if label.is_some_and(says) && growth.below(8) > 0 {
            of.rot(0, 4096, rng);
            world.counters.add("fault", "label rot of a grown disk");
            world.note(format_args!("the first copy of the label of disk {disk} rots"));
            stage.labelled[array].sound = false;
        }
    }
}

/// Between lives one copy of a label may rot away: the other must do.
fn rot_labels(world: &mut World, stage: &Stage, rng: &mut Rng) {
    for array in stage.labelled.iter().filter(|l| l.promise == Promise::Alive && l.sound) {
        for disk in array.disks.iter().filter(|disk| !stage.enlarged.contains(disk)) {
            if rng.below(8) == 0 {
                let disk = &mut world.disks[*disk];
                let offset = if rng.coin() { 0 } else { disk.size_bytes() - 4096 };
                disk.rot(offset, 4096, rng);
                world.counters.add("fault", "label rot");
            }
        }
    }
}
