//! Names of disks in requests and records: parsed, and in the form of existing disks.

use braid_api::{ErrorDetail, Kind};
use braid_ring::DiskSpec;

/// Parses a disk name of the API, whose path has to be absolute.
///
/// # Errors
/// `Kind::InvalidArgument`: it is no name of a disk, or its path is not absolute.
pub fn read_disk(name: &str) -> Result<DiskSpec, ErrorDetail> {
    let invalid = |what: String| ErrorDetail::new(Kind::InvalidArgument, what).with("disk", name);
    let spec = DiskSpec::parse(name).map_err(|error| invalid(error.to_string()))?;
    match spec.path() {
        Some(path) if !path.is_absolute() => {
            Err(invalid(format!("disk {name}: the path {} is not absolute", path.display()))
                .remedy("the daemon has another working folder than you; write the path from the root"))
        }
        _ => Ok(spec),
    }
}

/// Returns the same disk without a size, so that it has to exist: a name with a size would create an absent file, an
/// empty disk in place of a missing one. Existing disks are named in this form.
pub(crate) fn without_size(spec: DiskSpec) -> DiskSpec {
    match spec {
        DiskSpec::File { path, .. } => DiskSpec::Path(path),
        DiskSpec::Throttled { disk, limits } => DiskSpec::Throttled { disk: Box::new(without_size(*disk)), limits },
        DiskSpec::Faulty { disk, rules } => DiskSpec::Faulty { disk: Box::new(without_size(*disk)), rules },
        other => other,
    }
}
