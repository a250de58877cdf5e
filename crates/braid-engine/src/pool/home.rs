//! A pool as its home shard has it: where new blocks are allocated, and how they are recorded once they are written.
//!
//! A write to a block that its volume's owner does not define allocates space ([`Pool::allocate`]), writes its data
//! there, and maps the block ([`Pool::map_allocation`]): from then on reads find the block there, and the in-memory log
//! has the change. No read finds the new data before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use braid_format::Uuid;
use braid_format::pool::{Change, OWNER_UNITS, Owner, Record, RecordKind};

use super::commit::Commits;
use super::int_map::IntMap;
use super::map::{MapWriter, Visible, VolumeMap};
use super::memory_log::MemoryLog;
use super::moves::Moves;
use super::owners::OwnerId;
use super::records::OWNER_HELD;
use super::shared::{BlockAllocation, PoolShared, Reservation, VolumeId, VolumeShared};
use super::space::{Free, Freed, Spread};
use super::state::PoolTables;
use super::units::{EXTENT_BLOCKS, ExtentId, RecordId, mask};
use super::{OpenPacked, Pool, Room, Volume};

/// Minimum new blocks of a logical extent over a snapshot that get an extent of their own.
const WHOLE_BLOCKS_MIN: u32 = 32;

impl Pool {
    /// Returns a pool whose state has been read. All extents that no record uses are free.
    pub(super) fn new(uuid: Uuid, state: PoolTables, log: MemoryLog, commits: Commits) -> Pool {
        let shared = Arc::new(PoolShared {
            records: Arc::clone(&state.records),
            turn: AtomicU32::new(0),
            published: AtomicU64::new(log.published()),
            committed: AtomicU64::new(log.published()),
        });
        let room = |(_, extents)| Room { free: Free::none(extents), freed: Freed::default(), closed: false };
        let rooms = state.members().map(room).collect();
        let mut pool = Pool {
            uuid,
            state,
            shared,
            log,
            rooms,
            spread: Spread::default(),
            volumes: BTreeMap::new(),
            next_volume: 0,
            pending: IntMap::growing(),
            pending_by_owner: IntMap::growing(),
            opening: IntMap::growing(),
            change_buffer: Vec::with_capacity(2 * EXTENT_BLOCKS as usize + 1),
            open_packed: BTreeMap::new(),
            commits,
            progress: 0,
            empties: Vec::new(),
            view: Visible::new(),
            deleted: Vec::new(),
            ended: Vec::new(),
            merge: None,
            moves: Moves::default(),
            builds: Vec::new(),
            compaction: None,
            flatten: None,
            flattening_held: BTreeSet::new(),
            copied: 0,
        };
        pool.find_free();
        pool
    }

    /// Returns whether nothing is under way: everything is committed, and deleted and freed space is free again.
    pub fn is_settled(&self) -> bool {
        let freed = self.rooms.iter().map(|room| room.freed.len()).sum::<usize>();
        let idle = self.pending.is_empty() && self.empties.is_empty() && self.merge.is_none() && self.moves.is_idle();
        idle && freed == 0 && self.log.is_empty() && !self.commits.is_busy()
    }

    /// Returns whether an owner's next packed blocks go into this extent.
    pub fn is_open(&self, extent: ExtentId) -> bool {
        self.open_packed.values().any(|open| open.extent == extent)
    }

    /// Builds the map of a volume again, to compare.
    pub fn rebuild_map(&self, id: VolumeId) -> Arc<VolumeMap> {
        let owner = self.volumes[&id].owner;
        Arc::clone(self.build(owner).map())
    }

    /// Switches to another log, which is empty, as the current one is.
    pub(super) fn use_log(&mut self, log: MemoryLog) {
        debug_assert_eq!(self.log.published(), log.published());
        self.log = log;
    }

    /// Its identity.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// What all shards read of it.
    pub fn shared(&self) -> &Arc<PoolShared> {
        &self.shared
    }

    /// Returns what is known of its records and owners.
    pub fn state(&self) -> &PoolTables {
        &self.state
    }

