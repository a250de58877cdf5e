//! The document of results, as JSON. The tables and the page are made from it, too. `docs/guide/measuring.md` describes it.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::plan::{LabelledTarget, Origin, Plan, Point};
use super::published::Published;
use super::slice::Slice;
use super::statistics::{Ratio, interval_of_median, median, ratio_of_medians};
use super::{machine, target};

/// Name of the format.
pub const FORMAT: &str = "braid-bench";
/// Version of the format. Additions do not change it.
pub const VERSION: u32 = 1;

/// The results of a run.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Bench)]
pub struct Document {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Version of Braid.
    pub braid: String,
    /// Start of the run, in milliseconds since 1970.
    pub begun_unix_ms: u64,
    /// Cores, processor, memory and kernel.
    pub machine: String,
    /// The profile, if there was one.
    pub profile: Option<ProfileInfo>,
    /// The targets.
    pub targets: Vec<TargetInfo>,
    /// The loads.
    pub points: Vec<PointInfo>,
    /// The number of slices of each point on each target.
    pub slices: u16,
    /// Whether the run was interrupted. Then `points` are those that were begun, the last of them may lack targets and slices, and written data may
    /// not have been verified.
    #[serde(default)]
    pub interrupted: bool,
    /// The results of each point on each target, by point, then by target.
    pub results: Vec<Measured>,
    /// Comparisons of each further target with the first, by point.
    pub comparisons: Vec<Comparison>,
}

/// The profile of a run.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProfileInfo {
    /// The name.
    pub name: String,
    /// The title, in one line.
    pub title: String,
    /// Where the figures were published.
    pub source: String,
    /// Notes on what is comparable and what is not.
    pub notes: Vec<String>,
    /// Whether the disks were stand-ins in memory.
    pub stand_ins: bool,
}

/// One target.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TargetInfo {
    /// The label.
    pub label: String,
    /// The target, in the notation of the command line.
    pub target: String,
    /// `local` (disks of this process) or `nbd`.
    pub kind: String,
    /// The I/O driver (`io_uring`, `libaio`, `threads`), or `nbd`.
    pub driver: String,
    /// For the name of an object of the daemon: the URI of the export that was measured.
    pub uri: Option<String>,
    /// The size in bytes.
    pub size_bytes: u64,
}

/// One load.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PointInfo {
    /// The load, as text.
    pub name: String,
    /// `random`, `sequential` or `zipf`.
    pub pattern: String,
    /// The exponent of `zipf`.
    pub theta: Option<f64>,
    /// `read`, `write` or `mixed`.
    pub op: String,
    /// Share of reads, in percent.
    pub reads_percent: u8,
    /// The block size in bytes.
    pub block_bytes: u64,
    /// I/Os in flight per job.
    pub depth: u32,
    /// The number of jobs.
    pub jobs: u16,
    /// The scheduled I/Os per second of all jobs, if there was a rate.
    pub rate_iops: Option<u64>,
}

/// One point on one target.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Measured {
    /// Number of the target.
    pub target: usize,
    /// Number of the point.
    pub point: usize,
    /// The measured time of all slices, in nanoseconds.
    pub elapsed_ns: u64,
    /// I/Os completed within that time.
    pub ios: u64,
    /// I/Os that failed, with those of passes that only verify.
    pub errors: u64,
    /// The first error.
    pub first_error: Option<String>,
    /// I/Os that were due by the schedule and had not begun when the time was over.
    pub behind_ios: u64,
    /// I/Os per second: the median of the slices.
    pub iops: f64,
    /// Lower end of the interval that holds 95 of 100 resamplings of the slices' median.
    pub iops_low: f64,
    /// Upper end.
    pub iops_high: f64,
    /// Bytes per second, at `iops`.
    pub bytes_per_second: f64,
    /// CPU time of this process per I/O, in nanoseconds.
    pub cpu_ns_per_io: f64,
    /// Latencies of reads and writes together.
    pub latency: LatencyInfo,
    /// Latencies of reads, if there were any.
    pub read_latency: Option<LatencyInfo>,
    /// Latencies of writes, if there were any.
    pub write_latency: Option<LatencyInfo>,
    /// The slices, in order.
    pub slices: Vec<SliceInfo>,
    /// Bytes that were read and compared with the expected content.
    pub verified_bytes: u64,
    /// The first mismatches, as text.
    pub mismatches: Vec<String>,
    /// The number of all mismatches.
    pub mismatch_count: u64,
    /// The published figures for this, if there are any.
    pub published: Option<Published>,
}

