//! The table of zones, in its two forms.
//!
//! Form 1 holds up to 64 zones, each with a set of members. Form 2 holds up to 128 zones of one member each: what
//! a concat of 128 disks needs. Form 2 is used exactly when every zone has one member, so that one table has one
//! encoding only.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use crate::check::is_zero;
use crate::raw::{RawSpan, RawZone, get48, put48};
use crate::{BLOCK_BYTES, SPANS_MAX, ZONES_MAX};

/// Each entry is a set of members.
pub(crate) const FORM_SETS: u8 = 1;
/// Each entry is one member.
pub(crate) const FORM_SPANS: u8 = 2;

/// A zone as the label says it: the array's span follows from the level and the zones before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneSpan {
    /// Bit *i* set: member *i* belongs to it.
    pub members: u128,
    /// Where it begins in each member's data area, in bytes.
    pub start_bytes: u64,
    /// How much of each member it takes, in bytes.
    pub height_bytes: u64,
}

impl ZoneSpan {
    /// How many members it has.
    pub fn width(&self) -> u32 {
        self.members.count_ones()
    }

    /// Its members, ascending.
    pub fn roles(&self) -> impl Iterator<Item = u16> {
        let members = self.members;
        (0..128u16).filter(move |i| members >> i & 1 == 1)
    }
}

/// The form that this table is written in.
pub(crate) fn form_of(zones: &[ZoneSpan]) -> u8 {
    if zones.iter().all(|z| z.width() == 1) { FORM_SPANS } else { FORM_SETS }
}

/// Most entries in a form.
pub(crate) fn form_limit(form: u8) -> usize {
    if form == FORM_SPANS { SPANS_MAX } else { ZONES_MAX }
}

fn blocks(bytes: u64) -> Option<[u8; 6]> {
    bytes.is_multiple_of(BLOCK_BYTES).then(|| put48(bytes / BLOCK_BYTES)).flatten()
}

/// Writes the table; `None` when it does not fit.
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

/// Reads `count` entries. Values are as they stand; `check` judges them. `Err` says what cannot be read.
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
