//! The zone table: derives it from the members' sizes, and validates one that was read from a label.

use crate::{BLOCK_BYTES, GeometryError, Level, MEMBERS_MAX, Spec, TOTAL_BYTES_MAX, ZoneFault, ZonePolicy};

/// The maximum number of zones of an array: twice the maximum number of members.
const ZONES_MAX: usize = 2 * MEMBERS_MAX;

/// A span of an array that is laid out over one set of members.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Zone {
    /// The offset of the zone in the array, in bytes.
    pub array_start: u64,
    /// The size of the zone in the array, in bytes. A whole number of chunks (with raid1, of blocks), except for the last zone of
    /// a raid0 array whose chunk size is not a power of two (see [`Spec::raid0_end_bytes`]).
    pub array_bytes: u64,
    /// The offset of the zone in the data area of each of its members, in bytes.
    pub member_start: u64,
    /// The size of the zone on each of its members, in bytes.
    pub member_bytes: u64,
    /// The members of the zone (numbers counted from 0), in slot order, which is ascending.
    pub members: Vec<u16>,
}

impl Zone {
    /// Returns the end of the zone in the array, in bytes.
    #[must_use]
    pub fn array_end(&self) -> u64 {
        self.array_start + self.array_bytes
    }

    /// Returns the end of the zone on each of its members, in bytes.
    #[must_use]
    pub fn member_end(&self) -> u64 {
        self.member_start + self.member_bytes
    }
}

pub(crate) fn check_total(member_data_bytes: &[u64]) -> Result<(), GeometryError> {
    let mut total: u64 = 0;
    for &bytes in member_data_bytes {
        total = total.checked_add(bytes).filter(|&sum| sum <= TOTAL_BYTES_MAX).ok_or(GeometryError::TooLarge)?;
    }
    Ok(())
}

/// Derives the zones of an array. The size of each member's data area is rounded down to whole chunks (with raid1,
/// blocks). The distinct rounded sizes are the heights at which zones end: between one height and the next, the members
/// that are large enough form a zone. Zones with too few members for the level are omitted. With concat each member is
/// a zone.
pub(crate) fn plan(spec: &Spec, member_data_bytes: &[u64]) -> Result<Vec<Zone>, GeometryError> {
    spec.check(member_data_bytes.len())?;
    check_total(member_data_bytes)?;
    let unit = spec.unit_bytes();
    let rounded: Vec<u64> = member_data_bytes.iter().map(|bytes| bytes - bytes % unit).collect();
    if let Some(member) = rounded.iter().position(|&bytes| bytes == 0) {
        let data_bytes = member_data_bytes[member];
        return Err(GeometryError::MemberTooSmall { member, data_bytes, needed_bytes: unit });
    }
    let zones = if spec.level == Level::Concat { concat_zones(&rounded) } else { shared_zones(spec, &rounded) };
    zones.ok_or(GeometryError::TooLarge)
}

/// Derives the zones of an existing md array. The sizes of members of concats and mirrors are rounded down to sectors
/// only, since md uses a last, partial block, too.
pub(crate) fn imported(spec: &Spec, member_bytes: &[u64]) -> Result<Vec<Zone>, GeometryError> {
    const SECTOR_BYTES: u64 = 512;
    spec.check_imported(member_bytes.len())?;
    check_total(member_bytes)?;
    if spec.level == Level::Raid0 {
        return plan(spec, member_bytes);
    }
    let unit = match spec.level {
        Level::Concat | Level::Raid1 => SECTOR_BYTES,
        _ => spec.chunk_bytes,
    };
    let rounded: Vec<u64> = member_bytes.iter().map(|bytes| bytes - bytes % unit).collect();
    if let Some(member) = rounded.iter().position(|&bytes| bytes == 0) {
        let data_bytes = member_bytes[member];
        return Err(GeometryError::MemberTooSmall { member, data_bytes, needed_bytes: unit });
    }
    let single = Spec { zones: ZonePolicy::Single, ..*spec };
    let zones = if spec.level == Level::Concat { concat_zones(&rounded) } else { shared_zones(&single, &rounded) };
    let zones = zones.ok_or(GeometryError::TooLarge)?;
    match zones.last().is_some_and(|last| last.array_end() > 0) {
        true => Ok(zones),
        // The layout is far or offset, with fewer rows than copies.
        false => Err(GeometryError::MemberTooSmall {
            member: 0,
            data_bytes: member_bytes[0],
            needed_bytes: unit * u64::from(spec.copies),
        }),
    }
}

fn concat_zones(rounded: &[u64]) -> Option<Vec<Zone>> {
    let mut zones = Vec::with_capacity(rounded.len());
    let mut array_start = 0u64;
    for (member, &bytes) in rounded.iter().enumerate() {
        let members = vec![member as u16];
        zones.push(Zone { array_start, array_bytes: bytes, member_start: 0, member_bytes: bytes, members });
        array_start = array_start.checked_add(bytes)?;
    }
    Some(zones)
}

