//! Finding arrays again, and starting those that are complete.
//!
//! Disks are looked at all at once, each by itself, so that one that hangs holds up nobody but its own array.
//! Then the disks of each array are judged together and the array is started, all arrays at once.

use super::tables::{Active, ArrayEntry, Condition, Idle, IdleMember, OpenDisk};
use super::{Control, random, waits};
use crate::daemon::errors::{not_ready, of_lifecycle};
use crate::daemon::state::SavedDisk;
use crate::disk::host::{Identity, Roots};
use crate::disk::probe::Probe;
use braid_api::{Array, ArrayState, Assemble, Assembled, ErrorDetail, Kind};
use braid_engine::lifecycle::{self, DiskVerdict, FoundArray, FoundDisk, StartOptions};
use braid_engine::{DeviceLayout, Node};
use braid_ring::DiskSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use uuid::Uuid;

/// How long the daemon's start waits for disks to answer; later ones are looked at once more when they have.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// How long a command waits for them: beyond the time limit of an I/O, so that all have answered.
const COMMAND_PATIENCE: Duration = Duration::from_secs(35);
/// Files that are looked at in one folder beside those known.
const FOLDER_FILES_MAX: usize = 1024;
/// Disks that are opened and looked at, at a time.
const LOOKS_MAX: usize = 64;

/// A disk that was looked at.
struct Looked {
    disk: Arc<OpenDisk>,
    found: FoundDisk,
}

/// What a search for members brought.
#[derive(Default)]
struct Harvest {
    /// Open disks with labels, by the array that they name.
    arrays: BTreeMap<Uuid, Vec<Arc<OpenDisk>>>,
    /// Why known disks could not be looked at, by name.
    troubles: BTreeMap<String, ErrorDetail>,
}

/// Which arrays a search may start.
enum Which<'a> {
    /// All that no command stopped.
    All,
    /// This one, by name or UUID.
    Only(&'a str),
}

impl Control {
    /// What the daemon does at its start: finds everything, starts what is complete, restores the exports.
    pub async fn start(self: &Arc<Self>) {
        let _one_at_a_time = self.assembling.lock().await;
        let (harvest, late) = self.look(self.candidates(&[]), START_PATIENCE).await;
        let found = harvest.arrays.len();
        self.judge_all(harvest, &Which::All).await;
        let ms = self.started.elapsed().as_millis() as u64;
        // Only this function sets it.
        let _ = self.start_ms.set(ms);
        let status = self.status();
        self.events().info(
            "started",
            format!(
                "the daemon started in {ms} ms: {} of {} arrays active, {} of {} exports listening, {found} arrays found on disks",
                status.arrays.serving, status.arrays.total, status.exports.serving, status.exports.total
            ),
            &[],
        );
        for name in self.names_waiting() {
            self.events().warning(
                "array_waits",
                format!("array {} is not active: {}", name.0, name.1),
                &[("array", &name.0)],
            );
        }
        if !late.is_empty() {
            self.events().warning(
                "disks_late",
                format!(
                    "{} disks have not answered within {} s; they are looked at again when they do",
                    late.len(),
                    START_PATIENCE.as_secs()
                ),
                &[],
            );
            let control = Arc::clone(self);
            tokio::spawn(async move { control.once_more(late).await });
        }
    }

    /// Arrays that wait for a person, with the first reason.
    fn names_waiting(&self) -> Vec<(String, String)> {
        let tables = self.read();
        let waiting = |entry: &ArrayEntry| match &entry.condition {
            Condition::Idle(idle) if waits(idle.state) => {
                Some((entry.name.clone(), idle.attention.first().cloned().unwrap_or_default()))
            }
            _ => None,
        };
        tables.arrays.values().filter_map(waiting).collect()
    }

