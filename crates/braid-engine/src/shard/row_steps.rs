//! Requests to arrays with parity: what is written goes row by row through reading, computing, the journal, and into its
//! place; what cannot be read is computed from the rest of its row.
//!
//! A step of a request is a few ops, at most one for each row and height, with all their rows held in the range table. The
//! stages are states of the slot; what they need beside the slot is in its *work*.

use braid_format::bitmap::REGIONS_PER_BLOCK;
use braid_format::journal::{Entry, EntryKind};
use braid_geometry::{BLOCK_BYTES, Stripe};

use super::compute::{self, Broken, CELLS_MAX};
use super::journal::LogRequest;
use super::ranges::{release, tell_released};
use super::scratch::Run;
use super::slots::{self, Slot, State};
use super::waiting::{log_key, memory_key, range_key, region_key};
use super::{Shard, ShardMessage};
use crate::io::{Buf, DeviceId, ErrorKind, Flags, IoError, LeafIo, LeafSink, Op};
use crate::layout::DeviceLayout;
use crate::limits::{ROW_STEPS_MAX, STEP_IOS_MAX};
use crate::mirror::{Mirrored, Role};
use crate::parity::{How, OPS_MAX, Parity, RowOp, cut};

/// Pages of scratch memory of one step, unless a single op needs more.
const STEP_PAGES_MAX: u32 = 512;

/// Where a step is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Read,
    Log,
    Write,
}

/// What a step needs beside its slot.
pub(crate) struct Work {
    ops: [RowOp; OPS_MAX],
    count: usize,
    stage: Stage,
    /// Ops that the journal has not answered for.
    unlogged: u32,
    /// Up to which byte of the array the step goes.
    to: u64,
    memory: Option<Run>,
}

/// All that there are on a shard.
pub(crate) struct Works {
    list: Vec<Work>,
    free: Vec<u32>,
    /// Somebody waits for one, or for memory.
    awaited: bool,
    /// Memory that the kernel may have still, by slot.
    lent: Vec<(u32, Run)>,
}

impl Works {
    pub fn new() -> Works {
        Works { list: Vec::new(), free: Vec::new(), awaited: false, lent: Vec::new() }
    }

    /// Takes the memory for all of them, once.
    pub fn prepare(&mut self) {
        if self.list.is_empty() {
            let work =
                || Work { ops: [RowOp::NONE; OPS_MAX], count: 0, stage: Stage::Read, unlogged: 0, to: 0, memory: None };
            self.list = (0..ROW_STEPS_MAX).map(|_| work()).collect();
            self.free = (0..ROW_STEPS_MAX).rev().collect();
            self.lent = Vec::with_capacity(64);
        }
    }
}

/// Cells of a row, in the order of data, P, Q, with what is known of each.
struct Row<'a> {
    mirror: &'a Mirrored,
    parity: &'a Parity,
    stripe: Stripe<'a>,
}

