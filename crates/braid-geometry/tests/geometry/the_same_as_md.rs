//! Compares the layout that Braid computes with what md wrote, block by block, for every array in `tests/golden/md-layouts`.

use crate::common::{Content, expand, model};
use braid_geometry::{BLOCK_BYTES, ContentKind, Geometry, Layout, Level, Run, Spec, ZonePolicy};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

struct Golden {
    name: String,
    level: Level,
    spec: Spec,
    sizes: Vec<u64>,
    array_bytes: u64,
    members: Vec<Vec<Content>>,
}

impl Golden {
    fn blocks(&self) -> Vec<usize> {
        self.sizes.iter().map(|bytes| (bytes / BLOCK_BYTES) as usize).collect()
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number, not {value}"))
}

fn read(text: &str) -> Golden {
    let json: Value = serde_json::from_str(text).expect("it is JSON");
    let name = json["name"].as_str().expect("a name").to_owned();
    let level = match json["level"].as_str().expect("a level") {
        "linear" => Level::Concat,
        other => other.parse().expect("a level of Braid"),
    };
    let mut spec = Spec { zones: ZonePolicy::Single, ..Spec::new(level) };
    match (level, json["layout"].as_str()) {
        (Level::Concat, None) => spec.zones = ZonePolicy::All,
        (Level::Raid1, None) => {}
        (Level::Raid0, Some("dangerous")) => {
            spec.zones = ZonePolicy::All;
            // The kernel parameter default_layout, with the values 1 and 2 of md's superblock.
            spec.layout = match json["raid0_modparam"].as_str().expect("the parameter") {
                "default_layout=1" => Layout::Original,
                "default_layout=2" => Layout::Alternate,
                other => panic!("{other}"),
            };
        }
        (Level::Raid0, layout) => {
            spec.zones = ZonePolicy::All;
            // mdadm 4.2 uses original by default.
            let layout = layout.unwrap_or("original");
            spec.layout = layout.parse().expect("a layout of Braid");
        }
        (Level::Raid10, Some(near)) => spec.copies = near.strip_prefix('n').expect("near").parse().expect("a number"),
        (_, Some(layout)) => spec.layout = layout.parse().expect("a layout of Braid"),
        (_, None) => panic!("{name} has no layout"),
    }
    match number(&json["chunk_bytes"]) {
        // linear without a chunk size rounds to blocks.
        0 => spec.chunk_bytes = BLOCK_BYTES,
        bytes => spec.chunk_bytes = bytes,
    }
    let sizes: Vec<u64> =
        json["members"].as_array().expect("members").iter().map(|m| number(&m["data_size_bytes"])).collect();
    let blocks: Vec<usize> = sizes.iter().map(|bytes| (bytes / BLOCK_BYTES) as usize).collect();
    let rows = json["runs_strided"].as_array().expect("runs");
    let members = expand(rows.iter().flat_map(runs), &blocks);
    Golden { name, level, spec, sizes, array_bytes: number(&json["array_size_bytes"]), members }
}

/// Expands a line of the file as its README defines, without the code of the crate.
fn runs(row: &Value) -> Vec<Run> {
    let field = |index: usize| number(&row[index]);
    let kind = match row[4].as_str().expect("a kind") {
        "data" => ContentKind::Data,
        "P" => ContentKind::P,
        "Q" => ContentKind::Q,
        "unused" => ContentKind::Unused,
        other => panic!("{other}"),
    };
    (0..field(5))
        .map(|k| Run {
            member: field(0) as u16,
            member_start_block: field(1) + k * field(6),
            array_start_block: field(2) + k * field(7),
            length_blocks: field(3),
            kind,
        })
        .collect()
}

fn all() -> Vec<Golden> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/md-layouts");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the folder is in the checkout")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    paths.iter().map(|path| read(&std::fs::read_to_string(path).expect("a file"))).collect()
}

/// Checks that a block that holds data in both layouts holds the same data, and that the layouts differ otherwise only by rounding.
fn check_common_blocks(golden: &Golden, ours: &[Vec<Content>]) {
    let mut both = 0u64;
    let mut only_one = 0u64;
    for (ours, theirs) in ours.iter().zip(&golden.members) {
        for (ours, theirs) in ours.iter().zip(theirs) {
            match (ours.0, theirs.0) {
                (ContentKind::Data, ContentKind::Data) => {
                    both += 1;
                    assert_eq!(ours, theirs, "{}", golden.name);
                }
                (ContentKind::Unused, ContentKind::Unused) => {}
                _ => only_one += 1,
            }
        }
    }
    assert!(both * BLOCK_BYTES >= golden.array_bytes, "{}: all data of md is compared", golden.name);
    assert!(only_one < 16 * golden.sizes.len() as u64, "{}: rounding to 64 KiB explains it", golden.name);
}

