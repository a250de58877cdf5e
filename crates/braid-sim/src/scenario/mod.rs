//! What the administrator does in one life: starts the arrays, lets clients work, performs actions under load, and
//! stops the arrays in the end.

pub mod catalog;
mod checks;
pub mod delta;
mod drawing;
mod grow;
pub mod journal;
pub mod journal_scenarios;
mod labels;
mod leases;
mod members;
pub mod mirror_scenarios;
pub mod parity_scenarios;
mod replace;
pub mod script;
mod split_brain;
mod starting;
mod width;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use braid_engine::EngineIo;
use braid_engine::io::{DeviceId, LeafId, MetaIo};

use crate::acts::Step;
use crate::arrays::{ArrayState, PlainArray};
use crate::bounds::Bounds;
use crate::meta::Port;
use crate::oracle::Violation;
use crate::rng::Rng;
use crate::run_state::RunState;

/// What may happen in one life.
#[derive(Clone, Copy, Debug)]
pub struct AdminHabits {
    /// Number of actions of the administrator before the stop.
    pub actions: u32,
    /// Longest pause between two actions, in nanoseconds.
    pub pause_ns_max: u64,
    /// Maximum number of clients of an array.
    pub clients_max: u64,
    /// Maximum number of requests of a client.
    pub requests_max: u64,
    /// Disks may be pulled.
    pub pulls: bool,
    /// A client reads everything as soon as an array is served.
    pub reads_all: bool,
    /// Clients send flushes; otherwise only the engine makes data durable.
    pub flushes: bool,
    /// The action that the administrator prefers: a crash is to interrupt it.
    pub aim: Option<&'static str>,
}

