//! The structures and numbers of Linux' ublk driver (`include/uapi/linux/ublk_cmd.h`), as of Linux 6.0 to 6.18.
//!
//! All fields are in the machine's own order, as the kernel on the other side is the same machine's.

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most requests of one queue at a time.
pub const QUEUE_DEPTH_MAX: u16 = 4096;
/// Most queues of a device.
pub const QUEUES_MAX: u16 = 4096;

/// `queue_id` of a control command that is for no queue.
pub const NO_QUEUE: u16 = u16::MAX;
/// `dev_id` of a new device whose number the driver chooses.
pub const ANY_DEVICE: u32 = u32::MAX;

/// Write requests are announced first, and their data asked for with an address (`UBLK_F_NEED_GET_DATA`, Linux 6.0).
pub const F_NEED_GET_DATA: u64 = 1 << 2;
/// The device outlives its server (Linux 6.1).
pub const F_USER_RECOVERY: u64 = 1 << 3;
/// What the server had not answered is asked of the next one (Linux 6.1).
pub const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// Commands may be numbered as ioctls are (Linux 6.4).
pub const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;

/// Requests of a device without a server may fail at once (Linux 6.13).
pub const F_USER_RECOVERY_FAIL_IO: u64 = 1 << 9;
/// A device's size can be changed while it is used (Linux 6.16).
pub const F_UPDATE_SIZE: u64 = 1 << 10;

/// A server may have its commands back (Linux 6.16).
pub const F_QUIESCE: u64 = 1 << 12;

/// Every flag with the word that people read.
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

/// A command to `/dev/ublk-control`: its number as Linux 6.0 has it, and how it is encoded since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlOp {
    number: u8,
    /// The driver writes to the command (`_IOWR`) or not (`_IOR`), as the header has it.
    both_ways: bool,
    /// As messages name it.
    pub name: &'static str,
}

impl ControlOp {
    const fn new(number: u8, both_ways: bool, name: &'static str) -> ControlOp {
        ControlOp { number, both_ways, name }
    }

    /// The number for this kernel.
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
/// Removes one; ends when its number is free.
pub const DEL_DEV: ControlOp = ControlOp::new(0x05, true, "DEL_DEV");
/// Shows a device to users once all queues wait for requests.
pub const START_DEV: ControlOp = ControlOp::new(0x06, true, "START_DEV");
/// Takes it from its users, whose requests fail.
pub const STOP_DEV: ControlOp = ControlOp::new(0x07, true, "STOP_DEV");
/// Sets its parameters before it starts.
pub const SET_PARAMS: ControlOp = ControlOp::new(0x08, true, "SET_PARAMS");
/// What a device is.
pub const GET_DEV_INFO: ControlOp = ControlOp::new(0x02, false, "GET_DEV_INFO");
/// A new server takes over a device that lost its own.
pub const START_USER_RECOVERY: ControlOp = ControlOp::new(0x10, true, "START_USER_RECOVERY");
/// It has.
pub const END_USER_RECOVERY: ControlOp = ControlOp::new(0x11, true, "END_USER_RECOVERY");
/// What the driver can do (Linux 6.5, encoded only).
pub const GET_FEATURES: ControlOp = ControlOp::new(0x13, false, "GET_FEATURES");

/// Removes one without waiting for its number: the driver does that once nobody has it open (Linux 6.9, encoded only).
pub const DEL_DEV_ASYNC: ControlOp = ControlOp::new(0x14, false, "DEL_DEV_ASYNC");
/// Changes a device's size, which is its number of sectors (Linux 6.16, encoded only).
pub const UPDATE_SIZE: ControlOp = ControlOp::new(0x15, true, "UPDATE_SIZE");

/// A command on a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoOp {
    /// Waits for a request.
    Fetch = 0x20,
    /// Answers a request and waits for the next one.
    CommitAndFetch = 0x21,
    /// Asks for the data of a write.
    GetData = 0x22,
}

impl IoOp {
    /// The number for this kernel.
    pub const fn code(self, encoded: bool) -> u32 {
        if encoded { ioctl_code(3, self as u8, size_of::<IoCommand>()) } else { self as u32 }
    }
}

/// A command on a queue that no driver knows. Of a queue that has a server the driver says that before it looks at the number (from Linux 6.4 on).
pub const NO_COMMAND: u32 = 3 << 30 | (size_of::<IoCommand>() as u32) << 16 | (b'!' as u32) << 8;

/// `_IOC(direction, 'u', number, size)`.
const fn ioctl_code(direction: u32, number: u8, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number as u32
}

/// A request came.
pub const RES_OK: i32 = 0;
/// A write came whose data are to be asked for.
pub const RES_NEED_GET_DATA: i32 = 1;

