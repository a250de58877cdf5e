//! Leaf I/Os of the control plane on one shard: labels and other metadata on disks.

use std::collections::VecDeque;

use braid_engine::{Cookie, ErrorKind, LeafError, LeafIo, LeafResult, LeafSink, Op};

use crate::limits::META_MAX;
use crate::map::Map;
use crate::pending::ReplySender;
use crate::port::Port;

/// A leaf I/O of the control plane, and its memory.
pub(crate) struct MetaRequest {
    /// Its memory; `io.buf` points into it.
    pub(crate) memory: Option<Map>,
    pub(crate) io: LeafIo,
    /// Receives the result and the memory; no memory if the kernel may still use it. `None` once the I/O has exceeded
    /// its time limit, and the caller was notified.
    pub(crate) reply: Option<ReplySender<(LeafResult, Option<Map>)>>,
}

impl MetaRequest {
    /// Returns whether this is a late write that may still overwrite what `io` writes.
    pub(crate) fn may_land_on(&self, io: &LeafIo) -> bool {
        let writes = |io: &LeafIo| !matches!(io.op, Op::Read | Op::Flush);
        let end = |io: &LeafIo| io.offset.saturating_add(io.len);
        let overlap = self.io.leaf == io.leaf && self.io.offset < end(io) && io.offset < end(&self.io);
        self.reply.is_none() && overlap && writes(&self.io) && writes(io)
    }
}

/// The leaf I/Os of the control plane at one stack level.
pub(crate) struct MetaRequests {
    /// The upper bits of the cookies of these I/Os. The lower bits are the index in `running`.
    mark: u64,
    running: Vec<Option<Box<MetaRequest>>>,
    free: Vec<u32>,
    waiting: VecDeque<Box<MetaRequest>>,
}

impl MetaRequests {
    pub(crate) fn new(mark: u64) -> MetaRequests {
        MetaRequests {
            mark,
            running: (0..META_MAX).map(|_| None).collect(),
            free: (0..META_MAX as u32).rev().collect(),
            waiting: VecDeque::with_capacity(META_MAX),
        }
    }

    /// Accepts an I/O.
    pub(crate) fn add(&mut self, request: Box<MetaRequest>) {
        self.waiting.push_back(request);
    }

    /// Starts waiting I/Os as far as there is room. A write that a late write could still overwrite is refused with
    /// `TimedOut`. Called once per turn.
    #[inline]
    pub(crate) fn begin(&mut self, port: &mut Port) {
        while !self.waiting.is_empty() && !self.free.is_empty() {
            self.begin_next(port);
        }
    }

    fn begin_next(&mut self, port: &mut Port) {
        let Some(mut request) = self.waiting.pop_front() else { return };
        if self.running.iter().flatten().any(|late| late.may_land_on(&request.io)) {
            let MetaRequest { memory, reply, .. } = *request;
            let refused = Err(LeafError::of(ErrorKind::TimedOut));
            if let Some(reply) = reply {
                reply.send((refused, memory));
            }
            return;
        }
        let index = self.free.pop().expect("called only while an index is free");
        request.io.cookie = Cookie(self.mark | u64::from(index));
        let io = request.io;
        self.running[index as usize] = Some(request);
        port.submit(&io);
    }

    /// Handles the end of an I/O.
    pub(crate) fn done(&mut self, cookie: Cookie, result: LeafResult) {
        let index = cookie.0 as u32;
        if let Some(request) = self.running[index as usize].take() {
            let MetaRequest { memory, reply, .. } = *request;
            if let Some(reply) = reply {
                reply.send((result, memory));
            }
        }
        self.free.push(index);
    }

    /// Handles an I/O that has exceeded its time limit. The kernel may still use the memory, which stays in `running`.
    pub(crate) fn late(&mut self, cookie: Cookie) {
        if let Some(request) = &mut self.running[cookie.0 as u32 as usize]
            && let Some(reply) = request.reply.take()
        {
            reply.send((Err(LeafError::of(ErrorKind::TimedOut)), None));
        }
    }

    /// The kernel has returned a late I/O. Its index and memory are free.
    pub(crate) fn returned(&mut self, cookie: Cookie) {
        let index = cookie.0 as u32;
        self.running[index as usize] = None;
        self.free.push(index);
    }

    /// Returns whether any I/O has not started.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether the kernel may still use the memory of an I/O.
    pub(crate) fn has_memory(&self) -> bool {
        self.running.iter().any(Option::is_some)
    }

    /// Handles the end of the shard. The memory of I/Os in flight is leaked.
    pub(crate) fn leak(&mut self) {
        self.waiting.clear();
        for request in self.running.iter_mut().filter_map(Option::take) {
            std::mem::forget(request.memory);
        }
    }
}
