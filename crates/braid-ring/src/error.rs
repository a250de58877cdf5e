//! The error type of this crate for everything except single I/Os: kind, context, remedy, source.

use std::fmt;
use std::io;

/// A small, stable classification, for exit codes and HTTP statuses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RingErrorKind {
    /// No such file or device.
    NotFound,
    /// The disk is in use by another process.
    InUse,
    /// The operating system denies this user the access.
    Permission,
    /// The file system is full, or no memory is available.
    NoSpace,
    /// The request contradicts the current state, such as an existing file of another size.
    Conflict,
    /// This kind of disk or driver does not support it.
    Unsupported,
    /// A table of fixed size is full, or a limit is exceeded.
    Limit,
    /// The shards have stopped.
    Stopped,
    /// Any other error of the operating system.
    Os,
}

/// What failed, on which object, and what to do about it.
#[derive(Debug)]
pub struct RingError {
    /// The class of failure.
    pub kind: RingErrorKind,
    /// The object, and the operation on it.
    pub context: String,
    /// What the user can do, as a full clause. Empty if there is no useful remedy.
    pub remedy: String,
    /// The error of the operating system.
    pub source: Option<io::Error>,
}

impl RingError {
    pub(crate) fn new(kind: RingErrorKind, context: impl Into<String>, remedy: impl Into<String>) -> RingError {
        RingError { kind, context: context.into(), remedy: remedy.into(), source: None }
    }

    /// Classifies an error of the operating system, with its usual remedy.
    pub(crate) fn os(source: io::Error, context: impl Into<String>) -> RingError {
        let (kind, remedy) = match source.raw_os_error().unwrap_or(0) {
            libc::ENOENT | libc::ENXIO | libc::ENODEV => {
                (RingErrorKind::NotFound, "check the path; to create a file say file:PATH,size=50G")
            }
            libc::EACCES | libc::EPERM => {
                (RingErrorKind::Permission, "run as a user who may read and write it, or change its owner or mode")
            }
            libc::EROFS => (RingErrorKind::Permission, "it is read-only: choose another place or lift the protection"),
            libc::ENOSPC | libc::EDQUOT => (RingErrorKind::NoSpace, "free some space, or ask for a smaller size"),
            libc::EFBIG => {
                (RingErrorKind::NoSpace, "the file system holds no file of that size: ask for a smaller one")
            }
            libc::ENOMEM => (RingErrorKind::NoSpace, "free some memory, or ask for a smaller size"),
            libc::EBUSY | libc::EWOULDBLOCK => {
                (RingErrorKind::InUse, "unmount it, or stop whoever uses it, and try again")
            }
            libc::EMFILE | libc::ENFILE => (RingErrorKind::Limit, "raise the limit of open files (ulimit -n)"),
            _ => (RingErrorKind::Os, ""),
        };
        RingError { kind, context: context.into(), remedy: remedy.into(), source: Some(source) }
    }

    pub(crate) fn stopped(context: impl Into<String>) -> RingError {
        RingError::new(RingErrorKind::Stopped, context, "")
    }
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for RingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| s as _)
    }
}
