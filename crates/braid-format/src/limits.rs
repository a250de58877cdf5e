//! The ranges of numbers that count up. They leave room for arithmetic.
//!
//! A disk, shared memory or another node can say any number, with a right checksum. What a reader accepts is at most half of what a
//! writer may write. A program that starts at the reader's limit can count 2^62 steps before its own numbers end: a thousand
//! million a second for 146 years. So `n + 1`, `n + 2^20` and `n * 2` of an accepted number neither overflow nor reach a number that
//! cannot be written. `docs/format.md`, *Ranges*, names the limit of every field.

/// The largest counter that a reader accepts: of sequences, generations, commits, marks, sessions, votes, versions and jobs.
pub const COUNTER_MAX: u64 = 1 << 62;

/// The largest counter that a writer may write.
pub const COUNTER_WRITE_MAX: u64 = u64::MAX / 2;

/// The largest epoch that a reader accepts: the version of a list of voters is an epoch times 65536, and has to stay a counter.
pub const EPOCH_MAX: u64 = COUNTER_MAX >> 16;

/// The largest number of a row that a reader accepts by itself. An array has at most 2^62 bytes and so fewer than 2^50 rows: that the row is one of
/// the array is for the start to see, which knows the geometry.
pub const ROW_MAX: u64 = 1 << 58;

/// Largest ring of a journal, in blocks of 4096 bytes: no disk is larger.
pub const JOURNAL_BLOCKS_MAX: u64 = 1 << 48;

/// The latest time that a reader accepts, in seconds since 1970: 2^40, the year 36812.
pub const TIME_MAX_S: u64 = 1 << 40;

/// Which side a limit is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// A reader judges what it has decoded.
    Read,
    /// A writer judges what it is about to encode.
    Write,
}

impl Side {
    /// The largest counter of this side.
    pub(crate) const fn counter_max(self) -> u64 {
        match self {
            Side::Read => COUNTER_MAX,
            Side::Write => COUNTER_WRITE_MAX,
        }
    }
}

/// The sentence about a counter that is too large.
pub(crate) fn too_large(number: u64) -> String {
    format!("{number} is beyond 2^62; nothing that Braid wrote counts so far")
}
