//! The pool's records as its home shard knows them: what all shards read ([`Records`]), and what only the home shard
//! needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use braid_format::pool::{Owner, Record, RecordKind};

use super::damaged::Damage;
use super::int_map::IntMap;
use super::owners::{OwnerId, Owners};
use super::records::{LOGICAL_PACKED as PACKED, OWNER_HELD, Records};
use super::reserves::Reserves;
use super::units::{EXTENT_BLOCKS, ExtentId, RecordId};
use super::walked::Watch;

/// Marks a slot of a packed extent that holds no block.
pub const NO_BLOCK: u64 = u64::MAX;

/// The addresses of a packed extent, by slot.
#[derive(Clone, Debug)]
pub struct Addresses(pub Box<[u64; EXTENT_BLOCKS as usize]>);

impl Addresses {
    /// Returns the addresses of an empty extent.
    pub fn none() -> Addresses {
        Addresses(Box::new([NO_BLOCK; EXTENT_BLOCKS as usize]))
    }
}

#[derive(Clone, Copy)]
struct Uncommitted {
    /// The last log unit that changed the record.
    sequence: u64,
    committed: Record,
}

impl Default for Uncommitted {
    fn default() -> Uncommitted {
        Uncommitted { sequence: 0, committed: Record::free(0) }
    }
}

/// The records and owners of a pool as of the last change, committed or not. [`PoolTables::committed`] returns what the
/// tables may hold.
pub struct PoolTables {
    /// What all shards read.
    pub records: Arc<Records>,
    /// Owners.
    pub owners: Owners,
    /// Zero words of whole extents, where they are not 0.
    zero_words: BTreeMap<RecordId, u64>,
    /// Records without an extent that are in use: zero ranges.
    zeros: BTreeMap<RecordId, Record>,
    /// The same by owner and first logical extent.
    zeros_of: BTreeMap<(OwnerId, u32), Vec<RecordId>>,
    /// For each member: how many records it has without an extent, and which of them are free.
    zero_slots: Vec<(u32, Vec<u32>)>,
    /// Bit *i*: member *i* takes no new allocations.
    closed: u128,
    /// Addresses of packed extents.
    packed: BTreeMap<RecordId, Addresses>,
    /// Records with uncommitted changes, with their committed image.
    uncommitted: IntMap<Uncommitted>,
    /// Bit *i*: member *i* is missing, and its content is unknown.
    pub missing: u128,
    /// The damaged parts of the tables.
    pub(super) damage: Damage,
    /// Owner slots that are intact in no member's owner list; empty in an open pool.
    pub(super) unread_owners: BTreeSet<u32>,
    /// Owner slots with uncommitted changes: the last log unit that changed the slot, and its committed image.
    uncommitted_owners: BTreeMap<u32, (u64, Option<Owner>)>,
    /// Set while a walk goes through the records: the walk must not miss what moves meanwhile.
    pub(super) watch: Option<Watch>,
    /// Space reserved for thick volumes.
    pub(super) reserves: Reserves,
}

impl PoolTables {
    /// Returns the state of a pool without members.
    pub fn new(owner_slots: u32) -> PoolTables {
        PoolTables {
            records: Arc::new(Records::new()),
            owners: Owners::new(owner_slots),
            zero_words: BTreeMap::new(),
            zeros: BTreeMap::new(),
            zeros_of: BTreeMap::new(),
            zero_slots: Vec::new(),
            closed: 0,
            packed: BTreeMap::new(),
            // A map for the largest possible number of entries would not fit the CPU caches, and is rarely needed.
            uncommitted: IntMap::growing(),
            missing: 0,
            damage: Damage::default(),
            unread_owners: BTreeSet::new(),
            uncommitted_owners: BTreeMap::new(),
            watch: None,
            reserves: Reserves::default(),
        }
    }

