//! Connections to the APIs of other nodes: they are made, reused by later calls, and their failures explained.
//!
//! Guarantees: nothing is sent before the other end is authenticated, by the authority and by the key in the table. No
//! request is sent twice. Every call ends within its time limit.

use super::host_port::HostPort;
use super::token::Token;
use braid_api::{ErrorBody, ErrorDetail, Kind, MemberNode};
use braid_client::{innermost_message, io_error_kind, tls_error};
use braid_tls::digest::sha256;
use braid_tls::expiry;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{AlertDescription as Alert, CertificateError, ClientConfig, Error as Tls, version::TLS13};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde::Serialize;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Maximum time for connecting, the TLS handshake included.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Maximum length of a node's reply, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// A connection that waits for its next request.
pub type Idle = SendRequest<Full<Bytes>>;

/// The name and the address of the called node, which errors name.
#[derive(Clone, Debug)]
pub struct Callee {
    /// Its name, if it is known.
    pub name: String,
    /// Its address.
    pub address: HostPort,
}

impl Callee {
    /// Returns the callee of a line of the table.
    pub fn of(line: &MemberNode) -> Callee {
        let address = HostPort::parse(&line.api, 0);
        Callee { name: line.name.clone(), address: address.expect("lines are checked before they are kept") }
    }

    fn failed(&self, kind: Kind, why: &str, remedy: &str) -> ErrorDetail {
        ErrorDetail::new(kind, format!("node {} at {} cannot be reached: {why}", self.name, self.address))
            .with("node", &self.name)
            .with("address", &self.address)
            .remedy(remedy)
    }

    /// Returns the error for a missing reply.
    pub fn timed_out(&self, limit: Duration) -> ErrorDetail {
        let why = format!("it has not answered within {:.1} s", limit.as_secs_f64());
        self.failed(
            Kind::TimedOut,
            &why,
            "is the machine up, and is its daemon busy? `braid node list` shows how it does",
        )
    }

    /// Returns the error for a failed connection.
    pub fn unreachable(&self, error: &(dyn Error + 'static)) -> ErrorDetail {
        let (why, remedy) = explain(error);
        self.failed(Kind::Unreachable, &why, remedy)
    }
}

/// Returns what a failure means, and what to do about it.
fn explain(error: &(dyn Error + 'static)) -> (String, &'static str) {
    let reason = innermost_message(error);
    let clocks = "compare the clocks of both machines (`date -u`); a node renews its certificate by itself while its daemon runs, \
                  and `braid node renew` does so at once";
    match tls_error(error) {
        Some(Tls::InvalidCertificate(why)) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                (format!("its certificate has expired ({reason})"), clocks)
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
                format!(
                    "its certificate is not valid yet, so that the clocks of the two machines differ by more than a day ({reason})"
                ),
                clocks,
            ),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
                format!("another node answers there ({reason})"),
                "has the address moved to another machine? `braid node list` shows the address of each node",
            ),
            CertificateError::ApplicationVerificationFailure => (
                "the server at that address has a certificate for it, but not its key".to_owned(),
                "the authority's key may be compromised: find out which process listens there, and make another cluster",
            ),
            CertificateError::UnknownIssuer | CertificateError::BadSignature => (
                format!("the server at that address belongs to another cluster, or is no node ({reason})"),
                "is it the address of the node? If that node joined another cluster, remove it here: braid node remove NAME",
            ),
            _ => (
                format!("its certificate is not accepted ({reason})"),
                "`braid node list` shows the address of each node",
            ),
        },
        Some(Tls::AlertReceived(Alert::CertificateExpired)) => {
            (format!("it says that our certificate has expired ({reason})"), clocks)
        }
        Some(Tls::AlertReceived(Alert::UnknownCA | Alert::DecryptError)) => (
            format!("it belongs to another cluster, and does not know ours ({reason})"),
            "is it the address of the node? If that node joined another cluster, remove it here: braid node remove NAME",
        ),
        Some(Tls::AlertReceived(Alert::AccessDenied)) => (
            format!("it does not know this node: was it removed there? ({reason})"),
            "`braid node list` there shows the nodes that it knows; a node that was removed joins again with an invitation",
        ),
        Some(Tls::AlertReceived(Alert::BadCertificate | Alert::CertificateUnknown)) => (
            format!("it does not accept our certificate, which is not valid yet where its clock is behind ({reason})"),
            clocks,
        ),
        Some(_) => (reason, "is it a node's address (port 10870), or does something else listen there?"),
        None => match io_error_kind(error) {
            Some(io::ErrorKind::ConnectionRefused) => {
                ("no process listens there".to_owned(), "start its daemon; its log says whether its address was taken")
            }
            Some(io::ErrorKind::TimedOut) => {
                ("no answer".to_owned(), "is the machine up, and does a firewall let the port through?")
            }
            _ => (reason, "is the machine up, and its network? `braid node list` shows when it is back"),
        },
    }
}

