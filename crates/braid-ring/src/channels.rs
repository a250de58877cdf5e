//! Message channels of frontends: files of which one read returns one message, and one write sends one, such as
//! `/dev/fuse`.
//!
//! A channel is nonblocking. A frontend waits until a message may be available, and then reads until there is none.
//! Several shards may have channels to one source, and the kernel gives each message to one of them. A read is an
//! ordinary system call and not a job of the ring: a job that finds no message would wait, and hold its memory
//! meanwhile. Only the io_uring driver supports channels, because the other drivers wait only for sockets.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use crate::driver::{Driver, Event, FileRef, Job};
use crate::net::NetDone;
use crate::tokens::CHANNEL_TOKEN;

/// Maximum number of channels of a shard.
pub const CHANNELS_MAX: u32 = 256;
/// Maximum number of writes in flight on one channel.
pub const CHANNEL_CALLS_MAX: usize = 192;
/// Maximum number of pieces of one message.
pub const MESSAGE_PIECES_MAX: usize = 3;

const INDEX_SHIFT: u32 = 16;
/// The call number of the wait for a message. Numbers below are those of writes.
const WAIT_CALL: u16 = CHANNEL_CALLS_MAX as u16;
/// The call number of the cancellation of a wait.
const UNWAIT_CALL: u16 = WAIT_CALL + 1;

/// A channel that a frontend has added to its shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChannelId {
    index: u32,
    generation: u32,
}

struct Channel {
    fd: Option<OwnedFd>,
    generation: u32,
    frontend: u16,
    closing: bool,
    /// The token of the wait for a message, if it waits.
    waiting: Option<u64>,
    /// Whether the wait is being cancelled.
    unwaiting: bool,
    /// Tokens of the writes in flight, by call number.
    calls: Box<[Option<u64>]>,
    /// Call numbers of which no write is in flight.
    free: Vec<u16>,
    /// MESSAGE_PIECES_MAX iovecs for each call.
    iovecs: Box<[libc::iovec]>,
}

/// All channels of a shard.
pub(crate) struct Channels {
    channels: Vec<Channel>,
    free: Vec<u32>,
    busy: u32,
    writes: u32,
}

// SAFETY: the pointers in the iovecs are written before each call and dereferenced by the kernel only; they point to
// the arena of the shard on whose thread all of this lives.
unsafe impl Send for Channels {}

impl Channels {
    pub(crate) fn new() -> Channels {
        Channels { channels: Vec::new(), free: Vec::new(), busy: 0, writes: 0 }
    }

    /// Number of waits and writes in flight.
    pub(crate) fn busy(&self) -> u32 {
        self.busy
    }

    /// Number of writes in flight.
    pub(crate) fn writes(&self) -> u32 {
        self.writes
    }

    pub(crate) fn add(&mut self, fd: OwnedFd, frontend: u16, driver: &Driver) -> Result<ChannelId, OwnedFd> {
        if !driver.has_channels() || rustix::io::ioctl_fionbio(&fd, true).is_err() {
            return Err(fd);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.channels.len() < CHANNELS_MAX as usize => {
                self.channels.push(Channel::vacant());
                self.channels.len() as u32 - 1
            }
            None => return Err(fd),
        };
        let channel = &mut self.channels[index as usize];
        channel.fd = Some(fd);
        channel.frontend = frontend;
        channel.closing = false;
        Ok(ChannelId { index, generation: channel.generation })
    }

    /// Returns the channel, unless it is closed.
    fn get(&mut self, id: ChannelId) -> Option<&mut Channel> {
        let channel = self.channels.get_mut(id.index as usize)?;
        (channel.generation == id.generation && channel.fd.is_some() && !channel.closing).then_some(channel)
    }

    /// Starts waiting for a message. Returns false if the channel is closed or already waits.
    pub(crate) fn wait(&mut self, id: ChannelId, token: u64, driver: &mut Driver) -> bool {
        let Some(channel) = self.get(id).filter(|channel| channel.waiting.is_none()) else { return false };
        channel.waiting = Some(token);
        let job = Job::AwaitMessage { file: channel.file() };
        self.busy += 1;
        // SAFETY: no memory is named; the file stays open while anything is in flight on it.
        unsafe { driver.push(token_of(id.index, WAIT_CALL), &job) };
        true
    }

