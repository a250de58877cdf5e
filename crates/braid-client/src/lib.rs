//! The daemon's API from the other side: one call, one answer, errors in the shape of the API.
//!
//! What it is: HTTP/1.1 over the daemon's Unix socket, or over TLS to a daemon on another machine.
//! What it promises: one connection serves many calls, one after the other; one that the daemon has closed is made anew.
//! What it never does: nothing is sent in the clear over a network, and no request is sent twice.

#![forbid(unsafe_code)]

use braid_api::limits::API_TOKEN_BYTES_MAX;
use braid_api::{ErrorBody, ErrorDetail, Kind};
use braid_tls::ClientFiles;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

/// Longest that connecting to another machine may take, with the TLS handshake.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest error that is read from a daemon, and longest answer.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// How a daemon on another machine is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its name or number.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whom to believe, and who we are.
    pub files: ClientFiles,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
}

/// A client of one daemon.
pub struct Client {
    target: Target,
    /// The connection of the last call, if the daemon still holds it.
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

enum Target {
    Unix(PathBuf),
    Tls { host: String, port: u16, name: ServerName<'static>, config: Arc<ClientConfig>, token: Option<HeaderValue> },
}

/// An answer whose body has not been read.
pub struct Response(hyper::Response<Incoming>);

impl Response {
    /// The next piece of the body, or none at its end.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, hyper::Error> {
        loop {
            match self.0.frame().await.transpose()? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

impl Client {
    /// A client of the daemon that listens at `socket`. Nothing is sent yet.
    pub fn at_socket(socket: &Path) -> Client {
        Client { target: Target::Unix(socket.to_owned()), connection: Mutex::new(None) }
    }

    /// A client of a daemon on another machine. Files are read, nothing is sent yet.
    ///
    /// # Errors
    /// A file cannot be read or holds something else; the host is no name.
    pub fn of_host(remote: &Remote) -> Result<Client, ErrorDetail> {
        let name = ServerName::try_from(remote.host.clone()).map_err(|_| {
            ErrorDetail::new(Kind::InvalidArgument, format!("{:?} is no name of a host", remote.host))
                .remedy("a right one: --host https://node1.example:10870")
        })?;
        let token = remote.token_file.as_deref().map(token).transpose()?;
        let config = braid_tls::client(&remote.files)?;
        let target = Target::Tls { host: remote.host.clone(), port: remote.port, name, config, token };
        Ok(Client { target, connection: Mutex::new(None) })
    }

    /// Reads `path`.
    ///
    /// # Errors
    /// The daemon's, or [`Kind::Unreachable`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ErrorDetail> {
        self.read(self.send::<()>(Method::GET, path, None).await?).await
    }

    /// Asks for a change.
    ///
    /// # Errors
    /// The daemon's, or [`Kind::Unreachable`].
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ErrorDetail> {
        self.read(self.send(Method::POST, path, Some(body)).await?).await
    }

    /// Changes what is at `path`.
    ///
    /// # Errors
    /// The daemon's, or [`Kind::Unreachable`].
    pub async fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ErrorDetail> {
        self.read(self.send(Method::PATCH, path, Some(body)).await?).await
    }

    /// Makes what is at `path` be this.
    ///
    /// # Errors
    /// The daemon's, or [`Kind::Unreachable`].
    pub async fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ErrorDetail> {
        self.read(self.send(Method::PUT, path, Some(body)).await?).await
    }

    /// Removes what is at `path`.
    ///
    /// # Errors
    /// The daemon's, or [`Kind::Unreachable`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ErrorDetail> {
        self.read(self.send::<()>(Method::DELETE, path, None).await?).await
    }

