//! Replies, and what is asked again because of them.
//!
//! Simple ones are sixteen bytes and, for a read that went well, its data. A server that tells holes answers in chunks, of which the data of
//! a read may come in several and in any order.

use braid_engine::Op;
use zerocopy::FromBytes;

use super::super::stretch::Stretch;
use super::{Reading, Session, State, Why, Wire, libc_errno};
use crate::codec::{
    CHUNK_BYTES, ChunkHeader, RequestHeader, SIMPLE_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply,
    chunk, command, command_flags, state, transmission_flags,
};

/// From so many bytes of a read's data on, the rest of it is received where it is wanted.
const DIRECT_BYTES: u64 = 16 << 10;
/// Up to so many bytes every server can give in one chunk.
const UNCUT_BYTES: u32 = 64 << 10;
/// The protocol's number for a server that is going away.
const SHUTDOWN: u32 = 108;
/// For holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What a part of a reply leads to.
enum Next {
    /// More of it can be looked at.
    On,
    /// Not enough of it has come.
    Wait,
    /// Nothing that the server says can be believed.
    Broken,
}

impl Session {
    /// The request for what of a read is to be had next.
    pub(super) fn read_request(&mut self, index: u16, cookie: u64) -> RequestHeader {
        if let Some(came) = self.came.get_mut(usize::from(index)) {
            came.clear();
        }
        let slot = &mut self.slots[index];
        if slot.stretch.asks && self.terms.allocation.is_none() {
            slot.stretch.read_all();
        }
        slot.stretch.begin();
        let Stretch { asks, from, to, .. } = slot.stretch;
        let (offset, len) = (slot.part.offset + u64::from(from), to - from);
        if asks {
            return RequestHeader::new(command::BLOCK_STATUS, 0, cookie, offset, len);
        }
        let uncut = self.terms.structured && self.terms.flags & transmission_flags::SEND_DF != 0 && len <= UNCUT_BYTES;
        RequestHeader::new(command::READ, if uncut { command_flags::DF } else { 0 }, cookie, offset, len)
    }

    /// Data has been received where it is wanted.
    pub(super) fn arrived(&mut self, wire: &mut impl Wire, got: u64) {
        let Reading::Direct { slot, at, end, asked, last } = self.reading else { return };
        if got < asked {
            return self.lose(wire, Why::Ended);
        }
        let at = at + got;
        if at == end {
            self.chunk_ended(wire, slot, last);
        } else {
            self.reading = Reading::Direct { slot, at, end, asked: 0, last };
        }
    }

    /// Takes replies out of what was received.
    pub(super) fn parse(&mut self, wire: &mut impl Wire) {
        while matches!(self.phase, super::Phase::Up) {
            let next = match self.reading {
                Reading::Direct { .. } => return,
                Reading::Data { slot, at, end, last } => self.data(wire, slot, (at, end), last),
                Reading::Extents { slot, left, wanted, last } => self.extent(wire, slot, left, wanted, last),
                Reading::Words { slot, left, last } => self.words(wire, slot, left, last),
                Reading::Header => self.header(wire),
            };
            match next {
                Next::On => {}
                Next::Wait => return,
                Next::Broken => return self.lose(wire, Why::GivenUp),
            }
        }
    }

    fn data(&mut self, wire: &mut impl Wire, slot: u16, (at, end): (u64, u64), last: bool) -> Next {
        let part = self.slots[slot].part;
        let here = (end - at).min((self.end - self.start) as u64);
        let left = self.slots[slot].left;
        if !left {
            wire.copy_data(&part, at, self.start, self.start + here as usize);
        }
        self.start += here as usize;
        let at = at + here;
        if at == end {
            self.chunk_ended(wire, slot, last);
            return Next::On;
        }
        let direct = end - at >= DIRECT_BYTES && !left;
        self.reading = match direct {
            true => Reading::Direct { slot, at, end, asked: 0, last },
            false => Reading::Data { slot, at, end, last },
        };
        Next::Wait
    }

