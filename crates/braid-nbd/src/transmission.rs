//! Validates requests. Pure: maps a header and the negotiated terms to a command or a refusal.

use braid_engine::Flags;

use crate::codec::{
    DecodedRequest, EXTENDED_REQUEST_MAGIC, PAYLOAD_BYTES_DISCARDED_MAX, PAYLOAD_BYTES_MAX, REQUEST_MAGIC, command,
    command_flags,
};
use crate::errno::Errno;

/// The negotiated terms of one connection that its requests depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Smallest block, a power of two.
    pub block_bytes_min: u32,
    /// Maximum bytes of a READ: the announced largest block.
    pub read_bytes_max: u32,
    /// The export is read-only.
    pub read_only: bool,
    /// Replies are structured.
    pub structured: bool,
    /// Headers are extended, which implies structured replies.
    pub extended: bool,
    /// Metadata contexts were chosen for this export.
    pub allocation: bool,
}

/// A valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read,
    /// Write; the payload follows on the wire.
    Write(Flags),
    /// Disconnect.
    Disconnect,
    /// Flush.
    Flush,
    /// Discard.
    Trim(Flags),
    /// Prefetch hint.
    Cache,
    /// Write zeros.
    WriteZeroes(Flags),
    /// Describe extents.
    BlockStatus {
        /// The client wants a single extent, no longer than the requested range.
        one: bool,
    },
}

/// A request that gets an error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error.
    pub errno: Errno,
    /// Text for the client, at most 38 bytes.
    pub text: &'static str,
}

/// A protocol violation after which the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolViolation {
    /// The request does not begin with the magic number.
    Magic(u32),
    /// A payload of more than [`PAYLOAD_BYTES_DISCARDED_MAX`] bytes; the payload's length.
    Payload(u64),
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestDecision {
    /// Serve it.
    Serve(Command),
    /// Reply with an error after discarding this many bytes of payload.
    Refuse(Refusal, u32),
    /// Close the connection.
    Close(ProtocolViolation),
}

const fn refusal(errno: Errno, text: &'static str) -> Refusal {
    Refusal { errno, text }
}

/// Validates one request.
#[inline]
pub fn validate(header: &DecodedRequest, terms: &Terms) -> RequestDecision {
    let magic = if terms.extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
    if header.magic != magic {
        return RequestDecision::Close(ProtocolViolation::Magic(header.magic));
    }
    let kind = header.kind;
    // With extended headers a flag says whether a payload follows; without them the command does.
    let has_payload =
        if terms.extended { header.flags & command_flags::PAYLOAD_LEN != 0 } else { kind == command::WRITE };
    let payload = if has_payload && kind != command::DISC { header.len } else { 0 };
    if payload > u64::from(PAYLOAD_BYTES_DISCARDED_MAX) {
        return RequestDecision::Close(ProtocolViolation::Payload(payload));
    }
    match check(header, kind, terms) {
        Ok(_) if kind == command::WRITE && !has_payload => {
            RequestDecision::Refuse(refusal(Errno::Invalid, "a write without the flag PAYLOAD_LEN"), 0)
        }
        Ok(command) => RequestDecision::Serve(command),
        Err(refusal) => RequestDecision::Refuse(refusal, payload as u32),
    }
}

/// Returns the flags that a command may have. FUA is valid for all commands.
fn flags_allowed(kind: u16, terms: &Terms) -> u16 {
    use command_flags::*;
    FUA | match kind {
        command::READ if terms.structured => DF,
        command::WRITE if terms.extended => PAYLOAD_LEN,
        command::WRITE_ZEROES => NO_HOLE | FAST_ZERO,
        command::BLOCK_STATUS => REQ_ONE,
        _ => 0,
    }
}

fn check(header: &DecodedRequest, kind: u16, terms: &Terms) -> Result<Command, Refusal> {
    let flags = header.flags;
    if kind == command::DISC {
        return Ok(Command::Disconnect);
    }
    if kind > command::BLOCK_STATUS {
        return Err(refusal(Errno::Invalid, "unknown command"));
    }
    if flags & !flags_allowed(kind, terms) != 0 {
        return Err(refusal(Errno::Invalid, "a flag invalid for this command"));
    }
    if kind == command::FLUSH {
        if header.offset != 0 || header.len != 0 {
            return Err(refusal(Errno::Invalid, "a flush has no range"));
        }
        return Ok(Command::Flush);
    }
    let changes = matches!(kind, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if changes && terms.read_only {
        return Err(refusal(Errno::Perm, "the export is read-only"));
    }
    check_range(header, kind, terms)?;
    let mut set = Flags::NONE;
    for (bit, flag) in [
        (command_flags::FUA, Flags::FUA),
        (command_flags::NO_HOLE, Flags::NO_UNMAP),
        (command_flags::FAST_ZERO, Flags::FAST_ZERO),
    ] {
        if flags & bit != 0 {
            set = set.with(flag);
        }
    }
    Ok(match kind {
        command::READ => Command::Read,
        command::WRITE => Command::Write(set),
        command::TRIM => Command::Trim(set),
        command::CACHE => Command::Cache,
        command::WRITE_ZEROES => Command::WriteZeroes(set),
        _ if !terms.allocation => return Err(refusal(Errno::Invalid, "no metadata context was chosen")),
        _ => Command::BlockStatus { one: flags & command_flags::REQ_ONE != 0 },
    })
}

/// Checks that the range is not empty, lies inside the export, is aligned, and is not longer than the command allows.
fn check_range(header: &DecodedRequest, kind: u16, terms: &Terms) -> Result<(), Refusal> {
    let (offset, len) = (header.offset, header.len);
    if len == 0 {
        return Err(refusal(Errno::Invalid, "the range is empty"));
    }
    if offset.checked_add(len).is_none_or(|end| end > terms.size_bytes) {
        let errno = match kind {
            command::WRITE | command::WRITE_ZEROES => Errno::NoSpace,
            _ => Errno::Invalid,
        };
        return Err(refusal(errno, "beyond the end of the export"));
    }
    let mask = u64::from(terms.block_bytes_min) - 1;
    if (offset | len) & mask != 0 {
        return Err(refusal(Errno::Invalid, "not aligned to the smallest block"));
    }
    if matches!(kind, command::READ | command::WRITE) && len > u64::from(PAYLOAD_BYTES_MAX) {
        return Err(refusal(Errno::Invalid, "longer than 32 MiB"));
    }
    if kind == command::READ && len > u64::from(terms.read_bytes_max) {
        return Err(refusal(Errno::Invalid, "longer than the largest block"));
    }
    Ok(())
}
