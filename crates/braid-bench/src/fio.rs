//! The plan as a job file of fio, so that results can be checked with another tool.
//!
//! fio does not know Braid's disks. A file, a device or an NBD export is named directly. A target that only Braid can combine must be exported
//! first, and comments of the job file contain the commands.

use std::fmt::Write as _;

use braid_geometry::{Level, ZonePolicy};
use braid_ring::DiskSpec;

use super::pattern::{Mix, Order};
use super::plan::{LabelledTarget, Length, Plan, Point};
use super::target::{Combination, How, Target};

/// Returns a job file with one section for each point on each target; the sections run one after the other.
pub fn job_file(plan: &Plan) -> String {
    let mut text = String::from("; Written by braid bench --emit-fio.\n");
    // Writing to a String never fails.
    if let Some(origin) = &plan.origin {
        let _ = writeln!(text, "; Profile {}: {}\n; Published in: {}", origin.name, origin.title, origin.source);
    }
    let fio_targets: Vec<FioTarget> =
        plan.targets.iter().enumerate().map(|(at, named)| FioTarget::of(at, named)).collect();
    for (named, fio_target) in plan.targets.iter().zip(&fio_targets) {
        let _ = writeln!(text, ";\n; {}: {}", named.label, named.target);
        for line in &fio_target.comments {
            let _ = writeln!(text, ";   {line}");
        }
    }
    global(&mut text, plan);
    for (number, point) in plan.points.iter().enumerate() {
        for (target, fio_target) in fio_targets.iter().enumerate() {
            section(&mut text, plan, number, target, point, fio_target);
        }
    }
    text
}

fn global(text: &mut String, plan: &Plan) {
    let _ = writeln!(text, "\n[global]\nnorandommap=1\nrandrepeat=0\ngroup_reporting=1\nthread=1");
    match plan.length {
        Length::Time(time) => {
            let _ = writeln!(text, "time_based=1\nruntime={}ms", time.as_millis());
        }
        Length::Count(_) => {}
    }
    if let Some(ramp) = plan.ramp {
        let _ = writeln!(text, "ramp_time={}ms", ramp.as_millis());
    }
    if plan.from > 0 {
        let _ = writeln!(text, "offset={}", plan.from);
    }
    if plan.verify {
        let _ = writeln!(text, "verify=crc32c\nverify_fatal=1");
    }
}

fn section(text: &mut String, plan: &Plan, number: usize, target: usize, point: &Point, fio_target: &FioTarget) {
    let op = point.mix;
    let rw = match (point.visit.order, op) {
        (Order::Sequential, Mix::Read) => "read",
        (Order::Sequential, Mix::Write) => "write",
        (Order::Sequential, Mix::Mixed) => "rw",
        (_, Mix::Read) => "randread",
        (_, Mix::Write) => "randwrite",
        (_, Mix::Mixed) => "randrw",
    };
    let _ = writeln!(
        text,
        "\n[point{}-target{}]\n; {}, {}\nstonewall=1\nrw={rw}\nbs={}\niodepth={}\nnumjobs={}",
        number + 1,
        target + 1,
        plan.targets[target].label,
        point.whole(),
        point.block_bytes,
        point.depth,
        point.jobs
    );
    if op == Mix::Mixed {
        let _ = writeln!(text, "rwmixread={}", point.visit.reads_percent);
    }
    if point.visit.order == Order::Zipf {
        let _ = writeln!(text, "random_distribution=zipf:{}", point.visit.theta);
    }
    if let Some(rate) = point.rate_iops {
        // fio's rate is per job, and separate for reads and writes.
        let each = rate.div_ceil(u64::from(point.jobs));
        let reads = (each * u64::from(point.visit.reads_percent)).div_ceil(100);
        let _ = match op {
            Mix::Mixed => writeln!(text, "rate_iops={reads},{}\nrate_process=linear", (each - reads).max(1)),
            _ => writeln!(text, "rate_iops={each}\nrate_process=linear"),
        };
    }
    if let Length::Count(count) = plan.length {
        let _ = writeln!(text, "number_ios={}", count.div_ceil(u64::from(point.jobs)));
    }
    for line in &fio_target.options {
        let _ = writeln!(text, "{line}");
    }
    let size = plan.span.or(fio_target.size_bytes.map(|size| size.saturating_sub(plan.from)));
    if let Some(size) = size {
        // Jobs that are sequential or verify have a part each.
        let split = point.jobs > 1 && (plan.verify || point.visit.order == Order::Sequential);
        let each = if split { size / u64::from(point.jobs) / point.block_bytes * point.block_bytes } else { size };
        let _ = writeln!(text, "size={each}");
        if split {
            let _ = writeln!(text, "offset_increment={each}");
        }
    }
}

