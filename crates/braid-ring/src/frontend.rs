//! What lives on a shard beside the engine: servers of exports, load generators. And what it may ask for.

use std::any::Any;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use braid_engine::{Buf, Completion, DeviceId, ErrorKind, IoError, LeafId, Op, Request, ShardId, Soon};

use crate::channels::{ChannelId, MESSAGE_PIECES_MAX};
use crate::commands::{SHORT_COMMAND_BYTES, token_of};
use crate::driver::Job;
use crate::net::{RecvMode, SEND_PIECES_MAX, SendPiece, SocketId};
use crate::shard::Core;
use crate::tier::tier_of;

/// Frontends on one shard, at most.
pub const FRONTENDS_MAX: usize = 256;

/// Tags and tokens are numbers below this: the ring adds the frontend's own index above.
pub const TAG_LIMIT: u64 = 1 << TAG_BITS;
pub(crate) const TAG_BITS: u32 = 48;

/// Something that lives on a shard's thread and is called when there is work for it. It never blocks.
pub trait Frontend: Send + 'static {
    /// Called once, before anything else.
    fn start(&mut self, _cx: &mut Cx<'_>) {}
    /// A request that was submitted has ended. While `buffer_busy` its buffer must be left alone until
    /// [`Frontend::released`].
    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion);
    /// Several requests have ended, in this order. Called instead of [`Frontend::io_done`].
    fn ios_done(&mut self, cx: &mut Cx<'_>, completions: &[Completion]) {
        for completion in completions {
            self.io_done(cx, completion);
        }
    }
    /// The kernel has given the buffer of a late request back.
    fn released(&mut self, _cx: &mut Cx<'_>, _tag: u64) {}
    /// A receive or send has ended: with its bytes (0 received: end of stream), or minus an error number.
    fn net_done(&mut self, _cx: &mut Cx<'_>, _token: u64, _result: i32) {}
    /// A command of a file ([`Cx::command`]) has ended: with what the file answered, or minus an error number.
    fn command_done(&mut self, _cx: &mut Cx<'_>, _token: u64, _result: i32) {}
    /// A timer has rung.
    fn timer(&mut self, _cx: &mut Cx<'_>, _token: u64) {}
    /// Somebody has posted a message.
    fn message(&mut self, _cx: &mut Cx<'_>, _message: Box<dyn Any + Send>) {}
    /// All that a turn of the loop had to tell has been told: the place to send what was gathered.
    fn end_of_batch(&mut self, _cx: &mut Cx<'_>) {}
    /// The ring stops: begin nothing new. The shard ends when nothing is in flight; sockets left open
    /// are shut down then.
    fn stop(&mut self, _cx: &mut Cx<'_>) {}
    /// After a stop: whether the kernel uses no memory that a command of this frontend named. The shard waits for it. Commands
    /// that only wait for something are no reason.
    fn is_quiet(&mut self, _cx: &mut Cx<'_>) -> bool {
        true
    }
}

/// Memory of a disk, lent to be sent from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loan {
    /// Where it is.
    pub buf: Buf,
    leaf: LeafId,
}

/// A shard, as a frontend sees it.
pub struct Cx<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) frontend: u16,
}

impl Cx<'_> {
    /// Which shard this is.
    pub fn shard_id(&self) -> ShardId {
        self.core.id
    }

    /// The time in nanoseconds (CLOCK_MONOTONIC), read once a turn of the loop.
    pub fn now_ns(&self) -> u64 {
        self.core.port.now_ns
    }

    /// Submits a request; its tag is below [`TAG_LIMIT`]. Data must lie in this shard's arena.
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

    /// Submits a request as [`Cx::submit`] does; one that changes the device does not begin before [`Cx::settle_entered`], which has to follow in the same
    /// call of the frontend, and before another request enters that is not of the same client. See [`braid_engine::Shard::enter`].
    ///
    /// # Errors
    /// As [`Cx::submit`].
    #[inline]
    pub fn enter(&mut self, request: &Request) -> Result<(), IoError> {
        let tagged = self.tagged(request)?;
        let entered = self.core.on(tier_of(request.device), |engine, port| engine.enter(&tagged, port));
        entered.unwrap_or(Err(IoError::of(ErrorKind::NoDevice)))
    }

    /// Begins what has entered for this device; or, where its client is not there any more, ends it with [`ErrorKind::Unsettled`].
    #[inline]
    pub fn settle_entered(&mut self, device: DeviceId, is_there: bool) {
        self.core.on(tier_of(device), |engine, port| match is_there {
            true => engine.begin_entered(port),
            false => engine.call_off_entered(port),
        });
    }

    /// The request with a tag that leads back to this frontend.
    #[inline(always)]
    fn tagged(&self, request: &Request) -> Result<Request, IoError> {
        debug_assert!(request.tag < TAG_LIMIT, "a tag has {TAG_BITS} bits");
        let carries_data = matches!(request.op, Op::Read | Op::Write);
        if carries_data && self.core.port.arena.offset(request.buf, request.len).is_none() {
            return Err(IoError::of(ErrorKind::Invalid));
        }
        Ok(Request { tag: request.tag | u64::from(self.frontend) << TAG_BITS, ..*request })
    }

    /// Whether [`Cx::foresee`] is of use for this device: what it is asked is found by more than the processor's caches may hold.
    pub fn heeds(&self, device: DeviceId) -> bool {
        tier_of(device) == 0 && self.core.engine.heeds(device)
    }

    /// These reads and writes are going to be submitted next: what they are found by is fetched for all of them side by side. A few dozen at a
    /// time, as the caches must hold it until they come. They need not come.
    pub fn foresee(&self, device: DeviceId, soon: &[Soon]) {
        if tier_of(device) == 0 {
            self.core.engine.foresee(device, soon, &self.core.port);
        }
    }

    /// The memory in which a range of a device stands, if all of it is in one place on one disk in memory: what a read
    /// would copy, to be sent as it is. It counts as a read that was answered; what is written there meanwhile shows. Give
    /// it back by [`Cx::give_back`]: until then the disk cannot be removed.
    pub fn lend(&mut self, device: DeviceId, offset: u64, len: u64) -> Option<Loan> {
        if tier_of(device) != 0 {
            return None;
        }
        let (leaf, at) = self.core.engine.place_to_read(device, offset, len)?;
        let buf = self.core.port.lend(leaf, at, len)?;
        self.core.engine.count_read(device, len);
        Some(Loan { buf, leaf })
    }

    /// Whether what one disk of the device does not give may be had from another one: a read that ran into its time limit
    /// is then worth a second try, with other memory.
    pub fn is_redundant(&self, device: DeviceId) -> bool {
        self.core.engine_of(tier_of(device)).is_some_and(|engine| engine.is_redundant(device))
    }

    /// Whether these bytes are of what [`Cx::lend`] gave, and not of the arena.
    pub fn is_lent(&self, buf: Buf, len: usize) -> bool {
        self.core.port.arena.offset(buf, len as u64).is_none() && self.core.port.has_lent(buf, len as u64)
    }

    /// Copies bytes of what [`Cx::lend`] gave into the arena. Others may be writing there at the same time; the copy is
    /// nobody else's.
    ///
    /// # Panics
    /// When they are not lent, or `to` is outside the arena.
    pub fn copy_lent(&mut self, from: Buf, to: Buf, len: usize) {
        self.core.port.copy_lent(from, to, len);
    }

    /// Gives back what [`Cx::lend`] gave. No send may use it any more.
    pub fn give_back(&mut self, loan: Loan) {
        self.core.port.take_back(loan.leaf);
    }

    /// Memory for `len` bytes, aligned to 4 KiB; `None` when there is none now, or `len` is over 32 MiB.
    pub fn alloc(&mut self, len: usize) -> Option<Buf> {
        self.core.port.arena.alloc(len)
    }

    /// Gives memory back that [`Cx::alloc`] gave for the same `len`. No I/O may use it any more.
    pub fn free(&mut self, buf: Buf, len: usize) {
        self.core.port.arena.free(buf, len);
    }

    /// Bytes of the arena. Leave those alone that an I/O in flight uses.
    ///
    /// # Panics
    /// When they are not all in this shard's arena.
    pub fn memory(&mut self, buf: Buf, len: usize) -> &mut [u8] {
        self.core.port.arena.memory(buf, len)
    }

    /// As [`Cx::memory`], of two buffers at once.
    ///
    /// # Panics
    /// When they are not both in this shard's arena, or overlap.
    pub fn pair(&mut self, first: (Buf, usize), second: (Buf, usize)) -> (&mut [u8], &mut [u8]) {
        self.core.port.arena.pair(first, second)
    }

    /// As [`Cx::memory`], to read.
    pub fn bytes(&self, buf: Buf, len: usize) -> &[u8] {
        self.core.port.arena.bytes(buf, len)
    }

    /// Copies within the arena. Panics outside it.
    pub fn copy(&mut self, from: Buf, to: Buf, len: usize) {
        self.core.port.arena.copy(from, to, len);
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> u64 {
        self.core.port.arena.bytes_len()
    }

    /// Bytes of the arena that nobody has.
    pub fn free_bytes(&self) -> u64 {
        self.core.port.arena.free_bytes()
    }

    /// Gives a connected stream socket to the shard.
    ///
    /// # Errors
    /// Gives it back when the table is full ([`crate::SOCKETS_MAX`]) or the driver cannot watch it.
    pub fn add_socket(&mut self, fd: OwnedFd) -> Result<SocketId, OwnedFd> {
        self.core.net.add(fd, self.frontend, &mut self.core.port.driver)
    }

    /// Begins to receive into the arena. One at a time on a socket. On a closed one nothing happens: false.
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

    /// Begins to send pieces of the arena, or of what was lent, in order. One at a time on a socket; it ends when all
    /// bytes are sent. On a closed socket nothing happens: false.
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
        let places = pieces.iter().map(|p| (p.buf.addr, p.len));
        self.core.net.send(socket, places, token, &mut self.core.port.driver)
    }

    /// Ends both directions of a socket: what is in flight on it ends soon, each with its `net_done`.
    pub fn shutdown(&mut self, socket: SocketId) {
        self.core.net.shutdown(socket);
    }

    /// Shuts a socket down and closes it once its last `net_done` was given.
    pub fn close(&mut self, socket: SocketId) {
        self.core.net.close(socket, &mut self.core.port.driver);
    }

    /// Gives a file of messages, as `/dev/fuse` is one, to the shard.
    ///
    /// # Errors
    /// Gives it back when the table is full ([`crate::CHANNELS_MAX`]) or the driver is not io_uring.
    pub fn add_channel(&mut self, fd: OwnedFd) -> Result<ChannelId, OwnedFd> {
        self.core.channels.add(fd, self.frontend, &self.core.port.driver)
    }

    /// Begins to wait until a channel has a message or an error; `net_done` tells. Of several channels to one source one
    /// is told. False when it is closed, or waits already.
    pub fn await_message(&mut self, channel: ChannelId, token: u64) -> bool {
        debug_assert!(token < TAG_LIMIT);
        self.core.channels.wait(channel, token, &mut self.core.port.driver)
    }

    /// Reads one message into pieces of the arena: its bytes, or minus an error number (EAGAIN: there is none). None when
    /// the channel is closed.
    ///
    /// # Panics
    /// When a piece is not in the arena, or there are more than [`MESSAGE_PIECES_MAX`].
    pub fn read_message(&mut self, channel: ChannelId, pieces: &[SendPiece]) -> Option<i32> {
        self.check_message(pieces);
        self.core.channels.read(channel, pieces.iter().map(|p| (p.buf.addr, p.len)))
    }

    /// Returns whether the kernel has ended what the channel leads to, although messages may be unanswered.
    pub fn is_channel_ended(&mut self, channel: ChannelId) -> bool {
        self.core.channels.is_ended(channel)
    }

    /// Begins to write one message, all of it at once; `net_done` tells. False when the channel is closed, or
    /// [`crate::CHANNEL_CALLS_MAX`] writes are under way.
    ///
    /// # Panics
    /// As [`Cx::read_message`].
    pub fn write_message(&mut self, channel: ChannelId, pieces: &[SendPiece], token: u64) -> bool {
        debug_assert!(token < TAG_LIMIT);
        self.check_message(pieces);
        let places = pieces.iter().map(|p| (p.buf.addr, p.len));
        self.core.channels.write(channel, places, token, &mut self.core.port.driver)
    }

    fn check_message(&self, pieces: &[SendPiece]) {
        assert!(!pieces.is_empty() && pieces.len() <= MESSAGE_PIECES_MAX, "1 to {MESSAGE_PIECES_MAX} pieces");
        let arena = &self.core.port.arena;
        let inside = |p: &SendPiece| arena.offset(p.buf, u64::from(p.len)).is_some();
        assert!(pieces.iter().all(inside), "messages lie in the arena");
    }

    /// Closes a channel once its last `net_done` was given. A wait ends at once.
    pub fn close_channel(&mut self, channel: ChannelId) {
        self.core.channels.close(channel, &mut self.core.port.driver);
    }

    /// Begins a command of a file's own; [`Frontend::command_done`] tells its answer. False: this driver has none.
    ///
    /// # Safety
    /// The file stays open, and what the bytes name (memory, above all) stays as the file wants it, until the file is done
    /// with it.
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
        // SAFETY: the caller's promise, passed on.
        unsafe { self.core.port.driver.push(token_of(self.frontend, token), &job) };
        true
    }

    /// How many commands, and other calls of this shard, were ever begun, and how many of them the kernel has looked at: what it
    /// copies at a command's beginning it has copied.
    pub fn commands(&mut self) -> (u64, u64) {
        let driver = &mut self.core.port.driver;
        (driver.pushed(), driver.begun())
    }

    /// Calls [`Frontend::timer`] at a time of [`Cx::now_ns`]'s clock. It cannot be taken back. False when the table is
    /// full ([`crate::TIMERS_MAX`]).
    pub fn timer_at(&mut self, at_ns: u64, token: u64) -> bool {
        self.core.timers.set(at_ns, self.frontend, token)
    }
}