impl<'a> Row<'a> {
    fn new(mirror: &'a Mirrored, row: u64) -> Row<'a> {
        let parity = mirror.parity.as_deref().expect("an array with parity");
        Row { mirror, parity, stripe: parity.stripe_of_row(&mirror.geometry, row).0 }
    }

    fn data(&self) -> usize {
        self.stripe.data_chunks()
    }

    fn cells(&self) -> usize {
        self.data() + self.parity.count
    }

    fn member(&self, cell: usize) -> usize {
        let member = match cell.checked_sub(self.data()) {
            None => self.stripe.data(cell),
            Some(0) => self.stripe.p(),
            Some(_) => self.stripe.q().expect("a second parity"),
        };
        usize::from(member)
    }

    fn is_readable(&self, cell: usize, slot: &Slot) -> bool {
        let member = self.member(cell);
        self.mirror.members[member].role == Role::InSync && !slot.avoid.has(member)
    }

    /// Whether everybody who has a part of the row is in sync.
    fn is_whole(&self) -> bool {
        let in_sync = |member: usize| self.mirror.members[member].role == Role::InSync;
        (0..self.cells()).all(|cell| in_sync(self.member(cell)))
            && self.mirror.successors.iter().all(|s| in_sync(usize::from(s.member)))
    }

    /// What is to be read for an op, in which order it stands in memory behind the parities. `None`: too much is lost.
    fn how(&self, op: &RowOp, slot: &Slot) -> Option<How> {
        let lost = (0..self.cells()).filter(|cell| !self.is_readable(*cell, slot)).count();
        if lost > self.parity.count {
            return None;
        }
        let others = self.data() - usize::from(op.cells);
        if others == 0 {
            return Some(How::Full);
        }
        let reconstructs = (0..self.data()).all(|cell| op.covers(cell) || self.is_readable(cell, slot));
        Some(match (lost, reconstructs) {
            (0, _) if usize::from(op.cells) + self.parity.count < others => How::Modify,
            (_, true) => How::Reconstruct,
            (_, false) => How::Recover,
        })
    }

    /// Cells of an op that stand in scratch memory, behind the parities.
    fn kept(&self, op: &RowOp) -> usize {
        match op.how {
            How::Full => 0,
            How::Modify => usize::from(op.cells),
            How::Reconstruct => self.data() - usize::from(op.cells),
            How::Recover => self.data(),
        }
    }

    /// Of these, where a data cell stands.
    fn place(&self, op: &RowOp, cell: usize) -> usize {
        let first = usize::from(op.cell);
        match op.how {
            How::Full => unreachable!("nothing is kept"),
            How::Modify => cell - first,
            How::Reconstruct if cell < first => cell,
            How::Reconstruct => cell - usize::from(op.cells),
            How::Recover => cell,
        }
    }

    /// Pages of scratch memory of an op; one more cell where zeros are to be written.
    fn pages(&self, op: &RowOp, zeros: bool) -> u32 {
        (self.parity.count + self.kept(op) + usize::from(zeros)) as u32 * u32::from(op.blocks)
    }

    /// Whether a cell is read for an op.
    fn is_read(&self, op: &RowOp, cell: usize, slot: &Slot) -> bool {
        let data = cell < self.data();
        match op.how {
            How::Full => false,
            How::Modify => !data || op.covers(cell),
            How::Reconstruct => data && !op.covers(cell),
            How::Recover => self.is_readable(cell, slot),
        }
    }
}

/// Where the memory of an op is.
#[derive(Clone, Copy)]
struct Memory {
    base: Buf,
    len: u64,
    parities: usize,
    /// Cells kept behind the parities.
    kept: usize,
}

impl Memory {
    fn parity(&self, number: usize) -> Buf {
        self.base.add(number as u64 * self.len)
    }

    fn kept(&self, place: usize) -> Buf {
        self.base.add((self.parities + place) as u64 * self.len)
    }

    fn zeros(&self) -> Buf {
        self.kept(self.kept)
    }
}

impl Shard {
    fn memory_of(&self, row: &Row<'_>, op: &RowOp) -> Memory {
        let base = self.scratch.as_ref().expect("an array with parity has scratch memory").page(op.page);
        Memory { base, len: op.len(), parities: row.parity.count, kept: row.kept(op) }
    }

    /// New data of a cell of an op.
    fn new_data(&self, slot: &Slot, row: &Row<'_>, op: &RowOp, cell: usize) -> Buf {
        if slot.op == Op::Write {
            return slot.buf.add(op.array_offset(row.parity, &row.stripe, cell) - slot.start);
        }
        self.memory_of(row, op).zeros()
    }

