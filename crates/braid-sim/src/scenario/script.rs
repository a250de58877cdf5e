//! The administrator follows a scenario step by step.

use std::collections::BTreeMap;

use braid_array_admin::lifecycle::{RebuildKind, RebuildTarget};
use braid_array_admin::reconciler::Order;
use braid_engine::EngineIo;
use braid_format::MemberId;

use super::{Admin, AdminHabits};
use crate::acts::{BetweenLives, DiskFault, Step, Wait};
use crate::bounds::Bounds;
use crate::content::BLOCK_BYTES;
use crate::copies::label_on;
use crate::disk::Survival;
use crate::mirrors::Mirror;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::rot::RotRequest;
use crate::world::World;

impl Admin {
    /// Performs all steps.
    pub(super) async fn follow(&mut self, steps: &[Step], bounds: Bounds, habits: AdminHabits) {
        for step in steps {
            let serving = self.mirrors.keys().next().copied();
            if let Some(index) = serving {
                self.state.borrow_mut().notes.push(format!("scenario: {step:?}"));
                self.do_step(index, *step, bounds, habits).await;
            }
        }
    }

    async fn do_step(&mut self, index: usize, step: Step, bounds: Bounds, habits: AdminHabits) {
        let (id, disk, number) = {
            let state = self.state.borrow();
            let mirror = &state.mirrors[index];
            (self.mirrors[&index].id, mirror.victims[0], mirror.number.expect("a served array has a number"))
        };
        let slot = self.state.borrow().mirrors[index].disks.iter().position(|d| *d == disk);
        let slot = slot.expect("the victim is a member") as u16;
        match step {
            Step::Work(mut work, area, wait) => {
                work.requests = work.requests.min(u64::from(bounds.requests));
                for _ in 0..work.clients.min(u64::from(bounds.clients)) {
                    let shard = self.rng.below(u64::from(self.shards)) as u16;
                    let mut state = self.state.borrow_mut();
                    let blocks = state.oracle.blocks(number);
                    let area = area.map_or((0, blocks), |(first, count)| (first, count.min(blocks)));
                    let stripe = state.mirrors[index].stripe_blocks;
                    state.workload.connect_for(number, id, shard, area, &work);
                    state.workload.write_stripes(stripe, work.stripes);
                }
                if wait == Wait::Ended {
                    self.until(|state| state.workload.is_finished(number)).await;
                }
            }
            Step::Rest(u64::MAX) => {
                self.state.borrow_mut().moments.push("nothing more to do");
                self.port.sleep(1_000_000).await;
            }
            Step::Rest(ns) => self.port.sleep(ns).await,
            Step::AwaitClean => {
                let regions = std::sync::Arc::clone(&self.mirrors[&index].regions);
                self.await_a_while(100_000_000, |_| regions.dirty.count() == 0).await;
            }
            Step::AwaitWhole => {
                self.phase("rebuilding a member");
                let whole = self.await_a_while(300_000_000, |state| state.promoted.contains(&slot)).await;
                let stuck = !whole && !self.state.borrow().oracle.unreadable_blocks(number).is_empty();
                if stuck && self.state.borrow().jobs.of(id).iter().any(|job| job.member == Some(slot)) {
                    self.count("a member lacks what cannot be read");
                }
            }
            Step::Await(moment) => {
                let before = self.state.borrow().seen(moment);
                let patience_ns = if moment == "dropped" { 40_000_000_000 } else { 50_000_000 };
                self.await_a_while(patience_ns, |state| state.seen(moment) > before).await;
            }
            Step::Fail => {
                self.phase("failing a member");
                match self.port.give_order(id, Order::Fail(vec![slot])).await {
                    Ok(()) => self.count("fail a member"),
                    Err(error) => self.expect_refusal(&error),
                }
            }
            Step::Pull => {
                self.count("pull a member");
                self.state.borrow_mut().pull.push(disk);
                self.until(|state| state.pull.is_empty()).await;
            }
            Step::FillUp => {
                self.count("fill the file system of an array");
                {
                    let mut state = self.state.borrow_mut();
                    // Several members may fail for lack of space.
                    state.oracle.may_fail(number);
                    state.mirrors[index].healthy = None;
                    state.fill_up = state.mirrors[index].disks.clone();
                }
                self.until(|state| state.fill_up.is_empty()).await;
            }
            Step::PullMany => {
                self.count("pull more members than may be lost");
                let mut disks = {
                    let mut state = self.state.borrow_mut();
                    state.oracle.may_fail(number);
                    state.mirrors[index].healthy = None;
                    state.mirrors[index].disks.clone()
                };
                self.rng.shuffle(&mut disks);
                let parity = self.state.borrow().mirrors[index].spec.level.parity();
                disks.truncate(usize::from(parity) + 1);
                for disk in disks {
                    self.state.borrow_mut().pull.push(disk);
                    if self.rng.coin() {
                        self.port.sleep(self.rng.below(3_000_000)).await;
                    }
                }
                self.until(|state| state.pull.is_empty()).await;
            }
            Step::Return | Step::Back | Step::Renew => self.return_victim(index, slot, step).await,
            Step::Hang(chance) => self.state.borrow_mut().disk_faults.push((disk, DiskFault::Hang(chance))),
            Step::WriteErrors(chance) => {
                self.state.borrow_mut().disk_faults.push((disk, DiskFault::WriteErrors(chance)))
            }
            Step::Replace(target) => self.replace_in_scenario(index, slot, target).await,
            Step::AwaitReplaced => {
                self.await_a_while(300_000_000, |state| state.seen("replaced") > 0).await;
            }
            Step::FaultSuccessor => {
                let mut state = self.state.borrow_mut();
                let successor = state.mirrors[index].others[0];
                state.at_freeze.push((successor, DiskFault::FlushErrors(1_000_000)));
            }
            Step::HealSuccessor => {
                let mut state = self.state.borrow_mut();
                state.at_freeze.clear();
                let successor = state.mirrors[index].others[0];
                state.disk_faults.push((successor, DiskFault::FlushErrors(0)));
            }
            Step::Grow => self.grow_mirror(index, habits).await,
            Step::GrowByDisks => self.grow_by_disks(index, habits).await,
            Step::Unreadable(count) => {
                {
                    let mut state = self.state.borrow_mut();
                    // The victim is not in sync.
                    let requests = state.mirrors[index].some_blocks(count, &[disk], &mut self.rng);
                    state.unreadable.extend(requests);
                }
                self.until(|state| state.unreadable.is_empty()).await;
            }
            Step::Overwrite if !self.state.borrow().oracle.unreadable_ranges(number).is_empty() => {
                self.write_unreadable_stripes(number, id);
                self.until(|state| state.workload.is_finished(number)).await;
            }
            Step::Overwrite => {
                let lost = self.state.borrow().oracle.unreadable_blocks(number);
                {
                    let mut state = self.state.borrow_mut();
                    let blocks = state.oracle.blocks(number);
                    state.workload.connect_writer(number, id, 0, blocks, lost.len() as u32);
                    state.workload.write_blocks(&lost);
                }
                self.until(|state| state.workload.is_finished(number)).await;
            }
            Step::WriteParts => {
                let stripes = self.state.borrow().oracle.unreadable_ranges(number);
                if !stripes.is_empty() {
                    self.count("write parts of unreadable stripes");
                    let parts: Vec<(u64, u64)> =
                        stripes.iter().map(|(first, count)| (first + self.rng.below(*count), 1)).collect();
                    self.state.borrow_mut().workload.connect_overwriter(number, id, 0, &parts);
                    self.until(|state| state.workload.is_finished(number)).await;
                }
            }
            Step::WriteAll => {
                {
                    let mut state = self.state.borrow_mut();
                    let (blocks, stripe) = (state.oracle.blocks(number), state.mirrors[index].stripe_blocks.max(1));
                    let stripes: Vec<(u64, u64)> =
                        (0..blocks).step_by(stripe as usize).map(|first| (first, stripe.min(blocks - first))).collect();
                    state.workload.connect_overwriter(number, id, 0, &stripes);
                    state.workload.then_flush();
                }
                self.until(|state| state.workload.is_finished(number)).await;
            }
            Step::ReadAll => {
                self.state.borrow_mut().workload.connect_verifier(number, id, 0);
                self.until(|state| state.workload.is_finished(number)).await;
            }
            Step::ReadBeside(count) => {
                for _ in 0..count {
                    let shard = self.rng.below(u64::from(self.shards)) as u16;
                    self.state.borrow_mut().workload.connect_verifier(number, id, shard);
                }
            }
            Step::JournalOn => self.journal_on(index).await,
            Step::JournalToMembers => self.journal_to_members(index).await,
            Step::PullJournal | Step::FaultJournal(_) => {
                let holder = self.state.borrow().mirrors[index].journal.holders.first().copied();
                match (holder, step) {
                    (Some(disk), Step::FaultJournal(fault)) => self.state.borrow_mut().disk_faults.push((disk, fault)),
                    (Some(disk), _) => self.pull_journal(disk).await,
                    (None, _) => {}
                }
            }
            Step::Check => {
                self.check_mirror(index).await;
                self.connect_to(number, id, Some(habits));
            }
        }
    }

