//! The beginning of a step: cuts its ops, holds their lines, awaits their regions, and allocates its memory.

use braid_format::bitmap::REGIONS_PER_BLOCK;
use braid_geometry::{BLOCK_BYTES, Stripe};

use super::super::ranges::{notify_released, release};
use super::super::stripe_work::Stage;
use super::super::waiting::{range_key, region_key};
use super::super::{Shard, ShardMessage};
use super::stripe::StripeView;
use crate::io::{DeviceId, ErrorKind, Flags, IoError, LeafSink, Op};
use crate::limits::STEP_IOS_MAX;
use crate::mirror::Mirrored;
use crate::parity::{OPS_MAX, ParityMethod, StripeOp, cut};

/// Maximum pages of scratch memory of one step, unless a single op needs more.
const STEP_PAGES_MAX: u32 = 512;

impl Shard {
    /// Begins the next step of a request that changes an array with parity, or puts the slot into the list of what it
    /// waits for.
    pub(in crate::shard) fn parity_step(&mut self, index: u32, sink: &mut impl LeafSink) {
        if self.awaits_neighbours(index) {
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
        let mut ops = [StripeOp::NONE; OPS_MAX];
        let mut end = slot.end;
        // Full-stripe writes are only marked, however wide the stripes are.
        let may_mark = !zeros && !slot.flags.has(Flags::FUA) && layout.lease.is_none();
        let may_mark = may_mark && !mirror.is_degraded();
        let mut marks = may_mark && mirror.is_whole() && parity.node.lost_stripes.is_empty();
        let (count, to, pages) = loop {
            let (count, to) = cut(&mirror.geometry, parity, marks, cursor, end, &mut ops);
            if zeros && let Some(unwritten) = first_unwritten(mirror, cursor, &ops[..count]) {
                // The next step starts there and checks again.
                end = unwritten;
                continue;
            }
            let (mut pages, mut ios, mut logged) = (0, 0, 0);
            for op in &mut ops[..count] {
                let row = StripeView::new(mirror, op.row);
                let Some(method) = row.method(op, &slot) else {
                    let kind = slot.cause.map_or(ErrorKind::Failed, |cause| cause.kind);
                    return self.fail(index, kind, sink);
                };
                op.method = method;
                let covers = method == ParityMethod::Full && op.len() == parity.row_bytes;
                let marked = covers && may_mark && row.is_whole();
                // Recovery must find every write that makes a block of a stripe readable again.
                op.logged = !marked || parity.node.lost_stripes.lines(op.row) != 0;
                pages += row.pages(op, zeros);
                ios += row.cells() + mirror.successors.len();
                if op.logged {
                    logged += (u64::from(op.cells) + parity.count as u64) * u64::from(op.blocks);
                }
            }
            // All logged ops of a step go into one batch: a slot that holds space in the journal never waits for more
            // of it.
            let fits = pages <= STEP_PAGES_MAX && ios <= STEP_IOS_MAX && logged <= parity.logged_blocks_max;
            if marks && ops[..count].iter().any(|op| op.logged && parity.is_too_large(op)) {
                marks = false;
                continue;
            }
            if count == 1 || fits {
                break (count, to, pages);
            }
            // Half of it. An op is at least one block, so that the loop ends.
            end = cursor + ((to - cursor) / 2).next_multiple_of(BLOCK_BYTES);
        };
        if !self.acquire_lines(index, lines_of(&ops[..count])) {
            return;
        }
        for op in &ops[..count] {
            let stripe = StripeView::new(mirror, op.row).stripe;
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
            page += StripeView::new(mirror, op.row).pages(op, zeros);
        }
        let taken = &mut self.works.list[work as usize];
        (taken.ops, taken.count, taken.to, taken.stage) = (ops, count, to, Stage::Read);
        self.slots[index].step = cursor;
        self.read_stripes(index, work, mirror, sink);
    }

    /// Begins to recover, at the slot's cursor, what cannot be read.
    pub(in crate::shard) fn recover_step(&mut self, index: u32, sink: &mut impl LeafSink) {
        let slot = self.slots[index];
        let layout = self.devices.at(slot.device).layout(slot.version).clone();
        let mirror = layout.mirror().expect("an array with parity is redundant");
        let parity = mirror.parity.as_deref().expect("an array with parity");
        let mut chunk_end = slot.cursor + mirror.geometry.locate(slot.cursor).len;
        if !parity.node.lost_stripes.is_empty() {
            // Only the next block was checked for being readable.
            chunk_end = chunk_end.min(slot.cursor + BLOCK_BYTES);
        }
        let mut ops = [StripeOp::NONE; OPS_MAX];
        cut(&mirror.geometry, parity, false, slot.cursor, slot.end.min(chunk_end), &mut ops);
        let op = StripeOp { method: ParityMethod::Recover, ..ops[0] };
        let row = StripeView::new(mirror, op.row);
        let lost = (0..row.cells()).filter(|cell| !row.is_readable(*cell, &slot)).count();
        if lost > parity.count {
            let kind = slot.cause.map_or(ErrorKind::Failed, |cause| cause.kind);
            return self.fail(index, kind, sink);
        }
        if !self.acquire_lines(index, lines_of(&[op])) {
            return;
        }
        let Some(work) = self.take_work(index, row.pages(&op, false)) else { return };
        let taken = &mut self.works.list[work as usize];
        let page = taken.memory.expect("it was just taken").first;
        taken.ops[0] = StripeOp { page, ..op };
        (taken.count, taken.to, taken.stage) = (1, slot.cursor + op.len(), Stage::Read);
        self.slots[index].step = slot.cursor;
        self.read_stripes(index, work, mirror, sink);
    }

    pub(super) fn fail(&mut self, index: u32, kind: ErrorKind, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        let leaf = slot.cause.and_then(|cause| cause.leaf);
        slot.error.get_or_insert(IoError { leaf, offset: slot.start, ..IoError::of(kind) });
        self.advance(index, sink);
    }

    /// Moves the cursor past regions that were never written, for a request that zeroes. Returns true if that completes
    /// the request.
    fn skip_unwritten(&mut self, index: u32, mirror: &Mirrored) -> bool {
        let slot = &mut self.slots[index];
        while slot.cursor < slot.end {
            let stripe = mirror.geometry.stripe_of(slot.cursor).expect("inside the array");
            let region = mirror.regions.region_of_stripe(&stripe);
            let stripe_end = stripe.array_start + stripe.data_chunks() as u64 * stripe.chunk_bytes;
            // A stripe belongs to the region that it begins in. So the stripe in which the next written region begins
            // may be skipped as well: the next iteration checks.
            slot.cursor = match mirror.regions.written.next(region) {
                Some(written) if written == region => return false,
                Some(written) => slot.end.min(stripe_end.max(mirror.regions.range(written).0)),
                None => slot.end,
            };
        }
        true
    }

    /// Holds exactly these lines. Returns false if another request holds some of them: the slot waits.
    fn acquire_lines(&mut self, index: u32, want: (u64, u64)) -> bool {
        let slot = &mut self.slots[index];
        if slot.held == want {
            return true;
        }
        if slot.held.0 < slot.held.1 {
            release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        }
        let mut tell = |bucket| notify_released(&self.shared, &mut self.woken, &mut self.outbox, self.id, bucket);
        match self.shared.ranges.acquire_fair(DeviceId(slot.device), want.0, want.1, &mut tell) {
            Ok(()) => slot.held = want,
            Err(bucket) => {
                self.retry_gather(index);
                self.waiting.park(&mut self.slots, index, range_key(bucket));
                return false;
            }
        }
        true
    }

    /// Waits until the region's home shard has made it writable.
    fn await_region(&mut self, index: u32, mirror: &Mirrored, region: u32, sink: &mut impl LeafSink) {
        let slot = &mut self.slots[index];
        let device = DeviceId(slot.device);
        // The home shard needs the stripes to prepare the region.
        release(&self.shared, &mut self.woken, &mut self.outbox, self.id, slot);
        if self.devices.at(device.0).version != self.slots[index].version {
            self.move_to_current(index);
            self.clear_failures(index);
            return self.advance(index, sink);
        }
        self.waiting.park(&mut self.slots, index, region_key(device, region / REGIONS_PER_BLOCK));
        let home = mirror.regions.home();
        if home == self.id {
            self.need(device, region, sink);
        } else {
            self.outbox.push_back((home, ShardMessage::NeedRegion { device, region }));
        }
    }
}

/// Returns the smallest range in the range table that contains the lines of all these ops. Lines need not be held for
/// whole stripes, because each line has its own parity.
fn lines_of(ops: &[StripeOp]) -> (u64, u64) {
    ops.iter().fold((u64::MAX, 0), |(low, high), op| {
        let (from, to) = op.locked();
        (low.min(from), high.max(to))
    })
}

/// Returns the array offset of the first stripe of the geometry behind `cursor`, among those of the ops, that was never
/// written.
fn first_unwritten(mirror: &Mirrored, cursor: u64, ops: &[StripeOp]) -> Option<u64> {
    let mut stripes = ops.iter().map(|op| StripeView::new(mirror, op.row).stripe);
    let is_unwritten = |stripe: &Stripe<'_>| !mirror.regions.written.has(mirror.regions.region_of_stripe(stripe));
    stripes.find(|stripe| stripe.array_start > cursor && is_unwritten(stripe)).map(|stripe| stripe.array_start)
}
