//! The driver for Linux native asynchronous I/O (io_submit and related calls), without libaio itself.
//!
//! Native AIO is asynchronous only for files opened with O_DIRECT, and even there a call may block: for a block
//! allocation, a lock, or room in the device's queue. So reads and writes carry RWF_NOWAIT, and I/O that the kernel
//! cannot do without blocking goes to the threads of [`super::threads`]. So do files in the page cache, `fallocate`,
//! and everything that io_submit refuses. A hung disk therefore never blocks the shard itself.
//!
//! The kernel maps its completion ring into user space, so checking for completions takes no system call.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::threads::Threads;
use super::{DriverConfig, DriverInfo, DriverKind, Event, FileRef, Job, Memory, Wait};
use crate::error::RingError;

/// Maximum number of I/Os of one shard in the kernel; further ones wait. The limit for all processes of a machine,
/// fs.aio-max-nr, is 65,536 by default.
const IN_KERNEL_MAX: u32 = 1024;
/// If the kernel does not permit as many, this driver does not start.
const IN_KERNEL_MIN: u32 = 64;
/// Completions fetched by one call.
const FETCH_MAX: usize = 256;

// From the kernel's include/uapi/linux/aio_abi.h.
const IOCB_CMD_FDSYNC: u16 = 3;
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;
const IOCB_CMD_PREADV: u16 = 7;
const IOCB_CMD_PWRITEV: u16 = 8;
const IOCB_FLAG_RESFD: u32 = 1;
/// First words of the completion ring, from the kernel's fs/aio.c: id, number of entries, head, tail, magic.
const RING_HEAD: usize = 2;
const RING_TAIL: usize = 3;
const RING_MAGIC_AT: usize = 4;
const RING_MAGIC: u32 = 0xa10a_10a1;

/// A completion (struct io_event of the kernel's interface).
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

/// A request (struct iocb of the kernel's interface, which C libraries other than glibc leave out).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Iocb {
    aio_data: u64,
    #[cfg(target_endian = "little")]
    aio_key: u32,
    aio_rw_flags: i32,
    #[cfg(target_endian = "big")]
    aio_key: u32,
    aio_lio_opcode: u16,
    aio_reqprio: i16,
    aio_fildes: u32,
    aio_buf: u64,
    aio_nbytes: u64,
    aio_offset: i64,
    aio_reserved2: u64,
    aio_flags: u32,
    aio_resfd: u32,
}

const _: () = assert!(size_of::<Completion>() == 32 && size_of::<Iocb>() == 64);

pub(crate) struct Libaio {
    threads: Threads,
    context: Context,
    /// Written by the kernel at each completion. It ends sleeps and is never read.
    completed: OwnedFd,
    /// By index of the registered file: whether the file was found not to support RWF_NOWAIT. Its reads and writes then
    /// go to the threads.
    must_block: Box<[bool]>,
    /// False once a file system has refused an asynchronous fdatasync. All syncs then go to the threads.
    can_sync: bool,
    /// Jobs for native AIO that have no iocb yet, in order.
    waiting: VecDeque<(u64, Job)>,
    iocbs: Box<[Iocb]>,
    /// The job of each iocb.
    jobs: Box<[(u64, Job)]>,
    free: Vec<u32>,
    /// Filled iocbs that io_submit has not taken yet.
    batch: Vec<*mut Iocb>,
    in_kernel: u32,
    fetched: Box<[Completion; FETCH_MAX]>,
    /// Jobs that the kernel completed, and jobs that went to the threads instead.
    #[cfg(test)]
    pub(super) counts: (u64, u64),
}

impl Libaio {
    pub(crate) fn start(config: &DriverConfig) -> Result<(Libaio, DriverInfo), RingError> {
        let (context, capacity) = Context::new().map_err(|e| RingError::os(e, "setting up Linux' asynchronous I/O"))?;
        let (mut threads, mut info) = Threads::start(config)?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let completed =
            rustix::event::eventfd(0, flags).map_err(|e| RingError::os(e.into(), "making an eventfd".to_string()))?;
        threads.watch_eventfd(completed.as_raw_fd())?;
        info.kind = DriverKind::Libaio;
        if context.lends_ring {
            info.features.push("completion_ring");
        }
        let libaio = Libaio {
            threads,
            context,
            completed,
            must_block: vec![false; config.files as usize].into(),
            can_sync: true,
            waiting: VecDeque::with_capacity(config.depth as usize),
            iocbs: vec![Iocb::default(); capacity as usize].into(),
            jobs: vec![(0, Job::Sync { file: FileRef::NONE }); capacity as usize].into(),
            free: (0..capacity).rev().collect(),
            batch: Vec::with_capacity(capacity as usize),
            in_kernel: 0,
            fetched: Box::new([Completion { data: 0, iocb: 0, result: 0, result2: 0 }; FETCH_MAX]),
            #[cfg(test)]
            counts: (0, 0),
        };
        Ok((libaio, info))
    }

