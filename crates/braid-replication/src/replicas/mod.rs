//! Replicas of replicated volumes, and witnesses: what this node stores of them.
//!
//! A replica is two volumes of a pool: its data, and the replica metadata. Its device concatenates the head of the
//! replica metadata, the data, and the tail of the replica metadata. The register is stored behind that in the replica
//! metadata, on no device. A witness has its register in a file. The admission of a replica or witness
//! (`braid_inventory::admission`) decides which controller may use it.

mod close;
mod create;
mod listen;
mod local;
mod offer;
mod open;
mod rollback;
mod snapshots;
pub(crate) mod view;

use crate::ReplicationManager;
use braid_advice::{self as advice, Case, ObjectNames, ReplicaCase};
use braid_api::{
    ErrorDetail, Kind, ReplicaLocation, ReplicaMembership, ReplicaRegister, ReplicaReply, ReplicaRequest, ReplicaState,
    ReplicaVote,
};
use braid_engine::replica::{
    Register, RegisterId, VOTERS_MAX, Vote, VoterConfig, VoterId, VoterRefusal, VoterReply, VoterRequest, Voters,
};
use braid_inventory::state::SavedReplica;
use braid_inventory::{ReplicaCondition, membership_of, show_membership};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum length of the name of a node or pool in a list of locations, in bytes.
const LOCATION_LENGTH_MAX: usize = 255;

/// Maximum number of replicas and witnesses of a node.
const REPLICAS_MAX: usize = 1024;

/// Maximum time for which a controller waits for a reply.
pub const REQUEST_MAX: Duration = Duration::from_secs(60);

/// Returns the volume and voter that a replica's register belongs to.
fn register_of(saved: &SavedReplica) -> RegisterId {
    RegisterId { volume: saved.volume, voter: VoterId(saved.voter) }
}

impl ReplicationManager {
    /// Sends a controller's request to a voter of this node. The controller waits for `limit`: a request that could not
    /// begin in time is not begun.
    ///
    /// # Errors
    /// [`Kind::Fenced`] if the voter replies to another controller; [`Kind::Inactive`] if it cannot reply.
    pub async fn request_voter(
        &self,
        volume: &str,
        ask: ReplicaRequest,
        limit: Duration,
    ) -> Result<ReplicaReply, ErrorDetail> {
        let (admission, contact, name) = {
            let tables = self.inventory.read();
            let entry = tables.replica(volume)?;
            if let Some((state, why)) = entry.fault() {
                return Err(does_not_vote(&entry.saved.name, state, &why));
            }
            let ReplicaCondition::Voting(ready) = &entry.condition else {
                return Err(does_not_vote(&entry.saved.name, ReplicaState::Waiting, "it is being closed"));
            };
            let admission = Arc::clone(&ready.admission);
            (admission, Arc::clone(&ready.contact), entry.saved.name.clone())
        };
        let request = parse_request(&name, &ask)?;
        if let ReplicaRequest::Cast { vote, locations, .. } = &ask {
            self.save_voters(volume, &vote.membership, locations)?;
        }
        match admission.request(request, limit.min(REQUEST_MAX)).await {
            Some(Ok(reply)) => {
                contact.record(&reply);
                let tables = self.inventory.read();
                let saved = tables.replica(volume).map(|entry| &entry.saved);
                let locations = saved.map(|saved| (saved.locations.clone(), saved.version)).unwrap_or_default();
                Ok(show_reply(&reply, locations))
            }
            Some(Err(VoterRefusal { epoch })) => Err(fenced(&name, epoch)),
            None => {
                let message = format!(
                    "replica {name} cannot reply: it is being closed, its register cannot be written, an operation in flight takes too long, or there are too many requests"
                );
                Err(ErrorDetail::new(Kind::Inactive, message)
                    .with("replica", &name)
                    .remedy("try again; braid replica show says how it does"))
            }
        }
    }
}

