//! A device's description, compiled into what the planner walks.
//!
//! A [`DeviceLayout`] never changes. A change of the device makes a new one with a higher version;
//! each slot remembers the version that it was planned with, so that everybody can tell when the
//! last user of an old one has gone.

use std::sync::Arc;

use braid_geometry::{CopyPlaces, Geometry, SinglePlaces};

use crate::device_lease::DeviceLease;
use crate::io::{DeviceId, LeafId};
use crate::mirror::{MirrorNode, Mirrored, Roles, ShortMirror};
use crate::missed::Missed;
use crate::parity::Parity;
use crate::volume::VolumeNode;

/// The largest logical block of a device, in bytes.
pub(crate) const BLOCK_BYTES_MAX: u32 = 4096;

/// Most places that one byte may have: as many as an array may have members.
pub const COPIES_MAX: usize = 128;

/// A device as a tree: what stands on what.
#[derive(Clone, Debug)]
pub enum Node {
    /// A span of a disk.
    Leaf {
        /// The disk.
        leaf: LeafId,
        /// First byte of the span on the disk, a multiple of 4096.
        start: u64,
        /// Bytes in the span.
        len: u64,
    },
    /// concat or raid0: every byte on one member.
    Striped {
        /// Where each byte lives; its members' sizes are the children's.
        geometry: Geometry,
        /// The members, in slot order.
        members: Vec<Node>,
    },
    /// raid1, raid10, raid5, raid6: every byte on several members, or in the parity of its row. Overlapping writes are put in
    /// one order.
    Mirrored(Box<MirrorNode>),
    /// A volume of a pool: its blocks are on the devices that are the pool's members.
    Volume(Box<VolumeNode>),
}

impl Node {
    /// Bytes that this node offers.
    pub fn size_bytes(&self) -> u64 {
        match self {
            Node::Leaf { len, .. } => *len,
            Node::Striped { geometry, .. } => geometry.size_bytes(),
            Node::Mirrored(mirror) => mirror.geometry.size_bytes(),
            Node::Volume(volume) => volume.size_bytes,
        }
    }
}

/// One node, with its children as indices into the layout's table.
#[derive(Debug)]
pub(crate) enum FlatNode {
    Leaf { leaf: LeafId, start: u64, len: u64 },
    Striped { geometry: Geometry, members: Box<[u32]> },
    Mirrored(Box<Mirrored>),
    Volume(Box<VolumeNode>),
}

/// A device, ready to be planned against. Immutable.
#[derive(Debug)]
pub struct DeviceLayout {
    version: u32,
    size_bytes: u64,
    block_bytes: u32,
    pub(crate) root: u32,
    pub(crate) nodes: Box<[FlatNode]>,
    pub(crate) leaves: Box<[LeafId]>,
    pub(crate) ordered: bool,
    /// It is replicated: see [`DeviceLayout::replicated`]. Or a volume of a pool on such a one: see [`DeviceLayout::leased`].
    pub(crate) lease: Option<Arc<DeviceLease>>,
    /// Of a volume: whose lease that is.
    pub(crate) lessor: Option<DeviceId>,
    /// It is held: see [`DeviceLayout::held`].
    pub(crate) held: bool,
    /// It is only read: see [`DeviceLayout::read_only`].
    pub(crate) read_only: bool,
    /// What members that are out miss is noted here.
    pub(crate) missed: Box<[Arc<Missed>]>,
    /// Roles that are nobody's: see [`DeviceLayout::vacant`].
    vacant: Roles,
    /// It takes whole sectors: see [`DeviceLayout::in_sectors`].
    in_sectors: bool,
    direct: Direct,
}

/// The short way to the one place of a byte, for layouts in which every byte has one and nothing has to be true first.
#[derive(Debug)]
enum Direct {
    /// A part of a disk, from this byte on.
    Leaf(LeafId, u64),
    /// Parts of disks, one after the other.
    Linear(Linear),
    /// Stripes over parts of disks: where each slot of the geometry begins.
    Striped(SinglePlaces, Box<[(LeafId, u64)]>),
    /// The same for geometries without a short form: more zones than are counted, a chunk that is no power of two. Where each
    /// member begins.
    General(Geometry, Box<[(LeafId, u64)]>),
    /// Copies: many places, and something has to be true first.
    Mirrored(Box<ShortMirror>),
    /// There is none.
    No,
}

