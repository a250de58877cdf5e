//! What must be true of a pool, whatever has happened to it: who is there after a start, and whether what it counts is so.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::Uuid;
use braid_engine::pool::on_disk::OwnerKind;
use braid_engine::pool::{BLOCK_BYTES, BlockLocation, ExtentId, Pool, VolumeMap, usage};

use super::scene::{Life, Scene};
use crate::pools::World;

/// A volume or snapshot that is there.
#[derive(Clone, Debug)]
pub(super) struct Present {
    uuid: Uuid,
    /// The volume that it was taken of: a snapshot.
    of: Option<Uuid>,
    name: String,
    blocks: u64,
}

/// Those that are there.
pub(super) fn owners(pool: &Pool) -> Vec<Present> {
    let named = pool.state().owners.iter().filter(|o| matches!(o.kind, OwnerKind::Volume | OwnerKind::Snapshot));
    let present = named.map(|owner| Present {
        uuid: owner.uuid,
        of: (owner.kind == OwnerKind::Snapshot).then_some(owner.volume),
        name: owner.name.as_str().to_owned(),
        blocks: owner.size_bytes / BLOCK_BYTES,
    });
    present.collect()
}

impl Scene {
    /// After a start: everybody is there who has to be, with a name and a size that were asked for.
    pub fn judge_owners(&mut self, present: &[Present]) {
        if let Some(stranger) = present.iter().find(|owner| !self.known.contains_key(&owner.uuid)) {
            return self.wrong(|| format!("nobody has asked for {stranger:?}, or it was deleted"));
        }
        // What was asked for together counts together.
        let (mut came, mut lost) = (BTreeSet::new(), BTreeSet::new());
        let all: Vec<Uuid> = self.known.keys().copied().collect();
        for uuid in all {
            let found = present.iter().find(|owner| owner.uuid == uuid);
            let known = self.known.get_mut(&uuid).expect("listed just now");
            let Some(found) = found else {
                match known.life {
                    Life::Coming(group) => drop(lost.insert(group)),
                    Life::Going => {}
                    Life::There | Life::Turning(_) => {
                        let name = known.names[0].clone();
                        return self.wrong(|| format!("{name} is gone"));
                    }
                }
                self.known.remove(&uuid);
                continue;
            };
            if let Life::Coming(group) = known.life {
                came.insert(group);
            }
            let blocks = found.blocks as usize;
            // Which of two it is only reading would show: it may be either, block by block, until then.
            if let Life::Turning(other) = std::mem::replace(&mut known.life, Life::There) {
                if known.blocks.len() == other.len() {
                    known.blocks.iter_mut().zip(&other).for_each(|(is, would_be)| is.add(would_be));
                } else if other.len() == blocks {
                    known.blocks = other;
                }
            }
            if known.had.take() == Some(blocks) {
                known.blocks.truncate(blocks);
            }
            let why = if found.of != known.of {
                Some("is of another volume")
            } else if !known.names.contains(&found.name) {
                Some("has another name")
            } else if known.blocks.len() != blocks {
                Some("has another size")
            } else {
                None
            };
            let (names, size) = (known.names.clone(), known.blocks.len());
            known.names = vec![found.name.clone()];
            if let Some(why) = why {
                return self.wrong(|| format!("{found:?} {why}: {names:?}, {size} blocks"));
            }
        }
        if let Some(group) = came.intersection(&lost).next() {
            self.wrong(|| format!("of the snapshots that were asked for together, {group}, only some are there"));
        }
    }
}

/// What holds at any time at which no request is under way.
pub(super) fn verify(pool: &mut Pool) -> Result<(), String> {
    World::verify_records(pool)
}

/// What holds when nothing at all is under way: what everybody sees is counted once more, block by block.
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
        let is = places(pool, &pool.volume(id).expect("served").map, blocks);
        let should = places(pool, &pool.rebuild_map(id), blocks);
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
    // Those that somebody's next blocks go into are neither.
    let open =
        pool.state().members().flat_map(|(member, extents)| (0..extents).map(move |index| ExtentId { member, index }));
    let open = open.filter(|extent| pool.is_open(*extent) && pool.state().record((*extent).into()).owner == 0).count();
    if extents + free + open as u64 != raw {
        return Err(format!("of {raw} extents {extents} are somebody's, {free} free and {open} open"));
    }
    Ok(())
}

/// Where each block is.
fn places(pool: &Pool, map: &VolumeMap, blocks: u64) -> Vec<Option<(ExtentId, u32)>> {
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
