//! The engine's interfaces: requests from above, leaf I/Os below.
//!
//! This module does no I/O. A frontend submits a [`Request`] to a shard; the shard plans it into [`LeafIo`]s and
//! submits each to a [`LeafSink`]; the driver of the leaves (io_uring, libaio, threads, the simulator) reports the
//! result of each exactly once, by its [`Cookie`].

use std::fmt;

/// Maximum length of a read or write that a device accepts, in bytes (32 MiB).
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Maximum number of pieces of memory that one leaf I/O may gather or scatter.
pub const PIECES_MAX: u32 = 256;

/// Maximum length of a leaf read or write in bytes (1 MiB); the planner cuts longer runs.
pub const LEAF_BYTES_MAX: u64 = 1 << 20;

/// Number of 4 KiB blocks that each shard's driver keeps for the engine's own metadata writes.
pub const META_BLOCKS: u32 = 64;

/// Index of a disk in the table of leaves, the same on every shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeafId(pub u32);

/// A device (an array, a bare disk, or a volume), the same on every shard: its index in the table of devices, and above
/// [`DeviceId::INDEX_BITS`] a number that distinguishes it from devices of other engines with the same index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// Number of bits of the index.
    pub const INDEX_BITS: u32 = 20;

    /// Returns its index in the table of devices.
    #[inline(always)]
    pub const fn index(self) -> usize {
        (self.0 & ((1 << DeviceId::INDEX_BITS) - 1)) as usize
    }
}

/// Index of a shard, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ShardId(pub u16);

/// The operation of a request or a leaf I/O.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Op {
    /// Fill the buffer from the device.
    Read,
    /// Write the buffer to the device.
    Write,
    /// The range reads as zeros afterwards. With [`Flags::NO_UNMAP`] it also stays allocated.
    WriteZeroes,
    /// The range's content is no longer needed. A hint: the range may read as before, or as zeros.
    Discard,
    /// Everything acknowledged before this was submitted, on any shard, survives loss of power.
    Flush,
}

/// Modifiers of a request, as a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No modifier.
    pub const NONE: Flags = Flags(0);
    /// Force unit access: this write is durable before it is acknowledged.
    pub const FUA: Flags = Flags(1);
    /// Zeroed ranges keep their space (NBD's `NO_HOLE`).
    pub const NO_UNMAP: Flags = Flags(2);
    /// Zero only if that is faster than writing; else fail with [`ErrorKind::Unsupported`].
    pub const FAST_ZERO: Flags = Flags(4);
    /// Much of what is read may be holes: for a remote disk the holes are determined first, and only the rest is
    /// transferred. A hint.
    pub const SPARSE: Flags = Flags(8);
    /// For a read of a leaf: another leaf has the same data, so that the read may be abandoned with [`ErrorKind::Slow`]
    /// if it takes unusually long.
    pub const HAS_ALTERNATIVE: Flags = Flags(16);
    /// Position of the number of [`Flags::alternative_try`].
    const TRIES_SHIFT: u32 = 5;
    /// How often one request may be abandoned. The last try is waited for.
    pub const TRIES_MAX: u8 = 7;

    /// Returns [`Flags::HAS_ALTERNATIVE`] for a read that was abandoned `tries` times before. Each try may take twice
    /// as long as the one before it.
    ///
    /// # Panics
    /// If `tries` is [`Flags::TRIES_MAX`] or more.
    #[inline]
    pub const fn alternative_try(tries: u8) -> Flags {
        assert!(tries < Flags::TRIES_MAX);
        Flags(Flags::HAS_ALTERNATIVE.0 | tries << Flags::TRIES_SHIFT)
    }

    /// Returns whether a read that has waited for `waited_ns` is to be abandoned. `limit_ns` is the limit of a
    /// request's first try; each further try has twice the limit of the one before it. Always false without
    /// [`Flags::HAS_ALTERNATIVE`].
    #[inline]
    pub const fn is_abandoned_after(self, waited_ns: u64, limit_ns: u64) -> bool {
        self.has(Flags::HAS_ALTERNATIVE) && waited_ns >= limit_ns << self.tries()
    }

    const fn tries(self) -> u8 {
        self.0 >> Flags::TRIES_SHIFT
    }

    /// Returns whether every bit of `other` is set here.
    #[inline]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Flags::FUA, "FUA"),
            (Flags::NO_UNMAP, "NO_UNMAP"),
            (Flags::FAST_ZERO, "FAST_ZERO"),
            (Flags::SPARSE, "SPARSE"),
            (Flags::HAS_ALTERNATIVE, "HAS_ALTERNATIVE"),
        ];
        f.debug_set().entries(names.iter().filter(|n| self.has(n.0)).map(|n| n.1)).finish()?;
        if self.tries() > 0 { write!(f, "+{}", self.tries()) } else { Ok(()) }
    }
}

