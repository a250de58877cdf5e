//! `braid-sim --seeds A..B [--levels concat,raid0,mirror] [--trace]`: runs seeds, each twice.

use std::process::ExitCode;

use braid_sim::arrays::Kind;
use braid_sim::counters::Counters;
use braid_sim::runs::{self, Options};

const USAGE: &str = "usage: braid-sim [--seeds A..B | --seed N] [--levels concat,raid0,mirror] [--sweep] [--trace]";

struct Arguments {
    seeds: std::ops::Range<u64>,
    options: Options,
    sweep: bool,
    #[cfg(feature = "planted")]
    plant: Option<braid_sim::plant::Plant>,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        seeds: 0..100,
        options: Options::default(),
        sweep: false,
        #[cfg(feature = "planted")]
        plant: None,
    };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value, for example --seeds 0..100"));
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number, for example 0..100"));
        match name.as_str() {
            "--seeds" => {
                let text = value()?;
                let (a, b) = text.split_once("..").ok_or(format!("{text:?} is no range, for example 0..100"))?;
                parsed.seeds = number(a)?..number(b)?;
            }
            "--seed" => {
                let seed = number(&value()?)?;
                parsed.seeds = seed..seed + 1;
            }
            "--levels" => {
                let of = |name: &str| Kind::ALL.into_iter().find(|k| k.name() == name);
                parsed.options.kinds = value()?
                    .split(',')
                    .map(|name| of(name).ok_or(format!("no level {name:?}: concat, raid0, mirror")))
                    .collect::<Result<_, _>>()?;
            }
            #[cfg(feature = "planted")]
            "--plant" => {
                let name = value()?;
                let plant = braid_sim::plant::Plant::all().into_iter().find(|p| p.name() == name);
                parsed.plant = Some(plant.ok_or(format!("no planted bug {name:?}"))?);
                parsed.options.check_drained = false;
            }
            "--sweep" => parsed.sweep = true,
            "--trace" => parsed.options.print = true,
            _ => return Err(format!("unknown argument {name:?}")),
        }
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("braid-sim: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut counters = Counters::default();
    let (mut events, mut failed) = (0, 0);
    for seed in arguments.seeds.clone() {
        #[cfg(feature = "planted")]
        if let Some(plant) = arguments.plant {
            let found = plant.during(|| {
                std::panic::catch_unwind(|| {
                    if arguments.sweep {
                        runs::sweep(seed, &arguments.options).2
                    } else {
                        runs::once(seed, &arguments.options).violation.map(|v| v.0)
                    }
                })
            });
            match found {
                Ok(None) => continue,
                Ok(Some(why)) => println!("{}: seed {seed}: {why}", plant.name()),
                Err(_) => println!("{}: seed {seed}: panics", plant.name()),
            }
            failed += 1;
            continue;
        }
        if arguments.sweep {
            let (runs, of_all, why) = runs::sweep(seed, &arguments.options);
            println!("seed {seed}: {runs} runs, each cut at another step");
            counters.merge(&of_all);
            if let Some(why) = why {
                failed += 1;
                println!("FAILED: {why}");
            }
            continue;
        }
        let outcome = runs::twice(seed, &arguments.options);
        counters.merge(&outcome.counters);
        events += outcome.events;
        if let Some(why) = outcome.violation {
            failed += 1;
            let levels: Vec<&str> = arguments.options.kinds.iter().map(|k| k.name()).collect();
            println!("seed {seed} FAILED: {why}");
            println!(
                "  replay: cargo run -p braid-sim --profile verify -- --seed {seed} --levels {} --trace",
                levels.join(",")
            );
        }
    }
    println!("{} seeds, {events} events, {failed} failed", arguments.seeds.count());
    println!("{counters}");
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
