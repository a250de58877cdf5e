//! What the connections of one shard share: limits, the queue for memory, buffers in quarantine, tags.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use braid_engine::Buf;

use super::config::{STREAM_BYTES_LARGE, ServerConfig, TLS_TURNS};
use crate::event::EventQueue;
use crate::gate::Pass;

/// Buffers that a late I/O may still write to. As many as the engine has slots would be the worst case;
/// room for this many is there from the start.
const QUARANTINE_EXPECTED: usize = 4096;

const SEGMENT_BITS: u32 = 9;
const INDEX_BITS: u32 = 12;
const COUNT_BITS: u32 = 48 - SEGMENT_BITS - INDEX_BITS;

pub(super) struct Shared {
    pub config: ServerConfig,
    pub events: Arc<EventQueue>,
    /// Connections that wait for memory or room in the engine, the longest waiting first.
    pub waiters: VecDeque<u16>,
    /// Since when the first of them is the first.
    pub head_since_ns: u64,
    /// Memory held by the connections of each export, which has a number while it has some here.
    shares: Vec<(usize, u32, u64)>,
    /// The connection whose first request is refused for want of memory, while it is asked.
    pub giving_up: Option<u16>,
    pub large_streams_bytes: u64,
    pub stopping: bool,
    /// TLS handshakes that may still get on in this turn.
    pub tls_turns: u32,
    /// Connections whose TLS handshake waits for its turn, the longest waiting first.
    pub tls_waiters: VecDeque<u16>,
    /// Connections whose next request waits for its export's limits, and until when.
    throttled: BinaryHeap<Reverse<(u64, u16)>>,
    quarantine: Vec<(u64, Buf, u32, Option<Arc<Pass>>)>,
    count: u64,
}

impl Shared {
    pub fn new(config: ServerConfig, events: Arc<EventQueue>) -> Shared {
        Shared {
            waiters: VecDeque::with_capacity(usize::from(config.connections_max)),
            tls_turns: TLS_TURNS,
            tls_waiters: VecDeque::with_capacity(usize::from(config.connections_max)),
            throttled: BinaryHeap::with_capacity(usize::from(config.connections_max)),
            shares: Vec::new(),
            config,
            events,
            head_since_ns: 0,
            giving_up: None,
            large_streams_bytes: 0,
            stopping: false,
            quarantine: Vec::with_capacity(QUARANTINE_EXPECTED),
            count: 0,
        }
    }

    /// Whether it is a connection's turn to have more than its share: nobody has waited longer.
    #[inline]
    pub fn has_its_turn(&self, index: u16) -> bool {
        self.waiters.front().is_none_or(|&first| first == index)
    }

    /// A connection of this export is here: the number under which its memory is counted.
    pub fn enter_share(&mut self, export: usize) -> usize {
        let same = self.shares.iter().position(|share| share.0 == export && share.1 > 0);
        let at = same.or_else(|| self.shares.iter().position(|share| share.1 == 0)).unwrap_or(self.shares.len());
        if at == self.shares.len() {
            self.shares.push((export, 0, 0));
        }
        if same.is_none() {
            self.shares[at] = (export, 0, 0);
        }
        self.shares[at].1 += 1;
        at
    }

    /// It is gone, and has given all back.
    pub fn leave_share(&mut self, share: usize, told: u64) {
        self.shares[share].1 -= 1;
        self.shares[share].2 -= told;
    }

    /// It holds so much by now, after `told`. Returns what all of its export hold.
    #[inline]
    pub fn tell_share(&mut self, share: usize, told: &mut u64, held: u64) -> u64 {
        let of = &mut self.shares[share].2;
        *of = *of - *told + held;
        *told = held;
        *of
    }

    /// Puts a connection at the end of the queue, once.
    pub fn enqueue(&mut self, index: u16, now_ns: u64) {
        if self.waiters.is_empty() {
            self.head_since_ns = now_ns;
        }
        if !self.waiters.contains(&index) {
            self.waiters.push_back(index);
        }
    }

    /// Puts a connection into the queue for TLS handshakes, once.
    pub fn wait_for_tls(&mut self, index: u16) {
        if !self.tls_waiters.contains(&index) {
            self.tls_waiters.push_back(index);
        }
    }

    /// A connection's next request may go from `due_ns` on.
    pub fn throttle(&mut self, due_ns: u64, index: u16) {
        self.throttled.push(Reverse((due_ns, index)));
    }

    /// When the next of those requests may go.
    #[inline]
    pub fn throttled_until_ns(&self) -> Option<u64> {
        self.throttled.peek().map(|Reverse((due, _))| *due)
    }

    /// A connection whose request may go now.
    pub fn pop_throttled(&mut self, now_ns: u64) -> Option<u16> {
        self.throttled_until_ns().filter(|due| *due <= now_ns)?;
        self.throttled.pop().map(|Reverse((_, index))| index)
    }

    /// A connection is gone, or its export's limits are others.
    pub fn forget_throttled(&mut self, index: u16) {
        self.throttled.retain(|Reverse((_, waiting))| *waiting != index);
    }

    /// Whether another connection may have a large stream buffer.
    pub fn may_grow(&self, in_transmission: bool) -> bool {
        let after = self.large_streams_bytes + u64::from(STREAM_BYTES_LARGE);
        in_transmission && self.waiters.is_empty() && after <= self.config.large_streams_bytes_max
    }

    /// Which connection and segment a tag names.
    #[inline]
    pub fn split_tag(tag: u64) -> (u16, u16) {
        let segment = tag & ((1 << SEGMENT_BITS) - 1);
        let index = tag >> SEGMENT_BITS & ((1 << INDEX_BITS) - 1);
        (index as u16, segment as u16)
    }

    /// A tag for a segment: unlike any of the last 100 million, and unlike any in quarantine.
    #[inline]
    pub fn next_tag(&mut self, index: u16, segment: u16) -> u64 {
        loop {
            self.count = (self.count + 1) & ((1 << COUNT_BITS) - 1);
            let tag = self.count << (SEGMENT_BITS + INDEX_BITS) | u64::from(index) << SEGMENT_BITS | u64::from(segment);
            if self.quarantine.is_empty() || self.quarantine.iter().all(|held| held.0 != tag) {
                return tag;
            }
        }
    }

    /// Keeps a buffer that a late I/O may still touch, until [`Shared::released`]; and what its connection held of a gate.
    pub fn quarantine(&mut self, tag: u64, buf: Buf, len: u32, pass: Option<Arc<Pass>>) {
        self.quarantine.push((tag, buf, len, pass));
    }

    /// The late I/O of this tag has ended: its buffer.
    pub fn released(&mut self, tag: u64) -> Option<(Buf, u32)> {
        let at = self.quarantine.iter().position(|held| held.0 == tag)?;
        let (_, buf, len, _) = self.quarantine.swap_remove(at);
        Some((buf, len))
    }
}
