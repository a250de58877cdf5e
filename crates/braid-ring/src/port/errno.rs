//! Maps error numbers of disks to the engine's error kinds.

use braid_engine::{ErrorKind, LeafError};

/// Classifies an error number.
pub(super) fn leaf_error(errno: i32) -> LeafError {
    let kind = match errno {
        libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN | libc::ENOMEDIUM | libc::EBADF | libc::ESTALE => ErrorKind::Gone,
        crate::remote_part::SLOW_ERRNO => ErrorKind::Slow,
        libc::ETIMEDOUT | libc::ETIME => ErrorKind::TimedOut,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorKind::NoSpace,
        libc::EINVAL | libc::EFAULT => ErrorKind::Invalid,
        libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS => ErrorKind::Unsupported,
        libc::EROFS | libc::EPERM | libc::EACCES | libc::ETXTBSY => ErrorKind::ReadOnly,
        libc::ENOMEM | libc::EBUSY => ErrorKind::Busy,
        _ => ErrorKind::Io,
    };
    LeafError { kind, errno }
}

/// Returns whether the error means that the file system or device does not support the operation.
pub(super) fn is_unsupported(errno: i32) -> bool {
    matches!(errno, libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS | libc::EINVAL)
}
