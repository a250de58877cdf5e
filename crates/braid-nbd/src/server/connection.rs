//! One connection, from the greeting to the release of its last buffer.
//!
//! `input.rs` takes in requests and `output.rs` sends replies; this file completes requests and ends connections.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use braid_engine::{Buf, Completion, ErrorKind, Op, Request};
use braid_export::ExportStats;
use rustls::ServerConfig;

use super::config::{DRAIN_TIMES, HEADS_BYTES, READ_BYTES_MAX, REQUESTS_MAX, STREAM_BYTES, STREAM_BYTES_LARGE};
use super::frontend::Arrival;
use super::host::{Host, SEND_PIECES_MAX, SendPiece};
use super::request::{Failure, RequestKind, Requests};
use super::secure::Secure;
use super::shared::Shared;
use super::state::{ConnectionStage, InputState, ReceiveTarget, WaitReason};
use crate::errno::Errno;
use crate::event::{Cause, NbdEvent};
use crate::handshake::{Handshake, NegotiatedSession};

/// The state of a connection before transmission.
#[derive(Debug)]
pub(super) struct Greeting {
    pub handshake: Handshake,
}

pub(super) struct Connection<S> {
    pub index: u16,
    pub token: u64,
    pub socket: S,
    pub peer: String,
    /// The client's address; `None` on a Unix socket.
    pub address: Option<IpAddr>,
    /// The TLS configuration, if the listener offers TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// TLS begins when the current output is sent.
    pub upgrading: bool,
    /// The TLS state, from the beginning of TLS.
    pub secure: Option<Box<Secure>>,
    /// When the throttles of the export admit the next request; `None` if they were not consulted for it yet.
    pub due_ns: Option<u64>,
    /// When the connection checks again whether its export is still held.
    pub held_until_ns: u64,
    /// The handshake, until transmission.
    pub greeting: Option<Box<Greeting>>,
    /// Unsent output of the handshake.
    pub greeting_out: Vec<u8>,
    /// The session, from transmission.
    pub session: Option<NegotiatedSession>,
    pub requests: Requests,

    /// The stream buffer; bytes `start..end` are not parsed yet.
    pub stream: Buf,
    pub stream_len: u32,
    pub start: u32,
    pub end: u32,
    /// Maximum bytes of the next receive into the stream.
    pub receive_bytes_max: u32,
    pub input: InputState,
    /// Number of buffered requests, from `start`, for which no prefetch hint is due: they were announced to the engine,
    /// or the device had no use for hints.
    pub prefetched: u8,
    pub wait: WaitReason,
    /// Counts steps of the pump that made progress.
    pub progress: u64,
    /// The destination of the receive in flight.
    pub recv: Option<ReceiveTarget>,
    /// When the current payload last progressed by [`DIRECT_BYTES`].
    pub payload_since_ns: u64,
    /// Bytes of the payload received since then.
    pub payload_bytes: u32,

    /// Buffer for reply headers.
    pub head: Buf,
    pub ready: VecDeque<u16>,
    pub sending: Vec<u16>,
    /// A partly sent reply: its slot, the next segment, and the bytes left from there.
    pub partial: Option<(u16, u16, u32)>,
    pub pieces: Vec<SendPiece>,
    pub send_out: bool,
    pub send_since_ns: u64,
    pub stats: ExportStats,
    /// The index of its export's memory share, and the bytes last reported to it.
    pub share: Option<usize>,
    pub reported_bytes: u64,
    /// The connection got no memory because its export is over its share. Connections of other exports may then get
    /// memory before it.
    pub export_over_share: bool,
    /// When the connection first was the first in the queue for memory since it began to wait or last made progress;
    /// `None` if it has not been yet. It stays when connections of other exports pass the connection.
    pub first_since_ns: Option<u64>,

