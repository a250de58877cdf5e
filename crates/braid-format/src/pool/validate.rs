//! Validation of pool labels: version, features, then every field by itself and against the others.

use uuid::Uuid;
use zerocopy::IntoBytes;

use super::label::{POOL_VERSION, PoolHeader, PoolLabel, PoolMember, Reserved, raw_of};
use super::layout::{MEMBER_BYTES_MAX, PoolMemberLayout};
use super::raw::{RawPoolLabel, RawPoolMember};
use crate::limits::{COUNTER_MAX, TIME_MAX_S, too_large};
use crate::raw::is_zero;
use crate::states::PoolMemberState;
use crate::validate::{Found, Validated, name, report, supported};
use crate::{ByteRange, Features, LabelError, MEMBERS_MAX, words};

/// The bits of [`Features::incompatible`] that this version knows: none so far.
const INCOMPATIBLE_KNOWN: u64 = 0;

/// Validates version and features: whether this code may use the label at all.
pub fn version(raw: &RawPoolLabel) -> Result<(), LabelError> {
    supported(raw.version.get(), POOL_VERSION, raw.features_incompatible.get() & !INCOMPATIBLE_KNOWN)
}

/// Validates all fields of a label regardless of its checksums, for `examine`. `None` when the bytes do not begin with
/// the magic.
pub(crate) fn every_problem(bytes: &[u8]) -> Option<Validated<PoolLabel>> {
    let raw = raw_of(bytes).ok()?;
    let mut problems = Vec::new();
    let label = fields(raw, &mut |problem| problems.push(problem));
    Some(Validated { label, problems, version: version(raw) })
}

/// Validates the fields of the first sector.
pub fn header(raw: &RawPoolLabel, found: Found<'_>) -> Option<PoolHeader> {
    let identity = |bytes: [u8; 16]| Some(Uuid::from_bytes(bytes)).filter(|uuid| !uuid.is_nil());
    let (uuid, member_uuid) = (identity(raw.pool_uuid), identity(raw.member_uuid));
    for (field, uuid) in [("pool_uuid", uuid), ("member_uuid", member_uuid)] {
        if uuid.is_none() {
            report(found, field, "it is all zeros");
        }
    }
    match raw.sequence.get() {
        0 => report(found, "sequence", "it is 0; sequence numbers begin at 1"),
        number if number > COUNTER_MAX => report(found, "sequence", too_large(number)),
        _ => {}
    }
    let created = raw.created_unix_s.get();
    if created > TIME_MAX_S {
        report(found, "created_unix_s", format!("{created} seconds is no time that will be"));
    }
    let name = name(&raw.name).map_err(|reason| report(found, "name", reason)).ok();
    let state = words::pool_state_from(raw.pool_state);
    if state.is_none() {
        report(found, "pool_state", format!("code {} is unknown", raw.pool_state));
    }
    if raw.clean > 1 {
        report(found, "clean", format!("{} is neither 0 nor 1", raw.clean));
    }
    let count = raw.member_count;
    if count == 0 || usize::from(count) > MEMBERS_MAX {
        report(found, "member_count", format!("{count} is not between 1 and {MEMBERS_MAX}"));
        return None;
    }
    if raw.member >= count {
        report(found, "member", format!("{} is not one of the {count} numbers", raw.member));
        return None;
    }
    let places = places(raw);
    let mut sound = true;
    places.problems(&mut |field, reason| {
        sound = false;
        report(found, field, reason);
    });
    let (uuid, member_uuid, name, state) = (uuid?, member_uuid?, name?, state?);
    let header =
        PoolHeader { uuid, name, state, sequence: raw.sequence.get(), member: raw.member, member_uuid, layout: places };
    sound.then_some(header)
}

