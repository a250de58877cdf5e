//! An in-memory host for tests and fuzzers: an arena, one disk, sockets made of queues, and a clock that only the test
//! advances. It checks what corrupts a real ring: double free, use after free, use of a returned loan, two receives on
//! one socket, requests outside the disk.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use braid_engine::{Buf, Completion, DeviceId, ErrorKind, Flags, IoError, Op, Request, UpcomingRequest};

use crate::server::{Host, Loan, SEND_PIECES_MAX, SendPiece, Server};

/// Base address of the arena: not 0, so that [`Buf::NONE`] lies outside.
const ARENA_BASE: u64 = 1 << 20;
/// Loans begin this far apart, whatever their length, so that a returned loan differs from a later loan of the same
/// bytes. The first lies far above any arena.
const LOAN_BASE: u64 = 1 << 40;
const LOAN_STRIDE: u64 = 1 << 32;
const UNIT: usize = 4096;
/// Fills freed memory.
const POISON: u8 = 0xa5;

#[derive(Default)]
struct Socket {
    inbox: VecDeque<u8>,
    /// The client has shut down its sending side.
    ended: bool,
    recv: Option<(Buf, u32, bool, u64)>,
    /// The unsent rest of the send in flight: pieces, token, total bytes.
    send: Option<(VecDeque<SendPiece>, u64, i32)>,
    outbox: Vec<u8>,
    /// How many more bytes the client takes.
    window: usize,
    closed: bool,
}

/// How disk requests complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskBehaviour {
    /// Immediately, in order.
    Prompt,
    /// When [`MemoryHost::finish_io`] is called.
    Held,
    /// Immediately, with this error.
    Failing(ErrorKind),
    /// Refused at submission, as by an engine without a free slot.
    Busy,
}

/// The in-memory host. Public fields configure it.
pub struct MemoryHost {
    /// The current time.
    pub now_ns: u64,
    /// How disk requests complete.
    pub behaviour: DiskBehaviour,
    /// Whether the disk lends its memory.
    pub lends: bool,
    /// Whether another disk holds the same content.
    pub is_redundant: bool,
    /// The disk's bytes.
    pub disk: Vec<u8>,
    /// Whether the engine uses prefetch hints.
    pub benefits_from_prefetch: bool,
    /// Prefetch hints received, each with the number of requests submitted before it.
    pub prefetches: Vec<(usize, UpcomingRequest)>,
    /// All submitted requests, in order.
    pub log: Vec<(Op, Flags, u64, u64)>,
    arena: Vec<u8>,
    used: BTreeMap<u64, usize>,
    used_bytes: usize,
    /// Loans: from their address to the range of the disk.
    lent: BTreeMap<u64, Range<usize>>,
    loans: u64,
    sockets: Vec<Socket>,
    started: VecDeque<Request>,
    /// Tags of entered requests that have not begun.
    entered: Vec<u64>,
    /// The client that disconnects while the next modifying request is entered.
    pub ends_when_entered: Option<usize>,
    done: VecDeque<Completion>,
    timers: Vec<(u64, u64)>,
}

impl MemoryHost {
    /// Returns a host with an arena and a disk of these sizes in bytes.
    pub fn new(arena_bytes: usize, disk_bytes: usize) -> MemoryHost {
        MemoryHost {
            now_ns: 1,
            behaviour: DiskBehaviour::Prompt,
            lends: false,
            is_redundant: false,
            benefits_from_prefetch: false,
            prefetches: Vec::new(),
            disk: vec![0; disk_bytes],
            log: Vec::new(),
            arena: vec![0; arena_bytes],
            used: BTreeMap::new(),
            used_bytes: 0,
            lent: BTreeMap::new(),
            loans: 0,
            sockets: Vec::new(),
            started: VecDeque::new(),
            entered: Vec::new(),
            ends_when_entered: None,
            done: VecDeque::new(),
            timers: Vec::new(),
        }
    }

    /// Adds a socket whose client takes all output.
    pub fn socket(&mut self) -> usize {
        self.sockets.push(Socket { window: usize::MAX, ..Socket::default() });
        self.sockets.len() - 1
    }

    /// Adds bytes to the server's input.
    pub fn client_sends(&mut self, socket: usize, bytes: &[u8]) {
        self.sockets[socket].inbox.extend(bytes);
    }

