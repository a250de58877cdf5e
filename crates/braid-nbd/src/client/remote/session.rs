//! One connection of a shard to an export: handshake, requests, replies, and recovery from failures. Sans-I/O, over
//! [`Wire`].
//!
//! Read data that arrives with other input is copied out; the rest of a long read is received directly into its
//! destination (`replies`).
//!
//! If the server ends a connection, the session reopens it and resends the requests that got no reply. If the session
//! abandons a connection, it fails these requests instead: the server may still carry them out.
//! `docs/operating/failures-cluster.md` describes the consequences. On fenced disks requests are always resent
//! (`fenced`).

mod ending;
mod replies;
mod slow_reads;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_engine::{Flags, Op};
use braid_ring::{PartLimits, RemotePart};
use zerocopy::IntoBytes;

use super::shared::{LossReason, Shared};
use super::slots::{SLOTS, SlotState, Slots};
use super::wire::Wire;
use crate::client::ClientError;
use crate::client::coverage::Coverage;
use crate::client::negotiate::{Negotiated, Negotiation, NegotiationOptions};
use crate::codec::{REQUEST_BYTES, RequestHeader, command, command_flags, option_reply, transmission_flags};

/// Maximum number of memory pieces in one request.
const PIECES_MAX: usize = 64;
/// Maximum bytes zeroed or discarded by one request: an amount that a slow server completes well within the time
/// limits.
const RANGE_BYTES: u64 = 32 << 20;
/// Maximum data of one request in bytes.
const DATA_BYTES: u64 = 1 << 20;

const MS: u64 = 1_000_000;
/// Interval between checks of the time limits.
const TICK_NS: u64 = 250 * MS;
/// Initial and maximum interval between connection attempts.
const RETRY_NS: (u64, u64) = (10 * MS, 1000 * MS);
/// Time limit for connecting and the handshake.
const GREETING_NS: u64 = 5000 * MS;
/// The attempt number of the connection that opened the disk; sessions use higher numbers.
pub(super) const FIRST_ATTEMPT: u64 = 1;
/// Time limit for sending DISC.
const DISCONNECT_NS: u64 = 500 * MS;

enum SessionPhase {
    /// Not connected: no I/O needs a connection, or the retry interval is running.
    Down,
    Greeting(Box<Negotiation>),
    Up,
    /// Closed; operations are still in flight.
    Ending(EndReason),
    /// DISC is being sent.
    Disconnecting,
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndReason {
    /// The handshake failed, or the export differs from before.
    Refused,
    /// The server or its host ended the connection.
    Ended,
    /// The session ended it, after a time limit or a protocol violation. Whether the server carries out the requests is
    /// unknown.
    Abandoned,
}

/// What the next bytes of the input are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Header,
    /// Data of a read, bytes `at..end` of its part. `last`: it ends the reply.
    Data {
        slot: u16,
        at: u64,
        end: u64,
        last: bool,
    },
    /// The same, received directly into its destination. `requested`: bytes of the receive in flight.
    Direct {
        slot: u16,
        at: u64,
        end: u64,
        requested: u64,
        last: bool,
    },
    /// `left` bytes of extents. `wanted`: of the queried context.
    Extents {
        slot: u16,
        left: u32,
        wanted: bool,
        last: bool,
    },
    /// `left` bytes of error text.
    ErrorText {
        slot: u16,
        left: u32,
        last: bool,
    },
}

