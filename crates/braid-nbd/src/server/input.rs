//! From bytes to requests in the engine.
//!
//! `pump` takes what the stream buffer holds until it runs out of bytes, or of something that the next
//! request needs; then it waits and reads nothing more from the socket, which is all the back-pressure
//! there is. Small payloads are copied once, out of the stream into a buffer of their own; long ones are
//! received straight into it.

use braid_engine::{Buf, ErrorKind, Flags, Op, Request, Soon};
use braid_ring::Throttle;
use zerocopy::FromBytes;

use super::config::*;
use super::connection::{Connection, Ending, TOKEN_RECV, Target};
use super::host::Host;
use super::request::{Failure, Kind, NONE, Slot, taken_bytes};
use super::share::{Lane, Wish};
use super::shared::Shared;
use crate::codec::{Asked, EXTENDED_BYTES, ExtendedRequestHeader, REQUEST_BYTES, RequestHeader};
use crate::errno::Errno;
use crate::event::{Cause, NbdEvent};
use crate::handshake::Step;
use crate::transmission::{Breach, Command, Refusal, Terms, Verdict, judge};

/// What the next bytes of the stream are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Input {
    /// A request.
    Header,
    /// Not wanted yet: a READ has memory for its first `at` bytes, and waits for more.
    Gather { slot: u16, at: u32 },
    /// Not wanted yet: the engine must first take this segment, and those after it.
    Submit { slot: u16, segment: u16, left: u32 },
    /// The payload of a WRITE: `left` bytes, beginning with those for `segment` from `filled` on.
    Payload { slot: u16, left: u32, segment: u16, filled: u32 },
    /// The payload of a refused WRITE.
    Discard { slot: u16, left: u32 },
}

/// Why nothing is taken in just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// Something is, or would be if it came.
    No,
    /// A reply must be sent first: the connection's own limits.
    Own,
    /// The export's limits must let the next request go.
    Limits,
    /// Others must give something back: memory of the shard, or room in the engine.
    Memory,
}

/// Whether the pump goes on.
pub(super) enum Turn {
    Again,
    Starved,
    Wait(Wait),
}

#[inline]
pub(super) fn header_bytes(terms: &Terms) -> usize {
    if terms.extended { EXTENDED_BYTES } else { REQUEST_BYTES }
}

/// Bytes that follow the header.
#[inline]
pub(super) fn payload_bytes(header: &Asked, verdict: Verdict) -> u64 {
    match verdict {
        Verdict::Serve(Command::Write(_)) => header.len,
        Verdict::Refuse(_, payload) => u64::from(payload),
        Verdict::Serve(_) | Verdict::Close(_) => 0,
    }
}

