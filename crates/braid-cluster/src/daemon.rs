//! What a daemon provides for its nodes, as small traits: this crate reports through them, serves and calls the daemon's
//! API through them, and hands its sockets over through them.

use crate::listener::PeerAdmission;
use braid_api::{Attention, Severity};
use braid_tls::ServerTls;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A boxed future, which may run on any thread.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A request of this daemon to itself.
pub type OwnRequest = Request<Full<Bytes>>;

/// The whole reply to a request of this daemon to itself, or why there is none.
pub type OwnReply = Result<(StatusCode, Bytes), Box<dyn Error + Send + Sync>>;

/// Receives the reports about nodes.
pub trait NodeEvents: Send + Sync {
    /// Adds an event. `node` is the name of the node that it concerns.
    fn report(&self, severity: Severity, kind: &str, message: String, node: &str);

    /// Sets, or clears with `None`, an item of the status that needs attention. `key` identifies the item.
    fn set_fault(&self, key: &str, fault: Option<Attention>);
}

/// The daemon's API, as other nodes call it.
pub trait PeerService: Send + Sync {
    /// Serves other nodes on this socket until `stopping` becomes true, then completes the requests in progress.
    ///
    /// The implementation uses [`PeerAdmission::tls_config`] for each connection, and processes no part of a request
    /// before [`PeerAdmission::authorize`] has accepted it.
    fn serve(
        &self,
        listener: Arc<TcpListener>,
        admission: PeerAdmission,
        stopping: watch::Receiver<bool>,
    ) -> BoxFuture<()>;

    /// Handles a request of this daemon to itself, and returns the whole reply.
    ///
    /// An error reported by the API is a reply, too. The future fails if there is no reply, or if it is too long.
    fn handle(&self, request: OwnRequest) -> BoxFuture<OwnReply>;
}

/// The replicas of this daemon, as controllers on other nodes reach them.
pub trait ReplicaListener: Send + Sync {
    /// Offers the replicas on this socket, instead of the previous one. With `tls`, only over TLS. `socket_name` is the
    /// name under which the socket is handed over, as in [`SocketHandover::register_socket`].
    fn offer(&self, listener: TcpListener, socket_name: String, tls: Option<Arc<ServerTls>>);

    /// Returns whether the replicas are offered on any socket.
    fn is_offering(&self) -> bool;

    /// Stops offering the replicas. Existing connections stay.
    fn withdraw(&self);

    /// Closes all connections to replicas. Clients whose nodes are still in the table reconnect; those of removed nodes
    /// are refused.
    fn sever(&self);
}

/// Listening sockets that pass from one daemon to the next one in the same process.
pub trait SocketHandover: Send + Sync {
    /// Claims the socket that the previous daemon has left under this name.
    fn claim_inherited(&self, name: &str) -> Option<TcpListener>;

    /// Registers a listening socket, which is handed over to the next daemon if it still exists then.
    fn register_socket(&self, name: String, socket: &Arc<TcpListener>);
}

/// What the daemon provides for its nodes once it serves. The daemon owns the nodes, hence the weak pointers: calls
/// after its end have no effect.
pub struct DaemonServices {
    /// The API.
    pub api: Arc<dyn PeerService>,
    /// Events and status.
    pub events: Weak<dyn NodeEvents>,
    /// The replicas.
    pub replicas: Weak<dyn ReplicaListener>,
    /// Listening sockets: those inherited from the previous daemon, and those to hand over to the next one.
    pub sockets: Weak<dyn SocketHandover>,
    /// Becomes true when the daemon begins to stop.
    pub stopping: watch::Receiver<bool>,
}
