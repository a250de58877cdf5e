//! How I/O reaches the kernel: three drivers with one interface.
//!
//! A driver takes [`Job`]s, each with a token, and returns each exactly once as an [`Event`] with the result of the
//! system call. It knows nothing of disks, requests, retries or errors: these belong to the port ([`crate::port`]). The
//! driver is an enum, chosen once at the start of the shard's thread, so that a call is a predictable branch.

#![allow(unsafe_code)]

mod epoll;
mod libaio;
mod refusal;
mod sockets;
#[cfg(test)]
mod tests;
mod thread_pool;
mod threads;
mod uring;

use std::os::fd::RawFd;
use std::sync::Arc;

use crate::error::{RingError, RingErrorKind};
use crate::wake::Wake;

/// The kernel interface that a shard uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DriverKind {
    /// io_uring.
    Uring,
    /// Linux native AIO, with a few threads for what it cannot do.
    Libaio,
    /// Blocking system calls on a few threads.
    Threads,
}

impl DriverKind {
    /// All of them, best first.
    pub const ALL: [DriverKind; 3] = [DriverKind::Uring, DriverKind::Libaio, DriverKind::Threads];

    /// The name in configuration and status.
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

/// The driver of a shard, and what it uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriverInfo {
    /// The kernel interface.
    pub kind: DriverKind,
    /// Why better drivers were skipped. Empty if none was.
    pub skipped: Vec<(DriverKind, String)>,
    /// Optional features in use, such as `defer_taskrun`.
    pub features: Vec<&'static str>,
    /// Bytes of buffers that are registered with the kernel.
    pub registered_buffer_bytes: u64,
    /// Why not all buffers are registered.
    pub unregistered_reason: Option<String>,
    /// Size of the table of registered files. 0: files are not registered.
    pub registered_files: u32,
}

/// An open file for a job: its descriptor, and its index among the registered files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileRef {
    pub(crate) fd: RawFd,
    /// Index among the registered files, or [`FileRef::UNREGISTERED`].
    pub(crate) slot: u32,
    /// Opened with `O_DIRECT`.
    pub(crate) direct: bool,
}

impl FileRef {
    pub(crate) const UNREGISTERED: u32 = u32::MAX;
    pub(crate) const NONE: FileRef = FileRef { fd: -1, slot: FileRef::UNREGISTERED, direct: false };
}

/// Memory of a read or write. It must not move until the job's event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    One { addr: u64, len: u32, region: u16 },
    Many { iov: *const libc::iovec, count: u32 },
}

/// Length in bytes of the payload of a frontend's command ([`crate::Cx::command`]).
pub const SHORT_COMMAND_BYTES: usize = 16;

/// A system call to be made.
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
    /// Receives up to `len` bytes. With `whole`, ends only when all have arrived, the stream ends or an error occurs;
    /// io_uring may end it earlier.
    Recv {
        file: FileRef,
        addr: u64,
        len: u32,
        whole: bool,
    },
    /// Sends all bytes of the message. The event comes when they are sent or an error ends the send.
    Send {
        file: FileRef,
        message: *const libc::msghdr,
    },
    /// Ends when the channel may have a message, or has an error. If several channels of one connection wait, a message
    /// ends one of the waits. Only io_uring supports it.
    AwaitMessage {
        file: FileRef,
    },
    /// Cancels the [`Job::AwaitMessage`] with this token, which still gets its own event.
    EndWait {
        token: u64,
    },
    /// Writes one message to a channel. Only io_uring supports it.
    WriteMessage {
        file: FileRef,
        iov: *const libc::iovec,
        count: u32,
    },
    /// A file-specific command. Only io_uring supports it.
    Command {
        fd: RawFd,
        code: u32,
        bytes: [u8; SHORT_COMMAND_BYTES],
    },
}

/// The end of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) token: u64,
    /// The result of the system call, or the negated error number.
    pub(crate) result: i32,
}

/// Whether to sleep for an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    No,
    /// At most this many nanoseconds.
    For(u64),
    Forever,
}

