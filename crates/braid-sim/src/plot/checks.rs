//! An administrator who has copies compared and mended, while clients work or while they rest; and rot, for it to find.

use std::collections::BTreeSet;

use braid_engine::io::DeviceId;
use braid_engine::keeper::{Findings, JobInfo, JobStage, Order};

use super::Admin;
use crate::content::BLOCK_BYTES;
use crate::rot::Wish;

impl Admin {
    /// A check, a repair, and a check again.
    pub async fn check_mirror(&mut self, index: usize) {
        self.phase("checking a mirror");
        let id = self.kept[&index].id;
        let number = self.stage.borrow().mirrors[index].number.expect("a served array has a number");
        let calm = self.rng.coin();
        if calm {
            self.stage.borrow_mut().workload.stop(number);
            self.until(|stage| stage.workload.is_idle(number)).await;
        }
        if self.is_steady(index) {
            self.spoil(index, number).await;
        }
        let steps: &[bool] = if self.rng.below(4) == 0 { &[false] } else { &[false, true, false] };
        for (step, repair) in steps.iter().enumerate() {
            let Some(found) = self.have_checked(id, *repair).await else { break };
            let steady = self.is_steady(index) && !self.stage.borrow().had_faults;
            // Before the repair everything that has rotted is there, unless somebody has written over it.
            let rotten = if step < 2 { self.stage.borrow().rot.count(number) } else { 0 };
            let wrong = found.unreadable_blocks > 0
                || found.differing_blocks > rotten
                || calm && found.differing_blocks < rotten
                || found.places.len() as u64 != found.differing_blocks;
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
            if !regions.readable.has(regions.region_of(at)) {
                continue;
            }
            let mut places = Vec::new();
            geometry.copies(at, &mut |piece| {
                let (disk, start) = members[usize::from(piece.member)];
                places.push((disk, start + piece.member_offset));
            });
            wishes.push(Wish { device: number, block, places });
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
