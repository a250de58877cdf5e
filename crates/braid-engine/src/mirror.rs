//! A redundant array in a layout: its members, and which of them a read uses.

use std::sync::Arc;

use braid_geometry::{Geometry, Level, MemberRange, MirrorMap};

use crate::io::LeafId;
use crate::parity::{Parity, ParityNode};
use crate::regions::{RegionBits, RegionMap};

/// Maximum number of members of an array in which requests avoid slow members: a slot has a bit for each of the first
/// 16 members.
pub(crate) const SLOW_MAX: usize = u16::BITS as usize;

/// The state of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberRole {
    /// Holds everything that it should: it is read and written.
    InSync,
    /// Is being rebuilt: it takes every write, every bit and every flush, and is not read.
    Rebuilding,
    /// Has failed or is missing: it is neither read nor written.
    Failed,
}

/// One member of a redundant array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MirrorMember {
    /// Its disk. For a dropped member, its last one.
    pub leaf: LeafId,
    /// First byte of its data area on the disk, a multiple of 4096.
    pub start: u64,
    /// Bytes of its data area.
    pub len: u64,
    /// First byte of its copy of the bitmap on the disk, a multiple of 4096.
    pub bitmap_start: u64,
    /// Its state.
    pub role: MemberRole,
    /// Read only if no other member can be read.
    pub write_mostly: bool,
}

/// A member that holds what another one holds, at the same offsets, and is to replace it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Successor {
    /// The index of the member that it replaces: one of the geometry's.
    pub role: u16,
    /// Its own index, beyond those.
    pub member: u16,
}

/// Calls `out` with every copy of a byte as [`Geometry::copies`] does, and after each with those on its member's
/// successors.
#[inline]
pub fn copies_of(geometry: &Geometry, successors: &[Successor], offset: u64, out: &mut impl FnMut(MemberRange)) {
    if successors.is_empty() {
        return geometry.copies(offset, out);
    }
    geometry.copies(offset, &mut |piece| {
        out(piece);
        successors
            .iter()
            .filter(|s| s.role == piece.member)
            .for_each(|s| out(MemberRange { member: s.member, ..piece }));
    });
}

/// A redundant array: copies (raid1, raid10) or parity (raid5, raid6).
#[derive(Clone, Debug)]
pub struct MirrorNode {
    /// The location of each copy of each byte.
    pub geometry: Geometry,
    /// The members, in the order of the geometry; after them any vacant indices, and successors.
    pub members: Vec<MirrorMember>,
    /// Members that hold what another one holds, and are to replace it.
    pub successors: Vec<Successor>,
    /// Its regions.
    pub regions: Arc<RegionMap>,
    /// At levels with parity: its journal.
    pub parity: Option<ParityNode>,
    /// More members have failed than it tolerates: every request fails, and nothing is written.
    pub failed: bool,
}

/// A [`MirrorNode`], compiled.
#[derive(Debug)]
pub(crate) struct Mirrored {
    pub geometry: Geometry,
    pub members: Box<[MirrorMember]>,
    pub successors: Box<[Successor]>,
    pub regions: Arc<RegionMap>,
    /// The stripes and the journal, at levels with parity: there each byte has one location, and can be computed from
    /// the rest of its stripe.
    pub parity: Option<Box<Parity>>,
    pub failed: bool,
    /// Always the first readable copy is read: the copies may differ.
    pub steady: bool,
    /// The disk of each member that serves, and the offset in bytes of the member's bitmap there.
    pub bitmaps: Box<[(LeafId, u64)]>,
}

impl Mirrored {
    pub fn new(node: &MirrorNode) -> Mirrored {
        let member_count = node.geometry.member_data_bytes().len();
        assert!(node.members.len() >= member_count, "members of a mirrored node");
        let fits = |member: u16, role: u16| {
            let member = &node.members[usize::from(member)];
            let zones = node.geometry.zones().iter().filter(|zone| zone.members.contains(&role));
            member.role == MemberRole::Failed || member.len >= zones.map(|zone| zone.member_end()).max().unwrap_or(0)
        };
        let of_geometry = (0..member_count as u16).map(|role| (role, role));
        for (member, role) in of_geometry.chain(node.successors.iter().map(|s| (s.member, s.role))) {
            assert!(fits(member, role), "a member is smaller than its geometry says");
        }
        assert!(node.regions.covers(node.geometry.size_bytes()), "the map of regions is shorter than the device");
        let with_parity = node.geometry.spec().level.parity() > 0;
        assert_eq!(with_parity, node.parity.is_some(), "levels with parity have a journal");
        assert!(node.parity.iter().all(|p| p.rings.len() >= node.members.len()), "a ring on each member");
        let serves = |m: &&MirrorMember| m.role != MemberRole::Failed;
        Mirrored {
            geometry: node.geometry.clone(),
            bitmaps: node.members.iter().filter(serves).map(|m| (m.leaf, m.bitmap_start)).collect(),
            members: node.members.clone().into(),
            successors: node.successors.clone().into(),
            regions: Arc::clone(&node.regions),
            parity: node.parity.as_ref().map(|parity| Box::new(Parity::new(&node.geometry, parity))),
            failed: node.failed,
            steady: false,
        }
    }

