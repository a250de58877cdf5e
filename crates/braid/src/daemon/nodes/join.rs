//! Making a cluster, inviting, and joining.

use super::connect::{self, Unanswered};
use super::door::{ADMIT, bind};
use super::file::{Cluster, SavedInvitation, hosts};
use super::identity::{
    self, Identity, Subject, certify, digest_of, digest_of_key, digest_text, make_authority, make_key,
};
use super::place::HostPort;
use super::token::{Token, hex};
use super::{DATA_PORT, NODE_PORT, Nodes, table, unix_s};
use braid_api::limits::INVITATIONS_MAX;
use braid_api::{
    Admit, Admitted, ErrorDetail, InitCluster, Invitation, Invite, JoinCluster, Kind, MemberNode, Node, names,
};
use hyper::Method;
use rcgen::KeyPair;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use uuid::Uuid;

/// For how long an invitation holds, unless told otherwise, in seconds.
const INVITATION_S: u64 = 3600;
/// Longest that one may hold: 30 days, in seconds.
const INVITATION_S_MAX: u64 = 30 * 86_400;
/// Longest that being admitted may take, with connecting.
const ADMIT_MAX: Duration = Duration::from_secs(15);

/// A node that is about to be one.
struct Candidate {
    line: MemberNode,
    key: KeyPair,
    listener: TcpListener,
    /// For data; none where these are offered elsewhere.
    data_listener: Option<TcpListener>,
}

fn random_uuid() -> Result<Uuid, ErrorDetail> {
    let bytes: [u8; 16] = random()?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

fn random<const N: usize>() -> Result<[u8; N], ErrorDetail> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        ErrorDetail::new(Kind::Internal, format!("the operating system gives no random numbers: {error}"))
    })?;
    Ok(bytes)
}

impl Candidate {
    async fn new(
        nodes: &Nodes,
        name: &str,
        listen: &str,
        data: Option<&str>,
        tls_data: bool,
    ) -> Result<Candidate, ErrorDetail> {
        names::check_name(name).map_err(|why| {
            ErrorDetail::new(Kind::InvalidArgument, format!("the name {name:?}: {why}")).with("node", name)
        })?;
        let listen = HostPort::reachable("the address for other nodes", listen, NODE_PORT)?;
        let data = match data {
            Some(data) => HostPort::reachable("the address for data", data, DATA_PORT)?,
            // Who wants any port that is free wants two of them.
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
        Ok(Candidate { line, key, listener, data_listener })
    }

    /// What the node holds from now on.
    fn cluster(&self, cluster: Uuid, authority: Identity, members: Vec<MemberNode>) -> Result<Cluster, ErrorDetail> {
        let own = Uuid::parse_str(&self.line.uuid).expect("it was made a moment ago");
        let subject = Subject { uuid: own, name: &self.line.name, hosts: hosts(&self.line) };
        let certificate = certify(&authority, cluster, &subject, &self.key, unix_s())?;
        let identity = Identity { certificate, key: self.key.serialize_pem() };
        Ok(Cluster::new(cluster, own, authority, identity, members))
    }
}

impl Nodes {
    /// Makes a cluster of this node alone.
    ///
    /// # Errors
    /// It belongs to one already; an address cannot be listened on; the file cannot be written.
    pub async fn init(self: &Arc<Self>, ask: InitCluster) -> Result<Node, ErrorDetail> {
        let _one_at_a_time = self.changing.lock().await;
        self.refuse_member()?;
        let new = Candidate::new(self, &ask.name, &ask.listen, ask.data.as_deref(), !ask.data_plain).await?;
        let cluster = random_uuid()?;
        let authority = make_authority(cluster, unix_s())?;
        self.keep(new.cluster(cluster, authority, vec![new.line.clone()])?).await?;
        self.is_member(new, format!("node {} has made the cluster {cluster}", ask.name))
    }

    /// Joins the cluster of an invitation.
    ///
    /// # Errors
    /// This node belongs to one already; the one that has invited cannot be reached, is not believed, or refuses; as
    /// [`Nodes::init`].
    pub async fn join(self: &Arc<Self>, ask: JoinCluster) -> Result<Node, ErrorDetail> {
        let token = Token::parse(&ask.token)?;
        let _one_at_a_time = self.changing.lock().await;
        self.refuse_member()?;
        let new = Candidate::new(self, &ask.name, &ask.listen, ask.data.as_deref(), !ask.data_plain).await?;
        let callee = connect::inviter(&token);
        let admitted = connect::limited(&callee, ADMIT_MAX, be_admitted(&token, &new.line)).await?;
        let strange = |why: &str| {
            ErrorDetail::new(
                Kind::Internal,
                format!("the answer to the invitation at {} cannot be right: {why}", token.place),
            )
            .remedy("are both daemons of one version? (`braid --version`)")
        };
        let authority = Identity { certificate: admitted.authority_certificate, key: admitted.authority_key };
        if digest_of(&authority.certificate)? != token.authority || !identity::fits(&authority) {
            return Err(strange("it has another authority"));
        }
        table::check(&admitted.members)?;
        if !table::present(&admitted.members).any(|line| *line == new.line) {
            return Err(strange("its table does not have this node"));
        }
        let cluster = Uuid::parse_str(&admitted.cluster).map_err(|_| strange("it names no cluster"))?;
        self.keep(new.cluster(cluster, authority, admitted.members)?).await?;
        self.is_member(new, format!("node {} has joined the cluster {cluster}", ask.name))
    }