/// A location in memory, opaque to the engine, which only adds to it.
///
/// In the ring it is an address, in the simulator an offset into simulated memory. The submitter of a request keeps
/// `len` bytes valid there until the request's completion says the buffer is free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Buf {
    /// Address or handle of the first byte.
    pub addr: u64,
    /// The registered buffer of the shard that contains it, or [`Buf::UNREGISTERED`].
    pub region: u16,
}

impl Buf {
    /// The region of memory that no driver registered.
    pub const UNREGISTERED: u16 = u16::MAX;
    /// For requests that carry no data.
    pub const NONE: Buf = Buf { addr: 0, region: Buf::UNREGISTERED };

    /// Returns the location `bytes` further on.
    #[inline]
    #[must_use]
    pub const fn add(self, bytes: u64) -> Buf {
        Buf { addr: self.addr + bytes, region: self.region }
    }
}

/// A request to a device.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The device.
    pub device: DeviceId,
    /// The operation.
    pub op: Op,
    /// Modifiers.
    pub flags: Flags,
    /// First byte, a multiple of [`crate::DeviceLayout::request_bytes`]; 0 for a flush.
    pub offset: u64,
    /// Bytes, a multiple of [`crate::DeviceLayout::request_bytes`]; at most [`REQUEST_BYTES_MAX`] for reads and writes;
    /// 0 for a flush.
    pub len: u64,
    /// The data, or [`Buf::NONE`].
    pub buf: Buf,
    /// Returned in the completion, meaningless to the engine.
    pub tag: u64,
}

/// The result of a request. Given exactly once for each accepted request.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The request's own tag.
    pub tag: u64,
    /// Success, or the first error met.
    pub result: Result<(), IoError>,
    /// The kernel may still access the buffer: a leaf I/O exceeded its time limit. The buffer must not be used until
    /// [`crate::Shard::pop_released`] returns this tag.
    pub buffer_busy: bool,
}

/// A stable, small classification of I/O errors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ErrorKind {
    /// The disk reported an error.
    Io,
    /// The disk is gone.
    Gone,
    /// No completion within the time limit.
    TimedOut,
    /// No space left.
    NoSpace,
    /// Outside the device, unaligned, or too long.
    Invalid,
    /// The device does not support the operation.
    Unsupported,
    /// The device is read-only.
    ReadOnly,
    /// Too many requests in flight; try again after a completion.
    Busy,
    /// The device is stopped or never existed. Never a reply to a client: see [`ErrorKind::is_unsettled`].
    NoDevice,
    /// The device has a lease, and this node stops serving it or has lost its replicas. The controller that serves the
    /// device next, on this node or another one, decides the outcome of the request. Never a reply to a client: see
    /// [`ErrorKind::is_unsettled`].
    Unsettled,
    /// The array has lost more members than it tolerates.
    Failed,
    /// An earlier FLUSH failed: what was acknowledged may not be durable. Persists until the disk is reopened.
    FlushFailed,
    /// A crash happened during a full-stripe write of an array with parity, and a member was lost: that member's
    /// content of the stripe is unknown, until it is rewritten. Or a block of a volume may be on a missing member of
    /// its pool.
    Unreadable,
    /// Only for a leaf read with [`Flags::HAS_ALTERNATIVE`]: it took unusually long and was abandoned. No I/O uses its
    /// memory any more.
    Slow,
}

