//! Frees the space of batches: flushes, heads, and tails that pass batches; and answers the requests that wait for
//! these.

use crate::io::{DeviceId, LeafSink};
use crate::layout::DeviceLayout;
use crate::parity::RingState;
use crate::shard::Shard;
use crate::shard::journal_state::{InJournal, JournalIo, JournalIoKind, MARKS_MAX};

impl Shard {
    /// Begins a flush of all members, if it is needed and would free a batch.
    pub(super) fn journal_flush(&mut self, device: DeviceId, layout: &DeviceLayout, sink: &mut impl LeafSink) {
        let Some(journal) = self.journals.of(device) else { return };
        let wanted = journal.wants_room
            || journal.used() > journal.ring() / 2
            || journal.stripes.marks() > MARKS_MAX / 2
            || journal.degraded && journal.stripes.marks() > 0
            || !journal.flushers.is_empty();
        if !wanted || journal.flushing.is_some() {
            return;
        }
        let done = journal.in_place();
        // A flush request waits for everything that was logged before it: an earlier flush would not suffice.
        let enough = journal.wants_room || journal.flushers.first().is_none_or(|first| first.until <= done);
        if !enough || done < journal.tail {
            return;
        }
        let Some(at) = self.journals.ios.iter().position(Option::is_none) else { return };
        let Some(parity) = layout.parity() else { return };
        // If there is no memory for a head now, the flush waits: it is tried again when memory is released.
        let Ok(memory) = self.prepare_head(device, parity, sink) else { return };
        let journal = self.journals.of(device).expect("just found");
        journal.flushing = Some(done);
        let run = journal.node.run;
        self.journals.ios[at] =
            Some(JournalIo { device, run, what: JournalIoKind::Flush, memory, lent: false, held: false });
        self.journal_submit(at, layout, sink);
    }

    /// Processes a durable batch, or a completed flush or head.
    pub(super) fn journal_done(&mut self, device: DeviceId, what: JournalIoKind, pages: u32) {
        let journal = self.journals.of(device).expect("it was just found");
        match what {
            JournalIoKind::Flush | JournalIoKind::Head => {
                if what == JournalIoKind::Head {
                    journal.heads.done();
                }
                let done = journal.flushing.take().expect("a flush was in flight");
                journal.tail = done + 1;
                journal.tail_is_new = true;
            }
            JournalIoKind::Batch(sequence) => {
                journal.batches_in_flight -= 1;
                journal.pages -= pages;
                let batch = journal.batch(sequence).expect("a batch in flight is kept");
                batch.durable = true;
            }
        }
    }

    /// Acknowledges the requests of all batches that count now, and frees the space of those that are no longer needed.
    pub(super) fn acknowledge_batches(&mut self, device: DeviceId) {
        let mut acknowledged = std::mem::take(&mut self.journals.acknowledged);
        let journal = self.journals.of(device).expect("it was just found");
        let (mut tail, mut sequence) = (0, journal.acknowledged);
        while let Some(batch) = journal.batch(sequence + 1) {
            sequence += 1;
            if !batch.durable {
                break;
            }
            tail = batch.tail;
            let waiters = std::mem::take(&mut batch.waiters) as usize;
            journal.acknowledged = sequence;
            let these = journal.waiters.drain(..waiters);
            acknowledged.extend(these.map(|request| (request, sequence)));
        }
        while let Some(batch) = journal.batches.pop_front_if(|batch| batch.sequence < tail) {
            journal.forget(&batch);
            journal.wants_room = false;
        }
        let first = journal.batches.front().map_or(journal.next, |batch| batch.sequence);
        let alone = journal.node.ring_location != RingState::Members;
        let told_of = |(request, sequence)| (request, InJournal { sequence, alone });
        acknowledged.drain(..).map(told_of).for_each(|(request, place)| self.reply_logged(&request, Ok(place)));
        self.journals.acknowledged = acknowledged;
        loop {
            let Some(journal) = self.journals.of(device) else { return };
            let Some(at) = journal.flushers.iter().position(|flusher| flusher.until < first) else { return };
            let flusher = journal.flushers.remove(at);
            self.reply_waiter(flusher.waiter, Ok(()));
        }
    }
}
