//! Voters that were excluded when their volume was attached by force. They are notified when they reply, and stay as
//! they are until the user takes them back in or removes them.
//!
//! An excluded voter may hold data that no other one has, and another controller may still be served by it. So nothing
//! is removed automatically, and a live controller is not cut off: both are reported where the volume is served.

use crate::ReplicationManager;
use crate::attached::AttachedVolume;
use crate::voters::{VolumeVoters, messages};
use crate::voters::{VoterError, VoterTransport};
use braid_api::{ErrorDetail, Kind};
use braid_array_admin::reconciler::Order;
use braid_engine::replica::{LEASE_NS, VoterId, VoterRequest};
use braid_format::MemberState;
use braid_inventory::{SavedReplicated, SavedVoter};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// State of an excluded voter.
enum ExcludedState {
    /// Nothing is left of it.
    Gone,
    /// It does not reply.
    Unreachable,
    /// It knows that it is excluded.
    Notified,
    /// It replies to another controller, which is alive.
    Diverged,
}

impl ReplicationManager {
    /// Returns whether another controller has cast a vote after this epoch. If a quorum still replies to this node,
    /// that controller has opened the volume by force.
    pub(crate) async fn opened_since(&self, volume: &SavedReplicated, epoch: u64) -> bool {
        let own = volume.controller.to_string();
        let replicas = self.query_locations(volume.uuid).await;
        let mut registers = replicas.into_iter().filter_map(|(_, replica)| replica.register);
        registers.any(|register| register.vote.epoch > epoch && register.controller.as_ref() != Some(&own))
    }

    /// Checks the excluded voters once, and stores what to report about them.
    pub(crate) async fn check_excluded(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        attached: &Arc<AttachedVolume>,
        voters: &Arc<VolumeVoters>,
    ) {
        self.free_excluded_slots(volume).await;
        let mut reports = Vec::new();
        for (number, voter) in volume.excluded() {
            let state = self.notify_excluded(volume, voters, number, voter).await;
            reports.extend(sentence(volume, number, voter, &state));
        }
        attached.set_excluded(reports);
    }

    /// Frees the slots that they had in the mirror: a replica that returns there is another one.
    pub(crate) async fn free_excluded_slots(&self, volume: &SavedReplicated) {
        for (number, _) in volume.excluded().filter(|(_, voter)| voter.pool.is_some()) {
            let is_out = {
                let tables = self.inventory.read();
                let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
                let member = active.and_then(|active| active.label.members.get(usize::from(number)));
                member.is_some_and(|member| member.state == MemberState::Failed)
            };
            if is_out && let Err(error) = self.arrays.give_order(volume.uuid, Order::Remove(u16::from(number))).await {
                tracing::info!("volume {}: {}", volume.name, error.message);
            }
        }
    }

    async fn notify_excluded(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        voters: &Arc<VolumeVoters>,
        number: u8,
        voter: &SavedVoter,
    ) -> ExcludedState {
        let replica = match self.replica_of(volume, number).await {
            Ok(replica) => replica,
            Err(error) if error.kind == Kind::NotFound => return ExcludedState::Gone,
            Err(_) => return ExcludedState::Unreachable,
        };
        let Some(register) = replica.register.and_then(|register| messages::register_from_api(register).ok()) else {
            return ExcludedState::Unreachable;
        };
        let id = VoterId(number);
        if replica.voter != number || register.added_in_version != voter.since {
            return ExcludedState::Gone;
        }
        if !register.vote.config.all().has(id) {
            return ExcludedState::Notified;
        }
        let (epoch, controller, _) = voters.session_of(id);
        let lives =
            replica.since_reply_ms.is_some_and(|ago| Duration::from_millis(ago) < Duration::from_nanos(LEASE_NS));
        if lives && register.controller != controller {
            return ExcludedState::Diverged;
        }
        // It got no request so far: the settled vote is the first one that it receives.
        let Some(vote) = voters.settled() else { return ExcludedState::Unreachable };
        let transport = self.transport_to(volume.uuid);
        for ask in [
            VoterRequest::Raise { epoch, controller },
            VoterRequest::Cast { epoch, controller, vote, boot: Uuid::nil() },
        ] {
            if let Err(why) = transport.send(id, ask).await {
                let why = match why {
                    VoterError::Unreachable(why) => why,
                    VoterError::Refused(refused) => format!("it answers epoch {}", refused.epoch),
                };
                tracing::info!("volume {}: {} was not told: {why}", volume.name, volume.voter_name(number));
                return ExcludedState::Unreachable;
            }
        }
        let (name, shown) = (&volume.name, volume.voter_name(number));
        let message =
            format!("{shown} replies again, and is notified that volume {name} was attached by force without it");
        self.inventory.events().warning("voter_excluded", message, &[("volume", name)]);
        ExcludedState::Notified
    }

    /// Removes an excluded voter from the list, and what its node has of it.
    ///
    /// # Errors
    /// The voter is off the list, but its node does not reply or refuses: its data is removed later.
    pub(crate) async fn remove_excluded(&self, volume: &SavedReplicated, number: u8) -> Result<(), ErrorDetail> {
        let Some(voter) = volume.voters.get(&number) else { return Ok(()) };
        let removed = self.remove_on_node(volume, &voter.node, Some(voter.since)).await;
        if removed.is_err() {
            self.record_leftover(volume.uuid, &voter.node, voter.since);
        }
        if let Some(saved) = self.inventory.write().replicated.get_mut(&volume.uuid) {
            saved.voters.remove(&number);
        }
        self.inventory.save_or_warn();
        removed.map_err(|error| {
            let shown = volume.voter_name(number);
            let message = format!("{shown} is removed from the volume, but not from its node: {}", error.message);
            ErrorDetail::new(error.kind, message).with("volume", &volume.name).remedy(format!(
                "it is removed when node {} answers, or by hand: braid replica delete {} --yes --force on it",
                voter.node, volume.name
            ))
        })
    }
}

/// Returns the excluded voter on a node.
pub(crate) fn excluded_on(volume: &SavedReplicated, node: &str) -> Option<u8> {
    let (node, pool) = node.split_once('/').map_or((node, None), |(node, pool)| (node, Some(pool)));
    let is_it = |voter: &SavedVoter| voter.node == node && pool.is_none_or(|pool| voter.pool.as_deref() == Some(pool));
    volume.excluded().find(|(_, voter)| is_it(voter)).map(|(number, _)| number)
}

/// Returns the sentence to report about an excluded voter where the volume is served.
fn sentence(volume: &SavedReplicated, number: u8, voter: &SavedVoter, state: &ExcludedState) -> Option<String> {
    let (name, shown, node) = (&volume.name, volume.voter_name(number), &voter.node);
    let again = match voter.pool {
        Some(_) => format!("braid replica rebuild {name} {node} takes it in anew, "),
        None => String::new(),
    };
    let remedy = format!("{again}braid replica remove {name} {node} deletes it for good");
    match state {
        ExcludedState::Gone => None,
        ExcludedState::Unreachable => {
            Some(format!("{shown} was excluded by a forced attach, and does not reply; {remedy}"))
        }
        ExcludedState::Notified => {
            Some(format!("{shown} was excluded by a forced attach: its data is not used; {remedy}"))
        }
        ExcludedState::Diverged => Some(format!(
            "{shown} was excluded by a forced attach, and another controller is served by it: split brain, neither side has the writes of the other; stop one side with braid volume detach {name} on its node"
        )),
    }
}
