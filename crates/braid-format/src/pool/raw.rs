//! The label of a pool as it is on disk: one list of fields, like that of an array's label.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::raw::label_fields;
use crate::{FieldKind, HEADER_BYTES, LABEL_BYTES, LabelField, MEMBERS_MAX, words};

/// One entry of the member table.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct RawPoolMember {
    /// The member's identity; zeros if no member has this number.
    pub uuid: [u8; 16],
    /// Its size in bytes.
    pub size_bytes: U64,
    /// 0 no member, 1 in use, 2 being removed, 3 missing, 4 being added, 5 abandoned; see
    /// [`crate::pool::PoolMemberState`].
    pub state: u8,
}

label_fields! {
    /// The label's 4096 bytes.
    RawPoolLabel,
    /// Every field of a pool's label, in the order of the bytes.
    POOL_FIELDS:
    /// `BRAIDPL1`.
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
    /// The pool's identity.
    pool_uuid: [u8; 16], 40, FieldKind::Uuid;
    /// Increases with every change of the label.
    sequence: U64, 56, FieldKind::Number;
    /// The pool's name.
    name: [u8; 64], 64, FieldKind::Text;
    /// 1 forming, 2 active, 3 deleting.
    pool_state: u8, 128, FieldKind::Word(words::pool_state_word);
    /// 1: stopped cleanly.
    clean: u8, 129, FieldKind::Word(words::clean_word);
    /// This member's number.
    member: u8, 130, FieldKind::Number;
    /// Numbers in the member table.
    member_count: u8, 131, FieldKind::Number;
    /// Number of owner slots.
    owner_slots: U32, 132, FieldKind::Number;
    /// When the pool was created.
    created_unix_s: U64, 136, FieldKind::Time;
    /// Id of the session that last opened the pool.
    session: U64, 144, FieldKind::Hex;
    /// This member's identity.
    member_uuid: [u8; 16], 152, FieldKind::Uuid;
    /// Number of extents of this member.
    extents: U32, 168, FieldKind::Number;
    /// Number of records without an extent.
    zero_slots: U32, 172, FieldKind::Number;
    /// Size of this member when its layout was chosen.
    device_bytes: U64, 176, FieldKind::Bytes;
    /// Where the label is.
    label_start: U64, 184, FieldKind::Bytes;
    /// Where its copy is.
    copy_start: U64, 192, FieldKind::Bytes;
    /// Where the checkpoint slots are.
    starts_start: U64, 200, FieldKind::Bytes;
    /// Size of the checkpoint slots.
    starts_bytes: U64, 208, FieldKind::Bytes;
    /// Where the ring begins.
    ring_start: U64, 216, FieldKind::Bytes;
    /// Size of the ring.
    ring_bytes: U64, 224, FieldKind::Bytes;
    /// Where the owner table begins.
    owners_start: U64, 232, FieldKind::Bytes;
    /// Size of the owner table.
    owners_bytes: U64, 240, FieldKind::Bytes;
    /// Where the table of records begins.
    table_start: U64, 248, FieldKind::Bytes;
    /// Size of the table.
    table_bytes: U64, 256, FieldKind::Bytes;
    /// Where the address sectors begin.
    addresses_start: U64, 264, FieldKind::Bytes;
    /// Size of the address sectors.
    addresses_bytes: U64, 272, FieldKind::Bytes;
    /// Where the extents begin.
    data_start: U64, 280, FieldKind::Bytes;
    /// Size of all extents.
    data_bytes: U64, 288, FieldKind::Bytes;
    /// Zero.
    reserved_a: [u8; 212], 296, FieldKind::Reserved;
    /// CRC-32C of bytes 0 to 507, `crc` counted as zero.
    header_crc: U32, 508, FieldKind::Hex;
    /// The member table.
    members: [RawPoolMember; MEMBERS_MAX], 512, FieldKind::Table;
    /// Zero.
    reserved_b: [u8; 384], 3712, FieldKind::Reserved;
}

const _: () = assert!(size_of::<RawPoolLabel>() == LABEL_BYTES);
const _: () = assert!(align_of::<RawPoolLabel>() == 1);
const _: () = assert!(core::mem::offset_of!(RawPoolLabel, members) == HEADER_BYTES);
const _: () = assert!(size_of::<RawPoolMember>() == 25);
