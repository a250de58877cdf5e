//! Errors of the layers below in the shape of the API: which thing, why, what to do.

use crate::advice::{self, ArrayCase, Case, JobCase, Names};
use braid_api::{ErrorDetail, Kind};
use braid_engine::lifecycle::{ArrayStatus, FoundArray, LifecycleError, Refusal, is_redundant};
use braid_engine::{ErrorKind, LeafId};
use braid_ring::{RingError, RingErrorKind};
use std::io::ErrorKind as OsErrorKind;
use std::path::Path;

/// An error of the ring about a disk.
pub fn of_ring(error: &RingError, disk: &str) -> ErrorDetail {
    let kind = match error.kind {
        RingErrorKind::NotFound => Kind::NotFound,
        RingErrorKind::InUse => Kind::InUse,
        RingErrorKind::Permission => Kind::PermissionDenied,
        RingErrorKind::NoSpace => Kind::NoSpace,
        RingErrorKind::Conflict => Kind::InvalidArgument,
        RingErrorKind::Unsupported => Kind::Unsupported,
        RingErrorKind::Limit => Kind::LimitReached,
        RingErrorKind::Stopped => Kind::Stopping,
        _ => Kind::DiskError,
    };
    let mut message = error.context.clone();
    if let Some(source) = &error.source {
        message.push_str(&format!(": {source}"));
    }
    ErrorDetail::new(kind, message).with("disk", disk).remedy(error.remedy.clone())
}

/// An error of a label procedure on `array`; `name_of` says how its user knows a disk.
pub fn of_lifecycle(error: &LifecycleError, array: &str, name_of: &dyn Fn(LeafId) -> Option<String>) -> ErrorDetail {
    let disk = error.leaf().and_then(name_of);
    let (kind, remedy) = verdict(error, array, disk.as_deref());
    let message = match (&disk, error) {
        (Some(disk), LifecycleError::NotEmpty { found, .. }) => format!("disk {disk} is not empty: {found}"),
        (Some(disk), error) => format!("disk {disk}: {error}"),
        (None, error) => format!("array {array}: {error}"),
    };
    let mut detail = ErrorDetail::new(kind, message).with("array", array).remedy(remedy);
    if let Some(disk) = disk {
        detail = detail.with("disk", disk);
    }
    if let LifecycleError::NotEmpty { found, .. } = error {
        detail = detail.with("found", found);
    }
    detail
}

/// An error of the operating system about a file, with what to do about the usual ones.
pub fn os_error(error: &std::io::Error, what: &str, path: &Path) -> ErrorDetail {
    let (kind, remedy) = match error.kind() {
        OsErrorKind::PermissionDenied => (
            Kind::PermissionDenied,
            "run the daemon as a user who may, or choose another place with --state or --socket",
        ),
        OsErrorKind::StorageFull | OsErrorKind::QuotaExceeded => (Kind::NoSpace, "make room on that file system"),
        OsErrorKind::ReadOnlyFilesystem => (Kind::PermissionDenied, "choose a place that can be written"),
        OsErrorKind::NotFound => (Kind::NotFound, "make its folder, or choose another place"),
        _ => (Kind::Internal, ""),
    };
    ErrorDetail::new(kind, format!("{what}: {}: {error}", path.display())).with("path", path.display()).remedy(remedy)
}

