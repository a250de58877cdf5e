//! The io_uring driver: one ring per shard, one `enter` per turn.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::{DriverConfig, DriverInfo, DriverKind, Event, FileRef, Job, Memory, Wait};
use crate::error::RingError;
use crate::tokens::LEAF_TOKEN;
use crate::wake::Wake;

/// Entries of the submission and completion queues; the smaller sizes are for hosts with little lockable memory. When
/// the submission queue is full, an extra `enter` empties it. When the completion queue is full, the kernel holds
/// completions back.
const SIZES: [(u32, u32); 3] = [(1024, 8192), (256, 1024), (64, 256)];
/// Token of the poll of the wake-up eventfd. Tokens of jobs are smaller.
const WAKE_TOKEN: u64 = u64::MAX;

/// Number of reads and writes in the first early batch of a turn. While the kernel has fewer than [`DISK_BUSY`] disk
/// I/Os, the driver submits queued reads and writes as soon as they fill a batch, and not only at the end of the turn:
/// the disks would be idle until then. On a virtual disk at depth 32 this raises the throughput by a fifth. Each
/// further batch of the same turn is twice as large, since each call wakes the process that emulates a virtual disk.
const DISK_BATCH: usize = 4;
/// From this number of disk I/Os in the kernel on, the disks count as busy, and no early batch is submitted.
const DISK_BUSY: usize = 8;

const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 1 << 3;

pub(crate) struct Uring {
    ring: IoUring,
    wake: Arc<Wake>,
    files: u32,
    has_buffers: bool,
    /// Disk jobs that were pushed and have not ended.
    disk_jobs: usize,
    /// Reads and writes pushed in this turn since its last early batch.
    disk_queued: usize,
    /// Size of the next early batch.
    disk_batch: usize,
    /// Whether the last turn's `enter` failed, so that the next turn must enter the kernel even if nothing is queued.
    unfinished: bool,
    /// Entries that were ever queued.
    pushed: u64,
}

