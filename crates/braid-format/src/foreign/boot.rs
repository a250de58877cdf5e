//! Formats that begin with a boot sector: partition tables, and the file systems of DOS and Windows. All end their
//! first sector with 55 AA, so this module tells them apart.

use super::{SignatureClass, Sink, View, signature};
use crate::{BLOCK_BYTES, ByteRange};

const BOOT_MAGIC: u64 = 510;
const ENTRIES: [u64; 4] = [446, 462, 478, 494];
/// The partition type with which an MBR says that a GPT follows.
const PROTECTIVE: u8 = 0xee;

fn has_boot_magic(view: &View<'_>) -> bool {
    view.is(BOOT_MAGIC, &[0x55, 0xaa])
}

/// Returns the file system that begins with this boot sector, and the offset and length of the bytes that identify it.
fn boot_file_system(view: &View<'_>) -> Option<(&'static str, u64, usize)> {
    if !has_boot_magic(view) {
        return None;
    }
    // Microsoft: exFAT file system specification 3.1.2 FileSystemName; NTFS boot sector, OEM id.
    for (kind, oem) in [("exfat", b"EXFAT   "), ("ntfs", b"NTFS    ")] {
        if view.is(3, oem) {
            return Some((kind, 3, 8));
        }
    }
    // Microsoft: FAT32 File System Specification 1.03, BS_FilSysType at 54 (FAT12, FAT16) and 82 (FAT32).
    for (offset, text) in [(82, b"FAT32   "), (54, b"FAT16   "), (54, b"FAT12   "), (54, b"FAT     ")] {
        if view.is(offset, text) {
            return Some(("vfat", offset, 8));
        }
    }
    // Older FAT file systems have no such text. They are recognized if all fields of the BIOS parameter block are
    // valid.
    let byte = |offset| view.get::<1>(offset).map_or(0, |b| b[0]);
    let jump = byte(0) == 0xe9 || (byte(0) == 0xeb && byte(2) == 0x90);
    let sector = matches!(view.le16(11), 512 | 1024 | 2048 | 4096);
    let cluster = byte(13).is_power_of_two();
    let tables = matches!(byte(16), 1 | 2) && view.le16(14) >= 1;
    let media = byte(21) == 0xf0 || byte(21) >= 0xf8;
    (jump && sector && cluster && tables && media).then_some(("vfat", BOOT_MAGIC, 2))
}

pub(super) fn file_systems(view: &View<'_>, found: Sink<'_>) {
    let Some((kind, offset, len)) = boot_file_system(view) else { return };
    let mut this = signature(kind, SignatureClass::FileSystem, offset, len);
    if offset != BOOT_MAGIC {
        this.ranges.push(ByteRange::new(BOOT_MAGIC, 2));
    }
    if kind == "vfat" {
        // BS_VolLab is 11 bytes before the type.
        this.label = view.text(offset.saturating_sub(11), 11).filter(|l| offset != BOOT_MAGIC && l != "NO NAME");
    }
    found(this);
}

/// GPT and MBR.
pub(super) fn partitions(view: &View<'_>, found: Sink<'_>) {
    gpt(view, found);
    mbr(view, found);
}

/// UEFI Specification, "GUID Partition Table": header in the second sector (of 512 or 4096 bytes) and in the last.
fn gpt(view: &View<'_>, found: Sink<'_>) {
    let mut offsets = vec![512, BLOCK_BYTES];
    offsets.extend([512, BLOCK_BYTES].iter().filter_map(|sector| view.device_bytes.checked_sub(*sector)));
    offsets.dedup();
    let headers: Vec<u64> = offsets.into_iter().filter(|at| view.is(*at, b"EFI PART")).collect();
    let Some(first) = headers.first() else { return };
    let mut this = signature("gpt", SignatureClass::PartitionTable, *first, 8);
    this.ranges = headers.iter().map(|at| ByteRange::new(*at, 8)).collect();
    // DiskGUID at 56, in Microsoft's mixed byte order.
    this.uuid = view.get::<16>(first + 56).map(|bytes| uuid::Uuid::from_bytes_le(*bytes).to_string());
    if has_boot_magic(view) && entry_types(view).contains(&PROTECTIVE) {
        this.ranges.push(ByteRange::new(BOOT_MAGIC, 2));
    }
    this.ranges.sort_by_key(|r| r.start);
    this.ranges.dedup();
    found(this);
}

fn entry_types(view: &View<'_>) -> Vec<u8> {
    let types = ENTRIES.iter().filter_map(|entry| view.get::<16>(*entry)).map(|entry| entry[4]);
    types.filter(|kind| *kind != 0).collect()
}

/// The master boot record: four entries of 16 bytes from 446 (flag 0x00 or 0x80, type at 4, sectors at 12).
fn mbr(view: &View<'_>, found: Sink<'_>) {
    if !has_boot_magic(view) || boot_file_system(view).is_some() {
        return;
    }
    let flags_sound = ENTRIES.iter().all(|entry| view.get::<1>(*entry).is_some_and(|b| b[0] & 0x7f == 0));
    let types = entry_types(view);
    let used =
        ENTRIES.iter().any(|entry| view.get::<16>(*entry).is_some_and(|e| e[4] != 0 && view.le32(entry + 12) != 0));
    // An empty table counts if it has a disk signature.
    let empty_table = types.is_empty() && view.le32(440) != 0;
    if !flags_sound || types.contains(&PROTECTIVE) || !(used || empty_table) {
        return;
    }
    let mut this = signature("mbr", SignatureClass::PartitionTable, BOOT_MAGIC, 2);
    this.uuid = Some(format!("{:08x}", view.le32(440)));
    found(this);
}
