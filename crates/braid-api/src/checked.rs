//! What the API says of a pool whose tables were checked.

use crate::{ErrorDetail, Kind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/pools/{pool}/check`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"repair": true}))]
pub struct CheckPool {
    /// Write again what the pool knows although its table is damaged.
    #[serde(default)]
    pub repair: bool,
    /// Give up what the pool does not know: its space is free then, and what stood there is lost. Also what members had that were given up. Refused
    /// while something of it reads now (`misread`).
    #[serde(default)]
    pub give_up: bool,
}

/// Something of a pool's tables that is damaged, or was misread.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolDamage {
    /// Number of the member.
    pub member: u8,
    /// What it is: `record`, `addresses`, `owner`, `ring_start`.
    pub what: String,
    /// Which of these, by its place in the member's list.
    pub index: u32,
    /// Whether the pool knows what should stand there: then no volume is harmed, and `repair` writes it again.
    pub known: bool,
    /// Whether it is in order on the disk now: the pool misread it when it was opened, and has it again when the daemon is started anew.
    pub reads: bool,
    /// The volume or snapshot that it is of, where that is certain.
    pub name: Option<String>,
    /// What the bytes say it was, which cannot be believed.
    pub hint: Option<String>,
}

/// What was found in the tables of a pool.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolChecked {
    /// The pool.
    pub pool: String,
    /// Records of extents: those that are free.
    pub free_records: u64,
    /// Those with neighbouring blocks of a volume.
    pub whole_records: u64,
    /// Those with scattered ones.
    pub packed_records: u64,
    /// Records of ranges that read as zeros.
    pub zero_records: u64,
    /// Volumes, snapshots, and what was deleted and is not gone.
    pub owners: u64,
    /// How much is damaged on the members now.
    pub damaged: u64,
    /// The first of it, and of what was misread.
    pub damage: Vec<PoolDamage>,
    /// How much the pool could not believe when it was opened: it does not know what stood there.
    pub unknown: u64,
    /// How much of that is in order on the members now: it was only misread, and is there again when the daemon is started anew. Nothing is
    /// given up before that.
    pub misread: u64,
    /// Volumes and snapshots that may have had something in what the pool does not know: they are read-only.
    pub in_doubt: Vec<String>,
    /// Numbers of members that are absent and may come back: their tables were not read.
    pub members_absent: Vec<u8>,
    /// Volumes and snapshots that may have something on these: they are read-only until those are back.
    pub in_doubt_absent: Vec<String>,
    /// How much does not fit together of what the pool knows.
    pub problems_found: u64,
    /// The first of it, a sentence each.
    pub problems: Vec<String>,
    /// How much of what was damaged was written again.
    pub repaired: u64,
    /// How much of what the pool did not know was given up.
    pub given_up: u64,
    /// Numbers of members that were given up and of which what they had is in doubt still.
    pub members_lost: Vec<u8>,
    /// Those of which that was given up now.
    pub members_given_up: Vec<u8>,
}

impl PoolChecked {
    /// Why nothing of a pool is given up while so much of it reads now.
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

    /// Whether something is damaged, or unknown.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged != 0 || self.problems_found != 0 || self.unknown != 0
    }

    /// Whether the tables of all members were read, and everything in them is certain.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.in_doubt.is_empty()
            && self.in_doubt_absent.is_empty()
            && self.members_absent.is_empty()
            && self.members_lost.is_empty()
    }
}
