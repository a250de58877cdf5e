//! Remote disks: the carriers that transport a shard's I/O to them, and the interface of the shard for carriers.
//!
//! The port splits leaf I/Os into parts and queues them. A [`Carrier`] takes parts, talks to the server, and reports
//! how each part ended. The data of a part is sent from, and received into, the memory of its I/O; a carrier refers to
//! the part and never has the address. A part that was taken must be completed, however late, and only when no send or
//! receive on its memory is in flight, because its memory is reusable from then on. These I/Os have no time limit of
//! the port; the carrier enforces it.

use std::os::fd::OwnedFd;

use crate::core::Core;
use crate::map::Map;
use crate::net::{RecvMode, SEND_PIECES_MAX, SocketId};
pub use crate::remote_part::{PartLimits, RemotePart, SLOW_ERRNO};
use crate::tokens::FRONTENDS_MAX;

/// Maximum number of remote disks of a shard.
pub const REMOTES_MAX: usize = 256;

/// Size of the input buffer of a connection in bytes.
pub const INPUT_BYTES: usize = 64 << 10;
/// Size of the output buffer of a connection in bytes, for everything in a send except the data of parts. Pages that
/// are never used take no memory.
pub const OUTPUT_BYTES: usize = 256 << 10;

/// Maximum number of connections of a carrier.
pub const REMOTE_CONNECTIONS_MAX: usize = 8;

const RECEIVED: u64 = 1;
const SENT: u64 = 2;
/// In a token, the connection is above the kind of event.
const CONNECTION_SHIFT: u32 = 8;

/// A remote disk, as all shards know it.
pub trait RemoteDisk: Send + Sync + 'static {
    /// Size in bytes, a multiple of [`RemoteDisk::logical_block_bytes`].
    fn size_bytes(&self) -> u64;
    /// Offsets and lengths are multiples of this: a power of two from 512 to 4096.
    fn logical_block_bytes(&self) -> u32;
    /// Sets whether the disk is a member of an array that can continue without it. If so, the disk counts as lost once
    /// it can no longer guarantee its acknowledged data; otherwise I/O waits for it.
    fn set_replaceable(&self, replaceable: bool);
    /// Returns why the disk is lost, if it is: a sentence that begins with "it" or "its". A lost disk gets no further
    /// I/O until it is opened again.
    fn loss_reason(&self) -> Option<&str>;
    /// Returns whether no write that was sent and got no reply can still take effect on the server.
    fn has_no_pending_effects(&self) -> bool;
    /// Number of connections of each carrier, up to [`REMOTE_CONNECTIONS_MAX`].
    fn connections(&self) -> usize {
        1
    }
    /// Returns whether the disk accepts a single connection only. One shard then has the connection, and the others
    /// forward their I/O to it.
    fn has_one_connection(&self) -> bool {
        false
    }
    /// Creates the carrier of one shard, given by its number. Called once, on that shard's thread.
    fn carrier(&self, shard: u32) -> Box<dyn Carrier>;
}

