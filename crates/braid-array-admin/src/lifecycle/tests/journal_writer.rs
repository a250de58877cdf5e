//! A model of the engine's writer: it writes stripes of an array with parity through the journal, by the rules, one
//! disk step at a time, with several batches in flight.
//!
//! Blocks hold versions: a block of version 0 is zeros, any other repeats its number.

use braid_engine::{LeafId, MetaIo};
use braid_format::MemberState;
use braid_format::journal::{
    EntryKind, HEAD_BYTES, JournalBatchHeader, JournalEntry, JournalHead, LostStripe, RING_OFFSET_BYTES, RingLocation,
    encode_batch, encode_head, head_slot, payload_crc, position_for,
};
use braid_parity::Parity;

use super::disks::{Chance, Disks};
use super::run;
use crate::lifecycle::{Array, ArrayBitmap, JournalStart, load_regions, store_regions};

/// A seeded bug of the writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    None,
    /// A batch has only as many copies as losses are tolerated.
    OneCopyFewer,
    /// Content is written in place before it is in the journal.
    PlacedBeforeLogged,
    /// A batch is taken as logged before those ahead of it.
    OutOfOrder,
    /// In-place writes are taken as durable without a flush: their ring space is reused.
    TailBeforeFlush,
    /// Ring space is reused before a batch that records the new tail is durable.
    SpaceBeforeTail,
    /// A stripe with a live entry gets a full-stripe write with a mark only.
    MarkOverEntry,
    /// Of a stripe with a mark, only the new cells are logged.
    PartOfMarkedStripe,
    /// A flush is acknowledged while its marks are live.
    FlushKeepsMarks,
    /// A degraded array marks stripes as a whole array does.
    DegradedMarked,
    /// An unreadable stripe is removed from the list before its content is in place.
    LeavesListEarly,
    /// The entries that rewrote an unreadable stripe are retired before the stripe is removed from the list.
    TailBeforeList,
}

/// A block's versions, oldest first.
#[derive(Clone, Debug)]
pub struct Block {
    pub history: Vec<u64>,
    /// The index of the last version that a power cut must preserve.
    pub durable: usize,
    /// The index of the last acknowledged version.
    pub acknowledged: usize,
    /// The index of the last version written with a mark.
    pub marked: usize,
}

impl Block {
    fn of(version: u64) -> Block {
        Block { history: vec![version], durable: 0, acknowledged: 0, marked: 0 }
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
    /// The blocks that it writes, and the index of each one's version.
    blocks: Vec<(usize, usize, usize)>,
    payload: Vec<u8>,
    /// Slot, offset in the data area, bytes.
    in_place_writes: Vec<(u16, u64, Vec<u8>)>,
    batch: Option<usize>,
}

#[derive(Clone)]
struct Batch {
    header: JournalBatchHeader,
    bytes: Vec<u8>,
    /// Its copies: disk, offset, and 0 not begun, 1 in flight, 2 durable.
    copies: Vec<(LeafId, u64, u8)>,
    /// Operations that are not in place.
    open: usize,
    /// The stripes that it marks, and those that it has content of.
    marks: Vec<usize>,
    data: Vec<usize>,
}

/// A flush in progress.
struct Flush {
    /// The last batch with a mark when it was requested.
    last: u64,
    /// Stripe, line and cell, and the index of the version acknowledged then.
    acknowledged: Vec<(usize, usize, usize, usize)>,
}

/// The array as its users see it, and the home of its journal.
pub struct Writer<'a> {
    pub disks: &'a Disks,
    pub array: Array,
    pub mutation: Mutation,
    pub rows: Vec<u64>,
    pub lines: usize,
    /// By stripe, line, cell.
    pub blocks: Vec<Vec<Vec<Block>>>,
    pub lost: Vec<LostStripe>,
    regions: ArrayBitmap,
    run: u64,
    generation: u64,
    ring_blocks: u64,
    batches: Vec<Batch>,
    next_position: u64,
    /// All earlier batches are in place and flushed.
    flushed: u64,
    ops: Vec<Op>,
    flush: Option<Flush>,
    /// Unreadable stripes that were fully rewritten, and the batch that did it.
    leaving: Vec<(u64, u64)>,
    chance: Chance,
    next_version: u64,
    pub seen: Seen,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub marks: u64,
    pub logged: u64,
    pub expanded: u64,
    pub flushes: u64,
    pub wraps: u64,
    pub left_list: u64,
}

