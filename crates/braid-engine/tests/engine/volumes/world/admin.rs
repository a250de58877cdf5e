//! Creates, serves, withdraws, merges and moves volumes, snapshots and clones.

use super::*;

impl World {
    pub fn create(&mut self, of: Option<Uuid>) {
        self.next += 1;
        let number = self.next;
        let uuid = Uuid::from_u128(u128::from(number) | 1 << 100);
        let parent = of.map(|of| self.known[&of].owner);
        let blocks = match of {
            Some(of) => {
                // Content that was not read yet may be one or the other.
                let of = &self.known[&of];
                let words = (0..of.blocks.len() as u64).map(|block| of.admissible(block, u64::MAX));
                let sure = |words: Vec<u64>| words.iter().all(|word| *word == words[0]).then(|| Block::of(words[0]));
                let Some(blocks) = words.map(sure).collect() else { return };
                blocks
            }
            None => vec![Block::of(0); self.setup.volume_blocks as usize],
        };
        let owner =
            Owner::volume(uuid, OwnerName::new(&format!("v{number}")).expect("a name"), blocks.len() as u64 * BLOCK);
        let created =
            self.call(Continuation::Come(vec![uuid]), move |pool| match pool.create_volume(parent, owner.clone()) {
                Ok(id) => (PoolNext::Commit, Ok(id)),
                Err(why) => (PoolNext::Done, Err(why)),
            });
        match created {
            Ok(owner) => {
                self.count(if of.is_some() { "clones" } else { "volumes" });
                let known = KnownVolume {
                    uuid,
                    key: self.key,
                    owner,
                    read_only: false,
                    of: None,
                    blocks,
                    until: u64::MAX,
                    life: Life::Coming,
                    served: None,
                    serving: false,
                };
                self.known.insert(uuid, known);
            }
            Err(AdminError::LogFull | AdminError::NoOwnerSlot) => self.count("calls refused"),
            Err(why) => panic!("a volume is refused: {why}, {}", self.run),
        }
    }

    /// Takes snapshots of these volumes at one instant.
    pub fn snapshot(&mut self, of: &[Uuid]) {
        let mut what = Vec::new();
        let mut uuids = Vec::new();
        for volume in of {
            self.next += 1;
            let uuid = Uuid::from_u128(u128::from(self.next) | 1 << 101);
            let name = OwnerName::new(&format!("s{}", self.next)).expect("a name");
            what.push((self.known[volume].owner, uuid, name));
            uuids.push(uuid);
        }
        let pending = what.clone();
        let until = self.rig.tick();
        let taken = self.call(Continuation::Come(uuids.clone()), move |pool| match pool.snapshot(&pending, 0) {
            Ok(owners) => {
                // The volumes continue under these owners.
                let news: Vec<OwnerId> = owners
                    .iter()
                    .map(|owner| {
                        let owners = &pool.state().owners;
                        owners.iter().filter(|o| o.parent == *owner).map(|o| o.id).max().expect("it goes on")
                    })
                    .collect();
                (PoolNext::DrainAndCommit, Ok((owners, news)))
            }
            Err(why) => (PoolNext::Done, Err(why)),
        });
        let (owners, news) = match taken {
            Ok(taken) => taken,
            Err(AdminError::LogFull | AdminError::NoOwnerSlot | AdminError::TooManyAtOnce) => {
                return self.count("calls refused");
            }
            Err(why) => panic!("a snapshot is refused: {why}, {}", self.run),
        };
        self.count(if of.len() > 1 { "snapshots of several" } else { "snapshots" });
        for (((volume, uuid), owner), new) in of.iter().zip(uuids).zip(owners).zip(news) {
            let of = self.known.get_mut(volume).expect("known");
            of.owner = new;
            let blocks = of.blocks.clone();
            let known = KnownVolume {
                uuid,
                key: self.key,
                owner,
                read_only: true,
                of: Some(*volume),
                blocks,
                until,
                life: Life::Coming,
                served: None,
                serving: false,
            };
            self.known.insert(uuid, known);
        }
    }