    /// Shuts down the client's sending side.
    pub fn client_ends(&mut self, socket: usize) {
        self.sockets[socket].ended = true;
    }

    /// Lets the client take this many more bytes, and none after them.
    pub fn client_takes(&mut self, socket: usize, bytes: usize) {
        self.sockets[socket].window = bytes;
    }

    /// Returns the output since the last call.
    pub fn take_output(&mut self, socket: usize) -> Vec<u8> {
        std::mem::take(&mut self.sockets[socket].outbox)
    }

    /// Returns the number of bytes that the server has not received.
    pub fn untaken(&self, socket: usize) -> usize {
        self.sockets[socket].inbox.len()
    }

    /// Returns whether the server has closed the socket.
    pub fn is_closed(&self, socket: usize) -> bool {
        self.sockets[socket].closed
    }

    /// Returns the bytes of the arena in use.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Returns the number of loans that were not returned.
    pub fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Returns the number of loans ever made.
    pub fn loans(&self) -> u64 {
        self.loans
    }

    /// Returns the number of requests that wait for [`MemoryHost::finish_io`].
    pub fn held_io(&self) -> usize {
        self.started.len()
    }

    /// Moves the oldest held request behind all others.
    pub fn defer_io(&mut self) {
        if !self.started.is_empty() {
            self.started.rotate_left(1);
        }
    }

    /// Completes the oldest held request: successfully, with an error, or late (its buffer stays busy). Returns its
    /// tag.
    pub fn finish_io(&mut self, result: Result<(), ErrorKind>, buffer_busy: bool) -> Option<u64> {
        let request = self.started.pop_front()?;
        let result = result.map_err(IoError::of).and_then(|()| self.execute(&request));
        self.done.push_back(Completion { tag: request.tag, result, buffer_busy });
        Some(request.tag)
    }

    /// Runs the loop until nothing more can happen.
    pub fn run(&mut self, server: &mut Server<usize>) {
        while self.turn(server) {}
    }

    /// Runs one turn of the loop. Returns false if nothing happened.
    pub fn turn(&mut self, server: &mut Server<usize>) -> bool {
        let mut moved = false;
        let due: Vec<u64> = self.timers.iter().filter(|timer| timer.0 <= self.now_ns).map(|timer| timer.1).collect();
        self.timers.retain(|timer| timer.0 > self.now_ns);
        for token in due {
            server.timer(self, token);
            moved = true;
        }
        for socket in 0..self.sockets.len() {
            while let Some((token, result)) = self.network(socket) {
                server.net_done(self, token, result);
                moved = true;
            }
        }
        while self.behaviour != DiskBehaviour::Held && !self.started.is_empty() {
            let error = if let DiskBehaviour::Failing(kind) = self.behaviour { Err(kind) } else { Ok(()) };
            self.finish_io(error, false);
        }
        while let Some(completion) = self.done.pop_front() {
            server.io_done(self, &completion);
            moved = true;
        }
        server.end_of_batch(self);
        moved || self.sockets.iter().any(Socket::can_move) || !self.done.is_empty()
    }

    fn execute(&mut self, request: &Request) -> Result<(), IoError> {
        let (from, len) = (request.offset as usize, request.len as usize);
        let end = from.checked_add(len).filter(|&end| end <= self.disk.len());
        let end = end.ok_or(IoError::of(ErrorKind::Invalid))?;
        match request.op {
            Op::Read => {
                let at = self.at(request.buf, len);
                self.arena[at..at + len].copy_from_slice(&self.disk[from..end]);
            }
            Op::Write => {
                let at = self.at(request.buf, len);
                self.disk[from..end].copy_from_slice(&self.arena[at..at + len]);
            }
            Op::WriteZeroes | Op::Discard => self.disk[from..end].fill(0),
            Op::Flush => {}
        }
        Ok(())
    }

    /// Returns the index of a buffer in the arena. The buffer must be allocated.
    fn at(&self, buf: Buf, len: usize) -> usize {
        let (&start, &held) = self.used.range(..=buf.addr).next_back().expect("memory in use");
        assert!(buf.addr + len as u64 <= start + held as u64, "the range leaves its buffer");
        (buf.addr - ARENA_BASE) as usize
    }

