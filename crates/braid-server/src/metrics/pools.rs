//! Metrics of pools and their volumes, from the latest measurement: a scrape causes no I/O.

use braid_api::{PoolMeasured, PoolState, ServedMeasured, VolumeMeasured};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;

/// A gauge: its name, help, unit and value.
pub(super) type GaugeOf<T> = (&'static str, &'static str, Option<&'static Unit>, fn(&T) -> f64);

const ALL: [GaugeOf<PoolMeasured>; 4] = [
    ("pool_active", "1 if the pool serves, and can make durable what is written", None, |pool| {
        f64::from(u8::from(pool.state == PoolState::Active))
    }),
    ("pool_attention", "Things about the pool that need attention", None, |pool| pool.attention as f64),
    ("pool_members", "Members of the pool", None, |pool| pool.members.0 as f64),
    ("pool_members_present", "Members that are there", None, |pool| pool.members.1 as f64),
];

const SERVED: [GaugeOf<ServedMeasured>; 17] = [
    ("pool_size", "Bytes of its members for data of volumes", Some(&Unit::Bytes), |pool| {
        pool.members.iter().map(|(_, size, _)| *size).sum::<u64>() as f64
    }),
    ("pool_allocated", "Bytes of that which are allocated, or not free again yet", Some(&Unit::Bytes), |pool| {
        pool.members.iter().map(|(.., used)| *used).sum::<u64>() as f64
    }),
    ("pool_free", "Bytes that can be allocated now", Some(&Unit::Bytes), |pool| pool.free_bytes as f64),
    ("pool_reserved", "What is free and kept for thick volumes", Some(&Unit::Bytes), |pool| pool.reserved_bytes as f64),
    (
        "pool_used_ratio",
        "Allocated or reserved share of the members that accept new blocks, from 0 to 1",
        None,
        |pool| pool.used_ratio,
    ),
    (
        "pool_provisioned",
        "Bytes that its volumes would allocate if they were fully written",
        Some(&Unit::Bytes),
        |pool| pool.contents.provisioned_bytes as f64,
    ),
    ("pool_volumes", "Volumes of the pool", None, |pool| pool.contents.volumes as f64),
    ("pool_snapshots", "Snapshots in the pool", None, |pool| pool.contents.snapshots as f64),
    ("pool_exported", "Volumes and snapshots that are exported", None, |pool| pool.exported as f64),
    ("pool_owners", "Slots in use by volumes and snapshots", None, |pool| pool.owners.0 as f64),
    ("pool_owners_max", "Maximum slots for volumes and snapshots", None, |pool| pool.owners.1 as f64),
    ("pool_zero_ranges", "Records of ranges that read as zeros", None, |pool| pool.zero_records.0 as f64),
    ("pool_zero_ranges_max", "Maximum records of ranges that read as zeros", None, |pool| pool.zero_records.1 as f64),
    ("pool_uncommitted", "1 if acknowledged writes are only in the in-memory log", None, |pool| {
        f64::from(u8::from(pool.has_uncommitted))
    }),
    ("pool_memory_log_lost", "1 after its in-memory log was lost, until the daemon is restarted", None, |pool| {
        f64::from(u8::from(pool.has_lost_log))
    }),
    ("pool_policies", "Volumes with a snapshot schedule", None, |pool| pool.policies.0 as f64),
    ("pool_policies_failing", "Volumes whose snapshot schedule fails", None, |pool| pool.policies.1 as f64),
];

const VOLUMES: [GaugeOf<VolumeMeasured>; 5] = [
    ("volume_size", "Its size", Some(&Unit::Bytes), |volume| volume.size_bytes as f64),
    ("volume_allocated", "What it has of its own, written since its last snapshot", Some(&Unit::Bytes), |volume| {
        volume.allocated_bytes as f64
    }),
    ("volume_snapshots", "Snapshots of the volume", None, |volume| volume.snapshots as f64),
    ("volume_snapshots_allocated", "Bytes that its snapshots hold exclusively", Some(&Unit::Bytes), |volume| {
        volume.snapshots_allocated_bytes as f64
    }),
    ("volume_newest_snapshot", "When the last one was taken, in Unix time; 0: none", Some(&Unit::Seconds), |volume| {
        volume.newest_unix_s as f64
    }),
];

/// Encodes the metrics of pools and their volumes.
pub(super) fn encode(pools: &[PoolMeasured], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    encode_families(encoder, &ALL, || pools.iter().map(|pool| ([("pool", pool.name.clone())], pool)))?;
    let mut family =
        encoder.encode_descriptor("pool_state", "1 for the state that it is in", None, MetricType::Gauge)?;
    for pool in pools {
        for state in [PoolState::Active, PoolState::Incomplete, PoolState::Failed] {
            let labels = [("pool", pool.name.as_str()), ("state", state.word())];
            ConstGauge::new(i64::from(pool.state == state)).encode(family.encode_family(&labels)?)?;
        }
    }
    let served = || pools.iter().filter_map(|pool| Some((pool.name.clone(), pool.served.as_ref()?)));
    encode_families(encoder, &SERVED, || served().map(|(name, served)| ([("pool", name)], served)))?;
    type Member = (u8, u64, u64);
    let members: [GaugeOf<Member>; 2] = [
        ("pool_member_size", "Bytes of a member for data of volumes", Some(&Unit::Bytes), |member| member.1 as f64),
        ("pool_member_allocated", "What of that is handed out", Some(&Unit::Bytes), |member| member.2 as f64),
    ];
    encode_families(encoder, &members, || {
        served().flat_map(|(name, served)| {
            let labels = move |member: &Member| [("pool", name.clone()), ("member", member.0.to_string())];
            served.members.iter().map(move |member| (labels(member), member))
        })
    })?;
    encode_families(encoder, &VOLUMES, || {
        served().flat_map(|(pool, served)| {
            let labels = move |name: &str| [("pool", pool.clone()), ("volume", format!("{pool}/{name}"))];
            served.contents.each.iter().map(move |volume| (labels(&volume.name), volume))
        })
    })
}

/// Encodes a family for each gauge, with a sample for each object.
pub(super) fn encode_families<'a, T: 'a, const N: usize, I: Iterator<Item = ([(&'static str, String); N], &'a T)>>(
    encoder: &mut DescriptorEncoder<'_>,
    gauges: &[GaugeOf<T>],
    objects: impl Fn() -> I,
) -> fmt::Result {
    for (name, help, unit, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, *unit, MetricType::Gauge)?;
        for (labels, object) in objects() {
            ConstGauge::new(value(object)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
