//! Reads that take unusually long are given up where another disk has the same: that one is asked instead, and answers first.
//!
//! Of a read that was sent nothing uses the memory until its data come: it is free at once, and what the server answers after all is
//! thrown away. Until then it counts as unanswered, and one that could not be sent until there is a connection, so that a server which
//! makes no progress is still found out.

use braid_engine::Op;
use braid_ring::{RemotePart, SLOW_ERRNO};

use super::{MS, Reading, SLOTS, Session, State, Wire};

/// Between two looks for reads that are slow, where any may be given up.
const GLANCE_NS: u64 = 10 * MS;
/// A read is slow when it takes so many times as long as usual (as a shift), and at least so long; and so long where nobody knows what is usual.
const SLOW_SHIFT: u32 = 3;
const SLOW_LEAST_NS: u64 = 20 * MS;
const SLOW_UNKNOWN_NS: u64 = 250 * MS;
/// From so long on twice as long as usual is slow: one answer that came late must not keep all others from being given up.
const SLOW_MOST_NS: u64 = 500 * MS;
/// What is usual follows a new figure by one part in so many (as a shift).
const FOLLOW_SHIFT: u32 = 3;

impl Session {
    /// A part has ended: where it was a read, so long it took.
    pub(super) fn note_read(&mut self, part: &RemotePart, now_ns: u64) {
        if part.op != Op::Read {
            return;
        }
        let took = now_ns.saturating_sub(part.start_ns).max(1);
        let usual = self.usual_read_ns;
        self.usual_read_ns = match usual {
            0 => took,
            _ if took >= usual => usual + ((took - usual) >> FOLLOW_SHIFT),
            _ => usual - ((usual - took) >> FOLLOW_SHIFT),
        };
    }

    /// Whether there may be a read that can be given up.
    pub(super) fn may_leave_reads(&self, wire: &impl Wire) -> bool {
        self.slots.any_may_be_left() || self.shared.fenced.is_some() && wire.waiting_since_ns().is_some()
    }

    /// Gives up the reads that others may answer, and that have waited for longer than is usual.
    #[cold]
    pub(super) fn leave_slow_reads(&mut self, wire: &mut impl Wire) {
        let now = wire.now_ns();
        self.next_glance_ns = now + GLANCE_NS;
        let limit = match self.usual_read_ns {
            0 => SLOW_UNKNOWN_NS,
            usual => (usual << SLOW_SHIFT).clamp(SLOW_LEAST_NS, SLOW_MOST_NS.max(2 * usual)),
        };
        if let Some(since) = wire.give_up_reads(now, limit) {
            self.left_since_ns.get_or_insert(since);
        }
        // What is being received comes.
        let receives = match self.reading {
            Reading::Data { slot, .. } | Reading::Direct { slot, .. } => Some(slot),
            _ => None,
        };
        for index in 0..SLOTS as u16 {
            let slot = &self.slots[index];
            let waits = slot.state != State::Free && slot.may_be_left() && slot.answer.is_none();
            if !waits || receives == Some(index) || !slot.part.is_slow(now, limit) {
                continue;
            }
            let part = slot.part;
            if slot.state == State::Unsent {
                self.slots.unsent.retain(|unsent| *unsent != index);
                self.slots.give(index);
                self.left_since_ns.get_or_insert(part.start_ns);
            } else {
                self.slots.leave(index);
            }
            wire.done(&part, Err(SLOW_ERRNO));
        }
    }
}
