//! Changing arrays that are there: another name, stop, delete.

use super::tables::{Active, ArrayEntry, Condition, Handle, Idle, IdleMember, OpenDisk, check_of, damage_of};
use super::{Claim, Control};
use braid_advice::errors::of_lifecycle;
use braid_advice::{self as advice, ArrayCase, Case, Names};
use braid_api::{Array, ArrayState, ErrorDetail, Kind};
use braid_engine::keeper::Order;
use braid_engine::{DeviceId, lifecycle};
use braid_format::{ArrayPart, Name};
use braid_ring::RingHandle;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Longest that a stop waits for what is in flight: beyond the time limit of an I/O.
pub(super) const DRAINING_MAX: Duration = Duration::from_secs(33);

impl Control {
    /// Gives an active array another name. Its exports keep theirs.
    ///
    /// # Errors
    /// The name is taken, the array is not active, or a disk's error.
    pub async fn rename_array(self: &Arc<Self>, array: &str, new_name: &str) -> Result<Array, ErrorDetail> {
        let claim = self.claim(array, "renamed")?;
        let (handle, old_name, disks) = {
            let tables = self.read();
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
            Handle::Plain(handle) => {
                let mut handle = handle.lock().await;
                let renamed = handle.rename(&self.meta, name).await;
                renamed.map_err(|error| of_lifecycle(&error, &old_name, &Control::name_in(&disks)))?;
                Some(handle.label().clone())
            }
            Handle::Imported(_) => {
                let mut tables = self.write();
                if let Some(saved) = tables.imported.get_mut(&claim.uuid) {
                    new_name.clone_into(&mut saved.name);
                }
                let entry = tables.arrays.get(&claim.uuid).and_then(ArrayEntry::active);
                entry.map(|active| ArrayPart { name, ..active.label.clone() })
            }
            // What the labels say then, the keeper tells by itself.
            Handle::Kept(_) => {
                self.give_order(claim.uuid, Order::Rename(name)).await?;
                None
            }
        };
        {
            let mut tables = self.write();
            for saved in tables.disks.values_mut().filter(|saved| saved.array == claim.uuid) {
                new_name.clone_into(&mut saved.array_name);
            }
            for export in tables.exports.values_mut().filter(|export| export.saved.array == claim.uuid) {
                new_name.clone_into(&mut export.saved.array_name);
            }
            if let Some(entry) = tables.arrays.get_mut(&claim.uuid) {
                new_name.clone_into(&mut entry.name);
                if let (Condition::Active(active), Some(label)) = (&mut entry.condition, label) {
                    active.label = label;
                }
            }
        }
        self.save_or_warn();
        self.events().info(
            "array_renamed",
            format!("array {old_name} is now called {new_name}"),
            &[("array", new_name), ("old_name", &old_name)],
        );
        self.array(&claim.uuid.to_string())
    }

    /// Stops an array: nothing of it is in use when this returns, and its disks are free.
    ///
    /// # Errors
    /// It is exported and `force` is not set, or it is not active.
    pub async fn stop_array(self: &Arc<Self>, array: &str, force: bool) -> Result<Array, ErrorDetail> {
        let claim = self.claim(array, "stopped")?;
        {
            let tables = self.read();
            let entry = tables.array(array)?;
            tables.refuse_under_pool(claim.uuid, &entry.name, "stopped")?;
            if entry.active().is_none() {
                // Stopped already is stopped; what waits for members is from now on not waited for.
                drop(tables);
                return self.stop_idle(&claim);
            }
            refuse_exported(entry, &tables.exports_of(claim.uuid), force, "their clients are cut off, and they wait")?;
        }
        self.silence_exports(claim.uuid).await;
        let Some(Deactivated { entry, disks, .. }) = self.deactivate(claim.uuid, true).await else {
            return self.array(array);
        };
        let shown = {
            let mut tables = self.write();
            let kept = entry.active().is_none_or(Active::is_kept);
            let shown = tables.array(array).map(|stopped| self.show_array(&tables, stopped))?;
            if kept {
                tables.stopped.insert(claim.uuid);
            } else {
                tables.arrays.remove(&claim.uuid);
            }
            Array { kept, ..shown }
        };
        if !shown.kept {
            self.remove_exports_of(claim.uuid).await;
        }
        drop(entry);
        self.close_disks(disks).await;
        self.save_or_warn();
        self.events().info("array_stopped", format!("array {} was stopped", shown.name), &[("array", &shown.name)]);
        Ok(shown)
    }

