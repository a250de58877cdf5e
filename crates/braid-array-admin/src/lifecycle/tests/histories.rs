//! Random histories of a redundant array: any of its disks are present, it starts automatically or with `--degraded`,
//! drops and rebuilds members, and is interrupted anywhere. Bits are cleared while all members are in sync. Now and
//! then a disk is replaced by a copy of itself from an earlier time at which the array was stopped.
//!
//! The content of a disk is the list of writes to it. A delta resync copies what is dirty. The oracle compares
//! contents: members that are in sync at a start must hold the same, and everything that any other present disk holds;
//! otherwise the start had to be refused.

use braid_engine::LeafId;
use braid_format::{MemberId, MemberState};
use braid_geometry::Level;

use super::disks::{Chance, Crash, Disks};
use super::mirrors::redundant;
use super::{leaves, name, run};
use crate::lifecycle::{
    Array, ArrayStatus, FoundArray, RebuildKind, RebuildTarget, Refusal, Replacement, StartOptions, create, scan, start,
};

const SIZE: u64 = 3 << 20;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    starts: u64,
    started_degraded: u64,
    refused: u64,
    waited: u64,
    cut_off: u64,
    rebuilt: u64,
    rebuilt_in_full: u64,
    cleared: u64,
    copies: u64,
    copies_refused: u64,
    copies_rebuilt: u64,
    forced: u64,
    dropped: u64,
    replacing: u64,
    replaced: u64,
    slots_taken: u64,
    widened: u64,
    narrowed: u64,
    removed: u64,
}

/// What the oracle knows of a disk.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The writes to it, in order.
    content: Vec<u64>,
    /// It took writes while it was being rebuilt: its content has a gap, and does not count.
    half: bool,
    /// The last write that is not dirty in its bitmap.
    cleared: u64,
}

struct World {
    disks: Disks,
    known: Vec<Known>,
    /// An earlier copy of a disk, kept on the disk after the last.
    copy: Option<(LeafId, Known)>,
    /// The members in sync at the last write.
    serving: Vec<LeafId>,
    present: Vec<LeafId>,
    chance: Chance,
    writes: u64,
    /// A start was made with `--degraded`: from then on members may have diverged.
    started_degraded: bool,
    /// A disk may bear no label: it was cleared to become a new member.
    blank: bool,
    log: Vec<String>,
}

impl World {
    fn new(seed: u64, parity: bool) -> World {
        let mut chance = Chance(seed);
        let count = 2 + u32::from(parity) + chance.below(3) as u32;
        // One more disk for a copy, and one for the disk that the copy stands in for.
        let disks = Disks::new(&vec![SIZE; count as usize + 2]);
        let level = match (parity, chance.below(3)) {
            (true, 0) => Level::Raid6,
            (true, _) => Level::Raid5,
            (false, 0) => Level::Raid10,
            (false, _) => {
                if count == 4 {
                    Level::Raid10
                } else {
                    Level::Raid1
                }
            }
        };
        drop(run(create(&disks, &redundant(level, "m", 1, leaves(count)))).unwrap());
        World {
            disks,
            known: vec![Known::default(); count as usize],
            copy: None,
            serving: leaves(count),
            present: Vec::new(),
            chance,
            writes: 0,
            started_degraded: false,
            blank: false,
            log: Vec::new(),
        }
    }

    fn some_disks(&mut self) -> Vec<LeafId> {
        let mut present = leaves(self.known.len() as u32);
        self.chance.shuffle(&mut present);
        let all = self.chance.below(3) == 0;
        let count = if all { present.len() } else { 1 + self.chance.below(present.len() as u64) as usize };
        present.truncate(count);
        present
    }

    fn labels(&self, leaf: LeafId) -> [Vec<u8>; 2] {
        [0, SIZE - 4096].map(|at| self.disks.peek(leaf, at, 4096))
    }

