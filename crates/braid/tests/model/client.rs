//! A client with requests in flight, over an NBD connection or through a file. The oracle checks its replies.

use std::collections::BTreeMap;
use std::time::Duration;

use braid_nbd::client::{Client, ClientConfig, ClientError, Replies};
use braid_nbd::codec::command;

use crate::file_client::FileClient;
use crate::oracle::{BLOCK, Content, Oracle, write_block};
use crate::support::PATIENCE;

/// Most requests in flight of a client through a file.
const BY_FILE_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Read,
    Write(Content),
    Trim,
    Flush,
}

#[derive(Clone, Debug)]
pub struct Flight {
    pub op: Op,
    pub first: u64,
    pub count: u64,
    pub fua: bool,
    begun: u64,
    token: u64,
    data: Vec<u8>,
}

/// An error reply.
pub struct Refused {
    pub op: Op,
    pub first: u64,
    pub count: u64,
    pub error: u32,
    /// The reply came through a loop device, which reports most errors as `EIO`.
    pub by_loop: bool,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of blocks {}+{}: error {}", self.op, self.first, self.count, self.error)
    }
}

pub struct Connection {
    wire: Wire,
    pub device: u64,
    pub flights: BTreeMap<u16, Flight>,
}

enum Wire {
    Nbd(Box<Client>),
    File(FileClient),
}

struct Sink<'a> {
    flights: &'a mut BTreeMap<u16, Flight>,
    done: Vec<(u16, Result<(), u32>)>,
}

impl Replies for Sink<'_> {
    fn data(&mut self, slot: u16, at: u32, data: &[u8]) {
        let flight = self.flights.get_mut(&slot).expect("a read that was sent");
        flight.data[at as usize..at as usize + data.len()].copy_from_slice(data);
    }

    fn hole(&mut self, slot: u16, at: u32, len: u32) {
        let flight = self.flights.get_mut(&slot).expect("a read that was sent");
        flight.data[at as usize..(at + len) as usize].fill(0);
    }

    fn done(&mut self, slot: u16, result: Result<(), u32>) {
        self.done.push((slot, result));
    }
}

/// The outcome of receiving replies.
pub enum Progress {
    Goes(Vec<Refused>),
    /// The connection has ended.
    Ended(String),
}

impl Connection {
    /// Connects, which begins a newer session of its device.
    pub fn open(uri: &str, config: ClientConfig, device: u64) -> Result<Connection, ClientError> {
        let client = Client::connect(&uri.parse().expect("an address"), config)?;
        Ok(Connection { wire: Wire::Nbd(Box::new(client)), device, flights: BTreeMap::new() })
    }

    /// Creates a client through a file. It begins no session: writes of ended connections stay as they were.
    pub fn by_file(file_client: FileClient, device: u64) -> Connection {
        Connection { wire: Wire::File(file_client), device, flights: BTreeMap::new() }
    }

    pub fn is_file(&self) -> bool {
        matches!(self.wire, Wire::File(_))
    }

    pub fn blocks(&self) -> u64 {
        match &self.wire {
            Wire::Nbd(client) => client.size_bytes() / BLOCK as u64,
            Wire::File(file_client) => file_client.blocks(),
        }
    }

    /// Returns whether the client continues with another size, after waiting until it sees it. NBD clients learn the
    /// size when they connect.
    pub fn grows_to(&self, blocks: u64) -> bool {
        match &self.wire {
            Wire::Nbd(_) => false,
            Wire::File(file_client) => {
                file_client.grows_to(blocks);
                true
            }
        }
    }

