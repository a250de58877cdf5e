//! Arrays of Linux md: describing them, and importing them read-only.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Array;

/// `POST /v1/import-md`: describe the arrays of Linux md on disks, and with a name serve one of them read-only.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"disks": ["/dev/sdb", "/dev/sdc"], "name": "old"}))]
pub struct ImportMd {
    /// Its members, named as on the command line with absolute paths, in any order.
    pub disks: Vec<String>,
    /// Serve it under this name; absent: only describe the arrays.
    #[serde(default)]
    pub name: Option<String>,
    /// Read outdated members where they are needed, and reconstruct data from parity that may be wrong.
    #[serde(default)]
    pub force: bool,
    /// The layout of a raid0 whose superblocks do not record it: `original` or `alternate`.
    #[serde(default)]
    pub layout: Option<String>,
}

/// The result of an import, or of a description.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MdImport {
    /// The arrays of md that the disks belong to.
    pub found: Vec<MdArray>,
    /// The array that is served now, where a name was given.
    #[serde(default)]
    pub array: Option<Array>,
}

/// An array of md, as its superblocks describe it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MdArray {
    /// Its identity.
    pub uuid: String,
    /// Its name; mdadm writes `host:name`.
    pub name: String,
    /// `linear`, `raid0`, …, as md calls it.
    pub level: String,
    /// Its layout, as mdadm calls it; empty where the level has only one, or none is recorded.
    pub layout: String,
    /// The chunk in bytes; 0: none.
    pub chunk_bytes: u64,
    /// Its size, in bytes; absent where that is not known.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// The version of its superblocks: `1.0`, `1.1` or `1.2`.
    pub metadata: String,
    /// The event count of the newest superblock.
    pub events: u64,
    /// When it was created, in seconds of Unix time.
    pub created_unix_s: u64,
    /// When it was last changed, in seconds of Unix time.
    pub updated_unix_s: u64,
    /// Whether it was stopped cleanly.
    pub clean: bool,
    /// Whether a member is not read, as it is missing or not in sync.
    pub degraded: bool,
    /// Whether it can be read as it is.
    pub readable: bool,
    /// Its members, by slot.
    pub members: Vec<MdMember>,
    /// Its disks that are not members: spares, and failed ones.
    pub others: Vec<String>,
    /// Why it cannot be read.
    pub problems: Vec<MdProblem>,
    /// Warnings about the data that are read, one sentence each.
    pub warnings: Vec<String>,
}

/// A member of an array of md.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MdMember {
    /// Its slot.
    pub slot: u16,
    /// Its disk; absent where it is missing.
    #[serde(default)]
    pub disk: Option<String>,
    /// `current`, `missing`, `stale` or `rebuilding`.
    pub state: String,
    /// Whether it is read.
    pub used: bool,
    /// The event count of its superblock.
    #[serde(default)]
    pub events: Option<u64>,
    /// Where its data begin on the disk, in bytes.
    #[serde(default)]
    pub data_offset_bytes: Option<u64>,
    /// Number of ranges that md has recorded as bad blocks: they are not read.
    #[serde(default)]
    pub bad_ranges: u64,
}

/// Why an array of md cannot be read.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MdProblem {
    /// The reason, in one sentence.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
    /// Whether `force` overrides it.
    pub can_be_forced: bool,
}
