//! The structures and numbers of Linux' ublk driver (`include/uapi/linux/ublk_cmd.h`), as of Linux 6.0 to 6.18.
//!
//! All fields are in the machine's byte order.

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most requests in flight on one queue.
pub const QUEUE_DEPTH_MAX: u16 = 4096;
/// Most queues of a device.
pub const QUEUES_MAX: u16 = 4096;

/// `queue_id` of a control command for the whole device.
pub const NO_QUEUE: u16 = u16::MAX;
/// `dev_id` that lets the driver choose the number of a new device.
pub const ANY_DEVICE: u32 = u32::MAX;

/// Writes are announced first; the server requests their data with a buffer address (`UBLK_F_NEED_GET_DATA`, Linux 6.0).
pub const F_NEED_GET_DATA: u64 = 1 << 2;
/// The device outlives its server (Linux 6.1).
pub const F_USER_RECOVERY: u64 = 1 << 3;
/// Requests without a reply are reissued to the next server (Linux 6.1).
pub const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// Commands may have the numbers of ioctls (Linux 6.4).
pub const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;

/// Requests to a device without a server may fail at once (Linux 6.13).
pub const F_USER_RECOVERY_FAIL_IO: u64 = 1 << 9;
/// A device's size can be changed while it is in use (Linux 6.16).
pub const F_UPDATE_SIZE: u64 = 1 << 10;

/// A server can quiesce its device, which gives all of its commands back (Linux 6.16). Here it only identifies drivers
/// from 6.16 on.
pub const F_QUIESCE: u64 = 1 << 12;

/// Every flag with its name for users.
pub const FLAG_NAMES: &[(u64, &str)] = &[
    (1 << 0, "zero_copy"),
    (F_NEED_GET_DATA, "get_data"),
    (F_USER_RECOVERY, "user_recovery"),
    (F_USER_RECOVERY_REISSUE, "reissue"),
    (1 << 5, "unprivileged"),
    (F_CMD_IOCTL_ENCODE, "ioctl_encode"),
    (1 << 7, "user_copy"),
    (1 << 8, "zoned"),
    (F_USER_RECOVERY_FAIL_IO, "recovery_fail_io"),
    (F_UPDATE_SIZE, "update_size"),
    (1 << 11, "auto_buffers"),
    (F_QUIESCE, "quiesce"),
    (1 << 13, "per_io_daemon"),
];

/// A command to `/dev/ublk-control`: its number of Linux 6.0, and what its ioctl encoding needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlOp {
    number: u8,
    /// Whether the header declares it `_IOWR`; otherwise `_IOR`.
    both_ways: bool,
    /// Its name in messages.
    pub name: &'static str,
}

impl ControlOp {
    const fn new(number: u8, both_ways: bool, name: &'static str) -> ControlOp {
        ControlOp { number, both_ways, name }
    }

    /// Returns the command's number: ioctl-encoded, or that of Linux 6.0.
    pub const fn code(self, encoded: bool) -> u32 {
        if !encoded {
            return self.number as u32;
        }
        let direction = if self.both_ways { 3 } else { 2 };
        ioctl_code(direction, self.number, size_of::<ControlCommand>())
    }
}

/// Adds a device.
pub const ADD_DEV: ControlOp = ControlOp::new(0x04, true, "ADD_DEV");
/// Removes a device; completes when its number is free.
pub const DEL_DEV: ControlOp = ControlOp::new(0x05, true, "DEL_DEV");
/// Makes a device visible to users once all of its queues wait for requests.
pub const START_DEV: ControlOp = ControlOp::new(0x06, true, "START_DEV");
/// Takes a device from its users, whose requests fail.
pub const STOP_DEV: ControlOp = ControlOp::new(0x07, true, "STOP_DEV");
/// Sets a device's parameters before it starts.
pub const SET_PARAMS: ControlOp = ControlOp::new(0x08, true, "SET_PARAMS");
/// Reads a device's description.
pub const GET_DEV_INFO: ControlOp = ControlOp::new(0x02, false, "GET_DEV_INFO");
/// Begins the takeover of a device that lost its server.
pub const START_USER_RECOVERY: ControlOp = ControlOp::new(0x10, true, "START_USER_RECOVERY");
/// Ends a takeover.
pub const END_USER_RECOVERY: ControlOp = ControlOp::new(0x11, true, "END_USER_RECOVERY");
/// Reads the driver's features (Linux 6.5, encoded only).
pub const GET_FEATURES: ControlOp = ControlOp::new(0x13, false, "GET_FEATURES");

/// Removes a device without waiting for its number, which the driver frees when no process has it open (Linux 6.9, encoded only).
pub const DEL_DEV_ASYNC: ControlOp = ControlOp::new(0x14, false, "DEL_DEV_ASYNC");
/// Changes a device's size; `data` is the number of sectors (Linux 6.16, encoded only).
pub const UPDATE_SIZE: ControlOp = ControlOp::new(0x15, true, "UPDATE_SIZE");