    fn stop_idle(&self, claim: &Claim<'_>) -> Result<Array, ErrorDetail> {
        let mut tables = self.write();
        tables.stopped.insert(claim.uuid);
        if let Some(Condition::Idle(idle)) = tables.arrays.get_mut(&claim.uuid).map(|entry| &mut entry.condition) {
            idle.state = ArrayState::Stopped;
        }
        drop(tables);
        self.save_or_warn();
        self.array(&claim.uuid.to_string())
    }

    /// Deletes an array: its labels are removed, its content is lost.
    ///
    /// # Errors
    /// It is exported or incomplete and `force` is not set, or a disk's error.
    pub async fn delete_array(self: &Arc<Self>, array: &str, force: bool) -> Result<Array, ErrorDetail> {
        let claim = self.claim(array, "deleted")?;
        let (shown, active) = {
            let tables = self.read();
            let entry = tables.array(array)?;
            tables.refuse_under_pool(claim.uuid, &entry.name, "deleted")?;
            refuse_exported(entry, &tables.exports_of(claim.uuid), force, "they are removed")?;
            (self.show_array(&tables, entry), entry.active().is_some())
        };
        {
            let listening = self.listening.lock().await;
            self.end_devices(&listening, |saved| saved.array == claim.uuid).await?;
        }
        if active {
            self.silence_exports(claim.uuid).await;
            self.delete_active(claim.uuid, &shown.name).await?;
        } else {
            self.delete_idle(claim.uuid, &shown.name, force).await?;
        }
        self.remove_exports_of(claim.uuid).await;
        self.forget(claim.uuid);
        {
            let mut tables = self.write();
            tables.arrays.remove(&claim.uuid);
            tables.stopped.remove(&claim.uuid);
            tables.checks.remove(&claim.uuid);
            tables.damage.remove(&claim.uuid);
            tables.lost_journals.remove(&claim.uuid);
            tables.imported.remove(&claim.uuid);
        }
        self.save_or_warn();
        let done = if shown.read_only { "forgotten; its disks are as they were" } else { "deleted" };
        let message = format!("array {} was {done}", shown.name);
        self.events().info("array_deleted", message, &[("array", &shown.name)]);
        Ok(shown)
    }

    async fn delete_active(self: &Arc<Self>, uuid: Uuid, name: &str) -> Result<(), ErrorDetail> {
        let Some(Deactivated { entry, disks, array, .. }) = self.deactivate(uuid, false).await else { return Ok(()) };
        let deleted = match array {
            Some(Ended::Plain(array)) => array.lock().await.delete(&self.meta).await,
            Some(Ended::Kept(kept)) => {
                let mut array = kept.array;
                array.retain_candidates(|leaf| disks.iter().any(|disk| disk.leaf == leaf));
                array.delete(&self.meta).await
            }
            // Nothing of it is changed: it is forgotten.
            Some(Ended::Imported) => Ok(Vec::new()),
            None => Ok(Vec::new()),
        };
        let left = deleted.as_ref().ok().filter(|left| !left.is_empty()).cloned();
        if let Some(left) = left {
            let roles: Vec<String> = left.iter().map(u16::to_string).collect();
            let message = format!(
                "array {name} was deleted, but members {} are not here and keep their labels: wipe those disks when they return",
                roles.join(", ")
            );
            self.events().warning("labels_left", message, &[("array", name)]);
        }
        let result = deleted.map(drop).map_err(|error| of_lifecycle(&error, name, &Control::name_in(&disks)));
        if let Err(error) = &result {
            // Neither active nor deleted: what is on the disks decides at the next look.
            let idle = Idle {
                state: ArrayState::Failed,
                attention: vec![format!("its deletion did not succeed: {}", error.message)],
                remedy: advice::remedy(Case::Array(ArrayCase::DeleteFailed), Names::of(name)),
                ..entry_idle(&entry)
            };
            let entry = ArrayEntry { uuid, name: name.to_owned(), condition: Condition::Idle(idle) };
            self.write().arrays.insert(uuid, entry);
        }
        drop(entry);
        self.close_disks(disks).await;
        result
    }

