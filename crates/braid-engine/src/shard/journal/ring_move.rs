//! Moves the ring: its disk has failed, is removed, or was added.
//!
//! First a layout says that the ring is nowhere. Nothing is logged then; slots write their acknowledged entries in
//! place, and a flush of all members makes that durable. Entries that were not acknowledged wait. Then the control
//! plane writes a head with a new run, and publishes a layout with it: the waiting entries are logged there. The
//! batches' sequence numbers continue, because slots of other shards may still name batches of the previous run.

use crate::io::{DeviceId, LeafSink};
use crate::layout::DeviceLayout;
use crate::parity::ParityNode;
use crate::shard::Shard;
use crate::shard::journal_state::{Flusher, Journal, JournalIo, JournalIoKind};

impl Shard {
    /// Starts a call that ends when the ring can move.
    pub(in crate::shard) fn journal_quiesce(&mut self, id: u64, device: DeviceId, sink: &mut impl LeafSink) {
        let Some(journal) = self.journals.of(device) else { return self.report_called(id) };
        if let Some(before) = journal.quiescing.replace(id) {
            self.report_called(before);
        }
        self.journal_advance(device, sink);
    }

    /// While the ring is nowhere: flushes what is in place, and ends the call when all acknowledged entries are
    /// durable.
    pub(super) fn journal_prepare_move(&mut self, device: DeviceId, layout: &DeviceLayout, sink: &mut impl LeafSink) {
        // A batch in flight could be written after the ring has come back, or when the disk has another owner.
        let lands =
            |going: &JournalIo| going.device == device && !going.held && matches!(going.what, JournalIoKind::Batch(_));
        if self.journals.ios.iter().flatten().any(lands) {
            return;
        }
        let Some(journal) = self.journals.of(device).filter(|journal| journal.flushing.is_none()) else { return };
        // This batch and all earlier ones are durable and acknowledged.
        let counted = journal.acknowledged;
        let Some(id) = journal.quiescing else { return };
        if journal.tail > counted {
            journal.quiescing = None;
            return self.report_called(id);
        }
        if journal.in_place() < counted {
            return;
        }
        let Some(at) = self.journals.ios.iter().position(Option::is_none) else { return };
        let journal = self.journals.of(device).expect("just found");
        journal.flushing = Some(counted);
        let run = journal.node.run;
        let what = JournalIoKind::Flush;
        self.journals.ios[at] = Some(JournalIo { device, run, what, memory: None, lent: false, held: false });
        self.journal_submit(at, layout, sink);
    }

    /// Replaces a journal whose ring has moved, with another run: waiting requests continue there.
    pub(super) fn journal_moved(&mut self, device: DeviceId, node: &ParityNode, tolerance: usize) {
        let journal = self.journals.of(device).expect("the ring of a journal moves");
        let mut next = Journal::new(device, node, tolerance);
        let acknowledged = journal.acknowledged;
        let settled = journal.batches.iter().all(|batch| batch.sequence > acknowledged || batch.pending == 0);
        debug_assert!(settled, "acknowledged batches are in place");
        next.queue.append(&mut journal.waiters);
        next.queue.append(&mut journal.queue);
        next.incomplete = std::mem::take(&mut journal.incomplete);
        (next.mark_drain, next.degraded) = (journal.mark_drain.take(), journal.degraded);
        (next.next, next.tail) = (journal.next, journal.next);
        (next.acknowledged, next.in_place) = (journal.next - 1, journal.next - 1);
        next.before = std::mem::take(&mut journal.before);
        next.before.push(journal.node.run);
        // What they wait for was answered before: it is durable in place.
        let flushers: Vec<Flusher> = journal.flushers.drain(..).collect();
        *journal = next;
        for flusher in flushers {
            self.reply_waiter(flusher.waiter, Ok(()));
        }
    }
}
