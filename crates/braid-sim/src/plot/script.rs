//! An administrator who follows a drill.

use std::collections::BTreeMap;

use braid_engine::keeper::{EngineIo, Order};
use braid_engine::lifecycle::{RebuildKind, RebuildTarget};
use braid_format::MemberId;

use super::drills::{Between, Step, Wait};
use super::mirrors::Mirror;
use super::{Admin, Habits};
use crate::content::BLOCK_BYTES;
use crate::copies::label_on;
use crate::disk::Survival;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::rot::Wish;
use crate::shrink::Bounds;
use crate::world::World;

/// What a drill wants of a disk.
#[derive(Clone, Copy, Debug)]
pub enum Spoil {
    /// So many of a million I/Os hang.
    Hang(u32),
    /// So many of a million writes fail.
    WriteErrors(u32),
    /// So many of a million flushes fail.
    FlushErrors(u32),
    /// It is as it came from the factory.
    Wipe,
}

impl Spoil {
    /// From now on.
    pub fn apply(self, world: &mut World, disk: usize) {
        let of = &mut world.disks[disk];
        match self {
            Spoil::Hang(chance) => of.profile.hang = chance,
            Spoil::WriteErrors(chance) => of.profile.write_error = chance,
            Spoil::FlushErrors(chance) => of.profile.flush_error = chance,
            Spoil::Wipe => of.wipe(),
        }
        world.note(format_args!("disk {disk}: {self:?}"));
    }
}

impl Admin {
    /// Does all of it.
    pub(super) async fn follow(&mut self, steps: &[Step], bounds: Bounds, habits: Habits) {
        for step in steps {
            let serving = self.kept.keys().next().copied();
            if let Some(index) = serving {
                self.stage.borrow_mut().notes.push(format!("drill: {step:?}"));
                self.do_step(index, *step, bounds, habits).await;
            }
        }
    }

