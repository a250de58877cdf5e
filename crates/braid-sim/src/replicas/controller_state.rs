//! What the world knows of a controller: its epoch, its requests and its connections.

use std::collections::BTreeMap;

use braid_engine::replica::{ConnectionId, Lease, Opening, VoterConfig, VoterId, VoterRequest, Voters};
use braid_format::Uuid;

use super::messages::Io;
use super::replica_copy::ReplicaCopy;
use super::serving_state::{Rollback, Serving};

/// The purpose of an I/O that a controller requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoPurpose {
    /// The client request of this number in the history.
    Client(usize),
    /// The flush of the surviving replicas, in this round of failures.
    Survivors(u64),
    /// The replica copy of this number.
    Copy(u64),
    /// The snapshot change of this number.
    Snapshot(u64),
    /// The snapshot copy of this number.
    SnapshotCopy(u64),
    /// The rollback of this number.
    Rollback(u64),
    /// Nothing waits for it.
    Nothing,
}

/// A replica as a controller sees it.
#[derive(Default)]
pub struct Peer {
    pub connection: Option<ConnectionId>,
    /// The replica has admitted the connection: I/O may be sent.
    pub admitted: bool,
    /// The boot of the replica's node at the time of admission.
    pub boot: Uuid,
    pub session: u64,
    /// Number of connection attempts.
    pub attempt: u64,
    pub retry_ns: u64,
    pub connected_ns: u64,
    /// The I/Os without a reply, in the order in which they were requested.
    pub outstanding: BTreeMap<u64, (Io, IoPurpose)>,
    /// When the last reply came, or the first of the outstanding I/Os was requested.
    pub progress_ns: u64,
    /// When the last message came on the connection, or the connection began.
    pub last_message_ns: u64,
}

impl Peer {
    /// Returns whether the replica has admitted the connection.
    pub fn is_admitted(&self) -> bool {
        self.admitted
    }

    /// Returns the boot of the node under which the connection was admitted.
    pub fn boot(&self) -> Uuid {
        self.boot
    }

    /// Forgets all outstanding I/Os.
    pub fn forget(&mut self) {
        self.outstanding.clear();
    }

    /// Returns whether an I/O with this purpose is outstanding.
    pub fn is_outstanding(&self, purpose: IoPurpose) -> bool {
        self.outstanding.values().any(|(_, waits)| *waits == purpose)
    }
}

/// The phase of an epoch.
pub enum Phase {
    /// The controller opens the volume; the resync that makes the replicas equal.
    Opening(Box<Opening>, Option<ReplicaCopy>),
    /// The controller serves the volume.
    Serving(Box<Serving>),
}

/// A controller's epoch, from the first request to the end of service.
pub struct Run {
    /// The controller's random identity in this run.
    pub uuid: Uuid,
    pub epoch: u64,
    /// The voters that have raised this epoch.
    pub raised: Voters,
    /// By voter, the version of the member list with which the voter was created.
    pub since: BTreeMap<u8, u64>,
    pub lease: Lease,
    /// Requests without a reply, by number: the voter, the request, and when it was sent by the controller's own clock.
    pub asks: BTreeMap<u64, (VoterId, VoterRequest, u64)>,
    pub peers: Vec<Peer>,
    pub phase: Phase,
    pub begun_ns: u64,
    /// The volume was forced open, or is to be.
    pub forced: bool,
    pub refusals: u32,
    /// The replica that is being rolled back.
    pub rolls_back: Option<VoterId>,
    /// When the controller learned of a higher epoch.
    pub fenced_ns: Option<u64>,
}

/// One controller.
pub struct Controller {
    pub up: bool,
    /// Incremented by each death.
    pub life: u64,
    pub paused_until_ns: u64,
    /// Clock drift in parts per million, and the clock's value at the start of the run.
    pub rate: i64,
    pub offset_ns: u64,
    pub run: Option<Run>,
    /// When the controller tries to open the volume if no other controller runs.
    pub retry_ns: u64,
    /// The controller is ordered to open the volume, even if another controller serves it.
    pub must_open: bool,
    /// The controller may open the volume at all.
    pub may_open: bool,
    /// The voters, as the controller remembers them.
    pub known_voters: VoterConfig,
    /// The version of the newest member list that the controller knows.
    pub list_version: u64,
    /// The rollback to perform at the next opening.
    pub rolls_back: Option<Rollback>,
}

impl Controller {
    /// Returns the serving state, if the controller serves.
    pub fn serving(&mut self) -> Option<&mut Serving> {
        match &mut self.run {
            Some(Run { phase: Phase::Serving(serving), .. }) => Some(serving),
            _ => None,
        }
    }
}
