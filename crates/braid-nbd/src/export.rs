//! Which exports there are. The control plane changes the table; connections hold what they opened.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock};

use braid_engine::DeviceId;
use braid_ring::{Histogram, Rates, Throttle};

use crate::codec::{PAYLOAD_BYTES_MAX, transmission_flags};
use crate::gate::Gate;
use crate::latency::{Batch, Latencies, RequestClass};
use crate::network::Network;

/// Most exports in one table.
pub const EXPORTS_MAX: usize = 4096;
/// Longest name of an export that is served, in bytes (the protocol's own limit is 4,096).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest description of an export, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 255;
/// Connections that an export takes unless told otherwise.
pub const CONNECTIONS_DEFAULT: u32 = 64;

/// Says which ranges of an export are holes, for BLOCK_STATUS.
///
/// What has no map is one extent of unknown content, which the protocol always allows.
pub trait Allocation: Send + Sync {
    /// Calls `extent(len_bytes, state)` for consecutive extents from `offset` on until `len` bytes are
    /// described or `extent` returns false. States are those of [`crate::codec::state`]; lengths are not 0
    /// and multiples of the export's smallest block.
    fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool);
}

/// What the engine knows of the device that is exported: the one map for `base:allocation` and for holes of files.
impl Allocation for braid_ring::KnownZeros {
    fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool) {
        use crate::codec::state::{HOLE, ZERO};
        self.extents(offset, len, &mut |len, is_zero| extent(len, if is_zero { HOLE | ZERO } else { 0 }));
    }
}

/// How far somebody is with finding out what differs.
pub enum Found<'a> {
    /// Not yet.
    Pending,
    /// It cannot be told.
    Failed,
    /// This; states are those of [`crate::codec::difference`].
    Map(&'a dyn Allocation),
}

/// What an export's content differs in from something else.
pub trait Difference: Send + Sync {
    /// How far it is known. Must not wait.
    fn found(&self) -> Found<'_>;
}

/// What an export can be compared with: its contexts `braid:diff:NAME`. Nothing of this may wait.
pub trait Differences: Send + Sync {
    /// The names there are, some of them where there are many.
    fn names(&self) -> Vec<String>;
    /// Begins to find out how the content differs from what has this name. `None`: there is none, or too much is being found out.
    fn begin(&self, name: &str) -> Option<Arc<dyn Difference>>;
}

/// How an export is to be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportTls {
    /// In the clear.
    #[default]
    Off,
    /// As the client likes.
    Optional,
    /// Only over TLS.
    Required,
}

/// What an export's clients may take. It may be changed while they are connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportLimits {
    /// Most connections at a time, over all shards. Fewer than there are disconnect nobody.
    pub connections_max: u32,
    /// Addresses that clients may come from; none: all. It does not concern Unix sockets.
    pub allow: Vec<Network>,
    /// Requests and bytes a second, over all connections.
    pub rates: Rates,
}

impl Default for ExportLimits {
    fn default() -> ExportLimits {
        ExportLimits { connections_max: CONNECTIONS_DEFAULT, allow: Vec::new(), rates: Rates::default() }
    }
}

/// What is exported, and how.
#[derive(Clone)]
pub struct ExportInfo {
    /// Name that clients ask for.
    pub name: String,
    /// The engine's device.
    pub device: DeviceId,
    /// All exports of a device hold the same counter, of how many were offered: so each knows whether there are or were others.
    pub siblings: Arc<AtomicU64>,
    /// Size in bytes, a multiple of `block_bytes_min`.
    pub size_bytes: u64,
    /// Refuse everything that changes data.
    pub read_only: bool,
    /// Smallest block that can be addressed, a power of two from 1 to 65,536; requests that are not
    /// multiples are refused.
    pub block_bytes_min: u32,
    /// Block for which I/O is efficient, a power of two, at least 512 and at least the smallest.
    pub block_bytes_preferred: u32,
    /// Text for people, or empty.
    pub description: String,
    /// Whether it is to be had over TLS, or only so.
    pub tls: ExportTls,
    /// What may be changed while clients are connected.
    pub limits: ExportLimits,
    /// Identifies the device behind the name.
    pub uuid: Option<[u8; 16]>,
    /// Where the holes are, if that is known.
    pub allocation: Option<Arc<dyn Allocation>>,
    /// What it can be compared with, if it can.
    pub differences: Option<Arc<dyn Differences>>,
    /// What all exports of the same thing may take together, besides what this one may.
    pub shared_throttle: Option<Arc<Throttle>>,
    /// Who may use it, where the name alone is not enough: it is asked for as `NAME?TERMS`, and never listed.
    pub gate: Option<Arc<dyn Gate>>,
}

