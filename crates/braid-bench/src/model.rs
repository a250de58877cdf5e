//! What a run found: the JSON document, from which the tables and the page are made, too. `docs/bench.md` describes it.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::plan::{Named, Origin, Plan, Point};
use super::profile::Published;
use super::slice::Slice;
use super::statistics::{Ratio, interval_of_median, median, ratio_of_medians};
use super::{machine, target};

/// Name of the format.
pub const FORMAT: &str = "braid-bench";
/// Its version: additions do not change it.
pub const VERSION: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Bench)]
pub struct Document {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Version of Braid.
    pub braid: String,
    /// When it began, in milliseconds since 1970.
    pub begun_unix_ms: u64,
    /// Cores, processor, memory and kernel.
    pub machine: String,
    /// The profile, if it was one.
    pub profile: Option<ProfileInfo>,
    /// What was measured.
    pub targets: Vec<TargetInfo>,
    /// With which loads.
    pub points: Vec<PointInfo>,
    /// Slices of each point on each target.
    pub slices: u16,
    /// Somebody ended it before all was measured: `points` are those that were begun, the last of them may lack targets and
    /// slices, and what was written may not have been verified.
    #[serde(default)]
    pub interrupted: bool,
    /// What came of each point on each target, by point, then by target.
    pub results: Vec<Measured>,
    /// Each target but the first against the first, by point.
    pub comparisons: Vec<Comparison>,
}

/// The profile of a run.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProfileInfo {
    /// Its name.
    pub name: String,
    /// In one line.
    pub title: String,
    /// Where its figures were published.
    pub source: String,
    /// What is and is not comparable.
    pub notes: Vec<String>,
    /// Whether the disks were stand-ins of the profile.
    pub stand_ins: bool,
}

/// One target.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TargetInfo {
    /// What it is called.
    pub label: String,
    /// What it is, in the notation of the command line.
    pub target: String,
    /// `local` (disks of this process) or `nbd`.
    pub kind: String,
    /// How the kernel is asked (`io_uring`, `libaio`, `threads`), or `nbd`.
    pub driver: String,
    /// For a name that the daemon was asked for: the NBD socket that was measured.
    pub uri: Option<String>,
    /// Its size.
    pub size_bytes: u64,
}

/// One load.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PointInfo {
    /// In words.
    pub name: String,
    /// `random`, `sequential` or `zipf`.
    pub pattern: String,
    /// How uneven, with `zipf`.
    pub theta: Option<f64>,
    /// `read`, `write` or `mixed`.
    pub op: String,
    /// Share of reads, in percent.
    pub reads_percent: u8,
    /// Bytes of each I/O.
    pub block_bytes: u64,
    /// I/Os in flight of each job.
    pub depth: u32,
    /// Jobs.
    pub jobs: u16,
    /// I/Os a second that the schedule wanted, of all jobs.
    pub rate_iops: Option<u64>,
}

/// One point on one target.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Measured {
    /// Number of the target.
    pub target: usize,
    /// Number of the point.
    pub point: usize,
    /// How long, in nanoseconds, over all slices.
    pub elapsed_ns: u64,
    /// I/Os answered within that time.
    pub ios: u64,
    /// I/Os that failed, passes that verify included.
    pub errors: u64,
    /// The first error.
    pub first_error: Option<String>,
    /// I/Os that the schedule had wanted to begin and that had not when the time was over.
    pub behind_ios: u64,
    /// I/Os a second: the median of the slices.
    pub iops: f64,
    /// Lower end of the interval that holds 95 of 100 resamplings of the slices' median.
    pub iops_low: f64,
    /// Upper end.
    pub iops_high: f64,
    /// Bytes a second, by `iops`.
    pub bytes_per_second: f64,
    /// Processor time of this process for each I/O, in nanoseconds.
    pub cpu_ns_per_io: f64,
    /// Latencies of reads and writes together.
    pub latency: LatencyInfo,
    /// Of reads, if there were any.
    pub read_latency: Option<LatencyInfo>,
    /// Of writes, if there were any.
    pub write_latency: Option<LatencyInfo>,
    /// The slices, in order.
    pub slices: Vec<SliceInfo>,
    /// Bytes that were read and compared with what ought to stand there.
    pub verified_bytes: u64,
    /// Wrong blocks, in words; at most the first few.
    pub mismatches: Vec<String>,
    /// How many there were.
    pub mismatch_count: u64,
    /// What was published for this, if anything.
    pub published: Option<Published>,
}

