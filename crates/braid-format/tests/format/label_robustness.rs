//! Labels round-trip; all other bytes are refused.

use crate::support;
use braid_format::{FIELDS, Header, Label, LabelError, examine};
use proptest::prelude::*;

/// Sets both checksums, as for a crafted label.
fn reseal(bytes: &mut [u8; 4096]) {
    bytes[8..12].fill(0);
    let header = crc32c::crc32c(&bytes[..508]);
    bytes[508..512].copy_from_slice(&header.to_le_bytes());
    let label = crc32c::crc32c(bytes);
    bytes[8..12].copy_from_slice(&label.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn labels_round_trip(label in support::any_label()) {
        let bytes = label.encode().unwrap();
        let back = Label::decode(&bytes).unwrap();
        prop_assert_eq!(&back, &label);
        prop_assert_eq!(back.encode().unwrap(), bytes);
        let geometry = back.array.geometry().unwrap();
        prop_assert_eq!(geometry.size_bytes(), label.array.array_bytes);
        let header = Header::decode(&bytes).unwrap();
        prop_assert_eq!((header.uuid, header.id), (label.array.uuid, label.member.id));
    }

    /// Batches and heads of a journal, changed, under right checksums: what is accepted encodes to the same bytes.
    #[test]
    fn journals_with_right_checksums_are_validated_by_content(
        which in 0usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4, any::<u64>()), 1..4),
    ) {
        let kept: [&[u8]; 4] = [
            include_bytes!("../../../../fuzz/corpus/journal/batch"),
            include_bytes!("../../../../fuzz/corpus/journal/batch-marks"),
            include_bytes!("../../../../fuzz/corpus/journal/head"),
            include_bytes!("../../../../fuzz/corpus/journal/head-list"),
        ];
        let mut bytes = kept[which].to_vec();
        for (at, width, value) in changes {
            // Mostly at numbers, of every width, with values that are likely to break things.
            let width = 1 << width;
            let at = 4 + at.index(bytes.len().min(400) - 4 - width);
            let value = match value % 4 {
                0 => u64::MAX,
                1 => value >> 62,
                _ => value,
            };
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        let count = u32::from_le_bytes(bytes[52..56].try_into().unwrap()).min(2000) as usize;
        let end = if which < 2 { 4096 } else { (64 + 16 * count).min(bytes.len()) };
        let crc = crc32c::crc32c(&bytes[4..end]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        braid_format::fuzz::fuzz_journal(&bytes);
    }

    #[test]
    fn every_flipped_bit_is_detected(label in support::any_label(), at in 0usize..4096 * 8) {
        let mut bytes = label.encode().unwrap();
        bytes[at / 8] ^= 1 << (at % 8);
        prop_assert!(Label::decode(&bytes).is_err());
        // The sector's own checksum protects the header.
        prop_assert_eq!(Header::decode(&bytes).is_some(), at / 8 >= 512 || (8..12).contains(&(at / 8)));
    }

    #[test]
    fn changes_with_right_checksums_are_validated_by_content(
        label in support::any_label(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = label.encode().unwrap();
        for (field, at, value) in changes {
            // By field, not by byte: otherwise nearly all changes would hit the tables.
            let field = &FIELDS[field.index(FIELDS.len())];
            bytes[field.offset + at.index(field.size)] = value;
        }
        reseal(&mut bytes);
        if let Ok(label) = Label::decode(&bytes) {
            prop_assert_eq!(label.encode().unwrap(), bytes);
            let _ = label.array.geometry();
            let places = &label.member.layout;
            prop_assert!(places.data.end().unwrap() <= places.device_bytes);
            prop_assert!(usize::from(label.member.slot) < label.array.members.len());
        }
        let _ = examine(&bytes, &bytes, label.member.layout.device_bytes);
    }

    #[test]
    fn noise_is_not_a_label(noise in prop::collection::vec(any::<u8>(), 0..5000), magic in any::<bool>(), seal in any::<bool>()) {
        let mut noise = noise;
        if magic && noise.len() >= 8 {
            noise[..8].copy_from_slice(b"BRAIDLB1");
        }
        if let (true, Some(block)) = (seal, noise.first_chunk_mut::<4096>()) {
            reseal(block);
        }
        prop_assert!(Label::decode(&noise).is_err());
        prop_assert!(Header::decode(&noise).is_none());
        let (start, end) = noise.split_at(noise.len() / 2);
        let _ = examine(start, end, noise.len() as u64);
        let _ = examine(&noise, &noise, u64::MAX);
    }
}

/// One change of one field, and the field that must be reported.
#[test]
fn an_invalid_field_is_reported_by_name() {
    let cases: &[(&str, usize, &[u8])] = &[
        ("array_uuid", 40, &[0; 16]),
        ("sequence", 56, &[0; 8]),
        ("name", 64, b"-"),
        ("name", 64 + 63, b"x"),
        ("array_state", 128, &[0]),
        ("level", 129, &[99]),
        ("layout", 130, &[99]),
        ("zone_policy", 131, &[0]),
        ("copies", 132, &[255, 255]),
        // Raid10 without copies.
        ("copies", 129, &[4, 5, 1, 0, 0]),
        ("member_count", 134, &[0, 0]),
        ("member_count", 134, &[129, 0]),
        ("members", 134, &[2, 0]),
        ("zones", 136, &[0, 0]),
        ("zones", 136, &[255, 255]),
        ("zones", 138, &[9]),
        ("clean", 139, &[2]),
        ("start_policy", 140, &[7]),
        ("ancestor_count", 141, &[9]),
        ("reserved_a", 142, &[1]),
        ("chunk_bytes", 144, &[1, 0, 1, 0]),
        ("chunk_bytes", 144, &[0, 0, 0, 0]),
        ("chunk_bytes", 144, &[0, 0, 0, 255]),
        ("region_bytes", 148, &[1]),
        ("array_bytes", 152, &[1]),
        ("ancestors", 176, &[1]),
        ("jobs", 272, &[1, 9]),
        ("jobs", 273, &[1]),
        ("believed_from", 352, &[1]),
        ("member_id", 400, &[0; 6]),
        ("member_id", 400, &[1; 6]),
        ("role", 406, &[3, 0]),
        ("device_bytes", 408, &[255; 8]),
        ("copy_start", 424, &[255; 8]),
        ("copy_start", 424, &[0; 8]),
        ("data_start", 432, &[1]),
        ("data_start", 432, &[0; 8]),
        ("data_bytes", 440, &[0; 8]),
        ("bitmap_start", 448, &[0; 8]),
        ("bitmap_start", 456, &[255; 8]),
        ("journal_start", 464, &[0; 8]),
        ("retired_batch", 488, &[1]),
        ("reserved_c", 496, &[1]),
        ("members", 512, &[0; 6]),
        ("members", 512 + 12, &[9]),
        ("members", 512 + 13, &[2]),
        ("members", 512 + 14 * 5, &[1]),
        ("zones", 2304, &[0; 16]),
        ("zones", 2304, &[255; 16]),
        ("zones", 2304 + 16, &[255; 6]),
        ("zones", 2304 + 28 + 16, &[0; 6]),
        ("zones", 4095, &[1]),
    ];
    let good = support::raid0_of_three().encode().unwrap();
    for (field, at, change) in cases {
        let mut bytes = good;
        bytes[*at..at + change.len()].copy_from_slice(change);
        reseal(&mut bytes);
        match Label::decode(&bytes) {
            Err(LabelError::Field { field: reported, .. }) => assert_eq!(reported, *field, "byte {at} = {change:x?}"),
            other => panic!("byte {at} = {change:x?}: {other:?}"),
        }
        let seen = examine(&bytes, &good, 100 << 30);
        let reported = seen.start.fields.iter().find(|f| f.field.name == *field).unwrap();
        assert!(reported.problem.is_some(), "examine does not report {field}");
    }
}

#[test]
fn newer_versions_and_features_are_refused() {
    let good = support::raid0_of_three().encode().unwrap();
    let changed = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        reseal(&mut bytes);
        bytes
    };
    let newer = Label::decode(&changed(12, 2)).unwrap_err();
    assert_eq!(newer, LabelError::NewerVersion { found: 2, supported: 1 });
    assert!(newer.to_string().contains("use a newer braid"), "{newer}");
    let incompatible = Label::decode(&changed(33, 1)).unwrap_err();
    assert_eq!(incompatible, LabelError::Incompatible { bits: 0x100 });
    assert!(incompatible.to_string().contains("use a newer braid"), "{incompatible}");
    assert!(matches!(Label::decode(&changed(12, 0)), Err(LabelError::OlderVersion { .. })));
    let read_only = Label::decode(&changed(24, 1)).unwrap();
    assert!(!read_only.array.features.writable());
    let compatible = Label::decode(&changed(16, 1)).unwrap();
    assert!(compatible.array.features.writable());
}
