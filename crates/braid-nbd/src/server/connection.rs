//! One client: its life from the greeting to the last buffer given back.
//!
//! `input.rs` takes requests in, `output.rs` sends replies, this file holds both together and ends them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use braid_engine::{Buf, Completion, ErrorKind, Op, Request};
use rustls::ServerConfig;

use super::config::{DRAIN_TIMES, HEADS_BYTES, READ_BYTES_MAX, REQUESTS_MAX, STREAM_BYTES, STREAM_BYTES_LARGE};
use super::frontend::Arrival;
use super::host::{Host, SEND_PIECES_MAX, SendPiece};
use super::input::{Input, Wait};
use super::request::{Failure, Kind, Requests};
use super::secure::Secure;
use super::shared::Shared;
use crate::errno::Errno;
use crate::event::{Cause, NbdEvent};
use crate::export::ExportStats;
use crate::handshake::{Handshake, Session};

/// How far a connection is from its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// It is not ending.
    Not,
    /// Nothing more is taken in; what was is answered.
    Drain,
    /// The socket is closed; what is in flight comes back.
    Closed,
}

/// What goes out before the first reply, and what the handshake knows.
#[derive(Debug)]
pub(super) struct Greeting {
    pub handshake: Handshake,
}

pub(super) struct Connection<S> {
    pub index: u16,
    pub token: u64,
    pub socket: S,
    pub peer: String,
    /// Where the client is; none on a Unix socket.
    pub address: Option<IpAddr>,
    /// What TLS is begun with, if the listener offers it.
    pub tls: Option<Arc<ServerConfig>>,
    /// TLS begins when what is being sent is sent.
    pub upgrading: bool,
    /// From the beginning of TLS on.
    pub secure: Option<Box<Secure>>,
    /// When the export's limits let the next request go; none: they were not asked yet.
    pub due_ns: Option<u64>,
    /// Until transmission.
    pub greeting: Option<Box<Greeting>>,
    /// The handshake's output that is not sent yet.
    pub greeting_out: Vec<u8>,
    /// From transmission on.
    pub session: Option<Session>,
    pub requests: Requests,

    /// The stream buffer; bytes `start..end` are not taken yet.
    pub stream: Buf,
    pub stream_len: u32,
    pub start: u32,
    pub end: u32,
    /// How many bytes the next receive into the stream asks for at most.
    pub ask: u32,
    pub input: Input,
    /// So many requests from `start` on the engine was told of, or need not be.
    pub foreseen: u8,
    pub wait: Wait,
    /// Counts the pump's turns that got somewhere.
    pub progress: u64,
    /// What the receive in flight fills.
    pub recv: Option<Target>,
    /// Since when the payload that is being taken in has not got on by [`DIRECT_BYTES`].
    pub payload_since_ns: u64,
    /// Bytes of it that have come since then.
    pub payload_bytes: u32,

    /// Memory for replies' headers.
    pub head: Buf,
    pub ready: VecDeque<u16>,
    pub sending: Vec<u16>,
    /// A reply of which a part is sent: the next segment, and how many bytes are left from there on.
    pub partial: Option<(u16, u16, u32)>,
    pub pieces: Vec<SendPiece>,
    pub send_out: bool,
    pub send_since_ns: u64,
    pub stats: ExportStats,
    /// Where its export's memory is counted, and what was counted of its own.
    pub share: Option<usize>,
    pub told: u64,
    /// It found no memory because its export holds too much: others may go first.
    pub export_holds_too_much: bool,

    /// Segments that the engine has.
    pub in_engine: u32,
    /// Some of them wait to be begun: see [`super::hang_up`].
    pub has_entered: bool,
    pub ending: Ending,
    pub ending_since_ns: u64,
    /// Since when, while it drains, only the client is waited for: nothing came from the engine.
    pub drain_since_ns: u64,
    pub cause: Option<Cause>,
    /// Already in the list of connections that the end of the batch looks at.
    pub dirty: bool,
}

/// Where received bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Stream {
        asked: u32,
    },
    /// Of TLS.
    Records {
        asked: u32,
    },
    Payload,
}

