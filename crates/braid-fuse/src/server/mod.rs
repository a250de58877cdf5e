//! The server on one shard: a bounded table of files, driven by the shard's completions.
//!
//! `session.rs` is one file on one shard: reading messages, and their slots; `serve.rs` carries out requests;
//! `patch.rs` is a read-modify-write; `seek.rs` finds holes; `receive.rs` is the memory that messages are received into.

mod patch;
mod receive;
mod seek;
mod serve;
mod session;

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use braid_engine::{Buf, Completion};
use braid_ring::{CHANNELS_MAX, Cx, Frontend};

use crate::file::{FuseFile, RetryWrites};
use receive::ReceiveBuffers;
use session::Session;

/// The parts of a token or tag, from the lowest bits: kind, slot, session, and a count that makes it differ from
/// earlier ones. Together they have 48 bits ([`braid_ring::TAG_LIMIT`]).
const KIND_BITS: u32 = 4;
const SLOT_BITS: u32 = 12;
const SESSION_BITS: u32 = 10;
const COUNT_BITS: u32 = 48 - KIND_BITS - SLOT_BITS - SESSION_BITS;

const _: () = assert!(CHANNELS_MAX <= 1 << SESSION_BITS);

/// Message: serve a file. The channel belongs to its connection and is for this shard alone.
pub struct Attach {
    /// The file; [`FuseFile::attach`] was called for this shard.
    pub file: Arc<FuseFile>,
    /// The channel.
    pub fd: OwnedFd,
}

/// Message to a shard: stop serving a file. Requests in the engine are completed and replied to. Requests that wait get
/// no reply and are left to the next server of the connection, or fail with EIO if the kernel does not resubmit them.
pub struct Detach(
    /// The file.
    pub Arc<FuseFile>,
);

/// What all files of a shard share.
pub(crate) struct Shared {
    receive_buffers: ReceiveBuffers,
    /// Memory that a late I/O may still touch.
    quarantine: Vec<Late>,
    /// The count of the last tag or session.
    count: u64,
    /// The ring stops: no file is attached any more.
    stopping: bool,
}

/// Memory of a late I/O: a receive buffer, or `len` bytes at `buf`.
struct Late {
    /// The engine's tag of the I/O.
    tag: u64,
    buf: Buf,
    len: usize,
    receive_buffer: Option<u16>,
}

impl Shared {
    /// Returns a tag for a slot that differs from the last four million and from all in quarantine.
    fn next_tag(&mut self, session: u16, slot: u16) -> u64 {
        loop {
            self.count = (self.count + 1) & ((1 << COUNT_BITS) - 1);
            let tag = token(self.count, session, slot, 0);
            if self.quarantine.iter().all(|late| late.tag != tag) {
                return tag;
            }
        }
    }
}

fn token(count: u64, session: u16, slot: u16, kind: u64) -> u64 {
    ((count << SESSION_BITS | u64::from(session)) << SLOT_BITS | u64::from(slot)) << KIND_BITS | kind
}

/// Returns session, slot and kind of a token.
fn split(token: u64) -> (usize, u16, u64) {
    let slot = token >> KIND_BITS & ((1 << SLOT_BITS) - 1);
    let session = token >> (KIND_BITS + SLOT_BITS) & ((1 << SESSION_BITS) - 1);
    (session as usize, slot as u16, token & ((1 << KIND_BITS) - 1))
}

/// Serves files on one shard. Each shard has its own.
pub struct FuseFrontend {
    sessions: Vec<Option<Box<Session>>>,
    shared: Shared,
    /// Sessions that had work in this turn: [`Session::settle`] is called for them at its end.
    dirty: Vec<u16>,
}

impl Default for FuseFrontend {
    fn default() -> FuseFrontend {
        FuseFrontend::new()
    }
}

impl FuseFrontend {
    /// Creates a server without files.
    pub fn new() -> FuseFrontend {
        let shared = Shared {
            receive_buffers: ReceiveBuffers::default(),
            quarantine: Vec::with_capacity(1024),
            count: 0,
            stopping: false,
        };
        FuseFrontend { sessions: Vec::new(), shared, dirty: Vec::with_capacity(CHANNELS_MAX as usize) }
    }