/// A command on a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoOp {
    /// Waits for a request.
    Fetch = 0x20,
    /// Replies to a request and waits for the next one.
    CommitAndFetch = 0x21,
    /// Requests the data of a write.
    GetData = 0x22,
}

impl IoOp {
    /// Returns the command's number: ioctl-encoded, or that of Linux 6.0.
    pub const fn code(self, encoded: bool) -> u32 {
        if encoded { ioctl_code(3, self as u8, size_of::<IoCommand>()) } else { self as u32 }
    }
}

/// A queue command that no driver implements: a probe without effect. From Linux 6.4 on, the driver's error shows
/// whether it considers the queue served, because it checks that before the command's number.
pub const NO_COMMAND: u32 = 3 << 30 | (size_of::<IoCommand>() as u32) << 16 | (b'!' as u32) << 8;

/// `_IOC(direction, 'u', number, size)`.
const fn ioctl_code(direction: u32, number: u8, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number as u32
}

/// Result of a command: a request has arrived, or the data of a write are copied.
pub const RES_OK: i32 = 0;
/// Result of a command: a write has arrived, whose data have to be requested.
pub const RES_NEED_GET_DATA: i32 = 1;

/// `struct ublksrv_ctrl_cmd`.
#[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ControlCommand {
    /// Number of the device.
    pub dev_id: u32,
    /// [`NO_QUEUE`].
    pub queue_id: u16,
    /// Bytes at `addr`.
    pub len: u16,
    /// Address of the input or the output.
    pub addr: u64,
    /// One number, such as the server's process id.
    pub data: u64,
    /// For unprivileged devices only.
    pub dev_path_len: u16,
    /// Zero.
    pub pad: u16,
    /// Zero.
    pub reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DeviceInfo {
    /// Number of queues.
    pub nr_hw_queues: u16,
    /// Requests in flight on each queue.
    pub queue_depth: u16,
    /// `STATE_…`.
    pub state: u16,
    /// Zero.
    pub pad0: u16,
    /// Longest request with data, in bytes.
    pub max_io_buf_bytes: u32,
    /// Number of the device.
    pub dev_id: u32,
    /// The process that serves it; -1: none.
    pub ublksrv_pid: i32,
    /// Zero.
    pub pad1: u32,
    /// Negotiated `F_…`.
    pub flags: u64,
    /// Kept by the driver for the server: the mark by which Braid finds the device again.
    pub ublksrv_flags: u64,
    /// User that added it.
    pub owner_uid: u32,
    /// Group that added it.
    pub owner_gid: u32,
    /// Zero.
    pub reserved1: u64,
    /// Zero.
    pub reserved2: u64,
}

/// Invisible to users: not started, or stopped.
pub const STATE_DEAD: u16 = 0;
/// Served.
pub const STATE_LIVE: u16 = 1;
/// Its server has ended; its users wait.
pub const STATE_QUIESCED: u16 = 2;

/// Writes are refused.
pub const ATTR_READ_ONLY: u32 = 1 << 0;
/// The device has a volatile cache, which FLUSH empties.
pub const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
/// Writes can be made durable one by one.
pub const ATTR_FUA: u32 = 1 << 3;

/// `struct ublk_param_basic`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct BasicParams {
    /// `ATTR_…`.
    pub attrs: u32,
    /// Binary logarithm of the logical block in bytes.
    pub logical_bs_shift: u8,
    /// Binary logarithm of the physical block in bytes.
    pub physical_bs_shift: u8,
    /// Binary logarithm of the optimal length of an I/O in bytes.
    pub io_opt_shift: u8,
    /// Binary logarithm of the shortest I/O without a penalty in bytes.
    pub io_min_shift: u8,
    /// Longest request with data, in sectors.
    pub max_sectors: u32,
    /// The kernel splits requests at each multiple of this number of sectors; 0: nowhere.
    pub chunk_sectors: u32,
    /// The device's size, in sectors.
    pub dev_sectors: u64,
    /// Zero.
    pub virt_boundary_mask: u64,
}

/// `struct ublk_param_discard`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DiscardParams {
    /// Zero.
    pub discard_alignment: u32,
    /// Unit of discards in bytes: smaller ones need not free any space.
    pub discard_granularity: u32,
    /// Longest discard, in sectors.
    pub max_discard_sectors: u32,
    /// Longest write of zeroes, in sectors.
    pub max_write_zeroes_sectors: u32,
    /// Number of ranges in one discard: 1.
    pub max_discard_segments: u16,
    /// Zero.
    pub reserved0: u16,
}

