//! What is done to volumes and snapshots: they come, are served, are given other names and sizes, go back and go.

use std::sync::Arc;

use braid_engine::io::ShardId;
use braid_engine::keeper::EngineIo;
use braid_engine::pool::on_disk::{AllocationPolicy, Owner, OwnerKind, OwnerName};
use braid_engine::pool::{AdminError, DiscardOutcome, OwnerId, Pool, PoolShared, VolumeId, VolumeShared};
use braid_engine::{DeviceLayout, Node, PoolKey, PoolNext, Uuid, VolumeNode};

use super::admin::{Admin, blocks_of};
use super::oracle::{Block, Rule};
use super::scene::{BLOCK, Known, Life, Scene, Served};

/// The pool, on every shard.
pub(super) const KEY: PoolKey = PoolKey(3);
/// The most blocks of a volume, however often it grows.
const BLOCKS_MAX: u64 = 1500;

pub(super) fn owner_of(pool: &Pool, uuid: Uuid) -> Result<OwnerId, AdminError> {
    let named = |owner: &&Owner| owner.uuid == uuid && matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot);
    pool.state().owners.iter().find(named).map(|owner| owner.id).ok_or(AdminError::NoSuch)
}

fn name_of(name: &str) -> OwnerName {
    OwnerName::new(name).expect("a good name")
}

/// Nothing changed, or it is to be committed.
pub(super) fn next<T>(
    result: Result<T, AdminError>,
    next: PoolNext,
    pool: &mut Pool,
) -> (PoolNext, Result<T, AdminError>) {
    if matches!(result, Err(AdminError::LogFull)) {
        pool.request_commit();
    }
    (if result.is_ok() { next } else { PoolNext::Done }, result)
}

impl Scene {
    fn new_name(&mut self, of: &str) -> String {
        self.names += 1;
        format!("{of}{}", self.names)
    }

    fn new_uuid(&mut self) -> Uuid {
        Uuid::from_u128(u128::from(self.rng.bits()) << 64 | u128::from(self.rng.bits()) | 1)
    }

    pub fn get(&mut self, uuid: Uuid) -> &mut Known {
        self.known.get_mut(&uuid).expect("nobody else takes it away")
    }
}

impl Admin {
    fn is_there(&self, uuid: Uuid) -> bool {
        self.scene.borrow().known.contains_key(&uuid)
    }

    pub(super) fn take(&self, uuid: Uuid, busy: bool) {
        if self.is_there(uuid) {
            self.scene.borrow_mut().get(uuid).busy = busy;
        }
    }

    pub(super) fn refused(&self, what: &str, error: AdminError) {
        self.count("admin", &format!("{what} refused: {error}"));
        if !matches!(error, AdminError::LogFull | AdminError::NoOwnerSlot | AdminError::TooManyAtOnce) {
            self.odd(format!("{what}: {error}"));
        }
    }

    /// Makes a volume; of a snapshot: a clone.
    pub async fn create(&mut self, of: Option<Uuid>) {
        self.phase(if of.is_some() { "cloning" } else { "creating a volume" });
        let (uuid, name, blocks) = {
            let mut scene = self.scene.borrow_mut();
            let blocks = match of {
                Some(of) => scene.known[&of].blocks.clone(),
                None => {
                    let most = scene.nature.volume_blocks;
                    vec![Block::default(); 1 + scene.rng.below(most) as usize]
                }
            };
            (scene.new_uuid(), scene.new_name("v"), blocks)
        };
        let members = self.scene.borrow().members.len();
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
        let known = Known {
            uuid,
            names: vec![name],
            of: None,
            blocks,
            until: u64::MAX,
            life: Life::Coming(self.scene.borrow_mut().new_number()),
            had: None,
            served: None,
            busy: true,
        };
        let create = move |pool: &mut Pool| {
            let parent = of.map(|of| owner_of(pool, of)).transpose();
            let created = parent.and_then(|parent| pool.create_volume(parent, owner.clone()).map(drop));
            next(created, PoolNext::Commit, pool)
        };
        let if_created = move |scene: &mut Scene, created: &Result<(), AdminError>| {
            if created.is_ok() {
                scene.known.insert(known.uuid, known);
            }
        };
        if let Some(of) = of {
            self.take(of, true);
        }
        let (created, good) = self.call(create, if_created).await;
        if let Some(of) = of {
            self.take(of, false);
        }
        match created {
            Ok(()) if good => {
                self.count("admin", if of.is_some() { "clones" } else { "volumes" });
                self.scene.borrow_mut().get(uuid).life = Life::There;
                self.serve(uuid).await;
                self.take(uuid, false);
            }
            Ok(()) => {}
            Err(error) => self.refused("a volume", error),
        }
    }

