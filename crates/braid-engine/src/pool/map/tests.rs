//! Random histories of a map against a model that knows where each block is, and nothing else.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use super::super::{ExtentId, Records};
use super::word::{CLASSES, Word};
use super::*;

const MEMBERS: u8 = 3;
const MEMBER_EXTENTS: u32 = 1 << 14;
/// A volume is made with a few extents, and grows beyond what its directory was made for.
const SIZES: [u32; 4] = [3, 700, 9_000, 131_001];
/// The logical extents that histories are about: the first and last ones of parts, of the first part of the directory,
/// and of each size.
const LOGICAL: [u32; 12] = [0, 1, 2, 699, 2_047, 2_048, 8_999, 32_767, 32_768, 65_535, 65_536, 131_000];

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }

    fn bits(&mut self) -> u64 {
        self.below(1 << 32) << 32 | self.below(1 << 32)
    }

    fn mask(&mut self) -> u64 {
        let range = |first: u64, count: u64| (u64::MAX >> (64 - count)) << first;
        match self.below(8) {
            0..3 => 1 << self.below(64),
            3 => u64::MAX,
            4 => self.bits() & self.bits() & self.bits(),
            5 => self.bits(),
            _ => {
                let first = self.below(64);
                range(first, 1 + self.below(64 - first))
            }
        }
    }
}

fn bits(mask: u64) -> impl Iterator<Item = u64> {
    (0..64).filter(move |bit| mask >> bit & 1 != 0)
}

/// What the home of a pool would know of one logical extent.
#[derive(Default)]
struct Logical {
    /// By block of the logical extent: the extent, the position there, whether it is packed.
    blocks: BTreeMap<u64, (ExtentId, u64, bool)>,
    /// The extent of the volume's newest owner.
    newest: Option<ExtentId>,
    /// Extents of older owners.
    older: Vec<ExtentId>,
}

struct History {
    rng: Rng,
    records: Records,
    writer: MapWriter,
    model: BTreeMap<u32, Logical>,
    size: u32,
    fresh: u32,
    reached: BTreeSet<&'static str>,
}

impl History {
    fn new(seed: u64) -> History {
        let records = Records::new();
        (0..MEMBERS).for_each(|member| records.add_member(member, MEMBER_EXTENTS));
        let mut rng = Rng(seed);
        let size = SIZES[rng.below(4) as usize];
        let writer = MapWriter::new(size);
        History { rng, records, writer, model: BTreeMap::new(), size, fresh: 0, reached: BTreeSet::new() }
    }

    /// Returns an extent that was never used before.
    fn fresh(&mut self) -> ExtentId {
        self.fresh += 1;
        ExtentId { member: self.rng.below(MEMBERS.into()) as u8, index: self.fresh }
    }

    fn present(&mut self, extent: ExtentId, mask: u64) {
        self.records.set_present(extent, self.records.present(extent) | mask);
    }

    fn step(&mut self) {
        let logical = loop {
            let logical = LOGICAL[self.rng.below(LOGICAL.len() as u64) as usize];
            if logical < self.size {
                break logical;
            }
        };
        let mask = self.rng.mask();
        let mut of = self.model.remove(&logical).unwrap_or_default();
        match self.rng.below(100) {
            0..25 => self.write(logical, &mut of, mask),
            25..40 => self.write_packed(logical, &mut of, mask),
            40..60 => (0..6).for_each(|_| {
                let one = 1 << self.rng.below(64);
                self.write_packed(logical, &mut of, one);
            }),
            60..68 => of.older.extend(of.newest.take()),
            68..76 => self.write_late(logical, &mut of, mask),
            76..84 => self.discard(logical, &mut of, mask),
            84..86 => {
                // A member is missing: it is unknown what is there.
                self.writer.set_blocks(&self.records, logical, mask, ExtentId::IN_DOUBT, false);
                of.older.extend(of.newest.take());
                of.blocks.extend(bits(mask).map(|block| (block, (ExtentId::IN_DOUBT, block, false))));
                self.reached.insert("in doubt");
            }
            86..92 => {
                // A newer owner defines zeros, so the newest extent is no longer that.
                of.older.extend(of.newest.take());
                self.writer.clear_blocks(&self.records, logical, mask);
                of.blocks.retain(|block, _| mask >> block & 1 == 0);
            }
            92..98 => self.replace(logical, &mut of),
            _ => {
                self.size = SIZES[self.rng.below(4) as usize];
                self.writer.resize(self.size);
                self.reached.insert("resized");
            }
        }
        self.model.insert(logical, of);
        self.model.retain(|&logical, _| logical < self.size);
        if logical < self.size {
            self.check(logical);
        }
    }

