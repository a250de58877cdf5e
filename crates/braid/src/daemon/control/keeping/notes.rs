//! What a keeper tells becomes events, and what the tables say of its array.

use super::super::tables::{Active, Away, Condition, OpenDisk, Seat, Serving, Tables};
use super::super::view;
use super::super::{Control, counted};
use super::board::is_check;
use super::door::is_beyond;
use super::{findings, seats_of};
use crate::daemon::state::SavedDisk;
use braid_advice::errors::of_lifecycle;
use braid_api::Severity;
use braid_engine::keeper::ReconcilerEvent;
use braid_engine::lifecycle::Array;
use braid_format::MemberState;
use braid_geometry::units::format_size;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uuid::Uuid;

impl Control {
    /// Remembers and logs what a keeper tells.
    pub(super) fn on_note(self: &Arc<Self>, uuid: Uuid, note: ReconcilerEvent) {
        let Some((name, disks, failed)) = self.about(uuid) else { return };
        let member = |role: u16| match disks.iter().find(|(other, _)| *other == role) {
            Some((_, disk)) => format!("member {role} (disk {}) of array {name}", disk.name),
            None => format!("member {role} of array {name}"),
        };
        let tell = |severity: Severity, kind: &str, message: String, role: Option<u16>| {
            let disk = role.and_then(|role| disks.iter().find(|(other, _)| *other == role));
            let role = role.map(|role| role.to_string());
            let mut context = vec![("array", name.as_str())];
            context.extend(role.iter().map(|role| ("member", role.as_str())));
            context.extend(disk.iter().map(|(_, disk)| ("disk", disk.name.as_str())));
            self.events().add(severity, kind, message, &context);
        };
        match note {
            ReconcilerEvent::Dropped(roles) => {
                for role in roles {
                    let left_out = |active: &Active| active.left_out.contains(&role);
                    let by_command =
                        self.read().arrays.get(&uuid).and_then(|entry| entry.active()).is_some_and(left_out);
                    let disk = disks.iter().find(|(other, _)| *other == role).filter(|_| !by_command);
                    let why = disk.map(|(_, disk)| self.why_dropped(disk));
                    let why = if by_command { "by command".to_owned() } else { why.unwrap_or_default() };
                    let message = format!("{} is left out: {why}; the array goes on without it", member(role));
                    tell(Severity::Error, "member_dropped", message, Some(role));
                }
            }
            ReconcilerEvent::RebuildStarted(role) => {
                let message = format!("{} is brought up to date", member(role));
                tell(Severity::Info, "member_filling", message, Some(role));
            }
            ReconcilerEvent::InSync(role) => {
                tell(Severity::Info, "member_in_sync", format!("{} is in sync", member(role)), Some(role));
            }
            ReconcilerEvent::Grown(before_bytes, after_bytes) => self.tell_grown(&name, before_bytes, after_bytes),
            ReconcilerEvent::Replaced(role, leaf) => {
                let disk = disks.iter().find(|(_, disk)| disk.leaf == leaf).map_or("another one", |(_, d)| &d.name);
                let message = format!("the disk of member {role} of array {name} was replaced: it is {disk} now");
                tell(Severity::Info, "member_replaced", message, Some(role));
            }
            ReconcilerEvent::Job(job) => {
                let about = is_check(job.kind).then(|| job.clone());
                let is_new = self.with_keeping(uuid, |keeping| keeping.note_job(job)).unwrap_or_default();
                if about.as_ref().is_some_and(|job| job.stage.is_over()) {
                    // What has ended is not gone on with after a restart, and what it has found is known then.
                    let control = Arc::clone(self);
                    tokio::spawn(async move { control.save_or_warn() });
                }
                if let Some((severity, kind, message)) = about.and_then(|job| findings::event(&name, &job, is_new)) {
                    tell(severity, kind, message, None);
                }
            }
            ReconcilerEvent::RingMoved { to: Some(leaf), .. } => {
                let disk = disks.iter().find(|(_, disk)| disk.leaf == leaf).map_or("its disk", |(_, disk)| &disk.name);
                let message = format!("the journal of array {name} is on disk {disk}");
                self.set_lost_journal(uuid, None);
                tell(Severity::Info, "journal_moved", message, None);
            }
            ReconcilerEvent::RingMoved { to: None, lost: false } => {
                self.set_lost_journal(uuid, None);
                tell(Severity::Info, "journal_moved", format!("the journal of array {name} is on its members"), None);
            }
            ReconcilerEvent::RingMoved { to: None, lost: true } => {
                let disk = self.read().arrays.get(&uuid).and_then(|entry| entry.active()?.last_journal.clone());
                self.tell_lost_journal(uuid, &name, &disk.unwrap_or_else(|| "unknown".to_owned()));
            }
            ReconcilerEvent::Resynced => {
                let unread = self.with_keeping(uuid, super::Keeping::unread_blocks).unwrap_or_default();
                let mut message = format!("all members of array {name} are equal again");
                if unread == 0 {
                    return tell(Severity::Info, "resynced", message, None);
                }
                let blocks = counted(unread as usize, "block", "blocks");
                message.push_str(&format!(", but for {blocks} that no member could give"));
                tell(Severity::Warning, "resynced", message, None);
                // That is known after a restart, too.
                let control = Arc::clone(self);
                tokio::spawn(async move { control.save_or_warn() });
            }
            ReconcilerEvent::ArrayFailed => {
                let _ = self.with_keeping(uuid, |keeping| keeping.failed.store(true, Ordering::Relaxed));
                let message = format!(
                    "array {name} has failed: more members are lost than it tolerates; nothing more is written to it"
                );
                tell(Severity::Error, "array_failed", message, None);
            }
            ReconcilerEvent::Repaired(role, offset, len) => {
                let message = format!(
                    "{} could not read {} at byte {offset} of the array; it was written again with what others have",
                    member(role),
                    format_size(len)
                );
                tell(Severity::Warning, "read_repaired", message, Some(role));
            }
            ReconcilerEvent::Unreadable { offset, bytes, sources, rebuilding: lacking } => {
                if lacking.is_empty() {
                    let _ = self.with_keeping(uuid, |keeping| keeping.note_unread(offset, bytes));
                }
                let sources: Vec<String> = sources.into_iter().map(member).collect();
                let place = format!("{} at byte {offset} of array {name}", format_size(bytes));
                let then = match &lacking[..] {
                    [] => "reading it is an error until it is written again".to_owned(),
                    roles => format!(
                        "{} is brought up to date but for that, and completed when it has been written again",
                        roles.iter().map(|role| member(*role)).collect::<Vec<_>>().join(" and ")
                    ),
                };
                let message = format!(
                    "{place} cannot be read from any member that should have it ({}): {then}",
                    sources.join("; ")
                );
                tell(Severity::Error, "unreadable", message, lacking.first().copied());
            }
            // That one is told by `Failed`, which comes next.
            ReconcilerEvent::OperationFailed(error) if is_beyond(&error) && failed => {}
            ReconcilerEvent::OperationFailed(error) => {
                let name_of = |leaf| disks.iter().find(|(_, d)| d.leaf == leaf).map(|(_, d)| d.name.clone());
                let message = of_lifecycle(&error, &name, &name_of).message;
                tell(Severity::Warning, "array_trouble", message, None);
            }
        }
    }

