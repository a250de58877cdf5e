//! Exports and the table that lists them. The control plane changes the table; connections hold the export that they
//! opened.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock};

use braid_engine::DeviceId;
use braid_ring::{Histogram, Rates, Throttle};

use crate::admission::Admission;
use crate::latency::{Batch, Latencies, RequestClass};
use crate::network::Network;

/// Maximum number of exports in one table.
pub const EXPORTS_MAX: usize = 4096;
/// Maximum length of an export's name in bytes (NBD's limit is 4,096).
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum length of an export's description in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 255;
/// Largest preferred block of an export in bytes (32 MiB).
pub const BLOCK_BYTES_PREFERRED_MAX: u32 = 32 << 20;
/// Default connection limit of an export.
pub const CONNECTIONS_DEFAULT: u32 = 64;

/// Reports which ranges of an export are holes, for NBD's BLOCK_STATUS and the holes of files.
///
/// An export without a map is reported as a single extent of unknown content, which NBD always allows. Its file is all
/// data.
pub trait Allocation: Send + Sync {
    /// Calls `extent(len_bytes, state)` for consecutive extents from `offset` until `len` bytes are described or
    /// `extent` returns false. States are those of [`crate::extents::state`]. Lengths are positive multiples of the
    /// export's smallest block.
    fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool);
}

/// The engine's map of known zeros of the exported device: it serves `base:allocation` and the holes of files.
impl Allocation for braid_ring::KnownZeros {
    fn extents(&self, offset: u64, len: u64, extent: &mut dyn FnMut(u64, u32) -> bool) {
        use crate::extents::state::{HOLE, ZERO};
        self.extents(offset, len, &mut |len, is_zero| extent(len, if is_zero { HOLE | ZERO } else { 0 }));
    }
}

/// The state of computing a difference.
pub enum DifferenceState<'a> {
    /// The computation is in progress.
    Pending,
    /// The difference cannot be determined.
    Failed,
    /// The difference is known. States are those of [`crate::extents::difference`].
    Known(&'a dyn Allocation),
}

/// The difference between an export's content and something else, such as a snapshot.
pub trait Difference: Send + Sync {
    /// Returns the state of the computation. Must not block.
    fn state(&self) -> DifferenceState<'_>;
}

/// The differences that an export offers, for NBD's contexts `braid:diff:NAME`. No method may block.
pub trait Differences: Send + Sync {
    /// Returns the names; only some of them if there are many.
    fn names(&self) -> Vec<String>;
    /// Starts computing the difference from the named content. Returns `None` if the name does not exist or too many
    /// computations are in progress.
    fn begin(&self, name: &str) -> Option<Arc<dyn Difference>>;
}

/// Whether an export is served over TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportTls {
    /// Without TLS.
    #[default]
    Off,
    /// With or without TLS, as the client chooses.
    Optional,
    /// Only over TLS.
    Required,
}

/// Limits for an export's clients. They can be changed while clients are connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportLimits {
    /// Maximum number of connections over all shards. Lowering it below the current number disconnects no client.
    pub connections_max: u32,
    /// Networks that clients may connect from; empty: any. Unix sockets are always allowed.
    pub allow: Vec<Network>,
    /// Requests and bytes per second over all connections.
    pub rates: Rates,
}

impl Default for ExportLimits {
    fn default() -> ExportLimits {
        ExportLimits { connections_max: CONNECTIONS_DEFAULT, allow: Vec::new(), rates: Rates::default() }
    }
}

