//! Leaf I/Os on files and block devices: the system calls that each takes, one after another, until all bytes are done.

use std::cmp::Reverse;

use braid_engine::{Buf, ErrorKind, Flags, LEAF_BYTES_MAX, LeafError, LeafIo, Op};

use super::entry::{Method, NONE, State};
use super::{DEPTH, Leaf, Port, errno, must_be_durable};
use crate::driver::{Event, Job, Memory};
use crate::tokens::LEAF_TOKEN;

/// Bytes zeroed or discarded by one system call, so that each call takes bounded time.
const RANGE_STEP_BYTES: u64 = 1 << 30;
/// Delay before an I/O is retried for which the kernel had no resources.
const RETRY_NS: u64 = 1_000_000;

impl Port {
    /// Chooses a method, and hands the first system call to the driver.
    pub(super) fn begin_on_file(&mut self, index: u32) {
        if self.must_be_refused(index) {
            return self.finish(index, Err(SHORT));
        }
        let entry = &mut self.entries[index];
        let leaf = &self.leaves[entry.io.leaf.0 as usize];
        match first_method(&entry.io, leaf) {
            Ok(method) => {
                entry.method = method;
                self.issue(index);
            }
            Err(result) => self.finish(index, result),
        }
    }

    /// Hands the next system call of an entry to the driver, or queues the entry.
    fn issue(&mut self, index: u32) {
        if self.issued >= DEPTH {
            // There is one block of iovecs for each system call in flight, and none for queued entries.
            self.drop_iovecs(index);
            return self.entries.push_ready(index);
        }
        let job = self.job(index);
        self.issued += 1;
        self.entries[index].state = State::Issued;
        // SAFETY: the engine keeps the data's memory valid until the port reports that the kernel no longer uses it;
        // iovecs and zeros belong to the port; the file is open as long as the leaf has entries.
        unsafe { self.driver.push(LEAF_TOKEN | u64::from(index), &job) };
    }

    fn job(&mut self, index: u32) -> Job {
        let entry = &mut self.entries[index];
        let io = &entry.io;
        let file = self.leaves[io.leaf.0 as usize].file;
        let (offset, rest) = (io.offset + entry.done, io.len - entry.done);
        let mode = match entry.method {
            Method::Punch => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Method::ZeroRange => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            Method::WriteZeros => {
                entry.step = rest.min(LEAF_BYTES_MAX);
                let memory = Memory::One { addr: self.zeros.addr(), len: entry.step as u32, region: Buf::UNREGISTERED };
                return Job::Write { file, offset, memory, dsync: false };
            }
            Method::Plain => {
                entry.step = rest;
                if io.op == Op::Flush {
                    return Job::Sync { file };
                }
                let memory = if io.pieces() == 1 {
                    Memory::One { addr: io.buf.addr + entry.done, len: rest as u32, region: io.buf.region }
                } else {
                    if entry.iovecs == NONE {
                        entry.iovecs = self.iovecs.take();
                    }
                    let (iov, count) = self.iovecs.fill(entry.iovecs, &entry.io, entry.done);
                    Memory::Many { iov, count }
                };
                return match entry.io.op {
                    Op::Read => Job::Read { file, offset, memory },
                    _ => Job::Write { file, offset, memory, dsync: entry.io.flags.has(Flags::FUA) },
                };
            }
        };
        entry.step = rest.min(RANGE_STEP_BYTES);
        Job::Allocate { file, mode, offset, len: entry.step }
    }

    /// Handles the end of an entry's system call.
    pub(crate) fn on_event(&mut self, event: Event) {
        let index = event.token as u32;
        self.issued -= 1;
        self.progress(index, event.result);
        while self.issued < DEPTH
            && let Some(ready) = self.entries.pop_ready()
        {
            if self.entries[ready].late {
                self.end(ready, Ok(()));
            } else {
                self.issue(ready);
            }
        }
    }

    fn progress(&mut self, index: u32, result: i32) {
        let entry = &mut self.entries[index];
        if entry.late {
            // It has exceeded its time limit: no further system call is started for it.
            if result < 0 {
                self.fail_later_flushes(index, -result);
            }
            return self.end(index, Ok(()));
        }
        if result < 0 {
            return self.progress_failed(index, -result);
        }
        let moves_bytes = matches!(entry.method, Method::Plain | Method::WriteZeros) && entry.io.op != Op::Flush;
        let (bytes, step) = (if moves_bytes { result as u64 } else { entry.step }, entry.step);
        if !self.is_whole_after(index, bytes < step) {
            return self.end(index, Err(SHORT));
        }
        let entry = &mut self.entries[index];
        if moves_bytes && bytes == 0 && step > 0 {
            // End of file inside the disk, although the file has its size: it was truncated and extended again.
            return self.end_failed(index, libc::EIO);
        }
        entry.done += bytes;
        if entry.done < entry.io.len {
            if entry.method != Method::Plain {
                // Each step of a long range has a time limit of its own.
                self.entries.stop_clock(index);
                self.entries.start_clock(index, self.now_ns);
            }
            return self.issue(index);
        }
        // Of several concurrent flushes of a file, the kernel reports a failure to one only, and success to the others.
        let io = &self.entries[index].io;
        let disk = self.leaves[io.leaf.0 as usize].disk.as_ref();
        let flush_failed = must_be_durable(io) && disk.is_some_and(|disk| disk.has_failed_flush());
        self.end(index, if flush_failed { Err(LeafError::of(ErrorKind::FlushFailed)) } else { Ok(()) });
    }

