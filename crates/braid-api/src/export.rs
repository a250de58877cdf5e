//! Exports: how hosts and clients use arrays, volumes and snapshots.

use crate::ExportStats;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether an export serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExportState {
    /// Clients can connect.
    Listening,
    /// Its array or pool is not active; it listens when that is.
    Waiting,
    /// Its volume is replicated, and this node does not serve it; it listens when this node does (`braid volume attach`).
    Standby,
    /// It cannot listen on its address; `reason` says why.
    Failed,
}

impl ExportState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            ExportState::Listening => "listening",
            ExportState::Waiting => "waiting",
            ExportState::Standby => "standby",
            ExportState::Failed => "failed",
        }
    }
}

/// Whether an export offers TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExportTls {
    /// Without TLS only.
    #[default]
    Off,
    /// With or without TLS, at the client's choice.
    Optional,
    /// With TLS only.
    Required,
}

impl ExportTls {
    /// Every mode.
    pub const ALL: [ExportTls; 3] = [ExportTls::Off, ExportTls::Optional, ExportTls::Required];

    /// The word that the API, the configuration and the command line use.
    pub const fn word(self) -> &'static str {
        match self {
            ExportTls::Off => "off",
            ExportTls::Optional => "optional",
            ExportTls::Required => "required",
        }
    }

    /// Reads a mode from its word.
    ///
    /// # Errors
    /// The reason, with the words that are right.
    pub fn parse(text: &str) -> Result<ExportTls, String> {
        ExportTls::ALL
            .into_iter()
            .find(|mode| mode.word() == text)
            .ok_or_else(|| "it is off, optional or required".to_owned())
    }
}

/// One export.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// Its name, which NBD clients request.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// The exported array; or the volume or snapshot, as in `tank/db` and `tank/db@monday`.
    pub array: String,
    /// Identity of the exported array, volume or snapshot.
    pub array_uuid: String,
    /// Its address: `unix:PATH` or `tcp:HOST:PORT` over NBD, `fuse:PATH` as a file, `ublk:PATH,queues=N,depth=N` as a block
    /// device.
    pub nbd: String,
    /// Its address as a URI for NBD clients; of a file `file://PATH`, of a block device its path.
    pub uri: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether it serves.
    pub state: ExportState,
    /// Why it does not.
    pub reason: Option<String>,
    /// Its size, in bytes; absent while it does not serve.
    pub size_bytes: Option<u64>,
    /// Open connections of clients.
    pub connections: u32,
    /// Most connections at a time.
    #[serde(default)]
    pub connections_max: u32,
    /// Whether it offers TLS.
    #[serde(default)]
    pub tls: ExportTls,
    /// Networks from which clients may connect; empty: all.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Most requests per second, over all connections; absent: no limit.
    #[serde(default)]
    pub iops_max: Option<u64>,
    /// Most bytes per second, read and written, over all connections; absent: no limit.
    #[serde(default)]
    pub bandwidth_bytes_max: Option<u64>,
    /// Counters of its clients' requests; absent while it does not serve.
    #[serde(default)]
    pub stats: Option<ExportStats>,
}

/// Every export of the daemon.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ExportList {
    /// The exports, by name.
    pub exports: Vec<Export>,
}

/// `POST /v1/exports`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddExport {
    /// The array, by name or UUID; or a volume or snapshot, as in `tank/db` and `tank/db@monday`.
    pub array: String,
    /// Its address: `unix:PATH` (absolute) or `tcp:HOST:PORT` to listen on; `fuse:PATH` (absolute) for a file there; or `ublk:`,
    /// optionally with `,queues=N` and `,depth=N`, for the block device `/dev/braid/NAME`.
    pub nbd: String,
    /// The export's name; absent: the name of the exported array, volume or snapshot.
    #[serde(default)]
    pub name: Option<String>,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Accept a TCP address that other machines can reach, unencrypted and for all clients.
    #[serde(default)]
    pub insecure: bool,
    /// Let clients write to a volume that is a member of an array which does not serve.
    #[serde(default)]
    pub force: bool,
    /// Whether it offers TLS; absent: as configured in the daemon for TCP, `off` on a Unix socket.
    #[serde(default)]
    pub tls: Option<ExportTls>,
    /// Networks from which clients may connect, such as `10.0.0.0/8`; absent or empty: all.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Most connections at a time; absent: 64.
    #[serde(default)]
    pub connections_max: Option<u32>,
    /// Most requests per second, over all connections; absent or 0: no limit.
    #[serde(default)]
    pub iops_max: Option<u64>,
    /// Most bytes per second, over all connections; absent or 0: no limit.
    #[serde(default)]
    pub bandwidth_bytes_max: Option<u64>,
}

/// `PATCH /v1/exports/{export}`: absent fields stay unchanged.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetExport {
    /// Networks from which clients may connect; empty: all. Clients from other networks are disconnected.
    #[serde(default)]
    pub allow: Option<Vec<String>>,
    /// Most connections at a time. Open connections stay, even if they are more.
    #[serde(default)]
    pub connections_max: Option<u32>,
    /// Most requests per second; 0: no limit.
    #[serde(default)]
    pub iops_max: Option<u64>,
    /// Most bytes per second; 0: no limit.
    #[serde(default)]
    pub bandwidth_bytes_max: Option<u64>,
}

/// `POST /v1/exports/{export}/rename`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "faster"}))]
pub struct RenameExport {
    /// The new name, which NBD clients have to request from then on.
    pub name: String,
    /// Rename it even if clients are connected: they are disconnected.
    #[serde(default)]
    pub force: bool,
}
