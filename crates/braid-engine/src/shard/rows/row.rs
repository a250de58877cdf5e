//! One row as a step meets it: which member has which cell, what can be read, and where in memory it goes.

use braid_geometry::Stripe;

use super::super::Shard;
use super::super::slots::Slot;
use crate::io::{Buf, Op};
use crate::mirror::{Mirrored, Role};
use crate::parity::{How, Parity, RowOp};
use crate::planted::{Planted, planted};

/// Cells of a row, in the order of data, P, Q, with what is known of each.
pub(super) struct Row<'a> {
    pub(super) mirror: &'a Mirrored,
    pub(super) parity: &'a Parity,
    pub(super) stripe: Stripe<'a>,
}

impl<'a> Row<'a> {
    pub(super) fn new(mirror: &'a Mirrored, row: u64) -> Row<'a> {
        let parity = mirror.parity.as_deref().expect("an array with parity");
        Row { mirror, parity, stripe: parity.stripe_of_row(&mirror.geometry, row).0 }
    }

    pub(super) fn data(&self) -> usize {
        self.stripe.data_chunks()
    }

    pub(super) fn cells(&self) -> usize {
        self.data() + self.parity.count
    }

    pub(super) fn member(&self, cell: usize) -> usize {
        let member = match cell.checked_sub(self.data()) {
            None => self.stripe.data(cell),
            Some(0) => self.stripe.p(),
            Some(_) => self.stripe.q().expect("a second parity"),
        };
        usize::from(member)
    }

    /// Who is read for a cell. None: it is lost, or to be avoided.
    pub(super) fn reader(&self, cell: usize, slot: &Slot) -> Option<usize> {
        let member = self.member(cell);
        let filling = planted(Planted::FillingRowRead) && self.mirror.members[member].role == Role::Filling;
        match filling && !slot.avoid.has(member) {
            true => Some(member),
            false => self.mirror.reader(member, slot.avoid),
        }
    }

    pub(super) fn is_readable(&self, cell: usize, slot: &Slot) -> bool {
        self.reader(cell, slot).is_some()
    }

    /// Whether everybody who has a part of the row is in sync.
    pub(super) fn is_whole(&self) -> bool {
        let in_sync =
            |member: usize| self.mirror.members[member].role == Role::InSync || planted(Planted::DegradedOnlyMarked);
        (0..self.cells()).all(|cell| in_sync(self.member(cell)))
            && self.mirror.successors.iter().all(|s| in_sync(usize::from(s.member)))
    }

    /// What is to be read for an op, in which order it stands in memory behind the parities. `None`: too much is lost.
    pub(super) fn how(&self, op: &RowOp, slot: &Slot) -> Option<How> {
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
    pub(super) fn kept(&self, op: &RowOp) -> usize {
        match op.how {
            How::Full => 0,
            How::Modify => usize::from(op.cells),
            How::Reconstruct => self.data() - usize::from(op.cells),
            How::Recover => self.data(),
        }
    }

    /// Of these, where a data cell stands.
    pub(super) fn place(&self, op: &RowOp, cell: usize) -> usize {
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
    pub(super) fn pages(&self, op: &RowOp, zeros: bool) -> u32 {
        (self.parity.count + self.kept(op) + usize::from(zeros)) as u32 * u32::from(op.blocks)
    }

    /// Whether a cell is read for an op.
    pub(super) fn is_read(&self, op: &RowOp, cell: usize, slot: &Slot) -> bool {
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
pub(super) struct Memory {
    base: Buf,
    len: u64,
    parities: usize,
    /// Cells kept behind the parities.
    kept: usize,
}

impl Memory {
    pub(super) fn parity(&self, number: usize) -> Buf {
        self.base.add(number as u64 * self.len)
    }

    pub(super) fn kept(&self, place: usize) -> Buf {
        self.base.add((self.parities + place) as u64 * self.len)
    }

    pub(super) fn zeros(&self) -> Buf {
        self.kept(self.kept)
    }
}

impl Shard {
    pub(super) fn memory_of(&self, row: &Row<'_>, op: &RowOp) -> Memory {
        let base = self.scratch.as_ref().expect("an array with parity has scratch memory").page(op.page);
        Memory { base, len: op.len(), parities: row.parity.count, kept: row.kept(op) }
    }

    /// New data of a cell of an op.
    pub(super) fn new_data(&self, slot: &Slot, row: &Row<'_>, op: &RowOp, cell: usize) -> Buf {
        if slot.op == Op::Write {
            return slot.buf.add(op.array_offset(row.parity, &row.stripe, cell) - slot.start);
        }
        self.memory_of(row, op).zeros()
    }
}
