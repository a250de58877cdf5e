//! What metrics show, taken from the counters at each scrape. Causes no I/O.

use crate::Daemon;
use braid_api::{Export, ReplicatedState, ReplicatedVolume, Severity};
use braid_export::RequestClass;
use braid_exports::show_export;
use braid_inventory::{ExportCondition, disk_state};
use braid_server::{DiskMetrics, ExportLatencies, MetricsSnapshot, ReplicatedMetrics};
use std::sync::Arc;

/// Takes a snapshot of everything that metrics show.
pub fn snapshot(daemon: &Daemon) -> MetricsSnapshot {
    let events = daemon.inventory.events();
    MetricsSnapshot {
        status: daemon.status(),
        is_state_saved: daemon.inventory.is_state_saved(),
        started_unix_ms: daemon.inventory.started_unix_ms(),
        events: [Severity::Info, Severity::Warning, Severity::Error].map(|severity| (severity, events.count(severity))),
        events_lost: events.lost(),
        api_refused: daemon.network_refusals(),
        api_certificate_expiry_unix_s: daemon.certificate_expiry_unix_s(),
        nbd_certificate_expiry_unix_s: daemon.nbd_certificate_expiry_unix_s(),
        arrays: daemon.arrays.arrays().arrays,
        pools: daemon.pools.pools_measured(),
        replicas: daemon.replication.replicas().replicas,
        replicated: replicated(daemon),
        nodes: daemon.nodes.list().nodes,
        exports: daemon.exports.exports().exports,
        export_latencies: export_latencies(daemon),
        disks: disks(daemon),
    }
}

fn replicated(daemon: &Daemon) -> Vec<ReplicatedMetrics> {
    let volumes = daemon.replication.replicated_volumes().volumes.into_iter();
    let served = volumes.filter(|volume| volume.state != ReplicatedState::Detached);
    let metrics = |volume: ReplicatedVolume| ReplicatedMetrics {
        lease_left: daemon.replication.lease_left(&volume.uuid),
        members: daemon.arrays.array(&volume.uuid).ok().map(|array| array.members),
        volume,
    };
    served.map(metrics).collect()
}

fn export_latencies(daemon: &Daemon) -> Vec<ExportLatencies> {
    let served: Vec<_> = {
        let tables = daemon.inventory.read();
        let served = tables.exports.values().filter_map(|entry| match &entry.serving {
            ExportCondition::Listening(export) => {
                let Export { name, array, .. } = show_export(&tables, entry);
                Some((name, array, Arc::clone(export)))
            }
            _ => None,
        });
        served.collect()
    };
    let latencies = served.into_iter().map(|(name, array, export)| ExportLatencies {
        export: name,
        array,
        read: export.latency(RequestClass::Read),
        write: export.latency(RequestClass::Write),
        other: export.latency(RequestClass::Other),
    });
    latencies.collect()
}

fn disks(daemon: &Daemon) -> Vec<DiskMetrics> {
    let tables = daemon.inventory.read();
    let of_arrays = tables.open_disks().map(|(entry, role, disk)| (entry.name.clone(), role, disk));
    let of_pools = tables.pool_disks_open().map(|(pool, number, disk)| (pool.name.clone(), number.into(), disk));
    let metrics = of_arrays.chain(of_pools).filter_map(|(owner, role, disk)| {
        Some(DiskMetrics {
            owner,
            slot: role.to_string(),
            disk: disk.name.clone(),
            state: disk_state(disk).0,
            stats: daemon.ring.leaf_stats(disk.leaf)?,
        })
    });
    metrics.collect()
}
