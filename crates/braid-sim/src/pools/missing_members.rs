//! Members that are lost in a crash and return later, return as an older copy, or never return.

use super::member_states::{DiskCopy, MissingMember};
use super::oracle::{Block, Change, Rule};
use super::world::{Check, World};

impl World {
    /// Returns whether a member is present.
    pub(super) fn is_present(&self, number: u8) -> bool {
        !self.missing.contains_key(&number)
    }

    /// Returns the missing members as a bit mask.
    pub(super) fn missing_mask(&self) -> u128 {
        self.missing.keys().fold(0, |all, number| all | 1 << number)
    }

    /// Returns the numbers of the members that are present.
    pub(super) fn present_members(&self) -> Vec<u8> {
        self.devices.iter().map(|device| device.number).filter(|number| self.is_present(*number)).collect()
    }

    /// Begins a life. A member's disk may be copied now, as it would read after a flush.
    pub(super) fn begin_life(&mut self) {
        self.life += 1;
        for number in self.present_members() {
            self.last_life.insert(number, self.life);
        }
        if self.parameters.loses > 0 && self.rng.coin() {
            let number = *self.rng.pick(&self.present_members());
            let mut disk = self.disks[usize::from(number)].clone();
            let mark = disk.mark();
            disk.flushed(mark);
            self.disk_copies.retain(|copy| copy.number != number);
            self.disk_copies.push(DiskCopy { number, disk, life: self.life });
        }
    }

    /// At times loses a member with the crash. Returns the rule that holds then: if a member was lost, data that was
    /// not flushed may be lost on every member.
    pub(super) fn lose_member(&mut self, rule: Rule) -> Rule {
        let present = self.present_members();
        if present.len() < 2 || !self.rng.chance(self.parameters.loses) {
            return rule;
        }
        let number = *self.rng.pick(&present);
        // Another member that took part in the last life must remain. Otherwise the pool would continue from an earlier
        // state, and its history would fork.
        let knows = |other: &u8| self.last_life.get(other).copied().unwrap_or(0) == self.life;
        // If a start was interrupted while a member was missing, one of its participants must remain as well: only they
        // may know what it decided.
        let decided = |other: &u8| self.start_participants == 0 || self.start_participants >> other & 1 == 1;
        if !present.iter().any(|other| *other != number && knows(other) && decided(other)) {
            return rule;
        }
        // The copy must be from before the last life in which the member took part: in between, every member has
        // recorded that the pool was opened again, by which a start detects the copy.
        let old = self.disk_copies.iter().find(|copy| {
            copy.number == number && self.last_life.get(&number).is_some_and(|last_life| copy.life < *last_life)
        });
        let old = old.map(|copy| copy.disk.clone());
        self.returned.retain(|returned| *returned != number);
        self.missing.insert(number, MissingMember { old, refused: false, started_without: false });
        self.count("members lost");
        self.note(|| format!("member {number} is lost"), u64::from(number));
        Rule::Power
    }

    /// Notes that the pool continues without the missing members. Their unflushed data may be gone, as the in-memory
    /// log that holds them is.
    pub(super) fn continue_without_missing(&mut self) {
        let survives = self.parameters.survives;
        for (number, missing) in &mut self.missing {
            missing.started_without = true;
            self.disks[usize::from(*number)].power_cut(&mut self.rng, survives);
        }
    }

    /// Returns missing members, perhaps: each as it was lost, or as an older copy. An older copy must be refused.
    pub(super) fn return_members(&mut self) -> Check {
        for number in self.missing.keys().copied().collect::<Vec<_>>() {
            if self.missing[&number].refused || !self.rng.chance(self.parameters.returns) {
                continue;
            }
            let missing = self.missing.remove(&number).expect("just seen");
            if let Some(old) = missing.old.clone().filter(|_| self.rng.coin()) {
                let current = std::mem::replace(&mut self.disks[usize::from(number)], old);
                let opened = self.try_open(u64::MAX, None);
                self.note(|| format!("member {number} comes back as it was long ago"), u64::from(number));
                self.disks[usize::from(number)] = current;
                self.missing.insert(number, missing);
                if opened.is_ok() {
                    return Err(format!("an old copy of member {number} is taken for the member"));
                }
                self.count("old copies refused");
                continue;
            }
            self.note(|| format!("member {number} comes back"), u64::from(number));
            self.returned.push(number);
        }
        Ok(())
    }

    /// Handles the refusal of a returned member: it stays missing. Returns whether the error is such a refusal.
    pub(super) fn is_refused_return(&mut self, error: &str) -> bool {
        let numbers = std::mem::take(&mut self.returned);
        let named =
            numbers.iter().copied().find(|number| error.starts_with(&format!("member {number} of the pool lacks")));
        let Some(number) = named else {
            self.returned = numbers;
            return false;
        };
        self.missing.insert(number, MissingMember { old: None, refused: true, started_without: true });
        self.returned = numbers.into_iter().filter(|other| *other != number).collect();
        self.count("returns refused");
        self.note(|| format!("member {number} is refused"), u64::from(number));
        true
    }
}

/// Returns the possible contents of a block that was unreadable after a crash: everything that was admissible at the
/// crash.
pub(super) fn in_doubt(blocks: &[&Block], until: u64, rule: Rule) -> Block {
    let mut all: Vec<u64> = blocks.iter().flat_map(|block| block.admissible(until, rule)).collect();
    all.sort_unstable();
    all.dedup();
    Block(all.into_iter().map(|word| Change { word, start: 0, end: Some(0), durable: true }).collect())
}
