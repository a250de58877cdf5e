//! Sizes of volumes and of their logical blocks: validated.

use braid_api::limits::{VOLUME_BLOCK_BYTES, VOLUME_BYTES_MAX, VOLUME_LOGICAL_BLOCKS, VOLUME_SECTOR_BYTES};
use braid_api::{ErrorDetail, Kind};
use braid_engine::DeviceLayout;
use braid_engine::pool::BLOCK_BYTES;
use braid_format::pool::Owner;

// The API's sizes equal the engine's.
const _: () = assert!(VOLUME_BLOCK_BYTES as u64 == BLOCK_BYTES && VOLUME_SECTOR_BYTES == DeviceLayout::SECTOR_BYTES);

/// Validates the size of a volume.
pub(crate) fn check_size(volume: &str, size_bytes: u64) -> Result<(), ErrorDetail> {
    let refused = |why: String, remedy: &str| {
        Err(ErrorDetail::new(Kind::InvalidArgument, format!("volume {volume}: {why}"))
            .with("volume", volume)
            .remedy(remedy))
    };
    if size_bytes == 0 || size_bytes > VOLUME_BYTES_MAX {
        return refused(
            format!("its size would be {size_bytes} bytes; a volume has up to {VOLUME_BYTES_MAX}"),
            "for example 100G",
        );
    }
    if !size_bytes.is_multiple_of(BLOCK_BYTES) {
        return refused(format!("{size_bytes} bytes are no multiple of {BLOCK_BYTES}"), "choose another size");
    }
    Ok(())
}

/// Validates the logical block of a volume. Returns true if it is smaller than the blocks in which data are stored.
///
/// # Errors
/// [`Kind::InvalidArgument`]: volumes have no blocks of this size.
pub fn check_block(volume: &str, block_bytes: u32) -> Result<bool, ErrorDetail> {
    if VOLUME_LOGICAL_BLOCKS.contains(&block_bytes) {
        return Ok(block_bytes < VOLUME_BLOCK_BYTES);
    }
    let sizes = format!("{VOLUME_SECTOR_BYTES} or {VOLUME_BLOCK_BYTES}");
    let message = format!("volume {volume}: its blocks would have {block_bytes} bytes; a volume has blocks of {sizes}");
    Err(ErrorDetail::new(Kind::InvalidArgument, message).with("volume", volume).remedy(format!("choose {sizes}")))
}

/// Returns the logical block of a volume or snapshot, in bytes.
pub(crate) fn block_bytes_of(owner: &Owner) -> u32 {
    if owner.sectors_of_512 { VOLUME_SECTOR_BYTES } else { VOLUME_BLOCK_BYTES }
}
