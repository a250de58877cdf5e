//! Growth of arrays: their disks get larger, or they take further disks as new members.
//!
//! After a crash an array has its old size or its new one; once the growth is acknowledged, only the new one. New
//! space reads as zeros on a redundant array; on others it shows the earlier content of the disks.

use braid_array_admin::lifecycle::{self, GrowRequest};
use braid_array_admin::reconciler::Order;
use braid_engine::io::{LeafId, MetaIo};
use braid_format::MemberId;
use braid_geometry::Level;

use super::{Admin, AdminHabits};
use crate::content::BLOCK_BYTES;
use crate::labelled::Expectation;

impl Admin {
    /// Grows an array at times, in seeds in which something grows. Returns whether it did.
    pub async fn grow_something(&mut self, habits: AdminHabits) -> bool {
        let chosen = {
            let mut state = self.state.borrow_mut();
            let Some(growth) = &mut state.growth else { return false };
            growth.below(if habits.aim == Some("growing") { 2 } else { 4 }) == 0
        };
        if !chosen {
            return false;
        }
        if let Some(index) = self.mirrors.keys().next().copied() {
            self.grow_mirror(index, habits).await;
            return true;
        }
        match self.serving.keys().next().copied() {
            Some(index) => self.grow_labelled(index, habits).await,
            None => return false,
        }
        true
    }

    /// Draws a number from the stream of randomness for growth.
    fn draw(&self, from: u64, to: u64) -> u64 {
        self.state.borrow_mut().growth.as_mut().map_or(from, |growth| growth.between(from, to))
    }

    /// Enlarges present disks.
    async fn enlarge(&mut self, disks: &[usize], all: bool, at_least: u64) {
        for disk in disks {
            let Some(leaf) = self.leaves.get(disk).copied() else { continue };
            if all || self.draw(0, 2) > 0 {
                let size_bytes = self.port.size_bytes(leaf).max(at_least) + BLOCK_BYTES as u64 * self.draw(1, 60);
                self.state.borrow_mut().enlarge.push((leaf, size_bytes));
            }
        }
        self.until(|state| state.enlarge.is_empty()).await;
    }

    pub(super) async fn grow_mirror(&mut self, index: usize, habits: AdminHabits) {
        let (mut disks, healthy) = {
            let state = self.state.borrow();
            let mirror = &state.mirrors[index];
            (mirror.disks.clone(), mirror.healthy)
        };
        disks.retain(|disk| Some(*disk) != healthy);
        self.phase("growing");
        let new_members = self.new_members(index);
        if !new_members.is_empty() && self.draw(0, 3) > 0 {
            return self.grow_by(index, new_members, Vec::new(), habits).await;
        }
        let widened = {
            let state = self.state.borrow();
            state.mirrors[index].widened && state.mirrors[index].spec.level == Level::Raid1
        };
        if widened {
            // New zones might have no copy on the healthy member.
            return self.count("growth put off");
        }
        let all = self.draw(0, 1) == 0;
        // Mostly larger than any of them: then the new space is on several disks.
        let sizes = disks.iter().filter_map(|disk| self.leaves.get(disk)).map(|leaf| self.port.size_bytes(*leaf));
        let largest = if self.draw(0, 3) > 0 { sizes.max().unwrap_or(0) } else { 0 };
        self.enlarge(&disks, all, largest).await;
        // The healthy member is the largest: it is part of every zone.
        if let Some(healthy) = healthy.and_then(|healthy| self.leaves.get(&healthy)).copied() {
            let sizes = disks.iter().filter_map(|disk| self.leaves.get(disk)).map(|leaf| self.port.size_bytes(*leaf));
            let largest = sizes.max().unwrap_or(0).max(self.port.size_bytes(healthy)) + BLOCK_BYTES as u64;
            self.state.borrow_mut().enlarge.push((healthy, largest));
            self.until(|state| state.enlarge.is_empty()).await;
        }
        if let Some(healthy) = healthy
            && !self.is_covered_by(index, healthy).await
        {
            return self.count("growth put off");
        }
        disks.extend(healthy);
        self.grow_by(index, Vec::new(), disks, habits).await;
    }

