//! Requests in flight and the stream of replies, sans-I/O. Allocates only in [`Pipeline::new`].

use zerocopy::{FromBytes, IntoBytes};

use super::ClientError;
use super::coverage::Coverage;
use super::negotiate::Negotiated;
use crate::codec::{
    CHUNK_BYTES, ChunkHeader, EXTENDED_BYTES, EXTENDED_REPLY_MAGIC, ExtendedChunkHeader, ExtendedRequestHeader,
    PAYLOAD_BYTES_MAX, REQUEST_BYTES, RequestHeader, SIMPLE_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
    SimpleReply, chunk, command, command_flags,
};

/// Maximum number of requests in flight on one connection.
pub const SLOTS_MAX: usize = 1024;
/// Maximum input that [`Pipeline::feed`] may need at once, in bytes.
pub const INPUT_BYTES_MAX: usize = 8192;

/// Receives replies as they are parsed. Each request ends with exactly one call of [`Replies::done`].
pub trait Replies {
    /// Handles part of a READ's data, from byte `at` of the request.
    fn data(&mut self, _slot: u16, _at: u32, _data: &[u8]) {}
    /// Handles part of a READ that is zeros, sent as a hole.
    fn hole(&mut self, _slot: u16, _at: u32, _len: u32) {}
    /// Handles the next extent of a BLOCK_STATUS.
    fn extent(&mut self, _slot: u16, _len: u64, _state: u32) {}
    /// Handles the end of a request, whose slot is free again. The error is the server's error number.
    fn done(&mut self, slot: u16, result: Result<(), u32>);
}

/// A request header in wire format.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    bytes: [u8; EXTENDED_BYTES],
    len: usize,
}

impl Header {
    /// Returns the header of a request. With extended headers, a WRITE gets the flag PAYLOAD_LEN.
    #[inline]
    pub fn new(extended: bool, kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Header {
        let mut bytes = [0; EXTENDED_BYTES];
        if !extended {
            bytes[..REQUEST_BYTES].copy_from_slice(RequestHeader::new(kind, flags, cookie, offset, len).as_bytes());
            return Header { bytes, len: REQUEST_BYTES };
        }
        let payload = if kind == command::WRITE { command_flags::PAYLOAD_LEN } else { 0 };
        let header = ExtendedRequestHeader::new(kind, flags | payload, cookie, offset, u64::from(len));
        bytes.copy_from_slice(header.as_bytes());
        Header { bytes, len: EXTENDED_BYTES }
    }
}

impl std::ops::Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    busy: bool,
    kind: u16,
    offset: u64,
    len: u32,
    error: u32,
}

/// What the next bytes of the stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyState {
    Header,
    /// Data of a READ.
    Data {
        slot: u16,
        at: u32,
        left: u32,
        done: bool,
    },
    /// Extents.
    Extents {
        slot: u16,
        left: u32,
        wanted: bool,
        /// Lengths and states have 64 bits each.
        extended: bool,
        done: bool,
    },
    /// A payload that is parsed as a whole.
    Payload {
        slot: u16,
        kind: u16,
        len: u32,
        done: bool,
    },
}

/// The requests in flight on one connection.
#[derive(Debug)]
pub struct Pipeline {
    slots: Box<[Slot]>,
    /// The received parts of each slot's READ.
    coverage: Box<[Coverage]>,
    free: Vec<u16>,
    structured: bool,
    extended: bool,
    allocation: Option<u32>,
    state: ReplyState,
}

const fn protocol_error<T>(what: &'static str) -> Result<T, ClientError> {
    Err(ClientError::Protocol(what))
}

