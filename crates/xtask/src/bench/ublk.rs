//! Block devices (ublk) against the kernel's drivers.
//!
//! Build machines have neither ublk nor md, and the measurements overwrite disks. They run in the guest of the tests, by the script
//! `scripts/bench-vm.sh`, whose path `make bench` sets in the environment. The script prints figures; the lines and their targets are
//! defined here.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use braid_bench::process::braid;
use braid_bench::statistics::median;

use super::{Effort, Measurement, Target};

/// The environment variable with the path of the script.
const SCRIPT: &str = "BRAID_BENCH_GUEST";

/// The unit of a line's figures.
#[derive(Clone, Copy)]
enum Unit {
    /// I/Os per second, of two devices.
    Iops,
    /// Milliseconds, of one device.
    Milliseconds,
}

/// Of each line: the script's name for it, its text, its target, and its unit.
const LINES: &[(&str, &str, Target, Unit)] = &[
    ("loop-read", "4 KiB random read, depth 32, one file: ublk / loop driver", Target::AtLeast(1.0), Unit::Iops),
    ("loop-write", "4 KiB random write, depth 32, one file: ublk / loop driver", Target::AtLeast(1.0), Unit::Iops),
    ("null-read", "4 KiB random read, depth 32, a null disk: ublk / null_blk", Target::Shown, Unit::Iops),
    ("null-write", "4 KiB random write, depth 32, a null disk: ublk / null_blk", Target::Shown, Unit::Iops),
    ("queues-read", "4 KiB random read, two jobs, depth 32 each: two queues / one", Target::Shown, Unit::Iops),
    ("queues-write", "4 KiB random write, two jobs, depth 32 each: two queues / one", Target::Shown, Unit::Iops),
    ("md-4k-read", "raid0 of three, 4 KiB random read, depth 32: ublk / md", Target::AtLeast(0.7), Unit::Iops),
    ("md-4k-write", "raid0 of three, 4 KiB random write, depth 32: ublk / md", Target::AtLeast(0.7), Unit::Iops),
    ("md-1m-read", "raid0 of three, 1 MiB sequential read, depth 8: ublk / md", Target::AtLeast(0.9), Unit::Iops),
    ("md-1m-write", "raid0 of three, 1 MiB sequential write, depth 8: ublk / md", Target::AtLeast(0.9), Unit::Iops),
    ("undisturbed", "longest write, ms: undisturbed", Target::Shown, Unit::Milliseconds),
    ("killed", "longest write, ms: the daemon killed and started again", Target::Shown, Unit::Milliseconds),
    ("upgraded", "longest write, ms: braid serve --upgrade", Target::Shown, Unit::Milliseconds),
];

/// Measures all lines in one guest.
pub fn measure(_: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let script =
        std::env::var(SCRIPT).context("this needs a guest with a kernel of its own: run it through `make bench`")?;
    let out = Command::new(&script).arg(braid()?).stdin(Stdio::null()).output().context(script)?;
    if !out.status.success() {
        bail!("the guest: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let figures = read(&String::from_utf8_lossy(&out.stdout))?;
    for &(name, measure, target, unit) in LINES {
        let (ours, theirs) = figures.get(name).with_context(|| format!("the guest did not measure {name}"))?;
        found(match unit {
            Unit::Iops => {
                let detail = format!("{:.0} against {:.0} IOPS in emulation", median(ours), median(theirs));
                Measurement::of_pairs(measure, target, ours, theirs, detail)
            }
            Unit::Milliseconds => {
                Measurement::of_one(measure, target, ours, "fio, 4 KiB at random, depth 4, in emulation".to_owned())
            }
        });
    }
    Ok(())
}

/// Figures by line: of Braid, and of its rival.
type Figures = BTreeMap<String, (Vec<f64>, Vec<f64>)>;

/// Parses the output of the script: a name and a pair of figures on each line.
fn read(text: &str) -> anyhow::Result<Figures> {
    let mut figures = Figures::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, ours, theirs] = words[..] else { bail!("{line:?} is not a name and a pair of figures") };
        let number =
            |word: &str| word.parse::<f64>().with_context(|| format!("{line:?} is not a name and a pair of figures"));
        let pair = (number(ours)?, number(theirs)?);
        let line = figures.entry(name.to_owned()).or_default();
        line.0.push(pair.0);
        line.1.push(pair.1);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_grouped_by_line() {
        let figures = read("a 1 2\nb 5 1\na 3 4.5\n").expect("it is well-formed");
        assert_eq!(figures["a"], (vec![1.0, 3.0], vec![2.0, 4.5]));
        assert_eq!(figures["b"], (vec![5.0], vec![1.0]));
        for wrong in ["a 1", "a 1 2 3", "a one 2"] {
            read(wrong).expect_err(wrong);
        }
    }
}
