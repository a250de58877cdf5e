//! Turns the events of a reconciler into the daemon's events, and into entries of the tables.

use crate::ArrayManager;
use crate::reconcilers::reconciler_io::is_beyond_tolerance;
use crate::reconcilers::{array_slots_of, findings};
use braid_advice::errors::lifecycle_error;
use braid_api::Severity;
use braid_array_admin::lifecycle::Array;
use braid_array_admin::reconciler::ReconcilerEvent;
use braid_format::MemberState;
use braid_geometry::units::format_size;
use braid_inventory::job_table::is_check;
use braid_inventory::state::SavedDisk;
use braid_inventory::{
    ActiveArray, ArrayCondition, ArraySlot, ExportCondition, MissingMember, OpenDisk, ReconcilerHandle, Tables,
    counted, disk_state,
};
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// What the text of an event needs: the array's name, and its disks by slot.
type EventContext = (String, Vec<(u16, Arc<OpenDisk>)>);

impl ArrayManager {
    /// Records and logs an event of a reconciler.
    pub(crate) fn on_reconciler_event(self: &Arc<Self>, uuid: Uuid, event: ReconcilerEvent) {
        let Some((name, disks)) = self.event_context(uuid) else { return };
        let member = |slot: u16| match disks.iter().find(|(other, _)| *other == slot) {
            Some((_, disk)) => format!("member {slot} (disk {}) of array {name}", disk.name),
            None => format!("member {slot} of array {name}"),
        };
        let report = |severity: Severity, kind: &str, message: String, slot: Option<u16>| {
            let disk = slot.and_then(|slot| disks.iter().find(|(other, _)| *other == slot));
            let slot = slot.map(|slot| slot.to_string());
            let mut context = vec![("array", name.as_str())];
            context.extend(slot.iter().map(|slot| ("member", slot.as_str())));
            context.extend(disk.iter().map(|(_, disk)| ("disk", disk.name.as_str())));
            self.inventory.events().add(severity, kind, message, &context);
        };
        match event {
            ReconcilerEvent::Dropped(slots) => {
                for slot in slots {
                    let left_out = |active: &ActiveArray| active.left_out.contains(&slot);
                    let by_command =
                        self.inventory.read().arrays.get(&uuid).and_then(|entry| entry.active()).is_some_and(left_out);
                    let disk = disks.iter().find(|(other, _)| *other == slot).filter(|_| !by_command);
                    let why = disk.map(|(_, disk)| self.why_dropped(disk));
                    let why = if by_command { "by command".to_owned() } else { why.unwrap_or_default() };
                    let message = format!("{} was dropped: {why}; the array continues without it", member(slot));
                    report(Severity::Error, "member_dropped", message, Some(slot));
                }
            }
            ReconcilerEvent::RebuildStarted(slot) => {
                let message = format!("{} is being rebuilt", member(slot));
                report(Severity::Info, "member_rebuilding", message, Some(slot));
            }
            ReconcilerEvent::InSync(slot) => {
                report(Severity::Info, "member_in_sync", format!("{} is in sync", member(slot)), Some(slot));
            }
            ReconcilerEvent::Grown(before_bytes, after_bytes) => self.report_growth(&name, before_bytes, after_bytes),
            ReconcilerEvent::Replaced(slot, leaf) => {
                let disk = disks.iter().find(|(_, disk)| disk.leaf == leaf).map_or("another one", |(_, d)| &d.name);
                let message = format!("the disk of member {slot} of array {name} was replaced: it is {disk} now");
                report(Severity::Info, "member_replaced", message, Some(slot));
            }
            ReconcilerEvent::Job(job) => {
                let about = is_check(job.kind).then(|| job.clone());
                let is_new = self.with_reconciler(uuid, |handle| handle.note_job(job)).unwrap_or_default();
                if about.as_ref().is_some_and(|job| job.stage.is_over()) {
                    // Saved now: after a restart an ended check must not be resumed, and its findings must be known.
                    let manager = Arc::clone(self);
                    tasks::spawn(async move { manager.inventory.save_or_warn() });
                }
                if let Some((severity, kind, message)) = about.and_then(|job| findings::event(&name, &job, is_new)) {
                    report(severity, kind, message, None);
                }
            }
            ReconcilerEvent::RingMoved { to: Some(leaf), .. } => {
                let disk = disks.iter().find(|(_, disk)| disk.leaf == leaf).map_or("its disk", |(_, disk)| &disk.name);
                let message = format!("the journal of array {name} is on disk {disk}");
                self.set_lost_journal(uuid, None);
                report(Severity::Info, "journal_moved", message, None);
            }
            ReconcilerEvent::RingMoved { to: None, lost: false } => {
                self.set_lost_journal(uuid, None);
                report(Severity::Info, "journal_moved", format!("the journal of array {name} is on its members"), None);
            }
            ReconcilerEvent::RingMoved { to: None, lost: true } => {
                let disk =
                    self.inventory.read().arrays.get(&uuid).and_then(|entry| entry.active()?.last_journal.clone());
                self.report_lost_journal(uuid, &name, &disk.unwrap_or_else(|| "unknown".to_owned()));
            }
            ReconcilerEvent::Resynced => {
                let unread = self.with_reconciler(uuid, ReconcilerHandle::unread_blocks).unwrap_or_default();
                let mut message = format!("the resync of array {name} is complete");
                if unread == 0 {
                    return report(Severity::Info, "resynced", message, None);
                }
                let blocks = counted(unread as usize, "block", "blocks");
                message.push_str(&format!(", except {blocks} that could be read from no member"));
                report(Severity::Warning, "resynced", message, None);
                // Saved now: the unread blocks must be known after a restart.
                let manager = Arc::clone(self);
                tasks::spawn(async move { manager.inventory.save_or_warn() });
            }
            ReconcilerEvent::ArrayFailed => {
                let _ = self.with_reconciler(uuid, |handle| handle.set_failed());
                let message = format!(
                    "array {name} has failed: more members have failed than it tolerates; nothing more is written to it"
                );
                report(Severity::Error, "array_failed", message, None);
            }
            ReconcilerEvent::Repaired(slot, offset, len) => {
                let message = format!(
                    "{} could not read {} at byte {offset} of the array; it was rewritten from the other members",
                    member(slot),
                    format_size(len)
                );
                report(Severity::Warning, "read_repaired", message, Some(slot));
            }
            ReconcilerEvent::Unreadable { offset, bytes, sources, rebuilding: lacking } => {
                if lacking.is_empty() {
                    let _ = self.with_reconciler(uuid, |handle| handle.note_unread(offset, bytes));
                }
                let sources: Vec<String> = sources.into_iter().map(member).collect();
                let place = format!("{} at byte {offset} of array {name}", format_size(bytes));
                let then = match &lacking[..] {
                    [] => "reading it is an error until it is written again".to_owned(),
                    slots => format!(
                        "{} is rebuilt except for that range, and completes once the range has been written again",
                        slots.iter().map(|slot| member(*slot)).collect::<Vec<_>>().join(" and ")
                    ),
                };
                let message = format!(
                    "{place} cannot be read from any member that should have it ({}): {then}",
                    sources.join("; ")
                );
                report(Severity::Error, "unreadable", message, lacking.first().copied());
            }
            // The array has failed, and `ArrayFailed`, which always comes next, reports it.
            ReconcilerEvent::OperationFailed(error) if is_beyond_tolerance(&error) => {}
            ReconcilerEvent::OperationFailed(error) => {
                let name_of = |leaf| disks.iter().find(|(_, d)| d.leaf == leaf).map(|(_, d)| d.name.clone());
                let message = lifecycle_error(&error, &name, &name_of).message;
                report(Severity::Warning, "array_fault", message, None);
            }
        }
    }

