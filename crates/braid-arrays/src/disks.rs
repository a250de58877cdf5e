//! Opens and closes disks, and refuses those that are in use.

use crate::ArrayManager;
use crate::disk_names::without_size;
use braid_advice::errors::ring_error;
use braid_api::{ErrorDetail, Kind};
use braid_engine::LeafId;
use braid_exports::exported_file;
use braid_host::host::{FileSystemEntry, Identity, SystemRoots};
use braid_host::open::open_disk;
use braid_inventory::OpenDisk;
use braid_ring::{Disk, DiskSpec, OpenOptions, stack_level_of};
use braid_tasks as tasks;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use uuid::Uuid;

/// Interval between two attempts to open a disk that is still in use.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time in which a command waits for disks to be closed.
const CLOSING_MAX: Duration = Duration::from_secs(5);

impl ArrayManager {
    /// Opens a disk exclusively and registers it with the shards. A disk in use is tried again for `patience`: the
    /// kernel releases the disks of a killed daemon only when it has ended their I/O, shortly after the process is
    /// gone.
    ///
    /// # Errors
    /// The disk is in use or does not exist, or the operating system refuses.
    pub(crate) async fn open_disk(
        self: &Arc<Self>,
        spec: DiskSpec,
        patience: Duration,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        if spec.volume().is_some() {
            let (disk, volume) = self.users().open_volume(&spec).await?;
            let (name, disk) = (disk.spec().to_string(), Arc::new(disk));
            let leaf = match self.ring.add_leaf(Arc::clone(&disk)) {
                Ok(leaf) => leaf,
                Err(error) => {
                    self.users().close_volume(volume).await;
                    return Err(ring_error(&error, &name));
                }
            };
            let (identity, entry, volume) = (None, None, Some(volume));
            return Ok(Arc::new(OpenDisk {
                name,
                disk,
                identity,
                entry,
                volume,
                leaf,
                watch: Default::default(),
                local_replica: None,
            }));
        }
        let name = without_size(spec.clone()).to_string();
        let (manager, opening) = (Arc::clone(self), name.clone());
        let opened = tasks::blocking(move || {
            manager.refuse_own_disk(&spec)?;
            let until = std::time::Instant::now() + patience;
            loop {
                match open_disk(&spec, &opening, OpenOptions { exclusive: true, write: true }) {
                    Err(error) if error.in_use && std::time::Instant::now() < until => {
                        std::thread::sleep(RETRY_INTERVAL);
                    }
                    Ok(disk) => {
                        let path = disk.spec().path();
                        let (identity, entry) = (path.and_then(Identity::of), path.and_then(FileSystemEntry::of));
                        return Ok((disk, identity, entry));
                    }
                    Err(error) => return Err(error.detail),
                }
            }
        });
        let (disk, identity, entry) = opened.await.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("opening {name} ended unexpectedly: {error}"))
        })??;
        self.register_disk(name, disk, identity, entry)
    }

    /// Registers an open disk with the shards.
    ///
    /// # Errors
    /// The shards have no room for it.
    pub(crate) fn register_disk(
        &self,
        name: String,
        disk: Disk,
        identity: Option<Identity>,
        entry: Option<FileSystemEntry>,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let disk = Arc::new(disk);
        let leaf = self.ring.add_leaf(Arc::clone(&disk)).map_err(|error| ring_error(&error, &name))?;
        Ok(Arc::new(OpenDisk {
            name,
            disk,
            identity,
            entry,
            volume: None,
            leaf,
            watch: Default::default(),
            local_replica: None,
        }))
    }

    /// Removes disks from the shards and closes them, so that they are free when this returns. A disk that hangs is
    /// waited for up to a limit; it is closed when it answers after all.
    pub async fn close_disks(&self, disks: Vec<Arc<OpenDisk>>) {
        self.close_disks_within(disks, CLOSING_MAX).await;
    }

    /// Does the same as [`ArrayManager::close_disks`] with another limit.
    pub async fn close_disks_within(&self, disks: Vec<Arc<OpenDisk>>, limit: Duration) {
        self.record_closing_disks(&disks);
        let mut all = JoinSet::new();
        for disk in disks {
            if self.hanging_disks.lock().unwrap_or_else(PoisonError::into_inner).contains(&disk.leaf) {
                continue;
            }
            let (leaf, answer, leaving) =
                (disk.leaf, self.ring.remove_leaf(disk.leaf), Arc::clone(&self.closing_disks));
            let (volume, manager) = (disk.volume, self.weak_self.upgrade());
            let remote = disk.disk.is_remote().then(|| (Arc::clone(&disk.disk), disk.name.clone()));
            drop(disk);
            tasks::spawn_in(&mut all, async move {
                // An error means that the shards have ended, and have released the disk.
                let _ = answer.await;
                // Each shard has a connection of its own and closes it independently: only now have all of them
                // reported which requests the server has left unanswered.
                if let (Some((disk, name)), Some(manager)) = (remote, &manager)
                    && !disk.has_no_pending_effects()
                {
                    manager.stays_away(&name);
                }
                leaving.lock().unwrap_or_else(PoisonError::into_inner).remove(&leaf);
                if let (Some(volume), Some(manager)) = (volume, manager) {
                    manager.users().close_volume(volume).await;
                }
            });
        }
        let _ = tokio::time::timeout(limit, async { while all.join_next().await.is_some() {} }).await;
        all.detach_all();
    }

    /// Records disks that are being closed in [`ArrayManager::closing_disks`], so that those that never answer can be
    /// named. [`ArrayManager::close_disks`] removes them when they are closed.
    pub fn record_closing_disks(&self, disks: &[Arc<OpenDisk>]) {
        let mut leaving = self.closing_disks.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.extend(disks.iter().map(|disk| (disk.leaf, disk.name.clone())));
    }

    /// Refuses a disk that is a member of an active array or pool, and names that: the lock alone shows only that this
    /// process holds the disk. Also refuses files that Braid itself exports. Blocks on file I/O.
    ///
    /// # Errors
    /// [`Kind::InUse`], which names the user.
    pub(crate) fn refuse_own_disk(&self, spec: &DiskSpec) -> Result<(), ErrorDetail> {
        if let Some(file) = spec.path().and_then(exported_file) {
            let message = format!("disk {spec} is a file of Braid's own, {}: it would stand on itself", file.display());
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("disk", spec)
                .remedy("name the volume itself (POOL/VOLUME), or export it over NBD to another daemon"));
        }
        let Some(id) = spec.path().and_then(Identity::of) else { return Ok(()) };
        let tables = self.inventory.read();
        let of_pool = tables.pool_disks_open().find(|(_, _, disk)| disk.identity == Some(id));
        if let Some((pool, number, _)) = of_pool {
            let message = format!("disk {spec} is member {number} of the active pool {}", pool.name);
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("disk", spec)
                .with("pool", &pool.name)
                .remedy("use another disk"));
        }
        let member = tables.open_disks().find(|(_, _, disk)| disk.identity == Some(id));
        match member {
            None => Ok(()),
            Some((entry, role, _)) => Err(ErrorDetail::new(
                Kind::InUse,
                format!("disk {spec} is member {role} of the active array {}", entry.name),
            )
            .with("disk", spec)
            .with("array", &entry.name)
            .remedy("use another disk, or stop that array first")),
        }
    }

    /// Refuses disks for a new array that are in use, or that stand on each other or on members of arrays and pools.
    /// `--force` does not override this.
    ///
    /// # Errors
    /// [`Kind::InUse`], which names both.
    pub(crate) fn refuse_disks_in_use(&self, specs: &[DiskSpec]) -> Result<(), ErrorDetail> {
        let roots = SystemRoots::default();
        let devices = roots.block_devices();
        let users = roots.users(&devices);
        // The devices that each disk stands on, itself included.
        let mut taken: BTreeMap<Identity, String> = BTreeMap::new();
        for (entry, role, disk) in self.inventory.read().open_disks() {
            for id in disk.disk.spec().path().map(|path| roots.underlying_devices(path, &devices)).unwrap_or_default() {
                taken.insert(id, format!("member {role} of array {}", entry.name));
            }
        }
        for (entry, number, disk) in self.inventory.read().pool_disks_open() {
            for id in disk.disk.spec().path().map(|path| roots.underlying_devices(path, &devices)).unwrap_or_default() {
                taken.insert(id, format!("member {number} of pool {}", entry.name));
            }
        }
        for (nth, spec) in specs.iter().enumerate() {
            if spec.remote().is_some_and(|uri| specs[..nth].iter().any(|other| other.remote() == Some(uri))) {
                return Err(ErrorDetail::new(Kind::InUse, format!("disk {spec} is named twice"))
                    .with("disk", spec)
                    .remedy("each member needs a disk of its own"));
            }
            let Some(path) = spec.path() else { continue };
            let in_use = |user: String| {
                ErrorDetail::new(Kind::InUse, format!("disk {spec} is in use: {user}")).with("disk", spec).remedy(
                    "free it first (umount, swapoff, losetup -d), or use another disk; --force does not override this",
                )
            };
            if let Some(user) = roots.user_of(path, &devices, &users) {
                return Err(in_use(user));
            }
            for id in roots.underlying_devices(path, &devices) {
                if let Some(other) = taken.get(&id) {
                    return Err(ErrorDetail::new(
                        Kind::InUse,
                        format!("disk {spec} is the same as, or stands on, {other}"),
                    )
                    .with("disk", spec)
                    .remedy("each member needs a disk of its own"));
                }
            }
            taken.extend(roots.underlying_devices(path, &devices).into_iter().map(|id| (id, format!("disk {spec}"))));
        }
        Ok(())
    }

    /// Returns the stack level of an array on these disks, and has the shards prepare it: 0 on plain disks, else one
    /// above its highest member. The level is at least 1 if the state file records a volume as a member, because a
    /// missing one may return. It is at least that of the other members of the pool that the array is in.
    ///
    /// # Errors
    /// The shards have no memory for that stack level.
    pub(crate) fn stack_level_of_array(&self, uuid: Uuid, disks: &[Arc<OpenDisk>]) -> Result<usize, ErrorDetail> {
        let above = |disk: &Arc<OpenDisk>| disk.disk.device().map_or(0, |below| stack_level_of(below) + 1);
        let present = disks.iter().map(above).max().unwrap_or(0);
        let was_on_volume =
            self.inventory.read().disks.values().any(|saved| {
                saved.array == uuid && DiskSpec::parse(&saved.disk).is_ok_and(|spec| spec.volume().is_some())
            });
        let least = self.inventory.read().stack_levels_min.get(&uuid).copied().unwrap_or(0);
        let stack_level = present.max(usize::from(was_on_volume)).max(least);
        let raised = self.ring.ensure_stack_level(stack_level);
        raised.map(|()| stack_level).map_err(|error| ring_error(&error, &uuid.to_string()))
    }

    /// Returns a function that maps leaves to the names of these disks.
    pub fn name_in<'a>(disks: &'a [Arc<OpenDisk>]) -> impl Fn(LeafId) -> Option<String> + 'a {
        |leaf| disks.iter().find(|disk| disk.leaf == leaf).map(|disk| disk.name.clone())
    }
}

/// Removes the files that were made for an array or pool whose creation failed. Errors are ignored.
pub fn remove_files(paths: &[impl AsRef<Path>]) {
    for path in paths {
        // Best effort: the caller reports the error of the creation.
        let _ = std::fs::remove_file(path);
    }
}
