//! Receives and sends as jobs, over sockets that only report readiness.
//!
//! A job is tried when it arrives, and again after each edge of its socket, until it is done. Each socket records that
//! it was found empty or full, and is not tried again before the next edge: an idle socket costs nothing.

use std::os::fd::RawFd;

use super::epoll::Epoll;
use super::{Event, Job};

/// Iovecs that the kernel takes in one call (UIO_MAXIOV).
const IOVECS_MAX: usize = 1024;
/// Events watched on a socket. EPOLLOUT is watched only while a send waits for room: otherwise each read by the peer
/// would wake the shard.
const INTEREST: i32 = libc::EPOLLIN | libc::EPOLLRDHUP;

struct Receiving {
    token: u64,
    addr: u64,
    len: usize,
    got: usize,
    whole: bool,
}

struct Sending {
    token: u64,
    message: *const libc::msghdr,
    total: usize,
    sent: usize,
}

struct Socket {
    fd: RawFd,
    /// False if the last receive found the socket empty, and no edge has followed.
    readable: bool,
    /// False if the last send found the socket full, and no edge has followed.
    writable: bool,
    /// Whether EPOLLOUT is watched as well.
    watches_room: bool,
    /// Whether it is in the list of sockets to try.
    due: bool,
    receiving: Option<Receiving>,
    sending: Option<Sending>,
}

const VACANT: Socket = Socket {
    fd: -1,
    readable: false,
    writable: false,
    watches_room: false,
    due: false,
    receiving: None,
    sending: None,
};

/// All sockets of a shard, by the index under which they are watched.
pub(super) struct Sockets {
    all: Box<[Socket]>,
    due: Vec<u32>,
    /// Receives and sends that have not ended.
    pending: u32,
    /// Iovecs for the rest of a partially sent message.
    rest: Box<[libc::iovec; IOVECS_MAX]>,
}

impl Sockets {
    pub(super) fn new(max: u32) -> Sockets {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Sockets {
            all: (0..max).map(|_| VACANT).collect(),
            due: Vec::with_capacity(max as usize),
            pending: 0,
            rest: Box::new([empty; IOVECS_MAX]),
        }
    }

    pub(super) fn pending(&self) -> u32 {
        self.pending
    }

    /// Starts watching a socket under an index. Returns false if the kernel refuses.
    pub(super) fn add(&mut self, index: u32, fd: RawFd, epoll: &Epoll) -> bool {
        let socket = &mut self.all[index as usize];
        debug_assert_eq!(socket.fd, -1, "an index is used once at a time");
        if epoll.watch(fd, u64::from(index), INTEREST).is_err() {
            return false;
        }
        // The first attempt finds out whether it is ready.
        *socket = Socket { fd, readable: true, writable: true, ..VACANT };
        true
    }

    /// Stops watching a socket without I/O in flight.
    pub(super) fn remove(&mut self, index: u32, epoll: &Epoll) {
        let socket = &mut self.all[index as usize];
        debug_assert!(socket.receiving.is_none() && socket.sending.is_none(), "nothing is in flight on it");
        if socket.fd >= 0 {
            epoll.forget(socket.fd);
        }
        socket.fd = -1;
    }

    /// Handles an edge of a socket.
    pub(super) fn ready(&mut self, index: u32, events: i32, epoll: &Epoll) {
        let socket = &mut self.all[index as usize];
        let ended = events & (libc::EPOLLHUP | libc::EPOLLERR) != 0;
        socket.readable |= ended || events & (libc::EPOLLIN | libc::EPOLLRDHUP) != 0;
        socket.writable |= ended || events & libc::EPOLLOUT != 0;
        if socket.watches_room && socket.writable {
            // If the kernel refuses, the shard has needless wake-ups and no other problem.
            let _ = epoll.change(socket.fd, u64::from(index), INTEREST);
            socket.watches_room = false;
        }
        let wanted = (socket.readable && socket.receiving.is_some()) || (socket.writable && socket.sending.is_some());
        if wanted {
            self.make_due(index);
        }
    }

    fn make_due(&mut self, index: u32) {
        if !std::mem::replace(&mut self.all[index as usize].due, true) {
            self.due.push(index);
        }
    }

    /// Queues a receive or send. The low half of the token is the socket's index.
    ///
    /// # Safety
    /// As [`super::Driver::push`].
    pub(super) unsafe fn push(&mut self, token: u64, job: &Job) {
        let index = token as u32;
        let socket = &mut self.all[index as usize];
        match *job {
            Job::Recv { file, addr, len, whole } => {
                debug_assert!(socket.fd == file.fd && socket.receiving.is_none());
                socket.receiving = Some(Receiving { token, addr, len: len as usize, got: 0, whole });
            }
            Job::Send { file, message } => {
                debug_assert!(socket.fd == file.fd && socket.sending.is_none());
                // SAFETY: the caller guarantees that message and iovecs are valid until the event.
                let total = unsafe { iovecs(message) }.iter().map(|iov| iov.iov_len).sum();
                socket.sending = Some(Sending { token, message, total, sent: 0 });
            }
            _ => unreachable!("the drivers bring only receives and sends here"),
        }
        self.pending += 1;
        self.make_due(index);
    }

