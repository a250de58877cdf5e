//! Scans for members: which disks are candidates, and what their labels say.
//!
//! All disks are read concurrently and independently, so that a disk that hangs delays only its own array. Whether a
//! disk that is not known as a member bears a label is found out by another process: a disk that hangs there does not
//! hold up the daemon, nor its end.

use crate::ArrayManager;
use crate::scan_results::{ScanResults, ScannedArrayDisk};
use braid_api::{ErrorDetail, Kind};
use braid_array_admin::lifecycle::{self, DiskOutcome, FoundArray, FoundDisk};
use braid_engine::MetaIo;
use braid_exports::exported_file;
use braid_format::pool::PoolLabel;
use braid_format::{BLOCK_BYTES, LABEL_BYTES, examine};
use braid_host::host::{BlockDevice, Identity, SystemRoots};
use braid_host::mounts;
use braid_host::probe_process::{self, PendingProbes, ProbeRequest, ProbeResult};
use braid_inventory::{FoundPoolDisk, OpenDisk, combine_copies};
use braid_ring::DiskSpec;
use braid_tasks as tasks;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

/// How long a scan waits for disks if the disks that have answered by then suffice.
pub(crate) const SHORT_PATIENCE: Duration = Duration::from_secs(2);

/// How long a scan waits for disks otherwise: longer than the time limit of an I/O, so that each has answered or
/// failed.
const LONG_PATIENCE: Duration = Duration::from_secs(35);

/// How long a disk that is not known as a member is waited for: longer than the kernel's error handling of a failing
/// device.
const LABEL_QUERY_MAX: Duration = Duration::from_secs(120);

/// How long a known disk may still be in use by another process.
const RELEASE_MAX: Duration = Duration::from_secs(10);

/// Maximum files of one folder that are examined beside the known ones.
const FOLDER_FILES_MAX: usize = 1024;

/// Maximum disks that are opened and read at a time.
const CONCURRENT_READS_MAX: usize = 64;

/// A disk whose label was read, by the kind of the label.
pub(crate) enum ScannedDisk {
    /// The label of an array, or none.
    Array(ScannedArrayDisk),
    /// The label of a pool.
    Pool(FoundPoolDisk),
}

/// A disk that may be a member of an array or pool.
struct Candidate {
    spec: DiskSpec,
    /// A command named it, or it was a member: if it cannot be read, that is reported.
    expected: bool,
}

/// The pending reply of the other process about a disk that is not known as a member.
struct LabelQuery {
    answer: oneshot::Receiver<ProbeResult>,
    /// The query; it is dropped with the last of its replies.
    _query: Arc<PendingProbes>,
}

impl LabelQuery {
    /// Queries several disks at once.
    fn all(paths: Vec<PathBuf>) -> Vec<LabelQuery> {
        let mut senders = Vec::with_capacity(paths.len());
        let mut answers = Vec::with_capacity(paths.len());
        for _ in &paths {
            let (sender, answer) = oneshot::channel();
            senders.push(Mutex::new(Some(sender)));
            answers.push(answer);
        }
        let deliver = move |number: usize, answer: ProbeResult| {
            let sender =
                senders.get(number).and_then(|sender| sender.lock().unwrap_or_else(PoisonError::into_inner).take());
            // The scan may have been abandoned.
            let _ = sender.map(|sender| sender.send(answer));
        };
        let query =
            Arc::new(probe_process::start_probes(paths.into_iter().map(ProbeRequest::Label).collect(), deliver));
        answers.into_iter().map(|answer| LabelQuery { answer, _query: Arc::clone(&query) }).collect()
    }

    /// Returns whether the disk may bear a label; a disk that does not answer bears none.
    async fn may_bear_label(self, name: &str) -> bool {
        match tokio::time::timeout(LABEL_QUERY_MAX, self.answer).await {
            Ok(answer) => answer == Ok(ProbeResult::Label),
            Err(_) => {
                tracing::warn!(
                    "disk {name} has not answered within {} s: whether it bears a label is not known; once it answers, \
                     `braid array assemble` looks again",
                    LABEL_QUERY_MAX.as_secs()
                );
                false
            }
        }
    }
}

