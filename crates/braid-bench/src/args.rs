//! The command line of `braid bench`.

use std::path::PathBuf;
use std::time::Duration;

use braid_geometry::Level;
use braid_terminal::levels;
use clap::Args;

use super::pattern::{Mix, Order};
use super::values::{self, Sweep};

/// Arguments of `braid bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// What to measure; several are compared, taking turns
    ///
    /// A disk (null:1T, mem:1G, ./a.img, /dev/sdb, throttled(DISK,…)); disks made into one for this run:
    /// raid0(DISK,DISK,chunk=64K), concat(…), raid1(…), raid10(…), raid5(…), raid6(…), or jbod(…) for each disk by itself; an NBD export
    /// (nbd+unix:///NAME?socket=PATH, nbd://HOST:PORT/NAME); or the name of an array or export of the daemon, which is
    /// measured through its NBD socket. Disks are opened by this process; no label is read or written. A disk that several
    /// targets name is the same disk. With --level, the disks of one array.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Combine all disks into one target; the level also as a number, or as raid-5, stripe, mirror
    #[arg(long, ignore_case = true, value_parser = levels::parser(&Level::ALL))]
    pub level: Option<Level>,
    /// With --level: contiguous bytes on one disk before the next disk [default: 64K]
    #[arg(long, value_name = "SIZE", requires = "level", value_parser = values::size)]
    pub chunk: Option<u64>,
    /// Label of a target in tables and charts, in the order of the targets (may be repeated)
    #[arg(long, value_name = "TEXT")]
    pub label: Vec<String>,
    /// The order in which blocks are visited
    #[arg(long, value_enum, default_value = "random")]
    pub pattern: Order,
    /// Exponent of --pattern zipf: the block of rank k has a frequency proportional to k^-theta [default: 0.99]
    #[arg(long, value_name = "NUMBER", value_parser = values::theta)]
    pub theta: Option<f64>,
    /// The operations
    #[arg(long, value_enum, default_value = "read")]
    pub op: Mix,
    /// Share of reads with --op mixed, in percent [default: 70]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..100))]
    pub reads: Option<u8>,
    /// Bytes of each I/O: one size, a list (4K,64K), or a range that doubles (1K..512K)
    #[arg(long, visible_alias = "block", value_name = "SIZES", default_value = "4K", value_parser = values::blocks)]
    pub block_size: Sweep,
    /// I/Os in flight per job: one number, a list (1,4,16), or a range that doubles (1..128)
    #[arg(long, value_name = "NUMBERS", default_value = "32", value_parser = values::depths)]
    pub depth: Sweep,
    /// Jobs, each with a depth of its own; over NBD, connections [default: one for each shard]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub jobs: Option<u16>,
    /// Shards: threads, each with a ring of its own, over which jobs are spread [default: 1, or as many as jobs and
    /// processors allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: Option<u16>,
    /// I/Os per second of all jobs, by a schedule that does not wait for completions [default: as many as possible]
    #[arg(long, value_name = "IOPS", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub rate: Option<u64>,
    /// How long each point is measured on each target: 500ms, 5s, 2m [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub time: Option<Duration>,
    /// Number of I/Os, instead of a time
    #[arg(long, value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Number of slices, in which the targets take turns; intervals are computed from them [default: 5; with
    /// --count: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub slices: Option<u16>,
    /// Run each point this long before it is measured
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub ramp: Option<Duration>,
    /// First byte of the used part of a device
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = values::size)]
    pub from: u64,
    /// Length of the used part [default: to the end]
    #[arg(long, visible_alias = "size", value_name = "SIZE", value_parser = values::size)]
    pub span: Option<u64>,
    /// Write self-describing blocks, and check every block that is read
    #[arg(long)]
    pub verify: bool,
    /// The I/O driver [default: the first that works]
    #[arg(long, value_parser = ["io_uring", "libaio", "threads"])]
    pub driver: Option<String>,
    /// Write to disks and exports that carry foreign data, and destroy it
    #[arg(long)]
    pub force: bool,
    /// Measure a published load, and compare with the published figures; TARGETs replace the stand-in disks
    #[arg(
        long,
        value_name = "PROFILE",
        value_parser = super::published::PROFILES,
        conflicts_with_all = ["level", "pattern", "theta", "op", "reads", "block_size", "depth", "jobs", "rate", "count", "verify", "label"]
    )]
    pub profile: Option<String>,
    /// With --profile: as long as the published runs
    #[arg(long)]
    pub full: bool,
    /// Write a self-contained HTML page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Measure nothing: print the plan as a job file of fio
    #[arg(long, conflicts_with_all = ["html", "json"])]
    pub emit_fio: bool,
    /// Measure no-operations of io_uring instead of targets, at this depth, in batches of it
    #[arg(long, conflicts_with_all = ["targets", "level", "verify", "profile", "emit_fio", "rate", "html"])]
    pub nop: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// The daemon's socket, for targets that are names [default: BRAID_SOCKET, else that of braid.toml, else the user's own
    /// place]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl BenchArgs {
    /// Returns the share of reads, in percent.
    pub fn reads_percent(&self) -> u8 {
        match self.op {
            Mix::Read => 100,
            Mix::Write => 0,
            Mix::Mixed => self.reads.unwrap_or(70),
        }
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

    fn parse(words: &[&str]) -> Result<BenchArgs, clap::Error> {
        use clap::Parser as _;
        Line::try_parse_from([&["bench"], words].concat()).map(|line| line.args)
    }

    #[test]
    fn former_option_names_are_accepted() {
        let args = parse(&["null:1T", "--block", "8K", "--size", "1G", "--depth", "1..4"]).expect("it is right");
        assert_eq!((args.block_size, args.span, args.depth), (Sweep(vec![8192]), Some(1 << 30), Sweep(vec![1, 2, 4])));
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for wrong in [
            &["--nop", "null:1T"][..],
            &["null:1T", "--count", "5", "--time", "5s"],
            &["null:1T", "--depth", "0"],
            &["null:1T", "--chunk", "64K"],
            &["--profile", "jbod", "--depth", "4"],
            &["--profile", "nonsense"],
            &["null:1T", "--emit-fio", "--json"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse(&["--profile", "jbod", "--time", "1s", "--json"]).is_ok());
    }
}
