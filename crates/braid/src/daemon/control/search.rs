//! Looking for members: which disks there may be, and what their labels say.
//!
//! Disks are looked at all at once, each by itself, so that one that hangs holds up nobody but its own array.

use super::Control;
use super::tables::OpenDisk;
use crate::disk::host::{BlockDevice, Identity, Roots};
use crate::disk::probe::Probe;
use braid_api::{ErrorDetail, Kind};
use braid_engine::lifecycle::{self, DiskVerdict, FoundArray, FoundDisk};
use braid_ring::DiskSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use uuid::Uuid;

/// How long a command waits for them: beyond the time limit of an I/O, so that all have answered.
pub(super) const COMMAND_PATIENCE: Duration = Duration::from_secs(35);
/// Files that are looked at in one folder beside those known.
const FOLDER_FILES_MAX: usize = 1024;
/// Disks that are opened and looked at, at a time.
const LOOKS_MAX: usize = 64;

/// A disk that was looked at.
pub(super) struct Looked {
    pub(super) disk: Arc<OpenDisk>,
    pub(super) found: FoundDisk,
}

/// A disk that may be a member of something.
pub(super) struct Candidate {
    spec: DiskSpec,
    /// Somebody named it, or it was a member: if it cannot be looked at, that is worth telling.
    expected: bool,
}

/// Looks under way, each with the disk's name.
pub(super) type Looks = JoinSet<(String, Result<Option<Looked>, ErrorDetail>)>;

/// Candidates as they are gathered.
struct CandidateList<'a> {
    roots: &'a Roots,
    devices: &'a [BlockDevice],
    /// What is open, or on the list already, with all that it stands on.
    seen: BTreeSet<Identity>,
    found: Vec<Candidate>,
}

impl CandidateList<'_> {
    /// Adds a disk unless it, or what it stands on, is there already. What does not exist is added all the same:
    /// the attempt to open it says where it was last seen.
    fn add(&mut self, spec: DiskSpec, expected: bool) {
        let Some(path) = spec.path() else { return };
        let beneath = self.roots.beneath(path, self.devices);
        if beneath.iter().any(|id| self.seen.contains(id)) || self.found.iter().any(|other| other.spec == spec) {
            return;
        }
        self.seen.extend(beneath);
        self.found.push(Candidate { spec, expected });
    }
}

/// What a search for members brought.
#[derive(Default)]
pub(super) struct Harvest {
    /// Open disks with labels, by the array that they name.
    pub(super) arrays: BTreeMap<Uuid, Vec<Arc<OpenDisk>>>,
    /// Why known disks could not be looked at, by name.
    pub(super) troubles: BTreeMap<String, ErrorDetail>,
}

impl Control {
    /// Every disk that may be a member of something and is not open: those named, those known, block devices, and
    /// other files in the folders of known files. No disk twice.
    pub(super) async fn candidates(self: &Arc<Self>, extra: Vec<DiskSpec>) -> Vec<Candidate> {
        let control = Arc::clone(self);
        // Folders and `/sys` answer at once, usually; a folder on a network need not.
        tokio::task::spawn_blocking(move || control.list_candidates(extra)).await.unwrap_or_default()
    }

