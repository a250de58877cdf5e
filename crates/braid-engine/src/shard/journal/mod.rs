//! The home shard's side of the journal of an array with parity: batches, and what makes their space free again.
//!
//! A batch holds what has been asked for since the one before: entries with data and parity, or marks of rows that are
//! being written whole. It goes to one member more than may be lost, and counts once it and all before it are durable
//! there. Its space is used again when everything in it is in place, all members have flushed after that, and a batch
//! that says so is durable. The order of all that is in DESIGN's rules 6 and 7; the format in [`braid_format::journal`].

mod batch;
mod head;
mod ios;
mod moving;
mod retired;
mod rows;
mod space;

use std::collections::VecDeque;

use braid_format::journal::{ENTRIES_MAX, EntryKind, JournalEntry, LOST_STRIPES_MAX};

use self::batch::BATCHES_MAX;
use self::head::Heads;
pub(super) use self::retired::Asked;
use self::retired::Stilling;
use self::rows::Rows;
use super::scratch::Run;
use super::{Shard, ShardMessage};
use crate::io::{Buf, DeviceId, ErrorKind, LeafSink, ShardId};
use crate::limits::JOURNAL_IOS_MAX;
use crate::mirror::Mirrored;
use crate::parity::{LOGGED_BLOCKS_MAX, OPS_MAX, ParityNode, RingPlace};
use crate::planted::{Planted, planted};

/// Rows that may be marked at a time: so many are made equal after a crash, before anything is served.
const MARKS_MAX: u32 = 1024;
const BLOCK: u64 = 4096;

/// What a slot of some shard asks to be put into the journal.
#[derive(Clone, Copy, Debug)]
pub struct LogRequest {
    /// Who asks: shard, slot and its generation, and which of its ops.
    pub(super) from: ShardId,
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) op: u8,
    /// Its data, and where they belong.
    pub(super) entry: JournalEntry,
    /// It covers its row: a mark is enough, unless the row has data in the journal already.
    pub(super) mark: bool,
    /// No more follow that belong to the same step: all of them go into one batch.
    pub(super) last: bool,
    /// The new data of its first cell, and how far the next ones are from each other in memory.
    pub(super) data: Buf,
    pub(super) stride: u64,
    /// The new parities, one after the other.
    pub(super) parity: Buf,
}

/// Where a journal has what it was asked for.
#[derive(Clone, Copy, Debug)]
pub struct InJournal {
    /// In the batch of this number.
    pub(super) sequence: u64,
    /// Of which there is one copy.
    pub(super) alone: bool,
}

/// A batch, from when it is put together until its space is free.
struct Batch {
    sequence: u64,
    /// Where it begins, counted from the first block of the ring on without end.
    begin: u64,
    /// The tail that it states.
    tail: u64,
    /// Entries that are not in place.
    pending: u32,
    /// How many entries it has, and how many are told when it counts.
    entries: u32,
    waiters: u32,
    durable: bool,
}

/// What an I/O of a journal is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Batch(u64),
    Flush,
    Head,
}

struct Going {
    device: DeviceId,
    run: u64,
    what: What,
    memory: Option<Run>,
    /// The memory is the kernel's, of a disk that hangs.
    lent: bool,
    /// It is to be submitted again with the next layout.
    held: bool,
}

/// Somebody who waits until everything up to a batch is durable in place, and the journal says so.
struct Flusher {
    who: Waiter,
    until: u64,
}

/// Who that is.
#[derive(Clone, Copy)]
enum Waiter {
    /// A flush: shard, slot and its generation.
    Slot(ShardId, u32, u32),
    /// A call of the control plane.
    Call(u64),
}

/// The journal of one array.
pub(super) struct Journal {
    device: DeviceId,
    node: ParityNode,
    heads: Heads,
    /// Members that may be lost.
    tolerance: usize,
    next: u64,
    /// The tail that the next batch states: everything before it is durable in place.
    tail: u64,
    /// Where the next batch begins, counted without end.
    head: u64,
    /// From the first whose space is not free on.
    batches: VecDeque<Batch>,
    /// What they hold, and who is told of them, batch after batch.
    entries: VecDeque<(u64, EntryKind)>,
    waiters: VecDeque<LogRequest>,
    under_way: usize,
    /// Pages of the shard's memory that its batches under way have.
    pages: u32,
    queue: VecDeque<LogRequest>,
    /// Requests of steps of which more are on the way, by shard.
    begun: Vec<Vec<LogRequest>>,
    /// Entries with data, and marks, of each row that has some.
    rows: Rows,
    /// All batches up to this one are durable, and whoever waited for them was told.
    told: u64,
    /// All batches up to this one are durable and in place.
    in_place: u64,
    /// A flush is under way, for everything up to this batch.
    flushing: Option<u64>,
    /// A batch is to be written even without entries: its tail is news.
    tail_is_news: bool,
    wants_room: bool,
    /// Some of what it has was never put in place: the array has failed, and does not serve again with this run.
    refused: bool,
    flushers: Vec<Flusher>,
    /// The runs before this one, while the array served: numbers of batches go on through all of them.
    before: Vec<u64>,
    /// A call that waits until all that was told to be logged is in place, durably, as the ring is about to move.
    quiescing: Option<u64>,
    /// A call that waits until nothing of a marked row is under way, as a member is about to be left out.
    stilling: Option<Stilling>,
    /// A member is out: rows that are only marked could not be read after a crash.
    lacks: bool,
}

