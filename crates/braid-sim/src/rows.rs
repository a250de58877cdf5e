//! When a row of an array with parity may be unreadable: what is written wholly is only marked in the journal, so that a crash
//! together with a loss leaves nothing to compute it from. Whatever else is written is logged, and must be there.
//!
//! A row was only marked at the crash where writes without FUA cover all of its data, none of which was flushed, and after
//! none of which, while it still counted, something else was written there and answered: the journal takes that only when the mark
//! is gone. While a member of a row is out the row is not marked, and with the drop of one all marks of before are retired. Writes that were under way together may have been gathered to a whole one.

use std::collections::BTreeMap;

use braid_engine::Roles;
use braid_engine::io::DeviceId;
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
    /// Blocks of each cell.
    pub lines: usize,
    /// Who has a cell of it, parities included.
    pub members: Roles,
    /// All of them.
    pub blocks: Vec<u64>,
}

impl Row {
    /// The blocks of each line.
    fn each_line(&self) -> impl Iterator<Item = Vec<u64>> {
        (0..self.lines).map(|line| self.blocks.iter().copied().skip(line).step_by(self.lines).collect())
    }
}

/// Rows of which something cannot be read, until it is written again: all data of a line at once.
#[derive(Default)]
pub struct Broken {
    rows: Vec<Row>,
    /// Until when that holds of each block.
    until: BTreeMap<u64, u64>,
}

impl Broken {
    /// These rows.
    pub fn new(rows: Vec<Row>) -> Broken {
        let until = rows.iter().flat_map(|row| &row.blocks).map(|block| (*block, u64::MAX)).collect();
        Broken { rows, until }
    }

    /// A write of these blocks was acknowledged.
    pub fn written(&mut self, first: u64, count: u64, now: u64) {
        let is_written = |block: &u64| (first..first + count).contains(block);
        for line in self.rows.iter().flat_map(Row::each_line).filter(|line| line.iter().all(is_written)) {
            for block in line {
                let until = self.until.entry(block).or_insert(now);
                *until = now.min(*until);
            }
        }
    }

    /// Whether any of these blocks could not be read at that time or later.
    pub fn has(&self, since: u64, first: u64, count: u64) -> bool {
        self.until.range(first..first + count).any(|(_, until)| since < *until)
    }

    /// Whether something of a row cannot be read.
    pub fn knows(&self, row: &Row) -> bool {
        row.blocks.iter().any(|block| self.until.get(block) == Some(&u64::MAX))
    }

    /// Rows that are left: the first block of each, and how many to its last.
    pub fn rows(&self) -> Vec<(u64, u64)> {
        let left = self.rows.iter().filter(|row| self.knows(row));
        left.filter_map(|row| Some((*row.blocks.first()?, row.blocks.last()? - row.blocks.first()? + 1))).collect()
    }
}

fn covers(write: &RowWrite, block: u64) -> bool {
    (write.first..write.first + write.count).contains(&block)
}

/// The rows that these bytes belong to.
pub fn rows_of(geometry: &Geometry, places: &[(u64, u64)]) -> Vec<Row> {
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
                rows.push((row, Row { lines: (len / block) as usize, members, blocks: blocks.collect() }));
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
