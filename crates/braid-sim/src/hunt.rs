//! `--hunt`: looks for every planted bug, until one run finds it: first with the seeds that are known to, then with all.
//!
//! This belongs to the command, not to the simulator: it uses two threads. A bug is planted on one of them, and each
//! run stays on its thread.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use braid_sim::plant::{Plant, Way};
use braid_sim::runs::{self, Options};

const THREADS: usize = 2;
/// Of what a run said, so many characters are shown.
const SHOWN_CHARS: usize = 100;
/// So many seeds are noted of each bug: one is enough, until the next change makes another story of it.
const KNOWN_SEEDS: usize = 2;

/// What one run of a seed with a planted bug says of it; `None` when it notices nothing.
pub fn notices(plant: Plant, sweep: bool, seed: u64, options: &Options) -> Option<String> {
    let run = || {
        if sweep { runs::sweep(seed, options).2 } else { runs::once(seed, options).violation.map(|v| v.0) }
    };
    // Nothing of a run outlives it: what a panic leaves half done nobody looks at.
    match plant.during(|| panic::catch_unwind(AssertUnwindSafe(run))) {
        Ok(said) => said,
        Err(payload) => {
            let said = payload.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| payload.downcast_ref::<&str>().copied());
            Some(format!("panics: {}", said.unwrap_or("without a word")))
        }
    }
}

/// How one bug is looked for.
struct Search {
    plant: Plant,
    sweep: bool,
    what: &'static str,
    limit: u64,
    options: Options,
}

impl Search {
    /// `None`: it is not demanded.
    fn new(plant: Plant, most: u64, options: &Options) -> Option<Search> {
        let (what, limit) = match plant.way() {
            Way::Seeds(limit) | Way::Mirrors(limit) | Way::Replicated(limit) => ("seed", limit),
            Way::Drills(limit) | Way::Rows(limit, _) => ("drill", limit),
            Way::Sweeps(limit) => ("sweep", limit),
            Way::Open => return None,
        };
        let drills = what == "drill";
        let replicated = plant.is_of_leases();
        let options = Options { kinds: plant.kinds(), drills, subject: plant.subject(), replicated, ..options.clone() };
        Some(Search { plant, sweep: what == "sweep", what, limit: limit.min(most), options })
    }

    fn notices(&self, seed: u64) -> Option<String> {
        notices(self.plant, self.sweep, seed, &self.options)
    }
}

/// Does `each` of these, by both threads. Who takes longest comes first, so that both have something to do to the end.
fn with_threads<T: Sync>(mut all: Vec<T>, weight: impl Fn(&T) -> u64, each: impl Fn(&T) + Sync) {
    all.sort_by_key(|one| std::cmp::Reverse(weight(one)));
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            each(one);
        }
    };
    // A bug that is found by a panic is found.
    panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let _ = panic::take_hook();
}

fn into_inner<T>(of: Mutex<T>) -> T {
    of.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn put<T>(list: &Mutex<Vec<T>>, one: T) {
    list.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(one);
}

/// What came of it.
pub struct Hunted {
    /// Names of those that were not found within their limit.
    pub missed: Vec<String>,
    /// Names of those that none of their known seeds finds any more.
    pub strayed: Vec<String>,
}

/// Looks for every planted bug: with the seeds that are known to find it, where `first` is none, then from there on. Prints a line
/// for each. `most` may lower the limits.
pub fn hunt(first: Option<u64>, most: u64, options: &Options) -> Hunted {
    let (missed, strayed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let plants: Vec<Search> = Plant::all().into_iter().filter_map(|plant| Search::new(plant, most, options)).collect();
    // A search that must go through all seeds takes as long as its limit allows, one that need not nothing.
    let weight = |search: &Search| search.plant.way().weight();
    with_threads(plants, weight, |search| {
        let (name, what, limit) = (search.plant.name(), search.what, search.limit);
        let began = Instant::now();
        let known = if first.is_none() { search.plant.known() } else { Vec::new() };
        let scan = first.unwrap_or(0)..first.unwrap_or(0).saturating_add(limit);
        let seeds = known.iter().copied().chain(scan.filter(|seed| !known.contains(seed)));
        let found = seeds.enumerate().find_map(|(n, seed)| Some((n, seed, search.notices(seed)?)));
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

/// The table of the seeds that find each bug, as `known-seeds.txt` holds it: those known ones that find it still, or else the first few
/// from 0 on, within its limit.
pub fn table(options: &Options) -> String {
    let lines = Mutex::new(Vec::new());
    let plants = Plant::all().into_iter().filter_map(|plant| Search::new(plant, u64::MAX, options)).collect();
    let weight = |search: &Search| search.plant.way().weight();
    with_threads(plants, weight, |search| {
        let began = Instant::now();
        // A sweep takes long.
        let wanted = if search.sweep { 1 } else { KNOWN_SEEDS };
        let finds = |seed: &u64| search.notices(*seed).is_some();
        let mut found: Vec<u64> = search.plant.known().into_iter().filter(finds).collect();
        let strayed = found.is_empty();
        if strayed {
            found = (0..search.limit).filter(finds).take(wanted).collect();
        }
        let name = search.plant.name();
        let anew = if strayed { ", anew" } else { "" };
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
