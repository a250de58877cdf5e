//! One shard's connection to an export: greeting, requests, replies, and what becomes of them when it breaks. Sans-I/O, over
//! [`Wire`].
//!
//! Of what comes in one receive the data of reads are copied out; what is left of a long one is received where it is wanted (`replies`).
//!
//! A connection that the server has ended is opened again, and what it had not answered is sent again. One that this side gives up
//! is not so: the server may still be at work for it. `docs/failures.md` says what follows from that, and why. Of fenced disks each
//! is opened again (`fenced`).

mod leaving;
mod losing;
mod replies;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_engine::{Flags, Op};
use braid_ring::{PartLimits, RemotePart};
use zerocopy::IntoBytes;

use super::shared::{Loss, Shared};
use super::slots::{SLOTS, Slots, State};
use super::wire::Wire;
use crate::client::ClientError;
use crate::client::coverage::Coverage;
use crate::client::negotiate::{Negotiated, Negotiation, Wishes};
use crate::codec::{REQUEST_BYTES, RequestHeader, command, command_flags, option_reply, transmission_flags};

/// Pieces of memory of one request.
const PIECES_MAX: usize = 64;
/// Bytes that are zeroed or discarded by one request: as many as a slow server does well within the limits below.
const RANGE_BYTES: u64 = 32 << 20;
/// Bytes of data in one request.
const DATA_BYTES: u64 = 1 << 20;

const MS: u64 = 1_000_000;
/// Between two looks at the clock.
const TICK_NS: u64 = 250 * MS;
/// Between two tries to connect: at first, and at most.
const RETRY_NS: (u64, u64) = (10 * MS, 1000 * MS);
/// Longest time for a connection and its greeting.
const GREETING_NS: u64 = 5000 * MS;
/// Longest wait without a word from the server, or for it; and for one answer.
pub(super) const PATIENCE_NS: u64 = 30_000 * MS;
/// The same where others hold what this disk does.
pub(super) const PATIENCE_OF_MANY_NS: u64 = 5000 * MS;
/// The number of the attempt by which a disk was opened; those of shards are higher.
pub(super) const FIRST_ATTEMPT: u64 = 1;
/// Longest time to say goodbye.
const GOODBYE_NS: u64 = 500 * MS;

enum Phase {
    /// There is no connection, and none is wanted or it is not time yet.
    Down,
    Greeting(Box<Negotiation>),
    Up,
    /// Closed; something is still in flight on it.
    Ending(Why),
    /// The goodbye is on its way.
    Leaving,
}

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// It never stood, or the server is not what it was.
    Refused,
    /// The server, or its machine, has ended it.
    Ended,
    /// This side has: what the server makes of its requests is unknown.
    GivenUp,
}

/// What the next bytes are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Header,
    /// Data of a read, from byte `at` of its part to byte `end`. The last of the reply, or more follow.
    Data {
        slot: u16,
        at: u64,
        end: u64,
        last: bool,
    },
    /// The same, received where it is wanted; so many bytes were asked for.
    Direct {
        slot: u16,
        at: u64,
        end: u64,
        asked: u64,
        last: bool,
    },
    /// Extents, so many bytes; of what was asked about, or of something else.
    Extents {
        slot: u16,
        left: u32,
        wanted: bool,
        last: bool,
    },
    /// Words for people, so many bytes.
    Words {
        slot: u16,
        left: u32,
        last: bool,
    },
}

