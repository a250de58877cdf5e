//! A pool, as its home shard has it: where new blocks go, and what is said of them once they are there.
//!
//! A write to a block that its volume's owner does not state asks for a place ([`Pool::place`]), puts its data there, and binds it
//! ([`Pool::bind`]): from then on the block is found there, and the tail says so. Nothing of it is seen before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use braid_format::Uuid;
use braid_format::pool::{Change, OWNER_UNITS, Owner, Record, RecordKind};

use super::build::Build;
use super::commit::Commits;
use super::compact::Compaction;
use super::flatten::Flatten;
use super::fold::Fold;
use super::keyed::Keyed;
use super::map::{MapWriter, Visible, VolumeMap};
use super::moves::Moves;
use super::owners::OwnerId;
use super::records::{OWNER_HELD, Records};
use super::space::{Free, Freed, Spread};
use super::state::{RecordId, State};
use super::tail::Tail;
use super::units::{EXTENT_BLOCKS, ExtentId};
use crate::planted::{Planted, planted};

/// Names a volume that is served, or a snapshot, for as long as the pool is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeId(pub u32);

/// So many new blocks of an extent over a snapshot are worth an extent of their own.
const WHOLE_BLOCKS_MIN: u32 = 32;

/// What all shards read of a pool.
#[derive(Debug)]
pub struct PoolShared {
    /// Its records.
    pub records: Arc<Records>,
    /// Which of the two owners of each volume counts now: its lowest bit. One store, so that all volumes change at one instant.
    turn: AtomicU32,
    /// The last unit of the tail, and the last that is committed.
    pub(super) published: AtomicU64,
    committed: AtomicU64,
}

impl PoolShared {
    /// Whether something that was acknowledged is in the tail alone.
    #[inline]
    pub fn is_hot(&self) -> bool {
        !planted(Planted::HotIgnored)
            && self.published.load(Ordering::Acquire) != self.committed.load(Ordering::Acquire)
    }
}

/// What all shards read of a volume.
#[derive(Debug)]
pub struct VolumeShared {
    /// Where its blocks are.
    pub map: Arc<VolumeMap>,
    owners: [AtomicU32; 2],
}

impl VolumeShared {
    /// Under which owner a write that begins now is made. Loaded before the extent's owner is compared with it.
    #[inline]
    pub fn owner(&self, pool: &PoolShared) -> OwnerId {
        let turn = pool.turn.load(Ordering::Acquire);
        self.owners[turn as usize & 1].load(Ordering::Acquire)
    }
}

/// A volume or snapshot whose map is in memory.
pub(super) struct Volume {
    pub owner: OwnerId,
    pub writer: MapWriter,
    pub shared: Arc<VolumeShared>,
    /// A snapshot, or a volume of which some is in doubt: nothing of it changes.
    pub read_only: bool,
}

/// The packed extent that an owner fills.
#[derive(Clone, Copy)]
pub(super) struct OpenPacked {
    pub extent: ExtentId,
    pub next: u32,
}

/// Space promised for blocks whose data are on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// Where.
    pub extent: ExtentId,
    /// The first block there.
    pub position: u32,
    /// How many.
    pub blocks: u32,
    /// The first block of the volume that goes there.
    pub block: u64,
    volume: VolumeId,
    owner: OwnerId,
    packed: bool,
    /// Units of the tail that are promised for it.
    units: u16,
}

impl Reservation {
    /// Whether its blocks stand in slots of a packed extent, wherever they are in the volume.
    pub fn is_packed(&self) -> bool {
        self.packed
    }
}

/// What came of asking for a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Write there, then bind.
    New(Reservation),
    /// The volume's owner states these already: write over them.
    Own {
        /// Where.
        extent: ExtentId,
        /// The first block there.
        position: u32,
        /// For so many blocks.
        blocks: u32,
    },
    /// There is no space.
    Full,
    /// Changes have to be committed first; ask again when some are.
    TailFull,
    /// A job holds the extent; ask again when it has let go.
    Held,
}

/// Space on one member.
pub(super) struct Room {
    pub free: Free,
    pub freed: Freed,
    /// Nothing new goes there: it is being removed.
    pub closed: bool,
}

