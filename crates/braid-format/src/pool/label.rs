//! The label of a pool: a description of the pool, identical on every member, and the layout of one member.

use uuid::Uuid;
use zerocopy::FromBytes;

use super::layout::PoolMemberLayout;
use super::raw::RawPoolLabel;
use crate::states::{PoolMemberState, PoolState};
use crate::{BLOCK_BYTES, Features, LabelError, Name};

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
    /// The members, indexed by their numbers; `None` for a number whose member was removed.
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
    /// Returns the entry of the member that this label is on.
    pub fn own(&self) -> Option<&PoolMember> {
        self.members.get(usize::from(self.member))?.as_ref()
    }

    /// Returns whether the device with this label is being added. It is a member only if the label of another member
    /// lists it as one.
    pub fn is_joining(&self) -> bool {
        self.own().is_some_and(|own| own.state == PoolMemberState::Joining)
    }

    /// Returns whether this label lists the device with the label `other` as a member.
    pub fn lists(&self, other: &PoolLabel) -> bool {
        self.knows(other).is_some_and(|known| known.state != PoolMemberState::Abandoned)
    }

    /// Returns whether this label lists the device with the label `other` as abandoned.
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

    /// Returns the missing members, abandoned ones included; bit *i* is member *i*.
    pub fn missing(&self) -> u128 {
        self.of_state(PoolMemberState::Missing) | self.abandoned()
    }

    /// Returns the abandoned members; bit *i* is member *i*.
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

/// Returns the bytes as a raw label if they begin with the magic.
pub(super) fn raw_of(bytes: &[u8]) -> Result<&RawPoolLabel, LabelError> {
    let (raw, _) = RawPoolLabel::ref_from_prefix(bytes).map_err(|_| LabelError::Short { len: bytes.len() })?;
    if raw.magic == POOL_MAGIC { Ok(raw) } else { Err(LabelError::NoMagic) }
}
