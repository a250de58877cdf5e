//! The listener for other nodes: who may come in.

use super::place::HostPort;
use super::token::hex;
use super::{Nodes, table};
use crate::daemon::api::access::{Caller, refuse_pages};
use crate::daemon::api::listen::{Door, Refusals, Standing, over_network};
use crate::daemon::listen::{Socket, resume_tcp};
use axum::extract::Request;
use braid_api::{ErrorDetail, Kind};
use braid_tls::ServerTls;
use hyper::Method;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The one path that is there for those whom nobody knows yet.
pub const ADMIT: &str = "/v1/cluster/admit";
/// Longest that a host's name may take to be looked up.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// Takes an address for other nodes.
///
/// # Errors
/// Somebody has it, or it is none of this machine's.
pub async fn bind(what: &str, place: &HostPort) -> Result<(TcpListener, HostPort), ErrorDetail> {
    let refused = |kind: Kind, why: String, remedy: &str| {
        ErrorDetail::new(kind, format!("{what} {place}: {why}")).with("address", place).remedy(remedy)
    };
    let lookup = tokio::time::timeout(LOOKUP_MAX, tokio::net::lookup_host((place.host.as_str(), place.port)));
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
    let port = listener.local_addr().map_or(place.port, |address| address.port());
    Ok((listener, HostPort { host: place.host.clone(), port }))
}

/// What a socket for other nodes is left under to the next daemon.
fn name_of(what: &str, place: &str) -> String {
    format!("{what}:{place}")
}

impl Nodes {
    /// A socket that the daemon before has left for this place, else a new one.
    ///
    /// # Errors
    /// As [`bind`].
    pub(super) async fn bind_again(
        &self,
        what: &str,
        left_as: &str,
        place: &HostPort,
    ) -> Result<TcpListener, ErrorDetail> {
        let left = self.control().and_then(|control| control.upgrades().take(&name_of(left_as, &place.to_string())));
        match left.and_then(resume_tcp) {
            Some(listener) => Ok(listener),
            None => bind(what, place).await.map(|(listener, _)| listener),
        }
    }

    /// Serves other nodes on this socket, until the daemon stops or this node leaves.
    pub(super) fn serve(self: &Arc<Self>, listener: TcpListener) {
        let Some((router, control)) = self.daemon.get() else { return };
        let Some(control) = control.upgrade() else { return };
        let listener = Arc::new(listener);
        let own = self.held().map(|held| name_of("nodes", &held.cluster.own_line().api)).unwrap_or_default();
        control.upgrades().note(own, Arc::downgrade(&listener) as _);
        let (nodes, judging) = (Arc::downgrade(self), Arc::downgrade(self));
        let Some(first) = self.held() else { return };
        let door = Door {
            // With each connection what is held then, as certificates are renewed.
            show: Arc::new(move || {
                let held = nodes.upgrade().and_then(|nodes| nodes.held());
                Arc::clone(&held.as_ref().unwrap_or(&first).credentials.server)
            }),
            judge: Arc::new(move |request, caller| judge(&judging, request, caller)),
            refusals: Arc::new(Refusals::default()),
        };
        let (end, ended) = watch::channel(false);
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        let mut stopping = control.stopping();
        let router = router.clone();
        tokio::spawn(async move {
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
                () = over_network(listener, door, router, stopped) => {}
                () = ending => {}
            }
        });
    }

    /// Offers the data of this node's replicas on this socket; none: somebody has said where else.
    pub(super) fn serve_data(&self, listener: Option<TcpListener>) {
        let (Some(control), Some(held), Some(listener)) = (self.control(), self.held(), listener) else { return };
        let own = held.cluster.own_line();
        let tls = own.tls_data.then(|| Arc::new(ServerTls::ready(Arc::clone(&held.credentials.data))));
        let socket = Arc::new(Socket::Tcp(listener));
        control.upgrades().note(name_of("data", &own.data), Arc::downgrade(&socket) as _);
        control.offer_replicas(socket, tls);
        tracing::info!("replicas are offered to other nodes on {}", own.data);
    }

    /// Whether the data of replicas are offered.
    pub(super) fn offers_data(&self) -> bool {
        self.control().is_none_or(|control| control.offers_replicas())
    }

    /// Whether other nodes are served.
    pub(super) fn is_listening(&self) -> bool {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|end| !end.is_closed())
    }

    /// Serves other nodes no more.
    pub(super) fn stop_listening(&self) {
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(_), Some(control)) = (listening, self.control()) {
            control.withdraw_replicas();
        }
    }
}

/// Whether a request may be done: those of nodes of the table, and that of who wants to become one.
fn judge(nodes: &Weak<Nodes>, request: &Request, caller: Caller) -> Result<Standing, ErrorDetail> {
    if request.method() == Method::POST && request.uri().path() == ADMIT {
        return Ok(Standing::Unknown);
    }
    let Some(held) = nodes.upgrade().and_then(|nodes| nodes.held()) else {
        return Err(ErrorDetail::new(Kind::Stopping, "the daemon is stopping").remedy("try again when it is back"));
    };
    let Some(key) = caller.key_sha256.filter(|_| caller.certified) else {
        return Err(ErrorDetail::new(
            Kind::Unauthenticated,
            "only nodes of the cluster may ask here, by their certificates",
        )
        .remedy("people ask the daemon on its socket, or where --api-listen offers the API"));
    };
    let key = hex(&key);
    if let Some(line) = table::present(&held.cluster.members).find(|line| line.key_sha256 == key) {
        if held.cluster.is_removed() {
            let own = &held.cluster.own_line().name;
            return Err(ErrorDetail::new(Kind::Forbidden, format!("node {own} was removed from the cluster"))
                .with("node", own)
                .remedy("`braid node list` on another node shows those there are"));
        }
        refuse_pages(request.method(), request.headers())?;
        tracing::debug!("node {} asks: {} {}", line.name, request.method(), request.uri().path());
        return Ok(Standing::Known);
    }
    let gone = held.cluster.members.iter().find(|line| line.key_sha256 == key);
    Err(match gone {
        Some(line) => ErrorDetail::new(Kind::Forbidden, format!("node {} was removed from the cluster", line.name))
            .with("node", &line.name)
            .with("removed", &line.uuid)
            .remedy("if it is to come back, let it join again: braid node invite, braid node join"),
        None => ErrorDetail::new(
            Kind::Forbidden,
            format!("node {} does not know this certificate's node", held.cluster.own_line().name),
        )
        .remedy("a node that has just joined is known to all within seconds; one that stays unknown has to join again"),
    })
}