impl Uring {
    pub(crate) fn start(config: &DriverConfig) -> Result<(Uring, DriverInfo), RingError> {
        let (mut ring, mut features) = build().map_err(|e| RingError::os(e, "starting io_uring".to_string()))?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            let old = io::Error::from_raw_os_error(libc::ENOSYS);
            return Err(RingError::os(old, "starting io_uring (this kernel's is older than 5.11)".to_string()));
        }
        prove(&mut ring).map_err(|e| RingError::os(e, "trying io_uring".to_string()))?;
        if ring.submitter().register_ring_fd().is_ok() {
            features.push("registered_ring");
        }
        let files = register_files(&ring, config.files);
        let (buffer_bytes, why) = register_buffers(&ring, config.buffers);
        let info = DriverInfo {
            kind: DriverKind::Uring,
            skipped: Vec::new(),
            features,
            registered_buffer_bytes: buffer_bytes as u64,
            unregistered_reason: why,
            registered_files: files,
        };
        let mut uring = Uring {
            ring,
            wake: Arc::clone(&config.wake),
            files,
            has_buffers: buffer_bytes > 0,
            disk_jobs: 0,
            disk_queued: 0,
            disk_batch: DISK_BATCH,
            unfinished: false,
            pushed: 0,
        };
        uring.watch_wake();
        Ok((uring, info))
    }

    /// Queues a multishot poll, which completes at each write to the wake-up eventfd. The eventfd is never read: every
    /// write is an event even so, and its 64-bit counter cannot overflow in practice.
    fn watch_wake(&mut self) {
        let poll = opcode::PollAdd::new(Fd(self.wake.fd()), libc::POLLIN as u32).multi(true);
        self.push_entry(&poll.build().user_data(WAKE_TOKEN));
    }

    pub(crate) fn register_file(&mut self, slot: u32, fd: RawFd) -> bool {
        slot < self.files && matches!(self.ring.submitter().register_files_update(slot, &[fd]), Ok(1))
    }

    /// # Safety
    /// As [`super::Driver::push`].
    #[inline]
    pub(crate) unsafe fn push(&mut self, token: u64, job: &Job) {
        let entry = entry_for(job, self.has_buffers).user_data(token);
        self.push_entry(&entry);
        self.disk_jobs += usize::from(is_of_disk(token));
        if matches!(job, Job::Read { .. } | Job::Write { .. }) {
            self.disk_queued += 1;
            if self.disk_queued >= self.disk_batch && self.disk_jobs < self.disk_queued + DISK_BUSY {
                (self.disk_queued, self.disk_batch) = (0, self.disk_batch * 2);
                let queued = self.ring.submission().len();
                // The call requests no completions, so the turn's `enter` misses none. Entries that the kernel does not
                // take stay queued until the end of the turn.
                // SAFETY: no argument is passed; the entries were checked when they were pushed.
                let _ = unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued as u32, 0, 0, None) };
            }
        }
    }

    #[inline]
    fn push_entry(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the memory of jobs stays valid by the contract of `push`; the poll of the eventfd has none.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                self.pushed += 1;
                return;
            }
            // Full: submit everything. The kernel consumes entries even if it cannot process them yet.
            if let Err(e) = self.enter(0, None)
                && e.raw_os_error() == Some(libc::EBUSY)
            {
                // The kernel takes no entries while it holds back completions for want of room in the completion queue.
                std::thread::yield_now();
            }
        }
    }

    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    pub(crate) fn begun(&mut self) -> u64 {
        self.pushed - self.ring.submission().len() as u64
    }

    fn enter(&mut self, want: u32, timeout: Option<&Timespec>) -> io::Result<usize> {
        let queued = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        match timeout {
            None => {
                // SAFETY: no argument is passed; the entries were checked when they were pushed.
                unsafe { submitter.enter::<libc::sigset_t>(queued, want, ENTER_GETEVENTS, None) }
            }
            Some(timeout) => {
                let args = SubmitArgs::new().timespec(timeout);
                // SAFETY: EXT_ARG announces a `io_uring_getevents_arg`, which `SubmitArgs` is.
                unsafe { submitter.enter(queued, want, ENTER_GETEVENTS | ENTER_EXT_ARG, Some(&args)) }
            }
        }
    }

    pub(crate) fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) {
        (self.disk_queued, self.disk_batch) = (0, DISK_BATCH);
        let submission = self.ring.submission();
        let due = !submission.is_empty() || submission.taskrun() || submission.cq_overflow() || self.unfinished;
        drop(submission);
        let result = match wait {
            Wait::No if !due => Ok(0),
            Wait::No => self.enter(0, None),
            Wait::Forever => self.enter(1, None),
            Wait::For(ns) => {
                let timeout = Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32);
                self.enter(1, Some(&timeout))
            }
        };
        // EINTR, ETIME, EBUSY, EAGAIN: entries that were not taken stay queued, and the next turn retries.
        self.unfinished = result.is_err();
        self.reap(events);
    }

    fn reap(&mut self, events: &mut Vec<Event>) {
        let mut watching = true;
        for completion in self.ring.completion() {
            if completion.user_data() == WAKE_TOKEN {
                watching &= cqueue::more(completion.flags());
            } else {
                self.disk_jobs -= usize::from(is_of_disk(completion.user_data()));
                events.push(Event { token: completion.user_data(), result: completion.result() });
            }
        }
        if !watching {
            self.watch_wake();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel dismantles a closed ring asynchronously, and would keep the disks open and locked until then. Both
        // calls fail harmlessly if nothing was registered.
        let _ = self.ring.submitter().unregister_files();
        let _ = self.ring.submitter().unregister_buffers();
    }
}

/// Creates the largest ring with the best features that this kernel permits.
fn build() -> io::Result<(IoUring, Vec<&'static str>)> {
    let mut refused = None;
    for (submissions, completions) in SIZES {
        match build_sized(submissions, completions) {
            // The rings count as locked memory, which may be tightly limited.
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => refused = Some(e),
            other => return other,
        }
    }
    Err(refused.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM)))
}

fn build_sized(submissions: u32, completions: u32) -> io::Result<(IoUring, Vec<&'static str>)> {
    let best = IoUring::builder()
        .setup_cqsize(completions)
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(submissions);
    match best {
        Ok(ring) => return Ok((ring, vec!["single_issuer", "defer_taskrun"])),
        Err(e) if e.raw_os_error() != Some(libc::EINVAL) => return Err(e),
        Err(_) => {}
    }
    let middle = IoUring::builder()
        .setup_cqsize(completions)
        .setup_submit_all()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(submissions);
    match middle {
        Ok(ring) => return Ok((ring, vec!["coop_taskrun"])),
        Err(e) if e.raw_os_error() != Some(libc::EINVAL) => return Err(e),
        Err(_) => {}
    }
    Ok((IoUring::builder().setup_cqsize(completions).build(submissions)?, Vec::new()))
}

/// Submits one no-operation: a filter may permit creating a ring but not using it.
fn prove(ring: &mut IoUring) -> io::Result<()> {
    let nop = opcode::Nop::new().build();
    // SAFETY: a no-operation uses no memory; a new queue has room.
    let _ = unsafe { ring.submission().push(&nop) };
    ring.submit_and_wait(1)?;
    if ring.completion().count() == 1 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
}

