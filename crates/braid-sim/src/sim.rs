//! One run: lives of the process, one after the other, each ended by a crash or by a clean stop.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::io::{DeviceId, ErrorKind, LeafError, LeafId};
use braid_engine::keeper::Note;
use braid_engine::{Limits, RegionCall};
use braid_format::{Label, Places};
use braid_geometry::Level;

use crate::copies::Copies;
use crate::counters::Counters;
use crate::disk::{Profile, SimDisk, Survival};
use crate::host::{Host, Told};
use crate::joblist::JobList;
use crate::labelled::{Labelled, Promise};
use crate::meta::{Port, Task, Tasks, Wanted};
use crate::oracle::{Oracle, Violation};
use crate::plot::mirrors::Mirror;
use crate::plot::script::{Spoil, make_unreadable};
use crate::plot::{ArrayState, Plot};
use crate::rng::Rng;
use crate::rot::{Rot, Wish};
use crate::trace::Trace;
use crate::workload::Workload;
use crate::world::{Crash, Happening, World};

/// Bytes of simulated memory.
const MEMORY_BYTES: usize = 40 << 20;

/// What the tasks and the loop both look at. Borrowed for a moment at a time, never across a wait.
pub struct Stage {
    /// Who judges.
    pub oracle: Oracle,
    /// Who asks.
    pub workload: Workload,
    /// Arrays without labels, as the administrator knows them.
    pub arrays: Vec<ArrayState>,
    /// Arrays with labels, all that there ever were.
    pub labelled: Vec<Labelled>,
    /// Redundant arrays.
    pub mirrors: Vec<Mirror>,
    /// Their jobs, as their keepers tell of them.
    pub jobs: JobList,
    /// Copies of blocks that have rotted.
    pub rot: Rot,
    /// Redundant arrays that serve and have lost a member since they were started.
    pub lost: BTreeSet<DeviceId>,
    /// Tasks that a task has started.
    pub spawned: Vec<Task>,
    /// Disks that a task wants opened anew, as soon as nothing is under way on them: the number of the wish, and the leaf.
    pub reopening: Vec<(u64, LeafId)>,
    /// Disks on which arrays with labels are made.
    pub label_disks: Vec<usize>,
    /// Levels of arrays with labels.
    pub levels: Vec<Level>,
    /// Numbers names.
    pub serial: u64,
    /// Whether any disk made an error in this life.
    pub had_faults: bool,
    /// What is going on, for the count of crashes.
    pub phase: &'static str,
    /// How many things the administrator began to do.
    pub begun: u64,
    /// What a task found wrong.
    pub violation: Option<Violation>,
    /// What tasks exercised.
    pub counters: Counters,
    /// Check that what has drained has no user.
    pub check_drained: bool,
    /// What tasks want in the trace.
    pub notes: Vec<String>,
    /// Disks that a task wants pulled.
    pub pull: Vec<usize>,
    /// Half a redundant array, while it serves apart from the other.
    pub half: Option<DeviceId>,
    /// Chance for what grows, where something does: of its own, so that seeds in which nothing grows stay as they are.
    pub growth: Option<Rng>,
    /// Disks that a task wants to be larger: the leaf, and the size in bytes.
    pub enlarge: Vec<(LeafId, u64)>,
    /// Devices that have grown, and their sizes in bytes, as long as some shard does not know.
    pub spreading: Vec<(DeviceId, u64)>,
    /// Disks that have become larger, and whose labels do not say so.
    pub enlarged: BTreeSet<usize>,
    /// Disks that were to become further members when the growth was interrupted, and that may bear a label of it.
    pub half_taken: BTreeSet<usize>,
    /// Redundant arrays that nobody uses, all copies of which must be equal.
    pub compare: Vec<Copies>,
    /// Moments that a task has come to.
    pub moments: Vec<&'static str>,
    /// How many of each kind there were in this life.
    seen: BTreeMap<&'static str, u64>,
    /// Members that were promoted in this life, by role, and are in sync since.
    pub promoted: BTreeSet<u16>,
    /// What a drill wants of disks.
    pub spoil: Vec<(usize, Spoil)>,
    /// The same, from the next freeze on.
    pub at_freeze: Vec<(usize, Spoil)>,
    /// Blocks that are to be readable nowhere.
    pub unreadable: Vec<Wish>,
}

