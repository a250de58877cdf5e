//! One file on one shard: messages are read while there are any, each into a slot of its own, and answered in any order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use braid_engine::Buf;
use braid_nbd::ExportStats;
use braid_ring::{CHANNEL_CALLS_MAX, ChannelId, Cx, SendPiece};

use super::landing::Lane;
use super::patch::Step;
use super::{Attach, Late, Shared, token};
use crate::ask::{self, Ask};
use crate::file::FuseFile;
use crate::wire::{DATA_BYTES_MAX, HEAD_BYTES};

/// Messages of one file on one shard that may be unanswered at a time; more wait in the kernel.
pub(super) const SLOTS_MAX: usize = 128;
/// Messages that are read before others of the shard have their turn.
const MESSAGES_A_TURN: usize = 32;
/// Room for a slot's head as it comes, and for the head of its answer.
const ROOM_BYTES: usize = 256;
const ANSWER_AT: usize = 128;
/// Until memory, or room in the engine, is asked for again.
const AGAIN_NS: u64 = 1_000_000;

const _: () = assert!(SLOTS_MAX <= CHANNEL_CALLS_MAX);

/// Kinds of tokens.
const KIND_AWAIT: u64 = 1;
const KIND_ANSWER: u64 = 2;
const KIND_TIMER: u64 = 3;

/// What waits, and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// It is being worked on.
    Not,
    /// For the limits of its export.
    Limits,
    /// For other writes.
    Order,
    /// For memory or room in the engine, or for its turn.
    Room,
}

/// One message, until it is answered.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub unique: u64,
    pub ask: Ask,
    pub taken_ns: u64,
    /// Its limits have been asked.
    pub admitted: bool,
    pub wait: Wait,
    /// Where the data of a WRITE lies.
    pub landing: Option<u16>,
    pub data: Buf,
    /// Memory of its own, for what is read.
    pub own: Buf,
    pub own_bytes: usize,
    pub step: Step,
    /// It is one of several writes, or alone.
    pub shares: bool,
    pub alone: bool,
    /// The engine has it.
    pub running: bool,
    /// It was asked a second time.
    pub again: bool,
    pub tag: u64,
    /// The file's size when it was first looked at.
    pub size_bytes: Option<u64>,
    /// Up to here it has been looked for a hole, or for data.
    pub sought: u64,
}

const VACANT: Slot = Slot {
    unique: 0,
    ask: Ask::Nothing,
    taken_ns: 0,
    admitted: false,
    wait: Wait::Not,
    landing: None,
    data: Buf::NONE,
    own: Buf::NONE,
    own_bytes: 0,
    step: Step::Begin,
    shares: false,
    alone: false,
    running: false,
    again: false,
    tag: 0,
    size_bytes: None,
    sought: 0,
};

/// One file on one shard.
pub(super) struct Session {
    pub file: Arc<FuseFile>,
    pub dirty: bool,
    pub index: u16,
    count: u64,
    channel: ChannelId,
    rooms: Buf,
    slots: Box<[Slot]>,
    free: Vec<u16>,
    lane: Lane,
    /// There may be messages.
    hungry: bool,
    awaiting: bool,
    stopping: bool,
    closed: bool,
    /// Requests wait in the engine to be begun: see [`Session::begin_entered`].
    pub has_entered: bool,
    /// What waits for the order of writes, and for room.
    pub parked: VecDeque<u16>,
    pub starved: VecDeque<u16>,
    pub held: BinaryHeap<Reverse<(u64, u16)>>,
    /// When its timer rings.
    armed_ns: Option<u64>,
    pub stats: ExportStats,
}

