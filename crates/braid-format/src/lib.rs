//! What Braid writes on disks, and what others have written there.
//!
//! - [`Label`]: the 4 KiB with which Braid marks a disk as its own, and its encoding, byte by byte as
//!   `docs/format.md` draws it.
//! - [`examine()`]: the same label field by field, for people, also when it is damaged.
//! - [`journal`]: what arrays with parity write before they write in place.
//! - [`pool`]: what pools write on their members: their label, tables and rings.
//! - [`register`]: what each voter of a replicated volume remembers.
//! - [`md`]: what Linux md writes on the members of its arrays, to read those.
//! - [`foreign`]: which file system, partition table or volume manager stands on a disk.
//!
//! Promises: decoding never panics, whatever the bytes; what it accepts is consistent in itself; encoding what
//! was decoded gives the same bytes. This crate does no I/O, reads no clock and draws no random number.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bitmap;
mod check;
mod crc;
mod error;
pub mod examine;
pub mod foreign;
pub mod fuzz;
pub mod journal;
mod label;
mod layout;
pub mod limits;
pub mod md;
mod name;
mod place;
pub mod pool;
mod raw;
pub mod register;
mod words;
mod zones;

pub use error::LabelError;
pub use examine::{Examined, examine, examine_pool};
pub use label::{
    Ancestor, ArrayPart, ArrayState, Features, Header, Job, JobKind, JobState, Label, Lineage, MemberEntry, MemberId,
    MemberPart, MemberState, RetiredMarks, StartPolicy, newest,
};
pub use layout::zone_table;
pub use name::{Name, NameError};
pub use place::{
    BITMAP_BYTES, DATA_START_BYTES, DATA_START_SMALL_BYTES, Extent, PlaceError, Places, SMALL_DEVICE_BYTES, copy_offset,
};
pub use raw::{FIELDS, Field, FieldKind, RawJob, RawLabel, RawMember, RawSpan, RawZone};
pub use uuid::Uuid;
pub use zones::ZoneSpan;

/// The first eight bytes of every label.
pub const MAGIC: [u8; 8] = *b"BRAIDLB1";
/// The version of the label's format that this code writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// Size of a label, and the unit of every place on a disk, in bytes.
pub const LABEL_BYTES: usize = 4096;
/// The same as a `u64`, for arithmetic on offsets.
pub const BLOCK_BYTES: u64 = LABEL_BYTES as u64;
/// The part of a label that has a CRC of its own: one sector, which no disk tears.
pub const HEADER_BYTES: usize = 512;
/// Most members that a label can name.
pub const MEMBERS_MAX: usize = 128;
/// Most zones of several members that a label can hold.
pub const ZONES_MAX: usize = 64;
/// Most zones where each has one member only (concat).
pub const SPANS_MAX: usize = 128;
/// Most ancestors that a lineage remembers.
pub const ANCESTORS_MAX: usize = 8;
/// Most jobs with a checkpoint in the label.
pub const JOBS_MAX: usize = 2;
/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 63;