    /// One run; before it a copy may take the place of its disk, and after it a disk may be copied.
    fn live(&mut self, counts: &mut Counts) -> Result<(), String> {
        self.present = self.some_disks();
        let place = LeafId(self.known.len() as u32);
        let other = self.copy.as_ref().and_then(|(leaf, _)| self.serving.iter().find(|other| *other != leaf).copied());
        if let Some(((leaf, then), other)) = self.copy.clone().zip(other)
            && self.chance.below(3) == 0
        {
            let aside = LeafId(place.0 + 1);
            self.log.push(format!("{leaf:?} is the old copy, {then:?}"));
            self.disks.copy_disk(leaf, aside);
            self.disks.copy_disk(place, leaf);
            let now = std::mem::replace(&mut self.known[leaf.0 as usize], then);
            self.present.extend([leaf, other]);
            self.present.sort_unstable_by_key(|leaf| leaf.0);
            self.present.dedup();
            counts.copies += 1;
            let labels = self.labels(leaf);
            self.run(Some((leaf, other)), counts)?;
            // If the array did not use the copy, the disk itself is put back.
            if self.labels(leaf) == labels {
                self.disks.copy_disk(aside, leaf);
                let given_up = self.known[leaf.0 as usize].half;
                self.known[leaf.0 as usize] = Known { half: now.half || given_up, ..now };
            }
        } else {
            self.run(None, counts)?;
        }
        if self.chance.below(4) == 0 {
            let leaf = LeafId(self.chance.below(u64::from(place.0)) as u32);
            self.disks.image_disk(leaf, place);
            self.copy = Some((leaf, self.known[leaf.0 as usize].clone()));
            self.log.push(format!("{leaf:?} is copied"));
        }
        Ok(())
    }

    /// Returns whether to start with `--force`, without an old copy.
    fn forces(&mut self, found: &FoundArray, copy: Option<LeafId>) -> bool {
        let ArrayStatus::Refused { reasons } = &found.status else { return false };
        let only = |r: &Refusal| matches!(r, Refusal::OldCopy { leaf, .. } if Some(*leaf) == copy);
        let forced = found.forced.as_ref().is_some_and(|forced| forced.starts_by_itself());
        forced && reasons.iter().all(only) && self.chance.below(2) == 0
    }

    /// One run of the array, from its start to a stop or a crash.
    fn run(&mut self, copied: Option<(LeafId, LeafId)>, counts: &mut Counts) -> Result<(), String> {
        let present = self.present.clone();
        let copy = copied.map(|(leaf, _)| leaf);
        let found = run(scan(&self.disks, &present));
        let [found] = found.arrays.as_slice() else {
            // A disk that was cleared to become a new member may be alone.
            let labelled = found.arrays.len() > 1 || !self.blank;
            return if labelled { Err(format!("{} arrays", found.arrays.len())) } else { Ok(()) };
        };
        self.log.push(format!("{present:?}: {}", found.status));
        if copied.is_some_and(|(_, other)| found.outsiders.iter().any(|(leaf, _)| *leaf == other)) {
            // The last serving member was replaced earlier, and started alone by `--degraded`: no present disk can tell
            // what the copy lacks.
            return Ok(());
        }
        let degraded = matches!(found.status, ArrayStatus::Waiting { .. }) && self.chance.below(3) == 0;
        let force = self.forces(found, copy);
        counts.forced += u64::from(force);
        counts.copies_refused += u64::from(copy.is_some() && matches!(found.status, ArrayStatus::Refused { .. }));
        let all_present = present.len() == self.known.len();
        if all_present && copy.is_none() && !self.started_degraded && !found.status.starts_by_itself() {
            return Err(format!("all are here, nobody went apart, and it does not start: {}", found.status));
        }
        match &found.status {
            // With disks missing, a lineage that was begun and never used may look like a used one.
            ArrayStatus::Refused { .. } => counts.refused += 1,
            ArrayStatus::Waiting { .. } | ArrayStatus::Incomplete { .. } if !degraded => counts.waited += 1,
            _ => {}
        }
        let (session, lineage) = (self.chance.next(), self.chance.next());
        let options = StartOptions { degraded, force, ..StartOptions::new(session, lineage) };
        // It is interrupted at some step, or much later.
        let cut = self.chance.below(60);
        let seed = self.chance.next();
        self.disks.cut_at(None, seed);
        if self.chance.below(3) == 0 {
            // One disk fails once, or from then on until the next run.
            let leaf = LeafId(self.chance.below(self.known.len() as u64) as u32);
            let (step, many) = (self.chance.below(30), self.chance.below(2) == 0);
            self.disks.fail(leaf, step, if many { u64::MAX } else { 1 });
            self.log.push(format!("{leaf:?} fails at step {step}"));
        }
        self.disks.cut_later((cut < 40).then_some(cut));
        let started = run(start(&self.disks, found, options));
        let crash = if self.chance.below(2) == 0 { Crash::Power } else { Crash::Kill };
        if let (true, Some(leaf)) = (force, copy) {
            // By `--force`, what the member held does not count.
            self.known[leaf.0 as usize].half = true;
            self.started_degraded = true;
        }
        if let Ok(mut array) = started {
            counts.starts += 1;
            counts.started_degraded += u64::from(degraded);
            self.started_degraded |= degraded;
            // A replaced member that was started alone with `--degraded` is unknown to the others, and left as it is.
            let replaced_disks: Vec<LeafId> = found.outsiders.iter().map(|(leaf, _)| *leaf).collect();
            let claim = |leaf: &&LeafId| !(self.started_degraded && replaced_disks.contains(leaf));
            let claiming: Vec<LeafId> = present.iter().filter(claim).copied().collect();
            self.verify(&array, &claiming, degraded)?;
            self.merge(&array);
            self.write(&array);
            while self.chance.below(4) > 0 {
                if self.act(&mut array, copy, counts).is_err() {
                    counts.cut_off += 1;
                    break;
                }
                self.write(&array);
            }
        } else {
            counts.cut_off += u64::from(found.status.starts_by_itself());
            // A start with `--degraded` may have got as far as a new lineage.
            self.started_degraded |= degraded;
        }
        self.disks.crash(crash, &mut self.chance);
        self.disks.heal();
        Ok(())
    }