/// Zones of one member each.
#[derive(Debug)]
struct Linear {
    /// The ends of all zones but the last; the places left over hold what no offset reaches.
    ends: [u64; LINEAR_ZONES_MAX - 1],
    /// Disk, what to add to an offset of the device (wrapping), and the end of the zone.
    zones: Box<[(LeafId, u64, u64)]>,
}

/// Zones whose ends are counted at each look, all of them, instead of searched.
const LINEAR_ZONES_MAX: usize = 5;

impl Linear {
    fn new(geometry: &Geometry, places: &[(LeafId, u64)]) -> Option<Linear> {
        let zones = geometry.zones();
        if zones.len() > LINEAR_ZONES_MAX || zones.iter().any(|zone| zone.members.len() != 1) {
            return None;
        }
        let mut ends = [u64::MAX; LINEAR_ZONES_MAX - 1];
        for (end, zone) in ends.iter_mut().zip(&zones[..zones.len() - 1]) {
            *end = zone.array_end();
        }
        // With one member a zone, the slots are the zones.
        let zones = zones.iter().zip(places).map(|(zone, (leaf, start))| {
            (*leaf, start.wrapping_add(zone.member_start).wrapping_sub(zone.array_start), zone.array_end())
        });
        Some(Linear { ends, zones: zones.collect() })
    }

    #[inline(always)]
    fn place(&self, at: u64, len: u64) -> Option<(LeafId, u64)> {
        let index: usize = self.ends.iter().map(|&end| usize::from(at >= end)).sum();
        let (leaf, add, end) = self.zones[index];
        (at + len <= end).then_some((leaf, at.wrapping_add(add)))
    }
}

impl Direct {
    fn new(root: &Node) -> Direct {
        match root {
            Node::Leaf { leaf, start, .. } => Direct::Leaf(*leaf, *start),
            Node::Striped { geometry, members } => {
                let place = |member: &Node| match member {
                    Node::Leaf { leaf, start, .. } => Some((*leaf, *start)),
                    _ => None,
                };
                let Some(of_members) = members.iter().map(place).collect::<Option<Box<[_]>>>() else {
                    return Direct::No;
                };
                let of_slots: Box<[_]> = geometry.slots().iter().map(|slot| of_members[usize::from(*slot)]).collect();
                match (Linear::new(geometry, &of_slots), SinglePlaces::new(geometry)) {
                    (Some(linear), _) => Direct::Linear(linear),
                    (None, Some(single)) => Direct::Striped(single, of_slots),
                    (None, None) => Direct::General(geometry.clone(), of_members),
                }
            }
            Node::Mirrored(mirror) => match CopyPlaces::new(&mirror.geometry) {
                // While a member is being replaced, everything goes the long way.
                Some(places) if !mirror.failed && mirror.successors.is_empty() && mirror.parity.is_none() => {
                    Direct::Mirrored(Box::new(ShortMirror::new(mirror, places)))
                }
                _ => Direct::No,
            },
            Node::Volume(_) => Direct::No,
        }
    }
}

impl DeviceLayout {
    /// Compiles `root`. Versions of one device rise; 0 is reserved for "never published".
    ///
    /// `block_bytes` is the device's logical block, a power of two between 512 and 4096: requests are
    /// multiples of it, so it must be one of every disk below.
    ///
    /// # Panics
    /// When version is 0, the block is no such power of two, or a striped node's members differ in
    /// number or size from its geometry's: whoever describes a device checks that first.
    pub fn new(version: u32, block_bytes: u32, root: &Node) -> DeviceLayout {
        assert!(version > 0, "layout versions start at 1");
        assert!(
            block_bytes.is_power_of_two() && (512..=BLOCK_BYTES_MAX).contains(&block_bytes),
            "logical block {block_bytes}"
        );
        let mut nodes = Vec::new();
        let (size_bytes, direct) = (root.size_bytes(), Direct::new(root));
        let root = flatten(root, &mut nodes);
        let mut leaves: Vec<LeafId> = Vec::new();
        for node in &nodes {
            match node {
                FlatNode::Leaf { leaf, .. } => leaves.push(*leaf),
                FlatNode::Mirrored(mirror) => leaves.extend(mirror.bitmaps.iter().map(|place| place.0)),
                FlatNode::Striped { .. } | FlatNode::Volume(_) => {}
            }
        }
        leaves.sort_unstable();
        leaves.dedup();
        let ordered = nodes.iter().any(|n| matches!(n, FlatNode::Mirrored(_)));
        DeviceLayout {
            version,
            size_bytes,
            block_bytes,
            root,
            nodes: nodes.into(),
            leaves: leaves.into(),
            ordered,
            lease: None,
            lessor: None,
            held: false,
            read_only: false,
            missed: Box::default(),
            vacant: Roles::NONE,
            in_sectors: false,
            direct,
        }
    }

