//! The journal of an array with parity on a disk of its own: the administrator puts it there and back, and that disk fails, is not
//! here when a life begins, or turns up as an old copy of itself.
//!
//! Nothing that was promised depends on it. Only where it is lost with a crash and a member is absent as well nobody knows which parity
//! fits the data: then, and never else, the array waits until one of the two is back.

use std::collections::{BTreeMap, BTreeSet};

use braid_engine::io::LeafId;
use braid_engine::keeper::Order;
use braid_engine::lifecycle::{self, Array, CreateRequest, LifecycleError};
use braid_format::{DiskLayout, Label, MemberId, MemberState};

use super::mirrors::Mirror;
use super::script::Spoil;
use super::{Admin, Habits};
use crate::copies::label_on;
use crate::disk::{Image, Profile, Survival};
use crate::oracle::Violation;
use crate::rng::Rng;
use crate::sim::Sim;
use crate::stage::Stage;
use crate::world::World;

/// Least size of a disk that can hold a label, in bytes.
const SIZE_MIN: u64 = (1 << 20) + 8192;

/// Disks for the journal of one array with parity.
#[derive(Default)]
pub struct JournalDisks {
    /// They are no members.
    pub disks: Vec<usize>,
    /// One that is too small.
    pub(crate) small: Option<usize>,
    /// Of these, where the ring may be, if it is not on the members.
    pub holders: BTreeSet<usize>,
    /// An older copy of itself has taken the place of this one.
    pub old: BTreeSet<usize>,
    /// A copy of one of them.
    image: Option<(usize, Image)>,
    /// The array was stopped in order, and nobody has tried to start it since: the journal is empty.
    pub stopped: bool,
    /// When it was started last, what the journal held was lost.
    pub done_without: bool,
    /// Nobody may start the array without what is gone for good: it was judged so when it was tried last.
    pub(super) waits: bool,
    /// Chances in a million that one is not there when a life begins.
    unplug: u32,
    /// Old copies may turn up.
    wild: bool,
}

/// What some of the disks of a journal are to do.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// They make errors.
    pub faults: bool,
    /// They may be absent, and be replaced by old copies.
    pub wild: bool,
}

impl JournalDisks {
    /// Puts one or two on the table, and perhaps one that is too small.
    pub fn draw(sim: &mut Sim, chance: &mut Rng, manners: Manners) -> JournalDisks {
        let mut of = JournalDisks { wild: manners.wild, ..JournalDisks::default() };
        for _ in 0..chance.between(1, 2) {
            let profile =
                if manners.faults && chance.coin() { Profile::faulty(chance) } else { Profile::healthy(chance) };
            // The least has a ring as large as those of members.
            let more = if chance.below(3) == 0 { 0 } else { 4096 * chance.below(400) };
            let disk = sim.add_disk(SIZE_MIN + more, chance.coin(), profile);
            let places = DiskLayout::for_journal(SIZE_MIN + more).expect("a disk that has room for labels");
            sim.world.bitmaps.insert(disk, (places.bitmap.start, places.bitmap.start + places.bitmap.bytes));
            sim.world.journals.insert(disk, (places.journal.start, places.journal.start + places.journal.bytes));
            sim.world.journal_disks.insert(disk);
            of.disks.push(disk);
        }
        if chance.below(3) == 0 {
            let size_bytes = SIZE_MIN - 4096 * chance.between(1, 200);
            of.small = Some(sim.add_disk(size_bytes, true, Profile::healthy(chance)));
        }
        if manners.wild {
            of.unplug = *chance.pick(&[0, 100_000, 400_000]);
        }
        of
    }

    /// What holds the ring is not here, or is not what it was.
    fn lacks(&self, here: &BTreeSet<usize>, world: &World) -> bool {
        self.holders.iter().any(|disk| !here.contains(disk) || world.disks[*disk].gone || self.old.contains(disk))
    }

    /// Somebody tries to start the array: says whether its journal was known to be empty.
    pub fn takes_up(&mut self) -> bool {
        std::mem::take(&mut self.stopped)
    }

