//! Measures ways to protect records of TLS 1.3: Braid's record layer, and those of rustls and of the kernel.
//!
//! `cargo run --release -p braid-nbd --example tls_records [ROUNDS [SCALE [WAY,…]]]`
//!
//! Each round runs every way once, in an order that rotates. Printed are the median of each figure, and the median,
//! minimum and maximum of its ratio to Braid's figure of the same round. `memory` seals and opens records without a
//! socket; `tcp` sends them over the loopback interface, the peer in another thread. CPU time is of the threads
//! involved; with kernel TLS, of the system calls too.
#![allow(unsafe_code, clippy::unwrap_used)]

#[path = "../tests/pki/mod.rs"]
mod pki;
#[allow(dead_code)]
#[path = "../src/tls/mod.rs"]
mod tls;

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
use rustls::client::UnbufferedClientConnection;
use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{
    ClientConfig, ClientConnection, Connection, ConnectionTrafficSecrets, ContentType, ProtocolVersion, ServerConfig,
    ServerConnection,
};
use tls::{Opened, RECORD_DATA_MAX, RECORD_HEADER, Side, Tls, copy};

/// Size of a buffer of records in bytes, as in the client.
const BUFFER_BYTES: usize = 256 << 10;
/// Size of the memory that data comes from and goes to in bytes: more than the second-level cache.
const DATA_BYTES: usize = 8 << 20;
/// Records in one buffer, and requests in flight.
const BATCH: usize = 15;
const REQUEST_BYTES: usize = 28;
const REPLY_HEADER_BYTES: usize = 16;
const BLOCK_BYTES: usize = 4096;

/// One end of a connection after the handshake.
trait End: Send {
    /// Encrypts one record to the front of `out`. Returns its length.
    fn seal(&mut self, pieces: &[&[u8]], out: &mut [u8]) -> usize;
    /// Decrypts all complete records into `into`. Returns how many bytes it took, and the length of the data.
    fn open(&mut self, incoming: &mut [u8], into: &mut [u8]) -> (usize, usize);
}

type Ends = (Box<dyn End>, Box<dyn End>);
type Configs = (Arc<ServerConfig>, Arc<ClientConfig>);

fn name() -> rustls::pki_types::ServerName<'static> {
    "localhost".try_into().unwrap()
}

/// Braid's record layer.
impl<S: Side + Send> End for Tls<S>
where
    Tls<S>: Send,
{
    fn seal(&mut self, pieces: &[&[u8]], out: &mut [u8]) -> usize {
        let mut len = 0;
        for piece in pieces {
            copy(piece, &mut out[RECORD_HEADER + len..RECORD_HEADER + len + piece.len()]);
            len += piece.len();
        }
        self.seal_in_place(out, len).unwrap()
    }

    fn open(&mut self, incoming: &mut [u8], into: &mut [u8]) -> (usize, usize) {
        let (mut took, mut n) = (0, 0);
        loop {
            let (more, got) = Tls::open(self, &mut incoming[took..], |data| {
                copy(data, &mut into[n..n + data.len()]);
                n += data.len();
            });
            took += more;
            if got.unwrap() != Opened::Data {
                return (took, n);
            }
        }
    }
}

fn braid((server, client): &Configs) -> Ends {
    let (mut server, mut client) = (Tls::server(server.clone()).unwrap(), Tls::client(client.clone(), name()).unwrap());
    for _ in 0..10 {
        for _ in 0..2 {
            // The first round begins with nothing for the client.
            client.open(&mut std::mem::take(&mut server.wire), |_| {}).1.unwrap();
            server.open(&mut std::mem::take(&mut client.wire), |_| {}).1.unwrap();
        }
    }
    (Box::new(server), Box::new(client))
}

/// rustls' unbuffered API.
struct Unbuffered<S: Side> {
    side: S,
    plain: Vec<u8>,
}

impl<S: Side> Unbuffered<S> {
    /// Processes handshake messages, and appends the replies to `wire`.
    fn shake(&mut self, incoming: &mut Vec<u8>, wire: &mut Vec<u8>) {
        loop {
            let UnbufferedStatus { discard, state } = self.side.process(incoming);
            let done = match state.unwrap() {
                ConnectionState::EncodeTlsData(mut data) => {
                    let mut part = vec![0; 16 << 10];
                    let n = match data.encode(&mut part) {
                        Ok(n) => n,
                        Err(EncodeError::InsufficientSize(_) | EncodeError::AlreadyEncoded) => panic!("a long message"),
                    };
                    wire.extend_from_slice(&part[..n]);
                    false
                }
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    false
                }
                _ => true,
            };
            incoming.drain(..discard);
            if done {
                return;
            }
        }
    }
}

