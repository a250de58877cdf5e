//! What a shard does for those who keep redundant arrays: parts of jobs, calls to the home of regions, alarm clocks.

use std::collections::{BTreeMap, VecDeque};

use braid_engine::limits::SYNCS_MAX;
use braid_engine::{DeviceId, ErrorKind, RegionCall, Shard};

use crate::parts::PartJob;
use crate::pending::Promise;
use crate::port::Port;

/// All of that which is under way on one shard.
pub(crate) struct Jobs {
    /// Parts that have not begun.
    waiting: VecDeque<Box<PartJob>>,
    /// Parts that the engine has.
    running: Vec<Option<Box<PartJob>>>,
    calls: VecDeque<(u64, Promise<()>)>,
    next_call: u64,
    /// Who wants to be woken, by the time and a number.
    sleepers: BTreeMap<(u64, u64), Promise<()>>,
    next_sleeper: u64,
    /// The shard stops: nothing new is begun.
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

    /// Takes a part in.
    pub(crate) fn add(&mut self, job: Box<PartJob>) {
        if !self.stopped {
            self.waiting.push_back(job);
        }
    }

    /// Takes a call in.
    pub(crate) fn call(
        &mut self,
        (engine, port): (&mut Shard, &mut Port),
        device: DeviceId,
        call: RegionCall,
        done: Promise<()>,
    ) {
        self.next_call += 1;
        self.calls.push_back((self.next_call, done));
        engine.call(self.next_call, device, call, port);
    }

    /// Somebody wants to be woken at a time of the shard's clock.
    pub(crate) fn wake_at(&mut self, at_ns: u64, done: Promise<()>) {
        if !self.stopped {
            self.next_sleeper += 1;
            self.sleepers.insert((at_ns, self.next_sleeper), done);
        }
    }

    /// When the next one is to be woken.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.sleepers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Begins what waits, as far as there is room. Called once a turn.
    pub(crate) fn begin(&mut self, engine: &mut Shard, port: &mut Port) {
        while let Some(sleeper) = self.sleepers.first_entry()
            && sleeper.key().0 <= port.now_ns
        {
            sleeper.remove().keep(());
        }
        while let Some(job) = self.waiting.pop_front() {
            let Some(place) = self.running.iter().position(Option::is_none) else {
                return self.waiting.push_front(job);
            };
            match engine.sync(&job.request(place as u64), port) {
                Ok(()) => self.running[place] = Some(job),
                // No slot is free. One will be, when something ends, and then there is another turn.
                Err(e) if e.kind == ErrorKind::Busy && !engine.is_held_up(job.part.device) => {
                    return self.waiting.push_front(job);
                }
                Err(e) => job.answer.keep(Err(e)),
            }
        }
    }

    /// Tells of what has ended. Called once a turn.
    pub(crate) fn end(&mut self, engine: &mut Shard) {
        while let Some(done) = engine.pop_sync_done() {
            let Some(job) = self.running[done.tag as usize].take() else { continue };
            let PartJob { loan, answer, .. } = *job;
            if done.buffer_lost {
                loan.lose();
            }
            answer.keep(done.result.map(|()| done.compared));
        }
        while let Some(id) = engine.pop_called() {
            if let Some(at) = self.calls.iter().position(|call| call.0 == id)
                && let Some((_, done)) = self.calls.remove(at)
            {
                done.keep(());
            }
        }
    }

    /// The shard stops. What is under way goes on.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.waiting.clear();
        self.sleepers.clear();
    }

    /// The shard has ended, while the kernel may still use the memory of what is under way.
    pub(crate) fn lose(&mut self) {
        self.stop();
        self.calls.clear();
        for job in self.running.iter_mut().filter_map(Option::take) {
            job.loan.lose();
        }
    }
}
