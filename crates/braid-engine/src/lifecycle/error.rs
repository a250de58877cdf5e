//! Why a procedure failed.

use braid_format::{LabelError, PlaceError};
use braid_geometry::{GeometryError, Level};

use super::{Refusal, Status};
use crate::{LeafError, LeafId};

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
    /// A level that cannot be created yet.
    #[error("arrays of level {level} cannot be created by this version; it creates concat and raid0")]
    LevelNotReady {
        /// The level asked for.
        level: Level,
    },
    /// As many member identities as disks are needed, all different.
    #[error("{given} member identities, not all different, for {disks} disks")]
    Identities {
        /// How many were given.
        given: usize,
        /// How many disks there are.
        disks: usize,
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
            | LifecycleError::NotEmpty { leaf, .. } => Some(*leaf),
            LifecycleError::CreateFailed { source, .. } => source.leaf(),
            _ => None,
        }
    }
}
