//! Exports of NBD servers as disks of the shards.
//!
//! [`open_disk`] reaches the server once, to learn what the export is; each shard has a connection of its own from its first I/O on
//! (`session`). The server is any: it promises what the protocol does and no more. In the words of the design it is *unfenced*:
//! nothing says that what an old connection had asked for is not carried out after all. `docs/failures.md` says what that means.

mod dial;
mod own;
mod session;
mod slots;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeSet;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use braid_ring::{Carrier, Disk, DiskSpec, OpenOptions, RemoteCx, RemoteDisk, RingError, RingErrorKind};

use self::dial::Target;
use self::session::{PATIENCE_NS, PATIENCE_OF_MANY_NS, Session};
use super::negotiate::Negotiated;
use super::{Address, Client, ClientConfig, ClientError, Endpoint};
use crate::codec::{PAYLOAD_BYTES_MAX, transmission_flags};

/// Longest that an opening waits for each word of the server.
const OPENING: Duration = Duration::from_secs(5);

/// Bytes of one request that every server has to take.
const PAYLOAD_BYTES_MIN: u32 = 4096;

/// What of the flags a connection has to have in common with those before.
const FLAGS: u16 = transmission_flags::READ_ONLY
    | transmission_flags::SEND_FLUSH
    | transmission_flags::SEND_FUA
    | transmission_flags::SEND_TRIM
    | transmission_flags::SEND_WRITE_ZEROES
    | transmission_flags::SEND_FAST_ZERO
    | transmission_flags::CAN_MULTI_CONN;

/// Why a disk is lost, in words.
const LOST: [&str; 4] = [
    "",
    "its server did not answer writes in time, and may carry them out yet",
    "its server ended the connection with writes that it had not answered",
    "its server may have forgotten what was not flushed before the connection ended",
];

/// What all connections to an export share.
struct Shared {
    export: String,
    /// Never empty.
    targets: Vec<Target>,
    /// As the server says it.
    export_bytes: u64,
    block_bytes: u32,
    /// Bytes of one request's data, at most.
    payload_bytes: u64,
    flags: u16,
    /// Others hold what it does: it is rather lost than believed.
    replaceable: AtomicBool,
    /// What the server has, or will have, is unknown: nothing is asked of it any more. Why: a place in [`LOST`], or 0.
    lost: AtomicU8,
    /// Writes that were answered and not durable by that; and how many of them the flushes cover that were answered.
    written: AtomicU64,
    flushed: AtomicU64,
}