    /// # Safety
    /// As [`super::Driver::push`].
    #[inline]
    pub(crate) unsafe fn push(&mut self, token: u64, job: &Job) {
        if self.is_for_kernel(job) {
            self.waiting.push_back((token, *job));
        } else {
            // SAFETY: guaranteed by the caller.
            unsafe { self.threads.push(token, job) };
        }
    }

    fn is_for_kernel(&self, job: &Job) -> bool {
        match *job {
            Job::Read { file, .. } | Job::Write { file, .. } => {
                file.direct && self.must_block.get(file.slot as usize) == Some(&false)
            }
            Job::Sync { file } => file.direct && self.can_sync,
            _ => false,
        }
    }

    pub(crate) fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) {
        let before = events.len();
        self.submit();
        self.threads.work(events);
        self.fetch(events);
        if wait == Wait::No || events.len() > before {
            self.threads.look(events);
        } else {
            // A completion from here on is an edge of the eventfd, which ends the sleep at once.
            self.threads.sleep(wait, events);
            self.fetch(events);
        }
    }

    /// Submits as many jobs as the kernel has room for.
    fn submit(&mut self) {
        while !self.waiting.is_empty() && !self.free.is_empty() {
            let (Some((token, job)), Some(index)) = (self.waiting.pop_front(), self.free.pop()) else { break };
            let iocb = &mut self.iocbs[index as usize];
            fill(iocb, u64::from(index), &job, self.completed.as_raw_fd());
            self.jobs[index as usize] = (token, job);
            self.batch.push(iocb);
        }
        while !self.batch.is_empty() {
            // SAFETY: the batch points to iocbs of `self`, filled from jobs whose memory is valid until their events.
            match unsafe { self.context.submit(&self.batch) } {
                Ok(0) => break,
                Ok(taken) => {
                    self.in_kernel += taken as u32;
                    self.batch.drain(..taken);
                }
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                // No room until the next completion.
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) && self.in_kernel > 0 => break,
                Err(e) => self.refused(e.raw_os_error().unwrap_or(libc::EIO)),
            }
        }
    }

    /// Passes the first job of a refused batch to the threads. If the job is invalid, they will get the same error.
    #[cold]
    fn refused(&mut self, errno: i32) {
        let iocb = self.batch.remove(0);
        // SAFETY: the batch points to iocbs of `self`.
        let index = unsafe { (*iocb).aio_data } as u32;
        self.pass_on(index, errno);
    }

    /// Passes a job to the threads, and records what native AIO cannot do.
    #[cold]
    fn pass_on(&mut self, index: u32, errno: i32) {
        let (token, job) = self.jobs[index as usize];
        self.free.push(index);
        match job {
            Job::Sync { .. } if errno == libc::EINVAL => self.can_sync = false,
            Job::Read { file, .. } | Job::Write { file, .. } if errno == libc::EOPNOTSUPP => {
                self.must_block[file.slot as usize] = true;
            }
            _ => {}
        }
        #[cfg(test)]
        {
            self.counts.1 += 1;
        }
        // SAFETY: the job's event has not been delivered, so the guarantees of the caller of `push` still hold.
        unsafe { self.threads.push(token, &job) };
    }

    /// Fetches completions from the kernel.
    fn fetch(&mut self, events: &mut Vec<Event>) {
        while self.in_kernel > 0 && self.context.may_have_completions() {
            let count = self.context.fetch(&mut self.fetched);
            self.in_kernel -= count as u32;
            for at in 0..count {
                let Completion { data, result, .. } = self.fetched[at];
                self.completed(data as u32, result as i32, events);
            }
            if count < FETCH_MAX {
                break;
            }
        }
    }

    #[inline]
    fn completed(&mut self, index: u32, result: i32, events: &mut Vec<Event>) {
        let (token, job) = self.jobs[index as usize];
        let retry = match -result {
            // It would have blocked; or the device below the file system does not support RWF_NOWAIT.
            libc::EAGAIN | libc::EOPNOTSUPP => true,
            libc::EINVAL => matches!(job, Job::Sync { .. }),
            _ => false,
        };
        if retry {
            return self.pass_on(index, -result);
        }
        self.free.push(index);
        #[cfg(test)]
        {
            self.counts.0 += 1;
        }
        events.push(Event { token, result });
    }

    pub(crate) fn register_file(&mut self, slot: u32, fd: RawFd) -> bool {
        if let Some(must_block) = self.must_block.get_mut(slot as usize) {
            // A new file, of which nothing is known yet.
            *must_block = false;
        }
        self.threads.register_file(slot, fd)
    }

    pub(crate) fn watch_socket(&mut self, index: u32, fd: RawFd) -> bool {
        self.threads.watch_socket(index, fd)
    }

    pub(crate) fn unwatch_socket(&mut self, index: u32) {
        self.threads.unwatch_socket(index);
    }
}

