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

use crate::driver::{Driver, Event, FileRef};
use crate::frontend::{TAG_BITS, TAG_LIMIT};
use crate::net::SOCKETS_MAX;
use crate::port::LEAVES_MAX;

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

/// Files of one shard that are registered for their commands, at most; others are looked up with each command.
pub(crate) const COMMAND_FILES_MAX: u32 = 256;

/// A file that frontends give commands on one shard. It does not keep the file open.
#[derive(Debug)]
pub struct CommandFile(pub(crate) FileRef);

/// The places of such files among the registered ones, after those of disks and sockets.
pub(crate) struct CommandFiles {
    free: Vec<u32>,
}

impl CommandFiles {
    pub(crate) fn new() -> CommandFiles {
        CommandFiles::of(LEAVES_MAX + SOCKETS_MAX, COMMAND_FILES_MAX)
    }

    fn of(first: u32, count: u32) -> CommandFiles {
        CommandFiles { free: (first..first + count).rev().collect() }
    }

    pub(crate) fn add(&mut self, file: BorrowedFd<'_>, driver: &mut Driver) -> CommandFile {
        let fd = file.as_raw_fd();
        let slot = self.free.pop_if(|slot| driver.register_file(*slot, fd));
        CommandFile(FileRef { fd, slot: slot.unwrap_or(FileRef::UNREGISTERED), direct: false })
    }

    pub(crate) fn remove(&mut self, file: CommandFile, driver: &mut Driver) {
        let CommandFile(FileRef { slot, .. }) = file;
        if slot != FileRef::UNREGISTERED {
            driver.register_file(slot, -1);
            self.free.push(slot);
        }
    }
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use super::*;
    use crate::driver::{DriverConfig, DriverKind, Job, Wait};
    use crate::wake::Wake;

    #[test]
    fn files_are_registered_as_long_as_there_is_room() {
        let config = DriverConfig { depth: 8, files: 3, buffers: (0, 0), wake: Arc::new(Wake::new().unwrap()) };
        let (mut driver, _) = Driver::start(Some(DriverKind::Uring), &config).unwrap();
        let null = File::open("/dev/null").unwrap();
        let mut table = CommandFiles::of(0, 3);
        let mut all: Vec<CommandFile> = (0..4).map(|_| table.add(null.as_fd(), &mut driver)).collect();
        let last = all.pop().unwrap();
        assert!(all.iter().all(|file| file.0.slot != FileRef::UNREGISTERED));
        assert_eq!(last.0.slot, FileRef::UNREGISTERED);

        let answer = |driver: &mut Driver, file: FileRef| {
            // SAFETY: the null device takes no memory for its command, and is open.
            unsafe { driver.push(0, &Job::Command { file, code: 0, bytes: [0; SHORT_COMMAND_BYTES] }) };
            let mut events = Vec::new();
            while events.is_empty() {
                driver.turn(Wait::For(1_000_000_000), &mut events);
            }
            events[0].result
        };
        let by_number = answer(&mut driver, last.0);
        let known = all.pop().unwrap();
        let (same, slot) = (known.0, known.0.slot);
        assert_eq!(answer(&mut driver, same), by_number);
        table.remove(known, &mut driver);
        assert_eq!(answer(&mut driver, same), -libc::EBADF, "the ring has let go of it");
        table.remove(last, &mut driver);
        assert_eq!(table.add(null.as_fd(), &mut driver).0.slot, slot);
    }
}
