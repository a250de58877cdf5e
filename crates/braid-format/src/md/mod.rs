//! Arrays of Linux md, to be read: superblocks of version 1, and what they say together.
//!
//! [`Superblock`] is what one disk says, checked; [`judge`] is what all disks of an array say together: which member each is, which
//! are missing or old, whether the data can be had, and how they are laid out. Nothing here writes.

mod judge;
mod problem;
mod superblock;

pub use judge::{MdArray, Seat, SeatState, Wishes, groups, judge};
pub use problem::Problem;
pub use superblock::{BadBlockLog, BadRange, MdError, Role, SUPERBLOCK_BYTES, Superblock, places};
