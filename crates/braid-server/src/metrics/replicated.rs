//! Metrics of replicated volumes, by the node that serves them, and of the replicas and witnesses of this node.

use super::ReplicatedMetrics;
use super::pools::{GaugeOf, encode_families};
use braid_api::{Member, Replica, ReplicaState, ReplicatedState, ReplicatedVolume, Voter, VoterState};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;

const REPLICAS: [GaugeOf<Replica>; 3] = [
    ("replica_votes", "1 if the replica or witness here votes", None, |replica| {
        f64::from(u8::from(replica.state == ReplicaState::Ready))
    }),
    ("replica_epoch", "The epoch that it answers; 0: none yet, or it does not vote", None, |replica| {
        replica.register.as_ref().map_or(0.0, |register| register.epoch as f64)
    }),
    ("replica_connections", "Connections of controllers to it", None, |replica| f64::from(replica.connections)),
];

/// Metrics that only the node has that serves a volume, or is about to serve it.
const SERVED: [GaugeOf<ReplicatedVolume>; 6] = [
    ("replicated_serving", "1 if this node serves the volume; 0 while it is attaching it", None, |volume| {
        f64::from(u8::from(volume.state == ReplicatedState::Serving))
    }),
    ("replicated_epoch", "The epoch in which it is served", None, |volume| volume.epoch as f64),
    ("replicated_voters", "Its replicas and witnesses", None, |volume| volume.voters.len() as f64),
    ("replicated_voters_reachable", "Those of them that answer", None, |volume| {
        volume.voters.iter().filter(|voter| voter.reachable).count() as f64
    }),
    ("replicated_replicas", "Its replicas", None, |volume| {
        volume.voters.iter().filter(|voter| voter.pool.is_some()).count() as f64
    }),
    ("replicated_replicas_in_sync", "Those of them that have everything", None, |volume| {
        volume.voters.iter().filter(|voter| voter.state == VoterState::InSync).count() as f64
    }),
];

/// Encodes the metrics of replicated volumes and of the replicas here.
pub(super) fn encode(
    replicas: &[Replica],
    served: &[ReplicatedMetrics],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let of = |replica: &Replica| [("replica", replica.name.clone()), ("volume", replica.volume.clone())];
    encode_families(encoder, &REPLICAS, || replicas.iter().map(|replica| (of(replica), replica)))?;
    let volumes = || served.iter().map(|served| &served.volume);
    encode_families(encoder, &SERVED, || volumes().map(|volume| ([("volume", volume.name.clone())], volume)))?;
    let (name, help) = (
        "replicated_lease_left",
        "Remaining time of its lease, in which it serves without its voters; 0: it waits for them",
    );
    let mut lease = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
    for ReplicatedMetrics { volume, lease_left, .. } in served {
        let Some(left) = lease_left else { continue };
        let labels = [("volume", volume.name.as_str())];
        ConstGauge::new(left.as_secs_f64()).encode(lease.encode_family(&labels)?)?;
    }
    let (name, help) = ("replicated_rebuild_left", "Bytes that a replica being rebuilt lacks");
    let mut missing = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
    for ReplicatedMetrics { volume, members, .. } in served {
        let Some(members) = members else { continue };
        for (voter, left) in missing_bytes(volume, members) {
            let labels = [("volume", volume.name.as_str()), ("node", voter.node.as_str())];
            ConstGauge::new(left as f64).encode(missing.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Returns the bytes that each replica lacks. A failed replica is not listed: how many bytes it lacks is not known.
fn missing_bytes<'a>(volume: &'a ReplicatedVolume, members: &[Member]) -> Vec<(&'a Voter, u64)> {
    let left = |voter: &Voter| {
        // Numbers of replicas are slots of the array; a removed replica leaves a gap among them.
        let member = members.iter().find(|member| member.slot == u16::from(voter.voter))?;
        match (voter.state, member.progress) {
            (VoterState::InSync, _) => Some(0),
            (VoterState::Rebuilding, Some(progress)) => Some(super::remaining_bytes(progress)),
            _ => None,
        }
    };
    volume.voters.iter().filter_map(|voter| Some((voter, left(voter)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_bytes_are_found_by_the_replicas_number() {
        let voter = |number: u8, node: &str, state: &str| json!({"voter": number, "node": node, "pool": "tank", "state": state, "reachable": true, "reason": null});
        let volume: ReplicatedVolume = serde_json::from_value(json!({
            "uuid": "", "name": "db", "size_bytes": 100, "level": "raid1", "state": "serving", "epoch": 1, "exports": [], "attention": [],
            "voters": [voter(0, "one", "in_sync"), voter(2, "three", "rebuilding"), voter(3, "four", "failed")],
        }))
        .expect("it is one");
        // The replica of number 1 was removed: its slot has no member, or does not exist.
        let member = |role: u16, state: &str, done: Option<u64>| -> Member {
            let progress = done.map(
                |done| json!({"done_bytes": done, "total_bytes": 100, "rate_bytes_per_s": 0, "remaining_s": null}),
            );
            serde_json::from_value(json!({
                "slot": role, "uuid": "", "disk": null, "state": state, "data_bytes": 100, "data_offset_bytes": null, "stats": null,
                "progress": progress,
            }))
            .expect("it is one")
        };
        let of = |members: &[Member]| -> Vec<(String, u64)> {
            missing_bytes(&volume, members).into_iter().map(|(voter, left)| (voter.node.clone(), left)).collect()
        };
        let wanted = [("one".to_owned(), 0), ("three".to_owned(), 70)];
        let (first, third, fourth) =
            (member(0, "in_sync", None), member(2, "rebuilding", Some(30)), member(3, "failed", None));
        let gap = member(1, "vacant", None);
        assert_eq!(of(&[first.clone(), gap, third.clone(), fourth.clone()]), wanted);
        assert_eq!(of(&[first, third, fourth]), wanted);
    }
}
