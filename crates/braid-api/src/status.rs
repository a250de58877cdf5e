//! The daemon as a whole.

use crate::{AttentionCode, Limits, Upgraded};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attention {
    /// What it is about, for programs and for `braid explain CODE`, which prints its runbook.
    #[serde(default)]
    pub code: AttentionCode,
    /// The object concerned: `array NAME`, `disk NAME`, `export NAME`, `daemon`.
    pub subject: String,
    /// What is wrong, in one sentence.
    pub message: String,
    /// The consequence for the user; empty if it is obvious.
    #[serde(default)]
    pub impact: String,
    /// What to do about it; empty if there is no advice.
    #[serde(default)]
    pub remedy: String,
    /// The commands of the remedy, in order; words in capitals are placeholders.
    #[serde(default)]
    pub commands: Vec<String>,
}

/// One shard: one core's share of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShardStatus {
    /// Its number, from 0.
    pub shard: u16,
    /// The driver of its I/O: `io_uring`, `libaio` or `threads`.
    pub driver: String,
    /// Whether its buffers are registered with the kernel.
    pub registered_buffers: bool,
    /// Whether its files are registered with the kernel.
    pub registered_files: bool,
    /// Why a faster driver or feature is not used; absent if there is none.
    pub note: Option<String>,
}

/// Counts of one kind of object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tally {
    /// All objects.
    pub total: u64,
    /// Objects that serve.
    pub serving: u64,
}

/// `GET /v1/status`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// How long it has been running, in milliseconds.
    pub uptime_ms: u64,
    /// Duration of its start, until everything that could be started was, in milliseconds; absent
    /// while it is starting.
    pub start_ms: Option<u64>,
    /// Whether it is still searching for disks after its start: objects on them may be missing from lists.
    #[serde(default)]
    pub starting: bool,
    /// The Unix socket of its API.
    pub socket: String,
    /// The URL of its API on the network; absent if it is not on the network.
    #[serde(default)]
    pub network: Option<String>,
    /// Its name as a node; absent if it belongs to no cluster.
    #[serde(default)]
    pub node: Option<String>,
    /// The directory of its state.
    pub state_directory: String,
    /// Its shards.
    pub shards: Vec<ShardStatus>,
    /// Arrays.
    pub arrays: Tally,
    /// Pools.
    #[serde(default)]
    pub pools: Tally,
    /// Exports.
    pub exports: Tally,
    /// Open disks.
    pub disks: Tally,
    /// Open connections of clients.
    pub connections: u64,
    /// Features of the kernel's ublk driver; absent if the driver is not loaded.
    #[serde(default)]
    pub ublk: Option<Vec<String>>,
    /// Its last upgrade; absent if there was none since it was started.
    #[serde(default)]
    pub upgrade: Option<Upgraded>,
    /// What needs attention; empty when all is well.
    pub attention: Vec<Attention>,
    /// The limits of this build.
    pub limits: Limits,
}
