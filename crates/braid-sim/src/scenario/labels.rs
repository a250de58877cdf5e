//! The administrator's actions on arrays with labels: the engine's own life cycle procedures, under crashes.

use std::sync::Arc;

use braid_array_admin::lifecycle::{self, Array, ArrayStatus, FoundArray, LifecycleError, StartOptions};
use braid_engine::EngineIo;
use braid_engine::io::{DeviceId, LeafId};
use braid_engine::layout::{DeviceLayout, Node};
use braid_format::Uuid;

use super::{Admin, AdminHabits};
use crate::content::BLOCK_BYTES;
use crate::labelled::{self, Expectation, Labelled, OldCopy};
use crate::oracle::Violation;

/// A served array with labels.
pub struct Serving {
    pub id: DeviceId,
    pub array: Array,
}

impl Admin {
    /// Assembles all arrays from the labels of all disks, as a daemon does when it starts.
    pub async fn assemble(&mut self, habits: Option<AdminHabits>) {
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
            if let Some(index) = self.check_started(&array) {
                self.serve(index, array, habits).await;
            }
        }
        for (uuid, name) in &found.deleted {
            seen.push(*uuid);
            self.check_deleted(*uuid, name.as_str());
        }
        for array in &found.waiting {
            seen.push(array.uuid);
            self.check_waiting(array).await;
        }
        for (array, error) in &found.failed {
            seen.push(array.uuid);
            self.expect_fault(error, "an array did not start");
            if let Some(index) = self.labelled(array.uuid) {
                let labelled = &mut self.state.borrow_mut().labelled[index];
                // One label copy may be damaged: the other must not rot before this one is written again.
                (labelled.tainted, labelled.sound) = (true, false);
            }
        }
        self.check_not_found(&seen);
    }

    pub fn uses_labels(&self) -> bool {
        self.state.borrow().label_disks.iter().any(|d| self.leaves.contains_key(d))
    }

    fn labelled(&self, uuid: Uuid) -> Option<usize> {
        self.state.borrow().labelled.iter().position(|l| l.uuid == uuid)
    }

    fn wrong(&self, why: String) {
        let mut state = self.state.borrow_mut();
        state.violation.get_or_insert(Violation(why));
    }

    /// Checks that an error has a reason: a disk failed.
    pub(super) fn expect_fault(&self, error: &LifecycleError, what: &str) {
        self.state.borrow_mut().notes.push(format!("{what}: {error}"));
        if !self.state.borrow().had_faults {
            self.wrong(format!("{what} without a reason: {error}"));
        }
    }

    fn disk_of(&self, leaf: LeafId) -> usize {
        *self.leaves.iter().find(|(_, l)| **l == leaf).expect("a leaf is a disk").0
    }

    /// Checks that a started array may be served, and has the expected name and disks. Returns its index if so.
    fn check_started(&self, array: &Array) -> Option<usize> {
        let name = array.name().as_str().to_owned();
        let Some(index) = self.labelled(array.uuid()) else {
            self.wrong(format!("array {name} is served, but was never created"));
            return None;
        };
        let disks: Vec<usize> = array.members().map(|m| self.disk_of(m.leaf)).collect();
        let mut state = self.state.borrow_mut();
        let has_old_copy = state.labelled[index].has_old_copy();
        let Labelled { expected, names, disks: known, growing, .. } = &mut state.labelled[index];
        if growing.as_ref() == Some(&disks) {
            known.clone_from(&disks);
        }
        let wrong = match expected {
            Expectation::Deleted | Expectation::SeenGone => {
                Some(format!("array {name} is served, which had been deleted"))
            }
            Expectation::CreateInterrupted => Some(format!("array {name} is served, whose creation was interrupted")),
            _ if has_old_copy => Some(format!("array {name} is served with an old copy of a disk")),
            _ if !names.contains(&name) => Some(format!("array {name} is served, whose name is one of {names:?}")),
            _ if *known != disks => Some(format!("array {name} has disks {disks:?} instead of {known:?}")),
            _ => None,
        };
        *expected = Expectation::Exists;
        *names = [name].into();
        drop(state);
        wrong.map(|why| self.wrong(why)).is_none().then_some(index)
    }

    fn check_deleted(&self, uuid: Uuid, name: &str) {
        let Some(index) = self.labelled(uuid) else {
            return self.wrong(format!("array {name} was deleted, but was never created"));
        };
        let expected = self.state.borrow().labelled[index].expected;
        match expected {
            // All but `Deleting`: a create that failed is undone.
            Expectation::Deleting | Expectation::Creating | Expectation::CreateInterrupted | Expectation::SeenGone => {}
            Expectation::Exists | Expectation::Deleted => {
                self.wrong(format!("the deletion of array {name} was finished, which is {expected:?}"))
            }
        }
        self.count("deletion finished");
        self.cleared(index);
    }

    /// Records that all readable labels of an array were erased. Labels that could not be read may be found again.
    fn cleared(&self, index: usize) {
        if self.all_present(index) && !self.state.borrow().had_faults {
            self.gone(index, Expectation::SeenGone);
        } else {
            self.state.borrow_mut().labelled[index].scattered = true;
        }
    }

    fn gone(&self, index: usize, expected: Expectation) {
        let mut state = self.state.borrow_mut();
        state.labelled[index].expected = expected;
        if let Some(number) = state.labelled[index].number {
            state.oracle.device_deleted(number);
        }
    }

    async fn check_waiting(&mut self, found: &FoundArray) {
        let name = found.name.as_str();
        let Some(index) = self.labelled(found.uuid) else {
            return self.wrong(format!("array {name} is found, but was never created"));
        };
        let (expected, scattered, excused) = {
            let state = self.state.borrow();
            let all_present = state.labelled[index].disks.iter().all(|d| self.leaves.contains_key(d));
            let Labelled { expected, scattered, .. } = state.labelled[index];
            (expected, scattered, state.had_faults || !all_present)
        };
        match (expected, &found.status) {
            (Expectation::Deleted, status) if !(scattered && matches!(status, ArrayStatus::Incomplete { .. })) => {
                self.wrong(format!("array {name} is found ({status}), which had been deleted"))
            }
            (
                Expectation::Creating | Expectation::CreateInterrupted | Expectation::SeenGone,
                ArrayStatus::InterruptedCreate,
            ) => {
                // A label that was unreadable now may say later that the creation was completed.
                if !self.state.borrow().had_faults {
                    self.state.borrow_mut().labelled[index].expected = Expectation::CreateInterrupted;
                }
                self.count("create interrupted");
                self.clear_up(index, found).await;
            }
            (Expectation::Exists, ArrayStatus::Refused { .. })
                if self.state.borrow().labelled[index].has_old_copy() =>
            {
                self.count("old copy refused");
            }
            (_, _) if excused => {}
            (_, ArrayStatus::Incomplete { .. }) if scattered && expected != Expectation::Exists => {
                self.count("remains found");
                self.clear_up(index, found).await;
            }
            (expected, status) => self.wrong(format!("array {name} is not served, which is {expected:?}: {status}")),
        }
    }

    /// Clears what an interrupted create left, now or another time.
    async fn clear_up(&mut self, index: usize, found: &FoundArray) {
        if !self.last && self.rng.coin() {
            return;
        }
        let scattered = self.state.borrow().labelled[index].scattered;
        match lifecycle::delete_found(&self.port, found, scattered).await {
            Ok(()) => {
                self.count("clear up");
                self.cleared(index);
            }
            Err(error) => {
                self.expect_fault(&error, "an interrupted create could not be cleared");
                self.state.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    fn all_present(&self, index: usize) -> bool {
        self.state.borrow().labelled[index].disks.iter().all(|d| self.leaves.contains_key(d))
    }

    /// Checks that arrays that were not found may be missing.
    fn check_not_found(&self, seen: &[Uuid]) {
        if self.state.borrow().had_faults {
            return;
        }
        let count = self.state.borrow().labelled.len();
        for index in 0..count {
            let (uuid, expected) = {
                let state = self.state.borrow();
                (state.labelled[index].uuid, state.labelled[index].expected)
            };
            if seen.contains(&uuid) || !self.all_present(index) {
                continue;
            }
            match expected {
                Expectation::Exists => self.wrong(format!("array {uuid} is not found, which exists")),
                Expectation::Creating | Expectation::Deleting | Expectation::CreateInterrupted => {
                    self.gone(index, Expectation::SeenGone)
                }
                Expectation::SeenGone | Expectation::Deleted => {}
            }
        }
    }

    /// Publishes a started array and connects clients.
    async fn serve(&mut self, index: usize, array: Array, habits: Option<AdminHabits>) {
        let number = {
            let mut state = self.state.borrow_mut();
            state.labelled[index].sound = false;
            state.labelled[index].serves += 1;
            let blocks = array.geometry().size_bytes() / BLOCK_BYTES as u64;
            let name = format!("{} {}", array.geometry().spec().level, array.name().as_str());
            let known = state.labelled[index].number;
            let number = known.unwrap_or_else(|| state.oracle.device_made(&name, blocks));
            state.labelled[index].number = Some(number);
            if state.labelled[index].growing.take().is_some() && blocks > state.oracle.blocks(number) {
                state.oracle.grown(number, blocks);
            }
            if state.oracle.blocks(number) != blocks {
                drop(state);
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

    /// Performs one action on arrays with labels.
    pub async fn act_on_labels(&mut self, habits: AdminHabits) {
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
                let number = self.state.borrow().labelled[index].number.expect("a served array has a number");
                self.connect_to(number, self.serving[&index].id, Some(habits));
            }
            _ => {
                let disk = *self.rng.pick(&self.state.borrow().labelled[index].disks);
                self.count("pull");
                self.state.borrow_mut().pull.push(disk);
            }
        }
    }

    /// Returns the disks that belong to no array, as far as the administrator knows.
    pub(super) fn free_disks(&self) -> Vec<usize> {
        let state = self.state.borrow();
        let gone = |l: &Labelled| matches!(l.expected, Expectation::Deleted | Expectation::SeenGone);
        let used = |d: &usize| state.labelled.iter().any(|l| !gone(l) && l.disks.contains(d));
        let known = |d: &usize| self.leaves.contains_key(d) && !state.half_taken.contains(d);
        state.label_disks.iter().copied().filter(|d| known(d) && !used(d)).collect()
    }

    /// Creates an array of some free disks, in random order.
    pub async fn create(&mut self, habits: AdminHabits) {
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
        self.state.borrow_mut().labelled.push(Labelled {
            uuid: request.uuid,
            names: [request.name.as_str().to_owned()].into(),
            expected: Expectation::Creating,
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
        let index = self.state.borrow().labelled.len() - 1;
        match lifecycle::create(&self.port, &request).await {
            Ok(array) => {
                self.count("create");
                self.state.borrow_mut().labelled[index].expected = Expectation::Exists;
                self.serve(index, array, Some(habits)).await;
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not be created");
                self.state.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    fn new_array(&mut self) -> (u64, braid_geometry::Spec) {
        let mut state = self.state.borrow_mut();
        state.serial += 1;
        let spec = labelled::draw_spec(&state.levels, &mut self.rng);
        (state.serial, spec)
    }

    /// Tries to create an array on a disk of another array: that must be refused without any effect.
    async fn create_on_used(&mut self, _habits: AdminHabits) {
        let Some(serving) = self.serving.keys().next().copied() else { return };
        if self.state.borrow().had_faults {
            return;
        }
        let disk = self.state.borrow().labelled[serving].disks[0];
        let (serial, spec) = self.new_array();
        let request = labelled::request(serial, spec, vec![self.leaves[&disk]], false, &mut self.rng);
        match lifecycle::create(&self.port, &request).await {
            Err(LifecycleError::NotEmpty { .. }) => self.count("create refused"),
            Err(error) => self.expect_fault(&error, "a create on a used disk failed otherwise than refused"),
            Ok(_) => self.wrong(format!("an array was made of disk {disk}, which belongs to another")),
        }
    }

    pub async fn rename(&mut self, index: usize) {
        if self.state.borrow().labelled[index].tainted {
            return;
        }
        self.phase("renaming");
        let name = {
            let mut state = self.state.borrow_mut();
            state.serial += 1;
            let name = labelled::name(state.serial);
            state.labelled[index].names.insert(name.as_str().to_owned());
            name
        };
        let serving = self.serving.get_mut(&index).expect("renamed while it serves");
        match serving.array.rename(&self.port, name.clone()).await {
            Ok(()) => {
                self.count("rename");
                self.state.borrow_mut().labelled[index].names = [name.as_str().to_owned()].into();
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not be renamed");
                self.state.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    /// Stops serving an array, whether clients use it or not, and records the stop in its labels.
    pub async fn stop_labelled(&mut self, index: usize) {
        let Some(mut serving) = self.serving.remove(&index) else { return };
        self.phase("stopping");
        self.withdraw(index, &serving).await;
        if self.state.borrow().labelled[index].tainted {
            return;
        }
        match serving.array.stop(&self.port).await {
            Ok(()) => {
                self.count("stop");
                self.state.borrow_mut().labelled[index].sound = true;
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not be stopped");
                self.state.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    async fn withdraw(&mut self, index: usize, serving: &Serving) {
        let number = self.state.borrow().labelled[index].number.expect("a served array has a number");
        self.withdraw_device(number, serving.id).await;
    }

    pub async fn restart(&mut self, index: usize, habits: AdminHabits) {
        let (uuid, tainted) = {
            let state = self.state.borrow();
            (state.labelled[index].uuid, state.labelled[index].tainted)
        };
        if tainted {
            return;
        }
        self.phase("assembling");
        let mut leaves: Vec<LeafId> = self.leaves.values().copied().collect();
        self.rng.shuffle(&mut leaves);
        let scan = lifecycle::scan(&self.port, &leaves).await;
        let faults = self.state.borrow().had_faults;
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
                if let Some(index) = self.check_started(&array) {
                    self.serve(index, array, Some(habits)).await;
                }
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not be started again");
                self.state.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    pub async fn delete(&mut self, index: usize) {
        if self.state.borrow().labelled[index].tainted {
            return;
        }
        let mut serving = self.serving.remove(&index).expect("deleted while it serves");
        self.phase("deleting");
        self.withdraw(index, &serving).await;
        self.state.borrow_mut().labelled[index].expected = Expectation::Deleting;
        match serving.array.delete(&self.port).await {
            Ok(_) => {
                self.count("delete");
                self.gone(index, Expectation::Deleted);
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not be deleted");
                self.state.borrow_mut().labelled[index].tainted = true;
            }
        }
    }

    /// Checks in the last life that every array that exists serves, and nothing else is left.
    pub fn check_end(&self) {
        let state = self.state.borrow();
        let missing = |(i, l): &(usize, &Labelled)| l.expected == Expectation::Exists && !self.serving.contains_key(i);
        let idle = state.labelled.iter().enumerate().find(missing).map(|(_, l)| l.uuid);
        let odd =
            |l: &&Labelled| !matches!(l.expected, Expectation::Exists | Expectation::SeenGone | Expectation::Deleted);
        let odd = state.labelled.iter().find(odd).map(|l| (l.uuid, l.expected));
        drop(state);
        if let Some(uuid) = idle {
            self.wrong(format!("in a world without faults array {uuid} is not served"));
        }
        if let Some((uuid, expected)) = odd {
            self.wrong(format!("in a world without faults array {uuid} is still {expected:?}"));
        }
    }
}
