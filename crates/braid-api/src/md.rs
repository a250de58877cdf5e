//! Arrays of Linux md: described, and imported to be read.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Array;

/// `POST /v1/import-md`: look at the members of an array of Linux md, and with a name serve it read-only.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"disks": ["/dev/sdb", "/dev/sdc"], "name": "old"}))]
pub struct ImportMd {
    /// Its members, named as on the command line with absolute paths, in any order.
    pub disks: Vec<String>,
    /// Serve it under this name; absent: only describe what is there.
    #[serde(default)]
    pub name: Option<String>,
    /// Read members that are old where it takes them, and compute from parity that may be wrong.
    #[serde(default)]
    pub force: bool,
    /// Of a raid0 that does not say which it has: `original` or `alternate`.
    #[serde(default)]
    pub layout: Option<String>,
}

/// What was found on the disks.
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
    /// As mdadm calls it; empty where the level has one only, or none is recorded.
    pub layout: String,
    /// The chunk in bytes; 0: none.
    pub chunk_bytes: u64,
    /// What can be read, in bytes; none where that is not known.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// The version of its superblocks: `1.0`, `1.1` or `1.2`.
    pub metadata: String,
    /// How often it has changed, by the newest superblock.
    pub events: u64,
    /// When it was created, in seconds of Unix time.
    pub created_unix_s: u64,
    /// When it was last changed, in seconds of Unix time.
    pub updated_unix_s: u64,
    /// It was stopped in order.
    pub clean: bool,
    /// A member is not read, as it is missing or does not hold what it should.
    pub degraded: bool,
    /// It can be read as it is.
    pub readable: bool,
    /// Its members, by role.
    pub members: Vec<MdMember>,
    /// Disks of it that are no members: spares, and what has failed.
    pub others: Vec<String>,
    /// Why it cannot be read.
    pub problems: Vec<MdProblem>,
    /// What has to be known about what is read, one sentence each.
    pub warnings: Vec<String>,
}

/// A member of an array of md.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MdMember {
    /// Its role.
    pub role: u16,
    /// The disk, where there is one.
    #[serde(default)]
    pub disk: Option<String>,
    /// `here`, `missing`, `old` or `filling`.
    pub state: String,
    /// It is read.
    pub used: bool,
    /// How often the array had changed when this was last part of it.
    #[serde(default)]
    pub events: Option<u64>,
    /// Where its data begin on the disk, in bytes.
    #[serde(default)]
    pub data_offset_bytes: Option<u64>,
    /// Ranges of the disk that md has noted as bad: they are not read.
    #[serde(default)]
    pub bad_ranges: u64,
}

/// Why an array of md cannot be read.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MdProblem {
    /// What it is.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
    /// Whether `force` overrides it.
    pub can_be_forced: bool,
}
