//! What the administrator knows of redundant arrays across all lives. A "mirror" is here any redundant array, including
//! those with parity.
//!
//! One member of most arrays is *healthy*: its disk never fails, is never pulled, and the administrator never fails it.
//! Then no data may be lost, the array must start, and no request may fail. An array without a healthy member may lose
//! more members than it tolerates.

use std::collections::{BTreeSet, VecDeque};

use braid_array_admin::reconciler::ReconcilerEvent;
use braid_engine::io::DeviceId;
use braid_format::{DiskLayout, MemberState, Uuid};
use braid_geometry::{Geometry, Level, Spec};

use crate::acts::BetweenLives;
use crate::copies;
use crate::disk::Image;
use crate::journal_disks::{JournalDisks, lose};
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::world::World;

/// A redundant array, as its administrator knows it across all lives.
pub struct Mirror {
    /// Its UUID, once its creation was tried.
    pub uuid: Option<Uuid>,
    /// Level, chunk size and number of copies.
    pub spec: Spec,
    /// Its disks.
    pub disks: Vec<usize>,
    /// Disks that may become spares or replace members.
    pub others: Vec<usize>,
    /// The disk that is always healthy, one of `disks`; `None`: all may fail, even more than the array tolerates.
    pub healthy: Option<usize>,
    /// Those of `disks` that may be pulled or failed.
    pub victims: Vec<usize>,
    /// Disks that are not members, by which the array may grow.
    pub further: Vec<usize>,
    /// Of `further`, the disks of a growth that was begun and not acknowledged.
    pub joining: Vec<usize>,
    /// The array has grown by further disks, or may have. The healthy member has no copy of data that is on these disks
    /// only, so they never fail.
    pub widened: bool,
    /// Number of slots of the served array at its last start, with the slots added since; 0 before the first start.
    pub slots: u16,
    /// A change of the number of slots was begun and not acknowledged.
    pub changes_width: bool,
    /// A growth was begun and not acknowledged: the array may be larger.
    pub growing: bool,
    /// Minimum size in blocks: that of the last acknowledged growth.
    pub blocks_min: u64,
    /// The oracle's number, from the first time that it was served.
    pub number: Option<u64>,
    /// Data blocks of its largest stripes, if it has parity, otherwise 0.
    pub stripe_blocks: u64,
    /// Its creation was acknowledged.
    pub exists: bool,
    /// The device number under which it serves, while it does.
    pub serves_as: Option<DeviceId>,
    /// Copies of its blocks, or blocks of its stripes, may rot before a check.
    pub rots: bool,
    /// Chance in a million that a disk that may be pulled is missing when a life begins.
    pub unplug: u32,
    /// Split brain may occur (two machines use the array separately), and old copies may replace its disks.
    pub wild: bool,
    /// Disks that were used separately from the healthy member, and did not become new members since.
    pub diverged: BTreeSet<usize>,
    /// The other members have been served since, without the diverged disks.
    pub left_behind: bool,
    /// Disks that old copies have replaced, and that did not become new members since.
    pub old: BTreeSet<usize>,
    /// A copy of a disk's content: the disk, the sequence number of its label, and the content.
    pub image: Option<(usize, u64, Image)>,
    /// Longest time in nanoseconds for which its dirty bits are kept; `None`: drawn for each life.
    pub clear_ns_max: Option<u64>,
    /// The geometry and, by slot, the disk and data start in bytes of each member, recorded when all members were last
    /// in sync.
    pub places: Option<(Geometry, Vec<(usize, u64)>)>,
    /// At the next start the victims are first served without the healthy member (split brain).
    pub split_at_next_start: bool,
    /// Disks that are missing until the last life.
    pub missing: BTreeSet<usize>,
    /// Disks that may hold its journal.
    pub journal: JournalDisks,
    /// Randomness for its lease, if it has one: a stream of its own, so that arrays without a lease stay the same.
    pub leases: Option<Rng>,
    /// It accepts requests of whole sectors.
    pub in_sectors: bool,
    /// What happens after each life.
    pub script: VecDeque<Vec<BetweenLives>>,
}

impl Mirror {
    /// Creates an array that has no disks yet.
    pub fn new(spec: Spec) -> Mirror {
        Mirror {
            uuid: None,
            spec,
            disks: Vec::new(),
            others: Vec::new(),
            healthy: None,
            victims: Vec::new(),
            further: Vec::new(),
            joining: Vec::new(),
            widened: false,
            slots: 0,
            changes_width: false,
            growing: false,
            blocks_min: 0,
            number: None,
            stripe_blocks: 0,
            exists: false,
            serves_as: None,
            rots: true,
            unplug: 0,
            wild: false,
            diverged: BTreeSet::new(),
            left_behind: false,
            old: BTreeSet::new(),
            image: None,
            clear_ns_max: None,
            places: None,
            split_at_next_start: false,
            missing: BTreeSet::new(),
            journal: JournalDisks::default(),
            leases: None,
            in_sectors: false,
            script: VecDeque::new(),
        }
    }

