//! Volumes that the removal of a member has taken off that member. If the removal is cancelled, the command reports
//! which of them are no longer allocated there.
//!
//! The pool's tables have only the current placement of a volume, and the labels have none. So the state file records
//! which volumes were allocated on the member: the removal may be cancelled after a restart, too.

use crate::PoolManager;
use crate::names::name_in_pool;
use braid_api::ErrorDetail;
use braid_engine::PoolNext;
use braid_engine::pool::Pool;
use braid_format::pool::OwnerKind;
use braid_inventory::PoolHandle;
use std::collections::BTreeSet;
use uuid::Uuid;

impl PoolManager {
    /// Records which volumes are allocated on a member that is about to leave.
    ///
    /// # Errors
    /// The pool is not served any more.
    pub(crate) async fn note_unassigned(&self, pool: &PoolHandle, number: u8) -> Result<(), ErrorDetail> {
        let query = move |pool: &mut Pool| {
            let volumes = pool.state().owners.iter().filter(|owner| owner.kind == OwnerKind::Volume);
            let on_it = volumes.filter(|owner| owner.on >> number & 1 == 1);
            (PoolNext::Done, on_it.map(|owner| owner.uuid).collect::<BTreeSet<Uuid>>())
        };
        let on_it = self.call(pool, query).await?;
        let before = if on_it.is_empty() {
            self.inventory.write().evacuated_volumes.remove(&(pool.uuid, number))
        } else {
            self.inventory.write().evacuated_volumes.insert((pool.uuid, number), on_it)
        };
        let nothing = before.is_none() && !self.inventory.read().evacuated_volumes.contains_key(&(pool.uuid, number));
        if !nothing {
            self.inventory.save_or_warn();
        }
        Ok(())
    }

    /// Returns the names of volumes that were allocated on a member that now stays, and are not any more. The record is
    /// removed.
    ///
    /// # Errors
    /// The pool is not served any more.
    pub(crate) async fn take_unassigned(&self, pool: &PoolHandle, number: u8) -> Result<Vec<String>, ErrorDetail> {
        let Some(were_on_it) = self.inventory.read().evacuated_volumes.get(&(pool.uuid, number)).cloned() else {
            return Ok(Vec::new());
        };
        let of = pool.name.clone();
        let query = move |pool: &mut Pool| {
            let state = pool.state();
            let there = state.owners.iter().filter(|owner| owner.kind == OwnerKind::Volume);
            let not_on_it = there.filter(|o| were_on_it.contains(&o.uuid) && o.on != 0 && o.on >> number & 1 == 0);
            let names = not_on_it.map(|owner| format!("{of}/{}", name_in_pool(state, owner)));
            (PoolNext::Done, names.collect::<BTreeSet<String>>())
        };
        let names = self.call(pool, query).await?;
        self.inventory.write().evacuated_volumes.remove(&(pool.uuid, number));
        self.inventory.save_or_warn();
        Ok(names.into_iter().collect())
    }
}
