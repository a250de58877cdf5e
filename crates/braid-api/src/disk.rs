//! Disks: those of the machine, and those that the daemon has open.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Counters and latency of one open disk, since the daemon opened it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskStats {
    /// Reads done.
    pub reads: u64,
    /// Writes, zeroings and discards done.
    pub writes: u64,
    /// Flushes done.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// I/Os that ended with an error, or not within the time limit.
    pub errors: u64,
    /// Those of them that did not end within the time limit.
    pub timeouts: u64,
    /// I/Os that the disk has not answered yet.
    pub in_flight: u64,
    /// Half of the I/Os took no longer than this. As the others, the upper bound of a bucket of the histogram: too large by
    /// at most a quarter.
    pub latency_ns_p50: u64,
    /// 99 of 100 I/Os took no longer than this.
    pub latency_ns_p99: u64,
    /// No I/O took longer than this.
    pub latency_ns_max: u64,
}

/// How an open disk does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DiskState {
    /// It answers.
    Ok,
    /// It gave errors.
    Failing,
    /// It has not answered for longer than it should.
    Hanging,
    /// It is not there any more.
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
    /// Its role there, or its number.
    pub role: u16,
    /// How it does.
    pub state: DiskState,
    /// The latest trouble, in one sentence.
    pub trouble: Option<String>,
    /// Whether what is written stays after the daemon ends; not with `mem` and `null`.
    pub kept: bool,
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
    /// What is on it, or nothing where it looks empty; absent where it could not be read.
    pub content: Option<String>,
    /// Who uses it: mount points, holders, swap, Braid.
    pub used_by: Vec<String>,
    /// Whether Braid may take it as it is.
    pub usable: bool,
    /// Why not.
    pub reason: Option<String>,
}

/// The disks of the machine.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HostDiskList {
    /// The disks, by path.
    pub disks: Vec<HostDisk>,
}
