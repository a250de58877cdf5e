//! The engine's layout of an array of Linux md: read-only.

use braid_engine::{
    DeviceLayout, LeafId, LostStripes, MemberRole, MirrorMember, MirrorNode, Node, ParityNode, RegionMap, RingState,
    ShardId,
};
use braid_format::md::{MdArray, SlotState, Superblock};
use braid_format::{ArrayPart, ArrayState, Features, Lineage, MemberEntry, MemberId, MemberState, Name, StartPolicy};
use braid_geometry::{Geometry, Level};
use braid_inventory::Imported;
use std::sync::Arc;
use uuid::Uuid;

/// Size of a region in bytes, as large as possible: regions have no effect here, as everything counts as written.
const REGION_BYTES: u32 = 1 << 30;

/// Size of the journal's ring in blocks; nothing writes to the ring.
const RING_BLOCKS: u64 = 176;

/// The location of a member that is read.
#[derive(Clone, Copy)]
pub(crate) struct MemberLocation {
    pub(crate) leaf: LeafId,
    /// The first byte of its data area.
    pub(crate) start: u64,
    /// The size of its data area, in bytes.
    pub(crate) len: u64,
    /// It is read only if no other member can be.
    pub(crate) write_mostly: bool,
}

/// Compiles the layout. `locations`: by slot, [`None`] for members that are not read.
pub(crate) fn compile(
    array: &MdArray,
    geometry: &Geometry,
    locations: &[Option<MemberLocation>],
    version: u32,
    block_bytes: u32,
) -> DeviceLayout {
    let spec = geometry.spec();
    if matches!(spec.level, Level::Concat | Level::Raid0) {
        let leaf =
            |location: &MemberLocation| Node::Leaf { leaf: location.leaf, start: location.start, len: location.len };
        let members = locations.iter().flatten().map(leaf).collect();
        let root = Node::Striped { geometry: geometry.clone(), members };
        return DeviceLayout::new(version, block_bytes, &root).read_only(false);
    }
    let member = |location: &Option<MemberLocation>| {
        let role = if location.is_some() { MemberRole::InSync } else { MemberRole::Failed };
        let location = location.unwrap_or(MemberLocation { leaf: LeafId(0), start: 0, len: 0, write_mostly: false });
        let MemberLocation { leaf, start, len, write_mostly } = location;
        MirrorMember { leaf, start, len, bitmap_start: 0, role, write_mostly }
    };
    let size_bytes = geometry.size_bytes();
    let words = vec![u64::MAX; size_bytes.div_ceil(u64::from(REGION_BYTES)).div_ceil(64) as usize];
    // Everything counts as written and nothing as dirty: no component here resyncs copies that differ.
    let regions = RegionMap::new(ShardId(0), array.uuid, size_bytes, REGION_BYTES, (&words, &[]), true);
    let parity = (spec.level.parity() > 0).then(|| ParityNode {
        array: array.uuid,
        run: 1,
        rings: vec![0; locations.len()],
        ring_blocks: RING_BLOCKS,
        ring_blocks_min: RING_BLOCKS,
        generation: 1,
        lost_stripes: Arc::<LostStripes>::default(),
        marks: Arc::default(),
        ring_location: RingState::Members,
    });
    let node = MirrorNode {
        geometry: geometry.clone(),
        members: locations.iter().map(member).collect(),
        successors: Vec::new(),
        regions: Arc::new(regions),
        parity,
        failed: false,
    };
    DeviceLayout::new(version, block_bytes, &Node::Mirrored(Box::new(node))).read_only(!array.clean)
}

/// Returns the label that the array would have. It is stored nowhere.
pub(crate) fn label(name: Name, imported: &Imported, geometry: &Geometry, devices: &[Superblock]) -> ArrayPart {
    let array = &imported.array;
    let members = array.slots.iter().zip(0..).map(|(slot, number)| {
        let device = slot.device.map(|device| &devices[device]);
        let id = device.map_or(number, |device| device.device.as_u128() as u64);
        MemberEntry {
            id: Some(MemberId::from_random(id)),
            data_bytes: geometry.member_data_bytes().get(number as usize).copied().unwrap_or(0),
            state: match slot.state {
                _ if slot.used => MemberState::InSync,
                SlotState::Rebuilding { .. } => MemberState::Rebuilding,
                SlotState::Stale { .. } => MemberState::Failed,
                // Without a disk it is shown as missing.
                SlotState::Current | SlotState::Missing => MemberState::InSync,
            },
            write_mostly: device.is_some_and(|device| device.write_mostly),
        }
    });
    ArrayPart {
        features: Features::default(),
        uuid: array.uuid,
        sequence: 1,
        name,
        state: ArrayState::Active,
        spec: *geometry.spec(),
        clean: array.clean,
        start_policy: StartPolicy::ByLevel,
        region_bytes: 0,
        array_bytes: geometry.size_bytes(),
        created_unix_s: array.created_unix_s,
        lineage: Lineage { id: 0, ancestors: Vec::new() },
        session: 0,
        previous_session: 0,
        epoch: 0,
        controller: Uuid::nil(),
        jobs: Vec::new(),
        members: members.collect(),
        zones: Vec::new(),
        reserved: [0; 2],
    }
}
