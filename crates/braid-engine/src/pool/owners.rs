//! The owners of a pool: volumes, snapshots, and deleted ones, which stay without a name until their blocks are merged
//! into a child or freed.

use std::collections::BTreeMap;

use braid_format::pool::{Owner, OwnerKind};

/// The number of an owner, from 1. Never reused.
pub type OwnerId = u32;

/// All owners, as of the last change, committed or not.
pub struct Owners {
    slots: Vec<Option<Owner>>,
    by_id: BTreeMap<OwnerId, u32>,
    next_id: OwnerId,
}

impl Owners {
    /// Returns an empty table of `slots` slots.
    pub fn new(slots: u32) -> Owners {
        Owners { slots: vec![None; slots as usize], by_id: BTreeMap::new(), next_id: 1 }
    }

    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the owner in a slot.
    pub fn in_slot(&self, slot: u32) -> Option<&Owner> {
        self.slots[slot as usize].as_ref()
    }

    /// Returns the owner with this number.
    pub fn get(&self, id: OwnerId) -> Option<&Owner> {
        self.by_id.get(&id).and_then(|slot| self.slots[*slot as usize].as_ref())
    }

    /// Returns the slot of an owner.
    pub fn slot_of(&self, id: OwnerId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Returns how many slots are free.
    pub fn free_slots(&self) -> u32 {
        self.slots() - self.by_id.len() as u32
    }

    /// Returns the next number, which no owner ever had.
    pub fn next_id(&self) -> OwnerId {
        self.next_id
    }

    /// Returns the first `count` free slots; `None` if there are fewer.
    pub fn find_free(&self, count: usize) -> Option<Vec<u32>> {
        let free: Vec<u32> =
            (0..self.slots()).filter(|slot| self.slots[*slot as usize].is_none()).take(count).collect();
        (free.len() == count).then_some(free)
    }

    /// Sets the owner in a slot.
    pub fn put(&mut self, slot: u32, owner: Option<Owner>) {
        if let Some(old) = self.slots[slot as usize].take() {
            self.by_id.remove(&old.id);
        }
        if let Some(owner) = &owner {
            self.next_id = self.next_id.max(owner.id + 1);
            self.by_id.insert(owner.id, slot);
        }
        self.slots[slot as usize] = owner;
    }

    /// Returns all owners, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Owner> {
        self.by_id.values().filter_map(|slot| self.slots[*slot as usize].as_ref())
    }

    /// Returns the owners whose parent this is.
    pub fn children(&self, id: OwnerId) -> Vec<OwnerId> {
        self.iter().filter(|owner| owner.parent == id).map(|owner| owner.id).collect()
    }

    /// Returns the owner and the ancestors whose blocks show through it, nearest first.
    pub fn chain(&self, id: OwnerId) -> Vec<OwnerId> {
        std::iter::successors(Some(id).filter(|id| *id != 0), |id| {
            self.get(*id).map(|owner| owner.parent).filter(|parent| *parent != 0)
        })
        .collect()
    }

    /// Returns whether this is the highest number that was given out. Its owner keeps its slot until a higher number
    /// exists, so that numbers are never reused.
    pub fn is_newest(&self, id: OwnerId) -> bool {
        id + 1 == self.next_id
    }

    /// Returns the deleted owners with at most one child: they can be merged into it, or freed.
    pub fn mergeable(&self) -> impl Iterator<Item = OwnerId> + '_ {
        let ends = |owner: &&Owner| matches!(owner.kind, OwnerKind::Nameless | OwnerKind::Deleting);
        let few = |owner: &&Owner| self.children(owner.id).len() <= 1;
        self.iter().filter(ends).filter(few).map(|owner| owner.id)
    }
}
