//! Validation of labels: checksums, version, features, then every field by itself and against the others.
//!
//! `Label::decode` returns the first problem found here; `examine` shows them all.

use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::bitmap::{self, REGIONS_MAX};
use crate::label::{Job, raw_of};
use crate::limits::{COUNTER_MAX, EPOCH_MAX, TIME_MAX_S, too_large};
use crate::raw::{RawLabel, get48, is_zero};
use crate::{
    ANCESTORS_MAX, Ancestor, ArrayPart, BLOCK_BYTES, ByteRange, DiskLayout, Features, Header, LABEL_BYTES, Label,
    LabelError, Lineage, MEMBERS_MAX, MemberEntry, MemberId, MemberPart, Name, RetiredMarks, VERSION, ZoneSpan, crc,
    words, zones,
};
use braid_geometry::{Level, Spec, TOTAL_BYTES_MAX};

/// Largest chunk in bytes.
const CHUNK_BYTES_MAX: u32 = 64 << 20;
/// Smallest region of the write-intent bitmap in bytes.
const REGION_BYTES_LEAST: u32 = BLOCK_BYTES as u32;
/// Largest region of the write-intent bitmap in bytes.
const REGION_BYTES_MAX: u32 = 4 << 20;

/// The bits of [`Features::read_only`] that this version knows: none so far.
const READ_ONLY_KNOWN: u64 = 0;
/// The bits of [`Features::incompatible`] that this version knows: none so far.
const INCOMPATIBLE_KNOWN: u64 = 0;

/// An invalid field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Its name.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

pub(crate) type Found<'a> = &'a mut dyn FnMut(Problem);

pub(crate) fn report(found: Found<'_>, field: &'static str, reason: impl Into<String>) {
    found(Problem { field, reason: reason.into() });
}

/// Validates both checksums of a label.
pub fn checksum(raw: &RawLabel) -> Result<(), LabelError> {
    checksums(raw.as_bytes(), raw.crc.get(), raw.header_crc.get())
}

/// Validates both checksums of a label, an array's or a pool's; `label` and `header` are those that it stores.
pub(crate) fn checksums(bytes: &[u8], label: u32, header: u32) -> Result<(), LabelError> {
    let bytes: &[u8; LABEL_BYTES] = bytes.try_into().map_err(|_| LabelError::Short { len: bytes.len() })?;
    let (expected, found) = (crc::label_crc(bytes), label);
    if expected != found {
        return Err(LabelError::Checksum { expected, found });
    }
    // Braid never writes a right label CRC with a wrong header CRC. Report which of the two is wrong.
    let (expected, found) = (crc::header_crc(bytes), header);
    if expected != found {
        return Err(LabelError::Field {
            field: "header_crc",
            reason: format!("it is {found:08x}, the first sector makes {expected:08x}"),
        });
    }
    Ok(())
}

/// Validates version and features: whether this code may use the label at all.
pub fn version(raw: &RawLabel) -> Result<(), LabelError> {
    supported(raw.version.get(), VERSION, raw.features_incompatible.get() & !INCOMPATIBLE_KNOWN)
}

/// Validates version and features of a label, an array's or a pool's, given its version, the supported version and the
/// incompatible features that this code does not know.
pub(crate) fn supported(found: u32, supported: u32, bits: u64) -> Result<(), LabelError> {
    if found > supported {
        return Err(LabelError::NewerVersion { found, supported });
    }
    if found < supported {
        return Err(LabelError::OlderVersion { found, supported });
    }
    if bits != 0 { Err(LabelError::Incompatible { bits }) } else { Ok(()) }
}

impl Features {
    /// Returns whether this version may write to an array with these features, not only read it.
    pub fn writable(&self) -> bool {
        self.read_only & !READ_ONLY_KNOWN == 0
    }
}

/// The content of a label, decoded and validated regardless of its checksums.
pub(crate) struct Validated<L> {
    /// The label that the fields describe; `None` if one of them has no meaning (an unknown code, for example).
    pub label: Option<L>,
    /// The problems of its fields.
    pub problems: Vec<Problem>,
    /// Whether this code supports the label's version and features.
    pub version: Result<(), LabelError>,
}

/// Validates all fields of a label regardless of its checksums, for `examine`. `None` when the bytes do not begin with
/// the magic.
pub(crate) fn every_problem(bytes: &[u8]) -> Option<Validated<Label>> {
    let raw = raw_of(bytes).ok()?;
    let mut problems = Vec::new();
    let label = fields(raw, &mut |p| problems.push(p));
    Some(Validated { label, problems, version: version(raw) })
}

