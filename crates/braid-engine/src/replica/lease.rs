//! Whether a controller may answer: enough voters have been heard of lately, so that nobody can have opened the volume elsewhere.

use super::planted::{Planted, planted};
use super::quorum::{Quorums, VOTERS_MAX, VoterId, Voters};

/// How long a voter's word holds, in nanoseconds of a clock that only goes forward, from the moment in which it was asked.
pub const LEASE_NS: u64 = 5_000_000_000;

/// How long whoever opens a volume waits after enough voters were raised: the lease of whoever was cut off then has run out, also
/// where its clock is a tenth slower.
pub const OPEN_WAIT_NS: u64 = LEASE_NS + LEASE_NS / 10;

/// When each voter was last asked something that it answered.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    /// When it was asked; none: never.
    asked_ns: [Option<u64>; VOTERS_MAX],
}

impl Lease {
    /// A voter answered what it was asked at `asked_ns`, under this controller's epoch. Not the moment in which the answer came
    /// counts: it may have been on its way while another controller raised the epoch.
    pub fn heard(&mut self, voter: VoterId, asked_ns: u64) {
        let last = &mut self.asked_ns[usize::from(voter.0)];
        *last = (*last).max(Some(asked_ns));
    }

    /// Until when answers may be given where each of these sets of voters has to be heard of; none: not at all.
    pub fn until_ns(&self, sets: impl Iterator<Item = Voters>) -> Option<u64> {
        if planted(Planted::LeaseIgnored) {
            return Some(u64::MAX);
        }
        let of = |set: Voters| {
            let mut asked: Vec<u64> = set.iter().filter_map(|voter| self.asked_ns[usize::from(voter.0)]).collect();
            asked.sort_unstable();
            // The newest that so many are at least as new as.
            let oldest_needed = asked.len().checked_sub(Quorums::of(set.count()).lease)?;
            Some(asked[oldest_needed].saturating_add(LEASE_NS))
        };
        // None is less than anything.
        sets.map(of).min().flatten()
    }

    /// Whether an answer may be given now.
    pub fn holds(&self, sets: impl Iterator<Item = Voters>, now_ns: u64) -> bool {
        self.until_ns(sets).is_some_and(|until| now_ns < until)
    }
}
