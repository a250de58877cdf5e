//! One life of the process: shards, tasks and clients, until it ends in order or crashes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use braid_array_admin::reconciler::ReconcilerEvent;
use braid_engine::Limits;
use braid_engine::io::{ErrorKind, LeafError, LeafId};

use super::admin::Admin;
use super::manage::KEY;
use super::shared_state::{ShardRequest, SharedState};
use crate::acts::PlannedEnd;
use crate::host::{Host, HostEvent};
use crate::meta::{Port, TaskRequest, Tasks};
use crate::rng::Rng;
use crate::world::{Crash, World, WorldEvent};

/// Number of consecutive polls of all tasks while no event is queued: a poll of one task may make another task ready.
const IDLE_MAX: u32 = 200;
/// Maximum length of a life in virtual nanoseconds. The time limit of a disk's I/O is 30 seconds; a life that lasts an
/// hour does not end, which is a violation.
const LIFE_NS_MAX: u64 = 3_600_000_000_000;

/// How a life ended.
pub(super) enum LifeEnd {
    Clean,
    Crash(Crash),
    Wrong(String),
}

/// One life in progress.
pub(super) struct ProcessLife<'a> {
    world: &'a mut World,
    shared: &'a Rc<RefCell<SharedState>>,
    host: Host,
    port: Port,
    tasks: Tasks,
    steps_before: u64,
}

