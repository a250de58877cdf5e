//! What is known of redundant arrays over all lives.
//!
//! One member of each array is *well*: it makes no errors, is never pulled and never failed by hand. So nothing is ever lost,
//! the array always starts, and no request fails.

use std::collections::{BTreeSet, VecDeque};

use braid_engine::io::DeviceId;
use braid_engine::keeper::ReconcilerEvent;
use braid_format::{DiskLayout, MemberState, Uuid};
use braid_geometry::{Geometry, Level, Spec};

use super::drills::Between;
use super::journal::JournalDisks;
use crate::copies;
use crate::disk::Image;
use crate::oracle::Oracle;
use crate::rng::Rng;
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
    /// Disks with which it may grow, and that are not its own.
    pub further: Vec<usize>,
    /// Of these, those that it was to take up when a growth was begun and not answered.
    pub joining: Vec<usize>,
    /// It has grown by such disks, or may have: what they alone hold nobody who is well has. They never fail.
    pub widened: bool,
    /// How many roles it has, as far as that is known: as many as when it was started, and those that it got since.
    pub roles: u16,
    /// It was to get another number of roles, and that was not answered.
    pub changes_width: bool,
    /// A growth was begun and not answered: it may be larger.
    pub growing: bool,
    /// Blocks that it has at least: a growth was acknowledged.
    pub owed: u64,
    /// The oracle's number, from the first time that it was served.
    pub number: Option<u64>,
    /// Blocks of data of its largest stripes, where it has parity, or else 0.
    pub row_blocks: u64,
    /// Its creation was acknowledged.
    pub exists: bool,
    /// The number under which it serves, while it does.
    pub serves_as: Option<DeviceId>,
    /// Copies of it, or cells of its rows, may rot while it is checked.
    pub rots: bool,
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
    /// Disks that may hold its journal.
    pub journal: JournalDisks,
    /// Chance for its lease, where it has one: of its own, so that arrays without one stay as they are.
    pub leases: Option<Rng>,
    /// It takes requests of whole sectors.
    pub in_sectors: bool,
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
            further: Vec::new(),
            joining: Vec::new(),
            widened: false,
            roles: 0,
            changes_width: false,
            growing: false,
            owed: 0,
            number: None,
            row_blocks: 0,
            exists: false,
            serves_as: None,
            rots: true,
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
            journal: JournalDisks::default(),
            leases: None,
            in_sectors: false,
            script: VecDeque::new(),
        }
    }

    /// The array has so many bytes. Where that is more than the one that is well holds, some of it is on others alone, by
    /// zones that grew: then nobody is well any more.
    pub fn has_grown(&mut self, array_bytes: u64, well_bytes: u64, oracle: &mut Oracle) {
        let holds = DiskLayout::for_device(well_bytes).map_or(0, |places| places.data.bytes);
        if self.spec.level == Level::Raid1 && array_bytes > holds && !self.widened {
            self.well = None;
            if let Some(number) = self.number {
                oracle.may_fail(number);
            }
        }
    }

    /// It is served, and these disks have roles, in their order: whether a growth that was begun has taken up further ones.
    pub fn has_taken_up(&mut self, by_role: &[Option<usize>]) {
        let joined = by_role.iter().skip(self.disks.len()).copied().collect::<Option<Vec<usize>>>();
        self.disks.extend(joined.unwrap_or_default());
        let disks = &self.disks;
        self.further.retain(|disk| !disks.contains(disk));
        self.joining.clear();
    }

    /// It is served with so many roles. What is wrong with that: as many were acknowledged, unless it was about to have others.
    pub fn has_roles(&mut self, roles: u16) -> Option<String> {
        let wrong = self.roles > 0 && roles != self.roles && !self.changes_width && !self.growing;
        let why = format!("it is served with {roles} roles, and had {}", self.roles);
        (self.roles, self.changes_width) = (roles, false);
        wrong.then_some(why)
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
                let holds = |state| matches!(state, MemberState::InSync | MemberState::Failed);
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

/// What notes of keepers are counted as.
pub fn kind_of(note: &ReconcilerEvent) -> &'static str {
    match note {
        ReconcilerEvent::Dropped(_) => "dropped",
        ReconcilerEvent::RebuildStarted(_) => "filling",
        ReconcilerEvent::InSync(_) => "in sync",
        ReconcilerEvent::Replaced(..) => "replaced",
        ReconcilerEvent::Resynced => "resynced",
        ReconcilerEvent::Grown(..) => "grown",
        ReconcilerEvent::RingMoved { .. } => "journal moved",
        ReconcilerEvent::ArrayFailed => "failed",
        ReconcilerEvent::Repaired(..) => "repaired",
        ReconcilerEvent::Unreadable { .. } => "unreadable",
        ReconcilerEvent::Job(_) => "job",
        ReconcilerEvent::OperationFailed(_) => "trouble",
    }
}
