//! Sends requests to the voters of a volume over the nodes' API.

use crate::voters::messages::{from_api, to_api, to_error};
use crate::voters::{REPLY_MAX, VoterError, VoterTransport};
use braid_api::{ReplicaLocation, ReplicaMembership, ReplicaReply};
use braid_cluster::Nodes;
use braid_engine::replica::{VoterId, VoterReply, VoterRequest};
use braid_engine::{DeviceId, DeviceLease};
use braid_inventory::SavedReplicated;
use braid_ring::RingHandle;
use hyper::Method;
use std::sync::{Arc, Weak};
use uuid::Uuid;

/// What this node knows of the volumes whose voters it sends requests to.
pub(crate) trait VoterDirectory: Send + Sync + 'static {
    /// Returns a volume with the locations of its voters; `None` if this node does not know it any more.
    fn known_volume(&self, volume: Uuid) -> Option<SavedReplicated>;

    /// Records the locations of a volume's voters from a reply, with their version and the membership of the replying
    /// voter's vote. Locations that are no newer than the known ones are ignored.
    fn learn_locations(
        &self,
        volume: Uuid,
        version: u64,
        locations: &[ReplicaLocation],
        vote: Option<&ReplicaMembership>,
    );

    /// Returns the device of a volume; `None` while this node does not serve it.
    fn served_device(&self, volume: Uuid) -> Option<DeviceId>;
}

/// The voters of a volume on their nodes. A voter's node is looked up at each request, since it may change.
pub(crate) struct NodeTransport {
    /// Weak, since it owns the voters of each volume that it serves, and they own their transport.
    directory: Weak<dyn VoterDirectory>,
    nodes: Arc<Nodes>,
    ring: RingHandle,
    volume: Uuid,
}

impl NodeTransport {
    /// Returns the transport to the voters of a volume. `directory` has their locations.
    pub(crate) fn new(
        directory: Weak<dyn VoterDirectory>,
        nodes: &Arc<Nodes>,
        ring: &RingHandle,
        volume: Uuid,
    ) -> NodeTransport {
        NodeTransport { directory, nodes: Arc::clone(nodes), ring: ring.clone(), volume }
    }
}

impl VoterTransport for NodeTransport {
    async fn send(&self, voter: VoterId, ask: VoterRequest) -> Result<VoterReply, VoterError> {
        let unreachable = |why: &str| VoterError::Unreachable(why.to_owned());
        let directory = self.directory.upgrade().ok_or_else(|| unreachable("the daemon ends"))?;
        let saved = directory.known_volume(self.volume).ok_or_else(|| unreachable("the volume is deleted"))?;
        let node = &saved.voters.get(&voter.0).ok_or_else(|| unreachable("it is not known where it is"))?.node;
        let path = format!("/v1/replicas/{}/request?wait_ms={}", self.volume, REPLY_MAX.as_millis());
        // A voter that votes on a membership receives its locations with the request.
        let of_first = !matches!(ask, VoterRequest::Cast { vote, .. } if vote.config.version > 0);
        let locations = if of_first { Vec::new() } else { saved.locations() };
        let body = serde_json::to_value(to_api(ask, locations)).map_err(|error| unreachable(&error.to_string()))?;
        let reply = self.nodes.call(node, Method::POST, &path, Some(body)).await;
        let reply = reply.map_err(|error| to_error(&error))?;
        let reply: ReplicaReply = serde_json::from_value(reply)
            .map_err(|error| unreachable(&format!("its answer is not understood: {error}")))?;
        if let ReplicaReply::Raised { before, locations, version, .. } = &reply {
            directory.learn_locations(self.volume, *version, locations, Some(&before.vote.membership));
        }
        from_api(reply)
    }

    fn now_ns(&self) -> u64 {
        self.ring.lease_ns()
    }

    fn renew(&self, lease: &DeviceLease, until_ns: u64) {
        let Some(directory) = self.directory.upgrade() else { return };
        match directory.served_device(self.volume) {
            Some(device) => self.ring.renew_lease(device, lease, until_ns),
            // The volume is not served yet: the device has no requests.
            None => drop(lease.renew(until_ns)),
        }
    }
}
