//! Whether an array can be started, and why not.

use std::fmt;

use braid_engine::{LeafError, LeafId};
use braid_format::{LabelError, MemberId};

/// Whether an array can be started.
#[derive(Clone, PartialEq, Debug)]
pub enum ArrayStatus {
    /// Every member is present and valid.
    Ready,
    /// It can start automatically without some of its members.
    Degraded {
        /// The members that the labels call in sync and whose disks are missing.
        missing: Vec<MissingMember>,
    },
    /// It could start without some of its members, which may have gone on without the present ones: it waits for them,
    /// or for `--degraded`.
    Waiting {
        /// The members that it waits for.
        missing: Vec<MissingMember>,
    },
    /// Members are missing without which some byte of the array has no copy.
    Incomplete {
        /// The missing members; at a redundant level those that the newest label calls in sync.
        missing: Vec<MissingMember>,
    },
    /// Its creation was interrupted. It was never acknowledged, and is never served.
    InterruptedCreate,
    /// Its deletion was interrupted. The next start finishes it.
    InterruptedDelete,
    /// It needs an administrator's decision.
    Refused {
        /// The reasons, at least one.
        reasons: Vec<Refusal>,
    },
}

/// A missing member.
#[derive(Clone, PartialEq, Debug)]
pub struct MissingMember {
    /// Its slot.
    pub number: u16,
    /// Its identity.
    pub id: Option<MemberId>,
    /// Size of its data area in bytes.
    pub data_bytes: u64,
    /// It is the disk of the journal.
    pub is_journal: bool,
    /// The disk that seems to be it and cannot be used, with the reason.
    pub unusable_disk: Option<(LeafId, DiskProblem)>,
}

/// Why an array is not started although its disks are present.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Several disks claim one slot.
    #[error(
        "several disks say that they are member {slot} ({id}): one is a copy of the other, or the same disk by a second path; detach the copy, or wipe its label"
    )]
    Twins {
        /// The slot.
        slot: u16,
        /// The identity that they share.
        id: MemberId,
        /// The disks.
        leaves: Vec<LeafId>,
    },
    /// Labels with the same sequence number differ.
    #[error("labels with the same sequence number {sequence} say different things: the members were used apart")]
    Diverged {
        /// The number.
        sequence: u64,
    },
    /// A member missed label changes or a session: it was missing while the array lived on.
    #[error(
        "member {role} is an old copy: its label has sequence {sequence}, the newest has {newest}, and the array has served without it since; attach the right disk, or --force uses this one as it is: what was written to the member since its label is lost, and the content may be torn"
    )]
    Stale {
        /// Its slot.
        role: u16,
        /// The disk.
        leaf: LeafId,
        /// Its label's sequence number.
        sequence: u64,
        /// The newest label's sequence number.
        newest: u64,
    },
    /// A member of a redundant array is an old copy of itself.
    #[error(
        "member {role} is an old copy: its label has sequence {sequence}, the newest has {newest}; --force starts without it and rebuilds it in full, so that what only it holds is lost"
    )]
    OldCopy {
        /// Its slot.
        role: u16,
        /// The disk.
        leaf: LeafId,
        /// Its label's sequence number.
        sequence: u64,
        /// The newest label's sequence number.
        newest: u64,
    },
    /// A member of a redundant array has diverged: it went on without the others.
    #[error(
        "member {role} was used apart from the others (its line {line:016x} is unknown to the newest label): detach the disks of one side, or --force keeps the newest and rebuilds this one in full, so that what was written to it apart is lost"
    )]
    MemberDiverged {
        /// Its slot.
        role: u16,
        /// The disk.
        leaf: LeafId,
        /// The id of its lineage.
        line: u64,
    },
    /// A member has no room for the data area of the newest label.
    #[error(
        "member {role} is a copy from before the array grew: its data area has {found} bytes, the newest label says {expected}; attach the right disk"
    )]
    WrongSize {
        /// Its slot.
        role: u16,
        /// The disk.
        leaf: LeafId,
        /// The size in its own label, in bytes.
        found: u64,
        /// The size in the newest label, in bytes.
        expected: u64,
    },
    /// The zones are invalid.
    #[error("{0}")]
    Zones(String),
    /// A newer version has set a feature that does not allow this version to write.
    #[error("the array uses features (bits {bits:#x}) with which this version may not write to it: use a newer braid")]
    ReadOnlyFeatures {
        /// The bits.
        bits: u64,
    },
    /// Another present array has the same name.
    #[error("another array of this name is here; rename or detach one, or start this one by its UUID")]
    SameName,
}

