//! The administrator's dealings with redundant arrays: members that fail and return, in every life and between them.
//!
//! One member of each array is *well*: it makes no errors, is never pulled and never failed by hand. So nothing is ever lost,
//! the array always starts, and no request fails.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use braid_engine::RegionMap;
use braid_engine::io::{DeviceId, LeafId, MetaIo, ShardId};
use braid_engine::keeper::{EngineIo, Keeper, KeeperOptions, Note, Order};
use braid_engine::lifecycle::{self, Array, Filling, LifecycleError, Newcomer, StartOptions, Status};
use braid_format::{MemberId, MemberState, Places, Uuid};
use braid_geometry::{Geometry, Level, Spec};

use super::drills::Between;
use super::{Admin, Habits};
use crate::content::BLOCK_BYTES;
use crate::copies::{self, Copies};
use crate::disk::Image;
use crate::labelled;
use crate::oracle::{Oracle, Violation};
use crate::rng::Rng;
use crate::sim::Stage;
use crate::world::World;

/// A redundant array, as its administrator knows it over all lives.
pub struct Mirror {
    /// Its identity, once somebody tried to make it.
    pub uuid: Option<Uuid>,
    /// Level, chunk and copies.
    pub spec: Spec,
    /// Its disks.
    pub disks: Vec<usize>,
    /// Disks that it may have as spares or in place of others.
    pub others: Vec<usize>,
    /// The disk that is always well, one of `disks`; `None`: all may fail, and more than the array tolerates.
    pub well: Option<usize>,
    /// Those of `disks` that may be pulled or failed.
    pub victims: Vec<usize>,
    /// A growth was begun and not answered: it may be larger.
    pub growing: bool,
    /// Blocks that it has at least: a growth was acknowledged.
    pub owed: u64,
    /// The oracle's number, from the first time that it was served.
    pub number: Option<u64>,
    /// Its creation was acknowledged.
    pub exists: bool,
    /// Chances in a million that a disk that may be pulled is not there when a life begins.
    pub unplug: u32,
    /// It may be used in two machines, and its disks be replaced by old copies.
    pub wild: bool,
    /// Disks that were used apart from the one that is well, and not made new members since.
    pub apart: BTreeSet<usize>,
    /// The others have gone on without these since.
    pub parted: bool,
    /// Disks that are old copies of themselves, and not made new members since.
    pub old: BTreeSet<usize>,
    /// A copy of a disk, with the sequence number of the label on it.
    pub image: Option<(usize, u64, Image)>,
    /// Longest time for which its bits are kept, where that is not to be drawn for each life.
    pub clear_ns_max: Option<u64>,
    /// Where its copies are, by role, as it was last seen whole.
    pub places: Option<(Geometry, Vec<(usize, u64)>)>,
    /// The next start uses its halves apart.
    pub go_apart: bool,
    /// Disks that are not here before the last life.
    pub missing: BTreeSet<usize>,
    /// What happens after each life.
    pub script: VecDeque<Vec<Between>>,
}

impl Mirror {
    /// One that has no disks yet.
    pub fn new(spec: Spec) -> Mirror {
        Mirror {
            uuid: None,
            spec,
            disks: Vec::new(),
            others: Vec::new(),
            well: None,
            victims: Vec::new(),
            growing: false,
            owed: 0,
            number: None,
            exists: false,
            unplug: 0,
            wild: false,
            apart: BTreeSet::new(),
            parted: false,
            old: BTreeSet::new(),
            image: None,
            clear_ns_max: None,
            places: None,
            go_apart: false,
            missing: BTreeSet::new(),
            script: VecDeque::new(),
        }
    }

    /// The array has so many bytes. Where that is more than the one that is well holds, some of it is on others alone, by
    /// zones that grew: then nobody is well any more.
    pub fn has_grown(&mut self, array_bytes: u64, well_bytes: u64, oracle: &mut Oracle) {
        let holds = Places::for_device(well_bytes).map_or(0, |places| places.data.bytes);
        if self.spec.level == Level::Raid1 && array_bytes > holds {
            self.well = None;
            if let Some(number) = self.number {
                oracle.may_fail(number);
            }
        }
    }

    /// Between two lives somebody copies a disk, or puts an older copy in the place of one.
    pub fn copy_or_restore(&mut self, world: &mut World, rng: &mut Rng) {
        if self.wild && rng.below(4) == 0 {
            self.copy_or_restore_now(world, rng);
        }
    }

