//! Administration of volumes and snapshots: they are created, served, renamed, resized, rolled back and deleted.

use std::sync::Arc;

use braid_engine::io::ShardId;
use braid_engine::pool::on_disk::{AllocationPolicy, Owner, OwnerKind, OwnerName};
use braid_engine::pool::{AdminError, DiscardOutcome, OwnerId, Pool, PoolShared, VolumeId, VolumeShared};
use braid_engine::{DeviceLayout, EngineIo, Node, PoolKey, PoolNext, Uuid, VolumeNode};

use super::admin::{Admin, blocks_of};
use super::oracle::{BLOCK, Block, Rule};
use super::shared_state::{Lifecycle, Served, SharedState, VolumeModel};

/// The pool's key on every shard.
pub(super) const KEY: PoolKey = PoolKey(3);
/// Maximum number of blocks of a volume, however often it grows.
const BLOCKS_MAX: u64 = 1500;

pub(super) fn owner_of(pool: &Pool, uuid: Uuid) -> Result<OwnerId, AdminError> {
    let named = |owner: &&Owner| owner.uuid == uuid && matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot);
    pool.state().owners.iter().find(named).map(|owner| owner.id).ok_or(AdminError::NoSuch)
}

fn name_of(name: &str) -> OwnerName {
    OwnerName::new(name).expect("a good name")
}

/// Returns the next step of a call: `next` if the call changed something, else none.
pub(super) fn after_change<T>(
    result: Result<T, AdminError>,
    next: PoolNext,
    pool: &mut Pool,
) -> (PoolNext, Result<T, AdminError>) {
    if matches!(result, Err(AdminError::LogFull)) {
        pool.request_commit();
    }
    (if result.is_ok() { next } else { PoolNext::Done }, result)
}

impl SharedState {
    fn new_name(&mut self, of: &str) -> String {
        self.names += 1;
        format!("{of}{}", self.names)
    }

    fn new_uuid(&mut self) -> Uuid {
        Uuid::from_u128(u128::from(self.rng.bits()) << 64 | u128::from(self.rng.bits()) | 1)
    }

    pub fn get(&mut self, uuid: Uuid) -> &mut VolumeModel {
        self.models.get_mut(&uuid).expect("nobody else takes it away")
    }
}

impl Admin {
    fn is_there(&self, uuid: Uuid) -> bool {
        self.shared.borrow().models.contains_key(&uuid)
    }

    pub(super) fn set_busy(&self, uuid: Uuid, busy: bool) {
        if self.is_there(uuid) {
            self.shared.borrow_mut().get(uuid).busy = busy;
        }
    }

    pub(super) fn refused(&self, what: &str, error: AdminError) {
        self.count("admin", &format!("{what} refused: {error}"));
        if !matches!(error, AdminError::LogFull | AdminError::NoOwnerSlot | AdminError::TooManyAtOnce) {
            self.report_violation(format!("{what}: {error}"));
        }
    }