impl Stage {
    /// How many moments of this kind there were in this life.
    pub fn seen(&self, moment: &str) -> u64 {
        self.seen.get(moment).copied().unwrap_or(0)
    }
}

/// When nothing is left to happen, tasks are asked so often whether they have something for one another.
const IDLE_MAX: u32 = 200;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The hash of the trace.
    pub hash: u64,
    /// Events in the trace.
    pub events: u64,
    /// What was exercised.
    pub counters: Counters,
    /// What went wrong, if anything did.
    pub violation: Option<Violation>,
    /// Durable steps that were made by the end of each life.
    pub steps: Vec<u64>,
}

/// How one life ended.
enum End {
    Clean,
    Crash(Crash),
    Wrong(Violation),
}

/// One run.
pub struct Sim {
    /// Disks, time, memory.
    pub world: World,
    /// Shared with the tasks.
    pub stage: Rc<RefCell<Stage>>,
    /// One of the shards takes what comes for it much later than the others.
    pub busy_shard: bool,
    rng: Rng,
}

/// How the process is to end, decided when it starts.
#[derive(Clone, Copy, Debug)]
pub enum Doom {
    /// By itself.
    Clean,
    /// So many nanoseconds after its start, unless it has ended.
    After(u64, Crash),
    /// So many durable steps after its start, unless it has ended.
    AtStep(u64, Crash),
    /// When the administrator has begun this for the so-manieth time, so many nanoseconds later, unless it has ended.
    Within(&'static str, u64, u64, Crash),
}

impl Sim {
    /// A run without disks and arrays.
    pub fn new(seed: u64, trace: Trace) -> Sim {
        let mut rng = Rng::new(seed);
        let world = World::new(rng.fork(), trace, MEMORY_BYTES);
        let stage = Stage {
            oracle: Oracle::default(),
            workload: Workload::new(rng.fork()),
            arrays: Vec::new(),
            labelled: Vec::new(),
            mirrors: Vec::new(),
            jobs: JobList::default(),
            rot: Rot::default(),
            lost: BTreeSet::new(),
            spawned: Vec::new(),
            reopening: Vec::new(),
            label_disks: Vec::new(),
            levels: vec![Level::Concat, Level::Raid0],
            serial: 0,
            had_faults: false,
            phase: "",
            begun: 0,
            violation: None,
            counters: Counters::default(),
            check_drained: true,
            notes: Vec::new(),
            pull: Vec::new(),
            half: None,
            growth: None,
            enlarge: Vec::new(),
            spreading: Vec::new(),
            enlarged: BTreeSet::new(),
            half_taken: BTreeSet::new(),
            compare: Vec::new(),
            moments: Vec::new(),
            seen: BTreeMap::new(),
            promoted: BTreeSet::new(),
            spoil: Vec::new(),
            at_freeze: Vec::new(),
            unreadable: Vec::new(),
        };
        Sim { world, stage: Rc::new(RefCell::new(stage)), busy_shard: false, rng }
    }

    /// The run's own source of chance.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Puts a disk on the table. Returns its number.
    pub fn add_disk(&mut self, size_bytes: u64, junk: bool, profile: Profile) -> usize {
        let number = self.world.disks.len();
        self.world.disks.push(SimDisk::new(number as u64, size_bytes, junk, profile));
        number
    }