impl Pipeline {
    /// Returns a pipeline for `depth` requests (1 to [`SLOTS_MAX`]) on a connection with these terms.
    pub fn new(depth: usize, terms: &Negotiated) -> Pipeline {
        let depth = depth.clamp(1, SLOTS_MAX);
        let empty = Slot { busy: false, kind: 0, offset: 0, len: 0, error: 0 };
        Pipeline {
            slots: vec![empty; depth].into(),
            coverage: vec![Coverage::default(); depth].into(),
            free: (0..depth as u16).rev().collect(),
            structured: terms.structured,
            extended: terms.extended,
            allocation: terms.allocation,
            state: ReplyState::Header,
        }
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the number of free slots.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Begins a request. Returns its slot and header, or `None` if no slot is free or a READ or WRITE is longer than 32
    /// MiB.
    #[inline]
    pub fn begin(&mut self, kind: u16, flags: u16, offset: u64, len: u32) -> Option<(u16, Header)> {
        if matches!(kind, command::READ | command::WRITE) && len > PAYLOAD_BYTES_MAX {
            return None;
        }
        let slot = self.free.pop()?;
        self.slots[usize::from(slot)] = Slot { busy: true, kind, offset, len, error: 0 };
        self.coverage[usize::from(slot)].clear();
        Some((slot, Header::new(self.extended, kind, flags, u64::from(slot), offset, len)))
    }

    /// Parses replies from the front of `input`. Returns how many bytes it took. The rest must be passed again with
    /// more input after it.
    ///
    /// # Errors
    /// The server violated the protocol. The connection is unusable.
    pub fn feed(&mut self, input: &[u8], replies: &mut impl Replies) -> Result<usize, ClientError> {
        let mut rest = input;
        loop {
            let took = match self.state {
                ReplyState::Header => self.header(rest, replies)?,
                ReplyState::Data { slot, at, left, done } => self.data(rest, replies, slot, at, left, done)?,
                ReplyState::Extents { slot, left, wanted, extended, done } => {
                    self.extents(rest, replies, slot, left, (wanted, extended), done)?
                }
                ReplyState::Payload { slot, kind, len, done } => self.payload(rest, replies, slot, kind, len, done)?,
            };
            if took == 0 {
                return Ok(input.len() - rest.len());
            }
            rest = &rest[took..];
        }
    }

    fn find(&mut self, cookie: u64) -> Result<(u16, &mut Slot), ClientError> {
        match self.slots.get_mut(cookie as usize) {
            Some(slot) if slot.busy => Ok((cookie as u16, slot)),
            _ => protocol_error("a reply to a request that is not in flight"),
        }
    }

    /// Records that part of a READ was received, or is about to be. It must not overlap earlier parts.
    #[inline]
    fn record_received(&mut self, slot: u16, at: u32, len: u32) -> Result<(), ClientError> {
        self.coverage[usize::from(slot)].add(at, at + len).map_err(ClientError::Protocol)
    }

    #[inline]
    fn header(&mut self, input: &[u8], replies: &mut impl Replies) -> Result<usize, ClientError> {
        let Some(magic) = input.first_chunk::<4>() else { return Ok(0) };
        match u32::from_be_bytes(*magic) {
            SIMPLE_REPLY_MAGIC if !self.extended => {
                let Ok((reply, _)) = SimpleReply::ref_from_prefix(input) else { return Ok(0) };
                let structured = self.structured;
                let (index, slot) = self.find(reply.cookie.get())?;
                slot.error = reply.error.get();
                let has_data = slot.kind == command::READ && slot.error == 0;
                if has_data && structured {
                    return protocol_error("a simple reply to a read after structured replies were agreed on");
                }
                let left = slot.len;
                if has_data && left > 0 {
                    self.record_received(index, 0, left)?;
                    self.state = ReplyState::Data { slot: index, at: 0, left, done: true };
                } else {
                    self.end(index, true, replies)?;
                }
                Ok(SIMPLE_BYTES)
            }
            STRUCTURED_REPLY_MAGIC if self.structured && !self.extended => self.compact_chunk(input, replies),
            EXTENDED_REPLY_MAGIC if self.extended => self.extended_chunk(input, replies),
            _ => protocol_error("a reply without its magic number"),
        }
    }

    fn compact_chunk(&mut self, input: &[u8], replies: &mut impl Replies) -> Result<usize, ClientError> {
        let Ok((header, rest)) = ChunkHeader::ref_from_prefix(input) else { return Ok(0) };
        let (kind, flags, len) = (header.kind.get(), header.flags.get(), header.len.get());
        self.chunk((kind, flags, len), header.cookie.get(), (CHUNK_BYTES, rest), replies)
    }

    fn extended_chunk(&mut self, input: &[u8], replies: &mut impl Replies) -> Result<usize, ClientError> {
        let Ok((header, rest)) = ExtendedChunkHeader::ref_from_prefix(input) else { return Ok(0) };
        let Ok(len) = u32::try_from(header.len.get()) else { return protocol_error("a chunk that is too long") };
        let (_, slot) = self.find(header.cookie.get())?;
        if slot.offset != header.offset.get() {
            return protocol_error("a chunk with another offset than its request's");
        }
        let (kind, flags) = (header.kind.get(), header.flags.get());
        self.chunk((kind, flags, len), header.cookie.get(), (EXTENDED_BYTES, rest), replies)
    }

    fn chunk(
        &mut self,
        (kind, flags, len): (u16, u16, u32),
        cookie: u64,
        (header_bytes, rest): (usize, &[u8]),
        replies: &mut impl Replies,
    ) -> Result<usize, ClientError> {
        let done = flags & chunk::FLAG_DONE != 0;
        let (allocation, extended) = (self.allocation, self.extended);
        let (index, slot) = self.find(cookie)?;
        let mut took = header_bytes;
        match kind {
            chunk::NONE if len == 0 && done => self.end(index, true, replies)?,
            chunk::OFFSET_DATA if slot.kind == command::READ && len > 8 => {
                let Some(offset) = rest.first_chunk::<8>() else { return Ok(0) };
                let left = len - 8;
                let at = position_in_request(slot, u64::from_be_bytes(*offset), left)?;
                self.record_received(index, at, left)?;
                took += 8;
                self.state = ReplyState::Data { slot: index, at, left, done };
            }
            chunk::BLOCK_STATUS if slot.kind == command::BLOCK_STATUS && len >= 12 && len % 8 == 4 => {
                let Some(id) = rest.first_chunk::<4>() else { return Ok(0) };
                let wanted = allocation == Some(u32::from_be_bytes(*id));
                took += 4;
                self.state = ReplyState::Extents { slot: index, left: len - 4, wanted, extended: false, done };
            }
            chunk::BLOCK_STATUS_EXT if extended && slot.kind == command::BLOCK_STATUS && len >= 24 && len % 16 == 8 => {
                let Some(head) = rest.first_chunk::<8>() else { return Ok(0) };
                let both = u64::from_be_bytes(*head);
                let (id, count) = ((both >> 32) as u32, both as u32);
                if count != 0 && count != (len - 8) / 16 {
                    return protocol_error("a wrong number of extents");
                }
                let wanted = allocation == Some(id);
                took += 8;
                self.state = ReplyState::Extents { slot: index, left: len - 8, wanted, extended: true, done };
            }
            _ if (kind == chunk::OFFSET_HOLE && slot.kind == command::READ) || kind & chunk::ERROR_BIT != 0 => {
                if len as usize > INPUT_BYTES_MAX - CHUNK_BYTES {
                    return protocol_error("a chunk that is too long");
                }
                self.state = ReplyState::Payload { slot: index, kind, len, done };
            }
            _ => return protocol_error("a chunk that does not belong to its request"),
        }
        Ok(took)
    }

    #[inline]
    fn data(
        &mut self,
        input: &[u8],
        replies: &mut impl Replies,
        slot: u16,
        at: u32,
        left: u32,
        done: bool,
    ) -> Result<usize, ClientError> {
        let take = input.len().min(left as usize);
        if take == 0 {
            return Ok(0);
        }
        replies.data(slot, at, &input[..take]);
        let (at, left) = (at + take as u32, left - take as u32);
        self.state = ReplyState::Data { slot, at, left, done };
        if left == 0 {
            self.end(slot, done, replies)?;
        }
        Ok(take)
    }

    fn extents(
        &mut self,
        input: &[u8],
        replies: &mut impl Replies,
        slot: u16,
        left: u32,
        (wanted, extended): (bool, bool),
        done: bool,
    ) -> Result<usize, ClientError> {
        let (len, state, bytes) = if extended {
            let Some(extent) = input.first_chunk::<16>() else { return Ok(0) };
            let both = u128::from_be_bytes(*extent);
            // The upper half of a state is for contexts that this client does not support.
            ((both >> 64) as u64, both as u32, 16)
        } else {
            let Some(extent) = input.first_chunk::<8>() else { return Ok(0) };
            let both = u64::from_be_bytes(*extent);
            (both >> 32, both as u32, 8)
        };
        if len == 0 {
            return protocol_error("an empty extent");
        }
        if wanted {
            replies.extent(slot, len, state);
        }
        self.state = ReplyState::Extents { slot, left: left - bytes, wanted, extended, done };
        if left == bytes {
            self.end(slot, done, replies)?;
        }
        Ok(bytes as usize)
    }

    /// Parses a hole or an error of any type.
    fn payload(
        &mut self,
        input: &[u8],
        replies: &mut impl Replies,
        index: u16,
        kind: u16,
        len: u32,
        done: bool,
    ) -> Result<usize, ClientError> {
        let Some(payload) = input.get(..len as usize) else { return Ok(0) };
        let slot = &mut self.slots[usize::from(index)];
        let number = |from: usize, to: usize| {
            payload.get(from..to).map(|bytes| bytes.iter().fold(0u64, |n, &byte| n << 8 | u64::from(byte)))
        };
        if kind == chunk::OFFSET_HOLE {
            let (Some(offset), Some(hole), 12) = (number(0, 8), number(8, 12), len) else {
                return protocol_error("a hole of a wrong length");
            };
            let hole = hole as u32;
            let at = position_in_request(slot, offset, hole)?;
            self.record_received(index, at, hole)?;
            replies.hole(index, at, hole);
        } else {
            let (Some(error), Some(text)) = (number(0, 4), number(4, 6)) else {
                return protocol_error("an error too short");
            };
            if error == 0 || text + 6 > u64::from(len) {
                return protocol_error("an error that is none");
            }
            slot.error = error as u32;
        }
        self.end(index, done, replies)?;
        // Every such chunk has a payload, so `len` is not 0.
        Ok(len as usize)
    }

    /// Ends a message, and with the last one its request.
    #[inline]
    fn end(&mut self, index: u16, done: bool, replies: &mut impl Replies) -> Result<(), ClientError> {
        self.state = ReplyState::Header;
        if !done {
            return Ok(());
        }
        let slot = &mut self.slots[usize::from(index)];
        if slot.kind == command::READ && slot.error == 0 && !self.coverage[usize::from(index)].is_complete(slot.len) {
            return protocol_error("a read reply that is shorter than requested");
        }
        slot.busy = false;
        let result = if slot.error == 0 { Ok(()) } else { Err(slot.error) };
        self.free.push(index);
        replies.done(index, result);
        Ok(())
    }
}

/// Returns the position of a reply's range within its request. The range must lie inside.
fn position_in_request(slot: &Slot, offset: u64, len: u32) -> Result<u32, ClientError> {
    // Only subtractions: `offset` is untrusted, and adding to it could overflow.
    let rest = slot.len.checked_sub(len).map(u64::from);
    let at = offset.checked_sub(slot.offset);
    match (at, rest) {
        (Some(at), Some(rest)) if len > 0 && at <= rest => Ok(at as u32),
        _ => protocol_error("data outside of the requested range"),
    }
}
