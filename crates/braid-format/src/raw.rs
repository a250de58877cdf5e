//! The label as it is on disk: types of fixed size, little-endian, without padding.
//!
//! The one list of fields below defines the type, the compile-time checks of every offset, and the table [`FIELDS`],
//! which `examine` displays and a test compares with `docs/internals/format/label.md`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{ANCESTORS_MAX, JOBS_MAX, LABEL_BYTES, MEMBERS_MAX, SPANS_MAX, ZONES_MAX, words};

/// Size of the member table and of the zone table, each.
const TABLE_BYTES: usize = 1792;

/// One entry of the member table.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct RawMember {
    /// Random identity, 48 bits; 0 where there is no member.
    pub id: [u8; 6],
    /// Size of its data area in blocks of 4 KiB, 48 bits.
    pub data_blocks: [u8; 6],
    /// 0 vacant, 1 in sync, 2 rebuilding, 3 failed, 4 spare, 5 journal.
    pub state: u8,
    /// Bit 0: read only when no other member can serve the read.
    pub flags: u8,
}

/// One zone of several members.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct RawZone {
    /// Bit *i* (of byte *i* / 8, counted from the lowest) set: member *i* belongs to the zone.
    pub members: [u8; 16],
    /// Where the zone begins in each member's data area, in blocks of 4 KiB.
    pub start_blocks: [u8; 6],
    /// How much of each member it takes, in blocks of 4 KiB.
    pub height_blocks: [u8; 6],
}

/// One zone of a single member.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct RawSpan {
    /// The member.
    pub member: U16,
    /// Where the zone begins in its data area, in blocks of 4 KiB.
    pub start_blocks: [u8; 6],
    /// How much of it the zone takes, in blocks of 4 KiB.
    pub height_blocks: [u8; 6],
}

/// One job's checkpoint.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct RawJob {
    /// 0 none, else which kind of job.
    pub kind: u8,
    /// 1 running, 2 paused; 0 with no job.
    pub state: u8,
    /// The member that it works on, or 0xffff.
    pub target: U16,
    /// The member that it copies from, or 0xffff.
    pub source: U16,
    /// Zero.
    pub reserved: U16,
    /// The job's number.
    pub number: U64,
    /// Everything before this byte is done.
    pub position_bytes: U64,
    /// Where it ends, in bytes.
    pub end_bytes: U64,
    /// Limit in bytes a second; 0: the default.
    pub rate_bytes_per_s: U64,
}

/// How a field's value is displayed.
#[derive(Clone, Copy, Debug)]
pub enum FieldKind {
    /// Characters, padded with zeros.
    Text,
    /// A decimal number.
    Number,
    /// A number of bytes.
    Bytes,
    /// A number in hexadecimal.
    Hex,
    /// Sixteen bytes of UUID.
    Uuid,
    /// Seconds since 1970.
    Time,
    /// A code with a word for each value.
    Word(fn(u8) -> Option<&'static str>),
    /// Several 64-bit ids.
    Ids,
    /// Several 48-bit sequence numbers, one for each ancestor.
    Sequences,
    /// The jobs.
    Jobs,
    /// A table, displayed elsewhere.
    Table,
    /// Must be zero.
    Reserved,
}

/// One field of the label.
#[derive(Clone, Copy, Debug)]
pub struct LabelField {
    /// Its name, the same in the code, in `docs/internals/format/label.md` and in the output of `examine`.
    pub name: &'static str,
    /// Offset in the label, in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// How its value is displayed.
    pub kind: FieldKind,
}

impl LabelField {
    /// Returns the field with this name.
    pub fn named(name: &str) -> Option<&'static LabelField> {
        FIELDS.iter().find(|f| f.name == name)
    }

    /// Returns the bytes of this field in a label; empty when the label is too short.
    pub fn of<'a>(&self, label: &'a [u8]) -> &'a [u8] {
        label.get(self.offset..self.offset + self.size).unwrap_or(&[])
    }
}

pub(crate) const fn size_of_field<R, F>(_: fn(&R) -> &F) -> usize {
    size_of::<F>()
}