    /// Begins the next step of what changes an array with parity, or puts the slot into the list of what it waits for.
    pub(super) fn row_step(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let parity = mirror.parity.as_deref().expect("an array with parity");
        if slot.flags.has(Flags::FAST_ZERO) {
            return self.fail(index, ErrorKind::Unsupported, sink);
        }
        if mirror.failed {
            return self.fail(index, ErrorKind::Failed, sink);
        }
        let zeros = slot.op != Op::Write;
        if zeros && self.skip_unwritten(index, mirror) {
            return self.advance(index, sink);
        }
        let cursor = self.slots[index].cursor;
        let mut ops = [RowOp::NONE; OPS_MAX];
        let mut end = slot.end;
        let (count, to, pages) = loop {
            let (count, to) = cut(&mirror.geometry, parity, cursor, end, &mut ops);
            let (mut pages, mut ios, mut logged) = (0, 0, 0);
            for op in &mut ops[..count] {
                let row = Row::new(mirror, op.row);
                let Some(how) = row.how(op, &slot) else {
                    let kind = slot.cause.map_or(ErrorKind::Failed, |cause| cause.kind);
                    return self.fail(index, kind, sink);
                };
                op.how = how;
                let covers = how == How::Full && op.len() == parity.row_bytes;
                op.logged = !covers || zeros || slot.flags.has(Flags::FUA) || !row.is_whole();
                pages += row.pages(op, zeros);
                ios += row.cells() + mirror.successors.len();
                if op.logged {
                    logged += (u64::from(op.cells) + parity.count as u64) * u64::from(op.blocks);
                }
            }
            // What is logged goes into one batch: who holds space of the journal never waits for more of it.
            let fits = pages <= STEP_PAGES_MAX && ios <= STEP_IOS_MAX && logged <= parity.logged_blocks_max;
            if count == 1 || fits {
                break (count, to, pages);
            }
            // Half of it. Ops are never smaller than a block, so that this ends.
            end = cursor + ((to - cursor) / 2).next_multiple_of(BLOCK_BYTES);
        };
        let rows = ops[..count].iter().map(|op| op.row);
        let (first, last) = rows.fold((u64::MAX, 0), |(low, high), row| (low.min(row), high.max(row)));
        if !self.hold_rows(index, first, last) {
            return;
        }
        for op in &ops[..count] {
            if parity.is_lost(op.row) {
                return self.fail(index, ErrorKind::Io, sink);
            }
            let stripe = Row::new(mirror, op.row).stripe;
            let region = mirror.regions.region_of(stripe.array_start);
            if !mirror.regions.writable.has(region) {
                return self.await_region(index, mirror, region, sink);
            }
        }
        let Some(work) = self.take_work(index, pages) else { return };
        let memory = self.works.list[work as usize].memory.expect("it was just taken");
        let mut page = memory.first;
        for op in &mut ops[..count] {
            op.page = page;
            page += Row::new(mirror, op.row).pages(op, zeros);
        }
        let taken = &mut self.works.list[work as usize];
        (taken.ops, taken.count, taken.to, taken.stage) = (ops, count, to, Stage::Read);
        self.slots[index].step = cursor;
        self.read_rows(index, work, mirror, sink);
    }

    /// Begins to compute what cannot be read where the slot's cursor is.
    pub(super) fn recover_step(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let parity = mirror.parity.as_deref().expect("an array with parity");
        let mut chunk_end = slot.cursor + mirror.geometry.locate(slot.cursor).len;
        if !parity.node.lost.is_empty() {
            // Whether the next block can be had was looked at, and of no further one.
            chunk_end = chunk_end.min(slot.cursor + BLOCK_BYTES);
        }
        let mut ops = [RowOp::NONE; OPS_MAX];
        cut(&mirror.geometry, parity, slot.cursor, slot.end.min(chunk_end), &mut ops);
        let op = RowOp { how: How::Recover, ..ops[0] };
        let row = Row::new(mirror, op.row);
        let lost = (0..row.cells()).filter(|cell| !row.is_readable(*cell, &slot)).count();
        if lost > parity.count {
            let kind = slot.cause.map_or(ErrorKind::Failed, |cause| cause.kind);
            return self.fail(index, kind, sink);
        }
        if !self.hold_rows(index, op.row, op.row) {
            return;
        }
        let Some(work) = self.take_work(index, row.pages(&op, false)) else { return };
        let taken = &mut self.works.list[work as usize];
        let page = taken.memory.expect("it was just taken").first;
        taken.ops[0] = RowOp { page, ..op };
        (taken.count, taken.to, taken.stage) = (1, slot.cursor + op.len(), Stage::Read);
        self.slots[index].step = slot.cursor;
        self.read_rows(index, work, mirror, sink);
    }

    fn fail(&mut self, index: u32, kind: ErrorKind, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        let leaf = slot.cause.and_then(|cause| cause.leaf);
        slot.error.get_or_insert(IoError { leaf, offset: slot.start, ..IoError::of(kind) });
        self.advance(index, sink);
    }

    /// Moves the cursor past what was never written, where zeros are to be. True: that was all.
    fn skip_unwritten(&mut self, index: u32, mirror: &Mirrored) -> bool {
        let slot = &mut self.slots[index];
        while slot.cursor < slot.end {
            let stripe = mirror.geometry.stripe_of(slot.cursor).expect("inside the array");
            if mirror.regions.written.has(mirror.regions.region_of(stripe.array_start)) {
                return false;
            }
            slot.cursor = slot.end.min(stripe.array_start + stripe.data_chunks() as u64 * stripe.chunk_bytes);
        }
        true
    }

