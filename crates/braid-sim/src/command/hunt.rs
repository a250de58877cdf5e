//! `--mutation` and `--hunt`: look for mutations until a run finds them, first with the seeds that are known to find
//! them, then with all seeds.
//!
//! This belongs to the command, not to the simulator: it uses two threads. A mutation is active on one thread, and each
//! run stays on its thread.

use std::panic;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use braid_sim::mutations::{Kind, Target};

use super::arguments::Arguments;
use super::run;
use super::simulation::Simulation;

const THREADS: usize = 2;
/// Number of characters of a message that are shown.
const SHOWN_CHARS: usize = 100;
/// Number of seeds recorded for each mutation. One is enough until a change of the engine or the simulator alters the
/// run of that seed.
const KNOWN_SEEDS: usize = 2;

/// Runs every seed once with a mutation in the engine. Fails when a seed finds it.
pub fn run_mutation(arguments: &Arguments, target: &Target) -> ExitCode {
    let (mutation, seeds) = (target.mutation, arguments.seeds());
    let simulation = arguments.simulation.aimed_at(mutation, false);
    if arguments.shrink {
        // Shrinks with the mutation active, to show by which events it is found.
        return mutation.during(|| run::shrink(simulation.as_ref(), seeds));
    }
    let (name, count) = (mutation.name(), seeds.end - seeds.start);
    let all = || {
        let once = |seed| run::once(simulation.as_ref(), arguments.sweep, seed, arguments.trace).violation;
        let found = seeds.filter_map(|seed| Some((seed, mutation.noticed(|| once(seed))?)));
        found.inspect(|(seed, why)| println!("{name}: seed {seed}: {why}")).count()
    };
    // A single seed is replayed: a panic prints where it happened.
    let found = if count == 1 { all() } else { without_messages(all) };
    println!("{name}: {found} of {count} seeds find it");
    run::code(found == 0)
}

/// Looks for every mutation. Fails when one is not found.
pub fn hunt(arguments: &Arguments) -> ExitCode {
    let simulation = arguments.simulation.as_ref();
    if arguments.table {
        print!("{}", table(simulation));
        return ExitCode::SUCCESS;
    }
    let seeds = arguments.given_seeds();
    let most = seeds.as_ref().map_or(u64::MAX, |seeds| seeds.end - seeds.start);
    let hunted = search_all(simulation, seeds.map(|seeds| seeds.start), most);
    let (required, open): (Vec<Target>, Vec<Target>) = simulation.targets().into_iter().partition(Target::is_required);
    if !hunted.strayed.is_empty() {
        let (some, all) = (hunted.strayed.len(), required.len());
        println!(
            "{some} of {all} by none of their known seeds (--hunt --table prints the new ones): {}",
            hunted.strayed.join(", ")
        );
    }
    match hunted.missed.is_empty() {
        true => println!("{} mutations, all found; {} more are not required", required.len(), open.len()),
        false => println!("FAILED: mutations not found: {}", hunted.missed.join(", ")),
    }
    run::code(hunted.missed.is_empty())
}

/// The search for one mutation.
struct Search {
    target: Target,
    simulation: Box<dyn Simulation>,
}

impl Search {
    /// Returns the searches for all mutations that must be found.
    fn all(simulation: &dyn Simulation) -> Vec<Search> {
        let required = simulation.targets().into_iter().filter(Target::is_required);
        let search = |target: Target| Search { simulation: simulation.aimed_at(target.mutation, true), target };
        required.map(search).collect()
    }

    /// Returns the violation that a run of this seed reports; `None` when the run notices nothing.
    fn noticed(&self, seed: u64) -> Option<String> {
        let sweep = self.target.kind == Kind::Sweep;
        self.target.mutation.noticed(|| run::once(self.simulation.as_ref(), sweep, seed, false).violation)
    }
}