    /// The array's name and its disks by role, and whether it has failed.
    #[allow(clippy::type_complexity)]
    fn about(&self, uuid: Uuid) -> Option<(String, Vec<(u16, Arc<OpenDisk>)>, bool)> {
        let tables = self.read();
        let entry = tables.arrays.get(&uuid)?;
        let active = entry.active()?;
        let seats = active.disks.iter().map(|seat| (seat.role, Arc::clone(&seat.disk)));
        // Guests have no number so far; their names count all the same.
        let disks = seats.chain(active.guests.iter().map(|disk| (u16::MAX, Arc::clone(disk)))).collect();
        Some((entry.name.clone(), disks, active.has_failed()))
    }

    pub(in super::super) fn with_keeping<T>(&self, uuid: Uuid, work: impl FnOnce(&super::Keeping) -> T) -> Option<T> {
        let keeping = self.read().arrays.get(&uuid).and_then(|entry| entry.active()?.keeping().cloned());
        keeping.map(|keeping| work(&keeping))
    }

    /// Whether a member that was left out, though not by command, is to return when its server is there again: not if its server may still
    /// do what it was asked for before. Some of its connections may have to find that out yet: see `stays_away`.
    fn is_missed(&self, disk: &OpenDisk) -> bool {
        let failed = || self.ring.leaf_stats(disk.leaf).is_some_and(|stats| stats.errors > 0);
        disk.disk.is_remote() && disk.disk.has_no_pending_effects() && (disk.disk.loss_reason().is_some() || failed())
    }

    /// The last connection of a disk has ended, and its server may still do what it was asked for: a member that had the disk does not return by
    /// itself, whatever was known when it was left out.
    pub(in super::super) fn stays_away(&self, disk: &str) {
        for entry in self.write().arrays.values_mut() {
            if let Condition::Active(active) = &mut entry.condition {
                active.away.values_mut().filter(|away| away.disk == disk).for_each(|away| away.gone = false);
            }
        }
    }

