//! The label of a pool: a description of the pool, identical on every member, and the layout of one member.

use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::PoolMemberLayout;
use super::raw::{RawPoolLabel, RawPoolMember};
use super::validate;
use crate::label::pad;
use crate::{BLOCK_BYTES, Features, LABEL_BYTES, LabelError, MEMBERS_MAX, Name, crc, words};

/// The first eight bytes of every label of a pool.
pub const POOL_MAGIC: [u8; 8] = *b"BRAIDPL1";
/// The version of the format that this code writes, and the newest that it reads.
pub const POOL_VERSION: u32 = 1;

/// A pool's label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolLabel {
    /// Features of the format in use.
    pub features: Features,
    /// The pool's identity.
    pub uuid: Uuid,
    /// Increases with every change of the label; from 1.
    pub sequence: u64,
    /// The pool's name.
    pub name: Name,
    /// Lifecycle state of the pool.
    pub state: PoolState,
    /// Whether the pool was stopped cleanly.
    pub clean: bool,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// Random id of the session that last opened it; 0: never opened.
    pub session: u64,
    /// The members by number; `None` for a number that no member has any longer.
    pub members: Vec<Option<PoolMember>>,
    /// The number of the member that this label is on.
    pub member: u8,
    /// The layout of this member.
    pub layout: PoolMemberLayout,
    /// Bytes that a newer version may use under a feature that this version may ignore; preserved.
    pub reserved: Reserved,
}

/// The label's reserved bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Reserved {
    pub(super) header: [u8; 212],
    pub(super) rest: [u8; 384],
}

impl Reserved {
    /// Zeros.
    pub const NONE: Reserved = Reserved { header: [0; 212], rest: [0; 384] };
}

impl std::fmt::Debug for Reserved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Reserved::NONE { "zeros" } else { "of a newer version" })
    }
}

/// Lifecycle state of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolState {
    /// Being created: not yet on every member, never served.
    Forming,
    /// In use.
    Active,
    /// Being deleted: labels are being wiped.
    Deleting,
}

/// A member of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PoolMember {
    /// Its identity.
    pub uuid: Uuid,
    /// Its size in bytes, as in its layout.
    pub size_bytes: u64,
    /// Its state.
    pub state: PoolMemberState,
}

/// State of a member of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolMemberState {
    /// Holds data, and new extents are allocated on it.
    InUse,
    /// Its data are being moved to other members.
    Removing,
    /// Missing: the pool runs without it.
    Missing,
    /// Being added: it is not a member until another member's label lists it. Only its own label has this state.
    Joining,
    /// Missing for good: it is not a member even if it appears again. What it may have held is still unknown.
    Abandoned,
}

/// The content of a label's first sector. It survives a write of the label that was torn between sectors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolHeader {
    /// The pool.
    pub uuid: Uuid,
    /// Its name.
    pub name: Name,
    /// The lifecycle state that the label records.
    pub state: PoolState,
    /// The label's sequence number.
    pub sequence: u64,
    /// The member's number.
    pub member: u8,
    /// The member's identity.
    pub member_uuid: Uuid,
    /// The member's layout, which says where the label and its copy belong.
    pub layout: PoolMemberLayout,
}

impl PoolLabel {
    /// Decodes a label.
    ///
    /// Validates both checksums, then version and features, then every field against the others. [`PoolLabel::fits`]
    /// validates the layout against the actual size of the device.
    ///
    /// # Errors
    /// When there is no label, or it is damaged, too new or invalid.
    pub fn decode(bytes: &[u8]) -> Result<PoolLabel, LabelError> {
        let raw = raw_of(bytes)?;
        crate::validate::checksums(raw.as_bytes(), raw.crc.get(), raw.header_crc.get())?;
        validate::version(raw)?;
        let mut first = None;
        let label = validate::fields(raw, &mut |problem| {
            first.get_or_insert(problem);
        });
        match first {
            Some(problem) => Err(LabelError::Field { field: problem.field, reason: problem.reason }),
            None => label.ok_or_else(|| LabelError::Field { field: "version", reason: "unreadable".into() }),
        }
    }

