//! Frontends, the components that submit requests on a shard's thread (servers of exports, load generators), and the
//! interface of the shard for them.

use std::any::Any;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use braid_engine::{Buf, Completion, DeviceId, ErrorKind, IoError, LeafId, Op, Request, ShardId, UpcomingRequest};

use crate::channels::{ChannelId, MESSAGE_PIECES_MAX};
use crate::commands::token_of;
use crate::core::Core;
use crate::driver::{Job, SHORT_COMMAND_BYTES};
use crate::net::{RecvMode, SEND_PIECES_MAX, SendPiece, SocketId};
use crate::stack_level::stack_level_of;
use crate::tokens::TAG_BITS;
pub use crate::tokens::{FRONTENDS_MAX, TAG_LIMIT};

/// A component that lives on a shard's thread and is called when it has work. It must not block.
pub trait Frontend: Send + 'static {
    /// Called once, before any other method.
    fn start(&mut self, _cx: &mut Cx<'_>) {}
    /// A submitted request has ended. While `buffer_busy` is set, its buffer must not be accessed until
    /// [`Frontend::released`].
    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion);
    /// Several requests have ended, in this order. Called instead of [`Frontend::io_done`].
    fn ios_done(&mut self, cx: &mut Cx<'_>, completions: &[Completion]) {
        for completion in completions {
            self.io_done(cx, completion);
        }
    }
    /// The kernel has returned the buffer of a request that completed with `buffer_busy`; `tag` is that request's.
    fn released(&mut self, _cx: &mut Cx<'_>, _tag: u64) {}
    /// A receive or send has ended, with its number of bytes (0 received: end of stream), or a negated error number.
    fn net_done(&mut self, _cx: &mut Cx<'_>, _token: u64, _result: i32) {}
    /// A command of a file ([`Cx::command`]) has ended, with the file's result, or a negated error number.
    fn command_done(&mut self, _cx: &mut Cx<'_>, _token: u64, _result: i32) {}
    /// A timer has fired.
    fn timer(&mut self, _cx: &mut Cx<'_>, _token: u64) {}
    /// A message was posted to this frontend.
    fn message(&mut self, _cx: &mut Cx<'_>, _message: Box<dyn Any + Send>) {}
    /// Called once at the end of each turn of the loop, after all other calls of the turn: the place to send what they
    /// gathered.
    fn end_of_batch(&mut self, _cx: &mut Cx<'_>) {}
    /// The ring stops, and the frontend must start no new work. The shard ends when none of its requests, sends and
    /// channel writes is in flight. It then shuts down the sockets and channels that are still open.
    fn stop(&mut self, _cx: &mut Cx<'_>) {}
    /// Returns whether the kernel uses no memory that a command of this frontend named. Called after a stop: the shard
    /// ends only when this is true. Commands that wait for an event and name no memory may stay in the kernel.
    fn is_quiet(&mut self, _cx: &mut Cx<'_>) -> bool {
        true
    }
}

/// A loan of a disk's memory, to send from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loan {
    /// The memory.
    pub buf: Buf,
    leaf: LeafId,
}

/// The interface of a shard for a frontend.
pub struct Cx<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) frontend: u16,
}

impl Cx<'_> {
    /// Returns the id of this shard.
    pub fn shard_id(&self) -> ShardId {
        self.core.id
    }

    /// Returns the time in nanoseconds (CLOCK_MONOTONIC), read once per turn of the loop.
    pub fn now_ns(&self) -> u64 {
        self.core.port.now_ns
    }

    /// Submits a request. Its tag must be below [`TAG_LIMIT`], and its data in this shard's arena.
    ///
    /// # Errors
    /// Refused at once, without a completion: `NoDevice`, `Invalid` (unaligned, beyond the end, too long, memory
    /// outside the arena), `Busy` (too many in flight).
    #[inline(always)]
    pub fn submit(&mut self, request: &Request) -> Result<(), IoError> {
        let tagged = self.tagged(request)?;
        let core = &mut *self.core;
        if request.device.0 >> DeviceId::INDEX_BITS != 0 {
            return core.submit_above(&tagged);
        }
        core.engine.submit(&tagged, &mut core.port)
    }

    /// Submits a request like [`Cx::submit`], except that a request that changes the device does not begin before
    /// [`Cx::begin_or_cancel_entered`]. The frontend must call that before it returns to the shard, and before it
    /// enters a request of another client. See [`braid_engine::Shard::enter`].
    ///
    /// # Errors
    /// As [`Cx::submit`].
    #[inline]
    pub fn enter(&mut self, request: &Request) -> Result<(), IoError> {
        let tagged = self.tagged(request)?;
        let entered = self.core.on(stack_level_of(request.device), |engine, port| engine.enter(&tagged, port));
        entered.unwrap_or(Err(IoError::of(ErrorKind::NoDevice)))
    }

    /// Begins all entered requests, if their client still `is_there`; otherwise ends them with
    /// [`ErrorKind::Unsettled`], without any change. `device` is the device that they were entered for.
    #[inline]
    pub fn begin_or_cancel_entered(&mut self, device: DeviceId, is_there: bool) {
        self.core.on(stack_level_of(device), |engine, port| match is_there {
            true => engine.begin_entered(port),
            false => engine.cancel_entered(port),
        });
    }

    /// Returns the request with a tag that leads back to this frontend.
    #[inline(always)]
    fn tagged(&self, request: &Request) -> Result<Request, IoError> {
        debug_assert!(request.tag < TAG_LIMIT, "a tag has {TAG_BITS} bits");
        let carries_data = matches!(request.op, Op::Read | Op::Write);
        if carries_data && self.core.port.arena.offset(request.buf, request.len).is_none() {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        Ok(Request { tag: request.tag | u64::from(self.frontend) << TAG_BITS, ..*request })
    }

    /// Returns whether [`Cx::prefetch`] is useful for this device: whether its lookup structures may exceed the
    /// processor's caches.
    pub fn benefits_from_prefetch(&self, device: DeviceId) -> bool {
        stack_level_of(device) == 0 && self.core.engine.uses_prefetch(device)
    }

    /// Prefetches, in parallel, the lookup structures for reads and writes that are about to be submitted. Pass a few
    /// dozen at a time, since the caches must hold the data until then. The requests need not follow.
    pub fn prefetch(&self, device: DeviceId, soon: &[UpcomingRequest]) {
        if stack_level_of(device) == 0 {
            self.core.engine.prefetch(device, soon, &self.core.port);
        }
    }

    /// Lends the memory of a range of a device, if all of it is contiguous on one memory disk: data that a read would
    /// copy, to send without a copy. Counts as a completed read. Concurrent writes are visible. The disk cannot be
    /// removed until the loan is returned by [`Cx::return_loan`].
    pub fn lend(&mut self, device: DeviceId, offset: u64, len: u64) -> Option<Loan> {
        if stack_level_of(device) != 0 {
            return None;
        }
        let (leaf, at) = self.core.engine.location_to_read(device, offset, len)?;
        let buf = self.core.port.lend(leaf, at, len)?;
        self.core.engine.count_read(device, len);
        Some(Loan { buf, leaf })
    }

    /// Returns whether another disk of the device may have data that one disk does not return. A read that exceeded its
    /// time limit is then worth a retry, with other memory.
    pub fn is_redundant(&self, device: DeviceId) -> bool {
        self.core.engine_of(stack_level_of(device)).is_some_and(|engine| engine.is_redundant(device))
    }

    /// Returns whether these bytes are lent by [`Cx::lend`], and are not in the arena.
    pub fn is_lent(&self, buf: Buf, len: usize) -> bool {
        self.core.port.arena.offset(buf, len as u64).is_none() && self.core.port.has_lent(buf, len as u64)
    }

    /// Copies bytes lent by [`Cx::lend`] into the arena. The source may be written to concurrently; the copy is
    /// private.
    ///
    /// # Panics
    /// When the bytes are not lent, or `to` is outside the arena.
    pub fn copy_lent(&mut self, from: Buf, to: Buf, len: usize) {
        self.core.port.copy_lent(from, to, len);
    }

    /// Returns a loan from [`Cx::lend`]. No send may use it from then on.
    pub fn return_loan(&mut self, loan: Loan) {
        self.core.port.take_back(loan.leaf);
    }

    /// Allocates `len` bytes, aligned to 4 KiB. `None` if no memory is free, or `len` is over 32 MiB.
    pub fn alloc(&mut self, len: usize) -> Option<Buf> {
        self.core.port.arena.alloc(len)
    }

    /// Frees memory that [`Cx::alloc`] returned for the same `len`. No I/O may use it from then on.
    pub fn free(&mut self, buf: Buf, len: usize) {
        self.core.port.arena.free(buf, len);
    }

    /// Returns bytes of the arena. Bytes that an I/O in flight uses must not be accessed.
    ///
    /// # Panics
    /// When the bytes are not all in this shard's arena.
    pub fn memory(&mut self, buf: Buf, len: usize) -> &mut [u8] {
        self.core.port.arena.memory(buf, len)
    }

    /// Like [`Cx::memory`], for two buffers at once.
    ///
    /// # Panics
    /// When the buffers are not both in this shard's arena, or overlap.
    pub fn pair(&mut self, first: (Buf, usize), second: (Buf, usize)) -> (&mut [u8], &mut [u8]) {
        self.core.port.arena.pair(first, second)
    }

    /// Like [`Cx::memory`], for reading.
    pub fn bytes(&self, buf: Buf, len: usize) -> &[u8] {
        self.core.port.arena.bytes(buf, len)
    }

    /// Copies bytes within the arena. Panics if a range is outside.
    pub fn copy(&mut self, from: Buf, to: Buf, len: usize) {
        self.core.port.arena.copy(from, to, len);
    }

    /// Returns the size of the arena in bytes.
    pub fn arena_bytes(&self) -> u64 {
        self.core.port.arena.bytes_len()
    }

    /// Returns the free bytes of the arena.
    pub fn free_bytes(&self) -> u64 {
        self.core.port.arena.free_bytes()
    }

    /// Adds a connected stream socket to the shard.
    ///
    /// # Errors
    /// Returns the socket when the table is full ([`crate::SOCKETS_MAX`]) or the driver cannot watch it.
    pub fn add_socket(&mut self, fd: OwnedFd) -> Result<SocketId, OwnedFd> {
        self.core.net.add(fd, self.frontend, &mut self.core.port.driver)
    }

    /// Starts receiving into the arena. A socket has one receive at a time. Returns false if the socket is closed.
    ///
    /// # Panics
    /// When the memory is not in the arena, `len` is 0, or a receive is in flight.
    pub fn recv(&mut self, socket: SocketId, buf: Buf, len: u32, mode: RecvMode, token: u64) -> bool {
        debug_assert!(token < TAG_LIMIT);
        assert!(len > 0 && self.core.port.arena.offset(buf, u64::from(len)).is_some(), "receives go into the arena");
        self.core.net.recv(socket, buf.addr, len, mode, token, &mut self.core.port.driver)
    }

    /// Returns whether the peer has shut down or lost its side of the connection, although bytes may be unread.
    pub fn is_hung_up(&mut self, socket: SocketId) -> bool {
        self.core.net.is_hung_up(socket)
    }

    /// Starts sending pieces of the arena, or of lent memory, in order. A socket has one send at a time, which ends
    /// when all bytes are sent. Returns false if the socket is closed.
    ///
    /// # Panics
    /// When a piece is neither in the arena nor lent, there are none or more than [`SEND_PIECES_MAX`], or a send is in
    /// flight.
    pub fn send(&mut self, socket: SocketId, pieces: &[SendPiece], token: u64) -> bool {
        debug_assert!(token < TAG_LIMIT);
        assert!(!pieces.is_empty() && pieces.len() <= SEND_PIECES_MAX, "1 to {SEND_PIECES_MAX} pieces in one send");
        let port = &self.core.port;
        let inside = |p: &SendPiece| {
            let len = u64::from(p.len);
            port.arena.offset(p.buf, len).is_some() || port.has_lent(p.buf, len)
        };
        assert!(pieces.iter().all(inside), "sends come from the arena, or from what was lent");
        let ranges = pieces.iter().map(|p| (p.buf.addr, p.len));
        self.core.net.send(socket, ranges, token, &mut self.core.port.driver)
    }

    /// Shuts down both directions of a socket. I/O in flight on it ends soon, each with its `net_done`.
    pub fn shutdown(&mut self, socket: SocketId) {
        self.core.net.shutdown(socket);
    }

    /// Shuts a socket down, and closes it after its last `net_done`.
    pub fn close(&mut self, socket: SocketId) {
        self.core.net.close(socket, &mut self.core.port.driver);
    }

    /// Adds a message channel, such as `/dev/fuse`, to the shard.
    ///
    /// # Errors
    /// Returns the file when the table is full ([`crate::CHANNELS_MAX`]) or the driver is not io_uring.
    pub fn add_channel(&mut self, fd: OwnedFd) -> Result<ChannelId, OwnedFd> {
        self.core.channels.add(fd, self.frontend, &self.core.port.driver)
    }

    /// Starts waiting for a message or an error on a channel; `net_done` reports it. Of several channels to one source,
    /// one is notified. Returns false if the channel is closed, or already waits.
    pub fn await_message(&mut self, channel: ChannelId, token: u64) -> bool {
        debug_assert!(token < TAG_LIMIT);
        self.core.channels.wait(channel, token, &mut self.core.port.driver)
    }

    /// Reads one message into pieces of the arena. Returns its bytes, or a negated error number (EAGAIN: there is
    /// none), or `None` if the channel is closed.
    ///
    /// # Panics
    /// When a piece is not in the arena, or there are more than [`MESSAGE_PIECES_MAX`].
    pub fn read_message(&mut self, channel: ChannelId, pieces: &[SendPiece]) -> Option<i32> {
        self.check_message(pieces);
        self.core.channels.read(channel, pieces.iter().map(|p| (p.buf.addr, p.len)))
    }

    /// Returns whether the kernel has closed the other end of the channel, even if messages have no reply yet. True for
    /// a closed channel.
    pub fn is_channel_ended(&mut self, channel: ChannelId) -> bool {
        self.core.channels.is_ended(channel)
    }

    /// Starts writing one message in a single write; `net_done` reports its end. Returns false if the channel is
    /// closed, or [`crate::CHANNEL_CALLS_MAX`] writes are in flight.
    ///
    /// # Panics
    /// As [`Cx::read_message`].
    pub fn write_message(&mut self, channel: ChannelId, pieces: &[SendPiece], token: u64) -> bool {
        debug_assert!(token < TAG_LIMIT);
        self.check_message(pieces);
        let ranges = pieces.iter().map(|p| (p.buf.addr, p.len));
        self.core.channels.write(channel, ranges, token, &mut self.core.port.driver)
    }

    fn check_message(&self, pieces: &[SendPiece]) {
        assert!(!pieces.is_empty() && pieces.len() <= MESSAGE_PIECES_MAX, "1 to {MESSAGE_PIECES_MAX} pieces");
        let arena = &self.core.port.arena;
        let inside = |p: &SendPiece| arena.offset(p.buf, u64::from(p.len)).is_some();
        assert!(pieces.iter().all(inside), "messages lie in the arena");
    }

    /// Closes a channel after its last `net_done`. A wait is cancelled.
    pub fn close_channel(&mut self, channel: ChannelId) {
        self.core.channels.close(channel, &mut self.core.port.driver);
    }

    /// Starts a file-specific command; [`Frontend::command_done`] reports its result. Returns false if the driver does
    /// not support commands.
    ///
    /// # Safety
    /// The file must stay open until the command has ended. Everything that `bytes` refers to, above all memory, must
    /// stay valid as the file requires until the file no longer uses it.
    #[allow(unsafe_code)]
    pub unsafe fn command(
        &mut self,
        file: BorrowedFd<'_>,
        code: u32,
        bytes: [u8; SHORT_COMMAND_BYTES],
        token: u64,
    ) -> bool {
        debug_assert!(token < TAG_LIMIT);
        if !self.core.port.driver.has_commands() {
            return false;
        }
        let job = Job::Command { fd: file.as_raw_fd(), code, bytes };
        // SAFETY: guaranteed by the caller.
        unsafe { self.core.port.driver.push(token_of(self.frontend, token), &job) };
        true
    }

    /// Returns how many commands and other jobs of this shard were ever queued, and how many of them the kernel has
    /// taken. What a file copies when the kernel takes a command has been copied once the command is among these. Both
    /// numbers are 0 without io_uring.
    pub fn commands(&mut self) -> (u64, u64) {
        let driver = &mut self.core.port.driver;
        (driver.pushed(), driver.begun())
    }

    /// Has [`Frontend::timer`] called once the clock of [`Cx::now_ns`] has reached `at_ns`. The timer cannot be
    /// cancelled. Returns false if the table is full ([`crate::TIMERS_MAX`]).
    pub fn timer_at(&mut self, at_ns: u64, token: u64) -> bool {
        self.core.timers.set(at_ns, self.frontend, token)
    }
}
