//! Compares the holes that the shards' layout reports with what is read.

use braid_engine::allocation::{AllocationRun, extents};
use braid_engine::*;

use super::rig::Rig;

impl Rig {
    /// Returns the runs of a range as a shard that serves the array would report them.
    fn runs(&self, shard: usize, offset: u64, len: u64) -> Vec<(u64, AllocationRun)> {
        // A second array on the same shards is written, and never read.
        let Some(layout) = self.shards[shard].0.layout(DeviceId(0)).cloned() else { return Vec::new() };
        let (mut at, mut runs) = (offset, Vec::new());
        let mut probe = |_, _, _| unreachable!("no member is probed");
        while at < offset + len {
            extents(&layout, at, offset + len - at, || 0, &mut probe, &mut |run| {
                runs.push((at, run));
                at += run.len;
                true
            });
        }
        runs
    }

    /// Checks that nothing of a range is reported as a hole.
    pub(super) fn check_no_hole(&self, shard: usize, offset: u64, len: u64, what: &str) {
        for (at, run) in self.runs(shard, offset, len) {
            assert!(!run.hole, "{at}+{} is reported as a hole after {what}", run.len);
        }
    }

    /// Checks that every reported hole is zeros, by the answered writes. Returns how many bytes are holes.
    pub fn check_holes(&self) -> u64 {
        let runs = self.runs(0, 0, self.geometry.size_bytes());
        for (at, run) in runs.iter().filter(|(_, run)| run.hole) {
            let bytes = &self.model[*at as usize..][..run.len as usize];
            assert!(bytes.iter().all(|byte| *byte == 0), "{at}+{} is reported as a hole, {}", run.len, self.run);
        }
        runs.iter().filter(|(_, run)| run.hole).map(|(_, run)| run.len).sum()
    }
}
