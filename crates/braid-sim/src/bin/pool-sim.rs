//! `pool-sim`: runs seeds of pools alone, each twice; `--sweep` cuts a start at each of its steps; `--hunt` looks for every planted bug.

use std::process::ExitCode;

use braid_sim::pools::required::{RARE, REQUIRED, SEEDS_MIN, SEEDS_RARE};
use braid_sim::pools::{Counters, Focus, Options, run, sweep};

#[cfg(feature = "planted")]
#[path = "shared/hunt.rs"]
mod shared;

const USAGE: &str = "usage: pool-sim [--seeds A..B | --seed N] [--steps N] [--lives N] [--focus folds|starts|reuse|moves|losses|flattening|space|full] [--trace] [--sweep] [--plant NAME | --hunt]";

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
    let mut asked = Asked { options: Options::default(), seeds: 0..1000, plant: None, hunt: false, sweep: false };
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
            "--steps" => asked.options.steps = value()?.parse().ok()?,
            "--lives" => asked.options.lives = value()?.parse().ok()?,
            "--focus" => {
                asked.options.focus = Some(match value()?.as_str() {
                    "folds" => Focus::Folds,
                    "losses" => Focus::Losses,
                    "starts" => Focus::Starts,
                    "reuse" => Focus::Reuse,
                    "moves" => Focus::Moves,
                    "flattening" => Focus::Flattening,
                    "space" => Focus::Space,
                    "full" => Focus::Full,
                    _ => return None,
                });
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

/// Switches a bug on; false where there is none of this name, or none at all in this build.
fn plant(name: &str) -> bool {
    #[cfg(feature = "planted")]
    if let Some(bug) = braid_engine::Planted::POOLS.into_iter().find(|bug| format!("{bug:?}") == name) {
        braid_engine::plant(Some(bug));
        return true;
    }
    let _ = name;
    false
}

#[cfg(feature = "planted")]
fn hunt(options: &Options) -> bool {
    use braid_sim::pools::plant::{notices, table};

    shared::hunt(&table(), |bug, seed| notices(bug, seed, options))
}

/// Looks for the first of these seeds that notices the bug, which is named as it is planted. True: one does.
#[cfg(feature = "planted")]
fn search(name: &str, mut seeds: std::ops::Range<u64>, options: &Options) -> bool {
    let bug = braid_engine::Planted::POOLS.into_iter().find(|bug| format!("{bug:?}") == name).expect("planted before");
    std::panic::set_hook(Box::new(|_| {}));
    let found = seeds.find_map(|seed| Some((seed, braid_sim::pools::plant::notices(bug, seed, options)?)));
    let _ = std::panic::take_hook();
    match &found {
        Some((seed, said)) => println!("seed {seed} FAILED: {}", said.lines().next().unwrap_or("")),
        None => println!("{name} is noticed by none of these seeds"),
    }
    found.is_some()
}

#[cfg(not(feature = "planted"))]
fn hunt(_: &Options) -> bool {
    eprintln!("pool-sim: no bugs are planted in this build: --features planted");
    false
}

fn main() -> ExitCode {
    let Some(Asked { options, seeds, plant: bug, hunt: hunts, sweep: sweeps }) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if hunts {
        return if hunt(&options) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if let Some(name) = &bug
        && !plant(name)
    {
        eprintln!("pool-sim: no bug {name} is planted in this build");
        return ExitCode::from(2);
    }
    // A bug that is found by a panic is found. A single seed is replayed instead, with its backtrace.
    #[cfg(feature = "planted")]
    if let Some(name) = &bug
        && seeds.end - seeds.start > 1
    {
        return if search(name, seeds, &options) { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let mut counters = Counters::default();
    let (mut failed, mut all) = (0, 0);
    let tell = if sweeps { sweep } else { run };
    for seed in seeds {
        all += 1;
        let outcome = tell(seed, &options);
        counters.merge(&outcome.counters);
        let violation = outcome.violation.or_else(|| {
            let again = tell(seed, &Options { trace: false, ..options.clone() });
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
    if all >= SEEDS_MIN && bug.is_none() && !sweeps && options.focus.is_none() {
        let rare = if all >= SEEDS_RARE { RARE } else { &[] };
        for kind in [REQUIRED, rare].iter().flat_map(|required| counters.lack(required)) {
            failed += 1;
            println!("NEVER: {kind}");
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
