//! TLS under a session: it sees a [`Wire`] as always; what goes over the real one are records.
//!
//! A session asks for bytes and is told later that they have come. Here they come out of records: received to the real input,
//! decrypted from there, and only when there are not enough the next are received. What it sends is gathered here, and encrypted as far as
//! there is room in the real output, again and again until all is sent.

use std::sync::Arc;

use braid_ring::{INPUT_BYTES, OUTPUT_BYTES, PartLimits, RemotePart, SEND_PIECES_MAX};
use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;

use super::dial::Target;
use super::session::Session;
use super::wire::Wire;
use crate::tls::{Got, RECORD_DATA_MAX, RECORD_HEADER, SEAL_BYTES_MAX, Tls, copy};

/// Bytes of a session's requests in one send, and of its greeting.
const PLAIN_OUTPUT_BYTES: usize = 16 << 10;

/// What a session is told when its connection is gone (EPIPE).
const BROKEN: i32 = -32;

/// What a disk's server has to show, and what is shown to it.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

/// What a session listens for.
enum Want {
    /// Anything, behind this byte of its input.
    Input(usize),
    /// So many bytes of a part's data.
    Data { part: RemotePart, at: u64, len: u64, filled: u64 },
}

/// One thing that a session sends.
enum Piece {
    /// A range of its output.
    Own(usize, usize),
    Data(RemotePart),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Own(from, to) => to - from,
            Piece::Data(part) => part.len as usize,
        }
    }
}

/// One connection's TLS.
pub(super) struct Secure {
    trust: Trust,
    /// None before the server has agreed to it.
    tls: Option<Tls<UnbufferedClientConnection>>,
    /// The connection is closed, or broken beyond use.
    over: bool,
    receiving: bool,
    sending: bool,
    /// Of the real input, what is not decrypted.
    from: usize,
    to: usize,
    /// Data that found no room, from `spare_at` on.
    spare: Vec<u8>,
    spare_at: usize,
    want: Option<Want>,
    /// The session's input and output.
    input: Box<[u8]>,
    output: Box<[u8]>,
    gathered: Vec<Piece>,
    /// The session waits for its send; so much of it is encrypted: pieces, and bytes of the next.
    asked: bool,
    piece: usize,
    piece_at: usize,
}

impl Secure {
    pub(super) fn new(trust: Trust) -> Secure {
        Secure {
            trust,
            tls: None,
            over: true,
            receiving: false,
            sending: false,
            from: 0,
            to: 0,
            spare: Vec::with_capacity(RECORD_DATA_MAX),
            spare_at: 0,
            want: None,
            input: vec![0; INPUT_BYTES].into(),
            output: vec![0; PLAIN_OUTPUT_BYTES].into(),
            gathered: Vec::with_capacity(SEND_PIECES_MAX),
            asked: false,
            piece: 0,
            piece_at: 0,
        }
    }

