//! The pipeline over a socket. It always reads replies while it waits to send: otherwise client and server could
//! deadlock.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::negotiate::{Negotiated, Negotiation, NegotiationOptions};
use super::pipeline::{Header, Pipeline, Replies};
use super::secure::Secure;
use super::{Address, ClientError, Endpoint};
use crate::codec::{PAYLOAD_BYTES_MAX, command, command_flags};

/// Options of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// Maximum number of requests in flight (1 to 1,024).
    pub depth: usize,
    /// Request structured replies and `base:allocation`.
    pub structured: bool,
    /// Request extended headers.
    pub extended: bool,
    /// Size of the reply buffer in bytes, at least 64 KiB.
    pub input_bytes: usize,
    /// Maximum time without progress, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig { depth: 128, structured: true, extended: true, input_bytes: 1 << 20, timeout_ms: 60_000 }
    }
}

/// The TLS configuration, and the name that the server's certificate must have.
pub(super) type TlsParams<'a> = (Arc<rustls::ClientConfig>, &'a str);

/// A connected socket.
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn connect(address: &Address) -> std::io::Result<Stream> {
        let stream = match address {
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            Address::Tcp(host, port) => Stream::Tcp(TcpStream::connect((host.as_str(), *port))?),
        };
        stream.prepare()?;
        Ok(stream)
    }

    fn prepare(&self) -> std::io::Result<()> {
        match self {
            Stream::Unix(stream) => {
                // As large as the system allows: a larger buffer saves switches between client and server.
                let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream, 1 << 20);
                stream.set_nonblocking(true)
            }
            Stream::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)
            }
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }

    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(buf),
            Stream::Tcp(stream) => stream.read(buf),
        }
    }

    fn write(&mut self, bufs: &[IoSlice<'_>]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write_vectored(bufs),
            Stream::Tcp(stream) => stream.write_vectored(bufs),
        }
    }
}

/// A piece of the output.
enum OutputPiece {
    /// This many bytes of the output buffer, in order.
    Buffered(usize),
    /// The unsent range of a shared payload.
    Shared(Arc<[u8]>, usize, usize),
}

/// A connection to an export.
pub struct Client {
    stream: Stream,
    /// The connection was handed over: dropping the client does not end it.
    handed_over: bool,
    terms: Negotiated,
    pipeline: Pipeline,
    timeout_ms: u64,
    out: VecDeque<u8>,
    pieces: VecDeque<OutputPiece>,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    secure: Option<Box<Secure>>,
}

impl Drop for Client {
    /// Shuts the connection down. Closing the socket is not enough while another process holds it, such as a child that
    /// another thread has forked and that has not executed its program. The server would consider the client connected,
    /// and begin requests that the client resends on another connection.
    fn drop(&mut self) {
        if !self.handed_over {
            // The server may have closed the connection already.
            let _ = rustix::net::shutdown(self.stream.as_fd(), rustix::net::Shutdown::Both);
        }
    }
}

/// Maximum number of pieces in one system call.
const GATHER_MAX: usize = 64;

impl Client {
    /// Connects and performs the handshake.
    ///
    /// # Errors
    /// The server cannot be reached, refuses, or does not speak the protocol.
    pub fn connect(endpoint: &Endpoint, config: ClientConfig) -> Result<Client, ClientError> {
        Client::connect_with(endpoint, config, None)
    }

    /// Connects and performs the handshake, with TLS if the endpoint requires it.
    ///
    /// # Errors
    /// As [`Client::connect`], or the endpoint requires TLS and `tls` is `None`.
    pub fn connect_with(
        endpoint: &Endpoint,
        config: ClientConfig,
        tls: Option<Arc<rustls::ClientConfig>>,
    ) -> Result<Client, ClientError> {
        let stream = Stream::connect(&endpoint.address)?;
        let tls = match (&endpoint.tls, tls) {
            (None, _) => None,
            (Some(_), Some(tls)) => Some((tls, endpoint.tls_host())),
            (Some(_), None) => return Err(ClientError::Tls("no certificate authority is configured".to_owned())),
        };
        Client::handshake(stream, &endpoint.export, config, tls)
    }

