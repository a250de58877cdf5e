//! Unreadable stripes: what the rig knows of them, and what it checks while they are rewritten.
//!
//! A disk holds durably what was flushed, or written with FUA. For a stripe that was unreadable: every write to it is
//! logged; a block of a lost cell leaves the list of a head only when it is durable in place; the tail of no batch
//! passes the batch that has rewritten it before the heads of all members say so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use braid_engine::*;
use braid_format::Uuid;
use braid_format::journal::{
    EntryKind, HEAD_BYTES, LostStripe, RING_OFFSET_BYTES, decode_batch, decode_head, head_slot,
};
use braid_geometry::Stripe;
use braid_parity::Parity;

use super::rig::{BLOCK, META_ADDR, Random, Rig};

/// The expected result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    Nothing,
    Refusal,
}

/// The state that is kept for comparison.
pub struct Watch {
    /// The initial list.
    listed: Vec<LostStripe>,
    /// What each disk holds durably.
    durable: Vec<Vec<u8>>,
    /// The lines of lost cells of listed stripes that each batch has rewritten.
    batches: BTreeMap<u64, Vec<(u64, u8, u16)>>,
    /// Blocks of the array that zeros were written to.
    pub(super) zeroed: BTreeSet<u64>,
    /// The greatest tail of all batches, and the number of heads written.
    pub tail: u64,
    pub heads: u64,
}

/// Returns stripes of a shape, each with one unreadable data cell, or with two if two members may be lost.
pub fn some_lost_stripes(shape: super::rig::Shape, seed: u64) -> Vec<LostStripe> {
    let mut random = Random(seed ^ 0x1057);
    let rig = Rig::new(shape, 1, seed);
    let lines = (1u32 << (shape.chunk_blocks / rig.rows_of_stripe())) - 1;
    let mut rows = Vec::new();
    for row in 0..rig.rows() {
        if random.below(3) > 0 {
            continue;
        }
        let data = u64::from(rig.cells_of_stripe(row).0);
        let mut cells = vec![random.below(data) as u8];
        if rig.tolerance() == 2 && data > 1 && random.below(2) == 0 {
            cells.push((u64::from(cells[0]) + 1 + random.below(data - 1)) as u8 % data as u8);
            cells.sort_unstable();
        }
        // In most cases all of its lines, as a mark leaves them.
        let of_row = if random.below(3) == 0 { 1 + random.below(u64::from(lines)) as u32 } else { lines };
        rows.extend(LostStripe::new(row, of_row as u16, &cells));
    }
    rows
}

impl Rig {
    fn stripe(&self, row: u64) -> (Stripe<'_>, u64) {
        let stripe = self.geometry.stripe(row / self.rows_of_stripe()).expect("a stripe");
        let height = stripe.chunk_bytes / self.rows_of_stripe();
        (stripe, row % self.rows_of_stripe() * height)
    }

    /// Returns the array offset of a line of a data cell of a stripe.
    fn place(&self, row: u64, line: u64, cell: u64) -> u64 {
        let (stripe, column) = self.stripe(row);
        stripe.array_start + cell * stripe.chunk_bytes + column + line * BLOCK
    }

    /// Fills the whole array; unreadable blocks are zeros, which the parity matches, as recovery leaves them.
    pub(super) fn fill_with_lost(&mut self, lost: &[LostStripe]) {
        let mut noise = Random(4711);
        self.model.fill_with(|| noise.below(256) as u8);
        for row in lost {
            for line in (0..16).filter(|line| row.lines >> line & 1 == 1) {
                for cell in row.cells() {
                    let at = self.place(row.stripe, line, u64::from(*cell)) as usize;
                    self.model[at..at + BLOCK as usize].fill(0);
                }
            }
        }
        for number in 0..self.geometry.stripes() {
            let stripe = self.geometry.stripe(number).expect("a stripe");
            let (chunk, at) = (stripe.chunk_bytes as usize, stripe.member_offset as usize);
            let first = stripe.array_start as usize;
            let data: Vec<&[u8]> = self.model[first..].chunks(chunk).take(stripe.data_chunks()).collect();
            let (mut p, mut q) = (vec![0; chunk], vec![0; if stripe.q().is_some() { chunk } else { 0 }]);
            Parity::best().pq(&mut p, &mut q, &data);
            let parity = [(Some(stripe.p()), &p[..]), (stripe.q(), &q[..])];
            let parity = parity.into_iter().filter_map(|(member, bytes)| Some((member?, bytes)));
            let cells = (0..data.len()).map(|cell| stripe.data(cell)).zip(data.iter().copied()).chain(parity);
            for (member, bytes) in cells.collect::<Vec<_>>() {
                self.disks[usize::from(member)][at..at + chunk].copy_from_slice(bytes);
            }
        }
        self.watch = Some(Watch {
            listed: lost.to_vec(),
            durable: self.disks.clone(),
            batches: BTreeMap::new(),
            zeroed: BTreeSet::new(),
            tail: 0,
            heads: 0,
        });
    }

