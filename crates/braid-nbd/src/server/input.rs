//! Parses the stream into requests and submits them to the engine.
//!
//! `pump` parses the stream buffer until it runs out of bytes or of a resource that the next request needs. Then it
//! waits and receives nothing more from the socket; this is the only back-pressure. Small payloads are copied once,
//! from the stream into a buffer of their own; long ones are received directly into it.

use braid_engine::{Buf, ErrorKind, Flags, Op, Request, UpcomingRequest};
use braid_ring::Throttle;
use zerocopy::FromBytes;

use super::config::*;
use super::connection::{Connection, TOKEN_RECV};
use super::host::Host;
use super::request::{Failure, NONE, RequestKind, Slot, allocated_bytes};
use super::share::{MemoryGrant, MemoryRequest};
use super::shared::Shared;
use super::state::{ConnectionStage, InputState, ReceiveTarget, WaitReason};
use crate::codec::{DecodedRequest, EXTENDED_BYTES, ExtendedRequestHeader, REQUEST_BYTES, RequestHeader};
use crate::errno::Errno;
use crate::event::{Cause, NbdEvent};
use crate::handshake::HandshakeStep;
use crate::transmission::{Command, ProtocolViolation, Refusal, RequestDecision, Terms, validate};

/// Interval at which a connection of a held export tries again.
const HELD_NS: u64 = 2_000_000;

/// What the pump does next.
pub(super) enum PumpStep {
    Continue,
    NeedInput,
    Wait(WaitReason),
}

#[inline]
pub(super) fn header_bytes(terms: &Terms) -> usize {
    if terms.extended { EXTENDED_BYTES } else { REQUEST_BYTES }
}

/// Returns the number of payload bytes that follow the header.
#[inline]
pub(super) fn payload_bytes(header: &DecodedRequest, decision: RequestDecision) -> u64 {
    match decision {
        RequestDecision::Serve(Command::Write(_)) => header.len,
        RequestDecision::Refuse(_, payload) => u64::from(payload),
        RequestDecision::Serve(_) | RequestDecision::Close(_) => 0,
    }
}

