//! The location of the journal of an array with parity: on its members, or on a dedicated disk, which may be lost.
//!
//! A lost journal disk is remembered until a command sets the location of the journal: the array goes on just as well
//! without such a disk, so that nothing else would report the loss.

use crate::ArrayManager;
use crate::change::inactive;
use crate::disks::remove_files;
use crate::member_state::member_state;
use crate::reconcilers::members::{check_fit, created_files, stopped_meanwhile};
use braid_advice::Redundant;
use braid_api::{Array, ErrorDetail, Journal, Kind, MoveJournal};
use braid_array_admin::reconciler::Order;
use braid_format::{MemberId, MemberState};
use braid_inventory::{ActiveArray, ArrayCondition, ArrayEntry, OpenDisk, random, refuse_higher_stack_level};
use braid_tasks as tasks;
use std::sync::Arc;
use uuid::Uuid;

/// Returns the slot and the disk of the journal, as the label records them.
fn disk_of(active: &ActiveArray) -> Option<(u16, Option<&Arc<OpenDisk>>)> {
    let at = active.label.members.iter().position(|entry| entry.state == MemberState::Journal)?;
    let slot = at as u16;
    Some((slot, active.disks.iter().find(|array_slot| array_slot.role == slot).map(|array_slot| &array_slot.disk)))
}

/// Returns the location of the journal; [`None`] at levels without parity.
pub(crate) fn shown(active: &ActiveArray) -> Option<Journal> {
    let handle = active.reconciler().filter(|_| active.label.spec.level.parity() > 0)?;
    let on = disk_of(active);
    let (member, disk) = (on.map(|(slot, _)| slot), on.and_then(|(_, disk)| disk));
    Some(Journal {
        member,
        disk: disk.map(|disk| disk.name.clone()),
        state: member.map(|_| member_state(MemberState::Journal, disk.map(|disk| &**disk))),
        lost_disk: handle.lost_journal(),
    })
}

/// Describes the lost journal disk.
pub(crate) fn sentence(active: &ActiveArray) -> Option<String> {
    let lost = active.reconciler()?.lost_journal()?;
    Some(format!("the disk of its journal ({lost}) was lost; the journal is on the members"))
}

/// Returns the attention case of a lost journal disk.
pub(crate) fn lost(active: &ActiveArray) -> Option<(Redundant, String)> {
    Some((Redundant::JournalLost, sentence(active)?))
}

impl ArrayManager {
    /// Moves the journal of an array with parity to a dedicated disk, or to the members, while the array serves.
    ///
    /// # Errors
    /// The array has no journal, the journal is there already, or the disk cannot be used.
    pub async fn move_journal(self: &Arc<Self>, array: &str, request: MoveJournal) -> Result<Array, ErrorDetail> {
        let claim = self.inventory.claim(array, "changed")?;
        let (name, on) = self.journal_of(array)?;
        let refused = |kind: Kind, why: String, remedy: String| {
            Err(ErrorDetail::new(kind, why).with("array", &name).remedy(remedy))
        };
        let usage = format!("braid array journal {name} DISK, or braid array journal {name} --members");
        match (&request.disk, request.members, on) {
            (Some(_), true, _) | (None, false, _) => {
                let why = "the destination of the journal is missing: name a disk, or the members".to_owned();
                return refused(Kind::InvalidArgument, why, usage);
            }
            (None, true, _) if request.force => {
                let why = "force applies to the contents of a disk, and no disk is named".to_owned();
                return refused(Kind::InvalidArgument, why, usage);
            }
            (Some(_), false, Some(disk)) => {
                let why = format!("the journal of array {name} is on a disk already: {disk}");
                return refused(
                    Kind::InUse,
                    why,
                    format!(
                        "put it on the members first (braid array journal {name} --members), then on the other disk"
                    ),
                );
            }
            (None, true, Some(_)) => self.give_order(claim.uuid, Order::JournalToMembers).await?,
            (None, true, None) => {
                if !self.set_lost_journal(claim.uuid, None) {
                    let why = format!("the journal of array {name} is on its members already");
                    return refused(Kind::InvalidArgument, why, format!("braid array show {name}"));
                }
            }
            (Some(disk), false, None) => self.journal_to(claim.uuid, &name, disk, request.force).await?,
        }
        self.inventory.save_or_warn();
        self.array(&claim.uuid.to_string())
    }

