//! Invariants of a pool that hold whatever has happened to it: the owners after a start, and the counts at rest.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::Uuid;
use braid_engine::pool::on_disk::OwnerKind;
use braid_engine::pool::{BLOCK_BYTES, BlockLocation, ExtentId, Pool, VolumeMap, usage};

use super::shared_state::{Lifecycle, SharedState};
use crate::pools::World;

/// A volume or snapshot that exists.
#[derive(Clone, Debug)]
pub(super) struct PresentOwner {
    uuid: Uuid,
    /// The volume that the snapshot was taken of; `None`: a volume.
    snapshot_of: Option<Uuid>,
    name: String,
    blocks: u64,
}

/// Returns the volumes and snapshots that exist.
pub(super) fn owners(pool: &Pool) -> Vec<PresentOwner> {
    let named = pool.state().owners.iter().filter(|o| matches!(o.kind, OwnerKind::Volume | OwnerKind::Snapshot));
    let present = named.map(|owner| PresentOwner {
        uuid: owner.uuid,
        snapshot_of: (owner.kind == OwnerKind::Snapshot).then_some(owner.volume),
        name: owner.name.as_str().to_owned(),
        blocks: owner.size_bytes / BLOCK_BYTES,
    });
    present.collect()
}

impl SharedState {
    /// Checks the owners after a start: every owner that must exist exists, with a name and a size that were requested.
    pub fn check_owners(&mut self, present: &[PresentOwner]) {
        if let Some(stranger) = present.iter().find(|owner| !self.models.contains_key(&owner.uuid)) {
            return self.set_violation(|| format!("nobody has asked for {stranger:?}, or it was deleted"));
        }
        // Objects that were requested together take effect together.
        let (mut came, mut lost) = (BTreeSet::new(), BTreeSet::new());
        let all: Vec<Uuid> = self.models.keys().copied().collect();
        for uuid in all {
            let found = present.iter().find(|owner| owner.uuid == uuid);
            let model = self.models.get_mut(&uuid).expect("listed just now");
            let Some(found) = found else {
                match model.lifecycle {
                    Lifecycle::Creating(group) => drop(lost.insert(group)),
                    Lifecycle::Deleting => {}
                    Lifecycle::Exists | Lifecycle::Changing(_) => {
                        let name = model.names[0].clone();
                        return self.set_violation(|| format!("{name} is gone"));
                    }
                }
                self.models.remove(&uuid);
                continue;
            };
            if let Lifecycle::Creating(group) = model.lifecycle {
                came.insert(group);
            }
            let blocks = found.blocks as usize;
            // Only a read would show which of the two contents is in effect. Until then each block may be either.
            if let Lifecycle::Changing(other) = std::mem::replace(&mut model.lifecycle, Lifecycle::Exists) {
                if model.blocks.len() == other.len() {
                    model.blocks.iter_mut().zip(&other).for_each(|(is, would_be)| is.add(would_be));
                } else if other.len() == blocks {
                    model.blocks = other;
                }
            }
            if model.blocks_before.take() == Some(blocks) {
                model.blocks.truncate(blocks);
            }
            let why = if found.snapshot_of != model.snapshot_of {
                Some("is of another volume")
            } else if !model.names.contains(&found.name) {
                Some("has another name")
            } else if model.blocks.len() != blocks {
                Some("has another size")
            } else {
                None
            };
            let (names, size) = (model.names.clone(), model.blocks.len());
            model.names = vec![found.name.clone()];
            if let Some(why) = why {
                return self.set_violation(|| format!("{found:?} {why}: {names:?}, {size} blocks"));
            }
        }
        if let Some(group) = came.intersection(&lost).next() {
            self.set_violation(|| {
                format!("of the snapshots that were asked for together, {group}, only some are there")
            });
        }
    }
}

/// Verifies what holds whenever no request is in flight.
pub(super) fn verify(pool: &mut Pool) -> Result<(), String> {
    World::verify_records(pool)
}

/// Verifies what holds at rest: the exclusive blocks of each owner are recounted, block by block.
pub(super) fn verify_settled(pool: &mut Pool) -> Result<(), String> {
    verify(pool)?;
    let all: Vec<(u32, u64)> = {
        let named = pool.state().owners.iter().filter(|o| matches!(o.kind, OwnerKind::Volume | OwnerKind::Snapshot));
        named.map(|owner| (owner.id, owner.size_bytes / BLOCK_BYTES)).collect()
    };
    let mut seen: BTreeMap<(ExtentId, u32), BTreeSet<u32>> = BTreeMap::new();
    for (owner, blocks) in all {
        let served = pool.served(owner);
        let id = match served {
            Some(id) => id,
            None => pool.serve(owner).map_err(|error| format!("owner {owner} cannot be served: {error}"))?,
        };
        let is = locations(pool, &pool.volume(id).expect("served").map, blocks);
        let should = locations(pool, &pool.rebuild_map(id), blocks);
        if let Some((block, (is, should))) = (0..).zip(is.iter().zip(&should)).find(|(_, (is, should))| is != should) {
            let block: u64 = block;
            return Err(format!("the map has block {block} of owner {owner} at {is:?}, the records at {should:?}"));
        }
        for place in is.into_iter().flatten() {
            seen.entry(place).or_default().insert(owner);
        }
        if served.is_none() {
            pool.stop_serving(id);
        }
    }
    let mut exclusive: BTreeMap<u32, u64> = BTreeMap::new();
    for owners in seen.values().filter(|owners| owners.len() == 1) {
        *exclusive.entry(*owners.first().expect("one")).or_default() += 1;
    }
    let usage = usage(pool.state());
    for (owner, usage) in &usage {
        let counted = exclusive.get(owner).copied().unwrap_or(0);
        if usage.exclusive_blocks != counted {
            let says = usage.exclusive_blocks;
            return Err(format!(
                "owner {owner} has {counted} blocks that nobody else sees, and is said to have {says}"
            ));
        }
    }
    let extents: u64 = usage.values().map(|usage| usage.extents).sum();
    let raw: u64 = pool.state().members().map(|(_, extents)| u64::from(extents)).sum();
    let free = pool.free_extents();
    // Open extents that have no owner yet are neither used nor free.
    let open =
        pool.state().members().flat_map(|(member, extents)| (0..extents).map(move |index| ExtentId { member, index }));
    let open = open.filter(|extent| pool.is_open(*extent) && pool.state().record((*extent).into()).owner == 0).count();
    if extents + free + open as u64 != raw {
        return Err(format!("of {raw} extents {extents} are somebody's, {free} free and {open} open"));
    }
    Ok(())
}

/// Returns the location of each block.
fn locations(pool: &Pool, map: &VolumeMap, blocks: u64) -> Vec<Option<(ExtentId, u32)>> {
    let mut all = Vec::with_capacity(blocks as usize);
    while (all.len() as u64) < blocks {
        let at = all.len() as u64;
        match map.find(&pool.shared().records, at, (blocks - at).min(64) as u32) {
            BlockLocation::Nothing { blocks } => all.extend((0..blocks).map(|_| None)),
            BlockLocation::At { extent, position, blocks } => {
                all.extend((position..position + blocks).map(|position| Some((extent, position))));
            }
        }
    }
    all
}
