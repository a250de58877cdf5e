//! The I/O of a pool's own.

/// Buffers for a pool's own writes, of [`braid_format::pool::BATCH_BYTES_MAX`] bytes each.
pub const BUFFERS: u32 = 16;

/// Memory for a pool's own writes.
pub trait PoolMemory {
    /// Returns a buffer, [`braid_format::pool::BATCH_BYTES_MAX`] bytes long. What is written from it stays until the
    /// write has ended.
    fn buffer(&mut self, index: u32) -> &mut [u8];
}

/// An operation that a pool needs on one of its members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolOp {
    /// Makes earlier writes durable.
    Flush,
    /// Writes the first bytes of a buffer.
    Write {
        /// The buffer.
        buffer: u32,
    },
    /// Discards data that are no longer needed.
    Discard,
    /// Copies [`PoolIo::len`] bytes from this place to the one that [`PoolIo`] names.
    Copy {
        /// The source member.
        from_member: u8,
        /// First byte on the source member.
        from_offset: u64,
    },
}

/// One I/O of a pool's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolIo {
    /// Identifies the I/O when its result is reported ([`super::Pool::io_done`]).
    pub token: u32,
    /// The member.
    pub member: u8,
    /// The operation.
    pub op: PoolOp,
    /// First byte on the member; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u64,
}

/// The purpose of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IoPurpose {
    /// A flush of the commit.
    Commit,
    /// A batch of the commit, for this member.
    Batch {
        member: u8,
    },
    /// A flush of the checkpoint.
    Checkpoint,
    /// Blocks of a member's tables.
    Page {
        member: u8,
        run: PageRun,
    },
    /// The start of a member's ring.
    Start {
        member: u8,
    },
    Discard {
        member: u8,
        index: u32,
    },
    /// A copy of the move with this number.
    Copy {
        number: u8,
    },
}

/// Blocks of a table that are being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PageRun {
    /// 0: owners, 1: addresses, 2: records.
    pub(super) table: u8,
    pub(super) first: u32,
    pub(super) count: u8,
}