    /// Tries all sockets that may make progress.
    pub(super) fn try_due(&mut self, epoll: &Epoll, events: &mut Vec<Event>) {
        while let Some(index) = self.due.pop() {
            let socket = &mut self.all[index as usize];
            socket.due = false;
            let received = if socket.readable { socket.receive() } else { None };
            let mut sent = if socket.writable { socket.send(&mut self.rest) } else { None };
            if !socket.writable && !socket.watches_room {
                sent = socket.watch_room(index, epoll);
            }
            for event in received.into_iter().chain(sent) {
                self.pending -= 1;
                events.push(event);
            }
        }
    }
}

impl Socket {
    /// Watches for EPOLLOUT, because a send has found the socket full. If the kernel refuses, ends that send with the
    /// error, and returns its event.
    fn watch_room(&mut self, index: u32, epoll: &Epoll) -> Option<Event> {
        match epoll.change(self.fd, u64::from(index), INTEREST | libc::EPOLLOUT) {
            Ok(()) => {
                self.watches_room = true;
                None
            }
            Err(e) => {
                let errno = e.raw_os_error().unwrap_or(libc::EIO);
                self.sending.take().map(|s| Event { token: s.token, result: -errno })
            }
        }
    }

    /// Receives until the job is done or the socket is empty.
    fn receive(&mut self) -> Option<Event> {
        let r = self.receiving.as_mut()?;
        let result = loop {
            // SAFETY: the job's memory is valid until its event; the bytes received lie before `got`.
            let got = unsafe {
                libc::recv(self.fd, (r.addr + r.got as u64) as *mut libc::c_void, r.len - r.got, libc::MSG_DONTWAIT)
            };
            match usize::try_from(got) {
                Ok(0) => break r.got as i32,
                Ok(bytes) => {
                    r.got += bytes;
                    if !r.whole || r.got == r.len {
                        break r.got as i32;
                    }
                }
                Err(_) => match last_errno() {
                    libc::EAGAIN => {
                        self.readable = false;
                        return None;
                    }
                    libc::EINTR => {}
                    errno => break -errno,
                },
            }
        };
        let token = r.token;
        self.receiving = None;
        Some(Event { token, result })
    }

    /// Sends until the job is done or the socket is full.
    fn send(&mut self, rest: &mut [libc::iovec; IOVECS_MAX]) -> Option<Event> {
        let s = self.sending.as_mut()?;
        let result = loop {
            let mut part;
            let message = if s.sent == 0 {
                s.message
            } else {
                // SAFETY: the message is valid until the event.
                part = unsafe { *s.message };
                part.msg_iov = rest.as_mut_ptr();
                // SAFETY: as above, and so are its iovecs.
                part.msg_iovlen = copy_rest(unsafe { iovecs(s.message) }, s.sent, rest) as _;
                &raw const part
            };
            // SAFETY: message, iovecs and data are valid until the event.
            let sent = unsafe { libc::sendmsg(self.fd, message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
            match usize::try_from(sent) {
                Ok(bytes) => {
                    s.sent += bytes;
                    if s.sent == s.total || bytes == 0 {
                        break s.sent as i32;
                    }
                }
                Err(_) => match last_errno() {
                    libc::EAGAIN => {
                        self.writable = false;
                        return None;
                    }
                    libc::EINTR => {}
                    errno => break -errno,
                },
            }
        };
        let token = s.token;
        self.sending = None;
        Some(Event { token, result })
    }
}

/// # Safety
/// The message and its iovecs are valid while the result is used.
unsafe fn iovecs<'a>(message: *const libc::msghdr) -> &'a [libc::iovec] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let message = &*message;
        if message.msg_iov.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen as _)
        }
    }
}

/// Copies the iovecs behind the first `skip` bytes, as many as fit. Returns their number.
fn copy_rest(from: &[libc::iovec], mut skip: usize, to: &mut [libc::iovec]) -> usize {
    let mut count = 0;
    for iov in from {
        if skip >= iov.iov_len {
            skip -= iov.iov_len;
            continue;
        }
        if count == to.len() {
            break;
        }
        to[count] = libc::iovec { iov_base: iov.iov_base.wrapping_byte_add(skip), iov_len: iov.iov_len - skip };
        skip = 0;
        count += 1;
    }
    count
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
