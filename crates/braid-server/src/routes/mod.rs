//! The routes, each beside the method of the service that it calls, and [`Service`]: all of these methods, in one trait
//! for each kind of object. No decision is made here.

pub mod arrays;
pub mod daemon;
pub mod exports;
pub mod jobs;
pub mod nodes;
pub mod pools;
pub mod replicas;
pub mod replicated;
pub mod snapshots;
pub mod volumes;

use crate::http::{self, Json};
use crate::lifecycle::Lifecycle;
use crate::openapi::CommonResponses;
use arrays::ArrayService;
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::middleware;
use axum::routing::get;
use braid_api::limits::API_BODY_BYTES_MAX;
use braid_api::{ErrorBody, Event};
use daemon::DaemonService;
use exports::ExportService;
use jobs::JobService;
use nodes::NodeService;
use pools::PoolService;
use replicas::ReplicaService;
use replicated::ReplicationService;
use snapshots::SnapshotService;
use std::sync::Arc;
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use volumes::VolumeService;

/// A daemon, as its API serves it.
pub trait Service:
    Lifecycle
    + DaemonService
    + ArrayService
    + JobService
    + PoolService
    + VolumeService
    + SnapshotService
    + ReplicationService
    + ReplicaService
    + ExportService
    + NodeService
{
}

impl<S> Service for S where
    S: Lifecycle
        + DaemonService
        + ArrayService
        + JobService
        + PoolService
        + VolumeService
        + SnapshotService
        + ReplicationService
        + ReplicaService
        + ExportService
        + NodeService
{
}

/// The state of every route.
pub type Shared = State<Arc<dyn Service>>;

/// Returns every route, in the order of `docs/reference/api.md`.
pub fn router(service: Arc<dyn Service>) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .route("/v1/openapi.json", get(openapi))
        .fallback(http::no_such_path)
        .method_not_allowed_fallback(http::no_such_method)
        .layer(middleware::map_response_with_state(
            Arc::clone(&service),
            http::mark_unknown_while_starting::<dyn Service>,
        ))
        .layer(DefaultBodyLimit::max(API_BODY_BYTES_MAX))
        .with_state(service)
}

async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(description())
}

/// Returns the description of the API that `/v1/openapi.json` serves.
fn description() -> utoipa::openapi::OpenApi {
    let mut description = routes().into_openapi();
    CommonResponses.modify(&mut description);
    description
}

/// Every route with its part of the description: a route that is not described cannot be written here.
fn routes() -> OpenApiRouter<Arc<dyn Service>> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(daemon::status))
        .routes(routes!(daemon::limits))
        .routes(routes!(daemon::disks))
        .routes(routes!(daemon::activity))
        .routes(routes!(arrays::arrays, arrays::create_array))
        .routes(routes!(arrays::array, arrays::delete_array))
        .routes(routes!(arrays::rename_array))
        .routes(routes!(arrays::stop_array))
        .routes(routes!(arrays::fail_member))
        .routes(routes!(arrays::remove_member))
        .routes(routes!(arrays::add_disk))
        .routes(routes!(arrays::grow_array))
        .routes(routes!(arrays::replace_member))
        .routes(routes!(arrays::move_journal))
        .routes(routes!(arrays::check_array))
        .routes(routes!(arrays::assemble))
        .routes(routes!(arrays::import_md))
        .routes(routes!(pools::pools, pools::create_pool))
        .routes(routes!(pools::pool, pools::delete_pool))
        .routes(routes!(pools::rename_pool))
        .routes(routes!(pools::start_pool))
        .routes(routes!(pools::add_pool_members))
        .routes(routes!(pools::check_pool))
        .routes(routes!(pools::remove_pool_member))
        .routes(routes!(volumes::volumes, volumes::create_volume))
        .routes(routes!(volumes::volume, volumes::set_volume, volumes::delete_volume))
        .routes(routes!(volumes::set_policy, volumes::end_policy))
        .routes(routes!(volumes::rename_volume))
        .routes(routes!(volumes::resize_volume))
        .routes(routes!(volumes::move_volume))
        .routes(routes!(volumes::compact_volume))
        .routes(routes!(volumes::flatten_volume))
        .routes(routes!(volumes::rollback_volume))
        .routes(routes!(replicated::replicated_volumes, replicated::create_replicated))
        .routes(routes!(replicated::replicated_volume, replicated::delete_replicated))
        .routes(routes!(replicated::attach_replicated))
        .routes(routes!(replicated::forced_opening))
        .routes(routes!(replicated::detach_replicated))
        .routes(routes!(replicated::rollback_replicated))
        .routes(routes!(replicated::add_voter))
        .routes(routes!(replicated::remove_voter))
        .routes(routes!(replicated::rebuild_voter))
        .routes(routes!(snapshots::snapshots, snapshots::create_snapshots))
        .routes(routes!(snapshots::snapshot, snapshots::change_snapshot, snapshots::delete_snapshot))
        .routes(routes!(snapshots::diff))
        .routes(routes!(snapshots::rename_snapshot))
        .routes(routes!(snapshots::clone_snapshot))
        .routes(routes!(replicas::replicas, replicas::create_replica))
        .routes(routes!(replicas::replica, replicas::delete_replica))
        .routes(routes!(replicas::request_voter))
        .routes(routes!(replicas::replica_snapshots, replicas::change_replica))
        .routes(routes!(jobs::jobs))
        .routes(routes!(jobs::job, jobs::set_job, jobs::cancel_job))
        .routes(routes!(exports::exports, exports::add_export))
        .routes(routes!(exports::export, exports::set_export, exports::remove_export))
        .routes(routes!(exports::rename_export))
        .routes(routes!(exports::remove_orphans))
        .routes(routes!(nodes::nodes))
        .routes(routes!(nodes::node, nodes::remove_node))
        .routes(routes!(nodes::renew_node))
        .routes(routes!(replicated::cluster_volumes))
        .routes(routes!(nodes::init_cluster))
        .routes(routes!(nodes::invite))
        .routes(routes!(nodes::join_cluster))
        .routes(routes!(nodes::admit))
        .routes(routes!(nodes::exchange))
        .routes(routes!(daemon::upgrade))
        .routes(routes!(daemon::events))
        .routes(routes!(daemon::metrics))
        .routes(routes!(daemon::healthz))
        .routes(routes!(daemon::readyz))
}

/// What the description of the API says beside its routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Braid",
        description = "Mixed disks become fast block volumes. Errors of every path have the shape of ErrorBody.",
        license(name = "Apache-2.0")
    ),
    components(schemas(ErrorBody, Event))
)]
struct Description;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_api_lists_every_path() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/api.md"))
            .expect("it is there");
        let description = serde_json::to_value(description()).expect("it is JSON");
        let paths = description["paths"].as_object().expect("paths are an object");
        assert!(paths.len() >= 10);
        for (path, methods) in paths {
            for method in methods.as_object().expect("methods are an object").keys() {
                let line = format!("| `{} {path}", method.to_uppercase());
                assert!(text.contains(&line), "docs/reference/api.md has no line {line}");
            }
        }
    }
}
