//! Stacking in the tables: which array or replica has a volume open as a disk, and which object stands on which.

use crate::arrays::{ArrayCondition, ArrayEntry};
use crate::disks::OpenDisk;
use crate::pools::{MemberBacking, PoolHandle};
use crate::state::SavedDisk;
use crate::tables::Tables;
use braid_api::{ErrorDetail, Kind};
use braid_ring::{DiskSpec, stack_level_of, stack_level_of_pool};
use uuid::Uuid;

impl Tables {
    /// Describes the component that has a volume open as a disk; `None`: no component has.
    pub fn holder_of_volume(&self, volume: Uuid) -> Option<String> {
        if let Some(entry) = self.replica_with(volume) {
            return Some(format!("the data of replica {} of volume {}", entry.saved.name, entry.saved.volume));
        }
        self.held_volumes.get(&volume)?;
        let of = |entry: &ArrayEntry| {
            let active = entry.active()?;
            let member = active.disks.iter().find(|member| member.disk.volume == Some(volume));
            let guest = active.guests.iter().find(|disk| disk.volume == Some(volume));
            match (member, guest) {
                (Some(member), _) => Some(format!("member {} of array {}", member.role, entry.name)),
                (None, Some(_)) => Some(format!("about to be a member of array {}", entry.name)),
                (None, None) => None,
            }
        };
        Some(self.arrays.values().find_map(of).unwrap_or_else(|| "being made a member of an array".to_owned()))
    }

    /// Refuses writable exports of a volume that is a disk.
    ///
    /// # Errors
    /// [`Kind::InUse`].
    pub fn refuse_export_of_held(&self, volume: Uuid, name: &str, read_only: bool) -> Result<(), ErrorDetail> {
        let Some(who) = self.holder_of_volume(volume).filter(|_| !read_only) else { return Ok(()) };
        Err(ErrorDetail::new(Kind::InUse, format!("volume {name} is {who}: clients would write over it"))
            .with("volume", name)
            .remedy("export what stands on it, or this volume with --read-only"))
    }

    /// Returns the volumes, as disks, that were members of arrays, are not open as disks, and whose pools serve.
    pub fn volumes_to_look_at(&self) -> Vec<DiskSpec> {
        let held: Vec<&str> = self
            .arrays
            .values()
            .filter_map(ArrayEntry::active)
            .flat_map(|active| active.disks.iter().map(|member| &member.disk).chain(&active.guests))
            .filter_map(|disk| disk.disk.spec().volume())
            .collect();
        let serves = |pool: &str| self.pool(pool).is_ok_and(|entry| entry.served().is_some());
        let specs = self.disks.keys().filter_map(|name| DiskSpec::parse(name).ok());
        let present = |spec: &DiskSpec| {
            let name = spec.volume().filter(|name| !held.contains(name))?;
            serves(name.split_once('/')?.0).then_some(())
        };
        specs.filter(|spec| present(spec).is_some()).collect()
    }

    /// Returns true if the array lacks a member that was a volume when last seen: none of these disks is that volume. A
    /// volume among the disks that is not recorded as a member may be a member that was renamed, and makes up for one
    /// that is missing.
    pub fn lacks_volumes(&self, array: Uuid, disks: &[&OpenDisk]) -> bool {
        let of = self.disks.values().filter(|saved| saved.array == array);
        let known: Vec<DiskSpec> = of.filter_map(|saved| DiskSpec::parse(&saved.disk).ok()).collect();
        let known: Vec<&str> = known.iter().filter_map(DiskSpec::volume).collect();
        let present: Vec<&str> = disks.iter().filter_map(|disk| disk.disk.spec().volume()).collect();
        let missing = known.iter().filter(|name| !present.contains(name)).count();
        missing > present.iter().filter(|name| !known.contains(name)).count()
    }

    /// Returns a volume that was a member of an array when the array was last seen, and the array's name. `is_meant`
    /// selects by the name of the volume, with its pool.
    pub fn volume_last_of(&self, is_meant: impl Fn(&str) -> bool) -> Option<(String, &str)> {
        self.disks.values().find_map(|saved| {
            let spec = DiskSpec::parse(&saved.disk).ok()?;
            let volume = spec.volume().filter(|name| is_meant(name))?;
            Some((volume.to_owned(), saved.array_name.as_str()))
        })
    }

