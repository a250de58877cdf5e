//! What `braid bench` is asked for.

use super::volume::Volume;
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
    /// With --level: contiguous bytes on one disk before the next disk's turn [default: 64K]
    #[arg(long, value_name = "SIZE", requires = "level", value_parser = values::size)]
    pub chunk: Option<u64>,
    /// What a target is called in tables and plots, in order of the targets (may be repeated)
    #[arg(long, value_name = "TEXT")]
    pub label: Vec<String>,
    /// In which order blocks are visited
    #[arg(long, value_enum, default_value = "random")]
    pub pattern: Order,
    /// How uneven --pattern zipf is: the block of rank k comes in proportion to k^-theta [default: 0.99]
    #[arg(long, value_name = "NUMBER", value_parser = values::theta)]
    pub theta: Option<f64>,
    /// What is done to them
    #[arg(long, value_enum, default_value = "read")]
    pub op: Mix,
    /// Share of reads with --op mixed, in percent [default: 70]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..100))]
    pub reads: Option<u8>,
    /// Bytes of each I/O: one size, a list (4K,64K), or a range that doubles (1K..512K)
    #[arg(long, visible_alias = "block", value_name = "SIZES", default_value = "4K", value_parser = values::blocks)]
    pub block_size: Sweep,
    /// I/Os in flight of each job: one number, a list (1,4,16), or a range that doubles (1..128)
    #[arg(long, value_name = "NUMBERS", default_value = "32", value_parser = values::depths)]
    pub depth: Sweep,
    /// Jobs, each with a depth of its own; over NBD, connections [default: one for each shard]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub jobs: Option<u16>,
    /// Shards: threads, each with a ring of its own, over which jobs are spread [default: 1, or as many as jobs and
    /// processors allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: Option<u16>,
    /// I/Os a second of all jobs together, by a schedule that does not wait for answers [default: as fast as it goes]
    #[arg(long, value_name = "IOPS", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub rate: Option<u64>,
    /// How long each point is measured on each target: 500ms, 5s, 2m [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub time: Option<Duration>,
    /// How many I/Os, instead of a time
    #[arg(long, value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Into how many slices that is cut, in which the targets take turns; intervals come from them [default: 5; with
    /// --count: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub slices: Option<u16>,
    /// Before each point, run this long without counting
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub ramp: Option<Duration>,
    /// First byte of the part that is used
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = values::size)]
    pub from: u64,
    /// Bytes of the part that is used [default: to the end]
    #[arg(long, visible_alias = "size", value_name = "SIZE", value_parser = values::size)]
    pub span: Option<u64>,
    /// Write blocks that say who they are, and check every block that is read
    #[arg(long)]
    pub verify: bool,
    /// How the kernel is asked [default: the first that works]
    #[arg(long, value_parser = ["io_uring", "libaio", "threads"])]
    pub driver: Option<String>,
    /// Write although a disk carries somebody's data, or an export may, and destroy it
    #[arg(long)]
    pub force: bool,
    /// Measure what was published elsewhere, with the published figures beside ours; TARGETs replace its stand-in disks
    #[arg(
        long,
        value_name = "PROFILE",
        value_parser = super::profile::NAMES,
        conflicts_with_all = ["level", "pattern", "theta", "op", "reads", "block_size", "depth", "jobs", "rate", "count", "verify", "label"]
    )]
    pub profile: Option<String>,
    /// With --profile: as long as the published runs
    #[arg(long)]
    pub full: bool,
    /// Write one self-contained page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Measure nothing: print the same as a job file of fio
    #[arg(long, conflicts_with_all = ["html", "json"])]
    pub emit_fio: bool,
    /// Instead of targets, what the kernel's ring costs: no-operations at this depth, in batches of it
    #[arg(long, conflicts_with_all = ["targets", "level", "verify", "profile", "emit_fio", "rate", "html"])]
    pub nop: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// The daemon's socket, for targets that are names [default: BRAID_SOCKET, else that of braid.toml, else the user's own
    /// place]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Measure all rows of the table of targets and write it to this file (`make bench`)
    #[arg(long, value_name = "FILE", hide = true)]
    pub table: Option<PathBuf>,
    /// With --table: exit status 1 if a target is missed
    #[arg(long, hide = true)]
    pub strict: bool,
    /// With --table: only rows whose name contains this
    #[arg(long, value_name = "WORD", hide = true)]
    pub only: Option<String>,
    /// The same block again and again, with nothing remembered: what the engine costs without this generator (`make bench`)
    #[arg(long, hide = true, conflicts_with_all = ["verify", "rate", "profile", "emit_fio"])]
    pub bare: bool,
    /// Let the data of a job's I/Os go through so much memory in turn, so that they are in no cache (`make bench`)
    #[arg(long, value_name = "SIZE", hide = true, conflicts_with = "verify", value_parser = values::size)]
    pub memory: Option<u64>,
    /// Leave out this member of redundant targets, counted from 0 (`make bench`)
    #[arg(long, value_name = "MEMBER", hide = true, requires = "level")]
    pub lost: Option<u16>,
    /// With --level raid5 or raid6: the last disk holds the journal and nothing else (`make bench`)
    #[arg(long, hide = true, requires = "level")]
    pub journal_last: bool,
    /// Measure a volume of a pool that is made on each target of disks, for this run (`make bench`)
    #[arg(long, value_name = "WITH", hide = true)]
    pub volume: Option<Volume>,
    /// Measure what takes more than one load, and print its figures as JSON (`make bench`)
    #[arg(long, value_name = "NAME", hide = true)]
    pub scene: Option<String>,
}

impl BenchArgs {
    /// Share of reads, in percent.
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
    fn names_that_were_still_are() {
        let args = parse(&["null:1T", "--block", "8K", "--size", "1G", "--depth", "1..4"]).expect("it is right");
        assert_eq!((args.block_size, args.span, args.depth), (Sweep(vec![8192]), Some(1 << 30), Sweep(vec![1, 2, 4])));
    }

    #[test]
    fn what_contradicts_is_refused() {
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
