//! Finds arrays on their disks, and starts those that are complete.
//!
//! All disks of an array are evaluated together; the arrays are started concurrently.

use crate::ArrayManager;
use crate::disk_names::{read_disk, without_size};
use crate::idle::not_active_error;
use crate::reconcilers::ReconcilerStart;
use crate::reconcilers::events::record_slots;
use crate::scan_results::{ScanResults, ScannedArrayDisk};
use crate::search::{SHORT_PATIENCE, Search};
use crate::unused_disks::UnusedDisks;
use braid_advice::errors::lifecycle_error;
use braid_advice::{self as advice, ArrayCase, Case, ObjectNames};
use braid_api::{Array, ArrayState, Assemble, Assembled, ErrorDetail, Kind};
use braid_array_admin::lifecycle::{self, FoundArray, StartOptions};
use braid_engine::{DeviceLayout, LeafId, Node};
use braid_format::DiskLayout;
use braid_inventory::state::SavedDisk;
use braid_inventory::{
    ActiveArray, ArrayCondition, ArrayEntry, ArrayHandle, ArraySlot, IdleArray, OpenDisk, counted, needs_operator,
    random,
};
use braid_ring::{DiskSpec, STACK_LEVELS_MAX};
use braid_tasks as tasks;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use uuid::Uuid;

/// After this time the daemon's start does not let complete arrays wait for disks that have not answered.
const START_SHORT: Duration = Duration::from_millis(500);

/// Which arrays a scan may start, and how.
#[derive(Clone, Default)]
struct AssembleOptions {
    /// Only this one, by name or UUID; none: all that no command has stopped.
    only: Option<String>,
    /// Use its stale members as they are; a redundant array is started without them.
    force: bool,
    /// Start it without missing members that may have diverged.
    degraded: bool,
    /// Disks that bear a label of an array and are not used by it, each with the reason.
    unused: UnusedDisks,
}

/// How one array is to be started; by default only if nothing can be lost by it.
#[derive(Clone, Copy, Default)]
pub struct StartMode {
    /// Use its stale members as they are; a redundant array is started without them.
    pub force: bool,
    /// Start it without missing members that may have diverged.
    pub degraded: bool,
}

impl ArrayManager {
    /// Runs the daemon's start: scans all disks, starts the arrays that are complete and the pools, and with them
    /// restores the exports. Disks that have not answered in time are scanned again in a task when they answer.
    pub async fn start(self: &Arc<Self>) {
        // Needs no scan: the registers of witnesses are on no disk of an array.
        self.users().open_witnesses().await;
        let _one_at_a_time = self.scan_lock.lock().await;
        let mut search = self.begin_scan(Vec::new()).await;
        let mut results = ScanResults::default();
        let start = tokio::time::Instant::now();
        // Usually all disks have answered by then, so that copies of a member are noticed before the array starts.
        self.collect_reads(&mut search, &mut results, start + START_SHORT).await;
        let mut found = results.owner_count();
        if search.pending() > 0 {
            self.process_arrays(results.take_complete(), &AssembleOptions::default()).await;
        }
        let before = results.owner_count();
        self.search_folders(&mut search, &results).await;
        self.collect_reads(&mut search, &mut results, start + SHORT_PATIENCE).await;
        found += results.owner_count() - before;
        let late = search.pending();
        for name in search.late() {
            let error = ErrorDetail::new(Kind::TimedOut, format!("disk {name} has not answered yet"));
            results.troubles.insert(name.clone(), error.with("disk", name));
        }
        if late > 0 {
            self.inventory.report_late_disks(search.late());
        }
        self.process_scan(results, &AssembleOptions::default(), &[]).await;
        self.start_imports(None, &[]).await;
        if late == 0 {
            self.inventory.end_starting();
        }
        let ms = self.inventory.started().elapsed().as_millis() as u64;
        // Only this function sets it.
        let _ = self.inventory.start_ms().set(ms);
        self.report_start(ms, found, late);
        tasks::spawn(Arc::clone(&self.exports).check_block_environment());
        if late > 0 {
            let manager = Arc::clone(self);
            tasks::spawn(async move { manager.rescan_after_late_disks(search).await });
        }
    }

