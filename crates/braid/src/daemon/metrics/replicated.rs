//! Metrics of volumes that are kept on several nodes, by the node that serves them, and of the replicas and witnesses of this node.

use super::super::control::Control;
use super::pools::{Of, families};
use braid_api::{Replica, ReplicaState, ReplicatedState, ReplicatedVolume, VoterState};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;

const REPLICAS: [Of<Replica>; 3] = [
    ("replica_votes", "1 if the replica or witness here votes", None, |replica| {
        f64::from(u8::from(replica.state == ReplicaState::Ready))
    }),
    ("replica_epoch", "The epoch that it answers; 0: none yet, or it does not vote", None, |replica| {
        replica.register.as_ref().map_or(0.0, |register| register.epoch as f64)
    }),
    ("replica_connections", "Connections of controllers to it", None, |replica| f64::from(replica.connections)),
];

/// What only the node knows that serves a volume, or is about to.
const SERVED: [Of<ReplicatedVolume>; 6] = [
    ("replicated_serving", "1 if this node serves the volume; 0: it opens it", None, |volume| {
        f64::from(u8::from(volume.state == ReplicatedState::Serving))
    }),
    ("replicated_epoch", "The epoch in which it is served", None, |volume| volume.epoch as f64),
    ("replicated_voters", "Its replicas and witnesses", None, |volume| volume.voters.len() as f64),
    ("replicated_voters_answering", "Those of them that answer", None, |volume| {
        volume.voters.iter().filter(|voter| voter.answers).count() as f64
    }),
    ("replicated_replicas", "Its replicas", None, |volume| {
        volume.voters.iter().filter(|voter| voter.pool.is_some()).count() as f64
    }),
    ("replicated_replicas_in_sync", "Those of them that have everything", None, |volume| {
        volume.voters.iter().filter(|voter| voter.state == VoterState::InSync).count() as f64
    }),
];

pub(super) fn encode(control: &Control, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let replicas = control.replicas().replicas;
    let of = |replica: &Replica| [("replica", replica.name.clone()), ("volume", replica.volume.clone())];
    families(encoder, &REPLICAS, || replicas.iter().map(|replica| (of(replica), replica)))?;
    let volumes = control.replicated_volumes().volumes;
    let served = || volumes.iter().filter(|volume| volume.state != ReplicatedState::Detached);
    families(encoder, &SERVED, || served().map(|volume| ([("volume", volume.name.clone())], volume)))?;
    let (name, help) = ("replicated_lease_left", "So long it may go on without its voters; 0: it waits for them");
    let mut lease = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
    for volume in served() {
        let Some(left) = control.lease_left(&volume.uuid) else { continue };
        let labels = [("volume", volume.name.as_str())];
        ConstGauge::new(left.as_secs_f64()).encode(lease.encode_family(&labels)?)?;
    }
    let (name, help) = ("replicated_behind", "What a replica that is being filled lacks");
    let mut behind = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
    for volume in served() {
        let Ok(array) = control.array(&volume.uuid) else { continue };
        for (voter, member) in volume.voters.iter().zip(&array.members) {
            // Of one that is out nobody knows that.
            let left = match (voter.state, member.progress) {
                (VoterState::InSync, _) => 0,
                (VoterState::Filling, Some(progress)) => super::left(progress),
                _ => continue,
            };
            let labels = [("volume", volume.name.as_str()), ("node", voter.node.as_str())];
            ConstGauge::new(left as f64).encode(behind.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
