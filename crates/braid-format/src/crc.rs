//! The two checksums of a label: of its first sector, and of all of it.
//!
//! Disks write a sector atomically. So after a power cut in the middle of a label write, the first sector alone still
//! identifies the label that was there or was being written.

use crate::{HEADER_BYTES, LABEL_BYTES};

const CRC_FIELD: std::ops::Range<usize> = 8..12;
const HEADER_CRC_FIELD: std::ops::Range<usize> = 508..512;

/// Returns the CRC-32C of the first `end` bytes, with the `crc` field as zeros.
fn crc_to(bytes: &[u8; LABEL_BYTES], end: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..CRC_FIELD.start]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[CRC_FIELD.end..end])
}

/// Returns what the header's CRC should be.
pub fn header_crc(bytes: &[u8; LABEL_BYTES]) -> u32 {
    crc_to(bytes, HEADER_CRC_FIELD.start)
}

/// Returns what the label's CRC should be.
pub fn label_crc(bytes: &[u8; LABEL_BYTES]) -> u32 {
    crc_to(bytes, LABEL_BYTES)
}

/// Stores both checksums in the label.
pub fn seal(bytes: &mut [u8; LABEL_BYTES]) {
    const _: () = assert!(HEADER_CRC_FIELD.end == HEADER_BYTES);
    let header = header_crc(bytes);
    bytes[HEADER_CRC_FIELD].copy_from_slice(&header.to_le_bytes());
    let label = label_crc(bytes);
    bytes[CRC_FIELD].copy_from_slice(&label.to_le_bytes());
}
