//! The mounted file systems in the mount namespace of this process.

use braid_api::{ErrorDetail, Kind};
use braid_ring::mounts;
pub use braid_ring::mounts::Mount;
use std::path::Path;

/// Returns the topmost mount at a mount point, if there is one.
///
/// # Errors
/// The mount table cannot be read.
pub fn mount_at(folder: &Path) -> Result<Option<Mount>, ErrorDetail> {
    Ok(all()?.into_iter().rev().find(|mount| mount.mount_point == folder))
}

/// Returns the mount that contains a directory.
///
/// # Errors
/// As [`mount_at`].
pub fn mount_containing(folder: &Path) -> Result<Option<Mount>, ErrorDetail> {
    let containing = all()?.into_iter().filter(|mount| folder.starts_with(&mount.mount_point));
    // Of several mounts at one mount point the topmost is the last, which `max_by_key` returns.
    Ok(containing.max_by_key(|mount| mount.mount_point.components().count()))
}

/// Returns whether a device is mounted anywhere.
///
/// # Errors
/// As [`mount_at`].
pub fn is_mounted(source: &Path) -> Result<bool, ErrorDetail> {
    Ok(all()?.iter().any(|mount| mount.source == source))
}

/// Returns all mounts, the latest last.
///
/// # Errors
/// As [`mount_at`].
pub fn all() -> Result<Vec<Mount>, ErrorDetail> {
    mounts::all().map_err(|error| ErrorDetail::new(Kind::Internal, format!("the mounts cannot be listed: {error}")))
}
