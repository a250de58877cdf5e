//! One file on one shard: messages are read while there are any, each into its own slot, and replied to in any order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use braid_engine::Buf;
use braid_export::ExportStats;
use braid_ring::{CHANNEL_CALLS_MAX, ChannelId, Cx, SendPiece};

use super::patch::Step;
use super::receive::ReceiveCursor;
use super::{Attach, Late, Shared, token};
use crate::ask::{self, Ask};
use crate::file::FuseFile;
use crate::wire::{DATA_BYTES_MAX, HEAD_BYTES};

/// Messages of one file on one shard that may be without a reply at a time; more wait in the kernel.
pub(super) const SLOTS_MAX: usize = 128;
/// Messages that a session reads before the shard serves others.
const MESSAGES_PER_TURN: usize = 32;
/// Bytes of a slot's buffer for the head of the message and the head of its reply.
const HEADS_BYTES: usize = 256;
const REPLY_AT: usize = 128;
/// Pause before a retry for want of memory, or of room in the engine.
const RETRY_NS: u64 = 1_000_000;

const _: () = assert!(SLOTS_MAX <= CHANNEL_CALLS_MAX);

/// Kinds of tokens.
const KIND_AWAIT: u64 = 1;
const KIND_REPLY: u64 = 2;
const KIND_TIMER: u64 = 3;

/// What a message waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// Nothing: it is being served, is in the engine, or has its reply on the way.
    None,
    /// The limits of its export.
    Limits,
    /// Other writes.
    Order,
    /// Memory, room in the engine, or its turn.
    Resources,
}

/// One message, until its reply is sent.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub unique: u64,
    pub ask: Ask,
    pub taken_ns: u64,
    /// Whether the limits of its export were applied.
    pub admitted: bool,
    pub wait: Wait,
    /// The receive buffer with the data of a WRITE.
    pub receive_buffer: Option<u16>,
    /// Where the data of a WRITE begin.
    pub data: Buf,
    /// Memory of its own for what it reads; for a read-modify-write, for the blocks that it changes.
    pub own: Buf,
    pub own_bytes: usize,
    pub step: Step,
    /// Whether the write order counts it as a write of whole blocks.
    pub shares: bool,
    /// Whether it holds the claim to run alone. Writes of whole blocks may still have to end.
    pub alone: bool,
    /// Whether the engine has its request.
    pub running: bool,
    /// Whether its read was retried from another disk.
    pub retried: bool,
    pub tag: u64,
    /// The file's size when the message was first served.
    pub size_bytes: Option<u64>,
    /// Where a search for a hole, or for data, goes on.
    pub searched_to: u64,
}

const VACANT: Slot = Slot {
    unique: 0,
    ask: Ask::Nothing,
    taken_ns: 0,
    admitted: false,
    wait: Wait::None,
    receive_buffer: None,
    data: Buf::NONE,
    own: Buf::NONE,
    own_bytes: 0,
    step: Step::Begin,
    shares: false,
    alone: false,
    running: false,
    retried: false,
    tag: 0,
    size_bytes: None,
    searched_to: 0,
};

/// One file on one shard.
pub(super) struct Session {
    pub file: Arc<FuseFile>,
    /// Whether it is in the list of sessions that had work in this turn.
    pub dirty: bool,
    pub index: u16,
    count: u64,
    channel: ChannelId,
    heads: Buf,
    slots: Box<[Slot]>,
    free: Vec<u16>,
    cursor: ReceiveCursor,
    /// Whether there may be messages to read.
    readable: bool,
    /// Whether the shard waits for a message.
    awaiting: bool,
    /// The file is being detached: no message is read, and no waiting request begins.
    stopping: bool,
    /// Whether the channel is closed.
    closed: bool,
    /// Whether requests wait in the engine to be begun: see [`Session::begin_entered`].
    pub has_entered: bool,
    /// Slots that wait for [`Wait::Order`], for [`Wait::Resources`], and for [`Wait::Limits`] by due time.
    pub parked: VecDeque<u16>,
    pub starved: VecDeque<u16>,
    pub held: BinaryHeap<Reverse<(u64, u16)>>,
    /// When its timer fires.
    armed_ns: Option<u64>,
    pub stats: ExportStats,
}

impl Session {
    /// Begins to serve a file on this shard. Returns the file as the error if there is no memory, or no room for its channel.
    pub fn new(cx: &mut Cx<'_>, index: u16, count: u64, attach: Attach) -> Result<Box<Session>, Arc<FuseFile>> {
        let Attach { file, fd } = attach;
        let Some(heads) = cx.alloc(SLOTS_MAX * HEADS_BYTES) else { return Err(file) };
        let Ok(channel) = cx.add_channel(fd) else {
            cx.free(heads, SLOTS_MAX * HEADS_BYTES);
            return Err(file);
        };
        Ok(Box::new(Session {
            file,
            dirty: false,
            index,
            count,
            channel,
            heads,
            slots: vec![VACANT; SLOTS_MAX].into(),
            free: (0..SLOTS_MAX as u16).rev().collect(),
            cursor: ReceiveCursor::default(),
            readable: false,
            awaiting: false,
            stopping: false,
            closed: false,
            has_entered: false,
            parked: VecDeque::with_capacity(SLOTS_MAX),
            starved: VecDeque::with_capacity(SLOTS_MAX),
            held: BinaryHeap::with_capacity(SLOTS_MAX),
            armed_ns: None,
            stats: ExportStats::default(),
        }))
    }

