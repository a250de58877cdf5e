//! Faults that a shard reports to the control plane of a redundant array.

use crate::io::{DeviceId, ErrorKind, LeafId, Op};

/// A member of a redundant array failed an I/O.
///
/// For a read, the request was answered from another member; if only this range of the disk is unreadable, it can be
/// repaired. For any other operation, the shard has frozen the device: it answers and begins nothing until a layout is
/// published in which the member is dropped, or the array has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The array.
    pub device: DeviceId,
    /// The version of the layout that the I/O was planned with.
    pub version: u32,
    /// The member's index.
    pub role: u16,
    /// Its disk.
    pub leaf: LeafId,
    /// The operation that failed.
    pub op: Op,
    /// The kind of error.
    pub kind: ErrorKind,
    /// The operating system's error number, or 0.
    pub errno: i32,
    /// First byte of the request on the array.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

impl Fault {
    /// Returns whether the device is frozen until the member is dropped.
    pub fn freezes_device(&self) -> bool {
        self.op != Op::Read
    }

    /// Returns whether the member must be dropped: it failed a change, or is not reachable.
    pub fn is_fatal(&self) -> bool {
        self.freezes_device() || matches!(self.kind, ErrorKind::Gone | ErrorKind::TimedOut)
    }
}
