//! Parses the bytes of a message into a request. Sans-I/O: bytes in, a request or an error out.

use libc::{O_DSYNC, O_SYNC};
use zerocopy::FromBytes;

use crate::wire::{
    DATA_BYTES_MAX, FallocateIn, HEAD_BYTES, InHeader, InitIn, InitInMore, LseekIn, MAJOR, OpenIn, ROOT, ReadWriteIn,
    ReleaseIn, SetattrIn, attr_valid, opcode,
};

/// A message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Identifies the request; returned in the reply.
    pub unique: u64,
    /// The request.
    pub ask: Ask,
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Negotiates the protocol.
    Init {
        /// The kernel's minor version.
        minor: u32,
        /// The features that the kernel supports.
        flags: u64,
    },
    /// Reads the attributes.
    GetAttr,
    /// Changes attributes, or the size (`O_TRUNC`, `truncate`).
    SetAttr {
        /// The new size, if it is to change, and whether the request names an open file handle.
        size: Option<(u64, bool)>,
        /// Whether the owner or the mode is to change.
        ownership: bool,
    },
    /// Opens the file.
    Open {
        /// Whether for writing.
        write: bool,
    },
    /// Closes a file handle.
    Release {
        /// The file handle that the reply to OPEN returned.
        fh: u64,
    },
    /// Reads data.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes, at most [`DATA_BYTES_MAX`].
        len: u32,
    },
    /// Writes the data that follow the head.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes, at most [`DATA_BYTES_MAX`]; the message has all of them.
        len: u32,
        /// Whether the data are durable before the reply.
        fua: bool,
    },
    /// Zeroes a range, or punches a hole, which reads as zeros as well.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether the range keeps its allocated space.
        keep: bool,
        /// Whether the file keeps its size although the range may end beyond it (`FALLOC_FL_KEEP_SIZE`).
        keep_size: bool,
    },
    /// Makes all completed writes durable.
    Fsync,
    /// Finds the next hole or the next data.
    Seek {
        /// First byte of the search.
        offset: u64,
        /// Whether for a hole; otherwise for data.
        hole: bool,
    },
    /// Reads the sizes of the file system.
    Statfs,
    /// Any request that is refused, with this error number.
    Refuse(i32),
    /// Any request that has no reply.
    Nothing,
}

/// Why a message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It is shorter than its opcode requires, or its header states another length.
    Length,
    /// An INIT with an older major version than [`MAJOR`].
    Version,
}

/// Parses a message of `len` bytes: the first [`HEAD_BYTES`] are in `head`, the others in `rest`. Of a WRITE only the head is
/// parsed, so that `rest` may be shorter than its data.
///
/// # Errors
/// The message is malformed. The kernel sends no such message: the connection cannot be relied on.
pub fn read(head: &[u8], rest: &[u8], len: usize) -> Result<Message, Broken> {
    let in_head = len.min(HEAD_BYTES);
    let head = head.get(..in_head).ok_or(Broken::Length)?;
    let (header, body) = InHeader::read_from_prefix(head).map_err(|_| Broken::Length)?;
    if header.len as usize != len {
        return Err(Broken::Length);
    }
    let message = |ask| Message { unique: header.unique, ask };
    if header.opcode == opcode::INIT {
        return init(body).map(message);
    }
    if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::NOTIFY_REPLY | opcode::DESTROY) {
        return Ok(message(Ask::Nothing));
    }
    if header.nodeid != ROOT {
        // The root is the only node: no reply ever named another one.
        return Ok(message(Ask::Refuse(libc::ENOENT)));
    }
    let ask = match header.opcode {
        opcode::GETATTR => Ask::GetAttr,
        opcode::SETATTR => set_attr(body, rest, len)?,
        opcode::OPEN => {
            let (open, _) = OpenIn::read_from_prefix(body).map_err(|_| Broken::Length)?;
            Ask::Open { write: open.flags as i32 & libc::O_ACCMODE != libc::O_RDONLY }
        }
        opcode::RELEASE => {
            let (release, _) = ReleaseIn::read_from_prefix(body).map_err(|_| Broken::Length)?;
            Ask::Release { fh: release.fh }
        }
        opcode::READ => {
            let (read, _) = ReadWriteIn::read_from_prefix(body).map_err(|_| Broken::Length)?;
            match read.size <= DATA_BYTES_MAX && read.offset.checked_add(u64::from(read.size)).is_some() {
                true => Ask::Read { offset: read.offset, len: read.size },
                false => Ask::Refuse(libc::EINVAL),
            }
        }
        opcode::WRITE => {
            let (write, _) = ReadWriteIn::read_from_prefix(body).map_err(|_| Broken::Length)?;
            if len != HEAD_BYTES + write.size as usize {
                return Err(Broken::Length);
            }
            let fua = write.flags as i32 & (O_SYNC | O_DSYNC) != 0;
            match write.size <= DATA_BYTES_MAX && write.offset.checked_add(u64::from(write.size)).is_some() {
                true => Ask::Write { offset: write.offset, len: write.size, fua },
                false => Ask::Refuse(libc::EFBIG),
            }
        }
        opcode::FALLOCATE => {
            let (range, _) = FallocateIn::read_from_prefix(body).map_err(|_| Broken::Length)?;
            fallocate(&range)
        }
        opcode::FSYNC => Ask::Fsync,
        opcode::LSEEK => {
            let (seek, _) = LseekIn::read_from_prefix(body).map_err(|_| Broken::Length)?;
            match seek.whence as i32 {
                libc::SEEK_DATA => Ask::Seek { offset: seek.offset, hole: false },
                libc::SEEK_HOLE => Ask::Seek { offset: seek.offset, hole: true },
                _ => Ask::Refuse(libc::EINVAL),
            }
        }
        opcode::STATFS => Ask::Statfs,
        // After ENOSYS the kernel does not send this opcode again, and handles it itself where it can.
        _ => Ask::Refuse(libc::ENOSYS),
    };
    Ok(message(ask))
}

