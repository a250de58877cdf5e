//! `POST /v1/orphans`.

use super::{Answer, Ask, Shared, to_the_end};
use axum::extract::State;
use braid_api::{ErrorBody, OrphanList, RemoveOrphans};

/// Removes block devices of Braid's, and mounts of files, that no export claims and nobody serves; or only lists them.
#[utoipa::path(
    post, path = "/v1/orphans", request_body = Option<RemoveOrphans>,
    responses((status = 200, body = OrphanList), (status = 400, body = ErrorBody))
)]
pub async fn remove_orphans(State(control): Shared, Ask(ask): Ask<RemoveOrphans>) -> Answer<OrphanList> {
    to_the_end(control, |control| async move { control.remove_orphans(ask.dry_run).await }).await
}
