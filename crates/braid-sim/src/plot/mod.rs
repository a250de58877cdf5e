//! What the administrator does in one life: starts what there is, lets clients work, changes things
//! under them, and stops in the end.

mod apart;
mod checks;
pub mod drills;
mod grow;
pub mod journal;
pub mod journal_drills;
mod labels;
mod leases;
pub mod liken;
mod members;
pub mod mirrors;
mod replace;
pub mod row_drills;
pub mod script;
mod starting;
pub mod subject;
mod width;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use braid_engine::io::{DeviceId, LeafId, MetaIo};
use braid_engine::keeper::EngineIo;

use crate::arrays::Trial;
use crate::meta::Port;
use crate::oracle::Violation;
use crate::rng::Rng;
use crate::shrink::Bounds;
use crate::stage::Stage;
use drills::Step;

/// One array and what is known of it across lives.
pub struct ArrayState {
    /// What it is.
    pub trial: Trial,
    /// The oracle's number; `None` until its members have been made ready.
    pub number: Option<u64>,
}

impl ArrayState {
    /// The disks that it stands on.
    pub fn disks(&self) -> &[usize] {
        &self.trial.disks
    }
}

/// What may happen in one life.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Things that the administrator does before the stop.
    pub actions: u32,
    /// Longest pause between two of them, in nanoseconds.
    pub pause_ns_max: u64,
    /// Clients of an array at most.
    pub clients_max: u64,
    /// Requests of a client at most.
    pub requests_max: u64,
    /// Disks may be pulled.
    pub pulls: bool,
    /// Somebody reads everything as soon as it is served.
    pub reads_all: bool,
    /// Clients ask for flushes; else what becomes durable does so by the engine alone.
    pub flushes: bool,
    /// What the administrator likes to do best: a crash is to come in the middle of it.
    pub aim: Option<&'static str>,
}

impl Habits {
    /// Any life.
    pub fn draw(rng: &mut Rng, pulls: bool) -> Habits {
        Habits {
            actions: rng.below(8) as u32,
            pause_ns_max: rng.between(1, 20_000_000),
            clients_max: rng.between(1, 5),
            requests_max: rng.between(1, 120),
            pulls: pulls && rng.below(3) == 0,
            reads_all: rng.coin(),
            flushes: true,
            aim: None,
        }
    }

    /// A life with few requests, most of which a crash finds in flight.
    pub fn draw_short(rng: &mut Rng, pulls: bool) -> Habits {
        Habits {
            actions: rng.below(4) as u32,
            pause_ns_max: rng.between(1, 2_000_000),
            clients_max: rng.between(1, 4),
            requests_max: rng.between(1, 20),
            pulls: pulls && rng.below(3) == 0,
            reads_all: rng.below(4) > 0,
            flushes: true,
            aim: None,
        }
    }

    /// A life of redundant arrays, whose members come and go.
    pub fn draw_mirrors(rng: &mut Rng, pulls: bool) -> Habits {
        let actions = rng.below(10) as u32;
        Habits { actions, requests_max: rng.between(1, 60), ..Habits::draw_short(rng, pulls) }
    }

    /// A life with much administration and little data.
    pub fn draw_busy_admin(rng: &mut Rng, pulls: bool) -> Habits {
        Habits {
            actions: rng.between(2, 16) as u32,
            pause_ns_max: rng.between(1, 1_000_000),
            clients_max: 1,
            requests_max: rng.between(1, 10),
            pulls: pulls && rng.below(3) == 0,
            reads_all: rng.coin(),
            flushes: true,
            aim: None,
        }
    }
}

/// The course of one life.
pub struct Plot {
    /// What may happen; `None` for the last life, in which everything is read back.
    pub habits: Option<Habits>,
    /// Chance, for this life.
    pub rng: Rng,
    /// A drill that is followed instead, and what it is cut down to.
    pub steps: Option<(Vec<Step>, Bounds)>,
}

impl Plot {
    /// The task that is the administrator of this life.
    pub fn run(
        self,
        port: Port,
        stage: Rc<RefCell<Stage>>,
        leaves: BTreeMap<usize, LeafId>,
        shards: u16,
    ) -> impl Future<Output = ()> + 'static {
        let admin = Admin {
            port,
            stage,
            leaves,
            shards,
            last: self.habits.is_none(),
            rng: self.rng,
            steps: self.steps,
            running: BTreeMap::new(),
            serving: BTreeMap::new(),
            kept: BTreeMap::new(),
            given_up: BTreeSet::new(),
        };
        admin.live(self.habits)
    }
}

/// An array that serves.
struct Running {
    id: DeviceId,
    order: Vec<LeafId>,
}

struct Admin {
    port: Port,
    stage: Rc<RefCell<Stage>>,
    leaves: BTreeMap<usize, LeafId>,
    shards: u16,
    last: bool,
    rng: Rng,
    steps: Option<(Vec<Step>, Bounds)>,
    running: BTreeMap<usize, Running>,
    serving: BTreeMap<usize, labels::Serving>,
    /// Redundant arrays that serve.
    kept: BTreeMap<usize, starting::Kept>,
    /// Did not start: a write of the attempt may still land, so there is no second one in this life.
    given_up: BTreeSet<usize>,
}

