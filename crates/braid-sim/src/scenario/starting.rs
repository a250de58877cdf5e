//! Starts, creates and stops redundant arrays.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use braid_array_admin::lifecycle::{self, Array, ArrayStatus, LifecycleError, StartOptions};
use braid_array_admin::reconciler::{Order, Reconciler, ReconcilerOptions};
use braid_engine::io::{DeviceId, LeafId, MetaIo, ShardId};
use braid_engine::{MemberSet, RegionMap};
use braid_format::MemberState;
use braid_geometry::Geometry;

use super::leases::Renewal;
use super::{Admin, AdminHabits};
use crate::content::BLOCK_BYTES;
use crate::copies::Copies;
use crate::journal_refusal::JournalRefusal;
use crate::labelled;
use crate::oracle::Violation;
use crate::rng::Rng;
use crate::run_state::RunState;
use crate::stripe_writes::{Excuse, UnreadableStripes};

/// Where a reconciler leaves the stopped array.
type Ended = Rc<RefCell<Option<braid_array_admin::reconciler::StoppedArray>>>;

/// The conditions under which an array is started.
struct Start {
    /// The disks that are present.
    present: Vec<LeafId>,
    /// The array is known to have been stopped cleanly.
    stopped: bool,
    /// The labels say that the array was stopped cleanly.
    clean: bool,
}

/// A served redundant array.
pub struct ServedMirror {
    /// The device number under which it serves.
    pub id: DeviceId,
    /// The home shard of its regions and its journal.
    home: ShardId,
    /// What its reconciler leaves when it ends.
    ended: Ended,
    /// Disks that are out of the array, or were pulled, in this life.
    pub(super) missing: Vec<usize>,
    /// Its regions.
    pub(super) regions: Arc<RegionMap>,
    /// The disk and data start of its copies, by slot, if all members were in sync when it was started.
    pub(super) copies: Option<(Geometry, Vec<(usize, u64)>)>,
}

impl Admin {
    /// Starts every redundant array.
    pub async fn start_mirrors(&mut self, habits: Option<AdminHabits>) {
        let count = self.state.borrow().mirrors.len();
        for index in 0..count {
            self.start_mirror(index, habits).await;
        }
    }

