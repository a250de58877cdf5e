//! A shard's thread: one loop around the engine, the port, the sockets and the frontends.
//!
//! Each turn of the loop reads the clock; takes the control plane's messages, those of other shards and the kernel's
//! events; processes what follows from them; lets the frontends send what they gathered; and enters the kernel once, to
//! submit, and to sleep if no work is left.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_engine::{Completion, Cookie, DeviceId, LeafResult, META_BLOCKS, Shard, ShardId, ShardMessage};
use rtrb::{Consumer, Producer};

use crate::clock::clock_ns;
use crate::commands;
use crate::control_work::ControlWork;
use crate::core::Core;
use crate::driver::{Event, Wait};
use crate::frontend::{Cx, Frontend};
use crate::link::{Control, Countdown, Link};
use crate::member_faults::MemberFaults;
use crate::pools::PoolToServe;
use crate::port::{Done, ForwardedIo};
use crate::remote::Remotes;
use crate::stack_level::{META_COOKIE, bare, level_of_cookie, stack_level_of, stack_level_of_pool};
use crate::tokens::{BELOW, CHANNEL_TOKEN, CONTROL_PLANE, FRONTENDS_MAX, LEAF_TOKEN, TAG_BITS, TAG_LIMIT};

/// Rounds of inline results (null and memory disks) that one turn processes before it polls the kernel again.
const ROUNDS_MAX: usize = 16;

/// A message between the engines of one stack level on different shards, with its level.
pub(crate) type LevelMessage = (usize, ShardMessage);

/// The queues to and from the other shards. The entries of this shard itself are `None`.
pub(crate) struct Peers {
    pub(crate) to: Vec<Option<Producer<LevelMessage>>>,
    pub(crate) from: Vec<Option<Consumer<LevelMessage>>>,
    pub(crate) links: Vec<Arc<Link>>,
    /// Shards that are not yet quiescent after a stop.
    pub(crate) active_shards: Arc<AtomicUsize>,
    /// Where all shards report faults of members.
    pub(crate) member_faults: Arc<MemberFaults>,
}

/// A shard and everything that runs on its thread.
pub(crate) struct Runner {
    core: Core,
    frontends: Vec<Box<dyn Frontend>>,
    remotes: Remotes,
    link: Arc<Link>,
    peers: Peers,
    /// Messages that found no room in their queue, in order, by target shard.
    unsent: Vec<std::collections::VecDeque<LevelMessage>>,
    // Memory for messages, events and results in transit, kept so that no turn allocates.
    forwarded: Vec<(ShardId, ForwardedIo)>,
    events: Vec<Event>,
    mail: Vec<Control>,
    done: Vec<Done>,
    completions: Vec<Completion>,
    cookies: Vec<Cookie>,
    /// By stack level.
    control_work: Vec<ControlWork>,
    /// Disks to be removed that still have I/O in flight.
    removing: Vec<(braid_engine::LeafId, Arc<Countdown>)>,
    /// Devices, and versions of replaced layouts by which requests are still in flight.
    draining: Vec<(DeviceId, u32, Arc<Countdown>)>,
    stop: Stop,
    /// Time after a stop at which the shard ends even if I/O is in flight.
    stop_limit_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    No,
    /// A stop was requested at this time. I/O in flight continues.
    Draining(u64),
    /// This shard has no I/O in flight. Other shards may still need it.
    Quiescent,
}

impl Runner {
    pub(crate) fn new(core: Core, frontends: Vec<Box<dyn Frontend>>, peers: Peers, stop_limit_ns: u64) -> Runner {
        let link = Arc::clone(&peers.links[usize::from(core.id.0)]);
        let (capacity, completions) = (core.port.done.capacity(), core.engine.done_capacity());
        Runner {
            core,
            frontends,
            remotes: Remotes::default(),
            link,
            unsent: peers.links.iter().map(|_| std::collections::VecDeque::with_capacity(256)).collect(),
            peers,
            forwarded: Vec::new(),
            events: Vec::with_capacity(4096),
            mail: Vec::with_capacity(64),
            done: Vec::with_capacity(capacity),
            completions: Vec::with_capacity(completions),
            cookies: Vec::with_capacity(capacity),
            control_work: vec![ControlWork::new(0)],
            removing: Vec::new(),
            draining: Vec::new(),
            stop: Stop::No,
            stop_limit_ns,
        }
    }