    /// Returns the index of the member that serves on this disk.
    pub fn role_of(&self, leaf: LeafId) -> Option<usize> {
        self.members.iter().position(|m| m.leaf == leaf && m.role != MemberRole::Failed)
    }

    /// Returns the index of the disk of the journal's ring, if it is this one.
    pub fn ring_disk(&self, leaf: LeafId) -> Option<u16> {
        let disk = self.parity.as_deref()?.node.ring_disk()?;
        (disk.leaf == leaf).then_some(disk.role)
    }

    /// Returns the disks of these members, which are indices of this layout, if they also serve in `other`, another
    /// layout of the array.
    pub fn disks_in(&self, roles: MemberSet, other: &Mirrored) -> impl Iterator<Item = LeafId> {
        let members = self.members.iter().enumerate().filter(move |(role, _)| roles.has(*role));
        members.map(|(_, member)| member.leaf).filter(move |leaf| other.role_of(*leaf).is_some())
    }

    /// Returns the indices that these members, by index in this layout, have in another layout of the array. A
    /// successor that has replaced its member has another one; members that are dropped there have none.
    #[cold]
    pub fn renumber(&self, roles: MemberSet, other: &Mirrored) -> MemberSet {
        self.disks_in(roles, other).filter_map(|leaf| other.role_of(leaf)).fold(MemberSet::NONE, MemberSet::with)
    }

    /// Returns whether all members are in sync, including successors.
    pub fn is_whole(&self) -> bool {
        self.is_in_sync_except(MemberSet::NONE)
    }

    /// Returns whether all members but these slots are in sync, including successors.
    pub fn is_in_sync_except(&self, vacant: MemberSet) -> bool {
        let in_sync = |member: usize| self.members[member].role == MemberRole::InSync;
        (0..self.geometry.member_data_bytes().len()).all(|role| in_sync(role) || vacant.has(role))
            && self.successors.iter().all(|s| in_sync(usize::from(s.member)))
    }

    /// Returns whether a member is missing. Then no stripe may be only marked in the journal: recovery could not read
    /// all of its data.
    pub fn is_degraded(&self) -> bool {
        self.members.iter().any(|member| member.role == MemberRole::Failed)
    }

    /// Returns the member to read for a role: its own member, if that is in sync and not to be avoided, else its
    /// successor. `None`: there is none.
    pub fn reader(&self, role: usize, avoid: MemberSet) -> Option<usize> {
        let answers = |member: &usize| self.members[*member].role == MemberRole::InSync && !avoid.has(*member);
        let mut successors =
            self.successors.iter().filter(|s| usize::from(s.role) == role).map(|s| usize::from(s.member));
        Some(role).filter(answers).or_else(|| successors.find(answers))
    }

    /// Returns whether each byte can be read from at least two members that are not in `avoid`. Always false at other
    /// levels than raid1, and for more than [`SLOW_MAX`] members.
    pub fn has_readers(&self, avoid: MemberSet) -> bool {
        let reads = |(role, member): &(usize, &MirrorMember)| member.role == MemberRole::InSync && !avoid.has(*role);
        let few = self.members.len() <= SLOW_MAX;
        few && self.geometry.spec().level == Level::Raid1
            && self.members.iter().enumerate().filter(reads).nth(1).is_some()
    }

