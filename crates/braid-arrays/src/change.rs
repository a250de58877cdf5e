//! Changes active and stopped arrays: rename, stop, delete.

use crate::ArrayManager;
use braid_advice::errors::lifecycle_error;
use braid_advice::{self as advice, ArrayCase, Case, ObjectNames};
use braid_api::{Array, ArrayState, ErrorDetail, Kind};
use braid_array_admin::lifecycle;
use braid_array_admin::reconciler::Order;
use braid_engine::DeviceId;
use braid_format::{ArrayPart, Name};
use braid_inventory::{
    ActiveArray, ArrayCondition, ArrayEntry, ArrayHandle, Claim, IdleArray, IdleMember, OpenDisk, check_of, damage_of,
};
use braid_ring::RingHandle;
use braid_tasks as tasks;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time in which a stop waits for requests in flight: longer than the time limit of an I/O.
pub const DRAINING_MAX: Duration = Duration::from_secs(33);

impl ArrayManager {
    /// Renames an active array. Its exports keep their names.
    ///
    /// # Errors
    /// The name is taken, the array is not active, or a disk's error.
    pub async fn rename_array(self: &Arc<Self>, array: &str, new_name: &str) -> Result<Array, ErrorDetail> {
        let claim = self.inventory.claim(array, "renamed")?;
        let (handle, old_name, disks) = {
            let tables = self.inventory.read();
            let entry = tables.array(array)?;
            let active = entry.active().ok_or_else(|| inactive(entry, "renamed"))?;
            (active.handle.clone(), entry.name.clone(), active.open_disks())
        };
        if old_name == new_name {
            return self.array(array);
        }
        let _name = self.claim_name(new_name)?;
        let name = Name::new(new_name)
            .map_err(|error| ErrorDetail::new(Kind::InvalidArgument, error.to_string()).with("name", new_name))?;
        let label = match handle {
            ArrayHandle::Plain(handle) => {
                let mut handle = handle.lock().await;
                let renamed = handle.rename(&self.meta, name).await;
                renamed.map_err(|error| lifecycle_error(&error, &old_name, &ArrayManager::name_in(&disks)))?;
                Some(handle.label().clone())
            }
            ArrayHandle::Imported(_) => {
                let mut tables = self.inventory.write();
                if let Some(saved) = tables.imported.get_mut(&claim.uuid) {
                    new_name.clone_into(&mut saved.name);
                }
                let entry = tables.arrays.get(&claim.uuid).and_then(ArrayEntry::active);
                entry.map(|active| ArrayPart { name, ..active.label.clone() })
            }
            // The reconciler publishes the new label by itself.
            ArrayHandle::Kept(_) => {
                self.give_order(claim.uuid, Order::Rename(name)).await?;
                None
            }
        };
        {
            let mut tables = self.inventory.write();
            for saved in tables.disks.values_mut().filter(|saved| saved.array == claim.uuid) {
                new_name.clone_into(&mut saved.array_name);
            }
            for export in tables.exports.values_mut().filter(|export| export.saved.array == claim.uuid) {
                new_name.clone_into(&mut export.saved.array_name);
            }
            if let Some(entry) = tables.arrays.get_mut(&claim.uuid) {
                new_name.clone_into(&mut entry.name);
                if let (ArrayCondition::Active(active), Some(label)) = (&mut entry.condition, label) {
                    active.label = label;
                }
            }
        }
        self.inventory.save_or_warn();
        self.inventory.events().info(
            "array_renamed",
            format!("array {old_name} is now called {new_name}"),
            &[("array", new_name), ("old_name", &old_name)],
        );
        self.array(&claim.uuid.to_string())
    }

    /// Stops an array. When this returns, nothing is in flight on it and its disks are closed.
    ///
    /// # Errors
    /// It is exported and `force` is not set, or it is not active.
    pub async fn stop_array(self: &Arc<Self>, array: &str, force: bool) -> Result<Array, ErrorDetail> {
        let claim = self.inventory.claim(array, "stopped")?;
        {
            let tables = self.inventory.read();
            let entry = tables.array(array)?;
            tables.refuse_under_pool(claim.uuid, &entry.name, "stopped")?;
            if entry.active().is_none() {
                // A stopped array stays stopped; an array that waits for members is not waited for any more.
                drop(tables);
                return self.stop_idle(&claim);
            }
            refuse_exported(entry, &tables.exports_of(claim.uuid), force, "their clients are cut off, and they wait")?;
        }
        self.exports.stop_exports_of(claim.uuid).await;
        let Some(DeactivatedArray { entry, disks, .. }) = self.deactivate(claim.uuid, true).await else {
            return self.array(array);
        };
        let shown = {
            let mut tables = self.inventory.write();
            let kept = entry.active().is_none_or(ActiveArray::is_kept);
            let shown = tables.array(array).map(|stopped| self.show_array(&tables, stopped))?;
            if kept {
                tables.stopped.insert(claim.uuid);
            } else {
                tables.arrays.remove(&claim.uuid);
            }
            Array { persistent: kept, ..shown }
        };
        if !shown.persistent {
            self.exports.remove_exports_of(claim.uuid).await;
        }
        drop(entry);
        self.close_disks(disks).await;
        self.inventory.save_or_warn();
        self.inventory.events().info(
            "array_stopped",
            format!("array {} was stopped", shown.name),
            &[("array", &shown.name)],
        );
        Ok(shown)
    }

