//! TLS below a session: the session uses [`TlsWire`] like any [`Wire`], and the underlying wire carries records.
//!
//! The session requests bytes and is notified when they have arrived. Here they come from records: received into the
//! underlying input and decrypted from there; more records are received only when these are used up. Output of the
//! session is gathered and encrypted as far as the underlying output has room, repeatedly until all is sent.

use std::sync::Arc;

use braid_ring::{INPUT_BYTES, OUTPUT_BYTES, PartLimits, RemotePart, SEND_PIECES_MAX};
use rustls::client::UnbufferedClientConnection;

use super::dial::Target;
use super::session::Session;
use super::shared::TlsPeer;
use super::wire::Wire;
use crate::tls::{Opened, RECORD_DATA_MAX, RECORD_HEADER, SEAL_BYTES_MAX, Tls, copy};

/// Size of the buffer for the session's requests of one send, and for its handshake, in bytes.
const PLAIN_OUTPUT_BYTES: usize = 16 << 10;

/// The result that the session gets when its connection has failed (EPIPE).
const EPIPE_RESULT: i32 = -32;

/// What the session waits to receive.
enum PendingReceive {
    /// Any bytes, stored from this offset of its input.
    Input(usize),
    /// Exactly `len` bytes of a part's data.
    Data { part: RemotePart, at: u64, len: u64, filled: u64 },
}

/// One item of the session's output.
enum SendItem {
    /// A range of its output buffer.
    Own(usize, usize),
    Data(RemotePart),
}

impl SendItem {
    fn len(&self) -> usize {
        match self {
            SendItem::Own(from, to) => to - from,
            SendItem::Data(part) => part.len as usize,
        }
    }
}

/// The TLS state of one connection.
pub(super) struct Secure {
    tls_peer: TlsPeer,
    /// `None` until the server has agreed to TLS.
    tls: Option<Tls<UnbufferedClientConnection>>,
    /// The connection is closed or has failed.
    closed: bool,
    receiving: bool,
    sending: bool,
    /// The encrypted bytes of the underlying input are `from..to`.
    from: usize,
    to: usize,
    /// Decrypted data that did not fit its destination; unread from `decrypted_at`.
    decrypted: Vec<u8>,
    decrypted_at: usize,
    pending_receive: Option<PendingReceive>,
    /// The session's input and output buffers.
    input: Box<[u8]>,
    output: Box<[u8]>,
    gathered: Vec<SendItem>,
    /// The session waits for its send. `piece` and `piece_at` count what is encrypted: items, and bytes of the next.
    send_pending: bool,
    piece: usize,
    piece_at: usize,
}

impl Secure {
    pub(super) fn new(tls_peer: TlsPeer) -> Secure {
        Secure {
            tls_peer,
            tls: None,
            closed: true,
            receiving: false,
            sending: false,
            from: 0,
            to: 0,
            decrypted: Vec::with_capacity(RECORD_DATA_MAX),
            decrypted_at: 0,
            pending_receive: None,
            input: vec![0; INPUT_BYTES].into(),
            output: vec![0; PLAIN_OUTPUT_BYTES].into(),
            gathered: Vec::with_capacity(SEND_PIECES_MAX),
            send_pending: false,
            piece: 0,
            piece_at: 0,
        }
    }

