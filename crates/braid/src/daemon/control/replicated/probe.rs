//! Whether this node may open a volume again that it has served before: only if nobody else has opened it since.
//!
//! Asked before anything is raised: a voter that was raised by a node which then finds that another one serves the volume would be
//! lost to that one for as long as its epoch lasts.
//!
//! Nothing that is safe hangs on the answer: whoever opens the volume raises as many voters as it takes, whatever was found here, so two never
//! write. It says whether this node is to try at all, so a volume that another one has taken is not taken back, and one that nobody
//! else has opened is not left alone.

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
    /// Another one has opened it, or could.
    Others,
    /// Too few answer at all.
    Unknown,
}

/// What was read of registers before their voters are asked whom they answer; by default: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Read {
    /// Who votes, by the newest vote that was read.
    pub seating: Seating,
    /// The epoch of that vote.
    pub newest: u64,
    /// Whose was read, of those who vote; and of those who voted before. Who came later than these counts for none of them.
    pub voters: Voters,
    pub before: Voters,
    /// Those that have come to vote, and were not raised by anybody yet.
    pub new: Voters,
}

/// Whom the voters answer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Answers {
    ours: Voters,
    others: Voters,
}

/// Asks all voters whom they answer: whether it is this controller, whose last epoch was this one.
pub async fn standing(ballot: &impl Ballot, seating: Seating, read: &Read, epoch: u64, controller: Uuid) -> Standing {
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
    // Whoever had opened the volume would have raised enough of those that are new.
    let ours = who(Ok(())).or(read.new.and(who(Err(false))));
    match is_ours(seating, &Answers { ours, others: who(Err(true)) }, read, epoch) {
        Some(true) => Standing::Ours(said.iter().map(|(_, (epoch, _))| *epoch).max().unwrap_or(epoch)),
        Some(false) => Standing::Others,
        None => Standing::Unknown,
    }
}

