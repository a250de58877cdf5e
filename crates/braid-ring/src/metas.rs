//! Leaf I/Os of the control plane on one shard: labels, and whatever else it reads and writes on disks.

use std::collections::VecDeque;

use braid_engine::{Cookie, ErrorKind, LeafError, LeafResult, LeafSink};

use crate::link::MetaRequest;
use crate::port::Port;

/// Of them on one shard and of one tier at a time; more wait.
pub(crate) const META_MAX: usize = 64;

/// All of one tier.
pub(crate) struct Metas {
    /// What their cookies have beside the index.
    mark: u64,
    places: Vec<Option<Box<MetaRequest>>>,
    free: Vec<u32>,
    waiting: VecDeque<Box<MetaRequest>>,
}

impl Metas {
    pub(crate) fn new(mark: u64) -> Metas {
        Metas {
            mark,
            places: (0..META_MAX).map(|_| None).collect(),
            free: (0..META_MAX as u32).rev().collect(),
            waiting: VecDeque::with_capacity(META_MAX),
        }
    }

    /// Takes one in.
    pub(crate) fn add(&mut self, request: Box<MetaRequest>) {
        self.waiting.push_back(request);
    }

    /// Begins what waits, as far as there is room. Called once a turn.
    #[inline]
    pub(crate) fn begin(&mut self, port: &mut Port) {
        while !self.waiting.is_empty() && !self.free.is_empty() {
            self.begin_next(port);
        }
    }

    fn begin_next(&mut self, port: &mut Port) {
        let Some(mut request) = self.waiting.pop_front() else { return };
        if self.places.iter().flatten().any(|late| late.may_land_on(&request.io)) {
            let MetaRequest { memory, answer, .. } = *request;
            let refused = Err(LeafError::of(ErrorKind::TimedOut));
            if let Some(answer) = answer {
                answer.keep((refused, memory));
            }
            return;
        }
        let index = self.free.pop().expect("called only while there is a place");
        request.io.cookie = Cookie(self.mark | u64::from(index));
        let io = request.io;
        self.places[index as usize] = Some(request);
        port.submit(&io);
    }

    /// One has ended.
    pub(crate) fn done(&mut self, cookie: Cookie, result: LeafResult) {
        let index = cookie.0 as u32;
        if let Some(request) = self.places[index as usize].take() {
            let MetaRequest { memory, answer, .. } = *request;
            if let Some(answer) = answer {
                answer.keep((result, memory));
            }
        }
        self.free.push(index);
    }

    /// One has run into its time limit. The kernel may still use the memory, which stays in its place.
    pub(crate) fn late(&mut self, cookie: Cookie) {
        if let Some(request) = &mut self.places[cookie.0 as u32 as usize]
            && let Some(answer) = request.answer.take()
        {
            answer.keep((Err(LeafError::of(ErrorKind::TimedOut)), None));
        }
    }

    /// The kernel has given it back: its place, and its memory, are free.
    pub(crate) fn returned(&mut self, cookie: Cookie) {
        let index = cookie.0 as u32;
        self.places[index as usize] = None;
        self.free.push(index);
    }

    /// Whether some have not begun.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the kernel may still use memory of one.
    pub(crate) fn has_memory(&self) -> bool {
        self.places.iter().any(Option::is_some)
    }

    /// The shard has ended. What is on its way keeps its memory for ever.
    pub(crate) fn lose(&mut self) {
        self.waiting.clear();
        for request in self.places.iter_mut().filter_map(Option::take) {
            std::mem::forget(request.memory);
        }
    }
}
