//! Connections to other nodes' APIs: made, kept for the next call, and what their failures mean.
//!
//! What it promises: nothing is sent before it is known who is at the other end, by the authority and by the key in the table.
//! No request is sent twice. Every call ends within its limit of time.

use super::identity::sha256;
use super::place::HostPort;
use super::token::Token;
use crate::daemon::expiry;
use braid_api::{ErrorBody, ErrorDetail, Kind, MemberNode};
use braid_client::{innermost, io_error_kind, tls_error};
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

/// Longest that connecting may take, with the TLS handshake.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest answer of a node, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A connection that waits for its next request.
pub type Idle = SendRequest<Full<Bytes>>;

/// Who is called, for errors.
#[derive(Clone, Debug)]
pub struct Callee {
    /// Its name, where it is known.
    pub name: String,
    /// Its address.
    pub place: HostPort,
}

impl Callee {
    /// The node of a line of the table.
    pub fn of(line: &MemberNode) -> Callee {
        let place = HostPort::parse(&line.api, 0);
        Callee { name: line.name.clone(), place: place.expect("lines are checked before they are kept") }
    }

    fn failed(&self, kind: Kind, why: &str, remedy: &str) -> ErrorDetail {
        ErrorDetail::new(kind, format!("node {} at {} cannot be reached: {why}", self.name, self.place))
            .with("node", &self.name)
            .with("address", &self.place)
            .remedy(remedy)
    }

    /// It has not answered in time.
    pub fn late(&self, limit: Duration) -> ErrorDetail {
        let why = format!("it has not answered within {:.1} s", limit.as_secs_f64());
        self.failed(
            Kind::TimedOut,
            &why,
            "is the machine up, and is its daemon busy? `braid node list` shows how it does",
        )
    }

    /// What a failure of the connection means.
    pub fn unreachable(&self, error: &(dyn Error + 'static)) -> ErrorDetail {
        let (why, remedy) = meaning(error);
        self.failed(Kind::Unreachable, &why, remedy)
    }
}

/// What a failure means, and what to do about it.
fn meaning(error: &(dyn Error + 'static)) -> (String, &'static str) {
    let reason = innermost(error);
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
                "has an address changed its machine? `braid node list` shows who is expected where",
            ),
            CertificateError::ApplicationVerificationFailure => (
                "who answers there has a certificate for it, but not its key".to_owned(),
                "somebody may have the authority's key who should not: find out who listens there, and make another cluster",
            ),
            CertificateError::UnknownIssuer | CertificateError::BadSignature => (
                format!("who answers there belongs to another cluster, or is no node ({reason})"),
                "is it the address of the node? If that node joined another cluster, remove it here: braid node remove NAME",
            ),
            _ => {
                (format!("its certificate is not accepted ({reason})"), "`braid node list` shows who is expected where")
            }
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
            "`braid node list` there shows whom it knows; a node that was removed joins again with an invitation",
        ),
        Some(Tls::AlertReceived(Alert::BadCertificate | Alert::CertificateUnknown)) => (
            format!("it does not accept our certificate, which is not valid yet where its clock is behind ({reason})"),
            clocks,
        ),
        Some(_) => (reason, "is it a node's address (port 10870), or does something else listen there?"),
        None => match io_error_kind(error) {
            Some(io::ErrorKind::ConnectionRefused) => {
                ("nobody listens there".to_owned(), "start its daemon; its log says whether its address was taken")
            }
            Some(io::ErrorKind::TimedOut) => {
                ("no answer".to_owned(), "is the machine up, and does a firewall let the port through?")
            }
            _ => (reason, "is the machine up, and its network? `braid node list` shows when it is back"),
        },
    }
}

/// A connection that was made, and when the certificate ends that the node has shown.
pub struct Made {
    /// The connection.
    pub idle: Idle,
    /// When the certificate ends, in Unix time.
    pub ends_unix_s: Option<i64>,
}

/// Connects to a node of the table.
///
/// # Errors
/// It cannot be reached; somebody else answers there.
pub async fn to_member(config: Arc<ClientConfig>, line: &MemberNode) -> Result<Made, ErrorDetail> {
    let callee = Callee::of(line);
    let name = ServerName::try_from(line.uuid.clone()).expect("a UUID is a right name of a host");
    let made = open(&callee, name, config);
    limited(&callee, CONNECT_MAX, made).await
}

/// Connects to the node that has given an invitation, and believes nobody else.
///
/// # Errors
/// It cannot be reached; its authority is not the one of the invitation.
pub async fn to_inviter(token: &Token) -> Result<Made, ErrorDetail> {
    let callee = inviter(token);
    let wrong_name = |_| {
        ErrorDetail::new(
            Kind::InvalidArgument,
            format!("{:?} in the invitation is no name of a host", token.place.host),
        )
        .remedy("copy the invitation whole, as `braid node invite` has printed it")
    };
    let name = ServerName::try_from(token.place.host.clone()).map_err(wrong_name)?;
    let config = ClientConfig::builder_with_provider(braid_tls::provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| ErrorDetail::new(Kind::Internal, format!("TLS cannot be set up: {error}")))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OfAuthority(token.authority)))
        .with_no_client_auth();
    limited(&callee, CONNECT_MAX, open(&callee, name, Arc::new(config))).await
}

