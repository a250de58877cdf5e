//! `replica-sim`: runs seeds of volumes that are kept on several nodes, each twice; `--hunt` looks for every planted bug.

use std::process::ExitCode;

use braid_sim::replicas::required::{REQUIRED, SEEDS_MIN};
use braid_sim::replicas::{Counters, Options, run};

#[cfg(feature = "planted")]
#[path = "shared/hunt.rs"]
mod shared;

const USAGE: &str = "usage: replica-sim [--seeds A..B | --seed N] [--trace] [--plant NAME | --hunt]";

/// What is asked for.
struct Asked {
    options: Options,
    seeds: std::ops::Range<u64>,
    /// A bug by its name.
    plant: Option<String>,
    hunt: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Asked> {
    let mut asked = Asked { options: Options::default(), seeds: 0..300, plant: None, hunt: false };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next();
        match name.as_str() {
            "--seeds" => {
                let text = value()?;
                let (first, end) = text.split_once("..")?;
                asked.seeds = first.parse().ok()?..end.parse().ok()?;
            }
            "--seed" => {
                let seed: u64 = value()?.parse().ok()?;
                asked.seeds = seed..seed + 1;
            }
            "--trace" => asked.options.trace = true,
            "--plant" => asked.plant = Some(value()?),
            "--hunt" => asked.hunt = true,
            _ => return None,
        }
    }
    Some(asked)
}

/// Switches a bug on; false where there is none of this name, or none at all in this build.
fn plant(name: &str) -> bool {
    #[cfg(feature = "planted")]
    if let Some(bug) = braid_engine::replica::Planted::ALL.into_iter().find(|bug| format!("{bug:?}") == name) {
        braid_engine::replica::plant(Some(bug));
        return true;
    }
    let _ = name;
    false
}

#[cfg(feature = "planted")]
fn hunt(options: &Options) -> bool {
    use braid_sim::replicas::plant::{notices, table};

    shared::hunt(&table(), |bug, seed| notices(bug, seed, options))
}

#[cfg(not(feature = "planted"))]
fn hunt(_: &Options) -> bool {
    eprintln!("replica-sim: no bugs are planted in this build: --features planted");
    false
}

fn main() -> ExitCode {
    let Some(Asked { options, seeds, plant: bug, hunt: hunts }) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if hunts {
        return if hunt(&options) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if let Some(name) = &bug
        && !plant(name)
    {
        eprintln!("replica-sim: no bug {name} is planted in this build");
        return ExitCode::from(2);
    }
    let mut counters = Counters::default();
    let (mut failed, mut all) = (0, 0);
    for seed in seeds {
        all += 1;
        let outcome = run(seed, &options);
        counters.merge(&outcome.counters);
        let violation = outcome.violation.or_else(|| {
            let again = run(seed, &Options { trace: false });
            (again.hash != outcome.hash).then(|| "it runs differently the second time".to_string())
        });
        if let Some(why) = violation {
            failed += 1;
            println!("seed {seed} FAILED: {why}");
            if bug.is_some() {
                break;
            }
        }
    }
    println!("{all} seeds, {failed} failed\n{counters}");
    if all >= SEEDS_MIN && bug.is_none() {
        for kind in counters.lack(REQUIRED) {
            failed += 1;
            println!("NEVER: {kind}");
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
