//! `docs/internals/format/` specifies the formats byte by byte. Its tables are compared with the code.

use std::mem::{offset_of, size_of};

use braid_format::{FIELDS, LABEL_BYTES, MAGIC, RawLabel, RawMember, RawSpan, RawZone, VERSION};

const DOCUMENT: &str = concat!(
    include_str!("../../../../docs/internals/format/README.md"),
    include_str!("../../../../docs/internals/format/label.md"),
    include_str!("../../../../docs/internals/format/bitmap-and-journal.md"),
    include_str!("../../../../docs/internals/format/lineages.md"),
    include_str!("../../../../docs/internals/format/pools.md"),
    include_str!("../../../../docs/internals/format/registers.md"),
);

/// Returns offset, size and name of each field in the table under a heading.
fn table(heading: &str) -> Vec<(usize, usize, String)> {
    let after = DOCUMENT.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no heading {heading:?}")).1;
    let rows =
        after.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [offset, size, name, meaning] = cells.as_slice() else { panic!("{row:?}") };
        assert!(!meaning.is_empty(), "{row:?}");
        (offset.parse().unwrap(), size.parse().unwrap(), name.trim_matches('`').to_owned())
    })
    .collect()
}

fn owned(fields: &[(usize, usize, &str)]) -> Vec<(usize, usize, String)> {
    fields.iter().map(|(offset, size, name)| (*offset, *size, (*name).to_owned())).collect()
}

#[test]
fn the_label_matches() {
    let code: Vec<_> = FIELDS.iter().map(|f| (f.offset, f.size, f.name.to_owned())).collect();
    assert_eq!(table("## The label"), code);
    // Without a gap, up to the last byte.
    let mut end = 0;
    for (offset, size, name) in code {
        assert_eq!(offset, end, "{name}");
        end = offset + size;
    }
    assert_eq!((end, size_of::<RawLabel>()), (LABEL_BYTES, LABEL_BYTES));
    assert!(DOCUMENT.contains(&format!("`{}`", String::from_utf8_lossy(&MAGIC))));
    assert!(DOCUMENT.contains(&format!("| `version` | {VERSION} |")));
}

macro_rules! fields {
    ($type:ident: $($field:ident),*) => {{
        let fields = owned(&[$((offset_of!($type, $field), size_of_field(|x: &$type| &x.$field), stringify!($field)),)*]);
        let sum: usize = fields.iter().map(|f| f.1).sum();
        assert_eq!(sum, size_of::<$type>(), "fields of {} are missing here", stringify!($type));
        fields
    }};
}

fn size_of_field<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

#[test]
fn the_entries_of_the_tables_match() {
    let of = |name: &str| format!("### An entry of `{name}`");
    assert_eq!(table(&of("members")), fields!(RawMember: id, data_blocks, state, flags));
    assert_eq!(table(&(of("zones") + ", form 1")), fields!(RawZone: members, start_blocks, height_blocks));
    assert_eq!(table(&(of("zones") + ", form 2")), fields!(RawSpan: member, start_blocks, height_blocks));
    use braid_format::RawJob;
    let job =
        fields!(RawJob: kind, state, target, source, reserved, number, position_bytes, end_bytes, rate_bytes_per_s);
    assert_eq!(table(&of("jobs")), job);
}

/// Compared by hand, at the offsets in the document.
#[test]
fn a_sector_of_the_bitmap_matches() {
    use braid_format::Uuid;
    use braid_format::bitmap::{BitmapBlock, SECTORS_PER_BLOCK, WORDS_PER_SECTOR, decode, encode};
    let rows = table("### A sector of the bitmap");
    let names: Vec<&str> = rows.iter().map(|(_, _, name)| name.as_str()).collect();
    assert_eq!(names, ["crc", "magic", "number", "tag", "written", "dirty"]);
    let mut end = 0;
    for (offset, size, name) in &rows {
        assert_eq!(*offset, end, "{name}");
        end = offset + size;
    }
    assert_eq!((end, end * SECTORS_PER_BLOCK), (512, 4096));
    assert!(DOCUMENT.contains(&format!("*n* · {}", WORDS_PER_SECTOR * 64)));
    let at = |name: &str| rows.iter().find(|row| row.2 == name).map(|row| (row.0, row.0 + row.1)).unwrap();
    let uuid = Uuid::from_bytes(*b"braid-test-array");
    let mut bits = BitmapBlock::EMPTY;
    // In the second sector of block 3: region 70 of the sector is written, region 1 dirty.
    bits.written[WORDS_PER_SECTOR + 1] = 1 << 6;
    bits.dirty[WORDS_PER_SECTOR] = 2;
    let mut block = [0; 4096];
    encode(&uuid, 3, &bits, &mut block);
    assert_eq!(decode(&uuid, 3, &block).bits, bits);
    let sector = &block[512..1024];
    let field = |name: &str| &sector[at(name).0..at(name).1];
    assert_eq!((field("magic"), field("tag")), (&b"BRBM"[..], &b"brai"[..]));
    assert_eq!(field("number"), 25u32.to_le_bytes());
    assert_eq!(field("crc"), crc32c::crc32c(&sector[at("crc").1..]).to_le_bytes());
    assert_eq!((field("written")[8], field("dirty")[0]), (1 << 6, 2));
    assert_eq!(sector[at("written").0..].iter().map(|byte| byte.count_ones()).sum::<u32>(), 2);
}

