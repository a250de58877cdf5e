//! `replica-sim`: runs seeds of volumes that are kept on several nodes, each twice; `--hunt` looks for every planted bug.

use std::process::ExitCode;

use braid_sim::replicas::required::{REQUIRED, SEEDS_MIN};
use braid_sim::replicas::{Counters, Options, run};

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
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use braid_sim::replicas::plant::{notices, table};

    let (table, next, good) = (table(), AtomicUsize::new(0), AtomicBool::new(true));
    let work = || {
        while let Some((bug, limit, known)) = table.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = format!("{bug:?}");
            let mut seeds = std::iter::once(*known).chain(0..*limit);
            match seeds.find_map(|seed| Some((seed, notices(*bug, seed, options)?))) {
                Some((seed, said)) => {
                    let said: String = said.chars().take(100).collect();
                    println!("{name:26} seed {seed:4} of {limit:4}: {said}");
                }
                None => {
                    println!("{name:26} NOT FOUND in {limit} seeds");
                    good.store(false, Ordering::Relaxed);
                }
            }
        }
    };
    // A bug that is found by a panic is found.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    good.into_inner()
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
