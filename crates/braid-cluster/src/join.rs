//! Makes a cluster, invites nodes, and joins a cluster.

use super::connect::{self, RequestError};
use super::file::{Cluster, SavedInvitation, hosts};
use super::host_port::HostPort;
use super::identity::{
    self, Identity, Subject, certify, digest_of, digest_of_key, digest_text, make_authority, make_key,
};
use super::listener::{ADMIT_PATH, bind};
use super::token::{Token, hex};
use super::{DATA_PORT, NODE_PORT, Nodes, table, unix_s};
use braid_api::limits::INVITATIONS_MAX;
use braid_api::{
    Admit, Admitted, ErrorDetail, InitCluster, Invitation, Invite, JoinCluster, Kind, MemberNode, Node, names,
};
use braid_tls::digest::sha256;
use hyper::Method;
use rcgen::KeyPair;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use uuid::Uuid;

/// Default lifetime of an invitation, in seconds.
const INVITATION_S: u64 = 3600;
/// Maximum lifetime of an invitation: 30 days, in seconds.
const INVITATION_S_MAX: u64 = 30 * 86_400;
/// Maximum time for being admitted, connecting included.
const ADMIT_MAX: Duration = Duration::from_secs(15);

/// A daemon that is about to become a node.
struct NewNode {
    line: MemberNode,
    key: KeyPair,
    listener: TcpListener,
    /// Listener for the replicas' data; `None` if they are offered already.
    data_listener: Option<TcpListener>,
}

fn random_uuid() -> Result<Uuid, ErrorDetail> {
    let bytes: [u8; 16] = random()?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

fn random<const N: usize>() -> Result<[u8; N], ErrorDetail> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        ErrorDetail::new(Kind::Internal, format!("the operating system provides no random numbers: {error}"))
    })?;
    Ok(bytes)
}

impl NewNode {
    async fn new(
        nodes: &Nodes,
        name: &str,
        listen: &str,
        data: Option<&str>,
        tls_data: bool,
    ) -> Result<NewNode, ErrorDetail> {
        names::check_name(name).map_err(|why| {
            ErrorDetail::new(Kind::InvalidArgument, format!("the name {name:?}: {why}")).with("node", name)
        })?;
        let listen = HostPort::reachable("the address for other nodes", listen, NODE_PORT)?;
        let data = match data {
            Some(data) => HostPort::reachable("the address for data", data, DATA_PORT)?,
            // Port 0 requests any free port. The data then gets a free port of its own, not the default one.
            None => HostPort { host: listen.host.clone(), port: if listen.port == 0 { 0 } else { DATA_PORT } },
        };
        let (listener, listen) = bind("the address for other nodes", &listen).await?;
        let (data_listener, data) = match nodes.offers_data() {
            true => (None, data),
            false => {
                let (listener, data) = bind("the address for data", &data).await?;
                (Some(listener), data)
            }
        };
        let key = make_key()?;
        let line = MemberNode {
            uuid: random_uuid()?.to_string(),
            version: 1,
            removed: false,
            name: name.to_owned(),
            api: listen.to_string(),
            data: data.to_string(),
            tls_data,
            key_sha256: digest_text(&digest_of_key(&key)),
        };
        table::check_line(&line)?;
        Ok(NewNode { line, key, listener, data_listener })
    }

    /// Returns the content of the new node's file.
    fn cluster(&self, cluster: Uuid, authority: Identity, members: Vec<MemberNode>) -> Result<Cluster, ErrorDetail> {
        let own = Uuid::parse_str(&self.line.uuid).expect("it was made a moment ago");
        let subject = Subject { uuid: own, name: &self.line.name, hosts: hosts(&self.line) };
        let certificate = certify(&authority, cluster, &subject, &self.key, unix_s())?;
        let identity = Identity { certificate, key: self.key.serialize_pem() };
        Ok(Cluster::new(cluster, own, authority, identity, members))
    }
}

