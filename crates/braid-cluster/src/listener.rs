//! The listener for other nodes, and the authorization of their requests.

use super::host_port::HostPort;
use super::token::hex;
use super::{Membership, Nodes, table};
use braid_api::{ErrorDetail, Kind};
use braid_tls::ServerTls;
use hyper::Method;
use rustls::ServerConfig;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The only path that a client outside the cluster may request.
pub const ADMIT_PATH: &str = "/v1/cluster/admit";
/// Maximum time for looking up a host name.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// Binds a listener to an address, which errors call `what`. Returns the listener, and the address with the actual
/// port.
///
/// # Errors
/// The host name cannot be resolved within five seconds; the address is in use, or is no address of this machine.
pub async fn bind(what: &str, address: &HostPort) -> Result<(TcpListener, HostPort), ErrorDetail> {
    let refused = |kind: Kind, why: String, remedy: &str| {
        ErrorDetail::new(kind, format!("{what} {address}: {why}")).with("address", address).remedy(remedy)
    };
    let lookup = tokio::time::timeout(LOOKUP_MAX, tokio::net::lookup_host((address.host.as_str(), address.port)));
    let unknown = |why: String| {
        refused(
            Kind::InvalidArgument,
            format!("the host cannot be found: {why}"),
            "write a number, for example 192.0.2.7",
        )
    };
    let found: Vec<SocketAddr> = match lookup.await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Err(unknown(error.to_string())),
        Err(_) => return Err(unknown("its name was not found in time".to_owned())),
    };
    let listener = TcpListener::bind(&found[..]).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => refused(
            Kind::InUse,
            "another process listens there".to_owned(),
            "choose another port, or stop that process (`ss -ltnp` shows it)",
        ),
        std::io::ErrorKind::AddrNotAvailable => refused(
            Kind::InvalidArgument,
            "it is no address of this machine".to_owned(),
            "`ip address` shows those there are",
        ),
        std::io::ErrorKind::PermissionDenied => {
            refused(Kind::PermissionDenied, error.to_string(), "choose a port from 1024 on")
        }
        _ => refused(Kind::Internal, error.to_string(), "choose another address"),
    })?;
    let port = listener.local_addr().map_or(address.port, |address| address.port());
    Ok((listener, HostPort { host: address.host.clone(), port }))
}

/// Returns the name under which a socket for other nodes is passed to the next daemon.
fn socket_name(what: &str, address: &str) -> String {
    format!("{what}:{address}")
}

impl Nodes {
    /// Returns the socket that the previous daemon has passed on for this address, or binds a new one. `passed_as`
    /// (`nodes` or `data`) and the address are the name under which the socket was passed on; errors call the address
    /// `what`.
    ///
    /// # Errors
    /// As [`bind`].
    pub(super) async fn resume_or_bind(
        &self,
        what: &str,
        passed_as: &str,
        address: &HostPort,
    ) -> Result<TcpListener, ErrorDetail> {
        let passed_on =
            self.sockets().and_then(|sockets| sockets.claim_inherited(&socket_name(passed_as, &address.to_string())));
        match passed_on {
            Some(listener) => Ok(listener),
            None => bind(what, address).await.map(|(listener, _)| listener),
        }
    }

    /// Serves other nodes on this socket, until the daemon stops or this node leaves.
    pub(super) fn serve(self: &Arc<Self>, listener: TcpListener) {
        let (Some(daemon), Some(sockets)) = (self.daemon.get(), self.sockets()) else { return };
        let listener = Arc::new(listener);
        let own = self
            .membership()
            .map(|membership| socket_name("nodes", &membership.cluster.own_line().api))
            .unwrap_or_default();
        sockets.register_socket(own, &listener);
        let Some(first) = self.membership() else { return };
        let admission = PeerAdmission { nodes: Arc::downgrade(self), first };
        let (end, ended) = watch::channel(false);
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        let mut stopping = daemon.stopping.clone();
        let api = Arc::clone(&daemon.api);
        braid_tasks::spawn(async move {
            let (stop, stopped) = watch::channel(false);
            let mut ended = ended;
            let ending = async {
                tokio::select! {
                    _ = stopping.wait_for(|stopping| *stopping) => {}
                    // Also when the sender is dropped.
                    _ = ended.wait_for(|ended| *ended) => {}
                }
                let _ = stop.send(true);
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = api.serve(listener, admission, stopped) => {}
                () = ending => {}
            }
        });
    }

