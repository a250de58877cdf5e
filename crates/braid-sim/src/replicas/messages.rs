//! The messages between controllers and nodes.

use braid_engine::replica::{ConnectionId, ConnectionOrigin, VoterRefusal, VoterReply, VoterRequest};
use braid_format::Uuid;

/// An I/O that a controller requests of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Io {
    /// Reads one block.
    Read(u16),
    /// Writes one block, after its dirty bit.
    Write(u16, u64),
    /// Flushes everything that was written before.
    Flush,
    /// Lists the dirty blocks.
    Dirty,
    /// Notes that these blocks are the same on all replicas, and flushed.
    Clean(Vec<u16>),
    /// Performs a snapshot operation.
    Snapshot(SnapshotOp),
}

/// A snapshot operation on one replica; the first number is the snapshot's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotOp {
    /// Takes the snapshot, without a name.
    Take(u64),
    /// Gives it its name.
    Name(u64),
    /// Takes its name away.
    Hide(u64),
    /// Removes it.
    Remove(u64),
    /// Lists the snapshots.
    List,
    /// Reads one block of it.
    Read(u64, u16),
    /// Rolls the replica back to it, by the rollback of the second number. The reply is 1 if the snapshot exists.
    Rollback(u64, u64),
}

/// A message to a node.
#[derive(Clone, Debug)]
pub enum ToNode {
    /// A request outside connections: it may overtake others, and may be lost.
    Ask(u64, VoterRequest),
    /// Opens a connection.
    Hello { id: ConnectionId, caller: ConnectionOrigin },
    /// An I/O on a connection, under a number.
    Io(ConnectionId, u64, Io),
    /// Closes a connection.
    Close(ConnectionId),
}

/// A message to a controller.
#[derive(Clone, Debug)]
pub enum ToController {
    /// The reply to the request of this number.
    Answer(u64, Result<VoterReply, VoterRefusal>),
    /// The connection is admitted, under this boot of the node.
    Admitted(ConnectionId, Uuid),
    /// The reply to an I/O: the value of a read, the dirty blocks, or the snapshots; `boot` as the simulator counts
    /// boots.
    Done { id: ConnectionId, io: u64, value: u64, dirty: Vec<u16>, listed: Vec<(u64, bool)>, boot: u64 },
    /// The connection is closed.
    Closed(ConnectionId),
}
