//! The wire format: numbers and structures of the NBD protocol, big-endian.
//!
//! Source: `doc/proto.md` of the NetworkBlockDevice/nbd project. The conformance tests repeat the bytes, written by
//! hand.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of a server's greeting: "NBDMAGIC".
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of the greeting, and first of each option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First eight bytes of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First four bytes of each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First four bytes of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First four bytes of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// First four bytes of each request with extended headers.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// First four bytes of each chunk of a reply with extended headers.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Longest string that the protocol allows, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest READ or WRITE that is served, in bytes (32 MiB).
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// A WRITE longer than [`PAYLOAD_BYTES_MAX`] and up to this is received, discarded and refused. A longer one ends the
/// connection.
pub const PAYLOAD_BYTES_DISCARDED_MAX: u32 = 64 << 20;

const _: () =
    assert!(braid_export::BLOCK_BYTES_PREFERRED_MAX <= PAYLOAD_BYTES_MAX, "one request reads a preferred block");

/// Flags of the server's greeting.
pub mod handshake_flags {
    /// The server speaks the fixed newstyle handshake.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The server can leave out the 124 zero bytes after EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Flags of the client's reply to the greeting.
pub mod client_flags {
    /// The client speaks the fixed newstyle handshake.
    pub const FIXED_NEWSTYLE: u32 = 1;
    /// The client does not want the 124 zero bytes.
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// Options of the handshake.
pub mod option {
    /// Enter transmission with this export. The only error reply is to close the connection.
    pub const EXPORT_NAME: u32 = 1;
    /// End the handshake.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe one export.
    pub const INFO: u32 = 6;
    /// Describe one export and enter transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose the metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers: 32 bytes, lengths of 64 bits.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod option_reply {
    /// Success.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// Information on an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The bit that all errors have.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is not supported.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The option is forbidden.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option is malformed.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// TLS is required first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// The export does not exist.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The option or its reply is too large.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
    /// Extended headers are required, or already in use.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR_BIT | 10;
}

/// Types of information in replies to INFO and GO.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's canonical name.
    pub const NAME: u16 = 1;
    /// Human-readable description.
    pub const DESCRIPTION: u16 = 2;
    /// Block size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Capabilities of an export.
pub mod transmission_flags {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES and NO_HOLE are supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag is supported.
    pub const SEND_DF: u16 = 1 << 7;
    /// FLUSH and FUA cover all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is supported.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Types of requests.
pub mod command {
    /// Read bytes.
    pub const READ: u16 = 0;
    /// Write bytes.
    pub const WRITE: u16 = 1;
    /// Disconnect; there is no reply.
    pub const DISC: u16 = 2;
    /// Make acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard the range.
    pub const TRIM: u16 = 4;
    /// Prefetch the range.
    pub const CACHE: u16 = 5;
    /// Make the range read as zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Describe the range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flags {
    /// Durable before the reply.
    pub const FUA: u16 = 1;
    /// WRITE_ZEROES: keep the space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ: one content chunk at most.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS: one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES: only if faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// With extended headers: the length is that of a payload that follows.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of chunks in structured replies.
pub mod chunk {
    /// No payload.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset and length of zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The same, with 64 bits for each length and state.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// The bit that all errors have.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error of the whole request.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// An error at one offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
    /// Flag: the last chunk of its reply.
    pub const FLAG_DONE: u16 = 1;
}

/// Prefix of the names of difference contexts; the name of the compared content follows. States of extents are those of
/// [`braid_export::extents::difference`].
pub const DIFFERENCE: &str = "braid:diff:";
/// Id of the first difference context in replies; further ones follow it.
pub const DIFFERENCE_ID: u32 = 2;
/// Name of the allocation context. States of extents are those of [`braid_export::extents::state`].
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Id of [`BASE_ALLOCATION`] in replies.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// The server's greeting.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Greeting {
    /// [`INIT_MAGIC`].
    pub init_magic: U64,
    /// [`OPTION_MAGIC`].
    pub option_magic: U64,
    /// [`handshake_flags`].
    pub flags: U16,
}

/// The header of an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`].
    pub magic: U64,
    /// One of [`option`].
    pub option: U32,
    /// Bytes of data that follow.
    pub len: U32,
}

/// The header of an option reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option that this replies to.
    pub option: U32,
    /// One of [`option_reply`].
    pub kind: U32,
    /// Bytes of data that follow.
    pub len: U32,
}

/// A request, before the data of a WRITE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// [`command_flags`].
    pub flags: U16,
    /// One of [`command`].
    pub kind: U16,
    /// Chosen by the client, returned in every reply.
    pub cookie: U64,
    /// First byte of the range.
    pub offset: U64,
    /// Length in bytes.
    pub len: U32,
}

