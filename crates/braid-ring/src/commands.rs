//! Commands of open files (`IORING_OP_URING_CMD`): those of frontends through their shard's ring, and single ones that block.
//!
//! A command is a number and some bytes whose meaning is the file's own. Frontends' commands are short (16 bytes, an
//! ordinary entry), may stay in the kernel for ever, and do not keep a shard from ending; see [`crate::Frontend::is_quiet`].

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::driver::Event;
use crate::frontend::{TAG_BITS, TAG_LIMIT};

/// Bytes of a frontend's command.
pub const SHORT_COMMAND_BYTES: usize = 16;
/// Bytes of a command that blocks.
pub const COMMAND_BYTES_MAX: usize = 80;

/// Kind of a driver's token. Below it, the frontend's index and its own token.
pub(crate) const COMMAND_TOKEN: u64 = 5 << 56;

pub(crate) fn token_of(frontend: u16, token: u64) -> u64 {
    COMMAND_TOKEN | u64::from(frontend) << TAG_BITS | token
}

/// The frontend and its token, of an event of this kind.
pub(crate) fn split(event: &Event) -> Option<(usize, u64)> {
    let is_ours = event.token >> 56 == COMMAND_TOKEN >> 56;
    is_ours.then_some(((event.token >> TAG_BITS & 0xff) as usize, event.token & (TAG_LIMIT - 1)))
}

/// One command with up to 80 bytes, carried out before this returns: on a small ring of its own. Not for shards.
///
/// # Errors
/// What the file answered it with; `TimedOut` when it has not ended in time: it is cancelled then, as far as the file lets it, and may
/// go on; or io_uring is not to be had.
///
/// # Safety
/// What the command's bytes name (memory, above all) is as the file wants it, until this returns; with `TimedOut`, for ever.
pub unsafe fn command(
    fd: BorrowedFd<'_>,
    code: u32,
    bytes: &[u8; COMMAND_BYTES_MAX],
    most: Duration,
) -> io::Result<i32> {
    let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(4)?;
    let entry = opcode::UringCmd80::new(Fd(fd.as_raw_fd()), code).cmd(*bytes).build();
    // SAFETY: what it names is as the file wants it, by the caller's promise; a new queue has room.
    let _ = unsafe { ring.submission().push(&entry) };
    let limit = Timespec::new().sec(most.as_secs()).nsec(most.subsec_nanos());
    let mut waited = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit));
    while waited.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::Interrupted) {
        waited = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit));
    }
    let Some(answer) = ring.completion().next() else {
        let all = io_uring::types::CancelBuilder::any();
        let _ = ring.submitter().register_sync_cancel(Some(Timespec::new().sec(2)), all);
        let why = match waited {
            Err(error) if error.raw_os_error() != Some(libc::ETIME) => format!(": {error}"),
            _ => String::new(),
        };
        // Also when the wait itself has failed: the kernel may have the command.
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it did not end in time{why}")));
    };
    if answer.result() < 0 { Err(io::Error::from_raw_os_error(-answer.result())) } else { Ok(answer.result()) }
}
