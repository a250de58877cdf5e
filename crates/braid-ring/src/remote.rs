//! Disks on the other side of a network: what carries a shard's I/O to one, and what it may ask of the shard.
//!
//! The port cuts leaf I/Os into parts and holds them; a [`Carrier`] takes parts, speaks with the other side, and says how each
//! ended. The data of a part is sent from, and received into, the memory of its I/O: a carrier names it and never has its address.
//! A part that was taken must be answered, however late, and only when no send or receive on its memory is in flight any more:
//! whoever asked gets that memory back at once. So these I/Os need no time limit of the port's; the carrier keeps it.

use std::os::fd::OwnedFd;

use braid_engine::{Flags, Op};

use crate::frontend::FRONTENDS_MAX;
use crate::map::Map;
use crate::net::{RecvMode, SEND_PIECES_MAX, SocketId};
use crate::shard::Core;

/// Disks of this kind that a shard can hold at a time.
pub const REMOTES_MAX: usize = 256;

/// Bytes that a carrier receives at once into memory of its own.
pub const INPUT_BYTES: usize = 64 << 10;
/// Bytes that a carrier can have in one send beside the data of parts. What it never uses takes no memory.
pub const OUTPUT_BYTES: usize = 256 << 10;

/// Connections that a carrier can have at a time.
pub const REMOTE_CONNECTIONS_MAX: usize = 8;

/// The error number of a part with [`Flags::OTHERS`] that is given up because it takes unusually long. No disk has it.
pub const SLOW: i32 = libc::EINPROGRESS;

const RECEIVED: u64 = 1;
const SENT: u64 = 2;
/// In a token, above what has ended: on which connection.
const CONNECTION_SHIFT: u32 = 8;

/// A disk on the other side of a network, as all shards know it.
pub trait RemoteDisk: Send + Sync + 'static {
    /// Bytes that it holds, a multiple of [`RemoteDisk::logical_block_bytes`].
    fn size_bytes(&self) -> u64;
    /// What offsets and lengths must be multiples of: a power of two from 512 to 4096.
    fn logical_block_bytes(&self) -> u32;
    /// It is, or is no longer, a member of something that can go on without it: then it is rather lost than believed.
    fn set_replaceable(&self, replaceable: bool);
    /// Why nothing is asked of it any more until it is opened again, if it is so: a sentence that begins with "it" or "its".
    fn lost_because(&self) -> Option<&str>;
    /// Whether nothing that it was asked for, and has not answered, may be done yet.
    fn is_settled(&self) -> bool;
    /// How many connections each carrier may have, up to [`REMOTE_CONNECTIONS_MAX`].
    fn connections(&self) -> usize {
        1
    }
    /// It takes one connection at a time: the shard that has it carries the I/O of all others, too.
    fn has_one_connection(&self) -> bool {
        false
    }
    /// What carries the I/O of one shard, by its number, to it. Called on that shard's thread, once.
    fn carrier(&self, shard: u32) -> Box<dyn Carrier>;
}

/// Carries the I/O of one shard to one disk. It never blocks. What is told of a connection comes with that one chosen ([`RemoteCx::choose`]).
pub trait Carrier {
    /// Something was asked for, or has happened: called once in a turn of the loop, behind all else.
    fn work(&mut self, cx: &mut RemoteCx<'_>);
    /// A receive on a connection has ended: with its bytes (0: end of stream), or minus an error number.
    fn received(&mut self, cx: &mut RemoteCx<'_>, connection: usize, result: i32);
    /// A send has ended, likewise.
    fn sent(&mut self, cx: &mut RemoteCx<'_>, connection: usize, result: i32);
    /// The timer of a connection has rung.
    fn timer(&mut self, cx: &mut RemoteCx<'_>, connection: usize);
    /// The disk is taken from the shard; nothing is asked of it any more. The connections are to be closed.
    fn leave(&mut self, cx: &mut RemoteCx<'_>);
}

/// Part of a leaf I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemotePart {
    /// Which I/O: a number that only the port understands.
    pub io: u32,
    /// What to do.
    pub op: Op,
    /// Modifiers; a write with FUA is durable when it is answered.
    pub flags: Flags,
    /// First byte on the disk.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// First byte in the I/O.
    pub at: u64,
    /// When the I/O was asked for.
    pub start_ns: u64,
}

impl RemotePart {
    /// Whether it is a read that has waited for too long and that another disk may answer, where a request's first try may take `limit_ns`.
    pub fn is_slow(&self, now_ns: u64, limit_ns: u64) -> bool {
        self.flags.gives_up(now_ns.saturating_sub(self.start_ns), limit_ns)
    }
}

/// How I/Os are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Bytes of a part that carries data.
    pub data_bytes: u64,
    /// Bytes of one that zeroes or discards.
    pub range_bytes: u64,
    /// Pieces of memory of one that carries data.
    pub pieces: usize,
}

/// What a shard holds for one connection of a carrier.
pub(crate) struct Desk {
    input: Map,
    output: Map,
    /// What the next send consists of: addresses and lengths.
    gathered: Vec<(u64, u32)>,
    socket: Option<SocketId>,
}

impl Desk {
    pub(crate) fn new() -> std::io::Result<Desk> {
        let gathered = Vec::with_capacity(SEND_PIECES_MAX);
        Ok(Desk { input: Map::new(INPUT_BYTES)?, output: Map::new(OUTPUT_BYTES)?, gathered, socket: None })
    }

    /// Whether it has a connection, or what is left of one.
    pub(crate) fn has_socket(&self) -> bool {
        self.socket.is_some()
    }
}

/// A shard, as a carrier sees it.
pub struct RemoteCx<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) desks: &'a mut [Desk],
    pub(crate) chosen: usize,
    pub(crate) place: u16,
}

impl RemoteCx<'_> {
    /// Whatever is said of a connection from here on is said of this one.
    ///
    /// # Panics
    /// When the disk has not so many.
    pub fn choose(&mut self, connection: usize) {
        assert!(connection < self.desks.len(), "one of its connections");
        self.chosen = connection;
    }

