//! The wire format of `/dev/fuse`: the structures of the kernel's `include/uapi/linux/fuse.h`, version 7, as far as a
//! single file needs them. Integers are in the machine's byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol; the kernel's minor version may differ.
pub const MAJOR: u32 = 7;
/// The newest minor version that has a feature used here.
pub const MINOR: u32 = 40;
/// The oldest minor version that is served. Older kernels (before 4.20) have no `max_pages`.
pub const MINOR_MIN: u32 = 28;

/// The only node: the file itself.
pub const ROOT: u64 = 1;

/// Most bytes of one WRITE or READ (1 MiB).
pub const DATA_BYTES_MAX: u32 = 1 << 20;

/// Opcodes that are not simply refused.
pub mod opcode {
    #![allow(missing_docs)]
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const LSEEK: u32 = 46;
}

/// Flags of INIT; both words as one number.
pub mod init_flags {
    #![allow(missing_docs)]
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The second word of flags is valid.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Requests that were read and not replied to are resubmitted on demand (Linux 6.9).
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// Flags of the reply to OPEN.
pub mod open_flags {
    /// Bypasses the kernel's page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Writes to one file need not wait for each other.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Which fields of SETATTR are valid.
pub mod attr_valid {
    #![allow(missing_docs)]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    /// The request names an open file handle.
    pub const FH: u32 = 1 << 6;
}

/// Notifications from the server to the kernel.
pub mod notify {
    /// Resubmit the requests that were read and not replied to.
    pub const RESEND: i32 = 7;
}

/// Declares a structure and asserts its size.
macro_rules! wire {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, { $($field:ident: $kind:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $kind),+ }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

wire!(
    /// Before every request.
    InHeader, 40, {
    len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, extensions: u16, padding: u16,
});
wire!(
    /// Before every reply.
    OutHeader, 16, { len: u32, error: i32, unique: u64 });
wire!(
    /// INIT, the part that every kernel sends. Newer kernels append [`InitInMore`].
    InitIn, 16, { major: u32, minor: u32, max_readahead: u32, flags: u32 });
wire!(
    /// What newer kernels append to [`InitIn`].
    InitInMore, 4, { flags2: u32 });
wire!(
    /// The reply to INIT.
    InitOut, 64, {
    major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
    max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
    unused: [u32; 6],
});
wire!(
    /// Attributes of the file.
    Attr, 88, {
    ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
    ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
});
wire!(
    /// The reply to GETATTR and SETATTR.
    AttrOut, 104, { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr });
wire!(
    /// SETATTR.
    SetattrIn, 88, {
    valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
    atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
});
wire!(
    /// OPEN.
    OpenIn, 8, { flags: u32, open_flags: u32 });
wire!(
    /// The reply to OPEN.
    OpenOut, 16, { fh: u64, open_flags: u32, backing_id: i32 });
wire!(
    /// RELEASE: the last user of an open file has closed it.
    ReleaseIn, 24, { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 });
wire!(
    /// READ and WRITE.
    ReadWriteIn, 40, {
    fh: u64, offset: u64, size: u32, how: u32, lock_owner: u64, flags: u32, padding: u32,
});
wire!(
    /// The reply to WRITE.
    WriteOut, 8, { size: u32, padding: u32 });
wire!(
    /// FALLOCATE.
    FallocateIn, 32, { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 });
wire!(
    /// LSEEK.
    LseekIn, 24, { fh: u64, offset: u64, whence: u32, padding: u32 });
wire!(
    /// The reply to LSEEK.
    LseekOut, 8, { offset: u64 });
wire!(
    /// The reply to STATFS.
    StatfsOut, 80, {
    blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
    padding: u32, spare: [u32; 6],
});
/// Length in bytes of the head of a message: all that precedes the data of a WRITE. The head of any other request has
/// all fields that are used here, except those of a SETATTR, which is longer.
pub const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<ReadWriteIn>();
const _: () = assert!(HEAD_BYTES == 80);