    /// One extent of a block status.
    fn extent(&mut self, wire: &mut impl Wire, slot: u16, left: u32, wanted: bool, last: bool) -> Next {
        let Some(extent) = wire.input(self.start, self.end).first_chunk::<8>() else { return Next::Wait };
        let both = u64::from_be_bytes(*extent);
        self.start += 8;
        let (len, is_zero) = ((both >> 32) as u32, both as u32 & state::ZERO != 0);
        if len == 0 {
            return Next::Broken;
        }
        if wanted {
            self.slots[slot].stretch.extent(len, is_zero);
        }
        match left - 8 {
            0 => self.chunk_ended(wire, slot, last),
            left => self.reading = Reading::Extents { slot, left, wanted, last },
        }
        Next::On
    }

    /// What a server says beside an error.
    fn words(&mut self, wire: &mut impl Wire, slot: u16, left: u32, last: bool) -> Next {
        let here = left.min((self.end - self.start) as u32);
        self.start += here as usize;
        if here == left {
            self.chunk_ended(wire, slot, last);
            return Next::On;
        }
        self.reading = Reading::Words { slot, left: left - here, last };
        Next::Wait
    }

    fn header(&mut self, wire: &mut impl Wire) -> Next {
        let input = wire.input(self.start, self.end);
        let Ok((reply, _)) = SimpleReply::ref_from_prefix(input) else { return Next::Wait };
        let (magic, error, cookie) = (reply.magic.get(), reply.error.get(), reply.cookie.get());
        if magic == STRUCTURED_REPLY_MAGIC && self.terms.structured {
            return self.chunk(wire);
        }
        self.start += SIMPLE_BYTES;
        match self.slots.find(cookie) {
            Some(slot) if magic == SIMPLE_REPLY_MAGIC => self.replied(wire, slot, error),
            // Not the protocol.
            _ => Next::Broken,
        }
    }

    fn replied(&mut self, wire: &mut impl Wire, slot: u16, error: u32) -> Next {
        let part = &self.slots[slot].part;
        match error {
            // What is read comes in chunks where these were agreed on.
            0 if part.op == Op::Read && self.terms.structured => return Next::Broken,
            0 if part.op == Op::Read => {
                let Stretch { from, to, .. } = self.slots[slot].stretch;
                self.reading = Reading::Data { slot, at: from.into(), end: to.into(), last: true };
            }
            error => {
                self.slots[slot].stretch.error = error;
                self.chunk_ended(wire, slot, true);
            }
        }
        Next::On
    }

