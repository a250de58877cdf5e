//! The check of a pool's tables.

use crate::{ErrorDetail, Kind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/pools/{pool}/check`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"repair": true}))]
pub struct CheckPool {
    /// Rewrite damaged table entries whose content the pool knows.
    #[serde(default)]
    pub repair: bool,
    /// Give up damaged entries whose content the pool does not know, and the data of members that were given up: their space becomes
    /// free, and what was there is lost. Refused while one of these entries can be read now (`misread`).
    #[serde(default)]
    pub give_up: bool,
}

/// A damaged or misread entry of a pool's tables.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolDamage {
    /// Number of the member.
    pub member: u8,
    /// Its kind: `record`, `addresses`, `owner`, `checkpoint`.
    pub what: String,
    /// Its index in the member's table of this kind.
    pub index: u32,
    /// Whether the pool knows its content: then no volume is affected, and `repair` rewrites it.
    pub known: bool,
    /// Whether it is valid on the disk now: the pool misread it when it was opened, and recovers it when the daemon restarts.
    pub reads: bool,
    /// The volume or snapshot that it belongs to, if that is certain.
    pub name: Option<String>,
    /// Unreliable: the volume or snapshot that the damaged bytes name.
    pub hint: Option<String>,
}

/// The result of a check of a pool's tables.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolChecked {
    /// The pool.
    pub pool: String,
    /// Records of free extents.
    pub free_records: u64,
    /// Records of whole extents: neighbouring blocks of a volume.
    pub whole_records: u64,
    /// Records of packed extents: scattered blocks of a volume.
    pub packed_records: u64,
    /// Records of ranges that read as zeros.
    pub zero_records: u64,
    /// Volumes, snapshots, and deleted ones that are not removed yet.
    pub owners: u64,
    /// Number of entries that are damaged on the members now.
    pub damaged: u64,
    /// The first of these entries, and of the misread ones.
    pub damage: Vec<PoolDamage>,
    /// Number of entries that were invalid when the pool was opened: it does not know their content.
    pub unknown: u64,
    /// How many of these are valid on the members now: they were only misread, and are recovered when the daemon restarts. Nothing
    /// can be given up before that.
    pub misread: u64,
    /// Volumes and snapshots that may have had data in entries of unknown content: they are read-only.
    pub in_doubt: Vec<String>,
    /// Numbers of missing members that may return: their tables were not read.
    pub members_missing: Vec<u8>,
    /// Volumes and snapshots that may have data on these members: they are read-only until these return.
    pub in_doubt_missing: Vec<String>,
    /// Number of inconsistencies in the metadata that the pool knows.
    pub problems_found: u64,
    /// The first of these, one sentence each.
    pub problems: Vec<String>,
    /// Number of damaged entries that were rewritten.
    pub repaired: u64,
    /// Number of entries of unknown content that were given up.
    pub given_up: u64,
    /// Numbers of members that were given up and whose data are still in doubt.
    pub members_lost: Vec<u8>,
    /// Numbers of members whose data this check gave up.
    pub members_given_up: Vec<u8>,
}

impl PoolChecked {
    /// Returns the refusal to give up entries of a pool while `misread` of them can be read.
    #[must_use]
    pub fn refuse_give_up(pool: &str, misread: u64) -> ErrorDetail {
        let what = match misread {
            1 => "1 record of the tables".to_owned(),
            _ => format!("{misread} records of the tables"),
        };
        let message = format!(
            "{what} of pool {pool} could not be believed when the pool was opened, and can be read now: to give up would write over what is good"
        );
        ErrorDetail::new(Kind::InUse, message).with("pool", pool).remedy(format!(
            "restart the daemon: it opens the pool anew, and takes back what can be read; then: braid pool check {pool}"
        ))
    }

    /// Whether entries are damaged or unknown, or the metadata are inconsistent.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged != 0 || self.problems_found != 0 || self.unknown != 0
    }

    /// Whether the tables of all members were read, and everything in them is certain.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.in_doubt.is_empty()
            && self.in_doubt_missing.is_empty()
            && self.members_missing.is_empty()
            && self.members_lost.is_empty()
    }
}