    /// Grows the array by further disks, if there are enough.
    pub(super) async fn grow_by_disks(&mut self, index: usize, habits: AdminHabits) {
        self.phase("growing");
        let new_members = self.new_members(index);
        if !new_members.is_empty() {
            self.grow_by(index, new_members, Vec::new(), habits).await;
        }
    }

    /// Returns the disks by which an array is to grow; none if it is not to grow by disks.
    fn new_members(&self, index: usize) -> Vec<usize> {
        let (further, least) = {
            let state = self.state.borrow();
            let mirror = &state.mirrors[index];
            let is_present = |disk: &usize| self.leaves.contains_key(disk);
            let further: Vec<usize> = mirror.further.iter().copied().filter(is_present).collect();
            // The growth would also take the space that its own disks have gained, perhaps without a copy on the
            // healthy member.
            let gained = mirror.disks.iter().any(|disk| state.enlarged.contains(disk));
            let idle = !mirror.joining.is_empty() || gained && mirror.spec.level == Level::Raid1;
            (if idle { Vec::new() } else { further }, mirror.spec.min_members())
        };
        if further.len() < least {
            return Vec::new();
        }
        let count = self.draw(least as u64, further.len().min(least + 1) as u64) as usize;
        further.into_iter().take(count).collect()
    }

    /// Grows the array by further disks, or by the space that its own disks have gained.
    async fn grow_by(&mut self, index: usize, further: Vec<usize>, enlarged: Vec<usize>, habits: AdminHabits) {
        let id = self.mirrors[&index].id;
        let mut new_members: Vec<(LeafId, MemberId)> = Vec::new();
        for disk in &further {
            new_members.push((self.leaves[disk], MemberId::from_random(self.draw(1, u64::MAX >> 1))));
        }
        let number = {
            let mut state = self.state.borrow_mut();
            let mirror = &mut state.mirrors[index];
            mirror.growing = true;
            mirror.joining.clone_from(&further);
            mirror.widened |= !further.is_empty();
            mirror.number.expect("a served array has a number")
        };
        for leaf in new_members.iter().map(|(leaf, _)| *leaf) {
            // The previous growth may have given it up.
            self.port.reopen(leaf).await;
        }
        match self.port.give_order(id, Order::Grow { newcomers: new_members, force: true }).await {
            Ok(()) => {
                self.count(if further.is_empty() { "grow a mirror" } else { "grow a mirror by disks" });
                let regions = self.port.take_grown(id).expect("an array that has grown has a longer map");
                let range = regions.range(regions.regions() - 1);
                {
                    let mut state = self.state.borrow_mut();
                    let mirror = &mut state.mirrors[index];
                    mirror.blocks_min = range.1 / BLOCK_BYTES as u64;
                    let holders: Vec<Option<usize>> = mirror.disks.iter().chain(&further).copied().map(Some).collect();
                    mirror.record_disks(&holders);
                    mirror.slots += further.len() as u16;
                    state.enlarged.retain(|disk| !enlarged.contains(disk));
                    // A real client learns the new size only after its shard has the new layout. The simulated client
                    // would use it at once, so that the growth is announced when all shards have it.
                    state.spreading.push((id, range.1));
                }
                self.until(|state| state.spreading.is_empty()).await;
                {
                    let mut state = self.state.borrow_mut();
                    state.mirrors[index].growing = false;
                    state.oracle.grown(number, range.1 / BLOCK_BYTES as u64);
                }
                if let Some(served) = self.mirrors.get_mut(&index) {
                    served.regions = regions;
                    // Only the reconciler knows the new locations of copies: no copy rots for the rest of this life.
                    served.copies = None;
                }
                self.connect_to(number, id, Some(habits));
            }
            Err(error) => {
                self.count("growth refused");
                self.expect_refusal(&error);
                let mut state = self.state.borrow_mut();
                if !state.had_faults {
                    // A refused growth leaves no trace.
                    state.mirrors[index].joining.clear();
                }
            }
        }
    }