    fn list_candidates(&self, extra: Vec<DiskSpec>) -> Vec<Candidate> {
        let (known, open): (Vec<DiskSpec>, BTreeSet<Identity>) = {
            let tables = self.read();
            let known = tables.disks.keys().filter_map(|name| DiskSpec::parse(name).ok()).collect();
            let identity = |disk: &Arc<OpenDisk>| disk.disk.spec().path().and_then(Identity::of);
            (known, tables.open_disks().filter_map(|(_, _, disk)| identity(disk)).collect())
        };
        let roots = Roots::default();
        let devices = roots.block_devices();
        let mut list = CandidateList { roots: &roots, devices: &devices, seen: open, found: Vec::new() };
        let mut folders: BTreeSet<PathBuf> = BTreeSet::new();
        let folder = |spec: &DiskSpec| {
            spec.path().filter(|path| !path.starts_with("/dev")).and_then(Path::parent).map(Path::to_owned)
        };
        for spec in extra.into_iter().chain(known) {
            folders.extend(folder(&spec));
            list.add(spec, true);
        }
        for device in devices.iter().filter(|device| device.holders.is_empty() && !device.read_only) {
            list.add(DiskSpec::Path(device.path.clone()), false);
        }
        for folder in folders {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().take(FOLDER_FILES_MAX);
            let mut files: Vec<PathBuf> =
                entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file())).map(|e| e.path()).collect();
            files.sort();
            files.into_iter().for_each(|path| list.add(DiskSpec::Path(path), false));
        }
        list.found
    }

    /// Opens these disks and reads their labels, all at once. Those that have not answered in time are returned,
    /// still at it.
    pub(super) async fn look(self: &Arc<Self>, candidates: Vec<Candidate>, patience: Duration) -> (Harvest, Looks) {
        let places = Arc::new(tokio::sync::Semaphore::new(LOOKS_MAX));
        let mut looks = JoinSet::new();
        let mut waiting: BTreeSet<String> = BTreeSet::new();
        for candidate in candidates {
            let (control, places, name) = (Arc::clone(self), Arc::clone(&places), candidate.spec.to_string());
            if candidate.expected {
                waiting.insert(name.clone());
            }
            looks.spawn(async move {
                let place = places.acquire_owned().await;
                let looked = control.look_at(candidate).await;
                drop(place);
                (name, looked)
            });
        }
        let mut harvest = Harvest::default();
        let mut nothing = Vec::new();
        let deadline = tokio::time::Instant::now() + patience;
        while let Ok(Some(done)) = tokio::time::timeout_at(deadline, looks.join_next()).await {
            // A look that panicked is reported as one that never answered.
            let Ok((name, looked)) = done else { continue };
            waiting.remove(&name);
            match looked {
                Ok(None) => {}
                Ok(Some(looked)) => match array_of(&looked.found) {
                    Some(uuid) => harvest.arrays.entry(uuid).or_default().push(looked.disk),
                    None => {
                        harvest.troubles.insert(name, no_array(&looked));
                        nothing.push(looked.disk);
                    }
                },
                Err(error) => {
                    harvest.troubles.insert(name, error);
                }
            }
        }
        for name in waiting {
            let error =
                ErrorDetail::new(Kind::TimedOut, format!("disk {name} has not answered yet")).with("disk", &name);
            harvest.troubles.insert(name, error);
        }
        self.close_disks(nothing).await;
        (harvest, looks)
    }

    /// Opens a disk and reads its labels. Nothing comes of one that is only a guess and bears none: it is not
    /// even opened for more than looking.
    async fn look_at(&self, candidate: Candidate) -> Result<Option<Looked>, ErrorDetail> {
        if let Some(path) = candidate.spec.path().filter(|_| !candidate.expected).map(Path::to_owned) {
            let bears = tokio::task::spawn_blocking(move || bears_label(&path)).await;
            if !bears.unwrap_or(false) {
                return Ok(None);
            }
        }
        let disk = self.open_disk(candidate.spec).await?;
        let mut scan = lifecycle::scan(&self.meta, &[disk.leaf]).await;
        let found = scan.disks.pop().expect("a scan of one disk tells of one disk");
        Ok(Some(Looked { disk, found }))
    }

    /// Opens the disks of one idle array and says how they stand now: for a deletion.
    pub(super) async fn find_again(self: &Arc<Self>, uuid: Uuid) -> Option<(FoundArray, Vec<Arc<OpenDisk>>)> {
        let _one_at_a_time = self.assembling.lock().await;
        let (mut harvest, _late) = self.look(self.candidates(Vec::new()).await, COMMAND_PATIENCE).await;
        let disks = harvest.arrays.remove(&uuid);
        for (_, others) in harvest.arrays {
            self.close_disks(others).await;
        }
        let disks = disks?;
        let leaves: Vec<_> = disks.iter().map(|disk| disk.leaf).collect();
        let scan = lifecycle::scan(&self.meta, &leaves).await;
        match scan.arrays.into_iter().find(|array| array.uuid == uuid) {
            Some(found) => Some((found, disks)),
            None => {
                self.close_disks(disks).await;
                None
            }
        }
    }
}

/// The array that a disk's label names, in whatever state it is.
pub(super) fn array_of(found: &FoundDisk) -> Option<Uuid> {
    match &found.verdict {
        DiskVerdict::Unlabelled => None,
        DiskVerdict::Member(member) => Some(member.label.array.uuid),
        DiskVerdict::Remnant(header) => Some(header.uuid),
        DiskVerdict::Unusable { header, .. } => header.as_ref().map(|header| header.uuid),
    }
}

/// Why a disk is of no array.
fn no_array(looked: &Looked) -> ErrorDetail {
    let name = &looked.disk.name;
    let (kind, what) = match &looked.found.verdict {
        DiskVerdict::Unusable { problem, .. } => (Kind::Damaged, problem.to_string()),
        _ => (Kind::NotFound, "it bears no label of Braid".to_owned()),
    };
    ErrorDetail::new(kind, format!("disk {name}: {what}"))
        .with("disk", name)
        .remedy(format!("look at it with `braid disk examine {name}`"))
}

fn bears_label(path: &Path) -> bool {
    Probe::open(path).and_then(|probe| probe.may_bear_label()).unwrap_or(false)
}

/// The same disk, which must exist: a name with a size would make a file that is absent, an empty disk in place of a
/// missing one. This is how a disk is called once it exists.
pub(super) fn without_size(spec: DiskSpec) -> DiskSpec {
    match spec {
        DiskSpec::File { path, .. } => DiskSpec::Path(path),
        DiskSpec::Throttled { disk, limits } => DiskSpec::Throttled { disk: Box::new(without_size(*disk)), limits },
        DiskSpec::Faulty { disk, rules } => DiskSpec::Faulty { disk: Box::new(without_size(*disk)), rules },
        other => other,
    }
}
