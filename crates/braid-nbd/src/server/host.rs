//! What the server needs of its shard. The ring implements it, and so does the in-memory host of the tests.

use braid_engine::{Buf, DeviceId, IoError, Request, UpcomingRequest};

pub use braid_ring::{SEND_PIECES_MAX, SendPiece};

/// Memory of a disk, lent for sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loan {
    /// The memory.
    pub buf: Buf,
    /// The ring's own loan, to be returned; `None` from other hosts.
    pub(crate) ring_loan: Option<braid_ring::Loan>,
}

/// The shard as the server sees it. All memory comes from the shard's arena, and no method blocks.
pub trait Host {
    /// A socket's id.
    type Socket: Copy;

    /// Returns the monotonic time, constant within one turn of the shard's loop.
    fn now_ns(&self) -> u64;
    /// Submits a request to the engine. On an error no completion follows.
    fn submit(&mut self, request: &Request) -> Result<(), IoError>;
    /// Submits a request, but a request that changes the device does not begin before
    /// [`Host::begin_or_cancel_entered`]: see [`braid_engine::Shard::enter`].
    fn enter(&mut self, request: &Request) -> Result<(), IoError>;
    /// Begins the entered requests of this device or, if their client has disconnected, cancels them: nothing is
    /// changed.
    fn begin_or_cancel_entered(&mut self, device: DeviceId, is_connected: bool);
    /// Returns whether the device benefits from `prefetch`.
    fn benefits_from_prefetch(&self, _device: DeviceId) -> bool {
        false
    }
    /// Announces I/O that will probably be submitted next.
    fn prefetch(&mut self, _device: DeviceId, _soon: &[UpcomingRequest]) {}
    /// Returns whether the device can serve a read from another disk if one disk fails to.
    fn is_redundant(&self, _device: DeviceId) -> bool {
        false
    }
    /// Lends the memory that holds a range of the device, if it can be sent without a copy.
    fn lend(&mut self, _device: DeviceId, _offset: u64, _len: u64) -> Option<Loan> {
        None
    }
    /// Returns whether a buffer is lent memory instead of the arena's.
    fn is_lent(&self, _buf: Buf, _len: usize) -> bool {
        false
    }
    /// Copies from lent memory, which may change concurrently, to the arena, where the copy is stable.
    fn copy_lent(&mut self, _from: Buf, _to: Buf, _len: usize) {}
    /// Returns a loan from `lend`.
    fn return_loan(&mut self, _loan: Loan) {}
    /// Returns the total and the free bytes of the arena.
    fn memory_bytes(&self) -> (u64, u64);
    /// Allocates `len` bytes, aligned to 4 KiB. Returns `None` if the memory is exhausted.
    fn alloc(&mut self, len: usize) -> Option<Buf>;
    /// Frees a buffer from `alloc` of the same `len`.
    fn free(&mut self, buf: Buf, len: usize);
    /// Returns the bytes at `buf`.
    fn memory(&mut self, buf: Buf, len: usize) -> &mut [u8];
    /// Returns the bytes of two buffers that do not overlap.
    fn pair(&mut self, first: (Buf, usize), second: (Buf, usize)) -> (&mut [u8], &mut [u8]);
    /// Copies `len` bytes; the ranges may overlap.
    fn copy(&mut self, from: Buf, to: Buf, len: usize);
    /// Receives up to `len` bytes, or with `whole` exactly `len` unless the stream ends. One receive per socket at a
    /// time.
    fn recv(&mut self, socket: Self::Socket, buf: Buf, len: u32, whole: bool, token: u64);
    /// Returns whether the client has shut down or lost its side of the connection. Bytes may be unread.
    fn is_hung_up(&mut self, socket: Self::Socket) -> bool;
    /// Sends all pieces, at most [`SEND_PIECES_MAX`]. One send per socket at a time.
    fn send(&mut self, socket: Self::Socket, pieces: &[SendPiece], token: u64);
    /// Closes a socket. Its operations in flight complete soon.
    fn close(&mut self, socket: Self::Socket);
    /// Arms a timer. Returns false if there is no room for another one.
    fn timer_at(&mut self, at_ns: u64, token: u64) -> bool;
}
