//! File-specific commands (`IORING_OP_URING_CMD`): commands of frontends through their shard's ring, and single
//! blocking commands.
//!
//! A command is a number and some bytes whose meaning depends on the file. Frontend commands are short (16 bytes, an
//! ordinary entry), may stay in the kernel forever, and do not keep a shard from ending; see
//! [`crate::Frontend::is_quiet`].

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::driver::Event;
use crate::tokens::{COMMAND_TOKEN, TAG_BITS, TAG_LIMIT};

/// Length in bytes of the payload of a command for [`command`].
pub const COMMAND_BYTES_MAX: usize = 80;

pub(crate) fn token_of(frontend: u16, token: u64) -> u64 {
    COMMAND_TOKEN | u64::from(frontend) << TAG_BITS | token
}

/// Returns the frontend and its token, if the event belongs to a command.
pub(crate) fn split(event: &Event) -> Option<(usize, u64)> {
    let is_ours = event.token >> 56 == COMMAND_TOKEN >> 56;
    is_ours.then_some(((event.token >> TAG_BITS & 0xff) as usize, event.token & (TAG_LIMIT - 1)))
}

/// Executes one command of up to 80 bytes on a small ring of its own, and waits for it. Must not be called on a shard.
///
/// # Errors
/// The file's error; `TimedOut` when the command has not ended in time: it is then cancelled if the file supports that,
/// and may continue; or an error if io_uring is not available.
///
/// # Safety
/// Everything that the payload refers to, above all memory, must stay valid as the file requires until this returns.
/// After `TimedOut` it must stay valid forever, because the kernel may still execute the command.
pub unsafe fn command(
    fd: BorrowedFd<'_>,
    code: u32,
    bytes: &[u8; COMMAND_BYTES_MAX],
    timeout: Duration,
) -> io::Result<i32> {
    let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(4)?;
    let entry = opcode::UringCmd80::new(Fd(fd.as_raw_fd()), code).cmd(*bytes).build();
    // SAFETY: the caller guarantees that what the command names is valid; a new queue has room.
    let _ = unsafe { ring.submission().push(&entry) };
    let limit = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
    let mut waited = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit));
    while waited.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::Interrupted) {
        waited = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit));
    }
    let Some(reply) = ring.completion().next() else {
        let all = io_uring::types::CancelBuilder::any();
        let _ = ring.submitter().register_sync_cancel(Some(Timespec::new().sec(2)), all);
        let why = match waited {
            Err(error) if error.raw_os_error() != Some(libc::ETIME) => format!(": {error}"),
            _ => String::new(),
        };
        // A failed wait is reported as a timeout, too, because the kernel may have the command.
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it did not end in time{why}")));
    };
    if reply.result() < 0 { Err(io::Error::from_raw_os_error(-reply.result())) } else { Ok(reply.result()) }
}