    fn desk(&mut self) -> &mut Desk {
        &mut self.desks[self.chosen]
    }

    fn token(&self, of: u64) -> u64 {
        of | (self.chosen as u64) << CONNECTION_SHIFT
    }

    /// The time in nanoseconds (CLOCK_MONOTONIC), read once a turn of the loop.
    pub fn now_ns(&self) -> u64 {
        self.core.port.now_ns
    }

    /// The next part of what waits.
    pub fn take(&mut self, cut: &Cut) -> Option<RemotePart> {
        self.core.port.take_part(self.place, cut)
    }

    /// Since when the oldest I/O waits of which something was not taken.
    pub fn waiting_since_ns(&self) -> Option<u64> {
        self.core.port.waiting_since_ns(self.place)
    }

    /// A part has ended, well or with an error number. Nothing may be in flight on its memory.
    pub fn done(&mut self, part: &RemotePart, result: Result<(), i32>) {
        self.core.port.part_done(part.io, result);
    }

    /// Ends the oldest I/O that waits; of its parts that were taken those go on.
    pub fn fail_waiting(&mut self, errno: i32) {
        self.core.port.fail_waiting(self.place, errno);
    }

    /// Ends, with [`SLOW`], the reads that have waited for too long ([`RemotePart::is_slow`]) and of which something was not taken; of
    /// their parts that were taken those go on. Since when the first of them has waited; none: there were none.
    pub fn give_up_reads(&mut self, now_ns: u64, limit_ns: u64) -> Option<u64> {
        self.core.port.give_up_reads(self.place, now_ns, limit_ns)
    }

    /// Gives a stream socket to the shard, connected or about to be; false when it has no room.
    pub fn open(&mut self, socket: OwnedFd) -> bool {
        debug_assert!(self.desk().socket.is_none(), "one connection at a time");
        let user = FRONTENDS_MAX as u16 + self.place;
        self.desk().socket = self.core.net.add(socket, user, &mut self.core.port.driver).ok();
        self.desk().has_socket()
    }

    /// Shuts the connection down: what is in flight on it ends soon, and must before another is opened.
    pub fn close(&mut self) {
        if let Some(socket) = self.desk().socket.take() {
            self.core.net.close(socket, &mut self.core.port.driver);
        }
    }

    /// What was received, from byte `from` to byte `to` of [`INPUT_BYTES`].
    ///
    /// # Panics
    /// When there is no such range.
    #[allow(unsafe_code)]
    pub fn input(&self, from: usize, to: usize) -> &[u8] {
        assert!(from <= to && to <= INPUT_BYTES, "within the input");
        // SAFETY: inside the mapping. The kernel writes only behind what was received before, which is what carriers look at; and at
        // worst to bytes of which every value is valid.
        unsafe { std::slice::from_raw_parts(self.desks[self.chosen].input.ptr().add(from), to - from) }
    }

    /// The same, to be changed where it lies. No receive may be in flight.
    ///
    /// # Panics
    /// When there is no such range.
    #[allow(unsafe_code)]
    pub fn input_mut(&mut self, from: usize, to: usize) -> &mut [u8] {
        assert!(from <= to && to <= INPUT_BYTES, "within the input");
        // SAFETY: inside the mapping, known to nobody else while no receive is in flight.
        unsafe { std::slice::from_raw_parts_mut(self.desk().input.ptr().add(from), to - from) }
    }

