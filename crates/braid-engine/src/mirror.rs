//! A redundant array in a layout: who its members are, and which of them answers a read.

use std::sync::Arc;

use braid_geometry::{CopyPlaces, Geometry, Level, Piece};

use crate::io::LeafId;
use crate::parity::{Parity, ParityNode};
use crate::regions::{Plane, RegionMap};

/// Of how many members it is known at most that they are slow: as many as a request notes ([`Roles`] of its first ones).
pub(crate) const SLOW_MAX: usize = u16::BITS as usize;

/// What part a member plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Holds everything that it should: is read and written.
    InSync,
    /// Is being brought up to date: takes every write, every bit and every flush, and is not read.
    Filling,
    /// Left out.
    Out,
}

/// One member of a redundant array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MirrorMember {
    /// Its disk. Of a member that is left out, whatever it was.
    pub leaf: LeafId,
    /// First byte of its data area on the disk, a multiple of 4096.
    pub start: u64,
    /// Bytes of its data area.
    pub len: u64,
    /// First byte of its copy of the bitmap on the disk, a multiple of 4096.
    pub bitmap_start: u64,
    /// What part it plays.
    pub role: Role,
    /// Read from it only when no other can answer.
    pub write_mostly: bool,
}

/// A member that holds what another one holds, at the same places, and is to take its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Successor {
    /// The number of the member that it replaces: one of the geometry's.
    pub role: u16,
    /// Its own number, beyond those.
    pub member: u16,
}

/// Gives every copy of a byte as [`Geometry::copies`] does, and after each those on its member's successors.
#[inline]
pub fn copies_of(geometry: &Geometry, successors: &[Successor], offset: u64, out: &mut impl FnMut(Piece)) {
    if successors.is_empty() {
        return geometry.copies(offset, out);
    }
    geometry.copies(offset, &mut |piece| {
        out(piece);
        successors.iter().filter(|s| s.role == piece.member).for_each(|s| out(Piece { member: s.member, ..piece }));
    });
}

/// A redundant array: copies (raid1, raid10) or parity (raid5, raid6).
#[derive(Clone, Debug)]
pub struct MirrorNode {
    /// Where each copy of each byte lives.
    pub geometry: Geometry,
    /// The members, in the order of the geometry; after them any numbers that are nobody's, and successors.
    pub members: Vec<MirrorMember>,
    /// Members that hold what another one holds, and are to take its place.
    pub successors: Vec<Successor>,
    /// Its regions.
    pub regions: Arc<RegionMap>,
    /// At levels with parity: where its journal is.
    pub parity: Option<ParityNode>,
    /// More members are lost than it tolerates: every request fails, and nothing is written.
    pub failed: bool,
}

/// The same, compiled.
#[derive(Debug)]
pub(crate) struct Mirrored {
    pub geometry: Geometry,
    pub members: Box<[MirrorMember]>,
    pub successors: Box<[Successor]>,
    pub regions: Arc<RegionMap>,
    /// At levels with parity, where each byte has one place and its row others.
    pub parity: Option<Box<Parity>>,
    pub failed: bool,
    /// The first copy is read that can be: they may differ.
    pub steady: bool,
    /// Where the bitmap is on each member that bears it.
    pub bitmaps: Box<[(LeafId, u64)]>,
}

