//! `--hunt`: looks for every planted bug, each with seeds from the first on, until one finds it.
//!
//! This belongs to the command, not to the simulator: it uses two threads. A bug is planted on one of them, and each
//! run stays on its thread.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_sim::plant::{Plant, Way};
use braid_sim::runs::{self, Options};

const THREADS: usize = 2;
/// Of what a run said, so many characters are shown.
const SHOWN_CHARS: usize = 110;

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

/// Looks for every planted bug, from this seed on. Prints a line for each; gives the names of those that were not found
/// within their limit, which `most` may lower.
pub fn hunt(first: u64, most: u64, options: &Options) -> Vec<String> {
    // A bug that is found by a panic is found.
    panic::set_hook(Box::new(|_| {}));
    let mut plants = Plant::all();
    // Those that take longest first, so that both threads have something to do to the end.
    plants.sort_by_key(|plant| std::cmp::Reverse(plant.way().weight()));
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(plant) = plants.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (sweep, limit) = match plant.way() {
                Way::Seeds(limit) | Way::Mirrors(limit) | Way::Drills(limit) | Way::Rows(limit, _) => (false, limit),
                Way::Sweeps(limit) => (true, limit),
                Way::Open => continue,
            };
            let drills = matches!(plant.way(), Way::Drills(_) | Way::Rows(..));
            let options = Options { kinds: plant.kinds(), drills, subject: plant.subject(), ..options.clone() };
            let what = match plant.way() {
                Way::Sweeps(_) => "sweep",
                Way::Drills(_) | Way::Rows(..) => "drill",
                _ => "seed",
            };
            let limit = limit.min(most);
            let found = (0..limit).find_map(|n| Some((n, notices(*plant, sweep, first + n, &options)?)));
            let name = plant.name();
            match found {
                Some((n, said)) => {
                    let said: String = said.lines().next().unwrap_or("").chars().take(SHOWN_CHARS).collect();
                    println!("{name:20} {what} {:4}, {:3} tried of {limit}: {said}", first + n, n + 1);
                }
                None => {
                    println!("{name:20} NOT FOUND in {limit} {what}s from {first} on");
                    missed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(name);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let _ = panic::take_hook();
    let mut missed = missed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    missed.sort_unstable();
    missed
}
