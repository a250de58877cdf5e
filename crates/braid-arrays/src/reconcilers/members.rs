//! Commands on the members of a redundant array: fail, remove, add, add as a spare.

use crate::ArrayManager;
use crate::claims::PathClaim;
use crate::disk_names::{read_disk, without_size};
use crate::disks::remove_files;
use braid_advice::errors::lifecycle_error;
use braid_api::{AddDisk, Array, ErrorDetail, Kind, RemoveArrayMember};
use braid_array_admin::lifecycle::{self, DiskOutcome, LifecycleError, RebuildKind, RebuildTarget};
use braid_array_admin::reconciler::Order;
use braid_format::{ArrayPart, JobKind, MemberId, MemberState};
use braid_inventory::job_table::name_of;
use braid_inventory::{ActiveArray, ArrayCondition, ArrayEntry, OpenDisk, random, refuse_higher_stack_level};
use braid_tasks as tasks;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// How long adding a disk waits for its current user to close it: the disk may have been a member until just now, and
/// is still being closed.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// What a newly opened disk becomes in its array.
enum DiskUse {
    /// The member that it was.
    Returning,
    /// The member in a vacant slot.
    Slot(u16),
    /// A new copy, in a slot that the array gets for it.
    Copy,
    Spare,
}

impl ArrayManager {
    /// Fails a member, as if its disk had failed.
    ///
    /// # Errors
    /// There is no such member, or some of the array would be lost without it.
    pub async fn fail_member(self: &Arc<Self>, array: &str, member: &str) -> Result<Array, ErrorDetail> {
        let claim = self.inventory.claim(array, "changed")?;
        let handle = self.reconciler_of(array)?;
        let (name, slot, state) = self.member(claim.uuid, member)?;
        let refused = |why: String, remedy: String| {
            Err(ErrorDetail::new(Kind::InvalidArgument, why).with("array", &name).with("member", slot).remedy(remedy))
        };
        match state {
            MemberState::InSync | MemberState::Rebuilding | MemberState::Journal => {}
            MemberState::Spare => {
                let remedy = format!("braid array remove {name} {slot}");
                return refused(format!("member {slot} of array {name} is a spare"), remedy);
            }
            _ => {
                let remedy = format!("braid array remove {name} {slot} removes it");
                return refused(format!("member {slot} of array {name} has failed already"), remedy);
            }
        }
        self.note_left_out(claim.uuid, slot, true);
        let ordered = handle.order(Order::Fail(vec![slot])).await;
        self.note_left_out(claim.uuid, slot, false);
        match ordered {
            Some(Err(LifecycleError::BeyondTolerance { .. })) if !handle.has_failed() => {
                let message = format!("array {name} needs member {slot}: without it some of the array would be lost");
                return Err(ErrorDetail::new(Kind::InUse, message).with("array", &name).with("member", slot).remedy(
                    format!(
                        "add a disk and wait until it is in sync: braid array add {name} DISK; braid array show {name}"
                    ),
                ));
            }
            Some(result) => result.map_err(|error| lifecycle_error(&error, &name, &|_| None))?,
            None => return Err(stopped_meanwhile(&name)),
        }
        self.array(&claim.uuid.to_string())
    }

    /// Records that a member is being failed by command, or that the command has ended: by then the labels record the
    /// failure, or the command did not succeed.
    fn note_left_out(&self, array: Uuid, slot: u16, begins: bool) {
        if let Some(ArrayCondition::Active(active)) =
            self.inventory.write().arrays.get_mut(&array).map(|entry| &mut entry.condition)
        {
            if begins {
                active.left_out.insert(slot)
            } else {
                active.left_out.remove(&slot)
            };
        }
    }

