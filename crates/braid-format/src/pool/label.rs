//! The label of a pool: what every member says alike, and where things are on the one that it stands on.

use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::check;
use super::places::PoolPlaces;
use super::raw::{RawPoolLabel, RawPoolMember};
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
    /// Raised with every change of the label; from 1.
    pub sequence: u64,
    /// The pool's name.
    pub name: Name,
    /// Where the pool is in its life.
    pub state: PoolState,
    /// Whether the last session ended in order.
    pub clean: bool,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// Random id of the session that last opened it; 0: never opened.
    pub session: u64,
    /// The members by number; `None` where nobody has the number any more.
    pub members: Vec<Option<PoolMember>>,
    /// The number of the member that this label stands on.
    pub member: u8,
    /// Where everything is on it.
    pub places: PoolPlaces,
    /// Bytes that a newer version may use under a feature that this one need not know; kept as they are.
    pub reserved: Reserved,
}

/// The label's bytes without a meaning.
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

/// Where a pool is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolState {
    /// Being created: not yet on every member, never served.
    Forming,
    /// In use.
    Active,
    /// Being deleted: labels are on their way out.
    Deleting,
}

/// A member of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PoolMember {
    /// Its identity.
    pub uuid: Uuid,
    /// Its size in bytes, as in its places.
    pub size_bytes: u64,
    /// What the pool thinks of it.
    pub state: PoolMemberState,
}

/// What a pool thinks of a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolMemberState {
    /// Holds data, and takes new ones.
    InUse,
    /// Its data move away.
    Removing,
    /// The pool goes on without it.
    Absent,
    /// It was to be added, and is no member before another one's label says so. Only its own label says this of it.
    Joining,
    /// The pool goes on without it for ever: it is no member when it is there again. What it may have had is in doubt still.
    GivenUp,
}

/// What the first sector alone says of a label. It survives a write that was torn between sectors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolHeader {
    /// The pool.
    pub uuid: Uuid,
    /// Its name.
    pub name: Name,
    /// Where it was going to be in its life.
    pub state: PoolState,
    /// The label's sequence number.
    pub sequence: u64,
    /// The number that this member was to have.
    pub member: u8,
    /// The member's identity.
    pub member_uuid: Uuid,
    /// Where the label and its copy belong.
    pub places: PoolPlaces,
}

impl PoolLabel {
    /// Reads a label. Checks both checksums, then version and features, then every field against the others; the places against
    /// the real device are checked by whoever knows its size.
    ///
    /// # Errors
    /// When there is none, or it is damaged, too new or nonsense.
    pub fn decode(bytes: &[u8]) -> Result<PoolLabel, LabelError> {
        let raw = raw_of(bytes)?;
        crate::check::checksums(raw.as_bytes(), raw.crc.get(), raw.header_crc.get())?;
        check::version(raw)?;
        let mut first = None;
        let label = check::fields(raw, &mut |problem| {
            first.get_or_insert(problem);
        });
        match first {
            Some(problem) => Err(LabelError::Field { field: problem.field, reason: problem.reason }),
            None => label.ok_or_else(|| LabelError::Field { field: "version", reason: "unreadable".into() }),
        }
    }

    /// The label's bytes.
    ///
    /// # Errors
    /// When a field holds what `decode` would refuse.
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
        let places = &self.places;
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
            starts_start: U64::new(places.starts.start),
            starts_bytes: U64::new(places.starts.bytes),
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

    /// The member that this label stands on, as the table has it.
    pub fn own(&self) -> Option<&PoolMember> {
        self.members.get(usize::from(self.member))?.as_ref()
    }

    /// Whether the device that this label stands on was only about to become a member.
    pub fn is_joining(&self) -> bool {
        self.own().is_some_and(|own| own.state == PoolMemberState::Joining)
    }

    /// Whether the device that bears `other` is a member by this label.
    pub fn has(&self, other: &PoolLabel) -> bool {
        self.knows(other).is_some_and(|known| known.state != PoolMemberState::GivenUp)
    }

    /// Whether it was one, and was given up.
    pub fn has_given_up(&self, other: &PoolLabel) -> bool {
        self.knows(other).is_some_and(|known| known.state == PoolMemberState::GivenUp)
    }

    fn knows(&self, other: &PoolLabel) -> Option<&PoolMember> {
        let known = self.members.get(usize::from(other.member)).and_then(Option::as_ref)?;
        other.own().filter(|own| own.uuid == known.uuid).map(|_| known)
    }

    /// The same, and the pool does not go on without it.
    pub fn serves(&self, other: &PoolLabel) -> bool {
        let state = |number: u8| self.members.get(usize::from(number))?.as_ref().map(|member| member.state);
        self.has(other) && state(other.member) != Some(PoolMemberState::Absent)
    }

    /// Bit *i*: the pool goes on without member *i*.
    pub fn absent(&self) -> u128 {
        self.of_state(PoolMemberState::Absent) | self.given_up()
    }

    /// Bit *i*: for ever.
    pub fn given_up(&self) -> u128 {
        self.of_state(PoolMemberState::GivenUp)
    }

    fn of_state(&self, state: PoolMemberState) -> u128 {
        let members = self.numbered().filter(|(_, member)| member.state == state);
        members.fold(0, |all, (number, _)| all | 1 << number)
    }

    /// The members that there are, with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u8, &PoolMember)> {
        let members = (0..).zip(&self.members);
        members.filter_map(|(number, member)| Some((number, member.as_ref()?)))
    }

    /// What the first sector says of it.
    pub fn header(&self) -> PoolHeader {
        PoolHeader {
            uuid: self.uuid,
            name: self.name.clone(),
            state: self.state,
            sequence: self.sequence,
            member: self.member,
            member_uuid: self.own().map_or(Uuid::nil(), |member| member.uuid),
            places: self.places,
        }
    }

    /// Whether this label belongs at this byte of the device.
    pub fn belongs_at(&self, offset: u64) -> bool {
        self.places.has_label_at(offset)
    }

    /// Whether a device of this size still holds everything that the label says.
    ///
    /// # Errors
    /// If not, a sentence that says why.
    pub fn fits(&self, device_bytes: u64) -> Result<(), String> {
        let places = &self.places;
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
    /// Reads the first sector of a label, also where the rest is damaged. `None` when the sector itself is, when its version is
    /// unknown or its fields make no sense.
    pub fn decode(bytes: &[u8]) -> Option<PoolHeader> {
        let raw = raw_of(bytes).ok()?;
        let whole: &[u8; LABEL_BYTES] = raw.as_bytes().try_into().ok()?;
        if crc::header_crc(whole) != raw.header_crc.get() || check::version(raw).is_err() {
            return None;
        }
        check::header(raw, &mut |_| {})
    }
}

/// The bytes as a raw label, if the magic is there.
pub(super) fn raw_of(bytes: &[u8]) -> Result<&RawPoolLabel, LabelError> {
    let (raw, _) = RawPoolLabel::ref_from_prefix(bytes).map_err(|_| LabelError::Short { len: bytes.len() })?;
    if raw.magic == POOL_MAGIC { Ok(raw) } else { Err(LabelError::NoMagic) }
}
