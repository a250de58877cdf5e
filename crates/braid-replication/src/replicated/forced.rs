//! Forced attach of a replicated volume with too few voters, at the request of the user.
//!
//! | step | what is refused | what is left if it ends there |
//! |---|---|---|
//! | all voters are asked for their registers; nothing is changed | enough reply; one has replied to another controller within its lease; no voter that replies has the data | nothing |
//! | the user accepts what may be lost, and names the nodes that are given up | by then other voters do not reply | nothing |
//! | the present voters are raised, far above all epochs; the leases of other controllers are waited for | one of them does not reply | higher epochs |
//! | the replicas are opened, and the array on them is started | nothing can be started from them | higher epochs |
//! | all present voters get the vote whose membership has only them | one of them does not reply | an opening that meets a voter with that vote uses its membership |
//! | it is served | | |
//!
//! An excluded voter is notified by a vote as soon as it replies, and stays as it is: nothing that it had counts, and
//! nothing is removed.

use crate::ReplicationManager;
use crate::replicated::incomplete::refuse_incomplete;
use crate::voters::messages;
use braid_api::{ErrorDetail, ForcedOpening, Kind, Replica};
use braid_engine::replica::{self, ForceRefusal, Forecast, LEASE_NS, VoterId, forecast};
use braid_inventory::SavedReplicated;
use futures_util::future::join_all;
use hyper::Method;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Delay between two checks whether another controller is still alive.
const RECHECK_DELAY: Duration = Duration::from_millis(500);

/// Time for which a voter's reply contributes to a lease.
const LEASE: Duration = Duration::from_nanos(LEASE_NS);

/// The registers of the voters that reply, by number.
type VoterRegisters = BTreeMap<u8, (Replica, replica::Register, Uuid)>;

impl ReplicationManager {
    /// Returns what a forced attach of a volume would mean. Nothing is changed.
    ///
    /// # Errors
    /// No such volume; [`Kind::InUse`]: force is not needed, or another controller may serve it; [`Kind::Incomplete`]:
    /// no voter that replies has its data.
    pub async fn forced_opening(&self, name: &str) -> Result<ForcedOpening, ErrorDetail> {
        Ok(self.forecast_forced(name).await?.2)
    }

    /// Returns the volume with its newest membership, and the forecast for its opening.
    pub(crate) async fn forecast_forced(
        &self,
        name: &str,
    ) -> Result<(SavedReplicated, Forecast, ForcedOpening), ErrorDetail> {
        let volume = self.find_in_cluster(name).await?;
        self.refuse_in_creation(&volume)?;
        refuse_incomplete(&volume)?;
        let in_use = |why: String| ErrorDetail::new(Kind::InUse, why).with("volume", &volume.name);
        let uuid = volume.uuid.to_string();
        let serves = self.inventory.read().arrays.get(&volume.uuid).is_some_and(|entry| entry.active().is_some());
        if serves && self.lease_left(&uuid).is_some_and(|left| !left.is_zero()) {
            return Err(in_use(format!("volume {} is served by this node", volume.name))
                .remedy(format!("nothing needs to be forced: braid volume show {}", volume.name)));
        }
        let (volume, replies) = self.registers_without_controller(volume).await?;
        let registers: Vec<_> =
            replies.iter().map(|(number, (_, register, boot))| (VoterId(*number), *register, *boot)).collect();
        match forecast(volume.membership(), &registers) {
            Ok(forecast) => {
                let shown = shown(&volume, &forecast);
                Ok((volume, forecast, shown))
            }
            Err(ForceRefusal::NotNeeded) => Err(ErrorDetail::new(
                Kind::InUse,
                format!("enough voters of volume {} answer: nothing needs to be forced", volume.name),
            )
            .with("volume", &volume.name)
            .remedy(format!("braid volume attach {}", volume.name))),
            Err(ForceRefusal::NoData) => Err(no_data(&volume, &replies)),
        }
    }

    /// Waits until no other controller can complete requests with the lease of a voter that replies, or until one is
    /// known to be alive.
    async fn registers_without_controller(
        &self,
        volume: SavedReplicated,
    ) -> Result<(SavedReplicated, VoterRegisters), ErrorDetail> {
        let begun = Instant::now();
        loop {
            let asked = Instant::now();
            let (now, replies) = self.query_all_voters(&volume).await;
            let own = self.inventory.read().replicated.get(&volume.uuid).map(|volume| volume.controller.to_string());
            let heard = replies.iter().filter_map(|(number, (replica, register, _))| {
                let ago = Duration::from_millis(replica.since_reply_ms?);
                let is_own = own.as_deref() == Some(&register.controller.to_string());
                (!is_own && ago < LEASE).then_some((*number, ago))
            });
            let heard: Vec<(u8, Duration)> = heard.collect();
            let Some(ago) = heard.iter().map(|(_, ago)| *ago).min() else { return Ok((now, replies)) };
            // The controller has sent a request since this began to ask: it is alive.
            if ago < asked.duration_since(begun) || begun.elapsed() > 2 * LEASE {
                // The first by number, not by time: a repetition gives the same message.
                let message = format!(
                    "{} has replied to another controller, which serves volume {} or is about to",
                    now.voter_name(heard[0].0),
                    now.name
                );
                return Err(ErrorDetail::new(Kind::InUse, message).with("volume", &now.name).remedy(format!(
                    "where it is served: braid volume show {0}; braid volume detach {0} there, or open it by force on that node",
                    now.name
                )));
            }
            tokio::time::sleep(RECHECK_DELAY).await;
        }
    }