    /// Removes a failed member or a spare; with `copy`, removes the slot of a mirror, too.
    ///
    /// # Errors
    /// There is no such member, or it is in service.
    pub async fn remove_member(
        self: &Arc<Self>,
        array: &str,
        request: RemoveArrayMember,
    ) -> Result<Array, ErrorDetail> {
        let claim = self.inventory.claim(array, "changed")?;
        self.reconciler_of(array)?;
        let (name, slot, state) = self.member(claim.uuid, &request.member)?;
        let (order, what) = match state {
            MemberState::Spare if request.copy => {
                let why = format!("member {slot} of array {name} is a spare, and has no copy to remove with it");
                return Err(ErrorDetail::new(Kind::InvalidArgument, why)
                    .with("array", &name)
                    .with("member", slot)
                    .remedy(format!("braid array remove {name} {slot}")));
            }
            MemberState::Spare => (Order::RemoveSpare(slot), "spare"),
            MemberState::Failed => (Order::Remove(slot), "member"),
            MemberState::Empty if request.copy => (Order::Narrow(slot), "slot"),
            MemberState::Empty => {
                let why = format!("slot {slot} of array {name} has no member");
                return Err(ErrorDetail::new(Kind::InvalidArgument, why)
                    .with("array", &name)
                    .with("member", slot)
                    .remedy(format!("braid array remove {name} {slot} --copy removes the slot of a raid1 array; braid array add {name} DISK fills it")));
            }
            MemberState::Journal => {
                let why = format!("member {slot} of array {name} is the disk of its journal");
                return Err(ErrorDetail::new(Kind::InUse, why)
                    .with("array", &name)
                    .with("member", slot)
                    .remedy(format!("braid array journal {name} --members moves the journal off it")));
            }
            _ => {
                let why = format!(
                    "member {slot} of array {name} is in service; only failed members and spares can be removed"
                );
                return Err(ErrorDetail::new(Kind::InUse, why)
                    .with("array", &name)
                    .with("member", slot)
                    .remedy(format!("braid array fail {name} {slot} fails it first")));
            }
        };
        self.give_order(claim.uuid, order).await?;
        if request.copy && state == MemberState::Failed {
            self.give_order(claim.uuid, Order::Narrow(slot)).await?;
        }
        let message = format!("{what} {slot} of array {name} was removed");
        self.inventory.events().info("member_removed", message, &[("array", &name), ("member", &slot.to_string())]);
        self.array(&claim.uuid.to_string())
    }

    /// Adds a disk: a failed member returns, any other disk takes a vacant slot or becomes a spare. Returns also the
    /// job that rebuilds it, if there is one.
    ///
    /// # Errors
    /// The disk cannot be used, is not empty, or is too small.
    pub async fn add_disk(
        self: &Arc<Self>,
        array: &str,
        request: AddDisk,
    ) -> Result<(Array, Option<String>), ErrorDetail> {
        if request.copy && request.spare {
            let why = "a disk becomes a copy or a spare, not both";
            return Err(ErrorDetail::new(Kind::InvalidArgument, why).remedy("use only one of copy and spare"));
        }
        let claim = self.inventory.claim(array, "changed")?;
        let handle = self.reconciler_of(array)?;
        let (_path, disk, absent) = self.open_new(&request.disk).await?;
        match self.add_open(claim.uuid, &disk, &request).await {
            Ok(()) => {
                self.inventory.save_or_warn();
                let array = self.array(&claim.uuid.to_string())?;
                let slot = array.members.iter().find(|member| member.disk.as_ref() == Some(&disk.name));
                let slot = slot.map(|member| member.slot);
                let job = handle.newest(|job| job.kind == JobKind::Rebuild && job.member == slot && slot.is_some());
                let job = job.map(|job| name_of(&array.name, job.number));
                Ok((array, job))
            }
            Err(error) => {
                remove_files(&created_files(&disk, &absent));
                self.leave(claim.uuid, disk).await;
                Err(error)
            }
        }
    }