    /// The same, certainly.
    pub fn copy_or_restore_now(&mut self, world: &mut World, rng: &mut Rng) {
        let Some(well) = self.well.filter(|_| self.exists) else { return };
        match self.image.take() {
            None => {
                let disk = *rng.pick(&self.victims);
                let Some(label) = copies::label_on(world, disk) else { return };
                if Some(label.array.uuid) == self.uuid {
                    self.image = Some((disk, label.array.sequence, world.disks[disk].image(rng)));
                }
            }
            Some((disk, sequence, image)) => {
                // What a crash may leave nobody can tell from the member itself.
                let newest = copies::label_on(world, well).filter(|label| label.array.sequence > sequence);
                let own = copies::label_on(world, disk).map(|label| label.member.id);
                let holds = |state| matches!(state, MemberState::InSync | MemberState::Out);
                let called = |m: &braid_format::MemberEntry| m.id == own && holds(m.state);
                if own.is_some() && newest.is_some_and(|label| label.array.members.iter().any(called)) {
                    world.counters.add("fault", "old copy");
                    world.note(format_args!("disk {disk} is replaced by an older copy of it"));
                    world.disks[disk].restore(image, rng);
                    self.old.insert(disk);
                }
            }
        }
    }
}

/// Where a keeper leaves what it kept.
type Ended = Rc<RefCell<Option<braid_engine::keeper::Kept>>>;

/// One that serves.
pub struct Kept {
    /// The number under which it serves.
    pub id: DeviceId,
    /// What its keeper leaves when it ends.
    ended: Ended,
    /// Disks that are out, or were pulled, in this life.
    away: Vec<usize>,
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