impl Admin {
    async fn live(mut self, habits: Option<Habits>) {
        self.phase("starting");
        let mut arrays: Vec<usize> = (0..self.stage.borrow().arrays.len()).collect();
        self.rng.shuffle(&mut arrays);
        for array in &arrays {
            self.start(*array, habits).await;
        }
        self.assemble(habits).await;
        self.start_mirrors(habits).await;
        self.phase("serving");
        if let (Some((steps, bounds)), Some(habits)) = (self.steps.clone(), habits) {
            self.follow(&steps, bounds, habits).await;
        } else if let Some(habits) = habits {
            for _ in 0..habits.actions {
                self.port.sleep(self.rng.between(1, habits.pause_ns_max)).await;
                self.act(habits).await;
                self.phase("serving");
            }
        }
        self.work_done(habits.is_none()).await;
        self.phase("stopping");
        for array in arrays {
            self.stop(array).await;
        }
        let serving: Vec<usize> = self.serving.keys().copied().collect();
        for array in serving {
            self.stop_labelled(array).await;
        }
        let kept: Vec<usize> = self.kept.keys().copied().collect();
        for array in kept {
            self.stop_mirror(array).await;
        }
    }

    /// A number for a device that no device has which serves.
    fn new_device(&self) -> DeviceId {
        let used = |id: &u32| {
            self.running.values().any(|r| r.id.0 == *id)
                || self.serving.values().any(|s| s.id.0 == *id)
                || self.kept.values().any(|k| k.id.0 == *id)
        };
        DeviceId((0..).find(|id| !used(id)).expect("fewer arrays than numbers"))
    }

    fn phase(&self, phase: &'static str) {
        let mut stage = self.stage.borrow_mut();
        stage.phase = phase;
        stage.begun += 1;
        stage.notes.push(phase.to_owned());
    }

    fn count(&self, kind: &str) {
        let mut stage = self.stage.borrow_mut();
        stage.counters.add("actions", kind);
        stage.notes.push(format!("done: {kind}"));
    }

