//! What the daemon provides for the nodes of its cluster: the API, the replicas, events and sockets.

use crate::Daemon;
use braid_api::{Attention, ErrorDetail, Severity};
use braid_cluster::{
    BoxFuture, DaemonServices, NodeEvents, OwnReply, OwnRequest, PeerAdmission, PeerService, PeerStanding,
    ReplicaListener, SocketHandover,
};
use braid_exports::listen::{Socket, resume_tcp};
use braid_server::{Admission, Api, Authentication, Caller, RefusedClients, RequestHead, refuse_browser_changes};
use braid_tls::ServerTls;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Returns what the daemon provides for its nodes.
pub fn services(api: Api, daemon: &Arc<Daemon>) -> DaemonServices {
    let weak = Arc::downgrade(daemon);
    DaemonServices {
        api: Arc::new(PeerApi(api)),
        events: weak.clone(),
        replicas: weak.clone(),
        sockets: weak,
        stopping: daemon.inventory.stopping(),
    }
}

/// The API, as other nodes call it.
struct PeerApi(Api);

impl PeerService for PeerApi {
    fn serve(
        &self,
        listener: Arc<TcpListener>,
        admission: PeerAdmission,
        stopping: watch::Receiver<bool>,
    ) -> BoxFuture<()> {
        let presenting = admission.clone();
        let admission = Admission {
            tls_config: Arc::new(move || presenting.tls_config()),
            authorize: Arc::new(move |request, caller| authorize(&admission, request, caller)),
            refusals: Arc::new(RefusedClients::default()),
        };
        self.0.over_network(listener, admission, stopping)
    }

    fn handle(&self, request: OwnRequest) -> BoxFuture<OwnReply> {
        self.0.handle(request)
    }
}

/// Authorizes a request of another node.
fn authorize(
    admission: &PeerAdmission,
    request: RequestHead<'_>,
    caller: Caller,
) -> Result<Authentication, ErrorDetail> {
    let key_sha256 = caller.key_sha256.filter(|_| caller.certified);
    match admission.authorize(request.method, request.path, key_sha256)? {
        PeerStanding::Member => {
            refuse_browser_changes(request.method, request.headers)?;
            Ok(Authentication::Authenticated)
        }
        PeerStanding::Applicant => Ok(Authentication::Unauthenticated),
    }
}

impl NodeEvents for Daemon {
    fn report(&self, severity: Severity, kind: &str, message: String, node: &str) {
        self.inventory.events().add(severity, kind, message, &[("node", node)]);
    }

    fn set_fault(&self, key: &str, fault: Option<Attention>) {
        self.inventory.set_fault(key, fault);
    }
}

impl ReplicaListener for Daemon {
    fn offer(&self, listener: TcpListener, socket_name: String, tls: Option<Arc<ServerTls>>) {
        let socket = Arc::new(Socket::Tcp(listener));
        self.exports.sockets.register(socket_name, Arc::downgrade(&socket) as _);
        self.replication.offer_replicas(socket, tls);
    }

    fn is_offering(&self) -> bool {
        self.replication.offers_replicas()
    }

    fn withdraw(&self) {
        self.replication.withdraw_replicas();
    }

    fn sever(&self) {
        self.replication.sever_replicas();
    }
}

impl SocketHandover for Daemon {
    fn claim_inherited(&self, name: &str) -> Option<TcpListener> {
        self.exports.sockets.claim(name).and_then(resume_tcp)
    }

    fn register_socket(&self, name: String, socket: &Arc<TcpListener>) {
        self.exports.sockets.register(name, Arc::downgrade(socket) as _);
    }
}
