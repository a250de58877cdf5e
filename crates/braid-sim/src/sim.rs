//! One run: lives of the process, one after the other, each ended by a crash or by a clean stop.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use braid_engine::Limits;
use braid_engine::io::LeafId;

use crate::counters::Counters;
use crate::disk::{Profile, SimDisk};
use crate::host::Host;
use crate::meta::{Port, Tasks};
use crate::oracle::Violation;
use crate::plot::Plot;
use crate::rng::Rng;
use crate::serve::Run;
use crate::stage::Stage;
use crate::trace::Trace;
use crate::workload::Workload;
use crate::world::{Crash, Happening, World};

/// Bytes of simulated memory.
const MEMORY_BYTES: usize = 40 << 20;

/// When nothing is left to happen, tasks are asked so often whether they have something for one another.
const IDLE_MAX: u32 = 200;
/// Far more turns of the loop than any life needs: somebody asks for ever, and nobody answers.
const TURNS_MAX: u64 = 50_000_000;

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
pub(crate) enum End {
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
    /// The moment at which the crash of this life was aimed, and that it has come.
    pub(crate) aimed: Option<&'static str>,
    pub(crate) rng: Rng,
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
        let stage = Stage::new(Workload::new(rng.fork()));
        Sim { world, stage: Rc::new(RefCell::new(stage)), busy_shard: false, aimed: None, rng }
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
                self.put_back();
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
        self.world.counters.add("lives", if shards == 1 { "of one shard" } else { "of several shards" });
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
        self.aimed = None;
        let mut within = if let Doom::Within(phase, nth, ns, _) = doom { Some((phase, nth, ns)) } else { None };
        let (mut seen, mut idle, mut turns) = (0, 0, 0u64);
        let mut run = Run {
            host,
            port,
            publishing: Vec::new(),
            quiescing: Vec::new(),
            world: &mut self.world,
            stage: &self.stage,
        };
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
                    self.aimed = Some(wanted);
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
                        self.aimed = Some(wanted);
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
            turns += 1;
            if turns > TURNS_MAX {
                let why = format!("the life does not end: something goes on for ever ({})", run.stage.borrow().phase);
                return End::Wrong(Violation(why));
            }
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
