//! The threads of one shard that make blocking system calls.
//!
//! Each file has its own queue of jobs. A queue may use one more thread only while more threads are idle than it
//! already uses. So a single file uses at most half of the threads, also if it hangs, and `n` busy files settle at
//! about `1/(n+1)` of the threads each. The threads serve the queues in turn.
//!
//! All memory is allocated at start: the jobs are in a slab, and the queues are links through it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::{Event, FileRef, Job, Memory};
use crate::wake::Wake;

/// Threads of a shard. A single file uses half of them.
pub(super) const THREADS: usize = 16;
/// Stack of each thread in bytes. Small, because the threads do little besides system calls.
const STACK_BYTES: usize = 256 << 10;
const NONE: u32 = u32::MAX;

/// A job in the slab.
#[derive(Clone, Copy)]
struct QueuedJob {
    token: u64,
    job: Job,
    /// Next in its file's queue, or in the free list.
    next: u32,
}

// SAFETY: the addresses in a job are those of memory that the caller of `push` keeps valid and does not access until
// the event, whichever thread makes the system call.
unsafe impl Send for QueuedJob {}

/// The queue of one file.
#[derive(Clone, Copy)]
struct FileQueue {
    head: u32,
    tail: u32,
    /// Threads that execute its jobs.
    running: u32,
}

/// A job that a thread has taken.
struct Taken {
    token: u64,
    job: Job,
    queue: u32,
}

struct State {
    jobs: Vec<QueuedJob>,
    free: u32,
    /// One for each registered file. The last is for all unregistered files.
    queues: Box<[FileQueue]>,
    /// Queues with jobs, in the order in which they are served next.
    active: VecDeque<u32>,
    /// Events of ended jobs, until the next exchange.
    ended: Vec<Event>,
    /// Which threads are inside a system call.
    busy: [bool; THREADS],
    /// Number of threads that execute no job.
    idle: u32,
    /// Number of idle threads that wait on the condition variable.
    sleeping: u32,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Whether there are events to fetch.
    has_ended: AtomicBool,
    wake: Wake,
}

pub(super) struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Jobs for the next exchange, so that a batch takes the lock only once.
    staged: Vec<QueuedJob>,
}

/// Makes the system call of a job. Its memory must be valid and its file open.
type Call = unsafe fn(&Job) -> i32;

impl ThreadPool {
    /// Starts a pool with room for `depth` jobs and queues for `files` registered files.
    pub(super) fn start(depth: u32, files: u32) -> io::Result<ThreadPool> {
        ThreadPool::start_with(depth, files, carry_out)
    }

    /// Like [`ThreadPool::start`], with another function to execute jobs.
    pub(super) fn start_with(depth: u32, files: u32, call: Call) -> io::Result<ThreadPool> {
        let state = State {
            jobs: Vec::with_capacity(depth as usize),
            free: NONE,
            queues: vec![FileQueue { head: NONE, tail: NONE, running: 0 }; files as usize + 1].into(),
            active: VecDeque::with_capacity(files as usize + 1),
            ended: Vec::with_capacity(depth as usize),
            busy: [false; THREADS],
            idle: THREADS as u32,
            sleeping: 0,
            stop: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            has_ended: AtomicBool::new(false),
            wake: Wake::new()?,
        });
        let staged = Vec::with_capacity(depth as usize);
        let mut pool = ThreadPool { shared, threads: Vec::with_capacity(THREADS), staged };
        for index in 0..THREADS {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("disk-io-{index}")).stack_size(STACK_BYTES);
            // If this fails, dropping the pool ends the threads that did start.
            pool.threads.push(builder.spawn(move || work(&shared, index, call))?);
        }
        Ok(pool)
    }

    /// The eventfd that is written when a job ends while [`ThreadPool::fall_asleep`] is in force.
    pub(super) fn fd(&self) -> RawFd {
        self.shared.wake.fd()
    }

    pub(super) fn fall_asleep(&self) {
        self.shared.wake.fall_asleep();
    }

    pub(super) fn awake(&self) {
        self.shared.wake.awake();
    }

    /// Queues a job. It starts at the next exchange.
    ///
    /// # Safety
    /// As [`super::Driver::push`].
    #[inline]
    pub(super) unsafe fn push(&mut self, token: u64, job: &Job) {
        self.staged.push(QueuedJob { token, job: *job, next: NONE });
    }

    /// Hands over the queued jobs, and fetches events.
    pub(super) fn exchange(&mut self, events: &mut Vec<Event>) {
        if self.staged.is_empty() && !self.shared.has_ended.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.shared.lock();
        self.shared.has_ended.store(false, Ordering::Relaxed);
        events.append(&mut state.ended);
        let new = self.staged.len().min(state.sleeping as usize);
        self.staged.drain(..).for_each(|queued| state.put(queued));
        drop(state);
        (0..new).for_each(|_| self.shared.work.notify_one());
    }
}