impl Nodes {
    /// Makes a cluster with this node as its only member. The membership is durable before this returns.
    ///
    /// # Errors
    /// The daemon belongs to a cluster already; name or address is invalid; the daemon cannot listen on an address; the
    /// file cannot be written.
    pub async fn init(self: &Arc<Self>, request: InitCluster) -> Result<Node, ErrorDetail> {
        let _one_at_a_time = self.change_lock.lock().await;
        self.refuse_if_member()?;
        let new =
            NewNode::new(self, &request.name, &request.listen, request.data.as_deref(), !request.data_plain).await?;
        let cluster = random_uuid()?;
        let authority = make_authority(cluster, unix_s())?;
        self.store(new.cluster(cluster, authority, vec![new.line.clone()])?).await?;
        self.begin_membership(new, format!("node {} has made the cluster {cluster}", request.name))
    }

    /// Joins the cluster of an invitation. If this fails after the inviting node has admitted this one, the invitation
    /// is used up, and the cluster's table has a node that does not exist.
    ///
    /// # Errors
    /// The daemon belongs to a cluster already; the inviting node cannot be reached, is not authentic, or refuses; as
    /// [`Nodes::init`].
    pub async fn join(self: &Arc<Self>, request: JoinCluster) -> Result<Node, ErrorDetail> {
        let token = Token::parse(&request.token)?;
        let _one_at_a_time = self.change_lock.lock().await;
        self.refuse_if_member()?;
        let new =
            NewNode::new(self, &request.name, &request.listen, request.data.as_deref(), !request.data_plain).await?;
        let callee = connect::inviter(&token);
        let admitted = connect::with_timeout(&callee, ADMIT_MAX, request_admission(&token, &new.line)).await?;
        let unexpected = |why: &str| {
            ErrorDetail::new(
                Kind::Internal,
                format!("the reply to the invitation at {} is invalid: {why}", token.address),
            )
            .remedy("are both daemons of one version? (`braid --version`)")
        };
        let authority = Identity { certificate: admitted.authority_certificate, key: admitted.authority_key };
        if digest_of(&authority.certificate)? != token.authority || !identity::key_matches(&authority) {
            return Err(unexpected("it has another authority"));
        }
        table::check(&admitted.members)?;
        if !table::present(&admitted.members).any(|line| *line == new.line) {
            return Err(unexpected("its table does not have this node"));
        }
        let cluster = Uuid::parse_str(&admitted.cluster).map_err(|_| unexpected("it names no cluster"))?;
        self.store(new.cluster(cluster, authority, admitted.members)?).await?;
        self.begin_membership(new, format!("node {} has joined the cluster {cluster}", request.name))
    }

    /// Refuses an operation that only a daemon without a cluster may do.
    fn refuse_if_member(&self) -> Result<(), ErrorDetail> {
        let Ok(membership) = self.member() else {
            // A node that was just removed may still listen on its addresses.
            self.stop_listening();
            return Ok(());
        };
        let own = &membership.cluster.own_line().name;
        Err(ErrorDetail::new(
            Kind::Exists,
            format!("this daemon is node {own} of the cluster {} already", membership.cluster.cluster),
        )
        .with("node", own)
        .remedy(format!("`braid node list` shows it; remove it first with `braid node remove {own}`")))
    }

    fn begin_membership(self: &Arc<Self>, new: NewNode, message: String) -> Result<Node, ErrorDetail> {
        self.report_event("node_joined", message, &new.line.name);
        self.serve(new.listener);
        self.serve_data(new.data_listener);
        self.wake.notify_one();
        self.node(&new.line.uuid)
    }

