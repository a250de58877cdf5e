//! Opening disks, and giving them back.

use super::Control;
use super::search::without_size;
use super::tables::OpenDisk;
use braid_advice::errors::of_ring;
use braid_api::{ErrorDetail, Kind};
use braid_engine::LeafId;
use braid_host::host::{Entry, Identity, Roots};
use braid_host::open::open_disk;
use braid_ring::{Disk, DiskSpec, OpenOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// Between two tries to open a disk that somebody still uses.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Longest that a command waits for disks to be closed.
const CLOSING_MAX: Duration = Duration::from_secs(5);

impl Control {
    /// Opens a disk for exclusive use and makes it known to the shards. Whoever uses it has `patience` to let go of
    /// it: a daemon that was killed holds its disks until the kernel has ended its I/O, a little after it is gone.
    ///
    /// # Errors
    /// Somebody uses it, it is not there, or the operating system refuses.
    pub(super) async fn open_disk(
        self: &Arc<Self>,
        spec: DiskSpec,
        patience: Duration,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        if spec.volume().is_some() {
            let (disk, volume) = self.open_volume(&spec).await?;
            let (name, disk) = (disk.spec().to_string(), Arc::new(disk));
            let leaf = match self.ring.add_leaf(Arc::clone(&disk)) {
                Ok(leaf) => leaf,
                Err(error) => {
                    self.close_volume(volume).await;
                    return Err(of_ring(&error, &name));
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
                here: None,
            }));
        }
        let name = without_size(spec.clone()).to_string();
        let (control, opening) = (Arc::clone(self), name.clone());
        let opened = tokio::task::spawn_blocking(move || {
            control.not_ours(&spec)?;
            let until = std::time::Instant::now() + patience;
            loop {
                match open_disk(&spec, &opening, OpenOptions { exclusive: true, write: true }) {
                    Err(error) if error.in_use && std::time::Instant::now() < until => {
                        std::thread::sleep(BETWEEN_TRIES);
                    }
                    Ok(disk) => {
                        let path = disk.spec().path();
                        let (identity, entry) = (path.and_then(Identity::of), path.and_then(Entry::of));
                        return Ok((disk, identity, entry));
                    }
                    Err(error) => return Err(error.detail),
                }
            }
        });
        let (disk, identity, entry) = opened.await.map_err(|error| {
            ErrorDetail::new(Kind::Internal, format!("opening {name} ended unexpectedly: {error}"))
        })??;
        self.know_disk(name, disk, identity, entry)
    }

    /// Makes an open disk known to the shards.
    pub(super) fn know_disk(
        &self,
        name: String,
        disk: Disk,
        identity: Option<Identity>,
        entry: Option<Entry>,
    ) -> Result<Arc<OpenDisk>, ErrorDetail> {
        let disk = Arc::new(disk);
        let leaf = self.ring.add_leaf(Arc::clone(&disk)).map_err(|error| of_ring(&error, &name))?;
        Ok(Arc::new(OpenDisk {
            name,
            disk,
            identity,
            entry,
            volume: None,
            leaf,
            watch: Default::default(),
            here: None,
        }))
    }

    /// Takes disks from the shards and closes them, so that they are free when this returns. One that hangs is
    /// not waited for beyond a limit; it is closed when it answers after all.
    pub(super) async fn close_disks(&self, disks: Vec<Arc<OpenDisk>>) {
        self.close_disks_within(disks, CLOSING_MAX).await;
    }

    /// The same with another limit.
    pub(super) async fn close_disks_within(&self, disks: Vec<Arc<OpenDisk>>, limit: Duration) {
        self.note_leaving(&disks);
        let mut all = JoinSet::new();
        for disk in disks {
            if self.draining.lock().unwrap_or_else(PoisonError::into_inner).contains(&disk.leaf) {
                continue;
            }
            let (leaf, answer, leaving) = (disk.leaf, self.ring.remove_leaf(disk.leaf), Arc::clone(&self.leaving));
            let (volume, control) = (disk.volume, self.me.upgrade());
            let remote = disk.disk.is_remote().then(|| (Arc::clone(&disk.disk), disk.name.clone()));
            drop(disk);
            all.spawn(async move {
                // An error says that the shards have ended, and with them their hold on the disk.
                let _ = answer.await;
                // Each shard has a connection of its own, and gives it up by its own clock: only now all have said what the server has left.
                if let (Some((disk, name)), Some(control)) = (remote, &control)
                    && !disk.has_no_pending_effects()
                {
                    control.stays_away(&name);
                }
                leaving.lock().unwrap_or_else(PoisonError::into_inner).remove(&leaf);
                if let (Some(volume), Some(control)) = (volume, control) {
                    control.close_volume(volume).await;
                }
            });
        }
        let _ = tokio::time::timeout(limit, async { while all.join_next().await.is_some() {} }).await;
        all.detach_all();
    }

    /// Notes disks that are being let go of, so that those that never answer can be named.
    pub(super) fn note_leaving(&self, disks: &[Arc<OpenDisk>]) {
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.extend(disks.iter().map(|disk| (disk.leaf, disk.name.clone())));
    }

    /// Refuses a disk that is a member of an active array, with its name: the lock alone could only say that this
    /// process has it.
    pub(super) fn not_ours(&self, spec: &DiskSpec) -> Result<(), ErrorDetail> {
        if let Some(file) = spec.path().and_then(super::files::braids_file) {
            let message = format!("disk {spec} is a file of Braid's own, {}: it would stand on itself", file.display());
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("disk", spec)
                .remedy("name the volume itself (POOL/VOLUME), or export it over NBD to another daemon"));
        }
        let Some(id) = spec.path().and_then(Identity::of) else { return Ok(()) };
        let tables = self.read();
        let of_pool = tables.pool_disks_open().find(|(_, _, disk)| disk.identity == Some(id));
        if let Some((pool, number, _)) = of_pool {
            let message = format!("disk {spec} is member {number} of the active pool {}", pool.name);
            return Err(ErrorDetail::new(Kind::InUse, message)
                .with("disk", spec)
                .with("pool", &pool.name)
                .remedy("use another disk"));
        }
        let user = tables.open_disks().find(|(_, _, disk)| disk.identity == Some(id));
        match user {
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

    /// Refuses disks for a new array that somebody uses, or that stand on each other or on members of arrays.
    /// `--force` does not override this.
    ///
    /// # Errors
    /// [`Kind::InUse`] or [`Kind::InvalidArgument`] naming both.
    pub(super) fn check_use(&self, specs: &[DiskSpec]) -> Result<(), ErrorDetail> {
        let roots = Roots::default();
        let devices = roots.block_devices();
        let users = roots.users(&devices);
        // What each disk stands on, itself included.
        let mut taken: BTreeMap<Identity, String> = BTreeMap::new();
        for (entry, role, disk) in self.read().open_disks() {
            for id in disk.disk.spec().path().map(|path| roots.beneath(path, &devices)).unwrap_or_default() {
                taken.insert(id, format!("member {role} of array {}", entry.name));
            }
        }
        for (entry, number, disk) in self.read().pool_disks_open() {
            for id in disk.disk.spec().path().map(|path| roots.beneath(path, &devices)).unwrap_or_default() {
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
            let in_use = |who: String| {
                ErrorDetail::new(Kind::InUse, format!("disk {spec} is in use: {who}")).with("disk", spec).remedy(
                    "free it first (umount, swapoff, losetup -d), or use another disk; --force does not override this",
                )
            };
            if let Some(who) = roots.user_of(path, &devices, &users) {
                return Err(in_use(who));
            }
            for id in roots.beneath(path, &devices) {
                if let Some(other) = taken.get(&id) {
                    return Err(ErrorDetail::new(
                        Kind::InUse,
                        format!("disk {spec} is the same as, or stands on, {other}"),
                    )
                    .with("disk", spec)
                    .remedy("each member needs a disk of its own"));
                }
            }
            taken.extend(roots.beneath(path, &devices).into_iter().map(|id| (id, format!("disk {spec}"))));
        }
        Ok(())
    }

    /// How its user knows a disk.
    pub(super) fn name_in<'a>(disks: &'a [Arc<OpenDisk>]) -> impl Fn(LeafId) -> Option<String> + 'a {
        |leaf| disks.iter().find(|disk| disk.leaf == leaf).map(|disk| disk.name.clone())
    }
}

/// Removes the files that were made for an array that did not come about.
pub(super) fn remove_files(paths: &[impl AsRef<Path>]) {
    for path in paths {
        // Best effort: the array's own error is what its user needs to hear.
        let _ = std::fs::remove_file(path);
    }
}