/// The definition of an export.
#[derive(Clone)]
pub struct ExportInfo {
    /// Name that clients request.
    pub name: String,
    /// The engine's device.
    pub device: DeviceId,
    /// Number of exports of the device that were ever offered, this one included. All exports of a device share this
    /// counter: a connection detects by its change, or by a second reference to it, that the device has or had another
    /// export.
    pub device_export_count: Arc<AtomicU64>,
    /// Size in bytes, a multiple of `block_bytes_min`.
    pub size_bytes: u64,
    /// Refuses all commands that change data.
    pub read_only: bool,
    /// Smallest addressable block, a power of two from 1 to 65,536. Requests that are not multiples of it are refused.
    pub block_bytes_min: u32,
    /// Block size for efficient I/O, a power of two, at least 512 and at least the smallest block.
    pub block_bytes_preferred: u32,
    /// Human-readable description; may be empty.
    pub description: String,
    /// Whether the export is served over TLS.
    pub tls: ExportTls,
    /// Limits that can be changed while clients are connected.
    pub limits: ExportLimits,
    /// Stable identity behind the name: the UUID of the export or, on a replica, of the replicated volume or snapshot.
    pub uuid: Option<[u8; 16]>,
    /// The allocation map, if one exists.
    pub allocation: Option<Arc<dyn Allocation>>,
    /// The differences that the export offers, if any.
    pub differences: Option<Arc<dyn Differences>>,
    /// The limit that all exports of the same volume or device share, in addition to the export's own.
    pub shared_throttle: Option<Arc<Throttle>>,
    /// Admission control, if the name alone is not sufficient. Clients request such an export as `NAME?TERMS`, and it
    /// is never listed.
    pub admission: Option<Arc<dyn Admission>>,
}

impl ExportInfo {
    /// Returns a writable export with the default block sizes (512 and 4096 bytes) and limits.
    pub fn new(name: impl Into<String>, device: DeviceId, size_bytes: u64) -> ExportInfo {
        ExportInfo {
            name: name.into(),
            device,
            device_export_count: Arc::default(),
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
            admission: None,
        }
    }

    /// Validates the fields against the limits of the protocols.
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
            || self.block_bytes_preferred > BLOCK_BYTES_PREFERRED_MAX
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

/// Counters of an export's requests over all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportStats {
    /// READs that got a reply, with or without an error.
    pub reads: u64,
    /// WRITEs that got a reply, with or without an error.
    pub writes: u64,
    /// All other requests that got a reply, with or without an error.
    pub others: u64,
    /// Bytes of READs that succeeded.
    pub read_bytes: u64,
    /// Bytes of WRITEs that succeeded.
    pub written_bytes: u64,
    /// Requests that got an error reply; they also count in `reads`, `writes` or `others`.
    pub errors: u64,
}

/// Whether requests are held. Aligned to 128 bytes: every request reads the flag, and a counter in the same cache line
/// would make that read miss.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Held(AtomicBool);

/// An export that connections can open.
#[derive(Debug)]
pub struct Export {
    info: ExportInfo,
    /// Current size; initially `info.size_bytes`. A connection keeps the size that it negotiated.
    size_bytes: AtomicU64,
    /// Current limits; initially `info.limits`.
    limits: RwLock<Arc<ExportLimits>>,
    throttle: Throttle,
    connections: AtomicU32,
    /// Number of connections ever opened.
    sessions: AtomicU64,
    removed: AtomicBool,
    /// While set, connections take in no request: see [`Export::hold`].
    held: Held,
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
            held: Held::default(),
            counts: Default::default(),
            latencies: Latencies::new(),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns the definition.
    #[inline]
    pub fn info(&self) -> &ExportInfo {
        &self.info
    }

    /// Returns the size in bytes that new connections negotiate.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Returns the allocation map, if one exists.
    #[inline]
    pub fn allocation(&self) -> Option<&dyn Allocation> {
        self.info.allocation.as_deref()
    }

    /// Raises the size after the device has grown. New connections negotiate it; NBD cannot notify existing ones.
    pub fn grow(&self, size_bytes: u64) {
        self.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
    }

