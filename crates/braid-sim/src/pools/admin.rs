//! Administration: volumes, snapshots and clones come, grow, go back and go, and what each call waits for.

use braid_engine::Uuid;
use braid_engine::pool::{AdminError, MergeStep, VolumeId};
use braid_format::pool::{AllocationPolicy, Owner, OwnerKind, OwnerName};

use super::bugs::{Bug, is_planted};
use super::nature::Moment;
use super::oracle::{Block, Change, Rule};
use super::world::{BLOCK, Known, Life, VOLUME_BLOCKS_MAX, World};

/// What an administrative call waits for.
pub(super) struct Asked {
    /// Those concerned.
    what: Vec<Uuid>,
    wait: Wait,
}

impl Asked {
    /// This request has no place in mind any more.
    pub fn no_longer_waits_for(&mut self, id: u64) {
        if let Wait::Drain(out) = &mut self.wait {
            out.retain(|other| *other != id);
        }
    }
}

pub(super) enum Wait {
    /// Whoever had begun before has to end.
    Drain(Vec<u64>),
    Commit(u64),
}

impl World {
    pub(super) fn fold(&mut self) {
        let records = 1 + self.rng.below(40) as u32;
        match self.fold_step(records) {
            MergeStep::Nothing | MergeStep::Later => {}
            MergeStep::Some => {
                self.count("folds");
                self.happens(Moment::Folded);
            }
            MergeStep::LogFull => {
                self.pool().request_commit();
            }
        }
    }

    pub(super) fn busy(&self, uuid: Uuid) -> bool {
        self.asked.iter().any(|asked| asked.what.contains(&uuid))
    }

    pub(super) fn owner_of(&self, uuid: Uuid) -> Option<u32> {
        let owners = &self.pool.as_ref().expect("open").state().owners;
        owners.iter().find(|owner| owner.uuid == uuid && owner.kind != OwnerKind::Nameless).map(|owner| owner.id)
    }

    pub(super) fn administer(&mut self) {
        if self.asked.len() > 2 {
            return;
        }
        let ready = |known: &&Known| matches!(known.life, Life::There) && known.had.is_none() && !self.busy(known.uuid);
        let volumes: Vec<Uuid> = self.known.values().filter(|k| k.of.is_none()).filter(ready).map(|k| k.uuid).collect();
        let snapshots: Vec<Uuid> =
            self.known.values().filter(|k| k.of.is_some()).filter(ready).map(|k| k.uuid).collect();
        match self.rng.below(20) {
            0..2 if volumes.len() < 4 => self.create(None),
            2 if !snapshots.is_empty() && volumes.len() < 5 => {
                let of = *self.rng.pick(&snapshots);
                self.create(Some(of));
            }
            3..9 if !volumes.is_empty() && self.known.len() < 16 => self.take_snapshot(&volumes),
            9..13 if !snapshots.is_empty() => {
                let which = *self.rng.pick(&snapshots);
                self.delete(which);
            }
            13 if volumes.len() > 1 => {
                let which = *self.rng.pick(&volumes);
                self.delete(which);
            }
            14 if !volumes.is_empty() && !snapshots.is_empty() => {
                let (which, to) = (*self.rng.pick(&volumes), *self.rng.pick(&snapshots));
                self.roll_back(which, to);
            }
            15..18 => self.serve_or_leave(),
            18 if !volumes.is_empty() => {
                let which = *self.rng.pick(&volumes);
                self.grow(which);
            }
            19 if self.shrinks && !volumes.is_empty() => {
                let which = *self.rng.pick(&volumes);
                self.shrink(which);
            }
            _ => {}
        }
    }

    fn new_uuid(&mut self) -> Uuid {
        Uuid::from_u128(u128::from(self.rng.bits()) << 64 | u128::from(self.rng.bits()) | 1)
    }