/// A scan in progress.
pub(crate) struct Search {
    /// Disks that are open or being read, with all devices that they stand on.
    seen: BTreeSet<Identity>,
    /// The reads, each with the disk's name.
    reads: JoinSet<(String, Result<Option<ScannedDisk>, ErrorDetail>)>,
    /// Disks that are expected to be present and have not answered yet.
    awaited: BTreeSet<String>,
}

impl Candidate {
    /// Returns its path, if it is not known as a member.
    fn unknown_path(&self) -> Option<&Path> {
        self.spec.path().filter(|_| !self.expected)
    }
}

impl Search {
    /// Returns how many reads have not answered yet.
    pub(crate) fn pending(&self) -> usize {
        self.reads.len()
    }

    /// Returns the disks that are expected to be present and have not answered yet.
    pub(crate) fn late(&self) -> impl Iterator<Item = &String> {
        self.awaited.iter()
    }
}

/// Candidates while they are collected.
struct CandidateList<'a> {
    roots: &'a SystemRoots,
    devices: &'a [BlockDevice],
    /// Disks that are open, or on the list already, with all devices that they stand on.
    seen: BTreeSet<Identity>,
    found: Vec<Candidate>,
}

impl CandidateList<'_> {
    /// Adds a disk unless it, or a device that it stands on, is listed already. A disk that does not exist is added all
    /// the same: the failed open then reports where it was last seen.
    fn add(&mut self, spec: DiskSpec, expected: bool) {
        if spec.volume().is_some() || spec.remote().is_some() {
            if !self.found.iter().any(|other| other.spec == spec) {
                self.found.push(Candidate { spec, expected });
            }
            return;
        }
        let Some(path) = spec.path() else { return };
        let beneath = self.roots.underlying_devices(path, self.devices);
        if beneath.iter().any(|id| self.seen.contains(id)) || self.found.iter().any(|other| other.spec == spec) {
            return;
        }
        self.seen.extend(beneath);
        self.found.push(Candidate { spec, expected });
    }
}

impl ArrayManager {
    /// Begins to read every disk that may be a member and is not open: the named ones, the known ones, and the block
    /// devices of the machine. All concurrently, and each once.
    pub(crate) async fn begin_scan(self: &Arc<Self>, extra: Vec<DiskSpec>) -> Search {
        let manager = Arc::clone(self);
        // `/sys` answers at once; a path on a network file system need not.
        let listed = tasks::blocking(move || manager.list_candidates(extra)).await;
        let (candidates, seen) = listed.unwrap_or_default();
        let mut search = Search { seen, reads: JoinSet::new(), awaited: BTreeSet::new() };
        self.begin(&mut search, candidates);
        search
    }

    /// Continues the scan with the other files in the folders of members whose arrays are incomplete so far: members
    /// may have been renamed, with old copies under their former names. Copies beside members of complete arrays are
    /// not examined.
    pub(crate) async fn search_folders(self: &Arc<Self>, search: &mut Search, results: &ScanResults) {
        let folders = self.folders_of_incomplete(results);
        if folders.is_empty() {
            return;
        }
        let seen = std::mem::take(&mut search.seen);
        let listed = tasks::blocking(move || {
            let roots = SystemRoots::default();
            let devices = roots.block_devices();
            let mut list = CandidateList { roots: &roots, devices: &devices, seen, found: Vec::new() };
            list_files(folders).into_iter().for_each(|path| list.add(DiskSpec::Path(path), false));
            (list.found, list.seen)
        });
        let (candidates, seen) = listed.await.unwrap_or_default();
        search.seen = seen;
        self.begin(search, candidates);
    }

