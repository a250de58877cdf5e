//! Volumes as disks: members of arrays.
//!
//! Such a volume is served like one that is exported, and nobody else writes to it: it is *held* as long as the disk is open. The array is of a
//! tier above that of its volumes, and a pool is of the tier of the arrays that it stands on. So nothing can stand on itself, at whatever
//! depth, and everything is started from below and ended from above.

use super::super::Control;
use super::super::tables::{ArrayEntry, Condition, OpenDisk, Tables};
use super::companions::is_companion;
use super::volumes::Located;
use super::{Base, Reach};
use crate::daemon::state::SavedDisk;
use braid_api::{ErrorDetail, Kind};
use braid_format::pool::OwnerKind;
use braid_ring::{Disk, DiskSpec, STACK_LEVELS_MAX, stack_level_of, stack_level_of_pool};
use std::sync::Arc;
use uuid::Uuid;

impl Tables {
    /// Who has a volume open as a disk, in words.
    pub fn holder_of_volume(&self, volume: Uuid) -> Option<String> {
        if let Some(entry) = self.replica_with(volume) {
            return Some(format!("the data of replica {} of volume {}", entry.saved.name, entry.saved.volume));
        }
        self.held_volumes.get(&volume)?;
        let of = |entry: &ArrayEntry| {
            let active = entry.active()?;
            let seat = active.disks.iter().find(|seat| seat.disk.volume == Some(volume));
            let guest = active.guests.iter().find(|disk| disk.volume == Some(volume));
            match (seat, guest) {
                (Some(seat), _) => Some(format!("member {} of array {}", seat.role, entry.name)),
                (None, Some(_)) => Some(format!("about to be a member of array {}", entry.name)),
                (None, None) => None,
            }
        };
        Some(self.arrays.values().find_map(of).unwrap_or_else(|| "being made a member of an array".to_owned()))
    }

    /// Refuses to let clients write to a volume that is a disk.
    ///
    /// # Errors
    /// [`Kind::InUse`].
    pub fn refuse_export_of_held(&self, volume: Uuid, name: &str, read_only: bool) -> Result<(), ErrorDetail> {
        let Some(who) = self.holder_of_volume(volume).filter(|_| !read_only) else { return Ok(()) };
        Err(ErrorDetail::new(Kind::InUse, format!("volume {name} is {who}: clients would write over it"))
            .with("volume", name)
            .remedy("export what stands on it, or this volume with --read-only"))
    }

    /// Volumes that were members of arrays, are open as no disk, and whose pools serve.
    pub fn volumes_to_look_at(&self) -> Vec<DiskSpec> {
        let held: Vec<&str> = self
            .arrays
            .values()
            .filter_map(ArrayEntry::active)
            .flat_map(|active| active.disks.iter().map(|seat| &seat.disk).chain(&active.guests))
            .filter_map(|disk| disk.disk.spec().volume())
            .collect();
        let serves = |pool: &str| self.pool(pool).is_ok_and(|entry| entry.served().is_some());
        let specs = self.disks.keys().filter_map(|name| DiskSpec::parse(name).ok());
        let here = |spec: &DiskSpec| {
            let name = spec.volume().filter(|name| !held.contains(name))?;
            serves(name.split_once('/')?.0).then_some(())
        };
        specs.filter(|spec| here(spec).is_some()).collect()
    }

    /// Whether members of this array were volumes that are none of these disks. A volume among these that was none of them may be one of
    /// those by another name.
    pub fn lacks_volumes(&self, array: Uuid, disks: &[&OpenDisk]) -> bool {
        let of = self.disks.values().filter(|saved| saved.array == array);
        let known: Vec<DiskSpec> = of.filter_map(|saved| DiskSpec::parse(&saved.disk).ok()).collect();
        let known: Vec<&str> = known.iter().filter_map(DiskSpec::volume).collect();
        let here: Vec<&str> = disks.iter().filter_map(|disk| disk.disk.spec().volume()).collect();
        let missing = known.iter().filter(|name| !here.contains(name)).count();
        missing > here.iter().filter(|name| !known.contains(name)).count()
    }

