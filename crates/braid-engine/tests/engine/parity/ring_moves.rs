//! The ring of the journal on a disk of its own, and its moves.

use braid_engine::*;
use braid_format::MemberId;

use super::rig::{RING_BLOCKS, Rig};

/// The disk, and the offset of the ring on it.
pub const JOURNAL: LeafId = LeafId(1000);
pub(super) const JOURNAL_RING: u64 = 1 << 16;
/// Blocks of the ring: far more than those of the members.
pub(super) const JOURNAL_BLOCKS: u64 = 1000;

/// The location of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    Members,
    Disk,
    Nowhere,
}

impl Rig {
    pub(super) fn ring_place(&self) -> RingState {
        match self.ring_on {
            Ring::Members => RingState::Members,
            Ring::Nowhere => RingState::Moving,
            Ring::Disk => RingState::Disk(RingDisk {
                leaf: JOURNAL,
                role: self.roles.len() as u16,
                ring: JOURNAL_RING,
                id: MemberId::from_random(7),
                member_blocks: RING_BLOCKS as u16,
            }),
        }
    }

    /// Begins to move the ring: what was logged is written in place first.
    pub fn begin_move(&mut self, to: Ring) {
        (self.ring_on, self.moves_to) = (Ring::Nowhere, Some(to));
        self.publish();
        let home = usize::from(self.regions.home().0);
        let (shard, sink) = &mut self.shards[home];
        shard.begin_call(u64::from(self.version), DeviceId(0), RegionCall::PrepareRingMove, sink);
    }

    /// Retires the marks of the journal, in a freeze. Returns whether something had to be waited for.
    pub fn retire_marks(&mut self) -> bool {
        self.call(RegionCall::RetireMarks { wait: true }) > 2
    }

    /// Retires marks without a wait, as when a disk hangs: those of stripes that are known to be in place.
    pub fn retire_marks_at_once(&mut self) {
        assert_eq!(self.call(RegionCall::RetireMarks { wait: false }), 0, "it waits for nothing");
    }

    /// Returns the disks on which a stripe is not in place although its mark is retired.
    pub fn disks_failed(&self) -> Vec<LeafId> {
        self.marks.failed()
    }

    /// Writes everything in the journal in place, and retires it.
    pub fn empty_journal(&mut self) {
        self.call(RegionCall::Retire);
    }

    /// Makes a call to the home of the regions, and runs until it is done. Returns the number of steps.
    fn call(&mut self, call: RegionCall) -> u32 {
        self.version += 1;
        let home = usize::from(self.regions.home().0);
        let (shard, sink) = &mut self.shards[home];
        shard.begin_call(u64::from(self.version), DeviceId(0), call, sink);
        let mut steps = 0;
        while self.shards[home].0.pop_call_done().is_none() {
            assert!(self.step_but_calls(), "no call waits for what never comes");
            steps += 1;
        }
        steps
    }

    /// Moves the ring, once that is possible. Returns whether it was.
    pub(super) fn finish_move(&mut self) -> bool {
        let home = usize::from(self.regions.home().0);
        if self.shards[home].0.pop_call_done().is_none() {
            return false;
        }
        // A call of a move that was replaced by another one does not count.
        if let Some(to) = self.moves_to.take() {
            self.run_number += 1;
            (self.ring_on, self.ring_was) = (to, to);
            self.publish();
        }
        true
    }
}
