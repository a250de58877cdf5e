//! Parses replies and requeues reads that need further requests.
//!
//! A simple reply has sixteen bytes and, for a successful read, its data. A server that reports holes replies in
//! chunks; the data of a read may come in several chunks in any order.

use braid_engine::Op;
use braid_export::extents::state;
use zerocopy::FromBytes;

use super::super::read_cursor::ReadCursor;
use super::{EndReason, Reading, Session, SlotState, Wire, libc_errno};
use crate::codec::{
    CHUNK_BYTES, ChunkHeader, RequestHeader, SIMPLE_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply,
    chunk, command, command_flags, transmission_flags,
};

/// Minimum rest of a read's data that is received directly into its destination, in bytes.
const DIRECT_BYTES: u64 = 16 << 10;
/// Maximum length of a read that every server can send in one chunk, in bytes.
const UNCUT_BYTES: u32 = 64 << 10;
/// The protocol's error number of a server that is shutting down.
const SHUTDOWN: u32 = 108;
/// Fills holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The result of parsing part of a reply.
enum ParseStep {
    /// Parsing can continue.
    Continue,
    /// More input is needed.
    NeedInput,
    /// The server violated the protocol.
    ProtocolError,
}

impl Session {
    /// Returns the request for the current range of a read.
    pub(super) fn read_request(&mut self, index: u16, cookie: u64) -> RequestHeader {
        if let Some(received_parts) = self.received_parts.get_mut(usize::from(index)) {
            received_parts.clear();
        }
        let slot = &mut self.slots[index];
        if slot.cursor.is_query && self.terms.allocation.is_none() {
            slot.cursor.read_all();
        }
        slot.cursor.begin();
        let ReadCursor { is_query, from, to, .. } = slot.cursor;
        let (offset, len) = (slot.part.offset + u64::from(from), to - from);
        if is_query {
            return RequestHeader::new(command::BLOCK_STATUS, 0, cookie, offset, len);
        }
        let uncut = self.terms.structured && self.terms.flags & transmission_flags::SEND_DF != 0 && len <= UNCUT_BYTES;
        RequestHeader::new(command::READ, if uncut { command_flags::DF } else { 0 }, cookie, offset, len)
    }

    /// Handles data received directly into its destination.
    pub(super) fn data_received(&mut self, wire: &mut impl Wire, got: u64) {
        let Reading::Direct { slot, at, end, requested, last } = self.reading else { return };
        if got < requested {
            return self.end_connection(wire, EndReason::Ended);
        }
        let at = at + got;
        if at == end {
            self.chunk_ended(wire, slot, last);
        } else {
            self.reading = Reading::Direct { slot, at, end, requested: 0, last };
        }
    }

    /// Parses replies from the input.
    pub(super) fn parse(&mut self, wire: &mut impl Wire) {
        while matches!(self.phase, super::SessionPhase::Up) {
            let next = match self.reading {
                Reading::Direct { .. } => return,
                Reading::Data { slot, at, end, last } => self.data(wire, slot, (at, end), last),
                Reading::Extents { slot, left, wanted, last } => self.extent(wire, slot, left, wanted, last),
                Reading::ErrorText { slot, left, last } => self.error_text(wire, slot, left, last),
                Reading::Header => self.header(wire),
            };
            match next {
                ParseStep::Continue => {}
                ParseStep::NeedInput => return,
                ParseStep::ProtocolError => return self.end_connection(wire, EndReason::Abandoned),
            }
        }
    }

    fn data(&mut self, wire: &mut impl Wire, slot: u16, (at, end): (u64, u64), last: bool) -> ParseStep {
        let part = self.slots[slot].part;
        let here = (end - at).min((self.end - self.start) as u64);
        let abandoned = self.slots[slot].abandoned;
        if !abandoned {
            wire.copy_data(&part, at, self.start, self.start + here as usize);
        }
        self.start += here as usize;
        let at = at + here;
        if at == end {
            self.chunk_ended(wire, slot, last);
            return ParseStep::Continue;
        }
        let direct = end - at >= DIRECT_BYTES && !abandoned;
        self.reading = match direct {
            true => Reading::Direct { slot, at, end, requested: 0, last },
            false => Reading::Data { slot, at, end, last },
        };
        ParseStep::NeedInput
    }

