//! Which extents of a member are free, and what those go through that are given back.
//!
//! An extent that is freed is not free at once: first its freeing is committed, then every request has ended that may still
//! have its place in mind, then it is discarded. Only then somebody else may have it.

use std::collections::VecDeque;

use super::home::{Pool, Room};
use super::units::ExtentId;
use crate::planted::{Planted, planted};

/// How much of a member is handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberSpace {
    /// Its number.
    pub member: u8,
    /// Its extents.
    pub extents: u32,
    /// Those that can be had now.
    pub free: u32,
    /// Nothing new goes there.
    pub closed: bool,
}

impl Pool {
    /// What its members have for data, by number.
    pub fn space(&self) -> Vec<MemberSpace> {
        let of = |(member, room): (u8, &Room)| {
            let extents = self.state.records.extents(member);
            MemberSpace { member, extents, free: room.free.count(), closed: room.closed }
        };
        (0u8..).zip(&self.rooms).map(of).filter(|space| space.extents > 0).collect()
    }
}

/// The free extents of one member.
pub struct Free {
    words: Vec<u64>,
    extents: u32,
    free: u32,
    /// Where the search goes on, a word.
    cursor: usize,
}

impl Free {
    /// All of so many extents in use.
    pub fn none(extents: u32) -> Free {
        Free { words: vec![0; extents.div_ceil(64) as usize], extents, free: 0, cursor: 0 }
    }

    /// How many are free.
    pub fn count(&self) -> u32 {
        self.free
    }

    /// Whether this one is free.
    pub fn has(&self, index: u32) -> bool {
        self.words[index as usize / 64] >> (index % 64) & 1 == 1
    }

    /// Makes one free.
    ///
    /// # Panics
    /// When it is already: two would get it.
    pub fn give(&mut self, index: u32) {
        assert!(index < self.extents && !self.has(index), "extent {index} is free already");
        self.words[index as usize / 64] |= 1 << (index % 64);
        self.free += 1;
    }

    /// Takes this one, which is free.
    pub fn take_this(&mut self, index: u32) {
        assert!(self.has(index), "extent {index} is not free");
        self.words[index as usize / 64] &= !(1 << (index % 64));
        self.free -= 1;
    }

    /// Takes the next one that is free: neighbours one after the other, so that what is written in a row stands in a row.
    pub fn take(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        while self.words[self.cursor] == 0 {
            self.cursor = (self.cursor + 1) % self.words.len();
        }
        let bit = self.words[self.cursor].trailing_zeros();
        let index = self.cursor as u32 * 64 + bit;
        self.take_this(index);
        Some(index)
    }
}

/// What was freed and cannot be had yet.
#[derive(Default)]
pub struct Freed {
    /// Freed by the unit of this number, which may not be committed.
    committing: VecDeque<(u64, ExtentId)>,
    /// Committed: everybody who had it in mind has to end.
    committed: Vec<ExtentId>,
    /// Waiting for the barrier that is under way.
    draining: Vec<ExtentId>,
    /// Nobody has it in mind.
    discarding: VecDeque<ExtentId>,
}

impl Freed {
    /// Takes one that the unit `sequence` frees; 0 where it was never committed to anybody.
    pub fn add(&mut self, sequence: u64, extent: ExtentId) {
        if planted(Planted::ReusedBeforeCommitted) || sequence == 0 {
            self.committed.push(extent);
        } else {
            self.committing.push_back((sequence, extent));
        }
    }

    /// Everything up to this unit is committed.
    pub fn committed(&mut self, mark: u64) {
        while let Some((sequence, extent)) = self.committing.front().copied()
            && sequence <= mark
        {
            self.committing.pop_front();
            self.committed.push(extent);
        }
    }

    /// Whether a barrier would help; it is under way from now on.
    pub fn begin_drain(&mut self) -> bool {
        if self.committed.is_empty() || !self.draining.is_empty() {
            return false;
        }
        if planted(Planted::BarrierSkipped) {
            self.discarding.extend(self.committed.drain(..));
            return false;
        }
        std::mem::swap(&mut self.committed, &mut self.draining);
        true
    }