    /// Opens a disk that is not in use. Returns also the claim to its path, and the paths that did not exist before.
    pub(crate) async fn open_new(
        self: &Arc<Self>,
        disk: &str,
    ) -> Result<(PathClaim, Arc<OpenDisk>, Vec<PathBuf>), ErrorDetail> {
        let spec = read_disk(disk)?;
        let (manager, specs) = (Arc::clone(self), vec![spec.clone()]);
        let checked = tasks::blocking(move || manager.check_paths(&specs)).await;
        let checked = checked.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("examining the disk ended unexpectedly: {error}"))
        })?;
        let (path, absent) = checked?;
        let disk = self.open_disk(spec, RELEASE_MAX).await?;
        Ok((path, disk, absent))
    }

    async fn add_open(
        self: &Arc<Self>,
        uuid: Uuid,
        disk: &Arc<OpenDisk>,
        request: &AddDisk,
    ) -> Result<(), ErrorDetail> {
        let disk_use = self.register_candidate(uuid, disk, request).await?;
        let leaf = disk.leaf;
        let id = || random().map(MemberId::from_random);
        let order = match disk_use {
            DiskUse::Returning => Order::Return { leaf, kept_writes: false },
            DiskUse::Slot(slot) => {
                let target = RebuildTarget::New { leaf, id: id()?, force: request.force };
                Order::Rebuild { slot, target, kind: RebuildKind::Full }
            }
            DiskUse::Copy => Order::AddCopy { leaf, id: id()?, force: request.force },
            DiskUse::Spare => Order::AddSpare { leaf, id: id()?, force: request.force },
        };
        self.give_order(uuid, order).await.map_err(|error| match disk_use {
            DiskUse::Returning if error.kind == Kind::InvalidArgument => {
                let error = ErrorDetail { kind: Kind::WouldDestroy, ..error };
                error.remedy("add it with --force, which rebuilds it as a new member")
            }
            _ => error,
        })
    }

    /// Registers an open disk as a candidate (guest) of an array, and returns what the disk becomes.
    async fn register_candidate(
        self: &Arc<Self>,
        uuid: Uuid,
        disk: &Arc<OpenDisk>,
        request: &AddDisk,
    ) -> Result<DiskUse, ErrorDetail> {
        refuse_higher_stack_level(&self.inventory.read(), uuid, disk)?;
        let mine = self.bears_label_of(uuid, disk).await;
        let mut tables = self.inventory.write();
        let gone = || ErrorDetail::new(Kind::Inactive, "the array was stopped meanwhile");
        let Some(ArrayEntry { name, condition: ArrayCondition::Active(active), .. }) = tables.arrays.get_mut(&uuid)
        else {
            return Err(gone());
        };
        check_fit(name, active, disk)?;
        active.guests.push(Arc::clone(disk));
        let slots = slot_count(&active.label);
        let vacant = |state: MemberState| {
            let slots = active.label.members.iter().take(slots).zip(0..);
            slots.filter(|(entry, _)| entry.state == state).map(|(_, slot)| slot).next()
        };
        Ok(match vacant(MemberState::Empty).or_else(|| vacant(MemberState::Failed)) {
            _ if request.copy => DiskUse::Copy,
            _ if mine && !request.force && !request.spare => DiskUse::Returning,
            Some(slot) if !request.spare => DiskUse::Slot(slot),
            _ => DiskUse::Spare,
        })
    }

    /// Returns true if the disk has a label of this array.
    async fn bears_label_of(&self, uuid: Uuid, disk: &OpenDisk) -> bool {
        let scan = lifecycle::scan(&self.meta, &[disk.leaf]).await;
        scan.disks.iter().any(|found| match &found.outcome {
            DiskOutcome::Member(member) => member.label.array.uuid == uuid,
            _ => false,
        })
    }

    /// Returns a reappeared disk to its array if it belongs to a failed member. Otherwise the disk is closed, and the
    /// reason is reported.
    ///
    /// # Errors
    /// The reason why the disk does not return, with the remedy.
    pub(crate) async fn return_disk(self: &Arc<Self>, uuid: Uuid, disk: Arc<OpenDisk>) -> Result<(), ErrorDetail> {
        let stack_level = refuse_higher_stack_level(&self.inventory.read(), uuid, &disk);
        let name = {
            let mut tables = self.inventory.write();
            match tables.arrays.get_mut(&uuid) {
                Some(ArrayEntry { name, condition: ArrayCondition::Active(active), .. }) => {
                    let fits = stack_level.and_then(|()| check_fit(name, active, &disk));
                    if fits.is_ok() {
                        active.guests.push(Arc::clone(&disk));
                    }
                    fits.map(|()| name.clone())
                }
                _ => Err(ErrorDetail::new(Kind::Inactive, "its array does not serve")),
            }
        };
        let returned = match &name {
            Ok(_) => self.give_order(uuid, Order::Return { leaf: disk.leaf, kept_writes: false }).await,
            Err(error) => Err(error.clone()),
        };
        if let Err(error) = returned {
            let message = format!("disk {} does not return to its array: {}", disk.name, error.message);
            let name = name.unwrap_or_default();
            self.inventory.events().warning("member_not_returned", message, &[("array", &name), ("disk", &disk.name)]);
            self.leave(uuid, disk).await;
            return Err(error);
        }
        Ok(())
    }

    /// Closes a disk that has not become a member. If it has become one after all, it stays open.
    pub async fn leave(&self, uuid: Uuid, disk: Arc<OpenDisk>) {
        if let Some(ArrayCondition::Active(active)) =
            self.inventory.write().arrays.get_mut(&uuid).map(|entry| &mut entry.condition)
        {
            active.guests.retain(|guest| guest.leaf != disk.leaf);
            if active.disks.iter().any(|array_slot| array_slot.disk.leaf == disk.leaf) {
                // It has become a member after all, and was dropped or will be; the reconciler handles it.
                return;
            }
        }
        self.close_disks(vec![disk]).await;
    }

    /// Returns the member that is named by number, disk name or identity: the array's name, the slot and the member's
    /// state.
    pub(crate) fn member(&self, uuid: Uuid, member: &str) -> Result<(String, u16, MemberState), ErrorDetail> {
        let tables = self.inventory.read();
        let entry = tables.array(&uuid.to_string())?;
        let name = entry.name.clone();
        let active = entry.active().ok_or_else(|| stopped_meanwhile(&name))?;
        let disk = read_disk(member).map(|spec| without_size(spec).to_string()).unwrap_or_else(|_| member.to_owned());
        let path = braid_ring::DiskSpec::parse(&disk).ok().and_then(|spec| spec.path().map(Path::to_owned));
        let is_disk = |array_slot: &braid_inventory::ArraySlot| {
            array_slot.disk.name == disk || path.is_some() && array_slot.disk.disk.spec().path() == path.as_deref()
        };
        let by_number = || member.parse::<u16>().ok().filter(|slot| usize::from(*slot) < active.label.members.len());
        let by_disk = || active.disks.iter().find(|array_slot| is_disk(array_slot)).map(|array_slot| array_slot.role);
        let by_missing = || active.missing.iter().find(|(_, missing)| missing.disk == disk).map(|(slot, _)| *slot);
        let by_id = || {
            let named = |entry: &braid_format::MemberEntry| entry.id.is_some_and(|id| id.to_string() == member);
            active.label.members.iter().position(named).map(|slot| slot as u16)
        };
        let slot = by_number().or_else(by_disk).or_else(by_missing).or_else(by_id).ok_or_else(|| {
            ErrorDetail::new(Kind::NotFound, format!("array {name} has no member {member}"))
                .with("array", &name)
                .with("member", member)
                .remedy(format!("`braid array show {name}` shows them; name one by its number or its disk"))
        })?;
        Ok((name, slot, active.label.members[usize::from(slot)].state))
    }
}

