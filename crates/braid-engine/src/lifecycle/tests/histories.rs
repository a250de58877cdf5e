//! Random histories of a redundant array: any of its disks appear, start by themselves or when told, lose and fill
//! members, and are cut off anywhere.
//!
//! Each disk's content is the list of what was written to it. The judge compares contents: whoever starts in sync must
//! hold the same, and everything that any other disk here holds; else it had to be refused.

use braid_format::MemberState;

use super::disks::{Chance, Crash, Disks};
use super::mirrors::{raid1, raid10};
use super::{leaves, name, run};
use crate::LeafId;
use crate::lifecycle::planted::{Planted, plant};
use crate::lifecycle::{Array, Newcomer, StartOptions, Status, create, scan, start};

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    starts: u64,
    told: u64,
    refused: u64,
    waited: u64,
    cut_off: u64,
    filled: u64,
    dropped: u64,
}

struct World {
    disks: Disks,
    /// What was written to each disk, in order.
    content: Vec<Vec<u64>>,
    /// It took writes while it was being filled: its content has a gap, and counts for nothing.
    half: Vec<bool>,
    chance: Chance,
    writes: u64,
    /// Somebody said `--degraded`: from then on members may have gone apart.
    told: bool,
    log: Vec<String>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut chance = Chance(seed);
        let count = 2 + chance.below(3) as u32;
        let disks = Disks::new(&vec![3 << 20; count as usize]);
        let request = if count == 4 || chance.below(3) == 0 { raid10 } else { raid1 }("m", 1, leaves(count));
        drop(run(create(&disks, &request)).unwrap());
        World {
            disks,
            content: vec![Vec::new(); count as usize],
            half: vec![false; count as usize],
            chance,
            writes: 0,
            told: false,
            log: Vec::new(),
        }
    }

    fn some_disks(&mut self) -> Vec<LeafId> {
        let mut present = leaves(self.content.len() as u32);
        self.chance.shuffle(&mut present);
        let all = self.chance.below(3) == 0;
        let count = if all { present.len() } else { 1 + self.chance.below(present.len() as u64) as usize };
        present.truncate(count);
        present
    }

    /// One run of the array, from its start to a stop or a crash.
    fn live(&mut self, counts: &mut Counts) -> Result<(), String> {
        let present = self.some_disks();
        let found = run(scan(&self.disks, &present));
        let [found] = found.arrays.as_slice() else { return Err(format!("{} arrays", found.arrays.len())) };
        self.log.push(format!("{present:?}: {}", found.status));
        let degraded = matches!(found.status, Status::Waiting { .. }) && self.chance.below(3) == 0;
        let everybody = present.len() == self.content.len();
        if everybody && !self.told && !found.status.starts_by_itself() {
            return Err(format!("all are here, nobody went apart, and it does not start: {}", found.status));
        }
        match &found.status {
            // Where somebody is not here, a line that was begun and never used may look like one that was.
            Status::Refused { .. } => counts.refused += 1,
            Status::Waiting { .. } | Status::Incomplete { .. } if !degraded => counts.waited += 1,
            _ => {}
        }
        let (session, lineage) = (self.chance.next(), self.chance.next());
        let options = StartOptions { degraded, ..StartOptions::new(session, lineage) };
        // It is cut off at some step, or much later.
        let cut = self.chance.below(60);
        let seed = self.chance.next();
        self.disks.cut_at(None, seed);
        if self.chance.below(3) == 0 {
            // One disk makes an error, or is broken from then on until the next run.
            let leaf = LeafId(self.chance.below(self.content.len() as u64) as u32);
            let (step, many) = (self.chance.below(30), self.chance.below(2) == 0);
            self.disks.fail(leaf, step, if many { u64::MAX } else { 1 });
            self.log.push(format!("{leaf:?} fails at step {step}"));
        }
        self.disks.cut_later((cut < 40).then_some(cut));
        let started = run(start(&self.disks, found, options));
        let crash = if self.chance.below(2) == 0 { Crash::Power } else { Crash::Kill };
        if let Ok(mut array) = started {
            counts.starts += 1;
            counts.told += u64::from(degraded);
            self.told |= degraded;
            self.judge(&array, &present, degraded)?;
            self.write(&array);
            while self.chance.below(4) > 0 {
                if self.act(&mut array, counts).is_err() {
                    counts.cut_off += 1;
                    break;
                }
                self.write(&array);
            }
        } else {
            counts.cut_off += u64::from(found.status.starts_by_itself());
            // What was told to start may have got as far as a new line.
            self.told |= degraded;
        }
        self.disks.crash(crash, &mut self.chance);
        self.disks.heal();
        Ok(())
    }

    /// Whoever is in sync, or takes writes, takes one.
    fn write(&mut self, array: &Array) {
        self.writes += 1;
        for member in array.members() {
            let leaf = member.leaf.0 as usize;
            self.content[leaf].push(self.writes);
            self.half[leaf] = member.state == MemberState::Filling;
        }
    }

    fn act(&mut self, array: &mut Array, counts: &mut Counts) -> Result<(), String> {
        let roles = u64::from(array.roles());
        let role = self.chance.below(roles) as u16;
        let said = |error: crate::lifecycle::LifecycleError| error.to_string();
        match self.chance.below(5) {
            0 => {
                let text = name(&format!("n{}", self.writes));
                run(array.rename(&self.disks, text)).map_err(said)
            }
            1 | 2 if array.state(role) != MemberState::Out && array.tolerates(&[role]) => {
                self.log.push(format!("drop {role}"));
                counts.dropped += 1;
                run(array.drop_members(&self.disks, &[role])).map(drop).map_err(said)
            }
            _ => self.fill(array, counts),
        }
    }

    /// A member that is here and out, or half filled, is brought up to date.
    fn fill(&mut self, array: &mut Array, counts: &mut Counts) -> Result<(), String> {
        let said = |error: crate::lifecycle::LifecycleError| error.to_string();
        let candidate = array.candidates().next();
        if let Some(candidate) = candidate {
            self.log.push(format!("fill {}", candidate.role));
            let newcomer = Newcomer::Returning { leaf: candidate.leaf };
            run(array.begin_filling(&self.disks, candidate.role, newcomer, candidate.from)).map_err(said)?;
        }
        let filling = array.members().find(|m| m.state == MemberState::Filling).map(|m| (m.role, m.leaf));
        if let Some((role, leaf)) = filling
            && self.chance.below(3) > 0
        {
            let source = array.members().find(|m| m.state == MemberState::InSync).map(|m| m.leaf);
            let source = source.ok_or("nobody is in sync")?;
            self.content[leaf.0 as usize] = self.content[source.0 as usize].clone();
            // Until a label calls it in sync, what it holds is held elsewhere.
            self.half[leaf.0 as usize] = true;
            self.log.push(format!("promote {role}"));
            run(array.promote(&self.disks, role)).map_err(said)?;
            self.half[leaf.0 as usize] = false;
            counts.filled += 1;
        }
        Ok(())
    }

    fn judge(&self, array: &Array, present: &[LeafId], degraded: bool) -> Result<(), String> {
        if !array.tolerates(&[]) {
            return Err("started without a whole copy".into());
        }
        let in_sync: Vec<LeafId> = array.members().filter(|m| m.state == MemberState::InSync).map(|m| m.leaf).collect();
        let content = |leaf: &LeafId| &self.content[leaf.0 as usize];
        let Some(first) = in_sync.first() else { return Err("started with nobody in sync".into()) };
        let whole = content(first);
        if let Some(other) = in_sync.iter().find(|leaf| content(leaf) != whole) {
            return Err(format!("{:?} and {other:?} are in sync and differ", in_sync[0]));
        }
        let claims = |leaf: &&LeafId| !self.half[leaf.0 as usize];
        match present.iter().filter(claims).find(|leaf| !whole.starts_with(content(leaf))) {
            Some(leaf) => Err(format!("told {degraded}: {leaf:?} holds {:?}, which {whole:?} lacks", content(leaf))),
            None => Ok(()),
        }
    }
}