/// The options with which fio opens a target.
struct FioTarget {
    options: Vec<String>,
    /// Commands that have to run first.
    comments: Vec<String>,
    size_bytes: Option<u64>,
}

impl FioTarget {
    fn of(number: usize, named: &LabelledTarget) -> FioTarget {
        match &named.target {
            Target::Nbd(uri) => nbd(uri.clone(), Vec::new()),
            Target::Named(name) => exported(
                number,
                vec![format!(
                    "export TARGET{}_URI=...   (of {name}, as `braid export list --json` shows it)",
                    number + 1
                )],
            ),
            Target::Local(Combination { disks, how: How::Bare }) => match DiskSpec::parse(&disks[0]) {
                Ok(spec) => bare(number, &disks[0], &spec),
                Err(_) => exported(number, Vec::new()),
            },
            Target::Local(Combination { disks, how: How::Jbod }) => {
                let paths: Option<Vec<String>> = disks
                    .iter()
                    .map(|disk| {
                        let spec = DiskSpec::parse(disk).ok()?;
                        matches!(spec, DiskSpec::Path(_) | DiskSpec::File { .. }).then(|| path_of(&spec)).flatten()
                    })
                    .collect();
                match paths {
                    Some(paths) => FioTarget {
                        options: vec![
                            "ioengine=io_uring".to_owned(),
                            "direct=1".to_owned(),
                            format!("filename={}", paths.join(":")),
                        ],
                        comments: vec![
                            "fio spreads each job over all files; Braid gives each disk jobs of its own".to_owned(),
                        ],
                        size_bytes: None,
                    },
                    None => {
                        exported(number, vec!["each disk as an array of its own; here stands the first".to_owned()])
                    }
                }
            }
            Target::Local(Combination { disks, how: How::Array(spec) }) => {
                if spec.level == Level::Raid1 {
                    let variable = format!("export TARGET{}_URI='nbd+unix:///NAME?socket=PATH'", number + 1);
                    return exported(
                        number,
                        vec!["make a mirror of the disks and serve it over NBD, then".to_owned(), variable],
                    );
                }
                let options = format!(" --level {} --chunk {}K", spec.level, spec.chunk_bytes / 1024);
                let mut comments = created(number, &options, disks);
                if spec.zones == ZonePolicy::Single {
                    comments.push("zones=single: keep to the part that all disks have, by size=".to_owned());
                }
                exported(number, comments)
            }
        }
    }
}

/// Returns the commands that create and export an array of the disks, and set the variable with its URI.
fn created(number: usize, options: &str, disks: &[String]) -> Vec<String> {
    let name = format!("target{}", number + 1);
    let quoted: Vec<String> = disks.iter().map(|disk| format!("'{}'", disk.replace('\'', r"'\''"))).collect();
    vec![
        format!("braid array create {name}{options} {}", quoted.join(" ")),
        format!("braid export add {name} --nbd unix:/run/braid/{name}.sock"),
        format!("export TARGET{}_URI='nbd+unix:///{name}?socket=/run/braid/{name}.sock'", number + 1),
    ]
}

fn path_of(spec: &DiskSpec) -> Option<String> {
    // A colon separates files for fio.
    Some(spec.path()?.to_string_lossy().replace('\\', "\\\\").replace(':', "\\:"))
}

fn bare(number: usize, name: &str, spec: &DiskSpec) -> FioTarget {
    match spec {
        DiskSpec::Null { size_bytes } => {
            FioTarget { options: vec!["ioengine=null".to_owned()], comments: Vec::new(), size_bytes: Some(*size_bytes) }
        }
        DiskSpec::Path(_) | DiskSpec::File { .. } => {
            let size_bytes = match spec {
                DiskSpec::File { size_bytes, .. } => *size_bytes,
                _ => None,
            };
            let file = path_of(spec).unwrap_or_default();
            FioTarget {
                options: vec!["ioengine=io_uring".to_owned(), "direct=1".to_owned(), format!("filename={file}")],
                comments: Vec::new(),
                size_bytes,
            }
        }
        _ => exported(number, created(number, " --level concat", &[name.to_owned()])),
    }
}

fn nbd(uri: String, comments: Vec<String>) -> FioTarget {
    FioTarget { options: vec!["ioengine=nbd".to_owned(), format!("uri={uri}")], comments, size_bytes: None }
}

/// Returns the options of an export that must be created first: its URI comes from the environment.
fn exported(number: usize, comments: Vec<String>) -> FioTarget {
    nbd(format!("${{TARGET{}_URI}}", number + 1), comments)
}