/// Returns the number of slots that hold data; higher slots are spares and the journal.
pub(crate) fn slot_count(label: &ArrayPart) -> usize {
    label.geometry().map_or(0, |geometry| geometry.member_data_bytes().len())
}

/// Refuses a disk that cannot be a member of an array: its blocks are too large, or it is volatile and the array is
/// not.
pub(crate) fn check_fit(name: &str, active: &ActiveArray, disk: &OpenDisk) -> Result<(), ErrorDetail> {
    let refused = |why: String, remedy: &str| {
        Err(ErrorDetail::new(Kind::InvalidArgument, why).with("array", name).with("disk", &disk.name).remedy(remedy))
    };
    if disk.disk.logical_block_bytes() > active.block_bytes {
        let why = format!(
            "disk {} has blocks of {} bytes, and array {name} serves blocks of {} bytes",
            disk.name,
            disk.disk.logical_block_bytes(),
            active.block_bytes
        );
        return refused(why, "use a disk whose logical blocks are not larger than the array's");
    }
    if active.is_kept() && disk.disk.spec().is_volatile() {
        let why = format!("disk {} is volatile, and array {name} outlives the daemon", disk.name);
        return refused(why, "use a file or a block device");
    }
    Ok(())
}

/// Returns those of the `absent` files that opening the disk has created.
pub(crate) fn created_files<'a>(disk: &OpenDisk, absent: &'a [PathBuf]) -> Vec<&'a PathBuf> {
    absent.iter().filter(|path| disk.disk.spec().path() == Some(path.as_path())).collect()
}

/// Returns the error for an array that was stopped while a command changed it.
pub(crate) fn stopped_meanwhile(name: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Inactive, format!("array {name} was stopped meanwhile"))
        .with("array", name)
        .remedy(format!("braid array show {name}"))
}
