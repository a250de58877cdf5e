//! What is asked of voters, and what they answer, in the API's words.

use super::super::replicas::{seating_of, show_seating};
use super::council::Unanswered;
use braid_api::{AskReplica, ErrorDetail, ReplicaAnswer, ReplicaPlace, ReplicaRegister, ReplicaVote};
use braid_engine::replica::{Answer, Ask, Refused, Register, Vote, Voters};
use braid_format::limits::{COUNTER_MAX, EPOCH_MAX};
use uuid::Uuid;

/// Who refuses says the epoch that is answered under this word.
const EPOCH: &str = "epoch";

/// A question; a vote with the list of places by which it goes.
pub fn said(ask: Ask, places: Vec<ReplicaPlace>) -> AskReplica {
    let text = |uuid: Uuid| uuid.to_string();
    match ask {
        Ask::Raise { epoch, controller } => AskReplica::Raise { epoch, controller: text(controller) },
        Ask::Beat { epoch, controller } => AskReplica::Beat { epoch, controller: text(controller) },
        Ask::Release { epoch, controller } => AskReplica::Release { epoch, controller: text(controller) },
        Ask::Cast { epoch, controller, vote, boot } => AskReplica::Cast {
            epoch,
            controller: text(controller),
            vote: ReplicaVote {
                epoch: vote.epoch,
                sequence: vote.sequence,
                lineage: vote.lineage,
                in_sync: vote.in_sync.bits(),
                seating: show_seating(&vote.seating),
            },
            boot: (!boot.is_nil()).then(|| text(boot)),
            places,
        },
    }
}

/// An answer.
///
/// # Errors
/// It makes no sense.
pub fn heard(answer: ReplicaAnswer) -> Result<Answer, Unanswered> {
    Ok(match answer {
        ReplicaAnswer::Raised { before, boot, .. } => Answer::Raised { before: register(before)?, boot: uuid(&boot)? },
        ReplicaAnswer::Cast => Answer::Cast,
        ReplicaAnswer::Alive => Answer::Alive,
        ReplicaAnswer::Released => Answer::Released,
        _ => return Err(Unanswered::Away("it answers something that is not known here".to_owned())),
    })
}

/// Why there is no answer.
pub fn unanswered(error: &ErrorDetail) -> Unanswered {
    match error.context.get(EPOCH).and_then(|epoch| epoch.parse().ok()) {
        // The next opening is above it.
        Some(epoch) if epoch > EPOCH_MAX => {
            Unanswered::Away(format!("it says that it answers epoch {epoch}, which cannot be"))
        }
        Some(epoch) => Unanswered::Refused(Refused { epoch }),
        None => Unanswered::Away(error.message.clone()),
    }
}

/// What a voter remembers.
///
/// # Errors
/// It makes no sense.
pub fn register(register: ReplicaRegister) -> Result<Register, Unanswered> {
    let ReplicaRegister { epoch, controller, released, vote, boot, since } = register;
    let ReplicaVote { epoch: vote_epoch, sequence, lineage, in_sync, seating } = vote;
    let (in_sync, seating) = (Voters::from_bits(in_sync), seating_of(&seating));
    // What a register on a disk could not say is calculated with, too.
    let numbers = [sequence, seating.version, since];
    if epoch.max(vote_epoch) > EPOCH_MAX || numbers.into_iter().any(|number| number > COUNTER_MAX) {
        return Err(Unanswered::Away("a number in its answer is beyond all that is counted".to_owned()));
    }
    let or_nil = |text: Option<String>| text.map_or(Ok(Uuid::nil()), |text| uuid(&text));
    Ok(Register {
        epoch,
        controller: or_nil(controller)?,
        released,
        vote: Vote { epoch: vote_epoch, sequence, lineage, in_sync, seating },
        boot: or_nil(boot)?,
        since,
    })
}

fn uuid(text: &str) -> Result<Uuid, Unanswered> {
    text.parse().map_err(|_| Unanswered::Away(format!("{text:?} in its answer is no identity")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_api::{Kind, ReplicaSeating};
    use braid_engine::replica::Seating;

    #[test]
    fn what_is_said_is_heard() {
        let boot = Uuid::from_u128(7);
        let seating = Seating { version: 6, before: Voters::from_bits(3), ..Seating::of(3, 2) };
        let vote = Vote { epoch: 2, sequence: 3, lineage: 4, in_sync: Voters::from_bits(5), seating };
        let AskReplica::Cast { vote: words, boot: Some(text), .. } =
            said(Ask::Cast { epoch: 2, controller: Uuid::from_u128(9), vote, boot }, Vec::new())
        else {
            panic!("another question")
        };
        let before =
            ReplicaRegister { epoch: 2, controller: None, released: true, vote: words, boot: Some(text), since: 8 };
        let answer = heard(ReplicaAnswer::Raised { before, boot: boot.to_string(), places: Vec::new(), version: 0 });
        let register = Register { epoch: 2, controller: Uuid::nil(), released: true, vote, boot, since: 8 };
        assert_eq!(answer, Ok(Answer::Raised { before: register, boot }));
    }

    #[test]
    fn a_refusal_says_the_epoch_and_anything_else_is_absence() {
        let error = ErrorDetail::new(Kind::Unreachable, "node b does not answer");
        assert_eq!(unanswered(&error), Unanswered::Away("node b does not answer".to_owned()));
        assert_eq!(unanswered(&error.with("epoch", 12)), Unanswered::Refused(Refused { epoch: 12 }));
        // Nobody's next epoch is above these.
        for epoch in [EPOCH_MAX + 1, u64::MAX] {
            let error = ErrorDetail::new(Kind::Fenced, "fenced").with("epoch", epoch);
            assert!(matches!(unanswered(&error), Unanswered::Away(_)), "{epoch}");
        }
        let raised = ReplicaAnswer::Raised {
            before: ReplicaRegister {
                epoch: 0,
                controller: Some("nonsense".to_owned()),
                released: false,
                vote: ReplicaVote { epoch: 0, sequence: 0, lineage: 0, in_sync: 1, seating: ReplicaSeating::default() },
                boot: None,
                since: 0,
            },
            boot: Uuid::nil().to_string(),
            places: Vec::new(),
            version: 0,
        };
        assert!(matches!(heard(raised), Err(Unanswered::Away(_))));
    }
}
