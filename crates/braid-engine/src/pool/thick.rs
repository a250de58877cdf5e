//! Thick volumes: what they have a right to ([`Reserves`]) is neither given to others nor promised twice.

use braid_format::pool::{Owner, OwnerKind};

use super::admin::AdminError;
use super::home::Pool;
use super::owners::OwnerId;
use super::records::{LOGICAL_PACKED, OWNER_HELD};
use super::reserves::Reserves;
use super::units::ExtentId;
use crate::planted::{Planted, planted};

impl Pool {
    /// Extents that are free and kept for thick volumes.
    pub fn kept_extents(&self) -> u64 {
        self.state.reserves.extents()
    }

    /// Extents that are kept for this volume.
    pub fn kept_extents_of(&self, owner: OwnerId) -> u64 {
        self.state.reserves.extents_of(owner)
    }

    fn free_on(&self, set: u128) -> u64 {
        let of = (0u8..).zip(&self.rooms).filter(|(member, room)| set >> member & 1 == 1 && !room.closed);
        of.map(|(_, room)| u64::from(room.free.count())).sum()
    }

    /// Members on which an owner finds nothing that is not kept for others. As long as a member is absent nothing is kept: what stands there
    /// nobody knows.
    pub(super) fn kept_for_others(&self, owner: OwnerId, logical: Option<u32>) -> u128 {
        let reserves = &self.state.reserves;
        if reserves.is_empty() || self.state.absent != 0 {
            return 0;
        }
        let own = logical.and_then(|logical| reserves.right(owner, logical));
        reserves.kept(own, |set| self.free_on(set))
    }

    /// Owner and logical extent of all that stands whole, or for which an extent is given.
    fn wholes(&self) -> impl Iterator<Item = (OwnerId, u32)> {
        let records = &self.state.records;
        let whole = |extent: &ExtentId| records.owner(*extent) != 0 && records.logical(*extent) != LOGICAL_PACKED;
        let of = |(member, extents)| (0..extents).map(move |index| ExtentId { member, index });
        let all = self.state.members().flat_map(of).filter(whole);
        let standing = all.map(|extent| (records.owner(extent) & !OWNER_HELD, records.logical(extent)));
        standing.chain(self.openings()).chain(self.moves.copied_to())
    }

    /// Counts again what is kept. Looks at all extents where a volume is thick.
    pub(super) fn find_reserves(&mut self) {
        self.state.reserves = Reserves::of(&self.state.owners, self.wholes());
    }

    /// What is to be kept when a volume begins as this image says, which sees what `image.parent` has; instead of `gone`, which ends.
    /// `None`: nothing changes. Looks at all extents where the image is thick and has a parent.
    ///
    /// # Errors
    /// `NoSpace`: less is free than would have to be kept.
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
            self.wholes().for_each(|(owner, logical)| new.came(owner, logical));
        }
        reserves.join(new);
        self.if_fits(reserves).map(Some)
    }

    /// The same when a volume becomes as this image says, in size or place.
    ///
    /// # Errors
    /// As before.
    pub(super) fn reserves_altered(&self, old: &Owner, image: &Owner) -> Result<Option<Reserves>, AdminError> {
        if !old.thick
            || old.kind != OwnerKind::Volume
            || (old.size_bytes, old.uses()) == (image.size_bytes, image.uses())
        {
            return Ok(None);
        }
        let mut reserves = self.state.reserves.clone();
        reserves.alter(image);
        // Less than before is never refused.
        let grows = image.size_bytes > old.size_bytes || image.uses() != old.uses();
        if grows { self.if_fits(reserves).map(Some) } else { Ok(Some(reserves)) }
    }

    /// Whether a thick volume sees what this owner has.
    pub(super) fn keeps_for(&self, owner: OwnerId) -> bool {
        self.state.reserves.see(owner)
    }

    /// What is to be kept when these owners have no parents any more. `None`: nothing changes. Looks at all extents where a thick volume
    /// sees what one of them has.
    ///
    /// # Errors
    /// `NoSpace`: less is free than would have to be kept.
    pub(super) fn reserves_without_parent(&self, tops: &[OwnerId]) -> Result<Option<Reserves>, AdminError> {
        if !tops.iter().any(|top| self.keeps_for(*top)) {
            return Ok(None);
        }
        let (owners, mut reserves) = (&self.state.owners, Reserves::default());
        for owner in owners.iter().filter(|owner| owner.thick && owner.kind == OwnerKind::Volume) {
            let mut chain = owners.chain(owner.id);
            let end = chain.iter().position(|id| tops.contains(id)).map_or(chain.len(), |at| at + 1);
            chain.truncate(end);
            reserves.add(owner, &chain);
        }
        self.wholes().for_each(|(owner, logical)| reserves.came(owner, logical));
        self.if_fits(reserves).map(Some)
    }

    /// Whether a member could be closed, and all of these become as their images say, as to what is kept. As long as another one is absent
    /// that is nothing, and no thick volume is bound otherwise.
    ///
    /// # Errors
    /// As before.
    pub(super) fn reserves_off(&self, member: u8, images: impl Iterator<Item = Owner>) -> Result<(), AdminError> {
        let mut reserves = self.state.reserves.clone();
        let thick: Vec<Owner> = images.filter(|image| image.thick).collect();
        thick.iter().for_each(|image| reserves.alter(image));
        let fit = match self.state.absent {
            0 => reserves.fit(|set| self.free_on(set & !(1 << member))) || planted(Planted::EmptiedOverKept),
            _ => thick.is_empty(),
        };
        if fit { Ok(()) } else { Err(AdminError::NoSpace) }
    }

    fn if_fits(&self, reserves: Reserves) -> Result<Reserves, AdminError> {
        let fit = self.state.absent == 0 && reserves.fit(|set| self.free_on(set));
        if fit { Ok(reserves) } else { Err(AdminError::NoSpace) }
    }

    /// Keeps what was asked for before the change that is made now.
    pub(super) fn keep(&mut self, reserves: Option<Reserves>) {
        if let Some(reserves) = reserves {
            self.state.reserves = reserves;
        }
    }
}