    /// Between two lives: whether each is there, and is what it was.
    pub fn between_lives(&mut self, whole: bool, world: &mut World, chance: &mut Rng) {
        if !self.wild {
            return;
        }
        match (chance.below(6), self.image.take()) {
            (0, None) => self.copy(world, chance),
            // Where somebody is out and the journal is lost for good, force alone would start it.
            (0, Some(image)) if whole || self.stopped => self.restore(image, world, chance),
            (_, image) => self.image = image,
        }
        for disk in &self.disks {
            if chance.chance(self.unplug) {
                lose(*disk, world, chance);
                world.counters.add("fault", "a journal disk is not there");
            }
        }
    }

    /// Somebody copies the one that holds the ring.
    pub fn copy(&mut self, world: &mut World, chance: &mut Rng) {
        if let Some(disk) = self.holders.first() {
            self.image = Some((*disk, world.disks[*disk].image(chance)));
        }
    }

    /// The copy takes its place, if there is one.
    pub fn restore_copy(&mut self, world: &mut World, chance: &mut Rng) {
        if let Some(image) = self.image.take() {
            self.restore(image, world, chance);
        }
    }

    fn restore(&mut self, (disk, image): (usize, Image), world: &mut World, chance: &mut Rng) {
        world.counters.add("fault", "old copy of a journal disk");
        world.note(format_args!("disk {disk}, of the journal, is replaced by an older copy of it"));
        world.disks[disk].restore(image, chance);
        self.old.insert(disk);
    }
}

/// A disk is not there any more; what it had cached is on the medium.
fn lose(disk: usize, world: &mut World, rng: &mut Rng) {
    world.disks[disk].cut_power(Survival::All, rng);
    world.disks[disk].gone = true;
}

/// An array was not started for want of its journal: it is to be judged whether that is right.
pub struct Refused {
    index: usize,
    /// The disks that there were.
    here: BTreeSet<usize>,
    /// It is known that it was stopped in order.
    stopped: bool,
}

impl Refused {
    /// This array, with these disks.
    pub fn new(index: usize, leaves: &BTreeMap<usize, LeafId>, here: &[LeafId], stopped: bool) -> Refused {
        let here = leaves.iter().filter(|(_, leaf)| here.contains(leaf)).map(|(disk, _)| *disk).collect();
        Refused { index, here, stopped }
    }

    /// # Errors
    /// It had to start.
    pub fn judge(&self, world: &World, mirrors: &[Mirror]) -> Result<(), Violation> {
        let mirror = &mirrors[self.index];
        let journal = &mirror.journal;
        let why = if world.had_faults() || !mirror.apart.is_empty() || !mirror.old.is_empty() {
            return Ok(());
        } else if self.stopped {
            "it was stopped in order"
        } else if journal.holders.is_empty() {
            "its journal is on its members"
        } else if !journal.lacks(&self.here, world) {
            "the disk of its journal is here"
        } else if mirror.has_all(&self.here, world) {
            "all its members are here and in sync"
        } else {
            return Ok(());
        };
        Err(Violation(format!("mirror {} waits for the disk of its journal, but {why}", self.index)))
    }
}

impl Mirror {
    /// Whether all members are among these disks, and in sync by the newest label and by their own.
    pub fn has_all(&self, here: &BTreeSet<usize>, world: &World) -> bool {
        let own = |disk: &usize| label_on(world, *disk).filter(|label| Some(label.array.uuid) == self.uuid);
        let disks =
            self.disks.iter().chain(&self.others).filter(|disk| here.contains(disk) && !world.disks[**disk].gone);
        let labels: Vec<Label> = disks.filter_map(own).collect();
        let Some(newest) = labels.iter().max_by_key(|label| label.array.order()) else { return false };
        let calls = |label: &Label, id: MemberId| {
            label.array.members.iter().any(|m| m.id == Some(id) && m.state == MemberState::InSync)
        };
        let is_here =
            |id: MemberId| labels.iter().any(|label| label.member.id == id && calls(label, id) && calls(newest, id));
        let seats = &newest.array.members[..self.disks.len().min(newest.array.members.len())];
        seats.iter().all(|seat| seat.id.is_some_and(is_here))
    }

