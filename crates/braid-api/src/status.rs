//! The daemon as a whole.

use crate::{Limits, Upgraded};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attention {
    /// What it is about: `array NAME`, `disk NAME`, `export NAME`, `daemon`.
    pub subject: String,
    /// What is the matter, in one sentence.
    pub message: String,
    /// What that means for the user; empty where it goes without saying.
    #[serde(default)]
    pub meaning: String,
    /// What to do about it; empty where nothing can be said.
    #[serde(default)]
    pub remedy: String,
    /// Commands to type, in this order; words in capitals are to be replaced.
    #[serde(default)]
    pub commands: Vec<String>,
}

/// One shard: one core's share of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShardStatus {
    /// Its number, from 0.
    pub shard: u16,
    /// Which driver does its I/O: `io_uring`, `libaio` or `threads`.
    pub driver: String,
    /// Whether its buffers are registered with the kernel.
    pub registered_buffers: bool,
    /// Whether its files are registered with the kernel.
    pub registered_files: bool,
    /// Why something better is not used; absent where nothing is better.
    pub note: Option<String>,
}

/// How many there are of something, and how many of those are well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tally {
    /// All of them.
    pub total: u64,
    /// Those that serve.
    pub serving: u64,
}

/// `GET /v1/status`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// How long it has been running, in milliseconds.
    pub uptime_ms: u64,
    /// How long it took from its start until everything that could be started was, in milliseconds;
    /// absent while it is still at it.
    pub start_ms: Option<u64>,
    /// Whether it still looks for disks after its start: objects on them may be missing from lists.
    #[serde(default)]
    pub starting: bool,
    /// The socket of its API.
    pub socket: String,
    /// Where its API is on the network, as a URL; absent where it is not.
    #[serde(default)]
    pub network: Option<String>,
    /// The name of the node that it is; absent where it belongs to no cluster.
    #[serde(default)]
    pub node: Option<String>,
    /// The folder of its state.
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
    /// Clients connected now.
    pub connections: u64,
    /// What the kernel's ublk driver can do, in its words; absent where that is not there.
    #[serde(default)]
    pub ublk: Option<Vec<String>>,
    /// Its last upgrade; absent where it was started.
    #[serde(default)]
    pub upgrade: Option<Upgraded>,
    /// What needs attention; empty when all is well.
    pub attention: Vec<Attention>,
    /// The limits of this build.
    pub limits: Limits,
}
