//! Accepts clients of the API, over the Unix socket and over the network with TLS.
//!
//! Guarantees: the number of connections is bounded, separately for the network and for the socket; further clients
//! wait in the kernel. A client that does not finish the handshake, the head of a request or its body in time is
//! disconnected. If all permits are taken, the oldest pending client makes room for a new one: on the network a client
//! without an admitted request, on the socket one whose first request has not arrived completely.
//! Never: no part of a network request is processed before its client is authorized.

use crate::access::{Access, Caller, RequestHead};
use crate::client::Client;
use crate::http;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use braid_api::limits::{API_CLIENTS_MAX, API_NETWORK_CLIENTS_MAX, API_REQUEST_TIMEOUT_MS};
use braid_api::{ErrorDetail, Kind};
use braid_tasks as tasks;
use braid_tls::ServerTls;
use braid_tls::digest::digest_of_certificates_key;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

/// A connection without progress for this long is closed: longer than any change takes to be answered.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// Maximum time in which the head of a request, or the TLS handshake, has to complete.
const HEAD_MAX: Duration = Duration::from_millis(API_REQUEST_TIMEOUT_MS);
/// Maximum length of the head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Maximum header lines of a request.
const HEAD_LINES_MAX: usize = 64;
/// Minimum interval between log lines about refused clients.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The API on the network.
pub struct Network {
    /// Its listening socket.
    pub listener: Arc<TcpListener>,
    /// Its certificate and key.
    pub tls: Arc<ServerTls>,
    /// Its tokens.
    pub access: Arc<Access>,
    /// Its refused clients.
    pub refusals: Arc<RefusedClients>,
}

impl Network {
    /// Returns the admission of its clients.
    pub fn admission(&self) -> Admission {
        let (tls, access) = (Arc::clone(&self.tls), Arc::clone(&self.access));
        Admission {
            tls_config: Arc::new(move || tls.current()),
            authorize: Arc::new(move |request, caller| {
                access.authorize(request.method, request.headers, caller).map(|()| Authentication::Authenticated)
            }),
            refusals: Arc::clone(&self.refusals),
        }
    }
}

/// Returns the TLS configuration for new connections.
pub type TlsConfigSource = Arc<dyn Fn() -> Arc<rustls::ServerConfig> + Send + Sync>;
/// Decides whether a request may be made.
pub type AuthorizeRequest = Arc<dyn Fn(RequestHead<'_>, Caller) -> Result<Authentication, ErrorDetail> + Send + Sync>;

/// Whether the client of an admitted request is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// Authenticated: it keeps its connection.
    Authenticated,
    /// Not authenticated: its connection can be evicted, and is closed after one request.
    Unauthenticated,
}

/// How network clients are admitted.
#[derive(Clone)]
pub struct Admission {
    /// The certificate that they are shown.
    pub tls_config: TlsConfigSource,
    /// Decides which requests may be made.
    pub authorize: AuthorizeRequest,
    /// Counts refused clients.
    pub refusals: Arc<RefusedClients>,
}

/// Refused clients: counted, and logged at a limited rate.
#[derive(Default)]
pub struct RefusedClients {
    count: AtomicU64,
    last_logged: Mutex<Option<Instant>>,
}

impl RefusedClients {
    /// Returns how many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn add(&self, peer: SocketAddr, why: &dyn std::fmt::Display) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut last_logged = self.last_logged.lock().unwrap_or_else(PoisonError::into_inner);
        // A client that retries often must not fill the log.
        if last_logged.is_none_or(|last_logged| last_logged.elapsed() >= REFUSAL_LOG_INTERVAL) {
            *last_logged = Some(Instant::now());
            tracing::warn!("a client of the API at {peer} was refused ({count} so far): {why}");
        }
    }
}

/// Clients that have not made an admitted request yet, in the order in which they connected. They are evicted for newer
/// clients if all permits are taken.
struct PendingClients<P>(Mutex<BTreeMap<u64, (AbortHandle, P)>>);

/// One such client, until a request of it is admitted.
struct PendingClient<P> {
    number: u64,
    clients: Arc<PendingClients<P>>,
}

impl<P> Default for PendingClients<P> {
    fn default() -> PendingClients<P> {
        PendingClients(Mutex::default())
    }
}

