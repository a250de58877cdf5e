//! Runs seeds and prints what they exercised and which of them failed.

use std::ops::Range;
use std::process::ExitCode;

use braid_sim::counters::Counters;

use super::arguments::Arguments;
use super::simulation::{Report, Simulation};

/// Runs every seed twice, or cuts it at every step.
pub fn run(arguments: &Arguments) -> ExitCode {
    let simulation = arguments.simulation.as_ref();
    let (seeds, sweep) = (arguments.seeds(), arguments.sweep);
    let count = seeds.end - seeds.start;
    let mut counters = Counters::default();
    let (mut events, mut failed) = (0, 0);
    for seed in seeds {
        let report = twice(simulation, sweep, seed, arguments.trace);
        if report.runs > 0 {
            println!("seed {seed}: {} runs, each cut at another step", report.runs);
        }
        counters.merge(&report.counters);
        events += report.events;
        if let Some(why) = report.violation {
            failed += 1;
            println!("seed {seed} FAILED: {why}\n  replay: {}", replay(simulation, sweep, seed));
        }
    }
    let events = if events > 0 { format!(", {events} events") } else { String::new() };
    println!("{count} seeds{events}, {failed} failed\n{counters}");
    let is_ordinary = !sweep && simulation.options().is_empty();
    let lacks = if is_ordinary { counters.lacks(simulation.required(), count) } else { None };
    if let Some(lacks) = &lacks {
        println!("FAILED: {lacks}");
    }
    code(failed == 0 && lacks.is_none())
}

/// Runs a seed, or a sweep of it, once.
pub fn once(simulation: &dyn Simulation, sweep: bool, seed: u64, trace: bool) -> Report {
    if sweep { simulation.sweep(seed, trace) } else { simulation.run(seed, trace) }
}

/// Runs a seed twice. That the second run differs is a violation: the simulator or the engine used an input that does
/// not come from the seed.
fn twice(simulation: &dyn Simulation, sweep: bool, seed: u64, trace: bool) -> Report {
    let mut first = once(simulation, sweep, seed, trace);
    if first.violation.is_none() && first.hash.is_some() {
        let second = once(simulation, sweep, seed, false);
        let differs = (first.hash, first.events) != (second.hash, second.events);
        first.violation = differs.then(|| "it runs differently the second time".to_owned());
    }
    first
}

/// Returns the command that replays a seed.
fn replay(simulation: &dyn Simulation, sweep: bool, seed: u64) -> String {
    let name = simulation.name();
    let mut command = format!("cargo run -p braid-sim --profile verify -- {name} --seed {seed}");
    for option in simulation.options() {
        command += &format!(" {option}");
    }
    command + if sweep { " --sweep" } else { " --trace" }
}

/// Shrinks the run of each seed that fails.
pub fn shrink(simulation: &dyn Simulation, seeds: Range<u64>) -> ExitCode {
    let mut failed = false;
    for seed in seeds {
        let Some(found) = simulation.shrink(seed) else {
            println!("seed {seed} does not fail");
            continue;
        };
        failed = true;
        println!("seed {seed} FAILED: {}", found.why);
        println!("  {} events instead of {}, after {} tries", found.events.1, found.events.0, found.tried);
        println!("  replay: {}", replay(found.simulation.as_ref(), false, seed));
    }
    code(!failed)
}

/// Returns the exit code of a command that found everything good, or not.
pub fn code(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
