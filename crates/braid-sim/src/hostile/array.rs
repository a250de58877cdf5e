//! An array with parity, started from edited disks: its journal is recovered, a member is dropped, and it is stopped
//! and started again.

use std::sync::{Arc, OnceLock};

use braid_array_admin::lifecycle::{
    Array, CreateRequest, assemble, create, load_regions, recover_journal, store_regions,
};
use braid_engine::{
    DeviceLayout, LeafId, LostStripes, MemberRole, MirrorMember, MirrorNode, Node, ParityNode, RegionMap, RingState,
    ShardId, Uuid,
};
use braid_format::bitmap;
use braid_format::journal::{HEAD_BYTES, JournalBatchHeader, JournalEntry, RING_OFFSET_BYTES, encode_batch};
use braid_format::{DiskLayout, LABEL_BYTES, Label, MemberId, MemberState, Name, StartPolicy};
use braid_geometry::{Level, Spec};

use super::edits::{Edit, Target};
use super::image::{Disks, crc32c, now};

const ARRAY: Uuid = Uuid::from_bytes(*b"a hostile array!");
const MEMBERS: usize = 3;
const MEMBER_BYTES: u64 = 2 << 20;
const CHUNK: u64 = 8192;

const LABEL: u8 = 0;
const BITMAP: u8 = 1;
const HEAD: u8 = 2;
const BATCH: u8 = 3;
const BYTES: u8 = 4;
const KINDS: u8 = 5;

/// Fields that hold numbers, by structure.
#[rustfmt::skip]
pub const TARGETS: &[Target] = &[
    t(LABEL, 56, 8), t(LABEL, 129, 1), t(LABEL, 130, 1), t(LABEL, 132, 2), t(LABEL, 134, 2), t(LABEL, 136, 2), t(LABEL, 138, 1), t(LABEL, 139, 1),
    t(LABEL, 140, 1), t(LABEL, 144, 4), t(LABEL, 148, 4), t(LABEL, 152, 8), t(LABEL, 240, 8), t(LABEL, 248, 8), t(LABEL, 272, 1),
    t(LABEL, 273, 1), t(LABEL, 274, 2), t(LABEL, 276, 2), t(LABEL, 280, 8), t(LABEL, 288, 8), t(LABEL, 296, 8), t(LABEL, 304, 8),
    t(LABEL, 352, 4), t(LABEL, 406, 2), t(LABEL, 408, 8), t(LABEL, 424, 8), t(LABEL, 432, 8), t(LABEL, 440, 8), t(LABEL, 448, 8),
    t(LABEL, 456, 8), t(LABEL, 464, 8), t(LABEL, 472, 8), t(LABEL, 518, 4), t(LABEL, 524, 1), t(LABEL, 2304, 2), t(LABEL, 2320, 4),
    t(LABEL, 2326, 4),
    t(BITMAP, 8, 4), t(BITMAP, 16, 8), t(BITMAP, 264, 8), t(BITMAP, 504, 8),
    t(HEAD, 24, 8), t(HEAD, 32, 8), t(HEAD, 40, 8), t(HEAD, 48, 4), t(HEAD, 52, 4), t(HEAD, 56, 4), t(HEAD, 62, 2), t(HEAD, 64, 8), t(HEAD, 72, 2),
    t(HEAD, 74, 2),
    t(BATCH, 16, 8), t(BATCH, 24, 8), t(BATCH, 32, 8), t(BATCH, 40, 8), t(BATCH, 48, 4), t(BATCH, 52, 2), t(BATCH, 64, 8), t(BATCH, 72, 2),
    t(BATCH, 74, 2), t(BATCH, 76, 1), t(BATCH, 77, 1), t(BATCH, 78, 1), t(BATCH, 79, 1),
    Target { kind: BYTES, count: 4096, offset: 0, width: 8 },
];

const fn t(kind: u8, offset: u16, width: u8) -> Target {
    Target { kind, count: 2, offset, width }
}

/// Starts and uses the array that the edits of `data` make of a valid one.
///
/// # Panics
/// If the content of the disks makes the engine panic or loop for ever.
pub fn use_array(data: &[u8]) {
    starts(data);
}

