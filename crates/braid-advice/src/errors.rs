//! Converts errors of the layers below to API errors: the object, the reason and the remedy.

use crate::advice::{self, ArrayCase, Case, JobCase, ObjectNames};
use braid_api::{ErrorDetail, Kind};
use braid_array_admin::lifecycle::{ArrayStatus, FoundArray, LifecycleError, Refusal, is_redundant};
use braid_engine::{ErrorKind, LeafId};
use braid_ring::{RingError, RingErrorKind};
use std::io::ErrorKind as OsErrorKind;
use std::path::Path;

/// Converts an error of `braid-ring` about the disk with the name `disk`. The message and the remedy are those of the
/// error.
pub fn ring_error(error: &RingError, disk: &str) -> ErrorDetail {
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

/// Converts an error of an operation on the labels of `array`: creation, start, deletion and so on. `name_of` returns
/// the name by which the user knows a disk.
pub fn lifecycle_error(error: &LifecycleError, array: &str, name_of: &dyn Fn(LeafId) -> Option<String>) -> ErrorDetail {
    let disk = error.leaf().and_then(name_of);
    let (kind, remedy) = classify(error, array, disk.as_deref());
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

/// Converts an error of the operating system about the file at `path`. `what` begins the message: what could not be
/// done. Common errors have a remedy.
pub fn os_error(error: &std::io::Error, what: &str, path: &Path) -> ErrorDetail {
    let (kind, remedy) = match error.kind() {
        OsErrorKind::PermissionDenied => (
            Kind::PermissionDenied,
            "run the daemon as a user with permission, or choose another path with --state or --socket",
        ),
        OsErrorKind::StorageFull | OsErrorKind::QuotaExceeded => (Kind::NoSpace, "free space on that file system"),
        OsErrorKind::ReadOnlyFilesystem => (Kind::PermissionDenied, "choose a writable path"),
        OsErrorKind::NotFound => (Kind::NotFound, "create its directory, or choose another path"),
        _ => (Kind::Internal, ""),
    };
    ErrorDetail::new(kind, format!("{what}: {}: {error}", path.display())).with("path", path.display()).remedy(remedy)
}

/// Returns the kind and the remedy of an error of an operation on labels.
fn classify(error: &LifecycleError, array: &str, disk: Option<&str>) -> (Kind, String) {
    match error {
        LifecycleError::Io { source, .. } => {
            let kind = match source.kind {
                ErrorKind::TimedOut => Kind::TimedOut,
                ErrorKind::NoSpace => Kind::NoSpace,
                _ => Kind::DiskError,
            };
            (kind, "check the disk and the kernel log (dmesg); replace the disk if it is faulty".to_owned())
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
                "look at it with `braid disk examine {}`; add --force if its content may be destroyed",
                disk.unwrap_or("DISK")
            ),
        ),
        LifecycleError::Geometry(_) | LifecycleError::Label(_) => {
            (Kind::InvalidArgument, "`braid plan` shows the possible arrays of disks of given sizes".to_owned())
        }
        LifecycleError::NotReady { status } => not_ready(status, array),
        LifecycleError::BeyondTolerance { .. } => {
            (Kind::DiskError, "reattach the disks, then assemble the array: no further data was written".to_owned())
        }
        LifecycleError::JournalLost => (
            Kind::Incomplete,
            format!(
                "attach the disk of the journal, then braid array assemble {array}; without it: braid array assemble {array} --force"
            ),
        ),
        LifecycleError::JournalUnreadable { .. } => (
            Kind::DiskError,
            format!("try again, because a second read may succeed: braid array assemble {array}; then with --force"),
        ),
        LifecycleError::BitmapDamaged { .. } | LifecycleError::Journal { .. } => {
            (Kind::DiskError, format!("check its disks; then braid array assemble {array} --force"))
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
            (Kind::InvalidArgument, advice::remedy(Case::Job(JobCase::Unknown), ObjectNames::default()))
        }
        LifecycleError::Refused(_) => (Kind::InUse, String::new()),
        LifecycleError::CreateFailed { source, .. } => classify(source, array, disk),
        _ => (Kind::Internal, String::new()),
    }
}

/// Returns the error kind and the remedy for an array that does not start.
pub fn not_ready(status: &ArrayStatus, array: &str) -> (Kind, String) {
    let (kind, case) = case_of(status);
    (kind, advice::remedy(Case::Array(case), ObjectNames::of(array)))
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
                ArrayCase::DuplicateDisk
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

/// Returns the same as [`not_ready`] for an array that was found. For a refused array the remedy includes the options with which it would
/// start, if there are any.
pub fn not_started(found: &FoundArray, array: &str) -> (Kind, String) {
    let (kind, remedy) = not_ready(&found.status, array);
    if !matches!(found.status, ArrayStatus::Refused { .. }) {
        return (kind, remedy);
    }
    let options = [(true, false, "--force"), (true, true, "--force --degraded")];
    let options = options.into_iter().find(|(force, degraded, _)| found.may_start(*force, *degraded));
    let redundant = found.newest.as_ref().is_some_and(|newest| is_redundant(newest.spec.level));
    let how = if redundant { "start without the present disk" } else { "use the present disks as they are" };
    match options {
        Some((.., options)) => (kind, format!("{remedy}; or {how}: braid array assemble {array} {options}")),
        None => (kind, remedy),
    }
}
