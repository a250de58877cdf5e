//! Finding arrays again, and starting those that are complete.
//!
//! The disks of each array are judged together and the array is started, all arrays at once.

use super::search::{Harvest, SHORT_PATIENCE, Search, without_size};
use super::tables::{Active, ArrayEntry, Condition, Idle, IdleMember, OpenDisk};
use super::{Control, counted, random, waits};
use crate::daemon::errors::{not_ready, of_lifecycle};
use crate::daemon::state::SavedDisk;
use braid_api::{Array, ArrayState, Assemble, Assembled, ErrorDetail, Kind};
use braid_engine::lifecycle::{self, FoundArray, Refusal, StartOptions};
use braid_engine::{DeviceLayout, LeafId, Node};
use braid_ring::DiskSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
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
    /// Use its stale members as they are.
    force: bool,
}

impl Control {
    /// What the daemon does at its start: finds everything, starts what is complete, restores the exports.
    pub async fn start(self: &Arc<Self>) {
        let _one_at_a_time = self.assembling.lock().await;
        let mut search = self.search(Vec::new()).await;
        let mut harvest = Harvest::default();
        let start = tokio::time::Instant::now();
        // Usually all have answered by then: a copy of a member is noticed before the array is started.
        self.gather(&mut search, &mut harvest, start + START_SHORT).await;
        let mut found = harvest.arrays.len();
        if search.under_way() > 0 {
            self.judge_arrays(harvest.take_complete(), &Order::default()).await;
        }
        let before = harvest.arrays.len();
        self.search_folders(&mut search, &harvest).await;
        self.gather(&mut search, &mut harvest, start + SHORT_PATIENCE).await;
        found += harvest.arrays.len() - before;
        let late = search.under_way();
        for name in search.late() {
            let error = ErrorDetail::new(Kind::TimedOut, format!("disk {name} has not answered yet"));
            harvest.troubles.insert(name.clone(), error.with("disk", name));
        }
        self.judge_all(harvest, &Order::default()).await;
        let ms = self.started.elapsed().as_millis() as u64;
        // Only this function sets it.
        let _ = self.start_ms.set(ms);
        self.tell_of_start(ms, found, late);
        if late > 0 {
            let control = Arc::clone(self);
            tokio::spawn(async move { control.once_more(search).await });
        }
    }

