//! From the bytes of a message to what is asked. Sans-I/O: bytes in, a verdict out.

use libc::{O_DSYNC, O_SYNC};
use zerocopy::FromBytes;

use crate::wire::{
    DATA_BYTES_MAX, FallocateIn, HEAD_BYTES, InHeader, InitIn, InitInMore, LseekIn, MAJOR, OpenIn, ROOT, ReadWriteIn,
    ReleaseIn, SetattrIn, attr_valid, opcode,
};

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Returned in the answer.
    pub unique: u64,
    /// What it wants.
    pub ask: Ask,
}

/// What the kernel wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Agree on the protocol.
    Init {
        /// The kernel's minor version.
        minor: u32,
        /// What it can do.
        flags: u64,
    },
    /// Attributes.
    GetAttr,
    /// Change attributes, or, by `O_TRUNC` or `truncate`, the size.
    SetAttr {
        /// The new size, if one is wanted, and whether of a file that is open.
        size: Option<(u64, bool)>,
        /// Owner or mode are to change.
        ownership: bool,
    },
    /// Open it.
    Open {
        /// For writing.
        write: bool,
    },
    /// An open file is closed.
    Release {
        /// What OPEN was answered.
        fh: u64,
    },
    /// Read.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes, at most [`DATA_BYTES_MAX`].
        len: u32,
    },
    /// Write what follows the head.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes, at most [`DATA_BYTES_MAX`]; all of them are there.
        len: u32,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Zero a range, or punch a hole, which reads as zeros too.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// It keeps its space.
        keep: bool,
        /// The file need not become longer for it.
        keep_size: bool,
    },
    /// Make everything durable.
    Fsync,
    /// Where the next hole, or the next data, begins.
    Seek {
        /// From here on.
        offset: u64,
        /// A hole; otherwise data.
        hole: bool,
    },
    /// Sizes of the file system.
    Statfs,
    /// To be answered with this error number.
    Refuse(i32),
    /// Nothing is answered.
    Nothing,
}

/// Why a message is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It ends before it should, or is longer than it says.
    Length,
    /// Another major version.
    Version,
}

/// Reads a message of `len` bytes, of which the first [`HEAD_BYTES`] are in `head` and the others in `rest`; of a WRITE only the head is
/// looked at, so that `rest` may be shorter than its data.
///
/// # Errors
/// The kernel sends none such: the connection cannot be relied on.
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
        // There is no other; the kernel has nowhere to have one from.
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
        // Of all others the kernel remembers that there is no such thing, and does what it can itself.
        _ => Ask::Refuse(libc::ENOSYS),
    };
    Ok(message(ask))
}

fn init(body: &[u8]) -> Result<Ask, Broken> {
    let (init, more) = InitIn::read_from_prefix(body).map_err(|_| Broken::Length)?;
    if init.major < MAJOR {
        return Err(Broken::Version);
    }
    // Its own version is ours with whatever minor one when the major is newer: it asks again.
    let flags2 = InitInMore::read_from_prefix(more).map_or(0, |(more, _)| more.flags2);
    let extended = u64::from(init.flags) & crate::wire::init_flags::INIT_EXT != 0;
    let flags = u64::from(init.flags) | if extended { u64::from(flags2) << 32 } else { 0 };
    Ok(Ask::Init { minor: if init.major > MAJOR { u32::MAX } else { init.minor }, flags })
}

/// The only one besides WRITE that is longer than the head.
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
        // Space cannot be reserved by it, nor the file made longer or rearranged.
        _ => Ask::Refuse(libc::EOPNOTSUPP),
    }
}

/// Any bytes as a message: the first two say how long it was, the rest is what came. Nothing may panic, and what is let through is within
/// its limits.
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
    fn each_request_is_what_it_is() {
        let read = ReadWriteIn { offset: 8192, size: 4096, ..ReadWriteIn::default() };
        assert_eq!(message(opcode::READ, read.as_bytes()), Ok(Ask::Read { offset: 8192, len: 4096 }));
        let write = ReadWriteIn { size: 3, flags: O_DSYNC as u32, ..read };
        let body = [write.as_bytes(), b"abc"].concat();
        assert_eq!(message(opcode::WRITE, &body), Ok(Ask::Write { offset: 8192, len: 3, fua: true }));
        let set = SetattrIn { valid: attr_valid::SIZE | attr_valid::FH, size: 5, ..SetattrIn::default() };
        let asked = Ask::SetAttr { size: Some((5, true)), ownership: false };
        assert_eq!(message(opcode::SETATTR, set.as_bytes()), Ok(asked));
        let open = OpenIn { flags: libc::O_RDWR as u32, open_flags: 0 };
        assert_eq!(message(opcode::OPEN, open.as_bytes()), Ok(Ask::Open { write: true }));
        let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
        let hole = FallocateIn { offset: 1, length: 2, mode, ..FallocateIn::default() };
        let asked = Ask::Zero { offset: 1, len: 2, keep: false, keep_size: true };
        assert_eq!(message(opcode::FALLOCATE, hole.as_bytes()), Ok(asked));
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
    fn what_is_wrong_is_refused() {
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
