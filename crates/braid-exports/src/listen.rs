//! Listening sockets of exports: binds addresses, and hands client connections to the shards.

use braid_advice::errors::os_error;
use braid_api::address::Address;
use braid_api::{ErrorDetail, Kind};
use braid_config::paths::{GROUP_MODE, OWNER_MODE, braid_group};
use braid_export::ExportTable;
use braid_inventory::NBD_FRONTEND;
use braid_nbd::server::NewConnection;
use braid_nbd::{Cause, EventQueue, NbdEvent};
use braid_ring::RingHandle;
use braid_tasks as tasks;
use braid_tls::ServerTls;
use rustix::fs::{Gid, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Maximum time of a host name lookup.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// Maximum time to examine and create the path of a socket.
const PATH_MAX: Duration = Duration::from_secs(5);

/// Maximum connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening socket.
pub enum Socket {
    /// A Unix socket. Its path is removed when the socket is dropped.
    Unix {
        /// The socket.
        listener: tokio::net::UnixListener,
        /// Its path.
        _path: SocketPath,
    },
    /// On a port.
    Tcp(tokio::net::TcpListener),
}

/// The path of a socket of this daemon. Dropping it removes the path, unless something else is there by now.
pub struct SocketPath {
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path).ok().map(|found| (found.dev(), found.ino()));
        if found.is_some() && found == self.inode {
            // A path that cannot be removed is left; the next start replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds an address and listens on it.
///
/// # Errors
/// The address is in use, or is no address of this machine.
pub(crate) async fn bind(address: &Address) -> Result<Socket, ErrorDetail> {
    match address {
        Address::Unix(path) => {
            let path = path.clone();
            // The path may be on a file system that does not answer.
            let bound = tasks::blocking(move || bind_unix(&path));
            let (listener, path) = match tokio::time::timeout(PATH_MAX, bound).await {
                Ok(Ok(bound)) => bound?,
                Ok(Err(error)) => {
                    return Err(ErrorDetail::new(Kind::Internal, format!("{address} cannot be taken: {error}")));
                }
                Err(_) => {
                    let seconds = PATH_MAX.as_secs();
                    let message = format!("the file system of {address} has not answered within {seconds} s");
                    return Err(ErrorDetail::new(Kind::TimedOut, message)
                        .with("address", address)
                        .remedy("choose a path on another file system"));
                }
            };
            let listener = tokio::net::UnixListener::from_std(listener)
                .map_err(|error| ErrorDetail::new(Kind::Internal, format!("{address} cannot be watched: {error}")))?;
            Ok(Socket::Unix { listener, _path: path })
        }
        Address::Tcp { host, port } => bind_tcp(address, host, *port).await.map(Socket::Tcp),
        Address::Fuse(_) => {
            let message = format!("{address} is a file, and nothing can be listened on there");
            Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy("write unix:PATH or tcp:HOST:PORT"))
        }
        Address::Ublk { .. } => {
            Err(ErrorDetail::new(Kind::Internal, format!("{address} is a block device, which has no connections")))
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix { listener, .. } => listener.as_fd(),
            Socket::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Resumes a socket that the previous daemon handed over for an address; none if it cannot be used.
pub(crate) fn resume(address: &Address, inherited: OwnedFd) -> Option<Socket> {
    let socket = match address {
        Address::Unix(path) => {
            let (listener, path) = resume_unix(path, inherited)?;
            Socket::Unix { listener: tokio::net::UnixListener::from_std(listener).ok()?, _path: path }
        }
        _ => Socket::Tcp(resume_tcp(inherited)?),
    };
    Some(socket)
}

/// Resumes a Unix socket that the previous daemon handed over. None: its path does not exist any more, or is no socket.
pub fn resume_unix(path: &Path, inherited: OwnedFd) -> Option<(std::os::unix::net::UnixListener, SocketPath)> {
    let found = std::fs::symlink_metadata(path).ok().filter(|found| found.file_type().is_socket())?;
    Some((inherited.into(), SocketPath { path: path.to_owned(), inode: Some((found.dev(), found.ino())) }))
}

/// Resumes a TCP socket that the previous daemon handed over. None: the runtime cannot watch it.
pub fn resume_tcp(inherited: OwnedFd) -> Option<tokio::net::TcpListener> {
    tokio::net::TcpListener::from_std(inherited.into()).ok()
}

/// Binds the path of a Unix socket. The socket of a dead daemon is replaced; anything else at the path is not.
///
/// # Errors
/// Another process listens there, something else is at the path, or the operating system refuses.
pub fn bind_unix(path: &Path) -> Result<(std::os::unix::net::UnixListener, SocketPath), ErrorDetail> {
    let refuse = |error: &std::io::Error| os_error(error, "the socket cannot be made", path);
    clear_stale(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|error| refuse(&error.into()))?;
    // Before the bind, because it gives the path the mode of the socket: at no time can another user connect.
    let group = braid_group();
    let mode = if group.is_some() { GROUP_MODE } else { OWNER_MODE };
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(OWNER_MODE)).map_err(|error| refuse(&error.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|error| refuse(&error.into()))?;
    rustix::net::bind(&socket, &address).map_err(|error| {
        let error = std::io::Error::from(error);
        match error.kind() {
            ErrorKind::AddrInUse => path_in_use(path),
            _ => refuse(&error),
        }
    })?;
    let inode = std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let path = SocketPath { path: path.to_owned(), inode };
    if let Some(group) = group
        // If the group cannot be set, only the owner has access.
        && rustix::fs::chown(&path.path, None, Some(Gid::from_raw(group))).is_ok()
    {
        rustix::fs::chmod(&path.path, Mode::from_raw_mode(mode)).map_err(|error| refuse(&error.into()))?;
    }
    rustix::net::listen(&socket, BACKLOG).map_err(|error| refuse(&error.into()))?;
    Ok((socket.into(), path))
}

/// Removes a socket that no process listens on.
fn clear_stale(path: &Path) -> Result<(), ErrorDetail> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ErrorDetail::new(Kind::InUse, format!("{} exists, and is no socket", path.display()))
            .with("path", path.display())
            .remedy("choose another path, or remove what is there"));
    }
    match connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| os_error(&error, "the old socket cannot be removed", path))
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(os_error(&error, "the existing socket cannot be examined", path))
        }
        _ => Err(path_in_use(path)),
    }
}

