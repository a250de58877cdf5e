//! One thread changes the map of a volume while two others read it. Every version of a logical extent is a different
//! arrangement, and a lookup's result identifies its version: it must be right for one version that existed during the
//! lookup.
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use braid_engine::pool::{BlockLocation, ExtentId, MapWriter, PackedBlock, Piece, Records, Visible, VolumeMap};

const VERSIONS: u32 = 120_000;
/// Maximum number of extents that one version names. None is reused by a later version: ordering rule 4 of pools.
const EXTENTS: u32 = 4;
/// In the first part of the map, in another one, and beyond the map's initial size.
const LOGICAL: [u32; 4] = [0, 511, 2_048, 70_000];
const SIZE: u32 = 70_001;

/// The location of each block of a logical extent in one version: the extent, and the position in it.
type Arrangement = [Option<(ExtentId, u32)>; 64];

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    (x ^ (x >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d)
}

/// Returns the extents of a version of the `which`-th logical extent: their number identifies both.
fn extent(which: usize, version: u32, k: u32) -> ExtentId {
    ExtentId { member: which as u8, index: version * EXTENTS + k }
}

fn version_of(which: usize, extent: ExtentId) -> u32 {
    assert_eq!(usize::from(extent.member), which, "what another logical extent has");
    extent.index / EXTENTS
}

/// Returns the form of a version: 0 unmapped, 1 whole, 2 single, 3 to 7 lists and tables.
fn form(which: usize, version: u32) -> u64 {
    match version {
        0 => 0,
        _ => mix(u64::from(version) << 8 | which as u64) % 8,
    }
}

/// Returns the blocks of a version, as pieces and packed blocks.
fn arrange(which: usize, version: u32) -> (Vec<Piece>, Vec<PackedBlock>) {
    let seed = mix(u64::from(version) << 16 | which as u64);
    let piece = |k, mask| Piece { extent: extent(which, version, k), mask };
    let packed = |mask: u64| -> Vec<PackedBlock> {
        let blocks = (0..64u8).filter(|block| mask >> block & 1 != 0);
        blocks
            .map(|block| {
                // Runs of slots of some length.
                let slot = (u64::from(block) ^ (seed & 0x38)) as u8;
                PackedBlock { block, slot, extent: extent(which, version, 3) }
            })
            .collect()
    };
    let some = seed | 1 << (seed % 64);
    match form(which, version) {
        0 => (vec![], vec![]),
        1 => (vec![piece(0, u64::MAX)], vec![]),
        2 => (vec![piece(0, some)], vec![]),
        3 => (vec![], packed(1 << (seed % 64))),
        4 => (vec![piece(0, some), piece(1, !some)], vec![]),
        5 => (vec![piece(0, !0xff00), piece(1, 0x0f00)], packed(0xc000)),
        6 => (vec![piece(0, 0xff)], packed(some & 0xffff_ff00)),
        _ => (vec![piece(0, some >> 32)], packed(!0 << 32)),
    }
}

fn places(which: usize, version: u32) -> Arrangement {
    let (pieces, packed) = arrange(which, version);
    let mut places = [None; 64];
    for piece in pieces {
        (0..64).filter(|at| piece.mask >> at & 1 != 0).for_each(|at| places[at] = Some((piece.extent, at as u32)));
    }
    for block in packed {
        places[usize::from(block.block)] = Some((block.extent, u32::from(block.slot)));
    }
    places
}

fn expected(which: usize, version: u32, at: u32, most: u32) -> BlockLocation {
    let places = places(which, version);
    let first = places[at as usize];
    let goes_on = |k: &u32| places[(at + k) as usize] == first.map(|(extent, position)| (extent, position + k));
    let blocks = (1..most.min(64 - at)).take_while(goes_on).count() as u32 + 1;
    match first {
        None => BlockLocation::Nothing { blocks },
        Some((extent, position)) => BlockLocation::At { extent, position, blocks },
    }
}

struct Shared {
    records: Records,
    /// The version of each logical extent that is being written, and the one that has been written.
    begun: [AtomicU32; LOGICAL.len()],
    made: [AtomicU32; LOGICAL.len()],
    over: AtomicBool,
    /// Lookups during which the version changed: without them nothing was tested.
    overtaken: AtomicU64,
}

