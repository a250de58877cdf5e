//! Devices of the kernel's NBD client (`/dev/nbdN`) on exports of this daemon; `braid mount` creates them. A restarted
//! daemon reconnects them. An export whose device is held, mostly by a mounted file system, is not removed.

use crate::ExportManager;
use crate::provider::ListeningGuard;
use braid_api::address::Address;
use braid_api::{ErrorDetail, Kind};
use braid_host::kernel_nbd::{self, NbdDevice};
use braid_host::{loops, mounts};
use braid_inventory::ExportCondition;
use braid_inventory::state::SavedExport;
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Exists only while the kernel's NBD client is loaded. Without it there are no devices to find.
const MODULE: &str = "/sys/module/nbd";

/// Maximum time to examine or disconnect a device: its export may not reply.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// An export that kernel devices may use.
struct OfferedExport {
    name: String,
    uri: String,
    connections: u32,
}

impl ExportManager {
    /// Replaces connections that the kernel's NBD devices have lost, mostly with the previous daemon. Called
    /// periodically.
    pub async fn watch_kernel_clients(self: &Arc<Self>) {
        let offered = self.offered_to_kernel();
        if offered.is_empty() || !Path::new(MODULE).exists() {
            return;
        }
        let reconnected = tasks::blocking(move || reconnect(&kernel_nbd::devices(), &offered)).await;
        for (name, device, result) in reconnected.unwrap_or_default() {
            let path = device.path().display().to_string();
            match result {
                Ok(()) => {
                    let message = format!("{path}, the kernel's NBD device of export {name}, has connections again");
                    self.inventory.events().info("export_recovered", message, &[("export", &name), ("path", &path)]);
                }
                // The next look tries again.
                Err(error) => tracing::debug!("{path} of export {name} gets no connections: {error}"),
            }
        }
    }

    /// Returns the exports that listen on a Unix socket.
    fn offered_to_kernel(&self) -> BTreeMap<Uuid, OfferedExport> {
        let tables = self.inventory.read();
        let offered = tables.exports.values().filter_map(|entry| {
            let ExportCondition::Listening(open) = &entry.serving else { return None };
            let saved = &entry.saved;
            let address @ Address::Unix(_) = Address::parse(&saved.nbd).ok()? else { return None };
            let uri = address.uri(&saved.name, false);
            Some((saved.uuid, OfferedExport { name: saved.name.clone(), uri, connections: open.connections() }))
        });
        offered.collect()
    }

    /// Disconnects the kernel's device on an export that is about to be removed, unless the device is held exclusively,
    /// mostly by a mount.
    ///
    /// # Errors
    /// [`Kind::InUse`]: it is held.
    pub(crate) async fn disconnect_kernel_client(&self, saved: &SavedExport) -> Result<(), ErrorDetail> {
        self.refuse_held_client(saved).await?;
        disconnect(saved).await;
        Ok(())
    }

    /// Removes the block devices of exports that are about to be removed with their object: ublk devices, and kernel
    /// NBD devices.
    ///
    /// # Errors
    /// A device is held exclusively, and nothing was changed; or the ublk driver refuses.
    pub async fn end_devices(
        &self,
        listening: &ListeningGuard<'_>,
        which: impl Fn(&SavedExport) -> bool,
    ) -> Result<(), ErrorDetail> {
        let removed: Vec<SavedExport> = {
            let tables = self.inventory.read();
            tables.exports.values().map(|entry| &entry.saved).filter(|saved| which(saved)).cloned().collect()
        };
        for saved in &removed {
            self.refuse_held_client(saved).await?;
        }
        self.remove_blocks(listening, which).await?;
        for saved in &removed {
            disconnect(saved).await;
        }
        Ok(())
    }

    /// Refuses to change the content of a volume on which a file system of this machine is mounted: the block device of
    /// one of its exports is held exclusively. `name`: of the volume, for the error. A device that does not answer in
    /// time counts as not held.
    ///
    /// # Errors
    /// [`Kind::InUse`], with the holder and the folder.
    pub async fn refuse_mounted(&self, volume: Uuid, name: &str) -> Result<(), ErrorDetail> {
        let exports: Vec<SavedExport> = {
            let tables = self.inventory.read();
            let of = tables.exports.values().filter(|entry| entry.saved.array == volume);
            of.map(|entry| entry.saved.clone()).collect()
        };
        for saved in exports {
            let of = saved.clone();
            let held = tasks::blocking(move || {
                let path = local_device(&of)?;
                let unknown_holder = || is_held(&path).then(|| "another program".to_owned());
                let holder = braid_ring::disk::holder_of(&path).or_else(unknown_holder)?;
                let mounted = mounts::all().ok()?.into_iter().find(|mount| mount.source == path);
                Some((path, holder, mounted.map(|mount| mount.mount_point)))
            });
            // The open waits for a reply of the export.
            let held = tokio::time::timeout(LOOK_MAX, held).await.unwrap_or(Ok(None)).unwrap_or_default();
            if let Some((path, holder, folder)) = held {
                return Err(mounted(name, &saved, &path, &holder, folder.as_deref()));
            }
        }
        Ok(())
    }

