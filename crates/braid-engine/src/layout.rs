//! A device's description, compiled for the planner.
//!
//! A [`DeviceLayout`] is immutable. A change of the device creates a new one with a higher version; each slot records
//! the version that it was planned with, so that the end of an old layout's last user can be detected.

use std::sync::Arc;

use braid_geometry::{Geometry, MirrorMap, SingleCopyMap};

use crate::device_lease::DeviceLease;
use crate::io::{DeviceId, LeafId};
use crate::mirror::{FastMirror, MemberSet, MirrorNode, Mirrored};
use crate::missed_writes::MissedWrites;
use crate::parity::Parity;
use crate::volume::VolumeNode;

/// The largest logical block of a device, in bytes.
pub(crate) const BLOCK_BYTES_MAX: u32 = 4096;

/// Maximum number of locations of one byte: the maximum number of members of an array.
pub const COPIES_MAX: usize = 128;

/// A device as a tree.
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
        /// The location of each byte; its members' sizes are the children's.
        geometry: Geometry,
        /// The members, in slot order.
        members: Vec<Node>,
    },
    /// raid1, raid10, raid5, raid6: every byte on several members, or in the parity of its stripe. Overlapping writes
    /// are ordered.
    Mirrored(Box<MirrorNode>),
    /// A volume of a pool: its blocks are on the devices that are the pool's members.
    Volume(Box<VolumeNode>),
}

