//! Finds out whether this node may open a volume again that it has served before: only if no other controller has
//! opened it since.
//!
//! The probe sends heartbeats and raises no voter: a raised voter refuses the serving controller until that one opens
//! the volume in a higher epoch.
//!
//! Safety does not depend on the outcome: every opening raises a quorum of the voters, whatever was found here, so two
//! controllers never write. The outcome decides whether this node tries to open the volume at all: it must not take
//! back a volume that another node has taken, and must not abandon one that no other controller has opened.

use crate::voters::{VoterError, VoterTransport};
use braid_engine::replica::{Quorums, VoterConfig, VoterId, VoterRefusal, VoterRequest, Voters};
use futures_util::future::join_all;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time to wait for a reply.
const REPLY_MAX: Duration = Duration::from_secs(4);

/// Outcome of the probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProbeOutcome {
    /// So many voters still reply to this controller that no other one can have opened the volume. The next opening
    /// must be above this epoch.
    Ours(u64),
    /// Another controller has opened the volume, or could have.
    Other,
    /// Too few voters reply.
    Unknown,
}

/// What was read of the voters' registers before the voters are asked; empty by default.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct RegistersRead {
    /// The membership by the newest vote that was read.
    pub(crate) membership: VoterConfig,
    /// The epoch of that vote.
    pub(crate) newest: u64,
    /// Voters of the current set whose registers were read.
    pub(crate) voters: Voters,
    /// Voters of the previous set whose registers were read. A voter that was added later than a set is not in it, even
    /// under the number of one that was.
    pub(crate) before: Voters,
    /// New voters that no controller has raised yet.
    pub(crate) new: Voters,
}

/// Which controller the voters reply to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct VoterReplies {
    ours: Voters,
    others: Voters,
}

/// Asks all voters whether they still reply to this controller, whose last epoch is `epoch`.
pub(crate) async fn probe(
    transport: &impl VoterTransport,
    membership: VoterConfig,
    read: &RegistersRead,
    epoch: u64,
    controller: Uuid,
) -> ProbeOutcome {
    let ask = |voter: VoterId| async move {
        let beat = |epoch: u64| async move {
            let asked =
                tokio::time::timeout(REPLY_MAX, transport.send(voter, VoterRequest::Heartbeat { epoch, controller }))
                    .await;
            asked.unwrap_or_else(|_| Err(VoterError::Unreachable("it did not answer in time".to_owned())))
        };
        let result = match beat(epoch).await {
            // Perhaps it was raised, and this node ended before it had saved that.
            Err(VoterError::Refused(VoterRefusal { epoch: other })) if other > epoch => {
                (other, beat(other).await.map(drop).map_err(|why| matches!(why, VoterError::Refused(_))))
            }
            // A voter that knows less than this node has sent it does not count.
            Err(VoterError::Refused(VoterRefusal { epoch: other })) => (other, Err(other == epoch)),
            reply => (epoch, reply.map(drop).map_err(|_| false)),
        };
        (voter, result)
    };
    let result = join_all(membership.all().iter().map(ask)).await;
    let who = |wanted: Result<(), bool>| -> Voters {
        result.iter().filter(|(_, (_, reply))| *reply == wanted).map(|(voter, _)| *voter).collect()
    };
    // A controller that has opened the volume would have raised enough of the new voters.
    let ours = who(Ok(())).or(read.new.and(who(Err(false))));
    match still_ours(membership, &VoterReplies { ours, others: who(Err(true)) }, read, epoch) {
        Some(true) => ProbeOutcome::Ours(result.iter().map(|(_, (epoch, _))| *epoch).max().unwrap_or(epoch)),
        Some(false) => ProbeOutcome::Other,
        None => ProbeOutcome::Unknown,
    }
}

