//! The table of mounted files, and the names under which the service manager keeps their channels.

use braid_fuse::{FuseFile, Look};
use braid_ring::kept::InheritedFds;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// Prefix of the names under which the service manager keeps channels. Its number must be raised when the parameters
/// that Braid negotiates for a FUSE connection change: a daemon takes over only channels with its own prefix.
const KEPT: &str = "braid-fuse-1";

/// All mounts of a daemon, by export.
#[derive(Default)]
pub(crate) struct Files {
    mounts: Mutex<BTreeMap<Uuid, Mounted>>,
    /// Channels that an earlier daemon has left with the service manager, by name.
    kept: Mutex<InheritedFds>,
}

/// The mount of the file of one export.
pub(crate) struct Mounted {
    /// Where it is mounted.
    pub(crate) path: PathBuf,
    /// The attributes of the empty file below the mount, which the mounted file shows.
    pub(crate) look: Look,
    /// The channels to the kernel, one for each shard.
    pub(crate) channels: Vec<OwnedFd>,
    /// The file that the shards serve, or served last.
    pub(crate) file: Option<Arc<FuseFile>>,
    /// The mount outlives the daemon: the service manager keeps its channels, and the kernel resends to the next daemon
    /// the requests that got no reply.
    pub(crate) outlives: bool,
    /// Another program has unmounted it.
    pub(crate) unmounted: bool,
}

impl Files {
    /// Creates the table with the channels that an earlier daemon has left.
    pub(crate) fn new(kept: InheritedFds) -> Files {
        Files { kept: Mutex::new(kept), ..Files::default() }
    }

    /// Locks the mounts.
    pub(crate) fn mounts(&self) -> MutexGuard<'_, BTreeMap<Uuid, Mounted>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the kept channels of this export.
    pub(crate) fn take_kept(&self, export: Uuid) -> Option<(Look, Vec<OwnedFd>)> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let name = kept.keys().find(|name| parse_kept_name(name, export).is_some())?.clone();
        Some((parse_kept_name(&name, export)?, kept.remove(&name)?))
    }
}

/// Splits the inherited descriptors into the channels of files, which [`ExportManager::new`](crate::ExportManager::new)
/// takes, and the others.
pub fn split_inherited(kept: InheritedFds) -> (InheritedFds, InheritedFds) {
    kept.into_iter().partition(|(name, _)| name.starts_with(KEPT))
}

/// Returns the source of an export's mount, as it appears in the mount table.
pub(crate) fn source_of(export: Uuid) -> String {
    format!("braid:{export}")
}

/// Returns the name under which the service manager keeps the channels of an export's file. The name contains the
/// attributes of the file below the mount, because the next daemon cannot read them through the mount.
pub(crate) fn kept_name(export: Uuid, look: &Look) -> String {
    format!("{KEPT}-{}-{:o}-{}-{}-{}", export.simple(), look.mode, look.uid, look.gid, look.time_s)
}

/// Returns the attributes in a name of [`kept_name`]; none if it is not a name of this export.
fn parse_kept_name(name: &str, export: Uuid) -> Option<Look> {
    let rest = name.strip_prefix(&format!("{KEPT}-{}-", export.simple()))?;
    let mut parts = rest.split('-');
    let mode = u32::from_str_radix(parts.next()?, 8).ok()?;
    let (uid, gid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(Look { mode, uid, gid, time_s: parts.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_names_hold_the_attributes_of_the_file() {
        let (export, look) = (Uuid::from_u128(7), Look { mode: 0o640, uid: 3, gid: 4, time_s: 5 });
        let name = kept_name(export, &look);
        assert!(name.len() < 255 && !name.contains(':'));
        assert_eq!(parse_kept_name(&name, export), Some(look));
        assert_eq!(parse_kept_name(&name, Uuid::from_u128(8)), None);
        assert_eq!(parse_kept_name("braid-fuse-1", export), None);
    }
}