    /// Creates a volume or, from a snapshot, a clone.
    pub async fn create(&mut self, of: Option<Uuid>) {
        self.phase(if of.is_some() { "cloning" } else { "creating a volume" });
        let (uuid, name, blocks) = {
            let mut shared = self.shared.borrow_mut();
            let blocks = match of {
                Some(of) => shared.models[&of].blocks.clone(),
                None => {
                    let most = shared.parameters.volume_blocks;
                    vec![Block::default(); 1 + shared.rng.below(most) as usize]
                }
            };
            (shared.new_uuid(), shared.new_name("v"), blocks)
        };
        let members = self.shared.borrow().members.len();
        let (place, on) = match self.rng.below(4) {
            0 => (AllocationPolicy::Single, 1 << self.rng.index(members)),
            1 => (AllocationPolicy::Chosen, u128::from(1 + self.rng.below((1 << members) - 1))),
            _ => (AllocationPolicy::Spread, 0),
        };
        let owner = Owner {
            id: 1,
            kind: OwnerKind::Volume,
            allocation: place,
            on,
            also_on: 0,
            thick: false,
            flattening: false,
            frozen: false,
            sectors_of_512: false,
            parent: 0,
            uuid,
            volume: Uuid::nil(),
            size_bytes: blocks.len() as u64 * BLOCK,
            created_unix_s: 0,
            limit_iops: 0,
            limit_bytes_per_s: 0,
            name: name_of(&name),
            schedule: None,
        };
        let model = VolumeModel {
            uuid,
            names: vec![name],
            snapshot_of: None,
            blocks,
            until: u64::MAX,
            lifecycle: Lifecycle::Creating(self.shared.borrow_mut().new_number()),
            blocks_before: None,
            served: None,
            busy: true,
        };
        let create = move |pool: &mut Pool| {
            let parent = of.map(|of| owner_of(pool, of)).transpose();
            let created = parent.and_then(|parent| pool.create_volume(parent, owner.clone()).map(drop));
            after_change(created, PoolNext::Commit, pool)
        };
        let if_created = move |shared: &mut SharedState, created: &Result<(), AdminError>| {
            if created.is_ok() {
                shared.models.insert(model.uuid, model);
            }
        };
        if let Some(of) = of {
            self.set_busy(of, true);
        }
        let (created, good) = self.call(create, if_created).await;
        if let Some(of) = of {
            self.set_busy(of, false);
        }
        match created {
            Ok(()) if good => {
                self.count("admin", if of.is_some() { "clones" } else { "volumes" });
                self.shared.borrow_mut().get(uuid).lifecycle = Lifecycle::Exists;
                self.serve(uuid).await;
                self.set_busy(uuid, false);
            }
            Ok(()) => {}
            Err(error) => self.refused("a volume", error),
        }
    }

    /// Takes snapshots of several volumes at one instant.
    pub async fn snapshot(&mut self, mut volumes: Vec<Uuid>) {
        self.phase("taking a snapshot");
        self.rng.shuffle(&mut volumes);
        let all = volumes.len();
        volumes.truncate(if self.rng.coin() { 1 } else { all });
        let what: Vec<(Uuid, Uuid, String)> = {
            let mut shared = self.shared.borrow_mut();
            volumes.iter().map(|volume| (*volume, shared.new_uuid(), shared.new_name("s"))).collect()
        };
        let group = self.shared.borrow_mut().new_number();
        let (wanted, of) = (what.clone(), what.clone());
        volumes.iter().for_each(|volume| self.set_busy(*volume, true));
        let snapshot = move |pool: &mut Pool| {
            let named =
                |(volume, uuid, name): &(Uuid, Uuid, String)| Ok((owner_of(pool, *volume)?, *uuid, name_of(name)));
            let what: Result<Vec<_>, AdminError> = wanted.iter().map(named).collect();
            let taken = what.and_then(|what| pool.snapshot(&what, 0).map(drop));
            after_change(taken, PoolNext::DrainAndCommit, pool)
        };
        let at_that_instant = move |shared: &mut SharedState, taken: &Result<(), AdminError>| {
            if taken.is_err() {
                return;
            }
            let until = shared.tick();
            for (volume, uuid, name) in of {
                let blocks = shared.models[&volume].blocks.clone();
                let model = VolumeModel {
                    uuid,
                    names: vec![name],
                    snapshot_of: Some(volume),
                    blocks,
                    until,
                    lifecycle: Lifecycle::Creating(group),
                    blocks_before: None,
                    served: None,
                    busy: true,
                };
                shared.models.insert(uuid, model);
            }
        };
        let (taken, good) = self.call(snapshot, at_that_instant).await;
        volumes.iter().for_each(|volume| self.set_busy(*volume, false));
        match taken {
            Ok(()) if good => {
                self.count("admin", if what.len() > 1 { "snapshots of several volumes" } else { "snapshots" });
                for (_, uuid, _) in &what {
                    let mut shared = self.shared.borrow_mut();
                    let model = shared.get(*uuid);
                    // The snapshot is complete: the writes that had begun before it have ended and are durable.
                    let until = model.until;
                    model.blocks.iter_mut().for_each(|block| *block = block.left(until, Rule::Kill));
                    (model.until, model.lifecycle) = (u64::MAX, Lifecycle::Exists);
                }
                for (_, uuid, _) in what {
                    let reads = self.shared.borrow().parameters.reads_snapshots;
                    let reads = self.rng.chance(reads);
                    if reads || self.rng.coin() {
                        self.serve(uuid).await;
                        if reads {
                            let number = self.shared.borrow_mut().read_all(uuid);
                            self.until(|shared| shared.readings[&number] == 0).await;
                        }
                    }
                    self.set_busy(uuid, false);
                }
            }
            Ok(()) => {}
            Err(error) => self.refused("a snapshot", error),
        }
    }

