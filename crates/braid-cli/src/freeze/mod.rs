//! Which file systems are frozen while snapshots are taken, and what came of it.
//!
//! What it is: those that this machine has mounted from exports of the volumes (`braid mount`) are found by their devices; others are named
//! with `--freeze`. Each has a guard (`guard`), which thaws it unless it is killed together with the command.
//! What it promises: a snapshot is said to be of a frozen file system only where that was frozen from before the daemon was asked until
//! after its answer.

pub mod guard;

use super::mount::{device, folder};
use braid_api::{DiskList, ErrorDetail, ExportList, Kind, Status, names};
use braid_client::Client;
use braid_host::mounts;
use futures_util::future::join_all;
use guard::Guard;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file system that is to be frozen.
#[derive(Debug, PartialEq, Eq)]
struct System {
    /// Where it is mounted, or a folder on it.
    folder: PathBuf,
    /// Its device, as the table of mounts calls it.
    source: PathBuf,
    /// The volumes that it is on, by their names.
    volumes: Vec<String>,
    /// It was named by the user: the snapshot is not taken without it.
    is_named: bool,
}

/// File systems that are frozen, and those that could not be.
pub struct Frozen(Vec<(System, Result<Guard, ErrorDetail>)>);

/// What came of one.
pub struct Outcome {
    /// Where it is mounted, or a folder on it.
    pub folder: PathBuf,
    /// It was named by the user.
    pub is_named: bool,
    /// Why it was not frozen all the time; none: it was.
    pub reason: Option<ErrorDetail>,
    /// It could not be thawed.
    pub is_stuck: bool,
    volumes: Vec<String>,
}

impl Outcome {
    /// Whether it is on a volume.
    pub fn is_of(&self, volume: &str) -> bool {
        self.volumes.iter().any(|of| of == volume)
    }
}

