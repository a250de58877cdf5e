//! Sockets of frontends: receiving and sending through the shard's driver.
//!
//! Each socket has at most one receive and one send in flight, which suffices for a stream: their order on the wire is
//! the order of the calls. The message and iovecs of a send belong to the socket.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use braid_engine::Buf;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::driver::{Driver, Event, FileRef, Job};
use crate::limits::{LEAVES_MAX, SOCKETS_MAX};
use crate::map::Map;
use crate::tokens::{RECV_TOKEN, SEND_TOKEN};

/// Maximum number of pieces of one send.
pub const SEND_PIECES_MAX: usize = 256;

/// A socket that a frontend has added to its shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SocketId {
    index: u32,
    generation: u32,
}

/// When a receive ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvMode {
    /// As soon as any bytes have arrived.
    Some,
    /// When all bytes have arrived, or the stream has ended.
    All,
}

/// One piece of a send.
#[derive(Clone, Copy, Debug)]
pub struct SendPiece {
    /// Its start.
    pub buf: Buf,
    /// Its length in bytes.
    pub len: u32,
}

/// The notification of a frontend about the end of a receive or send.
pub(crate) struct NetDone {
    pub(crate) frontend: u16,
    pub(crate) token: u64,
    pub(crate) result: i32,
}

struct Receiving {
    token: u64,
    addr: u64,
    len: u32,
    got: u32,
    whole: bool,
}

struct Sending {
    token: u64,
    total: u32,
    sent: u32,
}

struct Socket {
    fd: Option<OwnedFd>,
    generation: u32,
    frontend: u16,
    file: FileRef,
    closing: bool,
    receiving: Option<Receiving>,
    sending: Option<Sending>,
    message: libc::msghdr,
}

/// All sockets of a shard.
pub(crate) struct Net {
    sockets: Box<[Socket]>,
    free: Vec<u32>,
    /// SEND_PIECES_MAX iovecs for each socket.
    iovecs: Map,
    busy: u32,
    sends: u32,
}

const IOVECS_BYTES: usize = SEND_PIECES_MAX * size_of::<libc::iovec>();

impl Net {
    pub(crate) fn new() -> std::io::Result<Net> {
        // SAFETY: a message header of zeros is an empty one.
        let empty = || unsafe { std::mem::zeroed::<libc::msghdr>() };
        let socket = |_| Socket {
            fd: None,
            generation: 0,
            frontend: 0,
            file: FileRef::NONE,
            closing: false,
            receiving: None,
            sending: None,
            message: empty(),
        };
        Ok(Net {
            sockets: (0..SOCKETS_MAX).map(socket).collect(),
            free: (0..SOCKETS_MAX).rev().collect(),
            iovecs: Map::new(SOCKETS_MAX as usize * IOVECS_BYTES)?,
            busy: 0,
            sends: 0,
        })
    }

    /// Number of receives and sends in flight.
    pub(crate) fn busy(&self) -> u32 {
        self.busy
    }

    /// Number of sends in flight.
    pub(crate) fn sends(&self) -> u32 {
        self.sends
    }

    pub(crate) fn add(&mut self, fd: OwnedFd, frontend: u16, driver: &mut Driver) -> Result<SocketId, OwnedFd> {
        let Some(index) = self.free.pop() else { return Err(fd) };
        // io_uring waits for a socket only if it is blocking; the other drivers wait in epoll, and need it nonblocking.
        let nonblocking = !driver.waits_for_sockets();
        if rustix::io::ioctl_fionbio(&fd, nonblocking).is_err() || !driver.watch_socket(index, fd.as_raw_fd()) {
            self.free.push(index);
            return Err(fd);
        }
        let slot = LEAVES_MAX + index;
        let registered = driver.register_file(slot, fd.as_raw_fd());
        let socket = &mut self.sockets[index as usize];
        let slot = if registered { slot } else { FileRef::UNREGISTERED };
        socket.file = FileRef { fd: fd.as_raw_fd(), slot, direct: false };
        socket.fd = Some(fd);
        socket.frontend = frontend;
        socket.closing = false;
        Ok(SocketId { index, generation: socket.generation })
    }