    /// Writes to all members that are in sync or take writes.
    fn write(&mut self, array: &Array) {
        self.writes += 1;
        self.serving.clear();
        for member in array.members() {
            let known = &mut self.known[member.leaf.0 as usize];
            known.content.push(self.writes);
            known.half = member.state == MemberState::Rebuilding;
            self.serving.extend((member.state == MemberState::InSync).then_some(member.leaf));
        }
    }

    /// A write that is dirty in the bitmap of one member in sync is dirty on all.
    fn merge(&mut self, array: &Array) {
        let in_sync = array.members().filter(|m| m.state == MemberState::InSync);
        let cleared = in_sync.map(|m| self.known[m.leaf.0 as usize].cleared).min().unwrap_or(0);
        array.members().for_each(|m| self.known[m.leaf.0 as usize].cleared = cleared);
    }

    fn act(&mut self, array: &mut Array, copy: Option<LeafId>, counts: &mut Counts) -> Result<(), String> {
        if array.may_clear_bits() && self.chance.below(2) == 0 {
            self.log.push("bits are cleared".into());
            counts.cleared += 1;
            array.members().for_each(|m| self.known[m.leaf.0 as usize].cleared = self.writes);
        }
        let roles = u64::from(array.slots());
        let role = self.chance.below(roles) as u16;
        let said = |error: crate::lifecycle::LifecycleError| error.to_string();
        if let Some(role) = array.slot_for_successor() {
            self.log.push(format!("give the slot {role}"));
            counts.slots_taken += 1;
            return run(array.give_slot_to_successor(&self.disks, role)).map_err(said);
        }
        match self.chance.below(7) {
            6 => self.widths(array, role, counts),
            5 => self.replace(array, role, counts),
            0 => {
                let text = name(&format!("n{}", self.writes));
                run(array.rename(&self.disks, text)).map_err(said)
            }
            1 | 2 if array.state(role) != MemberState::Failed && array.tolerates(&[role]) => {
                self.log.push(format!("drop {role}"));
                counts.dropped += 1;
                run(array.drop_members(&self.disks, &[role])).map(drop).map_err(said)
            }
            _ => self.rebuild(array, copy, counts),
        }
    }