impl Session {
    /// A file is given to this shard. The error gives it back: there is no memory, or no place for its channel.
    pub fn new(cx: &mut Cx<'_>, index: u16, count: u64, attach: Attach) -> Result<Box<Session>, Arc<FuseFile>> {
        let Attach { file, fd } = attach;
        let Some(rooms) = cx.alloc(SLOTS_MAX * ROOM_BYTES) else { return Err(file) };
        let Ok(channel) = cx.add_channel(fd) else {
            cx.free(rooms, SLOTS_MAX * ROOM_BYTES);
            return Err(file);
        };
        Ok(Box::new(Session {
            file,
            dirty: false,
            index,
            count,
            channel,
            rooms,
            slots: vec![VACANT; SLOTS_MAX].into(),
            free: (0..SLOTS_MAX as u16).rev().collect(),
            lane: Lane::default(),
            hungry: false,
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

    fn room(&self, slot: u16) -> Buf {
        self.rooms.add(u64::from(slot) * ROOM_BYTES as u64)
    }

    /// Where the answer of a slot is put together.
    pub fn answer_room<'a>(&self, cx: &'a mut Cx<'_>, slot: u16) -> &'a mut [u8] {
        cx.memory(self.room(slot).add(ANSWER_AT as u64), ROOM_BYTES - ANSWER_AT)
    }

    /// Reads messages until there are none, or others have to have their turn.
    fn read_more(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        for _ in 0..MESSAGES_A_TURN {
            if self.free.is_empty() || !self.hungry {
                return;
            }
            let Some(data) = self.lane.room(cx, &mut shared.landings) else {
                return self.arm(cx, cx.now_ns() + AGAIN_NS);
            };
            let Some(slot) = self.free.pop() else { return };
            *self.slot(slot) = Slot { data, ..VACANT };
            let head = SendPiece { buf: self.room(slot), len: HEAD_BYTES as u32 };
            let read = cx.read_message(self.channel, &[head, SendPiece { buf: data, len: DATA_BYTES_MAX }]);
            let read = read.unwrap_or(-libc::ENODEV);
            if let Ok(len) = usize::try_from(read) {
                self.came(cx, shared, slot, len);
            } else {
                self.free.push(slot);
                self.not_read(cx, shared, -read);
            }
        }
        // Should there be more, waiting for it ends at once.
        self.hungry = false;
    }

    pub fn net_done(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, kind: u64, slot: u16, result: i32) {
        match kind {
            KIND_AWAIT => {
                self.awaiting = false;
                self.hungry = result >= 0 || result == -libc::EINTR;
            }
            KIND_ANSWER => {
                if result == -libc::ENODEV {
                    self.ended(cx, shared);
                }
                // Other errors tell that nobody waits for it any more.
                self.vacate(cx, shared, slot);
            }
            _ => debug_assert!(false, "there is no such kind of token"),
        }
    }

    fn not_read(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, errno: i32) {
        match errno {
            // Whoever asked has gone meanwhile, or the shard was interrupted.
            libc::ENOENT | libc::EINTR => {}
            libc::EAGAIN => self.hungry = false,
            _ => self.ended(cx, shared),
        }
    }

    /// Begins the requests that have entered the engine, if the kernel has not ended the connection: each has its place in the order of writes by
    /// now ([`braid_engine::Shard::enter`]). Otherwise their callers got an error, and may write newer data through another mount: nothing
    /// is changed.
    pub fn begin_entered(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        if !std::mem::take(&mut self.has_entered) {
            return;
        }
        let has_ended = cx.is_channel_ended(self.channel);
        cx.settle_entered(self.file.export().info().device, !has_ended);
        if has_ended {
            self.ended(cx, shared);
        }
    }

    /// The kernel has ended the connection. Requests that wait are dropped: their callers got an error, and may have written newer data
    /// through another mount since.
    fn ended(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        self.file.set_gone();
        self.stop(cx, shared);
    }

    fn came(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16, len: usize) {
        let now_ns = cx.now_ns();
        let data = self.slot(slot).data;
        let beyond = len.saturating_sub(HEAD_BYTES).min(DATA_BYTES_MAX as usize);
        let mut rest = [0u8; 64];
        let seen = beyond.min(rest.len());
        rest[..seen].copy_from_slice(cx.bytes(data, seen.max(1)).get(..seen).unwrap_or_default());
        let head = cx.bytes(self.room(slot), HEAD_BYTES);
        let Ok(message) = ask::read(head, &rest[..seen], len) else {
            // The kernel sends none such. Without an answer its asker would wait for ever: end it all.
            debug_assert!(false, "a message of the kernel cannot be read");
            self.free.push(slot);
            return self.ended(cx, shared);
        };
        let landing = match message.ask {
            Ask::Write { len, .. } if len > 0 => Some(self.lane.keep(&mut shared.landings, len)),
            _ => None,
        };
        let it = self.slot(slot);
        (it.unique, it.ask, it.taken_ns, it.landing) = (message.unique, message.ask, now_ns, landing);
        if message.ask == Ask::Nothing {
            self.free.push(slot);
        } else {
            self.serve(cx, shared, slot);
        }
    }

    /// Sends the answer that stands in the slot's room, and `data` behind it. All that the slot has stays until it is sent.
    pub fn send(&mut self, cx: &mut Cx<'_>, slot: u16, head_bytes: usize, data: Option<SendPiece>) {
        let head = SendPiece { buf: self.room(slot).add(ANSWER_AT as u64), len: head_bytes as u32 };
        let token = self.token(slot, KIND_ANSWER);
        let begun = match data {
            Some(data) if data.len > 0 => cx.write_message(self.channel, &[head, data], token),
            _ => cx.write_message(self.channel, &[head], token),
        };
        debug_assert!(begun, "an open channel has room for every slot");
    }

    /// The slot is done with.
    pub fn vacate(&mut self, cx: &mut Cx<'_>, shared: &mut Shared, slot: u16) {
        let it = std::mem::replace(self.slot(slot), VACANT);
        if it.own != Buf::NONE {
            cx.free(it.own, it.own_bytes);
        }
        if let Some(landing) = it.landing {
            shared.landings.give_back(cx, landing);
        }
        self.free.push(slot);
    }

    /// The kernel may still touch the memory of an I/O that was too late: it is kept until that ends.
    pub fn quarantine(&mut self, shared: &mut Shared, slot: u16) {
        let it = self.slot(slot);
        let (tag, buf, len) = (it.tag, it.own, it.own_bytes);
        if buf != Buf::NONE {
            it.own = Buf::NONE;
            shared.quarantine.push(Late { tag, buf, len, landing: None });
        } else if let Some(landing) = it.landing.take() {
            shared.quarantine.push(Late { tag, buf, len, landing: Some(landing) });
        }
    }

    /// Lets a slot wait.
    pub fn wait_for(&mut self, slot: u16, wait: Wait) {
        self.slot(slot).wait = wait;
        match wait {
            Wait::Order => self.parked.push_back(slot),
            Wait::Room => self.starved.push_back(slot),
            Wait::Limits | Wait::Not => {}
        }
    }

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

    /// Other writes have ended.
    pub fn look_again(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        for _ in 0..self.parked.len() {
            if let Some(slot) = self.parked.pop_front() {
                self.serve(cx, shared, slot);
            }
        }
    }

    /// Serves no more: what waits is left to whoever serves next, or fails where the kernel does not give it again.
    pub fn stop(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) {
        self.stopping = true;
        self.hungry = false;
        for slot in 0..SLOTS_MAX as u16 {
            if self.slot(slot).wait != Wait::Not {
                self.drop_unanswered(cx, shared, slot);
            }
        }
        self.parked.clear();
        self.starved.clear();
        self.held.clear();
    }

    /// Whether what is not begun is left to whoever serves next.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Once a turn, after everything else; true: it is over.
    pub fn settle(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) -> bool {
        if self.stats != ExportStats::default() {
            self.file.export().add(&std::mem::take(&mut self.stats));
        }
        for _ in 0..self.starved.len() {
            let Some(slot) = self.starved.pop_front() else { break };
            self.serve(cx, shared, slot);
            if self.slot(slot).wait == Wait::Room {
                break;
            }
        }
        if !self.starved.is_empty() {
            self.arm(cx, cx.now_ns() + AGAIN_NS);
        }
        if self.stopping {
            return self.leave(cx, shared);
        }
        if self.hungry {
            self.read_more(cx, shared);
        }
        if !self.hungry {
            self.lane.rest(cx, &mut shared.landings);
            // With no slot left it is heard once one is free.
            if !self.awaiting && !self.free.is_empty() && !self.stopping {
                self.awaiting = cx.await_message(self.channel, self.token(0, KIND_AWAIT));
            }
        }
        false
    }

    fn leave(&mut self, cx: &mut Cx<'_>, shared: &mut Shared) -> bool {
        self.lane.rest(cx, &mut shared.landings);
        if !self.closed && self.free.len() == SLOTS_MAX {
            self.closed = true;
            cx.close_channel(self.channel);
        }
        if !self.closed || self.awaiting {
            return false;
        }
        cx.free(self.rooms, SLOTS_MAX * ROOM_BYTES);
        self.file.detached();
        true
    }
}