/// Validates every field. The returned label is valid only if nothing was reported.
pub fn fields(raw: &RawPoolLabel, found: Found<'_>) -> Option<PoolLabel> {
    let header = header(raw, found);
    let features = Features {
        compatible: raw.features_compatible.get(),
        read_only: raw.features_read_only.get(),
        incompatible: raw.features_incompatible.get(),
    };
    // Reserved bytes are zero, unless an unknown feature may have given them a meaning.
    if features.compatible == 0 && features.read_only == 0 {
        let parts: [(&'static str, &[u8]); 2] = [("reserved_a", &raw.reserved_a), ("reserved_b", &raw.reserved_b)];
        for (field, _) in parts.into_iter().filter(|(_, bytes)| !is_zero(bytes)) {
            report(found, field, "reserved bytes are not zero");
        }
    }
    let members = members(raw, found)?;
    let header = header?;
    own_entry(&header, &members, found);
    Some(PoolLabel {
        features,
        uuid: header.uuid,
        sequence: header.sequence,
        name: header.name,
        state: header.state,
        clean: raw.clean == 1,
        created_unix_s: raw.created_unix_s.get(),
        session: raw.session.get(),
        members,
        member: header.member,
        layout: header.layout,
        reserved: Reserved { header: raw.reserved_a, rest: raw.reserved_b },
    })
}

fn places(raw: &RawPoolLabel) -> PoolMemberLayout {
    PoolMemberLayout {
        device_bytes: raw.device_bytes.get(),
        label_start: raw.label_start.get(),
        copy_start: raw.copy_start.get(),
        checkpoints: ByteRange::new(raw.starts_start.get(), raw.starts_bytes.get()),
        ring: ByteRange::new(raw.ring_start.get(), raw.ring_bytes.get()),
        owners: ByteRange::new(raw.owners_start.get(), raw.owners_bytes.get()),
        table: ByteRange::new(raw.table_start.get(), raw.table_bytes.get()),
        addresses: ByteRange::new(raw.addresses_start.get(), raw.addresses_bytes.get()),
        data: ByteRange::new(raw.data_start.get(), raw.data_bytes.get()),
        extents: raw.extents.get(),
        zero_slots: raw.zero_slots.get(),
        owner_slots: raw.owner_slots.get(),
    }
}

fn members(raw: &RawPoolLabel, found: Found<'_>) -> Option<Vec<Option<PoolMember>>> {
    let count = usize::from(raw.member_count);
    // `header` has reported a count out of range.
    let (used, unused) = raw.members.split_at_checked(count).filter(|_| count > 0)?;
    if !is_zero(unused.as_bytes()) {
        report(found, "members", format!("entries after the {count} used ones are not zero"));
    }
    let mut members: Vec<Option<PoolMember>> = Vec::with_capacity(count);
    for (number, raw) in used.iter().enumerate() {
        let member = match member(raw) {
            Ok(member) => member,
            Err(reason) => {
                report(found, "members", format!("member {number}: {reason}"));
                return None;
            }
        };
        let same = |other: &Option<PoolMember>| matches!((other, &member), (Some(a), Some(b)) if a.uuid == b.uuid);
        if let Some(twin) = members.iter().position(same) {
            report(found, "members", format!("members {twin} and {number} have the same identity"));
        }
        members.push(member);
    }
    Some(members)
}

fn member(raw: &RawPoolMember) -> Result<Option<PoolMember>, String> {
    if raw.state == 0 {
        let unused = is_zero(raw.as_bytes());
        return if unused { Ok(None) } else { Err("nobody has this number, and something is said of it".into()) };
    }
    let state = words::pool_member_state_from(raw.state).ok_or(format!("state {} is unknown", raw.state))?;
    let member = PoolMember { uuid: Uuid::from_bytes(raw.uuid), size_bytes: raw.size_bytes.get(), state };
    if member.size_bytes > MEMBER_BYTES_MAX {
        return Err(format!(
            "it has {} bytes; a pool uses at most {MEMBER_BYTES_MAX} of each member",
            member.size_bytes
        ));
    }
    if member.uuid.is_nil() || member.size_bytes == 0 {
        return Err(format!("it is \"{state}\", and has no identity or no size"));
    }
    Ok(Some(member))
}

/// Validates that the member table lists the member that the label is on.
fn own_entry(header: &PoolHeader, members: &[Option<PoolMember>], found: Found<'_>) {
    let entry = members.get(usize::from(header.member)).and_then(Option::as_ref);
    match entry {
        Some(entry) if entry.uuid == header.member_uuid => {
            if matches!(entry.state, PoolMemberState::Missing | PoolMemberState::Abandoned) {
                report(found, "members", format!("this member, number {}, is said to be absent", header.member));
            }
            let joining = |(_, member): &(usize, &Option<PoolMember>)| {
                member.is_some_and(|member| member.state == PoolMemberState::Joining)
            };
            let mut others = members.iter().enumerate().filter(|(number, _)| *number != usize::from(header.member));
            if let Some((number, _)) = others.find(joining) {
                report(found, "members", format!("member {number} is said to be added, which only its own label says"));
            }
            let (table, own) = (entry.size_bytes, header.layout.device_bytes);
            if table != own {
                report(found, "device_bytes", format!("it is {own}, and {table} in the table of members"));
            }
        }
        other => {
            let named = other.map_or("nobody".to_owned(), |entry| entry.uuid.to_string());
            report(found, "member_uuid", format!("the table of members has {named} as number {}", header.member));
        }
    }
}
