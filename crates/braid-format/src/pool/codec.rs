//! Encoding and decoding of pool labels.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::label::{POOL_MAGIC, POOL_VERSION, PoolHeader, PoolLabel, raw_of};
use super::raw::{RawPoolLabel, RawPoolMember};
use super::validate;
use crate::codec::pad;
use crate::{LABEL_BYTES, LabelError, MEMBERS_MAX, crc, words};

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
