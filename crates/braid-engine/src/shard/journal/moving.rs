//! The ring moves: its disk has failed, is taken away, or has come.
//!
//! First a layout says that the ring is nowhere. Nothing is logged then; what slots were told to be logged they put in place, and
//! a flush of all members makes that durable. What no slot was told of waits. Then the control plane writes a head with a new run,
//! and publishes a layout with it: what waits is logged there. Numbers of batches go on, as slots of other shards may still name
//! them by the run before.

use super::{Flusher, Going, Journal, What};
use crate::io::{DeviceId, LeafSink};
use crate::layout::DeviceLayout;
use crate::parity::ParityNode;
use crate::planted::{Planted, planted};
use crate::shard::Shard;

impl Shard {
    /// The control plane waits until the ring can move.
    pub(in crate::shard) fn journal_quiesce(&mut self, id: u64, device: DeviceId, sink: &mut impl LeafSink) {
        let Some(journal) = self.journals.of(device) else { return self.tell_called(id) };
        if let Some(before) = journal.quiescing.replace(id) {
            self.tell_called(before);
        }
        self.journal_go(device, sink);
    }

    /// While the ring is nowhere: flushes what is in place, and says when that is all.
    pub(super) fn journal_quiet(&mut self, device: DeviceId, layout: &DeviceLayout, sink: &mut impl LeafSink) {
        // A batch on its way to a disk could land there after the ring has come back, or when the disk is somebody else's.
        let lands = |going: &Going| going.device == device && !going.held && matches!(going.what, What::Batch(_));
        if self.journals.ios.iter().flatten().any(lands) && !planted(Planted::MovedUnsettled) {
            return;
        }
        let Some(journal) = self.journals.of(device).filter(|journal| journal.flushing.is_none()) else { return };
        // It and all before it are durable, and slots were told so.
        let counted = journal.told;
        let Some(id) = journal.quiescing else { return };
        if journal.tail > counted || planted(Planted::MovedUnsettled) {
            journal.quiescing = None;
            return self.tell_called(id);
        }
        if journal.in_place() < counted {
            return;
        }
        let Some(at) = self.journals.ios.iter().position(Option::is_none) else { return };
        let journal = self.journals.of(device).expect("just found");
        journal.flushing = Some(counted);
        let run = journal.node.run;
        let what = What::Flush;
        self.journals.ios[at] = Some(Going { device, run, what, memory: None, lent: false, held: false });
        self.journal_submit(at, layout, sink);
    }

    /// The ring is elsewhere, and of another run: what waits goes on there.
    pub(super) fn journal_moved(&mut self, device: DeviceId, node: &ParityNode, tolerance: usize) {
        let journal = self.journals.of(device).expect("the ring of a journal moves");
        let mut next = Journal::new(device, node, tolerance);
        let told = journal.told;
        let settled = journal.batches.iter().all(|batch| batch.sequence > told || batch.pending == 0);
        debug_assert!(settled, "what was told is in place");
        next.queue.append(&mut journal.waiters);
        next.queue.append(&mut journal.queue);
        next.begun = std::mem::take(&mut journal.begun);
        (next.stilling, next.lacks) = (journal.stilling.take(), journal.lacks);
        (next.next, next.tail) = (journal.next, journal.next);
        (next.told, next.in_place) = (journal.next - 1, journal.next - 1);
        next.before = std::mem::take(&mut journal.before);
        next.before.push(journal.node.run);
        // What they wait for was answered before: it is in place, durably.
        let flushers: Vec<Flusher> = journal.flushers.drain(..).collect();
        *journal = next;
        for flusher in flushers {
            self.tell_waiter(flusher.who, Ok(()));
        }
    }
}