/// Connects to a socket without waiting: a listening socket with a full backlog returns an error.
fn connect(path: &Path) -> std::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
}

fn path_in_use(path: &Path) -> ErrorDetail {
    ErrorDetail::new(Kind::InUse, format!("another process listens on {}", path.display()))
        .with("path", path.display())
        .remedy("stop that process, or choose another path")
}

/// Refuses an address that other hosts can reach.
///
/// # Errors
/// [`Kind::NeedsConfirmation`]; or the host name cannot be resolved.
pub async fn refuse_public_address(address: &Address) -> Result<(), ErrorDetail> {
    let Address::Tcp { host, port } = address else { return Ok(()) };
    match resolve(address, host, *port).await?.iter().find(|at| !at.ip().to_canonical().is_loopback()) {
        None => Ok(()),
        Some(open) => Err(ErrorDetail::new(
            Kind::NeedsConfirmation,
            format!("other hosts can reach {open} and could read and write everything: TLS is not required there"),
        )
        .with("address", address)
        .remedy(
            "require TLS with --tls required (the daemon needs a certificate: --nbd-cert and --nbd-key), listen on \
             tcp:127.0.0.1 or unix:PATH, or add --insecure on a network that you trust",
        )),
    }
}

async fn resolve(address: &Address, host: &str, port: u16) -> Result<Vec<SocketAddr>, ErrorDetail> {
    let lookup = tokio::time::timeout(LOOKUP_MAX, tokio::net::lookup_host((host, port)));
    let unknown = |why: String| {
        ErrorDetail::new(Kind::InvalidArgument, format!("the host of {address} cannot be found: {why}"))
            .with("address", address)
            .remedy("write a number, for example tcp:127.0.0.1:10809")
    };
    let found: Vec<SocketAddr> = match lookup.await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(error)) => return Err(unknown(error.to_string())),
        Err(_) => return Err(unknown(format!("no answer within {} s", LOOKUP_MAX.as_secs()))),
    };
    if found.is_empty() {
        return Err(unknown("it has no address".to_owned()));
    }
    Ok(found)
}

