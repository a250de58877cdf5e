//! Flattens volumes, while they are used: makes them independent of the snapshots that they were cloned from.

use crate::PoolManager;
use crate::errors::{VolumeError, reply_when_durable};
use crate::listing::PoolListing;
use crate::names::find;
use braid_api::{ErrorDetail, FlattenVolume, JobState, Kind, Volume};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, EXTENT_BLOCKS, EXTENT_BYTES, FlattenStep, Pool};
use braid_format::pool::OwnerKind;
use braid_geometry::units::format_size;
use braid_inventory::{PoolHandle, PoolWork};
use uuid::Uuid;

/// The outcome of a step, and the volume if the step was the last one for an owner.
pub(crate) type Flattening = (FlattenStep, Option<Ended>);

/// The volume of an owner whose flattening has ended.
pub(crate) struct Ended {
    volume: Uuid,
    name: String,
    /// Number of further owners that are still flattened for this volume.
    more: usize,
}

impl PoolManager {
    /// Begins to flatten a volume and its snapshots in the background: they get their own copies of the blocks that
    /// they share with their ancestors. With `cancel`, stops that.
    ///
    /// # Errors
    /// There is no such volume, its pool does not serve, or has too little space; some of the shared blocks are in
    /// doubt.
    pub async fn flatten_volume(&self, volume: &str, ask: FlattenVolume) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let (pool, uuid, name) = (located.pool.clone(), located.uuid, located.name);
        let _one_at_a_time = pool.work.lock().await;
        if ask.cancel {
            self.keep_parent(&pool, uuid, &name).await?;
            return self.volume_of(&pool, uuid).await;
        }
        let listed = self.list_counted(&pool).await?;
        let owner = |pool: &Pool, uuid: Uuid| {
            let owner = find(pool.state(), uuid, OwnerKind::Volume).map(|owner| owner.id);
            owner.ok_or(VolumeError::Admin(AdminError::NoSuch))
        };
        let tops = move |pool: &mut Pool| {
            let tops = owner(pool, uuid).and_then(|id| pool.to_flatten(id).map_err(VolumeError::Admin));
            (PoolNext::Done, tops)
        };
        let tops = self.call(&pool, tops).await?.map_err(|error| error.into_detail(&pool, &name))?;
        if tops.is_empty() {
            return self.volume_of(&pool, uuid).await;
        }
        // The volume's reserve can be used for this, too.
        let free = listed.unreserved_bytes() + listed.kept_bytes(uuid);
        let needed = needed_bytes(&listed, &tops);
        if needed > free {
            let message = format!(
                "volume {name} shares {} with its parent, and only {} are free in pool {}",
                format_size(needed),
                format_size(free),
                pool.name
            );
            return Err(ErrorDetail::new(Kind::NoSpace, message)
                .with("pool", &pool.name)
                .with("name", &name)
                .remedy("add a member (braid pool add), delete volumes or snapshots, or discard (fstrim)"));
        }
        let flatten = move |pool: &mut Pool| {
            reply_when_durable(owner(pool, uuid).and_then(|id| pool.flatten(id).map(drop).map_err(VolumeError::Admin)))
        };
        self.call(&pool, flatten).await?.map_err(|error| error.into_detail(&pool, &name))?;
        let message = format!("volume {name} is being flattened");
        self.inventory.events().info("volume_flattens", message, &[("volume", &name)]);
        self.begin_job(&pool, PoolWork::Flattening(uuid), Some(&name)).await;
        {
            let tables = self.inventory.read();
            if let Some(served) = tables.pools.get(&pool.uuid).and_then(|entry| entry.served()) {
                served.maintenance.flattens();
            }
        }
        self.volume_of(&pool, uuid).await
    }

    async fn keep_parent(&self, pool: &PoolHandle, uuid: Uuid, name: &str) -> Result<(), ErrorDetail> {
        let keep = move |pool: &mut Pool| {
            let Some(id) = find(pool.state(), uuid, OwnerKind::Volume).map(|owner| owner.id) else {
                return (PoolNext::Done, false);
            };
            if pool.flattened_for(id).is_empty() {
                return (PoolNext::Done, false);
            }
            (if pool.cancel_flatten(id) { PoolNext::Commit } else { PoolNext::AfterCommit }, true)
        };
        if !self.call(pool, keep).await? {
            let message = format!("volume {name} is not being flattened");
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("name", name)
                .remedy(format!("braid volume show {name} says whether it is")));
        }
        self.end_flattening(pool.uuid, uuid, JobState::Cancelled);
        let message = format!(
            "volume {name} is not flattened any more and depends on its parent; the blocks copied so far are its own"
        );
        self.inventory.events().info("volume_flatten_canceled", message, &[("volume", name)]);
        Ok(())
    }

    fn end_flattening(&self, pool: Uuid, volume: Uuid, state: JobState) {
        if let Some(served) = self.inventory.read().pools.get(&pool).and_then(|entry| entry.served()) {
            served.jobs.end(state, |work| work == PoolWork::Flattening(volume));
        }
    }

    /// Reports that flattening has ended for an owner.
    pub(crate) fn report_flattened(&self, uuid: Uuid, flattening: Flattening) {
        let (step, Some(Ended { volume, name, more })) = flattening else { return };
        let pool = self.inventory.read().pools.get(&uuid).map(|entry| entry.name.clone()).unwrap_or_default();
        let (id, volume) = (volume, format!("{pool}/{name}"));
        let stopped = match step {
            FlattenStep::Nothing | FlattenStep::Some | FlattenStep::Later => return,
            FlattenStep::Done(_) if more > 0 => return,
            FlattenStep::Done(_) => {
                self.end_flattening(uuid, id, JobState::Done);
                let message = format!("volume {volume} is flattened: it is independent of its parent");
                return self.inventory.events().info("volume_flattened", message, &[("volume", &volume)]);
            }
            FlattenStep::Full(_) => "there is no space; make some free, and ask again",
            FlattenStep::Unreadable(_) => {
                "some of what it sees cannot be read; look at the disks of the pool and at the kernel's log (dmesg), and ask again"
            }
        };
        if more == 0 {
            self.end_flattening(uuid, id, JobState::Failed);
        }
        let message =
            format!("volume {volume} could not be flattened completely: {stopped}. What was copied is its own");
        self.inventory.events().warning("volume_flatten_stopped", message, &[("volume", &volume)]);
    }
}

