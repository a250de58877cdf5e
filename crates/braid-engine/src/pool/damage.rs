//! Damage in the tables: records and addresses with a wrong checksum, or that cannot be read.
//!
//! The owner of a damaged record is unknown, and what its bytes say of it is never trusted. So every owner that may
//! have had blocks on its member is *in doubt* ([`PoolTables::may_miss_records`]): blocks in the owner's other records
//! are certain, and every other block is an error to read, never an ancestor's block and never zeros. Of a damaged
//! address the owner is known, and only that owner is in doubt.
//!
//! Damaged parts are not changed: their bytes go back into the tables as they are, and their extents belong to no owner
//! and are not allocated. If a wrong read turns out right at the next open, no harm was done, because an owner in doubt
//! defines nothing new. The doubt ends when an administrator accepts the loss ([`Pool::accept_damage`]).

use braid_format::pool::{Change, Owner, RECORD_BYTES, Record, RecordKind, decode_address};

use super::Pool;
use super::admin::AdminError;
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::state::{NO_BLOCK, PoolTables};
use super::units::{EXTENT_BLOCKS, ExtentId, RecordId};

/// Fills in for bytes that could not be read. No valid record or address consists of it.
pub(super) const UNREAD: u8 = 0xff;

/// The damage of one record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damaged {
    /// The record.
    pub id: RecordId,
    /// The bytes of a damaged record; `None` if only addresses are damaged.
    pub bytes: Option<[u8; RECORD_BYTES]>,
    /// Its owner, if known.
    pub owner: Option<OwnerId>,
    /// Maximum blocks that may be lost with it.
    pub blocks: u32,
}

impl PoolTables {
    /// Finds which addresses are missing and which owners are in doubt, once tables, rings and an old log have been
    /// read. Only before anything is served.
    pub(super) fn assess_damage(&mut self) {
        for id in self.packed_extents() {
            let record = self.record(id);
            self.reread_sector(id, &record);
            let addresses = self.addresses(id);
            let missing = |slot: &u32| addresses.is_none_or(|addresses| addresses.0[*slot as usize] == NO_BLOCK);
            let in_use = (0..EXTENT_BLOCKS).filter(|slot| record.present >> slot & 1 == 1);
            let mask = in_use.filter(missing).fold(0, |all, slot| all | 1u64 << slot);
            if mask != 0 {
                self.damage.slots.insert(id, mask);
                self.damage.doubt.insert(record.owner);
                self.damage.members |= 1 << id.member;
                // Held: nothing writes to it, moves it or frees it before the damage is accepted.
                self.records.set_owner(self.extent(id), record.owner | OWNER_HELD);
            }
        }
        let damaged: Vec<RecordId> = self.damage.records.keys().copied().filter(|id| self.damage.has(*id)).collect();
        let (mut extents, mut zeros) = (0u128, 0u128);
        for id in damaged {
            if self.is_extent(id) {
                extents |= 1 << id.member;
            } else {
                zeros |= 1 << id.member;
                self.take_zero_slot(id);
            }
        }
        self.damage.members |= extents | zeros;
        // An owner without a parent needs no zero ranges.
        let may = |owner: &&Owner| {
            owner.block_members() & extents != 0 || owner.parent != 0 && owner.block_members() & zeros != 0
        };
        let doubt: Vec<OwnerId> = self.owners.iter().filter(may).map(|owner| owner.id).collect();
        self.damage.doubt.extend(doubt);
    }

    /// Reads an address sector again. If a ring replaced the damaged record of a packed extent, the sector may have
    /// addresses that the ring lacks.
    fn reread_sector(&mut self, id: RecordId, record: &Record) {
        let Some(words) = self.damage.sectors.get(&id).cloned() else { return };
        for (slot, word) in (0..EXTENT_BLOCKS as u8).zip(*words) {
            let known = self.addresses(id).is_some_and(|addresses| addresses.0[usize::from(slot)] != NO_BLOCK);
            if !known && let Some(block) = self.read_address(word, id, slot, record.life) {
                self.set_address(id, slot, block);
            }
        }
    }

