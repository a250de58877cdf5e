//! Identities of disks, by which two paths to one disk are recognized, and of device files, by which a reattached
//! device is.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, makedev, openat2, statx};
use rustix::io::Errno;
use std::fs;
use std::path::Path;

/// Maximum number of attempts to look up a path in the kernel's cache. A concurrent mount or rename anywhere can make
/// an attempt fail although the path is cached.
const TRIES: usize = 4;

/// The identity of a disk, which is equal for two paths to the same disk: the device number, or the file system and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// A block device, by its device number.
    Device(u64),
    /// A file, by the device number of its file system and its inode.
    File(u64, u64),
}

impl Identity {
    /// Returns the identity of the file or block device at `path`; `None` if there is none or it cannot be queried.
    pub fn of(path: &Path) -> Option<Identity> {
        fs::metadata(path).ok().map(|found| Identity::in_metadata(&found))
    }

    /// Returns the identity of a path from the kernel's cache. This queries no file system, and so it never waits for one.
    ///
    /// # Errors
    /// [`Errno::NOENT`] if nothing exists at the path. Other errors if the path is not cached, or the kernel cannot look it up.
    pub(crate) fn in_memory(path: &Path) -> Result<Identity, Errno> {
        let mut tries = 0;
        let at = loop {
            tries += 1;
            match openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED) {
                Err(Errno::AGAIN) if tries < TRIES => {}
                opened => break opened?,
            }
        };
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&at, "", flags, StatxFlags::TYPE | StatxFlags::INO)?;
        Ok(match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::BlockDevice => Identity::Device(makedev(found.stx_rdev_major, found.stx_rdev_minor)),
            _ => Identity::File(makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino),
        })
    }

    /// Returns the identity of the file or block device with these attributes.
    pub(crate) fn in_metadata(found: &fs::Metadata) -> Identity {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        if found.file_type().is_block_device() {
            Identity::Device(found.rdev())
        } else {
            Identity::File(found.dev(), found.ino())
        }
    }
}

/// The file-system entry (device file) that a path leads to. A device that was removed and reattached has another entry, even
/// under the same name and device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemEntry(u64, u64);

impl FileSystemEntry {
    /// Returns the entry at `path`; `None` if there is none.
    pub fn of(path: &Path) -> Option<FileSystemEntry> {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).ok().map(|found| FileSystemEntry(found.dev(), found.ino()))
    }
}