/// Returns the range of each field by name, and the size of the structure; the fields follow one another without a gap.
fn ranges(heading: &str, names: &[&str]) -> (impl Fn(&str) -> std::ops::Range<usize>, usize) {
    let rows = table(heading);
    assert_eq!(rows.iter().map(|row| row.2.as_str()).collect::<Vec<_>>(), names, "{heading}");
    let mut end = 0;
    for (offset, size, name) in &rows {
        assert_eq!(*offset, end, "{heading}: {name}");
        end = offset + size;
    }
    let range = move |name: &str| rows.iter().find(|row| row.2 == name).map(|row| row.0..row.0 + row.1).unwrap();
    (range, end)
}

/// The golden files, decoded at the offsets in the document.
#[test]
fn the_journal_matches() {
    use braid_format::journal::{BATCH_BLOCKS_MAX, ENTRIES_MAX, HEAD_BYTES, LOST_STRIPES_MAX, RING_OFFSET_BYTES};
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let head = include_bytes!("../../../../tests/golden/journal/head.bin");
    let names = [
        "crc",
        "magic",
        "array_uuid",
        "generation",
        "run",
        "ring_blocks",
        "row_bytes",
        "lost_count",
        "disk",
        "member_blocks",
    ];
    let (range, list) = ranges("### A head of the journal", &names);
    assert_eq!((&head[range("magic")], &head[range("array_uuid")]), (&b"BRJH"[..], &b"braid-test-array"[..]));
    let field = |name| number(&head[range(name)]);
    assert_eq!((field("generation"), field("run"), field("ring_blocks")), (9, 0xa1a2_a3a4_a5a6_a7a8, 2032));
    assert_eq!((field("row_bytes"), field("lost_count"), field("disk"), field("member_blocks")), (65536, 2, 0, 0));
    let (range, row_bytes) = ranges("### An entry of the list of lost stripes", &["row", "lines", "cells"]);
    assert_eq!(field("crc"), u64::from(crc32c::crc32c(&head[4..list + 2 * row_bytes])));
    let rows = [&head[list..list + row_bytes], &head[list + row_bytes..list + 2 * row_bytes]];
    let fields = |row: &[u8]| (number(&row[range("row")]), number(&row[range("lines")]), row[range("cells")].to_vec());
    assert_eq!(fields(rows[0]), (2, 0xffff, vec![0, 255, 255, 255, 255, 255]));
    assert_eq!(fields(rows[1]), (7, 0b101, vec![1, 3, 255, 255, 255, 255]));
    assert!(list + LOST_STRIPES_MAX * row_bytes <= HEAD_BYTES && RING_OFFSET_BYTES == 2 * HEAD_BYTES as u64);

    let batch = include_bytes!("../../../../tests/golden/journal/batch.bin");
    let names = [
        "crc",
        "magic",
        "tag",
        "payload_crc",
        "run",
        "sequence",
        "tail",
        "position",
        "blocks",
        "entry_count",
        "reserved",
        "entries",
    ];
    let (range, end) = ranges("### A batch of the journal", &names);
    let entries = range("entries");
    assert_eq!((end, &batch[range("magic")], &batch[range("tag")]), (4096, &b"BRJB"[..], &b"brai"[..]));
    let field = |name| number(&batch[range(name)]);
    assert_eq!((field("run"), field("sequence"), field("tail")), (0xa1a2_a3a4_a5a6_a7a8, 1000, 990));
    assert_eq!((field("position"), field("blocks"), field("entry_count")), (170, 5, 2));
    assert_eq!(field("crc"), u64::from(crc32c::crc32c(&batch[4..4096])));
    assert_eq!(field("payload_crc"), u64::from(crc32c::crc32c(&batch[4096..])));
    let names = ["row", "first", "blocks", "cell", "cells", "parities", "kind", "reserved"];
    let (range, entry_bytes) = ranges("### An entry of a batch", &names);
    assert_eq!(entries.len(), ENTRIES_MAX * entry_bytes);
    let entry = |k: usize| {
        let bytes = &batch[entries.start + k * entry_bytes..][..entry_bytes];
        names.map(|name| number(&bytes[range(name)]))
    };
    assert_eq!(entry(0), [5, 3, 1, 1, 2, 2, 1, 0]);
    assert_eq!(entry(1), [0x0102_0304_0506_0708, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!(entry(2), [0; 8]);
    for (said, limit) in [
        ("at most 1024", u64::from(BATCH_BLOCKS_MAX)),
        ("entries, at most 168", ENTRIES_MAX as u64),
        ("follow, at most 2000", LOST_STRIPES_MAX as u64),
    ] {
        assert!(DOCUMENT.contains(said) && said.ends_with(&limit.to_string()), "{said}");
    }
}

#[test]
fn the_label_of_a_pool_matches() {
    use braid_format::pool::{POOL_FIELDS, POOL_MAGIC, POOL_VERSION, RawPoolLabel, RawPoolMember};
    let code: Vec<_> = POOL_FIELDS.iter().map(|f| (f.offset, f.size, f.name.to_owned())).collect();
    assert_eq!(table("### The label of a pool"), code);
    let mut end = 0;
    for (offset, size, name) in code {
        assert_eq!(offset, end, "{name}");
        end = offset + size;
    }
    assert_eq!((end, size_of::<RawPoolLabel>()), (LABEL_BYTES, LABEL_BYTES));
    assert!(DOCUMENT.contains(&format!("`{}`", String::from_utf8_lossy(&POOL_MAGIC))) && POOL_VERSION == 1);
    assert_eq!(table("### An entry of a pool's `members`"), fields!(RawPoolMember: uuid, size_bytes, state));
}

/// The golden files, decoded at the offsets in the document.
#[test]
fn records_addresses_and_owners_match() {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let crc = |pieces: &[&[u8]]| u64::from(crc32c::crc32c(&pieces.concat()));
    let names = ["kind", "reserved", "life", "owner", "logical", "crc", "present", "zero"];
    let (range, record_bytes) = ranges("### A record", &names);
    let table = include_bytes!("../../../../tests/golden/pools/table.bin");
    let record = |k: usize| &table[k * record_bytes..(k + 1) * record_bytes];
    let read = |k: usize| {
        names.iter().filter(|name| **name != "crc").map(|name| number(&record(k)[range(name)])).collect::<Vec<_>>()
    };
    let none = u64::from(u32::MAX);
    assert_eq!((table.len(), read(0), read(1)), (5 * 32, vec![0; 7], vec![0, 0, 0x102, 0, 0, 0, 0]));
    assert_eq!(read(2), [1, 0, 7, 3, 9, 0xff00, 0xf]);
    assert_eq!(read(3), [2, 0, 7, 3, none, 0x8000_0000_0000_0001, 0]);
    assert_eq!(read(4), [3, 0, 7, 3, 0x0a0b_0c0d, 3, u64::MAX]);
    // They are encoded for member 3, from record 1000 on.
    assert_eq!(number(&record(0)[range("crc")]), 0);
    for k in 1..5 {
        let (bytes, index) = (record(k), 1000 + k as u32);
        let expected = crc(&[&bytes[..12], &bytes[16..], &[3], &index.to_le_bytes()]);
        assert_eq!(number(&bytes[range("crc")]), expected);
    }

    let (range, word_bytes) = ranges("### An address", &["block", "check"]);
    let sector = include_bytes!("../../../../tests/golden/pools/addresses.bin");
    assert_eq!(sector.len(), 64 * word_bytes);
    for (slot, word) in (0u8..).zip(sector.chunks(word_bytes)) {
        let block = u64::from(slot) * 0x1234_5678;
        if slot % 3 == 0 {
            assert_eq!(word, [0xff; 8]);
            continue;
        }
        let check = crc(&[&[3], &1000u32.to_le_bytes(), &[slot], &block.to_le_bytes(), &7u16.to_le_bytes()]);
        assert_eq!((number(&word[range("block")]), number(&word[range("check")])), (block, check & 0xffff));
    }

    let names = [
        "id",
        "kind",
        "place",
        "flags",
        "name_len",
        "parent",
        "reserved_a",
        "uuid",
        "size_bytes",
        "created_unix_s",
        "limit_iops",
        "limit_bytes_per_s",
        "on",
        "name",
        "volume",
        "policy_every_s",
        "policy_keep",
        "also_on",
        "reserved_b",
        "crc",
    ];
    let (range, owner_bytes) = ranges("### An owner", &names);
    let owners = include_bytes!("../../../../tests/golden/pools/owners.bin");
    assert_eq!(owners.len(), 3 * owner_bytes);
    let owner = |k: usize| &owners[k * owner_bytes..(k + 1) * owner_bytes];
    let read = |k: usize, names: &[&str]| names.iter().map(|name| number(&owner(k)[range(name)])).collect::<Vec<_>>();
    assert_eq!(
        read(0, &["id", "kind", "place", "flags", "name_len", "parent", "on", "also_on"]),
        [5, 1, 2, 1, 2, 4, 0b110, 0]
    );
    assert_eq!(read(2, &["id", "kind", "place", "flags", "name_len", "parent", "on"]), [4, 2, 0, 0, 6, 0, 0]);
    let numbers = ["size_bytes", "created_unix_s", "limit_iops", "limit_bytes_per_s", "policy_every_s", "policy_keep"];
    assert_eq!(read(0, &numbers), [100 << 30, 1_700_000_000, 3000, 125 << 20, 3600, 24]);
    assert_eq!((&owner(0)[range("name")][..4], &owner(2)[range("name")][..8]), (&b"db\0\0"[..], &b"monday\0\0"[..]));
    assert_eq!((&owner(0)[range("uuid")], &owner(0)[range("volume")]), (&b"braid-testvolume"[..], &[0; 16][..]));
    assert_eq!(&owner(2)[range("volume")], b"braid-testvolume");
    assert_eq!(owner(1), [0; 256]);
    for (k, slot) in [(0, 12u32), (2, 14)] {
        assert_eq!(number(&owner(k)[range("crc")]), crc(&[&owner(k)[..252], &slot.to_le_bytes()]));
    }
}

/// The golden files, decoded at the offsets in the document.
#[test]
fn the_log_ring_of_a_pool_matches() {
    use braid_format::pool::{BATCH_UNITS_MAX, MISSING_MAX, VOLUME_BLOCKS_MAX, VOLUME_BYTES_MAX};
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let batch = include_bytes!("../../../../tests/golden/pools/batch.bin");
    let names = [
        "magic", "crc", "tag", "units", "blocks", "run", "sequence", "commit", "members", "mark", "index", "batches",
        "reserved",
    ];
    let (range, header_bytes) = ranges("### A batch of a pool's log ring", &names);
    let field = |name| number(&batch[range(name)]);
    assert_eq!((&batch[range("magic")], &batch[range("tag")]), (&b"BRPB"[..], &b"brai"[..]));
    assert_eq!(field("crc"), u64::from(crc32c::crc32c(&batch[8..])));
    assert_eq!((field("units"), field("blocks"), field("run")), (20, 1, 0xa1a2_a3a4_a5a6_a7a8));
    assert_eq!((field("sequence"), field("commit"), field("mark")), (1000, 300, 0x1_0000_0020));
    assert_eq!((field("index"), field("batches"), field("reserved")), (1, 3, 0));
    let members = &batch[range("members")];
    assert_eq!((members[0], &members[1..15], members[15]), (0b101, &[0; 14][..], 0x80));

    let names = ["kind", "member", "slot", "units", "index", "sequence", "block", "record", "crc", "flags"];
    let (range, unit_bytes) = ranges("### An entry of the in-memory log", &names);
    assert_eq!((header_bytes, unit_bytes), (128, 64));
    let unit = |at: usize| &batch[header_bytes + at * unit_bytes..][..unit_bytes];
    let said = ["kind", "member", "slot", "units", "index", "sequence", "block", "flags"];
    let read = |at: usize| said.map(|name| number(&unit(at)[range(name)]));
    let first = 0x1_0000_0000;
    assert_eq!(read(0), [1, 2, 0, 1, 1000, first, 0, 1]);
    assert_eq!(read(1), [1, 0, 0, 1, 77, first + 1, 0, 0]);
    assert_eq!(read(2), [2, 127, 63, 1, 0x0102_0304, first + 2, 0x12_3456_789a, 0]);
    assert_eq!(read(3), [1, 2, 0, 1, 5000, first + 3, 0, 0]);
    assert_eq!(read(4), [3, 0, 0, 5, 12, first + 4, 0, 0]);
    assert_eq!(read(9), [3, 0, 0, 5, 13, first + 9, 0, 0]);
    assert_eq!(read(14), [4, 0, 0, 1, 0, first + 14, 0, 0]);
    assert_eq!(read(15), [3, 0, 0, 5, 14, first + 15, 0, 0]);
    let records: Vec<u8> = [0, 1, 2, 3].iter().map(|at| unit(*at)[range("record")][0]).collect();
    assert_eq!(records, [1, 0, 2, 3]);
    let owners = include_bytes!("../../../../tests/golden/pools/owners.bin");
    for (at, owner) in [(4, 0), (9, 1), (15, 2)] {
        let image = &batch[header_bytes + (at + 1) * unit_bytes..][..256];
        assert_eq!(image, &owners[owner * 256..][..256]);
    }
    for (at, units) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 5), (9, 5), (14, 1), (15, 5)] {
        let bytes = &batch[header_bytes + at * unit_bytes..][..units * unit_bytes];
        let crc = crc32c::crc32c(&[&bytes[..56], &bytes[60..]].concat());
        assert_eq!(number(&bytes[range("crc")]), u64::from(crc), "unit {at}");
    }
    assert!(batch[header_bytes + 20 * unit_bytes..].iter().all(|byte| *byte == 0));

    let start = include_bytes!("../../../../tests/golden/pools/start.bin");
    let names = [
        "magic",
        "crc",
        "tag",
        "position",
        "session",
        "run",
        "sequence",
        "commit",
        "mark",
        "generation",
        "before",
        "parts",
        "absent",
        "settled",
        "reserved",
    ];
    let (range, start_bytes) = ranges("### A checkpoint", &names);
    let field = |name| number(&start[range(name)]);
    assert_eq!((&start[range("magic")], &start[range("tag")], start_bytes), (&b"BRPS"[..], &b"brai"[..], 4096));
    assert_eq!(field("crc"), u64::from(crc32c::crc32c(&start[8..])));
    assert_eq!((field("position"), field("session")), (170, 0x1122_3344_5566_7788));
    assert_eq!((field("run"), field("sequence"), field("commit")), (0xa1a2_a3a4_a5a6_a7a8, 998, 299));
    assert_eq!((field("mark"), field("generation"), field("before")), (0xffff_fff0, 9, 0));

    let lacking = include_bytes!("../../../../tests/golden/pools/start_lacking.bin");
    assert_eq!(number(&lacking[range("before")]), 0xc1c2_c3c4_c5c6_c7c8);
    let parts: Vec<u64> = lacking[range("parts")].as_chunks::<8>().0.iter().map(|part| number(part)).collect();
    assert_eq!((parts.len(), parts[0], parts[2], parts[127]), (128, 299, 260, 295));
    let settled = include_bytes!("../../../../tests/golden/pools/start_settled.bin");
    assert_eq!(range("settled").len(), 16);
    assert_eq!((settled[range("settled").start], settled[range("settled").end - 1]), (1, 0x80));
    let absent = &lacking[range("absent")];
    let (range, absence_bytes) =
        ranges("### An entry of `absent`", &["member", "reserved", "run", "other", "commit", "needs"]);
    assert_eq!((absent.len(), absence_bytes), (MISSING_MAX * 40, 40));
    let second = &absent[absence_bytes..];
    assert_eq!((second[range("member").start], number(&second[range("run")])), (127, 0xb1b2_b3b4_b5b6_b7b8));
    let numbers = ["other", "commit", "needs"].map(|name| number(&second[range(name)]));
    assert_eq!(numbers, [0xd1d2_d3d4_d5d6_d7d8, 296, 295]);
    assert!(absent[2 * absence_bytes..].iter().all(|byte| *byte == 0));

    assert!(DOCUMENT.contains("units of entries, at most 1022 |") && BATCH_UNITS_MAX == 1022);
    assert!(DOCUMENT.contains("below (2^32 − 1) · 64 |") && VOLUME_BLOCKS_MAX == ((1 << 32) - 1) * 64);
    assert!(DOCUMENT.contains("at most (2^32 − 1) · 256 KiB") && VOLUME_BYTES_MAX == ((1 << 32) - 1) * (256 << 10));
}