    /// Returns bytes to be sent, from the arena or a loan.
    fn to_send(&self, buf: Buf, len: usize) -> &[u8] {
        if buf.addr < LOAN_BASE {
            let at = self.at(buf, len);
            return &self.arena[at..at + len];
        }
        let (&start, range) = self.lent.range(..=buf.addr).next_back().expect("a loan that was not given back");
        let from = range.start + (buf.addr - start) as usize;
        assert!(from + len <= range.end, "the range leaves its loan");
        &self.disk[from..from + len]
    }

    /// Returns the next completion of a socket's operations in flight.
    fn network(&mut self, socket: usize) -> Option<(u64, i32)> {
        if let Some(done) = self.network_recv(socket) {
            return Some(done);
        }
        self.network_send(socket)
    }

    fn network_recv(&mut self, socket: usize) -> Option<(u64, i32)> {
        let it = &mut self.sockets[socket];
        let (buf, len, whole, token) = it.recv?;
        let has = it.inbox.len().min(len as usize);
        let enough = if whole { has == len as usize } else { has > 0 };
        if !it.closed && !it.ended && !enough {
            return None;
        }
        it.recv = None;
        if it.closed {
            return Some((token, 0));
        }
        let bytes: Vec<u8> = it.inbox.drain(..has).collect();
        let at = self.at(buf, len as usize);
        self.arena[at..at + has].copy_from_slice(&bytes);
        Some((token, has as i32))
    }

    fn network_send(&mut self, socket: usize) -> Option<(u64, i32)> {
        let mut it = std::mem::take(&mut self.sockets[socket]);
        let mut result = None;
        if let Some((pieces, token, total)) = &mut it.send {
            while let Some(piece) = pieces.front_mut() {
                let take = (piece.len as usize).min(it.window);
                it.outbox.extend_from_slice(&self.to_send(piece.buf, piece.len as usize)[..take]);
                it.window -= if it.window == usize::MAX { 0 } else { take };
                piece.buf = piece.buf.add(take as u64);
                piece.len -= take as u32;
                if piece.len > 0 {
                    break;
                }
                pieces.pop_front();
            }
            if pieces.is_empty() {
                result = Some((*token, *total));
            } else if it.closed {
                result = Some((*token, -32));
            }
        }
        if result.is_some() {
            it.send = None;
        }
        self.sockets[socket] = it;
        result
    }
}

impl Socket {
    fn can_move(&self) -> bool {
        let recv = self.recv.is_some_and(|(_, len, whole, _)| {
            self.closed || self.ended || if whole { self.inbox.len() >= len as usize } else { !self.inbox.is_empty() }
        });
        recv || (self.send.is_some() && (self.window > 0 || self.closed))
    }
}

impl Host for MemoryHost {
    type Socket = usize;

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn submit(&mut self, request: &Request) -> Result<(), IoError> {
        if self.behaviour == DiskBehaviour::Busy {
            return Err(IoError::of(ErrorKind::Busy));
        }
        assert!(request.tag < 1 << 48, "tags have 48 bits");
        self.log.push((request.op, request.flags, request.offset, request.len));
        self.started.push_back(*request);
        Ok(())
    }

    fn enter(&mut self, request: &Request) -> Result<(), IoError> {
        self.submit(request)?;
        if !matches!(request.op, Op::Read | Op::Flush) {
            self.entered.push(request.tag);
            if let Some(socket) = self.ends_when_entered.take() {
                self.client_ends(socket);
            }
        }
        Ok(())
    }

    fn begin_or_cancel_entered(&mut self, _device: DeviceId, is_connected: bool) {
        let entered = std::mem::take(&mut self.entered);
        if is_connected {
            return;
        }
        for tag in entered {
            let at = self.started.iter().rposition(|request| request.tag == tag).expect("it has entered");
            let Request { op, flags, offset, len, .. } = self.started.remove(at).expect("it is there");
            let logged = self.log.iter().rposition(|logged| *logged == (op, flags, offset, len));
            self.log.remove(logged.expect("it was logged"));
            let result = Err(IoError::of(ErrorKind::Unsettled));
            self.done.push_back(Completion { tag, result, buffer_busy: false });
        }
    }

    fn benefits_from_prefetch(&self, _device: DeviceId) -> bool {
        self.benefits_from_prefetch
    }

    fn prefetch(&mut self, _device: DeviceId, soon: &[UpcomingRequest]) {
        let before = self.log.len();
        self.prefetches.extend(soon.iter().map(|&soon| (before, soon)));
    }