impl<P> PendingClients<P> {
    fn list(&self) -> MutexGuard<'_, BTreeMap<u64, (AbortHandle, P)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Disconnects the oldest of them. Returns its peer, or none if the list is empty.
    fn evict_oldest(&self) -> Option<P> {
        let (_, (task, peer)) = self.list().pop_first()?;
        task.abort();
        Some(peer)
    }
}

impl<P> PendingClient<P> {
    /// Takes the client off the list: it cannot be evicted any more.
    fn admit(&self) {
        self.clients.list().remove(&self.number);
    }
}

impl<P> Drop for PendingClient<P> {
    fn drop(&mut self) {
        self.admit();
    }
}

/// Serves clients of the Unix socket until the daemon stops.
pub async fn over_socket(listener: Arc<UnixListener>, router: Router, mut stopping: watch::Receiver<bool>) {
    let permits = Arc::new(Semaphore::new(API_CLIENTS_MAX));
    let connections = GracefulShutdown::new();
    let service = TowerToHyperService::new(router);
    let pending_clients: Arc<PendingClients<()>> = Arc::default();
    for number in 0.. {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                if permits.available_permits() == 0 {
                    pending_clients.evict_oldest();
                }
                let permit = tokio::select! {
                    permit = acquire_permit(&permits) => permit,
                    _ = stopping.wait_for(|stopping| *stopping) => break,
                };
                let client = Client::new(stream, permit, IDLE_MAX);
                let pending_client = Arc::new(PendingClient { number, clients: Arc::clone(&pending_clients) });
                let service = service.clone();
                let service = service_fn(move |mut request: hyper::Request<Incoming>| {
                    if request.body().is_end_stream() {
                        pending_client.admit();
                    } else {
                        let pending_client = Arc::clone(&pending_client);
                        let arrived = http::OnArrival(Arc::new(move || pending_client.admit()));
                        request.extensions_mut().insert(arrived);
                    }
                    service.call(request)
                });
                // The lock is held across the spawn, so that a task that ends at once finds itself on the list.
                let mut list = pending_clients.list();
                let task = tasks::spawn(serve(client, service, connections.watcher()));
                list.insert(number, (task.abort_handle(), ()));
            }
            Err(error) => pause_after(&error).await,
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// Serves clients of the network until the daemon stops.
pub async fn over_network(
    listener: Arc<TcpListener>,
    admission: Admission,
    router: Router,
    mut stopping: watch::Receiver<bool>,
) {
    let (tls_config, refusals) = (Arc::clone(&admission.tls_config), Arc::clone(&admission.refusals));
    let permits = Arc::new(Semaphore::new(API_NETWORK_CLIENTS_MAX));
    let connections = GracefulShutdown::new();
    let service = TowerToHyperService::new(router.layer(from_fn_with_state(admission, authorize_request)));
    let pending_clients: Arc<PendingClients<SocketAddr>> = Arc::default();
    for number in 0.. {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                if permits.available_permits() == 0
                    && let Some(evicted) = pending_clients.evict_oldest()
                {
                    refusals
                        .add(evicted, &"it was not authenticated yet when all connections were taken by newer clients");
                }
                let permit = tokio::select! {
                    permit = acquire_permit(&permits) => permit,
                    _ = stopping.wait_for(|stopping| *stopping) => break,
                };
                let (service, watcher) = (service.clone(), connections.watcher());
                let (tls, refusals) = (tls_config(), Arc::clone(&refusals));
                let pending_client = Arc::new(PendingClient { number, clients: Arc::clone(&pending_clients) });
                // The lock is held across the spawn, so that a task that ends at once finds itself on the list.
                let mut list = pending_clients.list();
                let task = tasks::spawn(async move {
                    match tokio::time::timeout(HEAD_MAX, tls_handshake(stream, tls)).await {
                        Ok(Ok((stream, caller))) => {
                            let client = Client::new(stream, permit, IDLE_MAX);
                            let service = service_fn(move |mut request: hyper::Request<Incoming>| {
                                request.extensions_mut().insert((caller, peer));
                                request.extensions_mut().insert(Arc::clone(&pending_client));
                                service.call(request)
                            });
                            serve(client, service, watcher).await;
                        }
                        Ok(Err(error)) => refusals.add(peer, &error),
                        Err(_) => refusals.add(peer, &"the TLS handshake took too long"),
                    }
                });
                list.insert(number, (task.abort_handle(), peer));
            }
            Err(error) => pause_after(&error).await,
        }
    }
    drop(listener);
    connections.shutdown().await;
}

