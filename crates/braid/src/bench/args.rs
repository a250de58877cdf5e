//! What `braid bench` is asked for.

use std::path::PathBuf;
use std::time::Duration;

use braid_api::{ErrorDetail, Kind};
use braid_geometry::units::{format_size, parse_size};
use clap::Args;

use super::pattern::{Mix, Order};

/// Arguments of `braid bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// One disk, the disks of an array (with --level), or one NBD export (nbd+unix:///NAME?socket=PATH, nbd://HOST:PORT/NAME)
    #[arg(value_name = "DISK")]
    pub disks: Vec<String>,
    /// Combine the disks, for this run only: nothing is written that says so, and no label is read
    #[arg(long, value_parser = ["concat", "raid0", "raid1"])]
    pub level: Option<String>,
    /// Contiguous bytes on one disk before the next disk's turn
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = size)]
    pub chunk: u64,
    /// In which order blocks are visited
    #[arg(long, value_enum, default_value = "random")]
    pub pattern: Order,
    /// What is done to them
    #[arg(long, value_enum, default_value = "read")]
    pub op: Mix,
    /// Share of reads with --op mixed, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u8).range(1..100))]
    pub reads: u8,
    /// Bytes of each I/O
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = block)]
    pub block: u64,
    /// I/Os in flight on each shard
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub depth: u32,
    /// Shards: threads, each with a ring of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: u16,
    /// How long: 500ms, 5s, 2m
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub time: Duration,
    /// How many I/Os, instead of a time
    #[arg(long, value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// First byte of the part that is used
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    pub from: u64,
    /// Bytes of the part that is used [default: to the end]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub span: Option<u64>,
    /// Write blocks that say who they are, and check every block that is read
    #[arg(long)]
    pub verify: bool,
    /// How the kernel is asked [default: the first that works]
    #[arg(long, value_parser = ["io_uring", "libaio", "threads"])]
    pub driver: Option<String>,
    /// Write although the disk carries somebody's data, and destroy it
    #[arg(long)]
    pub force: bool,
    /// Instead of disks, what the kernel's ring costs: no-operations at this depth, in batches of it
    #[arg(long, conflicts_with_all = ["disks", "level", "verify"])]
    pub nop: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    /// Measure all rows of the table of targets and write it to this file (`make bench`)
    #[arg(long, value_name = "FILE", hide = true)]
    pub table: Option<PathBuf>,
    /// With --table: long runs
    #[arg(long, hide = true)]
    pub full: bool,
    /// With --table: exit status 1 if a target is missed
    #[arg(long, hide = true)]
    pub strict: bool,
    /// With --table: only rows whose name contains this
    #[arg(long, value_name = "WORD", hide = true)]
    pub only: Option<String>,
}

impl BenchArgs {
    /// Share of reads, in percent.
    pub fn reads_percent(&self) -> u8 {
        match self.op {
            Mix::Read => 100,
            Mix::Write => 0,
            Mix::Mixed => self.reads,
        }
    }

    /// Whether anything is written.
    pub fn writes(&self) -> bool {
        self.op != Mix::Read || self.verify
    }

    /// The part that is used of a device of `size_bytes`: first byte and length, whole blocks.
    ///
    /// # Errors
    /// It lies beyond the device, or holds no block.
    pub fn part(&self, size_bytes: u64) -> Result<(u64, u64), ErrorDetail> {
        let bad = |message: String| {
            ErrorDetail::new(Kind::InvalidArgument, message).remedy("for example: --from 150G --span 100G")
        };
        if !self.from.is_multiple_of(4096) {
            return Err(bad(format!("--from {} is not a multiple of 4K", self.from)));
        }
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
        let blocks = span / self.block;
        if blocks == 0 {
            return Err(bad(format!("{} hold no block of {}", format_size(span), format_size(self.block))));
        }
        Ok((self.from, blocks * self.block))
    }
}

fn size(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    parse_size(text).map_err(|error| error.to_string())
}

fn block(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes == 0 || !bytes.is_multiple_of(512) || bytes > 32 << 20 {
        return Err("a block is a multiple of 512 bytes up to 32M, for example 4K".to_owned());
    }
    Ok(bytes)
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "a time is a whole number with ms, s or m, for example 5s".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..at].parse().map_err(|_| wrong())?;
    let ms = match &text[at..] {
        "ms" => number,
        "s" => number.checked_mul(1000).ok_or_else(wrong)?,
        "m" => number.checked_mul(60_000).ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    if ms == 0 || ms > 24 * 3_600_000 {
        return Err("a time is between 1ms and 24 hours".to_owned());
    }
    Ok(Duration::from_millis(ms))
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
    fn times_and_blocks() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "5", "s", "0s", "5h", "99999999999999999999s", "18446744073709551615m"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(block("128K"), Ok(131_072));
        for wrong in ["0", "5000", "33M", "x"] {
            assert!(block(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_part_is_whole_blocks_inside_the_device() {
        let args = parse(&["null:1T", "--block", "12K", "--from", "4K"]).expect("it is right");
        assert_eq!(args.part(4096 + 30_000).expect("two blocks fit"), (4096, 24_576));
        assert!(args.part(4096).is_err() && args.part(8192).is_err());
        let args = parse(&["null:1T", "--span", "1G"]).expect("it is right");
        assert!(args.part(1 << 29).is_err());
        assert_eq!(args.part(1 << 31).expect("it fits"), (0, 1 << 30));
    }

    #[test]
    fn what_contradicts_is_refused() {
        assert!(parse(&["--nop", "null:1T"]).is_err());
        assert!(parse(&["null:1T", "--count", "5", "--time", "5s"]).is_err());
        assert!(parse(&["null:1T", "--depth", "0"]).is_err());
    }
}