/// One slice.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SliceInfo {
    /// The measured time in nanoseconds.
    pub elapsed_ns: u64,
    /// I/Os completed within that time.
    pub ios: u64,
    /// I/Os per second.
    pub iops: f64,
    /// CPU time of this process, in nanoseconds.
    pub cpu_ns: u64,
    /// Mean latency, in nanoseconds.
    pub latency_ns_mean: f64,
}

/// A distribution of latencies, in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LatencyInfo {
    /// The number of I/Os, with those that completed after the time was over.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: f64,
    /// The median.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The curve of percentiles, rising to 100.
    pub percentiles: Vec<Percentile>,
}

/// A point of the curve.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct Percentile {
    /// The percentile.
    pub percentile: f64,
    /// The latency in nanoseconds.
    pub latency_ns: u64,
}

/// One target compared with the first, at one point. A ratio above 1 is more than that of the first. A ratio is absent if the first has no figure.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Comparison {
    /// Number of the point.
    pub point: usize,
    /// Number of the target.
    pub target: usize,
    /// Number of the target that it is compared with.
    pub against: usize,
    /// Ratio of the medians of I/Os per second.
    pub iops: Option<Ratio>,
    /// Ratio of the medians of the slices' mean latencies.
    pub latency_mean: Option<Ratio>,
    /// Ratio of the medians of CPU time per I/O.
    pub cpu_per_io: Option<Ratio>,
}

/// Percentiles of the curve.
const CURVE: [f64; 25] = [
    0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 92.5, 95.0, 97.0, 98.0, 99.0, 99.5, 99.8,
    99.9, 99.95, 99.98, 99.99, 99.999, 99.9999,
];

impl LatencyInfo {
    /// Returns the distribution of a histogram in nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> LatencyInfo {
        let at = |percentile: f64| histogram.value_at_quantile(percentile / 100.0);
        // Percentiles with less than one I/O above them are left out.
        let is_known =
            |percentile: f64| histogram.len() as f64 * (1.0 - percentile / 100.0) >= 1.0 || percentile <= 50.0;
        let mut percentiles: Vec<Percentile> = CURVE
            .iter()
            .filter(|&&percentile| is_known(percentile))
            .map(|&percentile| Percentile { percentile, latency_ns: at(percentile) })
            .collect();
        percentiles.push(Percentile { percentile: 100.0, latency_ns: histogram.max() });
        LatencyInfo {
            count: histogram.len(),
            min_ns: if histogram.is_empty() { 0 } else { histogram.min() },
            mean_ns: histogram.mean(),
            p50_ns: at(50.0),
            p90_ns: at(90.0),
            p99_ns: at(99.0),
            p999_ns: at(99.9),
            max_ns: histogram.max(),
            percentiles,
        }
    }
}

impl Measured {
    /// Combines the slices of one point on one target. `findings` are the errors and mismatches of passes that only verify.
    pub fn of(target: usize, point: usize, block_bytes: u64, slices: &[Slice], findings: &Slice) -> Measured {
        let mut whole = Slice::new();
        for slice in slices {
            whole.ios += slice.ios;
            whole.elapsed_ns += slice.elapsed_ns;
            whole.cpu_ns += slice.cpu_ns;
            whole.behind += slice.behind;
            whole.latency.add(&slice.latency);
            whole.add_findings(slice);
        }
        whole.add_findings(findings);
        let infos: Vec<SliceInfo> = slices
            .iter()
            .map(|slice| SliceInfo {
                elapsed_ns: slice.elapsed_ns,
                ios: slice.ios,
                iops: slice.ios as f64 * 1e9 / slice.elapsed_ns.max(1) as f64,
                cpu_ns: slice.cpu_ns,
                latency_ns_mean: slice.latency.all().mean(),
            })
            .collect();
        let iops: Vec<f64> = infos.iter().map(|slice| slice.iops).collect();
        let (iops_low, iops_high) = interval_of_median(&iops);
        let some = |histogram: &Histogram<u64>| (!histogram.is_empty()).then(|| LatencyInfo::of(histogram));
        Measured {
            target,
            point,
            elapsed_ns: whole.elapsed_ns,
            ios: whole.ios,
            errors: whole.errors,
            first_error: whole.first_error.clone(),
            behind_ios: whole.behind,
            iops: median(&iops),
            iops_low,
            iops_high,
            bytes_per_second: median(&iops) * block_bytes as f64,
            cpu_ns_per_io: whole.cpu_ns as f64 / whole.ios.max(1) as f64,
            latency: LatencyInfo::of(&whole.latency.all()),
            read_latency: some(&whole.latency.reads),
            write_latency: some(&whole.latency.writes),
            slices: infos,
            verified_bytes: whole.verified_bytes,
            mismatches: whole.mismatches,
            mismatch_count: whole.mismatch_count,
            published: None,
        }
    }

