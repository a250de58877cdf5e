//! Names of arrays and paths of disks that are claimed while a command creates an array or adds disks to one.

use crate::ArrayManager;
use braid_api::limits::ARRAYS_MAX;
use braid_api::{ErrorDetail, Kind, names};
use braid_ring::DiskSpec;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl ArrayManager {
    /// Claims the paths of disks for one create, refuses disks in use, and returns the paths that do not exist yet:
    /// files that the create makes there are removed if it fails. Blocks on file I/O.
    ///
    /// # Errors
    /// [`Kind::InUse`]: another command has claimed a path, or a disk is in use.
    pub fn check_paths(self: &Arc<Self>, specs: &[DiskSpec]) -> Result<(PathClaim, Vec<PathBuf>), ErrorDetail> {
        let claim = self.claim_paths(specs)?;
        self.refuse_disks_in_use(specs)?;
        let paths = specs.iter().filter_map(DiskSpec::path);
        let absent = paths.filter(|path| std::fs::symlink_metadata(path).is_err()).map(Path::to_owned);
        Ok((claim, absent.collect()))
    }

    /// Claims the paths of disks that are about to become members. Without the claim, of two creates that make the same
    /// new file, the one that fails would remove the file of the other.
    fn claim_paths(self: &Arc<Self>, specs: &[DiskSpec]) -> Result<PathClaim, ErrorDetail> {
        let resolved = |path: &Path| {
            let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
            let absent = || Some(parent?.join(path.file_name()?));
            path.canonicalize().ok().or_else(absent).unwrap_or_else(|| path.to_owned())
        };
        let paths: BTreeSet<PathBuf> = specs.iter().filter_map(DiskSpec::path).map(resolved).collect();
        let mut tables = self.inventory.write();
        if let Some(path) = paths.iter().find(|path| tables.claimed_paths.contains(*path)) {
            let message = format!("disk {} is being made a member of another array or pool", path.display());
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("disk", path.display())
                .remedy("each member needs a disk of its own"));
        }
        tables.claimed_paths.extend(paths.iter().cloned());
        Ok(PathClaim { manager: Arc::clone(self), paths })
    }

    /// Claims a name for a new array.
    ///
    /// # Errors
    /// The name is invalid or taken, or there are too many arrays.
    pub fn claim_name(&self, name: &str) -> Result<NameClaim<'_>, ErrorDetail> {
        check_name(name)?;
        let mut tables = self.inventory.write();
        tables.refuse_taken_name(name)?;
        if tables.arrays.len() + tables.claimed_names.len() >= ARRAYS_MAX {
            return Err(ErrorDetail::new(Kind::LimitReached, format!("there are {ARRAYS_MAX} arrays already"))
                .remedy("delete one first"));
        }
        tables.claimed_names.insert(name.to_owned());
        Ok(NameClaim { manager: self, name: name.to_owned() })
    }
}

/// A name that is claimed until this is dropped.
pub struct NameClaim<'a> {
    manager: &'a ArrayManager,
    name: String,
}

impl Drop for NameClaim<'_> {
    fn drop(&mut self) {
        self.manager.inventory.write().claimed_names.remove(&self.name);
    }
}

/// Paths of disks that are claimed until this is dropped.
pub struct PathClaim {
    manager: Arc<ArrayManager>,
    paths: BTreeSet<PathBuf>,
}

impl Drop for PathClaim {
    fn drop(&mut self) {
        self.manager.inventory.write().claimed_paths.retain(|path| !self.paths.contains(path));
    }
}

/// Refuses an invalid name of an array, pool or volume.
///
/// # Errors
/// [`Kind::InvalidArgument`].
pub fn check_name(name: &str) -> Result<(), ErrorDetail> {
    names::check_name(name).map_err(|error| {
        ErrorDetail::new(Kind::InvalidArgument, format!("{name:?} cannot be a name: {error}")).with("name", name)
    })
}