    /// Returns the blocks of the array that cannot be read now.
    pub fn unreadable(&self) -> Vec<u64> {
        let mut blocks = Vec::new();
        for row in self.lost.iter() {
            for line in (0..16).filter(|line| row.lines >> line & 1 == 1) {
                blocks.extend(row.cells().iter().map(|cell| self.place(row.stripe, line, u64::from(*cell)) / BLOCK));
            }
        }
        blocks
    }

    /// Returns the ranges that cannot be read now, as they are reported to the user.
    pub fn named(&self) -> Vec<(u64, u64)> {
        let height = self.shape.chunk_blocks * BLOCK / self.rows_of_stripe();
        let mut ranges = UnreadableBlocks::new(Arc::clone(&self.lost), height).ranges(&self.geometry);
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (at, len) in ranges {
            match merged.last_mut() {
                Some((start, bytes)) if *start + *bytes == at => *bytes += len,
                _ => merged.push((at, len)),
            }
        }
        merged
    }

    /// Returns whether a request covers what cannot be read now, and is to be refused: only reads are.
    pub(super) fn expected_of_lost(&self, op: Op, offset: u64, len: u64) -> Expected {
        let covers = |at: &u64| (offset..offset + len).contains(at);
        let refused = op == Op::Read && self.unreadable().iter().any(|block| covers(&(block * BLOCK)));
        if refused { Expected::Refusal } else { Expected::Nothing }
    }

    /// Returns the array offset of the geometry's stripe that contains a stripe of the journal, and its bytes.
    pub fn whole_stripe(&self, row: u64) -> (u64, u64) {
        let (stripe, _) = self.stripe(row);
        (stripe.array_start, stripe.data_chunks() as u64 * stripe.chunk_bytes)
    }

    /// Begins to rebuild a member: it holds nothing, and takes writes.
    pub fn begin_rebuild(&mut self, member: usize) {
        let heads = (self.ring() - RING_OFFSET_BYTES) as usize;
        self.disks[member][..heads + RING_OFFSET_BYTES as usize].fill(0);
        self.roles[member] = MemberRole::Rebuilding;
        self.publish();
    }

    /// Returns the members in sync.
    pub fn in_sync(&self) -> Vec<usize> {
        (0..self.roles.len()).filter(|member| self.roles[*member] == MemberRole::InSync).collect()
    }

    /// Runs a request to its end. Returns its result.
    pub fn attempt(&mut self, shard: usize, op: Op, offset: u64, len: u64) -> Expected {
        let sees = self.expected_of_lost(op, offset, len);
        let expected = if sees == Expected::Refusal { Err(ErrorKind::Unreadable) } else { Ok(()) };
        let shard = shard % self.shards.len();
        self.submit_expecting(shard, op, offset, len, Flags::NONE, expected);
        self.settle();
        sees
    }

    /// Returns the stripes that the newest head of a member lists; those of the start if it has no head yet.
    pub fn list_on(&self, member: usize) -> (u64, Vec<LostStripe>) {
        let heads = (0..2).filter_map(|slot| {
            let at = (self.ring() - RING_OFFSET_BYTES) as usize + slot * HEAD_BYTES;
            decode_head(&Uuid::from_u128(9), self.disks[member][at..].first_chunk().expect("a head"))
        });
        let newest = heads.max_by_key(|(head, _)| head.generation).map(|(head, lost)| (head.generation, lost));
        newest.unwrap_or_else(|| (1, self.watch.as_ref().map_or(Vec::new(), |watch| watch.listed.clone())))
    }