    /// Runs until the ring is stopped.
    pub(crate) fn run(mut self) {
        // Unwind safe: after a panic only `abort` uses the shard, to release what it can.
        match catch_unwind(AssertUnwindSafe(|| self.work())) {
            Ok(()) => self.end(),
            Err(panic) => {
                self.abort();
                resume_unwind(panic);
            }
        }
    }

    fn work(&mut self) {
        self.core.port.now_ns = clock_ns();
        self.each_frontend(|f, cx| f.start(cx));
        loop {
            self.take_events();
            if self.link.has_mail() {
                self.take_mail();
            }
            self.take_messages();
            self.core.port.tick();
            self.fire_timers();
            self.settle();
            self.each_frontend(|f, cx| f.end_of_batch(cx));
            self.housekeeping();
            self.remotes.work(&mut self.core);
            self.send_forwarded();
            if self.stop != Stop::No && self.may_end() {
                break;
            }
            self.link.turns.store(self.link.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            self.enter_kernel();
        }
    }

    fn each_frontend(&mut self, mut call: impl FnMut(&mut dyn Frontend, &mut Cx<'_>)) {
        for (index, frontend) in self.frontends.iter_mut().enumerate() {
            call(&mut **frontend, &mut Cx { core: &mut self.core, frontend: index as u16 });
        }
    }

    /// Submits queued I/O, and sleeps if there is no work.
    fn enter_kernel(&mut self) {
        let wait = if self.has_work() { Wait::No } else { self.sleep_time() };
        if wait == Wait::No {
            self.core.port.driver.turn(Wait::No, &mut self.events);
        } else {
            self.link.wake.fall_asleep();
            // Other threads wake this shard only from the announcement on: check once more for what they did before.
            let wait = if self.has_wake_reason() { Wait::No } else { wait };
            self.link.sleeps.store(self.link.sleeps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            self.core.port.driver.turn(wait, &mut self.events);
            self.link.wake.awake();
        }
        self.core.port.now_ns = clock_ns();
    }

    /// Returns whether anything has happened that other threads announce by waking this shard.
    fn has_wake_reason(&self) -> bool {
        self.has_mail()
            || self.core.port.has_new_rules()
            || (self.stop == Stop::Quiescent && self.peers.active_shards.load(Ordering::Acquire) == 0)
    }

    fn has_mail(&self) -> bool {
        self.link.has_mail() || self.peers.from.iter().flatten().any(|queue| !queue.is_empty())
    }

    fn has_work(&self) -> bool {
        !self.core.port.done.is_empty()
            || self.core.engine.has_done()
            || self.core.engine.is_turn_open()
            || self.core.upper.iter().any(|engine| engine.has_done() || engine.is_turn_open())
            || self.core.port.has_more()
            || self.has_mail()
            || self.unsent.iter().any(|queue| !queue.is_empty())
    }

    fn sleep_time(&self) -> Wait {
        let own = [self.core.port.due_ns(), self.core.timers.due_ns(), self.control_work[0].jobs.due_ns()];
        let mut due = own.into_iter().flatten().min();
        if let Stop::Draining(since) = self.stop {
            let limit = since + self.stop_limit_ns;
            due = Some(due.map_or(limit, |d| d.min(limit)));
        }
        match due {
            None => Wait::Forever,
            Some(at) => match at.saturating_sub(self.core.port.now_ns) {
                0 => Wait::No,
                ns => Wait::For(ns),
            },
        }
    }

    fn take_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            if event.token & LEAF_TOKEN == LEAF_TOKEN && event.token >> 56 == LEAF_TOKEN >> 56 {
                self.core.port.on_event(event);
                continue;
            }
            if let Some((frontend, token)) = commands::split(&event) {
                let mut cx = Cx { core: &mut self.core, frontend: frontend as u16 };
                self.frontends[frontend].command_done(&mut cx, token, event.result);
                continue;
            }
            let done = if event.token >> 56 == CHANNEL_TOKEN >> 56 {
                self.core.channels.on_event(event)
            } else {
                self.core.net.on_event(event, &mut self.core.port.driver)
            };
            if let Some(done) = done {
                let Some(frontend) = self.frontends.get_mut(usize::from(done.frontend)) else {
                    let carrier = done.frontend - FRONTENDS_MAX as u16;
                    self.remotes.event(&mut self.core, carrier, done.token, done.result);
                    continue;
                };
                let mut cx = Cx { core: &mut self.core, frontend: done.frontend };
                frontend.net_done(&mut cx, done.token, done.result);
            }
        }
        self.events = events;
    }

    fn fire_timers(&mut self) {
        while let Some((frontend, token)) = self.core.timers.pop(self.core.port.now_ns) {
            if usize::from(frontend) >= FRONTENDS_MAX {
                self.remotes.timer(&mut self.core, frontend - FRONTENDS_MAX as u16, token);
                continue;
            }
            let mut cx = Cx { core: &mut self.core, frontend };
            self.frontends[usize::from(frontend)].timer(&mut cx, token);
        }
    }

    /// Passes results to the engine, and completions of the engine to the frontends, until none are left or the round
    /// limit is reached.
    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            std::mem::swap(&mut self.done, &mut self.core.port.done);
            for &Done { cookie, result } in &self.done {
                if cookie.0 >= META_COOKIE {
                    route_leaf_done(&mut self.core, &mut self.control_work, cookie, result);
                } else {
                    self.core.engine.leaf_done(cookie, result, &mut self.core.port);
                }
            }
            self.done.clear();
            if !self.core.port.late.is_empty() || !self.core.port.returned.is_empty() {
                self.take_late();
            }
            self.deliver_completions(0);
            // All events of this round have been taken in, so the engine can merge adjacent writes.
            self.core.engine.end_turn(&mut self.core.port);
            if !self.core.upper.is_empty() {
                self.settle_above();
            }
            if self.core.port.done.is_empty()
                && !self.core.engine.has_done()
                && !self.core.port.has_more()
                && !self.core.upper.iter().any(Shard::has_done)
            {
                return;
            }
        }
    }

    /// Delivers the completions of the stack levels above the first, and submits their requests to the levels below.
    #[cold]
    fn settle_above(&mut self) {
        for level in 1..=self.core.upper.len() {
            self.deliver_completions(level);
            self.core.on(level, |engine, port| engine.end_turn(port));
        }
        self.core.port.retry_below();
        for level in (0..self.core.upper.len()).rev() {
            while let Some(request) = self.core.port.next_below(level) {
                let submitted = self.core.on(level, |engine, port| engine.submit(&request, port));
                let submitted = submitted.expect("the level of a device that is a disk exists");
                self.core.port.submitted_below(level, submitted);
            }
        }
    }

    /// Delivers the completions and released buffers of one level's engine to the submitters.
    fn deliver_completions(&mut self, level: usize) {
        let mut completions = std::mem::take(&mut self.completions);
        let engine = if level == 0 { &mut self.core.engine } else { &mut self.core.upper[level - 1] };
        engine.swap_done(&mut completions);
        let mut rest = &mut completions[..];
        while let Some(first) = rest.first() {
            // Usually all completions belong to one frontend, which is called once for each run of them.
            let frontend = first.tag >> TAG_BITS;
            let mut count = 0;
            while let Some(next) = rest.get_mut(count)
                && next.tag >> TAG_BITS == frontend
            {
                next.tag &= TAG_LIMIT - 1;
                count += 1;
            }
            let (these, others) = rest.split_at_mut(count);
            rest = others;
            if frontend == CONTROL_PLANE {
                let engine = self.core.engine_of(level).expect("it has completions");
                these.iter().for_each(|completion| self.control_work[level].requests.done(completion, engine));
                continue;
            }
            if frontend == BELOW {
                these.iter().for_each(|completion| self.core.port.done_below(completion));
                continue;
            }
            let mut cx = Cx { core: &mut self.core, frontend: frontend as u16 };
            self.frontends[frontend as usize].ios_done(&mut cx, these);
        }
        self.completions = completions;
        let released = |core: &mut Core| core.on(level, |engine, _| engine.pop_released()).flatten();
        while let Some(tag) = released(&mut self.core) {
            if tag >> TAG_BITS == CONTROL_PLANE {
                self.control_work[level].requests.released(tag & (TAG_LIMIT - 1));
                continue;
            }
            if tag >> TAG_BITS == BELOW {
                self.core.port.released_below(tag & (TAG_LIMIT - 1));
                continue;
            }
            let frontend = (tag >> TAG_BITS) as u16;
            let mut cx = Cx { core: &mut self.core, frontend };
            self.frontends[usize::from(frontend)].released(&mut cx, tag & (TAG_LIMIT - 1));
        }
    }

    #[cold]
    fn take_late(&mut self) {
        std::mem::swap(&mut self.cookies, &mut self.core.port.late);
        for &cookie in &self.cookies {
            let level = level_of_cookie(cookie);
            if cookie.0 & META_COOKIE != 0 {
                self.control_work[level].meta_requests.late(cookie);
            } else {
                self.core.on(level, |engine, port| engine.leaf_late(bare(cookie), port));
            }
        }
        self.cookies.clear();
        std::mem::swap(&mut self.cookies, &mut self.core.port.returned);
        for &cookie in &self.cookies {
            let level = level_of_cookie(cookie);
            if cookie.0 & META_COOKIE != 0 {
                self.control_work[level].meta_requests.returned(cookie);
            } else {
                self.core.on(level, |engine, port| engine.leaf_returned(bare(cookie), port));
            }
        }
        self.cookies.clear();
    }

    /// Processes the messages of the control plane.
    fn take_mail(&mut self) {
        let mut mail = std::mem::take(&mut self.mail);
        self.link.take_mail(&mut mail);
        for control in mail.drain(..) {
            match control {
                Control::AddLeaf { id, disk, counters } => {
                    disk.faults.iter().for_each(|f| f.attach(&self.link.wake));
                    let shard = u32::from(self.core.id.0);
                    let host = ShardId((id.0 % self.peers.links.len() as u32) as u16);
                    if disk.remote().is_some_and(|remote| remote.has_one_connection()) && host != self.core.id {
                        self.core.port.add_leaf(id, disk.medium(), counters);
                        self.core.port.set_host(id, host);
                        continue;
                    }
                    let carrier = disk.remote().map(|remote| self.remotes.add(remote, shard));
                    if carrier == Some(None) {
                        // Without memory for its carrier the disk is not added here: I/O to it is refused.
                        continue;
                    }
                    self.core.port.add_leaf(id, disk.medium(), counters);
                    if let Some(carrier) = carrier.flatten() {
                        self.core.port.set_remote(id, carrier);
                    }
                }
                Control::ResizeLeaf { id, known } => {
                    self.core.port.resize_leaf(id);
                    known.arrive();
                }
                Control::AddLevel(new) => {
                    self.control_work.push(ControlWork::new(new.level));
                    self.core.add_level(*new);
                }
                Control::RemoveLeaf { id, gone } => self.removing.push((id, gone)),
                Control::Publish { device, layout, drained } => {
                    let level = stack_level_of(device);
                    match self.core.on(level, |engine, port| engine.publish(device, layout, port)).flatten() {
                        None => drained.arrive(),
                        Some(version) => self.draining.push((device, version, drained)),
                    }
                }
                Control::Freeze { device, frozen } => {
                    self.core.on(stack_level_of(device), |engine, port| engine.freeze(device, port));
                    frozen.arrive();
                }
                Control::LeaseRenewed { device } => {
                    self.core.on(stack_level_of(device), |engine, port| engine.lease_renewed(device, port));
                }
                Control::Part(job) => {
                    if let Some(control_work) = self.control_work.get_mut(stack_level_of(job.part.device)) {
                        control_work.jobs.add(job);
                    }
                }
                Control::Call { device, call, done } => {
                    if let Some(control_work) = self.control_work.get_mut(stack_level_of(device)) {
                        self.core.on(stack_level_of(device), |engine, port| {
                            control_work.jobs.call((engine, port), device, call, done)
                        });
                    }
                }
                Control::Sleep { until_ns, done } => self.control_work[0].jobs.wake_at(until_ns, done),
                Control::Post { frontend, message } => {
                    if let Some(to) = self.frontends.get_mut(frontend) {
                        to.message(&mut Cx { core: &mut self.core, frontend: frontend as u16 }, message);
                    }
                }
                Control::Forwarded(io) => self.core.port.on_forwarded(io),
                Control::Meta(level, request) => {
                    if let Some(control_work) = self.control_work.get_mut(level) {
                        control_work.meta_requests.add(request);
                    }
                }
                Control::Request(request) => {
                    if let Some(control_work) = self.control_work.get_mut(stack_level_of(request.request.device)) {
                        control_work.requests.add(request);
                    }
                }
                Control::KnowPool { key, home, done } => {
                    self.core.on(stack_level_of_pool(key), |engine, _| engine.set_pool_home(key, home));
                    done.send(());
                }
                Control::ServePool(served) => {
                    let PoolToServe { key, pool, members, done } = *served;
                    self.core.on(stack_level_of_pool(key), |engine, port| engine.serve_pool(key, pool, members, port));
                    done.send(());
                }
                Control::CallPool { key, call, done } => {
                    let level = stack_level_of_pool(key);
                    if let Some(control_work) = self.control_work.get_mut(level) {
                        self.core
                            .on(level, |engine, port| control_work.pool_calls.call((engine, port), key, call, done));
                    }
                }
                Control::LeavePool { key, done, ended } => {
                    let level = stack_level_of_pool(key);
                    let left = self.core.on(level, |engine, port| engine.withdraw_pool(key, port)).flatten();
                    if let Some(control_work) = self.control_work.get_mut(level).filter(|_| left.is_some()) {
                        control_work.pool_calls.add_leaving(key, ended);
                    }
                    done.send(left);
                }
                Control::Counters { device, reply } => {
                    let engine = self.core.engine_of(stack_level_of(device));
                    reply.send(engine.map(|engine| engine.counters(device)).unwrap_or_default());
                }
                Control::Stop => {
                    if self.stop == Stop::No {
                        self.stop = Stop::Draining(self.core.port.now_ns);
                        for control_work in &mut self.control_work {
                            control_work.jobs.stop();
                            control_work.requests.stop();
                        }
                        self.each_frontend(|f, cx| f.stop(cx));
                    }
                }
            }
        }
        self.mail = mail;
    }

    fn take_messages(&mut self) {
        for at in 0..self.peers.from.len() {
            while let Some(Ok((level, message))) = self.peers.from[at].as_mut().map(Consumer::pop) {
                if level == 0 {
                    self.core.engine.handle_message(message, &mut self.core.port);
                    continue;
                }
                if level > self.core.upper.len() {
                    // The sender has added the level before this shard. The message to add it is in this shard's
                    // mailbox.
                    self.take_mail();
                }
                self.core.on(level, |engine, port| engine.handle_message(message, port));
            }
        }
    }

    /// Work that is rarely due. Each item costs one check.
    fn housekeeping(&mut self) {
        for level in 0..=self.core.upper.len() {
            let control_work = &mut self.control_work[level];
            self.core.on(level, |engine, port| {
                control_work.jobs.begin(engine, port);
                control_work.jobs.end(engine);
                control_work.requests.begin(engine, port);
                control_work.pool_calls.end(engine);
                while let Some(fault) = engine.pop_fault() {
                    self.peers.member_faults.report(fault);
                }
                while let Some((to, message)) = engine.pop_message() {
                    self.unsent[usize::from(to.0)].push_back((level, message));
                }
                while let Some((device, version)) = engine.pop_drained() {
                    if let Some(at) = self.draining.iter().position(|d| (d.0, d.1) == (device, version)) {
                        self.draining.swap_remove(at).2.arrive();
                    }
                }
            });
            self.control_work[level].meta_requests.begin(&mut self.core.port);
        }
        if self.unsent.iter().any(|queue| !queue.is_empty()) {
            self.send_messages();
        }
        let (core, remotes) = (&mut self.core, &mut self.remotes);
        self.removing.retain(|(id, gone)| {
            let removed = match core.port.remote_of(*id) {
                Some(carrier) => core.port.is_quiet(*id) && remotes.leave(core, carrier) && core.port.remove_leaf(*id),
                None => core.port.remove_leaf(*id),
            };
            if removed {
                gone.arrive();
            }
            !removed
        });
    }

    fn send_messages(&mut self) {
        for (to, queue) in self.unsent.iter_mut().enumerate() {
            let Some(producer) = &mut self.peers.to[to] else {
                debug_assert!(queue.is_empty(), "a shard sends itself nothing");
                continue;
            };
            let mut sent = false;
            while let Some(message) = queue.pop_front() {
                match producer.push(message) {
                    Ok(()) => sent = true,
                    // A shard that has panicked no longer reads its queues.
                    Err(_) if producer.is_abandoned() => queue.clear(),
                    Err(rtrb::PushError::Full(message)) => {
                        queue.push_front(message);
                        break;
                    }
                }
            }
            if sent {
                self.peers.links[to].wake.wake();
            }
        }
    }

    /// Sends I/Os on disks with a single connection, and their results, to the other shards.
    fn send_forwarded(&mut self) {
        self.core.port.swap_forwarded(&mut self.forwarded);
        for (to, message) in self.forwarded.drain(..) {
            if !self.peers.links[usize::from(to.0)].send(Control::Forwarded(message)) {
                self.core.port.forwarding_failed(message);
            }
        }
    }

    /// Returns whether the thread may end: no I/O is in flight on this shard or any other.
    fn may_end(&mut self) -> bool {
        if let Stop::Draining(since) = self.stop {
            let quiet = self.core.engine.in_flight() == 0
                && self.core.upper.iter().all(|engine| engine.in_flight() == 0)
                && self.core.port.in_flight() == 0
                && self.core.net.sends() == 0
                && self.core.channels.writes() == 0
                && !self.control_work.iter().any(|control_work| control_work.meta_requests.has_waiting())
                && !self.has_work()
                && self.frontends_are_quiet();
            let overdue = self.core.port.now_ns.saturating_sub(since) >= self.stop_limit_ns;
            if !quiet && !overdue {
                return false;
            }
            self.core.net.close_all(&mut self.core.port.driver);
            self.core.channels.close_all(&mut self.core.port.driver);
            if (self.core.net.busy() > 0 || self.core.channels.busy() > 0) && !overdue {
                return false;
            }
            self.quiesce();
        }
        self.peers.active_shards.load(Ordering::Acquire) == 0
    }

    fn frontends_are_quiet(&mut self) -> bool {
        let mut quiet = true;
        self.each_frontend(|f, cx| quiet &= f.is_quiet(cx));
        quiet
    }

    /// Records that this shard has no I/O of its own left. The last shard to do so wakes all of them to end.
    fn quiesce(&mut self) {
        self.stop = Stop::Quiescent;
        if self.peers.active_shards.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.peers.links.iter().for_each(|link| link.wake.wake());
        }
    }

    /// Ends the shard after a panic so that no caller waits for it. Memory that the kernel may still write to is
    /// leaked.
    #[cold]
    fn abort(self) {
        let mut this = std::mem::ManuallyDrop::new(self);
        if this.stop != Stop::Quiescent {
            this.quiesce();
        }
        this.link.close();
        this.peers.from.clear();
        // A countdown that is dropped before it is complete drops its reply, which fails the waiting calls.
        this.draining.clear();
        this.removing.clear();
        for control_work in &mut this.control_work {
            control_work.jobs.leak();
            control_work.requests.leak();
            control_work.meta_requests.leak();
        }
        let core = &mut this.core;
        core.net.close_all(&mut core.port.driver);
        core.channels.close_all(&mut core.port.driver);
    }

    /// Releases everything; or, if the kernel still has I/O of this shard, as much as is safe.
    fn end(mut self) {
        self.link.close();
        for (_, _, drained) in self.draining {
            drained.arrive();
        }
        for (_, gone) in self.removing {
            gone.arrive();
        }
        let Core { port, net, channels, .. } = self.core;
        if port.issued() > 0
            || port.has_forwarded_outstanding()
            || net.busy() + channels.busy() > 0
            || self.control_work.iter().any(|control_work| control_work.meta_requests.has_memory())
        {
            // A disk or a peer has not responded. Memory that the kernel may still write to is leaked.
            for control_work in &mut self.control_work {
                control_work.jobs.leak();
                control_work.requests.leak();
                control_work.meta_requests.leak();
            }
            std::mem::forget(net);
            std::mem::forget(channels);
            self.remotes.leak();
            port.leak();
        }
    }
}

/// Handles the end of a leaf I/O that does not belong to the engine of the first level.
#[cold]
fn route_leaf_done(core: &mut Core, control_work: &mut [ControlWork], cookie: Cookie, result: LeafResult) {
    let level = level_of_cookie(cookie);
    if cookie.0 & META_COOKIE != 0 {
        return control_work[level].meta_requests.done(cookie, result);
    }
    core.on(level, |engine, port| engine.leaf_done(bare(cookie), result, port));
}

const _: () = assert!(META_BLOCKS > 0);