    pub(super) async fn start_mirror(&mut self, index: usize, habits: Option<AdminHabits>) {
        if self.mirrors.contains_key(&index) {
            return;
        }
        let (uuid, exists) = {
            let state = self.state.borrow();
            (state.mirrors[index].uuid, state.mirrors[index].exists)
        };
        let splits = std::mem::take(&mut self.state.borrow_mut().mirrors[index].split_at_next_start);
        let wild = self.state.borrow().mirrors[index].wild;
        if exists && (splits || wild && self.rng.below(4) == 0) && !self.last {
            self.run_split_brain(index).await;
        }
        self.phase("starting a mirror");
        let elsewhere = {
            let state = self.state.borrow();
            let mirror = &state.mirrors[index];
            // Diverged disks count as used in another machine, and are not offered to this start, until the other
            // members have continued without them.
            if mirror.left_behind { BTreeSet::new() } else { mirror.diverged.clone() }
        };
        let mut leaves: Vec<LeafId> =
            self.leaves.iter().filter(|(disk, _)| !elsewhere.contains(disk)).map(|(_, leaf)| *leaf).collect();
        self.rng.shuffle(&mut leaves);
        let scan = lifecycle::scan(&self.port, &leaves).await;
        let found = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid);
        let careful = self.state.borrow().mirrors[index].healthy.is_some();
        let Some(found) = found.filter(|found| exists || found.status.starts_by_itself()) else {
            if exists && (careful || self.last) {
                return self.report_violation(format!("mirror {index} is not found"));
            }
            if !exists {
                self.make_mirror(index, habits).await;
            }
            return;
        };
        let (mut found, mut force) = (found, false);
        if found.waits_for_journal() {
            return self.wait_for_journal(index, &leaves).await;
        }
        if let ArrayStatus::Refused { reasons } = found.status.clone() {
            let (diverged, old) = {
                let state = self.state.borrow();
                let mirror = &state.mirrors[index];
                (mirror.diverged.clone(), mirror.old.clone())
            };
            self.count("start refused");
            if !diverged.is_empty() {
                // Without the diverged members it may start.
                let leaves: Vec<LeafId> =
                    self.leaves.iter().filter(|(disk, _)| !diverged.contains(disk)).map(|(_, leaf)| *leaf).collect();
                let scan = lifecycle::scan(&self.port, &leaves).await;
                let again = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid);
                let Some(again) = again else { return self.report_violation(format!("mirror {index} is not found")) };
                if again.waits_for_journal() {
                    return self.wait_for_journal(index, &leaves).await;
                }
                found = again;
            }
            if matches!(found.status, ArrayStatus::Refused { .. }) && !old.is_empty() {
                force = reasons_can_be_forced(&found.status);
            } else if diverged.is_empty() && old.is_empty() {
                let why = format!("mirror {index} is refused without a reason: {reasons:?}");
                return self.report_violation(why);
            }
        }
        if !careful && !found.status.starts_by_itself() {
            if self.last {
                return self.report_violation(format!("mirror {index} does not start ({})", found.status));
            }
            return self.count("a mirror waits");
        }
        let clean = found.newest.as_ref().is_some_and(|newest| newest.clean);
        let options = StartOptions { degraded: careful, force, ..StartOptions::new(self.rng.bits(), self.rng.bits()) };
        let start =
            Start { present: leaves, stopped: self.state.borrow_mut().mirrors[index].journal.begin_start(), clean };
        match lifecycle::start(&self.port, &found, options).await {
            Ok(array) => {
                {
                    let mut state = self.state.borrow_mut();
                    let mirror = &mut state.mirrors[index];
                    mirror.exists = true;
                    mirror.journal.waits = false;
                    mirror.left_behind = !mirror.diverged.is_empty();
                }
                self.count("start a mirror");
                self.serve_mirror(index, array, start, habits).await;
            }
            Err(error) if !careful && self.state.borrow().had_faults => {
                self.state.borrow_mut().notes.push(format!("mirror {index} does not start: {error}"));
            }
            Err(error) => self.report_violation(format!("mirror {index} does not start ({}): {error}", found.status)),
        }
    }

    /// Waits for the array that a reconciler leaves.
    pub(super) async fn ended(&self, ended: &Ended) -> braid_array_admin::reconciler::StoppedArray {
        std::future::poll_fn(|_| match ended.borrow_mut().take() {
            Some(ended) => std::task::Poll::Ready(ended),
            None => std::task::Poll::Pending,
        })
        .await
    }

    pub(super) fn report_violation(&self, why: String) {
        self.state.borrow_mut().violation.get_or_insert(Violation(why));
    }

    /// Creates an array that does not exist on its disks, whatever an interrupted attempt has left.
    async fn make_mirror(&mut self, index: usize, habits: Option<AdminHabits>) {
        let (disks, spec) = {
            let state = self.state.borrow();
            (state.mirrors[index].disks.clone(), state.mirrors[index].spec)
        };
        let leaves: Option<Vec<LeafId>> = disks.iter().map(|disk| self.leaves.get(disk).copied()).collect();
        let Some(leaves) = leaves else { return };
        self.phase("creating a mirror");
        let serial = {
            let mut state = self.state.borrow_mut();
            state.serial += 1;
            state.serial
        };
        let mut request = labelled::request(serial, spec, leaves, true, &mut self.rng);
        if !self.journal_for_new(index, &mut request).await {
            return;
        }
        self.state.borrow_mut().mirrors[index].uuid = Some(request.uuid);
        match lifecycle::create(&self.port, &request).await {
            Ok(array) => {
                self.count("create a mirror");
                if request.journal.is_some() {
                    self.count("create a mirror with a journal disk");
                }
                self.state.borrow_mut().mirrors[index].exists = true;
                let start = Start { present: self.leaves.values().copied().collect(), stopped: true, clean: true };
                self.serve_mirror(index, array, start, habits).await;
            }
            Err(error) => {
                self.state.borrow_mut().notes.push(format!("mirror {index} could not be made: {error}"));
                if !self.state.borrow().had_faults {
                    self.report_violation(format!("mirror {index} could not be made: {error}"));
                }
            }
        }
    }

    /// Serves a started array, and runs its reconciler.
    async fn serve_mirror(&mut self, index: usize, array: Array, start: Start, habits: Option<AdminHabits>) {
        let id = self.new_device();
        let renewal = self.begin_lease(index, id);
        let options = ReconcilerOptions {
            device: id,
            block_bytes: BLOCK_BYTES as u32,
            home: ShardId(self.rng.below(u64::from(self.shards)) as u16),
            clean: start.clean,
            force: false,
            lease: renewal.as_ref().map(Renewal::lease),
            in_sectors: self.state.borrow().mirrors[index].in_sectors,
            nearest: None,
            clear_after_ns: {
                let drawn = *self.rng.pick(&[100_000, 1_000_000, 3_000_000, 10_000_000, 200_000_000]);
                let most = self.state.borrow().mirrors[index].clear_ns_max.unwrap_or(drawn);
                self.rng.between(most / 10, most)
            },
        };
        let home = options.home;
        if self.mirrors.values().any(|served| served.home == home) {
            self.count("several arrays at one home");
        }
        self.state.borrow_mut().mirrors[index].serves_as = Some(id);
        let holder = |slot: u16| {
            let leaf = array.members().find(|member| member.number == slot)?.leaf;
            self.leaves.iter().find(|(_, of)| **of == leaf).map(|(disk, _)| *disk)
        };
        let holders: Vec<Option<usize>> = (0..array.slots()).map(holder).collect();
        self.state.borrow_mut().mirrors[index].record_disks(&holders);
        let wrong = self.state.borrow_mut().mirrors[index].check_slots(array.slots());
        if let Some(why) = wrong {
            return self.report_violation(format!("mirror {index}: {why}"));
        }
        let blocks = array.geometry().size_bytes() / BLOCK_BYTES as u64;
        let healthy = self.state.borrow().mirrors[index].healthy.map(|disk| self.leaves[&disk]);
        if let Some(healthy) = healthy {
            let RunState { mirrors, oracle, .. } = &mut *self.state.borrow_mut();
            mirrors[index].record_size(array.geometry().size_bytes(), self.port.size_bytes(healthy), oracle);
        }
        let healthy = self.state.borrow().mirrors[index].healthy.map(|disk| self.leaves[&disk]);
        let serves = |healthy: LeafId| array.members().any(|m| m.leaf == healthy && m.state == MemberState::InSync);
        // With a mutation, only the data is to show it.
        if self.state.borrow().check_drained && healthy.is_some_and(|healthy| !serves(healthy)) {
            return self.report_violation(format!("mirror {index} serves without the healthy member"));
        }
        self.state.borrow_mut().mirrors[index].journal.lost_at_start = false;
        let over = renewal.as_ref().map(Renewal::over);
        let started = Reconciler::start(&self.port, array, options).await;
        if let (Err(_), Some(over)) = (&started, &over) {
            over.set(true);
        }
        let reconciler = match started {
            Ok(reconciler) => reconciler,
            Err(LifecycleError::JournalLost) => {
                self.state.borrow_mut().mirrors[index].serves_as = None;
                let refusal = JournalRefusal::new(index, &self.leaves, &start.present, start.stopped);
                return self.check_refusal(refusal).await;
            }
            Err(error) if healthy.is_none() && self.state.borrow().had_faults => {
                let mut state = self.state.borrow_mut();
                state.mirrors[index].serves_as = None;
                return state.notes.push(format!("mirror {index} is not served: {error}"));
            }
            Err(error) => return self.report_violation(format!("mirror {index} is not served: {error}")),
        };
        let number = {
            let mut state = self.state.borrow_mut();
            let known = state.mirrors[index].number;
            let name = format!("mirror {index}");
            let number = known.unwrap_or_else(|| state.oracle.redundant_made(&name, blocks));
            state.mirrors[index].number = Some(number);
            if let Some(renewal) = &renewal {
                state.oracle.answers_under(number, renewal.lease());
            }
            if state.mirrors[index].in_sectors {
                state.oracle.takes_sectors(number);
            }
            let larger = state.mirrors[index].growing && blocks > state.oracle.blocks(number);
            if larger {
                state.oracle.grown(number, blocks);
            }
            if blocks != state.oracle.blocks(number) || blocks < state.mirrors[index].blocks_min {
                drop(state);
                return self.report_violation(format!("mirror {index} has {blocks} blocks now"));
            }
            let with_parity = reconciler.array().geometry().spec().level.parity() > 0;
            if with_parity {
                let stripes = UnreadableStripes::of(&reconciler);
                let members = reconciler.array().members().filter(|member| member.state != MemberState::InSync);
                let missing = members.fold(MemberSet::NONE, |missing, member| missing.with(usize::from(member.number)));
                if !stripes.stripes.is_empty() {
                    state.notes.push(format!("mirror {index} has unreadable stripes"));
                    state.counters.add("failed", "stripes found unreadable");
                }
                // Where parity may disagree with the data, it cannot replace a member that cannot read its data.
                let journal_lost = state.mirrors[index].journal.lost_at_start;
                let excuse = Excuse { all: journal_lost && state.had_faults, journal_lost };
                if let Err(why) = state.oracle.stripes_unreadable(number, &stripes, missing, excuse) {
                    state.violation.get_or_insert(why);
                }
            }
            if healthy.is_none() {
                state.oracle.may_fail(number);
            }
            number
        };
        self.note_journal(index, reconciler.array());
        let regions = Arc::clone(reconciler.regions());
        let copies = self.locate_copies(reconciler.array());
        if copies.is_some() {
            self.state.borrow_mut().mirrors[index].places.clone_from(&copies);
        }
        self.compare(number, reconciler.array(), Arc::clone(&regions)).await;
        let ended = Rc::new(RefCell::new(None));
        let (result, port) = (Rc::clone(&ended), self.port.clone());
        self.state.borrow_mut().spawned.push(Box::pin(async move {
            let stopped = reconciler.run(&port).await;
            over.iter().for_each(|over| over.set(true));
            *result.borrow_mut() = Some(stopped);
        }));
        let missing = {
            let state = self.state.borrow();
            let mirror = &state.mirrors[index];
            mirror.disks.iter().chain(&mirror.others).copied().filter(|disk| Some(*disk) != mirror.healthy).collect()
        };
        self.mirrors.insert(index, ServedMirror { id, home, ended, missing, regions, copies });
        if self.steps.is_some() {
            return;
        }
        if has_unreadable_stripes(&self.state.borrow(), number) && self.rng.coin() {
            self.write_unreadable_stripes(number, id);
        }
        self.connect_to(number, id, habits);
        // Present disks that are not members return to the array, at once or later.
        if self.last || self.rng.coin() {
            self.return_members(index).await;
        }
        let paused = if self.last { self.state.borrow().jobs.paused(id) } else { Vec::new() };
        for job in paused {
            // The job may have ended meanwhile.
            let _ = self.port.give_order(id, Order::Resume(job)).await;
        }
    }

    /// Connects a client that writes all unreadable ranges as they are listed: each range on its own, in random order,
    /// at times in pieces.
    pub(super) fn write_unreadable_stripes(&mut self, number: u64, id: DeviceId) {
        let shard = self.rng.below(u64::from(self.shards)) as u16;
        let mut ranges = self.state.borrow().oracle.unreadable_ranges(number);
        if self.rng.coin() {
            let pieces = |(first, count): (u64, u64), rng: &mut Rng| {
                let cut = rng.below(count);
                [(first, cut), (first + cut, count - cut)].into_iter().filter(|(_, count)| *count > 0)
            };
            ranges = ranges.into_iter().flat_map(|range| pieces(range, &mut self.rng)).collect();
        }
        self.rng.shuffle(&mut ranges);
        let mut state = self.state.borrow_mut();
        state.counters.add("actions", "write unreadable stripes");
        state.workload.connect_overwriter(number, id, shard, &ranges);
    }

    /// Stops a served array, and records the stop in its labels.
    pub async fn stop_mirror(&mut self, index: usize) {
        let Some(served) = self.mirrors.remove(&index) else { return };
        self.phase("stopping a mirror");
        let number = self.state.borrow().mirrors[index].number.expect("a served array has a number");
        if self.rng.coin() {
            self.state.borrow_mut().workload.stop(number);
        }
        self.state.borrow_mut().workload.expect_stop(number);
        drop(self.port.give_order(served.id, Order::Stop).await);
        self.state.borrow_mut().workload.stop(number);
        self.port.forget(served.id);
        self.state.borrow_mut().jobs.forget(served.id);
        self.state.borrow_mut().lost.remove(&served.id);
        self.state.borrow_mut().mirrors[index].serves_as = None;
        let ended = self.ended(&served.ended).await;
        self.count("stop a mirror");
        let mut array = ended.array;
        if ended.is_clean {
            self.compare(number, &array, served.regions).await;
        }
        if ended.is_clean && self.rng.below(4) > 0 {
            match array.stop(&self.port).await {
                Ok(()) => {
                    self.count("note a stop");
                    self.state.borrow_mut().mirrors[index].journal.stopped = true;
                }
                Err(error) => self.state.borrow_mut().notes.push(format!("not noted as stopped: {error}")),
            }
        }
    }

    /// Returns the disk and data start of each copy, if all members of the array are in sync.
    fn locate_copies(&self, array: &Array) -> Option<(Geometry, Vec<(usize, u64)>)> {
        let disk_of = |leaf: LeafId| self.leaves.iter().find(|(_, l)| **l == leaf).map(|(disk, _)| *disk);
        let mut members = vec![None; usize::from(array.slots())];
        for member in array.members().filter(|m| m.state == MemberState::InSync) {
            let start = member.part.layout.data.start;
            // A successor does not hold a slot yet.
            if let Some(slot) = members.get_mut(usize::from(member.number)) {
                *slot = disk_of(member.leaf).map(|disk| (disk, start));
            }
        }
        let members: Option<Vec<(usize, u64)>> = members.into_iter().collect();
        Some((array.geometry().clone(), members?))
    }

    /// Compares the copies of all in-sync members: a read could have used any of them.
    async fn compare(&mut self, number: u64, array: &Array, regions: Arc<RegionMap>) {
        let disk_of = |leaf: LeafId| self.leaves.iter().find(|(_, l)| **l == leaf).map(|(disk, _)| *disk);
        let mut members = vec![None; usize::from(array.slots())];
        for member in array.members().filter(|m| m.state == MemberState::InSync) {
            let start = member.part.layout.data.start;
            // A successor does not hold a slot yet.
            if let Some(slot) = members.get_mut(usize::from(member.number)) {
                *slot = disk_of(member.leaf).map(|disk| (disk, start));
            }
        }
        let copies = Copies { number, geometry: array.geometry().clone(), members, regions };
        self.state.borrow_mut().compare.push(copies);
        self.until(|state| state.compare.is_empty()).await;
    }

    /// Checks in the last life that every array that exists serves, unless a disk that it needs is lost for good.
    pub fn check_all_mirrors_serve(&self) {
        let missing = {
            let state = self.state.borrow();
            state
                .mirrors
                .iter()
                .enumerate()
                .find(|(i, m)| m.exists && !m.journal.waits && !self.mirrors.contains_key(i))
                .map(|(i, _)| i)
        };
        if let Some(index) = missing {
            self.report_violation(format!("in a world without faults mirror {index} is not served"));
        }
    }
}

/// Returns whether an array has blocks that cannot be read until their stripes are written.
fn has_unreadable_stripes(state: &RunState, number: u64) -> bool {
    !state.oracle.unreadable_ranges(number).is_empty()
}

/// Returns whether `--force` would start the array.
fn reasons_can_be_forced(status: &ArrayStatus) -> bool {
    matches!(status, ArrayStatus::Refused { reasons } if reasons.iter().all(lifecycle::Refusal::can_be_forced))
}
