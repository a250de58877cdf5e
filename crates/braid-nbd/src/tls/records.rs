//! The record layer of TLS 1.3 after the handshake: the order of records, alerts and key updates (RFC 8446, 4.6.3, 5
//! and 6).
//!
//! rustls keeps the connection's secrets and derives the next ones. This module hands them to [`super::protection`],
//! which protects records with them. It decides which records are sent and what a received one means, and handles
//! neither ciphers nor nonces.

use rustls::kernel::KernelConnection;
use rustls::{Error, PeerMisbehaved, Tls13CipherSuite};

use super::protection::{DATA, ReceivingKey, SendingKey};
use super::{Opened, RECORD_DATA_MAX, RECORD_HEADER, Side, record_len};

/// Content types of records.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
/// Types of post-handshake messages.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// Maximum bytes after a record's header: data, padding, content type and tag.
const BODY_MAX: usize = RECORD_DATA_MAX + 256;
/// Maximum number of consecutive records without data: key updates, tickets, warnings, empty records.
const IDLE_RECORDS_MAX: u32 = 32;
/// Maximum length of a sent record without data.
const CONTROL_BYTES_MAX: usize = 64;
const MISPLACED_RECORD: &str = "a record of a kind that has no place here";

/// Alerts that are sent or recognised.
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

/// Why a connection fails, and the alert for the peer.
struct RecordError(Option<Alert>, String);

fn record_error<T>(alert: Alert, why: &str) -> Result<T, RecordError> {
    Err(RecordError(Some(alert), why.to_owned()))
}

/// Returns why a record that does not open ends the connection.
fn refused(error: Error) -> RecordError {
    let (alert, why) = match error {
        Error::DecryptError => (Alert::BadRecordMac, "a record was changed in transit, or is not a record"),
        Error::PeerSentOversizedRecord => (Alert::RecordOverflow, "a record holds too much"),
        Error::PeerMisbehaved(PeerMisbehaved::IllegalTlsInnerPlaintext) => {
            (Alert::UnexpectedMessage, "a record of no kind")
        }
        Error::PeerMisbehaved(PeerMisbehaved::IllegalMiddleboxChangeCipherSpec) => {
            (Alert::UnexpectedMessage, MISPLACED_RECORD)
        }
        other => return RecordError(Some(Alert::InternalError), other.to_string()),
    };
    RecordError(Some(alert), why.to_owned())
}

/// The record layer of a connection.
pub(super) struct Records<S: Side> {
    /// Holds the secrets that the next keys are derived from.
    kernel: Box<KernelConnection<S::Data>>,
    suite: &'static Tls13CipherSuite,
    rx: ReceivingKey,
    tx: SendingKey,
    /// Number of records after which the sending key changes.
    rekey_at: u64,
    idle_records: u32,
    /// A reply to a key update is queued for sending.
    key_update_queued: bool,
    closed: bool,
}

impl<S: Side> Records<S> {
    /// Takes over from rustls, which must have nothing left to send and must have passed on everything received.
    pub fn take_over(side: S) -> Result<Records<S>, String> {
        let (secrets, kernel) = side.into_kernel().map_err(|error| error.to_string())?;
        let suite = kernel.negotiated_cipher_suite().tls13().ok_or("not TLS 1.3")?;
        let limit = suite.common.confidentiality_limit;
        Ok(Records {
            kernel: Box::new(kernel),
            suite,
            rx: ReceivingKey::new(suite, secrets.rx)?,
            tx: SendingKey::new(secrets.tx, limit)?,
            rekey_at: limit / 2,
            idle_records: 0,
            key_update_queued: false,
            closed: false,
        })
    }