    /// Lists the disks to read, with the devices that they and the open disks stand on. Blocks on file I/O.
    fn list_candidates(&self, extra: Vec<DiskSpec>) -> (Vec<Candidate>, BTreeSet<Identity>) {
        let (candidates, open): (Vec<DiskSpec>, BTreeSet<Identity>) = {
            let tables = self.inventory.read();
            let remotes = tables.remotes_open();
            let volumes = tables.volumes_to_look_at();
            let known = tables.disks.keys().chain(tables.pool_disks.keys());
            let open = tables.open_disks().map(|(_, _, disk)| disk);
            let open = open.chain(tables.pool_disks_open().map(|(_, _, disk)| disk));
            let known = known.filter_map(|name| DiskSpec::parse(name).ok()).filter(|spec| spec.volume().is_none());
            let all = extra.into_iter().chain(known).chain(volumes);
            let all = all.filter(|spec| !spec.remote().is_some_and(|uri| remotes.contains(uri)));
            (all.collect(), open.filter_map(|d| d.identity).collect())
        };
        let roots = SystemRoots::default();
        let devices = roots.block_devices();
        let mut list = CandidateList { roots: &roots, devices: &devices, seen: open, found: Vec::new() };
        candidates.into_iter().for_each(|spec| list.add(spec, true));
        for device in devices.iter().filter(|device| device.holders.is_empty() && !device.read_only) {
            // A device on an export of this daemon answers only when the export does, which may need this scan.
            if exported_file(&device.path).is_some() {
                continue;
            }
            list.add(DiskSpec::Path(device.path.clone()), false);
        }
        (list.found, list.seen)
    }

    /// Returns the folders of files that are, or were, members of arrays that are neither active nor complete in the
    /// result.
    fn folders_of_incomplete(&self, results: &ScanResults) -> BTreeSet<PathBuf> {
        let tables = self.inventory.read();
        let incomplete = |uuid: &Uuid| {
            !results.is_complete(*uuid) && tables.arrays.get(uuid).is_none_or(|entry| entry.active().is_none())
        };
        let known = tables.disks.values().filter(|saved| incomplete(&saved.array));
        let known = known.filter_map(|saved| DiskSpec::parse(&saved.disk).ok());
        let found = results.arrays.iter().filter(|(uuid, _)| incomplete(uuid)).flat_map(|(_, disks)| disks);
        let found = found.map(|scanned| scanned.disk.disk.spec().clone());
        known.chain(found).filter_map(|spec| Some(spec.path()?.parent()?.to_owned())).collect()
    }

    /// Begins to read these candidates.
    fn begin(self: &Arc<Self>, search: &mut Search, candidates: Vec<Candidate>) {
        let permits = Arc::new(tokio::sync::Semaphore::new(CONCURRENT_READS_MAX));
        let paths = candidates.iter().filter_map(Candidate::unknown_path).map(Path::to_owned).collect();
        let mut queries = LabelQuery::all(paths).into_iter();
        for candidate in candidates {
            let (manager, permits, name) = (Arc::clone(self), Arc::clone(&permits), candidate.spec.to_string());
            if candidate.expected {
                search.awaited.insert(name.clone());
            }
            let query = if candidate.unknown_path().is_some() { queries.next() } else { None };
            tasks::spawn_in(&mut search.reads, async move {
                // Before the permit is taken: a disk that never answers needs none.
                let is_blank = match query {
                    Some(query) => !query.may_bear_label(&name).await,
                    None => false,
                };
                if is_blank {
                    return (name, Ok(None));
                }
                let permit = permits.acquire_owned().await;
                let scanned = manager.read_label(candidate).await;
                drop(permit);
                (name, scanned)
            });
        }
    }

    /// Collects the results of reads until all have answered or the time is over.
    pub(crate) async fn collect_reads(&self, search: &mut Search, results: &mut ScanResults, until: Instant) {
        let mut unlabelled = Vec::new();
        while let Ok(Some(done)) = tokio::time::timeout_at(until, search.reads.join_next()).await {
            // A read that panicked counts as one that has not answered.
            let Ok((name, scanned)) = done else { continue };
            search.awaited.remove(&name);
            match scanned {
                Ok(None) => {}
                Ok(Some(ScannedDisk::Pool(found))) => results.pools.push(found),
                Ok(Some(ScannedDisk::Array(scanned))) => match array_of(&scanned.found) {
                    Some(uuid) => results.arrays.entry(uuid).or_default().push(scanned),
                    None => {
                        results.troubles.insert(name, no_array_error(&scanned));
                        unlabelled.push(scanned.disk);
                    }
                },
                Err(error) => {
                    results.troubles.insert(name, error);
                }
            }
        }
        self.close_disks(unlabelled).await;
    }

