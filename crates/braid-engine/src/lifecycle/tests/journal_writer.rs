//! A model of the engine's writer: it writes rows of an array with parity through the journal, by the rules, one step of a disk at
//! a time, with several batches in flight.
//!
//! Blocks hold versions: a block of version 0 is zeros, any other repeats its number.

use braid_format::MemberState;
use braid_format::journal::{
    BatchHeader, Entry, EntryKind, HEAD_BYTES, Head, LostRow, RING_START_BYTES, RingOn, encode_batch, encode_head,
    head_slot, payload_crc, position_for,
};
use braid_parity::Parity;

use super::disks::{Chance, Disks};
use super::run;
use crate::lifecycle::{Array, JournalStart, Regions, load_regions, store_regions};
use crate::{LeafId, MetaIo};

/// What the writer does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slip {
    Nothing,
    /// As many copies of a batch as losses are tolerated.
    OneCopyFewer,
    /// Content is written in place before it is in the journal.
    PlacedBeforeLogged,
    /// A batch counts before those ahead of it.
    OutOfOrder,
    /// What is in place is taken for durable there: its space is used again.
    TailBeforeFlush,
    /// Space is used again before a batch that says so is durable.
    SpaceBeforeTail,
    /// A row with a live entry is written wholly with a mark only.
    MarkOverEntry,
    /// Of a row with a mark only what is new is logged.
    PartOfMarkedRow,
    /// A flush is answered while its marks are live.
    FlushKeepsMarks,
    /// Without all members rows are marked as with them.
    DegradedMarked,
    /// An unreadable row leaves the list before what was written is in place.
    LeavesListEarly,
    /// What has written an unreadable row again is retired before the row has left the list.
    TailBeforeList,
}

/// A block's versions, oldest first.
#[derive(Clone, Debug)]
pub struct Block {
    pub history: Vec<u64>,
    /// The index of the last one that a power cut must leave.
    pub durable: usize,
    /// The index of the last one that was answered.
    pub answered: usize,
    /// Of the last one that was written with a mark.
    pub marked: usize,
}

impl Block {
    fn of(version: u64) -> Block {
        Block { history: vec![version], durable: 0, answered: 0, marked: 0 }
    }

    fn current(&self) -> u64 {
        self.history.last().copied().unwrap_or(0)
    }
}

pub fn content(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(512)
}

#[derive(Clone)]
struct Op {
    row: usize,
    lines: std::ops::Range<usize>,
    cells: std::ops::Range<usize>,
    marked: bool,
    /// Of each block that it writes: which, and the index of its version.
    blocks: Vec<(usize, usize, usize)>,
    payload: Vec<u8>,
    /// Role, offset in the data area, bytes.
    to_place: Vec<(u16, u64, Vec<u8>)>,
    batch: Option<usize>,
}

#[derive(Clone)]
struct Batch {
    header: BatchHeader,
    bytes: Vec<u8>,
    /// Whom it goes to: 0 not begun, 1 in flight, 2 durable.
    copies: Vec<(LeafId, u64, u8)>,
    /// Operations that are not in place.
    open: usize,
    /// Rows that it marks, and rows of which it has content.
    marks: Vec<usize>,
    data: Vec<usize>,
}

/// A flush that somebody waits for.
struct Flush {
    /// The last batch with a mark when it was asked for.
    last: u64,
    /// Row, line and cell, and the index of the version that had been answered.
    answered: Vec<(usize, usize, usize, usize)>,
}

/// The array as its users see it, and the journal's home.
pub struct Writer<'a> {
    pub disks: &'a Disks,
    pub array: Array,
    pub slip: Slip,
    pub rows: Vec<u64>,
    pub lines: usize,
    /// By row, line, cell.
    pub blocks: Vec<Vec<Vec<Block>>>,
    pub lost: Vec<LostRow>,
    regions: Regions,
    run: u64,
    generation: u64,
    ring_blocks: u64,
    batches: Vec<Batch>,
    next_position: u64,
    /// Everything before is in place and flushed.
    flushed: u64,
    ops: Vec<Op>,
    flush: Option<Flush>,
    /// Unreadable rows that were wholly written: in which batch.
    leaving: Vec<(u64, u64)>,
    chance: Chance,
    next_version: u64,
    pub seen: Seen,
}

