//! The voters of a replicated volume, as their controller sees them. One task per voter sends it requests.
//!
//! A controller *raises* a voter: the voter stores the controller's epoch durably, and from then on refuses every lower
//! one, as an acceptor of Paxos does after a prepare or a voter of Raft in a later term. It *casts* its vote, the
//! membership and the replicas in sync, on the raised voters. The *boot* of a voter identifies the boot of its node:
//! data that was not flushed may be lost when it changes.
//!
//! What follows from the replies is decided by the engine ([`braid_engine::replica`]); this module decides which
//! requests are sent when, and what waits for what. The array on the replicas asks [`VoterGroup::agree`] which replicas
//! are in sync. When [`VoterGroup::lease`] has expired, the shards hold their completions back.
//!
//! `transport` sends the requests over the nodes' API, in the types of `messages`. `votes` is the array's access to the
//! votes, and `forced` begins an opening with too few voters. `probe` finds out whether this node may open a volume
//! again.

pub(crate) mod forced;
pub(crate) mod messages;
pub(crate) mod probe;
#[cfg(test)]
mod tests;
pub(crate) mod transport;
mod turn;
mod votes;

use crate::voters::transport::NodeTransport;
use braid_engine::DeviceLease;
use braid_engine::replica::{
    Lease, Membership, MembershipAction, Opening, OpeningStep, VOTERS_MAX, Vote, VoterConfig, VoterId, VoterRefusal,
    VoterReply, VoterRequest, Voters,
};
use braid_tasks as tasks;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use uuid::Uuid;

/// Interval between two heartbeats, which ask whether the epoch is still valid.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Delay after a voter did not reply.
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// Maximum time to wait for a reply: a later one says nothing about the lease any more.
pub(crate) const REPLY_MAX: Duration = Duration::from_secs(4);

/// Number of higher epochs that an opening tolerates: beyond that, other controllers are faster.
const REFUSALS_MAX: u32 = 4;

/// Maximum time for a replica that becomes in sync to acknowledge that vote.
const ACKNOWLEDGE_MAX: Duration = Duration::from_secs(5);

/// Why a voter did not reply as requested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum VoterError {
    /// It replies to another controller.
    Refused(VoterRefusal),
    /// It cannot be reached, or cannot write its register; why.
    Unreachable(String),
}

/// The voters of one volume, on their nodes.
pub(crate) type VolumeVoters = VoterGroup<NodeTransport>;

/// Sends requests to voters.
pub(crate) trait VoterTransport: Send + Sync + 'static {
    /// Sends a request to a voter. If the future is dropped, the voter may have received the request or not.
    fn send(&self, voter: VoterId, ask: VoterRequest) -> impl Future<Output = Result<VoterReply, VoterError>> + Send;

    /// Returns the current time, by the clock of the shards, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Extends a lease: completions may be delivered until then. Notifies the shards that hold some back.
    fn renew(&self, lease: &DeviceLease, until_ns: u64);
}

/// Another controller has opened the volume, or it cannot be served any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ControllerFenced;

enum VoterPhase {
    Opening(Box<Opening>),
    Serving(Box<Membership>),
}

struct VoterGroupState {
    epoch: u64,
    raised: Voters,
    lease: Lease,
    phase: VoterPhase,
    /// The boot that each voter last reported, by number.
    boots: [Uuid; VOTERS_MAX],
    /// Why each voter did not reply last time, by number.
    failures: [Option<String>; VOTERS_MAX],
    /// Voters with a task that sends them requests.
    contacted: Voters,
    /// Counts the changes of the membership.
    changes: u16,
    /// How often each voter was found at another location, by number: replies to earlier requests do not describe it.
    relocations: [u32; VOTERS_MAX],
    /// Another controller has a higher epoch, or this one has stopped.
    ended: bool,
    releasing: bool,
    released: Voters,
    /// Voters that reply to another controller, while the volume is served.
    refused: Voters,
    /// Voters that were raised to this epoch, whether they reply or not.
    ever_raised: Voters,
    /// While the volume is served: voters that were raised to this epoch and have lost it, since they were created anew
    /// or their disk is an older copy. They get the settled vote again.
    outdated: Voters,
    /// Those of `outdated` with a replica, which may have lost data. It is dropped before its voter is raised again,
    /// and then rebuilt from nothing.
    forgotten: Voters,
    /// The volume is opened only if no other controller has come since the epoch above which the opening began.
    bounded: bool,
    /// How often a higher epoch was met during the opening.
    refusals: u32,
}