impl ExportInfo {
    /// A writable export with the usual block sizes (512 and 4096 bytes) and limits.
    pub fn new(name: impl Into<String>, device: DeviceId, size_bytes: u64) -> ExportInfo {
        ExportInfo {
            name: name.into(),
            device,
            siblings: Arc::default(),
            size_bytes,
            read_only: false,
            block_bytes_min: 512,
            block_bytes_preferred: 4096,
            description: String::new(),
            tls: ExportTls::Off,
            limits: ExportLimits::default(),
            uuid: None,
            allocation: None,
            differences: None,
            shared_throttle: None,
            gate: None,
        }
    }

    /// What the protocol asks of the fields.
    fn check(&self) -> Result<(), ExportError> {
        let wrong = |what: &'static str| Err(ExportError::Invalid { name: self.name.clone(), what });
        if self.name.len() > NAME_BYTES_MAX || self.name.contains('\0') {
            return wrong("its name is over 255 bytes long or holds a NUL");
        }
        if self.description.len() > DESCRIPTION_BYTES_MAX || self.description.contains('\0') {
            return wrong("its description is over 255 bytes long or holds a NUL");
        }
        if !self.block_bytes_min.is_power_of_two() || self.block_bytes_min > 65536 {
            return wrong("its smallest block is not a power of two up to 65536");
        }
        if !self.block_bytes_preferred.is_power_of_two()
            || self.block_bytes_preferred < self.block_bytes_min.max(512)
            || self.block_bytes_preferred > PAYLOAD_BYTES_MAX
        {
            return wrong(
                "its preferred block is not a power of two from the larger of 512 and its smallest block to 32 MiB",
            );
        }
        if !self.size_bytes.is_multiple_of(u64::from(self.block_bytes_min)) {
            return wrong("its size is not a multiple of its smallest block");
        }
        Ok(())
    }

    /// The flags that clients see. `structured`: that style of reply was agreed on.
    pub fn transmission_flags(&self, structured: bool) -> u16 {
        use transmission_flags::*;
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
        if self.read_only {
            flags |= READ_ONLY;
        } else {
            flags |= SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO;
        }
        if structured {
            flags |= SEND_DF;
        }
        flags
    }
}

impl fmt::Debug for ExportInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportInfo")
            .field("name", &self.name)
            .field("device", &self.device)
            .field("size_bytes", &self.size_bytes)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

/// What an export's connections have done, summed over all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportStats {
    /// READs answered.
    pub reads: u64,
    /// WRITEs answered.
    pub writes: u64,
    /// All other requests answered.
    pub others: u64,
    /// Bytes of READs answered without error.
    pub read_bytes: u64,
    /// Bytes of WRITEs answered without error.
    pub written_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

/// One export, as connections hold it.
#[derive(Debug)]
pub struct Export {
    info: ExportInfo,
    /// What `info.size_bytes` began as. Connections keep the size that they were told.
    size_bytes: AtomicU64,
    /// What `info.limits` began as.
    limits: RwLock<Arc<ExportLimits>>,
    throttle: Throttle,
    connections: AtomicU32,
    /// Connections that have ever been opened.
    sessions: AtomicU64,
    removed: AtomicBool,
    counts: [AtomicU64; 6],
    latencies: Latencies,
    refused: AtomicU64,
}

impl Export {
    fn new(info: ExportInfo) -> Export {
        Export {
            size_bytes: AtomicU64::new(info.size_bytes),
            limits: RwLock::new(Arc::new(info.limits.clone())),
            throttle: Throttle::with_rates(&info.limits.rates),
            info,
            connections: AtomicU32::new(0),
            sessions: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            counts: Default::default(),
            latencies: Latencies::new(),
            refused: AtomicU64::new(0),
        }
    }

    /// What it is.
    #[inline]
    pub fn info(&self) -> &ExportInfo {
        &self.info
    }

