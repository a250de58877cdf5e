//! What is on the wire: numbers and structures of the NBD protocol, big-endian, and nothing else.
//!
//! Source of every number: the protocol's own document, `doc/proto.md` of the project
//! NetworkBlockDevice/nbd. The conformance tests hold the same bytes again, written by hand.

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
/// A WRITE longer than [`PAYLOAD_BYTES_MAX`] and up to this is received, thrown away and refused; a
/// longer one costs the client its connection.
pub const PAYLOAD_BYTES_ABSURD: u32 = 64 << 20;

/// Flags of the server's greeting.
pub mod handshake_flags {
    /// The server speaks the fixed newstyle handshake.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The server can leave out the 124 zero bytes after EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Flags of the client's answer to the greeting.
pub mod client_flags {
    /// The client speaks the fixed newstyle handshake.
    pub const FIXED_NEWSTYLE: u32 = 1;
    /// The client does not want the 124 zero bytes.
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// What a client may ask during the handshake.
pub mod option {
    /// Take this export and go; an error can only be a closed connection.
    pub const EXPORT_NAME: u32 = 1;
    /// Leave.
    pub const ABORT: u32 = 2;
    /// Name the exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe one export.
    pub const INFO: u32 = 6;
    /// Describe one export and enter transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name the metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose the metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers: 32 bytes, lengths of 64 bits.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export's name.
    pub const SERVER: u32 = 2;
    /// One piece of information on an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The bit that all errors have.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// Option not known here.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// Option forbidden here.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// Option malformed.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// TLS must be begun first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// Export not known here.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The option or its answer is too large.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
    /// Extended headers are in use, or wanted.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR_BIT | 10;
}

/// Types of information in replies to INFO and GO.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's proper name.
    pub const NAME: u16 = 1;
    /// Text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Block size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do.
pub mod transmission_flags {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag is understood.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES and NO_HOLE are understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag is understood.
    pub const SEND_DF: u16 = 1 << 7;
    /// FLUSH and FUA count for all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is understood.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Types of requests.
pub mod command {
    /// Read bytes.
    pub const READ: u16 = 0;
    /// Write bytes.
    pub const WRITE: u16 = 1;
    /// Leave; there is no answer.
    pub const DISC: u16 = 2;
    /// Make acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// The range is no longer needed.
    pub const TRIM: u16 = 4;
    /// The range will soon be needed.
    pub const CACHE: u16 = 5;
    /// Make the range read as zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Describe the range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flags {
    /// Durable before it is acknowledged.
    pub const FUA: u16 = 1;
    /// WRITE_ZEROES: keep the space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ: one content chunk at most.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS: one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES: only if faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// With extended headers: the length is that of a payload which follows.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of chunks in structured replies.
pub mod chunk {
    /// Nothing more.
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

/// States of an extent in the context `base:allocation`.
pub mod state {
    /// Not allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// States of an extent in the contexts [`DIFFERENCE`].
pub mod difference {
    /// It has changed.
    pub const CHANGED: u32 = 1;
    /// It reads as zeros now; told where that is known.
    pub const ZERO: u32 = 1 << 1;
}

/// What the names of contexts begin with that tell differences; what it differs from follows.
pub const DIFFERENCE: &str = "braid:diff:";
/// The number of the first such context in replies; further ones follow it.
pub const DIFFERENCE_ID: u32 = 2;
/// Name of the metadata context that tells holes.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number that stands for [`BASE_ALLOCATION`] in replies.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// What the server says first.
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

/// What precedes each option's data.
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

/// What precedes the data of each reply to an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option that is answered.
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
    /// First byte.
    pub offset: U64,
    /// Bytes.
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
    /// First byte.
    pub offset: U64,
    /// Bytes, of the payload or of what the request is about.
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
    /// The request's own.
    pub cookie: U64,
}

/// What precedes each chunk's payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`STRUCTURED_REPLY_MAGIC`].
    pub magic: U32,
    /// [`chunk::FLAG_DONE`] or 0.
    pub flags: U16,
    /// One of [`chunk`].
    pub kind: U16,
    /// The request's own.
    pub cookie: U64,
    /// Bytes of payload.
    pub len: U32,
}

/// What precedes each chunk's payload, with extended headers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtendedChunkHeader {
    /// [`EXTENDED_REPLY_MAGIC`].
    pub magic: U32,
    /// [`chunk::FLAG_DONE`] or 0.
    pub flags: U16,
    /// One of [`chunk`].
    pub kind: U16,
    /// The request's own.
    pub cookie: U64,
    /// The request's own, whatever the chunk is about.
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
    /// A request as a client sends it.
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
    /// The header of a chunk with `len` bytes of payload.
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
    /// A request as a client sends it.
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

/// A request, whichever headers it came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// As it came.
    pub magic: u32,
    /// [`command_flags`].
    pub flags: u16,
    /// One of [`command`].
    pub kind: u16,
    /// The client's own.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl From<&RequestHeader> for Asked {
    #[inline]
    fn from(header: &RequestHeader) -> Asked {
        Asked {
            magic: header.magic.get(),
            flags: header.flags.get(),
            kind: header.kind.get(),
            cookie: header.cookie.get(),
            offset: header.offset.get(),
            len: u64::from(header.len.get()),
        }
    }
}

impl From<&ExtendedRequestHeader> for Asked {
    #[inline]
    fn from(header: &ExtendedRequestHeader) -> Asked {
        Asked {
            magic: header.magic.get(),
            flags: header.flags.get(),
            kind: header.kind.get(),
            cookie: header.cookie.get(),
            offset: header.offset.get(),
            len: header.len.get(),
        }
    }
}

/// What chunks begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkStyle {
    /// [`ChunkHeader`].
    Structured,
    /// [`ExtendedChunkHeader`], with the offset of the request.
    Extended(u64),
}

/// Writes a chunk's header at the front of `out`. Returns its bytes.
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

/// Writes a simple reply at the front of `out`; the data of a READ follows it. Returns its bytes.
#[inline]
pub fn encode_simple(out: &mut [u8], cookie: u64, error: u32) -> usize {
    let reply = SimpleReply { magic: U32::new(SIMPLE_REPLY_MAGIC), error: U32::new(error), cookie: U64::new(cookie) };
    out[..SIMPLE_BYTES].copy_from_slice(reply.as_bytes());
    SIMPLE_BYTES
}

/// Writes the front of a chunk of `len` data bytes (not 0) at `offset`; the data follows it. Returns its bytes.
#[inline]
pub fn encode_offset_data(out: &mut [u8], style: ChunkStyle, cookie: u64, done: bool, offset: u64, len: u32) -> usize {
    let at = encode_chunk(out, style, chunk::OFFSET_DATA, done, cookie, len + 8);
    out[at..at + 8].copy_from_slice(&offset.to_be_bytes());
    at + 8
}

/// Writes a chunk that says: `len` zeros (not 0) at `offset`. Returns its bytes.
pub fn encode_offset_hole(out: &mut [u8], cookie: u64, done: bool, offset: u64, len: u32) -> usize {
    out[..CHUNK_BYTES].copy_from_slice(ChunkHeader::new(chunk::OFFSET_HOLE, done, cookie, 12).as_bytes());
    out[CHUNK_BYTES..CHUNK_BYTES + 8].copy_from_slice(&offset.to_be_bytes());
    out[CHUNK_BYTES + 8..CHUNK_BYTES + 12].copy_from_slice(&len.to_be_bytes());
    CHUNK_BYTES + 12
}

/// Writes the front of a chunk with `bytes` of extents of one context, the last one if it is `done`; they follow it, each as
/// [`encode_extent`] writes it, or [`encode_extent_ext`] with extended headers. Returns its bytes.
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

/// Bytes of one extent, and of one with extended headers.
pub const EXTENT_BYTES: usize = 8;
/// Bytes of one extent with extended headers.
pub const EXTENT_EXT_BYTES: usize = 16;

/// One extent of a block status with extended headers.
pub fn encode_extent_ext(len: u64, state: u32) -> [u8; EXTENT_EXT_BYTES] {
    (u128::from(len) << 64 | u128::from(state)).to_be_bytes()
}

/// One extent of a block status, as it stands on the wire.
pub fn encode_extent(len: u32, state: u32) -> [u8; 8] {
    (u64::from(len) << 32 | u64::from(state)).to_be_bytes()
}

/// Writes a last chunk with an error (not 0), its text cut to what fits. Returns its bytes. `out`
/// has room for 46 bytes at least.
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
