//! On-disk structures of pools round-trip; all other bytes are validated, and none of them causes a panic.

use braid_format::Uuid;
use braid_format::fuzz::{POOL_INDEX, POOL_MEMBER, fuzz_pool, fuzz_pool_label};
use braid_format::limits::COUNTER_MAX;
use braid_format::pool::{
    AllocationPolicy, BATCH_BYTES_MAX, BatchBuilder, BatchError, Change, Checkpoint, ENTRY_UNITS_MAX, LogBatchHeader,
    LogEntry, MISSING_MAX, MissingMember, MissingMembers, Owner, OwnerKind, OwnerName, Record, RecordKind,
    SnapshotSchedule, UNIT_WORDS, VOLUME_BLOCKS_MAX, VOLUME_BYTES_MAX, batch_blocks, batch_entries, decode_address,
    encode_address, validate_batch,
};
use proptest::prelude::*;

const NUMBER_MAX: u64 = COUNTER_MAX;

fn any_record() -> impl Strategy<Value = Record> {
    let owner = 1..=u32::MAX >> 1;
    let whole = (owner.clone(), 0..u32::MAX, any::<u64>(), any::<u64>()).prop_map(|(owner, logical, present, zero)| {
        Record { kind: RecordKind::Whole, life: 0, owner, logical, present, zero: zero & !present }
    });
    let packed = (owner.clone(), any::<u64>()).prop_map(|(owner, present)| Record {
        kind: RecordKind::Packed,
        life: 0,
        owner,
        logical: u32::MAX,
        present,
        zero: 0,
    });
    let zeros = (owner, 0..u32::MAX, any::<u64>(), 1..=u64::MAX).prop_map(|(owner, logical, count, zero)| {
        let present = 1 + count % u64::from(u32::MAX - logical);
        let zero = if present == 1 { zero } else { u64::MAX };
        Record { kind: RecordKind::Zeros, life: 0, owner, logical, present, zero }
    });
    let kinds = prop_oneof![Just(Record::free(0)), whole, packed, zeros];
    (kinds, any::<u16>()).prop_map(|(record, life)| Record { life, ..record })
}

fn any_absence() -> impl Strategy<Value = MissingMember> {
    let numbers = (1..=u64::MAX, any::<u64>(), 0..=NUMBER_MAX, 0..=NUMBER_MAX);
    numbers.prop_map(|(run, other, commit, needs)| MissingMember {
        member: 0,
        run,
        alternative_run: other,
        commit,
        required_commit: needs,
    })
}

fn any_owner() -> impl Strategy<Value = Owner> {
    let kind = prop_oneof![
        Just(OwnerKind::Volume),
        Just(OwnerKind::Snapshot),
        Just(OwnerKind::Nameless),
        Just(OwnerKind::Deleting)
    ];
    let place =
        prop_oneof![Just(AllocationPolicy::Spread), Just(AllocationPolicy::Single), Just(AllocationPolicy::Chosen)];
    let policy = prop::option::of((1..=u32::MAX, 1..=u32::MAX));
    let numbers = (1..=u32::MAX >> 1, 0..=u32::MAX >> 1, 1..=VOLUME_BYTES_MAX / 4096, any::<[u64; 3]>());
    let name = "[A-Za-z0-9][A-Za-z0-9._-]{0,62}";
    (kind, place, policy, numbers, 1..=u128::MAX, 1..=u128::MAX, any::<bool>(), name).prop_map(
        |(kind, place, policy, (id, parent, blocks, limits), on, uuid, thick, name)| Owner {
            id,
            kind,
            allocation: place,
            on: match place {
                AllocationPolicy::Spread => 0,
                AllocationPolicy::Single => 1 << (on % 128),
                AllocationPolicy::Chosen => on,
            },
            also_on: if place == AllocationPolicy::Spread { 0 } else { uuid },
            thick,
            flattening: limits[0] & 1 == 1,
            frozen: kind != OwnerKind::Volume && limits[0] & 2 == 2,
            sectors_of_512: limits[0] & 4 == 4,
            parent: if parent == id { 0 } else { parent },
            uuid: Uuid::from_u128(uuid),
            volume: Uuid::from_u128(if kind == OwnerKind::Volume { 0 } else { on }),
            size_bytes: blocks * 4096,
            created_unix_s: limits[0] >> 24,
            limit_iops: limits[1] >> 2,
            limit_bytes_per_s: limits[2] >> 2,
            name: if kind == OwnerKind::Nameless { OwnerName::NONE } else { OwnerName::new(&name).unwrap() },
            schedule: policy.map(|(every_s, keep)| SnapshotSchedule { every_s, keep }),
        },
    )
}

