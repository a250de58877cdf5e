//! Where volumes have their blocks: chosen when they are made, and changed while they are used.

use super::super::Control;
use super::super::tables::Tables;
use super::jobs::Work;
use super::volumes::{Told, find, told};
use super::{Base, Part, Reach};
use braid_api::{ErrorDetail, Kind, MoveVolume, Place, Volume};
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, Pool};
use braid_format::pool::{AllocationPolicy, Owner, OwnerKind};
use std::collections::BTreeMap;

/// As owners say it.
pub(super) type Placed = (AllocationPolicy, u128);

impl Control {
    /// What a place is in a pool.
    ///
    /// # Errors
    /// It names what is no member of the pool, or one that is being removed.
    pub(super) async fn placed(&self, pool: &Reach, place: &Place) -> Result<Placed, ErrorDetail> {
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
            let (number, _) = self.member_called(pool, name)?;
            if self.is_leaving(pool, number) {
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

    /// Lets a volume, with its snapshots, have its blocks elsewhere: new ones at once, those that there are little by little.
    ///
    /// # Errors
    /// See [`Control::placed`]; there is no such volume.
    pub async fn move_volume(&self, volume: &str, ask: MoveVolume) -> Result<Volume, ErrorDetail> {
        self.is_open()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let pool = located.pool.clone();
        let _one_at_a_time = pool.work.lock().await;
        let (place, on) = self.placed(&pool, &ask.place).await?;
        let (uuid, single) = (located.uuid, ask.place == Place::Single);
        let done = self.call(&pool, move |pool| {
            pool.retry_moves();
            let found =
                find(pool.state(), uuid, OwnerKind::Volume).map(|owner| owner.allocation).ok_or(AdminError::NoSuch);
            if single && found == Ok(AllocationPolicy::Single) {
                // It is on one, whichever.
                return told(Ok(()));
            }
            // One after the other, each again if it has to be: what is placed already stays so.
            let of_volume = |owner: &&Owner| owner.uuid == uuid || owner.volume == uuid;
            let owners: Vec<Owner> = pool.state().owners.iter().filter(of_volume).cloned().collect();
            let result =
                found.and_then(|_| owners.into_iter().try_for_each(|owner| pool.set_placement(owner.id, place, on)));
            told(result.map_err(Told::Admin))
        });
        done.await?.map_err(|error| error.into_detail(&pool, &located.name))?;
        self.begin_job(&pool, Work::Move(uuid), Some(&located.name)).await;
        self.move_soon(&pool);
        let message = format!("volume {} moves to where it is to be", located.name);
        self.events().info("volume_moves", message, &[("volume", &located.name)]);
        self.volume_of(&pool, uuid).await
    }

    /// What stands where it should not is moved from now on.
    pub(super) fn move_soon(&self, pool: &Reach) {
        let tables = self.read();
        if let Some(served) = tables.pools.get(&pool.uuid).and_then(|entry| entry.served()) {
            served.tending.moves();
        }
    }
}

impl Tables {
    /// What the members of a pool that serves are called, by number.
    pub(super) fn member_names(&self, pool: &Reach) -> BTreeMap<u8, String> {
        let parts: &[Part] =
            self.pools.get(&pool.uuid).and_then(|entry| entry.served()).map_or(&[], |served| &served.parts);
        let name = |part: &Part| match &part.base {
            Base::Disk(disk) => disk.name.clone(),
            Base::Array(uuid) => self.arrays.get(uuid).map_or_else(|| uuid.to_string(), |array| array.name.clone()),
        };
        parts.iter().map(|part| (part.label.member, name(part))).collect()
    }

    /// Where an owner has its blocks.
    pub(super) fn place_of(&self, pool: &Reach, owner: &Owner) -> Place {
        if owner.allocation == AllocationPolicy::Spread {
            return Place::Spread;
        }
        let names = self.member_names(pool);
        let numbers = (0..128u8).filter(|number| owner.on >> number & 1 == 1);
        Place::On(numbers.map(|number| names.get(&number).cloned().unwrap_or_else(|| number.to_string())).collect())
    }
}
