//! What a shard does for those who read and write devices from outside: requests with memory of their own.

use std::collections::{BTreeMap, VecDeque};

use braid_engine::{Completion, ErrorKind, IoError, Op, Request, Shard};

use crate::frontend::{FRONTENDS_MAX, TAG_BITS, TAG_LIMIT};
use crate::map::Map;
use crate::pending::Promise;
use crate::port::Port;

/// Requests of the control plane to devices on one shard and of one tier at a time; more wait.
const REQUESTS_MAX: usize = 64;

/// Stands in their tags where those of a frontend have its index.
pub(crate) const CONTROL_PLANE: u64 = (1 << (64 - TAG_BITS)) - 1;

/// The same of what a leaf that is a device of the tier below was asked: see [`crate::tier`].
pub(crate) const BELOW: u64 = CONTROL_PLANE - 1;

const _: () = assert!(FRONTENDS_MAX as u64 <= BELOW);

/// How a request ended.
pub(crate) struct Ended {
    pub(crate) result: Result<(), IoError>,
    /// None is left where the kernel still has it.
    pub(crate) memory: Option<Map>,
    /// One disk did not give in time what another one may have: worth a second try, with other memory.
    pub(crate) again: bool,
}

/// A request to a device, with the memory it works on.
pub(crate) struct DeviceRequest {
    /// `request.buf` points into it.
    pub(crate) memory: Option<Map>,
    pub(crate) request: Request,
    /// None is left once it was answered while the kernel still had the memory.
    pub(crate) answer: Option<Promise<Ended>>,
}

impl DeviceRequest {
    fn end(self, result: Result<(), IoError>) {
        if let Some(answer) = self.answer {
            answer.keep(Ended { result, memory: self.memory, again: false });
        }
    }
}

/// All of them on one shard.
#[derive(Default)]
pub(crate) struct Requests {
    /// They have not begun.
    waiting: VecDeque<Box<DeviceRequest>>,
    /// By their tags: the engine has them, or the kernel still has their memory.
    running: BTreeMap<u64, Box<DeviceRequest>>,
    /// So many of those have been answered: the engine bounds them, and they keep nobody waiting.
    late: usize,
    next_tag: u64,
    /// The shard stops: nothing new is begun.
    stopped: bool,
}

impl Requests {
    /// Takes a request in.
    pub(crate) fn add(&mut self, request: Box<DeviceRequest>) {
        if !self.stopped {
            self.waiting.push_back(request);
        }
    }

    /// Begins what waits, as far as there is room. Called once a turn.
    pub(crate) fn begin(&mut self, engine: &mut Shard, port: &mut Port) {
        while self.running.len() - self.late < REQUESTS_MAX
            && let Some(mut next) = self.waiting.pop_front()
        {
            let tag = self.next_tag;
            next.request.tag = CONTROL_PLANE << TAG_BITS | tag;
            match engine.submit(&next.request, port) {
                Ok(()) => {
                    // It cannot end before this turn does, nor can another one still bear this tag after so many.
                    self.next_tag = (tag + 1) % TAG_LIMIT;
                    self.running.insert(tag, next);
                }
                // No slot is free. One will be, when something ends, and then there is another turn.
                Err(e) if e.kind == ErrorKind::Busy => return self.waiting.push_front(next),
                Err(e) => next.end(Err(e)),
            }
        }
    }

    /// Tells of one that has ended; the tag is without [`CONTROL_PLANE`].
    pub(crate) fn done(&mut self, completion: &Completion, engine: &Shard) {
        if !completion.buffer_busy {
            if let Some(ended) = self.running.remove(&completion.tag) {
                ended.end(completion.result);
            }
        } else if let Some(late) = self.running.get_mut(&completion.tag) {
            // The kernel may still use the memory, which stays here.
            self.late += 1;
            if let Some(answer) = late.answer.take() {
                let again = late.request.op == Op::Read && engine.is_redundant(late.request.device);
                answer.keep(Ended { result: completion.result, memory: None, again });
            }
        }
    }

    /// The kernel has given the memory of a late one back.
    pub(crate) fn released(&mut self, tag: u64) {
        self.late -= usize::from(self.running.remove(&tag).is_some());
    }

    /// The shard stops. What is under way goes on.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.waiting.clear();
    }

    /// The shard has ended, while the kernel may still use the memory of what is under way.
    pub(crate) fn lose(&mut self) {
        self.stop();
        for request in std::mem::take(&mut self.running).into_values() {
            std::mem::forget(request.memory);
        }
    }
}
