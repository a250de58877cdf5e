//! Volumes and snapshots come, change their names and go: each is one group of entries, which counts together or not at all. Whoever
//! asks is answered when it is committed; a snapshot also only when everything that had begun before it has ended.

use braid_format::Uuid;
use braid_format::pool::{Change, Owner, OwnerKind, OwnerName, Placing};

use super::home::{Pool, VolumeId, mask};
use super::map::MapWriter;
use super::owners::OwnerId;
use super::units::{BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES, ExtentId};
use crate::planted::{Planted, planted};

/// Why an administrative call cannot be carried out. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdminError {
    /// There is none of this number.
    #[error("there is no such volume or snapshot")]
    NoSuch,
    /// All places for owners are taken.
    #[error("the pool has no place for a further volume or snapshot")]
    NoPlace,
    /// Changes have to be committed first.
    #[error("the pool has to commit first")]
    TailFull,
    /// It is served.
    #[error("it is in use")]
    InUse,
    /// A volume with this name, or a snapshot with this name of the same volume, is there already.
    #[error("the name is taken")]
    NameTaken,
    /// The volume has snapshots.
    #[error("it has snapshots")]
    HasSnapshots,
    /// Snapshots cannot be changed so.
    #[error("it is a snapshot")]
    IsSnapshot,
    /// Only a snapshot can be used so.
    #[error("it is no snapshot")]
    NoSnapshot,
    /// A member is absent that may have blocks of it: nobody knows all that it has.
    #[error("a member is absent on which it may have blocks")]
    InDoubt,
    /// The owner numbers are used up, or what is said of the volume makes no sense: its size, its name, its identity.
    #[error("the pool has no number for it, or its size, name or identity makes no sense")]
    NoNumber,
}

/// Blocks of a volume's map for so many bytes.
pub(super) fn extents_for(bytes: u64) -> u32 {
    bytes.div_ceil(EXTENT_BYTES) as u32
}

impl Pool {
    fn name_is_free(&self, kind: OwnerKind, volume: Uuid, name: OwnerName) -> bool {
        !self.state.owners.iter().any(|owner| owner.kind == kind && owner.volume == volume && owner.name == name)
    }

    fn put(&self, slot: u32, owner: Owner) -> (u8, u32, Change) {
        (0, slot, Change::Owner { owner: Some(owner) })
    }

    fn slot_of(&self, id: OwnerId) -> Result<(u32, Owner), AdminError> {
        let slot = self.state.owners.slot_of(id).ok_or(AdminError::NoSuch)?;
        Ok((slot, self.state.owners.in_slot(slot).expect("listed by its slot").clone()))
    }

