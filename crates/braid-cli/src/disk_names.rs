//! Converts disk names into the form that is sent to the daemon, whose working folder differs.

use super::endpoint::EndpointArgs;
use braid_api::names::VolumeName;
use braid_api::{ErrorDetail, Kind};
use braid_ring::DiskSpec;
use std::path::{Path, PathBuf};

/// Parses a disk name and makes its path absolute, for a daemon on this machine.
///
/// # Errors
/// [`Kind::InvalidArgument`] with the reason and an example.
pub fn absolute(name: &str) -> Result<DiskSpec, ErrorDetail> {
    parse_absolute(name, &|_| Ok(()))
}

/// Parses a disk name and makes its path absolute, for the daemon at this endpoint.
///
/// # Errors
/// See [`absolute`]; also if the path is relative and the daemon is on another machine.
pub fn absolute_for(endpoint: &EndpointArgs, name: &str) -> Result<DiskSpec, ErrorDetail> {
    parse_absolute(name, &|path| endpoint.refuse_relative(path))
}

fn parse_absolute(name: &str, refuse: &dyn Fn(&Path) -> Result<(), ErrorDetail>) -> Result<DiskSpec, ErrorDetail> {
    let volume = VolumeName::parse(name).filter(|volume| volume.snapshot.is_none());
    if volume.is_some() && !Path::new(name).exists() {
        // If a file of that name exists, the name means the file, as does a name that begins with ./.
        return Ok(DiskSpec::Volume { name: name.to_owned() });
    }
    let spec = DiskSpec::parse(name)
        .map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()).with("disk", name))?;
    with_path(spec, &|path| {
        refuse(&path)?;
        std::path::absolute(&path).map_err(|error| {
            ErrorDetail::new(
                Kind::InvalidArgument,
                format!("the path {} has no absolute form: {error}", path.display()),
            )
        })
    })
}

/// Returns the disk with its path, at any nesting depth, replaced by `change` of it.
fn with_path(
    spec: DiskSpec,
    change: &dyn Fn(PathBuf) -> Result<PathBuf, ErrorDetail>,
) -> Result<DiskSpec, ErrorDetail> {
    Ok(match spec {
        DiskSpec::Path(path) => DiskSpec::Path(change(path)?),
        DiskSpec::File { path, size_bytes, alloc } => DiskSpec::File { path: change(path)?, size_bytes, alloc },
        DiskSpec::Throttled { disk, limits } => {
            DiskSpec::Throttled { disk: Box::new(with_path(*disk, change)?), limits }
        }
        DiskSpec::Faulty { disk, rules } => DiskSpec::Faulty { disk: Box::new(with_path(*disk, change)?), rules },
        other @ (DiskSpec::Mem { .. } | DiskSpec::Null { .. } | DiskSpec::Volume { .. } | DiskSpec::Remote { .. }) => {
            other
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute_at_any_depth() {
        let folder = std::env::current_dir().expect("tests run in a folder");
        let name = absolute("throttled(file:a.img,size=1G,iops=3000)").expect("a valid name").to_string();
        assert_eq!(name, format!("throttled(file:{}/a.img,size=1G,iops=3000)", folder.display()));
        assert_eq!(absolute("mem:1G").expect("a valid name").to_string(), "mem:1G");
        assert_eq!(absolute("tank/db").expect("a volume").to_string(), "volume:tank/db");
        assert_eq!(
            absolute("src/lib.rs").expect("there is such a file").to_string(),
            format!("{}/src/lib.rs", folder.display())
        );
        assert_eq!(absolute("/dev/sdb").expect("a valid name").to_string(), "/dev/sdb");
    }

    #[test]
    fn a_wrong_name_is_a_usage_error() {
        let error = absolute("mem:").expect_err("no size");
        assert_eq!(error.kind.exit_status(), 2);
    }
}