#[test]
fn every_array_matches_block_by_block() {
    let mut compared: BTreeMap<Level, usize> = BTreeMap::new();
    for golden in all() {
        let geometry = Geometry::plan(golden.spec, &golden.sizes).expect("md could lay it out");
        let ours = expand(geometry.runs(), &golden.blocks());
        assert!(
            ours == expand(geometry.runs_strided().flat_map(|entry| entry.expand()), &golden.blocks()),
            "{}",
            golden.name
        );
        if golden.level == Level::Raid1 {
            // md rounds to 64 KiB, Braid to a block.
            check_common_blocks(&golden, &ours);
        } else {
            for (member, (ours, theirs)) in ours.iter().zip(&golden.members).enumerate() {
                let differs = ours.iter().zip(theirs).position(|(a, b)| a != b);
                assert_eq!(differs, None, "{}: member {member} differs at this block", golden.name);
            }
            assert_eq!(geometry.size_bytes(), golden.array_bytes, "{}", golden.name);
        }
        *compared.entry(golden.level).or_default() += 1;
    }
    let counts: Vec<(Level, usize)> = compared.into_iter().collect();
    let expected = [
        (Level::Concat, 2),
        (Level::Raid0, 18),
        (Level::Raid1, 4),
        (Level::Raid10, 5),
        (Level::Raid5, 4),
        (Level::Raid6, 2),
    ];
    assert_eq!(counts, expected, "every file of the folder was compared");
}

/// Compares `locate`, `copies` and `stripe` with md, block by block of the array.
#[test]
fn forward_map_matches_every_array() {
    for golden in all() {
        let geometry = Geometry::plan(golden.spec, &golden.sizes).expect("md could lay it out");
        let at = |member: u16, offset: u64| golden.members[usize::from(member)][(offset / BLOCK_BYTES) as usize];
        let mut offset = 0;
        while offset < golden.array_bytes {
            let mut shortest = u64::MAX;
            geometry.copies(offset, &mut |range| {
                assert_eq!(
                    at(range.member, range.member_offset),
                    (ContentKind::Data, offset / BLOCK_BYTES),
                    "{}",
                    golden.name
                );
                shortest = shortest.min(range.len);
            });
            assert_eq!(shortest, geometry.locate(offset).len);
            offset += BLOCK_BYTES.min(shortest);
        }
        for number in 0..if golden.spec.level.parity() > 0 { geometry.stripes() } else { 0 } {
            let stripe = geometry.stripe(number).expect("it is below the count");
            assert_eq!(at(stripe.p(), stripe.member_offset), (ContentKind::P, number), "{}", golden.name);
            if let Some(q) = stripe.q() {
                assert_eq!(at(q, stripe.member_offset), (ContentKind::Q, number), "{}", golden.name);
            }
            // The coefficients of Q follow the slots from the one after Q on, which is the order of the data.
            let last = stripe.q().unwrap_or(stripe.p());
            let slot = stripe.members.iter().position(|&m| m == last).expect("a member of the stripe");
            for index in 0..stripe.data_chunks() {
                assert_eq!(stripe.data(index), stripe.members[(slot + 1 + index) % stripe.members.len()]);
                let block = (stripe.array_start + index as u64 * stripe.chunk_bytes) / BLOCK_BYTES;
                assert_eq!(at(stripe.data(index), stripe.member_offset), (ContentKind::Data, block), "{}", golden.name);
            }
        }
    }
}

/// Compares the model, which the brute-force test uses as its oracle, with md.
#[test]
fn model_matches_every_array() {
    for golden in all() {
        let table = model(&golden.spec, &golden.blocks());
        if golden.level == Level::Raid1 {
            check_common_blocks(&golden, &table.members);
        } else {
            assert!(table.members == golden.members, "{}", golden.name);
            assert_eq!(table.array_blocks * BLOCK_BYTES, golden.array_bytes, "{}", golden.name);
        }
    }
}

/// Beyond the capacity of the smallest member, where md ends, Braid adds zones. The first zone is unchanged.
#[test]
fn additional_zones_do_not_change_the_first_zone() {
    for golden in all() {
        let all = Spec { zones: ZonePolicy::All, ..golden.spec };
        let sizes: Vec<u64> = golden.sizes.iter().enumerate().map(|(m, bytes)| bytes + m as u64 * (5 << 20)).collect();
        let (single, extended) = (Geometry::plan(golden.spec, &golden.sizes), Geometry::plan(all, &sizes));
        let (single, extended) = (single.expect("it could be laid out"), extended.expect("larger members can be, too"));
        if golden.spec.zones == ZonePolicy::All {
            continue;
        }
        let first_zone_bytes =
            single.zones()[0].member_bytes - single.zones()[0].member_bytes % golden.spec.chunk_bytes;
        assert!(extended.zones().len() > 1 || golden.sizes.len() == 2, "{}", golden.name);
        for member in 0..golden.sizes.len() as u16 {
            // The last row of raid10 may be used differently: one more chunk can start in it.
            for offset in (0..first_zone_bytes - golden.spec.chunk_bytes).step_by(BLOCK_BYTES as usize) {
                assert_eq!(
                    single.content_at(member, offset),
                    extended.content_at(member, offset),
                    "{} {member}:{offset}",
                    golden.name
                );
            }
        }
    }
}
