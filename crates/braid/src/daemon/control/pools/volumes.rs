//! Volumes: made, listed, renamed, grown, cloned, rolled back, deleted.

use std::collections::BTreeMap;

use super::super::{Control, random_uuid};
use super::companions::{is_companion, refuse_companions_name};
use super::controllers::is_pending;
use super::create::unix_s;
use super::limits::with_limits;
use super::view::Listed;
use super::{Reach, tend};
use braid_advice::{self as advice, Case, Names, PoolVolumeCase};
use braid_api::limits::{
    VOLUME_BLOCK_BYTES, VOLUME_BYTES_MAX, VOLUME_LOGICAL_BLOCKS, VOLUME_SECTOR_BYTES, VOLUMES_MAX,
};
use braid_api::names::{VolumeName, check_name, is_uuid};
use braid_api::{CloneSnapshot, CreateVolume, ErrorDetail, Kind, ResizeVolume, RollbackVolume, Volume, VolumeList};
use braid_engine::pool::{AdminError, BLOCK_BYTES, Pool, PoolTables};
use braid_engine::{DeviceLayout, PoolNext};
use braid_format::pool::{Owner, OwnerKind, OwnerName};
use std::sync::Arc;
use uuid::Uuid;

// The sizes that the API takes are those that the engine has.
const _: () = assert!(VOLUME_BLOCK_BYTES as u64 == BLOCK_BYTES && VOLUME_SECTOR_BYTES == DeviceLayout::SECTOR_BYTES);

/// A volume or snapshot that was found by what it is called.
pub(super) struct Located {
    pub(super) pool: Reach,
    pub(super) uuid: Uuid,
    /// As it is called now: `tank/db`, `tank/db@monday`.
    pub(super) name: String,
}

impl Control {
    /// Makes a volume. It takes no space until it is written.
    ///
    /// # Errors
    /// The name is taken or cannot be one; a limit.
    pub async fn create_volume(&self, ask: CreateVolume) -> Result<Volume, ErrorDetail> {
        self.is_open()?;
        let (pool, name) = new_volume(&ask.name)?;
        check_size(&ask.name, ask.size_bytes)?;
        let in_sectors = check_block(&ask.name, ask.block_bytes)?;
        let pool = self.reach(pool)?;
        let _one_at_a_time = pool.work.lock().await;
        let (place, on) = self.placed(&pool, &ask.place).await?;
        refuse_companions_name(name)?;
        let owner = Owner {
            allocation: place,
            on,
            thick: ask.thick,
            sectors_of_512: in_sectors,
            ..owner(name, ask.size_bytes)?
        };
        let owner = with_limits(owner, ask.iops_max, ask.bandwidth_bytes_max);
        let uuid = owner.uuid;
        let made = self.call(&pool, move |pool| {
            let result =
                room_for_volume(pool).and_then(|()| pool.create_volume(None, owner.clone()).map_err(Told::Admin));
            told(result.map(drop))
        });
        made.await?.map_err(|error| error.into_detail(&pool, &ask.name))?;
        let message = format!("volume {} was created", ask.name);
        self.events().info("volume_created", message, &[("volume", &ask.name)]);
        self.volume_of(&pool, uuid).await
    }

    /// Every volume, or those of one pool.
    ///
    /// # Errors
    /// There is no such pool, or it does not serve.
    pub async fn volumes(&self, pool: Option<&str>) -> Result<VolumeList, ErrorDetail> {
        let several = pool.is_none();
        let pools = match pool {
            Some(name) => vec![self.reach(name)?],
            None => self.reach_all(),
        };
        let mut volumes = Vec::new();
        for pool in pools {
            // One that was deleted in this moment has none.
            let listed = match self.list_counted(&pool).await {
                Err(error) if error.kind == Kind::Inactive && several => continue,
                listed => listed?,
            };
            volumes.extend(self.show_volumes(&pool, &listed));
        }
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        let replicated = if several { self.replicated_volumes().volumes } else { Vec::new() };
        let incomplete = if several { self.why_volumes_incomplete() } else { Vec::new() };
        Ok(VolumeList { volumes, replicated, incomplete })
    }

