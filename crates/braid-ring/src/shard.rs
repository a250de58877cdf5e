//! A shard's thread: one loop around the engine, the port, the sockets and the frontends.
//!
//! A turn of the loop: read the clock; take in mail, messages of other shards and the kernel's events; work off
//! what they led to; let the frontends send what they gathered; and enter the kernel once, to submit, and to sleep if
//! nothing is left to do.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_engine::{
    Completion, Cookie, DeviceId, ErrorKind, LeafError, LeafResult, LeafSink, META_BLOCKS, Shard, ShardId, ShardMessage,
};
use rtrb::{Consumer, Producer};

use crate::driver::{Event, Wait};
use crate::frontend::{Cx, Frontend, TAG_BITS, TAG_LIMIT};
use crate::jobs::Jobs;
use crate::link::{Control, Countdown, Link, MetaRequest};
use crate::net::Net;
use crate::pools::{PoolCalls, Served};
use crate::port::{Done, LEAF_TOKEN, Port};
use crate::requests::{CONTROL_PLANE, Requests};
use crate::timer::Timers;
use crate::troubles::Troubles;

/// Leaf I/Os of the control plane on one shard at a time; more wait.
pub(crate) const META_MAX: usize = 64;
/// Marks their cookies; the engine's own leave the top byte 0.
const META_COOKIE: u64 = 1 << 56;
/// Rounds of inline results (null and memory disks) that one turn works off before it looks at the kernel again.
const ROUNDS_MAX: usize = 16;

/// The part of a shard that frontends reach through [`Cx`].
pub(crate) struct Core {
    pub(crate) id: ShardId,
    pub(crate) engine: Shard,
    pub(crate) port: Port,
    pub(crate) net: Net,
    pub(crate) timers: Timers,
}

