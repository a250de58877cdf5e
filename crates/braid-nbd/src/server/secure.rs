//! The TLS state of a connection: its buffers, and the records in them.
//!
//! All buffers are allocated when TLS begins; only TLS 1.2 allocates per record. The cryptography of handshakes runs on
//! the shard: at most [`TLS_TURNS`](super::config::TLS_TURNS) steps of all handshakes per turn of its loop, so that
//! other clients are served in between.

use std::sync::Arc;

use braid_engine::Buf;
use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;

use super::config::{SECURE_BYTES, SECURE_BYTES_LARGE};
use super::host::{Host, SendPiece};
use super::shared::Shared;
use crate::tls::{Opened, RECORD_BYTES_MAX, RECORD_DATA_MAX, RECORD_HEADER, SEAL_BYTES_MAX, Tls, copy, whole_record};

/// The TLS state of a connection.
pub(super) struct Secure {
    pub tls: Tls<UnbufferedServerConnection>,
    /// Received records; bytes `from..to` are not decrypted yet.
    pub inbox: Buf,
    pub inbox_len: u32,
    pub from: u32,
    pub to: u32,
    /// Decrypted data that did not fit its destination; unread from `plain_at`.
    pub plain: Vec<u8>,
    pub plain_at: usize,
    /// Encrypted records to be sent.
    pub outbox: Buf,
    pub outbox_len: u32,
    /// Encryption progress in the connection's pieces: the next piece, and the offset in it.
    pub piece: usize,
    pub piece_at: u32,
    /// A close_notify alert was queued.
    pub close_notify_queued: bool,
}

/// The result of decrypting one record.
pub(super) enum DecryptOutcome {
    Data(u32),
    Nothing,
    /// Another handshake was continued in this turn.
    Deferred,
    Closed,
    Failed(String),
}

const _: () = assert!(SECURE_BYTES as usize > RECORD_BYTES_MAX && RECORD_BYTES_MAX > SEAL_BYTES_MAX);

impl Secure {
    /// Allocates the buffers of TLS with this configuration.
    pub fn new<H: Host>(host: &mut H, config: Arc<ServerConfig>) -> Result<Secure, String> {
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
            close_notify_queued: false,
        })
    }

    /// Frees its buffers in the arena.
    pub fn release<H: Host>(&mut self, host: &mut H, shared: &mut Shared) {
        for (buf, len) in [(self.inbox, self.inbox_len), (self.outbox, self.outbox_len)] {
            host.free(buf, len as usize);
            if len == SECURE_BYTES_LARGE {
                shared.large_streams_bytes -= u64::from(SECURE_BYTES_LARGE);
            }
        }
    }

    /// Returns whether alerts, handshake messages or parts of `pieces` are still to be sent.
    pub fn has_unsent(&self, pieces: &[SendPiece]) -> bool {
        !self.tls.wire.is_empty() || (!self.tls.dead && self.piece < pieces.len())
    }

    /// Drops received data.
    pub fn forget_input(&mut self) {
        self.plain.clear();
        self.plain_at = 0;
        self.from = self.to;
    }

    /// Decrypts up to `room` bytes of data into `dest`.
    pub fn decrypt<H: Host>(&mut self, host: &mut H, dest: Buf, room: u32, shared: &mut Shared) -> DecryptOutcome {
        if self.plain_at < self.plain.len() {
            let left = &self.plain[self.plain_at..];
            let n = left.len().min(room as usize);
            host.memory(dest, n).copy_from_slice(&left[..n]);
            self.plain_at += n;
            return DecryptOutcome::Data(n as u32);
        }
        if self.from == self.to {
            return DecryptOutcome::Nothing;
        }
        let place = (self.inbox.add(u64::from(self.from)), (self.to - self.from) as usize);
        if self.tls.is_handshaking() && whole_record(host.memory(place.0, place.1)) {
            if shared.tls_turns == 0 {
                return DecryptOutcome::Deferred;
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
            Ok(Opened::Data) => DecryptOutcome::Data(n as u32),
            Ok(Opened::NeedInput) => DecryptOutcome::Nothing,
            Ok(Opened::Closed) => DecryptOutcome::Closed,
            Err(why) => DecryptOutcome::Failed(why),
        }
    }

    /// Encrypts as much of `pieces` as the outbox has room for, after its first `used` bytes. Returns how many bytes it
    /// then holds.
    pub fn seal<H: Host>(&mut self, host: &mut H, pieces: &[SendPiece], mut used: usize) -> Result<usize, String> {
        // Bytes of the next record that are already in the outbox.
        let mut gathered = 0;
        while self.outbox_len as usize - used >= SEAL_BYTES_MAX {
            let Some(piece) = pieces.get(self.piece) else { break };
            // Data is copied before it is encrypted in place: lent memory may change concurrently, the copy does not.
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