/// Freezes the file systems of volumes: those that are mounted here from exports of this machine's daemon, and those that are named.
///
/// # Errors
/// One that is named cannot be frozen; the daemon's.
pub async fn freeze(
    client: &Client,
    is_remote: bool,
    volumes: &[&str],
    named: &[PathBuf],
) -> Result<Frozen, ErrorDetail> {
    let volumes = called(client, volumes).await;
    let mut systems = Vec::new();
    if !is_remote {
        let exports: ExportList = client.get("/v1/exports").await?;
        let mounted = mounts::all()?;
        for export in exports.exports.iter().filter(|export| !export.read_only && volumes.contains(&export.array)) {
            let Some(source) = device::device_of(export) else { continue };
            // Where another file system is mounted over it, its folder is not to be reached.
            let is_on_top = |mount: &&mounts::Mount| {
                mounts::over(&mount.folder).ok().flatten().is_some_and(|top| top.source == source)
            };
            if let Some(mount) = mounted.iter().find(|mount| mount.source == source && is_on_top(mount)) {
                let (folder, volumes) = (mount.folder.clone(), vec![export.array.clone()]);
                systems.push(System { folder, source, volumes, is_named: false });
            }
        }
    }
    for name in named {
        let folder = folder(name)?;
        let source = mounts::over(&folder)?.map_or_else(|| folder.clone(), |mount| mount.source);
        add_named(&mut systems, folder, source, &volumes);
    }
    let own = if is_remote || systems.is_empty() { Vec::new() } else { places_of_daemon(client).await? };
    let guard = async |system: &System| {
        refuse_own(&own, system)?;
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

/// Where the daemon of this machine writes to.
struct Place {
    /// Number of the device; each subvolume of btrfs has its own.
    device: u64,
    /// The device, as the table of mounts calls it.
    source: Option<PathBuf>,
    path: String,
}

/// The file systems that the daemon of this machine writes to, by their devices, and what it has there: its state, and disks that are
/// files.
async fn places_of_daemon(client: &Client) -> Result<Vec<Place>, ErrorDetail> {
    let status: Status = client.get("/v1/status").await?;
    let disks: DiskList = client.get("/v1/disks").await?;
    let paths = disks.disks.into_iter().map(|disk| disk.name).chain([status.state_directory]);
    let place = |path: String| {
        let found = std::fs::metadata(&path).ok()?;
        let source = mounts::over(Path::new(&path)).ok().flatten().map(|mount| mount.source);
        (found.is_file() || found.is_dir()).then(|| Place { device: found.dev(), source, path })
    };
    Ok(paths.filter_map(place).collect())
}

/// Refuses a file system that the daemon would wait for while it is frozen.
fn refuse_own(own: &[Place], system: &System) -> Result<(), ErrorDetail> {
    let folder = &system.folder;
    let Ok(found) = std::fs::metadata(folder) else { return Ok(()) };
    let is_here = |place: &&Place| place.device == found.dev() || place.source.as_ref() == Some(&system.source);
    let Some(Place { path, .. }) = own.iter().find(is_here) else { return Ok(()) };
    let message = format!(
        "the file system at {} has {path}, which the daemon writes to: it would wait for the thaw itself",
        folder.display()
    );
    Err(ErrorDetail::new(Kind::InvalidArgument, message)
        .with("path", folder.display())
        .remedy("name a file system on the volume, or take the snapshot with --no-freeze"))
}

/// Refuses the root file system, which is where a folder is when what belongs there is not mounted.
fn refuse_root(system: &System) -> Result<(), ErrorDetail> {
    let folder = &system.folder;
    if !system.is_named || mounts::over(folder)?.is_none_or(|mount| mount.folder != Path::new("/")) {
        return Ok(());
    }
    let message = format!("{} is on the root file system of this machine: nothing is mounted there", folder.display());
    Err(ErrorDetail::new(Kind::InvalidArgument, message)
        .with("path", folder.display())
        .remedy("mount the file system of the volume there, or take the snapshot with --no-freeze"))
}

/// Adds a file system that the user has named: of the volume that nothing else was found for; of all, where something was found for each. Where
/// nothing was found for several, nobody knows of which it is, and it counts for none.
fn add_named(systems: &mut Vec<System>, folder: PathBuf, source: PathBuf, volumes: &[String]) {
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
    systems.push(System { folder, source, volumes: of, is_named: true });
}

/// The volumes by their names, where they were spelt by UUIDs. What is not there is the daemon's to refuse.
async fn called(client: &Client, volumes: &[&str]) -> Vec<String> {
    let mut called = Vec::with_capacity(volumes.len());
    for volume in volumes {
        let is_spelt = volume.split('/').any(names::is_uuid);
        let found = if is_spelt { device::Named::find(client, volume).await.ok() } else { None };
        called.push(found.map_or_else(|| (*volume).to_owned(), |found| found.name));
    }
    called
}

impl Frozen {
    /// Thaws them all, and says of each what came of it.
    pub async fn thaw(self) -> Vec<Outcome> {
        let thaw = |(system, guard): (System, Result<Guard, ErrorDetail>)| async move {
            let System { folder, volumes, is_named, .. } = system;
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
        "the file system at {} was thawed before the daemon had answered: after {} s, by another process, or because its guard was killed",
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
    fn a_named_file_system_is_of_the_volumes_that_nothing_was_found_for() {
        let system = |folder: &str, source: &str, volumes: &[&str], is_named| System {
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
        // The same once more, and what was found already.
        add_named(&mut systems, "/b/sub".into(), "/dev/mapper/b".into(), &volumes);
        add_named(&mut systems, "/a/sub".into(), "/dev/loop0".into(), &volumes);
        assert_eq!((systems.len(), systems[0].is_named), (2, true));
        let mut systems = found();
        add_named(&mut systems, "/c".into(), "/dev/sdc".into(), &volumes[..1]);
        assert_eq!(systems[1].volumes, ["tank/a"], "beside what was found of it");
        // Of which of two it is nobody knows.
        let mut systems = Vec::new();
        add_named(&mut systems, "/c".into(), "/dev/sdc".into(), &volumes);
        assert!(systems[0].volumes.is_empty() && systems[0].is_named);
    }
}
