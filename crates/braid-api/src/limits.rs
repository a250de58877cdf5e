//! The constant limits of Braid; `braid status --limits` prints them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Most members of one array.
pub const ARRAY_MEMBERS_MAX: usize = 128;
/// Most arrays of one daemon.
pub const ARRAYS_MAX: usize = 1024;
/// Most pools of one daemon.
pub const POOLS_MAX: usize = 256;
/// Most volumes of one pool.
pub const VOLUMES_MAX: usize = 65_536;
/// Largest volume, in bytes (64 TiB).
pub const VOLUME_BYTES_MAX: u64 = 64 << 40;
/// Default logical block of a volume, in bytes. Data are stored in blocks of this size, and a volume's size is a multiple of it.
pub const VOLUME_BLOCK_BYTES: u32 = 4096;
/// Logical block of a volume that accepts requests for single sectors, in bytes.
pub const VOLUME_SECTOR_BYTES: u32 = 512;
/// Every logical block that a volume may have, in bytes.
pub const VOLUME_LOGICAL_BLOCKS: [u32; 2] = [VOLUME_SECTOR_BYTES, VOLUME_BLOCK_BYTES];
/// Most devices of one daemon: arrays, disks of pools, and exported volumes and snapshots.
pub const DEVICES_MAX: usize = 4096;
/// Most exports of one daemon.
pub const EXPORTS_MAX: usize = 4096;
/// Most connections to one export.
pub const EXPORT_CONNECTIONS_MAX: usize = 64;
/// Most requests in flight on one connection; further ones wait.
pub const CONNECTION_REQUESTS_MAX: usize = 256;
/// Most queues of a block device.
pub const BLOCK_QUEUES_MAX: u16 = 4096;
/// Most requests of one queue of a block device at a time.
pub const BLOCK_QUEUE_DEPTH_MAX: u16 = 4096;
/// Most replicas and witnesses of one volume.
pub const REPLICAS_MAX: usize = 16;
/// Most replicated volumes that one node knows.
pub const REPLICATED_MAX: usize = 1024;
/// Longest request, in bytes.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// Time limit of an I/O to a local disk, in milliseconds.
pub const DISK_TIMEOUT_MS: u64 = 30_000;
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 63;
/// Largest chunk, in bytes.
pub const CHUNK_BYTES_MAX: u64 = 64 << 20;
/// Smallest chunk, in bytes; every chunk is a multiple of it.
pub const CHUNK_BYTES_MIN: u64 = 4096;
/// Longest body of an API request, in bytes.
pub const API_BODY_BYTES_MAX: usize = 1 << 20;
/// Events that the daemon keeps in memory; the oldest are dropped first.
pub const EVENTS_MAX: usize = 1024;
/// Most clients that follow the events at a time.
pub const EVENT_FOLLOWERS_MAX: usize = 64;
/// Most clients of the API on the socket at a time; further ones wait.
pub const API_CLIENTS_MAX: usize = 128;
/// Most clients of the API over the network at a time, besides those on the socket; further ones wait.
pub const API_NETWORK_CLIENTS_MAX: usize = 128;
/// Shortest token of the API, in bytes: 32 hexadecimal digits hold 128 bits.
pub const API_TOKEN_BYTES_MIN: usize = 32;
/// Longest token of the API, in bytes.
pub const API_TOKEN_BYTES_MAX: usize = 1024;
/// Most tokens in one file.
pub const API_TOKENS_MAX: usize = 64;
/// Time limit for the arrival of an API request, for its head and its body each, in milliseconds.
pub const API_REQUEST_TIMEOUT_MS: u64 = 10_000;
/// Most networks from which one export allows clients.
pub const EXPORT_NETWORKS_MAX: usize = 64;
/// Most nodes of one cluster.
pub const NODES_MAX: usize = 64;
/// Most invitations to a cluster at a time.
pub const INVITATIONS_MAX: usize = 64;
/// Most addresses that exports listen on.
pub const LISTENERS_MAX: usize = 4096;

/// The limits as the API shows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Most members of one array.
    pub array_members_max: u64,
    /// Most arrays of one daemon.
    pub arrays_max: u64,
    /// Most pools of one daemon.
    #[serde(default)]
    pub pools_max: u64,
    /// Most volumes of one pool.
    #[serde(default)]
    pub volumes_max: u64,
    /// Largest volume, in bytes.
    #[serde(default)]
    pub volume_bytes_max: u64,
    /// Most exports of one daemon.
    pub exports_max: u64,
    /// Most connections to one export.
    pub export_connections_max: u64,
    /// Most requests in flight on one connection; further ones wait.
    pub connection_requests_max: u64,
    /// Longest request, in bytes.
    pub request_bytes_max: u64,
    /// Time limit of an I/O to a local disk, in milliseconds.
    pub disk_timeout_ms: u64,
    /// Longest name, in bytes.
    pub name_bytes_max: u64,
    /// Smallest chunk, in bytes; every chunk is a multiple of it.
    pub chunk_bytes_min: u64,
    /// Largest chunk, in bytes.
    pub chunk_bytes_max: u64,
    /// Longest body of an API request, in bytes.
    pub api_body_bytes_max: u64,
    /// Most clients of the API on the socket at a time; further ones wait.
    pub api_clients_max: u64,
    /// Most clients of the API over the network at a time; further ones wait.
    pub api_network_clients_max: u64,
    /// Most tokens in one file.
    pub api_tokens_max: u64,
    /// Time limit for the arrival of an API request, for its head and its body each, in milliseconds.
    pub api_request_timeout_ms: u64,
    /// Events that the daemon keeps in memory.
    pub events_max: u64,
    /// Most clients that follow the events at a time.
    pub event_followers_max: u64,
}

impl Limits {
    /// Returns the limits of this build.
    pub const fn current() -> Limits {
        Limits {
            array_members_max: ARRAY_MEMBERS_MAX as u64,
            arrays_max: ARRAYS_MAX as u64,
            pools_max: POOLS_MAX as u64,
            volumes_max: VOLUMES_MAX as u64,
            volume_bytes_max: VOLUME_BYTES_MAX,
            exports_max: EXPORTS_MAX as u64,
            export_connections_max: EXPORT_CONNECTIONS_MAX as u64,
            connection_requests_max: CONNECTION_REQUESTS_MAX as u64,
            request_bytes_max: REQUEST_BYTES_MAX,
            disk_timeout_ms: DISK_TIMEOUT_MS,
            name_bytes_max: NAME_BYTES_MAX as u64,
            chunk_bytes_min: CHUNK_BYTES_MIN,
            chunk_bytes_max: CHUNK_BYTES_MAX,
            api_body_bytes_max: API_BODY_BYTES_MAX as u64,
            api_clients_max: API_CLIENTS_MAX as u64,
            api_network_clients_max: API_NETWORK_CLIENTS_MAX as u64,
            api_tokens_max: API_TOKENS_MAX as u64,
            api_request_timeout_ms: API_REQUEST_TIMEOUT_MS,
            events_max: EVENTS_MAX as u64,
            event_followers_max: EVENT_FOLLOWERS_MAX as u64,
        }
    }
}