impl<S: Copy> Connection<S> {
    /// Takes in as many requests as possible, and begins them if the client is still connected.
    #[inline]
    pub fn pump<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) {
        self.take_requests(host, shared);
        if self.has_entered {
            self.begin_entered(host);
        }
    }

    fn take_requests<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) {
        let has_waited = self.wait != WaitReason::No;
        self.wait = WaitReason::No;
        if self.greeting.is_some() {
            self.pump_handshake(host, shared);
        }
        if self.session.is_none() || has_waited && self.end_if_disconnected(host) {
            return;
        }
        while self.stage == ConnectionStage::Open {
            let step = match self.input {
                InputState::Header => self.take_header(host, shared),
                InputState::Gather { slot, at } => self.take_memory(host, shared, slot, at),
                InputState::Submit { slot, segment, left } => self.take_submit(host, shared, slot, segment, left),
                InputState::Payload { slot, left, segment, filled } => {
                    self.take_payload(host, shared, slot, left, segment, filled)
                }
                InputState::Discard { slot, left } => self.take_discard(host, slot, left),
            };
            match step {
                PumpStep::Continue => {
                    self.progress += 1;
                    // Of the connection's requests, only the first has waited too long. It has now progressed or
                    // failed; the next one may wait again.
                    shared.expired_waiter = None;
                }
                PumpStep::NeedInput if self.refill(host, shared) => {}
                PumpStep::NeedInput => return,
                PumpStep::Wait(wait) => {
                    self.wait = wait;
                    if wait == WaitReason::Memory {
                        shared.enqueue(self.index);
                        if shared.is_first_waiter(self.index) {
                            self.first_since_ns.get_or_insert(host.now_ns());
                        }
                    }
                    return;
                }
            }
        }
    }

    fn pump_handshake<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) {
        // A client must not send before it gets the reply; input that it sends nevertheless waits.
        while self.greeting_out.is_empty() && self.stage == ConnectionStage::Open && !self.upgrading {
            let Some(greeting) = self.greeting.as_mut() else { return };
            let bytes = host.memory(self.stream.add(u64::from(self.start)), (self.end - self.start) as usize);
            let (took, step) = greeting.handshake.feed(bytes, &mut self.greeting_out);
            self.start += took as u32;
            match step {
                HandshakeStep::NeedInput if took == 0 => {
                    if !self.greeting_out.is_empty() || !self.refill(host, shared) {
                        return;
                    }
                }
                HandshakeStep::NeedInput => {}
                HandshakeStep::StartTls => {
                    if self.start != self.end || self.recv.is_some() {
                        // Plaintext after STARTTLS, which an attacker may have injected, would be taken for decrypted
                        // data.
                        return self.fail(host, Cause::TlsInjected);
                    }
                    self.upgrading = true;
                }
                // The [`super::ExportsChanged`] message pumps again.
                HandshakeStep::AwaitAdmission => return,
                HandshakeStep::Close(cause) => return self.drain(host, cause),
                HandshakeStep::Enter(session) => {
                    let export = session.export.info().name.clone();
                    shared.events.push(NbdEvent::Connected { peer: self.peer.clone(), export });
                    self.share = Some(shared.join_share(std::ptr::from_ref(&*session.export).addr()));
                    self.session = Some(session);
                    self.greeting = None;
                }
            }
        }
    }

    #[inline]
    fn take_header<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) -> PumpStep {
        let terms = self.session.as_ref().expect("there are no requests before transmission").terms;
        let Some(header) = self.header_at(host, &terms, self.start) else { return PumpStep::NeedInput };
        let decision = validate(&header, &terms);
        if self.prefetched == 0 {
            self.prefetch(host, &terms, payload_bytes(&header, decision));
        }
        match decision {
            RequestDecision::Serve(command) => self.serve(host, shared, &header, command),
            RequestDecision::Refuse(refusal, payload) => self.refuse(host, &header, refusal, payload),
            RequestDecision::Close(breach) => {
                let cause = match breach {
                    ProtocolViolation::Magic(magic) => Cause::RequestMagic(magic),
                    ProtocolViolation::Payload(len) => Cause::PayloadTooLong(len),
                };
                // The requests before it were valid, and are answered.
                self.drain(host, cause);
                PumpStep::NeedInput
            }
        }
    }

    /// Returns the header at this offset of the stream buffer, if it is complete.
    #[inline]
    pub(super) fn header_at<H: Host<Socket = S>>(
        &self,
        host: &mut H,
        terms: &Terms,
        at: u32,
    ) -> Option<DecodedRequest> {
        let bytes = header_bytes(terms);
        if (self.end.saturating_sub(at) as usize) < bytes {
            return None;
        }
        let bytes = host.memory(self.stream.add(u64::from(at)), bytes);
        Some(if terms.extended {
            DecodedRequest::from(&ExtendedRequestHeader::read_from_bytes(bytes).expect("as many bytes as it has"))
        } else {
            DecodedRequest::from(&RequestHeader::read_from_bytes(bytes).expect("as many bytes as it has"))
        })
    }

    /// Announces the requests in the stream buffer to the engine, if there are several. The first begins at `start` and
    /// has `payload` bytes of payload. Does not advance `start`.
    #[inline]
    fn prefetch<H: Host<Socket = S>>(&mut self, host: &mut H, terms: &Terms, payload: u64) {
        let header = header_bytes(terms) as u64;
        // A hint for a single request would not help: the request itself is submitted at once.
        if u64::from(self.start) + header + payload + header <= u64::from(self.end) {
            self.prefetch_buffered(host, terms);
        }
    }

    #[inline(never)]
    fn prefetch_buffered<H: Host<Socket = S>>(&mut self, host: &mut H, terms: &Terms) {
        let device = self.session.as_ref().expect("there are no requests before transmission").export.info().device;
        if !host.benefits_from_prefetch(device) {
            // Check again whether the device benefits from hints after this many requests.
            self.prefetched = PREFETCH_REQUESTS_MAX as u8;
            return;
        }
        let mut soon = [UpcomingRequest::default(); PREFETCH_REQUESTS_MAX];
        let (mut count, mut at) = (0, u64::from(self.start));
        while usize::from(self.prefetched) < PREFETCH_REQUESTS_MAX
            && at < u64::from(self.end)
            && let Some(header) = self.header_at(host, terms, at as u32)
        {
            let decision = validate(&header, terms);
            let write = match decision {
                RequestDecision::Serve(Command::Read) => Some(false),
                RequestDecision::Serve(Command::Write(_)) => Some(true),
                RequestDecision::Serve(_) | RequestDecision::Refuse(..) => None,
                RequestDecision::Close(_) => break,
            };
            if let Some(write) = write {
                soon[count] = UpcomingRequest { offset: header.offset, write };
                count += 1;
            }
            self.prefetched += 1;
            at += header_bytes(terms) as u64 + payload_bytes(&header, decision);
        }
        host.prefetch(device, &soon[..count]);
    }

    /// Opens a slot for a request and takes its header from the stream.
    #[inline]
    pub(super) fn open<H: Host<Socket = S>>(&mut self, host: &H, mut slot: Slot) -> u16 {
        self.start += self.header_bytes();
        self.prefetched = self.prefetched.saturating_sub(1);
        self.due_ns = None;
        slot.taken_ns = host.now_ns();
        self.requests.open(slot)
    }

    /// Returns the length of a request header.
    #[inline]
    fn header_bytes(&self) -> u32 {
        let session = self.session.as_ref().expect("there are no requests before transmission");
        header_bytes(&session.terms) as u32
    }

    fn refuse<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        header: &DecodedRequest,
        refusal: Refusal,
        left: u32,
    ) -> PumpStep {
        if !self.requests.has_room(0, BYTES_MAX) {
            return PumpStep::Wait(WaitReason::Own);
        }
        let kind = match header.kind {
            crate::codec::command::READ => RequestKind::Read,
            crate::codec::command::WRITE => RequestKind::Write,
            _ => RequestKind::Other,
        };
        let slot = self.open(host, Slot::new(header, kind, Op::Read, Flags::NONE));
        let failure = Failure { errno: refusal.errno, text: refusal.text, offset: None };
        self.requests.slot(slot).failure = Some(failure);
        self.discard(host, slot, left)
    }

    /// Discards the rest of a request's payload, then makes its error reply ready.
    fn discard<H: Host<Socket = S>>(&mut self, host: &mut H, slot: u16, left: u32) -> PumpStep {
        if left == 0 {
            self.input = InputState::Header;
            self.finish_part(host, slot);
        } else {
            if !matches!(self.input, InputState::Discard { .. }) {
                self.payload_started(host.now_ns());
            }
            self.input = InputState::Discard { slot, left };
        }
        PumpStep::Continue
    }

    #[inline]
    fn serve<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        header: &DecodedRequest,
        command: Command,
    ) -> PumpStep {
        let len = header.len;
        let data = match command {
            // At most 32 MiB: validation has checked it.
            Command::Read | Command::Write(_) => len as u32,
            Command::Disconnect => {
                self.drain(host, Cause::Disconnected);
                return PumpStep::NeedInput;
            }
            _ => 0,
        };
        let bytes_max = if shared.waiters.is_empty() { BYTES_MAX } else { BYTES_MAX_CONTESTED };
        if !self.requests.has_room(data, bytes_max) {
            return PumpStep::Wait(WaitReason::Own);
        }
        if self.is_held(host, shared) || self.is_throttled(host, shared, command, u64::from(data)) {
            return PumpStep::Wait(WaitReason::Limits);
        }
        match command {
            Command::Read => self.begin_read(host, shared, header),
            Command::Write(flags) => {
                let slot = self.open(host, Slot::new(header, RequestKind::Write, Op::Write, flags).charged());
                self.input = InputState::Payload { slot, left: data, segment: NONE, filled: 0 };
                PumpStep::Continue
            }
            Command::Flush => self.begin_plain(host, header, Op::Flush, Flags::NONE),
            Command::Trim(flags) => self.begin_plain(host, header, Op::Discard, flags),
            Command::WriteZeroes(flags) => self.begin_plain(host, header, Op::WriteZeroes, flags),
            Command::Cache => {
                let slot = self.open(host, Slot::new(header, RequestKind::Other, Op::Read, Flags::NONE));
                self.finish_part(host, slot);
                PumpStep::Continue
            }
            Command::BlockStatus { one } => self.block_status(host, shared, header, one),
            Command::Disconnect => PumpStep::NeedInput,
        }
    }

    /// Returns whether the export is held. If so, a timer retries the connection.
    #[inline]
    fn is_held<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) -> bool {
        let export = &self.session.as_ref().expect("there are no requests before transmission").export;
        if !export.is_held() {
            return false;
        }
        let now = host.now_ns();
        // Until `held_until_ns` a timer is armed already: another event may have woken the connection in between.
        if self.held_until_ns <= now {
            self.held_until_ns = now + HELD_NS;
            shared.throttle(self.held_until_ns, self.index);
        }
        true
    }

    /// Returns whether the limits of the export, or those shared with other exports, delay this request. Only the first
    /// request of each connection is queued, so connections take turns.
    #[inline]
    fn is_throttled<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        command: Command,
        len: u64,
    ) -> bool {
        let export = &self.session.as_ref().expect("there are no requests before transmission").export;
        let own = Some(export.throttle()).filter(|throttle| throttle.is_limited());
        let shared_by_all = export.info().shared_throttle.as_deref().filter(|throttle| throttle.is_limited());
        if own.is_none() && shared_by_all.is_none() {
            return false;
        }
        let now = host.now_ns();
        let op = match command {
            Command::Read => Op::Read,
            Command::Write(_) => Op::Write,
            _ => Op::Flush,
        };
        let due = match self.due_ns {
            Some(due) => due,
            None => {
                let admit =
                    |throttle: Option<&Throttle>| throttle.map_or(now, |throttle| throttle.admit(now, op, len).0);
                let due = admit(own).max(admit(shared_by_all));
                self.due_ns = Some(due);
                if due > now {
                    shared.throttle(due, self.index);
                }
                due
            }
        };
        due > now
    }

    /// Begins a request without data: one segment without a buffer.
    fn begin_plain<H: Host<Socket = S>>(
        &mut self,
        host: &H,
        header: &DecodedRequest,
        op: Op,
        flags: Flags,
    ) -> PumpStep {
        let slot = self.open(host, Slot::new(header, RequestKind::Other, op, flags));
        let segment = self.requests.push_segment(slot, Buf::NONE, 0, 0);
        self.input = InputState::Submit { slot, segment, left: 0 };
        PumpStep::Continue
    }

    /// Begins a READ. Its memory is allocated at once or, if its connection is the first in the queue for memory, step
    /// by step. Any other request frees what it has got while it waits for more: two requests that each held a part
    /// could wait for each other for ever.
    #[inline]
    fn begin_read<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        header: &DecodedRequest,
    ) -> PumpStep {
        let slot = self.open(host, Slot::new(header, RequestKind::Read, Op::Read, Flags::NONE).charged());
        self.take_memory(host, shared, slot, 0)
    }

    /// Allocates memory for a READ; its first `at` bytes have memory already. Then submits the READ.
    #[inline]
    fn take_memory<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        slot: u16,
        mut at: u32,
    ) -> PumpStep {
        let Slot { len, offset, .. } = *self.requests.slot(slot);
        let len = len as u32;
        let device = self.session.as_ref().expect("there are no requests before transmission").export.info().device;
        while at < len {
            let part = SEGMENT_BYTES.min(len - at);
            if part >= LEND_BYTES
                && let Some(loan) = host.lend(device, offset + u64::from(at), u64::from(part))
            {
                self.requests.push_loan(slot, loan, at, part);
                at += part;
                continue;
            }
            let only = self.requests.is_only(slot);
            let Some(buf) = self.alloc(host, shared, part, only) else {
                return self.no_memory(shared, host, slot, at, only);
            };
            self.requests.push_segment(slot, buf, at, part);
            at += part;
        }
        let of = self.requests.slot(slot);
        // The latency does not include the wait for memory.
        of.taken_ns = host.now_ns();
        let segment = of.first;
        self.input = InputState::Submit { slot, segment, left: 0 };
        PumpStep::Continue
    }

    /// Allocates memory for a segment, within the connection's share or as the first waiter. `only`: no other request
    /// of the connection holds memory.
    #[inline]
    pub(super) fn alloc<H: Host>(&mut self, host: &mut H, shared: &mut Shared, len: u32, only: bool) -> Option<Buf> {
        let held = self.requests.held();
        let held_by_export =
            self.share.map_or(held, |share| shared.update_share(share, &mut self.reported_bytes, held));
        let request =
            MemoryRequest { memory: host.memory_bytes(), bytes: allocated_bytes(len), held, held_by_export, only };
        let grant = request.grant();
        self.export_over_share = grant == MemoryGrant::ExportOverShare;
        match grant {
            MemoryGrant::WithinShare => host.alloc(len as usize),
            MemoryGrant::InTurn if shared.is_first_waiter(self.index) => host.alloc(len as usize),
            MemoryGrant::InTurn | MemoryGrant::Exhausted | MemoryGrant::ExportOverShare => None,
        }
    }

    /// Handles a READ with memory for its first `at` bytes only: it waits, or fails if it has waited too long.
    fn no_memory<H: Host<Socket = S>>(
        &mut self,
        shared: &Shared,
        host: &mut H,
        slot: u16,
        at: u32,
        only: bool,
    ) -> PumpStep {
        if shared.expired_waiter == Some(self.index) {
            self.requests.free_until(host, slot, NONE);
            let failure = Failure { errno: Errno::NoMemory, text: "no memory for the data", offset: None };
            self.requests.slot(slot).failure = Some(failure);
            return self.discard(host, slot, 0);
        }
        self.input = InputState::Gather { slot, at };
        if !(only && shared.is_first_waiter(self.index)) {
            self.release_gathered(host);
        }
        // If other requests of this connection hold memory, their replies free it: the connection need not queue for
        // memory of others.
        PumpStep::Wait(if only { WaitReason::Memory } else { WaitReason::Own })
    }

    /// Frees the memory of a READ that waits for more.
    pub(super) fn release_gathered<H: Host<Socket = S>>(&mut self, host: &mut H) {
        if let InputState::Gather { slot, .. } = self.input {
            self.requests.empty(host, slot);
            self.input = InputState::Gather { slot, at: 0 };
        }
    }

    /// Submits this segment and those after it to the engine.
    #[inline]
    fn take_submit<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        slot: u16,
        mut segment: u16,
        left: u32,
    ) -> PumpStep {
        let device = self.session.as_ref().expect("there are no requests before transmission").export.info().device;
        let of = *self.requests.slot(slot);
        while segment != NONE {
            let tag = shared.next_tag(self.index, segment);
            let part = self.requests.segment(segment);
            let (at, len, buf, next) = (part.at, part.len, part.buf, part.next);
            if part.loan.is_some() {
                segment = next;
                continue;
            }
            part.tag = tag;
            let request = Request {
                device,
                op: of.op,
                flags: of.flags,
                offset: of.offset + u64::from(at),
                // A request without data has one segment, of any length.
                len: if of.kind == RequestKind::Other { of.len } else { u64::from(len) },
                buf,
                tag,
            };
            // Requests that change nothing begin at once, whether or not their client is connected.
            let changes = !matches!(request.op, Op::Read | Op::Flush);
            match if changes { host.enter(&request) } else { host.submit(&request) } {
                Ok(()) => {
                    self.in_engine += 1;
                    self.has_entered |= changes;
                    self.requests.slot(slot).pending += 1;
                }
                Err(error) if error.kind == ErrorKind::Busy => {
                    self.input = InputState::Submit { slot, segment, left };
                    return PumpStep::Wait(WaitReason::Memory);
                }
                Err(error) if error.kind.is_unsettled() => {
                    // The request gets no reply: `drain` drops its input. Segments that the engine has already accepted
                    // only have to complete, so that their buffers can be freed.
                    self.drain(host, Cause::Unsettled);
                    return PumpStep::NeedInput;
                }
                Err(error) => self.fail_slot(slot, error.kind, at),
            }
            segment = next;
        }
        if left > 0 {
            self.input = InputState::Payload { slot, left, segment: NONE, filled: 0 };
        } else {
            self.input = InputState::Header;
            self.finish_part(host, slot);
        }
        PumpStep::Continue
    }

    /// Moves payload bytes from the stream into the segment. A full segment is submitted to the engine.
    #[inline]
    fn take_payload<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        slot: u16,
        left: u32,
        mut segment: u16,
        mut filled: u32,
    ) -> PumpStep {
        if segment == NONE {
            let len = SEGMENT_BYTES.min(left);
            // `only` may be true here: the earlier segments of this WRITE are in the engine and complete without
            // further memory, so that this connection, though it holds memory while it waits, cannot deadlock with
            // another one.
            let Some(buf) = self.alloc(host, shared, len, true) else {
                if shared.expired_waiter == Some(self.index) {
                    let failure = Failure { errno: Errno::NoMemory, text: "no memory for the data", offset: None };
                    self.requests.slot(slot).failure.get_or_insert(failure);
                    return self.discard(host, slot, left);
                }
                return PumpStep::Wait(WaitReason::Memory);
            };
            let at = self.requests.slot(slot).len as u32 - left;
            segment = self.requests.push_segment(slot, buf, at, len);
            self.payload_started(host.now_ns());
        }
        let part = *self.requests.segment(segment);
        let take = (self.end - self.start).min(part.len - filled);
        if take > 0 {
            host.copy(self.stream.add(u64::from(self.start)), part.buf.add(u64::from(filled)), take as usize);
            self.start += take;
            filled += take;
            self.payload_progressed(host.now_ns(), take);
        }
        if filled < part.len {
            self.input = InputState::Payload { slot, left, segment, filled };
            return PumpStep::NeedInput;
        }
        let left = left - part.len;
        self.input = InputState::Submit { slot, segment, left };
        PumpStep::Continue
    }

    fn take_discard<H: Host<Socket = S>>(&mut self, host: &mut H, slot: u16, left: u32) -> PumpStep {
        let take = (self.end - self.start).min(left);
        self.start += take;
        if take == 0 {
            return PumpStep::NeedInput;
        }
        self.payload_progressed(host.now_ns(), take);
        self.discard(host, slot, left - take)
    }

    /// Starts the time limit of a payload: from now on memory waits for the client's bytes.
    fn payload_started(&mut self, now_ns: u64) {
        (self.payload_since_ns, self.payload_bytes) = (now_ns, 0);
    }

    /// Counts received payload bytes. The time limit restarts only after every [`DIRECT_BYTES`]: otherwise a client
    /// that sends single bytes could keep the memory for ever.
    fn payload_progressed(&mut self, now_ns: u64, bytes: u32) {
        self.payload_bytes = self.payload_bytes.saturating_add(bytes);
        if self.payload_bytes >= DIRECT_BYTES {
            self.payload_started(now_ns);
        }
    }

    /// Adapts the stream buffer after a receive of `n` bytes into it.
    pub fn after_stream<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, n: u32, requested: u32) {
        if n < requested {
            return;
        }
        // More input is waiting: receive more at a time, and enlarge the buffer.
        if self.receive_bytes_max < self.stream_len {
            self.receive_bytes_max = u32::MAX;
        } else if self.stream_len < STREAM_BYTES_LARGE && shared.may_grow(self.session.is_some()) {
            let Some(large) = host.alloc(STREAM_BYTES_LARGE as usize) else { return };
            let held = (self.end - self.start) as usize;
            host.copy(self.stream.add(u64::from(self.start)), large, held);
            host.free(self.stream, self.stream_len as usize);
            (self.stream, self.stream_len) = (large, STREAM_BYTES_LARGE);
            (self.start, self.end) = (0, held as u32);
            shared.large_streams_bytes += u64::from(STREAM_BYTES_LARGE);
        }
    }

    /// Handles `n` bytes received directly into the payload's segment.
    pub fn payload_arrived(&mut self, now_ns: u64, n: u32) {
        self.receive_bytes_max = RECEIVE_BYTES_AFTER_DIRECT;
        self.payload_progressed(now_ns, n);
        if let InputState::Payload { filled, .. } = &mut self.input {
            *filled += n;
        }
    }

    /// Receives more, if the connection can use it.
    #[inline]
    pub fn receive<H: Host<Socket = S>>(&mut self, host: &mut H) {
        if self.recv.is_some()
            || self.wait != WaitReason::No
            || !self.greeting_out.is_empty() && self.greeting.is_some()
        {
            return;
        }
        if self.upgrading {
            return;
        }
        if self.secure.is_some() {
            return self.receive_secure(host);
        }
        let token = self.token | TOKEN_RECV;
        if let InputState::Payload { segment, filled, .. } = self.input
            && segment != NONE
        {
            let part = self.requests.segment(segment);
            let rest = part.len - filled;
            if self.start == self.end && rest >= DIRECT_BYTES {
                self.recv = Some(ReceiveTarget::Payload);
                let buf = part.buf.add(u64::from(filled));
                return host.recv(self.socket, buf, rest.min(DIRECT_BYTES_MAX), true, token);
            }
        }
        let held = self.end - self.start;
        if self.start > 0 {
            if held > 0 {
                host.copy(self.stream.add(u64::from(self.start)), self.stream, held as usize);
            }
            (self.start, self.end) = (0, held);
        }
        let requested = self.receive_bytes_max.min(self.stream_len - self.end);
        if requested == 0 {
            // The buffer is full of handshake options; the reply to the first of them is sent in parts. When the
            // current part is sent, `sent` continues.
            return;
        }
        self.recv = Some(ReceiveTarget::Stream { requested });
        host.recv(self.socket, self.stream.add(u64::from(self.end)), requested, false, token);
    }
}
