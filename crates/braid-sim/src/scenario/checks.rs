//! The administrator checks and repairs copies, under load or at rest, after some copies have rotted.

use std::collections::{BTreeMap, BTreeSet};

use braid_array_admin::reconciler::{Findings, JobInfo, JobStage, Order};
use braid_engine::io::DeviceId;

use super::Admin;
use crate::content::BLOCK_BYTES;
use crate::rot::{RotRequest, StripeBlock};

impl Admin {
    /// Runs a check, a repair, and a check again.
    pub async fn check_mirror(&mut self, index: usize) {
        self.phase("checking a mirror");
        let id = self.mirrors[&index].id;
        let number = self.state.borrow().mirrors[index].number.expect("a served array has a number");
        let level = self.state.borrow().mirrors[index].spec.level;
        let has_parity = level.parity() > 0;
        // A write beside a rotten cell would compute its parity from the rotten data.
        let calm = has_parity || self.rng.coin();
        if calm {
            self.state.borrow_mut().workload.stop(number);
            self.until(|state| state.workload.is_idle(number)).await;
        }
        if self.is_steady(index) && self.may_rot(index, number) {
            if has_parity {
                self.rot_stripes(index, number).await;
            } else {
                self.rot_copies(index, number).await;
            }
        }
        // One parity does not tell which cell is wrong: a repair of rotten data would make it permanent.
        let only_check = level.parity() == 1 && self.state.borrow().rot.has_data_of(number);
        let steps: &[bool] = if only_check || self.rng.below(4) == 0 { &[false] } else { &[false, true, false] };
        for (step, repair) in steps.iter().enumerate() {
            let Some(found) = self.order_check(id, *repair).await else { break };
            let steady = self.is_steady(index) && !self.state.borrow().had_faults;
            // Before the repair all rot is present, unless a client has overwritten it.
            let rotten = if step < 2 { self.state.borrow().rot.count(number) } else { 0 };
            let wrong = found.unreadable_blocks > 0
                || found.uncompared_blocks > 0
                || found.differing_blocks > rotten
                || calm && found.differing_blocks < rotten
                || found.offsets.len() as u64 != found.differing_blocks
                || has_parity && !self.matches_rot(number, &found, level.parity() == 2 && step < 2, step == 2);
            if steady && wrong {
                let what = if *repair { "repair" } else { "check" };
                return self.report_violation(format!("a {what} of mirror {index} finds {found:?}; rotten: {rotten}"));
            }
            if *repair && steady {
                self.count("repair a mirror");
                self.state.borrow_mut().rot.repaired_device = Some(number);
                self.until(|state| state.rot.is_idle()).await;
            } else if steady {
                self.count("check a mirror");
            }
        }
        self.state.borrow_mut().rot.given_up = true;
        self.until(|state| state.rot.is_idle()).await;
    }

    /// Returns whether copies may rot: members do not fail, and no stripe is unreadable.
    fn may_rot(&self, index: usize, number: u64) -> bool {
        let state = self.state.borrow();
        state.mirrors[index].rots && state.oracle.unreadable_ranges(number).is_empty()
    }

    /// Returns whether a check of an array with parity found exactly the rotten cells, and named their members where
    /// it can.
    fn matches_rot(&self, number: u64, found: &Findings, names: bool, is_repaired: bool) -> bool {
        let (lines, members) = self.state.borrow().rot.cells(number);
        let (lines, members) = if is_repaired { Default::default() } else { (lines, members) };
        let mut places = found.offsets.clone();
        places.sort_unstable();
        places == lines && found.wrong_blocks == if names { members } else { Default::default() }
    }

    /// Rots one block in each of some lines in regions that were written.
    async fn rot_stripes(&mut self, index: usize, number: u64) {
        let blocks = self.state.borrow().oracle.blocks(number);
        let of_two = self.state.borrow().mirrors[index].spec.level.parity() == 2;
        let some: BTreeSet<u64> = (0..self.rng.between(1, 12)).map(|_| self.rng.below(blocks)).collect();
        let Some((geometry, members)) = &self.mirrors[&index].copies else { return };
        let regions = &self.mirrors[&index].regions;
        let (block_bytes, mut requests) = (BLOCK_BYTES as u64, BTreeMap::new());
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
            let cell = StripeBlock { slot: holder(which), is_data: which < data, line };
            let block = if cell.is_data {
                (line + which as u64 * stripe.chunk_bytes) / block_bytes
            } else {
                line / block_bytes
            };
            let places = std::iter::once(which).chain((0..all).filter(|cell| *cell != which)).map(place).collect();
            requests.insert(line, RotRequest { device: number, block, places, cell: Some(cell) });
        }
        self.state.borrow_mut().rot.requests = requests.into_values().collect();
        self.until(|state| state.rot.is_idle()).await;
    }

    /// Returns whether an array has had all its members since it was started, and no job is running.
    fn is_steady(&self, index: usize) -> bool {
        let served = &self.mirrors[&index];
        let state = self.state.borrow();
        served.copies.is_some() && !state.lost.contains(&served.id) && state.jobs.of(served.id).is_empty()
    }

    /// Rots copies of some blocks that were written.
    async fn rot_copies(&mut self, index: usize, number: u64) {
        let blocks = self.state.borrow().oracle.blocks(number);
        let some: BTreeSet<u64> = (0..self.rng.between(1, 12)).map(|_| self.rng.below(blocks)).collect();
        let Some((geometry, members)) = &self.mirrors[&index].copies else { return };
        let regions = &self.mirrors[&index].regions;
        let mut requests = Vec::new();
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
            requests.push(RotRequest { device: number, block, places, cell: None });
        }
        self.state.borrow_mut().rot.requests = requests;
        self.until(|state| state.rot.is_idle()).await;
    }

    /// Orders a check or a repair. Returns its findings; `None` if it was refused or did not finish.
    async fn order_check(&mut self, id: DeviceId, repair: bool) -> Option<Findings> {
        if let Err(error) = self.port.give_order(id, Order::Check { repair }).await {
            self.expect_refusal(&error);
            return None;
        }
        let newest = self.state.borrow().jobs.newest(id).map(|info| info.number);
        let Some(job) = newest else {
            self.report_violation("a check has begun, but no job is reported".into());
            return None;
        };
        let over = |info: &JobInfo| info.stage.is_over();
        self.until(|state| state.jobs.job(id, job).is_none_or(over)).await;
        let info = self.state.borrow().jobs.job(id, job).cloned()?;
        info.findings.filter(|_| info.stage == JobStage::Done)
    }
}
