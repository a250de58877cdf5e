//! Entry points for fuzzers: all code of this crate that validates bytes from a disk. They must return for any input,
//! and what they accept must be consistent.

use std::convert::Infallible;

use uuid::Uuid;

use crate::register::{REGISTER_BYTES, StoredRegister};
use crate::{Header, LABEL_BYTES, Label, examine, foreign, journal, md, pool};

/// Decodes the bytes as a label, as a disk's two copies, and as a small disk.
///
/// # Panics
/// When an accepted label does not encode to the same bytes.
pub fn fuzz_label(data: &[u8]) {
    let _ = Header::decode(data);
    if let Ok(label) = Label::decode(data) {
        let again = label.encode().expect("a decoded label can be encoded");
        assert_eq!(again.as_slice(), &data[..LABEL_BYTES]);
        let _ = label.array.geometry();
    }
    let (start, end) = data.split_at(data.len().min(LABEL_BYTES));
    let _ = examine(start, end, data.len() as u64);
    let copy = examine::recorded_copy_offset(start, data.len() as u64);
    assert!(copy.is_none_or(|at| at + LABEL_BYTES as u64 <= data.len() as u64));
    fuzz_disk(data);
}

/// Looks for signatures on a disk with these bytes.
pub fn fuzz_disk(data: &[u8]) {
    let read = |offset: u64, len: usize| {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
        Ok::<_, Infallible>(data[from..data.len().min(from.saturating_add(len))].to_vec())
    };
    for device_bytes in [data.len() as u64, 1 << 30, u64::MAX] {
        if let Ok(Some(found)) = foreign::identify(device_bytes, read) {
            let _ = found.to_string();
            let sound =
                found.signatures.iter().flat_map(|s| &s.ranges).all(|r| r.end().is_some_and(|e| e <= device_bytes));
            assert!(sound, "a signature is beyond the disk: {found:?}");
        }
    }
}

/// Decodes the bytes as a head and as a batch of a journal.
///
/// # Panics
/// When an accepted value is inconsistent or does not encode to the same bytes.
pub fn fuzz_journal(data: &[u8]) {
    let array = Uuid::from_bytes(*b"braid-fuzz-array");
    if let Some((block, payload)) = data.split_first_chunk()
        && let Some((header, entries)) = journal::decode_batch(&array, block)
    {
        let entries: Vec<journal::JournalEntry> = entries.collect();
        let mut again = [0; LABEL_BYTES];
        journal::encode_batch(&array, &header, &entries, &mut again);
        assert_eq!(&again, block);
        assert_eq!(entries.iter().map(journal::JournalEntry::payload_blocks).sum::<u32>() + 1, header.blocks);
        let _ = journal::payload_crc(0, payload);
        let mut found = journal::RecoveredBatches::new(header.run);
        assert_eq!(found.add(&header, journal::batch_crc(block), 0), Ok(()));
        let accepted = found.accepted();
        assert!(accepted.start == header.tail && accepted.end <= header.sequence + 1);
    }
    let mut bytes = [0; journal::HEAD_BYTES];
    let len = data.len().min(bytes.len());
    bytes[..len].copy_from_slice(&data[..len]);
    if let Some((head, lost)) = journal::decode_head(&array, &bytes) {
        let mut again = [0; journal::HEAD_BYTES];
        let used = journal::encode_head(&array, &head, &lost, &mut again);
        assert_eq!(again[..64 + 16 * lost.len()], bytes[..64 + 16 * lost.len()]);
        assert!(used <= again.len());
    }
}

/// Decodes the bytes as the label of a pool, and as a small disk.
///
/// # Panics
/// When an accepted label does not encode to the same bytes, or its layout exceeds the device.
pub fn fuzz_pool_label(data: &[u8]) {
    let header = pool::PoolHeader::decode(data);
    if let Ok(label) = pool::PoolLabel::decode(data) {
        let again = label.encode().expect("a decoded label can be encoded");
        assert_eq!(again.as_slice(), &data[..LABEL_BYTES]);
        assert_eq!(header, Some(label.header()));
        let places = &label.layout;
        let last = places.extents - 1;
        assert!(places.extent_start(last) + pool::EXTENT_BYTES <= places.device_bytes);
        assert!(places.record_start(places.records()) <= places.device_bytes);
        assert!(label.own().is_some() && label.fits(places.device_bytes).is_ok());
    }
    let (start, end) = data.split_at(data.len().min(LABEL_BYTES));
    let _ = examine::examine_pool(start, end, data.len() as u64);
    fuzz_disk(data);
}

/// The member for which [`fuzz_pool`] decodes the bytes.
pub const POOL_MEMBER: u8 = 3;
/// The record and the owner's slot for which [`fuzz_pool`] decodes the bytes.
pub const POOL_INDEX: u32 = 1000;

