//! Members that are lost in a crash, and come back later, or as they were long ago, or never.

use super::disk::Disk;
use super::oracle::{Block, Change, Rule};
use super::world::{Check, World};

/// A member that is away.
#[derive(Clone)]
pub(super) struct Away {
    /// As it was in an earlier life.
    old: Option<Disk>,
    /// It was refused: it never comes back.
    refused: bool,
    /// The pool has gone on without it.
    pub gone_on: bool,
}

/// A copy that somebody made of a member.
#[derive(Clone)]
pub(super) struct Copied {
    number: u8,
    disk: Disk,
    life: u32,
}

impl World {
    /// Whether a member is there.
    pub(super) fn is_here(&self, number: u8) -> bool {
        !self.away.contains_key(&number)
    }

    /// Those that are away, by their bits.
    pub(super) fn absent(&self) -> u128 {
        self.away.keys().fold(0, |all, number| all | 1 << number)
    }

    /// Numbers of those that are there.
    pub(super) fn here(&self) -> Vec<u8> {
        self.devices.iter().map(|device| device.number).filter(|number| self.is_here(*number)).collect()
    }

    /// A life has begun: somebody may copy a member.
    pub(super) fn copy_one(&mut self) {
        self.life += 1;
        for number in self.here() {
            self.lived.insert(number, self.life);
        }
        if self.nature.loses > 0 && self.rng.coin() {
            let number = *self.rng.pick(&self.here());
            let mut disk = self.disks[usize::from(number)].clone();
            let mark = disk.mark();
            disk.flushed(mark);
            self.copied.retain(|copied| copied.number != number);
            self.copied.push(Copied { number, disk, life: self.life });
        }
    }

    /// A member may be lost with the crash; then what was not flushed may be gone everywhere.
    pub(super) fn lose(&mut self, rule: Rule) -> Rule {
        let here = self.here();
        if here.len() < 2 || !self.rng.chance(self.nature.loses) {
            return rule;
        }
        let number = *self.rng.pick(&here);
        // Somebody stays who knows of the last life; without that, two histories come of one.
        let knows = |other: &u8| self.lived.get(other).copied().unwrap_or(0) == self.life;
        // So with a start without somebody that was cut off: who takes part in it may have decided what nobody else knows.
        let decided = |other: &u8| self.deciders == 0 || self.deciders >> other & 1 == 1;
        if !here.iter().any(|other| *other != number && knows(other) && decided(other)) {
            return rule;
        }
        // Older than the last life that it was in: since then all have begun another run.
        let old = self.copied.iter().find(|copied| {
            copied.number == number && self.lived.get(&number).is_some_and(|lived| copied.life < *lived)
        });
        let old = old.map(|copied| copied.disk.clone());
        self.coming.retain(|coming| *coming != number);
        self.away.insert(number, Away { old, refused: false, gone_on: false });
        self.count("members lost");
        self.note(|| format!("member {number} is lost"), u64::from(number));
        Rule::Power
    }

    /// The pool goes on without those who are away: what they had not flushed may be gone, as the tail that tells of it is.
    pub(super) fn went_on(&mut self) {
        let survives = self.nature.survives;
        for (number, away) in &mut self.away {
            away.gone_on = true;
            self.disks[usize::from(*number)].power_cut(&mut self.rng, survives);
        }
    }

    /// Members may come back, each as it was or as it was long ago.
    pub(super) fn come_back(&mut self) -> Check {
        for number in self.away.keys().copied().collect::<Vec<_>>() {
            if self.away[&number].refused || !self.rng.chance(self.nature.returns) {
                continue;
            }
            let away = self.away.remove(&number).expect("just seen");
            if let Some(old) = away.old.clone().filter(|_| self.rng.coin()) {
                let is = std::mem::replace(&mut self.disks[usize::from(number)], old);
                let opened = self.try_open(u64::MAX, None);
                self.note(|| format!("member {number} comes back as it was long ago"), u64::from(number));
                self.disks[usize::from(number)] = is;
                self.away.insert(number, away);
                if opened.is_ok() {
                    return Err(format!("an old copy of member {number} is taken for the member"));
                }
                self.count("old copies refused");
                continue;
            }
            self.note(|| format!("member {number} comes back"), u64::from(number));
            self.coming.push(number);
        }
        Ok(())
    }

    /// Those who came back are refused: they stay away.
    pub(super) fn refused(&mut self, error: &str) -> bool {
        let numbers = std::mem::take(&mut self.coming);
        let named =
            numbers.iter().copied().find(|number| error.starts_with(&format!("member {number} of the pool lacks")));
        let Some(number) = named else {
            self.coming = numbers;
            return false;
        };
        self.away.insert(number, Away { old: None, refused: true, gone_on: true });
        self.coming = numbers.into_iter().filter(|other| *other != number).collect();
        self.count("returns refused");
        self.note(|| format!("member {number} is refused"), u64::from(number));
        true
    }
}

/// What a block may be that nobody could read after a crash: what it may have been then.
pub(super) fn in_doubt(blocks: &[&Block], until: u64, rule: Rule) -> Block {
    let mut all: Vec<u64> = blocks.iter().flat_map(|block| block.admissible(until, rule)).collect();
    all.sort_unstable();
    all.dedup();
    Block(all.into_iter().map(|word| Change { word, start: 0, end: Some(0), durable: true }).collect())
}