    fn tell_of_start(&self, ms: u64, found: usize, late: usize) {
        let status = self.status();
        self.events().info(
            "started",
            format!(
                "the daemon started in {ms} ms: {} of {} arrays active, {} of {} exports listening, {found} found on disks",
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
        if self.drain(late).await && self.is_open().is_ok() {
            let _one_at_a_time = self.assembling.lock().await;
            let harvest = self.look(Vec::new(), |_| true).await;
            self.judge_all(harvest, &Order::default()).await;
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
        let order = Order { only: ask.array.clone(), force: ask.force };
        let only = ask.array.as_deref();
        let mut harvest = self.look(extra, |harvest| only.is_some_and(|name| harvest.has_complete(name))).await;
        // A disk that was named is expected to be there; others only may be.
        let named = names.iter().find_map(|name| harvest.troubles.remove(name));
        self.judge_all(harvest, &order).await;
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
    async fn judge_all(self: &Arc<Self>, harvest: Harvest, order: &Order) {
        // What was listed as waiting and is not there at all now is told anew by `list_absent`.
        self.write().arrays.retain(|uuid, entry| match &entry.condition {
            Condition::Active(_) => true,
            Condition::Idle(idle) => harvest.arrays.contains_key(uuid) || idle.state == ArrayState::Stopped,
        });
        let troubles = self.judge_arrays(harvest, order).await;
        self.list_absent(&troubles);
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
        if self.already_active(uuid, &name, &disks) {
            return self.close_disks(disks).await;
        }
        if matches!(found.status, lifecycle::Status::InterruptedDelete) {
            return self.finish_deletion(&found, disks).await;
        }
        let only = order.only.as_deref();
        let named = only.is_some_and(|only| only == name || only == uuid.to_string());
        let kept_idle = self.kept_idle(uuid, &name, only, named);
        if found.newest.as_ref().is_some_and(|newest| lifecycle::is_redundant(newest.spec.level)) {
            self.list_unserved(uuid, &name, &found, &disks);
            return self.close_disks(disks).await;
        }
        let forced = named && order.force && may_force(&found.status);
        let ready = forced || found.status.starts_by_itself();
        let result = match kept_idle {
            None if ready => {
                self.start_found(&found, disks, forced).await.map_err(|(error, disks)| (Some(error), disks))
            }
            Some(idle) if ready || idle.state == ArrayState::Stopped => {
                self.list_idle(uuid, &name, &found, idle, &disks);
                Err((None, disks))
            }
            _ => {
                let idle = self.explain(uuid, &name, &found.status, &disks, troubles);
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

    /// Lists an array of a level that this version knows the labels of and does not serve.
    fn list_unserved(&self, uuid: Uuid, name: &str, found: &FoundArray, disks: &[Arc<OpenDisk>]) {
        let idle = Idle {
            state: ArrayState::Failed,
            attention: vec!["arrays of its level are not served by this version".to_owned()],
            remedy: "use a newer braid".to_owned(),
            label: None,
            members: Vec::new(),
        };
        self.list_idle(uuid, name, found, idle, disks);
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
            return Some(idle(ArrayState::Stopped, Vec::new(), format!("braid array assemble {name}")));
        }
        if only.is_some() && !named {
            // Asked for another one: this one could be started as well, by whoever wants it.
            return Some(idle(
                ArrayState::Incomplete,
                vec!["its members are all here now; nobody has started it".to_owned()],
                format!("braid array assemble {name}"),
            ));
        }
        let namesake = tables.arrays.values().find(|entry| entry.name == name && entry.uuid != uuid);
        if let Some(other) = namesake
            && only != Some(&uuid.to_string())
        {
            return Some(idle(
                ArrayState::Failed,
                vec![format!("another array, {}, is called {name}, too", other.uuid)],
                format!("start it by its UUID (braid array assemble {uuid}), then rename it"),
            ));
        }
        None
    }

    /// Starts an array whose members are all here. On an error the disks are given back.
    async fn start_found(
        self: &Arc<Self>,
        found: &FoundArray,
        disks: Vec<Arc<OpenDisk>>,
        force: bool,
    ) -> Result<(), (ErrorDetail, Vec<Arc<OpenDisk>>)> {
        let name = found.name.to_string();
        let options = random().and_then(|session| Ok(StartOptions { force, ..StartOptions::new(session, random()?) }));
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
            lifecycle::Status::Incomplete { missing } | lifecycle::Status::Waiting { missing } => {
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
            lifecycle::Status::Refused { reasons } => {
                let name = |leaf: &LeafId| Control::name_in(disks)(*leaf).unwrap_or_default();
                reasons.iter().map(|reason| refusal(reason, &name)).collect()
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
}

/// A refusal in words, with the disks that it is about.
fn refusal(reason: &Refusal, name: &dyn Fn(&LeafId) -> String) -> String {
    match reason {
        Refusal::Twins { leaves, .. } => {
            let names: Vec<String> = leaves.iter().map(name).collect();
            format!("{reason} (they are {})", names.join(" and "))
        }
        Refusal::Stale { leaf, .. }
        | Refusal::WrongSize { leaf, .. }
        | Refusal::OldCopy { leaf, .. }
        | Refusal::WentApart { leaf, .. } => format!("disk {}: {reason}", name(leaf)),
        reason => reason.to_string(),
    }
}

/// Whether all that stands in the way can be overridden.
fn may_force(status: &lifecycle::Status) -> bool {
    matches!(status, lifecycle::Status::Refused { reasons } if reasons.iter().all(Refusal::can_be_forced))
}

/// Why an array that was named is not active.
fn why_not(name: &str, idle: &Idle) -> ErrorDetail {
    let kind = if idle.state == ArrayState::Incomplete { Kind::Incomplete } else { Kind::Inactive };
    let reason = if idle.attention.is_empty() { String::new() } else { format!(": {}", idle.attention.join("; ")) };
    ErrorDetail::new(kind, format!("array {name} is {}{reason}", idle.state.word()))
        .with("array", name)
        .remedy(idle.remedy.clone())
}
