//! `replicas`: replicated volumes.

use std::ops::Range;

use braid_sim::counters::Required;
#[cfg(feature = "mutations")]
use braid_sim::mutations::{Mutation, Target};
#[cfg(feature = "mutations")]
use braid_sim::replicas::mutations;
use braid_sim::replicas::{self, Options, required};

use super::simulation::{Report, Simulation, Value};

/// The simulation of replicated volumes.
#[derive(Clone, Default)]
pub struct Replicas;

impl Simulation for Replicas {
    fn name(&self) -> &'static str {
        "replicas"
    }

    fn usage(&self) -> &'static str {
        ""
    }

    fn seeds(&self) -> Range<u64> {
        0..300
    }

    fn required(&self) -> Required {
        required::BY_SEEDS
    }

    fn knows(&self, _: &str) -> bool {
        false
    }

    fn option(&mut self, _: &str, _: &mut Value<'_>) -> Result<bool, String> {
        Ok(false)
    }

    fn options(&self) -> Vec<String> {
        Vec::new()
    }

    fn run(&self, seed: u64, trace: bool) -> Report {
        let outcome = replicas::run(seed, &Options { trace });
        Report {
            counters: outcome.counters.into(),
            violation: outcome.violation,
            hash: Some(outcome.hash),
            ..Report::default()
        }
    }

    #[cfg(feature = "mutations")]
    fn targets(&self) -> Vec<Target> {
        mutations::targets()
    }

    #[cfg(feature = "mutations")]
    fn aimed_at(&self, _: Mutation, _: bool) -> Box<dyn Simulation> {
        Box::new(Replicas)
    }
}
