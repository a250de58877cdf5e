//! One turn of a voter: which request it gets next, and what follows from its reply.

use crate::voters::{
    HEARTBEAT_INTERVAL, REFUSALS_MAX, REPLY_MAX, RETRY_DELAY, VoterError, VoterGroup, VoterGroupState, VoterPhase,
    VoterTransport, lease_until,
};
use braid_engine::replica::{
    Lease, MembershipAction, OpeningStep, Quorums, VoterId, VoterRefusal, VoterReply, VoterRequest, Voters,
};
use std::time::Duration;

impl<B: VoterTransport> VoterGroup<B> {
    /// Returns the next request for a voter, and whether it is a plain heartbeat, which is not urgent.
    fn next_request(&self, voter: VoterId) -> Option<(VoterRequest, bool)> {
        let state = self.state();
        let (epoch, controller) = (state.epoch, self.controller);
        let beat = VoterRequest::Heartbeat { epoch, controller };
        if state.ended {
            return None;
        }
        if state.releasing {
            let still = state.raised.has(voter) && !state.released.has(voter);
            return still.then_some((VoterRequest::Release { epoch, controller }, false));
        }
        let votes = match &state.phase {
            VoterPhase::Opening(_) => true,
            VoterPhase::Serving(membership) => membership.all_voters().has(voter),
        };
        if !votes {
            return None;
        }
        if !state.raised.has(voter) {
            // A raised voter admits sessions with its replica, which is in sync by the votes and may have lost data: it
            // is raised again once the replica is dropped.
            let is_in_sync = matches!(&state.phase, VoterPhase::Serving(membership) if membership.in_sync().has(voter));
            let waits = is_in_sync && state.forgotten.has(voter);
            return (!waits).then_some((VoterRequest::Raise { epoch, controller }, false));
        }
        match &state.phase {
            VoterPhase::Opening(opening) => match opening.next(self.transport.now_ns()) {
                OpeningStep::Cast(vote, voters) if voters.has(voter) => {
                    Some((VoterRequest::Cast { epoch, controller, vote, boot: opening.boot(voter) }, false))
                }
                _ => Some((beat, true)),
            },
            VoterPhase::Serving(membership) => match membership.next_action() {
                MembershipAction::Cast(vote, voters) if voters.has(voter) => {
                    Some((VoterRequest::Cast { epoch, controller, vote, boot: membership.boot(voter) }, false))
                }
                _ if state.outdated.has(voter) => {
                    let vote = *membership.settled();
                    Some((VoterRequest::Cast { epoch, controller, vote, boot: membership.boot(voter) }, false))
                }
                _ => Some((beat, true)),
            },
        }
    }

    /// Sends a voter one request. Returns how long to wait before the next one, unless something changes; `None`: no
    /// wait.
    pub(crate) async fn turn(&self, voter: VoterId) -> Option<Duration> {
        let Some((ask, _)) = self.next_request(voter) else { return Some(HEARTBEAT_INTERVAL) };
        let sent_ns = self.transport.now_ns();
        let relocations = self.state().relocations[usize::from(voter.0)];
        let reply = match tokio::time::timeout(REPLY_MAX, self.transport.send(voter, ask)).await {
            Ok(reply) => reply,
            Err(_) => Err(VoterError::Unreachable(format!("it did not answer within {} s", REPLY_MAX.as_secs()))),
        };
        let replied = reply.is_ok();
        if self.state().relocations[usize::from(voter.0)] != relocations {
            // The reply may come from a location that the voter has left.
            return None;
        }
        self.handle_reply(voter, ask, sent_ns, reply);
        match self.next_request(voter) {
            Some((next, false)) if replied && next != ask => None,
            _ if replied => Some(HEARTBEAT_INTERVAL),
            _ => Some(RETRY_DELAY),
        }
    }

