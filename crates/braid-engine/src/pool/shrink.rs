//! Shrinking a volume. First, blocks beyond its new end are discarded, as a client would do it: from then on they read
//! as zeros, and neither they nor what an older snapshot has there shows through when the volume grows. Then its size
//! changes. The log keeps this order: after a crash in between, the volume has its old size, and some or all blocks
//! beyond the new end are discarded.

use braid_format::pool::{Change, Owner, OwnerKind};

use super::Pool;
use super::admin::{AdminError, extents_for};
use super::discard::DiscardOutcome;
use super::shared::VolumeId;
use super::units::{BLOCK_BYTES, EXTENT_BLOCKS};

impl Pool {
    /// Returns whether a volume has any block from this one on, of its own or of an ancestor.
    pub fn has_blocks_from(&mut self, volume: VolumeId, block: u64) -> bool {
        self.volumes.contains_key(&volume) && self.next_block(volume, block).is_some()
    }

    fn next_block(&mut self, volume: VolumeId, block: u64) -> Option<u64> {
        let each = u64::from(EXTENT_BLOCKS);
        let Pool { volumes, state, view, .. } = self;
        let map = volumes[&volume].writer.map();
        let first = u32::try_from(block / each).ok()?;
        let mut from = first;
        while let Some(logical) = map.next_mapped(from) {
            map.visible(&state.records, logical, view);
            let before = if logical == first { (1 << (block % each)) - 1 } else { 0 };
            let seen = view.mask() & !before;
            if seen != 0 {
                return Some(u64::from(logical) * each + u64::from(seen.trailing_zeros()));
            }
            from = logical.checked_add(1)?;
        }
        None
    }

    /// Discards some of a volume's blocks from this one on. Returns the first one, and the outcome; `None`: there is
    /// nothing to discard. No request is in flight there, and none begins.
    ///
    /// # Errors
    /// The volume is a snapshot, or has blocks in doubt.
    pub fn discard_from(&mut self, volume: VolumeId, block: u64) -> Result<Option<(u64, DiscardOutcome)>, AdminError> {
        self.to_shrink(volume)?;
        let each = u64::from(EXTENT_BLOCKS);
        let Some(found) = self.next_block(volume, block) else { return Ok(None) };
        // From a whole extent on, if possible: one record can cover many of them.
        let from = (found / each * each).max(block);
        let end = u64::from(self.volumes[&volume].writer.map().extents()) * each;
        Ok(Some((from, self.discard(volume, from, end - from))))
    }

    /// Shrinks a volume that is served. No request is in flight beyond its new end, and none begins.
    ///
    /// # Errors
    /// See [`AdminError`]; `DataBeyond`: there are blocks to discard first.
    pub fn shrink(&mut self, volume: VolumeId, size_bytes: u64) -> Result<(), AdminError> {
        let (slot, old) = self.to_shrink(volume)?;
        let owner = Owner { size_bytes, ..old.clone() };
        if size_bytes >= old.size_bytes || !owner.is_sound() {
            return Err(AdminError::NoNumber);
        }
        if self.next_block(volume, size_bytes / BLOCK_BYTES).is_some() {
            return Err(AdminError::DataBeyond);
        }
        if !self.has_room_for_request(5) {
            return Err(AdminError::LogFull);
        }
        let reserves = self.reserves_altered(&old, &owner)?;
        self.volumes.get_mut(&volume).expect("served").writer.resize(extents_for(size_bytes));
        self.change(&[(0, slot, Change::Owner { owner: Some(owner) })]);
        self.set_reserves(reserves);
        Ok(())
    }

    /// Returns the owner of a volume that can be shrunk, and its slot.
    fn to_shrink(&self, volume: VolumeId) -> Result<(u32, Owner), AdminError> {
        let id = self.volumes.get(&volume).ok_or(AdminError::NoSuch)?.owner;
        let (slot, owner) = self.slot_of(id)?;
        if owner.kind != OwnerKind::Volume {
            return Err(AdminError::IsSnapshot);
        }
        if self.is_read_only(volume) || self.state.may_miss_records(id) || self.state.chain_may_miss_records(id) {
            return Err(self.why_in_doubt(id));
        }
        Ok((slot, owner))
    }
}
