//! Prints the cost of a lookup in the map of a volume, by the form of the extent: for a map of 1 GiB of memory, where
//! each lookup misses the processor's caches, and for a small one; and the cost of changes.
//! `cargo run --release -p braid-engine --example map_cost [LOOKS]`
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::hint::black_box;
use std::time::Instant;

use braid_engine::pool::{BlockLocation, ExtentId, MapWriter, PackedBlock, Piece, Records};

const ALL: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Whole,
    Single,
    /// A piece and three packed blocks: a list of 8 words.
    List,
    /// A piece and 40 packed blocks.
    Table,
}

/// Returns the map, and the nanoseconds that each of its logical extents took.
fn make(form: Form, extents: u32) -> (Records, MapWriter, f64) {
    let (records, mut writer) = (Records::new(), MapWriter::new(extents));
    records.add_member(0, extents);
    records.add_member(1, 1 << 20);
    let slot = |block: u8| PackedBlock {
        block,
        slot: 63 - block,
        extent: ExtentId { member: 1, index: u32::from(block) * 8191 },
    };
    let packed: Vec<PackedBlock> = match form {
        Form::Whole | Form::Single => vec![],
        Form::List => (20..23).map(slot).collect(),
        Form::Table => (10..50).map(slot).collect(),
    };
    let not_packed = packed.iter().fold(ALL, |mask, block| mask & !(1 << block.block));
    let mask = if form == Form::Single { ALL >> 1 } else { not_packed };
    let start = Instant::now();
    for index in 0..extents {
        let extent = ExtentId { member: 0, index };
        records.set_present(extent, mask);
        writer.replace(&records, index, &[Piece { extent, mask }], &packed, true);
    }
    (records, writer, start.elapsed().as_nanos() as f64 / f64::from(extents))
}

struct Random(u64);

impl Random {
    #[inline]
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }
}

/// Returns the nanoseconds of each of `looks` lookups of random blocks: contiguous in time, and each only after the
/// previous one has returned. The cost of the random numbers is subtracted.
fn looks(records: &Records, writer: &MapWriter, looks: u64) -> (f64, f64) {
    let (map, blocks) = (writer.map().clone(), u64::from(writer.map().extents()) * 64);
    let (mut free, mut bound, mut chance) = (f64::MAX, f64::MAX, f64::MAX);
    for _ in 0..5 {
        let mut random = Random(1);
        let mut time = |each: &mut dyn FnMut(u64, u64) -> u64| {
            let (start, mut last) = (Instant::now(), 0);
            for _ in 0..looks {
                last = each(random.below(blocks), last);
            }
            black_box(last);
            start.elapsed().as_nanos() as f64 / looks as f64
        };
        let found = |block| match map.find(records, block, 1) {
            BlockLocation::At { extent, position, .. } => u64::from(extent.index ^ position),
            BlockLocation::Nothing { blocks } => u64::from(blocks),
        };
        chance = chance.min(time(&mut |block, _| black_box(block)));
        free = free.min(time(&mut |block, _| black_box(found(block))));
        // The result of a lookup determines the next block, by one block more or less.
        bound = bound.min(time(&mut |block, last| found(block ^ (last & 1)) & 1));
    }
    (free - chance, bound - chance)
}

/// Returns the nanoseconds of a block that becomes packed, and of one that becomes visible in another extent, at random
/// offsets.
fn changes(form: Form, extents: u32, count: u64) -> (f64, f64) {
    let time = |each: &mut dyn FnMut(&Records, &mut MapWriter, u64)| {
        let (records, mut writer, _) = make(form, extents);
        let mut random = Random(2);
        let start = Instant::now();
        for _ in 0..count {
            each(&records, &mut writer, random.below(u64::from(extents) * 64));
        }
        start.elapsed().as_nanos() as f64 / count as f64
    };
    let packed = time(&mut |records, writer, block| {
        writer.set_packed(records, block, ExtentId { member: 1, index: 5 }, (block % 64) as u8);
    });
    let extent = ExtentId { member: 1, index: 6 };
    let own = time(&mut |records, writer, block| {
        records.set_present(extent, ALL);
        writer.set_blocks(records, (block / 64) as u32, 1 << (block % 64), extent, false);
    });
    (packed, own)
}

fn main() {
    let count = std::env::args().nth(1).map_or(1_000_000, |a| a.parse().unwrap());
    let forms =
        [(Form::Whole, "whole", 8), (Form::Single, "single", 8), (Form::List, "list", 72), (Form::Table, "table", 520)];
    println!(
        "{:8} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "form", "extents", "MiB", "make ns", "look ns", "in turn ns", "pack ns", "own ns"
    );
    for (form, name, bytes) in forms {
        for memory in [1u64 << 30, 1 << 18] {
            let extents = (memory / bytes) as u32;
            let (records, writer, made) = make(form, extents);
            let mib = writer.map().memory_bytes() as f64 / f64::from(1 << 20);
            let (free, bound) = looks(&records, &writer, count);
            drop((records, writer));
            let (packed, own) = changes(form, extents, count.min(u64::from(extents) * 4));
            println!("{name:8} {extents:12} {mib:10.1} {made:10.1} {free:10.1} {bound:10.1} {packed:10.1} {own:10.1}");
        }
    }
}