    /// Records which expected disks have not answered, and closes those that answer later.
    pub(crate) fn abandon_scan(self: &Arc<Self>, search: Search, results: &mut ScanResults) {
        for name in &search.awaited {
            let error =
                ErrorDetail::new(Kind::TimedOut, format!("disk {name} has not answered yet")).with("disk", name);
            results.troubles.insert(name.clone(), error);
        }
        if search.pending() > 0 {
            let manager = Arc::clone(self);
            tasks::spawn(async move { manager.drain(search).await });
        }
    }

    /// Waits for the rest of a scan, and closes its disks. Returns whether any of them bears a label.
    pub(crate) async fn drain(&self, mut search: Search) -> bool {
        let mut any = false;
        while let Some(done) = search.reads.join_next().await {
            let disk = match done {
                Ok((_, Ok(Some(ScannedDisk::Array(scanned))))) => {
                    any |= array_of(&scanned.found).is_some();
                    scanned.disk
                }
                Ok((_, Ok(Some(ScannedDisk::Pool(found))))) => {
                    any = true;
                    found.disk
                }
                _ => continue,
            };
            self.close_disks(vec![disk]).await;
        }
        any
    }

    /// Opens a disk and reads its labels. A disk that is not known as a member comes here only if it may bear one:
    /// others are never opened for writing.
    async fn read_label(self: &Arc<Self>, candidate: Candidate) -> Result<Option<ScannedDisk>, ErrorDetail> {
        self.users().await_pool_of(&candidate.spec).await?;
        let in_use_wait = if candidate.expected { RELEASE_MAX } else { Duration::ZERO };
        let disk = self.open_disk(candidate.spec, in_use_wait).await?;
        let mut scan = lifecycle::scan(&self.meta, &[disk.leaf]).await;
        let found = scan.disks.pop().expect("a scan of one disk tells of one disk");
        // A pool inside a volume belongs to the users of the volume.
        if matches!(found.outcome, DiskOutcome::Unlabelled)
            && disk.volume.is_none()
            && let Some(label) = self.pool_label(&disk).await
        {
            return match label {
                Ok(label) => Ok(Some(ScannedDisk::Pool(FoundPoolDisk { disk, label: Box::new(label) }))),
                Err(why) => {
                    let name = disk.name.clone();
                    self.close_disks(vec![disk]).await;
                    Err(ErrorDetail::new(
                        Kind::Damaged,
                        format!("disk {name} bears the label of a pool that cannot be used: {why}"),
                    )
                    .with("disk", &name)
                    .remedy(format!("braid disk examine {name}")))
                }
            };
        }
        Ok(Some(ScannedDisk::Array(ScannedArrayDisk { disk, found })))
    }

    /// Returns the pool label of a disk; a disk that cannot be read bears none.
    async fn pool_label(&self, disk: &OpenDisk) -> Option<Result<PoolLabel, String>> {
        let size = disk.disk.size_bytes();
        if size < 2 * BLOCK_BYTES {
            return None;
        }
        let start = self.meta.read(disk.leaf, 0, LABEL_BYTES).await.unwrap_or_default();
        let copy_offset = examine::recorded_copy_offset(&start, size)?;
        let end = self.meta.read(disk.leaf, copy_offset, LABEL_BYTES).await.unwrap_or_default();
        combine_copies(size, &start, &end)
    }

