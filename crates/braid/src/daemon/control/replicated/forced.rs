//! Volumes of several nodes that too few voters are left of: opened by force, by the word of whoever uses them.
//!
//! | step | what is refused | what is left should it end here |
//! |---|---|---|
//! | all voters are asked what they remember; nothing is changed | enough answer; one has heard of another controller within its lease; nobody who is there has the data | nothing |
//! | the user agrees to what may be lost, and names who is given up | others do not answer by then | nothing |
//! | those that are present are raised, far above all epochs; the lease of others is waited for | one of them does not answer | higher epochs |
//! | the replicas are opened, and the array above them is started | nothing can be started from them | higher epochs |
//! | all who are present get the vote that seats them alone | one of them does not answer | whoever meets one that has it opens the volume so |
//! | it is served | | |
//!
//! Who was left out is told as soon as it answers, by a vote, and stays as it is: nothing that it had is believed, and nothing removed.

use super::super::Control;
use super::attach::refuse_half_made;
use super::ballot::Ballots;
use super::council::Council;
use super::saved::SavedReplicated;
use super::{Voters, words};
use braid_api::{ErrorDetail, ForcedOpening, Kind, Replica};
use braid_engine::replica::{self, Forecast, LEASE_NS, Opening, Seating, Unforced, VoterId, forecast};
use futures_util::future::join_all;
use hyper::Method;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Between two questions whether another controller still is heard of.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a voter's word holds.
const LEASE: Duration = Duration::from_nanos(LEASE_NS);

/// By whom a volume is opened, and by nobody else.
pub(super) struct Forced {
    pub(super) known: Seating,
    pub(super) agreed: Forecast,
}

impl Forced {
    /// Begins to ask them. None: there is no epoch that is high enough.
    pub(super) fn begin(&self, ballots: Ballots, controller: Uuid, lineage: u64) -> Option<Arc<Voters>> {
        let opening = Opening::new(self.known, controller, lineage);
        let opening = opening.forced(&self.agreed, (lineage >> 32) as u32)?;
        Some(Council::begin_by(ballots, opening, self.agreed.present, (controller, lineage), true))
    }
}

/// What the voters of a volume remember, of those that answer, by number.
type Said = BTreeMap<u8, (Replica, replica::Register, Uuid)>;

impl Control {
    /// What opening a volume by force would mean. Nothing is changed.
    ///
    /// # Errors
    /// No such volume; [`Kind::InUse`]: it need not be forced, or somebody else may serve it; [`Kind::Incomplete`]: nobody who answers has its data.
    pub async fn forced_opening(&self, name: &str) -> Result<ForcedOpening, ErrorDetail> {
        Ok(self.forecast_forced(name).await?.2)
    }

    /// The volume with its newest list of voters, and what its opening would go by.
    pub(super) async fn forecast_forced(
        &self,
        name: &str,
    ) -> Result<(SavedReplicated, Forecast, ForcedOpening), ErrorDetail> {
        let volume = self.find_anywhere(name).await?;
        self.refuse_being_made(&volume)?;
        refuse_half_made(&volume)?;
        let in_use = |why: String| ErrorDetail::new(Kind::InUse, why).with("volume", &volume.name);
        let uuid = volume.uuid.to_string();
        let serves = self.read().arrays.get(&volume.uuid).is_some_and(|entry| entry.active().is_some());
        if serves && self.lease_left(&uuid).is_some_and(|left| !left.is_zero()) {
            return Err(in_use(format!("volume {} is served by this node", volume.name))
                .remedy(format!("nothing needs to be forced: braid volume show {}", volume.name)));
        }
        let (volume, said) = self.said_while_nobody_serves(volume).await?;
        let registers: Vec<_> =
            said.iter().map(|(number, (_, register, boot))| (VoterId(*number), *register, *boot)).collect();
        match forecast(volume.seating(), &registers) {
            Ok(forecast) => {
                let shown = shown(&volume, &forecast);
                Ok((volume, forecast, shown))
            }
            Err(Unforced::VotesAllow) => Err(ErrorDetail::new(
                Kind::InUse,
                format!("enough voters of volume {} answer: nothing needs to be forced", volume.name),
            )
            .with("volume", &volume.name)
            .remedy(format!("braid volume attach {}", volume.name))),
            Err(Unforced::NoData) => Err(no_data(&volume, &said)),
        }
    }