/// Ends the readers, however the writer ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn write(shared: &Shared, mut writer: MapWriter) {
    let _over = Over(&shared.over);
    for version in 1..VERSIONS {
        if version == VERSIONS / 4 {
            writer.resize(SIZE);
        }
        let size = writer.map().extents();
        for (which, logical) in LOGICAL.into_iter().enumerate().filter(|(_, logical)| *logical < size) {
            let (pieces, packed) = arrange(which, version);
            shared.begun[which].store(version, Ordering::SeqCst);
            pieces.iter().for_each(|piece| shared.records.set_present(piece.extent, piece.mask));
            if form(which, version) == 3 {
                // In two steps: readers see either.
                writer.clear_blocks(&shared.records, logical, u64::MAX);
                let block = u64::from(logical) * 64 + u64::from(packed[0].block);
                writer.set_packed(&shared.records, block, packed[0].extent, packed[0].slot);
            } else {
                writer.replace(&shared.records, logical, &pieces, &packed, form(which, version) == 2);
            }
            shared.made[which].store(version, Ordering::SeqCst);
            // The extents of the previous version are free now, and their records say so at once.
            (0..EXTENTS).for_each(|k| shared.records.set_present(extent(which, version - 1, k), 0));
        }
    }
}

fn read(shared: &Shared, map: &VolumeMap, mut x: u64) -> u64 {
    let (mut looks, mut visible) = (0, Visible::new());
    while !shared.over.load(Ordering::SeqCst) {
        x = mix(x.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let which = (x % LOGICAL.len() as u64) as usize;
        let (at, most) = ((x >> 8) as u32 % 64, 1 + (x >> 16) as u32 % 64);
        let block = u64::from(LOGICAL[which]) * 64 + u64::from(at);
        looks += 1;

        let first = shared.made[which].load(Ordering::SeqCst);
        if x >> 60 == 0 {
            map.visible(&shared.records, LOGICAL[which], &mut visible);
            let last = shared.begun[which].load(Ordering::SeqCst);
            check_visible(which, &visible, first..=last);
            continue;
        }
        let found = map.find(&shared.records, block, most);
        let last = shared.begun[which].load(Ordering::SeqCst);
        shared.overtaken.fetch_add(u64::from(first != last), Ordering::Relaxed);
        match found {
            BlockLocation::At { extent, .. } => {
                let version = version_of(which, extent);
                assert!((first..=last).contains(&version), "version {version}, where it was {first} to {last}");
                assert_eq!(found, expected(which, version, at, most), "version {version} of {which}");
            }
            BlockLocation::Nothing { blocks } => {
                let between = |version| form(which, version) == 3 && blocks == most.min(64 - at);
                let right =
                    (first..=last).any(|version| found == expected(which, version, at, most) || between(version));
                assert!(right, "{found:?} at {at} of {which}, version {first} to {last}");
            }
        }
    }
    looks
}

fn check_visible(which: usize, visible: &Visible, mut versions: std::ops::RangeInclusive<u32>) {
    let mut seen = visible.pieces().iter().map(|piece| piece.extent).chain(visible.packed().map(|block| block.extent));
    match seen.next() {
        None => assert!(versions.any(|version| matches!(form(which, version), 0 | 3)), "nothing, and it never was so"),
        Some(extent) => {
            let version = version_of(which, extent);
            assert!(versions.contains(&version));
            let (pieces, packed) = arrange(which, version);
            let with_blocks: Vec<Piece> = pieces.into_iter().filter(|piece| piece.mask != 0).collect();
            let same = |piece: &Piece| visible.pieces().contains(piece);
            assert!(with_blocks.iter().all(same) && visible.pieces().len() == with_blocks.len());
            assert!(visible.packed().eq(packed), "version {version} of {which}");
        }
    }
}

#[test]
fn a_lookup_returns_what_was_true_during_it() {
    let shared = Shared {
        records: Records::new(),
        begun: [const { AtomicU32::new(0) }; LOGICAL.len()],
        made: [const { AtomicU32::new(0) }; LOGICAL.len()],
        over: AtomicBool::new(false),
        overtaken: AtomicU64::new(0),
    };
    (0..LOGICAL.len()).for_each(|which| shared.records.add_member(which as u8, VERSIONS * EXTENTS));
    let writer = MapWriter::new(600);
    let map = writer.map().clone();
    let looks: Vec<u64> = std::thread::scope(|scope| {
        let readers: Vec<_> = [1, 2]
            .map(|seed| {
                scope.spawn({
                    let (shared, map) = (&shared, &*map);
                    move || read(shared, map, seed)
                })
            })
            .into();
        scope.spawn(|| write(&shared, writer));
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    let overtaken = shared.overtaken.into_inner();
    println!("{looks:?} looks, {overtaken} while the version changed");
    assert!(looks.iter().all(|&looks| looks > 1000) && overtaken > 100, "{looks:?} looks, {overtaken} overtaken");
}
