//! Braid's on-disk formats, and detection of the formats of others.
//!
//! - [`Label`]: the 4 KiB with which Braid marks a disk as its own, encoded byte by byte as in `docs/internals/format/label.md`.
//! - [`examine()`]: the same label field by field for display, even when it is damaged.
//! - [`journal`]: the write-ahead journal of arrays with parity.
//! - [`pool`]: what pools write on their members: label, tables and log rings.
//! - [`register`]: the persistent state of each voter of a replicated volume.
//! - [`md`]: the superblocks of Linux md arrays, for reading those arrays.
//! - [`foreign`]: detection of the file system, partition table or volume manager on a disk.
//!
//! Guarantees: decoding never panics, whatever the bytes; a decoded value is consistent in itself; encoding a
//! decoded value gives the same bytes. This crate does no I/O, reads no clock and draws no random number.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bitmap;
mod codec;
mod crc;
mod error;
pub mod examine;
pub mod foreign;
pub mod fuzz;
mod geometry;
pub mod journal;
mod label;
mod layout;
pub mod limits;
pub mod md;
mod name;
pub mod pool;
mod raw;
pub mod register;
mod states;
mod validate;
mod words;
mod zones;

pub use error::LabelError;
pub use examine::{Examined, examine, examine_pool};
pub use geometry::zone_table;
pub use label::{
    Ancestor, ArrayPart, Features, Header, Job, Label, Lineage, MemberEntry, MemberId, MemberPart, RetiredMarks, newest,
};
pub use layout::{
    BITMAP_BYTES, ByteRange, DATA_START_BYTES, DATA_START_SMALL_BYTES, DiskLayout, LayoutError, SMALL_DEVICE_BYTES,
    copy_offset,
};
pub use name::{Name, NameError};
pub use raw::{FIELDS, FieldKind, LabelField, RawJob, RawLabel, RawMember, RawSpan, RawZone};
pub use states::{ArrayState, JobKind, JobState, MemberState, StartPolicy};
pub use uuid::Uuid;
pub use zones::ZoneSpan;

/// The first eight bytes of every label.
pub const MAGIC: [u8; 8] = *b"BRAIDLB1";
/// The version of the label's format that this code writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// Size of a label, and the unit of every offset and size on a disk, in bytes.
pub const LABEL_BYTES: usize = 4096;
/// The same as a `u64`, for arithmetic on offsets.
pub const BLOCK_BYTES: u64 = LABEL_BYTES as u64;
/// The part of a label that has a CRC of its own: one sector, which disks write atomically.
pub const HEADER_BYTES: usize = 512;
/// Maximum number of members in a label.
pub const MEMBERS_MAX: usize = 128;
/// Maximum number of zones in a label if any zone has several members.
pub const ZONES_MAX: usize = 64;
/// Maximum number of zones in a label if every zone has one member (concat).
pub const SPANS_MAX: usize = 128;
/// Maximum number of ancestors in a lineage.
pub const ANCESTORS_MAX: usize = 8;
/// Maximum number of jobs with a checkpoint in the label.
pub const JOBS_MAX: usize = 2;
/// Maximum length of a name in bytes.
pub const NAME_BYTES_MAX: usize = 63;
