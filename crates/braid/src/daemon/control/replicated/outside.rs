//! Voters that were left out when their volume was opened by force: they are told so when they answer, and stay as they are until somebody takes
//! them in anew, or removes them.
//!
//! What one has may be what nobody else has, and another controller may be served by it still. So nothing is removed by itself, and a controller
//! that lives is not cut off: both are named where the volume is served.

use super::super::Control;
use super::ballot::Ballots;
use super::council::{Ballot, Unanswered};
use super::saved::{SavedReplicated, SavedVoter};
use super::serve::Attached;
use super::{Voters, words};
use braid_api::{ErrorDetail, Kind};
use braid_engine::keeper::Order;
use braid_engine::replica::{Ask, LEASE_NS, VoterId};
use braid_format::MemberState;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// How one does.
enum Outside {
    /// Nothing is left of it.
    Gone,
    /// It does not answer.
    Away,
    /// It knows that it is out.
    Told,
    /// Another controller is answered by it, and lives.
    Apart,
}

impl Control {
    /// Whether somebody has opened a volume by votes after this epoch, although so many voters answer this node still that nobody can have: by force.
    pub(super) async fn opened_since(&self, volume: &SavedReplicated, epoch: u64) -> bool {
        let own = volume.controller.to_string();
        let said = self.ask_for_places(volume.uuid).await;
        let mut registers = said.into_iter().filter_map(|(_, replica)| replica.register);
        registers.any(|register| register.vote.epoch > epoch && register.controller.as_ref() != Some(&own))
    }

    /// Looks once after those that were left out by force, and remembers what is to be said of them.
    pub(super) async fn look_outside(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        attached: &Arc<Attached>,
        voters: &Arc<Voters>,
    ) {
        self.clear_outside(volume).await;
        let mut said = Vec::new();
        for (number, voter) in volume.outside() {
            let how = self.tell_one(volume, voters, number, voter).await;
            said.extend(sentence(volume, number, voter, &how));
        }
        attached.set_outside(said);
    }

    /// The roles that they had in the mirror are nobody's: what returns there is another replica.
    pub(super) async fn clear_outside(&self, volume: &SavedReplicated) {
        for (number, _) in volume.outside().filter(|(_, voter)| voter.pool.is_some()) {
            let is_out = {
                let tables = self.read();
                let active = tables.arrays.get(&volume.uuid).and_then(|entry| entry.active());
                let member = active.and_then(|active| active.label.members.get(usize::from(number)));
                member.is_some_and(|member| member.state == MemberState::Failed)
            };
            if is_out && let Err(error) = self.give_order(volume.uuid, Order::Remove(u16::from(number))).await {
                tracing::info!("volume {}: {}", volume.name, error.message);
            }
        }
    }

    async fn tell_one(
        self: &Arc<Self>,
        volume: &SavedReplicated,
        voters: &Arc<Voters>,
        number: u8,
        voter: &SavedVoter,
    ) -> Outside {
        let replica = match self.replica_of(volume, number).await {
            Ok(replica) => replica,
            Err(error) if error.kind == Kind::NotFound => return Outside::Gone,
            Err(_) => return Outside::Away,
        };
        let Some(register) = replica.register.and_then(|register| words::register(register).ok()) else {
            return Outside::Away;
        };
        let id = VoterId(number);
        if replica.voter != number || register.since != voter.since {
            return Outside::Gone;
        }
        if !register.vote.seating.all().has(id) {
            return Outside::Told;
        }
        let (epoch, controller, _) = voters.session_of(id);
        let lives = replica.heard_ms.is_some_and(|ago| Duration::from_millis(ago) < Duration::from_nanos(LEASE_NS));
        if lives && register.controller != controller {
            return Outside::Apart;
        }
        // As it was asked nothing so far the vote that counts is the first that it hears of.
        let Some(vote) = voters.settled() else { return Outside::Away };
        let ballots = Ballots { control: Arc::downgrade(self), volume: volume.uuid };
        for ask in [Ask::Raise { epoch, controller }, Ask::Cast { epoch, controller, vote, boot: Uuid::nil() }] {
            if let Err(why) = ballots.ask(id, ask).await {
                let why = match why {
                    Unanswered::Away(why) => why,
                    Unanswered::Refused(refused) => format!("it answers epoch {}", refused.epoch),
                };
                tracing::info!("volume {}: {} was not told: {why}", volume.name, volume.voter_name(number));
                return Outside::Away;
            }
        }
        let (name, shown) = (&volume.name, volume.voter_name(number));
        let message = format!("{shown} answers again, and is told that volume {name} was opened by force without it");
        self.events().warning("voter_outside", message, &[("volume", name)]);
        Outside::Told
    }

    /// Takes one off the list, and removes what its node has of it.
    ///
    /// # Errors
    /// It is off the list, and its node does not answer, or keeps it: then it is removed later.
    pub(super) async fn remove_outside(&self, volume: &SavedReplicated, number: u8) -> Result<(), ErrorDetail> {
        let Some(voter) = volume.voters.get(&number) else { return Ok(()) };
        let removed = self.remove_there(volume, &voter.node, Some(voter.since)).await;
        if removed.is_err() {
            self.note_left(volume.uuid, &voter.node, voter.since);
        }
        if let Some(saved) = self.write().replicated.get_mut(&volume.uuid) {
            saved.voters.remove(&number);
        }
        self.save_or_warn();
        removed.map_err(|error| {
            let shown = volume.voter_name(number);
            let message = format!("{shown} is forgotten, but not removed there: {}", error.message);
            ErrorDetail::new(error.kind, message).with("volume", &volume.name).remedy(format!(
                "it is removed when node {} answers, or by hand: braid replica delete {} --yes --force on it",
                voter.node, volume.name
            ))
        })
    }
}

/// The one on a node.
pub(super) fn outside_on(volume: &SavedReplicated, node: &str) -> Option<u8> {
    let (node, pool) = node.split_once('/').map_or((node, None), |(node, pool)| (node, Some(pool)));
    let is_it = |voter: &SavedVoter| voter.node == node && pool.is_none_or(|pool| voter.pool.as_deref() == Some(pool));
    volume.outside().find(|(_, voter)| is_it(voter)).map(|(number, _)| number)
}

/// What is said of one where the volume is served.
fn sentence(volume: &SavedReplicated, number: u8, voter: &SavedVoter, how: &Outside) -> Option<String> {
    let (name, shown, node) = (&volume.name, volume.voter_name(number), &voter.node);
    let again = match voter.pool {
        Some(_) => format!("braid replica rebuild {name} {node} takes it in anew, "),
        None => String::new(),
    };
    let remedy = format!("{again}braid replica remove {name} {node} deletes it for good");
    match how {
        Outside::Gone => None,
        Outside::Away => Some(format!("{shown} was left out by force, and does not answer; {remedy}")),
        Outside::Told => {
            Some(format!("{shown} was left out by force, and is out: what it has is not believed; {remedy}"))
        }
        Outside::Apart => Some(format!(
            "{shown} was left out by force, and answers another controller, which goes on: there are two of this volume, and neither has what is written to the other; end one of them, braid volume detach {name} where it is served"
        )),
    }
}
