//! Calls of administrators and requests of clients that are in progress.

use braid_engine::Uuid;
use braid_engine::pool::{ExtentId, Reservation, VolumeId};

/// An administrative call and what it waits for.
pub(super) struct PendingCall {
    /// The volumes and snapshots that the call changes.
    pub uuids: Vec<Uuid>,
    pub wait: Wait,
}

impl PendingCall {
    /// The request has no allocation pending any more: the call stops waiting for it.
    pub fn no_longer_waits_for(&mut self, id: u64) {
        if let Wait::Drain(in_flight) = &mut self.wait {
            in_flight.retain(|other| *other != id);
        }
    }
}

pub(super) enum Wait {
    /// Waits for the requests that were in flight when the call was made.
    Drain(Vec<u64>),
    Commit(u64),
}

/// A client's request.
pub(super) struct Job {
    pub id: u64,
    pub volume: Uuid,
    pub served: VolumeId,
    pub block: u64,
    pub count: u64,
    pub start: u64,
    pub kind: JobKind,
    /// The request holds its range lock.
    pub locked: bool,
}

pub(super) enum JobKind {
    Write(Write),
    /// Number of I/Os in flight.
    Read {
        in_flight: u32,
    },
    Flush {
        commit: u64,
    },
}

/// A write in progress.
pub(super) struct Write {
    /// Number of I/Os of this step in flight.
    pub in_flight: u32,
    /// Allocations to map when all I/Os have ended.
    pub reservations: Vec<Reservation>,
    /// The next block to write.
    pub cursor: u64,
    /// The write must be durable when it is acknowledged.
    pub fua: bool,
    /// The commit that a durable write waits for.
    pub commit: Option<u64>,
    /// The I/Os of a durable write are durable themselves: no commit is needed.
    pub durable: bool,
    pub failed: bool,
}

impl Job {
    /// Returns whether the request has an allocation in this extent that is not mapped yet.
    pub fn has_reservation_in(&self, extent: ExtentId) -> bool {
        matches!(&self.kind, JobKind::Write(write) if write.reservations.iter().any(|reservation| reservation.extent == extent))
    }
}