    /// Moves what was received to the front.
    ///
    /// # Panics
    /// When there is no such range.
    #[allow(unsafe_code)]
    pub fn move_input(&mut self, from: usize, to: usize) {
        assert!(from <= to && to <= INPUT_BYTES, "within the input");
        let start = self.desk().input.ptr();
        // SAFETY: both ranges lie inside the mapping; carriers do so only while no receive is in flight.
        unsafe { std::ptr::copy(start.add(from), start, to - from) }
    }

    /// Receives whatever comes, behind byte `at` of the input. Nothing happens without a connection: false.
    ///
    /// # Panics
    /// When there is no room, or a receive is in flight.
    pub fn receive(&mut self, at: usize) -> bool {
        assert!(at < INPUT_BYTES, "there is room");
        let addr = self.desk().input.addr() + at as u64;
        self.recv(addr, (INPUT_BYTES - at) as u32, RecvMode::Some)
    }

    /// Receives data of a part into its memory, from its byte `at` on, at most `len`: as much as lies in one piece. Returns how
    /// much that is; 0 without a connection.
    ///
    /// # Panics
    /// When the part has not so many bytes, or a receive is in flight.
    pub fn receive_data(&mut self, part: &RemotePart, at: u64, len: u64) -> u64 {
        let (addr, piece) = self.core.port.memory_of(part, at);
        let len = len.min(piece);
        if self.recv(addr, len as u32, RecvMode::Whole) { len } else { 0 }
    }

    fn recv(&mut self, addr: u64, len: u32, mode: RecvMode) -> bool {
        let Some(socket) = self.desk().socket else { return false };
        self.core.net.recv(socket, addr, len, mode, self.token(RECEIVED), &mut self.core.port.driver)
    }

    /// Copies what was received to the memory of a part, from its byte `at` on.
    ///
    /// # Panics
    /// When the part has not so many bytes, or the input.
    pub fn copy_data(&mut self, part: &RemotePart, at: u64, from: usize, to: usize) {
        assert!(from <= to && to <= INPUT_BYTES, "within the input");
        let source = self.desk().input.ptr().wrapping_add(from);
        self.core.port.copy_data(part, at, source, (to - from) as u64);
    }

    /// Copies bytes of the carrier's to the memory of a part, from its byte `at` on.
    ///
    /// # Panics
    /// When the part has not so many bytes.
    pub fn put_data(&mut self, part: &RemotePart, at: u64, data: &[u8]) {
        self.core.port.copy_data(part, at, data.as_ptr(), data.len() as u64);
    }

    /// Copies `len` bytes of the data of a part, from its byte `at` on, to the output: zeros, if it carries none. No send may be in flight.
    ///
    /// # Panics
    /// When the part has not so many bytes, or the output.
    pub fn output_data(&mut self, part: &RemotePart, at: u64, len: usize, to: usize) {
        assert!(to <= OUTPUT_BYTES && len <= OUTPUT_BYTES - to, "within the output");
        let target = self.desk().output.ptr().wrapping_add(to);
        self.core.port.data_to(part, at, target, len as u64);
    }

    /// Bytes to be sent: written here, then gathered. No send may be in flight.
    #[allow(unsafe_code)]
    pub fn output(&mut self) -> &mut [u8] {
        // SAFETY: the whole mapping, known to nobody else; carriers write to it only while no send is in flight.
        unsafe { std::slice::from_raw_parts_mut(self.desk().output.ptr(), OUTPUT_BYTES) }
    }

    /// How many pieces the next send has room for.
    pub fn room(&self) -> usize {
        SEND_PIECES_MAX - self.desks[self.chosen].gathered.len()
    }

    /// Adds a range of the output to what is sent next.
    ///
    /// # Panics
    /// When there is no such range, or no room.
    pub fn gather(&mut self, from: usize, to: usize) {
        assert!(from <= to && to <= OUTPUT_BYTES, "within the output");
        let addr = self.desk().output.addr() + from as u64;
        match self.desk().gathered.last_mut() {
            Some((last, len)) if *last + u64::from(*len) == addr => *len += (to - from) as u32,
            _ => self.gather_piece(addr, (to - from) as u32),
        }
    }

    fn gather_piece(&mut self, addr: u64, len: u32) {
        assert!(self.room() > 0, "at most {SEND_PIECES_MAX} pieces in one send");
        self.desk().gathered.push((addr, len));
    }

    /// Adds the data of a part: zeros, if it carries none.
    ///
    /// # Panics
    /// When there is no room.
    pub fn gather_data(&mut self, part: &RemotePart) {
        let mut at = 0;
        while at < part.len {
            let (addr, piece) = self.core.port.memory_of(part, at);
            let len = piece.min(part.len - at);
            self.gather_piece(addr, len as u32);
            at += len;
        }
    }

