//! The requests of a connection in flight, in tables of fixed size.
//!
//! A *slot* is one request of the client. Its data lies in *segments*, each with one buffer and one engine request. A
//! request without data has one segment without a buffer, so that every completion belongs to a segment.

use braid_engine::{Buf, Flags, Op};

use super::config::{REQUESTS_MAX, SEGMENTS_MAX};
use super::host::{Host, Loan};
use crate::codec::DecodedRequest;
use crate::errno::Errno;

pub(super) const NONE: u16 = u16::MAX;

/// The kind of reply that a request gets, and its class in the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestKind {
    Read,
    Write,
    Status,
    Other,
}

/// A request's failure, as sent to the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub errno: Errno,
    pub text: &'static str,
    /// The offset in the export, if the failure has one.
    pub offset: Option<u64>,
}

/// One request of the client, until its reply is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub cookie: u64,
    /// When its header was taken in.
    pub taken_ns: u64,
    pub offset: u64,
    pub len: u64,
    /// Bytes of data in a successful reply.
    pub data: u32,
    /// Of a block status: the id of the first context, the bytes of its extents, and whether it is the only context.
    /// Further contexts follow in the data.
    pub first_context: (u32, u32, bool),
    pub kind: RequestKind,
    pub op: Op,
    pub flags: Flags,
    /// Segments in the engine, plus one while the request is being taken in.
    pub pending: u16,
    /// Head of its list of segments.
    pub first: u16,
    last: u16,
    pub failure: Option<Failure>,
    /// The request gets no reply.
    pub no_reply: bool,
    /// Bytes counted against the connection's limit.
    charged: u32,
}

/// One buffer and one engine request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub slot: u16,
    pub next: u16,
    /// [`Buf::NONE`] if the segment has no buffer.
    pub buf: Buf,
    pub len: u32,
    /// Offset within the request.
    pub at: u32,
    /// The tag of its engine request.
    pub tag: u64,
    /// The read was retried, after a disk did not complete it in time.
    pub retried: bool,
    /// Set if `buf` is a disk's own memory, lent for sending. The segment then has no engine request, and the loan is
    /// returned instead of freeing `buf`.
    pub loan: Option<Loan>,
}

const EMPTY_SLOT: Slot = Slot {
    cookie: 0,
    taken_ns: 0,
    offset: 0,
    len: 0,
    data: 0,
    first_context: (0, 0, true),
    kind: RequestKind::Other,
    op: Op::Flush,
    flags: Flags::NONE,
    pending: 0,
    first: NONE,
    last: NONE,
    failure: None,
    no_reply: false,
    charged: 0,
};

impl Slot {
    /// Returns a slot for a new request, pending until it is completely taken in.
    #[inline]
    pub fn new(header: &DecodedRequest, kind: RequestKind, op: Op, flags: Flags) -> Slot {
        let DecodedRequest { cookie, offset, len, .. } = *header;
        let data = if kind == RequestKind::Read { len as u32 } else { 0 };
        Slot { cookie, offset, len, data, kind, op, flags, pending: 1, ..EMPTY_SLOT }
    }

    /// Counts the request's bytes against the connection's limit.
    #[inline]
    pub fn charged(self) -> Slot {
        Slot { charged: self.len as u32, ..self }
    }
}

const EMPTY_SEGMENT: Segment =
    Segment { slot: NONE, next: NONE, buf: Buf::NONE, len: 0, at: 0, tag: 0, retried: false, loan: None };

/// Returns how much of the shard's memory a buffer of `len` bytes takes: allocations are powers of two.
#[inline]
pub(super) fn allocated_bytes(len: u32) -> u64 {
    u64::from(len).next_power_of_two().max(4096)
}

/// The request tables of one connection.
#[derive(Debug)]
pub(super) struct Requests {
    slots: Box<[Slot]>,
    segments: Box<[Segment]>,
    free_slots: Vec<u16>,
    free_segments: Vec<u16>,
    bytes: u32,
    held: u64,
}

impl Requests {
    pub fn new() -> Requests {
        Requests {
            slots: vec![EMPTY_SLOT; REQUESTS_MAX].into(),
            segments: vec![EMPTY_SEGMENT; SEGMENTS_MAX].into(),
            free_slots: (0..REQUESTS_MAX as u16).rev().collect(),
            free_segments: (0..SEGMENTS_MAX as u16).rev().collect(),
            bytes: 0,
            held: 0,
        }
    }

    /// Returns the bytes of the shard's memory that the segments hold.
    #[inline]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Returns whether no other request holds bytes against the connection's limit.
    #[inline]
    pub fn is_only(&self, slot: u16) -> bool {
        self.bytes == self.slots[usize::from(slot)].charged
    }