/// Validates the fields of the first sector.
pub fn header(raw: &RawLabel, found: Found<'_>) -> Option<Header> {
    let uuid = Uuid::from_bytes(raw.array_uuid);
    if uuid.is_nil() {
        report(found, "array_uuid", "it is all zeros");
    }
    match raw.sequence.get() {
        0 => report(found, "sequence", "it is 0; sequence numbers begin at 1"),
        number if number > COUNTER_MAX => report(found, "sequence", too_large(number)),
        _ => {}
    }
    let name = name(&raw.name).map_err(|reason| report(found, "name", reason)).ok();
    let state = words::array_state_from(raw.array_state);
    if state.is_none() {
        report(found, "array_state", format!("code {} is unknown", raw.array_state));
    }
    let id = MemberId::new(get48(raw.member_id));
    if id.is_none() {
        report(found, "member_id", "it is 0");
    }
    let role = raw.role.get();
    let members = raw.member_count.get();
    if members == 0 || usize::from(members) > MEMBERS_MAX {
        report(found, "member_count", format!("{members} is not between 1 and {MEMBERS_MAX}"));
        return None;
    }
    if role >= members {
        report(found, "role", format!("{role} is not one of the {members} members"));
        return None;
    }
    let places = places(raw);
    let mut sound = true;
    places.problems(&mut |field, reason| {
        sound = false;
        report(found, field, reason);
    });
    if !sound || uuid.is_nil() {
        return None;
    }
    Some(Header { uuid, name: name?, state: state?, sequence: raw.sequence.get(), id: id?, slot: role, layout: places })
}

/// Validates every field. The returned label is valid only if nothing was reported.
pub fn fields(raw: &RawLabel, found: Found<'_>) -> Option<Label> {
    let header = header(raw, found);
    let features = Features {
        compatible: raw.features_compatible.get(),
        read_only: raw.features_read_only.get(),
        incompatible: raw.features_incompatible.get(),
    };
    let reserved = reserved(raw, &features, found);
    let spec = spec(raw, found);
    let start_policy = words::start_policy_from(raw.start_policy);
    if start_policy.is_none() {
        report(found, "start_policy", format!("code {} is unknown", raw.start_policy));
    }
    if raw.clean > 1 {
        report(found, "clean", format!("{} is neither 0 nor 1", raw.clean));
    }
    sizes(raw, found);
    let lineage = lineage(raw, found);
    let members = members(raw, found)?;
    let zones = zones(raw, &members, found);
    let jobs = jobs(raw, members.len(), found);
    let header = header?;
    own_entry(&header, &members, found);
    Some(Label {
        array: ArrayPart {
            features,
            uuid: header.uuid,
            sequence: header.sequence,
            name: header.name,
            state: header.state,
            spec: spec?,
            clean: raw.clean == 1,
            start_policy: start_policy?,
            region_bytes: raw.region_bytes.get(),
            array_bytes: raw.array_bytes.get(),
            created_unix_s: raw.created_unix_s.get(),
            lineage,
            session: raw.session.get(),
            previous_session: raw.session_before.get(),
            epoch: raw.epoch.get(),
            controller: Uuid::from_bytes(raw.controller),
            jobs,
            members,
            zones: zones?,
            reserved,
        },
        member: MemberPart {
            id: header.id,
            slot: header.slot,
            layout: header.layout,
            retired: retired(raw, found),
            reserved: raw.reserved_c,
        },
    })
}

fn retired(raw: &RawLabel, found: Found<'_>) -> RetiredMarks {
    let retired = RetiredMarks { run: raw.retired_run.get(), batch: raw.retired_batch.get() };
    if retired.batch > COUNTER_MAX {
        report(found, "retired_batch", format!("{} is larger than the number of any batch", retired.batch));
    }
    if retired.run == 0 && retired.batch != 0 {
        report(found, "retired_batch", "it is not 0, and there is no run that it belongs to".to_owned());
    }
    retired
}

pub(crate) fn name(bytes: &[u8; 64]) -> Result<Name, String> {
    let len = bytes.iter().position(|b| *b == 0).ok_or("it has no end")?;
    if bytes[len..].iter().any(|b| *b != 0) {
        return Err("bytes after its end are not zero".into());
    }
    let text = std::str::from_utf8(&bytes[..len]).map_err(|_| "it is not text")?;
    Name::new(text).map_err(|e| e.to_string())
}

