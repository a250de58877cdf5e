//! The state of the journals that a shard is the home of: their batches, what waits for these, and their I/Os.

mod heads;
mod mark_drain;
mod stripes;

use std::collections::VecDeque;

use braid_format::journal::{EntryKind, JournalEntry, LOST_STRIPES_MAX};

use self::heads::Heads;
pub(super) use self::mark_drain::{DrainRequest, MarkDrain};
use self::stripes::StripeCounts;
use super::scratch::PageRun;
use crate::io::{Buf, DeviceId, ShardId};
use crate::limits::JOURNAL_IOS_MAX;
use crate::parity::{LOGGED_BLOCKS_MAX, OPS_MAX, ParityNode};

/// Maximum number of marked stripes: this many are resynced after a crash, before anything is served.
pub(super) const MARKS_MAX: u32 = 1024;
pub(super) const BLOCK: u64 = 4096;

/// A request of a slot of any shard to log an entry in the journal.
#[derive(Clone, Copy, Debug)]
pub struct LogRequest {
    /// The requesting shard, slot, generation, and the index of the op.
    pub(super) from: ShardId,
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) op: u8,
    /// The entry.
    pub(super) entry: JournalEntry,
    /// The op is a full-stripe write: a mark suffices, unless the stripe has data in the journal already.
    pub(super) mark: bool,
    /// The last request of a step: all requests of the step go into one batch.
    pub(super) last: bool,
    /// The new data of its first cell, and the distance of the next ones in memory, in bytes.
    pub(super) data: Buf,
    pub(super) stride: u64,
    /// The new parities, contiguous.
    pub(super) parity: Buf,
}

/// The location of a logged entry.
#[derive(Clone, Copy, Debug)]
pub struct InJournal {
    /// The batch's sequence number.
    pub(super) sequence: u64,
    /// There is only one copy of the batch.
    pub(super) alone: bool,
}

/// A batch, from when it is built until its space is free.
pub(super) struct Batch {
    pub(super) sequence: u64,
    /// Its first block, counted from the first block of the ring on without wrapping.
    pub(super) begin: u64,
    /// The tail that its header states: recovery needs no batch before that one.
    pub(super) tail: u64,
    /// Entries that are not in place.
    pub(super) pending: u32,
    /// Number of its entries, and of the requests to be answered when it counts.
    pub(super) entries: u32,
    pub(super) waiters: u32,
    pub(super) durable: bool,
}

/// The kind of a journal's I/O.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum JournalIoKind {
    /// Writes the batch with this sequence number.
    Batch(u64),
    /// Flushes all members.
    Flush,
    /// Writes the head to all members that serve, and to the ring's disk.
    Head,
}

/// A journal's I/O, in flight or held.
pub(super) struct JournalIo {
    pub(super) device: DeviceId,
    pub(super) run: u64,
    pub(super) what: JournalIoKind,
    pub(super) memory: Option<PageRun>,
    /// The kernel still has the memory, because a disk hangs.
    pub(super) lent: bool,
    /// It is submitted again with the next layout.
    pub(super) held: bool,
}

/// A request that waits until everything up to a batch is durable in place, and the journal states so.
pub(super) struct Flusher {
    pub(super) waiter: Waiter,
    pub(super) until: u64,
}

/// The origin of such a request.
#[derive(Clone, Copy)]
pub(super) enum Waiter {
    /// A flush: shard, slot and its generation.
    Slot(ShardId, u32, u32),
    /// A call of the control plane.
    Call(u64),
}

/// The journal of one array.
pub(super) struct Journal {
    pub(super) device: DeviceId,
    pub(super) node: ParityNode,
    pub(super) heads: Heads,
    /// Number of members that the array may lose.
    pub(super) tolerance: usize,
    /// The sequence number of the next batch.
    pub(super) next: u64,
    /// The tail that the next batch states: everything before it is durable in place.
    pub(super) tail: u64,
    /// The first block of the next batch, counted without wrapping.
    pub(super) head: u64,
    /// Batches, from the first whose space is not free on.
    pub(super) batches: VecDeque<Batch>,
    /// The entries of all batches, and the requests that wait for them, in the order of the batches.
    pub(super) entries: VecDeque<(u64, EntryKind)>,
    pub(super) waiters: VecDeque<LogRequest>,
    pub(super) batches_in_flight: usize,
    /// Pages of the shard's memory that its batches in flight use.
    pub(super) pages: u32,
    /// Requests that are in no batch yet.
    pub(super) queue: VecDeque<LogRequest>,
    /// Requests of steps whose last request has not arrived, by shard.
    pub(super) incomplete: Vec<Vec<LogRequest>>,
    /// Counts of entries with data, and of marks, by stripe.
    pub(super) stripes: StripeCounts,
    /// All batches up to this one are durable, and the requests that waited for them were answered.
    pub(super) acknowledged: u64,
    /// All batches up to this one are durable and in place.
    pub(super) in_place: u64,
    /// A flush is in flight, for everything up to this batch.
    pub(super) flushing: Option<u64>,
    /// A batch is to be written even without entries, because its tail is new.
    pub(super) tail_is_new: bool,
    /// The next entries do not fit: space is to be freed.
    pub(super) wants_room: bool,
    /// Some of its entries were never written in place: the array has failed, and does not serve again with this run.
    pub(super) refused: bool,
    pub(super) flushers: Vec<Flusher>,
    /// Earlier runs while the array served: the batches' sequence numbers continue through all of them.
    pub(super) before: Vec<u64>,
    /// A call that waits until all entries that were acknowledged are durable in place, because the ring is about to
    /// move.
    pub(super) quiescing: Option<u64>,
    /// A call that waits until no write to a marked stripe is in flight, because a member is about to be dropped.
    pub(super) mark_drain: Option<MarkDrain>,
    /// A member is missing: stripes that are only marked could not be read after a crash.
    pub(super) degraded: bool,
}

