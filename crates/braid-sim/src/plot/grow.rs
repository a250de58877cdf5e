//! Arrays that grow: their disks become larger, and those without redundancy get further ones.
//!
//! What an array was may be what it is after a crash, or what it was to be; acknowledged, only that. What is new reads as
//! zeros on a mirror, and shows what its disks held elsewhere.

use braid_engine::io::{LeafId, MetaIo};
use braid_engine::keeper::Order;
use braid_engine::lifecycle::{self, GrowRequest};
use braid_format::MemberId;
use braid_geometry::Level;

use super::{Admin, Habits};
use crate::content::BLOCK_BYTES;
use crate::labelled::Promise;

impl Admin {
    /// Lets an array grow, now and then, in seeds in which something grows. Says whether it did.
    pub async fn grow_something(&mut self, habits: Habits) -> bool {
        let chosen = {
            let mut stage = self.stage.borrow_mut();
            let Some(growth) = &mut stage.growth else { return false };
            growth.below(if habits.aim == Some("growing") { 2 } else { 4 }) == 0
        };
        if !chosen {
            return false;
        }
        if let Some(index) = self.kept.keys().next().copied() {
            self.grow_mirror(index, habits).await;
            return true;
        }
        match self.serving.keys().next().copied() {
            Some(index) => self.grow_labelled(index, habits).await,
            None => return false,
        }
        true
    }

    /// A number from the growths' own chance.
    fn draw(&self, from: u64, to: u64) -> u64 {
        self.stage.borrow_mut().growth.as_mut().map_or(from, |growth| growth.between(from, to))
    }

    /// Lets disks become larger that are here.
    async fn enlarge(&mut self, disks: &[usize], all: bool, at_least: u64) {
        for disk in disks {
            let Some(leaf) = self.leaves.get(disk).copied() else { continue };
            if all || self.draw(0, 2) > 0 {
                let size_bytes = self.port.size_bytes(leaf).max(at_least) + BLOCK_BYTES as u64 * self.draw(1, 60);
                self.stage.borrow_mut().enlarge.push((leaf, size_bytes));
            }
        }
        self.until(|stage| stage.enlarge.is_empty()).await;
    }