    async fn delete_idle(self: &Arc<Self>, uuid: Uuid, name: &str, force: bool) -> Result<(), ErrorDetail> {
        if self.read().imported.contains_key(&uuid) {
            return Ok(());
        }
        let Some((found, disks)) = self.find_again(uuid).await else {
            // Not one disk of it is here: it is forgotten.
            if force {
                return Ok(());
            }
            return Err(ErrorDetail::new(Kind::Incomplete, format!("no disk of array {name} is here"))
                .with("array", name)
                .remedy("attach its disks; --force forgets it, and labels on disks that are not here stay"));
        };
        let deleted = lifecycle::delete_found(&self.meta, &found, force).await;
        let result = deleted.map_err(|error| of_lifecycle(&error, name, &Control::name_in(&disks)));
        self.close_disks(disks).await;
        result.map_err(|error| match error.kind {
            Kind::Incomplete => error.remedy(
                "attach the missing disks first; --force deletes those that are here, and labels on others stay",
            ),
            _ => error,
        })
    }

    /// Takes an array from the shards; it is listed as stopped from now on. When this returns nothing is in flight on
    /// it, unless a disk hangs: then, after the time limit of an I/O, that disk is left to the shards, which close it
    /// when it answers. With `clean` its labels note that it stopped in order.
    pub(super) async fn deactivate(self: &Arc<Self>, uuid: Uuid, clean: bool) -> Option<Deactivated> {
        let mut deactivated = self.take_down(uuid, clean).await?;
        if let Some(device) = deactivated.device.take() {
            self.write().give_device(device);
        }
        Some(deactivated)
    }

    /// The same, but that nobody else may get its device: what stands on it may begin something still, which fails.
    pub(super) async fn take_down(self: &Arc<Self>, uuid: Uuid, clean: bool) -> Option<Deactivated> {
        let (entry, taken) = self.take_active(uuid)?;
        let mut drained = Box::pin(end_service(self.ring.clone(), taken.device, taken.handle.clone()));
        let mut ended = match tokio::time::timeout(DRAINING_MAX, &mut drained).await {
            Ok(ended) => ended,
            Err(_) => {
                let message = format!(
                    "array {} stopped, but a disk of it still hangs; it becomes free when it answers, or when the daemon ends",
                    entry.name
                );
                self.events().warning("disk_hangs", message, &[("array", &entry.name)]);
                self.note_leaving(&taken.disks);
                let control = Arc::clone(self);
                tokio::spawn(async move {
                    drop(drained.await);
                    control.write().give_device(taken.device);
                    control.close_disks(taken.disks).await;
                });
                return Some(Deactivated { entry, disks: Vec::new(), array: None, device: None });
            }
        };
        if clean && let Some(ended) = &mut ended {
            self.mark_clean(&entry.name, &taken.disks, ended).await;
        }
        Some(Deactivated { entry, disks: taken.disks, array: ended, device: Some(taken.device) })
    }

    /// Lists an active array as stopped, and gives what belonged to it. One caller gets it.
    pub(super) fn take_active(&self, uuid: Uuid) -> Option<(ArrayEntry, Taken)> {
        let mut tables = self.write();
        let entry = tables.arrays.get(&uuid)?;
        let active = entry.active()?;
        let taken = Taken { device: active.device, handle: active.handle.clone(), disks: active.open_disks() };
        let idle = ArrayEntry { uuid, name: entry.name.clone(), condition: Condition::Idle(entry_idle(entry)) };
        let (check, damage) = (check_of(entry), damage_of(entry));
        tables.checks.extend(check.map(|check| (uuid, check)));
        tables.damage.extend(damage.map(|damage| (uuid, damage)));
        Some((tables.arrays.insert(uuid, idle)?, taken))
    }

