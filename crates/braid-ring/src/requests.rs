//! Requests of the control plane to devices, with memory of their own, on one shard.

use std::collections::{BTreeMap, VecDeque};

use braid_engine::{Completion, ErrorKind, IoError, Op, Request, Shard};

use crate::map::Map;
use crate::pending::ReplySender;
use crate::port::Port;
use crate::tokens::{CONTROL_PLANE, TAG_BITS, TAG_LIMIT};

/// Maximum number of requests of the control plane in progress on one shard and stack level. Further ones wait.
const REQUESTS_MAX: usize = 64;

/// The outcome of a request.
pub(crate) struct RequestOutcome {
    pub(crate) result: Result<(), IoError>,
    /// The request's memory. `None` if the request had none, or the kernel may still use it.
    pub(crate) memory: Option<Map>,
    /// Set for a read of a redundant device whose memory the kernel still uses because a disk did not respond in time:
    /// another disk may have the data, and the requester should retry once, with other memory.
    pub(crate) retry: bool,
}

/// A request to a device, and its memory.
pub(crate) struct DeviceRequest {
    /// `request.buf` points into it.
    pub(crate) memory: Option<Map>,
    pub(crate) request: Request,
    /// `None` after a reply that was sent while the kernel still had the memory.
    pub(crate) reply: Option<ReplySender<RequestOutcome>>,
}

impl DeviceRequest {
    fn end(self, result: Result<(), IoError>) {
        if let Some(reply) = self.reply {
            reply.send(RequestOutcome { result, memory: self.memory, retry: false });
        }
    }
}

/// All such requests of one shard and stack level.
#[derive(Default)]
pub(crate) struct Requests {
    /// Requests that have not started.
    waiting: VecDeque<Box<DeviceRequest>>,
    /// Requests, by tag, that the engine has, or whose memory the kernel still has.
    running: BTreeMap<u64, Box<DeviceRequest>>,
    /// Number of running requests that already have a reply. The engine bounds them, so they do not count towards the
    /// maximum.
    late: usize,
    next_tag: u64,
    /// The shard is stopping: nothing new starts.
    stopped: bool,
}

impl Requests {
    /// Accepts a request.
    pub(crate) fn add(&mut self, request: Box<DeviceRequest>) {
        if !self.stopped {
            self.waiting.push_back(request);
        }
    }

    /// Starts waiting requests as far as there is room. Called once per turn.
    pub(crate) fn begin(&mut self, engine: &mut Shard, port: &mut Port) {
        while self.running.len() - self.late < REQUESTS_MAX
            && let Some(mut next) = self.waiting.pop_front()
        {
            let tag = self.next_tag;
            next.request.tag = CONTROL_PLANE << TAG_BITS | tag;
            match engine.submit(&next.request, port) {
                Ok(()) => {
                    // The engine delivers completions only later in the loop, so the request is entered before it ends.
                    // Tags repeat after 2^48 requests, when no earlier request with this tag still runs.
                    self.next_tag = (tag + 1) % TAG_LIMIT;
                    self.running.insert(tag, next);
                }
                // No slot is free. One will be when a request ends, and another turn follows that.
                Err(e) if e.kind == ErrorKind::Busy => return self.waiting.push_front(next),
                Err(e) => next.end(Err(e)),
            }
        }
    }

    /// Replies to a request that the engine has completed. The tag of the completion is without [`CONTROL_PLANE`]. If
    /// the kernel still uses the request's memory, the reply has no memory, and the request stays until
    /// [`Requests::released`].
    pub(crate) fn done(&mut self, completion: &Completion, engine: &Shard) {
        if !completion.buffer_busy {
            if let Some(ended) = self.running.remove(&completion.tag) {
                ended.end(completion.result);
            }
        } else if let Some(late) = self.running.get_mut(&completion.tag) {
            // The kernel may still use the memory, which stays here.
            self.late += 1;
            if let Some(reply) = late.reply.take() {
                let retry = late.request.op == Op::Read && engine.is_redundant(late.request.device);
                reply.send(RequestOutcome { result: completion.result, memory: None, retry });
            }
        }
    }

    /// The kernel has returned the memory of a late request.
    pub(crate) fn released(&mut self, tag: u64) {
        self.late -= usize::from(self.running.remove(&tag).is_some());
    }

    /// Handles a stop of the shard. Requests in progress continue.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.waiting.clear();
    }

    /// Handles the end of the shard while the kernel may still use the memory of running requests: that memory is
    /// leaked.
    pub(crate) fn leak(&mut self) {
        self.stop();
        for request in std::mem::take(&mut self.running).into_values() {
            std::mem::forget(request.memory);
        }
    }
}
