//! Flattening: volumes become independent of their parents, under their clients.

use braid_engine::pool::{AdminError, FlattenStep, Pool};
use braid_engine::{EngineIo, PoolNext, Uuid};

use super::admin::Admin;
use super::manage::{after_change, owner_of};

/// Maximum number of steps that an administrator performs per flattening.
const STEPS_MAX: u32 = 60;

impl Admin {
    /// Begins to flatten a volume, and performs all or some of its steps.
    pub async fn flatten(&mut self, uuid: Uuid) {
        self.phase("flattening");
        self.set_busy(uuid, true);
        let flatten = move |pool: &mut Pool| {
            let tops = owner_of(pool, uuid).and_then(|owner| pool.flatten(owner));
            after_change(tops, PoolNext::Commit, pool)
        };
        let (tops, good) = self.call(flatten, |_, _| {}).await;
        self.set_busy(uuid, false);
        match tops {
            Ok(tops) if good => {
                self.count("admin", if tops.is_empty() { "nothing to flatten" } else { "volumes to flatten" });
            }
            Ok(_) => return,
            Err(AdminError::LogFull) => return self.count("admin", "flattening refused"),
            Err(error) => {
                self.report_violation(format!("flattening is refused: {error}"));
                return;
            }
        }
        let steps = self.rng.below(u64::from(STEPS_MAX));
        for _ in 0..steps {
            let records = 1 + self.rng.below(60) as u32;
            if self.flatten_step(records).await == FlattenStep::Nothing {
                break;
            }
            let pause = 1 + self.rng.below(300_000);
            self.port.sleep(pause).await;
        }
    }

    pub async fn flatten_step(&self, records: u32) -> FlattenStep {
        let step = self.inspect_pool(move |pool| pool.flatten_step(records)).await;
        match step {
            FlattenStep::Done(_) => self.count("admin", "flattened"),
            FlattenStep::Full(_) => self.count("admin", "flattening without space"),
            FlattenStep::Unreadable(_) => self.count("admin", "flattening of what cannot be read"),
            FlattenStep::Nothing | FlattenStep::Some | FlattenStep::Later => {}
        }
        step
    }
}
