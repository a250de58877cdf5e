//! Making a connection to the kernel and mounting it over a file, and what others do with that file.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::write;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use zerocopy::IntoBytes;

use crate::wire::{DATA_BYTES_MAX, OutHeader, notify};

/// The type of our mounts.
pub const KIND: &str = "fuse.braid";

const DEVICE: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE`: makes a file of `/dev/fuse` another channel of a connection.
const CLONE: libc::c_ulong = 0x8004_e500;

fn channel() -> io::Result<OwnedFd> {
    Ok(open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?)
}

/// Whether the kernel offers FUSE, and this process may use it.
///
/// # Errors
/// What opening `/dev/fuse` says.
pub fn probe() -> io::Result<()> {
    channel().map(drop)
}

/// Mounts a connection over a file; nobody answers it yet. `source` is what the table of mounts shows. Returns as many channels.
///
/// # Errors
/// What the operating system says.
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

/// One more channel of a connection.
///
/// # Errors
/// What the operating system says.
pub fn clone(of: &OwnedFd) -> io::Result<OwnedFd> {
    let new = channel()?;
    let old = of.as_raw_fd() as u32;
    // SAFETY: the kernel reads four bytes, which `old` has.
    match unsafe { libc::ioctl(new.as_raw_fd(), CLONE as _, &raw const old) } {
        0 => Ok(new),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Unmounts what is over a file; `lazily`: also when it is in use, which goes on until its users have closed it.
///
/// # Errors
/// What the operating system says: EBUSY when it is in use.
pub fn unmount_from(path: &Path, lazily: bool) -> io::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazily);
    Ok(unmount(path, flags)?)
}

/// Has the kernel give again what it was not answered.
///
/// # Errors
/// What the operating system says: EINVAL before Linux 6.9.
pub fn resend(channel: impl AsFd) -> io::Result<()> {
    let header = OutHeader { len: size_of::<OutHeader>() as u32, error: notify::RESEND, unique: 0 };
    write(channel, header.as_bytes())?;
    Ok(())
}

/// The source of our mount over a path, if there is one, and it is the topmost there.
///
/// # Errors
/// The table of mounts cannot be read.
pub fn mounted(path: &Path) -> io::Result<Option<String>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(topmost(&table, path))
}

/// All our mounts, by whichever daemon: where they are, and their sources.
///
/// # Errors
/// The table of mounts cannot be read.
pub fn all() -> io::Result<Vec<(PathBuf, String)>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(entries(&table).filter_map(|(at, source)| Some((at, source?))).collect())
}

fn topmost(table: &[u8], path: &Path) -> Option<String> {
    entries(table).filter(|(at, _)| at == path).last()?.1
}

/// Where something is mounted, and its source if it is ours.
fn entries(table: &[u8]) -> impl Iterator<Item = (PathBuf, Option<String>)> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let (at, kind, source) = (fields.get(4)?, fields.get(dash + 1)?, fields.get(dash + 2)?);
        let ours = (*kind == KIND.as_bytes()).then(|| String::from_utf8_lossy(source).into_owned());
        Some((unescaped(at), ours))
    })
}

/// A path as the table of mounts writes it: blanks and the like as three octal digits.
pub fn unescaped(text: &[u8]) -> PathBuf {
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        let octal = text.get(at + 1..at + 4).filter(|_| text[at] == b'\\');
        let value = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(value.unwrap_or(text[at]));
        at += if value.is_some() { 4 } else { 1 };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Who has a file open, as far as this process may see: processes, and loop devices.
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
    fn the_topmost_mount_counts() {
        let table = b"22 1 8:1 / /srv/a\\040b rw,noatime shared:1 - fuse.braid braid:db rw\n\
            23 1 8:1 / /srv/c rw - ext4 /dev/sda1 rw\n\
            24 1 8:1 / /srv/d rw - fuse.braid braid:x rw\n\
            25 1 8:1 / /srv/d rw - tmpfs none rw\n";
        assert_eq!(topmost(table, Path::new("/srv/a b")), Some("braid:db".to_owned()));
        assert_eq!(topmost(table, Path::new("/srv/c")), None);
        assert_eq!(topmost(table, Path::new("/srv/d")), None);
    }
}
