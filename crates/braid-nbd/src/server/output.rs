//! Sends replies: headers are encoded at the last moment, next to each other, and sent together with the data in place,
//! all ready replies in one send.

use braid_export::{ExportStats, RequestClass};

use super::config::{HEAD_BYTES, HEADS_BYTES, SEGMENT_BYTES, SEND_BYTES};
use super::connection::{Connection, TOKEN_SEND};
use super::host::{Host, SEND_PIECES_MAX, SendPiece};
use super::request::{Failure, RequestKind, Requests, Slot};
use crate::codec::{self, ChunkStyle, chunk};
use crate::transmission::Terms;

/// Encodes a reply's header. Returns its length and whether data follows.
#[inline]
fn encode(out: &mut [u8], slot: &Slot, terms: &Terms) -> (usize, bool) {
    let style = if terms.extended { ChunkStyle::Extended(slot.offset) } else { ChunkStyle::Structured };
    match (&slot.failure, slot.kind) {
        (Some(Failure { errno, text, offset }), _) if terms.structured => {
            (codec::encode_error(out, style, slot.cookie, errno.code(), *offset, text), false)
        }
        (Some(failure), _) => (codec::encode_simple(out, slot.cookie, failure.errno.code()), false),
        (None, RequestKind::Read) if terms.structured => {
            (codec::encode_offset_data(out, style, slot.cookie, true, slot.offset, slot.data), true)
        }
        (None, RequestKind::Read) => (codec::encode_simple(out, slot.cookie, 0), true),
        (None, RequestKind::Status) => {
            let (context, bytes, only) = slot.first_context;
            (codec::encode_block_status(out, style, slot.cookie, context, bytes, only), true)
        }
        (None, _) if terms.extended => (codec::encode_chunk(out, style, chunk::NONE, true, slot.cookie, 0), false),
        (None, _) => (codec::encode_simple(out, slot.cookie, 0), false),
    }
}

impl<S: Copy> Connection<S> {
    /// Sends ready replies, unless a send is in flight.
    #[inline]
    pub fn send_ready<H: Host<Socket = S>>(&mut self, host: &mut H) {
        if self.send_out {
            return;
        }
        self.gather(host);
        if self.pieces.is_empty() {
            return;
        }
        self.send_out = true;
        self.send_since_ns = host.now_ns();
        host.send(self.socket, &self.pieces, self.token | TOKEN_SEND);
    }

    /// Gathers the pieces of the next send.
    #[inline]
    pub fn gather<H: Host<Socket = S>>(&mut self, host: &mut H) {
        self.pieces.clear();
        if !self.greeting_out.is_empty() {
            self.gather_greeting(host);
        } else if !self.ready.is_empty() || self.partial.is_some() {
            self.gather_replies(host);
        }
    }

    /// Gathers the handshake's replies, as far as the header buffer has room.
    fn gather_greeting<H: Host<Socket = S>>(&mut self, host: &mut H) {
        let len = self.greeting_out.len().min(HEADS_BYTES);
        host.memory(self.head, len).copy_from_slice(&self.greeting_out[..len]);
        self.greeting_out.drain(..len);
        if self.greeting_out.is_empty() {
            // Long lists of exports are rare: do not keep their memory.
            self.greeting_out = Vec::new();
        }
        self.pieces.push(SendPiece { buf: self.head, len: len as u32 });
    }

    fn gather_replies<H: Host<Socket = S>>(&mut self, host: &mut H) {
        let Some(session) = &self.session else { return };
        let terms = session.terms;
        let (mut used, mut bytes) = (0, 0);
        // All shards share the export's counters: update them once per batch, or once per run of equal latencies.
        let (now_ns, mut latencies) = (host.now_ns(), session.export.latencies());
        // Whether the last piece is a header that the next header can extend.
        let mut joinable = false;
        if let Some((slot, segment, left)) = self.partial.take() {
            let rest = gather_data(&mut self.requests, &mut self.pieces, (segment, left), &mut bytes);
            self.partial = rest.map(|(segment, left)| (slot, segment, left));
            if rest.is_none() {
                self.sending.push(slot);
            }
        }
        while let Some(&slot) = self.ready.front() {
            let of = *self.requests.slot(slot);
            // An error has no data, whatever the request's length.
            let data = if of.failure.is_some() { 0 } else { of.data };
            let pieces = 1 + (data as usize).div_ceil(SEGMENT_BYTES as usize);
            let full = used + HEAD_BYTES > HEADS_BYTES;
            if full || bytes >= SEND_BYTES || self.partial.is_some() || self.pieces.len() + pieces > SEND_PIECES_MAX {
                break;
            }
            self.ready.pop_front();
            let at = self.head.add(used as u64);
            let (len, has_data) = encode(host.memory(at, HEAD_BYTES), &of, &terms);
            used += len;
            match self.pieces.last_mut() {
                Some(last) if joinable => last.len += len as u32,
                _ => self.pieces.push(SendPiece { buf: at, len: len as u32 }),
            }
            joinable = !has_data;
            let whole = (of.first, if has_data { data } else { 0 });
            let rest = gather_data(&mut self.requests, &mut self.pieces, whole, &mut bytes);
            self.partial = rest.map(|(segment, left)| (slot, segment, left));
            if rest.is_none() {
                self.sending.push(slot);
            }
            count(&mut self.stats, &of);
            latencies.add(class(of.kind), now_ns.saturating_sub(of.taken_ns));
        }
        session.export.add_stats(&std::mem::take(&mut self.stats));
    }
}

/// Adds a reply's data, `left` bytes from `segment` on, to a send that has `bytes` bytes of data already. Stops once
/// the send has [`SEND_BYTES`], and returns the segment and the number of bytes with which the next send continues. A
/// long reply is split this way so that each send frees its segments, and the time limits see that the client makes
/// progress.
#[inline]
fn gather_data(
    requests: &mut Requests,
    pieces: &mut Vec<SendPiece>,
    (mut segment, mut left): (u16, u32),
    bytes: &mut u64,
) -> Option<(u16, u32)> {
    while left > 0 && *bytes < SEND_BYTES {
        let part = requests.segment(segment);
        let len = part.len.min(left);
        pieces.push(SendPiece { buf: part.buf, len });
        segment = part.next;
        left -= len;
        *bytes += u64::from(len);
    }
    (left > 0).then_some((segment, left))
}

fn class(kind: RequestKind) -> RequestClass {
    match kind {
        RequestKind::Read => RequestClass::Read,
        RequestKind::Write => RequestClass::Write,
        RequestKind::Status | RequestKind::Other => RequestClass::Other,
    }
}

fn count(stats: &mut ExportStats, slot: &Slot) {
    match slot.kind {
        RequestKind::Read => stats.reads += 1,
        RequestKind::Write => stats.writes += 1,
        RequestKind::Status | RequestKind::Other => stats.others += 1,
    }
    match (slot.failure.is_some(), slot.kind) {
        (true, _) => stats.errors += 1,
        (false, RequestKind::Read) => stats.read_bytes += slot.len,
        (false, RequestKind::Write) => stats.written_bytes += slot.len,
        _ => {}
    }
}