    /// One volume.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub async fn volume(&self, name: &str) -> Result<Volume, ErrorDetail> {
        let located = self.locate(name, OwnerKind::Volume).await?;
        let listed = self.list_counted(&located.pool).await?;
        self.volume_in(&located.pool, &listed, located.uuid)
    }

    pub(super) async fn volume_of(&self, pool: &Reach, uuid: Uuid) -> Result<Volume, ErrorDetail> {
        let listed = self.list_pool(pool).await?;
        self.volume_in(pool, &listed, uuid)
    }

    fn volume_in(&self, pool: &Reach, listed: &Listed, uuid: Uuid) -> Result<Volume, ErrorDetail> {
        let found = self.show_volumes(pool, listed).into_iter().find(|volume| volume.uuid == uuid.to_string());
        found.ok_or_else(|| not_found(&uuid.to_string(), OwnerKind::Volume))
    }

    /// Gives a volume another name. Its exports keep theirs.
    ///
    /// # Errors
    /// The name is taken or cannot be one.
    pub async fn rename_volume(&self, volume: &str, new_name: &str) -> Result<Volume, ErrorDetail> {
        self.is_open()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let own = self.own_name(new_name, &located.pool)?;
        let pool = located.pool.clone();
        let _one_at_a_time = pool.work.lock().await;
        // Only now: whoever begins to hold it waits for this lock, and calls it by the new name then. Its pool may have got one meanwhile.
        let located = self.locate(&located.uuid.to_string(), OwnerKind::Volume).await?;
        self.refuse_held(&located, "renamed")?;
        self.alter(&located, OwnerKind::Volume, move |owner| owner.name = own).await?;
        let shown = self.volume_of(&located.pool, located.uuid).await?;
        self.write().rename_volumes(|name| (name == located.name).then(|| shown.name.clone()));
        self.note_new_names(&located.pool).await?;
        let message = format!("volume {} is now called {}", located.name, shown.name);
        self.events().info("volume_renamed", message, &[("volume", &shown.name), ("old_name", &located.name)]);
        Ok(shown)
    }

    /// Gives a volume another size, while it is used.
    ///
    /// # Errors
    /// It would become smaller, has data beyond its new end, and `force` is not set; a limit.
    pub async fn resize_volume(&self, volume: &str, ask: ResizeVolume) -> Result<Volume, ErrorDetail> {
        self.is_open()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        check_size(&located.name, ask.size_bytes)?;
        self.refuse_replica(&located, "given another size")?;
        let listening = self.listening.lock().await;
        let _one_at_a_time = self.work_soon(&located.pool).await?;
        let before = self.volume_of(&located.pool, located.uuid).await?.size_bytes;
        if ask.size_bytes < before {
            self.refuse_held(&located, "made smaller")?;
            if !ask.force {
                self.refuse_last_on(&located.name)?;
            }
            // It may take long. Whoever would serve the volume, or end that, waits for the pool's lock.
            drop(listening);
            self.shrink_volume(&located, ask.size_bytes, ask.force).await?;
        } else {
            self.alter(&located, OwnerKind::Volume, move |owner| owner.size_bytes = ask.size_bytes).await?;
            self.resize_served(&located.pool, located.uuid).await?;
        }
        let message = format!("volume {} has {} bytes now", located.name, ask.size_bytes);
        self.events().info("volume_resized", message, &[("volume", &located.name)]);
        self.volume_of(&located.pool, located.uuid).await
    }

    /// Makes a volume that begins as a snapshot is.
    ///
    /// # Errors
    /// The name is taken or cannot be one; a limit.
    pub async fn clone_snapshot(&self, snapshot: &str, ask: CloneSnapshot) -> Result<Volume, ErrorDetail> {
        self.is_open()?;
        let located = self.locate(snapshot, OwnerKind::Snapshot).await?;
        let name = self.own_name(&ask.name, &located.pool)?;
        let pool = located.pool.clone();
        let full = format!("{}/{name}", pool.name);
        let _one_at_a_time = pool.work.lock().await;
        let new = owner(name.as_str(), BLOCK_BYTES)?;
        let (uuid, from) = (new.uuid, located.uuid);
        let made = self.call(&pool, move |pool| {
            let result = room_for_volume(pool).and_then(|()| {
                let parent = find(pool.state(), from, OwnerKind::Snapshot).ok_or(Told::Admin(AdminError::NoSuch))?;
                let Owner { size_bytes, allocation: place, on, .. } = *parent;
                let new = Owner { size_bytes, allocation: place, on, ..new.clone() };
                pool.create_volume(Some(parent.id), new).map_err(Told::Admin)
            });
            told(result.map(drop))
        });
        made.await?.map_err(|error| error.into_detail(&pool, &full))?;
        let message = format!("volume {full} was made of snapshot {}", located.name);
        self.events().info("volume_created", message, &[("volume", &full)]);
        self.volume_of(&pool, uuid).await
    }

    /// Makes a volume be as a snapshot is. What it had since is lost, and the snapshot stays.
    ///
    /// # Errors
    /// It is exported; the snapshot is of another pool; an array that does not serve had it as a member, and `force` is not set.
    pub async fn rollback_volume(&self, volume: &str, ask: RollbackVolume) -> Result<Volume, ErrorDetail> {
        self.is_open()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let snapshot = match ask.snapshot.strip_prefix('@') {
            Some(own) => self.locate(&format!("{}@{own}", located.name), OwnerKind::Snapshot).await?,
            None => self.locate(&ask.snapshot, OwnerKind::Snapshot).await?,
        };
        if snapshot.pool.uuid != located.pool.uuid {
            let message = format!("snapshot {} is in another pool than volume {}", snapshot.name, located.name);
            return Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy("name one of the same pool"));
        }
        let _listening = self.listening.lock().await;
        let pool = located.pool.clone();
        let _one_at_a_time = self.work_soon(&pool).await?;
        self.refuse_exported_volume(&located, "rolled back under its clients")?;
        self.refuse_held(&located, "rolled back")?;
        if !ask.force {
            self.refuse_last_on(&located.name)?;
        }
        let (of, to) = (located.uuid, snapshot.uuid);
        let done = self.call(&pool, move |pool| {
            let id = |uuid, kind| find(pool.state(), uuid, kind).map(|owner| owner.id).ok_or(AdminError::NoSuch);
            let result = id(of, OwnerKind::Volume).and_then(|volume| Ok((volume, id(to, OwnerKind::Snapshot)?)));
            told(result.and_then(|(volume, to)| pool.rollback(volume, to)).map(drop).map_err(Told::Admin))
        });
        let done = done.await;
        // Also where the answer is that it cannot be made durable now: it may be, when there is space again.
        self.fold_soon(&pool);
        done?.map_err(|error| error.into_detail(&pool, &located.name))?;
        let message = format!("volume {} is as snapshot {} again", located.name, snapshot.name);
        self.events().info("volume_rolled_back", message, &[("volume", &located.name)]);
        self.volume_of(&pool, located.uuid).await
    }

    /// Deletes a volume without snapshots. Its space becomes free little by little.
    ///
    /// # Errors
    /// It has snapshots; it is exported, or an array that does not serve had it as a member, and `force` is not set.
    pub async fn delete_volume(self: &Arc<Self>, volume: &str, force: bool) -> Result<Volume, ErrorDetail> {
        self.is_open()?;
        let located = self.locate(volume, OwnerKind::Volume).await?;
        let shown = self.volume_of(&located.pool, located.uuid).await?;
        if shown.snapshots > 0 {
            return Err(has_snapshots(&shown.name));
        }
        self.delete_owner(&located, OwnerKind::Volume, force, |_, _| true).await?;
        let message = format!("volume {} was deleted", shown.name);
        self.events().info("volume_deleted", message, &[("volume", &shown.name)]);
        Ok(shown)
    }

    /// Deletes a volume or snapshot, with its exports if `force` is set; one that is not wanted in that moment is not found.
    pub(super) async fn delete_owner(
        self: &Arc<Self>,
        what: &Located,
        kind: OwnerKind,
        force: bool,
        is_wanted: impl Fn(&PoolTables, &Owner) -> bool + Send + 'static,
    ) -> Result<(), ErrorDetail> {
        if !force {
            self.refuse_exported_volume(what, "deleted").map_err(|error| {
                let remedy = format!("{}, or add --force (its exports are removed)", error.remedy);
                error.remedy(remedy)
            })?;
        }
        // To the end: an export that began before is seen, and none begins.
        let listening = self.listening.lock().await;
        self.refuse_held(what, "deleted")?;
        if !force {
            self.refuse_last_on(&what.name)?;
            self.refuse_exported_volume(what, "deleted")?;
        }
        self.end_devices(&listening, |saved| saved.array == what.uuid).await?;
        self.remove_exports_now(&listening, what.uuid);
        self.release_volume(&listening, what.pool.uuid, what.uuid).await;
        let _one_at_a_time = self.work_soon(&what.pool).await?;
        let uuid = what.uuid;
        let done = self.call(&what.pool, move |pool| {
            let found = find(pool.state(), uuid, kind).filter(|owner| is_wanted(pool.state(), owner));
            let id = found.map(|owner| owner.id).ok_or(AdminError::NoSuch);
            let result = id.and_then(|id| match kind {
                OwnerKind::Snapshot => pool.delete_snapshot(id),
                _ => pool.delete_volume(id),
            });
            told(result.map_err(Told::Admin))
        });
        let done = done.await;
        // The exports are gone, whatever came of the rest.
        self.save_or_warn();
        // Also where the answer is that it cannot be made durable now: it may be, when there is space again.
        self.fold_soon(&what.pool);
        done?.map_err(|error| error.into_detail(&what.pool, &what.name))?;
        self.note_snapshots(what.pool.uuid).await;
        Ok(())
    }

    /// Refuses what cannot be done to a volume or snapshot that clients use.
    fn refuse_exported_volume(&self, what: &Located, done: &str) -> Result<(), ErrorDetail> {
        let exports = self.read().exports_of(what.uuid);
        let Some(first) = exports.first() else { return Ok(()) };
        let message = format!("{} is exported as {} and so cannot be {done}", what.name, exports.join(", "));
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("volume", &what.name)
            .with("export", first)
            .remedy(format!("braid export remove {first} first")))
    }

    /// Changes what is said of a volume or snapshot. The caller has the pool's lock.
    pub(super) async fn alter(
        &self,
        what: &Located,
        kind: OwnerKind,
        change: impl Fn(&mut Owner) + Send + 'static,
    ) -> Result<(), ErrorDetail> {
        let uuid = what.uuid;
        let done = self.call(&what.pool, move |pool| {
            let found = find(pool.state(), uuid, kind).cloned().ok_or(AdminError::NoSuch);
            let result = found.and_then(|mut owner| {
                change(&mut owner);
                pool.alter(owner.id, owner)
            });
            told(result.map_err(Told::Admin))
        });
        done.await?.map_err(|error| error.into_detail(&what.pool, &what.name))
    }

    /// What was deleted is folded from now on.
    pub(super) fn fold_soon(&self, pool: &Reach) {
        let tending: Option<tend::Tending> =
            self.read().pools.get(&pool.uuid).and_then(|entry| Some(entry.served()?.tending.clone()));
        if let Some(tending) = tending {
            tending.fold();
        }
    }

    /// The volume or snapshot that a text names: `tank/db`, `tank/db@monday`, or a UUID.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; the text names something of another kind.
    pub(in super::super) async fn find_owner(
        &self,
        text: &str,
        kind: OwnerKind,
    ) -> Result<(Uuid, Uuid, String), ErrorDetail> {
        self.locate(text, kind).await.map(|found| (found.pool.uuid, found.uuid, found.name))
    }

    pub(super) async fn locate(&self, text: &str, kind: OwnerKind) -> Result<Located, ErrorDetail> {
        if is_uuid(text) {
            let uuid = Uuid::try_parse(text).map_err(|_| not_found(text, kind))?;
            for pool in self.reach_all() {
                let name = self.call(&pool, move |pool| {
                    let found = find(pool.state(), uuid, kind)
                        .filter(|owner| !is_companion(owner.name.as_str()) && !is_pending(owner))
                        .map(|owner| name_in_pool(pool.state(), owner));
                    (PoolNext::Done, found)
                });
                let name = match name.await {
                    Err(error) if error.kind == Kind::Inactive => continue,
                    name => name?,
                };
                if let Some(name) = name {
                    let name = format!("{}/{name}", pool.name);
                    return Ok(Located { pool, uuid, name });
                }
            }
            return Err(match self.has_volume_of_nodes(text) {
                true => not_on_several_nodes(text),
                false => not_found(text, kind),
            });
        }
        let parsed = VolumeName::parse(text).filter(|name| name.snapshot.is_some() == (kind == OwnerKind::Snapshot));
        let Some(name) = parsed else {
            let volume = text.split('@').next().unwrap_or_default();
            return Err(match kind != OwnerKind::Snapshot && self.has_volume_of_nodes(volume) {
                true => not_on_several_nodes(volume),
                false => not_so_called(text, kind),
            });
        };
        let pool = self.reach(name.pool)?;
        let (volume, snapshot) = (name.volume.to_owned(), name.snapshot.map(str::to_owned));
        let found = self.call(&pool, move |pool| {
            let found = find_named(pool.state(), &volume, snapshot.as_deref());
            (PoolNext::Done, found.map(|owner| (owner.uuid, name_in_pool(pool.state(), owner))))
        });
        let (uuid, name) = found.await?.ok_or_else(|| not_found(text, kind))?;
        let name = format!("{}/{name}", pool.name);
        Ok(Located { pool, uuid, name })
    }

    /// The name of a volume or snapshot alone, out of what a user gave: with that of the pool or without.
    pub(super) fn own_name(&self, text: &str, pool: &Reach) -> Result<OwnerName, ErrorDetail> {
        let own = match VolumeName::parse(text) {
            Some(name) if name.snapshot.is_none() && (name.pool == pool.name || name.pool == pool.uuid.to_string()) => {
                name.volume
            }
            Some(_) => {
                let message = format!("{text} is not in pool {}", pool.name);
                return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                    .with("name", text)
                    .remedy("give the new name alone: things stay in their pool"));
            }
            None => text,
        };
        refuse_companions_name(own)?;
        checked(own)
    }

    /// What the home says of all volumes and snapshots of a pool.
    pub(super) async fn list_pool(&self, pool: &Reach) -> Result<Listed, ErrorDetail> {
        let asked = |pool: &mut Pool| {
            let owners: Vec<Owner> = pool.state().owners.iter().cloned().collect();
            let state = pool.state();
            let zero_records = state.members().map(|(member, _)| u64::from(state.zero_slots(member))).sum();
            let lacks = |owner: &&Owner| state.chain_may_miss_records(owner.id);
            let doubtful = owners.iter().filter(lacks).map(|owner| owner.id).collect();
            let thick = owners.iter().filter(|owner| owner.thick).map(|owner| owner.id);
            let kept: BTreeMap<u32, u64> = thick.map(|id| (id, pool.reserved_extents_of(id))).collect();
            let compacting = owners.iter().map(|owner| owner.id).filter(|id| pool.is_compacting_owner(*id)).collect();
            let flattening = pool.flattening();
            let doubt = (doubtful, !pool.damaged().is_empty());
            (PoolNext::Done, (owners, pool.free_extents(), kept, zero_records, doubt, compacting, flattening))
        };
        let (owners, free_extents, kept, zero_records, doubt, compacting, flattening) = self.call(pool, asked).await?;
        let mut listed = Listed::new(owners, free_extents, kept, zero_records, &pool.shared);
        (listed.doubtful, listed.is_damaged) = doubt;
        (listed.compacting, listed.flattening) = (compacting, flattening);
        Ok(listed)
    }

    /// Exports of a pool's volumes say by what names these go now.
    pub(super) async fn note_new_names(&self, pool: &Reach) -> Result<(), ErrorDetail> {
        self.note_snapshots(pool.uuid).await;
        let listed = self.list_pool(pool).await?;
        {
            let mut tables = self.write();
            let pool_name = tables.pools.get(&pool.uuid).map_or_else(|| pool.name.clone(), |entry| entry.name.clone());
            for export in tables.exports.values_mut().filter(|export| export.saved.pool == Some(pool.uuid)) {
                if let Some(name) = listed.name_of(export.saved.array) {
                    export.saved.array_name = format!("{pool_name}/{name}");
                }
            }
        }
        self.save_or_warn();
        Ok(())
    }
}