    /// Adds a volume, empty, or with what its parent has (a snapshot: a clone). Its number and parent are those given here.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub fn create_volume(&mut self, parent: Option<OwnerId>, mut owner: Owner) -> Result<OwnerId, AdminError> {
        if !self.name_is_free(OwnerKind::Volume, Uuid::nil(), owner.name) {
            return Err(AdminError::NameTaken);
        }
        if let Some(parent) = parent {
            let (_, of) = self.slot_of(parent)?;
            if of.kind != OwnerKind::Snapshot {
                return Err(AdminError::NoSnapshot);
            }
            if self.awaits_data(parent) {
                return Err(AdminError::TailFull);
            }
            // What lies beyond a smaller size would show through when the clone grows.
            owner.size_bytes = owner.size_bytes.max(of.size_bytes);
        }
        // Whatever it is: nobody could read it, or write to it, before the member is back.
        if owner.may_be_on() & self.state.absent != 0 {
            return Err(AdminError::InDoubt);
        }
        let slot = self.state.owners.find_free(1).ok_or(AdminError::NoPlace)?[0];
        if !self.tail.has_room(8) {
            return Err(AdminError::TailFull);
        }
        owner.id = self.state.owners.next_id();
        owner.parent = parent.unwrap_or(0);
        owner.also_on = 0;
        (owner.kind, owner.volume) = (OwnerKind::Volume, Uuid::nil());
        if !owner.is_sound() {
            return Err(AdminError::NoNumber);
        }
        let id = owner.id;
        self.change(&[self.put(slot, owner)]);
        Ok(id)
    }

    /// Takes snapshots of volumes, all at one instant: the owners that the volumes have had become the snapshots, and the volumes go on
    /// under new ones. Each with the snapshot's identity and name, and the time in seconds since 1970. Returns the snapshots' numbers.
    ///
    /// Acknowledge it only when a barrier has ended that began after this, and a commit.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub fn snapshot(
        &mut self,
        what: &[(OwnerId, Uuid, OwnerName)],
        now_unix_s: u64,
    ) -> Result<Vec<OwnerId>, AdminError> {
        let twice = |k: usize| what[..k].iter().any(|(id, ..)| *id == what[k].0);
        if (0..what.len()).any(twice) {
            return Err(AdminError::NameTaken);
        }
        // More at one instant than the tail could ever hold.
        if what.len() as u64 * 10 > self.tail.capacity() / 2 {
            return Err(AdminError::NoPlace);
        }
        let slots = self.state.owners.find_free(what.len()).ok_or(AdminError::NoPlace)?;
        if !self.tail.has_room(what.len() as u64 * 10) {
            return Err(AdminError::TailFull);
        }
        let mut changes = Vec::with_capacity(2 * what.len());
        let mut switched = Vec::new();
        for (next, ((id, uuid, name), new_slot)) in (self.state.owners.next_id()..).zip(what.iter().zip(slots)) {
            let (slot, volume) = self.slot_of(*id)?;
            if volume.kind != OwnerKind::Volume {
                return Err(AdminError::IsSnapshot);
            }
            // Nobody could tell that it has nothing yet under its new owner.
            if self.state.may_lack(*id) {
                return Err(AdminError::InDoubt);
            }
            if !self.name_is_free(OwnerKind::Snapshot, volume.uuid, *name) {
                return Err(AdminError::NameTaken);
            }
            let goes_on = Owner { id: next, parent: *id, also_on: 0, ..volume.clone() };
            let snapshot = Owner {
                kind: OwnerKind::Snapshot,
                uuid: *uuid,
                volume: volume.uuid,
                name: *name,
                created_unix_s: now_unix_s,
                policy: None,
                ..volume
            };
            // The snapshot keeps the place in the list, and the number, that its blocks name.
            changes.push(self.put(slot, snapshot));
            changes.push(self.put(new_slot, goes_on));
            switched.push((*id, next));
        }
        self.change(&changes);
        let served: Vec<_> = switched.iter().filter_map(|(old, new)| Some((self.served(*old)?, *new))).collect();
        self.switch(&served);
        for (old, _) in &switched {
            self.close_packed(*old);
        }
        Ok(what.iter().map(|(id, ..)| *id).collect())
    }

    /// The volume that is served under this owner now.
    pub fn served(&self, owner: OwnerId) -> Option<VolumeId> {
        self.volumes.iter().find(|(_, volume)| volume.owner == owner).map(|(id, _)| *id)
    }

    /// Deletes a snapshot: what it has goes to what comes after it, little by little ([`Pool::fold_step`]).
    ///
    /// # Errors
    /// See [`AdminError`].
    pub fn delete_snapshot(&mut self, id: OwnerId) -> Result<(), AdminError> {
        let (slot, owner) = self.slot_of(id)?;
        if owner.kind != OwnerKind::Snapshot {
            return Err(AdminError::NoSnapshot);
        }
        self.delete(id, slot, owner)
    }

    /// Deletes a volume that has no snapshots.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub fn delete_volume(&mut self, id: OwnerId) -> Result<(), AdminError> {
        let (slot, owner) = self.slot_of(id)?;
        if owner.kind != OwnerKind::Volume {
            return Err(AdminError::IsSnapshot);
        }
        if self.state.owners.iter().any(|other| other.kind == OwnerKind::Snapshot && other.volume == owner.uuid) {
            return Err(AdminError::HasSnapshots);
        }
        self.delete(id, slot, owner)
    }

    fn delete(&mut self, id: OwnerId, slot: u32, mut owner: Owner) -> Result<(), AdminError> {
        if self.served(id).is_some() {
            return Err(AdminError::InUse);
        }
        if self.state.may_lack(id) {
            return Err(AdminError::InDoubt);
        }
        if !self.tail.has_room(5) || self.awaits_data(id) {
            return Err(AdminError::TailFull);
        }
        (owner.kind, owner.name, owner.policy) = (OwnerKind::Nameless, OwnerName::NONE, None);
        let sequence = self.change(&[self.put(slot, owner)]);
        self.deleted.push((sequence, id));
        if planted(Planted::FoldBeforeCommitted) {
            self.deleted.retain(|(_, deleted)| *deleted != id);
        }
        Ok(())
    }

    /// Makes a volume be as one of its snapshots, or another one, was. What it had since is deleted.
    ///
    /// # Errors
    /// See [`AdminError`]; the volume must not be served.
    pub fn rollback(&mut self, volume: OwnerId, snapshot: OwnerId) -> Result<OwnerId, AdminError> {
        let (slot, old) = self.slot_of(volume)?;
        let (_, to) = self.slot_of(snapshot)?;
        if old.kind != OwnerKind::Volume {
            return Err(AdminError::IsSnapshot);
        }
        if to.kind != OwnerKind::Snapshot {
            return Err(AdminError::NoSnapshot);
        }
        if self.served(volume).is_some() {
            return Err(AdminError::InUse);
        }
        if self.state.may_lack(volume) || self.state.chain_may_lack(snapshot) {
            return Err(AdminError::InDoubt);
        }
        let new_slot = self.state.owners.find_free(1).ok_or(AdminError::NoPlace)?[0];
        if !self.tail.has_room(10) {
            return Err(AdminError::TailFull);
        }
        let id = self.state.owners.next_id();
        let goes_on = Owner { id, parent: snapshot, size_bytes: to.size_bytes, also_on: 0, ..old.clone() };
        let gone = Owner { kind: OwnerKind::Nameless, name: OwnerName::NONE, policy: None, ..old };
        let sequence = self.change(&[self.put(slot, gone), self.put(new_slot, goes_on)]);
        self.deleted.push((sequence, volume));
        Ok(id)
    }

    /// Gives a volume or snapshot another name, size (grows only), limits or policy: everything of `owner` but its number, kind, parent and
    /// identity counts.
    ///
    /// # Errors
    /// See [`AdminError`].
    pub fn alter(&mut self, id: OwnerId, owner: Owner) -> Result<(), AdminError> {
        let (slot, old) = self.slot_of(id)?;
        if !matches!(old.kind, OwnerKind::Volume | OwnerKind::Snapshot) {
            return Err(AdminError::NoSuch);
        }
        if old.name != owner.name && !self.name_is_free(old.kind, old.volume, owner.name) {
            return Err(AdminError::NameTaken);
        }
        if !self.tail.has_room(5) {
            return Err(AdminError::TailFull);
        }
        let Owner { kind, parent, uuid, volume, .. } = old;
        // A snapshot stays as it was.
        let size_bytes = if kind == OwnerKind::Volume { owner.size_bytes.max(old.size_bytes) } else { old.size_bytes };
        if (old.place, old.on) != (owner.place, owner.on) {
            self.close_packed(id);
            self.moves.begin_anew();
        }
        // What it has stays where it is until it has been moved.
        let also_on = if owner.place == Placing::Spread { 0 } else { old.may_be_on() & !owner.on };
        let owner = Owner { id, kind, parent, uuid, volume, size_bytes, also_on, ..owner };
        if !owner.is_sound() {
            return Err(AdminError::NoNumber);
        }
        let lacks_more = owner.may_be_on() & !old.may_be_on() & self.state.absent != 0;
        if lacks_more || owner.size_bytes > old.size_bytes && self.state.chain_may_lack(id) {
            return Err(AdminError::InDoubt);
        }
        if let Some(served) = self.served(id)
            && owner.size_bytes > old.size_bytes
        {
            let extents = extents_for(owner.size_bytes);
            self.volumes.get_mut(&served).expect("just found").writer.resize(extents);
        }
        self.change(&[self.put(slot, owner)]);
        Ok(())
    }

    /// Builds the map of a volume or snapshot, and serves it. Looks at all records.
    ///
    /// # Errors
    /// `NoSuch`, `InUse`.
    pub fn serve(&mut self, id: OwnerId) -> Result<VolumeId, AdminError> {
        let (_, owner) = self.slot_of(id)?;
        if !matches!(owner.kind, OwnerKind::Volume | OwnerKind::Snapshot) {
            return Err(AdminError::NoSuch);
        }
        if self.served(id).is_some() {
            return Err(AdminError::InUse);
        }
        // A snapshot that was not acknowledged: what had begun before it is not in its records yet.
        if self.awaits_data(id) {
            return Err(AdminError::TailFull);
        }
        let (writer, in_doubt) = self.build(id, owner.size_bytes);
        // What its owner states is not all known: what it stated newly might be stated twice.
        let frozen = in_doubt || self.state.may_lack(id) || owner.kind == OwnerKind::Snapshot;
        Ok(self.add_volume(id, writer, frozen))
    }

    /// Serves it no more. Nothing of it is under way.
    pub fn leave(&mut self, id: VolumeId) {
        if let Some(volume) = self.volumes.remove(&id) {
            self.close_packed(volume.owner);
        }
    }

    /// What shows through an owner; and whether some of it nobody knows.
    ///
    /// An owner states a block once, so what it states on a member that is here is certain. Of what it does not state there nobody knows
    /// whether it states it on an absent one, and it is never looked up further down.
    pub(super) fn build(&self, id: OwnerId, size_bytes: u64) -> (MapWriter, bool) {
        let extents = extents_for(size_bytes);
        let mut writer = MapWriter::new(extents);
        // Which blocks somebody nearer has spoken of, by logical extent.
        let mut stated = vec![0u64; extents as usize];
        for owner in self.state.owners.chain(id) {
            self.add_statements(owner, &mut stated, |logical, mask, place| match place {
                Place::Extent(extent, follow) => {
                    let follow = follow && owner == id;
                    writer.set_blocks(&self.state.records, logical, mask, extent, follow);
                }
                Place::Slot(block, extent, slot) => writer.set_packed(&self.state.records, block, extent, slot),
            });
            if self.state.may_lack(owner) && !planted(Planted::LookupFallsThrough) {
                let in_doubt = self.rest_in_doubt(&mut writer, &stated, size_bytes.div_ceil(BLOCK_BYTES));
                return (writer, in_doubt);
            }
            self.add_zeros(owner, &mut stated);
        }
        (writer, false)
    }

    /// What nobody has spoken of, of so many blocks, is in doubt. False: there is no such block.
    fn rest_in_doubt(&self, writer: &mut MapWriter, stated: &[u64], blocks: u64) -> bool {
        let mut any = false;
        for (logical, stated) in (0u32..).zip(stated) {
            let there = blocks.saturating_sub(u64::from(logical) * u64::from(EXTENT_BLOCKS));
            let rest = !stated & mask(0, there.min(u64::from(EXTENT_BLOCKS)) as u32);
            if rest != 0 {
                writer.set_blocks(&self.state.records, logical, rest, ExtentId::IN_DOUBT, false);
                any = true;
            }
        }
        any
    }

    /// Goes through what an owner states in extents, and calls `show` for what nobody nearer has stated.
    pub(super) fn add_statements(&self, owner: OwnerId, stated: &mut [u64], mut show: impl FnMut(u32, u64, Place)) {
        let records = &self.state.records;
        // What this owner states itself hides nothing of its own.
        let mut own: Vec<(u32, u64)> = Vec::new();
        for (member, extents) in self.state.members() {
            for index in 0..extents {
                let extent = ExtentId { member, index };
                if records.owner(extent) & !super::records::OWNER_HELD != owner {
                    continue;
                }
                let record = self.state.record(extent.into());
                if record.kind == braid_format::pool::RecordKind::Packed {
                    let addresses = self.state.addresses(extent.into()).expect("a packed extent has addresses");
                    for slot in (0..64u8).filter(|slot| record.present >> slot & 1 == 1) {
                        let block = addresses.0[usize::from(slot)];
                        let (logical, bit) = ((block / 64) as usize, 1u64 << (block % 64));
                        if logical < stated.len() {
                            if stated[logical] & bit == 0 {
                                show(logical as u32, bit, Place::Slot(block, extent, slot));
                            }
                            own.push((logical as u32, bit));
                        }
                    }
                    continue;
                }
                let logical = record.logical as usize;
                if logical < stated.len() {
                    let seen = record.present & !stated[logical];
                    if seen != 0 {
                        show(record.logical, seen, Place::Extent(extent, seen == record.present));
                    }
                    own.push((record.logical, record.present | record.zero));
                }
            }
        }
        for (logical, bits) in own {
            stated[logical as usize] |= bits;
        }
    }

    /// Goes through what an owner states to be zeros, without an extent: what is in one counts before it.
    pub(super) fn add_zeros(&self, owner: OwnerId, stated: &mut [u64]) {
        if planted(Planted::ZerosForgottenByClones) {
            return;
        }
        for (_, record) in self.state.zeros_of(owner) {
            let first = record.logical as usize;
            let last = first.saturating_add(record.present as usize).min(stated.len());
            stated.iter_mut().take(last).skip(first).for_each(|word| *word |= record.zero);
        }
    }
}

/// Where blocks stand.
pub(super) enum Place {
    /// At their own positions in this extent; and whether that is all the extent has.
    Extent(ExtentId, bool),
    /// This block in this slot.
    Slot(u64, ExtentId, u8),
}
