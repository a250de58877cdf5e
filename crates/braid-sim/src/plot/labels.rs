//! The administrator's dealings with arrays that have labels: the engine's own lifecycle, under crashes.

use std::sync::Arc;

use braid_engine::io::{DeviceId, LeafId};
use braid_engine::keeper::EngineIo;
use braid_engine::layout::{DeviceLayout, Node};
use braid_engine::lifecycle::{self, Array, ArrayStatus, FoundArray, LifecycleError, StartOptions};
use braid_format::Uuid;

use super::{Admin, Habits};
use crate::content::BLOCK_BYTES;
use crate::labelled::{self, Labelled, OldCopy, Promise};
use crate::oracle::Violation;

/// An array with labels that serves.
pub struct Serving {
    pub id: DeviceId,
    pub array: Array,
}

impl Admin {
    /// What a daemon does when it starts: everything that the labels of all disks make.
    pub async fn assemble(&mut self, habits: Option<Habits>) {
        if !self.uses_labels() {
            return;
        }
        let leaves: Vec<LeafId> = self.leaves.values().copied().collect();
        let mut sessions = self.rng.fork();
        let found = lifecycle::assemble(&self.port, &leaves, || sessions.bits()).await;
        self.count("assemble");
        let mut seen = Vec::new();
        for array in found.started {
            seen.push(array.uuid());
            if let Some(index) = self.judge_started(&array) {
                self.serve(index, array, habits).await;
            }
        }
        for (uuid, name) in &found.deleted {
            seen.push(*uuid);
            self.judge_deleted(*uuid, name.as_str());
        }
        for array in &found.waiting {
            seen.push(array.uuid);
            self.judge_waiting(array).await;
        }
        for (array, error) in &found.failed {
            seen.push(array.uuid);
            self.expect_fault(error, "an array did not start");
            if let Some(index) = self.labelled(array.uuid) {
                let labelled = &mut self.stage.borrow_mut().labelled[index];
                // One copy may be damaged: the other must not be, before this one is written again.
                (labelled.tainted, labelled.sound) = (true, false);
            }
        }
        self.judge_absent(&seen);
    }

    pub fn uses_labels(&self) -> bool {
        self.stage.borrow().label_disks.iter().any(|d| self.leaves.contains_key(d))
    }

    fn labelled(&self, uuid: Uuid) -> Option<usize> {
        self.stage.borrow().labelled.iter().position(|l| l.uuid == uuid)
    }

    fn wrong(&self, why: String) {
        let mut stage = self.stage.borrow_mut();
        stage.violation.get_or_insert(Violation(why));
    }

    /// An error is only right when a disk made one.
    pub(super) fn expect_fault(&self, error: &LifecycleError, what: &str) {
        self.stage.borrow_mut().notes.push(format!("{what}: {error}"));
        if !self.stage.borrow().had_faults {
            self.wrong(format!("{what} without a reason: {error}"));
        }
    }

    fn disk_of(&self, leaf: LeafId) -> usize {
        *self.leaves.iter().find(|(_, l)| **l == leaf).expect("a leaf is a disk").0
    }

    /// An array was started: may it be, and is it what it was? Gives its number if so.
    fn judge_started(&self, array: &Array) -> Option<usize> {
        let name = array.name().as_str().to_owned();
        let Some(index) = self.labelled(array.uuid()) else {
            self.wrong(format!("array {name} is served, which nobody made"));
            return None;
        };
        let disks: Vec<usize> = array.members().map(|m| self.disk_of(m.leaf)).collect();
        let mut stage = self.stage.borrow_mut();
        let has_old_copy = stage.labelled[index].has_old_copy();
        let Labelled { promise, names, disks: known, growing, .. } = &mut stage.labelled[index];
        if growing.as_ref() == Some(&disks) {
            known.clone_from(&disks);
        }
        let wrong = match promise {
            Promise::Gone | Promise::Fading => Some(format!("array {name} is served, which had been deleted")),
            Promise::Interrupted => Some(format!("array {name} is served, whose creation was interrupted")),
            _ if has_old_copy => Some(format!("array {name} is served with an old copy of a disk")),
            _ if !names.contains(&name) => Some(format!("array {name} is served, whose name is one of {names:?}")),
            _ if *known != disks => Some(format!("array {name} has disks {disks:?} instead of {known:?}")),
            _ => None,
        };
        *promise = Promise::Alive;
        *names = [name].into();
        drop(stage);
        wrong.map(|why| self.wrong(why)).is_none().then_some(index)
    }

