//! `volumes`: pools in the whole stack.

use std::ops::Range;

use braid_sim::counters::Required;
#[cfg(feature = "mutations")]
use braid_sim::mutations::{Mutation, Target};
#[cfg(feature = "mutations")]
use braid_sim::volumes::mutations;
use braid_sim::volumes::{self, Focus, Options, Outcome, required};

use super::arguments::{one_of, written};
use super::simulation::{Report, Simulation, Value};

/// The simulation of volumes.
#[derive(Clone, Default)]
pub struct Volumes {
    options: Options,
}

impl Volumes {
    fn traced(&self, trace: bool) -> Options {
        Options { trace, ..self.options.clone() }
    }
}

fn report(outcome: Outcome) -> Report {
    let (hash, events) = outcome.hash;
    Report { counters: outcome.counters, violation: outcome.violation, events, hash: Some(hash), runs: 0 }
}

impl Simulation for Volumes {
    fn name(&self) -> &'static str {
        "volumes"
    }

    fn usage(&self) -> &'static str {
        "[--focus snapshots|durable|starts|arrays|reuse|late|moves|sectors|full] [--sweep]"
    }

    fn seeds(&self) -> Range<u64> {
        0..100
    }

    fn required(&self) -> Required {
        required::BY_SEEDS
    }

    fn knows(&self, flag: &str) -> bool {
        flag == "--sweep"
    }

    fn option(&mut self, name: &str, value: &mut Value<'_>) -> Result<bool, String> {
        match name {
            "--focus" => self.options.focus = Some(one_of(name, &value("--focus snapshots")?, &Focus::ALL)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn options(&self) -> Vec<String> {
        written("--focus", self.options.focus, &Focus::ALL).into_iter().collect()
    }

    fn run(&self, seed: u64, trace: bool) -> Report {
        report(volumes::run(seed, &self.traced(trace)))
    }

    fn sweep(&self, seed: u64, trace: bool) -> Report {
        let (runs, outcome) = volumes::sweep(seed, &self.traced(trace));
        // A sweep has many runs, each of which would have to be repeated.
        Report { runs, hash: None, ..report(outcome) }
    }

    #[cfg(feature = "mutations")]
    fn targets(&self) -> Vec<Target> {
        mutations::targets()
    }

    #[cfg(feature = "mutations")]
    fn aimed_at(&self, mutation: Mutation, _: bool) -> Box<dyn Simulation> {
        let focus = self.options.focus.or(mutations::focus(mutation));
        Box::new(Volumes { options: Options { focus, ..self.options.clone() } })
    }
}