impl Node {
    /// Returns the size of this node in bytes.
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

/// A device, ready for planning. Immutable.
#[derive(Debug)]
pub struct DeviceLayout {
    version: u32,
    size_bytes: u64,
    block_bytes: u32,
    pub(crate) root: u32,
    pub(crate) nodes: Box<[FlatNode]>,
    pub(crate) leaves: Box<[LeafId]>,
    pub(crate) ordered: bool,
    /// It is replicated: see [`DeviceLayout::replicated`]; or a volume of a pool on such a device: see
    /// [`DeviceLayout::leased`].
    pub(crate) lease: Option<Arc<DeviceLease>>,
    /// Of a volume: the device whose lease it is.
    pub(crate) lessor: Option<DeviceId>,
    /// It is held: see [`DeviceLayout::held`].
    pub(crate) held: bool,
    /// It is read-only: see [`DeviceLayout::read_only`].
    pub(crate) read_only: bool,
    /// Records of the writes that failed members miss.
    pub(crate) missed: Box<[Arc<MissedWrites>]>,
    /// Vacant slots: see [`DeviceLayout::vacant`].
    vacant: MemberSet,
    /// It takes whole sectors: see [`DeviceLayout::with_sector_requests`].
    in_sectors: bool,
    direct: Direct,
}

/// The fast lookup of a byte's single location, for layouts in which every byte has one and can be accessed without
/// further conditions.
#[derive(Debug)]
enum Direct {
    /// A part of a disk, from this byte on.
    Leaf(LeafId, u64),
    /// Parts of disks, one after the other.
    Linear(Linear),
    /// Stripes over parts of disks, with the start of each slot of the geometry.
    Striped(SingleCopyMap, Box<[(LeafId, u64)]>),
    /// Stripes of geometries without a short form (more zones than are compared, or a chunk that is no power of two),
    /// with the start of each member.
    General(Geometry, Box<[(LeafId, u64)]>),
    /// Copies: several locations, subject to conditions.
    Mirrored(Box<FastMirror>),
    /// There is none.
    No,
}

/// Zones of one member each.
#[derive(Debug)]
struct Linear {
    /// The ends of all zones but the last; unused entries hold an end that no offset reaches.
    ends: [u64; LINEAR_ZONES_MAX - 1],
    /// Of each zone: its disk, the number to add (wrapping) to a device offset to get the disk offset, and its end on
    /// the device.
    zones: Box<[(LeafId, u64, u64)]>,
}

/// Maximum number of zones whose ends are all compared at each lookup, instead of a search.
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
        // With one member in each zone, the slots are the zones.
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
                match (Linear::new(geometry, &of_slots), SingleCopyMap::new(geometry)) {
                    (Some(linear), _) => Direct::Linear(linear),
                    (None, Some(single)) => Direct::Striped(single, of_slots),
                    (None, None) => Direct::General(geometry.clone(), of_members),
                }
            }
            Node::Mirrored(mirror) => match MirrorMap::new(&mirror.geometry) {
                // While a member is being replaced, all requests take the regular path.
                Some(places) if !mirror.failed && mirror.successors.is_empty() && mirror.parity.is_none() => {
                    Direct::Mirrored(Box::new(FastMirror::new(mirror, places)))
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
    /// `block_bytes` is the device's logical block, a power of two between 512 and 4096: requests are multiples of it,
    /// so it must be a multiple of the logical block of every disk below.
    ///
    /// # Panics
    /// If version is 0, the block is no such power of two, or a striped node's members differ in number or size from
    /// its geometry's: the caller checks that first.
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
            vacant: MemberSet::NONE,
            in_sectors: false,
            direct,
        }
    }

    /// Bytes of a sector: the smallest unit that a device may take.
    pub const SECTOR_BYTES: u32 = 512;

    /// Makes it a layout that also takes requests of whole sectors of 512 bytes. A request that begins or ends within a
    /// block reads that block, and writes it back with the changed sectors; no other request changes the block in
    /// between. That costs a read, and memory of the shard.
    ///
    /// # Panics
    /// If it is neither a volume of a pool nor an array of copies under a lease: the fast paths of other devices hold
    /// no claim, and steps of arrays with parity keep memory of stripes. Also if the logical block is not 4096 bytes,
    /// or the size is no multiple of it.
    #[must_use]
    pub fn with_sector_requests(mut self) -> DeviceLayout {
        let is_whole =
            self.block_bytes == BLOCK_BYTES_MAX && self.size_bytes.is_multiple_of(u64::from(BLOCK_BYTES_MAX));
        let leased_copies = self.lease.is_some() && self.mirror().is_some_and(|mirror| mirror.parity.is_none());
        assert!((self.volume().is_some() || leased_copies) && is_whole, "only a volume takes sectors");
        self.in_sectors = true;
        self
    }

    /// Returns whether it takes requests of whole sectors.
    pub(crate) fn takes_sectors(&self) -> bool {
        self.in_sectors
    }

    /// Returns the unit of a request's offset and length in bytes: the logical block, or a sector.
    pub fn request_bytes(&self) -> u32 {
        if self.in_sectors { DeviceLayout::SECTOR_BYTES } else { self.block_bytes }
    }

    /// Makes it the layout of a replicated array: its members are on several nodes, and a controller on another node
    /// may take it over. Requests are answered only under this lease, and a read only when the data that it returns is
    /// on all members in sync. With parity every write is logged in the journal, including full-stripe writes: the
    /// failure of a node may take away the controller and a member at once, and blocks that were being overwritten must
    /// be readable then.
    ///
    /// # Panics
    /// If it is no redundant array.
    #[must_use]
    pub fn replicated(mut self, lease: Arc<DeviceLease>) -> DeviceLayout {
        assert!(self.mirror().is_some(), "only a redundant array is replicated");
        // The fast path completes inline.
        (self.lease, self.direct) = (Some(lease), Direct::No);
        self
    }

    /// Makes it the layout of a volume of a pool on a replicated device, `of`. The volume answers requests only under
    /// that device's lease, including those that the pool answers without I/O (blocks that are zeros). It answers no
    /// request before the changes of the pool that the answer depends on are committed: a controller that takes over
    /// the pool on another node does not find what is only in this node's memory.
    ///
    /// # Panics
    /// If it is no volume.
    #[must_use]
    pub fn leased(mut self, lease: Arc<DeviceLease>, of: DeviceId) -> DeviceLayout {
        assert!(self.volume().is_some(), "only a volume of a pool is leased");
        (self.lease, self.lessor) = (Some(lease), Some(of));
        self
    }

    /// Makes it a layout under which no request begins and none is answered: requests wait for the next layout. When
    /// the previous layout has drained, no I/O of the device is in flight on any disk, and the content of its members
    /// does not change.
    ///
    /// # Panics
    /// If it is no array of copies.
    #[must_use]
    pub fn held(mut self) -> DeviceLayout {
        let copies = self.mirror().is_some_and(|mirror| mirror.parity.is_none());
        assert!(copies, "only an array of copies is held");
        (self.held, self.direct) = (true, Direct::No);
        self
    }

    /// Makes it a read-only layout: nothing of the device is written, flushed or repaired. `steady`: of several copies
    /// always the first readable one is read, because they may differ.
    #[must_use]
    pub fn read_only(mut self, steady: bool) -> DeviceLayout {
        self.read_only = true;
        if steady && let FlatNode::Mirrored(mirror) = &mut self.nodes[self.root as usize] {
            // The fast path reads another copy.
            (mirror.steady, self.direct) = (true, Direct::No);
        }
        self
    }

    /// Makes every request that is planned with this layout record the range that it writes, in each of these records:
    /// there is one for each member that has failed or is being rebuilt.
    ///
    /// # Panics
    /// If it is not replicated: other devices may be written on a fast path, which records nothing.
    #[must_use]
    pub fn recording_missed(mut self, missed: impl Iterator<Item = Arc<MissedWrites>>) -> DeviceLayout {
        self.missed = missed.collect();
        assert!(self.missed.is_empty() || self.lease.is_some(), "only what a replicated device writes is noted");
        self
    }

    /// Declares these slots of an array of copies vacant. A vacant slot does not keep dirty bits from being cleared, as
    /// a failed member does: a disk that takes the slot is rebuilt in full.
    #[must_use]
    pub fn vacant(mut self, roles: MemberSet) -> DeviceLayout {
        self.vacant = roles;
        self
    }

    /// Returns whether all members of the redundant array that the device is are in sync, except for vacant slots.
    pub(crate) fn is_in_sync(&self) -> bool {
        self.mirror().is_some_and(|mirror| mirror.is_in_sync_except(self.vacant))
    }

    /// Returns the version, from 1.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the size of the device in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the logical block in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Returns every disk below the device, once each, in ascending order.
    pub fn leaves(&self) -> &[LeafId] {
        &self.leaves
    }

    /// Returns the leaf and the byte offset there of `[at, at + len)`, if the whole range is in one chunk on one leaf
    /// and can be accessed without further conditions. That is so for nearly every small request. `at + len` must lie
    /// inside the device.
    #[inline(always)]
    pub(crate) fn single_place(&self, at: u64, len: u64) -> Option<(LeafId, u64)> {
        match &self.direct {
            Direct::Leaf(leaf, start) => Some((*leaf, start + at)),
            Direct::Linear(linear) => linear.place(at, len),
            Direct::Striped(single, places) => {
                let place = single.locate(at, len);
                let (leaf, start) = places[place.slot];
                place.is_contiguous.then_some((leaf, start + place.member_offset))
            }
            Direct::General(geometry, places) => {
                let piece = geometry.locate(at);
                let (leaf, start) = places[usize::from(piece.member)];
                (piece.len >= len).then_some((leaf, start + piece.member_offset))
            }
            Direct::Mirrored(_) | Direct::No => None,
        }
    }

    /// Returns the data for the fast path of a redundant array that serves.
    #[inline(always)]
    pub(crate) fn fast_mirror(&self) -> Option<&FastMirror> {
        match &self.direct {
            Direct::Mirrored(short) => Some(short),
            _ => None,
        }
    }

    /// Returns the redundant array that the device is; only the root may be one.
    #[inline]
    pub(crate) fn mirror(&self) -> Option<&Mirrored> {
        match &self.nodes[self.root as usize] {
            FlatNode::Mirrored(mirror) => Some(mirror),
            _ => None,
        }
    }

    /// Returns the data of an array with parity.
    #[inline]
    pub(crate) fn parity(&self) -> Option<&Parity> {
        self.mirror().and_then(|mirror| mirror.parity.as_deref())
    }

    /// Returns the volume that the device is; only the root may be one.
    #[inline]
    pub(crate) fn volume(&self) -> Option<&VolumeNode> {
        match &self.nodes[self.root as usize] {
            FlatNode::Volume(volume) => Some(volume),
            _ => None,
        }
    }

    /// Returns whether overlapping writes must be ordered.
    pub fn ordered(&self) -> bool {
        self.ordered
    }
}

fn flatten(node: &Node, nodes: &mut Vec<FlatNode>) -> u32 {
    let flat = match node {
        Node::Leaf { leaf, start, len } => FlatNode::Leaf { leaf: *leaf, start: *start, len: *len },
        Node::Striped { geometry, members } => {
            assert_eq!(members.len(), geometry.member_data_bytes().len(), "members of a striped node");
            for (member, bytes) in members.iter().zip(geometry.member_data_bytes()) {
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