    /// A volume that was a member of an array when that was seen last, and the array's name, by what volumes and their pools are called.
    fn volume_last_of(&self, is_meant: impl Fn(&str) -> bool) -> Option<(String, &str)> {
        self.disks.values().find_map(|saved| {
            let spec = DiskSpec::parse(&saved.disk).ok()?;
            let volume = spec.volume().filter(|name| is_meant(name))?;
            Some((volume.to_owned(), saved.array_name.as_str()))
        })
    }

    /// Volumes are called otherwise now: so are the disks that they were when their arrays were seen last.
    pub fn rename_volumes(&mut self, new_name: impl Fn(&str) -> Option<String>) {
        let renamed = |disk: &str| {
            let spec = DiskSpec::parse(disk).ok()?;
            let name = new_name(spec.volume()?)?;
            Some(called(spec, &name).to_string())
        };
        let disks = std::mem::take(&mut self.disks).into_values().map(|saved| {
            let disk = renamed(&saved.disk).unwrap_or(saved.disk);
            (disk.clone(), SavedDisk { disk, ..saved })
        });
        self.disks = disks.collect();
        for entry in self.arrays.values_mut() {
            let names: Vec<&mut String> = match &mut entry.condition {
                Condition::Active(active) => active.away.values_mut().map(|away| &mut away.disk).collect(),
                Condition::Idle(idle) => idle.members.iter_mut().filter_map(|member| member.disk.as_mut()).collect(),
            };
            for name in names {
                if let Some(new) = renamed(name) {
                    *name = new;
                }
            }
        }
    }

    /// A volume of a pool that is held, and by whom.
    fn held_of_pool(&self, pool: Uuid) -> Option<String> {
        if let Some(data) = self.replica_in(pool).and_then(|entry| entry.saved.data) {
            return self.holder_of_volume(data);
        }
        let volume = self.held_volumes.iter().find(|(_, of)| **of == pool).map(|(volume, _)| *volume)?;
        self.holder_of_volume(volume)
    }

    /// Whether a pool stands on a volume of another one, or of itself, at whatever depth.
    fn stands_on(&self, pool: Uuid, other: Uuid) -> bool {
        let mut left = vec![pool];
        let mut seen = Vec::new();
        while let Some(pool) = left.pop() {
            if pool == other {
                return true;
            }
            if seen.contains(&pool) {
                continue;
            }
            seen.push(pool);
            let arrays = self.pools.get(&pool).and_then(|entry| entry.served()).into_iter().flat_map(|served| {
                served.written().filter_map(|part| match part.base {
                    Base::Array(uuid) => Some(uuid),
                    Base::Disk(_) => None,
                })
            });
            left.extend(arrays.flat_map(|array| self.pools_below(array)));
        }
        false
    }

    /// The pools whose volumes are members of an array.
    fn pools_below(&self, array: Uuid) -> Vec<Uuid> {
        let disks = self.arrays.get(&array).and_then(ArrayEntry::active).map(|active| active.open_disks());
        let volumes = disks.into_iter().flatten().filter_map(|disk| disk.volume);
        volumes.filter_map(|volume| self.held_volumes.get(&volume).copied()).collect()
    }