    async fn do_step(&mut self, index: usize, step: Step, bounds: Bounds, habits: Habits) {
        let (id, disk, number) = {
            let stage = self.stage.borrow();
            let mirror = &stage.mirrors[index];
            (self.kept[&index].id, mirror.victims[0], mirror.number.expect("a served array has a number"))
        };
        let role = self.stage.borrow().mirrors[index].disks.iter().position(|d| *d == disk);
        let role = role.expect("the victim is a member") as u16;
        match step {
            Step::Work(mut work, area, wait) => {
                work.requests = work.requests.min(u64::from(bounds.requests));
                for _ in 0..work.clients.min(u64::from(bounds.clients)) {
                    let shard = self.rng.below(u64::from(self.shards)) as u16;
                    let mut stage = self.stage.borrow_mut();
                    let blocks = stage.oracle.blocks(number);
                    let area = area.map_or((0, blocks), |(first, count)| (first, count.min(blocks)));
                    let row = stage.mirrors[index].row_blocks;
                    stage.workload.connect_for(number, id, shard, area, &work);
                    stage.workload.write_rows(row, work.rows);
                }
                if wait == Wait::Ended {
                    self.until(|stage| stage.workload.is_finished(number)).await;
                }
            }
            Step::Rest(u64::MAX) => {
                self.stage.borrow_mut().moments.push("nothing more to do");
                self.port.sleep(1_000_000).await;
            }
            Step::Rest(ns) => self.port.sleep(ns).await,
            Step::AwaitClean => {
                let regions = std::sync::Arc::clone(&self.kept[&index].regions);
                self.await_a_while(100_000_000, |_| regions.dirty.count() == 0).await;
            }
            Step::AwaitWhole => {
                self.phase("filling a member");
                let whole = self.await_a_while(300_000_000, |stage| stage.promoted.contains(&role)).await;
                let stuck = !whole && !self.stage.borrow().oracle.lost(number).is_empty();
                if stuck && self.stage.borrow().jobs.of(id).iter().any(|job| job.member == Some(role)) {
                    self.count("a member lacks what cannot be read");
                }
            }
            Step::Await(moment) => {
                let before = self.stage.borrow().seen(moment);
                let patience_ns = if moment == "dropped" { 40_000_000_000 } else { 50_000_000 };
                self.await_a_while(patience_ns, |stage| stage.seen(moment) > before).await;
            }
            Step::Fail => {
                self.phase("failing a member");
                match self.port.give_order(id, Order::Fail(vec![role])).await {
                    Ok(()) => self.count("fail a member"),
                    Err(error) => self.expect_refusal(&error),
                }
            }
            Step::Pull => {
                self.count("pull a member");
                self.stage.borrow_mut().pull.push(disk);
                self.until(|stage| stage.pull.is_empty()).await;
            }
            Step::FillUp => {
                self.count("fill the file system of an array");
                {
                    let mut stage = self.stage.borrow_mut();
                    // More than one member may meet it.
                    stage.oracle.may_fail(number);
                    stage.mirrors[index].well = None;
                    stage.fill_up = stage.mirrors[index].disks.clone();
                }
                self.until(|stage| stage.fill_up.is_empty()).await;
            }
            Step::PullMany => {
                self.count("pull more members than may be lost");
                let mut disks = {
                    let mut stage = self.stage.borrow_mut();
                    stage.oracle.may_fail(number);
                    stage.mirrors[index].well = None;
                    stage.mirrors[index].disks.clone()
                };
                self.rng.shuffle(&mut disks);
                let parity = self.stage.borrow().mirrors[index].spec.level.parity();
                disks.truncate(usize::from(parity) + 1);
                for disk in disks {
                    self.stage.borrow_mut().pull.push(disk);
                    if self.rng.coin() {
                        self.port.sleep(self.rng.below(3_000_000)).await;
                    }
                }
                self.until(|stage| stage.pull.is_empty()).await;
            }
            Step::Return | Step::Back | Step::Renew => self.bring_back(index, role, step).await,
            Step::Hang(chance) => self.stage.borrow_mut().spoil.push((disk, Spoil::Hang(chance))),
            Step::WriteErrors(chance) => self.stage.borrow_mut().spoil.push((disk, Spoil::WriteErrors(chance))),
            Step::Replace(whom) => self.replace_by_drill(index, role, whom).await,
            Step::AwaitReplaced => {
                self.await_a_while(300_000_000, |stage| stage.seen("replaced") > 0).await;
            }
            Step::SpoilSuccessor => {
                let mut stage = self.stage.borrow_mut();
                let successor = stage.mirrors[index].others[0];
                stage.at_freeze.push((successor, Spoil::FlushErrors(1_000_000)));
            }
            Step::HealSuccessor => {
                let mut stage = self.stage.borrow_mut();
                stage.at_freeze.clear();
                let successor = stage.mirrors[index].others[0];
                stage.spoil.push((successor, Spoil::FlushErrors(0)));
            }
            Step::Grow => self.grow_mirror(index, habits).await,
            Step::GrowByDisks => self.grow_by_disks(index, habits).await,
            Step::Unreadable(count) => {
                {
                    let mut stage = self.stage.borrow_mut();
                    // The victim is out.
                    let wishes = stage.mirrors[index].some_blocks(count, &[disk], &mut self.rng);
                    stage.unreadable.extend(wishes);
                }
                self.until(|stage| stage.unreadable.is_empty()).await;
            }
            Step::Overwrite if !self.stage.borrow().oracle.broken_ranges(number).is_empty() => {
                self.write_broken_rows(number, id);
                self.until(|stage| stage.workload.is_finished(number)).await;
            }
            Step::Overwrite => {
                let lost = self.stage.borrow().oracle.lost(number);
                {
                    let mut stage = self.stage.borrow_mut();
                    let blocks = stage.oracle.blocks(number);
                    stage.workload.connect_writer(number, id, 0, blocks, lost.len() as u32);
                    stage.workload.write_these(&lost);
                }
                self.until(|stage| stage.workload.is_finished(number)).await;
            }
            Step::WriteParts => {
                let rows = self.stage.borrow().oracle.broken_ranges(number);
                if !rows.is_empty() {
                    self.count("write parts of unreadable rows");
                    let parts: Vec<(u64, u64)> =
                        rows.iter().map(|(first, count)| (first + self.rng.below(*count), 1)).collect();
                    self.stage.borrow_mut().workload.connect_overwriter(number, id, 0, &parts);
                    self.until(|stage| stage.workload.is_finished(number)).await;
                }
            }
            Step::WriteAll => {
                {
                    let mut stage = self.stage.borrow_mut();
                    let (blocks, row) = (stage.oracle.blocks(number), stage.mirrors[index].row_blocks.max(1));
                    let rows: Vec<(u64, u64)> =
                        (0..blocks).step_by(row as usize).map(|first| (first, row.min(blocks - first))).collect();
                    stage.workload.connect_overwriter(number, id, 0, &rows);
                    stage.workload.then_flush();
                }
                self.until(|stage| stage.workload.is_finished(number)).await;
            }
            Step::ReadAll => {
                self.stage.borrow_mut().workload.connect_verifier(number, id, 0);
                self.until(|stage| stage.workload.is_finished(number)).await;
            }
            Step::ReadBeside(count) => {
                for _ in 0..count {
                    let shard = self.rng.below(u64::from(self.shards)) as u16;
                    self.stage.borrow_mut().workload.connect_verifier(number, id, shard);
                }
            }
            Step::JournalOn => self.journal_on(index).await,
            Step::JournalToMembers => self.journal_to_members(index).await,
            Step::PullJournal | Step::SpoilJournal(_) => {
                let holder = self.stage.borrow().mirrors[index].journal.holders.first().copied();
                match (holder, step) {
                    (Some(disk), Step::SpoilJournal(spoil)) => self.stage.borrow_mut().spoil.push((disk, spoil)),
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

    /// The victim comes back, as who it was or as a new disk.
    async fn bring_back(&mut self, index: usize, role: u16, step: Step) {
        let id = self.kept[&index].id;
        let disk = self.stage.borrow().mirrors[index].victims[0];
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
        if let Err(error) = self.port.give_order(id, Order::Fail(vec![role])).await {
            return self.expect_refusal(&error);
        }
        // A new disk: nothing is left of what was on it.
        self.port.reopen(leaf).await;
        self.stage.borrow_mut().spoil.push((disk, Spoil::Wipe));
        self.until(|stage| stage.spoil.is_empty()).await;
        let newcomer = RebuildTarget::New { leaf, id: MemberId::from_random(self.rng.bits()), force: true };
        match self.port.give_order(id, Order::Rebuild { slot: role, target: newcomer, kind: RebuildKind::Full }).await {
            Ok(()) => {
                self.count("fill a member anew");
                let mut stage = self.stage.borrow_mut();
                stage.mirrors[index].apart.remove(&disk);
                stage.mirrors[index].old.remove(&disk);
            }
            Err(error) => self.expect_refusal(&error),
        }
    }

    /// Waits until something holds, at most for some time. False: it does not.
    async fn await_a_while(&self, ns: u64, mut holds: impl FnMut(&crate::stage::Stage) -> bool) -> bool {
        let until_ns = self.port.now_ns() + ns;
        let mut held = false;
        self.until(|stage| {
            held = holds(stage);
            held || self.port.now_ns() >= until_ns
        })
        .await;
        held
    }
}

impl Mirror {
    /// Whether some of its blocks can be read nowhere.
    pub fn has_lost(&self, oracle: &Oracle) -> bool {
        self.number.is_some_and(|number| !oracle.lost(number).is_empty())
    }

    /// Some blocks, and where their copies are: but for those on some disks.
    pub fn some_blocks(&self, count: u64, without: &[usize], rng: &mut Rng) -> Vec<Wish> {
        let (Some((geometry, members)), Some(number)) = (&self.places, self.number) else { return Vec::new() };
        let blocks = geometry.size_bytes() / BLOCK_BYTES as u64;
        let mut wishes = BTreeMap::new();
        for _ in 0..count {
            let block = rng.below(blocks);
            let mut places = Vec::new();
            geometry.copies(block * BLOCK_BYTES as u64, &mut |piece| {
                let (disk, start) = members[usize::from(piece.member)];
                places.push((disk, start + piece.member_offset));
            });
            places.retain(|(disk, _)| !without.contains(disk));
            wishes.insert(block, Wish { device: number, block, places, cell: None });
        }
        wishes.into_values().collect()
    }

    /// What a drill wants between two lives. `promoted`: the victim is in sync for certain.
    pub fn between(&mut self, what: Between, promoted: bool, world: &mut World, oracle: &mut Oracle, rng: &mut Rng) {
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
            Between::LoseOthers if promoted => self.lose_all_but(self.victims[0], world, rng),
            Between::LoseAllButOne if self.number.is_some() && all_in_sync() => {
                let one = *rng.pick(&self.disks);
                self.lose_all_but(one, world, rng);
            }
            Between::LoseOthersOfAll if self.number.is_some() && all_in_sync() => {
                self.lose_all_but(self.victims[0], world, rng);
            }
            Between::LoseOthersOfSuccessor => {
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
            Between::LoseSome => self.lose_some(world, rng),
            Between::LoseJournal => self.lose_journal(world, rng),
            Between::CopyJournal => self.journal.copy(world, rng),
            Between::RestoreJournal => self.journal.restore_copy(world, rng),
            Between::LoseMany => self.lose_many(world, rng),
            Between::FindAll => self.missing.clear(),
            Between::LoseOthers | Between::LoseAllButOne | Between::LoseOthersOfAll => {}
            Between::Apart => self.go_apart = true,
            Between::Copy | Between::Restore => self.copy_or_restore_now(world, rng),
            Between::Unreadable(count) => {
                for wish in self.some_blocks(count, &[], rng) {
                    make_unreadable(&wish, world, oracle);
                }
            }
        }
    }

    fn lose_all_but(&mut self, one: usize, world: &mut World, rng: &mut Rng) {
        world.note(format_args!("all disks of the array but {one} are lost"));
        world.counters.add("fault", "all but one lost");
        self.well = Some(one);
        for disk in self.disks.iter().chain(&self.others).filter(|disk| **disk != one) {
            world.disks[*disk].cut_power(Survival::All, rng);
            world.disks[*disk].gone = true;
            self.missing.insert(*disk);
        }
    }
}

/// No copy of a block gives it any more, until it is written.
pub fn make_unreadable(wish: &Wish, world: &mut World, oracle: &mut Oracle) {
    for (disk, offset) in &wish.places {
        world.disks[*disk].make_unreadable_for_good(*offset);
    }
    oracle.lose(wish.device, wish.block);
    world.counters.add("fault", "no copy can be read");
    world.note(format_args!("block {} of device {} can be read nowhere", wish.block, wish.device));
}
