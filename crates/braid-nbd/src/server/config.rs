//! The server's limits, all of them in one place.

use crate::handshake::HANDSHAKE_NS_MAX;

/// Requests of one connection that may be unanswered at a time; more wait in the socket.
pub const REQUESTS_MAX: usize = 256;
/// Data of READs and WRITEs of one connection that may be in memory at a time, in bytes (32 MiB).
pub const BYTES_MAX: u32 = 32 << 20;
/// The same while others wait for memory (4 MiB), so that no one client can keep it all.
pub const BYTES_MAX_CONTESTED: u32 = 4 << 20;
/// A request's data is cut into segments of this many bytes (1 MiB): what one buffer holds and one
/// request to the engine moves.
pub const SEGMENT_BYTES: u32 = 1 << 20;
/// Segments of one connection: one for each request, and one more for each full segment of data.
pub const SEGMENTS_MAX: usize = REQUESTS_MAX + (BYTES_MAX / SEGMENT_BYTES) as usize;
/// A connection may hold this part of what is left of the shard's memory above the reserve: a quarter.
pub const SHARE: u64 = 4;
/// All connections of an export together may hold as much as is left there for others.
pub const EXPORT_SHARE: u64 = 1;
/// The reserve, as a part of all memory: an eighth. Only what is small finds memory there:
pub const RESERVE_SHARE: u64 = 8;
/// what with all that its connection holds is no more than a sixty-fourth of what is left.
pub const SMALL_SHARE: u64 = 64;
/// Who waits for memory is passed by so many others in a turn of the shard's loop, each within its share.
pub const PASSING_MAX: usize = 32;
/// While others have waited for memory for this part of [`ServerConfig::replies_ns`] in vain, the client is cut off that holds
/// most of it and has taken nothing of a send for as long: a sixth, 5 s.
pub const STALL_SHARE: u64 = 6;
/// Least and most bytes of a READ, whatever the memory: half of the memory is announced as the largest block.
pub const READ_BYTES_MAX: (u32, u32) = (64 << 10, 32 << 20);
/// Requests that the engine is told of before the first of them begins.
pub const FORESEEN_MAX: usize = 32;
/// A connection's stream buffer at first, in bytes.
pub const STREAM_BYTES: u32 = 32 << 10;
/// A connection's stream buffer once it was seen full, in bytes.
pub const STREAM_BYTES_LARGE: u32 = 256 << 10;
/// A TLS connection's buffer for received records, and as much for those to be sent, in bytes.
pub const SECURE_BYTES: u32 = 32 << 10;
/// The same once they were seen full.
pub const SECURE_BYTES_LARGE: u32 = 256 << 10;
/// TLS handshakes that get on in one turn of the shard's loop. Each costs a signature, up to a millisecond with RSA of
/// 4096 bits, for which all other clients of the shard wait.
pub const TLS_TURNS: u32 = 1;
/// What is left of a payload is received straight into its buffer from this many bytes on.
pub const DIRECT_BYTES: u32 = 32 << 10;
/// What is read is sent out of a memory disk's own memory from this many bytes on, instead of being copied first: below,
/// copying costs less than another piece to send.
pub const LEND_BYTES: u32 = 32 << 10;
/// Bytes asked of the stream after a payload that was received straight: the next request's header, and
/// not much of its payload, which would have to be copied.
pub const ASK_BYTES_AFTER_DIRECT: u32 = 4096;
/// Most bytes received at once straight into a payload's buffer: what must arrive within
/// [`ServerConfig::payload_ns`].
pub const DIRECT_BYTES_MAX: u32 = 256 << 10;
/// All replies of a connection that is closing must be taken within this many times [`ServerConfig::replies_ns`], the
/// time that the engine takes for its last answers not counted.
pub const DRAIN_TIMES: u64 = 2;
/// Room for one reply's header, in bytes: the longest is an error with extended headers, its place and a sentence.
pub const HEAD_BYTES: usize = 88;
/// Room for the headers of one send, in bytes: 64 for each reply. Only errors are longer; they go in two sends.
pub const HEADS_BYTES: usize = 64 * REQUESTS_MAX;
/// A send takes no further reply once it holds this many bytes (1 MiB).
pub const SEND_BYTES: u64 = 1 << 20;
/// Most extents in one answer to BLOCK_STATUS.
pub const EXTENTS_MAX: usize = 512;

/// Limits that tests and the daemon may set.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Connections of this shard at a time.
    pub connections_max: u16,
    /// Those of them that may be in their handshake: a further client takes the place of the one that has been longest
    /// at it. Whoever holds many connections open without saying a word cannot keep others out.
    pub handshakes_max: u16,
    /// Memory of this shard for large stream buffers, in bytes.
    pub large_streams_bytes_max: u64,
    /// Time for a handshake.
    pub handshake_ns: u64,
    /// Time for the next part of a payload (256 KiB, or all of a shorter rest) to arrive.
    pub payload_ns: u64,
    /// Time for one send (about 1 MiB) to be taken, when others wait for its memory or the connection is closing.
    pub replies_ns: u64,
    /// Time that a request waits for memory before it fails with ENOMEM.
    pub memory_ns: u64,
    /// Time for the last replies when the server stops.
    pub stop_ns: u64,
    /// Between two looks at the clock while something has a limit.
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