    /// Refuses if the kernel's device on an export is held exclusively.
    async fn refuse_held_client(&self, saved: &SavedExport) -> Result<(), ErrorDetail> {
        let Some(uuid) = on_socket(saved) else { return Ok(()) };
        let held = tasks::blocking(move || {
            let path = kernel_nbd::device_of_export(uuid)?.path();
            // The mount table knows no device of btrfs, nor mounts of other namespaces.
            let unknown_holder = || is_held(&path).then(|| "somebody".to_owned());
            let holder = braid_ring::disk::holder_of(&path).or_else(unknown_holder)?;
            Some((path, holder))
        });
        // The open waits for a reply of the export.
        match tokio::time::timeout(LOOK_MAX, held).await.unwrap_or(Ok(None)).unwrap_or_default() {
            None => Ok(()),
            Some((path, holder)) => {
                let message = format!("{}, on export {}, is in use by {holder}", path.display(), saved.name);
                Err(ErrorDetail::new(Kind::InUse, message)
                    .with("export", &saved.name)
                    .remedy("unmount it first (braid umount)"))
            }
        }
    }
}

/// Returns the error for a volume whose export is a block device in use, mostly by a mount.
fn mounted(volume: &str, saved: &SavedExport, device: &Path, holder: &str, folder: Option<&Path>) -> ErrorDetail {
    let message = format!(
        "volume {volume} is in use: {}, the block device of its export {}, is held by {holder}; a file system does not survive that its content changes underneath",
        device.display(),
        saved.name
    );
    let unmount = match folder {
        Some(folder) if saved.name.ends_with(".mount") => format!("braid umount '{}'", folder.display()),
        Some(folder) => format!("umount '{}'", folder.display()),
        None => format!("end that use (lsblk '{}')", device.display()),
    };
    ErrorDetail::new(Kind::InUse, message)
        .with("volume", volume)
        .with("export", &saved.name)
        .remedy(format!("first: {unmount}; afterwards mount it again. --force does it all the same"))
}

/// Returns the block device of this machine that uses an export: its ublk device, the loop device on its file, or the
/// kernel's NBD device on its Unix socket.
fn local_device(saved: &SavedExport) -> Option<PathBuf> {
    match Address::parse(&saved.nbd).ok()? {
        Address::Ublk { path, .. } => std::fs::canonicalize(path).ok(),
        Address::Fuse(path) => loops::on(&path),
        Address::Unix(_) => Some(kernel_nbd::device_of_export(on_socket(saved)?)?.path()),
        Address::Tcp { .. } => None,
    }
}

/// Returns the UUID of an export that the kernel's NBD client may use: one on a Unix socket, while that client is
/// loaded.
fn on_socket(saved: &SavedExport) -> Option<Uuid> {
    (saved.nbd.starts_with("unix:") && Path::new(MODULE).exists()).then_some(saved.uuid)
}

/// Disconnects the kernel's device on an export, if there is one: otherwise its users would wait for a server that
/// never returns.
async fn disconnect(saved: &SavedExport) {
    let Some(uuid) = on_socket(saved) else { return };
    let ended = tasks::blocking(move || {
        if let Some(device) = kernel_nbd::device_of_export(uuid)
            && let Err(error) = device.disconnect()
        {
            tracing::warn!("{} keeps its place: {error}", device.path().display());
        }
    });
    // If it does not end in time, it is left to the kernel.
    let _ = tokio::time::timeout(LOOK_MAX, ended).await;
}

/// Returns whether a device is held exclusively.
fn is_held(device: &Path) -> bool {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(device, flags, rustix::fs::Mode::empty()).is_err_and(|error| error == rustix::io::Errno::BUSY)
}

/// Reconnects each device that has fewer connections than it should. Returns the results.
fn reconnect(
    devices: &[NbdDevice],
    offered: &BTreeMap<Uuid, OfferedExport>,
) -> Vec<(String, NbdDevice, std::io::Result<()>)> {
    let short = devices.iter().filter_map(|device| {
        let export = offered.get(&device.export)?;
        let missing = device.connections.saturating_sub(export.connections);
        (missing > 0).then(|| (export.name.clone(), device.clone(), device.reconnect(&export.uri, missing)))
    });
    short.collect()
}
