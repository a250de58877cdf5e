//! Detects what is already on a disk: file systems, partition tables, volume managers, Braid's own labels.
//!
//! Only the bytes that [`ranges`] lists are examined; the caller reads them. Each signature comes with the byte ranges
//! that define it: once those are zeros, the disk no longer has it.
//!
//! Each offset and magic number names its source: the format's specification where one is public, else the header of
//! the project that defines the format.

mod boot;
mod magic;
mod members;

use std::fmt;

use crate::examine::recorded_copy_offset;
use crate::{BLOCK_BYTES, ByteRange};

/// The class of a signature.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SignatureClass {
    /// A file system.
    FileSystem,
    /// A partition table.
    PartitionTable,
    /// A member of a RAID, a volume group or a storage pool.
    Member,
    /// An encrypted volume.
    Encrypted,
    /// Swap space.
    Swap,
    /// A Braid label, of an array or of a pool.
    Braid,
}

/// A signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Its name: `ext4`, `gpt`, `md 1.2`, `braid pool`, ….
    pub kind: &'static str,
    /// Its class.
    pub class: SignatureClass,
    /// Its label, if it has one.
    pub label: Option<String>,
    /// Its UUID or other identity, if it has one.
    pub uuid: Option<String>,
    /// The byte ranges that identify it, ascending. Zeroing all of them removes the signature.
    pub ranges: Vec<ByteRange>,
}

/// All signatures on a disk; at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signatures {
    /// In the order in which [`identify_pieces`] searches; Braid's own labels first.
    pub signatures: Vec<Signature>,
}

impl Signatures {
    /// Returns whether there is a signature other than Braid's own.
    pub fn is_foreign(&self) -> bool {
        self.signatures.iter().any(|s| s.class != SignatureClass::Braid)
    }