    /// Decodes a word of an address sector: returns the block in the slot, if the word is valid.
    pub(super) fn read_address(&self, word: u64, id: RecordId, slot: u8, life: u16) -> Option<u64> {
        let block = decode_address(word, id.member, id.index, slot, life).ok().flatten()?;
        // No owner has blocks beyond its end. The check is needed because a 16-bit checksum is right by chance now and
        // then.
        let most = self.owners.iter().map(|owner| owner.size_bytes).max().unwrap_or(0);
        (block < most.div_ceil(super::units::BLOCK_BYTES)).then_some(block)
    }
}

impl Pool {
    /// Returns what is damaged in the tables, in order.
    pub fn damaged(&self) -> Vec<Damaged> {
        let damage = &self.state.damage;
        let records = damage.records.iter().filter(|(_, bytes)| bytes.replaced_by == 0).map(|(id, of)| Damaged {
            id: *id,
            bytes: Some(of.bytes),
            owner: None,
            blocks: if self.state.is_extent(*id) { EXTENT_BLOCKS } else { 0 },
        });
        let slots = damage.slots.iter().map(|(id, mask)| Damaged {
            id: *id,
            bytes: None,
            owner: Some(self.state.record(*id).owner),
            blocks: mask.count_ones(),
        });
        let mut all: Vec<Damaged> = records.chain(slots).collect();
        all.sort_unstable_by_key(|damaged| damaged.id);
        all
    }

    /// Returns the owners in doubt because of damage.
    pub fn owners_in_doubt(&self) -> impl Iterator<Item = OwnerId> + '_ {
        self.state.damage.doubt.iter().copied()
    }

    /// Checks that the records of an owner and its ancestors are all known.
    ///
    /// # Errors
    /// `InDoubt`, `Damaged`: they are not.
    pub fn check_records_known(&self, owner: OwnerId) -> Result<(), AdminError> {
        if self.state.chain_may_miss_records(owner) { Err(self.why_in_doubt(owner)) } else { Ok(()) }
    }

    /// Accepts that everything damaged is lost, and frees its extents. Lost blocks, whose owners are unknown, read as
    /// what the volume's parent has, or as zeros. No owner in doubt may be served meanwhile: served maps are not
    /// updated.
    ///
    /// # Errors
    /// `InUse`: an owner in doubt is served. `LogFull`: it is done in part; call again after a commit.
    pub fn accept_damage(&mut self) -> Result<(), AdminError> {
        if self.serves_in_doubt() {
            return Err(AdminError::InUse);
        }
        for damaged in self.damaged() {
            if !self.log.has_room(1) {
                return Err(AdminError::LogFull);
            }
            self.accept(damaged.id);
        }
        self.state.damage.doubt.clear();
        self.state.damage.unread.clear();
        for extent in std::mem::take(&mut self.state.damage.withheld) {
            self.rooms[usize::from(extent.member)].free.give(extent.index);
        }
        self.state.damage.members = 0;
        // Extents that were skipped may be moved now.
        self.moves.restart_scan();
        self.progress += 1;
        Ok(())
    }

    fn accept(&mut self, id: RecordId) {
        let is_extent = self.state.is_extent(id);
        // The life of the damaged record is unknown, so a later life of the extent may be the one that stale addresses
        // carry. That does no harm: if the extent becomes packed, its address sector is overwritten before the ring
        // space of that change is reused.
        let mut record = Record::free(u16::from(is_extent));
        if let Some(mask) = self.state.damage.slots.remove(&id) {
            let extent = self.state.extent(id);
            let owner = self.state.records.owner(extent);
            self.state.records.set_owner(extent, owner & !OWNER_HELD);
            record = self.state.record(id);
            record.present &= !mask;
            if record.present == 0 {
                record = Record::free(record.life);
            }
        }
        let sequence = self.change(&[(id.member, id.index, Change::Record { record })]);
        if !is_extent {
            self.state.give_zero_slot(id);
        } else if record.kind == RecordKind::Free {
            let extent = ExtentId { member: id.member, index: id.index };
            self.rooms[usize::from(id.member)].freed.add(sequence, extent);
        }
    }

    /// Returns why an owner whose records are not all known must not change.
    pub(super) fn why_in_doubt(&self, owner: OwnerId) -> AdminError {
        let damaged = self.state.missing == 0 || self.state.damage.is_in_doubt(owner);
        if damaged { AdminError::Damaged } else { AdminError::InDoubt }
    }
}