    /// Checks a leaf I/O that is about to be performed.
    pub(super) fn watch_io(&mut self, shard: usize, io: &LeafIo) {
        if self.watch.is_none() || self.failing == Some(io.leaf.0) {
            return;
        }
        let member = io.leaf.0 as usize;
        let heads = self.ring() - RING_OFFSET_BYTES;
        match io.op {
            Op::Flush => {
                let now = self.disks[member].clone();
                self.watch.as_mut().expect("watched").durable[member] = now;
            }
            Op::Write if io.offset >= self.ring() => self.watch_batch(io),
            Op::Write if io.offset >= heads => {
                let bytes = self.memory.borrow()[io.buf.addr as usize..][..io.len as usize].to_vec();
                self.watch_head(io.offset - heads, &bytes);
                assert!(io.flags.has(Flags::FUA), "a head is durable");
            }
            _ => {}
        }
        if io.op == Op::Write && io.flags.has(Flags::FUA) && io.buf.addr < META_ADDR {
            let bytes = self.memory.borrow()[io.buf.addr as usize..][..io.len as usize].to_vec();
            let durable = &mut self.watch.as_mut().expect("watched").durable[member];
            durable[io.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let _ = shard;
    }

    fn watch_batch(&mut self, io: &LeafIo) {
        let array = Uuid::from_u128(9);
        let block: [u8; 4096] = self.memory.borrow()[io.buf.addr as usize..][..4096].try_into().expect("a block");
        let (header, entries) = decode_batch(&array, &block).expect("a batch");
        let on_disks: Vec<(usize, Vec<LostStripe>)> = (0..self.roles.len())
            .filter(|member| self.roles[*member] == MemberRole::InSync && self.failing != Some(*member as u32))
            .map(|member| (member, self.list_on(member).1))
            .collect();
        let watch = self.watch.as_ref().expect("watched");
        for (row, cell, lines) in watch.batches.range(..header.tail).flat_map(|(_, written)| written) {
            for (member, list) in &on_disks {
                assert!(
                    !list.iter().any(|lost| lost.stripe == *row && lost.covers(*cell, *lines)),
                    "cell {cell} of stripe {row} was rewritten, forgotten, and is listed on {member}, {}",
                    self.run
                );
            }
        }
        let mut written = Vec::new();
        for entry in entries.filter(|entry| watch.listed.iter().any(|lost| lost.stripe == entry.stripe)) {
            let listed = on_disks.iter().any(|(_, list)| list.iter().any(|lost| lost.stripe == entry.stripe));
            assert!(entry.kind == EntryKind::Data || !listed, "stripe {} is only marked, {}", entry.stripe, self.run);
            if entry.kind == EntryKind::Data {
                assert_eq!(usize::from(entry.parities), self.tolerance());
                let cells = entry.cell..entry.cell + entry.cells;
                written.extend(cells.map(|cell| (entry.stripe, cell, entry.lines())));
            }
        }
        let watch = self.watch.as_mut().expect("watched");
        watch.batches.insert(header.sequence, written);
        watch.tail = watch.tail.max(header.tail);
    }

    fn watch_head(&mut self, at: u64, bytes: &[u8]) {
        let (head, list) = decode_head(&Uuid::from_u128(9), bytes.first_chunk().expect("a head")).expect("a head");
        assert_eq!(head_slot(head.generation) * HEAD_BYTES as u64, at, "the other place than that of the one before");
        let watch = self.watch.as_ref().expect("watched");
        for (lost, cell) in watch.listed.iter().flat_map(|lost| lost.cells().iter().map(move |cell| (lost, *cell))) {
            let is_left = |line: u64| list.iter().any(|now| now.stripe == lost.stripe && now.covers(cell, 1 << line));
            for line in (0..16).filter(|line| lost.lines & 1 << line != 0 && !is_left(*line)) {
                let (stripe, column) = self.stripe(lost.stripe);
                let at = (stripe.member_offset + column + line * BLOCK) as usize;
                let member = usize::from(stripe.data(usize::from(cell)));
                if self.roles[member] == MemberRole::Failed
                    || self.failing == Some(member as u32)
                    || watch.zeroed.contains(&(self.place(lost.stripe, line, u64::from(cell)) / BLOCK))
                {
                    continue;
                }
                assert!(
                    watch.durable[member][at..at + BLOCK as usize].iter().any(|byte| *byte != 0),
                    "line {line} of cell {cell} of stripe {} has left the list, and is not durable, {}",
                    lost.stripe,
                    self.run
                );
            }
        }
        self.watch.as_mut().expect("watched").heads += 1;
    }

    /// Returns how many heads were written while the array served, and the greatest tail.
    pub fn watched(&self) -> (u64, u64) {
        self.watch.as_ref().map_or((0, 0), |watch| (watch.heads, watch.tail))
    }
}