    /// Waits until nobody else can answer clients by the word of a voter that answers, or it is known that somebody lives.
    async fn said_while_nobody_serves(&self, volume: SavedReplicated) -> Result<(SavedReplicated, Said), ErrorDetail> {
        let begun = Instant::now();
        loop {
            let asked = Instant::now();
            let (now, said) = self.ask_all_voters(&volume).await;
            let own = self.read().replicated.get(&volume.uuid).map(|volume| volume.controller.to_string());
            let heard = said.iter().filter_map(|(number, (replica, register, _))| {
                let ago = Duration::from_millis(replica.heard_ms?);
                let is_own = own.as_deref() == Some(&register.controller.to_string());
                (!is_own && ago < LEASE).then_some((*number, ago))
            });
            let heard: Vec<(u8, Duration)> = heard.collect();
            let Some(ago) = heard.iter().map(|(_, ago)| *ago).min() else { return Ok((now, said)) };
            // It has come since this began to ask: whoever that is lives.
            if ago < asked.duration_since(begun) || begun.elapsed() > 2 * LEASE {
                // The first by number, and not when: asked again, the same is said.
                let message = format!(
                    "{} has heard of another controller, which serves volume {} or is about to",
                    now.voter_name(heard[0].0),
                    now.name
                );
                return Err(ErrorDetail::new(Kind::InUse, message).with("volume", &now.name).remedy(format!(
                    "where it is served: braid volume show {0}; braid volume detach {0} there, or open it by force on that node",
                    now.name
                )));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Asks all voters of a volume what they remember, by the newest list of them that any node has.
    async fn ask_all_voters(&self, volume: &SavedReplicated) -> (SavedReplicated, Said) {
        self.go_by_votes(volume.uuid).await;
        let volume = self.read().replicated.get(&volume.uuid).cloned().unwrap_or_else(|| volume.clone());
        let ask = |number: u8, since: u64| {
            let volume = &volume;
            async move {
                let replica = self.replica_of(volume, number).await.ok()?;
                let register = words::register(replica.register.clone()?).ok()?;
                let boot = replica.boot.parse().ok()?;
                let is_it = replica.voter == number && register.since == since;
                is_it.then_some((number, (replica, register, boot)))
            }
        };
        let asked = volume.seated().map(|(number, voter)| ask(number, voter.since));
        let said = join_all(asked).await.into_iter().flatten().collect();
        (volume, said)
    }

    /// What a node keeps of a volume.
    pub(super) async fn replica_of(&self, volume: &SavedReplicated, number: u8) -> Result<Replica, ErrorDetail> {
        let path = format!("/v1/replicas/{}", volume.uuid);
        let voter = volume.voters.get(&number).ok_or_else(|| ErrorDetail::new(Kind::NotFound, "no such voter"))?;
        let answer = self.nodes().call(&voter.node, Method::GET, &path, None).await?;
        serde_json::from_value(answer).map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))
    }
}

/// What is said before anything is done.
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
            "it is served from {from}, in sync by the newest vote that is known here: if it was left out later, which only those know that do not answer, what was acknowledged since is lost"
        ),
        false => format!(
            "it is served from {from}, which is not in sync by the newest vote that is known here: what was acknowledged since it was left out is lost"
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
            "if any node still serves volume {name} with their votes, it goes on, and there are two of it: make sure that they are down"
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

fn no_data(volume: &SavedReplicated, said: &Said) -> ErrorDetail {
    let name = &volume.name;
    let answer: Vec<String> = said.keys().map(|number| volume.voter_name(*number)).collect();
    let message = match answer.is_empty() {
        true => format!("no voter of volume {name} answers"),
        false => format!(
            "of volume {name} {} answer, and {} of those that were in sync are needed for its data",
            answer.join(", "),
            match volume.least() {
                1 => "one".to_owned(),
                least => least.to_string(),
            }
        ),
    };
    ErrorDetail::new(Kind::Incomplete, message).with("volume", name).remedy(
        "a replica that is out can still be read on its node: braid snapshot create POOL/VOLUME@NAME there, and a clone of that",
    )
}
