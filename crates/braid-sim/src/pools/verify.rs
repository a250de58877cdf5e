//! Invariants of a pool that hold whatever has happened to it.

use std::collections::BTreeMap;

use braid_engine::pool::{BlockLocation, ExtentId, LOGICAL_PACKED, NO_BLOCK, Pool, RecordId};
use braid_format::pool::RecordKind;

use super::world::{Check, World};

impl World {
    /// Recounts the records, and compares every served map with one that is rebuilt from the records.
    pub(super) fn verify_all(&mut self) -> Check {
        self.count("verified");
        World::verify_records(self.pool.as_ref().expect("open"))?;
        self.verify_maps()
    }

    /// Verifies a pool at rest: an extent that holds nothing is free.
    pub(super) fn verify_at_rest(&mut self) -> Check {
        let pool = self.pool.as_ref().expect("open");
        let state = pool.state();
        for (member, extents) in state.members() {
            for index in 0..extents {
                let id = RecordId { member, index };
                let record = state.record(id);
                if record.kind != RecordKind::Free
                    && record.present | record.zero == 0
                    && !pool.is_open(ExtentId { member, index })
                {
                    return Err(format!("{id:?} holds nothing, and is still of owner {}", record.owner));
                }
            }
        }
        self.verify_all()
    }

    /// Recounts the records and checks their invariants.
    pub(crate) fn verify_records(pool: &Pool) -> Check {
        let state = pool.state();
        for owner in state.owners.iter() {
            if let Some((id, _)) = state.zeros_of(owner.id).find(|(id, _)| owner.block_members() >> id.member & 1 == 0)
            {
                return Err(format!("{id:?} is of owner {}, who says that it has nothing there", owner.id));
            }
        }
        // No owner states a block twice.
        let mut stated: BTreeMap<(u32, u64), RecordId> = BTreeMap::new();
        for (member, extents) in state.members() {
            for index in 0..extents {
                let id = RecordId { member, index };
                let record = state.record(id);
                if record.kind == RecordKind::Free {
                    continue;
                }
                let Some(owner) = state.owners.get(record.owner) else {
                    return Err(format!("{id:?} is of owner {}, who is nobody", record.owner));
                };
                if owner.block_members() >> member & 1 == 0 {
                    return Err(format!("{id:?} is of owner {}, who says that it has nothing there", record.owner));
                }
                if record.present & record.zero != 0 {
                    return Err(format!("{id:?} says of blocks that they are there and zeros"));
                }
                for bit in (0..64u64).filter(|bit| record.present >> bit & 1 == 1) {
                    let block = match record.logical {
                        LOGICAL_PACKED => state.addresses(id).expect("packed").0[bit as usize],
                        logical => u64::from(logical) * 64 + bit,
                    };
                    // The address of the slot is damaged.
                    if block == NO_BLOCK {
                        continue;
                    }
                    if let Some(other) = stated.insert((record.owner, block), id) {
                        return Err(format!("owner {} has block {block} in {other:?} and in {id:?}", record.owner));
                    }
                }
            }
        }
        match pool.recount() {
            Ok(()) => Ok(()),
            Err(why) => Err(why),
        }
    }

    /// Prints every record that mentions a block.
    pub(super) fn dump(&self, block: u64) {
        let state = self.pool.as_ref().expect("open").state();
        for owner in state.owners.iter() {
            println!("owner {} {:?} parent {} {}", owner.id, owner.kind, owner.parent, owner.name);
        }
        for (member, extents) in state.members() {
            for index in 0..extents + state.zero_slots(member) {
                let id = RecordId { member, index };
                let record = state.record(id);
                let addressed = state.addresses(id).is_some_and(|addresses| {
                    (0..64).any(|slot| record.present >> slot & 1 == 1 && addresses.0[slot] == block)
                });
                if record.kind != RecordKind::Free && u64::from(record.logical) == block / 64 || addressed {
                    println!(
                        "{id:?} {:?} owner {} present {:x} zero {:x}",
                        record.kind, record.owner, record.present, record.zero
                    );
                }
            }
        }
    }

    fn verify_maps(&self) -> Check {
        let pool = self.pool.as_ref().expect("open");
        let records = &pool.shared().records;
        for model in self.models.values() {
            let Some(served) = model.served else { continue };
            let map = &pool.volume(served).expect("served").map;
            let built = pool.rebuild_map(served);
            let place = |map: &braid_engine::pool::VolumeMap, block: u64| -> Option<(ExtentId, u32)> {
                match map.find(records, block, 1) {
                    BlockLocation::Nothing { .. } => None,
                    BlockLocation::At { extent, position, .. } => Some((extent, position)),
                }
            };
            for block in 0..model.blocks.len() as u64 {
                let (is, should) = (place(map, block), place(&built, block));
                if is != should {
                    return Err(format!(
                        "the map has block {block} of {} at {is:?}, the records at {should:?}",
                        model.name
                    ));
                }
            }
        }
        Ok(())
    }
}
