//! Encoding and decoding of labels.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::label::raw_of;
use crate::raw::{RawJob, RawLabel, RawMember, put48};
use crate::{
    ANCESTORS_MAX, BLOCK_BYTES, HEADER_BYTES, Header, JOBS_MAX, LABEL_BYTES, Label, LabelError, Lineage, MAGIC,
    MEMBERS_MAX, MemberEntry, VERSION, crc, validate, words, zones,
};

impl Label {
    /// Decodes a label.
    ///
    /// Validates both checksums, then version and features, then every field against the others.
    /// [`geometry`](crate::ArrayPart::geometry) validates the zones, [`Label::fits`] the layout against the actual size of the disk.
    pub fn decode(bytes: &[u8]) -> Result<Label, LabelError> {
        let raw = raw_of(bytes)?;
        validate::checksum(raw)?;
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

    /// Encodes the label, with both checksums. Fails when the format cannot represent a field, or when `decode` would
    /// refuse the result.
    pub fn encode(&self) -> Result<[u8; LABEL_BYTES], LabelError> {
        let too_much = |field: &'static str, reason: String| LabelError::Field { field, reason };
        let (array, member) = (&self.array, &self.member);
        for (field, len, limit) in [
            ("member_count", array.members.len(), MEMBERS_MAX),
            ("zone_count", array.zones.len(), zones::form_limit(zones::form_of(&array.zones))),
            ("ancestor_count", array.lineage.ancestors.len(), ANCESTORS_MAX),
            ("jobs", array.jobs.len(), JOBS_MAX),
        ] {
            if len > limit {
                return Err(too_much(field, format!("the label has room for {limit}, not for {len}")));
            }
        }
        let mut zone_table = [0; 1792];
        zones::write(&array.zones, &mut zone_table)
            .ok_or_else(|| too_much("zones", "a place is not a whole number of blocks, or too large".into()))?;
        let raw = RawLabel {
            magic: MAGIC,
            crc: U32::ZERO,
            version: U32::new(VERSION),
            features_compatible: U64::new(array.features.compatible),
            features_read_only: U64::new(array.features.read_only),
            features_incompatible: U64::new(array.features.incompatible),
            array_uuid: array.uuid.into_bytes(),
            sequence: U64::new(array.sequence),
            name: pad(array.name.as_str().as_bytes()),
            array_state: words::array_state_code(array.state),
            level: words::level_code(array.spec.level),
            layout: words::layout_code(array.spec.layout),
            zone_policy: words::zone_policy_code(array.spec.zones),
            copies: U16::new(array.spec.copies),
            member_count: U16::new(array.members.len() as u16),
            zone_count: U16::new(array.zones.len() as u16),
            zone_form: zones::form_of(&array.zones),
            clean: u8::from(array.clean),
            start_policy: words::start_policy_code(array.start_policy),
            ancestor_count: array.lineage.ancestors.len() as u8,
            reserved_a: array.reserved,
            chunk_bytes: U32::new(
                u32::try_from(array.spec.chunk_bytes)
                    .map_err(|_| too_much("chunk_bytes", format!("{} is too large", array.spec.chunk_bytes)))?,
            ),
            region_bytes: U32::new(array.region_bytes),
            array_bytes: U64::new(array.array_bytes),
            created_unix_s: U64::new(array.created_unix_s),
            lineage: U64::new(array.lineage.id),
            ancestors: std::array::from_fn(|i| U64::new(array.lineage.ancestors.get(i).map_or(0, |a| a.id))),
            session: U64::new(array.session),
            epoch: U64::new(array.epoch),
            controller: array.controller.into_bytes(),
            jobs: std::array::from_fn(|i| array.jobs.get(i).map_or(RawJob::new_zeroed_job(), |job| job.to_raw())),
            believed_from: raw_believed_from(&array.lineage)?,
            member_id: put48(member.id.get()).ok_or_else(|| too_much("member_id", "wider than 48 bits".into()))?,
            role: U16::new(member.slot),
            device_bytes: U64::new(member.layout.device_bytes),
            label_start: U64::new(member.layout.label_start),
            copy_start: U64::new(member.layout.copy_start),
            data_start: U64::new(member.layout.data.start),
            data_bytes: U64::new(member.layout.data.bytes),
            bitmap_start: U64::new(member.layout.bitmap.start),
            bitmap_bytes: U64::new(member.layout.bitmap.bytes),
            journal_start: U64::new(member.layout.journal.start),
            journal_bytes: U64::new(member.layout.journal.bytes),
            retired_run: U64::new(member.retired.run),
            retired_batch: U64::new(member.retired.batch),
            reserved_c: member.reserved,
            session_before: U64::new(array.previous_session),
            header_crc: U32::ZERO,
            members: raw_members(&array.members)?,
            zones: zone_table,
        };
        let mut bytes = [0; LABEL_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        crc::seal(&mut bytes);
        Label::decode(&bytes)?;
        Ok(bytes)
    }
}

impl Header {
    /// Decodes the first sector of a label, even if the rest is damaged. `None` when the sector itself is damaged, its
    /// version is unknown or its fields are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let raw = raw_of(bytes).ok()?;
        let whole: &[u8; LABEL_BYTES] = raw.as_bytes().try_into().ok()?;
        const _: () = assert!(core::mem::offset_of!(RawLabel, members) == HEADER_BYTES);
        if crc::header_crc(whole) != raw.header_crc.get() || validate::version(raw).is_err() {
            return None;
        }
        validate::header(raw, &mut |_| {})
    }
}

/// Returns the bytes, and zeros after them.
pub(crate) fn pad<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
}

fn raw_believed_from(lineage: &Lineage) -> Result<[[u8; 6]; ANCESTORS_MAX], LabelError> {
    let mut numbers = [[0; 6]; ANCESTORS_MAX];
    for (ancestor, raw) in lineage.ancestors.iter().zip(&mut numbers) {
        *raw = put48(ancestor.accepted_from).ok_or_else(|| LabelError::Field {
            field: "believed_from",
            reason: format!("{} is wider than 48 bits", ancestor.accepted_from),
        })?;
    }
    Ok(numbers)
}

fn raw_members(members: &[MemberEntry]) -> Result<[RawMember; MEMBERS_MAX], LabelError> {
    let mut table = [RawMember { id: [0; 6], data_blocks: [0; 6], state: 0, flags: 0 }; MEMBERS_MAX];
    for (slot, (entry, raw)) in members.iter().zip(&mut table).enumerate() {
        let data_blocks = put48(entry.data_bytes / BLOCK_BYTES).filter(|_| entry.data_bytes % BLOCK_BYTES == 0);
        let data_blocks = data_blocks.ok_or_else(|| LabelError::Field {
            field: "members",
            reason: format!("member {slot}: {} bytes of data are not whole blocks", entry.data_bytes),
        })?;
        *raw = RawMember {
            id: entry.id.and_then(|id| put48(id.get())).unwrap_or_default(),
            data_blocks,
            state: words::member_state_code(entry.state),
            flags: u8::from(entry.write_mostly),
        };
    }
    Ok(table)
}

impl RawJob {
    fn new_zeroed_job() -> RawJob {
        zerocopy::FromZeros::new_zeroed()
    }
}
