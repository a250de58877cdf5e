//! The free extents of a member, and the steps that freed ones go through.
//!
//! A freed extent is not free at once. First its freeing is committed, then every request has ended that may still use
//! its address, then it is discarded. Only then it can be allocated again.

use std::collections::VecDeque;

use super::units::ExtentId;
use super::{Pool, Room};

/// Space of one member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberSpace {
    /// Its number.
    pub member: u8,
    /// Its extents.
    pub extents: u32,
    /// Extents that can be allocated now.
    pub free: u32,
    /// The member takes no new allocations.
    pub closed: bool,
}

impl Pool {
    /// Returns the members' space for data, by number.
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
    /// The word at which the next search begins.
    cursor: usize,
}

impl Free {
    /// Returns a set of `extents` extents, all in use.
    pub fn none(extents: u32) -> Free {
        Free { words: vec![0; extents.div_ceil(64) as usize], extents, free: 0, cursor: 0 }
    }

    /// Returns how many are free.
    pub fn count(&self) -> u32 {
        self.free
    }

    /// Whether this one is free.
    pub fn has(&self, index: u32) -> bool {
        self.words[index as usize / 64] >> (index % 64) & 1 == 1
    }

    /// Marks an extent as free.
    ///
    /// # Panics
    /// If it is free already: it would be allocated twice.
    pub fn give(&mut self, index: u32) {
        assert!(index < self.extents && !self.has(index), "extent {index} is free already");
        self.words[index as usize / 64] |= 1 << (index % 64);
        self.free += 1;
    }

    /// Allocates this extent, which is free.
    pub fn take_this(&mut self, index: u32) {
        assert!(self.has(index), "extent {index} is not free");
        self.words[index as usize / 64] &= !(1 << (index % 64));
        self.free -= 1;
    }

    /// Allocates the next free extent: neighbours one after the other, so that sequential writes stay sequential on the
    /// member.
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

/// Freed extents that cannot be allocated yet.
#[derive(Default)]
pub struct Freed {
    /// With the log unit that freed the extent, which may not be committed.
    committing: VecDeque<(u64, ExtentId)>,
    /// The freeing is committed: requests that may use the extent have to end.
    committed: Vec<ExtentId>,
    /// Waiting for the barrier under way.
    draining: Vec<ExtentId>,
    /// No request uses the extent any longer.
    discarding: VecDeque<ExtentId>,
}

impl Freed {
    /// Adds an extent that the log unit `sequence` freed; 0 if no record ever gave it to an owner.
    pub fn add(&mut self, sequence: u64, extent: ExtentId) {
        if sequence == 0 {
            self.committed.push(extent);
        } else {
            self.committing.push_back((sequence, extent));
        }
    }

    /// Notes that every log unit up to `mark` is committed.
    pub fn committed(&mut self, mark: u64) {
        while let Some((sequence, extent)) = self.committing.front().copied()
            && sequence <= mark
        {
            self.committing.pop_front();
            self.committed.push(extent);
        }
    }

    /// Returns whether a barrier is needed; it is under way from now on.
    pub fn begin_drain(&mut self) -> bool {
        if self.committed.is_empty() || !self.draining.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.committed, &mut self.draining);
        true
    }

    /// Notes that the barrier has ended on all shards.
    pub fn drained(&mut self) {
        self.discarding.extend(self.draining.drain(..));
    }

    /// Returns the next extent to discard.
    pub fn pop_discard(&mut self) -> Option<ExtentId> {
        self.discarding.pop_front()
    }

    /// Returns whether an extent waits for its discard.
    pub fn awaits_discard(&self) -> bool {
        !self.discarding.is_empty()
    }

    /// Returns whether an extent waits for a commit.
    pub fn awaits_commit(&self) -> bool {
        !self.committing.is_empty()
    }

    /// Returns how many extents are being freed.
    pub fn len(&self) -> usize {
        self.committing.len() + self.committed.len() + self.draining.len() + self.discarding.len()
    }

    /// Returns the extents being freed, for a recount.
    pub fn iter(&self) -> impl Iterator<Item = ExtentId> + '_ {
        let committing = self.committing.iter().map(|(_, extent)| *extent);
        committing.chain(self.committed.iter().chain(&self.draining).chain(&self.discarding).copied())
    }
}

/// Chooses members in proportion to their free space, deterministically: at each choice every member gains credits
/// equal to its free extents; the member with the most credits is chosen and pays the sum.
#[derive(Clone, Default)]
pub struct Spread {
    credits: Vec<i64>,
}

impl Spread {
    /// Returns the member for the next extent; `None` if none of these has a free one.
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
    fn a_freed_extent_is_allocated_again_only_after_all_steps() {
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