    fn report_start(&self, ms: u64, found: usize, late: usize) {
        let tallies = self.inventory.read().tallies();
        let pools = match tallies.pools.total {
            0 => String::new(),
            total => format!(" {} of {total} pools active,", tallies.pools.serving),
        };
        self.inventory.events().info(
            "started",
            format!(
                "the daemon started in {ms} ms: {} of {} arrays active,{pools} {} of {} exports listening, {found} found on disks",
                tallies.arrays.serving, tallies.arrays.total, tallies.exports.serving, tallies.exports.total
            ),
            &[],
        );
        for (name, reason) in self.waiting_arrays() {
            let message = format!("array {name} is not active: {reason}");
            self.inventory.events().warning("array_waits", message, &[("array", &name)]);
        }
        if late > 0 {
            let seconds = SHORT_PATIENCE.as_secs();
            let message = format!(
                "{} not answered within {seconds} s, and will be scanned again when they do",
                counted(late, "disk has", "disks have")
            );
            self.inventory.events().warning("disks_late", message, &[]);
        }
    }

    /// Returns the arrays that need an operator, each with the first reason.
    fn waiting_arrays(&self) -> Vec<(String, String)> {
        let tables = self.inventory.read();
        let waiting = |entry: &ArrayEntry| match &entry.condition {
            ArrayCondition::Idle(idle) if needs_operator(idle.state) => {
                Some((entry.name.clone(), idle.attention.first().cloned().unwrap_or_default()))
            }
            _ => None,
        };
        tables.arrays.values().filter_map(waiting).collect()
    }

    /// Waits for the disks that did not answer in time, then scans again.
    async fn rescan_after_late_disks(self: Arc<Self>, late: Search) {
        if self.drain(late).await {
            self.rescan().await;
        }
        self.inventory.end_starting();
    }

    /// Scans all disks once more, as the start does. Does nothing while the daemon stops or is upgraded.
    pub async fn rescan(self: &Arc<Self>) {
        if self.inventory.refuse_while_stopping_or_upgrading().is_ok() {
            let _one_at_a_time = self.scan_lock.lock().await;
            let results = self.scan_disks(Vec::new(), |_| true).await;
            self.process_scan(results, &AssembleOptions::default(), &[]).await;
            self.start_imports(None, &[]).await;
        }
    }