    /// Lists an idle array as stopped, so that nothing starts it but a command.
    fn stop_idle(&self, claim: &Claim<'_>) -> Result<Array, ErrorDetail> {
        let mut tables = self.inventory.write();
        tables.stopped.insert(claim.uuid);
        if let Some(ArrayCondition::Idle(idle)) = tables.arrays.get_mut(&claim.uuid).map(|entry| &mut entry.condition) {
            idle.state = ArrayState::Stopped;
        }
        drop(tables);
        self.inventory.save_or_warn();
        self.array(&claim.uuid.to_string())
    }

    /// Deletes an array: removes its labels; its content is lost.
    ///
    /// # Errors
    /// It is exported or incomplete and `force` is not set, or a disk's error.
    pub async fn delete_array(self: &Arc<Self>, array: &str, force: bool) -> Result<Array, ErrorDetail> {
        let claim = self.inventory.claim(array, "deleted")?;
        let (shown, active) = {
            let tables = self.inventory.read();
            let entry = tables.array(array)?;
            tables.refuse_under_pool(claim.uuid, &entry.name, "deleted")?;
            refuse_exported(entry, &tables.exports_of(claim.uuid), force, "they are removed")?;
            (self.show_array(&tables, entry), entry.active().is_some())
        };
        {
            let listening = self.exports.listening_lock.lock().await;
            self.exports.end_devices(&listening, |saved| saved.array == claim.uuid).await?;
        }
        if active {
            self.exports.stop_exports_of(claim.uuid).await;
            self.delete_active(claim.uuid, &shown.name).await?;
        } else {
            self.delete_idle(claim.uuid, &shown.name, force).await?;
        }
        self.exports.remove_exports_of(claim.uuid).await;
        self.remove_disk_records(claim.uuid);
        {
            let mut tables = self.inventory.write();
            tables.arrays.remove(&claim.uuid);
            tables.stopped.remove(&claim.uuid);
            tables.checks.remove(&claim.uuid);
            tables.damage.remove(&claim.uuid);
            tables.lost_journals.remove(&claim.uuid);
            tables.imported.remove(&claim.uuid);
        }
        self.inventory.save_or_warn();
        let done = if shown.read_only { "forgotten; its disks are as they were" } else { "deleted" };
        let message = format!("array {} was {done}", shown.name);
        self.inventory.events().info("array_deleted", message, &[("array", &shown.name)]);
        Ok(shown)
    }

    async fn delete_active(self: &Arc<Self>, uuid: Uuid, name: &str) -> Result<(), ErrorDetail> {
        let Some(DeactivatedArray { entry, disks, array, .. }) = self.deactivate(uuid, false).await else {
            return Ok(());
        };
        let deleted = match array {
            Some(EndedArray::Plain(array)) => array.lock().await.delete(&self.meta).await,
            Some(EndedArray::Kept(kept)) => {
                let mut array = kept.array;
                array.retain_candidates(|leaf| disks.iter().any(|disk| disk.leaf == leaf));
                array.delete(&self.meta).await
            }
            // The disks of an imported array are not changed: the array is only forgotten.
            Some(EndedArray::Imported) => Ok(Vec::new()),
            None => Ok(Vec::new()),
        };
        let left = deleted.as_ref().ok().filter(|left| !left.is_empty()).cloned();
        if let Some(left) = left {
            let roles: Vec<String> = left.iter().map(u16::to_string).collect();
            let message = format!(
                "array {name} was deleted, but members {} are missing and keep their labels: wipe those disks when they return (braid disk wipe DISK)",
                roles.join(", ")
            );
            self.inventory.events().warning("labels_left", message, &[("array", name)]);
        }
        let result = deleted.map(drop).map_err(|error| lifecycle_error(&error, name, &ArrayManager::name_in(&disks)));
        if let Err(error) = &result {
            // Neither active nor deleted: the next scan decides by what is on the disks.
            let idle = IdleArray {
                state: ArrayState::Failed,
                attention: vec![format!("its deletion did not succeed: {}", error.message)],
                remedy: advice::remedy(Case::Array(ArrayCase::DeleteFailed), ObjectNames::of(name)),
                ..idle_entry(&entry)
            };
            let entry = ArrayEntry { uuid, name: name.to_owned(), condition: ArrayCondition::Idle(idle) };
            self.inventory.write().arrays.insert(uuid, entry);
        }
        drop(entry);
        self.close_disks(disks).await;
        result
    }