    /// Deletes a volume or a snapshot.
    pub async fn delete(&mut self, uuid: Uuid) {
        self.phase("deleting");
        self.set_busy(uuid, true);
        self.withdraw(uuid).await;
        let is_snapshot = self.shared.borrow().models[&uuid].snapshot_of.is_some();
        let delete = move |pool: &mut Pool| {
            let deleted = owner_of(pool, uuid).and_then(|owner| match is_snapshot {
                true => pool.delete_snapshot(owner),
                false => pool.delete_volume(owner),
            });
            after_change(deleted, PoolNext::Commit, pool)
        };
        let if_deleted = move |shared: &mut SharedState, deleted: &Result<(), AdminError>| {
            if deleted.is_ok() {
                shared.get(uuid).lifecycle = Lifecycle::Deleting;
            }
        };
        let (deleted, good) = self.call(delete, if_deleted).await;
        match deleted {
            Ok(()) if good => {
                self.count("admin", if is_snapshot { "deletions of snapshots" } else { "deletions of volumes" });
                self.shared.borrow_mut().models.remove(&uuid);
            }
            Ok(()) => {}
            Err(error) => {
                if error != AdminError::HasSnapshots {
                    self.refused("a deletion", error);
                }
                self.set_busy(uuid, false);
            }
        }
    }

