//! What of the tables cannot be believed: records and addresses whose checksums are wrong, or that cannot be read.
//!
//! Whose a damaged record was nobody knows, and what its bytes say of that is never believed. So everybody who may have had
//! something on its member is *in doubt* ([`State::may_lack`]): what such an owner has on record elsewhere is certain, and everything else is an error to
//! read, never what stands in a parent, and never zeros. Of a damaged address the owner is known, and he alone is in doubt.
//!
//! Nothing is changed of what is damaged: its bytes go back into the tables as they are, its extent is nobody's and is not given
//! out. What was read wrongly once and rightly at the next start is there again, and no harm was done, as nobody who is in doubt says
//! anything new. It ends when somebody decides that what was there is lost ([`Pool::accept_damage`]).

use std::collections::{BTreeMap, BTreeSet};

use braid_format::pool::{Change, Owner, RECORD_BYTES, Record, RecordKind, decode_address};

use super::admin::AdminError;
use super::checkpoint::SECTORS_EACH;
use super::home::Pool;
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::state::{NO_BLOCK, RecordId, State};
use super::units::{EXTENT_BLOCKS, ExtentId};
use crate::planted::{Planted, planted};

/// What stands in the place of bytes that could not be read. No record, and no address, is like that.
pub(super) const UNREAD: u8 = 0xff;

/// A record that is none, as it stands on its member.
struct Bytes {
    bytes: [u8; RECORD_BYTES],
    /// The unit that says what it is from now on; 0: there is none.
    settled: u64,
}

/// The words of an address sector.
pub(super) type Words = [u64; EXTENT_BLOCKS as usize];

/// All that is damaged.
#[derive(Default)]
pub(super) struct Damage {
    records: BTreeMap<RecordId, Bytes>,
    /// Sectors of which some address in use could not be believed, and those of damaged records, as they stand there.
    sectors: BTreeMap<RecordId, Box<Words>>,
    /// Slots whose address nobody knows.
    slots: BTreeMap<RecordId, u64>,
    /// Owners who may have had something there.
    doubt: BTreeSet<OwnerId>,
    /// Bit *i*: something of member *i*.
    members: u128,
    /// Pages of tables that could not be read: of which member, which, and where it begins there. All that stands in them may be good.
    unread: BTreeMap<(u8, Page), u64>,
    /// Extents that would be free, and whose addresses would stand in such a page.
    withheld: BTreeSet<ExtentId>,
}

/// A page of a member's tables, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Page {
    /// Of records.
    Records(u32),
    /// Of addresses.
    Addresses(u32),
}

/// What is damaged of one record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damaged {
    /// Which.
    pub id: RecordId,
    /// All of it, as these bytes; else some addresses.
    pub bytes: Option<[u8; RECORD_BYTES]>,
    /// Whose it is, where that is known.
    pub owner: Option<OwnerId>,
    /// How many blocks may be lost with it: at most.
    pub blocks: u32,
}

impl Damage {
    /// The bytes of a record are none.
    pub fn note_record(&mut self, id: RecordId, bytes: [u8; RECORD_BYTES]) {
        self.records.insert(id, Bytes { bytes, settled: 0 });
    }

    /// Some of the addresses of a packed extent are none.
    pub fn note_sector(&mut self, id: RecordId, words: Words) {
        self.sectors.insert(id, Box::new(words));
    }

    /// The unit `sequence` says what a record is; 0: a ring or table does.
    #[inline]
    pub fn stated(&mut self, id: RecordId, sequence: u64) {
        if self.records.is_empty() {
            return;
        }
        if sequence == 0 {
            self.records.remove(&id);
        } else if let Some(bytes) = self.records.get_mut(&id).filter(|bytes| bytes.settled == 0) {
            bytes.settled = sequence;
        }
    }