    fn write(&mut self, logical: u32, of: &mut Logical, mask: u64) {
        let extent = of.newest.unwrap_or_else(|| self.fresh());
        of.newest = Some(extent);
        self.present(extent, mask);
        self.writer.set_blocks(&self.records, logical, mask, extent, true);
        of.blocks.extend(bits(mask).map(|block| (block, (extent, block, false))));
    }

    fn write_late(&mut self, logical: u32, of: &mut Logical, mask: u64) {
        let Some(&extent) = of.older.get(self.rng.below(1 + of.older.len() as u64) as usize) else { return };
        self.present(extent, mask);
        self.writer.set_blocks(&self.records, logical, mask, extent, false);
        of.blocks.extend(bits(mask).map(|block| (block, (extent, block, false))));
    }

    fn write_packed(&mut self, logical: u32, of: &mut Logical, mask: u64) {
        let extent = ExtentId { member: self.rng.below(2) as u8, index: MEMBER_EXTENTS - 1 - self.rng.below(3) as u32 };
        // Often slots that count up with the blocks, so that there are runs.
        let (shift, straight) = (self.rng.below(64), self.rng.below(4) > 0);
        for block in bits(mask) {
            let slot = if straight { (block + shift) % 64 } else { self.rng.below(64) };
            self.writer.set_packed(&self.records, u64::from(logical) * 64 + block, extent, slot as u8);
            of.blocks.insert(block, (extent, slot, true));
        }
    }

    fn discard(&mut self, logical: u32, of: &mut Logical, mask: u64) {
        if let Some(extent) = of.newest {
            self.records.set_present(extent, self.records.present(extent) & !mask);
        }
        self.writer.clear_blocks(&self.records, logical, mask);
        of.blocks.retain(|block, _| mask >> block & 1 == 0);
    }

    fn replace(&mut self, logical: u32, of: &mut Logical) {
        *of = Logical::default();
        let (mut pieces, mut packed, mut left) = (Vec::new(), Vec::new(), u64::MAX);
        let count = [1, 1, 2, 3, 10, 40][self.rng.below(6) as usize];
        for _ in 0..count {
            // Many have room only if they are small.
            let mask = if count > 9 { 3 << self.rng.below(64) } else { self.rng.mask() } & left;
            left &= !mask;
            let extent = self.fresh();
            if mask != 0 {
                self.present(extent, mask);
                pieces.push(Piece { extent, mask });
                of.blocks.extend(bits(mask).map(|block| (block, (extent, block, false))));
            }
        }
        if self.rng.below(2) > 0 {
            let extent = ExtentId { member: 2, index: MEMBER_EXTENTS - 1 };
            for block in bits(self.rng.mask() & left) {
                let slot = self.rng.below(64);
                packed.push(PackedBlock { block: block as u8, slot: slot as u8, extent });
                of.blocks.insert(block, (extent, slot, true));
            }
        }
        let follow = pieces.len() == 1 && packed.is_empty();
        self.writer.replace(&self.records, logical, &pieces, &packed, follow);
        of.newest = if follow { Some(pieces[0].extent) } else { None };
        of.older = if follow { Vec::new() } else { pieces.iter().map(|piece| piece.extent).collect() };
    }

