//! What the shards' layout tells to be holes, against what is read.

use braid_engine::allocation::{Extent, extents};
use braid_engine::*;

use super::rig::Rig;

impl Rig {
    /// The runs of a range as a shard that serves the array would tell them.
    fn runs(&self, shard: usize, offset: u64, len: u64) -> Vec<(u64, Extent)> {
        // A second array on the same shards is written, and never read.
        let Some(layout) = self.shards[shard].0.layout(DeviceId(0)).cloned() else { return Vec::new() };
        let (mut at, mut runs) = (offset, Vec::new());
        let mut probe = |_, _, _| unreachable!("no member is asked");
        while at < offset + len {
            extents(&layout, at, offset + len - at, || 0, &mut probe, &mut |run| {
                runs.push((at, run));
                at += run.len;
                true
            });
        }
        runs
    }

    /// Nothing of a range is told to be a hole.
    pub(super) fn check_no_hole(&self, shard: usize, offset: u64, len: u64, what: &str) {
        for (at, run) in self.runs(shard, offset, len) {
            assert!(!run.hole, "{at}+{} is told to be a hole after {what}", run.len);
        }
    }

    /// Whatever is told to be a hole is zeros, by what all that was answered left. Returns how many bytes are holes.
    pub fn check_holes(&self) -> u64 {
        let runs = self.runs(0, 0, self.geometry.size_bytes());
        for (at, run) in runs.iter().filter(|(_, run)| run.hole) {
            let bytes = &self.model[*at as usize..][..run.len as usize];
            assert!(bytes.iter().all(|byte| *byte == 0), "{at}+{} is told to be a hole, {}", run.len, self.run);
        }
        runs.iter().filter(|(_, run)| run.hole).map(|(_, run)| run.len).sum()
    }
}
