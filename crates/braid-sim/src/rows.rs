//! When a row of an array with parity may be unreadable: what is written wholly is only marked in the journal, so that a crash
//! together with a loss leaves nothing to compute it from. Whatever else is written is logged, and must be there.
//!
//! A row was only marked at the crash where writes without FUA cover all of its data, none of which was flushed, and after
//! none of which, while it still counted, something else was written there and answered: the journal takes that only when the mark
//! is gone. While a member of a row is out the row is not marked, and with the drop of one all marks of before are retired. Writes that were under way together may have been gathered to a whole one.

use std::collections::BTreeMap;

use braid_engine::Roles;
use braid_engine::io::DeviceId;
use braid_engine::keeper::Reconciler;
use braid_geometry::Geometry;

use crate::content::BLOCK_BYTES;
use crate::stage::Stage;

#[derive(Clone, Copy, Debug)]
struct RowWrite {
    version: u64,
    first: u64,
    count: u64,
    begun: u64,
    ended: u64,
    acknowledged: bool,
    /// It had data, and no FUA.
    may_be_marked: bool,
    /// Who was not in sync when it began, and ever since.
    missing: Roles,
}

/// What was written to an array since its journal began anew, and not flushed.
#[derive(Default)]
pub struct RowWrites {
    /// It has parity, and has been served.
    on: bool,
    /// Who is not in sync.
    missing: Roles,
    list: Vec<RowWrite>,
}

impl RowWrites {
    /// A recovery is over: nothing is marked.
    pub fn begin(&mut self, missing: Roles) {
        (self.on, self.missing) = (true, missing);
        self.list.clear();
    }

    /// These members have been left out. All marks of before are retired with that; unless something hung (`in_time`), which is
    /// not waited for.
    pub fn lose(&mut self, roles: &[u16], in_time: bool) {
        let with = |missing: Roles| roles.iter().fold(missing, |missing, role| missing.with(usize::from(*role)));
        self.missing = with(self.missing);
        self.list.iter_mut().filter(|_| in_time).for_each(|write| write.missing = with(write.missing));
    }

    /// A member is in sync. Others may be, too.
    pub fn promote(&mut self) {
        self.missing = Roles::NONE;
        // What is under way may not have come to the journal yet.
        let running = self.list.iter_mut().filter(|write| !write.acknowledged && write.ended == u64::MAX);
        running.for_each(|write| write.missing = Roles::NONE);
    }