    /// Returns how many extents can be allocated now, on all members.
    pub fn free_extents(&self) -> u64 {
        self.rooms.iter().filter(|room| !room.closed).map(|room| u64::from(room.free.count())).sum()
    }

    /// Registers a volume whose map is built.
    pub(super) fn add_volume(&mut self, owner: OwnerId, writer: MapWriter, read_only: bool) -> VolumeId {
        let id = VolumeId(self.next_volume);
        self.next_volume += 1;
        let owners = [AtomicU32::new(owner), AtomicU32::new(owner)];
        let shared = Arc::new(VolumeShared { map: Arc::clone(writer.map()), owners });
        self.volumes.insert(id, Volume { owner, writer, shared, read_only });
        id
    }

    /// What all shards read of a volume.
    pub fn volume(&self, id: VolumeId) -> Option<&Arc<VolumeShared>> {
        self.volumes.get(&id).map(|volume| &volume.shared)
    }

    /// Returns whether nothing of a volume may change: it is a snapshot, or has blocks in doubt.
    pub fn is_read_only(&self, id: VolumeId) -> bool {
        self.volumes.get(&id).is_none_or(|volume| volume.read_only)
    }

    /// Returns the missing members, a bit mask.
    pub fn missing_members(&self) -> u128 {
        self.state.missing
    }

    /// The owner under which new blocks of a volume are kept.
    pub fn owner_of(&self, id: VolumeId) -> Option<OwnerId> {
        self.volumes.get(&id).map(|volume| volume.owner)
    }

    /// Appends changes to the log atomically, and applies them to the state. Returns their last log unit.
    pub(super) fn change(&mut self, changes: &[(u8, u32, Change)]) -> u64 {
        let before = self.log.published();
        let last = self.log.append(changes);
        self.apply_changes(changes, before);
        self.shared.published.store(last, Ordering::Release);
        last
    }

    /// Applies changes to the state. Their first log unit follows `unit`.
    pub(super) fn apply_changes(&mut self, changes: &[(u8, u32, Change)], mut unit: u64) {
        for (member, index, change) in changes {
            let id = RecordId { member: *member, index: *index };
            unit += if matches!(change, Change::Owner { .. }) { OWNER_UNITS as u64 } else { 1 };
            if !self.builds.is_empty() {
                self.note_for_builds(id, change);
            }
            if self.merge.is_some() {
                self.note_for_merge(change);
            }
            if self.flatten.is_some() {
                self.note_for_flatten(id, change);
            }
            match change {
                Change::Record { record } => self.state.set(id, record, unit),
                Change::Slot { slot, block, record } => {
                    self.state.set(id, record, unit);
                    self.state.set_address(id, *slot, *block);
                }
                Change::Owner { owner } => self.state.set_owner(*index, owner.clone(), unit),
                Change::Padding => {}
            }
        }
    }

    /// Returns a counter that rises with every event after which a waiting request may find room.
    pub fn progress(&self) -> u64 {
        self.progress
    }

    /// Notes that the log is committed up to `mark`.
    pub(super) fn note_committed(&mut self, mark: u64) {
        self.progress += 1;
        self.log.trim(mark);
        self.shared.committed.store(mark, Ordering::Release);
        self.rooms.iter_mut().for_each(|room| room.freed.committed(mark));
    }