/// The power is cut.
pub struct Dead;

impl From<braid_engine::LeafError> for Dead {
    fn from(_: braid_engine::LeafError) -> Dead {
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
        mutation: Mutation,
        seed: u64,
    ) -> Result<Writer<'a>, Dead> {
        let regions = run(load_regions(disks, &array, false))?;
        Ok(Writer {
            disks,
            array,
            mutation,
            lines: started.stripe_bytes as usize / 4096,
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

    /// Returns all blocks of these stripes as zeros.
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
        in_sync.map(|m| (m.leaf, m.part.layout.journal.start)).collect()
    }

    /// Returns how many batches are logged: each is durable on all of its disks, and so is each before it.
    fn counting(&self) -> usize {
        let durable = |batch: &Batch| batch.copies.iter().all(|copy| copy.2 == 2);
        match self.mutation {
            Mutation::OutOfOrder => self.batches.iter().rposition(durable).map_or(0, |last| last + 1),
            _ => self.batches.iter().take_while(|batch| durable(batch)).count(),
        }
    }

    fn counts(&self, batch: usize) -> bool {
        match self.mutation {
            Mutation::OutOfOrder => self.batches[batch].copies.iter().all(|copy| copy.2 == 2),
            _ => batch < self.counting(),
        }
    }

    fn durable_tail(&self) -> u64 {
        if self.mutation == Mutation::SpaceBeforeTail {
            return self.flushed;
        }
        self.batches[..self.counting()].iter().map(|batch| batch.header.tail).max().unwrap_or(1)
    }

    fn live(&self) -> &[Batch] {
        &self.batches[self.durable_tail() as usize - 1..]
    }

    /// Makes one of the possible next steps.
    pub fn step(&mut self) -> Result<(), Dead> {
        match self.chance.below(12) {
            0..=2 => self.begin(),
            3 | 4 => self.seal(),
            5..=7 => self.progress(),
            8 | 9 => self.write_in_place(),
            10 => match self.chance.below(3) {
                0 => self.request_flush(),
                1 => self.retire(),
                _ if self.mutation == Mutation::LeavesListEarly => {
                    let open: Vec<(u64, u64)> = self.ops.iter().map(|op| (self.rows[op.row], 0)).collect();
                    self.leaving.extend(open);
                    self.delist(1)
                }
                _ => self.delist(self.flushed),
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
        let listed = self.lost.iter().any(|lost| lost.stripe == number);
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
        let free = !live_entry || self.mutation == Mutation::MarkOverEntry;
        let may_mark = self.array.is_whole() || self.mutation == Mutation::DegradedMarked;
        let marked = whole && !fua && free && !listed && may_mark;
        // Of a marked stripe, all cells of the lines are logged.
        let logged = match marked {
            false if live_mark && self.mutation != Mutation::PartOfMarkedStripe => 0..cells,
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
        let mut op =
            Op { row, lines, cells: logged, marked, blocks, payload: vec![], in_place_writes: vec![], batch: None };
        self.compute_content(&mut op, &within);
        self.ops.push(op);
        Ok(())
    }

    /// Computes what it writes, to the journal and in place.
    fn compute_content(&mut self, op: &mut Op, within: &std::ops::Range<usize>) {
        let (stripe_members, member_offset, p, q) = self.location_of(op.row);
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
        op.in_place_writes = data.chain(parity).map(|(role, bytes)| (role, offset, bytes.clone())).collect();
        self.chance.shuffle(&mut op.in_place_writes);
        if !op.marked {
            let logged = op.cells.clone().chain(stripe_members.len()..columns.len());
            op.payload = logged.flat_map(|column| columns[column].clone()).collect();
        }
    }

    /// Returns the slots of the data cells, the stripe's offset, and the slots of P and Q.
    fn location_of(&self, row: usize) -> (Vec<u16>, u64, u16, Option<u16>) {
        location_of(&self.array, self.rows[row], self.lines)
    }

    /// Marks the stripe's region dirty on all members before anything is written.
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
        let roles: Vec<u16> = self.array.members().map(|m| m.number).collect();
        run(store_regions(self.disks, &self.array, &roles, &self.regions.written, &self.regions.dirty))?;
        Ok(())
    }

    /// Clears the bits with all members in sync, no write in flight, after a flush.
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

    /// Returns the position of a batch of this many blocks. Behind it there remains room for a batch that moves the
    /// tail.
    fn room(&self, blocks: u64, moves_tail: bool) -> Option<u64> {
        let position = position_for(self.next_position, blocks as u32, self.ring_blocks);
        let behind = position_for(position + blocks, 1, self.ring_blocks);
        let has_room = self.is_free(position, blocks)
            && (moves_tail || self.is_free(behind, 1) && !(position..position + blocks).contains(&behind));
        has_room.then_some(position)
    }

    /// Makes a batch of waiting operations.
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
                entries.push(JournalEntry::mark(row));
                marks.push(op.row);
                self.seen.marks += 1;
            } else {
                entries.push(JournalEntry {
                    stripe: row,
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
        let header = JournalBatchHeader {
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
        let wanted = self.parities() + usize::from(self.mutation != Mutation::OneCopyFewer);
        let copies = (0..wanted.min(members.len())).map(|k| {
            let (leaf, journal) = members[(number + k) % members.len()];
            (leaf, journal + RING_OFFSET_BYTES + position * 4096, 0)
        });
        let copies = copies.collect();
        self.seen.wraps += u64::from(position < self.next_position);
        self.next_position = position + u64::from(header.blocks);
        let bytes = [&block[..], &payload].concat();
        self.batches.push(Batch { header, bytes, copies, open: ops.len(), marks, data });
    }

    /// Begins or completes the write of a batch's copy.
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
        self.complete_flush();
        Ok(())
    }

    /// Writes a cell of a logged operation in place.
    fn write_in_place(&mut self) -> Result<(), Dead> {
        let early = self.mutation == Mutation::PlacedBeforeLogged;
        let may = |op: &Op| op.batch.is_some_and(|batch| self.counts(batch)) || early && !op.in_place_writes.is_empty();
        let ready: Vec<usize> = (0..self.ops.len()).filter(|op| may(&self.ops[*op])).collect();
        if ready.is_empty() {
            return Ok(());
        }
        let index = ready[self.chance.below(ready.len() as u64) as usize];
        if let Some((role, offset, bytes)) = self.ops[index].in_place_writes.pop() {
            let holder = self.array.members().find(|m| m.number == role).map(|m| (m.leaf, m.part.layout.data.start));
            if let Some((leaf, data)) = holder {
                run(self.disks.write(leaf, data + offset, bytes, false))?;
            }
        }
        if self.ops[index].in_place_writes.is_empty() && self.ops[index].batch.is_some_and(|batch| self.counts(batch)) {
            self.complete(index);
        }
        Ok(())
    }

    fn complete(&mut self, index: usize) {
        let op = self.ops.swap_remove(index);
        for (line, cell, version) in &op.blocks {
            let block = &mut self.blocks[op.row][*line][*cell];
            block.acknowledged = *version;
            if !op.marked {
                block.durable = *version;
            }
        }
        let Some(batch) = op.batch else { return };
        self.batches[batch].open -= 1;
        if self.lost.iter().any(|lost| lost.stripe == self.rows[op.row]) {
            self.leaving.push((self.rows[op.row], batch as u64 + 1));
        }
    }

    /// Flushes what is in place, with all before it: it is no longer needed in the journal.
    fn retire(&mut self) -> Result<(), Dead> {
        let placed = self.batches[..self.counting()].iter().take_while(|batch| batch.open == 0).count() as u64 + 1;
        if self.mutation != Mutation::TailBeforeFlush {
            self.flush_all()?;
        }
        // Only then may the entries that rewrote unreadable stripes be retired.
        if self.mutation != Mutation::TailBeforeList {
            self.delist(placed)?;
        }
        self.flushed = self.flushed.max(placed);
        self.complete_flush();
        Ok(())
    }

    /// Writes a batch without entries that records the tail.
    fn move_tail(&mut self) -> Result<(), Dead> {
        let said = self.batches.iter().map(|batch| batch.header.tail).max().unwrap_or(1);
        if self.flushed > said
            && let Some(position) = self.room(1, true)
        {
            self.log(&[], position);
        }
        Ok(())
    }

    fn request_flush(&mut self) -> Result<(), Dead> {
        if self.flush.is_some() {
            return Ok(());
        }
        let live = self.durable_tail() as usize - 1;
        let marks = self.batches[live..].iter().rposition(|batch| !batch.marks.is_empty());
        let Some(last) = marks.map(|at| (live + at) as u64 + 1) else { return Ok(()) };
        let mut acknowledged = Vec::new();
        for (row, lines) in self.blocks.iter().enumerate() {
            for (line, cells) in lines.iter().enumerate() {
                acknowledged
                    .extend(cells.iter().enumerate().map(|(cell, block)| (row, line, cell, block.acknowledged)));
            }
        }
        self.flush = Some(Flush { last, acknowledged });
        Ok(())
    }

    fn complete_flush(&mut self) {
        let tail = if self.mutation == Mutation::FlushKeepsMarks { self.flushed } else { self.durable_tail() };
        let Some(Flush { acknowledged, .. }) = self.flush.take_if(|flush| flush.last < tail) else { return };
        for (row, line, cell, index) in acknowledged {
            let block = &mut self.blocks[row][line][cell];
            block.durable = block.durable.max(index);
        }
        self.seen.flushes += 1;
    }

    /// Removes unreadable stripes from the list that were fully rewritten and are durable in place.
    fn delist(&mut self, flushed: u64) -> Result<(), Dead> {
        let gone: Vec<u64> = self.leaving.iter().filter(|(_, batch)| *batch < flushed).map(|(row, _)| *row).collect();
        if gone.is_empty() {
            return Ok(());
        }
        self.leaving.retain(|(row, _)| !gone.contains(row));
        let before = self.lost.len();
        self.lost.retain(|lost| !gone.contains(&lost.stripe));
        if self.lost.len() == before {
            return Ok(());
        }
        self.generation += 1;
        let row_bytes = self.lines as u32 * 4096;
        let head = JournalHead {
            generation: self.generation,
            run: self.run,
            ring_blocks: self.ring_blocks,
            stripe_bytes: row_bytes,
            ring_on: RingLocation::Members,
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

/// Returns the slots of a stripe's data cells, its offset in the data areas, and the slots of P and Q.
pub fn location_of(array: &Array, row: u64, lines: usize) -> (Vec<u16>, u64, u16, Option<u16>) {
    let (stripe, offset) = stripe_of(array, row, lines);
    ((0..stripe.data_chunks()).map(|cell| stripe.data(cell)).collect(), offset, stripe.p(), stripe.q())
}

pub fn region_of(array: &Array, row: u64, lines: usize) -> u64 {
    stripe_of(array, row, lines).0.array_start / u64::from(array.label().region_bytes)
}
