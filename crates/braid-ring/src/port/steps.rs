//! Leaf I/Os on files and block devices: which system calls, one after another, until all bytes are done.

use std::cmp::Reverse;

use braid_engine::{Buf, ErrorKind, Flags, LEAF_BYTES_MAX, LeafError, LeafIo, Op};

use super::entry::{Method, NONE, State};
use super::{DEPTH, LEAF_TOKEN, Leaf, Port, errno, vouches};
use crate::driver::{Event, Job, Memory};

/// Bytes zeroed or discarded by one system call, so that each takes bounded time.
const RANGE_STEP_BYTES: u64 = 1 << 30;
/// How long to wait before an I/O is tried again that the kernel had no room for.
const AGAIN_NS: u64 = 1_000_000;

impl Port {
    /// Decides how, and hands the first system call to the driver.
    pub(super) fn begin_on_file(&mut self, index: u32) {
        if self.is_to_be_refused(index) {
            return self.finish(index, Err(SHORT));
        }
        let entry = &mut self.entries[index];
        let leaf = &self.leaves[entry.io.leaf.0 as usize];
        match first_method(&entry.io, leaf) {
            Ok(method) => {
                entry.method = method;
                self.issue(index);
            }
            Err(answer) => self.finish(index, answer),
        }
    }

    /// Hands the next system call of an entry to the driver, or puts it in line.
    fn issue(&mut self, index: u32) {
        if self.issued >= DEPTH {
            // There is a block of iovecs for each job in the kernel, and none for those in line.
            self.drop_iovecs(index);
            return self.entries.push_ready(index);
        }
        let job = self.job(index);
        self.issued += 1;
        self.entries[index].state = State::Issued;
        // SAFETY: the data's memory stays valid until the engine has been told that the kernel is done with it; iovecs
        // and zeros are the port's; the file is open as long as the leaf has entries.
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

    /// A system call of an entry has ended.
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
            // Answered long ago: nothing more is started for it.
            if result < 0 {
                self.doubt_flushes(index, -result);
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
            // The end of the file, in the middle of the disk, although it has its size: it was cut and made longer again.
            return self.end_failed(index, libc::EIO);
        }
        entry.done += bytes;
        if entry.done < entry.io.len {
            if entry.method != Method::Plain {
                // Each step of a long range is an I/O with a time limit of its own.
                self.entries.stop_clock(index);
                self.entries.start_clock(index, self.now_ns);
            }
            return self.issue(index);
        }
        // The kernel tells a failure to one of those who flush a file at the same time, and to the others that all is well.
        let io = &self.entries[index].io;
        let disk = self.leaves[io.leaf.0 as usize].disk.as_ref();
        let in_vain = vouches(io) && disk.is_some_and(|disk| disk.has_failed_flush());
        self.end(index, if in_vain { Err(LeafError::of(ErrorKind::FlushFailed)) } else { Ok(()) });
    }

    #[cold]
    fn progress_failed(&mut self, index: u32, errno: i32) {
        let entry = &mut self.entries[index];
        let leaf = &mut self.leaves[entry.io.leaf.0 as usize];
        match errno {
            libc::EINTR => return self.issue(index),
            libc::EAGAIN => {
                entry.state = State::Again;
                self.delays.push(Reverse((self.now_ns + AGAIN_NS, index)));
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
                Err(answer) => self.end(index, answer),
            };
        }
        if !self.is_whole_after(index, true) {
            self.doubt_flushes(index, errno);
            return self.end(index, Err(SHORT));
        }
        self.end_failed(index, errno);
    }

    /// Whether a file is short already, or would be made longer by a write to its end if it were. Only such a write could hide
    /// that a file was cut: nothing but the label's copy lies there, so that a look before each costs nothing.
    #[inline]
    fn is_to_be_refused(&self, index: u32) -> bool {
        let io = &self.entries[index].io;
        let leaf = &self.leaves[io.leaf.0 as usize];
        let Some(disk) = &leaf.disk else { return false };
        let at_the_end = !matches!(io.op, Op::Read | Op::Flush) && io.offset + io.len == leaf.size_bytes;
        disk.is_short() || at_the_end && !disk.is_whole_now()
    }

    /// Whether the disk has its size after the kernel has carried something out. A regular file is looked at once in each turn
    /// in which something of it ended, after all of that ended: a file that was cut, and that a write made longer again, stays
    /// shorter than it was, since data never reach its last block. So what is told of an I/O is told of a file that was whole
    /// until then. Block devices are never made longer by a write: they are looked at when something came `short`, or failed.
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
        self.doubt_flushes(index, errno);
        self.failed(index, errno);
    }

    /// The kernel carries a write with FUA out as a write and a flush, and does not say which of them failed. If it was the
    /// flush, then it may have been told of what others have written, and a later flush would not hear of it again.
    #[cold]
    fn doubt_flushes(&mut self, index: u32, errno: i32) {
        let io = &self.entries[index].io;
        let of_the_disk =
            matches!(errno::leaf_error(errno).kind, ErrorKind::Io | ErrorKind::Gone | ErrorKind::TimedOut);
        if vouches(io)
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

    /// Tries an I/O again for which the kernel had no room.
    pub(super) fn again(&mut self, index: u32) {
        if self.entries[index].late { self.end(index, Ok(())) } else { self.issue(index) }
    }
}

/// What an I/O of a disk gets that has become shorter than it was: it is not there any more, as a whole.
const SHORT: LeafError = LeafError { kind: ErrorKind::Gone, errno: libc::ENXIO };

/// How to carry out an I/O on a file, given what it is known to be able to do; or the answer, if there is nothing to do.
fn first_method(io: &LeafIo, leaf: &Leaf) -> Result<Method, braid_engine::LeafResult> {
    let disk = leaf.disk.as_ref().expect("a leaf is not removed while it has entries");
    let unsupported = || Err(Err(LeafError { kind: ErrorKind::Unsupported, errno: libc::EOPNOTSUPP }));
    match io.op {
        Op::Read | Op::Write if io.len == 0 => Err(Ok(())),
        Op::Read | Op::Write | Op::Flush => Ok(Method::Plain),
        _ if io.len == 0 => Err(Ok(())),
        // A hint: a disk that cannot take it has nothing to do.
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
                // On a block device the kernel may zero a range by writing zeros itself, which is not fast.
                Ok(Method::ZeroRange)
            } else if fast {
                unsupported()
            } else {
                Ok(Method::WriteZeros)
            }
        }
    }
}