    /// Holds these rows, and no others. False: somebody else does, and the slot waits.
    fn hold_rows(&mut self, index: u32, first: u64, last: u64) -> bool {
        let slot = &mut self.slots[index];
        let want = (first * BLOCK_BYTES, (last + 1) * BLOCK_BYTES);
        if slot.held == want {
            return true;
        }
        if slot.held.0 < slot.held.1 {
            release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        }
        let mut tell = |bucket| tell_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
        match self.shared.ranges.acquire(DeviceId(slot.device), want.0, want.1, &mut tell) {
            Ok(()) => slot.held = want,
            Err(bucket) => {
                self.waiting.park(&mut self.slots, index, range_key(bucket));
                return false;
            }
        }
        true
    }

    /// Waits until the region's home has made it writable.
    fn await_region(&mut self, index: u32, mirror: &Mirrored, region: u32, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        let device = DeviceId(slot.device);
        // Whoever makes the region ready needs the rows.
        release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        if self.devices.at(device.0).version != self.slots[index].version {
            self.move_to_current(index);
            self.forgive(index);
            return self.advance(index, sink);
        }
        self.waiting.park(&mut self.slots, index, region_key(device, region / REGIONS_PER_BLOCK));
        let home = mirror.regions.home();
        if home == self.id {
            self.need(device, region, sink);
        } else {
            self.outbox.push_back((home, ShardMessage::Need { device, region }));
        }
    }

    /// A work with so many pages for the slot. None: there is none now, and the slot waits.
    fn take_work(&mut self, index: u32, pages: u32) -> Option<u32> {
        let memory = match self.works.free.is_empty() {
            true => None,
            false => self.scratch.as_mut().and_then(|scratch| scratch.take(pages)),
        };
        let Some(memory) = memory else {
            self.works.awaited = true;
            self.waiting.park(&mut self.slots, index, memory_key());
            return None;
        };
        let work = self.works.free.pop().expect("one was free");
        self.works.list[work as usize].memory = Some(memory);
        self.slots[index].work = work;
        Some(work)
    }

    /// Reads what the ops of a work need.
    fn read_rows(&mut self, index: u32, work: u32, mirror: &Mirrored, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        let of = &self.works.list[work as usize];
        let (ops, count) = (of.ops, of.count);
        let mut out = 0;
        for op in &ops[..count] {
            let row = Row::new(mirror, op.row);
            let memory = self.memory_of(&row, op);
            for cell in (0..row.cells()).filter(|cell| row.is_read(op, *cell, &slot)) {
                let buf = match cell.checked_sub(row.data()) {
                    None => memory.kept(row.place(op, cell)),
                    Some(parity) => memory.parity(parity),
                };
                let member = &mirror.members[row.member(cell)];
                let at = member.start + row.stripe.member_offset + op.column(row.parity);
                let cookie = slots::cookie(index, slot.generation, member.leaf);
                sink.submit(&LeafIo::simple(member.leaf, Op::Read, Flags::NONE, at, op.len(), buf, cookie));
                out += 1;
            }
        }
        self.slots[index].out = out;
        if out == 0 {
            self.advance(index, sink);
        }
    }

    /// Takes a step that has no I/O out further. True: it has ended, and the slot goes on with its next one.
    pub(super) fn row_go(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let work = self.slots[index].work as usize;
        match self.works.list[work].stage {
            Stage::Read => {
                if std::mem::take(&mut self.slots[index].again) {
                    // Planned anew, without whoever could not read.
                    self.drop_work(index, sink);
                    return true;
                }
                if self.slots[index].op == Op::Read {
                    return self.recovered(index, sink);
                }
                if !self.compute_rows(index, sink) {
                    return true;
                }
                self.log_rows(index, |_| true, sink);
                false
            }
            Stage::Log => {
                self.write_rows(index, sink);
                false
            }
            Stage::Write => self.rows_written(index, sink),
        }
    }

    /// All that was submitted is in place. True: that was the whole step.
    fn rows_written(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let work = self.slots[index].work as usize;
        let mut left = false;
        for number in 0..self.works.list[work].count {
            let op = &mut self.works.list[work].ops[number];
            if op.submitted && !op.done {
                op.done = true;
                let sequence = std::mem::take(&mut op.sequence);
                self.tell_in_place(index, sequence, sink);
            }
            left |= !self.works.list[work].ops[number].done;
        }
        if left {
            self.write_rows(index, sink);
            return false;
        }
        let to = self.works.list[work].to;
        self.drop_work(index, sink);
        self.slots[index].cursor = to;
        true
    }