    /// Sends what was gathered. Nothing happens without a connection, or with nothing gathered: false.
    ///
    /// # Panics
    /// When a send is in flight.
    pub fn send(&mut self) -> bool {
        let token = self.token(SENT);
        let desk = &mut self.desks[self.chosen];
        let pieces = desk.gathered.drain(..);
        match desk.socket {
            Some(socket) if pieces.len() > 0 => self.core.net.send(socket, pieces, token, &mut self.core.port.driver),
            _ => false,
        }
    }

    /// Calls [`Carrier::timer`] for the connection at a time. It cannot be taken back. False when the shard has no room for it.
    pub fn timer_at(&mut self, at_ns: u64) -> bool {
        self.core.timers.set(at_ns, FRONTENDS_MAX as u16 + self.place, self.chosen as u64)
    }
}

/// A carrier and its desks.
pub(crate) struct Remote {
    carrier: Box<dyn Carrier>,
    desks: Box<[Desk]>,
    left: bool,
    /// Receives and sends of it that have not ended.
    busy: u32,
}

/// The remote disks of one shard, by their places.
#[derive(Default)]
pub(crate) struct Remotes {
    places: Vec<Option<Remote>>,
}

impl Remotes {
    /// A place for a disk. None where there is no room.
    pub(crate) fn add(&mut self, disk: &dyn RemoteDisk, shard: u32) -> Option<u16> {
        let connections = disk.connections().clamp(1, REMOTE_CONNECTIONS_MAX);
        let desks = (0..connections).map(|_| Desk::new()).collect::<std::io::Result<_>>().ok()?;
        let remote = Remote { carrier: disk.carrier(shard), desks, left: false, busy: 0 };
        let free = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if free == REMOTES_MAX {
            return None;
        }
        if free == self.places.len() {
            self.places.push(None);
        }
        self.places[free] = Some(remote);
        Some(free as u16)
    }

    /// Calls the carrier at a place. What it begins is counted, and it is called again behind all else of the turn.
    fn on(
        &mut self,
        core: &mut Core,
        place: u16,
        chosen: usize,
        call: impl FnOnce(&mut dyn Carrier, &mut RemoteCx<'_>),
    ) {
        let Some(Some(remote)) = self.places.get_mut(usize::from(place)) else { return };
        if chosen >= remote.desks.len() {
            // A timer of who was at this place before.
            return;
        }
        let before = core.net.busy();
        call(&mut *remote.carrier, &mut RemoteCx { core, desks: &mut remote.desks, chosen, place });
        remote.busy += core.net.busy() - before;
    }

    /// A receive, a send or a timer of a carrier has ended.
    pub(crate) fn event(&mut self, core: &mut Core, place: u16, token: u64, result: i32) {
        if let Some(Some(remote)) = self.places.get_mut(usize::from(place)) {
            remote.busy -= 1;
        }
        let connection = (token >> CONNECTION_SHIFT) as usize;
        self.on(core, place, connection, |carrier, cx| match token & ((1 << CONNECTION_SHIFT) - 1) {
            RECEIVED => carrier.received(cx, connection, result),
            _ => carrier.sent(cx, connection, result),
        });
        core.port.remote_is_due(place);
    }

    pub(crate) fn timer(&mut self, core: &mut Core, place: u16, token: u64) {
        let connection = token as usize;
        self.on(core, place, connection, |carrier, cx| carrier.timer(cx, connection));
        core.port.remote_is_due(place);
    }

    /// Lets those work for which there is something to do.
    pub(crate) fn work(&mut self, core: &mut Core) {
        while let Some(place) = core.port.next_due_remote() {
            self.on(core, place, 0, |carrier, cx| carrier.work(cx));
        }
    }

    /// Gives a place up of which no I/O is out; false while its connection is being closed.
    pub(crate) fn leave(&mut self, core: &mut Core, place: u16) -> bool {
        let Some(Some(remote)) = self.places.get_mut(usize::from(place)) else { return true };
        if !std::mem::replace(&mut remote.left, true) {
            self.on(core, place, 0, |carrier, cx| carrier.leave(cx));
        }
        let gone = self.places[usize::from(place)]
            .as_ref()
            .is_none_or(|r| r.busy == 0 && !r.desks.iter().any(Desk::has_socket));
        if gone {
            self.places[usize::from(place)] = None;
        }
        gone
    }

    /// The shard ends while the kernel may still use their memory: it is never given back.
    pub(crate) fn lose(self) {
        std::mem::forget(self.places);
    }
}