    /// Refuses what only a daemon without a cluster may do.
    fn refuse_member(&self) -> Result<(), ErrorDetail> {
        let Ok(held) = self.member() else {
            // Of a node that was removed a moment ago, addresses may still be taken.
            self.stop_listening();
            return Ok(());
        };
        let own = &held.cluster.own_line().name;
        Err(ErrorDetail::new(
            Kind::Exists,
            format!("this daemon is node {own} of the cluster {} already", held.cluster.cluster),
        )
        .with("node", own)
        .remedy(format!("`braid node list` shows it; take it out first with `braid node remove {own}`")))
    }

    fn is_member(self: &Arc<Self>, new: Candidate, message: String) -> Result<Node, ErrorDetail> {
        self.tell("node_joined", message, &new.line.name);
        self.serve(new.listener);
        self.serve_data(new.data_listener);
        self.wake.notify_one();
        self.node(&new.line.uuid)
    }

    /// Makes an invitation.
    ///
    /// # Errors
    /// This daemon belongs to no cluster; there are too many; the file cannot be written.
    pub async fn invite(&self, ask: Invite) -> Result<Invitation, ErrorDetail> {
        let wanted_s = ask.expires_s.unwrap_or(INVITATION_S);
        if !(1..=INVITATION_S_MAX).contains(&wanted_s) {
            return Err(ErrorDetail::new(
                Kind::InvalidArgument,
                "an invitation holds for a second at least, and 30 days at most",
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
            let secret_sha256 = hex(&identity::sha256(&secret));
            cluster.invitations.push(SavedInvitation { secret_sha256, expires_unix_s });
            let authority = digest_of(&cluster.authority.certificate)?;
            let place = HostPort::parse(&cluster.own_line().api, 0).expect("lines are checked before they are kept");
            Ok(Invitation { token: Token { place, authority, secret }.reveal(), expires_unix_s })
        })
        .await
    }

    /// Lets a node in that has an invitation.
    ///
    /// # Errors
    /// It has none that holds; its name is taken. The invitation holds on then.
    pub async fn admit(&self, ask: Admit) -> Result<Admitted, ErrorDetail> {
        let now = unix_s();
        let tag = super::token::from_hex::<16>(&ask.secret).map(|secret| hex(&identity::sha256(&secret)));
        let name = ask.node.name.clone();
        let admitted = self
            .change(|cluster| {
                let known = cluster
                    .invitations
                    .iter()
                    .position(|known| Some(&known.secret_sha256) == tag.as_ref() && known.expires_unix_s > now);
                let Some(known) = known else {
                    return Err(ErrorDetail::new(
                        Kind::Unauthenticated,
                        "the invitation does not hold: it was used, its time is over, or it is not of this node",
                    )
                    .remedy("make another one with `braid node invite`"));
                };
                table::admits(&cluster.members, &ask.node)?;
                cluster.invitations.remove(known);
                table::merge(&mut cluster.members, std::slice::from_ref(&ask.node));
                Ok(Admitted {
                    cluster: cluster.cluster.to_string(),
                    authority_certificate: cluster.authority.certificate.clone(),
                    authority_key: cluster.authority.key.clone(),
                    members: cluster.members.clone(),
                })
            })
            .await?;
        self.tell("node_joined", format!("node {name} has joined by an invitation of this node"), &name);
        self.wake.notify_one();
        Ok(admitted)
    }
}

/// Shows the invitation to the one that has given it.
async fn be_admitted(token: &Token, line: &MemberNode) -> Result<Admitted, ErrorDetail> {
    let callee = connect::inviter(token);
    let mut made = connect::to_inviter(token).await?;
    let body = Admit { secret: hex(&token.secret), node: line.clone() };
    let request = connect::request(&callee, Method::POST, ADMIT, Some(&body))?;
    let (status, body) = connect::ask(&callee, &mut made.idle, request).await.map_err(|error| match error {
        Unanswered::Failed(error) => error,
        Unanswered::NotSent(_) => callee.unreachable(&std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
    })?;
    let answer = connect::understood(&callee, status, &body)?;
    serde_json::from_value(answer).map_err(|error| {
        ErrorDetail::new(
            Kind::Internal,
            format!("the answer to the invitation at {} cannot be understood: {error}", token.place),
        )
        .remedy("are both daemons of one version? (`braid --version`)")
    })
}
