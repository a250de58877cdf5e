//! One run: a sequence of lives of the process, each ended by a crash or by a clean stop.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use braid_engine::Limits;
use braid_engine::io::LeafId;

use crate::acts::PlannedEnd;
use crate::counters::Counters;
use crate::host::Host;
use crate::meta::{Port, Tasks};
use crate::oracle::Violation;
use crate::rng::Rng;
use crate::run_state::RunState;
use crate::scenario::LifePlan;
use crate::serve::Run;
use crate::trace::Trace;
use crate::workload::Workload;
use crate::world::{Crash, World, WorldEvent};

/// Size in bytes of the simulated memory.
const MEMORY_BYTES: usize = 40 << 20;

/// Number of consecutive polls of all tasks while no event is queued: a poll of one task may make another task ready. A
/// task that still waits after that waits for ever, which is a violation.
const IDLE_MAX: u32 = 200;
/// Maximum number of events that the process handles in one life, far above what any life needs. Exceeding it is a
/// violation: the life does not end.
const TURNS_MAX: u64 = 50_000_000;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The hash of the trace.
    pub hash: u64,
    /// Events in the trace.
    pub events: u64,
    /// What was exercised.
    pub counters: Counters,
    /// The violation, if there is one.
    pub violation: Option<Violation>,
    /// At the end of each life, the number of durable steps since the start of the run ([`World::steps`]).
    pub steps: Vec<u64>,
}

/// How a life ended.
pub(crate) enum LifeEnd {
    Clean,
    Crash(Crash),
    Wrong(Violation),
}

/// One run.
pub struct Sim {
    /// Disks, time and memory.
    pub world: World,
    /// Shared with the tasks.
    pub state: Rc<RefCell<RunState>>,
    /// One of the shards processes its messages much later than the others.
    pub busy_shard: bool,
    /// The moment or phase at which the crash of this life is aimed ([`PlannedEnd::Within`]). Set when that moment has
    /// come for the n-th time and the crash is scheduled.
    pub(crate) aimed: Option<&'static str>,
    pub(crate) rng: Rng,
}

impl Sim {
    /// Creates a run without disks and arrays.
    pub fn new(seed: u64, trace: Trace) -> Sim {
        let mut rng = Rng::new(seed);
        let world = World::new(rng.fork(), trace, MEMORY_BYTES);
        let state = RunState::new(Workload::new(rng.fork()));
        Sim { world, state: Rc::new(RefCell::new(state)), busy_shard: false, aimed: None, rng }
    }