impl Journal {
    fn new(device: DeviceId, node: &ParityNode, tolerance: usize) -> Journal {
        // What the ring can hold: data with their parity, and marks. Nothing grows later.
        let entries = node.ring_blocks as usize / 2 + MARKS_MAX as usize + OPS_MAX;
        Journal {
            device,
            node: node.clone(),
            heads: Heads::new(node),
            tolerance,
            next: 1,
            tail: 1,
            head: 0,
            batches: VecDeque::with_capacity(entries),
            entries: VecDeque::with_capacity(entries),
            waiters: VecDeque::with_capacity(1024),
            under_way: 0,
            pages: 0,
            queue: VecDeque::with_capacity(1024),
            begun: Vec::new(),
            rows: Rows::new(entries),
            told: 0,
            in_place: 0,
            flushing: None,
            tail_is_news: false,
            wants_room: false,
            refused: false,
            flushers: Vec::with_capacity(64),
            before: Vec::new(),
            quiescing: None,
            stilling: None,
            lacks: false,
        }
    }

    fn batch(&mut self, sequence: u64) -> Option<&mut Batch> {
        let first = self.batches.front()?.sequence;
        self.batches.get_mut(usize::try_from(sequence.checked_sub(first)?).ok()?)
    }

    fn ring(&self) -> u64 {
        self.node.ring_blocks
    }

    /// Blocks in use, what was passed over at the end of the ring included.
    fn used(&self) -> u64 {
        self.head - self.batches.front().map_or(self.head, |batch| batch.begin)
    }

    /// Where a batch of so many blocks would begin, if there is room for it.
    fn room(&self, blocks: u64, reserve: u64) -> Option<u64> {
        let at = self.head % self.ring();
        let skip = if at + blocks > self.ring() { self.ring() - at } else { 0 };
        (self.used() + skip + blocks + reserve <= self.ring()).then_some(self.head + skip)
    }

    /// The last batch of those that are durable and in place, without a gap from the first on. What is so stays so.
    fn in_place(&mut self) -> u64 {
        while self.batch(self.in_place + 1).is_some_and(|batch| batch.durable && batch.pending == 0) {
            self.in_place += 1;
        }
        self.in_place
    }

    /// Whether all that it has is in place, durably: what remains is batches that say only that.
    fn is_flushed(&self) -> bool {
        self.batches.iter().all(|batch| batch.sequence < self.tail || batch.entries == 0)
    }

    /// The oldest batch is not needed any more.
    fn forget(&mut self, batch: &Batch) {
        for _ in 0..batch.entries {
            let (row, kind) = self.entries.pop_front().expect("entries of the oldest batch come first");
            self.rows.count(row, kind, false);
        }
    }

    /// How many requests from this one of the queue on belong together.
    fn group(&self, first: usize) -> Option<usize> {
        self.queue.range(first.min(self.queue.len())..).position(|request| request.last).map(|last| last + 1)
    }

    /// Whether a row is too large to be logged whole.
    fn is_too_large(&self, request: &LogRequest) -> bool {
        u64::from(request.entry.payload_blocks()) > LOGGED_BLOCKS_MAX.min(self.node.least_ring_blocks / 3)
    }

    /// Whether no row may be marked now: a member is out, or the list of unreadable rows is almost full and not empty. What was to be marked
    /// is logged.
    fn marks_nothing(&self) -> bool {
        self.lacks || self.marks_max() == 0 && !self.node.lost.is_empty()
    }

    /// What is to stand in the journal for a request. A row of which it has data already is not marked but written down as well;
    /// one that is too large for that waits until it has none.
    fn entry(&self, request: &LogRequest) -> JournalEntry {
        let has_data = self.rows.of(request.entry.stripe).0 > 0;
        let has_data = has_data && !planted(Planted::MarkOverLiveEntry);
        let lacks = self.lacks && !planted(Planted::DegradedOnlyMarked);
        if request.mark && (self.is_too_large(request) || !has_data && !lacks && self.marks_max() > 0) {
            JournalEntry::mark(request.entry.stripe)
        } else {
            request.entry
        }
    }

