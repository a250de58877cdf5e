//! `make bench`: every row of the table of targets, measured in pairs, printed and written down.
//!
//! A and B alternate in slices of a second or more within one run; each figure is the ratio of their medians with the
//! interval in which resampling the pairs puts it. A target is missed when the whole interval lies on its wrong side.
//! Every slice is a process of its own, so that nobody's memory or counters leak into another's.

mod child;
mod client;
mod daemons;
mod encrypted;
mod files;
mod fio;
mod fuse;
mod generator;
mod links;
mod markdown;
mod mirrors;
mod nbd;
mod neighbours;
mod parity;
mod pools;
mod replicated;
mod ring;
mod rows;
mod sectors;
mod throttled;
mod ublk;

pub use child::{Folder, bench_anywhere, wait_for};
pub use daemons::Daemon;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::BenchArgs;
use super::statistics::{Ratio, ratio_of_medians};

/// On which side of a number a measure has to stay.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// For comparison only.
    Shown,
}

impl Target {
    /// Whether an interval lies wholly on the wrong side.
    fn missed_by(self, ratio: Ratio) -> bool {
        match self {
            Target::AtMost(bound) => ratio.low > bound,
            Target::AtLeast(bound) => ratio.high < bound,
            Target::Shown => false,
        }
    }
}

/// One measured line.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub measure: String,
    /// The figure with its interval.
    pub ratio: Ratio,
    /// What it has to be.
    pub target: Target,
    /// The medians on both sides, in words.
    pub detail: String,
}

impl Row {
    /// A row of pairs: slice i of `a` beside slice i of `b`.
    pub fn of_pairs(measure: impl Into<String>, target: Target, a: &[f64], b: &[f64], detail: String) -> Row {
        Row { measure: measure.into(), ratio: ratio_of_medians(a, b), target, detail }
    }

    /// A row of one figure measured several times: its median, and its range as the interval.
    pub fn of_one(measure: impl Into<String>, target: Target, values: &[f64], detail: String) -> Row {
        let fold = |with: fn(f64, f64) -> f64| values.iter().copied().fold(f64::NAN, with);
        let ratio = Ratio { value: super::statistics::median(values), low: fold(f64::min), high: fold(f64::max) };
        Row { measure: measure.into(), ratio, target, detail }
    }