/// See the module's page.
pub(super) struct Session {
    shared: Arc<Shared>,
    /// Its place among the connections to the disk, and how often it was tried to have it.
    lane: u32,
    attempt: u64,
    /// Another connection of this shard stands, and takes what waits.
    pub(super) others_stand: bool,
    phase: Phase,
    slots: Slots,
    reading: Reading,
    /// What was agreed on for this connection.
    terms: Negotiated,
    /// What of each slot's read has come, where a reply may have several chunks.
    came: Box<[Coverage]>,
    /// Of the input, what was received and not looked at.
    start: usize,
    end: usize,
    sending: bool,
    receiving: bool,
    /// What the send in flight consists of.
    in_send: Vec<u16>,
    /// Of the greeting, what has to be said.
    to_say: Vec<u8>,
    target: usize,
    retry_ns: u64,
    retry_at_ns: u64,
    dialled_ns: u64,
    /// When the server was last heard, or had nothing to say.
    heard_ns: u64,
    /// When it last answered on this lane.
    answered_ns: u64,
    next_look_ns: u64,
    /// Likewise, for reads that are slow.
    next_glance_ns: u64,
    /// How long reads take of late, from when they were asked for; 0: nobody knows.
    usual_read_ns: u64,
    /// Since when a read that was given up has waited for a connection; none where one stands.
    left_since_ns: Option<u64>,
    timer_ns: Option<u64>,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, lane: u32) -> Session {
        Session {
            terms: Negotiated::default(),
            came: vec![Coverage::default(); if shared.allocation { SLOTS } else { 0 }].into(),
            shared,
            lane,
            attempt: FIRST_ATTEMPT,
            others_stand: false,
            phase: Phase::Down,
            slots: Slots::new(),
            reading: Reading::Header,
            start: 0,
            end: 0,
            sending: false,
            receiving: false,
            in_send: Vec::with_capacity(SLOTS),
            to_say: Vec::new(),
            target: 0,
            retry_ns: 0,
            retry_at_ns: 0,
            dialled_ns: 0,
            heard_ns: 0,
            answered_ns: 0,
            next_look_ns: 0,
            next_glance_ns: 0,
            usual_read_ns: 0,
            left_since_ns: None,
            timer_ns: None,
        }
    }

    /// Does what there is to do. Called behind all else of a turn.
    pub(super) fn work(&mut self, wire: &mut impl Wire) {
        if self.shared.is_lost() {
            if self.shared.fenced.is_some() {
                // What is with the server is not waited for.
                self.lose(wire, Why::Ended);
            }
            self.fail_held(wire, libc_errno::NODEV, u64::MAX);
        }
        if wire.now_ns() >= self.next_look_ns {
            self.look_at_the_clock(wire);
        }
        if self.may_leave_reads(wire) && wire.now_ns() >= self.next_glance_ns {
            self.leave_slow_reads(wire);
        }
        match self.phase {
            Phase::Down if self.wants(wire) && wire.now_ns() >= self.retry_at_ns => self.dial(wire),
            Phase::Up => self.fill(wire),
            _ => {}
        }
        self.set_timer(wire);
    }

    /// How much it has to do.
    pub(super) fn load(&self) -> usize {
        self.slots.in_use()
    }

    pub(super) fn stands(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    fn wants(&self, wire: &impl Wire) -> bool {
        !self.slots.is_empty() || self.left_since_ns.is_some() || wire.waiting_since_ns().is_some()
    }

    fn set_timer(&mut self, wire: &mut impl Wire) {
        if matches!(self.phase, Phase::Leaving) || !self.wants(wire) {
            return;
        }
        let now = wire.now_ns();
        let mut at = self.next_look_ns.max(now);
        if matches!(self.phase, Phase::Down) {
            at = at.min(self.retry_at_ns.max(now));
        }
        if self.may_leave_reads(wire) {
            at = at.min(self.next_glance_ns.max(now));
        }
        if self.timer_ns.is_none_or(|set| set > at) && wire.timer_at(at) {
            self.timer_ns = Some(at);
        }
    }

    pub(super) fn timer(&mut self, wire: &mut impl Wire) {
        self.timer_ns = None;
        if matches!(self.phase, Phase::Leaving) {
            wire.close();
        }
    }

    /// The disk is taken away.
    pub(super) fn leave(&mut self, wire: &mut impl Wire) {
        let polite = matches!(self.phase, Phase::Up) && !self.sending && self.slots.is_empty();
        self.phase = Phase::Leaving;
        if polite && wire.timer_at(wire.now_ns() + GOODBYE_NS) {
            let goodbye = RequestHeader::new(command::DISC, 0, 0, 0, 0);
            wire.output()[..REQUEST_BYTES].copy_from_slice(goodbye.as_bytes());
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
        let wishes = Wishes {
            export: match &self.shared.fenced {
                Some(fenced) => fenced.name(export, self.lane, self.attempt),
                None => export.clone(),
            },
            tls: self.shared.trust.is_some(),
            extended: false,
            structured: self.shared.allocation,
            allocation: self.shared.allocation,
        };
        self.to_say.clear();
        self.phase = Phase::Greeting(Box::new(Negotiation::new(wishes)));
        self.dialled_ns = wire.now_ns();
        self.listen(wire);
    }

    /// Takes what has come of the greeting, and answers.
    fn greet(&mut self, wire: &mut impl Wire) {
        loop {
            let Phase::Greeting(negotiation) = &mut self.phase else { return };
            match negotiation.feed(wire.input(self.start, self.end), &mut self.to_say) {
                Err(error) => {
                    if let ClientError::Refused { code: option_reply::ERR_POLICY, text } = error
                        && self.shared.fenced.is_some()
                    {
                        self.shared.lose(Loss::Refused(text));
                    }
                    return self.lose(wire, Why::Refused);
                }
                Ok((took, Some(terms))) => {
                    self.start += took;
                    if !self.shared.is_the_same(&terms) {
                        if self.shared.fenced.is_some() {
                            self.shared.lose(Loss::Another);
                        }
                        return self.lose(wire, Why::Refused);
                    }
                    (self.phase, self.terms) = (Phase::Up, terms);
                    self.heard_ns = wire.now_ns();
                    self.left_since_ns = None;
                    return;
                }
                Ok((0, None)) => break,
                Ok((took, None)) => self.start += took,
            }
            if negotiation.waits_for_tls() {
                if self.start != self.end || !wire.begin_tls() {
                    return self.lose(wire, Why::Refused);
                }
                negotiation.tls_stands(&mut self.to_say);
            }
        }
        self.say(wire);
    }

    fn say(&mut self, wire: &mut impl Wire) {
        if self.sending || self.to_say.is_empty() {
            return;
        }
        let len = self.to_say.len();
        wire.output()[..len].copy_from_slice(&self.to_say);
        self.to_say.clear();
        wire.gather(0, len);
        self.sending = wire.send();
        if !self.sending {
            self.lose(wire, Why::Ended);
        }
    }

    // ---- Sending ----

    /// Sends what waits, as much as goes into one send.
    fn fill(&mut self, wire: &mut impl Wire) {
        if self.sending {
            return;
        }
        let (mut out, mut bytes) = (0, 0);
        // Where there are several connections none takes all that is long.
        let most = if self.shared.connections > 1 { DATA_BYTES } else { u64::MAX };
        while wire.room() > PIECES_MAX && self.in_send.len() < SLOTS && bytes < most {
            let index = match self.slots.unsent.pop_front() {
                Some(index) => index,
                None if !self.slots.has_free() || self.shared.is_lost() => break,
                None => {
                    let Some(part) = wire.take(&self.shared.cut()) else { break };
                    if let Some(result) = self.without(&part) {
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
            self.lose(wire, Why::Ended);
        }
    }

    /// The answer to what the server cannot do, if it needs none of it.
    fn without(&self, part: &RemotePart) -> Option<Result<(), i32>> {
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

    /// Whether bytes follow the request: where the server cannot zero, zeros are written.
    fn carries_data(&self, index: u16) -> bool {
        let slot = &self.slots[index];
        match slot.part.op {
            Op::Write => !slot.flushing,
            Op::WriteZeroes => self.shared.flags & transmission_flags::SEND_WRITE_ZEROES == 0,
            _ => false,
        }
    }

    /// What is said for a slot; it counts as sent.
    fn request(&mut self, index: u16, now_ns: u64) -> RequestHeader {
        if self.slots.sent == 0 {
            self.heard_ns = now_ns;
        }
        self.slots.set(index, State::Sent);
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
            Phase::Leaving => return wire.close(),
            Phase::Ending(why) => return self.ended(wire, why),
            _ if result <= 0 => return self.lose(wire, Why::Ended),
            Phase::Greeting(_) => return self.say(wire),
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

    fn listen(&mut self, wire: &mut impl Wire) {
        if self.receiving || !matches!(self.phase, Phase::Greeting(_) | Phase::Up) {
            return;
        }
        self.receiving = match &mut self.reading {
            Reading::Direct { slot, at, end, asked, .. } => {
                let part = &self.slots[*slot].part;
                *asked = wire.receive_data(part, *at, *end - *at);
                *asked > 0
            }
            _ => wire.receive(self.end),
        };
        if !self.receiving {
            self.lose(wire, Why::Ended);
        }
    }

    pub(super) fn received(&mut self, wire: &mut impl Wire, result: i32) {
        self.receiving = false;
        match self.phase {
            Phase::Ending(why) => return self.ended(wire, why),
            Phase::Leaving => return,
            _ if result <= 0 => return self.lose(wire, Why::Ended),
            _ => {}
        }
        self.heard_ns = wire.now_ns();
        if matches!(self.phase, Phase::Up) {
            self.answered_ns = self.heard_ns;
            self.left_since_ns = None;
            self.shared.has_answered(self.heard_ns);
        }
        match self.reading {
            Reading::Direct { .. } => self.arrived(wire, result as u64),
            _ => self.end += result as usize,
        }
        if matches!(self.phase, Phase::Greeting(_)) {
            self.greet(wire);
        }
        if matches!(self.phase, Phase::Up) {
            self.parse(wire);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            wire.move_input(self.start, self.end);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.listen(wire);
    }

    /// The server has answered a slot.
    fn answer(&mut self, wire: &mut impl Wire, index: u16, answer: Result<(), i32>) {
        self.retry_ns = 0;
        if self.slots[index].in_send {
            self.slots[index].answer = Some(answer);
        } else {
            self.finish(wire, index, answer);
        }
    }

    /// Ends a slot whose memory nothing uses any more.
    fn finish(&mut self, wire: &mut impl Wire, index: u16, result: Result<(), i32>) {
        let slot = &mut self.slots[index];
        slot.answer = None;
        let fua = self.shared.flags & transmission_flags::SEND_FUA != 0;
        let cached = self.shared.flags & transmission_flags::SEND_FLUSH != 0;
        if result.is_ok() && slot.has_fua() && !fua && cached && !slot.flushing {
            slot.flushing = true;
            self.shared.written.fetch_add(1, Ordering::AcqRel);
            self.slots.set(index, State::Unsent);
            return self.slots.unsent.push_back(index);
        }
        if result.is_ok() && (slot.flushing || slot.part.op == Op::Flush) {
            self.shared.flushed.fetch_max(slot.mark, Ordering::AcqRel);
        } else if result.is_ok() && cached && slot.changes() && !(fua && slot.has_fua()) {
            self.shared.written.fetch_add(1, Ordering::AcqRel);
        }
        let (part, left) = (slot.part, slot.left);
        self.slots.give(index);
        if !left {
            self.note_read(&part, wire.now_ns());
            wire.done(&part, result);
        }
    }
}

impl Shared {
    /// How requests are cut for this server.
    fn cut(&self) -> PartLimits {
        let data_bytes = DATA_BYTES.min(self.payload_bytes);
        let zeroes = self.flags & transmission_flags::SEND_WRITE_ZEROES != 0;
        PartLimits { data_bytes, range_bytes: if zeroes { RANGE_BYTES } else { data_bytes }, pieces: PIECES_MAX }
    }
}

/// Error numbers of Linux, the same on every processor that it runs on here.
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
