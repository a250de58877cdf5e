//! The server as a frontend of the ring.

use std::any::Any;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use braid_engine::{Buf, Completion, DeviceId, IoError, Request, UpcomingRequest};
use braid_export::{Export, ExportTable};
use braid_ring::{Cx, Frontend, RecvMode, SocketId};

use super::{Host, Loan, SendPiece, Server, ServerConfig};
use crate::event::{Cause, EventQueue, NbdEvent};

/// Kernel send buffer of a Unix socket in bytes, if the kernel allows it.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Idle time after which TCP keepalive probes begin.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Interval between keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Number of unanswered keepalive probes after which the connection fails.
const KEEPALIVE_PROBES: u32 = 6;
/// Time without acknowledgements after which a TCP connection fails, in milliseconds.
const VANISHED_MS: u32 = 120_000;

/// Message: a client connected.
#[derive(Debug)]
pub struct NewConnection {
    /// The connected stream socket.
    pub fd: OwnedFd,
    /// The client, for the log.
    pub peer: String,
    /// The client's address; `None` on a Unix socket.
    pub address: Option<IpAddr>,
    /// The exports that its listener offers; `None` selects the frontend's own table.
    pub exports: Option<Arc<ExportTable>>,
    /// The TLS configuration; `None` if the listener has no TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

/// A new connection without its socket.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The client, for the log.
    pub peer: String,
    /// The client's address; `None` on a Unix socket.
    pub address: Option<IpAddr>,
    /// The exports offered to the client.
    pub table: Arc<ExportTable>,
    /// The TLS configuration; `None` if the listener has no TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

impl Arrival {
    /// Returns a client on a Unix socket without TLS.
    pub fn plain(peer: impl Into<String>, table: Arc<ExportTable>) -> Arrival {
        Arrival { peer: peer.into(), address: None, table, tls: None }
    }
}

/// Message: exports were removed, limits were changed, or admission was decided. Connections that are no longer allowed
/// finish their requests and close; revoked ones close at once.
#[derive(Clone, Copy, Debug)]
pub struct ExportsChanged;

/// Message: counts the unanswered requests of an export on this shard. After [`Export::hold`] the count only falls.
pub struct CountUnanswered {
    /// The export.
    pub export: Arc<Export>,
    /// Called with the count. Dropped without a call if the shard has stopped.
    pub reply: Box<dyn FnOnce(u32) + Send>,
}

/// Serves NBD on one shard. Each shard has its own frontend; they share the export tables and the event queue.
pub struct NbdFrontend {
    exports: Arc<ExportTable>,
    events: Arc<EventQueue>,
    server: Server<SocketId>,
}

impl NbdFrontend {
    /// Returns a frontend with these limits.
    pub fn new(exports: Arc<ExportTable>, events: Arc<EventQueue>, config: ServerConfig) -> NbdFrontend {
        NbdFrontend { exports, server: Server::new(config, events.clone()), events }
    }

    fn connect(&mut self, cx: &mut Cx<'_>, new: NewConnection) {
        prepare(&new.fd);
        let table = new.exports.unwrap_or_else(|| self.exports.clone());
        match cx.add_socket(new.fd) {
            Ok(socket) => {
                let arrival = Arrival { peer: new.peer, address: new.address, table, tls: new.tls };
                self.server.connect(cx, socket, arrival);
            }
            // Dropping the socket closes it.
            Err(_) => {
                self.events.push(NbdEvent::Disconnected { peer: new.peer, export: None, cause: Cause::ShardFull })
            }
        }
    }
}

/// Sets socket options: replies are sent without delay, and a TCP client whose host vanished is detected. Options that
/// a kind of socket lacks fail harmlessly.
fn prepare(fd: &OwnedFd) {
    use rustix::net::sockopt;
    if sockopt::set_tcp_nodelay(fd, true).is_err() {
        // A Unix socket uses only the sender's buffer. TCP sizes its own buffers better than any constant.
        let _ = sockopt::set_socket_send_buffer_size(fd, SEND_BUFFER_BYTES);
        return;
    }
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(fd, KEEPALIVE_PROBES);
    let _ = sockopt::set_tcp_user_timeout(fd, VANISHED_MS);
}

impl Frontend for NbdFrontend {
    #[inline]
    fn io_done(&mut self, cx: &mut Cx<'_>, completion: &Completion) {
        self.server.io_done(cx, completion);
    }

    fn released(&mut self, cx: &mut Cx<'_>, tag: u64) {
        self.server.released(cx, tag);
    }