    /// Performs the handshake on a connected socket.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn over_unix(stream: UnixStream, export: &str, config: ClientConfig) -> Result<Client, ClientError> {
        Client::over_socket(Stream::Unix(stream), export, config, None)
    }

    /// Performs the handshake on any connected socket, over TLS if `tls` is set.
    pub(super) fn over_socket(
        stream: Stream,
        export: &str,
        config: ClientConfig,
        tls: Option<TlsParams<'_>>,
    ) -> Result<Client, ClientError> {
        stream.prepare()?;
        Client::handshake(stream, export, config, tls)
    }

    /// Returns the socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Hands the connection over in its state after the handshake, before any request: for example to the kernel's
    /// client. It stays open until its last descriptor is closed.
    ///
    /// # Errors
    /// The process has no free descriptor. The connection is ended.
    pub fn into_socket(mut self) -> std::io::Result<OwnedFd> {
        debug_assert!(self.start == self.end && self.out.is_empty(), "no request was made");
        let socket = self.stream.as_fd().try_clone_to_owned()?;
        self.handed_over = true;
        Ok(socket)
    }

    fn handshake(
        stream: Stream,
        export: &str,
        config: ClientConfig,
        tls: Option<TlsParams<'_>>,
    ) -> Result<Client, ClientError> {
        let wishes = NegotiationOptions {
            export: export.to_owned(),
            tls: tls.is_some(),
            extended: config.extended,
            structured: config.structured,
            allocation: config.structured,
        };
        let mut client = Client {
            stream,
            handed_over: false,
            terms: Negotiated::default(),
            pipeline: Pipeline::new(config.depth, &Negotiated::default()),
            timeout_ms: config.timeout_ms,
            // Capacity for the usual output. It grows on demand and keeps its size.
            out: VecDeque::with_capacity(config.input_bytes.max(64 << 10)),
            pieces: VecDeque::with_capacity(2 * config.depth),
            input: vec![0; config.input_bytes.max(64 << 10)].into(),
            start: 0,
            end: 0,
            secure: None,
        };
        let mut negotiation = Negotiation::new(wishes);
        let mut answer = Vec::new();
        client.terms = loop {
            let (took, terms) = negotiation.feed(&client.input[client.start..client.end], &mut answer)?;
            client.start += took;
            if let Some(terms) = terms {
                break terms;
            }
            if let Some((config, host)) = &tls
                && negotiation.waits_for_tls()
                && client.secure.is_none()
            {
                if client.start != client.end {
                    return Err(ClientError::Protocol("it sent plaintext after its reply to STARTTLS"));
                }
                client.begin_tls(Arc::clone(config), host)?;
                negotiation.tls_established(&mut answer);
            }
            client.queue_bytes(&answer);
            answer.clear();
            if took == 0 {
                client.transfer(true)?;
            }
        };
        client.pipeline = Pipeline::new(config.depth, &client.terms);
        Ok(client)
    }

    /// Returns the result of the handshake.
    pub fn terms(&self) -> &Negotiated {
        &self.terms
    }

    /// Returns the size of the export in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.terms.size_bytes
    }

    /// Returns the number of requests in flight, including queued ones.
    pub fn in_flight(&self) -> usize {
        self.pipeline.in_flight()
    }

    /// Returns how many more requests can be queued.
    pub fn free(&self) -> usize {
        self.pipeline.free()
    }

    /// Performs the TLS handshake.
    fn begin_tls(&mut self, config: Arc<rustls::ClientConfig>, host: &str) -> Result<(), ClientError> {
        self.secure = Some(Box::new(Secure::new(config, host)?));
        while self.secure.as_ref().is_some_and(|secure| secure.is_handshaking()) {
            self.transfer(true)?;
        }
        Ok(())
    }

    fn queue_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.out.extend(bytes);
        match self.pieces.back_mut() {
            Some(OutputPiece::Buffered(len)) => *len += bytes.len(),
            _ => self.pieces.push_back(OutputPiece::Buffered(bytes.len())),
        }
    }

    /// Queues a request without data. Returns its slot, or `None` if no slot is free.
    #[inline]
    pub fn queue(&mut self, kind: u16, flags: u16, offset: u64, len: u32) -> Option<u16> {
        debug_assert_ne!(kind, command::WRITE, "a write has data");
        let (slot, header) = self.pipeline.begin(kind, flags, offset, len)?;
        self.queue_bytes(&header);
        Some(slot)
    }

    /// Queues a READ. Returns its slot, or `None` if no slot is free.
    #[inline]
    pub fn queue_read(&mut self, offset: u64, len: u32) -> Option<u16> {
        self.queue(command::READ, 0, offset, len)
    }

    /// Queues a WRITE and copies its data. Returns its slot, or `None` if no slot is free.
    #[inline]
    pub fn queue_write(&mut self, offset: u64, data: &[u8], flags: u16) -> Option<u16> {
        let (slot, header) = self.pipeline.begin(command::WRITE, flags, offset, u32::try_from(data.len()).ok()?)?;
        self.queue_bytes(&header);
        self.queue_bytes(data);
        Some(slot)
    }

    /// Queues a WRITE of `data[from..from + len]`, which is sent without a copy. Returns its slot, or `None` if no slot
    /// is free.
    ///
    /// # Panics
    /// If the range is not within `data`.
    pub fn queue_write_shared(
        &mut self,
        offset: u64,
        data: &Arc<[u8]>,
        from: usize,
        len: u32,
        flags: u16,
    ) -> Option<u16> {
        assert!(from + len as usize <= data.len(), "the range lies within the data");
        let (slot, header) = self.pipeline.begin(command::WRITE, flags, offset, len)?;
        self.queue_bytes(&header);
        self.pieces.push_back(OutputPiece::Shared(data.clone(), from, from + len as usize));
        Some(slot)
    }

    /// Sends queued requests without blocking, and handles received replies. With `wait` and requests in flight, blocks
    /// until input arrives. One call is one turn of a load generator's loop.
    ///
    /// # Errors
    /// The connection is unusable.
    pub fn exchange(&mut self, wait: bool, replies: &mut impl Replies) -> Result<(), ClientError> {
        self.transfer(wait && self.pipeline.in_flight() > 0)?;
        let took = self.pipeline.feed(&self.input[self.start..self.end], replies)?;
        self.start += took;
        Ok(())
    }

    /// Writes and reads once each. With `wait`, blocks until something was read.
    fn transfer(&mut self, wait: bool) -> Result<(), ClientError> {
        self.write()?;
        while !self.read()? {
            if !wait {
                return Ok(());
            }
            self.wait()?;
            self.write()?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), ClientError> {
        if self.wait_within(Duration::from_millis(self.timeout_ms))? {
            return Ok(());
        }
        Err(ClientError::TimedOut(self.timeout_ms))
    }

    /// Waits until input is available (or, with unsent output, until it can be sent), at most for `limit`. Returns
    /// false if the time has passed. Reads and sends nothing; for load generators with a schedule.
    ///
    /// # Errors
    /// The connection is unusable.
    pub fn wait_within(&mut self, limit: Duration) -> Result<bool, ClientError> {
        if self.secure.as_ref().is_some_and(|secure| secure.has_data()) {
            return Ok(true);
        }
        let mut events = PollFlags::IN;
        if self.has_unsent() {
            events |= PollFlags::OUT;
        }
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        let mut fds = [PollFd::from_borrowed_fd(self.stream.as_fd(), events)];
        match poll(&mut fds, Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(ClientError::Socket(error.into())),
        }
    }

    fn read(&mut self) -> Result<bool, ClientError> {
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.secure.is_some() {
            return self.read_secure();
        }
        match self.stream.read(&mut self.input[self.end..]) {
            Ok(0) => Err(ClientError::Closed),
            Ok(n) => {
                self.end += n;
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads from decrypted records or, if there are none, from the socket. During the handshake any input counts.
    fn read_secure(&mut self) -> Result<bool, ClientError> {
        let Some(secure) = &mut self.secure else { return Ok(false) };
        let handshaking = secure.is_handshaking();
        let mut n = secure.open(&mut self.input[self.end..])?;
        if n == 0 {
            match self.stream.read(secure.room()) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(received) => secure.received(received),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
            match secure.open(&mut self.input[self.end..]) {
                Ok(opened) => n = opened,
                Err(error) => {
                    // Send the alert, if the server still receives.
                    let _ = self.stream.write(&[IoSlice::new(secure.unsent())]);
                    return Err(error);
                }
            }
        }
        self.end += n;
        Ok(n > 0 || handshaking)
    }

    /// Encrypts queued output and writes it without blocking.
    fn write_secure(&mut self) -> Result<(), ClientError> {
        loop {
            self.seal_pieces()?;
            let Some(secure) = &mut self.secure else { return Ok(()) };
            let unsent = secure.unsent();
            if unsent.is_empty() {
                return Ok(());
            }
            match self.stream.write(&[IoSlice::new(unsent)]) {
                Ok(n) => secure.was_sent(n),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn seal_pieces(&mut self) -> Result<(), ClientError> {
        let Some(secure) = &mut self.secure else { return Ok(()) };
        // Handshake messages are sent first.
        if !secure.unsent().is_empty() || secure.is_handshaking() {
            return Ok(());
        }
        while let Some(piece) = self.pieces.front_mut() {
            let (took, whole) = match piece {
                OutputPiece::Buffered(len) => {
                    let (front, back) = self.out.as_slices();
                    let part = if front.is_empty() { back } else { front };
                    let took = secure.seal(&part[..part.len().min(*len)])?;
                    self.out.drain(..took);
                    *len -= took;
                    (took, *len == 0)
                }
                OutputPiece::Shared(data, from, to) => {
                    let took = secure.seal(&data[*from..*to])?;
                    *from += took;
                    (took, from == to)
                }
            };
            if whole {
                self.pieces.pop_front();
            } else if took == 0 {
                break;
            }
        }
        if self.pieces.is_empty() {
            secure.flush()?;
        }
        Ok(())
    }

    /// Returns whether output waits for the socket.
    fn has_unsent(&mut self) -> bool {
        let secure = self.secure.as_mut();
        !self.pieces.is_empty() || secure.is_some_and(|secure| secure.has_unsealed() || !secure.unsent().is_empty())
    }

    fn write(&mut self) -> Result<(), ClientError> {
        if self.secure.is_some() {
            return self.write_secure();
        }
        while !self.pieces.is_empty() {
            match self.write_some() {
                Ok(n) => self.written(n),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_some(&mut self) -> std::io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); GATHER_MAX];
        let (front, back) = self.out.as_slices();
        let (mut at, mut used) = (0, 0);
        for piece in &self.pieces {
            match piece {
                // The output buffer is a ring, so a piece may consist of two parts.
                OutputPiece::Buffered(len) => {
                    let (from, to) = (at, at + len);
                    at = to;
                    for (slice, base) in [(front, 0), (back, front.len())] {
                        let part =
                            from.clamp(base, base + slice.len()) - base..to.clamp(base, base + slice.len()) - base;
                        if !part.is_empty() && used < GATHER_MAX {
                            slices[used] = IoSlice::new(&slice[part]);
                            used += 1;
                        }
                    }
                }
                OutputPiece::Shared(data, from, to) => {
                    slices[used] = IoSlice::new(&data[*from..*to]);
                    used += 1;
                }
            }
            if used + 2 > GATHER_MAX {
                break;
            }
        }
        self.stream.write(&slices[..used])
    }

    fn written(&mut self, mut bytes: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let (has, is_buffered) = match piece {
                OutputPiece::Buffered(len) => (*len, true),
                OutputPiece::Shared(_, from, to) => (*to - *from, false),
            };
            let take = has.min(bytes);
            match piece {
                OutputPiece::Buffered(len) => *len -= take,
                OutputPiece::Shared(_, from, _) => *from += take,
            }
            if is_buffered {
                self.out.drain(..take);
            }
            bytes -= take;
            if take < has {
                return;
            }
            self.pieces.pop_front();
        }
    }

    /// Exchanges until the only request in flight has ended.
    fn finish(&mut self, slot: u16, replies: &mut Single<'_>) -> Result<(), ClientError> {
        replies.slot = slot;
        while replies.result.is_none() {
            self.exchange(true, replies)?;
        }
        match replies.result {
            Some(Err(error)) => Err(ClientError::Request(error)),
            _ => Ok(()),
        }
    }

    fn single(&mut self, kind: u16, flags: u16, offset: u64, len: u32) -> Result<(), ClientError> {
        let slot = self.queue(kind, flags, offset, len).ok_or(ClientError::Full)?;
        self.finish(slot, &mut Single::default())
    }

    /// Reads and blocks until done. No other request may be in flight during this and the following calls.
    ///
    /// # Errors
    /// The request or the connection failed.
    pub fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), ClientError> {
        let mut offset = offset;
        for part in buf.chunks_mut(PAYLOAD_BYTES_MAX as usize) {
            let len = part.len() as u32;
            let slot = self.queue_read(offset, len).ok_or(ClientError::Full)?;
            self.finish(slot, &mut Single { data: Some(part), ..Single::default() })?;
            offset += u64::from(len);
        }
        Ok(())
    }

    /// Writes and blocks until done.
    ///
    /// # Errors
    /// The request or the connection failed.
    pub fn write_at(&mut self, offset: u64, data: &[u8], fua: bool) -> Result<(), ClientError> {
        let flags = if fua { command_flags::FUA } else { 0 };
        let mut offset = offset;
        for part in data.chunks(PAYLOAD_BYTES_MAX as usize) {
            let slot = self.queue_write(offset, part, flags).ok_or(ClientError::Full)?;
            self.finish(slot, &mut Single::default())?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Makes acknowledged writes durable and blocks until done.
    ///
    /// # Errors
    /// The request or the connection failed.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        self.single(command::FLUSH, 0, 0, 0)
    }

    /// Zeroes a range and blocks until done. Flags are those of [`command_flags`].
    ///
    /// # Errors
    /// The request or the connection failed.
    pub fn write_zeroes(&mut self, offset: u64, len: u32, flags: u16) -> Result<(), ClientError> {
        self.single(command::WRITE_ZEROES, flags, offset, len)
    }

    /// Discards a range and blocks until done.
    ///
    /// # Errors
    /// The request or the connection failed.
    pub fn trim(&mut self, offset: u64, len: u32) -> Result<(), ClientError> {
        self.single(command::TRIM, 0, offset, len)
    }

    /// Returns lengths and states of the extents from `offset`, blocking. They may end before the range or after it.
    ///
    /// # Errors
    /// The request or the connection failed, or `base:allocation` was not negotiated.
    pub fn block_status(&mut self, offset: u64, len: u32) -> Result<Vec<(u64, u32)>, ClientError> {
        let slot = self.queue(command::BLOCK_STATUS, 0, offset, len).ok_or(ClientError::Full)?;
        let mut extents = Vec::new();
        self.finish(slot, &mut Single { extents: Some(&mut extents), ..Single::default() })?;
        Ok(extents)
    }

    /// Sends DISC and waits until the server has closed the connection.
    ///
    /// # Errors
    /// DISC could not be sent.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        let header = Header::new(self.terms.extended, command::DISC, 0, 0, 0, 0);
        self.queue_bytes(&header);
        let mut close_notify_queued = self.secure.is_none();
        loop {
            self.write()?;
            // After the last request is encrypted in a record.
            if !close_notify_queued
                && self.pieces.is_empty()
                && let Some(secure) = self.secure.as_mut().filter(|secure| !secure.has_unsealed())
            {
                secure.queue_close_notify();
                close_notify_queued = true;
            }
            match self.transfer(true) {
                Ok(()) => (self.start, self.end) = (0, 0),
                Err(ClientError::Closed) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Receives the reply to one request.
#[derive(Default)]
struct Single<'a> {
    slot: u16,
    data: Option<&'a mut [u8]>,
    extents: Option<&'a mut Vec<(u64, u32)>>,
    result: Option<Result<(), u32>>,
}

impl Replies for Single<'_> {
    fn data(&mut self, slot: u16, at: u32, data: &[u8]) {
        if let Some(buf) = &mut self.data
            && slot == self.slot
        {
            buf[at as usize..at as usize + data.len()].copy_from_slice(data);
        }
    }

    fn hole(&mut self, slot: u16, at: u32, len: u32) {
        if let Some(buf) = &mut self.data
            && slot == self.slot
        {
            buf[at as usize..(at + len) as usize].fill(0);
        }
    }

    fn extent(&mut self, slot: u16, len: u64, state: u32) {
        if let Some(extents) = &mut self.extents
            && slot == self.slot
        {
            extents.push((len, state));
        }
    }

    fn done(&mut self, slot: u16, result: Result<(), u32>) {
        if slot == self.slot {
            self.result = Some(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a client after a handshake with a scripted server, and the server's socket.
    fn connected() -> (Client, UnixStream) {
        let (socket, mut server) = UnixStream::pair().expect("a pair");
        let handshake = std::thread::spawn(move || {
            server.write_all(b"NBDMAGICIHAVEOPT\0\x03").expect("the greeting");
            // The client's flags, and NBD_OPT_GO for the default export.
            let mut go = [0; 4 + 16];
            server.read_exact(&mut go).expect("the client's choice");
            let payload_bytes = u32::from_be_bytes(*go.last_chunk().expect("its length"));
            server.read_exact(&mut vec![0; payload_bytes as usize]).expect("the rest of it");
            let reply = |kind: u32, payload: &[u8]| {
                let mut all = 0x3e889045565a9_u64.to_be_bytes().to_vec();
                all.extend(7_u32.to_be_bytes());
                all.extend(kind.to_be_bytes());
                all.extend((payload.len() as u32).to_be_bytes());
                all.extend(payload);
                all
            };
            // NBD_INFO_EXPORT: 1 MiB, with flags.
            let info = [&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &[0, 1]].concat();
            server.write_all(&reply(3, &info)).expect("what the export is");
            server.write_all(&reply(1, &[])).expect("the end of the handshake");
            server
        });
        let config = ClientConfig { structured: false, extended: false, ..ClientConfig::default() };
        let client = Client::over_unix(socket, "", config).expect("a handshake");
        (client, handshake.join().expect("a server"))
    }

    #[test]
    fn dropping_a_client_ends_its_connection_although_another_descriptor_is_open() {
        let (client, mut server) = connected();
        let held = client.socket().try_clone_to_owned().expect("one more descriptor");
        drop(client);
        server.set_nonblocking(true).expect("a socket");
        assert_eq!(server.read(&mut [0]).expect("its end is seen at once"), 0);
        drop(held);
    }

    #[test]
    fn a_handed_over_connection_lives_until_its_last_descriptor_closes() {
        let (client, mut server) = connected();
        let socket = client.into_socket().expect("a descriptor");
        server.set_nonblocking(true).expect("a socket");
        let waits = server.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(waits, Err(std::io::ErrorKind::WouldBlock), "the connection is open");
        drop(socket);
        assert_eq!(server.read(&mut [0]).expect("its end is seen at once"), 0);
    }
}