/// A new connection.
pub struct NewConnection {
    /// The connection.
    pub idle: Idle,
    /// When the certificate presented by the node expires, in Unix time.
    pub ends_unix_s: Option<i64>,
}

/// Connects to a node of the table.
///
/// # Errors
/// The node cannot be reached; another node answers at its address.
pub async fn to_member(config: Arc<ClientConfig>, line: &MemberNode) -> Result<NewConnection, ErrorDetail> {
    let callee = Callee::of(line);
    let name = ServerName::try_from(line.uuid.clone()).expect("a UUID is a right name of a host");
    let opening = open(&callee, name, config);
    with_timeout(&callee, CONNECT_MAX, opening).await
}

/// Connects to the node that issued an invitation. Only a certificate of the invitation's authority is accepted.
///
/// # Errors
/// The node cannot be reached; its authority is not the one of the invitation.
pub async fn to_inviter(token: &Token) -> Result<NewConnection, ErrorDetail> {
    let callee = inviter(token);
    let wrong_name = |_| {
        ErrorDetail::new(
            Kind::InvalidArgument,
            format!("{:?} in the invitation is not a valid host name", token.address.host),
        )
        .remedy("copy the invitation whole, as `braid node invite` has printed it")
    };
    let name = ServerName::try_from(token.address.host.clone()).map_err(wrong_name)?;
    let config = ClientConfig::builder_with_provider(braid_tls::provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| ErrorDetail::new(Kind::Internal, format!("TLS cannot be set up: {error}")))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedAuthority(token.authority)))
        .with_no_client_auth();
    with_timeout(&callee, CONNECT_MAX, open(&callee, name, Arc::new(config))).await
}

/// Returns the node that issued an invitation, as callee for errors.
pub fn inviter(token: &Token) -> Callee {
    Callee { name: "that issued the invitation".to_owned(), address: token.address.clone() }
}

/// Waits for `work`, for at most `limit`.
///
/// # Errors
/// The error of `work`; [`Kind::TimedOut`].
pub async fn with_timeout<T>(
    callee: &Callee,
    limit: Duration,
    work: impl Future<Output = Result<T, ErrorDetail>>,
) -> Result<T, ErrorDetail> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(callee.timed_out(limit)))
}

