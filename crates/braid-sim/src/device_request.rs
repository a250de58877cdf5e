//! Requests of tasks to devices.

use braid_engine::io::{DeviceId, Flags, IoError, Op};

/// A request of a task to a device.
#[derive(Clone, Debug)]
pub struct DeviceRequest {
    /// The device.
    pub device: DeviceId,
    /// The operation.
    pub op: Op,
    /// FUA, or no flag.
    pub flags: Flags,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The data of a write, `len` bytes.
    pub data: Vec<u8>,
    /// The request is a retry: at the first try a disk of a redundant array did not reply in time.
    pub is_retry: bool,
}

/// The reply: the data of a read, nothing for other operations.
pub type DeviceReply = Result<Vec<u8>, IoError>;