    /// The unit `sequence` is committed, which changed a record.
    #[inline]
    pub fn committed(&mut self, id: RecordId, sequence: u64) {
        if self.records.get(&id).is_some_and(|bytes| bytes.settled != 0 && bytes.settled <= sequence) {
            self.records.remove(&id);
        }
    }

    /// Whether a record is damaged, so that nobody knows what its extent is.
    pub fn has(&self, id: RecordId) -> bool {
        self.records.get(&id).is_some_and(|bytes| bytes.settled == 0)
    }

    /// A page of a member's tables could not be read.
    pub fn note_unread(&mut self, member: u8, page: Page, offset: u64) {
        self.unread.insert((member, page), offset);
    }

    /// Where the page begins on its member, if it could not be read: it is not to be written, or what else stands in it is lost, and it
    /// may be readable the next time.
    pub fn unread(&self, member: u8, page: Page) -> Option<u64> {
        self.unread.get(&(member, page)).copied().filter(|_| !planted(Planted::UnreadWrittenOver))
    }

    /// Whether an extent that is free is not to be given out: packed, it would have a page of addresses written that could not be read. It
    /// is noted where it is not.
    pub fn withholds(&mut self, extent: ExtentId) -> bool {
        let unread = !self.unread.is_empty()
            && self.unread(extent.member, Page::Addresses(extent.index / SECTORS_EACH)).is_some();
        if unread {
            self.withheld.insert(extent);
        }
        unread
    }

    /// All extents are looked at again.
    pub fn withhold_nothing(&mut self) {
        self.withheld.clear();
    }

    /// Whether it was not.
    pub fn is_withheld(&self, extent: ExtentId) -> bool {
        self.withheld.contains(&extent)
    }

    /// Whether an owner may have had something there.
    pub fn has_owner(&self, owner: OwnerId) -> bool {
        self.doubt.contains(&owner)
    }

    /// Whether anybody may have.
    pub fn is_any(&self) -> bool {
        !self.doubt.is_empty()
    }

    /// Members on which something is damaged, by their bits.
    pub fn members(&self) -> u128 {
        self.members
    }

    /// Whether nobody knows of some slots of an extent which blocks they hold.
    pub fn has_slots(&self, id: RecordId) -> bool {
        self.slots.contains_key(&id)
    }

    /// What goes into the table for a record, where that is not what is known of it.
    pub fn bytes(&self, id: RecordId) -> Option<&[u8; RECORD_BYTES]> {
        self.records.get(&id).map(|bytes| &bytes.bytes)
    }

    /// What goes into the sector of a damaged record.
    pub fn sector(&self, id: RecordId) -> Option<&Words> {
        self.records.get(&id).and_then(|_| self.sectors.get(&id)).map(|words| &**words)
    }

    /// What goes into the sector for a slot in use whose address nobody knows.
    pub fn word(&self, id: RecordId, slot: u8) -> u64 {
        self.sectors.get(&id).map_or(u64::MAX, |words| words[usize::from(slot)])
    }
}