impl Drop for ThreadPool {
    /// Ends the threads. A thread in a system call ends when that returns; waiting for it could take forever. Jobs that
    /// have not started never do.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stop = true;
        let busy = state.busy;
        drop(state);
        self.shared.work.notify_all();
        for (index, thread) in self.threads.drain(..).enumerate() {
            if !busy[index] {
                // A panic of the thread was reported when it happened.
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, queued: QueuedJob) {
        let queue_index = match file_of(&queued.job).slot {
            FileRef::UNREGISTERED => self.queues.len() as u32 - 1,
            slot => slot,
        };
        let index = if self.free == NONE {
            self.jobs.push(queued);
            self.jobs.len() as u32 - 1
        } else {
            let index = self.free;
            self.free = self.jobs[index as usize].next;
            self.jobs[index as usize] = queued;
            index
        };
        let queue = &mut self.queues[queue_index as usize];
        let before = std::mem::replace(&mut queue.tail, index);
        if queue.head == NONE {
            queue.head = index;
            self.active.push_back(queue_index);
        } else {
            self.jobs[before as usize].next = index;
        }
    }

    /// Returns whether a queue may use one more thread.
    fn may_run(&self, queue: u32) -> bool {
        self.queues[queue as usize].running < self.idle
    }

    /// Takes the next job that may run, for an idle thread.
    fn take(&mut self, thread: usize) -> Option<Taken> {
        for _ in 0..self.active.len() {
            let queue_index = self.active.pop_front()?;
            if !self.may_run(queue_index) {
                self.active.push_back(queue_index);
                continue;
            }
            let queue = &mut self.queues[queue_index as usize];
            let index = queue.head;
            let QueuedJob { token, job, next } = self.jobs[index as usize];
            queue.head = next;
            queue.running += 1;
            if next != NONE {
                self.active.push_back(queue_index);
            }
            self.jobs[index as usize].next = self.free;
            self.free = index;
            self.idle -= 1;
            self.busy[thread] = true;
            return Some(Taken { token, job, queue: queue_index });
        }
        None
    }

    fn finish(&mut self, thread: usize, taken: &Taken, result: i32) {
        self.ended.push(Event { token: taken.token, result });
        self.queues[taken.queue as usize].running -= 1;
        self.idle += 1;
        self.busy[thread] = false;
    }
}

/// The loop of each thread.
fn work(shared: &Shared, thread: usize, call: Call) {
    let mut done: Option<(Taken, i32)> = None;
    loop {
        let mut notify = false;
        let mut state = shared.lock();
        if let Some((taken, result)) = done.take() {
            state.finish(thread, &taken, result);
            shared.has_ended.store(true, Ordering::Release);
            notify = true;
        }
        let taken = loop {
            if state.stop {
                return;
            }
            if let Some(taken) = state.take(thread) {
                break taken;
            }
            if std::mem::take(&mut notify) {
                drop(state);
                shared.wake.wake();
                state = shared.lock();
                continue;
            }
            state.sleeping += 1;
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        };
        // The end of a job may let several queues use one more thread, and this thread has taken a job of only one of
        // them: wake another thread.
        let more = state.sleeping > 0 && state.active.iter().any(|queue| state.may_run(*queue));
        drop(state);
        if more {
            shared.work.notify_one();
        }
        if notify {
            shared.wake.wake();
        }
        // SAFETY: the caller of `push` keeps the memory valid until the job's event, which comes only after this.
        let result = unsafe { call(&taken.job) };
        done = Some((taken, result));
    }
}

fn file_of(job: &Job) -> FileRef {
    match *job {
        Job::Read { file, .. }
        | Job::Write { file, .. }
        | Job::Sync { file }
        | Job::Allocate { file, .. }
        | Job::Recv { file, .. }
        | Job::Send { file, .. }
        | Job::AwaitMessage { file }
        | Job::WriteMessage { file, .. } => file,
        Job::EndWait { .. } | Job::Command { .. } => FileRef::NONE,
    }
}

/// Makes the system call of a job. Returns its result, or the negated error number.
///
/// # Safety
/// The job's memory is valid and its file open.
unsafe fn carry_out(job: &Job) -> i32 {
    let returned = match *job {
        Job::Read { file, offset, memory } => with_iovecs(memory, |iov, count| {
            // SAFETY: guaranteed by the caller.
            unsafe { libc::preadv(file.fd, iov, count, offset as libc::off_t) }
        }),
        Job::Write { file, offset, memory, dsync } => with_iovecs(memory, |iov, count| {
            let flags = if dsync { libc::RWF_DSYNC } else { 0 };
            // SAFETY: guaranteed by the caller.
            unsafe { libc::pwritev2(file.fd, iov, count, offset as libc::off_t, flags) }
        }),
        // SAFETY: takes no memory.
        Job::Sync { file } => unsafe { libc::fdatasync(file.fd) as isize },
        Job::Allocate { file, mode, offset, len } => {
            // SAFETY: takes no memory.
            unsafe { libc::fallocate(file.fd, mode, offset as libc::off_t, len as libc::off_t) as isize }
        }
        Job::Recv { .. } | Job::Send { .. } => unreachable!("sockets never come to the pool"),
        Job::AwaitMessage { .. } | Job::EndWait { .. } | Job::WriteMessage { .. } => {
            unreachable!("only io_uring has channels")
        }
        Job::Command { .. } => unreachable!("only io_uring has commands of files"),
    };
    if returned < 0 { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { returned as i32 }
}

fn with_iovecs(memory: Memory, call: impl FnOnce(*const libc::iovec, libc::c_int) -> isize) -> isize {
    match memory {
        Memory::One { addr, len, .. } => {
            let one = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len as usize };
            call(&raw const one, 1)
        }
        Memory::Many { iov, count } => call(iov, count as libc::c_int),
    }
}
