//! The plan of a run: targets, and points that are measured on each target.

use std::time::Duration;

use braid_api::{ErrorDetail, Kind};
use braid_geometry::units::format_size;

use super::BenchArgs;
use super::figures::short_size;
use super::pattern::{Mix, Order, Visit};
use super::published::Published;
use super::target::{How, Target};
use super::variant::Variant;

/// Default number of slices of a point.
const SLICES: u16 = 5;
/// Default length of a point on a target.
const TIME: Duration = Duration::from_secs(5);

/// How long a point is measured on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// This time.
    Time(Duration),
    /// This number of I/Os.
    Count(u64),
}

/// One load, which is measured on every target.
#[derive(Clone, Debug)]
pub struct Point {
    /// The order of blocks, and the share of reads.
    pub visit: Visit,
    /// The operations.
    pub mix: Mix,
    /// The block size in bytes.
    pub block_bytes: u64,
    /// I/Os in flight per job.
    pub depth: u32,
    /// The number of jobs; over NBD, of connections.
    pub jobs: u16,
    /// I/Os per second of all jobs; none: as many as possible.
    pub rate_iops: Option<u64>,
}

/// A target and its label.
#[derive(Clone, Debug)]
pub struct LabelledTarget {
    /// The label in tables and charts.
    pub label: String,
    /// The target.
    pub target: Target,
}

/// The profile of a plan.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The name.
    pub name: &'static str,
    /// The title, in one line.
    pub title: String,
    /// Where its figures were published.
    pub source: String,
    /// Notes on what is comparable and what is not.
    pub notes: Vec<String>,
    /// Whether the disks are stand-ins in memory.
    pub stand_ins: bool,
    /// The published figures.
    pub published: Vec<Published>,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The profile, if there is one.
    pub origin: Option<Origin>,
    /// The targets.
    pub targets: Vec<LabelledTarget>,
    /// The loads.
    pub points: Vec<Point>,
    /// How long each point is measured on each target.
    pub length: Length,
    /// The number of slices of each point on each target.
    pub slices: u16,
    /// How long each point runs before it is measured.
    pub ramp: Option<Duration>,
    /// The number of shards, if it is given.
    pub shards: Option<u16>,
    /// First byte of the used part of a device.
    pub from: u64,
    /// Length of the used part, if it does not reach to the end.
    pub span: Option<u64>,
    /// Whether blocks have verifiable content, which is checked.
    pub verify: bool,
    /// The I/O driver, if it is given.
    pub driver: Option<String>,
    /// Whether foreign data may be overwritten.
    pub force: bool,
    /// Variations of targets of disks.
    pub variant: Variant,
}

fn wrong(message: impl Into<String>, remedy: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, message).remedy(remedy)
}

impl Plan {
    /// Returns the plan of a command line without a profile.
    ///
    /// # Errors
    /// Arguments contradict each other.
    pub fn of(args: &BenchArgs) -> Result<Plan, ErrorDetail> {
        if args.targets.is_empty() {
            return Err(wrong(
                "no target is named",
                "for example: braid bench null:1T 'raid0(null:50G,null:100G,null:100G)'; or a profile: braid bench --profile disk-aggregation",
            ));
        }
        if args.theta.is_some() && args.pattern != Order::Zipf {
            return Err(wrong(
                "--theta says how uneven a zipf load is, and this one is none",
                "add --pattern zipf, or leave --theta out",
            ));
        }
        if args.reads.is_some() && args.op != Mix::Mixed {
            return Err(wrong(
                "--reads is the share of reads of a mixed load, and this one is none",
                "add --op mixed, or leave --reads out",
            ));
        }
        if args.full {
            return Err(wrong(
                "--full makes a profile as long as the published runs, and no profile is named",
                "add --profile disk-aggregation, or say how long with --time",
            ));
        }
        if args.rate.is_some() && args.count.is_some() {
            return Err(wrong("--rate and --count together are a time", "say how long with --time instead of --count"));
        }
        let targets = match args.level {
            Some(level) => vec![Target::of_level(level, args.chunk, &args.targets)?],
            None => args.targets.iter().map(|text| Target::parse(text)).collect::<Result<_, _>>()?,
        };
        let targets = labelled(targets, &args.label)?;
        let jobs = args.jobs.unwrap_or(args.shards.unwrap_or(1));
        let visit =
            Visit { order: args.pattern, theta: args.theta.unwrap_or(0.99), reads_percent: args.reads_percent() };
        let mut points = Vec::new();
        for &block_bytes in &args.block_size.0 {
            for &depth in &args.depth.0 {
                points.push(Point {
                    visit,
                    mix: args.op,
                    block_bytes,
                    depth: depth as u32,
                    jobs,
                    rate_iops: args.rate,
                });
            }
        }
        let length = args.count.map_or(Length::Time(args.time.unwrap_or(TIME)), Length::Count);
        let slices = args.slices.unwrap_or(if args.count.is_some() { 1 } else { SLICES });
        let plan = Plan {
            origin: None,
            targets,
            points,
            length,
            slices,
            ramp: args.ramp,
            shards: args.shards,
            from: args.from,
            span: args.span,
            verify: args.verify,
            driver: args.driver.clone(),
            force: args.force,
            variant: Variant::default(),
        };
        plan.check()?;
        Ok(plan)
    }

