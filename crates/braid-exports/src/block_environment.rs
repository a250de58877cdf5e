//! The environment of block devices: the features of the ublk driver, and file systems on these devices that are
//! mounted in a mount namespace which only the daemon has.
//!
//! Such a mount may end with the daemon's last process. The kernel then writes back the file system, and waits for the
//! daemon that is ending: a deadlock.

use crate::ExportManager;
use braid_host::mounts::{self, Mount};
use braid_tasks as tasks;
use braid_ublk::Control as Driver;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The initial PID namespace, as `/proc/self/ns/pid` links to it: the kernel gives it a fixed inode number.
const MACHINE: &str = "pid:[4026531836]";

impl ExportManager {
    /// Records the features of the driver, and emits the event `export_shares_mounts` for each file system on a block
    /// device of Braid that is mounted in a mount namespace of the daemon alone. Called once, at the start, after the
    /// exports were restored.
    pub async fn check_block_environment(self: Arc<Self>) {
        let manager = Arc::clone(&self);
        let mounts_on_devices = tasks::blocking(move || {
            if let Ok(driver) = Driver::open() {
                manager.blocks.note_features(&driver);
            }
            let devices = manager.blocks.devices();
            if devices.is_empty() || !has_own_mounts() {
                return Vec::new();
            }
            mounts::all().map(|mounts| on_devices(&mounts, &devices)).unwrap_or_default()
        });
        for Mount { mount_point: folder, source, .. } in mounts_on_devices.await.unwrap_or_default() {
            let message = format!(
                "{} is mounted at {} among the daemon's own mounts, which may end with it: the kernel would wait for the daemon, and the \
                 daemon for the kernel. Mount it outside of the daemon's container",
                source.display(),
                folder.display()
            );
            self.inventory.events().warning(
                "export_shares_mounts",
                message,
                &[("path", &folder.display().to_string())],
            );
        }
    }
}

/// Returns whether the daemon's mount namespace may differ from the machine's. Then the daemon may be its only user.
fn has_own_mounts() -> bool {
    let space = |name: &str| std::fs::read_link(name).unwrap_or_default();
    differs_from_machine(&space("/proc/self/ns/mnt"), &space("/proc/1/ns/mnt"), &space("/proc/self/ns/pid"))
}

/// Decides from the targets of three links: the mount namespaces of the daemon (`own`) and of process 1 (`first`), and
/// the daemon's PID namespace (`processes`). In a PID namespace other than the initial one, process 1 is a container's,
/// so equal mount namespaces prove nothing.
fn differs_from_machine(own: &Path, first: &Path, processes: &Path) -> bool {
    own != first || processes != Path::new(MACHINE)
}

/// Returns the mounts of file systems on these devices.
fn on_devices(mounts: &[Mount], devices: &[PathBuf]) -> Vec<Mount> {
    mounts.iter().filter(|mount| devices.contains(&mount.source)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_own_devices_are_reported_in_a_container() {
        let (own, first) = (Path::new("mnt:[4026532001]"), Path::new("mnt:[4026531841]"));
        assert!(differs_from_machine(own, first, Path::new(MACHINE)), "mounts of its own");
        assert!(
            differs_from_machine(own, own, Path::new("pid:[4026532002]")),
            "the first process of a container is not the machine's"
        );
        assert!(!differs_from_machine(first, first, Path::new(MACHINE)));
        let mount = |source: &str| Mount { mount_point: "/srv".into(), source: source.into(), ..Mount::default() };
        let mounts = [mount("/dev/ublkb1"), mount("/dev/sda1")];
        assert_eq!(on_devices(&mounts, &["/dev/ublkb1".into(), "/dev/ublkb2".into()]), [mount("/dev/ublkb1")]);
    }
}
