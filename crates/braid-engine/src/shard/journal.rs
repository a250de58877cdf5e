//! The home shard's side of the journal of an array with parity: batches, and what makes their space free again.
//!
//! A batch holds what has been asked for since the one before: entries with data and parity, or marks of rows that are
//! being written whole. It goes to one member more than may be lost, and counts once it and all before it are durable
//! there. Its space is used again when everything in it is in place, all members have flushed after that, and a batch
//! that says so is durable. The order of all that is in DESIGN's rules 6 and 7; the format in [`braid_format::journal`].

use std::collections::{BTreeMap, VecDeque};

use braid_format::journal::{BatchHeader, ENTRIES_MAX, Entry, EntryKind, LOST_ROWS_MAX, encode_batch, payload_crc};

use super::journal_head::Heads;
use super::scratch::{Run, Scratch};
use super::slots::{self, State};
use super::{Shard, ShardMessage};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, LeafIo, LeafSink, Op, ShardId};
use crate::layout::DeviceLayout;
use crate::limits::JOURNAL_IOS_MAX;
use crate::mirror::Role;
use crate::parity::{LOGGED_BLOCKS_MAX, ParityNode};
use crate::planted::{self, Planted, planted};

/// Batches of one array under way at a time.
const BATCHES_MAX: usize = 4;
/// Blocks of the ring that only batches without data take: they make room.
const RESERVE_BLOCKS: u64 = 8;
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
    pub(super) entry: Entry,
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

/// A batch, from when it is put together until its space is free.
struct Batch {
    sequence: u64,
    /// Where it begins, counted from the first block of the ring on without end.
    begin: u64,
    /// The tail that it states.
    tail: u64,
    /// Entries that are not in place.
    pending: u32,
    entries: Vec<(u64, EntryKind)>,
    /// Who is told when it counts.
    waiters: Vec<LogRequest>,
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
    pub(super) node: ParityNode,
    pub(super) heads: Heads,
    /// Members that may be lost.
    tolerance: usize,
    next: u64,
    /// The tail that the next batch states: everything before it is durable in place.
    tail: u64,
    /// Where the next batch begins, counted without end.
    head: u64,
    /// From the first whose space is not free on.
    batches: VecDeque<Batch>,
    under_way: usize,
    /// Pages of the shard's memory that its batches under way have.
    pages: u32,
    queue: VecDeque<LogRequest>,
    /// Requests of steps of which more are on the way, by shard.
    begun: Vec<Vec<LogRequest>>,
    /// Entries with data, and marks, of each row that has some.
    rows: BTreeMap<u64, (u32, u32)>,
    marks: u32,
    /// A flush is under way, for everything up to this batch.
    flushing: Option<u64>,
    /// A batch is to be written even without entries: its tail is news.
    tail_is_news: bool,
    wants_room: bool,
    /// Some of what it has was never put in place: the array has failed, and does not serve again with this run.
    refused: bool,
    flushers: Vec<Flusher>,
}