fn shared_zones(spec: &Spec, rounded: &[u64]) -> Option<Vec<Zone>> {
    let mut heights = rounded.to_vec();
    heights.sort_unstable();
    heights.dedup();
    if spec.zones == ZonePolicy::Single {
        heights.truncate(1);
    }
    let mut zones = Vec::with_capacity(heights.len());
    let (mut array_start, mut member_start) = (0u64, 0u64);
    for height in heights {
        let members: Vec<u16> = (0u16..).zip(rounded).filter(|(_, bytes)| **bytes >= height).map(|(m, _)| m).collect();
        if members.len() < spec.min_members() {
            break;
        }
        let member_bytes = height - member_start;
        let array_bytes = spec.zone_bytes(members.len(), member_bytes)?;
        zones.push(Zone { array_start, array_bytes, member_start, member_bytes, members });
        array_start = array_start.checked_add(array_bytes)?;
        member_start = height;
    }
    if spec.level == Level::Raid0 {
        let end = rounded.iter().map(|&bytes| spec.raid0_end_bytes(bytes.min(member_start))).sum();
        truncate(&mut zones, end);
    }
    Some(zones)
}

/// Truncates the array at the offset `end`.
fn truncate(zones: &mut Vec<Zone>, end: u64) {
    zones.retain(|zone| zone.array_start < end);
    if let Some(last) = zones.last_mut() {
        last.array_bytes = last.array_bytes.min(end - last.array_start);
    }
}

/// Validates a zone table that was read. Nothing in it is trusted: it may come from a damaged or hostile disk.
pub(crate) fn check(spec: &Spec, member_data_bytes: &[u64], zones: &[Zone]) -> Result<(), GeometryError> {
    spec.check(member_data_bytes.len())?;
    check_total(member_data_bytes)?;
    let shared = spec.level != Level::Concat;
    // Each growth may add zones. The limit bounds the time of the check below, which compares each zone with all
    // earlier ones.
    let zones_max = if shared && spec.zones == ZonePolicy::Single { 1 } else { ZONES_MAX };
    if zones.is_empty() || zones.len() > zones_max {
        return Err(GeometryError::BadZone { zone: zones.len().min(zones_max), fault: ZoneFault::Count });
    }
    let mut array_start = 0u64;
    for (index, zone) in zones.iter().enumerate() {
        let last = index + 1 == zones.len();
        check_zone(spec, member_data_bytes, zone, array_start, last)
            .and_then(|()| check_overlap(zone, &zones[..index]))
            .map_err(|fault| GeometryError::BadZone { zone: index, fault })?;
        array_start += zone.array_bytes;
    }
    Ok(())
}

fn check_zone(
    spec: &Spec,
    member_data_bytes: &[u64],
    zone: &Zone,
    array_start: u64,
    last: bool,
) -> Result<(), ZoneFault> {
    let width = zone.members.len();
    if width < spec.min_members() || width > member_data_bytes.len() || spec.level == Level::Concat && width != 1 {
        return Err(ZoneFault::Width { found: width });
    }
    if zone.array_start != array_start {
        return Err(ZoneFault::Start { expected: array_start, found: zone.array_start });
    }
    let unit = spec.unit_bytes();
    if zone.member_bytes == 0
        || !zone.member_bytes.is_multiple_of(unit)
        || !zone.member_start.is_multiple_of(BLOCK_BYTES)
    {
        return Err(ZoneFault::Unaligned);
    }
    if !zone.members.is_sorted_by(|a, b| a < b) {
        return Err(ZoneFault::MemberOrder);
    }
    for &member in &zone.members {
        let data_bytes = *member_data_bytes.get(usize::from(member)).ok_or(ZoneFault::UnknownMember { member })?;
        let end = zone.member_start.checked_add(zone.member_bytes);
        if end.is_none_or(|end| end > data_bytes) {
            return Err(ZoneFault::BeyondMember { member });
        }
    }
    // The size cannot overflow: the height fits each member, and the total size of the members is limited.
    let expected = spec.zone_bytes(width, zone.member_bytes).unwrap_or(0);
    let truncated_max = if last { spec.truncated_bytes_max(member_data_bytes.len()) } else { 0 };
    let sizes = expected.saturating_sub(truncated_max).max(1)..=expected;
    if !sizes.contains(&zone.array_bytes) || !zone.array_bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(ZoneFault::Size { expected, found: zone.array_bytes });
    }
    Ok(())
}

fn check_overlap(zone: &Zone, earlier: &[Zone]) -> Result<(), ZoneFault> {
    for (other, before) in earlier.iter().enumerate() {
        if zone.member_start >= before.member_end() || before.member_start >= zone.member_end() {
            continue;
        }
        if let Some(&member) = zone.members.iter().find(|member| before.members.binary_search(member).is_ok()) {
            return Err(ZoneFault::Overlap { member, other });
        }
    }
    Ok(())
}