    /// What was lost is computed into the request's memory.
    fn recovered(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let work = &self.works.list[slot.work as usize];
        let (op, to) = (work.ops[0], work.to);
        let row = Row::new(mirror, op.row);
        let target = slot.buf.add(slot.cursor - slot.start);
        if !self.recover_row(&slot, &row, &op, Some((usize::from(op.cell), target)), sink) {
            self.slots[index].error.get_or_insert(IoError::of(ErrorKind::Failed));
            return true;
        }
        self.drop_work(index, sink);
        let slot = &mut self.slots[index];
        release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        slot.cursor = to;
        true
    }

    /// Computes the data cells of a row that could not be read: one of them to this place, the others to scratch memory.
    fn recover_row(
        &mut self,
        slot: &Slot,
        row: &Row<'_>,
        op: &RowOp,
        target: Option<(usize, Buf)>,
        sink: &mut impl LeafSink,
    ) -> bool {
        let memory = self.memory_of(row, op);
        let mut cells = [None; CELLS_MAX];
        let (mut wanted, mut count) = ([(0, Buf::NONE); 2], 0);
        for cell in 0..row.cells() {
            let parity = cell.checked_sub(row.data());
            if row.is_readable(cell, slot) {
                let place = parity.map_or_else(|| memory.kept(cell), |parity| memory.parity(parity));
                cells[cell] = Some(place);
            } else if parity.is_none() {
                let Some(lost) = wanted.get_mut(count) else { return false };
                *lost = match target {
                    Some((of, buf)) if of == cell => (cell, buf),
                    _ => (cell, memory.kept(cell)),
                };
                count += 1;
            }
        }
        let broken = Broken { data: row.data(), cells: &cells[..row.cells()], wanted: &wanted[..count] };
        compute::recover(sink, &broken, op.len())
    }

    /// Computes the parities of all ops. False: what is lost cannot be computed.
    fn compute_rows(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let work = &self.works.list[slot.work as usize];
        let (ops, count) = (work.ops, work.count);
        for op in &ops[..count] {
            let row = Row::new(mirror, op.row);
            let memory = self.memory_of(&row, op);
            if slot.op != Op::Write {
                sink.zero(memory.zeros(), op.len());
            }
            let parities = [memory.parity(0), memory.parity(1)];
            let parities = &parities[..row.parity.count];
            if op.how == How::Modify {
                for cell in (0..row.data()).filter(|cell| op.covers(*cell)) {
                    let (old, new) = (memory.kept(row.place(op, cell)), self.new_data(&slot, &row, op, cell));
                    compute::update(sink, cell, old, new, parities, op.len());
                }
                continue;
            }
            if op.how == How::Recover && !self.recover_row(&slot, &row, op, None, sink) {
                self.slots[index].error.get_or_insert(IoError::of(ErrorKind::Failed));
                return false;
            }
            let mut data = [Buf::NONE; CELLS_MAX];
            for (cell, buf) in data.iter_mut().enumerate().take(row.data()) {
                *buf = match op.covers(cell) {
                    true => self.new_data(&slot, &row, op, cell),
                    false => memory.kept(row.place(op, cell)),
                };
            }
            compute::encode(sink, &data[..row.data()], parities, op.len());
        }
        true
    }