impl ErrorKind {
    /// Returns whether the outcome of the request is left to the component that serves the device next. A frontend
    /// never replies to such a request: a file system that receives an error aborts its journal, although the same
    /// request would succeed some seconds later. A frontend whose clients reconnect (NBD) ends the connection without a
    /// reply; a frontend whose device outlives the interruption (FUSE, ublk) lets the request wait.
    #[inline]
    pub const fn is_unsettled(self) -> bool {
        matches!(self, ErrorKind::NoDevice | ErrorKind::Unsettled)
    }
}

/// An error of a request: its kind, and if known the leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoError {
    /// The class of the error.
    pub kind: ErrorKind,
    /// The disk that it came from, if known.
    pub leaf: Option<LeafId>,
    /// The operating system's error number, or 0.
    pub errno: i32,
    /// Byte offset on the device: of the request, or of the first byte that cannot be read.
    pub offset: u64,
}

impl IoError {
    /// Returns an error that concerns no leaf.
    pub const fn of(kind: ErrorKind) -> IoError {
        IoError { kind, leaf: None, errno: 0, offset: 0 }
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)?;
        if let Some(leaf) = self.leaf {
            write!(f, " on disk {}, at byte {} of the device", leaf.0, self.offset)?;
        }
        if self.errno != 0 {
            write!(f, " (errno {})", self.errno)?;
        }
        Ok(())
    }
}

impl std::error::Error for IoError {}

/// Identifies a leaf I/O in flight. The top 8 bits are the driver's own: the engine leaves them 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cookie(pub u64);

/// An I/O to a leaf: a contiguous range there, in one or several equally spaced pieces of memory.
///
/// Striping is regular, so the pieces need no list. Piece 0 has `first_len` bytes and is at `buf`. Piece k ≥ 1 has
/// `piece_len` bytes (the last piece may have fewer) and is at `buf + first_gap + (k - 1)·stride`.
#[derive(Clone, Copy, Debug)]
pub struct LeafIo {
    /// The disk.
    pub leaf: LeafId,
    /// The operation.
    pub op: Op,
    /// Modifiers; FUA on a write means durable when it completes.
    pub flags: Flags,
    /// First byte on the leaf.
    pub offset: u64,
    /// Bytes on the leaf.
    pub len: u64,
    /// Memory of the first piece, or [`Buf::NONE`].
    pub buf: Buf,
    /// Bytes in the first piece; equal to `len` when there is one piece only.
    pub first_len: u32,
    /// Bytes in each further piece (the last may be shorter).
    pub piece_len: u32,
    /// From the start of piece 0 to the start of piece 1.
    pub first_gap: u32,
    /// From the start of piece k to the start of piece k + 1, for k ≥ 1.
    pub stride: u32,
    /// Returned with the result.
    pub cookie: Cookie,
}

impl LeafIo {
    /// Returns an I/O with all its memory in one piece.
    #[inline]
    pub const fn simple(leaf: LeafId, op: Op, flags: Flags, offset: u64, len: u64, buf: Buf, cookie: Cookie) -> LeafIo {
        LeafIo {
            leaf,
            op,
            flags,
            offset,
            len,
            buf,
            first_len: if matches!(op, Op::Read | Op::Write) { len as u32 } else { 0 },
            piece_len: 0,
            first_gap: 0,
            stride: 0,
            cookie,
        }
    }

