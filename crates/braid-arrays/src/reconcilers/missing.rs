//! Watches for missing disks that reappear: their members return automatically, and arrays that waited for them start.

use crate::ArrayManager;
use braid_api::{ArrayState, Assemble};
use braid_array_admin::lifecycle;
use braid_host::host::FileSystemEntry;
use braid_inventory::{ActiveArray, ArrayCondition, MissingMember};
use braid_ring::DiskSpec;
use braid_tasks as tasks;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Maximum duration of one look at paths; a look that takes longer is repeated later.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// A missing member: its array, its slot and the disk that it was on.
pub(crate) type MissingDisk = (Uuid, u16, DiskSpec);

impl ArrayManager {
    /// Looks once for the local disks of redundant arrays that are incomplete, and tries the servers of remote disks
    /// that are due. If a local disk that was missing at the previous look exists now, all waiting arrays are assembled
    /// again. Called periodically. `absent`: the disks that were missing at the previous look; at first none.
    pub async fn watch_waiting(self: &Arc<Self>, absent: &mut BTreeSet<String>) {
        self.try_waiting_servers();
        let waited: BTreeMap<String, DiskSpec> = {
            let tables = self.inventory.read();
            let waits = |uuid: &Uuid| match tables.arrays.get(uuid).map(|entry| &entry.condition) {
                Some(ArrayCondition::Idle(idle)) if idle.state == ArrayState::Incomplete => {
                    idle.label.as_ref().is_some_and(|label| lifecycle::is_redundant(label.spec.level))
                }
                _ => false,
            };
            let saved = tables.disks.values().filter(|saved| waits(&saved.array));
            let saved = saved.filter_map(|saved| Some((saved.disk.clone(), DiskSpec::parse(&saved.disk).ok()?)));
            saved.filter(|(_, spec)| spec.remote().is_none()).collect()
        };
        if waited.is_empty() {
            return absent.clear();
        }
        let looked = tasks::blocking(move || {
            let there = |spec: &DiskSpec| spec.path().is_some_and(std::path::Path::exists);
            waited.into_iter().filter(|(_, spec)| !there(spec)).map(|(name, _)| name).collect::<BTreeSet<_>>()
        });
        let Ok(Ok(now)) = tokio::time::timeout(LOOK_MAX, looked).await else { return };
        let appeared = absent.iter().any(|name| !now.contains(name));
        *absent = now;
        if appeared {
            let manager = Arc::clone(self);
            tasks::spawn(async move {
                if let Err(error) = manager.assemble(Assemble::default()).await {
                    tracing::warn!("{}", error.message);
                }
            });
        }
    }

    /// Looks once for the disks of missing members, and lets those that have reappeared return. Called periodically.
    pub async fn watch_missing(self: &Arc<Self>) {
        let (far, missing): (Vec<_>, Vec<_>) =
            self.missing_members().into_iter().partition(|missing| missing.2.remote().is_some());
        self.try_missing_servers(far);
        if missing.is_empty() {
            return;
        }
        // A path may be on a file system that does not respond.
        let looked = tasks::blocking(move || {
            missing
                .into_iter()
                .map(|missing| (missing.2.path().and_then(FileSystemEntry::of), missing))
                .collect::<Vec<_>>()
        });
        let Ok(Ok(looked)) = tokio::time::timeout(LOOK_MAX, looked).await else { return };
        for (uuid, slot, spec) in self.appeared(looked) {
            let manager = Arc::clone(self);
            tasks::spawn(async move {
                // A disk that is in use or not ready yet is tried again after it has disappeared and reappeared.
                match manager.open_disk(spec, Duration::from_secs(1)).await {
                    Ok(disk) => drop(manager.return_disk(uuid, disk).await),
                    Err(error) => tracing::warn!("member {slot} does not return: {}", error.message),
                }
            });
        }
    }

    /// Returns the missing members whose former disks are closed; those on a remote disk only if they are to return
    /// automatically.
    fn missing_members(&self) -> Vec<MissingDisk> {
        // The lock order of `on_recorded`, the tables first: a disk that is listed as missing is also listed as leaving
        // until it is closed.
        let tables = self.inventory.read();
        let leaving: Vec<String> =
            self.closing_disks.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let serving = |active: &&ActiveArray| active.reconciler().is_some() && !active.has_failed();
        let active = tables.arrays.values().filter_map(|e| Some((e.uuid, e.active().filter(serving)?)));
        let missing =
            active.flat_map(|(uuid, active)| active.missing.iter().map(move |(slot, missing)| (uuid, *slot, missing)));
        let missing = missing.filter(|(_, _, missing)| !missing.disk.is_empty() && !leaving.contains(&missing.disk));
        let spec = |missing: &MissingMember| {
            DiskSpec::parse(&missing.disk).ok().filter(|spec| missing.gone || spec.remote().is_none())
        };
        missing.filter_map(|(uuid, slot, missing)| Some((uuid, slot, spec(missing)?))).collect()
    }

    /// Returns those of the looked-at members whose disks have reappeared: a disk that did not exist at the previous
    /// look, or a different disk at the same path. Each reappearance is returned once.
    fn appeared(&self, looked: Vec<(Option<FileSystemEntry>, MissingDisk)>) -> Vec<MissingDisk> {
        let mut tables = self.inventory.write();
        let mut appeared = Vec::new();
        for (entry, (uuid, slot, spec)) in looked {
            let Some(ArrayCondition::Active(active)) = tables.arrays.get_mut(&uuid).map(|entry| &mut entry.condition)
            else {
                continue;
            };
            let Some(missing) = active.missing.get_mut(&slot) else { continue };
            if entry.is_none() {
                "its disk has disappeared".clone_into(&mut missing.why);
            }
            let was_gone = std::mem::replace(&mut missing.gone, entry.is_none());
            let is_another = entry.is_some() && missing.entry.is_some_and(|before| Some(before) != entry);
            if entry.is_some() {
                missing.entry = entry;
            }
            if entry.is_some() && (was_gone || is_another) {
                appeared.push((uuid, slot, spec));
            }
        }
        appeared
    }
}
