//! A batch and a head of a journal as golden files: what was written once stays readable, and is encoded to the same
//! bytes.
//!
//! A file is created only by running this test with `BRAID_WRITE_GOLDEN=1`, and only if it does not exist.

use std::path::PathBuf;

use braid_format::Uuid;
use braid_format::journal::{
    EntryKind, HEAD_BYTES, JournalBatchHeader, JournalEntry, JournalHead, LostStripe, RingLocation, decode_batch,
    decode_head, encode_batch, encode_head, payload_crc,
};

const ARRAY: Uuid = Uuid::from_bytes(*b"braid-test-array");

fn golden(name: &str, made: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/journal").join(name);
    if !path.exists() && std::env::var_os("BRAID_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn golden_batches_decode_and_encode_alike() {
    let data = JournalEntry { stripe: 5, first: 3, blocks: 1, cell: 1, cells: 2, parities: 2, kind: EntryKind::Data };
    let entries = [data, JournalEntry::mark(0x0102_0304_0506_0708)];
    let payload: Vec<u8> = (0..4 * 4096).map(|i| (i / 4096 * 16 + i % 7) as u8).collect();
    let header = JournalBatchHeader {
        run: 0xa1a2_a3a4_a5a6_a7a8,
        sequence: 1000,
        tail: 990,
        position: 170,
        blocks: 5,
        entries: 2,
        payload_crc: payload_crc(0, &payload),
    };
    let mut block = [0; 4096];
    encode_batch(&ARRAY, &header, &entries, &mut block);
    let bytes = golden("batch.bin", &[&block[..], &payload].concat());
    let (first, rest) = bytes.split_first_chunk::<4096>().unwrap();
    let (read, found) = decode_batch(&ARRAY, first).unwrap();
    assert_eq!((read, found.collect::<Vec<_>>().as_slice()), (header, &entries[..]));
    assert_eq!(payload_crc(0, rest), header.payload_crc);
    assert!(*first == block && rest == payload, "it encodes to other bytes");
}

#[test]
fn golden_heads_decode_and_encode_alike() {
    let head = JournalHead {
        generation: 9,
        run: 0xa1a2_a3a4_a5a6_a7a8,
        ring_blocks: 2032,
        stripe_bytes: 65536,
        ring_on: RingLocation::Members,
    };
    let lost = [LostStripe::new(2, 0xffff, &[0]).unwrap(), LostStripe::new(7, 0b101, &[1, 3]).unwrap()];
    let mut made = [0; HEAD_BYTES];
    let used = encode_head(&ARRAY, &head, &lost, &mut made);
    let bytes = golden("head.bin", &made[..used]);
    let mut read = [0; HEAD_BYTES];
    read[..bytes.len()].copy_from_slice(&bytes);
    assert_eq!(decode_head(&ARRAY, &read), Some((head, lost.to_vec())));
    assert!(made[..used] == bytes, "it encodes to other bytes");
}

/// Inputs for the fuzzer, created in the same way.
#[test]
fn the_corpus_of_the_fuzzer_is_accepted() {
    let array = Uuid::from_bytes(*b"braid-fuzz-array");
    let file = |name: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/journal").join(name);
    let keep = |name: &str, made: &[u8]| {
        if !file(name).exists() && std::env::var_os("BRAID_WRITE_GOLDEN").is_some() {
            std::fs::write(file(name), made).unwrap();
        }
        std::fs::read(file(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let data = |row, first, blocks, cell, cells, parities| JournalEntry {
        stripe: row,
        first,
        blocks,
        cell,
        cells,
        parities,
        kind: EntryKind::Data,
    };
    let several =
        [data(0, 0, 16, 0, 3, 1), data(7, 15, 1, 125, 2, 2), JournalEntry::mark(9), data(1 << 50, 2, 1, 0, 1, 0)];
    for (name, entries) in
        [("batch", &several[..]), ("batch-marks", &[JournalEntry::mark(3); 168]), ("batch-empty", &[])]
    {
        let blocks = 1 + entries.iter().map(JournalEntry::payload_blocks).sum::<u32>();
        let header = JournalBatchHeader {
            run: 3,
            sequence: 70,
            tail: 70,
            position: 4,
            blocks,
            entries: entries.len() as u16,
            payload_crc: if blocks > 1 { 0x1234_5678 } else { 0 },
        };
        let mut block = [0; 4096];
        encode_batch(&array, &header, entries, &mut block);
        let kept = keep(name, &block);
        assert!(decode_batch(&array, kept.first_chunk().unwrap()).is_some(), "{name}");
    }
    let head =
        JournalHead { generation: 1, run: 9, ring_blocks: 176, stripe_bytes: 4096, ring_on: RingLocation::Members };
    for (name, count) in [("head", 0), ("head-list", 300u64)] {
        let lost: Vec<LostStripe> =
            (0..count).map(|row| LostStripe::new(row, 1, &[row as u8 % 127]).unwrap()).collect();
        let mut made = [0; HEAD_BYTES];
        let used = encode_head(&array, &head, &lost, &mut made);
        let kept = keep(name, &made[..used]);
        let mut read = [0; HEAD_BYTES];
        read[..kept.len()].copy_from_slice(&kept);
        assert!(decode_head(&array, &read).is_some(), "{name}");
    }
}