    pub(super) async fn grow_mirror(&mut self, index: usize, habits: Habits) {
        let (mut disks, well) = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            (mirror.disks.clone(), mirror.well)
        };
        disks.retain(|disk| Some(*disk) != well);
        self.phase("growing");
        let newcomers = self.newcomers(index);
        if !newcomers.is_empty() && self.draw(0, 3) > 0 {
            return self.grow_by(index, newcomers, Vec::new(), habits).await;
        }
        let widened = {
            let stage = self.stage.borrow();
            stage.mirrors[index].widened && stage.mirrors[index].spec.level == Level::Raid1
        };
        if widened {
            // What is new might be on others alone.
            return self.count("growth put off");
        }
        let all = self.draw(0, 1) == 0;
        // Above what any of them holds, mostly: there they have room together.
        let sizes = disks.iter().filter_map(|disk| self.leaves.get(disk)).map(|leaf| self.port.size_bytes(*leaf));
        let largest = if self.draw(0, 3) > 0 { sizes.max().unwrap_or(0) } else { 0 };
        self.enlarge(&disks, all, largest).await;
        // The one that is well is the largest: it is part of every zone.
        if let Some(well) = well.and_then(|well| self.leaves.get(&well)).copied() {
            let sizes = disks.iter().filter_map(|disk| self.leaves.get(disk)).map(|leaf| self.port.size_bytes(*leaf));
            let largest = sizes.max().unwrap_or(0).max(self.port.size_bytes(well)) + BLOCK_BYTES as u64;
            self.stage.borrow_mut().enlarge.push((well, largest));
            self.until(|stage| stage.enlarge.is_empty()).await;
        }
        if let Some(well) = well
            && !self.keeps_to(index, well).await
        {
            return self.count("growth put off");
        }
        disks.extend(well);
        self.grow_by(index, Vec::new(), disks, habits).await;
    }

    /// The array takes up further disks, if there are enough.
    pub(super) async fn grow_by_disks(&mut self, index: usize, habits: Habits) {
        self.phase("growing");
        let newcomers = self.newcomers(index);
        if !newcomers.is_empty() {
            self.grow_by(index, newcomers, Vec::new(), habits).await;
        }
    }

    /// Disks with which an array is to grow, where it is to grow by such.
    fn newcomers(&self, index: usize) -> Vec<usize> {
        let (further, least) = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            let is_here = |disk: &usize| self.leaves.contains_key(disk);
            let further: Vec<usize> = mirror.further.iter().copied().filter(is_here).collect();
            // What its own disks have gained would be taken up as well, and might be on others than the one that is well alone.
            let gained = mirror.disks.iter().any(|disk| stage.enlarged.contains(disk));
            let idle = !mirror.joining.is_empty() || gained && mirror.spec.level == Level::Raid1;
            (if idle { Vec::new() } else { further }, mirror.spec.members_min())
        };
        if further.len() < least {
            return Vec::new();
        }
        let count = self.draw(least as u64, further.len().min(least + 1) as u64) as usize;
        further.into_iter().take(count).collect()
    }

    /// The array takes up further disks, or what its own have gained.
    async fn grow_by(&mut self, index: usize, further: Vec<usize>, enlarged: Vec<usize>, habits: Habits) {
        let id = self.kept[&index].id;
        let mut newcomers: Vec<(LeafId, MemberId)> = Vec::new();
        for disk in &further {
            newcomers.push((self.leaves[disk], MemberId::from_random(self.draw(1, u64::MAX >> 1))));
        }
        let number = {
            let mut stage = self.stage.borrow_mut();
            let mirror = &mut stage.mirrors[index];
            mirror.growing = true;
            mirror.joining.clone_from(&further);
            mirror.widened |= !further.is_empty();
            mirror.number.expect("a served array has a number")
        };
        for leaf in newcomers.iter().map(|(leaf, _)| *leaf) {
            // It may have been given up by the growth before.
            self.port.reopen(leaf).await;
        }
        match self.port.give_order(id, Order::Grow { newcomers, force: true }).await {
            Ok(()) => {
                self.count(if further.is_empty() { "grow a mirror" } else { "grow a mirror by disks" });
                let regions = self.port.take_grown(id).expect("who has grown has a longer map");
                let range = regions.range(regions.regions() - 1);
                {
                    let mut stage = self.stage.borrow_mut();
                    let mirror = &mut stage.mirrors[index];
                    mirror.owed = range.1 / BLOCK_BYTES as u64;
                    let holders: Vec<Option<usize>> = mirror.disks.iter().chain(&further).copied().map(Some).collect();
                    mirror.has_taken_up(&holders);
                    mirror.roles += further.len() as u16;
                    stage.enlarged.retain(|disk| !enlarged.contains(disk));
                    // A client that knows the size comes to a shard after the layout that has it; here it would come at once.
                    stage.spreading.push((id, range.1));
                }
                self.until(|stage| stage.spreading.is_empty()).await;
                {
                    let mut stage = self.stage.borrow_mut();
                    stage.mirrors[index].growing = false;
                    stage.oracle.grown(number, range.1 / BLOCK_BYTES as u64);
                }
                if let Some(kept) = self.kept.get_mut(&index) {
                    kept.regions = regions;
                    // Where its copies are now, the keeper knows: nothing of it rots for the rest of this life.
                    kept.copies = None;
                }
                self.connect_to(number, id, Some(habits));
            }
            Err(error) => {
                self.count("growth refused");
                self.expect_refusal(&error);
                let mut stage = self.stage.borrow_mut();
                if !stage.had_faults {
                    // Nothing is left of it.
                    stage.mirrors[index].joining.clear();
                }
            }
        }
    }

    /// Whether every zone that a growth would add has a copy on this disk. Others may fail together: what they alone hold
    /// would be lost.
    async fn keeps_to(&self, index: usize, well: usize) -> bool {
        let (uuid, redundant) = {
            let stage = self.stage.borrow();
            (stage.mirrors[index].uuid, stage.mirrors[index].spec.level == Level::Raid1)
        };
        if !redundant {
            // All of them but one are never touched.
            return true;
        }
        let leaves: Vec<LeafId> = self.leaves.values().copied().collect();
        let scan = lifecycle::scan(&self.port, &leaves).await;
        let found = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid);
        let Some((found, newest)) = found.and_then(|found| Some((found.clone(), found.newest?))) else { return false };
        let mut role = None;
        let mut sizes = Vec::new();
        for member in &found.members {
            let Some(disk) = &member.disk else { continue };
            if Some(disk.leaf) == self.leaves.get(&well).copied() {
                role = Some(member.number);
            }
            let places = disk.label.member.layout;
            let larger = places.grown_to(self.port.size_bytes(disk.leaf)).unwrap_or(places);
            sizes.push((member.number, larger.room_bytes()));
        }
        let (Some(role), Ok(growth)) = (role, lifecycle::plan_growth(&newest, &sizes, &[], true)) else { return true };
        growth.geometry.zones().iter().skip(newest.zones.len()).all(|zone| zone.members.contains(&role))
    }

    async fn grow_labelled(&mut self, index: usize, habits: Habits) {
        let (number, mut disks, idle) = {
            let stage = self.stage.borrow();
            let labelled = &stage.labelled[index];
            let idle = labelled.tainted || labelled.promise != Promise::Alive;
            (labelled.number.expect("a served array has a number"), labelled.disks.clone(), idle)
        };
        if idle {
            return;
        }
        self.phase("growing");
        let what = self.draw(0, 3);
        // A disk that is half taken and not here would turn up again when its array is deleted.
        let calm = !habits.pulls && !self.stage.borrow().had_faults;
        let mut further = if calm && what > 0 { self.free_disks() } else { Vec::new() };
        further.truncate(self.draw(1, 2) as usize);
        if what != 1 {
            self.enlarge(&disks, what == 2, 0).await;
        }
        let mut newcomers: Vec<(LeafId, MemberId)> = Vec::new();
        for disk in &further {
            newcomers.push((self.leaves[disk], MemberId::from_random(self.draw(1, u64::MAX >> 1))));
        }
        let after: Vec<usize> = disks.iter().chain(&further).copied().collect();
        {
            let mut stage = self.stage.borrow_mut();
            stage.half_taken.extend(&further);
            stage.labelled[index].growing = Some(after.clone());
        }
        let Some(serving) = self.serving.get_mut(&index) else { return };
        let request = GrowRequest { new_disks: newcomers, force: true };
        let grown = serving.array.grow(&self.port, &request).await;
        match grown {
            Ok(growth) => {
                self.count(if further.is_empty() { "grow" } else { "grow by disks" });
                {
                    let mut stage = self.stage.borrow_mut();
                    stage.labelled[index].disks.clone_from(&after);
                    stage.half_taken.retain(|disk| !further.contains(disk));
                    disks.extend(&further);
                    stage.enlarged.retain(|disk| !disks.contains(disk));
                }
                self.publish_labelled(index).await;
                {
                    let mut stage = self.stage.borrow_mut();
                    stage.labelled[index].growing = None;
                    stage.oracle.grown(number, growth.after_bytes() / BLOCK_BYTES as u64);
                }
                let id = self.serving[&index].id;
                self.connect_to(number, id, Some(habits));
            }
            Err(braid_engine::lifecycle::LifecycleError::NoGrowth { .. }) => {
                self.count("growth refused");
                let mut stage = self.stage.borrow_mut();
                stage.labelled[index].growing = None;
                stage.half_taken.retain(|disk| !further.contains(disk));
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not grow");
                let mut stage = self.stage.borrow_mut();
                stage.labelled[index].tainted = true;
                // Disks that it did not get any more may keep a label, if they failed again when that was to be erased.
                stage.labelled[index].scattered |= !further.is_empty();
            }
        }
    }
}
