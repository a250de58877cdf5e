//! Computes rates and latencies of disks, arrays and exports from two samples of the daemon's counters.

use crate::job_progress;
use braid_api::{Activity, DiskActivity, DiskState, ExportActivity, ExportState, Health, LatencyBucket, MemberState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The document of `braid top --json`: averages over one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rates {
    /// The length of the interval, in nanoseconds.
    pub interval_ns: u64,
    /// The exports, by name: the requests of their clients.
    pub exports: Vec<ExportRates>,
    /// The arrays, by name: the sums over their disks.
    pub arrays: Vec<ArrayRates>,
    /// The disks, by array and slot.
    pub disks: Vec<DiskRates>,
}

/// Operations and bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Flow {
    /// Reads per second.
    pub reads_per_second: f64,
    /// Writes per second; of disks including zeroing and discards.
    pub writes_per_second: f64,
    /// Bytes read per second.
    pub read_bytes_per_second: f64,
    /// Bytes written per second.
    pub written_bytes_per_second: f64,
    /// Errors in the interval.
    pub errors: u64,
}

/// One export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExportRates {
    /// Its name.
    pub name: String,
    /// The array behind it.
    pub array: String,
    /// Whether it serves.
    pub state: ExportState,
    /// Clients connected now.
    pub connections: u32,
    /// The rates of its clients.
    pub flow: Flow,
    /// The median latency of the requests in the interval, in nanoseconds, from the receipt of a request to the hand-over of its
    /// reply to the socket, without the wait for the export's limits; 0 without any.
    pub latency_ns_p50: u64,
    /// The 99th percentile of the same latencies.
    pub latency_ns_p99: u64,
}

/// One array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ArrayRates {
    /// Its name.
    pub name: String,
    /// The number of its disks that are not in order.
    pub bad_disks: u64,
    /// Its health; only of redundant arrays.
    #[serde(default)]
    pub health: Option<Health>,
    /// The progress of its background job, in percent, if one is running.
    #[serde(default)]
    pub done_percent: Option<u64>,
    /// The sum of the rates of its disks.
    pub flow: Flow,
    /// I/Os in flight on its disks.
    pub in_flight: u64,
    /// The median latency of its disks' I/Os in the interval, in nanoseconds; 0 without any.
    pub latency_ns_p50: u64,
    /// The 99th percentile of the same latencies.
    pub latency_ns_p99: u64,
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskRates {
    /// Its name, as on the command line.
    pub name: String,
    /// The array that it is a member of.
    pub array: String,
    /// Its slot there.
    pub slot: u16,
    /// Its state.
    pub state: DiskState,
    /// Its state as a member of the array.
    #[serde(default)]
    pub member: Option<MemberState>,
    /// Its rates.
    pub flow: Flow,
    /// I/Os in flight on it.
    pub in_flight: u64,
    /// The median latency of its I/Os in the interval, in nanoseconds; 0 without any.
    pub latency_ns_p50: u64,
    /// The 99th percentile of the same latencies.
    pub latency_ns_p99: u64,
}

/// Latencies by the upper bounds of their buckets.
type Buckets = BTreeMap<u64, u64>;

/// Returns the rates between two samples. An object that is missing from the first sample, or whose counters restarted, has rates of 0.
pub fn between(before: &Activity, after: &Activity) -> Rates {
    let interval_ns = after.at_ns.saturating_sub(before.at_ns);
    let seconds = interval_ns as f64 / 1e9;
    let mut arrays: BTreeMap<&str, (ArrayRates, Buckets)> = BTreeMap::new();
    let mut disks = Vec::with_capacity(after.disks.len());
    for disk in &after.disks {
        let old = before.disks.iter().find(|old| is_same(old, disk));
        let flow = old.map(|old| disk_flow(old, disk, seconds)).unwrap_or_default();
        let latency = old.map(|old| new_latencies(&old.latency, &disk.latency)).unwrap_or_default();
        let (array, of_array) = arrays.entry(&disk.array).or_insert_with(|| (empty_array(&disk.array), Buckets::new()));
        array.flow.add(&flow);
        array.in_flight += disk.stats.in_flight;
        array.bad_disks += u64::from(disk.state != DiskState::Ok);
        for (&below_ns, &count) in &latency {
            *of_array.entry(below_ns).or_default() += count;
        }
        disks.push(DiskRates {
            name: disk.name.clone(),
            array: disk.array.clone(),
            slot: disk.slot,
            state: disk.state,
            member: disk.member,
            flow,
            in_flight: disk.stats.in_flight,
            latency_ns_p50: quantile(&latency, 0.5),
            latency_ns_p99: quantile(&latency, 0.99),
        });
    }
    for activity in &after.arrays {
        if let Some((array, _)) = arrays.get_mut(activity.name.as_str()) {
            array.health = activity.health;
            array.done_percent = activity.progress.as_ref().map(job_progress::percent);
        }
    }
    let arrays = arrays.into_values().map(|(array, latency)| ArrayRates {
        latency_ns_p50: quantile(&latency, 0.5),
        latency_ns_p99: quantile(&latency, 0.99),
        ..array
    });
    let exports = after.exports.iter().map(|export| {
        let old = before.exports.iter().find(|old| is_same_export(old, export));
        let latency = old.map(|old| new_latencies(&old.latency, &export.latency)).unwrap_or_default();
        ExportRates {
            name: export.name.clone(),
            array: export.array.clone(),
            state: export.state,
            connections: export.connections,
            flow: old.and_then(|old| export_flow(old, export, seconds)).unwrap_or_default(),
            latency_ns_p50: quantile(&latency, 0.5),
            latency_ns_p99: quantile(&latency, 0.99),
        }
    });
    Rates { interval_ns, exports: exports.collect(), arrays: arrays.collect(), disks }
}

