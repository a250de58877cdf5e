//! A client of the daemon's API: each call sends a request and returns the reply or an API error.
//!
//! What it is: HTTP/1.1 over the daemon's Unix socket, or over TLS to a daemon on another machine.
//! What it guarantees: one connection carries many calls, one after the other, and the client replaces a connection that the daemon has
//! closed.
//! What it never does: send anything unencrypted over a network, or send a request twice.

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
use std::any::Any;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

/// Maximum duration of connecting to another machine, including the TLS handshake.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Maximum size of a reply or an error from the daemon, in bytes.
const REPLY_BYTES_MAX: usize = 256 << 20;

/// The address and the credentials for a daemon on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The host name or IP address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The trusted authorities, and the client's own certificate and key.
    pub files: ClientFiles,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
}

/// A function that the client calls before each request, with the method, the path and the body. The client drops the
/// returned value when the head of the reply has arrived or the request has failed.
pub type Observer = fn(&str, &str, &[u8]) -> Box<dyn Any + Send>;

/// A client of one daemon.
pub struct Client {
    target: Target,
    observer: Option<Observer>,
    /// The connection of the last call, if there is one. The daemon may have closed it.
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

enum Target {
    Unix(PathBuf),
    Tls { host: String, port: u16, name: ServerName<'static>, config: Arc<ClientConfig>, token: Option<HeaderValue> },
}

/// A reply whose body has not been read.
pub struct Response(hyper::Response<Incoming>);

impl Response {
    /// Returns the next chunk of the body, or `None` at its end.
    ///
    /// # Errors
    /// The connection failed.
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
    /// Returns a client of the daemon that listens at `socket`. Does not connect yet.
    pub fn at_socket(socket: &Path) -> Client {
        Client { target: Target::Unix(socket.to_owned()), observer: None, connection: Mutex::new(None) }
    }

    /// Returns a client of a daemon on another machine. Reads the files, and does not connect yet.
    ///
    /// # Errors
    /// A file cannot be read or has invalid content; the host name is invalid.
    pub fn at_host(remote: &Remote) -> Result<Client, ErrorDetail> {
        let name = ServerName::try_from(remote.host.clone()).map_err(|_| {
            ErrorDetail::new(Kind::InvalidArgument, format!("{:?} is not a valid host name", remote.host))
                .remedy("a valid one: --host https://node1.example:10870")
        })?;
        let token = remote.token_file.as_deref().map(token).transpose()?;
        let config = braid_tls::client(&remote.files)?;
        let target = Target::Tls { host: remote.host.clone(), port: remote.port, name, config, token };
        Ok(Client { target, observer: None, connection: Mutex::new(None) })
    }

    /// Returns the client with an observer of its requests, with which a command shows progress, for example.
    #[must_use]
    pub fn observed(self, observer: Observer) -> Client {
        Client { observer: Some(observer), ..self }
    }

    /// Gets the resource at `path`.
    ///
    /// # Errors
    /// The daemon's error, or [`Kind::Unreachable`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ErrorDetail> {
        self.read(self.send::<()>(Method::GET, path, None).await?).await
    }

    /// Posts `body` to `path`.
    ///
    /// # Errors
    /// The daemon's error, or [`Kind::Unreachable`].
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ErrorDetail> {
        self.read(self.send(Method::POST, path, Some(body)).await?).await
    }

    /// Changes the resource at `path`.
    ///
    /// # Errors
    /// The daemon's error, or [`Kind::Unreachable`].
    pub async fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ErrorDetail> {
        self.read(self.send(Method::PATCH, path, Some(body)).await?).await
    }

    /// Replaces the resource at `path`.
    ///
    /// # Errors
    /// The daemon's error, or [`Kind::Unreachable`].
    pub async fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ErrorDetail> {
        self.read(self.send(Method::PUT, path, Some(body)).await?).await
    }

