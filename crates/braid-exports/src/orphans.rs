//! Block devices of Braid that no export claims: left by a state file that is gone, or by an export whose removal was
//! interrupted.

use crate::ExportManager;
use crate::blocks::{MARK_BITS, is_mark, mark_of, of_ublk, remove_device};
use braid_api::address::BLOCK_FOLDER;
use braid_api::{ErrorDetail, Kind, Orphan, OrphanList};
use braid_tasks as tasks;
use braid_ublk::{Control as Driver, Device, UblkErrorKind};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

impl ExportManager {
    /// Removes block devices and mounts of files that no export claims and no daemon serves, or lists them.
    ///
    /// # Errors
    /// The driver, or the mount table, cannot be queried.
    pub async fn remove_orphans(self: &Arc<Self>, dry_run: bool) -> Result<OrphanList, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        // The lock keeps exports from being added or removed meanwhile.
        let _one_at_a_time = self.listening_lock.lock().await;
        let claimed: BTreeSet<u64> =
            self.inventory.read().exports.values().map(|entry| mark_of(entry.saved.uuid)).collect();
        let found = tasks::blocking(move || find_orphans(&claimed, dry_run)).await;
        let mut orphans = found.map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))??;
        orphans.extend(self.remove_dead_files(dry_run).await?);
        for orphan in orphans.iter().filter(|orphan| orphan.removed) {
            let message = format!("{} belonged to no export; it was removed", orphan.device);
            self.inventory.events().info("orphan_removed", message, &[("path", &orphan.device)]);
        }
        Ok(OrphanList { orphans })
    }
}

fn find_orphans(claimed: &BTreeSet<u64>, dry_run: bool) -> Result<Vec<Orphan>, ErrorDetail> {
    let driver = match Driver::open() {
        // Without the driver there are no devices.
        Err(error) if error.kind == UblkErrorKind::NoDriver => return Ok(Vec::new()),
        opened => opened.map_err(of_ublk)?,
    };
    let all = Device::all(&driver).map_err(of_ublk)?;
    let orphans = all.into_iter().filter(|device| is_orphan(device.info.ublksrv_flags, claimed));
    Ok(orphans.map(|device| remove_orphan(&driver, &device, dry_run)).collect())
}

/// Returns whether a mark belongs to a device of Braid, but to no export of this daemon.
fn is_orphan(mark: u64, claimed: &BTreeSet<u64>) -> bool {
    is_mark(mark) && !claimed.contains(&mark)
}

fn remove_orphan(driver: &Driver, device: &Device, dry_run: bool) -> Orphan {
    let path = device.path();
    let mut orphan =
        Orphan { device: path.display().to_string(), size_bytes: device.size_bytes(), removed: false, reason: None };
    // A process serves the device: another daemon, with exports of its own. If it runs in a container, this daemon may
    // not see the process.
    if let Some(pid) = device.server() {
        let is_visible = Path::new("/proc").join(pid.to_string()).exists();
        let elsewhere =
            if is_visible { "" } else { ", which is not visible from here; if it has just ended, try again" };
        orphan.reason = Some(format!("process {pid} serves it{elsewhere}"));
        return orphan;
    }
    if dry_run {
        return orphan;
    }
    match remove_device(driver, device) {
        Ok(()) => {
            unlink_all(Path::new(BLOCK_FOLDER), &path);
            orphan.removed = true;
        }
        Err(error) => orphan.reason = Some(error.message),
    }
    orphan
}

/// Removes the stable paths of a device, and folders that become empty.
fn unlink_all(folder: &Path, device: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                unlink_all(&path, device);
                // A folder that is not empty stays.
                let _ = std::fs::remove_dir(&path);
            }
            Ok(kind) if kind.is_symlink() && std::fs::read_link(&path).is_ok_and(|to| to == device) => {
                let _ = std::fs::remove_file(&path);
            }
            _ => {}
        }
    }
}

const _: () = assert!(MARK_BITS < 64);

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn marks_of_others_are_left_alone() {
        let (ours, gone) = (mark_of(Uuid::from_u128(1)), mark_of(Uuid::from_u128(2)));
        let claimed = BTreeSet::from([ours]);
        assert!(is_orphan(gone, &claimed));
        assert!(!is_orphan(ours, &claimed));
        assert!(!is_orphan(0, &claimed) && !is_orphan(7, &claimed), "another program's device");
    }

    #[test]
    fn links_of_a_device_go_with_it() {
        let folder = std::env::temp_dir().join(format!("braid-orphans-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("tank")).expect("a folder can be made");
        for (name, device) in [("tank/db", "/dev/ublkb7"), ("other", "/dev/ublkb8")] {
            std::os::unix::fs::symlink(device, folder.join(name)).expect("a link can be made");
        }
        unlink_all(&folder, Path::new("/dev/ublkb7"));
        assert!(!folder.join("tank").exists() && folder.join("other").is_symlink());
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