/// Returns how many times that array could be started: two if nothing was refused.
pub fn starts(data: &[u8]) -> u32 {
    let mut disks = sound().clone();
    Edit::all(data).for_each(|edit| change(&mut disks, &edit));
    let disks = Disks::new(disks, MEMBER_BYTES);
    for begun in 0..2u32 {
        if !use_once(&disks, begun) {
            return begun;
        }
    }
    2
}

fn leaves() -> Vec<LeafId> {
    (0..MEMBERS as u32).map(LeafId).collect()
}

/// Three disks of a raid5 that was killed: one region was written, and a stripe was being written.
fn sound() -> &'static Vec<Vec<u8>> {
    static SOUND: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let disks = Disks::new(vec![vec![0; MEMBER_BYTES as usize]; MEMBERS], MEMBER_BYTES);
        let request = CreateRequest {
            name: Name::new("hostile").expect("a good name"),
            spec: Spec { chunk_bytes: CHUNK, ..Spec::new(Level::Raid5) },
            member_ids: (0..MEMBERS as u64).map(|k| MemberId::from_random(0x700 | k)).collect(),
            leaves: leaves(),
            uuid: ARRAY,
            spares: Vec::new(),
            journal: None,
            write_mostly: Vec::new(),
            start_policy: StartPolicy::ByLevel,
            lineage: 77,
            session: 1,
            created_unix_s: 1_700_000_000,
            force: false,
        };
        let mut array = now(create(&disks, &request)).expect("a new array");
        let mut regions = now(load_regions(&disks, &array, false)).expect("a bitmap");
        regions.written[0] = 1;
        now(store_regions(&disks, &array, &[0, 1, 2], &regions.written, &regions.dirty)).expect("a bitmap");
        let started = now(recover_journal(&disks, &mut array, 5, false)).expect("a journal");
        let header = JournalBatchHeader {
            run: started.run,
            sequence: 1,
            tail: 1,
            position: 0,
            blocks: 1,
            entries: 1,
            payload_crc: 0,
        };
        let mut bytes = [0; 4096];
        encode_batch(&ARRAY, &header, &[JournalEntry::mark(1)], &mut bytes);
        let at = places().journal.start + RING_OFFSET_BYTES;
        for leaf in [0, 1] {
            disks.write_now(braid_engine::DeviceId(leaf), at, &bytes).expect("a disk in memory");
        }
        disks.kept.into_inner()
    })
}

fn places() -> DiskLayout {
    DiskLayout::for_device(MEMBER_BYTES).expect("a size that fits")
}