impl Drop for Libaio {
    fn drop(&mut self) {
        if self.in_kernel > 0 {
            // Destroying the context would wait for the I/O in flight, perhaps forever. The kernel destroys it when the
            // process ends.
            self.context.id = 0;
        }
    }
}

fn fill(iocb: &mut Iocb, index: u64, job: &Job, resfd: RawFd) {
    let (opcode, file, offset, memory, flags) = match *job {
        Job::Read { file, offset, memory } => (IOCB_CMD_PREAD, file, offset, Some(memory), libc::RWF_NOWAIT),
        Job::Write { file, offset, memory, dsync } => {
            let dsync = if dsync { libc::RWF_DSYNC } else { 0 };
            (IOCB_CMD_PWRITE, file, offset, Some(memory), libc::RWF_NOWAIT | dsync)
        }
        Job::Sync { file } => (IOCB_CMD_FDSYNC, file, 0, None, 0),
        _ => unreachable!("`is_for_kernel` excludes these"),
    };
    iocb.aio_lio_opcode = opcode;
    (iocb.aio_buf, iocb.aio_nbytes) = match memory {
        None => (0, 0),
        Some(Memory::One { addr, len, .. }) => (addr, u64::from(len)),
        Some(Memory::Many { iov, count }) => {
            iocb.aio_lio_opcode = if opcode == IOCB_CMD_PREAD { IOCB_CMD_PREADV } else { IOCB_CMD_PWRITEV };
            (iov as u64, u64::from(count))
        }
    };
    iocb.aio_data = index;
    iocb.aio_fildes = file.fd as u32;
    iocb.aio_offset = offset as i64;
    iocb.aio_rw_flags = flags;
    iocb.aio_flags = IOCB_FLAG_RESFD;
    iocb.aio_resfd = resfd as u32;
}

/// A native AIO context of the kernel.
struct Context {
    /// The kernel's number of the context, which is also the address of the completion ring. 0: the drop of this value
    /// must not destroy the context.
    id: usize,
    /// Whether the completion ring has the expected layout, so that its head and tail can be read directly.
    lends_ring: bool,
}

impl Context {
    /// Creates a context with as many entries as the kernel permits, and returns its capacity.
    fn new() -> io::Result<(Context, u32)> {
        let mut capacity = IN_KERNEL_MAX;
        loop {
            let mut id = 0usize;
            // SAFETY: the kernel writes the number of the context to `id`.
            if unsafe { libc::syscall(libc::SYS_io_setup, capacity, &raw mut id) } == 0 {
                let mut context = Context { id, lends_ring: false };
                // SAFETY: a ring begins with at least eight such words, in a mapping that lives as long as the context.
                context.lends_ring = unsafe { context.word(RING_MAGIC_AT) } == RING_MAGIC;
                context.probe()?;
                return Ok((context, capacity));
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EAGAIN) || capacity <= IN_KERNEL_MIN {
                return Err(error);
            }
            capacity /= 2;
        }
    }

    /// Makes calls that do nothing, so that a system call filter that denies one is detected now.
    fn probe(&self) -> io::Result<()> {
        // SAFETY: no iocbs are passed.
        unsafe { self.submit(&[]) }?;
        self.get_events(&mut [])?;
        Ok(())
    }

    /// # Safety
    /// The context exists, and `id` is the address of its completion ring.
    unsafe fn word(&self, index: usize) -> u32 {
        let word = (self.id as *mut u32).wrapping_add(index);
        // SAFETY: inside the ring's first page as the caller guarantees; the kernel writes words of 32 bits.
        unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Acquire)
    }

    /// # Safety
    /// The pointers lead to iocbs whose memory is valid until they complete.
    unsafe fn submit(&self, batch: &[*mut Iocb]) -> io::Result<usize> {
        // SAFETY: guaranteed by the caller.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.id, batch.len(), batch.as_ptr()) };
        usize::try_from(taken).map_err(|_| io::Error::last_os_error())
    }

    #[inline]
    fn may_have_completions(&self) -> bool {
        // SAFETY: the context exists, and its ring has the expected layout.
        !self.lends_ring || unsafe { self.word(RING_HEAD) != self.word(RING_TAIL) }
    }

    fn fetch(&self, into: &mut [Completion; FETCH_MAX]) -> usize {
        // An error (a signal) leaves all completions in place.
        self.get_events(into).unwrap_or(0)
    }

    fn get_events(&self, into: &mut [Completion]) -> io::Result<usize> {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most as many completions as there is room for; the timeout lives until it returns.
        let count = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.id, 0usize, into.len(), into.as_mut_ptr(), &raw const now)
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.id != 0 {
            // SAFETY: takes no memory; no I/O is in flight, so the call does not wait.
            unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
        }
    }
}
