//! State shared by all connections to an export, on all shards.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::dial::Target;
use super::fenced::Fenced;
use crate::client::negotiate::Negotiated;
use crate::codec::transmission_flags;

/// The transmission flags that must not change between connections.
pub(super) const FLAGS: u16 = transmission_flags::READ_ONLY
    | transmission_flags::SEND_FLUSH
    | transmission_flags::SEND_FUA
    | transmission_flags::SEND_TRIM
    | transmission_flags::SEND_WRITE_ZEROES
    | transmission_flags::SEND_FAST_ZERO
    | transmission_flags::CAN_MULTI_CONN;

/// Resolution of the time of the last reply: it is not updated more often.
const REPLY_TIME_STEP_NS: u64 = 10_000_000;

/// Maximum silence of the server while requests are in flight, maximum wait for a connection, and maximum time for the
/// reply to one request (30 s).
pub(super) const REPLY_TIMEOUT_NS: u64 = 30_000_000_000;
/// The same if other disks hold the same data; the time for one reply stays [`REPLY_TIMEOUT_NS`].
const REDUNDANT_REPLY_TIMEOUT_NS: u64 = 5_000_000_000;

/// The TLS configuration, and the name that the server's certificate must have.
#[derive(Clone, Debug)]
pub(super) struct TlsPeer {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

/// Why a disk is lost.
pub(super) enum LossReason {
    /// A connection was abandoned with unanswered writes.
    WritesUnanswered,
    /// The server ended a connection with unanswered writes.
    WritesInterrupted,
    /// The server may have restarted and lost unflushed writes.
    UnflushedWrites,
    /// Fenced: the server sent no reply for too long.
    NoProgress,
    /// Fenced: one request got no reply for too long, while others did.
    RequestStuck,
    /// Fenced: the export's size or flags have changed.
    DifferentExport,
    /// Fenced: the server refused the connection by policy, with this text.
    Refused(String),
}

impl LossReason {
    fn text(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            LossReason::WritesUnanswered => "its server did not answer writes in time, and may still carry them out",
            LossReason::WritesInterrupted => "its server ended the connection with writes that it had not answered",
            LossReason::UnflushedWrites => {
                "its server may have forgotten what was not flushed before the connection ended"
            }
            LossReason::NoProgress => "its server made no progress for too long",
            LossReason::RequestStuck => "its server left a request without an answer for too long",
            LossReason::DifferentExport => "its server has another export under its name",
            LossReason::Refused(text) => return Cow::Owned(format!("its server refuses it: {text}")),
        })
    }
}

pub(super) struct Shared {
    pub(super) export: String,
    /// Addresses of the server; never empty.
    pub(super) targets: Vec<Target>,
    /// The TLS parameters, if TLS is used.
    pub(super) tls_peer: Option<TlsPeer>,
    /// Connections per shard.
    pub(super) connections: u32,
    pub(super) fenced: Option<Fenced>,
    /// The configured maximum wait; `None` for the default: see [`RemoteConfig::reply_timeout`](super::RemoteConfig).
    pub(super) limit_ns: Option<u64>,
    /// Size in bytes as the server reported it.
    pub(super) export_bytes: u64,
    pub(super) block_bytes: u32,
    /// Maximum data of one request in bytes.
    pub(super) payload_bytes: u64,
    pub(super) flags: u16,
    /// The server reports holes, so replies are structured.
    pub(super) allocation: bool,
    /// Other disks hold the same data. If it is not certain that the server has kept all writes, the disk is then
    /// marked as lost.
    pub(super) replaceable: AtomicBool,
    /// Set when the disk is lost, with the reason: its content is unknown, or the server refuses this controller. No
    /// request is sent any more.
    pub(super) lost: OnceLock<Cow<'static, str>>,
    /// A connection was abandoned with unanswered writes that the server may still carry out.
    pub(super) unsettled: AtomicBool,
    /// Number of completed writes that need a flush to be durable; and how many of them completed flushes cover. If the
    /// two differ, a restart of the server may lose writes.
    pub(super) written: AtomicU64,
    pub(super) flushed: AtomicU64,
    /// When the server last replied on any connection, with a resolution of [`REPLY_TIME_STEP_NS`].
    pub(super) last_reply_ns: AtomicU64,
}

impl Shared {
    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Marks the disk as lost. The first reason is kept.
    pub(super) fn mark_lost(&self, reason: LossReason) {
        let _ = self.lost.set(reason.text());
    }

    pub(super) fn reply_timeout_ns(&self) -> u64 {
        let redundant = self.fenced.is_some() || self.replaceable.load(Ordering::Acquire);
        self.limit_ns.unwrap_or(if redundant { REDUNDANT_REPLY_TIMEOUT_NS } else { REPLY_TIMEOUT_NS })
    }

    pub(super) fn last_reply_ns(&self) -> u64 {
        self.last_reply_ns.load(Ordering::Relaxed)
    }

    pub(super) fn record_reply(&self, now_ns: u64) {
        if now_ns.saturating_sub(self.last_reply_ns()) >= REPLY_TIME_STEP_NS {
            self.last_reply_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Marks a fenced disk as lost if its server has sent no reply for too long while a request has waited since
    /// `since_ns`. Any reply counts as progress: a slow server is not a failed one. The disk is also lost if a request
    /// or connection of this session alone has waited since `own_ns` for longer than the maximum.
    pub(super) fn mark_lost_if_stuck(&self, now_ns: u64, since_ns: u64, own_ns: u64) {
        let since_ns = since_ns.max(self.last_reply_ns());
        if now_ns.saturating_sub(since_ns) >= self.reply_timeout_ns() {
            self.mark_lost(LossReason::NoProgress);
        } else if now_ns.saturating_sub(own_ns) >= REPLY_TIMEOUT_NS.max(self.reply_timeout_ns()) {
            self.mark_lost(LossReason::RequestStuck);
        }
    }

    pub(super) fn is_the_same(&self, terms: &Negotiated) -> bool {
        terms.size_bytes == self.export_bytes && terms.flags & FLAGS == self.flags
    }

    /// Records the end of an established connection. `given_up`: this side abandoned it, and the server may still carry
    /// out requests. `writes`: it had unanswered writes.
    pub(super) fn connection_ended(&self, given_up: bool, writes: bool) {
        if self.fenced.is_some() {
            // The server admits the next connection after all requests of this one have ended, and only under the same
            // boot id.
            return;
        }
        if given_up && writes {
            self.unsettled.store(true, Ordering::Release);
        }
        // A restarted server may have lost answered writes that were not flushed.
        let unsure = self.written.load(Ordering::Acquire) != self.flushed.load(Ordering::Acquire);
        let replaceable = self.replaceable.load(Ordering::Acquire);
        match (given_up && writes, replaceable && writes, replaceable && unsure) {
            (true, _, _) => self.mark_lost(LossReason::WritesUnanswered),
            (_, true, _) => self.mark_lost(LossReason::WritesInterrupted),
            (_, _, true) => self.mark_lost(LossReason::UnflushedWrites),
            _ => {}
        }
    }
}