    /// Takes snapshots, of several volumes at one instant.
    pub async fn snapshot(&mut self, mut volumes: Vec<Uuid>) {
        self.phase("taking a snapshot");
        self.rng.shuffle(&mut volumes);
        let all = volumes.len();
        volumes.truncate(if self.rng.coin() { 1 } else { all });
        let what: Vec<(Uuid, Uuid, String)> = {
            let mut scene = self.scene.borrow_mut();
            volumes.iter().map(|volume| (*volume, scene.new_uuid(), scene.new_name("s"))).collect()
        };
        let group = self.scene.borrow_mut().new_number();
        let (asked, of) = (what.clone(), what.clone());
        volumes.iter().for_each(|volume| self.take(*volume, true));
        let snapshot = move |pool: &mut Pool| {
            let named =
                |(volume, uuid, name): &(Uuid, Uuid, String)| Ok((owner_of(pool, *volume)?, *uuid, name_of(name)));
            let what: Result<Vec<_>, AdminError> = asked.iter().map(named).collect();
            let taken = what.and_then(|what| pool.snapshot(&what, 0).map(drop));
            next(taken, PoolNext::DrainAndCommit, pool)
        };
        let at_that_instant = move |scene: &mut Scene, taken: &Result<(), AdminError>| {
            if taken.is_err() {
                return;
            }
            let until = scene.tick();
            for (volume, uuid, name) in of {
                let blocks = scene.known[&volume].blocks.clone();
                let known = Known {
                    uuid,
                    names: vec![name],
                    of: Some(volume),
                    blocks,
                    until,
                    life: Life::Coming(group),
                    had: None,
                    served: None,
                    busy: true,
                };
                scene.known.insert(uuid, known);
            }
        };
        let (taken, good) = self.call(snapshot, at_that_instant).await;
        volumes.iter().for_each(|volume| self.take(*volume, false));
        match taken {
            Ok(()) if good => {
                self.count("admin", if what.len() > 1 { "snapshots of several volumes" } else { "snapshots" });
                for (_, uuid, _) in &what {
                    let mut scene = self.scene.borrow_mut();
                    let known = scene.get(*uuid);
                    // It is complete: what had begun has ended, and all of it is durable.
                    let until = known.until;
                    known.blocks.iter_mut().for_each(|block| *block = block.left(until, Rule::Kill));
                    (known.until, known.life) = (u64::MAX, Life::There);
                }
                for (_, uuid, _) in what {
                    let reads = self.scene.borrow().nature.reads_snapshots;
                    let reads = self.rng.chance(reads);
                    if reads || self.rng.coin() {
                        self.serve(uuid).await;
                        if reads {
                            let number = self.scene.borrow_mut().read_all(uuid);
                            self.until(|scene| scene.readings[&number] == 0).await;
                        }
                    }
                    self.take(uuid, false);
                }
            }
            Ok(()) => {}
            Err(error) => self.refused("a snapshot", error),
        }
    }

    /// Deletes a volume or a snapshot.
    pub async fn delete(&mut self, uuid: Uuid) {
        self.phase("deleting");
        self.take(uuid, true);
        self.withdraw(uuid).await;
        let is_snapshot = self.scene.borrow().known[&uuid].of.is_some();
        let delete = move |pool: &mut Pool| {
            let deleted = owner_of(pool, uuid).and_then(|owner| match is_snapshot {
                true => pool.delete_snapshot(owner),
                false => pool.delete_volume(owner),
            });
            next(deleted, PoolNext::Commit, pool)
        };
        let if_deleted = move |scene: &mut Scene, deleted: &Result<(), AdminError>| {
            if deleted.is_ok() {
                scene.get(uuid).life = Life::Going;
            }
        };
        let (deleted, good) = self.call(delete, if_deleted).await;
        match deleted {
            Ok(()) if good => {
                self.count("admin", if is_snapshot { "deletions of snapshots" } else { "deletions of volumes" });
                self.scene.borrow_mut().known.remove(&uuid);
            }
            Ok(()) => {}
            Err(error) => {
                if error != AdminError::HasSnapshots {
                    self.refused("a deletion", error);
                }
                self.take(uuid, false);
            }
        }
    }

