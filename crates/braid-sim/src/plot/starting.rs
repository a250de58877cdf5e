//! Redundant arrays come up, are made where there are none, and end.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::io::{DeviceId, LeafId, MetaIo, ShardId};
use braid_engine::keeper::{Order, Reconciler, ReconcilerOptions};
use braid_engine::lifecycle::{self, Array, ArrayStatus, LifecycleError, StartOptions};
use braid_engine::{RegionMap, Roles};
use braid_format::MemberState;
use braid_geometry::Geometry;

use super::journal::Refused;
use super::leases::Renewal;
use super::{Admin, Habits};
use crate::content::BLOCK_BYTES;
use crate::copies::Copies;
use crate::labelled;
use crate::oracle::Violation;
use crate::rng::Rng;
use crate::rows::{BrokenRows, Excuse};
use crate::stage::Stage;

/// Where a keeper leaves what it kept.
type Ended = Rc<RefCell<Option<braid_engine::keeper::StoppedArray>>>;

/// With what an array is started.
struct Start {
    /// The disks that there are.
    here: Vec<LeafId>,
    /// It is known that it was stopped in order.
    stopped: bool,
    /// Its labels say so.
    clean: bool,
}

/// One that serves.
pub struct Kept {
    /// The number under which it serves.
    pub id: DeviceId,
    /// The shard that keeps its regions and its journal.
    home: ShardId,
    /// What its keeper leaves when it ends.
    ended: Ended,
    /// Disks that are out, or were pulled, in this life.
    pub(super) away: Vec<usize>,
    /// Its regions.
    pub(super) regions: Arc<RegionMap>,
    /// Where its copies are, if all members were in sync when it was started.
    pub(super) copies: Option<(Geometry, Vec<(usize, u64)>)>,
}

impl Admin {
    /// Brings every redundant array up.
    pub async fn start_mirrors(&mut self, habits: Option<Habits>) {
        let count = self.stage.borrow().mirrors.len();
        for index in 0..count {
            self.start_mirror(index, habits).await;
        }
    }