/// The queues to and from the other shards; this shard's own places are empty.
pub(crate) struct Peers {
    pub(crate) to: Vec<Option<Producer<ShardMessage>>>,
    pub(crate) from: Vec<Option<Consumer<ShardMessage>>>,
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
    link: Arc<Link>,
    peers: Peers,
    /// Messages that found no room in their queue, in order.
    unsent: Vec<std::collections::VecDeque<ShardMessage>>,
    events: Vec<Event>,
    mail: Vec<Control>,
    done: Vec<Done>,
    answers: Vec<Completion>,
    cookies: Vec<Cookie>,
    meta: Vec<Option<Box<MetaRequest>>>,
    meta_free: Vec<u32>,
    meta_waiting: std::collections::VecDeque<Box<MetaRequest>>,
    jobs: Jobs,
    requests: Requests,
    pool_calls: PoolCalls,
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
            link,
            unsent: peers.links.iter().map(|_| std::collections::VecDeque::with_capacity(256)).collect(),
            peers,
            events: Vec::with_capacity(4096),
            mail: Vec::with_capacity(64),
            done: Vec::with_capacity(capacity),
            answers: Vec::with_capacity(answers),
            cookies: Vec::with_capacity(capacity),
            meta: (0..META_MAX).map(|_| None).collect(),
            meta_free: (0..META_MAX as u32).rev().collect(),
            meta_waiting: std::collections::VecDeque::with_capacity(META_MAX),
            jobs: Jobs::new(),
            requests: Requests::default(),
            pool_calls: PoolCalls::default(),
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
            || self.has_mail()
            || self.unsent.iter().any(|queue| !queue.is_empty())
    }

    fn sleep_time(&self) -> Wait {
        let own = [self.core.port.due_ns(), self.core.timers.due_ns(), self.jobs.due_ns()];
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
            } else if let Some(done) = self.core.net.on_event(event, &mut self.core.port.driver)
                && let Some(frontend) = self.frontends.get_mut(usize::from(done.frontend))
            {
                let mut cx = Cx { core: &mut self.core, frontend: done.frontend };
                frontend.net_done(&mut cx, done.token, done.result);
            }
        }
        self.events = events;
    }

    fn ring_timers(&mut self) {
        while let Some((frontend, token)) = self.core.timers.pop(self.core.port.now_ns) {
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
                    Self::meta_done(&mut self.meta, &mut self.meta_free, cookie, result);
                } else {
                    self.core.engine.leaf_done(cookie, result, &mut self.core.port);
                }
            }
            self.done.clear();
            if !self.core.port.late.is_empty() || !self.core.port.returned.is_empty() {
                self.take_late();
            }
            self.answer_frontends();
            // All that there was for now has been taken in: neighbours among the writes are together.
            self.core.engine.end_turn(&mut self.core.port);
            if self.core.port.done.is_empty() && !self.core.engine.has_done() {
                return;
            }
        }
    }

    fn answer_frontends(&mut self) {
        let mut answers = std::mem::take(&mut self.answers);
        self.core.engine.swap_done(&mut answers);
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
                these.iter().for_each(|completion| self.requests.done(completion, &self.core.engine));
                continue;
            }
            let mut cx = Cx { core: &mut self.core, frontend: frontend as u16 };
            self.frontends[frontend as usize].ios_done(&mut cx, these);
        }
        self.answers = answers;
        while let Some(tag) = self.core.engine.pop_released() {
            if tag >> TAG_BITS == CONTROL_PLANE {
                self.requests.released(tag & (TAG_LIMIT - 1));
                continue;
            }
            let frontend = (tag >> TAG_BITS) as u16;
            let mut cx = Cx { core: &mut self.core, frontend };
            self.frontends[usize::from(frontend)].released(&mut cx, tag & (TAG_LIMIT - 1));
        }
    }

    #[cold]
    fn take_late(&mut self) {
        let timed_out = Err(LeafError::of(ErrorKind::TimedOut));
        std::mem::swap(&mut self.cookies, &mut self.core.port.late);
        for at in 0..self.cookies.len() {
            let cookie = self.cookies[at];
            if cookie.0 >= META_COOKIE {
                self.meta_late(cookie, timed_out);
            } else {
                self.core.engine.leaf_late(cookie, &mut self.core.port);
            }
        }
        self.cookies.clear();
        std::mem::swap(&mut self.cookies, &mut self.core.port.returned);
        for &cookie in &self.cookies {
            if cookie.0 >= META_COOKIE {
                // Answered by its time limit; now its place, and its memory, are free.
                let index = cookie.0 as u32;
                self.meta[index as usize] = None;
                self.meta_free.push(index);
            } else {
                self.core.engine.leaf_returned(cookie, &mut self.core.port);
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
                    self.core.port.add_leaf(id, disk, counters);
                }
                Control::ResizeLeaf { id, known } => {
                    self.core.port.resize_leaf(id);
                    known.arrive();
                }
                Control::RemoveLeaf { id, gone } => self.removing.push((id, gone)),
                Control::Publish { device, layout, drained } => {
                    match self.core.engine.publish(device, layout, &mut self.core.port) {
                        None => drained.arrive(),
                        Some(version) => self.draining.push((device, version, drained)),
                    }
                }
                Control::Freeze { device, frozen } => {
                    self.core.engine.freeze(device, &mut self.core.port);
                    frozen.arrive();
                }
                Control::Part(job) => self.jobs.add(job),
                Control::Call { device, call, done } => self.jobs.call(&mut self.core, device, call, done),
                Control::Sleep { until_ns, done } => self.jobs.wake_at(until_ns, done),
                Control::Post { frontend, message } => {
                    if let Some(to) = self.frontends.get_mut(frontend) {
                        to.message(&mut Cx { core: &mut self.core, frontend: frontend as u16 }, message);
                    }
                }
                Control::Meta(request) => self.meta_waiting.push_back(request),
                Control::Request(request) => self.requests.add(request),
                Control::KnowPool { key, home, done } => {
                    self.core.engine.know_pool(key, home);
                    done.keep(());
                }
                Control::ServePool(served) => {
                    let Served { key, pool, members, done } = *served;
                    self.core.engine.serve_pool(key, pool, members, &mut self.core.port);
                    done.keep(());
                }
                Control::CallPool { key, call, done } => self.pool_calls.call(&mut self.core, key, call, done),
                Control::LeavePool { key, done } => done.keep(self.core.engine.leave_pool(key)),
                Control::Counters { device, answer } => answer.keep(self.core.engine.counters(device)),
                Control::Stop => {
                    if self.stop == Stop::No {
                        self.stop = Stop::Draining(self.core.port.now_ns);
                        self.jobs.stop();
                        self.requests.stop();
                        self.each_frontend(|f, cx| f.stop(cx));
                    }
                }
            }
        }
        self.mail = mail;
    }

    fn take_messages(&mut self) {
        for queue in self.peers.from.iter_mut().flatten() {
            while let Ok(message) = queue.pop() {
                self.core.engine.message(message, &mut self.core.port);
            }
        }
    }

    /// Things that hardly ever have anything to do: each costs one look.
    fn housekeeping(&mut self) {
        self.jobs.begin(&mut self.core);
        self.jobs.end(&mut self.core);
        self.requests.begin(&mut self.core);
        self.pool_calls.end(&mut self.core);
        while let Some(trouble) = self.core.engine.pop_trouble() {
            self.peers.troubles.tell(trouble);
        }
        while let Some((to, message)) = self.core.engine.pop_message() {
            self.unsent[usize::from(to.0)].push_back(message);
        }
        if self.unsent.iter().any(|queue| !queue.is_empty()) {
            self.send_messages();
        }
        while let Some((device, version)) = self.core.engine.pop_drained() {
            if let Some(at) = self.draining.iter().position(|d| (d.0, d.1) == (device, version)) {
                self.draining.swap_remove(at).2.arrive();
            }
        }
        while !self.meta_waiting.is_empty() && !self.meta_free.is_empty() {
            self.meta_begin();
        }
        let port = &mut self.core.port;
        self.removing.retain(|(id, gone)| {
            let removed = port.remove_leaf(*id);
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

    fn meta_begin(&mut self) {
        let Some(mut request) = self.meta_waiting.pop_front() else { return };
        if self.meta.iter().flatten().any(|late| late.may_land_on(&request.io)) {
            let MetaRequest { memory, answer, .. } = *request;
            let refused = Err(LeafError::of(ErrorKind::TimedOut));
            if let Some(answer) = answer {
                answer.keep((refused, memory));
            }
            return;
        }
        let index = self.meta_free.pop().expect("called only while there is a place");
        request.io.cookie = Cookie(META_COOKIE | u64::from(index));
        let io = request.io;
        self.meta[index as usize] = Some(request);
        self.core.port.submit(&io);
    }

    fn meta_done(meta: &mut [Option<Box<MetaRequest>>], free: &mut Vec<u32>, cookie: Cookie, result: LeafResult) {
        let index = cookie.0 as u32;
        if let Some(request) = meta[index as usize].take() {
            let MetaRequest { memory, answer, .. } = *request;
            if let Some(answer) = answer {
                answer.keep((result, memory));
            }
        }
        free.push(index);
    }

    /// The kernel may still use the memory, which stays in its place.
    fn meta_late(&mut self, cookie: Cookie, result: LeafResult) {
        if let Some(request) = &mut self.meta[cookie.0 as u32 as usize]
            && let Some(answer) = request.answer.take()
        {
            answer.keep((result, None));
        }
    }

    /// Whether the thread may end: nothing is in flight, here or on any other shard.
    fn may_end(&mut self) -> bool {
        if let Stop::Draining(since) = self.stop {
            let quiet = self.core.engine.in_flight() == 0
                && self.core.port.in_flight() == 0
                && self.core.net.sends() == 0
                && self.meta_waiting.is_empty()
                && !self.has_work();
            let overdue = self.core.port.now_ns.saturating_sub(since) >= self.stop_limit_ns;
            if !quiet && !overdue {
                return false;
            }
            self.core.net.close_all(&mut self.core.port.driver);
            if self.core.net.busy() > 0 && !overdue {
                return false;
            }
            self.rest();
        }
        self.peers.restless.load(Ordering::Acquire) == 0
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
        this.meta_waiting.clear();
        this.jobs.lose();
        this.requests.lose();
        for request in this.meta.iter_mut().filter_map(Option::take) {
            std::mem::forget(request.memory);
        }
        let core = &mut this.core;
        core.net.close_all(&mut core.port.driver);
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
        let Core { port, net, .. } = self.core;
        if port.issued() > 0 || net.busy() > 0 || self.meta.iter().any(Option::is_some) {
            // A disk has not answered even now. What the kernel may still write to is never given back.
            self.jobs.lose();
            self.requests.lose();
            std::mem::forget((self.meta, net));
            port.leak();
        }
    }
}

/// Reads the monotonic clock, in nanoseconds.
#[allow(unsafe_code)]
pub(crate) fn clock_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a value of ours. It cannot fail: every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

const _: () = assert!(META_BLOCKS > 0);
