//! On-disk structures of a pool as golden files: what was written once stays readable, and is encoded to the same
//! bytes.
//!
//! A file is created only by running this test with `BRAID_WRITE_GOLDEN=1`, and only if it does not exist.

use crate::support;
use std::path::{Path, PathBuf};

use braid_format::fuzz::{POOL_INDEX, POOL_MEMBER};
use braid_format::pool::{
    AllocationPolicy, BATCH_BYTES_MAX, BatchBuilder, Change, Checkpoint, LogBatchHeader, LogEntry, MissingMember,
    MissingMembers, NO_ADDRESS, Owner, OwnerKind, OwnerName, PoolLabel, Record, RecordKind, SnapshotSchedule,
    batch_entries, decode_address, encode_address, pool_tag, validate_batch,
};
use braid_format::{MEMBERS_MAX, Uuid};

const POOL: Uuid = Uuid::from_bytes(*b"braid-test-pool!");

fn kept(path: &Path, made: &[u8]) -> Vec<u8> {
    if !path.exists() && std::env::var_os("BRAID_WRITE_GOLDEN").is_some() {
        std::fs::write(path, made).unwrap();
    }
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn golden(name: &str, made: &[u8]) -> Vec<u8> {
    let bytes = kept(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pools").join(name), made);
    assert!(made == bytes, "{name} encodes to other bytes");
    bytes
}

fn records() -> [Record; 5] {
    let whole = Record { kind: RecordKind::Whole, life: 7, owner: 3, logical: 9, present: 0xff00, zero: 0xf };
    [
        Record::free(0),
        Record::free(0x0102),
        whole,
        Record { kind: RecordKind::Packed, logical: u32::MAX, present: 0x8000_0000_0000_0001, zero: 0, ..whole },
        Record { kind: RecordKind::Zeros, logical: 0x0a0b_0c0d, present: 3, zero: u64::MAX, ..whole },
    ]
}

fn owner() -> Owner {
    Owner {
        id: 5,
        kind: OwnerKind::Volume,
        allocation: AllocationPolicy::Chosen,
        on: 0b110,
        also_on: 0,
        thick: true,
        flattening: false,
        frozen: false,
        sectors_of_512: false,
        parent: 4,
        uuid: Uuid::from_bytes(*b"braid-testvolume"),
        volume: Uuid::nil(),
        size_bytes: 100 << 30,
        created_unix_s: 1_700_000_000,
        limit_iops: 3000,
        limit_bytes_per_s: 125 << 20,
        name: OwnerName::new("db").unwrap(),
        schedule: Some(SnapshotSchedule { every_s: 3600, keep: 24 }),
    }
}

fn snapshot() -> Owner {
    Owner {
        id: 4,
        kind: OwnerKind::Snapshot,
        allocation: AllocationPolicy::Spread,
        on: 0,
        also_on: 0,
        thick: false,
        flattening: false,
        parent: 0,
        volume: owner().uuid,
        name: OwnerName::new("monday").unwrap(),
        schedule: None,
        ..owner()
    }
}

/// One of each kind, the first two joined.
fn changes() -> Vec<LogEntry> {
    let records = records();
    let of = |member, index, change| LogEntry { member, index, sequence: 0, joined: false, change };
    let mut entries = vec![
        of(2, 1000, Change::Record { record: records[2] }),
        of(0, 77, Change::Record { record: records[1] }),
        of(127, 0x0102_0304, Change::Slot { slot: 63, block: 0x12_3456_789a, record: records[3] }),
        of(2, 5000, Change::Record { record: records[4] }),
        of(0, 12, Change::Owner { owner: Some(owner()) }),
        of(0, 13, Change::Owner { owner: None }),
        of(0, 0, Change::Padding),
        of(0, 14, Change::Owner { owner: Some(snapshot()) }),
    ];
    entries[0].joined = true;
    let mut sequence = 0x1_0000_0000;
    for entry in &mut entries {
        entry.sequence = sequence;
        sequence += entry.units() as u64;
    }
    entries
}

const HEADER: LogBatchHeader = LogBatchHeader {
    pool_tag: u32::from_le_bytes(*b"brai"),
    run: 0xa1a2_a3a4_a5a6_a7a8,
    sequence: 1000,
    commit: 300,
    members: 1 << 127 | 0b101,
    index: 1,
    batches: 3,
    mark: 0x1_0000_0020,
    units: 0,
    blocks: 0,
};

const START: Checkpoint = Checkpoint {
    pool_tag: HEADER.pool_tag,
    session: 0x1122_3344_5566_7788,
    run: HEADER.run,
    sequence: 998,
    position: 170,
    commit: 299,
    mark: 0x0_ffff_fff0,
    generation: 9,
    previous_run: 0,
    last_commits: [0; MEMBERS_MAX],
    missing: MissingMembers::NONE,
    hold_outcome: 0,
};

/// A checkpoint of a pool that runs without two of its members.
fn lacking() -> Checkpoint {
    let of = |member, other, needs| MissingMember {
        member,
        run: 0xb1b2_b3b4_b5b6_b7b8,
        alternative_run: other,
        commit: 296,
        required_commit: needs,
    };
    let mut start = Checkpoint { previous_run: 0xc1c2_c3c4_c5c6_c7c8, generation: 10, ..START };
    (start.last_commits[0], start.last_commits[2], start.last_commits[127]) = (299, 260, 295);
    start.missing = MissingMembers::new(&[of(2, 0, 260), of(127, 0xd1d2_d3d4_d5d6_d7d8, 295)]).unwrap();
    start
}

/// The first checkpoint of a run that began without one of four members, and to which another one returned.
fn first_of_run() -> Checkpoint {
    Checkpoint { hold_outcome: 1 << 127 | 0b1, generation: 11, ..lacking() }
}

fn batch(of: &[LogEntry]) -> (LogBatchHeader, Vec<u8>) {
    let mut bytes = vec![0xff; BATCH_BYTES_MAX];
    let mut composer = BatchBuilder::new(&mut bytes);
    assert!(of.iter().all(|entry| composer.push(entry)));
    let header = composer.seal(HEADER);
    bytes.truncate(header.bytes());
    (header, bytes)
}

#[test]
fn golden_records_decode_and_encode_alike() {
    let made: Vec<u8> = (0u32..).zip(records()).flat_map(|(index, record)| record.encode(3, 1000 + index)).collect();
    let bytes = golden("table.bin", &made);
    for ((index, record), bytes) in (0u32..).zip(records()).zip(bytes.as_chunks().0) {
        assert_eq!(Record::decode(bytes, 3, 1000 + index), Ok(record));
    }
}

#[test]
fn golden_addresses_decode_and_encode_alike() {
    let block = |slot: u8| (!slot.is_multiple_of(3)).then_some(u64::from(slot) * 0x1234_5678);
    let word = |slot| block(slot).map_or(NO_ADDRESS, |block| encode_address(3, 1000, slot, block, 7));
    let made: Vec<u8> = (0..64).flat_map(|slot| word(slot).to_le_bytes()).collect();
    let bytes = golden("addresses.bin", &made);
    assert_eq!(bytes.len(), 512);
    for (slot, bytes) in (0..64).zip(bytes.as_chunks().0) {
        assert_eq!(decode_address(u64::from_le_bytes(*bytes), 3, 1000, slot, 7), Ok(block(slot)));
    }
}

#[test]
fn golden_owners_decode_and_encode_alike() {
    let made = [owner().encode(12), [0; 256], snapshot().encode(14)].concat();
    let bytes = golden("owners.bin", &made);
    let read: Vec<_> = (12..).zip(bytes.as_chunks().0).map(|(slot, bytes)| Owner::decode(bytes, slot)).collect();
    assert_eq!(read, [Ok(Some(owner())), Ok(None), Ok(Some(snapshot()))]);
}

#[test]
fn golden_batches_decode_and_encode_alike() {
    let (header, made) = batch(&changes());
    let bytes = golden("batch.bin", &made);
    assert_eq!((validate_batch(&bytes), header.units, header.blocks), (Ok(header), 20, 1));
    assert_eq!(batch_entries(&bytes, &header).collect::<Result<Vec<_>, _>>(), Ok(changes()));
    assert_eq!(pool_tag(&POOL), HEADER.pool_tag);
}

#[test]
fn golden_checkpoints_decode_and_encode_alike() {
    let bytes = golden("start.bin", &START.encode());
    assert_eq!(Checkpoint::decode(bytes.first_chunk().unwrap()), Ok(START));
    let bytes = golden("start_lacking.bin", &lacking().encode());
    assert_eq!(Checkpoint::decode(bytes.first_chunk().unwrap()), Ok(lacking()));
    let bytes = golden("start_settled.bin", &first_of_run().encode());
    assert_eq!(Checkpoint::decode(bytes.first_chunk().unwrap()), Ok(first_of_run()));
}

#[test]
fn golden_labels_decode_and_encode_alike() {
    let label = support::pool_of_three();
    let bytes = golden("label_member2.bin", &label.encode().unwrap());
    assert_eq!(PoolLabel::decode(&bytes), Ok(label));
}

/// Inputs for the fuzzer, created in the same way.
#[test]
fn the_corpus_of_the_fuzzer_is_accepted() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let keep = |name: &str, made: &[u8]| kept(&corpus.join(name), made);
    for (k, record) in records().into_iter().enumerate() {
        let bytes = keep(&format!("pool/record{k}"), &record.encode(POOL_MEMBER, POOL_INDEX));
        assert_eq!(Record::decode(bytes.first_chunk().unwrap(), POOL_MEMBER, POOL_INDEX), Ok(record));
    }
    let word = keep("pool/address", &encode_address(POOL_MEMBER, POOL_INDEX, 5, 7777, 9).to_le_bytes());
    let word = u64::from_le_bytes(*word.first_chunk().unwrap());
    assert_eq!(decode_address(word, POOL_MEMBER, POOL_INDEX, 5, 9), Ok(Some(7777)));
    for (name, owner) in [("pool/owner", owner()), ("pool/owner-snapshot", snapshot())] {
        let bytes = keep(name, &owner.encode(POOL_INDEX));
        assert_eq!(Owner::decode(bytes.first_chunk().unwrap(), POOL_INDEX), Ok(Some(owner)));
    }
    for (name, entry) in ["record", "free", "slot", "zeros", "owner", "no-owner", "padding"].into_iter().zip(changes())
    {
        let mut made = vec![0; entry.units() * 64];
        entry.encode_bytes(&mut made);
        let bytes = keep(&format!("pool/entry-{name}"), &made);
        assert_eq!(LogEntry::decode_bytes(&bytes), Ok((entry.clone(), entry.units())));
    }
    let none: &[LogEntry] = &[];
    let two_blocks: Vec<LogEntry> = changes().into_iter().cycle().take(40).collect();
    for (name, of) in [("pool/batch-empty", none), ("pool/batch", &changes()), ("pool/batch-of-two", &two_blocks)] {
        let (header, made) = batch(of);
        let bytes = keep(name, &made);
        assert_eq!(validate_batch(&bytes), Ok(header));
        assert_eq!(batch_entries(&bytes, &header).collect::<Result<Vec<_>, _>>().as_deref(), Ok(of));
    }
    let bytes = keep("pool/start", &START.encode());
    assert_eq!(Checkpoint::decode(bytes.first_chunk().unwrap()), Ok(START));
    let mut label = support::pool_of_three();
    let bytes = keep("pool_label/three", &label.encode().unwrap());
    assert_eq!(PoolLabel::decode(&bytes), Ok(label.clone()));
    let member =
        |number| Some(braid_format::pool::PoolMember { uuid: Uuid::from_u128(number), ..label.members[2].unwrap() });
    label.members = (1..=128).map(member).collect();
    let bytes = keep("pool_label/full", &label.encode().unwrap());
    assert_eq!(PoolLabel::decode(&bytes), Ok(label));
}