impl Journal {
    pub(super) fn new(device: DeviceId, node: &ParityNode, tolerance: usize) -> Journal {
        // The capacity of the ring: data with parity, and marks. Nothing grows later.
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
            batches_in_flight: 0,
            pages: 0,
            queue: VecDeque::with_capacity(1024),
            incomplete: Vec::new(),
            stripes: StripeCounts::new(entries),
            acknowledged: 0,
            in_place: 0,
            flushing: None,
            tail_is_new: false,
            wants_room: false,
            refused: false,
            flushers: Vec::with_capacity(64),
            before: Vec::new(),
            quiescing: None,
            mark_drain: None,
            degraded: false,
        }
    }

    pub(super) fn batch(&mut self, sequence: u64) -> Option<&mut Batch> {
        let first = self.batches.front()?.sequence;
        self.batches.get_mut(usize::try_from(sequence.checked_sub(first)?).ok()?)
    }

    pub(super) fn ring(&self) -> u64 {
        self.node.ring_blocks
    }

    /// Returns the number of blocks in use, including those skipped at the end of the ring.
    pub(super) fn used(&self) -> u64 {
        self.head - self.batches.front().map_or(self.head, |batch| batch.begin)
    }

    /// Returns the first block of a batch of so many blocks, if there is room for it.
    pub(super) fn room(&self, blocks: u64, reserve: u64) -> Option<u64> {
        let at = self.head % self.ring();
        let skip = if at + blocks > self.ring() { self.ring() - at } else { 0 };
        (self.used() + skip + blocks + reserve <= self.ring()).then_some(self.head + skip)
    }

    /// Returns the last batch up to which all batches, from the first on, are durable and in place. It never decreases.
    pub(super) fn in_place(&mut self) -> u64 {
        while self.batch(self.in_place + 1).is_some_and(|batch| batch.durable && batch.pending == 0) {
            self.in_place += 1;
        }
        self.in_place
    }

    /// Returns whether all its entries are durable in place: only batches without entries remain.
    pub(super) fn is_flushed(&self) -> bool {
        self.batches.iter().all(|batch| batch.sequence < self.tail || batch.entries == 0)
    }

    /// Removes the entries of the oldest batch from the counts.
    pub(super) fn forget(&mut self, batch: &Batch) {
        for _ in 0..batch.entries {
            let (stripe, kind) = self.entries.pop_front().expect("entries of the oldest batch come first");
            self.stripes.count(stripe, kind, false);
        }
    }

    /// Returns the number of requests, from this one of the queue on, that belong to one step.
    pub(super) fn group(&self, first: usize) -> Option<usize> {
        self.queue.range(first.min(self.queue.len())..).position(|request| request.last).map(|last| last + 1)
    }

    /// Returns whether a stripe is too large to be logged whole.
    pub(super) fn is_too_large(&self, request: &LogRequest) -> bool {
        u64::from(request.entry.payload_blocks()) > LOGGED_BLOCKS_MAX.min(self.node.ring_blocks_min / 3)
    }

    /// Returns whether no stripe may be marked now: a member is missing, or the list of unreadable stripes is almost
    /// full and not empty. A full-stripe write is then logged.
    pub(super) fn may_not_mark(&self) -> bool {
        self.degraded || self.marks_max() == 0 && !self.node.lost_stripes.is_empty()
    }

    /// Returns the entry to log for a request. A stripe that has data in the journal already is not marked but logged
    /// as data again; a stripe too large for that waits until it has none.
    pub(super) fn entry(&self, request: &LogRequest) -> JournalEntry {
        let has_data = self.stripes.of(request.entry.stripe).0 > 0;
        if request.mark && (self.is_too_large(request) || !has_data && !self.degraded && self.marks_max() > 0) {
            JournalEntry::mark(request.entry.stripe)
        } else {
            request.entry
        }
    }

    /// Returns the number of marked stripes at which no more may be marked. A crash with a loss could put all of them
    /// on the list of unreadable stripes, which is bounded, with as many cells of each as members may be lost. All
    /// marks of a step arrive together, so that the number may be exceeded by all but one of them.
    fn marks_max(&self) -> u32 {
        let left = LOST_STRIPES_MAX.saturating_sub(self.heads.cells) / self.tolerance.max(1);
        MARKS_MAX.min(left.saturating_sub(OPS_MAX - 1) as u32)
    }

    /// Returns whether an entry may go into the next batch. Data and marks of one stripe are never in the journal
    /// together: recovery of a marked stripe may lose what its data entry would restore.
    pub(super) fn accepts(&self, entry: &JournalEntry) -> bool {
        let (data, marks) = self.stripes.of(entry.stripe);
        match entry.kind {
            EntryKind::Data => marks == 0,
            EntryKind::Mark => data == 0 && self.stripes.marks() < self.marks_max(),
        }
    }
}

/// All journals that this shard is the home of.
pub(crate) struct Journals {
    pub(super) list: Vec<Journal>,
    pub(super) ios: Vec<Option<JournalIo>>,
    /// A buffer for the requests to be answered now, with their batches.
    pub(super) acknowledged: Vec<(LogRequest, u64)>,
}

impl Journals {
    pub fn new() -> Journals {
        Journals { list: Vec::new(), ios: (0..JOURNAL_IOS_MAX).map(|_| None).collect(), acknowledged: Vec::new() }
    }

    pub fn of(&mut self, device: DeviceId) -> Option<&mut Journal> {
        self.list.iter_mut().find(|journal| journal.device == device)
    }
}
