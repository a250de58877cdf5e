//! `POST /v1/upgrade`.

use super::{Answer, Ask, Json, Refusal, Shared};
use crate::daemon::api::access::Caller;
use axum::extract::{Extension, State};
use braid_api::{ErrorBody, ErrorDetail, Kind, Upgrade, Upgrading};
use std::net::SocketAddr;
use std::sync::Arc;

/// Has the daemon become another program in its own process, once that has shown that it would start.
#[utoipa::path(
    post, path = "/v1/upgrade", request_body = Upgrade,
    responses(
        (status = 200, body = Upgrading, description = "it has begun; the status says when it is over"),
        (status = 400, body = ErrorBody, description = "the program would not start here; nothing has stopped"),
        (status = 403, body = ErrorBody, description = "only on the machine itself"),
        (status = 409, body = ErrorBody, description = "in_use: another one is under way, or a change that does not end")
    )
)]
pub async fn upgrade(
    State(control): Shared,
    caller: Option<Extension<(Caller, SocketAddr)>>,
    Ask(ask): Ask<Upgrade>,
) -> Answer<Upgrading> {
    if caller.is_some() {
        return Err(Refusal::from(
            ErrorDetail::new(Kind::Forbidden, "what program the daemon is, is said on its own machine")
                .remedy("there: braid serve --upgrade"),
        ));
    }
    // To its end, also when the client goes away. It is no change that an upgrade would wait for.
    let upgrading = tokio::spawn(async move { Arc::clone(&control).upgrade(&ask).await });
    match upgrading.await {
        Ok(upgrading) => Ok(Json(upgrading?)),
        Err(error) => Err(ErrorDetail::new(Kind::Internal, format!("the upgrade ended unexpectedly: {error}")).into()),
    }
}
