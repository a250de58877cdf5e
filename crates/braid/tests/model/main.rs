//! The model test over the real daemon: random lives of arrays, pools and their clients, judged by an oracle that knows of blocks only.
//!
//! A seed drives all choices; what depends on time (which request is under way when the daemon is killed) is not replayed. docs/testing.md
//! says how to run a seed again, and for longer.

mod arrays;
mod attached;
mod client;
mod counts;
mod dice;
mod ends;
mod files;
mod harm;
mod manager;
mod nodes;
mod opener;
mod oracle;
mod pools;
mod remedies;
// Of the stories; not everything of it is used here.
#[path = "../end_to_end/support.rs"]
#[expect(dead_code, reason = "shared with the end-to-end tests, which use all of it")]
mod support;
mod ways;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use counts::Counts;
use ways::Way;
use world::Log;

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

/// What lives there are: of each kind in turn, by seed; of every second round the last one is of nodes.
fn kind(seed: u64) -> &'static str {
    let kinds = [&arrays::LEVELS[..], &["pool", "pool on an array"]].concat();
    let round = kinds.len() as u64;
    if seed % (2 * round) == 2 * round - 1 {
        return nodes::KIND;
    }
    kinds[(seed % round) as usize]
}

fn live(seed: u64, steps: u64, log: Log) -> Counts {
    let (kind, way) = (kind(seed), Way::of(seed));
    log.lock().expect("unpoisoned").push(format!("seed {seed}, {kind}, clients by {}", way.word()));
    way.need();
    let world = match kind {
        nodes::KIND => nodes::NodesLife::new(seed, log).run(steps),
        "pool" => pools::PoolLife::new(false, seed, log).run(steps),
        "pool on an array" => pools::PoolLife::new(true, seed, log).run(steps),
        level => arrays::ArrayLife::new(level, seed, log).run(steps),
    };
    world.counts.clone()
}

/// One life; false if it failed, which is told with all that had happened.
fn try_seed(seed: u64, steps: u64, sum: &Mutex<Counts>) -> bool {
    let log = Log::default();
    let own = Arc::clone(&log);
    let start = Instant::now();
    match catch_unwind(AssertUnwindSafe(|| live(seed, steps, own))) {
        Ok(counts) => {
            let (kind, way, seconds) = (kind(seed), Way::of(seed).word(), start.elapsed().as_secs_f64());
            eprintln!("seed {seed}, {kind}, clients by {way}: {seconds:.1} s, {counts:?}");
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
fn random_lives_hold_what_a_model_holds() {
    let steps = given("BRAID_MODEL_STEPS").unwrap_or(150);
    let sum = Mutex::new(Counts::default());
    if let Some(seed) = given("BRAID_MODEL_SEED") {
        assert!(try_seed(seed, steps, &sum), "seed {seed} failed");
        return;
    }
    // Always the same seeds in the same order, so that a change is judged by itself.
    let (first, seconds) = (given("BRAID_MODEL_FIRST").unwrap_or(0), given("BRAID_MODEL_SECONDS").unwrap_or(60));
    let lives = given("BRAID_MODEL_LIVES").unwrap_or(3);
    let (next, start) = (AtomicU64::new(first), Instant::now());
    let only = std::env::var("BRAID_MODEL_KIND").ok();
    let only_by = std::env::var("BRAID_MODEL_CLIENTS").ok();
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..lives {
            scope.spawn(|| {
                while start.elapsed() < Duration::from_secs(seconds) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_met = only.as_ref().is_none_or(|only| only == kind(seed))
                        && only_by.as_ref().is_none_or(|only| only == Way::of(seed).word());
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
    assert!(failed.is_empty(), "seeds that failed: {failed:?}; each tells above what had happened");
}
