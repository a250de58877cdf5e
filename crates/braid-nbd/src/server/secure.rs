//! TLS on a connection: what is received goes through here into the stream buffer or a payload's segment, and what is
//! sent through here into a buffer of its own.
//!
//! The protocol above sees plain bytes and takes them when it can; while it cannot, nothing is decrypted and nothing
//! received, which is all the back-pressure there is. What it needs is taken when TLS begins; only TLS 1.2 allocates for
//! each record. A handshake's cryptography runs on the shard, one a turn of its loop: others are served in between.

use std::sync::Arc;

use braid_engine::Buf;
use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;

use super::config::{SECURE_BYTES, SECURE_BYTES_LARGE};
use super::connection::{Connection, Ending, TOKEN_RECV, TOKEN_SEND, Target};
use super::host::{Host, SendPiece};
use super::input::Input;
use super::request::NONE;
use super::shared::Shared;
use crate::event::Cause;
use crate::tls::{Got, RECORD_BYTES_MAX, RECORD_DATA_MAX, RECORD_HEADER, SEAL_BYTES_MAX, Tls, copy, whole_record};

/// A connection's TLS.
pub(super) struct Secure {
    tls: Tls<UnbufferedServerConnection>,
    /// Received records; bytes `from..to` are not taken yet.
    inbox: Buf,
    inbox_len: u32,
    from: u32,
    to: u32,
    /// What of a record's data found no room; from `plain_at` on.
    plain: Vec<u8>,
    plain_at: usize,
    /// Records to be sent.
    outbox: Buf,
    outbox_len: u32,
    /// How far the connection's pieces are encrypted: which one, and how much of it.
    piece: usize,
    piece_at: u32,
    /// The client was told that nothing more will come.
    goodbye: bool,
}

/// What there was to take.
enum Taken {
    Data(u32),
    Nothing,
    /// It is another connection's turn with a handshake.
    NotNow,
    Closed,
    Failed(String),
}

const _: () = assert!(SECURE_BYTES as usize > RECORD_BYTES_MAX && RECORD_BYTES_MAX > SEAL_BYTES_MAX);

impl Secure {
    fn new<H: Host>(host: &mut H, config: Arc<ServerConfig>) -> Result<Secure, String> {
        let tls = Tls::server(config).map_err(|error| error.to_string())?;
        let no_memory = || "this shard has no memory for it".to_owned();
        let inbox = host.alloc(SECURE_BYTES as usize).ok_or_else(no_memory)?;
        let Some(outbox) = host.alloc(SECURE_BYTES as usize) else {
            host.free(inbox, SECURE_BYTES as usize);
            return Err(no_memory());
        };
        Ok(Secure {
            tls,
            inbox,
            inbox_len: SECURE_BYTES,
            from: 0,
            to: 0,
            plain: Vec::with_capacity(RECORD_DATA_MAX),
            plain_at: 0,
            outbox,
            outbox_len: SECURE_BYTES,
            piece: 0,
            piece_at: 0,
            goodbye: false,
        })
    }

    /// Gives back what it has of the arena.
    pub fn release<H: Host>(&mut self, host: &mut H, shared: &mut Shared) {
        for (buf, len) in [(self.inbox, self.inbox_len), (self.outbox, self.outbox_len)] {
            host.free(buf, len as usize);
            if len == SECURE_BYTES_LARGE {
                shared.large_streams_bytes -= u64::from(SECURE_BYTES_LARGE);
            }
        }
    }

    /// Whether something is still to be sent, of its own or of the connection's `pieces`.
    pub fn owes(&self, pieces: &[SendPiece]) -> bool {
        !self.tls.wire.is_empty() || (!self.tls.dead && self.piece < pieces.len())
    }

    /// Forgets what was received.
    pub fn forget_input(&mut self) {
        self.plain.clear();
        self.plain_at = 0;
        self.from = self.to;
    }

    /// Puts up to `room` bytes of data to `dest`.
    fn take<H: Host>(&mut self, host: &mut H, dest: Buf, room: u32, shared: &mut Shared) -> Taken {
        if self.plain_at < self.plain.len() {
            let left = &self.plain[self.plain_at..];
            let n = left.len().min(room as usize);
            host.memory(dest, n).copy_from_slice(&left[..n]);
            self.plain_at += n;
            return Taken::Data(n as u32);
        }
        if self.from == self.to {
            return Taken::Nothing;
        }
        let place = (self.inbox.add(u64::from(self.from)), (self.to - self.from) as usize);
        if self.tls.is_handshaking() && whole_record(host.memory(place.0, place.1)) {
            if shared.tls_turns == 0 {
                return Taken::NotNow;
            }
            shared.tls_turns -= 1;
        }
        let (incoming, dest) = host.pair(place, (dest, room as usize));
        let plain = &mut self.plain;
        plain.clear();
        self.plain_at = 0;
        let mut n = 0;
        let (took, got) = self.tls.open(incoming, |data| {
            let fits = data.len().min(dest.len() - n);
            copy(&data[..fits], &mut dest[n..n + fits]);
            n += fits;
            plain.extend_from_slice(&data[fits..]);
        });
        self.from += took as u32;
        match got {
            Ok(Got::Data) => Taken::Data(n as u32),
            Ok(Got::Nothing) => Taken::Nothing,
            Ok(Got::Closed) => Taken::Closed,
            Err(why) => Taken::Failed(why),
        }
    }