/// Creates a table of registered files, all empty, as large as the limit of open files permits.
fn register_files(ring: &IoUring, wanted: u32) -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = wanted.min(u32::try_from(limit).unwrap_or(u32::MAX));
    if ring.submitter().register_files_sparse(files).is_ok() { files } else { 0 }
}

/// Registers as much of the memory as may be locked: all of it, or a power of two from its start.
fn register_buffers(ring: &IoUring, (addr, len): (u64, usize)) -> (usize, Option<String>) {
    let mut bytes = len;
    let mut why = None;
    while bytes >= 1 << 20 {
        let iov = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: bytes };
        // SAFETY: the arena's mapping outlives the ring: the port drops the driver first, or leaks the arena.
        match unsafe { ring.submitter().register_buffers(&[iov]) } {
            Ok(()) => return (bytes, why),
            Err(e) => {
                why.get_or_insert_with(|| match e.raw_os_error() {
                    Some(libc::ENOMEM) => {
                        format!("memory that may be locked is limited (ulimit -l; needed {} KiB)", len >> 10)
                    }
                    _ => format!("the kernel refused: {e}"),
                });
                bytes = if bytes.is_power_of_two() { bytes / 2 } else { bytes.next_power_of_two() / 2 };
            }
        }
    }
    (0, why)
}

/// Returns whether a token belongs to a disk job.
#[inline]
fn is_of_disk(token: u64) -> bool {
    token >> 56 == LEAF_TOKEN >> 56
}

/// Builds an entry for a registered or unregistered file.
macro_rules! on_file {
    ($file:expr, |$fd:ident| $build:expr) => {
        if $file.slot == FileRef::UNREGISTERED {
            let $fd = Fd($file.fd);
            $build
        } else {
            let $fd = Fixed($file.slot);
            $build
        }
    };
}

#[inline]
fn entry_for(job: &Job, has_buffers: bool) -> squeue::Entry {
    match *job {
        Job::Read { file, offset, memory } => match memory {
            Memory::One { addr, len, region: 0 } if has_buffers => {
                on_file!(file, |fd| opcode::ReadFixed::new(fd, addr as *mut u8, len, 0).offset(offset).build())
            }
            Memory::One { addr, len, .. } => {
                on_file!(file, |fd| opcode::Read::new(fd, addr as *mut u8, len).offset(offset).build())
            }
            Memory::Many { iov, count } => {
                on_file!(file, |fd| opcode::Readv::new(fd, iov, count).offset(offset).build())
            }
        },
        Job::Write { file, offset, memory, dsync } => {
            let flags = if dsync { libc::RWF_DSYNC } else { 0 };
            match memory {
                Memory::One { addr, len, region: 0 } if has_buffers => {
                    on_file!(file, |fd| opcode::WriteFixed::new(fd, addr as *const u8, len, 0)
                        .offset(offset)
                        .rw_flags(flags)
                        .build())
                }
                Memory::One { addr, len, .. } => {
                    on_file!(file, |fd| opcode::Write::new(fd, addr as *const u8, len)
                        .offset(offset)
                        .rw_flags(flags)
                        .build())
                }
                Memory::Many { iov, count } => {
                    on_file!(file, |fd| opcode::Writev::new(fd, iov, count).offset(offset).rw_flags(flags).build())
                }
            }
        }
        Job::Sync { file } => on_file!(file, |fd| opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build()),
        Job::Allocate { file, mode, offset, len } => {
            on_file!(file, |fd| opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build())
        }
        Job::Recv { file, addr, len, whole } => {
            let flags = if whole { libc::MSG_WAITALL } else { 0 };
            on_file!(file, |fd| opcode::Recv::new(fd, addr as *mut u8, len).flags(flags).build())
        }
        Job::Send { file, message } => {
            let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
            on_file!(file, |fd| opcode::SendMsg::new(fd, message).flags(flags).build())
        }
        Job::AwaitMessage { file } => {
            // Without EPOLLEXCLUSIVE each message would wake every shard, and all but one for nothing.
            let events = (libc::POLLIN as u32) | libc::EPOLLEXCLUSIVE as u32;
            on_file!(file, |fd| opcode::PollAdd::new(fd, events).build())
        }
        Job::EndWait { token } => opcode::AsyncCancel::new(token).build(),
        Job::WriteMessage { file, iov, count } => on_file!(file, |fd| opcode::Writev::new(fd, iov, count).build()),
        Job::Command { fd, code, bytes } => opcode::UringCmd16::new(Fd(fd), code).cmd(bytes).build(),
    }
}