/// Why something cannot be done in a pool.
pub(super) enum Told {
    Admin(AdminError),
    /// There are as many volumes as there may be.
    TooMany,
}

impl Told {
    pub(super) fn into_detail(self, pool: &Reach, what: &str) -> ErrorDetail {
        match self {
            Told::Admin(error) => of_admin(error, pool, what),
            Told::TooMany => {
                let message = format!("there are {VOLUMES_MAX} volumes in pool {} already", pool.name);
                ErrorDetail::new(Kind::LimitReached, message).with("pool", &pool.name).remedy("delete one first")
            }
        }
    }
}

/// What a change of volumes answers to: when it is durable.
pub(super) fn told<T>(result: Result<T, Told>) -> (PoolNext, Result<T, Told>) {
    match result {
        Err(Told::Admin(AdminError::LogFull)) => (PoolNext::Again, result),
        Err(_) => (PoolNext::Done, result),
        Ok(_) => (PoolNext::Commit, result),
    }
}

pub(super) fn room_for_volume(pool: &Pool) -> Result<(), Told> {
    let volumes = pool.state().owners.iter().filter(|owner| owner.kind == OwnerKind::Volume).count();
    if volumes < VOLUMES_MAX { Ok(()) } else { Err(Told::TooMany) }
}

/// A volume or snapshot by its identity.
pub(super) fn find(state: &PoolTables, uuid: Uuid, kind: OwnerKind) -> Option<&Owner> {
    state.owners.iter().find(|owner| owner.uuid == uuid && owner.kind == kind)
}

