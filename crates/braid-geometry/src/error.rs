//! Why a geometry cannot be.

use crate::{BLOCK_BYTES, CHUNK_BYTES_MAX, Layout, Level, MEMBERS_MAX, TOTAL_BYTES_MAX, units::format_size};
use std::fmt;

/// Why members cannot be laid out as asked for, or why a table of zones that was read is not one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeometryError {
    /// Fewer members than the level (or the number of copies) needs.
    TooFewMembers {
        /// The level asked for.
        level: Level,
        /// How many members there are.
        given: usize,
        /// How many there must be.
        needed: usize,
    },
    /// More members than [`MEMBERS_MAX`].
    TooManyMembers {
        /// How many members there are.
        given: usize,
    },
    /// A chunk that is no multiple of 4 KiB, is zero, or is above 64 MiB.
    BadChunk {
        /// The chunk asked for, in bytes.
        chunk_bytes: u64,
    },
    /// A number of copies below two, or above the number of members.
    BadCopies {
        /// The number of copies asked for.
        copies: u16,
        /// How many members there are.
        members: usize,
    },
    /// A layout that is not one of this level.
    LayoutNotOfLevel {
        /// The level asked for.
        level: Level,
        /// The layout asked for.
        layout: Layout,
    },
    /// A member that has not even room for one chunk (or, where the level has no chunks, one block).
    MemberTooSmall {
        /// Which member, counted from 0.
        member: usize,
        /// Its data area, in bytes.
        data_bytes: u64,
        /// What it needs at least, in bytes.
        needed_bytes: u64,
    },
    /// All members together have more than [`TOTAL_BYTES_MAX`] bytes.
    TooLarge,
    /// Members have no new room that the array could take up.
    NoGrowth {
        /// On how many members a zone must lie.
        needed: usize,
        /// Whether the array has one zone only, on all members.
        single_zone: bool,
    },
    /// A table of zones that cannot be true.
    BadZone {
        /// Which zone, counted from 0.
        zone: usize,
        /// What is wrong with it.
        fault: ZoneFault,
    },
}

/// What is wrong with a zone of a table that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZoneFault {
    /// The table has no zones, more than the members allow, or more than the policy allows.
    Count,
    /// It does not start where the zone before it ends (the first one: at 0).
    Start {
        /// Where it must start in the array, in bytes.
        expected: u64,
        /// Where it says that it starts, in bytes.
        found: u64,
    },
    /// Its size in the array is not what its height and its members give.
    Size {
        /// What it must be, in bytes.
        expected: u64,
        /// What it says, in bytes.
        found: u64,
    },
    /// Its start or height on the members is not a multiple of a block or of the chunk, or the height is zero.
    Unaligned,
    /// It lists too few members for the level, or more than one for concat.
    Width {
        /// How many it lists.
        found: usize,
    },
    /// It names a member that does not exist.
    UnknownMember {
        /// The number that it names.
        member: u16,
    },
    /// Its members are not in ascending order, or one is named twice.
    MemberOrder,
    /// It ends beyond the data area of a member.
    BeyondMember {
        /// Which member, counted from 0.
        member: u16,
    },
    /// It overlaps another zone on a member.
    Overlap {
        /// On which member, counted from 0.
        member: u16,
        /// With which other zone, counted from 0.
        other: usize,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeometryError::TooFewMembers { level, given, needed } => {
                write!(f, "{level} needs at least {needed} members, there {}", are(*given))
            }
            GeometryError::TooManyMembers { given } => {
                write!(f, "at most {MEMBERS_MAX} members, there are {given}")
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
            GeometryError::LayoutNotOfLevel { level, layout } => {
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
                    "nothing would be gained: the array has a single zone, which grows only when all members have"
                )
            }
            GeometryError::NoGrowth { needed: 1, .. } => write!(f, "nothing would be gained: no member has new room"),
            GeometryError::NoGrowth { needed, .. } => write!(
                f,
                "nothing would be gained: a further zone needs {needed} members with new room at the same place, above all that they hold"
            ),
            GeometryError::BadZone { zone, fault } => write!(f, "zone {zone}: {fault}"),
        }
    }
}

fn are(count: usize) -> String {
    if count == 1 { "is 1".to_owned() } else { format!("are {count}") }
}

impl fmt::Display for ZoneFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ZoneFault::Count => write!(f, "the table has a number of zones that cannot be"),
            ZoneFault::Start { expected, found } => {
                write!(f, "starts at {found} of the array instead of {expected}")
            }
            ZoneFault::Size { expected, found } => {
                write!(f, "has {found} bytes of the array instead of {expected}")
            }
            ZoneFault::Unaligned => write!(f, "its span on the members is no whole number of chunks"),
            ZoneFault::Width { found } => write!(f, "{found} members do not suit the level"),
            ZoneFault::UnknownMember { member } => write!(f, "there is no member {member}"),
            ZoneFault::MemberOrder => write!(f, "its members are not in ascending order"),
            ZoneFault::BeyondMember { member } => write!(f, "ends beyond the data area of member {member}"),
            ZoneFault::Overlap { member, other } => write!(f, "overlaps zone {other} on member {member}"),
        }
    }
}

impl std::error::Error for GeometryError {}