    async fn delete_idle(self: &Arc<Self>, uuid: Uuid, name: &str, force: bool) -> Result<(), ErrorDetail> {
        if self.inventory.read().imported.contains_key(&uuid) {
            return Ok(());
        }
        let Some((found, disks)) = self.find_again(uuid).await else {
            // No disk of it is present: it is only forgotten.
            if force {
                return Ok(());
            }
            return Err(ErrorDetail::new(Kind::Incomplete, format!("no disk of array {name} is present"))
                .with("array", name)
                .remedy("attach its disks; --force forgets it, and labels on missing disks stay"));
        };
        let deleted = lifecycle::delete_found(&self.meta, &found, force).await;
        let result = deleted.map_err(|error| lifecycle_error(&error, name, &ArrayManager::name_in(&disks)));
        self.close_disks(disks).await;
        result.map_err(|error| match error.kind {
            Kind::Incomplete => error.remedy(
                "attach the missing disks first; --force deletes those that are here, and labels on others stay",
            ),
            _ => error,
        })
    }

    /// Withdraws an array from the shards and lists it as stopped. When this returns, nothing is in flight on it,
    /// unless a disk hangs: after the time limit of an I/O such a disk is left to the shards, which close it when it
    /// answers. With `clean` the labels record a clean stop. None: the array is not active.
    pub async fn deactivate(self: &Arc<Self>, uuid: Uuid, clean: bool) -> Option<DeactivatedArray> {
        let mut deactivated = self.withdraw_array(uuid, clean).await?;
        if let Some(device) = deactivated.device.take() {
            self.inventory.write().release_device(device);
        }
        Some(deactivated)
    }

    /// Does the same as [`ArrayManager::deactivate`], but keeps the device number allocated: an object above the array
    /// may still submit requests, which fail. The caller releases it.
    pub async fn withdraw_array(self: &Arc<Self>, uuid: Uuid, clean: bool) -> Option<DeactivatedArray> {
        let (entry, taken) = self.take_active(uuid)?;
        let mut drained = Box::pin(end_service(self.ring.clone(), taken.device, taken.handle.clone()));
        let mut ended = match tokio::time::timeout(DRAINING_MAX, &mut drained).await {
            Ok(ended) => ended,
            Err(_) => {
                let message = format!(
                    "array {} stopped, but a disk of it still hangs; it is released when it answers, or when the daemon ends",
                    entry.name
                );
                self.inventory.events().warning("disk_hangs", message, &[("array", &entry.name)]);
                self.record_closing_disks(&taken.disks);
                let manager = Arc::clone(self);
                tasks::spawn(async move {
                    drop(drained.await);
                    manager.inventory.write().release_device(taken.device);
                    manager.close_disks(taken.disks).await;
                });
                return Some(DeactivatedArray { entry, disks: Vec::new(), array: None, device: None });
            }
        };
        if clean && let Some(ended) = &mut ended {
            self.mark_clean(&entry.name, &taken.disks, ended).await;
        }
        Some(DeactivatedArray { entry, disks: taken.disks, array: ended, device: Some(taken.device) })
    }

    /// Lists an active array as stopped, and returns its former entry and its resources. Of several concurrent callers
    /// one gets them, and the others none; none also if the array is not active. The shards still serve the array: the
    /// caller ends that ([`end_service`]).
    pub fn take_active(&self, uuid: Uuid) -> Option<(ArrayEntry, ArrayResources)> {
        let mut tables = self.inventory.write();
        let entry = tables.arrays.get(&uuid)?;
        let active = entry.active()?;
        let taken = ArrayResources { device: active.device, handle: active.handle.clone(), disks: active.open_disks() };
        let idle = ArrayEntry { uuid, name: entry.name.clone(), condition: ArrayCondition::Idle(idle_entry(entry)) };
        let (check, damage) = (check_of(entry), damage_of(entry));
        tables.checks.extend(check.map(|check| (uuid, check)));
        tables.damage.extend(damage.map(|damage| (uuid, damage)));
        Some((tables.arrays.insert(uuid, idle)?, taken))
    }

