//! Errors of operations on pools, volumes and snapshots, as their users see them.

use braid_advice::{self as advice, Case, ObjectNames, PoolVolumeCase};
use braid_api::limits::VOLUMES_MAX;
use braid_api::{ErrorDetail, Kind};
use braid_engine::PoolNext;
use braid_engine::pool::AdminError;
use braid_format::pool::OwnerKind;
use braid_inventory::PoolHandle;

/// Why an operation on a pool's volumes failed.
pub(crate) enum VolumeError {
    /// The pool has refused it.
    Admin(AdminError),
    /// The pool has the maximum number of volumes.
    TooMany,
}

impl VolumeError {
    /// Converts it for the user. `what`: the volume or snapshot.
    pub(crate) fn into_detail(self, pool: &PoolHandle, what: &str) -> ErrorDetail {
        match self {
            VolumeError::Admin(error) => of_admin(error, pool, what),
            VolumeError::TooMany => {
                let message = format!("there are {VOLUMES_MAX} volumes in pool {} already", pool.name);
                ErrorDetail::new(Kind::LimitReached, message).with("pool", &pool.name).remedy("delete one first")
            }
        }
    }
}

/// Decides when the reply to a change of volumes is due: after the commit, or at once, or after another attempt.
pub(crate) fn reply_when_durable<T>(result: Result<T, VolumeError>) -> (PoolNext, Result<T, VolumeError>) {
    match result {
        Err(VolumeError::Admin(AdminError::LogFull)) => (PoolNext::AfterCommit, result),
        Err(_) => (PoolNext::Done, result),
        Ok(_) => (PoolNext::Commit, result),
    }
}

/// Converts a refusal of the pool for the user. `what`: the object of the operation.
pub(crate) fn of_admin(error: AdminError, pool: &PoolHandle, what: &str) -> ErrorDetail {
    let (deleted, exported) =
        (volume_advice(PoolVolumeCase::Deleted, what), volume_advice(PoolVolumeCase::Exported, what));
    let (kind, remedy) = match error {
        AdminError::NoSuch => (Kind::NotFound, deleted.as_str()),
        AdminError::NoOwnerSlot | AdminError::NoNumber => (Kind::LimitReached, "delete volumes or snapshots first"),
        AdminError::DataBeyond => (Kind::WouldDestroy, "add --force: what lies beyond is lost"),
        AdminError::TooManyAtOnce => {
            (Kind::LimitReached, "take fewer with one command: the journals of a pool of small members hold no more")
        }
        AdminError::NoSpace => (
            Kind::NoSpace,
            "add a member (braid pool add), delete volumes or snapshots, discard (fstrim), or make it without --thick",
        ),
        AdminError::InUse => (Kind::InUse, exported.as_str()),
        AdminError::NameTaken => (Kind::Exists, "choose another name, or rename that one first"),
        AdminError::HasSnapshots => return has_snapshots(what),
        AdminError::IsSnapshot => (Kind::InvalidArgument, "name a volume: POOL/VOLUME"),
        AdminError::NoSnapshot => (Kind::InvalidArgument, "name a snapshot: POOL/VOLUME@SNAPSHOT"),
        AdminError::InDoubt => (
            Kind::Incomplete,
            "attach the missing member (braid pool show), and restart the daemon; or give it up (braid pool remove --force), and what it had (braid pool check --give-up)",
        ),
        AdminError::Damaged => (
            Kind::Damaged,
            "look at what is damaged: braid pool check; what was only misread is there again when the daemon is started anew, the rest can be given up: braid pool check --give-up",
        ),
        AdminError::LogFull => (Kind::Internal, "try again"),
    };
    ErrorDetail::new(kind, format!("{what}: {error}")).with("pool", &pool.name).with("name", what).remedy(remedy)
}

/// Returns the error that a request about a pool is not valid.
pub(crate) fn invalid(pool: &str, what: String) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, what).with("pool", pool)
}

/// Returns the error that no volume or snapshot has a name.
pub(crate) fn not_found(text: &str, kind: OwnerKind) -> ErrorDetail {
    let word = word(kind);
    ErrorDetail::new(Kind::NotFound, format!("there is no {word} {text}"))
        .with(word, text)
        .remedy(format!("`braid {word} list` shows those there are"))
}

/// Returns the error that a text cannot name a volume or snapshot.
pub(crate) fn invalid_name(text: &str, kind: OwnerKind) -> ErrorDetail {
    let (word, right) = match kind {
        OwnerKind::Snapshot => ("snapshot", "POOL/VOLUME@SNAPSHOT, for example tank/db@monday"),
        _ => ("volume", "POOL/VOLUME, for example tank/db"),
    };
    ErrorDetail::new(Kind::InvalidArgument, format!("{text:?} is no name of a {word}"))
        .with(word, text)
        .remedy(format!("write {right}"))
}

/// Returns the error that replicated volumes do not support an operation.
pub(crate) fn unsupported_on_replicated(volume: &str) -> ErrorDetail {
    let message = format!("volume {volume} is replicated, and replicated volumes do not support this");
    ErrorDetail::new(Kind::Unsupported, message).with("volume", volume).remedy(
        "docs/guide/replication.md says what can; for another size make a volume that has it, and copy the data",
    )
}

/// Returns the error that a volume cannot be deleted as it has snapshots.
pub(crate) fn has_snapshots(volume: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::InUse, format!("volume {volume} has snapshots"))
        .with("volume", volume)
        .remedy(volume_advice(PoolVolumeCase::HasSnapshots, volume))
}

fn volume_advice(case: PoolVolumeCase, volume: &str) -> String {
    advice::remedy(Case::PoolVolume(case), ObjectNames::of(volume))
}

fn word(kind: OwnerKind) -> &'static str {
    if kind == OwnerKind::Snapshot { "snapshot" } else { "volume" }
}