    #[cold]
    fn progress_failed(&mut self, index: u32, errno: i32) {
        let entry = &mut self.entries[index];
        let leaf = &mut self.leaves[entry.io.leaf.0 as usize];
        match errno {
            libc::EINTR => return self.issue(index),
            libc::EAGAIN => {
                entry.state = State::Retry;
                self.delays.push(Reverse((self.now_ns + RETRY_NS, index)));
                return self.drop_iovecs(index);
            }
            _ => {}
        }
        if errno::is_unsupported(errno) && matches!(entry.method, Method::Punch | Method::ZeroRange) {
            if entry.method == Method::Punch {
                leaf.punches = false;
            } else {
                leaf.zeroes_ranges = false;
            }
            return match first_method(&entry.io, leaf) {
                Ok(method) => {
                    entry.method = method;
                    self.issue(index);
                }
                Err(result) => self.end(index, result),
            };
        }
        if !self.is_whole_after(index, true) {
            self.fail_later_flushes(index, errno);
            return self.end(index, Err(SHORT));
        }
        self.end_failed(index, errno);
    }

    /// Returns whether an I/O must fail because its file is known to be short, or because it writes up to the end of
    /// the disk and the file is short now. Only a write up to the end could restore the length and so hide a
    /// truncation. Such writes are rare, as only the copy of the label lies there.
    #[inline]
    fn must_be_refused(&self, index: u32) -> bool {
        let io = &self.entries[index].io;
        let leaf = &self.leaves[io.leaf.0 as usize];
        let Some(disk) = &leaf.disk else { return false };
        let at_the_end = !matches!(io.op, Op::Read | Op::Flush) && io.offset + io.len == leaf.size_bytes;
        disk.is_short() || at_the_end && !disk.is_whole_now()
    }

    /// Returns whether the disk has its full size, after the kernel has completed an I/O on it. `short`: the I/O moved
    /// fewer bytes than requested, or failed.
    ///
    /// A regular file is checked once in each turn in which I/Os on it have completed, after their completion. Success
    /// of an I/O therefore proves that the file was complete until then: a write may have extended a truncated file,
    /// but not to its full size, because data I/O never reaches the last block. No write extends a block device, so
    /// block devices are checked after `short` I/Os only.
    #[inline]
    fn is_whole_after(&mut self, index: u32, short: bool) -> bool {
        let leaf = &mut self.leaves[self.entries[index].io.leaf.0 as usize];
        let Some(disk) = &leaf.disk else { return true };
        if !short && (leaf.whole_at_ns == self.now_ns || disk.is_block_device()) {
            return true;
        }
        if disk.is_whole_now() {
            leaf.whole_at_ns = self.now_ns;
            return true;
        }
        false
    }

    fn end(&mut self, index: u32, result: braid_engine::LeafResult) {
        self.drop_iovecs(index);
        self.finish(index, result);
    }

    fn end_failed(&mut self, index: u32, errno: i32) {
        self.drop_iovecs(index);
        self.fail_later_flushes(index, errno);
        self.failed(index, errno);
    }

    /// Makes later flushes of the disk fail, if this I/O was a flush or a FUA write and failed with an error of the
    /// disk.
    ///
    /// The kernel executes a FUA write as a write and a flush, and does not report which of the two failed. If the
    /// flush did, its error may have stood for the loss of other writes, too, and the kernel reports such a loss once:
    /// a later flush would succeed.
    #[cold]
    fn fail_later_flushes(&mut self, index: u32, errno: i32) {
        let io = &self.entries[index].io;
        let of_the_disk =
            matches!(errno::leaf_error(errno).kind, ErrorKind::Io | ErrorKind::Gone | ErrorKind::TimedOut);
        if must_be_durable(io)
            && of_the_disk
            && let Some(disk) = &self.leaves[io.leaf.0 as usize].disk
        {
            disk.set_flush_failed();
        }
    }

    fn drop_iovecs(&mut self, index: u32) {
        let block = std::mem::replace(&mut self.entries[index].iovecs, NONE);
        if block != NONE {
            self.iovecs.give(block);
        }
    }

    /// Retries an I/O for which the kernel had no resources.
    pub(super) fn retry(&mut self, index: u32) {
        if self.entries[index].late { self.end(index, Ok(())) } else { self.issue(index) }
    }
}

/// The result of an I/O on a disk that has become shorter: the disk as a whole is gone.
const SHORT: LeafError = LeafError { kind: ErrorKind::Gone, errno: libc::ENXIO };

/// Returns the method for an I/O on a file, given what the file is known to support, or the result if no system call is
/// needed.
fn first_method(io: &LeafIo, leaf: &Leaf) -> Result<Method, braid_engine::LeafResult> {
    let disk = leaf.disk.as_ref().expect("a leaf is not removed while it has entries");
    let unsupported = || Err(Err(LeafError { kind: ErrorKind::Unsupported, errno: libc::EOPNOTSUPP }));
    match io.op {
        Op::Read | Op::Write if io.len == 0 => Err(Ok(())),
        Op::Read | Op::Write | Op::Flush => Ok(Method::Plain),
        _ if io.len == 0 => Err(Ok(())),
        // A discard is a hint: a disk that does not support it ignores it.
        Op::Discard => {
            if leaf.punches {
                Ok(Method::Punch)
            } else {
                Err(Ok(()))
            }
        }
        Op::WriteZeroes => {
            let keep = io.flags.has(Flags::NO_UNMAP);
            let fast = io.flags.has(Flags::FAST_ZERO);
            if !keep && leaf.punches {
                Ok(Method::Punch)
            } else if leaf.zeroes_ranges && !(fast && disk.is_block_device()) {
                // On a block device the kernel may zero a range by writing zeros, which is not fast.
                Ok(Method::ZeroRange)
            } else if fast {
                unsupported()
            } else {
                Ok(Method::WriteZeros)
            }
        }
    }
}
