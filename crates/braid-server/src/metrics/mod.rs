//! Prometheus metrics, in the OpenMetrics text format and in the older text format, rendered from the counters at each
//! scrape.

mod pools;
mod replicated;
mod snapshot;

use braid_api::{
    Array, ArrayState, DiskState, Export, ExportState, ExportStats, Health, Member, MemberState, Node, NodeState,
    Progress, Redundancy,
};
use braid_ring::stats::{Histogram, LeafStats, bucket_floor_ns};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeSet;
use std::fmt;

pub use snapshot::{DiskMetrics, ExportLatencies, MetricsSnapshot, ReplicatedMetrics};

/// Upper bounds of the latency buckets, in powers of two of nanoseconds: from 4 µs to 17 s.
const LATENCY_POWERS: std::ops::RangeInclusive<u32> = 12..=34;

/// Renders metrics.
pub fn render(snapshot: MetricsSnapshot) -> String {
    let mut registry = Registry::with_prefix("braid");
    registry.register_collector(Box::new(Scrape(snapshot)));
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => text,
        // Writing to a String does not fail; if it did, an empty scrape would show it.
        Err(error) => format!("# {error}\n# EOF\n"),
    }
}

/// Converts to the text format before OpenMetrics: there the family of a counter has the name of its samples, and the
/// format has neither units nor an end mark.
pub fn classic(text: &str) -> String {
    let mut counters = BTreeSet::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            counters.insert(name);
        }
    }
    let mut classic = String::with_capacity(text.len());
    for line in text.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest)) if counters.contains(name) => {
                classic.push_str(&format!("# {what} {name}_total {rest}\n"));
            }
            _ => {
                classic.push_str(line);
                classic.push('\n');
            }
        }
    }
    classic
}

struct Scrape(MetricsSnapshot);

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = &self.0;
        let status = &snapshot.status;
        let gauge = |encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64| {
            let metric = ConstGauge::new(value as i64);
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge(&mut encoder, "arrays", "Arrays known", status.arrays.total)?;
        gauge(&mut encoder, "arrays_active", "Arrays that serve", status.arrays.serving)?;
        gauge(&mut encoder, "exports", "Exports known", status.exports.total)?;
        gauge(&mut encoder, "exports_listening", "Exports that clients can use", status.exports.serving)?;
        gauge(&mut encoder, "connections", "Clients connected", status.connections)?;
        gauge(&mut encoder, "attention", "Things that need attention", status.attention.len() as u64)?;
        let saved = u64::from(snapshot.is_state_saved);
        gauge(&mut encoder, "state_saved", "1 if the state file holds the newest state", saved)?;
        daemon(snapshot, &mut encoder)?;
        arrays(&snapshot.arrays, &mut encoder)?;
        pools::encode(&snapshot.pools, &mut encoder)?;
        replicated::encode(&snapshot.replicas, &snapshot.replicated, &mut encoder)?;
        nodes(&snapshot.nodes, &mut encoder)?;
        exports(&snapshot.exports, &mut encoder)?;
        export_latencies(&snapshot.export_latencies, &mut encoder)?;
        disks(&snapshot.disks, &mut encoder)
    }
}

/// Encodes one gauge with these labels.
fn gauge_with_labels(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): (&str, &str, Option<&Unit>),
    labels: &[(&str, String)],
    value: f64,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    ConstGauge::new(value).encode(family.encode_family(&labels)?)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

