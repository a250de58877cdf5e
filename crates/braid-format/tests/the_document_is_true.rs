//! `docs/format.md` draws the label byte by byte. Its tables are compared with the code.
#![allow(clippy::unwrap_used)]

use std::mem::{offset_of, size_of};

use braid_format::{FIELDS, LABEL_BYTES, MAGIC, RawLabel, RawMember, RawSpan, RawZone, VERSION};

const DOCUMENT: &str = include_str!("../../../docs/format.md");

/// The rows of the table under a heading: offset, size and name of each field.
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
fn the_label_is_as_it_is_drawn() {
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
fn the_entries_of_the_tables_are_as_they_are_drawn() {
    let of = |name: &str| format!("### An entry of `{name}`");
    assert_eq!(table(&of("members")), fields!(RawMember: id, data_blocks, state, flags));
    assert_eq!(table(&(of("zones") + ", form 1")), fields!(RawZone: members, start_blocks, height_blocks));
    assert_eq!(table(&(of("zones") + ", form 2")), fields!(RawSpan: member, start_blocks, height_blocks));
    use braid_format::RawJob;
    let job =
        fields!(RawJob: kind, state, target, source, reserved, number, position_bytes, end_bytes, rate_bytes_per_s);
    assert_eq!(table(&of("jobs")), job);
}

/// Written by hand, at the offsets that the document draws.
#[test]
fn a_sector_of_the_bitmap_is_as_it_is_drawn() {
    use braid_format::Uuid;
    use braid_format::bitmap::{BlockBits, SECTORS_PER_BLOCK, WORDS_PER_SECTOR, decode, encode};
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
    let mut bits = BlockBits::EMPTY;
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

/// The table's fields, each at the end of the one before, by name; and how many bytes they are.
fn places(heading: &str, names: &[&str]) -> (impl Fn(&str) -> std::ops::Range<usize>, usize) {
    let rows = table(heading);
    assert_eq!(rows.iter().map(|row| row.2.as_str()).collect::<Vec<_>>(), names, "{heading}");
    let mut end = 0;
    for (offset, size, name) in &rows {
        assert_eq!(*offset, end, "{heading}: {name}");
        end = offset + size;
    }
    let place = move |name: &str| rows.iter().find(|row| row.2 == name).map(|row| row.0..row.0 + row.1).unwrap();
    (place, end)
}

/// The golden files, taken apart at the offsets that the document draws.
#[test]
fn the_journal_is_as_it_is_drawn() {
    use braid_format::journal::{BATCH_BLOCKS_MAX, ENTRIES_MAX, HEAD_BYTES, LOST_ROWS_MAX, RING_START_BYTES};
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let head = include_bytes!("../../../tests/golden/journal/head.bin");
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
    let (place, list) = places("### A head of the journal", &names);
    assert_eq!((&head[place("magic")], &head[place("array_uuid")]), (&b"BRJH"[..], &b"braid-test-array"[..]));
    let field = |name| number(&head[place(name)]);
    assert_eq!((field("generation"), field("run"), field("ring_blocks")), (9, 0xa1a2_a3a4_a5a6_a7a8, 2032));
    assert_eq!((field("row_bytes"), field("lost_count"), field("disk"), field("member_blocks")), (65536, 2, 0, 0));
    let (place, row_bytes) = places("### An entry of the list of unreadable rows", &["row", "lines", "cells"]);
    assert_eq!(field("crc"), u64::from(crc32c::crc32c(&head[4..list + 2 * row_bytes])));
    let rows = [&head[list..list + row_bytes], &head[list + row_bytes..list + 2 * row_bytes]];
    let fields = |row: &[u8]| (number(&row[place("row")]), number(&row[place("lines")]), row[place("cells")].to_vec());
    assert_eq!(fields(rows[0]), (2, 0xffff, vec![0, 255, 255, 255, 255, 255]));
    assert_eq!(fields(rows[1]), (7, 0b101, vec![1, 3, 255, 255, 255, 255]));
    assert!(list + LOST_ROWS_MAX * row_bytes <= HEAD_BYTES && RING_START_BYTES == 2 * HEAD_BYTES as u64);

    let batch = include_bytes!("../../../tests/golden/journal/batch.bin");
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
    let (place, end) = places("### A batch of the journal", &names);
    let entries = place("entries");
    assert_eq!((end, &batch[place("magic")], &batch[place("tag")]), (4096, &b"BRJB"[..], &b"brai"[..]));
    let field = |name| number(&batch[place(name)]);
    assert_eq!((field("run"), field("sequence"), field("tail")), (0xa1a2_a3a4_a5a6_a7a8, 1000, 990));
    assert_eq!((field("position"), field("blocks"), field("entry_count")), (170, 5, 2));
    assert_eq!(field("crc"), u64::from(crc32c::crc32c(&batch[4..4096])));
    assert_eq!(field("payload_crc"), u64::from(crc32c::crc32c(&batch[4096..])));
    let names = ["row", "first", "blocks", "cell", "cells", "parities", "kind", "reserved"];
    let (place, entry_bytes) = places("### An entry of a batch", &names);
    assert_eq!(entries.len(), ENTRIES_MAX * entry_bytes);
    let entry = |k: usize| {
        let bytes = &batch[entries.start + k * entry_bytes..][..entry_bytes];
        names.map(|name| number(&bytes[place(name)]))
    };
    assert_eq!(entry(0), [5, 3, 1, 1, 2, 2, 1, 0]);
    assert_eq!(entry(1), [0x0102_0304_0506_0708, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!(entry(2), [0; 8]);
    for (said, limit) in [
        ("at most 1024", u64::from(BATCH_BLOCKS_MAX)),
        ("entries, at most 168", ENTRIES_MAX as u64),
        ("follow, at most 2000", LOST_ROWS_MAX as u64),
    ] {
        assert!(DOCUMENT.contains(said) && said.ends_with(&limit.to_string()), "{said}");
    }
}

/// The places that the document draws are the defaults of the code.
#[test]
fn the_default_places_are_as_they_are_drawn() {
    use braid_format::Places;
    let large = Places::for_device(1 << 30).unwrap();
    assert_eq!((large.bitmap.start, large.journal.start, large.data.start), (1 << 20, 8 << 20, 16 << 20));
    let small = Places::for_device((1 << 30) - 1).unwrap();
    assert_eq!((small.bitmap.start, small.journal.start, small.data.start), (64 << 10, 256 << 10, 1 << 20));
    assert!(Places::for_device((1 << 20) + (8 << 10)).is_ok());
    assert!(Places::for_device((1 << 20) + (8 << 10) - 1).is_err());
}