/// Defines the type of a label, the list of its fields, and the compile-time checks of their offsets.
macro_rules! label_fields {
    (
        $(#[$type_doc:meta])* $raw:ident, $(#[$list_doc:meta])* $list:ident:
        $($(#[$doc:meta])* $name:ident: $type:ty, $offset:literal, $kind:expr;)*
    ) => {
        $(#[$type_doc])*
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, PartialEq, Eq, Debug)]
        #[repr(C)]
        pub struct $raw {
            $($(#[$doc])* pub $name: $type,)*
        }

        $(#[$list_doc])*
        pub const $list: &[LabelField] = &[
            $(LabelField {
                name: stringify!($name),
                offset: core::mem::offset_of!($raw, $name),
                size: $crate::raw::size_of_field(|label: &$raw| &label.$name),
                kind: $kind,
            },)*
        ];

        $(const _: () = assert!(core::mem::offset_of!($raw, $name) == $offset);)*
    };
}
pub(crate) use label_fields;

label_fields! {
    /// The label's 4096 bytes.
    RawLabel,
    /// Every field of the label, in the order of the bytes.
    FIELDS:
    /// `BRAIDLB1`.
    magic: [u8; 8], 0, FieldKind::Text;
    /// CRC-32C of all 4096 bytes, this field counted as zero.
    crc: U32, 8, FieldKind::Hex;
    /// Version of the format.
    version: U32, 12, FieldKind::Number;
    /// Features that an older program may ignore.
    features_compatible: U64, 16, FieldKind::Hex;
    /// Features with which an older program may read, not write.
    features_read_only: U64, 24, FieldKind::Hex;
    /// Features with which an older program must refuse.
    features_incompatible: U64, 32, FieldKind::Hex;
    /// The array's identity.
    array_uuid: [u8; 16], 40, FieldKind::Uuid;
    /// Increases with every change of the label.
    sequence: U64, 56, FieldKind::Number;
    /// The array's name.
    name: [u8; 64], 64, FieldKind::Text;
    /// 1 forming, 2 active, 3 deleting.
    array_state: u8, 128, FieldKind::Word(words::array_state_word);
    /// The level.
    level: u8, 129, FieldKind::Word(words::level_word);
    /// The layout within the level.
    layout: u8, 130, FieldKind::Word(words::layout_word);
    /// Whether all zones are used, or the first only.
    zone_policy: u8, 131, FieldKind::Word(words::zone_policy_word);
    /// Copies of each block (raid10); 1 elsewhere.
    copies: U16, 132, FieldKind::Number;
    /// Entries in the member table.
    member_count: U16, 134, FieldKind::Number;
    /// Entries in the zone table.
    zone_count: U16, 136, FieldKind::Number;
    /// 1: each entry is a set of members; 2: each entry is one member.
    zone_form: u8, 138, FieldKind::Word(words::zone_form_word);
    /// 1: stopped cleanly.
    clean: u8, 139, FieldKind::Word(words::clean_word);
    /// When the array may start degraded.
    start_policy: u8, 140, FieldKind::Word(words::start_policy_word);
    /// How many ancestors follow.
    ancestor_count: u8, 141, FieldKind::Number;
    /// Zero.
    reserved_a: [u8; 2], 142, FieldKind::Reserved;
    /// Chunk in bytes.
    chunk_bytes: U32, 144, FieldKind::Bytes;
    /// Size of a region of the write-intent bitmap, in bytes; 0: no bitmap.
    region_bytes: U32, 148, FieldKind::Bytes;
    /// Usable capacity, in bytes.
    array_bytes: U64, 152, FieldKind::Bytes;
    /// When the array was created.
    created_unix_s: U64, 160, FieldKind::Time;
    /// Id of the current lineage.
    lineage: U64, 168, FieldKind::Hex;
    /// Ids of earlier lineages, the nearest first.
    ancestors: [U64; ANCESTORS_MAX], 176, FieldKind::Ids;
    /// Random id of the array's last session.
    session: U64, 240, FieldKind::Hex;
    /// Fences an older controller.
    epoch: U64, 248, FieldKind::Number;
    /// The controller that raised the epoch.
    controller: [u8; 16], 256, FieldKind::Uuid;
    /// Checkpoints of jobs.
    jobs: [RawJob; JOBS_MAX], 272, FieldKind::Jobs;
    /// For each ancestor, the sequence number from which a returning member with a label of that lineage is accepted,
    /// 48 bits.
    believed_from: [[u8; 6]; ANCESTORS_MAX], 352, FieldKind::Sequences;
    /// This member's identity, 48 bits.
    member_id: [u8; 6], 400, FieldKind::Hex;
    /// This member's slot: its index in the member table.
    role: U16, 406, FieldKind::Number;
    /// Size of this disk when its layout was chosen.
    device_bytes: U64, 408, FieldKind::Bytes;
    /// Where the label is.
    label_start: U64, 416, FieldKind::Bytes;
    /// Where its copy is.
    copy_start: U64, 424, FieldKind::Bytes;
    /// Where the data area begins.
    data_start: U64, 432, FieldKind::Bytes;
    /// Size of the data area.
    data_bytes: U64, 440, FieldKind::Bytes;
    /// Where the write-intent bitmap begins.
    bitmap_start: U64, 448, FieldKind::Bytes;
    /// Size of the space for the bitmap; 0: none.
    bitmap_bytes: U64, 456, FieldKind::Bytes;
    /// Where the journal begins.
    journal_start: U64, 464, FieldKind::Bytes;
    /// Size of the journal; 0: none.
    journal_bytes: U64, 472, FieldKind::Bytes;
    /// The journal run whose marks a drop retired; 0: none.
    retired_run: U64, 480, FieldKind::Hex;
    /// The last batch of that run whose marks are retired.
    retired_batch: U64, 488, FieldKind::Number;
    /// Zero; belongs to the member.
    reserved_c: [u8; 4], 496, FieldKind::Reserved;
    /// The session before `session`; the same on every member.
    session_before: U64, 500, FieldKind::Hex;
    /// CRC-32C of bytes 0 to 507, `crc` counted as zero.
    header_crc: U32, 508, FieldKind::Hex;
    /// The member table.
    members: [RawMember; MEMBERS_MAX], 512, FieldKind::Table;
    /// The zone table, in one of two forms.
    zones: [u8; TABLE_BYTES], 2304, FieldKind::Table;
}

const _: () = assert!(size_of::<RawLabel>() == LABEL_BYTES);
const _: () = assert!(align_of::<RawLabel>() == 1);
const _: () = assert!(size_of::<RawJob>() == 40);
const _: () = assert!(size_of::<RawMember>() * MEMBERS_MAX == TABLE_BYTES);
const _: () = assert!(size_of::<RawZone>() * ZONES_MAX == TABLE_BYTES);
const _: () = assert!(size_of::<RawSpan>() * SPANS_MAX == TABLE_BYTES);

/// Returns a 48-bit little-endian number.
pub(crate) fn get48(bytes: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = bytes;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// Returns the low 48 bits of `value`; `None` when higher bits are set.
pub(crate) fn put48(value: u64) -> Option<[u8; 6]> {
    let [a, b, c, d, e, f, 0, 0] = value.to_le_bytes() else { return None };
    Some([a, b, c, d, e, f])
}

/// Returns whether these bytes, at most [`LABEL_BYTES`], are all zeros.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes == &[0; LABEL_BYTES][..bytes.len()]
}