    /// Refuses an array as a member of a pool that stands, or would stand, on another tier.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`], which says so where it is a cycle.
    pub fn refuse_other_tier(&self, pool: Option<&Reach>, arrays: &[Uuid]) -> Result<usize, ErrorDetail> {
        let tier = |uuid: &Uuid| {
            self.arrays.get(uuid).and_then(ArrayEntry::active).map_or(0, |active| stack_level_of(active.device))
        };
        let wanted =
            pool.map_or_else(|| arrays.iter().map(tier).max().unwrap_or(0), |pool| stack_level_of_pool(pool.key));
        let Some(other) = arrays.iter().find(|uuid| tier(uuid) != wanted) else { return Ok(wanted) };
        let name = self.arrays.get(other).map(|entry| entry.name.clone()).unwrap_or_default();
        if let Some(pool) = pool
            && self.pools_below(*other).iter().any(|below| self.stands_on(*below, pool.uuid))
        {
            let message = format!("array {name} stands on a volume of pool {}, which would stand on itself", pool.name);
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .with("array", &name)
                .with("pool", &pool.name)
                .remedy("use an array of disks, or of volumes of another pool for a pool of its own"));
        }
        let message = format!(
            "array {name} stands {}, and the other members do not: all members of a pool stand on volumes equally deep, or are disks",
            if tier(other) > 0 { "on volumes" } else { "on disks alone" }
        );
        Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("array", &name)
            .remedy("make a pool of its own of it (braid pool create)"))
    }
}

/// Refuses a disk for an array that serves on a lower tier.
///
/// # Errors
/// [`Kind::InvalidArgument`].
pub fn refuse_higher_tier(tables: &Tables, uuid: Uuid, disk: &OpenDisk) -> Result<(), ErrorDetail> {
    let Some(below) = disk.disk.device() else { return Ok(()) };
    let Some(entry) = tables.arrays.get(&uuid) else { return Ok(()) };
    let Condition::Active(active) = &entry.condition else { return Ok(()) };
    if stack_level_of(active.device) > stack_level_of(below) {
        return Ok(());
    }
    let of = disk.volume.and_then(|volume| tables.held_volumes.get(&volume).copied());
    let name = &entry.name;
    let pool_on = tables.served_on(uuid).map(|(pool, _)| pool.uuid);
    let (message, remedy) = if let (Some(of), Some(on)) = (of, pool_on)
        && tables.stands_on(of, on)
    {
        let message = format!("{} is a volume that stands on array {name}, which would stand on itself", disk.name);
        (message, "use a disk, or a volume of another pool".to_owned())
    } else {
        let message = format!(
            "array {name} was started without volumes as deep as {}, and cannot take one while it serves",
            disk.name
        );
        (message, format!("braid array stop {name}, then: braid array assemble {name} --disk {}", disk.name))
    };
    Err(ErrorDetail::new(Kind::InvalidArgument, message).with("array", name).with("disk", &disk.name).remedy(remedy))
}

