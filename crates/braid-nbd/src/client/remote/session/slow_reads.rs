//! Abandons slow reads whose data another disk holds: the reader then reads that disk.
//!
//! A sent read does not use its memory until its data arrives. So the session can return the memory when it abandons
//! the read, and discards a late reply. Until the reply arrives the read still counts for the time limits; a read that
//! was not sent yet counts until a connection is established. A server that makes no progress is therefore still
//! detected.

use braid_engine::Op;
use braid_ring::{RemotePart, SLOW_ERRNO};

use super::{MS, Reading, SLOTS, Session, SlotState, Wire};

/// Interval between checks for slow reads, while any may be abandoned.
const SLOW_CHECK_NS: u64 = 10 * MS;
/// A read is slow after 8 times the average latency (a shift by 3), within the limits below.
const SLOW_SHIFT: u32 = 3;
/// No read is slow before this time.
const SLOW_MIN_NS: u64 = 20 * MS;
/// A read is slow after this time while the average is unknown.
const SLOW_UNKNOWN_NS: u64 = 250 * MS;
/// A read is slow after this time or twice the average, whichever is longer, even if 8 times the average is more. A few
/// late replies raise the average, and must not keep other reads from being abandoned.
const SLOW_MAX_NS: u64 = 500 * MS;
/// Weight of a new latency in the moving average (as a shift).
const AVERAGE_SHIFT: u32 = 3;

impl Session {
    /// Updates the average latency when a part has ended, if it is a read.
    pub(super) fn record_read_latency(&mut self, part: &RemotePart, now_ns: u64) {
        if part.op != Op::Read {
            return;
        }
        let took = now_ns.saturating_sub(part.start_ns).max(1);
        let average = self.average_read_ns;
        self.average_read_ns = match average {
            0 => took,
            _ if took >= average => average + ((took - average) >> AVERAGE_SHIFT),
            _ => average - ((average - took) >> AVERAGE_SHIFT),
        };
    }

    /// Returns whether there may be a read to abandon.
    pub(super) fn may_abandon_reads(&self, wire: &impl Wire) -> bool {
        self.slots.has_abandonable() || self.shared.fenced.is_some() && wire.waiting_since_ns().is_some()
    }

    /// Abandons reads that another disk can serve and that have waited for too long.
    #[cold]
    pub(super) fn abandon_slow_reads(&mut self, wire: &mut impl Wire) {
        let now = wire.now_ns();
        self.next_slow_check_ns = now + SLOW_CHECK_NS;
        let limit = match self.average_read_ns {
            0 => SLOW_UNKNOWN_NS,
            average => (average << SLOW_SHIFT).clamp(SLOW_MIN_NS, SLOW_MAX_NS.max(2 * average)),
        };
        if let Some(since) = wire.give_up_reads(now, limit) {
            self.abandoned_since_ns.get_or_insert(since);
        }
        // A read whose data is arriving is not abandoned.
        let receives = match self.reading {
            Reading::Data { slot, .. } | Reading::Direct { slot, .. } => Some(slot),
            _ => None,
        };
        for index in 0..SLOTS as u16 {
            let slot = &self.slots[index];
            let waits = slot.state != SlotState::Free && slot.is_abandonable() && slot.answer.is_none();
            if !waits || receives == Some(index) || !slot.part.is_slow(now, limit) {
                continue;
            }
            let part = slot.part;
            if slot.state == SlotState::Unsent {
                self.slots.unsent.retain(|unsent| *unsent != index);
                self.slots.give(index);
                self.abandoned_since_ns.get_or_insert(part.start_ns);
            } else {
                self.slots.abandon(index);
            }
            wire.done(&part, Err(SLOW_ERRNO));
        }
    }
}