impl<S: Copy> Connection<S> {
    /// Takes in as much as it can, and begins it if the client is still there.
    #[inline]
    pub fn pump<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) {
        self.take_requests(host, shared);
        if self.has_entered {
            self.begin_entered(host);
        }
    }

    fn take_requests<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) {
        let has_waited = self.wait != Wait::No;
        self.wait = Wait::No;
        if self.greeting.is_some() {
            self.pump_handshake(host, shared);
        }
        if self.session.is_none() || has_waited && self.leaves_unbegun(host) {
            return;
        }
        while self.ending == Ending::Not {
            let turn = match self.input {
                Input::Header => self.take_header(host, shared),
                Input::Gather { slot, at } => self.take_memory(host, shared, slot, at),
                Input::Submit { slot, segment, left } => self.take_submit(host, shared, slot, segment, left),
                Input::Payload { slot, left, segment, filled } => {
                    self.take_payload(host, shared, slot, left, segment, filled)
                }
                Input::Discard { slot, left } => self.take_discard(host, slot, left),
            };
            match turn {
                Turn::Again => {
                    self.progress += 1;
                    // Only the first request has waited, and it got on, one way or the other.
                    shared.giving_up = None;
                }
                Turn::Starved if self.refill(host, shared) => {}
                Turn::Starved => return,
                Turn::Wait(wait) => {
                    self.wait = wait;
                    if wait == Wait::Memory {
                        shared.enqueue(self.index, host.now_ns());
                    }
                    return;
                }
            }
        }
    }

    fn pump_handshake<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) {
        // The client must not speak before it was answered; what it sent all the same waits.
        while self.greeting_out.is_empty() && self.ending == Ending::Not && !self.upgrading {
            let Some(greeting) = self.greeting.as_mut() else { return };
            let bytes = host.memory(self.stream.add(u64::from(self.start)), (self.end - self.start) as usize);
            let (took, step) = greeting.handshake.feed(bytes, &mut self.greeting_out);
            self.start += took as u32;
            match step {
                Step::More if took == 0 => {
                    if !self.greeting_out.is_empty() || !self.refill(host, shared) {
                        return;
                    }
                }
                Step::More => {}
                Step::StartTls => {
                    if self.start != self.end || self.recv.is_some() {
                        // It would be read as if it had come encrypted.
                        return self.fail(host, Cause::TlsInjected);
                    }
                    self.upgrading = true;
                }
                // The message that exports have changed comes back here.
                Step::Wait => return,
                Step::Close(cause) => return self.drain(host, cause),
                Step::Enter(session) => {
                    let export = session.export.info().name.clone();
                    shared.events.push(NbdEvent::Connected { peer: self.peer.clone(), export });
                    self.share = Some(shared.enter_share(std::ptr::from_ref(&*session.export).addr()));
                    self.session = Some(session);
                    self.greeting = None;
                }
            }
        }
    }

    #[inline]
    fn take_header<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) -> Turn {
        let terms = self.session.as_ref().expect("there are no requests before transmission").terms;
        let Some(header) = self.header_at(host, &terms, self.start) else { return Turn::Starved };
        let verdict = judge(&header, &terms);
        if self.foreseen == 0 {
            self.foresee(host, &terms, payload_bytes(&header, verdict));
        }
        match verdict {
            Verdict::Serve(command) => self.serve(host, shared, &header, command),
            Verdict::Refuse(refusal, payload) => self.refuse(host, &header, refusal, payload),
            Verdict::Close(breach) => {
                let cause = match breach {
                    Breach::Magic(magic) => Cause::RequestMagic(magic),
                    Breach::Payload(len) => Cause::PayloadAbsurd(len),
                };
                // What came before it was in order, and is answered.
                self.drain(host, cause);
                Turn::Starved
            }
        }
    }

    /// The header that begins at this byte of the stream buffer, if all of it is there.
    #[inline]
    pub(super) fn header_at<H: Host<Socket = S>>(&self, host: &mut H, terms: &Terms, at: u32) -> Option<Asked> {
        let bytes = header_bytes(terms);
        if (self.end.saturating_sub(at) as usize) < bytes {
            return None;
        }
        let bytes = host.memory(self.stream.add(u64::from(at)), bytes);
        Some(if terms.extended {
            Asked::from(&ExtendedRequestHeader::read_from_bytes(bytes).expect("as many bytes as it has"))
        } else {
            Asked::from(&RequestHeader::read_from_bytes(bytes).expect("as many bytes as it has"))
        })
    }

    /// Tells the engine of the requests that the stream buffer holds, of which the first has so long a payload. Nothing is taken.
    #[inline]
    fn foresee<H: Host<Socket = S>>(&mut self, host: &mut H, terms: &Terms, payload: u64) {
        let header = header_bytes(terms) as u64;
        // One alone is asked for before a hint would help.
        if u64::from(self.start) + header + payload + header <= u64::from(self.end) {
            self.foresee_all(host, terms);
        }
    }

    #[inline(never)]
    fn foresee_all<H: Host<Socket = S>>(&mut self, host: &mut H, terms: &Terms) {
        let device = self.session.as_ref().expect("there are no requests before transmission").export.info().device;
        if !host.heeds(device) {
            // It is asked again after so many.
            self.foreseen = FORESEEN_MAX as u8;
            return;
        }
        let mut soon = [Soon::default(); FORESEEN_MAX];
        let (mut count, mut at) = (0, u64::from(self.start));
        while usize::from(self.foreseen) < FORESEEN_MAX
            && at < u64::from(self.end)
            && let Some(header) = self.header_at(host, terms, at as u32)
        {
            let verdict = judge(&header, terms);
            let write = match verdict {
                Verdict::Serve(Command::Read) => Some(false),
                Verdict::Serve(Command::Write(_)) => Some(true),
                Verdict::Serve(_) | Verdict::Refuse(..) => None,
                Verdict::Close(_) => break,
            };
            if let Some(write) = write {
                soon[count] = Soon { offset: header.offset, write };
                count += 1;
            }
            self.foreseen += 1;
            at += header_bytes(terms) as u64 + payload_bytes(&header, verdict);
        }
        host.foresee(device, &soon[..count]);
    }

    /// Takes a slot for a request whose header is taken from the stream herewith.
    #[inline]
    pub(super) fn open<H: Host<Socket = S>>(&mut self, host: &H, mut slot: Slot) -> u16 {
        self.start += self.header_bytes();
        self.foreseen = self.foreseen.saturating_sub(1);
        self.due_ns = None;
        slot.taken_ns = host.now_ns();
        self.requests.open(slot)
    }

    /// Bytes of a request's header.
    #[inline]
    fn header_bytes(&self) -> u32 {
        let session = self.session.as_ref().expect("there are no requests before transmission");
        header_bytes(&session.terms) as u32
    }

    fn refuse<H: Host<Socket = S>>(&mut self, host: &mut H, header: &Asked, refusal: Refusal, left: u32) -> Turn {
        if !self.requests.has_room(0, BYTES_MAX) {
            return Turn::Wait(Wait::Own);
        }
        let kind = match header.kind {
            crate::codec::command::READ => Kind::Read,
            crate::codec::command::WRITE => Kind::Write,
            _ => Kind::Other,
        };
        let slot = self.open(host, Slot::new(header, kind, Op::Read, Flags::NONE));
        let failure = Failure { errno: refusal.errno, text: refusal.text, offset: None };
        self.requests.slot(slot).failure = Some(failure);
        self.discard(host, slot, left)
    }

    /// The rest of a request's payload is thrown away; then its reply, an error, is ready.
    fn discard<H: Host<Socket = S>>(&mut self, host: &mut H, slot: u16, left: u32) -> Turn {
        if left == 0 {
            self.input = Input::Header;
            self.finish_part(host, slot);
        } else {
            if !matches!(self.input, Input::Discard { .. }) {
                self.payload_begins(host.now_ns());
            }
            self.input = Input::Discard { slot, left };
        }
        Turn::Again
    }

    #[inline]
    fn serve<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        header: &Asked,
        command: Command,
    ) -> Turn {
        let len = header.len;
        let data = match command {
            // These are at most 32 MiB: `judge` has seen to that.
            Command::Read | Command::Write(_) => len as u32,
            Command::Disconnect => {
                self.drain(host, Cause::Left);
                return Turn::Starved;
            }
            _ => 0,
        };
        let bytes_max = if shared.waiters.is_empty() { BYTES_MAX } else { BYTES_MAX_CONTESTED };
        if !self.requests.has_room(data, bytes_max) {
            return Turn::Wait(Wait::Own);
        }
        if self.is_held_back(host, shared, command, u64::from(data)) {
            return Turn::Wait(Wait::Limits);
        }
        match command {
            Command::Read => self.begin_read(host, shared, header),
            Command::Write(flags) => {
                let slot = self.open(host, Slot::new(header, Kind::Write, Op::Write, flags).charged());
                self.input = Input::Payload { slot, left: data, segment: NONE, filled: 0 };
                Turn::Again
            }
            Command::Flush => self.begin_plain(host, header, Op::Flush, Flags::NONE),
            Command::Trim(flags) => self.begin_plain(host, header, Op::Discard, flags),
            Command::WriteZeroes(flags) => self.begin_plain(host, header, Op::WriteZeroes, flags),
            Command::Cache => {
                let slot = self.open(host, Slot::new(header, Kind::Other, Op::Read, Flags::NONE));
                self.finish_part(host, slot);
                Turn::Again
            }
            Command::BlockStatus { one } => self.block_status(host, shared, header, one),
            Command::Disconnect => Turn::Starved,
        }
    }

    /// Whether the limits of the export, or of what it is of, let this request wait. One that waits has its turn: with only the first request of
    /// each connection in the queue, connections take turns.
    #[inline]
    fn is_held_back<H: Host<Socket = S>>(
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

    /// A request without data: one segment with no buffer.
    fn begin_plain<H: Host<Socket = S>>(&mut self, host: &H, header: &Asked, op: Op, flags: Flags) -> Turn {
        let slot = self.open(host, Slot::new(header, Kind::Other, op, flags));
        let segment = self.requests.push_segment(slot, Buf::NONE, 0, 0);
        self.input = Input::Submit { slot, segment, left: 0 };
        Turn::Again
    }

    /// A READ's memory is taken at once or, by who is first in the queue, step by step. Nobody else holds some and waits for
    /// more: two of these could wait for each other for ever.
    #[inline]
    fn begin_read<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, header: &Asked) -> Turn {
        let slot = self.open(host, Slot::new(header, Kind::Read, Op::Read, Flags::NONE).charged());
        self.take_memory(host, shared, slot, 0)
    }

    /// Takes memory for a READ, from its byte `at` on.
    #[inline]
    fn take_memory<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, slot: u16, mut at: u32) -> Turn {
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
        // Its latency is that of the disk and the way, without the wait for others.
        of.taken_ns = host.now_ns();
        let segment = of.first;
        self.input = Input::Submit { slot, segment, left: 0 };
        Turn::Again
    }

    /// Memory for a segment, within the connection's share of it or in its turn. `only`: no other request holds any.
    #[inline]
    pub(super) fn alloc<H: Host>(&mut self, host: &mut H, shared: &mut Shared, len: u32, only: bool) -> Option<Buf> {
        let held = self.requests.held();
        let held_by_export = self.share.map_or(held, |share| shared.tell_share(share, &mut self.told, held));
        let wish = Wish { memory: host.memory_bytes(), bytes: taken_bytes(len), held, held_by_export, only };
        let lane = wish.lane();
        self.export_holds_too_much = lane == Lane::Export;
        match lane {
            Lane::Fair => host.alloc(len as usize),
            Lane::Turn if shared.has_its_turn(self.index) => host.alloc(len as usize),
            Lane::Turn | Lane::Closed | Lane::Export => None,
        }
    }

    /// A READ found memory for its first `at` bytes only: it waits, or is refused, if it waited too long.
    fn no_memory<H: Host<Socket = S>>(
        &mut self,
        shared: &Shared,
        host: &mut H,
        slot: u16,
        at: u32,
        only: bool,
    ) -> Turn {
        if shared.giving_up == Some(self.index) {
            self.requests.free_until(host, slot, NONE);
            let failure = Failure { errno: Errno::NoMemory, text: "no memory for the data", offset: None };
            self.requests.slot(slot).failure = Some(failure);
            return self.discard(host, slot, 0);
        }
        self.input = Input::Gather { slot, at };
        if !(only && shared.has_its_turn(self.index)) {
            self.ungather(host);
        }
        // What others of its requests hold comes back with their replies.
        Turn::Wait(if only { Wait::Memory } else { Wait::Own })
    }

    /// Gives back the memory of a READ that waits for more.
    pub(super) fn ungather<H: Host<Socket = S>>(&mut self, host: &mut H) {
        if let Input::Gather { slot, .. } = self.input {
            self.requests.empty(host, slot);
            self.input = Input::Gather { slot, at: 0 };
        }
    }

    /// Hands segments to the engine, this one and those after it.
    #[inline]
    fn take_submit<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        slot: u16,
        mut segment: u16,
        left: u32,
    ) -> Turn {
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
                // What has no data has one segment, and any length.
                len: if of.kind == Kind::Other { of.len } else { u64::from(len) },
                buf,
                tag,
            };
            // What changes nothing begins at once, wherever its client is.
            let changes = !matches!(request.op, Op::Read | Op::Flush);
            match if changes { host.enter(&request) } else { host.submit(&request) } {
                Ok(()) => {
                    self.in_engine += 1;
                    self.has_entered |= changes;
                    self.requests.slot(slot).pending += 1;
                }
                Err(error) if error.kind == ErrorKind::Busy => {
                    self.input = Input::Submit { slot, segment, left };
                    return Turn::Wait(Wait::Memory);
                }
                Err(error) if error.kind.is_unsettled() => {
                    // The rest of it is given up with the input; what the engine has of it only comes back.
                    self.drain(host, Cause::Unsettled);
                    return Turn::Starved;
                }
                Err(error) => self.fail_slot(slot, error.kind, at),
            }
            segment = next;
        }
        if left > 0 {
            self.input = Input::Payload { slot, left, segment: NONE, filled: 0 };
        } else {
            self.input = Input::Header;
            self.finish_part(host, slot);
        }
        Turn::Again
    }

    /// Moves what the stream has of a payload into its segment; a full segment goes to the engine.
    #[inline]
    fn take_payload<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        slot: u16,
        left: u32,
        mut segment: u16,
        mut filled: u32,
    ) -> Turn {
        if segment == NONE {
            let len = SEGMENT_BYTES.min(left);
            // What it holds of this request the engine has: with that it waits for nobody.
            let Some(buf) = self.alloc(host, shared, len, true) else {
                if shared.giving_up == Some(self.index) {
                    let failure = Failure { errno: Errno::NoMemory, text: "no memory for the data", offset: None };
                    self.requests.slot(slot).failure.get_or_insert(failure);
                    return self.discard(host, slot, left);
                }
                return Turn::Wait(Wait::Memory);
            };
            let at = self.requests.slot(slot).len as u32 - left;
            segment = self.requests.push_segment(slot, buf, at, len);
            self.payload_begins(host.now_ns());
        }
        let part = *self.requests.segment(segment);
        let take = (self.end - self.start).min(part.len - filled);
        if take > 0 {
            host.copy(self.stream.add(u64::from(self.start)), part.buf.add(u64::from(filled)), take as usize);
            self.start += take;
            filled += take;
            self.payload_gets_on(host.now_ns(), take);
        }
        if filled < part.len {
            self.input = Input::Payload { slot, left, segment, filled };
            return Turn::Starved;
        }
        let left = left - part.len;
        self.input = Input::Submit { slot, segment, left };
        Turn::Again
    }

    fn take_discard<H: Host<Socket = S>>(&mut self, host: &mut H, slot: u16, left: u32) -> Turn {
        let take = (self.end - self.start).min(left);
        self.start += take;
        if take == 0 {
            return Turn::Starved;
        }
        self.payload_gets_on(host.now_ns(), take);
        self.discard(host, slot, left - take)
    }

    /// From now on there is memory that waits for the client's bytes.
    fn payload_begins(&mut self, now_ns: u64) {
        (self.payload_since_ns, self.payload_bytes) = (now_ns, 0);
    }

    /// Bytes of a payload have come. A few of them give a client no more time: else one byte now and then would keep
    /// its memory for ever.
    fn payload_gets_on(&mut self, now_ns: u64, bytes: u32) {
        self.payload_bytes = self.payload_bytes.saturating_add(bytes);
        if self.payload_bytes >= DIRECT_BYTES {
            self.payload_begins(now_ns);
        }
    }

    /// What to do about the stream buffer after a receive of `n` bytes into it.
    pub fn after_stream<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared, n: u32, asked: u32) {
        if n < asked {
            return;
        }
        // More waits than was asked for: ask for more, and have room for it.
        if self.ask < self.stream_len {
            self.ask = u32::MAX;
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

    /// `n` bytes came straight into the payload's segment.
    pub fn payload_arrived(&mut self, now_ns: u64, n: u32) {
        self.ask = ASK_BYTES_AFTER_DIRECT;
        self.payload_gets_on(now_ns, n);
        if let Input::Payload { filled, .. } = &mut self.input {
            *filled += n;
        }
    }

    /// Receives more, if there is anything to do with it.
    #[inline]
    pub fn receive<H: Host<Socket = S>>(&mut self, host: &mut H) {
        if self.recv.is_some() || self.wait != Wait::No || !self.greeting_out.is_empty() && self.greeting.is_some() {
            return;
        }
        if self.upgrading {
            return;
        }
        if self.secure.is_some() {
            return self.receive_secure(host);
        }
        let token = self.token | TOKEN_RECV;
        if let Input::Payload { segment, filled, .. } = self.input
            && segment != NONE
        {
            let part = self.requests.segment(segment);
            let rest = part.len - filled;
            if self.start == self.end && rest >= DIRECT_BYTES {
                self.recv = Some(Target::Payload);
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
        let asked = self.ask.min(self.stream_len - self.end);
        if asked == 0 {
            // Full of options that wait for an answer which is told in parts: what is being sent goes on with it.
            return;
        }
        self.recv = Some(Target::Stream { asked });
        host.recv(self.socket, self.stream.add(u64::from(self.end)), asked, false, token);
    }
}
