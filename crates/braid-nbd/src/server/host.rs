//! What the server needs of the shard that it runs on. The ring implements it; so does a memory in tests.

use braid_engine::{Buf, DeviceId, IoError, Request, Soon};

pub use braid_ring::{SEND_PIECES_MAX, SendPiece};

/// Memory of a disk, lent to be sent from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loan {
    /// Where it is.
    pub buf: Buf,
    /// What the ring wants back; none from a host without one.
    pub(crate) of_ring: Option<braid_ring::Loan>,
}

/// The shard, as the server sees it. All memory is the shard's arena; nothing here blocks.
pub trait Host {
    /// Names a socket.
    type Socket: Copy;

    /// Monotonic time, the same for all of one turn of the shard's loop.
    fn now_ns(&self) -> u64;
    /// Hands a request to the engine. `Err`: refused at once, no completion follows.
    fn submit(&mut self, request: &Request) -> Result<(), IoError>;
    /// The same, but a request that changes the device does not begin before [`Host::settle_entered`]: see [`braid_engine::Shard::enter`].
    fn enter(&mut self, request: &Request) -> Result<(), IoError>;
    /// Begins what was entered for this device; or, where its client is not there any more, ends it: nothing is changed.
    fn settle_entered(&mut self, device: DeviceId, is_there: bool);
    /// Whether `foresee` is of use for this device.
    fn heeds(&self, _device: DeviceId) -> bool {
        false
    }
    /// These are going to be submitted next; they need not.
    fn foresee(&mut self, _device: DeviceId, _soon: &[Soon]) {}
    /// Whether what one disk of the device does not give may be had from another one.
    fn is_redundant(&self, _device: DeviceId) -> bool {
        false
    }
    /// The memory in which a range of the device stands, if it can be sent from as it is.
    fn lend(&mut self, _device: DeviceId, _offset: u64, _len: u64) -> Option<Loan> {
        None
    }
    /// Whether it is lent memory, and none of the arena's.
    fn is_lent(&self, _buf: Buf, _len: usize) -> bool {
        false
    }
    /// Copies out of lent memory, which others may be writing to, to the arena: what is copied stays as it is.
    fn copy_lent(&mut self, _from: Buf, _to: Buf, _len: usize) {}
    /// Gives back what `lend` gave.
    fn give_back(&mut self, _loan: Loan) {}
    /// All memory that `alloc` hands out, in bytes, and how much of it is free.
    fn memory_bytes(&self) -> (u64, u64);
    /// Memory for `len` bytes, aligned to 4 KiB; `None` while there is none.
    fn alloc(&mut self, len: usize) -> Option<Buf>;
    /// Gives back what `alloc` gave for the same `len`.
    fn free(&mut self, buf: Buf, len: usize);
    /// The bytes at `buf`.
    fn memory(&mut self, buf: Buf, len: usize) -> &mut [u8];
    /// The bytes of two buffers that do not overlap.
    fn pair(&mut self, first: (Buf, usize), second: (Buf, usize)) -> (&mut [u8], &mut [u8]);
    /// Copies `len` bytes; the ranges may overlap.
    fn copy(&mut self, from: Buf, to: Buf, len: usize);
    /// Receives up to `len` bytes, or, where `whole`, all of them if the stream has them. One at a time a socket.
    fn recv(&mut self, socket: Self::Socket, buf: Buf, len: u32, whole: bool, token: u64);
    /// Returns whether the client has shut down or lost its side of the connection, although bytes may be unread.
    fn is_hung_up(&mut self, socket: Self::Socket) -> bool;
    /// Sends all pieces, at most [`SEND_PIECES_MAX`]. One at a time a socket.
    fn send(&mut self, socket: Self::Socket, pieces: &[SendPiece], token: u64);
    /// Ends a socket: what is in flight on it ends soon, each with its answer.
    fn close(&mut self, socket: Self::Socket);
    /// Calls back at a time. False: there is no room for another timer.
    fn timer_at(&mut self, at_ns: u64, token: u64) -> bool;
}