    /// Bytes of a sector: the smallest unit that a device may take.
    pub const SECTOR_BYTES: u32 = 512;

    /// Makes it one that also takes requests of whole sectors of 512 bytes. What begins or ends within a block is carried out by
    /// reading that block and writing it back, while no other request changes it. That costs a read, and memory.
    ///
    /// # Panics
    /// When it is neither a volume of a pool nor an array of copies under a lease: the short ways of other devices hold no claim,
    /// and steps of arrays with parity keep memory of rows.
    #[must_use]
    pub fn in_sectors(mut self) -> DeviceLayout {
        let is_whole =
            self.block_bytes == BLOCK_BYTES_MAX && self.size_bytes.is_multiple_of(u64::from(BLOCK_BYTES_MAX));
        let leased_copies = self.lease.is_some() && self.mirror().is_some_and(|mirror| mirror.parity.is_none());
        assert!((self.volume().is_some() || leased_copies) && is_whole, "only a volume takes sectors");
        self.in_sectors = true;
        self
    }

    /// Whether it takes requests of whole sectors.
    pub(crate) fn takes_sectors(&self) -> bool {
        self.in_sectors
    }

    /// What the offset and the length of a request are multiples of, in bytes: the logical block, or a sector.
    pub fn request_bytes(&self) -> u32 {
        if self.in_sectors { DeviceLayout::SECTOR_BYTES } else { self.block_bytes }
    }

    /// Makes it that of an array whose members are on several nodes, others of which may be served from: requests are answered under
    /// this lease only, and a read only when what it has seen is on all members that are in sync. With parity every write goes into the
    /// journal, also one of whole rows: the death of a node takes the controller and a member at the same time, and what was being written over must be readable
    /// then.
    ///
    /// # Panics
    /// When it is no redundant array.
    #[must_use]
    pub fn replicated(mut self, lease: Arc<DeviceLease>) -> DeviceLayout {
        assert!(self.mirror().is_some(), "only a redundant array is replicated");
        // The short way answers within the call.
        (self.lease, self.direct) = (Some(lease), Direct::No);
        self
    }

    /// Makes it that of a volume of a pool on a device that is replicated, this one: it answers under the lease of that, also what the
    /// pool knows by itself. Nothing is answered that is not committed: what the pool has in its memory nobody finds who serves it next on
    /// another node.
    ///
    /// # Panics
    /// When it is no volume.
    #[must_use]
    pub fn leased(mut self, lease: Arc<DeviceLease>, of: DeviceId) -> DeviceLayout {
        assert!(self.volume().is_some(), "only a volume of a pool is leased");
        (self.lease, self.lessor) = (Some(lease), Some(of));
        self
    }

    /// Makes it one under which nothing is begun and nothing answered: requests wait for the next layout. When the one before has
    /// drained, nothing of the device is under way on any disk, and what is on its members stays as it is.
    ///
    /// # Panics
    /// When it is no array of copies.
    #[must_use]
    pub fn held(mut self) -> DeviceLayout {
        let copies = self.mirror().is_some_and(|mirror| mirror.parity.is_none());
        assert!(copies, "only an array of copies is held");
        (self.held, self.direct) = (true, Direct::No);
        self
    }

    /// Makes it one that is only read: nothing of it is written, flushed or repaired. `steady`: of several copies always the first is
    /// read that can be, as they may differ.
    #[must_use]
    pub fn read_only(mut self, steady: bool) -> DeviceLayout {
        self.read_only = true;
        if steady && let FlatNode::Mirrored(mirror) = &mut self.nodes[self.root as usize] {
            // The short way takes whichever answers first.
            (mirror.steady, self.direct) = (true, Direct::No);
        }
        self
    }