    /// Adds a slot to a mirror or removes one, or makes a failed slot vacant.
    fn widths(&mut self, array: &mut Array, role: u16, counts: &mut Counts) -> Result<(), String> {
        let said = |error: crate::lifecycle::LifecycleError| error.to_string();
        let is_mirror = array.label().spec.level == Level::Raid1 && array.successors().next().is_none();
        if array.state(role) == MemberState::Failed {
            self.log.push(format!("remove {role}"));
            counts.removed += 1;
            return run(array.remove(&self.disks, role)).map_err(said);
        }
        let last = array.slots() - 1;
        let in_sync = |role: u16| matches!(array.state(role), MemberState::InSync | MemberState::Empty);
        let vacant = array.vacant().find(|role| (*role..last).all(in_sync)).filter(|_| in_sync(last) && last > 0);
        if let Some(role) = vacant.filter(|_| is_mirror && self.chance.below(2) == 0) {
            self.log.push(format!("narrow by {role}"));
            counts.narrowed += 1;
            run(array.narrow(&self.disks, role)).map_err(said)
        } else if is_mirror && last < 5 {
            self.log.push(format!("widen to {}", last + 2));
            counts.widened += 1;
            run(array.widen(&self.disks)).map(drop).map_err(said)
        } else {
            Ok(())
        }
    }

    /// Rebuilds a present member that has failed, or whose rebuild was interrupted.
    fn rebuild(&mut self, array: &mut Array, copy: Option<LeafId>, counts: &mut Counts) -> Result<(), String> {
        let said = |error: crate::lifecycle::LifecycleError| error.to_string();
        let vacant =
            (0..array.slots()).find(|role| matches!(array.state(*role), MemberState::Failed | MemberState::Empty));
        let free = |leaf: &&LeafId| array.members().all(|m| m.leaf != **leaf);
        let free = self.present.iter().find(free).copied();
        let returning = array.candidates().find(|candidate| candidate.is_same_member);
        if let Some(candidate) = returning {
            self.log.push(format!("fill {candidate:?}"));
            counts.copies_rebuilt += u64::from(copy == Some(candidate.leaf));
            let newcomer = RebuildTarget::Returning { leaf: candidate.leaf };
            run(array.begin_rebuild(&self.disks, candidate.slot, newcomer, candidate.kind)).map_err(said)?;
        } else if let Some((role, leaf)) = vacant.zip(free) {
            // Its content no longer counts; the labels record which members have failed.
            self.log.push(format!("fill {role} anew on {leaf:?}"));
            (self.blank, self.known[leaf.0 as usize].half) = (true, true);
            let newcomer = RebuildTarget::New { leaf, id: MemberId::from_random(self.chance.next()), force: true };
            run(array.begin_rebuild(&self.disks, role, newcomer, RebuildKind::Full)).map_err(said)?;
            counts.rebuilt_in_full += 1;
        }
        let rebuilding = array.members().find(|m| m.state == MemberState::Rebuilding).map(|m| (m.number, m.leaf));
        if let Some((role, leaf)) = rebuilding
            && self.chance.below(3) > 0
        {
            let source = array.members().find(|m| m.state == MemberState::InSync).map(|m| m.leaf);
            let source = source.ok_or("nobody is in sync")?;
            let mut rebuilt = self.known[source.0 as usize].clone();
            if array.rebuild(role).is_none() {
                let own = self.known[leaf.0 as usize].content.iter().copied().filter(|write| *write <= rebuilt.cleared);
                let dirty = rebuilt.content.iter().copied().filter(|write| *write > rebuilt.cleared);
                rebuilt.content = own.chain(dirty).collect();
            }
            // Until a label calls it in sync, its content is held by other members.
            self.known[leaf.0 as usize] = Known { half: true, ..rebuilt };
            self.log.push(format!("promote {role}"));
            run(array.promote(&self.disks, role)).map_err(said)?;
            self.known[leaf.0 as usize].half = false;
            counts.rebuilt += 1;
        }
        Ok(())
    }