impl<S: Side + Send> End for Unbuffered<S> {
    fn seal(&mut self, pieces: &[&[u8]], out: &mut [u8]) -> usize {
        let Ok(ConnectionState::WriteTraffic(mut traffic)) = self.side.process(&mut []).state else {
            panic!("it cannot write");
        };
        if let [piece] = pieces {
            return traffic.encrypt(piece, out).unwrap();
        }
        self.plain.clear();
        pieces.iter().for_each(|piece| self.plain.extend_from_slice(piece));
        traffic.encrypt(&self.plain, out).unwrap()
    }

    fn open(&mut self, incoming: &mut [u8], into: &mut [u8]) -> (usize, usize) {
        let (mut took, mut n) = (0, 0);
        loop {
            let UnbufferedStatus { discard, state } = self.side.process(&mut incoming[took..]);
            took += discard;
            let ConnectionState::ReadTraffic(mut traffic) = state.unwrap() else { return (took, n) };
            while let Some(record) = traffic.next_record() {
                let record = record.unwrap();
                copy(record.payload, &mut into[n..n + record.payload.len()]);
                n += record.payload.len();
                took += record.discard;
            }
        }
    }
}

fn unbuffered_sides(
    (server, client): &Configs,
) -> (Unbuffered<UnbufferedServerConnection>, Unbuffered<UnbufferedClientConnection>) {
    let (mut server, mut client) = (server.clone(), client.clone());
    Arc::make_mut(&mut server).enable_secret_extraction = true;
    Arc::make_mut(&mut client).enable_secret_extraction = true;
    let mut server = Unbuffered { side: UnbufferedServerConnection::new(server).unwrap(), plain: Vec::new() };
    let mut client = Unbuffered { side: UnbufferedClientConnection::new(client, name()).unwrap(), plain: Vec::new() };
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        client.shake(&mut to_client, &mut to_server);
        server.shake(&mut to_server, &mut to_client);
    }
    (server, client)
}

fn unbuffered(configs: &Configs) -> Ends {
    let (server, client) = unbuffered_sides(configs);
    (Box::new(server), Box::new(client))
}

/// rustls' buffered API.
struct Buffered(Connection);

impl End for Buffered {
    fn seal(&mut self, pieces: &[&[u8]], out: &mut [u8]) -> usize {
        let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let len = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        assert_eq!(self.0.writer().write_vectored(&slices).unwrap(), len);
        let mut used = 0;
        while self.0.wants_write() {
            used += self.0.write_tls(&mut &mut out[used..]).unwrap();
        }
        used
    }

    fn open(&mut self, mut incoming: &mut [u8], into: &mut [u8]) -> (usize, usize) {
        let (len, mut n) = (incoming.len(), 0);
        while !incoming.is_empty() {
            let mut rest = &*incoming;
            let took = self.0.read_tls(&mut rest).unwrap();
            incoming = &mut incoming[took..];
            self.0.process_new_packets().unwrap();
            loop {
                match self.0.reader().read(&mut into[n..]) {
                    Ok(0) => break,
                    Ok(more) => n += more,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        // It keeps what is incomplete.
        (len, n)
    }
}

fn buffered((server, client): &Configs) -> Ends {
    let mut server = Connection::from(ServerConnection::new(server.clone()).unwrap());
    let mut client = Connection::from(ClientConnection::new(client.clone(), name()).unwrap());
    for _ in 0..10 {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut bytes = Vec::new();
            let from = if from == 0 { &mut client } else { &mut server };
            while from.wants_write() {
                from.write_tls(&mut bytes).unwrap();
            }
            let to = if to == 0 { &mut client } else { &mut server };
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                to.read_tls(&mut rest).unwrap();
                to.process_new_packets().unwrap();
            }
        }
    }
    server.set_buffer_limit(None);
    client.set_buffer_limit(None);
    (Box::new(Buffered(server)), Box::new(Buffered(client)))
}

/// rustls' record protection below its connections: nonces, ciphers, padding. It encrypts to memory of its own.
struct Cipher {
    /// Data is gathered first, as memory that may change meanwhile demands. Otherwise the encrypter gathers it.
    gathers: bool,
    encrypter: Box<dyn MessageEncrypter>,
    decrypter: Box<dyn MessageDecrypter>,
    tx: u64,
    rx: u64,
}

impl Cipher {
    fn new<S: Side>(side: S, gathers: bool) -> Cipher {
        let (secrets, kernel) = side.into_kernel().unwrap_or_else(|error| panic!("{error}"));
        let algorithm = kernel.negotiated_cipher_suite().tls13().unwrap().aead_alg;
        let parts = |secrets| match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (key, iv),
            _ => panic!("another cipher"),
        };
        let ((tx, tx_secrets), (rx, rx_secrets)) = (secrets.tx, secrets.rx);
        let ((tx_key, tx_iv), (rx_key, rx_iv)) = (parts(tx_secrets), parts(rx_secrets));
        let (encrypter, decrypter) = (algorithm.encrypter(tx_key, tx_iv), algorithm.decrypter(rx_key, rx_iv));
        Cipher { gathers, encrypter, decrypter, tx, rx }
    }
}