    /// Returns the socket, unless it is closed.
    fn get(&mut self, id: SocketId) -> Option<&mut Socket> {
        let socket = &mut self.sockets[id.index as usize];
        (socket.generation == id.generation && socket.fd.is_some() && !socket.closing).then_some(socket)
    }

    /// Returns whether the peer has shut down or lost its side of the connection, although bytes may be unread.
    pub(crate) fn is_hung_up(&mut self, id: SocketId) -> bool {
        let Some(fd) = self.get(id).and_then(|socket| socket.fd.as_ref()) else { return true };
        let mut polled = [PollFd::new(fd, PollFlags::RDHUP)];
        // A failed poll says nothing about the peer.
        poll(&mut polled, Some(&Timespec::default())).is_ok() && !polled[0].revents().is_empty()
    }

    /// Starts receiving. Returns false if the socket is closed. The caller has checked that the memory lies in the
    /// arena.
    pub(crate) fn recv(
        &mut self,
        id: SocketId,
        addr: u64,
        len: u32,
        mode: RecvMode,
        token: u64,
        driver: &mut Driver,
    ) -> bool {
        let Some(socket) = self.get(id) else { return false };
        assert!(socket.receiving.is_none(), "one receive at a time on a socket");
        socket.receiving = Some(Receiving { token, addr, len, got: 0, whole: mode == RecvMode::All });
        self.busy += 1;
        self.push_recv(id.index, driver);
        true
    }

    fn push_recv(&mut self, index: u32, driver: &mut Driver) {
        let socket = &self.sockets[index as usize];
        let r = socket.receiving.as_ref().expect("only a socket that receives comes here");
        let job = Job::Recv { file: socket.file, addr: r.addr + u64::from(r.got), len: r.len - r.got, whole: r.whole };
        // SAFETY: the memory lies in the arena, and the frontend does not access it until `net_done`; the socket stays
        // open while anything is in flight on it.
        unsafe { driver.push(RECV_TOKEN | u64::from(index), &job) };
    }

