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
