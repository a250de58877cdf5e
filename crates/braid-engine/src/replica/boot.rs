//! The boot of a replica's node, as one number.
//!
//! A different boot than before means that what was acknowledged and not flushed may be gone. One kind of boot means
//! more: the replica's content is an older copy of itself, which may lack anything, including what was flushed long
//! ago. The version of the UUID marks it, so that the mark is passed on wherever the boot is.

use braid_format::Uuid;

/// The UUID version that marks an older copy. No other boot has it.
const VERSION_OF_OLDER_COPY: u8 = 8;
/// The version that replaces it in a number that has it by chance.
const VERSION_RANDOM: u8 = 4;

fn with_version(boot: Uuid, version: u8) -> Uuid {
    let mut bytes = boot.into_bytes();
    bytes[6] = bytes[6] & 0x0f | version << 4;
    Uuid::from_bytes(bytes)
}

/// Returns this number as the boot of a replica that still has what it acknowledged and flushed.
pub fn boot_of_original(number: Uuid) -> Uuid {
    if is_of_older_copy(number) { with_version(number, VERSION_RANDOM) } else { number }
}

/// Returns this number as the boot of a replica that is an older copy of itself.
pub fn boot_of_older_copy(number: Uuid) -> Uuid {
    with_version(number, VERSION_OF_OLDER_COPY)
}

/// Returns whether a boot is that of an older copy. The replica counts as one until it has been rebuilt completely, and
/// votes that name this boot say that it is in sync.
pub fn is_of_older_copy(boot: Uuid) -> bool {
    boot.get_version_num() == usize::from(VERSION_OF_OLDER_COPY)
}
