//! `braid-sim`: runs seeds, each twice, and says what they exercised and what went wrong. See `docs/simulation.md`.

#[cfg(feature = "planted")]
mod hunt;

use std::process::ExitCode;

use braid_sim::arrays::Kind;
use braid_sim::counters::Counters;
use braid_sim::plot::row_drills;
use braid_sim::required;
use braid_sim::runs::{self, Options};
use braid_sim::shrink::{self, Bounds};

const USAGE: &str =
    "usage: braid-sim [--seeds A..B | --seed N] [--levels concat,raid0,raid1,raid10,raid5,raid6] [--drills | --drill NAME | --replicated] [--sweep] [--trace]
       braid-sim --seed N --shrink                        (and then --seed N --bounds lives=2,requests=5 --trace)
       braid-sim --hunt [--seeds A..B | --table]          (these two with --features planted)
       braid-sim --plant NAME [--seeds A..B] [--sweep]";

#[derive(Default)]
struct Arguments {
    seeds: Option<std::ops::Range<u64>>,
    options: Options,
    sweep: bool,
    shrink: bool,
    /// Not a range of seeds of all levels: no reason to demand that every kind happens.
    restricted: bool,
    /// Levels were named.
    levels: bool,
    #[cfg(feature = "planted")]
    hunt: bool,
    /// Only print which seeds find the planted bugs.
    #[cfg(feature = "planted")]
    table: bool,
    #[cfg(feature = "planted")]
    plant: Option<braid_sim::plant::Plant>,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments::default();
    while let Some(name) = arguments.next() {
        let mut value = |example: &str| arguments.next().ok_or(format!("{name} needs a value, for example {example}"));
        match name.as_str() {
            "--seeds" => {
                let text = value("--seeds 0..100")?;
                let ends = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                let wrong = || format!("--seeds {text:?} is no range of seeds, for example --seeds 0..100");
                parsed.seeds = Some(ends.filter(|(a, b)| a < b).map(|(a, b)| a..b).ok_or_else(wrong)?);
            }
            "--seed" => {
                let text = value("--seed 907")?;
                let seed = text.parse::<u64>().ok().filter(|seed| *seed < u64::MAX);
                let seed = seed.ok_or_else(|| format!("--seed {text:?} is no seed, for example --seed 907"))?;
                parsed.seeds = Some(seed..seed + 1);
                parsed.restricted = true;
            }
            "--levels" => {
                let of = |name: &str| Kind::ALL.into_iter().find(|k| k.name() == name);
                let wrong =
                    |name| format!("--levels names no level {name:?}, for example --levels concat,raid0,raid1,raid5");
                let kinds = value("--levels raid1")?;
                let kinds: Result<_, _> = kinds.split(',').map(|name| of(name).ok_or_else(|| wrong(name))).collect();
                parsed.options.kinds = kinds?;
                (parsed.levels, parsed.restricted) = (true, true);
            }
            #[cfg(feature = "planted")]
            "--plant" => {
                let name = value("--plant NoRangeLock")?;
                let plant = braid_sim::plant::Plant::all().into_iter().find(|p| p.name() == name);
                let wrong = || format!("--plant knows no bug {name:?}, for example --plant NoRangeLock");
                parsed.plant = Some(plant.ok_or_else(wrong)?);
                parsed.options.check_drained = false;
            }
            #[cfg(feature = "planted")]
            "--hunt" => {
                parsed.hunt = true;
                parsed.options.check_drained = false;
            }
            #[cfg(feature = "planted")]
            "--table" => parsed.table = true,
            #[cfg(not(feature = "planted"))]
            "--plant" | "--hunt" | "--table" => {
                return Err(format!(
                    "{name} needs the planted bugs, for example cargo run -p braid-sim --features planted -- --hunt"
                ));
            }
            "--sweep" => parsed.sweep = true,
            "--shrink" => parsed.shrink = true,
            "--bounds" => {
                parsed.options.bounds = Bounds::parse(&value("--bounds lives=2,requests=5")?)?;
                parsed.restricted = true;
            }
            "--drills" => {
                parsed.options.drills = true;
                parsed.restricted = true;
            }
            "--drill" => {
                let name = value("--drill \"rows torn\"")?;
                let subject = row_drills::all().find(|subject| subject.name() == name);
                let wrong =
                    || format!("--drill knows no {name:?} of raid5 and raid6, for example --drill \"rows torn\"");
                parsed.options.subject = Some(subject.ok_or_else(wrong)?);
                (parsed.options.drills, parsed.options.kinds) = (true, vec![Kind::Raid5, Kind::Raid6]);
                parsed.restricted = true;
            }
            "--replicated" => {
                parsed.options.replicated = true;
                if !parsed.levels {
                    parsed.options.kinds = vec![Kind::Raid1, Kind::Raid10];
                }
                parsed.restricted = true;
            }
            "--trace" => parsed.options.print = true,
            _ => return Err(format!("unknown argument {name:?}, for example --seeds 0..100")),
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
    #[cfg(feature = "planted")]
    if arguments.hunt {
        return hunt_all(&arguments);
    }
    #[cfg(feature = "planted")]
    if let Some(plant) = arguments.plant {
        return run_planted(plant, &arguments);
    }
    if arguments.shrink {
        return shrink_all(&arguments, shrink::failure);
    }
    if arguments.sweep { sweep(&arguments) } else { run(&arguments) }
}

impl Arguments {
    fn seeds(&self) -> std::ops::Range<u64> {
        self.seeds.clone().unwrap_or(0..100)
    }
}

/// Runs every seed twice.
fn run(arguments: &Arguments) -> ExitCode {
    let mut counters = Counters::default();
    let (mut events, mut failed) = (0, 0);
    let seeds = arguments.seeds();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let outcome = runs::twice(seed, &arguments.options);
        counters.merge(&outcome.counters);
        events += outcome.events;
        if let Some(why) = outcome.violation {
            failed += 1;
            println!("seed {seed} FAILED: {why}");
            println!("  replay: {}", replay(seed, &arguments.options));
        }
    }
    println!("{count} seeds, {events} events, {failed} failed");
    println!("{counters}");
    let lacks = if arguments.restricted { None } else { required::lacks(&counters, count) };
    if let Some(lacks) = &lacks {
        println!("FAILED: {lacks}");
    }
    code(failed == 0 && lacks.is_none())
}

/// The command that runs a seed again.
fn replay(seed: u64, options: &Options) -> String {
    let levels: Vec<&str> = options.kinds.iter().map(|k| k.name()).collect();
    let levels = levels.join(",");
    let mut command = format!("cargo run -p braid-sim --profile verify -- --seed {seed} --levels {levels}");
    if options.bounds != Bounds::NONE {
        command += &format!(" --bounds {}", options.bounds);
    }
    match options.subject {
        Some(subject) => command += &format!(" --drill {:?}", subject.name()),
        None if options.replicated => command += " --replicated",
        None if options.drills => command += " --drills",
        None => {}
    }
    command + " --trace"
}

/// Makes the story of each seed that fails smaller.
fn shrink_all(arguments: &Arguments, fails: impl Fn(u64, &Options) -> Option<(String, u64)>) -> ExitCode {
    let quiet = Options { print: false, ..arguments.options.clone() };
    let mut failed = false;
    for seed in arguments.seeds() {
        let Some(found) = shrink::shrink(&quiet, |options| fails(seed, options)) else {
            println!("seed {seed} does not fail");
            continue;
        };
        failed = true;
        let options = Options { bounds: found.bounds, ..quiet.clone() };
        println!("seed {seed} FAILED: {}", found.why);
        println!("  {} events instead of {}, after {} tries", found.events.1, found.events.0, found.tried);
        println!("  replay: {}", replay(seed, &options));
    }
    code(!failed)
}

/// Cuts every seed's story at every step.
fn sweep(arguments: &Arguments) -> ExitCode {
    let mut counters = Counters::default();
    let mut failed = 0;
    for seed in arguments.seeds() {
        let (runs, of_all, why) = runs::sweep(seed, &arguments.options);
        println!("seed {seed}: {runs} runs, each cut at another step");
        counters.merge(&of_all);
        if let Some(why) = why {
            failed += 1;
            println!("FAILED: {why}");
        }
    }
    println!("{counters}\n{failed} failed");
    code(failed == 0)
}

/// Runs every seed once with a bug in the engine. Fails when one finds it.
#[cfg(feature = "planted")]
fn run_planted(plant: braid_sim::plant::Plant, arguments: &Arguments) -> ExitCode {
    let mut found = 0;
    let kinds = if arguments.levels { arguments.options.kinds.clone() } else { plant.kinds() };
    let subject = plant.subject().filter(|_| arguments.options.drills);
    let replicated = arguments.options.replicated || plant.is_of_leases();
    let options = Options { kinds, subject, replicated, ..arguments.options.clone() };
    if arguments.shrink {
        // With the bug: to learn by what it is found.
        let shrunk = Arguments { seeds: arguments.seeds.clone(), options, ..Arguments::default() };
        return shrink_all(&shrunk, |seed, options| plant.during(|| shrink::failure(seed, options)));
    }
    for seed in arguments.seeds() {
        if let Some(said) = hunt::notices(plant, arguments.sweep, seed, &options) {
            found += 1;
            println!("{}: seed {seed}: {said}", plant.name());
        }
    }
    println!("{}: {found} of {} seeds find it", plant.name(), arguments.seeds().count());
    code(found == 0)
}

/// Looks for every planted bug. Fails when one is not found.
#[cfg(feature = "planted")]
fn hunt_all(arguments: &Arguments) -> ExitCode {
    use braid_sim::plant::{Plant, Way};
    if arguments.table {
        print!("{}", hunt::table(&arguments.options));
        return ExitCode::SUCCESS;
    }
    let seeds = arguments.seeds.clone();
    let most = seeds.as_ref().map_or(u64::MAX, |seeds| seeds.end - seeds.start);
    let hunted = hunt::hunt(seeds.map(|seeds| seeds.start), most, &arguments.options);
    let (open, demanded): (Vec<Plant>, Vec<Plant>) =
        Plant::all().into_iter().partition(|plant| plant.way() == Way::Open);
    if !hunted.strayed.is_empty() {
        let (some, all) = (hunted.strayed.len(), demanded.len());
        println!(
            "{some} of {all} by none of their known seeds (--hunt --table prints the new ones): {}",
            hunted.strayed.join(", ")
        );
    }
    match hunted.missed.is_empty() {
        true => println!("{} planted bugs, all found; {} more are not demanded", demanded.len(), open.len()),
        false => println!("FAILED: planted bugs not found: {}", hunted.missed.join(", ")),
    }
    code(hunted.missed.is_empty())
}

fn code(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
