//! Explains why a driver is not available.

use std::fs;

use super::DriverKind;
use crate::error::RingError;

/// Says whether io_uring is disabled.
const URING_SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";

/// Returns the reason that the status shows for a skipped driver.
pub(super) fn reason(kind: DriverKind, error: &RingError) -> String {
    let errno = error.source.as_ref().and_then(std::io::Error::raw_os_error).unwrap_or(0);
    match (kind, errno) {
        (DriverKind::Uring, libc::EPERM | libc::EACCES) => {
            uring_forbidden(fs::read_to_string(URING_SWITCH).as_deref().unwrap_or("").trim())
        }
        (DriverKind::Uring, libc::ENOSYS) => {
            "this kernel has no io_uring, or one older than Linux 5.11, or the container hides it".into()
        }
        (DriverKind::Uring, libc::ENOMEM) => {
            "there is not enough memory for it, or too little may be locked (ulimit -l)".into()
        }
        (DriverKind::Libaio, libc::EPERM | libc::EACCES) => {
            "this process is forbidden to use it, as by the system call filter (seccomp) of a container".into()
        }
        (DriverKind::Libaio, libc::ENOSYS) => "this kernel has no asynchronous I/O, or the container hides it".into(),
        (DriverKind::Libaio, libc::EAGAIN) if error.context != super::threads::STARTING_THREADS => {
            "all places for asynchronous I/O on this machine are taken (sysctl fs.aio-max-nr)".into()
        }
        (_, libc::EMFILE | libc::ENFILE) => "too many files are open (ulimit -n)".into(),
        (DriverKind::Threads | DriverKind::Libaio, libc::EAGAIN) => {
            "no more threads may be started (ulimit -u, or the container's limit of processes)".into()
        }
        _ => error.to_string(),
    }
}

fn uring_forbidden(switch: &str) -> String {
    match switch {
        "2" => "io_uring is switched off on this machine (sysctl kernel.io_uring_disabled is 2)".into(),
        "1" => "io_uring is reserved for root and one group on this machine (sysctl kernel.io_uring_disabled is 1; \
                kernel.io_uring_group names the group)"
            .into(),
        _ => "this process is forbidden to use it, as by the system call filter (seccomp) of a container".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_name_what_to_change() {
        let reason = |kind, errno| {
            let error = RingError::os(std::io::Error::from_raw_os_error(errno), "starting it");
            super::reason(kind, &error)
        };
        for (kind, errno, word) in [
            (DriverKind::Uring, libc::ENOSYS, "5.11"),
            (DriverKind::Uring, libc::ENOMEM, "ulimit -l"),
            (DriverKind::Libaio, libc::EAGAIN, "aio-max-nr"),
            (DriverKind::Libaio, libc::EPERM, "seccomp"),
            (DriverKind::Threads, libc::EAGAIN, "ulimit -u"),
            (DriverKind::Threads, libc::EMFILE, "ulimit -n"),
            (DriverKind::Uring, libc::EFAULT, "starting it"),
        ] {
            assert!(reason(kind, errno).contains(word), "{kind}, {errno}: {}", reason(kind, errno));
        }
        for (switch, word) in
            [("2", "io_uring_disabled is 2"), ("1", "io_uring_group"), ("0", "seccomp"), ("", "seccomp")]
        {
            assert!(uring_forbidden(switch).contains(word), "{switch}");
        }
    }
}