fn verdict(error: &LifecycleError, array: &str, disk: Option<&str>) -> (Kind, String) {
    match error {
        LifecycleError::Io { source, .. } => {
            let kind = match source.kind {
                ErrorKind::TimedOut => Kind::TimedOut,
                ErrorKind::NoSpace => Kind::NoSpace,
                _ => Kind::DiskError,
            };
            (kind, "look at the disk and at the kernel's log (dmesg); replace the disk if it is broken".to_owned())
        }
        LifecycleError::Size { .. }
        | LifecycleError::TooSmall { .. }
        | LifecycleError::BitmapRoom { .. }
        | LifecycleError::JournalRoom { .. } => (Kind::InvalidArgument, "use a disk of another size".to_owned()),
        LifecycleError::NoGrowth { remedy, .. } | LifecycleError::WidthUnchangeable { remedy, .. } => {
            (Kind::InvalidArgument, remedy.clone())
        }
        LifecycleError::Twice { .. } => (Kind::InvalidArgument, "name each disk once".to_owned()),
        LifecycleError::NotEmpty { .. } => (
            Kind::WouldDestroy,
            format!(
                "look at it with `braid disk examine {}`; add --force if what is on it may be destroyed",
                disk.unwrap_or("DISK")
            ),
        ),
        LifecycleError::Geometry(_) | LifecycleError::Label(_) => {
            (Kind::InvalidArgument, "`braid plan` shows what disks of given sizes can become".to_owned())
        }
        LifecycleError::NotReady { status } => not_ready(status, array),
        LifecycleError::BeyondTolerance { .. } => {
            (Kind::DiskError, "attach the disks again, then assemble the array: nothing more was written".to_owned())
        }
        LifecycleError::JournalLost => (
            Kind::Incomplete,
            format!(
                "attach the disk of the journal, then braid array assemble {array}; without it: braid array assemble {array} --force"
            ),
        ),
        LifecycleError::JournalUnreadable { .. } => (
            Kind::DiskError,
            format!(
                "try again, as a disk may read at the second time: braid array assemble {array}; then with --force"
            ),
        ),
        LifecycleError::BitmapDamaged { .. } | LifecycleError::Journal { .. } => {
            (Kind::DiskError, format!("look at its disks; then braid array assemble {array} --force"))
        }
        LifecycleError::Slot { .. } | LifecycleError::JobsFull | LifecycleError::NoReturn { .. } => {
            (Kind::InvalidArgument, format!("braid array show {array}"))
        }
        LifecycleError::NothingToCompare { .. } => (
            Kind::Incomplete,
            format!(
                "bring the missing members back, or replace them, and check when they are in sync: braid array show {array}"
            ),
        ),
        LifecycleError::NotHeld => (Kind::TimedOut, "try again".to_owned()),
        LifecycleError::Job { .. } => {
            (Kind::InvalidArgument, advice::remedy(Case::Job(JobCase::Unknown), Names::default()))
        }
        LifecycleError::Refused(_) => (Kind::InUse, String::new()),
        LifecycleError::CreateFailed { source, .. } => verdict(source, array, disk),
        _ => (Kind::Internal, String::new()),
    }
}

/// Kind and remedy of an array that does not start.
pub fn not_ready(status: &ArrayStatus, array: &str) -> (Kind, String) {
    let (kind, case) = case_of(status);
    (kind, advice::remedy(Case::Array(case), Names::of(array)))
}

fn case_of(status: &ArrayStatus) -> (Kind, ArrayCase) {
    match status {
        ArrayStatus::Ready | ArrayStatus::Degraded { .. } => (Kind::Inactive, ArrayCase::Ready),
        ArrayStatus::InterruptedDelete => (Kind::Inactive, ArrayCase::DeleteInterrupted),
        ArrayStatus::Incomplete { missing } if missing.iter().any(|missing| missing.is_journal) => {
            (Kind::Incomplete, ArrayCase::JournalMissing)
        }
        ArrayStatus::Incomplete { .. } => (Kind::Incomplete, ArrayCase::MemberMissing),
        ArrayStatus::Waiting { .. } => (Kind::Incomplete, ArrayCase::Waiting),
        ArrayStatus::InterruptedCreate => (Kind::Inactive, ArrayCase::CreateInterrupted),
        ArrayStatus::Refused { reasons } => {
            let case = if reasons.iter().any(|r| matches!(r, Refusal::SameName)) {
                ArrayCase::SameName
            } else if reasons.iter().any(|r| matches!(r, Refusal::Twins { .. })) {
                ArrayCase::Copied
            } else if reasons.iter().all(Refusal::can_be_forced) || reasons.iter().any(is_too_small) {
                ArrayCase::WrongDisk
            } else {
                ArrayCase::Refused
            };
            (Kind::Inactive, case)
        }
    }
}

fn is_too_small(reason: &Refusal) -> bool {
    matches!(reason, Refusal::WrongSize { .. })
}

/// The same for an array that was found: with the words with which it would start, where there are any.
pub fn not_started(found: &FoundArray, array: &str) -> (Kind, String) {
    let (kind, remedy) = not_ready(&found.status, array);
    if !matches!(found.status, ArrayStatus::Refused { .. }) {
        return (kind, remedy);
    }
    let words = [(true, false, "--force"), (true, true, "--force --degraded")];
    let words = words.into_iter().find(|(force, degraded, _)| found.may_start(*force, *degraded));
    let redundant = found.newest.as_ref().is_some_and(|newest| is_redundant(newest.spec.level));
    let how = if redundant { "start without the one that is here" } else { "use what is here as it is" };
    match words {
        Some((.., words)) => (kind, format!("{remedy}; or {how}: braid array assemble {array} {words}")),
        None => (kind, remedy),
    }
}
