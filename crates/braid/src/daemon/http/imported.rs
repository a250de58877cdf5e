//! The path of arrays of Linux md.

use super::{Answer, Ask, Shared, to_the_end};
use axum::extract::State;
use braid_api::{ErrorBody, ImportMd, MdImport};

/// Describes the arrays of Linux md that disks belong to; with a name it serves the one, read-only.
#[utoipa::path(
    post, path = "/v1/import-md", request_body = ImportMd,
    responses(
        (status = 200, body = MdImport),
        (status = 400, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "exists, in use, or it lacks members")
    )
)]
pub(super) async fn import_md(State(control): Shared, Ask(ask): Ask<ImportMd>) -> Answer<MdImport> {
    to_the_end(control, |control| async move { control.import_md(ask).await }).await
}