impl End for Cipher {
    fn seal(&mut self, pieces: &[&[u8]], out: &mut [u8]) -> usize {
        let payload = if self.gathers {
            let mut len = 0;
            for piece in pieces {
                copy(piece, &mut out[RECORD_HEADER + len..RECORD_HEADER + len + piece.len()]);
                len += piece.len();
            }
            OutboundChunks::Single(&out[RECORD_HEADER..RECORD_HEADER + len])
        } else {
            OutboundChunks::new(pieces)
        };
        let message =
            OutboundPlainMessage { typ: ContentType::ApplicationData, version: ProtocolVersion::TLSv1_2, payload };
        let record = self.encrypter.encrypt(message, self.tx).unwrap().encode();
        self.tx += 1;
        copy(&record, &mut out[..record.len()]);
        record.len()
    }

    fn open(&mut self, incoming: &mut [u8], into: &mut [u8]) -> (usize, usize) {
        let (mut took, mut n) = (0, 0);
        while let Some(header) = incoming[took..].first_chunk::<RECORD_HEADER>() {
            let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
            let Some(body) = incoming[took + RECORD_HEADER..].get_mut(..len) else { break };
            let message = InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, body);
            let message = self.decrypter.decrypt(message, self.rx).unwrap();
            self.rx += 1;
            copy(message.payload, &mut into[n..n + message.payload.len()]);
            n += message.payload.len();
            took += RECORD_HEADER + len;
        }
        (took, n)
    }
}

fn cipher(configs: &Configs) -> Ends {
    let (server, client) = unbuffered_sides(configs);
    (Box::new(Cipher::new(server.side, false)), Box::new(Cipher::new(client.side, false)))
}

fn gathered_cipher(configs: &Configs) -> Ends {
    let (server, client) = unbuffered_sides(configs);
    (Box::new(Cipher::new(server.side, true)), Box::new(Cipher::new(client.side, true)))
}