    /// Allocates space for a write of up to `blocks` blocks from `block` on. The result covers at least one block, and
    /// lies in one logical extent. The caller holds these blocks in the range table of volumes.
    ///
    /// # Panics
    /// If there is no such volume, or it is read-only.
    pub fn allocate(&mut self, volume: VolumeId, block: u64, blocks: u32) -> BlockAllocation {
        let logical = (block / u64::from(EXTENT_BLOCKS)) as u32;
        let first = (block % u64::from(EXTENT_BLOCKS)) as u32;
        let blocks = blocks.min(EXTENT_BLOCKS - first);
        let Volume { owner, writer, read_only, .. } = self.volumes.get(&volume).expect("a volume that is served");
        let owner = *owner;
        assert!(!read_only, "a read-only volume is not written");
        writer.map().visible(&self.state.records, logical, &mut self.view);
        let records = &self.state.records;
        let own = |extent: ExtentId| records.owner(extent) & !OWNER_HELD == owner;
        let held = |extent: ExtentId| records.owner(extent) & OWNER_HELD != 0;
        if let Some(piece) = self.view.pieces().iter().find(|piece| piece.mask >> first & 1 == 1 && own(piece.extent)) {
            if held(piece.extent) {
                return BlockAllocation::Held;
            }
            let run = (!(piece.mask >> first)).trailing_zeros();
            return BlockAllocation::Own { extent: piece.extent, position: first, blocks: run.min(blocks) };
        }
        let mut own_present =
            self.view.pieces().iter().filter(|piece| own(piece.extent)).fold(0, |all, piece| all | piece.mask);
        for packed in self.view.packed().filter(|packed| own(packed.extent)) {
            if u32::from(packed.block) == first {
                if held(packed.extent) {
                    return BlockAllocation::Held;
                }
                return BlockAllocation::Own { extent: packed.extent, position: u32::from(packed.slot), blocks: 1 };
            }
            own_present |= 1 << packed.block;
        }
        let run = mask(first, blocks);
        let blocks =
            (own_present & run).checked_ilog2().map_or(blocks, |_| (own_present & run).trailing_zeros() - first);
        // While the data are in flight, a merge may give records of these blocks from an older owner to this one.
        // Mapping then removes the blocks from those records in the same group, which takes up to one unit more for
        // each.
        let below = self.state.owners.get(owner).is_some_and(|owner| owner.parent != 0);
        let units = (if below { 2 * blocks + 1 } else { blocks }) as u16;
        if !self.log.reserve(u64::from(units)) {
            return BlockAllocation::LogFull;
        }
        let new = |extent, position, blocks, packed| Reservation {
            extent,
            position,
            blocks,
            block,
            volume,
            owner,
            packed,
            units,
        };
        let whole = self.view.pieces().iter().map(|piece| piece.extent).filter(|extent| own(*extent));
        // Blocks that an extent defines as zeros are written to that extent, so that no two records of an owner define
        // a block.
        let zero_of = |extent: ExtentId| self.state.record(extent.into()).zero;
        let mut chosen: Option<(ExtentId, u32)> = None;
        for extent in whole.clone() {
            let zero = zero_of(extent) & run;
            if zero >> first & 1 == 1 {
                chosen = Some((extent, (!(zero >> first)).trailing_zeros().min(blocks)));
            }
        }
        if chosen.is_none() {
            let others = whole.clone().map(zero_of).fold(0, |all, zero| all | zero) & run;
            let clear = (others >> first).trailing_zeros().min(blocks);
            let opened = self.opening.get(opening_key(owner, logical)).map(|bits| ExtentId::from_bits(*bits));
            chosen = whole.clone().next().or(opened).map(|extent| (extent, clear));
        }
        if let Some((extent, clear)) = chosen {
            if held(extent) {
                self.log.unreserve(u64::from(units));
                return BlockAllocation::Held;
            }
            self.count_pending(owner, extent);
            return BlockAllocation::New(new(extent, first, clear, false));
        }
        let others_see = self.view.mask() != 0 || self.state.zero_range_word(owner, logical) != 0;
        if others_see
            && blocks < WHOLE_BLOCKS_MIN
            && let Some((extent, position, count)) = self.packed_slots(owner, blocks)
        {
            self.count_pending(owner, extent);
            return BlockAllocation::New(new(extent, position, count, true));
        }
        if let Some(extent) = self.take_extent(owner, Some(logical)) {
            self.opening.insert(opening_key(owner, logical), extent.bits());
            // The reservation is used up from now on, not only when the data are written.
            self.state.reserves.add_whole(owner, logical);
            self.count_pending(owner, extent);
            return BlockAllocation::New(new(extent, first, blocks, false));
        }
        // The last resort: slots of the open packed extent.
        if let Some((extent, position, count)) = self.packed_slots(owner, blocks) {
            self.count_pending(owner, extent);
            return BlockAllocation::New(new(extent, position, count, true));
        }
        self.log.unreserve(u64::from(units));
        // A copy of blocks that the owner sees in this logical extent uses its reservation: once the copy is mapped,
        // the write finds room in the copy's extent.
        let opens = self.is_seen_by_thick(owner) && self.moves.copy_targets().any(|copied| copied == (owner, logical));
        if opens { BlockAllocation::Held } else { BlockAllocation::Full }
    }

