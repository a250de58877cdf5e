//! One voter's turn: what it is to be asked, and what follows from its answer.

use super::{AGAIN, ANSWER_MAX, BEAT, Ballot, Council, Phase, REFUSALS_MAX, State, Unanswered, lease_until};
use braid_engine::replica::{Answer, Ask, Lease, Next, Quorums, Refused, VoterId, Voters, Wanted};
use std::time::Duration;

impl<B: Ballot> Council<B> {
    /// What a voter is to be asked now, and whether that is in no hurry.
    fn question(&self, voter: VoterId) -> Option<(Ask, bool)> {
        let state = self.state();
        let (epoch, controller) = (state.epoch, self.controller);
        let beat = Ask::Beat { epoch, controller };
        if state.over {
            return None;
        }
        if state.let_go {
            let still = state.raised.has(voter) && !state.released.has(voter);
            return still.then_some((Ask::Release { epoch, controller }, false));
        }
        let votes = match &state.phase {
            Phase::Opening(_) => true,
            Phase::Serving(membership) => membership.asked().has(voter),
        };
        if !votes {
            return None;
        }
        if !state.raised.has(voter) {
            // Raised again it would let its replica be written and read as if nothing had happened.
            let is_in_sync = matches!(&state.phase, Phase::Serving(membership) if membership.in_sync().has(voter));
            let waits = is_in_sync && state.forgot.has(voter);
            return (!waits).then_some((Ask::Raise { epoch, controller }, false));
        }
        match &state.phase {
            Phase::Opening(opening) => match opening.next(self.ballot.now_ns()) {
                Next::Cast(vote, voters) if voters.has(voter) => {
                    Some((Ask::Cast { epoch, controller, vote, boot: opening.boot(voter) }, false))
                }
                _ => Some((beat, true)),
            },
            Phase::Serving(membership) => match membership.wanted() {
                Wanted::Cast(vote, voters) if voters.has(voter) => {
                    Some((Ask::Cast { epoch, controller, vote, boot: membership.boot(voter) }, false))
                }
                _ if state.untold.has(voter) => {
                    let vote = *membership.settled();
                    Some((Ask::Cast { epoch, controller, vote, boot: membership.boot(voter) }, false))
                }
                _ => Some((beat, true)),
            },
        }
    }

    /// Asks a voter once, and says how long to wait before the next time unless something changes. None: not at all.
    pub(super) async fn turn(&self, voter: VoterId) -> Option<Duration> {
        let Some((ask, _)) = self.question(voter) else { return Some(BEAT) };
        let asked_ns = self.ballot.now_ns();
        let moves = self.state().moves[usize::from(voter.0)];
        let answer = match tokio::time::timeout(ANSWER_MAX, self.ballot.ask(voter, ask)).await {
            Ok(answer) => answer,
            Err(_) => Err(Unanswered::Away(format!("it did not answer within {} s", ANSWER_MAX.as_secs()))),
        };
        let answered = answer.is_ok();
        if self.state().moves[usize::from(voter.0)] != moves {
            // It may have come from where the voter is no more.
            return None;
        }
        self.answered(voter, ask, asked_ns, answer);
        match self.question(voter) {
            Some((next, false)) if answered && next != ask => None,
            _ if answered => Some(BEAT),
            _ => Some(AGAIN),
        }
    }

