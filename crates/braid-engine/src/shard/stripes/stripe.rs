//! One stripe as a step sees it: which member holds which cell, what can be read, and where in memory it is.

use braid_geometry::Stripe;

use super::super::Shard;
use super::super::slots::Slot;
use crate::io::{Buf, Op};
use crate::mirror::{MemberRole, Mirrored};
use crate::parity::{Parity, ParityMethod, StripeOp};

/// The cells of a stripe, in the order of data, P, Q, and their members.
pub(super) struct StripeView<'a> {
    pub(super) mirror: &'a Mirrored,
    pub(super) parity: &'a Parity,
    pub(super) stripe: Stripe<'a>,
}

impl<'a> StripeView<'a> {
    pub(super) fn new(mirror: &'a Mirrored, row: u64) -> StripeView<'a> {
        let parity = mirror.parity.as_deref().expect("an array with parity");
        StripeView { mirror, parity, stripe: parity.geometry_stripe_of(&mirror.geometry, row).0 }
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

    /// Returns the member to read for a cell. `None`: it is lost, or to be avoided.
    pub(super) fn reader(&self, cell: usize, slot: &Slot) -> Option<usize> {
        let member = self.member(cell);
        self.mirror.reader(member, slot.avoid)
    }

    pub(super) fn is_readable(&self, cell: usize, slot: &Slot) -> bool {
        self.reader(cell, slot).is_some()
    }

    /// Returns whether all members that hold a part of the stripe are in sync.
    pub(super) fn is_whole(&self) -> bool {
        let in_sync = |member: usize| self.mirror.members[member].role == MemberRole::InSync;
        (0..self.cells()).all(|cell| in_sync(self.member(cell)))
            && self.mirror.successors.iter().all(|s| in_sync(usize::from(s.member)))
    }

    /// Returns how the parity of an op is computed, and with that what is read. `None`: too many cells are lost.
    pub(super) fn method(&self, op: &StripeOp, slot: &Slot) -> Option<ParityMethod> {
        let lost = (0..self.cells()).filter(|cell| !self.is_readable(*cell, slot)).count();
        if lost > self.parity.count {
            return None;
        }
        let others = self.data() - usize::from(op.cells);
        if others == 0 {
            return Some(ParityMethod::Full);
        }
        let reconstructs = (0..self.data()).all(|cell| op.covers(cell) || self.is_readable(cell, slot));
        Some(match (lost, reconstructs) {
            (0, _) if usize::from(op.cells) + self.parity.count < others => ParityMethod::Modify,
            (_, true) => ParityMethod::Reconstruct,
            (_, false) => ParityMethod::Recover,
        })
    }

    /// Returns the number of cells of an op that are kept in scratch memory, behind the parities.
    pub(super) fn kept(&self, op: &StripeOp) -> usize {
        match op.method {
            ParityMethod::Full => 0,
            ParityMethod::Modify => usize::from(op.cells),
            ParityMethod::Reconstruct => self.data() - usize::from(op.cells),
            ParityMethod::Recover => self.data(),
        }
    }

    /// Returns the index of a data cell among the kept cells.
    pub(super) fn place(&self, op: &StripeOp, cell: usize) -> usize {
        let first = usize::from(op.cell);
        match op.method {
            ParityMethod::Full => unreachable!("nothing is kept"),
            ParityMethod::Modify => cell - first,
            ParityMethod::Reconstruct if cell < first => cell,
            ParityMethod::Reconstruct => cell - usize::from(op.cells),
            ParityMethod::Recover => cell,
        }
    }

    /// Returns the pages of scratch memory that an op needs; one more cell if zeros are to be written.
    pub(super) fn pages(&self, op: &StripeOp, zeros: bool) -> u32 {
        (self.parity.count + self.kept(op) + usize::from(zeros)) as u32 * u32::from(op.blocks)
    }

    /// Returns whether a cell is read for an op.
    pub(super) fn is_read(&self, op: &StripeOp, cell: usize, slot: &Slot) -> bool {
        let data = cell < self.data();
        match op.method {
            ParityMethod::Full => false,
            ParityMethod::Modify => !data || op.covers(cell),
            ParityMethod::Reconstruct => data && !op.covers(cell),
            ParityMethod::Recover => self.is_readable(cell, slot),
        }
    }
}

/// The memory of an op.
#[derive(Clone, Copy)]
pub(super) struct OpMemory {
    base: Buf,
    len: u64,
    parities: usize,
    /// Number of cells kept behind the parities.
    kept: usize,
}

impl OpMemory {
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
    pub(super) fn memory_of(&self, row: &StripeView<'_>, op: &StripeOp) -> OpMemory {
        let base = self.scratch.as_ref().expect("an array with parity has scratch memory").page(op.page);
        OpMemory { base, len: op.len(), parities: row.parity.count, kept: row.kept(op) }
    }

    /// Returns the buffer with the new data of a cell of an op.
    pub(super) fn new_data(&self, slot: &Slot, row: &StripeView<'_>, op: &StripeOp, cell: usize) -> Buf {
        if slot.op == Op::Write {
            return slot.buf.add(op.array_offset(row.parity, &row.stripe, cell) - slot.start);
        }
        self.memory_of(row, op).zeros()
    }
}
