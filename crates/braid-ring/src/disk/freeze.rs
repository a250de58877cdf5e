//! Freezing file systems, as `fsfreeze` does: between [`freeze`] and [`thaw`] no write reaches the file system, and all that was written
//! before is on its device. Writers wait meanwhile.
//!
//! The kernel keeps a file system frozen when the process ends that froze it. Both calls block: for as long as the device needs.

// The door to two requests of the kernel's, which carry no data.
#![allow(unsafe_code)]

use rustix::fd::AsFd;
use rustix::ioctl::{NoArg, Opcode, ioctl, opcode};
use std::io;

/// `_IOWR('X', 119, int)`, from linux/fs.h.
const FIFREEZE: Opcode = opcode::read_write::<i32>(b'X', 119);
/// `_IOWR('X', 120, int)`, from linux/fs.h.
const FITHAW: Opcode = opcode::read_write::<i32>(b'X', 120);

/// Freezes the file system that a file or folder is on.
///
/// # Errors
/// The kernel's: `EBUSY` where it is frozen already, `EOPNOTSUPP` where it cannot be frozen, `EPERM` without the right to.
pub fn freeze(on: impl AsFd) -> io::Result<()> {
    // SAFETY: the kernel reads and writes nothing at the address that FIFREEZE is given.
    Ok(unsafe { ioctl(on, NoArg::<FIFREEZE>::new()) }?)
}

/// Thaws it.
///
/// # Errors
/// The kernel's: `EINVAL` where it is not frozen.
pub fn thaw(on: impl AsFd) -> io::Result<()> {
    // SAFETY: as in `freeze`.
    Ok(unsafe { ioctl(on, NoArg::<FITHAW>::new()) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_kernel() {
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            assert_eq!((FIFREEZE, FITHAW), (0xc004_5877, 0xc004_5878));
        }
    }

    #[test]
    fn what_is_no_file_system_is_refused() {
        let (reader, _writer) = io::pipe().expect("a pipe can be made");
        assert!(freeze(&reader).is_err());
        assert!(thaw(&reader).is_err());
    }
}
