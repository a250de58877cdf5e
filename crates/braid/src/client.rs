//! The daemon's API from the other side: one call, one answer, errors in the shape of the API.

use braid_api::{ErrorBody, ErrorDetail, Kind};
use reqwest::{Method, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// A client of the daemon at one socket.
pub struct Client {
    http: reqwest::Client,
    socket: PathBuf,
}

impl Client {
    /// A client of the daemon that listens at `socket`. Nothing is sent yet.
    ///
    /// # Errors
    /// The HTTP client cannot be set up.
    pub fn new(socket: &Path) -> Result<Client, ErrorDetail> {
        let http = reqwest::Client::builder()
            .unix_socket(socket)
            .build()
            .map_err(|error| ErrorDetail::new(Kind::Internal, format!("the HTTP client cannot be set up: {error}")))?;
        Ok(Client { http, socket: socket.to_owned() })
    }

    /// Reads `path`.
    ///
    /// # Errors
    /// The daemon's, or [`Kind::Unreachable`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ErrorDetail> {
        let response = self.send::<()>(Method::GET, path, None).await?;
        self.read(response).await
    }

    /// Asks for a change.
    ///
    /// # Errors
    /// The daemon's, or [`Kind::Unreachable`].
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ErrorDetail> {
        let response = self.send(Method::POST, path, Some(body)).await?;
        self.read(response).await
    }

    /// Removes what is at `path`.
    ///
    /// # Errors
    /// The daemon's, or [`Kind::Unreachable`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ErrorDetail> {
        let response = self.send::<()>(Method::DELETE, path, None).await?;
        self.read(response).await
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
        let mut request = self.http.request(method, format!("http://braid{path}"));
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.text().await.map_err(|error| self.unreachable(&error))?;
        match serde_json::from_str::<ErrorBody>(&text) {
            Ok(body) => Err(body.error),
            Err(_) => Err(ErrorDetail::new(
                Kind::Internal,
                format!("{} answered HTTP {status} without saying why", self.socket.display()),
            )
            .remedy("is it the socket of a Braid daemon? `braid status` shows which socket is used")),
        }
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, ErrorDetail> {
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("the daemon's answer cannot be understood: {error}"))
                .remedy("are this command and the daemon of the same version? (`braid --version`, `braid status`)")
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> ErrorDetail {
        let reason = innermost(error);
        let io_kind = io_error_kind(error);
        let socket = self.socket.display();
        let (message, remedy) = match io_kind {
            Some(std::io::ErrorKind::NotFound) => (
                format!("no daemon is running: there is no socket {socket}"),
                "start one with `braid serve` (or `systemctl start braid`), or name its socket with --socket or BRAID_SOCKET",
            ),
            Some(std::io::ErrorKind::ConnectionRefused) => (
                format!("no daemon is running: nobody answers at {socket}, which a daemon that died left behind"),
                "start it again with `braid serve` (or `systemctl start braid`)",
            ),
            Some(std::io::ErrorKind::PermissionDenied) => (
                format!("the daemon cannot be reached: you may not use its socket {socket}"),
                "run the command as the daemon's user, or become a member of the group `braid`",
            ),
            _ => (
                format!("the daemon at {socket} cannot be reached: {reason}"),
                "see its log; `braid status` tries again",
            ),
        };
        ErrorDetail::new(Kind::Unreachable, message).with("socket", socket).remedy(remedy)
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut at = error;
    while let Some(next) = at.source() {
        at = next;
    }
    at.to_string()
}

fn io_error_kind(error: &(dyn std::error::Error + 'static)) -> Option<std::io::ErrorKind> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            // Wrappers of the operating system's error say "other" themselves.
            if io.raw_os_error().is_some() {
                return Some(io.kind());
            }
        }
        at = error.source();
    }
    None
}