    /// Renames volumes in the records of disks: the disks that they were when their arrays were last seen. `new_name`
    /// maps a volume's name with its pool to the new one; `None`: the volume keeps its name.
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
                ArrayCondition::Active(active) => {
                    active.missing.values_mut().map(|missing| &mut missing.disk).collect()
                }
                ArrayCondition::Idle(idle) => {
                    idle.members.iter_mut().filter_map(|member| member.disk.as_mut()).collect()
                }
            };
            for name in names {
                if let Some(new) = renamed(name) {
                    *name = new;
                }
            }
        }
    }

    /// Describes the component that has a volume of a pool open as a disk; `None`: no component has.
    pub fn held_of_pool(&self, pool: Uuid) -> Option<String> {
        if let Some(data) = self.replica_in(pool).and_then(|entry| entry.saved.data) {
            return self.holder_of_volume(data);
        }
        let volume = self.held_volumes.iter().find(|(_, of)| **of == pool).map(|(volume, _)| *volume)?;
        self.holder_of_volume(volume)
    }

    /// Returns true if a pool stands on a volume of `other`, at any depth, or is `other`.
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
                served.written().filter_map(|part| match part.backing {
                    MemberBacking::Array(uuid) => Some(uuid),
                    MemberBacking::Disk(_) => None,
                })
            });
            left.extend(arrays.flat_map(|array| self.pools_below(array)));
        }
        false
    }

    /// Returns the pools whose volumes are members of an array.
    fn pools_below(&self, array: Uuid) -> Vec<Uuid> {
        let disks = self.arrays.get(&array).and_then(ArrayEntry::active).map(|active| active.open_disks());
        let volumes = disks.into_iter().flatten().filter_map(|disk| disk.volume);
        volumes.filter_map(|volume| self.held_volumes.get(&volume).copied()).collect()
    }

    /// Refuses an array as a member of a pool on another stack level. Returns the stack level of the members.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`], which says so if there would be a cycle.
    pub fn refuse_other_stack_level(&self, pool: Option<&PoolHandle>, arrays: &[Uuid]) -> Result<usize, ErrorDetail> {
        let stack_level = |uuid: &Uuid| {
            self.arrays.get(uuid).and_then(ArrayEntry::active).map_or(0, |active| stack_level_of(active.device))
        };
        let wanted = pool
            .map_or_else(|| arrays.iter().map(stack_level).max().unwrap_or(0), |pool| stack_level_of_pool(pool.key));
        let Some(other) = arrays.iter().find(|uuid| stack_level(uuid) != wanted) else { return Ok(wanted) };
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
            "array {name} stands {}, and the other members do not: all members of a pool must be on the same stack level",
            if stack_level(other) > 0 { "on volumes" } else { "on disks alone" }
        );
        Err(ErrorDetail::new(Kind::InvalidArgument, message)
            .with("array", &name)
            .remedy("make a pool of its own of it (braid pool create)"))
    }
}

/// Refuses a disk whose stack level is not below that of the array that it is for.
///
/// # Errors
/// [`Kind::InvalidArgument`].
pub fn refuse_higher_stack_level(tables: &Tables, uuid: Uuid, disk: &OpenDisk) -> Result<(), ErrorDetail> {
    let Some(below) = disk.disk.device() else { return Ok(()) };
    let Some(entry) = tables.arrays.get(&uuid) else { return Ok(()) };
    let ArrayCondition::Active(active) = &entry.condition else { return Ok(()) };
    if stack_level_of(active.device) > stack_level_of(below) {
        return Ok(());
    }
    let of = disk.volume.and_then(|volume| tables.held_volumes.get(&volume).copied());
    let name = &entry.name;
    let pool_on = tables.serving_pool_on(uuid).map(|(pool, _)| pool.uuid);
    let (message, remedy) = if let (Some(of), Some(on)) = (of, pool_on)
        && tables.stands_on(of, on)
    {
        let message = format!("{} is a volume that stands on array {name}, which would stand on itself", disk.name);
        (message, "use a disk, or a volume of another pool".to_owned())
    } else {
        let message = format!(
            "array {name} was started on a stack level that is too low for {}, and cannot change it while it serves",
            disk.name
        );
        (message, format!("braid array stop {name}, then: braid array assemble {name} --disk {}", disk.name))
    };
    Err(ErrorDetail::new(Kind::InvalidArgument, message).with("array", name).with("disk", &disk.name).remedy(remedy))
}

/// Returns the same disk, with this name of the volume that it is; a disk that is no volume stays as it is.
pub fn called(spec: DiskSpec, name: &str) -> DiskSpec {
    match spec {
        DiskSpec::Volume { .. } => DiskSpec::Volume { name: name.to_owned() },
        DiskSpec::Throttled { disk, limits } => DiskSpec::Throttled { disk: Box::new(called(*disk, name)), limits },
        DiskSpec::Faulty { disk, rules } => DiskSpec::Faulty { disk: Box::new(called(*disk, name)), rules },
        other => other,
    }
}
