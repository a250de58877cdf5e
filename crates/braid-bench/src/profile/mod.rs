//! Profiles: loads of published measurements, which are measured here and compared with the published figures.
//!
//! A profile needs no disks: it has stand-ins in memory, throttled like the published disks. Disks on the command line replace them.

pub mod nodes;

use std::time::Duration;

use braid_api::{ErrorDetail, Kind};

use super::BenchArgs;
use super::pattern::{Mix, Order, Visit};
use super::plan::{LabelledTarget, Length, Origin, Plan, Point};
use super::published::{self, PROFILES};
use super::target::Target;
use super::variant::Variant;

/// Returns the name of a target, given the names of the disks.
type Make = fn(&[String]) -> String;

/// A profile: targets over its disks, and points.
struct Profile {
    name: &'static str,
    /// The stand-ins.
    disks: Vec<String>,
    /// The label and the name of each target.
    targets: Vec<(&'static str, Make)>,
    /// The tag, which identifies published figures, and the load.
    points: Vec<(String, Point)>,
    /// The default time of each point on each target.
    short: Duration,
    slices: u16,
    /// The ramp and the time of the published runs; values of our own where none were published.
    full: (Duration, Duration),
}

fn point(order: Order, mix: Mix, block_bytes: u64, depth: u32, jobs: u16) -> Point {
    let reads_percent = match mix {
        Mix::Read => 100,
        Mix::Write => 0,
        Mix::Mixed => 50,
    };
    Point { visit: Visit { order, theta: 1.0, reads_percent }, mix, block_bytes, depth, jobs, rate_iops: None }
}

/// `level(DISK,…,options)`
fn combined(level: &str, disks: &[String], options: &str) -> String {
    format!("{level}({}{options})", disks.join(","))
}

const BOTH: [Mix; 2] = [Mix::Read, Mix::Write];

fn disk_aggregation() -> Profile {
    let mut points = Vec::new();
    for (tag, order, block, depth, jobs) in [
        ("random", Order::Random, 4 << 10, 128, 8),
        ("sequential", Order::Sequential, 128 << 10, 16, 4),
        ("latency", Order::Random, 4 << 10, 1, 1),
    ] {
        for mix in BOTH {
            points.push((format!("{tag} {}", mix.word()), point(order, mix, block, depth, jobs)));
        }
    }
    Profile {
        name: PROFILES[0],
        // 50, 100 and 100 GiB, divided by 1024: only the ratios matter. A write has the published latency.
        disks: ["50M", "100M", "100M"]
            .map(|size| format!("throttled(faulty(mem:{size},write-delay=941us),iops=3000,bw=125M,latency=638us)"))
            .to_vec(),
        targets: vec![
            ("single disk", |disks| disks[2].clone()),
            ("concat 4K", |disks| combined("concat", disks, ",chunk=4K")),
            ("concat 64K", |disks| combined("concat", disks, ",chunk=64K")),
            ("raid0 64K", |disks| combined("raid0", disks, ",chunk=64K,zones=single")),
            ("raid0 512K", |disks| combined("raid0", disks, ",chunk=512K,zones=single")),
            ("raid0 512K, all zones", |disks| combined("raid0", disks, ",chunk=512K")),
        ],
        points,
        short: Duration::from_millis(1500),
        slices: 3,
        full: (Duration::from_secs(60), Duration::from_secs(60)),
    }
}

fn jbod() -> Profile {
    Profile {
        name: PROFILES[1],
        disks: vec!["throttled(mem:64M,bw=125MB,latency=100us)".to_owned(); 4],
        targets: vec![
            ("raid0", |disks| combined("raid0", disks, ",chunk=64K")),
            ("jbod", |disks| combined("jbod", disks, "")),
        ],
        points: vec![("mixed".to_owned(), point(Order::Random, Mix::Mixed, 4 << 10, 32, 4))],
        short: Duration::from_secs(5),
        slices: 5,
        full: (Duration::from_secs(10), Duration::from_secs(60)),
    }
}

fn queue_depth() -> Profile {
    let depths = [1, 2, 4, 8, 16, 32, 64, 128];
    let of = |mix: Mix| {
        depths.map(|depth| (format!("{} {depth}", mix.word()), point(Order::Random, mix, 4 << 10, depth, 1)))
    };
    Profile {
        name: PROFILES[2],
        disks: vec!["throttled(mem:64M,iops=200000,latency=25us)".to_owned(); 2],
        targets: vec![("raid1", |disks| combined("raid1", disks, "")), ("single disk", |disks| disks[0].clone())],
        points: BOTH.into_iter().flat_map(of).collect(),
        short: Duration::from_secs(1),
        slices: 5,
        full: (Duration::from_secs(5), Duration::from_secs(30)),
    }
}

fn striping() -> Profile {
    let sizes: Vec<u64> = (0..10).map(|power| 1024 << power).collect();
    let mut points = Vec::new();
    for order in [Order::Sequential, Order::Random] {
        for mix in [Mix::Write, Mix::Read] {
            for &size in &sizes {
                let tag = format!("{} {} {}K", order.word(), mix.word(), size / 1024);
                points.push((tag, point(order, mix, size, 1, 3)));
            }
        }
    }
    Profile {
        name: PROFILES[3],
        disks: vec!["throttled(mem:64M,bw=100MB,latency=100us)".to_owned(); 2],
        targets: vec![
            ("raid0", |disks| combined("raid0", disks, ",chunk=64K")),
            ("single disk", |disks| disks[0].clone()),
        ],
        points,
        short: Duration::from_millis(500),
        slices: 5,
        full: (Duration::from_secs(5), Duration::from_secs(30)),
    }
}

/// Returns the plan of `--profile`.
///
/// # Errors
/// There is no such profile, or the disks do not fit it.
pub fn plan(name: &str, args: &BenchArgs) -> Result<Plan, ErrorDetail> {
    let profile = match name {
        "disk-aggregation" => disk_aggregation(),
        "jbod" => jbod(),
        "queue-depth" => queue_depth(),
        "striping" => striping(),
        other => {
            return Err(ErrorDetail::new(Kind::InvalidArgument, format!("there is no profile {other}"))
                .remedy(format!("one of {}", PROFILES.join(", "))));
        }
    };
    let stand_ins = args.targets.is_empty();
    let disks = if stand_ins { profile.disks.clone() } else { args.targets.clone() };
    if disks.len() != profile.disks.len() {
        return Err(ErrorDetail::new(
            Kind::InvalidArgument,
            format!("profile {name} is of {} disks, and {} are named", profile.disks.len(), disks.len()),
        )
        .remedy("name that many disks, or none for stand-ins in memory"));
    }
    let targets: Vec<LabelledTarget> = profile
        .targets
        .iter()
        .map(|(label, of)| Ok(LabelledTarget { label: (*label).to_owned(), target: Target::parse(&of(&disks))? }))
        .collect::<Result<_, ErrorDetail>>()?;
    if let Some(other) = targets.iter().find(|named| !matches!(named.target, Target::Local(_))) {
        return Err(ErrorDetail::new(
            Kind::InvalidArgument,
            format!("profile {name} is of disks, and {} is none", other.target),
        )
        .remedy("name disks or files of this machine, or none for stand-ins in memory"));
    }
    if stand_ins && (args.from > 0 || args.span.is_some()) {
        return Err(ErrorDetail::new(Kind::InvalidArgument, "--from and --span are of disks that are named")
            .remedy("name the disks that the profile is to be measured on"));
    }
    plan_of(profile, targets, args, stand_ins)
}

/// Returns the plan of a profile whose targets are volumes of these nodes.
///
/// # Errors
/// As [`plan`].
pub fn plan_on(name: &str, args: &BenchArgs, nodes: &nodes::Nodes) -> Result<Plan, ErrorDetail> {
    plan_of(nodes::profile(name), nodes.targets.clone(), args, true)
}

fn plan_of(
    profile: Profile,
    targets: Vec<LabelledTarget>,
    args: &BenchArgs,
    stand_ins: bool,
) -> Result<Plan, ErrorDetail> {
    let known = published::of(profile.name);
    let labels: Vec<&str> = profile.targets.iter().map(|(label, _)| *label).collect();
    let tags: Vec<&str> = profile.points.iter().map(|(tag, _)| tag.as_str()).collect();
    let (ramp, length) = if args.full { (Some(profile.full.0), profile.full.1) } else { (None, profile.short) };
    let plan = Plan {
        origin: Some(Origin {
            name: profile.name,
            title: known.title.clone(),
            source: known.source.clone(),
            notes: known.notes.clone(),
            stand_ins,
            published: known.figures(&labels, &tags),
        }),
        targets,
        points: profile.points.into_iter().map(|(_, point)| point).collect(),
        length: Length::Time(args.time.unwrap_or(length)),
        slices: args.slices.unwrap_or(profile.slices),
        ramp: args.ramp.or(ramp),
        shards: args.shards,
        from: args.from,
        span: args.span,
        verify: false,
        driver: args.driver.clone(),
        force: args.force,
        variant: Variant::default(),
    };
    plan.check()?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::Published;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn of(words: &[&str]) -> Result<Plan, ErrorDetail> {
        use clap::Parser as _;
        let args = Line::try_parse_from([&["bench"], words].concat()).expect("clap takes it").args;
        plan(&args.profile.clone().expect("a profile is named"), &args)
    }

    #[test]
    fn every_profile_has_its_published_figures() {
        for (name, targets, points, figures) in
            [("disk-aggregation", 6, 6, 36), ("jbod", 2, 1, 1), ("queue-depth", 2, 16, 12), ("striping", 2, 40, 4)]
        {
            let plan = of(&["--profile", name]).expect("the arguments are valid");
            assert_eq!((plan.targets.len(), plan.points.len()), (targets, points), "{name}");
            let origin = plan.origin.expect("it is a profile");
            assert_eq!(origin.published.len(), figures, "{name}");
            assert!(origin.stand_ins && !origin.notes.is_empty() && !origin.source.is_empty());
            // Each figure belongs to an existing target and point, and no two to the same.
            for (at, figure) in origin.published.iter().enumerate() {
                assert!((0..targets).any(|t| (0..points).any(|p| figure.is_of(t, p))), "{name}: {figure:?}");
                let same = |other: &Published| {
                    (0..targets).any(|t| (0..points).any(|p| other.is_of(t, p) && figure.is_of(t, p)))
                };
                assert!(!origin.published[..at].iter().any(same), "{name}: {figure:?} twice");
            }
        }
    }

    #[test]
    fn figures_are_as_published() {
        let plan = of(&["--profile", "disk-aggregation"]).expect("the arguments are valid");
        let published = plan.origin.expect("it is a profile").published;
        let figure = |target, point| published.iter().find(|one| one.is_of(target, point)).expect("the figure exists");
        assert_eq!(
            (figure(1, 2).bytes_per_second, figure(1, 2).label.as_str()),
            (Some(11_939.0 * 1024.0), "SPDK concat 4K")
        );
        assert_eq!(figure(5, 0).iops, Some(8983.0));
        assert_eq!(figure(3, 5).latency_ns, Some(1_042_055.0));
    }

    #[test]
    fn named_disks_replace_stand_ins() {
        let plan = of(&["--profile", "queue-depth", "null:1G", "null:2G", "--time", "50ms", "--slices", "1"])
            .expect("the arguments are valid");
        assert_eq!(plan.targets[0].target.to_string(), "raid1(null:1G,null:2G)");
        assert_eq!((plan.length, plan.slices), (Length::Time(Duration::from_millis(50)), 1));
        for (words, expected) in [
            (&["--profile", "jbod", "null:1G"][..], "4 disks"),
            (&["--profile", "striping", "nbd://a/b", "null:1G"], "NBD export"),
        ] {
            let error = of(words).expect_err(expected);
            assert!(error.message.contains(expected) && !error.remedy.is_empty(), "{error}");
        }
    }

    #[test]
    fn full_runs_have_the_published_lengths() {
        let plan = of(&["--profile", "disk-aggregation", "--full"]).expect("the arguments are valid");
        assert_eq!((plan.ramp, plan.length), (Some(Duration::from_secs(60)), Length::Time(Duration::from_secs(60))));
    }
}
