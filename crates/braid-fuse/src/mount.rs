//! Opens connections to the kernel, mounts them over files, and finds mounts and users of such files.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use braid_ring::mounts::{self, Mount};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::write;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use zerocopy::IntoBytes;

use crate::wire::{DATA_BYTES_MAX, OutHeader, notify};

/// The file system type of Braid's mounts.
pub const KIND: &str = "fuse.braid";

const DEVICE: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE`: makes an open `/dev/fuse` another channel of an existing connection.
const CLONE: libc::c_ulong = 0x8004_e500;

fn channel() -> io::Result<OwnedFd> {
    Ok(open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?)
}

/// Checks that the kernel offers FUSE and that this process may use it.
///
/// # Errors
/// The error of opening `/dev/fuse`.
pub fn probe() -> io::Result<()> {
    channel().map(drop)
}

/// Mounts a new connection over a file, and returns its `channels` channels (`/dev/fuse` descriptors). Requests of
/// users wait until one of them is served. `source` is the source that the mount table shows. If this fails after the
/// mount, the mount is removed again.
///
/// # Errors
/// The error of the operating system.
pub fn mount_over(path: &Path, source: &str, read_only: bool, channels: usize) -> io::Result<Vec<OwnedFd>> {
    let first = channel()?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = format!(
        "fd={},rootmode=100000,user_id={user},group_id={group},allow_other,default_permissions,max_read={DATA_BYTES_MAX}",
        first.as_raw_fd()
    );
    let options = CString::new(options).map_err(io::Error::other)?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    flags.set(MountFlags::RDONLY, read_only);
    mount(source, path, KIND, flags, Some(options.as_c_str()))?;
    let more = (1..channels).map(|_| clone(&first)).collect::<io::Result<Vec<OwnedFd>>>();
    match more {
        Ok(more) => Ok(std::iter::once(first).chain(more).collect()),
        Err(error) => {
            let _ = unmount_from(path, true);
            Err(error)
        }
    }
}

/// Opens one more channel of a connection.
///
/// # Errors
/// The error of the operating system.
pub fn clone(of: &OwnedFd) -> io::Result<OwnedFd> {
    let new = channel()?;
    let old = of.as_raw_fd() as u32;
    // SAFETY: the kernel reads four bytes, which `old` has.
    match unsafe { libc::ioctl(new.as_raw_fd(), CLONE as _, &raw const old) } {
        0 => Ok(new),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Unmounts what is mounted over a file. `lazily`: also while it is in use; its users keep the file until they close it.
///
/// # Errors
/// The error of the operating system: EBUSY if the file is in use.
pub fn unmount_from(path: &Path, lazily: bool) -> io::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazily);
    Ok(unmount(path, flags)?)
}

/// Has the kernel resubmit the requests that were read and not replied to.
///
/// # Errors
/// The error of the operating system: EINVAL before Linux 6.9.
pub fn resend(channel: impl AsFd) -> io::Result<()> {
    let header = OutHeader { len: size_of::<OutHeader>() as u32, error: notify::RESEND, unique: 0 };
    write(channel, header.as_bytes())?;
    Ok(())
}

/// Returns the source of Braid's mount over a path, if the topmost mount over it is Braid's.
///
/// # Errors
/// The mount table cannot be read.
pub fn mounted(path: &Path) -> io::Result<Option<String>> {
    Ok(topmost(mounts::all()?, path))
}

/// Returns the mounts of every Braid daemon: their paths and their sources.
///
/// # Errors
/// The mount table cannot be read.
pub fn all() -> io::Result<Vec<(PathBuf, String)>> {
    let ours = |mount: Mount| Some((mount.mount_point.clone(), source_of_ours(mount)?));
    Ok(mounts::all()?.into_iter().filter_map(ours).collect())
}

fn topmost(mounts: Vec<Mount>, path: &Path) -> Option<String> {
    source_of_ours(mounts.into_iter().rev().find(|mount| mount.mount_point == path)?)
}

fn source_of_ours(mount: Mount) -> Option<String> {
    (mount.file_system == KIND).then(|| mount.source.to_string_lossy().into_owned())
}

/// Returns the processes and loop devices that have a file open, as far as this process may see them.
pub fn users(path: &Path) -> Vec<String> {
    let mut users = Vec::new();
    let entries = |folder: &str| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for process in entries("/proc") {
        let Some(number) = process.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else { continue };
        let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        if open.into_iter().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)) {
            let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
            users.push(format!("process {number} ({})", name.trim_end()));
        }
    }
    for device in entries("/sys/block") {
        let backing = std::fs::read(device.join("loop/backing_file")).unwrap_or_default();
        if backing.trim_ascii_end() == path.as_os_str().as_bytes()
            && let Some(name) = device.file_name()
        {
            users.push(format!("loop device /dev/{}", name.to_string_lossy()));
        }
    }
    users.sort();
    users
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_topmost_mount_is_reported() {
        let table = b"22 1 8:1 / /srv/a\\040b rw,noatime shared:1 - fuse.braid braid:db rw\n\
            23 1 8:1 / /srv/c rw - ext4 /dev/sda1 rw\n\
            24 1 8:1 / /srv/d rw - fuse.braid braid:x rw\n\
            25 1 8:1 / /srv/d rw - tmpfs none rw\n";
        assert_eq!(topmost(mounts::parse(table), Path::new("/srv/a b")), Some("braid:db".to_owned()));
        assert_eq!(topmost(mounts::parse(table), Path::new("/srv/c")), None);
        assert_eq!(topmost(mounts::parse(table), Path::new("/srv/d")), None);
    }
}
