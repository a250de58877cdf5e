//! `pools`: pools alone.

use std::ops::Range;

use braid_sim::counters::Required;
#[cfg(feature = "mutations")]
use braid_sim::mutations::{Mutation, Target};
#[cfg(feature = "mutations")]
use braid_sim::pools::mutations;
use braid_sim::pools::{self, Focus, Options, Outcome, required};

use super::arguments::{number, one_of, written};
use super::simulation::{Report, Simulation, Value};

/// The simulation of pools.
#[derive(Clone, Default)]
pub struct Pools {
    options: Options,
}

impl Pools {
    fn traced(&self, trace: bool) -> Options {
        Options { trace, ..self.options.clone() }
    }
}

fn report(outcome: Outcome) -> Report {
    Report {
        counters: outcome.counters.into(),
        violation: outcome.violation,
        hash: Some(outcome.hash),
        ..Report::default()
    }
}

impl Simulation for Pools {
    fn name(&self) -> &'static str {
        "pools"
    }

    fn usage(&self) -> &'static str {
        "[--steps N] [--lives N] [--focus merges|starts|reuse|moves|losses|flattening|space|full] [--sweep]"
    }

    fn seeds(&self) -> Range<u64> {
        0..1000
    }

    fn required(&self) -> Required {
        required::BY_SEEDS
    }

    fn knows(&self, flag: &str) -> bool {
        flag == "--sweep"
    }

    fn option(&mut self, name: &str, value: &mut Value<'_>) -> Result<bool, String> {
        match name {
            "--steps" => self.options.steps_mean = number(name, &value("--steps 400")?)?,
            "--lives" => self.options.lives_max = number(name, &value("--lives 5")?)?,
            "--focus" => self.options.focus = Some(one_of(name, &value("--focus folds")?, &Focus::ALL)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn options(&self) -> Vec<String> {
        let (options, defaults) = (&self.options, Options::default());
        let steps = (options.steps_mean != defaults.steps_mean).then(|| format!("--steps {}", options.steps_mean));
        let lives = (options.lives_max != defaults.lives_max).then(|| format!("--lives {}", options.lives_max));
        [steps, lives, written("--focus", options.focus, &Focus::ALL)].into_iter().flatten().collect()
    }

    fn run(&self, seed: u64, trace: bool) -> Report {
        report(pools::run(seed, &self.traced(trace)))
    }

    fn sweep(&self, seed: u64, trace: bool) -> Report {
        report(pools::sweep(seed, &self.traced(trace)))
    }

    #[cfg(feature = "mutations")]
    fn targets(&self) -> Vec<Target> {
        mutations::targets()
    }

    #[cfg(feature = "mutations")]
    fn aimed_at(&self, mutation: Mutation, _: bool) -> Box<dyn Simulation> {
        let focus = self.options.focus.or(mutations::focus(mutation));
        Box::new(Pools { options: Options { focus, ..self.options.clone() } })
    }
}