    fn answered(&self, voter: VoterId, ask: Ask, asked_ns: u64, answer: Result<Answer, Unanswered>) {
        let mut state = self.state();
        let (Ask::Raise { epoch, .. } | Ask::Cast { epoch, .. } | Ask::Beat { epoch, .. } | Ask::Release { epoch, .. }) =
            ask;
        if epoch != state.epoch || state.over {
            return;
        }
        let at = usize::from(voter.0);
        let before = (state.raised, state.away[at].is_some());
        let mut news = false;
        match answer {
            Err(Unanswered::Away(why)) => state.away[at] = Some(why),
            Err(Unanswered::Refused(Refused { epoch: other })) if other < epoch => {
                state.away[at] = Some("it does not know this epoch any more".to_owned());
                state.raised.remove(voter);
                let promised = state.promised.has(voter);
                match &mut state.phase {
                    // Who was raised was somebody else, whose word does not count for this one: it was made anew, or its disk is an old one.
                    Phase::Opening(opening) => {
                        opening.moved(voter, self.ballot.now_ns());
                        news = begun_anew(&mut state);
                    }
                    Phase::Serving(_) if promised => forgets(&mut state, voter),
                    Phase::Serving(_) => {}
                }
            }
            Err(Unanswered::Refused(Refused { epoch: other })) => {
                state.raised.remove(voter);
                news = true;
                match &mut state.phase {
                    Phase::Opening(opening) => {
                        opening.refused(other);
                        if begun_anew(&mut state) {
                            state.refusals += 1;
                            state.over = state.bounded || state.refusals > REFUSALS_MAX;
                        }
                    }
                    // One that was raised by somebody who then gave up is no reason to stop. He cannot serve without one of those
                    // that are left, and if he goes on they say so.
                    Phase::Serving(membership) => {
                        let sets: Vec<Voters> = membership.lease_sets().collect();
                        state.refused.insert(voter);
                        let lost = |set: Voters| set.without(state.refused).count() < Quorums::of(set.count()).lease;
                        state.over = sets.into_iter().any(lost);
                        state.away[at] = Some(format!("it answers another controller (epoch {other})"));
                    }
                }
            }
            Ok(answer) => {
                state.away[at] = None;
                state.refused.remove(voter);
                state.lease.heard(voter, asked_ns);
                match (answer, ask) {
                    (Answer::Raised { before, boot }, _) => {
                        if state.promised.has(voter) && before.epoch < epoch {
                            forgets(&mut state, voter);
                        }
                        state.raised.insert(voter);
                        state.promised.insert(voter);
                        state.boots[at] = boot;
                        news = true;
                        let now = self.ballot.now_ns();
                        if let Phase::Opening(opening) = &mut state.phase {
                            opening.raised(voter, epoch, before, boot, now);
                        }
                    }
                    (Answer::Cast, Ask::Cast { vote, .. }) => {
                        news = true;
                        state.untold.remove(voter);
                        match &mut state.phase {
                            Phase::Opening(opening) => opening.cast(voter, epoch),
                            Phase::Serving(membership) => membership.cast(voter, vote.order()),
                        }
                        // Who votes no more is asked nothing.
                        if let Phase::Serving(membership) = &state.phase {
                            let asked = membership.asked();
                            (state.raised, state.refused) = (state.raised.and(asked), state.refused.and(asked));
                        }
                    }
                    (Answer::Released, _) => {
                        state.released.insert(voter);
                        news = true;
                    }
                    _ => {}
                }
            }
        }
        // While it is being opened there is nobody to answer yet, and others may still be answered.
        let serves = matches!(state.phase, Phase::Serving(_)) && !state.let_go && !state.over;
        let until = lease_until(&state).filter(|_| serves);
        news |= before != (state.raised, state.away[at].is_some());
        drop(state);
        if let Some(until) = until {
            self.ballot.renew(&self.lease, until);
        }
        if news {
            self.tell();
        }
    }
}

/// Whether an opening has begun anew, in a higher epoch: nobody is raised to that one yet.
pub(super) fn begun_anew(state: &mut State) -> bool {
    let Phase::Opening(opening) = &state.phase else { return false };
    let epoch = opening.epoch();
    let anew = epoch != state.epoch;
    if anew {
        (state.epoch, state.raised, state.lease) = (epoch, Voters::NONE, Lease::default());
        state.promised = Voters::NONE;
    }
    anew
}

/// A voter has gone back to before this epoch, while the volume is served: its disk is an old one, say. So has its replica; and whoever opens the
/// volume next must not go by the votes that it had then.
fn forgets(state: &mut State, voter: VoterId) {
    let Phase::Serving(membership) = &state.phase else { return };
    let is_replica = membership.seating().replicas.has(voter);
    state.untold.insert(voter);
    if is_replica {
        state.forgot.insert(voter);
    }
}
