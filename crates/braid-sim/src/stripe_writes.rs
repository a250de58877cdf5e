//! The writes that justify an unreadable stripe of an array with parity.
//!
//! Of a full-stripe write the journal holds only a mark, without data: if a crash comes together with the loss of a
//! member, the stripe's old content cannot be reconstructed. The data of every other write is in the journal and must
//! survive.
//!
//! The check accepts an unreadable stripe only if the journal may have held nothing but a mark of it at the crash:
//! - Writes without FUA cover every block of its data and were not flushed since. Concurrent writes may have been
//!   gathered into one full-stripe write.
//! - No other write to the stripe that began after the end of one of them was acknowledged: the journal accepts such a
//!   write only when the mark is gone.
//! - No member of the stripe was missing when these writes began, and none was dropped since: the array does not mark a
//!   degraded stripe, and a drop retires all earlier marks.

use std::collections::BTreeMap;

use braid_array_admin::reconciler::Reconciler;
use braid_engine::MemberSet;
use braid_geometry::Geometry;

use crate::content::BLOCK_BYTES;

#[derive(Clone, Copy, Debug)]
struct StripeWrite {
    version: u64,
    first: u64,
    count: u64,
    begun: u64,
    ended: u64,
    acknowledged: bool,
    /// The request carried data and no FUA.
    may_be_marked: bool,
    /// The members that were not in sync when the write began, and those dropped since. A stripe on any of them has no
    /// mark of this write. Cleared when a member is promoted while the write is in flight.
    missing: MemberSet,
}

/// The writes to an array that are not covered by an acknowledged flush. Begins empty when a recovery has emptied the
/// journal.
#[derive(Default)]
pub struct StripeWrites {
    /// The array has parity, and has been served.
    on: bool,
    /// The members that are not in sync, as far as known: a promotion clears this set, because others may be in sync,
    /// too.
    missing: MemberSet,
    list: Vec<StripeWrite>,
}

impl StripeWrites {
    /// Forgets all writes, because a recovery has left no marks. `missing`: the members that are not in sync.
    pub fn begin(&mut self, missing: MemberSet) {
        (self.on, self.missing) = (true, missing);
        self.list.clear();
    }

    /// Records that these members were dropped. A drop waits for the I/O in flight and then retires all earlier marks.
    /// With `in_time` false an I/O has hung, the drop did not wait for it, and marks may remain.
    pub fn drop_members(&mut self, slots: &[u16], in_time: bool) {
        let with = |missing: MemberSet| slots.iter().fold(missing, |missing, slot| missing.with(usize::from(*slot)));
        self.missing = with(self.missing);
        self.list.iter_mut().filter(|_| in_time).for_each(|write| write.missing = with(write.missing));
    }

    /// Records that a member was promoted to in sync. Others may be in sync, too.
    pub fn promote(&mut self) {
        self.missing = MemberSet::NONE;
        // Writes in flight may not have reached the journal yet.
        let running = self.list.iter_mut().filter(|write| !write.acknowledged && write.ended == u64::MAX);
        running.for_each(|write| write.missing = MemberSet::NONE);
    }

    /// Records that a write begins.
    pub fn begun(&mut self, version: u64, first: u64, count: u64, begun: u64, may_be_marked: bool) {
        if self.on {
            let (acknowledged, missing) = (false, self.missing);
            self.list.push(StripeWrite {
                version,
                first,
                count,
                begun,
                ended: u64::MAX,
                acknowledged,
                may_be_marked,
                missing,
            });
        }
    }

    /// Records that a write was answered.
    pub fn ended(&mut self, version: u64, now: u64, acknowledged: bool) {
        if let Some(write) = self.list.iter_mut().rev().find(|write| write.version == version).filter(|_| acknowledged)
        {
            (write.ended, write.acknowledged) = (now, true);
        }
    }

    /// Records that a write never took effect.
    pub fn refused(&mut self, version: u64) {
        self.list.retain(|write| write.version != version);
    }

    /// Records that a flush that began at `begun` was acknowledged.
    pub fn flushed(&mut self, begun: u64) {
        self.list.retain(|write| write.ended >= begun);
    }

    /// Records the end of the process.
    pub fn crashed(&mut self, now: u64) {
        for write in self.list.iter_mut() {
            write.ended = write.ended.min(now);
        }
    }