    /// Returns how many pieces of memory this I/O uses; 1 for operations without data.
    #[inline]
    pub fn pieces(&self) -> u32 {
        if u64::from(self.first_len) >= self.len || self.piece_len == 0 {
            1
        } else {
            1 + (self.len - u64::from(self.first_len)).div_ceil(u64::from(self.piece_len)) as u32
        }
    }

    /// Returns memory and length of piece `k`.
    #[inline]
    pub fn piece(&self, k: u32) -> (Buf, u32) {
        if k == 0 {
            return (self.buf, u64::from(self.first_len).min(self.len) as u32);
        }
        let done = u64::from(self.first_len) + u64::from(k - 1) * u64::from(self.piece_len);
        let at = u64::from(self.first_gap) + u64::from(k - 1) * u64::from(self.stride);
        (self.buf.add(at), u64::from(self.piece_len).min(self.len - done) as u32)
    }
}

/// The result of a leaf I/O.
pub type LeafResult = Result<(), LeafError>;

/// Why a leaf I/O failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafError {
    /// The class of the error.
    pub kind: ErrorKind,
    /// The operating system's error number, or 0.
    pub errno: i32,
}

impl LeafError {
    /// Returns an error of this kind without an error number.
    pub const fn of(kind: ErrorKind) -> LeafError {
        LeafError { kind, errno: 0 }
    }
}

impl fmt::Display for LeafError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (errno {})", self.kind, self.errno)
    }
}

impl std::error::Error for LeafError {}

/// A computation on the bytes of several memory locations: the inputs, then the outputs.
pub type ComputeFn<'a> = dyn FnMut(&[&[u8]], &mut [&mut [u8]]) + 'a;

/// The sink of leaf I/Os, implemented by every driver: the only interface from the engine to the disks.
///
/// A driver reports the result of each submitted I/O exactly once through [`crate::Shard::leaf_done`], never from
/// inside `submit`. An I/O that exceeds its time limit is reported through [`crate::Shard::leaf_late`] and, when the
/// kernel finally returns it, through [`crate::Shard::leaf_returned`].
pub trait LeafSink {
    /// Submits an I/O. The engine never has more in flight than the limits that it was built with.
    fn submit(&mut self, io: &LeafIo);

    /// Carries out a read or write within the call, if the leaf can: a healthy in-memory disk without a cache, on which
    /// FUA has no meaning. The I/O is at most [`LEAF_BYTES_MAX`] long and in one piece of memory. Returns `None` if the
    /// leaf cannot complete it within the call: then nothing was done, and the caller submits the I/O.
    #[inline]
    fn complete_inline(&mut self, _leaf: LeafId, _op: Op, _offset: u64, _len: u64, _buf: Buf) -> Option<LeafResult> {
        None
    }

    /// Prefetches the cache line at this address, if the processor has such a hint. There is no other effect, whatever
    /// the address.
    #[inline(always)]
    fn prefetch(&self, _address: *const u8) {}

    /// Fills memory of a request with zeros.
    fn zero(&mut self, buf: Buf, len: u64);

    /// Returns whether two ranges of memory hold the same bytes.
    fn is_equal(&mut self, a: Buf, b: Buf, len: u64) -> bool;

    /// Returns this shard's scratch memory: its start, a multiple of 4096, and its length in bytes, a multiple of 6 MiB
    /// and at least [`crate::SCRATCH_BYTES_MIN`]. The engine owns the memory as long as the shard lives. Called once,
    /// when the first array with parity, pool or device that takes sectors
    /// ([`crate::DeviceLayout::with_sector_requests`]) is served.
    fn scratch(&mut self) -> (Buf, u64);

