//! What the command needs to know of a simulation.

use std::ops::Range;

use braid_sim::counters::{Counters, Required};
#[cfg(feature = "mutations")]
use braid_sim::mutations::{Mutation, Target};

/// Returns the value of an option; fails if there is none. The argument is an example for the message.
pub type Value<'a> = dyn FnMut(&str) -> Result<String, String> + 'a;

/// A simulation, with the options that its runs have.
pub trait Simulation: Sync {
    /// Returns the subcommand.
    fn name(&self) -> &'static str;

    /// Returns the options that only this simulation has, as the usage shows them.
    fn usage(&self) -> &'static str;

    /// Returns the seeds that run if no seeds are given.
    fn seeds(&self) -> Range<u64>;

    /// Returns what an ordinary range of seeds must exercise.
    fn required(&self) -> Required;

    /// Returns whether it knows `--sweep` or `--shrink`.
    fn knows(&self, flag: &str) -> bool;

    /// Takes an option that only this simulation has. Returns whether there is such an option.
    ///
    /// # Errors
    /// A message that says what is wrong with the value, with an example.
    fn option(&mut self, name: &str, value: &mut Value<'_>) -> Result<bool, String>;

    /// Returns the options that differ from the defaults, as they are written on the command line. A run with any of them
    /// need not exercise everything.
    fn options(&self) -> Vec<String>;

    /// Runs a seed. `trace` prints every event as it happens.
    fn run(&self, seed: u64, trace: bool) -> Report;

    /// Sweeps a seed: runs it again and again, each time with a crash at another step.
    fn sweep(&self, seed: u64, trace: bool) -> Report {
        self.run(seed, trace)
    }

    /// Looks for the smallest history of a seed that still fails; `None` if the seed does not fail.
    fn shrink(&self, _seed: u64) -> Option<Shrunk> {
        None
    }

    /// Returns every mutation that the simulation is to find, and those that it need not find.
    #[cfg(feature = "mutations")]
    fn targets(&self) -> Vec<Target>;

    /// Returns this simulation with the options added under which a mutation is found soonest. In a hunt, also skips
    /// the ordinary seeds of a mutation that only scenarios reveal.
    #[cfg(feature = "mutations")]
    fn aimed_at(&self, mutation: Mutation, in_hunt: bool) -> Box<dyn Simulation>;
}

/// The result of a run, or of all runs of a sweep.
#[derive(Default)]
pub struct Report {
    /// What was exercised.
    pub counters: Counters,
    /// The violation, if there is one.
    pub violation: Option<String>,
    /// Number of events; 0 if they are not counted.
    pub events: u64,
    /// The hash of everything that happened: the same for the same seed. `None`: it is not compared.
    pub hash: Option<u64>,
    /// Number of runs of a sweep; 0 if they are not counted.
    pub runs: u64,
}

/// A smaller history that fails.
pub struct Shrunk {
    /// The simulation with the limits that were found.
    pub simulation: Box<dyn Simulation>,
    /// The violation with these limits.
    pub why: String,
    /// Number of events, without limits and with these.
    pub events: (u64, u64),
    /// Number of runs that were tried.
    pub tried: u32,
}