/// The default layout of a member of a pool.
#[test]
fn the_default_layout_of_a_pool_matches() {
    use braid_format::pool::{MEMBER_BYTES_MAX, PoolMemberLayout, owner_slots_for};
    let places = PoolMemberLayout::new(1 << 30, owner_slots_for(1 << 30)).unwrap();
    assert_eq!((places.checkpoints.start, places.ring.start), (4 << 10, 12 << 10));
    assert_eq!((places.ring.bytes, places.owners.bytes), (2 << 20, 256 << 10));
    let parts = [places.checkpoints, places.ring, places.owners, places.table, places.addresses];
    assert!(parts.windows(2).all(|pair| pair[0].end() == Some(pair[1].start)));
    let wanted = places.extents / 64 + 128;
    assert!((wanted..wanted + 128).contains(&places.zero_slots) && places.table.bytes.is_multiple_of(4096));
    assert_eq!(places.data.start % (256 << 10), 0);
    let slots = |bytes| owner_slots_for(bytes);
    assert_eq!((slots(0), slots(5000 << 20), slots(u64::MAX)), (1024, 5000, 1_048_576));
    let ring = |bytes: u64| PoolMemberLayout::new(bytes, 1024).unwrap().ring.bytes;
    assert_eq!((ring(2 << 20), ring(1 << 40)), (256 << 10, 64 << 20));
    assert!(PoolMemberLayout::new((1 << 20) + (4 << 10), 1024).is_ok());
    assert!(PoolMemberLayout::new((1 << 20) + (4 << 10) - 1, 1024).is_err());
    assert!(PoolMemberLayout::new(512 << 40, 1024).is_ok() && MEMBER_BYTES_MAX == 512 << 40);
}