fn daemon(snapshot: &MetricsSnapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let version = [("version", env!("CARGO_PKG_VERSION").to_owned())];
    gauge_with_labels(encoder, ("build_info", "Always 1; the version is a label", None), &version, 1.0)?;
    let started = snapshot.started_unix_ms as f64 / 1e3;
    gauge_with_labels(
        encoder,
        ("start_time", "When the daemon started, in Unix time", Some(&Unit::Seconds)),
        &[],
        started,
    )?;
    let mut family = encoder.encode_descriptor("events", "Events", None, MetricType::Counter)?;
    for (severity, count) in snapshot.events {
        let labels = [("severity", severity.word())];
        ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
    }
    let lost = snapshot.events_lost;
    counter(encoder, "events_lost", "Events that were dropped before a follower received them", lost)?;
    if let Some(refused) = snapshot.api_refused {
        counter(encoder, "api_refused", "Requests and connections of the network that the API refused", refused)?;
    }
    if let Some(expiry) = snapshot.api_certificate_expiry_unix_s {
        let what = ("api_certificate_expiry", "When the API's certificate expires, in Unix time", Some(&Unit::Seconds));
        gauge_with_labels(encoder, what, &[], expiry as f64)?;
    }
    if let Some(expiry) = snapshot.nbd_certificate_expiry_unix_s {
        let help = "When the certificate that exports show expires, in Unix time";
        gauge_with_labels(encoder, ("nbd_certificate_expiry", help, Some(&Unit::Seconds)), &[], expiry as f64)?;
    }
    Ok(())
}

fn nodes(nodes: &[Node], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut up = encoder.encode_descriptor("node_up", "1 if the node answers", None, MetricType::Gauge)?;
    for node in nodes {
        let is_up = i64::from(node.state == NodeState::Reachable);
        ConstGauge::new(is_up).encode(up.encode_family(&[("node", node.name.as_str())])?)?;
    }
    let (name, help) = ("node_certificate_expiry", "When the node's certificate expires, in Unix time");
    let mut expiry = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
    for node in nodes {
        let Some(ends_unix_s) = node.certificate_expires_unix_s else { continue };
        ConstGauge::new(ends_unix_s as f64).encode(expiry.encode_family(&[("node", node.name.as_str())])?)?;
    }
    Ok(())
}