    #[inline]
    pub fn slot(&mut self, slot: u16) -> &mut Slot {
        &mut self.slots[usize::from(slot)]
    }

    #[inline]
    pub fn segment(&mut self, segment: u16) -> &mut Segment {
        &mut self.segments[usize::from(segment)]
    }

    /// Returns the number of unanswered requests.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        (REQUESTS_MAX - self.free_slots.len()) as u32
    }

    /// Returns whether a request with `bytes` bytes of data may be taken in: a slot is free, and the connection's data
    /// stays within `bytes_max`. If no other request is charged, the limit does not apply.
    #[inline]
    pub fn has_room(&self, bytes: u32, bytes_max: u32) -> bool {
        let sum = u64::from(self.bytes) + u64::from(bytes);
        !self.free_slots.is_empty() && (self.bytes == 0 || sum <= u64::from(bytes_max))
    }

    /// Opens a slot, pending until the request is taken in. [`Requests::has_room`] must have returned true.
    #[inline]
    pub fn open(&mut self, request: Slot) -> u16 {
        let slot = self.free_slots.pop().expect("has_room returned true");
        self.bytes += request.charged;
        *self.slot(slot) = request;
        slot
    }

    /// Appends a segment to a slot's list.
    #[inline]
    pub fn push_segment(&mut self, slot: u16, buf: Buf, at: u32, len: u32) -> u16 {
        let segment = self.free_segments.pop().expect("the limit on bytes leaves enough of them");
        if buf != Buf::NONE {
            self.held += allocated_bytes(len);
        }
        *self.segment(segment) = Segment { slot, next: NONE, buf, len, at, ..EMPTY_SEGMENT };
        let last = std::mem::replace(&mut self.slot(slot).last, segment);
        match last {
            NONE => self.slot(slot).first = segment,
            last => self.segment(last).next = segment,
        }
        segment
    }

    /// Appends a segment with lent memory.
    pub fn push_loan(&mut self, slot: u16, loan: Loan, at: u32, len: u32) {
        let segment = self.push_segment(slot, Buf::NONE, at, len);
        let segment = self.segment(segment);
        (segment.buf, segment.loan) = (loan.buf, Some(loan));
    }

    /// Takes a segment's buffer. The caller frees it.
    pub fn take_buffer(&mut self, segment: u16) -> Buf {
        let segment = self.segment(segment);
        let (buf, len) = (std::mem::replace(&mut segment.buf, Buf::NONE), segment.len);
        if buf != Buf::NONE {
            self.held -= allocated_bytes(len);
        }
        buf
    }

    /// Gives a segment a new buffer.
    pub fn put_buffer(&mut self, segment: u16, buf: Buf) {
        let segment = self.segment(segment);
        segment.buf = buf;
        let len = segment.len;
        self.held += allocated_bytes(len);
    }

    /// Frees the buffers of a slot's segments before `end`, or of all segments.
    pub fn free_until<H: Host>(&mut self, host: &mut H, slot: u16, end: u16) {
        let mut segment = self.slot(slot).first;
        while segment != NONE && segment != end {
            self.free_buffer(host, segment);
            segment = self.segment(segment).next;
        }
    }

    /// Frees a segment's buffer.
    #[inline]
    pub fn free_buffer<H: Host>(&mut self, host: &mut H, segment: u16) {
        let segment = self.segment(segment);
        let buf = std::mem::replace(&mut segment.buf, Buf::NONE);
        let len = segment.len;
        match segment.loan.take() {
            Some(loan) => host.return_loan(loan),
            None if buf != Buf::NONE => {
                self.held -= allocated_bytes(len);
                host.free(buf, len as usize);
            }
            None => {}
        }
    }

    /// Frees all segments of a slot, with their buffers.
    pub fn empty<H: Host>(&mut self, host: &mut H, slot: u16) {
        let mut segment = self.slot(slot).first;
        while segment != NONE {
            self.free_buffer(host, segment);
            self.free_segments.push(segment);
            segment = self.segment(segment).next;
        }
        let slot = self.slot(slot);
        (slot.first, slot.last) = (NONE, NONE);
    }

    /// Frees a slot with all its segments and buffers.
    #[inline]
    pub fn close<H: Host>(&mut self, host: &mut H, slot: u16) {
        let Slot { mut first, charged, pending, .. } = *self.slot(slot);
        debug_assert_eq!(pending, 0, "the engine may still use the buffers");
        while first != NONE {
            self.free_buffer(host, first);
            let next = self.segment(first).next;
            self.free_segments.push(first);
            first = next;
        }
        self.bytes -= charged;
        self.free_slots.push(slot);
    }
}