    /// Offers the data of this node's replicas on this socket; `None`: they are offered elsewhere already.
    pub(super) fn serve_data(&self, listener: Option<TcpListener>) {
        let (Some(replicas), Some(membership), Some(listener)) = (self.replicas(), self.membership(), listener) else {
            return;
        };
        let own = membership.cluster.own_line();
        let tls = own.tls_data.then(|| Arc::new(ServerTls::from_config(Arc::clone(&membership.credentials.data))));
        replicas.offer(listener, socket_name("data", &own.data), tls);
        tracing::info!("replicas are offered to other nodes on {}", own.data);
    }

    /// Returns whether the data of the replicas are offered; true if the daemon has no replicas to offer.
    pub(super) fn offers_data(&self) -> bool {
        self.replicas().is_none_or(|replicas| replicas.is_offering())
    }

    /// Returns whether other nodes are served.
    pub(super) fn is_listening(&self) -> bool {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|end| !end.is_closed())
    }

    /// Stops serving other nodes, and withdraws the replicas.
    pub(super) fn stop_listening(&self) {
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(_), Some(replicas)) = (listening, self.replicas()) {
            replicas.withdraw();
        }
    }
}

/// The sender of an accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerStanding {
    /// A node of the table, which may send further requests on its connection. It is authenticated by its certificate
    /// alone. A browser that has the certificate presents it for every web page, so the caller must refuse changes that
    /// a web page requests.
    Member,
    /// A client that is not authenticated, and requests admission. The request must contain the secret of an
    /// invitation. The caller closes the connection after this request.
    Applicant,
}

/// Admission of the clients of the listener for other nodes.
#[derive(Clone)]
pub struct PeerAdmission {
    nodes: Weak<Nodes>,
    /// The membership when the listener began, for TLS handshakes after the end of `nodes`.
    first: Arc<Membership>,
}

impl PeerAdmission {
    /// Returns the TLS configuration for a new connection: the current one, since certificates are renewed. It accepts
    /// clients with a certificate of the authority, and clients without a certificate.
    pub fn tls_config(&self) -> Arc<ServerConfig> {
        let membership = self.nodes.upgrade().and_then(|nodes| nodes.membership());
        Arc::clone(&membership.as_ref().unwrap_or(&self.first).credentials.server)
    }

    /// Authorizes a request: nodes of the table may send any, other clients only the request for admission.
    /// `key_sha256` is the digest of the key of the client's certificate, if the handshake has verified one.
    ///
    /// # Errors
    /// [`Kind::Unauthenticated`] without a certificate; [`Kind::Forbidden`] with that of another node, or if this node
    /// or the client was removed; [`Kind::Stopping`] after the daemon's end.
    pub fn authorize(
        &self,
        method: &Method,
        path: &str,
        key_sha256: Option<[u8; 32]>,
    ) -> Result<PeerStanding, ErrorDetail> {
        if method == Method::POST && path == ADMIT_PATH {
            return Ok(PeerStanding::Applicant);
        }
        let Some(membership) = self.nodes.upgrade().and_then(|nodes| nodes.membership()) else {
            return Err(ErrorDetail::new(Kind::Stopping, "the daemon is stopping").remedy("try again when it is back"));
        };
        let Some(key) = key_sha256 else {
            return Err(ErrorDetail::new(
                Kind::Unauthenticated,
                "only nodes of the cluster may send requests to this address, with their certificates",
            )
            .remedy("users connect to the daemon on its socket, or at the address of --api-listen"));
        };
        let key = hex(&key);
        if let Some(line) = table::present(&membership.cluster.members).find(|line| line.key_sha256 == key) {
            if membership.cluster.is_removed() {
                let own = &membership.cluster.own_line().name;
                return Err(ErrorDetail::new(Kind::Forbidden, format!("node {own} was removed from the cluster"))
                    .with("node", own)
                    .remedy("`braid node list` on another node shows those there are"));
            }
            tracing::debug!("node {} asks: {method} {path}", line.name);
            return Ok(PeerStanding::Member);
        }
        let removed_line = membership.cluster.members.iter().find(|line| line.key_sha256 == key);
        Err(match removed_line {
            Some(line) => ErrorDetail::new(Kind::Forbidden, format!("node {} was removed from the cluster", line.name))
                .with("node", &line.name)
                .with("removed", &line.uuid)
                .remedy("if it is to come back, let it join again: braid node invite, braid node join"),
            None => ErrorDetail::new(
                Kind::Forbidden,
                format!("node {} does not know this certificate's node", membership.cluster.own_line().name),
            )
            .remedy(
                "a node that has just joined is known to all within seconds; one that stays unknown has to join again",
            ),
        })
    }
}