    /// Compares this with another result of the same point.
    fn against(&self, other: &Measured) -> Comparison {
        let ratio = |of: fn(&SliceInfo) -> f64| {
            // The numbers of slices differ only if the run was interrupted.
            let pairs = self.slices.len().min(other.slices.len());
            let side = |measured: &Measured| measured.slices[..pairs].iter().map(of).collect::<Vec<f64>>();
            let ratio = ratio_of_medians(&side(self), &side(other));
            [ratio.value, ratio.low, ratio.high].iter().all(|n| n.is_finite()).then_some(ratio)
        };
        Comparison {
            point: self.point,
            target: self.target,
            against: other.target,
            iops: ratio(|slice| slice.iops),
            latency_mean: ratio(|slice| slice.latency_ns_mean),
            cpu_per_io: ratio(|slice| slice.cpu_ns as f64 / slice.ios.max(1) as f64),
        }
    }
}

impl PointInfo {
    fn of(point: &Point) -> PointInfo {
        use super::pattern::Order;
        PointInfo {
            name: point.whole(),
            pattern: point.visit.order.word().to_owned(),
            theta: (point.visit.order == Order::Zipf).then_some(point.visit.theta),
            op: point.mix.word().to_owned(),
            reads_percent: point.visit.reads_percent,
            block_bytes: point.block_bytes,
            depth: point.depth,
            jobs: point.jobs,
            rate_iops: point.rate_iops,
        }
    }

    /// Formats the load without block size and depth, which a sweep varies.
    pub fn load(&self) -> String {
        let theta = self.theta.map_or(String::new(), |theta| format!(" {theta}"));
        match self.op.as_str() {
            "mixed" => format!("{}{theta}, {} % reads", self.pattern, self.reads_percent),
            op => format!("{}{theta} {op}", self.pattern),
        }
    }
}

impl ProfileInfo {
    fn of(origin: &Origin) -> ProfileInfo {
        ProfileInfo {
            name: origin.name.to_owned(),
            title: origin.title.clone(),
            source: origin.source.clone(),
            notes: origin.notes.clone(),
            stand_ins: origin.stand_ins,
        }
    }
}

impl TargetInfo {
    /// Returns the description of an open target.
    pub fn of(named: &LabelledTarget, driver: &str, uri: Option<String>, size_bytes: u64) -> TargetInfo {
        let kind = if matches!(named.target, target::Target::Local(_)) { "local" } else { "nbd" };
        TargetInfo {
            label: named.label.clone(),
            target: named.target.to_string(),
            kind: kind.to_owned(),
            driver: driver.to_owned(),
            uri,
            size_bytes,
        }
    }
}

