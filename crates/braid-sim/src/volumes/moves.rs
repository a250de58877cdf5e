//! Volumes and snapshots move to other members and are compacted while everything else continues.

use braid_engine::pool::on_disk::AllocationPolicy;
use braid_engine::pool::{MoveStep, Pool};
use braid_engine::{EngineIo, Uuid};

use super::admin::Admin;
use super::manage::owner_of;

/// Maximum number of steps that one administrator performs at a time.
const STEPS_MAX: u64 = 60;

impl Admin {
    /// Begins to move or to compact an owner's blocks, or continues what was begun.
    pub async fn random_move(&mut self) {
        self.phase("moving");
        let all: Vec<Uuid> = self.shared.borrow().models.keys().copied().collect();
        let members = self.shared.borrow().members.len();
        let (place, on) = match self.rng.below(4) {
            0 => (AllocationPolicy::Spread, 0),
            1 => (AllocationPolicy::Chosen, u128::from(1 + self.rng.below((1 << members) - 1))),
            _ => (AllocationPolicy::Single, 1 << self.rng.index(members)),
        };
        if self.rng.below(4) > 0 && !all.is_empty() {
            let uuid = *self.rng.pick(&all);
            let compacts = self.rng.below(3) == 0;
            let begin = move |pool: &mut Pool| {
                // The volume may be gone by now.
                let Ok(owner) = owner_of(pool, uuid) else { return Ok(()) };
                if compacts {
                    pool.compact(vec![owner]);
                    return Ok(());
                }
                let placed = pool.set_placement(owner, place, on);
                if placed.is_err() {
                    pool.request_commit();
                }
                placed
            };
            if let Err(error) = self.inspect_pool(begin).await {
                self.refused("a move", error);
            }
        }
        for _ in 0..1 + self.rng.below(STEPS_MAX) {
            let records = 1 + self.rng.below(60) as u32;
            let step = move |pool: &mut Pool| {
                let compacting = pool.compact_step(records);
                let moving = pool.move_step(records);
                if moving == MoveStep::Unreadable {
                    pool.retry_moves();
                }
                (compacting, moving, pool.blocks_moved())
            };
            let (compacting, moving, moved) = self.inspect_pool(step).await;
            if moved > 0 {
                self.count("admin", "blocks moved");
            }
            if compacting != MoveStep::Some && moving != MoveStep::Some {
                break;
            }
            let pause = 1 + self.rng.below(500_000);
            self.port.sleep(pause).await;
        }
    }
}