/// State of the voters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct VotersStatus {
    /// The epoch of this controller.
    pub(crate) epoch: u64,
    /// Voters that reply in it.
    pub(crate) raised: Voters,
    /// Replicas in sync by the votes; none during the opening.
    pub(crate) in_sync: Voters,
    /// Replicas in sync that are missing, while the volume cannot be opened without them.
    pub(crate) missing: Voters,
    /// Voters that reply to another controller, while the volume is served.
    pub(crate) refused: Voters,
    /// Replicas that are to be dropped and rebuilt from nothing, since their nodes have forgotten this epoch.
    pub(crate) forgotten: Voters,
    /// Why a voter did not reply, by number.
    pub(crate) failures: [Option<String>; VOTERS_MAX],
    /// This controller is fenced, or has stopped.
    pub(crate) ended: bool,
}

/// The voters of one volume, and the state of one controller's epoch with them.
pub(crate) struct VoterGroup<B> {
    transport: B,
    controller: Uuid,
    lineage: u64,
    state: Mutex<VoterGroupState>,
    /// Incremented with each relevant change.
    changed: watch::Sender<u64>,
    lease: Arc<DeviceLease>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl<B> Drop for VoterGroup<B> {
    fn drop(&mut self) {
        self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).iter().for_each(AbortHandle::abort);
    }
}

impl<B: VoterTransport> VoterGroup<B> {
    /// Begins to send requests to all voters, in an epoch above `above`. If `above` is 0, the epoch is above every one
    /// that they report; otherwise the opening ends if another controller raises a higher epoch in the meantime.
    /// `controller` and `lineage` are random. `known` is the known membership; the voters may report a newer one.
    pub(crate) fn begin(
        transport: B,
        known: VoterConfig,
        controller: Uuid,
        lineage: u64,
        above: u64,
    ) -> Arc<VoterGroup<B>> {
        let opening = Opening::new(known, controller, lineage).above_epoch(above);
        VoterGroup::begin_with(transport, opening, known.all(), (controller, lineage), above > 0)
    }

    /// Begins with a given opening of this controller and lineage, and sends requests to the voters `asked`. `bounded`:
    /// the opening ends if another controller raises a higher epoch.
    pub(crate) fn begin_with(
        transport: B,
        opening: Opening,
        asked: Voters,
        (controller, lineage): (Uuid, u64),
        bounded: bool,
    ) -> Arc<VoterGroup<B>> {
        let group = Arc::new(VoterGroup {
            transport,
            controller,
            lineage,
            state: Mutex::new(VoterGroupState {
                epoch: opening.epoch(),
                raised: Voters::NONE,
                lease: Lease::default(),
                phase: VoterPhase::Opening(Box::new(opening)),
                boots: [Uuid::nil(); VOTERS_MAX],
                failures: Default::default(),
                contacted: Voters::NONE,
                changes: 0,
                relocations: [0; VOTERS_MAX],
                ended: false,
                releasing: false,
                released: Voters::NONE,
                refused: Voters::NONE,
                ever_raised: Voters::NONE,
                outdated: Voters::NONE,
                forgotten: Voters::NONE,
                bounded,
                refusals: 0,
            }),
            changed: watch::Sender::new(0),
            lease: Arc::new(DeviceLease::new(0)),
            tasks: Mutex::default(),
        });
        group.contact(asked);
        group
    }

    /// Starts the tasks for these voters, unless they run.
    pub(crate) fn contact(self: &Arc<Self>, voters: Voters) {
        let new = {
            let mut state = self.state();
            let new = voters.without(state.contacted);
            state.contacted = state.contacted.or(new);
            new
        };
        for voter in new.iter() {
            let (weak, changed) = (Arc::downgrade(self), self.changed.subscribe());
            let task = tasks::spawn(async move {
                let mut changed = changed;
                // The task ends with the group.
                while let Some(group) = weak.upgrade() {
                    // A change from here on starts the next turn.
                    changed.mark_unchanged();
                    let wait = group.turn(voter).await;
                    group.contact_all();
                    drop(group);
                    if let Some(wait) = wait {
                        let _ = tokio::time::timeout(wait, changed.changed()).await;
                    }
                }
            });
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.push(task.abort_handle());
        }
    }

