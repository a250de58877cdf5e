//! The records of a pool as its home knows them: what all shards read ([`Records`]), and what only the home needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use braid_format::pool::{Owner, Record, RecordKind};

use super::damage::Damage;
use super::keyed::Keyed;
use super::owners::{OwnerId, Owners};
use super::records::{LOGICAL_PACKED as PACKED, OWNER_HELD, Records};
use super::reserves::Reserves;
use super::statements::Watch;
use super::units::{EXTENT_BLOCKS, ExtentId};

/// An address of a packed extent that nobody uses.
pub const NO_BLOCK: u64 = u64::MAX;

/// Names one record: an extent's, or one that has no extent behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RecordId {
    /// The member.
    pub member: u8,
    /// Index in its table.
    pub index: u32,
}

impl RecordId {
    fn key(self) -> u64 {
        u64::from(self.member) << 32 | u64::from(self.index)
    }
}

impl From<ExtentId> for RecordId {
    fn from(extent: ExtentId) -> RecordId {
        RecordId { member: extent.member, index: extent.index }
    }
}

/// The addresses of a packed extent, by slot.
#[derive(Clone, Debug)]
pub struct Addresses(pub Box<[u64; EXTENT_BLOCKS as usize]>);

impl Addresses {
    /// Of an extent in which nothing stands.
    pub fn none() -> Addresses {
        Addresses(Box::new([NO_BLOCK; EXTENT_BLOCKS as usize]))
    }
}

#[derive(Clone, Copy)]
struct Uncommitted {
    /// The last unit that changes it.
    sequence: u64,
    committed: Record,
}

impl Default for Uncommitted {
    fn default() -> Uncommitted {
        Uncommitted { sequence: 0, committed: Record::free(0) }
    }
}

/// See the module's page. What is said here is as of the last change; [`State::committed`] gives what the tables may hold.
pub struct State {
    /// What all shards read.
    pub records: Arc<Records>,
    /// Owners.
    pub owners: Owners,
    /// Zero words of whole extents, where there are any.
    zero_words: BTreeMap<RecordId, u64>,
    /// Records without an extent that are in use.
    zeros: BTreeMap<RecordId, Record>,
    /// The same by owner and first logical extent.
    zeros_of: BTreeMap<(OwnerId, u32), Vec<RecordId>>,
    /// For each member, how many records have no extent behind them, and those that are free.
    zero_slots: Vec<(u32, Vec<u32>)>,
    /// Bit *i*: nothing new goes to member *i*.
    closed: u128,
    /// Addresses of packed extents.
    packed: BTreeMap<RecordId, Addresses>,
    /// Records with changes that are not committed: their committed image.
    uncommitted: Keyed<Uncommitted>,
    /// Bit *i*: member *i* is not here, and what it has nobody knows.
    pub absent: u128,
    /// What of the tables cannot be believed.
    pub(super) damage: Damage,
    /// Slots of owners that no member's list has whole; none in a pool that is open.
    pub(super) unread_owners: BTreeSet<u32>,
    /// The same of owners, by slot.
    uncommitted_owners: BTreeMap<u32, (u64, Option<Owner>)>,
    /// Somebody goes through the records, and must not miss what moves meanwhile.
    pub(super) watch: Option<Watch>,
    /// What thick volumes have a right to.
    pub(super) reserves: Reserves,
}

impl State {
    /// Of a pool without members.
    pub fn new(owner_slots: u32) -> State {
        State {
            records: Arc::new(Records::new()),
            owners: Owners::new(owner_slots),
            zero_words: BTreeMap::new(),
            zeros: BTreeMap::new(),
            zeros_of: BTreeMap::new(),
            zero_slots: Vec::new(),
            closed: 0,
            packed: BTreeMap::new(),
            // Room for the most that there may be would be too large for the processor's caches, and is rarely needed.
            uncommitted: Keyed::growing(),
            absent: 0,
            damage: Damage::default(),
            unread_owners: BTreeSet::new(),
            uncommitted_owners: BTreeMap::new(),
            watch: None,
            reserves: Reserves::default(),
        }
    }