/// What came to pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub marks: u64,
    pub logged: u64,
    pub expanded: u64,
    pub flushes: u64,
    pub wraps: u64,
    pub left_list: u64,
}

/// The power is gone.
pub struct Dead;

impl From<crate::LeafError> for Dead {
    fn from(_: crate::LeafError) -> Dead {
        Dead
    }
}

impl From<crate::lifecycle::LifecycleError> for Dead {
    fn from(_: crate::lifecycle::LifecycleError) -> Dead {
        Dead
    }
}

impl<'a> Writer<'a> {
    pub fn new(
        disks: &'a Disks,
        array: Array,
        started: &JournalStart,
        rows: Vec<u64>,
        blocks: Vec<Vec<Vec<Block>>>,
        slip: Slip,
        seed: u64,
    ) -> Result<Writer<'a>, Dead> {
        let regions = run(load_regions(disks, &array, false))?;
        Ok(Writer {
            disks,
            array,
            slip,
            lines: started.row_bytes as usize / 4096,
            rows,
            blocks,
            lost: started.lost.clone(),
            regions,
            run: started.run,
            generation: started.generation,
            ring_blocks: started.ring_blocks,
            batches: Vec::new(),
            next_position: 0,
            flushed: 1,
            ops: Vec::new(),
            flush: None,
            leaving: Vec::new(),
            chance: Chance(seed),
            next_version: 1 + (seed & 0xffff) * 1000,
            seen: Seen::default(),
        })
    }

    /// All blocks of these rows as zeros.
    pub fn zeros(array: &Array, rows: &[u64], lines: usize) -> Vec<Vec<Vec<Block>>> {
        let of = |row: &u64| vec![vec![Block::of(0); cells_of(array, *row, lines)]; lines];
        rows.iter().map(of).collect()
    }

    pub fn version(of: u64) -> Block {
        Block::of(of)
    }

    fn parities(&self) -> usize {
        usize::from(self.array.label().spec.level.parity())
    }

    fn in_sync(&self) -> Vec<(LeafId, u64)> {
        let in_sync = self.array.members().filter(|m| m.state == MemberState::InSync);
        in_sync.map(|m| (m.leaf, m.part.places.journal.start)).collect()
    }

    /// How many batches count: each is durable on all that it goes to, and so is each before it.
    fn counting(&self) -> usize {
        let durable = |batch: &Batch| batch.copies.iter().all(|copy| copy.2 == 2);
        match self.slip {
            Slip::OutOfOrder => self.batches.iter().rposition(durable).map_or(0, |last| last + 1),
            _ => self.batches.iter().take_while(|batch| durable(batch)).count(),
        }
    }

    fn counts(&self, batch: usize) -> bool {
        match self.slip {
            Slip::OutOfOrder => self.batches[batch].copies.iter().all(|copy| copy.2 == 2),
            _ => batch < self.counting(),
        }
    }

    fn durable_tail(&self) -> u64 {
        if self.slip == Slip::SpaceBeforeTail {
            return self.flushed;
        }
        self.batches[..self.counting()].iter().map(|batch| batch.header.tail).max().unwrap_or(1)
    }

    fn live(&self) -> &[Batch] {
        &self.batches[self.durable_tail() as usize - 1..]
    }

    /// One thing that may happen next.
    pub fn step(&mut self) -> Result<(), Dead> {
        match self.chance.below(12) {
            0..=2 => self.begin(),
            3 | 4 => self.seal(),
            5..=7 => self.progress(),
            8 | 9 => self.place(),
            10 => match self.chance.below(3) {
                0 => self.ask_flush(),
                1 => self.retire(),
                _ if self.slip == Slip::LeavesListEarly => {
                    let open: Vec<(u64, u64)> = self.ops.iter().map(|op| (self.rows[op.row], 0)).collect();
                    self.leaving.extend(open);
                    self.leave_list(1)
                }
                _ => self.leave_list(self.flushed),
            },
            _ => match self.chance.below(4) {
                0 => self.clear_bits(),
                _ => self.move_tail(),
            },
        }
    }

    fn begin(&mut self) -> Result<(), Dead> {
        let row = self.chance.below(self.rows.len() as u64) as usize;
        if self.ops.len() >= 3 || self.ops.iter().any(|op| op.row == row) {
            return Ok(());
        }
        let number = self.rows[row];
        let cells = self.blocks[row][0].len();
        let listed = self.lost.iter().any(|lost| lost.row == number);
        let pending = self.ops.iter().any(|op| op.row == row);
        assert!(!pending);
        let mut whole = listed || self.chance.below(3) == 0;
        let first_line = self.chance.below(self.lines as u64) as usize;
        let mut lines = first_line..first_line + 1 + self.chance.below((self.lines - first_line) as u64) as usize;
        let first_cell = self.chance.below(cells as u64) as usize;
        let mut within = first_cell..first_cell + 1 + self.chance.below((cells - first_cell) as u64) as usize;
        let has = |of: fn(&Batch) -> &Vec<usize>| self.live().iter().any(|batch| of(batch).contains(&row));
        let (live_entry, live_mark) = (has(|batch| &batch.data), has(|batch| &batch.marks));
        whole |= lines == (0..self.lines) && within == (0..cells);
        let fua = self.chance.below(4) == 0;
        if whole {
            (lines, within) = (0..self.lines, 0..cells);
        }
        let free = !live_entry || self.slip == Slip::MarkOverEntry;
        let everybody = self.array.is_whole() || self.slip == Slip::DegradedMarked;
        let marked = whole && !fua && free && !listed && everybody;
        // Of a marked row all cells of the lines are logged.
        let logged = match marked {
            false if live_mark && self.slip != Slip::PartOfMarkedRow => 0..cells,
            _ => within.clone(),
        };
        self.seen.expanded += u64::from(logged != within);
        self.touch(number)?;
        let mut blocks = Vec::new();
        for line in lines.clone() {
            for cell in within.clone() {
                let block = &mut self.blocks[row][line][cell];
                block.history.push(self.next_version);
                self.next_version += 1;
                let index = block.history.len() - 1;
                block.marked = if marked { index } else { block.marked };
                blocks.push((line, cell, index));
            }
        }
        let mut op = Op { row, lines, cells: logged, marked, blocks, payload: vec![], to_place: vec![], batch: None };
        self.fill(&mut op, &within);
        self.ops.push(op);
        Ok(())
    }

    /// What it writes, in the journal and in place.
    fn fill(&mut self, op: &mut Op, within: &std::ops::Range<usize>) {
        let (stripe_members, member_offset, p, q) = self.place_of(op.row);
        let mut columns: Vec<Vec<u8>> = vec![Vec::new(); stripe_members.len() + self.parities()];
        for line in op.lines.clone() {
            let data: Vec<Vec<u8>> = self.blocks[op.row][line].iter().map(|block| content(block.current())).collect();
            let data_refs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let (mut p, mut q) = (vec![0; 4096], vec![0; if q.is_some() { 4096 } else { 0 }]);
            Parity::best().pq(&mut p, &mut q, &data_refs);
            for (column, bytes) in columns.iter_mut().zip(data.iter().chain([&p, &q])) {
                column.extend_from_slice(bytes);
            }
        }
        let offset = member_offset + op.lines.start as u64 * 4096;
        let parity = [Some(p), q].into_iter().flatten().zip(&columns[stripe_members.len()..]);
        let data = within.clone().map(|cell| (stripe_members[cell], &columns[cell]));
        op.to_place = data.chain(parity).map(|(role, bytes)| (role, offset, bytes.clone())).collect();
        self.chance.shuffle(&mut op.to_place);
        if !op.marked {
            let logged = op.cells.clone().chain(stripe_members.len()..columns.len());
            op.payload = logged.flat_map(|column| columns[column].clone()).collect();
        }
    }

    /// Roles of the data cells, where the row is, and roles of P and Q.
    fn place_of(&self, row: usize) -> (Vec<u16>, u64, u16, Option<u16>) {
        place_of(&self.array, self.rows[row], self.lines)
    }

    /// The row's region is dirty on all before anything is written.
    fn touch(&mut self, row: u64) -> Result<(), Dead> {
        let region = region_of(&self.array, row, self.lines);
        let (word, bit) = (region as usize / 64, 1u64 << (region % 64));
        if self.regions.dirty[word] & bit == 0 {
            self.regions.dirty[word] |= bit;
            self.store()?;
        }
        Ok(())
    }

    fn store(&self) -> Result<(), Dead> {
        let roles: Vec<u16> = self.array.members().map(|m| m.role).collect();
        run(store_regions(self.disks, &self.array, &roles, &self.regions.written, &self.regions.dirty))?;
        Ok(())
    }

    /// Bits are cleared with all members in sync, no write under way, after a flush.
    fn clear_bits(&mut self) -> Result<(), Dead> {
        if !self.array.is_whole() || !self.ops.is_empty() || self.chance.below(2) == 0 {
            return Ok(());
        }
        self.flush_all()?;
        self.regions.dirty.fill(0);
        self.store()
    }

    fn flush_all(&self) -> Result<(), Dead> {
        for member in self.array.members() {
            run(self.disks.flush(member.leaf))?;
        }
        Ok(())
    }

    fn is_free(&self, position: u64, blocks: u64) -> bool {
        let overlaps = |batch: &Batch| {
            let header = &batch.header;
            position < header.position + u64::from(header.blocks) && header.position < position + blocks
        };
        position + blocks <= self.ring_blocks && !self.live().iter().any(overlaps)
    }

    /// Where a batch of so many blocks goes. There stays room behind it for one that moves the tail.
    fn room(&self, blocks: u64, moves_tail: bool) -> Option<u64> {
        let position = position_for(self.next_position, blocks as u32, self.ring_blocks);
        let behind = position_for(position + blocks, 1, self.ring_blocks);
        let has_room = self.is_free(position, blocks)
            && (moves_tail || self.is_free(behind, 1) && !(position..position + blocks).contains(&behind));
        has_room.then_some(position)
    }

    /// Operations that wait become a batch.
    fn seal(&mut self) -> Result<(), Dead> {
        let waiting: Vec<usize> = (0..self.ops.len()).filter(|op| self.ops[*op].batch.is_none()).collect();
        let many = 1 + self.chance.below(3) as usize;
        let mut taken: Vec<usize> = waiting.into_iter().take(many).collect();
        let in_flight = self.batches.len() - self.batches.iter().filter(|b| b.copies.iter().all(|c| c.2 == 2)).count();
        if taken.is_empty() || in_flight >= 3 {
            return Ok(());
        }
        while !taken.is_empty() {
            let blocks: usize = taken.iter().map(|op| self.ops[*op].payload.len() / 4096).sum();
            if let Some(position) = self.room(1 + blocks as u64, false) {
                self.log(&taken, position);
                return Ok(());
            }
            taken.pop();
        }
        Ok(())
    }

    fn log(&mut self, ops: &[usize], position: u64) {
        let number = self.batches.len();
        let mut payload = Vec::new();
        let (mut entries, mut marks, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for index in ops {
            let parities = self.parities() as u8;
            let op = &mut self.ops[*index];
            op.batch = Some(number);
            let row = self.rows[op.row];
            if op.marked {
                entries.push(Entry::mark(row));
                marks.push(op.row);
                self.seen.marks += 1;
            } else {
                entries.push(Entry {
                    row,
                    first: op.lines.start as u16,
                    blocks: op.lines.len() as u16,
                    cell: op.cells.start as u8,
                    cells: op.cells.len() as u8,
                    parities,
                    kind: EntryKind::Data,
                });
                data.push(op.row);
                payload.extend_from_slice(&op.payload);
                self.seen.logged += 1;
            }
        }
        let header = BatchHeader {
            run: self.run,
            sequence: number as u64 + 1,
            tail: self.flushed.min(number as u64 + 1),
            position,
            blocks: 1 + payload.len() as u32 / 4096,
            entries: entries.len() as u16,
            payload_crc: if payload.is_empty() { 0 } else { payload_crc(0, &payload) },
        };
        let mut block = [0; 4096];
        encode_batch(&self.array.uuid(), &header, &entries, &mut block);
        let members = self.in_sync();
        let wanted = self.parities() + usize::from(self.slip != Slip::OneCopyFewer);
        let copies = (0..wanted.min(members.len())).map(|k| {
            let (leaf, journal) = members[(number + k) % members.len()];
            (leaf, journal + RING_START_BYTES + position * 4096, 0)
        });
        let copies = copies.collect();
        self.seen.wraps += u64::from(position < self.next_position);
        self.next_position = position + u64::from(header.blocks);
        let bytes = [&block[..], &payload].concat();
        self.batches.push(Batch { header, bytes, copies, open: ops.len(), marks, data });
    }

    /// A copy of a batch goes out, or arrives.
    fn progress(&mut self) -> Result<(), Dead> {
        let mut open = Vec::new();
        for (number, batch) in self.batches.iter().enumerate() {
            open.extend((0..batch.copies.len()).filter(|k| batch.copies[*k].2 < 2).map(|k| (number, k)));
        }
        if open.is_empty() {
            return Ok(());
        }
        let (number, k) = open[self.chance.below(open.len() as u64) as usize];
        let (leaf, offset, stage) = self.batches[number].copies[k];
        // In flight: any part of it may have arrived.
        run(self.disks.write(leaf, offset, self.batches[number].bytes.clone(), stage == 1))?;
        self.batches[number].copies[k].2 = stage + 1;
        self.answer_flush();
        Ok(())
    }

    /// A cell of an operation that is logged is written in place.
    fn place(&mut self) -> Result<(), Dead> {
        let early = self.slip == Slip::PlacedBeforeLogged;
        let may = |op: &Op| op.batch.is_some_and(|batch| self.counts(batch)) || early && !op.to_place.is_empty();
        let ready: Vec<usize> = (0..self.ops.len()).filter(|op| may(&self.ops[*op])).collect();
        if ready.is_empty() {
            return Ok(());
        }
        let index = ready[self.chance.below(ready.len() as u64) as usize];
        if let Some((role, offset, bytes)) = self.ops[index].to_place.pop() {
            let holder = self.array.members().find(|m| m.role == role).map(|m| (m.leaf, m.part.places.data.start));
            if let Some((leaf, data)) = holder {
                run(self.disks.write(leaf, data + offset, bytes, false))?;
            }
        }
        if self.ops[index].to_place.is_empty() && self.ops[index].batch.is_some_and(|batch| self.counts(batch)) {
            self.answer(index);
        }
        Ok(())
    }

    fn answer(&mut self, index: usize) {
        let op = self.ops.swap_remove(index);
        for (line, cell, version) in &op.blocks {
            let block = &mut self.blocks[op.row][*line][*cell];
            block.answered = *version;
            if !op.marked {
                block.durable = *version;
            }
        }
        let Some(batch) = op.batch else { return };
        self.batches[batch].open -= 1;
        if self.lost.iter().any(|lost| lost.row == self.rows[op.row]) {
            self.leaving.push((self.rows[op.row], batch as u64 + 1));
        }
    }

    /// What is in place, with all before it, is flushed: it is not needed in the journal any more.
    fn retire(&mut self) -> Result<(), Dead> {
        let placed = self.batches[..self.counting()].iter().take_while(|batch| batch.open == 0).count() as u64 + 1;
        if self.slip != Slip::TailBeforeFlush {
            self.flush_all()?;
        }
        // Only then may what has written unreadable rows again be forgotten.
        if self.slip != Slip::TailBeforeList {
            self.leave_list(placed)?;
        }
        self.flushed = self.flushed.max(placed);
        self.answer_flush();
        Ok(())
    }

    /// A batch without entries says so.
    fn move_tail(&mut self) -> Result<(), Dead> {
        let said = self.batches.iter().map(|batch| batch.header.tail).max().unwrap_or(1);
        if self.flushed > said
            && let Some(position) = self.room(1, true)
        {
            self.log(&[], position);
        }
        Ok(())
    }

    fn ask_flush(&mut self) -> Result<(), Dead> {
        if self.flush.is_some() {
            return Ok(());
        }
        let live = self.durable_tail() as usize - 1;
        let marks = self.batches[live..].iter().rposition(|batch| !batch.marks.is_empty());
        let Some(last) = marks.map(|at| (live + at) as u64 + 1) else { return Ok(()) };
        let mut answered = Vec::new();
        for (row, lines) in self.blocks.iter().enumerate() {
            for (line, cells) in lines.iter().enumerate() {
                answered.extend(cells.iter().enumerate().map(|(cell, block)| (row, line, cell, block.answered)));
            }
        }
        self.flush = Some(Flush { last, answered });
        Ok(())
    }

    fn answer_flush(&mut self) {
        let tail = if self.slip == Slip::FlushKeepsMarks { self.flushed } else { self.durable_tail() };
        let Some(Flush { answered, .. }) = self.flush.take_if(|flush| flush.last < tail) else { return };
        for (row, line, cell, index) in answered {
            let block = &mut self.blocks[row][line][cell];
            block.durable = block.durable.max(index);
        }
        self.seen.flushes += 1;
    }

    /// An unreadable row that was wholly written, and is in place durably, leaves the list.
    fn leave_list(&mut self, flushed: u64) -> Result<(), Dead> {
        let gone: Vec<u64> = self.leaving.iter().filter(|(_, batch)| *batch < flushed).map(|(row, _)| *row).collect();
        if gone.is_empty() {
            return Ok(());
        }
        self.leaving.retain(|(row, _)| !gone.contains(row));
        let before = self.lost.len();
        self.lost.retain(|lost| !gone.contains(&lost.row));
        if self.lost.len() == before {
            return Ok(());
        }
        self.generation += 1;
        let row_bytes = self.lines as u32 * 4096;
        let head = Head {
            generation: self.generation,
            run: self.run,
            ring_blocks: self.ring_blocks,
            row_bytes,
            ring_on: RingOn::Members,
        };
        let mut bytes = Box::new([0; HEAD_BYTES]);
        let used = encode_head(&self.array.uuid(), &head, &self.lost, &mut bytes);
        for (leaf, journal) in self.in_sync() {
            let offset = journal + head_slot(self.generation) * HEAD_BYTES as u64;
            run(self.disks.write(leaf, offset, bytes[..used].to_vec(), true))?;
        }
        self.seen.left_list += 1;
        Ok(())
    }
}

fn stripe_of(array: &Array, row: u64, lines: usize) -> (braid_geometry::Stripe<'_>, u64) {
    let row_bytes = lines as u64 * 4096;
    let rows_each = array.label().spec.chunk_bytes / row_bytes;
    let stripe = array.geometry().stripe(row / rows_each).unwrap();
    (stripe, stripe.member_offset + row % rows_each * row_bytes)
}

fn cells_of(array: &Array, row: u64, lines: usize) -> usize {
    stripe_of(array, row, lines).0.data_chunks()
}

/// Roles of a row's data cells, where it is in the data areas, and roles of P and Q.
pub fn place_of(array: &Array, row: u64, lines: usize) -> (Vec<u16>, u64, u16, Option<u16>) {
    let (stripe, offset) = stripe_of(array, row, lines);
    ((0..stripe.data_chunks()).map(|cell| stripe.data(cell)).collect(), offset, stripe.p(), stripe.q())
}

pub fn region_of(array: &Array, row: u64, lines: usize) -> u64 {
    stripe_of(array, row, lines).0.array_start / u64::from(array.label().region_bytes)
}