fn change(disks: &mut [Vec<u8>], edit: &Edit) {
    let places = places();
    for (member, disk) in disks.iter_mut().enumerate() {
        for copy in 0..2 {
            if !edit.is_for(member, MEMBERS, copy, 2) {
                continue;
            }
            let seal = |bytes: &mut [u8], end: usize| {
                let crc = crc32c(&[&bytes[4..end]]);
                bytes[..4].copy_from_slice(&crc.to_le_bytes());
            };
            match edit.kind % KINDS {
                LABEL => {
                    let at = [places.label_start, places.copy_start][copy] as usize;
                    let label = &mut disk[at..at + LABEL_BYTES];
                    edit.apply(label);
                    label[8..12].fill(0);
                    let crc = crc32c(&[&label[..508]]);
                    label[508..512].copy_from_slice(&crc.to_le_bytes());
                    let crc = crc32c(&[label]);
                    label[8..12].copy_from_slice(&crc.to_le_bytes());
                }
                BITMAP if copy == 0 => {
                    let at = places.bitmap.start as usize;
                    let sector = &mut disk[at..at + 512];
                    edit.apply(sector);
                    seal(sector, 512);
                }
                HEAD => {
                    let at = places.journal.start as usize + copy * HEAD_BYTES;
                    let head = &mut disk[at..at + HEAD_BYTES];
                    edit.apply(head);
                    let count = u32::from_le_bytes([head[52], head[53], head[54], head[55]]).min(2000) as usize;
                    seal(head, 64 + 16 * count);
                }
                BATCH if copy == 0 => {
                    let at = (places.journal.start + RING_OFFSET_BYTES) as usize;
                    let batch = &mut disk[at..at + 4096];
                    edit.apply(batch);
                    seal(batch, 4096);
                }
                BYTES if copy == 0 => {
                    let at = edit.index as usize * 512;
                    if let Some(sector) = disk.get_mut(at..) {
                        edit.apply(sector);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Starts the array and uses it as the daemon does. Returns false if it is refused.
fn use_once(disks: &Disks, begun: u32) -> bool {
    let mut drawn = 100 * u64::from(begun);
    let assembled = now(assemble(disks, &leaves(), || {
        drawn += 2;
        drawn
    }));
    for (_, error) in &assembled.failed {
        assert!(error.to_string().len() > 10, "{error:?}");
    }
    let Some(mut array) = assembled.started.into_iter().next() else { return false };
    if array.is_redundant() {
        let Ok(regions) = now(load_regions(disks, &array, false)) else { return false };
        let parity = matches!(array.label().spec.level, Level::Raid5 | Level::Raid6);
        let journal = if parity {
            let Ok(journal) = now(recover_journal(disks, &mut array, 900 + u64::from(begun), false)) else {
                return false;
            };
            array.record_run(&journal);
            Some(journal)
        } else {
            None
        };
        let parity = journal.map(|journal| ParityNode {
            array: array.uuid(),
            run: journal.run,
            rings: array.members().map(|member| member.part.layout.journal.start + RING_OFFSET_BYTES).collect(),
            ring_blocks: journal.ring_blocks,
            ring_blocks_min: journal.least_ring_blocks(),
            generation: journal.generation,
            lost_stripes: Arc::new(LostStripes::new(&journal.lost)),
            ring_location: RingState::Members,
            marks: Arc::default(),
        });
        lay_out(&array, &regions, parity);
        let slot = array.members().map(|member| member.number).max().unwrap_or(0);
        // Beyond its tolerance, or if a label cannot be written: an error, and the array stops.
        let _ = now(array.drop_members(disks, &[slot]));
    }
    let at = array.geometry().size_bytes().saturating_sub(4096);
    let _ = array.geometry().locate(at);
    let _ = now(array.rename(disks, Name::new("other").expect("a good name")));
    if begun == 0 {
        return true;
    }
    let _ = now(array.stop(disks));
    let label =
        disks.read_now(braid_engine::DeviceId(0), 0, LABEL_BYTES).ok().and_then(|bytes| Label::decode(&bytes).ok());
    label.is_some()
}

/// Builds the layout with which it would serve.
fn lay_out(array: &Array, regions: &braid_array_admin::lifecycle::ArrayBitmap, parity: Option<ParityNode>) {
    let label = array.label();
    let (size, bits) = (array.geometry().size_bytes(), (&*regions.written, &*regions.dirty));
    let map = RegionMap::new(ShardId(0), array.uuid(), size, label.region_bytes, bits, false);
    for region in [0, map.regions() - 1] {
        let (start, end) = map.range(region);
        assert!(start < end && end <= size, "region {region} of {size} bytes");
    }
    assert!(bitmap::bytes_for(map.regions().into()) > 0);
    let slots = usize::from(array.slots());
    let mut members: Vec<Option<MirrorMember>> = vec![None; slots];
    for member in array.members() {
        let places = &member.part.layout;
        let role = match member.state {
            MemberState::InSync => MemberRole::InSync,
            _ => MemberRole::Failed,
        };
        let of = MirrorMember {
            leaf: member.leaf,
            start: places.data.start,
            len: places.data.bytes,
            bitmap_start: places.bitmap.start,
            role,
            write_mostly: false,
        };
        if let Some(place) = members.get_mut(usize::from(member.number)) {
            *place = Some(of);
        }
    }
    // Missing members have a place in the layout, too; only whole arrays are laid out here.
    let Some(members) = members.into_iter().collect::<Option<Vec<_>>>() else { return };
    if members.len() < array.geometry().member_data_bytes().len() {
        return;
    }
    let node = MirrorNode {
        geometry: array.geometry().clone(),
        members,
        successors: Vec::new(),
        regions: Arc::new(map),
        parity,
        failed: false,
    };
    let layout = DeviceLayout::new(1, 4096, &Node::Mirrored(Box::new(node)));
    assert_eq!(layout.size_bytes(), size);
}