    async fn start_mirror(&mut self, index: usize, habits: Option<Habits>) {
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
        if let Status::Refused { reasons } = found.status.clone() {
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
                found = again;
            }
            if matches!(found.status, Status::Refused { .. }) && !old.is_empty() {
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
        match lifecycle::start(&self.port, &found, options).await {
            Ok(array) => {
                {
                    let mut stage = self.stage.borrow_mut();
                    let mirror = &mut stage.mirrors[index];
                    mirror.exists = true;
                    mirror.parted = !mirror.apart.is_empty();
                }
                self.count("start a mirror");
                self.keep(index, array, clean, habits).await;
            }
            Err(error) if !careful && self.stage.borrow().had_faults => {
                self.stage.borrow_mut().notes.push(format!("mirror {index} does not start: {error}"));
            }
            Err(error) => self.odd(format!("mirror {index} does not start ({}): {error}", found.status)),
        }
    }

    /// Members that are not always well are started without the one that is, and written to: as when both halves of a
    /// mirror run in different machines.
    async fn use_apart(&mut self, index: usize) {
        let (uuid, disks) = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            if mirror.well.is_none() || mirror.number.is_none() || !mirror.apart.is_empty() || !mirror.old.is_empty() {
                return;
            }
            (mirror.uuid, mirror.victims.clone())
        };
        let leaves: Vec<LeafId> = disks.iter().filter_map(|disk| self.leaves.get(disk).copied()).collect();
        self.phase("starting half a mirror");
        let scan = lifecycle::scan(&self.port, &leaves).await;
        let Some(found) = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid) else { return };
        let in_sync = |role: u16| {
            let own = found.members.get(usize::from(role)).and_then(|m| m.disk.as_ref());
            own.is_some_and(|disk| {
                let id = disk.label.member.id;
                disk.label.array.members.iter().any(|m| m.id == Some(id) && m.state == MemberState::InSync)
            })
        };
        let options = StartOptions { degraded: true, ..StartOptions::new(self.rng.bits(), self.rng.bits()) };
        // From here on they may be of another line, whatever comes of it.
        self.stage.borrow_mut().mirrors[index].apart = disks.iter().copied().collect();
        self.stage.borrow_mut().mirrors[index].parted = false;
        let Ok(array) = lifecycle::start(&self.port, &found, options).await else {
            self.count("half a mirror does not start");
            return;
        };
        self.count("start half a mirror");
        let geometry = array.geometry().clone();
        for at in (0..geometry.size_bytes()).step_by(BLOCK_BYTES) {
            let mut whole = false;
            geometry.copies(at, &mut |piece| whole |= in_sync(piece.member));
            if !whole {
                let why = format!("half of mirror {index} starts, and nobody there says that it is in sync");
                return self.odd(why);
            }
        }
        let id = self.new_device();
        self.stage.borrow_mut().half = Some(id);
        let options = KeeperOptions {
            device: id,
            block_bytes: BLOCK_BYTES as u32,
            home: ShardId(0),
            clean: found.newest.as_ref().is_some_and(|newest| newest.clean),
            force: false,
            clear_after_ns: self.rng.between(100_000, 10_000_000),
        };
        let Ok(keeper) = Keeper::start(&self.port, array, options).await else { return };
        let blocks = geometry.size_bytes() / BLOCK_BYTES as u64;
        let number = {
            let mut stage = self.stage.borrow_mut();
            let number = stage.oracle.redundant_made("half a mirror", blocks);
            stage.oracle.may_fail(number);
            let requests = self.rng.between(1, 20) as u32;
            stage.workload.connect_writer(number, id, 0, blocks, requests);
            number
        };
        let ended = Rc::new(RefCell::new(None));
        let (result, port) = (Rc::clone(&ended), self.port.clone());
        self.stage.borrow_mut().spawned.push(Box::pin(async move {
            let kept = keeper.run(&port).await;
            *result.borrow_mut() = Some(kept);
        }));
        self.until(|stage| stage.workload.is_finished(number)).await;
        self.stage.borrow_mut().workload.expect_stop(number);
        drop(self.port.give_order(id, Order::Stop).await);
        self.port.forget(id);
        self.stage.borrow_mut().jobs.forget(id);
        let mut array = self.ended(&ended).await.array;
        if self.rng.coin() {
            drop(array.stop(&self.port).await);
        }
        self.stage.borrow_mut().half = None;
        self.count("stop half a mirror");
    }

    /// What a keeper leaves.
    async fn ended(&self, ended: &Ended) -> braid_engine::keeper::Kept {
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
        let request = labelled::request(serial, spec, leaves, true, &mut self.rng);
        self.stage.borrow_mut().mirrors[index].uuid = Some(request.uuid);
        match lifecycle::create(&self.port, &request).await {
            Ok(array) => {
                self.count("create a mirror");
                self.stage.borrow_mut().mirrors[index].exists = true;
                self.keep(index, array, true, habits).await;
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
    async fn keep(&mut self, index: usize, array: Array, clean: bool, habits: Option<Habits>) {
        let id = self.new_device();
        let options = KeeperOptions {
            device: id,
            block_bytes: BLOCK_BYTES as u32,
            home: ShardId(self.rng.below(u64::from(self.shards)) as u16),
            clean,
            force: false,
            clear_after_ns: {
                let drawn = *self.rng.pick(&[100_000, 1_000_000, 3_000_000, 10_000_000, 200_000_000]);
                let most = self.stage.borrow().mirrors[index].clear_ns_max.unwrap_or(drawn);
                self.rng.between(most / 10, most)
            },
        };
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
        let keeper = match Keeper::start(&self.port, array, options).await {
            Ok(keeper) => keeper,
            Err(error) if well.is_none() && self.stage.borrow().had_faults => {
                return self.stage.borrow_mut().notes.push(format!("mirror {index} is not served: {error}"));
            }
            Err(error) => return self.odd(format!("mirror {index} is not served: {error}")),
        };
        let number = {
            let mut stage = self.stage.borrow_mut();
            let known = stage.mirrors[index].number;
            let name = format!("mirror {index}");
            let number = known.unwrap_or_else(|| stage.oracle.redundant_made(&name, blocks));
            stage.mirrors[index].number = Some(number);
            let larger = stage.mirrors[index].growing && blocks > stage.oracle.blocks(number);
            if larger {
                stage.oracle.grown(number, blocks);
            }
            if blocks != stage.oracle.blocks(number) || blocks < stage.mirrors[index].owed {
                drop(stage);
                return self.odd(format!("mirror {index} has {blocks} blocks now"));
            }
            if well.is_none() {
                stage.oracle.may_fail(number);
            }
            number
        };
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
            *result.borrow_mut() = Some(kept);
        }));
        let away = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            mirror.disks.iter().chain(&mirror.others).copied().filter(|disk| Some(*disk) != mirror.well).collect()
        };
        self.kept.insert(index, Kept { id, ended, away, regions, copies });
        if self.steps.is_some() {
            return;
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
        let ended = self.ended(&kept.ended).await;
        self.count("stop a mirror");
        let mut array = ended.array;
        if ended.equal {
            self.compare(number, &array, kept.regions).await;
        }
        if ended.equal && self.rng.below(4) > 0 {
            match array.stop(&self.port).await {
                Ok(()) => self.count("note a stop"),
                Err(error) => self.stage.borrow_mut().notes.push(format!("not noted as stopped: {error}")),
            }
        }
    }

    /// Where the copies of an array are whose members are all in sync: the disk of each and where its data begin.
    fn whole(&self, array: &Array) -> Option<(Geometry, Vec<(usize, u64)>)> {
        let disk_of = |leaf: LeafId| self.leaves.iter().find(|(_, l)| **l == leaf).map(|(disk, _)| *disk);
        let mut members = vec![None; usize::from(array.roles())];
        for member in array.members().filter(|m| m.state == MemberState::InSync) {
            let start = member.part.places.data.start;
            // A successor is no role's holder yet.
            if let Some(seat) = members.get_mut(usize::from(member.role)) {
                *seat = disk_of(member.leaf).map(|disk| (disk, start));
            }
        }
        let members: Option<Vec<(usize, u64)>> = members.into_iter().collect();
        Some((array.geometry().clone(), members?))
    }

    /// Whichever member is in sync could have answered: all of them are judged.
    async fn compare(&mut self, number: u64, array: &Array, regions: Arc<RegionMap>) {
        let disk_of = |leaf: LeafId| self.leaves.iter().find(|(_, l)| **l == leaf).map(|(disk, _)| *disk);
        let mut members = vec![None; usize::from(array.roles())];
        for member in array.members().filter(|m| m.state == MemberState::InSync) {
            let start = member.part.places.data.start;
            // A successor is no role's holder yet.
            if let Some(seat) = members.get_mut(usize::from(member.role)) {
                *seat = disk_of(member.leaf).map(|disk| (disk, start));
            }
        }
        let copies = Copies { number, geometry: array.geometry().clone(), members, regions };
        self.stage.borrow_mut().compare.push(copies);
        self.until(|stage| stage.compare.is_empty()).await;
    }

    /// One thing that an administrator, or a fault, does to a redundant array.
    pub async fn act_on_mirrors(&mut self, habits: Habits) {
        let serving: Vec<usize> = self.kept.keys().copied().collect();
        if serving.is_empty() {
            return self.start_mirrors(Some(habits)).await;
        }
        let index = *self.rng.pick(&serving);
        let id = self.kept[&index].id;
        let (victims, others) = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            (mirror.victims.clone(), mirror.others.clone())
        };
        let any = self.rng.below(20);
        let like = match habits.aim {
            Some("pulling a member") => 0,
            Some("returning a member") => 3,
            Some("failing a member") => 6,
            Some("adding a spare") => 8,
            Some("filling a new member") => 9,
            Some("replacing a member") => 16,
            Some("starting a mirror" | "stopping a mirror") => 12,
            Some("checking a mirror") => 13,
            _ => any,
        };
        match if self.rng.coin() { like } else { any } {
            0..=2 => {
                let disk = *self.rng.pick(&victims);
                self.phase("pulling a member");
                self.count("pull a member");
                self.stage.borrow_mut().pull.push(disk);
                if self.stage.borrow().mirrors[index].well.is_none() && self.rng.below(3) == 0 {
                    // Their bus has failed.
                    self.count("pull all members");
                    let all = self.stage.borrow().mirrors[index].disks.clone();
                    self.stage.borrow_mut().pull.extend(all.into_iter().filter(|other| *other != disk));
                }
                self.port.sleep(self.rng.below(2_000_000)).await;
            }
            3..=5 => self.return_members(index).await,
            6 | 7 => {
                let disk = *self.rng.pick(&victims);
                let role = self.stage.borrow().mirrors[index].disks.iter().position(|d| *d == disk);
                let Some(role) = role else { return };
                self.phase("failing a member");
                match self.port.give_order(id, Order::Fail(vec![role as u16])).await {
                    Ok(()) => self.count("fail a member"),
                    Err(error) => self.expect_refusal(&error),
                }
            }
            8 if !others.is_empty() => {
                let disk = *self.rng.pick(&others);
                let leaf = self.leaves.get(&disk).copied();
                let Some(leaf) = leaf else { return };
                self.phase("adding a spare");
                let order = Order::AddSpare { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
                match self.port.give_order(id, order).await {
                    Ok(()) => self.count("add a spare"),
                    Err(error) => self.expect_refusal(&error),
                }
            }
            9 if !others.is_empty() => {
                let disk = *self.rng.pick(&others);
                let Some(leaf) = self.leaves.get(&disk).copied() else { return };
                let roles = self.stage.borrow().mirrors[index].disks.len() as u64;
                let role = self.rng.below(roles) as u16;
                self.phase("filling a new member");
                let newcomer = Newcomer::New { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
                match self.port.give_order(id, Order::Fill { role, newcomer, from: Filling::Full }).await {
                    Ok(()) => self.count("fill a new member"),
                    Err(error) => self.expect_refusal(&error),
                }
            }
            10 | 11 => self.order_jobs(id).await,
            12 => {
                self.stop_mirror(index).await;
                self.start_mirror(index, Some(habits)).await;
            }
            16..=19 if !others.is_empty() => self.replace_member(index, id, &others).await,
            13 | 14 => {
                self.check_mirror(index).await;
                let number = self.stage.borrow().mirrors[index].number.expect("a served array has a number");
                self.connect_to(number, id, Some(habits));
            }
            _ => {
                let number = self.stage.borrow().mirrors[index].number.expect("a served array has a number");
                self.connect_to(number, id, Some(habits));
            }
        }
    }

    /// Lets one of the array's jobs wait, go on, be slower or end; or one that there is not.
    async fn order_jobs(&mut self, id: DeviceId) {
        self.phase("ordering a job");
        let jobs = self.stage.borrow().jobs.of(id);
        let job = if jobs.is_empty() { self.rng.below(3) } else { self.rng.pick(&jobs).number };
        let (kind, order) = match self.rng.below(6) {
            0 => ("pause", Order::Pause(job)),
            1 | 2 => ("resume", Order::Resume(job)),
            3 => ("cancel", Order::Cancel(job)),
            _ => {
                let rate_bytes_per_s = if self.rng.coin() { 0 } else { self.rng.between(1 << 16, 64 << 20) };
                ("limit", Order::Limit { job, rate_bytes_per_s })
            }
        };
        match self.port.give_order(id, order).await {
            Ok(()) => self.count(&format!("{kind} a job")),
            Err(error) => self.expect_refusal(&error),
        }
    }

    /// An order may be refused; that it makes the array fail must not be.
    pub(super) fn expect_refusal(&self, error: &LifecycleError) {
        self.stage.borrow_mut().notes.push(format!("refused: {error}"));
        self.count("order refused");
    }

    /// Lets every disk return that is here, or was pulled, and is out.
    async fn return_members(&mut self, index: usize) {
        let Some(kept) = self.kept.get(&index) else { return };
        let (id, away) = (kept.id, kept.away.clone());
        self.phase("returning a member");
        for disk in away {
            let Some(leaf) = self.leaves.get(&disk).copied() else { continue };
            if let Err(error) = self.port.give_order(id, Order::Return(leaf)).await {
                self.expect_refusal(&error);
                if self.rng.coin() {
                    continue;
                }
                // A disk is opened anew only when it is no member: one that serves is the open file that it is.
                let roles = self.stage.borrow().mirrors[index].victims.clone();
                let role = self.stage.borrow().mirrors[index].disks.iter().position(|d| *d == disk);
                let Some(role) = role.filter(|_| roles.contains(&disk)) else { continue };
                if self.port.give_order(id, Order::Fail(vec![role as u16])).await.is_err() {
                    continue;
                }
                self.port.reopen(leaf).await;
                if self.rng.below(3) == 0 {
                    // As if it were a new one.
                    let newcomer = Newcomer::New { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
                    let order = Order::Fill { role: role as u16, newcomer, from: Filling::Full };
                    match self.port.give_order(id, order).await {
                        Ok(()) => {
                            self.count("fill a member anew");
                            let mut stage = self.stage.borrow_mut();
                            stage.mirrors[index].apart.remove(&disk);
                            stage.mirrors[index].old.remove(&disk);
                        }
                        Err(error) => self.expect_refusal(&error),
                    }
                    continue;
                }
                match self.port.give_order(id, Order::Return(leaf)).await {
                    Ok(()) => self.count("return a member"),
                    Err(error) => self.expect_refusal(&error),
                }
                continue;
            }
            self.count("return a member");
        }
    }

    /// In the last life every array that exists must serve.
    pub fn judge_mirrors(&self) {
        let missing = {
            let stage = self.stage.borrow();
            stage.mirrors.iter().enumerate().find(|(i, m)| m.exists && !self.kept.contains_key(i)).map(|(i, _)| i)
        };
        if let Some(index) = missing {
            self.odd(format!("in a world without faults mirror {index} is not served"));
        }
    }
}

/// Whether `--force` would help.
fn reasons_can_be_forced(status: &Status) -> bool {
    matches!(status, Status::Refused { reasons } if reasons.iter().all(lifecycle::Refusal::can_be_forced))
}

/// What notes of keepers are counted as.
pub fn kind_of(note: &Note) -> &'static str {
    match note {
        Note::Dropped(_) => "dropped",
        Note::Filling(_) => "filling",
        Note::InSync(_) => "in sync",
        Note::Replaced(..) => "replaced",
        Note::Resynced => "resynced",
        Note::Grown(..) => "grown",
        Note::Failed => "failed",
        Note::Repaired(..) => "repaired",
        Note::Unreadable { .. } => "unreadable",
        Note::Job(_) => "job",
        Note::Trouble(_) => "trouble",
    }
}
