//! Letting a disk take the place of a member, which serves until it is full.

use super::super::disks::remove_files;
use super::super::pools::refuse_higher_tier;
use super::super::tables::{ArrayEntry, Condition, OpenDisk};
use super::super::{Control, random};
use super::jobs::name_of;
use super::members::{check_fit, made_by, stopped_meanwhile};
use braid_api::{Array, ErrorDetail, Kind, ReplaceMember};
use braid_engine::keeper::Order;
use braid_engine::lifecycle::Replacement;
use braid_format::{ArrayPart, JobKind, MemberId, MemberState};
use std::sync::Arc;
use uuid::Uuid;

impl Control {
    /// Lets a disk, or a spare, take the place of a member. Gives the job that fills it, too.
    ///
    /// # Errors
    /// There is no such member, it does not serve, there is no spare for it, or the disk cannot be used.
    pub async fn replace_member(
        self: &Arc<Self>,
        array: &str,
        ask: ReplaceMember,
    ) -> Result<(Array, Option<String>), ErrorDetail> {
        let claim = self.claim(array, "changed")?;
        let keeping = self.keeping(array)?;
        let (name, role, state) = self.member(claim.uuid, &ask.member)?;
        self.check_replaceable(&name, role, state, claim.uuid)?;
        match self.spare_for(claim.uuid, &name, role, ask.disk.as_deref())? {
            Some(spare) => {
                let by = Replacement::Spare(spare);
                self.give_order(claim.uuid, Order::Replace { slot: role, successor: by }).await?;
            }
            None => {
                let disk = ask.disk.as_deref().unwrap_or_default();
                let (_path, disk, absent) = self.open_new(disk).await?;
                if let Err(error) = self.replace_by(claim.uuid, role, &disk, ask.force).await {
                    remove_files(&made_by(&disk, &absent));
                    self.leave(claim.uuid, disk).await;
                    return Err(error);
                }
            }
        }
        self.save_or_warn();
        let array = self.array(&claim.uuid.to_string())?;
        let job = keeping.newest(|job| job.kind == JobKind::Replace).map(|job| name_of(&array.name, job.number));
        Ok((array, job))
    }

    async fn replace_by(
        self: &Arc<Self>,
        uuid: Uuid,
        role: u16,
        disk: &Arc<OpenDisk>,
        force: bool,
    ) -> Result<(), ErrorDetail> {
        refuse_higher_tier(&self.read(), uuid, disk)?;
        {
            let mut tables = self.write();
            let Some(ArrayEntry { name, condition: Condition::Active(active), .. }) = tables.arrays.get_mut(&uuid)
            else {
                return Err(stopped_meanwhile(&uuid.to_string()));
            };
            check_fit(name, active, disk)?;
            active.guests.push(Arc::clone(disk));
        }
        let by = Replacement::New { leaf: disk.leaf, id: random().map(MemberId::from_random)?, force };
        self.give_order(uuid, Order::Replace { slot: role, successor: by }).await
    }

    fn check_replaceable(&self, name: &str, role: u16, state: MemberState, uuid: Uuid) -> Result<(), ErrorDetail> {
        let refused = |why: String, remedy: String| {
            let error = ErrorDetail::new(Kind::InvalidArgument, why).with("array", name).with("member", role);
            Err(error.remedy(remedy))
        };
        let label = self.read().arrays.get(&uuid).and_then(|entry| Some(entry.active()?.label.clone()));
        let is_successor = label.is_some_and(|label| replaced_by(&label, role).is_some());
        match state {
            _ if is_successor => refused(
                format!("member {role} of array {name} is itself about to take another one's place"),
                format!("braid array show {name}"),
            ),
            MemberState::InSync => Ok(()),
            MemberState::Spare => refused(
                format!("member {role} of array {name} is a spare"),
                format!("braid array remove {name} {role}, then add the other disk: braid array spare {name} DISK"),
            ),
            MemberState::Journal => refused(
                format!("member {role} of array {name} is the disk of its journal, and holds no data"),
                format!("braid array journal {name} --members, then braid array journal {name} DISK"),
            ),
            MemberState::Rebuilding => refused(
                format!("member {role} of array {name} is being filled"),
                "wait until it is in sync: braid job list".to_owned(),
            ),
            MemberState::Failed | MemberState::Empty => refused(
                format!("member {role} of array {name} is out: there is nothing to replace"),
                format!("braid array add {name} DISK"),
            ),
        }
    }

    /// The spare that is meant; none where it is a disk of its own.
    fn spare_for(&self, uuid: Uuid, name: &str, role: u16, disk: Option<&str>) -> Result<Option<u16>, ErrorDetail> {
        if let Some(disk) = disk {
            let named = self.member(uuid, disk).ok();
            return Ok(named.filter(|(_, _, state)| *state == MemberState::Spare).map(|(_, spare, _)| spare));
        }
        let tables = self.read();
        let active = tables.arrays.get(&uuid).and_then(|entry| entry.active());
        let active = active.ok_or_else(|| stopped_meanwhile(name))?;
        let members = &active.label.members;
        let needed_bytes = active.label.geometry().map_or(0, |geometry| {
            let zones = geometry.zones().iter().filter(|zone| zone.members.contains(&role));
            zones.map(|zone| zone.member_end()).max().unwrap_or(0)
        });
        let spares = members.iter().zip(0u16..).filter(|(m, _)| m.state == MemberState::Spare);
        let here = |spare: u16| active.disks.iter().any(|seat| seat.role == spare);
        // The smallest that will do: a larger one may be needed for a larger member.
        let fits = spares.filter(|(m, spare)| m.data_bytes >= needed_bytes && here(*spare));
        let spare = fits.min_by_key(|(m, _)| m.data_bytes).map(|(_, spare)| spare);
        spare.map(Some).ok_or_else(|| {
            ErrorDetail::new(
                Kind::InvalidArgument,
                format!("array {name} has no spare that could replace member {role}"),
            )
            .with("array", name)
            .with("member", role)
            .remedy(format!("name the disk: braid array replace {name} {role} DISK"))
        })
    }
}

/// The member whose place this one is to take.
pub(in super::super) fn replaced_by(label: &ArrayPart, successor: u16) -> Option<u16> {
    let job = label.jobs.iter().find(|job| job.kind == JobKind::Replace && job.target == Some(successor));
    job.and_then(|job| job.source)
}
