//! Administration of volumes and snapshots: creating, altering and deleting them. Each change is one atomic group of
//! log entries. A request is answered when its group is committed; a snapshot also only when everything that had begun
//! before it has ended.

use braid_format::Uuid;
use braid_format::pool::{AllocationPolicy, Change, Owner, OwnerKind, OwnerName};

use super::Pool;
use super::owners::OwnerId;
use super::shared::VolumeId;
use super::units::EXTENT_BYTES;

/// Why an administrative call cannot be carried out. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdminError {
    /// There is no owner with this number.
    #[error("there is no such volume or snapshot")]
    NoSuch,
    /// All owner slots are taken.
    #[error("the pool has no place for a further volume or snapshot")]
    NoOwnerSlot,
    /// It would become smaller, and has something beyond its new end.
    #[error("it has data beyond its new end")]
    DataBeyond,
    /// More snapshots at one instant than the in-memory log could ever hold together.
    #[error("the pool cannot take so many snapshots at one instant")]
    TooManyAtOnce,
    /// The in-memory log has no room, data are in flight to the owner, or its map is being built: call again after a
    /// commit.
    #[error("the pool has to commit first")]
    LogFull,
    /// The volume or snapshot is served, or its map is being built.
    #[error("it is in use")]
    InUse,
    /// A volume with this name exists already, or a snapshot with this name of the same volume.
    #[error("the name is taken")]
    NameTaken,
    /// The volume has snapshots.
    #[error("it has snapshots")]
    HasSnapshots,
    /// A snapshot cannot be changed so.
    #[error("it is a snapshot")]
    IsSnapshot,
    /// Only a snapshot can be used so.
    #[error("it is no snapshot")]
    NoSnapshot,
    /// Less space is free than has to be reserved for a thick volume.
    #[error("less space is free than is to be kept for it")]
    NoSpace,
    /// A missing member may have blocks of it: its records are not all known.
    #[error("a member is missing on which it may have blocks")]
    InDoubt,
    /// Damaged records of the pool may have been of it: its records are not all known.
    #[error("records of the pool are damaged, and some may have been of it")]
    Damaged,
    /// The owner numbers are used up, or the volume's size, name or identity makes no sense.
    #[error("the pool has no number for it, or its size, name or identity makes no sense")]
    NoNumber,
}