/// Returns whether no other controller can have opened the volume since this one did, in this epoch; `None`: not known.
///
/// The epoch of a voter only rises, so no other controller has since raised a voter that replies to this one. Every
/// opening raises *open* of each set of voters ([`Quorums`]), so *lease* of each set are enough to rule it out
/// (`lease + open > n`):
/// of two voters one, of four two. But that holds only for the sets used by that opening, and the membership saved here
/// may be one or more changes behind. After a change from two voters to three, the two others may have been raised; and
/// the other controller may have changed the membership since, until it needs fewer of those that it has raised. So
/// there are two ways.
///
/// - *Open* of each set reply to this controller. A controller that serves has votes of *drop* of each set, and a
///   change needs as many of those before it: `open + drop > n`.
/// - *Lease* of each set reply to it, and before they were asked the registers of *open* of each set were read, and
///   none has a vote of another controller. That read meets every settled vote (`open + drop > n`): so no other
///   controller had opened the volume, and no membership change later than the newest vote has settled. An opening from
///   then on uses that membership or, if that has not settled, the one before or after it: each shares a set with it,
///   of which the opening cannot have raised *open*. This holds for any number of voters, and for joint configurations,
///   since each of their sets is counted. For an odd number of voters *lease* equals *open*, and this way adds nothing
///   to the first.
///
/// Another controller has opened the volume if a vote says so. The volume is left to it, too, if so many of a set reply
/// to another controller that it can have opened it: fewer never serve, and the attempt for which they were raised was
/// given up.
fn still_ours(membership: VoterConfig, replies: &VoterReplies, read: &RegistersRead, epoch: u64) -> Option<bool> {
    let VoterReplies { ours, others } = *replies;
    let quorums = |set: Voters| Quorums::of(set.count());
    let of_each = |who: Voters, many: fn(Quorums) -> usize| {
        membership.sets().all(|set| set.and(who).count() >= many(quorums(set)))
    };
    let enough_read = |set: Voters, read: Voters| set.is_empty() || set.and(read).count() >= quorums(set).open;
    let is_read = read.membership == membership
        && enough_read(membership.voters, read.voters)
        && enough_read(membership.previous_voters, read.before);
    if read.newest > epoch {
        return Some(false);
    }
    if of_each(ours, |quorums| quorums.open) || is_read && of_each(ours, |quorums| quorums.lease) {
        return Some(true);
    }
    let may_be_other = membership.sets().any(|set| set.and(others).count() > set.count() - quorums(set).lease);
    may_be_other.then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the memberships that can occur with this number of voters: stable, with a new voter, with one leaving.
    fn memberships(count: usize) -> Vec<VoterConfig> {
        let all = VoterConfig::of(count, count);
        let comes = all.with(VoterId(count as u8), true, 9).expect("there is room");
        let goes = all.without(VoterId(0), 9);
        [Some(all), Some(comes), Some(comes.final_config()), goes].into_iter().flatten().collect()
    }

    fn subsets(of: Voters) -> impl Iterator<Item = Voters> {
        (0..=of.bits()).map(Voters::from_bits).filter(move |set| set.without(of).is_empty())
    }

    fn everything_read(membership: VoterConfig, newest: u64) -> RegistersRead {
        RegistersRead {
            membership,
            newest,
            voters: membership.voters,
            before: membership.previous_voters,
            new: Voters::NONE,
        }
    }

    #[test]
    fn a_volume_still_ours_cannot_have_been_opened_elsewhere() {
        for membership in (1..=5).flat_map(memberships) {
            let open = |set: Voters, raised: Voters| set.and(raised).count() >= Quorums::of(set.count()).open;
            for ours in subsets(membership.all()) {
                for others in subsets(membership.all().without(ours)) {
                    let replies = VoterReplies { ours, others };
                    let result = still_ours(membership, &replies, &everything_read(membership, 3), 3);
                    // A voter that does not reply to this controller may reply to another one.
                    let may_reply_elsewhere = membership.all().without(ours);
                    let opens = membership.sets().any(|set| open(set, may_reply_elsewhere));
                    assert!(result != Some(true) || !opens, "{membership:?} {replies:?}");
                    let is_other = membership.sets().any(|set| open(set, others));
                    assert!(result != Some(false) || is_other, "{membership:?} {replies:?}");
                    // If all voters are known, one of the controllers is to serve it.
                    assert!(result.is_some() || ours.or(others) != membership.all(), "{membership:?} {replies:?}");
                    assert_eq!(still_ours(membership, &replies, &everything_read(membership, 4), 3), Some(false));
                }
            }
        }
    }

    /// Another controller has opened the volume, perhaps after a membership change that this node has not saved, and
    /// has perhaps changed the membership itself.
    #[test]
    fn with_a_stale_membership_no_volume_served_elsewhere_is_still_ours() {
        for before in (1..=5).map(|count| VoterConfig::of(count, count)) {
            let mut after: Vec<VoterConfig> = memberships(before.voters.count()).into_iter().skip(1).collect();
            let goes = before.without(VoterId(0), 9).map(|joint| joint.final_config());
            after.extend(goes);
            for (raised, membership) in after.iter().flat_map(|now| {
                let all = before.all().or(now.all());
                subsets(all).map(move |raised| (raised, *now))
            }) {
                let has = |sets: VoterConfig, many: fn(Quorums) -> usize| {
                    sets.sets().all(|set| set.and(raised).count() >= many(Quorums::of(set.count())))
                };
                // It has opened the volume with the one membership and serves it with the other, or has opened it with
                // the latter.
                let changed = has(before, |quorums| quorums.open) && has(membership, |quorums| quorums.drop);
                if !changed && !has(membership, |quorums| quorums.open) {
                    continue;
                }
                let all = before.all().or(membership.all());
                let replies = VoterReplies { ours: all.without(raised), others: raised };
                for saved in [before, membership] {
                    let result = still_ours(saved, &replies, &RegistersRead::default(), 3);
                    assert!(result != Some(true), "{before:?} {membership:?} {saved:?} {replies:?}");
                    // What was read is of another membership than the saved one, or has the other controller's vote.
                    let other = if saved == before { membership } else { before };
                    for read in [everything_read(other, 3), everything_read(saved, 4)] {
                        assert!(still_ours(saved, &replies, &read, 3) != Some(true));
                    }
                }
            }
        }
    }
}