/// A request with extended headers, before its payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtendedRequestHeader {
    /// [`EXTENDED_REQUEST_MAGIC`].
    pub magic: U32,
    /// [`command_flags`].
    pub flags: U16,
    /// One of [`command`].
    pub kind: U16,
    /// Chosen by the client, returned in every reply.
    pub cookie: U64,
    /// First byte of the range.
    pub offset: U64,
    /// Length in bytes, of the payload or of the range.
    pub len: U64,
}

/// A simple reply, before the data of a READ.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SimpleReply {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub magic: U32,
    /// An error number, 0 for success.
    pub error: U32,
    /// The request's cookie.
    pub cookie: U64,
}

/// The header of a chunk.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`STRUCTURED_REPLY_MAGIC`].
    pub magic: U32,
    /// [`chunk::FLAG_DONE`] or 0.
    pub flags: U16,
    /// One of [`chunk`].
    pub kind: U16,
    /// The request's cookie.
    pub cookie: U64,
    /// Bytes of payload.
    pub len: U32,
}

/// The header of a chunk, extended.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtendedChunkHeader {
    /// [`EXTENDED_REPLY_MAGIC`].
    pub magic: U32,
    /// [`chunk::FLAG_DONE`] or 0.
    pub flags: U16,
    /// One of [`chunk`].
    pub kind: U16,
    /// The request's cookie.
    pub cookie: U64,
    /// The request's offset, whatever range the chunk covers.
    pub offset: U64,
    /// Bytes of payload.
    pub len: U64,
}

/// Bytes of a [`RequestHeader`].
pub const REQUEST_BYTES: usize = size_of::<RequestHeader>();
/// Bytes of an [`ExtendedRequestHeader`], and of an [`ExtendedChunkHeader`].
pub const EXTENDED_BYTES: usize = size_of::<ExtendedRequestHeader>();
/// Bytes of a [`SimpleReply`].
pub const SIMPLE_BYTES: usize = size_of::<SimpleReply>();
/// Bytes of a [`ChunkHeader`].
pub const CHUNK_BYTES: usize = size_of::<ChunkHeader>();

const _: () = {
    assert!(size_of::<Greeting>() == 18);
    assert!(size_of::<OptionHeader>() == 16);
    assert!(size_of::<OptionReplyHeader>() == 20);
    assert!(REQUEST_BYTES == 28);
    assert!(EXTENDED_BYTES == 32);
    assert!(size_of::<ExtendedChunkHeader>() == 32);
    assert!(SIMPLE_BYTES == 16);
    assert!(CHUNK_BYTES == 20);
};

