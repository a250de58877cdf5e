//! `make bench`: measures every line of the table of targets in pairs, prints it, and writes it to pages.
//!
//! A and B alternate in slices of a second or more within one run. A figure is the ratio of their medians, with the interval that resampling
//! of the pairs gives. A target is missed if the whole interval lies on its wrong side. Every slice is a process of its own, so that no slice
//! inherits memory or counters of another.

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
mod sectors;
mod stripes;
mod throttled;
mod ublk;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use braid_bench::process::set_braid;
use braid_bench::statistics::{Ratio, median, ratio_of_medians};
use clap::Args;

use crate::program;

/// Arguments of `xtask bench`.
#[derive(Args, Clone, Debug)]
pub struct TableArgs {
    /// Write the table to pages in this folder, if all of it is measured
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// The braid program to measure [default: braid beside this executable]
    #[arg(long, value_name = "PATH")]
    braid: Option<PathBuf>,
    /// Measure longer, as for published figures
    #[arg(long)]
    full: bool,
    /// Exit with status 1 if a target is missed
    #[arg(long)]
    strict: bool,
    /// Measure only the parts whose name contains this, and write no file
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
}

/// A bound that a figure must keep.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// No bound: the figure is shown for comparison.
    Shown,
}

impl Target {
    /// Returns whether the whole interval lies on the wrong side.
    fn missed_by(self, ratio: Ratio) -> bool {
        match self {
            Target::AtMost(bound) => ratio.low > bound,
            Target::AtLeast(bound) => ratio.high < bound,
            Target::Shown => false,
        }
    }
}

/// One measured line of the table.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// What was measured.
    pub measure: String,
    /// The figure, with its interval.
    pub ratio: Ratio,
    /// The bound of the figure.
    pub target: Target,
    /// The medians of both sides, as text.
    pub detail: String,
}

impl Measurement {
    /// Returns the ratio of the medians of pairs: slice i of `a` ran beside slice i of `b`.
    pub fn of_pairs(measure: impl Into<String>, target: Target, a: &[f64], b: &[f64], detail: String) -> Measurement {
        Measurement { measure: measure.into(), ratio: ratio_of_medians(a, b), target, detail }
    }

    /// Returns the median of a figure that was measured several times, with its range as the interval.
    pub fn of_one(measure: impl Into<String>, target: Target, values: &[f64], detail: String) -> Measurement {
        let extreme = |of: fn(f64, f64) -> f64| values.iter().copied().reduce(of).unwrap_or(f64::NAN);
        let ratio = Ratio { value: median(values), low: extreme(f64::min), high: extreme(f64::max) };
        Measurement { measure: measure.into(), ratio, target, detail }
    }

    /// Returns whether the target was missed.
    pub fn missed(&self) -> bool {
        self.target.missed_by(self.ratio)
    }