    /// Checks all runs of the logical extent, all of it at once, and that no smaller form would do.
    fn check(&mut self, logical: u32) {
        let map = self.writer.map().clone();
        let none = BTreeMap::new();
        let blocks = self.model.get(&logical).map_or(&none, |of| &of.blocks);
        check_runs(&map, &self.records, logical, blocks, self.rng.below(64) as u32 + 1);
        let mut visible = Visible::new();
        map.visible(&self.records, logical, &mut visible);
        check_visible(&visible, blocks);

        let word = map.cell(logical.into()).map_or(0, |cell| cell.load(Ordering::Relaxed));
        let extents: BTreeSet<ExtentId> =
            blocks.values().filter(|(.., packed)| !packed).map(|location| location.0).collect();
        let packed = blocks.values().filter(|(.., packed)| *packed).count();
        let one = extents.len() == 1 && packed == 0;
        let block = u64::from(logical) * 64 + self.rng.below(64);
        let [read, write] = [false, true].map(|write| fetched(&map, &self.records, block, write));
        self.reached.insert(match Word::from_bits(word) {
            Word::Unmapped => {
                assert!(blocks.is_empty());
                assert_eq!((read, write), (0, 0), "there is nothing to prefetch");
                "unmapped"
            }
            Word::Whole(extent) => {
                assert!(one && blocks.len() == 64);
                let owned = usize::from(extent != ExtentId::IN_DOUBT);
                assert_eq!((read, write), (0, owned), "only a write reads the owner");
                "whole"
            }
            Word::Single(extent) => {
                assert!(one && blocks.len() < 64 && extents.contains(&extent) && extent != ExtentId::IN_DOUBT);
                assert_eq!((read, write), (1, 2), "all read the record, and a write the owner, too");
                "single"
            }
            Word::Node(node) => {
                assert!(!blocks.is_empty(), "a node of nothing");
                let location = blocks.get(&(block % 64)).map(|location| location.0);
                let owned = usize::from(location.is_some_and(|extent| extent != ExtentId::IN_DOUBT));
                assert_eq!((read, write), (1, 1 + owned), "all read the node, and a write the owner, too");
                assert!(!one || blocks.len() < 64, "a node of a whole extent");
                let words = 1 + packed + 2 * extents.len();
                let class = (0..CLASSES - 1).find(|class| words <= 2 << class);
                // A table may stay one when a piece has given way to a packed block.
                let stayed = node.class == CLASSES - 1 && packed > 0 && class == Some(CLASSES - 2);
                assert!(stayed || node.class == class.unwrap_or(CLASSES - 1), "{words} words");
                match (node.class, packed > 0, extents.is_empty()) {
                    (0, ..) => "list of 2",
                    (1, ..) => "list of 4",
                    (2, ..) => "list of 8",
                    (3, ..) => "list of 16",
                    (4, ..) => "list of 32",
                    (_, true, true) => "table of packed blocks",
                    (_, true, false) => "table of both",
                    (_, false, _) => "table of pieces",
                }
            }
        });
    }
}

/// Returns how many addresses are prefetched for a block after its word.
fn fetched(map: &VolumeMap, records: &Records, block: u64, write: bool) -> usize {
    let count = Cell::new(0);
    let fetch = |_: *const u8| count.set(count.get() + 1);
    if map.fetch_second(records, block, write, fetch) {
        map.fetch_owner(records, block, fetch);
    }
    count.get()
}

/// Checks every start, with several bounds, against a search block by block.
fn check_runs(
    map: &VolumeMap,
    records: &Records,
    logical: u32,
    blocks: &BTreeMap<u64, (ExtentId, u64, bool)>,
    most: u32,
) {
    let location = |block: u64| blocks.get(&block).map(|&(extent, position, _)| (extent, position));
    for at in 0..64u64 {
        let first = location(at);
        let goes_on = |&k: &u64| location(at + k) == first.map(|(extent, position)| (extent, position + k));
        let longest = (1..64 - at).take_while(goes_on).count() as u32 + 1;
        for most in [1, 2, most, 64, u32::MAX] {
            let blocks = longest.min(most);
            let expected = match first {
                None => BlockLocation::Nothing { blocks },
                Some((extent, position)) => BlockLocation::At { extent, position: position as u32, blocks },
            };
            assert_eq!(
                map.find(records, u64::from(logical) * 64 + at, most),
                expected,
                "{logical}:{at}, at most {most}"
            );
        }
    }
}

fn check_visible(visible: &Visible, blocks: &BTreeMap<u64, (ExtentId, u64, bool)>) {
    let mut seen = BTreeMap::new();
    for piece in visible.pieces() {
        assert!(piece.mask != 0);
        for block in bits(piece.mask) {
            assert_eq!(seen.insert(block, (piece.extent, block, false)), None, "a block in two places");
        }
    }
    for packed in visible.packed() {
        let location = (packed.extent, u64::from(packed.slot), true);
        assert_eq!(seen.insert(u64::from(packed.block), location), None, "a block in two places");
    }
    assert_eq!(&seen, blocks);
    assert_eq!(visible.mask(), blocks.keys().fold(0, |mask, block| mask | 1 << block));
    let extents: BTreeSet<ExtentId> = visible.pieces().iter().map(|piece| piece.extent).collect();
    assert_eq!(extents.len(), visible.pieces().len(), "one piece an extent");
}

