//! Exports of NBD servers as disks of the shards.
//!
//! [`open_disk`] connects once, to learn the export's properties. Each shard opens its own connections at its first I/O
//! (`session`). Any server can be used, and only the guarantees of the protocol are assumed. Such a disk is *unfenced*:
//! after a connection has ended, the server may still carry out its requests. `docs/operating/failures-cluster.md`
//! describes the consequences. The replicas of Braid's nodes are *fenced* ([`open_remote`], `fenced`).

mod connections;
mod dial;
mod fenced;
mod probe;
mod read_cursor;
mod secure;
mod self_connection;
mod session;
mod shared;
mod slots;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use braid_ring::{Carrier, Disk, DiskSpec, OpenOptions, RemoteDisk, RingError, RingErrorKind};

use self::connections::ShardConnections;
pub use self::fenced::Fenced;
use self::probe::probe;
use self::shared::Shared;
use super::{ClientError, Endpoint};
use crate::codec::transmission_flags;

/// An export and how it is used as a disk.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// The server's address and the export's name. For a fenced export, the name without the terms (`?epoch=…`), which
    /// the client adds on each connection.
    pub endpoint: Endpoint,
    /// The TLS configuration, with authorities and client certificate. Required if the endpoint requires TLS.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Set if the export is a replica of this controller.
    pub fenced: Option<Fenced>,
    /// Connections per shard, from 1 to [`braid_ring::REMOTE_CONNECTIONS_MAX`]. The default is what the endpoint says,
    /// or one.
    pub connections: Option<u32>,
    /// Maximum silence of the server while requests wait for replies, and maximum wait for a connection; then the I/O
    /// fails. The default is 5 s if other disks hold the same data, otherwise 30 s.
    pub reply_timeout: Option<Duration>,
}

impl RemoteConfig {
    /// Returns the default configuration for an export of any server.
    pub fn new(endpoint: Endpoint) -> RemoteConfig {
        RemoteConfig { endpoint, tls: None, fenced: None, connections: None, reply_timeout: None }
    }
}

/// An export used as a disk.
struct RemoteExport {
    shared: Arc<Shared>,
    _claim: Option<Claim>,
}

/// The exports opened for exclusive use. Servers do not lock exports; this at least prevents a second use within the
/// process.
static CLAIMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

struct Claim(String);

impl Claim {
    fn new(uri: &str) -> Result<Claim, RingError> {
        if CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).insert(uri.to_owned()) {
            return Ok(Claim(uri.to_owned()));
        }
        let context = format!("{uri} is in use by this process");
        Err(error(RingErrorKind::InUse, context, "a disk can be opened exclusively only once"))
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

    fn loss_reason(&self) -> Option<&str> {
        self.shared.lost.get().map(|why| &**why)
    }

    fn has_no_pending_effects(&self) -> bool {
        !self.shared.unsettled.load(Ordering::Acquire)
    }

    fn connections(&self) -> usize {
        self.shared.connections as usize
    }

    fn has_one_connection(&self) -> bool {
        self.shared.flags & transmission_flags::CAN_MULTI_CONN == 0
    }

    fn carrier(&self, shard: u32) -> Box<dyn Carrier> {
        Box::new(ShardConnections::new(&self.shared, shard))
    }
}

/// Opens the disk that `spec` names: a local one or an export of an NBD server. May block. `tls` is the TLS
/// configuration for exports whose address requires TLS.
///
/// # Errors
/// As [`Disk::open`]; or the server cannot be reached, refuses, is this process, or has an export that cannot be used
/// as a disk.
pub fn open_disk(
    spec: &DiskSpec,
    options: OpenOptions,
    tls: Option<Arc<rustls::ClientConfig>>,
) -> Result<Disk, RingError> {
    let Some(uri) = spec.remote() else { return Disk::open(spec, options) };
    let endpoint = uri.parse().map_err(|e: ClientError| error(RingErrorKind::Conflict, e.to_string(), ""))?;
    open(spec, uri, &RemoteConfig { tls, ..RemoteConfig::new(endpoint) }, options)
}

/// Opens an export. May block: for a fenced export until the requests of older connections have ended.
///
/// # Errors
/// As [`open_disk`], but a fenced export may belong to this process.
pub fn open_remote(config: &RemoteConfig, options: OpenOptions) -> Result<Disk, RingError> {
    let uri = config.endpoint.to_string();
    open(&DiskSpec::Remote { uri: uri.clone() }, &uri, config, options)
}

fn open(spec: &DiskSpec, uri: &str, config: &RemoteConfig, options: OpenOptions) -> Result<Disk, RingError> {
    // The server of a fenced export ensures that it has one user.
    let claim = (options.exclusive && config.fenced.is_none()).then(|| Claim::new(uri)).transpose()?;
    let shared = Arc::new(probe(uri, config, options)?);
    Ok(Disk::from_remote(spec, Arc::new(RemoteExport { shared, _claim: claim }), options.write))
}

fn error(kind: RingErrorKind, context: String, remedy: &str) -> RingError {
    RingError { kind, context, remedy: remedy.to_owned(), source: None }
}