    /// Records a clean stop in the labels. No I/O may be in flight on the array. A redundant array whose members may
    /// differ is not marked clean, and the next start resyncs it. An error is reported as an event, not returned.
    pub async fn mark_clean(&self, name: &str, disks: &[Arc<OpenDisk>], ended: &mut EndedArray) {
        let marked = match ended {
            EndedArray::Plain(array) => array.lock().await.stop(&self.meta).await,
            EndedArray::Kept(kept) if kept.is_clean => kept.array.stop(&self.meta_of(kept.array.uuid())).await,
            EndedArray::Kept(_) | EndedArray::Imported => return,
        };
        if let Err(error) = marked {
            let error = lifecycle_error(&error, name, &ArrayManager::name_in(disks));
            let message = format!("array {name} stopped, but its labels could not be marked clean: {}", error.message);
            self.inventory.events().warning("not_marked_clean", message, &[("array", name)]);
        }
    }
}

/// The resources of an array that was active: see [`ArrayManager::take_active`].
pub struct ArrayResources {
    /// The device that the shards serve.
    pub device: DeviceId,
    /// The handle for its end: see [`end_service`].
    pub handle: ArrayHandle,
    /// Its disks, which are open.
    pub disks: Vec<Arc<OpenDisk>>,
}

/// An array on which nothing is in flight any more.
pub struct DeactivatedArray {
    /// Its entry before the stop.
    pub entry: ArrayEntry,
    /// Its disks; none if one of them hangs.
    pub disks: Vec<Arc<OpenDisk>>,
    /// The handle for changes of its labels; none if a disk hangs or the reconciler is lost.
    pub array: Option<EndedArray>,
    /// Its device number, if it is still allocated.
    pub device: Option<DeviceId>,
}

/// An array that does not serve any more.
pub enum EndedArray {
    /// An array without redundancy.
    Plain(Arc<tokio::sync::Mutex<lifecycle::Array>>),
    /// A redundant array, as its reconciler has left it.
    Kept(Box<braid_array_admin::reconciler::StoppedArray>),
    /// An array of Linux md, whose disks are never changed.
    Imported,
}

/// Withdraws a device from the shards: when this returns, nothing is in flight on it. Returns none if its reconciler is
/// lost.
pub async fn end_service(ring: RingHandle, device: DeviceId, handle: ArrayHandle) -> Option<EndedArray> {
    match handle {
        ArrayHandle::Plain(array) => {
            // An error means that the shards have ended: then nothing is in flight either.
            let _ = ring.publish_and_drain(device, None).await;
            Some(EndedArray::Plain(array))
        }
        ArrayHandle::Imported(_) => {
            let _ = ring.publish_and_drain(device, None).await;
            Some(EndedArray::Imported)
        }
        ArrayHandle::Kept(reconciler) => reconciler.stop().await.map(|kept| EndedArray::Kept(Box::new(kept))),
    }
}

/// Returns the idle entry of an active array that is stopped.
fn idle_entry(entry: &ArrayEntry) -> IdleArray {
    let (label, disks) = match entry.active() {
        Some(active) => (Some(active.label.clone()), active.disks.as_slice()),
        None => (None, [].as_slice()),
    };
    let members = label.iter().flat_map(|label| &label.members).enumerate().map(|(role, member)| {
        let slot = disks.iter().find(|slot| usize::from(slot.role) == role);
        IdleMember {
            role: role as u16,
            id: member.id.map(|id| id.to_string()).unwrap_or_default(),
            data_bytes: member.data_bytes,
            disk: slot.map(|slot| slot.disk.name.clone()),
            state: member.state,
            present: slot.is_some(),
        }
    });
    IdleArray {
        state: ArrayState::Stopped,
        attention: Vec::new(),
        remedy: advice::remedy(Case::Array(ArrayCase::Ready), ObjectNames::of(&entry.name)),
        members: members.collect(),
        label: label.clone(),
    }
}

/// Returns the error for an array that is not active and so cannot be `done` ("renamed", "grown").
pub fn inactive(entry: &ArrayEntry, done: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Inactive, format!("array {} is not active and so cannot be {done}", entry.name))
        .with("array", &entry.name)
        .remedy(advice::remedy(Case::Array(ArrayCase::Ready), ObjectNames::of(&entry.name)))
}

/// Refuses to end an exported array without force. `forced`: what force would do to the exports.
fn refuse_exported(entry: &ArrayEntry, exports: &[String], force: bool, forced: &str) -> Result<(), ErrorDetail> {
    if exports.is_empty() || force {
        return Ok(());
    }
    Err(ErrorDetail::new(Kind::InUse, format!("array {} is exported as {}", entry.name, exports.join(", ")))
        .with("array", &entry.name)
        .with("export", &exports[0])
        .remedy(format!("braid export remove {} first, or add --force ({forced})", exports[0])))
}
