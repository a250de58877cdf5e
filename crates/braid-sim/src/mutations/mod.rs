//! Mutations: bugs that are put into the engine on purpose, one at a time. The simulator must find each of them.

use std::panic::{self, AssertUnwindSafe};

use braid_array_admin::lifecycle;
use braid_engine::replica;

pub mod arrays;

/// A mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// On the data path, of arrays or of pools.
    Data(braid_engine::Planted),
    /// In the life cycle of arrays on their disks.
    Labels(lifecycle::Planted),
    /// In the rules of replicated volumes.
    Replicas(replica::Planted),
}

impl Mutation {
    /// Returns its name.
    pub fn name(self) -> String {
        match self {
            Mutation::Data(mutation) => format!("{mutation:?}"),
            Mutation::Labels(mutation) => format!("{mutation:?}"),
            Mutation::Replicas(mutation) => format!("{mutation:?}"),
        }
    }

    /// Runs `f` with this mutation in the engine, on this thread.
    pub fn during<T>(self, f: impl FnOnce() -> T) -> T {
        struct Removal;
        impl Drop for Removal {
            fn drop(&mut self) {
                braid_engine::plant(None);
                lifecycle::plant(None);
                replica::plant(None);
            }
        }
        let _removal = Removal;
        match self {
            Mutation::Data(mutation) => braid_engine::plant(Some(mutation)),
            Mutation::Labels(mutation) => lifecycle::plant(Some(mutation)),
            Mutation::Replicas(mutation) => replica::plant(Some(mutation)),
        }
        f()
    }

    /// Returns the violation that `run` reports with this mutation in the engine; `None` if the run notices nothing. A
    /// panic counts as a violation.
    pub fn noticed(self, run: impl FnOnce() -> Option<String>) -> Option<String> {
        // No state of a run outlives it: nothing reads what a panic leaves half done.
        match self.during(|| panic::catch_unwind(AssertUnwindSafe(run))) {
            Ok(violation) => violation,
            Err(payload) => {
                let message = payload.downcast_ref::<String>().map(String::as_str);
                let message = message.or_else(|| payload.downcast_ref::<&str>().copied());
                Some(format!("panics: {}", message.unwrap_or("without a word")))
            }
        }
    }
}

/// The kind of run that shows a mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An ordinary seed.
    Seed,
    /// A seed that runs a scenario.
    Scenario,
    /// A seed that is cut at every step.
    Sweep,
}

impl Kind {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Seed => "seed",
            Kind::Scenario => "scenario",
            Kind::Sweep => "sweep",
        }
    }
}

/// A mutation, and how it is looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The mutation.
    pub mutation: Mutation,
    /// The kind of run that shows it.
    pub kind: Kind,
    /// Number of seeds from 0 on within which it must be found; 0: it is not looked for.
    pub limit: u64,
    /// Seeds that found it when they were written down. That is no guarantee: a change of the random draws, or of the
    /// I/Os of the engine, changes the runs.
    pub known: Vec<u64>,
}

impl Target {
    /// A mutation that ordinary seeds must find.
    pub fn of_seeds(mutation: Mutation, limit: u64, known: Vec<u64>) -> Target {
        Target { mutation, kind: Kind::Seed, limit, known }
    }

    /// Returns whether it must be found.
    pub fn is_required(&self) -> bool {
        self.limit > 0
    }

    /// Returns about how many runs the limit allows.
    pub fn weight(&self) -> u64 {
        // A sweep of one seed takes about 300 runs.
        if self.kind == Kind::Sweep { self.limit * 300 } else { self.limit }
    }
}
