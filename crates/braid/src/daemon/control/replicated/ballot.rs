//! Asking the voters of a volume over the nodes' API.

use super::super::Control;
use super::council::{ANSWER_MAX, Ballot, Unanswered};
use super::words::{heard, said, unanswered};
use braid_api::ReplicaAnswer;
use braid_engine::DeviceLease;
use braid_engine::replica::{Answer, Ask, VoterId};
use hyper::Method;
use std::sync::Weak;
use uuid::Uuid;

/// The nodes of a volume's voters: where they are is looked up with each question, as it may change.
pub struct Ballots {
    pub(super) control: Weak<Control>,
    pub(super) volume: Uuid,
}

impl Ballot for Ballots {
    async fn ask(&self, voter: VoterId, ask: Ask) -> Result<Answer, Unanswered> {
        let away = |why: &str| Unanswered::Away(why.to_owned());
        let control = self.control.upgrade().ok_or_else(|| away("the daemon ends"))?;
        let saved =
            control.read().replicated.get(&self.volume).cloned().ok_or_else(|| away("the volume is deleted"))?;
        let node = &saved.voters.get(&voter.0).ok_or_else(|| away("it is not known where it is"))?.node;
        let path = format!("/v1/replicas/{}/ask?wait_ms={}", self.volume, ANSWER_MAX.as_millis());
        // Whoever votes by a list knows it.
        let of_first = !matches!(ask, Ask::Cast { vote, .. } if vote.seating.version > 0);
        let places = if of_first { Vec::new() } else { saved.places() };
        let body = serde_json::to_value(said(ask, places)).map_err(|error| away(&error.to_string()))?;
        let answer = control.nodes().call(node, Method::POST, &path, Some(body)).await;
        let answer = answer.map_err(|error| unanswered(&error))?;
        let answer: ReplicaAnswer =
            serde_json::from_value(answer).map_err(|error| away(&format!("its answer is not understood: {error}")))?;
        if let ReplicaAnswer::Raised { before, places, version, .. } = &answer {
            control.learn_places(self.volume, *version, places, Some(&before.vote.seating));
        }
        heard(answer)
    }

    fn now_ns(&self) -> u64 {
        self.control.upgrade().map_or(u64::MAX, |control| control.ring.lease_ns())
    }

    fn renew(&self, lease: &DeviceLease, until_ns: u64) {
        let Some(control) = self.control.upgrade() else { return };
        let device = control.read().arrays.get(&self.volume).and_then(|entry| Some(entry.active()?.device));
        match device {
            Some(device) => control.ring.renew_lease(device, lease, until_ns),
            // Nobody can have asked it anything yet.
            None => drop(lease.renew(until_ns)),
        }
    }
}
