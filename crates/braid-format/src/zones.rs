//! The zone table of a label, in its two forms.
//!
//! Form 1 holds up to 64 zones, each a set of members. Form 2 holds up to 128 zones of one member each, as a concat of
//! 128 disks needs. A table is written in form 2 exactly when every zone has one member, so every table has exactly one
//! encoding.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use crate::raw::{RawSpan, RawZone, get48, is_zero, put48};
use crate::words::{FORM_SETS, FORM_SPANS};
use crate::{BLOCK_BYTES, SPANS_MAX, ZONES_MAX};

/// A zone as the label stores it. Its span of the array follows from the level and the zones before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneSpan {
    /// Bit *i*: member *i* belongs to the zone.
    pub members: u128,
    /// Where the zone begins in each member's data area, in bytes.
    pub start_bytes: u64,
    /// How much of each member's data area the zone takes, in bytes.
    pub height_bytes: u64,
}

impl ZoneSpan {
    /// Returns the number of members.
    pub fn width(&self) -> u32 {
        self.members.count_ones()
    }

    /// Returns the members, ascending.
    pub fn slots(&self) -> impl Iterator<Item = u16> {
        let members = self.members;
        (0..128u16).filter(move |i| members >> i & 1 == 1)
    }
}

/// Returns the form in which these zones are written.
pub(crate) fn form_of(zones: &[ZoneSpan]) -> u8 {
    if zones.iter().all(|z| z.width() == 1) { FORM_SPANS } else { FORM_SETS }
}

/// Returns the maximum number of entries in this form.
pub(crate) fn form_limit(form: u8) -> usize {
    if form == FORM_SPANS { SPANS_MAX } else { ZONES_MAX }
}

fn blocks(bytes: u64) -> Option<[u8; 6]> {
    bytes.is_multiple_of(BLOCK_BYTES).then(|| put48(bytes / BLOCK_BYTES)).flatten()
}

/// Writes the table; `None` if it does not fit.
pub(crate) fn write(zones: &[ZoneSpan], table: &mut [u8; 1792]) -> Option<()> {
    let form = form_of(zones);
    if zones.len() > form_limit(form) {
        return None;
    }
    let entry_bytes = table.len() / form_limit(form);
    for (zone, entry) in zones.iter().zip(table.chunks_exact_mut(entry_bytes)) {
        let (start_blocks, height_blocks) = (blocks(zone.start_bytes)?, blocks(zone.height_bytes)?);
        if form == FORM_SPANS {
            let member = U16::new(zone.members.trailing_zeros() as u16);
            entry.copy_from_slice(RawSpan { member, start_blocks, height_blocks }.as_bytes());
        } else {
            let members = zone.members.to_le_bytes();
            entry.copy_from_slice(RawZone { members, start_blocks, height_blocks }.as_bytes());
        }
    }
    Some(())
}

/// Reads `count` entries without validating their values, which `validate` does. The error says why the table is
/// unreadable.
pub(crate) fn read(form: u8, count: usize, table: &[u8; 1792]) -> Result<Vec<ZoneSpan>, String> {
    if form != FORM_SETS && form != FORM_SPANS {
        return Err(format!("form {form} is unknown"));
    }
    let limit = form_limit(form);
    if count == 0 || count > limit {
        return Err(format!("{count} zones are not between 1 and {limit}"));
    }
    let entry_bytes = table.len() / limit;
    let (used, unused) = table.split_at(count * entry_bytes);
    if !is_zero(unused) {
        return Err(format!("entries after the {count} used ones are not zero"));
    }
    let bytes = |blocks: [u8; 6]| get48(blocks) * BLOCK_BYTES;
    used.chunks_exact(entry_bytes)
        .map(|entry| {
            if form == FORM_SPANS {
                let span = RawSpan::read_from_bytes(entry).map_err(|_| "short entry".to_owned())?;
                let member = span.member.get();
                let members = 1u128.checked_shl(u32::from(member)).ok_or(format!("there is no member {member}"))?;
                Ok(ZoneSpan { members, start_bytes: bytes(span.start_blocks), height_bytes: bytes(span.height_blocks) })
            } else {
                let zone = RawZone::read_from_bytes(entry).map_err(|_| "short entry".to_owned())?;
                Ok(ZoneSpan {
                    members: u128::from_le_bytes(zone.members),
                    start_bytes: bytes(zone.start_blocks),
                    height_bytes: bytes(zone.height_blocks),
                })
            }
        })
        .collect()
}