    /// A write begins.
    pub fn begun(&mut self, version: u64, first: u64, count: u64, begun: u64, may_be_marked: bool) {
        if self.on {
            let (acknowledged, missing) = (false, self.missing);
            self.list.push(RowWrite {
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

    /// It was answered.
    pub fn ended(&mut self, version: u64, now: u64, acknowledged: bool) {
        if let Some(write) = self.list.iter_mut().rev().find(|write| write.version == version).filter(|_| acknowledged)
        {
            (write.ended, write.acknowledged) = (now, true);
        }
    }

    /// It never happened.
    pub fn refused(&mut self, version: u64) {
        self.list.retain(|write| write.version != version);
    }

    /// A flush that began then was acknowledged.
    pub fn flushed(&mut self, begun: u64) {
        self.list.retain(|write| write.ended >= begun);
    }

    /// The process is gone.
    pub fn crashed(&mut self, now: u64) {
        for write in self.list.iter_mut() {
            write.ended = write.ended.min(now);
        }
    }

    /// Whether a row may be unreadable.
    ///
    /// # Errors
    /// It must not be, and why.
    pub fn judge(&self, of: &Row) -> Result<(), String> {
        let row = &of.blocks[..];
        let marks = |write: &RowWrite| write.may_be_marked && write.missing.0 & of.members.0 == 0;
        let touches = |write: &&RowWrite| row.iter().any(|block| covers(write, *block));
        let all: Vec<&RowWrite> = self.list.iter().filter(touches).collect();
        let closed = |write: &RowWrite| all.iter().any(|later| later.acknowledged && later.begun > write.ended);
        let open: Vec<&RowWrite> = all.iter().copied().filter(|write| marks(write) && !closed(write)).collect();
        let lacks = row.iter().find(|block| !open.iter().any(|write| covers(write, **block)));
        match lacks {
            None => Ok(()),
            Some(block) => Err(format!(
                "the row of block {block} is unreadable, and was not only marked: its data are {row:?}, written by {all:?}"
            )),
        }
    }
}

/// The data of a row, as blocks of the array, cell by cell.
#[derive(Clone, Debug)]
pub struct Row {
    /// Who has a cell of it, parities included.
    pub members: Roles,
    /// All of them.
    pub blocks: Vec<u64>,
}

/// What cannot be read of an array with parity, when it begins to serve.
pub struct BrokenRows {
    /// The rows.
    pub rows: Vec<Row>,
    /// The blocks of them that are lost, ascending.
    pub blocks: Vec<u64>,
}

/// Why something may be unreadable that was not only marked.
#[derive(Clone, Copy)]
pub struct Excuse {
    /// Nobody asks.
    pub all: bool,
    /// The disk of the journal is lost, with what was written again and not flushed.
    pub journal_lost: bool,
}

impl BrokenRows {
    /// As a keeper has them.
    pub fn of(keeper: &Reconciler) -> BrokenRows {
        let geometry = keeper.array().geometry();
        let ranges = keeper.unreadable_blocks().map_or_else(Vec::new, |lines| lines.ranges(geometry));
        let block = BLOCK_BYTES as u64;
        let mut blocks: Vec<u64> =
            ranges.iter().flat_map(|(offset, bytes)| offset / block..(offset + bytes) / block).collect();
        blocks.sort_unstable();
        BrokenRows { rows: rows_of(geometry, &keeper.unreadable_stripes()), blocks }
    }
}

/// Blocks that cannot be read until they are written again, each by itself.
#[derive(Default)]
pub struct Broken {
    /// Until when that holds of each block.
    until: BTreeMap<u64, u64>,
}

impl Broken {
    /// These blocks.
    pub fn new(blocks: &[u64]) -> Broken {
        Broken { until: blocks.iter().map(|block| (*block, u64::MAX)).collect() }
    }

    /// A write of these blocks was acknowledged.
    pub fn written(&mut self, first: u64, count: u64, now: u64) {
        self.until.range_mut(first..first + count).for_each(|(_, until)| *until = now.min(*until));
    }

    /// Whether any of these blocks could not be read at that time or later.
    pub fn has(&self, since: u64, first: u64, count: u64) -> bool {
        self.until.range(first..first + count).any(|(_, until)| since < *until)
    }

    /// Whether a block cannot be read.
    pub fn knows(&self, block: u64) -> bool {
        self.until.get(&block) == Some(&u64::MAX)
    }

    /// Whether a block could not be read when the array began to serve.
    pub fn knew(&self, block: u64) -> bool {
        self.until.contains_key(&block)
    }

    /// What is left, as ranges: the first block of each, and how many.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for block in self.until.keys().filter(|block| self.knows(**block)) {
            match ranges.last_mut() {
                Some((first, count)) if *first + *count == *block => *count += 1,
                _ => ranges.push((*block, 1)),
            }
        }
        ranges
    }
}

fn covers(write: &RowWrite, block: u64) -> bool {
    (write.first..write.first + write.count).contains(&block)
}

/// The rows that these bytes belong to.
fn rows_of(geometry: &Geometry, places: &[(u64, u64)]) -> Vec<Row> {
    let block = BLOCK_BYTES as u64;
    let mut rows: Vec<((u64, u64), Row)> = Vec::new();
    for (offset, len) in places {
        let Some(stripe) = geometry.stripe_of(*offset) else { continue };
        let row = (stripe.number, (offset - stripe.array_start) % stripe.chunk_bytes);
        let blocks = offset / block..(offset + len) / block;
        match rows.last_mut().filter(|(known, _)| *known == row) {
            Some((_, of)) => of.blocks.extend(blocks),
            None => {
                let members = stripe.members.iter().fold(Roles::NONE, |all, role| all.with(usize::from(*role)));
                rows.push((row, Row { members, blocks: blocks.collect() }));
            }
        }
    }
    rows.into_iter().map(|(_, row)| row).collect()
}

impl Stage {
    /// These members of an array with parity have been left out.
    pub fn rows_lose(&mut self, device: DeviceId, roles: &[u16], in_time: bool) {
        let Stage { mirrors, oracle, .. } = self;
        let of = mirrors.iter().filter(|mirror| mirror.serves_as == Some(device));
        of.filter_map(|mirror| mirror.number).for_each(|number| oracle.rows(number).lose(roles, in_time));
    }

    /// A member of an array with parity is in sync.
    pub fn rows_promote(&mut self, device: DeviceId) {
        let Stage { mirrors, oracle, .. } = self;
        let of = mirrors.iter().filter(|mirror| mirror.serves_as == Some(device));
        of.filter_map(|mirror| mirror.number).for_each(|number| oracle.rows(number).promote());
    }
}