fn init(body: &[u8]) -> Result<Ask, Broken> {
    let (init, more) = InitIn::read_from_prefix(body).map_err(|_| Broken::Length)?;
    if init.major < MAJOR {
        return Err(Broken::Version);
    }
    // A kernel with a newer major version sends INIT again after the reply to this one, with the major version of that
    // reply. Until then its minor version has no meaning.
    let flags2 = InitInMore::read_from_prefix(more).map_or(0, |(more, _)| more.flags2);
    let extended = u64::from(init.flags) & crate::wire::init_flags::INIT_EXT != 0;
    let flags = u64::from(init.flags) | if extended { u64::from(flags2) << 32 } else { 0 };
    Ok(Ask::Init { minor: if init.major > MAJOR { u32::MAX } else { init.minor }, flags })
}

/// Parses SETATTR, the only request besides WRITE with fields beyond the head.
fn set_attr(body: &[u8], rest: &[u8], len: usize) -> Result<Ask, Broken> {
    let mut whole = [0u8; size_of::<SetattrIn>()];
    let split = body.len().min(whole.len());
    whole[..split].copy_from_slice(&body[..split]);
    let missing = whole.len() - split;
    if len < HEAD_BYTES + missing {
        return Err(Broken::Length);
    }
    whole[split..].copy_from_slice(rest.get(..missing).ok_or(Broken::Length)?);
    let set = SetattrIn::read_from_bytes(&whole).map_err(|_| Broken::Length)?;
    let has = |bits: u32| set.valid & bits != 0;
    Ok(Ask::SetAttr {
        size: has(attr_valid::SIZE).then_some((set.size, has(attr_valid::FH))),
        ownership: has(attr_valid::MODE | attr_valid::UID | attr_valid::GID),
    })
}

fn fallocate(range: &FallocateIn) -> Ask {
    let mode = range.mode as i32;
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    if range.length == 0 || range.offset.checked_add(range.length).is_none_or(|end| end > i64::MAX as u64) {
        return Ask::Refuse(libc::EINVAL);
    }
    let zero = |keep| Ask::Zero { offset: range.offset, len: range.length, keep, keep_size };
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        libc::FALLOC_FL_PUNCH_HOLE => zero(false),
        libc::FALLOC_FL_ZERO_RANGE => zero(true),
        // Reserving space, extending the file and moving ranges are not supported.
        _ => Ask::Refuse(libc::EOPNOTSUPP),
    }
}

