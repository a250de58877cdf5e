//! The record layer of TLS 1.3, once the handshake is over: data is encrypted and decrypted where it lies.
//!
//! rustls keeps the connection's secrets and derives the next ones; here is what it would do with them, without its
//! copies and allocations (RFC 8446, 4.6.3, 5 and 6). Keys are ring's. What was extracted is wiped when it was used; what
//! ring makes of a key is not, as in rustls itself.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets as Secrets;
use rustls::kernel::KernelConnection;

use super::{Got, RECORD_DATA_MAX, RECORD_HEADER, Side, record_len};

/// Kinds of what is in a record.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
/// Messages of the handshake that come after it.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// Bytes that authenticate a record: as many in every cipher.
const TAG: usize = 16;
/// Most bytes behind a record's header: data, what pads it, its kind and its tag.
const BODY_MAX: usize = RECORD_DATA_MAX + 256;
/// Records without data between two with data: what changes keys, tickets, warnings, empty ones.
const IDLE_RECORDS_MAX: u32 = 32;
/// Most bytes of a record of ours that is nobody's data.
const CONTROL_BYTES_MAX: usize = 64;

/// What a peer is told when it breaks the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Alert {
    CloseNotify = 0,
    UnexpectedMessage = 10,
    BadRecordMac = 20,
    RecordOverflow = 22,
    IllegalParameter = 47,
    DecodeError = 50,
    InternalError = 80,
    UserCanceled = 90,
}

/// Why a connection ends, and what the peer is told of it.
struct Broken(Option<Alert>, String);

fn broken<T>(alert: Alert, why: &str) -> Result<T, Broken> {
    Err(Broken(Some(alert), why.to_owned()))
}

/// One direction's key, and how many records were made with it.
struct Half {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl Half {
    fn new((sequence, secrets): (u64, Secrets)) -> Result<Half, String> {
        let (algorithm, key, iv) = match &secrets {
            Secrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            Secrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            Secrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err("a cipher that is not known here".to_owned()),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| "a key of another length")?;
        let iv = iv.as_ref().try_into().map_err(|_| "a nonce of another length")?;
        Ok(Half { key: LessSafeKey::new(key), iv, sequence })
    }

    /// The next record's nonce. None is used twice: the number goes up, and the key changes long before it is used up.
    fn nonce(&mut self) -> Option<Nonce> {
        let number = self.sequence;
        self.sequence = number.checked_add(1)?;
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        Some(Nonce::assume_unique_for_key(nonce))
    }

    /// Makes a record of the `len` bytes that lie behind the room for its header; returns its length.
    fn seal(&mut self, kind: u8, out: &mut [u8], len: usize) -> Result<usize, String> {
        let whole = RECORD_HEADER + len + 1 + TAG;
        let body = (len + 1 + TAG) as u16;
        let header = [DATA, 3, 3, (body >> 8) as u8, body as u8];
        let nonce = self.nonce().ok_or("the key is used up")?;
        out[..RECORD_HEADER].copy_from_slice(&header);
        out[RECORD_HEADER + len] = kind;
        let (plain, tag_at) = out[RECORD_HEADER..whole].split_at_mut(len + 1);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(header), plain);
        tag_at.copy_from_slice(tag.map_err(|_| "it cannot be encrypted")?.as_ref());
        Ok(whole)
    }

    /// Decrypts a whole record where it lies. Returns the kind of what is in it, and that.
    fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<(u8, &'a [u8]), Broken> {
        let (header, body) = record.split_at_mut(RECORD_HEADER);
        // The length is that which was sent: a record is taken whole.
        let header: [u8; RECORD_HEADER] = std::array::from_fn(|at| header[at]);
        let Some(nonce) = self.nonce() else { return broken(Alert::InternalError, "the key is used up") };
        let Ok(inner) = self.key.open_in_place(nonce, Aad::from(header), body) else {
            return broken(Alert::BadRecordMac, "a record was changed on its way, or is none");
        };
        if inner.len() > RECORD_DATA_MAX + 1 {
            return broken(Alert::RecordOverflow, "a record holds too much");
        }
        // Zeroes behind the kind pad it.
        match inner.iter().rposition(|&byte| byte != 0) {
            Some(at) => Ok((inner[at], &inner[..at])),
            None => broken(Alert::UnexpectedMessage, "a record of no kind"),
        }
    }
}

