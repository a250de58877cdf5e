//! TLS between a socket's bytes and the protocol's, for server and client: rustls, without I/O of its own.
//!
//! Records are decrypted and encrypted between buffers of the caller. rustls shakes hands, and does all of TLS 1.2; in
//! TLS 1.3 [`records`] takes its keys once the handshake is over, and allocates nothing for a record. What a peer can make
//! it hold is bounded: rustls refuses handshake messages over 64 KiB, renegotiation, more than 4 warnings and more than 32
//! changes of keys without data between them, `records` more than 32 of all that; what must be sent because of what came
//! is [`WIRE_BYTES_MAX`] at most.

mod records;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use records::Records;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ClientConfig, Error, ExtractedSecrets, ProtocolVersion, ServerConfig};

/// Most data in one record, in bytes.
pub(crate) const RECORD_DATA_MAX: usize = 16 << 10;
/// Longest record on the wire, with what any version and cipher adds, in bytes.
pub(crate) const RECORD_BYTES_MAX: usize = RECORD_DATA_MAX + 2048 + RECORD_HEADER;
/// Room that one record of ours may take, and a change of keys before it, in bytes.
pub(crate) const SEAL_BYTES_MAX: usize = RECORD_DATA_MAX + 512;
/// Before each record: type, version, length.
pub(crate) const RECORD_HEADER: usize = 5;
/// Most bytes of handshake and alerts that wait to be sent: a chain of certificates, and some more.
const WIRE_BYTES_MAX: usize = 128 << 10;

/// What rustls says when it gives a connection up.
type Secrets<D> = Result<(ExtractedSecrets, KernelConnection<D>), Error>;

/// One end's connection.
pub(crate) trait Side: Sized {
    /// What rustls keeps for this kind of end.
    type Data;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn is_handshaking(&self) -> bool;
    fn version(&self) -> Option<ProtocolVersion>;
    fn into_kernel(self) -> Secrets<Self::Data>;
    /// Keeps a ticket that the peer issued; `None`: this peer issues none.
    fn ticket(kernel: &mut KernelConnection<Self::Data>, body: &[u8]) -> Option<Result<(), Error>>;
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn is_handshaking(&self) -> bool {
        (**self).is_handshaking()
    }

    fn version(&self) -> Option<ProtocolVersion> {
        self.protocol_version()
    }

    fn into_kernel(self) -> Secrets<Self::Data> {
        self.dangerous_into_kernel_connection()
    }

    fn ticket(_: &mut KernelConnection<Self::Data>, _: &[u8]) -> Option<Result<(), Error>> {
        None
    }
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn is_handshaking(&self) -> bool {
        (**self).is_handshaking()
    }

    fn version(&self) -> Option<ProtocolVersion> {
        self.protocol_version()
    }

    fn into_kernel(self) -> Secrets<Self::Data> {
        self.dangerous_into_kernel_connection()
    }