    /// Its size in bytes, as clients learn it that connect now.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Where the holes are, if that is known.
    pub fn allocation(&self) -> Option<&dyn Allocation> {
        self.info.allocation.as_deref()
    }

    /// The device has become larger: clients that connect from now on learn it. The protocol cannot tell those that are
    /// connected.
    pub fn grow(&self, size_bytes: u64) {
        self.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
    }

    /// The device has another size, perhaps a smaller one: clients that connect from now on learn it. Those that are connected are refused
    /// beyond its end by the device.
    pub fn resize(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Release);
    }

    /// What its clients may take now.
    pub fn limits(&self) -> Arc<ExportLimits> {
        Arc::clone(&self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes what its clients may take. Those that are not allowed any more go with the next message
    /// [`crate::server::ExportsChanged`].
    pub fn set_limits(&self, limits: ExportLimits) {
        self.throttle.set(&limits.rates);
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }

    /// Whether clients at this address may use it; none: on a Unix socket.
    pub fn admits(&self, address: Option<IpAddr>) -> bool {
        let Some(address) = address else { return true };
        let limits = self.limits();
        limits.allow.is_empty() || limits.allow.iter().any(|network| network.contains(address))
    }

    /// What its requests have to wait for.
    #[inline]
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Connections in transmission now.
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// It was taken out of its table: connections finish what they have and close.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// What its connections have done. Connections add to it at the end of each batch of replies.
    pub fn stats(&self) -> ExportStats {
        let [reads, writes, others, read_bytes, written_bytes, errors] =
            std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed));
        ExportStats { reads, writes, others, read_bytes, written_bytes, errors }
    }

    /// How long its requests of this class took, from the header taken in to the reply handed to the socket; the wait for
    /// its limits is not in it. Connections add to it at the end of each batch of replies.
    pub fn latency(&self, class: RequestClass) -> Histogram {
        self.latencies.read(class)
    }

    /// Connections that found all of its places taken.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// What clients have done meanwhile is added.
    pub fn add(&self, stats: &ExportStats) {
        let s = stats;
        let values = [s.reads, s.writes, s.others, s.read_bytes, s.written_bytes, s.errors];
        for (count, value) in self.counts.iter().zip(values) {
            if value != 0 {
                count.fetch_add(value, Ordering::Relaxed);
            }
        }
    }

    /// One request of this class took so long.
    pub fn took(&self, class: RequestClass, latency_ns: u64) {
        self.latencies.batch().add(class, latency_ns);
    }

    /// For the latencies of one batch of replies.
    #[inline]
    pub fn latencies(&self) -> Batch<'_> {
        self.latencies.batch()
    }

    /// Takes one of the places for connections; none is left: it is counted as refused.
    pub fn open(self: &Arc<Self>) -> Option<OpenExport> {
        let max = self.limits().connections_max;
        let more = |n: u32| (n < max).then_some(n + 1);
        let Ok(before) = self.connections.try_update(Ordering::Relaxed, Ordering::Relaxed, more) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let siblings = self.info.siblings.load(Ordering::SeqCst);
        let number = self.sessions.fetch_add(1, Ordering::SeqCst) + 1;
        // One that opens at the same moment has counted either before this number, and is seen here, or after it, and is seen by the number.
        let had_others = before > 0 || self.connections() > 1;
        Some(OpenExport { export: self.clone(), number, siblings, had_others })
    }
}

/// A connection's hold on its export: one of the export's places, given back when dropped.
#[derive(Debug)]
pub struct OpenExport {
    export: Arc<Export>,
    /// Which of the export's connections it is, from 1 on.
    number: u64,
    /// What [`ExportInfo::siblings`] was.
    siblings: u64,
    /// Other connections were open when it was opened.
    had_others: bool,
}

impl OpenExport {
    /// Returns whether a client of this connection may have, or may have had, another way to the device: connections that were open when this one
    /// was opened, or were opened since, or other exports.
    ///
    /// A request that claims its range before this returns false comes before all requests that come another way.
    #[inline]
    pub fn has_others(&self) -> bool {
        // Pairs with the claim of a request that comes another way: that claim follows the counting, so one of the two sees the other.
        fence(Ordering::SeqCst);
        let info = &self.export.info;
        self.had_others
            || self.export.sessions.load(Ordering::SeqCst) != self.number
            || info.siblings.load(Ordering::SeqCst) != self.siblings
            || Arc::strong_count(&info.siblings) > 1
    }
}