    /// Returns the members that hold batch `sequence` of the journal: `copies` members in sync of one zone, or all of
    /// them if there are fewer. Zones lose their members independently of one another: if the copies of a batch were in
    /// two zones, all of them could be lost although no zone has lost more members than it tolerates.
    pub fn batch_holders(&self, sequence: u64, copies: usize) -> MemberSet {
        let zones = self.geometry.zones();
        let zone = &zones[(sequence % zones.len() as u64) as usize];
        let holder = |role: &u16| self.reader(usize::from(*role), MemberSet::NONE);
        let all = zone.members.iter().filter_map(holder).count();
        let first = (sequence / zones.len() as u64 % all.max(1) as u64) as usize;
        let chosen = |turn: &usize| (turn + all - first) % all < copies;
        let holders = zone.members.iter().filter_map(holder).enumerate().filter(|(turn, _)| chosen(turn));
        holders.fold(MemberSet::NONE, |roles, (_, member)| roles.with(member))
    }

    /// Calls `out` with every copy of a byte, including successors'.
    #[inline]
    pub fn copies(&self, offset: u64, out: &mut impl FnMut(MemberRange)) {
        copies_of(&self.geometry, &self.successors, offset, out);
    }
}

/// The data that the fast path of a small request needs, close together in memory.
#[derive(Debug)]
pub(crate) struct FastMirror {
    pub places: MirrorMap,
    /// The member of each slot of the geometry.
    pub slots: Box<[FastSlot]>,
    /// Bytes of a region, as a shift.
    pub region_shift: u32,
    /// Planes of the map of regions, without the indirection through the map.
    pub readable: RegionBits,
    pub writable: RegionBits,
}

/// A member, as the fast path needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastSlot {
    pub start: u64,
    pub leaf: LeafId,
    /// It takes writes.
    pub serves: bool,
    /// It is read, and not only as a last resort.
    pub reads: bool,
}

impl FastMirror {
    pub fn new(node: &MirrorNode, places: MirrorMap) -> FastMirror {
        let slot = |member: &u16| {
            let MirrorMember { start, leaf, role, write_mostly, .. } = node.members[usize::from(*member)];
            FastSlot {
                start,
                leaf,
                serves: role != MemberRole::Failed,
                reads: role == MemberRole::InSync && !write_mostly,
            }
        };
        let slots = node.geometry.slots().iter().map(slot).collect();
        let RegionMap { readable, writable, .. } = &*node.regions;
        let (readable, writable) = (readable.clone(), writable.clone());
        FastMirror { places, slots, region_shift: node.regions.shift(), readable, writable }
    }
}

/// A set of members, by index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemberSet(pub u128);

impl MemberSet {
    /// The empty set.
    pub const NONE: MemberSet = MemberSet(0);

    /// Returns whether the member is in the set.
    #[inline]
    pub fn has(self, role: usize) -> bool {
        self.0 & (1 << role) != 0
    }

    /// Returns the set without these.
    #[must_use]
    pub fn without(self, others: MemberSet) -> MemberSet {
        MemberSet(self.0 & !others.0)
    }

    /// Returns the set with this member.
    #[must_use]
    pub fn with(self, role: usize) -> MemberSet {
        MemberSet(self.0 | 1 << role)
    }

    /// Returns whether the set is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The load of a disk by reads of one shard, and its latency.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    in_flight: u32,
    /// Running mean of the duration of a read, in nanoseconds.
    latency_ns: u32,
    /// The end of the last read on the disk.
    next_offset: u64,
}

impl Load {
    pub const IDLE: Load = Load { in_flight: 0, latency_ns: 0, next_offset: u64::MAX };
}

/// The loads of all disks, as one shard knows them.
pub(crate) struct Loads(Vec<Load>);

/// The weight of a new measurement in the mean (as a shift).
const FOLLOW_SHIFT: u32 = 3;
/// A disk that is not chosen is assumed a bit faster each time (as a shift), so that a disk that was slow once is tried
/// again.
const FORGET_SHIFT: u32 = 10;
/// A disk of which a read was abandoned is assumed to take this many times as long as was waited, because the real
/// duration is unknown.
const GIVEN_UP: u32 = 8;

impl Loads {
    pub fn new() -> Loads {
        Loads(Vec::new())
    }

    /// Makes room for a disk. Called when a layout is published.
    pub fn know(&mut self, leaf: LeafId) {
        let needed = leaf.0 as usize + 1;
        if self.0.len() < needed {
            self.0.resize(needed, Load::IDLE);
        }
    }

    /// Returns when a read would complete, in arbitrary units: the queue before it and itself, each at the mean
    /// latency.
    fn cost(&self, leaf: LeafId) -> u64 {
        let load = &self.0[leaf.0 as usize];
        u64::from(load.in_flight + 1) * u64::from(load.latency_ns.max(1))
    }

