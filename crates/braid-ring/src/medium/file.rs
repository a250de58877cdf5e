//! Files and block devices: opening, locking, creating and probing.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};

use super::{OpenOptions, holder};
use crate::error::{RingError, RingErrorKind};
use crate::spec::{Alloc, ExactSize};

/// An open file or block device.
pub(crate) struct FileDisk {
    pub(crate) fd: OwnedFd,
    pub(crate) size_bytes: u64,
    pub(crate) logical_block_bytes: u32,
    pub(crate) block_device: bool,
    pub(crate) buffered_because: Option<String>,
}

impl FileDisk {
    pub(crate) fn open(path: &Path, create: Option<(u64, Alloc)>, options: OpenOptions) -> Result<FileDisk, RingError> {
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Err(RingError::new(
                RingErrorKind::Conflict,
                format!("{} is a folder", path.display()),
                "name a file in it or a block device",
            )),
            Ok(found) if !found.is_file() && !found.file_type().is_block_device() => Err(RingError::new(
                RingErrorKind::Conflict,
                format!("{} is neither a file nor a block device", path.display()),
                "name a file or a block device",
            )),
            Ok(found) => open_existing(path, &found, create.map(|c| c.0), options),
            Err(e) if e.kind() == io::ErrorKind::NotFound && create.is_some() && options.write => {
                let (size_bytes, alloc) = create.expect("just seen");
                create_file(path, size_bytes, alloc, options)
            }
            Err(e) => Err(RingError::os(e, format!("opening {}", path.display()))),
        }
    }

    /// Returns the current size in bytes, rounded down to whole blocks. A network file system inquires at its server,
    /// so this may block.
    pub(crate) fn size_now(&self) -> io::Result<u64> {
        let raw_size =
            if self.block_device { block_device_bytes(&self.fd)? } else { stat_file(&self.fd, true)?.stx_size };
        Ok(raw_size - raw_size % u64::from(self.logical_block_bytes))
    }

    /// Returns the size in bytes, rounded down to whole blocks, as this machine knows it. A network file system does
    /// not inquire at its server, so shards can call this.
    #[inline]
    pub(crate) fn size_known(&self) -> io::Result<u64> {
        let raw_size =
            if self.block_device { block_device_bytes(&self.fd)? } else { stat_file(&self.fd, false)?.stx_size };
        Ok(raw_size - raw_size % u64::from(self.logical_block_bytes))
    }

    /// Returns whether it is a file that no longer has a name: its data is lost when the file is closed.
    pub(crate) fn is_deleted(&self) -> bool {
        !self.block_device && stat_file(&self.fd, false).is_ok_and(|found| found.stx_nlink == 0)
    }
}

fn open_existing(
    path: &Path,
    found: &std::fs::Metadata,
    size_wanted: Option<u64>,
    options: OpenOptions,
) -> Result<FileDisk, RingError> {
    let block_device = found.file_type().is_block_device();
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | if options.write { OFlags::RDWR } else { OFlags::RDONLY };
    if block_device && options.exclusive {
        flags |= OFlags::EXCL;
    }
    let (fd, buffered_because) = open_direct(path, flags).map_err(|e| open_error(e, path, found, block_device))?;
    let disk = lock_and_probe(path, fd, buffered_because, options)?;
    match size_wanted {
        Some(wanted) if wanted != disk.size_bytes => Err(RingError::new(
            RingErrorKind::Conflict,
            format!("{} exists and is {} bytes long, not size={}", path.display(), disk.size_bytes, ExactSize(wanted)),
            "leave size= out to use it as it is, or name another file",
        )),
        _ => Ok(disk),
    }
}

fn open_error(e: rustix::io::Errno, path: &Path, found: &std::fs::Metadata, block_device: bool) -> RingError {
    let mut error = RingError::os(e.into(), format!("opening {}", path.display()));
    if e == rustix::io::Errno::BUSY && block_device {
        let user = holder::of_block_device(found.rdev()).unwrap_or_else(|| "someone".into());
        error.context = format!("{} is in use by {user}", path.display());
    }
    error
}

