//! What makes the space of batches free again: flushes, heads, tails that pass them, and who waits for these.

use super::{Going, InJournal, MARKS_MAX, What};
use crate::io::{DeviceId, LeafSink};
use crate::layout::DeviceLayout;
use crate::parity::RingPlace;
use crate::planted::{Planted, planted};
use crate::shard::Shard;

impl Shard {
    /// Begins to flush all members, if something needs it and something is in place.
    pub(super) fn journal_flush(&mut self, device: DeviceId, layout: &DeviceLayout, sink: &mut impl LeafSink) {
        let Some(journal) = self.journals.of(device) else { return };
        let wanted = journal.wants_room
            || journal.used() > journal.ring() / 2
            || journal.rows.marks() > MARKS_MAX / 2
            || journal.lacks && journal.rows.marks() > 0
            || !journal.flushers.is_empty();
        if !wanted || journal.flushing.is_some() {
            return;
        }
        let done = journal.in_place();
        // Who flushes waits for all that was logged before: a flush before that would not be enough.
        let enough = journal.wants_room || journal.flushers.first().is_none_or(|first| first.until <= done);
        if !enough || done < journal.tail {
            return;
        }
        let Some(at) = self.journals.ios.iter().position(Option::is_none) else { return };
        let Some(parity) = layout.parity() else { return };
        // Where there is no memory for a head now, the flush waits for some: whoever gives it back looks again.
        let Ok(memory) = self.prepare_head(device, parity, sink) else { return };
        let journal = self.journals.of(device).expect("just found");
        journal.flushing = Some(done);
        let run = journal.node.run;
        self.journals.ios[at] = Some(Going { device, run, what: What::Flush, memory, lent: false, held: false });
        self.journal_submit(at, layout, sink);
    }

    /// A batch is durable, or everything that was in place is.
    pub(super) fn journal_done(&mut self, device: DeviceId, what: What, pages: u32) {
        let journal = self.journals.of(device).expect("it was just found");
        match what {
            What::Flush | What::Head => {
                if what == What::Head {
                    journal.heads.done();
                }
                let done = journal.flushing.take().expect("a flush was under way");
                let done = if planted(Planted::TailAheadOfFlush) { journal.in_place() } else { done };
                journal.tail = done + 1;
                journal.tail_is_news = true;
            }
            What::Batch(sequence) => {
                journal.under_way -= 1;
                journal.pages -= pages;
                let batch = journal.batch(sequence).expect("a batch under way is kept");
                batch.durable = true;
            }
        }
    }

    /// Tells all whose batches count now, frees the space of those that are no longer needed.
    pub(super) fn journal_tell(&mut self, device: DeviceId) {
        let mut told = std::mem::take(&mut self.journals.told);
        let journal = self.journals.of(device).expect("it was just found");
        let (mut tail, mut sequence, mut others) = (0, journal.told, 0);
        while let Some(batch) = journal.batch(sequence + 1) {
            sequence += 1;
            if !batch.durable && !planted(Planted::BatchesOutOfOrder) {
                break;
            }
            if !batch.durable {
                others += batch.waiters as usize;
                continue;
            }
            tail = batch.tail;
            let waiters = std::mem::take(&mut batch.waiters) as usize;
            if others == 0 {
                journal.told = sequence;
            }
            let these = journal.waiters.drain(others..others + waiters);
            told.extend(these.map(|request| (request, sequence)));
        }
        let tail = if planted(Planted::RingReusedEarly) { journal.tail } else { tail };
        while let Some(batch) = journal.batches.pop_front_if(|batch| batch.sequence < tail) {
            journal.forget(&batch);
            journal.wants_room = false;
        }
        let first = journal.batches.front().map_or(journal.next, |batch| batch.sequence);
        let alone = journal.node.ring_on != RingPlace::Members;
        let told_of = |(request, sequence)| (request, InJournal { sequence, alone });
        told.drain(..).map(told_of).for_each(|(request, place)| self.tell_logged(&request, Ok(place)));
        self.journals.told = told;
        loop {
            let Some(journal) = self.journals.of(device) else { return };
            let Some(at) = journal.flushers.iter().position(|flusher| flusher.until < first) else { return };
            let flusher = journal.flushers.remove(at);
            self.tell_waiter(flusher.who, Ok(()));
        }
    }
}