    /// Whether the target was missed.
    pub fn missed(&self) -> bool {
        self.target.missed_by(self.ratio)
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let Ratio { value, low, high } = self.ratio;
        let digits = if value.abs() < 0.1 { 4 } else { 3 };
        let target = match self.target {
            Target::AtMost(bound) => format!("at most {bound}"),
            Target::AtLeast(bound) => format!("at least {bound}"),
            Target::Shown => "(no target)".to_owned(),
        };
        let verdict = if self.missed() { "MISS" } else { "" };
        let figure = format!("{value:.digits$} [{low:.digits$}, {high:.digits$}]");
        format!("{:<72} {figure:<26} {target:<16} {verdict:<4}  {}", self.measure, self.detail)
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Pairs of slices of a row.
    pub pairs: usize,
    /// One slice.
    pub slice: Duration,
    /// A slice of something that noise from outside cannot shift: no disk, no second process.
    pub short_slice: Duration,
    /// A slice of something that the wall clock shapes.
    pub throttled_slice: Duration,
    /// How long the idle daemon is watched.
    pub idle: Duration,
}

impl Effort {
    const SHORT: Effort = Effort {
        pairs: 7,
        slice: Duration::from_secs(1),
        short_slice: Duration::from_millis(400),
        throttled_slice: Duration::from_secs(2),
        idle: Duration::from_secs(20),
    };
    const FULL: Effort = Effort {
        pairs: 21,
        slice: Duration::from_secs(5),
        short_slice: Duration::from_secs(3),
        throttled_slice: Duration::from_secs(10),
        idle: Duration::from_secs(120),
    };
}

/// A part of the table: its name (for `--only`), its title, and what measures it.
struct Part {
    name: &'static str,
    title: &'static str,
    measure: fn(&Effort, &mut dyn FnMut(Row)) -> anyhow::Result<()>,
}

const PARTS: &[Part] = &[
    Part { name: "ring", title: "CPU per I/O against one io_uring no-operation", measure: ring::measure },
    Part { name: "generator", title: "What the load generator itself costs", measure: generator::measure },
    Part { name: "allocations", title: "Allocations", measure: daemons::allocations },
    Part { name: "files", title: "A raw file through Braid against fio", measure: files::measure },
    Part { name: "throttled", title: "Three disks against one", measure: throttled::measure },
    Part { name: "concat", title: "The chunk of a concat", measure: throttled::concat },
    Part { name: "depths", title: "Mirrors: deeper queues", measure: mirrors::depths },
    Part { name: "unlike", title: "Mirrors: members of unlike speed", measure: mirrors::unlike },
    Part { name: "bitmap", title: "Mirrors: the write-intent bitmap", measure: mirrors::bitmap },
    Part { name: "rebuild", title: "Mirrors: rebuilds", measure: mirrors::rebuild },
    Part { name: "away", title: "Mirrors: a member that was away", measure: mirrors::away },
    Part { name: "parity", title: "Parity: arithmetic on one core", measure: parity::measure },
    Part {
        name: "rows",
        title: "Parity: rows on disks that cost nothing, and on throttled ones",
        measure: rows::measure,
    },
    Part { name: "pools", title: "Pools: volumes against what they stand on", measure: pools::measure },
    Part { name: "sectors", title: "Volumes with blocks of 512 bytes", measure: sectors::measure },
    Part { name: "nbd", title: "NBD servers", measure: nbd::measure },
    Part {
        name: "neighbours",
        title: "One client against the others, and what was never written",
        measure: neighbours::measure,
    },
    Part { name: "client", title: "NBD client and server together", measure: client::measure },
    Part { name: "connections", title: "Four NBD connections", measure: client::connections },
    Part { name: "tls", title: "NBD over TLS", measure: encrypted::measure },
    Part { name: "replicas", title: "Volumes on several nodes", measure: replicated::measure },
    Part { name: "replicas-tcp", title: "Volumes on several nodes: replicas over TCP", measure: replicated::over_tcp },
    Part { name: "replicas-links", title: "Volumes on several nodes: links of 1 Gbit/s", measure: links::measure },
    Part { name: "ublk", title: "Block devices (ublk) against the kernel's own drivers", measure: ublk::measure },
    Part { name: "fuse", title: "An export as a file", measure: fuse::measure },
    Part { name: "idle", title: "An idle daemon", measure: daemons::idle },
    Part { name: "start", title: "Start of the daemon", measure: daemons::start },
];

/// Measures every part, prints each row as it comes, and writes them all to `file`.
///
/// # Errors
/// The file cannot be written. A part that cannot be measured says why, in the table too, and counts as a miss.
pub fn run(args: &BenchArgs, file: &Path) -> anyhow::Result<ExitCode> {
    let effort = if args.full { Effort::FULL } else { Effort::SHORT };
    let mut sections = Vec::new();
    let mut misses = 0;
    for part in PARTS.iter().filter(|part| args.only.as_deref().is_none_or(|word| part.name.contains(word))) {
        println!("\n{}", part.title);
        let mut rows = Vec::new();
        let measured = (part.measure)(&effort, &mut |row: Row| {
            println!("  {}", row.line());
            rows.push(row);
        });
        misses += rows.iter().filter(|row| row.missed()).count();
        let failure = measured.err().map(|error| format!("{error:#}"));
        if let Some(failure) = &failure {
            println!("  NOT MEASURED: {failure}");
            misses += 1;
        }
        sections.push(markdown::Section { title: part.title, rows, failure });
    }
    println!();
    if args.only.is_none() {
        std::fs::write(file, markdown::page(&sections, args.full))?;
        println!("written to {}", file.display());
    }
    println!("{misses} missed");
    Ok(if args.strict && misses > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_missed_only_by_the_whole_interval() {
        let ratio = |low, high| Ratio { value: 1.0, low, high };
        assert!(Target::AtMost(0.9).missed_by(ratio(0.95, 1.1)));
        assert!(!Target::AtMost(0.9).missed_by(ratio(0.85, 1.1)));
        assert!(Target::AtLeast(1.2).missed_by(ratio(0.9, 1.1)));
        assert!(!Target::AtLeast(1.2).missed_by(ratio(0.9, 1.3)));
        assert!(!Target::Shown.missed_by(ratio(0.0, 9.0)));
    }
}