    /// Encrypts as much of `pieces` as the outbox takes, behind `used` bytes that it holds already. Returns how many
    /// it holds then.
    fn seal<H: Host>(&mut self, host: &mut H, pieces: &[SendPiece], mut used: usize) -> Result<usize, String> {
        // Bytes of the next record that stand in the outbox already.
        let mut gathered = 0;
        while self.outbox_len as usize - used >= SEAL_BYTES_MAX {
            let Some(piece) = pieces.get(self.piece) else { break };
            // Gathered where it is encrypted. What is lent others may write to, but not to this copy.
            let take = (piece.len - self.piece_at).min((RECORD_DATA_MAX - gathered) as u32);
            let from = piece.buf.add(u64::from(self.piece_at));
            let to = self.outbox.add((used + RECORD_HEADER + gathered) as u64);
            if host.is_lent(piece.buf, piece.len as usize) {
                host.copy_lent(from, to, take as usize);
            } else {
                let (from, to) = host.pair((from, take as usize), (to, take as usize));
                copy(from, to);
            }
            gathered += take as usize;
            self.advance(piece.len, take);
            if gathered == RECORD_DATA_MAX || self.piece == pieces.len() {
                let out = host.memory(self.outbox.add(used as u64), SEAL_BYTES_MAX);
                used += self.tls.seal_in_place(out, std::mem::take(&mut gathered))?;
            }
        }
        Ok(used)
    }

    fn advance(&mut self, piece_len: u32, by: u32) {
        self.piece_at += by;
        if self.piece_at == piece_len {
            self.piece += 1;
            self.piece_at = 0;
        }
    }
}

/// A larger buffer in place of `buf`, with the bytes `from..to` of it at its front. False: there is none.
fn grow<H: Host>(host: &mut H, shared: &mut Shared, buf: &mut Buf, len: &mut u32, (from, to): (u32, u32)) -> bool {
    if *len >= SECURE_BYTES_LARGE || !shared.may_grow(true) {
        return false;
    }
    let Some(large) = host.alloc(SECURE_BYTES_LARGE as usize) else { return false };
    host.copy(buf.add(u64::from(from)), large, (to - from) as usize);
    host.free(*buf, *len as usize);
    (*buf, *len) = (large, SECURE_BYTES_LARGE);
    shared.large_streams_bytes += u64::from(SECURE_BYTES_LARGE);
    true
}

impl<S: Copy> Connection<S> {
    /// The answer to STARTTLS has been sent: from here on all is encrypted.
    pub(super) fn begin_tls<H: Host<Socket = S>>(&mut self, host: &mut H, config: Arc<ServerConfig>) {
        debug_assert!(self.recv.is_none() && self.start == self.end, "nothing in the clear is kept");
        // What was sent in the clear is not sent again.
        self.pieces.clear();
        match Secure::new(host, config) {
            Ok(secure) => self.secure = Some(Box::new(secure)),
            Err(why) => self.fail(host, Cause::Tls(why)),
        }
    }