    /// Calls the session, then continues receiving and sending.
    pub(super) fn drive<W: Wire>(
        &mut self,
        session: &mut Session,
        wire: &mut W,
        call: impl FnOnce(&mut Session, &mut TlsWire<'_, W>),
    ) {
        call(session, &mut TlsWire { wire, secure: self });
        self.advance(session, wire);
    }

    /// Handles the completion of a receive.
    pub(super) fn received<W: Wire>(&mut self, session: &mut Session, wire: &mut W, result: i32) {
        self.receiving = false;
        if result > 0 {
            self.to += result as usize;
        } else {
            self.closed = true;
        }
        self.advance(session, wire);
    }

    /// Handles the completion of a send.
    pub(super) fn sent<W: Wire>(&mut self, session: &mut Session, wire: &mut W, result: i32) {
        self.sending = false;
        self.closed |= result <= 0;
        self.advance(session, wire);
    }

    /// Receives and sends as far as possible, and notifies the session of completions.
    fn advance<W: Wire>(&mut self, session: &mut Session, wire: &mut W) {
        loop {
            self.send_some(wire);
            if self.send_pending && !self.sending && (self.closed || self.piece == self.gathered.len()) {
                self.send_pending = false;
                self.gathered.clear();
                let result = if self.closed { EPIPE_RESULT } else { 1 };
                session.sent(&mut TlsWire { wire, secure: self }, result);
                continue;
            }
            if self.pending_receive.is_none() || self.receiving {
                return;
            }
            let got = if self.closed { 0 } else { self.fill(wire) };
            if got > 0 || self.closed {
                self.pending_receive = None;
                session.received(&mut TlsWire { wire, secure: self }, got as i32);
                continue;
            }
            self.receive(wire);
            if self.receiving {
                // Send the alerts and handshake messages that the input has caused.
                return self.send_some(wire);
            }
        }
    }

    fn receive(&mut self, wire: &mut impl Wire) {
        if self.from > 0 {
            wire.move_input(self.from, self.to);
            (self.from, self.to) = (0, self.to - self.from);
        }
        self.receiving = self.to < INPUT_BYTES && wire.receive(self.to);
        self.closed |= !self.receiving;
    }

    /// Delivers data that the session waits for. Returns its length once that is enough, otherwise the bytes so far.
    fn fill(&mut self, wire: &mut impl Wire) -> usize {
        let mut n = 0;
        loop {
            match &mut self.pending_receive {
                None => return 0,
                Some(PendingReceive::Input(at)) => {
                    let place = &mut self.input[*at + n..];
                    let take = place.len().min(self.decrypted.len() - self.decrypted_at);
                    copy(&self.decrypted[self.decrypted_at..self.decrypted_at + take], &mut place[..take]);
                    self.decrypted_at += take;
                    n += take;
                    if take == place.len() {
                        return n;
                    }
                }
                Some(PendingReceive::Data { part, at, len, filled }) => {
                    let take = (*len - *filled).min((self.decrypted.len() - self.decrypted_at) as u64);
                    let from = self.decrypted_at;
                    wire.put_data(part, *at + *filled, &self.decrypted[from..from + take as usize]);
                    self.decrypted_at += take as usize;
                    *filled += take;
                    if filled == len {
                        return *len as usize;
                    }
                }
            }
            if !self.decrypt(wire) {
                return n;
            }
        }
    }

    /// Decrypts the next data into the empty buffer `decrypted`. Returns false if there is none.
    fn decrypt(&mut self, wire: &mut impl Wire) -> bool {
        self.decrypted.clear();
        self.decrypted_at = 0;
        let incoming = wire.input_mut(self.from, self.to);
        let Some(tls) = &mut self.tls else {
            let take = incoming.len().min(RECORD_DATA_MAX);
            self.decrypted.extend_from_slice(&incoming[..take]);
            self.from += take;
            return take > 0;
        };
        let decrypted = &mut self.decrypted;
        let (took, got) = tls.open(incoming, |data| decrypted.extend_from_slice(data));
        self.from += took;
        self.closed |= matches!(got, Ok(Opened::Closed) | Err(_));
        matches!(got, Ok(Opened::Data))
    }

    /// Encrypts and sends waiting output as far as there is room.
    fn send_some(&mut self, wire: &mut impl Wire) {
        if self.sending || self.closed {
            return;
        }
        let mut used = 0;
        if let Some(tls) = &mut self.tls {
            used = tls.wire.len().min(OUTPUT_BYTES);
            wire.output()[..used].copy_from_slice(&tls.wire[..used]);
            tls.wire.drain(..used);
        }
        match self.encrypt(wire, used) {
            Some(now) => used = now,
            None => self.closed = true,
        }
        if used > 0 {
            wire.gather(0, used);
            self.sending = wire.send();
            self.closed |= !self.sending;
        }
    }

    /// Encrypts the session's output. Returns how many bytes the underlying output then holds, or `None` if encryption
    /// failed.
    fn encrypt(&mut self, wire: &mut impl Wire, mut used: usize) -> Option<usize> {
        if self.tls.as_ref().is_some_and(|tls| tls.is_handshaking() || !tls.wire.is_empty()) {
            return Some(used);
        }
        while self.send_pending && self.piece < self.gathered.len() && OUTPUT_BYTES - used >= SEAL_BYTES_MAX {
            let mut len = 0;
            while let Some(piece) = self.gathered.get(self.piece)
                && len < RECORD_DATA_MAX
            {
                let take = (piece.len() - self.piece_at).min(RECORD_DATA_MAX - len);
                let to = used + RECORD_HEADER + len;
                match piece {
                    SendItem::Own(from, _) => {
                        let from = *from + self.piece_at;
                        wire.output()[to..to + take].copy_from_slice(&self.output[from..from + take]);
                    }
                    SendItem::Data(part) => wire.output_data(part, self.piece_at as u64, take, to),
                }
                len += take;
                self.piece_at += take;
                if self.piece_at == piece.len() {
                    (self.piece, self.piece_at) = (self.piece + 1, 0);
                }
            }
            let out = wire.output();
            used += match &mut self.tls {
                Some(tls) => tls.seal_in_place(&mut out[used..used + SEAL_BYTES_MAX], len).ok()?,
                None => {
                    out.copy_within(used + RECORD_HEADER..used + RECORD_HEADER + len, used);
                    len
                }
            };
        }
        Some(used)
    }
}

/// The wire that the session uses.
pub(super) struct TlsWire<'a, W: Wire> {
    wire: &'a mut W,
    secure: &'a mut Secure,
}