impl Mirrored {
    pub fn new(node: &MirrorNode) -> Mirrored {
        let seats = node.geometry.members().len();
        assert!(node.members.len() >= seats, "members of a mirrored node");
        let fits = |member: u16, seat: u16| {
            let member = &node.members[usize::from(member)];
            let zones = node.geometry.zones().iter().filter(|zone| zone.members.contains(&seat));
            member.role == Role::Out || member.len >= zones.map(|zone| zone.member_end()).max().unwrap_or(0)
        };
        let of_geometry = (0..seats as u16).map(|role| (role, role));
        for (member, seat) in of_geometry.chain(node.successors.iter().map(|s| (s.member, s.role))) {
            assert!(fits(member, seat), "a member is smaller than its geometry says");
        }
        assert!(node.regions.covers(node.geometry.size_bytes()), "the map of regions is shorter than the device");
        let with_parity = node.geometry.spec().level.parity() > 0;
        assert_eq!(with_parity, node.parity.is_some(), "levels with parity have a journal");
        assert!(node.parity.iter().all(|p| p.rings.len() >= node.members.len()), "a ring on each member");
        let serves = |m: &&MirrorMember| m.role != Role::Out;
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

    /// The number of the member that serves on this disk.
    pub fn role_of(&self, leaf: LeafId) -> Option<usize> {
        self.members.iter().position(|m| m.leaf == leaf && m.role != Role::Out)
    }

    /// The number of the disk that the ring of the journal is on, where it is this one.
    pub fn ring_disk(&self, leaf: LeafId) -> Option<u16> {
        let disk = self.parity.as_deref()?.node.ring_disk()?;
        (disk.leaf == leaf).then_some(disk.role)
    }

    /// The disks of these members, by number here, as far as they serve in another layout of the array.
    pub fn disks_in(&self, roles: Roles, other: &Mirrored) -> impl Iterator<Item = LeafId> {
        let members = self.members.iter().enumerate().filter(move |(role, _)| roles.has(*role));
        members.map(|(_, member)| member.leaf).filter(move |leaf| other.role_of(*leaf).is_some())
    }

    /// The numbers that these members, by number here, have in another layout of the array. A successor that has taken its
    /// member's place has another one; those that are left out there have none.
    #[cold]
    pub fn renumber(&self, roles: Roles, other: &Mirrored) -> Roles {
        self.disks_in(roles, other).filter_map(|leaf| other.role_of(leaf)).fold(Roles::NONE, Roles::with)
    }

    /// Whether all members are in sync, and successors as well.
    pub fn is_whole(&self) -> bool {
        self.lacks_nobody_but(Roles::NONE)
    }

    /// The same, but for these roles.
    pub fn lacks_nobody_but(&self, vacant: Roles) -> bool {
        let in_sync = |member: usize| self.members[member].role == Role::InSync;
        (0..self.geometry.members().len()).all(|role| in_sync(role) || vacant.has(role))
            && self.successors.iter().all(|s| in_sync(usize::from(s.member)))
    }

    /// Whether a member is out. Then no row is only marked in the journal: a recovery could not read all of its data.
    pub fn is_one_out(&self) -> bool {
        self.members.iter().any(|member| member.role == Role::Out)
    }

    /// Who answers for a role: its own member, where that is in sync and not to be avoided, else its successor. None: nobody.
    pub fn reader(&self, role: usize, avoid: Roles) -> Option<usize> {
        let answers = |member: &usize| self.members[*member].role == Role::InSync && !avoid.has(*member);
        let mut successors =
            self.successors.iter().filter(|s| usize::from(s.role) == role).map(|s| usize::from(s.member));
        Some(role).filter(answers).or_else(|| successors.find(answers))
    }

    /// Whether each byte can be read from several members, even without these.
    pub fn has_readers(&self, avoid: Roles) -> bool {
        let reads = |(role, member): &(usize, &MirrorMember)| member.role == Role::InSync && !avoid.has(*role);
        let few = self.members.len() <= SLOW_MAX;
        few && self.geometry.spec().level == Level::Raid1
            && self.members.iter().enumerate().filter(reads).nth(1).is_some()
    }

    /// On whom a batch of the journal is to stand: as many members in sync as this, or all, of one zone. Zones lose their members
    /// independently of one another: two batches' copies in two zones could be lost together, and nothing else.
    pub fn batch_holders(&self, sequence: u64, copies: usize) -> Roles {
        let zones = self.geometry.zones();
        let zone = &zones[(sequence % zones.len() as u64) as usize];
        let holder = |role: &u16| self.reader(usize::from(*role), Roles::NONE);
        let all = zone.members.iter().filter_map(holder).count();
        let first = (sequence / zones.len() as u64 % all.max(1) as u64) as usize;
        let chosen = |turn: &usize| (turn + all - first) % all < copies;
        let holders = zone.members.iter().filter_map(holder).enumerate().filter(|(turn, _)| chosen(turn));
        holders.fold(Roles::NONE, |roles, (_, member)| roles.with(member))
    }

    /// Every copy of a byte, successors' too.
    #[inline]
    pub fn copies(&self, offset: u64, out: &mut impl FnMut(Piece)) {
        copies_of(&self.geometry, &self.successors, offset, out);
    }
}

/// What a small request that is done within the call needs to know, close together.
#[derive(Debug)]
pub(crate) struct ShortMirror {
    pub places: CopyPlaces,
    /// Who stands at each slot of the geometry.
    pub slots: Box<[ShortSlot]>,
    /// Bytes of a region, as a shift.
    pub region_shift: u32,
    /// Of the map of regions: here, so that nobody has to find the map first.
    pub readable: Plane,
    pub writable: Plane,
}

/// A member, as far as a small request is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortSlot {
    pub start: u64,
    pub leaf: LeafId,
    /// Takes writes.
    pub serves: bool,
    /// Is read from like others.
    pub reads: bool,
}