    fn attach(&mut self, cx: &mut Cx<'_>, attach: Attach) {
        let file = Arc::clone(&attach.file);
        self.try_attach(cx, attach);
        file.note_seen();
    }

    fn try_attach(&mut self, cx: &mut Cx<'_>, attach: Attach) {
        let index = match self.sessions.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.sessions.push(None);
                self.sessions.len() - 1
            }
        };
        if self.shared.stopping || index >= CHANNELS_MAX as usize {
            return attach.file.detached();
        }
        self.shared.count += 1;
        match Session::new(cx, index as u16, self.shared.count, attach) {
            Ok(session) => {
                self.sessions[index] = Some(session);
                self.mark(index);
            }
            Err(file) => file.detached(),
        }
    }

    fn mark(&mut self, index: usize) {
        if let Some(Some(session)) = self.sessions.get_mut(index)
            && !std::mem::replace(&mut session.dirty, true)
        {
            self.dirty.push(index as u16);
        }
    }

    fn each(&mut self, cx: &mut Cx<'_>, mut call: impl FnMut(&mut Session, &mut Cx<'_>, &mut Shared)) {
        for index in 0..self.sessions.len() {
            if let Some(session) = &mut self.sessions[index] {
                call(session, cx, &mut self.shared);
                session.begin_entered(cx, &mut self.shared);
                self.mark(index);
            }
        }
    }
}

impl Frontend for FuseFrontend {
    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion) {
        let (index, slot, _) = split(completion.tag);
        let Some(Some(session)) = self.sessions.get_mut(index) else {
            debug_assert!(false, "a session outlives its requests in the engine");
            return;
        };
        session.io_done(cx, &mut self.shared, slot, completion);
        session.begin_entered(cx, &mut self.shared);
        self.mark(index);
    }

    fn released(&mut self, cx: &mut Cx<'_>, tag: u64) {
        if let Some(at) = self.shared.quarantine.iter().position(|late| late.tag == tag) {
            let late = self.shared.quarantine.swap_remove(at);
            match late.receive_buffer {
                Some(buffer) => self.shared.receive_buffers.release(cx, buffer),
                None => cx.free(late.buf, late.len),
            }
        }
    }

    fn net_done(&mut self, cx: &mut Cx<'_>, token: u64, result: i32) {
        let (index, slot, kind) = split(token);
        let Some(Some(session)) = self.sessions.get_mut(index) else {
            debug_assert!(false, "a session outlives its calls on the channel");
            return;
        };
        session.net_done(cx, &mut self.shared, kind, slot, result);
        session.begin_entered(cx, &mut self.shared);
        self.mark(index);
    }

    fn timer(&mut self, cx: &mut Cx<'_>, token: u64) {
        let (index, _, _) = split(token);
        if let Some(Some(session)) = self.sessions.get_mut(index) {
            session.timer(cx, &mut self.shared);
            session.begin_entered(cx, &mut self.shared);
            self.mark(index);
        }
    }

    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        let message = match message.downcast::<Attach>() {
            Ok(attach) => return self.attach(cx, *attach),
            Err(message) => message,
        };
        match message.downcast::<Detach>() {
            Ok(detach) => self.each(cx, |session, cx, shared| {
                if Arc::ptr_eq(&session.file, &detach.0) {
                    session.stop(cx, shared);
                }
            }),
            Err(message) => {
                debug_assert!(message.is::<RetryWrites>(), "a message of an unknown type");
                self.each(cx, |session, cx, shared| session.retry_parked(cx, shared));
            }
        }
    }

    fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        for k in 0..self.dirty.len() {
            let index = usize::from(self.dirty[k]);
            let Some(Some(session)) = self.sessions.get_mut(index) else { continue };
            session.dirty = false;
            let is_over = session.settle(cx, &mut self.shared);
            session.begin_entered(cx, &mut self.shared);
            if is_over {
                self.sessions[index] = None;
            }
        }
        self.dirty.clear();
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.shared.stopping = true;
        self.each(cx, |session, cx, shared| session.stop(cx, shared));
    }
}