    /// Waits for disks that did not answer in time, then looks for members again.
    async fn once_more(self: Arc<Self>, mut late: JoinSet<(String, Result<Looked, ErrorDetail>)>) {
        let mut any = false;
        while let Some(done) = late.join_next().await {
            if let Ok((_, Ok(looked))) = done {
                any |= array_of(&looked.found).is_some();
                self.close_disks(vec![looked.disk]).await;
            }
        }
        if any && self.is_open().is_ok() {
            let _one_at_a_time = self.assembling.lock().await;
            let (harvest, _later) = self.look(self.candidates(&[]), COMMAND_PATIENCE).await;
            self.judge_all(harvest, &Which::All).await;
        }
    }

    /// Looks for members, and starts what is complete.
    ///
    /// # Errors
    /// A disk that was named cannot be looked at, or the array that was named is not found.
    pub async fn assemble(self: &Arc<Self>, ask: Assemble) -> Result<Assembled, ErrorDetail> {
        self.is_open()?;
        let mut extra = Vec::with_capacity(ask.disks.len());
        for disk in &ask.disks {
            extra.push(without_size(super::create::read_disk(disk)?));
        }
        let _one_at_a_time = self.assembling.lock().await;
        let before: BTreeSet<Uuid> = self.active_uuids();
        let (mut harvest, _late) = self.look(self.candidates(&extra), COMMAND_PATIENCE).await;
        // A disk that was named is expected to be there; others only may be.
        let named = extra.iter().find_map(|spec| harvest.troubles.remove(&spec.to_string()));
        let which = ask.array.as_deref().map_or(Which::All, Which::Only);
        self.judge_all(harvest, &which).await;
        let tables = self.read();
        let started = tables.arrays.values().filter(|e| e.active().is_some() && !before.contains(&e.uuid));
        let started: Vec<String> = started.map(|entry| entry.name.clone()).collect();
        if let Some(error) = named
            && started.is_empty()
        {
            return Err(error);
        }
        let mut arrays: Vec<Array> = match &ask.array {
            Some(name) => {
                let entry = tables.array(name)?;
                if let Condition::Idle(idle) = &entry.condition {
                    return Err(why_not(&entry.name, idle));
                }
                vec![self.show_array(&tables, entry)]
            }
            None => tables.arrays.values().map(|entry| self.show_array(&tables, entry)).collect(),
        };
        arrays.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Assembled { started, arrays })
    }

    fn active_uuids(&self) -> BTreeSet<Uuid> {
        self.read().arrays.values().filter(|entry| entry.active().is_some()).map(|entry| entry.uuid).collect()
    }

    /// Every disk that may be a member of something and is not open: those named, those known, block devices with
    /// labels, and other files with labels in the folders of known files. No disk twice.
    fn candidates(&self, extra: &[DiskSpec]) -> Vec<DiskSpec> {
        let (known, mut seen) = {
            let tables = self.read();
            let known: Vec<DiskSpec> = tables.disks.keys().filter_map(|name| DiskSpec::parse(name).ok()).collect();
            let open: BTreeSet<Identity> =
                tables.open_disks().filter_map(|(_, _, disk)| Identity::of(disk.disk.spec().path()?)).collect();
            (known, open)
        };
        let roots = Roots::default();
        let devices = roots.block_devices();
        let mut found = Vec::new();
        let mut folders: BTreeSet<PathBuf> = BTreeSet::new();
        let mut take = |spec: DiskSpec, named: bool, found: &mut Vec<DiskSpec>| {
            let Some(path) = spec.path() else { return };
            let beneath = roots.beneath(path, &devices);
            // What is not there is tried all the same: the error says where it was last seen.
            let new = beneath.is_empty() || !beneath.iter().any(|id| seen.contains(id));
            if new || named {
                seen.extend(beneath);
                if !found.contains(&spec) {
                    found.push(spec);
                }
            }
        };
        for spec in extra {
            folders.extend(spec.path().and_then(Path::parent).map(Path::to_owned));
            take(spec.clone(), true, &mut found);
        }
        for spec in known {
            if spec.path().is_some_and(|path| !path.starts_with("/dev")) {
                folders.extend(spec.path().and_then(Path::parent).map(Path::to_owned));
            }
            take(spec, false, &mut found);
        }
        for device in devices.iter().filter(|device| device.holders.is_empty() && !device.read_only) {
            if bears_label(&device.path) {
                take(DiskSpec::Path(device.path.clone()), false, &mut found);
            }
        }
        for folder in folders {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().take(FOLDER_FILES_MAX);
            let mut files: Vec<PathBuf> =
                entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file())).map(|e| e.path()).collect();
            files.sort();
            for path in files.into_iter().filter(|path| bears_label(path)) {
                take(DiskSpec::Path(path), false, &mut found);
            }
        }
        found
    }

    /// Opens these disks and reads their labels, all at once. Those that have not answered in time are returned,
    /// still at it.
    async fn look(
        self: &Arc<Self>,
        specs: Vec<DiskSpec>,
        patience: Duration,
    ) -> (Harvest, JoinSet<(String, Result<Looked, ErrorDetail>)>) {
        let places = Arc::new(tokio::sync::Semaphore::new(LOOKS_MAX));
        let mut looks = JoinSet::new();
        let mut waiting: BTreeSet<String> = BTreeSet::new();
        for spec in specs {
            let (control, places, name) = (Arc::clone(self), Arc::clone(&places), spec.to_string());
            waiting.insert(name.clone());
            looks.spawn(async move {
                let place = places.acquire_owned().await;
                let looked = control.look_at(spec).await;
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
                Ok(looked) => match array_of(&looked.found) {
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

    async fn look_at(&self, spec: DiskSpec) -> Result<Looked, ErrorDetail> {
        let disk = self.open_disk(spec).await?;
        let mut scan = lifecycle::scan(&self.meta, &[disk.leaf]).await;
        let found = scan.disks.pop().expect("a scan of one disk tells of one disk");
        Ok(Looked { disk, found })
    }

    /// Judges the arrays of a harvest, all at once.
    async fn judge_all(self: &Arc<Self>, harvest: Harvest, which: &Which<'_>) {
        let troubles = Arc::new(harvest.troubles);
        // What was listed as waiting and is not there at all now is told anew by `list_absent`.
        self.write().arrays.retain(|uuid, entry| match &entry.condition {
            Condition::Active(_) => true,
            Condition::Idle(idle) => harvest.arrays.contains_key(uuid) || idle.state == ArrayState::Stopped,
        });
        let mut work = JoinSet::new();
        for (uuid, disks) in harvest.arrays {
            let (control, troubles) = (Arc::clone(self), Arc::clone(&troubles));
            let only = match which {
                Which::All => None,
                Which::Only(name) => Some((*name).to_owned()),
            };
            work.spawn(async move { control.judge(uuid, disks, only.as_deref(), &troubles).await });
        }
        while work.join_next().await.is_some() {}
        self.list_absent(&troubles);
        self.save_or_warn();
    }

    /// Judges one array: starts it, or lists it with the reason why not.
    async fn judge(
        self: &Arc<Self>,
        uuid: Uuid,
        disks: Vec<Arc<OpenDisk>>,
        only: Option<&str>,
        troubles: &BTreeMap<String, ErrorDetail>,
    ) {
        let leaves: Vec<_> = disks.iter().map(|disk| disk.leaf).collect();
        let scan = lifecycle::scan(&self.meta, &leaves).await;
        let Some(found) = scan.arrays.into_iter().find(|array| array.uuid == uuid) else {
            return self.close_disks(disks).await;
        };
        let name = found.name.to_string();
        if self.already_active(uuid, &name, &disks) {
            return self.close_disks(disks).await;
        }
        let named = only.is_some_and(|only| only == name || only == uuid.to_string());
        if matches!(found.status, lifecycle::Status::InterruptedDelete) {
            return self.finish_deletion(&found, disks).await;
        }
        let claimed = self.may_start(uuid, &name, only, named);
        let result = match (&found.status, claimed) {
            (lifecycle::Status::Ready, Ok(())) => {
                self.start_found(&found, disks).await.map_err(|(e, disks)| (Some(e), disks))
            }
            (lifecycle::Status::Ready, Err(idle)) => {
                self.list_idle(uuid, &name, &found, idle, &disks);
                Err((None, disks))
            }
            (status, _) => {
                let idle = self.explain(uuid, &name, status, &disks, troubles);
                self.list_idle(uuid, &name, &found, idle, &disks);
                Err((None, disks))
            }
        };
        if let Err((error, disks)) = result {
            if let Some(error) = error {
                self.events().error("array_failed", &error.message, &[("array", &name)]);
                let idle = Idle {
                    state: ArrayState::Failed,
                    attention: vec![error.message],
                    remedy: error.remedy,
                    label: None,
                    members: Vec::new(),
                };
                self.list_idle(uuid, &name, &found, idle, &disks);
            }
            self.close_disks(disks).await;
        }
    }

    /// Whether the array serves already. Then further disks that bear its label are copies, or the same disk by
    /// another path.
    fn already_active(&self, uuid: Uuid, name: &str, disks: &[Arc<OpenDisk>]) -> bool {
        if self.read().arrays.get(&uuid).is_none_or(|entry| entry.active().is_none()) {
            return false;
        }
        for disk in disks {
            self.events().warning(
                "disk_is_a_copy",
                format!("disk {} bears the label of a member of array {name}, which is active: it is a copy; wipe its label, or detach it", disk.name),
                &[("array", name), ("disk", &disk.name)],
            );
        }
        true
    }

    /// Whether a complete array is to be started now; if not, how it is listed.
    fn may_start(&self, uuid: Uuid, name: &str, only: Option<&str>, named: bool) -> Result<(), Idle> {
        let mut tables = self.write();
        let idle = |state: ArrayState, attention: Vec<String>, remedy: String| Idle {
            state,
            attention,
            remedy,
            label: None,
            members: Vec::new(),
        };
        if named {
            tables.stopped.remove(&uuid);
        }
        if tables.stopped.contains(&uuid) {
            return Err(idle(ArrayState::Stopped, Vec::new(), format!("braid array assemble {name}")));
        }
        if only.is_some() && !named {
            // Asked for another one: listed as it was, or as one that can be started.
            return Err(match tables.arrays.get(&uuid).map(|entry| &entry.condition) {
                Some(Condition::Idle(old)) if old.state == ArrayState::Stopped => {
                    idle(ArrayState::Stopped, Vec::new(), String::new())
                }
                _ => idle(
                    ArrayState::Stopped,
                    vec!["its members are all here; nobody has started it".to_owned()],
                    format!("braid array assemble {name}"),
                ),
            });
        }
        let namesake = tables.arrays.values().find(|entry| entry.name == name && entry.uuid != uuid);
        if let Some(other) = namesake
            && only != Some(&uuid.to_string())
        {
            return Err(idle(
                ArrayState::Failed,
                vec![format!("another array, {}, is called {name}, too", other.uuid)],
                format!("start it by its UUID (braid array assemble {uuid}), then rename it"),
            ));
        }
        Ok(())
    }

    /// Starts an array whose members are all here. On an error the disks are given back.
    async fn start_found(
        self: &Arc<Self>,
        found: &FoundArray,
        disks: Vec<Arc<OpenDisk>>,
    ) -> Result<(), (ErrorDetail, Vec<Arc<OpenDisk>>)> {
        let name = found.name.to_string();
        let session = match random() {
            Ok(session) => session,
            Err(error) => return Err((error, disks)),
        };
        let started = lifecycle::start(&self.meta, found, StartOptions { session, force: false }).await;
        let array = match started {
            Ok(array) => array,
            Err(error) => {
                let error = of_lifecycle(&error, &name, &Control::name_in(&disks));
                return Err((error, disks));
            }
        };
        // By role, and without those that bear the label and are no members.
        let mut by_role = Vec::with_capacity(disks.len());
        for member in array.members() {
            by_role.extend(disks.iter().find(|disk| disk.leaf == member.leaf).cloned());
        }
        let others: Vec<_> =
            disks.iter().filter(|disk| !by_role.iter().any(|m| m.leaf == disk.leaf)).cloned().collect();
        self.close_disks(others).await;
        self.note_places(found.uuid, &name, &by_role);
        match self.activate(array, by_role).await {
            Ok(()) => {
                self.events().info("array_started", format!("array {name} is active"), &[("array", &name)]);
                Ok(())
            }
            Err(error) => Err((error, disks)),
        }
    }

    /// Notes where an array's disks are now, instead of where they were.
    fn note_places(&self, uuid: Uuid, name: &str, disks: &[Arc<OpenDisk>]) {
        let mut tables = self.write();
        tables.disks.retain(|_, saved| saved.array != uuid);
        for (role, disk) in disks.iter().enumerate() {
            let saved =
                SavedDisk { disk: disk.name.clone(), array: uuid, array_name: name.to_owned(), role: role as u16 };
            tables.disks.insert(disk.name.clone(), saved);
        }
    }

    /// Compiles a started array's layout, hands it to the shards, lists it, and restores its exports.
    ///
    /// # Errors
    /// There is no room for another device.
    pub(super) async fn activate(
        self: &Arc<Self>,
        array: lifecycle::Array,
        disks: Vec<Arc<OpenDisk>>,
    ) -> Result<(), ErrorDetail> {
        let (uuid, name, label) = (array.uuid(), array.name().to_string(), array.label().clone());
        let members: Vec<_> = array.members().map(|m| (m.leaf, m.part.places.data)).collect();
        let nodes = members.iter().map(|(leaf, data)| Node::Leaf { leaf: *leaf, start: data.start, len: data.bytes });
        let root = Node::Striped { geometry: array.geometry().clone(), members: nodes.collect() };
        let block_bytes = disks.iter().map(|disk| disk.disk.logical_block_bytes()).max().unwrap_or(512).max(512);
        let (device, version) = {
            let mut tables = self.write();
            (tables.take_device()?, tables.next_version())
        };
        let layout = Arc::new(DeviceLayout::new(version, block_bytes, &root));
        let published = self.ring.publish_and_drain(device, Some(Arc::clone(&layout))).await;
        if let Err(error) = published {
            self.write().give_device(device);
            return Err(crate::daemon::errors::of_ring(&error, &name));
        }
        let active = Active {
            handle: Arc::new(tokio::sync::Mutex::new(array)),
            label,
            device,
            layout,
            disks,
            data_offsets: members.iter().map(|(_, data)| data.start).collect(),
        };
        self.write().arrays.insert(uuid, ArrayEntry { uuid, name, condition: Condition::Active(active) });
        self.restore_exports(uuid).await;
        Ok(())
    }

    /// Lists an array that does not serve.
    fn list_idle(&self, uuid: Uuid, name: &str, found: &FoundArray, idle: Idle, disks: &[Arc<OpenDisk>]) {
        let disk_of = |member: &lifecycle::FoundMember| {
            let leaf = member.disk.as_ref()?.leaf;
            disks.iter().find(|disk| disk.leaf == leaf).map(|disk| disk.name.clone())
        };
        let members = found.members.iter().map(|member| IdleMember {
            role: member.role,
            id: member.entry.id.map(|id| id.to_string()).unwrap_or_default(),
            data_bytes: member.entry.data_bytes,
            disk: disk_of(member),
            present: member.disk.is_some(),
        });
        let idle = Idle { label: found.newest.clone(), members: members.collect(), ..idle };
        let entry = ArrayEntry { uuid, name: name.to_owned(), condition: Condition::Idle(idle) };
        self.write().arrays.insert(uuid, entry);
    }

    /// Says why an array that was found is not started, and what to do.
    fn explain(
        &self,
        uuid: Uuid,
        name: &str,
        status: &lifecycle::Status,
        disks: &[Arc<OpenDisk>],
        troubles: &BTreeMap<String, ErrorDetail>,
    ) -> Idle {
        let (kind, remedy) = not_ready(status, name);
        let attention = match status {
            lifecycle::Status::Incomplete { missing } => {
                let tables = self.read();
                missing
                    .iter()
                    .map(|missing| {
                        let seen = tables.disks.values().find(|s| s.array == uuid && s.role == missing.role);
                        let mut text = format!("{missing} is missing");
                        if let Some((leaf, _)) = &missing.seems {
                            let disk = Control::name_in(disks)(*leaf).unwrap_or_default();
                            text = format!("{missing} (disk {disk})");
                        } else if let Some(seen) = seen {
                            text.push_str(&format!("; it was last seen on {}", seen.disk));
                            if let Some(trouble) = troubles.get(&seen.disk) {
                                text.push_str(&format!(" ({})", trouble.message));
                            }
                        }
                        text
                    })
                    .collect()
            }
            status => vec![status.to_string()],
        };
        let state = if kind == Kind::Incomplete { ArrayState::Incomplete } else { ArrayState::Failed };
        Idle { state, attention, remedy, label: None, members: Vec::new() }
    }

    /// Lists arrays of which not one disk was found, but which are known from the state.
    fn list_absent(&self, troubles: &BTreeMap<String, ErrorDetail>) {
        let mut tables = self.write();
        let mut known: BTreeMap<Uuid, Vec<SavedDisk>> = BTreeMap::new();
        for saved in tables.disks.values().filter(|saved| !tables.arrays.contains_key(&saved.array)) {
            known.entry(saved.array).or_default().push(saved.clone());
        }
        for (uuid, mut disks) in known {
            disks.sort_by_key(|disk| disk.role);
            let name = disks[0].array_name.clone();
            let attention = disks.iter().map(|disk| {
                let trouble = troubles.get(&disk.disk).map(|t| format!(" ({})", t.message)).unwrap_or_default();
                format!("member {} is missing; it was last seen on {}{trouble}", disk.role, disk.disk)
            });
            let members = disks.iter().map(|disk| IdleMember {
                role: disk.role,
                id: String::new(),
                data_bytes: 0,
                disk: Some(disk.disk.clone()),
                present: false,
            });
            let stopped = tables.stopped.contains(&uuid);
            let idle = Idle {
                state: if stopped { ArrayState::Stopped } else { ArrayState::Incomplete },
                attention: attention.collect(),
                remedy: format!("attach its disks, or name them: braid array assemble {name} --disk DISK"),
                label: None,
                members: members.collect(),
            };
            tables.arrays.insert(uuid, ArrayEntry { uuid, name, condition: Condition::Idle(idle) });
        }
    }

    /// Finishes a deletion that a crash interrupted.
    async fn finish_deletion(&self, found: &FoundArray, disks: Vec<Arc<OpenDisk>>) {
        let name = found.name.to_string();
        match lifecycle::delete_found(&self.meta, found, false).await {
            Ok(()) => {
                self.forget(found.uuid);
                self.write().arrays.remove(&found.uuid);
                self.events().info(
                    "array_deleted",
                    format!("the interrupted deletion of array {name} is done"),
                    &[("array", &name)],
                );
            }
            Err(error) => {
                let error = of_lifecycle(&error, &name, &Control::name_in(&disks));
                self.events().error("delete_failed", error.message, &[("array", &name)]);
            }
        }
        self.close_disks(disks).await;
    }

    /// Opens the disks of one idle array and says how they stand now: for a deletion.
    pub(super) async fn find_again(self: &Arc<Self>, uuid: Uuid) -> Option<(FoundArray, Vec<Arc<OpenDisk>>)> {
        let _one_at_a_time = self.assembling.lock().await;
        let (mut harvest, _late) = self.look(self.candidates(&[]), COMMAND_PATIENCE).await;
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

/// Why an array that was named is not active.
fn why_not(name: &str, idle: &Idle) -> ErrorDetail {
    let kind = if idle.state == ArrayState::Incomplete { Kind::Incomplete } else { Kind::Inactive };
    let reason = if idle.attention.is_empty() { String::new() } else { format!(": {}", idle.attention.join("; ")) };
    ErrorDetail::new(kind, format!("array {name} is {}{reason}", idle.state.word()))
        .with("array", name)
        .remedy(idle.remedy.clone())
}

/// The array that a disk's label names, in whatever state it is.
fn array_of(found: &FoundDisk) -> Option<Uuid> {
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
