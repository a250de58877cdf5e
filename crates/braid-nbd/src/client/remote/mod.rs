//! Exports of NBD servers as disks of the shards.
//!
//! [`open_disk`] reaches the server once, to learn what the export is; each shard has a connection of its own from its first I/O on
//! (`session`). The server is any: it promises what the protocol does and no more. In the words of the design it is *unfenced*:
//! nothing says that what an old connection had asked for is not carried out after all. `docs/failures.md` says what that means.
//! The nodes' replicas are *fenced* ([`open_remote`], `fenced`).

mod dial;
mod fenced;
mod lane;
mod own;
mod reach;
mod secure;
mod session;
mod shared;
mod slots;
mod stretch;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use braid_ring::{Carrier, Disk, DiskSpec, OpenOptions, RemoteDisk, RingError, RingErrorKind};

pub use self::fenced::Fenced;
use self::lane::Lanes;
use self::reach::reach;
use self::shared::Shared;
use super::{ClientError, Endpoint};
use crate::codec::transmission_flags;

/// An export, and how it is used as a disk.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// Where it is, and its name: of a fenced one without what is told on each connection.
    pub endpoint: Endpoint,
    /// Whom to believe, and what to show: needed where the endpoint asks for TLS.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// It is a replica of this controller's.
    pub fenced: Option<Fenced>,
    /// Connections of each shard, from 1 to [`braid_ring::REMOTE_CONNECTIONS_MAX`]; without it what the endpoint says, or one.
    pub connections: Option<u32>,
    /// Longest wait for a word of the server, after which the disk fails: 5 s where others hold what it does, 30 s where not.
    pub limit: Option<Duration>,
}

impl RemoteConfig {
    /// An export of any server.
    pub fn new(endpoint: Endpoint) -> RemoteConfig {
        RemoteConfig { endpoint, tls: None, fenced: None, connections: None, limit: None }
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
        Box::new(Lanes::new(&self.shared, shard))
    }
}

/// Opens what `spec` names, be it of this machine or an export of an NBD server. May block. `tls` says whom to believe, and what to show,
/// where an export's address asks for TLS.
///
/// # Errors
/// As [`Disk::open`]; the server cannot be reached, refuses, is this process, or has an export that is no use as a disk.
pub fn open_disk(
    spec: &DiskSpec,
    options: OpenOptions,
    tls: Option<Arc<rustls::ClientConfig>>,
) -> Result<Disk, RingError> {
    let Some(uri) = spec.remote() else { return Disk::open(spec, options) };
    let endpoint = uri.parse().map_err(|e: ClientError| error(RingErrorKind::Conflict, e.to_string(), ""))?;
    open(spec, uri, &RemoteConfig { tls, ..RemoteConfig::new(endpoint) }, options)
}

/// Opens an export. May block: of a fenced one until what older connections had asked for has ended.
///
/// # Errors
/// As [`open_disk`]; a fenced one may be one's own.
pub fn open_remote(config: &RemoteConfig, options: OpenOptions) -> Result<Disk, RingError> {
    let uri = config.endpoint.to_string();
    open(&DiskSpec::Remote { uri: uri.clone() }, &uri, config, options)
}

fn open(spec: &DiskSpec, uri: &str, config: &RemoteConfig, options: OpenOptions) -> Result<Disk, RingError> {
    // Of a fenced one the server sees to it that it has one user.
    let claim = (options.exclusive && config.fenced.is_none()).then(|| Claim::new(uri)).transpose()?;
    let shared = Arc::new(reach(uri, config, options)?);
    Ok(Disk::from_remote(spec, Arc::new(RemoteExport { shared, _claim: claim }), options.write))
}

fn error(kind: RingErrorKind, context: String, remedy: &str) -> RingError {
    RingError { kind, context, remedy: remedy.to_owned(), source: None }
}