/// A connection's records.
pub(super) struct Records<S: Side> {
    /// Knows the secrets that the next keys come from.
    kernel: Box<KernelConnection<S::Data>>,
    rx: Half,
    tx: Half,
    /// So many records are sent with one key.
    rekey_at: u64,
    idle: u32,
    /// The answer to a change of keys waits to be sent.
    answered: bool,
    closed: bool,
}

impl<S: Side> Records<S> {
    /// Takes over from rustls, which has nothing left to send and has taken nothing in that it did not hand out.
    pub fn take_over(side: S) -> Result<Records<S>, String> {
        let (secrets, kernel) = side.into_kernel().map_err(|error| error.to_string())?;
        let suite = kernel.negotiated_cipher_suite();
        let limit = suite.tls13().ok_or("not TLS 1.3")?.common.confidentiality_limit;
        Ok(Records {
            kernel: Box::new(kernel),
            rx: Half::new(secrets.rx)?,
            tx: Half::new(secrets.tx)?,
            rekey_at: limit / 2,
            idle: 0,
            answered: false,
            closed: false,
        })
    }

    /// As [`super::Tls::open`]; on an error it has told the peer, in `wire`.
    pub fn open(
        &mut self,
        incoming: &mut [u8],
        wire: &mut Vec<u8>,
        sink: &mut impl FnMut(&[u8]),
    ) -> (usize, Result<Got, String>) {
        let mut took = 0;
        loop {
            match self.open_one(&mut incoming[took..], wire, sink) {
                Ok((n, Some(got))) => return (took + n, Ok(got)),
                Ok((n, None)) => took += n,
                Err(Broken(alert, why)) => {
                    if let Some(alert) = alert {
                        let _ = self.say(ALERT, &[2, alert as u8], wire);
                    }
                    return (took, Err(why));
                }
            }
        }
    }

    fn open_one(
        &mut self,
        incoming: &mut [u8],
        wire: &mut Vec<u8>,
        sink: &mut impl FnMut(&[u8]),
    ) -> Result<(usize, Option<Got>), Broken> {
        if self.closed {
            return Ok((incoming.len(), Some(Got::Closed)));
        }
        let Some(len) = record_len(incoming) else { return Ok((0, Some(Got::Nothing))) };
        // Before it is waited for.
        if incoming[0] != DATA {
            return broken(Alert::UnexpectedMessage, "a record that is not encrypted, after the handshake");
        }
        if len > RECORD_HEADER + BODY_MAX {
            return broken(Alert::RecordOverflow, "a record is too long");
        }
        let Some(record) = incoming.get_mut(..len) else { return Ok((0, Some(Got::Nothing))) };
        let (kind, inner) = self.rx.open(record)?;
        if kind == DATA && !inner.is_empty() {
            self.idle = 0;
            sink(inner);
            return Ok((len, Some(Got::Data)));
        }
        self.idle += 1;
        if self.idle > IDLE_RECORDS_MAX {
            return broken(Alert::UnexpectedMessage, "too many records without data");
        }
        match kind {
            DATA => {}
            ALERT => {
                let &[_, alert] = inner else { return broken(Alert::DecodeError, "an alert of another length") };
                if alert == Alert::CloseNotify as u8 {
                    self.closed = true;
                } else if alert != Alert::UserCanceled as u8 {
                    // RFC 8446, 6: whatever level it claims, it is the end.
                    return Err(Broken(None, format!("received the alert {}", name(alert))));
                }
            }
            HANDSHAKE => {
                // Borrowed from `incoming`, and no part of `self`.
                let mut messages = inner;
                if messages.is_empty() {
                    return broken(Alert::UnexpectedMessage, "an empty record of the handshake");
                }
                while let Some((kind, body, rest)) = message(messages) {
                    messages = rest;
                    self.handshake(kind, body, rest.is_empty(), wire)?;
                }
                if !messages.is_empty() {
                    return broken(
                        Alert::UnexpectedMessage,
                        "a message of the handshake in parts, after the handshake",
                    );
                }
            }
            _ => return broken(Alert::UnexpectedMessage, "a record of a kind that has no place here"),
        }
        Ok((len, None))
    }