impl std::ops::Deref for OpenExport {
    type Target = Export;

    fn deref(&self) -> &Export {
        &self.export
    }
}

impl Drop for OpenExport {
    fn drop(&mut self) {
        self.export.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a table did not take an export.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportError {
    /// The name is taken.
    #[error("there is already an export {0:?}")]
    Exists(String),
    /// Too many.
    #[error("there are already {EXPORTS_MAX} exports")]
    Full,
    /// A field is wrong.
    #[error("export {name:?} cannot be served: {what}")]
    Invalid {
        /// The export's name.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The exports that a listener offers. Read at each handshake, changed by the control plane.
#[derive(Debug, Default)]
pub struct ExportTable {
    exports: RwLock<BTreeMap<String, Arc<Export>>>,
    /// Whatever the exports say themselves.
    needs_tls: AtomicBool,
}

impl ExportTable {
    /// A table without exports.
    pub fn new() -> ExportTable {
        ExportTable::default()
    }

    /// Nothing of this table is to be had without TLS from now on, whatever its exports say, or no longer.
    pub fn set_needs_tls(&self, needs: bool) {
        self.needs_tls.store(needs, Ordering::Relaxed);
    }

    /// Offers one more export.
    pub fn add(&self, info: ExportInfo) -> Result<Arc<Export>, ExportError> {
        info.check()?;
        let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        if exports.contains_key(&info.name) {
            return Err(ExportError::Exists(info.name));
        }
        if exports.len() >= EXPORTS_MAX {
            return Err(ExportError::Full);
        }
        let export = Arc::new(Export::new(info));
        exports.insert(export.info.name.clone(), export.clone());
        Ok(export)
    }

    /// Takes an export away. Its connections see that at the next message
    /// [`crate::server::ExportsChanged`], finish what is in flight and close.
    pub fn remove(&self, name: &str) -> Option<Arc<Export>> {
        let export = self.exports.write().unwrap_or_else(PoisonError::into_inner).remove(name)?;
        export.removed.store(true, Ordering::Relaxed);
        Some(export)
    }

    /// The export of this name. The empty name means the only export there is. Those with a gate have no name that would do.
    pub fn find(&self, name: &str) -> Option<Arc<Export>> {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        let only = || (name.is_empty() && exports.len() == 1).then(|| exports.values().next()).flatten();
        exports.get(name).or_else(only).filter(|export| export.info.gate.is_none()).cloned()
    }

    /// The export that `NAME?TERMS` asks for, if it has a gate, and the terms.
    pub fn find_gated<'a>(&self, name: &'a str) -> Option<(Arc<Export>, &'a str)> {
        let (name, terms) = name.split_once('?')?;
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        exports.get(name).filter(|export| export.info.gate.is_some()).map(|export| (Arc::clone(export), terms))
    }

    /// Whether there is something here that can be had over TLS.
    pub fn offers_tls(&self) -> bool {
        self.needs_tls.load(Ordering::Relaxed)
            || self
                .exports
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .values()
                .any(|export| export.info.tls != ExportTls::Off)
    }

    /// Whether there is nothing here that can be had without TLS.
    pub(crate) fn all_need_tls(&self) -> bool {
        self.needs_tls.load(Ordering::Relaxed)
            || self
                .exports
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .values()
                .all(|export| export.info.tls == ExportTls::Required)
    }

    /// Whether there is something here that can only be had over TLS.
    pub(crate) fn some_need_tls(&self) -> bool {
        self.needs_tls.load(Ordering::Relaxed)
            || self
                .exports
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .values()
                .any(|export| export.info.tls == ExportTls::Required)
    }

    /// Whether a client at this address could use any export.
    pub fn admits(&self, address: IpAddr) -> bool {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        exports.values().any(|export| export.admits(Some(address)))
    }

    /// The next exports by name, at most so many, those with a gate among them.
    pub(crate) fn list_after(&self, name: Option<&str>, most: usize) -> Vec<Arc<Export>> {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        exports.range::<str, _>((from, Bound::Unbounded)).take(most).map(|(_, export)| export.clone()).collect()
    }

    /// All exports, by name.
    pub fn list(&self) -> Vec<Arc<Export>> {
        self.exports.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
