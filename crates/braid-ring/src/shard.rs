//! A shard's thread: one loop around the engine, the port, the sockets and the frontends.
//!
//! A turn of the loop: read the clock; take in mail, messages of other shards and the kernel's events; work off
//! what they led to; let the frontends send what they gathered; and enter the kernel once, to submit, and to sleep if
//! nothing is left to do.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_engine::{Completion, Cookie, DeviceId, LeafResult, META_BLOCKS, Shard, ShardId, ShardMessage};
use rtrb::{Consumer, Producer};

use crate::channels::{CHANNEL_TOKEN, Channels};
use crate::commands;
use crate::driver::{Event, Wait};
use crate::frontend::{Cx, FRONTENDS_MAX, Frontend, TAG_BITS, TAG_LIMIT};
use crate::link::{Control, Countdown, Link};
use crate::net::Net;
use crate::pools::Served;
use crate::port::{Done, Errand, LEAF_TOKEN, Port};
use crate::remote::Remotes;
use crate::requests::{BELOW, CONTROL_PLANE};
use crate::tier::{Duties, META_COOKIE, bare, tier_of, tier_of_cookie, tier_of_pool};
use crate::timer::Timers;
use crate::troubles::Troubles;

/// Rounds of inline results (null and memory disks) that one turn works off before it looks at the kernel again.
const ROUNDS_MAX: usize = 16;

/// The part of a shard that frontends reach through [`Cx`].
pub(crate) struct Core {
    pub(crate) id: ShardId,
    /// Of the first tier.
    pub(crate) engine: Shard,
    /// Of those above.
    pub(crate) upper: Vec<Shard>,
    pub(crate) port: Port,
    pub(crate) net: Net,
    pub(crate) channels: Channels,
    pub(crate) timers: Timers,
}

/// What the engines of one tier tell each other.
pub(crate) type TierMessage = (usize, ShardMessage);

/// The queues to and from the other shards; this shard's own places are empty.
pub(crate) struct Peers {
    pub(crate) to: Vec<Option<Producer<TierMessage>>>,
    pub(crate) from: Vec<Option<Consumer<TierMessage>>>,
    pub(crate) links: Vec<Arc<Link>>,
    /// Shards that have not yet come to rest after a stop.
    pub(crate) restless: Arc<AtomicUsize>,
    /// Where all of them tell of members that failed.
    pub(crate) troubles: Arc<Troubles>,
}

/// A shard with everything that runs on its thread.
pub(crate) struct Runner {
    core: Core,
    frontends: Vec<Box<dyn Frontend>>,
    remotes: Remotes,
    link: Arc<Link>,
    peers: Peers,
    /// Messages that found no room in their queue, in order.
    unsent: Vec<std::collections::VecDeque<TierMessage>>,
    errands: Vec<(ShardId, Errand)>,
    events: Vec<Event>,
    mail: Vec<Control>,
    done: Vec<Done>,
    answers: Vec<Completion>,
    cookies: Vec<Cookie>,
    /// By tier.
    duties: Vec<Duties>,
    removing: Vec<(braid_engine::LeafId, Arc<Countdown>)>,
    draining: Vec<(DeviceId, u32, Arc<Countdown>)>,
    stop: Stop,
    stop_limit_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    No,
    /// Asked to; what is in flight goes on. Since when.
    Draining(u64),
    /// Nothing is in flight here; others may still need this shard.
    Resting,
}

impl Runner {
    pub(crate) fn new(core: Core, frontends: Vec<Box<dyn Frontend>>, peers: Peers, stop_limit_ns: u64) -> Runner {
        let link = Arc::clone(&peers.links[usize::from(core.id.0)]);
        let (capacity, answers) = (core.port.done.capacity(), core.engine.done_capacity());
        Runner {
            core,
            frontends,
            remotes: Remotes::default(),
            link,
            unsent: peers.links.iter().map(|_| std::collections::VecDeque::with_capacity(256)).collect(),
            peers,
            errands: Vec::new(),
            events: Vec::with_capacity(4096),
            mail: Vec::with_capacity(64),
            done: Vec::with_capacity(capacity),
            answers: Vec::with_capacity(answers),
            cookies: Vec::with_capacity(capacity),
            duties: vec![Duties::new(0)],
            removing: Vec::new(),
            draining: Vec::new(),
            stop: Stop::No,
            stop_limit_ns,
        }
    }