    /// Returns whether a read should use disk `a` and not disk `b`. With each disk: the read's offset there, in bytes.
    pub fn better(&self, a: (LeafId, u64), b: (LeafId, u64)) -> bool {
        let (cost_a, cost_b) = (self.cost(a.0), self.cost(b.0));
        let goes_on = |(leaf, offset): (LeafId, u64)| self.0[leaf.0 as usize].next_offset == offset;
        match (goes_on(a), goes_on(b)) {
            // A sequential stream stays on its disk, unless another disk would complete in half the time.
            (true, false) => cost_a <= 2 * cost_b,
            (false, true) => 2 * cost_a < cost_b,
            _ => cost_a < cost_b,
        }
    }

    /// Records that a read was submitted to a disk.
    #[inline]
    pub fn begin(&mut self, leaf: LeafId, end: u64) {
        let load = &mut self.0[leaf.0 as usize];
        load.in_flight += 1;
        load.next_offset = end;
    }

    /// Records that a disk was not chosen.
    #[inline]
    pub fn pass_over(&mut self, leaf: LeafId) {
        let load = &mut self.0[leaf.0 as usize];
        load.latency_ns -= load.latency_ns >> FORGET_SHIFT;
    }

    /// Records that a read has completed, after so many nanoseconds.
    #[inline]
    pub fn end(&mut self, leaf: LeafId, took_ns: u64) {
        let load = &mut self.0[leaf.0 as usize];
        load.in_flight = load.in_flight.saturating_sub(1);
        let took = u32::try_from(took_ns).unwrap_or(u32::MAX);
        // The first measurement counts whole.
        let step = if load.latency_ns == 0 { 0 } else { FOLLOW_SHIFT };
        if took >= load.latency_ns {
            load.latency_ns += (took - load.latency_ns) >> step;
        } else {
            load.latency_ns -= (load.latency_ns - took) >> step;
        }
    }

    /// Records that a read was abandoned after so many nanoseconds. The next read is to use another disk at once: the
    /// usual latency says nothing of a disk that does not respond.
    #[cold]
    pub fn give_up(&mut self, leaf: LeafId, waited_ns: u64) {
        let load = &mut self.0[leaf.0 as usize];
        load.in_flight = load.in_flight.saturating_sub(1);
        let waited = u32::try_from(waited_ns).unwrap_or(u32::MAX);
        load.latency_ns = waited.max(load.latency_ns).saturating_mul(GIVEN_UP);
    }
}

#[cfg(test)]
mod tests {
    use braid_geometry::Spec;

    use super::*;

    const A: LeafId = LeafId(0);
    const B: LeafId = LeafId(1);

    fn loads(a_ns: u64, b_ns: u64) -> Loads {
        let mut loads = Loads::new();
        loads.know(B);
        for (leaf, ns) in [(A, a_ns), (B, b_ns)] {
            loads.begin(leaf, 0);
            loads.end(leaf, ns);
        }
        loads
    }

    #[test]
    fn the_shorter_queue_answers_and_a_slow_disk_has_a_long_one() {
        let mut equal = loads(100, 100);
        equal.begin(A, 4096);
        assert!(equal.better((B, 8192), (A, 8192)) && !equal.better((A, 8192), (B, 8192)));
        let mut slow = loads(1000, 100);
        for _ in 0..9 {
            assert!(slow.better((B, 512), (A, 512)));
            slow.begin(B, 0);
        }
        slow.begin(B, 0);
        assert!(slow.better((A, 512), (B, 512)), "the fast one's queue is longer than the slow one needs");
    }

    #[test]
    fn a_stream_stays_on_its_disk_until_that_is_much_slower() {
        let mut loads = loads(100, 100);
        loads.begin(A, 4096);
        assert!(loads.better((A, 4096), (B, 4096)), "the queue is one longer");
        loads.begin(A, 4096);
        loads.begin(A, 4096);
        assert!(loads.better((B, 4096), (A, 4096)));
    }

    #[test]
    fn a_disk_that_was_slow_once_is_tried_again() {
        let mut loads = loads(1_000_000, 100_000);
        let mut tries = 0;
        while loads.better((B, 1), (A, 1)) {
            loads.pass_over(A);
            tries += 1;
        }
        assert!((1000..5000).contains(&tries), "{tries}");
    }

