//! Looking for members: which disks there may be, and what their labels say.
//!
//! Disks are looked at all at once, each by itself, so that one that hangs holds up its own array only. Whether those that are no
//! member as far as is known bear a label is found out by another process: one that hangs keeps the daemon from nothing, its end included.

use super::Control;
use super::pools::{FoundPart, judge_label};
use super::tables::OpenDisk;
use braid_api::{ErrorDetail, Kind};
use braid_engine::MetaIo;
use braid_engine::lifecycle::{self, DiskOutcome, FoundArray, FoundDisk};
use braid_format::pool::PoolLabel;
use braid_format::{BLOCK_BYTES, LABEL_BYTES, Label, examine, newest};
use braid_host::aside::{self, Answer, Asked, Question};
use braid_host::host::{BlockDevice, Identity, Roots};
use braid_host::mounts;
use braid_ring::DiskSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

/// How long disks are waited for if what answered by then is enough.
pub(super) const SHORT_PATIENCE: Duration = Duration::from_secs(2);
/// How long they are waited for otherwise: beyond the time limit of an I/O, so that all have answered.
const LONG_PATIENCE: Duration = Duration::from_secs(35);
/// How long a disk that is only a guess is waited for: beyond what the kernel gives a device that is in trouble.
const GUESS_MAX: Duration = Duration::from_secs(120);
/// How long whoever uses a known disk has to let go of it.
const LETTING_GO_MAX: Duration = Duration::from_secs(10);
/// Files that are looked at in one folder beside those known.
const FOLDER_FILES_MAX: usize = 1024;
/// Disks that are opened and looked at, at a time.
const LOOKS_MAX: usize = 64;

/// A disk that was looked at.
pub(super) struct Looked {
    pub(super) disk: Arc<OpenDisk>,
    pub(super) found: FoundDisk,
}

/// A disk that was looked at, by what it bears.
pub(super) enum Seen {
    /// The label of an array, or none.
    Array(Looked),
    /// That of a pool.
    Pool(FoundPart),
}

/// A disk that may be a member of something.
struct Candidate {
    spec: DiskSpec,
    /// Somebody named it, or it was a member: if it cannot be looked at, that is worth telling.
    expected: bool,
}

/// What another process finds out about a disk that is only a guess.
struct Guess {
    answer: oneshot::Receiver<Answer>,
    /// Given up with the last guess that was asked about with it.
    _asked: Arc<Asked>,
}

impl Guess {
    /// Asks about several at once.
    fn all(paths: Vec<PathBuf>) -> Vec<Guess> {
        let mut tells = Vec::with_capacity(paths.len());
        let mut answers = Vec::with_capacity(paths.len());
        for _ in &paths {
            let (tell, answer) = oneshot::channel();
            tells.push(Mutex::new(Some(tell)));
            answers.push(answer);
        }
        let tell = move |number: usize, answer: Answer| {
            let tell = tells.get(number).and_then(|tell| tell.lock().unwrap_or_else(PoisonError::into_inner).take());
            // The search may have been given up.
            let _ = tell.map(|tell| tell.send(answer));
        };
        let asked = Arc::new(aside::ask(paths.into_iter().map(Question::Label).collect(), tell));
        answers.into_iter().map(|answer| Guess { answer, _asked: Arc::clone(&asked) }).collect()
    }

    /// Whether it may bear a label. One that says nothing bears none.
    async fn bears_label(self, name: &str) -> bool {
        match tokio::time::timeout(GUESS_MAX, self.answer).await {
            Ok(answer) => answer == Ok(Answer::Label),
            Err(_) => {
                tracing::warn!(
                    "disk {name} has not answered within {} s: whether it bears a label is not known; once it answers, \
                     `braid array assemble` looks again",
                    GUESS_MAX.as_secs()
                );
                false
            }
        }
    }
}

/// Looks under way.
pub(super) struct Search {
    /// Disks that are open or looked at, with all that they stand on.
    seen: BTreeSet<Identity>,
    /// The looks, each with the disk's name.
    looks: JoinSet<(String, Result<Option<Seen>, ErrorDetail>)>,
    /// Disks that are expected to be there and have not answered yet.
    waiting: BTreeSet<String>,
}