    /// Runs until the ring is stopped.
    pub(crate) fn run(mut self) {
        // Unwind safe: after a panic nothing here is used, but for what `fall` lets go of.
        match catch_unwind(AssertUnwindSafe(|| self.work())) {
            Ok(()) => self.end(),
            Err(panic) => {
                self.fall();
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
            self.ring_timers();
            self.settle();
            self.each_frontend(|f, cx| f.end_of_batch(cx));
            self.housekeeping();
            self.remotes.work(&mut self.core);
            self.send_errands();
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

    /// Submits, and sleeps if there is nothing to do.
    fn enter_kernel(&mut self) {
        let wait = if self.has_work() { Wait::No } else { self.sleep_time() };
        if wait == Wait::No {
            self.core.port.driver.turn(Wait::No, &mut self.events);
        } else {
            self.link.wake.fall_asleep();
            // Once more, now that everybody can see that this shard is going to sleep.
            let wait = if self.has_news() { Wait::No } else { wait };
            self.link.sleeps.store(self.link.sleeps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            self.core.port.driver.turn(wait, &mut self.events);
            self.link.wake.awake();
        }
        self.core.port.now_ns = clock_ns();
    }

    /// Whether something has happened that others tell by waking this shard.
    fn has_news(&self) -> bool {
        self.has_mail()
            || self.core.port.has_new_rules()
            || (self.stop == Stop::Resting && self.peers.restless.load(Ordering::Acquire) == 0)
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
        let own = [self.core.port.due_ns(), self.core.timers.due_ns(), self.duties[0].jobs.due_ns()];
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
                    let place = done.frontend - FRONTENDS_MAX as u16;
                    self.remotes.event(&mut self.core, place, done.token, done.result);
                    continue;
                };
                let mut cx = Cx { core: &mut self.core, frontend: done.frontend };
                frontend.net_done(&mut cx, done.token, done.result);
            }
        }
        self.events = events;
    }

    fn ring_timers(&mut self) {
        while let Some((frontend, token)) = self.core.timers.pop(self.core.port.now_ns) {
            if usize::from(frontend) >= FRONTENDS_MAX {
                self.remotes.timer(&mut self.core, frontend - FRONTENDS_MAX as u16, token);
                continue;
            }
            let mut cx = Cx { core: &mut self.core, frontend };
            self.frontends[usize::from(frontend)].timer(&mut cx, token);
        }
    }

    /// Brings results to the engine and the engine's to the frontends, until none are left, or for some rounds.
    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            std::mem::swap(&mut self.done, &mut self.core.port.done);
            for &Done { cookie, result } in &self.done {
                if cookie.0 >= META_COOKIE {
                    done_elsewhere(&mut self.core, &mut self.duties, cookie, result);
                } else {
                    self.core.engine.leaf_done(cookie, result, &mut self.core.port);
                }
            }
            self.done.clear();
            if !self.core.port.late.is_empty() || !self.core.port.returned.is_empty() {
                self.take_late();
            }
            self.answer(0);
            // All that there was for now has been taken in: neighbours among the writes are together.
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

    /// The same for the tiers above the first; what they ask of those below is submitted there.
    #[cold]
    fn settle_above(&mut self) {
        for tier in 1..=self.core.upper.len() {
            self.answer(tier);
            self.core.on(tier, |engine, port| engine.end_turn(port));
        }
        self.core.port.retry_below();
        for tier in (0..self.core.upper.len()).rev() {
            while let Some(request) = self.core.port.next_below(tier) {
                let submitted = self.core.on(tier, |engine, port| engine.submit(&request, port));
                let submitted = submitted.expect("the tier of a device that is a disk is there");
                self.core.port.submitted_below(tier, submitted);
            }
        }
    }

    /// Tells those who asked the engine of a tier.
    fn answer(&mut self, tier: usize) {
        let mut answers = std::mem::take(&mut self.answers);
        let engine = if tier == 0 { &mut self.core.engine } else { &mut self.core.upper[tier - 1] };
        engine.swap_done(&mut answers);
        let mut rest = &mut answers[..];
        while let Some(first) = rest.first() {
            // Mostly all are of one frontend: it is called once for all in a row.
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
                let engine = self.core.engine_of(tier).expect("it has answered");
                these.iter().for_each(|completion| self.duties[tier].requests.done(completion, engine));
                continue;
            }
            if frontend == BELOW {
                these.iter().for_each(|completion| self.core.port.done_below(completion));
                continue;
            }
            let mut cx = Cx { core: &mut self.core, frontend: frontend as u16 };
            self.frontends[frontend as usize].ios_done(&mut cx, these);
        }
        self.answers = answers;
        let released = |core: &mut Core| core.on(tier, |engine, _| engine.pop_released()).flatten();
        while let Some(tag) = released(&mut self.core) {
            if tag >> TAG_BITS == CONTROL_PLANE {
                self.duties[tier].requests.released(tag & (TAG_LIMIT - 1));
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
            let tier = tier_of_cookie(cookie);
            if cookie.0 & META_COOKIE != 0 {
                self.duties[tier].metas.late(cookie);
            } else {
                self.core.on(tier, |engine, port| engine.leaf_late(bare(cookie), port));
            }
        }
        self.cookies.clear();
        std::mem::swap(&mut self.cookies, &mut self.core.port.returned);
        for &cookie in &self.cookies {
            let tier = tier_of_cookie(cookie);
            if cookie.0 & META_COOKIE != 0 {
                self.duties[tier].metas.returned(cookie);
            } else {
                self.core.on(tier, |engine, port| engine.leaf_returned(bare(cookie), port));
            }
        }
        self.cookies.clear();
    }

    /// Takes in what the control plane wants.
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
                        self.core.port.add_leaf(id, disk, counters);
                        self.core.port.set_host(id, host);
                        continue;
                    }
                    let place = disk.remote().map(|remote| self.remotes.add(remote, shard));
                    if place == Some(None) {
                        // Without memory for it there is no such disk here: what is asked of it is refused.
                        continue;
                    }
                    self.core.port.add_leaf(id, disk, counters);
                    if let Some(place) = place.flatten() {
                        self.core.port.set_remote(id, place);
                    }
                }
                Control::ResizeLeaf { id, known } => {
                    self.core.port.resize_leaf(id);
                    known.arrive();
                }
                Control::Raise(raise) => {
                    self.duties.push(Duties::new(raise.tier));
                    self.core.raise(*raise);
                }
                Control::RemoveLeaf { id, gone } => self.removing.push((id, gone)),
                Control::Publish { device, layout, drained } => {
                    let tier = tier_of(device);
                    match self.core.on(tier, |engine, port| engine.publish(device, layout, port)).flatten() {
                        None => drained.arrive(),
                        Some(version) => self.draining.push((device, version, drained)),
                    }
                }
                Control::Freeze { device, frozen } => {
                    self.core.on(tier_of(device), |engine, port| engine.freeze(device, port));
                    frozen.arrive();
                }
                Control::Renewed { device } => {
                    self.core.on(tier_of(device), |engine, port| engine.renewed(device, port));
                }
                Control::Part(job) => {
                    if let Some(duties) = self.duties.get_mut(tier_of(job.part.device)) {
                        duties.jobs.add(job);
                    }
                }
                Control::Call { device, call, done } => {
                    if let Some(duties) = self.duties.get_mut(tier_of(device)) {
                        self.core
                            .on(tier_of(device), |engine, port| duties.jobs.call((engine, port), device, call, done));
                    }
                }
                Control::Sleep { until_ns, done } => self.duties[0].jobs.wake_at(until_ns, done),
                Control::Post { frontend, message } => {
                    if let Some(to) = self.frontends.get_mut(frontend) {
                        to.message(&mut Cx { core: &mut self.core, frontend: frontend as u16 }, message);
                    }
                }
                Control::Errand(errand) => self.core.port.on_errand(errand),
                Control::Meta(tier, request) => {
                    if let Some(duties) = self.duties.get_mut(tier) {
                        duties.metas.add(request);
                    }
                }
                Control::Request(request) => {
                    if let Some(duties) = self.duties.get_mut(tier_of(request.request.device)) {
                        duties.requests.add(request);
                    }
                }
                Control::KnowPool { key, home, done } => {
                    self.core.on(tier_of_pool(key), |engine, _| engine.know_pool(key, home));
                    done.keep(());
                }
                Control::ServePool(served) => {
                    let Served { key, pool, members, done } = *served;
                    self.core.on(tier_of_pool(key), |engine, port| engine.serve_pool(key, pool, members, port));
                    done.keep(());
                }
                Control::CallPool { key, call, done } => {
                    let tier = tier_of_pool(key);
                    if let Some(duties) = self.duties.get_mut(tier) {
                        self.core.on(tier, |engine, port| duties.pool_calls.call((engine, port), key, call, done));
                    }
                }
                Control::LeavePool { key, done, ended } => {
                    let tier = tier_of_pool(key);
                    let left = self.core.on(tier, |engine, port| engine.leave_pool(key, port)).flatten();
                    if let Some(duties) = self.duties.get_mut(tier).filter(|_| left.is_some()) {
                        duties.pool_calls.leaves(key, ended);
                    }
                    done.keep(left);
                }
                Control::Counters { device, answer } => {
                    let engine = self.core.engine_of(tier_of(device));
                    answer.keep(engine.map(|engine| engine.counters(device)).unwrap_or_default());
                }
                Control::Stop => {
                    if self.stop == Stop::No {
                        self.stop = Stop::Draining(self.core.port.now_ns);
                        for duties in &mut self.duties {
                            duties.jobs.stop();
                            duties.requests.stop();
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
            while let Some(Ok((tier, message))) = self.peers.from[at].as_mut().map(Consumer::pop) {
                if tier == 0 {
                    self.core.engine.message(message, &mut self.core.port);
                    continue;
                }
                if tier > self.core.upper.len() {
                    // Whoever sent it was told of the tier, and so is this shard: it has not looked yet.
                    self.take_mail();
                }
                self.core.on(tier, |engine, port| engine.message(message, port));
            }
        }
    }

    /// Things that hardly ever have anything to do: each costs one look.
    fn housekeeping(&mut self) {
        for tier in 0..=self.core.upper.len() {
            let duties = &mut self.duties[tier];
            self.core.on(tier, |engine, port| {
                duties.jobs.begin(engine, port);
                duties.jobs.end(engine);
                duties.requests.begin(engine, port);
                duties.pool_calls.end(engine);
                while let Some(trouble) = engine.pop_trouble() {
                    self.peers.troubles.tell(trouble);
                }
                while let Some((to, message)) = engine.pop_message() {
                    self.unsent[usize::from(to.0)].push_back((tier, message));
                }
                while let Some((device, version)) = engine.pop_drained() {
                    if let Some(at) = self.draining.iter().position(|d| (d.0, d.1) == (device, version)) {
                        self.draining.swap_remove(at).2.arrive();
                    }
                }
            });
            self.duties[tier].metas.begin(&mut self.core.port);
        }
        if self.unsent.iter().any(|queue| !queue.is_empty()) {
            self.send_messages();
        }
        let (core, remotes) = (&mut self.core, &mut self.remotes);
        self.removing.retain(|(id, gone)| {
            let removed = match core.port.remote_of(*id) {
                Some(place) => core.port.is_quiet(*id) && remotes.leave(core, place) && core.port.remove_leaf(*id),
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
                    // A shard that has panicked reads nothing any more.
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

    /// Tells other shards of I/Os on disks with one connection.
    fn send_errands(&mut self) {
        self.core.port.swap_errands(&mut self.errands);
        for (to, errand) in self.errands.drain(..) {
            if !self.peers.links[usize::from(to.0)].send(Control::Errand(errand)) {
                self.core.port.errand_fails(errand);
            }
        }
    }

    /// Whether the thread may end: nothing is in flight, here or on any other shard.
    fn may_end(&mut self) -> bool {
        if let Stop::Draining(since) = self.stop {
            let quiet = self.core.engine.in_flight() == 0
                && self.core.upper.iter().all(|engine| engine.in_flight() == 0)
                && self.core.port.in_flight() == 0
                && self.core.net.sends() == 0
                && self.core.channels.writes() == 0
                && !self.duties.iter().any(|duties| duties.metas.has_waiting())
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
            self.rest();
        }
        self.peers.restless.load(Ordering::Acquire) == 0
    }

    fn frontends_are_quiet(&mut self) -> bool {
        let mut quiet = true;
        self.each_frontend(|f, cx| quiet &= f.is_quiet(cx));
        quiet
    }

    /// Tells the other shards that this one is not needed for its own sake any more.
    fn rest(&mut self) {
        self.stop = Stop::Resting;
        if self.peers.restless.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.peers.links.iter().for_each(|link| link.wake.wake());
        }
    }

    /// Ends the shard after a panic, so that nobody waits for it. What the kernel may still write to is never given back.
    #[cold]
    fn fall(self) {
        let mut this = std::mem::ManuallyDrop::new(self);
        if this.stop != Stop::Resting {
            this.rest();
        }
        this.link.close();
        this.peers.from.clear();
        // What is dropped here breaks a promise, which is an error to whoever waits.
        this.draining.clear();
        this.removing.clear();
        for duties in &mut this.duties {
            duties.jobs.lose();
            duties.requests.lose();
            duties.metas.lose();
        }
        let core = &mut this.core;
        core.net.close_all(&mut core.port.driver);
        core.channels.close_all(&mut core.port.driver);
    }

    /// Lets go of everything, or, if the kernel still has something, of as much as is safe.
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
            || port.has_errands_away()
            || net.busy() + channels.busy() > 0
            || self.duties.iter().any(|duties| duties.metas.has_memory())
        {
            // A disk has not answered even now. What the kernel may still write to is never given back.
            for duties in &mut self.duties {
                duties.jobs.lose();
                duties.requests.lose();
                duties.metas.lose();
            }
            std::mem::forget(net);
            std::mem::forget(channels);
            self.remotes.lose();
            port.leak();
        }
    }
}

/// A leaf I/O has ended that is not of the first tier's engine.
#[cold]
fn done_elsewhere(core: &mut Core, duties: &mut [Duties], cookie: Cookie, result: LeafResult) {
    let tier = tier_of_cookie(cookie);
    if cookie.0 & META_COOKIE != 0 {
        return duties[tier].metas.done(cookie, result);
    }
    core.on(tier, |engine, port| engine.leaf_done(bare(cookie), result, port));
}

/// Reads the monotonic clock, in nanoseconds.
pub(crate) fn clock_ns() -> u64 {
    read_clock(libc::CLOCK_MONOTONIC)
}

/// Reads the clock that leases go by: nobody sets it either, and it goes on while the machine is suspended. Whoever waits for the end of
/// a lease elsewhere is awake meanwhile.
pub(crate) fn lease_clock_ns() -> u64 {
    read_clock(libc::CLOCK_BOOTTIME)
}

#[allow(unsafe_code)]
fn read_clock(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a value of ours. It cannot fail: every Linux has these clocks.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

const _: () = assert!(META_BLOCKS > 0);