impl Control {
    /// The tier that an array of these disks is of. One that had volumes as members leaves room for them, and one whose pool has others that
    /// stand on volumes is as deep as those.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(in super::super) fn tier_of_array(&self, uuid: Uuid, disks: &[Arc<OpenDisk>]) -> Result<usize, ErrorDetail> {
        let above = |disk: &Arc<OpenDisk>| disk.disk.device().map_or(0, |below| stack_level_of(below) + 1);
        let here = disks.iter().map(above).max().unwrap_or(0);
        let was_on_volume =
            self.read().disks.values().any(|saved| {
                saved.array == uuid && DiskSpec::parse(&saved.disk).is_ok_and(|spec| spec.volume().is_some())
            });
        let least = self.read().least_tiers.get(&uuid).copied().unwrap_or(0);
        let tier = here.max(usize::from(was_on_volume)).max(least);
        let raised = self.ring.ensure_stack_level(tier);
        raised.map(|()| tier).map_err(|error| braid_advice::errors::of_ring(&error, &uuid.to_string()))
    }

    /// Opens a volume as a disk. As long as it is open nobody else writes to it; [`Control::close_volume`] ends that.
    ///
    /// # Errors
    /// There is no such volume, its pool does not serve, somebody uses it, or it cannot be written.
    pub(in super::super) async fn open_volume(self: &Arc<Self>, spec: &DiskSpec) -> Result<(Disk, Uuid), ErrorDetail> {
        let text = spec.volume().unwrap_or_default();
        // An export that is being added is in the tables by then, or sees who holds the volume.
        let listening = self.listening.lock().await;
        let Located { pool, uuid, name } = self.locate(text, OwnerKind::Volume).await?;
        self.refuse_closing_pool(pool.uuid)?;
        self.read().refuse_carried(
            pool.uuid,
            "its volumes are no disks of arrays and pools, which stay where they are when it goes to another node",
            "export the volume (braid export add), and use the export",
        )?;
        let in_use = |who: String, remedy: String| {
            Err(ErrorDetail::new(Kind::InUse, format!("volume {name} is {who}")).with("volume", &name).remedy(remedy))
        };
        {
            let mut tables = self.write();
            if let Some(who) = tables.holder_of_volume(uuid) {
                return in_use(who, "use another volume".to_owned());
            }
            let writes =
                |entry: &&super::super::tables::ExportEntry| entry.saved.array == uuid && !entry.saved.read_only;
            if let Some(export) = tables.exports.values().find(writes) {
                let name = &export.saved.name;
                let who = format!("exported as {name}, and its clients would write over the array");
                return in_use(who, format!("braid export remove {name} first"));
            }
            tables.held_volumes.insert(uuid, pool.uuid);
        }
        let opened = self.served_disk(&pool, uuid, &name, spec).await;
        if opened.is_err() {
            self.write().held_volumes.remove(&uuid);
            self.release_volume(&listening, pool.uuid, uuid).await;
        }
        Ok((opened?, uuid))
    }

    pub(super) async fn served_disk(
        self: &Arc<Self>,
        pool: &Reach,
        uuid: Uuid,
        name: &str,
        spec: &DiskSpec,
    ) -> Result<Disk, ErrorDetail> {
        let refused = |kind: Kind, why: String, remedy: &str| {
            Err(ErrorDetail::new(kind, why).with("volume", name).remedy(remedy))
        };
        let tier = stack_level_of_pool(pool.key) + 1;
        if tier >= STACK_LEVELS_MAX {
            let most = STACK_LEVELS_MAX - 1;
            let why = format!("pools and arrays stand on each other {most} deep below volume {name} already");
            return refused(Kind::LimitReached, why, "use a disk, or a volume of a pool that is not so deep");
        }
        let Some(source) = self.serve_volume(pool.uuid, uuid).await? else {
            return refused(Kind::Inactive, format!("pool {} does not serve", pool.name), "braid pool show");
        };
        if source.read_only {
            let why = format!("volume {name} cannot be written now");
            return refused(Kind::Inactive, why, "braid volume show says why, and braid pool show");
        }
        self.ring.ensure_stack_level(tier).map_err(|error| braid_advice::errors::of_ring(&error, name))?;
        // It may have got another name until it was served; nobody gives it one from now on, and never a companion.
        let now = match name.rsplit_once('/') {
            Some((_, own)) if is_companion(own) => name.to_owned(),
            _ => self.locate(&uuid.to_string(), OwnerKind::Volume).await?.name,
        };
        Ok(Disk::from_device(&called(spec.clone(), &now), source.device, source.size_bytes))
    }

    /// A volume is no disk any more: nobody has anything under way on it.
    pub(in super::super) async fn close_volume(self: &Arc<Self>, volume: Uuid) {
        let listening = self.listening.lock().await;
        let Some(pool) = self.write().held_volumes.remove(&volume) else { return };
        self.release_volume(&listening, pool, volume).await;
    }

    /// Refuses what only its controller may do with the data of a replica.
    pub(super) fn refuse_replica(&self, what: &Located, done: &str) -> Result<(), ErrorDetail> {
        let replica = self.read().replica_with(what.uuid).map(|entry| entry.saved.name.clone());
        let Some(replica) = replica else { return Ok(()) };
        let message = format!("volume {} has the data of replica {replica} and so cannot be {done} here", what.name);
        Err(ErrorDetail::new(Kind::InUse, message)
            .with("volume", &what.name)
            .with("replica", &replica)
            .remedy(format!(
                "braid replica show {replica} says of which volume it is: that one is changed where it is served; --force does not override this"
            )))
    }

    /// Refuses what would take a volume from under its array or its replica.
    pub(super) fn refuse_held(&self, what: &Located, done: &str) -> Result<(), ErrorDetail> {
        self.refuse_replica(what, done)?;
        let Some(who) = self.read().holder_of_volume(what.uuid) else { return Ok(()) };
        Err(ErrorDetail::new(Kind::InUse, format!("volume {} is {who} and so cannot be {done}", what.name))
            .with("volume", &what.name)
            .remedy("take it out of the array first (braid array replace, or fail and remove), or stop or delete the array; --force does not override this"))
    }

    /// Refuses to delete or change what an array that does not serve has on it, unless that is wanted: it would believe at its next start that
    /// all is there as it was.
    pub(in super::super) fn refuse_last_on(&self, volume: &str) -> Result<(), ErrorDetail> {
        let tables = self.read();
        let Some((_, array)) = tables.volume_last_of(|name| name == volume) else { return Ok(()) };
        let message = format!("volume {volume} was seen last as a member of array {array}");
        Err(ErrorDetail::new(Kind::WouldDestroy, message)
            .with("volume", volume)
            .with("array", array)
            .remedy("add --force if that array is not needed any more, or can do without it"))
    }

    /// The same of a pool with all of its volumes.
    pub(super) fn refuse_last_on_of(&self, pool: &str) -> Result<(), ErrorDetail> {
        let tables = self.read();
        let is_of = |name: &str| name.split_once('/').is_some_and(|(of, _)| of == pool);
        let Some((volume, array)) = tables.volume_last_of(is_of) else { return Ok(()) };
        let message = format!("volume {volume} of pool {pool} was seen last as a member of array {array}");
        Err(ErrorDetail::new(Kind::WouldDestroy, message)
            .with("pool", pool)
            .with("array", array)
            .remedy("add --force if that array is not needed any more, or can do without it"))
    }

    /// Refuses what would take volumes of a pool from under arrays.
    pub(super) fn refuse_held_of(&self, pool: Uuid, name: &str, done: &str) -> Result<(), ErrorDetail> {
        let Some(who) = self.read().held_of_pool(pool) else { return Ok(()) };
        Err(ErrorDetail::new(
            Kind::InUse,
            format!("a volume of pool {name} is {who}, so that the pool cannot be {done}"),
        )
        .with("pool", name)
        .remedy("stop or delete that array, or delete that replica, first; --force does not override this"))
    }

    /// A volume has another size: the disk that it is, too.
    pub(super) fn tell_disk_size(&self, volume: Uuid, size_bytes: u64) {
        let disks: Vec<Arc<OpenDisk>> = {
            let tables = self.read();
            let open = tables.arrays.values().filter_map(ArrayEntry::active).flat_map(|active| active.open_disks());
            open.filter(|disk| disk.volume == Some(volume)).collect()
        };
        // The shards learn it when the array looks at its disks: `braid array grow`.
        disks.iter().for_each(|disk| disk.disk.set_grown_size(size_bytes));
    }
}

/// The same disk with the volume called as it is called now.
fn called(spec: DiskSpec, name: &str) -> DiskSpec {
    match spec {
        DiskSpec::Volume { .. } => DiskSpec::Volume { name: name.to_owned() },
        DiskSpec::Throttled { disk, limits } => DiskSpec::Throttled { disk: Box::new(called(*disk, name)), limits },
        DiskSpec::Faulty { disk, rules } => DiskSpec::Faulty { disk: Box::new(called(*disk, name)), rules },
        other => other,
    }
}
