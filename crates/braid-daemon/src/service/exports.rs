//! Operations on exports.

use crate::Daemon;
use braid_api::{AddExport, ErrorDetail, Export, ExportList, OrphanList, RenameExport, SetExport};
use braid_server::{ExportService, Reply};
use std::sync::Arc;

impl ExportService for Daemon {
    fn exports(&self) -> ExportList {
        self.exports.exports()
    }

    fn add_export(self: Arc<Self>, request: AddExport) -> Reply<Export> {
        Box::pin(async move { self.exports.add_export(request).await })
    }

    fn export(&self, name: &str) -> Result<Export, ErrorDetail> {
        self.exports.export(name)
    }

    fn set_export(self: Arc<Self>, export: String, request: SetExport) -> Reply<Export> {
        Box::pin(async move { self.exports.set_export(&export, request).await })
    }

    fn remove_export(self: Arc<Self>, export: String) -> Reply<Export> {
        Box::pin(async move { self.exports.remove_export(&export).await })
    }

    fn rename_export(self: Arc<Self>, export: String, request: RenameExport) -> Reply<Export> {
        Box::pin(async move { self.exports.rename_export(&export, &request).await })
    }

    fn remove_orphans(self: Arc<Self>, dry_run: bool) -> Reply<OrphanList> {
        Box::pin(async move { self.exports.remove_orphans(dry_run).await })
    }
}