    /// Runs one life after the other: those in `dooms`, then a last one without faults, in which
    /// everything that is required must be there. `plot` is told how the life is to end, but for the last one.
    pub fn run(mut self, dooms: &[Doom], plot: impl Fn(&mut Rng, Option<Doom>) -> Plot) -> Outcome {
        let (mut violation, mut steps) = (None, Vec::new());
        for life in 0..=dooms.len() {
            let last = life == dooms.len();
            if last {
                self.repair_all();
            }
            let doom = dooms.get(life).copied();
            let plot = plot(&mut self.rng, doom);
            let end = self.life(doom.unwrap_or(Doom::Clean), plot);
            steps.push(self.world.steps);
            if let End::Wrong(why) = end {
                violation = Some(why);
                break;
            }
            self.bury(&end);
            if let Some(why) = self.find_strays() {
                violation = Some(why);
                break;
            }
        }
        if let Some(why) = &violation {
            self.world.note(format_args!("VIOLATION: {why}"));
        }
        self.world.counters.merge(&self.stage.borrow().counters);
        let counters = std::mem::take(&mut self.world.counters);
        Outcome { hash: self.world.trace.hash(), events: self.world.trace.events(), counters, violation, steps }
    }

    fn repair_all(&mut self) {
        for disk in &mut self.world.disks {
            disk.profile = disk.profile.repaired();
            disk.gone = false;
            disk.heal();
        }
    }