    pub(super) fn create(&mut self, of: Option<Uuid>) {
        self.names += 1;
        let (uuid, name) = (self.new_uuid(), format!("v{}", self.names));
        let (parent, blocks) = match of {
            None => {
                let most = if self.nature.few_blocks { VOLUME_BLOCKS_MAX / 6 } else { VOLUME_BLOCKS_MAX };
                let count = 1 + self.rng.below(most);
                (None, vec![Block::default(); count as usize])
            }
            Some(of) => {
                let from = &self.known[&of];
                let blocks = frozen(from);
                (self.owner_of(of), blocks)
            }
        };
        let (place, on) = self.draw_placing();
        let thick = self.nature.thick > 0 && self.rng.below(100) < self.nature.thick;
        let own = if place == AllocationPolicy::Spread { u128::MAX } else { on };
        let home = own | of.map_or(0, |of| self.known[&of].home);
        let mut writers = of.map_or(Vec::new(), |of| self.known[&of].writers.clone());
        writers.push(self.names as u16);
        let owner = Owner {
            id: 1,
            kind: OwnerKind::Volume,
            allocation: place,
            on,
            also_on: 0,
            thick,
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
            name: OwnerName::new(&name).expect("a good name"),
            schedule: None,
        };
        match self.pool().create_volume(parent, owner) {
            Err(AdminError::LogFull | AdminError::NoOwnerSlot) => {}
            Err(AdminError::InDoubt | AdminError::Damaged) if self.absent() | self.rotten != 0 => {
                self.count("volumes refused")
            }
            Err(AdminError::NoSpace) if thick => self.count("thick volumes refused"),
            Err(error) => unreachable!("a volume that is refused: {error}"),
            Ok(_) => {
                self.note(|| format!("create {name}, of {of:?}"), self.names);
                self.count(if of.is_some() { "clones" } else { "volumes" });
                if thick && of.is_none() {
                    self.count("thick volumes");
                    self.plain.insert(uuid);
                }
                let (until, life) = (u64::MAX, Life::Coming(self.names));
                let (of, had, served) = (None, None, None);
                let known = Known { name, uuid, of, blocks, writers, home, until, life, had, served };
                self.known.insert(uuid, known);
                self.ask(vec![uuid], false);
            }
        }
    }

    /// Which members a volume may use.
    pub(super) fn draw_placing(&mut self) -> (AllocationPolicy, u128) {
        let members = self.devices.len();
        match self.rng.below(4) {
            0 => (AllocationPolicy::Single, 1 << self.rng.pick(&self.devices).number),
            1 => {
                let some = 1 + self.rng.below((1 << members) - 1);
                let chosen = (0..).zip(&self.devices).filter(|(k, _)| some >> k & 1 == 1);
                (AllocationPolicy::Chosen, chosen.fold(0, |all, (_, device)| all | 1 << device.number))
            }
            _ => (AllocationPolicy::Spread, 0),
        }
    }

    fn take_snapshot(&mut self, volumes: &[Uuid]) {
        let mut which = volumes.to_vec();
        self.rng.shuffle(&mut which);
        which.truncate(if self.rng.coin() { 1 } else { volumes.len() });
        let group = self.names + 1;
        let mut what = Vec::new();
        let mut new = Vec::new();
        for volume in &which {
            self.names += 1;
            let (uuid, name) = (self.new_uuid(), format!("s{}", self.names));
            let owner = self.owner_of(*volume).expect("a volume that is there");
            what.push((owner, uuid, OwnerName::new(&name).expect("a good name")));
            let Known { blocks, writers, home, .. } = self.known[volume].clone();
            let (of, had, served) = (Some(*volume), None, None);
            let (until, life) = (self.now, Life::Coming(group));
            new.push(Known { name, uuid, of, blocks, writers, home, until, life, had, served });
        }
        self.plain.retain(|volume| !which.contains(volume));
        match self.pool().snapshot(&what, 0) {
            Err(_) => {
                self.pool().request_commit();
            }
            Ok(_) => {
                self.count(if new.len() > 1 { "snapshots of several volumes" } else { "snapshots" });
                self.note(|| format!("snapshot {what:?}"), what.len() as u64);
                let uuids = new.iter().map(|known| known.uuid).collect();
                new.into_iter().for_each(|known| {
                    self.known.insert(known.uuid, known);
                });
                self.now += 1;
                self.ask(uuids, true);
            }
        }
    }

