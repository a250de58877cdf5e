//! The damaged parts of the tables of a pool.

use std::collections::{BTreeMap, BTreeSet};

use braid_format::pool::RECORD_BYTES;

use super::owners::OwnerId;
use super::units::{EXTENT_BLOCKS, ExtentId, RecordId, SECTORS_EACH};

/// A damaged record, as it is on its member.
pub(super) struct Bytes {
    pub(super) bytes: [u8; RECORD_BYTES],
    /// The log unit that has set the record since, and is not committed; 0: none has.
    pub(super) replaced_by: u64,
}

/// The words of an address sector.
pub(super) type Words = [u64; EXTENT_BLOCKS as usize];

/// All damage in the tables of a pool.
#[derive(Default)]
pub(super) struct Damage {
    pub(super) records: BTreeMap<RecordId, Bytes>,
    /// Address sectors with a damaged address in use, and those of damaged records, as they are on the member.
    pub(super) sectors: BTreeMap<RecordId, Box<Words>>,
    /// Slots with an unknown address.
    pub(super) slots: BTreeMap<RecordId, u64>,
    /// Owners in doubt: they may have had blocks there.
    pub(super) doubt: BTreeSet<OwnerId>,
    /// Bit *i*: something on member *i* is damaged.
    pub(super) members: u128,
    /// Pages of tables that could not be read, with their offset on the member. Their content may be good.
    pub(super) unread: BTreeMap<(u8, Page), u64>,
    /// Extents that would be free, but whose addresses would be in such a page.
    pub(super) withheld: BTreeSet<ExtentId>,
}

/// A page of a member's tables, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Page {
    /// Of records.
    Records(u32),
    /// Of addresses.
    Addresses(u32),
}
impl Damage {
    /// Notes a damaged record.
    pub fn note_record(&mut self, id: RecordId, bytes: [u8; RECORD_BYTES]) {
        self.records.insert(id, Bytes { bytes, replaced_by: 0 });
    }

    /// Notes a packed extent with damaged addresses.
    pub fn note_sector(&mut self, id: RecordId, words: Words) {
        self.sectors.insert(id, Box::new(words));
    }

    /// Notes that a record is set. If a ring or table sets it (`sequence` is 0), its damage ends at once; if the log
    /// unit `sequence` does, its damage ends when that unit is committed.
    #[inline]
    pub fn note_set(&mut self, id: RecordId, sequence: u64) {
        if self.records.is_empty() {
            return;
        }
        if sequence == 0 {
            self.records.remove(&id);
        } else if let Some(bytes) = self.records.get_mut(&id).filter(|bytes| bytes.replaced_by == 0) {
            bytes.replaced_by = sequence;
        }
    }

    /// Notes that the log unit `sequence`, which changed a record, is committed.
    #[inline]
    pub fn committed(&mut self, id: RecordId, sequence: u64) {
        if self.records.get(&id).is_some_and(|bytes| bytes.replaced_by != 0 && bytes.replaced_by <= sequence) {
            self.records.remove(&id);
        }
    }

    /// Returns whether a record is damaged: the state of its extent is unknown.
    pub fn has(&self, id: RecordId) -> bool {
        self.records.get(&id).is_some_and(|bytes| bytes.replaced_by == 0)
    }

    /// Notes a page of a member's tables that could not be read.
    pub fn note_unread(&mut self, member: u8, page: Page, offset: u64) {
        self.unread.insert((member, page), offset);
    }

    /// Returns the offset of the page on its member, if it could not be read. Such a page must not be written: its
    /// other content would be lost, and may be readable the next time.
    pub fn unread(&self, member: u8, page: Page) -> Option<u64> {
        self.unread.get(&(member, page)).copied()
    }

    /// Returns whether a free extent must not be allocated: if it became packed, its addresses would go into a page
    /// that could not be read. Notes an extent that is withheld so.
    pub fn withholds(&mut self, extent: ExtentId) -> bool {
        let unread = !self.unread.is_empty()
            && self.unread(extent.member, Page::Addresses(extent.index / SECTORS_EACH)).is_some();
        if unread {
            self.withheld.insert(extent);
        }
        unread
    }

    /// Forgets which extents are withheld: all are checked again.
    pub fn clear_withheld(&mut self) {
        self.withheld.clear();
    }

    /// Returns whether an extent is withheld.
    pub fn is_withheld(&self, extent: ExtentId) -> bool {
        self.withheld.contains(&extent)
    }

    /// Returns whether an owner is in doubt.
    pub fn is_in_doubt(&self, owner: OwnerId) -> bool {
        self.doubt.contains(&owner)
    }

    /// Returns whether any owner is in doubt.
    pub fn has_doubt(&self) -> bool {
        !self.doubt.is_empty()
    }

    /// Members on which something is damaged, by their bits.
    pub fn members(&self) -> u128 {
        self.members
    }

    /// Returns whether an extent has slots with an unknown address.
    pub fn has_slots(&self, id: RecordId) -> bool {
        self.slots.contains_key(&id)
    }

    /// Returns the bytes that go into the table for a damaged record.
    pub fn bytes(&self, id: RecordId) -> Option<&[u8; RECORD_BYTES]> {
        self.records.get(&id).map(|bytes| &bytes.bytes)
    }

    /// Returns the address sector that is written for a damaged record.
    pub fn sector(&self, id: RecordId) -> Option<&Words> {
        self.records.get(&id).and_then(|_| self.sectors.get(&id)).map(|words| &**words)
    }

    /// Returns the word that is written for a slot in use with an unknown address.
    pub fn word(&self, id: RecordId, slot: u8) -> u64 {
        self.sectors.get(&id).map_or(u64::MAX, |words| words[usize::from(slot)])
    }
}