    async fn until(&self, mut holds: impl FnMut(&Stage) -> bool) {
        std::future::poll_fn(|_| if holds(&self.stage.borrow()) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Waits until the clients have had enough.
    async fn work_done(&mut self, last: bool) {
        self.until(|stage| {
            let labelled = stage.labelled.iter().filter_map(|l| l.number);
            let mirrors = stage.mirrors.iter().filter_map(|m| m.number);
            let numbers: Vec<u64> =
                stage.arrays.iter().filter_map(|a| a.number).chain(labelled).chain(mirrors).collect();
            numbers.into_iter().all(|n| stage.workload.is_finished(n))
        })
        .await;
        let started = self.running.len();
        let wanted = self.stage.borrow().arrays.len();
        if last && started < wanted {
            let why = format!("in a world without faults only {started} of {wanted} arrays start");
            self.stage.borrow_mut().violation = Some(Violation(why));
        }
        if last {
            self.judge_end();
            self.judge_mirrors();
        }
    }

    /// One thing that an administrator might do.
    async fn act(&mut self, habits: Habits) {
        if self.grow_something(habits).await || self.move_some_journal(habits).await {
            return;
        }
        if self.change_some_width().await {
            return;
        }
        if !self.stage.borrow().mirrors.is_empty() {
            return self.act_on_mirrors(habits).await;
        }
        if let Some(aim) = habits.aim
            && self.rng.coin()
        {
            return self.act_on(aim, habits).await;
        }
        let count = self.stage.borrow().arrays.len();
        if count == 0 && !self.uses_labels() {
            return;
        }
        if count == 0 || (self.uses_labels() && self.rng.coin()) {
            return self.act_on_labels(habits).await;
        }
        let array = self.rng.index(count);
        match self.rng.below(if habits.pulls { 7 } else { 5 }) {
            0 | 1 => self.change_layout(array).await,
            2 => {
                self.stop(array).await;
                self.start(array, Some(habits)).await;
            }
            3 => self.replace(array, habits).await,
            4 => self.connect(array, Some(habits)),
            _ => {
                let disk = *self.rng.pick(self.stage.borrow().arrays[array].disks());
                self.count("pull");
                self.stage.borrow_mut().pull.push(disk);
            }
        }
    }

    /// Does just this.
    async fn act_on(&mut self, aim: &'static str, habits: Habits) {
        let count = self.stage.borrow().arrays.len();
        let some = self.rng.index(count.max(1));
        let serving = self.serving.keys().next().copied();
        match (aim, serving) {
            ("replacing", _) if count > 0 => self.replace(some, habits).await,
            ("changing a layout", _) if count > 0 => self.change_layout(some).await,
            ("renaming", Some(index)) => self.rename(index).await,
            ("deleting", Some(index)) => self.delete(index).await,
            ("assembling" | "stopping", Some(index)) => {
                self.stop_labelled(index).await;
                self.restart(index, habits).await;
            }
            ("stopping", None) if count > 0 => {
                self.stop(some).await;
                self.start(some, Some(habits)).await;
            }
            _ => self.create(habits).await,
        }
    }

    /// Brings one array up, if all its disks are there and answer.
    async fn start(&mut self, array: usize, habits: Option<Habits>) {
        if self.running.contains_key(&array) || self.given_up.contains(&array) {
            return;
        }
        let (trial, number) = {
            let stage = self.stage.borrow();
            (stage.arrays[array].trial.clone(), stage.arrays[array].number)
        };
        let Some(order) = self.order(&trial) else { return };
        if number.is_none() {
            self.made(array, &trial);
        }
        if trial.start(&self.port, &order).await.is_err() {
            self.given_up.insert(array);
            return;
        }
        self.count("start");
        let id = self.new_device();
        self.running.insert(array, Running { id, order });
        self.publish(array).await;
        let number = self.stage.borrow().arrays[array].number.expect("a started array has been made");
        self.connect_to(number, id, habits);
    }

    fn made(&self, array: usize, trial: &Trial) {
        let blocks = trial.blocks(|d| self.port.size_bytes(self.leaves[&d]));
        let mut stage = self.stage.borrow_mut();
        let number = stage.oracle.device_made(trial.kind.name(), blocks);
        stage.arrays[array].number = Some(number);
    }

    fn order(&self, trial: &Trial) -> Option<Vec<LeafId>> {
        trial.disks.iter().map(|d| self.leaves.get(d).copied()).collect()
    }

    async fn publish(&mut self, array: usize) {
        let running = &self.running[&array];
        let sizes: Vec<u64> = running.order.iter().map(|l| self.port.size_bytes(*l)).collect();
        let version = self.port.new_version();
        let trial = self.stage.borrow().arrays[array].trial.clone();
        let layout = trial.layout(version, &running.order, &sizes);
        self.port.publish(running.id, Some(layout)).await;
    }

    fn connect(&mut self, array: usize, habits: Option<Habits>) {
        let Some(id) = self.running.get(&array).map(|r| r.id) else { return };
        let number = self.stage.borrow().arrays[array].number.expect("a started array has been made");
        self.connect_to(number, id, habits);
    }

    /// Connects clients; in the last life one that reads everything.
    fn connect_to(&mut self, number: u64, id: DeviceId, habits: Option<Habits>) {
        let mut stage = self.stage.borrow_mut();
        let Some(habits) = habits else {
            let shard = self.rng.below(u64::from(self.shards)) as u16;
            return stage.workload.connect_verifier(number, id, shard);
        };
        let blocks = stage.oracle.blocks(number);
        if habits.reads_all {
            stage.workload.connect_verifier(number, id, 0);
        }
        for _ in 0..self.rng.between(1, habits.clients_max) {
            let shard = self.rng.below(u64::from(self.shards)) as u16;
            let requests = self.rng.between(1, habits.requests_max) as u32;
            stage.workload.connect(number, id, shard, blocks, requests);
            if !habits.flushes {
                stage.workload.never_flush();
            }
        }
    }

    /// Publishes a new layout under load.
    async fn change_layout(&mut self, array: usize) {
        if !self.running.contains_key(&array) {
            return;
        }
        self.phase("changing a layout");
        self.count("change layout");
        self.publish(array).await;
    }

    /// Stops an array, whoever uses it.
    async fn stop(&mut self, array: usize) {
        let Some(running) = self.running.remove(&array) else { return };
        self.phase("stopping");
        self.count("stop");
        let number = self.stage.borrow().arrays[array].number.expect("a started array has been made");
        self.withdraw_device(number, running.id).await;
        for leaf in &running.order {
            // What is flushed is safe; what is not need not be.
            let _ = self.port.flush(*leaf).await;
        }
    }

    /// Takes a device away from its clients. On return nothing of it is in flight.
    async fn withdraw_device(&mut self, number: u64, id: DeviceId) {
        if self.rng.coin() {
            // Politely: the clients are told first.
            self.stage.borrow_mut().workload.stop(number);
        }
        self.stage.borrow_mut().workload.expect_stop(number);
        self.port.publish(id, None).await;
        let mut stage = self.stage.borrow_mut();
        stage.workload.stop(number);
        if stage.check_drained && !stage.workload.is_idle(number) {
            stage.violation = Some(Violation("drained, but a request of the old layout is in flight".into()));
        }
    }

    /// Stops an array and makes another on the same disks.
    async fn replace(&mut self, array: usize, habits: Habits) {
        self.stop(array).await;
        self.phase("replacing");
        self.count("replace");
        {
            let mut stage = self.stage.borrow_mut();
            let ArrayState { trial, number } = &mut stage.arrays[array];
            *trial = Trial::draw(trial.kind, trial.disks.clone(), &mut self.rng);
            if let Some(number) = number.take() {
                stage.oracle.device_deleted(number);
            }
        }
        self.start(array, Some(habits)).await;
    }
}
