//! Sends requests to the voters of a volume over the nodes' API.

use crate::ReplicationManager;
use crate::replicated::messages::{from_api, to_api, to_error};
use crate::replicated::voters::{REPLY_MAX, VoterError, VoterTransport};
use braid_api::ReplicaReply;
use braid_engine::DeviceLease;
use braid_engine::replica::{VoterId, VoterReply, VoterRequest};
use hyper::Method;
use std::sync::Weak;
use uuid::Uuid;

/// The voters of a volume on their nodes. A voter's node is looked up at each request, since it may change.
pub(crate) struct NodeTransport {
    pub(crate) manager: Weak<ReplicationManager>,
    pub(crate) volume: Uuid,
}

impl VoterTransport for NodeTransport {
    async fn send(&self, voter: VoterId, ask: VoterRequest) -> Result<VoterReply, VoterError> {
        let unreachable = |why: &str| VoterError::Unreachable(why.to_owned());
        let manager = self.manager.upgrade().ok_or_else(|| unreachable("the daemon ends"))?;
        let saved = manager
            .inventory
            .read()
            .replicated
            .get(&self.volume)
            .cloned()
            .ok_or_else(|| unreachable("the volume is deleted"))?;
        let node = &saved.voters.get(&voter.0).ok_or_else(|| unreachable("it is not known where it is"))?.node;
        let path = format!("/v1/replicas/{}/request?wait_ms={}", self.volume, REPLY_MAX.as_millis());
        // A voter that votes on a membership receives its locations with the request.
        let of_first = !matches!(ask, VoterRequest::Cast { vote, .. } if vote.config.version > 0);
        let locations = if of_first { Vec::new() } else { saved.locations() };
        let body = serde_json::to_value(to_api(ask, locations)).map_err(|error| unreachable(&error.to_string()))?;
        let reply = manager.nodes.call(node, Method::POST, &path, Some(body)).await;
        let reply = reply.map_err(|error| to_error(&error))?;
        let reply: ReplicaReply = serde_json::from_value(reply)
            .map_err(|error| unreachable(&format!("its answer is not understood: {error}")))?;
        if let ReplicaReply::Raised { before, locations, version, .. } = &reply {
            manager.learn_locations(self.volume, *version, locations, Some(&before.vote.membership));
        }
        from_api(reply)
    }

    fn now_ns(&self) -> u64 {
        self.manager.upgrade().map_or(u64::MAX, |manager| manager.ring.lease_ns())
    }

    fn renew(&self, lease: &DeviceLease, until_ns: u64) {
        let Some(manager) = self.manager.upgrade() else { return };
        let device = manager.inventory.read().arrays.get(&self.volume).and_then(|entry| Some(entry.active()?.device));
        match device {
            Some(device) => manager.ring.renew_lease(device, lease, until_ns),
            // The volume is not served yet: the device has no requests.
            None => drop(lease.renew(until_ns)),
        }
    }
}