/// A way to protect records: its name, and how to connect two ends.
type Way = (&'static str, fn(&Configs) -> Ends);
const WAYS: &[Way] = &[
    ("braid", braid),
    ("unbuffered", unbuffered),
    ("buffered", buffered),
    ("cipher", cipher),
    ("gathered-cipher", gathered_cipher),
];
const KERNEL: &str = "kernel";

/// The kernel's socket options for TLS: `include/uapi/linux/tls.h`.
mod kernel {
    use super::*;

    unsafe extern "C" {
        fn setsockopt(fd: i32, level: i32, name: i32, value: *const u8, len: u32) -> i32;
    }
    const SOL_TCP: i32 = 6;
    const TCP_ULP: i32 = 31;
    const SOL_TLS: i32 = 282;
    const TLS_TX: i32 = 1;
    const TLS_RX: i32 = 2;

    fn set(socket: &TcpStream, level: i32, name: i32, value: &[u8]) -> bool {
        // SAFETY: the value is readable for its whole length, and the kernel keeps no pointer to it.
        unsafe { setsockopt(socket.as_raw_fd(), level, name, value.as_ptr(), value.len() as u32) == 0 }
    }

    /// Returns `tls12_crypto_info_aes_gcm_128` of TLS 1.3.
    fn crypto_info((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Vec<u8> {
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { panic!("another cipher") };
        let (salt, iv) = iv.as_ref().split_at(4);
        [&0x0304_u16.to_le_bytes()[..], &51_u16.to_le_bytes(), iv, key.as_ref(), salt, &sequence.to_be_bytes()].concat()
    }

    /// Hands the record layer of a socket to the kernel. Returns false if it has none.
    pub fn take_over<S: Side>(socket: &TcpStream, side: S) -> bool {
        if !set(socket, SOL_TCP, TCP_ULP, b"tls") {
            return false;
        }
        let (secrets, _) = side.into_kernel().unwrap_or_else(|error| panic!("{error}"));
        assert!(set(socket, SOL_TLS, TLS_TX, &crypto_info(secrets.tx)), "{}", Error::last_os_error());
        assert!(set(socket, SOL_TLS, TLS_RX, &crypto_info(secrets.rx)), "{}", Error::last_os_error());
        true
    }

    /// Returns whether the kernel accepts the next key of a connection, as a key update needs.
    pub fn changes_keys(configs: &Configs) -> Result<(), Error> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        if !set(&socket, SOL_TCP, TCP_ULP, b"tls") {
            return Err(Error::last_os_error());
        }
        let (secrets, mut kernel) = unbuffered_sides(configs).1.side.into_kernel().unwrap();
        assert!(set(&socket, SOL_TLS, TLS_TX, &crypto_info(secrets.tx)));
        let next = crypto_info(kernel.update_tx_secret().unwrap());
        if set(&socket, SOL_TLS, TLS_TX, &next) { Ok(()) } else { Err(Error::last_os_error()) }
    }
}

/// Returns the CPU time of this thread in nanoseconds.
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// The figures of one round of one way.
type Figures = BTreeMap<&'static str, f64>;

/// Seals and opens `batches` of records of these `pieces`. Returns the CPU time for each record, in nanoseconds.
fn memory(
    from: &mut dyn End,
    to: &mut dyn End,
    pieces: &[usize],
    batches: usize,
    data: &mut (Vec<u8>, Vec<u8>),
) -> [f64; 2] {
    let (source, target) = (&data.0, &mut data.1);
    let len = pieces.iter().sum::<usize>();
    let (mut wire, mut at, mut times) = (vec![0; BUFFER_BYTES], 0, [0.0; 2]);
    for _ in 0..batches {
        let step = BATCH * len;
        if at + step > DATA_BYTES {
            at = 0;
        }
        let start = cpu_ns();
        let mut used = 0;
        for record in 0..BATCH {
            let data = &source[at + record * len..at + (record + 1) * len];
            used += match *pieces {
                [_] => from.seal(&[data], &mut wire[used..]),
                [first, _] => from.seal(&[&data[..first], &data[first..]], &mut wire[used..]),
                _ => panic!("one or two pieces"),
            };
        }
        let sealed = cpu_ns();
        let opened = to.open(&mut wire[..used], &mut target[at..at + step]);
        let end = cpu_ns();
        assert_eq!(opened, (used, step));
        times[0] += sealed - start;
        times[1] += end - sealed;
        at += step;
    }
    assert_eq!(source[..len * BATCH], target[..len * BATCH]);
    times.map(|time| time / (batches * BATCH) as f64)
}

/// A socket with or without an end that protects its records; without one, the kernel does.
struct Secured {
    socket: TcpStream,
    end: Option<Box<dyn End>>,
    inbox: Vec<u8>,
    held: usize,
    outbox: Vec<u8>,
}

impl Secured {
    fn new(socket: TcpStream, end: Option<Box<dyn End>>) -> Secured {
        socket.set_nodelay(true).unwrap();
        Secured { socket, end, inbox: vec![0; BUFFER_BYTES], held: 0, outbox: vec![0; BUFFER_BYTES] }
    }

    /// Sends a batch of records, each of a header from `header` and of data.
    fn send(&mut self, header: usize, data: &[u8], part: usize) {
        let zeros = [0; REQUEST_BYTES];
        let Some(end) = &mut self.end else {
            // The kernel makes records of 16 KiB of what is sent together.
            let mut slices = Vec::new();
            for part in data.chunks(part) {
                if header > 0 {
                    slices.push(IoSlice::new(&zeros[..header]));
                }
                slices.push(IoSlice::new(part));
            }
            let mut slices = &mut slices[..];
            while !slices.is_empty() {
                let n = self.socket.write_vectored(slices).unwrap();
                IoSlice::advance_slices(&mut slices, n);
            }
            return;
        };
        let mut used = 0;
        for part in data.chunks(part) {
            let out = &mut self.outbox[used..];
            used += if header > 0 { end.seal(&[&zeros[..header], part], out) } else { end.seal(&[part], out) };
        }
        self.socket.write_all(&self.outbox[..used]).unwrap();
    }

    /// Receives once, and opens what has arrived. Returns the length of the data. `into` must have [`BUFFER_BYTES`].
    fn receive(&mut self, into: &mut [u8]) -> usize {
        let Some(end) = &mut self.end else {
            let n = self.socket.read(&mut into[..BUFFER_BYTES]).unwrap();
            assert!(n > 0);
            return n;
        };
        let n = self.socket.read(&mut self.inbox[self.held..]).unwrap();
        assert!(n > 0);
        self.held += n;
        let (took, data) = end.open(&mut self.inbox[..self.held], into);
        self.inbox.copy_within(took..self.held, 0);
        self.held -= took;
        data
    }
}

/// Connects two sockets, or returns `None` if the kernel is to protect the records and does not know how.
fn connect(way: Option<&Way>, configs: &Configs) -> Option<(Secured, Secured)> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    let ends = match way {
        Some((_, make)) => {
            let (of_server, of_client) = make(configs);
            (Some(of_server), Some(of_client))
        }
        None => {
            let (of_server, of_client) = unbuffered_sides(configs);
            if !kernel::take_over(&server, of_server.side) {
                return None;
            }
            assert!(kernel::take_over(&client, of_client.side));
            (None, None)
        }
    };
    Some((Secured::new(server, ends.0), Secured::new(client, ends.1)))
}

/// Streams from the server to the client. Returns MB/s and the CPU time for each record of both ends, in nanoseconds.
fn stream((mut server, mut client): (Secured, Secured), batches: usize, data: &mut (Vec<u8>, Vec<u8>)) -> [f64; 2] {
    const STEP: usize = BATCH * RECORD_DATA_MAX;
    let (source, target) = (&data.0, &mut data.1);
    let place = |batch: usize| (batch % (DATA_BYTES / STEP)) * STEP;
    let start = Instant::now();
    let cpu = std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let start = cpu_ns();
            for batch in 0..batches {
                server.send(0, &source[place(batch)..][..STEP], RECORD_DATA_MAX);
            }
            cpu_ns() - start
        });
        let start = cpu_ns();
        let (mut at, mut left) = (0, batches * STEP);
        while left > 0 {
            at = if at + BUFFER_BYTES > DATA_BYTES { 0 } else { at };
            let n = client.receive(&mut target[at..]);
            (at, left) = (at + n, left - n);
        }
        cpu_ns() - start + sender.join().unwrap()
    });
    let records = (batches * BATCH) as f64;
    [records * RECORD_DATA_MAX as f64 / 1e6 / start.elapsed().as_secs_f64(), cpu / records]
}

