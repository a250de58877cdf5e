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