fn any_entry() -> impl Strategy<Value = LogEntry> {
    let record = any_record().prop_map(|record| Change::Record { record });
    let slot =
        (0..64u8, 0..VOLUME_BLOCKS_MAX, any_record(), any::<u64>()).prop_map(|(slot, block, record, present)| {
            let (kind, owner) = (RecordKind::Packed, record.owner.max(1));
            let record = Record { kind, owner, logical: u32::MAX, present: present | 1 << slot, zero: 0, ..record };
            Change::Slot { slot, block, record }
        });
    let owner = prop::option::of(any_owner()).prop_map(|owner| Change::Owner { owner });
    let change = prop_oneof![3 => record, 3 => slot, 1 => owner, 1 => Just(Change::Padding)];
    (0..128u8, any::<u32>(), 0..=NUMBER_MAX, any::<bool>(), change).prop_map(
        |(member, index, sequence, joined, change)| {
            let (member, index) = match change {
                Change::Owner { .. } => (0, index),
                Change::Padding => (0, 0),
                _ => (member, index),
            };
            LogEntry { member, index, sequence, joined, change }
        },
    )
}

fn any_header() -> impl Strategy<Value = LogBatchHeader> {
    let number = || 1..=NUMBER_MAX;
    ((any::<u32>(), any::<u16>(), 0..=NUMBER_MAX), 1..=u64::MAX, number(), number(), 1..=u128::MAX, 1..=u16::MAX)
        .prop_map(|((pool_tag, index, mark), run, sequence, commit, members, batches)| LogBatchHeader {
            pool_tag,
            run,
            sequence,
            commit,
            members,
            index: index % batches,
            batches,
            mark,
            units: 0,
            blocks: 0,
        })
}

fn composed(header: LogBatchHeader, of: &[LogEntry]) -> (LogBatchHeader, Vec<u8>) {
    let mut bytes = vec![0xff; BATCH_BYTES_MAX];
    let mut composer = BatchBuilder::new(&mut bytes);
    assert!(of.iter().all(|entry| composer.push(entry)));
    let header = composer.seal(header);
    bytes.truncate(header.bytes());
    (header, bytes)
}

