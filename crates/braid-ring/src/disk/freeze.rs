//! Freezing of file systems, like `fsfreeze`. Between [`freeze`] and [`thaw`] no write reaches the file system, and all
//! earlier writes are on its device. Writers block meanwhile.
//!
//! A file system stays frozen after the process that froze it has ended. Both calls block until the device has done
//! their writes, without a limit.

// Two ioctls, which carry no data.
#![allow(unsafe_code)]

use rustix::fd::AsFd;
use rustix::ioctl::{NoArg, Opcode, ioctl, opcode};
use std::io;

/// `_IOWR('X', 119, int)`, from linux/fs.h.
const FIFREEZE: Opcode = opcode::read_write::<i32>(b'X', 119);
/// `_IOWR('X', 120, int)`, from linux/fs.h.
const FITHAW: Opcode = opcode::read_write::<i32>(b'X', 120);

/// Freezes the file system of a file or folder.
///
/// # Errors
/// The kernel's: `EBUSY` if it is already frozen, `EOPNOTSUPP` if it cannot be frozen, `EPERM` without the privilege.
pub fn freeze(on: impl AsFd) -> io::Result<()> {
    // SAFETY: the kernel reads and writes nothing at the address that FIFREEZE is given.
    Ok(unsafe { ioctl(on, NoArg::<FIFREEZE>::new()) }?)
}

/// Thaws the file system of a file or folder.
///
/// # Errors
/// The kernel's: `EINVAL` if it is not frozen.
pub fn thaw(on: impl AsFd) -> io::Result<()> {
    // SAFETY: as in `freeze`.
    Ok(unsafe { ioctl(on, NoArg::<FITHAW>::new()) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_match_the_kernel() {
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            assert_eq!((FIFREEZE, FITHAW), (0xc004_5877, 0xc004_5878));
        }
    }

    #[test]
    fn a_pipe_is_refused() {
        let (reader, _writer) = io::pipe().expect("a pipe can be made");
        assert!(freeze(&reader).is_err());
        assert!(thaw(&reader).is_err());
    }
}
