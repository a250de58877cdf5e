//! The administrator's dealings with redundant arrays: members that fail and return, in every life and between them.
//!
//! One member of each array is *well*: it makes no errors, is never pulled and never failed by hand. So nothing is ever lost,
//! the array always starts, and no request fails.

use std::cell::RefCell;
use std::rc::Rc;

use braid_engine::io::{DeviceId, LeafId, ShardId};
use braid_engine::keeper::{EngineIo, Keeper, KeeperOptions, Note, Order};
use braid_engine::lifecycle::{self, Array, Filling, LifecycleError, Newcomer, StartOptions};
use braid_format::{MemberId, Uuid};
use braid_geometry::Spec;

use super::{Admin, Habits};
use crate::content::BLOCK_BYTES;
use crate::labelled;
use crate::oracle::Violation;

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
    /// The disk that is always well, one of `disks`.
    pub well: usize,
    /// Those of `disks` that may be pulled or failed.
    pub victims: Vec<usize>,
    /// The oracle's number, from the first time that it was served.
    pub number: Option<u64>,
    /// Its creation was acknowledged.
    pub exists: bool,
}

/// One that serves.
pub struct Kept {
    /// The number under which it serves.
    pub id: DeviceId,
    /// What its keeper leaves when it ends.
    ended: Rc<RefCell<Option<braid_engine::keeper::Kept>>>,
    /// Disks that are out, or were pulled, in this life.
    away: Vec<usize>,
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
        self.phase("starting a mirror");
        let mut leaves: Vec<LeafId> = self.leaves.values().copied().collect();
        self.rng.shuffle(&mut leaves);
        let scan = lifecycle::scan(&self.port, &leaves).await;
        let found = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid);
        let Some(found) = found.filter(|found| exists || found.status.starts_by_itself()) else {
            if exists {
                return self.odd(format!("mirror {index} is not found"));
            }
            return self.make_mirror(index, habits).await;
        };
        let clean = found.newest.as_ref().is_some_and(|newest| newest.clean);
        let options = StartOptions { degraded: true, ..StartOptions::new(self.rng.bits(), self.rng.bits()) };
        match lifecycle::start(&self.port, &found, options).await {
            Ok(array) => {
                self.stage.borrow_mut().mirrors[index].exists = true;
                self.count("start a mirror");
                self.keep(index, array, clean, habits).await;
            }
            Err(error) => self.odd(format!("mirror {index} does not start ({}): {error}", found.status)),
        }
    }

    fn odd(&self, why: String) {
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
            clear_after_ns: self.rng.between(1_000_000, 200_000_000),
        };
        let blocks = array.geometry().size_bytes() / BLOCK_BYTES as u64;
        let well = self.leaves[&self.stage.borrow().mirrors[index].well];
        if !array.members().any(|m| m.leaf == well && m.state == braid_format::MemberState::InSync) {
            return self.odd(format!("mirror {index} serves without the member that is well"));
        }
        let keeper = match Keeper::start(&self.port, array, options).await {
            Ok(keeper) => keeper,
            Err(error) => return self.odd(format!("mirror {index} is not served: {error}")),
        };
        let number = {
            let mut stage = self.stage.borrow_mut();
            let known = stage.mirrors[index].number;
            let name = format!("mirror {index}");
            let number = known.unwrap_or_else(|| stage.oracle.redundant_made(&name, blocks));
            stage.mirrors[index].number = Some(number);
            number
        };
        let ended = Rc::new(RefCell::new(None));
        let (result, port) = (Rc::clone(&ended), self.port.clone());
        self.stage.borrow_mut().spawned.push(Box::pin(async move {
            let kept = keeper.run(&port).await;
            *result.borrow_mut() = Some(kept);
        }));
        let away = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            mirror.disks.iter().chain(&mirror.others).copied().filter(|disk| *disk != mirror.well).collect()
        };
        self.kept.insert(index, Kept { id, ended, away });
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
        let ended = std::future::poll_fn(|_| match kept.ended.borrow_mut().take() {
            Some(ended) => std::task::Poll::Ready(ended),
            None => std::task::Poll::Pending,
        })
        .await;
        self.count("stop a mirror");
        let mut array = ended.array;
        if ended.equal && self.rng.below(4) > 0 {
            match array.stop(&self.port).await {
                Ok(()) => self.count("note a stop"),
                Err(error) => self.stage.borrow_mut().notes.push(format!("not noted as stopped: {error}")),
            }
        }
    }

    /// One thing that an administrator, or a fault, does to a redundant array.
    pub async fn act_on_mirrors(&mut self, habits: Habits) {
        let serving: Vec<usize> = self.kept.keys().copied().collect();
        let index = *self.rng.pick(&serving);
        let id = self.kept[&index].id;
        let (victims, others) = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            (mirror.victims.clone(), mirror.others.clone())
        };
        match self.rng.below(14) {
            0..=2 => {
                let disk = *self.rng.pick(&victims);
                self.phase("pulling a member");
                self.count("pull a member");
                self.stage.borrow_mut().pull.push(disk);
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
    fn expect_refusal(&self, error: &LifecycleError) {
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

/// What notes of keepers are counted as.
pub fn kind_of(note: &Note) -> &'static str {
    match note {
        Note::Dropped(_) => "dropped",
        Note::Filling(_) => "filling",
        Note::InSync(_) => "in sync",
        Note::Resynced => "resynced",
        Note::Failed => "failed",
        Note::Repaired(..) => "repaired",
        Note::Job(_) => "job",
        Note::Trouble(_) => "trouble",
    }
}