impl AdminHabits {
    /// Draws an ordinary life.
    pub fn draw(rng: &mut Rng, pulls: bool) -> AdminHabits {
        AdminHabits {
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

    /// Draws a life with few requests, most of which a crash finds in flight.
    pub fn draw_short(rng: &mut Rng, pulls: bool) -> AdminHabits {
        AdminHabits {
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

    /// Draws a life of redundant arrays, whose members fail and return.
    pub fn draw_mirrors(rng: &mut Rng, pulls: bool) -> AdminHabits {
        let actions = rng.below(10) as u32;
        AdminHabits { actions, requests_max: rng.between(1, 60), ..AdminHabits::draw_short(rng, pulls) }
    }

    /// Draws a life with many administrative actions and little data.
    pub fn draw_busy_admin(rng: &mut Rng, pulls: bool) -> AdminHabits {
        AdminHabits {
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
pub struct LifePlan {
    /// What may happen; `None` for the last life, in which everything is read back.
    pub habits: Option<AdminHabits>,
    /// Randomness for this life.
    pub rng: Rng,
    /// The steps of a scenario, which the administrator follows instead of drawing actions, and their limits.
    pub steps: Option<(Vec<Step>, Bounds)>,
}

impl LifePlan {
    /// Returns the task that is the administrator of this life.
    pub fn run(
        self,
        port: Port,
        state: Rc<RefCell<RunState>>,
        leaves: BTreeMap<usize, LeafId>,
        shards: u16,
    ) -> impl Future<Output = ()> + 'static {
        let admin = Admin {
            port,
            state,
            leaves,
            shards,
            last: self.habits.is_none(),
            rng: self.rng,
            steps: self.steps,
            running: BTreeMap::new(),
            serving: BTreeMap::new(),
            mirrors: BTreeMap::new(),
            given_up: BTreeSet::new(),
        };
        admin.live(self.habits)
    }
}

/// A served plain array.
struct Running {
    id: DeviceId,
    order: Vec<LeafId>,
}

struct Admin {
    port: Port,
    state: Rc<RefCell<RunState>>,
    leaves: BTreeMap<usize, LeafId>,
    shards: u16,
    last: bool,
    rng: Rng,
    steps: Option<(Vec<Step>, Bounds)>,
    running: BTreeMap<usize, Running>,
    serving: BTreeMap<usize, labels::Serving>,
    /// Served redundant arrays.
    mirrors: BTreeMap<usize, starting::ServedMirror>,
    /// Arrays that did not start: a write of the attempt may still land, so there is no second attempt in this life.
    given_up: BTreeSet<usize>,
}

impl Admin {
    async fn live(mut self, habits: Option<AdminHabits>) {
        self.phase("starting");
        let mut arrays: Vec<usize> = (0..self.state.borrow().arrays.len()).collect();
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
        let mirrors: Vec<usize> = self.mirrors.keys().copied().collect();
        for array in mirrors {
            self.stop_mirror(array).await;
        }
    }

    /// Returns a device number that no served device has.
    fn new_device(&self) -> DeviceId {
        let used = |id: &u32| {
            self.running.values().any(|r| r.id.0 == *id)
                || self.serving.values().any(|s| s.id.0 == *id)
                || self.mirrors.values().any(|k| k.id.0 == *id)
        };
        DeviceId((0..).find(|id| !used(id)).expect("fewer arrays than numbers"))
    }

    fn phase(&self, phase: &'static str) {
        let mut state = self.state.borrow_mut();
        state.phase = phase;
        state.begun += 1;
        state.notes.push(phase.to_owned());
    }

    fn count(&self, kind: &str) {
        let mut state = self.state.borrow_mut();
        state.counters.add("actions", kind);
        state.notes.push(format!("done: {kind}"));
    }

    async fn until(&self, mut holds: impl FnMut(&RunState) -> bool) {
        std::future::poll_fn(|_| if holds(&self.state.borrow()) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Waits until the clients have ended.
    async fn work_done(&mut self, last: bool) {
        self.until(|state| {
            let labelled = state.labelled.iter().filter_map(|l| l.number);
            let mirrors = state.mirrors.iter().filter_map(|m| m.number);
            let numbers: Vec<u64> =
                state.arrays.iter().filter_map(|a| a.number).chain(labelled).chain(mirrors).collect();
            numbers.into_iter().all(|n| state.workload.is_finished(n))
        })
        .await;
        let started = self.running.len();
        let wanted = self.state.borrow().arrays.len();
        if last && started < wanted {
            let why = format!("in a world without faults only {started} of {wanted} arrays start");
            self.state.borrow_mut().violation = Some(Violation(why));
        }
        if last {
            self.check_end();
            self.check_all_mirrors_serve();
        }
    }

    /// Performs one action of the administrator.
    async fn act(&mut self, habits: AdminHabits) {
        if self.grow_something(habits).await || self.move_some_journal(habits).await {
            return;
        }
        if self.change_some_width().await {
            return;
        }
        if !self.state.borrow().mirrors.is_empty() {
            return self.act_on_mirrors(habits).await;
        }
        if let Some(aim) = habits.aim
            && self.rng.coin()
        {
            return self.act_on(aim, habits).await;
        }
        let count = self.state.borrow().arrays.len();
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
                let disk = *self.rng.pick(self.state.borrow().arrays[array].disks());
                self.count("pull");
                self.state.borrow_mut().pull.push(disk);
            }
        }
    }

    /// Performs this action.
    async fn act_on(&mut self, aim: &'static str, habits: AdminHabits) {
        let count = self.state.borrow().arrays.len();
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

    /// Starts a plain array, if all its disks are present and a flush of each succeeds.
    async fn start(&mut self, array: usize, habits: Option<AdminHabits>) {
        if self.running.contains_key(&array) || self.given_up.contains(&array) {
            return;
        }
        let (plain, number) = {
            let state = self.state.borrow();
            (state.arrays[array].plain.clone(), state.arrays[array].number)
        };
        let Some(order) = self.order(&plain) else { return };
        if number.is_none() {
            self.register_array(array, &plain);
        }
        if plain.start(&self.port, &order).await.is_err() {
            self.given_up.insert(array);
            return;
        }
        self.count("start");
        let id = self.new_device();
        self.running.insert(array, Running { id, order });
        self.publish(array).await;
        let number = self.state.borrow().arrays[array].number.expect("a started array has been made");
        self.connect_to(number, id, habits);
    }

    fn register_array(&self, array: usize, plain: &PlainArray) {
        let blocks = plain.blocks(|d| self.port.size_bytes(self.leaves[&d]));
        let mut state = self.state.borrow_mut();
        let number = state.oracle.device_made(plain.kind.name(), blocks);
        state.arrays[array].number = Some(number);
    }

    fn order(&self, plain: &PlainArray) -> Option<Vec<LeafId>> {
        plain.disks.iter().map(|d| self.leaves.get(d).copied()).collect()
    }

    async fn publish(&mut self, array: usize) {
        let running = &self.running[&array];
        let sizes: Vec<u64> = running.order.iter().map(|l| self.port.size_bytes(*l)).collect();
        let version = self.port.new_version();
        let plain = self.state.borrow().arrays[array].plain.clone();
        let layout = plain.layout(version, &running.order, &sizes);
        self.port.publish(running.id, Some(layout)).await;
    }

    fn connect(&mut self, array: usize, habits: Option<AdminHabits>) {
        let Some(id) = self.running.get(&array).map(|r| r.id) else { return };
        let number = self.state.borrow().arrays[array].number.expect("a started array has been made");
        self.connect_to(number, id, habits);
    }

    /// Connects clients; in the last life one that reads everything.
    fn connect_to(&mut self, number: u64, id: DeviceId, habits: Option<AdminHabits>) {
        let mut state = self.state.borrow_mut();
        let Some(habits) = habits else {
            let shard = self.rng.below(u64::from(self.shards)) as u16;
            return state.workload.connect_verifier(number, id, shard);
        };
        let blocks = state.oracle.blocks(number);
        if habits.reads_all {
            state.workload.connect_verifier(number, id, 0);
        }
        for _ in 0..self.rng.between(1, habits.clients_max) {
            let shard = self.rng.below(u64::from(self.shards)) as u16;
            let requests = self.rng.between(1, habits.requests_max) as u32;
            state.workload.connect(number, id, shard, blocks, requests);
            if !habits.flushes {
                state.workload.never_flush();
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

    /// Stops an array, whether clients use it or not.
    async fn stop(&mut self, array: usize) {
        let Some(running) = self.running.remove(&array) else { return };
        self.phase("stopping");
        self.count("stop");
        let number = self.state.borrow().arrays[array].number.expect("a started array has been made");
        self.withdraw_device(number, running.id).await;
        for leaf in &running.order {
            // A failed flush is no violation: unflushed data may be lost.
            let _ = self.port.flush(*leaf).await;
        }
    }

    /// Withdraws a device from its clients. On return no request to it is in flight.
    async fn withdraw_device(&mut self, number: u64, id: DeviceId) {
        if self.rng.coin() {
            // At times the clients stop first.
            self.state.borrow_mut().workload.stop(number);
        }
        self.state.borrow_mut().workload.expect_stop(number);
        self.port.publish(id, None).await;
        let mut state = self.state.borrow_mut();
        state.workload.stop(number);
        if state.check_drained && !state.workload.is_idle(number) {
            state.violation = Some(Violation("drained, but a request of the old layout is in flight".into()));
        }
    }

    /// Stops an array and creates another one on the same disks.
    async fn replace(&mut self, array: usize, habits: AdminHabits) {
        self.stop(array).await;
        self.phase("replacing");
        self.count("replace");
        {
            let mut state = self.state.borrow_mut();
            let ArrayState { plain, number } = &mut state.arrays[array];
            *plain = PlainArray::draw(plain.kind, plain.disks.clone(), &mut self.rng);
            if let Some(number) = number.take() {
                state.oracle.device_deleted(number);
            }
        }
        self.start(array, Some(habits)).await;
    }
}