    /// Returns whether every zone that a growth would add has a copy on this disk. The others may fail together: data
    /// that only they hold would be lost.
    async fn is_covered_by(&self, index: usize, healthy: usize) -> bool {
        let (uuid, redundant) = {
            let state = self.state.borrow();
            (state.mirrors[index].uuid, state.mirrors[index].spec.level == Level::Raid1)
        };
        if !redundant {
            // All members but one never fail.
            return true;
        }
        let leaves: Vec<LeafId> = self.leaves.values().copied().collect();
        let scan = lifecycle::scan(&self.port, &leaves).await;
        let found = scan.arrays.into_iter().find(|array| Some(array.uuid) == uuid);
        let Some((found, newest)) = found.and_then(|found| Some((found.clone(), found.newest?))) else { return false };
        let mut slot = None;
        let mut sizes = Vec::new();
        for member in &found.members {
            let Some(disk) = &member.disk else { continue };
            if Some(disk.leaf) == self.leaves.get(&healthy).copied() {
                slot = Some(member.number);
            }
            let places = disk.label.member.layout;
            let larger = places.grown_to(self.port.size_bytes(disk.leaf)).unwrap_or(places);
            sizes.push((member.number, larger.room_bytes()));
        }
        let (Some(slot), Ok(growth)) = (slot, lifecycle::plan_growth(&newest, &sizes, &[], true)) else { return true };
        growth.geometry.zones().iter().skip(newest.zones.len()).all(|zone| zone.members.contains(&slot))
    }

    async fn grow_labelled(&mut self, index: usize, habits: AdminHabits) {
        let (number, mut disks, idle) = {
            let state = self.state.borrow();
            let labelled = &state.labelled[index];
            let idle = labelled.tainted || labelled.expected != Expectation::Exists;
            (labelled.number.expect("a served array has a number"), labelled.disks.clone(), idle)
        };
        if idle {
            return;
        }
        self.phase("growing");
        let what = self.draw(0, 3);
        // A new member that is missing later would be found again after its array is deleted.
        let calm = !habits.pulls && !self.state.borrow().had_faults;
        let mut further = if calm && what > 0 { self.free_disks() } else { Vec::new() };
        further.truncate(self.draw(1, 2) as usize);
        if what != 1 {
            self.enlarge(&disks, what == 2, 0).await;
        }
        let mut new_members: Vec<(LeafId, MemberId)> = Vec::new();
        for disk in &further {
            new_members.push((self.leaves[disk], MemberId::from_random(self.draw(1, u64::MAX >> 1))));
        }
        let after: Vec<usize> = disks.iter().chain(&further).copied().collect();
        {
            let mut state = self.state.borrow_mut();
            state.half_taken.extend(&further);
            state.labelled[index].growing = Some(after.clone());
        }
        let Some(serving) = self.serving.get_mut(&index) else { return };
        let request = GrowRequest { new_disks: new_members, force: true };
        let grown = serving.array.grow(&self.port, &request).await;
        match grown {
            Ok(growth) => {
                self.count(if further.is_empty() { "grow" } else { "grow by disks" });
                {
                    let mut state = self.state.borrow_mut();
                    state.labelled[index].disks.clone_from(&after);
                    state.half_taken.retain(|disk| !further.contains(disk));
                    disks.extend(&further);
                    state.enlarged.retain(|disk| !disks.contains(disk));
                }
                self.publish_labelled(index).await;
                {
                    let mut state = self.state.borrow_mut();
                    state.labelled[index].growing = None;
                    state.oracle.grown(number, growth.after_bytes() / BLOCK_BYTES as u64);
                }
                let id = self.serving[&index].id;
                self.connect_to(number, id, Some(habits));
            }
            Err(braid_array_admin::lifecycle::LifecycleError::NoGrowth { .. }) => {
                self.count("growth refused");
                let mut state = self.state.borrow_mut();
                state.labelled[index].growing = None;
                state.half_taken.retain(|disk| !further.contains(disk));
            }
            Err(error) => {
                self.expect_fault(&error, "an array could not grow");
                let mut state = self.state.borrow_mut();
                state.labelled[index].tainted = true;
                // Disks that it did not get may keep a label, if they failed again while it was erased.
                state.labelled[index].scattered |= !further.is_empty();
            }
        }
    }
}
