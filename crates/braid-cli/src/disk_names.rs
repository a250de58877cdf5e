//! Names of disks as they are sent to the daemon, which has another working folder.

use super::reach::Reach;
use braid_api::names::VolumeName;
use braid_api::{ErrorDetail, Kind};
use braid_ring::DiskSpec;
use std::path::{Path, PathBuf};

/// Reads a disk's name and makes the path in it absolute, for a daemon on this machine.
///
/// # Errors
/// [`Kind::InvalidArgument`] naming what is wrong with it, and a right one.
pub fn absolute(name: &str) -> Result<DiskSpec, ErrorDetail> {
    read(name, &|_| Ok(()))
}

/// The same for the daemon that is reached this way.
///
/// # Errors
/// The same; a relative path for a daemon on another machine.
pub fn absolute_for(reach: &Reach, name: &str) -> Result<DiskSpec, ErrorDetail> {
    read(name, &|path| reach.refuse_relative(path))
}

fn read(name: &str, refuse: &dyn Fn(&Path) -> Result<(), ErrorDetail>) -> Result<DiskSpec, ErrorDetail> {
    let volume = VolumeName::parse(name).filter(|volume| volume.snapshot.is_none());
    if volume.is_some() && !Path::new(name).exists() {
        // A file of that name is meant where there is one, or with ./ before it.
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

/// The same disk with its path, however deep, put through `change`.
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
    fn paths_become_absolute_however_deep() {
        let here = std::env::current_dir().expect("tests run in a folder");
        let name = absolute("throttled(file:a.img,size=1G,iops=3000)").expect("a right name").to_string();
        assert_eq!(name, format!("throttled(file:{}/a.img,size=1G,iops=3000)", here.display()));
        assert_eq!(absolute("mem:1G").expect("a right name").to_string(), "mem:1G");
        assert_eq!(absolute("tank/db").expect("a volume").to_string(), "volume:tank/db");
        assert_eq!(
            absolute("src/lib.rs").expect("there is such a file").to_string(),
            format!("{}/src/lib.rs", here.display())
        );
        assert_eq!(absolute("/dev/sdb").expect("a right name").to_string(), "/dev/sdb");
    }

    #[test]
    fn a_wrong_name_is_a_usage_error() {
        let error = absolute("mem:").expect_err("no size");
        assert_eq!(error.kind.exit_status(), 2);
    }
}
