//! Clients of the API: over the socket, and over the network with TLS.
//!
//! What it promises: so many clients at a time, those of the network apart from those of the socket; further ones wait in
//! the kernel. Who does not finish the handshake, a request's head or its body in time is ended. When all places are taken,
//! those make room for newer ones, the oldest first, who have not shown yet that they may come in (on the network), or of
//! whose first request not all has arrived (on the socket).
//! What it never does: nothing of a request is looked at before it is known who asks.

use super::access::{Access, Caller};
use super::client::Client;
use crate::daemon::http;
use crate::daemon::nodes::identity::digest_of_certificates_key;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use braid_api::limits::{API_CLIENTS_MAX, API_NETWORK_CLIENTS_MAX, API_REQUEST_TIMEOUT_MS};
use braid_api::{ErrorDetail, Kind};
use braid_tls::ServerTls;
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

/// A client on whose connection nothing moves for so long is gone: longer than any change takes to be answered.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// Longest time in which the head of a request has to arrive, and the TLS handshake.
const HEAD_MAX: Duration = Duration::from_millis(API_REQUEST_TIMEOUT_MS);
/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Most lines in the head of a request.
const HEAD_LINES_MAX: usize = 64;
/// Between two lines of the log about clients that were not let in.
const COMPLAINT_EVERY: Duration = Duration::from_secs(10);

/// The API on the network.
pub struct Network {
    /// Where it listens.
    pub listener: Arc<TcpListener>,
    /// Its certificate and key.
    pub tls: Arc<ServerTls>,
    /// Who may come in.
    pub access: Arc<Access>,
    /// Who was not let in.
    pub refusals: Arc<Refusals>,
}

impl Network {
    /// What its clients meet.
    pub fn door(&self) -> Door {
        let (tls, access) = (Arc::clone(&self.tls), Arc::clone(&self.access));
        Door {
            show: Arc::new(move || tls.current()),
            judge: Arc::new(move |request, caller| {
                access.judge(request.method(), request.headers(), caller).map(|()| Standing::Known)
            }),
            refusals: Arc::clone(&self.refusals),
        }
    }
}

/// Gives what new connections are shown.
pub type Show = Arc<dyn Fn() -> Arc<rustls::ServerConfig> + Send + Sync>;
/// Says whether a request may be done, and by whom.
pub type Judge = Arc<dyn Fn(&Request, Caller) -> Result<Standing, ErrorDetail> + Send + Sync>;

/// Who makes a request that may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Somebody who is known: keeps its place.
    Known,
    /// Nobody knows: it keeps no place from others, and may ask once on a connection.
    Unknown,
}

/// What clients of the network meet.
#[derive(Clone)]
pub struct Door {
    /// The certificate.
    pub show: Show,
    /// Who may come in.
    pub judge: Judge,
    /// Who was not let in.
    pub refusals: Arc<Refusals>,
}

/// Clients that were not let in: counted, and named in the log now and then.
#[derive(Default)]
pub struct Refusals {
    count: AtomicU64,
    told: Mutex<Option<Instant>>,
}

impl Refusals {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn add(&self, peer: SocketAddr, why: &dyn std::fmt::Display) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever knocks often must not fill the log.
        if told.is_none_or(|told| told.elapsed() >= COMPLAINT_EVERY) {
            *told = Some(Instant::now());
            tracing::warn!("a client of the API at {peer} was not let in ({count} so far): {why}");
        }
    }
}

/// Clients that have not made a request yet that they may make, by the order in which they came. They keep no place from
/// others.
struct Strangers<P>(Mutex<BTreeMap<u64, (AbortHandle, P)>>);

/// One of them, until it has shown that it may come in.
struct Stranger<P> {
    number: u64,
    among: Arc<Strangers<P>>,
}

impl<P> Default for Strangers<P> {
    fn default() -> Strangers<P> {
        Strangers(Mutex::default())
    }
}

impl<P> Strangers<P> {
    fn list(&self) -> MutexGuard<'_, BTreeMap<u64, (AbortHandle, P)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the one who has been here longest; who that was, if there is one.
    fn displace(&self) -> Option<P> {
        let (_, (task, peer)) = self.list().pop_first()?;
        task.abort();
        Some(peer)
    }
}

impl<P> Stranger<P> {
    /// It may come in.
    fn is_known(&self) {
        self.among.list().remove(&self.number);
    }
}

impl<P> Drop for Stranger<P> {
    fn drop(&mut self) {
        self.is_known();
    }
}