    /// Replaces a serving member by a free disk, or retires a member whose successor is in sync.
    fn replace(&mut self, array: &mut Array, role: u16, counts: &mut Counts) -> Result<(), String> {
        let said = |error: crate::lifecycle::LifecycleError| error.to_string();
        if let Some(role) = array.to_retire() {
            self.log.push(format!("retire {role}"));
            // Its label may be erased.
            self.blank = true;
            let leaf = array.leaf(role).ok_or("a member in sync has a disk")?;
            let result = run(array.retire(&self.disks, role));
            // Without a label it is not a member, whatever its content.
            self.known[leaf.0 as usize].half |=
                self.labels(leaf).iter().all(|label| label.iter().all(|byte| *byte == 0));
            counts.replaced += u64::from(result.is_ok());
            return result.map_err(said);
        }
        let free = |leaf: &&LeafId| array.members().all(|m| m.leaf != **leaf);
        let Some(leaf) = self.present.iter().find(free).copied() else { return Ok(()) };
        if array.state(role) != MemberState::InSync || array.successors().any(|s| s.role == role) {
            return Ok(());
        }
        self.log.push(format!("replace {role} by {leaf:?}"));
        (self.blank, self.known[leaf.0 as usize].half) = (true, true);
        let by = Replacement::New { leaf, id: MemberId::from_random(self.chance.next()), force: true };
        run(array.begin_replacing(&self.disks, role, by)).map_err(said)?;
        counts.replacing += 1;
        Ok(())
    }

    fn verify(&self, array: &Array, present: &[LeafId], degraded: bool) -> Result<(), String> {
        if !array.tolerates(&[]) {
            return Err("started without a whole copy".into());
        }
        let in_sync: Vec<LeafId> = array.members().filter(|m| m.state == MemberState::InSync).map(|m| m.leaf).collect();
        let content = |leaf: &LeafId| &self.known[leaf.0 as usize].content;
        let Some(first) = in_sync.first() else { return Err("started with nobody in sync".into()) };
        let whole = content(first);
        if let Some(other) = in_sync.iter().find(|leaf| content(leaf) != whole) {
            return Err(format!("{:?} and {other:?} are in sync and differ", in_sync[0]));
        }
        let claims = |leaf: &&LeafId| !self.known[leaf.0 as usize].half;
        match present.iter().filter(claims).find(|leaf| !whole.starts_with(content(leaf))) {
            Some(leaf) => Err(format!("told {degraded}: {leaf:?} holds {:?}, which {whole:?} lacks", content(leaf))),
            None => Ok(()),
        }
    }
}

fn history(seed: u64, parity: bool, counts: &mut Counts) -> Result<(), String> {
    let mut world = World::new(seed, parity);
    for _ in 0..12 {
        world.live(counts).map_err(|why| format!("seed {seed}: {why}\n{}", world.log.join("\n")))?;
    }
    Ok(())
}

#[test]
fn members_in_sync_hold_what_the_others_hold() {
    let mut counts = Counts::default();
    for seed in (0..1200).chain(3200..3300) {
        history(seed, false, &mut counts).unwrap();
    }
    println!("{counts:?}");
    assert!(counts.starts > 5000 && counts.started_degraded > 400 && counts.refused > 200, "{counts:?}");
    assert!(counts.cut_off > 1000 && counts.rebuilt > 1000 && counts.dropped > 1000, "{counts:?}");
    assert!(counts.rebuilt_in_full > 100 && counts.cleared > 1000 && counts.forced > 100, "{counts:?}");
    assert!(counts.replacing > 300 && counts.replaced > 40 && counts.slots_taken > 100, "{counts:?}");
    assert!(counts.widened > 300 && counts.narrowed > 100 && counts.removed > 100, "{counts:?}");
    assert!(counts.copies > 1000 && counts.copies_refused > 400 && counts.copies_rebuilt > 100, "{counts:?}");
}

/// With parity too few members may be present to start, and members diverge only where one member is enough.
#[test]
fn members_in_sync_hold_what_the_others_hold_with_parity() {
    let mut counts = Counts::default();
    for seed in 0..700 {
        history(seed, true, &mut counts).unwrap();
    }
    println!("{counts:?}");
    assert!(counts.starts > 2000 && counts.waited > 500, "{counts:?}");
    assert!(counts.cut_off > 500 && counts.rebuilt > 500 && counts.dropped > 500, "{counts:?}");
    assert!(counts.replacing > 100 && counts.replaced > 10 && counts.slots_taken > 30, "{counts:?}");
}