    /// Sends one request and returns the answer if it is a success, its body unread.
    ///
    /// # Errors
    /// The daemon's, or [`Kind::Unreachable`].
    pub async fn send<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Response, ErrorDetail> {
        let request = self.request(method, path, body)?;
        let mut held = self.connection.lock().await;
        let mut connection = match held.take() {
            Some(old) => old,
            None => self.connect().await?,
        };
        if connection.ready().await.is_err() {
            connection = self.connect().await?;
        }
        let answer = match connection.try_send_request(request).await {
            Ok(answer) => answer,
            // Closed while it was idle: the request never left, and so may go over another connection.
            Err(mut error) => match error.take_message() {
                Some(request) => {
                    connection = self.connect().await?;
                    connection.send_request(request).await.map_err(|error| self.unreachable(&error))?
                }
                None => return Err(self.unreachable(&error.into_error())),
            },
        };
        *held = Some(connection);
        drop(held);
        if answer.status().is_success() {
            return Ok(Response(answer));
        }
        let status = answer.status();
        let bytes = self.bytes(Response(answer)).await?;
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => Err(body.error),
            Err(_) => Err(self.no_braid(status)),
        }
    }

    fn request<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Request<Full<Bytes>>, ErrorDetail> {
        let internal = |why: String| ErrorDetail::new(Kind::Internal, format!("a request cannot be made: {why}"));
        let mut request = Request::builder().method(method).uri(path);
        match &self.target {
            Target::Unix(_) => request = request.header(HOST, "braid"),
            Target::Tls { host, port, token, .. } => {
                request = request.header(HOST, authority(host, *port));
                if let Some(token) = token {
                    request = request.header(AUTHORIZATION, token);
                }
            }
        }
        let body = match body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                serde_json::to_vec(body).map_err(|error| internal(error.to_string()))?
            }
            None => Vec::new(),
        };
        request.body(Full::new(Bytes::from(body))).map_err(|error| internal(error.to_string()))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ErrorDetail> {
        match &self.target {
            Target::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| self.unreachable(&error))?;
                self.handshake(stream).await
            }
            Target::Tls { host, port, name, config, .. } => {
                let connecting = async {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    stream.set_nodelay(true)?;
                    TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream).await
                };
                match tokio::time::timeout(CONNECT_MAX, connecting).await {
                    Ok(Ok(stream)) => self.handshake(stream).await,
                    Ok(Err(error)) => Err(self.unreachable(&error)),
                    Err(_) => Err(self.unreachable(&io::Error::from(io::ErrorKind::TimedOut))),
                }
            }
        }
    }

    async fn handshake<S>(&self, stream: S) -> Result<SendRequest<Full<Bytes>>, ErrorDetail>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.unreachable(&error))?;
        // What goes wrong there is what the request says, too.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, ErrorDetail> {
        let bytes = self.bytes(response).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("the daemon's answer cannot be understood: {error}"))
                .remedy("are this command and the daemon of the same version? (`braid --version`, `braid status`)")
        })
    }

    async fn bytes(&self, mut response: Response) -> Result<Vec<u8>, ErrorDetail> {
        let mut all = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if all.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(ErrorDetail::new(Kind::Internal, "the daemon's answer does not end")
                    .remedy("is it a Braid daemon that listens there?"));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    fn place(&self) -> String {
        match &self.target {
            Target::Unix(path) => path.display().to_string(),
            Target::Tls { host, port, .. } => format!("https://{}", authority(host, *port)),
        }
    }

    fn no_braid(&self, status: StatusCode) -> ErrorDetail {
        let message = format!("{} answered HTTP {status} without saying why", self.place());
        ErrorDetail::new(Kind::Internal, message)
            .remedy("is it a Braid daemon that listens there? `braid status` shows which one is asked")
    }

    fn unreachable(&self, error: &(dyn Error + 'static)) -> ErrorDetail {
        let place = self.place();
        let (message, remedy) = match &self.target {
            Target::Unix(_) => of_socket(&place, error),
            Target::Tls { .. } => of_host(&place, error),
        };
        let key = if matches!(self.target, Target::Unix(_)) { "socket" } else { "host" };
        ErrorDetail::new(Kind::Unreachable, message).with(key, place).remedy(remedy)
    }
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The header that a token file stands for: its first token.
fn token(path: &Path) -> Result<HeaderValue, ErrorDetail> {
    let failed = |why: String, remedy: &str| {
        let kind = if path.exists() { Kind::InvalidArgument } else { Kind::NotFound };
        ErrorDetail::new(kind, format!("the token file {}: {why}", path.display()))
            .with("path", path.display())
            .remedy(remedy)
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| failed(format!("it cannot be read: {error}"), "name a file of yours with --token-file"))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let remedy = "write the token that the daemon knows into it, alone on one line";
    let token = lines.next().ok_or_else(|| failed("there is no token in it".to_owned(), remedy))?;
    if token.len() > API_TOKEN_BYTES_MAX {
        return Err(failed(format!("a token has at most {API_TOKEN_BYTES_MAX} characters"), remedy));
    }
    let mut header = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| failed("a token consists of printable characters".to_owned(), remedy))?;
    header.set_sensitive(true);
    Ok(header)
}

fn of_socket(socket: &str, error: &(dyn Error + 'static)) -> (String, &'static str) {
    match io_error_kind(error) {
        Some(io::ErrorKind::NotFound) => (
            format!("no daemon is running: there is no socket {socket}"),
            "start one with `braid serve` (or `systemctl start braid`), or name its socket with --socket or BRAID_SOCKET",
        ),
        Some(io::ErrorKind::ConnectionRefused) if !is_socket(socket) => (
            format!("the daemon cannot be reached: {socket} is no socket"),
            "name the daemon's socket with --socket or BRAID_SOCKET",
        ),
        Some(io::ErrorKind::ConnectionRefused) => (
            format!("no daemon is running: nobody answers at {socket}, which a daemon that died left behind"),
            "start it again with `braid serve` (or `systemctl start braid`)",
        ),
        Some(io::ErrorKind::PermissionDenied) => (
            format!("the daemon cannot be reached: you may not use its socket {socket}"),
            "run the command as the daemon's user, or become a member of the group `braid`",
        ),
        _ => (
            format!("the daemon at {socket} cannot be reached: {}", innermost(error)),
            "see its log; `braid status` tries again",
        ),
    }
}

/// Whether a socket is there; what cannot be looked at is taken for one.
fn is_socket(path: &str) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).map_or(true, |found| found.file_type().is_socket())
}