pub(super) const TOKEN_RECV: u64 = 0;
pub(super) const TOKEN_SEND: u64 = 1;

/// Most bytes of a READ with so much memory in all: half of it, so that such a request finds it, if need be step by step,
/// whatever small ones hold.
fn read_bytes_max(memory_bytes: u64) -> u32 {
    let (least, most) = READ_BYTES_MAX;
    let half = (memory_bytes / 2).clamp(u64::from(least), u64::from(most));
    1 << half.ilog2()
}

impl<S: Copy> Connection<S> {
    /// Sets a connection up, the only time that it allocates. `None`: the arena is full.
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
            greeting: Some(Box::new(Greeting { handshake })),
            greeting_out,
            session: None,
            requests: Requests::new(),
            stream,
            stream_len: STREAM_BYTES,
            start: 0,
            end: 0,
            ask: u32::MAX,
            input: Input::Header,
            foreseen: 0,
            wait: Wait::No,
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
            told: 0,
            export_holds_too_much: false,
            in_engine: 0,
            has_entered: false,
            ending: Ending::Not,
            ending_since_ns: 0,
            drain_since_ns: 0,
            cause: None,
            dirty: false,
        }))
    }

    /// The engine answered a segment.
    #[inline]
    pub fn io_done<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, segment: u16, done: &Completion) {
        debug_assert_eq!(self.requests.segment(segment).tag, done.tag, "an answer to another segment");
        self.in_engine -= 1;
        if self.ending == Ending::Drain {
            self.drain_since_ns = host.now_ns();
        }
        if done.buffer_busy {
            let buf = self.requests.take_buffer(segment);
            let held = self.requests.segment(segment);
            let pass = self.session.as_ref().and_then(|session| session.pass.clone());
            shared.quarantine(held.tag, buf, held.len, pass);
            if done.result.is_err() && self.read_again(host, shared, segment) {
                return;
            }
        }
        let slot = self.requests.segment(segment).slot;
        match done.result {
            Ok(()) => {}
            Err(error) if error.kind.is_unsettled() => self.leave_unsettled(host, slot),
            Err(error) => {
                let at = self.requests.segment(segment).at;
                self.fail_slot(slot, error.kind, at);
            }
        }
        if self.requests.slot(slot).kind == Kind::Write {
            self.requests.free_buffer(host, segment);
        }
        self.finish_part(host, slot);
    }

    /// Asks once more for what a disk did not give in time, where another disk may have it: with other memory, as the kernel
    /// may still fill the first. A request that has failed otherwise is not worth it.
    #[cold]
    fn read_again<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, segment: u16) -> bool {
        let part = *self.requests.segment(segment);
        let of = *self.requests.slot(part.slot);
        let Some(session) = &self.session else { return false };
        let device = session.export.info().device;
        let wanted = self.ending != Ending::Closed && !of.silent && of.failure.is_none();
        if of.kind != Kind::Read || part.again || !wanted || !host.is_redundant(device) {
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
        (part.tag, part.again) = (tag, true);
        true
    }

    /// A later session settles this request: it gets no reply, and the connection ends. Nothing more is taken in; replies that other
    /// requests have earned are sent before.
    #[cold]
    fn leave_unsettled<H: Host<Socket = S>>(&mut self, host: &mut H, slot: u16) {
        self.requests.slot(slot).silent = true;
        self.drain(host, Cause::Unsettled);
    }

    /// Notes a request's first failure.
    pub fn fail_slot(&mut self, slot: u16, kind: ErrorKind, at: u32) {
        let slot = self.requests.slot(slot);
        if slot.failure.is_none() {
            let fast = slot.flags.has(braid_engine::Flags::FAST_ZERO);
            let offset = (slot.op != Op::Flush).then_some(slot.offset + u64::from(at));
            slot.failure = Some(Failure { errno: Errno::of_io(kind, fast), text: Errno::io_text(kind), offset });
        }
    }

    /// One part of a request is done; with the last one its reply is ready.
    #[inline]
    pub fn finish_part<H: Host<Socket = S>>(&mut self, host: &mut H, slot: u16) {
        let it = self.requests.slot(slot);
        it.pending -= 1;
        if it.pending > 0 {
            return;
        }
        if it.silent || self.ending == Ending::Closed {
            self.requests.close(host, slot);
        } else {
            self.ready.push_back(slot);
        }
    }

    /// Takes nothing more in, answers what there is, then closes.
    pub fn drain<H: Host<Socket = S>>(&mut self, host: &mut H, cause: Cause) {
        if self.ending != Ending::Not {
            return;
        }
        self.ending = Ending::Drain;
        self.ending_since_ns = host.now_ns();
        self.drain_since_ns = self.ending_since_ns;
        self.cause = Some(cause);
        self.abandon_input(host);
    }

    /// When its handshake must be over, while it is in one.
    pub fn handshake_until_ns(&self) -> Option<u64> {
        let greeting = self.greeting.as_ref().filter(|_| self.ending == Ending::Not)?;
        Some(greeting.handshake.deadline_ns())
    }

    /// Closes now; whatever is in flight only comes back to be freed.
    pub fn fail<H: Host<Socket = S>>(&mut self, host: &mut H, cause: Cause) {
        if self.ending == Ending::Closed {
            return;
        }
        if self.ending == Ending::Not {
            self.cause = Some(cause);
        }
        self.shut(host);
    }

    /// The socket ends; replies that were not sent never will be.
    pub fn shut<H: Host<Socket = S>>(&mut self, host: &mut H) {
        self.ending = Ending::Closed;
        self.ending_since_ns = host.now_ns();
        host.close(self.socket);
        self.abandon_input(host);
        if self.secure.is_some() || !self.send_out {
            // What the kernel sends, if anything, is a copy.
            self.close_sending(host);
        }
        while let Some(slot) = self.ready.pop_front() {
            self.requests.close(host, slot);
        }
    }

    /// Ends the requests whose replies were sent.
    pub fn close_sending<H: Host<Socket = S>>(&mut self, host: &mut H) {
        for k in 0..self.sending.len() {
            let slot = self.sending[k];
            self.requests.close(host, slot);
        }
        self.sending.clear();
        match self.partial {
            Some((slot, ..)) if self.ending == Ending::Closed => {
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

    /// Lets go of a request that was only half taken in: it gets no reply.
    fn abandon_input<H: Host<Socket = S>>(&mut self, host: &mut H) {
        self.wait = Wait::No;
        self.start = self.end;
        if let Some(secure) = &mut self.secure {
            secure.forget_input();
        }
        let input = std::mem::replace(&mut self.input, Input::Header);
        let slot = match input {
            Input::Header => return,
            // The kernel still fills its buffer: `net_done` comes back here.
            Input::Payload { .. } if self.recv == Some(Target::Payload) => {
                self.input = input;
                return;
            }
            Input::Payload { slot, .. }
            | Input::Submit { slot, .. }
            | Input::Discard { slot, .. }
            | Input::Gather { slot, .. } => slot,
        };
        self.requests.slot(slot).silent = true;
        self.finish_part(host, slot);
    }

    /// A receive came back.
    pub fn received<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, result: i32) {
        let target = self.recv.take().expect("one receive was in flight");
        if self.ending != Ending::Not {
            if target == Target::Payload {
                self.abandon_input(host);
            }
            return;
        }
        match (result, target) {
            (..0, _) => self.fail(host, Cause::Socket(-result)),
            (0, _) => self.drain(host, Cause::Gone { in_flight: self.requests.in_flight() }),
            (n, Target::Stream { asked }) => {
                let n = n as u32;
                self.end += n;
                self.after_stream(host, shared, n, asked);
                self.pump(host, shared);
            }
            (n, Target::Records { asked }) => {
                self.records_arrived(host, shared, n as u32, asked);
                self.pump(host, shared);
            }
            (n, Target::Payload) => {
                self.payload_arrived(host.now_ns(), n as u32);
                self.pump(host, shared);
            }
        }
    }

    /// A send came back.
    pub fn sent<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, result: i32) {
        self.send_out = false;
        if self.secure.is_none() {
            self.close_sending(host);
        }
        if result < 0 {
            self.fail(host, Cause::Socket(-result));
        }
        if self.upgrading && self.greeting_out.is_empty() && self.ending == Ending::Not {
            self.upgrading = false;
            if let Some(config) = self.tls.clone() {
                self.begin_tls(host, config);
            }
        }
        if self.wait != Wait::Memory {
            self.pump(host, shared);
        }
    }

    /// At the end of a batch: sends what is ready, receives more, closes when drained. True: it is over, and
    /// all it had is given back.
    pub fn settle<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) -> bool {
        self.tell(shared);
        if self.ending != Ending::Closed {
            match self.secure {
                None => self.send_ready(host),
                Some(_) => self.send_secure(host, shared),
            }
        }
        match self.ending {
            Ending::Not => self.receive(host),
            Ending::Drain => {
                let idle = self.requests.in_flight() == 0 && self.greeting_out.is_empty();
                let owes = self.secure.as_ref().is_some_and(|secure| secure.owes(&self.pieces));
                if idle && !owes && !self.send_out {
                    if self.say_goodbye() {
                        self.send_secure(host, shared);
                    } else {
                        self.shut(host);
                    }
                }
            }
            Ending::Closed => {}
        }
        if self.ending == Ending::Closed && !self.send_out && self.recv.is_none() && self.in_engine == 0 {
            self.release(host, shared);
            return true;
        }
        false
    }

    /// Says how much memory it holds, where its export's is counted.
    pub fn tell(&mut self, shared: &mut Shared) {
        if let Some(share) = self.share {
            shared.tell_share(share, &mut self.told, self.requests.held());
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
            shared.leave_share(share, self.told);
        }
        if let Some(mut secure) = self.secure.take() {
            secure.release(host, shared);
        }
        if self.due_ns.is_some() {
            shared.forget_throttled(self.index);
        }
        let export = self.session.as_ref().map(|session| session.export.info().name.clone());
        // Before the event, so that whoever sees it finds the place free.
        self.session = None;
        let peer = std::mem::take(&mut self.peer);
        let cause = self.cause.take().unwrap_or(Cause::Stopping);
        shared.events.push(NbdEvent::Disconnected { peer, export, cause });
    }

    /// Whether a time limit runs.
    pub fn is_timed(&self) -> bool {
        let payload = matches!(self.input, Input::Payload { .. } | Input::Discard { .. });
        self.greeting.is_some()
            || self.send_out
            || (self.recv.is_some() && payload)
            || self.wait == Wait::Memory
            || self.ending != Ending::Not
    }

    /// Ends the connection if one of its time limits has passed.
    pub fn check_time<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &Shared) {
        let now = host.now_ns();
        let over = |since: u64, limit: u64| now.saturating_sub(since) >= limit;
        let limits = &shared.config;
        if self.greeting.as_ref().is_some_and(|greeting| greeting.handshake.is_late(now)) {
            return self.fail(host, Cause::HandshakeLate);
        }
        let payload = matches!(self.input, Input::Payload { .. } | Input::Discard { .. });
        if payload && self.recv.is_some() && over(self.payload_since_ns, limits.payload_ns) {
            return self.fail(host, Cause::PayloadLate);
        }
        let contested = self.ending == Ending::Drain || !shared.waiters.is_empty();
        if self.send_out && contested && over(self.send_since_ns, limits.replies_ns) {
            return self.fail(host, Cause::RepliesLate);
        }
        // What a removed disk has lent is not for the client to keep, one send after another.
        let drain_ns = limits.replies_ns.saturating_mul(DRAIN_TIMES);
        if self.ending == Ending::Drain && self.send_out && over(self.drain_since_ns, drain_ns) {
            return self.fail(host, Cause::RepliesLate);
        }
        if shared.stopping
            && self.ending == Ending::Drain
            && self.send_out
            && over(self.ending_since_ns, limits.stop_ns)
        {
            self.fail(host, Cause::Stopping);
        }
    }
}