    /// Returns the array's name, and the disk that its journal is on.
    fn journal_of(&self, array: &str) -> Result<(String, Option<String>), ErrorDetail> {
        let tables = self.inventory.read();
        let entry = tables.array(array)?;
        let name = entry.name.clone();
        let active = entry.active().ok_or_else(|| inactive(entry, "changed"))?;
        let level = active.label.spec.level;
        if level.parity() == 0 {
            return Err(ErrorDetail::new(
                Kind::InvalidArgument,
                format!("array {name} is {level}, which has no journal"),
            )
            .with("array", &name)
            .remedy("only arrays with parity (raid5, raid6) have one"));
        }
        let on =
            disk_of(active).map(|(slot, disk)| disk.map_or_else(|| format!("member {slot}"), |disk| disk.name.clone()));
        Ok((name, on))
    }

    async fn journal_to(self: &Arc<Self>, uuid: Uuid, name: &str, disk: &str, force: bool) -> Result<(), ErrorDetail> {
        let (_path, disk, absent) = self.open_new(disk).await?;
        let given = self.give_journal(uuid, name, &disk, force).await;
        if given.is_err() {
            remove_files(&created_files(&disk, &absent));
            self.leave(uuid, disk).await;
        }
        given
    }

    async fn give_journal(
        self: &Arc<Self>,
        uuid: Uuid,
        name: &str,
        disk: &Arc<OpenDisk>,
        force: bool,
    ) -> Result<(), ErrorDetail> {
        let id = random().map(MemberId::from_random)?;
        refuse_higher_stack_level(&self.inventory.read(), uuid, disk)?;
        let (number, kept) = {
            let mut tables = self.inventory.write();
            let Some(ArrayEntry { name, condition: ArrayCondition::Active(active), .. }) = tables.arrays.get_mut(&uuid)
            else {
                return Err(stopped_meanwhile(name));
            };
            check_fit(name, active, disk)?;
            active.guests.push(Arc::clone(disk));
            (active.label.members.len() as u16, active.is_kept())
        };
        // Recorded before the first label is written, so that the next start looks at the disk: harmless while it has
        // no label.
        let disks = std::slice::from_ref(disk);
        let noted = if kept { self.record_array_disks(uuid, name, disks, number)? } else { Vec::new() };
        let given = self.give_order(uuid, Order::JournalOn { leaf: disk.leaf, id, force }).await;
        if given.is_err() {
            self.undo_record(noted);
            self.inventory.save_or_warn();
        }
        given
    }

    /// Records or clears the loss of the disk of an array's journal. Returns true if that changed the record.
    pub(crate) fn set_lost_journal(&self, uuid: Uuid, disk: Option<String>) -> bool {
        let _ = self.with_reconciler(uuid, |handle| handle.set_lost_journal(disk.clone()));
        let mut tables = self.inventory.write();
        match disk {
            Some(disk) => tables.lost_journals.insert(uuid, disk.clone()) != Some(disk),
            None => tables.lost_journals.remove(&uuid).is_some(),
        }
    }

    /// Reports that the disk of an array's journal was lost, while the array served or at its start.
    pub(crate) fn report_lost_journal(self: &Arc<Self>, uuid: Uuid, name: &str, disk: &str) {
        self.set_lost_journal(uuid, Some(disk.to_owned()));
        let message = format!(
            "array {name} has lost the disk of its journal ({disk}) and goes on: the journal is on its members"
        );
        self.inventory.events().error("journal_disk_lost", message, &[("array", name), ("disk", disk)]);
        let manager = Arc::clone(self);
        tasks::spawn(async move { manager.inventory.save_or_warn() });
    }
}