    /// Returns the signature of this kind.
    pub fn kind(&self, kind: &str) -> Option<&Signature> {
        self.signatures.iter().find(|s| s.kind == kind)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class {
            SignatureClass::FileSystem => write!(f, "{} file system", self.kind)?,
            SignatureClass::PartitionTable => write!(f, "{} partition table", self.kind)?,
            SignatureClass::Member => write!(f, "{} member", self.kind)?,
            SignatureClass::Encrypted => write!(f, "{} volume", self.kind)?,
            SignatureClass::Swap => write!(f, "swap space")?,
            SignatureClass::Braid if self.kind == "braid pool" => write!(f, "Braid pool label")?,
            SignatureClass::Braid => write!(f, "Braid label")?,
        }
        match &self.label {
            Some(label) => write!(f, " \"{label}\""),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Signatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, signature) in self.signatures.iter().enumerate() {
            write!(f, "{}{signature}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Returns the ranges to read on a disk of this size: disjoint, ascending, whole blocks of 4 KiB. The remainder of a
/// disk after its last whole block is not examined: a second GPT header there is not found, but the first header
/// identifies the table.
pub fn ranges(device_bytes: u64) -> Vec<ByteRange> {
    let end = device_bytes / BLOCK_BYTES * BLOCK_BYTES;
    let mut wanted = vec![
        // Nearly everything: up to btrfs (64 KiB + 4 KiB) and the swap of hosts with pages of 64 KiB.
        (0, 72 << 10),
        // md 1.0, DRBD, the second GPT, Braid's copy.
        (end.saturating_sub(16 << 10), 16 << 10),
        (members::md_090_offset(device_bytes).unwrap_or(0), BLOCK_BYTES),
    ];
    wanted.extend(members::zfs_offsets(device_bytes).map(|offset| (offset, BLOCK_BYTES)));
    wanted.sort_unstable();
    let mut ranges: Vec<ByteRange> = Vec::new();
    for (start, bytes) in wanted {
        let (start, stop) = (start / BLOCK_BYTES * BLOCK_BYTES, (start + bytes).min(end));
        match ranges.last_mut() {
            Some(last) if start <= last.start + last.bytes => last.bytes = last.bytes.max(stop.max(start) - last.start),
            _ if start < stop => ranges.push(ByteRange::new(start, stop - start)),
            _ => {}
        }
    }
    ranges
}

/// Reads what [`ranges`] lists and returns the signatures there; `None` where there are none.
///
/// `read` returns the bytes at an offset; a short read is examined as it is.
///
/// # Errors
/// The first error of `read`.
pub fn identify<E>(
    device_bytes: u64,
    mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Result<Option<Signatures>, E> {
    let mut pieces = Vec::new();
    for range in ranges(device_bytes) {
        pieces.push((range.start, read(range.start, range.bytes as usize)?));
    }
    // On a disk that has grown, the copy of Braid's label is at the former end.
    if let Some((0, first)) = pieces.first() {
        let copy = recorded_copy_offset(first, device_bytes).unwrap_or(0);
        let known = pieces.iter().any(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&copy));
        if !known {
            pieces.push((copy, read(copy, BLOCK_BYTES as usize)?));
        }
    }
    Ok(identify_pieces(device_bytes, &pieces))
}

/// Returns the signatures in bytes that were already read, each piece with its offset; `None` where there are none.
pub fn identify_pieces(device_bytes: u64, pieces: &[(u64, Vec<u8>)]) -> Option<Signatures> {
    let view = View { device_bytes, pieces };
    let mut signatures = Vec::new();
    let mut found = |signature: Signature| signatures.push(signature);
    members::braid(&view, &mut found);
    boot::partitions(&view, &mut found);
    boot::file_systems(&view, &mut found);
    magic::simple(&view, &mut found);
    magic::ext(&view, &mut found);
    magic::swap(&view, &mut found);
    members::md(&view, &mut found);
    members::lvm(&view, &mut found);
    members::luks(&view, &mut found);
    members::zfs(&view, &mut found);
    members::drbd(&view, &mut found);
    (!signatures.is_empty()).then_some(Signatures { signatures })
}

type Sink<'a> = &'a mut dyn FnMut(Signature);

/// The bytes that were read.
struct View<'a> {
    device_bytes: u64,
    pieces: &'a [(u64, Vec<u8>)],
}

impl View<'_> {
    /// Returns `N` bytes at an offset; `None` where they were not read.
    fn get<const N: usize>(&self, offset: u64) -> Option<&[u8; N]> {
        self.slice(offset, N).and_then(|bytes| bytes.first_chunk())
    }

    /// Returns `len` bytes at an offset; `None` where they were not read.
    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.pieces.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(len)?)
        })
    }

    fn is(&self, offset: u64, magic: &[u8]) -> bool {
        self.slice(offset, magic.len()) == Some(magic)
    }

    fn le16(&self, offset: u64) -> u16 {
        self.get(offset).copied().map_or(0, u16::from_le_bytes)
    }

    fn le32(&self, offset: u64) -> u32 {
        self.get(offset).copied().map_or(0, u32::from_le_bytes)
    }

    fn be32(&self, offset: u64) -> u32 {
        self.get(offset).copied().map_or(0, u32::from_be_bytes)
    }

    fn le64(&self, offset: u64) -> u64 {
        self.get(offset).copied().map_or(0, u64::from_le_bytes)
    }

    /// Returns text padded with zeros or blanks; `None` when it is empty or not printable.
    fn text(&self, offset: u64, len: usize) -> Option<String> {
        let bytes = self.slice(offset, len)?;
        let bytes = bytes.split(|b| *b == 0).next()?;
        let text = std::str::from_utf8(bytes).ok()?.trim();
        (!text.is_empty() && !text.chars().any(char::is_control)).then(|| text.to_owned())
    }

    /// Returns the UUID at an offset, in the order of its text; `None` for all zeros.
    fn uuid(&self, offset: u64) -> Option<String> {
        let uuid = uuid::Uuid::from_bytes(*self.get(offset)?);
        (!uuid.is_nil()).then(|| uuid.to_string())
    }
}

/// Returns a signature that is defined by the bytes at one offset.
fn signature(kind: &'static str, class: SignatureClass, offset: u64, bytes: usize) -> Signature {
    Signature { kind, class, label: None, uuid: None, ranges: vec![ByteRange::new(offset, bytes as u64)] }
}
