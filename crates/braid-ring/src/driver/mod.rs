//! How I/O reaches the kernel: three drivers with one face.
//!
//! A driver takes [`Job`]s with a token each, and gives each back exactly once as an [`Event`] with what
//! the system call would have returned. It knows nothing of disks, requests, retries or errors: those
//! are the port's ([`crate::port`]). The choice is an enum, made once at the start of the shard's thread, so
//! that a call is a predicted branch.

#![allow(unsafe_code)]

mod epoll;
mod libaio;
mod pool;
mod refusal;
mod sockets;
#[cfg(test)]
mod tests;
mod threads;
mod uring;

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::commands::SHORT_COMMAND_BYTES;
use crate::error::{RingError, RingErrorKind};
use crate::wake::Wake;

/// Which interface of the kernel a shard uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DriverKind {
    /// io_uring.
    Uring,
    /// Linux' older asynchronous I/O, with a few threads for what it cannot do.
    Libaio,
    /// Ordinary system calls on a few threads.
    Threads,
}

impl DriverKind {
    /// All of them, best first.
    pub const ALL: [DriverKind; 3] = [DriverKind::Uring, DriverKind::Libaio, DriverKind::Threads];

    /// As it is written in configuration and status.
    pub fn name(self) -> &'static str {
        match self {
            DriverKind::Uring => "io_uring",
            DriverKind::Libaio => "libaio",
            DriverKind::Threads => "threads",
        }
    }
}

impl std::fmt::Display for DriverKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DriverKind {
    type Err = String;
    fn from_str(text: &str) -> Result<DriverKind, String> {
        let found = DriverKind::ALL.into_iter().find(|k| k.name() == text);
        found.ok_or_else(|| format!("there is no driver `{text}`; those are io_uring, libaio and threads"))
    }
}

/// What a shard's driver turned out to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriverInfo {
    /// Which interface.
    pub kind: DriverKind,
    /// Why better ones were passed over; empty when none was.
    pub passed_over: Vec<(DriverKind, String)>,
    /// Which optional abilities are in use, such as `defer_taskrun`.
    pub features: Vec<&'static str>,
    /// Bytes of buffers that are registered with the kernel.
    pub registered_buffer_bytes: u64,
    /// Why not all buffers are.
    pub unregistered_because: Option<String>,
    /// Places for registered files; 0 when files are not registered.
    pub registered_files: u32,
}

/// An open file for a job: its number, and its place among the registered ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileRef {
    pub(crate) fd: RawFd,
    /// Index among the registered files, or [`FileRef::UNREGISTERED`].
    pub(crate) slot: u32,
    /// Open with `O_DIRECT`.
    pub(crate) direct: bool,
}

impl FileRef {
    pub(crate) const UNREGISTERED: u32 = u32::MAX;
    pub(crate) const NONE: FileRef = FileRef { fd: -1, slot: FileRef::UNREGISTERED, direct: false };
}

/// Memory of a read or write. It stays where it is until the job's event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    One { addr: u64, len: u32, region: u16 },
    Many { iov: *const libc::iovec, count: u32 },
}

/// One system call to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    Read {
        file: FileRef,
        offset: u64,
        memory: Memory,
    },
    Write {
        file: FileRef,
        offset: u64,
        memory: Memory,
        dsync: bool,
    },
    /// fdatasync.
    Sync {
        file: FileRef,
    },
    Allocate {
        file: FileRef,
        mode: i32,
        offset: u64,
        len: u64,
    },
    Recv {
        file: FileRef,
        addr: u64,
        len: u32,
        whole: bool,
    },
    /// All bytes of the message; the event comes when they are sent or an error ends it.
    Send {
        file: FileRef,
        message: *const libc::msghdr,
    },
    /// Ends when a channel has a message, or an error; of several that wait for one source, one is told.
    AwaitMessage {
        file: FileRef,
    },
    /// Ends the wait of this token, and the wait has its own event.
    EndWait {
        token: u64,
    },
    WriteMessage {
        file: FileRef,
        iov: *const libc::iovec,
        count: u32,
    },
    /// A command of the file's own. Only io_uring has them.
    Command {
        fd: RawFd,
        code: u32,
        bytes: [u8; SHORT_COMMAND_BYTES],
    },
}

/// A job that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) token: u64,
    /// What the system call returned, or minus the error number.
    pub(crate) result: i32,
}

/// Whether to sleep for an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    No,
    /// At most so many nanoseconds.
    For(u64),
    Forever,
}

/// What a driver needs to start.
pub(crate) struct DriverConfig {
    /// Jobs in the kernel at a time.
    pub(crate) depth: u32,
    pub(crate) files: u32,
    /// Memory to be registered: address and length.
    pub(crate) buffers: (u64, usize),
    pub(crate) wake: Arc<Wake>,
}

/// The driver of one shard.
pub(crate) enum Driver {
    Uring(Box<uring::Uring>),
    Libaio(Box<libaio::Libaio>),
    Threads(Box<threads::Threads>),
}