    /// Takes a member in, all of whose records are free.
    pub fn add_member(&mut self, member: u8, extents: u32, zero_slots: u32) {
        self.records.add_member(member, extents);
        let at = usize::from(member);
        if self.zero_slots.len() <= at {
            self.zero_slots.resize_with(at + 1, || (0, Vec::new()));
        }
        self.zero_slots[at] = (zero_slots, (extents..extents + zero_slots).rev().collect());
    }

    /// Notes that these members, by their bits, are not here.
    pub fn go_without(&mut self, absent: u128) {
        self.absent = absent;
        let numbers = (u128::BITS - absent.leading_zeros()) as usize;
        if self.zero_slots.len() < numbers {
            self.zero_slots.resize_with(numbers, || (0, Vec::new()));
        }
    }

    /// Whether the record has an extent behind it.
    pub fn is_extent(&self, id: RecordId) -> bool {
        id.index < self.records.extents(id.member)
    }

    /// The extent behind a record.
    pub fn extent(&self, id: RecordId) -> ExtentId {
        debug_assert!(self.is_extent(id));
        ExtentId { member: id.member, index: id.index }
    }

    /// A record as of the last change.
    pub fn record(&self, id: RecordId) -> Record {
        if !self.is_extent(id) {
            return self.zeros.get(&id).copied().unwrap_or(Record::free(0));
        }
        let extent = self.extent(id);
        let owner = self.records.owner(extent) & !OWNER_HELD;
        let life = self.records.life(extent);
        let logical = self.records.logical(extent);
        let present = self.records.present(extent);
        match (owner, logical) {
            (0, _) => Record::free(life),
            (_, PACKED) => Record { kind: RecordKind::Packed, life, owner, logical, present, zero: 0 },
            _ => {
                let zero = self.zero_words.get(&id).copied().unwrap_or(0);
                Record { kind: RecordKind::Whole, life, owner, logical, present, zero }
            }
        }
    }

    /// What the tables may hold of a record.
    pub fn committed(&self, id: RecordId) -> Record {
        self.uncommitted.get(id.key()).map_or_else(|| self.record(id), |entry| entry.committed)
    }

    /// What the owners' areas may hold of a slot.
    pub fn committed_owner(&self, slot: u32) -> Option<&Owner> {
        match self.uncommitted_owners.get(&slot) {
            Some((_, owner)) => owner.as_ref(),
            None => self.owners.in_slot(slot),
        }
    }

    /// Whether a record has changes that are not committed.
    pub fn is_uncommitted(&self, id: RecordId) -> bool {
        self.uncommitted.get(id.key()).is_some()
    }

    /// Makes a record hold this, by the unit `sequence`; 0 where it is read from a table or a ring.
    pub fn set(&mut self, id: RecordId, record: &Record, sequence: u64) {
        if let Some(mut watch) = self.watch.take() {
            watch.note(self, id, record);
            self.watch = Some(watch);
        }
        self.damage.stated(id, sequence);
        if sequence != 0 {
            match self.uncommitted.get_mut(id.key()) {
                Some(entry) => entry.sequence = sequence,
                None => {
                    let committed = self.record(id);
                    self.uncommitted.insert(id.key(), Uncommitted { sequence, committed });
                }
            }
        }
        if self.is_extent(id) {
            self.set_extent(id, record, sequence != 0);
        } else {
            self.set_zeros(id, record);
        }
    }

    /// Makes a record hold what its table says, before anything else is known of it: for millions of them, most of which are whole.
    pub(super) fn load(&mut self, id: RecordId, record: &Record) {
        if record.kind != RecordKind::Whole || record.zero != 0 {
            return self.set(id, record, 0);
        }
        let extent = self.extent(id);
        self.records.set_life(extent, record.life);
        self.records.set_logical(extent, record.logical);
        self.records.set_present(extent, record.present);
        self.records.set_owner(extent, record.owner);
    }