impl Journal {
    fn new(device: DeviceId, node: &ParityNode, tolerance: usize) -> Journal {
        Journal {
            device,
            node: node.clone(),
            heads: Heads::new(node),
            tolerance,
            next: 1,
            tail: 1,
            head: 0,
            batches: VecDeque::with_capacity(256),
            under_way: 0,
            pages: 0,
            queue: VecDeque::with_capacity(1024),
            begun: Vec::new(),
            rows: BTreeMap::new(),
            marks: 0,
            flushing: None,
            tail_is_news: false,
            wants_room: false,
            refused: false,
            flushers: Vec::with_capacity(64),
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

    /// The last batch of those that are durable and in place, without a gap from the first on.
    fn in_place(&self) -> u64 {
        let done = self.batches.iter().take_while(|batch| batch.durable && batch.pending == 0).last();
        done.map_or(self.tail - 1, |batch| batch.sequence)
    }

    /// How many requests from this one of the queue on belong together.
    fn group(&self, first: usize) -> Option<usize> {
        self.queue.range(first.min(self.queue.len())..).position(|request| request.last).map(|last| last + 1)
    }

    /// What is to stand in the journal for a request.
    fn entry(&self, request: &LogRequest) -> Entry {
        let has_data = self.rows.get(&request.entry.row).is_some_and(|(data, _)| *data > 0);
        let has_data = has_data && !planted(Planted::MarkOverLiveEntry);
        if request.mark && !has_data && self.marks_max() > 0 { Entry::mark(request.entry.row) } else { request.entry }
    }

    /// Rows that may be marked: a crash and a loss could put all of them on the list of unreadable rows, which is bounded.
    fn marks_max(&self) -> u32 {
        MARKS_MAX.min(LOST_ROWS_MAX.saturating_sub(self.heads.rows) as u32)
    }

    /// Whether an entry may go into the next batch: data and marks of one row never stand in the journal together, as what is
    /// only marked may be lost where data would be put back.
    fn accepts(&self, entry: &Entry) -> bool {
        let (data, marks) = self.rows.get(&entry.row).copied().unwrap_or_default();
        match entry.kind {
            EntryKind::Data => marks == 0 || planted(Planted::EntryOverLiveMark),
            EntryKind::Mark => (data == 0 || planted(Planted::MarkOverLiveEntry)) && self.marks < self.marks_max(),
        }
    }

    fn count(&mut self, row: u64, kind: EntryKind, more: bool) {
        let of_row = self.rows.entry(row).or_default();
        let count = if kind == EntryKind::Mark { &mut of_row.1 } else { &mut of_row.0 };
        *count = if more { *count + 1 } else { *count - 1 };
        if kind == EntryKind::Mark {
            self.marks = if more { self.marks + 1 } else { self.marks - 1 };
        }
        if *of_row == (0, 0) {
            self.rows.remove(&row);
        }
    }
}

/// All journals that this shard is home to.
pub(crate) struct Journals {
    list: Vec<Journal>,
    ios: Vec<Option<Going>>,
}

impl Journals {
    pub fn new() -> Journals {
        Journals { list: Vec::new(), ios: (0..JOURNAL_IOS_MAX).map(|_| None).collect() }
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
        let Some(journal) = self.journals.of(device).filter(|journal| journal.node.run == run) else { return };
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
        if journal.marks == 0 || planted(Planted::FlushLeavesMarks) {
            // Everything else is durable in the journal.
            return self.tell_settled(from, slot, generation, Ok(()));
        }
        let until = journal.next - 1;
        journal.flushers.push(Flusher { who: Waiter::Slot(from, slot, generation), until });
        self.journal_go(device, sink);
    }

    /// The control plane wants the journal to be empty of what is in it now.
    pub(super) fn journal_retire(&mut self, id: u64, device: DeviceId, sink: &mut impl LeafSink) {
        match self.journals.of(device) {
            Some(journal) if !journal.batches.is_empty() => {
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
        self.journal_flush(device, &layout, sink);
        while self.journal_batch(device, &layout, sink) {}
        // What could not be taken for want of room may need a flush that is possible now.
        self.journal_flush(device, &layout, sink);
    }

    /// Everybody who waits is told so.
    fn journal_refuse(&mut self, device: DeviceId, kind: ErrorKind) {
        let Some(journal) = self.journals.of(device) else { return };
        let mut requests: Vec<LogRequest> = journal.queue.drain(..).collect();
        requests.extend(journal.begun.iter_mut().flat_map(|begun| begun.drain(..)));
        for batch in journal.batches.iter_mut() {
            // None of them is written in place.
            requests.append(&mut batch.waiters);
        }
        journal.refused = true;
        let flushers: Vec<Flusher> = journal.flushers.drain(..).collect();
        requests.iter().for_each(|request| self.tell_logged(request, Err(kind)));
        for flusher in flushers {
            self.tell_waiter(flusher.who, Err(kind));
        }
    }

    /// Begins to flush all members, if something needs it and something is in place.
    fn journal_flush(&mut self, device: DeviceId, layout: &DeviceLayout, sink: &mut impl LeafSink) {
        let Some(journal) = self.journals.of(device) else { return };
        let done = journal.in_place();
        let wanted = journal.wants_room
            || journal.used() > journal.ring() / 2
            || journal.marks > MARKS_MAX / 2
            || !journal.flushers.is_empty();
        // Who flushes waits for all that was logged before: a flush before that would not be enough.
        let enough = journal.wants_room || journal.flushers.first().is_none_or(|first| first.until <= done);
        if !wanted || !enough || journal.flushing.is_some() || done < journal.tail {
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

    /// Puts a batch together and writes it. False: there is nothing to write, or no room.
    fn journal_batch(&mut self, device: DeviceId, layout: &DeviceLayout, sink: &mut impl LeafSink) -> bool {
        let free = self.journals.ios.iter().position(Option::is_none);
        let Some(journal) = self.journals.of(device) else { return false };
        let (Some(at), true) = (free, journal.under_way < BATCHES_MAX) else { return false };
        let (mut blocks, mut count) = (1u64, 0);
        let mut entries = [Entry::NONE; ENTRIES_MAX];
        while let Some(group) = journal.group(count).filter(|group| count + group <= ENTRIES_MAX) {
            let mut needed = blocks;
            let mut fits = true;
            for (request, entry) in journal.queue.range(count..count + group).zip(&mut entries[count..]) {
                *entry = journal.entry(request);
                needed += u64::from(entry.payload_blocks());
                fits &= journal.accepts(entry);
            }
            if needed > LOGGED_BLOCKS_MAX + 1 && count > 0 {
                break;
            }
            if !fits || needed > LOGGED_BLOCKS_MAX + 1 || journal.room(needed, RESERVE_BLOCKS).is_none() {
                journal.wants_room = true;
                break;
            }
            for entry in &entries[count..count + group] {
                journal.count(entry.row, entry.kind, true);
            }
            (count, blocks) = (count + group, needed);
        }
        if count == 0 && !journal.tail_is_news {
            return false;
        }
        let begin = journal.room(blocks, if count == 0 { 0 } else { RESERVE_BLOCKS });
        // One array's disks may answer late: half of the memory is left to other arrays.
        let may_take =
            |scratch: &&mut Scratch| journal.pages == 0 || journal.pages + blocks as u32 <= scratch.limit() / 2;
        let memory = self.journal_scratch.as_mut().filter(may_take).and_then(|scratch| scratch.take(blocks as u32));
        let (Some(begin), Some(memory)) = (begin, memory) else {
            for entry in &entries[..count] {
                journal.count(entry.row, entry.kind, false);
            }
            return false;
        };
        let scratch = self.journal_scratch.as_ref().expect("memory was just taken from it");
        let mut payload = 1;
        let mut waiters = Vec::with_capacity(count);
        for entry in &entries[..count] {
            let request = journal.queue.pop_front().expect("it was counted");
            gather(entry, &request, scratch.page(memory.first).add(payload * BLOCK), sink);
            payload += u64::from(entry.payload_blocks());
            waiters.push(request);
        }
        let first = scratch.page(memory.first);
        let (ring, sequence) = (journal.ring(), journal.next);
        let mut header = BatchHeader {
            run: journal.node.run,
            sequence,
            tail: journal.tail,
            position: begin % ring,
            blocks: blocks as u32,
            entries: count as u16,
            payload_crc: 0,
        };
        let array = journal.node.array;
        seal(&array, &mut header, &entries[..count], first, sink);
        journal.batches.push_back(Batch {
            sequence,
            begin,
            tail: journal.tail,
            pending: count as u32,
            entries: entries[..count].iter().map(|entry| (entry.row, entry.kind)).collect(),
            waiters,
            durable: false,
        });
        journal.head = begin + blocks;
        journal.next += 1;
        journal.under_way += 1;
        journal.pages += blocks as u32;
        journal.tail_is_news = false;
        let run = journal.node.run;
        let going = Going { device, run, what: What::Batch(sequence), memory: Some(memory), lent: false, held: false };
        self.journals.ios[at] = Some(going);
        self.journal_submit(at, layout, sink);
        if planted(Planted::RowsBeforeJournal) {
            let batch = self.journals.of(device).and_then(|journal| journal.batch(sequence));
            let waiters = batch.map(|batch| std::mem::take(&mut batch.waiters)).unwrap_or_default();
            waiters.iter().for_each(|request| self.tell_logged(request, Ok(sequence)));
        }
        true
    }

    /// Submits what an I/O of a journal is made of, with this layout.
    fn journal_submit(&mut self, at: usize, layout: &DeviceLayout, sink: &mut impl LeafSink) {
        let going = self.journals.ios[at].as_mut().expect("an I/O that is begun");
        going.held = false;
        let (device, what) = (going.device, going.what);
        let mirror = layout.mirror().expect("a journal is of a redundant array");
        let index = self.slots.take_journal(at as u32);
        let generation = self.slots[index].generation;
        let slot = &mut self.slots[index];
        let late = slot.late;
        slot.prepare(Op::Write, Flags::NONE, 0, 0, Buf::NONE, 0);
        (slot.late, slot.device, slot.version) = (late, device.0, layout.version());
        self.devices.at_mut(device.0).users += 1;
        let mut out = 0;
        match what {
            What::Flush => {
                let leaves = planted::asked_by_journal(layout.leaves());
                out = leaves.len() as u32;
                self.slots[index].out = out;
                for leaf in leaves {
                    let cookie = slots::cookie(index, generation, *leaf);
                    sink.submit(&LeafIo::simple(*leaf, Op::Flush, Flags::NONE, 0, 0, Buf::NONE, cookie));
                }
            }
            What::Head => {
                let memory = self.journals.ios[at].as_ref().and_then(|going| going.memory).expect("a head has memory");
                let buf = self.journal_scratch.as_ref().expect("memory was taken from it").page(memory.first);
                let journal = self.journals.of(device).expect("a head has a journal");
                let before = journal.heads.before_ring();
                for (role, member) in mirror.members.iter().enumerate().filter(|(_, m)| m.role != Role::Out) {
                    let cookie = slots::cookie(index, generation, member.leaf);
                    let (at, len) = (journal.node.rings[role] - before, u64::from(memory.pages) * BLOCK);
                    sink.submit(&LeafIo::simple(member.leaf, Op::Write, Flags::FUA, at, len, buf, cookie));
                    out += 1;
                }
                self.slots[index].out = out;
            }
            What::Batch(sequence) => {
                let memory = self.journals.ios[at].as_ref().and_then(|going| going.memory);
                let journal = self.journals.of(device).expect("a batch has a journal");
                let ring = journal.ring();
                let (tolerance, rings) = (journal.tolerance, journal.node.rings.clone());
                let batch = journal.batch(sequence).expect("a batch under way is kept");
                let (offset, memory) = (batch.begin % ring * BLOCK, memory.expect("a batch has memory"));
                let buf = self.journal_scratch.as_ref().expect("memory was taken from it").page(memory.first);
                let in_sync = mirror.members.iter().filter(|member| member.role == Role::InSync).count();
                let copies = if planted(Planted::BatchOnOneMember) { 1 } else { (tolerance + 1).min(in_sync) };
                let mut turn = 0;
                let first = (sequence % in_sync.max(1) as u64) as usize;
                for (role, member) in mirror.members.iter().enumerate().filter(|(_, m)| m.role != Role::Out) {
                    let chosen = match member.role {
                        Role::InSync => {
                            turn += 1;
                            (turn - 1 + in_sync - first) % in_sync < copies
                        }
                        _ => !planted(Planted::FillingMissesBatches),
                    };
                    if chosen {
                        let cookie = slots::cookie(index, generation, member.leaf);
                        let (at, len) = (rings[role] + offset, u64::from(memory.pages) * BLOCK);
                        let flags = if planted(Planted::BatchNotDurable) { Flags::NONE } else { Flags::FUA };
                        sink.submit(&LeafIo::simple(member.leaf, Op::Write, flags, at, len, buf, cookie));
                        out += 1;
                    }
                }
                self.slots[index].out = out;
            }
        }
        debug_assert!(out > 0, "an array that serves has members");
    }

    /// Everything that was out for an I/O of a journal has been answered.
    pub(super) fn journal_answered(&mut self, at: u32, index: u32, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        let failed = !std::mem::take(&mut slot.failed).is_empty() || slot.error.take().is_some();
        let (device, version) = (slot.device, slot.version);
        self.devices.leave(device, version);
        let device = DeviceId(device);
        let frozen = self.devices.at(device.0).frozen;
        let going = self.journals.ios[at as usize].as_mut().expect("an I/O that is out");
        let (what, run) = (going.what, going.run);
        let pages = going.memory.map_or(0, |memory| memory.pages);
        let flushed = !failed && !frozen && what == What::Flush;
        if flushed && going.memory.is_some() && !planted(Planted::TailBeforeHead) {
            // Rows have left the list: a head says so before the tail passes what has written them.
            going.what = What::Head;
        }
        let head_follows = going.what != what;
        let alive = self.journals.list.iter().any(|j| j.device == device && j.node.run == run);
        if alive && (failed || frozen || head_follows) {
            // What stands on some members only is written again, to those that are left.
            self.journals.ios[at as usize].as_mut().expect("it is out").held = true;
            if self.slots[index].late == 0 {
                self.slots.give(index);
            }
            if !frozen {
                self.journal_published(device, sink);
            }
            return;
        }
        if alive {
            self.journal_done(device, what, pages);
        }
        self.journal_let_go(at, index);
        if alive {
            self.journal_tell(device);
        }
        self.journals_go(sink);
    }

    /// Journals share their I/Os and their memory: what one gives back another may wait for.
    pub(super) fn journals_go(&mut self, sink: &mut impl LeafSink) {
        for at in 0..self.journals.list.len() {
            if let Some(device) = self.journals.list.get(at).map(|journal| journal.device) {
                self.journal_go(device, sink);
            }
        }
    }

    /// A batch is durable, or everything that was in place is.
    fn journal_done(&mut self, device: DeviceId, what: What, pages: u32) {
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
    fn journal_tell(&mut self, device: DeviceId) {
        let journal = self.journals.of(device).expect("it was just found");
        let (mut told, mut tail) = (Vec::new(), 0);
        for batch in journal.batches.iter_mut().take_while(|batch| batch.durable || planted(Planted::BatchesOutOfOrder))
        {
            if !batch.durable {
                continue;
            }
            tail = batch.tail;
            told.extend(batch.waiters.drain(..).map(|request| (request, batch.sequence)));
        }
        let tail = if planted(Planted::RingReusedEarly) { journal.tail } else { tail };
        while let Some(batch) = journal.batches.pop_front_if(|batch| batch.sequence < tail) {
            for (row, kind) in &batch.entries {
                journal.count(*row, *kind, false);
            }
            journal.wants_room = false;
        }
        let first = journal.batches.front().map_or(journal.next, |batch| batch.sequence);
        let flushers = std::mem::take(&mut journal.flushers);
        let (gone, kept): (Vec<Flusher>, Vec<Flusher>) = flushers.into_iter().partition(|f| f.until < first);
        journal.flushers = kept;
        told.iter().for_each(|(request, sequence)| self.tell_logged(request, Ok(*sequence)));
        for flusher in gone {
            self.tell_waiter(flusher.who, Ok(()));
        }
    }

    /// The place of an I/O is free for another, once the kernel has nothing of it any more.
    pub(super) fn journal_let_go(&mut self, at: u32, index: u32) {
        if self.slots[index].late > 0 {
            self.slots[index].state = State::Late;
            let going = self.journals.ios[at as usize].as_mut();
            if let Some((going, scratch)) = going.filter(|going| !going.lent).zip(self.journal_scratch.as_mut())
                && let Some(memory) = going.memory
            {
                going.lent = true;
                scratch.lend(memory);
            }
            return;
        }
        if let Some(going) = self.journals.ios[at as usize].take()
            && let (Some(memory), Some(scratch)) = (going.memory, self.journal_scratch.as_mut())
        {
            if going.lent { scratch.regain(memory) } else { scratch.give(memory) }
        }
        if self.slots[index].state != State::Free {
            self.slots.give(index);
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
            return self.journal_free_held(device, 0);
        };
        let run = parity.node.run;
        match self.journals.of(device) {
            Some(journal) if journal.node.run == run => journal.node.rings.clone_from(&parity.node.rings),
            _ => {
                self.journal_refuse(device, ErrorKind::NoDevice);
                self.journals.list.retain(|journal| journal.device != device);
                self.journal_free_held(device, run);
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
        let lacks = layout.mirror().is_some_and(|mirror| mirror.members.iter().any(|m| m.role == Role::Out));
        if let Some(journal) = self.journals.of(device).filter(|journal| lacks && journal.marks > 0) {
            // A member is lost: after a crash now, rows that are only marked could not be read.
            journal.wants_room = true;
        }
        for at in 0..self.journals.ios.len() {
            let held = |going: &Going| going.device == device && going.run == run && going.held;
            if self.journals.ios[at].as_ref().is_some_and(held) {
                self.journal_submit(at, &layout, sink);
            }
        }
        self.journal_go(device, sink);
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

    fn tell_logged(&mut self, request: &LogRequest, result: Result<u64, ErrorKind>) {
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

/// Copies what an entry holds to where it stands in its batch.
fn gather(entry: &Entry, request: &LogRequest, mut to: Buf, sink: &mut impl LeafSink) {
    if entry.kind == EntryKind::Mark {
        return;
    }
    let len = u64::from(entry.blocks) * BLOCK;
    let data = (0..u64::from(entry.cells)).map(|cell| request.data.add(cell * request.stride));
    let parity = (0..u64::from(entry.parities)).map(|parity| request.parity.add(parity * len));
    for from in data.chain(parity) {
        sink.compute(&[from], &[to], len, &mut |from, to| to[0].copy_from_slice(from[0]));
        to = to.add(len);
    }
}

/// Puts checksums and the header into a batch.
fn seal(array: &braid_format::Uuid, header: &mut BatchHeader, entries: &[Entry], first: Buf, sink: &mut impl LeafSink) {
    let payload = u64::from(header.blocks - 1) * BLOCK;
    if payload > 0 {
        let crc = &mut header.payload_crc;
        sink.compute(&[first.add(BLOCK)], &[], payload, &mut |payload, _| {
            *crc = payload_crc(0, payload[0]);
        });
    }
    let entries = planted::written_down(entries);
    header.entries = entries.len() as u16;
    sink.compute(&[], &[first], BLOCK, &mut |_, header_block| {
        let block: &mut [u8; 4096] = (&mut *header_block[0]).try_into().expect("a block");
        encode_batch(array, header, entries, block);
    });
}
