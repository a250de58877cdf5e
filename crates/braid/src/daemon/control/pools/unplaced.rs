//! Volumes that were placed on a member that leaves, and are not any more: whoever lets it stay after all is told which.
//!
//! A volume's place is what it was told last, and what it had before is in no label: it is in the daemon's state, as the member may stay
//! after a restart, too.

use super::super::Control;
use super::{Reach, volumes};
use braid_api::ErrorDetail;
use braid_engine::PoolNext;
use braid_engine::pool::Pool;
use braid_format::pool::OwnerKind;
use std::collections::BTreeSet;
use uuid::Uuid;

impl Control {
    /// Notes which volumes are placed on a member that is about to leave.
    ///
    /// # Errors
    /// The pool is not served any more.
    pub(super) async fn note_unplaced(&self, pool: &Reach, number: u8) -> Result<(), ErrorDetail> {
        let asked = move |pool: &mut Pool| {
            let volumes = pool.state().owners.iter().filter(|owner| owner.kind == OwnerKind::Volume);
            let on_it = volumes.filter(|owner| owner.on >> number & 1 == 1);
            (PoolNext::Done, on_it.map(|owner| owner.uuid).collect::<BTreeSet<Uuid>>())
        };
        let on_it = self.call(pool, asked).await?;
        let before = if on_it.is_empty() {
            self.write().unplaced.remove(&(pool.uuid, number))
        } else {
            self.write().unplaced.insert((pool.uuid, number), on_it)
        };
        let nothing = before.is_none() && !self.read().unplaced.contains_key(&(pool.uuid, number));
        if !nothing {
            self.save_or_warn();
        }
        Ok(())
    }

    /// The member stays: those that were placed on it and are not any more, by name. They are forgotten with that.
    ///
    /// # Errors
    /// The pool is not served any more.
    pub(super) async fn take_unplaced(&self, pool: &Reach, number: u8) -> Result<Vec<String>, ErrorDetail> {
        let Some(were_on_it) = self.read().unplaced.get(&(pool.uuid, number)).cloned() else { return Ok(Vec::new()) };
        let of = pool.name.clone();
        let asked = move |pool: &mut Pool| {
            let state = pool.state();
            let there = state.owners.iter().filter(|owner| owner.kind == OwnerKind::Volume);
            let not_on_it = there.filter(|o| were_on_it.contains(&o.uuid) && o.on != 0 && o.on >> number & 1 == 0);
            let names = not_on_it.map(|owner| format!("{of}/{}", volumes::name_in_pool(state, owner)));
            (PoolNext::Done, names.collect::<BTreeSet<String>>())
        };
        let names = self.call(pool, asked).await?;
        self.write().unplaced.remove(&(pool.uuid, number));
        self.save_or_warn();
        Ok(names.into_iter().collect())
    }
}