    pub(super) fn delete(&mut self, uuid: Uuid) {
        if self.known[&uuid].served.is_some() {
            return;
        }
        let is_snapshot = self.known[&uuid].of.is_some();
        let owner = self.owner_of(uuid).expect("what is there has an owner");
        let newest = self.pool().state().owners.is_newest(owner);
        let result = match is_snapshot {
            true => self.pool().delete_snapshot(owner),
            false => self.pool().delete_volume(owner),
        };
        if result.is_ok() {
            self.count(if newest { "deletions of the newest" } else { "deletions" });
            self.note(|| format!("delete {uuid}, owner {owner}"), u64::from(owner));
            self.known.get_mut(&uuid).expect("known").life = Life::Going;
            self.ask(vec![uuid], false);
        }
    }

    pub(super) fn roll_back(&mut self, volume: Uuid, to: Uuid) {
        if self.known[&volume].served.is_some() || self.known[&to].blocks.len() > VOLUME_BLOCKS_MAX as usize {
            return;
        }
        let (owner, snapshot) = (self.owner_of(volume).expect("there"), self.owner_of(to).expect("there"));
        self.plain.remove(&volume);
        if self.pool().rollback(owner, snapshot).is_ok() {
            self.count("rollbacks");
            self.note(|| format!("roll {volume} back to {to}"), u64::from(owner));
            let to = &self.known[&to];
            let (blocks, home, mut writers) = (frozen(to), to.home, to.writers.clone());
            let known = self.known.get_mut(&volume).expect("known");
            known.life = Life::Turning(blocks);
            known.home |= home;
            writers.append(&mut known.writers);
            known.writers = writers;
            self.ask(vec![volume], false);
        }
    }

    fn grow(&mut self, volume: Uuid) {
        let owner = self.owner_of(volume).expect("a volume that is there");
        let mut image = self.pool().state().owners.get(owner).expect("there").clone();
        let (had, more) = (self.known[&volume].blocks.len(), 1 + self.rng.below(150));
        if had as u64 + more > 2 * VOLUME_BLOCKS_MAX {
            return;
        }
        image.size_bytes += more * BLOCK;
        if self.pool().alter(owner, image).is_ok() {
            self.note(|| format!("grow {volume} by {more} blocks"), more);
            self.count(if self.known[&volume].served.is_some() { "growth in use" } else { "growth" });
            let known = self.known.get_mut(&volume).expect("known");
            known.had = Some(had);
            known.blocks.resize_with(had + more as usize, Block::default);
            self.ask(vec![volume], false);
        }
    }

    /// Makes a volume smaller that is served, or discards what stands in the way, for another time.
    fn shrink(&mut self, volume: Uuid) {
        let Known { served: Some(served), blocks, .. } = &self.known[&volume] else { return };
        let (served, had) = (*served, blocks.len());
        if had < 2 || self.jobs.iter().any(|job| job.served == served) {
            return;
        }
        let blocks = 1 + self.rng.below(had as u64 - 1);
        match self.pool().shrink(served, blocks * BLOCK) {
            Ok(()) => {
                self.note(|| format!("shrink {volume} to {blocks} blocks"), blocks);
                self.count("shrinking");
                let known = self.known.get_mut(&volume).expect("known");
                known.life = Life::Turning(known.blocks[..blocks as usize].to_vec());
                self.ask(vec![volume], false);
            }
            Err(AdminError::DataBeyond) => {
                let discarded = self.discard(volume, served, blocks, had as u64 - blocks);
                discarded.expect("it only fails where a check does");
            }
            Err(AdminError::LogFull) => {
                self.pool().request_commit();
            }
            Err(AdminError::InDoubt | AdminError::Damaged) => self.count("volumes refused"),
            Err(error) => unreachable!("a smaller size that is refused: {error}"),
        }
    }

