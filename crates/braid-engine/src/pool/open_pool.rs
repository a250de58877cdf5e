//! What opening a pool needs to know, and why it fails.

use braid_format::Uuid;
use braid_format::pool::{Change, LogEntry, MISSING_MAX, Record, RecordKind};

use super::device::PoolDevice;
use crate::io::IoError;

/// The pool to open.
pub struct OpenPool<'a> {
    /// Its identity.
    pub uuid: Uuid,
    /// The present members, at least one, in the order of their numbers. A number that is neither present nor missing
    /// is no longer a member's.
    pub members: &'a [PoolDevice],
    /// Slots for owners.
    pub owner_slots: u32,
    /// Bit *i*: member *i* is missing, and the pool goes on without it. Blocks that it may have of a volume are in
    /// doubt; changes that were acknowledged and not flushed may be lost.
    pub missing: u128,
    /// Writes changes that a crash left even into table pages that cannot be read: all other content of such a page is
    /// damaged from then on. If false, such a pool is not opened ([`OpenError::Unread`]).
    pub overwrites_unreadable: bool,
    /// A random number for this open alone, not 0.
    pub run: u64,
}

impl OpenPool<'_> {
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u8, &PoolDevice)> {
        self.members.iter().map(|member| (member.number, member))
    }

    pub(super) fn member(&self, number: u8) -> Option<&PoolDevice> {
        self.members.iter().find(|member| member.number == number)
    }
}

/// Why a pool cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// A member cannot be read or written.
    #[error("member {member} of the pool cannot be {doing}: {error}")]
    Io {
        /// The member.
        member: u8,
        /// "read", "written" or "flushed".
        doing: &'static str,
        /// The reason.
        error: IoError,
    },
    /// A change that a crash left has to be written into a page of its tables that cannot be read.
    #[error(
        "the 4 KiB of tables at byte {offset} of member {member} of the pool cannot be read, and what a crash left in the rings is to be \
         written there: all else that stands in them would be lost"
    )]
    Unread {
        /// The member.
        member: u8,
        /// Where the page begins on the member's device, in bytes.
        offset: u64,
    },
    /// Neither of its ring starts is valid.
    #[error("member {0} of the pool has no valid start of its ring")]
    NoStart(u8),
    /// Something in its tables or rings is damaged.
    #[error("the metadata of member {member} of the pool are damaged: {what}")]
    Damaged {
        /// The member.
        member: u8,
        /// What, and where.
        what: String,
    },
    /// It returns, and lacks part of a commit that was decided to be valid while it was missing.
    #[error(
        "member {member} of the pool lacks part of commit {commit}, which counted when the pool went on without it: what it has does not fit \
         what the others have"
    )]
    LacksCommit {
        /// The member.
        member: u8,
        /// The commit.
        commit: u64,
    },
    /// It is an old copy of a member, or was used without the others.
    #[error("member {0} of the pool is an old copy, or was used without the others: its ring is of another run")]
    OtherRun(u8),
    /// Too many members are missing.
    #[error("the pool cannot go on without more than {MISSING_MAX} of its members")]
    TooManyMissing,
    /// The log of the last session exists, and cannot be used.
    #[error(
        "the pool's tail in shared memory cannot be used: {0}; without it, what was acknowledged and not flushed is lost"
    )]
    OldLog(&'static str),
    /// No shared memory is available for its log.
    #[error("no shared memory for the pool's tail: {0}")]
    LogMemory(String),
}

/// Returns the error for an I/O of a member that failed; `doing` as in [`OpenError::Io`].
pub(super) fn failed(member: u8, doing: &'static str) -> impl FnOnce(IoError) -> OpenError {
    move |error| OpenError::Io { member, doing, error }
}

/// Returns whether a record of this kind is valid at this index of a member's table.
pub(super) fn is_valid_at(member: &PoolDevice, index: u32, record: &Record) -> bool {
    match record.kind {
        RecordKind::Free => true,
        RecordKind::Whole | RecordKind::Packed => index < member.extents,
        RecordKind::Zeros => index >= member.extents,
    }
}

/// Returns whether an entry refers to something that exists.
pub(super) fn fits(what: &OpenPool<'_>, entry: &LogEntry) -> bool {
    match &entry.change {
        Change::Padding => true,
        Change::Owner { .. } => entry.index < what.owner_slots,
        Change::Record { record } | Change::Slot { record, .. } => what.member(entry.member).is_some_and(|member| {
            u64::from(entry.index) < u64::from(member.extents) + u64::from(member.zero_slots)
                && is_valid_at(member, entry.index, record)
        }),
    }
}
