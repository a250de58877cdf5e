//! Connections that outlive a daemon: the service manager kept their channels, and gives them to the next one at its start
//! (`sd_listen_fds(3)`).

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::{FdFlags, fcntl_setfd};

/// The first descriptor that a service manager gives.
const FIRST: i32 = 3;
/// The device `/dev/fuse`.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// What the service manager gave to this process, by the name that it was kept under: channels, and nothing else.
///
/// Called once, before anything is opened: it takes the descriptors as its own.
pub fn take() -> BTreeMap<String, Vec<OwnedFd>> {
    let mut kept: BTreeMap<String, Vec<OwnedFd>> = BTreeMap::new();
    let variable = |name: &str| std::env::var(name).ok();
    if variable("LISTEN_PID").and_then(|pid| pid.parse().ok()) != Some(std::process::id()) {
        return kept;
    }
    let count: i32 = variable("LISTEN_FDS").and_then(|count| count.parse().ok()).unwrap_or(0);
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    for (number, name) in (FIRST..FIRST.saturating_add(count.clamp(0, 1 << 20))).zip(names.split(':')) {
        // SAFETY: the service manager has opened it for this process, which is told so by LISTEN_PID; nobody else in it has
        // looked at what was there at its start. One that is not open fails at the first use of it below, and is let go.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        let is_channel = fstat(fd).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
                && (major(stat.st_rdev), minor(stat.st_rdev)) == FUSE_DEVICE
        });
        if is_channel && fcntl_setfd(fd, FdFlags::CLOEXEC).is_ok() {
            // SAFETY: it is open, as was just seen, and nobody else owns it.
            kept.entry(name.to_owned()).or_default().push(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
    kept
}