    /// Rolls a volume back to a snapshot.
    pub async fn roll_back(&mut self, volume: Uuid, to: Uuid) {
        self.phase("rolling back");
        self.set_busy(volume, true);
        self.set_busy(to, true);
        let was_served = self.shared.borrow().models[&volume].served.is_some();
        self.withdraw(volume).await;
        let roll_back = move |pool: &mut Pool| {
            let rolled = match (owner_of(pool, volume), owner_of(pool, to)) {
                (Ok(volume), Ok(to)) => pool.rollback(volume, to).map(drop),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
            after_change(rolled, PoolNext::Commit, pool)
        };
        let if_rolled = move |shared: &mut SharedState, rolled: &Result<(), AdminError>| {
            if rolled.is_ok() {
                let blocks = shared.models[&to].blocks.clone();
                shared.get(volume).lifecycle = Lifecycle::Changing(blocks);
            }
        };
        let (rolled, good) = self.call(roll_back, if_rolled).await;
        self.set_busy(to, false);
        match rolled {
            Ok(()) if good => {
                self.count("admin", "rollbacks");
                let mut shared = self.shared.borrow_mut();
                let model = shared.get(volume);
                if let Lifecycle::Changing(blocks) = std::mem::replace(&mut model.lifecycle, Lifecycle::Exists) {
                    model.blocks = blocks;
                }
            }
            Ok(()) => return,
            Err(error) => self.refused("a rollback", error),
        }
        if was_served {
            self.serve(volume).await;
        }
        self.set_busy(volume, false);
    }

    /// Grows a volume under its clients.
    pub async fn grow(&mut self, volume: Uuid) {
        let blocks_before = self.shared.borrow().models[&volume].blocks.len();
        let blocks = blocks_before as u64 + 1 + self.rng.below(150);
        if blocks > BLOCKS_MAX {
            return;
        }
        self.phase("growing");
        let change = move |owner: &mut Owner| owner.size_bytes = blocks * BLOCK;
        let if_grown = move |shared: &mut SharedState, grown: &Result<(), AdminError>| {
            if grown.is_ok() {
                let model = shared.get(volume);
                model.blocks_before = Some(blocks_before);
                model.blocks.resize_with(blocks as usize, Block::default);
            }
        };
        if self.alter(volume, change, if_grown).await {
            self.count("admin", "growth");
            self.shared.borrow_mut().get(volume).blocks_before = None;
            self.publish_again(volume).await;
            self.set_busy(volume, false);
        }
    }

    /// Shrinks a volume, which is not served meanwhile. The blocks beyond the new size are discarded before.
    pub async fn shrink(&mut self, volume: Uuid) {
        let blocks_before = self.shared.borrow().models[&volume].blocks.len() as u64;
        if blocks_before < 2 {
            return;
        }
        let blocks = 1 + self.rng.below(blocks_before - 1);
        self.phase("shrinking");
        self.set_busy(volume, true);
        let was_served = self.shared.borrow().models[&volume].served.is_some();
        self.withdraw(volume).await;
        {
            // From now on the blocks there may read as zeros or as before.
            let mut shared = self.shared.borrow_mut();
            let now = shared.tick();
            for block in &mut shared.get(volume).blocks[blocks as usize..] {
                block.begin(0, u8::MAX, now, true);
                block.end(now, now, false);
            }
        }
        let shrink = move |pool: &mut Pool| {
            let shrunk = owner_of(pool, volume).and_then(|owner| {
                let id = pool.serve(owner)?;
                let shrunk = loop {
                    match pool.discard_from(id, blocks) {
                        Ok(None) => break pool.shrink(id, blocks * BLOCK),
                        Ok(Some((_, DiscardOutcome::Done(_)))) => {}
                        Ok(Some((_, DiscardOutcome::LogFull))) => break Err(AdminError::LogFull),
                        Ok(Some((_, DiscardOutcome::Full(_) | DiscardOutcome::Held))) => {
                            break Err(AdminError::NoOwnerSlot);
                        }
                        Err(error) => break Err(error),
                    }
                };
                pool.stop_serving(id);
                shrunk
            });
            after_change(shrunk, PoolNext::Commit, pool)
        };
        let if_shrunk = move |shared: &mut SharedState, shrunk: &Result<(), AdminError>| {
            if shrunk.is_ok() {
                let blocks = shared.models[&volume].blocks[..blocks as usize].to_vec();
                shared.get(volume).lifecycle = Lifecycle::Changing(blocks);
            }
        };
        match self.call(shrink, if_shrunk).await {
            (Ok(()), true) => {
                self.count("admin", "shrinking");
                let mut shared = self.shared.borrow_mut();
                let model = shared.get(volume);
                if let Lifecycle::Changing(blocks) = std::mem::replace(&mut model.lifecycle, Lifecycle::Exists) {
                    model.blocks = blocks;
                }
            }
            (Ok(()), false) => return,
            (Err(error), _) => self.refused("a smaller size", error),
        }
        if was_served {
            self.serve(volume).await;
        }
        self.set_busy(volume, false);
    }

    /// Renames a volume or snapshot.
    pub async fn rename(&mut self, uuid: Uuid) {
        self.phase("renaming");
        let name = self.shared.borrow_mut().new_name("n");
        let (new, another) = (name_of(&name), name.clone());
        let change = move |owner: &mut Owner| owner.name = new;
        let if_renamed = move |shared: &mut SharedState, renamed: &Result<(), AdminError>| {
            if renamed.is_ok() {
                shared.get(uuid).names.push(another);
            }
        };
        if self.alter(uuid, change, if_renamed).await {
            self.count("admin", "new names");
            self.shared.borrow_mut().get(uuid).names = vec![name];
            self.set_busy(uuid, false);
        }
    }

    /// Alters an owner. Returns `true` if the change is in effect; the owner is still busy then.
    async fn alter(
        &self,
        uuid: Uuid,
        change: impl Fn(&mut Owner) + Send + 'static,
        then: impl FnOnce(&mut SharedState, &Result<(), AdminError>) + 'static,
    ) -> bool {
        self.set_busy(uuid, true);
        let alter = move |pool: &mut Pool| {
            let altered = owner_of(pool, uuid).and_then(|id| {
                let mut owner = pool.state().owners.get(id).expect("just found").clone();
                change(&mut owner);
                pool.alter(id, owner)
            });
            after_change(altered, PoolNext::Commit, pool)
        };
        match self.call(alter, then).await {
            (Ok(()), good) => good,
            (Err(error), _) => {
                self.refused("a change", error);
                self.set_busy(uuid, false);
                false
            }
        }
    }

    pub async fn serve_or_withdraw(&mut self, uuid: Uuid) {
        self.set_busy(uuid, true);
        let served = self.shared.borrow().models[&uuid].served.is_some();
        if !served {
            self.phase("beginning to serve");
            self.serve(uuid).await;
        } else if self.rng.below(3) == 0 {
            self.phase("withdrawing");
            self.withdraw(uuid).await;
        } else {
            self.phase("changing a layout");
            self.publish_again(uuid).await;
        }
        self.set_busy(uuid, false);
    }

    /// Serves a volume or snapshot, if it is not served.
    pub async fn serve(&mut self, uuid: Uuid) {
        if self.shared.borrow().models[&uuid].served.is_some() {
            return;
        }
        type AtHome = Result<(VolumeId, Arc<VolumeShared>, Arc<PoolShared>, u64), AdminError>;
        let serve = move |pool: &mut Pool| -> AtHome {
            let owner = owner_of(pool, uuid)?;
            let size_bytes = pool.state().owners.get(owner).expect("just found").size_bytes;
            let id = pool.serve(owner)?;
            Ok((id, Arc::clone(pool.volume(id).expect("served")), Arc::clone(pool.shared()), size_bytes))
        };
        let (id, size_bytes) = match self.inspect_pool(serve).await {
            Ok((id, _, _, size_bytes)) => (id, size_bytes),
            // A snapshot that was acknowledged is complete.
            Err(AdminError::LogFull) if self.shared.borrow().models[&uuid].snapshot_of.is_some() => {
                self.report_violation(format!("snapshot {uuid} was acknowledged, and waits for what began before it"));
                return;
            }
            Err(error) => return self.refused("to serve", error),
        };
        let device = self.shared.borrow_mut().take_device();
        let served = Served { id, device, blocks: blocks_of(size_bytes), open: false, going: false };
        self.shared.borrow_mut().get(uuid).served = Some(served);
        self.publish_again(uuid).await;
    }

    /// Publishes the layout of a served volume with its current size. Clients may use the volume from then on.
    async fn publish_again(&mut self, uuid: Uuid) {
        let Some(served) = self.shared.borrow().models[&uuid].served else { return };
        let id = served.id;
        let at_home = self.inspect_pool(move |pool| (pool.volume(id).cloned(), Arc::clone(pool.shared()))).await;
        let (Some(volume), pool) = at_home else {
            self.report_violation(format!("{uuid} is served, and the pool does not know it"));
            return;
        };
        let node = {
            let shared = self.shared.borrow();
            let model = &shared.models[&uuid];
            Node::Volume(Box::new(VolumeNode {
                key: KEY,
                home: ShardId(shared.home),
                pool,
                volume,
                id,
                members: shared.pool_members(),
                size_bytes: model.blocks.len() as u64 * BLOCK,
                read_only: model.snapshot_of.is_some(),
            }))
        };
        let layout = DeviceLayout::new(self.port.new_version(), BLOCK as u32, &node);
        let layout = if self.shared.borrow().sectors.is_some() { layout.with_sector_requests() } else { layout };
        let blocks = blocks_of(layout.size_bytes());
        self.port.publish(served.device, Some(Arc::new(layout))).await;
        let mut shared = self.shared.borrow_mut();
        shared.get(uuid).served = Some(Served { blocks, open: true, ..served });
        let sleeping = std::mem::take(&mut shared.sleeping);
        shared.to_wake.extend(sleeping.into_iter().map(|client| (client, 1)));
    }

    /// Withdraws a volume or snapshot. No request to it is in flight afterwards.
    pub async fn withdraw(&mut self, uuid: Uuid) {
        let Some(served) = self.shared.borrow().models.get(&uuid).and_then(|model| model.served) else { return };
        let politely = self.rng.coin();
        let going = Served { open: !politely, going: true, ..served };
        self.shared.borrow_mut().get(uuid).served = Some(going);
        // A read of the whole volume may be in flight.
        self.until(|shared| !shared.is_being_read(uuid)).await;
        self.port.publish(served.device, None).await;
        let id = served.id;
        {
            let mut shared = self.shared.borrow_mut();
            shared.get(uuid).served = None;
            if shared.has_pending(served.device) {
                shared.set_violation(|| format!("{uuid} has drained, and a request to it is under way"));
            }
        }
        self.inspect_pool(move |pool| pool.stop_serving(id)).await;
        self.shared.borrow_mut().devices.remove(&served.device.0);
    }
}
