//! Changes of snapshots and copies of them that are in progress, and the oracle's snapshots.

use std::collections::BTreeMap;

use braid_engine::replica::{VoterId, Voters};

use super::bugs::{Bug, is_active};
use super::messages::SnapshotOp;

/// The oracle's knowledge of a snapshot, independent of its replicas.
#[derive(Clone, Debug)]
pub struct SnapshotModel {
    /// The content of the volume at the moment of the snapshot.
    pub content: Vec<u64>,
    pub state: SnapshotState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotState {
    /// Its creation was requested: in the end it exists on all in-sync replicas or on none.
    Taking,
    /// It was acknowledged.
    Exists,
    /// Its deletion was requested.
    Deleting,
    /// Its deletion was acknowledged.
    Deleted,
}

/// A stage of a snapshot change on all in-sync replicas.
#[derive(Clone, Debug)]
pub enum ChangeStage {
    /// Requests in flight end.
    Hold,
    /// Each replica takes the snapshot.
    Take,
    /// A replica has failed meanwhile: the others remove the snapshot.
    Abandon,
    Name,
    Hide,
    Remove,
    /// Each replica lists its snapshots.
    List(BTreeMap<u8, Vec<(u64, bool)>>),
    /// The differences are settled.
    Settle(Vec<(VoterId, SnapshotOp)>),
}

/// A snapshot change.
pub struct SnapshotChange {
    pub number: u64,
    pub id: u64,
    pub stage: ChangeStage,
    /// The in-sync replicas when the change began.
    pub of: Voters,
    pub requested: Voters,
    pub done: Voters,
}

/// A copy of the snapshots that a returned replica lacks, oldest first, before the replica receives any write.
pub struct SnapshotCopy {
    pub number: u64,
    pub source: VoterId,
    pub target: VoterId,
    pub has: BTreeMap<u8, Vec<(u64, bool)>>,
    /// The remaining steps, performed one after the other; `None`: not planned yet.
    pub steps: Option<Vec<SnapshotCopyStep>>,
    pub waits: bool,
    /// The value that was read and is to be written.
    pub value: Option<u64>,
    pub failed: bool,
    pub done: bool,
}

/// One step of a snapshot copy; the list has the next step last.
#[derive(Clone, Copy, Debug)]
pub enum SnapshotCopyStep {
    Copy(u64, u16),
    Flush,
    Do(SnapshotOp),
}

impl SnapshotChange {
    pub fn begin(number: u64, id: u64, stage: ChangeStage, of: Voters) -> SnapshotChange {
        SnapshotChange { number, id, stage, of, requested: Voters::NONE, done: Voters::NONE }
    }

    pub fn enter(&mut self, stage: ChangeStage) {
        (self.stage, self.requested, self.done) = (stage, Voters::NONE, Voters::NONE);
    }

    /// Returns whether new requests must wait.
    pub fn holds(&self) -> bool {
        matches!(self.stage, ChangeStage::Hold | ChangeStage::Take) && !is_active(Bug::SnapshotUnheld)
    }
}

impl SnapshotCopy {
    pub fn new(number: u64, source: VoterId, target: VoterId) -> SnapshotCopy {
        let has = BTreeMap::new();
        SnapshotCopy { number, source, target, has, steps: None, waits: false, value: None, failed: false, done: false }
    }

    /// Returns the replicas that get writes too early: only with a mutation.
    pub fn targets(&self) -> Voters {
        if is_active(Bug::WrittenBeforeSnapshots) { [self.target].into_iter().collect() } else { Voters::NONE }
    }

    pub fn fail(&mut self, voter: VoterId) {
        self.failed |= voter == self.source || voter == self.target;
    }

    /// Plans the steps: snapshots that the source lacks are removed from the target; snapshots that the target lacks
    /// are copied.
    pub fn plan(&self, blocks: u16) -> Vec<SnapshotCopyStep> {
        let of = |voter: VoterId| self.has.get(&voter.0).cloned().unwrap_or_default();
        let (on_source, on_target) = (of(self.source), of(self.target));
        let mut steps = Vec::new();
        if !is_active(Bug::DeletedSnapshotKept) {
            let stays = |(id, named): &&(u64, bool)| *named && on_source.contains(&(*id, true));
            steps.extend(
                on_target.iter().filter(|one| !stays(one)).map(|(id, _)| SnapshotCopyStep::Do(SnapshotOp::Remove(*id))),
            );
        }
        let lacks = |(id, named): &&(u64, bool)| *named && !on_target.contains(&(*id, true));
        for (id, _) in on_source.iter().filter(lacks).filter(|_| !is_active(Bug::SnapshotNotBrought)) {
            steps.extend((0..blocks).map(|block| SnapshotCopyStep::Copy(*id, block)));
            steps.extend([
                SnapshotCopyStep::Flush,
                SnapshotCopyStep::Do(SnapshotOp::Take(*id)),
                SnapshotCopyStep::Do(SnapshotOp::Name(*id)),
            ]);
        }
        steps.reverse();
        steps
    }
}
