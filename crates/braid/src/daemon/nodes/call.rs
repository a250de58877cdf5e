//! Calls of other nodes' APIs.

use super::Nodes;
use super::connect::{self, Callee, Idle, Unanswered};
use super::table;
use axum::body::Body;
use braid_api::{ErrorDetail, Kind, MemberNode};
use http_body_util::{BodyExt, Limited};
use hyper::service::Service;
use hyper::{Method, Request};
use hyper_util::service::TowerToHyperService;
use rustls::ClientConfig;
use serde_json::Value;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest that an answer may take, unless told otherwise.
pub const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Connections to one node that are kept for further calls.
const IDLE_MAX: usize = 8;
/// Longest answer of this daemon to itself, in bytes.
const OWN_ANSWER_BYTES_MAX: usize = 256 << 20;

/// What is known of another node, apart from the table.
#[derive(Default)]
pub struct Peer {
    /// How it did when it was asked last.
    pub seen: Seen,
    /// When its certificate ends, in Unix time.
    pub ends_unix_s: Option<i64>,
    /// Connections that wait for the next call.
    pub idle: Vec<Idle>,
}

/// How a node did when it was asked last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seen {
    /// It was not asked yet.
    #[default]
    Never,
    /// It has answered.
    Here,
    /// It has not.
    Away {
        /// Since when, in milliseconds of Unix time.
        since_unix_ms: u64,
        /// Why.
        reason: String,
    },
}

impl Nodes {
    /// Asks a node (by name or UUID; this one, too) for what is at a path of its API, within five seconds.
    ///
    /// # Errors
    /// What the node says; it is none, cannot be reached, or does not answer in time.
    pub async fn call(
        &self,
        node: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, ErrorDetail> {
        self.call_within(ANSWER_MAX, node, method, path, body).await
    }

    /// The same within another limit of time, connecting included.
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
        let held = self.member()?;
        let line = table::find(&held.cluster.members, node)?.clone();
        let callee = Callee::of(&line);
        if line.uuid == held.cluster.own.to_string() {
            return connect::limited(&callee, limit, self.call_own(&callee, method, path, body)).await;
        }
        connect::limited(&callee, limit, self.call_member(&line, method, path, body)).await
    }

    /// For TLS connections to other nodes, to their APIs and to their data: asked for a node's UUID as the host, it believes that
    /// node alone, and shows this one's certificate. It may be kept: who counts, and what is shown, is looked at each time.
    ///
    /// # Errors
    /// This daemon belongs to no cluster.
    pub fn data_client(&self) -> Result<Arc<ClientConfig>, ErrorDetail> {
        Ok(Arc::clone(&self.member()?.credentials.client))
    }

    /// Asks another node of the table; the limit of time is the caller's.
    pub(super) async fn call_member(
        &self,
        line: &MemberNode,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, ErrorDetail> {
        let callee = Callee::of(line);
        let mut request = connect::request(&callee, method, path, body.as_ref())?;
        // Those that wait may have ended meanwhile; whatever never left may go over another one.
        loop {
            let waiting = self.peer(&line.uuid, |peer| peer.idle.pop());
            let (mut idle, is_new) = match waiting {
                Some(idle) => (idle, false),
                None => {
                    let made = connect::to_member(self.data_client()?, line).await?;
                    self.peer(&line.uuid, |peer| peer.ends_unix_s = made.ends_unix_s);
                    (made.idle, true)
                }
            };
            match connect::ask(&callee, &mut idle, request).await {
                Ok((status, body)) => {
                    self.peer(&line.uuid, |peer| {
                        if peer.idle.len() < IDLE_MAX {
                            peer.idle.push(idle);
                        }
                    });
                    return connect::understood(&callee, status, &body);
                }
                Err(Unanswered::NotSent(back)) if !is_new => request = *back,
                Err(Unanswered::NotSent(_)) => {
                    let ended = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                    return Err(callee.unreachable(&ended));
                }
                Err(Unanswered::Failed(error)) => return Err(error),
            }
        }
    }

    /// Asks this daemon itself, without a connection.
    async fn call_own(
        &self,
        callee: &Callee,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, ErrorDetail> {
        let internal = |why: String| ErrorDetail::new(Kind::Internal, format!("this daemon cannot ask itself: {why}"));
        let (router, _) = self.daemon.get().ok_or_else(|| internal("it has not started yet".to_owned()))?;
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::from(body))
            .map_err(|error| internal(error.to_string()))?;
        let answer = TowerToHyperService::new(router.clone()).call(request).await;
        let answer = answer.map_err(|error| internal(error.to_string()))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), OWN_ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| internal(error.to_string()))?.to_bytes();
        connect::understood(callee, status, &body)
    }

    /// What is known of a node, to look at or change; never across a wait.
    pub(super) fn peer<T>(&self, uuid: &str, look: impl FnOnce(&mut Peer) -> T) -> T {
        let mut peers: MutexGuard<'_, _> = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        look(peers.entry(uuid.to_owned()).or_default())
    }

    /// Forgets a node, and ends the connections to it.
    pub(super) fn forget(&self, uuid: &str) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).remove(uuid);
    }
}
