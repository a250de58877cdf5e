//! `pool-sim`: runs seeds of pools alone, each twice.

use std::process::ExitCode;

use braid_sim::pools::{Counters, Options, run};

fn main() -> ExitCode {
    let mut options = Options::default();
    let mut seeds = 0..1000u64;
    let mut arguments = std::env::args().skip(1);
    #[cfg(feature = "planted")]
    let mut plant = None;
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        let good = match name.as_str() {
            "--seeds" => {
                let text = value();
                let ends = text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
                ends.is_some_and(|range| {
                    seeds = range;
                    true
                })
            }
            "--seed" => value().parse().is_ok_and(|seed: u64| {
                seeds = seed..seed + 1;
                true
            }),
            "--steps" => value().parse().map(|steps| options.steps = steps).is_ok(),
            "--lives" => value().parse().map(|lives| options.lives = lives).is_ok(),
            "--trace" => {
                options.trace = true;
                true
            }
            #[cfg(feature = "planted")]
            "--plant" => {
                let name = value();
                plant = braid_engine::Planted::POOLS.into_iter().find(|bug| format!("{bug:?}") == name);
                plant.is_some()
            }
            _ => false,
        };
        if !good {
            eprintln!("usage: pool-sim [--seeds A..B | --seed N] [--steps N] [--lives N] [--trace] [--plant NAME]");
            return ExitCode::from(2);
        }
    }
    #[cfg(feature = "planted")]
    braid_engine::plant(plant);
    let mut counters = Counters::default();
    let (mut failed, mut all) = (0, 0);
    for seed in seeds {
        all += 1;
        let outcome = run(seed, &options);
        counters.merge(&outcome.counters);
        let violation = outcome.violation.or_else(|| {
            let again = run(seed, &Options { trace: false, ..options.clone() });
            (again.hash != outcome.hash).then(|| "it runs differently the second time".to_string())
        });
        if let Some(why) = violation {
            failed += 1;
            println!("seed {seed} FAILED: {why}");
            #[cfg(feature = "planted")]
            if plant.is_some() {
                break;
            }
        }
    }
    println!("{all} seeds, {failed} failed\n{counters}");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