    /// Encodes the label.
    ///
    /// # Errors
    /// When `decode` would refuse a field.
    pub fn encode(&self) -> Result<[u8; LABEL_BYTES], LabelError> {
        let count = self.members.len();
        if count > MEMBERS_MAX {
            let reason = format!("the label has room for {MEMBERS_MAX}, not for {count}");
            return Err(LabelError::Field { field: "member_count", reason });
        }
        let mut members = [RawPoolMember::new_zeroed(); MEMBERS_MAX];
        for (raw, member) in members.iter_mut().zip(&self.members) {
            if let Some(member) = member {
                *raw = RawPoolMember {
                    uuid: member.uuid.into_bytes(),
                    size_bytes: U64::new(member.size_bytes),
                    state: words::pool_member_state_code(member.state),
                };
            }
        }
        let places = &self.layout;
        let raw = RawPoolLabel {
            magic: POOL_MAGIC,
            crc: U32::ZERO,
            version: U32::new(POOL_VERSION),
            features_compatible: U64::new(self.features.compatible),
            features_read_only: U64::new(self.features.read_only),
            features_incompatible: U64::new(self.features.incompatible),
            pool_uuid: self.uuid.into_bytes(),
            sequence: U64::new(self.sequence),
            name: pad(self.name.as_str().as_bytes()),
            pool_state: words::pool_state_code(self.state),
            clean: u8::from(self.clean),
            member: self.member,
            member_count: count as u8,
            owner_slots: U32::new(places.owner_slots),
            created_unix_s: U64::new(self.created_unix_s),
            session: U64::new(self.session),
            member_uuid: self.own().map_or([0; 16], |member| member.uuid.into_bytes()),
            extents: U32::new(places.extents),
            zero_slots: U32::new(places.zero_slots),
            device_bytes: U64::new(places.device_bytes),
            label_start: U64::new(places.label_start),
            copy_start: U64::new(places.copy_start),
            starts_start: U64::new(places.checkpoints.start),
            starts_bytes: U64::new(places.checkpoints.bytes),
            ring_start: U64::new(places.ring.start),
            ring_bytes: U64::new(places.ring.bytes),
            owners_start: U64::new(places.owners.start),
            owners_bytes: U64::new(places.owners.bytes),
            table_start: U64::new(places.table.start),
            table_bytes: U64::new(places.table.bytes),
            addresses_start: U64::new(places.addresses.start),
            addresses_bytes: U64::new(places.addresses.bytes),
            data_start: U64::new(places.data.start),
            data_bytes: U64::new(places.data.bytes),
            reserved_a: self.reserved.header,
            header_crc: U32::ZERO,
            members,
            reserved_b: self.reserved.rest,
        };
        let mut bytes = [0; LABEL_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        crc::seal(&mut bytes);
        PoolLabel::decode(&bytes)?;
        Ok(bytes)
    }

    /// Returns the entry of the member that this label is on.
    pub fn own(&self) -> Option<&PoolMember> {
        self.members.get(usize::from(self.member))?.as_ref()
    }

    /// Returns whether the device with this label is being added, and so not a member by this label alone.
    pub fn is_joining(&self) -> bool {
        self.own().is_some_and(|own| own.state == PoolMemberState::Joining)
    }

    /// Returns whether this label lists the device with the label `other` as a member.
    pub fn lists(&self, other: &PoolLabel) -> bool {
        self.knows(other).is_some_and(|known| known.state != PoolMemberState::Abandoned)
    }

    /// Returns whether this label lists the device with the label `other` as given up.
    pub fn has_abandoned(&self, other: &PoolLabel) -> bool {
        self.knows(other).is_some_and(|known| known.state == PoolMemberState::Abandoned)
    }

    fn knows(&self, other: &PoolLabel) -> Option<&PoolMember> {
        let known = self.members.get(usize::from(other.member)).and_then(Option::as_ref)?;
        other.own().filter(|own| own.uuid == known.uuid).map(|_| known)
    }

    /// Returns whether this label lists the device with the label `other` as a member that is not missing.
    pub fn lists_as_present(&self, other: &PoolLabel) -> bool {
        let state = |number: u8| self.members.get(usize::from(number))?.as_ref().map(|member| member.state);
        self.lists(other) && state(other.member) != Some(PoolMemberState::Missing)
    }

    /// Returns the missing members, given-up ones included; bit *i* is member *i*.
    pub fn missing(&self) -> u128 {
        self.of_state(PoolMemberState::Missing) | self.abandoned()
    }

    /// Returns the members that were given up; bit *i* is member *i*.
    pub fn abandoned(&self) -> u128 {
        self.of_state(PoolMemberState::Abandoned)
    }

    fn of_state(&self, state: PoolMemberState) -> u128 {
        let members = self.numbered().filter(|(_, member)| member.state == state);
        members.fold(0, |all, (number, _)| all | 1 << number)
    }

    /// Returns the members and their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u8, &PoolMember)> {
        let members = (0..).zip(&self.members);
        members.filter_map(|(number, member)| Some((number, member.as_ref()?)))
    }

    /// Returns what the first sector holds.
    pub fn header(&self) -> PoolHeader {
        PoolHeader {
            uuid: self.uuid,
            name: self.name.clone(),
            state: self.state,
            sequence: self.sequence,
            member: self.member,
            member_uuid: self.own().map_or(Uuid::nil(), |member| member.uuid),
            layout: self.layout,
        }
    }

    /// Returns whether this label belongs at this byte of the device.
    pub fn belongs_at(&self, offset: u64) -> bool {
        self.layout.has_label_at(offset)
    }

    /// Checks that a device of this size holds everything that the label describes.
    ///
    /// # Errors
    /// A sentence that says why not.
    pub fn fits(&self, device_bytes: u64) -> Result<(), String> {
        let places = &self.layout;
        let needed = places.data.end().unwrap_or(u64::MAX).max(places.copy_start + BLOCK_BYTES);
        if needed <= device_bytes {
            return Ok(());
        }
        Err(format!(
            "the device has {device_bytes} bytes, {} when it was labelled; the pool's data and label reach to byte {needed}",
            places.device_bytes
        ))
    }
}

impl PoolHeader {
    /// Decodes the first sector of a label, even if the rest is damaged. `None` when the sector itself is damaged, its
    /// version is unknown or its fields are invalid.
    pub fn decode(bytes: &[u8]) -> Option<PoolHeader> {
        let raw = raw_of(bytes).ok()?;
        let whole: &[u8; LABEL_BYTES] = raw.as_bytes().try_into().ok()?;
        if crc::header_crc(whole) != raw.header_crc.get() || validate::version(raw).is_err() {
            return None;
        }
        validate::header(raw, &mut |_| {})
    }
}

/// Returns the bytes as a raw label if they begin with the magic.
pub(super) fn raw_of(bytes: &[u8]) -> Result<&RawPoolLabel, LabelError> {
    let (raw, _) = RawPoolLabel::ref_from_prefix(bytes).map_err(|_| LabelError::Short { len: bytes.len() })?;
    if raw.magic == POOL_MAGIC { Ok(raw) } else { Err(LabelError::NoMagic) }
}