    /// Checks the rules that every plan must obey.
    ///
    /// # Errors
    /// A rule is violated.
    pub fn check(&self) -> Result<(), ErrorDetail> {
        if !self.from.is_multiple_of(4096) {
            return Err(wrong(
                format!("--from {} is not a multiple of 4K", self.from),
                "for example: --from 150G --span 100G",
            ));
        }
        match self.length {
            Length::Time(time) if time.as_micros() / u128::from(self.slices) < 1000 => Err(wrong(
                format!("{} slices of {} ms are shorter than 1 ms each", self.slices, time.as_millis()),
                "take a longer --time or fewer --slices",
            )),
            Length::Count(count) if count < u64::from(self.slices) => Err(wrong(
                format!("{count} I/Os are fewer than {} slices", self.slices),
                "take a larger --count or fewer --slices",
            )),
            _ if self.shards.is_some_and(|shards| shards > self.jobs_max()) => Err(wrong(
                format!(
                    "{} shards for {} job(s): some would have nothing to do",
                    self.shards.unwrap_or(0),
                    self.jobs_max()
                ),
                "take as many --jobs, or fewer --shards",
            )),
            _ => self.targets.iter().try_for_each(|target| self.check_jobs(target)),
        }
    }

    fn check_jobs(&self, named: &LabelledTarget) -> Result<(), ErrorDetail> {
        let Target::Local(combination) = &named.target else { return Ok(()) };
        let disks = combination.disks.len();
        for point in &self.points {
            if combination.how == How::Jbod && !usize::from(point.jobs).is_multiple_of(disks) {
                return Err(wrong(
                    format!(
                        "{} job(s) cannot be shared out evenly over the {disks} disks of {}",
                        point.jobs, named.target
                    ),
                    &format!("for example: --jobs {disks}"),
                ));
            }
        }
        Ok(())
    }

    /// Returns whether the plan writes to its targets.
    pub fn writes(&self) -> bool {
        self.verify || self.points.iter().any(|point| point.visit.reads_percent < 100)
    }

    /// Returns the largest number of jobs of a point.
    pub fn jobs_max(&self) -> u16 {
        self.points.iter().map(|point| point.jobs).max().unwrap_or(1)
    }

    /// Returns the used part of a device of `size_bytes`: its first byte and its length, in whole blocks.
    ///
    /// # Errors
    /// The part lies beyond the device, or holds no block.
    pub fn part(&self, size_bytes: u64, block_bytes: u64) -> Result<(u64, u64), ErrorDetail> {
        let bad = |message: String| wrong(message, "for example: --from 150G --span 100G");
        let rest = size_bytes.checked_sub(self.from).filter(|&rest| rest > 0).ok_or_else(|| {
            bad(format!("--from {} lies beyond the device of {}", format_size(self.from), format_size(size_bytes)))
        })?;
        let span = self.span.unwrap_or(rest);
        if span > rest {
            return Err(bad(format!(
                "--span {} is more than the {} that are there",
                format_size(span),
                format_size(rest)
            )));
        }
        let blocks = span / block_bytes;
        if blocks == 0 {
            return Err(bad(format!("{} hold no block of {}", format_size(span), format_size(block_bytes))));
        }
        Ok((self.from, blocks * block_bytes))
    }
}