    /// Calls `work` with the `len` bytes at each of these locations: the inputs and the outputs. Inputs may be memory
    /// of requests of other shards.
    fn compute(&mut self, inputs: &[Buf], outputs: &[Buf], len: u64, work: &mut ComputeFn<'_>);

    /// Returns the time in nanoseconds of any monotonic clock; always 0 if there is none.
    fn now_ns(&self) -> u64 {
        0
    }

    /// Returns the time of the clock of leases ([`crate::DeviceLease`]), which continues while the machine sleeps.
    /// Called only for devices with a lease.
    fn lease_ns(&self) -> u64 {
        self.now_ns()
    }

    /// Returns the shard's block of metadata memory number `index`, below [`META_BLOCKS`]: its location and its bytes.
    /// The engine fills it before it submits a write of it, and does not change it until that write has ended.
    fn meta_block(&mut self, index: u32) -> (Buf, &mut [u8; 4096]);
}

/// I/O of labels and other metadata, for code that runs on no data core.
///
/// Offsets and lengths are multiples of 4096 bytes. A `write` that returned is in the disk's cache; only a `flush`
/// begun after it, or `fua`, makes it durable.
#[allow(async_fn_in_trait)]
pub trait MetaIo {
    /// Returns the size of the leaf in bytes.
    fn size_bytes(&self, leaf: LeafId) -> u64;
    /// Reads `len` bytes at `offset`.
    async fn read(&self, leaf: LeafId, offset: u64, len: usize) -> Result<Vec<u8>, LeafError>;
    /// Writes `data` at `offset`.
    async fn write(&self, leaf: LeafId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), LeafError>;
    /// Makes everything written before durable.
    async fn flush(&self, leaf: LeafId) -> Result<(), LeafError>;
    /// Records with the voters of a replicated array that the members in these slots are in sync, and no others; the
    /// array's labels record it as well. Returns when the record is durable on a quorum. Returns those of the slots
    /// whose members have failed meanwhile, and which are therefore not recorded as in sync. Waits as long as too few
    /// voters are reachable. An array without voters has nothing to record: returns at once.
    ///
    /// Order: a dropped member is recorded here before any label says so; a promotion is in all labels before it is
    /// recorded here.
    ///
    /// # Errors
    /// Another controller has taken over the array: this controller must not write to it or answer its requests any
    /// more.
    async fn record_in_sync(&self, _in_sync: &[u16]) -> Result<Vec<u16>, LeafError> {
        Ok(Vec::new())
    }
}

/// I/O of devices, for code that runs on no data core: a pool keeps its labels, tables and rings on devices, so that
/// the arrays below it protect them as every request.
///
/// Offsets and lengths are bytes, multiples of the device's logical block. A read may be of any length; a long one is
/// cut into requests of at most [`REQUEST_BYTES_MAX`], and is not atomic. A `write` that returned is visible to later
/// reads, and is in the disks' caches; only a `flush` of the device begun after it, or `fua`, makes it durable. After
/// an error it is unknown how much was written, and after [`ErrorKind::TimedOut`] the write may still happen; requests
/// to the same range are refused until that is over. If too many requests are in flight, calls wait.
#[allow(async_fn_in_trait)]
pub trait DeviceIo {
    /// Returns the current size of the device in bytes: arrays grow. 0 if there is no such device.
    fn size_bytes(&self, device: DeviceId) -> u64;
    /// Returns the device's logical block in bytes. 0 if there is no such device.
    fn block_bytes(&self, device: DeviceId) -> u32;
    /// Reads `len` bytes at `offset`.
    async fn read(&self, device: DeviceId, offset: u64, len: usize) -> Result<Vec<u8>, IoError>;
    /// Writes `data` at `offset`, at most [`REQUEST_BYTES_MAX`] of it. With `fua` it is durable when this returns.
    async fn write(&self, device: DeviceId, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), IoError>;
    /// Makes every write durable that was acknowledged before, to any client and on any shard.
    async fn flush(&self, device: DeviceId) -> Result<(), IoError>;
    /// The range, of any length, is no longer needed: afterwards each sector reads as before or as zeros.
    async fn discard(&self, device: DeviceId, offset: u64, len: u64) -> Result<(), IoError>;
}