async fn open(
    callee: &Callee,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<NewConnection, ErrorDetail> {
    let connecting = async {
        let stream = TcpStream::connect((callee.address.host.as_str(), callee.address.port)).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(config).connect(name, stream).await
    };
    let stream = connecting.await.map_err(|error| callee.unreachable(&error))?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let ends_unix_s = certificate.and_then(|certificate| expiry::of_certificate(certificate)).map(|(_, to)| to);
    let (idle, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| callee.unreachable(&error))?;
    // An error of the connection task is also returned to the request.
    braid_tasks::spawn(connection);
    Ok(NewConnection { idle, ends_unix_s })
}

/// Builds a request.
///
/// # Errors
/// The path is invalid.
pub fn request(
    callee: &Callee,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<Request<Full<Bytes>>, ErrorDetail> {
    let internal = |why: String| ErrorDetail::new(Kind::Internal, format!("a request cannot be made: {why}"));
    let mut request = Request::builder().method(method).uri(path).header(HOST, callee.address.to_string());
    let body = match body {
        Some(body) => {
            request = request.header(CONTENT_TYPE, "application/json");
            serde_json::to_vec(body).map_err(|error| internal(error.to_string()))?
        }
        None => Vec::new(),
    };
    request.body(Full::new(Bytes::from(body))).map_err(|error| internal(error.to_string()))
}

/// Why a request has no reply.
pub enum RequestError {
    /// The request was never sent, because the connection had ended: it may be sent over another one.
    NotSent(Box<Request<Full<Bytes>>>),
    /// Any other failure.
    Failed(ErrorDetail),
}

/// Sends a request and reads its whole reply. The connection can then take the next request.
///
/// # Errors
/// The connection failed. An error reported by the node is a reply, too: see [`parse_reply`].
pub async fn send(
    callee: &Callee,
    idle: &mut Idle,
    request: Request<Full<Bytes>>,
) -> Result<(hyper::StatusCode, Bytes), RequestError> {
    let failed = |error: &(dyn Error + 'static)| RequestError::Failed(callee.unreachable(error));
    if idle.ready().await.is_err() {
        return Err(RequestError::NotSent(Box::new(request)));
    }
    let reply = match idle.try_send_request(request).await {
        Ok(reply) => reply,
        Err(mut error) => {
            return Err(match error.take_message() {
                Some(request) => RequestError::NotSent(Box::new(request)),
                None => failed(&error.into_error()),
            });
        }
    };
    let status = reply.status();
    let body = Limited::new(reply.into_body(), REPLY_BYTES_MAX).collect().await;
    let body = body.map_err(|error| failed(error.as_ref()))?;
    Ok((status, body.to_bytes()))
}

/// Parses a reply as JSON.
///
/// # Errors
/// The node's own error; [`Kind::Internal`] if the reply does not come from a node.
pub fn parse_reply(callee: &Callee, status: hyper::StatusCode, body: &[u8]) -> Result<serde_json::Value, ErrorDetail> {
    let unexpected = |why: String| {
        ErrorDetail::new(Kind::Internal, format!("node {} at {} {why}", callee.name, callee.address))
            .with("node", &callee.name)
            .with("address", &callee.address)
            .remedy("is it a Braid daemon of this version that listens there? (`braid --version`)")
    };
    if !status.is_success() {
        return Err(match serde_json::from_slice::<ErrorBody>(body) {
            Ok(body) => body.error,
            Err(_) => unexpected(format!("replied HTTP {status} without an error message")),
        });
    }
    if body.is_empty() {
        return Ok(serde_json::Value::Null);
    }
    serde_json::from_slice(body).map_err(|error| unexpected(format!("sent an invalid reply: {error}")))
}

/// Accepts a certificate that the authority has issued whose certificate has this SHA-256 digest. The server must
/// present the authority's certificate in its chain.
#[derive(Debug)]
struct PinnedAuthority([u8; 32]);

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let unknown = || Tls::InvalidCertificate(CertificateError::UnknownIssuer);
        let root = intermediates.iter().find(|one| sha256(one) == self.0).ok_or_else(unknown)?;
        let mut roots = RootCertStore::empty();
        roots.add(root.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), braid_tls::provider())
            .build()
            .map_err(|_| unknown())?;
        verifier.verify_server_cert(certificate, &[], name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(Tls::General("nodes speak TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &braid_tls::provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        braid_tls::provider().signature_verification_algorithms.supported_schemes()
    }
}
