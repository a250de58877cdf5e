//! What the API says of a pool whose tables were checked.

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
    /// Give up what nobody knows: its space is free then, and what stood there is lost. Also what members had that were given up.
    #[serde(default)]
    pub give_up: bool,
}

/// Something of a pool's tables that is damaged.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolDamage {
    /// Number of the member.
    pub member: u8,
    /// What it is: `record`, `addresses`, `owner`, `ring_start`.
    pub what: String,
    /// Which of these, by its place in the member's list.
    pub index: u32,
    /// Whether the pool knows what should stand there: then nobody is harmed, and `repair` writes it again.
    pub known: bool,
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
    /// The first of it.
    pub damage: Vec<PoolDamage>,
    /// Volumes and snapshots that may have had something in what nobody knows: they are read-only.
    pub in_doubt: Vec<String>,
    /// How much does not fit together of what the pool knows.
    pub problems_found: u64,
    /// The first of it, a sentence each.
    pub problems: Vec<String>,
    /// How much of what was damaged was written again.
    pub repaired: u64,
    /// How much of what nobody knew was given up.
    pub given_up: u64,
    /// Numbers of members that were given up and of which what they had is in doubt still.
    pub members_lost: Vec<u8>,
    /// Those of which that was given up now.
    pub members_given_up: Vec<u8>,
}