    /// Lets the session do something, and then what follows from it.
    pub(super) fn on<W: Wire>(
        &mut self,
        session: &mut Session,
        wire: &mut W,
        call: impl FnOnce(&mut Session, &mut Through<'_, W>),
    ) {
        call(session, &mut Through { wire, secure: self });
        self.go_on(session, wire);
    }

    /// A receive has ended.
    pub(super) fn received<W: Wire>(&mut self, session: &mut Session, wire: &mut W, result: i32) {
        self.receiving = false;
        if result > 0 {
            self.to += result as usize;
        } else {
            self.over = true;
        }
        self.go_on(session, wire);
    }

    /// A send has.
    pub(super) fn sent<W: Wire>(&mut self, session: &mut Session, wire: &mut W, result: i32) {
        self.sending = false;
        self.over |= result <= 0;
        self.go_on(session, wire);
    }

    /// Receives and sends what is left to, and tells the session of what is done.
    fn go_on<W: Wire>(&mut self, session: &mut Session, wire: &mut W) {
        loop {
            self.send_some(wire);
            if self.asked && !self.sending && (self.over || self.piece == self.gathered.len()) {
                self.asked = false;
                self.gathered.clear();
                let result = if self.over { BROKEN } else { 1 };
                session.sent(&mut Through { wire, secure: self }, result);
                continue;
            }
            if self.want.is_none() || self.receiving {
                return;
            }
            let got = if self.over { 0 } else { self.fill(wire) };
            if got > 0 || self.over {
                self.want = None;
                session.received(&mut Through { wire, secure: self }, got as i32);
                continue;
            }
            self.receive(wire);
            if self.receiving {
                // What TLS has to say itself, now that it has seen what came.
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
        self.over |= !self.receiving;
    }

    /// Gives the session what it listens for. Returns how many bytes, once that is enough.
    fn fill(&mut self, wire: &mut impl Wire) -> usize {
        let mut n = 0;
        loop {
            match &mut self.want {
                None => return 0,
                Some(Want::Input(at)) => {
                    let place = &mut self.input[*at + n..];
                    let take = place.len().min(self.spare.len() - self.spare_at);
                    copy(&self.spare[self.spare_at..self.spare_at + take], &mut place[..take]);
                    self.spare_at += take;
                    n += take;
                    if take == place.len() {
                        return n;
                    }
                }
                Some(Want::Data { part, at, len, filled }) => {
                    let take = (*len - *filled).min((self.spare.len() - self.spare_at) as u64);
                    let from = self.spare_at;
                    wire.put_data(part, *at + *filled, &self.spare[from..from + take as usize]);
                    self.spare_at += take as usize;
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

    /// Puts the next data into what is spare, which is empty. False: there are none.
    fn decrypt(&mut self, wire: &mut impl Wire) -> bool {
        self.spare.clear();
        self.spare_at = 0;
        let incoming = wire.input_mut(self.from, self.to);
        let Some(tls) = &mut self.tls else {
            let take = incoming.len().min(RECORD_DATA_MAX);
            self.spare.extend_from_slice(&incoming[..take]);
            self.from += take;
            return take > 0;
        };
        let spare = &mut self.spare;
        let (took, got) = tls.open(incoming, |data| spare.extend_from_slice(data));
        self.from += took;
        self.over |= matches!(got, Ok(Got::Closed) | Err(_));
        matches!(got, Ok(Got::Data))
    }

    /// Encrypts and sends what waits, as much as there is room for.
    fn send_some(&mut self, wire: &mut impl Wire) {
        if self.sending || self.over {
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
            None => self.over = true,
        }
        if used > 0 {
            wire.gather(0, used);
            self.sending = wire.send();
            self.over |= !self.sending;
        }
    }

    /// How many bytes the output holds then; none: nothing can be encrypted any more.
    fn encrypt(&mut self, wire: &mut impl Wire, mut used: usize) -> Option<usize> {
        if self.tls.as_ref().is_some_and(|tls| tls.is_handshaking() || !tls.wire.is_empty()) {
            return Some(used);
        }
        while self.asked && self.piece < self.gathered.len() && OUTPUT_BYTES - used >= SEAL_BYTES_MAX {
            let mut len = 0;
            while let Some(piece) = self.gathered.get(self.piece)
                && len < RECORD_DATA_MAX
            {
                let take = (piece.len() - self.piece_at).min(RECORD_DATA_MAX - len);
                let to = used + RECORD_HEADER + len;
                match piece {
                    Piece::Own(from, _) => {
                        let from = *from + self.piece_at;
                        wire.output()[to..to + take].copy_from_slice(&self.output[from..from + take]);
                    }
                    Piece::Data(part) => wire.output_data(part, self.piece_at as u64, take, to),
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

/// The wire that the session sees.
pub(super) struct Through<'a, W: Wire> {
    wire: &'a mut W,
    secure: &'a mut Secure,
}

impl<W: Wire> Wire for Through<'_, W> {
    fn now_ns(&self) -> u64 {
        self.wire.now_ns()
    }
    fn take(&mut self, cut: &PartLimits) -> Option<RemotePart> {
        self.wire.take(cut)
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
        // What TLS had to say on the connection before may be on its way yet.
        if secure.sending || secure.receiving || !self.wire.dial(target) {
            return false;
        }
        (secure.tls, secure.over) = (None, false);
        (secure.from, secure.to, secure.spare_at) = (0, 0, 0);
        secure.spare.clear();
        true
    }
    fn close(&mut self) {
        self.secure.over = true;
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
        if !self.secure.over {
            self.secure.want = Some(Want::Input(at));
        }
        !self.secure.over
    }
    fn receive_data(&mut self, part: &RemotePart, at: u64, len: u64) -> u64 {
        if self.secure.over {
            return 0;
        }
        self.secure.want = Some(Want::Data { part: *part, at, len, filled: 0 });
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
        self.secure.gathered.push(Piece::Own(from, to));
    }
    fn gather_data(&mut self, part: &RemotePart) {
        self.secure.gathered.push(Piece::Data(*part));
    }
    fn send(&mut self) -> bool {
        let secure = &mut *self.secure;
        if secure.over {
            secure.gathered.clear();
            return false;
        }
        (secure.asked, secure.piece, secure.piece_at) = (true, 0, 0);
        true
    }
    fn timer_at(&mut self, at_ns: u64) -> bool {
        self.wire.timer_at(at_ns)
    }
    fn begin_tls(&mut self) -> bool {
        let secure = &mut *self.secure;
        if secure.from != secure.to || secure.spare_at != secure.spare.len() {
            // Bytes in the clear behind the agreement are not the server's.
            return false;
        }
        let Ok(mut tls) = Tls::client(Arc::clone(&secure.trust.config), secure.trust.name.clone()) else {
            return false;
        };
        // The first message of the handshake is this side's.
        let begun = tls.open(&mut [], |_| {}).1.is_ok();
        secure.tls = Some(tls);
        begun
    }
}