    /// Returns the victim, as the member that it was or as a new disk.
    async fn return_victim(&mut self, index: usize, slot: u16, step: Step) {
        let id = self.mirrors[&index].id;
        let disk = self.state.borrow().mirrors[index].victims[0];
        let Some(leaf) = self.leaves.get(&disk).copied() else { return };
        self.phase("returning a member");
        if !matches!(step, Step::Renew) {
            match self.port.give_order(id, Order::Return { leaf, kept_writes: false }).await {
                Ok(()) => return self.count("return a member"),
                Err(error) => self.expect_refusal(&error),
            }
            if matches!(step, Step::Return) {
                return;
            }
        }
        if let Err(error) = self.port.give_order(id, Order::Fail(vec![slot])).await {
            return self.expect_refusal(&error);
        }
        // A new disk: its earlier content is gone.
        self.port.reopen(leaf).await;
        self.state.borrow_mut().disk_faults.push((disk, DiskFault::Wipe));
        self.until(|state| state.disk_faults.is_empty()).await;
        let new_member = RebuildTarget::New { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
        match self.port.give_order(id, Order::Rebuild { slot, target: new_member, kind: RebuildKind::Full }).await {
            Ok(()) => {
                self.count("rebuild a member as new");
                let mut state = self.state.borrow_mut();
                state.mirrors[index].diverged.remove(&disk);
                state.mirrors[index].old.remove(&disk);
            }
            Err(error) => self.expect_refusal(&error),
        }
    }

    /// Waits until a condition holds, at most for `ns` nanoseconds. Returns whether it holds.
    async fn await_a_while(&self, ns: u64, mut holds: impl FnMut(&crate::run_state::RunState) -> bool) -> bool {
        let until_ns = self.port.now_ns() + ns;
        let mut held = false;
        self.until(|state| {
            held = holds(state);
            held || self.port.now_ns() >= until_ns
        })
        .await;
        held
    }
}

impl Mirror {
    /// Returns whether some of its blocks are unreadable on all members.
    pub fn has_lost(&self, oracle: &Oracle) -> bool {
        self.number.is_some_and(|number| !oracle.unreadable_blocks(number).is_empty())
    }