    /// Returns the array's name, and its disks by slot.
    fn event_context(&self, uuid: Uuid) -> Option<EventContext> {
        let tables = self.inventory.read();
        let entry = tables.arrays.get(&uuid)?;
        let active = entry.active()?;
        let array_slots = active.disks.iter().map(|array_slot| (array_slot.role, Arc::clone(&array_slot.disk)));
        // Guests have no slot yet, but their names are needed.
        let disks = array_slots.chain(active.guests.iter().map(|disk| (u16::MAX, Arc::clone(disk)))).collect();
        Some((entry.name.clone(), disks))
    }

    /// Calls `work` with the handle of the reconciler of an active redundant array, with the tables unlocked. None: the
    /// array is not active, or has no reconciler.
    pub fn with_reconciler<T>(&self, uuid: Uuid, work: impl FnOnce(&ReconcilerHandle) -> T) -> Option<T> {
        let handle = self.inventory.read().arrays.get(&uuid).and_then(|entry| entry.active()?.reconciler().cloned());
        handle.map(|handle| work(&handle))
    }

    /// Returns true if a member on a remote disk that has just failed returns automatically once its server responds
    /// again. It does not if the server may still execute requests from before: they could overwrite what is copied to
    /// the disk. Some connections of the disk may find that out later: see [`ArrayManager::stays_away`].
    fn returns_automatically(&self, disk: &OpenDisk) -> bool {
        let failed = || self.ring.leaf_stats(disk.leaf).is_some_and(|stats| stats.errors > 0);
        disk.disk.is_remote() && disk.disk.has_no_pending_effects() && (disk.disk.loss_reason().is_some() || failed())
    }