fn find_named<'a>(state: &'a PoolTables, volume: &str, snapshot: Option<&str>) -> Option<&'a Owner> {
    let named =
        |owner: &&Owner, text: &str| owner.name.as_str() == text || owner.uuid.to_string() == text.to_lowercase();
    let is =
        |owner: &&Owner, text: &str| named(owner, text) && !is_companion(owner.name.as_str()) && !is_pending(owner);
    let volume = state.owners.iter().find(|owner| owner.kind == OwnerKind::Volume && is(owner, volume))?;
    let Some(snapshot) = snapshot else { return Some(volume) };
    let of = |owner: &&Owner| owner.kind == OwnerKind::Snapshot && owner.volume == volume.uuid;
    state.owners.iter().filter(of).find(|owner| is(owner, snapshot))
}

/// What a volume or snapshot is called within its pool: `db`, `db@monday`.
pub(super) fn name_in_pool(state: &PoolTables, owner: &Owner) -> String {
    match owner.kind {
        OwnerKind::Snapshot => {
            let volume = find(state, owner.volume, OwnerKind::Volume).map_or("", |volume| volume.name.as_str());
            format!("{volume}@{}", owner.name)
        }
        _ => owner.name.to_string(),
    }
}

fn owner(name: &str, size_bytes: u64) -> Result<Owner, ErrorDetail> {
    Ok(Owner { created_unix_s: unix_s(), ..Owner::volume(random_uuid()?, checked(name)?, size_bytes) })
}