impl Candidate {
    /// Where it is, if it is only a guess.
    fn guessed(&self) -> Option<&Path> {
        self.spec.path().filter(|_| !self.expected)
    }
}

impl Search {
    /// How many have not answered yet.
    pub(super) fn under_way(&self) -> usize {
        self.looks.len()
    }

    /// Disks that are expected to be there and have not answered yet.
    pub(super) fn late(&self) -> impl Iterator<Item = &String> {
        self.waiting.iter()
    }
}

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
        if spec.volume().is_some() || spec.remote().is_some() {
            if !self.found.iter().any(|other| other.spec == spec) {
                self.found.push(Candidate { spec, expected });
            }
            return;
        }
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
    pub(super) arrays: BTreeMap<Uuid, Vec<Looked>>,
    /// Open disks with labels of pools.
    pub(super) pools: Vec<FoundPart>,
    /// Why known disks could not be looked at, by name.
    pub(super) troubles: BTreeMap<String, ErrorDetail>,
}

impl Control {
    /// Begins to look at every disk that may be a member of something and is not open: those named, those known,
    /// and the block devices of the machine. All at once, and none twice.
    pub(super) async fn search(self: &Arc<Self>, extra: Vec<DiskSpec>) -> Search {
        let control = Arc::clone(self);
        // `/sys` answers at once; a path on a network need not.
        let listed = tokio::task::spawn_blocking(move || control.list_candidates(extra)).await;
        let (candidates, seen) = listed.unwrap_or_default();
        let mut search = Search { seen, looks: JoinSet::new(), waiting: BTreeSet::new() };
        self.begin(&mut search, candidates);
        search
    }

    /// Goes on with the other files in the folders of members whose arrays are not complete so far: they may have got
    /// other names, and old copies lie under their own. Where nothing is missing, a copy beside a member is nobody's business.
    pub(super) async fn search_folders(self: &Arc<Self>, search: &mut Search, harvest: &Harvest) {
        let folders = self.folders_of_incomplete(harvest);
        if folders.is_empty() {
            return;
        }
        let seen = std::mem::take(&mut search.seen);
        let listed = tokio::task::spawn_blocking(move || {
            let roots = Roots::default();
            let devices = roots.block_devices();
            let mut list = CandidateList { roots: &roots, devices: &devices, seen, found: Vec::new() };
            files_in(folders).into_iter().for_each(|path| list.add(DiskSpec::Path(path), false));
            (list.found, list.seen)
        });
        let (candidates, seen) = listed.await.unwrap_or_default();
        search.seen = seen;
        self.begin(search, candidates);
    }

