//! Exports as files: mounting them, giving them to the shards, and letting them outlive the daemon.
//!
//! A mount belongs to its export from the moment it is added until it is removed. What it is of may stop and start meanwhile,
//! and the daemon may be another one: whoever uses the file waits. So the channels are kept here, and with the service
//! manager where there is one; shards have copies while the export serves.

use super::Control;
use super::tables::Serving;
use crate::daemon::listen::FUSE_FRONTEND;
use crate::daemon::notify;
use crate::daemon::state::SavedExport;
use braid_advice::errors::os_error;
use braid_api::address::Address;
use braid_api::{ErrorDetail, Kind};
use braid_engine::ShardId;
use braid_fuse::{Attach, Detach, FuseFile, Look, mount};
use braid_host::aside;
use braid_nbd::Export;
use braid_ring::kept::InheritedFds;
use braid_ring::{CHANNELS_MAX, DriverKind};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Longest that the file system of a path may take to answer.
const PATH_MAX: Duration = Duration::from_secs(5);
/// Longest that shards may take to let go of a file: disks that hang keep what is in flight.
const DETACHING_MAX: Duration = Duration::from_secs(5);
/// Longest that shards may take to take one.
const ATTACHING_MAX: Duration = Duration::from_secs(2);
/// Longest that files may take to be unmounted at the end of the daemon.
const UNMOUNTING_MAX: Duration = Duration::from_secs(3);
/// What the service manager keeps channels under begins so. The number changes with what a connection has agreed on.
const KEPT: &str = "braid-fuse-1";
/// Users of a file that are named.
const USERS_NAMED: usize = 3;

/// All mounts of a daemon, by export.
#[derive(Default)]
pub struct Files {
    mounts: Mutex<BTreeMap<Uuid, Mounted>>,
    /// What an earlier daemon has left with the service manager, by name.
    kept: Mutex<InheritedFds>,
}

struct Mounted {
    path: PathBuf,
    look: Look,
    channels: Vec<OwnedFd>,
    /// What the shards have, or had last.
    file: Option<Arc<FuseFile>>,
    /// The kernel gives again what was not answered, so that another daemon may go on.
    outlives: bool,
    /// Somebody else has unmounted it.
    unmounted: bool,
}

impl Files {
    /// What an earlier daemon has left.
    pub fn new(kept: InheritedFds) -> Files {
        Files { kept: Mutex::new(kept), ..Files::default() }
    }

    fn mounts(&self) -> MutexGuard<'_, BTreeMap<Uuid, Mounted>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was left of this export.
    fn take_kept(&self, export: Uuid) -> Option<(Look, Vec<OwnedFd>)> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let name = kept.keys().find(|name| look_of(name, export).is_some())?.clone();
        Some((look_of(&name, export)?, kept.remove(&name)?))
    }
}

/// What was kept of files, and the rest of it.
pub fn apart(kept: InheritedFds) -> (InheritedFds, InheritedFds) {
    kept.into_iter().partition(|(name, _)| name.starts_with(KEPT))
}

/// The source of an export's mount, as the table of mounts shows it.
pub(super) fn source_of(export: Uuid) -> String {
    format!("braid:{export}")
}

/// What its channels are kept under: with what the file looks like, which nobody can see below the mount.
fn kept_name(export: Uuid, look: &Look) -> String {
    format!("{KEPT}-{}-{:o}-{}-{}-{}", export.simple(), look.mode, look.uid, look.gid, look.time_s)
}

/// Whether the kernel gives again what a daemon has left unanswered: what is kept on another one would have requests that nobody ever
/// answers.
fn kernel_resends() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    resends(&release)
}

fn resends(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6u32, 9u32)
}

