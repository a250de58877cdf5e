//! Block devices that no export claims.

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

/// A block device of Braid's, or the mount of a file, that is of no export of this daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orphan {
    /// The device, or where the file is.
    pub device: String,
    /// Its size, in bytes; absent where its users see none.
    pub size_bytes: Option<u64>,
    /// Whether it was removed.
    pub removed: bool,
    /// Why it was not, if it was to be.
    pub reason: Option<String>,
}

/// The answer to [`RemoveOrphans`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrphanList {
    /// The devices, by number, then the files.
    pub orphans: Vec<Orphan>,
}