    /// Formats the line for a terminal.
    pub fn text(&self) -> String {
        let Ratio { value, low, high } = self.ratio;
        let digits = if value.abs() < 0.1 { 4 } else { 3 };
        let target = match self.target {
            Target::AtMost(bound) => format!("at most {bound}"),
            Target::AtLeast(bound) => format!("at least {bound}"),
            Target::Shown => "(no target)".to_owned(),
        };
        let miss = if self.missed() { "MISS" } else { "" };
        let figure = format!("{value:.digits$} [{low:.digits$}, {high:.digits$}]");
        format!("{:<72} {figure:<26} {target:<16} {miss:<4}  {}", self.measure, self.detail)
    }
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Pairs of slices of a line.
    pub pairs: usize,
    /// The length of a slice.
    pub slice: Duration,
    /// The length of a slice without a disk and without a second process, which outside noise hardly affects.
    pub short_slice: Duration,
    /// The length of a slice on throttled disks, which the wall clock limits.
    pub throttled_slice: Duration,
    /// How long the idle daemon is observed.
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

/// A part of the table: its name (for `--only`), its title, and the function that measures it.
struct Part {
    name: &'static str,
    title: &'static str,
    measure: fn(&Effort, &mut dyn FnMut(Measurement)) -> anyhow::Result<()>,
}

const PARTS: &[Part] = &[
    Part { name: "ring", title: "CPU per I/O against one io_uring no-operation", measure: ring::measure },
    Part { name: "generator", title: "The cost of the load generator", measure: generator::measure },
    Part { name: "allocations", title: "Allocations", measure: daemons::allocations },
    Part { name: "files", title: "A raw file through Braid against fio", measure: files::measure },
    Part { name: "throttled", title: "Three disks against one", measure: throttled::measure },
    Part { name: "concat", title: "The chunk of a concat", measure: throttled::concat },
    Part { name: "depths", title: "Mirrors: deeper queues", measure: mirrors::depths },
    Part { name: "speeds", title: "Mirrors: members of different speeds", measure: mirrors::different_speeds },
    Part { name: "bitmap", title: "Mirrors: the write-intent bitmap", measure: mirrors::bitmap },
    Part { name: "rebuild", title: "Mirrors: rebuilds", measure: mirrors::rebuild },
    Part {
        name: "delta-resync",
        title: "Mirrors: delta resync of a member that was missing",
        measure: mirrors::delta_resync,
    },
    Part { name: "parity", title: "Parity: arithmetic on one core", measure: parity::measure },
    Part { name: "stripes", title: "Parity: stripes on null disks, and on throttled disks", measure: stripes::measure },
    Part { name: "pools", title: "Pools: volumes against the array below", measure: pools::measure },
    Part { name: "sectors", title: "Volumes with blocks of 512 bytes", measure: sectors::measure },
    Part { name: "nbd", title: "NBD servers", measure: nbd::measure },
    Part {
        name: "neighbours",
        title: "One client against others, and discards of unallocated space",
        measure: neighbours::measure,
    },
    Part { name: "client", title: "NBD client and server together", measure: client::measure },
    Part { name: "connections", title: "Four NBD connections", measure: client::connections },
    Part { name: "tls", title: "NBD over TLS", measure: encrypted::measure },
    Part { name: "replicas", title: "Replicated volumes", measure: replicated::measure },
    Part { name: "replicas-tcp", title: "Replicated volumes: replicas over TCP", measure: replicated::over_tcp },
    Part { name: "replicas-links", title: "Replicated volumes: links of 1 Gbit/s", measure: links::measure },
    Part { name: "ublk", title: "Block devices (ublk) against the kernel's drivers", measure: ublk::measure },
    Part { name: "fuse", title: "An export as a file", measure: fuse::measure },
    Part { name: "idle", title: "An idle daemon", measure: daemons::idle },
    Part { name: "start", title: "Start of the daemon", measure: daemons::start },
];

/// Measures every part, prints each line when it is measured, and writes all of them to pages in the folder of `--table`. A part that cannot be measured
/// prints why, in the table too, and counts as a miss.
///
/// # Errors
/// There is no `braid` program, or the pages cannot be written.
pub fn run(args: TableArgs) -> anyhow::Result<ExitCode> {
    set_braid(program::named_or_default(args.braid)?);
    let effort = if args.full { Effort::FULL } else { Effort::SHORT };
    let mut sections = Vec::new();
    let mut misses = 0;
    for part in PARTS.iter().filter(|part| args.only.as_deref().is_none_or(|word| part.name.contains(word))) {
        println!("\n{}", part.title);
        let mut lines = Vec::new();
        let measured = (part.measure)(&effort, &mut |line: Measurement| {
            println!("  {}", line.text());
            lines.push(line);
        });
        misses += lines.iter().filter(|line| line.missed()).count();
        let failure = measured.err().map(|error| format!("{error:#}"));
        if let Some(failure) = &failure {
            println!("  NOT MEASURED: {failure}");
            misses += 1;
        }
        sections.push(markdown::Section { title: part.title, lines, failure });
    }
    println!();
    if let (Some(folder), None) = (&args.table, &args.only) {
        markdown::write(folder, &sections, args.full).with_context(|| format!("writing to {}", folder.display()))?;
        println!("written to {}", folder.display());
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