    /// Records the size of a RAID 1 that has not taken further disks. If the array is larger than the healthy member's
    /// data area, the added zones have no copy there: no member counts as healthy any more.
    pub fn record_size(&mut self, array_bytes: u64, healthy_bytes: u64, oracle: &mut Oracle) {
        let holds = DiskLayout::for_device(healthy_bytes).map_or(0, |places| places.data.bytes);
        if self.spec.level == Level::Raid1 && array_bytes > holds && !self.widened {
            self.healthy = None;
            if let Some(number) = self.number {
                oracle.may_fail(number);
            }
        }
    }

    /// Records by slot the disks of the served array: an interrupted growth may have made further disks members.
    pub fn record_disks(&mut self, by_slot: &[Option<usize>]) {
        let joined = by_slot.iter().skip(self.disks.len()).copied().collect::<Option<Vec<usize>>>();
        self.disks.extend(joined.unwrap_or_default());
        let disks = &self.disks;
        self.further.retain(|disk| !disks.contains(disk));
        self.joining.clear();
    }

    /// Records the number of slots of the served array. Returns an error text if it is not the acknowledged number,
    /// unless a change was in progress.
    pub fn check_slots(&mut self, slots: u16) -> Option<String> {
        let wrong = self.slots > 0 && slots != self.slots && !self.changes_width && !self.growing;
        let why = format!("it is served with {slots} slots, and had {}", self.slots);
        (self.slots, self.changes_width) = (slots, false);
        wrong.then_some(why)
    }

    /// Between two lives, with a chance of one in four, does as [`Mirror::copy_or_restore_now`]. Only if `wild`.
    pub fn copy_or_restore(&mut self, world: &mut World, rng: &mut Rng) {
        if self.wild && rng.below(4) == 0 {
            self.copy_or_restore_now(world, rng);
        }
    }

    /// Copies the content of a random victim or, if a copy exists, replaces the victim's content by it. The replacement
    /// is skipped, and the copy dropped, unless the healthy member's label is newer than the copy and calls that member
    /// in sync or failed.
    pub fn copy_or_restore_now(&mut self, world: &mut World, rng: &mut Rng) {
        let Some(healthy) = self.healthy.filter(|_| self.exists) else { return };
        match self.image.take() {
            None => {
                let disk = *rng.pick(&self.victims);
                let Some(label) = copies::label_on(world, disk) else { return };
                if Some(label.array.uuid) == self.uuid {
                    self.image = Some((disk, label.array.sequence, world.disks[disk].image(rng)));
                }
            }
            Some((disk, sequence, image)) => {
                // If the labels did not change since the copy was made, the copy looks like what a crash may leave: no
                // engine can detect it.
                let newest = copies::label_on(world, healthy).filter(|label| label.array.sequence > sequence);
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

    /// Makes the disk missing that holds the ring, if there is one.
    pub fn lose_journal(&mut self, world: &mut World, rng: &mut Rng) {
        for disk in &self.journal.holders {
            world.note(format_args!("disk {disk}, of the journal, is lost"));
            world.counters.add("fault", "the journal is lost with a crash");
            lose(*disk, world, rng);
            self.missing.insert(*disk);
        }
    }
}

/// Returns whether the newest label calls a disk in sync that has lost acknowledged writes, because the disk was pulled
/// or a flush of it failed.
///
/// The healthy member, if there is one, has the newest label. If this returns true, the crash came before the label
/// recorded the loss of the disk: unflushed data may be lost.
pub fn is_weak(world: &World, mirror: &Mirror) -> bool {
    let broken = |disk: &&usize| world.disks[**disk].gone || world.disks[**disk].flush_failed;
    let mut broken = mirror.disks.iter().chain(&mirror.others).filter(broken).peekable();
    if broken.peek().is_none() {
        return false;
    }
    let all = || mirror.disks.iter().chain(&mirror.others).filter_map(|disk| copies::label_on(world, *disk));
    let newest = match mirror.healthy {
        Some(healthy) => copies::label_on(world, healthy),
        None => all().filter(|label| Some(label.array.uuid) == mirror.uuid).max_by_key(|label| label.array.order()),
    };
    let Some(newest) = newest else { return true };
    broken.any(|disk| {
        let Some(own) = copies::label_on(world, *disk) else { return false };
        let in_sync = |m: &braid_format::MemberEntry| m.id == Some(own.member.id) && m.state == MemberState::InSync;
        own.array.uuid == newest.array.uuid && newest.array.members.iter().any(in_sync)
    })
}

/// Returns the name under which a reconciler event is counted.
pub fn event_name(note: &ReconcilerEvent) -> &'static str {
    match note {
        ReconcilerEvent::Dropped(_) => "dropped",
        ReconcilerEvent::RebuildStarted(_) => "rebuilding",
        ReconcilerEvent::InSync(_) => "in sync",
        ReconcilerEvent::Replaced(..) => "replaced",
        ReconcilerEvent::Resynced => "resynced",
        ReconcilerEvent::Grown(..) => "grown",
        ReconcilerEvent::RingMoved { .. } => "journal moved",
        ReconcilerEvent::ArrayFailed => "failed",
        ReconcilerEvent::Repaired(..) => "repaired",
        ReconcilerEvent::Unreadable { .. } => "unreadable",
        ReconcilerEvent::Job(_) => "job",
        ReconcilerEvent::OperationFailed(_) => "operation failed",
    }
}
