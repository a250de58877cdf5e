//! Devices of the kernel's NBD client that stand on exports of this daemon (`braid mount` makes them). The daemon that comes back gives them
//! new connections, and does not take an export away from below a file system.

use super::Control;
use super::exports::Listens;
use super::tables::Serving;
use crate::daemon::state::SavedExport;
use braid_api::address::Address;
use braid_api::{ErrorDetail, Kind};
use braid_host::kernel_nbd::{self, Device};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Only there where the kernel has an NBD client: nothing is looked for without one.
const MODULE: &str = "/sys/module/nbd";

/// So long is waited for a look at a device, whose export may not answer.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// An export that devices may stand on.
struct Offered {
    name: String,
    uri: String,
    connections: u32,
}

impl Control {
    /// Gives devices connections in the place of those that they have lost: with the daemon before, above all.
    pub(super) async fn watch_kernel_clients(self: &Arc<Self>) {
        let offered = self.offered_to_kernel();
        if offered.is_empty() || !Path::new(MODULE).exists() {
            return;
        }
        let looked = tokio::task::spawn_blocking(move || reconnect(&kernel_nbd::devices(), &offered)).await;
        for (name, device, result) in looked.unwrap_or_default() {
            let path = device.path().display().to_string();
            match result {
                Ok(()) => {
                    let message = format!("{path}, the kernel's NBD device of export {name}, has connections again");
                    self.events().info("export_recovered", message, &[("export", &name), ("path", &path)]);
                }
                // It is tried again at the next look.
                Err(error) => tracing::debug!("{path} of export {name} gets no connections: {error}"),
            }
        }
    }

    /// What listens on a socket of this machine.
    fn offered_to_kernel(&self) -> BTreeMap<Uuid, Offered> {
        let tables = self.read();
        let offered = tables.exports.values().filter_map(|entry| {
            let Serving::Listening(open) = &entry.serving else { return None };
            let saved = &entry.saved;
            let address @ Address::Unix(_) = Address::parse(&saved.nbd).ok()? else { return None };
            let uri = address.uri(&saved.name, false);
            Some((saved.uuid, Offered { name: saved.name.clone(), uri, connections: open.connections() }))
        });
        offered.collect()
    }

    /// An export is about to go: the kernel's device on it goes with it, unless somebody has that for itself: mounted, above all.
    pub(super) async fn end_kernel_client(&self, saved: &SavedExport) -> Result<(), ErrorDetail> {
        self.refuse_held_client(saved).await?;
        disconnect(saved).await;
        Ok(())
    }

    /// These exports are about to go with what they are of: what makes block devices of this machine of them goes, too.
    ///
    /// # Errors
    /// Somebody has one of the devices for itself, and nothing has happened; or the ublk driver refuses.
    pub(super) async fn end_devices(
        &self,
        listening: &Listens<'_>,
        which: impl Fn(&SavedExport) -> bool,
    ) -> Result<(), ErrorDetail> {
        let ending: Vec<SavedExport> = {
            let tables = self.read();
            tables.exports.values().map(|entry| &entry.saved).filter(|saved| which(saved)).cloned().collect()
        };
        for saved in &ending {
            self.refuse_held_client(saved).await?;
        }
        self.end_blocks(listening, which).await?;
        for saved in &ending {
            disconnect(saved).await;
        }
        Ok(())
    }

    /// Refuses when somebody has the kernel's device on an export for itself.
    async fn refuse_held_client(&self, saved: &SavedExport) -> Result<(), ErrorDetail> {
        let Some(uuid) = on_socket(saved) else { return Ok(()) };
        let held = tokio::task::spawn_blocking(move || {
            let path = kernel_nbd::of(uuid)?.path();
            // The table of mounts knows no device of btrfs, nor what other mount namespaces have.
            let somebody = || is_held(&path).then(|| "somebody".to_owned());
            let holder = braid_ring::disk::holder_of(&path).or_else(somebody)?;
            Some((path, holder))
        });
        // To open it takes an answer of what is exported.
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

/// An export that the kernel's NBD client may be on.
fn on_socket(saved: &SavedExport) -> Option<Uuid> {
    (saved.nbd.starts_with("unix:") && Path::new(MODULE).exists()).then_some(saved.uuid)
}

/// Ends the kernel's device on an export, if there is one: else whoever looks at it would wait for a server that never comes.
async fn disconnect(saved: &SavedExport) {
    let Some(uuid) = on_socket(saved) else { return };
    let ended = tokio::task::spawn_blocking(move || {
        if let Some(device) = kernel_nbd::of(uuid)
            && let Err(error) = device.disconnect()
        {
            tracing::warn!("{} keeps its place: {error}", device.path().display());
        }
    });
    // What does not end is the kernel's.
    let _ = tokio::time::timeout(LOOK_MAX, ended).await;
}

/// Whether somebody has a device for itself alone.
fn is_held(device: &Path) -> bool {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(device, flags, rustix::fs::Mode::empty()).is_err_and(|error| error == rustix::io::Errno::BUSY)
}

/// What became of each device that had fewer connections than it should.
fn reconnect(devices: &[Device], offered: &BTreeMap<Uuid, Offered>) -> Vec<(String, Device, std::io::Result<()>)> {
    let short = devices.iter().filter_map(|device| {
        let export = offered.get(&device.export)?;
        let missing = device.connections.saturating_sub(export.connections);
        (missing > 0).then(|| (export.name.clone(), device.clone(), device.reconnect(&export.uri, missing)))
    });
    short.collect()
}
