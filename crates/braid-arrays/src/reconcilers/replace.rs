//! Replaces a member by another disk; the member stays in service until the copy is complete.

use crate::ArrayManager;
use crate::disks::remove_files;
use crate::reconcilers::members::{check_fit, created_files, stopped_meanwhile};
use braid_api::{Array, ErrorDetail, Kind, ReplaceMember};
use braid_array_admin::lifecycle::Replacement;
use braid_array_admin::reconciler::Order;
use braid_format::{ArrayPart, JobKind, MemberId, MemberState};
use braid_inventory::job_table::name_of;
use braid_inventory::{ArrayCondition, ArrayEntry, OpenDisk, random, refuse_higher_stack_level};
use std::sync::Arc;
use uuid::Uuid;

impl ArrayManager {
    /// Replaces a member by a disk or a spare. Returns also the job that copies its data.
    ///
    /// # Errors
    /// There is no such member, it is not in sync, there is no spare for it, or the disk cannot be used.
    pub async fn replace_member(
        self: &Arc<Self>,
        array: &str,
        request: ReplaceMember,
    ) -> Result<(Array, Option<String>), ErrorDetail> {
        let claim = self.inventory.claim(array, "changed")?;
        let handle = self.reconciler_of(array)?;
        let (name, slot, state) = self.member(claim.uuid, &request.member)?;
        self.check_replaceable(&name, slot, state, claim.uuid)?;
        match self.spare_for(claim.uuid, &name, slot, request.disk.as_deref())? {
            Some(spare) => {
                let by = Replacement::Spare(spare);
                self.give_order(claim.uuid, Order::Replace { slot, successor: by }).await?;
            }
            None => {
                let disk = request.disk.as_deref().unwrap_or_default();
                let (_path, disk, absent) = self.open_new(disk).await?;
                if let Err(error) = self.replace_by(claim.uuid, slot, &disk, request.force).await {
                    remove_files(&created_files(&disk, &absent));
                    self.leave(claim.uuid, disk).await;
                    return Err(error);
                }
            }
        }
        self.inventory.save_or_warn();
        let array = self.array(&claim.uuid.to_string())?;
        let job = handle.newest(|job| job.kind == JobKind::Replace).map(|job| name_of(&array.name, job.number));
        Ok((array, job))
    }

    async fn replace_by(
        self: &Arc<Self>,
        uuid: Uuid,
        slot: u16,
        disk: &Arc<OpenDisk>,
        force: bool,
    ) -> Result<(), ErrorDetail> {
        refuse_higher_stack_level(&self.inventory.read(), uuid, disk)?;
        {
            let mut tables = self.inventory.write();
            let Some(ArrayEntry { name, condition: ArrayCondition::Active(active), .. }) = tables.arrays.get_mut(&uuid)
            else {
                return Err(stopped_meanwhile(&uuid.to_string()));
            };
            check_fit(name, active, disk)?;
            active.guests.push(Arc::clone(disk));
        }
        let by = Replacement::New { leaf: disk.leaf, id: random().map(MemberId::from_random)?, force };
        self.give_order(uuid, Order::Replace { slot, successor: by }).await
    }

    fn check_replaceable(&self, name: &str, slot: u16, state: MemberState, uuid: Uuid) -> Result<(), ErrorDetail> {
        let refused = |why: String, remedy: String| {
            let error = ErrorDetail::new(Kind::InvalidArgument, why).with("array", name).with("member", slot);
            Err(error.remedy(remedy))
        };
        let label = self.inventory.read().arrays.get(&uuid).and_then(|entry| Some(entry.active()?.label.clone()));
        let is_successor = label.is_some_and(|label| replaced_by(&label, slot).is_some());
        match state {
            _ if is_successor => refused(
                format!("member {slot} of array {name} is itself replacing another member"),
                format!("braid array show {name}"),
            ),
            MemberState::InSync => Ok(()),
            MemberState::Spare => refused(
                format!("member {slot} of array {name} is a spare"),
                format!("braid array remove {name} {slot}, then add the other disk: braid array spare {name} DISK"),
            ),
            MemberState::Journal => refused(
                format!("member {slot} of array {name} is the disk of its journal, and holds no data"),
                format!("braid array journal {name} --members, then braid array journal {name} DISK"),
            ),
            MemberState::Rebuilding => refused(
                format!("member {slot} of array {name} is being rebuilt"),
                "wait until it is in sync: braid job list".to_owned(),
            ),
            MemberState::Failed | MemberState::Empty => refused(
                format!("member {slot} of array {name} has failed: there is nothing to replace"),
                format!("braid array add {name} DISK"),
            ),
        }
    }

    /// Returns the spare that replaces the member; [`None`] if the disk given is not a spare of the array.
    fn spare_for(&self, uuid: Uuid, name: &str, slot: u16, disk: Option<&str>) -> Result<Option<u16>, ErrorDetail> {
        if let Some(disk) = disk {
            let named = self.member(uuid, disk).ok();
            return Ok(named.filter(|(_, _, state)| *state == MemberState::Spare).map(|(_, spare, _)| spare));
        }
        let tables = self.inventory.read();
        let active = tables.arrays.get(&uuid).and_then(|entry| entry.active());
        let active = active.ok_or_else(|| stopped_meanwhile(name))?;
        let members = &active.label.members;
        let needed_bytes = active.label.geometry().map_or(0, |geometry| {
            let zones = geometry.zones().iter().filter(|zone| zone.members.contains(&slot));
            zones.map(|zone| zone.member_end()).max().unwrap_or(0)
        });
        let spares = members.iter().zip(0u16..).filter(|(m, _)| m.state == MemberState::Spare);
        let is_present = |spare: u16| active.disks.iter().any(|array_slot| array_slot.role == spare);
        // The smallest sufficient spare: a larger one may be needed for a larger member.
        let fits = spares.filter(|(m, spare)| m.data_bytes >= needed_bytes && is_present(*spare));
        let spare = fits.min_by_key(|(m, _)| m.data_bytes).map(|(_, spare)| spare);
        spare.map(Some).ok_or_else(|| {
            ErrorDetail::new(
                Kind::InvalidArgument,
                format!("array {name} has no spare that could replace member {slot}"),
            )
            .with("array", name)
            .with("member", slot)
            .remedy(format!("name the disk: braid array replace {name} {slot} DISK"))
        })
    }
}

/// Returns the slot of the member that this one is to replace.
pub(crate) fn replaced_by(label: &ArrayPart, successor: u16) -> Option<u16> {
    let job = label.jobs.iter().find(|job| job.kind == JobKind::Replace && job.target == Some(successor));
    job.and_then(|job| job.source)
}