/// A name as owners have it.
pub(super) fn checked(name: &str) -> Result<OwnerName, ErrorDetail> {
    let refused = |why: String| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{name:?} cannot be a name: {why}")).with("name", name)
    };
    check_name(name).map_err(|error| refused(error.to_string()))?;
    OwnerName::new(name).ok_or_else(|| refused("it breaks a rule of names".to_owned()))
}

fn new_volume(text: &str) -> Result<(&str, &str), ErrorDetail> {
    match VolumeName::parse(text) {
        Some(VolumeName { pool, volume, snapshot: None }) => Ok((pool, volume)),
        _ => Err(not_so_called(text, OwnerKind::Volume)),
    }
}

pub(super) fn check_size(volume: &str, size_bytes: u64) -> Result<(), ErrorDetail> {
    let refused = |why: String, remedy: &str| {
        Err(ErrorDetail::new(Kind::InvalidArgument, format!("volume {volume}: {why}"))
            .with("volume", volume)
            .remedy(remedy))
    };
    if size_bytes == 0 || size_bytes > VOLUME_BYTES_MAX {
        return refused(
            format!("its size would be {size_bytes} bytes; a volume has up to {VOLUME_BYTES_MAX}"),
            "for example 100G",
        );
    }
    if !size_bytes.is_multiple_of(BLOCK_BYTES) {
        return refused(format!("{size_bytes} bytes are no multiple of {BLOCK_BYTES}"), "choose another size");
    }
    Ok(())
}