    /// Sets the size after the device was resized, possibly to a smaller one. New connections negotiate it; the device
    /// refuses requests of existing ones beyond its end.
    pub fn resize(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Release);
    }

    /// Returns the current limits.
    pub fn limits(&self) -> Arc<ExportLimits> {
        Arc::clone(&self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the limits. Connections that are no longer allowed are drained when their frontend is notified of the
    /// change.
    pub fn set_limits(&self, limits: ExportLimits) {
        self.throttle.set(&limits.rates);
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }

    /// Returns whether clients at this address may use the export; `None` stands for a Unix socket.
    pub fn admits(&self, address: Option<IpAddr>) -> bool {
        let Some(address) = address else { return true };
        let limits = self.limits();
        limits.allow.is_empty() || limits.allow.iter().any(|network| network.contains(address))
    }

    /// Returns the export's own throttle.
    #[inline]
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns whether the export was removed from its table. Its connections finish their requests and close.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Holds the requests of all connections, or releases them. While the export is held, its connections stay open and
    /// take in no further request; requests that were taken in before still get their replies. A shard observes the
    /// hold no later than any message that is posted to it afterwards, such as `CountUnanswered` of `braid-nbd`.
    pub fn hold(&self, held: bool) {
        self.held.0.store(held, Ordering::Release);
    }

    /// Returns whether requests are held.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.held.0.load(Ordering::Acquire)
    }

    /// Returns the request counters. Connections update them at the end of each batch of replies.
    pub fn stats(&self) -> ExportStats {
        let [reads, writes, others, read_bytes, written_bytes, errors] =
            std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed));
        ExportStats { reads, writes, others, read_bytes, written_bytes, errors }
    }

    /// Returns the latencies of one class, from taking in the header to handing the reply to the socket, without the
    /// wait for the export's limits. Connections update them at the end of each batch of replies.
    pub fn latency(&self, class: RequestClass) -> Histogram {
        self.latencies.read(class)
    }

    /// Returns the number of connections refused because of the connection limit.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Adds to the request counters.
    #[inline]
    pub fn add_stats(&self, stats: &ExportStats) {
        let s = stats;
        let values = [s.reads, s.writes, s.others, s.read_bytes, s.written_bytes, s.errors];
        for (count, value) in self.counts.iter().zip(values) {
            if value != 0 {
                count.fetch_add(value, Ordering::Relaxed);
            }
        }
    }

    /// Records the latency of one request.
    #[inline]
    pub fn record_latency(&self, class: RequestClass, latency_ns: u64) {
        self.latencies.batch().add(class, latency_ns);
    }

    /// Returns an accumulator for the latencies of one batch of replies.
    #[inline]
    pub fn latencies(&self) -> Batch<'_> {
        self.latencies.batch()
    }

    /// Opens a connection. Returns `None`, and counts a refusal, if the connection limit is reached.
    pub fn open(self: &Arc<Self>) -> Option<OpenExport> {
        let max = self.limits().connections_max;
        let more = |n: u32| (n < max).then_some(n + 1);
        let Ok(before) = self.connections.try_update(Ordering::Relaxed, Ordering::Relaxed, more) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let siblings = self.info.device_export_count.load(Ordering::SeqCst);
        let number = self.sessions.fetch_add(1, Ordering::SeqCst) + 1;
        // A connection that opens concurrently increments `connections` before `sessions`. If it takes its number
        // first, this connection sees it in `connections`, here. Otherwise `may_have_other_paths` sees that `sessions`
        // is no longer `number`.
        let had_others = before > 0 || self.connections() > 1;
        Some(OpenExport { export: self.clone(), number, siblings, had_others })
    }
}

/// An open connection to an export. Dropping it frees the connection slot.
#[derive(Debug)]
pub struct OpenExport {
    export: Arc<Export>,
    /// The number of this connection among all connections ever opened to the export, from 1.
    number: u64,
    /// The value of [`ExportInfo::device_export_count`] when the connection was opened.
    siblings: u64,
    /// Whether other connections were open when this one was opened.
    had_others: bool,
}

impl OpenExport {
    /// Returns whether this is a connection to `export`.
    pub fn is_of(&self, export: &Arc<Export>) -> bool {
        Arc::ptr_eq(&self.export, export)
    }

    /// Returns whether the client of this connection may have, or may have had, another path to the device: a
    /// connection that was open when this one was opened, one opened since, or another export.
    ///
    /// If a request claims its range before this method returns false, it is ordered before all requests that arrive by
    /// another path.
    #[inline]
    pub fn may_have_other_paths(&self) -> bool {
        // A client on another path first increments one of these counters (SeqCst), then claims ranges. The caller has
        // claimed its range before this fence. So either this method sees the increment, or the other request finds
        // this claim.
        fence(Ordering::SeqCst);
        let info = &self.export.info;
        self.had_others
            || self.export.sessions.load(Ordering::SeqCst) != self.number
            || info.device_export_count.load(Ordering::SeqCst) != self.siblings
            || Arc::strong_count(&info.device_export_count) > 1
    }
}