fn arrays(arrays: &[Array], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Value = fn(&Array) -> u64;
    let gauges: [(&str, &str, Option<&Unit>, Value); 5] = [
        ("array_size", "Usable size", Some(&Unit::Bytes), |array| array.size_bytes),
        ("array_active", "1 if the array serves", None, |array| u64::from(array.state == ArrayState::Active)),
        ("array_attention", "Things about the array that need attention", None, |array| array.attention.len() as u64),
        ("array_members", "Members of the array", None, |array| array.members.len() as u64),
        ("array_members_healthy", "Members that are present and healthy", None, |array| {
            // A replacement that is still being rebuilt lacks nothing that the array needs.
            let is_healthy = |member: &&Member| {
                matches!(member.state, MemberState::InSync | MemberState::Spare | MemberState::Journal)
                    || member.replaces.is_some()
            };
            array.members.iter().filter(is_healthy).count() as u64
        }),
    ];
    for (name, help, unit, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for array in arrays {
            ConstGauge::new(value(array) as i64).encode(family.encode_family(&[("array", array.name.as_str())])?)?;
        }
    }
    redundant(arrays, encoder)?;
    let states = [ArrayState::Active, ArrayState::Incomplete, ArrayState::Stopped, ArrayState::Failed];
    let mut family =
        encoder.encode_descriptor("array_state", "1 for the state that it is in", None, MetricType::Gauge)?;
    for array in arrays {
        for state in states {
            let labels = [("array", array.name.as_str()), ("state", state.word())];
            ConstGauge::new(i64::from(array.state == state)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Encodes the metrics of redundant arrays.
fn redundant(arrays: &[Array], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Value = fn(&Array, &Redundancy) -> u64;
    let gauges: [(&str, &str, Option<&Unit>, Value); 7] = [
        (
            "array_damaged_blocks",
            "Blocks of 4 KiB that the last check found and that are not as they should be, or that no member can read",
            None,
            |_, redundancy| redundancy.damaged_blocks,
        ),
        (
            "array_unreadable",
            "Bytes that a crash and a disk failure together have made unreadable, until they are written again",
            Some(&Unit::Bytes),
            |_, redundancy| redundancy.unreadable_bytes,
        ),
        (
            "array_journal_lost",
            "1 after the journal disk was lost, until a command moves the journal",
            None,
            |_, redundancy| u64::from(redundancy.journal.as_ref().is_some_and(|journal| journal.lost_disk.is_some())),
        ),
        (
            "array_degraded",
            "1 while members of a redundant array are failed or being rebuilt",
            None,
            |_, redundancy| u64::from(!matches!(redundancy.health, Health::Whole | Health::Resyncing)),
        ),
        (
            "array_regions_dirty",
            "Dirty regions: written recently, or possibly missing on a failed member",
            None,
            |_, redundancy| redundancy.regions_dirty,
        ),
        (
            "array_resync_left",
            "Bytes that a resync after a crash still has to compare",
            Some(&Unit::Bytes),
            |_, redundancy| redundancy.resync.map_or(0, remaining_bytes),
        ),
        ("array_rebuild_left", "Bytes that members being rebuilt still lack", Some(&Unit::Bytes), |array, _| {
            array.members.iter().filter_map(|member| member.progress).map(remaining_bytes).sum()
        }),
    ];
    for (name, help, unit, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for (array, redundancy) in arrays.iter().filter_map(|array| Some((array, array.redundancy.as_ref()?))) {
            let labels = [("array", array.name.as_str())];
            ConstGauge::new(value(array, redundancy) as i64).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn remaining_bytes(progress: Progress) -> u64 {
    progress.total_bytes - progress.done_bytes
}

fn exports(exports: &[Export], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let labels = |e: &Export| [("export", e.name.clone()), ("array", e.array.clone())];
    type Gauge = fn(&Export) -> u64;
    let gauges: [(&str, &str, Gauge); 2] = [
        ("export_listening", "1 if clients can use the export", |e| u64::from(e.state == ExportState::Listening)),
        ("export_connections", "Clients of the export", |e| u64::from(e.connections)),
    ];
    for (name, help, value) in gauges {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for export in exports {
            ConstGauge::new(value(export) as i64).encode(family.encode_family(&labels(export))?)?;
        }
    }
    type Counter = fn(&ExportStats) -> u64;
    let counters: [(&str, &str, Option<&Unit>, Counter); 7] = [
        ("export_reads", "READs answered", None, |s| s.reads),
        ("export_writes", "WRITEs answered", None, |s| s.writes),
        ("export_others", "Other requests answered", None, |s| s.others),
        ("export_read", "Bytes read", Some(&Unit::Bytes), |s| s.read_bytes),
        ("export_written", "Bytes written", Some(&Unit::Bytes), |s| s.written_bytes),
        ("export_errors", "Requests answered with an error", None, |s| s.errors),
        ("export_refused", "Connections refused because there were too many", None, |s| s.connections_refused),
    ];
    for (name, help, unit, value) in counters {
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
        for export in exports {
            let Some(stats) = &export.stats else { continue };
            ConstCounter::new(value(stats)).encode(family.encode_family(&labels(export))?)?;
        }
    }
    Ok(())
}

/// Encodes the latencies of requests to the serving exports.
fn export_latencies(served: &[ExportLatencies], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Latency = fn(&ExportLatencies) -> &Histogram;
    let histograms: [(&str, &str, Latency); 3] = [
        ("export_read_latency", "Latency of READs, without the wait for the export's limits", |export| &export.read),
        ("export_write_latency", "Latency of WRITEs, without the wait for the export's limits", |export| &export.write),
        ("export_other_latency", "Latency of other requests, without the wait for the export's limits", |export| {
            &export.other
        }),
    ];
    for (name, help, latency) in histograms {
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for export in served {
            let labels = [("export", export.export.as_str()), ("array", export.array.as_str())];
            histogram(family.encode_family(&labels)?, latency(export))?;
        }
    }
    Ok(())
}

/// Returns the labels of a disk.
fn disk_labels(disk: &DiskMetrics) -> [(&'static str, &str); 3] {
    [("array", &disk.owner), ("slot", &disk.slot), ("disk", &disk.disk)]
}

fn disks(disks: &[DiskMetrics], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    type Value = fn(&LeafStats) -> u64;
    let counters: [(&str, &str, Option<&Unit>, Value); 9] = [
        ("disk_reads", "Reads begun", None, |s| s.reads),
        ("disk_writes", "Writes begun", None, |s| s.writes),
        ("disk_write_zeroes", "Ranges zeroed", None, |s| s.write_zeroes),
        ("disk_discards", "Ranges discarded", None, |s| s.discards),
        ("disk_flushes", "Flushes begun", None, |s| s.flushes),
        ("disk_read", "Bytes read", Some(&Unit::Bytes), |s| s.read_bytes),
        ("disk_written", "Bytes written", Some(&Unit::Bytes), |s| s.written_bytes),
        ("disk_errors", "I/Os that failed, or did not end in time", None, |s| s.errors),
        ("disk_timeouts", "I/Os that did not end in time", None, |s| s.late),
    ];
    for (name, help, unit, value) in counters {
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
        for disk in disks {
            ConstCounter::new(value(&disk.stats)).encode(family.encode_family(&disk_labels(disk))?)?;
        }
    }
    let mut family = encoder.encode_descriptor("disk_in_flight", "I/Os not answered yet", None, MetricType::Gauge)?;
    for disk in disks {
        ConstGauge::new(disk.stats.in_flight as i64).encode(family.encode_family(&disk_labels(disk))?)?;
    }
    let states = [DiskState::Ok, DiskState::Failing, DiskState::Hanging, DiskState::Gone];
    let mut family =
        encoder.encode_descriptor("disk_state", "1 for the state that it is in", None, MetricType::Gauge)?;
    for disk in disks {
        for state in states {
            let [array, slot, name] = disk_labels(disk);
            let labels = [array, slot, name, ("state", state.word())];
            ConstGauge::new(i64::from(disk.state == state)).encode(family.encode_family(&labels)?)?;
        }
    }
    let mut family = encoder.encode_descriptor("disk_ok", "1 if the disk is healthy", None, MetricType::Gauge)?;
    for disk in disks {
        ConstGauge::new(i64::from(disk.state == DiskState::Ok)).encode(family.encode_family(&disk_labels(disk))?)?;
    }
    type Latency = fn(&LeafStats) -> &Histogram;
    let histograms: [(&str, &str, Latency); 3] = [
        ("disk_read_latency", "Latency of reads", |s| &s.read_latency),
        ("disk_write_latency", "Latency of writes", |s| &s.write_latency),
        ("disk_other_latency", "Latency of flushes, discards and zeroing", |s| &s.other_latency),
    ];
    for (name, help, latency) in histograms {
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for disk in disks {
            histogram(family.encode_family(&disk_labels(disk))?, latency(&disk.stats))?;
        }
    }
    Ok(())
}

/// Encodes a histogram with a bucket for each power of two. Its sum is that of the buckets' lower bounds: too small by
/// at most a quarter.
fn histogram(mut encoder: MetricEncoder<'_>, latency: &Histogram) -> fmt::Result {
    let mut buckets = Vec::with_capacity(LATENCY_POWERS.count() + 1);
    let (mut at, mut sum_ns) = (0, 0u64);
    for power in LATENCY_POWERS {
        let bound_ns = 1u64 << power;
        let mut count = 0;
        while at < latency.counts.len() && bucket_floor_ns(at) < bound_ns {
            count += latency.counts[at];
            at += 1;
        }
        buckets.push((bound_ns as f64 / 1e9, count));
    }
    buckets.push((f64::INFINITY, latency.counts[at..].iter().sum()));
    for (bucket, count) in latency.counts.iter().enumerate() {
        sum_ns = sum_ns.saturating_add(count.saturating_mul(bucket_floor_ns(bucket)));
    }
    encoder.encode_histogram::<[(&str, &str); 0]>(sum_ns as f64 / 1e9, latency.total(), &buckets, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_names_counters_as_their_samples() {
        let text = "# HELP braid_reads Reads done.\n# TYPE braid_reads counter\nbraid_reads_total 5\n\
                    # HELP braid_size_bytes Its size.\n# TYPE braid_size_bytes gauge\n# UNIT braid_size_bytes bytes\n\
                    braid_size_bytes{a=\"# EOF\"} 7\n# EOF\n";
        let expected = "# HELP braid_reads_total Reads done.\n# TYPE braid_reads_total counter\nbraid_reads_total 5\n\
                        # HELP braid_size_bytes Its size.\n# TYPE braid_size_bytes gauge\n\
                        braid_size_bytes{a=\"# EOF\"} 7\n";
        assert_eq!(classic(text), expected);
    }
}