    /// Draws some blocks, with the places of their copies except those on the disks `without`.
    pub fn some_blocks(&self, count: u64, without: &[usize], rng: &mut Rng) -> Vec<RotRequest> {
        let (Some((geometry, members)), Some(number)) = (&self.places, self.number) else { return Vec::new() };
        let blocks = geometry.size_bytes() / BLOCK_BYTES as u64;
        let mut requests = BTreeMap::new();
        for _ in 0..count {
            let block = rng.below(blocks);
            let mut places = Vec::new();
            geometry.copies(block * BLOCK_BYTES as u64, &mut |piece| {
                let (disk, start) = members[usize::from(piece.member)];
                places.push((disk, start + piece.member_offset));
            });
            places.retain(|(disk, _)| !without.contains(disk));
            requests.insert(block, RotRequest { device: number, block, places, cell: None });
        }
        requests.into_values().collect()
    }

    /// Applies a change between two lives. `promoted`: the victim is certainly in sync.
    pub fn apply_between_lives(
        &mut self,
        what: BetweenLives,
        promoted: bool,
        world: &mut World,
        oracle: &mut Oracle,
        rng: &mut Rng,
    ) {
        let all_in_sync = || {
            let labels: Vec<_> = self.disks.iter().map(|disk| label_on(world, *disk)).collect();
            labels.iter().all(|label| {
                let of = |label: &braid_format::Label| {
                    let in_sync = |m: &braid_format::MemberEntry| m.state == braid_format::MemberState::InSync;
                    Some(label.array.uuid) == self.uuid
                        && label.array.members.iter().take(self.disks.len()).all(in_sync)
                };
                label.as_ref().is_some_and(of)
            })
        };
        match what {
            BetweenLives::LoseOthers if promoted => self.lose_all_but(self.victims[0], world, rng),
            BetweenLives::LoseAllButOne if self.number.is_some() && all_in_sync() => {
                let one = *rng.pick(&self.disks);
                self.lose_all_but(one, world, rng);
            }
            BetweenLives::LoseOthersOfAll if self.number.is_some() && all_in_sync() => {
                self.lose_all_but(self.victims[0], world, rng);
            }
            BetweenLives::LoseOthersOfSuccessor => {
                let successor = self.others[0];
                let in_sync = |label: &braid_format::Label| {
                    let own = |m: &&braid_format::MemberEntry| m.id == Some(label.member.id);
                    let of = label.array.members.iter().find(own).map(|m| m.state);
                    Some(label.array.uuid) == self.uuid && of == Some(braid_format::MemberState::InSync)
                };
                if self.number.is_some() && label_on(world, successor).is_some_and(|label| in_sync(&label)) {
                    self.lose_all_but(successor, world, rng);
                }
            }
            BetweenLives::LoseSome => self.lose_some(world, rng),
            BetweenLives::LoseJournal => self.lose_journal(world, rng),
            BetweenLives::CopyJournal => self.journal.copy(world, rng),
            BetweenLives::RestoreJournal => self.journal.restore_copy(world, rng),
            BetweenLives::LoseMany => self.lose_many(world, rng),
            BetweenLives::FindAll => self.missing.clear(),
            BetweenLives::LoseOthers | BetweenLives::LoseAllButOne | BetweenLives::LoseOthersOfAll => {}
            BetweenLives::SplitBrain => self.split_at_next_start = true,
            BetweenLives::Copy | BetweenLives::Restore => self.copy_or_restore_now(world, rng),
            BetweenLives::Unreadable(count) => {
                for request in self.some_blocks(count, &[], rng) {
                    make_unreadable(&request, world, oracle);
                }
            }
        }
    }

    fn lose_all_but(&mut self, one: usize, world: &mut World, rng: &mut Rng) {
        world.note(format_args!("all disks of the array but {one} are lost"));
        world.counters.add("fault", "all but one lost");
        self.healthy = Some(one);
        for disk in self.disks.iter().chain(&self.others).filter(|disk| **disk != one) {
            world.disks[*disk].cut_power(Survival::All, rng);
            world.disks[*disk].gone = true;
            self.missing.insert(*disk);
        }
    }
}

/// Makes all copies of a block unreadable until it is written.
pub fn make_unreadable(request: &RotRequest, world: &mut World, oracle: &mut Oracle) {
    for (disk, offset) in &request.places {
        world.disks[*disk].make_unreadable_for_good(*offset);
    }
    oracle.mark_unreadable(request.device, request.block);
    world.counters.add("fault", "no copy can be read");
    world.note(format_args!("block {} of device {} can be read nowhere", request.block, request.device));
}
