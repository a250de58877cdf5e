//! TLS for server and client on rustls, sans-I/O.
//!
//! Records are decrypted and encrypted between the caller's buffers. rustls performs the handshake, and all of TLS 1.2.
//! In TLS 1.3, [`records`] takes over the keys after the handshake and allocates nothing per record. It protects sent
//! records with [`protection`], the only hand-written cryptography.
//!
//! The memory that a peer can make a connection hold is bounded. rustls refuses handshake messages over 64 KiB,
//! renegotiation, and more than 4 warnings or 32 key changes without data in between. [`records`] refuses more than 32
//! consecutive records without data. Replies that a peer provokes are at most [`WIRE_BYTES_MAX`].

pub(crate) mod protection;
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

/// Maximum data of one record in bytes.
pub(crate) const RECORD_DATA_MAX: usize = 16 << 10;
/// Maximum length of a received record in bytes, with the overhead of any version and cipher.
pub(crate) const RECORD_BYTES_MAX: usize = RECORD_DATA_MAX + 2048 + RECORD_HEADER;
/// Space for one sent record and a key change in bytes.
pub(crate) const SEAL_BYTES_MAX: usize = RECORD_DATA_MAX + 512;
/// Length of a record header: type, version, length.
pub(crate) const RECORD_HEADER: usize = 5;
/// Maximum unsent bytes of handshake messages and alerts: a certificate chain and some more.
const WIRE_BYTES_MAX: usize = 128 << 10;

/// The result of taking over a connection from rustls.
type Secrets<D> = Result<(ExtractedSecrets, KernelConnection<D>), Error>;

/// One side's rustls connection, client or server.
pub(crate) trait Side: Sized {
    /// The data that rustls keeps for this side.
    type Data;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn is_handshaking(&self) -> bool;
    fn version(&self) -> Option<ProtocolVersion>;
    fn into_kernel(self) -> Secrets<Self::Data>;
    /// Stores a session ticket of the peer. Returns `None` if this peer must not issue tickets.
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

/// The result of decrypting received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opened {
    /// Data was passed to the sink.
    Data,
    /// More bytes are needed.
    NeedInput,
    /// The peer has closed its sending side.
    Closed,
}

/// The record layer.
enum Layer<S: Side> {
    Rustls(S),
    Own(Box<Records<S>>),
    /// None: the connection failed during the takeover.
    None,
}

/// A TLS connection.
pub(crate) struct Tls<S: Side> {
    layer: Layer<S>,
    /// Handshake messages and alerts to be sent before any data that is encrypted later.
    pub wire: Vec<u8>,
    /// The connection has failed: nothing can be encrypted any more.
    pub dead: bool,
    /// Plaintext to be encrypted by rustls, which cannot encrypt in place.
    plain: Vec<u8>,
}

impl Tls<UnbufferedServerConnection> {
    /// Returns the server side of a connection.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn server(mut config: Arc<ServerConfig>) -> Result<Self, Error> {
        // rustls hands out a connection's keys only if this was set before the connection began. It is set here only,
        // for these connections: `records` takes the keys, and they stay within this module.
        Arc::make_mut(&mut config).enable_secret_extraction = true;
        UnbufferedServerConnection::new(config).map(Tls::new)
    }
}

impl Tls<UnbufferedClientConnection> {
    /// Returns the client side of a connection.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn client(mut config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        // As in `server`.
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

    /// Takes over the record layer after the handshake, once rustls holds no unprocessed or unsent data. Applies to TLS
    /// 1.3 only.
    fn take_over(&mut self) -> Result<(), String> {
        match std::mem::replace(&mut self.layer, Layer::None) {
            Layer::Rustls(side) if !side.is_handshaking() && side.version() == Some(ProtocolVersion::TLSv1_3) => {
                self.layer = Layer::Own(Box::new(Records::take_over(side)?));
            }
            other => self.layer = other,
        }
        Ok(())
    }

    /// Decrypts from the front of `incoming`, which is overwritten, until one data record was passed to `sink` or no
    /// complete record is left. Returns how many bytes it took.
    ///
    /// # Errors
    /// The peer violated the protocol or is not trusted. `wire` holds the alert for it.
    pub fn open(&mut self, incoming: &mut [u8], mut sink: impl FnMut(&[u8])) -> (usize, Result<Opened, String>) {
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
                    Some(Opened::Data)
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(&mut self.wire, |out| data.encode(out));
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => Some(Opened::NeedInput),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Some(Opened::Closed),
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
                // The alert for the peer, if there is one, precedes any further processing.
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
                Some(Opened::NeedInput) if !self.is_handshaking() && whole_record(&incoming[took..]) => {
                    // rustls has kept a part of a handshake message. No legitimate peer splits one after the handshake,
                    // and nothing could be encrypted until it is complete.
                    self.dead = true;
                    return (took, Err("a message of the handshake in parts, after the handshake".to_owned()));
                }
                Some(Opened::NeedInput) => {
                    if let Err(why) = self.take_over() {
                        self.dead = true;
                        return (took, Err(why));
                    }
                    return (took, Ok(Opened::NeedInput));
                }
                Some(got) => return (took, Ok(got)),
                None => {}
            }
        }
    }

    /// Encrypts `data`, at most [`RECORD_DATA_MAX`] bytes, to the front of `out`, which must have [`SEAL_BYTES_MAX`].
    /// Returns the encrypted length. The handshake must be over and `wire` empty.
    ///
    /// # Errors
    /// The connection is closed, or its keys are used up.
    pub fn seal(&mut self, data: &[u8], out: &mut [u8]) -> Result<usize, String> {
        copy(data, &mut out[RECORD_HEADER..RECORD_HEADER + data.len()]);
        self.seal_in_place(out, data.len())
    }

    /// Encrypts as [`Tls::seal`] does, but `len` bytes already in `out`, [`RECORD_HEADER`] after its front.
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

    /// Appends a close_notify alert to `wire`.
    pub fn queue_close_notify(&mut self) {
        if let Layer::Own(records) = &mut self.layer {
            if !self.dead {
                self.dead |= records.queue_close_notify(&mut self.wire).is_err();
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
        // rustls holds no part of a handshake message here (`open` ensures it), which would have to be passed in.
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

/// Appends the output of `encode`, enlarging the space as it demands.
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

/// Copies bytes in small pieces. Source and destination lie differently within a cache line, as data in records does,
/// and for these the system's memcpy in one piece uses string instructions, which take twice as long on some
/// processors.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    const PIECE_BYTES: usize = 512;
    assert_eq!(from.len(), to.len(), "as many bytes as there is room for");
    for (from, to) in from.chunks(PIECE_BYTES).zip(to.chunks_mut(PIECE_BYTES)) {
        to.copy_from_slice(from);
    }
}

/// Returns the length of the record at the front, including its header, if the header is complete.
fn record_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk::<RECORD_HEADER>()?;
    Some(RECORD_HEADER + usize::from(u16::from_be_bytes([header[3], header[4]])))
}

/// Returns whether a complete record is at the front.
pub(crate) fn whole_record(bytes: &[u8]) -> bool {
    record_len(bytes).is_some_and(|len| bytes.len() >= len)
}