    /// Asks all voters of a volume for their registers, by the newest membership that any node has.
    async fn query_all_voters(&self, volume: &SavedReplicated) -> (SavedReplicated, VoterRegisters) {
        self.adopt_newest_vote(volume.uuid).await;
        let volume = self.inventory.read().replicated.get(&volume.uuid).cloned().unwrap_or_else(|| volume.clone());
        let ask = |number: u8, since: u64| {
            let volume = &volume;
            async move {
                let replica = self.replica_of(volume, number).await.ok()?;
                let register = messages::register_from_api(replica.register.clone()?).ok()?;
                let boot = replica.boot.parse().ok()?;
                let is_it = replica.voter == number && register.added_in_version == since;
                is_it.then_some((number, (replica, register, boot)))
            }
        };
        let asked = volume.voting().map(|(number, voter)| ask(number, voter.since));
        let replies = join_all(asked).await.into_iter().flatten().collect();
        (volume, replies)
    }

    /// Returns a node's replica or witness of a volume.
    pub(crate) async fn replica_of(&self, volume: &SavedReplicated, number: u8) -> Result<Replica, ErrorDetail> {
        let path = format!("/v1/replicas/{}", volume.uuid);
        let voter = volume.voters.get(&number).ok_or_else(|| ErrorDetail::new(Kind::NotFound, "no such voter"))?;
        let reply = self.nodes.call(&voter.node, Method::GET, &path, None).await?;
        serde_json::from_value(reply).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))
    }
}

/// Returns what to show before anything is done.
fn shown(volume: &SavedReplicated, forecast: &Forecast) -> ForcedOpening {
    let nodes = |voters: replica::Voters| -> Vec<String> {
        let node = |voter: VoterId| Some(volume.voters.get(&voter.0)?.node.clone());
        voters.iter().filter_map(node).collect()
    };
    let names = |voters: replica::Voters| -> String {
        let names: Vec<String> = voters.iter().map(|voter| volume.voter_name(voter.0)).collect();
        names.join(", ")
    };
    let name = &volume.name;
    let (absent, from) = (names(forecast.absent), names(forecast.from));
    let mut losses = vec![match forecast.newest {
        true => format!(
            "it is served from {from}, in sync by the newest vote that is known here: if a later vote, known only to voters that do not reply, has dropped it, writes acknowledged since then are lost"
        ),
        false => format!(
            "it is served from {from}, which is not in sync by the newest vote that is known here: writes acknowledged since it was dropped are lost"
        ),
    }];
    if forecast.rebooted {
        losses.push("its node has rebooted since that vote, or its disk is an older copy of itself: what was not flushed then, or is later than that copy, may be lost, too".to_owned());
    }
    if !forecast.absent.is_empty() {
        losses.push(format!(
            "these voters do not answer, and are given up: {absent}. What they have counts as diverged from now on and is never merged: they come back by braid replica rebuild or add, anew"
        ));
        losses.push(format!(
            "if any node still serves volume {name} with their votes, it keeps serving it (split brain): make sure that they are down"
        ));
    }
    ForcedOpening {
        uuid: volume.uuid.to_string(),
        name: name.clone(),
        without: nodes(forecast.absent),
        present: nodes(forecast.present),
        from: nodes(forecast.from),
        newest: forecast.newest,
        rebooted: forecast.rebooted,
        losses,
    }
}

fn no_data(volume: &SavedReplicated, replies: &VoterRegisters) -> ErrorDetail {
    let name = &volume.name;
    let reply: Vec<String> = replies.keys().map(|number| volume.voter_name(*number)).collect();
    let message = match reply.is_empty() {
        true => format!("no voter of volume {name} answers"),
        false => format!(
            "of volume {name} {} answer, and {} of those that were in sync are needed for its data",
            reply.join(", "),
            match volume.replicas_min() {
                1 => "one".to_owned(),
                replicas_min => replicas_min.to_string(),
            }
        ),
    };
    ErrorDetail::new(Kind::Incomplete, message).with("volume", name).remedy(
        "a failed replica can still be read on its node: braid snapshot create POOL/VOLUME@NAME there, and a clone of that",
    )
}