/// Batches of requests and their replies. Returns thousands of requests a second and the CPU time for each request, of
/// both ends, in nanoseconds.
fn ask((mut server, mut client): (Secured, Secured), batches: usize, data: &mut (Vec<u8>, Vec<u8>)) -> [f64; 2] {
    const STEP: usize = BATCH * BLOCK_BYTES;
    let source = &data.0;
    let start = Instant::now();
    let cpu = std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let (start, mut requests) = (cpu_ns(), vec![0; BUFFER_BYTES]);
            for batch in 0..batches {
                let mut n = 0;
                while n < BATCH * REQUEST_BYTES {
                    n += server.receive(&mut requests);
                }
                let at = (batch % (DATA_BYTES / STEP)) * STEP;
                server.send(REPLY_HEADER_BYTES, &source[at..at + STEP], BLOCK_BYTES);
            }
            cpu_ns() - start
        });
        let (start, requests) = (cpu_ns(), [7; BATCH * REQUEST_BYTES]);
        let mut replies = vec![0; BUFFER_BYTES];
        for _ in 0..batches {
            client.send(0, &requests, REQUEST_BYTES);
            let mut n = 0;
            while n < BATCH * (REPLY_HEADER_BYTES + BLOCK_BYTES) {
                n += client.receive(&mut replies);
            }
        }
        cpu_ns() - start + serving.join().unwrap()
    });
    let requests = (batches * BATCH) as f64;
    [requests / 1e3 / start.elapsed().as_secs_f64(), cpu / requests]
}