    /// Scans for members, and starts the arrays that are complete.
    ///
    /// # Errors
    /// A named disk cannot be opened, or the named array is not found.
    pub async fn assemble(self: &Arc<Self>, request: Assemble) -> Result<Assembled, ErrorDetail> {
        self.inventory.refuse_while_stopping_or_upgrading()?;
        let mut extra = Vec::with_capacity(request.disks.len());
        for disk in &request.disks {
            extra.push(without_size(read_disk(disk)?));
        }
        let _one_at_a_time = self.scan_lock.lock().await;
        let before: BTreeSet<Uuid> = self.active_uuids();
        let names: Vec<String> = extra.iter().map(DiskSpec::to_string).collect();
        if request.force && request.array.is_none() {
            return Err(ErrorDetail::new(Kind::InvalidArgument, "force is for one array, which has to be named")
                .remedy("for example: braid array assemble fast --force"));
        }
        if request.degraded && request.array.is_none() {
            return Err(ErrorDetail::new(Kind::InvalidArgument, "degraded is for one array, which has to be named")
                .remedy("for example: braid array assemble fast --degraded"));
        }
        if let Some(name) = &request.array {
            self.stop_failed(name).await?;
        }
        let (only, unused) = (request.array.clone(), UnusedDisks::default());
        let options =
            AssembleOptions { only, force: request.force, degraded: request.degraded, unused: Arc::clone(&unused) };
        let only = request.array.as_deref();
        let mut results =
            self.scan_disks(extra.clone(), |results| only.is_some_and(|name| results.has_complete(name))).await;
        // A named disk has to be present; the others need not.
        let named = names.iter().find_map(|name| results.troubles.remove(name));
        self.process_scan(results, &options, &extra).await;
        self.start_imports(only, &extra).await;
        let unused = std::mem::take(&mut *unused.lock().unwrap_or_else(PoisonError::into_inner));
        let named = named.or_else(|| names.iter().find_map(|name| unused.get(name).cloned()));
        let tables = self.inventory.read();
        let started = tables.arrays.values().filter(|e| e.active().is_some() && !before.contains(&e.uuid));
        let started: Vec<String> = started.map(|entry| entry.name.clone()).collect();
        if let Some(error) = named
            && started.is_empty()
        {
            return Err(error);
        }
        let mut arrays: Vec<Array> = match &request.array {
            Some(name) => {
                let entry = tables.array(name)?;
                if let ArrayCondition::Idle(idle) = &entry.condition {
                    return Err(not_active_error(&entry.name, idle));
                }
                vec![self.show_array(&tables, entry)]
            }
            None => tables.arrays.values().map(|entry| self.show_array(&tables, entry)).collect(),
        };
        arrays.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Assembled { started, arrays })
    }

    /// Returns the arrays that serve.
    fn active_uuids(&self) -> BTreeSet<Uuid> {
        self.inventory.read().arrays.values().filter(|entry| entry.active().is_some()).map(|entry| entry.uuid).collect()
    }

    /// Processes everything that a scan has found.
    ///
    /// Arrays may have volumes as members, and pools may have those arrays as members: after pools were opened, their
    /// volumes are scanned, too. An array with such members is deferred until then, or it would start without them.
    /// Disks that the command named are scanned in each round: their scan results were released together with the
    /// deferred arrays.
    async fn process_scan(self: &Arc<Self>, mut results: ScanResults, options: &AssembleOptions, named: &[DiskSpec]) {
        let mut scanned_volumes: Vec<DiskSpec> = Vec::new();
        let mut last = false;
        for _ in 0..STACK_LEVELS_MAX {
            let deferred = self.defer(&mut results, options, last).await && !last;
            self.process_layer(results, options).await;
            let volumes = self.inventory.read().volumes_to_look_at();
            let fresh = volumes.iter().any(|spec| !scanned_volumes.contains(spec));
            if !fresh && !deferred {
                return;
            }
            scanned_volumes.extend(volumes);
            last = !fresh;
            results = self.scan_disks(named.to_vec(), |_| true).await;
        }
        self.defer(&mut results, options, true).await;
        self.process_layer(results, options).await;
    }

    /// Defers arrays that lack volumes: closes their disks and removes them from the scan result. In the `last` round
    /// defers only arrays that lack volumes of pools that are being changed now: once such a change ends, these volumes
    /// are scanned again. In that round it defers none if the command named an array. Returns whether any array was
    /// deferred.
    async fn defer(&self, results: &mut ScanResults, options: &AssembleOptions, last: bool) -> bool {
        if last && options.only.is_some() {
            return false;
        }
        let waits: Vec<Uuid> = {
            let awaited = self.awaited().clone();
            let tables = self.inventory.read();
            let waits = |(uuid, scanned): (&Uuid, &Vec<ScannedArrayDisk>)| {
                let disks: Vec<&OpenDisk> = scanned.iter().map(|scanned| &*scanned.disk).collect();
                let serves = tables.arrays.get(uuid).is_some_and(|entry| entry.active().is_some());
                let lacks = match last {
                    true => tables.lacks_volumes_of(*uuid, &disks, &awaited),
                    false => tables.lacks_volumes(*uuid, &disks),
                };
                (!serves && lacks).then_some(*uuid)
            };
            results.arrays.iter().filter_map(waits).collect()
        };
        let scanned = waits.iter().filter_map(|uuid| results.arrays.remove(uuid)).flatten();
        self.close_disks(scanned.map(|scanned| scanned.disk).collect()).await;
        !waits.is_empty()
    }

    /// Starts or lists the arrays of one scan, then the pools.
    async fn process_layer(self: &Arc<Self>, mut results: ScanResults, options: &AssembleOptions) {
        let mut pools = results.take_pools();
        // Entries that wait for members and were not found now are listed anew by `list_missing`.
        self.inventory.write().arrays.retain(|uuid, entry| match &entry.condition {
            ArrayCondition::Active(_) => true,
            ArrayCondition::Idle(idle) => results.arrays.contains_key(uuid) || idle.state == ArrayState::Stopped,
        });
        let faults = self.process_arrays(results, options).await;
        self.list_missing(&faults);
        // Last, because arrays may be members of pools.
        self.users().evaluate_pools(&mut pools).await;
        self.inventory.save_or_warn();
    }

    /// Processes the arrays of a scan result concurrently. Returns the faults of the scan.
    async fn process_arrays(
        self: &Arc<Self>,
        results: ScanResults,
        options: &AssembleOptions,
    ) -> Arc<BTreeMap<String, ErrorDetail>> {
        let faults = Arc::new(results.troubles);
        let mut work = JoinSet::new();
        for (uuid, scanned) in results.arrays {
            let (manager, faults) = (Arc::clone(self), Arc::clone(&faults));
            let disks = scanned.into_iter().map(|scanned| scanned.disk).collect();
            let options = options.clone();
            tasks::spawn_in(&mut work, async move { manager.process_array(uuid, disks, &options, &faults).await });
        }
        while work.join_next().await.is_some() {}
        faults
    }

    /// Starts one array, or lists it with the reason why it is not started.
    async fn process_array(
        self: &Arc<Self>,
        uuid: Uuid,
        disks: Vec<Arc<OpenDisk>>,
        options: &AssembleOptions,
        faults: &BTreeMap<String, ErrorDetail>,
    ) {
        // Another command is changing the array: the outcome of that command holds.
        let Some(_claim) = self.inventory.claim_uuid(uuid, "started") else { return self.close_disks(disks).await };
        let leaves: Vec<_> = disks.iter().map(|disk| disk.leaf).collect();
        let scan = lifecycle::scan(&self.meta, &leaves).await;
        let Some(found) = scan.arrays.into_iter().find(|array| array.uuid == uuid) else {
            return self.close_disks(disks).await;
        };
        let name = found.name.to_string();
        if let Some(redundant) = self.serves(uuid) {
            let named = options.only.as_deref().is_some_and(|only| only == name || only == uuid.to_string());
            return self.handle_further_disks(uuid, &name, redundant, named, disks, &options.unused).await;
        }
        if matches!(found.status, lifecycle::ArrayStatus::InterruptedDelete) {
            return self.finish_deletion(&found, disks).await;
        }
        let only = options.only.as_deref();
        let named = only.is_some_and(|only| only == name || only == uuid.to_string());
        let idle_instead_of_start = self.idle_instead_of_start(uuid, &name, only, named);
        let mode = StartMode { force: named && options.force, degraded: named && options.degraded };
        let result = match idle_instead_of_start {
            None if found.may_start(mode.force, mode.degraded) => {
                self.report_outsiders(&found, &disks, &options.unused);
                self.start_found(&found, disks, mode).await.map_err(|(error, disks)| (Some(error), disks))
            }
            Some(idle) if found.may_start(mode.force, mode.degraded) || idle.state == ArrayState::Stopped => {
                self.list_idle(uuid, &name, &found, idle, &disks);
                Err((None, disks))
            }
            _ => {
                let idle = self.explain(uuid, &name, &found, &disks, faults);
                self.list_idle(uuid, &name, &found, idle, &disks);
                Err((None, disks))
            }
        };
        if let Err((error, disks)) = result {
            if let Some(error) = error {
                self.inventory.events().error("array_failed", &error.message, &[("array", &name)]);
                // The views prepend the array's name.
                let reason = error.message.strip_prefix(&format!("array {name}: ")).unwrap_or(&error.message);
                let idle = IdleArray {
                    state: ArrayState::Failed,
                    attention: vec![reason.to_owned()],
                    remedy: error.remedy,
                    label: None,
                    members: Vec::new(),
                };
                self.list_idle(uuid, &name, &found, idle, &disks);
            }
            self.close_disks(disks).await;
        }
    }

    /// Returns whether a serving array is redundant; none if it does not serve.
    fn serves(&self, uuid: Uuid) -> Option<bool> {
        let tables = self.inventory.read();
        Some(tables.arrays.get(&uuid)?.active()?.reconciler().is_some())
    }

    /// Stops an array that has failed and so serves nothing, so that it can be started anew with the disks that are
    /// present.
    ///
    /// # Errors
    /// A pool on it serves.
    async fn stop_failed(self: &Arc<Self>, name: &str) -> Result<(), ErrorDetail> {
        let failed = |entry: &ArrayEntry| {
            entry.active().is_some_and(ActiveArray::has_failed).then(|| (entry.uuid, entry.name.clone()))
        };
        let Some((uuid, name)) = self.inventory.read().array(name).ok().and_then(failed) else { return Ok(()) };
        if let Some(idle) = self.failed_under_pool(uuid, &name) {
            return Err(not_active_error(&name, &idle));
        }
        let Some(_claim) = self.inventory.claim_uuid(uuid, "started") else { return Ok(()) };
        self.exports.stop_exports_of(uuid).await;
        if let Some(stopped) = self.deactivate(uuid, false).await {
            self.close_disks(stopped.disks).await;
        }
        Ok(())
    }

    /// Returns how a failed array is listed while a pool on it serves, which would go on writing to the array's former
    /// device; none if no such pool serves.
    pub(crate) fn failed_under_pool(&self, uuid: Uuid, name: &str) -> Option<IdleArray> {
        let tables = self.inventory.read();
        let (pool, _) = tables.serving_pool_on(uuid)?;
        Some(IdleArray {
            state: ArrayState::Failed,
            attention: vec![format!("it cannot be started while pool {}, which is on it, serves", pool.name)],
            remedy: advice::remedy(Case::Array(ArrayCase::FailedUnderPool), ObjectNames::with(name, &pool.name)),
            label: None,
            members: Vec::new(),
        })
    }

    /// Returns how a complete array that is not to be started now is listed; none if it is to be started.
    fn idle_instead_of_start(&self, uuid: Uuid, name: &str, only: Option<&str>, named: bool) -> Option<IdleArray> {
        // Its reconciler has panicked.
        if let Some(idle) = self.failed_under_pool(uuid, name) {
            return Some(idle);
        }
        let mut tables = self.inventory.write();
        let idle = |state: ArrayState, attention: Vec<String>, remedy: String| IdleArray {
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
            return Some(idle(
                ArrayState::Stopped,
                Vec::new(),
                advice::remedy(Case::Array(ArrayCase::Ready), ObjectNames::of(name)),
            ));
        }
        if only.is_some() && !named {
            // The command named another array: this one could be started by a command as well.
            return Some(idle(
                ArrayState::Incomplete,
                vec!["all of its members are present now; it was not started".to_owned()],
                advice::remedy(Case::Array(ArrayCase::Ready), ObjectNames::of(name)),
            ));
        }
        let namesake = tables.arrays.values().find(|entry| entry.name == name && entry.uuid != uuid);
        if let Some(other) = namesake
            && only != Some(&uuid.to_string())
        {
            return Some(idle(
                ArrayState::Failed,
                vec![format!("another array, {}, is called {name}, too", other.uuid)],
                advice::remedy(Case::Array(ArrayCase::SameName), ObjectNames::of(&uuid.to_string())),
            ));
        }
        None
    }

    /// Starts an array that was found, and serves it. If that fails, the caller lists the array as idle. The caller
    /// holds the array's claim.
    ///
    /// # Errors
    /// The reason, with the disks, which stay open.
    pub async fn start_found(
        self: &Arc<Self>,
        found: &FoundArray,
        disks: Vec<Arc<OpenDisk>>,
        mode: StartMode,
    ) -> Result<(), (ErrorDetail, Vec<Arc<OpenDisk>>)> {
        let name = found.name.to_string();
        let options = random().and_then(|session| {
            Ok(StartOptions { force: mode.force, degraded: mode.degraded, ..StartOptions::new(session, random()?) })
        });
        let options = match options {
            Ok(options) => options,
            Err(error) => return Err((error, disks)),
        };
        let started = lifecycle::start(&self.meta, found, options).await;
        let array = match started {
            Ok(array) => array,
            Err(error) => {
                let error = lifecycle_error(&error, &name, &ArrayManager::name_in(&disks));
                return Err((error, disks));
            }
        };
        if array.is_redundant() {
            let clean = found.newest.as_ref().is_some_and(|newest| newest.clean);
            let start = ReconcilerStart { clean, force: mode.force };
            return self.start_redundant(array, disks, start).await;
        }
        // In the order of their slots, and without disks that bear the label and are no members.
        let mut by_role = Vec::with_capacity(disks.len());
        for member in array.members() {
            by_role.extend(disks.iter().find(|disk| disk.leaf == member.leaf).cloned());
        }
        let others: Vec<_> =
            disks.iter().filter(|disk| !by_role.iter().any(|m| m.leaf == disk.leaf)).cloned().collect();
        self.close_disks(others).await;
        self.record_disks(found.uuid, &name, &by_role);
        match self.activate(array, by_role).await {
            Ok(()) => {
                self.inventory.events().info("array_started", format!("array {name} is active"), &[("array", &name)]);
                Ok(())
            }
            Err(error) => Err((error, disks)),
        }
    }

    /// Serves a redundant array that was started. Failed members whose disks are present return.
    async fn start_redundant(
        self: &Arc<Self>,
        array: lifecycle::Array,
        disks: Vec<Arc<OpenDisk>>,
        start: ReconcilerStart,
    ) -> Result<(), (ErrorDetail, Vec<Arc<OpenDisk>>)> {
        let (uuid, name) = (array.uuid(), array.name().to_string());
        let failed: Vec<u16> = array.failed();
        let returning: Vec<LeafId> = array.candidates().filter(|c| c.is_same_member).map(|c| c.leaf).collect();
        let needed = |role: u16| array.label().members.get(usize::from(role)).map_or(0, |entry| entry.data_bytes);
        let former_members: Vec<(LeafId, u64)> =
            array.candidates().filter(|c| !c.is_same_member).map(|c| (c.leaf, needed(c.slot))).collect();
        let holds: Vec<LeafId> =
            array.members().chain(array.spares()).chain(array.journal_disk()).map(|m| m.leaf).collect();
        let (mine, others): (Vec<_>, Vec<_>) = disks.into_iter().partition(|disk| holds.contains(&disk.leaf));
        if let Err(error) = self.serve_redundant(array, &mine, start).await {
            return Err((error, [mine, others].concat()));
        }
        let changed = record_slots(&mut self.inventory.write(), uuid, &name);
        if changed {
            self.inventory.save_or_warn();
        }
        let missing: Vec<String> = failed.iter().map(u16::to_string).collect();
        if missing.is_empty() {
            self.inventory.events().info("array_started", format!("array {name} is active"), &[("array", &name)]);
        } else {
            let message = format!("array {name} is active, degraded: without member {}", missing.join(", "));
            self.inventory.events().warning("array_started", message, &[("array", &name)]);
        }
        for disk in others {
            if returning.contains(&disk.leaf) {
                // The function reports the reason if it fails.
                let _ = self.return_disk(uuid, disk).await;
                continue;
            }
            if let Some((_, needed)) = former_members.iter().find(|(leaf, _)| *leaf == disk.leaf) {
                let capacity_bytes =
                    DiskLayout::for_device(disk.disk.size_bytes()).map_or(0, |places| places.data.bytes);
                let remedy = match capacity_bytes < *needed {
                    true => {
                        format!("it is too small for what the member holds now; braid disk wipe {} frees it", disk.name)
                    }
                    false => format!("braid array add {name} {} --force rebuilds it", disk.name),
                };
                let message =
                    format!("disk {} has an old label of array {name} and is no longer a member; {remedy}", disk.name);
                self.inventory.events().warning("disk_is_stale", message, &[("array", &name), ("disk", &disk.name)]);
            }
            self.close_disks(vec![disk]).await;
        }
        Ok(())
    }

    /// Records the disks of an array, in place of those recorded before.
    fn record_disks(&self, uuid: Uuid, name: &str, disks: &[Arc<OpenDisk>]) {
        let mut tables = self.inventory.write();
        tables.disks.retain(|_, saved| saved.array != uuid);
        for (role, disk) in disks.iter().enumerate() {
            let saved =
                SavedDisk { disk: disk.name.clone(), array: uuid, array_name: name.to_owned(), slot: role as u16 };
            tables.disks.insert(disk.name.clone(), saved);
        }
    }

    /// Compiles the layout of a started array, publishes it to the shards, lists the array, and restores its exports.
    ///
    /// # Errors
    /// All device numbers are in use.
    pub(crate) async fn activate(
        self: &Arc<Self>,
        array: lifecycle::Array,
        disks: Vec<Arc<OpenDisk>>,
    ) -> Result<(), ErrorDetail> {
        let (uuid, name, label) = (array.uuid(), array.name().to_string(), array.label().clone());
        let members: Vec<_> = array.members().map(|m| (m.leaf, m.part.layout.data)).collect();
        let nodes = members.iter().map(|(leaf, data)| Node::Leaf { leaf: *leaf, start: data.start, len: data.bytes });
        let root = Node::Striped { geometry: array.geometry().clone(), members: nodes.collect() };
        let block_bytes = disks.iter().map(|disk| disk.disk.logical_block_bytes()).max().unwrap_or(512).max(512);
        let level = self.stack_level_of_array(uuid, &disks)?;
        let (device, version) = {
            let mut tables = self.inventory.write();
            (tables.allocate_device(level)?, tables.next_layout_version())
        };
        let layout = Arc::new(DeviceLayout::new(version, block_bytes, &root));
        let published = self.ring.publish_and_drain(device, Some(Arc::clone(&layout))).await;
        if let Err(error) = published {
            self.inventory.write().release_device(device);
            return Err(braid_advice::errors::ring_error(&error, &name));
        }
        let slot = |(role, (disk, (_, data))): (usize, (Arc<OpenDisk>, &(LeafId, braid_format::ByteRange)))| {
            ArraySlot { role: role as u16, disk, data_offset_bytes: data.start }
        };
        let active = ActiveArray {
            handle: ArrayHandle::Plain(Arc::new(tokio::sync::Mutex::new(array))),
            label,
            device,
            size_bytes: layout.size_bytes(),
            block_bytes: layout.block_bytes(),
            request_bytes: layout.request_bytes(),
            disks: disks.into_iter().zip(&members).enumerate().map(slot).collect(),
            guests: Vec::new(),
            missing: BTreeMap::new(),
            last_journal: None,
            left_out: BTreeSet::new(),
        };
        self.inventory
            .write()
            .arrays
            .insert(uuid, ArrayEntry { uuid, name, condition: ArrayCondition::Active(active) });
        self.exports.restore_exports(uuid).await;
        Ok(())
    }

    /// Finishes a deletion that a crash interrupted.
    async fn finish_deletion(&self, found: &FoundArray, disks: Vec<Arc<OpenDisk>>) {
        let name = found.name.to_string();
        match lifecycle::delete_found(&self.meta, found, false).await {
            Ok(()) => {
                self.remove_disk_records(found.uuid);
                self.inventory.write().arrays.remove(&found.uuid);
                self.inventory.events().info(
                    "array_deleted",
                    format!("the interrupted deletion of array {name} is done"),
                    &[("array", &name)],
                );
            }
            Err(error) => {
                let error = lifecycle_error(&error, &name, &ArrayManager::name_in(&disks));
                self.inventory.events().error("delete_failed", error.message, &[("array", &name)]);
            }
        }
        self.close_disks(disks).await;
    }
}