    #[inline]
    pub fn slot(&mut self, slot: u16) -> &mut Slot {
        &mut self.slots[usize::from(slot)]
    }

    fn token(&self, slot: u16, kind: u64) -> u64 {
        token(self.count & ((1 << super::COUNT_BITS) - 1), self.index, slot, kind)
    }

    fn head(&self, slot: u16) -> Buf {
        self.heads.add(u64::from(slot) * HEADS_BYTES as u64)
    }

    /// Returns the memory for the head of a slot's reply.
    pub fn reply_head<'a>(&self, cx: &'a mut Cx<'_>, slot: u16) -> &'a mut [u8] {
        cx.memory(self.head(slot).add(REPLY_AT as u64), HEADS_BYTES - REPLY_AT)
    }

    /// Reads messages until there are none, or the turn of this session is over.
    fn read_messages(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        for _ in 0..MESSAGES_PER_TURN {
            if self.free.is_empty() || !self.readable {
                return;
            }
            let Some(data) = self.cursor.room(cx, &mut shared.receive_buffers) else {
                return self.arm(cx, cx.now_ns() + RETRY_NS);
            };
            let Some(slot) = self.free.pop() else { return };
            *self.slot(slot) = Slot { data, ..VACANT };
            let head = SendPiece { buf: self.head(slot), len: HEAD_BYTES as u32 };
            let read = cx.read_message(self.channel, &[head, SendPiece { buf: data, len: DATA_BYTES_MAX }]);
            let read = read.unwrap_or(-libc::ENODEV);
            if let Ok(len) = usize::try_from(read) {
                self.received(cx, shared, slot, len);
            } else {
                self.free.push(slot);
                self.read_failed(cx, shared, -read);
            }
        }
        // The turn is over. The session waits for a message next, which ends at once if there are more.
        self.readable = false;
    }

    pub fn net_done(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, kind: u64, slot: u16, result: i32) {
        match kind {
            KIND_AWAIT => {
                self.awaiting = false;
                self.readable = result >= 0 || result == -libc::EINTR;
            }
            KIND_REPLY => {
                if result == -libc::ENODEV {
                    self.connection_ended(cx, shared);
                }
                // After another error, such as ENOENT, the reply is not repeated: its caller no longer waits for it.
                self.vacate(cx, shared, slot);
            }
            _ => debug_assert!(false, "an unknown kind of token"),
        }
    }

    fn read_failed(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, errno: i32) {
        match errno {
            // The caller has given up meanwhile, or the read was interrupted.
            libc::ENOENT | libc::EINTR => {}
            libc::EAGAIN => self.readable = false,
            _ => self.connection_ended(cx, shared),
        }
    }

    /// Begins the requests that have entered the engine, unless the kernel has ended the connection. Each has its
    /// position in the engine's write order already ([`braid_engine::Shard::enter`]), so the check comes after that
    /// position is taken. If the connection has ended, the callers got an error and may write newer data through
    /// another mount: the requests are cancelled and change nothing.
    pub fn begin_entered(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        if !std::mem::take(&mut self.has_entered) {
            return;
        }
        let has_ended = cx.is_channel_ended(self.channel);
        cx.begin_or_cancel_entered(self.file.export().info().device, !has_ended);
        if has_ended {
            self.connection_ended(cx, shared);
        }
    }

    /// Handles the end of the connection by the kernel. Requests that wait are dropped: their callers got an error, and may have
    /// written newer data through another mount since.
    fn connection_ended(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        self.file.set_gone();
        self.stop(cx, shared);
    }

    fn received(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, len: usize) {
        let now_ns = cx.now_ns();
        let data = self.slot(slot).data;
        let beyond = len.saturating_sub(HEAD_BYTES).min(DATA_BYTES_MAX as usize);
        let mut rest = [0u8; 64];
        let seen = beyond.min(rest.len());
        rest[..seen].copy_from_slice(cx.bytes(data, seen.max(1)).get(..seen).unwrap_or_default());
        let head = cx.bytes(self.head(slot), HEAD_BYTES);
        let Ok(message) = ask::read(head, &rest[..seen], len) else {
            // The kernel sends no such message. Its caller would wait for a reply for ever, so the connection ends.
            debug_assert!(false, "a message of the kernel cannot be read");
            self.free.push(slot);
            return self.connection_ended(cx, shared);
        };
        let receive_buffer = match message.ask {
            Ask::Write { len, .. } if len > 0 => Some(self.cursor.keep(&mut shared.receive_buffers, len)),
            _ => None,
        };
        let it = self.slot(slot);
        (it.unique, it.ask, it.taken_ns, it.receive_buffer) = (message.unique, message.ask, now_ns, receive_buffer);
        if message.ask == Ask::Nothing {
            self.free.push(slot);
        } else {
            self.serve(cx, shared, slot);
        }
    }