/// The layout in the document is the default of the code.
#[test]
fn the_default_layout_matches() {
    use braid_format::DiskLayout;
    let large = DiskLayout::for_device(1 << 30).unwrap();
    assert_eq!((large.bitmap.start, large.journal.start, large.data.start), (1 << 20, 8 << 20, 16 << 20));
    let small = DiskLayout::for_device((1 << 30) - 1).unwrap();
    assert_eq!((small.bitmap.start, small.journal.start, small.data.start), (64 << 10, 256 << 10, 1 << 20));
    assert!(DiskLayout::for_device((1 << 20) + (8 << 10)).is_ok());
    assert!(DiskLayout::for_device((1 << 20) + (8 << 10) - 1).is_err());
}

#[test]
fn the_register_matches() {
    let register = include_bytes!("../../../../tests/golden/register/register.bin");
    let rows = table("### A register");
    // Without a gap, up to the last byte.
    let end = rows.iter().fold(0, |end, (offset, size, name)| {
        assert_eq!(*offset, end, "{name}");
        end + size
    });
    assert_eq!(end, register.len());
    let field = |name: &str| {
        let (offset, size, _) =
            rows.iter().find(|row| row.2 == name).unwrap_or_else(|| panic!("{name} is not in the table"));
        &register[*offset..offset + size]
    };
    let number = |name| field(name).iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    assert_eq!((field("magic"), field("volume")), (&b"BRRG"[..], &b"braid-test-volum"[..]));
    assert_eq!(number("crc"), u64::from(crc32c::crc32c(&register[8..])));
    assert_eq!((field("controller"), field("boot")), (&b"braid-controller"[..], &b"braid-this--boot"[..]));
    let numbers = ["voter", "released", "in_sync", "generation", "epoch", "vote_epoch", "vote_sequence"];
    assert_eq!(numbers.map(number), [2, 1, 0b011, 7, 5, 4, 3]);
    let numbers = ["version", "voters", "before", "replicas", "since"];
    assert_eq!(numbers.map(number), [0x0304, 0b111, 0b1011, 0b1011, 0x0304]);
    assert_eq!(number("lineage"), 0x0102_0304_0506_0708);
    assert!(field("reserved").iter().all(|byte| *byte == 0));
}
