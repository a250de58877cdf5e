//! Ranges of counters, which leave room for arithmetic.
//!
//! Bytes from a disk, shared memory or another node may hold any number under a right checksum. A reader accepts at
//! most half of what a writer may write. A program that starts at the reader's limit can count almost 2^62 steps before
//! it exceeds the writer's: a thousand million a second for 146 years. So `n + 1` and `n + 2^20` of an accepted number
//! never exceed what can be written, and `n * 2` does not overflow. `docs/internals/format/README.md`, *Ranges*, lists
//! the limit of every field.

/// The largest counter that a reader accepts: sequences, generations, commits, marks, sessions, votes, versions and
/// jobs.
pub const COUNTER_MAX: u64 = 1 << 62;

/// The largest counter that a writer may write.
pub const COUNTER_WRITE_MAX: u64 = u64::MAX / 2;

/// The largest epoch that a reader accepts. The version of a voter list is an epoch times 65536, and has to stay within
/// [`COUNTER_MAX`].
pub const EPOCH_MAX: u64 = COUNTER_MAX >> 16;

/// The largest stripe number that a decoder accepts. An array has at most 2^62 bytes, so fewer than 2^50 stripes; the
/// start of the array, which knows the geometry, checks that the stripe lies within the array.
pub const STRIPE_NUMBER_MAX: u64 = 1 << 58;

/// Maximum size of a journal ring, in blocks of 4096 bytes: no disk is larger.
pub const JOURNAL_BLOCKS_MAX: u64 = 1 << 48;

/// The latest time that a reader accepts, in seconds since 1970: 2^40, the year 36812.
pub const TIME_MAX_S: u64 = 1 << 40;

/// Whether a limit applies to a reader or to a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// A reader validates a decoded value.
    Read,
    /// A writer validates a value before it encodes it.
    Write,
}

impl Side {
    /// Returns the largest counter of this side.
    pub(crate) const fn counter_max(self) -> u64 {
        match self {
            Side::Read => COUNTER_MAX,
            Side::Write => COUNTER_WRITE_MAX,
        }
    }
}

/// Returns the reason for refusing a counter that is too large.
pub(crate) fn too_large(number: u64) -> String {
    format!("{number} is beyond 2^62; nothing that Braid wrote counts so far")
}