    /// Returns the tokens of the writes in flight.
    pub fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        let writes = self.flights.values().filter(|flight| matches!(flight.op, Op::Write(_) | Op::Trim));
        writes.map(|flight| flight.token)
    }

    /// Sends a request without waiting for its reply.
    pub fn send(&mut self, oracle: &mut Oracle, op: Op, first: u64, count: u64, fua: bool) -> bool {
        let (offset, len) = (first * BLOCK as u64, (count * BLOCK as u64) as u32);
        let flags = u16::from(fua);
        let slot = match &mut self.wire {
            Wire::File(_) if self.flights.len() >= BY_FILE_MAX => None,
            Wire::File(file_client) => file_client.begin(op, first, count, fua),
            Wire::Nbd(client) => match op {
                Op::Read => client.queue_read(offset, len),
                Op::Write(Content::Data { device, version }) => {
                    let mut data = vec![0; len as usize];
                    for (block, bytes) in (first..).zip(data.chunks_exact_mut(BLOCK)) {
                        write_block(device, block, version, bytes);
                    }
                    client.queue_write(offset, &data, flags)
                }
                Op::Write(Content::Zero) => client.queue(command::WRITE_ZEROES, flags, offset, len),
                Op::Trim => client.queue(command::TRIM, flags, offset, len),
                Op::Flush => client.queue(command::FLUSH, 0, 0, 0),
            },
        };
        let Some(slot) = slot else { return false };
        let token = match op {
            Op::Read | Op::Flush => 0,
            Op::Write(content) => oracle.begin(self.device, first, count, content, false),
            // A hole in a file reads as zeros; a discard over NBD may change nothing.
            Op::Trim => oracle.begin(self.device, first, count, Content::Zero, !self.is_file()),
        };
        // Bytes that the reply does not fill are wrong data, and not zeros.
        let data = if op == Op::Read { vec![0xdb; len as usize] } else { Vec::new() };
        let begun = oracle.now();
        self.flights.insert(slot, Flight { op, first, count, fua, begun, token, data });
        true
    }

    /// Sends queued requests and receives the available replies. Waits for one no longer than `limit`.
    ///
    /// # Errors
    /// A read returned data that the oracle rules out.
    pub fn poll(&mut self, oracle: &mut Oracle, limit: Duration) -> Result<Progress, String> {
        let Wire::Nbd(client) = &mut self.wire else { return self.poll_file(oracle, limit) };
        if !limit.is_zero() && !self.flights.is_empty() {
            let mut none = Sink { flights: &mut self.flights, done: Vec::new() };
            // Queued requests have to be sent before the wait for a reply.
            if let Err(error) = client.exchange(false, &mut none) {
                let done = none.done;
                return self.take(oracle, done, Some(error));
            }
            let done = none.done;
            if !done.is_empty() {
                return self.take(oracle, done, None);
            }
            if let Err(error) = client.wait_within(limit) {
                return Ok(Progress::Ended(error.to_string()));
            }
        }
        let mut sink = Sink { flights: &mut self.flights, done: Vec::new() };
        let result = client.exchange(false, &mut sink);
        let done = sink.done;
        self.take(oracle, done, result.err())
    }

    fn poll_file(&mut self, oracle: &mut Oracle, limit: Duration) -> Result<Progress, String> {
        let limit = if self.flights.is_empty() { Duration::ZERO } else { limit };
        let Wire::File(file_client) = &mut self.wire else { return Ok(Progress::Goes(Vec::new())) };
        let mut done = Vec::new();
        for one in file_client.take(limit) {
            let flight = self.flights.get_mut(&one.slot).expect("a request that was begun");
            let result = one.result.map(|data| flight.data = data);
            done.push((one.slot, result));
        }
        self.take(oracle, done, None)
    }

    fn is_loop(&self) -> bool {
        matches!(&self.wire, Wire::File(file_client) if file_client.is_loop())
    }

    fn take(
        &mut self,
        oracle: &mut Oracle,
        done: Vec<(u16, Result<(), u32>)>,
        ended: Option<ClientError>,
    ) -> Result<Progress, String> {
        let (mut refused, by_loop) = (Vec::new(), self.is_loop());
        for (slot, result) in done {
            let flight = self.flights.remove(&slot).expect("each ends once");
            let (device, first, count, token) = (self.device, flight.first, flight.count, flight.token);
            match (flight.op, result) {
                (Op::Read, Ok(())) => {
                    for (block, bytes) in (first..).zip(flight.data.chunks_exact(BLOCK)) {
                        oracle.read(device, block, flight.begun, bytes)?;
                    }
                }
                (Op::Flush, Ok(())) => {}
                (Op::Write(_) | Op::Trim, Ok(())) => oracle.acknowledged(device, first, count, token),
                (op, Err(error)) => {
                    if matches!(op, Op::Write(_) | Op::Trim) {
                        oracle.abandoned(device, first, count, token);
                    }
                    refused.push(Refused { op, first, count, error, by_loop });
                }
            }
        }
        match ended {
            None => Ok(Progress::Goes(refused)),
            Some(ClientError::Protocol(what)) => Err(format!("the server broke the protocol: {what}")),
            Some(error) => Ok(Progress::Ended(error.to_string())),
        }
    }

    /// Waits for all replies.
    ///
    /// # Errors
    /// As [`Connection::poll`], or a request got no reply.
    pub fn drain(&mut self, oracle: &mut Oracle) -> Result<Progress, String> {
        let mut all = Vec::new();
        let start = std::time::Instant::now();
        while !self.flights.is_empty() {
            match self.poll(oracle, Duration::from_millis(50))? {
                Progress::Goes(refused) => all.extend(refused),
                ended @ Progress::Ended(_) => return Ok(ended),
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("no reply within {PATIENCE:?}: {:?}", self.flights));
            }
        }
        Ok(Progress::Goes(all))
    }

    /// Ends the connection. Returns the unanswered requests, in the order in which they were sent. Waits for system
    /// calls first.
    pub fn end(mut self, oracle: &mut Oracle) -> Vec<Flight> {
        assert!(!self.is_file() || self.flights.is_empty(), "a file is closed below its own system calls");
        let mut rest: Vec<Flight> = std::mem::take(&mut self.flights).into_values().collect();
        for flight in rest.iter().filter(|flight| matches!(flight.op, Op::Write(_) | Op::Trim)) {
            oracle.abandoned(self.device, flight.first, flight.count, flight.token);
        }
        rest.sort_by_key(|flight| flight.begun);
        rest
    }

    /// Checks the block status of the whole device against the oracle. Returns how many blocks are reported as zeros.
    ///
    /// # Errors
    /// A block is reported as zeros that cannot be.
    pub fn check_map(&mut self, oracle: &mut Oracle, blocks: u64) -> Result<Option<u64>, String> {
        assert!(self.flights.is_empty(), "no request may be in flight");
        let Wire::Nbd(client) = &mut self.wire else { return Ok(None) };
        let (mut at, mut zeros) = (0, 0);
        while at < blocks {
            let count = (blocks - at).min(1 << 14);
            let begun = oracle.now();
            let extents = match client.block_status(at * BLOCK as u64, (count * BLOCK as u64) as u32) {
                Ok(extents) => extents,
                Err(ClientError::Protocol(what)) => return Err(format!("the server broke the protocol: {what}")),
                Err(_) => return Ok(None),
            };
            let mut byte = at * BLOCK as u64;
            for (len, state) in extents {
                let end = (byte + len).min(blocks * BLOCK as u64);
                // Bit 1: the range reads as zeros. A block counts as zeros if a part of it is reported so.
                if state & 2 != 0 {
                    for block in byte / BLOCK as u64..end.div_ceil(BLOCK as u64) {
                        oracle.check_zero(self.device, block, begun)?;
                        zeros += 1;
                    }
                }
                byte = end;
            }
            if byte <= at * BLOCK as u64 {
                return Err("a map without an extent".to_owned());
            }
            at = byte / BLOCK as u64;
        }
        Ok(Some(zeros))
    }
}