/// Whether nobody else can have opened the volume since this controller did, in this epoch; none: that is not known.
///
/// An epoch of a voter only rises, so whoever answers this controller was not raised by another one since. Whoever opens the volume
/// raises *open* of each set of voters, so *lease* of each set are enough to rule that out (`lease + open > n`): of two, one, of four, two.
/// But only of the sets by which he would open it, and what this node has noted may be a change or more behind. Of two who became three, the
/// two others may have been raised; and he may have changed voters since, until it takes fewer of those whom he has raised. So there are two ways.
///
/// - *Open* of each set answer this controller. Whoever serves has votes of *drop* of each set, and a change takes as many of those
///   before it: `open + drop > n`.
/// - *Lease* of each set answer it, and before they were asked the registers of *open* of each set were read, and none has a vote of another
///   controller. Votes that count are met there (`open + drop > n`): so nobody had opened the volume, and no later change of voters has
///   counted than that of the newest vote. Whoever opens it from then on goes by that one, or, where it has not counted, by the one before or
///   after: each shares a set with it, of which he cannot have raised *open*. This holds for any number of voters, and for joint sets as each of them
///   is counted. Where *lease* is *open*, with an odd number, it says no more than the first way.
///
/// Another one has opened it where a vote says so. It is left to him, too, where so many of a set answer somebody else that he can have: fewer
/// never serve, and what they were raised for has been given up.
fn is_ours(seating: Seating, answers: &Answers, read: &Read, epoch: u64) -> Option<bool> {
    let Answers { ours, others } = *answers;
    let quorums = |set: Voters| Quorums::of(set.count());
    let of_each =
        |who: Voters, many: fn(Quorums) -> usize| seating.sets().all(|set| set.and(who).count() >= many(quorums(set)));
    let enough_read = |set: Voters, read: Voters| set.is_empty() || set.and(read).count() >= quorums(set).open;
    let is_read =
        read.seating == seating && enough_read(seating.voters, read.voters) && enough_read(seating.before, read.before);
    if read.newest > epoch {
        return Some(false);
    }
    if of_each(ours, |quorums| quorums.open) || is_read && of_each(ours, |quorums| quorums.lease) {
        return Some(true);
    }
    let can_be_his = seating.sets().any(|set| set.and(others).count() > set.count() - quorums(set).lease);
    can_be_his.then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that may vote at a time, with as many as this: everybody, one who comes, one who goes.
    fn seatings(count: usize) -> Vec<Seating> {
        let all = Seating::of(count, count);
        let comes = all.with(VoterId(count as u8), true, 9).expect("there is room");
        let goes = all.without(VoterId(0), 9);
        [Some(all), Some(comes), Some(comes.settled()), goes].into_iter().flatten().collect()
    }

    fn subsets(of: Voters) -> impl Iterator<Item = Voters> {
        (0..=of.bits()).map(Voters::from_bits).filter(move |set| set.without(of).is_empty())
    }

    fn everything_read(seating: Seating, newest: u64) -> Read {
        Read { seating, newest, voters: seating.voters, before: seating.before, new: Voters::NONE }
    }

    #[test]
    fn what_is_ours_nobody_else_can_have_opened() {
        for seating in (1..=5).flat_map(seatings) {
            let open = |set: Voters, raised: Voters| set.and(raised).count() >= Quorums::of(set.count()).open;
            for ours in subsets(seating.all()) {
                for others in subsets(seating.all().without(ours)) {
                    let answers = Answers { ours, others };
                    let said = is_ours(seating, &answers, &everything_read(seating, 3), 3);
                    // Whoever does not answer this one may be another one's.
                    let may_be_his = seating.all().without(ours);
                    let opens = seating.sets().any(|set| open(set, may_be_his));
                    assert!(said != Some(true) || !opens, "{seating:?} {answers:?}");
                    let is_his = seating.sets().any(|set| open(set, others));
                    assert!(said != Some(false) || is_his, "{seating:?} {answers:?}");
                    // With all there, somebody is to serve it.
                    assert!(said.is_some() || ours.or(others) != seating.all(), "{seating:?} {answers:?}");
                    assert_eq!(is_ours(seating, &answers, &everything_read(seating, 4), 3), Some(false));
                }
            }
        }
    }

    /// Another controller has opened the volume, perhaps after a change that this node has not noted, and has changed voters, perhaps.
    #[test]
    fn with_what_is_noted_a_change_behind_nothing_is_ours_that_another_one_serves() {
        for before in (1..=5).map(|count| Seating::of(count, count)) {
            let mut after: Vec<Seating> = seatings(before.voters.count()).into_iter().skip(1).collect();
            let goes = before.without(VoterId(0), 9).map(|joint| joint.settled());
            after.extend(goes);
            for (raised, seating) in after.iter().flat_map(|now| {
                let all = before.all().or(now.all());
                subsets(all).map(move |raised| (raised, *now))
            }) {
                let has = |sets: Seating, many: fn(Quorums) -> usize| {
                    sets.sets().all(|set| set.and(raised).count() >= many(Quorums::of(set.count())))
                };
                // He has opened it by the one, and serves it by the other, or has opened it by this one.
                let changed = has(before, |quorums| quorums.open) && has(seating, |quorums| quorums.drop);
                if !changed && !has(seating, |quorums| quorums.open) {
                    continue;
                }
                let all = before.all().or(seating.all());
                let answers = Answers { ours: all.without(raised), others: raised };
                for noted in [before, seating] {
                    let said = is_ours(noted, &answers, &Read::default(), 3);
                    assert!(said != Some(true), "{before:?} {seating:?} {noted:?} {answers:?}");
                    // What was read is of another list than what is noted, or has his vote.
                    let other = if noted == before { seating } else { before };
                    for read in [everything_read(other, 3), everything_read(noted, 4)] {
                        assert!(is_ours(noted, &answers, &read, 3) != Some(true));
                    }
                }
            }
        }
    }
}
