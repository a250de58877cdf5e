//! The disks that an array with parity may have for its journal.

use std::collections::BTreeSet;

use braid_format::DiskLayout;

use crate::disk::{Image, Profile, Survival};
use crate::rng::Rng;
use crate::world::World;

/// Minimum size in bytes of a disk that can hold a label.
const SIZE_MIN: u64 = (1 << 20) + 8192;

/// Disks for the journal of one array with parity.
#[derive(Default)]
pub struct JournalDisks {
    /// Disks that may hold the journal. None is a member.
    pub disks: Vec<usize>,
    /// A disk that is too small for a journal: the array must refuse it and never write to it.
    pub(crate) small: Option<usize>,
    /// Of `disks`, those that may hold the ring of the journal; empty if the ring is on the members.
    pub holders: BTreeSet<usize>,
    /// Of `disks`, those whose content was replaced by an older copy.
    pub old: BTreeSet<usize>,
    /// One of `disks`, and a copy of its content.
    image: Option<(usize, Image)>,
    /// The array was stopped cleanly and no start was tried since: the journal is empty.
    pub stopped: bool,
    /// The content of the journal was lost when the array was last started.
    pub lost_at_start: bool,
    /// At the last start it was checked that the array must wait, because a disk that it needs is lost for good.
    pub(crate) waits: bool,
    /// Chance in a million that a disk is missing when a life begins.
    unplug: u32,
    /// Old copies may replace the disks.
    wild: bool,
}

/// The faults of the journal disks.
#[derive(Clone, Copy, Debug)]
pub struct JournalHabits {
    /// The disks make errors.
    pub faults: bool,
    /// The disks may be missing when a life begins, and old copies may replace them.
    pub wild: bool,
}

impl JournalDisks {
    /// Adds one or two disks, and perhaps one that is too small.
    pub fn draw(world: &mut World, chance: &mut Rng, habits: JournalHabits) -> JournalDisks {
        let mut of = JournalDisks { wild: habits.wild, ..JournalDisks::default() };
        for _ in 0..chance.between(1, 2) {
            let profile =
                if habits.faults && chance.coin() { Profile::faulty(chance) } else { Profile::healthy(chance) };
            // The smallest disk has a ring as large as those of members.
            let more = if chance.below(3) == 0 { 0 } else { 4096 * chance.below(400) };
            let disk = world.add_disk(SIZE_MIN + more, chance.coin(), profile);
            let places = DiskLayout::for_journal(SIZE_MIN + more).expect("a disk that has room for labels");
            world.bitmaps.insert(disk, (places.bitmap.start, places.bitmap.start + places.bitmap.bytes));
            world.journals.insert(disk, (places.journal.start, places.journal.start + places.journal.bytes));
            world.journal_disks.insert(disk);
            of.disks.push(disk);
        }
        if chance.below(3) == 0 {
            let size_bytes = SIZE_MIN - 4096 * chance.between(1, 200);
            of.small = Some(world.add_disk(size_bytes, true, Profile::healthy(chance)));
        }
        if habits.wild {
            of.unplug = *chance.pick(&[0, 100_000, 400_000]);
        }
        of
    }

    /// Returns whether a disk that holds the ring is missing or is an old copy.
    pub(crate) fn lacks(&self, present: &BTreeSet<usize>, world: &World) -> bool {
        self.holders.iter().any(|disk| !present.contains(disk) || world.disks[*disk].gone || self.old.contains(disk))
    }

    /// Records that the array is being started. Returns whether its journal was known to be empty.
    pub fn begin_start(&mut self) -> bool {
        std::mem::take(&mut self.stopped)
    }

    /// Decides between two lives which disks are missing and which an old copy replaces.
    pub fn between_lives(&mut self, whole: bool, world: &mut World, chance: &mut Rng) {
        if !self.wild {
            return;
        }
        match (chance.below(6), self.image.take()) {
            (0, None) => self.copy(world, chance),
            // An old copy loses the journal for good. If a member were missing as well, the array would start only with
            // force: so restore only if no member is missing or the journal is empty.
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

    /// Copies the disk that holds the ring.
    pub fn copy(&mut self, world: &mut World, chance: &mut Rng) {
        if let Some(disk) = self.holders.first() {
            self.image = Some((*disk, world.disks[*disk].image(chance)));
        }
    }

    /// Replaces the disk by its copy, if there is one.
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

/// Makes a disk missing; its cached data reaches the medium first.
pub(crate) fn lose(disk: usize, world: &mut World, rng: &mut Rng) {
    world.disks[disk].cut_power(Survival::All, rng);
    world.disks[disk].gone = true;
}