/// `struct ublk_params`, up to the last part that Braid sets. The driver takes the parts beyond `len` as not set.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Params {
    /// Bytes of this structure without `pad`.
    pub len: u32,
    /// Which parts are set: 1 basic, 2 discard.
    pub types: u32,
    /// Parameters that every device has.
    pub basic: BasicParams,
    /// Limits of discards and of writes of zeroes.
    pub discard: DiscardParams,
    /// Pads to a multiple of eight bytes.
    pub pad: u32,
}

/// Both parts of [`Params`] are set.
pub const PARAMS_BASIC_AND_DISCARD: u32 = 3;

/// `struct ublksrv_io_cmd`; fits an ordinary submission queue entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IoCommand {
    /// Number of the queue.
    pub q_id: u16,
    /// Number of the request in the queue.
    pub tag: u16,
    /// Bytes done, or minus an error number.
    pub result: i32,
    /// Address of the data.
    pub addr: u64,
}

/// `struct ublksrv_io_desc`: a request, written by the driver.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IoDescriptor {
    /// Operation in the lowest byte, flags above.
    pub op_flags: u32,
    /// Its length, in sectors of [`SECTOR_BYTES`].
    pub nr_sectors: u32,
    /// Its first sector.
    pub start_sector: u64,
    /// The address of the data that the server passed. Not used here.
    pub addr: u64,
}

/// Operation of [`IoDescriptor`]: reads data.
pub const OP_READ: u8 = 0;
/// Operation: writes data.
pub const OP_WRITE: u8 = 1;
/// Operation: makes completed writes durable.
pub const OP_FLUSH: u8 = 2;
/// Operation: discards the range.
pub const OP_DISCARD: u8 = 3;
/// Operation: makes the range read as zeroes.
pub const OP_WRITE_ZEROES: u8 = 5;

/// The write is durable before its reply.
pub const IO_F_FUA: u32 = 1 << 13;
/// Zeroed blocks keep their space.
pub const IO_F_NOUNMAP: u32 = 1 << 15;

impl IoDescriptor {
    /// Returns the operation.
    pub fn op(&self) -> u8 {
        self.op_flags as u8
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u32) -> bool {
        self.op_flags & flag != 0
    }
}

/// Bytes of a sector, independent of the device's logical block.
pub const SECTOR_BYTES: u64 = 512;

/// Returns the offset in the device's file from which the descriptors of a queue are mapped, and their bytes.
pub fn descriptors_place(queue: u16, depth: u16, page_bytes: usize) -> (u64, usize) {
    let bytes = |depth: u16| (usize::from(depth) * size_of::<IoDescriptor>()).next_multiple_of(page_bytes);
    (u64::from(queue) * bytes(QUEUE_DEPTH_MAX) as u64, bytes(depth))
}

const _: () = {
    assert!(size_of::<ControlCommand>() == 32);
    assert!(offset_of!(ControlCommand, addr) == 8);
    assert!(offset_of!(ControlCommand, data) == 16);
    assert!(size_of::<DeviceInfo>() == 64);
    assert!(offset_of!(DeviceInfo, max_io_buf_bytes) == 8);
    assert!(offset_of!(DeviceInfo, ublksrv_pid) == 16);
    assert!(offset_of!(DeviceInfo, flags) == 24);
    assert!(offset_of!(DeviceInfo, ublksrv_flags) == 32);
    assert!(offset_of!(DeviceInfo, owner_uid) == 40);
    assert!(size_of::<BasicParams>() == 32);
    assert!(offset_of!(BasicParams, max_sectors) == 8);
    assert!(offset_of!(BasicParams, dev_sectors) == 16);
    assert!(size_of::<DiscardParams>() == 20);
    assert!(offset_of!(Params, basic) == 8);
    assert!(offset_of!(Params, discard) == 40);
    assert!(size_of::<IoCommand>() == 16);
    assert!(size_of::<IoDescriptor>() == 24);
    assert!(offset_of!(IoDescriptor, start_sector) == 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_numbers_match_the_kernel_header() {
        assert_eq!(ADD_DEV.code(false), 4);
        assert_eq!(ADD_DEV.code(true), 0xc020_7504);
        assert_eq!(GET_DEV_INFO.code(true), 0x8020_7502);
        assert_eq!(GET_FEATURES.code(true), 0x8020_7513);
        assert_eq!(DEL_DEV_ASYNC.code(true), 0x8020_7514);
        assert_eq!(IoOp::Fetch.code(false), 0x20);
        assert_eq!(IoOp::CommitAndFetch.code(true), 0xc010_7521);
    }

    #[test]
    fn descriptors_are_mapped_from_the_driver_offsets() {
        assert_eq!(descriptors_place(0, 1, 4096), (0, 4096));
        assert_eq!(descriptors_place(2, 128, 4096), (2 * 98304, 4096));
        assert_eq!(descriptors_place(1, 4096, 4096), (98304, 98304));
    }
}
