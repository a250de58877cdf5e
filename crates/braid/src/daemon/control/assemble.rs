//! Finding arrays again, and starting those that are complete.
//!
//! The disks of each array are judged together and the array is started, all arrays at once.

use super::further_disks::Unused;
use super::idle::why_not;
use super::keeping::{Keep, note_seats};
use super::search::{Harvest, Looked, SHORT_PATIENCE, Search, without_size};
use super::tables::{Active, ArrayEntry, Condition, Handle, Idle, OpenDisk, Seat};
use super::{Control, counted, random, waits};
use crate::daemon::state::SavedDisk;
use braid_advice::errors::of_lifecycle;
use braid_advice::{self as advice, ArrayCase, Case, Names};
use braid_api::{Array, ArrayState, Assemble, Assembled, ErrorDetail, Kind};
use braid_engine::lifecycle::{self, FoundArray, StartOptions};
use braid_engine::{DeviceLayout, LeafId, Node};
use braid_format::DiskLayout;
use braid_ring::{DiskSpec, STACK_LEVELS_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use uuid::Uuid;

/// After this the daemon's start does not wait with what is complete for disks that have not answered.
const START_SHORT: Duration = Duration::from_millis(500);

/// Which arrays a search may start, and how.
#[derive(Clone, Default)]
struct Order {
    /// Only this one, by name or UUID; none: all that no command stopped.
    only: Option<String>,
    /// Use its stale members as they are; a redundant array leaves them out.
    force: bool,
    /// Start it without absent members that may have gone on apart.
    degraded: bool,
    /// Disks that bear the label of an array and are not used by it, each with the reason.
    unused: Unused,
}

/// How one array is to be started.
#[derive(Clone, Copy, Default)]
pub(super) struct How {
    pub(super) force: bool,
    pub(super) degraded: bool,
}

impl Control {
    /// What the daemon does at its start: finds everything, starts what is complete, restores the exports.
    pub async fn start(self: &Arc<Self>) {
        // They stand on no disk of an array.
        self.open_witnesses().await;
        let _one_at_a_time = self.assembling.lock().await;
        let mut search = self.search(Vec::new()).await;
        let mut harvest = Harvest::default();
        let start = tokio::time::Instant::now();
        // Usually all have answered by then: a copy of a member is noticed before the array is started.
        self.gather(&mut search, &mut harvest, start + START_SHORT).await;
        let mut found = harvest.found();
        if search.under_way() > 0 {
            self.judge_arrays(harvest.take_complete(), &Order::default()).await;
        }
        let before = harvest.found();
        self.search_folders(&mut search, &harvest).await;
        self.gather(&mut search, &mut harvest, start + SHORT_PATIENCE).await;
        found += harvest.found() - before;
        let late = search.under_way();
        for name in search.late() {
            let error = ErrorDetail::new(Kind::TimedOut, format!("disk {name} has not answered yet"));
            harvest.troubles.insert(name.clone(), error.with("disk", name));
        }
        if late > 0 {
            self.note_late(search.late());
        }
        self.judge_all(harvest, &Order::default(), &[]).await;
        self.start_imports(None, &[]).await;
        if late == 0 {
            self.end_starting();
        }
        let ms = self.started.elapsed().as_millis() as u64;
        // Only this function sets it.
        let _ = self.start_ms.set(ms);
        self.tell_of_start(ms, found, late);
        tokio::spawn(Arc::clone(self).look_around());
        if late > 0 {
            let control = Arc::clone(self);
            tokio::spawn(async move { control.once_more(search).await });
        }
    }

    fn tell_of_start(&self, ms: u64, found: usize, late: usize) {
        let status = self.status();
        let pools = match status.pools.total {
            0 => String::new(),
            total => format!(" {} of {total} pools active,", status.pools.serving),
        };
        self.events().info(
            "started",
            format!(
                "the daemon started in {ms} ms: {} of {} arrays active,{pools} {} of {} exports listening, {found} found on disks",
                status.arrays.serving, status.arrays.total, status.exports.serving, status.exports.total
            ),
            &[],
        );
        for (name, reason) in self.names_waiting() {
            let message = format!("array {name} is not active: {reason}");
            self.events().warning("array_waits", message, &[("array", &name)]);
        }
        if late > 0 {
            let seconds = SHORT_PATIENCE.as_secs();
            let message = format!(
                "{} not answered within {seconds} s, and will be looked at again then",
                counted(late, "disk has", "disks have")
            );
            self.events().warning("disks_late", message, &[]);
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
    async fn once_more(self: Arc<Self>, late: Search) {
        if self.drain(late).await {
            self.look_for_members_again().await;
        }
        self.end_starting();
    }

    /// Looks for members once more, as a start does.
    pub(super) async fn look_for_members_again(self: &Arc<Self>) {
        if self.is_open().is_ok() {
            let _one_at_a_time = self.assembling.lock().await;
            let harvest = self.look(Vec::new(), |_| true).await;
            self.judge_all(harvest, &Order::default(), &[]).await;
            self.start_imports(None, &[]).await;
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
        let names: Vec<String> = extra.iter().map(DiskSpec::to_string).collect();
        if ask.force && ask.array.is_none() {
            return Err(ErrorDetail::new(Kind::InvalidArgument, "force is for one array, which has to be named")
                .remedy("for example: braid array assemble fast --force"));
        }
        if ask.degraded && ask.array.is_none() {
            return Err(ErrorDetail::new(Kind::InvalidArgument, "degraded is for one array, which has to be named")
                .remedy("for example: braid array assemble fast --degraded"));
        }
        if let Some(name) = &ask.array {
            self.stop_failed(name).await;
        }
        let (only, unused) = (ask.array.clone(), Unused::default());
        let order = Order { only, force: ask.force, degraded: ask.degraded, unused: Arc::clone(&unused) };
        let only = ask.array.as_deref();
        let mut harvest = self.look(extra.clone(), |harvest| only.is_some_and(|name| harvest.has_complete(name))).await;
        // A disk that was named is expected to be there; others only may be.
        let named = names.iter().find_map(|name| harvest.troubles.remove(name));
        self.judge_all(harvest, &order, &extra).await;
        self.start_imports(only, &extra).await;
        let unused = std::mem::take(&mut *unused.lock().unwrap_or_else(PoisonError::into_inner));
        let named = named.or_else(|| names.iter().find_map(|name| unused.get(name).cloned()));
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

    /// Judges the arrays of a harvest that is everything there is.
    ///
    /// Arrays may stand on volumes, and pools on those arrays: when pools have been opened, it is looked again what is on their volumes. An
    /// array that had such members waits for that, or it would begin without them. Disks that somebody named are looked at each time: what
    /// was found on them was given back with what waits.
    async fn judge_all(self: &Arc<Self>, mut harvest: Harvest, order: &Order, named: &[DiskSpec]) {
        let mut looked_at: Vec<DiskSpec> = Vec::new();
        let mut last = false;
        for _ in 0..STACK_LEVELS_MAX {
            let deferred = self.defer(&mut harvest, order, last).await && !last;
            self.judge_layer(harvest, order).await;
            let volumes = self.read().volumes_to_look_at();
            let fresh = volumes.iter().any(|spec| !looked_at.contains(spec));
            if !fresh && !deferred {
                return;
            }
            looked_at.extend(volumes);
            last = !fresh;
            harvest = self.look(named.to_vec(), |_| true).await;
        }
        self.defer(&mut harvest, order, true).await;
        self.judge_layer(harvest, order).await;
    }

    /// Takes out of a harvest, and closes, what is of arrays of which volumes are not here yet; at `last` of those alone that are looked for
    /// again when their pools can be asked, unless somebody named the array. Says whether there are any.
    async fn defer(&self, harvest: &mut Harvest, order: &Order, last: bool) -> bool {
        if last && order.only.is_some() {
            return false;
        }
        let waits: Vec<Uuid> = {
            let awaited = self.awaited().clone();
            let tables = self.read();
            let waits = |(uuid, looked): (&Uuid, &Vec<Looked>)| {
                let disks: Vec<&OpenDisk> = looked.iter().map(|looked| &*looked.disk).collect();
                let serves = tables.arrays.get(uuid).is_some_and(|entry| entry.active().is_some());
                let lacks = match last {
                    true => tables.lacks_volumes_of(*uuid, &disks, &awaited),
                    false => tables.lacks_volumes(*uuid, &disks),
                };
                (!serves && lacks).then_some(*uuid)
            };
            harvest.arrays.iter().filter_map(waits).collect()
        };
        let looked = waits.iter().filter_map(|uuid| harvest.arrays.remove(uuid)).flatten();
        self.close_disks(looked.map(|looked| looked.disk).collect()).await;
        !waits.is_empty()
    }

    async fn judge_layer(self: &Arc<Self>, mut harvest: Harvest, order: &Order) {
        let mut pools = harvest.take_pools();
        // What was listed as waiting and is not there at all now is told anew by `list_absent`.
        self.write().arrays.retain(|uuid, entry| match &entry.condition {
            Condition::Active(_) => true,
            Condition::Idle(idle) => harvest.arrays.contains_key(uuid) || idle.state == ArrayState::Stopped,
        });
        let troubles = self.judge_arrays(harvest, order).await;
        self.list_absent(&troubles);
        // Only now, as arrays may be members of pools.
        self.judge_pools(&mut pools).await;
        self.save_or_warn();
    }

    /// Judges the arrays of a harvest, all at once. Returns its troubles.
    async fn judge_arrays(self: &Arc<Self>, harvest: Harvest, order: &Order) -> Arc<BTreeMap<String, ErrorDetail>> {
        let troubles = Arc::new(harvest.troubles);
        let mut work = JoinSet::new();
        for (uuid, looked) in harvest.arrays {
            let (control, troubles) = (Arc::clone(self), Arc::clone(&troubles));
            let disks = looked.into_iter().map(|looked| looked.disk).collect();
            let order = order.clone();
            work.spawn(async move { control.judge(uuid, disks, &order, &troubles).await });
        }
        while work.join_next().await.is_some() {}
        troubles
    }

    /// Judges one array: starts it, or lists it with the reason why not.
    async fn judge(
        self: &Arc<Self>,
        uuid: Uuid,
        disks: Vec<Arc<OpenDisk>>,
        order: &Order,
        troubles: &BTreeMap<String, ErrorDetail>,
    ) {
        // Another command is at it: what that does counts.
        let Some(_claim) = self.claim_found(uuid, "started") else { return self.close_disks(disks).await };
        let leaves: Vec<_> = disks.iter().map(|disk| disk.leaf).collect();
        let scan = lifecycle::scan(&self.meta, &leaves).await;
        let Some(found) = scan.arrays.into_iter().find(|array| array.uuid == uuid) else {
            return self.close_disks(disks).await;
        };
        let name = found.name.to_string();
        if let Some(redundant) = self.serves(uuid) {
            let named = order.only.as_deref().is_some_and(|only| only == name || only == uuid.to_string());
            return self.on_further_disks(uuid, &name, redundant, named, disks, &order.unused).await;
        }
        if matches!(found.status, lifecycle::ArrayStatus::InterruptedDelete) {
            return self.finish_deletion(&found, disks).await;
        }
        let only = order.only.as_deref();
        let named = only.is_some_and(|only| only == name || only == uuid.to_string());
        let kept_idle = self.kept_idle(uuid, &name, only, named);
        let how = How { force: named && order.force, degraded: named && order.degraded };
        let result = match kept_idle {
            None if found.may_start(how.force, how.degraded) => {
                self.tell_outsiders(&found, &disks, &order.unused);
                self.start_found(&found, disks, how).await.map_err(|(error, disks)| (Some(error), disks))
            }
            Some(idle) if found.may_start(how.force, how.degraded) || idle.state == ArrayState::Stopped => {
                self.list_idle(uuid, &name, &found, idle, &disks);
                Err((None, disks))
            }
            _ => {
                let idle = self.explain(uuid, &name, &found, &disks, troubles);
                self.list_idle(uuid, &name, &found, idle, &disks);
                Err((None, disks))
            }
        };
        if let Err((error, disks)) = result {
            if let Some(error) = error {
                self.events().error("array_failed", &error.message, &[("array", &name)]);
                // Whoever shows it names the array.
                let reason = error.message.strip_prefix(&format!("array {name}: ")).unwrap_or(&error.message);
                let idle = Idle {
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

    /// Whether the array serves already, and then whether it is redundant.
    fn serves(&self, uuid: Uuid) -> Option<bool> {
        let tables = self.read();
        Some(tables.arrays.get(&uuid)?.active()?.keeping().is_some())
    }

    /// An array that has failed serves nothing; it is started anew with what is here now.
    async fn stop_failed(self: &Arc<Self>, name: &str) {
        let failed = |entry: &ArrayEntry| entry.active().is_some_and(Active::has_failed).then_some(entry.uuid);
        let Some(uuid) = self.read().array(name).ok().and_then(failed) else { return };
        // A pool that serves would lose its ground.
        if self.read().served_on(uuid).is_some() {
            return;
        }
        let Some(_claim) = self.claim_found(uuid, "started") else { return };
        self.silence_exports(uuid).await;
        if let Some(stopped) = self.deactivate(uuid, false).await {
            self.close_disks(stopped.disks).await;
        }
    }

    /// How a complete array is listed that is not to be started now; none if it is.
    fn kept_idle(&self, uuid: Uuid, name: &str, only: Option<&str>, named: bool) -> Option<Idle> {
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
            return Some(idle(
                ArrayState::Stopped,
                Vec::new(),
                advice::remedy(Case::Array(ArrayCase::Ready), Names::of(name)),
            ));
        }
        if only.is_some() && !named {
            // Asked for another one: this one could be started as well, by whoever wants it.
            return Some(idle(
                ArrayState::Incomplete,
                vec!["its members are all here now; nobody has started it".to_owned()],
                advice::remedy(Case::Array(ArrayCase::Ready), Names::of(name)),
            ));
        }
        let namesake = tables.arrays.values().find(|entry| entry.name == name && entry.uuid != uuid);
        if let Some(other) = namesake
            && only != Some(&uuid.to_string())
        {
            return Some(idle(
                ArrayState::Failed,
                vec![format!("another array, {}, is called {name}, too", other.uuid)],
                advice::remedy(Case::Array(ArrayCase::SameName), Names::of(&uuid.to_string())),
            ));
        }
        None
    }

    /// Starts an array whose members are all here. On an error the disks are given back.
    pub(super) async fn start_found(
        self: &Arc<Self>,
        found: &FoundArray,
        disks: Vec<Arc<OpenDisk>>,
        how: How,
    ) -> Result<(), (ErrorDetail, Vec<Arc<OpenDisk>>)> {
        let name = found.name.to_string();
        let options = random().and_then(|session| {
            Ok(StartOptions { force: how.force, degraded: how.degraded, ..StartOptions::new(session, random()?) })
        });
        let options = match options {
            Ok(options) => options,
            Err(error) => return Err((error, disks)),
        };
        let started = lifecycle::start(&self.meta, found, options).await;
        let array = match started {
            Ok(array) => array,
            Err(error) => {
                let error = of_lifecycle(&error, &name, &Control::name_in(&disks));
                return Err((error, disks));
            }
        };
        if array.is_redundant() {
            let clean = found.newest.as_ref().is_some_and(|newest| newest.clean);
            let keep = Keep { clean, force: how.force };
            return self.start_kept(array, disks, keep).await;
        }
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

    /// Serves a redundant array that was started. Members that are out and whose disks are here return.
    async fn start_kept(
        self: &Arc<Self>,
        array: lifecycle::Array,
        disks: Vec<Arc<OpenDisk>>,
        keep: Keep,
    ) -> Result<(), (ErrorDetail, Vec<Arc<OpenDisk>>)> {
        let (uuid, name) = (array.uuid(), array.name().to_string());
        let out: Vec<u16> = array.failed();
        let returning: Vec<LeafId> = array.candidates().filter(|c| c.is_same_member).map(|c| c.leaf).collect();
        let needed = |role: u16| array.label().members.get(usize::from(role)).map_or(0, |entry| entry.data_bytes);
        let given_up: Vec<(LeafId, u64)> =
            array.candidates().filter(|c| !c.is_same_member).map(|c| (c.leaf, needed(c.slot))).collect();
        let holds: Vec<LeafId> =
            array.members().chain(array.spares()).chain(array.journal_disk()).map(|m| m.leaf).collect();
        let (mine, others): (Vec<_>, Vec<_>) = disks.into_iter().partition(|disk| holds.contains(&disk.leaf));
        if let Err(error) = self.keep(array, &mine, keep).await {
            return Err((error, [mine, others].concat()));
        }
        let changed = note_seats(&mut self.write(), uuid, &name);
        if changed {
            self.save_or_warn();
        }
        let missing: Vec<String> = out.iter().map(u16::to_string).collect();
        if missing.is_empty() {
            self.events().info("array_started", format!("array {name} is active"), &[("array", &name)]);
        } else {
            let message = format!("array {name} is active, degraded: without member {}", missing.join(", "));
            self.events().warning("array_started", message, &[("array", &name)]);
        }
        for disk in others {
            if returning.contains(&disk.leaf) {
                // Where it does not, that is said.
                let _ = self.return_disk(uuid, disk).await;
                continue;
            }
            if let Some((_, needed)) = given_up.iter().find(|(leaf, _)| *leaf == disk.leaf) {
                let room = DiskLayout::for_device(disk.disk.size_bytes()).map_or(0, |places| places.data.bytes);
                let remedy = match room < *needed {
                    true => {
                        format!("it is too small for what the member holds now; braid disk wipe {} frees it", disk.name)
                    }
                    false => format!("braid array add {name} {} --force fills it anew", disk.name),
                };
                let message = format!(
                    "disk {} bears an old label of array {name} and is no member of it now; {remedy}",
                    disk.name
                );
                self.events().warning("disk_is_old", message, &[("array", &name), ("disk", &disk.name)]);
            }
            self.close_disks(vec![disk]).await;
        }
        Ok(())
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
        let members: Vec<_> = array.members().map(|m| (m.leaf, m.part.layout.data)).collect();
        let nodes = members.iter().map(|(leaf, data)| Node::Leaf { leaf: *leaf, start: data.start, len: data.bytes });
        let root = Node::Striped { geometry: array.geometry().clone(), members: nodes.collect() };
        let block_bytes = disks.iter().map(|disk| disk.disk.logical_block_bytes()).max().unwrap_or(512).max(512);
        let tier = self.tier_of_array(uuid, &disks)?;
        let (device, version) = {
            let mut tables = self.write();
            (tables.take_device(tier)?, tables.next_version())
        };
        let layout = Arc::new(DeviceLayout::new(version, block_bytes, &root));
        let published = self.ring.publish_and_drain(device, Some(Arc::clone(&layout))).await;
        if let Err(error) = published {
            self.write().give_device(device);
            return Err(braid_advice::errors::of_ring(&error, &name));
        }
        let seat = |(role, (disk, (_, data))): (usize, (Arc<OpenDisk>, &(LeafId, braid_format::ByteRange)))| Seat {
            role: role as u16,
            disk,
            data_offset_bytes: data.start,
        };
        let active = Active {
            handle: Handle::Plain(Arc::new(tokio::sync::Mutex::new(array))),
            label,
            device,
            size_bytes: layout.size_bytes(),
            block_bytes: layout.block_bytes(),
            request_bytes: layout.request_bytes(),
            disks: disks.into_iter().zip(&members).enumerate().map(seat).collect(),
            guests: Vec::new(),
            away: BTreeMap::new(),
            last_journal: None,
            left_out: BTreeSet::new(),
        };
        self.write().arrays.insert(uuid, ArrayEntry { uuid, name, condition: Condition::Active(active) });
        self.restore_exports(uuid).await;
        Ok(())
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
}