/// Returns the logical extents of a volume of `bytes` bytes.
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

    pub(super) fn slot_of(&self, id: OwnerId) -> Result<(u32, Owner), AdminError> {
        let slot = self.state.owners.slot_of(id).ok_or(AdminError::NoSuch)?;
        Ok((slot, self.state.owners.in_slot(slot).expect("listed by its slot").clone()))
    }

    /// Creates a volume: empty, or a clone of the snapshot `parent`. The pool sets the number, kind and parent of
    /// `owner`. A clone is at least as large as its parent, and has the same block size. Returns the number of the
    /// owner.
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
                return Err(AdminError::LogFull);
            }
            // Otherwise blocks beyond a smaller size would show through when the clone grows.
            owner.size_bytes = owner.size_bytes.max(of.size_bytes);
            // Data that were written in small blocks may need small blocks to be read.
            owner.sectors_of_512 = of.sectors_of_512;
        }
        // In any case: the volume could not be read or written before the member is back.
        if owner.block_members() & self.state.missing != 0 {
            return Err(AdminError::InDoubt);
        }
        let slot = self.state.owners.find_free(1).ok_or(AdminError::NoOwnerSlot)?[0];
        if !self.has_room_for_request(8) {
            return Err(AdminError::LogFull);
        }
        owner.id = self.state.owners.next_id();
        owner.parent = parent.unwrap_or(0);
        (owner.also_on, owner.flattening) = (0, false);
        (owner.kind, owner.volume) = (OwnerKind::Volume, Uuid::nil());
        if !owner.is_sound() {
            return Err(AdminError::NoNumber);
        }
        let reserves = self.reserves_with(&owner, None)?;
        let id = owner.id;
        self.change(&[self.put(slot, owner)]);
        self.set_reserves(reserves);
        Ok(id)
    }

    /// Takes snapshots of several volumes at one instant: the owner of each volume becomes the snapshot, and the volume
    /// goes on under a new owner. `what` has, for each volume, its owner, and the identity and name of the snapshot;
    /// `now_unix_s` is in seconds since 1970. Returns the owner numbers of the snapshots.
    ///
    /// Acknowledge them only when a barrier that began after this call has ended, and then a commit that was requested
    /// after the barrier.
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
        // More at one instant than the in-memory log could ever hold.
        if what.len() as u64 * 10 > self.log.capacity() / 2 {
            return Err(AdminError::TooManyAtOnce);
        }
        let slots = self.state.owners.find_free(what.len()).ok_or(AdminError::NoOwnerSlot)?;
        // A map under construction has to be that of the volume, not of its snapshot.
        if !self.has_room_for_request(what.len() as u64 * 10) || what.iter().any(|(id, ..)| self.is_building(*id)) {
            return Err(AdminError::LogFull);
        }
        let mut changes = Vec::with_capacity(2 * what.len());
        let mut switched = Vec::new();
        for (next, ((id, uuid, name), new_slot)) in (self.state.owners.next_id()..).zip(what.iter().zip(slots)) {
            let (slot, volume) = self.slot_of(*id)?;
            if volume.kind != OwnerKind::Volume {
                return Err(AdminError::IsSnapshot);
            }
            // The new owner could have blocks on the same members: the next open could not know that it has none there.
            if self.state.may_miss_records(*id) {
                return Err(self.why_in_doubt(*id));
            }
            if !self.name_is_free(OwnerKind::Snapshot, volume.uuid, *name) {
                return Err(AdminError::NameTaken);
            }
            let goes_on = Owner { id: next, parent: *id, also_on: 0, flattening: false, ..volume.clone() };
            let snapshot = Owner {
                kind: OwnerKind::Snapshot,
                uuid: *uuid,
                volume: volume.uuid,
                name: *name,
                created_unix_s: now_unix_s,
                schedule: None,
                thick: false,
                ..volume
            };
            if !goes_on.is_sound() || !snapshot.is_sound() {
                return Err(AdminError::NoNumber);
            }
            // The snapshot keeps the owner slot, and the number that the records of its blocks name.
            changes.push(self.put(slot, snapshot));
            changes.push(self.put(new_slot, goes_on));
            switched.push((*id, next));
        }
        self.change(&changes);
        switched.iter().for_each(|(old, new)| self.state.reserves.follow(*old, *new));
        let served: Vec<_> = switched.iter().filter_map(|(old, new)| Some((self.served(*old)?, *new))).collect();
        self.switch(&served);
        for (old, _) in &switched {
            self.close_packed(*old);
        }
        Ok(what.iter().map(|(id, ..)| *id).collect())
    }

    /// Returns the volume that is served under this owner now.
    pub fn served(&self, owner: OwnerId) -> Option<VolumeId> {
        self.volumes.iter().find(|(_, volume)| volume.owner == owner).map(|(id, _)| *id)
    }

    /// Deletes a snapshot: its blocks are merged into its child in steps ([`Pool::merge_step`]).
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
        if self.served(id).is_some() || self.is_building(id) {
            return Err(AdminError::InUse);
        }
        if self.state.may_miss_records(id) {
            return Err(self.why_in_doubt(id));
        }
        if !self.has_room_for_request(5) || self.awaits_data(id) {
            return Err(AdminError::LogFull);
        }
        (owner.kind, owner.name, owner.schedule) = (OwnerKind::Nameless, OwnerName::NONE, None);
        self.state.reserves.remove(id);
        let sequence = self.change(&[self.put(slot, owner)]);
        self.deleted.push((sequence, id));
        Ok(())
    }

    /// Rolls a volume back to a snapshot, of itself or of another volume: the volume goes on under a new owner, a child
    /// of the snapshot, and gets the size of the snapshot. The old owner, with all changes since the volume's last
    /// snapshot, is deleted. Returns the number of the new owner.
    ///
    /// # Errors
    /// See [`AdminError`]; `InUse`: the volume is served.
    pub fn rollback(&mut self, volume: OwnerId, snapshot: OwnerId) -> Result<OwnerId, AdminError> {
        let (slot, old) = self.slot_of(volume)?;
        let (_, to) = self.slot_of(snapshot)?;
        if old.kind != OwnerKind::Volume {
            return Err(AdminError::IsSnapshot);
        }
        if to.kind != OwnerKind::Snapshot {
            return Err(AdminError::NoSnapshot);
        }
        if self.served(volume).is_some() || self.is_building(volume) {
            return Err(AdminError::InUse);
        }
        if self.state.may_miss_records(volume) || self.state.chain_may_miss_records(snapshot) {
            return Err(self.why_in_doubt(volume));
        }
        let new_slot = self.state.owners.find_free(1).ok_or(AdminError::NoOwnerSlot)?[0];
        if !self.has_room_for_request(10) {
            return Err(AdminError::LogFull);
        }
        let id = self.state.owners.next_id();
        let (size_bytes, in_sectors) = (to.size_bytes, to.sectors_of_512);
        let goes_on = Owner {
            id,
            parent: snapshot,
            size_bytes,
            sectors_of_512: in_sectors,
            also_on: 0,
            flattening: false,
            ..old.clone()
        };
        let gone = Owner { kind: OwnerKind::Nameless, name: OwnerName::NONE, schedule: None, flattening: false, ..old };
        if !goes_on.is_sound() || !gone.is_sound() {
            return Err(AdminError::NoNumber);
        }
        let reserves = self.reserves_with(&goes_on, Some(volume))?;
        let sequence = self.change(&[self.put(slot, gone), self.put(new_slot, goes_on)]);
        self.set_reserves(reserves);
        self.deleted.push((sequence, volume));
        Ok(id)
    }

    /// Changes a volume or snapshot to the image `owner`: its name, limits, placement, schedule and so on, but not its
    /// number, kind, parent, identity, block size, and whether it is thick or being flattened. A volume only grows here
    /// (see [`Pool::shrink`]), and a snapshot keeps its size.
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
        // One more for the packed extent that is closed.
        if !self.has_room_for_request(6) {
            return Err(AdminError::LogFull);
        }
        let Owner { kind, parent, uuid, volume, thick, flattening: flattens, sectors_of_512: in_sectors, .. } = old;
        // A snapshot keeps its size.
        let size_bytes = if kind == OwnerKind::Volume { owner.size_bytes.max(old.size_bytes) } else { old.size_bytes };
        if (old.allocation, old.on) != (owner.allocation, owner.on) {
            if self.state.damage.is_in_doubt(id) {
                return Err(AdminError::Damaged);
            }
            self.close_packed(id);
            self.moves.restart_scan();
        }
        // Its blocks stay where they are until they have been moved.
        let also_on = if owner.allocation == AllocationPolicy::Spread { 0 } else { old.block_members() & !owner.on };
        let owner = Owner {
            id,
            kind,
            parent,
            uuid,
            volume,
            thick,
            flattening: flattens,
            sectors_of_512: in_sectors,
            size_bytes,
            also_on,
            ..owner
        };
        if !owner.is_sound() {
            return Err(AdminError::NoNumber);
        }
        let reserves = self.reserves_altered(&old, &owner)?;
        let lacks_more = owner.block_members() & !old.block_members() & self.state.missing != 0;
        if lacks_more || owner.size_bytes > old.size_bytes && self.state.chain_may_miss_records(id) {
            return Err(if lacks_more { AdminError::InDoubt } else { self.why_in_doubt(id) });
        }
        if let Some(served) = self.served(id)
            && owner.size_bytes > old.size_bytes
        {
            let extents = extents_for(owner.size_bytes);
            self.volumes.get_mut(&served).expect("just found").writer.resize(extents);
        }
        self.change(&[self.put(slot, owner)]);
        self.set_reserves(reserves);
        Ok(())
    }

    /// Stops serving a volume. No request to it is in flight.
    pub fn stop_serving(&mut self, id: VolumeId) {
        if let Some(volume) = self.volumes.remove(&id) {
            self.close_packed(volume.owner);
        }
    }
}
