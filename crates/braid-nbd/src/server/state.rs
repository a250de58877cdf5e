//! The states of a connection: its stage, what it takes in, what it waits for, and where received bytes go.

/// The stage of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnectionStage {
    /// Requests are taken in.
    Open,
    /// No further input is taken; requests in flight are answered.
    Draining,
    /// The socket is closed; operations in flight are awaited.
    Closed,
}

/// What the next bytes of the stream are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InputState {
    /// A request header.
    Header,
    /// The next header, after the READ in `slot` has got memory. It has memory for its first `at` bytes.
    Gather { slot: u16, at: u32 },
    /// `left` bytes of payload or, if 0, the next header, after the engine has accepted `segment` and those after it.
    Submit { slot: u16, segment: u16, left: u32 },
    /// The payload of a WRITE, from byte `filled` of `segment` on. `left` counts the payload from the beginning of
    /// `segment`, so `left - filled` bytes are outstanding. No segment is allocated yet if `segment` is `NONE`.
    Payload { slot: u16, left: u32, segment: u16, filled: u32 },
    /// `left` bytes of a refused request's payload.
    Discard { slot: u16, left: u32 },
}

/// Why no input is taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitReason {
    /// Input is taken in as it arrives.
    No,
    /// The connection's own limits: a reply must be sent first.
    Own,
    /// A timer: the export's limits delay the request, the export is held, or a difference is being computed.
    Limits,
    /// The shard's memory or a slot of the engine: the connection is in the queue for memory.
    Memory,
}

/// The destination of received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReceiveTarget {
    Stream {
        requested: u32,
    },
    /// TLS records.
    Records {
        requested: u32,
    },
    Payload,
}