/// Opens with O_DIRECT, or, if the file system refuses that, through the page cache, with the reason.
fn open_direct(path: &Path, flags: OFlags) -> Result<(OwnedFd, Option<String>), rustix::io::Errno> {
    match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
        Ok(fd) => Ok((fd, None)),
        Err(rustix::io::Errno::INVAL) => {
            let fd = rustix::fs::open(path, flags, Mode::empty())?;
            Ok((fd, Some("the file system refuses O_DIRECT".into())))
        }
        Err(e) => Err(e),
    }
}

/// Locks the file, and determines its size and block size.
fn lock_and_probe(
    path: &Path,
    fd: OwnedFd,
    mut buffered_because: Option<String>,
    options: OpenOptions,
) -> Result<FileDisk, RingError> {
    let describe = |what: &str| format!("{what} {}", path.display());
    let file = File::from(fd);
    let meta = file.metadata().map_err(|e| RingError::os(e, describe("looking at")))?;
    let block_device = meta.file_type().is_block_device();
    if options.exclusive && !block_device {
        lock(&file, path, &meta, options.write)?;
    }
    let logical_block_bytes = if block_device {
        block_device_u32(&file, libc::BLKSSZGET).map_err(|e| RingError::os(e, describe("asking the block size of")))?
    } else {
        match direct_alignment(&file) {
            Some(0) => {
                // The file system accepts O_DIRECT at open, but does not support it on this file: use the page cache.
                let flags =
                    rustix::fs::fcntl_getfl(&file).map_err(|e| RingError::os(e.into(), describe("looking at")))?;
                rustix::fs::fcntl_setfl(&file, flags - OFlags::DIRECT)
                    .map_err(|e| RingError::os(e.into(), describe("leaving O_DIRECT for")))?;
                buffered_because.get_or_insert_with(|| "the file system cannot do O_DIRECT on this file".into());
                512
            }
            Some(alignment) => alignment.max(512),
            None if buffered_because.is_some() => 512,
            None => probe_alignment(&file),
        }
    };
    if !logical_block_bytes.is_power_of_two() || logical_block_bytes > 4096 {
        return Err(RingError::new(
            RingErrorKind::Unsupported,
            format!("{} has blocks of {logical_block_bytes} bytes", path.display()),
            "use a disk with blocks of 512 to 4096 bytes",
        ));
    }
    if block_device && options.write {
        let read_only = block_device_u32(&file, BLKROGET).map_err(|e| RingError::os(e, describe("asking")))?;
        if read_only != 0 {
            let e = io::Error::from_raw_os_error(libc::EROFS);
            return Err(RingError::os(e, describe("opening for writing")));
        }
    }
    let raw_size = if block_device { block_device_bytes(file.as_fd()) } else { Ok(meta.len()) };
    let raw_size = raw_size.map_err(|e| RingError::os(e, describe("asking the size of")))?;
    let size_bytes = raw_size - raw_size % u64::from(logical_block_bytes);
    if size_bytes == 0 {
        return Err(RingError::new(
            RingErrorKind::Conflict,
            format!("{} has no room: it is {raw_size} bytes long", path.display()),
            "make it larger (truncate -s 50G), or let Braid create one with file:PATH,size=50G",
        ));
    }
    Ok(FileDisk { fd: file.into(), size_bytes, logical_block_bytes, block_device, buffered_because })
}

/// Locks the file (flock): exclusively for writing, otherwise shared. The lock belongs to the open file, so it ends
/// when the file is closed, also by a kill of the process.
fn lock(file: &File, path: &Path, meta: &std::fs::Metadata, write: bool) -> Result<(), RingError> {
    let how = if write { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    match rustix::fs::flock(file, how) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let user = holder::of_file(meta.dev(), meta.ino()).unwrap_or_else(|| "another process".into());
            Err(RingError::new(
                RingErrorKind::InUse,
                format!("{} is in use by {user}", path.display()),
                "stop that first; each disk has one user",
            ))
        }
        Err(e) => Err(RingError::os(e.into(), format!("locking {}", path.display()))),
    }
}