impl std::ops::Deref for OpenExport {
    type Target = Export;

    #[inline]
    fn deref(&self) -> &Export {
        &self.export
    }
}

impl Drop for OpenExport {
    fn drop(&mut self) {
        self.export.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a table refused an export.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportError {
    /// The name exists.
    #[error("there is already an export {0:?}")]
    Exists(String),
    /// The table is full.
    #[error("there are already {EXPORTS_MAX} exports")]
    Full,
    /// A field is invalid.
    #[error("export {name:?} cannot be served: {what}")]
    Invalid {
        /// The export's name.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The exports that a listener offers. Each handshake reads the table; the control plane changes it.
#[derive(Debug, Default)]
pub struct ExportTable {
    exports: RwLock<BTreeMap<String, Arc<Export>>>,
    /// TLS is required for all exports, whatever their own setting.
    needs_tls: AtomicBool,
}

impl ExportTable {
    /// Returns an empty table.
    pub fn new() -> ExportTable {
        ExportTable::default()
    }

    /// Sets whether TLS is required for all exports of the table, whatever their own setting.
    pub fn set_needs_tls(&self, needs: bool) {
        self.needs_tls.store(needs, Ordering::Relaxed);
    }

    /// Adds an export.
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

    /// Removes an export. Its connections notice when their frontend is notified of the change, finish the requests in
    /// flight and close.
    pub fn remove(&self, name: &str) -> Option<Arc<Export>> {
        let export = self.exports.write().unwrap_or_else(PoisonError::into_inner).remove(name)?;
        export.removed.store(true, Ordering::Relaxed);
        Some(export)
    }

    /// Returns the export with this name. The empty name stands for the only export of the table. Exports with
    /// admission control are not found by their name alone.
    pub fn find(&self, name: &str) -> Option<Arc<Export>> {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        let only = || (name.is_empty() && exports.len() == 1).then(|| exports.values().next()).flatten();
        exports.get(name).or_else(only).filter(|export| export.info.admission.is_none()).cloned()
    }

    /// Returns the export with admission control that `NAME?TERMS` requests, and the terms.
    pub fn find_with_admission<'a>(&self, name: &'a str) -> Option<(Arc<Export>, &'a str)> {
        let (name, terms) = name.split_once('?')?;
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        exports.get(name).filter(|export| export.info.admission.is_some()).map(|export| (Arc::clone(export), terms))
    }

    /// Returns whether any export is available over TLS.
    pub fn offers_tls(&self) -> bool {
        self.needs_tls.load(Ordering::Relaxed)
            || self
                .exports
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .values()
                .any(|export| export.info.tls != ExportTls::Off)
    }

    /// Returns whether every export requires TLS.
    pub fn all_need_tls(&self) -> bool {
        self.needs_tls.load(Ordering::Relaxed)
            || self
                .exports
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .values()
                .all(|export| export.info.tls == ExportTls::Required)
    }

    /// Returns whether any export requires TLS.
    pub fn some_need_tls(&self) -> bool {
        self.needs_tls.load(Ordering::Relaxed)
            || self
                .exports
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .values()
                .any(|export| export.info.tls == ExportTls::Required)
    }

    /// Returns whether any export admits this address.
    pub fn admits(&self, address: IpAddr) -> bool {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        exports.values().any(|export| export.admits(Some(address)))
    }

    /// Returns at most `most` exports whose names follow `name`, in name order, including those with admission control.
    pub fn list_after(&self, name: Option<&str>, most: usize) -> Vec<Arc<Export>> {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        exports.range::<str, _>((from, Bound::Unbounded)).take(most).map(|(_, export)| export.clone()).collect()
    }

    /// Returns all exports in name order.
    pub fn list(&self) -> Vec<Arc<Export>> {
        self.exports.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
