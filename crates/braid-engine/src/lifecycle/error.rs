//! Why a procedure failed.

use braid_format::{LabelError, PlaceError};
use braid_geometry::GeometryError;
use braid_geometry::units::format_size;

use super::{Refusal, Status};
use crate::{LeafError, LeafId};

/// Members, as the subject of a sentence.
fn of_members(members: &[u16]) -> String {
    match members {
        [one] => format!("member {one} is"),
        _ => format!("members {} are", members.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Why a procedure failed. The text is a sentence; [`LifecycleError::leaf`] says which disk it is about, so that the
/// caller can name that as its user knows it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LifecycleError {
    /// A disk refused a read, a write or a flush.
    #[error("cannot {action} (byte {offset}): {source}")]
    Io {
        /// Which disk.
        leaf: LeafId,
        /// What was attempted.
        action: &'static str,
        /// Where.
        offset: u64,
        /// The disk's answer.
        source: LeafError,
    },
    /// The disk's size will not do.
    #[error("{source}")]
    Size {
        /// Which disk.
        leaf: LeafId,
        /// Too small, or too large.
        source: PlaceError,
    },
    /// One disk was given more than once.
    #[error("this disk is given twice; each member must be a disk of its own")]
    Twice {
        /// Which disk.
        leaf: LeafId,
    },
    /// The disk bears something that looks like someone's.
    #[error("the disk holds {found}; use --force to overwrite it")]
    NotEmpty {
        /// Which disk.
        leaf: LeafId,
        /// What was found, in words.
        found: String,
    },
    /// The members do not make such an array.
    #[error("{0}")]
    Geometry(#[from] GeometryError),
    /// As many member identities as disks are needed, all different.
    #[error("{given} member identities, not all different, for {disks} disks")]
    Identities {
        /// How many were given.
        given: usize,
        /// How many disks there are.
        disks: usize,
    },
    /// The write-intent bitmap of so large an array does not fit on a member.
    #[error("an array of {} needs a write-intent bitmap of {needed_bytes} bytes, and this disk has room for {room_bytes}: the largest redundant array with it has {}",
        format_size(*.array_bytes), format_size(*.largest_bytes))]
    BitmapRoom {
        /// Which disk.
        leaf: LeafId,
        /// The array's size in bytes.
        array_bytes: u64,
        /// What its bitmap takes, in bytes.
        needed_bytes: u64,
        /// Room for the bitmap on this disk, in bytes.
        room_bytes: u64,
        /// The largest array whose bitmap fits there, in bytes.
        largest_bytes: u64,
    },
    /// The journal of the array does not fit on a member.
    #[error(
        "the journal of this array needs {needed_bytes} bytes, and this disk has room for {room_bytes}: take a disk of {} or more",
        whole_gib(*.disk_bytes)
    )]
    JournalRoom {
        /// Which disk.
        leaf: LeafId,
        /// Room for the journal on this disk, in bytes.
        room_bytes: u64,
        /// What the journal takes, in bytes.
        needed_bytes: u64,
        /// The smallest disk with room for it, in bytes.
        disk_bytes: u64,
    },
    /// The disk of the journal is lost, and with it what is needed.
    #[error(
        "the disk of its journal is not here, a member is absent, and it was not stopped in order: which parity fits its data is not known; attach the disk of the journal or the absent member, or --force starts without both: what it computes for the absent member may be wrong where it was being written"
    )]
    JournalLost,
    /// What stands in the journal of an array with parity makes no sense.
    #[error(
        "the journal cannot be used: {reason}; --force starts without what it holds; the parity is then looked at by a job"
    )]
    Journal {
        /// Why not, in words.
        reason: String,
    },
    /// What the journal of an array with parity held last may be where nothing can be read, on all that had it.
    #[error(
        "the journal may have held one batch more (number {batch}): {members} of the disks cannot read where it would be, and no other one \
         is sure to have it, so that what was being written is not known; --force starts with what was found; the parity is then looked at \
         by a job"
    )]
    JournalUnread {
        /// Its number.
        batch: u64,
        /// How many disks cannot be read there.
        members: usize,
    },
    /// A disk is too small for the role that it is to take.
    #[error("the disk has room for {} of data; {what} needs {}", format_size(*.data_bytes), format_size(*.needed_bytes))]
    TooSmall {
        /// Which disk.
        leaf: LeafId,
        /// For what, in words.
        what: String,
        /// Its room for data, in bytes.
        data_bytes: u64,
        /// What is needed, in bytes.
        needed_bytes: u64,
    },
    /// Without these members some byte of the array would be nowhere: it freezes, and nothing more is written.
    #[error("without {} some of the array would be lost{}", roles(.lost),
        .source.as_ref().map(|source| format!(": {source}")).unwrap_or_default())]
    Beyond {
        /// Who is lost.
        lost: Vec<u16>,
        /// What the last of them answered, where it did.
        source: Option<Box<LifecycleError>>,
    },
    /// A member is not in a state in which this can be done.
    #[error("member {role}: {reason}")]
    Role {
        /// Its role.
        role: u16,
        /// Why not, in words.
        reason: String,
    },
    /// A job cannot do what is asked.
    #[error("job {number}: {reason}")]
    Job {
        /// Its number.
        number: u64,
        /// Why not, in words.
        reason: String,
    },
    /// Of nothing that was written there are two copies, or a whole row, on members that are in sync.
    #[error("nothing of it can be compared, as {} not in sync", of_members(lacking))]
    NothingToCompare {
        /// The members that are not.
        lacking: Vec<u16>,
    },
    /// Requests were not held any more, or what was under way did not end in time.
    #[error("what was under way has not ended in time")]
    NotHeld,
    /// The label has no room for a further job.
    #[error("{} jobs are noted in the label already; wait for one to end, or cancel one", braid_format::JOBS_MAX)]
    JobsFull,
    /// The disk is no member of this array that could return.
    #[error("the disk cannot return to the array: {reason}")]
    NoReturn {
        /// Which disk.
        leaf: LeafId,
        /// Why not, in words.
        reason: String,
    },
    /// The array cannot become larger as it is.
    #[error("the array cannot grow: {reason}")]
    NoGrowth {
        /// Which disk stands in the way, where one does.
        leaf: Option<LeafId>,
        /// Why not, in words.
        reason: String,
        /// What would help.
        remedy: String,
    },
    /// The array cannot get or give a role as it is.
    #[error("the array cannot {}: {reason}", if *.wider { "get one copy more" } else { "give a copy up" })]
    NoWidth {
        /// It was to get one more.
        wider: bool,
        /// Why not, in words.
        reason: String,
        /// What would help.
        remedy: String,
    },
    /// Parts of the write-intent bitmap are damaged on every member.
    #[error("{sectors} sectors of the write-intent bitmap are damaged on every member: which of {} were being written is not known; --force takes all of them as written and brings their copies together",
        format_size(*.bytes))]
    BitmapDamaged {
        /// How many.
        sectors: u64,
        /// How much of the array they stand for, in bytes.
        bytes: u64,
    },
    /// The label cannot say this.
    #[error("{0}")]
    Label(#[from] LabelError),
    /// The array is not in a state in which this can be done.
    #[error("{status}")]
    NotReady {
        /// The state it is in.
        status: Box<Status>,
    },
    /// Whoever decides about the array beside its labels has let somebody else have it.
    #[error("another controller has opened the volume")]
    Overruled,
    /// A safety check stands in the way.
    #[error("{0}")]
    Refused(Refusal),
    /// A create failed half way.
    #[error("the array was not created: {source}; {}", if *.undone { "the disks are without label again" } else {
        "some disks still bear the label of an interrupted create, which `braid array delete` or `braid disk wipe` removes"
    })]
    CreateFailed {
        /// Whether all traces are gone.
        undone: bool,
        /// What went wrong.
        source: Box<LifecycleError>,
    },
}

impl LifecycleError {
    /// The disk that this is about.
    pub fn leaf(&self) -> Option<LeafId> {
        match self {
            LifecycleError::Io { leaf, .. }
            | LifecycleError::Size { leaf, .. }
            | LifecycleError::Twice { leaf }
            | LifecycleError::BitmapRoom { leaf, .. }
            | LifecycleError::JournalRoom { leaf, .. }
            | LifecycleError::TooSmall { leaf, .. }
            | LifecycleError::NoReturn { leaf, .. }
            | LifecycleError::NotEmpty { leaf, .. } => Some(*leaf),
            LifecycleError::NoGrowth { leaf, .. } => *leaf,
            LifecycleError::CreateFailed { source, .. } => source.leaf(),
            LifecycleError::Beyond { source: Some(source), .. } => source.leaf(),
            _ => None,
        }
    }
}

/// A size that somebody has to keep to: in GiB only where that is all of it.
fn whole_gib(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 30) { format!("{} GiB", bytes >> 30) } else { format!("{bytes} bytes") }
}

fn roles(roles: &[u16]) -> String {
    let list: Vec<String> = roles.iter().map(u16::to_string).collect();
    format!("member{} {}", if roles.len() == 1 { "" } else { "s" }, list.join(", "))
}
