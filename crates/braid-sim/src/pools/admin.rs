//! Administration: volumes, snapshots and clones are created, grown, shrunk, rolled back and deleted. Each call waits
//! for its drain and its commit.

use braid_engine::Uuid;
use braid_engine::pool::{AdminError, MergeStep, VolumeId};
use braid_format::pool::{AllocationPolicy, Owner, OwnerKind, OwnerName};

use super::bugs::{Bug, is_active};
use super::in_progress::{PendingCall, Wait};
use super::oracle::{Block, Change, Rule};
use super::parameters::Moment;
use super::world::{BLOCK, Lifecycle, VOLUME_BLOCKS_MAX, VolumeModel, World};

impl World {
    pub(super) fn merge_some(&mut self) {
        let records = 1 + self.rng.below(40) as u32;
        match self.merge_step(records) {
            MergeStep::Nothing | MergeStep::Later => {}
            MergeStep::Some => {
                self.count("folds");
                self.note_moment(Moment::Merged);
            }
            MergeStep::LogFull => {
                self.pool().request_commit();
            }
        }
    }

    pub(super) fn is_busy(&self, uuid: Uuid) -> bool {
        self.calls.iter().any(|call| call.uuids.contains(&uuid))
    }

    pub(super) fn owner_of(&self, uuid: Uuid) -> Option<u32> {
        let owners = &self.pool.as_ref().expect("open").state().owners;
        owners.iter().find(|owner| owner.uuid == uuid && owner.kind != OwnerKind::Nameless).map(|owner| owner.id)
    }

