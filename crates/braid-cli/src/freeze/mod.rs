//! Freezes file systems while snapshots are taken, and reports the outcome for each.
//!
//! What it is: file systems that this machine has mounted from exports of the volumes (`braid mount`) are found by their devices; others
//! are named with `--freeze`. Each has a guard (`guard`), which thaws it unless it is killed together with the command.
//! What it promises: a snapshot is recorded as that of a frozen file system only if the file system was frozen from before the request to
//! the daemon until after the daemon's reply.

pub mod guard;

use super::mount::{device, folder};
use braid_api::{DiskList, ErrorDetail, ExportList, Kind, Status};
use braid_client::Client;
use braid_host::mounts;
use futures_util::future::join_all;
use guard::Guard;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file system to freeze.
#[derive(Debug, PartialEq, Eq)]
struct FileSystem {
    /// The folder at which it is mounted, or a folder on it.
    folder: PathBuf,
    /// Its device, as named in the mount table.
    source: PathBuf,
    /// The names of the volumes that it is on.
    volumes: Vec<String>,
    /// Whether the user named it: then no snapshot is taken unless it is frozen.
    is_named: bool,
}

/// File systems that are frozen, and those that could not be frozen.
pub struct Frozen(Vec<(FileSystem, Result<Guard, ErrorDetail>)>);

/// The outcome for one file system.
pub struct Outcome {
    /// The folder at which it is mounted, or a folder on it.
    pub folder: PathBuf,
    /// Whether the user named it.
    pub is_named: bool,
    /// Why it was not frozen all the time; `None`: it was.
    pub reason: Option<ErrorDetail>,
    /// Whether it could not be thawed.
    pub is_stuck: bool,
    volumes: Vec<String>,
}

impl Outcome {
    /// Whether it is on this volume.
    pub fn is_of(&self, volume: &str) -> bool {
        self.volumes.iter().any(|of| of == volume)
    }
}

/// Freezes the file systems of volumes: those that are mounted from exports of this machine's daemon, and those that are named.
///
/// # Errors
/// A named file system cannot be frozen; the daemon's error.
pub async fn freeze(
    client: &Client,
    is_remote: bool,
    volumes: &[&str],
    named: &[PathBuf],
) -> Result<Frozen, ErrorDetail> {
    let volumes = canonical_names(client, volumes).await;
    let mut systems = Vec::new();
    if !is_remote {
        let exports: ExportList = client.get("/v1/exports").await?;
        let mounted = mounts::all()?;
        for export in exports.exports.iter().filter(|export| !export.read_only && volumes.contains(&export.array)) {
            let Some(source) = device::device_of(export) else { continue };
            // If another file system is mounted over it, it cannot be reached at its folder.
            let is_on_top = |mount: &&mounts::Mount| {
                mounts::mount_containing(&mount.mount_point).ok().flatten().is_some_and(|top| top.source == source)
            };
            if let Some(mount) = mounted.iter().find(|mount| mount.source == source && is_on_top(mount)) {
                let (folder, volumes) = (mount.mount_point.clone(), vec![export.array.clone()]);
                systems.push(FileSystem { folder, source, volumes, is_named: false });
            }
        }
    }
    for name in named {
        let folder = folder(name)?;
        let source = mounts::mount_containing(&folder)?.map_or_else(|| folder.clone(), |mount| mount.source);
        add_named(&mut systems, folder, source, &volumes);
    }
    let daemon_paths = if is_remote || systems.is_empty() { Vec::new() } else { paths_of_daemon(client).await? };
    let guard = async |system: &FileSystem| {
        refuse_own(&daemon_paths, system)?;
        refuse_root(system)?;
        Guard::freeze(&system.folder).await
    };
    let guards = join_all(systems.iter().map(guard)).await;
    let frozen = Frozen(systems.into_iter().zip(guards).collect());
    let refused = frozen.0.iter().find_map(|(system, guard)| guard.as_ref().err().filter(|_| system.is_named));
    match refused.cloned() {
        Some(mut error) => {
            for outcome in frozen.thaw().await.iter().filter(|outcome| outcome.is_stuck) {
                let folder = outcome.folder.display();
                error.message.push_str(&format!("; and the file system at {folder} could not be thawed"));
                error.remedy = format!("at once: fsfreeze --unfreeze {folder}; then {}", error.remedy);
            }
            Err(error)
        }
        None => Ok(frozen),
    }
}

/// A path that the daemon of this machine writes to.
struct DaemonPath {
    /// The device number of its file system; each subvolume of btrfs has its own.
    device: u64,
    /// The device of its file system, as named in the mount table.
    source: Option<PathBuf>,
    path: String,
}

/// Returns the paths that the daemon of this machine writes to: its state folder, and disks that are files.
async fn paths_of_daemon(client: &Client) -> Result<Vec<DaemonPath>, ErrorDetail> {
    let status: Status = client.get("/v1/status").await?;
    let disks: DiskList = client.get("/v1/disks").await?;
    let paths = disks.disks.into_iter().map(|disk| disk.name).chain([status.state_directory]);
    let daemon_path = |path: String| {
        let found = std::fs::metadata(&path).ok()?;
        let source = mounts::mount_containing(Path::new(&path)).ok().flatten().map(|mount| mount.source);
        (found.is_file() || found.is_dir()).then(|| DaemonPath { device: found.dev(), source, path })
    };
    Ok(paths.filter_map(daemon_path).collect())
}

