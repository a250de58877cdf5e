//! Block devices of Braid's that no export claims: those of a state file that is gone, or of an export whose removal was cut off.

use super::Control;
use super::blocks::{MARK_BITS, end_of, is_mark, mark_of};
use braid_api::address::BLOCK_FOLDER;
use braid_api::{ErrorDetail, Kind, Orphan, OrphanList};
use braid_ublk::{Control as Driver, Device, UblkErrorKind};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

impl Control {
    /// Removes block devices, and mounts of files, that no export claims and nobody serves, or lists them.
    ///
    /// # Errors
    /// The driver refuses to say what there is.
    pub async fn remove_orphans(self: &Arc<Self>, dry_run: bool) -> Result<OrphanList, ErrorDetail> {
        self.is_open()?;
        // No export is added or removed meanwhile.
        let _one_at_a_time = self.listening.lock().await;
        let claimed: BTreeSet<u64> = self.read().exports.values().map(|entry| mark_of(entry.saved.uuid)).collect();
        let looked = tokio::task::spawn_blocking(move || look(&claimed, dry_run)).await;
        let mut orphans = looked.map_err(|error| ErrorDetail::new(Kind::Internal, error.to_string()))??;
        orphans.extend(self.remove_dead_files(dry_run).await?);
        for orphan in orphans.iter().filter(|orphan| orphan.removed) {
            let message = format!("{} was of no export, and was removed", orphan.device);
            self.events().info("orphan_removed", message, &[("path", &orphan.device)]);
        }
        Ok(OrphanList { orphans })
    }
}

fn look(claimed: &BTreeSet<u64>, dry_run: bool) -> Result<Vec<Orphan>, ErrorDetail> {
    let driver = match Driver::open() {
        // Without the driver there are no devices.
        Err(error) if error.kind == UblkErrorKind::NoDriver => return Ok(Vec::new()),
        opened => opened.map_err(super::blocks::of_ublk)?,
    };
    let all = Device::all(&driver).map_err(super::blocks::of_ublk)?;
    let orphans = all.into_iter().filter(|device| is_orphan(device.info.ublksrv_flags, claimed));
    Ok(orphans.map(|device| handle(&driver, &device, dry_run)).collect())
}

/// Whether a mark is Braid's, and of no export here.
fn is_orphan(mark: u64, claimed: &BTreeSet<u64>) -> bool {
    is_mark(mark) && !claimed.contains(&mark)
}

fn handle(driver: &Driver, device: &Device, dry_run: bool) -> Orphan {
    let path = device.path();
    let mut orphan =
        Orphan { device: path.display().to_string(), size_bytes: device.size_bytes(), removed: false, reason: None };
    // Another daemon's, with exports of its own: also one in a container, whose process is not to be seen from here.
    if let Some(pid) = device.server() {
        let here = Path::new("/proc").join(pid.to_string()).exists();
        let elsewhere = if here { "" } else { ", which is not to be seen from here; if it has just ended, try again" };
        orphan.reason = Some(format!("process {pid} serves it{elsewhere}"));
        return orphan;
    }
    if dry_run {
        return orphan;
    }
    match end_of(driver, device) {
        Ok(()) => {
            unlink_all(Path::new(BLOCK_FOLDER), &path);
            orphan.removed = true;
        }
        Err(error) => orphan.reason = Some(error.message),
    }
    orphan
}

/// Removes the stable paths of a device, and folders that are empty then.
fn unlink_all(folder: &Path, device: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                unlink_all(&path, device);
                // One that is not empty stays.
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