    /// What the end of a process does to disks and to what may be expected of them.
    fn bury(&mut self, end: &End) {
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
        stage.half = None;
        stage.compare.clear();
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
            mirror.copy_or_restore(&mut self.world, &mut self.rng);
            // What a drill spoils is well again: it has had its time.
            if let Some(after) = mirror.script.pop_front() {
                let role = mirror.disks.iter().position(|disk| *disk == mirror.victims[0]);
                let promoted = role.is_some_and(|role| promoted.contains(&(role as u16)));
                for disk in mirror.disks.iter().chain(&mirror.others) {
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
    }

    /// On disks with labels, what belongs neither to a label nor to data is nobody's to write: it is as it was.
    fn find_strays(&self) -> Option<Violation> {
        self.stage.borrow().label_disks.iter().find_map(|number| {
            let disk = &self.world.disks[*number];
            let places = Places::for_device(disk.size_bytes()).expect("a disk that has room for labels");
            let data = places.data.start..places.data.start + places.data.bytes;
            let owned = |at: u64| at == places.label_start || at == places.copy_start || data.contains(&at);
            let why = |at| format!("disk {number} was changed at {at}, where neither labels nor data are");
            disk.first_stray(owned).map(|at| Violation(why(at)))
        })
    }

    /// One life of the process.
    fn life(&mut self, doom: Doom, plot: Plot) -> End {
        // Every disk that is there becomes a leaf, in any order.
        let mut order: Vec<usize> = (0..self.world.disks.len()).filter(|d| !self.world.disks[*d].gone).collect();
        self.rng.shuffle(&mut order);
        self.world.leaves = order;
        let sizes = self.world.leaves.iter().map(|d| self.world.disks[*d].size_bytes()).collect();
        let leaf_of: BTreeMap<usize, LeafId> =
            self.world.leaves.iter().enumerate().map(|(l, d)| (*d, LeafId(l as u32))).collect();
        let shards = self.rng.between(if self.busy_shard { 2 } else { 1 }, 3) as u16;
        let limits = Limits {
            slots: *self.rng.pick(&[4, 16, 256]),
            devices: 16,
            range_table_bits: self.rng.between(6, 10) as u32,
        };
        let leaves = &self.world.leaves;
        let what = format!("a life with {shards} shards, {limits:?}, leaves {leaves:?}, {doom:?}");
        self.world.note(format_args!("{what}"));
        let mut host = Host::new(shards, &limits, &mut self.world, self.rng.fork());
        if self.busy_shard {
            host.make_busy();
        }
        let port = Port::new(sizes);
        let mut tasks = Tasks::default();
        let task = plot.run(port.clone(), Rc::clone(&self.stage), leaf_of, shards);
        let done = tasks.spawn(task);
        let how = match doom {
            Doom::Clean => None,
            Doom::Within(.., how) => Some(how),
            Doom::After(ns, how) => {
                self.world.after(ns, Happening::CrashPoint);
                Some(how)
            }
            Doom::AtStep(steps, how) => {
                self.world.crash_at_step = Some(self.world.steps + steps);
                Some(how)
            }
        };
        let mut within = if let Doom::Within(phase, nth, ns, _) = doom { Some((phase, nth, ns)) } else { None };
        let (mut seen, mut idle) = (0, 0);
        let mut run = Run { host, port, publishing: Vec::new(), world: &mut self.world, stage: &self.stage };
        loop {
            self.stage.borrow_mut().had_faults = run.world.had_faults();
            run.port.set_now(run.world.now_ns);
            tasks.poll();
            for task in std::mem::take(&mut self.stage.borrow_mut().spawned) {
                tasks.add(task);
            }
            if let Some(why) = run.stage.borrow_mut().violation.take() {
                return End::Wrong(why);
            }
            let (phase, begun) = (run.stage.borrow().phase, run.stage.borrow().begun);
            if let Some((wanted, nth, ns)) = &mut within
                && phase == *wanted
                && begun != seen
            {
                (seen, *nth) = (begun, *nth - 1);
                if *nth == 0 {
                    run.world.after(*ns, Happening::CrashPoint);
                    within = None;
                }
            }
            let told = std::mem::take(&mut run.stage.borrow_mut().moments);
            run.world.moments.extend(told);
            if phase == "filling a member" && run.world.moments.contains(&"writing a label") {
                run.world.moments.push("promoting");
            }
            for moment in std::mem::take(&mut run.world.moments) {
                *run.stage.borrow_mut().seen.entry(moment).or_insert(0) += 1;
                // A start writes labels in any case.
                let ordinary =
                    moment == "writing a label" && matches!(phase, "starting a mirror" | "creating a mirror");
                if let Some((wanted, nth, ns)) = &mut within
                    && moment == *wanted
                    && !ordinary
                {
                    *nth -= 1;
                    if *nth == 0 {
                        run.world.after(*ns, Happening::CrashPoint);
                        within = None;
                    }
                }
            }
            // A process cannot exit while the kernel has I/O of it.
            if done.is_done() && run.world.in_flight() == 0 {
                run.world.crash_at_step = None;
                if !run.host.is_calm() {
                    return End::Wrong(Violation("the process has ended, but a slot or a range is in use".into()));
                }
                return End::Clean;
            }
            run.serve_tasks();
            let Some(happening) = run.world.next_happening() else {
                // Tasks may have something for one another.
                idle += 1;
                if done.is_done() || idle < IDLE_MAX {
                    continue;
                }
                let why = format!("nothing is left to happen, but the process waits ({})", run.stage.borrow().phase);
                return End::Wrong(Violation(why));
            };
            idle = 0;
            if let (Happening::CrashPoint, Some(how)) = (&happening, how) {
                run.world.crash_at_step = None;
                return End::Crash(how);
            }
            if let Err(why) = run.happens(happening) {
                return End::Wrong(why);
            }
        }
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
            label.array.uuid == stage.labelled[array].uuid && label.member.places.copy_start == of.size_bytes() - 4096
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

/// One life, while it lasts.
struct Run<'a> {
    host: Host,
    port: Port,
    /// Which task's wish each publish is, by its number.
    publishing: Vec<u64>,
    world: &'a mut World,
    stage: &'a Rc<RefCell<Stage>>,
}

impl Run<'_> {
    /// Starts what the tasks want.
    fn serve_tasks(&mut self) {
        for (id, wanted) in self.port.take_wanted() {
            match self.world.submit_meta(id, wanted) {
                None => self.world.counters.add("labels", "i/o"),
                Some(Wanted::Sleep(ns)) => self.world.after(ns, Happening::MetaDone(id, Ok(Vec::new()))),
                Some(Wanted::Publish(device, layout)) => {
                    let layout: Option<Arc<_>> = layout;
                    self.publishing.push(id);
                    self.host.publish(self.world, id, device, layout.as_ref());
                }
                Some(Wanted::IsIdle(leaf)) => {
                    let busy = self.world.is_busy(leaf);
                    let answer = if busy { Err(LeafError::of(ErrorKind::Busy)) } else { Ok(Vec::new()) };
                    self.port.answer(id, answer);
                }
                Some(Wanted::Reopen(leaf)) => self.stage.borrow_mut().reopening.push((id, leaf)),
                Some(Wanted::Requests(device)) => {
                    self.port.answer(id, Ok(self.host.requests(device).to_le_bytes().to_vec()));
                }
                Some(Wanted::Freeze(device)) => {
                    self.world.moments.push("freezing");
                    for (disk, spoil) in std::mem::take(&mut self.stage.borrow_mut().at_freeze) {
                        spoil.apply(self.world, disk);
                    }
                    self.host.freeze(self.world, id, device);
                }
                Some(Wanted::Sync(part)) => {
                    self.world.moments.push("copying");
                    self.host.sync(self.world, id, part);
                }
                Some(Wanted::Call(device, home, call)) => {
                    match call {
                        RegionCall::Settle(_) => self.world.moments.push("settling"),
                        RegionCall::Clear(_) => {
                            self.world.moments.push("clearing");
                            self.world.counters.add("keepers", "clearing");
                        }
                        RegionCall::Close(_) | RegionCall::Rewrite | RegionCall::Retire => {}
                    }
                    self.host.call(self.world, id, device, home.0, call);
                }
                Some(other) => unreachable!("not served: {other:?}"),
            }
        }
        for (device, note) in self.port.take_notes() {
            let kind = crate::plot::mirrors::kind_of(&note);
            self.world.counters.add("keepers", kind);
            self.world.moments.push(kind);
            self.world.note(format_args!("keeper of device {}: {note:?}", device.0));
            match &note {
                Note::Dropped(roles) => {
                    let mut stage = self.stage.borrow_mut();
                    stage.lost.insert(device);
                    stage.rows_whole(false);
                    stage.promoted.retain(|role| !roles.contains(role));
                }
                Note::Grown(_, after) => {
                    let Stage { mirrors, oracle, .. } = &mut *self.stage.borrow_mut();
                    for mirror in mirrors {
                        if let Some(well) = mirror.well {
                            mirror.has_grown(*after, self.world.disks[well].size_bytes(), oracle);
                        }
                    }
                }
                Note::Replaced(role, leaf) => {
                    let successor = self.world.leaves[leaf.0 as usize];
                    let mut stage = self.stage.borrow_mut();
                    // Where its copies are is not what was seen when it was whole.
                    stage.lost.insert(device);
                    for mirror in &mut stage.mirrors {
                        if mirror.well.is_some() && mirror.well == mirror.disks.get(usize::from(*role)).copied() {
                            mirror.well = Some(successor);
                        }
                    }
                }
                Note::InSync(role) => {
                    let mut stage = self.stage.borrow_mut();
                    stage.promoted.insert(*role);
                    stage.rows_whole(true);
                }
                Note::Resynced
                    if self.stage.borrow().mirrors.iter().any(|m| m.has_lost(&self.stage.borrow().oracle)) =>
                {
                    self.world.counters.add("keepers", "resynced but for what cannot be read");
                }
                _ => {}
            }
            if let Note::Job(info) = &note
                && let Err(why) = self.stage.borrow_mut().jobs.told(device, info)
            {
                self.stage.borrow_mut().violation.get_or_insert(why);
            }
            let careless = self.stage.borrow().mirrors.iter().any(|m| m.well.is_none());
            let half = self.stage.borrow().half == Some(device);
            let excused = (careless || half) && self.world.had_faults();
            if matches!(note, Note::Failed) && !excused {
                let why = Violation(format!("device {} has failed, and one member of it is well", device.0));
                self.stage.borrow_mut().violation.get_or_insert(why);
            }
        }
        let mut stage = self.stage.borrow_mut();
        for note in stage.notes.drain(..) {
            self.world.note(format_args!("admin: {note}"));
        }
        {
            let Stage { rot, oracle, violation, .. } = &mut *stage;
            if let Err(why) = rot.serve(self.world, oracle) {
                violation.get_or_insert(why);
            }
        }
        for copies in std::mem::take(&mut stage.compare) {
            self.world.counters.add("copies", "compared");
            if let Err(why) = copies.judge(self.world, &mut stage.oracle) {
                stage.violation.get_or_insert(why);
            }
        }
        let world = &mut *self.world;
        let port = &self.port;
        stage.reopening.retain(|(id, leaf)| {
            let done = world.reopen(*leaf);
            if done {
                port.answer(*id, Ok(Vec::new()));
            }
            !done
        });
        let host = &self.host;
        stage.spreading.retain(|(device, size_bytes)| !host.offers(*device, *size_bytes));
        for (leaf, size_bytes) in std::mem::take(&mut stage.enlarge) {
            let disk = self.world.leaves[leaf.0 as usize];
            self.world.note(format_args!("disk {disk} has {size_bytes} bytes now"));
            self.world.disks[disk].enlarge(size_bytes);
            self.port.set_size(leaf, size_bytes);
            stage.enlarged.insert(disk);
        }
        for disk in std::mem::take(&mut stage.pull) {
            self.world.pull(disk);
        }
        for (disk, spoil) in std::mem::take(&mut stage.spoil) {
            spoil.apply(self.world, disk);
        }
        for wish in std::mem::take(&mut stage.unreadable) {
            make_unreadable(&wish, self.world, &mut stage.oracle);
        }
        stage.workload.arm(self.world);
    }

    fn happens(&mut self, happening: Happening) -> Result<(), Violation> {
        let (world, host) = (&mut *self.world, &mut self.host);
        match happening {
            Happening::LeafDone(shard, cookie, result) => host.leaf_done(world, shard, cookie, result),
            Happening::LeafLate(shard, cookie) => host.leaf_late(world, shard, cookie),
            Happening::LeafReturned(shard, cookie) => host.leaf_returned(world, shard, cookie),
            Happening::MetaDone(id, answer) => self.port.answer(id, answer),
            Happening::Deliver(from, to) => host.deliver(world, from, to),
            Happening::Publish(shard) => host.take_mail(world, shard),
            Happening::Wake(client) => {
                let mut stage = self.stage.borrow_mut();
                let Stage { workload, oracle, .. } = &mut *stage;
                workload.wake(client as usize, world, host, oracle);
            }
            Happening::CrashPoint => {}
        }
        self.listen()
    }

    /// Passes on what the shards have to tell.
    fn listen(&mut self) -> Result<(), Violation> {
        while let Some(told) = self.host.told.pop_front() {
            let mut stage = self.stage.borrow_mut();
            let Stage { workload, oracle, .. } = &mut *stage;
            match told {
                Told::Done(completion) => workload.done(&completion, self.world, oracle)?,
                Told::Released(tag) => workload.release(tag, self.world),
                Told::Drained(number) | Told::Frozen(number) => self.port.answer(number, Ok(Vec::new())),
                Told::Called(number) => {
                    self.world.moments.push("regions called");
                    self.port.answer(number, Ok(Vec::new()));
                }
                Told::Synced(number, result) => self.port.answer_sync(number, result),
                Told::Trouble(trouble) => {
                    self.world.moments.push("trouble of a member");
                    self.port.tell_trouble(trouble);
                }
            }
        }
        Ok(())
    }
}