#[test]
fn in_random_histories_every_block_is_where_the_model_says() {
    let mut reached = BTreeSet::new();
    for seed in 1..=24 {
        let mut history = History::new(seed);
        for _ in 0..600 {
            history.step();
        }
        let sizes = (history.writer.map().extents(), history.size);
        assert_eq!(sizes.0, sizes.1);
        for logical in LOGICAL {
            history.check(logical);
        }
        check_copy(&history);
        check_mapped(&history);
        check_nothing_leaks(&mut history);
        reached.extend(history.reached);
    }
    let all = [
        "unmapped",
        "whole",
        "single",
        "list of 2",
        "list of 4",
        "list of 8",
        "list of 16",
        "list of 32",
        "table of packed blocks",
        "table of both",
        "table of pieces",
        "resized",
        "in doubt",
    ];
    assert_eq!(reached, all.into(), "a form that was never reached");
}

/// Checks that a copy is the same, and shares nothing with its original.
fn check_copy(history: &History) {
    let mut copy = MapWriter::new(history.size);
    for logical in LOGICAL.into_iter().filter(|&logical| logical < history.size) {
        copy.copy(&history.records, logical, history.writer.map());
    }
    let mut original = MapWriter::new(history.size);
    for logical in LOGICAL.into_iter().filter(|&logical| logical < history.size) {
        original.copy(&history.records, logical, copy.map());
        copy.replace(&history.records, logical, &[], &[], false);
    }
    assert_eq!(copy.map().next_mapped(0), None);
    for (logical, of) in &history.model {
        check_runs(original.map(), &history.records, *logical, &of.blocks, 64);
        check_runs(copy.map(), &history.records, *logical, &BTreeMap::new(), 64);
    }
}

fn check_mapped(history: &History) {
    let map = history.writer.map();
    let mapped = std::iter::successors(map.next_mapped(0), |&logical| map.next_mapped(logical + 1));
    let expected = history.model.iter().filter(|(_, of)| !of.blocks.is_empty()).map(|(logical, _)| *logical);
    assert!(mapped.eq(expected));
    let beyond = u64::from(history.size) * 64;
    assert_eq!(map.find(&history.records, beyond, 64), BlockLocation::Nothing { blocks: 64 });
    assert_eq!(map.find(&history.records, u64::MAX, 64), BlockLocation::Nothing { blocks: 1 });
}

fn check_nothing_leaks(history: &mut History) {
    let before = history.writer.map().memory_bytes();
    history.writer.resize(0);
    assert!(history.writer.space.is_all_free(), "nodes that no word names");
    assert_eq!(history.writer.map().memory_bytes(), before, "it keeps its memory");
}

#[test]
fn a_single_word_follows_its_record() {
    let records = Records::new();
    records.add_member(0, 8);
    let extent = |index| ExtentId { member: 0, index };
    let mut writer = MapWriter::new(1);
    let map = writer.map().clone();
    records.set_present(extent(1), 0b1100);
    writer.set_blocks(&records, 0, 0b1100, extent(1), true);
    let memory = map.memory_bytes();
    assert_eq!(map.find(&records, 2, 64), BlockLocation::At { extent: extent(1), position: 2, blocks: 2 });
    records.set_present(extent(1), 0b11100);
    assert_eq!(
        map.find(&records, 2, 64),
        BlockLocation::At { extent: extent(1), position: 2, blocks: 3 },
        "without a call"
    );
    records.set_present(extent(1), u64::MAX);
    writer.set_blocks(&records, 0, u64::MAX, extent(1), true);
    // It is whole now, and a discard makes it single again.
    records.set_present(extent(1), !0b1);
    assert_eq!(map.find(&records, 0, 64), BlockLocation::At { extent: extent(1), position: 0, blocks: 64 });
    writer.clear_blocks(&records, 0, 0b1);
    assert_eq!(map.find(&records, 0, 64), BlockLocation::Nothing { blocks: 1 });
    assert_eq!(map.memory_bytes(), memory, "words only");

    // Zeros of a newer owner: the record's blocks no longer show, nor those that it gets later.
    writer.clear_blocks(&records, 0, 0b10);
    records.set_present(extent(1), u64::MAX);
    assert_eq!(map.find(&records, 0, 64), BlockLocation::Nothing { blocks: 2 });
    assert_eq!(map.find(&records, 2, 64), BlockLocation::At { extent: extent(1), position: 2, blocks: 62 });

    // An older owner's extent, where a newer owner may hide what it gets later.
    writer.replace(&records, 0, &[], &[], false);
    records.set_present(extent(2), 0b1);
    writer.set_blocks(&records, 0, 0b1, extent(2), false);
    records.set_present(extent(2), 0b11);
    assert_eq!(map.find(&records, 0, 64), BlockLocation::At { extent: extent(2), position: 0, blocks: 1 });
}

