//! The work of a shard for the monitors of redundant arrays: parts of jobs, calls to region maps, and timers.

use std::collections::{BTreeMap, VecDeque};

use braid_engine::limits::SYNCS_MAX;
use braid_engine::{DeviceId, ErrorKind, RegionCall, Shard};

use crate::parts::PartJob;
use crate::pending::ReplySender;
use crate::port::Port;

/// All such work in progress on one shard.
pub(crate) struct Jobs {
    /// Parts that have not started.
    waiting: VecDeque<Box<PartJob>>,
    /// Parts that the engine has.
    running: Vec<Option<Box<PartJob>>>,
    calls: VecDeque<(u64, ReplySender<()>)>,
    next_call: u64,
    /// Timers, by due time in nanoseconds and then by the order in which they were set.
    sleepers: BTreeMap<(u64, u64), ReplySender<()>>,
    next_sleeper: u64,
    /// The shard is stopping: nothing new starts.
    stopped: bool,
}

impl Jobs {
    pub(crate) fn new() -> Jobs {
        Jobs {
            waiting: VecDeque::new(),
            running: (0..SYNCS_MAX).map(|_| None).collect(),
            calls: VecDeque::new(),
            next_call: 0,
            sleepers: BTreeMap::new(),
            next_sleeper: 0,
            stopped: false,
        }
    }

    /// Queues a part. After a stop the part is dropped, and its caller gets `NoDevice`.
    pub(crate) fn add(&mut self, job: Box<PartJob>) {
        if !self.stopped {
            self.waiting.push_back(job);
        }
    }

    /// Passes a call to the engine.
    pub(crate) fn call(
        &mut self,
        (engine, port): (&mut Shard, &mut Port),
        device: DeviceId,
        call: RegionCall,
        done: ReplySender<()>,
    ) {
        self.next_call += 1;
        self.calls.push_back((self.next_call, done));
        engine.begin_call(self.next_call, device, call, port);
    }

    /// Sets a timer at a time of the shard's clock in nanoseconds. After a stop `done` is dropped, which ends the
    /// caller's wait at once.
    pub(crate) fn wake_at(&mut self, at_ns: u64, done: ReplySender<()>) {
        if !self.stopped {
            self.next_sleeper += 1;
            self.sleepers.insert((at_ns, self.next_sleeper), done);
        }
    }

    /// Returns when the next timer fires.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.sleepers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Fires due timers, and starts waiting parts as far as there is room. Called once per turn.
    pub(crate) fn begin(&mut self, engine: &mut Shard, port: &mut Port) {
        while let Some(sleeper) = self.sleepers.first_entry()
            && sleeper.key().0 <= port.now_ns
        {
            sleeper.remove().send(());
        }
        while let Some(job) = self.waiting.pop_front() {
            let Some(index) = self.running.iter().position(Option::is_none) else {
                return self.waiting.push_front(job);
            };
            match engine.submit_sync(&job.request(index as u64), port) {
                Ok(()) => self.running[index] = Some(job),
                // No slot is free. One will be when a request ends, and another turn follows that.
                Err(e) if e.kind == ErrorKind::Busy && !engine.is_stalled(job.part.device) => {
                    return self.waiting.push_front(job);
                }
                Err(e) => job.reply.send(Err(e)),
            }
        }
    }

    /// Replies to parts and calls that have ended. Called once per turn.
    pub(crate) fn end(&mut self, engine: &mut Shard) {
        while let Some(done) = engine.pop_sync_done() {
            let Some(job) = self.running[done.tag as usize].take() else { continue };
            let PartJob { buffer, reply, .. } = *job;
            if done.buffer_lost {
                buffer.leak();
            }
            reply.send(done.result.map(|()| done.compared));
        }
        while let Some(id) = engine.pop_call_done() {
            if let Some(at) = self.calls.iter().position(|call| call.0 == id)
                && let Some((_, done)) = self.calls.remove(at)
            {
                done.send(());
            }
        }
    }

    /// Handles a stop of the shard. Work in progress continues.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.waiting.clear();
        self.sleepers.clear();
    }

    /// Handles the end of the shard while the kernel may still use the memory of running parts: that memory is leaked.
    pub(crate) fn leak(&mut self) {
        self.stop();
        self.calls.clear();
        for job in self.running.iter_mut().filter_map(Option::take) {
            job.buffer.leak();
        }
    }
}