    /// Makes a volume be what a snapshot is.
    pub async fn roll_back(&mut self, volume: Uuid, to: Uuid) {
        self.phase("rolling back");
        self.take(volume, true);
        self.take(to, true);
        let was_served = self.scene.borrow().known[&volume].served.is_some();
        self.withdraw(volume).await;
        let roll_back = move |pool: &mut Pool| {
            let rolled = match (owner_of(pool, volume), owner_of(pool, to)) {
                (Ok(volume), Ok(to)) => pool.rollback(volume, to).map(drop),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
            next(rolled, PoolNext::Commit, pool)
        };
        let if_rolled = move |scene: &mut Scene, rolled: &Result<(), AdminError>| {
            if rolled.is_ok() {
                let blocks = scene.known[&to].blocks.clone();
                scene.get(volume).life = Life::Turning(blocks);
            }
        };
        let (rolled, good) = self.call(roll_back, if_rolled).await;
        self.take(to, false);
        match rolled {
            Ok(()) if good => {
                self.count("admin", "rollbacks");
                let mut scene = self.scene.borrow_mut();
                let known = scene.get(volume);
                if let Life::Turning(blocks) = std::mem::replace(&mut known.life, Life::There) {
                    known.blocks = blocks;
                }
            }
            Ok(()) => return,
            Err(error) => self.refused("a rollback", error),
        }
        if was_served {
            self.serve(volume).await;
        }
        self.take(volume, false);
    }

    /// Makes a volume larger, under its clients.
    pub async fn grow(&mut self, volume: Uuid) {
        let had = self.scene.borrow().known[&volume].blocks.len();
        let blocks = had as u64 + 1 + self.rng.below(150);
        if blocks > BLOCKS_MAX {
            return;
        }
        self.phase("growing");
        let change = move |owner: &mut Owner| owner.size_bytes = blocks * BLOCK;
        let if_grown = move |scene: &mut Scene, grown: &Result<(), AdminError>| {
            if grown.is_ok() {
                let known = scene.get(volume);
                known.had = Some(had);
                known.blocks.resize_with(blocks as usize, Block::default);
            }
        };
        if self.alter(volume, change, if_grown).await {
            self.count("admin", "growth");
            self.scene.borrow_mut().get(volume).had = None;
            self.publish_again(volume).await;
            self.take(volume, false);
        }
    }

    /// Makes a volume smaller, which is not served meanwhile: what lies beyond is discarded before.
    pub async fn shrink(&mut self, volume: Uuid) {
        let had = self.scene.borrow().known[&volume].blocks.len() as u64;
        if had < 2 {
            return;
        }
        let blocks = 1 + self.rng.below(had - 1);
        self.phase("shrinking");
        self.take(volume, true);
        let was_served = self.scene.borrow().known[&volume].served.is_some();
        self.withdraw(volume).await;
        {
            // From now on it may read as zeros there, or as before.
            let mut scene = self.scene.borrow_mut();
            let now = scene.tick();
            for block in &mut scene.get(volume).blocks[blocks as usize..] {
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
            next(shrunk, PoolNext::Commit, pool)
        };
        let if_shrunk = move |scene: &mut Scene, shrunk: &Result<(), AdminError>| {
            if shrunk.is_ok() {
                let blocks = scene.known[&volume].blocks[..blocks as usize].to_vec();
                scene.get(volume).life = Life::Turning(blocks);
            }
        };
        match self.call(shrink, if_shrunk).await {
            (Ok(()), true) => {
                self.count("admin", "shrinking");
                let mut scene = self.scene.borrow_mut();
                let known = scene.get(volume);
                if let Life::Turning(blocks) = std::mem::replace(&mut known.life, Life::There) {
                    known.blocks = blocks;
                }
            }
            (Ok(()), false) => return,
            (Err(error), _) => self.refused("a smaller size", error),
        }
        if was_served {
            self.serve(volume).await;
        }
        self.take(volume, false);
    }

    /// Gives a volume or snapshot another name.
    pub async fn rename(&mut self, uuid: Uuid) {
        self.phase("renaming");
        let name = self.scene.borrow_mut().new_name("n");
        let (new, another) = (name_of(&name), name.clone());
        let change = move |owner: &mut Owner| owner.name = new;
        let if_renamed = move |scene: &mut Scene, renamed: &Result<(), AdminError>| {
            if renamed.is_ok() {
                scene.get(uuid).names.push(another);
            }
        };
        if self.alter(uuid, change, if_renamed).await {
            self.count("admin", "new names");
            self.scene.borrow_mut().get(uuid).names = vec![name];
            self.take(uuid, false);
        }
    }

    /// True: it is so, and whoever asked has it still.
    async fn alter(
        &self,
        uuid: Uuid,
        change: impl Fn(&mut Owner) + Send + 'static,
        then: impl FnOnce(&mut Scene, &Result<(), AdminError>) + 'static,
    ) -> bool {
        self.take(uuid, true);
        let alter = move |pool: &mut Pool| {
            let altered = owner_of(pool, uuid).and_then(|id| {
                let mut owner = pool.state().owners.get(id).expect("just found").clone();
                change(&mut owner);
                pool.alter(id, owner)
            });
            next(altered, PoolNext::Commit, pool)
        };
        match self.call(alter, then).await {
            (Ok(()), good) => good,
            (Err(error), _) => {
                self.refused("a change", error);
                self.take(uuid, false);
                false
            }
        }
    }

    pub async fn serve_or_withdraw(&mut self, uuid: Uuid) {
        self.take(uuid, true);
        let served = self.scene.borrow().known[&uuid].served.is_some();
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
        self.take(uuid, false);
    }

    /// Serves a volume or snapshot, if it is not.
    pub async fn serve(&mut self, uuid: Uuid) {
        if self.scene.borrow().known[&uuid].served.is_some() {
            return;
        }
        type AtHome = Result<(VolumeId, Arc<VolumeShared>, Arc<PoolShared>, u64), AdminError>;
        let serve = move |pool: &mut Pool| -> AtHome {
            let owner = owner_of(pool, uuid)?;
            let size_bytes = pool.state().owners.get(owner).expect("just found").size_bytes;
            let id = pool.serve(owner)?;
            Ok((id, Arc::clone(pool.volume(id).expect("served")), Arc::clone(pool.shared()), size_bytes))
        };
        let (id, size_bytes) = match self.look(serve).await {
            Ok((id, _, _, size_bytes)) => (id, size_bytes),
            // Who was told that a snapshot is there finds all of it.
            Err(AdminError::LogFull) if self.scene.borrow().known[&uuid].of.is_some() => {
                self.odd(format!("snapshot {uuid} was acknowledged, and waits for what began before it"));
                return;
            }
            Err(error) => return self.refused("to serve", error),
        };
        let device = self.scene.borrow_mut().take_device();
        let served = Served { id, device, blocks: blocks_of(size_bytes), open: false, going: false };
        self.scene.borrow_mut().get(uuid).served = Some(served);
        self.publish_again(uuid).await;
    }

    /// Publishes the layout of what is served, with the size that it has now. Clients may ask for it from then on.
    async fn publish_again(&mut self, uuid: Uuid) {
        let Some(served) = self.scene.borrow().known[&uuid].served else { return };
        let id = served.id;
        let at_home = self.look(move |pool| (pool.volume(id).cloned(), Arc::clone(pool.shared()))).await;
        let (Some(volume), pool) = at_home else {
            self.odd(format!("{uuid} is served, and the pool does not know it"));
            return;
        };
        let node = {
            let scene = self.scene.borrow();
            let known = &scene.known[&uuid];
            Node::Volume(Box::new(VolumeNode {
                key: KEY,
                home: ShardId(scene.home),
                pool,
                volume,
                id,
                members: scene.pool_places(),
                size_bytes: known.blocks.len() as u64 * BLOCK,
                read_only: known.of.is_some(),
            }))
        };
        let layout = DeviceLayout::new(self.port.new_version(), BLOCK as u32, &node);
        let layout = if self.scene.borrow().sectors.is_some() { layout.in_sectors() } else { layout };
        let blocks = blocks_of(layout.size_bytes());
        self.port.publish(served.device, Some(Arc::new(layout))).await;
        let mut scene = self.scene.borrow_mut();
        scene.get(uuid).served = Some(Served { blocks, open: true, ..served });
        let sleeping = std::mem::take(&mut scene.sleeping);
        scene.to_wake.extend(sleeping.into_iter().map(|client| (client, 1)));
    }

    /// Serves it no more. Nothing of it is under way afterwards.
    pub async fn withdraw(&mut self, uuid: Uuid) {
        let Some(served) = self.scene.borrow().known.get(&uuid).and_then(|known| known.served) else { return };
        let politely = self.rng.coin();
        let going = Served { open: !politely, going: true, ..served };
        self.scene.borrow_mut().get(uuid).served = Some(going);
        // Somebody may be reading all of it.
        self.until(|scene| !scene.is_being_read(uuid)).await;
        self.port.publish(served.device, None).await;
        let id = served.id;
        {
            let mut scene = self.scene.borrow_mut();
            scene.get(uuid).served = None;
            if scene.is_asked(served.device) {
                scene.wrong(|| format!("{uuid} has drained, and a request to it is under way"));
            }
        }
        self.look(move |pool| pool.stop_serving(id)).await;
        self.scene.borrow_mut().devices.remove(&served.device.0);
    }
}
