//! The requests of one connection, in a table of fixed size. The cookie on the wire consists of the slot's index and
//! its use count, so a reply finds its request without a map, and a reply to an earlier use of the slot is detected.

use std::collections::VecDeque;

use braid_engine::{Flags, Op};
use braid_ring::RemotePart;

use super::read_cursor::ReadCursor;

/// Maximum number of requests in flight on one connection: as many as Braid's server accepts.
pub(super) const SLOTS: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlotState {
    Free,
    /// Waiting to be sent.
    Unsent,
    /// Handed to the socket, at least partly.
    Sent,
}

#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) part: RemotePart,
    pub(super) state: SlotState,
    /// The data is written, and a flush follows because the server does not support FUA.
    pub(super) flushing: bool,
    /// The send that it is part of is in flight: its memory is in use.
    pub(super) in_send: bool,
    /// The server's reply, if it arrived during that send.
    pub(super) answer: Option<Result<(), i32>>,
    /// The read was abandoned: its reply is discarded.
    pub(super) abandoned: bool,
    /// When the request was sent.
    pub(super) sent_ns: u64,
    /// For a flush: the value of [`super::shared::Shared::written`] when it was sent.
    pub(super) mark: u64,
    /// For a read: the current range.
    pub(super) cursor: ReadCursor,
    count: u32,
}

impl Slot {
    /// Returns whether the request modifies the server's data.
    pub(super) fn changes(&self) -> bool {
        !matches!(self.part.op, Op::Read | Op::Flush)
    }

    /// Returns whether the request is a read that may be abandoned.
    pub(super) fn is_abandonable(&self) -> bool {
        self.part.op == Op::Read && self.part.flags.has(Flags::HAS_ALTERNATIVE) && !self.abandoned
    }

    pub(super) fn has_fua(&self) -> bool {
        self.part.op == Op::Write && self.part.flags.has(Flags::FUA)
    }
}

pub(super) struct Slots {
    all: Box<[Slot]>,
    free: Vec<u16>,
    /// Slots to be sent, in order.
    pub(super) unsent: VecDeque<u16>,
    /// Number of sent slots.
    pub(super) sent: usize,
    /// Number of reads that may be abandoned and were not.
    abandonable: usize,
}

impl Slots {
    pub(super) fn new() -> Slots {
        let part = RemotePart { io: 0, op: Op::Flush, flags: Flags::NONE, offset: 0, len: 0, at: 0, start_ns: 0 };
        let (state, answer) = (SlotState::Free, None);
        let (cursor, count) = (ReadCursor::default(), 0);
        let (flushing, in_send, abandoned) = (false, false, false);
        let empty = Slot { part, state, flushing, in_send, answer, abandoned, sent_ns: 0, mark: 0, cursor, count };
        Slots {
            all: vec![empty; SLOTS].into(),
            free: (0..SLOTS as u16).rev().collect(),
            unsent: VecDeque::with_capacity(SLOTS),
            sent: 0,
            abandonable: 0,
        }
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn in_use(&self) -> usize {
        SLOTS - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == SLOTS
    }

    /// Takes a slot for a part to be sent.
    pub(super) fn take(&mut self, part: RemotePart) -> Option<u16> {
        let index = self.free.pop()?;
        let slot = &mut self.all[usize::from(index)];
        let count = slot.count.wrapping_add(1);
        let (state, answer) = (SlotState::Unsent, None);
        let cursor = ReadCursor::of(&part);
        let (flushing, in_send, abandoned) = (false, false, false);
        *slot = Slot { part, state, flushing, in_send, answer, abandoned, sent_ns: 0, mark: 0, cursor, count };
        self.abandonable += usize::from(slot.is_abandonable());
        Some(index)
    }

    pub(super) fn give(&mut self, index: u16) {
        self.abandon(index);
        self.set(index, SlotState::Free);
        self.free.push(index);
    }

    /// Marks a slot as abandoned.
    pub(super) fn abandon(&mut self, index: u16) {
        let slot = &mut self.all[usize::from(index)];
        self.abandonable -= usize::from(slot.is_abandonable());
        slot.abandoned = true;
    }

    /// Returns whether any read may be abandoned.
    pub(super) fn has_abandonable(&self) -> bool {
        self.abandonable > 0
    }

    pub(super) fn set(&mut self, index: u16, state: SlotState) {
        let slot = &mut self.all[usize::from(index)];
        debug_assert_ne!(slot.state, state, "a state is entered once");
        self.sent -= usize::from(slot.state == SlotState::Sent);
        self.sent += usize::from(state == SlotState::Sent);
        slot.state = state;
    }

    pub(super) fn cookie(&self, index: u16) -> u64 {
        u64::from(self.all[usize::from(index)].count) << 16 | u64::from(index)
    }

    /// Returns the slot that a reply with this cookie belongs to.
    pub(super) fn find(&self, cookie: u64) -> Option<u16> {
        let index = cookie as u16;
        let slot = self.all.get(usize::from(index))?;
        (slot.state == SlotState::Sent && slot.answer.is_none() && self.cookie(index) == cookie).then_some(index)
    }

    /// Returns the slots in a state.
    pub(super) fn in_state(&self, state: SlotState) -> impl Iterator<Item = u16> {
        (0..SLOTS as u16).filter(move |index| self.all[usize::from(*index)].state == state)
    }
}

impl std::ops::Index<u16> for Slots {
    type Output = Slot;
    #[inline]
    fn index(&self, index: u16) -> &Slot {
        &self.all[usize::from(index)]
    }
}

impl std::ops::IndexMut<u16> for Slots {
    #[inline]
    fn index_mut(&mut self, index: u16) -> &mut Slot {
        &mut self.all[usize::from(index)]
    }
}