    /// Keeps members on a remote disk from returning automatically, whatever was known when they were dropped: the last
    /// connection of the disk has ended, and its server may still execute earlier requests.
    pub(crate) fn stays_away(&self, disk: &str) {
        for entry in self.inventory.write().arrays.values_mut() {
            if let ArrayCondition::Active(active) = &mut entry.condition {
                active
                    .missing
                    .values_mut()
                    .filter(|missing| missing.disk == disk)
                    .for_each(|missing| missing.gone = false);
            }
        }
    }

    /// Describes why a member was dropped, as far as its disk tells.
    fn why_dropped(&self, disk: &OpenDisk) -> String {
        if let Some(why) = disk.disk.loss_reason() {
            return why.to_owned();
        }
        let stats = self.ring.leaf_stats(disk.leaf).unwrap_or_default();
        match (stats.errors, disk_state(disk).1) {
            (0, None) => "by command".to_owned(),
            (0, Some(fault)) => fault,
            (errors, _) => counted(errors as usize, "I/O failed", "I/Os failed"),
        }
    }

    /// Copies a changed label into the tables. Disks that are no longer members are closed.
    pub(crate) fn on_recorded(self: &Arc<Self>, uuid: Uuid, array: &Array) {
        let (leaving, changed, grown) = {
            let mut tables = self.inventory.write();
            let Some(entry) = tables.arrays.get_mut(&uuid) else { return };
            let name = entry.name.clone();
            let ArrayCondition::Active(active) = &mut entry.condition else { return };
            let size_bytes = active.size_bytes;
            let leaving = self.assign_slots(active, array);
            let grown = active.size_bytes > size_bytes;
            self.record_closing_disks(&leaving);
            let changed = active.is_kept() && record_slots(&mut tables, uuid, &name);
            (leaving, changed, grown)
        };
        if grown {
            // Only the size of an export follows: its block status asks the device. The shards get the larger layout
            // before clients connect that negotiate the new size.
            let tables = self.inventory.read();
            for export in tables.exports.values().filter(|export| export.saved.array == uuid) {
                if let ExportCondition::Listening(export) = &export.serving {
                    export.grow(array.geometry().size_bytes());
                }
            }
        }
        if leaving.is_empty() && !changed {
            return;
        }
        let manager = Arc::clone(self);
        tasks::spawn(async move {
            manager.close_disks(leaving).await;
            if changed {
                manager.inventory.save_or_warn();
            }
        });
    }