impl ReplicationManager {
    /// Stores the locations of the voters of a membership that is about to be voted for. They are durable when this
    /// returns. A membership older than the stored one is ignored.
    fn save_voters(
        &self,
        volume: &str,
        membership: &ReplicaMembership,
        locations: &[ReplicaLocation],
    ) -> Result<(), ErrorDetail> {
        let before = {
            let mut tables = self.inventory.write();
            let uuid = tables.replica(volume)?.saved.volume;
            let Some(entry) = tables.replicas.get_mut(&uuid) else { return Ok(()) };
            let saved = &mut entry.saved;
            if membership.version < saved.version || membership.version == 0 {
                return Ok(());
            }
            if membership.version == saved.version {
                // The task that stored it may not have finished saving it.
                drop(tables);
                return self.inventory.save();
            }
            check_locations(&saved.name, locations)?;
            let missing = membership_of(membership)
                .all()
                .iter()
                .any(|voter| locations.iter().all(|location| location.voter != voter.0));
            if missing {
                return Err(invalid(&saved.name, "the locations of the membership in the vote were not sent with it"));
            }
            let before =
                (uuid, saved.version, saved.voters, std::mem::replace(&mut saved.locations, locations.to_vec()));
            (saved.version, saved.voters) = (membership.version, membership.voters.count_ones() as u8);
            before
        };
        self.inventory.save().inspect_err(|_| {
            let (uuid, version, voters, locations) = before;
            if let Some(entry) = self.inventory.write().replicas.get_mut(&uuid) {
                (entry.saved.version, entry.saved.voters, entry.saved.locations) = (version, voters, locations);
            }
        })
    }
}

fn fenced(name: &str, epoch: u64) -> ErrorDetail {
    ErrorDetail::new(Kind::Fenced, format!("replica {name} replies to epoch {epoch} only"))
        .with("replica", name)
        .with("epoch", epoch)
        .remedy("another controller serves the volume: open it again, with a higher epoch, to serve it here")
}

fn does_not_vote(name: &str, state: ReplicaState, why: &str) -> ErrorDetail {
    let (kind, case) = match state {
        ReplicaState::Lost => (Kind::Damaged, ReplicaCase::Lost),
        ReplicaState::Waiting => (Kind::Inactive, ReplicaCase::Waiting),
        _ => (Kind::Inactive, ReplicaCase::Failed),
    };
    let remedy = advice::remedy(Case::Replica(case), ObjectNames::of(name));
    ErrorDetail::new(kind, format!("replica {name} does not vote: {why}")).with("replica", name).remedy(remedy)
}

fn invalid(name: &str, why: impl Into<String>) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, format!("replica {name}: {}", why.into())).with("replica", name)
}

fn uuid_of(name: &str, what: &str, text: &str) -> Result<Uuid, ErrorDetail> {
    let uuid = Uuid::try_parse(text).ok().filter(|uuid| !uuid.is_nil());
    uuid.ok_or_else(|| invalid(name, format!("{what} {text:?} is no UUID")))
}

/// Converts a request for the fence. A request that a register could not hold is refused.
fn parse_request(name: &str, ask: &ReplicaRequest) -> Result<VoterRequest, ErrorDetail> {
    let (ReplicaRequest::Raise { epoch, controller }
    | ReplicaRequest::Cast { epoch, controller, .. }
    | ReplicaRequest::Heartbeat { epoch, controller }
    | ReplicaRequest::Release { epoch, controller }) = ask;
    let epoch = *epoch;
    let controller = uuid_of(name, "the controller", controller)?;
    let ask = match ask {
        ReplicaRequest::Raise { .. } => VoterRequest::Raise { epoch, controller },
        ReplicaRequest::Heartbeat { .. } => VoterRequest::Heartbeat { epoch, controller },
        ReplicaRequest::Release { .. } => VoterRequest::Release { epoch, controller },
        ReplicaRequest::Cast { vote, boot, .. } => {
            if vote.epoch != epoch || vote.sequence == 0 {
                return Err(invalid(name, "a vote is of its controller's epoch, and counts from 1"));
            }
            let boot = boot.as_deref().map(|boot| uuid_of(name, "the boot", boot)).transpose()?.unwrap_or_default();
            VoterRequest::Cast { epoch, controller, vote: vote_of(vote), boot }
        }
    };
    let register = match ask {
        VoterRequest::Cast { vote, boot, .. } => Register { epoch, controller, vote, boot, ..Register::default() },
        _ => {
            let vote = Vote { in_sync: Voters::first(1), config: VoterConfig::of(1, 1), ..Vote::default() };
            Register { epoch, controller, vote, ..Register::default() }
        }
    };
    let of = RegisterId { volume: Uuid::max(), voter: VoterId(0) };
    if epoch == 0 || !register.stored(&of, 1).is_sound() {
        return Err(invalid(name, "a number is out of range, or no replica or voter is in sync"));
    }
    Ok(ask)
}