/// A pool that is open. See the module's page.
pub struct Pool {
    pub(super) uuid: Uuid,
    pub(super) state: State,
    pub(super) shared: Arc<PoolShared>,
    pub(super) tail: Tail,
    pub(super) rooms: Vec<Room>,
    spread: Spread,
    pub(super) volumes: BTreeMap<VolumeId, Volume>,
    next_volume: u32,
    /// Requests that have a place in this extent and have not bound it.
    pending: Keyed<u32>,
    /// The same by the owner under which they were given.
    promised: Keyed<u32>,
    /// Extents for which nothing is bound yet, by owner and logical extent.
    pub(super) opening: Keyed<u64>,
    /// Memory for the changes of one binding.
    binding: Vec<(u8, u32, Change)>,
    pub(super) open_packed: BTreeMap<OwnerId, OpenPacked>,
    pub(super) commits: Commits,
    /// See [`Pool::progress`].
    pub(super) progress: u64,
    /// Extents in which nothing stands any more, for whose freeing the tail had no room.
    pub(super) empties: Vec<ExtentId>,
    pub(super) view: Visible,
    /// Owners deleted by units that may not be committed.
    pub(super) deleted: Vec<(u64, OwnerId)>,
    /// Those that have nothing any more and keep their number from being given out again.
    pub(super) ended: Vec<OwnerId>,
    pub(super) fold: Option<Fold>,
    pub(super) moves: Moves,
    /// Maps that are being built.
    pub(super) builds: Vec<Build>,
    pub(super) compaction: Option<Compaction>,
    pub(super) flatten: Option<Flatten>,
    /// Owners for whom nothing is to be copied for now.
    pub(super) flattening_held: BTreeSet<OwnerId>,
    /// Blocks that were copied for it since the pool was opened.
    pub(super) copied: u64,
}