    fn set_extent(&mut self, id: RecordId, record: &Record, is_uncommitted: bool) {
        if !self.reserves.is_empty() {
            let old = self.record(id);
            // In this order, so that what stays does not look missing in between.
            if record.kind == RecordKind::Whole {
                self.reserves.came(record.owner, record.logical);
            }
            if old.kind == RecordKind::Whole {
                self.reserves.left(old.owner, old.logical);
            }
        }
        let extent = self.extent(id);
        let held = self.records.owner(extent) & OWNER_HELD;
        let logical = if record.kind == RecordKind::Packed { PACKED } else { record.logical };
        self.records.set_life(extent, record.life);
        self.records.set_logical(extent, logical);
        self.records.set_present(extent, record.present);
        let owner = if record.kind == RecordKind::Free { 0 } else { record.owner | held };
        self.records.set_owner(extent, owner);
        match record.zero {
            0 => self.zero_words.remove(&id),
            zero => self.zero_words.insert(id, zero),
        };
        match record.kind {
            RecordKind::Packed => {
                self.packed.entry(id).or_insert_with(Addresses::none);
            }
            // As long as that is not committed, the tables may hold what was before, and need its addresses.
            _ if is_uncommitted || self.is_uncommitted(id) => {}
            _ => {
                self.packed.remove(&id);
            }
        }
    }