    /// Decrypts more of what was received, for the pump. False: there is nothing more for now.
    pub(super) fn refill<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) -> bool {
        let Some(secure) = self.secure.as_deref_mut() else { return false };
        if self.ending != Ending::Not {
            return false;
        }
        let payload = match self.input {
            Input::Payload { segment, filled, .. } if segment != NONE && self.start == self.end => {
                let part = self.requests.segment(segment);
                Some((part.buf.add(u64::from(filled)), part.len - filled))
            }
            _ => None,
        };
        let (dest, room) = match payload {
            Some(place) => place,
            None => {
                let held = self.end - self.start;
                if self.start > 0 && held > 0 {
                    host.copy(self.stream.add(u64::from(self.start)), self.stream, held as usize);
                }
                (self.start, self.end) = (0, held);
                (self.stream.add(u64::from(held)), self.stream_len - held)
            }
        };
        if room == 0 {
            return false;
        }
        match secure.take(host, dest, room, shared) {
            Taken::Data(n) if payload.is_some() => {
                self.payload_arrived(host.now_ns(), n);
                true
            }
            Taken::Data(n) => {
                self.end += n;
                n > 0
            }
            Taken::Nothing => false,
            Taken::NotNow => {
                shared.wait_for_tls(self.index);
                false
            }
            Taken::Closed => {
                let in_flight = self.requests.in_flight();
                self.drain(host, Cause::Gone { in_flight });
                false
            }
            Taken::Failed(why) => {
                self.drain(host, Cause::Tls(why));
                false
            }
        }
    }

    /// Receives more records, if there is anything to do with them.
    pub(super) fn receive_secure<H: Host<Socket = S>>(&mut self, host: &mut H) {
        let Some(secure) = self.secure.as_deref_mut() else { return };
        // A peer that takes nothing of what it has to be told is not listened to either.
        if secure.plain_at < secure.plain.len() || !secure.tls.wire.is_empty() {
            return;
        }
        let held = secure.to - secure.from;
        if secure.from > 0 {
            if held > 0 {
                host.copy(secure.inbox.add(u64::from(secure.from)), secure.inbox, held as usize);
            }
            (secure.from, secure.to) = (0, held);
        }
        let asked = secure.inbox_len - secure.to;
        if asked == 0 {
            let whole = whole_record(host.memory(secure.inbox, held as usize));
            if secure.tls.is_handshaking() && !whole {
                self.fail(host, Cause::Tls("a message of the handshake is too long".to_owned()));
            }
            return;
        }
        let at = secure.inbox.add(u64::from(secure.to));
        self.recv = Some(Target::Records { asked });
        host.recv(self.socket, at, asked, false, self.token | TOKEN_RECV);
    }

    /// Records have come.
    pub(super) fn records_arrived<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        n: u32,
        asked: u32,
    ) {
        let Some(secure) = self.secure.as_deref_mut() else { return };
        secure.to += n;
        if n == asked && self.session.is_some() {
            let held = (secure.from, secure.to);
            if grow(host, shared, &mut secure.inbox, &mut secure.inbox_len, held) {
                (secure.from, secure.to) = (0, held.1 - held.0);
            }
        }
    }

    /// Encrypts and sends what is ready, unless a send is under way.
    pub(super) fn send_secure<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) {
        let Some(mut secure) = self.secure.take() else { return };
        if !self.send_out {
            if let Err(why) = self.fill_outbox(host, shared, &mut secure) {
                self.drain(host, Cause::Tls(why));
            }
            if secure.tls.dead {
                // Nobody can be told anything any more.
                self.close_sending(host);
                if let Some((slot, ..)) = self.partial.take() {
                    self.requests.close(host, slot);
                }
                while let Some(slot) = self.ready.pop_front() {
                    self.requests.close(host, slot);
                }
                self.greeting_out.clear();
            }
        }
        self.secure = Some(secure);
    }

    fn fill_outbox<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        secure: &mut Secure,
    ) -> Result<(), String> {
        if secure.piece >= self.pieces.len() && !secure.tls.dead && !secure.tls.is_handshaking() {
            (secure.piece, secure.piece_at) = (0, 0);
            self.gather(host);
        }
        let total: u64 = self.pieces.iter().map(|piece| u64::from(piece.len)).sum();
        if total > u64::from(secure.outbox_len) {
            grow(host, shared, &mut secure.outbox, &mut secure.outbox_len, (0, 0));
        }
        let mut used = secure.tls.wire.len().min(secure.outbox_len as usize);
        host.memory(secure.outbox, used).copy_from_slice(&secure.tls.wire[..used]);
        secure.tls.wire.drain(..used);
        let mut result = Ok(());
        if secure.tls.wire.is_empty() && !secure.tls.dead && secure.piece < self.pieces.len() {
            match secure.seal(host, &self.pieces, used) {
                Ok(now) => used = now,
                Err(why) => result = Err(why),
            }
        }
        if secure.piece >= self.pieces.len() {
            // All of it stands in the outbox: what it was encrypted from is not needed any more.
            self.close_sending(host);
        }
        if used > 0 {
            self.send_out = true;
            self.send_since_ns = host.now_ns();
            host.send(self.socket, &[SendPiece { buf: secure.outbox, len: used as u32 }], self.token | TOKEN_SEND);
        }
        result
    }

    /// Tells the client once that nothing more will come. True: that is still to be sent.
    pub(super) fn say_goodbye(&mut self) -> bool {
        let Some(secure) = self.secure.as_deref_mut() else { return false };
        if secure.goodbye || secure.tls.dead || secure.tls.is_handshaking() {
            return false;
        }
        secure.goodbye = true;
        secure.tls.say_goodbye();
        !secure.tls.wire.is_empty()
    }
}