    /// Makes an invitation.
    ///
    /// # Errors
    /// The daemon belongs to no cluster; there are too many open invitations; the file cannot be written.
    pub async fn invite(&self, request: Invite) -> Result<Invitation, ErrorDetail> {
        let wanted_s = request.expires_s.unwrap_or(INVITATION_S);
        if !(1..=INVITATION_S_MAX).contains(&wanted_s) {
            return Err(ErrorDetail::new(
                Kind::InvalidArgument,
                "an invitation is valid for at least 1 second and at most 30 days",
            )
            .remedy("for example: braid node invite --expires 2h"));
        }
        let secret: [u8; 16] = random()?;
        let now = unix_s();
        let expires_unix_s = now + wanted_s as i64;
        self.change(|cluster| {
            cluster.invitations.retain(|invitation| invitation.expires_unix_s > now);
            if cluster.invitations.len() >= INVITATIONS_MAX {
                return Err(ErrorDetail::new(
                    Kind::LimitReached,
                    format!("{INVITATIONS_MAX} invitations are open already"),
                )
                .remedy("use them, or wait until they end"));
            }
            let secret_sha256 = hex(&sha256(&secret));
            cluster.invitations.push(SavedInvitation { secret_sha256, expires_unix_s });
            let authority = digest_of(&cluster.authority.certificate)?;
            let address = HostPort::parse(&cluster.own_line().api, 0).expect("lines are checked before they are kept");
            Ok(Invitation { token: Token { address, authority, secret }.reveal(), expires_unix_s })
        })
        .await
    }

    /// Admits a node that presents an invitation, and uses the invitation up: the file without the invitation and with
    /// the new node is durable before this returns. The reply contains the authority's key.
    ///
    /// # Errors
    /// The node has no valid invitation; its name or identity is taken; there are too many nodes; the file cannot be
    /// written. The invitation then stays valid.
    pub async fn admit(&self, request: Admit) -> Result<Admitted, ErrorDetail> {
        let now = unix_s();
        let tag = super::token::from_hex::<16>(&request.secret).map(|secret| hex(&sha256(&secret)));
        let name = request.node.name.clone();
        let admitted = self
            .change(|cluster| {
                let invitation = cluster
                    .invitations
                    .iter()
                    .position(|known| Some(&known.secret_sha256) == tag.as_ref() && known.expires_unix_s > now);
                let Some(invitation) = invitation else {
                    return Err(ErrorDetail::new(
                        Kind::Unauthenticated,
                        "the invitation is not valid: it was used, has expired, or was not issued by this node",
                    )
                    .remedy("make another one with `braid node invite`"));
                };
                table::check_admission(&cluster.members, &request.node)?;
                cluster.invitations.remove(invitation);
                table::merge(&mut cluster.members, std::slice::from_ref(&request.node));
                Ok(Admitted {
                    cluster: cluster.cluster.to_string(),
                    authority_certificate: cluster.authority.certificate.clone(),
                    authority_key: cluster.authority.key.clone(),
                    members: cluster.members.clone(),
                })
            })
            .await?;
        self.report_event("node_joined", format!("node {name} has joined by an invitation of this node"), &name);
        self.wake.notify_one();
        Ok(admitted)
    }
}

/// Presents the invitation to the node that issued it, and returns the cluster's authority and table.
async fn request_admission(token: &Token, line: &MemberNode) -> Result<Admitted, ErrorDetail> {
    let callee = connect::inviter(token);
    let mut connection = connect::to_inviter(token).await?;
    let body = Admit { secret: hex(&token.secret), node: line.clone() };
    let request = connect::request(&callee, Method::POST, ADMIT_PATH, Some(&body))?;
    let (status, body) = connect::send(&callee, &mut connection.idle, request).await.map_err(|error| match error {
        RequestError::Failed(error) => error,
        RequestError::NotSent(_) => callee.unreachable(&std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
    })?;
    let reply = connect::parse_reply(&callee, status, &body)?;
    serde_json::from_value(reply).map_err(|error| {
        ErrorDetail::new(
            Kind::Internal,
            format!("the reply to the invitation at {} cannot be parsed: {error}", token.address),
        )
        .remedy("are both daemons of one version? (`braid --version`)")
    })
}