    /// Starts the tasks for all voters of the current phase.
    fn contact_all(self: &Arc<Self>) {
        let all = match &self.state().phase {
            VoterPhase::Opening(opening) => opening.unraised(),
            VoterPhase::Serving(membership) => membership.config().all(),
        };
        self.contact(all);
    }

    /// Records that these voters are at another location than assumed. Replies so far came from another voter, and so
    /// do replies to requests that are in flight.
    pub(crate) fn relocated(&self, voters: Voters) {
        if voters.is_empty() {
            return;
        }
        let now = self.transport.now_ns();
        let mut state = self.state();
        voters.iter().for_each(|voter| state.relocations[usize::from(voter.0)] += 1);
        if let VoterPhase::Opening(opening) = &mut state.phase {
            voters.iter().for_each(|voter| opening.replaced(voter, now));
            state.raised = state.raised.without(voters);
        }
        turn::restarted(&mut state);
        drop(state);
        self.notify();
    }

    /// Returns the membership by the votes.
    pub(crate) fn membership(&self) -> VoterConfig {
        match &self.state().phase {
            VoterPhase::Opening(opening) => opening.config(),
            VoterPhase::Serving(membership) => membership.settled().config,
        }
    }

    /// Returns the settled vote; `None` if the volume is not served.
    pub(crate) fn settled(&self) -> Option<Vote> {
        match &self.state().phase {
            VoterPhase::Opening(_) => None,
            VoterPhase::Serving(membership) => Some(*membership.settled()),
        }
    }

    /// Returns the version for the next membership change.
    ///
    /// # Errors
    /// The volume is not served, or there were too many changes.
    pub(crate) fn next_version(&self) -> Result<u64, ControllerFenced> {
        let mut state = self.state();
        state.changes = state.changes.checked_add(1).ok_or(ControllerFenced)?;
        VoterConfig::version_of(state.epoch, state.changes).ok_or(ControllerFenced)
    }

    /// Begins a membership change: `next` is the joint configuration that follows [`VoterGroup::membership`]. The
    /// change then goes on by itself. Returns false if it has not begun, because another vote is in progress or a
    /// replica in sync would lose its vote.
    ///
    /// # Errors
    /// Another controller has fenced this one; nothing has begun.
    pub(crate) fn change(self: &Arc<Self>, next: &VoterConfig) -> Result<bool, ControllerFenced> {
        {
            let mut state = self.state();
            if state.ended {
                return Err(ControllerFenced);
            }
            let VoterPhase::Serving(membership) = &mut state.phase else { return Err(ControllerFenced) };
            if !membership.change(*next) {
                return Ok(false);
            }
            // The number of a new voter may have belonged to a removed one: forget that one's state.
            let new = next.voters.without(next.previous_voters);
            new.iter().for_each(|voter| state.relocations[usize::from(voter.0)] += 1);
            state.raised = state.raised.without(new);
            state.refused = state.refused.without(new);
            state.ever_raised = state.ever_raised.without(new);
            state.outdated = state.outdated.without(new);
            state.forgotten = state.forgotten.without(new);
        }
        self.contact(next.all());
        self.notify();
        Ok(true)
    }