/// Whether blocks of this size are smaller than those in which data stand.
pub(in super::super) fn check_block(volume: &str, block_bytes: u32) -> Result<bool, ErrorDetail> {
    if VOLUME_LOGICAL_BLOCKS.contains(&block_bytes) {
        return Ok(block_bytes < VOLUME_BLOCK_BYTES);
    }
    let sizes = format!("{VOLUME_SECTOR_BYTES} or {VOLUME_BLOCK_BYTES}");
    let message = format!("volume {volume}: its blocks would have {block_bytes} bytes; a volume has blocks of {sizes}");
    Err(ErrorDetail::new(Kind::InvalidArgument, message).with("volume", volume).remedy(format!("choose {sizes}")))
}

/// The logical block of a volume or snapshot, in bytes.
pub(super) fn block_bytes_of(owner: &Owner) -> u32 {
    if owner.sectors_of_512 { VOLUME_SECTOR_BYTES } else { VOLUME_BLOCK_BYTES }
}

fn word(kind: OwnerKind) -> &'static str {
    if kind == OwnerKind::Snapshot { "snapshot" } else { "volume" }
}

pub(super) fn not_found(text: &str, kind: OwnerKind) -> ErrorDetail {
    let word = word(kind);
    ErrorDetail::new(Kind::NotFound, format!("there is no {word} {text}"))
        .with(word, text)
        .remedy(format!("`braid {word} list` shows those there are"))
}

