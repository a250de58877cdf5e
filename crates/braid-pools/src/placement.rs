//! The allocation of volumes to members: chosen when a volume is created, and changed while it is used.

use crate::PoolManager;
use crate::errors::{VolumeError, reply_when_durable};
use crate::names::find;
use braid_api::{ErrorDetail, Kind, MoveVolume, Place, Volume};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, Pool};
use braid_format::pool::{AllocationPolicy, Owner, OwnerKind};
use braid_inventory::{PoolHandle, PoolWork};

/// An allocation as owners record it: policy, and bit mask of the members.
pub(crate) type Placement = (AllocationPolicy, u128);

impl PoolManager {
    /// Converts a requested placement into the pool's form.
    ///
    /// # Errors
    /// It names a disk or array that is not a member of the pool, or a member that is being removed.
    pub(crate) async fn resolve_placement(&self, pool: &PoolHandle, place: &Place) -> Result<Placement, ErrorDetail> {
        let names = match place {
            Place::Spread => return Ok((AllocationPolicy::Spread, 0)),
            Place::Single => {
                let most = self.call(pool, |pool: &mut Pool| (PoolNext::Done, pool.member_with_most_space())).await?;
                let member = most.ok_or_else(|| {
                    ErrorDetail::new(Kind::NoSpace, format!("no member of pool {} takes new blocks", pool.name))
                        .with("pool", &pool.name)
                        .remedy(format!("braid pool show {}", pool.name))
                })?;
                return Ok((AllocationPolicy::Single, 1 << member));
            }
            Place::On(names) => names,
        };
        let mut on = 0u128;
        for name in names {
            let (number, _) = self.member_named(pool, name)?;
            if self.is_being_removed(pool, number) {
                let message = format!("{name} is being removed from pool {}", pool.name);
                return Err(ErrorDetail::new(Kind::InUse, message)
                    .with("pool", &pool.name)
                    .with("member", name)
                    .remedy(format!("name another member, or: braid pool remove {} {name} --cancel", pool.name)));
            }
            on |= 1 << number;
        }
        Ok((if on.count_ones() == 1 { AllocationPolicy::Single } else { AllocationPolicy::Chosen }, on))
    }

    /// Moves a volume, with its snapshots, to other members: new blocks are allocated there at once, existing ones move
    /// in the background.
    ///
    /// # Errors
    /// See [`PoolManager::resolve_placement`]; there is no such volume.
    pub async fn move_volume(&self, volume: &str, ask: MoveVolume) -> Result<Volume, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let pool = located.pool.clone();
        let _one_at_a_time = pool.work.lock().await;
        let (policy, on) = self.resolve_placement(&pool, &ask.place).await?;
        let (uuid, single) = (located.uuid, ask.place == Place::Single);
        let done = self.call(&pool, move |pool| {
            pool.retry_moves();
            let found =
                find(pool.state(), uuid, OwnerKind::Volume).map(|owner| owner.allocation).ok_or(AdminError::NoSuch);
            if single && found == Ok(AllocationPolicy::Single) {
                // The volume is on a single member already; any one satisfies the request.
                return reply_when_durable(Ok(()));
            }
            // If the log has no room for all owners, the call is repeated after a commit: owners that were changed
            // before are set again, which changes nothing.
            let of_volume = |owner: &&Owner| owner.uuid == uuid || owner.volume == uuid;
            let owners: Vec<Owner> = pool.state().owners.iter().filter(of_volume).cloned().collect();
            let result =
                found.and_then(|_| owners.into_iter().try_for_each(|owner| pool.set_placement(owner.id, policy, on)));
            reply_when_durable(result.map_err(VolumeError::Admin))
        });
        done.await?.map_err(|error| error.into_detail(&pool, &located.name))?;
        self.begin_job(&pool, PoolWork::Move(uuid), Some(&located.name)).await;
        self.move_soon(&pool);
        let message = format!("volume {} is moving to its new members", located.name);
        self.inventory.events().info("volume_moves", message, &[("volume", &located.name)]);
        self.volume_of(&pool, uuid).await
    }

    /// Wakes the maintenance task to move blocks off members where their owners are not to have any.
    pub(crate) fn move_soon(&self, pool: &PoolHandle) {
        let tables = self.inventory.read();
        if let Some(served) = tables.pools.get(&pool.uuid).and_then(|entry| entry.served()) {
            served.maintenance.moves();
        }
    }
}