/// One slice.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SliceInfo {
    /// How long, in nanoseconds.
    pub elapsed_ns: u64,
    /// I/Os answered within that time.
    pub ios: u64,
    /// I/Os a second.
    pub iops: f64,
    /// Processor time of this process, in nanoseconds.
    pub cpu_ns: u64,
    /// Mean latency, in nanoseconds.
    pub latency_ns_mean: f64,
}

/// A distribution of latencies, in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LatencyInfo {
    /// How many were counted: also of I/Os that were answered when the time was over.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: f64,
    /// Half took no longer.
    pub p50_ns: u64,
    /// Nine of ten.
    pub p90_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1,000.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The curve: percentiles, ever closer to 100.
    pub percentiles: Vec<Percentile>,
}

/// A point of the curve.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct Percentile {
    /// So many of 100 took no longer.
    pub percentile: f64,
    /// In nanoseconds.
    pub latency_ns: u64,
}

/// One target against the first, at one point. Above 1: more than the first. Absent where the first has nothing.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Comparison {
    /// Number of the point.
    pub point: usize,
    /// Number of the target.
    pub target: usize,
    /// Number of the target it is compared with.
    pub against: usize,
    /// Ratio of the medians of I/Os a second.
    pub iops: Option<Ratio>,
    /// Ratio of the medians of the slices' mean latencies.
    pub latency_mean: Option<Ratio>,
    /// Ratio of the medians of processor time for each I/O.
    pub cpu_per_io: Option<Ratio>,
}

/// Percentiles of the curve.
const CURVE: [f64; 25] = [
    0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 85.0, 90.0, 92.5, 95.0, 97.0, 98.0, 99.0, 99.5, 99.8,
    99.9, 99.95, 99.98, 99.99, 99.999, 99.9999,
];

impl LatencyInfo {
    /// Of a histogram in nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> LatencyInfo {
        let at = |percentile: f64| histogram.value_at_quantile(percentile / 100.0);
        // A percentile that no single I/O stands for says no more than the longest.
        let said = |percentile: f64| histogram.len() as f64 * (1.0 - percentile / 100.0) >= 1.0 || percentile <= 50.0;
        let mut percentiles: Vec<Percentile> = CURVE
            .iter()
            .filter(|&&percentile| said(percentile))
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
    /// The slices of one point on one target put together; `findings` is of the passes that only verify.
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

    /// This against another of the same point.
    fn against(&self, other: &Measured) -> Comparison {
        let ratio = |of: fn(&SliceInfo) -> f64| {
            // Only where it was interrupted has one of them more slices than the other.
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

    /// The load without size and depth: what a sweep goes over.
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
    /// What is known of a target when it has been opened.
    pub fn of(named: &Named, driver: &str, uri: Option<String>, size_bytes: u64) -> TargetInfo {
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
    /// A document of what a plan found; with fewer points where it was interrupted.
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

    /// Points that belong together, in order: the same load at several depths or block sizes.
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

    /// What came of a point on a target.
    pub fn result(&self, target: usize, point: usize) -> Option<&Measured> {
        self.results.iter().find(|result| result.target == target && result.point == point)
    }

    /// A target at a point against the first.
    pub fn comparison(&self, target: usize, point: usize) -> Option<&Comparison> {
        self.comparisons.iter().find(|one| one.target == target && one.point == point)
    }

    /// Wrong blocks in all.
    pub fn mismatch_count(&self) -> u64 {
        self.results.iter().map(|result| result.mismatch_count).sum()
    }

    /// Errors in all.
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
    fn slices_become_a_median_with_sums() {
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
    fn percentiles_rise_and_end_at_the_longest() {
        let mut histogram = super::super::latency::latency_histogram();
        (1..=10_000).for_each(|n| histogram.saturating_record(n * 1000));
        let info = LatencyInfo::of(&histogram);
        assert!(
            info.percentiles
                .windows(2)
                .all(|w| w[0].percentile < w[1].percentile && w[0].latency_ns <= w[1].latency_ns)
        );
        // 10,000 I/Os say something of one in 10,000, and nothing of one in 100,000.
        assert_eq!(info.percentiles[info.percentiles.len() - 2].percentile, 99.99);
        assert_eq!(info.percentiles.last().map(|last| last.latency_ns), Some(info.max_ns));
        assert!(info.p50_ns <= info.p90_ns && info.p90_ns <= info.p99_ns && info.p99_ns <= info.p999_ns);
        // Of 1 to 10,000 µs each percentile is known, to the three digits that are kept.
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
