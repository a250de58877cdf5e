//! What a shard tells the control plane of a redundant array: a member has failed.

use crate::io::{DeviceId, ErrorKind, LeafId, Op};

/// A member of a redundant array failed an I/O.
///
/// Of a read, the request was answered from another member; where the disk is there and only this place is bad, it can be
/// mended. Of anything else, the shard has frozen the device: it answers nothing and begins nothing until a layout is
/// published in which the member is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// The array.
    pub device: DeviceId,
    /// The layout version with which the I/O was planned.
    pub version: u32,
    /// The member's number.
    pub role: u16,
    /// Its disk.
    pub leaf: LeafId,
    /// What failed.
    pub op: Op,
    /// How.
    pub kind: ErrorKind,
    /// The operating system's error number, or 0.
    pub errno: i32,
    /// First byte of the request on the array.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

impl Trouble {
    /// Whether the device is frozen until the member is left out.
    pub fn is_frozen(&self) -> bool {
        self.op != Op::Read
    }

    /// Whether the member is to be left out: it failed what changes it, or is not there.
    pub fn is_fatal(&self) -> bool {
        self.is_frozen() || matches!(self.kind, ErrorKind::Gone | ErrorKind::TimedOut)
    }
}
