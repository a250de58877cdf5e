//! Error numbers on the wire, and their mapping from the engine's errors.

use braid_engine::ErrorKind;

/// An error number of the protocol. The server sends no others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: a write to a read-only export.
    Perm = 1,
    /// Input or output error.
    Io = 5,
    /// No memory.
    NoMemory = 12,
    /// The request is invalid.
    Invalid = 22,
    /// No space, or a write beyond the end.
    NoSpace = 28,
    /// Too long for one reply chunk.
    Overflow = 75,
    /// A fast zero that would not be fast.
    NotSupported = 95,
}

impl Errno {
    /// Returns the number on the wire.
    #[inline]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Returns the error number for an I/O that failed in the engine. `fast_zero`: the request has the flag FAST_ZERO,
    /// so that `NotSupported` is a valid reply.
    pub const fn of_io(kind: ErrorKind, fast_zero: bool) -> Errno {
        match kind {
            ErrorKind::NoSpace => Errno::NoSpace,
            ErrorKind::Invalid => Errno::Invalid,
            ErrorKind::Unsupported if fast_zero => Errno::NotSupported,
            ErrorKind::Unsupported => Errno::Invalid,
            ErrorKind::ReadOnly => Errno::Perm,
            // Requests that a later session settles get no reply ([`ErrorKind::is_unsettled`]).
            _ => Errno::Io,
        }
    }

    /// Returns a short error text for the client, at most 30 bytes.
    pub const fn io_text(kind: ErrorKind) -> &'static str {
        match kind {
            ErrorKind::Io => "the disk reported an error",
            ErrorKind::Gone => "the disk is gone",
            ErrorKind::Slow => "the disk is slow",
            ErrorKind::TimedOut => "the disk did not answer",
            ErrorKind::NoSpace => "no space left",
            ErrorKind::Invalid => "the device refused the range",
            ErrorKind::Unsupported => "the device cannot do this",
            ErrorKind::ReadOnly => "the device is read-only",
            ErrorKind::FlushFailed => "an earlier flush failed",
            ErrorKind::Unreadable => "stripe lost: rewrite it fully",
            _ => "the request failed",
        }
    }
}