    fn handle_reply(&self, voter: VoterId, ask: VoterRequest, sent_ns: u64, reply: Result<VoterReply, VoterError>) {
        let mut state = self.state();
        let (VoterRequest::Raise { epoch, .. }
        | VoterRequest::Cast { epoch, .. }
        | VoterRequest::Heartbeat { epoch, .. }
        | VoterRequest::Release { epoch, .. }) = ask;
        if epoch != state.epoch || state.ended {
            return;
        }
        let at = usize::from(voter.0);
        let before = (state.raised, state.failures[at].is_some());
        let mut changed = false;
        match reply {
            Err(VoterError::Unreachable(why)) => state.failures[at] = Some(why),
            Err(VoterError::Refused(VoterRefusal { epoch: other })) if other < epoch => {
                state.failures[at] = Some("it does not know this epoch any more".to_owned());
                state.raised.remove(voter);
                let ever_raised = state.ever_raised.has(voter);
                match &mut state.phase {
                    // The voter was created anew, or its disk is an older copy: its earlier reply does not count.
                    VoterPhase::Opening(opening) => {
                        opening.replaced(voter, self.transport.now_ns());
                        changed = restarted(&mut state);
                    }
                    VoterPhase::Serving(_) if ever_raised => record_forgotten(&mut state, voter),
                    VoterPhase::Serving(_) => {}
                }
            }
            Err(VoterError::Refused(VoterRefusal { epoch: other })) => {
                state.raised.remove(voter);
                changed = true;
                match &mut state.phase {
                    VoterPhase::Opening(opening) => {
                        opening.refused(other);
                        if restarted(&mut state) {
                            state.refusals += 1;
                            state.ended = state.bounded || state.refusals > REFUSALS_MAX;
                        }
                    }
                    // Another controller has raised this voter, and may have given up since. To serve, it must raise a
                    // voter of every lease quorum: so this one stops once too few voters are left for its lease.
                    VoterPhase::Serving(membership) => {
                        let sets: Vec<Voters> = membership.lease_sets().collect();
                        state.refused.insert(voter);
                        let lost = |set: Voters| set.without(state.refused).count() < Quorums::of(set.count()).lease;
                        state.ended = sets.into_iter().any(lost);
                        state.failures[at] = Some(format!("it answers another controller (epoch {other})"));
                    }
                }
            }
            Ok(reply) => {
                state.failures[at] = None;
                state.refused.remove(voter);
                state.lease.replied(voter, sent_ns);
                match (reply, ask) {
                    (VoterReply::Raised { before, boot }, _) => {
                        if state.ever_raised.has(voter) && before.epoch < epoch {
                            record_forgotten(&mut state, voter);
                        }
                        state.raised.insert(voter);
                        state.ever_raised.insert(voter);
                        state.boots[at] = boot;
                        changed = true;
                        let now = self.transport.now_ns();
                        if let VoterPhase::Opening(opening) = &mut state.phase {
                            opening.raised(voter, epoch, before, boot, now);
                        }
                    }
                    (VoterReply::Cast, VoterRequest::Cast { vote, .. }) => {
                        changed = true;
                        state.outdated.remove(voter);
                        match &mut state.phase {
                            VoterPhase::Opening(opening) => opening.cast(voter, epoch),
                            VoterPhase::Serving(membership) => membership.cast(voter, vote.order()),
                        }
                        // A removed voter gets no more requests.
                        if let VoterPhase::Serving(membership) = &state.phase {
                            let asked = membership.all_voters();
                            (state.raised, state.refused) = (state.raised.and(asked), state.refused.and(asked));
                        }
                    }
                    (VoterReply::Released, _) => {
                        state.released.insert(voter);
                        changed = true;
                    }
                    _ => {}
                }
            }
        }
        // During the opening nothing is served yet, and another controller may still deliver completions.
        let serves = matches!(state.phase, VoterPhase::Serving(_)) && !state.releasing && !state.ended;
        let until = lease_until(&state).filter(|_| serves);
        changed |= before != (state.raised, state.failures[at].is_some());
        drop(state);
        if let Some(until) = until {
            self.transport.renew(&self.lease, until);
        }
        if changed {
            self.notify();
        }
    }
}

/// Returns whether an opening has begun anew, in a higher epoch; no voter is raised to that one yet.
pub(crate) fn restarted(state: &mut VoterGroupState) -> bool {
    let VoterPhase::Opening(opening) = &state.phase else { return false };
    let epoch = opening.epoch();
    let anew = epoch != state.epoch;
    if anew {
        (state.epoch, state.raised, state.lease) = (epoch, Voters::NONE, Lease::default());
        state.ever_raised = Voters::NONE;
    }
    anew
}

/// Records that a voter which was raised to this epoch has an older register while the volume is served, for example
/// because its disk is an older copy. The voter gets the settled vote again: otherwise the next opening could rely on
/// an older one. Its replica may have lost data, too.
fn record_forgotten(state: &mut VoterGroupState, voter: VoterId) {
    let VoterPhase::Serving(membership) = &state.phase else { return };
    let is_replica = membership.config().replicas.has(voter);
    state.outdated.insert(voter);
    if is_replica {
        state.forgotten.insert(voter);
    }
}