/// `struct ublksrv_ctrl_cmd`.
#[derive(Clone, Copy, Default, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ControlCommand {
    /// Which device.
    pub dev_id: u32,
    /// [`NO_QUEUE`].
    pub queue_id: u16,
    /// Bytes at `addr`.
    pub len: u16,
    /// Address of what goes in or comes out.
    pub addr: u64,
    /// One number, such as the server's process.
    pub data: u64,
    /// Of unprivileged devices only.
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
    /// Its queues.
    pub nr_hw_queues: u16,
    /// Requests of each.
    pub queue_depth: u16,
    /// One of the states below.
    pub state: u16,
    /// Zero.
    pub pad0: u16,
    /// Longest request with data, in bytes.
    pub max_io_buf_bytes: u32,
    /// Its number.
    pub dev_id: u32,
    /// The process that serves it; -1: none.
    pub ublksrv_pid: i32,
    /// Zero.
    pub pad1: u32,
    /// What was agreed on.
    pub flags: u64,
    /// The server's own, kept by the driver: the mark by which it is found again.
    pub ublksrv_flags: u64,
    /// Who made it.
    pub owner_uid: u32,
    /// And of which group.
    pub owner_gid: u32,
    /// Zero.
    pub reserved1: u64,
    /// Zero.
    pub reserved2: u64,
}

/// Nobody sees it: not started, or stopped.
pub const STATE_DEAD: u16 = 0;
/// It serves.
pub const STATE_LIVE: u16 = 1;
/// Its server is gone, its users wait.
pub const STATE_QUIESCED: u16 = 2;

/// Writes are refused.
pub const ATTR_READ_ONLY: u32 = 1 << 0;
/// There is a cache to be flushed.
pub const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
/// Writes can be made durable one by one.
pub const ATTR_FUA: u32 = 1 << 3;

/// `struct ublk_param_basic`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct BasicParams {
    /// `ATTR_…`.
    pub attrs: u32,
    /// Logical block, as a power of two.
    pub logical_bs_shift: u8,
    /// Physical block.
    pub physical_bs_shift: u8,
    /// Length that is best for much data.
    pub io_opt_shift: u8,
    /// Shortest that costs nothing extra.
    pub io_min_shift: u8,
    /// Longest request with data, in sectors.
    pub max_sectors: u32,
    /// No request crosses a multiple of it; 0: any may.
    pub chunk_sectors: u32,
    /// The device's size.
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
    /// In bytes.
    pub discard_granularity: u32,
    /// Longest discard.
    pub max_discard_sectors: u32,
    /// Longest write of zeroes.
    pub max_write_zeroes_sectors: u32,
    /// One.
    pub max_discard_segments: u16,
    /// Zero.
    pub reserved0: u16,
}

/// `struct ublk_params`, as far as Braid sets it: `len` tells the driver.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Params {
    /// Bytes of this structure.
    pub len: u32,
    /// Which parts are set: 1 basic, 2 discard.
    pub types: u32,
    /// What every device has.
    pub basic: BasicParams,
    /// Of discards and zeroes.
    pub discard: DiscardParams,
    /// Up to eight bytes.
    pub pad: u32,
}

/// Both parts of [`Params`] are set.
pub const PARAMS_BASIC_AND_DISCARD: u32 = 3;

/// `struct ublksrv_io_cmd`: fits an ordinary entry of io_uring.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IoCommand {
    /// Of which queue.
    pub q_id: u16,
    /// Which of its requests.
    pub tag: u16,
    /// Bytes done, or minus an error number.
    pub result: i32,
    /// Where the data lie.
    pub addr: u64,
}

/// `struct ublksrv_io_desc`: a request, written by the driver.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IoDescriptor {
    /// Operation in the lowest byte, flags above.
    pub op_flags: u32,
    /// Its length.
    pub nr_sectors: u32,
    /// Its place.
    pub start_sector: u64,
    /// Not used.
    pub addr: u64,
}

/// Operations of [`IoDescriptor`].
pub const OP_READ: u8 = 0;
/// Data to be written.
pub const OP_WRITE: u8 = 1;
/// What was written is to be durable.
pub const OP_FLUSH: u8 = 2;
/// Nobody needs the range any more.
pub const OP_DISCARD: u8 = 3;
/// The range is to read as zeroes.
pub const OP_WRITE_ZEROES: u8 = 5;

/// This write is durable before it is answered.
pub const IO_F_FUA: u32 = 1 << 13;
/// Zeroes keep their space.
pub const IO_F_NOUNMAP: u32 = 1 << 15;

impl IoDescriptor {
    /// Which operation.
    pub fn op(&self) -> u8 {
        self.op_flags as u8
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u32) -> bool {
        self.op_flags & flag != 0
    }
}

/// Bytes of a sector, whatever the device's block.
pub const SECTOR_BYTES: u64 = 512;

/// Where the descriptors of a queue are mapped from, and their bytes.
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
    fn commands_have_the_numbers_of_the_header() {
        assert_eq!(ADD_DEV.code(false), 4);
        assert_eq!(ADD_DEV.code(true), 0xc020_7504);
        assert_eq!(GET_DEV_INFO.code(true), 0x8020_7502);
        assert_eq!(GET_FEATURES.code(true), 0x8020_7513);
        assert_eq!(DEL_DEV_ASYNC.code(true), 0x8020_7514);
        assert_eq!(IoOp::Fetch.code(false), 0x20);
        assert_eq!(IoOp::CommitAndFetch.code(true), 0xc010_7521);
    }

    #[test]
    fn descriptors_of_queues_lie_as_the_driver_maps_them() {
        assert_eq!(descriptors_place(0, 1, 4096), (0, 4096));
        assert_eq!(descriptors_place(2, 128, 4096), (2 * 98304, 4096));
        assert_eq!(descriptors_place(1, 4096, 4096), (98304, 98304));
    }
}
