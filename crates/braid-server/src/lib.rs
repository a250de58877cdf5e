//! The API's server: its routes, its listeners on the Unix socket and on the network, and the metrics.
//!
//! What it is: HTTP/1.1 with JSON over a [`Service`], which the daemon implements. `routes` has each path beside the
//! method that it calls, and `http` what the paths share; `listen`, `access` and `client` accept clients and authorize
//! their requests; `settings` and `reload` are the options of the network and its files; `follow` streams events;
//! `metrics` renders a snapshot of the daemon.
//!
//! What it guarantees: a change runs to its end, even if its client disconnects. The API never listens on a network
//! without TLS, nor without a means to authenticate clients, and no part of a network request is processed before its
//! client is authorized. Connections are bounded in number and in time. A route without a description cannot be
//! written.
//!
//! What it never does: decide anything about arrays, pools, volumes or exports. It knows nothing of the daemon except
//! the traits that it defines. No I/O of volumes passes through it.

#![forbid(unsafe_code)]

mod access;
mod client;
mod follow;
mod http;
mod lifecycle;
mod listen;
mod metrics;
mod openapi;
mod reload;
mod routes;
mod settings;

use axum::Router;
use axum::body::{Body, Bytes};
use http_body_util::{BodyExt, Full, Limited};
use hyper::service::Service as _;
use hyper::{Request, StatusCode};
use hyper_util::service::TowerToHyperService;
use std::error::Error;
use std::sync::Arc;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

pub use access::{Access, Caller, RequestHead, refuse_browser_changes};
pub use follow::EventLog;
pub use lifecycle::{BoxFuture, ChangeGuard, Lifecycle, Reply};
pub use listen::{Admission, Authentication, AuthorizeRequest, Network, RefusedClients, TlsConfigSource};
pub use metrics::{DiskMetrics, ExportLatencies, MetricsSnapshot, ReplicatedMetrics};
pub use reload::{ApiReports, reload_files};
pub use routes::Service;
pub use routes::arrays::ArrayService;
pub use routes::daemon::DaemonService;
pub use routes::exports::ExportService;
pub use routes::jobs::JobService;
pub use routes::nodes::NodeService;
pub use routes::pools::PoolService;
pub use routes::replicas::ReplicaService;
pub use routes::replicated::ReplicationService;
pub use routes::snapshots::SnapshotService;
pub use routes::volumes::VolumeService;
pub use settings::{ApiArgs, ApiSettings};

/// Maximum length of a reply of a daemon to itself, in bytes.
const OWN_REPLY_BYTES_MAX: usize = 256 << 20;

/// The whole reply to a request of a daemon to itself, or why there is none.
pub type OwnReply = Result<(StatusCode, Bytes), Box<dyn Error + Send + Sync>>;

/// The API of a daemon.
#[derive(Clone)]
pub struct Api(Router);

impl Api {
    /// Returns the API of this service.
    pub fn new(service: Arc<dyn Service>) -> Api {
        Api(routes::router(service))
    }

    /// Serves clients of the Unix socket until `stopping` becomes true; requests in progress are finished then.
    pub fn over_socket(&self, listener: Arc<UnixListener>, stopping: watch::Receiver<bool>) -> BoxFuture<()> {
        Box::pin(listen::over_socket(listener, self.0.clone(), stopping))
    }

    /// Serves clients of the network, whom `admission` admits, until `stopping` becomes true; requests in progress are
    /// finished then.
    pub fn over_network(
        &self,
        listener: Arc<TcpListener>,
        admission: Admission,
        stopping: watch::Receiver<bool>,
    ) -> BoxFuture<()> {
        Box::pin(listen::over_network(listener, admission, self.0.clone(), stopping))
    }

    /// Handles a request of the daemon to itself, without a connection, and returns the whole reply. An error that a
    /// route reports is a reply, too.
    ///
    /// # Errors
    /// The reply is longer than 256 MiB.
    pub fn handle(&self, request: Request<Full<Bytes>>) -> BoxFuture<OwnReply> {
        let service = TowerToHyperService::new(self.0.clone());
        Box::pin(async move {
            let reply = service.call(request.map(Body::new)).await?;
            let status = reply.status();
            let body = Limited::new(reply.into_body(), OWN_REPLY_BYTES_MAX).collect().await?;
            Ok((status, body.to_bytes()))
        })
    }
}