/// Configuration of a driver.
pub(crate) struct DriverConfig {
    /// Jobs in flight at a time.
    pub(crate) depth: u32,
    /// Wanted size of the table of registered files.
    pub(crate) files: u32,
    /// Memory to register: address and length.
    pub(crate) buffers: (u64, usize),
    pub(crate) wake: Arc<Wake>,
}

/// The driver of one shard.
pub(crate) enum Driver {
    Uring(Box<uring::Uring>),
    Libaio(Box<libaio::Libaio>),
    Threads(Box<threads::Threads>),
}

/// Makes the same call on any driver.
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
    /// Starts the wanted driver, or the best that the kernel permits. Runs on the shard's own thread.
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
                Ok((driver, info)) => return Ok((driver, DriverInfo { skipped: passed_over, ..info })),
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

    /// Queues a job. It may start now or at the next [`Driver::turn`]. The low half of the token of a receive or send
    /// is the socket's index, as in [`Driver::watch_socket`].
    ///
    /// # Safety
    /// The memory that the job names (data, iovecs, message) must stay valid, and its files open, until its event.
    #[inline]
    pub(crate) unsafe fn push(&mut self, token: u64, job: &Job) {
        // SAFETY: guaranteed by the caller.
        each!(self, d => unsafe { d.push(token, job) })
    }

    /// Starts the queued jobs and appends the events of ended ones to `events`. If no job has ended and `wait` permits
    /// it, sleeps until a job ends, another thread wakes the shard, or the time of `wait` is over.
    pub(crate) fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) {
        each!(self, d => d.turn(wait, events))
    }

    /// Registers a file at `slot` of the table of registered files, or unregisters it (-1). Returns false if the table
    /// has no such slot.
    pub(crate) fn register_file(&mut self, slot: u32, fd: RawFd) -> bool {
        each!(self, d => d.register_file(slot, fd))
    }

    /// Returns whether sockets must be blocking, because the kernel itself waits for them. If not, they must be
    /// nonblocking, because the driver waits in epoll.
    pub(crate) fn waits_for_sockets(&self) -> bool {
        matches!(self, Driver::Uring(_))
    }

    /// Returns whether the driver supports the jobs of channels.
    pub(crate) fn has_channels(&self) -> bool {
        matches!(self, Driver::Uring(_))
    }

    /// Returns whether the driver supports file-specific commands.
    pub(crate) fn has_commands(&self) -> bool {
        matches!(self, Driver::Uring(_))
    }

    /// Returns how many of the jobs counted by [`Driver::pushed`] the kernel has taken from the submission queue. What
    /// the kernel copies when it starts a job is no longer needed once that job is counted here. Always 0 without
    /// io_uring.
    pub(crate) fn begun(&mut self) -> u64 {
        match self {
            Driver::Uring(d) => d.begun(),
            Driver::Libaio(_) | Driver::Threads(_) => 0,
        }
    }

    /// Returns how many jobs were ever queued. Always 0 without io_uring.
    pub(crate) fn pushed(&self) -> u64 {
        match self {
            Driver::Uring(d) => d.pushed(),
            Driver::Libaio(_) | Driver::Threads(_) => 0,
        }
    }

    /// Prepares receives and sends on a socket under an index. Returns false if the kernel refuses to watch the socket.
    pub(crate) fn watch_socket(&mut self, index: u32, fd: RawFd) -> bool {
        match self {
            Driver::Uring(_) => true,
            Driver::Libaio(d) => d.watch_socket(index, fd),
            Driver::Threads(d) => d.watch_socket(index, fd),
        }
    }

    /// Unregisters a socket that is about to be closed. No I/O is in flight on it.
    pub(crate) fn unwatch_socket(&mut self, index: u32) {
        match self {
            Driver::Uring(_) => {}
            Driver::Libaio(d) => d.unwatch_socket(index),
            Driver::Threads(d) => d.unwatch_socket(index),
        }
    }

    /// Ends a driver while the kernel still has jobs of it. The memory of these jobs must never be freed.
    pub(crate) fn abandon(self) {
        match self {
            // Dropping it would wait for the jobs, or cancel them at an unknown time.
            Driver::Uring(d) => std::mem::forget(d),
            // Dropping these releases everything except the jobs themselves.
            Driver::Libaio(_) | Driver::Threads(_) => {}
        }
    }
}