    /// The barrier has ended on all shards.
    pub fn drained(&mut self) {
        self.discarding.extend(self.draining.drain(..));
    }

    /// The next that is to be discarded.
    pub fn pop_discard(&mut self) -> Option<ExtentId> {
        self.discarding.pop_front()
    }

    /// Whether there is one to be discarded.
    pub fn awaits_discard(&self) -> bool {
        !self.discarding.is_empty()
    }

    /// Whether some wait for a commit.
    pub fn awaits_commit(&self) -> bool {
        !self.committing.is_empty()
    }

    /// How many are on their way.
    pub fn len(&self) -> usize {
        self.committing.len() + self.committed.len() + self.draining.len() + self.discarding.len()
    }

    /// Those on their way, for whoever counts again.
    pub fn iter(&self) -> impl Iterator<Item = ExtentId> + '_ {
        let committing = self.committing.iter().map(|(_, extent)| *extent);
        committing.chain(self.committed.iter().chain(&self.draining).chain(&self.discarding).copied())
    }
}

/// Chooses members in proportion to their free space, the same way each time: each gains its free extents at each choice, the
/// richest is chosen and pays for all.
#[derive(Clone, Default)]
pub struct Spread {
    credits: Vec<i64>,
}

impl Spread {
    /// The member for the next extent; none where none of those allowed has any.
    pub fn choose(&mut self, free: impl Iterator<Item = (u8, u32)>) -> Option<u8> {
        let (mut best, mut total) = (None::<(u8, i64)>, 0i64);
        for (member, free) in free.filter(|(_, free)| *free > 0) {
            let at = usize::from(member);
            if self.credits.len() <= at {
                self.credits.resize(at + 1, 0);
            }
            self.credits[at] += i64::from(free);
            total += i64::from(free);
            if best.is_none_or(|(_, most)| self.credits[at] > most) {
                best = Some((member, self.credits[at]));
            }
        }
        let (member, _) = best?;
        self.credits[usize::from(member)] -= total;
        Some(member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_chosen_in_proportion_to_what_is_free() {
        let (mut spread, mut free, mut chosen) = (Spread::default(), [50u32, 100, 100], [0u32; 3]);
        for _ in 0..250 {
            let member = spread.choose((0u8..).zip(free)).unwrap();
            free[usize::from(member)] -= 1;
            chosen[usize::from(member)] += 1;
            let least = chosen[0] * 2;
            assert!(chosen[1].abs_diff(least) <= 3 && chosen[2].abs_diff(chosen[1]) <= 2, "{chosen:?}");
        }
        assert_eq!((chosen, spread.choose((0u8..).zip(free))), ([50, 100, 100], None));
    }

    #[test]
    fn free_extents_are_taken_once_and_in_a_row() {
        let mut free = Free::none(130);
        (0..130).for_each(|index| free.give(index));
        let first: Vec<u32> = std::iter::from_fn(|| free.take()).collect();
        assert_eq!(first, (0..130).collect::<Vec<_>>());
        free.give(7);
        free.give(129);
        assert_eq!((free.take(), free.take(), free.take()), (Some(129), Some(7), None));
    }

    #[test]
    fn what_is_freed_is_had_again_only_after_all_steps() {
        let mut freed = Freed::default();
        let extent = |index| ExtentId { member: 0, index };
        freed.add(5, extent(1));
        freed.add(9, extent(2));
        assert!(!freed.begin_drain());
        freed.committed(5);
        assert!(freed.begin_drain());
        freed.committed(9);
        assert!(!freed.begin_drain(), "a barrier that is under way does not count for what came later");
        assert_eq!(freed.pop_discard(), None);
        freed.drained();
        assert_eq!(freed.pop_discard(), Some(extent(1)));
        assert_eq!(freed.pop_discard(), None);
        assert!(freed.begin_drain());
        assert_eq!(freed.len(), 1);
    }
}
