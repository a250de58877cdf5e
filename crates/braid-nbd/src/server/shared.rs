//! State shared by the connections of one shard: limits, the memory queue, quarantined buffers, tags.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use braid_engine::Buf;
use braid_export::admission::AdmissionPass;

use super::config::{STREAM_BYTES_LARGE, ServerConfig, TLS_TURNS};
use crate::event::EventQueue;

/// Initial capacity for buffers that a late I/O may still write to. The worst case is the engine's number of slots.
const QUARANTINE_EXPECTED: usize = 4096;

const SEGMENT_BITS: u32 = 9;
const INDEX_BITS: u32 = 12;
const COUNT_BITS: u32 = 48 - SEGMENT_BITS - INDEX_BITS;

pub(super) struct Shared {
    pub config: ServerConfig,
    pub events: Arc<EventQueue>,
    /// Connections that wait for memory or for a slot of the engine, in queue order.
    pub waiters: VecDeque<u16>,
    /// When a first waiter last made progress or left the queue.
    pub first_served_ns: u64,
    /// Memory held by the connections of each export: the export's address, its connections on this shard, bytes.
    shares: Vec<(usize, u32, u64)>,
    /// The first waiter while it is retried after its time limit: its request then fails instead of waiting on.
    pub expired_waiter: Option<u16>,
    pub large_streams_bytes: u64,
    pub stopping: bool,
    /// TLS handshakes that may still continue in this turn.
    pub tls_turns: u32,
    /// Connections whose TLS handshake waits for its turn, in queue order.
    pub tls_waiters: VecDeque<u16>,
    /// Connections whose next request is throttled, and until when.
    throttled: BinaryHeap<Reverse<(u64, u16)>>,
    quarantine: Vec<(u64, Buf, u32, Option<Arc<AdmissionPass>>)>,
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
            first_served_ns: 0,
            expired_waiter: None,
            large_streams_bytes: 0,
            stopping: false,
            quarantine: Vec::with_capacity(QUARANTINE_EXPECTED),
            count: 0,
        }
    }

    /// Returns whether a connection may exceed its share: it is the first in the queue for memory, or the queue is
    /// empty.
    #[inline]
    pub fn is_first_waiter(&self, index: u16) -> bool {
        self.waiters.front().is_none_or(|&first| first == index)
    }

    /// Adds a connection of this export. Returns the index under which the export's memory is counted.
    pub fn join_share(&mut self, export: usize) -> usize {
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

    /// Removes a connection of an export and the bytes that it last reported.
    pub fn leave_share(&mut self, share: usize, reported_bytes: u64) {
        self.shares[share].1 -= 1;
        self.shares[share].2 -= reported_bytes;
    }

    /// Replaces the bytes that a connection last reported with `held`. Returns the total of its export.
    #[inline]
    pub fn update_share(&mut self, share: usize, reported_bytes: &mut u64, held: u64) -> u64 {
        let of = &mut self.shares[share].2;
        *of = *of - *reported_bytes + held;
        *reported_bytes = held;
        *of
    }

    /// Appends a connection to the queue, unless it is queued already.
    pub fn enqueue(&mut self, index: u16) {
        if !self.waiters.contains(&index) {
            self.waiters.push_back(index);
        }
    }

    /// Appends a connection to the queue of TLS handshakes, unless it is queued already.
    pub fn wait_for_tls(&mut self, index: u16) {
        if !self.tls_waiters.contains(&index) {
            self.tls_waiters.push_back(index);
        }
    }

    /// Throttles a connection until `due_ns`.
    pub fn throttle(&mut self, due_ns: u64, index: u16) {
        self.throttled.push(Reverse((due_ns, index)));
    }

    /// Returns when the first throttled request is due.
    #[inline]
    pub fn throttled_until_ns(&self) -> Option<u64> {
        self.throttled.peek().map(|Reverse((due, _))| *due)
    }

    /// Removes and returns a connection whose throttled request is due.
    pub fn pop_throttled(&mut self, now_ns: u64) -> Option<u16> {
        self.throttled_until_ns().filter(|due| *due <= now_ns)?;
        self.throttled.pop().map(|Reverse((_, index))| index)
    }

    /// Removes a throttled connection: it has closed, or its limits have changed.
    pub fn forget_throttled(&mut self, index: u16) {
        self.throttled.retain(|Reverse((_, waiting))| *waiting != index);
    }

    /// Returns whether a connection may have another large buffer.
    pub fn may_grow(&self, in_transmission: bool) -> bool {
        let after = self.large_streams_bytes + u64::from(STREAM_BYTES_LARGE);
        in_transmission && self.waiters.is_empty() && after <= self.config.large_streams_bytes_max
    }

    /// Returns the connection and segment of a tag.
    #[inline]
    pub fn split_tag(tag: u64) -> (u16, u16) {
        let segment = tag & ((1 << SEGMENT_BITS) - 1);
        let index = tag >> SEGMENT_BITS & ((1 << INDEX_BITS) - 1);
        (index as u16, segment as u16)
    }

    /// Returns a new tag for a segment. It differs from the last 100 million tags and from all tags in quarantine.
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

    /// Keeps a buffer that a late I/O may still access, and its connection's pass, until [`Shared::released`].
    pub fn quarantine(&mut self, tag: u64, buf: Buf, len: u32, pass: Option<Arc<AdmissionPass>>) {
        self.quarantine.push((tag, buf, len, pass));
    }

    /// Removes the late I/O with this tag from quarantine. Returns its buffer and length.
    pub fn released(&mut self, tag: u64) -> Option<(Buf, u32)> {
        let at = self.quarantine.iter().position(|held| held.0 == tag)?;
        let (_, buf, len, _) = self.quarantine.swap_remove(at);
        Some((buf, len))
    }
}