    /// Sends the reply whose head is in the slot's memory, followed by `data`. The slot keeps its memory until the reply is sent.
    pub fn send(&mut self, cx: &mut Cx<'_>, slot: u16, head_bytes: usize, data: Option<SendPiece>) {
        let head = SendPiece { buf: self.head(slot).add(REPLY_AT as u64), len: head_bytes as u32 };
        let token = self.token(slot, KIND_REPLY);
        let begun = match data {
            Some(data) if data.len > 0 => cx.write_message(self.channel, &[head, data], token),
            _ => cx.write_message(self.channel, &[head], token),
        };
        debug_assert!(begun, "an open channel has room for every slot");
    }

    /// Releases a slot and all that it has.
    pub fn vacate(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16) {
        let it = std::mem::replace(self.slot(slot), VACANT);
        if it.own != Buf::NONE {
            cx.free(it.own, it.own_bytes);
        }
        if let Some(buffer) = it.receive_buffer {
            shared.receive_buffers.release(cx, buffer);
        }
        self.free.push(slot);
    }

    /// Takes the memory of a late I/O from its slot, and quarantines it until the kernel has returned that I/O.
    pub fn quarantine(&mut self, shared: &mut Shared, slot: u16) {
        let it = self.slot(slot);
        let (tag, buf, len) = (it.tag, it.own, it.own_bytes);
        if buf != Buf::NONE {
            it.own = Buf::NONE;
            shared.quarantine.push(Late { tag, buf, len, receive_buffer: None });
        } else if let Some(buffer) = it.receive_buffer.take() {
            shared.quarantine.push(Late { tag, buf, len, receive_buffer: Some(buffer) });
        }
    }

    /// Makes a slot wait. For [`Wait::Limits`] the caller also enters it in `held`.
    pub fn wait_for(&mut self, slot: u16, wait: Wait) {
        self.slot(slot).wait = wait;
        match wait {
            Wait::Order => self.parked.push_back(slot),
            Wait::Resources => self.starved.push_back(slot),
            Wait::Limits | Wait::None => {}
        }
    }

    /// Sets the session's timer to this time, unless it fires earlier already.
    pub fn arm(&mut self, cx: &mut Cx<'_>, due_ns: u64) {
        if self.armed_ns.is_none_or(|armed| due_ns < armed) && cx.timer_at(due_ns, self.token(0, KIND_TIMER)) {
            self.armed_ns = Some(due_ns);
        }
    }

    pub fn timer(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        self.armed_ns = None;
        let now_ns = cx.now_ns();
        while let Some(&Reverse((due, slot))) = self.held.peek()
            && due <= now_ns
        {
            self.held.pop();
            self.serve(cx, shared, slot);
        }
        if let Some(&Reverse((due, _))) = self.held.peek() {
            self.arm(cx, due);
        }
    }

    /// Retries the writes that wait for others.
    pub fn retry_parked(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        for _ in 0..self.parked.len() {
            if let Some(slot) = self.parked.pop_front() {
                self.serve(cx, shared, slot);
            }
        }
    }

    /// Stops serving: requests that wait are left to the next server of the connection, or fail where the kernel does not
    /// resubmit them.
    pub fn stop(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        self.stopping = true;
        self.readable = false;
        for slot in 0..SLOTS_MAX as u16 {
            if self.slot(slot).wait != Wait::None {
                self.drop_without_reply(cx, shared, slot);
            }
        }
        self.parked.clear();
        self.starved.clear();
        self.held.clear();
    }

    /// Whether requests that have not begun are left to the next server of the connection.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Retries requests that wait for resources, and reads messages. Called at the end of each turn in which the
    /// session had work. Returns true if the session has ended.
    pub fn settle(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) -> bool {
        if self.stats != ExportStats::default() {
            self.file.export().add_stats(&std::mem::take(&mut self.stats));
        }
        for _ in 0..self.starved.len() {
            let Some(slot) = self.starved.pop_front() else { break };
            self.serve(cx, shared, slot);
            if self.slot(slot).wait == Wait::Resources {
                break;
            }
        }
        if !self.starved.is_empty() {
            self.arm(cx, cx.now_ns() + RETRY_NS);
        }
        if self.stopping {
            return self.close(cx, shared);
        }
        if self.readable {
            self.read_messages(cx, shared);
        }
        if !self.readable {
            self.cursor.release(cx, &mut shared.receive_buffers);
            // Without a free slot, the session waits for messages again once one is free.
            if !self.awaiting && !self.free.is_empty() && !self.stopping {
                self.awaiting = cx.await_message(self.channel, self.token(0, KIND_AWAIT));
            }
        }
        false
    }

    fn close(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) -> bool {
        self.cursor.release(cx, &mut shared.receive_buffers);
        if !self.closed && self.free.len() == SLOTS_MAX {
            self.closed = true;
            cx.close_channel(self.channel);
        }
        if !self.closed || self.awaiting {
            return false;
        }
        cx.free(self.heads, SLOTS_MAX * HEADS_BYTES);
        self.file.detached();
        true
    }
}
