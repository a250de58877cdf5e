//! What all connections to an export share, on whatever shards they are.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::dial::Target;
use super::fenced::Fenced;
use super::secure::Trust;
use super::session::{PATIENCE_NS, PATIENCE_OF_MANY_NS};
use crate::client::negotiate::Negotiated;
use crate::codec::transmission_flags;

/// What of the flags a connection has to have in common with those before.
pub(super) const FLAGS: u16 = transmission_flags::READ_ONLY
    | transmission_flags::SEND_FLUSH
    | transmission_flags::SEND_FUA
    | transmission_flags::SEND_TRIM
    | transmission_flags::SEND_WRITE_ZEROES
    | transmission_flags::SEND_FAST_ZERO
    | transmission_flags::CAN_MULTI_CONN;

/// How exactly it is known when the server last answered: written no more often than that.
const ANSWERED_NS: u64 = 10_000_000;

/// Why a disk is lost.
pub(super) enum Loss {
    /// Given up with writes.
    Silent,
    /// The server has ended a connection that had some.
    Ended,
    /// It may have been started anew.
    Forgotten,
    /// Fenced: nothing was answered for too long.
    NoProgress,
    /// Fenced: one I/O was not, whatever else was.
    NoAnswer,
    /// Fenced: it is another disk than it was.
    Another,
    /// Fenced: its server lets others in, and says so.
    Refused(String),
}

impl Loss {
    fn words(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Loss::Silent => "its server did not answer writes in time, and may carry them out yet",
            Loss::Ended => "its server ended the connection with writes that it had not answered",
            Loss::Forgotten => "its server may have forgotten what was not flushed before the connection ended",
            Loss::NoProgress => "its server made no progress for too long",
            Loss::NoAnswer => "its server left a request without an answer for too long",
            Loss::Another => "its server has another export under its name",
            Loss::Refused(text) => return Cow::Owned(format!("its server refuses it: {text}")),
        })
    }
}

pub(super) struct Shared {
    pub(super) export: String,
    /// Never empty.
    pub(super) targets: Vec<Target>,
    /// TLS, and how.
    pub(super) trust: Option<Trust>,
    /// Of each shard.
    pub(super) connections: u32,
    pub(super) fenced: Option<Fenced>,
    /// Longest wait for a word of the server, where it is set.
    pub(super) limit_ns: Option<u64>,
    /// As the server says it.
    pub(super) export_bytes: u64,
    pub(super) block_bytes: u32,
    /// Bytes of one request's data, at most.
    pub(super) payload_bytes: u64,
    pub(super) flags: u16,
    /// It says which ranges are holes: replies are structured then.
    pub(super) allocation: bool,
    /// Others hold what it does: it is rather lost than believed.
    pub(super) replaceable: AtomicBool,
    /// What the server has, or will have, is unknown, or it lets nobody in: nothing is asked of it any more. Why.
    pub(super) lost: OnceLock<Cow<'static, str>>,
    /// A connection was given up with writes, which the server may carry out yet.
    pub(super) unsettled: AtomicBool,
    /// Writes that were answered and not durable by that; and how many of them the flushes cover that were answered.
    pub(super) written: AtomicU64,
    pub(super) flushed: AtomicU64,
    /// When the server last answered anything, on any connection, to [`ANSWERED_NS`].
    pub(super) answered: AtomicU64,
}

impl Shared {
    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Nothing is asked of it any more. The first reason is the one to tell.
    pub(super) fn lose(&self, why: Loss) {
        let _ = self.lost.set(why.words());
    }

    pub(super) fn patience_ns(&self) -> u64 {
        let many = self.fenced.is_some() || self.replaceable.load(Ordering::Acquire);
        self.limit_ns.unwrap_or(if many { PATIENCE_OF_MANY_NS } else { PATIENCE_NS })
    }

    pub(super) fn answered_ns(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    pub(super) fn has_answered(&self, now_ns: u64) {
        if now_ns.saturating_sub(self.answered_ns()) >= ANSWERED_NS {
            self.answered.store(now_ns, Ordering::Relaxed);
        }
    }

    pub(super) fn is_the_same(&self, terms: &Negotiated) -> bool {
        terms.size_bytes == self.export_bytes && terms.flags & FLAGS == self.flags
    }

    /// A connection that stood is over. With `given_up` the server may still be at work for it; `writes` says whether it had some
    /// that it has not answered.
    pub(super) fn connection_ended(&self, given_up: bool, writes: bool) {
        if self.fenced.is_some() {
            // The next one is let in when nothing of this one is under way, and under the same boot alone.
            return;
        }
        if given_up && writes {
            self.unsettled.store(true, Ordering::Release);
        }
        // What was answered and not flushed a server that was started anew may have forgotten.
        let unsure = self.written.load(Ordering::Acquire) != self.flushed.load(Ordering::Acquire);
        let replaceable = self.replaceable.load(Ordering::Acquire);
        match (given_up && writes, replaceable && writes, replaceable && unsure) {
            (true, _, _) => self.lose(Loss::Silent),
            (_, true, _) => self.lose(Loss::Ended),
            (_, _, true) => self.lose(Loss::Forgotten),
            _ => {}
        }
    }
}
