//! The daemon becomes another build of itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/upgrade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// The program to become, as a path on the daemon's machine.
    pub binary: String,
}

/// The answer to that: it has been looked at, and the daemon begins to hand over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upgrading {
    /// The process, which stays the same.
    pub pid: u32,
    /// Which upgrade of this process it is, from 1.
    pub number: u64,
    /// The version that ends.
    pub from: String,
    /// The version that begins.
    pub to: String,
}

/// The last upgrade of a daemon: of its status, and of `braid serve --upgrade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upgraded {
    /// Which one of this process it was, from 1.
    pub number: u64,
    /// The version that handed over.
    pub from: String,
    /// The version that went on.
    pub to: String,
    /// How long it took from the first export that was put aside until everything served again, in milliseconds; absent while it is
    /// still at it.
    pub pause_ms: Option<u64>,
    /// Why the program that was wanted did not begin, so that the old one went on; absent where it did.
    #[serde(default)]
    pub failed: Option<String>,
}