/// Refuses a file system that the daemon writes to: the daemon would wait for the thaw while the command waits for the daemon.
fn refuse_own(daemon_paths: &[DaemonPath], system: &FileSystem) -> Result<(), ErrorDetail> {
    let folder = &system.folder;
    let Ok(found) = std::fs::metadata(folder) else { return Ok(()) };
    let is_on_it = |path: &&DaemonPath| path.device == found.dev() || path.source.as_ref() == Some(&system.source);
    let Some(DaemonPath { path, .. }) = daemon_paths.iter().find(is_on_it) else { return Ok(()) };
    let message = format!(
        "the file system at {} holds {path}, which the daemon writes to: a freeze would block the daemon",
        folder.display()
    );
    Err(ErrorDetail::new(Kind::InvalidArgument, message)
        .with("path", folder.display())
        .remedy("name a file system on the volume, or take the snapshot with --no-freeze"))
}

/// Refuses the root file system: a folder is on it if the file system that belongs there is not mounted.
fn refuse_root(system: &FileSystem) -> Result<(), ErrorDetail> {
    let folder = &system.folder;
    if !system.is_named || mounts::mount_containing(folder)?.is_none_or(|mount| mount.mount_point != Path::new("/")) {
        return Ok(());
    }
    let message = format!("{} is on the root file system of this machine: nothing is mounted there", folder.display());
    Err(ErrorDetail::new(Kind::InvalidArgument, message)
        .with("path", folder.display())
        .remedy("mount the file system of the volume there, or take the snapshot with --no-freeze"))
}

/// Adds a file system that the user has named. It belongs to the only volume for which no file system was found, or to all volumes if one was
/// found for each. If none was found for several volumes, its volume is unknown, and it belongs to none.
fn add_named(systems: &mut Vec<FileSystem>, folder: PathBuf, source: PathBuf, volumes: &[String]) {
    if let Some(known) = systems.iter_mut().find(|system| system.source == source) {
        known.is_named = true;
        return;
    }
    let found = |volume: &&String| systems.iter().any(|system| !system.is_named && system.volumes.contains(volume));
    let mut of: Vec<String> = volumes.iter().filter(|volume| !found(volume)).cloned().collect();
    match of.len() {
        0 => of = volumes.to_vec(),
        1 => {}
        _ => of.clear(),
    }
    systems.push(FileSystem { folder, source, volumes: of, is_named: true });
}

/// Returns the names of the volumes, some of which may be given by UUID. A volume that does not exist is left to the daemon to refuse.
async fn canonical_names(client: &Client, volumes: &[&str]) -> Vec<String> {
    let mut names = Vec::with_capacity(volumes.len());
    for volume in volumes {
        let has_uuid = volume.split('/').any(braid_api::names::is_uuid);
        let found = if has_uuid { device::MountSource::find(client, volume).await.ok() } else { None };
        names.push(found.map_or_else(|| (*volume).to_owned(), |found| found.name));
    }
    names
}

impl Frozen {
    /// Thaws all file systems, and returns the outcome for each.
    pub async fn thaw(self) -> Vec<Outcome> {
        let thaw = |(system, guard): (FileSystem, Result<Guard, ErrorDetail>)| async move {
            let FileSystem { folder, volumes, is_named, .. } = system;
            let (reason, is_stuck) = match guard {
                Err(error) => (Some(error), false),
                Ok(guard) => match guard.thaw().await {
                    Ok(true) => (None, false),
                    Ok(false) => (Some(late(&folder)), false),
                    Err(error) => (Some(error), true),
                },
            };
            Outcome { folder, is_named, reason, is_stuck, volumes }
        };
        join_all(self.0.into_iter().map(thaw)).await
    }
}

fn late(folder: &Path) -> ErrorDetail {
    let message = format!(
        "the file system at {} was thawed before the daemon replied: after {} s, by another process, or because its guard was killed",
        folder.display(),
        guard::HELD_MAX.as_secs()
    );
    ErrorDetail::new(Kind::TimedOut, message)
        .with("path", folder.display())
        .remedy("take another snapshot when its disks are less busy (braid status)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_file_system_belongs_to_the_volumes_for_which_none_was_found() {
        let system = |folder: &str, source: &str, volumes: &[&str], is_named| FileSystem {
            folder: folder.into(),
            source: source.into(),
            volumes: volumes.iter().map(|volume| (*volume).to_owned()).collect(),
            is_named,
        };
        let volumes = ["tank/a".to_owned(), "tank/b".to_owned()];
        let found = || vec![system("/a", "/dev/loop0", &["tank/a"], false)];
        let mut systems = found();
        add_named(&mut systems, "/b".into(), "/dev/mapper/b".into(), &volumes);
        assert_eq!(systems[1], system("/b", "/dev/mapper/b", &["tank/b"], true));
        // The same file system again, and one that was found already.
        add_named(&mut systems, "/b/sub".into(), "/dev/mapper/b".into(), &volumes);
        add_named(&mut systems, "/a/sub".into(), "/dev/loop0".into(), &volumes);
        assert_eq!((systems.len(), systems[0].is_named), (2, true));
        let mut systems = found();
        add_named(&mut systems, "/c".into(), "/dev/sdc".into(), &volumes[..1]);
        assert_eq!(systems[1].volumes, ["tank/a"], "besides the file system that was found");
        // It may belong to either of two volumes.
        let mut systems = Vec::new();
        add_named(&mut systems, "/c".into(), "/dev/sdc".into(), &volumes);
        assert!(systems[0].volumes.is_empty() && systems[0].is_named);
    }
}
