//! Every number used in arithmetic has a range, as in the table in `docs/internals/format/README.md`: its largest value is accepted, and
//! the next one is refused, under right checksums.

use braid_format::journal::{HEAD_BYTES, LostStripe, decode_batch, decode_head, encode_head};
use braid_format::limits::{COUNTER_MAX, COUNTER_WRITE_MAX, EPOCH_MAX, STRIPE_NUMBER_MAX};
use braid_format::pool::{
    BATCH_HEADER_BYTES, Checkpoint, LogEntry, Owner, PoolLabel, UNIT_BYTES, batch_entries, validate_batch,
};
use braid_format::register::{REGISTER_BYTES, StoredRegister};
use braid_format::{Label, Uuid};

const DOCUMENT: &str = concat!(
    include_str!("../../../../docs/internals/format/README.md"),
    include_str!("../../../../docs/internals/format/label.md"),
    include_str!("../../../../docs/internals/format/bitmap-and-journal.md"),
    include_str!("../../../../docs/internals/format/lineages.md"),
    include_str!("../../../../docs/internals/format/pools.md"),
    include_str!("../../../../docs/internals/format/registers.md"),
);
const ARRAY: Uuid = Uuid::from_bytes(*b"braid-test-array");

/// Returns the cells of the rows of the table under a heading.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let after = DOCUMENT.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no heading {heading:?}")).1;
    let lines = after.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    lines
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
        .collect()
}

/// Returns offset and size of a field of a structure.
fn field_at(structure: &str, field: &str) -> (usize, usize) {
    let heading = if DOCUMENT.contains(&format!("\n## {structure}\n")) { "##" } else { "###" };
    let fields = rows(&format!("{heading} {structure}"));
    let row = fields.iter().find(|row| row[2] == field).unwrap_or_else(|| panic!("{structure} has no {field:?}"));
    (row[0].parse().unwrap(), row[1].parse().unwrap())
}

/// A golden structure, its offset in these bytes, how to set right checksums, and whether it is accepted.
struct Golden {
    bytes: Vec<u8>,
    at: usize,
    seal: fn(&mut [u8]),
    accepted: fn(&[u8]) -> bool,
}

fn set_crc(bytes: &mut [u8], at: usize, from: usize, end: usize) {
    let crc = crc32c::crc32c(&bytes[from..end]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn seal_label(bytes: &mut [u8]) {
    bytes[8..12].fill(0);
    set_crc(bytes, 508, 0, 508);
    set_crc(bytes, 8, 0, 4096);
}

/// The head's list has two entries.
fn seal_head(bytes: &mut [u8]) {
    set_crc(bytes, 0, 4, 64 + 2 * 16);
}

fn seal_owner(bytes: &mut [u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..252]), &7u32.to_le_bytes());
    bytes[252..256].copy_from_slice(&crc.to_le_bytes());
}

fn seal_unit(bytes: &mut [u8]) {
    let crc = crc32c::crc32c(&[&bytes[..56], &bytes[60..]].concat());
    bytes[56..60].copy_from_slice(&crc.to_le_bytes());
}

