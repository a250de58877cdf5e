//! Labels of pools round-trip; all other bytes are refused, and the invalid field is named.

use crate::support;
use braid_format::pool::{
    OWNER_SLOTS_MIN, POOL_FIELDS, PoolHeader, PoolLabel, PoolMember, PoolMemberLayout, PoolMemberState, PoolState,
    owner_slots_for,
};
use braid_format::{LabelError, Name, Uuid, examine_pool};
use proptest::prelude::*;

/// Sets both checksums, as for a crafted label.
fn reseal(bytes: &mut [u8; 4096]) {
    bytes[8..12].fill(0);
    let header = crc32c::crc32c(&bytes[..508]);
    bytes[508..512].copy_from_slice(&header.to_le_bytes());
    let label = crc32c::crc32c(bytes);
    bytes[8..12].copy_from_slice(&label.to_le_bytes());
}

fn any_label() -> impl Strategy<Value = PoolLabel> {
    let state = prop_oneof![Just(PoolState::Forming), Just(PoolState::Active), Just(PoolState::Deleting)];
    let member = (1u64..1 << 49, 0..4u8);
    let members = prop::collection::vec(member, 1..=128);
    (any::<[u64; 4]>(), "[a-z0-9][a-zA-Z0-9._-]{0,62}", state, members, any::<prop::sample::Index>(), 21u32..50)
        .prop_map(|(numbers, name, state, members, own, bits)| {
            let own = own.index(members.len());
            let size_bytes = (1 << bits) - numbers[0] % (1 << (bits - 1)) / 2;
            let owner_slots = OWNER_SLOTS_MIN.max(owner_slots_for(size_bytes));
            let members = members.into_iter().enumerate().map(|(number, (size, state))| {
                let of = |size_bytes, state| {
                    Some(PoolMember { uuid: Uuid::from_u128(number as u128 + 1), size_bytes, state })
                };
                match state {
                    _ if number == own && bits % 4 == 0 => of(size_bytes, PoolMemberState::Joining),
                    _ if number == own => of(size_bytes, PoolMemberState::InUse),
                    0 => None,
                    1 => of(size, PoolMemberState::InUse),
                    2 => of(size, PoolMemberState::Removing),
                    3 => of(size, PoolMemberState::Abandoned),
                    _ => of(size, PoolMemberState::Missing),
                }
            });
            PoolLabel {
                uuid: Uuid::from_u64_pair(numbers[1], 1),
                sequence: (numbers[2] >> 2).max(1),
                name: Name::new(&name).unwrap(),
                state,
                clean: numbers[2] % 2 == 0,
                created_unix_s: numbers[3] >> 24,
                session: numbers[1],
                members: members.collect(),
                member: own as u8,
                layout: PoolMemberLayout::new(size_bytes, owner_slots).unwrap(),
                ..support::pool_of_three()
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn labels_round_trip(label in any_label()) {
        let bytes = label.encode().unwrap();
        let back = PoolLabel::decode(&bytes).unwrap();
        prop_assert_eq!(&back, &label);
        prop_assert_eq!(PoolHeader::decode(&bytes), Some(label.header()));
        prop_assert_eq!(label.numbered().count(), label.members.iter().flatten().count());
        prop_assert!(label.numbered().any(|(number, member)| number == label.member && Some(member) == label.own()));
    }

    #[test]
    fn changes_with_right_checksums_are_validated_by_content(
        label in any_label(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = label.encode().unwrap();
        for (field, at, value) in changes {
            // By field, not by byte: otherwise nearly all changes would hit the table.
            let field = &POOL_FIELDS[field.index(POOL_FIELDS.len())];
            bytes[field.offset + at.index(field.size)] = value;
        }
        reseal(&mut bytes);
        if let Ok(label) = PoolLabel::decode(&bytes) {
            prop_assert_eq!(label.encode().unwrap(), bytes);
            let places = &label.layout;
            prop_assert!(places.data.end().unwrap() <= places.device_bytes);
            prop_assert!(label.own().is_some());
        }
        let _ = PoolHeader::decode(&bytes);
    }

    #[test]
    fn noise_is_not_a_label(noise in prop::collection::vec(any::<u8>(), 0..5000), magic in any::<bool>(), seal in any::<bool>()) {
        let mut noise = noise;
        if magic && noise.len() >= 16 {
            noise[..8].copy_from_slice(b"BRAIDPL1");
            noise[12..16].copy_from_slice(&[1, 0, 0, 0]);
        }
        if let (true, Some(block)) = (seal, noise.first_chunk_mut::<4096>()) {
            reseal(block);
        }
        prop_assert!(PoolLabel::decode(&noise).is_err());
        prop_assert!(PoolHeader::decode(&noise).is_none());
    }
}

#[test]
fn a_joining_device_is_a_member_once_another_label_lists_it() {
    let label = support::pool_of_three();
    let mut joining = label.clone();
    joining.members.push(Some(PoolMember {
        uuid: Uuid::from_u128(99),
        size_bytes: label.layout.device_bytes,
        state: PoolMemberState::Joining,
    }));
    joining.member = label.members.len() as u8;
    let joining = PoolLabel::decode(&joining.encode().unwrap()).unwrap();
    assert!(joining.is_joining() && !label.is_joining());
    assert!(!label.lists(&joining) && joining.lists(&label) && label.lists(&label));
    let mut other = label.clone();
    other.members.push(Some(PoolMember { uuid: Uuid::from_u128(98), size_bytes: 1, state: PoolMemberState::InUse }));
    assert!(!other.lists(&joining), "another device has the number");
    other.members.pop();
    let own = joining.own().copied().map(|own| PoolMember { state: PoolMemberState::InUse, ..own });
    other.members.push(own);
    assert!(other.lists(&joining));
}

#[test]
fn a_given_up_member_stays_removed() {
    let own = support::pool_of_three();
    let mut label = own.clone();
    label.member = (own.member + 1) % 3;
    let at = usize::from(own.member);
    for (state, has, absent) in
        [(PoolMemberState::InUse, true, 0), (PoolMemberState::Missing, true, 1), (PoolMemberState::Abandoned, false, 1)]
    {
        label.members[at].as_mut().unwrap().state = state;
        assert_eq!((label.lists(&own), label.has_abandoned(&own)), (has, !has), "{state}");
        assert_eq!((label.lists_as_present(&own), label.missing() >> at & 1), (absent == 0, absent), "{state}");
    }
    assert_eq!(label.abandoned(), 1 << at);
    let mut own = label;
    own.member = at as u8;
    assert!(own.encode().is_err(), "no label says so of its own member");
}

#[test]
fn every_changed_bit_is_detected() {
    let mut bytes = support::pool_of_three().encode().unwrap();
    for bit in 0..4096 * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(PoolLabel::decode(&bytes).is_err(), "bit {bit}");
        // The sector's own checksum protects the header.
        let beyond = bit / 8 >= 512 || (8..12).contains(&(bit / 8));
        assert_eq!(PoolHeader::decode(&bytes).is_some(), beyond, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// One change of one field, and the field that must be reported.
#[test]
fn an_invalid_field_is_reported_by_name() {
    let cases: &[(&str, usize, &[u8])] = &[
        ("pool_uuid", 40, &[0; 16]),
        ("sequence", 56, &[0; 8]),
        ("name", 64, b"-"),
        ("name", 64 + 63, b"x"),
        ("pool_state", 128, &[0]),
        ("pool_state", 128, &[4]),
        ("clean", 129, &[2]),
        ("member", 130, &[3]),
        ("member_uuid", 130, &[1]),
        ("member_uuid", 130, &[0]),
        ("member_count", 131, &[0]),
        ("member_count", 131, &[129]),
        ("member", 131, &[2]),
        ("owner_slots", 132, &[0; 4]),
        ("owners_bytes", 132, &[0, 9]),
        ("member_uuid", 152, &[1; 16]),
        ("member_uuid", 152, &[0; 16]),
        ("extents", 168, &[0; 4]),
        ("table_bytes", 168, &[1]),
        ("table_bytes", 172, &[1]),
        ("zero_slots", 172, &[255; 4]),
        ("device_bytes", 176, &[255; 8]),
        ("device_bytes", 176, &[1]),
        ("label_start", 184, &[1]),
        ("copy_start", 192, &[0; 8]),
        ("copy_start", 192, &[255; 8]),
        ("starts_start", 200, &[0; 8]),
        ("starts_bytes", 208, &[0, 16]),
        ("ring_start", 216, &[0; 8]),
        ("ring_bytes", 224, &[0; 8]),
        ("owners_start", 232, &[0; 8]),
        ("owners_bytes", 240, &[0; 8]),
        ("table_start", 248, &[0; 8]),
        ("table_bytes", 256, &[0; 8]),
        ("addresses_start", 264, &[0; 8]),
        ("addresses_bytes", 272, &[0; 8]),
        ("data_start", 280, &[0; 8]),
        ("data_bytes", 288, &[0; 8]),
        ("reserved_a", 296, &[1]),
        ("reserved_a", 507, &[1]),
        ("members", 512, &[0; 16]),
        ("members", 512 + 16, &[0; 8]),
        ("members", 512 + 24, &[4]),
        ("members", 512 + 24, &[6]),
        ("members", 512 + 24, &[0]),
        ("members", 512 + 25, &[1]),
        ("members", 512 + 50 + 24, &[3]),
        ("members", 512 + 50 + 24, &[5]),
        ("members", 512, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13]),
        ("device_bytes", 512 + 50 + 16, &[1]),
        ("members", 512 + 3 * 25, &[1]),
        ("members", 3711, &[1]),
        ("reserved_b", 3712, &[1]),
        ("reserved_b", 4095, &[1]),
    ];
    let good = support::pool_of_three().encode().unwrap();
    for (field, at, change) in cases {
        let mut bytes = good;
        bytes[*at..at + change.len()].copy_from_slice(change);
        reseal(&mut bytes);
        match PoolLabel::decode(&bytes) {
            Err(LabelError::Field { field: reported, reason }) => {
                assert_eq!(reported, *field, "byte {at} = {change:x?}: {reason}");
            }
            other => panic!("byte {at} = {change:x?}: {other:?}"),
        }
        let seen = examine_pool(&bytes, &good, 100 << 30);
        let reported = seen.start.fields.iter().find(|f| f.field.name == *field).unwrap();
        assert!(reported.problem.is_some(), "examine does not report {field}");
    }
}

#[test]
fn newer_versions_are_refused_and_compatible_features_preserved() {
    let good = support::pool_of_three().encode().unwrap();
    let changed = |changes: &[(usize, u8)]| {
        let mut bytes = good;
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        reseal(&mut bytes);
        bytes
    };
    let newer = PoolLabel::decode(&changed(&[(12, 2)])).unwrap_err();
    assert_eq!(newer, LabelError::NewerVersion { found: 2, supported: 1 });
    let incompatible = PoolLabel::decode(&changed(&[(33, 1)])).unwrap_err();
    assert_eq!(incompatible, LabelError::Incompatible { bits: 0x100 });
    assert!(matches!(PoolLabel::decode(&changed(&[(12, 0)])), Err(LabelError::OlderVersion { .. })));
    // A compatible feature may have given meaning to what is zero today.
    let bytes = changed(&[(16, 1), (300, 5), (4000, 6)]);
    let label = PoolLabel::decode(&bytes).unwrap();
    assert_eq!(label.encode().unwrap(), bytes);
    assert!(PoolLabel::decode(&changed(&[(300, 5)])).is_err());
}

#[test]
fn an_invalid_label_is_not_encoded() {
    let no_member = PoolLabel { member: 1, ..support::pool_of_three() };
    assert!(matches!(no_member.encode(), Err(LabelError::Field { field: "member_uuid", .. })));
    let crowd = PoolLabel { members: vec![support::pool_of_three().members[2]; 129], ..support::pool_of_three() };
    assert!(matches!(crowd.encode(), Err(LabelError::Field { field: "member_count", .. })));
    let twins = PoolLabel { members: vec![support::pool_of_three().members[2]; 3], ..support::pool_of_three() };
    assert!(matches!(twins.encode(), Err(LabelError::Field { field: "members", .. })));
    assert!(PoolLabel { sequence: 0, ..support::pool_of_three() }.encode().is_err());
}

#[test]
fn a_label_checks_its_offset_and_its_device() {
    let label = support::pool_of_three();
    assert!(label.belongs_at(0) && label.belongs_at((100 << 30) - 4096) && !label.belongs_at(4096));
    assert_eq!(label.fits(100 << 30), Ok(()));
    assert_eq!(label.fits(200 << 30), Ok(()));
    assert!(label.fits((100 << 30) - 1).unwrap_err().contains("107374182400"));
    let numbers: Vec<u8> = label.numbered().map(|(number, _)| number).collect();
    assert_eq!(numbers, [0, 2]);
}

#[test]
fn examine_shows_both_copies() {
    let (bytes, size) = (support::pool_of_three().encode().unwrap(), 100 << 30);
    let sound = examine_pool(&bytes, &bytes, size);
    assert!(sound.sound() && sound.any_label(), "{sound:?}");
    assert_eq!((sound.start.offset, sound.end.offset), (0, size - 4096));
    let shown = |name: &str| sound.end.fields.iter().find(|f| f.field.name == name).unwrap().value.clone();
    assert_eq!(
        (shown("pool_state"), shown("name"), shown("extents")),
        ("active".into(), "tank".into(), "408444".into())
    );
    // Torn behind its first sector: the header still identifies it.
    let mut torn = bytes;
    torn[512..].fill(0);
    let examined = examine_pool(&torn, &bytes, size);
    assert!(examined.start.header_checksum.unwrap().good() && !examined.start.checksum.unwrap().good());
    assert_eq!(examined.start.header, Some(support::pool_of_three().header()));
    assert_eq!(examined.differences.iter().map(|d| d.field).collect::<Vec<_>>(), ["members"]);
    // A label of an array is not a label of a pool.
    let array = support::raid0_of_three().encode().unwrap();
    assert!(!examine_pool(&array, &array, size).any_label());
    assert!(!braid_format::examine(&bytes, &bytes, size).any_label());
    let shrunk = examine_pool(&bytes, &[], size / 2);
    assert!(shrunk.size_problems[0].contains("the device has 53687091200 bytes"), "{:?}", shrunk.size_problems);
}
