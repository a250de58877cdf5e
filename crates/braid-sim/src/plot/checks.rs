//! An administrator who has copies compared and mended, while clients work or while they rest; and rot, for it to find.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::io::DeviceId;
use braid_engine::keeper::{Findings, JobInfo, JobStage, Order};

use super::Admin;
use crate::content::BLOCK_BYTES;
use crate::rot::{Cell, Wish};

impl Admin {
    /// A check, a repair, and a check again.
    pub async fn check_mirror(&mut self, index: usize) {
        self.phase("checking a mirror");
        let id = self.kept[&index].id;
        let number = self.stage.borrow().mirrors[index].number.expect("a served array has a number");
        let level = self.stage.borrow().mirrors[index].spec.level;
        let has_parity = level.parity() > 0;
        // Who writes beside a cell that has rotted would make a parity of it.
        let calm = has_parity || self.rng.coin();
        if calm {
            self.stage.borrow_mut().workload.stop(number);
            self.until(|stage| stage.workload.is_idle(number)).await;
        }
        if self.is_steady(index) && self.may_rot(index, number) {
            if has_parity {
                self.spoil_rows(index, number).await;
            } else {
                self.spoil(index, number).await;
            }
        }
        // One parity does not tell who is wrong: what a repair makes of data that have rotted is nobody's wish.
        let only_check = level.parity() == 1 && self.stage.borrow().rot.has_data_of(number);
        let steps: &[bool] = if only_check || self.rng.below(4) == 0 { &[false] } else { &[false, true, false] };
        for (step, repair) in steps.iter().enumerate() {
            let Some(found) = self.have_checked(id, *repair).await else { break };
            let steady = self.is_steady(index) && !self.stage.borrow().had_faults;
            // Before the repair everything that has rotted is there, unless somebody has written over it.
            let rotten = if step < 2 { self.stage.borrow().rot.count(number) } else { 0 };
            let wrong = found.unreadable_blocks > 0
                || found.uncompared_blocks > 0
                || found.differing_blocks > rotten
                || calm && found.differing_blocks < rotten
                || found.offsets.len() as u64 != found.differing_blocks
                || has_parity && !self.are_these(number, &found, level.parity() == 2 && step < 2, step == 2);
            if steady && wrong {
                let what = if *repair { "repair" } else { "check" };
                return self.odd(format!("a {what} of mirror {index} finds {found:?}; rotten: {rotten}"));
            }
            if *repair && steady {
                self.count("repair a mirror");
                self.stage.borrow_mut().rot.mended = Some(number);
                self.until(|stage| stage.rot.is_idle()).await;
            } else if steady {
                self.count("check a mirror");
            }
        }
        self.stage.borrow_mut().rot.given_up = true;
        self.until(|stage| stage.rot.is_idle()).await;
    }

    /// Whether anything may rot: members stay, and there are no rows of which something cannot be read.
    fn may_rot(&self, index: usize, number: u64) -> bool {
        let stage = self.stage.borrow();
        stage.mirrors[index].rots && stage.oracle.broken_ranges(number).is_empty()
    }

    /// Whether a check of an array with parity has found exactly what has rotted, and named who has it where that can be told.
    fn are_these(&self, number: u64, found: &Findings, names: bool, is_mended: bool) -> bool {
        let (lines, members) = self.stage.borrow().rot.cells(number);
        let (lines, members) = if is_mended { Default::default() } else { (lines, members) };
        let mut places = found.offsets.clone();
        places.sort_unstable();
        places == lines && found.wrong_blocks == if names { members } else { Default::default() }
    }