fn not_so_called(text: &str, kind: OwnerKind) -> ErrorDetail {
    let (word, right) = match kind {
        OwnerKind::Snapshot => ("snapshot", "POOL/VOLUME@SNAPSHOT, for example tank/db@monday"),
        _ => ("volume", "POOL/VOLUME, for example tank/db"),
    };
    ErrorDetail::new(Kind::InvalidArgument, format!("{text:?} is no name of a {word}"))
        .with(word, text)
        .remedy(format!("write {right}"))
}

fn not_on_several_nodes(volume: &str) -> ErrorDetail {
    let message = format!("volume {volume} is kept on several nodes, where this cannot be done");
    ErrorDetail::new(Kind::Unsupported, message)
        .with("volume", volume)
        .remedy("docs/replication.md says what can; for another size make a volume that has it, and copy the data")
}

fn has_snapshots(volume: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::InUse, format!("volume {volume} has snapshots"))
        .with("volume", volume)
        .remedy(volume_advice(PoolVolumeCase::HasSnapshots, volume))
}

fn volume_advice(case: PoolVolumeCase, volume: &str) -> String {
    advice::remedy(Case::PoolVolume(case), Names::of(volume))
}

/// Why the pool refuses, in words.
pub(super) fn of_admin(error: AdminError, pool: &Reach, what: &str) -> ErrorDetail {
    let (deleted, exported) =
        (volume_advice(PoolVolumeCase::Deleted, what), volume_advice(PoolVolumeCase::Exported, what));
    let (kind, remedy) = match error {
        AdminError::NoSuch => (Kind::NotFound, deleted.as_str()),
        AdminError::NoOwnerSlot | AdminError::NoNumber => (Kind::LimitReached, "delete volumes or snapshots first"),
        AdminError::DataBeyond => (Kind::WouldDestroy, "add --force: what lies beyond is lost"),
        AdminError::TooManyAtOnce => {
            (Kind::LimitReached, "take fewer with one command: the journals of a pool of small members hold no more")
        }
        AdminError::NoSpace => (
            Kind::NoSpace,
            "add a member (braid pool add), delete volumes or snapshots, discard (fstrim), or make it without --thick",
        ),
        AdminError::InUse => (Kind::InUse, exported.as_str()),
        AdminError::NameTaken => (Kind::Exists, "choose another name, or rename that one first"),
        AdminError::HasSnapshots => return has_snapshots(what),
        AdminError::IsSnapshot => (Kind::InvalidArgument, "name a volume: POOL/VOLUME"),
        AdminError::NoSnapshot => (Kind::InvalidArgument, "name a snapshot: POOL/VOLUME@SNAPSHOT"),
        AdminError::InDoubt => (
            Kind::Incomplete,
            "attach the member that is absent (braid pool show), and restart the daemon; or give it up (braid pool remove --force), and what it had (braid pool check --give-up)",
        ),
        AdminError::Damaged => (
            Kind::Damaged,
            "look at what is damaged: braid pool check; what was only misread is there again when the daemon is started anew, the rest can be given up: braid pool check --give-up",
        ),
        AdminError::LogFull => (Kind::Internal, "try again"),
    };
    ErrorDetail::new(kind, format!("{what}: {error}")).with("pool", &pool.name).with("name", what).remedy(remedy)
}