    fn handshake(&mut self, kind: u8, body: &[u8], last: bool, wire: &mut Vec<u8>) -> Result<(), Broken> {
        let internal = |why: String| Broken(Some(Alert::InternalError), why);
        match (kind, body) {
            (KEY_UPDATE, _) if !last => broken(Alert::UnexpectedMessage, "a change of keys within a record"),
            (KEY_UPDATE, &[wanted @ (0 | 1)]) => {
                let next = self.kernel.update_rx_secret().map_err(|error| internal(error.to_string()))?;
                self.rx = Half::new(next).map_err(internal)?;
                // One answer is enough for all that were asked for while it could not be sent.
                self.answered &= !wire.is_empty();
                if wanted == 1 && !self.answered {
                    self.answered = true;
                    let mut record = [0; CONTROL_BYTES_MAX];
                    let n = self.change_key(&mut record).map_err(internal)?;
                    wire.extend_from_slice(&record[..n]);
                }
                Ok(())
            }
            (KEY_UPDATE, &[_]) => broken(Alert::IllegalParameter, "a change of keys that is neither asked for nor not"),
            (KEY_UPDATE, _) => broken(Alert::DecodeError, "a change of keys of another length"),
            (NEW_SESSION_TICKET, _) => match S::ticket(&mut self.kernel, body) {
                Some(Ok(())) => Ok(()),
                Some(Err(error)) => Err(Broken(Some(Alert::DecodeError), error.to_string())),
                None => broken(Alert::UnexpectedMessage, "a client does not issue tickets"),
            },
            _ => broken(Alert::UnexpectedMessage, "a message that has no place after the handshake"),
        }
    }

    /// As [`super::Tls::seal`], of `len` bytes that lie behind the room for the header.
    pub fn seal(&mut self, out: &mut [u8], len: usize) -> Result<usize, String> {
        let mut used = self.tx.seal(DATA, out, len)?;
        if self.tx.sequence >= self.rekey_at {
            used += self.change_key(&mut out[used..])?;
        }
        Ok(used)
    }

    /// Says that the next record has the next key.
    fn change_key(&mut self, out: &mut [u8]) -> Result<usize, String> {
        let message = [KEY_UPDATE, 0, 0, 1, 0];
        out[RECORD_HEADER..RECORD_HEADER + message.len()].copy_from_slice(&message);
        let used = self.tx.seal(HANDSHAKE, out, message.len())?;
        self.tx = Half::new(self.kernel.update_tx_secret().map_err(|error| error.to_string())?)?;
        Ok(used)
    }

    fn say(&mut self, kind: u8, what: &[u8], wire: &mut Vec<u8>) -> Result<(), String> {
        let mut record = [0; CONTROL_BYTES_MAX];
        record[RECORD_HEADER..RECORD_HEADER + what.len()].copy_from_slice(what);
        let used = self.tx.seal(kind, &mut record, what.len())?;
        wire.extend_from_slice(&record[..used]);
        Ok(())
    }

    /// Puts what says that no more data will come into `wire`.
    pub fn say_goodbye(&mut self, wire: &mut Vec<u8>) -> Result<(), String> {
        self.say(ALERT, &[1, Alert::CloseNotify as u8], wire)
    }

    /// A record of these bytes: what is in it, its kind, what pads it.
    #[cfg(test)]
    pub fn forge(&mut self, inner: &[u8]) -> Vec<u8> {
        let (kind, inside) = inner.split_last().expect("at least a kind");
        let mut record = vec![0; RECORD_HEADER];
        record.extend_from_slice(inside);
        record.resize(RECORD_HEADER + inner.len() + TAG, 0);
        self.tx.seal(*kind, &mut record, inside.len()).expect("it can be sealed");
        record
    }

    /// The next key, as if a forged record had said so.
    #[cfg(test)]
    pub fn next_tx(&mut self) {
        self.tx = Half::new(self.kernel.update_tx_secret().expect("TLS 1.3")).expect("a known cipher");
    }

    #[cfg(test)]
    pub fn set_rekey_at(&mut self, records: u64) {
        self.rekey_at = records;
    }
}

/// The first message: its kind, what it says, and what follows it. `None`: it is not all there.
fn message(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[kind, a, b, c], rest) = bytes.split_first_chunk()?;
    let (body, rest) = rest.split_at_checked(u32::from_be_bytes([0, a, b, c]) as usize)?;
    Some((kind, body, rest))
}

fn name(alert: u8) -> String {
    format!("{:?}", rustls::AlertDescription::from(alert))
}