    /// Opens the disks of one idle array and resolves their labels again, for a deletion.
    pub(crate) async fn find_again(self: &Arc<Self>, uuid: Uuid) -> Option<(FoundArray, Vec<Arc<OpenDisk>>)> {
        let _one_at_a_time = self.scan_lock.lock().await;
        let mut results = self.scan_disks(Vec::new(), |results| results.is_complete(uuid)).await;
        let scanned = results.arrays.remove(&uuid);
        let others = results.arrays.into_values().flatten().map(|scanned| scanned.disk);
        self.close_disks(others.chain(results.pools.into_iter().map(|found| found.disk)).collect()).await;
        let disks: Vec<Arc<OpenDisk>> = scanned?.into_iter().map(|scanned| scanned.disk).collect();
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

    /// Scans all disks for a command: until all have answered, or for a short time if the result by then is `enough`,
    /// or else for longer than the time limit of an I/O. The caller holds [`ArrayManager::scan_lock`], and closes the
    /// disks of the result that it does not use.
    pub async fn scan_disks(
        self: &Arc<Self>,
        extra: Vec<DiskSpec>,
        enough: impl Fn(&ScanResults) -> bool,
    ) -> ScanResults {
        let mut search = self.begin_scan(extra).await;
        let mut results = ScanResults::default();
        let start = Instant::now();
        self.collect_reads(&mut search, &mut results, start + SHORT_PATIENCE).await;
        self.search_folders(&mut search, &results).await;
        self.collect_reads(&mut search, &mut results, start + 2 * SHORT_PATIENCE).await;
        if search.pending() > 0 && !enough(&results) {
            self.collect_reads(&mut search, &mut results, start + LONG_PATIENCE).await;
        }
        self.abandon_scan(search, &mut results);
        results
    }
}

/// Returns the array that a disk's label names, in whatever state the label is.
fn array_of(found: &FoundDisk) -> Option<Uuid> {
    match &found.outcome {
        DiskOutcome::Unlabelled => None,
        DiskOutcome::Member(member) => Some(member.label.array.uuid),
        DiskOutcome::Remnant(header) => Some(header.uuid),
        DiskOutcome::Unusable { header, .. } => header.as_ref().map(|header| header.uuid),
    }
}

/// Returns why a disk belongs to no array.
fn no_array_error(scanned: &ScannedArrayDisk) -> ErrorDetail {
    let name = &scanned.disk.name;
    let (kind, what) = match &scanned.found.outcome {
        DiskOutcome::Unusable { problem, .. } => (Kind::Damaged, problem.to_string()),
        _ => (Kind::NotFound, "it has no label of Braid".to_owned()),
    };
    ErrorDetail::new(kind, format!("disk {name}: {what}"))
        .with("disk", name)
        .remedy(format!("look at it with `braid disk examine {name}`"))
}

/// Returns the files in these folders, without subfolders. Files that a FUSE server provides, like the exports of this
/// daemon, are left out: no member is moved there, and they answer only when the server does.
fn list_files(folders: BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let served = served_files(mounts::all().unwrap_or_default());
    for folder in folders.iter().filter(|folder| !folder.starts_with("/dev")) {
        // The mount table has paths without links.
        let real = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(FOLDER_FILES_MAX);
        let entries = entries.filter(|e| !served.contains(&real.join(e.file_name())));
        files.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file())).map(|e| e.path()));
    }
    files.sort();
    files
}

/// Returns the mount points of FUSE servers.
fn served_files(mounts: Vec<mounts::Mount>) -> BTreeSet<PathBuf> {
    let is_served = |kind: &str| kind == "fuse" || kind.starts_with("fuse.");
    mounts.into_iter().filter(|mount| is_served(&mount.file_system)).map(|mount| mount.mount_point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_fuse_server_are_no_candidates() {
        let mount = |folder: &str, kind: &str| mounts::Mount {
            mount_point: folder.into(),
            file_system: kind.to_owned(),
            ..mounts::Mount::default()
        };
        let all = vec![mount("/srv/db", "fuse.braid"), mount("/srv/nbd", "fuse"), mount("/srv/bound.img", "ext4")];
        assert_eq!(served_files(all), BTreeSet::from([PathBuf::from("/srv/db"), PathBuf::from("/srv/nbd")]));
    }

    #[tokio::test]
    async fn a_disk_without_a_label_and_a_missing_disk_are_not_candidates() {
        let path = std::env::temp_dir().join(format!("braid-query-{}", std::process::id()));
        std::fs::write(&path, [0; 8192]).expect("a file can be written");
        let absent = path.with_extension("absent");
        for query in LabelQuery::all(vec![path.clone(), absent]) {
            assert!(!query.may_bear_label("a disk").await);
        }
        let mut label = braid_format::MAGIC.to_vec();
        label.resize(8192, 0);
        std::fs::write(&path, label).expect("a file can be written");
        let query = LabelQuery::all(vec![path.clone()]).pop().expect("one for each");
        assert!(query.may_bear_label("a disk").await);
        std::fs::remove_file(&path).expect("it is ours");
    }
}