    fn chunk(&mut self, wire: &mut impl Wire) -> Next {
        let input = wire.input(self.start, self.end);
        let Ok((header, rest)) = ChunkHeader::ref_from_prefix(input) else { return Next::Wait };
        let (kind, len, last) = (header.kind.get(), header.len.get(), header.flags.get() & chunk::FLAG_DONE != 0);
        let number = |from: usize, to: usize| {
            rest.get(from..to).map(|bytes| bytes.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte)))
        };
        let Some(slot) = self.slots.find(header.cookie.get()) else { return Next::Broken };
        let (is_read, asks) = (self.slots[slot].part.op == Op::Read, self.slots[slot].stretch.asks);
        match kind {
            chunk::NONE if len == 0 && last => {
                self.start += CHUNK_BYTES;
                self.chunk_ended(wire, slot, true);
            }
            chunk::OFFSET_DATA if is_read && !asks && len > 8 => {
                let Some(offset) = number(0, 8) else { return Next::Wait };
                let Some((at, end)) = self.comes(slot, offset, len - 8) else { return Next::Broken };
                self.start += CHUNK_BYTES + 8;
                self.reading = Reading::Data { slot, at, end, last };
            }
            chunk::OFFSET_HOLE if is_read && !asks && len == 12 => {
                let (Some(offset), Some(hole)) = (number(0, 8), number(8, 12)) else { return Next::Wait };
                let Some((at, end)) = self.comes(slot, offset, hole as u32) else { return Next::Broken };
                self.start += CHUNK_BYTES + 12;
                self.zero(wire, slot, at, end);
                self.chunk_ended(wire, slot, last);
            }
            chunk::BLOCK_STATUS if is_read && asks && len >= 12 && len % 8 == 4 => {
                let Some(id) = number(0, 4) else { return Next::Wait };
                let wanted = self.terms.allocation.map(u64::from) == Some(id);
                self.start += CHUNK_BYTES + 4;
                self.reading = Reading::Extents { slot, left: len - 4, wanted, last };
            }
            kind if kind & chunk::ERROR_BIT != 0 && len >= 6 => {
                let Some(error) = number(0, 4) else { return Next::Wait };
                if error == 0 {
                    return Next::Broken;
                }
                self.start += CHUNK_BYTES + 4;
                let stretch = &mut self.slots[slot].stretch;
                stretch.error = if stretch.error == 0 { error as u32 } else { stretch.error };
                self.reading = Reading::Words { slot, left: len - 4, last };
            }
            _ => return Next::Broken,
        }
        Next::On
    }

    /// Where the data of a chunk lie in their part, if they were asked for and come for the first time.
    fn comes(&mut self, slot: u16, offset: u64, len: u32) -> Option<(u64, u64)> {
        let Stretch { from, to, .. } = self.slots[slot].stretch;
        let at = u32::try_from(offset.checked_sub(self.slots[slot].part.offset)?).ok()?;
        let end = at.checked_add(len)?;
        if len == 0 || at < from || end > to {
            return None;
        }
        self.came.get_mut(usize::from(slot))?.add(at - from, end - from).ok()?;
        Some((at.into(), end.into()))
    }

    fn zero(&self, wire: &mut impl Wire, slot: u16, mut at: u64, end: u64) {
        while at < end && !self.slots[slot].left {
            let step = (end - at).min(ZEROS.len() as u64);
            wire.put_data(&self.slots[slot].part, at, &ZEROS[..step as usize]);
            at += step;
        }
    }

    /// A chunk has been taken in, or a simple reply; with the last one that is all of the answer.
    fn chunk_ended(&mut self, wire: &mut impl Wire, index: u16, last: bool) {
        self.reading = Reading::Header;
        if !last {
            return;
        }
        let slot = &mut self.slots[index];
        match slot.stretch.error {
            0 => {}
            // It ends the connection: what was not done is tried again on the next.
            SHUTDOWN => return self.lose(wire, Why::Ended),
            // It cannot tell what it has: it can be read.
            _ if slot.stretch.asks => {
                slot.stretch.read_all();
                return self.again(index);
            }
            error => return self.answer(wire, index, Err(errno_of(error))),
        }
        if slot.part.op != Op::Read {
            return self.answer(wire, index, Ok(()));
        }
        if slot.stretch.asks {
            let holes = slot.stretch.told();
            holes.into_iter().for_each(|(from, to)| self.zero(wire, index, from.into(), to.into()));
            if !self.slots[index].stretch.asks {
                return self.again(index);
            }
        } else {
            let Stretch { from, to, .. } = slot.stretch;
            if self.terms.structured && !self.came[usize::from(index)].is(to - from) {
                return self.lose(wire, Why::GivenUp);
            }
        }
        let slot = &mut self.slots[index];
        if slot.stretch.go_on(slot.part.len as u32) {
            return self.again(index);
        }
        self.answer(wire, index, Ok(()));
    }

    /// More of a read is asked for.
    fn again(&mut self, index: u16) {
        if self.slots[index].left {
            return self.slots.give(index);
        }
        self.slots.set(index, State::Unsent);
        self.slots.unsent.push_back(index);
    }
}

/// The numbers of the protocol are Linux's, but for what they mean here.
fn errno_of(error: u32) -> i32 {
    match error {
        1 => libc_errno::ROFS,
        22 => libc_errno::INVAL,
        28 => libc_errno::NOSPC,
        95 => libc_errno::OPNOTSUPP,
        _ => libc_errno::IO,
    }
}