    fn judge_deleted(&self, uuid: Uuid, name: &str) {
        let Some(index) = self.labelled(uuid) else {
            return self.wrong(format!("array {name} was deleted, which nobody made"));
        };
        let promise = self.stage.borrow().labelled[index].promise;
        match promise {
            // The last one: the undoing of a create that failed.
            Promise::Dying | Promise::Unborn | Promise::Interrupted | Promise::Fading => {}
            Promise::Alive | Promise::Gone => {
                self.wrong(format!("the deletion of array {name} was finished, which is {promise:?}"))
            }
        }
        self.count("deletion finished");
        self.cleared(index);
    }

    /// All labels of an array that could be read were erased. One that could not be may turn up again.
    fn cleared(&self, index: usize) {
        if self.all_here(index) && !self.stage.borrow().had_faults {
            self.gone(index, Promise::Fading);
        } else {
            self.stage.borrow_mut().labelled[index].scattered = true;
        }
    }

    fn gone(&self, index: usize, promise: Promise) {
        let mut stage = self.stage.borrow_mut();
        stage.labelled[index].promise = promise;
        if let Some(number) = stage.labelled[index].number {
            stage.oracle.device_deleted(number);
        }
    }

    async fn judge_waiting(&mut self, found: &FoundArray) {
        let name = found.name.as_str();
        let Some(index) = self.labelled(found.uuid) else {
            return self.wrong(format!("array {name} is found, which nobody made"));
        };
        let (promise, scattered, excused) = {
            let stage = self.stage.borrow();
            let all_here = stage.labelled[index].disks.iter().all(|d| self.leaves.contains_key(d));
            let Labelled { promise, scattered, .. } = stage.labelled[index];
            (promise, scattered, stage.had_faults || !all_here)
        };
        match (promise, &found.status) {
            (Promise::Gone, status) if !(scattered && matches!(status, ArrayStatus::Incomplete { .. })) => {
                self.wrong(format!("array {name} is found ({status}), which had been deleted"))
            }
            (Promise::Unborn | Promise::Interrupted | Promise::Fading, ArrayStatus::InterruptedCreate) => {
                // What could not be read now may say later that the creation had come to its end.
                if !self.stage.borrow().had_faults {
                    self.stage.borrow_mut().labelled[index].promise = Promise::Interrupted;
                }
                self.count("create interrupted");
                self.clear_up(index, found).await;
            }
            (Promise::Alive, ArrayStatus::Refused { .. }) if self.stage.borrow().labelled[index].has_old_copy() => {
                self.count("old copy refused");
            }
            (_, _) if excused => {}
            (_, ArrayStatus::Incomplete { .. }) if scattered && promise != Promise::Alive => {
                self.count("remains found");
                self.clear_up(index, found).await;
            }
            (promise, status) => self.wrong(format!("array {name} is not served, which is {promise:?}: {status}")),
        }
    }

