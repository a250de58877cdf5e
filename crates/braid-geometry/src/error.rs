//! Errors of laying out an array.

use crate::{BLOCK_BYTES, CHUNK_BYTES_MAX, Layout, Level, MEMBERS_MAX, TOTAL_BYTES_MAX, units::format_size};
use std::fmt;

/// The reason why members cannot be laid out as specified, or why a zone table that was read is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeometryError {
    /// The array has fewer members than the level (or the number of copies) needs.
    TooFewMembers {
        /// The requested level.
        level: Level,
        /// The number of members.
        given: usize,
        /// The minimum number of members.
        needed: usize,
    },
    /// The array has more than [`MEMBERS_MAX`] members.
    TooManyMembers {
        /// The number of members.
        given: usize,
    },
    /// The chunk size is zero, not a multiple of 4 KiB, or above 64 MiB.
    BadChunk {
        /// The requested chunk size, in bytes.
        chunk_bytes: u64,
    },
    /// The number of copies is below 2 or above the number of members.
    BadCopies {
        /// The requested number of copies.
        copies: u16,
        /// The number of members.
        members: usize,
    },
    /// The level does not have this layout.
    UnsupportedLayout {
        /// The requested level.
        level: Level,
        /// The requested layout.
        layout: Layout,
    },
    /// A member is too small for one chunk (with raid1, one block; imported concats and mirrors, one sector), or its
    /// data area is smaller than the zones that it already holds.
    MemberTooSmall {
        /// The member, counted from 0.
        member: usize,
        /// The size of its data area, in bytes.
        data_bytes: u64,
        /// The minimum size of its data area, in bytes.
        needed_bytes: u64,
    },
    /// The members together have more than [`TOTAL_BYTES_MAX`] bytes.
    TooLarge,
    /// The members have no free space by which the array could grow.
    NoGrowth {
        /// The minimum number of members of a zone.
        needed: usize,
        /// Whether the array is limited to a single zone.
        single_zone: bool,
    },
    /// A zone of the table is invalid.
    BadZone {
        /// The zone, counted from 0. With [`ZoneFault::Count`], the number of zones in the table or, if that is lower,
        /// the maximum.
        zone: usize,
        /// The fault of the zone.
        fault: ZoneFault,
    },
}

/// The fault of a zone in a zone table that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZoneFault {
    /// The table has no zones, or more zones than the limit or the zone policy allows.
    Count,
    /// The zone does not start where the preceding zone ends (the first zone: at 0).
    Start {
        /// The expected start in the array, in bytes.
        expected: u64,
        /// The start in the table, in bytes.
        found: u64,
    },
    /// The size of the zone in the array does not follow from its height and its members, or is not a multiple of a
    /// block.
    Size {
        /// The expected size, in bytes. The last zone of a raid0 array may be shorter (see
        /// [`crate::Spec::raid0_end_bytes`]).
        expected: u64,
        /// The size in the table, in bytes.
        found: u64,
    },
    /// The zone's start on the members is not a multiple of a block, or its height (the bytes that it takes of each
    /// member) is zero or not a multiple of the chunk (with raid1, of a block).
    Unaligned,
    /// The zone has too few members for the level, more members than the array, or, with concat, more than one.
    Width {
        /// The number of members in the table.
        found: usize,
    },
    /// The zone refers to a member that does not exist.
    UnknownMember {
        /// The number of the member.
        member: u16,
    },
    /// The members of the zone are not in ascending order, or one of them is repeated.
    MemberOrder,
    /// The zone ends beyond the data area of a member.
    BeyondMember {
        /// The member, counted from 0.
        member: u16,
    },
    /// The zone overlaps an earlier zone on a member.
    Overlap {
        /// The member on which the zones overlap, counted from 0.
        member: u16,
        /// The earlier zone, counted from 0.
        other: usize,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeometryError::TooFewMembers { level, given, needed } => {
                write!(f, "{level} needs at least {needed} members, there {}", is_or_are(*given))
            }
            GeometryError::TooManyMembers { given } => {
                write!(f, "too many members: {given}, at most {MEMBERS_MAX}")
            }
            GeometryError::BadChunk { chunk_bytes } => write!(
                f,
                "a chunk of {chunk_bytes} bytes: it must be a multiple of {} from {} to {}, for example 64K",
                format_size(BLOCK_BYTES),
                format_size(BLOCK_BYTES),
                format_size(CHUNK_BYTES_MAX)
            ),
            GeometryError::BadCopies { copies, members } => {
                write!(f, "{copies} copies over {members} members: from 2 to the number of members, for example 2")
            }
            GeometryError::UnsupportedLayout { level, layout } => {
                write!(f, "{level} has no layout {layout}: ")?;
                for (index, layout) in level.layouts().iter().enumerate() {
                    write!(f, "{}{layout}", if index == 0 { "" } else { " or " })?;
                }
                Ok(())
            }
            GeometryError::MemberTooSmall { member, data_bytes, needed_bytes } => write!(
                f,
                "member {member} has room for {} of data, and needs at least {}",
                format_size(*data_bytes),
                format_size(*needed_bytes)
            ),
            GeometryError::TooLarge => {
                write!(f, "the members together have more than {}", format_size(TOTAL_BYTES_MAX))
            }
            GeometryError::NoGrowth { single_zone: true, .. } => {
                write!(
                    f,
                    "no capacity would be gained: the array has a single zone, which grows only if all members have grown"
                )
            }
            GeometryError::NoGrowth { needed: 1, .. } => {
                write!(f, "no capacity would be gained: no member has new free space")
            }
            GeometryError::NoGrowth { needed, .. } => write!(
                f,
                "no capacity would be gained: a further zone needs {needed} members with new free space at the same offset, after everything that they hold"
            ),
            GeometryError::BadZone { zone, fault } => write!(f, "zone {zone}: {fault}"),
        }
    }
}

fn is_or_are(count: usize) -> String {
    if count == 1 { "is 1".to_owned() } else { format!("are {count}") }
}

impl fmt::Display for ZoneFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ZoneFault::Count => write!(f, "the table has an invalid number of zones"),
            ZoneFault::Start { expected, found } => {
                write!(f, "starts at {found} of the array instead of {expected}")
            }
            ZoneFault::Size { expected, found } => {
                write!(f, "has {found} bytes of the array instead of {expected}")
            }
            ZoneFault::Unaligned => write!(f, "its span on the members is not a whole number of chunks"),
            ZoneFault::Width { found } => write!(f, "{found} members are invalid for the level"),
            ZoneFault::UnknownMember { member } => write!(f, "there is no member {member}"),
            ZoneFault::MemberOrder => write!(f, "its members are not in ascending order"),
            ZoneFault::BeyondMember { member } => write!(f, "ends beyond the data area of member {member}"),
            ZoneFault::Overlap { member, other } => write!(f, "overlaps zone {other} on member {member}"),
        }
    }
}

impl std::error::Error for GeometryError {}
