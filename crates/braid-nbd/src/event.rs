//! What happened to connections, for whoever keeps the log. Bounded: what nobody fetched is counted, not kept.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Most events that wait to be fetched.
pub const EVENTS_MAX: usize = 1024;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The client said goodbye (DISC, or ABORT in the handshake).
    #[error("the client left")]
    Left,
    /// The client closed without a word.
    #[error("the client closed the connection with {in_flight} requests in flight")]
    Gone {
        /// Requests that were not answered yet.
        in_flight: u32,
    },
    /// The socket failed.
    #[error("the socket failed (errno {0})")]
    Socket(i32),
    /// The handshake took too long.
    #[error("the handshake was not finished within its time limit")]
    HandshakeLate,
    /// Too many others were in their handshake, and this one had been longest at it.
    #[error("the handshake was not finished when too many newer clients came")]
    HandshakeDisplaced,
    /// The client set flags that it was not offered, or a client of the older handshake asked for an option.
    #[error("client flags {0:#x} do not fit what was offered")]
    ClientFlags(u32),
    /// An option did not begin with its magic number.
    #[error("an option began with {0:#018x}, not with its magic number")]
    OptionMagic(u64),
    /// More options, or more bytes of them, than any honest client sends.
    #[error("too many options, or too long ones, in one handshake")]
    OptionFlood,
    /// EXPORT_NAME asked for what does not exist.
    #[error("there is no export {0:?}")]
    NoSuchExport(String),
    /// EXPORT_NAME asked for an export that has no place left.
    #[error("export {0:?} has no connection to spare")]
    NoPlace(String),
    /// A request did not begin with its magic number.
    #[error("a request began with {0:#010x}, not with its magic number")]
    RequestMagic(u32),
    /// A WRITE with an absurd payload.
    #[error("a write of {0} bytes is longer than any that could be taken")]
    PayloadAbsurd(u64),
    /// A payload did not advance.
    #[error("the payload of a write made no progress within its time limit")]
    PayloadLate,
    /// Replies were not taken, and others waited for the memory or the connection was closing.
    #[error("the client did not take its replies within the time limit")]
    RepliesLate,
    /// The export was removed.
    #[error("the export was removed")]
    ExportRemoved,
    /// What the export is of serves no more, or not for now, and a request was under way: it is not answered, as a later session settles it.
    #[error("what the export is of serves no more: requests under way are left to the next session")]
    Unsettled,
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// TLS could not be agreed on, or was broken.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// EXPORT_NAME without TLS, where TLS is required.
    #[error("the client chose an export without TLS, which is required")]
    TlsRequired,
    /// EXPORT_NAME after extended headers were agreed on, which the protocol forbids.
    #[error("the client chose an export by EXPORT_NAME with extended headers")]
    NameWithExtended,
    /// The client sent more in the clear behind STARTTLS, which could be anybody's.
    #[error("the client sent bytes in the clear behind its request for TLS")]
    TlsInjected,
    /// The export, or all of them, are not for the client's address.
    #[error("its address is not among those that are allowed")]
    NotAllowed,
    /// The gate of its export has cut it off, or did not let it in.
    #[error("it is not its turn any more: another connection, session or controller has taken its place")]
    CutOff,
    /// No memory or no place for one more connection on this shard.
    #[error("this shard has no room for another connection")]
    NoRoom,
}

impl Cause {
    /// Nothing is wrong: the client left as it should, or the server wanted it.
    pub fn is_ordinary(&self) -> bool {
        matches!(
            self,
            Cause::Left
                | Cause::Gone { in_flight: 0 }
                | Cause::ExportRemoved
                | Cause::Stopping
                | Cause::CutOff
                | Cause::Unsettled
        )
    }
}

/// Something that happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdEvent {
    /// A client entered transmission.
    Connected {
        /// Who it is, as the listener named it.
        peer: String,
        /// Which export it uses.
        export: String,
    },
    /// A connection ended.
    Disconnected {
        /// Who it was.
        peer: String,
        /// Which export it used; none when the handshake did not get so far.
        export: Option<String>,
        /// Why.
        cause: Cause,
    },
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<NbdEvent>,
    lost: u64,
}

/// A bounded queue from the data cores to the log. Touched only when connections come and go.
pub struct EventQueue(Mutex<Inner>);

impl Default for EventQueue {
    fn default() -> EventQueue {
        EventQueue(Mutex::new(Inner { queue: VecDeque::with_capacity(EVENTS_MAX), lost: 0 }))
    }
}

impl EventQueue {
    /// An empty queue.
    pub fn new() -> EventQueue {
        EventQueue::default()
    }

    /// Adds an event, or counts it as lost when the queue is full.
    pub fn push(&self, event: NbdEvent) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.queue.len() >= EVENTS_MAX {
            inner.lost += 1;
        } else {
            inner.queue.push_back(event);
        }
    }

    /// The oldest event.
    pub fn pop(&self) -> Option<NbdEvent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).queue.pop_front()
    }

    /// How many events were lost since the last call.
    pub fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).lost)
    }
}

impl std::fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventQueue").finish_non_exhaustive()
    }
}
