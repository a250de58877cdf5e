//! Devices of the kernel's NBD client that stand on exports of this daemon (`braid mount` makes them). The daemon that comes back gives them
//! new connections, and does not take an export away from below a file system.

use super::Control;
use super::tables::Serving;
use crate::daemon::address::Address;
use crate::daemon::state::SavedExport;
use crate::kernel_nbd::{self, Device};
use braid_api::{ErrorDetail, Kind};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// Only there where the kernel has an NBD client: nothing is looked for without one.
const MODULE: &str = "/sys/module/nbd";

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

    /// Refuses to take an export from a device that somebody has for itself: mounted, above all.
    pub(super) async fn refuse_kernel_client(&self, saved: &SavedExport) -> Result<(), ErrorDetail> {
        let uuid = saved.uuid;
        if !saved.nbd.starts_with("unix:") || !Path::new(MODULE).exists() {
            return Ok(());
        }
        let held = tokio::task::spawn_blocking(move || {
            let path = kernel_nbd::of(uuid)?.path();
            let holder = braid_ring::disk::holder_of(&path)?;
            Some((path, holder))
        });
        match held.await.unwrap_or_default() {
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

/// What became of each device that had fewer connections than it should.
fn reconnect(devices: &[Device], offered: &BTreeMap<Uuid, Offered>) -> Vec<(String, Device, std::io::Result<()>)> {
    let short = devices.iter().filter_map(|device| {
        let export = offered.get(&device.export)?;
        let missing = device.connections.saturating_sub(export.connections);
        (missing > 0).then(|| (export.name.clone(), device.clone(), device.reconnect(&export.uri, missing)))
    });
    short.collect()
}