    /// Returns owner and logical extent of newly allocated extents in which nothing is mapped yet.
    pub(super) fn openings(&self) -> impl Iterator<Item = (OwnerId, u32)> {
        self.opening.keys().map(|key| ((key >> 32) as u32, key as u32))
    }

    /// Returns whether an extent was allocated for this owner's logical extent, and nothing is mapped there yet.
    pub(super) fn is_opening(&self, owner: OwnerId, logical: u32) -> bool {
        self.opening.get(opening_key(owner, logical)).is_some()
    }

    /// Holds an extent for a job: nothing else is allocated there before [`Pool::release_extent`].
    pub(super) fn hold_extent(&mut self, extent: ExtentId) {
        count_up(&mut self.pending, extent.bits());
        let owner = self.state.records.owner(extent);
        self.state.records.set_owner(extent, owner | OWNER_HELD);
    }

    /// Releases an extent that [`Pool::hold_extent`] holds.
    pub(super) fn release_extent(&mut self, extent: ExtentId) {
        let owner = self.state.records.owner(extent);
        self.state.records.set_owner(extent, owner & !OWNER_HELD);
        if count_down(&mut self.pending, extent.bits()) {
            self.free_if_empty(extent);
        }
    }

    /// Counts an allocation in this extent.
    fn count_pending(&mut self, owner: OwnerId, extent: ExtentId) {
        count_up(&mut self.pending, extent.bits());
        count_up(&mut self.pending_by_owner, u64::from(owner));
    }

    /// Returns whether an allocation in this extent is not mapped yet.
    pub(super) fn is_pending(&self, extent: ExtentId) -> bool {
        self.pending.has(extent.bits())
    }

    /// Returns whether data are in flight to allocations of this owner.
    pub fn awaits_data(&self, owner: OwnerId) -> bool {
        self.pending_by_owner.has(u64::from(owner))
    }

    /// Allocates a free extent for this owner, on a member that it may use, and not from space that is reserved for
    /// others. `logical`: the logical extent that it is to hold as a whole extent.
    pub(super) fn take_extent(&mut self, owner: OwnerId, logical: Option<u32>) -> Option<ExtentId> {
        let on = self.state.owners.get(owner).map_or(u128::MAX, Owner::allocation_members)
            & !self.unavailable_to(owner, logical);
        let free = |room: &Room| if room.closed { 0 } else { room.free.count() };
        let rooms = (0u8..).zip(self.rooms.iter().map(free));
        let member = self.spread.choose(rooms.filter(|(member, _)| on >> member & 1 == 1))?;
        let index = self.rooms[usize::from(member)].free.take().expect("it was chosen as it has free extents");
        Some(ExtentId { member, index })
    }

    /// Allocates up to `blocks` slots of the owner's open packed extent; of a new one if none is left.
    fn packed_slots(&mut self, owner: OwnerId, blocks: u32) -> Option<(ExtentId, u32, u32)> {
        let open = match self.open_packed.get(&owner).copied() {
            Some(open) if open.next < EXTENT_BLOCKS => open,
            _ => {
                let extent = self.take_extent(owner, None)?;
                self.close_packed(owner);
                OpenPacked { extent, next: 0 }
            }
        };
        let count = blocks.min(EXTENT_BLOCKS - open.next);
        self.open_packed.insert(owner, OpenPacked { next: open.next + count, ..open });
        Some((open.extent, open.next, count))
    }

