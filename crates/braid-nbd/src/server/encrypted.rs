//! A connection over TLS. Received records are decrypted into the stream buffer or a payload's segment; data to be sent
//! is encrypted into a separate buffer, the outbox.
//!
//! The pump sees only plaintext. While it waits, the connection decrypts nothing and receives nothing; this is the only
//! back-pressure.

use std::sync::Arc;

use braid_engine::Buf;
use rustls::ServerConfig;

use super::config::SECURE_BYTES_LARGE;
use super::connection::{Connection, TOKEN_RECV, TOKEN_SEND};
use super::host::{Host, SendPiece};
use super::request::NONE;
use super::secure::{DecryptOutcome, Secure};
use super::shared::Shared;
use super::state::{ConnectionStage, InputState, ReceiveTarget};
use crate::event::Cause;
use crate::tls::whole_record;

/// Replaces `buf` by a larger buffer with its bytes `from..to` at the front. Returns false if none is available.
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
    /// Begins TLS after the reply to STARTTLS was sent.
    pub(super) fn begin_tls<H: Host<Socket = S>>(&mut self, host: &mut H, config: Arc<ServerConfig>) {
        debug_assert!(self.recv.is_none() && self.start == self.end, "nothing in the clear is kept");
        // Pieces that were sent in plaintext are not sent again.
        self.pieces.clear();
        match Secure::new(host, config) {
            Ok(secure) => self.secure = Some(Box::new(secure)),
            Err(why) => self.fail(host, Cause::Tls(why)),
        }
    }

    /// Decrypts more input for the pump. Returns false if there is none for now.
    pub(super) fn refill<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) -> bool {
        let Some(secure) = self.secure.as_deref_mut() else { return false };
        if self.stage != ConnectionStage::Open {
            return false;
        }
        let payload = match self.input {
            InputState::Payload { segment, filled, .. } if segment != NONE && self.start == self.end => {
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
        match secure.decrypt(host, dest, room, shared) {
            DecryptOutcome::Data(n) if payload.is_some() => {
                self.payload_arrived(host.now_ns(), n);
                true
            }
            DecryptOutcome::Data(n) => {
                self.end += n;
                n > 0
            }
            DecryptOutcome::Nothing => false,
            DecryptOutcome::Deferred => {
                shared.wait_for_tls(self.index);
                false
            }
            DecryptOutcome::Closed => {
                let in_flight = self.requests.in_flight();
                self.drain(host, Cause::ConnectionClosed { in_flight });
                false
            }
            DecryptOutcome::Failed(why) => {
                self.drain(host, Cause::Tls(why));
                false
            }
        }
    }

    /// Receives more records, if the connection can use them.
    pub(super) fn receive_secure<H: Host<Socket = S>>(&mut self, host: &mut H) {
        let Some(secure) = self.secure.as_deref_mut() else { return };
        // Do not receive from a peer that does not take its alerts and handshake messages.
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
        let requested = secure.inbox_len - secure.to;
        if requested == 0 {
            let whole = whole_record(host.memory(secure.inbox, held as usize));
            if secure.tls.is_handshaking() && !whole {
                self.fail(host, Cause::Tls("a message of the handshake is too long".to_owned()));
            }
            return;
        }
        let at = secure.inbox.add(u64::from(secure.to));
        self.recv = Some(ReceiveTarget::Records { requested });
        host.recv(self.socket, at, requested, false, self.token | TOKEN_RECV);
    }

    /// Handles received records.
    pub(super) fn records_arrived<H: Host<Socket = S>>(
        &mut self,
        host: &mut H,
        shared: &mut Shared,
        n: u32,
        requested: u32,
    ) {
        let Some(secure) = self.secure.as_deref_mut() else { return };
        secure.to += n;
        if n == requested && self.session.is_some() {
            let held = (secure.from, secure.to);
            if grow(host, shared, &mut secure.inbox, &mut secure.inbox_len, held) {
                (secure.from, secure.to) = (0, held.1 - held.0);
            }
        }
    }

    /// Encrypts and sends ready replies, unless a send is in flight.
    pub(super) fn send_secure<H: Host<Socket = S>>(&mut self, host: &mut H, shared: &mut Shared) {
        let Some(mut secure) = self.secure.take() else { return };
        if !self.send_out {
            if let Err(why) = self.fill_outbox(host, shared, &mut secure) {
                self.drain(host, Cause::Tls(why));
            }
            if secure.tls.dead {
                // The peer cannot receive anything any more.
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
            // Everything is encrypted in the outbox: free its source.
            self.close_sending(host);
        }
        if used > 0 {
            self.send_out = true;
            self.send_since_ns = host.now_ns();
            host.send(self.socket, &[SendPiece { buf: secure.outbox, len: used as u32 }], self.token | TOKEN_SEND);
        }
        result
    }

    /// Queues a close_notify alert once. Returns whether it is still to be sent.
    pub(super) fn queue_close_notify(&mut self) -> bool {
        let Some(secure) = self.secure.as_deref_mut() else { return false };
        if secure.close_notify_queued || secure.tls.dead || secure.tls.is_handshaking() {
            return false;
        }
        secure.close_notify_queued = true;
        secure.tls.queue_close_notify();
        !secure.tls.wire.is_empty()
    }
}