    /// Asks for these ops to be put into the journal, and waits for that.
    fn log_rows(&mut self, index: u32, which: impl Fn(&RowOp) -> bool, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        let device = DeviceId(slot.device);
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let work = &mut self.works.list[slot.work as usize];
        let (ops, count) = (work.ops, work.count);
        let asked = ops[..count].iter().filter(|op| which(op)).count();
        (work.stage, work.unlogged) = (Stage::Log, asked as u32);
        // From here on an answer may come within a call.
        self.waiting.park(&mut self.slots, index, log_key(device));
        let home = mirror.regions.home();
        let mut left = asked;
        for (number, op) in ops[..count].iter().enumerate().filter(|(_, op)| which(op)) {
            left -= 1;
            let row = Row::new(mirror, op.row);
            let entry = Entry {
                row: op.row,
                first: op.first,
                blocks: op.blocks,
                cell: op.cell as u8,
                cells: op.cells as u8,
                parities: row.parity.count as u8,
                kind: EntryKind::Data,
            };
            let stride = if slot.op == Op::Write { row.stripe.chunk_bytes } else { 0 };
            let request = LogRequest {
                from: self.id,
                slot: index,
                generation: slot.generation,
                op: number as u8,
                entry,
                mark: !op.logged,
                last: left == 0,
                data: self.new_data(&slot, &row, op, usize::from(op.cell)),
                stride,
                parity: self.memory_of(&row, op).parity(0),
            };
            if home == self.id {
                self.journal_log(device, request, sink);
            } else {
                self.outbox.push_back((home, ShardMessage::Log { device, request }));
            }
        }
    }

    /// The journal has an op, or cannot take it.
    pub(super) fn row_logged(&mut self, index: u32, generation: u32, op: u8, result: Result<u64, ErrorKind>) {
        let slot = &mut self.slots[index];
        debug_assert!(slot.generation == generation && slot.work != slots::NONE, "who asked the journal waits for it");
        let work = &mut self.works.list[slot.work as usize];
        match result {
            Ok(sequence) => work.ops[usize::from(op)].sequence = sequence,
            Err(kind) => drop(slot.error.get_or_insert(IoError { offset: slot.start, ..IoError::of(kind) })),
        }
        work.unlogged -= 1;
        if work.unlogged == 0 {
            self.replies.push_back(index);
        }
    }

    /// Slots whose ops the journal has answered for go on.
    pub(super) fn work_off_replies(&mut self, sink: &mut impl LeafSink) {
        while let Some(index) = self.replies.pop_front() {
            let slot = &self.slots[index];
            let ready = slot.state == State::Waiting && slot.wait_key == log_key(DeviceId(slot.device));
            // One that waits for the end of a freeze goes on then.
            if ready {
                self.waiting.unpark(&mut self.slots, index);
                self.move_to_current(index);
                self.advance(index, sink);
            }
        }
    }

    /// Whether the journal has still to answer for the slot: until then its memory may be read, and it must not end.
    pub(super) fn is_being_logged(&self, index: u32) -> bool {
        let work = self.slots[index].work;
        work != slots::NONE && self.works.list[work as usize].unlogged > 0
    }

    /// Whether a slot reads for a row right now.
    pub(super) fn reads_rows(&self, slot: &Slot) -> bool {
        slot.work != slots::NONE && self.works.list[slot.work as usize].stage == Stage::Read
    }

    /// Writes data and parities in place.
    fn write_rows(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        let layout: std::sync::Arc<DeviceLayout> = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let work = &mut self.works.list[slot.work as usize];
        work.stage = Stage::Write;
        for op in &mut work.ops[..work.count] {
            op.submitted |= op.sequence > 0 && (op.logged || Row::new(mirror, op.row).is_whole());
        }
        let (ops, count) = (work.ops, work.count);
        let mut out = 0;
        for op in ops[..count].iter().filter(|op| op.submitted && !op.done) {
            let row = Row::new(mirror, op.row);
            let memory = self.memory_of(&row, op);
            for cell in 0..row.cells() {
                let buf = match cell.checked_sub(row.data()) {
                    None if op.covers(cell) => self.new_data(&slot, &row, op, cell),
                    None => continue,
                    Some(parity) => memory.parity(parity),
                };
                let holder = row.member(cell);
                let successors = mirror.successors.iter().filter(|s| usize::from(s.role) == holder);
                for member in std::iter::once(holder).chain(successors.map(|s| usize::from(s.member))) {
                    let member = &mirror.members[member];
                    if member.role == Role::Out {
                        continue;
                    }
                    let at = member.start + row.stripe.member_offset + op.column(row.parity);
                    let cookie = slots::cookie(index, slot.generation, member.leaf);
                    sink.submit(&LeafIo::simple(member.leaf, Op::Write, Flags::NONE, at, op.len(), buf, cookie));
                    out += 1;
                }
            }
        }
        self.slots[index].out = out;
        if out == 0 {
            self.log_bare(index, sink);
        }
    }

