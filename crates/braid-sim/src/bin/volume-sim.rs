//! `volume-sim`: runs seeds of pools in the whole stack, each twice. See `docs/simulation.md`.

use std::process::ExitCode;

use braid_sim::counters::Counters;
use braid_sim::volumes::required::{REQUIRED, SEEDS_MIN};
use braid_sim::volumes::{Focus, Options, run, sweep};

#[cfg(feature = "planted")]
#[path = "shared/hunt.rs"]
mod shared;

const USAGE: &str = "usage: volume-sim [--seeds A..B | --seed N] [--focus snapshots|durable|starts|arrays|reuse|late|moves|sectors|full] [--trace] [--sweep] [--plant NAME | --hunt]";

/// What is asked for.
struct Asked {
    options: Options,
    seeds: std::ops::Range<u64>,
    /// A bug by its name.
    plant: Option<String>,
    hunt: bool,
    sweep: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Asked> {
    let mut asked = Asked { options: Options::default(), seeds: 0..100, plant: None, hunt: false, sweep: false };
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
            "--focus" => {
                let text = value()?;
                asked.options.focus = Some(Focus::ALL.into_iter().find(|(name, _)| *name == text)?.1);
            }
            "--trace" => asked.options.trace = true,
            "--plant" => asked.plant = Some(value()?),
            "--sweep" => asked.sweep = true,
            "--hunt" => asked.hunt = true,
            _ => return None,
        }
    }
    Some(asked)
}

/// Runs every seed with a bug, each once. False: one finds it, or there is none of this name.
#[cfg(feature = "planted")]
fn run_planted(name: &str, seeds: std::ops::Range<u64>, options: &Options) -> bool {
    use braid_sim::volumes::plant::{all, notices};

    let Some(bug) = all().into_iter().find(|bug| format!("{bug:?}") == name) else {
        eprintln!("volume-sim: no bug {name} is planted here");
        return false;
    };
    std::panic::set_hook(Box::new(|_| {}));
    let count = seeds.end - seeds.start;
    let found = seeds.filter_map(|seed| Some((seed, notices(bug, seed, options)?)));
    let found = found.inspect(|(seed, said)| println!("seed {seed}: {said}")).count();
    println!("{name}: {found} of {count} seeds find it");
    found == 0
}

/// Looks for every planted bug. False: one is not found.
#[cfg(feature = "planted")]
fn hunt(options: &Options) -> bool {
    use braid_sim::volumes::plant::{notices, table};

    shared::hunt(&table(), |bug, seed| notices(bug, seed, options))
}

#[cfg(not(feature = "planted"))]
fn run_planted(_: &str, _: std::ops::Range<u64>, options: &Options) -> bool {
    hunt(options)
}

#[cfg(not(feature = "planted"))]
fn hunt(_: &Options) -> bool {
    eprintln!("volume-sim: no bugs are planted in this build: --features planted");
    false
}

fn main() -> ExitCode {
    let Some(Asked { options, seeds, plant, hunt: hunts, sweep: sweeps }) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if hunts || plant.is_some() {
        let good = plant.map_or_else(|| hunt(&options), |name| run_planted(&name, seeds, &options));
        return if good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let mut counters = Counters::default();
    let (mut failed, mut all, mut events) = (0, 0, 0);
    for seed in seeds {
        all += 1;
        let (runs, outcome) = if sweeps { sweep(seed, &options) } else { (1, run(seed, &options)) };
        if sweeps {
            println!("seed {seed}: {runs} runs, each with its start cut at another step");
        }
        counters.merge(&outcome.counters);
        events += outcome.hash.1;
        let violation = outcome.violation.or_else(|| {
            let again = run(seed, &Options { trace: false, ..options.clone() });
            (again.hash != outcome.hash && !sweeps).then(|| "it runs differently the second time".to_string())
        });
        if let Some(why) = violation {
            failed += 1;
            println!("seed {seed} FAILED: {why}");
        }
    }
    println!("{all} seeds, {events} events, {failed} failed\n{counters}");
    if all >= SEEDS_MIN && options.focus.is_none() && !sweeps {
        for kind in counters.missing(REQUIRED) {
            failed += 1;
            println!("NEVER: {kind}");
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
