//! Upgrades: the daemon executes another build of itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/upgrade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// The program to execute, as a path on the daemon's machine.
    pub binary: String,
}

/// The response to an upgrade request: the program was checked, and the daemon begins the hand-over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upgrading {
    /// The process id, which stays the same.
    pub pid: u32,
    /// Number of this upgrade of the process, from 1.
    pub number: u64,
    /// The old version.
    pub from: String,
    /// The new version.
    pub to: String,
}

/// The last upgrade of a daemon: part of its status, and the result of `braid serve --upgrade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upgraded {
    /// Number of this upgrade of the process, from 1.
    pub number: u64,
    /// The old version.
    pub from: String,
    /// The version that continued.
    pub to: String,
    /// Duration from the first export that was paused until everything served again, in milliseconds; absent while the upgrade
    /// is in progress.
    pub pause_ms: Option<u64>,
    /// Why the new program did not start, so that the old one continued; absent if it did.
    #[serde(default)]
    pub failed: Option<String>,
}