    pub(super) fn administer(&mut self) {
        if self.calls.len() > 2 {
            return;
        }
        let ready = |model: &&VolumeModel| {
            matches!(model.lifecycle, Lifecycle::Exists) && model.blocks_before.is_none() && !self.is_busy(model.uuid)
        };
        let volumes: Vec<Uuid> =
            self.models.values().filter(|k| k.snapshot_of.is_none()).filter(ready).map(|k| k.uuid).collect();
        let snapshots: Vec<Uuid> =
            self.models.values().filter(|k| k.snapshot_of.is_some()).filter(ready).map(|k| k.uuid).collect();
        match self.rng.below(20) {
            0..2 if volumes.len() < 4 => self.create(None),
            2 if !snapshots.is_empty() && volumes.len() < 5 => {
                let of = *self.rng.pick(&snapshots);
                self.create(Some(of));
            }
            3..9 if !volumes.is_empty() && self.models.len() < 16 => self.take_snapshot(&volumes),
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
                let most = if self.parameters.few_blocks { VOLUME_BLOCKS_MAX / 6 } else { VOLUME_BLOCKS_MAX };
                let count = 1 + self.rng.below(most);
                (None, vec![Block::default(); count as usize])
            }
            Some(of) => {
                let from = &self.models[&of];
                let blocks = clone_blocks(from);
                (self.owner_of(of), blocks)
            }
        };
        let (policy, on) = self.draw_policy();
        let thick = self.parameters.thick > 0 && self.rng.below(100) < self.parameters.thick;
        let own = if policy == AllocationPolicy::Spread { u128::MAX } else { on };
        let member_mask = own | of.map_or(0, |of| self.models[&of].member_mask);
        let mut writers = of.map_or(Vec::new(), |of| self.models[&of].writers.clone());
        writers.push(self.names as u16);
        let owner = Owner {
            id: 1,
            kind: OwnerKind::Volume,
            allocation: policy,
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
            Err(AdminError::InDoubt | AdminError::Damaged) if self.missing_mask() | self.rotten != 0 => {
                self.count("volumes refused")
            }
            Err(AdminError::NoSpace) if thick => self.count("thick volumes refused"),
            Err(error) => unreachable!("a volume that is refused: {error}"),
            Ok(_) => {
                self.note(|| format!("create {name}, of {of:?}"), self.names);
                self.count(if of.is_some() { "clones" } else { "volumes" });
                if thick && of.is_none() {
                    self.count("thick volumes");
                    self.never_snapshotted.insert(uuid);
                }
                let (until, lifecycle) = (u64::MAX, Lifecycle::Creating(self.names));
                let (snapshot_of, blocks_before, served) = (None, None, None);
                let model = VolumeModel {
                    name,
                    uuid,
                    snapshot_of,
                    blocks,
                    writers,
                    member_mask,
                    until,
                    lifecycle,
                    blocks_before,
                    served,
                };
                self.models.insert(uuid, model);
                self.add_call(vec![uuid], false);
            }
        }
    }

    /// Draws an allocation policy and the members that a volume may use.
    pub(super) fn draw_policy(&mut self) -> (AllocationPolicy, u128) {
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
            let VolumeModel { blocks, writers, member_mask, .. } = self.models[volume].clone();
            let (snapshot_of, blocks_before, served) = (Some(*volume), None, None);
            let (until, lifecycle) = (self.now, Lifecycle::Creating(group));
            new.push(VolumeModel {
                name,
                uuid,
                snapshot_of,
                blocks,
                writers,
                member_mask,
                until,
                lifecycle,
                blocks_before,
                served,
            });
        }
        self.never_snapshotted.retain(|volume| !which.contains(volume));
        match self.pool().snapshot(&what, 0) {
            Err(_) => {
                self.pool().request_commit();
            }
            Ok(_) => {
                self.count(if new.len() > 1 { "snapshots of several volumes" } else { "snapshots" });
                self.note(|| format!("snapshot {what:?}"), what.len() as u64);
                let uuids = new.iter().map(|model| model.uuid).collect();
                new.into_iter().for_each(|model| {
                    self.models.insert(model.uuid, model);
                });
                self.now += 1;
                self.add_call(uuids, true);
            }
        }
    }

    pub(super) fn delete(&mut self, uuid: Uuid) {
        if self.models[&uuid].served.is_some() {
            return;
        }
        let is_snapshot = self.models[&uuid].snapshot_of.is_some();
        let owner = self.owner_of(uuid).expect("what is there has an owner");
        let newest = self.pool().state().owners.is_newest(owner);
        let result = match is_snapshot {
            true => self.pool().delete_snapshot(owner),
            false => self.pool().delete_volume(owner),
        };
        if result.is_ok() {
            self.count(if newest { "deletions of the newest" } else { "deletions" });
            self.note(|| format!("delete {uuid}, owner {owner}"), u64::from(owner));
            self.models.get_mut(&uuid).expect("known").lifecycle = Lifecycle::Deleting;
            self.add_call(vec![uuid], false);
        }
    }

    pub(super) fn roll_back(&mut self, volume: Uuid, to: Uuid) {
        if self.models[&volume].served.is_some() || self.models[&to].blocks.len() > VOLUME_BLOCKS_MAX as usize {
            return;
        }
        let (owner, snapshot) = (self.owner_of(volume).expect("there"), self.owner_of(to).expect("there"));
        self.never_snapshotted.remove(&volume);
        if self.pool().rollback(owner, snapshot).is_ok() {
            self.count("rollbacks");
            self.note(|| format!("roll {volume} back to {to}"), u64::from(owner));
            let to = &self.models[&to];
            let (blocks, member_mask, mut writers) = (clone_blocks(to), to.member_mask, to.writers.clone());
            let model = self.models.get_mut(&volume).expect("known");
            model.lifecycle = Lifecycle::Changing(blocks);
            model.member_mask |= member_mask;
            writers.append(&mut model.writers);
            model.writers = writers;
            self.add_call(vec![volume], false);
        }
    }

    fn grow(&mut self, volume: Uuid) {
        let owner = self.owner_of(volume).expect("a volume that is there");
        let mut image = self.pool().state().owners.get(owner).expect("there").clone();
        let (blocks_before, more) = (self.models[&volume].blocks.len(), 1 + self.rng.below(150));
        if blocks_before as u64 + more > 2 * VOLUME_BLOCKS_MAX {
            return;
        }
        image.size_bytes += more * BLOCK;
        if self.pool().alter(owner, image).is_ok() {
            self.note(|| format!("grow {volume} by {more} blocks"), more);
            self.count(if self.models[&volume].served.is_some() { "growth in use" } else { "growth" });
            let model = self.models.get_mut(&volume).expect("known");
            model.blocks_before = Some(blocks_before);
            model.blocks.resize_with(blocks_before + more as usize, Block::default);
            self.add_call(vec![volume], false);
        }
    }

    /// Shrinks a volume that is served, or discards the data beyond the new size so that a later attempt succeeds.
    fn shrink(&mut self, volume: Uuid) {
        let VolumeModel { served: Some(served), blocks, .. } = &self.models[&volume] else { return };
        let (served, blocks_before) = (*served, blocks.len());
        if blocks_before < 2 || self.jobs.iter().any(|job| job.served == served) {
            return;
        }
        let blocks = 1 + self.rng.below(blocks_before as u64 - 1);
        match self.pool().shrink(served, blocks * BLOCK) {
            Ok(()) => {
                self.note(|| format!("shrink {volume} to {blocks} blocks"), blocks);
                self.count("shrinking");
                let model = self.models.get_mut(&volume).expect("known");
                model.lifecycle = Lifecycle::Changing(model.blocks[..blocks as usize].to_vec());
                self.add_call(vec![volume], false);
            }
            Err(AdminError::DataBeyond) => {
                let discarded = self.discard(volume, served, blocks, blocks_before as u64 - blocks);
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
            self.models.values().filter(|model| matches!(model.lifecycle, Lifecycle::Exists)).map(|k| k.uuid).collect();
        if all.is_empty() {
            return;
        }
        let uuid = *self.rng.pick(&all);
        if self.is_busy(uuid) {
            return;
        }
        match self.models[&uuid].served {
            None => {
                let owner = self.owner_of(uuid).expect("what is there has an owner");
                let served = match self.pool().serve(owner) {
                    Ok(served) => served,
                    // Data are in flight to a volume whose blocks are visible through this one.
                    Err(AdminError::LogFull) => return,
                    Err(error) => unreachable!("what is there and not served is refused: {error}"),
                };
                self.models.get_mut(&uuid).expect("known").served = Some(served);
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

    /// Returns whether a request to the volume is in flight.
    pub(super) fn is_used(&self, served: VolumeId) -> bool {
        self.jobs.iter().any(|job| job.served == served)
    }

    pub(super) fn leave(&mut self, uuid: Uuid, served: VolumeId) {
        self.models.get_mut(&uuid).expect("known").served = None;
        self.pool().stop_serving(served);
        self.note(|| format!("leave {uuid}"), u64::from(served.0));
    }

    fn add_call(&mut self, uuids: Vec<Uuid>, drains: bool) {
        let wait = match drains {
            _ if is_active(Bug::SnapshotNotCommitted) => Wait::Commit(0),
            true if !is_active(Bug::SnapshotNotDrained) => Wait::Drain(self.jobs.iter().map(|job| job.id).collect()),
            _ => Wait::Commit(self.pool().request_commit()),
        };
        self.calls.push(PendingCall { uuids, wait });
    }

    pub(super) fn advance_call(&mut self, k: usize) -> bool {
        match &self.calls[k].wait {
            Wait::Drain(in_flight) => {
                if !self.jobs.iter().any(|job| in_flight.contains(&job.id)) {
                    let commit = self.pool().request_commit();
                    self.calls[k].wait = Wait::Commit(commit);
                }
                false
            }
            Wait::Commit(commit) => {
                let (commit, uuids) = (*commit, self.calls[k].uuids.clone());
                self.call_has_ended(commit, &uuids)
            }
        }
    }

    pub(super) fn end_call(&mut self, k: usize) {
        let call = self.calls.swap_remove(k);
        if let Wait::Commit(commit) = call.wait
            && self.pool().is_committed(commit).is_err()
        {
            // The change may be in effect after the next start, or not.
            self.count("calls failed");
            return;
        }
        for uuid in call.uuids {
            let now = self.now;
            let model = self.models.get_mut(&uuid).expect("known");
            model.blocks_before = None;
            match std::mem::replace(&mut model.lifecycle, Lifecycle::Exists) {
                Lifecycle::Deleting => {
                    self.models.remove(&uuid);
                }
                Lifecycle::Changing(blocks) => model.blocks = blocks,
                Lifecycle::Creating(_) | Lifecycle::Exists => {
                    if model.snapshot_of.is_some() {
                        // The snapshot is complete: the writes that had begun before it have ended and are durable.
                        settle_snapshot(model);
                    }
                }
            }
            self.note(|| format!("acknowledged: {uuid}"), now);
        }
    }
}

/// Returns the blocks of a snapshot as the initial blocks of a clone.
fn clone_blocks(model: &VolumeModel) -> Vec<Block> {
    model.blocks.clone()
}

/// Settles an acknowledged snapshot: every admissible content is final and durable.
fn settle_snapshot(model: &mut VolumeModel) {
    let until = model.until;
    for block in &mut model.blocks {
        let allowed = block.admissible(until, Rule::Kill);
        // Overlapping writes may have executed in either order, and a write that never ended may have happened or not.
        // The first read decides which content stays.
        block.0 = allowed.iter().map(|word| Change { word: *word, start: 0, end: Some(0), durable: true }).collect();
    }
    model.until = u64::MAX;
}