impl<'a> ProcessLife<'a> {
    /// Creates a process that has just started.
    pub fn new(world: &'a mut World, shared: &'a Rc<RefCell<SharedState>>, rng: &mut Rng) -> ProcessLife<'a> {
        let mut order: Vec<usize> = (0..world.disks.len()).filter(|disk| !world.disks[*disk].gone).collect();
        rng.shuffle(&mut order);
        world.leaves = order;
        world.starving.clear();
        shared.borrow_mut().starve.clear();
        let shards = rng.between(1, 3) as u16;
        shared.borrow_mut().shards = shards;
        let limits =
            Limits { slots: *rng.pick(&[6, 24, 200]), devices: 64, range_table_bits: rng.between(4, 10) as u32 };
        world.note(format_args!("a life with {shards} shards, {limits:?}"));
        world.counters.add("lives", if shards == 1 { "of one shard" } else { "of several shards" });
        let host = Host::new(shards, &limits, world, rng.fork());
        let port = Port::new(world.leaves.iter().map(|disk| world.disks[*disk].size_bytes()).collect());
        let steps_before = world.steps;
        ProcessLife { world, shared, host, port, tasks: Tasks::default(), steps_before }
    }

    /// Runs the life. Returns how it ended.
    pub fn run(mut self, doom: PlannedEnd, last: bool, rng: &mut Rng) -> LifeEnd {
        let leaves: BTreeMap<usize, LeafId> =
            self.world.leaves.iter().enumerate().map(|(leaf, disk)| (*disk, LeafId(leaf as u32))).collect();
        let admin = Admin {
            port: self.port.clone(),
            shared: Rc::clone(self.shared),
            leaves,
            shards: self.host.shards(),
            rng: rng.fork(),
            last,
        };
        let done = self.tasks.spawn(admin.run_life());
        let end_ns = self.world.now_ns + LIFE_NS_MAX;
        let (mut how, mut within) = (None, None);
        match doom {
            PlannedEnd::Clean => {}
            PlannedEnd::After(ns, crash) => {
                self.world.after(ns, WorldEvent::CrashPoint);
                how = Some(crash);
            }
            PlannedEnd::AtStep(steps, crash) => {
                self.world.crash_at_step = Some(self.world.steps + steps);
                how = Some(crash);
            }
            PlannedEnd::Within(moment, nth, ns, crash) => (how, within) = (Some(crash), Some((moment, nth, ns))),
        }
        let mut idle = 0;
        loop {
            self.port.set_now(self.world.now_ns);
            self.tasks.poll();
            let spawned = std::mem::take(&mut self.shared.borrow_mut().spawned);
            spawned.into_iter().for_each(|task| self.tasks.add(task));
            self.serve_tasks();
            self.serve_shared_state();
            self.dispatch_events();
            let moments = std::mem::take(&mut self.shared.borrow_mut().moments);
            for moment in moments.into_iter().chain(std::mem::take(&mut self.world.moments)) {
                if let Some((wanted, nth, ns)) = &mut within
                    && moment == *wanted
                {
                    *nth -= 1;
                    if *nth == 0 {
                        self.world.after(*ns, WorldEvent::CrashPoint);
                        self.world.counters.add("aimed at", wanted);
                        within = None;
                    }
                }
            }
            if let Some(why) = self.shared.borrow_mut().violation.take() {
                return LifeEnd::Wrong(why);
            }
            if self.has_work() {
                continue;
            }
            // The kernel lets a process exit only when none of the I/Os that it submitted is in flight.
            if done.is_done() && self.world.in_flight() == 0 {
                self.world.crash_at_step = None;
                return match self.host.is_calm() {
                    true => LifeEnd::Clean,
                    false => LifeEnd::Wrong("the process has ended, but a slot, a part or a range is in use".into()),
                };
            }
            let happening = self.world.next_event();
            let Some(happening) = happening.filter(|_| self.world.now_ns < end_ns) else {
                // A poll of one task may have made another task ready.
                idle += 1;
                if self.world.now_ns < end_ns && idle < IDLE_MAX {
                    continue;
                }
                let shared = self.shared.borrow();
                let waits = shared.pending.len();
                return LifeEnd::Wrong(format!("the process waits for ever ({}), {waits} requests too", shared.phase));
            };
            idle = 0;
            if let (WorldEvent::CrashPoint, Some(how)) = (&happening, how) {
                self.world.crash_at_step = None;
                return LifeEnd::Crash(how);
            }
            self.handle_event(happening);
        }
    }

    fn has_work(&self) -> bool {
        let shared = self.shared.borrow();
        !self.host.events.is_empty() || !shared.shard_requests.is_empty() || !shared.spawned.is_empty()
    }

    /// Submits what the tasks request of disks and arrays.
    fn serve_tasks(&mut self) {
        for (id, wanted) in self.port.take_requests() {
            let Some(wanted) = self.world.submit_meta(id, wanted) else { continue };
            let (world, host) = (&mut *self.world, &mut self.host);
            match wanted {
                TaskRequest::Sleep(ns) => world.after(ns, WorldEvent::MetaDone(id, Ok(Vec::new()))),
                TaskRequest::Publish(device, layout) => host.publish(world, id, device, layout.as_ref()),
                TaskRequest::IsIdle(leaf) => {
                    let busy = world.is_busy(leaf);
                    let answer = if busy { Err(LeafError::of(ErrorKind::Busy)) } else { Ok(Vec::new()) };
                    self.port.answer(id, answer);
                }
                TaskRequest::Reopen(leaf) => self.shared.borrow_mut().reopening.push((id, leaf)),
                TaskRequest::Requests(device) => {
                    self.port.answer(id, Ok(host.requests(device).to_le_bytes().to_vec()));
                }
                TaskRequest::Renewed(device) => host.renewed(world, device),
                TaskRequest::Freeze(device) => host.freeze(world, id, device),
                TaskRequest::Request(asked) => host.request(world, id, asked),
                TaskRequest::Sync(part) => {
                    world.moments.push("copying");
                    host.sync(world, id, part);
                }
                TaskRequest::Call(device, home, call) => host.call(world, id, device, home.0, call),
                TaskRequest::Read(..) | TaskRequest::Write(..) | TaskRequest::Flush(_) => {
                    unreachable!("the world has taken it")
                }
            }
        }
        for (device, note) in self.port.take_events() {
            let kind = crate::mirrors::event_name(&note);
            self.world.counters.add("reconcilers", kind);
            self.world.moments.push(kind);
            self.world.note(format_args!("reconciler of device {}: {note:?}", device.0));
            if matches!(note, ReconcilerEvent::ArrayFailed) {
                let why = || format!("array {} has failed, and only one disk of it may", device.0);
                self.shared.borrow_mut().set_violation(why);
            }
        }
    }

    /// Submits what the tasks request of the pool, and what the clients request.
    fn serve_shared_state(&mut self) {
        let mut shared = self.shared.borrow_mut();
        for note in std::mem::take(&mut shared.notes) {
            self.world.note(format_args!("admin: {note}"));
        }
        let home = shared.home;
        for request in std::mem::take(&mut shared.shard_requests) {
            match request {
                ShardRequest::Serve(pool, members) => {
                    shared.steps_of_start = self.world.steps - self.steps_before;
                    self.host.serve_pool(self.world, KEY, home, pool, members);
                }
                ShardRequest::Call(number, call, then) => {
                    self.host.pool_call(self.world, number, KEY, home, call);
                    then(&mut shared);
                }
                ShardRequest::Leave => shared.taken_pool = self.host.leave_pool(self.world, KEY, home),
            }
        }
        for disk in std::mem::take(&mut shared.pull) {
            self.world.pull(disk);
        }
        for (disk, before, ns, chance) in std::mem::take(&mut shared.starve) {
            self.world.starving.insert(disk, (before, self.world.now_ns + ns, chance));
        }
        let (world, port) = (&mut *self.world, &self.port);
        shared.reopening.retain(|(id, leaf)| {
            let done = world.reopen(*leaf);
            if done {
                port.answer(*id, Ok(Vec::new()));
            }
            !done
        });
        shared.submit_reads(self.world, &mut self.host);
        for (client, ns) in std::mem::take(&mut shared.to_wake) {
            self.world.after(ns, WorldEvent::Wake(client));
        }
    }

    fn handle_event(&mut self, happening: WorldEvent) {
        let (world, host) = (&mut *self.world, &mut self.host);
        match happening {
            WorldEvent::LeafDone(shard, cookie, result) => host.leaf_done(world, shard, cookie, result),
            WorldEvent::LeafLate(shard, cookie) => host.leaf_late(world, shard, cookie),
            WorldEvent::LeafReturned(shard, cookie) => host.leaf_returned(world, shard, cookie),
            WorldEvent::MetaDone(id, answer) => self.port.answer(id, answer),
            WorldEvent::Deliver(from, to) => host.deliver(world, from, to),
            WorldEvent::Publish(shard) => host.take_mail(world, shard),
            WorldEvent::EndTurn(shard) => host.end_turn(world, shard),
            WorldEvent::Wake(client) => self.shared.borrow_mut().wake(client, world, host),
            WorldEvent::CrashPoint => {}
        }
    }

    /// Dispatches the events that the shards report.
    fn dispatch_events(&mut self) {
        while let Some(told) = self.host.events.pop_front() {
            match told {
                HostEvent::Done(completion) => self.shared.borrow_mut().answered(&completion, self.world),
                HostEvent::Released(tag) => self.shared.borrow_mut().released(tag, self.world),
                HostEvent::Drained(number) | HostEvent::Frozen(number) | HostEvent::RegionCallDone(number) => {
                    self.port.answer(number, Ok(Vec::new()));
                }
                HostEvent::TaskReply(number, given) => self.port.deliver_device_reply(number, given),
                HostEvent::Synced(number, result) => self.port.answer_sync(number, result),
                HostEvent::Fault(trouble) => {
                    self.world.moments.push("fault of a member");
                    self.port.report_fault(trouble);
                }
                HostEvent::PoolCallDone(number, good) => {
                    self.shared.borrow_mut().ended_calls.insert(number, good);
                }
            }
        }
    }
}
