//! What is asked of the members of a redundant array: leave out, take off the table, add, keep as a spare.

use super::super::create::{PathClaim, read_disk};
use super::super::disks::remove_files;
use super::super::pools::refuse_higher_tier;
use super::super::search::without_size;
use super::super::tables::{Active, ArrayEntry, Condition, OpenDisk};
use super::super::{Control, random};
use super::name_of;
use braid_advice::errors::of_lifecycle;
use braid_api::{AddDisk, Array, ErrorDetail, Kind, RemoveArrayMember};
use braid_engine::keeper::Order;
use braid_engine::lifecycle::{self, DiskOutcome, LifecycleError, RebuildKind, RebuildTarget};
use braid_format::{ArrayPart, JobKind, MemberId, MemberState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// How long whoever uses a disk that is to be added has to let go of it: perhaps it was a member until just now.
const LETTING_GO_MAX: Duration = Duration::from_secs(5);

/// What a newly opened disk is to become.
enum Place {
    /// What it was.
    Returning,
    /// The holder of a role that is vacant.
    Role(u16),
    /// The holder of a role that the array gets for it.
    Copy,
    Spare,
}

impl Control {
    /// Leaves a member out, as if it had failed.
    ///
    /// # Errors
    /// There is no such member, or without it some of the array would be lost.
    pub async fn fail_member(self: &Arc<Self>, array: &str, member: &str) -> Result<Array, ErrorDetail> {
        let claim = self.claim(array, "changed")?;
        let keeping = self.keeping(array)?;
        let (name, role, state) = self.member(claim.uuid, member)?;
        let refused = |why: String, remedy: String| {
            Err(ErrorDetail::new(Kind::InvalidArgument, why).with("array", &name).with("member", role).remedy(remedy))
        };
        match state {
            MemberState::InSync | MemberState::Rebuilding | MemberState::Journal => {}
            MemberState::Spare => {
                let remedy = format!("braid array remove {name} {role}");
                return refused(format!("member {role} of array {name} is a spare"), remedy);
            }
            _ => {
                let remedy = format!("braid array remove {name} {role} takes it off the table");
                return refused(format!("member {role} of array {name} is out already"), remedy);
            }
        }
        self.note_left_out(claim.uuid, role, true);
        let ordered = keeping.order(Order::Fail(vec![role])).await;
        self.note_left_out(claim.uuid, role, false);
        match ordered {
            Some(Err(LifecycleError::BeyondTolerance { .. })) if !keeping.has_failed() => {
                let message = format!("array {name} needs member {role}: without it some of the array would be lost");
                return Err(ErrorDetail::new(Kind::InUse, message).with("array", &name).with("member", role).remedy(
                    format!(
                        "add a disk and wait until it is in sync: braid array add {name} DISK; braid array show {name}"
                    ),
                ));
            }
            Some(result) => result.map_err(|error| of_lifecycle(&error, &name, &|_| None))?,
            None => return Err(stopped_meanwhile(&name)),
        }
        self.array(&claim.uuid.to_string())
    }

    /// Notes that a member is being left out by command, or that this has ended: by then the labels say so, or it was not done.
    fn note_left_out(&self, array: Uuid, role: u16, begins: bool) {
        if let Some(Condition::Active(active)) = self.write().arrays.get_mut(&array).map(|entry| &mut entry.condition) {
            if begins {
                active.left_out.insert(role)
            } else {
                active.left_out.remove(&role)
            };
        }
    }

    /// Takes a member that is out, or a spare, off the table; of a mirror with the role, if that is asked.
    ///
    /// # Errors
    /// There is no such member, or it serves.
    pub async fn remove_member(self: &Arc<Self>, array: &str, ask: RemoveArrayMember) -> Result<Array, ErrorDetail> {
        let claim = self.claim(array, "changed")?;
        self.keeping(array)?;
        let (name, role, state) = self.member(claim.uuid, &ask.member)?;
        let (order, what) = match state {
            MemberState::Spare if ask.copy => {
                let why = format!("member {role} of array {name} is a spare: it is no copy that could go with it");
                return Err(ErrorDetail::new(Kind::InvalidArgument, why)
                    .with("array", &name)
                    .with("member", role)
                    .remedy(format!("braid array remove {name} {role}")));
            }
            MemberState::Spare => (Order::RemoveSpare(role), "spare"),
            MemberState::Failed => (Order::Remove(role), "member"),
            MemberState::Empty if ask.copy => (Order::Narrow(role), "role"),
            MemberState::Empty => {
                let why = format!("slot {role} of array {name} has no member");
                return Err(ErrorDetail::new(Kind::InvalidArgument, why)
                    .with("array", &name)
                    .with("member", role)
                    .remedy(format!("braid array remove {name} {role} --copy takes the role away, of raid1; braid array add {name} DISK fills it")));
            }
            MemberState::Journal => {
                let why = format!("member {role} of array {name} is the disk of its journal");
                return Err(ErrorDetail::new(Kind::InUse, why)
                    .with("array", &name)
                    .with("member", role)
                    .remedy(format!("braid array journal {name} --members takes it away")));
            }
            _ => {
                let why = format!(
                    "member {role} of array {name} serves; only members that are out, and spares, can be removed"
                );
                return Err(ErrorDetail::new(Kind::InUse, why)
                    .with("array", &name)
                    .with("member", role)
                    .remedy(format!("braid array fail {name} {role} leaves it out first")));
            }
        };
        self.give_order(claim.uuid, order).await?;
        if ask.copy && state == MemberState::Failed {
            self.give_order(claim.uuid, Order::Narrow(role)).await?;
        }
        let message = format!("{what} {role} of array {name} was taken off the table");
        self.events().info("member_removed", message, &[("array", &name), ("member", &role.to_string())]);
        self.array(&claim.uuid.to_string())
    }

    /// Adds a disk: a member that is out returns; any other disk takes a vacant role, or becomes a spare. Gives the job that
    /// fills it, too, if there is one.
    ///
    /// # Errors
    /// The disk cannot be used, is not empty, or is too small.
    pub async fn add_disk(self: &Arc<Self>, array: &str, ask: AddDisk) -> Result<(Array, Option<String>), ErrorDetail> {
        if ask.copy && ask.spare {
            let why = "a disk becomes a copy or a spare, not both";
            return Err(ErrorDetail::new(Kind::InvalidArgument, why).remedy("leave one of copy and spare away"));
        }
        let claim = self.claim(array, "changed")?;
        let keeping = self.keeping(array)?;
        let (_path, disk, absent) = self.open_new(&ask.disk).await?;
        match self.add_open(claim.uuid, &disk, &ask).await {
            Ok(()) => {
                self.save_or_warn();
                let array = self.array(&claim.uuid.to_string())?;
                let role = array.members.iter().find(|member| member.disk.as_ref() == Some(&disk.name));
                let role = role.map(|member| member.role);
                let job = keeping.newest(|job| job.kind == JobKind::Rebuild && job.member == role && role.is_some());
                let job = job.map(|job| name_of(&array.name, job.number));
                Ok((array, job))
            }
            Err(error) => {
                remove_files(&made_by(&disk, &absent));
                self.leave(claim.uuid, disk).await;
                Err(error)
            }
        }
    }

    /// Opens a disk that nobody uses. Gives the claim to its path, and the paths that did not exist before.
    pub(super) async fn open_new(
        self: &Arc<Self>,
        disk: &str,
    ) -> Result<(PathClaim, Arc<OpenDisk>, Vec<PathBuf>), ErrorDetail> {
        let spec = read_disk(disk)?;
        let (control, specs) = (Arc::clone(self), vec![spec.clone()]);
        let checked = tokio::task::spawn_blocking(move || control.check_paths(&specs)).await;
        let checked = checked.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("looking at the disk ended unexpectedly: {error}"))
        })?;
        let (path, absent) = checked?;
        let disk = self.open_disk(spec, LETTING_GO_MAX).await?;
        Ok((path, disk, absent))
    }

    async fn add_open(self: &Arc<Self>, uuid: Uuid, disk: &Arc<OpenDisk>, ask: &AddDisk) -> Result<(), ErrorDetail> {
        let place = self.welcome(uuid, disk, ask).await?;
        let leaf = disk.leaf;
        let id = || random().map(MemberId::from_random);
        let order = match place {
            Place::Returning => Order::Return { leaf, kept_writes: false },
            Place::Role(role) => {
                let newcomer = RebuildTarget::New { leaf, id: id()?, force: ask.force };
                Order::Rebuild { slot: role, target: newcomer, kind: RebuildKind::Full }
            }
            Place::Copy => Order::AddCopy { leaf, id: id()?, force: ask.force },
            Place::Spare => Order::AddSpare { leaf, id: id()?, force: ask.force },
        };
        self.give_order(uuid, order).await.map_err(|error| match place {
            Place::Returning if error.kind == Kind::InvalidArgument => {
                let error = ErrorDetail { kind: Kind::WouldDestroy, ..error };
                error.remedy("add it with --force, which fills it anew as a new member")
            }
            _ => error,
        })
    }

    /// Lets an open disk be a guest of an array, and says what it is to become.
    async fn welcome(self: &Arc<Self>, uuid: Uuid, disk: &Arc<OpenDisk>, ask: &AddDisk) -> Result<Place, ErrorDetail> {
        refuse_higher_tier(&self.read(), uuid, disk)?;
        let mine = self.bears_label_of(uuid, disk).await;
        let mut tables = self.write();
        let gone = || ErrorDetail::new(Kind::Inactive, "the array was stopped meanwhile");
        let Some(ArrayEntry { name, condition: Condition::Active(active), .. }) = tables.arrays.get_mut(&uuid) else {
            return Err(gone());
        };
        check_fit(name, active, disk)?;
        active.guests.push(Arc::clone(disk));
        let roles = roles_of(&active.label);
        let vacant = |state: MemberState| {
            let roles = active.label.members.iter().take(roles).zip(0..);
            roles.filter(|(entry, _)| entry.state == state).map(|(_, role)| role).next()
        };
        Ok(match vacant(MemberState::Empty).or_else(|| vacant(MemberState::Failed)) {
            _ if ask.copy => Place::Copy,
            _ if mine && !ask.force && !ask.spare => Place::Returning,
            Some(role) if !ask.spare => Place::Role(role),
            _ => Place::Spare,
        })
    }

    /// Whether the disk bears a label of this array.
    async fn bears_label_of(&self, uuid: Uuid, disk: &OpenDisk) -> bool {
        let scan = lifecycle::scan(&self.meta, &[disk.leaf]).await;
        scan.disks.iter().any(|found| match &found.outcome {
            DiskOutcome::Member(member) => member.label.array.uuid == uuid,
            _ => false,
        })
    }

    /// A disk of the array has appeared: if it is a member that is out, it returns. Else it is closed again, and said why.
    ///
    /// # Errors
    /// Why it does not, with what to do.
    pub(in super::super) async fn return_disk(
        self: &Arc<Self>,
        uuid: Uuid,
        disk: Arc<OpenDisk>,
    ) -> Result<(), ErrorDetail> {
        let tier = refuse_higher_tier(&self.read(), uuid, &disk);
        let name = {
            let mut tables = self.write();
            match tables.arrays.get_mut(&uuid) {
                Some(ArrayEntry { name, condition: Condition::Active(active), .. }) => {
                    let fits = tier.and_then(|()| check_fit(name, active, &disk));
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
            self.events().warning("member_not_returned", message, &[("array", &name), ("disk", &disk.name)]);
            self.leave(uuid, disk).await;
            return Err(error);
        }
        Ok(())
    }

    /// Lets go of a disk that has not become a member.
    pub(in super::super) async fn leave(&self, uuid: Uuid, disk: Arc<OpenDisk>) {
        if let Some(Condition::Active(active)) = self.write().arrays.get_mut(&uuid).map(|entry| &mut entry.condition) {
            active.guests.retain(|guest| guest.leaf != disk.leaf);
            if active.disks.iter().any(|seat| seat.disk.leaf == disk.leaf) {
                // It has become one after all, and was dropped or will be: the keeper knows.
                return;
            }
        }
        self.close_disks(vec![disk]).await;
    }

    /// The member that is meant by a number, a disk's name or an identity.
    pub(super) fn member(&self, uuid: Uuid, member: &str) -> Result<(String, u16, MemberState), ErrorDetail> {
        let tables = self.read();
        let entry = tables.array(&uuid.to_string())?;
        let name = entry.name.clone();
        let active = entry.active().ok_or_else(|| stopped_meanwhile(&name))?;
        let disk = read_disk(member).map(|spec| without_size(spec).to_string()).unwrap_or_else(|_| member.to_owned());
        let path = braid_ring::DiskSpec::parse(&disk).ok().and_then(|spec| spec.path().map(Path::to_owned));
        let is_disk = |seat: &super::super::tables::Seat| {
            seat.disk.name == disk || path.is_some() && seat.disk.disk.spec().path() == path.as_deref()
        };
        let by_number = || member.parse::<u16>().ok().filter(|role| usize::from(*role) < active.label.members.len());
        let by_disk = || active.disks.iter().find(|seat| is_disk(seat)).map(|seat| seat.role);
        let by_away = || active.away.iter().find(|(_, away)| away.disk == disk).map(|(role, _)| *role);
        let by_id = || {
            let named = |entry: &braid_format::MemberEntry| entry.id.is_some_and(|id| id.to_string() == member);
            active.label.members.iter().position(named).map(|role| role as u16)
        };
        let role = by_number().or_else(by_disk).or_else(by_away).or_else(by_id).ok_or_else(|| {
            ErrorDetail::new(Kind::NotFound, format!("array {name} has no member {member}"))
                .with("array", &name)
                .with("member", member)
                .remedy(format!("`braid array show {name}` shows them; name one by its number or its disk"))
        })?;
        Ok((name, role, active.label.members[usize::from(role)].state))
    }
}

/// How many numbers of the table hold content; those above are spares.
pub(in super::super) fn roles_of(label: &ArrayPart) -> usize {
    label.geometry().map_or(0, |geometry| geometry.members().len())
}

pub(in super::super) fn check_fit(name: &str, active: &Active, disk: &OpenDisk) -> Result<(), ErrorDetail> {
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
        let why = format!("disk {} keeps nothing, and array {name} outlives the daemon", disk.name);
        return refused(why, "use a file or a block device");
    }
    Ok(())
}

pub(super) fn made_by<'a>(disk: &OpenDisk, absent: &'a [PathBuf]) -> Vec<&'a PathBuf> {
    absent.iter().filter(|path| disk.disk.spec().path() == Some(path.as_path())).collect()
}

pub(in super::super) fn stopped_meanwhile(name: &str) -> ErrorDetail {
    ErrorDetail::new(Kind::Inactive, format!("array {name} was stopped meanwhile"))
        .with("array", name)
        .remedy(format!("braid array show {name}"))
}
