//! Errors of devices, with their remedies.

use std::io;

/// A class of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UblkErrorKind {
    /// The kernel has no ublk, or its module is not loaded.
    NoDriver,
    /// Not permitted.
    Permission,
    /// The kernel's ublk, or the shards, cannot do what is needed.
    Unsupported,
    /// More queues or requests than possible.
    Limit,
    /// The device is in use.
    Busy,
    /// Any other error of the kernel.
    Os,
}

/// An error of a device: its class, what failed, and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct UblkError {
    /// Its class.
    pub kind: UblkErrorKind,
    /// What was tried, and why it failed.
    pub context: String,
    /// What to do about it; may be empty.
    pub remedy: String,
    /// The operating system's error.
    #[source]
    pub source: Option<io::Error>,
}

impl UblkError {
    pub(crate) fn new(kind: UblkErrorKind, context: impl Into<String>, remedy: impl Into<String>) -> UblkError {
        UblkError { kind, context: context.into(), remedy: remedy.into(), source: None }
    }

    /// Creates the error of an operating system call, with `doing` as what was tried.
    pub(crate) fn os(error: io::Error, doing: &str) -> UblkError {
        let (kind, remedy) = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                (UblkErrorKind::Permission, "run the daemon as root (ublk needs CAP_SYS_ADMIN)")
            }
            io::ErrorKind::ResourceBusy => (UblkErrorKind::Busy, ""),
            _ => (UblkErrorKind::Os, ""),
        };
        UblkError { kind, context: format!("{doing}: {error}"), remedy: remedy.into(), source: Some(error) }
    }

    /// Returns the error number of the operating system.
    pub(crate) fn os_number(&self) -> Option<i32> {
        self.source.as_ref().and_then(io::Error::raw_os_error)
    }

    /// Creates the error for a control device that cannot be opened.
    pub(crate) fn no_control(error: io::Error, path: &str) -> UblkError {
        let (kind, why, remedy) = match error.kind() {
            io::ErrorKind::NotFound => (
                UblkErrorKind::NoDriver,
                "the kernel's ublk driver is not loaded, or this kernel has none (it came with Linux 6.0)".to_owned(),
                "load it with `modprobe ublk_drv`, at each boot by a line `ublk_drv` in /etc/modules-load.d/braid.conf; \
                 where there is none, use --nbd",
            ),
            io::ErrorKind::PermissionDenied => (
                UblkErrorKind::Permission,
                "it may not be opened".to_owned(),
                "run the daemon as root (ublk needs CAP_SYS_ADMIN)",
            ),
            _ => (UblkErrorKind::Os, error.to_string(), ""),
        };
        UblkError { kind, context: format!("{path}: {why}"), remedy: remedy.into(), source: Some(error) }
    }
}