    fn is_redundant(&self, _device: DeviceId) -> bool {
        self.is_redundant
    }

    fn lend(&mut self, _device: DeviceId, offset: u64, len: u64) -> Option<Loan> {
        let (from, len) = (usize::try_from(offset).ok()?, len as usize);
        let to = from.checked_add(len).filter(|&to| to <= self.disk.len())?;
        if !self.lends || matches!(self.behaviour, DiskBehaviour::Failing(_) | DiskBehaviour::Busy) {
            return None;
        }
        let addr = LOAN_BASE + self.loans * LOAN_STRIDE;
        self.loans += 1;
        self.lent.insert(addr, from..to);
        Some(Loan { buf: Buf { addr, region: Buf::UNREGISTERED }, ring_loan: None })
    }

    fn is_lent(&self, buf: Buf, _len: usize) -> bool {
        buf.addr >= LOAN_BASE
    }

    fn copy_lent(&mut self, from: Buf, to: Buf, len: usize) {
        let bytes = self.to_send(from, len).to_vec();
        self.memory(to, len).copy_from_slice(&bytes);
    }

    fn return_loan(&mut self, loan: Loan) {
        self.lent.remove(&loan.buf.addr).expect("gave back what was not lent");
    }

    fn memory_bytes(&self) -> (u64, u64) {
        (self.arena.len() as u64, (self.arena.len() - self.used_bytes()) as u64)
    }

    fn alloc(&mut self, len: usize) -> Option<Buf> {
        let len = len.max(1).next_multiple_of(UNIT);
        let mut from = ARENA_BASE;
        for (&start, &held) in &self.used {
            if start - from >= len as u64 {
                break;
            }
            from = start + held as u64;
        }
        if from + len as u64 > ARENA_BASE + self.arena.len() as u64 {
            return None;
        }
        self.used.insert(from, len);
        self.used_bytes += len;
        Some(Buf { addr: from, region: Buf::UNREGISTERED })
    }

    fn free(&mut self, buf: Buf, len: usize) {
        let held = self.used.remove(&buf.addr).expect("freed what was not in use");
        assert_eq!(held, len.max(1).next_multiple_of(UNIT), "freed with another length");
        self.used_bytes -= held;
        let at = (buf.addr - ARENA_BASE) as usize;
        self.arena[at..at + held].fill(POISON);
    }

    fn memory(&mut self, buf: Buf, len: usize) -> &mut [u8] {
        let at = self.at(buf, len);
        &mut self.arena[at..at + len]
    }

    fn pair(&mut self, first: (Buf, usize), second: (Buf, usize)) -> (&mut [u8], &mut [u8]) {
        let (one, two) = (self.at(first.0, first.1), self.at(second.0, second.1));
        if one < two {
            let (front, back) = self.arena.split_at_mut(two);
            (&mut front[one..one + first.1], &mut back[..second.1])
        } else {
            let (front, back) = self.arena.split_at_mut(one);
            (&mut back[..first.1], &mut front[two..two + second.1])
        }
    }

    fn copy(&mut self, from: Buf, to: Buf, len: usize) {
        let (from, to) = (self.at(from, len), self.at(to, len));
        self.arena.copy_within(from..from + len, to);
    }

    fn is_hung_up(&mut self, socket: usize) -> bool {
        self.sockets[socket].ended
    }

    fn recv(&mut self, socket: usize, buf: Buf, len: u32, whole: bool, token: u64) {
        assert!(len > 0 && token < 1 << 48);
        self.at(buf, len as usize);
        let before = self.sockets[socket].recv.replace((buf, len, whole, token));
        assert_eq!(before, None, "one receive at a time");
    }

    fn send(&mut self, socket: usize, pieces: &[SendPiece], token: u64) {
        assert!((1..=SEND_PIECES_MAX).contains(&pieces.len()) && token < 1 << 48);
        let total = pieces.iter().map(|piece| piece.len).sum::<u32>() as i32;
        let before = self.sockets[socket].send.replace((pieces.iter().copied().collect(), token, total));
        assert!(before.is_none(), "one send at a time");
    }

    fn close(&mut self, socket: usize) {
        self.sockets[socket].closed = true;
    }

    fn timer_at(&mut self, at_ns: u64, token: u64) -> bool {
        self.timers.push((at_ns, token));
        true
    }
}
