//! Reads arrays of Linux md: superblocks of version 1, and the arrays that they describe.
//!
//! [`Superblock`] is the validated superblock of one disk. [`assemble`] assembles the superblocks of one array: which disk
//! is which member, which members are missing or stale, whether the data are readable, and how they are laid out.
//! Nothing here writes.

mod assemble;
mod problem;
mod superblock;

pub use assemble::{AssembleOptions, MdArray, MemberSlot, SlotState, assemble, groups};
pub use problem::AssembleProblem;
pub use superblock::{BadBlockLog, BadRange, MdError, Role, SUPERBLOCK_BYTES, Superblock, superblock_offsets};