impl ShortMirror {
    pub fn new(node: &MirrorNode, places: CopyPlaces) -> ShortMirror {
        let slot = |member: &u16| {
            let MirrorMember { start, leaf, role, write_mostly, .. } = node.members[usize::from(*member)];
            ShortSlot { start, leaf, serves: role != Role::Out, reads: role == Role::InSync && !write_mostly }
        };
        let slots = node.geometry.slots().iter().map(slot).collect();
        let RegionMap { readable, writable, .. } = &*node.regions;
        let (readable, writable) = (readable.clone(), writable.clone());
        ShortMirror { places, slots, region_shift: node.regions.shift(), readable, writable }
    }
}

/// A set of members, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Roles(pub u128);

impl Roles {
    /// Nobody.
    pub const NONE: Roles = Roles(0);

    /// Whether the member is in it.
    #[inline]
    pub fn has(self, role: usize) -> bool {
        self.0 & (1 << role) != 0
    }

    /// Without these.
    #[must_use]
    pub fn without(self, others: Roles) -> Roles {
        Roles(self.0 & !others.0)
    }

    /// With this member.
    #[must_use]
    pub fn with(self, role: usize) -> Roles {
        Roles(self.0 | 1 << role)
    }

    /// Whether nobody is in it.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// How busy a disk is with reads of one shard, and how fast it has been.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    in_flight: u32,
    /// Running mean of how long a read took, in nanoseconds.
    latency_ns: u32,
    /// Where the last read ended, on the disk.
    next_offset: u64,
}

impl Load {
    pub const IDLE: Load = Load { in_flight: 0, latency_ns: 0, next_offset: u64::MAX };
}

/// The loads of all disks, as one shard knows them.
pub(crate) struct Loads(Vec<Load>);