    fn ticket(kernel: &mut KernelConnection<Self::Data>, body: &[u8]) -> Option<Result<(), Error>> {
        Some(kernel.handle_new_session_ticket(body))
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

/// Who makes and takes records.
enum Layer<S: Side> {
    Rustls(S),
    Own(Box<Records<S>>),
    /// Nobody, any more.
    None,
}

/// A TLS connection.
pub(crate) struct Tls<S: Side> {
    layer: Layer<S>,
    /// Bytes to be sent that are nobody's data, before all data that is encrypted after them.
    pub wire: Vec<u8>,
    /// It has failed: nothing can be encrypted any more.
    pub dead: bool,
    /// What is to be encrypted by rustls, which cannot do it where it lies.
    plain: Vec<u8>,
}

impl Tls<UnbufferedServerConnection> {
    /// # Errors
    /// The configuration does not hold together.
    pub fn server(mut config: Arc<ServerConfig>) -> Result<Self, Error> {
        // A connection gives its keys to who owns it only if this was set before it began. It is set here alone, on what
        // these connections use: `records` is who takes the keys, and they stay within this module.
        Arc::make_mut(&mut config).enable_secret_extraction = true;
        UnbufferedServerConnection::new(config).map(Tls::new)
    }
}

impl Tls<UnbufferedClientConnection> {
    /// # Errors
    /// The configuration does not hold together.
    pub fn client(mut config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        // As for a server.
        Arc::make_mut(&mut config).enable_secret_extraction = true;
        UnbufferedClientConnection::new(config, name).map(Tls::new)
    }
}

impl<S: Side> Tls<S> {
    fn new(side: S) -> Tls<S> {
        Tls { layer: Layer::Rustls(side), wire: Vec::new(), dead: false, plain: Vec::new() }
    }

    pub fn is_handshaking(&self) -> bool {
        matches!(&self.layer, Layer::Rustls(side) if side.is_handshaking())
    }

    /// The handshake is over and rustls has nothing in hand, sent or received: from here on TLS 1.3 is done without it.
    fn take_over(&mut self) -> Result<(), String> {
        match std::mem::replace(&mut self.layer, Layer::None) {
            Layer::Rustls(side) if !side.is_handshaking() && side.version() == Some(ProtocolVersion::TLSv1_3) => {
                self.layer = Layer::Own(Box::new(Records::take_over(side)?));
            }
            other => self.layer = other,
        }
        Ok(())
    }

    /// Takes from the front of `incoming`, which is overwritten, until there was one record of data, given to `sink`, or
    /// no whole record is left. Returns how many bytes it took.
    ///
    /// # Errors
    /// The peer broke the protocol, or is not to be trusted; `wire` holds what to tell it.
    pub fn open(&mut self, incoming: &mut [u8], mut sink: impl FnMut(&[u8])) -> (usize, Result<Got, String>) {
        if self.dead {
            return (0, Err("it has failed".to_owned()));
        }
        let mut took = 0;
        loop {
            let side = match &mut self.layer {
                Layer::Rustls(side) => side,
                Layer::Own(records) => {
                    let (n, got) = records.open(&mut incoming[took..], &mut self.wire, &mut sink);
                    self.dead |= got.is_err();
                    return (took + n, got);
                }
                Layer::None => return (took, Err("it has failed".to_owned())),
            };
            let UnbufferedStatus { mut discard, state } = side.process(&mut incoming[took..]);
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
                if let Ok(ConnectionState::EncodeTlsData(mut data)) = side.process(&mut incoming[took..]).state {
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
                Some(Got::Nothing) => {
                    if let Err(why) = self.take_over() {
                        self.dead = true;
                        return (took, Err(why));
                    }
                    return (took, Ok(Got::Nothing));
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
        copy(data, &mut out[RECORD_HEADER..RECORD_HEADER + data.len()]);
        self.seal_in_place(out, data.len())
    }

    /// As [`Tls::seal`], of `len` bytes that lie in `out` already, [`RECORD_HEADER`] behind its front.
    ///
    /// # Errors
    /// As [`Tls::seal`].
    pub fn seal_in_place(&mut self, out: &mut [u8], len: usize) -> Result<usize, String> {
        debug_assert!(len <= RECORD_DATA_MAX && out.len() >= SEAL_BYTES_MAX && self.wire.is_empty());
        match &mut self.layer {
            Layer::Own(records) if !self.dead => {
                let sealed = records.seal(out, len);
                self.dead |= sealed.is_err();
                sealed
            }
            _ => {
                let mut plain = std::mem::take(&mut self.plain);
                plain.clear();
                plain.extend_from_slice(&out[RECORD_HEADER..RECORD_HEADER + len]);
                let written = self.write(|traffic| traffic.encrypt(&plain, out));
                self.plain = plain;
                written
            }
        }
    }

    /// Puts what says that no more data will come into `wire`.
    pub fn say_goodbye(&mut self) {
        if let Layer::Own(records) = &mut self.layer {
            if !self.dead {
                self.dead |= records.say_goodbye(&mut self.wire).is_err();
            }
            return;
        }
        let mut bytes = [0; 256];
        if let Ok(n) = self.write(|traffic| traffic.queue_close_notify(&mut bytes)) {
            self.wire.extend_from_slice(&bytes[..n]);
        }
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut rustls::unbuffered::WriteTraffic<'_, S::Data>) -> Result<usize, EncryptError>,
    ) -> Result<usize, String> {
        let side = match &mut self.layer {
            Layer::Rustls(side) if !self.dead && !side.is_handshaking() => side,
            _ => return Err("nothing may be sent now".to_owned()),
        };
        // No part of a handshake's message is held by now (`open` sees to that), which would have to be shown here.
        let written = match side.process(&mut []).state {
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

/// Copies bytes between places that lie differently within a cache line, as those in records do. In one go, the system's
/// memcpy uses string instructions, which take twice as long for that on some processors.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    const PIECE_BYTES: usize = 512;
    assert_eq!(from.len(), to.len(), "as many bytes as there is room for");
    for (from, to) in from.chunks(PIECE_BYTES).zip(to.chunks_mut(PIECE_BYTES)) {
        to.copy_from_slice(from);
    }
}

/// Length of the record at the front, its header included, once that is all there.
fn record_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk::<RECORD_HEADER>()?;
    Some(RECORD_HEADER + usize::from(u16::from_be_bytes([header[3], header[4]])))
}

/// Whether a whole record lies at the front.
pub(crate) fn whole_record(bytes: &[u8]) -> bool {
    record_len(bytes).is_some_and(|len| bytes.len() >= len)
}