    /// However fast it was, and however slow the other one: after a few abandoned reads, the other one is read.
    #[test]
    fn a_disk_that_does_not_respond_is_not_read_again_and_again() {
        let mut loads = loads(1000, 100_000);
        loads.begin(A, 4096);
        loads.give_up(A, 20_000_000);
        assert!(loads.better((B, 512), (A, 512)));
        let mut slow = super::tests::loads(1000, 2_000_000_000);
        for given_up in 0.. {
            assert!(given_up < 4, "it is read again and again");
            if slow.better((B, 512), (A, 512)) {
                break;
            }
            slow.begin(A, 4096);
            slow.give_up(A, 20_000_000);
        }
        (0..64).for_each(|_| slow.give_up(A, u64::MAX));
    }

    /// A batch of the journal keeps a copy, whichever members are lost, as long as no zone lacks more than it
    /// tolerates.
    #[test]
    fn no_loss_that_is_tolerated_takes_a_batch() {
        let chunk = 65_536;
        let grown = |level: Level, old: &[u64], new: &[u64]| {
            let bytes = |chunks: &[u64]| chunks.iter().map(|n| n * chunk).collect::<Vec<_>>();
            let before = Geometry::plan(Spec::new(level), &bytes(old)).expect("it can be planned");
            if new.is_empty() { before } else { before.grown(&bytes(new)).expect("it can grow") }
        };
        let mut losses = 0;
        for geometry in [
            grown(Level::Raid5, &[4, 8, 8], &[]),
            grown(Level::Raid5, &[4, 4, 4], &[4, 4, 4, 4, 4, 4]),
            grown(Level::Raid5, &[4, 4, 4], &[9, 9, 9, 5, 5]),
            grown(Level::Raid6, &[4, 4, 4, 4], &[4, 4, 4, 4, 6, 6, 6]),
        ] {
            let tolerance = usize::from(geometry.spec().level.parity());
            let members = geometry.member_data_bytes().len();
            for lost in 0..1u32 << members {
                let is_lost = |role: &u16| lost >> role & 1 == 1;
                let lacks = |zone: &braid_geometry::Zone| zone.members.iter().filter(|role| is_lost(role)).count();
                if geometry.zones().iter().any(|zone| lacks(zone) > tolerance) {
                    continue;
                }
                losses += 1;
                // Some of these had failed already when the batch was written.
                for out in [0, lost & 1, lost & 0b101, lost & (lost >> 1)] {
                    let mirror = mirror_of(&geometry, out);
                    for sequence in 0..40 {
                        let holders = mirror.batch_holders(sequence, tolerance + 1);
                        let left = (0..members as u16).filter(|role| holders.has(usize::from(*role)) && !is_lost(role));
                        assert!(left.count() > 0, "{geometry:?}: {lost:b} lost, {out:b} before, batch {sequence}");
                        assert!(holders.0 & u128::from(out) == 0 && holders.0.count_ones() as usize <= tolerance + 1);
                    }
                }
            }
        }
        assert!(losses > 50, "{losses}");
    }

    fn mirror_of(geometry: &Geometry, out: u32) -> Mirrored {
        let member = |role: usize| MirrorMember {
            leaf: LeafId(role as u32),
            start: 0,
            len: geometry.member_data_bytes()[role],
            bitmap_start: 0,
            role: if out >> role & 1 == 1 { MemberRole::Failed } else { MemberRole::InSync },
            write_mostly: false,
        };
        let members: Vec<MirrorMember> = (0..geometry.member_data_bytes().len()).map(member).collect();
        let uuid = braid_format::Uuid::from_bytes([1; 16]);
        let regions = RegionMap::new(crate::io::ShardId(0), uuid, geometry.size_bytes(), 65_536, (&[], &[]), true);
        let parity = ParityNode {
            array: uuid,
            run: 1,
            rings: vec![0; members.len()],
            ring_blocks: 176,
            ring_blocks_min: 176,
            generation: 1,
            lost_stripes: Arc::default(),
            marks: Arc::default(),
            ring_location: crate::parity::RingState::Members,
        };
        Mirrored::new(&MirrorNode {
            geometry: geometry.clone(),
            members,
            successors: Vec::new(),
            regions: Arc::new(regions),
            parity: Some(parity),
            failed: false,
        })
    }

    #[test]
    fn sets_of_members() {
        let set = MemberSet::NONE.with(0).with(127);
        assert!(set.has(0) && set.has(127) && !set.has(1) && !set.is_empty());
    }
}