    /// Rows that are marked when no more may be: a crash and a loss could put all of them on the list of unreadable rows, which is
    /// bounded, with as many cells of each as members may be lost. All marks of a step come together, so that the last ones may pass
    /// this by all but one of them.
    fn marks_max(&self) -> u32 {
        let left = LOST_STRIPES_MAX.saturating_sub(self.heads.cells) / self.tolerance.max(1);
        MARKS_MAX.min(left.saturating_sub(OPS_MAX - 1) as u32)
    }

    /// Whether an entry may go into the next batch: data and marks of one row never stand in the journal together, as what is
    /// only marked may be lost where data would be put back.
    fn accepts(&self, entry: &JournalEntry) -> bool {
        let (data, marks) = self.rows.of(entry.stripe);
        match entry.kind {
            EntryKind::Data => marks == 0 || planted(Planted::EntryOverLiveMark),
            EntryKind::Mark => {
                (data == 0 || planted(Planted::MarkOverLiveEntry)) && self.rows.marks() < self.marks_max()
            }
        }
    }
}

/// All journals that this shard is home to.
pub(crate) struct Journals {
    list: Vec<Journal>,
    ios: Vec<Option<Going>>,
    /// Who is told now, and of which batch.
    told: Vec<(LogRequest, u64)>,
}

impl Journals {
    pub fn new() -> Journals {
        Journals { list: Vec::new(), ios: (0..JOURNAL_IOS_MAX).map(|_| None).collect(), told: Vec::new() }
    }

    pub fn of(&mut self, device: DeviceId) -> Option<&mut Journal> {
        self.list.iter_mut().find(|journal| journal.device == device)
    }
}

impl Shard {
    /// A slot asks for an entry.
    pub(super) fn journal_log(&mut self, device: DeviceId, request: LogRequest, sink: &mut impl LeafSink) {
        let Some(journal) = self.journals.of(device) else {
            return self.tell_logged(&request, Err(ErrorKind::NoDevice));
        };
        let from = usize::from(request.from.0);
        if journal.begun.len() <= from {
            journal.begun.resize_with(from + 1, Vec::new);
        }
        let begun = &mut journal.begun[from];
        begun.push(request);
        if request.last {
            journal.queue.extend(begun.drain(..));
            self.journal_go(device, sink);
        }
    }

    /// An entry of a batch is in place, or nobody will put it there.
    pub(super) fn journal_in_place(&mut self, device: DeviceId, run: u64, sequence: u64, sink: &mut impl LeafSink) {
        let of_run = |journal: &&mut Journal| journal.node.run == run || journal.before.contains(&run);
        let Some(journal) = self.journals.of(device).filter(of_run) else { return };
        let batch = journal.batch(sequence).expect("a batch with entries that are not in place is kept");
        batch.pending -= 1;
        if batch.pending == 0 {
            self.journal_go(device, sink);
        }
    }

    /// Somebody flushes: everything that was answered before is to be durable.
    pub(super) fn journal_settle(
        &mut self,
        device: DeviceId,
        (from, slot, generation): (ShardId, u32, u32),
        sink: &mut impl LeafSink,
    ) {
        let Some(journal) = self.journals.of(device) else {
            return self.tell_settled(from, slot, generation, Err(ErrorKind::NoDevice));
        };
        // What has several copies in the journal is durable there, marks aside; what has one only is so in its place. A mark that
        // nothing on a disk retires would make its row unreadable after a crash with a loss, wherever the ring is.
        let several = journal.node.ring_on == RingPlace::Members || planted(Planted::FlushTrustsDisk);
        let durable = journal.rows.marks() == 0 && (several || journal.is_flushed());
        if durable || planted(Planted::FlushLeavesMarks) {
            return self.tell_settled(from, slot, generation, Ok(()));
        }
        let until = journal.next - 1;
        journal.flushers.push(Flusher { who: Waiter::Slot(from, slot, generation), until });
        self.journal_go(device, sink);
    }

    /// The control plane wants the journal to be empty of what is in it now.
    pub(super) fn journal_retire(&mut self, id: u64, device: DeviceId, sink: &mut impl LeafSink) {
        match self.journals.of(device) {
            Some(journal) if !journal.batches.is_empty() && journal.node.ring_on != RingPlace::Moving => {
                let until = journal.next - 1;
                journal.flushers.push(Flusher { who: Waiter::Call(id), until });
                self.journal_go(device, sink);
            }
            _ => self.tell_called(id),
        }
    }