fn round(way: Option<&Way>, configs: &Configs, scale: usize, data: &mut (Vec<u8>, Vec<u8>)) -> Option<Figures> {
    let mut figures = Figures::new();
    if let Some((_, make)) = way {
        let (mut server, mut client) = make(configs);
        let [seal, open] = memory(&mut *server, &mut *client, &[RECORD_DATA_MAX], 6 * scale, data);
        figures.insert("1 memory: seal 16 KiB, ns", seal);
        figures.insert("2 memory: open 16 KiB, ns", open);
        figures.insert("3 memory: seal + open 16 KiB, ns", seal + open);
        let pieces = [REPLY_HEADER_BYTES, BLOCK_BYTES];
        let [seal, open] = memory(&mut *server, &mut *client, &pieces, 20 * scale, data);
        figures.insert("4 memory: seal 4 KiB reply, ns", seal);
        figures.insert("5 memory: open 4 KiB reply, ns", open);
        let requests = memory(&mut *client, &mut *server, &[REQUEST_BYTES], 20 * scale, data);
        figures.insert("6 memory: seal request, ns", requests[0]);
        figures.insert("7 memory: open request, ns", requests[1]);
        figures.insert("8 memory: request + 4 KiB reply, ns", seal + open + requests[0] + requests[1]);
    }
    let [speed, cpu] = stream(connect(way, configs)?, 10 * scale, data);
    figures.insert("9 tcp: 16 KiB records, MB/s", speed);
    figures.insert("A tcp: 16 KiB record, ns of CPU", cpu);
    let [speed, cpu] = ask(connect(way, configs)?, 10 * scale, data);
    figures.insert("B tcp: 4 KiB requests, thousands/s", speed);
    figures.insert("C tcp: 4 KiB request, ns of CPU", cpu);
    Some(figures)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise| arguments.get(at).map_or(otherwise, |text| text.parse().expect("a number"));
    let (rounds, scale): (usize, usize) = (number(0, 15), number(1, 100));
    let wanted =
        |way: &&Way| way.0 == "braid" || arguments.get(2).is_none_or(|list| list.split(',').any(|one| one == way.0));
    let pki = pki::Pki::new();
    let configs = pki.with_suite(TLS13_AES_128_GCM_SHA256);
    let mut data = ((0..DATA_BYTES).map(|at| ((at * 31) >> 7) as u8).collect::<Vec<u8>>(), vec![0; DATA_BYTES]);
    let mut ways: Vec<Option<&Way>> = WAYS.iter().filter(wanted).map(Some).collect();
    match connect(None, &configs) {
        Some(_) => ways.push(None),
        None => println!("the kernel has no TLS for sockets"),
    }
    println!("the kernel takes the key after a key update: {:?}", kernel::changes_keys(&configs));
    let name = |way: Option<&Way>| way.map_or(KERNEL, |way| way.0);
    let mut results: Vec<BTreeMap<&str, Figures>> = Vec::new();
    for number in 0..=rounds {
        let mut results_of_round = BTreeMap::new();
        for turn in 0..ways.len() {
            let way = ways[(turn + number) % ways.len()];
            results_of_round.insert(name(way), round(way, &configs, scale, &mut data).unwrap());
        }
        // The first round warms up.
        if number > 0 {
            results.push(results_of_round);
        }
    }
    let figures: Vec<&str> = results[0]["braid"].keys().copied().collect();
    for figure in figures {
        for way in &ways {
            let way = name(*way);
            let values: Vec<f64> = results.iter().filter_map(|round| round[way].get(figure).copied()).collect();
            if values.is_empty() {
                continue;
            }
            let mut ratios: Vec<f64> =
                results.iter().map(|round| round[way][figure] / round["braid"][figure]).collect();
            ratios.sort_by(f64::total_cmp);
            println!(
                "{:<36} {way:<16} {:>9.0}   {:.3} [{:.3}, {:.3}]",
                &figure[2..],
                median(values),
                median(ratios.clone()),
                ratios[0],
                ratios[ratios.len() - 1]
            );
        }
    }
}