fn create_file(path: &Path, size_bytes: u64, alloc: Alloc, options: OpenOptions) -> Result<FileDisk, RingError> {
    let describe = || format!("creating {} of {}", path.display(), ExactSize(size_bytes));
    let flags = OFlags::CLOEXEC | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| {
        let mut error = RingError::os(e.into(), describe());
        if error.kind == RingErrorKind::NotFound {
            error.remedy = "create its folder first".into();
        }
        error
    })?;
    let allocated = allocate(&fd, path, size_bytes, alloc);
    drop(fd);
    let opened = allocated.map_err(|e| RingError::os(e, describe())).and_then(|()| {
        let found = std::fs::metadata(path).map_err(|e| RingError::os(e, describe()))?;
        open_existing(path, &found, Some(size_bytes), options)
    });
    if let Err(error) = &opened
        && error.kind != RingErrorKind::InUse
    {
        // The incomplete new file is removed so that a second attempt can create it. If another process has locked it
        // since, that process uses it as a disk, and it stays.
        let _ = std::fs::remove_file(path);
    }
    opened
}

/// Gives a new file its size, and makes the file and its name durable.
fn allocate(fd: &OwnedFd, path: &Path, size_bytes: u64, alloc: Alloc) -> io::Result<()> {
    rustix::fs::ftruncate(fd, size_bytes)?;
    if alloc == Alloc::Full {
        rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, size_bytes)?;
    }
    rustix::fs::fsync(fd)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Returns the alignment of `O_DIRECT` offsets from the kernel (6.1 on). 0 means that `O_DIRECT` is not supported.
fn direct_alignment(file: &File) -> Option<u32> {
    // SAFETY: `statx` holds plain numbers, for which all zeros is a valid value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the empty path is a C string, and the kernel writes only to `found`.
    let rc = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut found)
    };
    (rc == 0 && found.stx_mask & libc::STATX_DIOALIGN != 0).then_some(found.stx_dio_offset_align)
}

/// Tries a 512-byte read, for kernels that do not report the alignment.
fn probe_alignment(file: &File) -> u32 {
    #[repr(align(4096))]
    struct Block([u8; 4096]);
    let mut block = Block([0; 4096]);
    match rustix::io::pread(file.as_fd(), &mut block.0[..512], 0) {
        Err(rustix::io::Errno::INVAL) => 4096,
        _ => 512,
    }
}

/// `_IO(0x12, 94)`, from linux/fs.h; libc does not have it.
const BLKROGET: libc::Ioctl = 0x125e;

fn block_device_u32(file: &File, request: libc::Ioctl) -> io::Result<u32> {
    let mut value: libc::c_int = 0;
    // SAFETY: BLKSSZGET and BLKROGET write one int to the address given, that of `value`.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut value) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(value as u32) }
}

fn block_device_bytes(fd: impl AsFd) -> io::Result<u64> {
    /// `_IOR(0x12, 114, size_t)`, from linux/fs.h; libc does not have it for every target.
    const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u32 as libc::Ioctl;
    let mut bytes: u64 = 0;
    // SAFETY: BLKGETSIZE64 writes one u64 to the address given, that of `bytes`.
    let rc = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), BLKGETSIZE64, &raw mut bytes) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes) }
}

/// Returns the length and link count of a file. A network file system inquires at its server only if `sync` is set.
#[inline]
fn stat_file(fd: impl AsFd, sync: bool) -> io::Result<libc::statx> {
    let flags = libc::AT_EMPTY_PATH | if sync { libc::AT_STATX_FORCE_SYNC } else { libc::AT_STATX_DONT_SYNC };
    // SAFETY: `statx` holds plain numbers, for which all zeros is a valid value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let wanted = libc::STATX_SIZE | libc::STATX_NLINK;
    // SAFETY: the descriptor is open, the empty path is a C string, and the kernel writes only to `found`.
    let rc = unsafe { libc::statx(fd.as_fd().as_raw_fd(), c"".as_ptr(), flags, wanted, &raw mut found) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(found) }
}