fn golden(structure: &str) -> Golden {
    let label = include_bytes!("../../../../tests/golden/labels/raid10_everything_member3.bin");
    let pool = include_bytes!("../../../../tests/golden/pools/label_member2.bin");
    let head = include_bytes!("../../../../tests/golden/journal/head.bin");
    let batch = include_bytes!("../../../../tests/golden/journal/batch.bin");
    let start = include_bytes!("../../../../tests/golden/pools/start_lacking.bin");
    let register = include_bytes!("../../../../tests/golden/register/register.bin");
    let pool_batch = include_bytes!("../../../../tests/golden/pools/batch.bin");
    let of_label =
        |at| Golden { bytes: label.to_vec(), at, seal: seal_label, accepted: |bytes| Label::decode(bytes).is_ok() };
    let of_pool =
        |at| Golden { bytes: pool.to_vec(), at, seal: seal_label, accepted: |bytes| PoolLabel::decode(bytes).is_ok() };
    let of_head = |at| {
        let mut bytes = head.to_vec();
        bytes.resize(HEAD_BYTES, 0);
        let accepted = |bytes: &[u8]| decode_head(&ARRAY, bytes.first_chunk().unwrap()).is_some();
        Golden { bytes, at, seal: seal_head, accepted }
    };
    let of_batch = |at| Golden {
        bytes: batch[..4096].to_vec(),
        at,
        seal: |bytes| set_crc(bytes, 0, 4, 4096),
        accepted: |bytes| decode_batch(&ARRAY, bytes.first_chunk().unwrap()).is_some(),
    };
    let of_checkpoint = |at| Golden {
        bytes: start.to_vec(),
        at,
        seal: |bytes| set_crc(bytes, 4, 8, 4096),
        accepted: |bytes| Checkpoint::decode(bytes.first_chunk().unwrap()).is_ok(),
    };
    match structure {
        "The label" => of_label(0),
        "An entry of `jobs`" => of_label(field_at("The label", "jobs").0),
        "A head of the journal" => of_head(0),
        // The second of two entries, so that the largest stripe number is the last one.
        "An entry of the list of lost stripes" => of_head(64 + 16),
        "A batch of the journal" => of_batch(0),
        "An entry of a batch" => of_batch(64),
        "The label of a pool" => of_pool(0),
        // The entry of another member than the label's own.
        "An entry of a pool's `members`" => of_pool(field_at("The label of a pool", "members").0),
        "A checkpoint" => of_checkpoint(0),
        "An entry of `absent`" => of_checkpoint(field_at("A checkpoint", "absent").0),
        "A batch of a pool's log ring" => Golden {
            bytes: pool_batch.to_vec(),
            at: 0,
            seal: |bytes| {
                let end = usize::from(bytes[14]) * 4096;
                set_crc(bytes, 4, 8, end);
            },
            accepted: |bytes| validate_batch(bytes).is_ok(),
        },
        "An owner" => {
            let header = validate_batch(pool_batch).unwrap();
            let owner = batch_entries(pool_batch, &header).find_map(|entry| match entry.unwrap().change {
                braid_format::pool::Change::Owner { owner } => owner,
                _ => None,
            });
            Golden {
                bytes: owner.unwrap().encode(7).to_vec(),
                at: 0,
                seal: seal_owner,
                accepted: |bytes| Owner::decode(bytes.first_chunk().unwrap(), 7).is_ok(),
            }
        }
        "An entry of the in-memory log" => {
            let mut unit = [0; UNIT_BYTES];
            unit.copy_from_slice(&pool_batch[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + UNIT_BYTES]);
            Golden {
                bytes: unit.to_vec(),
                at: 0,
                seal: seal_unit,
                accepted: |bytes| LogEntry::decode_bytes(bytes).is_ok(),
            }
        }
        "A register" => Golden {
            bytes: register[..REGISTER_BYTES].to_vec(),
            at: 0,
            seal: |bytes| set_crc(bytes, 4, 8, REGISTER_BYTES),
            accepted: |bytes| StoredRegister::decode(bytes.first_chunk().unwrap()).is_ok(),
        },
        other => panic!("there is no golden structure for {other:?}"),
    }
}

#[test]
fn the_largest_number_of_each_field_is_accepted_and_the_next_one_is_not() {
    let ranges = rows("## Ranges");
    assert!(ranges.len() >= 38, "{}", ranges.len());
    for row in ranges {
        // The first cell may name a field in backquotes.
        let structure = DOCUMENT
            .lines()
            .find_map(|line| {
                let name = line.trim_start_matches('#').trim();
                (line.starts_with('#') && name.replace('`', "") == row[0].replace('`', "")).then_some(name)
            })
            .unwrap_or_else(|| panic!("no heading {:?}", row[0]));
        let largest = 1u64 << row[2].strip_prefix("2^").unwrap().parse::<u32>().unwrap();
        let (field, (offset, size)) = (row[1], field_at(structure, row[1]));
        let with = |number: u64| {
            let mut golden = golden(structure);
            (golden.seal)(&mut golden.bytes);
            assert!((golden.accepted)(&golden.bytes), "{structure} unchanged");
            let at = golden.at + offset;
            golden.bytes[at..at + size].copy_from_slice(&number.to_le_bytes()[..size]);
            (golden.seal)(&mut golden.bytes);
            (golden.accepted)(&golden.bytes)
        };
        // Not alone for fields that others depend on: a larger array has more regions, a larger disk another layout.
        let alone = !matches!(field, "array_bytes" | "device_bytes");
        assert!(!alone || with(largest), "{structure}: {field} may be {largest}");
        assert!(!with(largest + 1), "{structure}: {field} may not be {}", largest + 1);
        let most = if size == 8 { u64::MAX } else { (1 << (8 * size)) - 1 };
        assert!(!with(most) && !with(most >> 1), "{structure}: {field} may not be {most}, nor half of it");
    }
}

#[test]
fn a_writer_has_room_behind_the_reader_s_limit() {
    const { assert!(COUNTER_WRITE_MAX - COUNTER_MAX > 1 << 61 && EPOCH_MAX << 16 <= COUNTER_MAX) }
    let start = Checkpoint::first(&ARRAY, 3);
    let beyond = Checkpoint { commit: COUNTER_MAX + 1, generation: COUNTER_MAX + (1 << 20), ..start };
    assert!(Checkpoint::decode(&beyond.encode()).is_err(), "it can be written, and no reader accepts it");
    assert_eq!(LostStripe::new(STRIPE_NUMBER_MAX + 1, 1, &[0]), None);
    let mut bytes = [0; HEAD_BYTES];
    let golden = include_bytes!("../../../../tests/golden/journal/head.bin");
    bytes[..golden.len()].copy_from_slice(golden);
    let (head, lost) = decode_head(&ARRAY, &bytes).unwrap();
    encode_head(&ARRAY, &braid_format::journal::JournalHead { generation: COUNTER_MAX + 2, ..head }, &lost, &mut bytes);
    assert_eq!(decode_head(&ARRAY, &bytes), None);
}
