//! TLS between a socket's bytes and the protocol's, for server and client: rustls, without I/O of its own.
//!
//! Records are decrypted and encrypted between buffers of the caller. What a peer can make it hold is bounded: rustls
//! refuses handshake messages over 64 KiB, renegotiation, more than 4 warnings and more than 32 changes of keys without
//! data between them; what must be sent because of what came is [`WIRE_BYTES_MAX`] at most.

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

/// Most data in one record, in bytes.
pub(crate) const RECORD_DATA_MAX: usize = 16 << 10;
/// Longest record on the wire, with what any version and cipher adds, in bytes.
pub(crate) const RECORD_BYTES_MAX: usize = RECORD_DATA_MAX + 2048 + RECORD_HEADER;
/// Room that one record of ours may take, and a change of keys before it, in bytes.
pub(crate) const SEAL_BYTES_MAX: usize = RECORD_DATA_MAX + 512;
/// Before each record: type, version, length.
const RECORD_HEADER: usize = 5;
/// Most bytes of handshake and alerts that wait to be sent: a chain of certificates, and some more.
const WIRE_BYTES_MAX: usize = 128 << 10;

/// One end's connection.
pub(crate) trait Side {
    /// What rustls keeps for this kind of end.
    type Data;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn is_handshaking(&self) -> bool;
}

impl Side for UnbufferedServerConnection {
    type Data = rustls::server::ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn is_handshaking(&self) -> bool {
        (**self).is_handshaking()
    }
}

impl Side for UnbufferedClientConnection {
    type Data = rustls::client::ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn is_handshaking(&self) -> bool {
        (**self).is_handshaking()
    }
}

/// What came out of the received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Got {
    /// Data, which was given away.
    Data,
    /// Nothing, before more bytes are there.
    Nothing,
    /// The peer said that no more will come.
    Closed,
}

/// A TLS connection.
pub(crate) struct Tls<S> {
    side: S,
    /// Bytes to be sent that are nobody's data, before all data that is encrypted after them.
    pub wire: Vec<u8>,
    /// It has failed: nothing can be encrypted any more.
    pub dead: bool,
}

impl<S: Side> Tls<S> {
    pub fn new(side: S) -> Tls<S> {
        Tls { side, wire: Vec::new(), dead: false }
    }

    pub fn is_handshaking(&self) -> bool {
        self.side.is_handshaking()
    }

    /// Takes from the front of `incoming`, which is overwritten, until there was one record of data, given to `sink`, or
    /// no whole record is left. Returns how many bytes it took.
    ///
    /// # Errors
    /// The peer broke the protocol, or is not to be trusted; `wire` holds what to tell it.
    pub fn open(&mut self, incoming: &mut [u8], mut sink: impl FnMut(&[u8])) -> (usize, Result<Got, String>) {
        let mut took = 0;
        loop {
            let UnbufferedStatus { mut discard, state } = self.side.process(&mut incoming[took..]);
            let mut failed = None;
            let got = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        match record {
                            Ok(record) => {
                                sink(record.payload);
                                discard += record.discard;
                            }
                            Err(error) => failed = Some(error),
                        }
                    }
                    Some(Got::Data)
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(&mut self.wire, |out| data.encode(out));
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => Some(Got::Nothing),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Some(Got::Closed),
                Ok(_) => {
                    self.dead = true;
                    return (took, Err("the client sent data before it was known".to_owned()));
                }
                Err(error) => {
                    failed = Some(error);
                    None
                }
            };
            took += discard;
            if let Some(error) = failed {
                self.dead = true;
                // The alert that tells the peer, if there is one, comes before anything is looked at again.
                if let Ok(ConnectionState::EncodeTlsData(mut data)) = self.side.process(&mut incoming[took..]).state {
                    encode(&mut self.wire, |out| data.encode(out));
                }
                return (took, Err(error.to_string()));
            }
            if self.wire.len() > WIRE_BYTES_MAX {
                self.dead = true;
                return (took, Err("too much to answer".to_owned()));
            }
            match got {
                Some(Got::Nothing) if !self.is_handshaking() && whole_record(&incoming[took..]) => {
                    // It keeps part of a message of the handshake there, which nobody sends in parts by now; and nothing
                    // could be encrypted meanwhile.
                    self.dead = true;
                    return (took, Err("a message of the handshake in parts, after the handshake".to_owned()));
                }
                Some(got) => return (took, Ok(got)),
                None => {}
            }
        }
    }

    /// Encrypts `data`, at most [`RECORD_DATA_MAX`] bytes, to the front of `out`, which has [`SEAL_BYTES_MAX`]. Returns
    /// how many bytes that took. The handshake is over, and `wire` is empty.
    ///
    /// # Errors
    /// The connection is closed, or its keys are used up.
    pub fn seal(&mut self, data: &[u8], out: &mut [u8]) -> Result<usize, String> {
        self.write(|traffic| traffic.encrypt(data, out))
    }

    /// Puts what says that no more data will come into `wire`.
    pub fn say_goodbye(&mut self) {
        let mut bytes = [0; 256];
        if let Ok(n) = self.write(|traffic| traffic.queue_close_notify(&mut bytes)) {
            self.wire.extend_from_slice(&bytes[..n]);
        }
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut rustls::unbuffered::WriteTraffic<'_, S::Data>) -> Result<usize, EncryptError>,
    ) -> Result<usize, String> {
        if self.dead || self.is_handshaking() {
            return Err("nothing may be sent now".to_owned());
        }
        // No part of a handshake's message is held by now (`open` sees to that), which would have to be shown here.
        let written = match self.side.process(&mut []).state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => write(&mut traffic).map_err(|error| error.to_string()),
            Ok(ConnectionState::TransmitTlsData(mut data)) => match data.may_encrypt_app_data() {
                Some(mut traffic) => write(&mut traffic).map_err(|error| error.to_string()),
                None => Err("nothing may be sent yet".to_owned()),
            },
            Ok(state) => Err(format!("nothing may be sent now: {state:?}")),
            Err(error) => Err(error.to_string()),
        };
        self.dead |= written.is_err();
        written
    }
}

/// Appends what `encode` yields, with as much room as it says it needs.
fn encode(wire: &mut Vec<u8>, mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>) {
    let start = wire.len();
    let mut room = 4096;
    loop {
        wire.resize(start + room, 0);
        match encode(&mut wire[start..]) {
            Ok(n) => return wire.truncate(start + n),
            Err(EncodeError::InsufficientSize(needs)) => room = needs.required_size,
            Err(EncodeError::AlreadyEncoded) => return wire.truncate(start),
        }
    }
}

/// Whether a whole record lies at the front.
pub(crate) fn whole_record(bytes: &[u8]) -> bool {
    bytes.len() >= RECORD_HEADER && bytes.len() >= RECORD_HEADER + usize::from(u16::from_be_bytes([bytes[3], bytes[4]]))
}