    pub fn merge(&mut self, records: u32) -> braid_engine::pool::MergeStep {
        self.call(Continuation::Nothing, move |pool| (PoolNext::Done, pool.merge_step(records)))
    }

    /// Begins to empty a member, or uses it again.
    pub fn close_or_open(&mut self) {
        let member = self.rig.random.below(self.setup.members.len() as u64) as u8;
        if self.setup.members.len() > 1 {
            let closed = self.closed != Some(member);
            if let Some(before) = self.closed.take() {
                self.call(Continuation::Nothing, move |pool| (PoolNext::Done, pool.close_member(before, false)));
            }
            if closed {
                self.closed = Some(member);
                self.call(Continuation::Nothing, move |pool| (PoolNext::Done, pool.close_member(member, true)));
                self.count("members closed");
            }
        }
    }

    /// Moves what is to be moved.
    pub fn move_on(&mut self, records: u32) {
        self.call(Continuation::Nothing, move |pool| (PoolNext::Done, pool.move_step(records)));
        let moved = self.look(|pool| pool.blocks_moved());
        if moved > self.moved {
            self.count("blocks moved");
        }
        self.moved = moved;
    }

    pub fn checkpoint(&mut self) {
        self.call(Continuation::Nothing, |pool| {
            pool.request_checkpoint();
            (PoolNext::Commit, ())
        });
    }

    pub fn drain(&mut self) {
        self.call(Continuation::Nothing, |_| (PoolNext::DrainAndCommit, ()));
    }