impl State {
    /// Everything that tables, rings and an old tail say has been read: which addresses are missing, and who is in doubt. Only before
    /// anything is served.
    pub(super) fn judge_damage(&mut self) {
        for id in self.packed_extents() {
            let record = self.record(id);
            self.read_again(id, &record);
            let addresses = self.addresses(id);
            let missing = |slot: &u32| addresses.is_none_or(|addresses| addresses.0[*slot as usize] == NO_BLOCK);
            let in_use = (0..EXTENT_BLOCKS).filter(|slot| record.present >> slot & 1 == 1);
            let mask = in_use.filter(missing).fold(0, |all, slot| all | 1u64 << slot);
            if mask != 0 {
                self.damage.slots.insert(id, mask);
                self.damage.doubt.insert(record.owner);
                self.damage.members |= 1 << id.member;
                // Nobody writes there, moves it, or frees it, before it is decided what becomes of those.
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
        // What has nobody before it needs no word on what reads as zeros.
        let may =
            |owner: &&Owner| owner.may_be_on() & extents != 0 || owner.parent != 0 && owner.may_be_on() & zeros != 0;
        let doubt: Vec<OwnerId> = self.owners.iter().filter(may).map(|owner| owner.id).collect();
        if !planted(Planted::DamageFallsThrough) {
            self.damage.doubt.extend(doubt);
        }
    }

    /// A ring may have said of a packed extent what its damaged record did not: then its sector may have what the ring has not.
    fn read_again(&mut self, id: RecordId, record: &Record) {
        let Some(words) = self.damage.sectors.get(&id).cloned() else { return };
        for (slot, word) in (0..EXTENT_BLOCKS as u8).zip(*words) {
            let known = self.addresses(id).is_some_and(|addresses| addresses.0[usize::from(slot)] != NO_BLOCK);
            if !known && let Some(block) = self.read_address(word, id, slot, record.life) {
                self.set_address(id, slot, block);
            }
        }
    }

    /// A word of an address sector, where it can be believed: the block that stands in the slot.
    pub(super) fn read_address(&self, word: u64, id: RecordId, slot: u8, life: u16) -> Option<u64> {
        let block = decode_address(word, id.member, id.index, slot, life).ok().flatten()?;
        // Nobody has blocks behind his end: a checksum of 16 bits is right by chance once in a while.
        let most = self.owners.iter().map(|owner| owner.size_bytes).max().unwrap_or(0);
        (block < most.div_ceil(super::units::BLOCK_BYTES)).then_some(block)
    }
}

impl Pool {
    /// What is damaged of its tables, in order.
    pub fn damaged(&self) -> Vec<Damaged> {
        let damage = &self.state.damage;
        let records = damage.records.iter().filter(|(_, bytes)| bytes.settled == 0).map(|(id, of)| Damaged {
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

    /// Owners who may have had something in what is damaged.
    pub fn doubtful(&self) -> impl Iterator<Item = OwnerId> + '_ {
        self.state.damage.doubt.iter().copied()
    }

    /// Whether all is known of what an owner and those before it have.
    ///
    /// # Errors
    /// `InDoubt`, `Damaged`: it is not.
    pub fn is_all_known(&self, owner: OwnerId) -> Result<(), AdminError> {
        if self.state.chain_may_lack(owner) { Err(self.why_in_doubt(owner)) } else { Ok(()) }
    }

    /// What is damaged is lost, and its extents are free: somebody has decided so. Whatever stood there, nobody knows of whom, reads as
    /// what its volume's parent has, or as zeros. Nobody who is in doubt may be served meanwhile, as maps do not change by that.
    ///
    /// # Errors
    /// `InUse`: somebody is served. `TailFull`: some of it is done; to be called again, when something was committed.
    pub fn accept_damage(&mut self) -> Result<(), AdminError> {
        if self.is_doubt_served() {
            return Err(AdminError::InUse);
        }
        for damaged in self.damaged() {
            if !self.tail.has_room(1) {
                return Err(AdminError::TailFull);
            }
            self.accept(damaged.id);
        }
        self.state.damage.doubt.clear();
        self.state.damage.unread.clear();
        for extent in std::mem::take(&mut self.state.damage.withheld) {
            self.rooms[usize::from(extent.member)].free.give(extent.index);
        }
        self.state.damage.members = 0;
        // What was passed by may be moved now.
        self.moves.begin_anew();
        self.progress += 1;
        Ok(())
    }

    fn accept(&mut self, id: RecordId) {
        let is_extent = self.state.is_extent(id);
        // Nobody knows in which life it was. Where it is packed in the next one, its sector is written before the ring lets go of that.
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

    /// Why nothing of an owner may change of which not all is known.
    pub(super) fn why_in_doubt(&self, owner: OwnerId) -> AdminError {
        let damaged = self.state.absent == 0 || self.state.damage.has_owner(owner);
        if damaged { AdminError::Damaged } else { AdminError::InDoubt }
    }
}
