//! `xtask load`: the load of `braid bench`, with options that only the harness has.

use std::process::ExitCode;

use braid_bench::process::set_braid;
use braid_bench::{BenchArgs, MakeFrontend, Variant, values};
use clap::Args;

use crate::bare::BareFrontend;
use crate::{program, volume};

/// Arguments of `xtask load`.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    #[command(flatten)]
    bench: BenchArgs,
    /// Submit the same block again and again, and record nothing: the cost of the engine without that of the load generator
    #[arg(long, conflicts_with_all = ["verify", "rate", "profile", "emit_fio", "nop"])]
    bare: bool,
    /// Use this much memory in turn for the data of a job's I/Os, so that none of it is in a cache
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["verify", "nop"], value_parser = values::size)]
    memory: Option<u64>,
    /// Leave out the member in this slot of redundant targets
    #[arg(long, value_name = "SLOT", requires = "level")]
    missing: Option<u16>,
    /// With --level raid5 or raid6: the last disk holds the journal and no data
    #[arg(long, requires = "level")]
    journal_last: bool,
    /// Create a pool on the target of disks, and measure a volume of it
    #[arg(long, value_name = "WITH", conflicts_with = "nop")]
    volume: Option<volume::Volume>,
}

/// Runs `xtask load`.
///
/// # Errors
/// As [`braid_bench::run`].
pub fn run(args: LoadArgs) -> anyhow::Result<ExitCode> {
    // Profiles of replicated volumes start daemons.
    set_braid(program::default_braid()?);
    let variant = Variant {
        memory_bytes: args.memory.unwrap_or(0),
        missing: args.missing,
        journal_last: args.journal_last,
        frontend: args.bare.then_some(BareFrontend::boxed as MakeFrontend),
        device: args.volume.map(volume::Volume::maker),
    };
    braid_bench::run_variant(args.bench, variant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: LoadArgs,
    }

    fn parse(words: &[&str]) -> Result<LoadArgs, clap::Error> {
        use clap::Parser as _;
        Line::try_parse_from([&["load"], words].concat()).map(|line| line.args)
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for wrong in [
            &["null:1T", "--bare", "--verify"][..],
            &["null:1T", "--bare", "--rate", "5"],
            &["null:1T", "--memory", "1M", "--verify"],
            &["null:1T", "--missing", "1"],
            &["null:1T", "--journal-last"],
            &["null:1T", "--volume", "half"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        let args = parse(&["--volume", "full", "--level", "raid5", "--missing", "1", "null:1T", "null:1T", "null:1T"]);
        let args = args.expect("they fit together");
        assert_eq!((args.volume, args.missing, args.bench.targets.len()), (Some(volume::Volume::Full), Some(1), 3));
    }
}