fn of_host(place: &str, error: &(dyn Error + 'static)) -> (String, &'static str) {
    use rustls::{AlertDescription as Alert, CertificateError, Error as Tls};
    let because = |why: &str| format!("the daemon at {place} cannot be reached: {why}");
    let reason = innermost(error);
    match tls_error(error) {
        Some(Tls::InvalidCertificate(why)) => match why {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
                because(&format!("its certificate is another host's ({reason})")),
                "name the host as its certificate does, or make a certificate for this name",
            ),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
                because(&format!("its certificate has expired ({reason})")),
                "renew it there, and look at the clocks of both machines",
            ),
            _ => (
                because(&format!("its certificate is not trusted ({reason})")),
                "name the authority that it comes from with --ca FILE or BRAID_CA",
            ),
        },
        Some(Tls::AlertReceived(Alert::CertificateRequired | Alert::BadCertificate | Alert::UnknownCA)) => (
            because(&format!("it does not accept our certificate, or wants one ({reason})")),
            "name the certificate and the key that it trusts with --cert and --key",
        ),
        Some(_) => (because(&reason), "is it the port of the API (10870), with TLS?"),
        None => match io_error_kind(error) {
            Some(io::ErrorKind::ConnectionRefused) => (
                because("nobody listens there"),
                "start it with `braid serve --api-listen …`, or name another port: --host https://HOST:PORT",
            ),
            Some(io::ErrorKind::TimedOut) => {
                (because("no answer"), "is the machine up, and does a firewall let the port through?")
            }
            _ => (because(&reason), "see its log; `braid status` tries again"),
        },
    }
}

/// What an error comes from in the end, in words.
pub fn innermost(error: &(dyn Error + 'static)) -> String {
    chain(error).last().unwrap_or(error).to_string()
}

/// What an error comes from; an I/O error may wrap another one.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// The error and everything that it comes from.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&at| cause(at))
}

/// What TLS objected to, if it was that.
pub fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    chain(error).find_map(|at| at.downcast_ref::<rustls::Error>())
}

/// What the operating system objected to, if it was that.
pub fn io_error_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    // Wrappers of the operating system's error say "other" themselves.
    let kinds = chain(error).filter_map(|at| at.downcast_ref::<io::Error>());
    kinds.filter(|io| io.raw_os_error().is_some() || io.kind() == io::ErrorKind::TimedOut).map(io::Error::kind).last()
}