    /// Reads one message, if there is one. Returns its bytes or a negated error number, or `None` if the channel is
    /// closed. The caller has checked that the memory lies in the arena, and has exclusive access to it.
    pub(crate) fn read(&mut self, id: ChannelId, pieces: impl Iterator<Item = (u64, u32)>) -> Option<i32> {
        let file = self.get(id)?.file();
        let mut iovecs = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MESSAGE_PIECES_MAX];
        let mut count = 0;
        for (addr, len) in pieces {
            iovecs[count] = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len as usize };
            count += 1;
        }
        // SAFETY: the iovecs point to memory of the arena that its owner does not access until this returns.
        let read = unsafe { libc::readv(file.fd, iovecs.as_ptr(), count as i32) };
        let failed = || -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Some(if read < 0 { failed() } else { read as i32 })
    }

    /// Returns whether the kernel has closed the other end of the channel, or the channel is closed.
    pub(crate) fn is_ended(&mut self, id: ChannelId) -> bool {
        let Some(channel) = self.get(id) else { return true };
        let mut polled = libc::pollfd { fd: channel.file().fd, events: 0, revents: 0 };
        // SAFETY: one entry, which outlives the call. A poll that fails says nothing.
        unsafe { libc::poll(&raw mut polled, 1, 0) == 1 && polled.revents & libc::POLLERR != 0 }
    }

    /// Starts writing one message. Returns false if the channel is closed, or the maximum number of writes is in
    /// flight.
    pub(crate) fn write(
        &mut self,
        id: ChannelId,
        pieces: impl Iterator<Item = (u64, u32)>,
        token: u64,
        driver: &mut Driver,
    ) -> bool {
        let Some(channel) = self.get(id) else { return false };
        let Some(call) = channel.free.pop() else { return false };
        let first = usize::from(call) * MESSAGE_PIECES_MAX;
        let mut count = 0;
        for (addr, len) in pieces {
            assert!(count < MESSAGE_PIECES_MAX, "at most {MESSAGE_PIECES_MAX} pieces in one message");
            channel.iovecs[first + count] = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len as usize };
            count += 1;
        }
        channel.calls[usize::from(call)] = Some(token);
        let (file, iov, count) = (channel.file(), &raw const channel.iovecs[first], count as u32);
        let job = Job::WriteMessage { file, iov, count };
        self.busy += 1;
        self.writes += 1;
        // SAFETY: the iovecs belong to this call, in memory that does not move, and stay until the event; the data lies
        // in the arena, and the frontend does not access it until then. The file stays open while anything is in flight
        // on it.
        unsafe { driver.push(token_of(id.index, call), &job) };
        true
    }

    /// Handles an event, and returns the notification for the frontend, if any.
    pub(crate) fn on_event(&mut self, event: Event) -> Option<NetDone> {
        let (index, call) = ((event.token >> INDEX_SHIFT) as u32 & 0xffff, event.token as u16);
        let channel = &mut self.channels[index as usize];
        let frontend = channel.frontend;
        let token = match call {
            WAIT_CALL => channel.waiting.take(),
            UNWAIT_CALL => {
                channel.unwaiting = false;
                None
            }
            call => {
                let ended = channel.calls[usize::from(call)].take().expect("an event comes only for what was begun");
                channel.free.push(call);
                self.writes -= 1;
                Some(ended)
            }
        };
        self.busy -= 1;
        self.release(index);
        token.map(|token| NetDone { frontend, token, result: event.result })
    }

    /// Closes the channel once no wait and no write is in flight on it. A wait is cancelled, and the frontend is
    /// notified of its end.
    pub(crate) fn close(&mut self, id: ChannelId, driver: &mut Driver) {
        let Some(channel) = self.get(id) else { return };
        channel.closing = true;
        if channel.waiting.is_some() {
            channel.unwaiting = true;
            self.busy += 1;
            let job = Job::EndWait { token: token_of(id.index, WAIT_CALL) };
            // SAFETY: the job names only a number.
            unsafe { driver.push(token_of(id.index, UNWAIT_CALL), &job) };
        }
        self.release(id.index);
    }

    pub(crate) fn close_all(&mut self, driver: &mut Driver) {
        for index in 0..self.channels.len() as u32 {
            let generation = self.channels[index as usize].generation;
            self.close(ChannelId { index, generation }, driver);
        }
    }

    fn release(&mut self, index: u32) {
        let channel = &mut self.channels[index as usize];
        let idle = channel.waiting.is_none() && !channel.unwaiting && channel.free.len() == CHANNEL_CALLS_MAX;
        if channel.closing && idle {
            channel.fd = None;
            channel.closing = false;
            channel.generation = channel.generation.wrapping_add(1);
            self.free.push(index);
        }
    }
}

impl Channel {
    fn vacant() -> Channel {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Channel {
            fd: None,
            generation: 0,
            frontend: 0,
            closing: false,
            waiting: None,
            unwaiting: false,
            calls: vec![None; CHANNEL_CALLS_MAX].into(),
            free: (0..CHANNEL_CALLS_MAX as u16).rev().collect(),
            iovecs: vec![empty; CHANNEL_CALLS_MAX * MESSAGE_PIECES_MAX].into(),
        }
    }

    fn file(&self) -> FileRef {
        let fd = self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        FileRef { fd, slot: FileRef::UNREGISTERED, direct: false }
    }
}

fn token_of(index: u32, call: u16) -> u64 {
    CHANNEL_TOKEN | u64::from(index) << INDEX_SHIFT | u64::from(call)
}
