//! Orphans: block devices and mounts of files that no export claims.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/orphans`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveOrphans {
    /// Only list them.
    #[serde(default)]
    pub dry_run: bool,
}

/// A block device of Braid, or a mount of a file, that belongs to no export of this daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orphan {
    /// Path of the device or of the file.
    pub device: String,
    /// Its size, in bytes; absent if users cannot see it.
    pub size_bytes: Option<u64>,
    /// Whether it was removed.
    pub removed: bool,
    /// Why it was not removed although requested.
    pub reason: Option<String>,
}

/// The response to [`RemoveOrphans`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrphanList {
    /// The devices, by number, then the files.
    pub orphans: Vec<Orphan>,
}