impl RequestHeader {
    /// Returns a request header as a client sends it.
    #[inline]
    pub fn new(kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> RequestHeader {
        RequestHeader {
            magic: U32::new(REQUEST_MAGIC),
            flags: U16::new(flags),
            kind: U16::new(kind),
            cookie: U64::new(cookie),
            offset: U64::new(offset),
            len: U32::new(len),
        }
    }
}

impl ChunkHeader {
    /// Returns the header of a chunk with `len` bytes of payload.
    #[inline]
    pub fn new(kind: u16, done: bool, cookie: u64, len: u32) -> ChunkHeader {
        ChunkHeader {
            magic: U32::new(STRUCTURED_REPLY_MAGIC),
            flags: U16::new(if done { chunk::FLAG_DONE } else { 0 }),
            kind: U16::new(kind),
            cookie: U64::new(cookie),
            len: U32::new(len),
        }
    }
}

impl ExtendedRequestHeader {
    /// Returns a request header as a client sends it.
    #[inline]
    pub fn new(kind: u16, flags: u16, cookie: u64, offset: u64, len: u64) -> ExtendedRequestHeader {
        ExtendedRequestHeader {
            magic: U32::new(EXTENDED_REQUEST_MAGIC),
            flags: U16::new(flags),
            kind: U16::new(kind),
            cookie: U64::new(cookie),
            offset: U64::new(offset),
            len: U64::new(len),
        }
    }
}

/// A request, decoded from either header form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedRequest {
    /// The magic number, unchecked.
    pub magic: u32,
    /// [`command_flags`].
    pub flags: u16,
    /// One of [`command`].
    pub kind: u16,
    /// The client's cookie.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl From<&RequestHeader> for DecodedRequest {
    #[inline]
    fn from(header: &RequestHeader) -> DecodedRequest {
        DecodedRequest {
            magic: header.magic.get(),
            flags: header.flags.get(),
            kind: header.kind.get(),
            cookie: header.cookie.get(),
            offset: header.offset.get(),
            len: u64::from(header.len.get()),
        }
    }
}

impl From<&ExtendedRequestHeader> for DecodedRequest {
    #[inline]
    fn from(header: &ExtendedRequestHeader) -> DecodedRequest {
        DecodedRequest {
            magic: header.magic.get(),
            flags: header.flags.get(),
            kind: header.kind.get(),
            cookie: header.cookie.get(),
            offset: header.offset.get(),
            len: header.len.get(),
        }
    }
}

/// The header form of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkStyle {
    /// [`ChunkHeader`].
    Structured,
    /// [`ExtendedChunkHeader`], with the request's offset.
    Extended(u64),
}

/// Writes a chunk header to the front of `out`. Returns its length.
#[inline]
pub fn encode_chunk(out: &mut [u8], style: ChunkStyle, kind: u16, done: bool, cookie: u64, len: u32) -> usize {
    match style {
        ChunkStyle::Structured => {
            out[..CHUNK_BYTES].copy_from_slice(ChunkHeader::new(kind, done, cookie, len).as_bytes());
            CHUNK_BYTES
        }
        ChunkStyle::Extended(offset) => {
            let header = ExtendedChunkHeader {
                magic: U32::new(EXTENDED_REPLY_MAGIC),
                flags: U16::new(if done { chunk::FLAG_DONE } else { 0 }),
                kind: U16::new(kind),
                cookie: U64::new(cookie),
                offset: U64::new(offset),
                len: U64::new(u64::from(len)),
            };
            out[..EXTENDED_BYTES].copy_from_slice(header.as_bytes());
            EXTENDED_BYTES
        }
    }
}

/// Writes a simple reply to the front of `out`; the data of a READ follows it. Returns its length.
#[inline]
pub fn encode_simple(out: &mut [u8], cookie: u64, error: u32) -> usize {
    let reply = SimpleReply { magic: U32::new(SIMPLE_REPLY_MAGIC), error: U32::new(error), cookie: U64::new(cookie) };
    out[..SIMPLE_BYTES].copy_from_slice(reply.as_bytes());
    SIMPLE_BYTES
}

