//! Whether this node may open a volume again that it has served before: only if nobody else has opened it since.
//!
//! Asked before anything is raised: a voter that was raised by a node which then finds that another one serves the volume would be
//! lost to that one for as long as its epoch lasts.

use super::council::{Ballot, Unanswered};
use braid_engine::replica::{Ask, Quorums, Refused, Seating, VoterId, Voters};
use futures_util::future::join_all;
use std::time::Duration;
use uuid::Uuid;

/// Longest that an answer is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(4);

/// What the voters say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// So many that nobody else can have opened it answer this controller still. It is to go above this epoch.
    Ours(u64),
    /// So many answer another one that this one cannot open it.
    Others,
    /// Too few answer at all.
    Unknown,
}

/// Asks all voters whom they answer: whether it is this controller, whose last epoch was this one. `new`: those that have come to vote and were not
/// raised by anybody yet.
pub async fn standing(ballot: &impl Ballot, seating: Seating, new: Voters, epoch: u64, controller: Uuid) -> Standing {
    let ask = |voter: VoterId| async move {
        let beat = |epoch: u64| async move {
            let asked = tokio::time::timeout(ANSWER_MAX, ballot.ask(voter, Ask::Beat { epoch, controller })).await;
            asked.unwrap_or_else(|_| Err(Unanswered::Away("it did not answer in time".to_owned())))
        };
        let said = match beat(epoch).await {
            // Perhaps it was raised, and this node ended before it had noted that.
            Err(Unanswered::Refused(Refused { epoch: other })) if other > epoch => {
                (other, beat(other).await.map(drop).map_err(|why| matches!(why, Unanswered::Refused(_))))
            }
            // One that knows less than this node has told it speaks for nobody.
            Err(Unanswered::Refused(Refused { epoch: other })) => (other, Err(other == epoch)),
            answer => (epoch, answer.map(drop).map_err(|_| false)),
        };
        (voter, said)
    };
    let said = join_all(seating.all().iter().map(ask)).await;
    let who = |wanted: Result<(), bool>| -> Voters {
        said.iter().filter(|(_, (_, answer))| *answer == wanted).map(|(voter, _)| *voter).collect()
    };
    // Whoever had opened the volume would have raised enough of those.
    let (ours, others) = (who(Ok(())).or(new.and(who(Err(false)))), who(Err(true)));
    let open = |set: Voters| Quorums::of(set.count()).open;
    if seating.sets().all(|set| set.and(ours).count() >= open(set)) {
        Standing::Ours(said.iter().map(|(_, (epoch, _))| *epoch).max().unwrap_or(epoch))
    } else if seating.sets().any(|set| set.and(others).count() > set.count() - open(set)) {
        Standing::Others
    } else {
        Standing::Unknown
    }
}