    #[inline]
    fn net_done(&mut self, cx: &mut Cx<'_>, token: u64, result: i32) {
        self.server.net_done(cx, token, result);
    }

    fn timer(&mut self, cx: &mut Cx<'_>, token: u64) {
        self.server.timer(cx, token);
    }

    fn message(&mut self, cx: &mut Cx<'_>, message: Box<dyn Any + Send>) {
        match message.downcast::<NewConnection>() {
            Ok(new) => self.connect(cx, *new),
            Err(other) if other.is::<ExportsChanged>() => self.server.exports_changed(cx),
            Err(other) => match other.downcast::<CountUnanswered>() {
                Ok(count) => (count.reply)(self.server.unanswered(&count.export)),
                Err(_) => debug_assert!(false, "a message that is none of ours"),
            },
        }
    }

    #[inline]
    fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        self.server.end_of_batch(cx);
    }

    fn stop(&mut self, cx: &mut Cx<'_>) {
        self.server.stop(cx);
    }
}

impl Host for Cx<'_> {
    type Socket = SocketId;

    #[inline]
    fn now_ns(&self) -> u64 {
        Cx::now_ns(self)
    }

    #[inline]
    fn submit(&mut self, request: &Request) -> Result<(), IoError> {
        Cx::submit(self, request)
    }

    fn benefits_from_prefetch(&self, device: DeviceId) -> bool {
        Cx::benefits_from_prefetch(self, device)
    }

    fn prefetch(&mut self, device: DeviceId, soon: &[UpcomingRequest]) {
        Cx::prefetch(self, device, soon);
    }

    fn is_redundant(&self, device: DeviceId) -> bool {
        Cx::is_redundant(self, device)
    }

    fn lend(&mut self, device: DeviceId, offset: u64, len: u64) -> Option<Loan> {
        let loan = Cx::lend(self, device, offset, len)?;
        Some(Loan { buf: loan.buf, ring_loan: Some(loan) })
    }

    #[inline]
    fn is_lent(&self, buf: Buf, len: usize) -> bool {
        Cx::is_lent(self, buf, len)
    }

    fn copy_lent(&mut self, from: Buf, to: Buf, len: usize) {
        Cx::copy_lent(self, from, to, len);
    }

    fn return_loan(&mut self, loan: Loan) {
        if let Some(loan) = loan.ring_loan {
            Cx::return_loan(self, loan);
        }
    }

    #[inline]
    fn memory_bytes(&self) -> (u64, u64) {
        (Cx::arena_bytes(self), Cx::free_bytes(self))
    }

    #[inline]
    fn alloc(&mut self, len: usize) -> Option<Buf> {
        Cx::alloc(self, len)
    }

    #[inline]
    fn free(&mut self, buf: Buf, len: usize) {
        Cx::free(self, buf, len);
    }

    #[inline]
    fn memory(&mut self, buf: Buf, len: usize) -> &mut [u8] {
        Cx::memory(self, buf, len)
    }

    fn pair(&mut self, first: (Buf, usize), second: (Buf, usize)) -> (&mut [u8], &mut [u8]) {
        Cx::pair(self, first, second)
    }

    #[inline]
    fn copy(&mut self, from: Buf, to: Buf, len: usize) {
        Cx::copy(self, from, to, len);
    }

    fn recv(&mut self, socket: SocketId, buf: Buf, len: u32, whole: bool, token: u64) {
        let mode = if whole { RecvMode::All } else { RecvMode::Some };
        let begun = Cx::recv(self, socket, buf, len, mode, token);
        debug_assert!(begun, "the server does not use a socket that it closed");
    }

    #[inline]
    fn enter(&mut self, request: &Request) -> Result<(), IoError> {
        Cx::enter(self, request)
    }

    #[inline]
    fn begin_or_cancel_entered(&mut self, device: DeviceId, is_connected: bool) {
        Cx::begin_or_cancel_entered(self, device, is_connected);
    }

    fn is_hung_up(&mut self, socket: SocketId) -> bool {
        Cx::is_hung_up(self, socket)
    }

    fn send(&mut self, socket: SocketId, pieces: &[SendPiece], token: u64) {
        let begun = Cx::send(self, socket, pieces, token);
        debug_assert!(begun, "the server does not use a socket that it closed");
    }

    fn close(&mut self, socket: SocketId) {
        Cx::close(self, socket);
    }

    fn timer_at(&mut self, at_ns: u64, token: u64) -> bool {
        Cx::timer_at(self, at_ns, token)
    }
}