/// The mean follows a new figure by one part in so many (as a shift).
const FOLLOW_SHIFT: u32 = 3;
/// A disk that is passed over is believed a bit faster each time (as a shift), so that one that was slow once is tried again.
const FORGET_SHIFT: u32 = 10;
/// A disk that a read was given up on is believed to take so many times as long as was waited, as nobody knows how long it would have been.
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

    /// When a read would be answered, in arbitrary units: the queue before it and itself, each as long as usual.
    fn cost(&self, leaf: LeafId) -> u64 {
        let load = &self.0[leaf.0 as usize];
        u64::from(load.in_flight + 1) * u64::from(load.latency_ns.max(1))
    }

    /// Which of two disks should answer a read that is at these places.
    pub fn better(&self, a: (LeafId, u64), b: (LeafId, u64)) -> bool {
        let (cost_a, cost_b) = (self.cost(a.0), self.cost(b.0));
        let goes_on = |(leaf, offset): (LeafId, u64)| self.0[leaf.0 as usize].next_offset == offset;
        match (goes_on(a), goes_on(b)) {
            // A stream stays where it is, unless another disk would be done in half the time.
            (true, false) => cost_a <= 2 * cost_b,
            (false, true) => 2 * cost_a < cost_b,
            _ => cost_a < cost_b,
        }
    }

    /// A read was given to a disk.
    #[inline]
    pub fn begin(&mut self, leaf: LeafId, end: u64) {
        let load = &mut self.0[leaf.0 as usize];
        load.in_flight += 1;
        load.next_offset = end;
    }

    /// A disk was passed over.
    #[inline]
    pub fn pass_over(&mut self, leaf: LeafId) {
        let load = &mut self.0[leaf.0 as usize];
        load.latency_ns -= load.latency_ns >> FORGET_SHIFT;
    }

    /// A read has ended, after so many nanoseconds.
    #[inline]
    pub fn end(&mut self, leaf: LeafId, took_ns: u64) {
        let load = &mut self.0[leaf.0 as usize];
        load.in_flight = load.in_flight.saturating_sub(1);
        let took = u32::try_from(took_ns).unwrap_or(u32::MAX);
        // The first one counts whole.
        let step = if load.latency_ns == 0 { 0 } else { FOLLOW_SHIFT };
        if took >= load.latency_ns {
            load.latency_ns += (took - load.latency_ns) >> step;
        } else {
            load.latency_ns -= (load.latency_ns - took) >> step;
        }
    }

    /// A read was given up after so many nanoseconds. Whoever comes next is to ask another disk at once: what usually took no time says nothing
    /// of one that does not answer.
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

    /// However fast it was, and however slow the other one: after a few reads that were given up, the other one is asked.
    #[test]
    fn a_disk_that_does_not_answer_is_not_asked_again_and_again() {
        let mut loads = loads(1000, 100_000);
        loads.begin(A, 4096);
        loads.give_up(A, 20_000_000);
        assert!(loads.better((B, 512), (A, 512)));
        let mut slow = super::tests::loads(1000, 2_000_000_000);
        for given_up in 0.. {
            assert!(given_up < 4, "it is asked again and again");
            if slow.better((B, 512), (A, 512)) {
                break;
            }
            slow.begin(A, 4096);
            slow.give_up(A, 20_000_000);
        }
        (0..64).for_each(|_| slow.give_up(A, u64::MAX));
    }

    /// A batch of the journal has a copy left, whoever is lost, as long as no zone lacks more than it tolerates.
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
            let members = geometry.members().len();
            for lost in 0..1u32 << members {
                let is_lost = |role: &u16| lost >> role & 1 == 1;
                let lacks = |zone: &braid_geometry::Zone| zone.members.iter().filter(|role| is_lost(role)).count();
                if geometry.zones().iter().any(|zone| lacks(zone) > tolerance) {
                    continue;
                }
                losses += 1;
                // Some of these were out already when it was written.
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
            len: geometry.members()[role],
            bitmap_start: 0,
            role: if out >> role & 1 == 1 { Role::Out } else { Role::InSync },
            write_mostly: false,
        };
        let members: Vec<MirrorMember> = (0..geometry.members().len()).map(member).collect();
        let uuid = braid_format::Uuid::from_bytes([1; 16]);
        let regions = RegionMap::new(crate::io::ShardId(0), uuid, geometry.size_bytes(), 65_536, (&[], &[]), true);
        let parity = ParityNode {
            array: uuid,
            run: 1,
            rings: vec![0; members.len()],
            ring_blocks: 176,
            least_ring_blocks: 176,
            generation: 1,
            lost: Arc::default(),
            marks: Arc::default(),
            ring_on: crate::parity::RingPlace::Members,
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
        let set = Roles::NONE.with(0).with(127);
        assert!(set.has(0) && set.has(127) && !set.has(1) && !set.is_empty());
    }
}
