//! The ring of the journal on a disk of its own, and how it moves.

use braid_engine::*;
use braid_format::MemberId;

use super::rig::{RING_BLOCKS, Rig};

/// The disk, and where the ring is on it.
pub const JOURNAL: LeafId = LeafId(1000);
pub(super) const JOURNAL_RING: u64 = 1 << 16;
/// Blocks of the ring: far more than those of the members.
pub(super) const JOURNAL_BLOCKS: u64 = 1000;

/// Where the ring is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    Members,
    Disk,
    Nowhere,
}

impl Rig {
    pub(super) fn ring_place(&self) -> RingPlace {
        match self.ring_on {
            Ring::Members => RingPlace::Members,
            Ring::Nowhere => RingPlace::Moving,
            Ring::Disk => RingPlace::Disk(RingDisk {
                leaf: JOURNAL,
                role: self.roles.len() as u16,
                ring: JOURNAL_RING,
                id: MemberId::from_random(7),
                member_blocks: RING_BLOCKS as u16,
            }),
        }
    }

    /// The ring is to be elsewhere: what was logged is put in place first.
    pub fn begin_move(&mut self, to: Ring) {
        (self.ring_on, self.moves_to) = (Ring::Nowhere, Some(to));
        self.publish();
        let home = usize::from(self.regions.home().0);
        let (shard, sink) = &mut self.shards[home];
        shard.call(u64::from(self.version), DeviceId(0), RegionCall::Quiesce, sink);
    }

    /// Has the marks of the journal retired, in a freeze. Whether something had to be waited for.
    pub fn retire_marks(&mut self) -> bool {
        self.call(RegionCall::RetireMarks { wait: true }) > 2
    }

    /// The same without a wait, as when a disk hangs: of rows that are known to be in place.
    pub fn retire_marks_at_once(&mut self) {
        assert_eq!(self.call(RegionCall::RetireMarks { wait: false }), 0, "it waits for nothing");
    }

    /// Disks on which a row is not in place although its mark is retired.
    pub fn disks_failed(&self) -> Vec<LeafId> {
        self.marks.failed()
    }

    /// Has all that is in the journal put in place, and emptied out of it.
    pub fn empty_journal(&mut self) {
        self.call(RegionCall::Retire);
    }

    /// Asks something of the home of the regions, and goes on until it is done: after how many steps.
    fn call(&mut self, call: RegionCall) -> u32 {
        self.version += 1;
        let home = usize::from(self.regions.home().0);
        let (shard, sink) = &mut self.shards[home];
        shard.call(u64::from(self.version), DeviceId(0), call, sink);
        let mut steps = 0;
        while self.shards[home].0.pop_called().is_none() {
            assert!(self.step_but_calls(), "nobody waits for what never comes");
            steps += 1;
        }
        steps
    }

    /// Puts it there, once it can be. Whether that was so.
    pub(super) fn finish_move(&mut self) -> bool {
        let home = usize::from(self.regions.home().0);
        if self.shards[home].0.pop_called().is_none() {
            return false;
        }
        // A call of a move that another one took the place of says nothing.
        if let Some(to) = self.moves_to.take() {
            self.run_number += 1;
            (self.ring_on, self.ring_was) = (to, to);
            self.publish();
        }
        true
    }
}
