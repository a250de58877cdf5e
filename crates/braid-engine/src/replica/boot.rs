//! Under which boot of its node a replica is, as one number.
//!
//! Another one than before says that what was acknowledged and not flushed may be gone. One kind says more: that what the replica has
//! is an older copy of itself, which may lack anything, also what was flushed long ago. It is told by the version of the UUID, so that it
//! goes wherever a boot goes.

use braid_format::Uuid;

/// The version that tells it: nothing else bears it.
const OF_OLDER_COPY: u8 = 8;
/// What is put in its place where a number happens to bear it.
const OF_ANY: u8 = 4;

fn with_version(boot: Uuid, version: u8) -> Uuid {
    let mut bytes = boot.into_bytes();
    bytes[6] = bytes[6] & 0x0f | version << 4;
    Uuid::from_bytes(bytes)
}

/// This number as the boot of a replica that has what it answered, flushed at least.
pub fn boot_of_original(number: Uuid) -> Uuid {
    if is_of_older_copy(number) { with_version(number, OF_ANY) } else { number }
}

/// The same of one that is an older copy of itself.
pub fn boot_of_older_copy(number: Uuid) -> Uuid {
    with_version(number, OF_OLDER_COPY)
}

/// Whether a boot is that of an older copy. It is so until it was filled wholly, and is in sync by votes that name this boot.
pub fn is_of_older_copy(boot: Uuid) -> bool {
    boot.get_version_num() == usize::from(OF_OLDER_COPY)
}
