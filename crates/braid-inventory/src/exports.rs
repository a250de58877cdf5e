//! Exports that the daemon knows, the addresses that it listens on, and exports on standby: those of replicated volumes
//! that another node serves, or none.

use crate::state::SavedExport;
use braid_api::ErrorDetail;
use braid_export::{Export, ExportTable};
use std::sync::Arc;
use tokio::task::AbortHandle;

/// Whether an export serves.
pub enum ExportCondition {
    /// Clients can connect.
    Listening(Arc<Export>),
    /// The exported object does not serve.
    Waiting,
    /// The address cannot be listened on; why.
    Failed(ErrorDetail),
}

/// An export that the daemon knows.
pub struct ExportEntry {
    /// Its saved settings.
    pub saved: SavedExport,
    /// Whether it serves.
    pub serving: ExportCondition,
}

/// An address that is listened on.
pub struct Listener {
    /// The exports that it offers.
    pub table: Arc<ExportTable>,
    /// Ends the accepting task, which owns the socket.
    pub task: AbortHandle,
}