    /// The disk that holds the ring is lost, if one may.
    pub fn lose_journal(&mut self, world: &mut World, rng: &mut Rng) {
        for disk in &self.journal.holders {
            world.note(format_args!("disk {disk}, of the journal, is lost"));
            world.counters.add("fault", "the journal is lost with a crash");
            lose(*disk, world, rng);
            self.missing.insert(*disk);
        }
    }
}

impl Stage {
    /// The ring of an array has moved, or it is known again where it is.
    pub fn ring_is_on(&mut self, index: usize, disk: Option<usize>) {
        let mirror = &mut self.mirrors[index];
        mirror.journal.holders = disk.into_iter().collect();
        mirror.journal.old.retain(|old| Some(*old) != disk);
        mirror.apart.retain(|apart| Some(*apart) != disk);
    }
}

impl Admin {
    /// A number from the journals' own chance.
    fn any_of_journal(&self, below: u64) -> u64 {
        self.stage.borrow_mut().journals.as_mut().map_or(0, |chance| chance.below(below))
    }

    /// The disk with which a new array is made, where it gets one. One that is too small is refused, and nothing comes of that. False:
    /// it is made all the same.
    pub(super) async fn journal_for_new(&mut self, index: usize, request: &mut CreateRequest) -> bool {
        let (disks, small) = {
            let stage = self.stage.borrow();
            let journal = &stage.mirrors[index].journal;
            (journal.disks.clone(), journal.small)
        };
        if disks.is_empty() || self.any_of_journal(2) == 0 {
            return true;
        }
        let id = MemberId::from_random(self.any_of_journal(u64::MAX));
        if let Some(leaf) = small.and_then(|small| self.leaves.get(&small)).filter(|_| self.any_of_journal(3) == 0) {
            request.journal = Some((*leaf, id));
            match lifecycle::create(&self.port, request).await {
                Err(LifecycleError::Size { .. } | LifecycleError::JournalRoom { .. }) => {
                    self.count("a journal disk too small is refused");
                }
                _ => {
                    self.odd(format!("mirror {index} is made with a journal on a disk that is too small for it"));
                    return false;
                }
            }
        }
        let disk = disks[self.any_of_journal(disks.len() as u64) as usize];
        request.journal = self.leaves.get(&disk).map(|leaf| (*leaf, id));
        self.stage.borrow_mut().ring_is_on(index, request.journal.map(|_| disk));
        true
    }

    /// The disk of the journal that goes with a half of the array, in drills, now and then: where nothing is in it, so that the other half
    /// can do without.
    pub(super) fn journal_for_half(&mut self, index: usize) -> Option<usize> {
        let holder = {
            let stage = self.stage.borrow();
            let journal = &stage.mirrors[index].journal;
            journal.holders.first().copied().filter(|_| journal.stopped && self.steps.is_some())
        };
        let disk = holder.filter(|_| self.any_of_journal(2) == 0)?;
        self.count("take the journal along with half a mirror");
        Some(disk)
    }

    /// Moves the journal of an array, or lets its disk fail, now and then. Says whether it did.
    pub async fn move_some_journal(&mut self, habits: Habits) -> bool {
        let serving: Vec<usize> = self.kept.keys().copied().collect();
        let aimed = matches!(habits.aim, Some("moving the journal" | "ring nowhere" | "ring quiet" | "journal moved"));
        let has = |index: &usize| !self.stage.borrow().mirrors[*index].journal.disks.is_empty();
        let Some(index) = serving.into_iter().find(has) else { return false };
        if self.any_of_journal(if aimed { 2 } else { 4 }) > 0 {
            return false;
        }
        let holder = self.stage.borrow().mirrors[index].journal.holders.first().copied();
        match (holder, self.any_of_journal(8)) {
            (Some(_), 0..=2) => self.journal_to_members(index).await,
            (Some(disk), 3 | 4) => self.pull_journal(disk).await,
            (Some(disk), 5) => {
                let often = 20_000 + self.any_of_journal(200_000) as u32;
                let spoil = if self.any_of_journal(2) == 0 { Spoil::Hang(often) } else { Spoil::WriteErrors(often) };
                self.stage.borrow_mut().spoil.push((disk, spoil));
            }
            _ => self.journal_on(index).await,
        }
        true
    }

