//! Converts requests to voters and their replies between the engine's types and the API's.

use crate::voters::VoterError;
use braid_api::{ErrorDetail, ReplicaLocation, ReplicaRegister, ReplicaReply, ReplicaRequest, ReplicaVote};
use braid_engine::replica::{Register, Vote, VoterRefusal, VoterReply, VoterRequest, Voters};
use braid_format::limits::{COUNTER_MAX, EPOCH_MAX};
use braid_inventory::{membership_of, show_membership};
use uuid::Uuid;

/// Key of a refusal's context that holds the epoch to which the voter replies.
const EPOCH: &str = "epoch";

/// Converts a request. `locations` are those of the membership that a vote contains.
pub(crate) fn to_api(ask: VoterRequest, locations: Vec<ReplicaLocation>) -> ReplicaRequest {
    let text = |uuid: Uuid| uuid.to_string();
    match ask {
        VoterRequest::Raise { epoch, controller } => ReplicaRequest::Raise { epoch, controller: text(controller) },
        VoterRequest::Heartbeat { epoch, controller } => {
            ReplicaRequest::Heartbeat { epoch, controller: text(controller) }
        }
        VoterRequest::Release { epoch, controller } => ReplicaRequest::Release { epoch, controller: text(controller) },
        VoterRequest::Cast { epoch, controller, vote, boot } => ReplicaRequest::Cast {
            epoch,
            controller: text(controller),
            vote: ReplicaVote {
                epoch: vote.epoch,
                sequence: vote.sequence,
                lineage: vote.lineage,
                in_sync: vote.in_sync.bits(),
                membership: show_membership(&vote.config),
            },
            boot: (!boot.is_nil()).then(|| text(boot)),
            locations,
        },
    }
}

/// Converts a reply.
///
/// # Errors
/// The reply is invalid.
pub(crate) fn from_api(reply: ReplicaReply) -> Result<VoterReply, VoterError> {
    Ok(match reply {
        ReplicaReply::Raised { before, boot, .. } => {
            VoterReply::Raised { before: register_from_api(before)?, boot: parse_uuid(&boot)? }
        }
        ReplicaReply::Cast => VoterReply::Cast,
        ReplicaReply::Alive => VoterReply::Alive,
        ReplicaReply::Released => VoterReply::Released,
        _ => return Err(VoterError::Unreachable("it sent an unknown reply".to_owned())),
    })
}

/// Converts an error to the reason for a missing reply.
pub(crate) fn to_error(error: &ErrorDetail) -> VoterError {
    match error.context.get(EPOCH).and_then(|epoch| epoch.parse().ok()) {
        // The next opening would have to be above it.
        Some(epoch) if epoch > EPOCH_MAX => {
            VoterError::Unreachable(format!("it says that it answers epoch {epoch}, which cannot be"))
        }
        Some(epoch) => VoterError::Refused(VoterRefusal { epoch }),
        None => VoterError::Unreachable(error.message.clone()),
    }
}

/// Converts a voter's register.
///
/// # Errors
/// The register is invalid.
pub(crate) fn register_from_api(register: ReplicaRegister) -> Result<Register, VoterError> {
    let ReplicaRegister { epoch, controller, released, vote, boot, since } = register;
    let ReplicaVote { epoch: vote_epoch, sequence, lineage, in_sync, membership } = vote;
    let (in_sync, membership) = (Voters::from_bits(in_sync), membership_of(&membership));
    // The engine calculates with these numbers, so those that a register on a disk cannot hold are refused.
    let numbers = [sequence, membership.version, since];
    if epoch.max(vote_epoch) > EPOCH_MAX || numbers.into_iter().any(|number| number > COUNTER_MAX) {
        return Err(VoterError::Unreachable("a number in its reply is out of range".to_owned()));
    }
    let or_nil = |text: Option<String>| text.map_or(Ok(Uuid::nil()), |text| parse_uuid(&text));
    Ok(Register {
        epoch,
        controller: or_nil(controller)?,
        released,
        vote: Vote { epoch: vote_epoch, sequence, lineage, in_sync, config: membership },
        boot: or_nil(boot)?,
        added_in_version: since,
    })
}

fn parse_uuid(text: &str) -> Result<Uuid, VoterError> {
    text.parse().map_err(|_| VoterError::Unreachable(format!("{text:?} in its answer is no identity")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_api::{Kind, ReplicaMembership};
    use braid_engine::replica::VoterConfig;

    #[test]
    fn votes_and_registers_round_trip() {
        let boot = Uuid::from_u128(7);
        let membership = VoterConfig { version: 6, previous_voters: Voters::from_bits(3), ..VoterConfig::of(3, 2) };
        let vote = Vote { epoch: 2, sequence: 3, lineage: 4, in_sync: Voters::from_bits(5), config: membership };
        let ReplicaRequest::Cast { vote: words, boot: Some(text), .. } =
            to_api(VoterRequest::Cast { epoch: 2, controller: Uuid::from_u128(9), vote, boot }, Vec::new())
        else {
            panic!("another request")
        };
        let before =
            ReplicaRegister { epoch: 2, controller: None, released: true, vote: words, boot: Some(text), since: 8 };
        let reply =
            from_api(ReplicaReply::Raised { before, boot: boot.to_string(), locations: Vec::new(), version: 0 });
        let register = Register { epoch: 2, controller: Uuid::nil(), released: true, vote, boot, added_in_version: 8 };
        assert_eq!(reply, Ok(VoterReply::Raised { before: register, boot }));
    }

    #[test]
    fn a_refusal_carries_the_epoch_and_other_errors_mean_unreachable() {
        let error = ErrorDetail::new(Kind::Unreachable, "node b does not answer");
        assert_eq!(to_error(&error), VoterError::Unreachable("node b does not answer".to_owned()));
        assert_eq!(to_error(&error.with("epoch", 12)), VoterError::Refused(VoterRefusal { epoch: 12 }));
        // No next epoch exists above these.
        for epoch in [EPOCH_MAX + 1, u64::MAX] {
            let error = ErrorDetail::new(Kind::Fenced, "fenced").with("epoch", epoch);
            assert!(matches!(to_error(&error), VoterError::Unreachable(_)), "{epoch}");
        }
        let raised = ReplicaReply::Raised {
            before: ReplicaRegister {
                epoch: 0,
                controller: Some("nonsense".to_owned()),
                released: false,
                vote: ReplicaVote {
                    epoch: 0,
                    sequence: 0,
                    lineage: 0,
                    in_sync: 1,
                    membership: ReplicaMembership::default(),
                },
                boot: None,
                since: 0,
            },
            boot: Uuid::nil().to_string(),
            locations: Vec::new(),
            version: 0,
        };
        assert!(matches!(from_api(raised), Err(VoterError::Unreachable(_))));
    }
}
