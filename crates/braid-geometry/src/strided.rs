//! The whole map in compact form: runs that repeat at a fixed step are one entry.
//!
//! The entries are computed from the period of each zone's pattern, not by searching for repetition: time and memory depend
//! on the number of members and zones, not on their size.

use crate::cell::Cell;
use crate::compiled::CompiledZone;
use crate::{BLOCK_BYTES, ContentKind, Geometry, Run};

/// `count` runs at a fixed step: run *k* (from 0) is `first` with *k* steps added to its start on the member and in the
/// array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StridedRun {
    /// The first run.
    pub first: Run,
    /// The number of runs, at least 1.
    pub count: u64,
    /// The distance between consecutive runs on the member, in blocks; 0 with a single run.
    pub member_step_blocks: u64,
    /// The distance between consecutive runs in the array, in blocks, or in stripes for P and Q; 0 with a single run.
    pub array_step: u64,
}

impl StridedRun {
    fn single(first: Run) -> StridedRun {
        StridedRun { first, count: 1, member_step_blocks: 0, array_step: 0 }
    }

    /// Returns the runs of this entry.
    pub fn expand(self) -> impl Iterator<Item = Run> {
        (0..self.count).map(move |k| Run {
            member_start_block: self.first.member_start_block + k * self.member_step_blocks,
            array_start_block: self.first.array_start_block + k * self.array_step,
            ..self.first
        })
    }
}

impl Geometry {
    /// Returns the same map as [`Geometry::runs`], with runs that repeat at a fixed step as one entry.
    #[must_use]
    pub fn runs_strided(&self) -> RunsStrided<'_> {
        RunsStrided { geometry: self, member: 0, entries: Vec::new().into_iter() }
    }

    /// Returns the entries of one member, in the order of their first runs.
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
        let mut entries = Vec::new();
        let mut block = 0;
        for (start, end, zone, slot) in spans {
            push_unused(&mut entries, member, block, start);
            push_zone(&mut entries, member, zone, slot);
            block = end;
        }
        push_unused(&mut entries, member, block, self.member_data_bytes()[usize::from(member)] / BLOCK_BYTES);
        entries
    }
}

fn push_unused(entries: &mut Vec<StridedRun>, member: u16, from_block: u64, to_block: u64) {
    if from_block < to_block {
        let length_blocks = to_block - from_block;
        let run = Run {
            member,
            member_start_block: from_block,
            array_start_block: 0,
            length_blocks,
            kind: ContentKind::Unused,
        };
        push(entries, StridedRun::single(run));
    }
}

/// Appends an entry. A single run that continues the preceding single run is merged into it.
fn push(entries: &mut Vec<StridedRun>, entry: StridedRun) {
    if let Some(last) = entries.last_mut()
        && last.count == 1
        && entry.count == 1
        && last.first.merge(&entry.first)
    {
        return;
    }
    entries.push(entry);
}

fn push_zone(entries: &mut Vec<StridedRun>, member: u16, zone: &CompiledZone, slot: u64) {
    let period = zone.period_rows();
    // The last rows may be partially unused. They are not part of the repeating pattern, and there are few of them.
    let repeats = zone.full_rows() / period;
    if repeats > 0 {
        let cell_blocks = zone.cell_bytes / BLOCK_BYTES;
        let chunks_per_period = match zone.parity() {
            0 => period * zone.width() / zone.copies(),
            _ => period * zone.chunks_per_row(),
        };
        for first in merged_runs(member, zone, slot, 0..period) {
            let array_step = match first.kind {
                ContentKind::Data => chunks_per_period * cell_blocks,
                ContentKind::P | ContentKind::Q => period,
                ContentKind::Unused => 0,
            };
            let (member_step_blocks, array_step) =
                if repeats > 1 { (period * cell_blocks, array_step) } else { (0, 0) };
            push(entries, StridedRun { first, count: repeats, member_step_blocks, array_step });
        }
    }
    for run in merged_runs(member, zone, slot, repeats * period..zone.rows) {
        push(entries, StridedRun::single(run));
    }
}

/// Returns the runs of a range of rows of cells of one slot.
fn merged_runs(member: u16, zone: &CompiledZone, slot: u64, rows: std::ops::Range<u64>) -> Vec<Run> {
    let cell_blocks = zone.cell_bytes / BLOCK_BYTES;
    let array_start_block = zone.array_start / BLOCK_BYTES;
    let mut runs: Vec<Run> = Vec::new();
    for row in rows {
        let (kind, array_start_block, length_blocks) = match zone.cell(slot, row) {
            Cell::Data { chunk, data_bytes, .. } => {
                (ContentKind::Data, array_start_block + chunk * cell_blocks, data_bytes / BLOCK_BYTES)
            }
            Cell::P => (ContentKind::P, zone.first_stripe + row, cell_blocks),
            Cell::Q => (ContentKind::Q, zone.first_stripe + row, cell_blocks),
            Cell::Unused => (ContentKind::Unused, 0, cell_blocks),
        };
        let member_start_block = zone.member_start / BLOCK_BYTES + row * cell_blocks;
        let run = Run { member, member_start_block, array_start_block, length_blocks, kind };
        let rest = Run {
            member_start_block: member_start_block + length_blocks,
            array_start_block: 0,
            length_blocks: cell_blocks - length_blocks,
            kind: ContentKind::Unused,
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

/// The iterator of [`Geometry::runs_strided`]: members in order. It holds the entries of one member at a time.
#[derive(Clone, Debug)]
pub struct RunsStrided<'a> {
    geometry: &'a Geometry,
    member: usize,
    entries: std::vec::IntoIter<StridedRun>,
}

impl Iterator for RunsStrided<'_> {
    type Item = StridedRun;

    fn next(&mut self) -> Option<StridedRun> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(entry);
            }
            if self.member >= self.geometry.member_data_bytes().len() {
                return None;
            }
            self.entries = self.geometry.strided_of_member(self.member as u16).into_iter();
            self.member += 1;
        }
    }
}