    pub(super) async fn start_mirror(&mut self, index: usize, habits: Option<Habits>) {
        if self.kept.contains_key(&index) {
            return;
        }
        let (uuid, exists) = {
            let stage = self.stage.borrow();
            (stage.mirrors[index].uuid, stage.mirrors[index].exists)
        };
        let goes_apart = std::mem::take(&mut self.stage.borrow_mut().mirrors[index].go_apart);
        let wild = self.stage.borrow().mirrors[index].wild;
        if exists && (goes_apart || wild && self.rng.below(4) == 0) && !self.last {
            self.use_apart(index).await;
        }
        self.phase("starting a mirror");
        let elsewhere = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            // They run in another machine.
            if mirror.parted { BTreeSet::new() } else { mirror.apart.clone() }
        };
        let mut leaves: Vec<LeafId> =
            self.leaves.iter().filter(|(disk, _)| !elsewhere.contains(disk)).map(|(_, leaf)| *leaf).collect();
        self.rng.shuffle(&mut leaves);
        let scan = lifecycle::scan(&self.port, &leaves).await;
        let found = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid);
        let careful = self.stage.borrow().mirrors[index].well.is_some();
        let Some(found) = found.filter(|found| exists || found.status.starts_by_itself()) else {
            if exists && (careful || self.last) {
                return self.odd(format!("mirror {index} is not found"));
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
            let (apart, old) = {
                let stage = self.stage.borrow();
                let mirror = &stage.mirrors[index];
                (mirror.apart.clone(), mirror.old.clone())
            };
            self.count("start refused");
            if !apart.is_empty() {
                // Without those that were used apart it may start.
                let leaves: Vec<LeafId> =
                    self.leaves.iter().filter(|(disk, _)| !apart.contains(disk)).map(|(_, leaf)| *leaf).collect();
                let scan = lifecycle::scan(&self.port, &leaves).await;
                let again = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid);
                let Some(again) = again else { return self.odd(format!("mirror {index} is not found")) };
                if again.waits_for_journal() {
                    return self.wait_for_journal(index, &leaves).await;
                }
                found = again;
            }
            if matches!(found.status, ArrayStatus::Refused { .. }) && !old.is_empty() {
                force = reasons_can_be_forced(&found.status);
            } else if apart.is_empty() && old.is_empty() {
                let why = format!("mirror {index} is refused without a reason: {reasons:?}");
                return self.odd(why);
            }
        }
        if !careful && !found.status.starts_by_itself() {
            if self.last {
                return self.odd(format!("mirror {index} does not start ({})", found.status));
            }
            return self.count("a mirror waits");
        }
        let clean = found.newest.as_ref().is_some_and(|newest| newest.clean);
        let options = StartOptions { degraded: careful, force, ..StartOptions::new(self.rng.bits(), self.rng.bits()) };
        let start = Start { here: leaves, stopped: self.stage.borrow_mut().mirrors[index].journal.takes_up(), clean };
        match lifecycle::start(&self.port, &found, options).await {
            Ok(array) => {
                {
                    let mut stage = self.stage.borrow_mut();
                    let mirror = &mut stage.mirrors[index];
                    mirror.exists = true;
                    mirror.journal.waits = false;
                    mirror.parted = !mirror.apart.is_empty();
                }
                self.count("start a mirror");
                self.keep(index, array, start, habits).await;
            }
            Err(error) if !careful && self.stage.borrow().had_faults => {
                self.stage.borrow_mut().notes.push(format!("mirror {index} does not start: {error}"));
            }
            Err(error) => self.odd(format!("mirror {index} does not start ({}): {error}", found.status)),
        }
    }

    /// What a keeper leaves.
    pub(super) async fn ended(&self, ended: &Ended) -> braid_engine::keeper::StoppedArray {
        std::future::poll_fn(|_| match ended.borrow_mut().take() {
            Some(ended) => std::task::Poll::Ready(ended),
            None => std::task::Poll::Pending,
        })
        .await
    }

    pub(super) fn odd(&self, why: String) {
        self.stage.borrow_mut().violation.get_or_insert(Violation(why));
    }

    /// Makes an array that is not there, on its disks, whatever an interrupted try has left.
    async fn make_mirror(&mut self, index: usize, habits: Option<Habits>) {
        let (disks, spec) = {
            let stage = self.stage.borrow();
            (stage.mirrors[index].disks.clone(), stage.mirrors[index].spec)
        };
        let leaves: Option<Vec<LeafId>> = disks.iter().map(|disk| self.leaves.get(disk).copied()).collect();
        let Some(leaves) = leaves else { return };
        self.phase("creating a mirror");
        let serial = {
            let mut stage = self.stage.borrow_mut();
            stage.serial += 1;
            stage.serial
        };
        let mut request = labelled::request(serial, spec, leaves, true, &mut self.rng);
        if !self.journal_for_new(index, &mut request).await {
            return;
        }
        self.stage.borrow_mut().mirrors[index].uuid = Some(request.uuid);
        match lifecycle::create(&self.port, &request).await {
            Ok(array) => {
                self.count("create a mirror");
                if request.journal.is_some() {
                    self.count("create a mirror with a journal disk");
                }
                self.stage.borrow_mut().mirrors[index].exists = true;
                let start = Start { here: self.leaves.values().copied().collect(), stopped: true, clean: true };
                self.keep(index, array, start, habits).await;
            }
            Err(error) => {
                self.stage.borrow_mut().notes.push(format!("mirror {index} could not be made: {error}"));
                if !self.stage.borrow().had_faults {
                    self.odd(format!("mirror {index} could not be made: {error}"));
                }
            }
        }
    }

    /// Serves a started array, and lets its keeper keep it.
    async fn keep(&mut self, index: usize, array: Array, start: Start, habits: Option<Habits>) {
        let id = self.new_device();
        let renewal = self.begin_lease(index, id);
        let options = ReconcilerOptions {
            device: id,
            block_bytes: BLOCK_BYTES as u32,
            home: ShardId(self.rng.below(u64::from(self.shards)) as u16),
            clean: start.clean,
            force: false,
            lease: renewal.as_ref().map(Renewal::lease),
            in_sectors: self.stage.borrow().mirrors[index].in_sectors,
            nearest: None,
            clear_after_ns: {
                let drawn = *self.rng.pick(&[100_000, 1_000_000, 3_000_000, 10_000_000, 200_000_000]);
                let most = self.stage.borrow().mirrors[index].clear_ns_max.unwrap_or(drawn);
                self.rng.between(most / 10, most)
            },
        };
        let home = options.home;
        if self.kept.values().any(|kept| kept.home == home) {
            self.count("several arrays at one home");
        }
        self.stage.borrow_mut().mirrors[index].serves_as = Some(id);
        let holder = |role: u16| {
            let leaf = array.members().find(|member| member.number == role)?.leaf;
            self.leaves.iter().find(|(_, of)| **of == leaf).map(|(disk, _)| *disk)
        };
        let holders: Vec<Option<usize>> = (0..array.slots()).map(holder).collect();
        self.stage.borrow_mut().mirrors[index].has_taken_up(&holders);
        let wrong = self.stage.borrow_mut().mirrors[index].has_roles(array.slots());
        if let Some(why) = wrong {
            return self.odd(format!("mirror {index}: {why}"));
        }
        let blocks = array.geometry().size_bytes() / BLOCK_BYTES as u64;
        let well = self.stage.borrow().mirrors[index].well.map(|disk| self.leaves[&disk]);
        if let Some(well) = well {
            let Stage { mirrors, oracle, .. } = &mut *self.stage.borrow_mut();
            mirrors[index].has_grown(array.geometry().size_bytes(), self.port.size_bytes(well), oracle);
        }
        let well = self.stage.borrow().mirrors[index].well.map(|disk| self.leaves[&disk]);
        let serves = |well: LeafId| array.members().any(|m| m.leaf == well && m.state == MemberState::InSync);
        // Where a bug is planted, the data are to show it.
        if self.stage.borrow().check_drained && well.is_some_and(|well| !serves(well)) {
            return self.odd(format!("mirror {index} serves without the member that is well"));
        }
        self.stage.borrow_mut().mirrors[index].journal.done_without = false;
        let over = renewal.as_ref().map(Renewal::over);
        let started = Reconciler::start(&self.port, array, options).await;
        if let (Err(_), Some(over)) = (&started, &over) {
            over.set(true);
        }
        let keeper = match started {
            Ok(keeper) => keeper,
            Err(LifecycleError::JournalLost) => {
                self.stage.borrow_mut().mirrors[index].serves_as = None;
                let refused = Refused::new(index, &self.leaves, &start.here, start.stopped);
                return self.judge_refused(refused).await;
            }
            Err(error) if well.is_none() && self.stage.borrow().had_faults => {
                let mut stage = self.stage.borrow_mut();
                stage.mirrors[index].serves_as = None;
                return stage.notes.push(format!("mirror {index} is not served: {error}"));
            }
            Err(error) => return self.odd(format!("mirror {index} is not served: {error}")),
        };
        let number = {
            let mut stage = self.stage.borrow_mut();
            let known = stage.mirrors[index].number;
            let name = format!("mirror {index}");
            let number = known.unwrap_or_else(|| stage.oracle.redundant_made(&name, blocks));
            stage.mirrors[index].number = Some(number);
            if let Some(renewal) = &renewal {
                stage.oracle.answers_under(number, renewal.lease());
            }
            if stage.mirrors[index].in_sectors {
                stage.oracle.takes_sectors(number);
            }
            let larger = stage.mirrors[index].growing && blocks > stage.oracle.blocks(number);
            if larger {
                stage.oracle.grown(number, blocks);
            }
            if blocks != stage.oracle.blocks(number) || blocks < stage.mirrors[index].owed {
                drop(stage);
                return self.odd(format!("mirror {index} has {blocks} blocks now"));
            }
            let with_parity = keeper.array().geometry().spec().level.parity() > 0;
            if with_parity {
                let rows = BrokenRows::of(&keeper);
                let members = keeper.array().members().filter(|member| member.state != MemberState::InSync);
                let missing = members.fold(Roles::NONE, |missing, member| missing.with(usize::from(member.number)));
                if !rows.rows.is_empty() {
                    stage.notes.push(format!("mirror {index} has unreadable rows"));
                    stage.counters.add("failed", "rows found unreadable");
                }
                // Parity that may not fit is no help where a member cannot read its data.
                let journal_lost = stage.mirrors[index].journal.done_without;
                let excuse = Excuse { all: journal_lost && stage.had_faults, journal_lost };
                if let Err(why) = stage.oracle.rows_broken(number, &rows, missing, excuse) {
                    stage.violation.get_or_insert(why);
                }
            }
            if well.is_none() {
                stage.oracle.may_fail(number);
            }
            number
        };
        self.note_journal(index, keeper.array());
        let regions = Arc::clone(keeper.regions());
        let copies = self.whole(keeper.array());
        if copies.is_some() {
            self.stage.borrow_mut().mirrors[index].places.clone_from(&copies);
        }
        self.compare(number, keeper.array(), Arc::clone(&regions)).await;
        let ended = Rc::new(RefCell::new(None));
        let (result, port) = (Rc::clone(&ended), self.port.clone());
        self.stage.borrow_mut().spawned.push(Box::pin(async move {
            let kept = keeper.run(&port).await;
            over.iter().for_each(|over| over.set(true));
            *result.borrow_mut() = Some(kept);
        }));
        let away = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            mirror.disks.iter().chain(&mirror.others).copied().filter(|disk| Some(*disk) != mirror.well).collect()
        };
        self.kept.insert(index, Kept { id, home, ended, away, regions, copies });
        if self.steps.is_some() {
            return;
        }
        if with_rows(&self.stage.borrow(), number) && self.rng.coin() {
            self.write_broken_rows(number, id);
        }
        self.connect_to(number, id, habits);
        // What is here and out comes back, now or later.
        if self.last || self.rng.coin() {
            self.return_members(index).await;
        }
        let paused = if self.last { self.stage.borrow().jobs.paused(id) } else { Vec::new() };
        for job in paused {
            // It may have ended meanwhile.
            let _ = self.port.give_order(id, Order::Resume(job)).await;
        }
    }

    /// Somebody writes all of what cannot be read, as it is named to him: each range by itself, in any order, now and then in pieces.
    pub(super) fn write_broken_rows(&mut self, number: u64, id: DeviceId) {
        let shard = self.rng.below(u64::from(self.shards)) as u16;
        let mut ranges = self.stage.borrow().oracle.broken_ranges(number);
        if self.rng.coin() {
            let pieces = |(first, count): (u64, u64), rng: &mut Rng| {
                let cut = rng.below(count);
                [(first, cut), (first + cut, count - cut)].into_iter().filter(|(_, count)| *count > 0)
            };
            ranges = ranges.into_iter().flat_map(|range| pieces(range, &mut self.rng)).collect();
        }
        self.rng.shuffle(&mut ranges);
        let mut stage = self.stage.borrow_mut();
        stage.counters.add("actions", "write unreadable rows");
        stage.workload.connect_overwriter(number, id, shard, &ranges);
    }

    /// Ends the service of an array, and notes in its labels that it was stopped.
    pub async fn stop_mirror(&mut self, index: usize) {
        let Some(kept) = self.kept.remove(&index) else { return };
        self.phase("stopping a mirror");
        let number = self.stage.borrow().mirrors[index].number.expect("a served array has a number");
        if self.rng.coin() {
            self.stage.borrow_mut().workload.stop(number);
        }
        self.stage.borrow_mut().workload.expect_stop(number);
        drop(self.port.give_order(kept.id, Order::Stop).await);
        self.stage.borrow_mut().workload.stop(number);
        self.port.forget(kept.id);
        self.stage.borrow_mut().jobs.forget(kept.id);
        self.stage.borrow_mut().lost.remove(&kept.id);
        self.stage.borrow_mut().mirrors[index].serves_as = None;
        let ended = self.ended(&kept.ended).await;
        self.count("stop a mirror");
        let mut array = ended.array;
        if ended.is_clean {
            self.compare(number, &array, kept.regions).await;
        }
        if ended.is_clean && self.rng.below(4) > 0 {
            match array.stop(&self.port).await {
                Ok(()) => {
                    self.count("note a stop");
                    self.stage.borrow_mut().mirrors[index].journal.stopped = true;
                }
                Err(error) => self.stage.borrow_mut().notes.push(format!("not noted as stopped: {error}")),
            }
        }
    }

    /// Where the copies of an array are whose members are all in sync: the disk of each and where its data begin.
    fn whole(&self, array: &Array) -> Option<(Geometry, Vec<(usize, u64)>)> {
        let disk_of = |leaf: LeafId| self.leaves.iter().find(|(_, l)| **l == leaf).map(|(disk, _)| *disk);
        let mut members = vec![None; usize::from(array.slots())];
        for member in array.members().filter(|m| m.state == MemberState::InSync) {
            let start = member.part.layout.data.start;
            // A successor is no role's holder yet.
            if let Some(seat) = members.get_mut(usize::from(member.number)) {
                *seat = disk_of(member.leaf).map(|disk| (disk, start));
            }
        }
        let members: Option<Vec<(usize, u64)>> = members.into_iter().collect();
        Some((array.geometry().clone(), members?))
    }

    /// Whichever member is in sync could have answered: all of them are judged.
    async fn compare(&mut self, number: u64, array: &Array, regions: Arc<RegionMap>) {
        let disk_of = |leaf: LeafId| self.leaves.iter().find(|(_, l)| **l == leaf).map(|(disk, _)| *disk);
        let mut members = vec![None; usize::from(array.slots())];
        for member in array.members().filter(|m| m.state == MemberState::InSync) {
            let start = member.part.layout.data.start;
            // A successor is no role's holder yet.
            if let Some(seat) = members.get_mut(usize::from(member.number)) {
                *seat = disk_of(member.leaf).map(|disk| (disk, start));
            }
        }
        let copies = Copies { number, geometry: array.geometry().clone(), members, regions };
        self.stage.borrow_mut().compare.push(copies);
        self.until(|stage| stage.compare.is_empty()).await;
    }

    /// In the last life every array that exists must serve, unless what it needs is gone for good.
    pub fn judge_mirrors(&self) {
        let missing = {
            let stage = self.stage.borrow();
            stage
                .mirrors
                .iter()
                .enumerate()
                .find(|(i, m)| m.exists && !m.journal.waits && !self.kept.contains_key(i))
                .map(|(i, _)| i)
        };
        if let Some(index) = missing {
            self.odd(format!("in a world without faults mirror {index} is not served"));
        }
    }
}

/// Whether something of an array cannot be read until whole rows are written.
fn with_rows(stage: &Stage, number: u64) -> bool {
    !stage.oracle.broken_ranges(number).is_empty()
}

/// Whether `--force` would help.
fn reasons_can_be_forced(status: &ArrayStatus) -> bool {
    matches!(status, ArrayStatus::Refused { reasons } if reasons.iter().all(lifecycle::Refusal::can_be_forced))
}
