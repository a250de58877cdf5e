//! The home shard's part of the journal of an array with parity: it writes batches, and frees their space.
//!
//! This module calls the journal's unit, a slice of a stripe of the geometry, a *stripe*. A batch holds what was
//! requested since the previous one: entries with data and parity, or marks of full-stripe writes in flight. It is
//! written to one member more than the array may lose, and counts once it and all earlier batches are durable there.
//! Its space is reused when all its entries are in place, all members have flushed after that, and a batch that states
//! so is durable. The order of these steps is in rules 6 and 7 for arrays (`docs/internals/ordering-rules.md`); the
//! format in [`braid_format::journal`].

mod batch;
mod head;
mod ios;
mod retire_marks;
mod ring_move;
mod space;

use braid_format::journal::ENTRIES_MAX;

use self::batch::BATCHES_MAX;
use super::journal_state::{Flusher, InJournal, Journal, JournalIo, JournalIoKind, LogRequest, Waiter};
use super::{Shard, ShardMessage};
use crate::io::{DeviceId, ErrorKind, LeafSink, ShardId};
use crate::mirror::Mirrored;
use crate::parity::RingState;

impl Shard {
    /// Processes a slot's request for an entry.
    pub(super) fn journal_log(&mut self, device: DeviceId, request: LogRequest, sink: &mut impl LeafSink) {
        let Some(journal) = self.journals.of(device) else {
            return self.reply_logged(&request, Err(ErrorKind::NoDevice));
        };
        let from = usize::from(request.from.0);
        if journal.incomplete.len() <= from {
            journal.incomplete.resize_with(from + 1, Vec::new);
        }
        let incomplete = &mut journal.incomplete[from];
        incomplete.push(request);
        if request.last {
            journal.queue.extend(incomplete.drain(..));
            self.journal_advance(device, sink);
        }
    }

    /// Processes the report that an entry of a batch is in place, or never will be.
    pub(super) fn journal_in_place(&mut self, device: DeviceId, run: u64, sequence: u64, sink: &mut impl LeafSink) {
        let of_run = |journal: &&mut Journal| journal.node.run == run || journal.before.contains(&run);
        let Some(journal) = self.journals.of(device).filter(of_run) else { return };
        let batch = journal.batch(sequence).expect("a batch with entries that are not in place is kept");
        batch.pending -= 1;
        if batch.pending == 0 {
            self.journal_advance(device, sink);
        }
    }

    /// Processes a flush: everything that was answered before is to be made durable.
    pub(super) fn journal_settle(
        &mut self,
        device: DeviceId,
        (from, slot, generation): (ShardId, u32, u32),
        sink: &mut impl LeafSink,
    ) {
        let Some(journal) = self.journals.of(device) else {
            return self.reply_settled(from, slot, generation, Err(ErrorKind::NoDevice));
        };
        // With several copies in the journal, everything but marks is durable there; with a single copy, only what is
        // in place and flushed is durable. A mark that is not retired on a disk would make its stripe unreadable after
        // a crash with a loss, wherever the ring is.
        let several = journal.node.ring_location == RingState::Members;
        let durable = journal.stripes.marks() == 0 && (several || journal.is_flushed());
        if durable {
            return self.reply_settled(from, slot, generation, Ok(()));
        }
        let until = journal.next - 1;
        journal.flushers.push(Flusher { waiter: Waiter::Slot(from, slot, generation), until });
        self.journal_advance(device, sink);
    }

    /// Starts a call that ends when everything that is in the journal now is retired.
    pub(super) fn journal_retire(&mut self, id: u64, device: DeviceId, sink: &mut impl LeafSink) {
        match self.journals.of(device) {
            Some(journal) if !journal.batches.is_empty() && journal.node.ring_location != RingState::Moving => {
                let until = journal.next - 1;
                journal.flushers.push(Flusher { waiter: Waiter::Call(id), until });
                self.journal_advance(device, sink);
            }
            _ => self.report_called(id),
        }
    }

    /// Flushes and writes batches as far as possible now.
    fn journal_advance(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        let Some(of) = self.devices.get(device) else { return };
        let Some(layout) = of.current.clone().filter(|_| !of.frozen) else { return };
        let Some(mirror) = layout.mirror() else { return };
        if mirror.failed {
            return self.journal_refuse(device, ErrorKind::Failed);
        }
        if mirror.parity.as_deref().is_some_and(|parity| parity.node.ring_location == RingState::Moving) {
            return self.journal_prepare_move(device, &layout, sink);
        }
        self.journal_flush(device, &layout, sink);
        while self.journal_batch(device, &layout, sink) {}
        // Entries that were not accepted for lack of room may need a flush that is possible now.
        self.journal_flush(device, &layout, sink);
    }

    /// Advances all journals: they share their I/Os and their memory, and may wait for what one of them has released.
    pub(super) fn journals_advance(&mut self, sink: &mut impl LeafSink) {
        for at in 0..self.journals.list.len() {
            if let Some(device) = self.journals.list.get(at).map(|journal| journal.device) {
                self.journal_advance(device, sink);
            }
        }
    }

