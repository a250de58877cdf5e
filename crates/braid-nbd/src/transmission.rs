//! Is a request one that may be served? Pure: a header and what was negotiated in, a command or a refusal out.

use braid_engine::Flags;

use crate::codec::{
    Asked, EXTENDED_REQUEST_MAGIC, PAYLOAD_BYTES_ABSURD, PAYLOAD_BYTES_MAX, REQUEST_MAGIC, command, command_flags,
};
use crate::errno::Errno;

/// What was agreed on for one connection, as far as its requests depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Smallest block, a power of two.
    pub block_bytes_min: u32,
    /// Most bytes of a READ: what was announced as the largest block.
    pub read_bytes_max: u32,
    /// Nothing may change.
    pub read_only: bool,
    /// Replies are structured.
    pub structured: bool,
    /// Headers are extended, which makes replies structured, too.
    pub extended: bool,
    /// Metadata contexts were chosen for this export.
    pub allocation: bool,
}

/// A request that may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read,
    /// Write; the payload follows on the wire.
    Write(Flags),
    /// Leave.
    Disconnect,
    /// Flush.
    Flush,
    /// Discard.
    Trim(Flags),
    /// A hint.
    Cache,
    /// Write zeros.
    WriteZeroes(Flags),
    /// Describe extents; only one if set.
    BlockStatus {
        /// The client wants one extent, no longer than it asked.
        one: bool,
    },
}

/// A request that is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error.
    pub errno: Errno,
    /// Words for people, at most 38 bytes.
    pub text: &'static str,
}

/// A request after which the stream cannot be understood any more, or should not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// No request begins here.
    Magic(u32),
    /// A WRITE of more than [`PAYLOAD_BYTES_ABSURD`].
    Payload(u64),
}

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Serve it.
    Serve(Command),
    /// Answer with an error, after `payload` bytes of data were thrown away.
    Refuse(Refusal, u32),
    /// Close the connection.
    Close(Breach),
}

const fn refusal(errno: Errno, text: &'static str) -> Refusal {
    Refusal { errno, text }
}

/// Judges one request.
#[inline]
pub fn judge(header: &Asked, terms: &Terms) -> Verdict {
    let magic = if terms.extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
    if header.magic != magic {
        return Verdict::Close(Breach::Magic(header.magic));
    }
    let kind = header.kind;
    // With extended headers a flag says whether there is a payload, without them the command.
    let has_payload =
        if terms.extended { header.flags & command_flags::PAYLOAD_LEN != 0 } else { kind == command::WRITE };
    let payload = if has_payload && kind != command::DISC { header.len } else { 0 };
    if payload > u64::from(PAYLOAD_BYTES_ABSURD) {
        return Verdict::Close(Breach::Payload(payload));
    }
    match check(header, kind, terms) {
        Ok(_) if kind == command::WRITE && !has_payload => {
            Verdict::Refuse(refusal(Errno::Invalid, "a write without the flag PAYLOAD_LEN"), 0)
        }
        Ok(command) => Verdict::Serve(command),
        Err(refusal) => Verdict::Refuse(refusal, payload as u32),
    }
}

/// Which flags a command may have. FUA is valid for all of them.
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

fn check(header: &Asked, kind: u16, terms: &Terms) -> Result<Command, Refusal> {
    let flags = header.flags;
    if kind == command::DISC {
        return Ok(Command::Disconnect);
    }
    if kind > command::BLOCK_STATUS {
        return Err(refusal(Errno::Invalid, "unknown command"));
    }
    if flags & !flags_allowed(kind, terms) != 0 {
        return Err(refusal(Errno::Invalid, "a flag that this command does not have"));
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

/// The range must not be empty, must lie inside, be aligned, and be no longer than a payload may be.
fn check_range(header: &Asked, kind: u16, terms: &Terms) -> Result<(), Refusal> {
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
