//! Why a procedure failed.

use braid_engine::{LeafError, LeafId};
use braid_format::{LabelError, LayoutError};
use braid_geometry::GeometryError;
use braid_geometry::units::format_size;

use super::status::{ArrayStatus, Refusal};

/// Formats members as the subject of a sentence.
fn of_members(members: &[u16]) -> String {
    match members {
        [one] => format!("member {one} is"),
        _ => format!("members {} are", members.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Why a procedure failed. The text is a sentence; [`LifecycleError::leaf`] returns the disk it is about, so that the
/// caller can name the disk as its user knows it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LifecycleError {
    /// A disk failed a read, a write or a flush.
    #[error("cannot {action} (byte {offset}): {source}")]
    Io {
        /// Which disk.
        leaf: LeafId,
        /// What was attempted, as a verb phrase ("flush the disk").
        action: &'static str,
        /// The byte offset on the disk; 0 for a flush.
        offset: u64,
        /// The disk's error.
        source: LeafError,
    },
    /// The disk's size is unsuitable.
    #[error("{source}")]
    Size {
        /// Which disk.
        leaf: LeafId,
        /// Too small, or too large.
        source: LayoutError,
    },
    /// A disk was given more than once.
    #[error("this disk is given twice; each member must be a disk of its own")]
    Twice {
        /// Which disk.
        leaf: LeafId,
    },
    /// The disk is in use by something else.
    #[error("the disk holds {found}; use --force to overwrite it")]
    NotEmpty {
        /// Which disk.
        leaf: LeafId,
        /// What was found, in words.
        found: String,
    },
    /// These members cannot form such an array.
    #[error("{0}")]
    Geometry(#[from] GeometryError),
    /// The member identities do not match the disks: one per disk is needed, all different.
    #[error("{given} member identities, not all different, for {disks} disks")]
    Identities {
        /// How many were given.
        given: usize,
        /// How many disks there are.
        disks: usize,
    },
    /// The write-intent bitmap of such a large array does not fit on a member.
    #[error("an array of {} needs a write-intent bitmap of {needed_bytes} bytes, and this disk has room for {room_bytes}: the largest redundant array with it has {}",
        format_size(*.array_bytes), format_size(*.largest_bytes))]
    BitmapRoom {
        /// Which disk.
        leaf: LeafId,
        /// The array's size in bytes.
        array_bytes: u64,
        /// The size of its bitmap, in bytes.
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
        /// The size of the journal, in bytes.
        needed_bytes: u64,
        /// The smallest disk that it fits on, in bytes.
        disk_bytes: u64,
    },
    /// The disk of the journal is missing, and what it holds is needed.
    #[error(
        "the disk of its journal is not here, a member is missing, and it was not stopped in order: which parity fits its data is not known; attach the disk of the journal or the missing member, or --force starts without both: what it computes for the missing member may be wrong where it was being written"
    )]
    JournalLost,
    /// The content of the journal of an array with parity is invalid.
    #[error(
        "the journal cannot be used: {reason}; --force starts without what it holds; the parity is then looked at by a job"
    )]
    Journal {
        /// Why not, in words.
        reason: String,
    },
    /// The last batch of the journal may be unreadable on every disk that held it.
    #[error(
        "the journal may have held one batch more (number {batch}): {members} of the disks cannot read where it would be, and no other one \
         is sure to have it, so that what was being written is not known; --force starts with what was found; the parity is then looked at \
         by a job"
    )]
    JournalUnreadable {
        /// Its number.
        batch: u64,
        /// How many disks cannot be read there.
        members: usize,
    },
    /// A disk is too small for the slot that it is to take.
    #[error("the disk has room for {} of data; {what} needs {}", format_size(*.data_bytes), format_size(*.needed_bytes))]
    TooSmall {
        /// Which disk.
        leaf: LeafId,
        /// What needs the space, in words.
        what: String,
        /// Its room for data, in bytes.
        data_bytes: u64,
        /// The space needed, in bytes.
        needed_bytes: u64,
    },
    /// Without these members some byte of the array would have no copy: the array fails, and nothing more is written.
    #[error("without {} some of the array would be lost{}", roles(.lost),
        .source.as_ref().map(|source| format!(": {source}")).unwrap_or_default())]
    BeyondTolerance {
        /// The failed members.
        lost: Vec<u16>,
        /// The error of the last of them, if any.
        source: Option<Box<LifecycleError>>,
    },
    /// A member is not in a state in which this is possible.
    #[error("member {slot}: {reason}")]
    Slot {
        /// Its slot.
        slot: u16,
        /// Why not, in words.
        reason: String,
    },
    /// A job cannot do what was requested.
    #[error("job {number}: {reason}")]
    Job {
        /// Its number.
        number: u64,
        /// Why not, in words.
        reason: String,
    },
    /// No region that was written has two copies, or all cells of its stripe, on members in sync.
    #[error("nothing of it can be compared, as {} not in sync", of_members(lacking))]
    NothingToCompare {
        /// The members that are not in sync.
        lacking: Vec<u16>,
    },
    /// Requests cannot be held (the array has parity, or regions are unsettled), are not held any more, or the I/O in
    /// flight did not finish within the time limit.
    #[error("what was under way has not ended in time")]
    NotHeld,
    /// The label has no room for a further job.
    #[error("{} jobs are noted in the label already; wait for one to end, or cancel one", braid_format::JOBS_MAX)]
    JobsFull,
    /// The disk is not a member of this array that could return.
    #[error("the disk cannot return to the array: {reason}")]
    NoReturn {
        /// Which disk.
        leaf: LeafId,
        /// Why not, in words.
        reason: String,
    },
    /// The array cannot grow as it is.
    #[error("the array cannot grow: {reason}")]
    NoGrowth {
        /// The disk that prevents it, if it is one.
        leaf: Option<LeafId>,
        /// Why not, in words.
        reason: String,
        /// What would help.
        remedy: String,
    },
    /// The array cannot gain or give up a slot as it is.
    #[error("the array cannot {}: {reason}", if *.wider { "get one copy more" } else { "give a copy up" })]
    WidthUnchangeable {
        /// Whether it was to gain a slot.
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
        /// How much of the array they cover, in bytes.
        bytes: u64,
    },
    /// The label cannot represent this.
    #[error("{0}")]
    Label(#[from] LabelError),
    /// The array is not in a state in which this is possible.
    #[error("{status}")]
    NotReady {
        /// Its state.
        status: Box<ArrayStatus>,
    },
    /// The voters have granted the array to another controller.
    #[error("another controller has opened the volume")]
    Fenced,
    /// A safety check failed.
    #[error("{0}")]
    Refused(Refusal),
    /// A create failed halfway.
    #[error("the array was not created: {source}; {}", if *.undone { "the disks are without label again" } else {
        "some disks still bear the label of an interrupted create, which `braid array delete` or `braid disk wipe` removes"
    })]
    CreateFailed {
        /// Whether everything was undone.
        undone: bool,
        /// What went wrong.
        source: Box<LifecycleError>,
    },
}

impl LifecycleError {
    /// Returns the disk that the error is about.
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
            LifecycleError::BeyondTolerance { source: Some(source), .. } => source.leaf(),
            _ => None,
        }
    }
}

/// Formats a minimum size exactly: in GiB only if it is a multiple of that.
fn whole_gib(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 30) { format!("{} GiB", bytes >> 30) } else { format!("{bytes} bytes") }
}

fn roles(roles: &[u16]) -> String {
    let list: Vec<String> = roles.iter().map(u16::to_string).collect();
    format!("member{} {}", if roles.len() == 1 { "" } else { "s" }, list.join(", "))
}
