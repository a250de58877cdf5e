//! Exports as files: mounts them, hands them to the shards, and lets them outlive the daemon.
//!
//! An export's file is mounted from the time that the export is added until it is removed. Meanwhile the exported
//! object may stop and start, and another daemon may take over: users of the file wait. The FUSE connection must
//! therefore stay open throughout. This module keeps its channels, and so does the service manager if there is one; the
//! shards have duplicates of them while the export serves.

use crate::file_table::{Mounted, kept_name, source_of};
use crate::{ExportManager, notify};
use braid_advice::errors::os_error;
use braid_api::address::Address;
use braid_api::{ErrorDetail, Kind};
use braid_engine::ShardId;
use braid_export::Export;
use braid_fuse::{Attach, Detach, FuseFile, Look, mount};
use braid_host::probe_process;
use braid_inventory::state::SavedExport;
use braid_inventory::{ExportCondition, FUSE_FRONTEND};
use braid_ring::{CHANNELS_MAX, DriverKind};
use braid_tasks as tasks;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Maximum time in which the file system of a path has to answer.
const PATH_MAX: Duration = Duration::from_secs(5);

/// Maximum time in which the shards have to release a file: disks that hang keep requests in flight.
const DETACHING_MAX: Duration = Duration::from_secs(5);

/// Maximum time in which the shards have to attach a file.
const ATTACHING_MAX: Duration = Duration::from_secs(2);

/// Maximum time in which files have to be unmounted when the daemon stops.
const UNMOUNTING_MAX: Duration = Duration::from_secs(3);

/// Maximum users of a file that an error names.
const USERS_NAMED: usize = 3;

/// Returns whether the kernel resends requests that a daemon has read without a reply (from Linux 6.9 on). On an older
/// kernel such requests would wait for ever, so the service manager must not keep the channels.
fn kernel_resends() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    resends(&release)
}

fn resends(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6u32, 9u32)
}

/// Returns a path as it appears in the mount table: with its folder's links resolved.
///
/// # Errors
/// The path is not absolute or has no folder, or its file system does not answer.
pub(crate) async fn canonical(path: PathBuf) -> Result<PathBuf, ErrorDetail> {
    let refused = |why: &str| {
        ErrorDetail::new(Kind::InvalidArgument, format!("the path {} {why}", path.display()))
            .with("path", path.display())
            .remedy("write it from the root, for example /srv/db.img")
    };
    if !path.is_absolute() {
        return Err(refused("is not absolute"));
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Err(refused("names no file")) };
    let (folder, name) = (folder.to_owned(), name.to_owned());
    let found = at_path(&path, move || {
        std::fs::canonicalize(&folder)
            .map_err(|error| os_error(&error, "the folder of the file cannot be found", &folder))
    });
    Ok(found.await?.join(name))
}

/// Runs blocking work on a file system that may hang, with a time limit.
async fn at_path<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, ErrorDetail> + Send + 'static,
) -> Result<T, ErrorDetail> {
    match tokio::time::timeout(PATH_MAX, tasks::blocking(work)).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(ErrorDetail::new(Kind::Internal, format!("{}: {error}", path.display()))),
        Err(_) => {
            let seconds = PATH_MAX.as_secs();
            let message = format!("the file system of {} has not answered within {seconds} s", path.display());
            Err(ErrorDetail::new(Kind::TimedOut, message)
                .with("path", path.display())
                .remedy("choose a path on another file system"))
        }
    }
}