/// Writes the front of a chunk of `len` data bytes (not 0) at `offset`; the data follows it. Returns its length.
#[inline]
pub fn encode_offset_data(out: &mut [u8], style: ChunkStyle, cookie: u64, done: bool, offset: u64, len: u32) -> usize {
    let at = encode_chunk(out, style, chunk::OFFSET_DATA, done, cookie, len + 8);
    out[at..at + 8].copy_from_slice(&offset.to_be_bytes());
    at + 8
}

/// Writes a chunk of `len` zeros (not 0) at `offset`. Returns its length.
pub fn encode_offset_hole(out: &mut [u8], cookie: u64, done: bool, offset: u64, len: u32) -> usize {
    out[..CHUNK_BYTES].copy_from_slice(ChunkHeader::new(chunk::OFFSET_HOLE, done, cookie, 12).as_bytes());
    out[CHUNK_BYTES..CHUNK_BYTES + 8].copy_from_slice(&offset.to_be_bytes());
    out[CHUNK_BYTES + 8..CHUNK_BYTES + 12].copy_from_slice(&len.to_be_bytes());
    CHUNK_BYTES + 12
}

/// Writes the front of a chunk with `bytes` of extents of one context. `done` marks the last chunk. The extents follow
/// it, each from [`encode_extent`], or from [`encode_extent_ext`] with extended headers. Returns its length.
pub fn encode_block_status(
    out: &mut [u8],
    style: ChunkStyle,
    cookie: u64,
    context: u32,
    bytes: u32,
    done: bool,
) -> usize {
    match style {
        ChunkStyle::Structured => {
            let at = encode_chunk(out, style, chunk::BLOCK_STATUS, done, cookie, 4 + bytes);
            out[at..at + 4].copy_from_slice(&context.to_be_bytes());
            at + 4
        }
        ChunkStyle::Extended(_) => {
            let at = encode_chunk(out, style, chunk::BLOCK_STATUS_EXT, done, cookie, 8 + bytes);
            out[at..at + 4].copy_from_slice(&context.to_be_bytes());
            out[at + 4..at + 8].copy_from_slice(&(bytes / EXTENT_EXT_BYTES as u32).to_be_bytes());
            at + 8
        }
    }
}

/// Bytes of one extent.
pub const EXTENT_BYTES: usize = 8;
/// Bytes of one extent with extended headers.
pub const EXTENT_EXT_BYTES: usize = 16;

/// Encodes one extent of a block status with extended headers.
pub fn encode_extent_ext(len: u64, state: u32) -> [u8; EXTENT_EXT_BYTES] {
    (u128::from(len) << 64 | u128::from(state)).to_be_bytes()
}

/// Encodes one extent of a block status.
pub fn encode_extent(len: u32, state: u32) -> [u8; 8] {
    (u64::from(len) << 32 | u64::from(state)).to_be_bytes()
}

/// Writes a final chunk with an error (not 0), its text truncated to fit. Returns its length. `out` must have room for
/// at least 46 bytes.
pub fn encode_error(
    out: &mut [u8],
    style: ChunkStyle,
    cookie: u64,
    error: u32,
    offset: Option<u64>,
    text: &str,
) -> usize {
    let tail = if offset.is_some() { 8 } else { 0 };
    let mut keep = text.len().min(out.len() - EXTENDED_BYTES - 6 - tail).min(STRING_BYTES_MAX);
    while !text.is_char_boundary(keep) {
        keep -= 1;
    }
    let kind = if offset.is_some() { chunk::ERROR_OFFSET } else { chunk::ERROR };
    let at = encode_chunk(out, style, kind, true, cookie, (6 + keep + tail) as u32);
    let body = &mut out[at..];
    body[..4].copy_from_slice(&error.to_be_bytes());
    body[4..6].copy_from_slice(&(keep as u16).to_be_bytes());
    body[6..6 + keep].copy_from_slice(&text.as_bytes()[..keep]);
    if let Some(offset) = offset {
        body[6 + keep..14 + keep].copy_from_slice(&offset.to_be_bytes());
    }
    at + 6 + keep + tail
}
