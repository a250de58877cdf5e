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
    /// Not parsed yet: a READ has memory for its first `at` bytes, and waits for more.
    Gather { slot: u16, at: u32 },
    /// Not parsed yet: the engine must first accept this segment and those after it.
    Submit { slot: u16, segment: u16, left: u32 },
    /// The payload of a WRITE: `left` bytes, beginning at byte `filled` of `segment`.
    Payload { slot: u16, left: u32, segment: u16, filled: u32 },
    /// The payload of a refused WRITE.
    Discard { slot: u16, left: u32 },
}

/// Why no input is taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitReason {
    /// Input is taken in as it arrives.
    No,
    /// The connection's own limits: a reply must be sent first.
    Own,
    /// The limits of the export.
    Limits,
    /// The shard's memory or the engine's slots: others must free some.
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