    /// Notes in the labels that the array stopped in order; nothing is in flight on it. Where members may differ, a
    /// redundant array has not, and the next start brings them together.
    pub(super) async fn mark_clean(&self, name: &str, disks: &[Arc<OpenDisk>], ended: &mut Ended) {
        let marked = match ended {
            Ended::Plain(array) => array.lock().await.stop(&self.meta).await,
            Ended::Kept(kept) if kept.is_clean => kept.array.stop(&self.meta_of(kept.array.uuid())).await,
            Ended::Kept(_) | Ended::Imported => return,
        };
        if let Err(error) = marked {
            let error = of_lifecycle(&error, name, &Control::name_in(disks));
            let message = format!("array {name} stopped, but its labels could not be marked clean: {}", error.message);
            self.events().warning("not_marked_clean", message, &[("array", name)]);
        }
    }
}

/// What belonged to an array that was active.
pub(super) struct Taken {
    pub(super) device: DeviceId,
    pub(super) handle: Handle,
    pub(super) disks: Vec<Arc<OpenDisk>>,
}

/// An array on which nothing is in flight any more.
pub(super) struct Deactivated {
    /// As it was listed.
    pub(super) entry: ArrayEntry,
    /// Its disks; none where one hangs.
    pub(super) disks: Vec<Arc<OpenDisk>>,
    /// Through which its labels are changed.
    pub(super) array: Option<Ended>,
    /// What it was, where nobody else may get that yet.
    pub(super) device: Option<DeviceId>,
}

/// An array that serves no more.
pub(super) enum Ended {
    Plain(Arc<tokio::sync::Mutex<lifecycle::Array>>),
    Kept(Box<braid_engine::keeper::StoppedArray>),
    /// One of Linux md, whose disks nobody changes.
    Imported,
}

/// Ends the service of a device: when this returns nothing is in flight on it. None where its keeper is lost.
pub(super) async fn end_service(ring: RingHandle, device: DeviceId, handle: Handle) -> Option<Ended> {
    match handle {
        Handle::Plain(array) => {
            // An error says that the shards have ended: then nothing is in flight either.
            let _ = ring.publish_and_drain(device, None).await;
            Some(Ended::Plain(array))
        }
        Handle::Imported(_) => {
            let _ = ring.publish_and_drain(device, None).await;
            Some(Ended::Imported)
        }
        Handle::Kept(keeping) => keeping.stop().await.map(|kept| Ended::Kept(Box::new(kept))),
    }
}

/// How an active array is listed once it is stopped.
fn entry_idle(entry: &ArrayEntry) -> Idle {
    let (label, disks) = match entry.active() {
        Some(active) => (Some(active.label.clone()), active.disks.as_slice()),
        None => (None, [].as_slice()),
    };
    let members = label.iter().flat_map(|label| &label.members).enumerate().map(|(role, member)| {
        let seat = disks.iter().find(|seat| usize::from(seat.role) == role);
        IdleMember {
            role: role as u16,
            id: member.id.map(|id| id.to_string()).unwrap_or_default(),
            data_bytes: member.data_bytes,
            disk: seat.map(|seat| seat.disk.name.clone()),
            state: member.state,
            present: seat.is_some(),
        }
    });
    Idle {
        state: ArrayState::Stopped,
        attention: Vec::new(),
        remedy: advice::remedy(Case::Array(ArrayCase::Ready), Names::of(&entry.name)),
        members: members.collect(),
        label: label.clone(),
    }
}

pub(super) fn inactive(entry: &ArrayEntry, done: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Inactive, format!("array {} is not active and so cannot be {done}", entry.name))
        .with("array", &entry.name)
        .remedy(advice::remedy(Case::Array(ArrayCase::Ready), Names::of(&entry.name)))
}

fn refuse_exported(entry: &ArrayEntry, exports: &[String], force: bool, forced: &str) -> Result<(), ErrorDetail> {
    if exports.is_empty() || force {
        return Ok(());
    }
    Err(ErrorDetail::new(Kind::InUse, format!("array {} is exported as {}", entry.name, exports.join(", ")))
        .with("array", &entry.name)
        .with("export", &exports[0])
        .remedy(format!("braid export remove {} first, or add --force ({forced})", exports[0])))
}