    pub(super) async fn pull_journal(&mut self, disk: usize) {
        self.count("pull the journal");
        self.stage.borrow_mut().pull.push(disk);
        self.until(|stage| stage.pull.is_empty()).await;
    }

    /// Puts the journal on a disk that does not hold it.
    pub(super) async fn journal_on(&mut self, index: usize) {
        self.phase("moving the journal");
        let (id, free, small, before) = {
            let stage = self.stage.borrow();
            let journal = &stage.mirrors[index].journal;
            let is_free = |disk: &usize| !journal.holders.contains(disk) && self.leaves.contains_key(disk);
            let free: Vec<usize> = journal.disks.iter().copied().filter(is_free).collect();
            (self.kept[&index].id, free, journal.small, journal.holders.clone())
        };
        if let Some(leaf) =
            small.and_then(|small| self.leaves.get(&small)).copied().filter(|_| self.any_of_journal(3) == 0)
        {
            let member = MemberId::from_random(self.any_of_journal(u64::MAX));
            match self.port.give_order(id, Order::JournalOn { leaf, id: member, force: true }).await {
                Err(LifecycleError::Size { .. } | LifecycleError::JournalRoom { .. }) => {
                    self.count("a journal disk too small is refused");
                }
                // A disk at a time.
                Err(error) => self.expect_refusal(&error),
                Ok(()) => self.odd(format!("the journal of mirror {index} is on a disk that is too small for it")),
            }
        }
        let disk = match free.len() {
            // It has one already, or nothing is here: that is refused.
            0 => before.first().copied(),
            some => Some(free[self.any_of_journal(some as u64) as usize]),
        };
        let Some((disk, leaf)) = disk.and_then(|disk| Some((disk, *self.leaves.get(&disk)?))) else { return };
        if free.contains(&disk) {
            // It may have been pulled, or given up.
            self.port.reopen(leaf).await;
        }
        self.stage.borrow_mut().mirrors[index].journal.holders.insert(disk);
        let member = MemberId::from_random(self.any_of_journal(u64::MAX));
        let force = self.any_of_journal(8) > 0;
        match self.port.give_order(id, Order::JournalOn { leaf, id: member, force }).await {
            Ok(()) => self.count("put the journal on a disk"),
            Err(error) => {
                self.expect_refusal(&error);
                let mut stage = self.stage.borrow_mut();
                if !stage.had_faults && !before.contains(&disk) {
                    // Nothing was written.
                    stage.mirrors[index].journal.holders.remove(&disk);
                }
            }
        }
    }

    pub(super) async fn journal_to_members(&mut self, index: usize) {
        self.phase("moving the journal");
        match self.port.give_order(self.kept[&index].id, Order::JournalToMembers).await {
            Ok(()) => self.count("put the journal on the members"),
            Err(error) => self.expect_refusal(&error),
        }
    }

    /// An array serves: where its journal is.
    pub(super) fn note_journal(&self, index: usize, array: &Array) {
        let leaf = array.journal_disk().map(|disk| disk.leaf);
        let disk = leaf.and_then(|leaf| self.leaves.iter().find(|(_, of)| **of == leaf)).map(|(disk, _)| *disk);
        self.stage.borrow_mut().ring_is_on(index, disk);
    }

    /// An array cannot start for want of its journal, by its status.
    pub(super) async fn wait_for_journal(&mut self, index: usize, here: &[LeafId]) {
        let stopped = self.stage.borrow().mirrors[index].journal.stopped;
        self.judge_refused(Refused::new(index, &self.leaves, here, stopped)).await;
    }

    /// Waits until it is judged whether an array was right not to start.
    pub(super) async fn judge_refused(&mut self, refused: Refused) {
        let index = refused.index;
        self.stage.borrow_mut().refused.push(refused);
        self.until(|stage| stage.refused.is_empty()).await;
        self.stage.borrow_mut().mirrors[index].journal.waits = true;
        self.count("a mirror waits for its journal");
    }
}
