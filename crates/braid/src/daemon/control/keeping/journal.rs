//! Where the journal of an array with parity is: on its members, or on a disk of its own, which may be lost.
//!
//! A loss is remembered until the journal is put somewhere by command: the array goes on as well as without such a disk, so that
//! nothing else would tell of it.

use super::super::change::inactive;
use super::super::disks::remove_files;
use super::super::pools::refuse_higher_tier;
use super::super::tables::{Active, ArrayEntry, Condition, OpenDisk};
use super::super::{Control, random, view};
use super::Keeping;
use super::members::{check_fit, made_by, stopped_meanwhile};
use braid_advice::Redundant;
use braid_api::{Array, ErrorDetail, Journal, Kind, MoveJournal};
use braid_engine::keeper::Order;
use braid_format::{MemberId, MemberState};
use std::sync::{Arc, PoisonError};
use uuid::Uuid;

impl Keeping {
    /// The disk that the journal was on and that was lost.
    pub(super) fn lost_journal(&self) -> Option<String> {
        self.lost_journal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The number and the disk of the journal's disk, as the label has it.
fn disk_of(active: &Active) -> Option<(u16, Option<&Arc<OpenDisk>>)> {
    let at = active.label.members.iter().position(|entry| entry.state == MemberState::Journal)?;
    let role = at as u16;
    Some((role, active.disks.iter().find(|seat| seat.role == role).map(|seat| &seat.disk)))
}

/// Where the journal is; none at levels without parity.
pub fn shown(active: &Active) -> Option<Journal> {
    let keeping = active.keeping().filter(|_| active.label.spec.level.parity() > 0)?;
    let on = disk_of(active);
    let (member, disk) = (on.map(|(role, _)| role), on.and_then(|(_, disk)| disk));
    Some(Journal {
        member,
        disk: disk.map(|disk| disk.name.clone()),
        state: member.map(|_| view::state_of(MemberState::Journal, disk.map(|disk| &**disk))),
        lost_disk: keeping.lost_journal(),
    })
}

/// What is said of a lost disk.
pub fn sentence(active: &Active) -> Option<String> {
    let lost = active.keeping()?.lost_journal()?;
    Some(format!("the disk of its journal ({lost}) was lost; the journal is on the members"))
}

/// That it was lost, where it was.
pub fn lost(active: &Active) -> Option<(Redundant, String)> {
    Some((Redundant::JournalLost, sentence(active)?))
}

impl Control {
    /// Puts the journal of an array with parity on a disk, or on its members, while it serves.
    ///
    /// # Errors
    /// It has no journal, it is there already, or the disk cannot be used.
    pub async fn move_journal(self: &Arc<Self>, array: &str, ask: MoveJournal) -> Result<Array, ErrorDetail> {
        let claim = self.claim(array, "changed")?;
        let (name, on) = self.journal_of(array)?;
        let refused = |kind: Kind, why: String, remedy: String| {
            Err(ErrorDetail::new(kind, why).with("array", &name).remedy(remedy))
        };
        let usage = format!("braid array journal {name} DISK, or braid array journal {name} --members");
        match (&ask.disk, ask.members, on) {
            (Some(_), true, _) | (None, false, _) => {
                let why = "the journal is to be on a disk or on the members: one of the two has to be said".to_owned();
                return refused(Kind::InvalidArgument, why, usage);
            }
            (None, true, _) if ask.force => {
                let why = "force is about what is on a disk, and no disk is named".to_owned();
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
            (Some(disk), false, None) => self.journal_to(claim.uuid, &name, disk, ask.force).await?,
        }
        self.save_or_warn();
        self.array(&claim.uuid.to_string())
    }

    /// The array's name, and the disk that its journal is on.
    fn journal_of(&self, array: &str) -> Result<(String, Option<String>), ErrorDetail> {
        let tables = self.read();
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
            disk_of(active).map(|(role, disk)| disk.map_or_else(|| format!("member {role}"), |disk| disk.name.clone()));
        Ok((name, on))
    }

    async fn journal_to(self: &Arc<Self>, uuid: Uuid, name: &str, disk: &str, force: bool) -> Result<(), ErrorDetail> {
        let (_path, disk, absent) = self.open_new(disk).await?;
        let given = self.give_journal(uuid, name, &disk, force).await;
        if given.is_err() {
            remove_files(&made_by(&disk, &absent));
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
        refuse_higher_tier(&self.read(), uuid, disk)?;
        let (number, kept) = {
            let mut tables = self.write();
            let Some(ArrayEntry { name, condition: Condition::Active(active), .. }) = tables.arrays.get_mut(&uuid)
            else {
                return Err(stopped_meanwhile(name));
            };
            check_fit(name, active, disk)?;
            active.guests.push(Arc::clone(disk));
            (active.label.members.len() as u16, active.is_kept())
        };
        // Noted before the first label, so that the next start looks for it: harmless while it bears none.
        let disks = std::slice::from_ref(disk);
        let noted = if kept { self.remember(uuid, name, disks, number)? } else { Vec::new() };
        let given = self.give_order(uuid, Order::JournalOn { leaf: disk.leaf, id, force }).await;
        if given.is_err() {
            self.take_back(noted);
            self.save_or_warn();
        }
        given
    }

    /// Remembers, or forgets, that the disk of an array's journal was lost. Says whether that is new.
    pub(super) fn set_lost_journal(&self, uuid: Uuid, disk: Option<String>) -> bool {
        let _ = self.with_keeping(uuid, |keeping| {
            disk.clone_into(&mut keeping.lost_journal.lock().unwrap_or_else(PoisonError::into_inner));
        });
        let mut tables = self.write();
        match disk {
            Some(disk) => tables.lost_journals.insert(uuid, disk.clone()) != Some(disk),
            None => tables.lost_journals.remove(&uuid).is_some(),
        }
    }

    /// The disk of an array's journal is lost, while it served or when it was started.
    pub(super) fn tell_lost_journal(self: &Arc<Self>, uuid: Uuid, name: &str, disk: &str) {
        self.set_lost_journal(uuid, Some(disk.to_owned()));
        let message = format!(
            "array {name} has lost the disk of its journal ({disk}) and goes on: the journal is on its members"
        );
        self.events().error("journal_disk_lost", message, &[("array", name), ("disk", disk)]);
        let control = Arc::clone(self);
        tokio::spawn(async move { control.save_or_warn() });
    }
}
