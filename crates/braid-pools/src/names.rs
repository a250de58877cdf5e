//! Names of volumes and snapshots within a pool: looked up, validated, and reserved for those that no user makes.
//!
//! Hidden are replica metadata volumes, which are named after the data volume that they belong to, and pending
//! snapshots (`replica_snapshots`). Both appear in no list.

use braid_api::names::{check_name, policy_time};
use braid_api::{ErrorDetail, Kind};
use braid_engine::pool::PoolTables;
use braid_format::pool::{Owner, OwnerKind, OwnerName};
use uuid::Uuid;

/// Suffix of the name of a pending snapshot, after its identity.
const PENDING_SUFFIX: &str = ".pending";

/// Suffix of the name of a replica metadata volume, after the identity of the replica's data. Existing pools have such
/// names: the suffix must not change.
const METADATA_SUFFIX: &str = ".companion";

/// Returns a volume or snapshot by its identity.
pub(crate) fn find(state: &PoolTables, uuid: Uuid, kind: OwnerKind) -> Option<&Owner> {
    state.owners.iter().find(|owner| owner.uuid == uuid && owner.kind == kind)
}

/// Returns a visible volume, or a visible snapshot of it, each by its name or identity.
pub(crate) fn find_named<'a>(state: &'a PoolTables, volume: &str, snapshot: Option<&str>) -> Option<&'a Owner> {
    let named =
        |owner: &&Owner, text: &str| owner.name.as_str() == text || owner.uuid.to_string() == text.to_lowercase();
    let is = |owner: &&Owner, text: &str| {
        named(owner, text) && !is_replica_metadata(owner.name.as_str()) && !is_pending(owner)
    };
    let volume = state.owners.iter().find(|owner| owner.kind == OwnerKind::Volume && is(owner, volume))?;
    let Some(snapshot) = snapshot else { return Some(volume) };
    let of = |owner: &&Owner| owner.kind == OwnerKind::Snapshot && owner.volume == volume.uuid;
    state.owners.iter().filter(of).find(|owner| is(owner, snapshot))
}

/// Returns the name of a volume or snapshot within its pool: `db`, `db@monday`.
pub(crate) fn name_in_pool(state: &PoolTables, owner: &Owner) -> String {
    match owner.kind {
        OwnerKind::Snapshot => {
            let volume = find(state, owner.volume, OwnerKind::Volume).map_or("", |volume| volume.name.as_str());
            format!("{volume}@{}", owner.name)
        }
        _ => owner.name.to_string(),
    }
}

/// Validates a name of a volume or snapshot.
pub(crate) fn checked(name: &str) -> Result<OwnerName, ErrorDetail> {
    let refused = |why: String| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{name:?} cannot be a name: {why}")).with("name", name)
    };
    check_name(name).map_err(|error| refused(error.to_string()))?;
    OwnerName::new(name).ok_or_else(|| refused("it breaks a rule of names".to_owned()))
}

/// Returns true if a snapshot was taken by a controller: its identity is a UUID of version 8, which no other component
/// assigns.
pub fn is_controller_snapshot(snapshot: Uuid) -> bool {
    snapshot.get_version_num() == 8
}

/// Validates a name that a controller gives to a snapshot.
///
/// # Errors
/// [`Kind::InvalidArgument`]: it is no name, or is reserved for scheduled or pending snapshots.
pub fn check_controller_snapshot_name(name: &str) -> Result<OwnerName, ErrorDetail> {
    refuse_scheduled_name(name)?;
    refuse_pending_name(name)?;
    checked(name)
}

/// Returns true if this is a pending snapshot, which is hidden from users.
pub(crate) fn is_pending(owner: &Owner) -> bool {
    owner.kind == OwnerKind::Snapshot && is_pending_name(owner.name.as_str())
}

fn is_pending_name(name: &str) -> bool {
    name.strip_suffix(PENDING_SUFFIX).is_some_and(braid_api::names::is_uuid)
}

/// Returns the name of a pending snapshot.
pub(crate) fn pending_name(snapshot: Uuid) -> Result<OwnerName, ErrorDetail> {
    checked(&format!("{snapshot}{PENDING_SUFFIX}"))
}

/// Refuses names that are reserved for pending snapshots.
pub(crate) fn refuse_pending_name(name: &str) -> Result<(), ErrorDetail> {
    if !is_pending_name(name) {
        return Ok(());
    }
    let message = format!("{name} is reserved for snapshots that are being taken");
    Err(ErrorDetail::new(Kind::InvalidArgument, message).with("name", name).remedy("choose another name"))
}

/// Refuses names that are reserved for scheduled snapshots: the schedule would delete such a snapshot.
pub(crate) fn refuse_scheduled_name(own: &str) -> Result<(), ErrorDetail> {
    if policy_time(own).is_none() {
        return Ok(());
    }
    let message = format!("{own} is reserved for scheduled snapshots, which their policy deletes");
    Err(ErrorDetail::new(Kind::InvalidArgument, message).with("name", own).remedy("choose another name"))
}

/// Returns the name of the metadata volume of the replica with these data.
pub(crate) fn replica_metadata_name(data: Uuid) -> String {
    format!("{data}{METADATA_SUFFIX}")
}

/// Returns true if this is the name of a replica metadata volume.
pub(crate) fn is_replica_metadata(name: &str) -> bool {
    name.strip_suffix(METADATA_SUFFIX).is_some_and(braid_api::names::is_uuid)
}

/// Returns the identity of the data that the metadata volume of this name belongs to.
pub(crate) fn data_of_replica_metadata(name: &str) -> Option<Uuid> {
    Uuid::try_parse(name.strip_suffix(METADATA_SUFFIX).filter(|data| braid_api::names::is_uuid(data))?).ok()
}

/// Refuses names that are reserved for replica metadata volumes.
pub(crate) fn refuse_replica_metadata_name(name: &str) -> Result<(), ErrorDetail> {
    if !is_replica_metadata(name) {
        return Ok(());
    }
    let message = format!("{name} is reserved for the metadata volumes of replicas");
    Err(ErrorDetail::new(Kind::InvalidArgument, message).with("name", name).remedy("choose another name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_and_controller_snapshots_are_recognised() {
        let of_user = Uuid::try_parse("123e4567-e89b-42d3-a456-426614174000").expect("it is one");
        let of_all = Uuid::try_parse("123e4567-e89b-82d3-a456-426614174000").expect("it is one");
        assert!(!is_controller_snapshot(of_user) && is_controller_snapshot(of_all));
        let name = pending_name(of_all).expect("it may be a name");
        assert!(is_pending_name(name.as_str()) && refuse_pending_name(name.as_str()).is_err());
        for other in ["monday", "monday.pending", ".pending", "123e4567-e89b-82d3-a456-426614174000"] {
            assert!(!is_pending_name(other) && refuse_pending_name(other).is_ok(), "{other}");
        }
        assert!(
            check_controller_snapshot_name("auto-20261122T140000Z").is_err()
                && check_controller_snapshot_name("a b").is_err()
        );
        assert!(check_controller_snapshot_name("monday").is_ok());
    }

    #[test]
    fn a_replica_metadata_volume_is_recognised_by_its_name() {
        let name = replica_metadata_name(Uuid::from_u128(7));
        assert!(is_replica_metadata(&name) && checked(&name).is_ok(), "{name}");
        for other in ["db", "db.companion", ".companion", "00000000-0000-0000-0000-000000000007"] {
            assert!(!is_replica_metadata(other) && refuse_replica_metadata_name(other).is_ok(), "{other}");
        }
        assert!(refuse_replica_metadata_name(&name).is_err());
    }
}