/// Runs one step of flattening; returns also the volume for which it was the last step.
pub(crate) fn flatten_some(pool: &mut Pool, records: u32) -> Flattening {
    let step = pool.flatten_step(records);
    let (FlattenStep::Done(id) | FlattenStep::Full(id) | FlattenStep::Unreadable(id)) = step else {
        return (step, None);
    };
    let state = pool.state();
    let of = state.owners.get(id).map(|owner| if owner.volume.is_nil() { owner.uuid } else { owner.volume });
    let volume = of.and_then(|uuid| find(state, uuid, OwnerKind::Volume));
    let ended = volume.map(|volume| Ended {
        volume: volume.uuid,
        name: volume.name.to_string(),
        more: pool.flattened_for(volume.id).len(),
    });
    (step, ended)
}

/// Returns the minimum number of bytes that have to be allocated for these owners: for the blocks that each sees of its
/// ancestors, as far as its own extents have no room for them.
fn needed_bytes(listed: &PoolListing, tops: &[u32]) -> u64 {
    let each = u64::from(EXTENT_BLOCKS);
    let usage = tops.iter().filter_map(|top| listed.accounts.as_ref()?.of(*top));
    let extents = usage.map(|usage| {
        let others = usage.visible_blocks.saturating_sub(usage.blocks);
        let room = (usage.extents * each).saturating_sub(usage.blocks);
        others.saturating_sub(room).div_ceil(each)
    });
    extents.sum::<u64>() * EXTENT_BYTES
}