    /// Clears away what an interrupted create left: now or another time.
    async fn clear_up(&mut self, index: usize, found: &FoundArray) {
        if !self.last && self.rng.coin() {
            return;
        }
        let scattered = self.stage.borrow().labelled[index].scattered;
        match lifecycle::delete_found(&self.port, found, scattered).await {
            Ok(()) => {
                self.count("clear up");
                self.cleared(index);
            }
            Err(error) => {
                self.expect_fault(&error, "an interrupted create could not be cleared");
                self.stage.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    fn all_here(&self, index: usize) -> bool {
        self.stage.borrow().labelled[index].disks.iter().all(|d| self.leaves.contains_key(d))
    }

    /// What was not found at all: is it right that it is not there?
    fn judge_absent(&self, seen: &[Uuid]) {
        if self.stage.borrow().had_faults {
            return;
        }
        let count = self.stage.borrow().labelled.len();
        for index in 0..count {
            let (uuid, promise) = {
                let stage = self.stage.borrow();
                (stage.labelled[index].uuid, stage.labelled[index].promise)
            };
            if seen.contains(&uuid) || !self.all_here(index) {
                continue;
            }
            match promise {
                Promise::Alive => self.wrong(format!("array {uuid} is not found, which exists")),
                Promise::Unborn | Promise::Dying | Promise::Interrupted => self.gone(index, Promise::Fading),
                Promise::Fading | Promise::Gone => {}
            }
        }
    }

    /// Publishes a started array and connects clients.
    async fn serve(&mut self, index: usize, array: Array, habits: Option<Habits>) {
        let number = {
            let mut stage = self.stage.borrow_mut();
            stage.labelled[index].sound = false;
            stage.labelled[index].serves += 1;
            let blocks = array.geometry().size_bytes() / BLOCK_BYTES as u64;
            let name = format!("{} {}", array.geometry().spec().level, array.name().as_str());
            let known = stage.labelled[index].number;
            let number = known.unwrap_or_else(|| stage.oracle.device_made(&name, blocks));
            stage.labelled[index].number = Some(number);
            if stage.labelled[index].growing.take().is_some() && blocks > stage.oracle.blocks(number) {
                stage.oracle.grown(number, blocks);
            }
            if stage.oracle.blocks(number) != blocks {
                drop(stage);
                return self.wrong(format!("{name} has {blocks} blocks now"));
            }
            number
        };
        let id = self.new_device();
        self.serving.insert(index, Serving { id, array });
        self.publish_labelled(index).await;
        self.connect_to(number, id, habits);
    }

    pub(super) async fn publish_labelled(&mut self, index: usize) {
        let Serving { id, array } = &self.serving[&index];
        let leaf = |m: lifecycle::ArrayMember<'_>| {
            let data = m.part.layout.data;
            Node::Leaf { leaf: m.leaf, start: data.start, len: data.bytes }
        };
        let node = Node::Striped { geometry: array.geometry().clone(), members: array.members().map(leaf).collect() };
        let layout = DeviceLayout::new(self.port.new_version(), BLOCK_BYTES as u32, &node);
        self.port.publish(*id, Some(Arc::new(layout))).await;
    }

    /// One thing that an administrator might do to arrays with labels.
    pub async fn act_on_labels(&mut self, habits: Habits) {
        let serving: Vec<usize> = self.serving.keys().copied().collect();
        if serving.is_empty() || self.rng.below(6) == 0 {
            return self.create(habits).await;
        }
        let index = *self.rng.pick(&serving);
        match self.rng.below(if habits.pulls { 9 } else { 7 }) {
            0 => {
                self.phase("changing a layout");
                self.count("change layout");
                self.publish_labelled(index).await;
            }
            1 | 2 => self.rename(index).await,
            3 | 4 => {
                self.stop_labelled(index).await;
                self.restart(index, habits).await;
            }
            5 => self.delete(index).await,
            6 => {
                let number = self.stage.borrow().labelled[index].number.expect("a served array has a number");
                self.connect_to(number, self.serving[&index].id, Some(habits));
            }
            _ => {
                let disk = *self.rng.pick(&self.stage.borrow().labelled[index].disks);
                self.count("pull");
                self.stage.borrow_mut().pull.push(disk);
            }
        }
    }

    /// Disks that belong to no array, as far as the administrator knows.
    pub(super) fn free_disks(&self) -> Vec<usize> {
        let stage = self.stage.borrow();
        let gone = |l: &Labelled| matches!(l.promise, Promise::Gone | Promise::Fading);
        let used = |d: &usize| stage.labelled.iter().any(|l| !gone(l) && l.disks.contains(d));
        let known = |d: &usize| self.leaves.contains_key(d) && !stage.half_taken.contains(d);
        stage.label_disks.iter().copied().filter(|d| known(d) && !used(d)).collect()
    }

    /// Makes an array of some free disks, in any order.
    pub async fn create(&mut self, habits: Habits) {
        let mut disks = self.free_disks();
        if disks.is_empty() {
            return self.create_on_used(habits).await;
        }
        self.phase("creating");
        self.rng.shuffle(&mut disks);
        disks.truncate(self.rng.between(1, disks.len() as u64) as usize);
        let leaves = disks.iter().map(|d| self.leaves[d]).collect();
        let (serial, spec) = self.new_array();
        let force = self.rng.below(4) == 0;
        let request = labelled::request(serial, spec, leaves, force, &mut self.rng);
        self.stage.borrow_mut().labelled.push(Labelled {
            uuid: request.uuid,
            names: [request.name.as_str().to_owned()].into(),
            promise: Promise::Unborn,
            disks,
            growing: None,
            spec,
            number: None,
            sound: false,
            tainted: false,
            serves: 0,
            old: OldCopy::None,
            scattered: false,
        });
        let index = self.stage.borrow().labelled.len() - 1;
        match lifecycle::create(&self.port, &request).await {
            Ok(array) => {
                self.count("create");
                self.stage.borrow_mut().labelled[index].promise = Promise::Alive;
                self.serve(index, array, Some(habits)).await;
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not be created");
                self.stage.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    fn new_array(&mut self) -> (u64, braid_geometry::Spec) {
        let mut stage = self.stage.borrow_mut();
        stage.serial += 1;
        let spec = labelled::draw_spec(&stage.levels, &mut self.rng);
        (stage.serial, spec)
    }

    /// Tries to make an array of a disk that belongs to another: it must be refused, and harm nothing.
    async fn create_on_used(&mut self, _habits: Habits) {
        let Some(serving) = self.serving.keys().next().copied() else { return };
        if self.stage.borrow().had_faults {
            return;
        }
        let disk = self.stage.borrow().labelled[serving].disks[0];
        let (serial, spec) = self.new_array();
        let request = labelled::request(serial, spec, vec![self.leaves[&disk]], false, &mut self.rng);
        match lifecycle::create(&self.port, &request).await {
            Err(LifecycleError::NotEmpty { .. }) => self.count("create refused"),
            Err(error) => self.expect_fault(&error, "a create on a used disk failed otherwise than refused"),
            Ok(_) => self.wrong(format!("an array was made of disk {disk}, which belongs to another")),
        }
    }

    pub async fn rename(&mut self, index: usize) {
        if self.stage.borrow().labelled[index].tainted {
            return;
        }
        self.phase("renaming");
        let name = {
            let mut stage = self.stage.borrow_mut();
            stage.serial += 1;
            let name = labelled::name(stage.serial);
            stage.labelled[index].names.insert(name.as_str().to_owned());
            name
        };
        let serving = self.serving.get_mut(&index).expect("renamed while it serves");
        match serving.array.rename(&self.port, name.clone()).await {
            Ok(()) => {
                self.count("rename");
                self.stage.borrow_mut().labelled[index].names = [name.as_str().to_owned()].into();
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not be renamed");
                self.stage.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    /// Stops serving an array, whoever uses it, and notes in its labels that it was stopped.
    pub async fn stop_labelled(&mut self, index: usize) {
        let Some(mut serving) = self.serving.remove(&index) else { return };
        self.phase("stopping");
        self.withdraw(index, &serving).await;
        if self.stage.borrow().labelled[index].tainted {
            return;
        }
        match serving.array.stop(&self.port).await {
            Ok(()) => {
                self.count("stop");
                self.stage.borrow_mut().labelled[index].sound = true;
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not be stopped");
                self.stage.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    async fn withdraw(&mut self, index: usize, serving: &Serving) {
        let number = self.stage.borrow().labelled[index].number.expect("a served array has a number");
        self.withdraw_device(number, serving.id).await;
    }

    pub async fn restart(&mut self, index: usize, habits: Habits) {
        let (uuid, tainted) = {
            let stage = self.stage.borrow();
            (stage.labelled[index].uuid, stage.labelled[index].tainted)
        };
        if tainted {
            return;
        }
        self.phase("assembling");
        let mut leaves: Vec<LeafId> = self.leaves.values().copied().collect();
        self.rng.shuffle(&mut leaves);
        let scan = lifecycle::scan(&self.port, &leaves).await;
        let faults = self.stage.borrow().had_faults;
        let Some(found) = scan.arrays.iter().find(|a| a.uuid == uuid) else {
            if !faults {
                self.wrong(format!("array {uuid} is not found after its stop"));
            }
            return;
        };
        let options = StartOptions::new(self.rng.bits(), self.rng.bits());
        match lifecycle::start(&self.port, found, options).await {
            Ok(array) => {
                self.count("assemble one");
                if let Some(index) = self.judge_started(&array) {
                    self.serve(index, array, Some(habits)).await;
                }
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not be started again");
                self.stage.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    pub async fn delete(&mut self, index: usize) {
        if self.stage.borrow().labelled[index].tainted {
            return;
        }
        let mut serving = self.serving.remove(&index).expect("deleted while it serves");
        self.phase("deleting");
        self.withdraw(index, &serving).await;
        self.stage.borrow_mut().labelled[index].promise = Promise::Dying;
        match serving.array.delete(&self.port).await {
            Ok(_) => {
                self.count("delete");
                self.gone(index, Promise::Gone);
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not be deleted");
                self.stage.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    /// In the last life everything that exists must serve, and nothing else may be left.
    pub fn judge_end(&self) {
        let stage = self.stage.borrow();
        let missing = |(i, l): &(usize, &Labelled)| l.promise == Promise::Alive && !self.serving.contains_key(i);
        let idle = stage.labelled.iter().enumerate().find(missing).map(|(_, l)| l.uuid);
        let odd = |l: &&Labelled| !matches!(l.promise, Promise::Alive | Promise::Fading | Promise::Gone);
        let odd = stage.labelled.iter().find(odd).map(|l| (l.uuid, l.promise));
        drop(stage);
        if let Some(uuid) = idle {
            self.wrong(format!("in a world without faults array {uuid} is not served"));
        }
        if let Some((uuid, promise)) = odd {
            self.wrong(format!("in a world without faults array {uuid} is still {promise:?}"));
        }
    }
}
