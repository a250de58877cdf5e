//! Parts of leaf I/Os on remote disks, as the port hands them to the carriers.

use braid_engine::{Flags, Op};

/// The error number of a part with [`Flags::HAS_ALTERNATIVE`] that the carrier gives up because it takes unusually
/// long. No disk returns this number.
pub const SLOW_ERRNO: i32 = libc::EINPROGRESS;

/// A part of a leaf I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemotePart {
    /// The I/O: a number of the port.
    pub io: u32,
    /// The operation.
    pub op: Op,
    /// Modifiers. A write with FUA must be durable when it completes.
    pub flags: Flags,
    /// First byte on the disk.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in bytes of the part within the I/O.
    pub at: u64,
    /// When the I/O was submitted.
    pub start_ns: u64,
}

impl RemotePart {
    /// Returns whether the carrier may give this part up with [`SLOW_ERRNO`]: another member can serve the read
    /// ([`Flags::HAS_ALTERNATIVE`]), and the I/O has waited too long. The limit is `limit_ns` for the first try of a
    /// request, and doubles with each further try.
    pub fn is_slow(&self, now_ns: u64, limit_ns: u64) -> bool {
        self.flags.is_abandoned_after(now_ns.saturating_sub(self.start_ns), limit_ns)
    }
}

/// Limits by which I/Os are split into parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartLimits {
    /// Maximum bytes of a part with data.
    pub data_bytes: u64,
    /// Maximum bytes of a part that zeroes or discards.
    pub range_bytes: u64,
    /// Maximum pieces of memory of a part with data.
    pub pieces: usize,
}