/// Transports the I/O of one shard to one disk. Must not block. In calls that name a connection, that connection is
/// selected (see [`RemoteCx::select_connection`]); in the others, connection 0 is.
pub trait Carrier {
    /// Called at the end of a turn of the loop if I/O was submitted or an event occurred.
    fn work(&mut self, cx: &mut RemoteCx<'_>);
    /// A receive on a connection has ended, with its number of bytes (0: end of stream), or a negated error number.
    fn received(&mut self, cx: &mut RemoteCx<'_>, connection: usize, result: i32);
    /// A send has ended, with its number of bytes or a negated error number.
    fn sent(&mut self, cx: &mut RemoteCx<'_>, connection: usize, result: i32);
    /// A timer of a connection has fired ([`RemoteCx::timer_at`]). Timers are not cancelled when a carrier is removed:
    /// a carrier that gets its index may see one that it has not set.
    fn timer(&mut self, cx: &mut RemoteCx<'_>, connection: usize);
    /// The disk is removed from the shard, and gets no further I/O. The carrier must close its connections.
    fn close(&mut self, cx: &mut RemoteCx<'_>);
}

/// The buffers and the socket of one connection of a carrier.
pub(crate) struct CarrierConnection {
    input: Map,
    output: Map,
    /// The pieces of the next send: addresses and lengths.
    gathered: Vec<(u64, u32)>,
    socket: Option<SocketId>,
}

impl CarrierConnection {
    pub(crate) fn new() -> std::io::Result<CarrierConnection> {
        let gathered = Vec::with_capacity(SEND_PIECES_MAX);
        Ok(CarrierConnection { input: Map::new(INPUT_BYTES)?, output: Map::new(OUTPUT_BYTES)?, gathered, socket: None })
    }

    /// Returns whether it has a socket, open or being closed.
    pub(crate) fn has_socket(&self) -> bool {
        self.socket.is_some()
    }
}

/// The interface of a shard for a carrier.
pub struct RemoteCx<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) connections: &'a mut [CarrierConnection],
    pub(crate) chosen: usize,
    pub(crate) carrier: u16,
}

impl RemoteCx<'_> {
    /// Selects the connection that the following calls refer to.
    ///
    /// # Panics
    /// When the disk does not have this connection.
    pub fn select_connection(&mut self, connection: usize) {
        assert!(connection < self.connections.len(), "one of its connections");
        self.chosen = connection;
    }

    fn connection(&mut self) -> &mut CarrierConnection {
        &mut self.connections[self.chosen]
    }

    fn token(&self, of: u64) -> u64 {
        of | (self.chosen as u64) << CONNECTION_SHIFT
    }

    /// Returns the time in nanoseconds (CLOCK_MONOTONIC), read once per turn of the loop.
    pub fn now_ns(&self) -> u64 {
        self.core.port.now_ns
    }

    /// Takes the next part of the oldest waiting I/O; `None` if no I/O waits. The carrier must complete each part that
    /// it takes, by [`RemoteCx::done`].
    pub fn take_part(&mut self, cut: &PartLimits) -> Option<RemotePart> {
        self.core.port.take_part(self.carrier, cut)
    }

    /// Returns the time in nanoseconds at which the oldest waiting I/O was submitted. An I/O waits until all its parts
    /// were taken.
    pub fn waiting_since_ns(&self) -> Option<u64> {
        self.core.port.waiting_since_ns(self.carrier)
    }

    /// Completes a part, with success or a positive error number. No send or receive on its memory may be in flight,
    /// because the memory may be reused at once. After an error, the parts of that I/O that were not taken are dropped.
    pub fn done(&mut self, part: &RemotePart, result: Result<(), i32>) {
        self.core.port.part_done(part.io, result);
    }

    /// Fails the oldest waiting I/O. Its parts that were taken continue.
    pub fn fail_waiting(&mut self, errno: i32) {
        self.core.port.fail_waiting(self.carrier, errno);
    }

    /// Fails, with the error kind `Slow`, all waiting reads that have exceeded the limit ([`RemotePart::is_slow`]).
    /// Their parts that were taken continue. Returns when the oldest of these reads was submitted; `None` if there were
    /// none.
    pub fn give_up_reads(&mut self, now_ns: u64, limit_ns: u64) -> Option<u64> {
        self.core.port.give_up_reads(self.carrier, now_ns, limit_ns)
    }

    /// Makes a stream socket, connected or connecting, the socket of the selected connection, which must have none.
    /// Returns false if the shard has no room for another socket; the socket is then closed.
    pub fn open(&mut self, socket: OwnedFd) -> bool {
        debug_assert!(self.connection().socket.is_none(), "one connection at a time");
        let user = FRONTENDS_MAX as u16 + self.carrier;
        self.connection().socket = self.core.net.add(socket, user, &mut self.core.port.driver).ok();
        self.connection().has_socket()
    }

    /// Shuts the selected connection down. Its receive and send in flight end soon, and must have ended before
    /// [`RemoteCx::open`] is called for it again.
    pub fn close(&mut self) {
        if let Some(socket) = self.connection().socket.take() {
            self.core.net.close(socket, &mut self.core.port.driver);
        }
    }

    /// Returns the received bytes `from..to` of the input buffer.
    ///
    /// # Panics
    /// When the range is outside the buffer.
    #[allow(unsafe_code)]
    pub fn input(&self, from: usize, to: usize) -> &[u8] {
        assert!(from <= to && to <= INPUT_BYTES, "within the input");
        // SAFETY: inside the mapping. The kernel writes only behind the bytes already received, which are those that
        // carriers read; and at worst, to bytes of which every value is valid.
        unsafe { std::slice::from_raw_parts(self.connections[self.chosen].input.ptr().add(from), to - from) }
    }

    /// Returns bytes `from..to` of the input buffer, mutable. No receive may be in flight.
    ///
    /// # Panics
    /// When the range is outside the buffer.
    #[allow(unsafe_code)]
    pub fn input_mut(&mut self, from: usize, to: usize) -> &mut [u8] {
        assert!(from <= to && to <= INPUT_BYTES, "within the input");
        // SAFETY: inside the mapping, to which there is no other access while no receive is in flight.
        unsafe { std::slice::from_raw_parts_mut(self.connection().input.ptr().add(from), to - from) }
    }

    /// Moves the received bytes `from..to` to the front of the input buffer.
    ///
    /// # Panics
    /// When the range is outside the buffer.
    #[allow(unsafe_code)]
    pub fn move_input(&mut self, from: usize, to: usize) {
        assert!(from <= to && to <= INPUT_BYTES, "within the input");
        let start = self.connection().input.ptr();
        // SAFETY: both ranges lie inside the mapping; carriers call this only while no receive is in flight.
        unsafe { std::ptr::copy(start.add(from), start, to - from) }
    }

    /// Starts receiving at offset `at` of the input buffer. The receive ends as soon as any bytes have arrived. Returns
    /// false if there is no connection.
    ///
    /// # Panics
    /// When the buffer has no room there, or a receive is in flight.
    pub fn receive(&mut self, at: usize) -> bool {
        assert!(at < INPUT_BYTES, "there is room");
        let addr = self.connection().input.addr() + at as u64;
        self.recv(addr, (INPUT_BYTES - at) as u32, RecvMode::Some)
    }

    /// Starts receiving data of a part into the part's memory, from byte `at` of the part on: `len` bytes, or fewer if
    /// the piece of memory there is shorter. The receive ends when all of them have arrived. Returns the number of
    /// bytes to be received, or 0 if there is no connection.
    ///
    /// # Panics
    /// When the part is too short, or a receive is in flight.
    pub fn receive_data(&mut self, part: &RemotePart, at: u64, len: u64) -> u64 {
        let (addr, piece) = self.core.port.memory_of(part, at);
        let len = len.min(piece);
        if self.recv(addr, len as u32, RecvMode::All) { len } else { 0 }
    }

    fn recv(&mut self, addr: u64, len: u32, mode: RecvMode) -> bool {
        let Some(socket) = self.connection().socket else { return false };
        self.core.net.recv(socket, addr, len, mode, self.token(RECEIVED), &mut self.core.port.driver)
    }

    /// Copies bytes `from..to` of the input buffer to the memory of a part, from its byte `at` on.
    ///
    /// # Panics
    /// When the part or the buffer is too short.
    pub fn copy_data(&mut self, part: &RemotePart, at: u64, from: usize, to: usize) {
        assert!(from <= to && to <= INPUT_BYTES, "within the input");
        let source = self.connection().input.ptr().wrapping_add(from);
        self.core.port.copy_data(part, at, source, (to - from) as u64);
    }

    /// Copies the carrier's own bytes to the memory of a part, from its byte `at` on.
    ///
    /// # Panics
    /// When the part is too short.
    pub fn put_data(&mut self, part: &RemotePart, at: u64, data: &[u8]) {
        self.core.port.copy_data(part, at, data.as_ptr(), data.len() as u64);
    }

    /// Copies `len` bytes of a part's data, from byte `at` of the part on, to offset `to` of the output buffer; zeros
    /// if the part has no data. No send may be in flight.
    ///
    /// # Panics
    /// When the part or the buffer is too short.
    pub fn output_data(&mut self, part: &RemotePart, at: u64, len: usize, to: usize) {
        assert!(to <= OUTPUT_BYTES && len <= OUTPUT_BYTES - to, "within the output");
        let target = self.connection().output.ptr().wrapping_add(to);
        self.core.port.data_to(part, at, target, len as u64);
    }

    /// Returns the output buffer. What is written there is sent once it was gathered ([`RemoteCx::gather`]). No send
    /// may be in flight.
    #[allow(unsafe_code)]
    pub fn output(&mut self) -> &mut [u8] {
        // SAFETY: the whole mapping, to which there is no other access; carriers write to it only while no send is in
        // flight.
        unsafe { std::slice::from_raw_parts_mut(self.connection().output.ptr(), OUTPUT_BYTES) }
    }

    /// Returns how many more pieces the next send has room for.
    pub fn room(&self) -> usize {
        SEND_PIECES_MAX - self.connections[self.chosen].gathered.len()
    }

    /// Adds a range of the output buffer to the next send.
    ///
    /// # Panics
    /// When the range is outside the buffer, or the send has no room.
    pub fn gather(&mut self, from: usize, to: usize) {
        assert!(from <= to && to <= OUTPUT_BYTES, "within the output");
        let addr = self.connection().output.addr() + from as u64;
        match self.connection().gathered.last_mut() {
            Some((last, len)) if *last + u64::from(*len) == addr => *len += (to - from) as u32,
            _ => self.gather_piece(addr, (to - from) as u32),
        }
    }

    fn gather_piece(&mut self, addr: u64, len: u32) {
        assert!(self.room() > 0, "at most {SEND_PIECES_MAX} pieces in one send");
        self.connection().gathered.push((addr, len));
    }

    /// Adds the data of a part to the next send; zeros if the part has no data.
    ///
    /// # Panics
    /// When the send has no room.
    pub fn gather_data(&mut self, part: &RemotePart) {
        let mut at = 0;
        while at < part.len {
            let (addr, piece) = self.core.port.memory_of(part, at);
            let len = piece.min(part.len - at);
            self.gather_piece(addr, len as u32);
            at += len;
        }
    }

    /// Sends the gathered pieces. Returns false if there is no connection or nothing was gathered.
    ///
    /// # Panics
    /// When a send is in flight.
    pub fn send(&mut self) -> bool {
        let token = self.token(SENT);
        let connection = &mut self.connections[self.chosen];
        let pieces = connection.gathered.drain(..);
        match connection.socket {
            Some(socket) if pieces.len() > 0 => self.core.net.send(socket, pieces, token, &mut self.core.port.driver),
            _ => false,
        }
    }

    /// Has [`Carrier::timer`] called for the selected connection once the clock of [`RemoteCx::now_ns`] has reached
    /// `at_ns`. The timer cannot be cancelled. Returns false if the shard has no room for another timer.
    pub fn timer_at(&mut self, at_ns: u64) -> bool {
        self.core.timers.set(at_ns, FRONTENDS_MAX as u16 + self.carrier, self.chosen as u64)
    }
}

/// A carrier and its connections.
pub(crate) struct Remote {
    carrier: Box<dyn Carrier>,
    connections: Box<[CarrierConnection]>,
    /// The disk is being removed, and [`Carrier::close`] was called.
    leaving: bool,
    /// Receives and sends in flight.
    busy: u32,
}

/// The carriers of one shard, by index.
#[derive(Default)]
pub(crate) struct Remotes {
    slots: Vec<Option<Remote>>,
}

impl Remotes {
    /// Adds a carrier for a disk, and returns its index. `None` if there is no room.
    pub(crate) fn add(&mut self, disk: &dyn RemoteDisk, shard: u32) -> Option<u16> {
        let connections = disk.connections().clamp(1, REMOTE_CONNECTIONS_MAX);
        let connections = (0..connections).map(|_| CarrierConnection::new()).collect::<std::io::Result<_>>().ok()?;
        let remote = Remote { carrier: disk.carrier(shard), connections, leaving: false, busy: 0 };
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if free == REMOTES_MAX {
            return None;
        }
        if free == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[free] = Some(remote);
        Some(free as u16)
    }

    /// Calls a carrier. Counts the sends and receives that it starts.
    fn on(
        &mut self,
        core: &mut Core,
        index: u16,
        chosen: usize,
        call: impl FnOnce(&mut dyn Carrier, &mut RemoteCx<'_>),
    ) {
        let Some(Some(remote)) = self.slots.get_mut(usize::from(index)) else { return };
        if chosen >= remote.connections.len() {
            // A timer that an earlier carrier with this index has set, for a connection that this one does not have.
            return;
        }
        let before = core.net.busy();
        call(
            &mut *remote.carrier,
            &mut RemoteCx { core, connections: &mut remote.connections, chosen, carrier: index },
        );
        remote.busy += core.net.busy() - before;
    }

    /// Handles the end of a receive or send.
    pub(crate) fn event(&mut self, core: &mut Core, index: u16, token: u64, result: i32) {
        if let Some(Some(remote)) = self.slots.get_mut(usize::from(index)) {
            remote.busy -= 1;
        }
        let connection = (token >> CONNECTION_SHIFT) as usize;
        self.on(core, index, connection, |carrier, cx| match token & ((1 << CONNECTION_SHIFT) - 1) {
            RECEIVED => carrier.received(cx, connection, result),
            _ => carrier.sent(cx, connection, result),
        });
        core.port.remote_is_due(index);
    }

    pub(crate) fn timer(&mut self, core: &mut Core, index: u16, token: u64) {
        let connection = token as usize;
        self.on(core, index, connection, |carrier, cx| carrier.timer(cx, connection));
        core.port.remote_is_due(index);
    }

    /// Calls the carriers that have work.
    pub(crate) fn work(&mut self, core: &mut Core) {
        while let Some(index) = core.port.next_due_remote() {
            self.on(core, index, 0, |carrier, cx| carrier.work(cx));
        }
    }

    /// Removes a carrier without I/O in flight. Returns false while its connections are being closed.
    pub(crate) fn leave(&mut self, core: &mut Core, index: u16) -> bool {
        let Some(Some(remote)) = self.slots.get_mut(usize::from(index)) else { return true };
        if !std::mem::replace(&mut remote.leaving, true) {
            self.on(core, index, 0, |carrier, cx| carrier.close(cx));
        }
        let gone = self.slots[usize::from(index)]
            .as_ref()
            .is_none_or(|r| r.busy == 0 && !r.connections.iter().any(CarrierConnection::has_socket));
        if gone {
            self.slots[usize::from(index)] = None;
        }
        gone
    }

    /// Leaks the buffers, because the kernel may still use them when the shard ends.
    pub(crate) fn leak(self) {
        std::mem::forget(self.slots);
    }
}