    /// Deletes the resource at `path`.
    ///
    /// # Errors
    /// The daemon's error, or [`Kind::Unreachable`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ErrorDetail> {
        self.read(self.send::<()>(Method::DELETE, path, None).await?).await
    }

    /// Sends one request. Returns the reply, with its body unread, if the status is a success.
    ///
    /// All calls use one connection, one after the other: the next call waits until the body of this reply was read, or
    /// connects anew if the reply was dropped before. The client does not limit the time until the reply.
    ///
    /// # Errors
    /// The daemon's error, or [`Kind::Unreachable`].
    pub async fn send<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Response, ErrorDetail> {
        let body = match body {
            Some(body) => Some(serde_json::to_vec(body).map_err(|error| invalid_request(&error))?),
            None => None,
        };
        let _observed =
            self.observer.map(|observer| observer(method.as_str(), path, body.as_deref().unwrap_or_default()));
        let request = self.request(method, path, body)?;
        let mut idle_connection = self.connection.lock().await;
        let mut connection = match idle_connection.take() {
            Some(old) => old,
            None => self.connect().await?,
        };
        if connection.ready().await.is_err() {
            connection = self.connect().await?;
        }
        let reply = match connection.try_send_request(request).await {
            Ok(reply) => reply,
            // The error contains the request if no byte of it was sent, because the daemon had closed the idle
            // connection. The request may then be sent over another connection.
            Err(mut error) => match error.take_message() {
                Some(request) => {
                    connection = self.connect().await?;
                    connection.send_request(request).await.map_err(|error| self.unreachable(&error))?
                }
                None => return Err(self.unreachable(&error.into_error())),
            },
        };
        *idle_connection = Some(connection);
        drop(idle_connection);
        if reply.status().is_success() {
            return Ok(Response(reply));
        }
        let status = reply.status();
        let bytes = self.bytes(Response(reply)).await?;
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => Err(body.error),
            Err(_) => Err(self.unexpected_reply(status)),
        }
    }

    fn request(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Request<Full<Bytes>>, ErrorDetail> {
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
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(Bytes::from(body.unwrap_or_default()))).map_err(|error| invalid_request(&error))
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
        // An error of the connection is also the error of the request.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, ErrorDetail> {
        let bytes = self.bytes(response).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("the daemon's reply is invalid: {error}"))
                .remedy("are this command and the daemon of the same version? (`braid --version`, `braid status`)")
        })
    }

    async fn bytes(&self, mut response: Response) -> Result<Vec<u8>, ErrorDetail> {
        let mut all = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if all.len() + chunk.len() > REPLY_BYTES_MAX {
                return Err(ErrorDetail::new(Kind::Internal, "the daemon's reply is too long")
                    .remedy("is it a Braid daemon that listens there?"));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    fn address(&self) -> String {
        match &self.target {
            Target::Unix(path) => path.display().to_string(),
            Target::Tls { host, port, .. } => format!("https://{}", authority(host, *port)),
        }
    }

    fn unexpected_reply(&self, status: StatusCode) -> ErrorDetail {
        let message = format!("{} replied HTTP {status} without an error message", self.address());
        ErrorDetail::new(Kind::Internal, message)
            .remedy("is it a Braid daemon that listens there? `braid status` shows the address in use")
    }

    fn unreachable(&self, error: &(dyn Error + 'static)) -> ErrorDetail {
        let address = self.address();
        let (message, remedy) = match &self.target {
            Target::Unix(_) => socket_error(&address, error),
            Target::Tls { .. } => of_host(&address, error),
        };
        let key = if matches!(self.target, Target::Unix(_)) { "socket" } else { "host" };
        ErrorDetail::new(Kind::Unreachable, message).with(key, address).remedy(remedy)
    }
}

fn invalid_request(error: &(dyn Error + 'static)) -> ErrorDetail {
    ErrorDetail::new(Kind::Internal, format!("a request cannot be made: {error}"))
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns the authorization header with the first token of a token file.
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

fn socket_error(socket: &str, error: &(dyn Error + 'static)) -> (String, &'static str) {
    match io_error_kind(error) {
        Some(io::ErrorKind::NotFound) => (
            format!("no daemon is running: there is no socket {socket}"),
            "start one with `braid serve` (or `systemctl start braid`), or name its socket with --socket or BRAID_SOCKET",
        ),
        Some(io::ErrorKind::ConnectionRefused) if !is_socket(socket) => (
            format!("the daemon cannot be reached: {socket} is not a socket"),
            "name the daemon's socket with --socket or BRAID_SOCKET",
        ),
        Some(io::ErrorKind::ConnectionRefused) => (
            format!("no daemon is running: nothing listens at {socket}, which a crashed daemon left behind"),
            "start it again with `braid serve` (or `systemctl start braid`)",
        ),
        Some(io::ErrorKind::PermissionDenied) => (
            format!("the daemon cannot be reached: you have no permission to use its socket {socket}"),
            "run the command as the daemon's user, or become a member of the group `braid`",
        ),
        _ => (
            format!("the daemon at {socket} cannot be reached: {}", innermost_message(error)),
            "see its log; `braid status` tries again",
        ),
    }
}

/// Returns whether the path is a socket. A path that cannot be examined counts as a socket.
fn is_socket(path: &str) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).map_or(true, |found| found.file_type().is_socket())
}

fn of_host(address: &str, error: &(dyn Error + 'static)) -> (String, &'static str) {
    use rustls::{AlertDescription as Alert, CertificateError, Error as Tls};
    let because = |why: &str| format!("the daemon at {address} cannot be reached: {why}");
    let reason = innermost_message(error);
    match tls_error(error) {
        Some(Tls::InvalidCertificate(why)) => match why {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
                because(&format!("its certificate is for another host ({reason})")),
                "name the host as its certificate does, or make a certificate for this name",
            ),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
                because(&format!("its certificate has expired ({reason})")),
                "renew it there, and look at the clocks of both machines",
            ),
            _ => (
                because(&format!("its certificate is not trusted ({reason})")),
                "name its authority with --ca FILE or BRAID_CA",
            ),
        },
        Some(Tls::AlertReceived(Alert::CertificateRequired | Alert::BadCertificate | Alert::UnknownCA)) => (
            because(&format!("it rejects the client's certificate, or requires one ({reason})")),
            "name the certificate and the key that it trusts with --cert and --key",
        ),
        Some(_) => (because(&reason), "is it the port of the API (10870), with TLS?"),
        None => match io_error_kind(error) {
            Some(io::ErrorKind::ConnectionRefused) => (
                because("no process listens there"),
                "start it with `braid serve --api-listen …`, or name another port: --host https://HOST:PORT",
            ),
            Some(io::ErrorKind::TimedOut) => {
                (because("no answer"), "is the machine up, and does a firewall let the port through?")
            }
            _ => (because(&reason), "see its log; `braid status` tries again"),
        },
    }
}

/// Returns the message of the innermost cause of an error.
pub fn innermost_message(error: &(dyn Error + 'static)) -> String {
    chain(error).last().unwrap_or(error).to_string()
}

/// Returns the cause of an error. An I/O error may wrap another error.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// Returns an error and all of its causes.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&at| cause(at))
}

/// Returns the TLS error among an error and its causes, if there is one.
pub fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    chain(error).find_map(|at| at.downcast_ref::<rustls::Error>())
}

/// Returns the kind of the operating system's error, or of a timeout, among an error and its causes, if there is one.
pub fn io_error_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    // Errors that wrap an error of the operating system have the kind "other" themselves.
    let kinds = chain(error).filter_map(|at| at.downcast_ref::<io::Error>());
    kinds.filter(|io| io.raw_os_error().is_some() || io.kind() == io::ErrorKind::TimedOut).map(io::Error::kind).last()
}