    fn set_zeros(&mut self, id: RecordId, record: &Record) {
        if let Some(old) = self.zeros.remove(&id) {
            let ids = self.zeros_of.get_mut(&(old.owner, old.logical)).expect("listed by owner and place");
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.zeros_of.remove(&(old.owner, old.logical));
            }
            self.zero_slots[usize::from(id.member)].1.push(id.index);
        }
        if record.kind == RecordKind::Zeros {
            self.zeros.insert(id, *record);
            self.zeros_of.entry((record.owner, record.logical)).or_default().push(id);
            self.zero_slots[usize::from(id.member)].1.retain(|index| *index != id.index);
        }
    }

    /// Makes an owner's slot hold this, by the unit `sequence`; 0 as for [`State::set`].
    pub fn set_owner(&mut self, slot: u32, owner: Option<Owner>, sequence: u64) {
        if sequence != 0 {
            let committed = self.committed_owner(slot).cloned();
            self.uncommitted_owners.insert(slot, (sequence, committed));
        }
        self.owners.put(slot, owner);
    }

    /// The unit `sequence`, by which a record got this image, is committed.
    pub fn record_committed(&mut self, id: RecordId, sequence: u64, image: &Record) {
        self.damage.committed(id, sequence);
        if let Some(entry) = self.uncommitted.get_mut(id.key()) {
            if entry.sequence <= sequence {
                self.uncommitted.remove(id.key());
                if image.kind != RecordKind::Packed {
                    self.packed.remove(&id);
                }
            } else {
                entry.committed = *image;
            }
        }
    }

    /// The same of an owner.
    pub fn owner_committed(&mut self, slot: u32, sequence: u64, image: Option<Owner>) {
        if let Some(entry) = self.uncommitted_owners.get_mut(&slot) {
            if entry.0 <= sequence {
                self.uncommitted_owners.remove(&slot);
            } else {
                entry.1 = image;
            }
        }
    }

    /// A free record without an extent for this owner, on the member that has most of those that it uses: so that what is kept on some
    /// members needs no other.
    pub fn free_zero_slot(&self, owner: OwnerId) -> Option<RecordId> {
        let on = self.owners.get(owner).map_or(0, Owner::uses) & !self.closed;
        let most = |(_, slots): &(usize, &Vec<u32>)| slots.len();
        let members = self.zero_slots.iter().map(|(_, free)| free).enumerate();
        let members = members.filter(|(member, _)| on >> member & 1 == 1);
        let (member, free) = members.max_by_key(|entry| (most(entry), usize::MAX - entry.0))?;
        Some(RecordId { member: member as u8, index: *free.last()? })
    }

    /// This one, which is free, is not to be given out; or is again.
    pub(super) fn take_zero_slot(&mut self, id: RecordId) {
        self.zero_slots[usize::from(id.member)].1.retain(|index| *index != id.index);
    }

    /// See [`State::take_zero_slot`].
    pub(super) fn give_zero_slot(&mut self, id: RecordId) {
        self.zero_slots[usize::from(id.member)].1.push(id.index);
    }

    /// How many of them are free.
    pub fn free_zero_slots(&self) -> usize {
        self.zero_slots.iter().map(|(_, free)| free.len()).sum()
    }

    /// How many of them are free on a member.
    pub fn free_zero_slots_of(&self, member: u8) -> u32 {
        self.zero_slots[usize::from(member)].1.len() as u32
    }

    /// Nothing new goes to this member; or it does again.
    pub fn close_member(&mut self, member: u8, closed: bool) {
        self.closed = self.closed & !(1 << member) | u128::from(closed) << member;
    }

    /// How many records without an extent a member has.
    pub fn zero_slots(&self, member: u8) -> u32 {
        self.zero_slots[usize::from(member)].0
    }

    /// Records without an extent, of one owner, in the order of their places.
    pub fn zeros_of(&self, owner: OwnerId) -> impl Iterator<Item = (RecordId, Record)> + '_ {
        let ids = self.zeros_of.range((owner, 0)..=(owner, u32::MAX)).flat_map(|(_, ids)| ids.iter().copied());
        ids.map(|id| (id, self.zeros[&id]))
    }

    /// Records without an extent, of all owners, by owner and place, from this one on.
    pub fn zeros_from(&self, from: (OwnerId, u32)) -> impl Iterator<Item = ((OwnerId, u32), Record)> + '_ {
        let ids = self.zeros_of.range(from..).flat_map(|(key, ids)| ids.iter().map(|id| (*key, *id)));
        ids.map(|(key, id)| (key, self.zeros[&id]))
    }

    /// Which blocks of a logical extent an owner's zero ranges cover.
    pub fn zero_range_word(&self, owner: OwnerId, logical: u32) -> u64 {
        let ranges = self.zeros_of.range((owner, 0)..=(owner, logical)).flat_map(|(_, ids)| ids);
        ranges.map(|id| zeros_at(&self.zeros[id], logical)).fold(0, |all, word| all | word)
    }

    /// Whether the owner may have blocks that nobody sees now: what it states is not all known.
    pub fn may_lack(&self, owner: OwnerId) -> bool {
        self.damage.has_owner(owner) || self.owners.get(owner).is_some_and(|owner| owner.may_be_on() & self.absent != 0)
    }

    /// The same of any whose blocks show through it.
    pub fn chain_may_lack(&self, owner: OwnerId) -> bool {
        (self.absent != 0 || self.damage.is_any())
            && self.owners.chain(owner).into_iter().any(|owner| self.may_lack(owner))
    }

    /// Extents that are packed, or were and are not committed as anything else.
    pub(super) fn packed_extents(&self) -> Vec<RecordId> {
        let packed = |id: &RecordId| self.record(*id).kind == RecordKind::Packed;
        self.packed.keys().copied().filter(packed).collect()
    }

    /// Addresses of a packed extent.
    pub fn addresses(&self, id: RecordId) -> Option<&Addresses> {
        self.packed.get(&id)
    }

    /// Notes which block stands in a slot of a packed extent. What its record says is present counts.
    pub fn set_address(&mut self, id: RecordId, slot: u8, block: u64) {
        self.packed.entry(id).or_insert_with(Addresses::none).0[usize::from(slot)] = block;
    }

    /// All members up to the last that is here, with how many extents they have: none where one is not.
    pub fn members(&self) -> impl Iterator<Item = (u8, u32)> + '_ {
        (0..self.zero_slots.len() as u8).map(|member| (member, self.records.extents(member)))
    }
}

/// Which blocks of a logical extent a record of kind zeros covers.
pub fn zeros_at(record: &Record, logical: u32) -> u64 {
    let count = record.present;
    if logical < record.logical || u64::from(logical - record.logical) >= count { 0 } else { record.zero }
}