async fn bind_tcp(address: &Address, host: &str, port: u16) -> Result<tokio::net::TcpListener, ErrorDetail> {
    let found = resolve(address, host, port).await?;
    tokio::net::TcpListener::bind(&found[..]).await.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => ErrorDetail::new(Kind::InUse, format!("another process listens on {address}"))
            .with("address", address)
            .remedy("choose another port, or stop that process (`ss -ltnp` shows it)"),
        ErrorKind::AddrNotAvailable => {
            ErrorDetail::new(Kind::InvalidArgument, format!("{address} is no address of this machine"))
                .with("address", address)
                .remedy("`ip address` shows those there are")
        }
        ErrorKind::PermissionDenied => {
            ErrorDetail::new(Kind::PermissionDenied, format!("{address} is not permitted: {error}"))
                .with("address", address)
                .remedy("choose a port from 1024 on")
        }
        _ => ErrorDetail::new(Kind::Internal, format!("{address} cannot be listened on: {error}"))
            .with("address", address),
    })
}

/// What a listening socket offers to its clients.
pub struct ListenerContext {
    /// The exports.
    pub table: Arc<ExportTable>,
    /// The daemon's certificate. TLS is offered only while an export of the table uses it.
    pub tls: Option<Arc<ServerTls>>,
    /// Receives the refused clients.
    pub events: Arc<EventQueue>,
}

/// Accepts clients until the task is aborted, and hands them to the shards in turn.
pub async fn accept(socket: Arc<Socket>, context: ListenerContext, ring: RingHandle) {
    let next = AtomicUsize::new(0);
    loop {
        let accepted = match &*socket {
            Socket::Unix { listener, .. } => accept_unix(listener).await,
            Socket::Tcp(listener) => accept_tcp(listener).await,
        };
        match accepted {
            Ok((_, peer, Some(address))) if !context.table.admits(address) => {
                context.events.push(NbdEvent::Disconnected { peer, export: None, cause: Cause::NotAllowed });
            }
            Ok((fd, peer, address)) => {
                let shard = next.fetch_add(1, Ordering::Relaxed) % usize::from(ring.shards());
                let tls = context.tls.as_ref().filter(|_| context.table.offers_tls()).map(|tls| tls.current());
                let message = NewConnection { fd, peer, exports: Some(Arc::clone(&context.table)), address, tls };
                ring.post(braid_engine::ShardId(shard as u16), NBD_FRONTEND, Box::new(message));
            }
            Err(error) if is_client_error(&error) => {}
            Err(error) => {
                // Out of descriptors or memory: waiting lets other connections end; accepting again at once would only
                // spin.
                tracing::error!("a client could not be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// A client's socket, its identity, and its address unless it is on a Unix socket.
type Accepted = (OwnedFd, String, Option<IpAddr>);

fn is_client_error(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted)
}

async fn accept_unix(listener: &tokio::net::UnixListener) -> std::io::Result<Accepted> {
    let (stream, _) = listener.accept().await?;
    let peer = match stream.peer_cred() {
        Ok(peer) => match peer.pid() {
            Some(pid) => format!("process {pid} of user {}", peer.uid()),
            None => format!("user {}", peer.uid()),
        },
        Err(_) => "unknown".to_owned(),
    };
    let stream = stream.into_std()?;
    Ok((stream.into(), peer, None))
}

async fn accept_tcp(listener: &tokio::net::TcpListener) -> std::io::Result<Accepted> {
    let (stream, peer) = listener.accept().await?;
    let stream = stream.into_std()?;
    stream.set_nodelay(true)?;
    // A client whose machine is gone sends nothing: the kernel probes it, and gives up after about two minutes.
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(&stream, 4)?;
    Ok((stream.into(), peer.to_string(), Some(peer.ip())))
}