    /// Closes the owner's open packed extent: no more of its slots are allocated.
    pub(super) fn close_packed(&mut self, owner: OwnerId) {
        if let Some(open) = self.open_packed.remove(&owner) {
            self.free_if_empty(open.extent);
        }
    }

    /// Maps blocks whose data are written: they are found there from now on. Returns the log unit of the change.
    pub fn map_allocation(&mut self, reservation: &Reservation) -> u64 {
        let Reservation { extent, position, blocks, block, owner, packed, units, .. } = *reservation;
        self.log.unreserve(u64::from(units));
        let id = RecordId::from(extent);
        let mut record = self.state.record(id);
        let logical = (block / u64::from(EXTENT_BLOCKS)) as u32;
        if record.kind == RecordKind::Free {
            let life = record.life.wrapping_add(1);
            record = Record { kind: RecordKind::Whole, life, owner, logical, present: 0, zero: 0 };
            if packed {
                (record.kind, record.logical) = (RecordKind::Packed, u32::MAX);
            }
        }
        debug_assert_eq!((record.owner, record.kind == RecordKind::Packed), (owner, packed));
        let mut changes = std::mem::take(&mut self.change_buffer);
        if packed {
            for k in 0..blocks {
                let slot = position + k;
                record.present |= 1 << slot;
                let change = Change::Slot { slot: slot as u8, block: block + u64::from(k), record };
                changes.push((extent.member, extent.index, change));
            }
        } else {
            record.present |= mask(position, blocks);
            record.zero &= !mask(position, blocks);
            changes.push((extent.member, extent.index, Change::Record { record }));
        }
        let own = changes.len();
        let freed = self.drop_other_definitions(reservation, logical, &mut changes);
        let before = self.log.published();
        let sequence = self.log.append(&changes);
        self.apply_changes(&changes[..own], before);
        self.note_defined(owner, logical, mask((block % u64::from(EXTENT_BLOCKS)) as u32, blocks));
        // Before the map: a shard that finds the blocks there sees that they are not committed.
        self.shared.published.store(sequence, Ordering::Release);
        let volume = self.volumes.get_mut(&reservation.volume).expect("a volume with requests is served");
        if packed {
            for k in 0..blocks {
                let slot = (position + k) as u8;
                volume.writer.set_packed(&self.state.records, block + u64::from(k), extent, slot);
            }
        } else {
            // Nothing hides blocks of the volume's newest owner. If a snapshot was taken since the allocation, its
            // owner is no longer the newest.
            let newest = volume.owner == owner;
            volume.writer.set_blocks(&self.state.records, logical, mask(position, blocks), extent, newest);
        }
        // Only now that no map follows these records any longer.
        self.apply_changes(&changes[own..], before + own as u64);
        for extent in freed {
            self.rooms[usize::from(extent.member)].freed.add(sequence, extent);
        }
        changes.clear();
        self.change_buffer = changes;
        self.end_reservation(reservation, logical);
        sequence
    }

