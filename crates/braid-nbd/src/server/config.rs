//! The server's limits.

use crate::handshake::HANDSHAKE_NS_MAX;

/// Maximum number of unanswered requests of one connection; further ones wait in the socket.
pub const REQUESTS_MAX: usize = 256;
/// Maximum READ and WRITE data of one connection in memory, in bytes (32 MiB).
pub const BYTES_MAX: u32 = 32 << 20;
/// The same while other connections wait for memory (4 MiB), so that no client can hold all of it.
pub const BYTES_MAX_CONTESTED: u32 = 4 << 20;
/// Size of the segments that a request's data is split into, in bytes (1 MiB): one buffer and one engine request each.
pub const SEGMENT_BYTES: u32 = 1 << 20;
/// Maximum number of segments of one connection: one for each request, and one more for each full segment of data.
pub const SEGMENTS_MAX: usize = REQUESTS_MAX + (BYTES_MAX / SEGMENT_BYTES) as usize;
/// A connection may hold 1/4 of the shard's memory that stays free above the reserve: see `share.rs`.
pub const SHARE: u64 = 4;
/// All connections of an export together may hold as much memory as stays free above the reserve.
pub const EXPORT_SHARE: u64 = 1;
/// The reserve is 1/8 of the shard's memory. Only small requests may use it: see [`SMALL_SHARE`].
pub const RESERVE_SHARE: u64 = 8;
/// A request is small if it and everything else that its connection holds are at most 1/64 of the free memory left.
pub const SMALL_SHARE: u64 = 64;
/// Maximum number of connections that may get memory before the first one in the queue for memory, in one turn of the
/// shard's loop. Each of them must be within its share.
pub const PASSING_MAX: usize = 32;
/// After a connection has been the first in the queue for memory for 1/6 of [`ServerConfig::replies_ns`] (5 s by
/// default), the server disconnects one client: of those that have not taken a whole send for as long, the one whose
/// connection holds the most memory.
pub const STALL_SHARE: u64 = 6;
/// Bounds of the largest READ that the server announces, in bytes. In between, it announces half of the shard's memory,
/// rounded down to a power of two.
pub const READ_BYTES_MAX: (u32, u32) = (64 << 10, 32 << 20);
/// Maximum number of buffered requests that one prefetch hint announces to the engine.
pub const PREFETCH_REQUESTS_MAX: usize = 32;
/// Initial size of a connection's stream buffer in bytes.
pub const STREAM_BYTES: u32 = 32 << 10;
/// Size of a connection's stream buffer in bytes after it was full.
pub const STREAM_BYTES_LARGE: u32 = 256 << 10;
/// Initial size of a TLS connection's input buffer, and of its output buffer, in bytes.
pub const SECURE_BYTES: u32 = 32 << 10;
/// Size of each of these buffers after it was full, in bytes.
pub const SECURE_BYTES_LARGE: u32 = 256 << 10;
/// TLS handshakes continued per turn of the shard's loop. Each costs a signature, up to a millisecond with 4096-bit
/// RSA, during which the shard serves no other client.
pub const TLS_TURNS: u32 = 1;
/// Minimum rest of a payload that is received directly into its buffer, in bytes.
pub const DIRECT_BYTES: u32 = 32 << 10;
/// Minimum length of a read that is sent from a memory disk's own memory without a copy, in bytes. Below it, a copy
/// costs less than another piece to send.
pub const LEND_BYTES: u32 = 32 << 10;
/// Bytes to receive into the stream after a directly received payload: enough for the next request's header, and little
/// of its payload, which would have to be copied.
pub const RECEIVE_BYTES_AFTER_DIRECT: u32 = 4096;
/// Maximum bytes of one direct receive into a payload's buffer: the amount that must arrive within
/// [`ServerConfig::payload_ns`].
pub const DIRECT_BYTES_MAX: u32 = 256 << 10;
/// A closing connection must take all replies within this multiple of [`ServerConfig::replies_ns`], not counting the
/// time that the engine needs for the last completions.
pub const DRAIN_TIMES: u64 = 2;
/// Maximum length of a reply header in bytes: an error with extended headers, an offset and a text.
pub const HEAD_BYTES: usize = 88;
/// Size of the buffer for the headers of one send in bytes: 64 for each of [`REQUESTS_MAX`] replies. Only error headers
/// are longer. If many of them do not fit, the remaining replies wait for the next send.
pub const HEADS_BYTES: usize = 64 * REQUESTS_MAX;
/// A send takes no further reply once it holds this many bytes (1 MiB).
pub const SEND_BYTES: u64 = 1 << 20;
/// Maximum number of extents in one reply to BLOCK_STATUS.
pub const EXTENTS_MAX: usize = 512;

/// Configurable limits.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Maximum number of connections on the shard.
    pub connections_max: u16,
    /// Maximum number of these in their handshake. A further client displaces the oldest handshake, so silent
    /// connections cannot lock out other clients.
    pub handshakes_max: u16,
    /// Maximum memory of the shard for large stream buffers, in bytes.
    pub large_streams_bytes_max: u64,
    /// Time limit of a handshake.
    pub handshake_ns: u64,
    /// Time limit for the next part of a payload (256 KiB, or a shorter rest) to arrive.
    pub payload_ns: u64,
    /// Time limit for the client to take one send (about 1 MiB). It applies while any connection of the shard waits for
    /// memory, or while this connection is draining.
    pub replies_ns: u64,
    /// How long a request waits for memory as the first in the queue before it fails with ENOMEM.
    pub memory_ns: u64,
    /// Time limit for the last replies when the server stops.
    pub stop_ns: u64,
    /// Interval between checks of the time limits.
    pub tick_ns: u64,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            connections_max: 1024,
            handshakes_max: 128,
            large_streams_bytes_max: 16 << 20,
            handshake_ns: HANDSHAKE_NS_MAX,
            payload_ns: 30_000_000_000,
            replies_ns: 30_000_000_000,
            memory_ns: 30_000_000_000,
            stop_ns: 5_000_000_000,
            tick_ns: 1_000_000_000,
        }
    }
}