/// Decodes the bytes as each structure of a pool: record, address, owner, entry, batch, checkpoint.
///
/// # Panics
/// When an accepted value is inconsistent or does not encode to the same bytes.
pub fn fuzz_pool(data: &[u8]) {
    if let Some(bytes) = data.first_chunk()
        && let Ok(record) = pool::Record::decode(bytes, POOL_MEMBER, POOL_INDEX)
    {
        assert_eq!(record.encode(POOL_MEMBER, POOL_INDEX), *bytes);
    }
    if let Some(bytes) = data.first_chunk() {
        let word = u64::from_le_bytes(*bytes);
        if let Ok(Some(block)) = pool::decode_address(word, POOL_MEMBER, POOL_INDEX, 5, 9) {
            assert_eq!(pool::encode_address(POOL_MEMBER, POOL_INDEX, 5, block, 9), word);
        }
    }
    if let Some(bytes) = data.first_chunk()
        && let Ok(Some(owner)) = pool::Owner::decode(bytes, POOL_INDEX)
    {
        assert_eq!(owner.encode(POOL_INDEX), *bytes);
    }
    let mut units = [[0; pool::UNIT_WORDS]; pool::ENTRY_UNITS_MAX];
    let (whole, _) = data.as_chunks();
    let count = whole.len().min(units.len());
    units.iter_mut().zip(whole).for_each(|(unit, bytes)| *unit = pool::to_words(bytes));
    let read = pool::LogEntry::decode_bytes(data);
    if let Ok((entry, taken)) = &read {
        let mut again = [0; pool::ENTRY_UNITS_MAX * pool::UNIT_BYTES];
        entry.encode_bytes(&mut again);
        assert_eq!(again[..taken * pool::UNIT_BYTES], data[..taken * pool::UNIT_BYTES]);
    }
    // Words and bytes decode alike.
    assert_eq!(pool::LogEntry::decode(&units[..count]), pool::LogEntry::decode_bytes(whole[..count].as_flattened()));
    if let Ok(header) = pool::validate_batch(data) {
        let entries: Result<Vec<pool::LogEntry>, _> = pool::batch_entries(data, &header).collect();
        let mut again = vec![0xff; header.bytes()];
        if let Ok(entries) = entries {
            let mut composer = pool::BatchBuilder::new(&mut again);
            assert!(entries.iter().all(|entry| composer.push(entry)), "there is room for the same entries");
            assert_eq!(composer.seal(header), header);
            assert_eq!(again, data[..header.bytes()]);
        }
    }
    if let Some(bytes) = data.first_chunk()
        && let Ok(start) = pool::Checkpoint::decode(bytes)
    {
        assert_eq!(start.encode(), *bytes);
    }
}

/// Decodes the bytes as the two slots of a voter's register.
///
/// # Panics
/// When an accepted register does not encode to the same bytes, or the newest register is neither of the two.
pub fn fuzz_register(data: &[u8]) {
    let Some((first, rest)) = data.split_first_chunk::<REGISTER_BYTES>() else { return };
    let read = StoredRegister::decode(first);
    if let Ok(register) = read {
        assert_eq!(register.encode(), *first);
    }
    let mut second = [0; REGISTER_BYTES];
    let len = rest.len().min(REGISTER_BYTES);
    second[..len].copy_from_slice(&rest[..len]);
    let other = StoredRegister::decode(&second);
    let newest = StoredRegister::newest([first, &second]);
    assert_eq!(newest.is_ok(), read.is_ok() || other.is_ok());
    if let Ok(newest) = newest {
        assert!([read, other].iter().flatten().any(|one| *one == newest));
        assert!([read, other].iter().flatten().all(|one| one.generation <= newest.generation));
    }
}

/// Decodes each 4 KiB as a superblock of Linux md, at the offset that it records, and assembles those of each array.
///
/// # Panics
/// When the first or last byte of a readable array is outside the members that are used.
pub fn fuzz_md(data: &[u8]) {
    let recorded =
        |bytes: &[u8]| bytes.get(144..152).map_or(0, |at| at.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b)));
    let found = data.chunks(md::SUPERBLOCK_BYTES).filter_map(|bytes| {
        let at = recorded(bytes).saturating_mul(512);
        let superblock = md::Superblock::decode(bytes, 2, at, u64::MAX).ok()?;
        if let Some(log) = superblock.bad_blocks {
            let _ = log.read(data);
        }
        Some(superblock)
    });
    let found: Vec<md::Superblock> = found.collect();
    for group in md::groups(&found).values() {
        let devices: Vec<md::Superblock> = group.iter().map(|index| found[*index].clone()).collect();
        for (force, layout) in [(false, None), (true, None), (true, Some(braid_geometry::Layout::Alternate))] {
            let array = md::assemble(&devices, md::AssembleOptions { force, layout });
            array.problems.iter().for_each(|problem| assert!(!problem.text(&|at| at.to_string()).is_empty()));
            let Some(geometry) = array.geometry.filter(|_| array.problems.is_empty()) else { continue };
            for offset in [0, geometry.size_bytes() / 2, geometry.size_bytes() - 1] {
                let piece = geometry.locate(offset);
                let slot = array.slots[usize::from(piece.member)];
                let room = slot.device.map_or(u64::MAX, |device| devices[device].data_bytes);
                assert!(!slot.used || piece.member_offset < room, "{offset} is beyond its member");
            }
        }
    }
}