    /// Waits until a membership change is settled: the new membership alone decides.
    ///
    /// # Errors
    /// Another controller has fenced this one.
    pub(crate) async fn changed_to(&self, next: &VoterConfig) -> Result<(), ControllerFenced> {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let state = self.state();
                if state.ended {
                    return Err(ControllerFenced);
                }
                let VoterPhase::Serving(membership) = &state.phase else { return Err(ControllerFenced) };
                if membership.settled().config == next.final_config() {
                    return Ok(());
                }
            }
            let _ = changed.changed().await;
        }
    }

    /// Returns the lease under which completions are delivered.
    pub(crate) fn lease(&self) -> &Arc<DeviceLease> {
        &self.lease
    }

    /// Returns epoch and controller of the requests, and the boot that a voter last reported: the terms of a session
    /// with its replica.
    pub(crate) fn session_of(&self, voter: VoterId) -> (u64, Uuid, Uuid) {
        let state = self.state();
        (state.epoch, self.controller, state.boots[usize::from(voter.0)])
    }

    /// Returns whether a voter replies in this controller's epoch.
    fn is_raised(&self, voter: VoterId) -> bool {
        self.state().raised.has(voter)
    }

    /// Returns the state of the voters.
    pub(crate) fn status(&self) -> VotersStatus {
        let state = self.state();
        let (in_sync, missing) = match &state.phase {
            VoterPhase::Serving(membership) => (membership.settled().in_sync, Voters::NONE),
            VoterPhase::Opening(opening) => match opening.next(self.transport.now_ns()) {
                OpeningStep::Missing(_, _, missing) => (Voters::NONE, missing),
                _ => (Voters::NONE, Voters::NONE),
            },
        };
        let VoterGroupState { epoch, raised, refused, forgotten, ended, .. } = *state;
        VotersStatus { epoch, raised, in_sync, missing, refused, forgotten, failures: state.failures.clone(), ended }
    }

    /// Waits until this controller is fenced by one with a higher epoch, or has stopped.
    pub(crate) async fn ended(&self) {
        let mut changed = self.changed.subscribe();
        while !self.state().ended {
            let _ = changed.changed().await;
        }
    }

    /// Raises the voters, and returns the replicas to open and resync; the caller then reports those in sync with
    /// [`VoterGroup::agree`]. Waits as long as too few voters reply, or too few replicas in sync. Once enough reply, it
    /// waits for the others for `patience`: a replica that is left out must be resynced afterwards.
    ///
    /// # Errors
    /// Other controllers keep opening the volume.
    pub(crate) async fn open(&self, patience: Duration) -> Result<Voters, ControllerFenced> {
        let mut changed = self.changed.subscribe();
        let mut waits_until = None;
        loop {
            let until = {
                let mut state = self.state();
                if state.ended {
                    return Err(ControllerFenced);
                }
                let now = self.transport.now_ns();
                let VoterPhase::Opening(opening) = &mut state.phase else { return Err(ControllerFenced) };
                let raised = opening.unraised();
                match opening.next(now) {
                    OpeningStep::Resync(chosen) => {
                        let until = *waits_until.get_or_insert(now.saturating_add(patience.as_nanos() as u64));
                        if raised.is_empty() || now >= until {
                            opening.choose(chosen);
                            return Ok(chosen);
                        }
                        until - now
                    }
                    OpeningStep::Wait(_, _, until) => {
                        // Enough are raised: `patience` for the others starts while the lease of the fenced controller
                        // expires, not afterwards.
                        waits_until.get_or_insert(now.saturating_add(patience.as_nanos() as u64));
                        until.saturating_sub(now).max(1)
                    }
                    _ => {
                        waits_until = None;
                        u64::MAX
                    }
                }
            };
            let _ = tokio::time::timeout(Duration::from_nanos(until), changed.changed()).await;
        }
    }

    /// Returns once a quorum of the voters has stored that exactly these replicas are in sync. The caller has flushed
    /// them. Returns those of them that did not acknowledge that vote in time, and are therefore not in sync.
    ///
    /// # Errors
    /// Another controller has fenced this one.
    pub(crate) async fn agree(&self, in_sync: Voters) -> Result<Voters, ControllerFenced> {
        let new_replicas = self.propose(in_sync)?;
        let mut unacknowledged = Voters::NONE;
        let mut changed = self.changed.subscribe();
        let deadline = tokio::time::Instant::now() + ACKNOWLEDGE_MAX;
        loop {
            match self.is_settled()? {
                true => return Ok(unacknowledged),
                false if new_replicas.is_empty() || !unacknowledged.is_empty() => drop(changed.changed().await),
                false => {
                    if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                        unacknowledged = self.drop_unacknowledged(new_replicas)?;
                    }
                }
            }
        }
    }

    /// Asks a voter anew for the boot of its node, for a replica that is not in sync and is to be resynced. Returns
    /// false if it does not reply.
    pub(crate) async fn refresh_boot(&self, voter: VoterId) -> bool {
        let mut changed = self.changed.subscribe();
        {
            let mut state = self.state();
            let VoterPhase::Serving(membership) = &state.phase else { return false };
            if state.ended || membership.in_sync().has(voter) {
                return false;
            }
            state.raised.remove(voter);
        }
        self.notify();
        let answers = async {
            while !self.is_raised(voter) {
                let _ = changed.changed().await;
            }
        };
        if tokio::time::timeout(REPLY_MAX, answers).await.is_err() {
            return false;
        }
        let mut state = self.state();
        let boot = state.boots[usize::from(voter.0)];
        let VoterPhase::Serving(membership) = &mut state.phase else { return false };
        let is_out = !membership.in_sync().has(voter);
        if is_out {
            membership.connected(voter, boot);
        }
        is_out
    }

    /// Records that a replica whose voter has lost this epoch was dropped and removed from the array: it may be
    /// rebuilt.
    pub(crate) fn allow_rebuild(&self, voter: VoterId) {
        self.state().forgotten.remove(voter);
        self.notify();
    }

    /// Gives up: every wait for voters ends as if fenced.
    pub(crate) fn give_up(&self) {
        self.state().ended = true;
        self.notify();
    }

    /// Notifies the voters that this controller has stopped: nothing is in flight, and it delivers no completion any
    /// more. Waits for their replies for at most `limit`.
    pub(crate) async fn release(&self, limit: Duration) {
        {
            let mut state = self.state();
            (state.releasing, state.released) = (true, Voters::NONE);
        }
        self.notify();
        let mut changed = self.changed.subscribe();
        let all = async {
            loop {
                {
                    let state = self.state();
                    if state.ended || state.raised.without(state.released).is_empty() {
                        return;
                    }
                }
                let _ = changed.changed().await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
        self.state().ended = true;
        self.notify();
    }

    fn state(&self) -> MutexGuard<'_, VoterGroupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Proposes the replicas in sync to the voters, and returns those that become in sync with that.
    fn propose(&self, in_sync: Voters) -> Result<Voters, ControllerFenced> {
        let mut state = self.state();
        if state.ended {
            return Err(ControllerFenced);
        }
        let new_replicas = match &mut state.phase {
            VoterPhase::Opening(opening) => {
                let before = opening.epoch();
                opening.resynced(in_sync);
                if opening.epoch() != before {
                    // Another controller raised a higher epoch in the meantime: the opening begins anew, with new
                    // sessions.
                    return Err(ControllerFenced);
                }
                in_sync
            }
            VoterPhase::Serving(membership) => {
                let before = membership.in_sync();
                before.without(in_sync).iter().for_each(|voter| membership.fail(voter));
                if membership.next_action() == MembershipAction::Frozen {
                    return Err(ControllerFenced);
                }
                Self::flushed(membership);
                let new_replicas = in_sync.without(before);
                for voter in new_replicas.iter() {
                    if !membership.promote(voter) {
                        return Err(ControllerFenced);
                    }
                }
                new_replicas
            }
        };
        drop(state);
        self.notify();
        Ok(new_replicas)
    }

    /// Records that the members are flushed: the caller has done that.
    fn flushed(membership: &mut Membership) {
        if let MembershipAction::Flush(voters) = membership.next_action() {
            voters.iter().for_each(|voter| membership.flushed(voter));
        }
    }

    /// Returns whether the proposal is settled. An opening with all votes serves from then on.
    fn is_settled(&self) -> Result<bool, ControllerFenced> {
        let mut state = self.state();
        if state.ended {
            return Err(ControllerFenced);
        }
        let opened = match &mut state.phase {
            VoterPhase::Serving(membership) => return Ok(membership.next_action() == MembershipAction::Nothing),
            VoterPhase::Opening(opening) => match opening.next(self.transport.now_ns()) {
                OpeningStep::Open => opening.opened(),
                OpeningStep::Cast(..) => None,
                // The opening began anew.
                _ => return Err(ControllerFenced),
            },
        };
        let Some(opened) = opened else { return Ok(false) };
        state.phase = VoterPhase::Serving(Box::new(Membership::new(&opened, self.lineage.rotate_left(23))));
        let until = lease_until(&state);
        drop(state);
        if let Some(until) = until {
            self.transport.renew(&self.lease, until);
        }
        Ok(true)
    }

    /// Drops replicas that did not acknowledge their vote in time. An opening begins anew.
    fn drop_unacknowledged(&self, new_replicas: Voters) -> Result<Voters, ControllerFenced> {
        let mut state = self.state();
        match &mut state.phase {
            VoterPhase::Opening(_) => Err(ControllerFenced),
            VoterPhase::Serving(membership) => {
                new_replicas.iter().for_each(|voter| membership.fail(voter));
                if membership.next_action() == MembershipAction::Frozen {
                    return Err(ControllerFenced);
                }
                Self::flushed(membership);
                drop(state);
                self.notify();
                Ok(new_replicas)
            }
        }
    }
}

/// Returns until when completions may be delivered; `None`: not at all, or it is not known yet which voters that takes.
fn lease_until(state: &VoterGroupState) -> Option<u64> {
    match &state.phase {
        VoterPhase::Opening(_) => None,
        VoterPhase::Serving(membership) => state.lease.expires_ns(membership.lease_sets()),
    }
}