/// Serves clients of the socket until the daemon stops.
pub async fn over_socket(listener: Arc<UnixListener>, router: Router, mut stopping: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(API_CLIENTS_MAX));
    let connections = GracefulShutdown::new();
    let service = TowerToHyperService::new(router);
    let strangers: Arc<Strangers<()>> = Arc::default();
    for number in 0.. {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                if places.available_permits() == 0 {
                    strangers.displace();
                }
                let place = tokio::select! {
                    place = place(&places) => place,
                    _ = stopping.wait_for(|stopping| *stopping) => break,
                };
                let client = Client::new(stream, place, IDLE_MAX);
                let stranger = Arc::new(Stranger { number, among: Arc::clone(&strangers) });
                let service = service.clone();
                let service = service_fn(move |mut request: hyper::Request<Incoming>| {
                    if request.body().is_end_stream() {
                        stranger.is_known();
                    } else {
                        let stranger = Arc::clone(&stranger);
                        let arrived = http::Arrived(Arc::new(move || stranger.is_known()));
                        request.extensions_mut().insert(arrived);
                    }
                    service.call(request)
                });
                // Held, so that a task that ends at once finds itself on the list.
                let mut list = strangers.list();
                let task = tokio::spawn(serve(client, service, connections.watcher()));
                list.insert(number, (task.abort_handle(), ()));
            }
            Err(error) => pause(&error).await,
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// Serves clients of the network until the daemon stops.
pub async fn over_network(listener: Arc<TcpListener>, door: Door, router: Router, mut stopping: watch::Receiver<bool>) {
    let (show, refusals) = (Arc::clone(&door.show), Arc::clone(&door.refusals));
    let places = Arc::new(Semaphore::new(API_NETWORK_CLIENTS_MAX));
    let connections = GracefulShutdown::new();
    let service = TowerToHyperService::new(router.layer(from_fn_with_state(door, judge)));
    let strangers: Arc<Strangers<SocketAddr>> = Arc::default();
    for number in 0.. {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                if places.available_permits() == 0
                    && let Some(displaced) = strangers.displace()
                {
                    refusals.add(displaced, &"it had not shown who it is when too many newer clients came");
                }
                let place = tokio::select! {
                    place = place(&places) => place,
                    _ = stopping.wait_for(|stopping| *stopping) => break,
                };
                let (service, watcher) = (service.clone(), connections.watcher());
                let (tls, refusals) = (show(), Arc::clone(&refusals));
                let stranger = Arc::new(Stranger { number, among: Arc::clone(&strangers) });
                // Held, so that a task that ends at once finds itself on the list.
                let mut list = strangers.list();
                let task = tokio::spawn(async move {
                    match tokio::time::timeout(HEAD_MAX, shake_hands(stream, tls)).await {
                        Ok(Ok((stream, caller))) => {
                            let client = Client::new(stream, place, IDLE_MAX);
                            let service = service_fn(move |mut request: hyper::Request<Incoming>| {
                                request.extensions_mut().insert((caller, peer));
                                request.extensions_mut().insert(Arc::clone(&stranger));
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
            Err(error) => pause(&error).await,
        }
    }
    drop(listener);
    connections.shutdown().await;
}

async fn place(places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed")
}

async fn pause(error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    // Out of descriptors or memory: waiting lets others finish; accepting at once would only spin.
    tracing::error!("a client of the API could not be accepted: {error}");
    tokio::time::sleep(Duration::from_millis(200)).await;
}

type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

async fn shake_hands(stream: TcpStream, config: Arc<rustls::ServerConfig>) -> io::Result<(TlsStream, Caller)> {
    stream.set_nodelay(true)?;
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    // The handshake has checked it against the authorities of clients, where there is one.
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
    // Clients break off as they like: that is theirs.
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!("a client of the API: {error}");
    }
}

/// Lets a request of the network through if it may be done.
async fn judge(State(door): State<Door>, request: Request, next: Next) -> Response {
    let Some(&(caller, peer)) = request.extensions().get::<(Caller, SocketAddr)>() else {
        let detail = ErrorDetail::new(Kind::Internal, "it is not known where this request comes from");
        return http::Refusal::from(detail).into_response();
    };
    let detail = match (door.judge)(&request, caller) {
        Ok(Standing::Known) => {
            if let Some(stranger) = request.extensions().get::<Arc<Stranger<SocketAddr>>>() {
                stranger.is_known();
            }
            return next.run(request).await;
        }
        Ok(Standing::Unknown) => {
            let mut response = next.run(request).await;
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            return response;
        }
        Err(detail) => detail,
    };
    door.refusals.add(peer, &format_args!("{} {}: {}", request.method(), request.uri().path(), detail.kind));
    let unknown = detail.kind == Kind::Unauthenticated;
    let mut response = http::Refusal::from(detail).into_response();
    if unknown {
        // Who is not known keeps no place from others.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;

    /// The clock stands still as long as the clients are there: none of them is ended because its time is up.
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
                // One that has made room already takes no more.
                let _ = client.write_all(b"GET / HTT");
                held.push(client);
            }
            let mut client = connect();
            client.write_all(b"GET / HTTP/1.1\r\nhost: b\r\nconnection: close\r\n\r\n").expect("it is taken");
            let mut answer = String::new();
            let _ = client.read_to_string(&mut answer);
            answer
        });
        let answer = clients.await.expect("the clients end");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}: it was to wait until the time of others is up");
        drop(stop);
        server.abort();
        let _ = std::fs::remove_file(&path);
    }
}
