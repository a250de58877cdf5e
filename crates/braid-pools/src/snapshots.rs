//! Snapshots: taken, of several volumes at one instant; listed, renamed, deleted.

use crate::PoolManager;
use crate::errors::{VolumeError, not_found, reply_when_durable};
use crate::names::{checked, find, is_pending, refuse_pending_name, refuse_scheduled_name};
use crate::unix_time::unix_s;
use braid_api::names::{VolumeName, policy_time};
use braid_api::{ChangeSnapshot, CreateSnapshots, ErrorDetail, Kind, Snapshot, SnapshotConsistency, SnapshotList};
use braid_arrays::DRAINING_MAX;
use braid_engine::PoolNext;
use braid_engine::pool::{AdminError, Pool};
use braid_format::pool::{Owner, OwnerKind, OwnerName};
use braid_inventory::{
    KnownSnapshot, PoolEntry, PoolHandle, ScheduledSnapshot, ScheduledVolume, is_replicated_name, random_uuid,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Maximum number of snapshots that one command takes: they are in the in-memory log together.
pub(crate) const AT_ONCE_MAX: usize = 64;

/// Owner slots that are examined in one step: other requests wait for it.
const SLICE_SLOTS: u32 = 2048;

impl PoolManager {
    /// Takes snapshots, all at one instant. When this returns, all are durable, and each contains every write that
    /// completed before.
    ///
    /// # Errors
    /// A volume does not exist, or a name is taken: then no snapshot is taken. [`Kind::TimedOut`]: a disk hangs; the
    /// snapshots are durable when the disk responds.
    pub async fn create_snapshots(&self, ask: CreateSnapshots) -> Result<SnapshotList, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        if ask.snapshots.iter().any(|text| is_replicated_name(text)) {
            return self.provider().create_replicated_snapshots(&ask.snapshots).await;
        }
        let refused = |why: String, remedy: &str| Err(ErrorDetail::new(Kind::InvalidArgument, why).remedy(remedy));
        if ask.snapshots.is_empty() || ask.snapshots.len() > AT_ONCE_MAX {
            let count = ask.snapshots.len();
            return refused(
                format!("1 to {AT_ONCE_MAX} snapshots are taken at a time, not {count}"),
                "take them one command after the other, if they need not be of one instant",
            );
        }
        let mut what: Vec<(Uuid, Uuid, OwnerName)> = Vec::with_capacity(ask.snapshots.len());
        let mut pool: Option<PoolHandle> = None;
        for text in &ask.snapshots {
            let Some(VolumeName { pool: of, volume, snapshot: Some(own) }) = VolumeName::parse(text) else {
                return refused(
                    format!("{text:?} is no name of a snapshot"),
                    "write POOL/VOLUME@SNAPSHOT, for example tank/db@monday",
                );
            };
            let volume = self.locate(&format!("{of}/{volume}"), OwnerKind::Volume).await?;
            if pool.as_ref().is_some_and(|pool| pool.uuid != volume.pool.uuid) {
                return refused(
                    format!("{text} is in another pool than {}", ask.snapshots[0]),
                    "one instant is one pool's: use a command for each",
                );
            }
            refuse_scheduled_name(own)?;
            refuse_pending_name(own)?;
            if what.iter().any(|(uuid, ..)| *uuid == volume.uuid) {
                return refused(format!("volume {} is named twice", volume.name), "name each volume once");
            }
            what.push((volume.uuid, random_uuid()?, checked(own)?));
            pool = Some(volume.pool);
        }
        let pool = pool.expect("at least one was named");
        let taken: Vec<Uuid> = what.iter().map(|(_, uuid, _)| *uuid).collect();
        self.take_snapshots(&pool, what, &ask.snapshots.join(", ")).await?;
        let listed = self.list_pool(&pool).await?;
        let mut list = SnapshotList { snapshots: self.show_snapshots(&pool, &listed, None), incomplete: Vec::new() };
        list.snapshots.retain(|snapshot| taken.iter().any(|uuid| uuid.to_string() == snapshot.uuid));
        Ok(list)
    }

    /// Takes snapshots of volumes of one pool: for each the volume, and the identity and name of the snapshot.
    pub(crate) async fn take_snapshots(
        &self,
        pool: &PoolHandle,
        what: Vec<(Uuid, Uuid, OwnerName)>,
        called: &str,
    ) -> Result<(), ErrorDetail> {
        let count = what.len();
        {
            let _one_at_a_time = pool.work.lock().await;
            // Names of scheduled snapshots cannot collide with a controller's.
            if what.iter().any(|(.., name)| policy_time(name.as_str()).is_none()) {
                let volumes: Vec<Uuid> = what.iter().map(|(volume, ..)| *volume).collect();
                self.refuse_while_pending(pool, &volumes).await?;
            }
            let taken = tokio::time::timeout(DRAINING_MAX, self.take_now(pool, what, called)).await;
            taken.map_err(|_| {
                ErrorDetail::new(
                    Kind::TimedOut,
                    format!("a disk of pool {} hangs: the snapshots are durable when it answers", pool.name),
                )
                .with("pool", &pool.name)
                .remedy("look at its disks (braid pool show), and then at whether they are there (braid snapshot list)")
            })??;
        }
        self.note_snapshots(pool.uuid).await;
        let message =
            format!("{} of pool {} taken", braid_inventory::counted(count, "snapshot", "snapshots"), pool.name);
        self.inventory.events().info("snapshots_taken", message, &[("pool", &pool.name)]);
        Ok(())
    }

    /// Takes the snapshots at the pool's home. The caller has the pool's lock.
    pub(crate) async fn take_now(
        &self,
        pool: &PoolHandle,
        what: Vec<(Uuid, Uuid, OwnerName)>,
        called: &str,
    ) -> Result<(), ErrorDetail> {
        let now = unix_s();
        let done = self.call(pool, move |pool| {
            let of = |volume: &Uuid| find(pool.state(), *volume, OwnerKind::Volume).map(|owner| owner.id);
            let ids = what.iter().map(|(volume, uuid, name)| Some((of(volume)?, *uuid, *name)));
            let ids: Option<Vec<(u32, Uuid, OwnerName)>> = ids.collect();
            let result = match ids {
                Some(ids) => pool.snapshot(&ids, now).map(drop).map_err(VolumeError::Admin),
                None => Err(VolumeError::Admin(AdminError::NoSuch)),
            };
            let (next, result) = reply_when_durable(result);
            (if result.is_ok() { PoolNext::DrainAndCommit } else { next }, result)
        });
        done.await?.map_err(|error| error.into_detail(pool, called))
    }

    /// Records which snapshots a pool has, for components that must not wait for its home.
    pub(crate) async fn note_snapshots(&self, pool: Uuid) {
        let Ok(handle) = self.serving_pool(&pool.to_string()) else { return };
        let noting = self.inventory.read().pools.get(&pool).and_then(|entry| Some(Arc::clone(&entry.served()?.noting)));
        let Some(noting) = noting else { return };
        let _one_at_a_time = noting.lock().await;
        let Ok(owners) = self.named_owners(&handle).await else { return };
        let volumes: BTreeMap<Uuid, &Owner> = owners.iter().filter(|o| is_volume(o)).map(|o| (o.uuid, o)).collect();
        let known = |owner: &Owner| KnownSnapshot {
            uuid: owner.uuid,
            volume: (owner.volume, volumes.get(&owner.volume).map_or_else(String::new, |v| v.name.to_string())),
            name: owner.name.to_string(),
        };
        let known: Vec<KnownSnapshot> =
            owners.iter().filter(|owner| !is_volume(owner) && !is_pending(owner)).map(known).collect();
        let mut policies: BTreeMap<Uuid, ScheduledVolume> = BTreeMap::new();
        for (volume, owner) in &volumes {
            if let Some(policy) = owner.schedule {
                let (volume, name) = (*volume, owner.name.to_string());
                policies.insert(volume, ScheduledVolume { volume, name, policy, taken: Vec::new() });
            }
        }
        for snapshot in &known {
            if let Some(with) = policies.get_mut(&snapshot.volume.0) {
                with.taken.extend(ScheduledSnapshot::of(snapshot.uuid, &snapshot.name));
            }
        }
        if let Some(served) = self.inventory.write().pools.get_mut(&pool).and_then(PoolEntry::served_mut) {
            (served.snapshots, served.policies) = (known, policies.into_values().collect());
        }
    }

    /// Returns every volume and snapshot, in the order of their creation. They are queried in slices, so that other
    /// requests do not wait. A command that changes some of them meanwhile records them again.
    pub(crate) async fn named_owners(&self, pool: &PoolHandle) -> Result<Vec<Owner>, ErrorDetail> {
        let (mut owners, mut from) = (Vec::new(), 0);
        loop {
            let query = move |pool: &mut Pool| {
                let all = &pool.state().owners;
                let to = all.slots().min(from + SLICE_SLOTS);
                let named = |owner: &&Owner| matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot);
                let some = (from..to).filter_map(|slot| all.in_slot(slot)).filter(named).cloned();
                (PoolNext::Done, (some.collect::<Vec<_>>(), to, all.slots()))
            };
            let (some, to, end) = self.call(pool, query).await?;
            owners.extend(some);
            if to >= end {
                // Numbers rise with time.
                owners.sort_unstable_by_key(|owner| owner.id);
                return Ok(owners);
            }
            from = to;
        }
    }

    /// Returns all snapshots, or those of one pool or volume.
    ///
    /// # Errors
    /// There is no such pool or volume.
    pub async fn snapshots(&self, of: Option<&str>) -> Result<SnapshotList, ErrorDetail> {
        match of {
            Some(text) if text.contains('/') => {
                let volume = self.locate(text, OwnerKind::Volume).await?;
                self.snapshots_of(&volume.pool, Some(volume.uuid)).await
            }
            // Pools and replicated volumes share one name space.
            Some(name) if self.inventory.find_replicated(name).is_ok() => {
                self.provider().replicated_snapshots(name).await
            }
            Some(name) => match self.serving_pool(name) {
                Ok(pool) => self.snapshots_of(&pool, None).await,
                // The volume of a replica on this node: the reply says why its snapshots are not visible here.
                Err(error) if error.kind == Kind::NotFound && self.inventory.is_replicated_volume(name) => {
                    self.provider().replicated_snapshots(name).await
                }
                Err(error) => Err(error),
            },
            None => {
                let mut snapshots = Vec::new();
                for pool in self.reach_all() {
                    match self.snapshots_of(&pool, None).await {
                        Err(error) if error.kind == Kind::Inactive => {}
                        list => snapshots.extend(list?.snapshots),
                    }
                }
                Ok(SnapshotList { snapshots, incomplete: self.inventory.why_volumes_incomplete() })
            }
        }
    }

    async fn snapshots_of(&self, pool: &PoolHandle, volume: Option<Uuid>) -> Result<SnapshotList, ErrorDetail> {
        let listed = self.list_counted(pool).await?;
        Ok(SnapshotList { snapshots: self.show_snapshots(pool, &listed, volume), incomplete: Vec::new() })
    }

    /// Returns one snapshot.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot, ErrorDetail> {
        if is_replicated_name(name) {
            return self.provider().replicated_snapshot(name).await;
        }
        let located = self.locate(name, OwnerKind::Snapshot).await?;
        self.snapshot_of(&located.pool, located.uuid).await
    }

    async fn snapshot_of(&self, pool: &PoolHandle, uuid: Uuid) -> Result<Snapshot, ErrorDetail> {
        let all = self.snapshots_of(pool, None).await?.snapshots;
        let found = all.into_iter().find(|snapshot| snapshot.uuid == uuid.to_string());
        found.ok_or_else(|| not_found(&uuid.to_string(), OwnerKind::Snapshot))
    }

    /// Renames a snapshot. Its exports keep their names.
    ///
    /// # Errors
    /// The name is taken or not valid.
    pub async fn rename_snapshot(&self, snapshot: &str, new_name: &str) -> Result<Snapshot, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        if is_replicated_name(snapshot) {
            return self.provider().rename_replicated_snapshot(snapshot, new_name).await;
        }
        let located = self.locate(snapshot, OwnerKind::Snapshot).await?;
        // The new name may be given with the volume's name before it.
        let own = match located.name.rsplit_once('@').and_then(|(volume, _)| new_name.strip_prefix(volume)) {
            Some(rest) if rest.starts_with('@') => checked(&rest[1..])?,
            _ => checked(new_name)?,
        };
        refuse_scheduled_name(own.as_str())?;
        refuse_pending_name(own.as_str())?;
        self.refuse_controller_snapshot(&located, "renamed")?;
        let _one_at_a_time = located.pool.work.lock().await;
        self.refuse_while_pending(&located.pool, &[located.uuid]).await?;
        self.alter(&located, OwnerKind::Snapshot, move |owner| owner.name = own).await?;
        self.note_new_names(&located.pool).await?;
        let shown = self.snapshot_of(&located.pool, located.uuid).await?;
        let message = format!("snapshot {} is now called {}", located.name, shown.name);
        self.inventory.events().info(
            "snapshot_renamed",
            message,
            &[("snapshot", &shown.name), ("old_name", &located.name)],
        );
        Ok(shown)
    }

    /// Records what the client that took a snapshot knows of the file system on it. Durable when this returns.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; the pool cannot write.
    pub async fn change_snapshot(&self, snapshot: &str, ask: ChangeSnapshot) -> Result<Snapshot, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        if is_replicated_name(snapshot) {
            return self.provider().change_replicated_snapshot(snapshot, ask.consistency).await;
        }
        let located = self.locate(snapshot, OwnerKind::Snapshot).await?;
        self.refuse_controller_snapshot(&located, "changed")?;
        {
            let _one_at_a_time = located.pool.work.lock().await;
            let frozen = ask.consistency == SnapshotConsistency::Frozen;
            self.alter(&located, OwnerKind::Snapshot, move |owner| owner.frozen = frozen).await?;
        }
        self.snapshot_of(&located.pool, located.uuid).await
    }

    /// Deletes a snapshot, even if volumes were cloned from it. No data move; its space becomes free in the background.
    ///
    /// # Errors
    /// It is exported, and `force` is not set.
    pub async fn delete_snapshot(self: &Arc<Self>, snapshot: &str, force: bool) -> Result<Snapshot, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        if is_replicated_name(snapshot) {
            return self.provider().delete_replicated_snapshot(snapshot).await;
        }
        let located = self.locate(snapshot, OwnerKind::Snapshot).await?;
        self.refuse_controller_snapshot(&located, "deleted")?;
        let shown = self.snapshot_of(&located.pool, located.uuid).await?;
        self.delete_owner(&located, OwnerKind::Snapshot, force, |_, _| true).await?;
        let message = format!("snapshot {} was deleted", shown.name);
        self.inventory.events().info("snapshot_deleted", message, &[("snapshot", &shown.name)]);
        Ok(shown)
    }
}

fn is_volume(owner: &Owner) -> bool {
    owner.kind == OwnerKind::Volume
}