impl Pool {
    /// A pool whose state has been read. All extents that no record has are free.
    pub(super) fn new(uuid: Uuid, state: State, tail: Tail, commits: Commits) -> Pool {
        let shared = Arc::new(PoolShared {
            records: Arc::clone(&state.records),
            turn: AtomicU32::new(0),
            published: AtomicU64::new(tail.published()),
            committed: AtomicU64::new(tail.published()),
        });
        let room = |(_, extents)| Room { free: Free::none(extents), freed: Freed::default(), closed: false };
        let rooms = state.members().map(room).collect();
        let mut pool = Pool {
            uuid,
            state,
            shared,
            tail,
            rooms,
            spread: Spread::default(),
            volumes: BTreeMap::new(),
            next_volume: 0,
            pending: Keyed::growing(),
            promised: Keyed::growing(),
            opening: Keyed::growing(),
            binding: Vec::with_capacity(2 * EXTENT_BLOCKS as usize + 1),
            open_packed: BTreeMap::new(),
            commits,
            progress: 0,
            empties: Vec::new(),
            view: Visible::new(),
            deleted: Vec::new(),
            ended: Vec::new(),
            fold: None,
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

    /// Whether nothing is under way: everything is committed, what was deleted is gone, what was freed is free.
    pub fn is_settled(&self) -> bool {
        let freed = self.rooms.iter().map(|room| room.freed.len()).sum::<usize>();
        let idle = self.pending.is_empty() && self.empties.is_empty() && self.fold.is_none() && self.moves.is_idle();
        idle && freed == 0 && self.tail.is_empty() && !self.commits.is_busy()
    }

    /// Whether somebody's next blocks go into this extent.
    pub fn is_open(&self, extent: ExtentId) -> bool {
        self.open_packed.values().any(|open| open.extent == extent)
    }

    /// The map of a volume as it would be built now, to compare.
    pub fn build_again(&self, id: VolumeId) -> Arc<VolumeMap> {
        let owner = self.volumes[&id].owner;
        Arc::clone(self.build(owner).map())
    }

    /// Goes on with another tail, which is empty as the one before is.
    pub(super) fn use_tail(&mut self, tail: Tail) {
        debug_assert_eq!(self.tail.published(), tail.published());
        self.tail = tail;
    }

    /// Its identity.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// What all shards read of it.
    pub fn shared(&self) -> &Arc<PoolShared> {
        &self.shared
    }

    /// What is known of its records and owners.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Extents that can be had now, on all members.
    pub fn free_extents(&self) -> u64 {
        self.rooms.iter().filter(|room| !room.closed).map(|room| u64::from(room.free.count())).sum()
    }

    /// Notes a volume whose map is built.
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

    /// Whether nothing of a volume may change: it is a snapshot, or of some of it nobody knows what it is.
    pub fn is_read_only(&self, id: VolumeId) -> bool {
        self.volumes.get(&id).is_none_or(|volume| volume.read_only)
    }

    /// Members that are not here, by their bits.
    pub fn absent(&self) -> u128 {
        self.state.absent
    }

    /// The owner under which new blocks of a volume are kept.
    pub fn owner_of(&self, id: VolumeId) -> Option<OwnerId> {
        self.volumes.get(&id).map(|volume| volume.owner)
    }

    /// Appends changes which count together or not at all, and takes them into the state. Returns their last unit.
    pub(super) fn change(&mut self, changes: &[(u8, u32, Change)]) -> u64 {
        let before = self.tail.published();
        let last = self.tail.append(changes);
        self.take_in(changes, before);
        self.shared.published.store(last, Ordering::Release);
        last
    }

    /// Takes changes into the state whose first unit follows this one.
    pub(super) fn take_in(&mut self, changes: &[(u8, u32, Change)], mut unit: u64) {
        for (member, index, change) in changes {
            let id = RecordId { member: *member, index: *index };
            unit += if matches!(change, Change::Owner { .. }) { OWNER_UNITS as u64 } else { 1 };
            if !self.builds.is_empty() {
                self.note_for_builds(id, change);
            }
            if self.fold.is_some() {
                self.note_for_fold(change);
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

    /// Rises with everything after which who waits for room may have some.
    pub fn progress(&self) -> u64 {
        self.progress
    }

    /// So much of the tail is committed.
    pub(super) fn note_committed(&mut self, mark: u64) {
        self.progress += 1;
        self.tail.trim(mark);
        self.shared.committed.store(mark, Ordering::Release);
        self.rooms.iter_mut().for_each(|room| room.freed.committed(mark));
    }

    /// Where a write of up to `blocks` blocks from `block` on goes. It covers as many as the answer says, at least one, all
    /// in one logical extent. The caller holds the range of the volume.
    ///
    /// # Panics
    /// When there is no such volume, or it is a snapshot.
    pub fn place(&mut self, volume: VolumeId, block: u64, blocks: u32) -> Placement {
        let logical = (block / u64::from(EXTENT_BLOCKS)) as u32;
        let first = (block % u64::from(EXTENT_BLOCKS)) as u32;
        let blocks = blocks.min(EXTENT_BLOCKS - first);
        let Volume { owner, writer, read_only, .. } = self.volumes.get(&volume).expect("a volume that is served");
        let owner = *owner;
        assert!(!read_only, "nobody writes to a snapshot");
        writer.map().visible(&self.state.records, logical, &mut self.view);
        let records = &self.state.records;
        let own = |extent: ExtentId| records.owner(extent) & !OWNER_HELD == owner;
        let held = |extent: ExtentId| records.owner(extent) & OWNER_HELD != 0;
        if let Some(piece) = self.view.pieces().iter().find(|piece| piece.mask >> first & 1 == 1 && own(piece.extent)) {
            if held(piece.extent) {
                return Placement::Held;
            }
            let run = (!(piece.mask >> first)).trailing_zeros();
            return Placement::Own { extent: piece.extent, position: first, blocks: run.min(blocks) };
        }
        let mut own_present =
            self.view.pieces().iter().filter(|piece| own(piece.extent)).fold(0, |all, piece| all | piece.mask);
        for packed in self.view.packed().filter(|packed| own(packed.extent)) {
            if u32::from(packed.block) == first {
                if held(packed.extent) {
                    return Placement::Held;
                }
                return Placement::Own { extent: packed.extent, position: u32::from(packed.slot), blocks: 1 };
            }
            own_present |= 1 << packed.block;
        }
        let run = mask(first, blocks);
        let blocks =
            (own_present & run).checked_ilog2().map_or(blocks, |_| (own_present & run).trailing_zeros() - first);
        // What an older owner has of these may become the owner's own while the data are out, and is dropped with the same group then.
        let below = self.state.owners.get(owner).is_some_and(|owner| owner.parent != 0);
        let units = (if below { 2 * blocks + 1 } else { blocks }) as u16;
        if !self.tail.reserve(u64::from(units)) {
            return Placement::TailFull;
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
        // What an extent says is zero there is stated there again, so that no two of an owner state a block.
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
                self.tail.unreserve(u64::from(units));
                return Placement::Held;
            }
            self.promised(owner, extent);
            return Placement::New(new(extent, first, clear, false));
        }
        let others_see = self.view.mask() != 0 || self.state.zero_range_word(owner, logical) != 0;
        if others_see
            && blocks < WHOLE_BLOCKS_MIN
            && let Some((extent, position, count)) = self.packed_slots(owner, blocks)
        {
            self.promised(owner, extent);
            return Placement::New(new(extent, position, count, true));
        }
        if let Some(extent) = self.take_extent(owner, Some(logical)) {
            self.opening.insert(opening_key(owner, logical), extent.bits());
            // Its right is used from now on, not only when the data are there.
            self.state.reserves.came(owner, logical);
            self.promised(owner, extent);
            return Placement::New(new(extent, first, blocks, false));
        }
        // The last room there is: slots that are open.
        if let Some((extent, position, count)) = self.packed_slots(owner, blocks) {
            self.promised(owner, extent);
            return Placement::New(new(extent, position, count, true));
        }
        self.tail.unreserve(u64::from(units));
        // What was kept for it goes to a copy of what it sees there: it finds room in that.
        let opens = self.keeps_for(owner) && self.moves.copied_to().any(|copied| copied == (owner, logical));
        if opens { Placement::Held } else { Placement::Full }
    }

    /// Owner and logical extent of those for which an extent is given and nothing is bound yet.
    pub(super) fn openings(&self) -> impl Iterator<Item = (OwnerId, u32)> {
        self.opening.keys().map(|key| ((key >> 32) as u32, key as u32))
    }

    /// Whether this owner has got an extent for a logical extent, and nothing is bound there yet.
    pub(super) fn is_opening(&self, owner: OwnerId, logical: u32) -> bool {
        self.opening.get(opening_key(owner, logical)).is_some()
    }

    /// A job has a place in this extent, and nobody else gets one there before [`Pool::release_place`].
    pub(super) fn hold_place(&mut self, extent: ExtentId) {
        count_up(&mut self.pending, extent.bits());
        let owner = self.state.records.owner(extent);
        self.state.records.set_owner(extent, owner | OWNER_HELD);
    }

    /// See [`Pool::hold_place`].
    pub(super) fn release_place(&mut self, extent: ExtentId) {
        let owner = self.state.records.owner(extent);
        self.state.records.set_owner(extent, owner & !OWNER_HELD);
        if count_down(&mut self.pending, extent.bits()) {
            self.free_if_empty(extent);
        }
    }

    /// A place in this extent is promised.
    fn promised(&mut self, owner: OwnerId, extent: ExtentId) {
        count_up(&mut self.pending, extent.bits());
        count_up(&mut self.promised, u64::from(owner));
    }

    /// Whether somebody has a place in this extent and has not bound it.
    pub(super) fn is_pending(&self, extent: ExtentId) -> bool {
        self.pending.has(extent.bits())
    }

    /// Whether data are on their way to places of this owner.
    pub fn awaits_data(&self, owner: OwnerId) -> bool {
        self.promised.has(u64::from(owner))
    }

    /// A free extent for this owner, taken, on one of the members that it may use. `logical`: it is to stand whole for this one.
    pub(super) fn take_extent(&mut self, owner: OwnerId, logical: Option<u32>) -> Option<ExtentId> {
        let on = self.state.owners.get(owner).map_or(u128::MAX, Owner::uses) & !self.kept_for_others(owner, logical);
        let free = |room: &Room| if room.closed { 0 } else { room.free.count() };
        let rooms = (0u8..).zip(self.rooms.iter().map(free));
        let member = self.spread.choose(rooms.filter(|(member, _)| on >> member & 1 == 1))?;
        let index = self.rooms[usize::from(member)].free.take().expect("it was chosen as it has some");
        Some(ExtentId { member, index })
    }

    /// Up to `blocks` slots of the owner's open packed extent; a new one where none is left.
    fn packed_slots(&mut self, owner: OwnerId, blocks: u32) -> Option<(ExtentId, u32, u32)> {
        if planted(Planted::SlotUsedAgain)
            && let Some(OpenPacked { extent, next }) = self.open_packed.get(&owner).copied()
            && !self.is_pending(extent)
        {
            let unused = !self.state.record(extent.into()).present & mask(0, next);
            if unused != 0 {
                return Some((extent, unused.trailing_zeros(), 1));
            }
        }
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

    /// No more slots of the owner's packed extent are handed out.
    pub(super) fn close_packed(&mut self, owner: OwnerId) {
        if let Some(open) = self.open_packed.remove(&owner) {
            self.free_if_empty(open.extent);
        }
    }

    /// The data are there: the blocks are found there from now on. Returns the unit that says so.
    pub fn bind(&mut self, reservation: &Reservation) -> u64 {
        let Reservation { extent, position, blocks, block, owner, packed, units, .. } = *reservation;
        self.tail.unreserve(u64::from(units));
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
        let mut changes = std::mem::take(&mut self.binding);
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
        let freed = self.restated_elsewhere(reservation, logical, &mut changes);
        let before = self.tail.published();
        let sequence = self.tail.append(&changes);
        self.take_in(&changes[..own], before);
        self.note_stated(owner, logical, mask((block % u64::from(EXTENT_BLOCKS)) as u32, blocks));
        // Before the map: who finds the blocks there sees that it is not committed.
        self.shared.published.store(sequence, Ordering::Release);
        let volume = self.volumes.get_mut(&reservation.volume).expect("a volume with requests is served");
        if packed {
            for k in 0..blocks {
                let slot = (position + k) as u8;
                volume.writer.set_packed(&self.state.records, block + u64::from(k), extent, slot);
            }
        } else {
            // What the newest owner states nobody hides.
            let newest = volume.owner == owner;
            volume.writer.set_blocks(&self.state.records, logical, mask(position, blocks), extent, newest);
        }
        // Only now that no map follows them any more.
        self.take_in(&changes[own..], before + own as u64);
        for extent in freed {
            self.rooms[usize::from(extent.member)].freed.add(sequence, extent);
        }
        changes.clear();
        self.binding = changes;
        self.settle(reservation, logical);
        sequence
    }

    /// While data were on their way to a new place, a fold may have given the owner what an older one had of these blocks: that
    /// is dropped in the same group, so that no two records of an owner state a block. Returns the extents that are free by that.
    fn restated_elsewhere(
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

    /// The data could not be written: the place is not needed.
    pub fn unplace(&mut self, reservation: &Reservation) {
        self.tail.unreserve(u64::from(reservation.units));
        self.settle(reservation, (reservation.block / u64::from(EXTENT_BLOCKS)) as u32);
    }

    fn settle(&mut self, reservation: &Reservation, logical: u32) {
        let extent = reservation.extent;
        self.progress += 1;
        count_down(&mut self.promised, u64::from(reservation.owner));
        if !count_down(&mut self.pending, extent.bits()) {
            return;
        }
        let key = opening_key(reservation.owner, logical);
        if self.opening.get(key) == Some(&extent.bits()) {
            self.opening.remove(key);
            self.state.reserves.left(reservation.owner, logical);
        }
        if self.open_packed.get(&reservation.owner).is_none_or(|open| open.extent != extent) {
            self.free_if_empty(extent);
        }
    }

    /// Gives an extent back in which nothing stands and nobody has a place.
    pub(super) fn free_if_empty(&mut self, extent: ExtentId) {
        if self.is_pending(extent) {
            return;
        }
        let record = self.state.record(extent.into());
        let sequence = match record.kind {
            RecordKind::Free => 0,
            _ if record.present | record.zero != 0 => return,
            _ if !self.tail.has_room(1) => return self.empties.push(extent),
            _ => {
                let free = Change::Record { record: Record::free(record.life) };
                self.change(&[(extent.member, extent.index, free)])
            }
        };
        self.rooms[usize::from(extent.member)].freed.add(sequence, extent);
    }

    /// Switches volumes to new owners, all at one instant: what begins to be written now goes to these.
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

fn count_up(counts: &mut Keyed<u32>, key: u64) {
    match counts.get_mut(key) {
        Some(count) => *count += 1,
        None => counts.insert(key, 1),
    }
}

/// Whether that was the last one.
fn count_down(counts: &mut Keyed<u32>, key: u64) -> bool {
    let count = counts.get_mut(key).expect("who has a place is counted");
    *count -= 1;
    let last = *count == 0;
    if last {
        counts.remove(key);
    }
    last
}

/// `count` bits from bit `first` on.
pub(super) fn mask(first: u32, count: u32) -> u64 {
    debug_assert!(first + count <= EXTENT_BLOCKS);
    if count == 0 { 0 } else { (u64::MAX >> (EXTENT_BLOCKS - count)) << first }
}
