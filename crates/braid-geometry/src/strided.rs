//! The whole map in few words: runs that come again at a fixed step are one row.
//!
//! Computed from the period of each zone's pattern, not by looking for repetition: time and memory depend on the number
//! of members and zones, not on their size.

use crate::compiled::{Cell, CompiledZone};
use crate::{BLOCK_BYTES, Geometry, Kind, Run};

/// `count` runs at a fixed step: run *k* is `first` moved by *k* steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StridedRun {
    /// The first run.
    pub first: Run,
    /// How many runs there are, at least 1.
    pub count: u64,
    /// How far the next run is on the member, in blocks; 0 with a single run.
    pub member_step_blocks: u64,
    /// How far the next run is in the array, in blocks; in stripes for P and Q; 0 with a single run.
    pub array_step: u64,
}

impl StridedRun {
    fn single(first: Run) -> StridedRun {
        StridedRun { first, count: 1, member_step_blocks: 0, array_step: 0 }
    }

    /// The runs that this row stands for.
    pub fn expand(self) -> impl Iterator<Item = Run> {
        (0..self.count).map(move |k| Run {
            member_start_block: self.first.member_start_block + k * self.member_step_blocks,
            array_start_block: self.first.array_start_block + k * self.array_step,
            ..self.first
        })
    }
}

impl Geometry {
    /// The whole map, as [`Geometry::runs`], with runs that come again at a fixed step as one row.
    #[must_use]
    pub fn runs_strided(&self) -> RunsStrided<'_> {
        RunsStrided { geometry: self, member: 0, rows: Vec::new().into_iter() }
    }

    /// The rows of one member, in the order of their first runs.
    fn strided_of_member(&self, member: u16) -> Vec<StridedRun> {
        let mut spans: Vec<(u64, u64, &CompiledZone, u64)> = self
            .zones()
            .iter()
            .zip(&self.compiled)
            .filter_map(|(zone, compiled)| {
                let slot = self.slot_of(compiled, member)?;
                Some((zone.member_start / BLOCK_BYTES, zone.member_end() / BLOCK_BYTES, compiled, slot))
            })
            .collect();
        spans.sort_unstable_by_key(|span| span.0);
        let mut rows = Vec::new();
        let mut block = 0;
        for (start, end, zone, slot) in spans {
            push_unused(&mut rows, member, block, start);
            push_zone(&mut rows, member, zone, slot);
            block = end;
        }
        push_unused(&mut rows, member, block, self.members()[usize::from(member)] / BLOCK_BYTES);
        rows
    }
}

fn push_unused(rows: &mut Vec<StridedRun>, member: u16, from_block: u64, to_block: u64) {
    if from_block < to_block {
        let length_blocks = to_block - from_block;
        let run =
            Run { member, member_start_block: from_block, array_start_block: 0, length_blocks, kind: Kind::Unused };
        push(rows, StridedRun::single(run));
    }
}

/// Appends a row; a single run that continues the one before it is merged with it.
fn push(rows: &mut Vec<StridedRun>, row: StridedRun) {
    if let Some(last) = rows.last_mut()
        && last.count == 1
        && row.count == 1
        && last.first.merge(&row.first)
    {
        return;
    }
    rows.push(row);
}

fn push_zone(rows: &mut Vec<StridedRun>, member: u16, zone: &CompiledZone, slot: u64) {
    let period = zone.period_rows();
    // Rows at the end that are not all used are not part of what comes again; they are few.
    let repeats = zone.full_rows() / period;
    if repeats > 0 {
        let cell_blocks = zone.cell_bytes / BLOCK_BYTES;
        let chunks_per_period = match zone.parity() {
            0 => period * zone.width() / zone.copies(),
            _ => period * zone.chunks_per_row(),
        };
        for first in merged_rows(member, zone, slot, 0..period) {
            let array_step = match first.kind {
                Kind::Data => chunks_per_period * cell_blocks,
                Kind::P | Kind::Q => period,
                Kind::Unused => 0,
            };
            let (member_step_blocks, array_step) =
                if repeats > 1 { (period * cell_blocks, array_step) } else { (0, 0) };
            push(rows, StridedRun { first, count: repeats, member_step_blocks, array_step });
        }
    }
    for run in merged_rows(member, zone, slot, repeats * period..zone.rows) {
        push(rows, StridedRun::single(run));
    }
}

/// The runs of a few rows of cells of one slot.
fn merged_rows(member: u16, zone: &CompiledZone, slot: u64, cells: std::ops::Range<u64>) -> Vec<Run> {
    let cell_blocks = zone.cell_bytes / BLOCK_BYTES;
    let array_start_block = zone.array_start / BLOCK_BYTES;
    let mut runs: Vec<Run> = Vec::new();
    for row in cells {
        let (kind, array_start_block, length_blocks) = match zone.cell(slot, row) {
            Cell::Data { chunk, data_bytes, .. } => {
                (Kind::Data, array_start_block + chunk * cell_blocks, data_bytes / BLOCK_BYTES)
            }
            Cell::P => (Kind::P, zone.first_stripe + row, cell_blocks),
            Cell::Q => (Kind::Q, zone.first_stripe + row, cell_blocks),
            Cell::Unused => (Kind::Unused, 0, cell_blocks),
        };
        let member_start_block = zone.member_start / BLOCK_BYTES + row * cell_blocks;
        let run = Run { member, member_start_block, array_start_block, length_blocks, kind };
        let rest = Run {
            member_start_block: member_start_block + length_blocks,
            array_start_block: 0,
            length_blocks: cell_blocks - length_blocks,
            kind: Kind::Unused,
            ..run
        };
        for run in [run, rest] {
            if run.length_blocks > 0 && !runs.last_mut().is_some_and(|last| last.merge(&run)) {
                runs.push(run);
            }
        }
    }
    runs
}

/// The iterator of [`Geometry::runs_strided`]: members in order; it holds the rows of one member at a time.
#[derive(Clone, Debug)]
pub struct RunsStrided<'a> {
    geometry: &'a Geometry,
    member: usize,
    rows: std::vec::IntoIter<StridedRun>,
}

impl Iterator for RunsStrided<'_> {
    type Item = StridedRun;

    fn next(&mut self) -> Option<StridedRun> {
        loop {
            if let Some(row) = self.rows.next() {
                return Some(row);
            }
            if self.member >= self.geometry.members().len() {
                return None;
            }
            self.rows = self.geometry.strided_of_member(self.member as u16).into_iter();
            self.member += 1;
        }
    }
}