    /// Checks that a stripe may be unreadable.
    ///
    /// # Errors
    /// A message that says why it must be readable.
    pub fn check_unreadable(&self, of: &DataStripe) -> Result<(), String> {
        let blocks = &of.blocks[..];
        let marks = |write: &StripeWrite| write.may_be_marked && write.missing.0 & of.members.0 == 0;
        let touches = |write: &&StripeWrite| blocks.iter().any(|block| covers(write, *block));
        let all: Vec<&StripeWrite> = self.list.iter().filter(touches).collect();
        let closed = |write: &StripeWrite| all.iter().any(|later| later.acknowledged && later.begun > write.ended);
        let open: Vec<&StripeWrite> = all.iter().copied().filter(|write| marks(write) && !closed(write)).collect();
        let lacks = blocks.iter().find(|block| !open.iter().any(|write| covers(write, **block)));
        match lacks {
            None => Ok(()),
            Some(block) => Err(format!(
                "the stripe of block {block} is unreadable, and was not only marked: its data blocks are {blocks:?}, written by {all:?}"
            )),
        }
    }
}

/// The data of a stripe, as blocks of the array, chunk by chunk.
#[derive(Clone, Debug)]
pub struct DataStripe {
    /// The members that hold a cell of it, parity included.
    pub members: MemberSet,
    /// All blocks of its data.
    pub blocks: Vec<u64>,
}

/// What an array with parity cannot read when it begins to serve.
pub struct UnreadableStripes {
    /// The stripes.
    pub stripes: Vec<DataStripe>,
    /// Their unreadable blocks, ascending.
    pub blocks: Vec<u64>,
}

/// Losses that excuse an unreadable stripe of which the journal held more than a mark.
#[derive(Clone, Copy)]
pub struct Excuse {
    /// No stripe is checked.
    pub all: bool,
    /// The disk of the journal is lost, and with it data that was rewritten and not flushed.
    pub journal_lost: bool,
}

impl UnreadableStripes {
    /// Returns the unreadable stripes that a reconciler reports.
    pub fn of(reconciler: &Reconciler) -> UnreadableStripes {
        let geometry = reconciler.array().geometry();
        let ranges = reconciler.unreadable_blocks().map_or_else(Vec::new, |lines| lines.ranges(geometry));
        let block = BLOCK_BYTES as u64;
        let mut blocks: Vec<u64> =
            ranges.iter().flat_map(|(offset, bytes)| offset / block..(offset + bytes) / block).collect();
        blocks.sort_unstable();
        UnreadableStripes { stripes: stripes_of(geometry, &reconciler.unreadable_stripes()), blocks }
    }
}

/// Blocks that cannot be read until they are written again, each on its own.
#[derive(Default)]
pub struct UnreadableBlocks {
    /// By block, the oracle's time at which a write made it readable again; `u64::MAX`: none has.
    until: BTreeMap<u64, u64>,
}

impl UnreadableBlocks {
    /// Creates the set of these blocks.
    pub fn new(blocks: &[u64]) -> UnreadableBlocks {
        UnreadableBlocks { until: blocks.iter().map(|block| (*block, u64::MAX)).collect() }
    }

    /// Records that a write of these blocks was acknowledged.
    pub fn written(&mut self, first: u64, count: u64, now: u64) {
        self.until.range_mut(first..first + count).for_each(|(_, until)| *until = now.min(*until));
    }

    /// Returns whether any of these blocks could not be read at time `since` or later.
    pub fn has(&self, since: u64, first: u64, count: u64) -> bool {
        self.until.range(first..first + count).any(|(_, until)| since < *until)
    }

    /// Returns whether a block cannot be read now.
    pub fn is_unreadable(&self, block: u64) -> bool {
        self.until.get(&block) == Some(&u64::MAX)
    }

    /// Returns whether a block could not be read when the array began to serve.
    pub fn was_unreadable(&self, block: u64) -> bool {
        self.until.contains_key(&block)
    }

    /// Returns the blocks that are still unreadable, as ranges of first block and count.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for block in self.until.keys().filter(|block| self.is_unreadable(**block)) {
            match ranges.last_mut() {
                Some((first, count)) if *first + *count == *block => *count += 1,
                _ => ranges.push((*block, 1)),
            }
        }
        ranges
    }
}

fn covers(write: &StripeWrite, block: u64) -> bool {
    (write.first..write.first + write.count).contains(&block)
}

/// Returns the stripes that these byte ranges belong to.
fn stripes_of(geometry: &Geometry, places: &[(u64, u64)]) -> Vec<DataStripe> {
    let block = BLOCK_BYTES as u64;
    let mut stripes: Vec<((u64, u64), DataStripe)> = Vec::new();
    for (offset, len) in places {
        let Some(stripe) = geometry.stripe_of(*offset) else { continue };
        let key = (stripe.number, (offset - stripe.array_start) % stripe.chunk_bytes);
        let blocks = offset / block..(offset + len) / block;
        match stripes.last_mut().filter(|(known, _)| *known == key) {
            Some((_, of)) => of.blocks.extend(blocks),
            None => {
                let members = stripe.members.iter().fold(MemberSet::NONE, |all, slot| all.with(usize::from(*slot)));
                stripes.push((key, DataStripe { members, blocks: blocks.collect() }));
            }
        }
    }
    stripes.into_iter().map(|(_, stripe)| stripe).collect()
}