    /// Drops other records' definitions of these blocks in the same group, so that no two records of an owner define a
    /// block: a merge may have given the owner blocks of an older one while the data were in flight. Returns the
    /// extents that this frees.
    fn drop_other_definitions(
        &mut self,
        reservation: &Reservation,
        logical: u32,
        changes: &mut Vec<(u8, u32, Change)>,
    ) -> Vec<ExtentId> {
        let Reservation { extent: target, blocks, block, owner, .. } = *reservation;
        let bits = mask((block % u64::from(EXTENT_BLOCKS)) as u32, blocks);
        let Pool { volumes, state, view, pending, .. } = self;
        volumes[&reservation.volume].writer.map().visible(&state.records, logical, view);
        let mut freed = Vec::new();
        let own = |extent: ExtentId| extent != target && state.records.owner(extent) & !OWNER_HELD == owner;
        for piece in view.pieces().iter().filter(|piece| own(piece.extent)) {
            let mut record = state.record(piece.extent.into());
            if (record.present | record.zero) & bits == 0 {
                continue;
            }
            record.present &= !bits;
            record.zero &= !bits;
            if record.present | record.zero == 0 && !pending.has(piece.extent.bits()) {
                record = Record::free(record.life);
                freed.push(piece.extent);
            }
            changes.push((piece.extent.member, piece.extent.index, Change::Record { record }));
        }
        for packed in view.packed().filter(|packed| bits >> packed.block & 1 == 1 && own(packed.extent)) {
            let at = (packed.extent.member, packed.extent.index);
            let earlier = changes.iter().rposition(|(member, index, _)| (*member, *index) == at);
            let mut record = match earlier.map(|at| &changes[at].2) {
                Some(Change::Record { record }) => *record,
                _ => state.record(packed.extent.into()),
            };
            record.present &= !(1 << packed.slot);
            let open = self.open_packed.get(&owner).is_some_and(|open| open.extent == packed.extent);
            if record.present == 0 && !open && !pending.has(packed.extent.bits()) {
                record = Record::free(record.life);
                freed.push(packed.extent);
            }
            changes.push((at.0, at.1, Change::Record { record }));
        }
        freed
    }

    /// Releases an allocation whose data could not be written.
    pub fn release_allocation(&mut self, reservation: &Reservation) {
        self.log.unreserve(u64::from(reservation.units));
        self.end_reservation(reservation, (reservation.block / u64::from(EXTENT_BLOCKS)) as u32);
    }

    fn end_reservation(&mut self, reservation: &Reservation, logical: u32) {
        let extent = reservation.extent;
        self.progress += 1;
        count_down(&mut self.pending_by_owner, u64::from(reservation.owner));
        if !count_down(&mut self.pending, extent.bits()) {
            return;
        }
        let key = opening_key(reservation.owner, logical);
        if self.opening.get(key) == Some(&extent.bits()) {
            self.opening.remove(key);
            self.state.reserves.remove_whole(reservation.owner, logical);
        }
        if self.open_packed.get(&reservation.owner).is_none_or(|open| open.extent != extent) {
            self.free_if_empty(extent);
        }
    }

    /// Frees an extent without blocks and without allocations in flight.
    pub(super) fn free_if_empty(&mut self, extent: ExtentId) {
        if self.is_pending(extent) {
            return;
        }
        let record = self.state.record(extent.into());
        let sequence = match record.kind {
            RecordKind::Free => 0,
            _ if record.present | record.zero != 0 => return,
            _ if !self.log.has_room(1) => return self.empties.push(extent),
            _ => {
                let free = Change::Record { record: Record::free(record.life) };
                self.change(&[(extent.member, extent.index, free)])
            }
        };
        self.rooms[usize::from(extent.member)].freed.add(sequence, extent);
    }

    /// Switches volumes to new owners, all at one instant: writes that begin now go to these.
    pub(super) fn switch(&mut self, new: &[(VolumeId, OwnerId)]) {
        let turn = self.shared.turn.load(Ordering::Relaxed).wrapping_add(1);
        for (id, owner) in new {
            let old = self.volumes.get_mut(id).expect("a volume that is served").owner;
            self.volumes.get_mut(id).expect("as before").owner = *owner;
            self.close_packed(old);
        }
        for volume in self.volumes.values() {
            volume.shared.owners[turn as usize & 1].store(volume.owner, Ordering::Release);
        }
        self.shared.turn.store(turn, Ordering::Release);
    }
}

fn opening_key(owner: OwnerId, logical: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(logical)
}

fn count_up(counts: &mut IntMap<u32>, key: u64) {
    match counts.get_mut(key) {
        Some(count) => *count += 1,
        None => counts.insert(key, 1),
    }
}

/// Counts down. Returns whether that was the last one.
fn count_down(counts: &mut IntMap<u32>, key: u64) -> bool {
    let count = counts.get_mut(key).expect("every pending allocation is counted");
    *count -= 1;
    let last = *count == 0;
    if last {
        counts.remove(key);
    }
    last
}