    /// Does whatever can be done now.
    fn journal_go(&mut self, device: DeviceId, sink: &mut impl LeafSink) {
        let Some(of) = self.devices.get(device) else { return };
        let Some(layout) = of.current.clone().filter(|_| !of.frozen) else { return };
        let Some(mirror) = layout.mirror() else { return };
        if mirror.failed {
            return self.journal_refuse(device, ErrorKind::Failed);
        }
        if mirror.parity.as_deref().is_some_and(|parity| parity.node.ring_on == RingPlace::Moving) {
            return self.journal_quiet(device, &layout, sink);
        }
        self.journal_flush(device, &layout, sink);
        while self.journal_batch(device, &layout, sink) {}
        // What could not be taken for want of room may need a flush that is possible now.
        self.journal_flush(device, &layout, sink);
    }

    /// Journals share their I/Os and their memory: what one gives back another may wait for.
    pub(super) fn journals_go(&mut self, sink: &mut impl LeafSink) {
        for at in 0..self.journals.list.len() {
            if let Some(device) = self.journals.list.get(at).map(|journal| journal.device) {
                self.journal_go(device, sink);
            }
        }
    }

    /// Everybody who waits is told so.
    fn journal_refuse(&mut self, device: DeviceId, kind: ErrorKind) {
        self.forget_stilling(device);
        let Some(journal) = self.journals.of(device) else { return };
        let mut requests: Vec<LogRequest> = journal.queue.drain(..).collect();
        requests.extend(journal.begun.iter_mut().flat_map(|begun| begun.drain(..)));
        // None of them is written in place.
        requests.extend(journal.waiters.drain(..));
        journal.batches.iter_mut().for_each(|batch| batch.waiters = 0);
        journal.refused = true;
        let mut flushers: Vec<Flusher> = journal.flushers.drain(..).collect();
        flushers.extend(journal.quiescing.take().map(|id| Flusher { who: Waiter::Call(id), until: 0 }));
        requests.iter().for_each(|request| self.tell_logged(request, Err(kind)));
        for flusher in flushers {
            self.tell_waiter(flusher.who, Err(kind));
        }
    }

    /// A layout was published.
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
            // What it gave back another array may wait for.
            return self.journals_go(sink);
        };
        let run = parity.node.run;
        let moving = parity.node.ring_on == RingPlace::Moving;
        match self.journals.of(device) {
            Some(journal) if journal.node.run == run => {
                journal.node.rings.clone_from(&parity.node.rings);
                journal.node.ring_on = parity.node.ring_on;
            }
            Some(_) => {
                self.journal_moved(device, &parity.node, parity.count);
                self.journal_free_held(device, run);
            }
            None => {
                self.journal_free_held(device, run);
                self.journals.told.reserve(BATCHES_MAX * ENTRIES_MAX);
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
        let lacks = layout.mirror().is_some_and(Mirrored::is_one_out);
        if let Some(journal) = self.journals.of(device) {
            // After a crash now, rows that are only marked could not be read.
            (journal.lacks, journal.wants_room) = (lacks, journal.wants_room || lacks && journal.rows.marks() > 0);
            let serves = |leaf| layout.mirror().is_some_and(|mirror| mirror.role_of(leaf).is_some());
            journal.node.marks.keep_failed(serves);
        }
        for at in 0..self.journals.ios.len() {
            // What is not in the ring when it moves is logged anew.
            let stays = |going: &Going| moving && matches!(going.what, What::Batch(_));
            let held = |going: &Going| going.device == device && going.run == run && going.held && !stays(going);
            if self.journals.ios[at].as_ref().is_some_and(held) {
                self.journal_submit(at, &layout, sink);
            }
        }
        self.journals_go(sink);
    }

    /// I/Os that were to be submitted again, of runs other than this one, never will be.
    fn journal_free_held(&mut self, device: DeviceId, run: u64) {
        for at in 0..self.journals.ios.len() {
            let gone = |going: &Going| going.device == device && going.run != run && going.held;
            if self.journals.ios[at].as_ref().is_some_and(gone) {
                self.journals.ios[at].as_mut().expect("it was just seen").held = false;
                let index = self.slots.journal(at as u32);
                self.journal_let_go(at as u32, index);
            }
        }
    }

    fn tell_logged(&mut self, request: &LogRequest, result: Result<InJournal, ErrorKind>) {
        let (slot, generation, op) = (request.slot, request.generation, request.op);
        if request.from == self.id {
            self.row_logged(slot, generation, op, result);
        } else {
            self.outbox.push_back((request.from, ShardMessage::Logged { slot, generation, op, result }));
        }
    }

    fn tell_waiter(&mut self, who: Waiter, result: Result<(), ErrorKind>) {
        match who {
            Waiter::Slot(from, slot, generation) => self.tell_settled(from, slot, generation, result),
            Waiter::Call(id) => self.tell_called(id),
        }
    }

    fn tell_settled(&mut self, from: ShardId, slot: u32, generation: u32, result: Result<(), ErrorKind>) {
        if from == self.id {
            self.row_settled(slot, generation, result);
        } else {
            self.outbox.push_back((from, ShardMessage::Settled { slot, generation, result }));
        }
    }
}