    /// Segments submitted to the engine.
    pub in_engine: u32,
    /// Some of these segments were entered ([`Host::enter`]) and have not begun: see [`super::hang_up`].
    pub has_entered: bool,
    pub stage: ConnectionStage,
    pub closing_since_ns: u64,
    /// While draining: when the drain began or the engine last completed a segment. The time limit of the drain runs
    /// from here, because only the client can delay it afterwards.
    pub drain_since_ns: u64,
    pub cause: Option<Cause>,
    /// The connection is marked for the end of the batch.
    pub dirty: bool,
}

pub(super) const TOKEN_RECV: u64 = 0;
pub(super) const TOKEN_SEND: u64 = 1;

/// Returns the maximum bytes of a READ on a shard with this much memory: half of it, within [`READ_BYTES_MAX`]. The
/// other half leaves room for the reserve and for small requests, so that the largest READ can always gather its
/// memory.
fn read_bytes_max(memory_bytes: u64) -> u32 {
    let (least, most) = READ_BYTES_MAX;
    let half = (memory_bytes / 2).clamp(u64::from(least), u64::from(most));
    1 << half.ilog2()
}

impl<S: Copy> Connection<S> {
    /// Returns a new connection, or `None` if the arena is exhausted. All allocations of a connection happen here.
    pub fn new<H: Host<Socket = S>>(
        host: &mut H,
        (index, token): (u16, u64),
        socket: S,
        arrival: Arrival,
        deadline_ns: u64,
    ) -> Option<Box<Connection<S>>> {
        let head = host.alloc(HEADS_BYTES)?;
        let Some(stream) = host.alloc(STREAM_BYTES as usize) else {
            host.free(head, HEADS_BYTES);
            return None;
        };
        let mut greeting_out = Vec::new();
        let Arrival { peer, address, table, tls } = arrival;
        let mut handshake = Handshake::new(table, deadline_ns, &mut greeting_out);
        handshake.set_address(address);
        handshake.set_read_bytes_max(read_bytes_max(host.memory_bytes().0));
        if tls.is_some() {
            handshake.offer_tls();
        }
        Some(Box::new(Connection {
            index,
            token,
            socket,
            peer,
            address,
            tls,
            upgrading: false,
            secure: None,
            due_ns: None,
            held_until_ns: 0,
            greeting: Some(Box::new(Greeting { handshake })),
            greeting_out,
            session: None,
            requests: Requests::new(),
            stream,
            stream_len: STREAM_BYTES,
            start: 0,
            end: 0,
            receive_bytes_max: u32::MAX,
            input: InputState::Header,
            prefetched: 0,
            wait: WaitReason::No,
            progress: 0,
            recv: None,
            payload_since_ns: 0,
            payload_bytes: 0,
            head,
            ready: VecDeque::with_capacity(REQUESTS_MAX),
            sending: Vec::with_capacity(REQUESTS_MAX),
            partial: None,
            pieces: Vec::with_capacity(SEND_PIECES_MAX),
            send_out: false,
            send_since_ns: 0,
            stats: ExportStats::default(),
            share: None,
            reported_bytes: 0,
            export_over_share: false,
            first_since_ns: None,
            in_engine: 0,
            has_entered: false,
            stage: ConnectionStage::Open,
            closing_since_ns: 0,
            drain_since_ns: 0,
            cause: None,
            dirty: false,
        }))
    }