/// Whether both are the same disk, and its counters have not restarted.
fn is_same(old: &DiskActivity, new: &DiskActivity) -> bool {
    let started = |disk: &DiskActivity| disk.stats.reads + disk.stats.writes + disk.stats.flushes;
    (&old.array, old.slot, &old.name) == (&new.array, new.slot, &new.name) && started(old) <= started(new)
}

/// Whether both are the same export, and its counters have not restarted.
fn is_same_export(old: &ExportActivity, new: &ExportActivity) -> bool {
    let completed =
        |export: &ExportActivity| export.stats.as_ref().map(|stats| stats.reads + stats.writes + stats.others);
    (&old.name, &old.array) == (&new.name, &new.array) && completed(old).is_some() && completed(old) <= completed(new)
}

fn empty_array(name: &str) -> ArrayRates {
    ArrayRates {
        name: name.to_owned(),
        bad_disks: 0,
        health: None,
        done_percent: None,
        flow: Flow::default(),
        in_flight: 0,
        latency_ns_p50: 0,
        latency_ns_p99: 0,
    }
}

impl Flow {
    fn add(&mut self, other: &Flow) {
        self.reads_per_second += other.reads_per_second;
        self.writes_per_second += other.writes_per_second;
        self.read_bytes_per_second += other.read_bytes_per_second;
        self.written_bytes_per_second += other.written_bytes_per_second;
        self.errors += other.errors;
    }
}

fn rate(old: u64, new: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { new.saturating_sub(old) as f64 / seconds } else { 0.0 }
}

fn disk_flow(old: &DiskActivity, new: &DiskActivity, seconds: f64) -> Flow {
    let (old, new) = (&old.stats, &new.stats);
    Flow {
        reads_per_second: rate(old.reads, new.reads, seconds),
        writes_per_second: rate(old.writes, new.writes, seconds),
        read_bytes_per_second: rate(old.read_bytes, new.read_bytes, seconds),
        written_bytes_per_second: rate(old.written_bytes, new.written_bytes, seconds),
        errors: new.errors.saturating_sub(old.errors),
    }
}

fn export_flow(old: &ExportActivity, new: &ExportActivity, seconds: f64) -> Option<Flow> {
    let (old, new) = (old.stats.as_ref()?, new.stats.as_ref()?);
    Some(Flow {
        reads_per_second: rate(old.reads, new.reads, seconds),
        writes_per_second: rate(old.writes, new.writes, seconds),
        read_bytes_per_second: rate(old.read_bytes, new.read_bytes, seconds),
        written_bytes_per_second: rate(old.written_bytes, new.written_bytes, seconds),
        errors: new.errors.saturating_sub(old.errors),
    })
}

fn new_latencies(old: &[LatencyBucket], new: &[LatencyBucket]) -> Buckets {
    let old: Buckets = old.iter().map(|bucket| (bucket.below_ns, bucket.count)).collect();
    let more = new.iter().map(|bucket| {
        let before = old.get(&bucket.below_ns).copied().unwrap_or(0);
        (bucket.below_ns, bucket.count.saturating_sub(before))
    });
    more.filter(|(_, count)| *count > 0).collect()
}