    /// Returns the run's own source of randomness.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Runs the lives: one for each of `dooms`, then a last one without faults, in which all required data must be
    /// readable. `plan_life` receives how the life is to end; `None` for the last one.
    pub fn run(
        mut self,
        dooms: &[PlannedEnd],
        plan_life: impl Fn(&mut Rng, Option<PlannedEnd>) -> LifePlan,
    ) -> Outcome {
        let (mut violation, mut steps) = (None, Vec::new());
        for life in 0..=dooms.len() {
            let last = life == dooms.len();
            if last {
                self.repair_all();
                self.put_back();
            }
            let doom = dooms.get(life).copied();
            let plan = plan_life(&mut self.rng, doom);
            let end = self.life(doom.unwrap_or(PlannedEnd::Clean), plan);
            steps.push(self.world.steps);
            if let LifeEnd::Wrong(why) = end {
                violation = Some(why);
                break;
            }
            self.end_life(&end);
            if let Some(why) = self.find_stray_write() {
                violation = Some(why);
                break;
            }
        }
        if let Some(why) = &violation {
            self.world.note(format_args!("VIOLATION: {why}"));
        }
        self.world.counters.merge(&self.state.borrow().counters);
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

    /// Runs one life of the process.
    fn life(&mut self, doom: PlannedEnd, plan: LifePlan) -> LifeEnd {
        // Every present disk becomes a leaf, in random order.
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
        let task = plan.run(port.clone(), Rc::clone(&self.state), leaf_of, shards);
        let done = tasks.spawn(task);
        let how = match doom {
            PlannedEnd::Clean => None,
            PlannedEnd::Within(.., how) => Some(how),
            PlannedEnd::After(ns, how) => {
                self.world.after(ns, WorldEvent::CrashPoint);
                Some(how)
            }
            PlannedEnd::AtStep(steps, how) => {
                self.world.crash_at_step = Some(self.world.steps + steps);
                Some(how)
            }
        };
        self.aimed = None;
        let mut within = if let PlannedEnd::Within(phase, nth, ns, _) = doom { Some((phase, nth, ns)) } else { None };
        let (mut seen, mut idle, mut turns) = (0, 0, 0u64);
        let mut run = Run {
            host,
            port,
            publishing: Vec::new(),
            quiescing: Vec::new(),
            world: &mut self.world,
            state: &self.state,
        };
        loop {
            self.state.borrow_mut().had_faults = run.world.had_faults();
            run.port.set_now(run.world.now_ns);
            tasks.poll();
            for task in std::mem::take(&mut self.state.borrow_mut().spawned) {
                tasks.add(task);
            }
            if let Some(why) = run.state.borrow_mut().violation.take() {
                return LifeEnd::Wrong(why);
            }
            let (phase, begun) = (run.state.borrow().phase, run.state.borrow().begun);
            if let Some((wanted, nth, ns)) = &mut within
                && phase == *wanted
                && begun != seen
            {
                (seen, *nth) = (begun, *nth - 1);
                if *nth == 0 {
                    run.world.after(*ns, WorldEvent::CrashPoint);
                    self.aimed = Some(wanted);
                    within = None;
                }
            }
            let moments = std::mem::take(&mut run.state.borrow_mut().moments);
            run.world.moments.extend(moments);
            if phase == "rebuilding a member" && run.world.moments.contains(&"writing a label") {
                run.world.moments.push("promoting");
            }
            for moment in std::mem::take(&mut run.world.moments) {
                *run.state.borrow_mut().seen.entry(moment).or_insert(0) += 1;
                // A start writes labels in any case.
                let ordinary =
                    moment == "writing a label" && matches!(phase, "starting a mirror" | "creating a mirror");
                if let Some((wanted, nth, ns)) = &mut within
                    && moment == *wanted
                    && !ordinary
                {
                    *nth -= 1;
                    if *nth == 0 {
                        run.world.after(*ns, WorldEvent::CrashPoint);
                        self.aimed = Some(wanted);
                        within = None;
                    }
                }
            }
            // The kernel lets a process exit only when none of the I/Os that it submitted is in flight.
            if done.is_done() && run.world.in_flight() == 0 {
                run.world.crash_at_step = None;
                if !run.host.is_calm() {
                    return LifeEnd::Wrong(Violation("the process has ended, but a slot or a range is in use".into()));
                }
                return LifeEnd::Clean;
            }
            run.serve_tasks();
            let Some(happening) = run.world.next_event() else {
                // A poll of one task may have made another task ready.
                idle += 1;
                if done.is_done() || idle < IDLE_MAX {
                    continue;
                }
                let why = format!("nothing is left to happen, but the process waits ({})", run.state.borrow().phase);
                return LifeEnd::Wrong(Violation(why));
            };
            idle = 0;
            turns += 1;
            if turns > TURNS_MAX {
                let why = format!("the life does not end: something goes on for ever ({})", run.state.borrow().phase);
                return LifeEnd::Wrong(Violation(why));
            }
            if let (WorldEvent::CrashPoint, Some(how)) = (&happening, how) {
                run.world.crash_at_step = None;
                return LifeEnd::Crash(how);
            }
            if let Err(why) = run.handle_event(happening) {
                return LifeEnd::Wrong(why);
            }
        }
    }
}