/// Parses arbitrary bytes as a message: the first two state its length, the rest is its content. Parsing must not panic, and
/// an accepted request must be within its limits.
pub fn fuzz(bytes: &[u8]) {
    let Some((len, bytes)) = bytes.split_first_chunk::<2>() else { return };
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    let rest = &bytes[head.len()..];
    for len in [bytes.len(), usize::from(u16::from_le_bytes(*len))] {
        match read(head, rest, len).map(|message| message.ask) {
            Ok(Ask::Read { offset, len } | Ask::Write { offset, len, .. }) => {
                assert!(len <= DATA_BYTES_MAX && offset.checked_add(u64::from(len)).is_some());
            }
            Ok(Ask::Zero { offset, len, .. }) => assert!(offset.checked_add(len).is_some()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn message(opcode: u32, body: &[u8]) -> Result<Ask, Broken> {
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { len, opcode, unique: 7, nodeid: ROOT, ..InHeader::default() };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(body);
        let split = bytes.len().min(HEAD_BYTES);
        let read = read(&bytes[..split], &bytes[split..], bytes.len())?;
        assert_eq!(read.unique, 7);
        fuzz(&[&[0, 0], &bytes[..]].concat());
        Ok(read.ask)
    }

    #[test]
    fn each_opcode_is_parsed() {
        let read = ReadWriteIn { offset: 8192, size: 4096, ..ReadWriteIn::default() };
        assert_eq!(message(opcode::READ, read.as_bytes()), Ok(Ask::Read { offset: 8192, len: 4096 }));
        let write = ReadWriteIn { size: 3, flags: O_DSYNC as u32, ..read };
        let body = [write.as_bytes(), b"abc"].concat();
        assert_eq!(message(opcode::WRITE, &body), Ok(Ask::Write { offset: 8192, len: 3, fua: true }));
        let set = SetattrIn { valid: attr_valid::SIZE | attr_valid::FH, size: 5, ..SetattrIn::default() };
        let expected = Ask::SetAttr { size: Some((5, true)), ownership: false };
        assert_eq!(message(opcode::SETATTR, set.as_bytes()), Ok(expected));
        let open = OpenIn { flags: libc::O_RDWR as u32, open_flags: 0 };
        assert_eq!(message(opcode::OPEN, open.as_bytes()), Ok(Ask::Open { write: true }));
        let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
        let hole = FallocateIn { offset: 1, length: 2, mode, ..FallocateIn::default() };
        let expected = Ask::Zero { offset: 1, len: 2, keep: false, keep_size: true };
        assert_eq!(message(opcode::FALLOCATE, hole.as_bytes()), Ok(expected));
        let seek = LseekIn { offset: 5, whence: libc::SEEK_HOLE as u32, ..LseekIn::default() };
        assert_eq!(message(opcode::LSEEK, seek.as_bytes()), Ok(Ask::Seek { offset: 5, hole: true }));
        let init = InitIn { major: 7, minor: 45, max_readahead: 0, flags: 1 << 30 | 1 };
        let body = [init.as_bytes(), &[0x80, 0, 0, 0], &[0; 44]].concat();
        assert_eq!(message(opcode::INIT, &body), Ok(Ask::Init { minor: 45, flags: 0x80 << 32 | 1 << 30 | 1 }));
        assert_eq!(message(opcode::GETATTR, &[0; 16]), Ok(Ask::GetAttr));
        assert_eq!(message(opcode::FORGET, &[0; 8]), Ok(Ask::Nothing));
        assert_eq!(message(opcode::INTERRUPT, &[0; 8]), Ok(Ask::Refuse(libc::ENOSYS)));
    }

    #[test]
    fn malformed_requests_are_refused() {
        let write = ReadWriteIn { size: 4, ..ReadWriteIn::default() };
        assert_eq!(message(opcode::WRITE, &[write.as_bytes(), b"abc"].concat()), Err(Broken::Length));
        assert_eq!(message(opcode::SETATTR, &[0; 40]), Err(Broken::Length));
        assert_eq!(message(opcode::READ, &[0; 39]), Err(Broken::Length));
        let read = ReadWriteIn { offset: u64::MAX, size: 1, ..ReadWriteIn::default() };
        assert_eq!(message(opcode::READ, read.as_bytes()), Ok(Ask::Refuse(libc::EINVAL)));
        let read = ReadWriteIn { size: DATA_BYTES_MAX + 1, ..ReadWriteIn::default() };
        assert_eq!(message(opcode::READ, read.as_bytes()), Ok(Ask::Refuse(libc::EINVAL)));
        let range = FallocateIn { offset: u64::MAX, length: 2, ..FallocateIn::default() };
        assert_eq!(message(opcode::FALLOCATE, range.as_bytes()), Ok(Ask::Refuse(libc::EINVAL)));
        let range = FallocateIn { length: 2, ..FallocateIn::default() };
        assert_eq!(message(opcode::FALLOCATE, range.as_bytes()), Ok(Ask::Refuse(libc::EOPNOTSUPP)));
        let seek = LseekIn { whence: libc::SEEK_END as u32, ..LseekIn::default() };
        assert_eq!(message(opcode::LSEEK, seek.as_bytes()), Ok(Ask::Refuse(libc::EINVAL)));
        assert_eq!(read_short(), Err(Broken::Length));
    }

    fn read_short() -> Result<Message, Broken> {
        read(&[0; 39], &[], 39)
    }
}
