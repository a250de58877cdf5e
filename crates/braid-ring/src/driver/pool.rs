//! A few threads of one shard that make system calls which block.
//!
//! Jobs wait in a line of their own for each file. A file may use one more thread only while it leaves more
//! idle than it uses: alone it has half of them, `n` busy files settle at about `1/(n+1)` each, and one that hangs can
//! never take them all. The threads choose among the lines in turn.
//!
//! All memory is taken at start: the jobs are a slab, the lines are links through it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::{Event, FileRef, Job, Memory};
use crate::wake::Wake;

/// Threads of a shard. A file by itself gets half of them.
pub(super) const THREADS: usize = 16;
/// These make system calls and little else.
const STACK_BYTES: usize = 256 << 10;
const NONE: u32 = u32::MAX;

/// A job in the slab.
#[derive(Clone, Copy)]
struct Place {
    token: u64,
    job: Job,
    /// Next in its file's line, or in the free list.
    next: u32,
}

// SAFETY: a job's addresses stand for memory that whoever pushed it keeps valid, and leaves alone, until the event,
// on whatever thread the system call is made.
unsafe impl Send for Place {}

/// The line of one file.
#[derive(Clone, Copy)]
struct Line {
    head: u32,
    tail: u32,
    /// Threads that work for it.
    running: u32,
}

/// A job that a thread has taken.
struct Taken {
    token: u64,
    job: Job,
    line: u32,
}

struct State {
    places: Vec<Place>,
    free: u32,
    /// One for each registered file; the last for all that are not.
    lines: Box<[Line]>,
    /// Lines with jobs, the next to be looked at first.
    active: VecDeque<u32>,
    ended: Vec<Event>,
    /// Which threads are inside a system call.
    busy: [bool; THREADS],
    idle: u32,
    /// Threads that wait for work.
    sleeping: u32,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// There are events to be fetched.
    has_ended: AtomicBool,
    wake: Wake,
}

pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Jobs for the next exchange, so that a batch takes the lock once.
    staged: Vec<Place>,
}

/// Makes the system call of a job, whose memory is valid and whose file is open.
type Call = unsafe fn(&Job) -> i32;

impl Pool {
    /// Room for `depth` jobs, and lines for `files` registered files.
    pub(super) fn start(depth: u32, files: u32) -> io::Result<Pool> {
        Pool::start_with(depth, files, carry_out)
    }

    /// As [`Pool::start`], with another way to carry jobs out.
    pub(super) fn start_with(depth: u32, files: u32, call: Call) -> io::Result<Pool> {
        let state = State {
            places: Vec::with_capacity(depth as usize),
            free: NONE,
            lines: vec![Line { head: NONE, tail: NONE, running: 0 }; files as usize + 1].into(),
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
        let mut pool = Pool { shared, threads: Vec::with_capacity(THREADS), staged };
        for index in 0..THREADS {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("disk-io-{index}")).stack_size(STACK_BYTES);
            // If this fails, dropping the pool ends those that did start.
            pool.threads.push(builder.spawn(move || work(&shared, index, call))?);
        }
        Ok(pool)
    }

    /// Written when something ends while [`Pool::fall_asleep`] is in force.
    pub(super) fn fd(&self) -> RawFd {
        self.shared.wake.fd()
    }

    pub(super) fn fall_asleep(&self) {
        self.shared.wake.fall_asleep();
    }

    pub(super) fn awake(&self) {
        self.shared.wake.awake();
    }

    /// Takes a job in; it begins at the next exchange.
    ///
    /// # Safety
    /// As [`super::Driver::push`].
    #[inline]
    pub(super) unsafe fn push(&mut self, token: u64, job: &Job) {
        self.staged.push(Place { token, job: *job, next: NONE });
    }

    /// Hands over what was pushed, and fetches what has ended.
    pub(super) fn exchange(&mut self, events: &mut Vec<Event>) {
        if self.staged.is_empty() && !self.shared.has_ended.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.shared.lock();
        self.shared.has_ended.store(false, Ordering::Relaxed);
        events.append(&mut state.ended);
        let new = self.staged.len().min(state.sleeping as usize);
        self.staged.drain(..).for_each(|place| state.put(place));
        drop(state);
        (0..new).for_each(|_| self.shared.work.notify_one());
    }
}

