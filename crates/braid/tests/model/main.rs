//! The model test over the real daemon: random scenarios of arrays, pools and their clients, checked by an oracle that
//! knows only blocks.
//!
//! A seed drives all choices; timing (which request is in flight when the daemon is killed) is not reproduced.
//! docs/internals/testing.md describes how to run a seed again, and for longer.

mod access;
mod arrays;
mod attached;
mod client;
mod counts;
mod dice;
mod disk_faults;
mod file_client;
mod files;
mod manager;
mod nodes;
mod oracle;
mod pools;
mod remedies;
mod shutdown;
// Shared with the end-to-end tests; this test does not use all of it.
#[path = "../end_to_end/support.rs"]
#[expect(dead_code, reason = "shared with the end-to-end tests, which use all of it")]
mod support;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use access::Access;
use counts::Counts;
use world::Log;

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

/// Returns the kind of scenario of a seed: each kind in turn; the last one of every second round runs on nodes.
fn kind(seed: u64) -> &'static str {
    let kinds = [&arrays::LEVELS[..], &["pool", "pool on an array"]].concat();
    let round = kinds.len() as u64;
    if seed % (2 * round) == 2 * round - 1 {
        return nodes::KIND;
    }
    kinds[(seed % round) as usize]
}

fn run_scenario(seed: u64, steps: u64, log: Log) -> Counts {
    let (kind, access) = (kind(seed), Access::of(seed));
    log.lock().expect("unpoisoned").push(format!("seed {seed}, {kind}, clients by {}", access.name()));
    access.require();
    let world = match kind {
        nodes::KIND => nodes::NodesScenario::new(seed, log).run(steps),
        "pool" => pools::PoolScenario::new(false, seed, log).run(steps),
        "pool on an array" => pools::PoolScenario::new(true, seed, log).run(steps),
        level => arrays::ArrayScenario::new(level, seed, log).run(steps),
    };
    world.counts.clone()
}

/// Runs one scenario. Returns false if it failed, after printing all that had happened.
fn try_seed(seed: u64, steps: u64, sum: &Mutex<Counts>) -> bool {
    let log = Log::default();
    let own = Arc::clone(&log);
    let start = Instant::now();
    match catch_unwind(AssertUnwindSafe(|| run_scenario(seed, steps, own))) {
        Ok(counts) => {
            let (kind, access, seconds) = (kind(seed), Access::of(seed).name(), start.elapsed().as_secs_f64());
            eprintln!("seed {seed}, {kind}, clients by {access}: {seconds:.1} s, {counts:?}");
            sum.lock().expect("unpoisoned").add(&counts);
            true
        }
        Err(why) => {
            let why = why.downcast_ref::<String>().cloned();
            let why = why.unwrap_or_else(|| "a panic without words".to_owned());
            let lines = log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            eprintln!("seed {seed} FAILED: {why}\n---- what had happened:\n{}", lines.join("\n"));
            eprintln!("---- again: BRAID_MODEL_SEED={seed} cargo test -p braid --test model -- --nocapture");
            false
        }
    }
}

#[test]
fn random_scenarios_match_the_model() {
    let steps = env_number("BRAID_MODEL_STEPS").unwrap_or(150);
    let sum = Mutex::new(Counts::default());
    if let Some(seed) = env_number("BRAID_MODEL_SEED") {
        assert!(try_seed(seed, steps, &sum), "seed {seed} failed");
        return;
    }
    // The seeds are always the same in the same order, so that a change is tested by itself.
    let (first, seconds) =
        (env_number("BRAID_MODEL_FIRST").unwrap_or(0), env_number("BRAID_MODEL_SECONDS").unwrap_or(60));
    let threads = env_number("BRAID_MODEL_PARALLEL").unwrap_or(3);
    let (next, start) = (AtomicU64::new(first), Instant::now());
    let only = std::env::var("BRAID_MODEL_KIND").ok();
    let only_by = std::env::var("BRAID_MODEL_CLIENTS").ok();
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while start.elapsed() < Duration::from_secs(seconds) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_met = only.as_ref().is_none_or(|only| only == kind(seed))
                        && only_by.as_ref().is_none_or(|only| only == Access::of(seed).name());
                    if !is_met {
                        continue;
                    }
                    if !try_seed(seed, steps, &sum) {
                        failed.lock().expect("unpoisoned").push(seed);
                        return;
                    }
                }
            });
        }
    });
    eprintln!("seeds {first}..{}: {:?}", next.load(Ordering::Relaxed), sum.lock().expect("unpoisoned"));
    let failed = failed.into_inner().expect("unpoisoned");
    assert!(failed.is_empty(), "seeds that failed: {failed:?}; each prints above what had happened");
}