    fn serve_or_leave(&mut self) {
        let all: Vec<Uuid> =
            self.known.values().filter(|known| matches!(known.life, Life::There)).map(|k| k.uuid).collect();
        if all.is_empty() {
            return;
        }
        let uuid = *self.rng.pick(&all);
        if self.busy(uuid) {
            return;
        }
        match self.known[&uuid].served {
            None => {
                let owner = self.owner_of(uuid).expect("what is there has an owner");
                let served = match self.pool().serve(owner) {
                    Ok(served) => served,
                    // Data of one of those whose blocks show through it are on their way.
                    Err(AdminError::LogFull) => return,
                    Err(error) => unreachable!("what is there and not served is refused: {error}"),
                };
                self.known.get_mut(&uuid).expect("known").served = Some(served);
                self.note(|| format!("serve {uuid} as {served:?}"), u64::from(served.0));
            }
            Some(served) => {
                if self.is_used(served) || self.rng.chance(600_000) {
                    return;
                }
                self.leave(uuid, served);
            }
        }
    }

    /// Whether somebody has something under way there.
    pub(super) fn is_used(&self, served: VolumeId) -> bool {
        self.jobs.iter().any(|job| job.served == served)
    }

    pub(super) fn leave(&mut self, uuid: Uuid, served: VolumeId) {
        self.known.get_mut(&uuid).expect("known").served = None;
        self.pool().stop_serving(served);
        self.note(|| format!("leave {uuid}"), u64::from(served.0));
    }

    fn ask(&mut self, what: Vec<Uuid>, drains: bool) {
        let wait = match drains {
            _ if is_planted(Bug::SnapshotNotCommitted) => Wait::Commit(0),
            true if !is_planted(Bug::SnapshotNotDrained) => Wait::Drain(self.jobs.iter().map(|job| job.id).collect()),
            _ => Wait::Commit(self.pool().request_commit()),
        };
        self.asked.push(Asked { what, wait });
    }

    pub(super) fn call_goes_on(&mut self, k: usize) -> bool {
        match &self.asked[k].wait {
            Wait::Drain(out) => {
                if !self.jobs.iter().any(|job| out.contains(&job.id)) {
                    let commit = self.pool().request_commit();
                    self.asked[k].wait = Wait::Commit(commit);
                }
                false
            }
            Wait::Commit(commit) => {
                let (commit, what) = (*commit, self.asked[k].what.clone());
                self.call_has_ended(commit, &what)
            }
        }
    }

    pub(super) fn end_call(&mut self, k: usize) {
        let asked = self.asked.swap_remove(k);
        if let Wait::Commit(commit) = asked.wait
            && self.pool().is_committed(commit).is_err()
        {
            // It may count after the next start, or not.
            self.count("calls failed");
            return;
        }
        for uuid in asked.what {
            let now = self.now;
            let known = self.known.get_mut(&uuid).expect("known");
            known.had = None;
            match std::mem::replace(&mut known.life, Life::There) {
                Life::Going => {
                    self.known.remove(&uuid);
                }
                Life::Turning(blocks) => known.blocks = blocks,
                Life::Coming(_) | Life::There => {
                    if known.of.is_some() {
                        // It is complete: what had begun has ended, and all of it is durable.
                        settle_snapshot(known);
                    }
                }
            }
            self.note(|| format!("acknowledged: {uuid}"), now);
        }
    }
}

/// The blocks of a snapshot, as those of a clone that begins with them.
fn frozen(known: &Known) -> Vec<Block> {
    known.blocks.clone()
}

/// A snapshot that was acknowledged: what it may show is settled and durable.
fn settle_snapshot(known: &mut Known) {
    let until = known.until;
    for block in &mut known.blocks {
        let allowed = block.admissible(until, Rule::Kill);
        // Overlapping writes may have come in either order, and one that never ended may be there or not: it stays as it was read first.
        block.0 = allowed.iter().map(|word| Change { word: *word, start: 0, end: Some(0), durable: true }).collect();
    }
    known.until = u64::MAX;
}