/// Who has given an invitation, for errors.
pub fn inviter(token: &Token) -> Callee {
    Callee { name: "that has given the invitation".to_owned(), place: token.place.clone() }
}

/// Waits for so long.
///
/// # Errors
/// What `work` says; [`Kind::TimedOut`].
pub async fn limited<T>(
    callee: &Callee,
    limit: Duration,
    work: impl Future<Output = Result<T, ErrorDetail>>,
) -> Result<T, ErrorDetail> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(callee.late(limit)))
}

async fn open(callee: &Callee, name: ServerName<'static>, config: Arc<ClientConfig>) -> Result<Made, ErrorDetail> {
    let connecting = async {
        let stream = TcpStream::connect((callee.place.host.as_str(), callee.place.port)).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(config).connect(name, stream).await
    };
    let stream = connecting.await.map_err(|error| callee.unreachable(&error))?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let ends_unix_s = certificate.and_then(|certificate| expiry::of_certificate(certificate)).map(|(_, to)| to);
    let (idle, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| callee.unreachable(&error))?;
    // What goes wrong there is what the request says, too.
    tokio::spawn(connection);
    Ok(Made { idle, ends_unix_s })
}

/// One request, made.
///
/// # Errors
/// The path is none.
pub fn request(
    callee: &Callee,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<Request<Full<Bytes>>, ErrorDetail> {
    let internal = |why: String| ErrorDetail::new(Kind::Internal, format!("a request cannot be made: {why}"));
    let mut request = Request::builder().method(method).uri(path).header(HOST, callee.place.to_string());
    let body = match body {
        Some(body) => {
            request = request.header(CONTENT_TYPE, "application/json");
            serde_json::to_vec(body).map_err(|error| internal(error.to_string()))?
        }
        None => Vec::new(),
    };
    request.body(Full::new(Bytes::from(body))).map_err(|error| internal(error.to_string()))
}

/// Why a request was not answered.
pub enum Unanswered {
    /// It never left, as the connection had ended: it may go over another one.
    NotSent(Box<Request<Full<Bytes>>>),
    /// Anything else.
    Failed(ErrorDetail),
}

/// Sends a request and reads its whole answer; the connection is there for the next one then.
///
/// # Errors
/// The node's own errors are answers, too: see [`understood`].
pub async fn ask(
    callee: &Callee,
    idle: &mut Idle,
    request: Request<Full<Bytes>>,
) -> Result<(hyper::StatusCode, Bytes), Unanswered> {
    let failed = |error: &(dyn Error + 'static)| Unanswered::Failed(callee.unreachable(error));
    if idle.ready().await.is_err() {
        return Err(Unanswered::NotSent(Box::new(request)));
    }
    let answer = match idle.try_send_request(request).await {
        Ok(answer) => answer,
        Err(mut error) => {
            return Err(match error.take_message() {
                Some(request) => Unanswered::NotSent(Box::new(request)),
                None => failed(&error.into_error()),
            });
        }
    };
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| failed(error.as_ref()))?;
    Ok((status, body.to_bytes()))
}

/// An answer as JSON, or the node's own error.
///
/// # Errors
/// The node's; [`Kind::Internal`] where it is no answer of a node.
pub fn understood(callee: &Callee, status: hyper::StatusCode, body: &[u8]) -> Result<serde_json::Value, ErrorDetail> {
    let strange = |why: String| {
        ErrorDetail::new(Kind::Internal, format!("node {} at {} {why}", callee.name, callee.place))
            .with("node", &callee.name)
            .with("address", &callee.place)
            .remedy("is it a Braid daemon of this version that listens there? (`braid --version`)")
    };
    if !status.is_success() {
        return Err(match serde_json::from_slice::<ErrorBody>(body) {
            Ok(body) => body.error,
            Err(_) => strange(format!("answered HTTP {status} without saying why")),
        });
    }
    if body.is_empty() {
        return Ok(serde_json::Value::Null);
    }
    serde_json::from_slice(body).map_err(|error| strange(format!("gave an answer that cannot be understood: {error}")))
}

/// Believes whom one authority has certified, of which only its digest is known; that one's certificate has to come along.
#[derive(Debug)]
struct OfAuthority([u8; 32]);

impl ServerCertVerifier for OfAuthority {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let unknown = || Tls::InvalidCertificate(CertificateError::UnknownIssuer);
        let root = between.iter().find(|one| sha256(one) == self.0).ok_or_else(unknown)?;
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
