//! What a controller knows of the volume that it serves.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::replica::{Membership, MembershipAction, Opened, VoterId, Voters};
use braid_format::Uuid;

use super::messages::Io;
use super::parameters::Parameters;
use super::replica_copy::ReplicaCopy;
use super::snapshot_state::{SnapshotChange, SnapshotCopy};

/// A wanted change of the voters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VoterChange {
    /// Adds the voter, with data or as a witness.
    Add(VoterId, bool),
    /// Removes the voter.
    Remove(VoterId),
}

/// A rollback.
#[derive(Clone, Copy, Debug)]
pub struct Rollback {
    /// The snapshot.
    pub id: u64,
    /// The replica that is rolled back.
    pub keep: VoterId,
    /// Identifies the rollback; unique.
    pub mark: u64,
}

impl Rollback {
    pub fn alone(&self) -> Voters {
        [self.keep].into_iter().collect()
    }
}

/// A client request without a reply.
pub struct OpenRequest {
    /// Its index in the history.
    pub number: usize,
    pub io: Io,
    pub client: usize,
    /// The request holds the lock of its block.
    pub begun: bool,
    pub sent: Voters,
    pub done: Voters,
    /// By node, the boot under which its I/O was done.
    pub boots: BTreeMap<usize, u64>,
    /// The value that a read found.
    pub value: Option<u64>,
    /// For a flush: the blocks whose dirty bits may be cleared once all in-sync replicas have flushed.
    pub clean: BTreeSet<u16>,
}

/// The reply to an I/O.
pub struct IoReply {
    pub io: Io,
    /// The value that a read found.
    pub value: u64,
    /// The dirty blocks, if requested.
    pub dirty: Vec<u16>,
    /// The snapshots, if requested.
    pub listed: Vec<(u64, bool)>,
    /// The boot of the node under which the replica executed the I/O.
    pub boot: u64,
}

/// A replica that was in sync in this opening and was dropped.
pub struct DroppedReplica {
    /// The boot of its node under which it was in sync: under the same boot it still holds everything that it had
    /// acknowledged.
    pub boot: Uuid,
    /// The blocks with writes in flight when the replica was dropped, or written since.
    pub missed_writes: BTreeSet<u16>,
}

/// A volume that is open.
pub struct Serving {
    pub membership: Membership,
    /// The voter to add or to remove.
    pub voter_change: Option<VoterChange>,
    /// Number of changes of voters that were begun.
    pub changes: u16,
    /// The number of the opening.
    pub opened: u64,
    pub requests: Vec<OpenRequest>,
    /// Blocks that a request or a copy holds.
    pub locks: BTreeSet<u16>,
    /// The round of failures, incremented by each: tells the flush of the survivors of one round from that of another.
    pub round: u64,
    pub sync: Option<ReplicaCopy>,
    /// The snapshot change in progress on all replicas.
    pub change: Option<SnapshotChange>,
    /// The rollback that is to follow.
    pub rollback: Option<Rollback>,
    /// Replicas that may get a delta resync.
    pub dropped: BTreeMap<u8, DroppedReplica>,
    /// The copy of snapshots to a replica that has returned.
    pub snapshot_copy: Option<SnapshotCopy>,
    /// The replicas' snapshots have not been compared yet.
    pub unsettled: bool,
    /// When the next snapshot is to be taken or deleted.
    pub snapshot_due_ns: u64,
    /// Blocks that were written since they were last called clean.
    pub touched: BTreeSet<u16>,
    /// The volume accepts no more requests. Its epoch is released when nothing is in flight.
    pub stopping: bool,
    pub released: u32,
}

impl Serving {
    /// Creates the serving state from an opening.
    pub fn new(parameters: &Parameters, opened: &Opened, number: u64, lineage: u64) -> Serving {
        Serving {
            membership: Membership::new(opened, lineage),
            voter_change: None,
            changes: 0,
            opened: number,
            requests: Vec::new(),
            locks: BTreeSet::new(),
            round: 0,
            sync: None,
            change: None,
            rollback: None,
            dropped: BTreeMap::new(),
            snapshot_copy: None,
            unsettled: parameters.snapshots,
            snapshot_due_ns: 0,
            touched: (0..parameters.blocks).collect(),
            stopping: false,
            released: 0,
        }
    }

    /// Returns whether all replicas are in sync and nothing is left to be done.
    pub fn is_whole(&self) -> bool {
        let settled = self.membership.settled();
        settled.in_sync == settled.config.replicas
            && !settled.config.is_joint()
            && self.membership.next_action() == MembershipAction::Nothing
            && self.voter_change.is_none()
            && self.change.is_none()
            && self.rollback.is_none()
            && !self.unsettled
    }

    /// Returns the number of the opening.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    pub fn targets(&self) -> Voters {
        let early = self.snapshot_copy.as_ref().map_or(Voters::NONE, SnapshotCopy::targets);
        self.membership.in_sync().or(self.sync.as_ref().map_or(Voters::NONE, ReplicaCopy::targets)).or(early)
    }

    /// Notes that an in-sync replica was dropped, under this boot.
    pub fn note_drop(&mut self, voter: VoterId, boot: Uuid) {
        self.dropped.insert(voter.0, DroppedReplica { boot, missed_writes: self.locks.clone() });
    }

    /// Returns whether no read or write is in flight.
    pub fn is_held(&self) -> bool {
        !self.requests.iter().any(|open| open.begun && matches!(open.io, Io::Read(_) | Io::Write(..)))
    }
}