fn vote_of(vote: &ReplicaVote) -> Vote {
    Vote {
        epoch: vote.epoch,
        sequence: vote.sequence,
        lineage: vote.lineage,
        in_sync: Voters::from_bits(vote.in_sync),
        config: membership_of(&vote.membership),
    }
}

/// Checks that a list of locations can be stored.
fn check_locations(name: &str, locations: &[ReplicaLocation]) -> Result<(), ErrorDetail> {
    let numbers: BTreeSet<u8> = locations.iter().map(|location| location.voter).collect();
    if numbers.len() != locations.len() || numbers.iter().any(|number| usize::from(*number) >= VOTERS_MAX) {
        return Err(invalid(name, "two locations are of one voter, or the number of a voter is out of range"));
    }
    let length = |location: &ReplicaLocation| location.node.len().max(location.pool.as_ref().map_or(0, String::len));
    if locations.iter().any(|location| length(location) > LOCATION_LENGTH_MAX) {
        return Err(invalid(name, "the name of a node or pool is too long"));
    }
    Ok(())
}

fn show_reply(reply: &VoterReply, (locations, version): (Vec<ReplicaLocation>, u64)) -> ReplicaReply {
    match reply {
        VoterReply::Raised { before, boot } => {
            ReplicaReply::Raised { before: show_register(before), boot: boot.to_string(), locations, version }
        }
        VoterReply::Cast => ReplicaReply::Cast,
        VoterReply::Alive => ReplicaReply::Alive,
        VoterReply::Released => ReplicaReply::Released,
    }
}

fn show_register(register: &Register) -> ReplicaRegister {
    let some = |uuid: Uuid| (!uuid.is_nil()).then(|| uuid.to_string());
    let vote = &register.vote;
    ReplicaRegister {
        epoch: register.epoch,
        controller: some(register.controller),
        released: register.released,
        vote: ReplicaVote {
            epoch: vote.epoch,
            sequence: vote.sequence,
            lineage: vote.lineage,
            in_sync: vote.in_sync.bits(),
            membership: show_membership(&vote.config),
        },
        boot: some(register.boot),
        since: register.added_in_version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROLLER: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";

    #[test]
    fn requests_that_no_register_can_hold_are_refused() {
        let raise = |epoch, controller: &str| ReplicaRequest::Raise { epoch, controller: controller.to_owned() };
        let cast = |epoch, sequence, in_sync| ReplicaRequest::Cast {
            epoch: 3,
            controller: CONTROLLER.to_owned(),
            vote: ReplicaVote {
                epoch,
                sequence,
                lineage: u64::MAX,
                in_sync,
                membership: show_membership(&VoterConfig::of(3, 3)),
            },
            boot: None,
            locations: Vec::new(),
        };
        for right in [raise(1, CONTROLLER), cast(3, 1, 0b111), cast(3, 9, 1)] {
            assert!(parse_request("db", &right).is_ok(), "{right:?}");
        }
        let nil = Uuid::nil().to_string();
        let wrong = [
            raise(0, CONTROLLER),
            raise(u64::MAX, CONTROLLER),
            raise(1, "x"),
            raise(1, &nil),
            cast(2, 1, 1),
            cast(3, 0, 1),
            cast(3, u64::MAX, 1),
            cast(3, 1, 0),
            cast(3, 1, 0b1000),
        ];
        for wrong in wrong {
            let error = parse_request("db", &wrong).expect_err("it is refused");
            assert_eq!(error.kind, Kind::InvalidArgument, "{wrong:?}");
        }
    }
}
