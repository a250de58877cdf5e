//! The requests of one connection: a fixed table. A slot's place and its count are the cookie on the wire, so that a reply finds its
//! request without a map, and one that answers what has ended long ago is recognised.

use std::collections::VecDeque;

use braid_engine::{Flags, Op};
use braid_ring::RemotePart;

use super::stretch::Stretch;

/// Requests in flight on one connection; as many as Braid's own server takes.
pub(super) const SLOTS: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    /// Waits to be sent.
    Unsent,
    /// Given to the socket, or partly.
    Sent,
}

#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) part: RemotePart,
    pub(super) state: State,
    /// It was written, and is now flushed, for a server that has no FUA.
    pub(super) flushing: bool,
    /// The send that it is part of has not ended: its memory is in use.
    pub(super) in_send: bool,
    /// What the server has answered before that.
    pub(super) answer: Option<Result<(), i32>>,
    /// Nobody waits for it any more: what the server answers is thrown away.
    pub(super) left: bool,
    /// When it was sent.
    pub(super) sent_ns: u64,
    /// Of a flush: what had been written when it was sent.
    pub(super) mark: u64,
    /// Of a read: what of it is asked for.
    pub(super) stretch: Stretch,
    count: u32,
}

impl Slot {
    /// Whether the server's data are another when it has been carried out.
    pub(super) fn changes(&self) -> bool {
        !matches!(self.part.op, Op::Read | Op::Flush)
    }

    /// A read that may be given up.
    pub(super) fn may_be_left(&self) -> bool {
        self.part.op == Op::Read && self.part.flags.has(Flags::OTHERS) && !self.left
    }

    pub(super) fn has_fua(&self) -> bool {
        self.part.op == Op::Write && self.part.flags.has(Flags::FUA)
    }
}

pub(super) struct Slots {
    all: Box<[Slot]>,
    free: Vec<u16>,
    /// In the order in which they are sent.
    pub(super) unsent: VecDeque<u16>,
    /// How many the server has.
    pub(super) sent: usize,
    /// How many may be given up, and are waited for.
    may_be_left: usize,
}

impl Slots {
    pub(super) fn new() -> Slots {
        let part = RemotePart { io: 0, op: Op::Flush, flags: Flags::NONE, offset: 0, len: 0, at: 0, start_ns: 0 };
        let (state, answer) = (State::Free, None);
        let (stretch, count) = (Stretch::default(), 0);
        let (flushing, in_send, left) = (false, false, false);
        let empty = Slot { part, state, flushing, in_send, answer, left, sent_ns: 0, mark: 0, stretch, count };
        Slots {
            all: vec![empty; SLOTS].into(),
            free: (0..SLOTS as u16).rev().collect(),
            unsent: VecDeque::with_capacity(SLOTS),
            sent: 0,
            may_be_left: 0,
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

    /// A slot for a part, to be sent.
    pub(super) fn take(&mut self, part: RemotePart) -> Option<u16> {
        let index = self.free.pop()?;
        let slot = &mut self.all[usize::from(index)];
        let count = slot.count.wrapping_add(1);
        let (state, answer) = (State::Unsent, None);
        let stretch = Stretch::of(&part);
        let (flushing, in_send, left) = (false, false, false);
        *slot = Slot { part, state, flushing, in_send, answer, left, sent_ns: 0, mark: 0, stretch, count };
        self.may_be_left += usize::from(slot.may_be_left());
        Some(index)
    }

    pub(super) fn give(&mut self, index: u16) {
        self.leave(index);
        self.set(index, State::Free);
        self.free.push(index);
    }

    /// Nobody waits for it any more.
    pub(super) fn leave(&mut self, index: u16) {
        let slot = &mut self.all[usize::from(index)];
        self.may_be_left -= usize::from(slot.may_be_left());
        slot.left = true;
    }

    /// Whether any is waited for that may be given up.
    pub(super) fn any_may_be_left(&self) -> bool {
        self.may_be_left > 0
    }

    pub(super) fn set(&mut self, index: u16, state: State) {
        let slot = &mut self.all[usize::from(index)];
        debug_assert_ne!(slot.state, state, "a state is entered once");
        self.sent -= usize::from(slot.state == State::Sent);
        self.sent += usize::from(state == State::Sent);
        slot.state = state;
    }

    pub(super) fn cookie(&self, index: u16) -> u64 {
        u64::from(self.all[usize::from(index)].count) << 16 | u64::from(index)
    }

    /// The slot that a reply with this cookie answers.
    pub(super) fn find(&self, cookie: u64) -> Option<u16> {
        let index = cookie as u16;
        let slot = self.all.get(usize::from(index))?;
        (slot.state == State::Sent && slot.answer.is_none() && self.cookie(index) == cookie).then_some(index)
    }

    /// The slots in this state.
    pub(super) fn in_state(&self, state: State) -> impl Iterator<Item = u16> {
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