impl ExportManager {
    /// Has the shards serve the file of an export, and mounts it unless it is mounted already.
    ///
    /// # Errors
    /// The daemon may not mount, or has no io_uring; the path is in use; the file was unmounted by another program, or
    /// its earlier requests have not been answered; no shard has room for it.
    pub async fn serve_file(&self, saved: &SavedExport, path: &Path, export: &Arc<Export>) -> Result<(), ErrorDetail> {
        let kind = self.ring.driver(ShardId(0)).kind;
        if kind != DriverKind::Uring {
            let message = format!("files are served by io_uring, and the disks here by {kind}");
            return Err(ErrorDetail::new(Kind::Unsupported, message)
                .remedy("let the daemon use io_uring (braid status says why it does not), or export it with --nbd"));
        }
        let known = self.files.mounts().get(&saved.uuid).map(|known| (known.file.clone(), known.unmounted));
        match known {
            Some((_, true)) => return Err(unmounted(&saved.name, path)),
            Some((before, false)) => {
                if let Some(before) = before {
                    self.wait_until_detached(&before, path).await?;
                }
                self.resend(saved.uuid)?;
            }
            None if self.files.mounts().len() >= CHANNELS_MAX as usize => {
                return Err(ErrorDetail::new(Kind::LimitReached, format!("there are {CHANNELS_MAX} files already"))
                    .remedy("remove one first, or export it with --nbd"));
            }
            None => self.mount_file(saved, path, export).await?,
        }
        let Some(file) = self.attach_to_shards(saved.uuid, export) else { return Ok(()) };
        let seen = async {
            while file.seen() < u32::from(self.ring.shards()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // A shard that is late attaches it all the same.
        let _ = tokio::time::timeout(ATTACHING_MAX, seen).await;
        if file.attached() == 0 {
            // Users of the file would wait for ever.
            self.drop_file(saved.uuid);
            let message = format!("no shard has room for {}", path.display());
            return Err(ErrorDetail::new(Kind::LimitReached, message)
                .remedy("remove an export, or give the shards more memory (braid serve --buffers)"));
        }
        Ok(())
    }

    /// Takes over the file of an export with the channels that an earlier daemon has left, or mounts it anew.
    async fn mount_file(&self, saved: &SavedExport, path: &Path, export: &Export) -> Result<(), ErrorDetail> {
        let (source, shards) = (source_of(saved.uuid), usize::from(self.ring.shards()));
        let over = mount::mounted(path).map_err(|error| os_error(&error, "the mounts cannot be listed", path))?;
        if over.as_ref().is_some_and(|other| *other != source) {
            return Err(ErrorDetail::new(Kind::InUse, format!("{} is the file of another export", path.display()))
                .with("path", path.display())
                .remedy("choose another path"));
        }
        let kept = self.files.take_kept(saved.uuid);
        if let Some((look, channels)) = kept {
            if over.is_none() || !is_alive(&channels[0]) {
                notify::remove_descriptors(&kept_name(saved.uuid, &look));
                drop(channels);
                return self.mount_anew(saved, path, export, over.is_some()).await;
            }
            // Resent requests can be read through any channel: channels beyond the number of shards are not needed.
            let missing = (channels.len()..shards).map(|_| mount::clone(&channels[0])).collect::<Result<Vec<_>, _>>();
            let missing = missing.map_err(|error| os_error(&error, "no further channel can be had", path))?;
            let channels = channels.into_iter().chain(missing).take(shards).collect();
            self.note_mount(saved, path, look, channels);
            tracing::info!("the file {} of export {} was taken over", path.display(), saved.name);
            return Ok(());
        }
        self.mount_anew(saved, path, export, over.is_some()).await
    }

    /// Mounts a file. `dead`: a mount whose daemon is gone is unmounted first.
    async fn mount_anew(
        &self,
        saved: &SavedExport,
        path: &Path,
        export: &Export,
        dead: bool,
    ) -> Result<(), ErrorDetail> {
        let (source, shards) = (source_of(saved.uuid), usize::from(self.ring.shards()));
        let (at, read_only, name) = (path.to_owned(), export.info().read_only, saved.name.clone());
        let (look, channels) = at_path(path, move || {
            if dead {
                // The connection ended with its daemon: the old mount is unusable.
                mount::unmount_from(&at, true).map_err(|error| os_error(&error, "the dead mount stays", &at))?;
            }
            let look = prepare(&at)?;
            let channels = mount::mount_over(&at, &source, read_only, shards);
            Ok((look, channels.map_err(|error| not_mounted(&error, &name, &at))?))
        })
        .await?;
        self.note_mount(saved, path, look, channels);
        Ok(())
    }

    fn note_mount(&self, saved: &SavedExport, path: &Path, look: Look, channels: Vec<OwnedFd>) {
        let mounted = Mounted { path: path.to_owned(), look, channels, file: None, outlives: false, unmounted: false };
        self.files.mounts().insert(saved.uuid, mounted);
    }

    /// Has the kernel resend the unanswered requests of a file.
    fn resend(&self, export: Uuid) -> Result<(), ErrorDetail> {
        let mounts = self.files.mounts();
        let Some(mounted) = mounts.get(&export) else { return Ok(()) };
        match mount::resend(&mounted.channels[0]) {
            // Before Linux 6.9 no requests are left to resend.
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                Err(os_error(&error, "the connection of the file is gone", &mounted.path))
            }
            _ => Ok(()),
        }
    }

    fn attach_to_shards(&self, uuid: Uuid, export: &Arc<Export>) -> Option<Arc<FuseFile>> {
        let mut mounts = self.files.mounts();
        let mounted = mounts.get_mut(&uuid)?;
        // From the wall clock, so that it is higher than that of any earlier instance on this connection: an identifier
        // that an earlier instance has issued to the kernel is then not taken for one of this instance.
        let instance =
            self.inventory.started_unix_ms().wrapping_add(self.inventory.started().elapsed().as_millis() as u64) << 20;
        let file = FuseFile::new(Arc::clone(export), mounted.look, self.ring.clone(), FUSE_FRONTEND, instance);
        let file = Arc::new(file);
        for (shard, channel) in mounted.channels.iter().enumerate() {
            let Ok(fd) = channel.try_clone() else {
                tracing::error!("shard {shard} has no descriptor left for {}", mounted.path.display());
                continue;
            };
            file.attach();
            let attach = Attach { file: Arc::clone(&file), fd };
            self.ring.post(ShardId(shard as u16), FUSE_FRONTEND, Box::new(attach));
        }
        mounted.file = Some(Arc::clone(&file));
        if notify::has_service_manager() && kernel_resends() {
            let name = kept_name(uuid, &mounted.look);
            let channels: Vec<_> = mounted.channels.iter().map(AsFd::as_fd).collect();
            match notify::store_descriptors(&name, &channels) {
                Ok(()) => mounted.outlives = true,
                Err(error) => tracing::warn!("the service manager cannot keep {}: {error}", mounted.path.display()),
            }
        }
        Some(file)
    }

    /// Detaches a file from the shards; it stays mounted, and its users wait.
    pub fn detach_file(&self, export: Uuid) {
        let file = self.files.mounts().get(&export).and_then(|mounted| mounted.file.clone());
        if let Some(file) = file {
            for shard in 0..self.ring.shards() {
                self.ring.post(ShardId(shard), FUSE_FRONTEND, Box::new(Detach(Arc::clone(&file))));
            }
        }
    }

    /// Waits until no shard has the file attached.
    async fn wait_until_detached(&self, file: &Arc<FuseFile>, path: &Path) -> Result<(), ErrorDetail> {
        let gone = async {
            while file.attached() > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(DETACHING_MAX, gone).await.map_err(|_| {
            let message = format!("earlier requests to {} have not been answered by its disks", path.display());
            ErrorDetail::new(Kind::TimedOut, message)
                .with("path", path.display())
                .remedy("look for disks that hang (braid disk list, dmesg)")
        })
    }

    /// Waits until no shard has the file of an export attached: then its requests in flight have got their replies.
    /// `path` is the file's, for the error. Call [`ExportManager::detach_file`] first.
    ///
    /// # Errors
    /// [`Kind::TimedOut`]: a disk hangs.
    pub async fn wait_for_detached_file(&self, export: Uuid, path: &Path) -> Result<(), ErrorDetail> {
        let file = self.files.mounts().get(&export).and_then(|mounted| mounted.file.clone());
        match file {
            Some(file) => self.wait_until_detached(&file, path).await,
            None => Ok(()),
        }
    }

    /// Serves the file of a renamed export, which has a new export object.
    pub(crate) async fn serve_renamed_file(
        &self,
        saved: &SavedExport,
        export: &Arc<Export>,
    ) -> Result<(), ErrorDetail> {
        let Ok(Address::Fuse(path)) = Address::parse(&saved.nbd) else { return Ok(()) };
        self.detach_file(saved.uuid);
        self.serve_file(saved, &path, export).await
    }

    /// Unmounts the file of an export that is about to be removed.
    ///
    /// # Errors
    /// The file is in use.
    pub(crate) async fn unmount_file(&self, saved: &SavedExport) -> Result<(), ErrorDetail> {
        let path = match self.files.mounts().get(&saved.uuid) {
            Some(mounted) if !mounted.unmounted => mounted.path.clone(),
            _ => return Ok(()),
        };
        let (at, name) = (path.clone(), saved.name.clone());
        at_path(&path, move || match mount::unmount_from(&at, false) {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                Err(in_use(&name, &at))
            }
            // Another program has unmounted it already.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => Ok(()),
            Err(error) => Err(os_error(&error, "the file cannot be unmounted", &at)),
        })
        .await
    }

    /// Drops the file of a removed export; what is still mounted of it disappears when its users have closed it.
    pub(crate) fn drop_file(&self, export: Uuid) {
        self.detach_file(export);
        let Some(mounted) = self.files.mounts().remove(&export) else { return };
        if mounted.outlives {
            notify::remove_descriptors(&kept_name(export, &mounted.look));
        }
        if mount::mounted(&mounted.path).ok().flatten() == Some(source_of(export))
            && let Err(error) = mount::unmount_from(&mounted.path, true)
        {
            tracing::warn!("{} stays mounted: {error}", mounted.path.display());
        }
    }

    /// Fails the exports whose files another program has unmounted. Called periodically; does nothing while exports are
    /// being changed.
    pub async fn watch_files(&self) {
        let Ok(_one_at_a_time) = self.listening_lock.try_lock() else { return };
        let lost: Vec<(Uuid, PathBuf)> = {
            let mut mounts = self.files.mounts();
            let is_lost = |uuid: &Uuid, mounted: &Mounted| {
                let over = mount::mounted(&mounted.path);
                mounted.file.as_ref().is_some_and(|file| file.is_gone())
                    || over.is_ok_and(|over| over != Some(source_of(*uuid)))
            };
            let lost = mounts.iter_mut().filter(|(uuid, mounted)| !mounted.unmounted && is_lost(uuid, mounted));
            lost.map(|(uuid, mounted)| {
                mounted.unmounted = true;
                if mounted.outlives {
                    notify::remove_descriptors(&kept_name(*uuid, &mounted.look));
                }
                (*uuid, mounted.path.clone())
            })
            .collect()
        };
        for (uuid, path) in lost {
            let Some(name) =
                self.inventory.read().exports.values().find(|e| e.saved.uuid == uuid).map(|e| e.saved.name.clone())
            else {
                continue;
            };
            self.stop_export(&name);
            let error = unmounted(&name, &path);
            self.inventory.events().error("export_failed", error.message.clone(), &[("export", &name)]);
            if let Some(entry) = self.inventory.write().exports.get_mut(&name) {
                entry.serving = ExportCondition::Failed(error);
            }
        }
    }

    /// Makes the kernel update the size of the files of the exports of an array or volume that has grown; `of`: its
    /// UUID. Does not wait for the kernel.
    pub fn refresh_file_sizes(&self, of: Uuid) {
        let exports: Vec<Uuid> = {
            let tables = self.inventory.read();
            let of = tables.exports.values().filter(|entry| entry.saved.array == of);
            of.filter(|entry| matches!(entry.serving, ExportCondition::Listening(_)))
                .map(|entry| entry.saved.uuid)
                .collect()
        };
        let mounts = self.files.mounts();
        let paths = exports.iter().filter_map(|uuid| mounts.get(uuid)).map(|mounted| mounted.path.clone()).collect();
        drop(mounts);
        // The shards reply to the lookup, so another process must make it. If this process were killed while one of its
        // own threads waited for the lookup, the thread would wait for a reply of its own process, which could not end
        // before the thread.
        probe_process::refresh(paths);
    }

    /// Removes and returns the channels of all files, by the names under which they are kept, for the next build of the
    /// daemon; the files stay mounted. Call it after the shards have ended, and so have replied to every request that
    /// they had read.
    pub fn hand_over_files(&self) -> Vec<(String, OwnedFd)> {
        let mounts = std::mem::take(&mut *self.files.mounts());
        let continuing = mounts.into_iter().filter(|(_, mounted)| !mounted.unmounted);
        continuing
            .flat_map(|(uuid, mounted)| {
                let name = kept_name(uuid, &mounted.look);
                mounted.channels.into_iter().map(move |channel| (name.clone(), channel))
            })
            .collect()
    }

    /// Unmounts the files that no service manager keeps, when the daemon stops; their users get errors from then on.
    /// Returns one sentence for each file that could not be unmounted in time.
    pub async fn end_files(&self) -> Vec<String> {
        let mounts = std::mem::take(&mut *self.files.mounts());
        let ending = mounts.into_iter().filter(|(_, mounted)| !mounted.outlives && !mounted.unmounted);
        let ending: Vec<_> = ending
            .map(|(uuid, mounted)| {
                let path = mounted.path.clone();
                // Unmounting resolves the path, which hangs if a file system along it does.
                (path, tasks::blocking(move || end_file(uuid, &mounted)))
            })
            .collect();
        let (until, mut left) = (tokio::time::Instant::now() + UNMOUNTING_MAX, Vec::new());
        for (path, ended) in ending {
            if tokio::time::timeout_at(until, ended).await.is_err() {
                let (path, seconds) = (path.display(), UNMOUNTING_MAX.as_secs());
                left.push(format!(
                    "{path} is still mounted: the file system that it is on has not answered within {seconds} s (umount -l {path}, once \
                     it does)"
                ));
            }
        }
        left
    }
}

/// Unmounts the file of an export when the daemon stops.
fn end_file(export: Uuid, mounted: &Mounted) {
    if mount::unmount_from(&mounted.path, false).is_err()
        && mount::mounted(&mounted.path).ok().flatten() == Some(source_of(export))
    {
        tracing::warn!("{} is in use, and is unmounted lazily", mounted.path.display());
        let _ = mount::unmount_from(&mounted.path, true);
    }
}

/// Returns whether a kept connection is alive, and has the kernel resend its requests. Kernels before Linux 6.9 refuse
/// to resend (EINVAL); a daemon keeps channels there only over an upgrade, which leaves no request without a reply.
fn is_alive(channel: &OwnedFd) -> bool {
    match mount::resend(channel) {
        Err(error) => error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()),
        Ok(()) => true,
    }
}

