//! What the surroundings of block devices are like: what the kernel's driver can do, and whether a file system on one of them is mounted
//! where the daemon stands itself.

use super::Control;
use braid_host::mounts::{self, Mount};
use braid_ublk::Control as Driver;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The processes of the machine itself, in `/proc/self/ns/pid`: the kernel's own number for them.
const MACHINE: &str = "pid:[4026531836]";

impl Control {
    /// Looks at the driver, and warns of mounts, once at the start.
    pub(super) async fn look_around(self: Arc<Self>) {
        let control = Arc::clone(&self);
        let looked = tokio::task::spawn_blocking(move || {
            if let Ok(driver) = Driver::open() {
                control.blocks.note_features(&driver);
            }
            let devices = control.blocks.devices();
            if devices.is_empty() || !may_end_with_its_mounts() {
                return Vec::new();
            }
            mounts::all().map(|mounts| on_devices(&mounts, &devices)).unwrap_or_default()
        });
        for Mount { folder, source, .. } in looked.await.unwrap_or_default() {
            let message = format!(
                "{} is mounted at {} among the daemon's own mounts, which may end with it: the kernel would wait for the daemon, and the \
                 daemon for the kernel. Mount it outside of the daemon's container",
                source.display(),
                folder.display()
            );
            self.events().warning("export_shares_mounts", message, &[("path", &folder.display().to_string())]);
        }
    }
}

/// Whether the daemon's mounts are not those of the machine, and so may have no other user than the daemon.
fn may_end_with_its_mounts() -> bool {
    let space = |name: &str| std::fs::read_link(name).unwrap_or_default();
    is_apart(&space("/proc/self/ns/mnt"), &space("/proc/1/ns/mnt"), &space("/proc/self/ns/pid"))
}

/// The same of what these files are.
fn is_apart(own: &Path, first: &Path, processes: &Path) -> bool {
    own != first || processes != Path::new(MACHINE)
}

/// Mounts of file systems on these devices.
fn on_devices(mounts: &[Mount], devices: &[PathBuf]) -> Vec<Mount> {
    mounts.iter().filter(|mount| devices.contains(&mount.source)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_its_own_devices_are_told_of_in_a_container() {
        let (own, first) = (Path::new("mnt:[4026532001]"), Path::new("mnt:[4026531841]"));
        assert!(is_apart(own, first, Path::new(MACHINE)), "mounts of its own");
        assert!(
            is_apart(own, own, Path::new("pid:[4026532002]")),
            "the first process of a container is not the machine's"
        );
        assert!(!is_apart(first, first, Path::new(MACHINE)));
        let mount = |source: &str| Mount { folder: "/srv".into(), source: source.into(), kind: "ext4".to_owned() };
        let mounts = [mount("/dev/ublkb1"), mount("/dev/sda1")];
        assert_eq!(on_devices(&mounts, &["/dev/ublkb1".into(), "/dev/ublkb2".into()]), [mount("/dev/ublkb1")]);
    }
}