    fn list_candidates(&self, extra: Vec<DiskSpec>) -> (Vec<Candidate>, BTreeSet<Identity>) {
        let (candidates, open): (Vec<DiskSpec>, BTreeSet<Identity>) = {
            let tables = self.read();
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
        let roots = Roots::default();
        let devices = roots.block_devices();
        let mut list = CandidateList { roots: &roots, devices: &devices, seen: open, found: Vec::new() };
        candidates.into_iter().for_each(|spec| list.add(spec, true));
        for device in devices.iter().filter(|device| device.holders.is_empty() && !device.read_only) {
            // One that stands on an export of ours answers when that does, for which this search may be needed.
            if super::files::braids_file(&device.path).is_some() {
                continue;
            }
            list.add(DiskSpec::Path(device.path.clone()), false);
        }
        (list.found, list.seen)
    }

    /// Folders of the files that belong, or belonged, to arrays that are neither active nor complete in the harvest.
    fn folders_of_incomplete(&self, harvest: &Harvest) -> BTreeSet<PathBuf> {
        let tables = self.read();
        let incomplete = |uuid: &Uuid| {
            !harvest.is_complete(*uuid) && tables.arrays.get(uuid).is_none_or(|entry| entry.active().is_none())
        };
        let known = tables.disks.values().filter(|saved| incomplete(&saved.array));
        let known = known.filter_map(|saved| DiskSpec::parse(&saved.disk).ok());
        let found = harvest.arrays.iter().filter(|(uuid, _)| incomplete(uuid)).flat_map(|(_, disks)| disks);
        let found = found.map(|looked| looked.disk.disk.spec().clone());
        known.chain(found).filter_map(|spec| Some(spec.path()?.parent()?.to_owned())).collect()
    }

    fn begin(self: &Arc<Self>, search: &mut Search, candidates: Vec<Candidate>) {
        let places = Arc::new(tokio::sync::Semaphore::new(LOOKS_MAX));
        let paths = candidates.iter().filter_map(Candidate::guessed).map(Path::to_owned).collect();
        let mut guesses = Guess::all(paths).into_iter();
        for candidate in candidates {
            let (control, places, name) = (Arc::clone(self), Arc::clone(&places), candidate.spec.to_string());
            if candidate.expected {
                search.waiting.insert(name.clone());
            }
            let guess = if candidate.guessed().is_some() { guesses.next() } else { None };
            search.looks.spawn(async move {
                // Before it takes a place: one that never answers needs none.
                let is_blank = match guess {
                    Some(guess) => !guess.bears_label(&name).await,
                    None => false,
                };
                if is_blank {
                    return (name, Ok(None));
                }
                let place = places.acquire_owned().await;
                let looked = control.look_at(candidate).await;
                drop(place);
                (name, looked)
            });
        }
    }

    /// Takes in what the looks bring until all have answered or the time is over.
    pub(super) async fn gather(&self, search: &mut Search, harvest: &mut Harvest, until: Instant) {
        let mut nothing = Vec::new();
        while let Ok(Some(done)) = tokio::time::timeout_at(until, search.looks.join_next()).await {
            // A look that panicked is reported as one that never answered.
            let Ok((name, looked)) = done else { continue };
            search.waiting.remove(&name);
            match looked {
                Ok(None) => {}
                Ok(Some(Seen::Pool(found))) => harvest.pools.push(found),
                Ok(Some(Seen::Array(looked))) => match array_of(&looked.found) {
                    Some(uuid) => harvest.arrays.entry(uuid).or_default().push(looked),
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
        self.close_disks(nothing).await;
    }

    /// Notes which expected disks have not answered, and sees to it that those that do later are closed.
    pub(super) fn give_up(self: &Arc<Self>, search: Search, harvest: &mut Harvest) {
        for name in &search.waiting {
            let error =
                ErrorDetail::new(Kind::TimedOut, format!("disk {name} has not answered yet")).with("disk", name);
            harvest.troubles.insert(name.clone(), error);
        }
        if search.under_way() > 0 {
            let control = Arc::clone(self);
            tokio::spawn(async move { control.drain(search).await });
        }
    }

    /// Waits for the rest of a search and closes what it brings. Says whether any of it bears a label.
    pub(super) async fn drain(&self, mut search: Search) -> bool {
        let mut any = false;
        while let Some(done) = search.looks.join_next().await {
            let disk = match done {
                Ok((_, Ok(Some(Seen::Array(looked))))) => {
                    any |= array_of(&looked.found).is_some();
                    looked.disk
                }
                Ok((_, Ok(Some(Seen::Pool(found))))) => {
                    any = true;
                    found.disk
                }
                _ => continue,
            };
            self.close_disks(vec![disk]).await;
        }
        any
    }

    /// Opens a disk and reads its labels. One that is only a guess comes here if it may bear one: others are not even opened for more
    /// than looking.
    async fn look_at(self: &Arc<Self>, candidate: Candidate) -> Result<Option<Seen>, ErrorDetail> {
        self.await_pool_of(&candidate.spec).await?;
        let patience = if candidate.expected { LETTING_GO_MAX } else { Duration::ZERO };
        let disk = self.open_disk(candidate.spec, patience).await?;
        let mut scan = lifecycle::scan(&self.meta, &[disk.leaf]).await;
        let found = scan.disks.pop().expect("a scan of one disk tells of one disk");
        // What is in a volume is a pool of those who use the volume.
        if matches!(found.outcome, DiskOutcome::Unlabelled)
            && disk.volume.is_none()
            && let Some(label) = self.pool_label(&disk).await
        {
            return match label {
                Ok(label) => Ok(Some(Seen::Pool(FoundPart { disk, label: Box::new(label) }))),
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
        Ok(Some(Seen::Array(Looked { disk, found })))
    }

    /// The label of a pool that a disk bears; what cannot be read bears none.
    async fn pool_label(&self, disk: &OpenDisk) -> Option<Result<PoolLabel, String>> {
        let size = disk.disk.size_bytes();
        if size < 2 * BLOCK_BYTES {
            return None;
        }
        let start = self.meta.read(disk.leaf, 0, LABEL_BYTES).await.unwrap_or_default();
        let place = examine::recorded_copy_offset(&start, size)?;
        let end = self.meta.read(disk.leaf, place, LABEL_BYTES).await.unwrap_or_default();
        judge_label(size, &start, &end)
    }

    /// Opens the disks of one idle array and says how they stand now: for a deletion.
    pub(super) async fn find_again(self: &Arc<Self>, uuid: Uuid) -> Option<(FoundArray, Vec<Arc<OpenDisk>>)> {
        let _one_at_a_time = self.assembling.lock().await;
        let mut harvest = self.look(Vec::new(), |harvest| harvest.is_complete(uuid)).await;
        let looked = harvest.arrays.remove(&uuid);
        let others = harvest.arrays.into_values().flatten().map(|looked| looked.disk);
        self.close_disks(others.chain(harvest.pools.into_iter().map(|found| found.disk)).collect()).await;
        let disks: Vec<Arc<OpenDisk>> = looked?.into_iter().map(|looked| looked.disk).collect();
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

    /// Looks at everything for a command: until all have answered, or for a short while if what it brought by then is
    /// `enough`, or for longer than an I/O may take.
    pub(super) async fn look(self: &Arc<Self>, extra: Vec<DiskSpec>, enough: impl Fn(&Harvest) -> bool) -> Harvest {
        let mut search = self.search(extra).await;
        let mut harvest = Harvest::default();
        let start = Instant::now();
        self.gather(&mut search, &mut harvest, start + SHORT_PATIENCE).await;
        self.search_folders(&mut search, &harvest).await;
        self.gather(&mut search, &mut harvest, start + 2 * SHORT_PATIENCE).await;
        if search.under_way() > 0 && !enough(&harvest) {
            self.gather(&mut search, &mut harvest, start + LONG_PATIENCE).await;
        }
        self.give_up(search, &mut harvest);
        harvest
    }
}

impl Harvest {
    /// Whether the disks that are here are all that the array needs: it starts with them, and nobody is missing. An old copy under
    /// the name of a member is none of them.
    pub(super) fn is_complete(&self, uuid: Uuid) -> bool {
        let Some(disks) = self.arrays.get(&uuid) else { return false };
        let disks: Vec<FoundDisk> = disks.iter().map(|looked| looked.found.clone()).collect();
        lifecycle::resolve_labels(&disks, uuid).is_some_and(|found| found.is_complete())
    }

    /// How many arrays and pools have members here.
    pub(super) fn found(&self) -> usize {
        let pools: BTreeSet<Uuid> = self.pools.iter().map(|found| found.label.uuid).collect();
        self.arrays.len() + pools.len()
    }

    /// Takes out what is of pools, with all troubles.
    pub(super) fn take_pools(&mut self) -> Harvest {
        Harvest { pools: std::mem::take(&mut self.pools), troubles: self.troubles.clone(), ..Harvest::default() }
    }

    /// Whether the array of this name or UUID is complete.
    pub(super) fn has_complete(&self, name: &str) -> bool {
        self.arrays.iter().any(|(uuid, disks)| {
            let labels = disks.iter().filter_map(|disk| member_label(&disk.found));
            let called = newest(labels).is_some_and(|label| label.array.name.as_str() == name);
            (called || uuid.to_string() == name) && self.is_complete(*uuid)
        })
    }

    /// Takes out the arrays that are complete.
    pub(super) fn take_complete(&mut self) -> Harvest {
        let complete: Vec<Uuid> = self.arrays.keys().copied().filter(|uuid| self.is_complete(*uuid)).collect();
        let arrays = complete.into_iter().filter_map(|uuid| self.arrays.remove_entry(&uuid)).collect();
        Harvest { arrays, ..Harvest::default() }
    }
}

fn member_label(found: &FoundDisk) -> Option<&Label> {
    match &found.outcome {
        DiskOutcome::Member(member) => Some(&member.label),
        _ => None,
    }
}

/// The array that a disk's label names, in whatever state it is.
fn array_of(found: &FoundDisk) -> Option<Uuid> {
    match &found.outcome {
        DiskOutcome::Unlabelled => None,
        DiskOutcome::Member(member) => Some(member.label.array.uuid),
        DiskOutcome::Remnant(header) => Some(header.uuid),
        DiskOutcome::Unusable { header, .. } => header.as_ref().map(|header| header.uuid),
    }
}

/// Why a disk is of no array.
fn no_array(looked: &Looked) -> ErrorDetail {
    let name = &looked.disk.name;
    let (kind, what) = match &looked.found.outcome {
        DiskOutcome::Unusable { problem, .. } => (Kind::Damaged, problem.to_string()),
        _ => (Kind::NotFound, "it bears no label of Braid".to_owned()),
    };
    ErrorDetail::new(kind, format!("disk {name}: {what}"))
        .with("disk", name)
        .remedy(format!("look at it with `braid disk examine {name}`"))
}

/// The files in these folders, not below them. Those that another program serves, as this daemon does its exports, are left out: no
/// member is moved there, and they answer when that program does.
fn files_in(folders: BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let served = served_files(mounts::all().unwrap_or_default());
    for folder in folders.iter().filter(|folder| !folder.starts_with("/dev")) {
        // The table of mounts has no links.
        let real = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(FOLDER_FILES_MAX);
        let entries = entries.filter(|e| !served.contains(&real.join(e.file_name())));
        files.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file())).map(|e| e.path()));
    }
    files.sort();
    files
}

/// What FUSE servers have mounted.
fn served_files(mounts: Vec<mounts::Mount>) -> BTreeSet<PathBuf> {
    let is_served = |kind: &str| kind == "fuse" || kind.starts_with("fuse.");
    mounts.into_iter().filter(|mount| is_served(&mount.kind)).map(|mount| mount.folder).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_a_server_has_mounted_are_no_candidates() {
        let mount = |folder: &str, kind: &str| mounts::Mount {
            folder: folder.into(),
            source: "x".into(),
            kind: kind.to_owned(),
        };
        let all = vec![mount("/srv/db", "fuse.braid"), mount("/srv/nbd", "fuse"), mount("/srv/bound.img", "ext4")];
        assert_eq!(served_files(all), BTreeSet::from([PathBuf::from("/srv/db"), PathBuf::from("/srv/nbd")]));
    }

    #[tokio::test]
    async fn a_guess_that_bears_no_label_or_is_not_there_comes_to_nothing() {
        let path = std::env::temp_dir().join(format!("braid-guess-{}", std::process::id()));
        std::fs::write(&path, [0; 8192]).expect("a file can be written");
        let absent = path.with_extension("absent");
        for guess in Guess::all(vec![path.clone(), absent]) {
            assert!(!guess.bears_label("a disk").await);
        }
        let mut label = braid_format::MAGIC.to_vec();
        label.resize(8192, 0);
        std::fs::write(&path, label).expect("a file can be written");
        let guess = Guess::all(vec![path.clone()]).pop().expect("one for each");
        assert!(guess.bears_label("a disk").await);
        std::fs::remove_file(&path).expect("it is ours");
    }
}