impl Document {
    /// Returns the document of the results of a plan. If the run was interrupted, it has fewer points than the plan.
    pub fn new(
        plan: &Plan,
        begun_unix_ms: u64,
        targets: Vec<TargetInfo>,
        mut results: Vec<Measured>,
        interrupted: bool,
    ) -> Document {
        let begun = results.iter().map(|result| result.point + 1).max().unwrap_or(0);
        for result in &mut results {
            let published = plan.origin.iter().flat_map(|origin| &origin.published);
            result.published = published.clone().find(|one| one.is_of(result.target, result.point)).cloned();
        }
        let comparisons = results
            .iter()
            .filter(|result| result.target > 0)
            .filter_map(|result| {
                let first = results.iter().find(|other| other.point == result.point && other.target == 0)?;
                Some(result.against(first))
            })
            .collect();
        Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            braid: env!("CARGO_PKG_VERSION").to_owned(),
            begun_unix_ms,
            machine: machine::describe(),
            profile: plan.origin.as_ref().map(ProfileInfo::of),
            targets,
            points: plan.points[..begun].iter().map(PointInfo::of).collect(),
            slices: plan.slices,
            interrupted,
            results,
            comparisons,
        }
    }

    /// Returns groups of points in order: the points of a group are the same load at several depths or block sizes.
    pub fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (number, point) in self.points.iter().enumerate() {
            let key = |point: &PointInfo| (point.load(), point.jobs, point.rate_iops);
            match groups.last_mut() {
                Some(group) if key(&self.points[group[0]]) == key(point) => group.push(number),
                _ => groups.push(vec![number]),
            }
        }
        groups
    }

    /// Returns the result of a point on a target.
    pub fn result(&self, target: usize, point: usize) -> Option<&Measured> {
        self.results.iter().find(|result| result.target == target && result.point == point)
    }

    /// Returns the comparison of a target with the first, at a point.
    pub fn comparison(&self, target: usize, point: usize) -> Option<&Comparison> {
        self.comparisons.iter().find(|one| one.target == target && one.point == point)
    }

    /// Returns the number of mismatches of all results.
    pub fn mismatch_count(&self) -> u64 {
        self.results.iter().map(|result| result.mismatch_count).sum()
    }

    /// Returns the number of errors of all results.
    pub fn errors(&self) -> u64 {
        self.results.iter().map(|result| result.errors).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(ios: u64, elapsed_ns: u64, latencies: &[u64]) -> Slice {
        let mut slice = Slice { ios, elapsed_ns, cpu_ns: ios * 100, ..Slice::new() };
        for &latency in latencies {
            slice.latency.side(true).saturating_record(latency);
        }
        slice
    }

    #[test]
    fn slices_are_combined_to_a_median_and_sums() {
        let slices =
            [slice(100, 1_000_000_000, &[5, 7]), slice(400, 2_000_000_000, &[9]), slice(50, 1_000_000_000, &[])];
        let mut findings = Slice::new();
        (findings.errors, findings.verified_bytes) = (3, 4096);
        let measured = Measured::of(1, 2, 4096, &slices, &findings);
        assert_eq!((measured.ios, measured.elapsed_ns, measured.iops), (550, 4_000_000_000, 100.0));
        assert!(measured.iops_low >= 50.0 && measured.iops_high <= 200.0);
        assert_eq!((measured.errors, measured.verified_bytes, measured.latency.count), (3, 4096, 3));
        assert_eq!((measured.cpu_ns_per_io, measured.write_latency.is_none()), (100.0, true));
        assert_eq!(measured.bytes_per_second, 409_600.0);
    }

    #[test]
    fn percentiles_rise_to_the_longest_latency() {
        let mut histogram = super::super::latency::latency_histogram();
        (1..=10_000).for_each(|n| histogram.saturating_record(n * 1000));
        let info = LatencyInfo::of(&histogram);
        assert!(
            info.percentiles
                .windows(2)
                .all(|w| w[0].percentile < w[1].percentile && w[0].latency_ns <= w[1].latency_ns)
        );
        // 10,000 I/Os determine the latency of one in 10,000, and not that of one in 100,000.
        assert_eq!(info.percentiles[info.percentiles.len() - 2].percentile, 99.99);
        assert_eq!(info.percentiles.last().map(|last| last.latency_ns), Some(info.max_ns));
        assert!(info.p50_ns <= info.p90_ns && info.p90_ns <= info.p99_ns && info.p99_ns <= info.p999_ns);
        // The percentiles of 1 to 10,000 µs are known, to the three digits of the histogram.
        for (percentile, ns) in [(50, info.p50_ns), (90, info.p90_ns), (99, info.p99_ns), (100, info.max_ns)]
            .map(|(p, ns)| (p * 100_000, ns))
        {
            assert!(ns.abs_diff(percentile) <= percentile / 1000 + 1000, "{percentile} ns: {ns}");
        }
        assert!(info.p999_ns.abs_diff(9_990_000) <= 10_000 && info.min_ns.abs_diff(1000) <= 1, "{info:?}");
        assert!((info.mean_ns - 5_000_500.0).abs() < 5_000.0, "{info:?}");
        let none = LatencyInfo::of(&super::super::latency::latency_histogram());
        assert_eq!((none.count, none.min_ns, none.max_ns), (0, 0, 0));
    }
}