fn history(seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut world = World::new(seed);
    for _ in 0..12 {
        world.live(counts).map_err(|why| format!("seed {seed}: {why}\n{}", world.log.join("\n")))?;
    }
    Ok(())
}

#[test]
fn who_serves_holds_what_the_others_hold() {
    let mut counts = Counts::default();
    // Found by longer runs: two lines that were begun at once (6260, 1636), and a member whom a label promoted that had
    // not reached all others when one of those failed (8980).
    for seed in (0..1200).chain([1636, 6260, 8980]) {
        history(seed, &mut counts).unwrap();
    }
    println!("{counts:?}");
    assert!(counts.starts > 5000 && counts.told > 400 && counts.refused > 200, "{counts:?}");
    assert!(counts.cut_off > 1000 && counts.filled > 1000 && counts.dropped > 1000, "{counts:?}");
}

#[test]
fn histories_notice_planted_bugs() {
    for bug in [
        Planted::DivergedMerged,
        Planted::FillingStartedAlone,
        Planted::LastSurvivorRecordedFailed,
        Planted::NewcomerLabelFirst,
        Planted::NotDurable,
    ] {
        plant(Some(bug));
        let caught = (0..400).find_map(|seed| history(seed, &mut Counts::default()).err());
        plant(None);
        println!("{bug:?}: {}", caught.as_deref().unwrap_or("unnoticed").lines().next().unwrap_or(""));
        assert!(caught.is_some(), "{bug:?} went unnoticed");
    }
}
