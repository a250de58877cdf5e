//! Remote disks that are missing: their servers are tried again, at growing intervals.
//!
//! A local disk that reappears is seen in the file system; a server has to be connected to. A member on a remote disk
//! returns automatically, unless its server may still have been executing writes when the member was dropped: then its
//! content is not known, and an administrator has to add it again.

use crate::ArrayManager;
use crate::reconcilers::missing::MissingDisk;
use crate::server_probes::ServerProbes;
use braid_api::{ArrayState, Assemble};
use braid_host::open::open_disk;
use braid_inventory::{ArrayCondition, Tables};
use braid_ring::{DiskSpec, OpenOptions};
use braid_tasks as tasks;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uuid::Uuid;

impl ArrayManager {
    /// Locks the schedule of attempts.
    fn server_probes(&self) -> MutexGuard<'_, ServerProbes> {
        self.server_probes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries the servers of missing members whose attempt is due. If a server responds, its disk returns.
    pub(crate) fn try_missing_servers(self: &Arc<Self>, missing: Vec<MissingDisk>) {
        for (uuid, slot, spec) in missing {
            let disk = spec.to_string();
            if !self.server_probes().is_due(&disk, Instant::now()) {
                continue;
            }
            let manager = Arc::clone(self);
            tasks::spawn(async move {
                match manager.open_disk(spec, Duration::from_secs(1)).await {
                    Ok(disk) => {
                        if manager.return_disk(uuid, disk).await.is_err() {
                            manager.stop_retrying(uuid, slot);
                        }
                    }
                    Err(error) => tracing::debug!("member {slot} does not return: {}", error.message),
                }
                manager.server_probes().ended(&disk, Instant::now());
            });
        }
    }

    /// Stops the attempts: the contents of the disk do not fit, and another attempt would find the same.
    fn stop_retrying(&self, uuid: Uuid, slot: u16) {
        if let Some(ArrayCondition::Active(active)) =
            self.inventory.write().arrays.get_mut(&uuid).map(|entry| &mut entry.condition)
            && let Some(missing) = active.missing.get_mut(&slot)
        {
            missing.gone = false;
        }
    }

    /// Tries the servers of disks of arrays that cannot start, where an attempt is due. If a server responds, all
    /// waiting arrays are assembled again.
    pub(crate) fn try_waiting_servers(self: &Arc<Self>) {
        for spec in waited_for(&self.inventory.read()) {
            let disk = spec.to_string();
            if !self.server_probes().is_due(&disk, Instant::now()) {
                continue;
            }
            let manager = Arc::clone(self);
            tasks::spawn(async move {
                let (looked, name) = (spec, disk.clone());
                let look = move || open_disk(&looked, &name, OpenOptions { exclusive: false, write: false }).is_ok();
                if matches!(tasks::blocking(look).await, Ok(true))
                    && let Err(error) = manager.assemble(Assemble::default()).await
                {
                    tracing::warn!("{}", error.message);
                }
                manager.server_probes().ended(&disk, Instant::now());
            });
        }
    }
}

/// Returns the remote disks of arrays that are incomplete or of which nothing was found.
fn waited_for(tables: &Tables) -> Vec<DiskSpec> {
    let waits = |uuid: &Uuid| match tables.arrays.get(uuid).map(|entry| &entry.condition) {
        Some(ArrayCondition::Idle(idle)) => idle.state == ArrayState::Incomplete,
        Some(ArrayCondition::Active(_)) => false,
        None => true,
    };
    let saved = tables.disks.values().filter(|saved| waits(&saved.array));
    saved.filter_map(|saved| DiskSpec::parse(&saved.disk).ok()).filter(|spec| spec.remote().is_some()).collect()
}