    /// Starts sending. Returns false if the socket is closed.
    pub(crate) fn send(
        &mut self,
        id: SocketId,
        pieces: impl Iterator<Item = (u64, u32)>,
        token: u64,
        driver: &mut Driver,
    ) -> bool {
        let Some(socket) = self.get(id) else { return false };
        assert!(socket.sending.is_none(), "one send at a time on a socket");
        let first = self.iovecs(id.index);
        let (mut count, mut total) = (0usize, 0u32);
        for (addr, len) in pieces {
            assert!(count < SEND_PIECES_MAX, "at most {SEND_PIECES_MAX} pieces in one send");
            total = total.checked_add(len).filter(|t| *t <= i32::MAX as u32).expect("a send is below 2 GiB");
            let iov = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len as usize };
            // SAFETY: inside this socket's iovecs, which are unused while no send is in flight.
            unsafe { first.add(count).write(iov) };
            count += 1;
        }
        let socket = &mut self.sockets[id.index as usize];
        socket.sending = Some(Sending { token, total, sent: 0 });
        socket.message.msg_iov = first;
        socket.message.msg_iovlen = count as _;
        self.busy += 1;
        self.sends += 1;
        self.push_send(id.index, driver);
        true
    }

    fn iovecs(&self, index: u32) -> *mut libc::iovec {
        // SAFETY: `index` is below SOCKETS_MAX, so this is inside the mapping, and aligned.
        unsafe { self.iovecs.ptr().add(index as usize * IOVECS_BYTES) }.cast()
    }

    fn push_send(&mut self, index: u32, driver: &mut Driver) {
        let socket = &self.sockets[index as usize];
        let job = Job::Send { file: socket.file, message: &raw const socket.message };
        // SAFETY: message and iovecs belong to the socket, in memory that does not move, and stay until the event; the
        // data lies in the arena, and the frontend does not access it until `net_done`.
        unsafe { driver.push(SEND_TOKEN | u64::from(index), &job) };
    }

    /// Handles the end of a receive or send. Returns the notification for the frontend, unless the operation continues.
    pub(crate) fn on_event(&mut self, event: Event, driver: &mut Driver) -> Option<NetDone> {
        let index = event.token as u32;
        let done = if event.token & SEND_TOKEN == SEND_TOKEN {
            self.sent(index, event.result, driver)
        } else {
            self.received(index, event.result, driver)
        }?;
        self.busy -= 1;
        self.release(index, driver);
        Some(done)
    }

    fn received(&mut self, index: u32, result: i32, driver: &mut Driver) -> Option<NetDone> {
        let socket = &mut self.sockets[index as usize];
        let r = socket.receiving.as_mut().expect("an event comes only for what was begun");
        let retry = matches!(-result, libc::EINTR | libc::EAGAIN) && !socket.closing;
        r.got += result.max(0) as u32;
        if retry || (r.whole && result > 0 && r.got < r.len && !socket.closing) {
            self.push_recv(index, driver);
            return None;
        }
        let result = if result < 0 { result } else { r.got as i32 };
        let token = r.token;
        socket.receiving = None;
        Some(NetDone { frontend: socket.frontend, token, result })
    }

    fn sent(&mut self, index: u32, result: i32, driver: &mut Driver) -> Option<NetDone> {
        let socket = &mut self.sockets[index as usize];
        let s = socket.sending.as_mut().expect("an event comes only for what was begun");
        let retry = matches!(-result, libc::EINTR | libc::EAGAIN) && !socket.closing;
        s.sent += result.max(0) as u32;
        if retry || (result > 0 && s.sent < s.total && !socket.closing) {
            advance(&mut socket.message, result.max(0) as usize);
            self.push_send(index, driver);
            return None;
        }
        let result = if result < 0 { result } else { s.sent as i32 };
        let token = s.token;
        socket.sending = None;
        self.sends -= 1;
        Some(NetDone { frontend: socket.frontend, token, result })
    }

    /// Shuts down both directions. I/O in flight ends soon.
    pub(crate) fn shutdown(&mut self, id: SocketId) {
        if let Some(socket) = self.get(id)
            && let Some(fd) = &socket.fd
        {
            // It is no error here if the peer has already disconnected.
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
    }

    /// Closes the socket, once nothing is in flight on it.
    pub(crate) fn close(&mut self, id: SocketId, driver: &mut Driver) {
        self.shutdown(id);
        if let Some(socket) = self.get(id) {
            socket.closing = true;
            self.release(id.index, driver);
        }
    }

    pub(crate) fn close_all(&mut self, driver: &mut Driver) {
        for index in 0..SOCKETS_MAX {
            let generation = self.sockets[index as usize].generation;
            self.close(SocketId { index, generation }, driver);
        }
    }

    fn release(&mut self, index: u32, driver: &mut Driver) {
        let socket = &mut self.sockets[index as usize];
        if !socket.closing || socket.receiving.is_some() || socket.sending.is_some() {
            return;
        }
        driver.unwatch_socket(index);
        if socket.file.slot != FileRef::UNREGISTERED {
            driver.register_file(socket.file.slot, -1);
        }
        socket.file = FileRef::NONE;
        socket.fd = None;
        socket.closing = false;
        socket.generation = socket.generation.wrapping_add(1);
        self.free.push(index);
    }
}

/// Removes `bytes` from the front of a message.
fn advance(message: &mut libc::msghdr, mut bytes: usize) {
    while bytes > 0 {
        // SAFETY: a send never reports more bytes than its iovecs hold, so the first iovec exists while `bytes` is not
        // 0.
        let iov = unsafe { &mut *message.msg_iov };
        if bytes < iov.iov_len {
            iov.iov_base = iov.iov_base.wrapping_byte_add(bytes);
            iov.iov_len -= bytes;
            return;
        }
        bytes -= iov.iov_len;
        // SAFETY: as above; one past the end at most.
        message.msg_iov = unsafe { message.msg_iov.add(1) };
        message.msg_iovlen -= 1;
    }
}