/// Returns the file of a Braid export that this path is, or that backs this loop device or a partition of it. The file
/// itself, which may wait for this daemon, is not accessed.
pub fn exported_file(path: &Path) -> Option<PathBuf> {
    let is_ours = |path: &Path| mount::mounted(path).ok().flatten().is_some();
    if !path.starts_with("/dev") {
        return is_ours(path).then(|| path.to_owned());
    }
    let entry = std::fs::canonicalize(Path::new("/sys/class/block").join(path.file_name()?)).ok()?;
    let of_partition = entry.parent().map(|whole| whole.join("loop/backing_file"));
    let backing = std::fs::read(entry.join("loop/backing_file")).ok().or_else(|| std::fs::read(of_partition?).ok())?;
    let backing = PathBuf::from(OsStr::from_bytes(backing.trim_ascii_end()));
    is_ours(&backing).then_some(backing)
}

/// Makes sure that an empty file to mount over exists, and returns its attributes.
fn prepare(path: &Path) -> Result<Look, ErrorDetail> {
    let refused = |why: String| {
        ErrorDetail::new(Kind::InUse, format!("{} {why}", path.display()))
            .with("path", path.display())
            .remedy("name an empty file, or one that is not there yet")
    };
    let created = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match created {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(os_error(&error, "the file cannot be made", path));
        }
        _ => {}
    }
    let found =
        std::fs::symlink_metadata(path).map_err(|error| os_error(&error, "the file is not to be seen", path))?;
    if !found.is_file() {
        return Err(refused("is no plain file".to_owned()));
    }
    if found.len() > 0 {
        return Err(refused(format!("holds {} bytes, which the mount would hide", found.len())));
    }
    Ok(Look {
        mode: found.mode() & 0o777,
        uid: found.uid(),
        gid: found.gid(),
        time_s: u64::try_from(found.mtime()).unwrap_or(0),
    })
}