    /// Fails all requests that wait for the journal.
    fn journal_refuse(&mut self, device: DeviceId, kind: ErrorKind) {
        self.end_mark_drain(device);
        let Some(journal) = self.journals.of(device) else { return };
        let mut requests: Vec<LogRequest> = journal.queue.drain(..).collect();
        requests.extend(journal.incomplete.iter_mut().flat_map(|incomplete| incomplete.drain(..)));
        // None of them is written in place.
        requests.extend(journal.waiters.drain(..));
        journal.batches.iter_mut().for_each(|batch| batch.waiters = 0);
        journal.refused = true;
        let mut flushers: Vec<Flusher> = journal.flushers.drain(..).collect();
        flushers.extend(journal.quiescing.take().map(|id| Flusher { waiter: Waiter::Call(id), until: 0 }));
        requests.iter().for_each(|request| self.reply_logged(request, Err(kind)));
        for flusher in flushers {
            self.reply_waiter(flusher.waiter, Err(kind));
        }
    }

    /// Adopts a published layout.
    pub(super) fn journal_published(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        let current = self.devices.get(device).and_then(|of| of.current.clone());
        let served = current.as_ref().and_then(|layout| layout.mirror()).and_then(|mirror| {
            let parity = mirror.parity.as_deref()?;
            (mirror.regions.home() == self.id).then_some((parity, mirror.failed))
        });
        let Some((parity, failed)) = served else {
            self.journal_refuse(device, ErrorKind::NoDevice);
            self.journals.list.retain(|journal| journal.device != device);
            self.journal_free_held(device, 0);
            // Another array may wait for what it has released.
            return self.journals_advance(sink);
        };
        let run = parity.node.run;
        let moving = parity.node.ring_location == RingState::Moving;
        match self.journals.of(device) {
            Some(journal) if journal.node.run == run => {
                journal.node.rings.clone_from(&parity.node.rings);
                journal.node.ring_location = parity.node.ring_location;
            }
            Some(_) => {
                self.journal_moved(device, &parity.node, parity.count);
                self.journal_free_held(device, run);
            }
            None => {
                self.journal_free_held(device, run);
                self.journals.acknowledged.reserve(BATCHES_MAX * ENTRIES_MAX);
                self.journals.list.push(Journal::new(device, &parity.node, parity.count));
            }
        }
        if failed {
            return self.journal_refuse(device, ErrorKind::Failed);
        }
        let layout = current.expect("it serves");
        debug_assert!(
            self.journals.of(device).is_none_or(|journal| !journal.refused),
            "a failed array needs a recovery"
        );
        let degraded = layout.mirror().is_some_and(Mirrored::is_degraded);
        if let Some(journal) = self.journals.of(device) {
            // After a crash now, stripes that are only marked could not be read.
            (journal.degraded, journal.wants_room) =
                (degraded, journal.wants_room || degraded && journal.stripes.marks() > 0);
            let serves = |leaf| layout.mirror().is_some_and(|mirror| mirror.role_of(leaf).is_some());
            journal.node.marks.retain_failed(serves);
        }
        for at in 0..self.journals.ios.len() {
            // A batch that is not in the ring when it moves is logged again.
            let stays = |going: &JournalIo| moving && matches!(going.what, JournalIoKind::Batch(_));
            let held = |going: &JournalIo| going.device == device && going.run == run && going.held && !stays(going);
            if self.journals.ios[at].as_ref().is_some_and(held) {
                self.journal_submit(at, &layout, sink);
            }
        }
        self.journals_advance(sink);
    }

    /// Releases held I/Os of other runs than this one: they are never submitted again.
    fn journal_free_held(&mut self, device: DeviceId, run: u64) {
        for at in 0..self.journals.ios.len() {
            let gone = |going: &JournalIo| going.device == device && going.run != run && going.held;
            if self.journals.ios[at].as_ref().is_some_and(gone) {
                self.journals.ios[at].as_mut().expect("it was just seen").held = false;
                let index = self.slots.journal(at as u32);
                self.journal_release_io(at as u32, index);
            }
        }
    }

    fn reply_logged(&mut self, request: &LogRequest, result: Result<InJournal, ErrorKind>) {
        let (slot, generation, op) = (request.slot, request.generation, request.op);
        if request.from == self.id {
            self.op_logged(slot, generation, op, result);
        } else {
            self.outbox.push_back((request.from, ShardMessage::Logged { slot, generation, op, result }));
        }
    }

    fn reply_waiter(&mut self, waiter: Waiter, result: Result<(), ErrorKind>) {
        match waiter {
            Waiter::Slot(from, slot, generation) => self.reply_settled(from, slot, generation, result),
            Waiter::Call(id) => self.report_called(id),
        }
    }

    fn reply_settled(&mut self, from: ShardId, slot: u32, generation: u32, result: Result<(), ErrorKind>) {
        if from == self.id {
            self.flush_settled(slot, generation, result);
        } else {
            self.outbox.push_back((from, ShardMessage::JournalFlushed { slot, generation, result }));
        }
    }
}
