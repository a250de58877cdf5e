//! Calls of the APIs of other nodes.

use super::Nodes;
use super::connect::{self, Callee, Idle, RequestError};
use super::table;
use braid_api::{ErrorDetail, Kind, MemberNode};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request};
use rustls::ClientConfig;
use serde_json::Value;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// Default time limit for a reply.
pub const REPLY_MAX: Duration = Duration::from_secs(5);
/// Maximum number of idle connections kept to one node.
const IDLE_MAX: usize = 8;

/// What this node knows of another node, apart from the table.
#[derive(Default)]
pub struct Peer {
    /// The node's status at the last request.
    pub status: PeerStatus,
    /// When the certificate expires that the node presented last, in seconds of Unix time.
    pub ends_unix_s: Option<i64>,
    /// Connections that wait for the next call.
    pub idle: Vec<Idle>,
}

/// Status of a node at the last request to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PeerStatus {
    /// No request was sent yet.
    #[default]
    Unknown,
    /// The node replied.
    Reachable,
    /// The node did not reply.
    Unreachable {
        /// Since when, in milliseconds of Unix time.
        since_unix_ms: u64,
        /// Why.
        reason: String,
    },
}

impl Nodes {
    /// Sends a request to a node (by name or UUID; this node, too), and returns the reply. The time limit is
    /// [`REPLY_MAX`], five seconds.
    ///
    /// # Errors
    /// The node's own error; there is no such node; the node cannot be reached or does not reply in time.
    pub async fn call(
        &self,
        node: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, ErrorDetail> {
        self.call_within(REPLY_MAX, node, method, path, body).await
    }

    /// As [`Nodes::call`], with another time limit, connecting included.
    ///
    /// # Errors
    /// As [`Nodes::call`].
    pub async fn call_within(
        &self,
        limit: Duration,
        node: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, ErrorDetail> {
        let membership = self.member()?;
        let line = table::find(&membership.cluster.members, node)?.clone();
        let callee = Callee::of(&line);
        if line.uuid == membership.cluster.own.to_string() {
            return connect::with_timeout(&callee, limit, self.call_own(&callee, method, path, body)).await;
        }
        connect::with_timeout(&callee, limit, self.call_member(&line, method, path, body)).await
    }

    /// Returns the TLS configuration for connections to other nodes, to their APIs and to their data.
    ///
    /// The caller passes the UUID of the called node as host name: the configuration accepts only that node's key, and
    /// presents this node's certificate. The caller may keep the configuration: accepted keys and presented certificate
    /// are looked up at each handshake.
    ///
    /// # Errors
    /// The daemon belongs to no cluster.
    pub fn data_client(&self) -> Result<Arc<ClientConfig>, ErrorDetail> {
        Ok(Arc::clone(&self.member()?.credentials.client))
    }

    /// Sends a request to another node of the table. The caller limits the time.
    pub(super) async fn call_member(
        &self,
        line: &MemberNode,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, ErrorDetail> {
        let callee = Callee::of(line);
        let mut request = connect::request(&callee, method, path, body.as_ref())?;
        // Idle connections may have ended in the meantime. A request that was never sent may be sent over another one.
        loop {
            let waiting = self.peer(&line.uuid, |peer| peer.idle.pop());
            let (mut idle, is_new) = match waiting {
                Some(idle) => (idle, false),
                None => {
                    let connection = connect::to_member(self.data_client()?, line).await?;
                    self.peer(&line.uuid, |peer| peer.ends_unix_s = connection.ends_unix_s);
                    (connection.idle, true)
                }
            };
            match connect::send(&callee, &mut idle, request).await {
                Ok((status, body)) => {
                    self.peer(&line.uuid, |peer| {
                        if peer.idle.len() < IDLE_MAX {
                            peer.idle.push(idle);
                        }
                    });
                    return connect::parse_reply(&callee, status, &body);
                }
                Err(RequestError::NotSent(back)) if !is_new => request = *back,
                Err(RequestError::NotSent(_)) => {
                    let ended = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                    return Err(callee.unreachable(&ended));
                }
                Err(RequestError::Failed(error)) => return Err(error),
            }
        }
    }

    /// Sends a request to this daemon itself, without a connection.
    async fn call_own(
        &self,
        callee: &Callee,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, ErrorDetail> {
        let internal = |why: String| ErrorDetail::new(Kind::Internal, format!("this daemon cannot ask itself: {why}"));
        let daemon = self.daemon.get().ok_or_else(|| internal("it has not started yet".to_owned()))?;
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| internal(error.to_string()))?;
        let (status, body) = daemon.api.handle(request).await.map_err(|error| internal(error.to_string()))?;
        connect::parse_reply(callee, status, &body)
    }

    /// Passes the entry of a node, which is created if there is none, to `look`. The lock is held while `look` runs,
    /// which must not block.
    pub(super) fn peer<T>(&self, uuid: &str, look: impl FnOnce(&mut Peer) -> T) -> T {
        let mut peers: MutexGuard<'_, _> = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        look(peers.entry(uuid.to_owned()).or_default())
    }

    /// Forgets a node, and ends the idle connections to it.
    pub(super) fn forget_peer(&self, uuid: &str) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).remove(uuid);
    }
}
