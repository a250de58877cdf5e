//! Prometheus metrics, in the OpenMetrics text format, rendered from the counters at each scrape.

use super::control::Control;
use super::control::view;
use braid_api::{ArrayState, DiskState, ExportState};
use braid_ring::stats::{Histogram, LeafStats, bucket_floor_ns};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;

/// Upper bounds of the latency buckets, in powers of two of nanoseconds: from 4 µs to 17 s.
const LATENCY_POWERS: std::ops::RangeInclusive<u32> = 12..=34;

/// The metrics of this moment.
pub fn render(control: &Arc<Control>) -> String {
    let mut registry = Registry::with_prefix("braid");
    registry.register_collector(Box::new(Scrape(Arc::clone(control))));
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => text,
        // Writing to a String does not fail; were it to, an empty scrape says so.
        Err(error) => format!("# {error}\n# EOF\n"),
    }
}

struct Scrape(Arc<Control>);

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

/// A disk and its counters.
struct DiskMetrics {
    labels: [(&'static str, String); 3],
    state: DiskState,
    stats: LeafStats,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let control = &self.0;
        let status = control.status();
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
        arrays(control, &mut encoder)?;
        exports(control, &mut encoder)?;
        disks(control, &mut encoder)
    }
}

fn arrays(control: &Control, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let list = control.arrays();
    let labels = |name: &str| [("array", name.to_owned())];
    let mut family =
        encoder.encode_descriptor("array_size", "What can be written", Some(&Unit::Bytes), MetricType::Gauge)?;
    for array in &list.arrays {
        ConstGauge::new(array.size_bytes as i64).encode(family.encode_family(&labels(&array.name))?)?;
    }
    let mut family = encoder.encode_descriptor("array_active", "1 if the array serves", None, MetricType::Gauge)?;
    for array in &list.arrays {
        let active = i64::from(array.state == ArrayState::Active);
        ConstGauge::new(active).encode(family.encode_family(&labels(&array.name))?)?;
    }
    Ok(())
}

fn exports(control: &Control, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let list = control.exports();
    let labels = |e: &braid_api::Export| [("export", e.name.clone()), ("array", e.array.clone())];
    let mut family =
        encoder.encode_descriptor("export_listening", "1 if clients can use the export", None, MetricType::Gauge)?;
    for export in &list.exports {
        let listening = i64::from(export.state == ExportState::Listening);
        ConstGauge::new(listening).encode(family.encode_family(&labels(export))?)?;
    }
    let mut family =
        encoder.encode_descriptor("export_connections", "Clients of the export", None, MetricType::Gauge)?;
    for export in &list.exports {
        ConstGauge::new(i64::from(export.connections)).encode(family.encode_family(&labels(export))?)?;
    }
    Ok(())
}

fn disks(control: &Control, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let disks = collect(control);
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
        for disk in &disks {
            ConstCounter::new(value(&disk.stats)).encode(family.encode_family(&disk.labels)?)?;
        }
    }
    let mut family = encoder.encode_descriptor("disk_in_flight", "I/Os not answered yet", None, MetricType::Gauge)?;
    for disk in &disks {
        ConstGauge::new(disk.stats.in_flight as i64).encode(family.encode_family(&disk.labels)?)?;
    }
    let mut family = encoder.encode_descriptor("disk_ok", "1 if the disk does well", None, MetricType::Gauge)?;
    for disk in &disks {
        ConstGauge::new(i64::from(disk.state == DiskState::Ok)).encode(family.encode_family(&disk.labels)?)?;
    }
    type Latency = fn(&LeafStats) -> &Histogram;
    let histograms: [(&str, &str, Latency); 3] = [
        ("disk_read_latency", "Latency of reads", |s| &s.read_latency),
        ("disk_write_latency", "Latency of writes", |s| &s.write_latency),
        ("disk_other_latency", "Latency of flushes, discards and zeroing", |s| &s.other_latency),
    ];
    for (name, help, latency) in histograms {
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for disk in &disks {
            histogram(family.encode_family(&disk.labels)?, latency(&disk.stats))?;
        }
    }
    Ok(())
}

fn collect(control: &Control) -> Vec<DiskMetrics> {
    let tables = control.read();
    let metrics = tables.open_disks().filter_map(|(entry, role, disk)| {
        Some(DiskMetrics {
            labels: [("array", entry.name.clone()), ("role", role.to_string()), ("disk", disk.name.clone())],
            state: view::disk_state(disk).0,
            stats: control.ring().leaf_stats(disk.leaf)?,
        })
    });
    metrics.collect()
}

/// A histogram with a bucket for each power of two. The sum is that of the buckets' lower bounds: too small by at
/// most a quarter.
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
    buckets.push((f64::MAX, latency.counts[at..].iter().sum()));
    for (bucket, count) in latency.counts.iter().enumerate() {
        sum_ns = sum_ns.saturating_add(count.saturating_mul(bucket_floor_ns(bucket)));
    }
    encoder.encode_histogram::<[(&str, &str); 0]>(sum_ns as f64 / 1e9, latency.total(), &buckets, None)
}