fn places(raw: &RawLabel) -> DiskLayout {
    DiskLayout {
        device_bytes: raw.device_bytes.get(),
        label_start: raw.label_start.get(),
        copy_start: raw.copy_start.get(),
        data: ByteRange::new(raw.data_start.get(), raw.data_bytes.get()),
        bitmap: ByteRange::new(raw.bitmap_start.get(), raw.bitmap_bytes.get()),
        journal: ByteRange::new(raw.journal_start.get(), raw.journal_bytes.get()),
    }
}

/// Validates that reserved bytes are zero, unless an unknown feature may have given them a meaning.
fn reserved(raw: &RawLabel, features: &Features, found: Found<'_>) -> [u8; 2] {
    if features.compatible == 0 && features.read_only == 0 {
        let parts: [(&'static str, &[u8]); 2] = [("reserved_a", &raw.reserved_a), ("reserved_c", &raw.reserved_c)];
        for (field, bytes) in parts {
            if bytes.iter().any(|b| *b != 0) {
                report(found, field, "reserved bytes are not zero");
            }
        }
    }
    raw.reserved_a
}

fn spec(raw: &RawLabel, found: Found<'_>) -> Option<Spec> {
    let level = words::level_from(raw.level);
    let layout = words::layout_from(raw.layout);
    let policy = words::zone_policy_from(raw.zone_policy);
    for (field, code, known) in [
        ("level", raw.level, level.is_some()),
        ("layout", raw.layout, layout.is_some()),
        ("zone_policy", raw.zone_policy, policy.is_some()),
    ] {
        if !known {
            report(found, field, format!("code {code} is unknown"));
        }
    }
    let chunk = raw.chunk_bytes.get();
    if chunk == 0 || u64::from(chunk) % BLOCK_BYTES != 0 || chunk > CHUNK_BYTES_MAX {
        report(found, "chunk_bytes", format!("{chunk} is not a multiple of 4096 up to 64 MiB"));
        return None;
    }
    if usize::from(raw.copies.get()) > MEMBERS_MAX {
        report(found, "copies", format!("{} copies are more than there can be members", raw.copies.get()));
    }
    if level == Some(Level::Raid10) && raw.copies.get() < 2 {
        report(found, "copies", format!("{} copies are too few for raid10", raw.copies.get()));
    }
    Some(Spec {
        level: level?,
        layout: layout?,
        chunk_bytes: u64::from(chunk),
        copies: raw.copies.get(),
        zones: policy?,
    })
}

fn sizes(raw: &RawLabel, found: Found<'_>) {
    let region = raw.region_bytes.get();
    if region != 0 && !(region.is_power_of_two() && (REGION_BYTES_LEAST..=REGION_BYTES_MAX).contains(&region)) {
        report(found, "region_bytes", format!("{region} is not a power of two from 4096 to 4 MiB"));
    }
    let array = raw.array_bytes.get();
    if array == 0 || !array.is_multiple_of(BLOCK_BYTES) {
        report(found, "array_bytes", format!("{array} is not a positive multiple of 4096"));
    }
    if array > TOTAL_BYTES_MAX {
        report(found, "array_bytes", format!("{array} is more than any array has"));
    }
    if region != 0 && array.div_ceil(region.into()) > REGIONS_MAX {
        report(found, "region_bytes", format!("regions of {region} bytes are more than 2^32 - 1 in {array} bytes"));
    }
    // Only these levels have a bitmap; at all others the field has no meaning.
    let redundant = [Level::Raid1, Level::Raid10, Level::Raid5, Level::Raid6];
    if words::level_from(raw.level).is_some_and(|level| redundant.contains(&level)) {
        let regions = array.div_ceil(u64::from(region).max(1));
        if region == 0 {
            report(found, "region_bytes", "it is 0, and a redundant array has regions");
        } else if bitmap::bytes_for(regions) > raw.bitmap_bytes.get() {
            report(found, "bitmap_bytes", format!("a bitmap of {regions} regions has no room in it"));
        }
    }
    let epoch = raw.epoch.get();
    if epoch > EPOCH_MAX {
        report(found, "epoch", format!("{epoch} is beyond 2^46; no controller counts so far"));
    }
    let created = raw.created_unix_s.get();
    if created > TIME_MAX_S {
        report(found, "created_unix_s", format!("{created} seconds is no time that will be"));
    }
}

fn lineage(raw: &RawLabel, found: Found<'_>) -> Lineage {
    let count = usize::from(raw.ancestor_count);
    if count > ANCESTORS_MAX {
        report(found, "ancestor_count", format!("{count} is more than {ANCESTORS_MAX}"));
    }
    let (used, unused) = raw.ancestors.split_at(count.min(ANCESTORS_MAX));
    if unused.iter().any(|id| id.get() != 0) {
        report(found, "ancestors", "entries after the used ones are not zero");
    }
    let (from, unused) = raw.believed_from.split_at(used.len());
    if unused.iter().any(|from| *from != [0; 6]) {
        report(found, "believed_from", "entries after the used ones are not zero");
    }
    let ancestors = used.iter().zip(from).map(|(id, from)| Ancestor { id: id.get(), accepted_from: get48(*from) });
    Lineage { id: raw.lineage.get(), ancestors: ancestors.collect() }
}

fn members(raw: &RawLabel, found: Found<'_>) -> Option<Vec<MemberEntry>> {
    let count = usize::from(raw.member_count.get());
    // `header` has reported a count out of range.
    let (used, unused) = raw.members.split_at_checked(count).filter(|_| count > 0)?;
    if !is_zero(unused.as_bytes()) {
        report(found, "members", format!("entries after the {count} used ones are not zero"));
    }
    let mut members: Vec<MemberEntry> = Vec::with_capacity(count);
    for (slot, entry) in used.iter().enumerate() {
        let entry = match MemberEntry::from_raw(entry) {
            Ok(entry) => entry,
            Err(reason) => {
                report(found, "members", format!("member {slot}: {reason}"));
                return None;
            }
        };
        if let Some(twin) = members.iter().position(|m| m.id.is_some() && m.id == entry.id) {
            report(found, "members", format!("members {twin} and {slot} have the same id"));
        }
        members.push(entry);
    }
    Some(members)
}

fn zones(raw: &RawLabel, members: &[MemberEntry], found: Found<'_>) -> Option<Vec<ZoneSpan>> {
    let count = usize::from(raw.zone_count.get());
    let zones = match zones::read(raw.zone_form, count, &raw.zones) {
        Ok(zones) => zones,
        Err(reason) => {
            report(found, "zones", reason);
            return None;
        }
    };
    if zones::form_of(&zones) != raw.zone_form {
        report(found, "zone_form", "the table is not in the form that its zones ask for");
    }
    // The end of the last zone on each member: on every member, zones are in ascending order.
    let mut used_to = vec![0; members.len()];
    for (i, zone) in zones.iter().enumerate() {
        if zone.members == 0 || zone.height_bytes == 0 {
            report(found, "zones", format!("zone {i} is empty"));
        }
        for slot in zone.slots().map(usize::from) {
            let Some(member) = members.get(slot) else {
                report(found, "zones", format!("zone {i} names member {slot} of {}", members.len()));
                break;
            };
            let end = zone.start_bytes + zone.height_bytes;
            if end > member.data_bytes {
                let data = member.data_bytes;
                report(found, "zones", format!("zone {i} ends at byte {end} of member {slot}, which has {data}"));
            }
            if zone.start_bytes < used_to[slot] {
                report(found, "zones", format!("zone {i} overlaps an earlier one on member {slot}"));
            }
            used_to[slot] = end;
        }
    }
    Some(zones)
}

fn jobs(raw: &RawLabel, members: usize, found: Found<'_>) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (i, entry) in raw.jobs.iter().enumerate() {
        match Job::from_raw(entry, members) {
            Ok(Some(job)) if jobs.len() == i => jobs.push(job),
            Ok(Some(_)) => report(found, "jobs", "there is a gap between them"),
            Ok(None) => {}
            Err(reason) => report(found, "jobs", format!("job {i}: {reason}")),
        }
    }
    jobs
}

/// Validates that the member table has this disk in its own slot.
fn own_entry(header: &Header, members: &[MemberEntry], found: Found<'_>) {
    let Some(entry) = members.get(usize::from(header.slot)) else { return };
    if entry.id != Some(header.id) {
        let named = entry.id.map_or("nobody".to_owned(), |id| format!("member {id}"));
        report(found, "member_id", format!("the table of members has {named} in role {}", header.slot));
    }
    if entry.data_bytes != header.layout.data.bytes {
        let (table, own) = (entry.data_bytes, header.layout.data.bytes);
        report(found, "data_bytes", format!("it is {own}, and {table} in the table of members"));
    }
}