    /// Why a member was left out, as far as its disk tells.
    fn why_dropped(&self, disk: &OpenDisk) -> String {
        if let Some(why) = disk.disk.loss_reason() {
            return why.to_owned();
        }
        let stats = self.ring.leaf_stats(disk.leaf).unwrap_or_default();
        match (stats.errors, view::disk_state(disk).1) {
            (0, None) => "by command".to_owned(),
            (0, Some(trouble)) => trouble,
            (errors, _) => counted(errors as usize, "I/O failed", "I/Os failed"),
        }
    }

    /// The labels say something new: so do the tables. Disks that are no members any more are closed.
    pub(super) fn on_recorded(self: &Arc<Self>, uuid: Uuid, array: &Array) {
        let (leaving, changed, grown) = {
            let mut tables = self.write();
            let Some(entry) = tables.arrays.get_mut(&uuid) else { return };
            let name = entry.name.clone();
            let Condition::Active(active) = &mut entry.condition else { return };
            let size_bytes = active.size_bytes;
            let leaving = self.seat(active, array);
            let grown = active.size_bytes > size_bytes;
            self.note_leaving(&leaving);
            let changed = active.is_kept() && note_seats(&mut tables, uuid, &name);
            (leaving, changed, grown)
        };
        if grown {
            // Nobody knows of holes here. Shards meet the larger layout before those who connect from now on.
            let tables = self.read();
            for export in tables.exports.values().filter(|export| export.saved.array == uuid) {
                if let Serving::Listening(export) = &export.serving {
                    export.grow(array.geometry().size_bytes());
                }
            }
        }
        if leaving.is_empty() && !changed {
            return;
        }
        let control = Arc::clone(self);
        tokio::spawn(async move {
            control.close_disks(leaving).await;
            if changed {
                control.save_or_warn();
            }
        });
    }

    /// Gives the disks of an array their numbers. Returns those that have none any more.
    fn seat(&self, active: &mut Active, array: &Array) -> Vec<Arc<OpenDisk>> {
        let known = active.open_disks();
        let before = std::mem::take(&mut active.disks);
        let state = |role: u16| active.label.members.get(usize::from(role)).map(|entry| entry.state);
        let held = |seat: &&Seat| state(seat.role) == Some(MemberState::Journal);
        let journal = before.iter().find(held).map(|seat| seat.disk.name.clone());
        active.last_journal = journal.or(active.last_journal.take());
        active.label = array.label().clone();
        active.size_bytes = array.geometry().size_bytes();
        active.disks = seats_of(array, &known);
        let seated = |disk: &Arc<OpenDisk>| active.disks.iter().any(|seat| seat.disk.leaf == disk.leaf);
        active.guests.retain(|guest| !seated(guest));
        let left: Vec<_> = before.into_iter().filter(|seat| !seated(&seat.disk)).collect();
        active.away.retain(|role, _| array.state(*role) == MemberState::Failed);
        for seat in &left {
            if array.state(seat.role) == MemberState::Failed {
                // Whether it is gone the next look says: asking may block.
                let disk = seat.disk.name.clone();
                let (why, gone) = match active.left_out.contains(&seat.role) {
                    true => ("by command".to_owned(), false),
                    false => (self.why_dropped(&seat.disk), self.is_missed(&seat.disk)),
                };
                let away = Away { disk, why, gone, entry: seat.disk.entry };
                active.away.insert(seat.role, away);
            }
        }
        left.into_iter().map(|seat| seat.disk).collect()
    }
}

/// Notes where an array's disks are now; those of members that are out stay noted where they were, and disks that are about to
/// become members as they were noted before. Says whether that is new.
pub(in super::super) fn note_seats(tables: &mut Tables, uuid: Uuid, name: &str) -> bool {
    // Where replicas are is noted with their volume.
    if tables.replicated.contains_key(&uuid) {
        return false;
    }
    let Some(active) = tables.arrays.get(&uuid).and_then(|entry| entry.active()) else { return false };
    let mut noted: BTreeMap<String, SavedDisk> = BTreeMap::new();
    let mut note = |disk: &str, role: u16| {
        let saved = SavedDisk { disk: disk.to_owned(), array: uuid, array_name: name.to_owned(), role };
        noted.insert(disk.to_owned(), saved);
    };
    active.away.iter().filter(|(_, away)| !away.disk.is_empty()).for_each(|(role, away)| note(&away.disk, *role));
    active.disks.iter().for_each(|seat| note(&seat.disk.name, seat.role));
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