    /// Parses one extent of a block status.
    fn extent(&mut self, wire: &mut impl Wire, slot: u16, left: u32, wanted: bool, last: bool) -> ParseStep {
        let Some(extent) = wire.input(self.start, self.end).first_chunk::<8>() else { return ParseStep::NeedInput };
        let both = u64::from_be_bytes(*extent);
        self.start += 8;
        let (len, is_zero) = ((both >> 32) as u32, both as u32 & state::ZERO != 0);
        if len == 0 {
            return ParseStep::ProtocolError;
        }
        if wanted {
            self.slots[slot].cursor.extent(len, is_zero);
        }
        match left - 8 {
            0 => self.chunk_ended(wire, slot, last),
            left => self.reading = Reading::Extents { slot, left, wanted, last },
        }
        ParseStep::Continue
    }

    /// Skips the text of an error.
    fn error_text(&mut self, wire: &mut impl Wire, slot: u16, left: u32, last: bool) -> ParseStep {
        let here = left.min((self.end - self.start) as u32);
        self.start += here as usize;
        if here == left {
            self.chunk_ended(wire, slot, last);
            return ParseStep::Continue;
        }
        self.reading = Reading::ErrorText { slot, left: left - here, last };
        ParseStep::NeedInput
    }

    fn header(&mut self, wire: &mut impl Wire) -> ParseStep {
        let input = wire.input(self.start, self.end);
        let Ok((reply, _)) = SimpleReply::ref_from_prefix(input) else { return ParseStep::NeedInput };
        let (magic, error, cookie) = (reply.magic.get(), reply.error.get(), reply.cookie.get());
        if magic == STRUCTURED_REPLY_MAGIC && self.terms.structured {
            return self.chunk(wire);
        }
        self.start += SIMPLE_BYTES;
        match self.slots.find(cookie) {
            Some(slot) if magic == SIMPLE_REPLY_MAGIC => self.simple_reply(wire, slot, error),
            // A protocol violation.
            _ => ParseStep::ProtocolError,
        }
    }

    fn simple_reply(&mut self, wire: &mut impl Wire, slot: u16, error: u32) -> ParseStep {
        let part = &self.slots[slot].part;
        match error {
            // With structured replies, read data comes in chunks.
            0 if part.op == Op::Read && self.terms.structured => return ParseStep::ProtocolError,
            0 if part.op == Op::Read => {
                let ReadCursor { from, to, .. } = self.slots[slot].cursor;
                self.reading = Reading::Data { slot, at: from.into(), end: to.into(), last: true };
            }
            error => {
                self.slots[slot].cursor.error = error;
                self.chunk_ended(wire, slot, true);
            }
        }
        ParseStep::Continue
    }

