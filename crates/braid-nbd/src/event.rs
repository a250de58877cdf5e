//! Connection events for the log. The queue is bounded: events beyond its capacity are counted, not kept.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Maximum number of queued events.
pub const EVENTS_MAX: usize = 1024;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The client disconnected (DISC, or ABORT in the handshake).
    #[error("the client disconnected")]
    Disconnected,
    /// The client closed the connection without DISC.
    #[error("the client closed the connection with {in_flight} requests in flight")]
    ConnectionClosed {
        /// Requests that were not answered.
        in_flight: u32,
    },
    /// The socket failed.
    #[error("the socket failed (errno {0})")]
    Socket(i32),
    /// The handshake timed out.
    #[error("the handshake timed out")]
    HandshakeTimeout,
    /// Too many handshakes were in progress, and this was the oldest.
    #[error("the handshake was displaced: too many newer handshakes are in progress")]
    HandshakeDisplaced,
    /// The client set flags that were not offered, or a client without fixed newstyle sent an option other than
    /// EXPORT_NAME.
    #[error("client flags {0:#x} were not offered")]
    ClientFlags(u32),
    /// An option did not begin with its magic number.
    #[error("an option began with {0:#018x}, not with its magic number")]
    OptionMagic(u64),
    /// The options of one handshake exceed their maximum number or total length.
    #[error("the options of the handshake exceed their limits")]
    OptionFlood,
    /// EXPORT_NAME named an export that does not exist.
    #[error("there is no export {0:?}")]
    NoSuchExport(String),
    /// EXPORT_NAME named an export at its connection limit.
    #[error("export {0:?} has reached its connection limit")]
    ConnectionLimit(String),
    /// A request did not begin with its magic number.
    #[error("a request began with {0:#010x}, not with its magic number")]
    RequestMagic(u32),
    /// A WRITE whose payload is too long even to be discarded.
    #[error("a write of {0} bytes exceeds the maximum payload")]
    PayloadTooLong(u64),
    /// A payload made no progress within its time limit.
    #[error("the payload of a write made no progress within its time limit")]
    PayloadTimeout,
    /// The client did not take its replies in time, while other connections waited for memory or the connection was
    /// closing.
    #[error("the client did not take its replies within the time limit")]
    ReplyTimeout,
    /// The export was removed.
    #[error("the export was removed")]
    ExportRemoved,
    /// The exported device stopped serving while requests were in flight. They get no reply: a later session
    /// of the device decides their outcome, and the client reconnects.
    #[error("the exported device stopped serving: requests in flight are left to the next session")]
    Unsettled,
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The TLS handshake failed, or the peer violated the protocol.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// EXPORT_NAME without TLS for an export that requires it.
    #[error("the client chose an export without TLS, which is required")]
    TlsRequired,
    /// EXPORT_NAME after extended headers were negotiated, which the protocol forbids.
    #[error("the client chose an export by EXPORT_NAME with extended headers")]
    NameWithExtended,
    /// The client sent plaintext after STARTTLS, which an attacker could have injected.
    #[error("the client sent plaintext after STARTTLS")]
    TlsInjected,
    /// Neither this export nor, where the listener checks it, any export admits the client's address.
    #[error("the client's address is not allowed")]
    NotAllowed,
    /// Admission control revoked the connection's admission.
    #[error("admission was revoked: another connection, session or controller has taken over")]
    AdmissionRevoked,
    /// The shard has no memory or connection slot left.
    #[error("this shard has no room for another connection")]
    ShardFull,
}

impl Cause {
    /// Returns whether the end is ordinary: the client closed with nothing in flight, or the server ended the
    /// connection on purpose.
    pub fn is_ordinary(&self) -> bool {
        matches!(
            self,
            Cause::Disconnected
                | Cause::ConnectionClosed { in_flight: 0 }
                | Cause::ExportRemoved
                | Cause::Stopping
                | Cause::AdmissionRevoked
                | Cause::Unsettled
        )
    }
}

/// A connection event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdEvent {
    /// A client entered transmission.
    Connected {
        /// The client, as the listener named it.
        peer: String,
        /// The export that it uses.
        export: String,
    },
    /// A connection ended.
    Disconnected {
        /// The client, as the listener named it.
        peer: String,
        /// The export that it used; `None` if the handshake did not finish.
        export: Option<String>,
        /// The reason.
        cause: Cause,
    },
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<NbdEvent>,
    lost: u64,
}

/// A bounded queue from the shards to the log. Used only when connections open and close.
pub struct EventQueue(Mutex<Inner>);

impl Default for EventQueue {
    fn default() -> EventQueue {
        EventQueue(Mutex::new(Inner { queue: VecDeque::with_capacity(EVENTS_MAX), lost: 0 }))
    }
}

impl EventQueue {
    /// Returns an empty queue.
    pub fn new() -> EventQueue {
        EventQueue::default()
    }

    /// Adds an event, or counts it as lost if the queue is full.
    pub fn push(&self, event: NbdEvent) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.queue.len() >= EVENTS_MAX {
            inner.lost += 1;
        } else {
            inner.queue.push_back(event);
        }
    }

    /// Removes and returns the oldest event.
    pub fn pop(&self) -> Option<NbdEvent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).queue.pop_front()
    }

    /// Returns the number of events lost since the last call.
    pub fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).lost)
    }
}

impl std::fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventQueue").finish_non_exhaustive()
    }
}