#[test]
fn node_words_are_not_reused_soon() {
    // Nodes of one size alternate between few offsets: only the generation tells a reader that a node was replaced
    // twice.
    let (records, mut writer, mut seen) = (Records::new(), MapWriter::new(1), BTreeSet::new());
    for change in 0..10_000u32 {
        // Lists, then tables.
        let block = if change < 5_000 { 0 } else { u64::from(change % 64) };
        writer.set_packed(&records, block, ExtentId { member: 0, index: change }, 0);
        assert!(seen.insert(writer.map().cell(0).unwrap().load(Ordering::Relaxed)), "change {change}");
    }
}

#[test]
fn memory_stays_within_the_documented_bounds() {
    const TIB: u32 = 1 << 22;
    let (records, mut writer) = (Records::new(), MapWriter::new(TIB));
    records.add_member(0, TIB);
    assert!(writer.map().memory_bytes() < 1_000_000, "a TiB unmapped: {}", writer.map().memory_bytes());
    let piece = |index| Piece { extent: ExtentId { member: 0, index }, mask: u64::MAX };
    (0..TIB).for_each(|index| writer.replace(&records, index, &[piece(index)], &[], false));
    let dense = records.memory_bytes() + writer.map().memory_bytes();
    assert!(dense < 110_000_000, "a TiB of whole extents: {dense}");

    // The worst case: every block packed, in an order that needs each size of node.
    let (extents, mut worst) = (8192u32, MapWriter::new(8192));
    for block in 0..64u64 {
        for logical in 0..u64::from(extents) {
            worst.set_packed(&records, logical * 64 + block, ExtentId { member: 0, index: 7 }, 63 - block as u8);
        }
    }
    let bytes = worst.map().memory_bytes() as f64 / f64::from(extents);
    assert!(bytes < 540.0, "{bytes} bytes an extent at worst");
}

/// 16 TiB of nothing take one call, and what is mapped ends it.
#[test]
fn unmapped_extents_are_reported_in_runs() {
    let records = Records::new();
    records.add_member(0, MEMBER_EXTENTS);
    let extents = 1u32 << 26;
    let mut writer = MapWriter::new(extents);
    assert_eq!(writer.map().unmapped(0, extents.into()), extents.into());
    assert_eq!(writer.map().unmapped(9, 9), 0);
    let mut mapped: Vec<u32> = vec![0, 5, 6, 2_047, 2_048, 70_000, 1 << 20, extents - 1];
    for (index, logical) in (0..).zip(&mapped) {
        let extent = ExtentId { member: 0, index };
        records.set_owner(extent, 1);
        records.set_present(extent, 1 << 9);
        writer.set_blocks(&records, *logical, 1 << 9, extent, true);
    }
    let mut rng = Rng(7);
    for _ in 0..2 {
        for from in
            mapped.clone().into_iter().flat_map(|at| [at.saturating_sub(1), at, at + 1]).chain([3, 5_000, 99_999])
        {
            let end = u64::from(from) + rng.below(u64::from(extents));
            let next = mapped.iter().copied().filter(|at| *at >= from).min().map_or(end, u64::from).min(end);
            let (mut at, mut looks) = (u64::from(from), 0);
            while at < next {
                let run = writer.map().unmapped(at, end);
                assert!(run > 0 && at + run <= next, "{at} + {run} from {from} to {end}");
                (at, looks) = (at + run, looks + 1);
            }
            assert!(looks <= 4, "{looks} looks from {from} to {end}");
            assert!(at == end || writer.map().unmapped(at, end) == 0);
        }
        // A cleared logical extent is no longer mapped; its part of the map stays.
        for logical in [5, 2_048, extents - 1] {
            writer.clear_blocks(&records, logical, u64::MAX);
            mapped.retain(|at| *at != logical);
        }
    }
}