impl<W: Wire> Wire for TlsWire<'_, W> {
    fn now_ns(&self) -> u64 {
        self.wire.now_ns()
    }
    fn take(&mut self, limits: &PartLimits) -> Option<RemotePart> {
        self.wire.take(limits)
    }
    fn waiting_since_ns(&self) -> Option<u64> {
        self.wire.waiting_since_ns()
    }
    fn done(&mut self, part: &RemotePart, result: Result<(), i32>) {
        self.wire.done(part, result);
    }
    fn fail_waiting(&mut self, errno: i32) {
        self.wire.fail_waiting(errno);
    }
    fn give_up_reads(&mut self, now_ns: u64, limit_ns: u64) -> Option<u64> {
        self.wire.give_up_reads(now_ns, limit_ns)
    }
    fn dial(&mut self, target: &Target) -> bool {
        let secure = &mut *self.secure;
        // The last TLS messages of the previous connection may still be in flight.
        if secure.sending || secure.receiving || !self.wire.dial(target) {
            return false;
        }
        (secure.tls, secure.closed) = (None, false);
        (secure.from, secure.to, secure.decrypted_at) = (0, 0, 0);
        secure.decrypted.clear();
        true
    }
    fn close(&mut self) {
        self.secure.closed = true;
        self.wire.close();
    }
    fn input(&self, from: usize, to: usize) -> &[u8] {
        &self.secure.input[from..to]
    }
    fn input_mut(&mut self, from: usize, to: usize) -> &mut [u8] {
        &mut self.secure.input[from..to]
    }
    fn move_input(&mut self, from: usize, to: usize) {
        self.secure.input.copy_within(from..to, 0);
    }
    fn receive(&mut self, at: usize) -> bool {
        if !self.secure.closed {
            self.secure.pending_receive = Some(PendingReceive::Input(at));
        }
        !self.secure.closed
    }
    fn receive_data(&mut self, part: &RemotePart, at: u64, len: u64) -> u64 {
        if self.secure.closed {
            return 0;
        }
        self.secure.pending_receive = Some(PendingReceive::Data { part: *part, at, len, filled: 0 });
        len
    }
    fn copy_data(&mut self, part: &RemotePart, at: u64, from: usize, to: usize) {
        self.wire.put_data(part, at, &self.secure.input[from..to]);
    }
    fn put_data(&mut self, part: &RemotePart, at: u64, data: &[u8]) {
        self.wire.put_data(part, at, data);
    }
    fn output_data(&mut self, part: &RemotePart, at: u64, len: usize, to: usize) {
        self.wire.output_data(part, at, len, to);
    }
    fn output(&mut self) -> &mut [u8] {
        &mut self.secure.output
    }
    fn room(&self) -> usize {
        SEND_PIECES_MAX - self.secure.gathered.len()
    }
    fn gather(&mut self, from: usize, to: usize) {
        self.secure.gathered.push(SendItem::Own(from, to));
    }
    fn gather_data(&mut self, part: &RemotePart) {
        self.secure.gathered.push(SendItem::Data(*part));
    }
    fn send(&mut self) -> bool {
        let secure = &mut *self.secure;
        if secure.closed {
            secure.gathered.clear();
            return false;
        }
        (secure.send_pending, secure.piece, secure.piece_at) = (true, 0, 0);
        true
    }
    fn timer_at(&mut self, at_ns: u64) -> bool {
        self.wire.timer_at(at_ns)
    }
    fn begin_tls(&mut self) -> bool {
        let secure = &mut *self.secure;
        if secure.from != secure.to || secure.decrypted_at != secure.decrypted.len() {
            // Plaintext after the STARTTLS reply is not trusted.
            return false;
        }
        let Ok(mut tls) = Tls::client(Arc::clone(&secure.tls_peer.config), secure.tls_peer.name.clone()) else {
            return false;
        };
        // The client sends the first message of the handshake.
        let begun = tls.open(&mut [], |_| {}).1.is_ok();
        secure.tls = Some(tls);
        begun
    }
}