/// The same call to whichever driver it is.
macro_rules! each {
    ($self:expr, $d:ident => $call:expr) => {
        match $self {
            Driver::Uring($d) => $call,
            Driver::Libaio($d) => $call,
            Driver::Threads($d) => $call,
        }
    };
}

impl Driver {
    /// Starts the driver wanted, or the best that the kernel permits. Runs on the shard's own thread.
    pub(crate) fn start(wanted: Option<DriverKind>, config: &DriverConfig) -> Result<(Driver, DriverInfo), RingError> {
        if let Some(kind) = wanted {
            return Driver::start_one(kind, config).map_err(|error| RingError {
                context: format!("the driver {kind} does not work here: {}", refusal::reason(kind, &error)),
                remedy: "name another driver, or none, so that one that works is chosen".into(),
                ..error
            });
        }
        let mut passed_over = Vec::new();
        for kind in DriverKind::ALL {
            match Driver::start_one(kind, config) {
                Ok((driver, info)) => return Ok((driver, DriverInfo { passed_over, ..info })),
                Err(error) => passed_over.push((kind, refusal::reason(kind, &error))),
            }
        }
        let reasons: Vec<String> = passed_over.iter().map(|(kind, why)| format!("{kind}: {why}")).collect();
        Err(RingError::new(RingErrorKind::Os, format!("no driver works here ({})", reasons.join("; ")), ""))
    }

    fn start_one(kind: DriverKind, config: &DriverConfig) -> Result<(Driver, DriverInfo), RingError> {
        match kind {
            DriverKind::Uring => uring::Uring::start(config).map(|(d, i)| (Driver::Uring(Box::new(d)), i)),
            DriverKind::Libaio => libaio::Libaio::start(config).map(|(d, i)| (Driver::Libaio(Box::new(d)), i)),
            DriverKind::Threads => threads::Threads::start(config).map(|(d, i)| (Driver::Threads(Box::new(d)), i)),
        }
    }

    /// Takes a job in. It may begin now or at the next [`Driver::turn`]. The low half of the token of a receive or send is
    /// the socket's index, as in [`Driver::watch_socket`].
    ///
    /// # Safety
    /// The memory that the job names (data, iovecs, message) must stay valid until its event, and
    /// the files open.
    #[inline]
    pub(crate) unsafe fn push(&mut self, token: u64, job: &Job) {
        // SAFETY: the caller's promise, passed on.
        each!(self, d => unsafe { d.push(token, job) })
    }

    /// Lets the kernel work: starts what was pushed, appends what has ended to `events`, and, if asked to and
    /// nothing has ended, sleeps until something does, the shard is woken, or time is up.
    pub(crate) fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) {
        each!(self, d => d.turn(wait, events))
    }

    /// Puts a file into the table of registered files at `slot`, or takes it out (-1). False where it has no such place.
    pub(crate) fn register_file(&mut self, slot: u32, fd: RawFd) -> bool {
        each!(self, d => d.register_file(slot, fd))
    }

    /// Whether a receive or send on a socket that blocks waits by itself.
    pub(crate) fn waits_for_sockets(&self) -> bool {
        matches!(self, Driver::Uring(_))
    }

    /// Whether it carries the jobs of channels.
    pub(crate) fn has_channels(&self) -> bool {
        matches!(self, Driver::Uring(_))
    }

    /// Whether it carries commands of files.
    pub(crate) fn has_commands(&self) -> bool {
        matches!(self, Driver::Uring(_))
    }

    /// How many jobs the kernel has begun with, of all that were ever pushed: it is done with what it copies at their beginning.
    pub(crate) fn begun(&mut self) -> u64 {
        match self {
            Driver::Uring(d) => d.begun(),
            Driver::Libaio(_) | Driver::Threads(_) => 0,
        }
    }

    /// How many jobs were ever pushed.
    pub(crate) fn pushed(&self) -> u64 {
        match self {
            Driver::Uring(d) => d.pushed(),
            Driver::Libaio(_) | Driver::Threads(_) => 0,
        }
    }

    /// A socket's number and descriptor; false when it cannot be watched.
    pub(crate) fn watch_socket(&mut self, index: u32, fd: RawFd) -> bool {
        match self {
            Driver::Uring(_) => true,
            Driver::Libaio(d) => d.watch_socket(index, fd),
            Driver::Threads(d) => d.watch_socket(index, fd),
        }
    }

    /// A socket is about to be closed; nothing is in flight on it.
    pub(crate) fn unwatch_socket(&mut self, index: u32) {
        match self {
            Driver::Uring(_) => {}
            Driver::Libaio(d) => d.unwatch_socket(index),
            Driver::Threads(d) => d.unwatch_socket(index),
        }
    }

    /// Ends a driver although the kernel still has some of its jobs. What they use must never be given back.
    pub(crate) fn abandon(self) {
        match self {
            // Ending it would wait for them, or cancel them at a moment nobody is told of.
            Driver::Uring(d) => std::mem::forget(d),
            // These let go of all but the jobs themselves.
            Driver::Libaio(_) | Driver::Threads(_) => {}
        }
    }
}
