//! The label's two checksums: of its first sector, and of the whole.
//!
//! The first is there because a sector is never torn: after a power cut in the middle of writing a label, the
//! first sector still says whose label this was going to be.

use crate::{HEADER_BYTES, LABEL_BYTES};

const CRC_FIELD: std::ops::Range<usize> = 8..12;
const HEADER_CRC_FIELD: std::ops::Range<usize> = 508..512;

/// CRC-32C of the first `end` bytes with the `crc` field counted as zero.
fn crc_to(bytes: &[u8; LABEL_BYTES], end: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..CRC_FIELD.start]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[CRC_FIELD.end..end])
}

/// What the header's CRC ought to be.
pub fn header_crc(bytes: &[u8; LABEL_BYTES]) -> u32 {
    crc_to(bytes, HEADER_CRC_FIELD.start)
}

/// What the label's CRC ought to be.
pub fn label_crc(bytes: &[u8; LABEL_BYTES]) -> u32 {
    crc_to(bytes, LABEL_BYTES)
}

/// Puts both in.
pub fn seal(bytes: &mut [u8; LABEL_BYTES]) {
    const _: () = assert!(HEADER_CRC_FIELD.end == HEADER_BYTES);
    let header = header_crc(bytes);
    bytes[HEADER_CRC_FIELD].copy_from_slice(&header.to_le_bytes());
    let label = label_crc(bytes);
    bytes[CRC_FIELD].copy_from_slice(&label.to_le_bytes());
}