/// Gives every target a unique label.
fn labelled(targets: Vec<Target>, labels: &[String]) -> Result<Vec<LabelledTarget>, ErrorDetail> {
    if labels.len() > targets.len() {
        return Err(wrong(
            format!("{} labels for {} target(s)", labels.len(), targets.len()),
            "give one --label for each target, in their order",
        ));
    }
    let mut named: Vec<LabelledTarget> = Vec::with_capacity(targets.len());
    for (at, target) in targets.into_iter().enumerate() {
        let wanted = labels.get(at).cloned().unwrap_or_else(|| target.to_string());
        let same = named.iter().filter(|other| other.label == wanted).count();
        let label = if same == 0 { wanted } else { format!("{wanted} #{}", same + 1) };
        named.push(LabelledTarget { label, target });
    }
    Ok(named)
}

impl Point {
    /// `random read of 4 KiB`
    pub fn load(&self) -> String {
        let op = match self.mix {
            Mix::Mixed => format!("{} % read", self.visit.reads_percent),
            other => other.word().to_owned(),
        };
        let order = match self.visit.order {
            Order::Zipf => format!("zipf {}", self.visit.theta),
            other => other.word().to_owned(),
        };
        format!("{order} {op} {}", short_size(self.block_bytes))
    }

    /// `random read of 4 KiB, depth 128 × 8 jobs`
    pub fn whole(&self) -> String {
        let jobs = if self.jobs == 1 { String::new() } else { format!(" × {} jobs", self.jobs) };
        let rate = self.rate_iops.map_or(String::new(), |rate| format!(", at {rate}/s"));
        format!("{}, depth {}{jobs}{rate}", self.load(), self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn plan(words: &[&str]) -> Result<Plan, ErrorDetail> {
        use clap::Parser as _;
        Plan::of(&Line::try_parse_from([&["bench"], words].concat()).expect("clap takes it").args)
    }

    #[test]
    fn there_is_a_point_for_every_size_at_every_depth() {
        let plan =
            plan(&["null:1T", "null:2T", "--block-size", "4K,8K", "--depth", "1..4"]).expect("the arguments are valid");
        let points: Vec<_> = plan.points.iter().map(|point| (point.block_bytes, point.depth)).collect();
        assert_eq!(points, [(4096, 1), (4096, 2), (4096, 4), (8192, 1), (8192, 2), (8192, 4)]);
        assert_eq!((plan.targets.len(), plan.length, plan.slices), (2, Length::Time(TIME), SLICES));
    }

    #[test]
    fn the_used_part_is_whole_blocks_inside_the_device() {
        let some = plan(&["null:1T", "--from", "4K"]).expect("the arguments are valid");
        assert_eq!(some.part(4096 + 30_000, 12 << 10).expect("two blocks fit"), (4096, 24_576));
        assert!(some.part(4096, 12 << 10).is_err() && some.part(8192, 12 << 10).is_err());
        let some = plan(&["null:1T", "--span", "1G"]).expect("the arguments are valid");
        assert!(some.part(1 << 29, 4096).is_err());
        assert_eq!(some.part(1 << 31, 4096).expect("it fits"), (0, 1 << 30));
    }

    #[test]
    fn equal_targets_get_unique_labels() {
        let plan =
            plan(&["null:1T", "null:1T", "null:1T", "--label", "a", "--label", "b"]).expect("the arguments are valid");
        let labels: Vec<_> = plan.targets.iter().map(|target| target.label.as_str()).collect();
        assert_eq!(labels, ["a", "b", "null:1T"]);
    }

    #[test]
    fn contradictions_are_named_with_a_remedy() {
        for (words, expected) in [
            (&[][..], "no target"),
            (&["null:1T", "--theta", "1"], "--pattern zipf"),
            (&["null:1T", "--reads", "50"], "--op mixed"),
            (&["null:1T", "--full"], "--profile"),
            (&["null:1T", "--rate", "5", "--count", "5"], "--time"),
            (&["null:1T", "--label", "a", "--label", "b"], "labels"),
            (&["null:1T", "--time", "2ms"], "--slices"),
            (&["null:1T", "--count", "2", "--slices", "3"], "--slices"),
            (&["jbod(null:1T,null:1T)"], "--jobs 2"),
            (&["null:1T", "--from", "1K"], "multiple of 4K"),
            (&["null:1T", "--jobs", "2", "--shards", "3"], "--shards"),
        ] {
            let error = plan(words).expect_err(expected);
            assert!(error.to_string().contains(expected) && !error.remedy.is_empty(), "{words:?}: {error}");
        }
    }
}