    /// A member was lost since ops were marked: the first of those that are left is logged, now that nothing of the step is in
    /// the journal and not in place.
    #[cold]
    fn log_bare(&mut self, index: u32, sink: &mut impl LeafSink) {
        let work = self.slots[index].work as usize;
        let count = self.works.list[work].count;
        let number = self.works.list[work].ops[..count].iter().position(|op| !op.submitted).expect("an op is left");
        // Marks of the others as well: who holds something of the journal must not wait for it.
        for bare in number..count {
            let op = &mut self.works.list[work].ops[bare];
            let sequence = if op.submitted { 0 } else { std::mem::take(&mut op.sequence) };
            if sequence > 0 {
                self.tell_in_place(index, sequence, sink);
            }
        }
        let op = &mut self.works.list[work].ops[number];
        op.logged = true;
        let page = op.page;
        self.log_rows(index, |op| op.page == page, sink);
    }

    /// Ends a step: the journal is told that its entries are in place, or never will be; memory is given back.
    pub(super) fn drop_work(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        let (work, late) = (std::mem::replace(&mut slot.work, slots::NONE), slot.late > 0);
        if work == slots::NONE {
            return;
        }
        let of = &mut self.works.list[work as usize];
        let (ops, count, memory) = (of.ops, of.count, of.memory.take());
        self.works.free.push(work);
        if let Some(memory) = memory {
            match late {
                true => self.works.lent.push((index, memory)),
                false => self.give_memory(memory),
            }
        }
        for op in ops[..count].iter().filter(|op| op.sequence > 0) {
            self.tell_in_place(index, op.sequence, sink);
        }
    }

    fn tell_in_place(&mut self, index: u32, sequence: u64, sink: &mut impl LeafSink) {
        let slot = &self.slots[index];
        let device = DeviceId(slot.device);
        let layout = self.devices.at(slot.device).layout(slot.version);
        let Some(mirror) = layout.mirror() else { return };
        let (home, run) = (mirror.regions.home(), mirror.parity.as_deref().map_or(0, |parity| parity.node.run));
        if home == self.id {
            self.journal_in_place(device, run, sequence, sink);
        } else {
            self.outbox.push_back((home, ShardMessage::InPlace { device, run, sequence }));
        }
    }

    fn give_memory(&mut self, memory: Run) {
        if let Some(scratch) = self.scratch.as_mut() {
            scratch.give(memory);
        }
        if std::mem::take(&mut self.works.awaited) {
            self.woken.push_back((memory_key(), None));
        }
    }

    /// The kernel has nothing of a slot any more: memory that it might have had is free.
    #[inline]
    pub(super) fn reclaim(&mut self, index: u32) {
        if !self.works.lent.is_empty() {
            self.reclaim_lent(index);
        }
    }

    #[cold]
    fn reclaim_lent(&mut self, index: u32) {
        while let Some(at) = self.works.lent.iter().position(|(slot, _)| *slot == index) {
            let (_, memory) = self.works.lent.swap_remove(at);
            self.give_memory(memory);
        }
    }

    /// A flush of an array with parity asks the journal. False: it is done.
    pub(super) fn settle_step(&mut self, index: u32, sink: &mut impl LeafSink) -> bool {
        let slot = &mut self.slots[index];
        if slot.cursor > 1 {
            return false;
        }
        let (device, generation, asked) = (DeviceId(slot.device), slot.generation, slot.cursor == 1);
        slot.cursor = 1;
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let Some(mirror) = layout.mirror().filter(|mirror| !mirror.failed) else {
            self.slots[index].error = Some(IoError::of(ErrorKind::Failed));
            return false;
        };
        self.waiting.park(&mut self.slots, index, log_key(device));
        if asked {
            return true;
        }
        let home = mirror.regions.home();
        if home == self.id {
            self.journal_settle(device, (self.id, index, generation), sink);
        } else {
            let from = self.id;
            self.outbox.push_back((home, ShardMessage::Settle { device, from, slot: index, generation }));
        }
        true
    }

    /// The journal has settled what a flush waits for.
    pub(super) fn row_settled(&mut self, index: u32, generation: u32, result: Result<(), ErrorKind>) {
        let slot = &mut self.slots[index];
        if slot.generation != generation || slot.state == State::Free || !slot.flushing {
            return;
        }
        match result {
            Ok(()) => slot.cursor = 2,
            Err(kind) => drop(slot.error.get_or_insert(IoError::of(kind))),
        }
        self.replies.push_back(index);
    }
}