    fn chunk(&mut self, wire: &mut impl Wire) -> ParseStep {
        let input = wire.input(self.start, self.end);
        let Ok((header, rest)) = ChunkHeader::ref_from_prefix(input) else { return ParseStep::NeedInput };
        let (kind, len, last) = (header.kind.get(), header.len.get(), header.flags.get() & chunk::FLAG_DONE != 0);
        let number = |from: usize, to: usize| {
            rest.get(from..to).map(|bytes| bytes.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte)))
        };
        let Some(slot) = self.slots.find(header.cookie.get()) else { return ParseStep::ProtocolError };
        let (is_read, is_query) = (self.slots[slot].part.op == Op::Read, self.slots[slot].cursor.is_query);
        match kind {
            chunk::NONE if len == 0 && last => {
                self.start += CHUNK_BYTES;
                self.chunk_ended(wire, slot, true);
            }
            chunk::OFFSET_DATA if is_read && !is_query && len > 8 => {
                let Some(offset) = number(0, 8) else { return ParseStep::NeedInput };
                let Some((at, end)) = self.claim_range(slot, offset, len - 8) else { return ParseStep::ProtocolError };
                self.start += CHUNK_BYTES + 8;
                self.reading = Reading::Data { slot, at, end, last };
            }
            chunk::OFFSET_HOLE if is_read && !is_query && len == 12 => {
                let (Some(offset), Some(hole)) = (number(0, 8), number(8, 12)) else { return ParseStep::NeedInput };
                let Some((at, end)) = self.claim_range(slot, offset, hole as u32) else {
                    return ParseStep::ProtocolError;
                };
                self.start += CHUNK_BYTES + 12;
                self.zero(wire, slot, at, end);
                self.chunk_ended(wire, slot, last);
            }
            chunk::BLOCK_STATUS if is_read && is_query && len >= 12 && len % 8 == 4 => {
                let Some(id) = number(0, 4) else { return ParseStep::NeedInput };
                let wanted = self.terms.allocation.map(u64::from) == Some(id);
                self.start += CHUNK_BYTES + 4;
                self.reading = Reading::Extents { slot, left: len - 4, wanted, last };
            }
            kind if kind & chunk::ERROR_BIT != 0 && len >= 6 => {
                let Some(error) = number(0, 4) else { return ParseStep::NeedInput };
                if error == 0 {
                    return ParseStep::ProtocolError;
                }
                self.start += CHUNK_BYTES + 4;
                let cursor = &mut self.slots[slot].cursor;
                cursor.error = if cursor.error == 0 { error as u32 } else { cursor.error };
                self.reading = Reading::ErrorText { slot, left: len - 4, last };
            }
            _ => return ParseStep::ProtocolError,
        }
        ParseStep::Continue
    }

    /// Returns the position of a chunk's data in its part. `None` if the data was not requested or was received before.
    fn claim_range(&mut self, slot: u16, offset: u64, len: u32) -> Option<(u64, u64)> {
        let ReadCursor { from, to, .. } = self.slots[slot].cursor;
        let at = u32::try_from(offset.checked_sub(self.slots[slot].part.offset)?).ok()?;
        let end = at.checked_add(len)?;
        if len == 0 || at < from || end > to {
            return None;
        }
        self.received_parts.get_mut(usize::from(slot))?.add(at - from, end - from).ok()?;
        Some((at.into(), end.into()))
    }

    fn zero(&self, wire: &mut impl Wire, slot: u16, mut at: u64, end: u64) {
        while at < end && !self.slots[slot].abandoned {
            let step = (end - at).min(ZEROS.len() as u64);
            wire.put_data(&self.slots[slot].part, at, &ZEROS[..step as usize]);
            at += step;
        }
    }

    /// Ends a chunk or a simple reply; the last one ends the reply.
    fn chunk_ended(&mut self, wire: &mut impl Wire, index: u16, last: bool) {
        self.reading = Reading::Header;
        if !last {
            return;
        }
        let slot = &mut self.slots[index];
        match slot.cursor.error {
            0 => {}
            // The server is closing the connection: the request is resent on the next one.
            SHUTDOWN => return self.end_connection(wire, EndReason::Ended),
            // The query failed: read everything instead.
            _ if slot.cursor.is_query => {
                slot.cursor.read_all();
                return self.requeue(index);
            }
            error => return self.answer(wire, index, Err(errno_of(error))),
        }
        if slot.part.op != Op::Read {
            return self.answer(wire, index, Ok(()));
        }
        if slot.cursor.is_query {
            let holes = slot.cursor.finish_query();
            holes.into_iter().for_each(|(from, to)| self.zero(wire, index, from.into(), to.into()));
            if !self.slots[index].cursor.is_query {
                return self.requeue(index);
            }
        } else {
            let ReadCursor { from, to, .. } = slot.cursor;
            if self.terms.structured && !self.received_parts[usize::from(index)].is_complete(to - from) {
                return self.end_connection(wire, EndReason::Abandoned);
            }
        }
        let slot = &mut self.slots[index];
        if slot.cursor.advance(slot.part.len as u32) {
            return self.requeue(index);
        }
        self.answer(wire, index, Ok(()));
    }

    /// Requeues a read for its next range, or frees it if it was abandoned.
    fn requeue(&mut self, index: u16) {
        if self.slots[index].abandoned {
            return self.slots.give(index);
        }
        self.slots.set(index, SlotState::Unsent);
        self.slots.unsent.push_back(index);
    }
}

/// Converts an error number of the protocol to Linux's.
fn errno_of(error: u32) -> i32 {
    match error {
        1 => libc_errno::ROFS,
        22 => libc_errno::INVAL,
        28 => libc_errno::NOSPC,
        95 => libc_errno::OPNOTSUPP,
        _ => libc_errno::IO,
    }
}