    /// Decrypts as [`super::Tls::open`] does. On an error, `wire` holds the alert.
    pub fn open(
        &mut self,
        incoming: &mut [u8],
        wire: &mut Vec<u8>,
        sink: &mut impl FnMut(&[u8]),
    ) -> (usize, Result<Opened, String>) {
        let mut took = 0;
        loop {
            match self.open_one(&mut incoming[took..], wire, sink) {
                Ok((n, Some(got))) => return (took + n, Ok(got)),
                Ok((n, None)) => took += n,
                Err(RecordError(alert, why)) => {
                    if let Some(alert) = alert {
                        let _ = self.send_control(ALERT, &[2, alert as u8], wire);
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
    ) -> Result<(usize, Option<Opened>), RecordError> {
        if self.closed {
            return Ok((incoming.len(), Some(Opened::Closed)));
        }
        let Some(len) = record_len(incoming) else { return Ok((0, Some(Opened::NeedInput))) };
        // Check before waiting for the rest.
        if incoming[0] != DATA {
            return record_error(Alert::UnexpectedMessage, "a record that is not encrypted, after the handshake");
        }
        if len > RECORD_HEADER + BODY_MAX {
            return record_error(Alert::RecordOverflow, "a record is too long");
        }
        let Some(record) = incoming.get_mut(..len) else { return Ok((0, Some(Opened::NeedInput))) };
        let (kind, inner) = self.rx.open(record).map_err(refused)?;
        if kind == DATA && !inner.is_empty() {
            self.idle_records = 0;
            sink(inner);
            return Ok((len, Some(Opened::Data)));
        }
        self.idle_records += 1;
        if self.idle_records > IDLE_RECORDS_MAX {
            return record_error(Alert::UnexpectedMessage, "too many records without data");
        }
        match kind {
            DATA => {}
            ALERT => {
                let &[_, alert] = inner else { return record_error(Alert::DecodeError, "an alert of another length") };
                if alert == Alert::CloseNotify as u8 {
                    self.closed = true;
                } else if alert != Alert::UserCanceled as u8 {
                    // RFC 8446, 6: any other alert ends the connection, whatever level it claims.
                    return Err(RecordError(None, format!("received the alert {}", name(alert))));
                }
            }
            HANDSHAKE => {
                // Borrowed from `incoming`, not from `self`.
                let mut messages = inner;
                if messages.is_empty() {
                    return record_error(Alert::UnexpectedMessage, "an empty record of the handshake");
                }
                while let Some((kind, body, rest)) = message(messages) {
                    messages = rest;
                    self.handshake(kind, body, rest.is_empty(), wire)?;
                }
                if !messages.is_empty() {
                    return record_error(
                        Alert::UnexpectedMessage,
                        "a message of the handshake in parts, after the handshake",
                    );
                }
            }
            _ => return record_error(Alert::UnexpectedMessage, MISPLACED_RECORD),
        }
        Ok((len, None))
    }

    fn handshake(&mut self, kind: u8, body: &[u8], last: bool, wire: &mut Vec<u8>) -> Result<(), RecordError> {
        let internal = |why: String| RecordError(Some(Alert::InternalError), why);
        match (kind, body) {
            (KEY_UPDATE, _) if !last => record_error(Alert::UnexpectedMessage, "a change of keys within a record"),
            (KEY_UPDATE, &[wanted @ (0 | 1)]) => {
                let next = self.kernel.update_rx_secret().map_err(|error| internal(error.to_string()))?;
                self.rx = ReceivingKey::new(self.suite, next).map_err(internal)?;
                // One reply answers all updates requested before it could be sent.
                self.key_update_queued &= !wire.is_empty();
                if wanted == 1 && !self.key_update_queued {
                    self.key_update_queued = true;
                    let mut record = [0; CONTROL_BYTES_MAX];
                    let n = self.change_key(&mut record).map_err(internal)?;
                    wire.extend_from_slice(&record[..n]);
                }
                Ok(())
            }
            (KEY_UPDATE, &[_]) => {
                record_error(Alert::IllegalParameter, "a key update whose request is neither 0 nor 1")
            }
            (KEY_UPDATE, _) => record_error(Alert::DecodeError, "a change of keys of another length"),
            (NEW_SESSION_TICKET, _) => match S::ticket(&mut self.kernel, body) {
                Some(Ok(())) => Ok(()),
                Some(Err(error)) => Err(RecordError(Some(Alert::DecodeError), error.to_string())),
                None => record_error(Alert::UnexpectedMessage, "a client does not issue tickets"),
            },
            _ => record_error(Alert::UnexpectedMessage, "a message that has no place after the handshake"),
        }
    }

    /// Encrypts as [`super::Tls::seal`] does, `len` bytes after the space for the header.
    pub fn seal(&mut self, out: &mut [u8], len: usize) -> Result<usize, String> {
        let mut used = self.tx.seal(DATA, out, len)?;
        if self.tx.sequence() >= self.rekey_at {
            used += self.change_key(&mut out[used..])?;
        }
        Ok(used)
    }

    /// Writes a key update and changes the sending key.
    fn change_key(&mut self, out: &mut [u8]) -> Result<usize, String> {
        let message = [KEY_UPDATE, 0, 0, 1, 0];
        out[RECORD_HEADER..RECORD_HEADER + message.len()].copy_from_slice(&message);
        let used = self.tx.seal(HANDSHAKE, out, message.len())?;
        self.tx = self.next_sending_key()?;
        Ok(used)
    }

    fn next_sending_key(&mut self) -> Result<SendingKey, String> {
        let next = self.kernel.update_tx_secret().map_err(|error| error.to_string())?;
        SendingKey::new(next, self.suite.common.confidentiality_limit)
    }

    fn send_control(&mut self, kind: u8, what: &[u8], wire: &mut Vec<u8>) -> Result<(), String> {
        let mut record = [0; CONTROL_BYTES_MAX];
        record[RECORD_HEADER..RECORD_HEADER + what.len()].copy_from_slice(what);
        let used = self.tx.seal(kind, &mut record, what.len())?;
        wire.extend_from_slice(&record[..used]);
        Ok(())
    }

    /// Appends a close_notify alert to `wire`.
    pub fn queue_close_notify(&mut self, wire: &mut Vec<u8>) -> Result<(), String> {
        self.send_control(ALERT, &[1, Alert::CloseNotify as u8], wire)
    }

    /// Returns a record with this content: data, content type, padding.
    #[cfg(test)]
    pub fn forge(&mut self, inner: &[u8]) -> Vec<u8> {
        self.tx.forge(inner)
    }

    /// Changes the sending key, as if a forged record had announced it.
    #[cfg(test)]
    pub fn next_tx(&mut self) {
        self.tx = self.next_sending_key().expect("a known cipher");
    }

    #[cfg(test)]
    pub fn set_rekey_at(&mut self, records: u64) {
        self.rekey_at = records;
    }
}

/// Returns the type and body of the first handshake message and the bytes after it. `None`: the message is incomplete.
fn message(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[kind, a, b, c], rest) = bytes.split_first_chunk()?;
    let (body, rest) = rest.split_at_checked(u32::from_be_bytes([0, a, b, c]) as usize)?;
    Some((kind, body, rest))
}

fn name(alert: u8) -> String {
    format!("{:?}", rustls::AlertDescription::from(alert))
}