    /// Handles the completion of a segment.
    #[inline]
    pub fn io_done<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, segment: u16, done: &Completion) {
        debug_assert_eq!(self.requests.segment(segment).tag, done.tag, "an answer to another segment");
        self.in_engine -= 1;
        if self.stage == ConnectionStage::Draining {
            self.drain_since_ns = host.now_ns();
        }
        if done.buffer_busy {
            let buf = self.requests.take_buffer(segment);
            let held = self.requests.segment(segment);
            let pass = self.session.as_ref().and_then(|session| session.pass.clone());
            shared.quarantine(held.tag, buf, held.len, pass);
            if done.result.is_err() && self.retry_read(host, shared, segment) {
                return;
            }
        }
        let slot = self.requests.segment(segment).slot;
        match done.result {
            Ok(()) => {}
            Err(error) if error.kind.is_unsettled() => self.drop_unsettled(host, slot),
            Err(error) => {
                let at = self.requests.segment(segment).at;
                self.fail_slot(slot, error.kind, at);
            }
        }
        if self.requests.slot(slot).kind == RequestKind::Write {
            self.requests.free_buffer(host, segment);
        }
        self.finish_part(host, slot);
    }

    /// Retries a read that timed out on one disk if another disk may hold the data. It uses a new buffer, since the
    /// kernel may still fill the first. A request that has already failed otherwise is not retried.
    #[cold]
    fn retry_read<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, segment: u16) -> bool {
        let part = *self.requests.segment(segment);
        let of = *self.requests.slot(part.slot);
        let Some(session) = &self.session else { return false };
        let device = session.export.info().device;
        let wanted = self.stage != ConnectionStage::Closed && !of.no_reply && of.failure.is_none();
        if of.kind != RequestKind::Read || part.retried || !wanted || !host.is_redundant(device) {
            return false;
        }
        let Some(buf) = host.alloc(part.len as usize) else { return false };
        let tag = shared.next_tag(self.index, segment);
        let (offset, len) = (of.offset + u64::from(part.at), u64::from(part.len));
        if host.submit(&Request { device, op: Op::Read, flags: of.flags, offset, len, buf, tag }).is_err() {
            host.free(buf, part.len as usize);
            return false;
        }
        self.in_engine += 1;
        self.requests.put_buffer(segment, buf);
        let part = self.requests.segment(segment);
        (part.tag, part.retried) = (tag, true);
        true
    }

    /// Drops the reply of a request that a later session settles, and drains the connection. Replies of other completed
    /// requests are sent first.
    #[cold]
    fn drop_unsettled<H: Host<Socket = S>>(&mut self, host: &mut H, slot: u16) {
        self.requests.slot(slot).no_reply = true;
        self.drain(host, Cause::Unsettled);
    }

    /// Records a request's first failure.
    pub fn fail_slot(&mut self, slot: u16, kind: ErrorKind, at: u32) {
        let slot = self.requests.slot(slot);
        if slot.failure.is_none() {
            let fast = slot.flags.has(braid_engine::Flags::FAST_ZERO);
            let offset = (slot.op != Op::Flush).then_some(slot.offset + u64::from(at));
            slot.failure = Some(Failure { errno: Errno::of_io(kind, fast), text: Errno::io_text(kind), offset });
        }
    }

    /// Completes one part of a request. After the last part its reply is ready.
    #[inline]
    pub fn finish_part<H: Host<Socket = S>>(&mut self, host: &mut H, slot: u16) {
        let it = self.requests.slot(slot);
        it.pending -= 1;
        if it.pending > 0 {
            return;
        }
        if it.no_reply || self.stage == ConnectionStage::Closed {
            self.requests.close(host, slot);
        } else {
            self.ready.push_back(slot);
        }
    }

    /// Drains the connection: takes no more input, answers the requests in flight, then closes.
    pub fn drain<H: Host<Socket = S>>(&mut self, host: &mut H, cause: Cause) {
        if self.stage != ConnectionStage::Open {
            return;
        }
        self.stage = ConnectionStage::Draining;
        self.closing_since_ns = host.now_ns();
        self.drain_since_ns = self.closing_since_ns;
        self.cause = Some(cause);
        self.abandon_input(host);
    }

    /// Returns the deadline of the handshake, while it is in progress.
    pub fn handshake_until_ns(&self) -> Option<u64> {
        let greeting = self.greeting.as_ref().filter(|_| self.stage == ConnectionStage::Open)?;
        Some(greeting.handshake.deadline_ns())
    }

    /// Closes the connection at once. Operations in flight are awaited only to free their buffers.
    pub fn fail<H: Host<Socket = S>>(&mut self, host: &mut H, cause: Cause) {
        if self.stage == ConnectionStage::Closed {
            return;
        }
        if self.stage == ConnectionStage::Open {
            self.cause = Some(cause);
        }
        self.close_socket(host);
    }

    /// Closes the socket and drops unsent replies.
    pub fn close_socket<H: Host<Socket = S>>(&mut self, host: &mut H) {
        self.stage = ConnectionStage::Closed;
        self.closing_since_ns = host.now_ns();
        host.close(self.socket);
        self.abandon_input(host);
        if self.secure.is_some() || !self.send_out {
            // No send is in flight, or it is of encrypted copies in the outbox: the replies' buffers can be freed.
            self.close_sending(host);
        }
        while let Some(slot) = self.ready.pop_front() {
            self.requests.close(host, slot);
        }
    }

    /// Frees the requests whose replies were sent.
    pub fn close_sending<H: Host<Socket = S>>(&mut self, host: &mut H) {
        for k in 0..self.sending.len() {
            let slot = self.sending[k];
            self.requests.close(host, slot);
        }
        self.sending.clear();
        match self.partial {
            Some((slot, ..)) if self.stage == ConnectionStage::Closed => {
                self.partial = None;
                self.requests.close(host, slot);
            }
            Some((slot, segment, _)) => self.requests.free_until(host, slot, segment),
            None => {}
        }
        if self.secure.is_some() {
            self.pieces.clear();
        }
    }

    /// Drops all unparsed input, and the request that is not completely taken in. The request gets no reply.
    fn abandon_input<H: Host<Socket = S>>(&mut self, host: &mut H) {
        self.wait = WaitReason::No;
        self.start = self.end;
        if let Some(secure) = &mut self.secure {
            secure.forget_input();
        }
        let input = std::mem::replace(&mut self.input, InputState::Header);
        let slot = match input {
            InputState::Header => return,
            // The kernel still fills the buffer: `received` calls this again.
            InputState::Payload { .. } if self.recv == Some(ReceiveTarget::Payload) => {
                self.input = input;
                return;
            }
            InputState::Payload { slot, .. }
            | InputState::Submit { slot, .. }
            | InputState::Discard { slot, .. }
            | InputState::Gather { slot, .. } => slot,
        };
        self.requests.slot(slot).no_reply = true;
        self.finish_part(host, slot);
    }

    /// Handles the completion of a receive.
    pub fn received<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, result: i32) {
        let target = self.recv.take().expect("one receive was in flight");
        if self.stage != ConnectionStage::Open {
            if target == ReceiveTarget::Payload {
                self.abandon_input(host);
            }
            return;
        }
        match (result, target) {
            (..0, _) => self.fail(host, Cause::Socket(-result)),
            (0, _) => self.drain(host, Cause::ConnectionClosed { in_flight: self.requests.in_flight() }),
            (n, ReceiveTarget::Stream { requested }) => {
                let n = n as u32;
                self.end += n;
                self.after_stream(host, shared, n, requested);
                self.pump(host, shared);
            }
            (n, ReceiveTarget::Records { requested }) => {
                self.records_arrived(host, shared, n as u32, requested);
                self.pump(host, shared);
            }
            (n, ReceiveTarget::Payload) => {
                self.payload_arrived(host.now_ns(), n as u32);
                self.pump(host, shared);
            }
        }
    }

    /// Handles the completion of a send.
    pub fn sent<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, result: i32) {
        self.send_out = false;
        if self.secure.is_none() {
            self.close_sending(host);
        }
        if result < 0 {
            self.fail(host, Cause::Socket(-result));
        }
        if self.upgrading && self.greeting_out.is_empty() && self.stage == ConnectionStage::Open {
            self.upgrading = false;
            if let Some(config) = self.tls.clone() {
                self.begin_tls(host, config);
            }
        }
        if self.wait != WaitReason::Memory {
            self.pump(host, shared);
        }
    }

    /// Processes the connection at the end of a batch: sends ready replies, receives more, closes when drained. Returns
    /// true once the connection has ended and all its resources are freed.
    pub fn settle<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) -> bool {
        self.report_memory(shared);
        if self.stage != ConnectionStage::Closed {
            match self.secure {
                None => self.send_ready(host),
                Some(_) => self.send_secure(host, shared),
            }
        }
        match self.stage {
            ConnectionStage::Open => self.receive(host),
            ConnectionStage::Draining => {
                let idle = self.requests.in_flight() == 0 && self.greeting_out.is_empty();
                let has_unsent = self.secure.as_ref().is_some_and(|secure| secure.has_unsent(&self.pieces));
                if idle && !has_unsent && !self.send_out {
                    if self.queue_close_notify() {
                        self.send_secure(host, shared);
                    } else {
                        self.close_socket(host);
                    }
                }
            }
            ConnectionStage::Closed => {}
        }
        if self.stage == ConnectionStage::Closed && !self.send_out && self.recv.is_none() && self.in_engine == 0 {
            self.release(host, shared);
            return true;
        }
        false
    }

    /// Reports the memory that the connection holds to its export's share.
    pub fn report_memory(&mut self, shared: &mut Shared) {
        if let Some(share) = self.share {
            shared.update_share(share, &mut self.reported_bytes, self.requests.held());
        }
    }

    fn release<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) {
        debug_assert_eq!(self.requests.in_flight(), 0, "every request was answered or let go");
        host.free(self.head, HEADS_BYTES);
        host.free(self.stream, self.stream_len as usize);
        if self.stream_len == STREAM_BYTES_LARGE {
            shared.large_streams_bytes -= u64::from(STREAM_BYTES_LARGE);
        }
        if let Some(share) = self.share.take() {
            shared.leave_share(share, self.reported_bytes);
        }
        if let Some(mut secure) = self.secure.take() {
            secure.release(host, shared);
        }
        if self.due_ns.is_some() {
            shared.forget_throttled(self.index);
        }
        let export = self.session.as_ref().map(|session| session.export.info().name.clone());
        // Before the event, so that its reader finds the connection slot free.
        self.session = None;
        let peer = std::mem::take(&mut self.peer);
        let cause = self.cause.take().unwrap_or(Cause::Stopping);
        shared.events.push(NbdEvent::Disconnected { peer, export, cause });
    }

    /// Returns whether a time limit is running.
    pub fn is_timed(&self) -> bool {
        let payload = matches!(self.input, InputState::Payload { .. } | InputState::Discard { .. });
        self.greeting.is_some()
            || self.send_out
            || (self.recv.is_some() && payload)
            || self.wait == WaitReason::Memory
            || self.stage != ConnectionStage::Open
    }

    /// Ends the connection if a time limit has passed.
    pub fn check_time<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &Shared) {
        let now = host.now_ns();
        let over = |since: u64, limit: u64| now.saturating_sub(since) >= limit;
        let limits = &shared.config;
        if self.greeting.as_ref().is_some_and(|greeting| greeting.handshake.is_late(now)) {
            return self.fail(host, Cause::HandshakeTimeout);
        }
        let payload = matches!(self.input, InputState::Payload { .. } | InputState::Discard { .. });
        if payload && self.recv.is_some() && over(self.payload_since_ns, limits.payload_ns) {
            return self.fail(host, Cause::PayloadTimeout);
        }
        let contested = self.stage == ConnectionStage::Draining || !shared.waiters.is_empty();
        if self.send_out && contested && over(self.send_since_ns, limits.replies_ns) {
            return self.fail(host, Cause::ReplyTimeout);
        }
        // Bounds the whole drain: a client that takes each send just in time must not keep the lent memory of a removed
        // disk.
        let drain_ns = limits.replies_ns.saturating_mul(DRAIN_TIMES);
        if self.stage == ConnectionStage::Draining && self.send_out && over(self.drain_since_ns, drain_ns) {
            return self.fail(host, Cause::ReplyTimeout);
        }
        if shared.stopping
            && self.stage == ConnectionStage::Draining
            && self.send_out
            && over(self.closing_since_ns, limits.stop_ns)
        {
            self.fail(host, Cause::Stopping);
        }
    }
}