fn set_crc(bytes: &mut [u8], at: usize, crc: u32) {
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_round_trip(record in any_record(), member in 0..128u8, index in any::<u32>(), bit in 0..256usize) {
        let mut bytes = record.encode(member, index);
        prop_assert_eq!(Record::decode(&bytes, member, index), Ok(record));
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Record::decode(&bytes, member, index).is_err());
    }

    #[test]
    fn addresses_round_trip(
        (block, slot, member) in (0..VOLUME_BLOCKS_MAX, 0..64u8, 0..128u8),
        (extent, life, noise) in any::<(u32, u16, u64)>(),
    ) {
        let word = encode_address(member, extent, slot, block, life);
        prop_assert_eq!(decode_address(word, member, extent, slot, life), Ok(Some(block)));
        if let Ok(Some(block)) = decode_address(noise, member, extent, slot, life) {
            prop_assert_eq!(encode_address(member, extent, slot, block, life), noise);
        }
    }

    #[test]
    fn owners_round_trip(owner in any_owner(), slot in any::<u32>(), bit in 0..2048usize) {
        let mut bytes = owner.encode(slot);
        prop_assert_eq!(Owner::decode(&bytes, slot), Ok(Some(owner)));
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Owner::decode(&bytes, slot).is_err());
    }

    #[test]
    fn entries_round_trip(entry in any_entry(), bit in any::<prop::sample::Index>()) {
        let mut units = [[0; UNIT_WORDS]; ENTRY_UNITS_MAX];
        entry.encode(&mut units);
        prop_assert_eq!(LogEntry::decode(&units), Ok((entry.clone(), entry.units())));
        let bit = bit.index(entry.units() * 512);
        units[bit / 512][bit / 64 % 8] ^= 1 << (bit % 64);
        prop_assert!(LogEntry::decode(&units).is_err());
    }

    #[test]
    fn batches_round_trip(
        header in any_header(),
        of in prop::collection::vec(any_entry(), 0..200),
        bit in any::<prop::sample::Index>(),
    ) {
        let (header, mut bytes) = composed(header, &of);
        prop_assert_eq!(validate_batch(&bytes), Ok(header));
        prop_assert_eq!(header.blocks, batch_blocks(header.units));
        prop_assert_eq!(batch_entries(&bytes, &header).collect::<Result<Vec<_>, _>>(), Ok(of));
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(validate_batch(&bytes).is_err());
    }

    #[test]
    fn checkpoints_round_trip(
        (pool_tag, session, mark) in (any::<u32>(), 0..=NUMBER_MAX, 0..=NUMBER_MAX),
        (run, sequence, generation) in (1..=u64::MAX, 1..=NUMBER_MAX, 1..=NUMBER_MAX),
        (commit, position, before) in (0..=NUMBER_MAX, 0..16384u32, any::<u64>()),
        (part, settled, absent) in (0..128usize, any::<u128>(), prop::collection::btree_map(0..128u8, any_absence(), 0..=MISSING_MAX)),
    ) {
        let mut parts = [0; 128];
        parts[part] = commit / 2;
        let absent: Vec<MissingMember> = absent.into_iter().map(|(member, of)| MissingMember { member, ..of }).collect();
        let absent = MissingMembers::new(&absent).unwrap();
        let start = Checkpoint {
            pool_tag, session, run, sequence, position, commit, mark, generation,
            previous_run: before, last_commits: parts, missing: absent, hold_outcome: settled,
        };
        prop_assert_eq!(Checkpoint::decode(&start.encode()), Ok(start));
    }

    /// Small numbers, some of them out of range, under right checksums: what is accepted encodes to the same bytes.
    #[test]
    fn records_with_right_checksums_are_validated_by_content(
        (kind, reserved, life) in (0..5u8, 0..8u8, 0..3u16),
        (owner, logical) in (0..3u32, prop_oneof![0..3u32, u32::MAX - 2..=u32::MAX]),
        (present, zero) in (prop_oneof![0..4u64, Just(u64::MAX)], prop_oneof![0..4u64, Just(u64::MAX)]),
    ) {
        let (owner, reserved) = (if owner == 2 { u32::MAX } else { owner }, reserved / 7);
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&[kind, reserved]);
        bytes[2..4].copy_from_slice(&life.to_le_bytes());
        bytes[4..8].copy_from_slice(&owner.to_le_bytes());
        bytes[8..12].copy_from_slice(&logical.to_le_bytes());
        bytes[16..24].copy_from_slice(&present.to_le_bytes());
        bytes[24..].copy_from_slice(&zero.to_le_bytes());
        let of = [&bytes[..12], &bytes[16..], &[POOL_MEMBER], &POOL_INDEX.to_le_bytes()].concat();
        set_crc(&mut bytes, 12, crc32c::crc32c(&of));
        let said = Record::decode(&bytes, POOL_MEMBER, POOL_INDEX);
        let range_ends = present <= u64::from(u32::MAX) && u64::from(logical) + present <= u64::from(u32::MAX);
        let owned = owner == 1;
        let sound = reserved == 0 && match kind {
            0 => life != 0 && (owner, logical, present, zero) == (0, 0, 0, 0),
            1 => owned && logical != u32::MAX && present & zero == 0,
            2 => owned && logical == u32::MAX && zero == 0,
            3 => owned && present > 0 && range_ends && zero > 0 && (present == 1 || zero == u64::MAX),
            _ => false,
        };
        prop_assert_eq!(said.is_ok(), sound, "{:?}", said);
        fuzz_pool(&bytes);
    }

    /// Changes of single bytes of a batch and of its entries, under right checksums.
    #[test]
    fn batches_with_right_checksums_are_validated_by_content(
        header in any_header(),
        of in prop::collection::vec(any_entry(), 1..12),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        in_header in any::<bool>(),
    ) {
        let (_, mut bytes) = composed(header, &of);
        let used = 128 + 64 * of.iter().map(LogEntry::units).sum::<usize>();
        for (at, value) in changes {
            let at = if in_header { 8 + at.index(128 - 8) } else { 128 + at.index(used - 128) };
            bytes[at] = value;
        }
        let crc = crc32c::crc32c(&bytes[8..]);
        set_crc(&mut bytes, 4, crc);
        // A changed entry has a wrong checksum of its own; the batch is valid all the same.
        if !in_header {
            prop_assert!(validate_batch(&bytes).is_ok());
        }
        fuzz_pool(&bytes);
        bytes.truncate(bytes.len() - 1);
        prop_assert!(matches!(validate_batch(&bytes), Err(BatchError::Short | BatchError::Invalid(_) | BatchError::Checksum)));
        fuzz_pool(&bytes);
    }

    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..9000), which in 0..4usize) {
        let mut noise = noise;
        let magic: &[u8] = [&b""[..], b"BRPB", b"BRPS", b"BRAIDPL1"][which];
        if noise.len() >= magic.len() {
            noise[..magic.len()].copy_from_slice(magic);
        }
        fuzz_pool(&noise);
        fuzz_pool_label(&noise);
        prop_assert!(validate_batch(&noise).is_err());
        prop_assert!(LogEntry::decode_bytes(&noise).is_err());
    }
}