/// One connection and its state; see the module documentation.
pub(super) struct Session {
    shared: Arc<Shared>,
    /// Its index among the disk's connections, and the number of the current attempt to open it.
    connection: u32,
    attempt: u64,
    /// Another connection of this shard is established and takes waiting requests.
    pub(super) other_connected: bool,
    phase: SessionPhase,
    slots: Slots,
    reading: Reading,
    /// The result of the handshake.
    terms: Negotiated,
    /// The received parts of each slot's read, if replies may have several chunks.
    received_parts: Box<[Coverage]>,
    /// Unparsed bytes of the input are `start..end`.
    start: usize,
    end: usize,
    sending: bool,
    receiving: bool,
    /// The slots in the send in flight.
    in_send: Vec<u16>,
    /// Unsent output of the handshake.
    greeting_out: Vec<u8>,
    target: usize,
    retry_ns: u64,
    retry_at_ns: u64,
    dialled_ns: u64,
    /// The silence of the server counts from here: when input last arrived, the handshake finished, or a request was
    /// sent while none was in flight.
    last_received_ns: u64,
    /// When input last arrived after a handshake, on this connection or an earlier one of this session. A handshake
    /// does not count: it would extend the wait of a fenced disk.
    last_reply_ns: u64,
    next_timeout_check_ns: u64,
    /// The next check for slow reads.
    next_slow_check_ns: u64,
    /// Moving average of read latencies from submission; 0: unknown.
    average_read_ns: u64,
    /// Submission time of the first read that was abandoned before it was sent. It keeps the session connecting, and
    /// the time limits running. `None` if there is none, and again after a handshake or a reply.
    abandoned_since_ns: Option<u64>,
    timer_ns: Option<u64>,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, connection: u32) -> Session {
        Session {
            terms: Negotiated::default(),
            received_parts: vec![Coverage::default(); if shared.allocation { SLOTS } else { 0 }].into(),
            shared,
            connection,
            attempt: FIRST_ATTEMPT,
            other_connected: false,
            phase: SessionPhase::Down,
            slots: Slots::new(),
            reading: Reading::Header,
            start: 0,
            end: 0,
            sending: false,
            receiving: false,
            in_send: Vec::with_capacity(SLOTS),
            greeting_out: Vec::new(),
            target: 0,
            retry_ns: 0,
            retry_at_ns: 0,
            dialled_ns: 0,
            last_received_ns: 0,
            last_reply_ns: 0,
            next_timeout_check_ns: 0,
            next_slow_check_ns: 0,
            average_read_ns: 0,
            abandoned_since_ns: None,
            timer_ns: None,
        }
    }

    /// Does all work that is possible. Called after everything else in a turn.
    pub(super) fn work(&mut self, wire: &mut impl Wire) {
        if self.shared.is_lost() {
            if self.shared.fenced.is_some() {
                // Do not wait for requests in flight.
                self.end_connection(wire, EndReason::Ended);
            }
            self.fail_unsent(wire, libc_errno::NODEV, u64::MAX);
        }
        if wire.now_ns() >= self.next_timeout_check_ns {
            self.check_timeouts(wire);
        }
        if self.may_abandon_reads(wire) && wire.now_ns() >= self.next_slow_check_ns {
            self.abandon_slow_reads(wire);
        }
        match self.phase {
            SessionPhase::Down if self.has_work(wire) && wire.now_ns() >= self.retry_at_ns => self.dial(wire),
            SessionPhase::Up => self.fill(wire),
            _ => {}
        }
        self.set_timer(wire);
    }

    /// Returns the number of requests in the table.
    pub(super) fn load(&self) -> usize {
        self.slots.in_use()
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.phase, SessionPhase::Up)
    }

    fn has_work(&self, wire: &impl Wire) -> bool {
        !self.slots.is_empty() || self.abandoned_since_ns.is_some() || wire.waiting_since_ns().is_some()
    }

    fn set_timer(&mut self, wire: &mut impl Wire) {
        if matches!(self.phase, SessionPhase::Disconnecting) || !self.has_work(wire) {
            return;
        }
        let now = wire.now_ns();
        let mut at = self.next_timeout_check_ns.max(now);
        if matches!(self.phase, SessionPhase::Down) {
            at = at.min(self.retry_at_ns.max(now));
        }
        if self.may_abandon_reads(wire) {
            at = at.min(self.next_slow_check_ns.max(now));
        }
        if self.timer_ns.is_none_or(|set| set > at) && wire.timer_at(at) {
            self.timer_ns = Some(at);
        }
    }

    pub(super) fn timer(&mut self, wire: &mut impl Wire) {
        self.timer_ns = None;
        if matches!(self.phase, SessionPhase::Disconnecting) {
            wire.close();
        }
    }

    /// Disconnects because the disk is being closed.
    pub(super) fn disconnect(&mut self, wire: &mut impl Wire) {
        let polite = matches!(self.phase, SessionPhase::Up) && !self.sending && self.slots.is_empty();
        self.phase = SessionPhase::Disconnecting;
        if polite && wire.timer_at(wire.now_ns() + DISCONNECT_NS) {
            let disconnect = RequestHeader::new(command::DISC, 0, 0, 0, 0);
            wire.output()[..REQUEST_BYTES].copy_from_slice(disconnect.as_bytes());
            wire.gather(0, REQUEST_BYTES);
            self.sending = wire.send();
        }
        if !self.sending {
            wire.close();
        }
    }

    // ---- Connecting ----

    fn dial(&mut self, wire: &mut impl Wire) {
        let targets = &self.shared.targets;
        let target = &targets[self.target % targets.len()];
        self.target = self.target.wrapping_add(1);
        self.retry_ns = (2 * self.retry_ns).clamp(RETRY_NS.0, RETRY_NS.1);
        self.retry_at_ns = wire.now_ns() + self.retry_ns;
        if !wire.dial(target) {
            return;
        }
        self.attempt += 1;
        let export = &self.shared.export;
        let wishes = NegotiationOptions {
            export: match &self.shared.fenced {
                Some(fenced) => fenced.name(export, self.connection, self.attempt),
                None => export.clone(),
            },
            tls: self.shared.tls_peer.is_some(),
            extended: false,
            structured: self.shared.allocation,
            allocation: self.shared.allocation,
        };
        self.greeting_out.clear();
        self.phase = SessionPhase::Greeting(Box::new(Negotiation::new(wishes)));
        self.dialled_ns = wire.now_ns();
        self.start_receive(wire);
    }

    /// Handles input of the handshake and replies to it.
    fn handle_greeting(&mut self, wire: &mut impl Wire) {
        loop {
            let SessionPhase::Greeting(negotiation) = &mut self.phase else { return };
            match negotiation.feed(wire.input(self.start, self.end), &mut self.greeting_out) {
                Err(error) => {
                    if let ClientError::Refused { code: option_reply::ERR_POLICY, text } = error
                        && self.shared.fenced.is_some()
                    {
                        self.shared.mark_lost(LossReason::Refused(text));
                    }
                    return self.end_connection(wire, EndReason::Refused);
                }
                Ok((took, Some(terms))) => {
                    self.start += took;
                    if !self.shared.is_the_same(&terms) {
                        if self.shared.fenced.is_some() {
                            self.shared.mark_lost(LossReason::DifferentExport);
                        }
                        return self.end_connection(wire, EndReason::Refused);
                    }
                    (self.phase, self.terms) = (SessionPhase::Up, terms);
                    self.last_received_ns = wire.now_ns();
                    self.abandoned_since_ns = None;
                    return;
                }
                Ok((0, None)) => break,
                Ok((took, None)) => self.start += took,
            }
            if negotiation.waits_for_tls() {
                if self.start != self.end || !wire.begin_tls() {
                    return self.end_connection(wire, EndReason::Refused);
                }
                negotiation.tls_established(&mut self.greeting_out);
            }
        }
        self.send_greeting(wire);
    }

    fn send_greeting(&mut self, wire: &mut impl Wire) {
        if self.sending || self.greeting_out.is_empty() {
            return;
        }
        let len = self.greeting_out.len();
        wire.output()[..len].copy_from_slice(&self.greeting_out);
        self.greeting_out.clear();
        wire.gather(0, len);
        self.sending = wire.send();
        if !self.sending {
            self.end_connection(wire, EndReason::Ended);
        }
    }

    // ---- Sending ----

    /// Sends waiting requests, as many as fit in one send.
    fn fill(&mut self, wire: &mut impl Wire) {
        if self.sending {
            return;
        }
        let (mut out, mut bytes) = (0, 0);
        // With several connections, each takes at most this much data per send: one connection must not take all of it.
        let most = if self.shared.connections > 1 { DATA_BYTES } else { u64::MAX };
        while wire.room() > PIECES_MAX && self.in_send.len() < SLOTS && bytes < most {
            let index = match self.slots.unsent.pop_front() {
                Some(index) => index,
                None if !self.slots.has_free() || self.shared.is_lost() => break,
                None => {
                    let Some(part) = wire.take(&self.shared.part_limits()) else { break };
                    if let Some(result) = self.result_without_support(&part) {
                        wire.done(&part, result);
                        continue;
                    }
                    let index = self.slots.take(part);
                    index.expect("a slot is free, as was just seen")
                }
            };
            let header = self.request(index, wire.now_ns());
            wire.output()[out..out + REQUEST_BYTES].copy_from_slice(header.as_bytes());
            wire.gather(out, out + REQUEST_BYTES);
            out += REQUEST_BYTES;
            if self.carries_data(index) {
                wire.gather_data(&self.slots[index].part);
            }
            let part = &self.slots[index].part;
            bytes += if matches!(part.op, Op::Read | Op::Write) { part.len } else { 0 };
            self.in_send.push(index);
        }
        if self.in_send.is_empty() {
            return;
        }
        self.sending = wire.send();
        if !self.sending {
            self.end_connection(wire, EndReason::Ended);
        }
    }

    /// Returns the result of an operation that the server does not support and that needs no request.
    fn result_without_support(&self, part: &RemotePart) -> Option<Result<(), i32>> {
        let has = |flag| self.shared.flags & flag != 0;
        match part.op {
            // Without a cache there is nothing to flush.
            Op::Flush if !has(transmission_flags::SEND_FLUSH) => Some(Ok(())),
            Op::Discard if !has(transmission_flags::SEND_TRIM) => Some(Ok(())),
            Op::WriteZeroes if part.flags.has(Flags::FAST_ZERO) && !has(transmission_flags::SEND_FAST_ZERO) => {
                Some(Err(libc_errno::OPNOTSUPP))
            }
            _ => None,
        }
    }

    /// Returns whether data follows the request. Zeros are written if the server does not support WRITE_ZEROES.
    fn carries_data(&self, index: u16) -> bool {
        let slot = &self.slots[index];
        match slot.part.op {
            Op::Write => !slot.flushing,
            Op::WriteZeroes => self.shared.flags & transmission_flags::SEND_WRITE_ZEROES == 0,
            _ => false,
        }
    }

    /// Returns the request header of a slot and marks the slot as sent.
    fn request(&mut self, index: u16, now_ns: u64) -> RequestHeader {
        if self.slots.sent == 0 {
            self.last_received_ns = now_ns;
        }
        self.slots.set(index, SlotState::Sent);
        let data = self.carries_data(index);
        let cookie = self.slots.cookie(index);
        let slot = &mut self.slots[index];
        (slot.in_send, slot.sent_ns) = (true, now_ns);
        if slot.part.op == Op::Read {
            return self.read_request(index, cookie);
        }
        let slot = &mut self.slots[index];
        let part = &slot.part;
        if slot.flushing || part.op == Op::Flush {
            slot.mark = self.shared.written.load(Ordering::Acquire);
            return RequestHeader::new(command::FLUSH, 0, cookie, 0, 0);
        }
        let (kind, mut flags) = match part.op {
            Op::Discard => (command::TRIM, 0),
            _ if data => (command::WRITE, 0),
            _ => (command::WRITE_ZEROES, 0),
        };
        if kind == command::WRITE && slot.has_fua() && self.shared.flags & transmission_flags::SEND_FUA != 0 {
            flags |= command_flags::FUA;
        }
        if kind == command::WRITE_ZEROES {
            flags |= if part.flags.has(Flags::NO_UNMAP) { command_flags::NO_HOLE } else { 0 };
            flags |= if part.flags.has(Flags::FAST_ZERO) { command_flags::FAST_ZERO } else { 0 };
        }
        RequestHeader::new(kind, flags, cookie, part.offset, part.len as u32)
    }

    pub(super) fn sent(&mut self, wire: &mut impl Wire, result: i32) {
        self.sending = false;
        match self.phase {
            SessionPhase::Disconnecting => return wire.close(),
            SessionPhase::Ending(reason) => return self.finish_close(wire, reason),
            _ if result <= 0 => return self.end_connection(wire, EndReason::Ended),
            SessionPhase::Greeting(_) => return self.send_greeting(wire),
            _ => {}
        }
        while let Some(index) = self.in_send.pop() {
            self.slots[index].in_send = false;
            if let Some(answer) = self.slots[index].answer {
                self.finish(wire, index, answer);
            }
        }
    }

    // ---- Receiving ----

    fn start_receive(&mut self, wire: &mut impl Wire) {
        if self.receiving || !matches!(self.phase, SessionPhase::Greeting(_) | SessionPhase::Up) {
            return;
        }
        self.receiving = match &mut self.reading {
            Reading::Direct { slot, at, end, requested, .. } => {
                let part = &self.slots[*slot].part;
                *requested = wire.receive_data(part, *at, *end - *at);
                *requested > 0
            }
            _ => wire.receive(self.end),
        };
        if !self.receiving {
            self.end_connection(wire, EndReason::Ended);
        }
    }

    pub(super) fn received(&mut self, wire: &mut impl Wire, result: i32) {
        self.receiving = false;
        match self.phase {
            SessionPhase::Ending(reason) => return self.finish_close(wire, reason),
            SessionPhase::Disconnecting => return,
            _ if result <= 0 => return self.end_connection(wire, EndReason::Ended),
            _ => {}
        }
        self.last_received_ns = wire.now_ns();
        if matches!(self.phase, SessionPhase::Up) {
            self.last_reply_ns = self.last_received_ns;
            self.abandoned_since_ns = None;
            self.shared.record_reply(self.last_received_ns);
        }
        match self.reading {
            Reading::Direct { .. } => self.data_received(wire, result as u64),
            _ => self.end += result as usize,
        }
        if matches!(self.phase, SessionPhase::Greeting(_)) {
            self.handle_greeting(wire);
        }
        if matches!(self.phase, SessionPhase::Up) {
            self.parse(wire);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            wire.move_input(self.start, self.end);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.start_receive(wire);
    }

    /// Handles the reply of a slot.
    fn answer(&mut self, wire: &mut impl Wire, index: u16, answer: Result<(), i32>) {
        self.retry_ns = 0;
        if self.slots[index].in_send {
            self.slots[index].answer = Some(answer);
        } else {
            self.finish(wire, index, answer);
        }
    }

    /// Completes a slot whose memory is no longer in use.
    fn finish(&mut self, wire: &mut impl Wire, index: u16, result: Result<(), i32>) {
        let slot = &mut self.slots[index];
        slot.answer = None;
        let fua = self.shared.flags & transmission_flags::SEND_FUA != 0;
        let cached = self.shared.flags & transmission_flags::SEND_FLUSH != 0;
        if result.is_ok() && slot.has_fua() && !fua && cached && !slot.flushing {
            slot.flushing = true;
            self.shared.written.fetch_add(1, Ordering::AcqRel);
            self.slots.set(index, SlotState::Unsent);
            return self.slots.unsent.push_back(index);
        }
        if result.is_ok() && (slot.flushing || slot.part.op == Op::Flush) {
            self.shared.flushed.fetch_max(slot.mark, Ordering::AcqRel);
        } else if result.is_ok() && cached && slot.changes() && !(fua && slot.has_fua()) {
            self.shared.written.fetch_add(1, Ordering::AcqRel);
        }
        let (part, abandoned) = (slot.part, slot.abandoned);
        self.slots.give(index);
        if !abandoned {
            self.record_read_latency(&part, wire.now_ns());
            wire.done(&part, result);
        }
    }
}

impl Shared {
    /// Returns the limits for splitting I/O into requests of this server.
    fn part_limits(&self) -> PartLimits {
        let data_bytes = DATA_BYTES.min(self.payload_bytes);
        let zeroes = self.flags & transmission_flags::SEND_WRITE_ZEROES != 0;
        PartLimits { data_bytes, range_bytes: if zeroes { RANGE_BYTES } else { data_bytes }, pieces: PIECES_MAX }
    }
}

/// Linux error numbers.
pub(super) mod libc_errno {
    use rustix::io::Errno;
    pub(in super::super) const NODEV: i32 = Errno::NODEV.raw_os_error();
    pub(in super::super) const TIMEDOUT: i32 = Errno::TIMEDOUT.raw_os_error();
    pub(super) const OPNOTSUPP: i32 = Errno::OPNOTSUPP.raw_os_error();
    pub(super) const ROFS: i32 = Errno::ROFS.raw_os_error();
    pub(super) const INVAL: i32 = Errno::INVAL.raw_os_error();
    pub(super) const NOSPC: i32 = Errno::NOSPC.raw_os_error();
    pub(super) const IO: i32 = Errno::IO.raw_os_error();
}
