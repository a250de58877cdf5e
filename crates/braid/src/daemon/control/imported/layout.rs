//! An array of md as the engine has it: a layout that is only read.

use super::Imported;
use braid_engine::{
    DeviceLayout, LeafId, LostRows, MirrorMember, MirrorNode, Node, ParityNode, RegionMap, RingPlace, Role, ShardId,
};
use braid_format::md::{MdArray, SlotState, Superblock};
use braid_format::{ArrayPart, ArrayState, Features, Lineage, MemberEntry, MemberId, MemberState, Name, StartPolicy};
use braid_geometry::{Geometry, Level};
use std::sync::Arc;

/// Regions have no meaning here, as all is written: as few as can be.
const REGION_BYTES: u32 = 1 << 30;
/// A ring that nobody writes to.
const RING_BLOCKS: u64 = 176;

/// A member that is read, where it is.
#[derive(Clone, Copy)]
pub struct Place {
    pub leaf: LeafId,
    pub start: u64,
    pub len: u64,
    pub write_mostly: bool,
}

/// Compiles it. `places`: by role, none for members that are not read.
pub fn compile(
    array: &MdArray,
    geometry: &Geometry,
    places: &[Option<Place>],
    version: u32,
    block_bytes: u32,
) -> DeviceLayout {
    let spec = geometry.spec();
    if matches!(spec.level, Level::Concat | Level::Raid0) {
        let leaf = |place: &Place| Node::Leaf { leaf: place.leaf, start: place.start, len: place.len };
        let members = places.iter().flatten().map(leaf).collect();
        let root = Node::Striped { geometry: geometry.clone(), members };
        return DeviceLayout::new(version, block_bytes, &root).read_only(false);
    }
    let member = |place: &Option<Place>| {
        let role = if place.is_some() { Role::InSync } else { Role::Out };
        let place = place.unwrap_or(Place { leaf: LeafId(0), start: 0, len: 0, write_mostly: false });
        let Place { leaf, start, len, write_mostly } = place;
        MirrorMember { leaf, start, len, bitmap_start: 0, role, write_mostly }
    };
    let size_bytes = geometry.size_bytes();
    let words = vec![u64::MAX; size_bytes.div_ceil(u64::from(REGION_BYTES)).div_ceil(64) as usize];
    // Everything was written, and nothing is dirty: what differs nobody here makes equal.
    let regions = RegionMap::new(ShardId(0), array.uuid, size_bytes, REGION_BYTES, (&words, &[]), true);
    let parity = (spec.level.parity() > 0).then(|| ParityNode {
        array: array.uuid,
        run: 1,
        rings: vec![0; places.len()],
        ring_blocks: RING_BLOCKS,
        least_ring_blocks: RING_BLOCKS,
        generation: 1,
        lost: Arc::<LostRows>::default(),
        marks: Arc::default(),
        ring_on: RingPlace::Members,
    });
    let node = MirrorNode {
        geometry: geometry.clone(),
        members: places.iter().map(member).collect(),
        successors: Vec::new(),
        regions: Arc::new(regions),
        parity,
        failed: false,
    };
    DeviceLayout::new(version, block_bytes, &Node::Mirrored(Box::new(node))).read_only(!array.clean)
}

/// What a label would say of it. It stands nowhere.
pub fn label(name: Name, imported: &Imported, geometry: &Geometry, devices: &[Superblock]) -> ArrayPart {
    let array = &imported.array;
    let members = array.slots.iter().zip(0..).map(|(seat, role)| {
        let device = seat.device.map(|device| &devices[device]);
        let id = device.map_or(role, |device| device.device.as_u128() as u64);
        MemberEntry {
            id: Some(MemberId::from_random(id)),
            data_bytes: geometry.members().get(role as usize).copied().unwrap_or(0),
            state: match seat.state {
                _ if seat.used => MemberState::InSync,
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
        controller: uuid::Uuid::nil(),
        jobs: Vec::new(),
        members: members.collect(),
        zones: Vec::new(),
        reserved: [0; 2],
    }
}