    /// Adds a member, all of whose records are free.
    pub fn add_member(&mut self, member: u8, extents: u32, zero_slots: u32) {
        self.records.add_member(member, extents);
        let at = usize::from(member);
        if self.zero_slots.len() <= at {
            self.zero_slots.resize_with(at + 1, || (0, Vec::new()));
        }
        self.zero_slots[at] = (zero_slots, (extents..extents + zero_slots).rev().collect());
    }

    /// Marks these members (a bit mask) as missing.
    pub fn set_missing(&mut self, absent: u128) {
        self.missing = absent;
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

    /// Returns a record as of the last change, committed or not.
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

    /// Returns the committed image of a record: what the tables may hold.
    pub fn committed(&self, id: RecordId) -> Record {
        self.uncommitted.get(id.key()).map_or_else(|| self.record(id), |entry| entry.committed)
    }

    /// Returns the committed owner in a slot: what the owner lists may hold.
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

    /// Sets a record, by the log unit `sequence`; 0 if it is read from a table or a ring.
    pub fn set(&mut self, id: RecordId, record: &Record, sequence: u64) {
        if let Some(mut watch) = self.watch.take() {
            watch.note(self, id, record);
            self.watch = Some(watch);
        }
        self.damage.note_set(id, sequence);
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

    /// Sets a record as its table says, before anything else is known of it. A fast path: there are millions of
    /// records, and most are whole.
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
            // Add before removing, so that a whole extent that stays is never counted as gone in between.
            if record.kind == RecordKind::Whole {
                self.reserves.add_whole(record.owner, record.logical);
            }
            if old.kind == RecordKind::Whole {
                self.reserves.remove_whole(old.owner, old.logical);
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
            // Until this change is committed, the tables may hold the packed record and need its addresses.
            _ if is_uncommitted || self.is_uncommitted(id) => {}
            _ => {
                self.packed.remove(&id);
            }
        }
    }

    fn set_zeros(&mut self, id: RecordId, record: &Record) {
        if let Some(old) = self.zeros.remove(&id) {
            let ids = self.zeros_of.get_mut(&(old.owner, old.logical)).expect("listed by owner and logical extent");
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

    /// Sets an owner slot, by the log unit `sequence`; 0 as for [`PoolTables::set`].
    pub fn set_owner(&mut self, slot: u32, owner: Option<Owner>, sequence: u64) {
        if sequence != 0 {
            let committed = self.committed_owner(slot).cloned();
            self.uncommitted_owners.insert(slot, (sequence, committed));
        }
        self.owners.put(slot, owner);
    }

    /// Notes that the log unit `sequence`, which gave a record this image, is committed.
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

    /// Notes the same of an owner slot.
    pub fn owner_committed(&mut self, slot: u32, sequence: u64, image: Option<Owner>) {
        if let Some(entry) = self.uncommitted_owners.get_mut(&slot) {
            if entry.0 <= sequence {
                self.uncommitted_owners.remove(&slot);
            } else {
                entry.1 = image;
            }
        }
    }

    /// Returns a free record without an extent for this owner, on the member with the most of them among those that it
    /// uses: an owner that is restricted to some members needs no other member.
    pub fn free_zero_slot(&self, owner: OwnerId) -> Option<RecordId> {
        let on = self.owners.get(owner).map_or(0, Owner::allocation_members) & !self.closed;
        let most = |(_, slots): &(usize, &Vec<u32>)| slots.len();
        let members = self.zero_slots.iter().map(|(_, free)| free).enumerate();
        let members = members.filter(|(member, _)| on >> member & 1 == 1);
        let (member, free) = members.max_by_key(|entry| (most(entry), usize::MAX - entry.0))?;
        Some(RecordId { member: member as u8, index: *free.last()? })
    }

    /// Withholds this free record from allocation.
    pub(super) fn take_zero_slot(&mut self, id: RecordId) {
        self.zero_slots[usize::from(id.member)].1.retain(|index| *index != id.index);
    }

    /// Makes a withheld record available again.
    pub(super) fn give_zero_slot(&mut self, id: RecordId) {
        self.zero_slots[usize::from(id.member)].1.push(id.index);
    }

    /// Returns how many records without an extent are free.
    pub fn free_zero_slots(&self) -> usize {
        self.zero_slots.iter().map(|(_, free)| free.len()).sum()
    }

    /// Returns how many records without an extent are free on a member.
    pub fn free_zero_slots_of(&self, member: u8) -> u32 {
        self.zero_slots[usize::from(member)].1.len() as u32
    }

    /// Stops new allocations on this member, or allows them again.
    pub fn close_member(&mut self, member: u8, closed: bool) {
        self.closed = self.closed & !(1 << member) | u128::from(closed) << member;
    }

    /// How many records without an extent a member has.
    pub fn zero_slots(&self, member: u8) -> u32 {
        self.zero_slots[usize::from(member)].0
    }

    /// Returns an owner's records without an extent, ordered by first logical extent.
    pub fn zeros_of(&self, owner: OwnerId) -> impl Iterator<Item = (RecordId, Record)> + '_ {
        let ids = self.zeros_of.range((owner, 0)..=(owner, u32::MAX)).flat_map(|(_, ids)| ids.iter().copied());
        ids.map(|id| (id, self.zeros[&id]))
    }

    /// Returns the records without an extent of all owners, ordered by owner and first logical extent, from this key
    /// on.
    pub fn zeros_from(&self, from: (OwnerId, u32)) -> impl Iterator<Item = ((OwnerId, u32), Record)> + '_ {
        let ids = self.zeros_of.range(from..).flat_map(|(key, ids)| ids.iter().map(|id| (*key, *id)));
        ids.map(|(key, id)| (key, self.zeros[&id]))
    }

    /// Which blocks of a logical extent an owner's zero ranges cover.
    pub fn zero_range_word(&self, owner: OwnerId, logical: u32) -> u64 {
        let ranges = self.zeros_of.range((owner, 0)..=(owner, logical)).flat_map(|(_, ids)| ids);
        ranges.map(|id| zeros_at(&self.zeros[id], logical)).fold(0, |all, word| all | word)
    }

    /// Returns whether the owner may have blocks that cannot be seen now: its records are not all known.
    pub fn may_miss_records(&self, owner: OwnerId) -> bool {
        self.damage.is_in_doubt(owner)
            || self.owners.get(owner).is_some_and(|owner| owner.block_members() & self.missing != 0)
    }

    /// Returns the same of the owner and every ancestor whose blocks show through it.
    pub fn chain_may_miss_records(&self, owner: OwnerId) -> bool {
        (self.missing != 0 || self.damage.has_doubt())
            && self.owners.chain(owner).into_iter().any(|owner| self.may_miss_records(owner))
    }

    /// Returns the extents that are packed as of the last change.
    pub(super) fn packed_extents(&self) -> Vec<RecordId> {
        let packed = |id: &RecordId| self.record(*id).kind == RecordKind::Packed;
        self.packed.keys().copied().filter(packed).collect()
    }

    /// Addresses of a packed extent.
    pub fn addresses(&self, id: RecordId) -> Option<&Addresses> {
        self.packed.get(&id)
    }

    /// Sets the block that a slot of a packed extent holds. It is valid only if the record says that the slot is in
    /// use.
    pub fn set_address(&mut self, id: RecordId, slot: u8, block: u64) {
        self.packed.entry(id).or_insert_with(Addresses::none).0[usize::from(slot)] = block;
    }

    /// Returns all member numbers up to the highest known one, with their extent counts: 0 for a missing member.
    pub fn members(&self) -> impl Iterator<Item = (u8, u32)> + '_ {
        (0..self.zero_slots.len() as u8).map(|member| (member, self.records.extents(member)))
    }
}

/// Which blocks of a logical extent a record of kind zeros covers.
pub fn zeros_at(record: &Record, logical: u32) -> u64 {
    let count = record.present;
    if logical < record.logical || u64::from(logical - record.logical) >= count { 0 } else { record.zero }
}
