//! Metrics of pools and of their volumes. Nobody is asked for them: they are what was looked at last.

use super::super::control::Control;
use super::super::control::pools::{PoolMeasured, ServedMeasured, VolumeMeasured};
use braid_api::PoolState;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;

/// What is told of each pool, or of each that serves.
pub(super) type Of<T> = (&'static str, &'static str, Option<&'static Unit>, fn(&T) -> f64);

const ALL: [Of<PoolMeasured>; 4] = [
    ("pool_active", "1 if the pool serves, and can make durable what is written", None, |pool| {
        f64::from(u8::from(pool.state == PoolState::Active))
    }),
    ("pool_attention", "Things about the pool that need attention", None, |pool| pool.attention as f64),
    ("pool_members", "Members of the pool", None, |pool| pool.members.0 as f64),
    ("pool_members_present", "Members that are there", None, |pool| pool.members.1 as f64),
];

const SERVED: [Of<ServedMeasured>; 17] = [
    ("pool_size", "What its members have for data of volumes", Some(&Unit::Bytes), |pool| {
        pool.members.iter().map(|(_, size, _)| *size).sum::<u64>() as f64
    }),
    ("pool_allocated", "What of that is handed out, or not yet free again", Some(&Unit::Bytes), |pool| {
        pool.members.iter().map(|(.., used)| *used).sum::<u64>() as f64
    }),
    ("pool_free", "What can be handed out now", Some(&Unit::Bytes), |pool| pool.free_bytes as f64),
    ("pool_reserved", "What is free and kept for thick volumes", Some(&Unit::Bytes), |pool| pool.reserved_bytes as f64),
    ("pool_used_ratio", "What is handed out or kept of members that take new blocks, from 0 to 1", None, |pool| {
        pool.used_ratio
    }),
    ("pool_promised", "What its volumes would take if all of them were written", Some(&Unit::Bytes), |pool| {
        pool.contents.promised_bytes as f64
    }),
    ("pool_volumes", "Volumes of the pool", None, |pool| pool.contents.volumes as f64),
    ("pool_snapshots", "Snapshots in the pool", None, |pool| pool.contents.snapshots as f64),
    ("pool_exported", "Volumes and snapshots that are exported", None, |pool| pool.exported as f64),
    ("pool_owners", "Places taken by volumes and snapshots", None, |pool| pool.owners.0 as f64),
    ("pool_owners_max", "Places that there are for volumes and snapshots", None, |pool| pool.owners.1 as f64),
    ("pool_zero_ranges", "Records that say of blocks that they read as zeros", None, |pool| pool.zero_records.0 as f64),
    ("pool_zero_ranges_max", "How many of these there can be", None, |pool| pool.zero_records.1 as f64),
    ("pool_uncommitted", "1 if something that was acknowledged is in the tail alone", None, |pool| {
        f64::from(u8::from(pool.is_hot))
    }),
    ("pool_tail_lost", "1 since its tail was lost, until the daemon is restarted", None, |pool| {
        f64::from(u8::from(pool.has_lost_tail))
    }),
    ("pool_policies", "Volumes of which snapshots are taken by themselves", None, |pool| pool.policies.0 as f64),
    ("pool_policies_failing", "Those of them of which none can be taken", None, |pool| pool.policies.1 as f64),
];

const VOLUMES: [Of<VolumeMeasured>; 5] = [
    ("volume_size", "Its size", Some(&Unit::Bytes), |volume| volume.size_bytes as f64),
    ("volume_allocated", "What it has of its own, written since its last snapshot", Some(&Unit::Bytes), |volume| {
        volume.allocated_bytes as f64
    }),
    ("volume_snapshots", "Snapshots of the volume", None, |volume| volume.snapshots as f64),
    ("volume_snapshots_allocated", "What stands under their names", Some(&Unit::Bytes), |volume| {
        volume.snapshots_allocated_bytes as f64
    }),
    ("volume_newest_snapshot", "When the last one was taken, in Unix time; 0: none", Some(&Unit::Seconds), |volume| {
        volume.newest_unix_s as f64
    }),
];

/// Pools, and what is in them.
pub(super) fn encode(control: &Control, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let pools = control.pools_measured();
    families(encoder, &ALL, || pools.iter().map(|pool| ([("pool", pool.name.clone())], pool)))?;
    let mut family =
        encoder.encode_descriptor("pool_state", "1 for the state that it is in", None, MetricType::Gauge)?;
    for pool in &pools {
        for state in [PoolState::Active, PoolState::Incomplete, PoolState::Failed] {
            let labels = [("pool", pool.name.as_str()), ("state", state.word())];
            ConstGauge::new(i64::from(pool.state == state)).encode(family.encode_family(&labels)?)?;
        }
    }
    let served = || pools.iter().filter_map(|pool| Some((pool.name.clone(), pool.served.as_ref()?)));
    families(encoder, &SERVED, || served().map(|(name, served)| ([("pool", name)], served)))?;
    type Member = (u8, u64, u64);
    let members: [Of<Member>; 2] = [
        ("pool_member_size", "What a member has for data of volumes", Some(&Unit::Bytes), |member| member.1 as f64),
        ("pool_member_allocated", "What of that is handed out", Some(&Unit::Bytes), |member| member.2 as f64),
    ];
    families(encoder, &members, || {
        served().flat_map(|(name, served)| {
            let labels = move |member: &Member| [("pool", name.clone()), ("member", member.0.to_string())];
            served.members.iter().map(move |member| (labels(member), member))
        })
    })?;
    families(encoder, &VOLUMES, || {
        served().flat_map(|(pool, served)| {
            let labels = move |name: &str| [("pool", pool.clone()), ("volume", format!("{pool}/{name}"))];
            served.contents.each.iter().map(move |volume| (labels(&volume.name), volume))
        })
    })
}

/// A family of gauges for each of these, with a value for each thing.
pub(super) fn families<'a, T: 'a, const N: usize, I: Iterator<Item = ([(&'static str, String); N], &'a T)>>(
    encoder: &mut DescriptorEncoder<'_>,
    what: &[Of<T>],
    things: impl Fn() -> I,
) -> fmt::Result {
    for (name, help, unit, value) in what {
        let mut family = encoder.encode_descriptor(name, help, *unit, MetricType::Gauge)?;
        for (labels, thing) in things() {
            ConstGauge::new(value(thing)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