    /// Assigns the disks of an array to its slots. Returns the disks that have no slot any more.
    fn assign_slots(&self, active: &mut ActiveArray, array: &Array) -> Vec<Arc<OpenDisk>> {
        let known = active.open_disks();
        let before = std::mem::take(&mut active.disks);
        let state = |slot: u16| active.label.members.get(usize::from(slot)).map(|entry| entry.state);
        let held = |array_slot: &&ArraySlot| state(array_slot.role) == Some(MemberState::Journal);
        let journal = before.iter().find(held).map(|array_slot| array_slot.disk.name.clone());
        active.last_journal = journal.or(active.last_journal.take());
        active.label = array.label().clone();
        active.size_bytes = array.geometry().size_bytes();
        active.disks = array_slots_of(array, &known);
        let has_slot = |disk: &Arc<OpenDisk>| active.disks.iter().any(|array_slot| array_slot.disk.leaf == disk.leaf);
        active.guests.retain(|guest| !has_slot(guest));
        let left: Vec<_> = before.into_iter().filter(|array_slot| !has_slot(&array_slot.disk)).collect();
        active.missing.retain(|slot, _| array.state(*slot) == MemberState::Failed);
        for array_slot in &left {
            if array.state(array_slot.role) == MemberState::Failed {
                // Not checked here whether the disk still exists, because that may block: `watch_missing` does it.
                let disk = array_slot.disk.name.clone();
                let (why, gone) = match active.left_out.contains(&array_slot.role) {
                    true => ("by command".to_owned(), false),
                    false => (self.why_dropped(&array_slot.disk), self.returns_automatically(&array_slot.disk)),
                };
                let missing = MissingMember { disk, why, gone, entry: array_slot.disk.entry };
                active.missing.insert(array_slot.role, missing);
            }
        }
        left.into_iter().map(|array_slot| array_slot.disk).collect()
    }
}

/// Records in the tables which disks an array has and in which slots. The disk of a failed member stays recorded under
/// its former name and slot. Guests (disks that are about to become members) keep the record that they have, if any.
/// Returns true if anything changed: the caller saves the state file.
pub(crate) fn record_slots(tables: &mut Tables, uuid: Uuid, name: &str) -> bool {
    // The locations of replicas are recorded with their volume.
    if tables.replicated.contains_key(&uuid) {
        return false;
    }
    let Some(active) = tables.arrays.get(&uuid).and_then(|entry| entry.active()) else { return false };
    let mut noted: BTreeMap<String, SavedDisk> = BTreeMap::new();
    let mut note = |disk: &str, slot: u16| {
        let saved = SavedDisk { disk: disk.to_owned(), array: uuid, array_name: name.to_owned(), slot };
        noted.insert(disk.to_owned(), saved);
    };
    active
        .missing
        .iter()
        .filter(|(_, missing)| !missing.disk.is_empty())
        .for_each(|(slot, missing)| note(&missing.disk, *slot));
    active.disks.iter().for_each(|array_slot| note(&array_slot.disk.name, array_slot.role));
    let guests = active.guests.iter().filter_map(|guest| tables.disks.get(&guest.name));
    noted.extend(guests.filter(|saved| saved.array == uuid).map(|saved| (saved.disk.clone(), saved.clone())));
    let before: BTreeMap<String, SavedDisk> =
        tables.disks.iter().filter(|(_, saved)| saved.array == uuid).map(|(k, v)| (k.clone(), v.clone())).collect();
    if before == noted {
        return false;
    }
    tables.disks.retain(|_, saved| saved.array != uuid);
    tables.disks.extend(noted);
    true
}