/// Runs `f` without the messages of panics: a panic counts as finding the mutation.
fn without_messages<T>(f: impl FnOnce() -> T) -> T {
    panic::set_hook(Box::new(|_| {}));
    let result = f();
    let _ = panic::take_hook();
    result
}

/// Runs `each` for all searches on both threads. The heaviest come first, so that both threads are busy to the end.
fn with_threads(mut all: Vec<Search>, each: impl Fn(&Search) + Sync) {
    // A search through all seeds takes as long as its limit allows.
    all.sort_by_key(|search| std::cmp::Reverse(search.target.weight()));
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            each(one);
        }
    };
    without_messages(|| std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work)))));
}

fn into_inner<T>(of: Mutex<T>) -> T {
    of.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn put<T>(list: &Mutex<Vec<T>>, one: T) {
    list.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(one);
}

/// The result of a hunt.
struct Hunted {
    /// Names of the mutations that were not found within their limit.
    missed: Vec<String>,
    /// Names of the mutations that no known seed finds any more.
    strayed: Vec<String>,
}

/// Looks for every mutation, first with its known seeds and then with all seeds; if `first` is given, only with seeds
/// from there on. Prints a line for each mutation. `most` may lower the limits.
fn search_all(simulation: &dyn Simulation, first: Option<u64>, most: u64) -> Hunted {
    let (missed, strayed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    with_threads(Search::all(simulation), |search| {
        let target = &search.target;
        let (name, what, limit) = (target.mutation.name(), target.kind.name(), target.limit.min(most));
        let began = Instant::now();
        let known = if first.is_none() { target.known.as_slice() } else { &[] };
        let scan = first.unwrap_or(0)..first.unwrap_or(0).saturating_add(limit);
        let seeds = known.iter().copied().chain(scan.filter(|seed| !known.contains(seed)));
        let found = seeds.enumerate().find_map(|(n, seed)| Some((n, seed, search.noticed(seed)?)));
        let took = Seconds(began.elapsed());
        match &found {
            Some((n, seed, said)) => {
                let said: String = said.lines().next().unwrap_or("").chars().take(SHOWN_CHARS).collect();
                println!("{name:26} {what} {seed:4}, {:3} tried of {limit}, {took}: {said}", n + 1);
            }
            None => {
                println!("{name:26} NOT FOUND in {limit} {what}s, {took}");
                put(&missed, name.clone());
            }
        }
        if first.is_none() && found.is_none_or(|(n, ..)| n >= known.len()) {
            put(&strayed, name);
        }
    });
    let (mut missed, mut strayed) = (into_inner(missed), into_inner(strayed));
    missed.sort_unstable();
    strayed.sort_unstable();
    Hunted { missed, strayed }
}

/// Returns the table of the seeds that find each mutation, in the format of `known-seeds.txt`: the known seeds that
/// still find it, otherwise the first few from 0 on, within its limit.
fn table(simulation: &dyn Simulation) -> String {
    let lines = Mutex::new(Vec::new());
    with_threads(Search::all(simulation), |search| {
        let target = &search.target;
        let began = Instant::now();
        // A sweep takes long: one seed suffices.
        let wanted = if target.kind == Kind::Sweep { 1 } else { KNOWN_SEEDS };
        let finds = |seed: &u64| search.noticed(*seed).is_some();
        let mut found: Vec<u64> = target.known.iter().copied().filter(finds).collect();
        let strayed = found.is_empty();
        if strayed {
            found = (0..target.limit).filter(finds).take(wanted).collect();
        }
        let name = target.mutation.name();
        let anew = if strayed { ", new" } else { "" };
        eprintln!("{name:26} {found:?}, {}{anew}", Seconds(began.elapsed()));
        let seeds: Vec<String> = found.iter().map(u64::to_string).collect();
        put(&lines, format!("{name} {}\n", seeds.join(" ")));
    });
    let mut lines = into_inner(lines);
    lines.sort_unstable();
    lines.concat()
}

struct Seconds(Duration);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}