async fn acquire_permit(permits: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed")
}

async fn pause_after(error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    // Out of descriptors or memory: waiting lets other connections end; accepting again at once would only spin.
    tracing::error!("a client of the API could not be accepted: {error}");
    tokio::time::sleep(Duration::from_millis(200)).await;
}

type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

async fn tls_handshake(stream: TcpStream, config: Arc<rustls::ServerConfig>) -> io::Result<(TlsStream, Caller)> {
    stream.set_nodelay(true)?;
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    // The handshake has verified it against the client authorities, if there are any.
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let key_sha256 = certificate.and_then(|certificate| digest_of_certificates_key(certificate));
    let caller = Caller { certified: certificate.is_some(), key_sha256 };
    Ok((stream, caller))
}

async fn serve<I, S>(client: Client<I>, service: S, watcher: Watcher)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Service<hyper::Request<Incoming>, Response = Response> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_headers(HEAD_LINES_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(client), service);
    // Clients may disconnect at any time; that is no fault of the daemon.
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!("a client of the API: {error}");
    }
}

/// Passes a network request on if its client may make it.
async fn authorize_request(State(admission): State<Admission>, request: Request, next: Next) -> Response {
    let Some(&(caller, peer)) = request.extensions().get::<(Caller, SocketAddr)>() else {
        let detail = ErrorDetail::new(Kind::Internal, "the peer of this request is not known");
        return http::ErrorResponse::from(detail).into_response();
    };
    let head = RequestHead { method: request.method(), path: request.uri().path(), headers: request.headers() };
    let detail = match (admission.authorize)(head, caller) {
        Ok(Authentication::Authenticated) => {
            if let Some(pending_client) = request.extensions().get::<Arc<PendingClient<SocketAddr>>>() {
                pending_client.admit();
            }
            return next.run(request).await;
        }
        Ok(Authentication::Unauthenticated) => {
            let mut response = next.run(request).await;
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            return response;
        }
        Err(detail) => detail,
    };
    admission.refusals.add(peer, &format_args!("{} {}: {}", request.method(), request.uri().path(), detail.kind));
    let unknown = detail.kind == Kind::Unauthenticated;
    let mut response = http::ErrorResponse::from(detail).into_response();
    if unknown {
        // A client that is not authenticated keeps no connection.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;

    /// The clock is paused: no client is disconnected because its time is up.
    #[tokio::test(start_paused = true)]
    async fn half_sent_requests_make_room_before_their_time_is_up() {
        let path = std::env::temp_dir().join(format!("braid-listen-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = Arc::new(UnixListener::bind(&path).expect("a socket can be made"));
        let (stop, stopping) = watch::channel(false);
        let router = Router::new().route("/", get(|| async { "here" }));
        let server = tokio::spawn(over_socket(listener, router, stopping));
        let at = path.clone();
        let clients = tokio::task::spawn_blocking(move || {
            use std::io::{Read, Write};
            let connect = || {
                let stream = std::os::unix::net::UnixStream::connect(&at).expect("it listens");
                stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket has that limit");
                stream
            };
            let mut held = Vec::new();
            for _ in 0..API_CLIENTS_MAX + 40 {
                let mut client = connect();
                // A client that was evicted already does not accept it.
                let _ = client.write_all(b"GET / HTT");
                held.push(client);
            }
            let mut client = connect();
            client.write_all(b"GET / HTTP/1.1\r\nhost: b\r\nconnection: close\r\n\r\n").expect("it is taken");
            let mut reply = String::new();
            let _ = client.read_to_string(&mut reply);
            reply
        });
        let reply = clients.await.expect("the clients end");
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply:?}: it was to wait until the time of others is up");
        drop(stop);
        server.abort();
        let _ = std::fs::remove_file(&path);
    }
}