    /// Has noted what is written with it, for members that are out, or were and do not hold everything yet.
    ///
    /// # Panics
    /// When it is not replicated: others may be written on a short way, of which nothing is noted.
    #[must_use]
    pub fn noting(mut self, missed: impl Iterator<Item = Arc<Missed>>) -> DeviceLayout {
        self.missed = missed.collect();
        assert!(self.missed.is_empty() || self.lease.is_some(), "only what a replicated device writes is noted");
        self
    }

    /// Has these roles of an array of copies as nobody's: no member is out that lacks what is dirty, so that bits may be cleared without
    /// them.
    #[must_use]
    pub fn vacant(mut self, roles: Roles) -> DeviceLayout {
        self.vacant = roles;
        self
    }

    /// Whether all members of the redundant array that the device is are in sync, but for roles that are nobody's.
    pub(crate) fn lacks_nobody(&self) -> bool {
        self.mirror().is_some_and(|mirror| mirror.lacks_nobody_but(self.vacant))
    }

    /// The version, from 1.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes that the device offers.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The logical block in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Every disk that the device stands on, once each, in rising order.
    pub fn leaves(&self) -> &[LeafId] {
        &self.leaves
    }

    /// The one place of `[at, at + len)`, when all of it is in one chunk on one leaf and nothing has to be true
    /// first: what nearly every small request comes to. `at + len` must lie inside the device.
    #[inline(always)]
    pub(crate) fn single_place(&self, at: u64, len: u64) -> Option<(LeafId, u64)> {
        match &self.direct {
            Direct::Leaf(leaf, start) => Some((*leaf, start + at)),
            Direct::Linear(linear) => linear.place(at, len),
            Direct::Striped(single, places) => {
                let place = single.locate(at, len);
                let (leaf, start) = places[place.slot];
                place.whole.then_some((leaf, start + place.member_offset))
            }
            Direct::General(geometry, places) => {
                let piece = geometry.locate(at);
                let (leaf, start) = places[usize::from(piece.member)];
                (piece.len >= len).then_some((leaf, start + piece.member_offset))
            }
            Direct::Mirrored(_) | Direct::No => None,
        }
    }

    /// The short form of a redundant array that serves.
    #[inline(always)]
    pub(crate) fn short_mirror(&self) -> Option<&ShortMirror> {
        match &self.direct {
            Direct::Mirrored(short) => Some(short),
            _ => None,
        }
    }

    /// The redundant array that the device is; only the root may be one.
    #[inline]
    pub(crate) fn mirror(&self) -> Option<&Mirrored> {
        match &self.nodes[self.root as usize] {
            FlatNode::Mirrored(mirror) => Some(mirror),
            _ => None,
        }
    }

    /// What the device needs as an array with parity.
    #[inline]
    pub(crate) fn parity(&self) -> Option<&Parity> {
        self.mirror().and_then(|mirror| mirror.parity.as_deref())
    }

    /// The volume that the device is; only the root may be one.
    #[inline]
    pub(crate) fn volume(&self) -> Option<&VolumeNode> {
        match &self.nodes[self.root as usize] {
            FlatNode::Volume(volume) => Some(volume),
            _ => None,
        }
    }

    /// Whether overlapping writes must be put in one order.
    pub fn ordered(&self) -> bool {
        self.ordered
    }
}

fn flatten(node: &Node, nodes: &mut Vec<FlatNode>) -> u32 {
    let flat = match node {
        Node::Leaf { leaf, start, len } => FlatNode::Leaf { leaf: *leaf, start: *start, len: *len },
        Node::Striped { geometry, members } => {
            assert_eq!(members.len(), geometry.members().len(), "members of a striped node");
            for (member, bytes) in members.iter().zip(geometry.members()) {
                assert!(member.size_bytes() >= *bytes, "a member is smaller than its geometry says");
            }
            FlatNode::Striped {
                geometry: geometry.clone(),
                members: members.iter().map(|m| flatten(m, nodes)).collect(),
            }
        }
        Node::Mirrored(mirror) => FlatNode::Mirrored(Box::new(Mirrored::new(mirror))),
        Node::Volume(volume) => FlatNode::Volume(volume.clone()),
    };
    nodes.push(flat);
    nodes.len() as u32 - 1
}
