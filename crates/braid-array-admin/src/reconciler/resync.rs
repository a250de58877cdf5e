//! Resync: makes the copies of regions equal that a crash left unequal. Requests for such a region wait until it is.

use std::collections::VecDeque;

use braid_engine::RegionCall;
use braid_format::JobKind;

use super::copy::Goal;
use super::{Act, JobStage, Reconciler, ReconcilerEvent, ReconcilerIo};

/// Regions that are made equal between two flushes.
const BATCH: usize = 8;

impl Reconciler {
    /// Resyncs some regions, first those that requests wait for. `None`: none are left, or the job is paused.
    pub(super) async fn resync<I: ReconcilerIo>(&mut self, io: &I) -> Option<Act> {
        if self.regions.unequal.count() == 0 {
            if self.jobs.of(JobKind::Resync, None).is_some() {
                self.end_job(io, JobKind::Resync, None, JobStage::Done);
                io.report(self.options.device, ReconcilerEvent::Resynced);
            }
            return None;
        }
        let wanted = self.batch(|region| self.regions.wanted.has(region), BATCH);
        if !wanted.is_empty() {
            self.copy(io, &mut Goal::Wanted(wanted)).await;
        } else if self.copied.len() < BATCH && self.jobs.runs(JobKind::Resync, None) {
            let some = self.batch(|_| true, BATCH - self.copied.len());
            self.copy(io, &mut Goal::Unequal(some)).await;
        } else if self.copied.is_empty() {
            return None;
        }
        if self.copied.is_empty() {
            return Some(Act::Nothing);
        }
        for (role, leaf) in self.serving() {
            if let Err(error) = io.flush(leaf).await {
                self.note_failure(role, error.kind);
                return Some(Act::Drop(role));
            }
        }
        let equal = self.copied.iter().copied().collect();
        io.call(self.options.device, self.options.home, RegionCall::MarkEqual(equal)).await;
        self.copied.clear();
        self.report_job(io, JobKind::Resync, None, false);
        Some(Act::Nothing)
    }

    /// Returns the first unequal regions for which `is` is true.
    fn batch(&self, is: impl Fn(u32) -> bool, most: usize) -> VecDeque<u32> {
        let (mut some, mut from) = (VecDeque::new(), 0);
        while let Some(region) = self.regions.unequal.next(from).filter(|_| some.len() < most) {
            if is(region) && !self.copied.contains(&region) {
                some.push_back(region);
            }
            from = region + 1;
        }
        some
    }
}
