//! `volume-sim`: runs seeds of pools in the whole stack, each twice. See `docs/simulation.md`.

use std::process::ExitCode;

use braid_sim::counters::Counters;
use braid_sim::volumes::{Focus, Options, run};

const USAGE: &str =
    "usage: volume-sim [--seeds A..B | --seed N] [--focus snapshots|durable|starts|arrays|reuse] [--trace]";

/// What is asked for.
struct Asked {
    options: Options,
    seeds: std::ops::Range<u64>,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Asked> {
    let mut asked = Asked { options: Options::default(), seeds: 0..100 };
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
            _ => return None,
        }
    }
    Some(asked)
}

fn main() -> ExitCode {
    let Some(Asked { options, seeds }) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut counters = Counters::default();
    let (mut failed, mut all, mut events) = (0, 0, 0);
    for seed in seeds {
        all += 1;
        let outcome = run(seed, &options);
        counters.merge(&outcome.counters);
        events += outcome.hash.1;
        let violation = outcome.violation.or_else(|| {
            let again = run(seed, &Options { trace: false, ..options.clone() });
            (again.hash != outcome.hash).then(|| "it runs differently the second time".to_string())
        });
        if let Some(why) = violation {
            failed += 1;
            println!("seed {seed} FAILED: {why}");
        }
    }
    println!("{all} seeds, {events} events, {failed} failed\n{counters}");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