    pub fn look<R: Send + 'static>(&mut self, mut look: impl FnMut(&mut Pool) -> R + Send + 'static) -> R {
        self.call(Continuation::Nothing, move |pool| (PoolNext::Done, look(pool)))
    }

    // Serving.

    pub fn serve(&mut self, uuid: Uuid) {
        let owner = self.known[&uuid].owner;
        let at_home = self.look(move |pool| {
            let id = pool.serve(owner).expect("it is there, and not served");
            (id, Arc::clone(pool.volume(id).expect("served")), Arc::clone(pool.shared()))
        });
        self.is_served_by(uuid, at_home);
    }

    /// Serves it in slices, while everything else continues.
    pub fn serve_slowly(&mut self, uuid: Uuid) {
        let known = self.known.get_mut(&uuid).expect("known");
        known.serving = true;
        let (owner, blocks) = (known.owner, known.blocks.len() as u64);
        let slice = 1 + [3, 40][self.rig.random.below(2) as usize] * self.rig.random.below(100) as u32 / 100;
        let run = self.run.clone();
        let served = Arc::new(Mutex::new(None));
        let into = Arc::clone(&served);
        self.call(Continuation::Serve(uuid, served), move |pool| match pool.serve_step(owner, slice) {
            Ok(None) => (PoolNext::NextTurn, ()),
            Ok(Some(id)) => {
                let volume = Arc::clone(pool.volume(id).expect("served"));
                let again = pool.rebuild_map(id);
                let records = &pool.shared().records;
                for block in 0..blocks {
                    let (slow, at_once) = (volume.map.find(records, block, 64), again.find(records, block, 64));
                    assert_eq!(slow, at_once, "block {block} is found elsewhere, {run}");
                }
                *into.lock().expect("one thread") = Some((id, volume, Arc::clone(pool.shared())));
                (PoolNext::Done, ())
            }
            Err(AdminError::LogFull) => (PoolNext::Done, ()),
            Err(why) => panic!("it cannot be served: {why}, {run}"),
        });
    }

    pub(super) fn is_served_by(&mut self, uuid: Uuid, (id, volume, pool): HomeState) {
        let device = DeviceId(self.next_device);
        self.next_device = if self.next_device + 1 == DEVICES { 100 } else { self.next_device + 1 };
        assert!(!self.known.values().any(|k| k.served.as_ref().is_some_and(|s| s.device == device)));
        let version = self.next as u32;
        self.known.get_mut(&uuid).expect("known").served =
            Some(Served { id, volume, pool, device, version, undrained: 0, published: false, withdrawn: 0 });
        self.publish(uuid);
    }

    /// Publishes it, possibly again.
    pub fn publish(&mut self, uuid: Uuid) {
        let (home, places) = (self.home, Arc::clone(&self.places));
        let known = self.known.get_mut(&uuid).expect("known");
        let (size_bytes, read_only) = (known.blocks.len() as u64 * BLOCK, known.read_only);
        let served = known.served.as_mut().expect("served");
        served.version += 1;
        (served.published, served.undrained) = (true, 0);
        let node = Node::Volume(Box::new(VolumeNode {
            key: self.key,
            home,
            pool: Arc::clone(&served.pool),
            volume: Arc::clone(&served.volume),
            id: served.id,
            members: places,
            size_bytes,
            read_only,
        }));
        let mut layout = DeviceLayout::new(served.version, 4096, &node);
        if self.leased {
            layout = layout.leased(Arc::clone(&self.lease), self.devices[0].device);
        }
        let (device, layout) = (served.device, Arc::new(layout));
        for (shard, sink) in &mut self.rig.shards {
            shard.publish(device, Some(Arc::clone(&layout)), sink);
        }
        self.rig.after();
    }

    pub fn withdraw(&mut self, uuid: Uuid) {
        let now = self.rig.tick();
        let shards = self.rig.shards.len();
        let served = self.known.get_mut(&uuid).expect("known").served.as_mut().expect("served");
        if !served.published {
            return;
        }
        (served.published, served.undrained, served.withdrawn) = (false, shards, now);
        let device = served.device;
        for (shard, sink) in &mut self.rig.shards {
            shard.publish(device, None, sink);
        }
        self.rig.after();
    }

    /// Begins to delete it, or only to withdraw it.
    pub fn leave(&mut self, uuid: Uuid) {
        self.known.get_mut(&uuid).expect("known").life = Life::Leaving;
        if self.known[&uuid].served.is_some() {
            self.withdraw(uuid);
        }
    }

    /// Continues the deletion of those of which nothing is in flight.
    pub(super) fn continue_deletions(&mut self) {
        let is_idle = |known: &&KnownVolume| {
            known.life == Life::Leaving
                && known.served.as_ref().is_none_or(|served| !served.published && served.undrained == 0)
        };
        let Some(known) = self.known.values().find(is_idle) else { return };
        let (uuid, owner, read_only) = (known.uuid, known.owner, known.read_only);
        if self.pending.values().any(|pending| pending.volume == uuid) {
            // It was answered and is about to be fetched.
            return;
        }
        let id = known.served.as_ref().map(|served| served.id);
        let gone = self.call(Continuation::Go(uuid), move |pool| {
            if let Some(id) = id {
                pool.stop_serving(id);
            }
            let result = if read_only { pool.delete_snapshot(owner) } else { pool.delete_volume(owner) };
            (if result.is_ok() { PoolNext::Commit } else { PoolNext::Done }, result)
        });
        let known = self.known.get_mut(&uuid).expect("known");
        known.served = None;
        known.life = if gone.is_ok() { Life::Going } else { Life::There };
        self.count(if gone.is_ok() { "deletions" } else { "deletions refused" });
    }

    // Requests.

    /// Returns those that can be used: volumes, or snapshots.
    pub fn ready(&self, read_only: bool) -> Vec<Uuid> {
        let ready = |known: &&KnownVolume| known.life == Life::There && known.read_only == read_only;
        self.known.values().filter(ready).map(|known| known.uuid).collect()
    }

    pub fn is_served(&self, uuid: Uuid) -> bool {
        self.known[&uuid].served.is_some()
    }

    /// Returns whether its map is being built.
    pub fn is_serving(&self, uuid: Uuid) -> bool {
        self.known[&uuid].serving
    }

    pub fn is_published(&self, uuid: Uuid) -> bool {
        self.known[&uuid].served.as_ref().is_some_and(|served| served.published)
    }

    pub fn has_snapshots(&self, uuid: Uuid) -> bool {
        self.known.values().any(|known| known.of == Some(uuid))
    }

    pub fn calls(&self) -> usize {
        self.calls.len()
    }
}