impl Drop for Pool {
    /// Ends the threads. One that the kernel still holds in a system call is left to end when that returns: waiting
    /// for it could last for ever. Jobs that have not begun never begin.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stop = true;
        let busy = state.busy;
        drop(state);
        self.shared.work.notify_all();
        for (index, thread) in self.threads.drain(..).enumerate() {
            if !busy[index] {
                // A panic there has been reported when it happened.
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
    fn put(&mut self, place: Place) {
        let line_index = match file_of(&place.job).slot {
            FileRef::UNREGISTERED => self.lines.len() as u32 - 1,
            slot => slot,
        };
        let index = if self.free == NONE {
            self.places.push(place);
            self.places.len() as u32 - 1
        } else {
            let index = self.free;
            self.free = self.places[index as usize].next;
            self.places[index as usize] = place;
            index
        };
        let line = &mut self.lines[line_index as usize];
        let before = std::mem::replace(&mut line.tail, index);
        if line.head == NONE {
            line.head = index;
            self.active.push_back(line_index);
        } else {
            self.places[before as usize].next = index;
        }
    }

    /// Whether a line may use one more thread.
    fn may_run(&self, line: u32) -> bool {
        self.lines[line as usize].running < self.idle
    }

    /// The next job for a thread, which is idle, if there is one that may run.
    fn take(&mut self, thread: usize) -> Option<Taken> {
        for _ in 0..self.active.len() {
            let line_index = self.active.pop_front()?;
            if !self.may_run(line_index) {
                self.active.push_back(line_index);
                continue;
            }
            let line = &mut self.lines[line_index as usize];
            let index = line.head;
            let Place { token, job, next } = self.places[index as usize];
            line.head = next;
            line.running += 1;
            if next != NONE {
                self.active.push_back(line_index);
            }
            self.places[index as usize].next = self.free;
            self.free = index;
            self.idle -= 1;
            self.busy[thread] = true;
            return Some(Taken { token, job, line: line_index });
        }
        None
    }

    fn finish(&mut self, thread: usize, taken: &Taken, result: i32) {
        self.ended.push(Event { token: taken.token, result });
        self.lines[taken.line as usize].running -= 1;
        self.idle += 1;
        self.busy[thread] = false;
    }
}

/// What each thread does.
fn work(shared: &Shared, thread: usize, call: Call) {
    let mut done: Option<(Taken, i32)> = None;
    loop {
        let mut tell = false;
        let mut state = shared.lock();
        if let Some((taken, result)) = done.take() {
            state.finish(thread, &taken, result);
            shared.has_ended.store(true, Ordering::Release);
            tell = true;
        }
        let taken = loop {
            if state.stop {
                return;
            }
            if let Some(taken) = state.take(thread) {
                break taken;
            }
            if std::mem::take(&mut tell) {
                drop(state);
                shared.wake.wake();
                state = shared.lock();
                continue;
            }
            state.sleeping += 1;
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        };
        // What has just ended may let more than one line go on.
        let more = state.sleeping > 0 && state.active.iter().any(|line| state.may_run(*line));
        drop(state);
        if more {
            shared.work.notify_one();
        }
        if tell {
            shared.wake.wake();
        }
        // SAFETY: whoever pushed the job keeps its memory valid until its event, which comes only after this.
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

/// Makes the one system call of a job; what it returned, or minus the error number.
///
/// # Safety
/// The job's memory is valid and its file open.
unsafe fn carry_out(job: &Job) -> i32 {
    let returned = match *job {
        Job::Read { file, offset, memory } => with_iovecs(memory, |iov, count| {
            // SAFETY: the caller's promise.
            unsafe { libc::preadv(file.fd, iov, count, offset as libc::off_t) }
        }),
        Job::Write { file, offset, memory, dsync } => with_iovecs(memory, |iov, count| {
            let flags = if dsync { libc::RWF_DSYNC } else { 0 };
            // SAFETY: the caller's promise.
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
