//! The beginning of a step: its ops, their rows held, their regions writable, its memory taken.

use braid_format::bitmap::REGIONS_PER_BLOCK;
use braid_geometry::{BLOCK_BYTES, Stripe};

use super::super::ranges::{release, tell_released};
use super::super::waiting::{range_key, region_key};
use super::super::{Shard, ShardMessage};
use super::Stage;
use super::row::Row;
use crate::io::{DeviceId, ErrorKind, Flags, IoError, LeafSink, Op};
use crate::limits::STEP_IOS_MAX;
use crate::mirror::Mirrored;
use crate::parity::{How, OPS_MAX, RowOp, cut};
use crate::planted::{Planted, planted};

/// Pages of scratch memory of one step, unless a single op needs more.
const STEP_PAGES_MAX: u32 = 512;

impl Shard {
    /// Begins the next step of what changes an array with parity, or puts the slot into the list of what it waits for.
    pub(in crate::shard) fn row_step(&mut self, index: u32, sink: &mut impl LeafSink) {
        if self.waits_for_company(index) {
            return;
        }
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
        // Rows that are written whole are only marked, however wide they are.
        let may_mark = !zeros && !slot.flags.has(Flags::FUA) && layout.lease.is_none();
        let may_mark = may_mark && (!mirror.is_one_out() || planted(Planted::DegradedOnlyMarked));
        let mut marks = may_mark && mirror.is_whole() && parity.node.lost.is_empty();
        let (count, to, pages) = loop {
            let (count, to) = cut(&mirror.geometry, parity, marks, cursor, end, &mut ops);
            if zeros && let Some(unwritten) = first_unwritten(mirror, cursor, &ops[..count]) {
                // Behind it the next step looks again.
                end = unwritten;
                continue;
            }
            let (mut pages, mut ios, mut logged) = (0, 0, 0);
            for op in &mut ops[..count] {
                let row = Row::new(mirror, op.row);
                let Some(how) = row.how(op, &slot) else {
                    let kind = slot.cause.map_or(ErrorKind::Failed, |cause| cause.kind);
                    return self.fail(index, kind, sink);
                };
                op.how = how;
                let covers = how == How::Full && op.len() == parity.row_bytes;
                let marked = covers && may_mark && row.is_whole();
                // A recovery must find all of what makes a row readable again.
                op.logged = !marked || parity.node.lost.lines(op.row) != 0;
                pages += row.pages(op, zeros);
                ios += row.cells() + mirror.successors.len();
                if op.logged {
                    logged += (u64::from(op.cells) + parity.count as u64) * u64::from(op.blocks);
                }
            }
            // What is logged goes into one batch: who holds space of the journal never waits for more of it.
            let fits = pages <= STEP_PAGES_MAX && ios <= STEP_IOS_MAX && logged <= parity.logged_blocks_max;
            if marks && ops[..count].iter().any(|op| op.logged && parity.is_too_large(op)) {
                marks = false;
                continue;
            }
            if count == 1 || fits {
                break (count, to, pages);
            }
            // Half of it. Ops are never smaller than a block, so that this ends.
            end = cursor + ((to - cursor) / 2).next_multiple_of(BLOCK_BYTES);
        };
        if !planted(Planted::RowsUnlocked) && !self.hold_lines(index, lines_of(&ops[..count])) {
            return;
        }
        for op in &ops[..count] {
            let stripe = Row::new(mirror, op.row).stripe;
            let region = mirror.regions.region_of_stripe(&stripe);
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
    pub(in crate::shard) fn recover_step(&mut self, index: u32, sink: &mut impl LeafSink) {
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
        cut(&mirror.geometry, parity, false, slot.cursor, slot.end.min(chunk_end), &mut ops);
        let op = RowOp { how: How::Recover, ..ops[0] };
        let row = Row::new(mirror, op.row);
        let lost = (0..row.cells()).filter(|cell| !row.is_readable(*cell, &slot)).count();
        if lost > parity.count {
            let kind = slot.cause.map_or(ErrorKind::Failed, |cause| cause.kind);
            return self.fail(index, kind, sink);
        }
        if !self.hold_lines(index, lines_of(&[op])) {
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

    pub(super) fn fail(&mut self, index: u32, kind: ErrorKind, sink: &mut impl LeafSink) {
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
            let region = mirror.regions.region_of_stripe(&stripe);
            let stripe_end = stripe.array_start + stripe.data_chunks() as u64 * stripe.chunk_bytes;
            // A stripe is of the region that it begins in. So the one in which the next written region begins may be skipped as well: the
            // next look tells.
            slot.cursor = match mirror.regions.written.next(region) {
                Some(written) if written == region => return false,
                Some(written) => slot.end.min(stripe_end.max(mirror.regions.range(written).0)),
                None => slot.end,
            };
        }
        true
    }

    /// Holds these lines, and no others. False: somebody else does, and the slot waits.
    fn hold_lines(&mut self, index: u32, want: (u64, u64)) -> bool {
        let slot = &mut self.slots[index];
        if slot.held == want {
            return true;
        }
        if slot.held.0 < slot.held.1 {
            release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        }
        let mut tell = |bucket| tell_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
        match self.shared.ranges.acquire_in_turn(DeviceId(slot.device), want.0, want.1, &mut tell) {
            Ok(()) => slot.held = want,
            Err(bucket) => {
                self.looks_again(index);
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
}

/// What a step holds in the range table: its lines, as each fits into its own parity.
fn lines_of(ops: &[RowOp]) -> (u64, u64) {
    ops.iter().fold((u64::MAX, 0), |(low, high), op| {
        let (from, to) = op.locked();
        (low.min(from), high.max(to))
    })
}

/// Where the first stripe behind `cursor` begins that was never written, of those that ops are about: bytes of the array.
fn first_unwritten(mirror: &Mirrored, cursor: u64, ops: &[RowOp]) -> Option<u64> {
    let mut stripes = ops.iter().map(|op| Row::new(mirror, op.row).stripe);
    let is_unwritten = |stripe: &Stripe<'_>| !mirror.regions.written.has(mirror.regions.region_of_stripe(stripe));
    stripes.find(|stripe| stripe.array_start > cursor && is_unwritten(stripe)).map(|stripe| stripe.array_start)
}