fn look_of(name: &str, export: Uuid) -> Option<Look> {
    let rest = name.strip_prefix(&format!("{KEPT}-{}-", export.simple()))?;
    let mut parts = rest.split('-');
    let mode = u32::from_str_radix(parts.next()?, 8).ok()?;
    let (uid, gid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(Look { mode, uid, gid, time_s: parts.next()?.parse().ok()? })
}

/// A path as the table of mounts has it: its folder without links.
///
/// # Errors
/// It is not absolute, has no folder, or its file system does not answer.
pub async fn canonical(path: PathBuf) -> Result<PathBuf, ErrorDetail> {
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

/// Does something that may hang with a file system.
async fn at_path<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, ErrorDetail> + Send + 'static,
) -> Result<T, ErrorDetail> {
    match tokio::time::timeout(PATH_MAX, tokio::task::spawn_blocking(work)).await {
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

impl Control {
    /// Has the shards serve the file of an export, which is mounted now unless it is already.
    pub(super) async fn serve_file(
        &self,
        saved: &SavedExport,
        path: &Path,
        export: &Arc<Export>,
    ) -> Result<(), ErrorDetail> {
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
                    self.shards_let_go(&before, path).await?;
                }
                self.resend(saved.uuid)?;
            }
            None if self.files.mounts().len() >= CHANNELS_MAX as usize => {
                return Err(ErrorDetail::new(Kind::LimitReached, format!("there are {CHANNELS_MAX} files already"))
                    .remedy("remove one first, or export it with --nbd"));
            }
            None => self.mount_file(saved, path, export).await?,
        }
        let Some(file) = self.give_to_shards(saved.uuid, export) else { return Ok(()) };
        let seen = async {
            while file.seen() < u32::from(self.ring.shards()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // A shard that is late has it all the same.
        let _ = tokio::time::timeout(ATTACHING_MAX, seen).await;
        if file.attached() == 0 {
            // Whoever opened it would wait for ever.
            self.forget_file(saved.uuid);
            let message = format!("no shard has room for {}", path.display());
            return Err(ErrorDetail::new(Kind::LimitReached, message)
                .remedy("remove an export, or give the shards more memory (braid serve --buffers)"));
        }
        Ok(())
    }

    /// Takes over what an earlier daemon has left of a file, or mounts it.
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
                notify::forget(&kept_name(saved.uuid, &look));
                drop(channels);
                return self.mount_anew(saved, path, export, over.is_some()).await;
            }
            // What has been given again is read through any channel: those beyond the shards of this daemon are not needed.
            let missing = (channels.len()..shards).map(|_| mount::clone(&channels[0])).collect::<Result<Vec<_>, _>>();
            let missing = missing.map_err(|error| os_error(&error, "no further channel can be had", path))?;
            let channels = channels.into_iter().chain(missing).take(shards).collect();
            self.note_mount(saved, path, look, channels);
            tracing::info!("the file {} of export {} was taken over", path.display(), saved.name);
            return Ok(());
        }
        self.mount_anew(saved, path, export, over.is_some()).await
    }

    /// Mounts a file; `dead`: over what is left of a mount whose daemon is gone.
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
                // The connection is gone with its daemon: nobody can use what is there.
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

    /// The kernel gives again what was left unanswered.
    fn resend(&self, export: Uuid) -> Result<(), ErrorDetail> {
        let mounts = self.files.mounts();
        let Some(mounted) = mounts.get(&export) else { return Ok(()) };
        match mount::resend(&mounted.channels[0]) {
            // Before Linux 6.9 nothing was left.
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                Err(os_error(&error, "the connection of the file is gone", &mounted.path))
            }
            _ => Ok(()),
        }
    }

    fn give_to_shards(&self, uuid: Uuid, export: &Arc<Export>) -> Option<Arc<FuseFile>> {
        let mut mounts = self.files.mounts();
        let mounted = mounts.get_mut(&uuid)?;
        // Later than any other of this connection, so that what those gave out is not taken for this one's.
        let instance = self.started_unix_ms.wrapping_add(self.started.elapsed().as_millis() as u64) << 20;
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
        if notify::has_manager() && kernel_resends() {
            let name = kept_name(uuid, &mounted.look);
            let channels: Vec<_> = mounted.channels.iter().map(AsFd::as_fd).collect();
            match notify::keep(&name, &channels) {
                Ok(()) => mounted.outlives = true,
                Err(error) => tracing::warn!("the service manager cannot keep {}: {error}", mounted.path.display()),
            }
        }
        Some(file)
    }

    /// The shards serve a file no more; it stays mounted, and whoever uses it waits.
    pub(super) fn park_file(&self, export: Uuid) {
        let file = self.files.mounts().get(&export).and_then(|mounted| mounted.file.clone());
        if let Some(file) = file {
            for shard in 0..self.ring.shards() {
                self.ring.post(ShardId(shard), FUSE_FRONTEND, Box::new(Detach(Arc::clone(&file))));
            }
        }
    }

    /// Waits until no shard has anything of a file.
    async fn shards_let_go(&self, file: &Arc<FuseFile>, path: &Path) -> Result<(), ErrorDetail> {
        let gone = async {
            while file.attached() > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(DETACHING_MAX, gone).await.map_err(|_| {
            let message = format!("what was asked of {} before has not been answered by its disks", path.display());
            ErrorDetail::new(Kind::TimedOut, message)
                .with("path", path.display())
                .remedy("look for disks that hang (braid disk list, dmesg)")
        })
    }

    /// An export has another name, and is offered anew: its file is of that one from now on.
    pub(super) async fn move_file(&self, saved: &SavedExport, export: &Arc<Export>) -> Result<(), ErrorDetail> {
        let Ok(Address::Fuse(path)) = Address::parse(&saved.nbd) else { return Ok(()) };
        self.park_file(saved.uuid);
        self.serve_file(saved, &path, export).await
    }

    /// Unmounts the file of an export that is about to be removed.
    ///
    /// # Errors
    /// It is in use.
    pub(super) async fn unmount_file(&self, saved: &SavedExport) -> Result<(), ErrorDetail> {
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
            // Somebody else was faster.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => Ok(()),
            Err(error) => Err(os_error(&error, "the file cannot be unmounted", &at)),
        })
        .await
    }

    /// Forgets the file of an export that is removed; what is still mounted of it goes when its users have closed it.
    pub(super) fn forget_file(&self, export: Uuid) {
        self.park_file(export);
        let Some(mounted) = self.files.mounts().remove(&export) else { return };
        if mounted.outlives {
            notify::forget(&kept_name(export, &mounted.look));
        }
        if mount::mounted(&mounted.path).ok().flatten() == Some(source_of(export))
            && let Err(error) = mount::unmount_from(&mounted.path, true)
        {
            tracing::warn!("{} stays mounted: {error}", mounted.path.display());
        }
    }

    /// Looks for files that somebody else has unmounted.
    pub(super) async fn watch_files(&self) {
        let Ok(_one_at_a_time) = self.listening.try_lock() else { return };
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
                    notify::forget(&kept_name(*uuid, &mounted.look));
                }
                (*uuid, mounted.path.clone())
            })
            .collect()
        };
        for (uuid, path) in lost {
            let Some(name) = self.read().exports.values().find(|e| e.saved.uuid == uuid).map(|e| e.saved.name.clone())
            else {
                continue;
            };
            self.silence(&name);
            let error = unmounted(&name, &path);
            self.events().error("export_failed", error.message.clone(), &[("export", &name)]);
            if let Some(entry) = self.write().exports.get_mut(&name) {
                entry.serving = Serving::Failed(error);
            }
        }
    }

    /// A file has another size: the kernel learns it when somebody looks.
    pub(super) fn look_at_files_of(&self, of: Uuid) {
        let exports: Vec<Uuid> = {
            let tables = self.read();
            let of = tables.exports.values().filter(|entry| entry.saved.array == of);
            of.filter(|entry| matches!(entry.serving, Serving::Listening(_))).map(|entry| entry.saved.uuid).collect()
        };
        let mounts = self.files.mounts();
        let paths = exports.iter().filter_map(|uuid| mounts.get(uuid)).map(|mounted| mounted.path.clone()).collect();
        drop(mounts);
        // The shards answer it. A thread of this process must not wait for that: were the process killed meanwhile, the thread would wait
        // for the process, and the process would not end before the thread.
        aside::refresh(paths);
    }

    /// The daemon becomes another build: channels of its files, by what they are kept under, which stay mounted. Shards have answered what
    /// they had taken in.
    pub fn hand_over_files(&self) -> Vec<(String, OwnedFd)> {
        let mounts = std::mem::take(&mut *self.files.mounts());
        let going_on = mounts.into_iter().filter(|(_, mounted)| !mounted.unmounted);
        going_on
            .flat_map(|(uuid, mounted)| {
                let name = kept_name(uuid, &mounted.look);
                mounted.channels.into_iter().map(move |channel| (name.clone(), channel))
            })
            .collect()
    }

    /// The daemon ends: what no service manager keeps is unmounted; who uses it gets errors from then on. Returns what could not be done
    /// in time, a sentence each.
    pub async fn end_files(&self) -> Vec<String> {
        let mounts = std::mem::take(&mut *self.files.mounts());
        let ending = mounts.into_iter().filter(|(_, mounted)| !mounted.outlives && !mounted.unmounted);
        let ending: Vec<_> = ending
            .map(|(uuid, mounted)| {
                let path = mounted.path.clone();
                // It is found by its path, and a file system on the way there may hang.
                (path, tokio::task::spawn_blocking(move || end_file(uuid, &mounted)))
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

/// Unmounts the file of an export when the daemon ends.
fn end_file(export: Uuid, mounted: &Mounted) {
    if mount::unmount_from(&mounted.path, false).is_err()
        && mount::mounted(&mounted.path).ok().flatten() == Some(source_of(export))
    {
        tracing::warn!("{} is in use, and of no use any more", mounted.path.display());
        let _ = mount::unmount_from(&mounted.path, true);
    }
}

/// Whether a connection that was left is still one. Kernels before Linux 6.9 give nothing again, and have been left with nothing that is
/// unanswered.
fn is_alive(channel: &OwnedFd) -> bool {
    match mount::resend(channel) {
        Err(error) => error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()),
        Ok(()) => true,
    }
}

/// The file of a Braid export that this path is, or that is below this loop device or a part of it. Nothing is asked of the file, which
/// may be waiting for this daemon.
pub fn braids_file(path: &Path) -> Option<PathBuf> {
    let is_ours = |path: &Path| mount::mounted(path).ok().flatten().is_some();
    if !path.starts_with("/dev") {
        return is_ours(path).then(|| path.to_owned());
    }
    let entry = std::fs::canonicalize(Path::new("/sys/class/block").join(path.file_name()?)).ok()?;
    let of_a_part = entry.parent().map(|whole| whole.join("loop/backing_file"));
    let backing = std::fs::read(entry.join("loop/backing_file")).ok().or_else(|| std::fs::read(of_a_part?).ok())?;
    let backing = PathBuf::from(OsStr::from_bytes(backing.trim_ascii_end()));
    is_ours(&backing).then_some(backing)
}

/// Makes sure that there is an empty file to mount over, and says what it looks like.
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
            "mounting takes a daemon that runs as root and may mount (docs/fuse.md has what systemd's unit needs), or \
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
        0 => "by somebody whom this daemon cannot see (another mount namespace, or the kernel)".to_owned(),
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
    let message = format!("the file {} of export {export} was unmounted, and not by this daemon", path.display());
    ErrorDetail::new(Kind::Inactive, message)
        .with("export", export)
        .with("path", path.display())
        .remedy(format!("remove the export (braid export remove {export}) and add it again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_give_again_are_known() {
        assert!(resends("6.9.0") && resends("6.12.57-amd64") && resends("7.0-rc1"));
        assert!(!resends("6.8.0-101-generic") && !resends("5.15.0") && !resends(""));
    }

    #[test]
    fn what_is_kept_says_what_it_looks_like() {
        let (export, look) = (Uuid::from_u128(7), Look { mode: 0o640, uid: 3, gid: 4, time_s: 5 });
        let name = kept_name(export, &look);
        assert!(name.len() < 255 && !name.contains(':'));
        assert_eq!(look_of(&name, export), Some(look));
        assert_eq!(look_of(&name, Uuid::from_u128(8)), None);
        assert_eq!(look_of("braid-fuse-1", export), None);
    }
}