impl Shared {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire) != 0
    }

    fn patience_ns(&self) -> u64 {
        if self.replaceable.load(Ordering::Acquire) { PATIENCE_OF_MANY_NS } else { PATIENCE_NS }
    }

    fn is_the_same(&self, terms: &Negotiated) -> bool {
        terms.size_bytes == self.export_bytes && terms.flags & FLAGS == self.flags
    }

    /// A connection that stood is over. With `given_up` the server may still be at work for it; `writes` says whether it had some
    /// that it has not answered.
    fn connection_ended(&self, given_up: bool, writes: bool) {
        // What was answered and not flushed a server that was started anew may have forgotten.
        let unsure = self.written.load(Ordering::Acquire) != self.flushed.load(Ordering::Acquire);
        let replaceable = self.replaceable.load(Ordering::Acquire);
        let why = match (given_up && writes, replaceable && writes, replaceable && unsure) {
            (true, _, _) => 1,
            (_, true, _) => 2,
            (_, _, true) => 3,
            _ => return,
        };
        // The first reason is the one to tell.
        let _ = self.lost.compare_exchange(0, why, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// An export as a disk.
struct RemoteExport {
    shared: Arc<Shared>,
    _claim: Option<Claim>,
}

/// The exports that are open for exclusive use. Servers lock nothing: at least nobody here has one twice.
static CLAIMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

struct Claim(String);

impl Claim {
    fn new(uri: &str) -> Result<Claim, RingError> {
        if CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).insert(uri.to_owned()) {
            return Ok(Claim(uri.to_owned()));
        }
        let context = format!("{uri} is in use by this process");
        Err(error(RingErrorKind::InUse, context, "each disk has one user"))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

impl RemoteDisk for RemoteExport {
    fn size_bytes(&self) -> u64 {
        self.shared.export_bytes - self.shared.export_bytes % u64::from(self.shared.block_bytes)
    }

    fn logical_block_bytes(&self) -> u32 {
        self.shared.block_bytes
    }

    fn set_replaceable(&self, replaceable: bool) {
        self.shared.replaceable.store(replaceable, Ordering::Release);
    }

    fn lost_because(&self) -> Option<&'static str> {
        LOST.get(usize::from(self.shared.lost.load(Ordering::Acquire))).copied().filter(|why| !why.is_empty())
    }

    fn carrier(&self) -> Box<dyn Carrier> {
        Box::new(Session::new(Arc::clone(&self.shared)))
    }
}

impl Carrier for Session {
    fn work(&mut self, cx: &mut RemoteCx<'_>) {
        Session::work(self, cx);
    }
    fn received(&mut self, cx: &mut RemoteCx<'_>, result: i32) {
        Session::received(self, cx, result);
    }
    fn sent(&mut self, cx: &mut RemoteCx<'_>, result: i32) {
        Session::sent(self, cx, result);
    }
    fn timer(&mut self, cx: &mut RemoteCx<'_>) {
        Session::timer(self, cx);
    }
    fn leave(&mut self, cx: &mut RemoteCx<'_>) {
        Session::leave(self, cx);
    }
}

/// Opens what `spec` names, be it of this machine or an export of an NBD server. May block.
///
/// # Errors
/// As [`Disk::open`]; the server cannot be reached, refuses, is this process, or has an export that is no use as a disk.
pub fn open_disk(spec: &DiskSpec, options: OpenOptions) -> Result<Disk, RingError> {
    let Some(uri) = spec.remote() else { return Disk::open(spec, options) };
    let claim = options.exclusive.then(|| Claim::new(uri)).transpose()?;
    let shared = Arc::new(reach(uri, options)?);
    Ok(Disk::of_remote(spec, Arc::new(RemoteExport { shared, _claim: claim }), options.write))
}

fn error(kind: RingErrorKind, context: String, remedy: &str) -> RingError {
    RingError { kind, context, remedy: remedy.to_owned(), source: None }
}

/// Learns what an export is.
fn reach(uri: &str, options: OpenOptions) -> Result<Shared, RingError> {
    let endpoint: Endpoint = uri.parse().map_err(|e: ClientError| error(RingErrorKind::Conflict, e.to_string(), ""))?;
    let (targets, client) = connect(uri, &endpoint)?;
    let terms = *client.terms();
    if own::is_own(client.socket()) {
        return Err(error(
            RingErrorKind::Conflict,
            format!("{uri} is an export of this very process"),
            "name what it exports itself, such as volume:POOL/VOLUME",
        ));
    }
    let unfit = |what: String, remedy: &str| Err(error(RingErrorKind::Unsupported, format!("{uri} {what}"), remedy));
    if options.write && terms.flags & transmission_flags::READ_ONLY != 0 {
        return unfit("is read-only".into(), "let its server export it for writing");
    }
    if terms.flags & transmission_flags::CAN_MULTI_CONN == 0 {
        return unfit(
            "does not say that several connections see the same (multi-conn)".into(),
            "name a server that does, as nbdkit's file plugin or Braid",
        );
    }
    let [least, _, payload] = terms.block_bytes.unwrap_or([1, 4096, PAYLOAD_BYTES_MAX]);
    if !least.is_power_of_two() || least > 4096 || payload < PAYLOAD_BYTES_MIN {
        return unfit(
            format!("has blocks of {least} bytes and takes {payload} at once"),
            "let its server offer blocks of at most 4096 bytes",
        );
    }
    let block_bytes = least.max(512);
    if terms.size_bytes < u64::from(block_bytes) || terms.size_bytes > i64::MAX as u64 {
        return unfit(format!("is {} bytes long", terms.size_bytes), "let its server export something of a use");
    }
    // Other than a goodbye nothing is lost.
    let _ = client.disconnect();
    Ok(Shared {
        export: endpoint.export,
        targets,
        export_bytes: terms.size_bytes,
        block_bytes,
        payload_bytes: u64::from(payload) / 4096 * 4096,
        flags: terms.flags & FLAGS,
        replaceable: AtomicBool::new(false),
        lost: AtomicU8::new(0),
        written: AtomicU64::new(0),
        flushed: AtomicU64::new(0),
    })
}

/// Goes through the handshake with the first address that answers; that one stands first in what is returned.
fn connect(uri: &str, endpoint: &Endpoint) -> Result<(Vec<Target>, Client), RingError> {
    let timeout_ms = OPENING.as_millis() as u64;
    let config = ClientConfig { depth: 1, structured: false, extended: false, input_bytes: 64 << 10, timeout_ms };
    let refused = |e: ClientError| {
        let (kind, remedy) = match &e {
            ClientError::Refused { .. } => (RingErrorKind::NotFound, "check the name of the export"),
            ClientError::Socket(_) | ClientError::Closed | ClientError::TimedOut(_) => {
                (RingErrorKind::NotFound, "check its address, and that its server runs")
            }
            _ => (RingErrorKind::Unsupported, "check its address"),
        };
        error(kind, format!("opening {uri}: {e}"), remedy)
    };
    match &endpoint.address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path).map_err(|e| refused(e.into()))?;
            let client = Client::over_unix(stream, &endpoint.export, config).map_err(refused)?;
            Ok((vec![Target::Unix(path.clone())], client))
        }
        Address::Tcp(host, port) => {
            let found = (host.as_str(), *port).to_socket_addrs().map_err(|e| refused(e.into()))?;
            let mut addresses: Vec<_> = found.collect();
            let mut last = ClientError::Closed;
            for at in 0..addresses.len() {
                let stream = TcpStream::connect_timeout(&addresses[at], OPENING).map_err(ClientError::from);
                match stream.and_then(|stream| Client::over_tcp(stream, &endpoint.export, config)) {
                    Ok(client) => {
                        addresses.swap(0, at);
                        return Ok((addresses.into_iter().map(Target::Tcp).collect(), client));
                    }
                    Err(error) => last = error,
                }
            }
            Err(refused(last))
        }
    }
}