fn not_mounted(error: &std::io::Error, export: &str, path: &Path) -> ErrorDetail {
    let message = format!("export {export} cannot be mounted at {}: {error}", path.display());
    let detail = |kind| ErrorDetail::new(kind, message.clone()).with("export", export).with("path", path.display());
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => detail(Kind::PermissionDenied).remedy(
            "mounting takes a daemon that runs as root and may mount (docs/guide/file-exports.md has what systemd's unit needs), or \
             export it with --nbd",
        ),
        std::io::ErrorKind::NotFound => detail(Kind::Unsupported)
            .remedy("this kernel offers no FUSE (modprobe fuse makes /dev/fuse), or export it with --nbd"),
        _ => detail(Kind::Internal).remedy("look at the kernel's log (dmesg), or export it with --nbd"),
    }
}

fn in_use(export: &str, path: &Path) -> ErrorDetail {
    let users = mount::users(path);
    let by = match users.len() {
        0 => "by a process that this daemon cannot see (another mount namespace, or the kernel)".to_owned(),
        count => {
            let more = count.saturating_sub(USERS_NAMED);
            let named = users[..count - more].join(", ");
            format!("by {named}{}", if more > 0 { format!(" and {more} more") } else { String::new() })
        }
    };
    ErrorDetail::new(Kind::InUse, format!("the file {} of export {export} is in use {by}", path.display()))
        .with("export", export)
        .with("path", path.display())
        .remedy("close it there (losetup -d, umount), then remove the export")
}

fn unmounted(export: &str, path: &Path) -> ErrorDetail {
    let message = format!("the file {} of export {export} was unmounted, by another program", path.display());
    ErrorDetail::new(Kind::Inactive, message)
        .with("export", export)
        .with("path", path.display())
        .remedy(format!("remove the export (braid export remove {export}) and add it again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_resend_are_known() {
        assert!(resends("6.9.0") && resends("6.12.57-amd64") && resends("7.0-rc1"));
        assert!(!resends("6.8.0-101-generic") && !resends("5.15.0") && !resends(""));
    }
}
