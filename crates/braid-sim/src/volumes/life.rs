//! One life of the process: shards, tasks and clients, until it ends by itself or is ended.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use braid_engine::Limits;
use braid_engine::io::{ErrorKind, LeafError, LeafId};
use braid_engine::keeper::ReconcilerEvent;

use super::admin::Admin;
use super::manage::KEY;
use super::scene::{Scene, Wish};
use crate::host::{Host, Told};
use crate::meta::{Port, Tasks, Wanted};
use crate::rng::Rng;
use crate::sim::Doom;
use crate::world::{Crash, Happening, World};

/// When nothing is left to happen, tasks are asked so often whether they have something for one another.
const IDLE_MAX: u32 = 200;
/// A life that lasts longer, in virtual nanoseconds, will not end: time limits of disks are of 30 seconds.
const LIFE_NS_MAX: u64 = 3_600_000_000_000;

/// How a life ended.
pub(super) enum End {
    Clean,
    Crash(Crash),
    Wrong(String),
}

/// One life, while it lasts.
pub(super) struct Life<'a> {
    world: &'a mut World,
    scene: &'a Rc<RefCell<Scene>>,
    host: Host,
    port: Port,
    tasks: Tasks,
    steps_before: u64,
}

impl<'a> Life<'a> {
    /// A process that has just begun.
    pub fn new(world: &'a mut World, scene: &'a Rc<RefCell<Scene>>, rng: &mut Rng) -> Life<'a> {
        let mut order: Vec<usize> = (0..world.disks.len()).filter(|disk| !world.disks[*disk].gone).collect();
        rng.shuffle(&mut order);
        world.leaves = order;
        world.starving.clear();
        scene.borrow_mut().starve.clear();
        let shards = rng.between(1, 3) as u16;
        scene.borrow_mut().shards = shards;
        let limits =
            Limits { slots: *rng.pick(&[6, 24, 200]), devices: 64, range_table_bits: rng.between(4, 10) as u32 };
        world.note(format_args!("a life with {shards} shards, {limits:?}"));
        world.counters.add("lives", if shards == 1 { "of one shard" } else { "of several shards" });
        let host = Host::new(shards, &limits, world, rng.fork());
        let port = Port::new(world.leaves.iter().map(|disk| world.disks[*disk].size_bytes()).collect());
        let steps_before = world.steps;
        Life { world, scene, host, port, tasks: Tasks::default(), steps_before }
    }

    /// Lives it. Returns how it ended.
    pub fn run(mut self, doom: Doom, last: bool, rng: &mut Rng) -> End {
        let leaves: BTreeMap<usize, LeafId> =
            self.world.leaves.iter().enumerate().map(|(leaf, disk)| (*disk, LeafId(leaf as u32))).collect();
        let admin = Admin {
            port: self.port.clone(),
            scene: Rc::clone(self.scene),
            leaves,
            shards: self.host.shards(),
            rng: rng.fork(),
            last,
        };
        let done = self.tasks.spawn(admin.live());
        let end_ns = self.world.now_ns + LIFE_NS_MAX;
        let (mut how, mut within) = (None, None);
        match doom {
            Doom::Clean => {}
            Doom::After(ns, crash) => {
                self.world.after(ns, Happening::CrashPoint);
                how = Some(crash);
            }
            Doom::AtStep(steps, crash) => {
                self.world.crash_at_step = Some(self.world.steps + steps);
                how = Some(crash);
            }
            Doom::Within(moment, nth, ns, crash) => (how, within) = (Some(crash), Some((moment, nth, ns))),
        }
        let mut idle = 0;
        loop {
            self.port.set_now(self.world.now_ns);
            self.tasks.poll();
            let spawned = std::mem::take(&mut self.scene.borrow_mut().spawned);
            spawned.into_iter().for_each(|task| self.tasks.add(task));
            self.serve_tasks();
            self.serve_scene();
            self.listen();
            let moments = std::mem::take(&mut self.scene.borrow_mut().moments);
            for moment in moments.into_iter().chain(std::mem::take(&mut self.world.moments)) {
                if let Some((wanted, nth, ns)) = &mut within
                    && moment == *wanted
                {
                    *nth -= 1;
                    if *nth == 0 {
                        self.world.after(*ns, Happening::CrashPoint);
                        self.world.counters.add("aimed at", wanted);
                        within = None;
                    }
                }
            }
            if let Some(why) = self.scene.borrow_mut().violation.take() {
                return End::Wrong(why);
            }
            if self.has_news() {
                continue;
            }
            // A process cannot exit while the kernel has I/O of it.
            if done.is_done() && self.world.in_flight() == 0 {
                self.world.crash_at_step = None;
                return match self.host.is_calm() {
                    true => End::Clean,
                    false => End::Wrong("the process has ended, but a slot, a part or a range is in use".into()),
                };
            }
            let happening = self.world.next_happening();
            let Some(happening) = happening.filter(|_| self.world.now_ns < end_ns) else {
                // Tasks may have something for one another.
                idle += 1;
                if self.world.now_ns < end_ns && idle < IDLE_MAX {
                    continue;
                }
                let scene = self.scene.borrow();
                let waits = scene.asked.len();
                return End::Wrong(format!("the process waits for ever ({}), {waits} requests too", scene.phase));
            };
            idle = 0;
            if let (Happening::CrashPoint, Some(how)) = (&happening, how) {
                self.world.crash_at_step = None;
                return End::Crash(how);
            }
            self.happens(happening);
        }
    }

    fn has_news(&self) -> bool {
        let scene = self.scene.borrow();
        !self.host.told.is_empty() || !scene.wishes.is_empty() || !scene.spawned.is_empty()
    }

    /// Starts what the tasks want of disks and arrays.
    fn serve_tasks(&mut self) {
        for (id, wanted) in self.port.take_wanted() {
            let Some(wanted) = self.world.submit_meta(id, wanted) else { continue };
            let (world, host) = (&mut *self.world, &mut self.host);
            match wanted {
                Wanted::Sleep(ns) => world.after(ns, Happening::MetaDone(id, Ok(Vec::new()))),
                Wanted::Publish(device, layout) => host.publish(world, id, device, layout.as_ref()),
                Wanted::IsIdle(leaf) => {
                    let busy = world.is_busy(leaf);
                    let answer = if busy { Err(LeafError::of(ErrorKind::Busy)) } else { Ok(Vec::new()) };
                    self.port.answer(id, answer);
                }
                Wanted::Reopen(leaf) => self.scene.borrow_mut().reopening.push((id, leaf)),
                Wanted::Requests(device) => {
                    self.port.answer(id, Ok(host.requests(device).to_le_bytes().to_vec()));
                }
                Wanted::Renewed(device) => host.renewed(world, device),
                Wanted::Freeze(device) => host.freeze(world, id, device),
                Wanted::Request(asked) => host.request(world, id, asked),
                Wanted::Sync(part) => {
                    world.moments.push("copying");
                    host.sync(world, id, part);
                }
                Wanted::Call(device, home, call) => host.call(world, id, device, home.0, call),
                Wanted::Read(..) | Wanted::Write(..) | Wanted::Flush(_) => unreachable!("the world has taken it"),
            }
        }
        for (device, note) in self.port.take_notes() {
            let kind = crate::plot::mirrors::kind_of(&note);
            self.world.counters.add("keepers", kind);
            self.world.moments.push(kind);
            self.world.note(format_args!("keeper of device {}: {note:?}", device.0));
            if matches!(note, ReconcilerEvent::ArrayFailed) {
                let why = || format!("array {} has failed, and only one disk of it may", device.0);
                self.scene.borrow_mut().wrong(why);
            }
        }
    }

    /// Starts what they want of the pool, and of those who ask.
    fn serve_scene(&mut self) {
        let mut scene = self.scene.borrow_mut();
        for note in std::mem::take(&mut scene.notes) {
            self.world.note(format_args!("admin: {note}"));
        }
        let home = scene.home;
        for wish in std::mem::take(&mut scene.wishes) {
            match wish {
                Wish::Serve(pool, places) => {
                    scene.steps_of_start = self.world.steps - self.steps_before;
                    self.host.serve_pool(self.world, KEY, home, pool, places);
                }
                Wish::Call(number, call, then) => {
                    self.host.pool_call(self.world, number, KEY, home, call);
                    then(&mut scene);
                }
                Wish::Leave => scene.left = self.host.leave_pool(self.world, KEY, home),
            }
        }
        for disk in std::mem::take(&mut scene.pull) {
            self.world.pull(disk);
        }
        for (disk, before, ns, chance) in std::mem::take(&mut scene.starve) {
            self.world.starving.insert(disk, (before, self.world.now_ns + ns, chance));
        }
        let (world, port) = (&mut *self.world, &self.port);
        scene.reopening.retain(|(id, leaf)| {
            let done = world.reopen(*leaf);
            if done {
                port.answer(*id, Ok(Vec::new()));
            }
            !done
        });
        scene.read_on(self.world, &mut self.host);
        for (client, ns) in std::mem::take(&mut scene.to_wake) {
            self.world.after(ns, Happening::Wake(client));
        }
    }

    fn happens(&mut self, happening: Happening) {
        let (world, host) = (&mut *self.world, &mut self.host);
        match happening {
            Happening::LeafDone(shard, cookie, result) => host.leaf_done(world, shard, cookie, result),
            Happening::LeafLate(shard, cookie) => host.leaf_late(world, shard, cookie),
            Happening::LeafReturned(shard, cookie) => host.leaf_returned(world, shard, cookie),
            Happening::MetaDone(id, answer) => self.port.answer(id, answer),
            Happening::Deliver(from, to) => host.deliver(world, from, to),
            Happening::Publish(shard) => host.take_mail(world, shard),
            Happening::EndTurn(shard) => host.end_turn(world, shard),
            Happening::Wake(client) => self.scene.borrow_mut().wake(client, world, host),
            Happening::CrashPoint => {}
        }
    }

    /// Passes on what the shards have to tell.
    fn listen(&mut self) {
        while let Some(told) = self.host.told.pop_front() {
            match told {
                Told::Done(completion) => self.scene.borrow_mut().answered(&completion, self.world),
                Told::Released(tag) => self.scene.borrow_mut().released(tag, self.world),
                Told::Drained(number) | Told::Frozen(number) | Told::Called(number) => {
                    self.port.answer(number, Ok(Vec::new()));
                }
                Told::Given(number, given) => self.port.give(number, given),
                Told::Synced(number, result) => self.port.answer_sync(number, result),
                Told::Trouble(trouble) => {
                    self.world.moments.push("trouble of a member");
                    self.port.tell_trouble(trouble);
                }
                Told::PoolCalled(number, good) => drop(self.scene.borrow_mut().called.insert(number, good)),
            }
        }
    }
}