    /// Lets cells of some lines rot that have been written.
    async fn spoil_rows(&mut self, index: usize, number: u64) {
        let blocks = self.stage.borrow().oracle.blocks(number);
        let of_two = self.stage.borrow().mirrors[index].spec.level.parity() == 2;
        let some: BTreeSet<u64> = (0..self.rng.between(1, 12)).map(|_| self.rng.below(blocks)).collect();
        let Some((geometry, members)) = &self.kept[&index].copies else { return };
        let regions = &self.kept[&index].regions;
        let (block_bytes, mut wishes) = (BLOCK_BYTES as u64, BTreeMap::new());
        let only_parity = !of_two && self.rng.coin();
        for at in some.into_iter().map(|block| block * block_bytes) {
            let Some(stripe) = geometry.stripe_of(at) else { continue };
            if !regions.written.has(regions.region_of_stripe(&stripe)) {
                continue;
            }
            let column = (at - stripe.array_start) % stripe.chunk_bytes / block_bytes * block_bytes;
            let (data, all) = (stripe.data_chunks(), stripe.members.len());
            let which =
                if only_parity { self.rng.between(data as u64, all as u64 - 1) as usize } else { self.rng.index(all) };
            let holder = |cell: usize| match cell.checked_sub(data) {
                None => stripe.data(cell),
                Some(0) => stripe.p(),
                Some(_) => stripe.q().expect("a second parity"),
            };
            let place = |cell: usize| {
                let (disk, start) = members[usize::from(holder(cell))];
                (disk, start + stripe.member_offset + column)
            };
            let line = stripe.array_start + column;
            let cell = Cell { role: holder(which), is_data: which < data, line };
            let block = if cell.is_data {
                (line + which as u64 * stripe.chunk_bytes) / block_bytes
            } else {
                line / block_bytes
            };
            let places = std::iter::once(which).chain((0..all).filter(|cell| *cell != which)).map(place).collect();
            wishes.insert(line, Wish { device: number, block, places, cell: Some(cell) });
        }
        self.stage.borrow_mut().rot.wishes = wishes.into_values().collect();
        self.until(|stage| stage.rot.is_idle()).await;
    }

    /// Whether an array has all its members since it was started, and nothing is to be copied.
    fn is_steady(&self, index: usize) -> bool {
        let kept = &self.kept[&index];
        let stage = self.stage.borrow();
        kept.copies.is_some() && !stage.lost.contains(&kept.id) && stage.jobs.of(kept.id).is_empty()
    }

    /// Lets copies of some blocks rot that have been written.
    async fn spoil(&mut self, index: usize, number: u64) {
        let blocks = self.stage.borrow().oracle.blocks(number);
        let some: BTreeSet<u64> = (0..self.rng.between(1, 12)).map(|_| self.rng.below(blocks)).collect();
        let Some((geometry, members)) = &self.kept[&index].copies else { return };
        let regions = &self.kept[&index].regions;
        let mut wishes = Vec::new();
        for block in some {
            let at = block * BLOCK_BYTES as u64;
            if !regions.readable.has(regions.region_at(geometry, at)) {
                continue;
            }
            let mut places = Vec::new();
            geometry.copies(at, &mut |piece| {
                let (disk, start) = members[usize::from(piece.member)];
                places.push((disk, start + piece.member_offset));
            });
            wishes.push(Wish { device: number, block, places, cell: None });
        }
        self.stage.borrow_mut().rot.wishes = wishes;
        self.until(|stage| stage.rot.is_idle()).await;
    }

    /// Has an array checked or repaired. `None` where that was refused, or has not come to its end.
    async fn have_checked(&mut self, id: DeviceId, repair: bool) -> Option<Findings> {
        if let Err(error) = self.port.give_order(id, Order::Check { repair }).await {
            self.expect_refusal(&error);
            return None;
        }
        let newest = self.stage.borrow().jobs.newest(id).map(|info| info.number);
        let Some(job) = newest else {
            self.odd("a check has begun, and no job is told of".into());
            return None;
        };
        let over = |info: &JobInfo| info.stage.is_over();
        self.until(|stage| stage.jobs.job(id, job).is_none_or(over)).await;
        let info = self.stage.borrow().jobs.job(id, job).cloned()?;
        info.findings.filter(|_| info.stage == JobStage::Done)
    }
}
