//! Thick volumes: space that is reserved for them ([`Reserves`]) is neither given to others nor reserved twice.

use braid_format::pool::{Owner, OwnerKind};

use super::Pool;
use super::admin::AdminError;
use super::owners::OwnerId;
use super::records::{LOGICAL_PACKED, OWNER_HELD};
use super::reserves::Reserves;
use super::units::ExtentId;

impl Pool {
    /// Returns how many free extents are reserved for thick volumes.
    pub fn reserved_extents(&self) -> u64 {
        self.state.reserves.extents()
    }

    /// Returns how many extents are reserved for this volume.
    pub fn reserved_extents_of(&self, owner: OwnerId) -> u64 {
        self.state.reserves.extents_of(owner)
    }

    fn free_on(&self, set: u128) -> u64 {
        let of = (0u8..).zip(&self.rooms).filter(|(member, room)| set >> member & 1 == 1 && !room.closed);
        of.map(|(_, room)| u64::from(room.free.count())).sum()
    }

    /// Returns the members (a bit mask) on which every free extent is reserved for others than this owner. While a
    /// member is missing nothing is reserved: its content is unknown.
    pub(super) fn unavailable_to(&self, owner: OwnerId, logical: Option<u32>) -> u128 {
        let reserves = &self.state.reserves;
        if reserves.is_empty() || self.state.missing != 0 {
            return 0;
        }
        let own = logical.and_then(|logical| reserves.reservation(owner, logical));
        reserves.unavailable(own, |set| self.free_on(set))
    }

    /// Returns owner and logical extent of all whole extents, also of those that are allocated only.
    fn wholes(&self) -> impl Iterator<Item = (OwnerId, u32)> {
        let records = &self.state.records;
        let whole = |extent: &ExtentId| records.owner(*extent) != 0 && records.logical(*extent) != LOGICAL_PACKED;
        let of = |(member, extents)| (0..extents).map(move |index| ExtentId { member, index });
        let all = self.state.members().flat_map(of).filter(whole);
        let recorded = all.map(|extent| (records.owner(extent) & !OWNER_HELD, records.logical(extent)));
        recorded.chain(self.openings()).chain(self.moves.copy_targets())
    }

    /// Recounts the reservations. Scans all extents if a volume is thick.
    pub(super) fn find_reserves(&mut self) {
        self.state.reserves = Reserves::of(&self.state.owners, self.wholes());
    }

    /// Returns the reservations with the new volume `image`, which sees the blocks of `image.parent`, and without the
    /// volume `gone`. `None`: nothing changes. Scans all extents if the image is thick and has a parent.
    ///
    /// # Errors
    /// `NoSpace`: less space is free than would have to be reserved.
    pub(super) fn reserves_with(&self, image: &Owner, gone: Option<OwnerId>) -> Result<Option<Reserves>, AdminError> {
        if !image.thick {
            return Ok(None);
        }
        let mut reserves = self.state.reserves.clone();
        gone.into_iter().for_each(|gone| reserves.remove(gone));
        let mut new = Reserves::default();
        let mut chain = self.state.owners.chain(image.parent);
        chain.push(image.id);
        new.add(image, &chain);
        if image.parent != 0 {
            self.wholes().for_each(|(owner, logical)| new.add_whole(owner, logical));
        }
        reserves.join(new);
        self.if_fits(reserves).map(Some)
    }

    /// Returns the reservations after a volume has changed to this image, in size or placement.
    ///
    /// # Errors
    /// As [`Pool::reserves_with`].
    pub(super) fn reserves_altered(&self, old: &Owner, image: &Owner) -> Result<Option<Reserves>, AdminError> {
        if !old.thick
            || old.kind != OwnerKind::Volume
            || (old.size_bytes, old.allocation_members()) == (image.size_bytes, image.allocation_members())
        {
            return Ok(None);
        }
        let mut reserves = self.state.reserves.clone();
        reserves.alter(image);
        // Less than before is never refused.
        let grows = image.size_bytes > old.size_bytes || image.allocation_members() != old.allocation_members();
        if grows { self.if_fits(reserves).map(Some) } else { Ok(Some(reserves)) }
    }

    /// Returns whether a thick volume sees this owner's blocks.
    pub(super) fn is_seen_by_thick(&self, owner: OwnerId) -> bool {
        self.state.reserves.is_seen(owner)
    }

    /// Returns the reservations after these owners have lost their parents. `None`: nothing changes. Scans all extents
    /// if a thick volume sees blocks of one of them.
    ///
    /// # Errors
    /// `NoSpace`: less space is free than would have to be reserved.
    pub(super) fn reserves_without_parent(&self, tops: &[OwnerId]) -> Result<Option<Reserves>, AdminError> {
        if !tops.iter().any(|top| self.is_seen_by_thick(*top)) {
            return Ok(None);
        }
        let (owners, mut reserves) = (&self.state.owners, Reserves::default());
        for owner in owners.iter().filter(|owner| owner.thick && owner.kind == OwnerKind::Volume) {
            let mut chain = owners.chain(owner.id);
            let end = chain.iter().position(|id| tops.contains(id)).map_or(chain.len(), |at| at + 1);
            chain.truncate(end);
            reserves.add(owner, &chain);
        }
        self.wholes().for_each(|(owner, logical)| reserves.add_whole(owner, logical));
        self.if_fits(reserves).map(Some)
    }

    /// Checks that reservations allow closing a member and changing owners to these images. While another member is
    /// missing nothing is reserved, and no thick volume may change its members.
    ///
    /// # Errors
    /// As [`Pool::reserves_with`].
    pub(super) fn reserves_off(&self, member: u8, images: impl Iterator<Item = Owner>) -> Result<(), AdminError> {
        let mut reserves = self.state.reserves.clone();
        let thick: Vec<Owner> = images.filter(|image| image.thick).collect();
        thick.iter().for_each(|image| reserves.alter(image));
        let fit = match self.state.missing {
            0 => reserves.fit(|set| self.free_on(set & !(1 << member))),
            _ => thick.is_empty(),
        };
        if fit { Ok(()) } else { Err(AdminError::NoSpace) }
    }

    fn if_fits(&self, reserves: Reserves) -> Result<Reserves, AdminError> {
        let fit = self.state.missing == 0 && reserves.fit(|set| self.free_on(set));
        if fit { Ok(reserves) } else { Err(AdminError::NoSpace) }
    }

    /// Sets the reservations that were computed for the change that is made now.
    pub(super) fn set_reserves(&mut self, reserves: Option<Reserves>) {
        if let Some(reserves) = reserves {
            self.state.reserves = reserves;
        }
    }
}
