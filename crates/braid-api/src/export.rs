//! Exports: how others see an array.

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
    /// Its array is not active; it appears when the array is.
    Waiting,
    /// Its address cannot be listened on; `reason` says why.
    Failed,
}

impl ExportState {
    /// The word that the API and the tables show.
    pub const fn word(self) -> &'static str {
        match self {
            ExportState::Listening => "listening",
            ExportState::Waiting => "waiting",
            ExportState::Failed => "failed",
        }
    }
}

/// One export.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// Its name, which NBD clients ask for.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// The array behind it.
    pub array: String,
    /// That array's identity.
    pub array_uuid: String,
    /// Where it listens: `unix:PATH` or `tcp:HOST:PORT`.
    pub nbd: String,
    /// The same as a URI for NBD clients.
    pub uri: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether it serves.
    pub state: ExportState,
    /// Why it does not.
    pub reason: Option<String>,
    /// Its size, in bytes; absent while it does not serve.
    pub size_bytes: Option<u64>,
    /// Clients connected now.
    pub connections: u32,
    /// What its clients have done; absent while it does not serve.
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
    /// The array, by name or UUID.
    pub array: String,
    /// Where to listen: `unix:PATH` (absolute) or `tcp:HOST:PORT`.
    pub nbd: String,
    /// The export's name; absent: the array's.
    #[serde(default)]
    pub name: Option<String>,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Listen on a TCP address that others can reach, unencrypted and to everybody.
    #[serde(default)]
    pub insecure: bool,
}

/// `POST /v1/exports/{export}/rename`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameExport {
    /// The new name, which NBD clients ask for from then on.
    pub name: String,
    /// Rename it although clients are connected: they are disconnected.
    #[serde(default)]
    pub force: bool,
}