impl Refusal {
    /// Whether `--force` overrides it.
    pub fn can_be_forced(&self) -> bool {
        matches!(self, Refusal::Stale { .. } | Refusal::OldCopy { .. } | Refusal::MemberDiverged { .. })
    }
}

impl ArrayStatus {
    /// Whether the array may start automatically.
    pub fn starts_by_itself(&self) -> bool {
        matches!(self, ArrayStatus::Ready | ArrayStatus::Degraded { .. })
    }
}

impl fmt::Display for MissingMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_journal {
            write!(f, "the disk of its journal")?;
            if let Some(id) = self.id {
                write!(f, " (id {id})")?;
            }
        } else {
            write!(f, "member {}", self.number)?;
        }
        if let Some(id) = self.id.filter(|_| !self.is_journal) {
            write!(f, " (id {id}, {} of data)", braid_geometry::units::format_size(self.data_bytes))?;
        }
        match &self.unusable_disk {
            Some((_, problem)) if self.is_journal => write!(f, ", which is here but: {problem}"),
            Some((_, problem)) => write!(f, ", whose disk is here but: {problem}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ArrayStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
            items.iter().enumerate().try_for_each(|(i, x)| write!(f, "{}{x}", if i == 0 { "" } else { "; " }))
        }
        match self {
            ArrayStatus::Ready => write!(f, "ready"),
            ArrayStatus::Degraded { missing } if missing.is_empty() => write!(f, "ready, degraded"),
            ArrayStatus::Degraded { missing } => {
                write!(f, "ready, degraded, without ")?;
                list(f, missing)
            }
            ArrayStatus::Waiting { missing } => {
                write!(f, "waiting for ")?;
                list(f, missing)?;
                write!(
                    f,
                    "; --degraded starts without: what was written to the missing since, if they went on, is lost"
                )
            }
            ArrayStatus::Incomplete { missing } if missing.is_empty() => {
                write!(f, "no member that is here and in sync holds all of it")
            }
            ArrayStatus::Incomplete { missing } => {
                write!(f, "waiting for ")?;
                list(f, missing)
            }
            ArrayStatus::InterruptedCreate => {
                write!(f, "its creation was interrupted and never completed; delete it, or wipe its disks")
            }
            ArrayStatus::InterruptedDelete => write!(f, "its deletion was interrupted; the next start finishes it"),
            ArrayStatus::Refused { reasons } => list(f, reasons),
        }
    }
}

/// Why a disk with a label cannot be used.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskProblem {
    /// Neither copy could be read.
    #[error("the disk cannot be read: {0}")]
    Unreadable(LeafError),
    /// Both copies are damaged.
    #[error("both copies are damaged; of the first: {0}")]
    Damaged(LabelError),
    /// It was written by a newer version of Braid, or is invalid despite a valid checksum.
    #[error("{0}")]
    Unsupported(LabelError),
    /// The two copies belong to different arrays or members.
    #[error("its two copies of the label belong to different members: one was copied there")]
    TwoMembers,
    /// The two copies have the same sequence number and differ.
    #[error("its two copies of the label differ under one sequence number")]
    Contradiction,
    /// It is the disk of an array's journal, and is not the one that the array uses now.
    #[error(
        "what it holds is not the journal of now: it is an old copy of that disk, or the array has gone on without it"
    )]
    OldJournal,
    /// The disk has shrunk.
    #[error("{0}")]
    TooSmall(String),
}
