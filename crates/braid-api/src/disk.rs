//! Disks: those of the machine, and those that the daemon has open.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Counters and latency of one open disk, since the daemon opened it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskStats {
    /// Completed reads.
    pub reads: u64,
    /// Completed writes, zeroings and discards.
    pub writes: u64,
    /// Completed flushes.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// I/Os that failed or exceeded the time limit.
    pub errors: u64,
    /// I/Os that exceeded the time limit.
    pub timeouts: u64,
    /// I/Os that the disk has not completed yet.
    pub in_flight: u64,
    /// 50th percentile of the latency. Latencies are upper bounds of histogram buckets, too large by at most a quarter.
    pub latency_ns_p50: u64,
    /// 99th percentile of the latency.
    pub latency_ns_p99: u64,
    /// Maximum of the latency.
    pub latency_ns_max: u64,
}

/// The state of an open disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DiskState {
    /// It works.
    Ok,
    /// It returns errors.
    Failing,
    /// It has not completed an I/O for longer than it should take.
    Hanging,
    /// It has disappeared.
    Gone,
}

impl DiskState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            DiskState::Ok => "ok",
            DiskState::Failing => "failing",
            DiskState::Hanging => "hanging",
            DiskState::Gone => "gone",
        }
    }
}

/// A disk that the daemon has open.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// Its name, as on the command line.
    pub name: String,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Smallest unit of reads and writes, in bytes.
    pub logical_block_bytes: u32,
    /// The array, or the pool, that it is a member of.
    pub array: String,
    /// Its slot in the array, or its member number in the pool.
    pub slot: u16,
    /// Its state.
    pub state: DiskState,
    /// The latest fault, in one sentence.
    pub fault: Option<String>,
    /// Whether its data survive the end of the daemon; false for `mem` and `null`.
    pub persistent: bool,
    /// Its counters.
    pub stats: DiskStats,
}

/// Every disk that the daemon has open.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskList {
    /// The disks, by name.
    pub disks: Vec<Disk>,
}

/// A disk, partition or loop device of the machine, as `braid disk list` shows it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HostDisk {
    /// Its device file.
    pub path: String,
    /// `disk`, `partition` or `loop`.
    pub kind: String,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Smallest unit of reads and writes, in bytes.
    pub logical_block_bytes: u32,
    /// Model, as the kernel knows it.
    pub model: Option<String>,
    /// Serial number, as the kernel knows it.
    pub serial: Option<String>,
    /// Whether it has rotating platters.
    pub rotational: bool,
    /// Whether the kernel refuses writes to it.
    pub read_only: bool,
    /// What is on it; empty where it looks empty, absent where it could not be read.
    pub content: Option<String>,
    /// Its users: mount points, holders, swap, Braid.
    pub used_by: Vec<String>,
    /// Whether Braid may use it as it is.
    pub usable: bool,
    /// Why it may not.
    pub reason: Option<String>,
}

/// The disks of the machine.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HostDiskList {
    /// The disks, by path.
    pub disks: Vec<HostDisk>,
}