/// Returns the largest latency, in nanoseconds, of the bucket in which the given share (0 to 1) of the I/Os is reached;
/// 0 without I/Os.
fn quantile(latency: &Buckets, share: f64) -> u64 {
    let total: u64 = latency.values().sum();
    let rank = ((total as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    for (&below_ns, &count) in latency {
        seen += count;
        if seen >= rank {
            return below_ns - 1;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_api::{ArrayActivity, DiskStats, ExportStats};

    fn disk(slot: u16, reads: u64, latency: &[(u64, u64)]) -> DiskActivity {
        DiskActivity {
            name: format!("disk{slot}"),
            array: "data".to_owned(),
            slot,
            state: if slot == 9 { DiskState::Gone } else { DiskState::Ok },
            member: None,
            stats: DiskStats {
                reads,
                read_bytes: reads * 4096,
                errors: reads / 100,
                in_flight: 3,
                ..DiskStats::default()
            },
            latency: latency.iter().map(|&(below_ns, count)| LatencyBucket { below_ns, count }).collect(),
        }
    }

    fn export(name: &str, writes: u64, latency: &[(u64, u64)]) -> ExportActivity {
        let stats = ExportStats { writes, written_bytes: writes * 512, ..ExportStats::default() };
        let (name, array) = (name.to_owned(), "data".to_owned());
        let latency = latency.iter().map(|&(below_ns, count)| LatencyBucket { below_ns, count }).collect();
        ExportActivity { name, array, state: ExportState::Listening, connections: 1, stats: Some(stats), latency }
    }

    #[test]
    fn rates_are_of_the_interval() {
        let before = Activity {
            at_ns: 1_000_000_000,
            disks: vec![disk(0, 1000, &[(1000, 1000)]), disk(1, 500, &[(1000, 500)])],
            exports: vec![export("e", 10, &[(1000, 10)])],
            arrays: Vec::new(),
        };
        let progress = braid_api::Progress { done_bytes: 7, total_bytes: 20, rate_bytes_per_s: 0, remaining_s: None };
        let activity =
            ArrayActivity { name: "data".to_owned(), health: Some(Health::Rebuilding), progress: Some(progress) };
        let after = Activity {
            at_ns: 3_000_000_000,
            disks: vec![
                disk(0, 1400, &[(1000, 1000), (2000, 390), (64_000, 10)]),
                disk(1, 700, &[(1000, 700)]),
                disk(9, 50, &[]),
            ],
            exports: vec![export("e", 30, &[(1000, 19), (5000, 10), (80_000, 1)]), export("new", 99, &[(9, 99)])],
            arrays: vec![activity],
        };
        let rates = between(&before, &after);
        assert_eq!(rates.interval_ns, 2_000_000_000);
        let [first, second, new] = rates.disks.as_slice() else { panic!("{rates:?}") };
        assert_eq!((first.flow.reads_per_second, first.flow.read_bytes_per_second), (200.0, 200.0 * 4096.0));
        // Only I/Os of the interval count: 390 of 400 below 2 µs, the others below 64 µs.
        assert_eq!((first.latency_ns_p50, first.latency_ns_p99), (1999, 63_999));
        assert_eq!((second.latency_ns_p50, second.latency_ns_p99), (999, 999));
        assert_eq!((first.flow.errors, second.flow.errors), (4, 2));
        // A disk that is missing from the first sample has rates of 0.
        assert_eq!((new.flow, new.latency_ns_p99), (Flow::default(), 0));
        let [array] = rates.arrays.as_slice() else { panic!("{rates:?}") };
        assert_eq!((array.health, array.done_percent), (Some(Health::Rebuilding), Some(35)));
        assert_eq!((array.flow.reads_per_second, array.in_flight, array.bad_disks), (300.0, 9, 1));
        // 600 I/Os: the 594th is the fourth of the slow ones.
        assert_eq!((array.latency_ns_p50, array.latency_ns_p99), (1999, 63_999));
        assert_eq!(rates.exports[0].flow.writes_per_second, 10.0);
        assert_eq!(rates.exports[0].flow.written_bytes_per_second, 5120.0);
        // Of 20 requests 9 were quick, 10 slower, one slow.
        assert_eq!((rates.exports[0].latency_ns_p50, rates.exports[0].latency_ns_p99), (4999, 79_999));
        assert_eq!((rates.exports[1].flow, rates.exports[1].latency_ns_p99), (Flow::default(), 0));
    }

    #[test]
    fn counters_that_restarted_yield_no_rate() {
        let sample = |at_ns, reads| Activity {
            at_ns,
            disks: vec![disk(0, reads, &[])],
            exports: Vec::new(),
            arrays: Vec::new(),
        };
        assert_eq!(between(&sample(0, 1000), &sample(1_000_000_000, 10)).disks[0].flow, Flow::default());
        let served = |at_ns, writes, slow| Activity {
            at_ns,
            disks: Vec::new(),
            exports: vec![export("e", writes, &[(1000, 5), (9000, slow)])],
            arrays: Vec::new(),
        };
        let [again] = &between(&served(0, 100, 0), &served(1_000_000_000, 5, 3)).exports[..] else {
            panic!("one export")
        };
        assert_eq!((again.flow, again.latency_ns_p50), (Flow::default(), 0));
        // Two samples at the same time, or a daemon that restarted in between.
        assert_eq!(between(&sample(5, 10), &sample(5, 20)).disks[0].flow.reads_per_second, 0.0);
        assert_eq!(between(&sample(9, 10), &sample(5, 20)).interval_ns, 0);
    }
}
